//! The largest number or the mean under each window of volumes, channels last, and the gradients of those. Images are volumes
//! of one plane.
//!
//! A mean is over the elements in the image, without the padding. NaN is never the largest, as in the host kernels; under a
//! window of NaN alone, the output is minus infinity.

#![allow(unsafe_code, reason = "what a processor computes with is used only where that is the processor")]

use std::ops::Range;

use super::axis::Axis;
use super::cut::summed;
use super::lanes::{Four, Lanes, Registered, Single, Width};
use super::target::{Work, widest};
use crate::chunks::{even_chunk, in_chunks};
use crate::turn::BLOCK;

/// A pool over volumes of known size. No window is dilated.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    pub batch: usize,
    pub depth: Axis,
    pub height: Axis,
    pub width: Axis,
    pub channels: usize,
}

impl Pool {
    /// Whether the blocks take no longer than a kernel may run without a check for cancellation.
    #[inline]
    pub fn is_paced(&self) -> bool {
        self.row_of_windows().max(self.row_of_pixels()) <= BLOCK
    }

    /// The work of a row of the output.
    #[inline]
    fn row_of_windows(&self) -> usize {
        let rows = self.depth.most().saturating_mul(self.height.most());
        let across = self.width.output.saturating_mul(self.width.most());
        rows.saturating_mul(self.width.input).saturating_add(across).saturating_mul(self.work())
    }

    /// The work of a row of the gradient: all windows over it, each of which is read twice.
    #[inline]
    fn row_of_pixels(&self) -> usize {
        let windows = |axis: &Axis| axis.window.div_ceil(axis.stride).min(axis.output);
        let volume = [self.depth, self.height, self.width].iter().map(Axis::most).fold(2, usize::saturating_mul);
        let windows = windows(&self.depth).saturating_mul(windows(&self.height)).saturating_mul(self.width.output);
        windows.saturating_mul(volume).saturating_mul(self.work())
    }

    /// The work of a pixel: a step for as many channels as most processors compute on at once.
    #[inline]
    fn work(&self) -> usize {
        self.channels.div_ceil(8)
    }

    /// Numbers of a row, and rows of a volume.
    #[inline]
    fn rows_of_volume(&self) -> (usize, usize) {
        (self.width.input * self.channels, self.depth.input * self.height.input)
    }

    #[inline]
    fn pixels(&self) -> usize {
        let (row, rows) = self.rows_of_volume();
        self.batch * rows * row
    }

    #[inline]
    fn windows(&self) -> usize {
        self.batch * self.depth.output * self.height.output * self.width.output * self.channels
    }

    /// The rows of a volume that a window covers in each plane, given the window's position in depth and height.
    #[inline]
    fn under(&self, z: usize, y: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let (rows, height) = (self.height.under(y), self.height.input);
        self.depth.under(z).map(move |plane| plane * height + rows.start..plane * height + rows.end)
    }

    /// The largest number under each window.
    ///
    /// # Panics
    /// The largest number under each window.
    pub fn max(&self, pixels: &[f32]) -> Vec<f32> {
        self.answer(pixels, f32::NEG_INFINITY, |first, answer| widest(Max { pool: *self, pixels, answer, first }))
    }

    /// The gradient of [`Pool::max`]: that of a window goes to the first of the largest numbers under it; to the first
    /// number, if that is NaN.
    ///
    /// # Panics
    /// If the length of a slice does not match the pool.
    pub fn max_gradient(&self, pixels: &[f32], gradient: &[f32]) -> Vec<f32> {
        self.max_gradient_by(Width::widest(), pixels, gradient)
    }

    fn max_gradient_by(&self, width: Width, pixels: &[f32], gradient: &[f32]) -> Vec<f32> {
        assert_eq!(pixels.len(), self.pixels(), "the volumes have the size of the pool");
        self.back(gradient, |volume, first, back| {
            width.run(Gradient { pool: *self, pixels, gradient, back, volume, first });
        })
    }

