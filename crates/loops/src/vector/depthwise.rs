//! Depthwise convolutions of images and both gradients, channels last: each channel has a separate filter.
//!
//! Channels are computed in parallel lanes, a few registers of them at a time, over all elements under a window. An output
//! and an element of the image's gradient are summed in the order of their terms; the filter's gradient is summed in parts
//! that follow from the sizes alone, whatever the number of threads. Padding contributes nothing, even to infinities and NaN.

use super::axis::Axis;
use super::cut::summed;
use super::tail::{FINISHED, Finish};
use super::target::{Work, widest};
use crate::chunks::{even_chunk, in_chunks};
use crate::turn::BLOCK;

/// A depthwise convolution with one filter for each channel. All sizes are at least 1.
#[derive(Clone, Copy, Debug)]
pub struct Depthwise {
    pub batch: usize,
    pub height: Axis,
    pub width: Axis,
    pub channels: usize,
}

/// Most entries of the lists of elements under windows.
const MOST_TAPS: usize = 1 << 20;
/// Most parts into which the sums of the filter's gradient are cut.
const PARTS: usize = 32;
/// Fewest multiplications of such a part.
const LEAST_PART: usize = 1 << 16;

/// The position of an input, and the position in the filter by which it is multiplied; along one dimension.
type Taps = Vec<(usize, usize)>;

impl Depthwise {
    /// Whether the parts take no longer than a kernel may run without a check for cancellation, with lists of a moderate
    /// size.
    #[inline]
    pub fn is_paced(&self) -> bool {
        let listed = |axis: &Axis| axis.window.saturating_mul(axis.input.max(axis.output)) <= MOST_TAPS;
        let wide = self.width.input.max(self.width.output);
        let row =
            [self.height.window, self.width.window, wide, self.channels].into_iter().fold(1, usize::saturating_mul);
        listed(&self.height) && listed(&self.width) && row <= BLOCK
    }

    /// The output, as NHWC, for an image in NHWC and a filter `[height, width, channels]`, whose parts `finish` completes.
    ///
    /// # Panics
    /// If the length of a slice does not match the sizes.
    pub fn answer(&self, image: &[f32], filter: &[f32], finish: Option<Finish>) -> Vec<f32> {
        assert_eq!(image.len(), self.pixels(), "the images have the size of the convolution");
        let [rows, columns] = [self.height, self.width].map(|axis| {
            let under = |window| (0..axis.window).filter_map(|k| Some((axis.position(window, k)?, k))).collect();
            (0..axis.output).map(under).collect::<Vec<Taps>>()
        });
        self.sums(image, [self.height.input, self.width.input], filter, [rows, columns], finish)
    }

    /// The gradient of the image, for that of the output.
    ///
    /// # Panics
    /// As [`Depthwise::answer`].
    pub fn image_gradient(&self, filter: &[f32], gradient: &[f32]) -> Vec<f32> {
        assert_eq!(gradient.len(), self.answers(), "the gradient has the size of the answer");
        let [rows, columns] = [self.height, self.width].map(|axis| {
            let mut over = vec![Taps::new(); axis.input];
            for (window, k) in (0..axis.output).flat_map(|window| (0..axis.window).map(move |k| (window, k))) {
                if let Some(at) = axis.position(window, k) {
                    over[at].push((window, k));
                }
            }
            over
        });
        self.sums(gradient, [self.height.output, self.width.output], filter, [rows, columns], None)
    }

