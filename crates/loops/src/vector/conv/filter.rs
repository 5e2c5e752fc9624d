//! The gradient of a convolution's filter: for each weight, the sum over all pixels of the products of its input and the
//! gradient.
//!
//! The images are cut into parts with separate sums, the weights into ranges; a chunk is a range of one part. The cut follows
//! from the sizes, so that the sums are always added in one order.

use std::ops::Range;

use super::super::lanes::Width;
use super::super::tile::{ColumnRun, Left, Product, Right, most_columns, most_rows, multiply};
use super::source::{Source, Tap};
use super::{Convolution, MOST_SCRATCH, MOST_WORK, even_parts};
use crate::chunks::{in_chunks, threads};
use crate::vector::sum_over;

/// Floats of images that are read at once: they stay in a core's cache.
const SCRATCH: usize = 32 << 10;
/// Floats of the gradient that are read at once, for as many channels as a tile has: they stay in the L1 cache.
const NEAR: usize = 6 << 10;
/// With this many channels, tiles are high enough for one position of the window alone.
const CHANNELS: usize = 32;
/// Fewest multiplications of a chunk, which take about a tenth of a millisecond.
const WORK: usize = 4 << 20;
/// Multiplications of a chunk between two checks for cancellation.
const ROUND: usize = 64 << 20;
/// Most chunks in parallel.
const CHUNKS: usize = 32;
/// Fewest pixels of a part, so that adding up the parts takes little time compared with them.
const PIXELS: usize = 1 << 10;

/// The gradient of the filter, as HWIO; `None` if a row of the output takes too long, or too much memory.
pub fn gradient(c: &Convolution, width: Width, images: &[f32], gradient: &[f32]) -> Option<Vec<f32>> {
    let source = Source::new(c.image, c.channels, c.stride, &[c.taps(0), c.taps(1)], c.answer);
    let weights = |groups| Weights { c, width, groups, images, gradient };
    if !source.is_inside() && c.channels >= CHANNELS {
        return weights(Groups::clipped(c)).sums();
    }
    let is_padded = !source.is_inside();
    let sums = weights(Groups::Padded(source.runs(), source)).sums()?;
    // An infinity or NaN may have met the padding.
    let is_spoilt = is_padded && sums.iter().any(|x| x.is_nan());
    if is_spoilt { weights(Groups::clipped(c)).sums() } else { Some(sums) }
}

/// Most floats that the gradient takes in addition to the result.
pub fn scratch(c: &Convolution, width: Width) -> usize {
    let band = MOST_SCRATCH.min(c.image[0] * c.image[1] * c.channels + SCRATCH);
    let gradient = NEAR.max(c.answer[1]) * c.made.next_multiple_of(width.lanes());
    c.weights() * parts(c, CHUNKS) + threads() * (band + gradient)
}

/// The number of parts for which there are enough pixels, at most `chunks`; all of the same number of images, if possible.
fn parts(c: &Convolution, chunks: usize) -> usize {
    let most = (c.batch * c.answer[0] * c.answer[1] / PIXELS).clamp(1, c.batch).min(chunks);
    (most.div_ceil(2)..=most).rev().find(|&parts| c.batch.is_multiple_of(parts)).unwrap_or(most)
}

/// The weights in their order, in groups that are contiguous under each window.
enum Groups {
    /// With the padding copied around the pixels: the start of each group under the first window of a band.
    Padded(Vec<ColumnRun>, Source),
    /// Each position of the window by itself, without the windows for which it is in the padding.
    Clipped(Vec<Clipped>),
}

/// A position of the window, and the windows for which it is within the image, down and across.
struct Clipped {
    taps: [Tap; 2],
    inside: [Range<usize>; 2],
}

impl Groups {
    fn clipped(c: &Convolution) -> Groups {
        let (rows, columns) = (c.taps(0), c.taps(1));
        let taps = rows.iter().flat_map(|&row| columns.iter().map(move |&column| [row, column]));
        let clipped = taps
            .map(|taps| Clipped { taps, inside: [0, 1].map(|i| taps[i].inside(c.stride[i], c.image[i], c.answer[i])) });
        Groups::Clipped(clipped.collect())
    }
}

struct Weights<'a> {
    c: &'a Convolution,
    width: Width,
    groups: Groups,
    images: &'a [f32],
    gradient: &'a [f32],
}

