//! Eigenvalues and eigenvectors of symmetric and Hermitian matrices, and singular value decompositions.

use meshtf_loops::turn::{look, paced};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Float, Numeric as _, Ring as _, Shape, Tensor};
use smallvec::smallvec;

use super::qr::{Reflections, reflection};
use super::{Scalar, adjoint_of, matrices, product, rectangles, square};
use crate::Outputs;
use crate::real::{self, abs, max, sqrt};

/// The most rounds of an iteration in which nearly every round at least halves the remainder.
const MOST_ROUNDS: usize = 60;

/// The eigenvalues of each matrix in ascending order, and its eigenvectors as columns; without `wants_vectors` these have
/// shape `[0]`. Only the lower half of a matrix is read.
pub(super) fn eigen<T: Scalar>(input: &Tensor, wants_vectors: bool) -> Result<Outputs> {
    let (batch, n) = square(input)?;
    let values_shape: Shape = batch.iter().copied().chain([n]).collect();
    let each = if input.is_empty() { 0 } else { 3 * n * n };
    memory::admit((values_shape.checked_elements(T::DTYPE)? + input.len() + each) * size_of::<T>())?;
    let (mut values, mut vectors) = (Vec::new(), Vec::new());
    for a in matrices(input.slice::<T>()?, n) {
        let (own, rows) = symmetric(a.to_vec(), n, wants_vectors)?;
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&i, &j| real::order(&own[i], &own[j]));
        values.extend(order.iter().map(|&i| T::of(own[i])));
        if wants_vectors {
            for row in paced(0..n, n) {
                vectors.extend(order.iter().map(|&i| rows[i * n + row]));
            }
        }
    }
    let vectors_shape = if wants_vectors { input.shape().clone() } else { [0].into() };
    Ok(smallvec![Tensor::from_vec(values_shape, values), Tensor::from_vec(vectors_shape, vectors)])
}

/// The eigenvalues of each matrix as a row above those of its eigenvectors: one row more than the matrix has.
pub(super) fn values_above<T: Scalar>(input: &Tensor) -> Result<Tensor> {
    let (batch, n) = square(input)?;
    let outputs = eigen::<T>(input, true)?;
    let shape: Shape = batch.iter().copied().chain([n + 1, n]).collect();
    let mut all = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
    let (values, vectors) = (outputs[0].slice::<T>()?, outputs[1].slice::<T>()?);
    for (values, vectors) in values.chunks_exact(n.max(1)).zip(vectors.chunks_exact((n * n).max(1))) {
        all.extend_from_slice(values);
        all.extend_from_slice(vectors);
    }
    Ok(Tensor::from_vec(shape, all))
}