    /// For each row and column, the sums of the products of the inputs, images of this height and width, and the filter.
    fn sums(
        &self,
        from: &[f32],
        size: [usize; 2],
        filter: &[f32],
        taps: [Vec<Taps>; 2],
        finish: Option<Finish>,
    ) -> Vec<f32> {
        assert_eq!(filter.len(), self.weights(), "the filter has the size of the convolution");
        let [rows, columns] = &taps;
        let row = columns.len() * self.channels;
        // One step for as many channels as most processors compute on at once.
        let steps = self.height.window * self.width.window * columns.len() * self.channels.div_ceil(8);
        let count = even_chunk(self.batch * rows.len(), steps);
        summed(self.batch * rows.len() * row, std::iter::repeat(count * row), |first, sums| {
            let Some(finish) = finish else {
                return widest(Sums { from, size, filter, conv: *self, taps: &taps, sums, first: first / row });
            };
            // Rows that are finished while they are in a core's cache.
            let part = (FINISHED / row).max(1) * row;
            for (i, sums) in sums.chunks_mut(part).enumerate() {
                let at = first + i * part;
                widest(Sums { from, size, filter, conv: *self, taps: &taps, sums: &mut *sums, first: at / row });
                finish(at, sums);
            }
        })
    }

    /// The gradient of the filter, for that of the output.
    ///
    /// # Panics
    /// As [`Depthwise::answer`].
    pub fn filter_gradient(&self, image: &[f32], gradient: &[f32]) -> Vec<f32> {
        assert_eq!((image.len(), gradient.len()), (self.pixels(), self.answers()), "the sizes of the convolution");
        let (rows, each) = self.parts();
        let mut parts = vec![0f32; rows.div_ceil(each) * self.weights()];
        in_chunks(parts.chunks_mut(self.weights()).enumerate(), |(i, sums)| {
            let rows = i * each..rows.min((i + 1) * each);
            widest(FilterGradient { conv: *self, image, gradient, rows, sums });
        });
        let (sums, others) = parts.split_at_mut(self.weights());
        for part in others.chunks(sums.len()) {
            sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
        let count = sums.len();
        parts.truncate(count);
        parts
    }

    /// The number of rows of windows, and the number of them that are summed for one part of the filter's gradient.
    #[inline]
    fn parts(&self) -> (usize, usize) {
        let rows = self.batch * self.height.output;
        let row = self.weights() * self.width.output;
        (rows, rows.div_ceil(PARTS).max(LEAST_PART / row).min(rows))
    }

    /// Most bytes that a gradient takes in addition to the result.
    #[inline]
    pub fn scratch_bytes(&self) -> usize {
        let (rows, each) = self.parts();
        size_of::<f32>() * rows.div_ceil(each) * self.weights()
    }

    #[inline]
    fn pixels(&self) -> usize {
        self.batch * self.height.input * self.width.input * self.channels
    }

    #[inline]
    fn answers(&self) -> usize {
        self.batch * self.height.output * self.width.output * self.channels
    }

    #[inline]
    fn weights(&self) -> usize {
        self.height.window * self.width.window * self.channels
    }
}

/// Calls `$block::<N>(first channel)` for runs of channels, as long as fit the registers.
macro_rules! in_runs {
    ($channels:expr, $first:ident, $N:ident => $block:expr) => {{
        let (mut $first, channels) = (0, $channels);
        macro_rules! of {
            ($size:literal) => {
                while channels - $first >= $size {
                    const $N: usize = $size;
                    $block;
                    $first += $size;
                }
            };
        }
        of!(32);
        of!(16);
        of!(8);
        of!(1);
    }};
}

/// Some rows of sums.
struct Sums<'a> {
    from: &'a [f32],
    /// Height and width of the input images.
    size: [usize; 2],
    filter: &'a [f32],
    conv: Depthwise,
    taps: &'a [Vec<Taps>; 2],
    sums: &'a mut [f32],
    /// The first of the rows, counted through all images.
    first: usize,
}

impl Work for Sums<'_> {
    #[inline(always)]
    fn run(self) {
        let ([rows, columns], channels) = (self.taps, self.conv.channels);
        let ([high, wide], window) = (self.size, self.conv.width.window);
        let spans = spans(columns);
        let are_long = spans.len() * LEAST_SPAN <= columns.len();
        for (i, sums) in self.sums.chunks_exact_mut(columns.len() * channels).enumerate() {
            let (image, y) = ((self.first + i) / rows.len(), (self.first + i) % rows.len());
            let image = &self.from[image * high * wide * channels..][..high * wide * channels];
            let row = Row { image, wide, filter: self.filter, window, channels, rows: &rows[y], columns };
            if are_long { row.by_spans(&spans, sums) } else { row.one_by_one(sums) }
        }
    }
}

