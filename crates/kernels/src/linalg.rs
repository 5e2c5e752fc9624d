//! Linear algebra on the two innermost dimensions, for every matrix of a batch: factorizations, determinants, inverses.
//!
//! Textbook methods rather than a library (faer, nalgebra): each can be cancelled between rows, requests its copies from
//! the memory budget, and reports TensorFlow's errors in TensorFlow's words.

mod banded;
mod cholesky;
mod function;
mod general;
mod least;
mod qr;
mod spectral;
mod tridiagonal;

use std::ops::{Add, Div, Mul, Neg, Sub};

use meshtf_loops::turn::{Pace, look, paced};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Complex, DType, Float, Numeric as _, Ring, Shape, Tensor, with_type};
use smallvec::smallvec;

use super::call::{input_dtype, ints, kernel as call, output_dtype, product, take};
use super::math::cast;
use super::real::{ln, sqrt};
use super::{HostKernel, Outputs, Registry};

/// A number with division: a float32, a float64 or a complex number.
trait Scalar:
    Ring + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// The type of its parts.
    type Real: Float + Scalar<Real = Self::Real>;
    /// The absolute value, for comparisons.
    fn size(self) -> f64;
    fn conj(self) -> Self;
    fn re(self) -> Self::Real;
    fn of(re: Self::Real) -> Self;
    /// The square of the absolute value.
    fn square(self) -> Self::Real;
    /// The polar form: a number of absolute value one and a real number, whose product is the number. For a real number:
    /// one and the number.
    fn turned(self) -> (Self, Self::Real);
}

macro_rules! scalar {
    ($($type:ty)*) => {
        $(impl Scalar for $type {
            type Real = $type;
            #[inline]
            fn size(self) -> f64 {
                f64::from(self.abs())
            }
            #[inline]
            fn conj(self) -> Self {
                self
            }
            #[inline]
            fn re(self) -> $type {
                self
            }
            #[inline]
            fn of(re: $type) -> Self {
                re
            }
            #[inline]
            fn square(self) -> $type {
                self * self
            }
            #[inline]
            fn turned(self) -> (Self, $type) {
                (1.0, self)
            }
        }

        impl Scalar for Complex<$type> {
            type Real = $type;
            #[inline]
            fn size(self) -> f64 {
                f64::from(self.re).hypot(self.im.into())
            }
            #[inline]
            fn conj(self) -> Self {
                Complex { re: self.re, im: -self.im }
            }
            #[inline]
            fn re(self) -> $type {
                self.re
            }
            #[inline]
            fn of(re: $type) -> Self {
                Complex { re, im: 0.0 }
            }
            #[inline]
            fn square(self) -> $type {
                self.re * self.re + self.im * self.im
            }
            #[inline]
            fn turned(self) -> (Self, $type) {
                let length = self.re.hypot(self.im);
                let unit = Complex { re: self.re / length, im: self.im / length };
                if length == 0.0 { (Complex::new(1.0, 0.0), 0.0) } else { (unit, length) }
            }
        })*
    };
}

scalar!(f32 f64);

macro_rules! with_scalar {
    ($dtype:expr, $t:ident => $body:expr) => {
        with_type!($dtype, $t => $body; F32 f32, F64 f64, C64 Complex<f32>, C128 Complex<f64>)
    };
}

