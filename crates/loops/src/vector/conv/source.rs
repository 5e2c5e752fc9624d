//! Images as windows read them: in place, or copied row by row with the padding around them.

use std::ops::Range;

use super::super::tile::ColumnRun;

/// An element of a window along one dimension: its position relative to the first pixel, and its index in the filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tap {
    pub at: isize,
    pub index: usize,
}

impl Tap {
    /// The windows, of `count`, whose tap is within an image.
    pub fn inside(&self, step: usize, image: usize, count: usize) -> Range<usize> {
        // The first window whose tap is not before a position.
        let first = |place: isize| usize::try_from(place - self.at).unwrap_or(0).div_ceil(step).min(count);
        first(0)..first(image as isize)
    }

    /// The same tap, relative to a window other than the first.
    pub fn from(&self, window: usize, step: usize) -> Tap {
        Tap { at: self.at + (window * step) as isize, index: self.index }
    }
}

/// The arrangement of windows over images: some windows across and some down, a step apart.
#[derive(Clone, Debug)]
pub struct Source {
    /// Height, width and channels of an image.
    image: [usize; 2],
    depth: usize,
    step: [usize; 2],
    taps: [Vec<Tap>; 2],
    /// The first tap, and the number of pixels from it to the last.
    low: [isize; 2],
    span: [usize; 2],
    /// The number of windows in a row.
    across: usize,
    /// Whether no window lies over the padding.
    is_inside: bool,
}

impl Source {
    /// `count` windows down and across. There is at least one tap in each dimension, in ascending order.
    pub fn new(image: [usize; 2], depth: usize, step: [usize; 2], taps: &[Vec<Tap>; 2], count: [usize; 2]) -> Source {
        let taps = taps.clone();
        let low = taps.each_ref().map(|taps| taps[0].at);
        let high = taps.each_ref().map(|taps| taps[taps.len() - 1].at);
        let span = [0, 1].map(|i| (high[i] - low[i]) as usize + 1);
        let is_inside = [0, 1].into_iter().all(|i| {
            let last = ((count[i] - 1) * step[i]) as isize + high[i];
            low[i] >= 0 && last < image[i] as isize
        });
        Source { image, depth, step, taps, low, span, across: count[1], is_inside }
    }

    /// Whether no window lies over the padding.
    pub fn is_inside(&self) -> bool {
        self.is_inside
    }

    /// The distance between neighbours in a column of a band.
    fn pitch(&self) -> usize {
        if self.is_inside {
            return self.image[1] * self.depth;
        }
        ((self.across - 1).saturating_mul(self.step[1])).saturating_add(self.span[1]).saturating_mul(self.depth)
    }

    /// The distance between the first pixels of neighbouring windows in a band, down and across.
    pub fn steps(&self) -> [usize; 2] {
        [self.step[0] * self.pitch(), self.step[1] * self.depth]
    }

    /// The number of floats that are copied for a band of `rows` rows of windows.
    pub fn scratch(&self, rows: usize) -> usize {
        if self.is_inside {
            return 0;
        }
        ((rows - 1).saturating_mul(self.step[0])).saturating_add(self.span[0]).saturating_mul(self.pitch())
    }

    /// The number of rows of windows in a band of at most `floats` floats, if that is at least one.
    pub fn rows_within(&self, floats: usize) -> usize {
        let high = floats / self.pitch().max(1);
        (high.saturating_sub(self.span[0]) / self.step[0] + 1).max(1)
    }

    /// The elements under the first window of a band, in the order of the filter's elements: runs that each belong to one row
    /// of taps.
    pub fn runs(&self) -> Vec<ColumnRun> {
        let (pitch, depth) = (self.pitch(), self.depth);
        let (mut runs, mut right): (Vec<ColumnRun>, usize) = (Vec::new(), 0);
        for row in &self.taps[0] {
            for (i, column) in self.taps[1].iter().enumerate() {
                let [down, across] = [row.at - self.low[0], column.at - self.low[1]].map(|at| at as usize);
                let at = down * pitch + across * depth;
                match runs.last_mut() {
                    Some(run) if i > 0 && run.at + run.len == at => run.len += depth,
                    _ => runs.push(ColumnRun { at, len: depth, right }),
                }
                right += depth;
            }
        }
        runs
    }

    /// The rows of taps that are within the image for a row of windows.
    pub fn rows_inside(&self, window: usize) -> Range<usize> {
        let place = |tap: &Tap| (window * self.step[0]) as isize + tap.at;
        let before = self.taps[0].partition_point(|tap| place(tap) < 0);
        before..self.taps[0].partition_point(|tap| place(tap) < self.image[0] as isize)
    }

    /// The pixels under some rows of windows of an image, from the first tap of the first window on.
    pub fn band<'a>(
        &self,
        images: &'a [f32],
        image: usize,
        first: usize,
        rows: usize,
        scratch: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        self.bands(images, image..image + 1, first, rows, scratch).0
    }

    /// As [`Source::band`], for the same rows of some images; and the distance between those.
    pub fn bands<'a>(
        &self,
        all: &'a [f32],
        images: Range<usize>,
        first: usize,
        rows: usize,
        scratch: &'a mut Vec<f32>,
    ) -> (&'a [f32], usize) {
        let size = self.image[0] * self.image[1] * self.depth;
        let high = (rows - 1) * self.step[0] + self.span[0];
        let top = (first * self.step[0]) as isize + self.low[0];
        if self.is_inside {
            let place = |y: usize, x: usize| (y * self.image[1] + x) * self.depth;
            let start = images.start * size + place(top as usize, self.low[1] as usize);
            let end = (images.end - 1) * size + place(top as usize + high, 0);
            return (&all[start..end], size);
        }
        scratch.clear();
        for image in all.chunks_exact(size).skip(images.start).take(images.len()) {
            self.pad(image, top..top + high as isize, scratch);
        }
        (scratch, high * self.pitch())
    }

    /// Appends rows of an image, of which some may be padding, with the padding on both sides.
    fn pad(&self, image: &[f32], rows: Range<isize>, to: &mut Vec<f32>) {
        let [height, width] = self.image;
        let wide = (self.pitch() / self.depth) as isize;
        // The columns of the image that are read, and the padding on both sides of them.
        let from = self.low[1].clamp(0, width as isize);
        let end = (self.low[1] + wide).clamp(from, width as isize);
        let left = (from - self.low[1]).min(wide);
        let right = wide - left - (end - from);
        let [left, from, end, right] = [left, from, end, right].map(|columns| columns as usize * self.depth);
        for y in rows {
            match usize::try_from(y).ok().filter(|&y| y < height) {
                Some(y) => {
                    let row = &image[y * width * self.depth..][..width * self.depth];
                    to.resize(to.len() + left, 0.0);
                    to.extend_from_slice(&row[from..end]);
                    to.resize(to.len() + right, 0.0);
                }
                None => to.resize(to.len() + self.pitch(), 0.0),
            }
        }
    }
}
