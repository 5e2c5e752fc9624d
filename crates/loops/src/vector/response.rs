//! Local response normalisation: each number divided by a power of the sum of its neighbours' squares, channels last.
//!
//! The windows of all channels are added up at once: sums of two neighbours, then of four, and so on, of which those are
//! added that make up a window. Zeros between the positions keep them apart.

use super::cut::{Cut, in_place, on_copy};
use super::ops::{Reciprocal, RootBelow};
use super::power::Power;
use super::target::{FusedWork, MulAdd, widest_fused};
use super::walk::{One, Two};
use crate::chunks::threads;

/// Numbers that are computed on while they are in the L1 cache.
const NEAR: usize = 1 << 10;
/// The number of buffers, each with a float for every number.
const BUFFERS: usize = 4;
/// The work of a number, counted as additions.
const WORK: usize = 16;

/// A normalisation: each number divided by `bias + alpha * sum of squares` to the power `beta`.
#[derive(Clone, Copy, Debug)]
pub struct LocalResponse {
    /// Channels on either side whose squares count.
    pub radius: usize,
    pub bias: f32,
    pub alpha: f32,
    pub beta: f32,
}

/// x^-0.75, within 4.5 units in the last place.
#[derive(Clone, Copy)]
struct RootOfCubeBelow;

impl One for RootOfCubeBelow {
    #[inline(always)]
    fn of<M: MulAdd>(self, x: f32) -> f32 {
        let root = x.sqrt();
        1.0 / (root * root.sqrt())
    }
}

/// x to a power.
#[derive(Clone, Copy)]
struct To(f32);

impl One for To {
    #[inline(always)]
    fn of<M: MulAdd>(self, x: f32) -> f32 {
        Power.of::<M>(x, self.0)
    }
}

/// `raised!(beta, f => body)`: the body with `f` the power to minus `beta`. The exponents that models use most take no
/// logarithm.
macro_rules! raised {
    ($beta:expr, $f:ident => $body:expr) => {
        match $beta {
            0.5 => {
                let $f = RootBelow;
                $body
            }
            0.75 => {
                let $f = RootOfCubeBelow;
                $body
            }
            1.0 => {
                let $f = Reciprocal;
                $body
            }
            beta => {
                let $f = To(-beta);
                $body
            }
        }
    };
}

impl LocalResponse {
    /// The number of bytes that it takes in addition to the output.
    #[inline]
    pub fn scratch_bytes(&self, channels: usize) -> usize {
        Places::of(self, channels).room(NEAR.max(channels)).saturating_mul(BUFFERS * size_of::<f32>() * threads())
    }

    /// The numbers normalised. There is at least one channel.
    pub fn normalised(&self, xs: &[f32], channels: usize) -> Vec<f32> {
        on_copy(xs, cut(channels), |_, xs| self.normalise(xs, channels))
    }

    /// Normalises the numbers in place. There is at least one channel.
    #[inline]
    pub fn normalise_over(&self, xs: &mut [f32], channels: usize) {
        in_place(xs, cut(channels), |_, xs| self.normalise(xs, channels));
    }

    /// The gradient of the numbers, from that of `ys`, the normalised numbers. There is at least one channel.
    pub fn gradient(&self, gradient: &[f32], xs: &[f32], ys: &[f32], channels: usize) -> Vec<f32> {
        on_copy(gradient, cut(channels), |from, gradient| {
            let own = from..from + gradient.len();
            self.go_back(gradient, &xs[own.clone()], &ys[own], channels);
        })
    }

    /// The layout of channels in buffers, the count of numbers that are computed on at a time, and buffers for those, or for
    /// `numbers` if fewer.
    fn chunks(&self, numbers: usize, channels: usize) -> (Places, usize, [Vec<f32>; BUFFERS]) {
        let places = Places::of(self, channels);
        let near = places.near();
        (places, near, places.buffers(numbers.min(near)))
    }

