//! Sums of each channel over all positions, channels last, and batch normalisation by them.
//!
//! Sums are of double precision. They are added part by part, in an order that follows from the sizes alone.

use super::cut::{Cut, in_place, on_copy};
use super::tail::{NO_LIMITS, limited};
use super::target::{Work, widest};
use crate::chunks::in_chunks;

/// Fewest numbers that are added in parallel lanes: a multiple of the widest registers.
const LANES: usize = 128;
/// Elements of a part, unless there are many channels.
const PART: usize = 1 << 15;
/// Fewest positions of a part, so that its sums take little memory compared with its numbers.
const PLACES: usize = 64;

/// The two terms that an element contributes to the sums, with the element at the same position of the other array and two
/// numbers of their channel. To be inlined always.
trait Terms: Copy + Send + Sync {
    fn of(self, x: f32, y: f32, of_channel: [f32; 2]) -> [f64; 2];
}

/// Two sums for each channel.
pub type Sums = [Vec<f64>; 2];

/// The number of bytes that the sums of `len` elements take while they are computed.
#[inline]
pub fn scratch_bytes(len: usize, channels: usize) -> usize {
    let size = size_of::<[f64; 2]>() * row(channels);
    (len / part(channels) + 2).saturating_mul(size)
}

/// Numbers that are added in parallel lanes: whole positions.
#[inline]
fn row(channels: usize) -> usize {
    channels * LANES.div_ceil(channels)
}

#[inline]
fn part(channels: usize) -> usize {
    (PART / row(channels)).max(PLACES) * row(channels)
}

fn summed(xs: &[f32], ys: &[f32], of_channel: [&[f32]; 2], terms: impl Terms) -> Sums {
    let channels = of_channel[0].len();
    let (row, part) = (row(channels), part(channels));
    let of_row = of_channel.map(|all| all.iter().copied().cycle().take(row).collect::<Vec<f32>>());
    let mut all = vec![[0f64; 2]; xs.len().div_ceil(part) * row];
    in_chunks(all.chunks_mut(row).zip(xs.chunks(part)).zip(ys.chunks(part)), |((sums, xs), ys)| {
        let [mut first, mut second] = [vec![0f64; row], vec![0f64; row]];
        widest(Part { xs, ys, of_row: of_row.each_ref().map(|all| &all[..]), sums: [&mut first, &mut second], terms });
        sums.iter_mut().zip(first.into_iter().zip(second)).for_each(|(sums, (x, y))| *sums = [x, y]);
    });
    let mut sums = [vec![0f64; channels], vec![0f64; channels]];
    for place in all.chunks_exact(channels) {
        for (c, [x, y]) in place.iter().enumerate() {
            sums[0][c] += x;
            sums[1][c] += y;
        }
    }
    sums
}

struct Part<'a, T> {
    xs: &'a [f32],
    ys: &'a [f32],
    of_row: [&'a [f32]; 2],
    sums: [&'a mut [f64]; 2],
    terms: T,
}

impl<T: Terms> Work for Part<'_, T> {
    #[inline(always)]
    fn run(self) {
        let [first, second] = self.sums;
        let row = first.len();
        for (xs, ys) in self.xs.chunks(row).zip(self.ys.chunks(row)) {
            let of_row = self.of_row[0].iter().zip(self.of_row[1]);
            let sums = first.iter_mut().zip(second.iter_mut());
            for (((sums, of_channel), &x), &y) in sums.zip(of_row).zip(xs).zip(ys) {
                let [own_first, own_second] = self.terms.of(x, y, [*of_channel.0, *of_channel.1]);
                *sums.0 += own_first;
                *sums.1 += own_second;
            }
        }
    }
}

/// Mean and variance of each channel. There is at least one channel and one position.
pub fn moments(xs: &[f32], channels: usize) -> Sums {
    /// Distances from a number near the mean, whose squares are not much larger than the variance.
    #[derive(Clone, Copy)]
    struct Distances;
    impl Terms for Distances {
        #[inline(always)]
        fn of(self, x: f32, _: f32, [near, _]: [f32; 2]) -> [f64; 2] {
            let distance = f64::from(x) - f64::from(near);
            [distance, distance * distance]
        }
    }
    let near: Vec<f32> = xs[..channels].iter().map(|&x| if x.is_finite() { x } else { 0.0 }).collect();
    let [mut means, mut variances] = summed(xs, xs, [&near, &near], Distances);
    let places = (xs.len() / channels) as f64;
    for ((mean, variance), near) in means.iter_mut().zip(&mut variances).zip(near) {
        let distance = *mean / places;
        let own = *variance / places - distance * distance;
        // Rounding may leave a little less than zero; NaN stays NaN.
        *variance = if own < 0.0 { 0.0 } else { own };
        *mean = f64::from(near) + distance;
    }
    [means, variances]
}

