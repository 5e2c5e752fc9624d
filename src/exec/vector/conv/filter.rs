//! The gradient of a convolution's filter: for each weight, the sum over all pixels of what it was multiplied with.
//!
//! The images are cut into parts with sums of their own, the weights into ranges; a lot is a range of one part. What is cut
//! how follows from the sizes, so that the sums are always added in one order.

use std::ops::Range;

use super::super::lanes::Width;
use super::super::tile::{Left, Product, Right, Run, most_columns, most_rows, multiply};
use super::source::Source;
use super::{Convolution, MOST_ROOM, MOST_WORK, even_parts};
use crate::exec::lots::{in_lots, threads};
use crate::exec::vector::sum_over;

/// Floats of images that are read at once: they stay in a core's cache.
const ROOM: usize = 32 << 10;
/// Floats of the gradient that are read at once, of as many channels as a tile has: they stay in the nearest cache.
const NEAR: usize = 6 << 10;
/// Up to so many tiles' channels lie close enough together to be read where they are: those of a tile for many windows
/// would displace each other from the nearest cache otherwise.
const IN_PLACE: usize = 2;
/// Fewest multiplications of a lot, which take about a tenth of a millisecond.
const WORK: usize = 4 << 20;
/// Multiplications of a lot after which it is looked whether the step was given up.
const ROUND: usize = 64 << 20;
/// Most lots side by side.
const LOTS: usize = 32;
/// Fewest pixels of a part, so that adding the parts takes little beside them.
const PIXELS: usize = 1 << 10;

/// The gradient of the filter, as HWIO; `None` if a row of the answer takes too long, or too much memory.
pub fn gradient(c: &Convolution, width: Width, images: &[f32], gradient: &[f32]) -> Option<Vec<f32>> {
    let taps = [c.taps(0), c.taps(1)];
    let source = Source::new(c.image, c.channels, c.stride, &taps, c.answer);
    let is_padded = !source.is_inside();
    let weights =
        Weights { c, width, runs: source.runs(), source, images, gradient, windows: [0, 1].map(|i| 0..c.answer[i]) };
    let sums = weights.sums()?;
    if !is_padded || !sums.iter().any(|x| x.is_nan()) {
        return Some(sums);
    }
    // What is endless may have met the padding: then each weight by itself, without the windows under which it lies there.
    let mut sums = Vec::with_capacity(c.weights());
    for (row, column) in taps[0].iter().flat_map(|row| taps[1].iter().map(move |column| (row, column))) {
        let inside = [0, 1].map(|i| [row, column][i].inside(c.stride[i], c.image[i], c.answer[i]));
        if inside.iter().any(Range::is_empty) {
            sums.resize(sums.len() + c.channels * c.made, 0.0);
            continue;
        }
        let taps = [0, 1].map(|i| vec![[row, column][i].from(inside[i].start, c.stride[i])]);
        let source = Source::new(c.image, c.channels, c.stride, &taps, inside.each_ref().map(Range::len));
        sums.extend(Weights { runs: source.runs(), source, windows: inside, ..weights }.sums()?);
    }
    Some(sums)
}

/// Most floats that the gradient takes beside the answer.
pub fn room(c: &Convolution, width: Width) -> usize {
    let band = MOST_ROOM.min(c.image[0] * c.image[1] * c.channels + ROOM);
    let gradient = NEAR.max(c.answer[1]) * c.made.next_multiple_of(width.lanes());
    c.weights() * parts(c, LOTS) + threads() * (band + gradient)
}

/// How many parts there are pixels enough for, at most as many as lots; all of as many images, if that can be.
fn parts(c: &Convolution, lots: usize) -> usize {
    let most = (c.batch * c.answer[0] * c.answer[1] / PIXELS).clamp(1, c.batch).min(lots);
    (most.div_ceil(2)..=most).rev().find(|&parts| c.batch.is_multiple_of(parts)).unwrap_or(most)
}

/// Those weights of a filter that lie in the given runs, and the windows in which they count.
struct Weights<'a> {
    c: &'a Convolution,
    width: Width,
    source: Source,
    /// The weights, as places under the first window of a band.
    runs: Vec<Run>,
    images: &'a [f32],
    gradient: &'a [f32],
    windows: [Range<usize>; 2],
}