/// Registers the ops on matrices.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("Cholesky", |node| Ok(with_scalar!(input_dtype(node, 0)?, T => call(|[input]| cholesky::<T>(input)))));
    ops.insert("MatrixDeterminant", |node| {
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(|[input]| determinant::<T>(&input))))
    });
    ops.insert("LogMatrixDeterminant", |node| {
        Ok(with_scalar!(input_dtype(node, 0)?, T => several(log_determinant::<T>)))
    });
    ops.insert("Lu", |node| {
        let rows = output_dtype(node, 1)?;
        Ok(with_scalar!(input_dtype(node, 0)?, T => several(move |input| factors::<T>(input, rows))))
    });
    ops.insert("Qr", |node| {
        let full = node.attrs.bool("full_matrices")?;
        Ok(with_scalar!(input_dtype(node, 0)?, T => several(move |input| qr::qr::<T>(input, full))))
    });
    ops.insert("SelfAdjointEigV2", |node| {
        let vectors = node.attrs.bool("compute_v")?;
        Ok(with_scalar!(input_dtype(node, 0)?, T => several(move |input| spectral::eigen::<T>(input, vectors))))
    });
    ops.insert("Svd", |node| {
        let (vectors, full) = (node.attrs.bool("compute_uv")?, node.attrs.bool("full_matrices")?);
        Ok(with_scalar!(input_dtype(node, 0)?, T => several(move |input| spectral::svd::<T>(input, vectors, full))))
    });
    ops.insert("MatrixInverse", |node| {
        let adjoint = node.attrs.bool("adjoint")?;
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(move |[input]| inverse::<T>(&input, adjoint))))
    });
    ops.insert("SelfAdjointEig", |node| {
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(|[input]: [Tensor; 1]| spectral::values_above::<T>(&input))))
    });
    ops.insert("Eig", |node| {
        let vectors = node.attrs.bool("compute_v")?;
        let output = output_dtype(node, 0)?;
        Ok(with_scalar!(input_dtype(node, 0)?, T => several(move |input| {
            general::eigen::<T>(input, vectors)?.into_iter().map(|part| cast(part, output)).collect()
        })))
    });
    ops.insert("CholeskyGrad", |node| {
        Ok(with_type!(input_dtype(node, 0)?, T => call(|[factor, gradient]: [Tensor; 2]| {
            cholesky::gradient::<T>(&factor, &gradient)
        }); F32 f32, F64 f64))
    });
    ops.insert("BandedTriangularSolve", |node| {
        let (lower, adjoint) = (node.attrs.bool("lower")?, node.attrs.bool("adjoint")?);
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(move |[matrix, rhs]: [Tensor; 2]| {
            banded::solve::<T>(&matrix, &rhs, lower, adjoint)
        })))
    });
    ops.insert("MatrixExponential", |node| {
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(|[input]: [Tensor; 1]| function::exp::<T>(&input))))
    });
    ops.insert("MatrixLogarithm", |node| {
        Ok(with_type!(input_dtype(node, 0)?, T => call(|[input]: [Tensor; 1]| function::log::<T>(&input));
            C64 Complex<f32>, C128 Complex<f64>))
    });
    ops.insert("MatrixSquareRoot", |node| {
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(|[input]: [Tensor; 1]| function::sqrt::<T>(&input))))
    });
    ops.insert("TridiagonalSolve", |node| {
        if node.attrs.bool("perturb_singular")? {
            let text = "TridiagonalSolve perturbs no singular matrix: perturb_singular must be false";
            return Err(Failure::new(Code::Unimplemented, text));
        }
        let pivots = node.attrs.bool("partial_pivoting")?;
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(move |[diagonals, rhs]: [Tensor; 2]| {
            tridiagonal::solve::<T>(&diagonals, &rhs, pivots)
        })))
    });
    ops.insert("TridiagonalMatMul", |node| {
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(|inputs: [Tensor; 4]| tridiagonal::multiply::<T>(&inputs))))
    });
    ops.insert("MatrixSolve", |node| {
        let adjoint = node.attrs.bool("adjoint")?;
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(move |[matrix, rhs]| solve::<T>(&matrix, rhs, adjoint))))
    });
    ops.insert("MatrixSolveLs", |node| {
        let fast = node.attrs.bool("fast")?;
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(move |[matrix, rhs, l2]: [Tensor; 3]| {
            if l2.rank() != 0 {
                return Err(Failure::invalid(format!("l2_regularizer must be scalar, got shape {}", l2.shape())));
            }
            least::solve::<T>(&matrix, &rhs, l2.item::<f64>()?, fast)
        })))
    });
    ops.insert("MatrixTriangularSolve", |node| {
        let (lower, adjoint) = (node.attrs.bool("lower")?, node.attrs.bool("adjoint")?);
        Ok(with_scalar!(input_dtype(node, 0)?, T => call(move |[matrix, rhs]| {
            triangular_solve::<T>(&matrix, rhs, lower, adjoint)
        })))
    });
}

/// A kernel of one input and several outputs.
fn several(f: impl Fn(&Tensor) -> Result<Outputs> + Send + 'static) -> HostKernel {
    Box::new(move |inputs| {
        let [input] = take(inputs)?;
        f(&input)
    })
}

/// The batch dimensions of matrices, and their numbers of rows and columns.
fn rectangles(tensor: &Tensor) -> Result<(&[usize], usize, usize)> {
    match tensor.dims() {
        [batch @ .., rows, columns] => Ok((batch, *rows, *columns)),
        _ => Err(Failure::invalid(format!("Input tensor must have rank >= 2, got shape {}", tensor.shape()))),
    }
}

