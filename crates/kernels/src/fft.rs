//! Fourier transforms over the last one, two or three dimensions: FFT, IFFT, RFFT, IRFFT and their 2D and 3D forms.
//!
//! The lines are rustfft's. It cannot be interrupted, so a long line is put together of short ones, between which a kernel checks
//! whether its step was cancelled. Everything is computed in float64 and rounded once.

use std::collections::VecDeque;
use std::sync::Arc;

use meshtf_loops::turn::{Pace, look};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Complex, DType, Shape, Tensor, with_complex};
use rustfft::algorithm::{BluesteinsAlgorithm, MixedRadix};
use rustfft::{Direction, Fft, FftDirection, FftPlanner, Length};

use super::call::{input_dtype, kernel as call, output_dtype, product, vector};
use super::math::Pair;
use super::{HostKernel, KernelNode, Registry};

/// The longest line that is left to the library as a whole: about a millisecond of work.
const MAX_WHOLE: usize = 1 << 16;
/// Most plans that a kernel keeps, each for a line of at most [`MAX_WHOLE`]. A node has three axes, whose lengths seldom change.
const MAX_PLANS: usize = 8;

type Number = Complex<f64>;

const ZERO: Number = Complex::new(0.0, 0.0);

/// Registers the Fourier transforms.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("FFT", |node| kernel(node, Transform { rank: 1, is_inverse: false, is_real: false }));
    ops.insert("FFT2D", |node| kernel(node, Transform { rank: 2, is_inverse: false, is_real: false }));
    ops.insert("FFT3D", |node| kernel(node, Transform { rank: 3, is_inverse: false, is_real: false }));
    ops.insert("IFFT", |node| kernel(node, Transform { rank: 1, is_inverse: true, is_real: false }));
    ops.insert("IFFT2D", |node| kernel(node, Transform { rank: 2, is_inverse: true, is_real: false }));
    ops.insert("IFFT3D", |node| kernel(node, Transform { rank: 3, is_inverse: true, is_real: false }));
    ops.insert("RFFT", |node| kernel(node, Transform { rank: 1, is_inverse: false, is_real: true }));
    ops.insert("RFFT2D", |node| kernel(node, Transform { rank: 2, is_inverse: false, is_real: true }));
    ops.insert("RFFT3D", |node| kernel(node, Transform { rank: 3, is_inverse: false, is_real: true }));
    ops.insert("IRFFT", |node| kernel(node, Transform { rank: 1, is_inverse: true, is_real: true }));
    ops.insert("IRFFT2D", |node| kernel(node, Transform { rank: 2, is_inverse: true, is_real: true }));
    ops.insert("IRFFT3D", |node| kernel(node, Transform { rank: 3, is_inverse: true, is_real: true }));
}

fn kernel(node: &KernelNode, op: Transform) -> Result<Option<HostKernel>> {
    let (from, to) = (input_dtype(node, 0)?, output_dtype(node, 0)?);
    let complex = if op.is_real && !op.is_inverse { to } else { from };
    let fits = if op.is_real { from.real() == to.real() } else { from == to };
    let mut plans = Plans::new(op.is_inverse);
    let found = if !fits || !complex.is_complex() {
        None
    } else if op.is_real {
        with_complex!(complex, T => match op.is_inverse {
            true => call(move |[x, length]| to_real::<T>(op, &x, &length, &mut plans)),
            false => call(move |[x, length]| from_real::<T>(op, &x, &length, &mut plans)),
        })
    } else {
        with_complex!(complex, T => call(move |[x]| {
            let dims = innermost(&x, op.rank)?;
            let mut numbers = widened(x.slice::<T>()?.iter().map(|x| x.wide()), x.len())?;
            transform(&mut numbers, &dims, dims.len(), &mut plans)?;
            rounded::<T>(x.shape().clone(), &numbers)
        }))
    };
    Ok(found)
}

/// The transform that an op computes.
#[derive(Clone, Copy)]
struct Transform {
    /// The number of dimensions.
    rank: usize,
    is_inverse: bool,
    /// Whether the input or, of an inverse, the output is real.
    is_real: bool,
}

/// The sizes of the last dimensions.
fn innermost(x: &Tensor, rank: usize) -> Result<Vec<usize>> {
    match x.rank().checked_sub(rank) {
        Some(batch) => Ok(x.dims()[batch..].to_vec()),
        None => Err(Failure::invalid(format!("Input must have rank of at least {rank} but got: {}", x.shape()))),
    }
}

fn widened(numbers: impl Iterator<Item = Number>, count: usize) -> Result<Vec<Number>> {
    memory::admit(count.saturating_mul(size_of::<Number>()))?;
    let mut wide = Vec::with_capacity(count);
    let mut pace = Pace::new();
    wide.extend(numbers.inspect(|_| pace.go(1)));
    Ok(wide)
}