impl Weights<'_> {
    /// The sums for each weight; `None` if a row of windows takes too long, or too much memory.
    fn sums(&self) -> Option<Vec<f32>> {
        let (c, weights) = (self.c, self.runs.iter().map(|run| run.len).sum::<usize>());
        let [high, wide] = self.windows.each_ref().map(Range::len);
        let work = |weights: usize| [wide, weights, c.made].into_iter().fold(1, usize::saturating_mul);
        let lots = (work(weights).saturating_mul(c.batch * high) / WORK).clamp(1, LOTS);
        let images = c.batch.div_ceil(parts(c, lots));
        let parts = c.batch.div_ceil(images);
        let range = weights.div_ceil(lots.div_ceil(parts)).max(most_rows(self.width)).min(weights);
        if self.source.room(1) > MOST_ROOM || wide.saturating_mul(c.made) > MOST_ROOM || work(range) > MOST_WORK {
            return None;
        }
        let mut sums = vec![0f32; parts * weights * c.made];
        let round = (ROUND / work(range)).max(1);
        for from in (0..images * high).step_by(round) {
            let lots = sums.chunks_mut(weights * c.made).enumerate().flat_map(|(part, sums)| {
                let all = part * images * high..((part + 1) * images).min(c.batch) * high;
                let rows = all.start + from..(all.start + from + round).min(all.end);
                sums.chunks_mut(range * c.made).enumerate().map(move |(i, sums)| (rows.clone(), i * range, sums))
            });
            in_lots(lots, |(rows, first, sums)| self.add(rows, first, sums));
        }
        let (all, others) = sums.split_at_mut(weights * c.made);
        let others: Vec<&[f32]> = others.chunks(weights * c.made).collect();
        if !others.is_empty() {
            sum_over(all, &others);
            sums.truncate(weights * c.made);
            sums.shrink_to_fit();
        }
        Some(sums)
    }

    /// Adds what some rows of windows, counted through all images, are to the weights from the first on.
    fn add(&self, rows: Range<usize>, first: usize, sums: &mut [f32]) {
        let [down, across] = &self.windows;
        let windows = NEAR / most_columns(self.width).min(self.c.made.next_multiple_of(self.width.lanes()));
        let most = self.source.rows_within(ROOM).min((windows / across.len()).max(1));
        let mut room = Room::default();
        let mut from = rows.start;
        while from < rows.end {
            // Images are cut evenly; several that are small make one band.
            let within = from % down.len();
            let rest = (down.len() - within).min(rows.end - from);
            let count = if rest == down.len() && most >= 2 * rest {
                (most / rest).min((rows.end - from) / rest) * rest
            } else {
                rest.div_ceil(rest.div_ceil(most))
            };
            self.band(from..from + count, first, sums, &mut room);
            from += count;
        }
    }

    /// As [`Weights::add`], for rows that are read at once: some of one image, or all of some images.
    fn band(&self, rows: Range<usize>, first: usize, sums: &mut [f32], room: &mut Room) {
        let (made, wide) = (self.c.made, most_columns(self.width));
        let [next, along] = self.source.steps();
        let [down, across] = &self.windows;
        let (images, y) = (rows.start / down.len()..rows.end.div_ceil(down.len()), rows.start % down.len());
        let count = rows.len() / images.len();
        let (band, apart) = self.source.bands(self.images, images, y, count, &mut room.pixels);
        room.windows.clear();
        room.windows.extend(
            rows.clone().enumerate().map(|(i, _)| Run { at: i / count * apart + i % count * next, len: across.len() }),
        );
        let gradient = self.gradient(rows.clone(), &mut room.gradient);
        let end = first + sums.len() / made;
        for (i, block) in (0..made).step_by(wide).enumerate() {
            let columns = wide.min(made - block);
            let right = Right { from: &gradient.from[i * gradient.next..], down: gradient.down(columns) };
            let mut above = 0;
            for run in &self.runs {
                // What the lot has of the run.
                let (from, to) = (above.max(first), (above + run.len).min(end));
                for part in even_parts(to.saturating_sub(from), most_rows(self.width)).filter(|part| !part.is_empty()) {
                    let weight = from + part.start;
                    let left = Left { from: &band[run.at + weight - above..], runs: &room.windows, along, down: 1 };
                    let to = &mut sums[(weight - first) * made + block..];
                    multiply(
                        self.width,
                        left,
                        right,
                        Product { to, down: made, rows: part.len(), columns, is_added: true },
                    );
                }
                above += run.len;
            }
        }
    }

    /// The gradient of some rows.
    fn gradient<'b>(&'b self, rows: Range<usize>, room: &'b mut Vec<f32>) -> Gradient<'b> {
        let (c, [down, across], wide) = (self.c, &self.windows, most_columns(self.width));
        let lanes = self.width.lanes();
        let row = |row: usize| {
            let row = row / down.len() * c.answer[0] + down.start + row % down.len();
            &self.gradient[(row * c.answer[1] + across.start) * c.made..]
        };
        let is_whole = [down, across].into_iter().zip(c.answer).all(|(windows, all)| windows.len() == all);
        if is_whole && c.made.is_multiple_of(lanes) && c.made <= IN_PLACE * wide {
            let from = &row(rows.start)[..rows.len() * c.answer[1] * c.made];
            return Gradient { from, next: wide, lanes, apart: Some(c.made) };
        }
        let windows = rows.len() * across.len();
        // What a register has beyond the channels goes nowhere, so it may be anything.
        room.resize(windows * c.made.next_multiple_of(lanes), 0.0);
        for (i, to) in room.chunks_mut(windows * wide).enumerate() {
            let columns = wide.min(c.made - i * wide);
            for (row, to) in rows.clone().map(row).zip(to.chunks_exact_mut(to.len() / rows.len())) {
                let windows = row.chunks(c.made).zip(to.chunks_exact_mut(columns.next_multiple_of(lanes)));
                windows.for_each(|(window, to)| to[..columns].copy_from_slice(&window[i * wide..][..columns]));
            }
        }
        Gradient { from: room, next: windows * wide, lanes, apart: None }
    }
}

/// The gradient of some windows, for as many channels at a time as a tile has.
struct Gradient<'a> {
    from: &'a [f32],
    /// How far the next of those channels begin.
    next: usize,
    lanes: usize,
    /// How far the windows lie apart, if not as far as registers have room for their channels.
    apart: Option<usize>,
}

impl Gradient<'_> {
    fn down(&self, columns: usize) -> usize {
        self.apart.unwrap_or(columns.next_multiple_of(self.lanes))
    }
}

/// What is copied for a band, and its windows; used again for the next.
#[derive(Default)]
struct Room {
    pixels: Vec<f32>,
    gradient: Vec<f32>,
    windows: Vec<Run>,
}