    #[inline]
    fn normalise(&self, xs: &mut [f32], channels: usize) {
        let (places, near, mut buffers) = self.chunks(xs.len(), channels);
        for xs in xs.chunks_mut(near) {
            let buffers = places.parts(&mut buffers, xs.len());
            raised!(self.beta, power => widest_fused(Forward { xs, norm: self, places, buffers, power }));
        }
    }

    fn go_back(&self, gradient: &mut [f32], xs: &[f32], ys: &[f32], channels: usize) {
        let (places, near, mut buffers) = self.chunks(xs.len(), channels);
        for ((gradient, xs), ys) in gradient.chunks_mut(near).zip(xs.chunks(near)).zip(ys.chunks(near)) {
            let buffers = places.parts(&mut buffers, xs.len());
            raised!(self.beta, power => widest_fused(Backward { gradient, xs, ys, norm: self, places, buffers, power }));
        }
    }
}

#[inline]
fn cut(channels: usize) -> Cut {
    Cut { period: channels, work: WORK }
}

/// The layout of positions in a buffer: the channels of each in a row, with zeros before and after them.
#[derive(Clone, Copy)]
struct Places {
    channels: usize,
    /// The number of zeros: the radius of a window, at most the number of other channels.
    reach: usize,
}

impl Places {
    #[inline]
    fn of(norm: &LocalResponse, channels: usize) -> Places {
        Places { channels, reach: norm.radius.min(channels - 1) }
    }

    /// The count of numbers that are computed on at a time: whole positions.
    #[inline]
    fn near(self) -> usize {
        (NEAR / self.channels).max(1) * self.channels
    }

    /// The windows over `numbers` numbers, those of the zeros after each position included.
    #[inline]
    fn windows(self, numbers: usize) -> usize {
        numbers / self.channels * (self.channels + self.reach)
    }

    /// The size of a buffer for `numbers` numbers.
    #[inline]
    fn room(self, numbers: usize) -> usize {
        self.windows(numbers).saturating_add(2 * self.reach)
    }

    fn buffers(self, numbers: usize) -> [Vec<f32>; BUFFERS] {
        std::array::from_fn(|_| vec![0f32; self.room(numbers)])
    }

    fn parts(self, buffers: &mut [Vec<f32>; BUFFERS], numbers: usize) -> [&mut [f32]; BUFFERS] {
        buffers.each_mut().map(|buffer| &mut buffer[..self.room(numbers)])
    }

    /// The channels of each position in a buffer.
    #[inline(always)]
    fn rows(self, terms: &mut [f32]) -> impl Iterator<Item = &mut [f32]> {
        terms[self.reach..].chunks_mut(self.channels + self.reach).map(move |row| &mut row[..self.channels])
    }

    /// The windows whose centres are the channels of each position.
    #[inline(always)]
    fn middles(self, sums: &[f32]) -> impl Iterator<Item = &[f32]> {
        sums.chunks_exact(self.channels + self.reach).map(move |row| &row[..self.channels])
    }

    /// Adds up the terms of each window. Overwrites the terms, and `spare`.
    #[inline(always)]
    fn add_up(self, terms: &mut [f32], spare: &mut [f32], sums: &mut [f32]) {
        let (window, windows) = (2 * self.reach + 1, sums.len());
        let (mut of_size, mut next) = (terms, spare);
        let (mut size, mut done, mut len) = (1, 0, windows + 2 * self.reach);
        sums.fill(0.0);
        loop {
            if window & size != 0 {
                add(sums, &of_size[done..done + windows]);
                done += size;
            }
            if 2 * size > window {
                return;
            }
            len -= size;
            double(&mut next[..len], &of_size[..len], &of_size[size..size + len]);
            std::mem::swap(&mut of_size, &mut next);
            size *= 2;
        }
    }
}

#[inline(always)]
fn add(sums: &mut [f32], terms: &[f32]) {
    for (sum, &term) in sums.iter_mut().zip(terms) {
        *sum += term;
    }
}

#[inline(always)]
fn double(sums: &mut [f32], terms: &[f32], others: &[f32]) {
    for ((sum, &term), &other) in sums.iter_mut().zip(terms).zip(others) {
        *sum = term + other;
    }
}