fn rounded<T: Pair>(shape: Shape, numbers: &[Number]) -> Result<Tensor> {
    let mut out = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
    out.extend(numbers.iter().map(|&number| T::from_wide(number)));
    Ok(Tensor::from_vec(shape, out))
}

/// The lengths of a transform. The input must have at least these sizes; in its last dimension, at least `least` of the
/// length.
fn lengths(op: Transform, x: &Tensor, length: &Tensor, least: impl Fn(usize) -> usize) -> Result<Vec<usize>> {
    let dims = innermost(x, op.rank)?;
    let lengths = vector(length, "fft_length", false)?;
    if lengths.len() != op.rank {
        return Err(Failure::invalid(format!("fft_length must have shape [{}], got {}", op.rank, length.shape())));
    }
    let mut sizes = Vec::with_capacity(op.rank);
    for (i, (&length, &have)) in lengths.iter().zip(&dims).enumerate() {
        let size = usize::try_from(length)
            .map_err(|_| Failure::invalid(format!("fft_length[{i}] must >= 0, but got: {length}")))?;
        let wanted = if i + 1 == op.rank { least(size) } else { size };
        if have > 0 && have < wanted {
            let at = x.rank() - op.rank + i;
            let why = format!("Input dimension {at} must have length of at least {wanted} but got: {have}");
            return Err(Failure::invalid(why));
        }
        sizes.push(size);
    }
    Ok(sizes)
}

/// The number of frequencies of a real signal of that length.
#[inline]
fn frequencies(length: usize) -> usize {
    if length == 0 { 0 } else { length / 2 + 1 }
}

/// The input's shape with its last dimensions replaced by `sizes`.
fn resized(x: &Tensor, sizes: &[usize]) -> Shape {
    x.dims()[..x.rank() - sizes.len()].iter().chain(sizes).copied().collect()
}

/// The elements of `x` whose indices in the last dimensions are within `sizes`.
fn beginning<T: Copy>(x: &[T], dims: &[usize], sizes: &[usize], wide: impl Fn(T) -> Number) -> Result<Vec<Number>> {
    let (each, kept) = (product(dims), product(sizes));
    let count = x.len().checked_div(each).unwrap_or(0).saturating_mul(kept);
    memory::admit(count.saturating_mul(size_of::<Number>()))?;
    let mut out = Vec::with_capacity(count);
    let mut pace = Pace::new();
    let (&[.., columns], &[.., width]) = (dims, sizes) else { return Ok(out) };
    for block in x.chunks_exact(each.max(1)) {
        // The rows of a block, by their indices in the outer dimensions.
        for row in 0..kept.checked_div(width).unwrap_or(0) {
            pace.go(width + 4);
            let (mut rest, mut at, mut stride) = (row, 0, 1);
            for (&size, &dim) in sizes.iter().zip(dims).rev().skip(1) {
                at += rest % size * stride;
                rest /= size;
                stride *= dim;
            }
            out.extend(block[at * columns..][..width].iter().map(|&x| wide(x)));
        }
    }
    Ok(out)
}

fn from_real<T: Pair<Part: Into<f64>>>(
    op: Transform,
    x: &Tensor,
    length: &Tensor,
    plans: &mut Plans,
) -> Result<Tensor> {
    let sizes = lengths(op, x, length, |length| length)?;
    let (last, outer) = sizes.split_last().expect("a transform has a dimension");
    let shape = resized(x, &[outer, &[frequencies(*last)]].concat());
    if x.is_empty() {
        return Tensor::zeros(T::DTYPE, shape);
    }
    resized(x, &sizes).checked_elements(DType::C128)?;
    let dims = innermost(x, op.rank)?;
    let mut numbers = beginning(x.slice::<T::Part>()?, &dims, &sizes, |re| Complex { re: re.into(), im: 0.0 })?;
    transform(&mut numbers, &sizes, sizes.len(), plans)?;
    let mut out = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
    let mut pace = Pace::new();
    for row in numbers.chunks_exact((*last).max(1)) {
        pace.go(row.len());
        out.extend(row[..frequencies(*last)].iter().map(|&number| T::from_wide(number)));
    }
    Ok(Tensor::from_vec(shape, out))
}