    /// The mean of the numbers under each window.
    ///
    /// # Panics
    /// If the length of a slice does not match the pool.
    pub fn mean(&self, pixels: &[f32]) -> Vec<f32> {
        self.answer(pixels, 0.0, |first, answer| widest(Mean { pool: *self, pixels, answer, first }))
    }

    /// The gradient of [`Pool::mean`]: that of a window goes to all numbers under it in equal parts.
    ///
    /// # Panics
    /// If the length of a slice does not match the pool.
    pub fn mean_gradient(&self, gradient: &[f32]) -> Vec<f32> {
        self.back(gradient, |volume, first, back| {
            widest(MeanGradient { pool: *self, gradient, back, volume, first });
        })
    }

    /// A number for each window, in chunks of rows: `rows` receives the index of the first of them, counted through all
    /// volumes. Without pixels, each is `of_none`.
    fn answer(&self, pixels: &[f32], of_none: f32, rows: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
        assert_eq!(pixels.len(), self.pixels(), "the volumes have the size of the pool");
        let mut answer = vec![of_none; self.windows()];
        if answer.is_empty() || pixels.is_empty() {
            return answer;
        }
        let row = self.width.output * self.channels;
        let count = even_chunk(answer.len() / row, self.row_of_windows());
        in_chunks(answer.chunks_mut(count * row).enumerate(), |(i, answer)| rows(i * count, answer));
        answer
    }

    /// Rows of the output, with `first` as the index of the first, counted through all volumes: the volume of each, and its
    /// position in depth and height.
    #[inline(always)]
    fn rows<'a>(
        &self,
        pixels: &'a [f32],
        answer: &'a mut [f32],
        first: usize,
    ) -> impl Iterator<Item = (&'a [f32], [usize; 2], &'a mut [f32])> {
        let (row, rows) = self.rows_of_volume();
        let [deep, high] = [self.depth.output, self.height.output];
        let answers = answer.chunks_exact_mut(self.width.output * self.channels).enumerate();
        answers.map(move |(i, answer)| {
            let (plane, y) = ((first + i) / high, (first + i) % high);
            (&pixels[plane / deep * rows * row..][..rows * row], [plane % deep, y], answer)
        })
    }

    /// A number for each pixel, in chunks of rows: `rows` receives the volume and the first of its rows, and adds to zeros.
    fn back(&self, gradient: &[f32], rows: impl Fn(usize, usize, &mut [f32]) + Sync) -> Vec<f32> {
        assert_eq!(gradient.len(), self.windows(), "the gradient has the size of the pool");
        let ((row, all), height) = (self.rows_of_volume(), self.height.input);
        let chunk = even_chunk(self.batch * all, self.row_of_pixels());
        // Whole planes, or rows of one; whole strides, so that few windows overlap two chunks and are read for each.
        let (part, count) = if chunk < height {
            (height, chunk.next_multiple_of(self.height.stride).min(height))
        } else {
            (all, ((chunk / height.max(1)).next_multiple_of(self.depth.stride) * height).min(all))
        };
        let of_part = || (0..part).step_by(count.max(1)).map(|first| count.min(part - first) * row);
        let parts = self.batch * all / part.max(1);
        summed(self.pixels(), (0..parts).flat_map(|_| of_part()), |from, back| {
            rows(from / row / all, from / row % all, back);
        })
    }

    /// The windows that cover these rows of a volume, which are of one plane or whole planes: their positions in depth and
    /// height.
    #[inline]
    fn over(&self, rows: &Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        let height = self.height.input;
        let planes = rows.start / height..rows.end.div_ceil(height);
        let own = if planes.len() == 1 { rows.start % height..(rows.end - 1) % height + 1 } else { 0..height };
        let (deep, high) = (self.depth.over(planes.start, planes.end), self.height.over(own.start, own.end));
        deep.flat_map(move |z| high.clone().map(move |y| (z, y)))
    }
}

