//! The largest number or the mean under each window of images, channels last, and the gradients of those.
//!
//! A mean is over what lies in the image, without the padding. NaN is never the largest, as in the host kernels; under a window
//! of nothing else, the answer is minus infinity.

use super::axis::Axis;
use super::cut::summed;
use super::target::{Work, widest};
use crate::exec::lots::{in_lots, lot};
use crate::exec::turn::BLOCK;

/// A pool over images of known size. No window is dilated.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    pub batch: usize,
    pub height: Axis,
    pub width: Axis,
    pub channels: usize,
}

impl Pool {
    /// Whether it is done in blocks that take no longer than a kernel may go on without a look.
    pub fn is_paced(&self) -> bool {
        self.row_of_windows().max(self.row_of_pixels()) <= BLOCK
    }

    /// What a row of the answer takes.
    fn row_of_windows(&self) -> usize {
        let down = self.height.most().saturating_mul(self.width.input);
        let across = self.width.output.saturating_mul(self.width.most());
        down.saturating_add(across).saturating_mul(self.channels)
    }

    /// What a row of the gradient takes: all windows that it lies under, each of which is looked through twice.
    fn row_of_pixels(&self) -> usize {
        let windows = self.height.window.div_ceil(self.height.stride).min(self.height.output);
        let area = self.height.most().saturating_mul(self.width.most());
        windows.saturating_mul(self.width.output).saturating_mul(area).saturating_mul(2 * self.channels)
    }

    fn pixels(&self) -> usize {
        self.batch * self.height.input * self.width.input * self.channels
    }

    fn windows(&self) -> usize {
        self.batch * self.height.output * self.width.output * self.channels
    }

    /// The largest number under each window.
    ///
    /// # Panics
    /// If there are not as many numbers as the pool says.
    pub fn max(&self, pixels: &[f32]) -> Vec<f32> {
        self.answer(pixels, f32::NEG_INFINITY, |first, answer| widest(Max { pool: *self, pixels, answer, first }))
    }

    /// The gradient of [`Pool::max`]: that of a window goes to the first of the largest numbers under it.
    ///
    /// # Panics
    /// If there are not as many numbers as the pool says.
    pub fn max_gradient(&self, pixels: &[f32], gradient: &[f32]) -> Vec<f32> {
        assert_eq!(pixels.len(), self.pixels(), "the images have the size of the pool");
        self.back(gradient, |image, first, back| {
            widest(Gradient { pool: *self, pixels, gradient, back, image, first });
        })
    }

    /// The mean of the numbers under each window.
    ///
    /// # Panics
    /// If there are not as many numbers as the pool says.
    pub fn mean(&self, pixels: &[f32]) -> Vec<f32> {
        self.answer(pixels, 0.0, |first, answer| widest(Mean { pool: *self, pixels, answer, first }))
    }

    /// The gradient of [`Pool::mean`]: that of a window goes to all numbers under it in equal parts.
    ///
    /// # Panics
    /// If there are not as many numbers as the pool says.
    pub fn mean_gradient(&self, gradient: &[f32]) -> Vec<f32> {
        self.back(gradient, |image, first, back| {
            widest(MeanGradient { pool: *self, gradient, back, image, first });
        })
    }

    /// A number for each window, in lots of rows: `rows` is told the first of them, counted through all images. Without pixels,
    /// each is as given.
    fn answer(&self, pixels: &[f32], of_none: f32, rows: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
        assert_eq!(pixels.len(), self.pixels(), "the images have the size of the pool");
        let mut answer = vec![of_none; self.windows()];
        if answer.is_empty() || pixels.is_empty() {
            return answer;
        }
        let (row, count) = (self.width.output * self.channels, lot(self.row_of_windows()));
        in_lots(answer.chunks_mut(count * row).enumerate(), |(i, answer)| rows(i * count, answer));
        answer
    }

