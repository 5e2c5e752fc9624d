//! Square roots and logarithms of matrices, by the Schur form: a unitary matrix and an upper triangular one, to which the
//! function is applied; exponentials by a Padé approximant. Everything is computed in complex128 for every dtype.

use std::iter::successors;

use meshtf_loops::turn::{look, paced};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Complex, DType, Tensor};

use super::{Lu, Scalar, product, square};

type C = Complex<f64>;

const ZERO: C = C::new(0.0, 0.0);
const ONE: C = C::new(1.0, 0.0);

#[inline]
fn length(x: C) -> f64 {
    x.re.hypot(x.im)
}

/// The square root with a non-negative real part.
#[inline]
fn square_root(x: C) -> C {
    if x == ZERO {
        return ZERO;
    }
    let greater = ((length(x) + x.re.abs()) / 2.0).sqrt();
    let other = x.im / (2.0 * greater);
    if x.re >= 0.0 { C::new(greater, other) } else { C::new(other.abs(), greater.copysign(x.im)) }
}

/// A number that is converted to complex128 for the computation.
pub(super) trait Wide: Scalar {
    fn widened(self) -> C;
    fn narrowed(wide: C) -> Self;
}

macro_rules! wide {
    ($($real:ty)*) => {
        $(impl Wide for $real {
            #[inline]
            fn widened(self) -> C {
                C::new(self.into(), 0.0)
            }
            #[inline]
            fn narrowed(wide: C) -> Self {
                wide.re as $real
            }
        }

        impl Wide for Complex<$real> {
            #[inline]
            fn widened(self) -> C {
                C::new(self.re.into(), self.im.into())
            }
            #[inline]
            fn narrowed(wide: C) -> Self {
                Complex { re: wide.re as $real, im: wide.im as $real }
            }
        })*
    };
}

wide!(f32 f64);

/// The principal square root of each matrix; NaN for a real matrix without a real root.
pub(super) fn sqrt<T: Wide>(input: &Tensor) -> Result<Tensor> {
    each::<T>(input, |form| {
        let has_real = |i: usize| {
            let value = form.t[i * form.n + i];
            value.re >= 0.0 || value.im.abs() > 1e-10 * value.re.abs()
        };
        let is_real = !matches!(T::DTYPE, DType::C64 | DType::C128);
        (!is_real || (0..form.n).all(has_real)).then(|| root(&form.t, form.n))
    })
}

/// The principal logarithm of each matrix; NaN if it is singular.
pub(super) fn log<T: Wide>(input: &Tensor) -> Result<Tensor> {
    each::<T>(input, |form| log_of(&form.t, form.n))
}

/// The exponential of each matrix, by scaling and squaring (Higham, The scaling and squaring method for the matrix exponential
/// revisited, 2005): halved until the approximant of degree 13 is as exact as the numbers, then squared as many times.
pub(super) fn exp<T: Wide>(input: &Tensor) -> Result<Tensor> {
    let (batch, n) = square(input)?;
    let elements = input.shape().checked_elements(T::DTYPE)?;
    memory::admit(elements.saturating_mul(size_of::<T>()).saturating_add(n.saturating_mul(n).saturating_mul(10 * 16)))?;
    let mut out = Vec::with_capacity(elements);
    let count = if elements == 0 { 0 } else { product(batch) };
    for matrix in paced(input.slice::<T>()?.chunks_exact((n * n).max(1)).take(count), n * n) {
        let matrix: Vec<C> = matrix.iter().map(|x| x.widened()).collect();
        if matrix.iter().all(|x| x.re.is_finite() && x.im.is_finite()) {
            out.extend(exponential(matrix, n).into_iter().map(T::narrowed));
        } else {
            out.extend(std::iter::repeat_n(T::narrowed(C::new(f64::NAN, f64::NAN)), n * n));
        }
    }
    Ok(Tensor::from_vec(input.shape().clone(), out))
}