/// Overwrites the sums of squares with the norms, the bases of the power.
#[inline(always)]
fn to_norms(sums: &mut [f32], norm: &LocalResponse) {
    for sum in sums {
        *sum = norm.bias + norm.alpha * *sum;
    }
}

struct Forward<'a, P> {
    xs: &'a mut [f32],
    norm: &'a LocalResponse,
    places: Places,
    buffers: [&'a mut [f32]; BUFFERS],
    power: P,
}

impl<P: One> FusedWork for Forward<'_, P> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let (places, [terms, spare, sums, _]) = (self.places, self.buffers);
        let sums = &mut sums[..places.windows(self.xs.len())];
        square(self.xs, terms, places);
        places.add_up(terms, spare, sums);
        to_norms(sums, self.norm);
        for sum in &mut *sums {
            *sum = self.power.of::<M>(*sum);
        }
        for (xs, powers) in self.xs.chunks_exact_mut(places.channels).zip(places.middles(sums)) {
            for (x, &power) in xs.iter_mut().zip(powers) {
                *x *= power;
            }
        }
    }
}

/// Writes the squares with zeros between the positions.
#[inline(always)]
fn square(xs: &[f32], terms: &mut [f32], places: Places) {
    terms.fill(0.0);
    for (xs, squares) in xs.chunks_exact(places.channels).zip(places.rows(terms)) {
        for (square, &x) in squares.iter_mut().zip(xs) {
            *square = x * x;
        }
    }
}

struct Backward<'a, P> {
    gradient: &'a mut [f32],
    xs: &'a [f32],
    ys: &'a [f32],
    norm: &'a LocalResponse,
    places: Places,
    buffers: [&'a mut [f32]; BUFFERS],
    power: P,
}