    /// Rows of the answer, of which the first has this number, counted through all images: the image and the place in it of each.
    #[inline(always)]
    fn rows<'a>(
        &self,
        pixels: &'a [f32],
        answer: &'a mut [f32],
        first: usize,
    ) -> impl Iterator<Item = (&'a [f32], usize, &'a mut [f32])> {
        let (image, output) = (self.height.input * self.width.input * self.channels, self.height.output);
        let rows = answer.chunks_exact_mut(self.width.output * self.channels).enumerate();
        rows.map(move |(i, answer)| {
            let (number, y) = ((first + i) / output, (first + i) % output);
            (&pixels[number * image..][..image], y, answer)
        })
    }

    /// A number for each pixel, in lots of rows: `rows` is told the image and the first of its rows, and adds to zeros.
    fn back(&self, gradient: &[f32], rows: impl Fn(usize, usize, &mut [f32]) + Sync) -> Vec<f32> {
        assert_eq!(gradient.len(), self.windows(), "the gradient has the size of the pool");
        let (row, height) = (self.width.input * self.channels, self.height.input);
        // Whole strides, so that few windows lie on two lots and are looked through for each.
        let count = lot(self.row_of_pixels()).next_multiple_of(self.height.stride).min(height);
        let of_image = || (0..height).step_by(count.max(1)).map(|first| count.min(height - first) * row);
        summed(self.pixels(), (0..self.batch).flat_map(|_| of_image()), |from, back| {
            rows(from / row / height, from / row % height, back);
        })
    }
}

/// Some rows of the answer.
struct Max<'a> {
    pool: Pool,
    pixels: &'a [f32],
    answer: &'a mut [f32],
    /// The first of the rows, counted through all images.
    first: usize,
}

impl Work for Max<'_> {
    #[inline(always)]
    fn run(self) {
        let Pool { height, width, channels, .. } = self.pool;
        let row = width.input * channels;
        // First down the columns, over whole rows, then along what is left.
        let mut down = vec![0f32; row];
        for (image, y, answer) in self.pool.rows(self.pixels, self.answer, self.first) {
            largest(&mut down, height.under(y).map(|under| &image[under * row..][..row]));
            for (x, answer) in answer.chunks_exact_mut(channels).enumerate() {
                largest(answer, width.under(x).map(|under| &down[under * channels..][..channels]));
            }
        }
    }
}

/// The largest of the numbers in the same place, two rows at a time.
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

/// Some rows of the answer.
struct Mean<'a> {
    pool: Pool,
    pixels: &'a [f32],
    answer: &'a mut [f32],
    /// The first of the rows, counted through all images.
    first: usize,
}

impl Work for Mean<'_> {
    #[inline(always)]
    fn run(self) {
        let Pool { height, width, channels, .. } = self.pool;
        let row = width.input * channels;
        // First down the columns, over whole rows, then along what is left.
        let mut down = vec![0f32; row];
        for (image, y, answer) in self.pool.rows(self.pixels, self.answer, self.first) {
            let rows = height.under(y);
            down.fill(0.0);
            for under in rows.clone() {
                add(&mut down, &image[under * row..][..row]);
            }
            for (x, answer) in answer.chunks_exact_mut(channels).enumerate() {
                let columns = width.under(x);
                let count = (rows.len() * columns.len()) as f32;
                for under in columns {
                    add(answer, &down[under * channels..][..channels]);
                }
                answer.iter_mut().for_each(|sum| *sum /= count);
            }
        }
    }
}

#[inline(always)]
fn add(sums: &mut [f32], xs: &[f32]) {
    for (sum, &x) in sums.iter_mut().zip(xs) {
        *sum += x;
    }
}

/// Some rows of an image's gradient.
struct MeanGradient<'a> {
    pool: Pool,
    gradient: &'a [f32],
    back: &'a mut [f32],
    image: usize,
    first: usize,
}

impl Work for MeanGradient<'_> {
    #[inline(always)]
    fn run(self) {
        let Pool { height, width, channels, .. } = self.pool;
        let row = width.input * channels;
        let end = self.first + self.back.len() / row;
        // What each pixel of a row gets of one row of windows, and a window's part for a pixel.
        let (mut across, mut part) = (vec![0f32; row], vec![0f32; channels]);
        for y in height.over(self.first, end) {
            let rows = height.under(y);
            let windows = (self.image * height.output + y) * width.output;
            across.fill(0.0);
            for x in 0..width.output {
                let columns = width.under(x);
                let count = (rows.len() * columns.len()) as f32;
                let gradient = &self.gradient[(windows + x) * channels..][..channels];
                part.iter_mut().zip(gradient).for_each(|(part, g)| *part = g / count);
                for column in columns {
                    add(&mut across[column * channels..][..channels], &part);
                }
            }
            for at in rows.start.max(self.first)..rows.end.min(end) {
                add(&mut self.back[(at - self.first) * row..][..row], &across);
            }
        }
    }
}