fn to_real<T: Pair>(op: Transform, x: &Tensor, length: &Tensor, plans: &mut Plans) -> Result<Tensor> {
    let sizes = lengths(op, x, length, frequencies)?;
    let (&last, outer) = sizes.split_last().expect("a transform has a dimension");
    let shape = resized(x, &sizes);
    if x.is_empty() || product(&sizes) == 0 {
        return Tensor::zeros(T::DTYPE.real(), shape);
    }
    let elements = shape.checked_elements(T::DTYPE.real())?;
    let stated = [outer, &[frequencies(last)]].concat();
    let mut numbers = beginning(x.slice::<T>()?, &innermost(x, op.rank)?, &stated, |x| x.wide())?;
    // The outer dimensions first, which leaves in each row the spectrum of a real signal.
    transform(&mut numbers, &stated, outer.len(), plans)?;
    let mut plan = plans.of(last)?;
    let mut line = vec![ZERO; last];
    let mut out = Vec::with_capacity(elements);
    let mut pace = Pace::new();
    for row in numbers.chunks_exact(stated[outer.len()]) {
        pace.go(4 * last);
        line[..row.len()].copy_from_slice(row);
        // The spectrum of a real signal is conjugate-symmetric. Parts of the input that contradict this are ignored.
        line[0].im = 0.0;
        for (k, to) in line.iter_mut().enumerate().skip(row.len()) {
            *to = row[last - k].conj();
        }
        if last.is_multiple_of(2) {
            line[last / 2].im = 0.0;
        }
        plan.apply(&mut line);
        out.extend(line.iter().map(|number| T::part(number.re)));
    }
    Ok(Tensor::from_vec(shape, out))
}

/// Transforms over the first `axes` of `dims`, the last dimensions of the numbers.
fn transform(numbers: &mut [Number], dims: &[usize], axes: usize, plans: &mut Plans) -> Result<()> {
    if numbers.is_empty() {
        return Ok(());
    }
    let mut pace = Pace::new();
    for axis in 0..axes {
        let (length, stride) = (dims[axis], product(&dims[axis + 1..]));
        let mut plan = plans.of(length)?;
        if stride == 1 {
            for line in numbers.chunks_exact_mut(length) {
                pace.go(8 * length);
                plan.apply(line);
            }
            continue;
        }
        memory::admit(length.saturating_mul(size_of::<Number>()))?;
        let mut line = vec![ZERO; length];
        for block in numbers.chunks_exact_mut(length * stride) {
            for first in 0..stride {
                pace.go(8 * length);
                for (to, &from) in line.iter_mut().zip(block[first..].iter().step_by(stride)) {
                    *to = from;
                }
                plan.apply(&mut line);
                for (&from, to) in line.iter().zip(block[first..].iter_mut().step_by(stride)) {
                    *to = from;
                }
            }
        }
    }
    Ok(())
}

/// The plans of a kernel, all of one direction. A plan takes longer than a transform by it.
struct Plans {
    direction: FftDirection,
    kept: VecDeque<Arc<dyn Fft<f64>>>,
}

impl Plans {
    fn new(is_inverse: bool) -> Plans {
        let direction = if is_inverse { FftDirection::Inverse } else { FftDirection::Forward };
        Plans { direction, kept: VecDeque::new() }
    }

    fn of(&mut self, length: usize) -> Result<Plan> {
        let fft = match self.kept.iter().find(|fft| fft.len() == length) {
            Some(fft) => Arc::clone(fft),
            None => self.make(length)?,
        };
        let scratch = fft.get_inplace_scratch_len();
        memory::admit(scratch.saturating_mul(size_of::<Number>()))?;
        Ok(Plan { fft, scratch: vec![ZERO; scratch] })
    }

    fn make(&mut self, length: usize) -> Result<Arc<dyn Fft<f64>>> {
        // A convolution, which other lengths may take, has tables of two or three lines of twice the length or more.
        let lines = if length.is_power_of_two() { 2 } else { 6 };
        memory::admit(length.next_power_of_two().saturating_mul(lines * size_of::<Number>()))?;
        let fft = planned(length, self.direction);
        if length <= MAX_WHOLE {
            self.kept.truncate(MAX_PLANS - 1);
            self.kept.push_front(Arc::clone(&fft));
        }
        Ok(fft)
    }
}

/// The algorithm for lines of one length, and the memory that it works in.
struct Plan {
    fft: Arc<dyn Fft<f64>>,
    scratch: Vec<Number>,
}

impl Plan {
    /// Transforms a line; the inverse divides by the length.
    fn apply(&mut self, line: &mut [Number]) {
        self.fft.process_with_scratch(line, &mut self.scratch);
        if self.fft.fft_direction() == FftDirection::Inverse {
            let scale = 1.0 / line.len() as f64;
            line.iter_mut().for_each(|number| *number *= scale);
        }
    }
}

