//! Fourier transforms over the last one, two or three dimensions: FFT, IFFT, RFFT, IRFFT and their 2D and 3D forms.
//!
//! The crate rustfft is not used: it enables features of crates that the matrix library shares, and these would be built
//! twice. A length that is a power of two takes the radix-2 algorithm; any other length is a convolution of such a length
//! (Bluestein's algorithm). Everything is computed in float64 and rounded once.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Complex, DType, Shape, Tensor, with_complex};

use super::call::{input_dtype, kernel as call, output_dtype, product, vector};
use super::math::Pair;
use super::{HostKernel, KernelNode, Registry};

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
    let found = if !fits || !complex.is_complex() {
        None
    } else if op.is_real {
        with_complex!(complex, T => match op.is_inverse {
            true => call(move |[x, length]| to_real::<T>(op, &x, &length)),
            false => call(move |[x, length]| from_real::<T>(op, &x, &length)),
        })
    } else {
        with_complex!(complex, T => call(move |[x]| {
            let dims = innermost(&x, op.rank)?;
            let mut numbers = widened(x.slice::<T>()?.iter().map(|x| x.wide()), x.len())?;
            transform(&mut numbers, &dims, op.is_inverse)?;
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

fn from_real<T: Pair<Part: Into<f64>>>(op: Transform, x: &Tensor, length: &Tensor) -> Result<Tensor> {
    let sizes = lengths(op, x, length, |length| length)?;
    let (last, outer) = sizes.split_last().expect("a transform has a dimension");
    let shape = resized(x, &[outer, &[frequencies(*last)]].concat());
    if x.is_empty() {
        return Tensor::zeros(T::DTYPE, shape);
    }
    resized(x, &sizes).checked_elements(DType::C128)?;
    let dims = innermost(x, op.rank)?;
    let mut numbers = beginning(x.slice::<T::Part>()?, &dims, &sizes, |re| Complex { re: re.into(), im: 0.0 })?;
    transform(&mut numbers, &sizes, false)?;
    let mut out = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
    let mut pace = Pace::new();
    for row in numbers.chunks_exact((*last).max(1)) {
        pace.go(row.len());
        out.extend(row[..frequencies(*last)].iter().map(|&number| T::from_wide(number)));
    }
    Ok(Tensor::from_vec(shape, out))
}

fn to_real<T: Pair>(op: Transform, x: &Tensor, length: &Tensor) -> Result<Tensor> {
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
    transform_axes(&mut numbers, &stated, outer.len(), true)?;
    let plan = Plan::of(last)?;
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
        plan.apply(&mut line, true, &mut pace);
        out.extend(line.iter().map(|number| T::part(number.re)));
    }
    Ok(Tensor::from_vec(shape, out))
}

/// Transforms over all of `dims`, the last dimensions of the numbers.
fn transform(numbers: &mut [Number], dims: &[usize], is_inverse: bool) -> Result<()> {
    transform_axes(numbers, dims, dims.len(), is_inverse)
}

/// Transforms over the first `axes` of `dims`, the last dimensions of the numbers.
fn transform_axes(numbers: &mut [Number], dims: &[usize], axes: usize, is_inverse: bool) -> Result<()> {
    if numbers.is_empty() {
        return Ok(());
    }
    let mut pace = Pace::new();
    for axis in 0..axes {
        let (length, stride) = (dims[axis], product(&dims[axis + 1..]));
        let plan = Plan::of(length)?;
        memory::admit(length.saturating_mul(size_of::<Number>()))?;
        let mut line = vec![ZERO; length];
        for block in numbers.chunks_exact_mut(length * stride) {
            for first in 0..stride {
                pace.go(8 * length);
                for (to, &from) in line.iter_mut().zip(block[first..].iter().step_by(stride)) {
                    *to = from;
                }
                plan.apply(&mut line, is_inverse, &mut pace);
                for (&from, to) in line.iter().zip(block[first..].iter_mut().step_by(stride)) {
                    *to = from;
                }
            }
        }
    }
    Ok(())
}

/// The algorithm for lines of one length.
enum Plan {
    Halved(Halved),
    Convolved(Box<Convolved>),
}

impl Plan {
    fn of(length: usize) -> Result<Plan> {
        Ok(if length.is_power_of_two() {
            Plan::Halved(Halved::of(length)?)
        } else {
            Plan::Convolved(Box::new(Convolved::of(length)?))
        })
    }

    /// Transforms a line; the inverse divides by the length.
    fn apply(&self, line: &mut [Number], is_inverse: bool, pace: &mut Pace) {
        // The inverse transform is the conjugate of the transform of the conjugate.
        let turn = |line: &mut [Number], scale: f64| {
            line.iter_mut().for_each(|x| *x = Complex { re: x.re * scale, im: -x.im * scale });
        };
        if is_inverse {
            turn(line, 1.0);
        }
        match self {
            Plan::Halved(plan) => plan.apply(line, pace),
            Plan::Convolved(plan) => plan.apply(line, pace),
        }
        if is_inverse {
            turn(line, 1.0 / line.len() as f64);
        }
    }
}

/// A length that is a power of two: the radix-2 algorithm.
struct Halved {
    /// The first half of the roots of unity, clockwise.
    roots: Vec<Number>,
}

/// The root of unity at `part` of a turn, clockwise.
#[inline]
fn root(part: f64) -> Number {
    let (sin, cos) = (std::f64::consts::TAU * part).sin_cos();
    Complex { re: cos, im: -sin }
}

impl Halved {
    fn of(length: usize) -> Result<Halved> {
        memory::admit(length / 2 * size_of::<Number>())?;
        let mut pace = Pace::new();
        let roots = (0..length / 2).map(|k| {
            pace.go(8);
            root(k as f64 / length as f64)
        });
        Ok(Halved { roots: roots.collect() })
    }

    fn apply(&self, line: &mut [Number], pace: &mut Pace) {
        let length = line.len();
        if length < 2 {
            return;
        }
        let shift = usize::BITS - length.trailing_zeros();
        for i in 0..length {
            let other = i.reverse_bits() >> shift;
            if i < other {
                line.swap(i, other);
            }
        }
        let mut half = 1;
        while half < length {
            let step = length / (2 * half);
            for block in line.chunks_exact_mut(2 * half) {
                pace.go(2 * half);
                let (low, high) = block.split_at_mut(half);
                for ((low, high), &root) in low.iter_mut().zip(high).zip(self.roots.iter().step_by(step)) {
                    let turned = *high * root;
                    (*low, *high) = (*low + turned, *low - turned);
                }
            }
            half *= 2;
        }
    }
}

/// Any other length: a convolution with a chirp (Bluestein's algorithm).
struct Convolved {
    inner: Halved,
    chirp: Vec<Number>,
    /// The transform of the conjugate chirp, divided by its length.
    spectrum: Vec<Number>,
}

impl Convolved {
    fn of(length: usize) -> Result<Convolved> {
        let inner_length = (2 * length).next_power_of_two();
        // Memory for the roots, the spectrum and the line of each application.
        memory::admit(inner_length.saturating_mul(3).saturating_mul(size_of::<Number>()))?;
        let mut pace = Pace::new();
        let chirp: Vec<Number> = (0..length)
            .map(|k| {
                pace.go(8);
                let square = (k as u128 * k as u128 % (2 * length as u128)) as f64;
                root(square / (2 * length) as f64)
            })
            .collect();
        let inner = Halved::of(inner_length)?;
        let mut spectrum = vec![ZERO; inner_length];
        for (k, number) in chirp.iter().enumerate() {
            let number = number.conj() / inner_length as f64;
            spectrum[k] = number;
            if k > 0 {
                spectrum[inner_length - k] = number;
            }
        }
        inner.apply(&mut spectrum, &mut pace);
        Ok(Convolved { inner, chirp, spectrum })
    }

    fn apply(&self, line: &mut [Number], pace: &mut Pace) {
        let mut longer = vec![ZERO; self.spectrum.len()];
        for ((to, &from), &chirp) in longer.iter_mut().zip(&*line).zip(&self.chirp) {
            *to = from * chirp;
        }
        self.inner.apply(&mut longer, pace);
        // Conjugated, so that the same transform is the inverse.
        longer.iter_mut().zip(&self.spectrum).for_each(|(x, &by)| *x = (*x * by).conj());
        self.inner.apply(&mut longer, pace);
        for ((to, &from), &chirp) in line.iter_mut().zip(&longer).zip(&self.chirp) {
            *to = from.conj() * chirp;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The transform by definition: a sum over all elements for each frequency.
    fn directly(line: &[Number]) -> Vec<Number> {
        let n = line.len();
        let at = |k: usize| (0..n).fold(ZERO, |sum, j| sum + line[j] * root((j * k % n) as f64 / n as f64));
        (0..n).map(at).collect()
    }

    #[test]
    fn every_length_is_transformed_and_back() {
        let mut pace = Pace::new();
        for n in (1..70).chain([97, 128, 243, 1000, 1009]) {
            let line: Vec<Number> =
                (0..n).map(|k| Complex { re: (k * 7 % 11) as f64 - 5.0, im: (k * 3 % 5) as f64 / 4.0 }).collect();
            let plan = Plan::of(n).unwrap();
            let mut got = line.clone();
            plan.apply(&mut got, false, &mut pace);
            let far = |a: &Number, b: &Number| (a.re - b.re).abs().max((a.im - b.im).abs());
            let wanted = directly(&line);
            let worst = got.iter().zip(&wanted).map(|(a, b)| far(a, b)).fold(0.0, f64::max);
            assert!(worst < 1e-9 * n as f64, "{n}: {worst}");
            plan.apply(&mut got, true, &mut pace);
            let worst = got.iter().zip(&line).map(|(a, b)| far(a, b)).fold(0.0, f64::max);
            assert!(worst < 1e-11, "{n} back: {worst}");
        }
    }
}