/// The constants that normalise the elements of a channel.
#[derive(Clone, Copy, Debug)]
pub struct Normal {
    pub mean: f32,
    /// One over the standard deviation.
    pub factor: f32,
    pub scale: f32,
    pub offset: f32,
}

struct Normalise<'a> {
    xs: &'a mut [f32],
    mean: &'a [f32],
    weight: &'a [f32],
    offset: &'a [f32],
    limits: [f32; 2],
}

impl Work for Normalise<'_> {
    #[inline(always)]
    fn run(self) {
        for xs in self.xs.chunks_mut(self.mean.len()) {
            for (((x, &mean), &weight), &offset) in xs.iter_mut().zip(self.mean).zip(self.weight).zip(self.offset) {
                *x = limited((*x - mean) * weight + offset, self.limits);
            }
        }
    }
}

/// A value of each channel, repeated to fill a row.
fn repeated(channels: &[Normal], of: impl Fn(&Normal) -> f32) -> Vec<f32> {
    channels.iter().cycle().take(row(channels.len())).map(of).collect()
}

/// The cut for functions of elements with `channels` channels.
#[inline]
fn cut(channels: usize, work: usize) -> Cut {
    Cut { period: row(channels), work }
}

/// Normalises the elements in place.
pub fn normalise_over(xs: &mut [f32], channels: &[Normal]) {
    in_place(xs, cut(channels.len(), 1), normalising(channels));
}

/// A normalised copy of the elements.
pub fn normalised(xs: &[f32], channels: &[Normal]) -> Vec<f32> {
    on_copy(xs, cut(channels.len(), 1), normalising(channels))
}

fn normalising(channels: &[Normal]) -> impl Fn(usize, &mut [f32]) + Sync {
    let normaliser = Normaliser::new(channels);
    move |_, xs| normaliser.over(xs, NO_LIMITS)
}

/// The numbers of each channel, repeated to fill a row.
pub(super) struct Normaliser {
    mean: Vec<f32>,
    weight: Vec<f32>,
    offset: Vec<f32>,
}

impl Normaliser {
    pub(super) fn new(channels: &[Normal]) -> Normaliser {
        let (mean, offset) = (repeated(channels, |of| of.mean), repeated(channels, |of| of.offset));
        Normaliser { mean, weight: repeated(channels, |of| of.scale * of.factor), offset }
    }

    /// The number of floats that it holds.
    pub(super) fn elements(channels: usize) -> usize {
        row(channels).saturating_mul(3)
    }

    /// Normalises elements from the first channel of a position on, within limits, on the calling thread.
    pub(super) fn over(&self, xs: &mut [f32], limits: [f32; 2]) {
        widest(Normalise { xs, mean: &self.mean, weight: &self.weight, offset: &self.offset, limits });
    }
}

/// The sums of a gradient, and of its products with the normalised elements, for each channel.
pub fn gradient_sums(gradient: &[f32], xs: &[f32], channels: &[Normal]) -> Sums {
    #[derive(Clone, Copy)]
    struct Products;
    impl Terms for Products {
        #[inline(always)]
        fn of(self, gradient: f32, x: f32, [mean, factor]: [f32; 2]) -> [f64; 2] {
            [f64::from(gradient), f64::from(gradient * ((x - mean) * factor))]
        }
    }
    let own = |of: fn(&Normal) -> f32| channels.iter().map(of).collect::<Vec<f32>>();
    summed(gradient, xs, [&own(|of| of.mean), &own(|of| of.factor)], Products)
}

struct Backward<'a> {
    gradient: &'a mut [f32],
    xs: &'a [f32],
    mean: &'a [f32],
    factor: &'a [f32],
    weight: &'a [f32],
    /// The mean of the gradient, and of its products with the normalised elements.
    means: [&'a [f32]; 2],
}

impl Work for Backward<'_> {
    #[inline(always)]
    fn run(self) {
        let row = self.mean.len();
        for (gradient, xs) in self.gradient.chunks_mut(row).zip(self.xs.chunks(row)) {
            let of_channel = self.mean.iter().zip(self.factor).zip(self.weight);
            let means = self.means[0].iter().zip(self.means[1]);
            for (((g, &x), ((&mean, &factor), &weight)), (&of_gradient, &of_product)) in
                gradient.iter_mut().zip(xs).zip(of_channel).zip(means)
            {
                *g = (*g - of_gradient - (x - mean) * factor * of_product) * weight;
            }
        }
    }
}

/// Overwrites the gradient of elements normalised by their own moments with that of the elements. `means` are the
/// [`gradient_sums`], divided by the number of positions.
pub fn gradient_over(gradient: &mut [f32], xs: &[f32], channels: &[Normal], means: [&[f32]; 2]) {
    in_place(gradient, cut(channels.len(), 2), going_back(xs, channels, means));
}