/// Some rows of an image's gradient.
struct Gradient<'a> {
    pool: Pool,
    pixels: &'a [f32],
    gradient: &'a [f32],
    back: &'a mut [f32],
    image: usize,
    first: usize,
}

impl Work for Gradient<'_> {
    #[inline(always)]
    fn run(self) {
        let Pool { height, width, channels, .. } = self.pool;
        let row = width.input * channels;
        let end = self.first + self.back.len() / row;
        let image = &self.pixels[self.image * height.input * row..][..height.input * row];
        // For each channel, the largest number under the window and the place where it stands first.
        let (mut largest, mut place) = (vec![0f32; channels], vec![0u32; channels]);
        for y in height.over(self.first, end) {
            let windows = (self.image * height.output + y) * width.output;
            for x in 0..width.output {
                let gradient = &self.gradient[(windows + x) * channels..][..channels];
                let (rows, columns) = (height.under(y), width.under(x));
                if rows.len() == 2 && columns.len() == 2 && rows.start >= self.first && rows.end <= end {
                    let (across, wide) = (columns.start * channels, 2 * channels);
                    let pixels = [rows.start, rows.start + 1].map(|at| &image[at * row + across..][..wide]);
                    let (upper, lower) = self.back[(rows.start - self.first) * row..].split_at_mut(row);
                    give_to_one_of_four(pixels, gradient, [&mut upper[across..][..wide], &mut lower[across..][..wide]]);
                    continue;
                }
                let mut number = 0u32;
                for at in rows.clone() {
                    for pixel in image[at * row + columns.start * channels..at * row + columns.end * channels]
                        .chunks_exact(channels)
                    {
                        find(&mut largest, &mut place, pixel, number);
                        number += 1;
                    }
                }
                let mut number = 0u32;
                for at in rows {
                    if at < self.first || at >= end {
                        number += columns.len() as u32;
                        continue;
                    }
                    let from = (at - self.first) * row;
                    for back in self.back[from + columns.start * channels..from + columns.end * channels]
                        .chunks_exact_mut(channels)
                    {
                        give(back, &place, gradient, number);
                        number += 1;
                    }
                }
            }
        }
    }
}

/// Takes a pixel, the one of this number under the window, for the largest so far if it is.
#[inline(always)]
fn find(largest: &mut [f32], place: &mut [u32], pixel: &[f32], number: u32) {
    for ((largest, place), &x) in largest.iter_mut().zip(place).zip(pixel) {
        let is_larger = number == 0 || x > *largest;
        *largest = if is_larger { x } else { *largest };
        *place = if is_larger { number } else { *place };
    }
}