/// The algorithm for a length. A long line is a matrix of shorter ones or, if its length is prime, a convolution whose length is
/// a power of two.
fn planned(length: usize, direction: FftDirection) -> Arc<dyn Fft<f64>> {
    if length <= MAX_WHOLE {
        return FftPlanner::new().plan_fft(length, direction);
    }
    let part = |length| Arc::new(Interruptible(planned(length, direction)));
    match (2..=length.isqrt()).rev().find(|&width| length.is_multiple_of(width)) {
        Some(width) => Arc::new(MixedRadix::new(part(width), part(length / width))),
        None => Arc::new(BluesteinsAlgorithm::new(length, planned((2 * length).next_power_of_two(), direction))),
    }
}

/// A part of a longer transform: checks for cancellation before each of its lines.
struct Interruptible(Arc<dyn Fft<f64>>);

impl Length for Interruptible {
    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Direction for Interruptible {
    fn fft_direction(&self) -> FftDirection {
        self.0.fft_direction()
    }
}

impl Fft<f64> for Interruptible {
    fn process_with_scratch(&self, lines: &mut [Number], scratch: &mut [Number]) {
        for line in lines.chunks_exact_mut(self.len()) {
            look();
            self.0.process_with_scratch(line, scratch);
        }
    }

    fn process_outofplace_with_scratch(&self, from: &mut [Number], to: &mut [Number], scratch: &mut [Number]) {
        for (from, to) in from.chunks_exact_mut(self.len()).zip(to.chunks_exact_mut(self.len())) {
            look();
            self.0.process_outofplace_with_scratch(from, to, scratch);
        }
    }

    fn process_immutable_with_scratch(&self, from: &[Number], to: &mut [Number], scratch: &mut [Number]) {
        for (from, to) in from.chunks_exact(self.len()).zip(to.chunks_exact_mut(self.len())) {
            look();
            self.0.process_immutable_with_scratch(from, to, scratch);
        }
    }

    fn get_inplace_scratch_len(&self) -> usize {
        self.0.get_inplace_scratch_len()
    }

    fn get_outofplace_scratch_len(&self) -> usize {
        self.0.get_outofplace_scratch_len()
    }

    fn get_immutable_scratch_len(&self) -> usize {
        self.0.get_immutable_scratch_len()
    }
}

#[cfg(test)]
mod tests {
    use meshtf_loops::turn::LOOKS;

    use super::*;

    /// The number at index `k` of the transform by definition: a sum over all elements.
    fn directly(line: &[Number], k: usize) -> Number {
        let n = line.len();
        let root = |part: f64| Complex::cis(-std::f64::consts::TAU * part);
        (0..n).fold(ZERO, |sum, j| sum + line[j] * root((j * k % n) as f64 / n as f64))
    }

    fn far(a: &Number, b: &Number) -> f64 {
        (a.re - b.re).abs().max((a.im - b.im).abs())
    }

    /// Compares every `step`-th number of a transform, and all of the way back.
    fn check(n: usize, step: usize) {
        let line: Vec<Number> =
            (0..n).map(|k| Complex { re: (k * 7 % 11) as f64 - 5.0, im: (k * 3 % 5) as f64 / 4.0 }).collect();
        let mut got = line.clone();
        Plans::new(false).of(n).unwrap().apply(&mut got);
        let worst = (0..n).step_by(step).map(|k| far(&got[k], &directly(&line, k))).fold(0.0, f64::max);
        assert!(worst < 1e-9 * n as f64, "{n}: {worst}");
        Plans::new(true).of(n).unwrap().apply(&mut got);
        let worst = got.iter().zip(&line).map(|(a, b)| far(a, b)).fold(0.0, f64::max);
        assert!(worst < 1e-11, "{n} back: {worst}");
    }

    #[test]
    fn every_length_is_transformed_and_back() {
        for n in (1..70).chain([97, 128, 243, 1000, 1009]) {
            check(n, 1);
        }
    }

    #[test]
    fn long_lines_are_transformed_in_parts_that_check_for_cancellation() {
        // A power of two, a product, the next prime, and its double.
        for (n, parts) in [(1 << 17, 256), (3 << 16, 384), (65_537, 2 * 256), (131_074, 2 * 256)] {
            let before = LOOKS.get();
            check(n, 20_011);
            assert!(LOOKS.get() - before >= 2 * parts, "{n}: {}", LOOKS.get() - before);
        }
    }

    #[test]
    fn few_plans_are_kept() {
        let mut plans = Plans::new(false);
        for length in (1..20).chain([MAX_WHOLE + 1, 19, 18]) {
            plans.of(length).unwrap();
        }
        let kept: Vec<usize> = plans.kept.iter().map(|fft| fft.len()).collect();
        assert_eq!(kept, [19, 18, 17, 16, 15, 14, 13, 12]);
    }
}