/// As [`gradient_over`], into a new vector.
pub fn gradient_of(gradient: &[f32], xs: &[f32], channels: &[Normal], means: [&[f32]; 2]) -> Vec<f32> {
    on_copy(gradient, cut(channels.len(), 2), going_back(xs, channels, means))
}

fn going_back<'a>(xs: &'a [f32], channels: &[Normal], means: [&[f32]; 2]) -> impl Fn(usize, &mut [f32]) + Sync + 'a {
    let (mean, factor) = (repeated(channels, |of| of.mean), repeated(channels, |of| of.factor));
    let weight = repeated(channels, |of| of.scale * of.factor);
    let means = means.map(|all| all.iter().copied().cycle().take(mean.len()).collect::<Vec<f32>>());
    move |from, gradient| {
        let xs = &xs[from..from + gradient.len()];
        let means = means.each_ref().map(|all| &all[..]);
        widest(Backward { gradient, xs, mean: &mean, factor: &factor, weight: &weight, means });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i + seed) * 7919 % 2017) as f32 / 500.0 + 30.0).collect()
    }

    const SIZES: [(usize, usize); 8] =
        [(1, 1), (5, 1), (7, 3), (100_003, 3), (40, 16), (9001, 17), (3, 1000), (300, 1001)];

    #[test]
    fn moments_are_those_of_a_loop() {
        for (places, channels) in SIZES {
            let xs = numbers(places * channels, 1);
            let [means, variances] = moments(&xs, channels);
            for c in 0..channels {
                let own = || xs[c..].iter().step_by(channels).map(|&x| f64::from(x));
                let mean = own().sum::<f64>() / places as f64;
                let variance = own().map(|x| (x - mean) * (x - mean)).sum::<f64>() / places as f64;
                let near = |got: f64, want: f64| (got - want).abs() <= 1e-11 * want.abs().max(1.0);
                assert!(near(means[c], mean), "{places}, {channels}");
                assert!(near(variances[c], variance), "{places}, {channels}: {} {variance}", variances[c]);
            }
        }
    }

    #[test]
    fn moments_of_what_is_endless() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let check = |xs: [f32; 4], mean: f64| {
            let [means, variances] = moments(&xs, 1);
            assert!(means[0] == mean || means[0].is_nan() && mean.is_nan(), "{xs:?}: {means:?}");
            assert!(variances[0].is_nan(), "{xs:?}: {variances:?}");
        };
        check([inf, 1.0, 2.0, 3.0], f64::INFINITY);
        check([1.0, 1.0, -inf, 3.0], f64::NEG_INFINITY);
        check([inf, 1.0, -inf, 3.0], f64::NAN);
        check([1.0, nan, 2.0, 3.0], f64::NAN);
    }

    #[test]
    fn elements_are_normalised_and_gradients_taken_back_as_by_a_loop() {
        for (places, channels) in SIZES {
            let (xs, gradient) = (numbers(places * channels, 1), numbers(places * channels, 5));
            let normal: Vec<Normal> = (0..channels)
                .map(|c| Normal { mean: 31.5 + c as f32, factor: 0.5, scale: 2.0 - c as f32, offset: c as f32 })
                .collect();
            let want: Vec<f32> = xs
                .iter()
                .zip(normal.iter().cycle())
                .map(|(x, of)| (x - of.mean) * (of.scale * of.factor) + of.offset)
                .collect();
            let mut over = xs.clone();
            normalise_over(&mut over, &normal);
            assert!(over == want && normalised(&xs, &normal) == want, "{places}, {channels}");
            let products = gradient_sums(&gradient, &xs, &normal);
            let means: [Vec<f32>; 2] = [3, 8].map(|by| (0..channels).map(|c| (c % by) as f32).collect());
            let means = means.each_ref().map(|all| &all[..]);
            let mut want = Vec::new();
            let mut sums = [vec![0f64; channels], vec![0f64; channels]];
            for (i, (&g, &x)) in gradient.iter().zip(&xs).enumerate() {
                let (c, of) = (i % channels, normal[i % channels]);
                let normalised = (x - of.mean) * of.factor;
                sums[0][c] += f64::from(g);
                sums[1][c] += f64::from(g * normalised);
                want.push((g - means[0][c] - normalised * means[1][c]) * (of.scale * of.factor));
            }
            for (got, want) in products.iter().flatten().zip(sums.iter().flatten()) {
                assert!((got - want).abs() <= 1e-11 * want.abs().max(1.0), "{places}, {channels}: {got} {want}");
            }
            let mut over = gradient.clone();
            gradient_over(&mut over, &xs, &normal, means);
            assert!(over == want && gradient_of(&gradient, &xs, &normal, means) == want, "{places}, {channels}");
        }
    }
}