fn exponential(mut a: Vec<C>, n: usize) -> Vec<C> {
    /// The coefficients of the approximant, which are those of its numerator and, with signs, of its denominator.
    const TERMS: [f64; 14] = [
        64_764_752_532_480_000.0,
        32_382_376_266_240_000.0,
        7_771_770_303_897_600.0,
        1_187_353_796_428_800.0,
        129_060_195_264_000.0,
        10_559_470_521_600.0,
        670_442_572_800.0,
        33_522_128_640.0,
        1_323_241_920.0,
        40_840_800.0,
        960_960.0,
        16_380.0,
        182.0,
        1.0,
    ];
    /// The largest sum of a column for which the approximant has no error.
    const LARGEST: f64 = 5.371_920_351_148_152;
    let sums = (0..n).map(|j| (0..n).map(|i| length(a[i * n + j])).sum::<f64>());
    let halvings = (sums.fold(0.0, f64::max) / LARGEST).log2().ceil().clamp(0.0, 2000.0) as i32;
    a.iter_mut().for_each(|x| *x *= 2f64.powi(-halvings));
    let square = multiplied(&a, &a, n);
    let mut power = vec![ZERO; n * n];
    (0..n).for_each(|i| power[i * n + i] = ONE);
    let (mut even, mut odd) = (vec![ZERO; n * n], vec![ZERO; n * n]);
    for pair in TERMS.chunks_exact(2) {
        even.iter_mut().zip(&power).for_each(|(sum, x)| *sum += x * pair[0]);
        odd.iter_mut().zip(&power).for_each(|(sum, x)| *sum += x * pair[1]);
        power = multiplied(&power, &square, n);
    }
    let odd = multiplied(&a, &odd, n);
    let above: Vec<C> = even.iter().zip(&odd).map(|(x, y)| x + y).collect();
    let below: Vec<C> = even.iter().zip(&odd).map(|(x, y)| x - y).collect();
    (0..halvings).fold(Lu::of(&below, n).solve(&above, n), |x, _| multiplied(&x, &x, n))
}

/// Applies a function of the triangular factor to each matrix; a result of `None` becomes NaN.
fn each<T: Wide>(input: &Tensor, f: impl Fn(&Schur) -> Option<Vec<C>>) -> Result<Tensor> {
    let (batch, n) = square(input)?;
    let elements = input.shape().checked_elements(T::DTYPE)?;
    memory::admit(elements.saturating_mul(size_of::<T>()).saturating_add(n.saturating_mul(n).saturating_mul(8 * 16)))?;
    let mut out = Vec::with_capacity(elements);
    let count = if elements == 0 { 0 } else { product(batch) };
    for matrix in paced(input.slice::<T>()?.chunks_exact((n * n).max(1)).take(count), n * n) {
        let matrix: Vec<C> = matrix.iter().map(|x| x.widened()).collect();
        let answer = match matrix.iter().all(|x| x.re.is_finite() && x.im.is_finite()) {
            true => {
                let form = Schur::of(matrix, n)?;
                f(&form).map(|t| form.turned_back(&t))
            }
            false => None,
        };
        match answer {
            Some(answer) => out.extend(answer.into_iter().map(T::narrowed)),
            None => out.extend(std::iter::repeat_n(T::narrowed(C::new(f64::NAN, f64::NAN)), n * n)),
        }
    }
    Ok(Tensor::from_vec(input.shape().clone(), out))
}

/// The Schur form of a matrix: q t qᴴ.
pub(super) struct Schur {
    pub(super) n: usize,
    pub(super) t: Vec<C>,
    pub(super) q: Vec<C>,
}

/// A rotation of two neighbouring rows that maps a pair of numbers to `[r, 0]`.
struct Rotation {
    a: C,
    b: C,
}

impl Rotation {
    #[inline]
    fn of(a: C, b: C) -> Rotation {
        let size = length(a).hypot(length(b));
        if size == 0.0 { Rotation { a: ONE, b: ZERO } } else { Rotation { a: a / size, b: b / size } }
    }

    /// Applies the rotation to rows `k` and `k + 1`, from column `from` on.
    #[inline]
    fn rows(&self, matrix: &mut [C], n: usize, k: usize, from: usize) {
        for j in from..n {
            let (x, y) = (matrix[k * n + j], matrix[(k + 1) * n + j]);
            matrix[k * n + j] = self.a.conj() * x + self.b.conj() * y;
            matrix[(k + 1) * n + j] = self.a * y - self.b * x;
        }
    }

