//! MatrixSolveLs: least-squares solutions of systems of linear equations.

use meshtf_loops::turn::{look, paced};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Numeric as _, Shape, Tensor};

use super::spectral::epsilon;
use super::{Lu, Scalar, adjoint_of, admit_beside, dot, product, rectangles, transposed};

/// `[..., m, n]` and right-hand sides `[..., m, k]` give `[..., n, k]`, the least-squares solution of least norm. If
/// `fast`, the minimum of the squared residuals plus `l2` times the squared solution, by normal equations.
pub(super) fn solve<T: Scalar>(matrix: &Tensor, rhs: &Tensor, l2: f64, fast: bool) -> Result<Tensor> {
    let (batch, m, n) = rectangles(matrix)?;
    let (rhs_batch, rhs_rows, k) = rectangles(rhs)?;
    if batch != rhs_batch {
        let why = "All input tensors must have the same outer dimensions";
        return Err(Failure::invalid(format!("{why}: {} and {}", matrix.shape(), rhs.shape())));
    }
    if m != rhs_rows {
        let why = "Input matrix and rhs are incompatible";
        return Err(Failure::invalid(format!("{why}: {} and {}", matrix.shape(), rhs.shape())));
    }
    if l2 < 0.0 {
        return Err(Failure::invalid("l2_regularizer must be >= 0."));
    }
    let shape: Shape = batch.iter().copied().chain([n, k]).collect();
    admit_beside::<T>(&shape, 5, matrix)?;
    let count = if m * n * k == 0 { 0 } else { product(batch) };
    let mut answer = Vec::with_capacity(count * n * k);
    let (matrices, sides) = (matrix.slice::<T>()?, rhs.slice::<T>()?);
    for i in paced(0..count, 16) {
        let rows = |all: &[T], width: usize| all[i * m * width..][..m * width].to_vec();
        let (a, b) = (Matrix::new(rows(matrices, n), n), Matrix::new(rows(sides, k), k));
        let x = if fast { by_normal_equations(&a, &b, l2)? } else { shortest(&a, &b) };
        answer.extend(x.elements);
    }
    answer.resize(shape.checked_elements(T::DTYPE)?, T::ZERO);
    Ok(Tensor::from_vec(shape, answer))
}

/// A matrix, stored by rows.
struct Matrix<T> {
    rows: usize,
    columns: usize,
    elements: Vec<T>,
}

impl<T: Scalar> Matrix<T> {
    /// A matrix with at least one column.
    fn new(elements: Vec<T>, columns: usize) -> Matrix<T> {
        Matrix { rows: elements.len() / columns.max(1), columns, elements }
    }

    fn row(&self, i: usize) -> &[T] {
        &self.elements[i * self.columns..][..self.columns]
    }

    #[inline]
    fn adjoint(&self) -> Matrix<T> {
        let elements = adjoint_of(&self.elements, self.rows, self.columns);
        Matrix { rows: self.columns, columns: self.rows, elements }
    }

    #[inline]
    fn transposed(&self) -> Matrix<T> {
        let elements = transposed(&self.elements, self.rows, self.columns);
        Matrix { rows: self.columns, columns: self.rows, elements }
    }

    #[inline]
    fn times(&self, other: &Matrix<T>) -> Matrix<T> {
        let mut elements = vec![T::ZERO; self.rows * other.columns];
        for (i, sums) in paced(elements.chunks_exact_mut(other.columns).enumerate(), self.columns * other.columns) {
            for (&factor, row) in self.row(i).iter().zip(other.elements.chunks_exact(other.columns)) {
                sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum = *sum + factor * x);
            }
        }
        Matrix { rows: self.rows, columns: other.columns, elements }
    }
}