/// The eigenvalues of a symmetric or Hermitian matrix, and its eigenvectors as rows: reflections make the matrix real and
/// tridiagonal, and the implicit QR algorithm with Wilkinson's shifts makes it diagonal (Golub and Van Loan, Matrix
/// Computations, 8.3).
fn symmetric<T: Scalar>(mut a: Vec<T>, n: usize, wants_vectors: bool) -> Result<(Vec<T::Real>, Vec<T>)> {
    let zero = T::Real::ZERO;
    let size = |x: T| T::Real::from_f64(x.size());
    let lower = |(i, row): (usize, &[T])| row[..=i].iter().fold(zero, |largest, &x| max(largest, size(x)));
    let largest = a.chunks_exact(n.max(1)).enumerate().map(lower).fold(zero, max);
    let scale = if largest == zero { T::Real::ONE } else { largest };
    a.iter_mut().for_each(|x| *x = *x / T::of(scale));
    let (mut diagonal, mut beside, taus) = tridiagonal(&mut a, n);
    let mut rows = if wants_vectors { product_of_reflections(&a, &taus, n) } else { Vec::new() };
    diagonalize(&mut diagonal, &mut beside, |k, c, s| {
        let (c, s) = (T::of(c), T::of(s));
        if let Some(pair) = rows.get_mut(k * n..(k + 2) * n) {
            let (one, other) = pair.split_at_mut(n);
            for (x, y) in one.iter_mut().zip(other) {
                (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
            }
        }
    })?;
    diagonal.iter_mut().for_each(|x| *x = *x * scale);
    Ok((diagonal, rows))
}

/// Reduces a symmetric or Hermitian matrix, given by its lower half, to tridiagonal form. Returns the diagonal and the
/// subdiagonal, which are real, and the factors of the reflections. The vector of reflection k, whose element k + 1 is
/// one, is stored below the subdiagonal of column k.
fn tridiagonal<T: Scalar>(a: &mut [T], n: usize) -> (Vec<T::Real>, Vec<T::Real>, Vec<T>) {
    let (mut beside, mut taus) = (Vec::new(), Vec::new());
    let (mut v, mut w) = (vec![T::ZERO; n], vec![T::ZERO; n]);
    for k in 0..n.saturating_sub(1) {
        look();
        let tail = (k + 2..n).fold(T::Real::ZERO, |sum, i| sum + a[i * n + k].square());
        let (beta, tau, divisor) = reflection(a[(k + 1) * n + k], tail);
        if tau != T::ZERO {
            (k + 2..n).for_each(|i| a[i * n + k] = a[i * n + k] / divisor);
        }
        (k + 2..n).for_each(|i| v[i] = a[i * n + k]);
        v[k + 1] = T::ONE;
        beside.push(beta.re());
        taus.push(tau);
        if tau == T::ZERO {
            continue;
        }
        // A - v wᴴ - w vᴴ, where w = p - (tau vᴴp / 2) v and p = conj(tau) A v.
        w[k + 1..].fill(T::ZERO);
        for i in paced(k + 1..n, n - k) {
            let row = &a[i * n..][..i + 1];
            let own = (k + 1..i).fold(T::of(row[i].re()) * v[i], |sum, j| sum + row[j] * v[j]);
            w[i] = w[i] + own;
            (k + 1..i).for_each(|j| w[j] = w[j] + row[j].conj() * v[i]);
        }
        w[k + 1..].iter_mut().for_each(|x| *x = *x * tau.conj());
        let product = (k + 1..n).fold(T::ZERO, |sum, i| sum + w[i] * v[i].conj());
        let half = tau * product / (T::ONE + T::ONE);
        (k + 1..n).for_each(|i| w[i] = w[i] - half * v[i]);
        for i in paced(k + 1..n, n - k) {
            let row = &mut a[i * n..][..i + 1];
            (k + 1..i + 1).for_each(|j| row[j] = row[j] - v[i] * w[j].conj() - w[i] * v[j].conj());
        }
    }
    ((0..n).map(|i| a[i * n + i].re()).collect(), beside, taus)
}

/// The transpose of the product of the reflections that [`tridiagonal`] stored in `a`.
fn product_of_reflections<T: Scalar>(a: &[T], taus: &[T], n: usize) -> Vec<T> {
    let mut rows = vec![T::ZERO; n * n];
    rows.iter_mut().step_by(n + 1).for_each(|x| *x = T::ONE);
    let mut v = vec![T::ZERO; n];
    for k in (0..taus.len()).rev().filter(|&k| taus[k] != T::ZERO) {
        (k + 2..n).for_each(|i| v[i] = a[i * n + k]);
        v[k + 1] = T::ONE;
        for row in paced(rows[(k + 1) * n..].chunks_exact_mut(n), n - k) {
            let sum = (k + 1..n).fold(T::ZERO, |sum, i| sum + row[i] * v[i].conj()) * taus[k].conj();
            (k + 1..n).for_each(|i| row[i] = row[i] - sum * v[i]);
        }
    }
    rows
}

/// Makes a symmetric tridiagonal matrix diagonal; calls `rotate(k, c, s)` for each rotation of the axes k and k + 1.
fn diagonalize<T: Float>(d: &mut [T], e: &mut [T], mut rotate: impl FnMut(usize, T, T)) -> Result<()> {
    let (two, epsilon) = (T::ONE + T::ONE, epsilon::<T>());
    let mut end = d.len().saturating_sub(1);
    let mut rounds = MOST_ROUNDS * d.len();
    while end > 0 {
        for i in 0..end {
            if abs(e[i]) <= epsilon * (abs(d[i]) + abs(d[i + 1])) {
                e[i] = T::ZERO;
            }
        }
        while end > 0 && e[end - 1] == T::ZERO {
            end -= 1;
        }
        if end == 0 {
            break;
        }
        rounds = rounds.checked_sub(1).ok_or_else(|| {
            let why = "Self-adjoint eigen decomposition was not successful. The input might not be valid.";
            Failure::new(Code::InvalidArgument, why)
        })?;
        look();
        let start = (0..end - 1).rev().find(|&i| e[i] == T::ZERO).map_or(0, |i| i + 1);
        let (half, last) = ((d[end - 1] - d[end]) / two, e[end - 1]);
        let length = hypotenuse(half, last);
        let shift = d[end] - last * (last / (half + if half < T::ZERO { -length } else { length }));
        let (mut x, mut z) = (d[start] - shift, e[start]);
        for k in start..end {
            let length = hypotenuse(x, z);
            let (c, s) = if length == T::ZERO { (T::ONE, T::ZERO) } else { (x / length, -z / length) };
            let (mixed, next) = (s * d[k] + c * e[k], s * e[k] + c * d[k + 1]);
            d[k] = c * (c * d[k] - s * e[k]) - s * (c * e[k] - s * d[k + 1]);
            d[k + 1] = s * mixed + c * next;
            e[k] = c * mixed - s * next;
            if k > start {
                e[k - 1] = c * e[k - 1] - s * z;
            }
            x = e[k];
            if k + 1 < end {
                z = -s * e[k + 1];
                e[k + 1] = c * e[k + 1];
            }
            rotate(k, c, s);
        }
    }
    Ok(())
}

#[inline]
fn hypotenuse<T: Float>(x: T, y: T) -> T {
    let (greater, less) = if abs(x) >= abs(y) { (abs(x), abs(y)) } else { (abs(y), abs(x)) };
    if greater == T::ZERO {
        return T::ZERO;
    }
    let ratio = less / greater;
    greater * sqrt(T::ONE + ratio * ratio)
}

/// The distance from 1 to the next number.
#[inline]
pub(super) fn epsilon<T: Float>() -> T {
    T::from_f64(if T::DTYPE == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() })
}