impl Weights<'_> {
    /// The sums for each weight; `None` if a row of windows takes too long, or too much memory.
    fn sums(&self) -> Option<Vec<f32>> {
        let (c, [high, wide]) = (self.c, self.c.answer);
        let weights = c.window[0] * c.window[1] * c.channels;
        let work = |weights: usize| [wide, weights, c.made].into_iter().fold(1, usize::saturating_mul);
        let chunks = (work(weights).saturating_mul(c.batch * high) / WORK).clamp(1, CHUNKS);
        let images = c.batch.div_ceil(parts(c, chunks));
        let parts = c.batch.div_ceil(images);
        let range = weights.div_ceil(chunks.div_ceil(parts)).max(most_rows(self.width)).min(weights);
        let band = if let Groups::Padded(_, source) = &self.groups { source.scratch(1) } else { 0 };
        if band > MOST_SCRATCH || wide.saturating_mul(c.made) > MOST_SCRATCH || work(range) > MOST_WORK {
            return None;
        }
        let mut sums = vec![0f32; parts * weights * c.made];
        let round = (ROUND / work(range)).max(1);
        for from in (0..images * high).step_by(round) {
            let chunks = sums.chunks_mut(weights * c.made).enumerate().flat_map(|(part, sums)| {
                let all = part * images * high..((part + 1) * images).min(c.batch) * high;
                let rows = all.start + from..(all.start + from + round).min(all.end);
                sums.chunks_mut(range * c.made).enumerate().map(move |(i, sums)| (rows.clone(), i * range, sums))
            });
            in_chunks(chunks, |(rows, first, sums)| self.add(rows, first, sums));
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

    /// Adds the contribution of some rows of windows, counted through all images, to the weights from the first on.
    fn add(&self, rows: Range<usize>, first: usize, sums: &mut [f32]) {
        let (c, [high, wide]) = (self.c, self.c.answer);
        let near = NEAR / most_columns(self.width).min(c.made.next_multiple_of(self.width.lanes())) / wide;
        let most = match &self.groups {
            Groups::Padded(_, source) => source.rows_within(SCRATCH),
            Groups::Clipped(_) => SCRATCH / (c.image[1] * c.channels).saturating_mul(c.stride[0]),
        };
        let most = most.min(near).max(1);
        let mut scratch = Scratch::default();
        let mut from = rows.start;
        while from < rows.end {
            // Images are cut evenly; several that are small make one band.
            let rest = (high - from % high).min(rows.end - from);
            let count = if rest == high && most >= 2 * rest {
                (most / rest).min((rows.end - from) / rest) * rest
            } else {
                rest.div_ceil(rest.div_ceil(most))
            };
            self.band(from..from + count, first, sums, &mut scratch);
            from += count;
        }
    }

    /// As [`Weights::add`], for rows that are read at once: some of one image, or all of some images.
    fn band(&self, rows: Range<usize>, first: usize, sums: &mut [f32], scratch: &mut Scratch) {
        let (c, [high, wide]) = (self.c, self.c.answer);
        let chunk = first..first + sums.len() / c.made;
        let gradient = self.widened(rows.clone(), &mut scratch.gradient);
        match &self.groups {
            Groups::Padded(groups, source) => {
                let [next, along] = source.steps();
                let images = rows.start / high..rows.end.div_ceil(high);
                let count = rows.len() / images.len();
                let (band, apart) = source.bands(self.images, images, rows.start % high, count, &mut scratch.pixels);
                let windows = (0..rows.len()).map(|i| ColumnRun {
                    at: i / count * apart + i % count * next,
                    len: wide,
                    right: i * wide,
                });
                let windows: Vec<ColumnRun> = windows.collect();
                for group in groups {
                    let own = group.right..group.right + group.len;
                    self.group(&band[group.at..], &windows, along, own, gradient, (&chunk, sums));
                }
            }
            Groups::Clipped(groups) => {
                let along = c.stride[1] * c.channels;
                for (i, Clipped { taps, inside: [down, across] }) in groups.iter().enumerate() {
                    let own = i * c.channels..(i + 1) * c.channels;
                    if own.end <= chunk.start || chunk.end <= own.start || across.is_empty() {
                        continue;
                    }
                    let place = |window: usize, i: usize| (taps[i].at + (window * c.stride[i]) as isize) as usize;
                    scratch.windows.clear();
                    scratch.windows.extend(rows.clone().filter(|row| down.contains(&(row % high))).map(|row| {
                        let y = row / high * c.image[0] + place(row % high, 0);
                        ColumnRun {
                            at: (y * c.image[1] + place(across.start, 1)) * c.channels,
                            len: across.len(),
                            right: (row - rows.start) * wide + across.start,
                        }
                    }));
                    self.group(self.images, &scratch.windows, along, own, gradient, (&chunk, sums));
                }
            }
        }
    }

    /// Adds to the weights of a group that belong to the chunk; the first of them meet the given pixels.
    fn group(
        &self,
        pixels: &[f32],
        windows: &[ColumnRun],
        along: usize,
        group: Range<usize>,
        gradient: &[f32],
        (chunk, sums): (&Range<usize>, &mut [f32]),
    ) {
        let (made, wide) = (self.c.made, most_columns(self.width));
        let (from, to) = (group.start.max(chunk.start), group.end.min(chunk.end));
        if from >= to || windows.is_empty() {
            return;
        }
        for block in (0..made).step_by(wide) {
            let right = Right { from: &gradient[block..], down: made.next_multiple_of(self.width.lanes()) };
            for part in even_parts(to - from, most_rows(self.width)) {
                let weight = from + part.start;
                let left = Left { from: &pixels[weight - group.start..], runs: windows, along, down: 1 };
                let to = &mut sums[(weight - chunk.start) * made + block..];
                let columns = wide.min(made - block);
                multiply(
                    self.width,
                    left,
                    right,
                    Product { to, down: made, rows: part.len(), columns, is_added: true },
                );
            }
        }
    }

    /// The gradient of some rows, padded to as many channels as whole registers hold.
    fn widened<'b>(&'b self, rows: Range<usize>, scratch: &'b mut Vec<f32>) -> &'b [f32] {
        let (made, wide) = (self.c.made, self.c.made.next_multiple_of(self.width.lanes()));
        let row = self.c.answer[1] * made;
        let gradient = &self.gradient[rows.start * row..rows.end * row];
        if made == wide {
            return gradient;
        }
        // The lanes of a register beyond the channels are never stored, so they may hold anything.
        scratch.resize(gradient.len() / made * wide, 0.0);
        for (window, to) in gradient.chunks_exact(made).zip(scratch.chunks_exact_mut(wide)) {
            to[..made].copy_from_slice(window);
        }
        scratch
    }
}

/// The copied pixels of a band, and its windows; reused for the next band.
#[derive(Default)]
struct Scratch {
    pixels: Vec<f32>,
    gradient: Vec<f32>,
    windows: Vec<ColumnRun>,
}