/// Adds the gradient of a window to the pixel of this number if that is the largest.
#[inline(always)]
fn give(back: &mut [f32], place: &[u32], gradient: &[f32], number: u32) {
    for ((back, &place), &g) in back.iter_mut().zip(place).zip(gradient) {
        *back += if place == number { g } else { 0.0 };
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
    // Copies of whole registers: of nine slices a compiler cannot tell that they lie apart.
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

/// What each of four pixels gets of a gradient.
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
mod tests {
    use super::*;

    /// One dimension of a pool with SAME or VALID padding, as TensorFlow pads.
    fn axis(input: usize, window: usize, stride: usize, same: bool) -> Axis {
        if same {
            let output = input.div_ceil(stride);
            let before = ((output - 1) * stride + window).saturating_sub(input) / 2;
            return Axis { input, output, window, stride, dilation: 1, before };
        }
        Axis { input, output: (input + stride - window) / stride, window, stride, dilation: 1, before: 0 }
    }

    /// Pixel by pixel: the answers, and the gradients; of the largest, and of the means.
    fn naive(pool: &Pool, pixels: &[f32], gradient: &[f32]) -> [(Vec<f32>, Vec<f32>); 2] {
        let (mut answer, mut back) = (Vec::new(), vec![0f32; pixels.len()]);
        let (mut means, mut mean_back) = (Vec::new(), vec![0f32; pixels.len()]);
        let Pool { height: h, width: w, channels, .. } = *pool;
        for window in 0..pool.batch * h.output * w.output {
            let (image, y, x) = (window / (h.output * w.output), window / w.output % h.output, window % w.output);
            for channel in 0..channels {
                let mut best: Option<usize> = None;
                let mut under = Vec::new();
                for (dy, dx) in (0..h.window).flat_map(|dy| (0..w.window).map(move |dx| (dy, dx))) {
                    let (row, column) = (y * h.stride + dy, x * w.stride + dx);
                    let inside = |at: usize, axis: &Axis| at >= axis.before && at < axis.before + axis.input;
                    if inside(row, &h) && inside(column, &w) {
                        let at =
                            ((image * h.input + row - h.before) * w.input + column - w.before) * channels + channel;
                        under.push(at);
                        if best.is_none_or(|best| pixels[at] > pixels[best]) {
                            best = Some(at);
                        }
                    }
                }
                let best = best.expect("no window lies in the padding alone");
                answer.push(pixels[best]);
                back[best] += gradient[window * channels + channel];
                let count = under.len() as f32;
                means.push(under.iter().map(|&at| pixels[at]).sum::<f32>() / count);
                under.iter().for_each(|&at| mean_back[at] += gradient[window * channels + channel] / count);
            }
        }
        [(answer, back), (means, mean_back)]
    }

    fn check(pool: Pool) {
        // Few different numbers, so that the largest is often there more than once.
        let pixels: Vec<f32> = (0..pool.pixels()).map(|i| (i * 7919 % 23) as f32 - 17.0).collect();
        let gradient: Vec<f32> = (0..pool.windows()).map(|i| (i % 13) as f32 - 4.0).collect();
        let [(answer, back), (means, mean_back)] = naive(&pool, &pixels, &gradient);
        assert!(pool.max(&pixels) == answer, "{pool:?}");
        assert!(pool.max_gradient(&pixels, &gradient) == back, "{pool:?}");
        let near = |got: &[f32], want: &[f32]| {
            got.len() == want.len()
                && got.iter().zip(want).all(|(got, want)| (got - want).abs() <= 1e-5 * want.abs().max(1.0))
        };
        assert!(near(&pool.mean(&pixels), &means), "{pool:?}");
        assert!(near(&pool.mean_gradient(&gradient), &mean_back), "{pool:?}");
    }

    #[test]
    fn pools_answer_as_pixel_by_pixel() {
        for same in [false, true] {
            for (window, stride) in [(1, 1), (2, 2), (3, 2), (3, 1), (2, 3), (5, 4), (1, 2)] {
                for (height, width, channels) in [(5, 5, 1), (7, 9, 3), (11, 6, 16), (8, 8, 17), (5, 13, 40)] {
                    let (h, w) = (axis(height, window, stride, same), axis(width, window, stride, same));
                    check(Pool { batch: 3, height: h, width: w, channels });
                }
            }
            // A window that is wider than high, and one as large as the image.
            check(Pool { batch: 2, height: axis(9, 1, 2, same), width: axis(9, 4, 1, same), channels: 5 });
            check(Pool { batch: 2, height: axis(6, 6, 6, same), width: axis(6, 6, 6, same), channels: 2 });
        }
        // Enough rows for several lots of one image.
        check(Pool { batch: 2, height: axis(301, 3, 2, true), width: axis(40, 3, 2, true), channels: 33 });
    }

    #[test]
    fn what_is_no_number_is_never_the_largest() {
        let pool = Pool { batch: 1, height: axis(2, 2, 2, false), width: axis(4, 2, 2, false), channels: 1 };
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_eq!(pool.max(&[nan, 1.0, -inf, -inf, 3.0, nan, -inf, -inf]), [3.0, -inf]);
        assert_eq!(pool.max(&[nan, nan, nan, nan, nan, nan, inf, nan]), [-inf, inf]);
    }

    #[test]
    fn a_pool_whose_rows_take_long_is_left_to_others() {
        let square = |input: usize, window: usize| {
            let axis = axis(input, window, 1, true);
            Pool { batch: 1, height: axis, width: axis, channels: 8 }
        };
        assert!(square(64, 3).is_paced());
        assert!(!square(1024, 500).is_paced());
        assert!(!square(64, usize::MAX / 4).is_paced());
    }
}