/// The singular values of each matrix in descending order, and the left and right singular vectors as columns: as many as
/// there are values or, if `full`, those of a whole orthogonal matrix. Without `wants_vectors` the vectors have shape
/// `[0]`.
pub(super) fn svd<T: Scalar>(input: &Tensor, wants_vectors: bool, full: bool) -> Result<Outputs> {
    let (batch, m, n) = rectangles(input)?;
    let count = m.min(n);
    let (left, right) = if full { (m, n) } else { (count, count) };
    let shape = |dims: &[usize]| batch.iter().chain(dims).copied().collect::<Shape>();
    let shapes = [shape(&[count]), shape(&[m, left]), shape(&[n, right])];
    // The last term is the memory for completing the vectors of one matrix: as many elements as the larger of its two
    // results.
    let each = if input.is_empty() { 0 } else { (4 * m * n).saturating_add(2 * (m * left).max(n * right)) };
    let mut elements = each;
    for shape in &shapes[..if wants_vectors { 3 } else { 1 }] {
        elements += shape.checked_elements(T::DTYPE)?;
    }
    memory::admit(elements * size_of::<T>())?;
    let (mut values, mut lefts, mut rights) = (Vec::new(), Vec::new(), Vec::new());
    let is_empty = shapes[..if wants_vectors { 3 } else { 1 }].iter().all(|shape| shape.elements() == Some(0));
    let batches = if is_empty { 0 } else { product(batch) };
    for i in paced(0..batches, 16) {
        let a = &input.slice::<T>()?[i * m * n..][..m * n];
        // At least as many rows as columns. Otherwise the adjoint matrix is decomposed, whose left and right vectors are
        // exchanged.
        let svd = if m < n { Orthogonal::of(a, m, n) } else { Orthogonal::of(&adjoint_of(a, m, n), n, m) };
        values.extend(svd.values.iter().map(|&value| T::of(value)));
        if wants_vectors {
            let (long, short) = (svd.long(if m < n { right } else { left }), svd.short());
            let (left, right) = if m < n { (short, long) } else { (long, short) };
            lefts.extend(left);
            rights.extend(right);
        }
    }
    let [s, u, v] = shapes;
    let (u, v) = if wants_vectors { (u, v) } else { ([0].into(), [0].into()) };
    Ok(smallvec![Tensor::from_vec(s, values), Tensor::from_vec(u, lefts), Tensor::from_vec(v, rights)])
}

/// `count` vectors of `length` elements, orthogonalized by rotations of pairs of them (Hestenes' method).
struct Orthogonal<T: Scalar> {
    count: usize,
    length: usize,
    /// The lengths of the vectors, in descending order.
    values: Vec<T::Real>,
    /// The vectors in that order, one per row, normalized if they are not zero.
    vectors: Vec<T>,
    /// The accumulated rotations: row i contains the coefficients of the original vectors in vector i.
    turned: Vec<T>,
}