/// Rows of the output of a maximum pool.
struct Max<'a> {
    pool: Pool,
    pixels: &'a [f32],
    answer: &'a mut [f32],
    /// The first of the rows, counted through all volumes.
    first: usize,
}

impl Work for Max<'_> {
    #[inline(always)]
    fn run(self) {
        let Pool { width, channels, .. } = self.pool;
        let row = width.input * channels;
        // First down the columns, over whole rows, then along the resulting row.
        let mut down = vec![0f32; row];
        for (volume, [z, y], answer) in self.pool.rows(self.pixels, self.answer, self.first) {
            largest(&mut down, self.pool.under(z, y).flatten().map(|at| &volume[at * row..][..row]));
            for (x, answer) in answer.chunks_exact_mut(channels).enumerate() {
                largest(answer, width.under(x).map(|under| &down[under * channels..][..channels]));
            }
        }
    }
}

/// The largest of the numbers at the same position, two rows at a time.
#[inline(always)]
fn largest<'a>(answer: &mut [f32], mut rows: impl Iterator<Item = &'a [f32]>) {
    let Some(first) = rows.next() else { return answer.fill(f32::NEG_INFINITY) };
    let second = rows.next().unwrap_or(first);
    for ((largest, &x), &y) in answer.iter_mut().zip(first).zip(second) {
        *largest = larger(larger(f32::NEG_INFINITY, x), y);
    }
    for next in rows {
        for (largest, &x) in answer.iter_mut().zip(next) {
            *largest = larger(*largest, x);
        }
    }
}

#[inline(always)]
fn larger(largest: f32, x: f32) -> f32 {
    if x > largest { x } else { largest }
}

/// Rows of the output of a mean pool.
struct Mean<'a> {
    pool: Pool,
    pixels: &'a [f32],
    answer: &'a mut [f32],
    /// The first of the rows, counted through all volumes.
    first: usize,
}

impl Work for Mean<'_> {
    #[inline(always)]
    fn run(self) {
        let Pool { depth, height, width, channels, .. } = self.pool;
        let row = width.input * channels;
        // First down the columns, over whole rows, then along the resulting row.
        let mut down = vec![0f32; row];
        for (volume, [z, y], answer) in self.pool.rows(self.pixels, self.answer, self.first) {
            let rows = depth.under(z).len() * height.under(y).len();
            sum(&mut down, self.pool.under(z, y).flatten().map(|at| &volume[at * row..][..row]));
            for (x, answer) in answer.chunks_exact_mut(channels).enumerate() {
                let columns = width.under(x);
                let count = (rows * columns.len()) as f32;
                sum(answer, columns.map(|under| &down[under * channels..][..channels]));
                answer.iter_mut().for_each(|sum| *sum /= count);
            }
        }
    }
}

/// The sum of the numbers at the same position, two rows at a time.
#[inline(always)]
fn sum<'a>(sums: &mut [f32], mut rows: impl Iterator<Item = &'a [f32]>) {
    match (rows.next(), rows.next()) {
        (None, _) => sums.fill(0.0),
        // Sums begin with zero: so none is minus zero.
        (Some(first), None) => sums.iter_mut().zip(first).for_each(|(sum, &x)| *sum = 0.0 + x),
        (Some(first), Some(second)) => {
            sums.iter_mut().zip(first).zip(second).for_each(|((sum, &x), &y)| *sum = 0.0 + x + y);
        }
    }
    rows.for_each(|next| add(sums, next));
}

#[inline(always)]
fn add(sums: &mut [f32], xs: &[f32]) {
    for (sum, &x) in sums.iter_mut().zip(xs) {
        *sum += x;
    }
}

/// Rows of the gradient of a mean pool, of one plane or whole planes of a volume.
struct MeanGradient<'a> {
    pool: Pool,
    gradient: &'a [f32],
    back: &'a mut [f32],
    volume: usize,
    first: usize,
}