/// A† (A A† + l2)⁻¹ b, or (A† A + l2)⁻¹ A† b if there are at least as many rows as columns.
fn by_normal_equations<T: Scalar>(a: &Matrix<T>, b: &Matrix<T>, l2: f64) -> Result<Matrix<T>> {
    let adjoint = a.adjoint();
    let is_long = a.rows >= a.columns;
    let mut gramian = if is_long { adjoint.times(a) } else { a.times(&adjoint) };
    let n = gramian.rows;
    gramian.elements.iter_mut().step_by(n + 1).for_each(|x| *x = *x + real::<T>(l2));
    let lu = Lu::of(&gramian.elements, n);
    if lu.is_singular() {
        return Err(Failure::invalid(
            "Input matrix was rank deficient or ill-conditioned. Try setting fast=False or provide a larger \
             l2_regularizer > 0.",
        ));
    }
    Ok(match is_long {
        true => Matrix::new(lu.solve(&adjoint.times(b).elements, b.columns), b.columns),
        false => adjoint.times(&Matrix::new(lu.solve(&b.elements, b.columns), b.columns)),
    })
}

/// The solution of least norm, Z (S†)⁻¹ Q† b, where A = Q R, R† = Z S, and Q and Z have orthonormal columns.
fn shortest<T: Scalar>(a: &Matrix<T>, b: &Matrix<T>) -> Matrix<T> {
    let (q, r) = factored(a);
    if q.rows == 0 {
        return Matrix::new(vec![T::ZERO; a.columns * b.columns], b.columns);
    }
    let (z, s) = factored(&r.adjoint());
    // If rounding gives R a lower rank than A, the lost part is negligible.
    let rank = z.rows;
    let right = Matrix::new(conjugated(&q).times(b).elements, b.columns);
    let solved = Lu::of(&s.adjoint().elements, rank).solve(&right.elements[..rank * b.columns], b.columns);
    z.transposed().times(&Matrix::new(solved, b.columns))
}

#[inline]
fn conjugated<T: Scalar>(matrix: &Matrix<T>) -> Matrix<T> {
    let elements = matrix.elements.iter().map(|x| x.conj()).collect();
    Matrix { rows: matrix.rows, columns: matrix.columns, elements }
}

#[inline]
fn real<T: Scalar>(value: f64) -> T {
    T::of(T::Real::from_f64(value))
}

/// Orthonormal vectors, one per row, and the coefficients of the matrix's columns for each of them. Their number is the
/// rank of the matrix. Each is the largest remainder of a column (Gram-Schmidt with column pivoting, each column
/// orthogonalized twice).
fn factored<T: Scalar>(a: &Matrix<T>) -> (Matrix<T>, Matrix<T>) {
    let (m, n) = (a.rows, a.columns);
    let mut left = a.transposed().elements;
    let size = |vector: &[T]| vector.iter().map(|x| x.size() * x.size()).sum::<f64>().sqrt();
    let largest = left.chunks_exact(m).map(size).fold(0.0, f64::max);
    let least = largest * epsilon::<T::Real>().to_f64() * m.max(n) as f64;
    let (mut vectors, mut shares): (Vec<T>, Vec<T>) = (Vec::new(), Vec::new());
    for _ in 0..m.min(n) {
        look();
        let sizes = left.chunks_exact(m).map(size).enumerate();
        let Some((pivot, length)) = sizes.max_by(|(_, a), (_, b)| a.total_cmp(b)).filter(|(_, size)| *size > least)
        else {
            break;
        };
        let mut vector: Vec<T> = left[pivot * m..][..m].iter().map(|&x| x / real::<T>(length)).collect();
        for before in vectors.chunks_exact(m) {
            let share = dot(&vector, before);
            vector.iter_mut().zip(before).for_each(|(x, &v)| *x = *x - share * v);
        }
        let length = real::<T>(size(&vector));
        vector.iter_mut().for_each(|x| *x = *x / length);
        for column in paced(left.chunks_exact_mut(m), 4 * m) {
            let share = dot(column, &vector);
            column.iter_mut().zip(&vector).for_each(|(x, &v)| *x = *x - share * v);
            shares.push(share);
        }
        left[pivot * m..][..m].fill(T::ZERO);
        vectors.extend(vector);
    }
    (Matrix::new(vectors, m), Matrix::new(shares, n))
}