/// The batch dimensions of square matrices, and their size.
fn square(tensor: &Tensor) -> Result<(&[usize], usize)> {
    match tensor.dims() {
        [batch @ .., rows, columns] if rows == columns => Ok((batch, *rows)),
        [_, _, ..] => Err(Failure::invalid(format!("Input matrix must be square. Its shape is {}", tensor.shape()))),
        _ => Err(Failure::invalid(format!("Input tensor must have rank >= 2, got shape {}", tensor.shape()))),
    }
}

/// The matrices of a batch; none if the matrices have no elements.
fn matrices<T>(elements: &[T], size: usize) -> impl Iterator<Item = &[T]> {
    elements.chunks_exact((size * size).max(1))
}

/// Admits the memory of the answer and, during the computation, of `matrices` more matrices of the input's size.
fn admit_beside<T: Scalar>(answer: &Shape, matrices: usize, input: &Tensor) -> Result<()> {
    let elements = answer.checked_elements(T::DTYPE)?;
    let each = if input.is_empty() { 0 } else { input.dims()[input.rank() - 2..].iter().product() };
    memory::admit((elements + matrices * each) * size_of::<T>())
}

/// The transpose, conjugated if complex.
fn adjoint_of<T: Scalar>(matrix: &[T], rows: usize, columns: usize) -> Vec<T> {
    let mut turned = transposed(matrix, rows, columns);
    turned.iter_mut().for_each(|x| *x = x.conj());
    turned
}

fn transposed<T: Copy>(matrix: &[T], rows: usize, columns: usize) -> Vec<T> {
    let mut turned = Vec::with_capacity(matrix.len());
    if rows > 0 {
        paced(0..columns, 8 * rows).for_each(|j| turned.extend(matrix[j..].iter().step_by(columns)));
    }
    turned
}

/// The lower Cholesky factor, computed from the lower half alone. As in TensorFlow, a matrix without one gives NaN, not
/// an error.
fn cholesky<T: Scalar>(mut input: Tensor) -> Result<Tensor> {
    let (_, n) = square(&input)?;
    for a in paced(input.slice_mut::<T>()?.chunks_exact_mut((n * n).max(1)), n * n) {
        let is_positive = factor(a, n);
        for (i, row) in a.chunks_exact_mut(n.max(1)).enumerate() {
            if !is_positive {
                row[..=i].fill(T::of(T::Real::from_f64(f64::NAN)));
            }
            row[i + 1..].fill(T::ZERO);
        }
    }
    Ok(input)
}

/// Overwrites the lower half of the matrix with its lower Cholesky factor; false if the matrix is not positive definite.
fn factor<T: Scalar>(a: &mut [T], n: usize) -> bool {
    let mut pace = Pace::new();
    for j in 0..n {
        let (above, rest) = a.split_at_mut(j * n);
        let row = &mut rest[..n];
        for k in 0..j {
            pace.go(k);
            row[k] = (row[k] - dot(&row[..k], &above[k * n..][..k])) / above[k * n + k];
        }
        let pivot = (row[j] - dot(&row[..j], &row[..j])).re();
        if pivot <= T::Real::ZERO {
            return false;
        }
        row[j] = T::of(sqrt(pivot));
    }
    true
}

/// The sum of the products of `a` and the conjugates of `b`.
fn dot<T: Scalar>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).fold(T::ZERO, |sum, (&a, &b)| sum + a * b.conj())
}

/// An LU factorization with partial pivoting.
struct Lu<T> {
    n: usize,
    /// The lower factor below the diagonal (its diagonal is all ones), the upper factor elsewhere.
    factors: Vec<T>,
    /// The row of the matrix that corresponds to each row of the factors.
    rows: Vec<usize>,
    is_odd: bool,
}

impl<T: Scalar> Lu<T> {
    fn of(matrix: &[T], n: usize) -> Lu<T> {
        let mut lu = Lu { n, factors: matrix.to_vec(), rows: (0..n).collect(), is_odd: false };
        let a = &mut lu.factors;
        for k in 0..n {
            look();
            let pivot =
                (k + 1..n).fold(k, |best, i| if a[i * n + k].size() > a[best * n + k].size() { i } else { best });
            if pivot != k {
                lu.rows.swap(k, pivot);
                lu.is_odd = !lu.is_odd;
                let (before, from) = a.split_at_mut(pivot * n);
                before[k * n..][..n].swap_with_slice(&mut from[..n]);
            }
            let (above, below) = a.split_at_mut((k + 1) * n);
            let pivot_row = &above[k * n..];
            if pivot_row[k] == T::ZERO {
                continue;
            }
            for row in paced(below.chunks_exact_mut(n), n - k) {
                row[k] = row[k] / pivot_row[k];
                let factor = row[k];
                for (x, &p) in row[k + 1..].iter_mut().zip(&pivot_row[k + 1..]) {
                    *x = *x - factor * p;
                }
            }
        }
        lu
    }