impl Work for MeanGradient<'_> {
    #[inline(always)]
    fn run(self) {
        let Pool { depth, height, width, channels, .. } = self.pool;
        let row = width.input * channels;
        let own = self.first..self.first + self.back.len() / row;
        // The gradient that each pixel of a row gets of one row of windows, and a window's share for a pixel.
        let (mut across, mut part) = (vec![0f32; row], vec![0f32; channels]);
        for (z, y) in self.pool.over(&own) {
            let rows = depth.under(z).len() * height.under(y).len();
            let windows = ((self.volume * depth.output + z) * height.output + y) * width.output;
            across.fill(0.0);
            for x in 0..width.output {
                let columns = width.under(x);
                let count = (rows * columns.len()) as f32;
                let gradient = &self.gradient[(windows + x) * channels..][..channels];
                part.iter_mut().zip(gradient).for_each(|(part, g)| *part = g / count);
                for column in columns {
                    add(&mut across[column * channels..][..channels], &part);
                }
            }
            for at in self.pool.under(z, y).flatten().filter(|at| own.contains(at)) {
                add(&mut self.back[(at - own.start) * row..][..row], &across);
            }
        }
    }
}

/// Rows of the gradient of a maximum pool, of one plane or whole planes of a volume.
struct Gradient<'a> {
    pool: Pool,
    pixels: &'a [f32],
    gradient: &'a [f32],
    back: &'a mut [f32],
    volume: usize,
    first: usize,
}

impl Registered for Gradient<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Pool { depth, height, width, channels, .. } = self.pool;
        let (row, all) = self.pool.rows_of_volume();
        let own = self.first..self.first + self.back.len() / row;
        let volume = &self.pixels[self.volume * all * row..][..all * row];
        let mut places = Vec::with_capacity(depth.most() * height.most() * width.most());
        for (z, y) in self.pool.over(&own) {
            let windows = ((self.volume * depth.output + z) * height.output + y) * width.output;
            let mut planes = self.pool.under(z, y);
            let pair = planes.next().filter(|rows| rows.len() == 2 && planes.next().is_none());
            let pair = pair.filter(|rows| rows.start >= own.start && rows.end <= own.end);
            let mut listed = None;
            for x in 0..width.output {
                let gradient = &self.gradient[(windows + x) * channels..][..channels];
                let columns = width.under(x);
                if let Some(rows) = &pair
                    && columns.len() == 2
                {
                    let (across, wide) = (columns.start * channels, 2 * channels);
                    let pixels = [rows.start, rows.start + 1].map(|at| &volume[at * row + across..][..wide]);
                    let (upper, lower) = self.back[(rows.start - own.start) * row..].split_at_mut(row);
                    give_to_one_of_four(pixels, gradient, [&mut upper[across..][..wide], &mut lower[across..][..wide]]);
                    continue;
                }
                if listed != Some(columns.len()) {
                    places.clear();
                    for at in self.pool.under(z, y).flatten() {
                        places.extend((0..columns.len()).map(|column| at * row + column * channels));
                    }
                    listed = Some(columns.len());
                }
                let across = columns.start * channels;
                let first = own.start * row;
                let mut window = Window { volume, places: &places, across, gradient, first, back: self.back };
                // SAFETY: the caller's: these are the processor's registers, and every processor has the narrower ones.
                unsafe {
                    let mut channel = 0;
                    while channel + L::COUNT <= channels {
                        window.give::<L>(channel);
                        channel += L::COUNT;
                    }
                    while channel + Four::COUNT <= channels {
                        window.give::<Four>(channel);
                        channel += Four::COUNT;
                    }
                    (channel..channels).for_each(|channel| window.give::<Single>(channel));
                }
            }
        }
    }
}

/// The pixels under a window, with the gradient of the window's output.
struct Window<'a> {
    volume: &'a [f32],
    /// The start of each pixel, without the offset of the window across.
    places: &'a [usize],
    across: usize,
    gradient: &'a [f32],
    /// The index of the first number whose gradient is computed; not all numbers under the window need be.
    first: usize,
    back: &'a mut [f32],
}