    /// Applies the inverse to columns `k` and `k + 1`, in the rows before `to`.
    #[inline]
    fn columns(&self, matrix: &mut [C], n: usize, k: usize, to: usize) {
        for row in matrix.chunks_exact_mut(n).take(to) {
            let (x, y) = (row[k], row[k + 1]);
            row[k] = x * self.a + y * self.b;
            row[k + 1] = y * self.a.conj() - x * self.b.conj();
        }
    }
}

impl Schur {
    /// The Schur form of a matrix: reduction to Hessenberg form by Householder reflections, then shifted QR steps.
    pub(super) fn of(matrix: Vec<C>, n: usize) -> Result<Schur> {
        let mut q = vec![ZERO; n * n];
        (0..n).for_each(|i| q[i * n + i] = ONE);
        let mut form = Schur { n, t: matrix, q };
        form.reduce_to_hessenberg();
        form.reduce_to_triangle()?;
        Ok(form)
    }

    fn reduce_to_hessenberg(&mut self) {
        let n = self.n;
        for k in 0..n.saturating_sub(2) {
            look();
            let mut v: Vec<C> = (k + 1..n).map(|i| self.t[i * n + k]).collect();
            let whole = v.iter().map(|x| x.norm_sqr()).sum::<f64>().sqrt();
            if whole == 0.0 {
                continue;
            }
            let phase = if v[0] == ZERO { ONE } else { v[0] / length(v[0]) };
            v[0] += phase * whole;
            let size = v.iter().map(|x| x.norm_sqr()).sum::<f64>().sqrt();
            v.iter_mut().for_each(|x| *x /= size);
            for j in 0..n {
                let dot = v.iter().enumerate().map(|(i, x)| x.conj() * self.t[(k + 1 + i) * n + j]).sum::<C>() * 2.0;
                v.iter().enumerate().for_each(|(i, x)| self.t[(k + 1 + i) * n + j] -= *x * dot);
            }
            for matrix in [&mut self.t, &mut self.q] {
                for row in matrix.chunks_exact_mut(n) {
                    let dot = row[k + 1..].iter().zip(&v).map(|(y, x)| y * x).sum::<C>() * 2.0;
                    row[k + 1..].iter_mut().zip(&v).for_each(|(y, x)| *y -= dot * x.conj());
                }
            }
        }
    }

    fn reduce_to_triangle(&mut self) -> Result<()> {
        let n = self.n;
        let (mut high, mut tries) = (n.saturating_sub(1), 0);
        while high > 0 {
            look();
            let low = (1..=high).rev().find(|&k| self.is_split(k)).unwrap_or(0);
            if low > 0 {
                self.t[low * n + low - 1] = ZERO;
            }
            if low == high {
                (high, tries) = (high - 1, 0);
                continue;
            }
            tries += 1;
            if tries > 300 {
                return Err(Failure::new(Code::Internal, "the Schur decomposition of a matrix does not converge"));
            }
            self.step(low, high, tries % 11 == 10);
        }
        Ok(())
    }

    /// Whether the subdiagonal element in column `k - 1` is negligible.
    #[inline]
    fn is_split(&self, k: usize) -> bool {
        let at = |i: usize, j: usize| length(self.t[i * self.n + j]);
        let beside = at(k, k) + at(k - 1, k - 1);
        at(k, k - 1) <= f64::EPSILON * if beside == 0.0 { f64::MIN_POSITIVE } else { beside }
    }

    /// One QR step on rows and columns `low` to `high`.
    fn step(&mut self, low: usize, high: usize, is_stuck: bool) {
        let n = self.n;
        let at = |i: usize, j: usize| self.t[i * n + j];
        let shift = if is_stuck {
            at(high, high) + length(at(high, high - 1))
        } else {
            // The eigenvalue of the trailing 2 x 2 block that is closer to its last element.
            let (a, b, c, d) = (at(high - 1, high - 1), at(high - 1, high), at(high, high - 1), at(high, high));
            let (half, middle) = ((a - d) / 2.0, (a + d) / 2.0);
            let apart = square_root(half * half + b * c);
            let (one, other) = (middle + apart, middle - apart);
            if length(one - d) < length(other - d) { one } else { other }
        };
        let mut rotation = Rotation::of(at(low, low) - shift, at(low + 1, low));
        for k in low..high {
            if k > low {
                rotation = Rotation::of(self.t[k * n + k - 1], self.t[(k + 1) * n + k - 1]);
            }
            rotation.rows(&mut self.t, n, k, k.saturating_sub(1));
            rotation.columns(&mut self.t, n, k, (k + 3).min(high + 1));
            rotation.columns(&mut self.q, n, k, n);
            if k > low {
                self.t[(k + 1) * n + k - 1] = ZERO;
            }
        }
    }