/// The inputs of a row of sums.
struct Row<'a> {
    image: &'a [f32],
    /// Pixels of a row of the image, and weights of one of the filter.
    wide: usize,
    window: usize,
    filter: &'a [f32],
    channels: usize,
    /// The rows that are read.
    rows: &'a Taps,
    /// The elements of those rows that are read for each position of the output row.
    columns: &'a [Taps],
}

impl Row<'_> {
    /// All elements under one window, and then under the next.
    #[inline(always)]
    fn one_by_one(&self, sums: &mut [f32]) {
        let Row { image, wide, window, filter, channels, rows, columns } = *self;
        for (sums, columns) in sums.chunks_exact_mut(channels).zip(columns) {
            in_runs!(channels, first, N => {
                let mut sum = [0f32; N];
                for &(y, ky) in rows {
                    for &(x, kx) in columns {
                        let pixel = &image[(y * wide + x) * channels + first..][..N];
                        let weights = &filter[(ky * window + kx) * channels + first..][..N];
                        for ((sum, pixel), weight) in sum.iter_mut().zip(pixel).zip(weights) {
                            *sum += pixel * weight;
                        }
                    }
                }
                sums[first..first + N].copy_from_slice(&sum);
            });
        }
    }

    /// One row of all windows at a time: the weights stay in registers. The order of each sum is the same.
    #[inline(always)]
    fn by_spans(&self, spans: &[Span], sums: &mut [f32]) {
        let Row { image, wide, window, filter, channels, rows, columns } = *self;
        for &(y, ky) in rows {
            let pixels = &image[y * wide * channels..][..wide * channels];
            let weights = &filter[ky * window * channels..][..window * channels];
            for Span { places, step } in spans {
                let (taps, step) = (columns[places.start].as_slice(), step * channels);
                let sums = &mut sums[places.start * channels..places.end * channels];
                in_runs!(channels, first, N => {
                    let mut products = Products::<N> { pixels, weights, channels, first, step, sums };
                    match taps {
                        &[a, b, c] => products.add([a, b, c]),
                        &[a, b, c, d, e] => products.add([a, b, c, d, e]),
                        taps => taps.iter().for_each(|&tap| products.add([tap])),
                    }
                });
            }
        }
    }
}

/// Fewest positions of a span, on average, for which they are computed together.
const LEAST_SPAN: usize = 4;

/// Neighbours that read neighbours: from one to the next, the inputs are `step` pixels further, and meet the same positions
/// of the filter.
struct Span {
    places: std::ops::Range<usize>,
    step: usize,
}

fn spans(columns: &[Taps]) -> Vec<Span> {
    let step = |left: &Taps, right: &Taps| -> Option<usize> {
        let step = right.first()?.0.checked_sub(left.first()?.0)?;
        let follows = |(&(x, k), &(next, same))| next == x + step && k == same;
        (left.len() == right.len() && left.iter().zip(right).all(follows)).then_some(step)
    };
    let mut spans: Vec<Span> = Vec::new();
    for (place, taps) in columns.iter().enumerate() {
        let next = place.checked_sub(1).and_then(|before| step(&columns[before], taps));
        match (spans.last_mut(), next) {
            (Some(span), Some(next)) if span.places.len() == 1 || next == span.step => {
                (span.places.end, span.step) = (place + 1, next);
            }
            _ => spans.push(Span { places: place..place + 1, step: 0 }),
        }
    }
    spans
}

/// Sums of neighbours, in `N` of their channels.
struct Products<'a, const N: usize> {
    pixels: &'a [f32],
    weights: &'a [f32],
    channels: usize,
    /// The first of the channels.
    first: usize,
    /// The distance from the input of one sum to that of the next.
    step: usize,
    sums: &'a mut [f32],
}

