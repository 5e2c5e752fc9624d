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

/// Floats of images, and as many of the gradient, that are read at once: they stay in a core's cache.
const ROOM: usize = 32 << 10;
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
    let gradient = ROOM.max(c.answer[1] * c.made.next_multiple_of(width.lanes()));
    c.weights() * LOTS.min(parts(c)) + threads() * (band + gradient)
}

/// Into how many parts there are pixels enough for.
fn parts(c: &Convolution) -> usize {
    (c.batch * c.answer[0] * c.answer[1] / PIXELS).clamp(1, c.batch)
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
        let images = c.batch.div_ceil(lots.min(parts(c)));
        let parts = c.batch.div_ceil(images);
        let range = weights.div_ceil(lots.div_ceil(parts)).next_multiple_of(most_rows(self.width)).min(weights);
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
        let (c, [down, across]) = (self.c, &self.windows);
        let row = c.answer[1] * c.made;
        // Rows of which only a part counts do not lie one after the other.
        let most = if across.len() < c.answer[1] { 1 } else { self.source.rows_within(ROOM).min((ROOM / row).max(1)) };
        let (mut room, mut wide) = (Vec::new(), Vec::new());
        let mut from = rows.start;
        while from < rows.end {
            let (image, y) = (from / down.len(), from % down.len());
            let count = most.min(down.len() - y).min(rows.end - from);
            let band = self.source.band(self.images, image, y, count, &mut room);
            let start = (image * c.answer[0] + down.start + y) * row + across.start * c.made;
            let gradient = &self.gradient[start..][..((count - 1) * c.answer[1] + across.len()) * c.made];
            self.band(band, self.widened(gradient, &mut wide), count, first, sums);
            from += count;
        }
    }

    /// How far the pixels of a gradient lie apart that has been [`Weights::widened`].
    fn apart(&self) -> usize {
        self.c.made.next_multiple_of(self.width.lanes())
    }

    /// The gradient with as many channels as whole registers hold.
    fn widened<'b>(&self, gradient: &'b [f32], wide: &'b mut Vec<f32>) -> &'b [f32] {
        let (made, apart) = (self.c.made, self.apart());
        if made == apart {
            return gradient;
        }
        wide.clear();
        for pixel in gradient.chunks_exact(made) {
            wide.extend_from_slice(pixel);
            wide.resize(wide.len() + apart - made, 0.0);
        }
        wide
    }

    /// As [`Weights::add`], for so many rows of one image.
    fn band(&self, band: &[f32], gradient: &[f32], rows: usize, first: usize, sums: &mut [f32]) {
        let (made, wide) = (self.c.made, most_columns(self.width));
        let [next, along] = self.source.steps();
        let pixels: Vec<Run> = (0..rows).map(|i| Run { at: i * next, len: self.windows[1].len() }).collect();
        let end = first + sums.len() / made;
        for block in (0..made).step_by(wide) {
            let right = Right { from: &gradient[block..], down: self.apart() };
            let mut above = 0;
            for run in &self.runs {
                // What the lot has of the run.
                let (from, to) = (above.max(first), (above + run.len).min(end));
                for part in even_parts(to.saturating_sub(from), most_rows(self.width)).filter(|part| !part.is_empty()) {
                    let weight = from + part.start;
                    let left = Left { from: &band[run.at + weight - above..], runs: &pixels, along, down: 1 };
                    let to = &mut sums[(weight - first) * made + block..];
                    let columns = wide.min(made - block);
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
}