impl<T: Scalar> Orthogonal<T> {
    /// Orthogonalizes the rows of a matrix.
    fn of(rows: &[T], count: usize, length: usize) -> Orthogonal<T> {
        let zero = T::Real::ZERO;
        let largest = rows.iter().fold(zero, |largest, &x| max(largest, T::Real::from_f64(x.size())));
        let scale = if largest == zero { T::Real::ONE } else { largest };
        let mut a: Vec<T> = rows.iter().map(|&x| x / T::of(scale)).collect();
        let mut turned = vec![T::ZERO; count * count];
        turned.iter_mut().step_by(count + 1).for_each(|x| *x = T::ONE);
        for _ in 0..MOST_ROUNDS {
            let mut is_done = true;
            for p in 0..count {
                look();
                for q in p + 1..count {
                    is_done &= !rotate(&mut a, &mut turned, length, count, p, q);
                }
            }
            if is_done {
                break;
            }
        }
        let norm = |row: &[T]| sqrt(row.iter().fold(zero, |sum, &x| sum + x.square()));
        let norms: Vec<T::Real> = (0..count).map(|i| norm(&a[i * length..][..length])).collect();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&i, &j| real::order(&norms[j], &norms[i]));
        let unit = |i: usize| {
            let divisor = T::of(if norms[i] == zero { T::Real::ONE } else { norms[i] });
            a[i * length..][..length].iter().map(move |&x| x / divisor)
        };
        Orthogonal {
            count,
            length,
            values: order.iter().map(|&i| norms[i] * scale).collect(),
            vectors: order.iter().flat_map(|&i| unit(i)).collect(),
            turned: order.iter().flat_map(|&i| turned[i * count..][..count].iter().copied()).collect(),
        }
    }

    /// The first `wanted` columns of an orthogonal (unitary) matrix whose first columns are the conjugated vectors.
    fn long(&self, wanted: usize) -> Vec<T> {
        let length = self.length;
        let mut columns = adjoint_of(&self.vectors, self.count, length);
        // A value that is negligible compared to the greatest has no definite vector: any that is orthogonal to the other
        // vectors will do.
        let room = epsilon::<T::Real>() * T::Real::from_f64(length as f64);
        let least = self.values.first().map_or(T::Real::ZERO, |&first| first * room);
        let known = self.values.iter().take_while(|&&value| value > least).count();
        if known < wanted {
            let own: Vec<T> =
                columns.chunks_exact(self.count.max(1)).flat_map(|row| row[..known].iter().copied()).collect();
            let all = Reflections::of(own, length, known).orthogonal(wanted);
            let mut filled = vec![T::ZERO; length * wanted];
            for (i, row) in filled.chunks_exact_mut(wanted).enumerate() {
                row[..known].copy_from_slice(&columns[i * self.count..][..known]);
                row[known..].copy_from_slice(&all[i * wanted + known..][..wanted - known]);
            }
            columns = filled;
        }
        columns
    }

    /// The vectors of the other side, as columns.
    fn short(&self) -> Vec<T> {
        adjoint_of(&self.turned, self.count, self.count)
    }
}

/// Rotates rows `p` and `q` so that they are orthogonal. Returns whether they were not.
fn rotate<T: Scalar>(a: &mut [T], turned: &mut [T], length: usize, count: usize, p: usize, q: usize) -> bool {
    let pair = |rows: &mut [T], width: usize, with: &mut dyn FnMut(&mut T, &mut T)| {
        let (before, from) = rows.split_at_mut(q * width);
        before[p * width..][..width].iter_mut().zip(&mut from[..width]).for_each(|(x, y)| with(x, y));
    };
    let (zero, one) = (T::Real::ZERO, T::Real::ONE);
    let (mut own, mut other, mut both) = (zero, zero, T::ZERO);
    pair(a, length, &mut |x, y| {
        (own, other, both) = (own + x.square(), other + y.square(), both + *x * y.conj());
    });
    // Once row q is multiplied by `unit`, the product of the two rows is real.
    let (unit, both) = both.turned();
    let differs = abs(both) > epsilon::<T::Real>() * sqrt(own) * sqrt(other);
    if !differs || both == zero {
        return false;
    }
    let zeta = (other - own) / ((one + one) * both);
    let tangent = (if zeta < zero { -one } else { one }) / (abs(zeta) + sqrt(one + zeta * zeta));
    let cosine = one / sqrt(one + tangent * tangent);
    let (sine, cosine) = (T::of(cosine * tangent), T::of(cosine));
    let mut turn = |x: &mut T, y: &mut T| {
        let turned = unit * *y;
        (*x, *y) = (cosine * *x - sine * turned, sine * *x + cosine * turned);
    };
    pair(a, length, &mut turn);
    pair(turned, count, &mut turn);
    true
}

