//! Qr: the factorization of a matrix into an orthogonal (unitary, if complex) and an upper triangular one, by Householder
//! reflections.

use meshtf_loops::turn::{look, paced};
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory;
use meshtf_tensor::{Ring as _, Shape, Tensor};
use smallvec::smallvec;

use super::{Scalar, product, rectangles};
use crate::Outputs;
use crate::real::sqrt;

/// Factors `[..., m, n]` into q of `[..., m, k]` and r of `[..., k, n]`, where k is the smaller of m and n, or m if
/// `full`.
pub(super) fn qr<T: Scalar>(input: &Tensor, full: bool) -> Result<Outputs> {
    let (batch, m, n) = rectangles(input)?;
    let k = if full { m } else { m.min(n) };
    let shape = |rows: usize, columns: usize| batch.iter().copied().chain([rows, columns]).collect::<Shape>();
    let (q_shape, r_shape) = (shape(m, k), shape(k, n));
    let elements = q_shape.checked_elements(T::DTYPE)? + r_shape.checked_elements(T::DTYPE)?;
    let each = if input.is_empty() { 0 } else { m * n };
    memory::admit((elements + each) * size_of::<T>())?;
    let (mut q, mut r) = (Vec::new(), Vec::new());
    let batches = if elements == 0 { 0 } else { product(batch) };
    for i in paced(0..batches, 16) {
        let reflections = Reflections::of(input.slice::<T>()?[i * m * n..][..m * n].to_vec(), m, n);
        for row in 0..k {
            let own = &reflections.a[row * n..][..n];
            r.extend((0..n).map(|column| if column < row { T::ZERO } else { own[column] }));
        }
        q.extend(reflections.orthogonal(k));
    }
    Ok(smallvec![Tensor::from_vec(q_shape, q), Tensor::from_vec(r_shape, r)])
}

/// A matrix reduced to upper triangular form by reflections.
///
/// Reflection j is 1 - tau v vᴴ, where v is zero before element j, one at it, and equal to the part of column j below the
/// diagonal after it. The sign is that of LAPACK and Eigen: a diagonal element of r has the sign opposite to that of the
/// element it replaces.
pub(super) struct Reflections<T> {
    /// `m` rows of `n` elements.
    pub a: Vec<T>,
    m: usize,
    n: usize,
    taus: Vec<T>,
}

impl<T: Scalar> Reflections<T> {
    pub fn of(mut a: Vec<T>, m: usize, n: usize) -> Reflections<T> {
        let mut taus = Vec::with_capacity(m.min(n));
        let mut sums = vec![T::ZERO; n];
        for j in 0..m.min(n) {
            look();
            let tail = (j + 1..m).fold(T::Real::ZERO, |sum, i| sum + a[i * n + j].square());
            let (beta, tau, divisor) = reflection(a[j * n + j], tail);
            if tau != T::ZERO {
                (j + 1..m).for_each(|i| a[i * n + j] = a[i * n + j] / divisor);
            }
            a[j * n + j] = beta;
            taus.push(tau);
            if tau != T::ZERO {
                let (above, below) = a.split_at_mut((j + 1) * n);
                reflect(&mut above[j * n..][j + 1..], below, n, j, tau, &mut sums[j + 1..]);
            }
        }
        Reflections { a, m, n, taus }
    }

    /// The first `k` columns of the product of the reflections, `m` rows.
    pub fn orthogonal(&self, k: usize) -> Vec<T> {
        let (m, n) = (self.m, self.n);
        let mut q = vec![T::ZERO; m * k];
        q.iter_mut().step_by(k + 1).take(k).for_each(|x| *x = T::ONE);
        let mut sums = vec![T::ZERO; k];
        for j in (0..self.taus.len()).rev().filter(|&j| self.taus[j] != T::ZERO) {
            look();
            sums.copy_from_slice(&q[j * k..][..k]);
            for i in paced(j + 1..m, k) {
                let v = self.a[i * n + j].conj();
                sums.iter_mut().zip(&q[i * k..][..k]).for_each(|(sum, &x)| *sum = *sum + v * x);
            }
            sums.iter_mut().for_each(|sum| *sum = *sum * self.taus[j].conj());
            q[j * k..][..k].iter_mut().zip(&sums).for_each(|(x, &sum)| *x = *x - sum);
            for i in paced(j + 1..m, k) {
                let v = self.a[i * n + j];
                q[i * k..][..k].iter_mut().zip(&sums).for_each(|(x, &sum)| *x = *x - v * sum);
            }
        }
        q
    }
}

/// The reflection of a vector onto its first axis. `head` is its first element, `tail` the sum of the squares of the
/// other elements. Returns the new first element, which is real, the factor tau, and the divisor that turns the other
/// elements into those of v.
#[inline]
pub(super) fn reflection<T: Scalar>(head: T, tail: T::Real) -> (T, T, T) {
    if tail == T::Real::ZERO && head == T::of(head.re()) {
        return (head, T::ZERO, T::ONE);
    }
    let norm = sqrt(head.square() + tail);
    let beta = T::of(if head.re() >= T::Real::ZERO { -norm } else { norm });
    (beta, ((beta - head) / beta).conj(), head - beta)
}

/// Applies reflection `j`, whose vector is stored in column `j` of the rows `below`, to the columns after it; `row` is
/// the part of row j in those columns.
fn reflect<T: Scalar>(row: &mut [T], below: &mut [T], n: usize, j: usize, tau: T, sums: &mut [T]) {
    sums.copy_from_slice(row);
    for own in paced(below.chunks_exact(n), n - j) {
        sums.iter_mut().zip(&own[j + 1..]).for_each(|(sum, &x)| *sum = *sum + own[j].conj() * x);
    }
    sums.iter_mut().for_each(|sum| *sum = *sum * tau);
    row.iter_mut().zip(&*sums).for_each(|(x, &sum)| *x = *x - sum);
    for own in paced(below.chunks_exact_mut(n), n - j) {
        let (vector, rest) = own.split_at_mut(j + 1);
        rest.iter_mut().zip(&*sums).for_each(|(x, &sum)| *x = *x - vector[j] * sum);
    }
}