    #[inline]
    fn diagonal(&self) -> impl Iterator<Item = T> {
        (0..self.n).map(|k| self.factors[k * self.n + k])
    }

    #[inline]
    fn is_singular(&self) -> bool {
        self.diagonal().any(|pivot| pivot == T::ZERO)
    }

    /// Solves for the `width` columns of `rhs`, which is stored by rows.
    fn solve(&self, rhs: &[T], width: usize) -> Vec<T> {
        let mut x: Vec<T> = self.rows.iter().flat_map(|&row| &rhs[row * width..][..width]).copied().collect();
        eliminate(&self.factors, self.n, &mut x, width, true, true);
        eliminate(&self.factors, self.n, &mut x, width, false, false);
        x
    }
}

/// Solves with one triangle of `a`, in place.
fn eliminate<T: Scalar>(a: &[T], n: usize, x: &mut [T], width: usize, is_lower: bool, unit_diagonal: bool) {
    let mut pace = Pace::new();
    let mut step = |x: &mut [T], i: usize| {
        let others = if is_lower { 0..i } else { i + 1..n };
        for k in others {
            pace.go(width);
            let factor = a[i * n + k];
            for column in 0..width {
                x[i * width + column] = x[i * width + column] - factor * x[k * width + column];
            }
        }
        if !unit_diagonal {
            x[i * width..][..width].iter_mut().for_each(|x| *x = *x / a[i * n + i]);
        }
    };
    if is_lower { (0..n).for_each(|i| step(x, i)) } else { (0..n).rev().for_each(|i| step(x, i)) }
}

/// The determinant of each matrix; 1 for a matrix without elements.
fn determinant<T: Scalar>(input: &Tensor) -> Result<Tensor> {
    let (batch, n) = square(input)?;
    let shape = Shape::from(batch);
    admit_beside::<T>(&shape, 1, input)?;
    let values = if n == 0 {
        vec![T::ONE; product(batch)]
    } else {
        let one = |matrix| {
            let lu = Lu::of(matrix, n);
            lu.diagonal().fold(if lu.is_odd { -T::ONE } else { T::ONE }, |product, pivot| product * pivot)
        };
        matrices(input.slice::<T>()?, n).map(one).collect()
    };
    Ok(Tensor::from_vec(shape, values))
}

/// The sign of each determinant (of a complex one: a number of absolute value one), and the logarithm of its absolute
/// value.
fn log_determinant<T: Scalar>(input: &Tensor) -> Result<Outputs> {
    let (batch, n) = square(input)?;
    let shape = Shape::from(batch);
    admit_beside::<T>(&shape, 1, input)?;
    let count = product(batch);
    let (mut signs, mut logs) = (vec![T::ONE; count], vec![T::ZERO; count]);
    if n > 0 {
        for ((matrix, sign), log) in matrices(input.slice::<T>()?, n).zip(&mut signs).zip(&mut logs) {
            let lu = Lu::of(matrix, n);
            *sign = if lu.is_odd { -T::ONE } else { T::ONE };
            for pivot in lu.diagonal() {
                let size = T::Real::from_f64(pivot.size());
                *sign = if pivot == T::ZERO { T::ZERO } else { *sign * (pivot / T::of(size)) };
                *log = *log + T::of(ln(size));
            }
        }
    }
    Ok(smallvec![Tensor::from_vec(shape.clone(), signs), Tensor::from_vec(shape, logs)])
}

/// The factors of each matrix in one matrix, and the permutation of its rows, with the dtype `rows`: int32 or int64.
fn factors<T: Scalar>(input: &Tensor, rows: DType) -> Result<Outputs> {
    let (batch, n) = square(input)?;
    admit_beside::<T>(input.shape(), 1, input)?;
    let (mut all, mut places) = (Vec::with_capacity(input.len()), Vec::new());
    for matrix in matrices(input.slice::<T>()?, n) {
        let lu = Lu::of(matrix, n);
        if lu.is_singular() {
            return Err(Failure::invalid("Input is not invertible."));
        }
        all.extend(lu.factors);
        places.extend(lu.rows);
    }
    let shape: Shape = batch.iter().copied().chain([n]).collect();
    shape.checked_elements(rows)?;
    Ok(smallvec![Tensor::from_vec(input.shape().clone(), all), ints(rows, shape, &places)?])
}