#[cfg(test)]
mod tests {
    use super::super::transposed;
    use super::*;
    use meshtf_tensor::Complex;

    /// Pseudo-random numbers.
    fn numbers(count: usize) -> Vec<f64> {
        (0..count as u64)
            .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1 << 23) as f64 - 1.0)
            .collect()
    }

    fn product(a: &[f64], b: &[f64], inner: usize, columns: usize) -> Vec<f64> {
        let row = |row: &[f64], j: usize| row.iter().enumerate().map(|(k, x)| x * b[k * columns + j]).sum::<f64>();
        a.chunks_exact(inner.max(1)).flat_map(|own| (0..columns).map(move |j| row(own, j))).collect()
    }

    fn same(one: &[f64], other: &[f64], what: &str) {
        assert_eq!(one.len(), other.len(), "{what}");
        let off = one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-12, "{what}: {off}");
    }

    fn identity(n: usize) -> Vec<f64> {
        (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 }).collect()
    }

    #[test]
    fn eigenvectors_are_turned_by_the_matrix_into_multiples_of_themselves() {
        for n in [1, 2, 3, 7, 30] {
            let mut a = numbers(n * n);
            for (i, j) in (0..n).flat_map(|i| (0..i).map(move |j| (i, j))) {
                a[j * n + i] = a[i * n + j];
            }
            let outputs = eigen::<f64>(&Tensor::from_vec([n, n], a.clone()), true).unwrap();
            let (values, vectors) = (outputs[0].slice::<f64>().unwrap(), outputs[1].slice::<f64>().unwrap());
            assert!(values.is_sorted());
            let scaled: Vec<f64> = vectors.iter().enumerate().map(|(i, x)| x * values[i % n]).collect();
            same(&product(&a, vectors, n, n), &scaled, "A v = v e");
            same(
                &product(&transposed(vectors, n, n), vectors, n, n),
                &identity(n),
                "vectors of length one, at right angles",
            );
        }
    }

    #[test]
    fn only_the_lower_half_of_a_symmetric_matrix_is_read() {
        let above = Tensor::from_vec([2, 2], vec![1.0, f64::INFINITY, 0.0, 2.0]);
        assert_eq!(eigen::<f64>(&above, true).unwrap()[0].slice::<f64>().unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn what_has_no_elements_takes_no_time_and_what_has_no_rank_no_memory() {
        let none = Tensor::zeros(DType::F64, [1 << 60, 0, 3]).unwrap();
        assert_eq!(svd::<f64>(&none, true, false).unwrap()[0].dims(), [1 << 60, 0]);
        assert_eq!(super::super::qr::qr::<f64>(&none, false).unwrap()[1].dims(), [1 << 60, 0, 3]);
        // A square matrix of as many rows would be 80 GB.
        let tall = Tensor::zeros(DType::F64, [100_000, 1]).unwrap();
        let outputs = svd::<f64>(&tall, true, false).unwrap();
        assert_eq!((outputs[0].slice::<f64>().unwrap(), outputs[1].dims()), (&[0.0][..], &[100_000, 1][..]));
    }

    #[test]
    fn no_number_in_a_matrix_ends_the_search() {
        let outputs = eigen::<f64>(&Tensor::from_vec([2, 2], vec![f64::NAN; 4]), true);
        assert_eq!(outputs.unwrap_err().code, Code::InvalidArgument);
        assert!(svd::<f64>(&Tensor::from_vec([2, 2], vec![f64::NAN; 4]), true, true).is_ok());
    }

    #[test]
    fn singular_values_and_vectors_make_the_matrix() {
        for (m, n) in [(1, 1), (4, 4), (7, 3), (3, 7), (20, 12), (5, 0), (0, 5)] {
            // The second has rank 1, the third is zero.
            let (first, lone) = (numbers(m * n), numbers(m + n));
            let flat = (0..m * n).map(|i| lone[i / n] * lone[m + i % n]).collect();
            for a in [first, flat, vec![0.0; m * n]] {
                for full in [false, true] {
                    let outputs = svd::<f64>(&Tensor::from_vec([m, n], a.clone()), true, full).unwrap();
                    let [s, u, v] = [0, 1, 2].map(|i| outputs[i].slice::<f64>().unwrap());
                    let (left, right) = if full { (m, n) } else { (m.min(n), m.min(n)) };
                    assert!(s.is_sorted_by(|a, b| a >= b), "{s:?}");
                    same(&product(&transposed(u, m, left), u, m, left), &identity(left), "u");
                    same(&product(&transposed(v, n, right), v, n, right), &identity(right), "v");
                    let scaled: Vec<f64> = (0..n * left)
                        .map(|i| if i / n < s.len() { s[i / n] * v[i % n * right + i / n] } else { 0.0 })
                        .collect();
                    same(&product(u, &scaled, left.max(1), n), &a, "u s vᵀ");
                }
            }
        }
    }

    type Number = Complex<f64>;

    /// `a` times the conjugate transpose of `b`, which has as many columns as `a`.
    fn times_adjoint(a: &[Number], b: &[Number], inner: usize) -> Vec<Number> {
        let one = |a: &[Number], b: &[Number]| a.iter().zip(b).map(|(x, y)| x * y.conj()).sum::<Number>();
        let rows = |all| <[Number]>::chunks_exact(all, inner.max(1));
        rows(a).flat_map(|row| rows(b).map(move |other| one(row, other))).collect()
    }

    fn same_numbers(one: &[Number], other: &[Number], what: &str) {
        let parts = |all: &[Number]| all.iter().flat_map(|x| [x.re, x.im]).collect::<Vec<f64>>();
        same(&parts(one), &parts(other), what);
    }

    fn complex_identity(n: usize) -> Vec<Number> {
        identity(n).into_iter().map(Number::from).collect()
    }

    #[test]
    fn complex_matrices_are_the_products_of_their_factors() {
        let adjoint = |matrix: &[Number], rows: usize, columns: usize| adjoint_of(matrix, rows, columns);
        for (m, n) in [(1, 1), (2, 2), (4, 4), (7, 3), (3, 7), (20, 12), (5, 0)] {
            let parts = numbers(2 * m * n);
            let a: Vec<Number> = parts.chunks_exact(2).map(|part| Number::new(part[0], part[1])).collect();
            for full in [false, true] {
                let (left, right) = if full { (m, n) } else { (m.min(n), m.min(n)) };
                let outputs = svd::<Number>(&Tensor::from_vec([m, n], a.clone()), true, full).unwrap();
                let [s, u, v] = [0, 1, 2].map(|i| outputs[i].slice::<Number>().unwrap());
                let (uh, vh) = (adjoint(u, m, left), adjoint(v, n, right));
                same_numbers(&times_adjoint(&uh, &uh, m), &complex_identity(left), "uᴴ u");
                same_numbers(&times_adjoint(&vh, &vh, n), &complex_identity(right), "vᴴ v");
                if n > 0 {
                    let count = s.len();
                    let scaled: Vec<Number> =
                        (0..m * count).map(|i| u[i / count * left + i % count] * s[i % count]).collect();
                    let first: Vec<Number> = (0..n * count).map(|i| v[i / count * right + i % count]).collect();
                    same_numbers(&times_adjoint(&scaled, &first, count), &a, "u s vᴴ");
                }
                let outputs = super::super::qr::qr::<Number>(&Tensor::from_vec([m, n], a.clone()), full).unwrap();
                let [q, r] = [0, 1].map(|i| outputs[i].slice::<Number>().unwrap());
                let (qh, rh) = (adjoint(q, m, left), adjoint(r, left, n));
                same_numbers(&times_adjoint(&qh, &qh, m), &complex_identity(left), "qᴴ q");
                if n > 0 {
                    same_numbers(&times_adjoint(q, &rh, left), &a, "q r");
                }
            }
            if m == n {
                let mut a = a;
                for (i, j) in (0..n).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                    a[j * n + i] = if i == j { a[i * n + i].re.into() } else { a[i * n + j].conj() };
                }
                let outputs = eigen::<Number>(&Tensor::from_vec([n, n], a.clone()), true).unwrap();
                let [e, v] = [0, 1].map(|i| outputs[i].slice::<Number>().unwrap());
                let vh = adjoint(v, n, n);
                same_numbers(&times_adjoint(&vh, &vh, n), &complex_identity(n), "vᴴ v");
                let scaled: Vec<Number> = v.iter().enumerate().map(|(i, x)| x * e[i % n]).collect();
                same_numbers(&times_adjoint(&a, &vh, n), &scaled, "A v = v e");
            }
        }
    }
}