impl<const N: usize> Products<'_, N> {
    /// Adds the products of the inputs of the sums at these positions, in their order.
    #[inline(always)]
    fn add<const K: usize>(&mut self, taps: [(usize, usize); K]) {
        let (channels, first) = (self.channels, self.first);
        let mut weights = [[0f32; N]; K];
        for (weights, (_, k)) in weights.iter_mut().zip(taps) {
            weights.copy_from_slice(&self.weights[k * channels + first..][..N]);
        }
        for (place, sums) in self.sums.chunks_exact_mut(channels).enumerate() {
            let sums = &mut sums[first..first + N];
            let mut sum = [0f32; N];
            sum.copy_from_slice(sums);
            for (weights, (x, _)) in weights.iter().zip(taps) {
                let pixel = &self.pixels[x * channels + place * self.step + first..][..N];
                for i in 0..N {
                    sum[i] += pixel[i] * weights[i];
                }
            }
            sums.copy_from_slice(&sum);
        }
    }
}

/// A part of the filter's gradient: the contribution of some rows of windows.
struct FilterGradient<'a> {
    conv: Depthwise,
    image: &'a [f32],
    gradient: &'a [f32],
    rows: std::ops::Range<usize>,
    sums: &'a mut [f32],
}

impl Work for FilterGradient<'_> {
    #[inline(always)]
    fn run(self) {
        let Depthwise { height, width, channels, .. } = self.conv;
        // The windows, of a row, in which each column of the filter meets the image: its positions follow with the stride.
        let within = |k: usize| {
            let first = width.before.saturating_sub(k * width.dilation).div_ceil(width.stride);
            let end = (width.input + width.before).saturating_sub(k * width.dilation).div_ceil(width.stride);
            first..end.min(width.output)
        };
        for row in self.rows {
            let (image, y) = (row / height.output, row % height.output);
            let gradient = &self.gradient[row * width.output * channels..][..width.output * channels];
            for ky in 0..height.window {
                let Some(at) = height.position(y, ky) else { continue };
                let pixels =
                    &self.image[(image * height.input + at) * width.input * channels..][..width.input * channels];
                for kx in 0..width.window {
                    let windows = within(kx);
                    let Some(from) = width.position(windows.start, kx).filter(|_| !windows.is_empty()) else {
                        continue;
                    };
                    let sums = &mut self.sums[(ky * width.window + kx) * channels..][..channels];
                    in_runs!(channels, first, N => {
                        let mut sum = [0f32; N];
                        for (i, x) in windows.clone().enumerate() {
                            let pixel = &pixels[(from + i * width.stride) * channels + first..][..N];
                            let gradient = &gradient[x * channels + first..][..N];
                            for ((sum, pixel), gradient) in sum.iter_mut().zip(pixel).zip(gradient) {
                                *sum += pixel * gradient;
                            }
                        }
                        sums[first..first + N].iter_mut().zip(sum).for_each(|(all, sum)| *all += sum);
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(input: usize, window: usize, stride: usize, dilation: usize, before: usize) -> Axis {
        let reach = (window - 1) * dilation + 1;
        Axis { input, window, output: (input + 2 * before - reach) / stride + 1, stride, dilation, before }
    }

    /// Whole numbers: their sums are exact in every order.
    fn whole(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 31) % 23) as f32 - 11.0).collect()
    }

    /// By the definition: the output, and the gradients of image and filter.
    fn naive(conv: &Depthwise, image: &[f32], filter: &[f32], gradient: &[f32]) -> [Vec<f32>; 3] {
        let (h, w, channels) = (conv.height, conv.width, conv.channels);
        let mut all = [vec![0f32; conv.answers()], vec![0f32; image.len()], vec![0f32; filter.len()]];
        for window in 0..conv.batch * h.output * w.output {
            let (n, y, x) = (window / (h.output * w.output), window / w.output % h.output, window % w.output);
            for (ky, kx) in (0..h.window).flat_map(|ky| (0..w.window).map(move |kx| (ky, kx))) {
                let (Some(row), Some(column)) = (h.position(y, ky), w.position(x, kx)) else { continue };
                for c in 0..channels {
                    let pixel = ((n * h.input + row) * w.input + column) * channels + c;
                    let (weight, to) = ((ky * w.window + kx) * channels + c, window * channels + c);
                    all[0][to] += image[pixel] * filter[weight];
                    all[1][pixel] += filter[weight] * gradient[to];
                    all[2][weight] += image[pixel] * gradient[to];
                }
            }
        }
        all
    }

    #[test]
    fn convolutions_answer_as_by_the_definition() {
        for (window, stride, dilation, before) in [
            (1, 1, 1, 0),
            (3, 1, 1, 1),
            (3, 2, 1, 1),
            (3, 2, 1, 0),
            (4, 1, 1, 1),
            (5, 1, 1, 2),
            (5, 3, 1, 2),
            (2, 1, 3, 2),
            (3, 2, 2, 2),
            (2, 4, 1, 0),
            (2, 1, 1, 3),
        ] {
            for (high, wide, channels) in [(6, 6, 1), (7, 9, 16), (9, 7, 57), (6, 11, 40), (40, 31, 7)] {
                let [height, width] = [high, wide].map(|size| axis(size, window, stride, dilation, before));
                let conv = Depthwise { batch: 3, height, width, channels };
                let (image, filter) = (whole(conv.pixels(), 1), whole(conv.weights(), 2));
                let gradient = whole(conv.answers(), 3);
                let [answer, by_image, by_filter] = naive(&conv, &image, &filter, &gradient);
                assert!(conv.is_paced());
                assert!(conv.answer(&image, &filter, None) == answer, "{conv:?}");
                let finish = |from: usize, part: &mut [f32]| {
                    assert!(from.is_multiple_of(channels) && part.len().is_multiple_of(channels));
                    assert!(*part == answer[from..][..part.len()], "{conv:?}");
                    part.iter_mut().for_each(|x| *x += 1000.0);
                };
                let finished = conv.answer(&image, &filter, Some(&finish));
                assert!(finished.iter().zip(&answer).all(|(x, own)| *x == own + 1000.0), "{conv:?}");
                assert!(conv.image_gradient(&filter, &gradient) == by_image, "{conv:?}");
                assert!(conv.filter_gradient(&image, &gradient) == by_filter, "{conv:?}");
            }
        }
    }

    #[test]
    fn sums_have_the_order_of_their_terms() {
        let parts = |count: usize, seed: usize| whole(count, seed).into_iter().map(|x| x / 7.3).collect::<Vec<f32>>();
        for (window, stride, before) in [(3, 1, 1), (5, 1, 2), (4, 1, 0), (3, 2, 1)] {
            let [height, width] = [9, 40].map(|size| axis(size, window, stride, 1, before));
            let conv = Depthwise { batch: 2, height, width, channels: 41 };
            let (image, filter, gradient) =
                (parts(conv.pixels(), 1), parts(conv.weights(), 2), parts(conv.answers(), 3));
            let [answer, by_image, _] = naive(&conv, &image, &filter, &gradient);
            assert!(conv.answer(&image, &filter, None) == answer, "{conv:?}");
            assert!(conv.image_gradient(&filter, &gradient) == by_image, "{conv:?}");
        }
    }

    #[test]
    fn the_padding_contributes_nothing_to_what_is_endless() {
        let side = axis(2, 3, 1, 1, 1);
        let conv = Depthwise { batch: 1, height: side, width: side, channels: 1 };
        let mut filter = vec![1f32; 9];
        filter[0] = f32::INFINITY;
        assert_eq!(conv.answer(&[1.0, 2.0, 3.0, 4.0], &filter, None), [10.0, 10.0, 10.0, f32::INFINITY]);
    }

    #[test]
    fn one_whose_rows_take_long_is_left_to_others() {
        let square = |input: usize, window: usize| {
            let side = Axis { input, window, output: input, stride: 1, dilation: 1, before: window / 2 };
            Depthwise { batch: 1, height: side, width: side, channels: 64 }
        };
        assert!(square(64, 5).is_paced());
        assert!(!square(4096, 300).is_paced());
        assert!(!square(64, usize::MAX / 4).is_paced());
    }
}