impl Window<'_> {
    /// Adds the gradient of as many channels as a register holds to the first of the largest numbers; to the first number, if
    /// that is NaN.
    ///
    /// # Safety
    /// The processor has these registers.
    #[inline(always)]
    unsafe fn give<L: Lanes>(&mut self, channel: usize) {
        let Some((&first, others)) = self.places.split_first() else { return };
        let from_first = self.across + channel;
        // SAFETY: the caller's, here and below; each slice has that length.
        let at = |place: usize| unsafe { L::load(self.volume[place + from_first..][..L::COUNT].as_ptr()) };
        let mut largest = at(first);
        for &place in others {
            largest = unsafe { largest.larger(at(place)) };
        }
        let gradient = unsafe { L::load(self.gradient[channel..][..L::COUNT].as_ptr()) };
        let [part, mut left] = unsafe { gradient.parted::<true>(at(first), largest) };
        let mut add = |place: usize, part: L| {
            let from = (place + from_first).checked_sub(self.first);
            if let Some(back) = from.and_then(|from| self.back.get_mut(from..from + L::COUNT)) {
                unsafe { L::load(back.as_ptr()).plus(part, L::splat(1.0)).store(back.as_mut_ptr()) };
            }
        };
        add(first, part);
        for &place in others {
            let [part, rest] = unsafe { left.parted::<false>(at(place), largest) };
            left = rest;
            add(place, part);
        }
    }
}

/// Numbers that are computed on at once.
const LANES: usize = 16;

/// Adds the gradient of a window of two by two pixels, given as its two rows, to the first of the largest.
#[inline(always)]
fn give_to_one_of_four([upper, lower]: [&[f32]; 2], gradient: &[f32], [to_upper, to_lower]: [&mut [f32]; 2]) {
    let channels = gradient.len();
    let ((a, b), (c, d)) = (upper.split_at(channels), lower.split_at(channels));
    let ((to_a, to_b), (to_c, to_d)) = (to_upper.split_at_mut(channels), to_lower.split_at_mut(channels));
    let mut first = 0;
    // Copies of whole registers: a compiler cannot tell that nine slices do not overlap.
    while first + LANES <= channels {
        let of = |from: &[f32]| -> [f32; LANES] { std::array::from_fn(|i| from[first..first + LANES][i]) };
        let parts = parts_of_four([of(a), of(b), of(c), of(d)], of(gradient));
        for (to, part) in [&mut *to_a, &mut *to_b, &mut *to_c, &mut *to_d].into_iter().zip(parts) {
            let to = &mut to[first..first + LANES];
            for i in 0..LANES {
                to[i] += part[i];
            }
        }
        first += LANES;
    }
    for i in first..channels {
        let parts = parts_of_four([[a[i]], [b[i]], [c[i]], [d[i]]], [gradient[i]]);
        for (to, part) in [&mut *to_a, &mut *to_b, &mut *to_c, &mut *to_d].into_iter().zip(parts) {
            to[i] += part[0];
        }
    }
}

/// The share of a gradient of each of four pixels.
#[inline(always)]
fn parts_of_four<const N: usize>([a, b, c, d]: [[f32; N]; 4], gradient: [f32; N]) -> [[f32; N]; 4] {
    let mut parts = [[0f32; N]; 4];
    for i in 0..N {
        let is_b = b[i] > a[i];
        let upper = if is_b { b[i] } else { a[i] };
        let is_c = c[i] > upper;
        let three = if is_c { c[i] } else { upper };
        let is_d = d[i] > three;
        let left = if is_d { 0.0 } else { gradient[i] };
        let of_upper = if is_c { 0.0 } else { left };
        parts[0][i] = if is_b { 0.0 } else { of_upper };
        parts[1][i] = if is_b { of_upper } else { 0.0 };
        parts[2][i] = if is_c { left } else { 0.0 };
        parts[3][i] = if is_d { gradient[i] } else { 0.0 };
    }
    parts
}

#[cfg(test)]
mod tests;