    /// The matrix whose triangular factor is `t`.
    fn turned_back(&self, t: &[C]) -> Vec<C> {
        let n = self.n;
        let left = multiplied(&self.q, t, n);
        let mut adjoint = vec![ZERO; n * n];
        (0..n * n).for_each(|i| adjoint[i] = self.q[i % n * n + i / n].conj());
        multiplied(&left, &adjoint, n)
    }
}

pub(super) fn multiplied(a: &[C], b: &[C], n: usize) -> Vec<C> {
    let mut out = vec![ZERO; n * n];
    for (row, out) in a.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        look();
        for (&x, b) in row.iter().zip(b.chunks_exact(n)).filter(|(x, _)| **x != ZERO) {
            out.iter_mut().zip(b).for_each(|(out, y)| *out += x * y);
        }
    }
    out
}

/// The square root of an upper triangular matrix.
fn root(t: &[C], n: usize) -> Vec<C> {
    let mut r = vec![ZERO; n * n];
    for j in 0..n {
        look();
        r[j * n + j] = square_root(t[j * n + j]);
        for i in (0..j).rev() {
            let between = (i + 1..j).map(|k| r[i * n + k] * r[k * n + j]).sum::<C>();
            let rest = t[i * n + j] - between;
            r[i * n + j] = if rest == ZERO { ZERO } else { rest / (r[i * n + i] + r[j * n + j]) };
        }
    }
    r
}

/// The logarithm of an upper triangular matrix: takes square roots until the matrix is near one, and doubles the
/// logarithm as many times. `None` if the matrix is singular.
fn log_of(t: &[C], n: usize) -> Option<Vec<C>> {
    let from_one = |t: &[C]| {
        let off = |(i, x): (usize, &C)| if i % n == i / n { length(*x - ONE) } else { length(*x) };
        let size = |(row, own): (usize, &[C])| own.iter().enumerate().map(|(j, x)| off((row * n + j, x))).sum::<f64>();
        t.chunks_exact(n).enumerate().map(size).fold(0.0, f64::max)
    };
    if (0..n).any(|i| t[i * n + i] == ZERO) {
        return None;
    }
    let roots = successors(Some((0, t.to_vec())), |(count, t)| Some((count + 1, root(t, n))));
    let (count, t) = roots.take(200).find(|(_, t)| from_one(t) < 0.25)?;
    // With z = (t - 1) / (t + 1), log t = 2 (z + z³ / 3 + z⁵ / 5 + …).
    let z = quotient(&t, n);
    let square = multiplied(&z, &z, n);
    let (mut power, mut sum) = (z.clone(), z);
    for k in 1..16 {
        power = multiplied(&power, &square, n);
        sum.iter_mut().zip(&power).for_each(|(sum, x)| *sum += x / f64::from(2 * k + 1));
    }
    let doubled = 2f64.powi(count + 1);
    Some(sum.into_iter().map(|x| x * doubled).collect())
}

/// `(t + 1)⁻¹ (t - 1)` of an upper triangular matrix.
fn quotient(t: &[C], n: usize) -> Vec<C> {
    let one = |i: usize, j: usize| if i == j { ONE } else { ZERO };
    let mut z = vec![ZERO; n * n];
    for j in 0..n {
        look();
        for i in (0..=j).rev() {
            let rest = (i + 1..=j).map(|k| t[i * n + k] * z[k * n + j]).sum::<C>();
            z[i * n + j] = (t[i * n + j] - one(i, j) - rest) / (t[i * n + i] + ONE);
        }
    }
    z
}