fn inverse<T: Scalar>(input: &Tensor, adjoint: bool) -> Result<Tensor> {
    let (_, n) = square(input)?;
    if input.is_empty() {
        return Ok(input.clone());
    }
    // The identity, the factored matrix, its transpose if that is needed, and the solution.
    admit_beside::<T>(input.shape(), 4, input)?;
    let mut identity = vec![T::ZERO; n * n];
    (0..n).for_each(|i| identity[i * n + i] = T::ONE);
    let mut all = Vec::with_capacity(input.len());
    for matrix in matrices(input.slice::<T>()?, n) {
        let lu = if adjoint { Lu::of(&adjoint_of(matrix, n, n), n) } else { Lu::of(matrix, n) };
        if lu.is_singular() {
            return Err(Failure::invalid("Input is not invertible."));
        }
        all.extend(lu.solve(&identity, n));
    }
    Ok(Tensor::from_vec(input.shape().clone(), all))
}

/// The size of the matrices and the width of the right-hand sides, after a check that they match.
fn check_sides(matrix: &Tensor, rhs: &Tensor) -> Result<(usize, usize)> {
    let (batch, n) = square(matrix)?;
    match rhs.dims() {
        [rhs_batch @ .., rows, width] if rhs_batch == batch && *rows == n => Ok((n, *width)),
        [rhs_batch @ .., _, _] if rhs_batch != batch => Err(Failure::invalid(format!(
            "All input tensors must have the same outer dimensions, got {} and {}",
            matrix.shape(),
            rhs.shape()
        ))),
        _ => Err(Failure::invalid(format!(
            "Input matrix and rhs are incompatible: {} and {}",
            matrix.shape(),
            rhs.shape()
        ))),
    }
}

fn solve<T: Scalar>(matrix: &Tensor, rhs: Tensor, adjoint: bool) -> Result<Tensor> {
    let (n, width) = check_sides(matrix, &rhs)?;
    if rhs.is_empty() {
        return Ok(rhs);
    }
    admit_beside::<T>(rhs.shape(), 3, matrix)?;
    let mut all = Vec::with_capacity(rhs.len());
    for (matrix, rhs) in matrices(matrix.slice::<T>()?, n).zip(rhs.slice::<T>()?.chunks_exact(n * width)) {
        let lu = if adjoint { Lu::of(&adjoint_of(matrix, n, n), n) } else { Lu::of(matrix, n) };
        if lu.is_singular() {
            return Err(Failure::invalid("Input matrix is not invertible."));
        }
        all.extend(lu.solve(rhs, width));
    }
    Ok(Tensor::from_vec(rhs.shape().clone(), all))
}

fn triangular_solve<T: Scalar>(matrix: &Tensor, mut rhs: Tensor, lower: bool, adjoint: bool) -> Result<Tensor> {
    let (n, width) = check_sides(matrix, &rhs)?;
    if rhs.is_empty() {
        return Ok(rhs);
    }
    admit_beside::<T>(rhs.shape(), 1, matrix)?;
    let pairs = matrices(matrix.slice::<T>()?, n).zip(rhs.slice_mut::<T>()?.chunks_exact_mut(n * width));
    for (matrix, rhs) in paced(pairs, n * width) {
        if adjoint {
            eliminate(&adjoint_of(matrix, n, n), n, rhs, width, !lower, false);
        } else {
            eliminate(matrix, n, rhs, width, lower, false);
        }
    }
    Ok(rhs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_batch_allocates_nothing_however_large_its_matrices() {
        let none = Tensor::zeros(meshtf_tensor::DType::F64, [0, 1 << 24, 1 << 24]).unwrap();
        assert_eq!(inverse::<f64>(&none, false).unwrap().dims(), none.dims());
        assert_eq!(determinant::<f64>(&none).unwrap().dims(), [0]);
        let no_sides = Tensor::zeros(meshtf_tensor::DType::F64, [0, 1 << 24, 3]).unwrap();
        assert_eq!(solve::<f64>(&none, no_sides.clone(), false).unwrap().dims(), no_sides.dims());
        assert_eq!(triangular_solve::<f64>(&none, no_sides, true, true).unwrap().dims(), [0, 1 << 24, 3]);
    }
}