impl<P: One> FusedWork for Backward<'_, P> {
    /// With the norm n of each x: dx = dy n^-beta - 2 alpha beta x (sum of dy y / n over the windows that contain x).
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let (places, [terms, spare, sums, powers]) = (self.places, self.buffers);
        let windows = places.windows(self.xs.len());
        let (sums, powers) = (&mut sums[..windows], &mut powers[..windows]);
        square(self.xs, terms, places);
        places.add_up(terms, spare, sums);
        to_norms(sums, self.norm);
        for (power, &norm) in powers.iter_mut().zip(&*sums) {
            *power = self.power.of::<M>(norm);
        }
        terms.fill(0.0);
        let factor = -2.0 * self.norm.alpha * self.norm.beta;
        let outputs = self.gradient.chunks_exact(places.channels).zip(self.ys.chunks_exact(places.channels));
        for (((gradient, ys), norms), shares) in outputs.zip(places.middles(sums)).zip(places.rows(terms)) {
            for (((share, &dy), &y), &norm) in shares.iter_mut().zip(gradient).zip(ys).zip(norms) {
                *share = factor * dy * y / norm;
            }
        }
        places.add_up(terms, spare, sums);
        let inputs = self.gradient.chunks_exact_mut(places.channels).zip(self.xs.chunks_exact(places.channels));
        for (((gradient, xs), sums), powers) in inputs.zip(places.middles(sums)).zip(places.middles(powers)) {
            for (((dy, &x), &sum), &power) in gradient.iter_mut().zip(xs).zip(sums).zip(powers) {
                *dy = *dy * power + sum * x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::RoundedOnce;
    use super::super::tests::units;
    use super::*;

    /// The norm of each number, the base of the power, in float64.
    fn norms(norm: &LocalResponse, xs: &[f32], channels: usize) -> Vec<f64> {
        let of_place = |place: &[f32]| -> Vec<f64> {
            let sum = |c: usize| -> f64 {
                let window = &place[c.saturating_sub(norm.radius)..(c + norm.radius + 1).min(channels)];
                window.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
            };
            (0..channels).map(|c| f64::from(norm.bias) + f64::from(norm.alpha) * sum(c)).collect()
        };
        xs.chunks(channels).flat_map(of_place).collect()
    }

    /// The gradient as the derivative of each output by each input, in float64.
    fn gradient(norm: &LocalResponse, dy: &[f32], xs: &[f32], ys: &[f32], channels: usize) -> Vec<f64> {
        let (norms, [alpha, beta]) = (norms(norm, xs, channels), [norm.alpha, norm.beta].map(f64::from));
        let mut dx = vec![0f64; xs.len()];
        for (i, (&dy, &y)) in dy.iter().zip(ys).enumerate() {
            let first = i / channels * channels;
            let (from, end) = (i.saturating_sub(norm.radius).max(first), (i + norm.radius + 1).min(first + channels));
            dx[i] += f64::from(dy) * norms[i].powf(-beta);
            for k in from..end {
                dx[k] -= 2.0 * alpha * beta * f64::from(dy) * f64::from(y) / norms[i] * f64::from(xs[k]);
            }
        }
        dx
    }

    #[test]
    fn numbers_and_gradients_are_those_of_float64_whatever_the_sizes() {
        let numbers = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|i| ((i + seed) * 7919 % 2017) as f32 / 500.0 - 2.0).collect()
        };
        for (places, channels, radius) in [
            (1, 1, 0),
            (3, 1, 5),
            (5, 7, 2),
            (9, 64, 4),
            (700, 96, 5),
            (6000, 10, 3),
            (2, 3000, 1),
            (40, 33, 32),
            (3, 20, 1000),
            (2, 1500, usize::MAX),
        ] {
            let (xs, dy) = (numbers(places * channels, 1), numbers(places * channels, 77));
            for beta in [0.5, 0.75, 1.0, 0.3, 2.0] {
                let norm = LocalResponse { radius: radius.min(5000), bias: 1.5, alpha: 0.25, beta };
                let own = LocalResponse { radius, ..norm };
                let ys = own.normalised(&xs, channels);
                let mut over = xs.clone();
                own.normalise_over(&mut over, channels);
                let case = format!("{places}x{channels}, {radius} to {beta}");
                assert!(over == ys, "{case}");
                for ((&x, &y), n) in xs.iter().zip(&ys).zip(norms(&norm, &xs, channels)) {
                    let want = f64::from(x) * n.powf(-f64::from(beta));
                    assert!((f64::from(y) - want).abs() <= 1e-6 * want.abs(), "{case}: {y} not {want}");
                }
                let got = own.gradient(&dy, &xs, &ys, channels);
                for (&got, want) in got.iter().zip(gradient(&norm, &dy, &xs, &ys, channels)) {
                    assert!((f64::from(got) - want).abs() <= 4e-6 * want.abs().max(1.0), "{case}: {got} not {want}");
                }
            }
        }
    }

    #[test]
    fn powers_without_a_logarithm_are_within_their_bound() {
        for i in 1..20_000 {
            let x = f32::from_bits(0x0080_0000 + i * 0x1_a2b3);
            let want = f64::from(x).powf(-0.75);
            assert!(units(RootOfCubeBelow.of::<RoundedOnce>(x), want) <= 4.5, "{x:?}");
        }
        assert_eq!([0.0, f32::INFINITY].map(|x| RootOfCubeBelow.of::<RoundedOnce>(x)), [f32::INFINITY, 0.0]);
        assert!(RootOfCubeBelow.of::<RoundedOnce>(-1.0).is_nan());
    }

    #[test]
    fn what_is_endless_stays_within_its_window() {
        let mut xs = [1f32; 12];
        xs[3] = f32::INFINITY;
        let norm = LocalResponse { radius: 1, bias: 1.0, alpha: 1.0, beta: 1.0 };
        let got = norm.normalised(&xs, 6);
        // By hand: the sums of squares are 2 at the ends and 3 between, and infinite next to an infinity.
        let third = 1.0 / 3.0;
        assert_eq!(got[..3], [third, 0.25, 0.0]);
        assert!(got[3].is_nan());
        assert_eq!(got[4..], [0.0, third, third, 0.25, 0.25, 0.25, 0.25, third]);
    }
}
