//! Tridiagonal systems of linear equations and tridiagonal products.

use meshtf_loops::turn::Pace;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;

use super::{Scalar, product, rectangles};

const NOT_INVERTIBLE: &str = "The matrix is not invertible.";

/// Solves for each column of `[..., n, k]`. `[..., 3, n]` contains the diagonals, the upper one first; the last element
/// of the upper and the first of the lower one are ignored.
pub(super) fn solve<T: Scalar>(diagonals: &Tensor, rhs: &Tensor, pivots: bool) -> Result<Tensor> {
    let (batch, three, n) = rectangles(diagonals)?;
    let (batch_rhs, rows, width) = rectangles(rhs)?;
    if batch != batch_rhs {
        return Err(Failure::invalid(format!(
            "All input tensors must have the same outer dimensions, got shapes {} and {}",
            diagonals.shape(),
            rhs.shape()
        )));
    }
    if three != 3 {
        let why = format!("Expected diagonals to be provided as a matrix with 3 rows, got {three} rows.");
        return Err(Failure::invalid(why));
    }
    if n != rows {
        let why = format!("Expected the same number of left-hand sides and right-hand sides, got {n} and {rows}.");
        return Err(Failure::invalid(why));
    }
    let elements = rhs.shape().checked_elements(T::DTYPE)?;
    memory::admit(elements.saturating_mul(size_of::<T>()).saturating_add(n.saturating_mul(3 * size_of::<T>())))?;
    let mut x = rhs.slice::<T>()?.to_vec();
    let matrices = if n == 0 { 0 } else { product(batch) };
    for i in 0..matrices {
        let own = &diagonals.slice::<T>()?[i * 3 * n..][..3 * n];
        let system = System { upper: &own[..n], middle: &own[n..2 * n], lower: &own[2 * n..], width };
        let x = &mut x[i * n * width..][..n * width];
        match (n, pivots) {
            (1, _) if own[1] == T::ZERO => {
                return Err(Failure::invalid("The matrix is not invertible: it is a scalar with value zero."));
            }
            (1, _) => x.iter_mut().for_each(|x| *x = *x / own[1]),
            (_, true) => system.pivoted(x)?,
            (_, false) => system.thomas(x)?,
        }
    }
    Ok(Tensor::from_vec(rhs.shape().clone(), x))
}

struct System<'a, T> {
    upper: &'a [T],
    middle: &'a [T],
    lower: &'a [T],
    /// The number of columns of the right-hand side.
    width: usize,
}

impl<T: Scalar> System<'_, T> {
    /// Gaussian elimination in which neighbouring rows are exchanged, as LAPACK's gtsv does.
    fn pivoted(&self, x: &mut [T]) -> Result<()> {
        let (n, width) = (self.middle.len(), self.width);
        let mut pace = Pace::new();
        // The diagonal of the upper factor and the two superdiagonals.
        let mut u = vec![[T::ZERO; 3]; n];
        u[0] = [self.middle[0], self.upper[0], T::ZERO];
        for i in 0..n - 1 {
            pace.go(16 + width);
            let (above, below) = x[i * width..].split_at_mut(width);
            let (lower, middle) = (self.lower[i + 1], self.middle[i + 1]);
            let upper = if i + 2 < n { self.upper[i + 1] } else { T::ZERO };
            if u[i][0].size() >= lower.size() {
                if u[i][0] == T::ZERO {
                    return Err(Failure::invalid(NOT_INVERTIBLE));
                }
                let factor = lower / u[i][0];
                u[i + 1] = [middle - factor * u[i][1], upper, T::ZERO];
                below.iter_mut().zip(above).for_each(|(x, above)| *x = *x - factor * *above);
            } else {
                let factor = u[i][0] / lower;
                u[i + 1] = [u[i][1] - factor * middle, -(factor * upper), T::ZERO];
                u[i] = [lower, middle, upper];
                for (above, below) in above.iter_mut().zip(below) {
                    (*above, *below) = (*below, *above - factor * *below);
                }
            }
        }
        if u[n - 1][0] == T::ZERO {
            return Err(Failure::invalid(NOT_INVERTIBLE));
        }
        for i in (0..n).rev() {
            pace.go(16 + width);
            for column in 0..width {
                let mut value = x[i * width + column];
                for (ahead, factor) in u[i][1..].iter().enumerate().take(n - 1 - i) {
                    value = value - *factor * x[(i + 1 + ahead) * width + column];
                }
                x[i * width + column] = value / u[i][0];
            }
        }
        Ok(())
    }

    /// Elimination without row exchanges (the Thomas algorithm).
    fn thomas(&self, x: &mut [T]) -> Result<()> {
        let (n, width) = (self.middle.len(), self.width);
        let failed = "The matrix is either not invertible, or requires pivoting. Try setting partial_pivoting = True.";
        let mut pace = Pace::new();
        let mut u = vec![T::ZERO; n];
        for i in 0..n {
            pace.go(16 + width);
            let before = if i == 0 { T::ZERO } else { self.lower[i] * u[i - 1] };
            let pivot = self.middle[i] - before;
            if pivot == T::ZERO {
                return Err(Failure::invalid(failed));
            }
            u[i] = self.upper[i] / pivot;
            let (above, own) = x.split_at_mut(i * width);
            for (column, x) in own[..width].iter_mut().enumerate() {
                let before = if i == 0 { T::ZERO } else { self.lower[i] * above[(i - 1) * width + column] };
                *x = (*x - before) / pivot;
            }
        }
        for i in (0..n - 1).rev() {
            pace.go(16 + width);
            let (own, below) = x[i * width..].split_at_mut(width);
            own.iter_mut().zip(below).for_each(|(x, below)| *x = *x - u[i] * *below);
        }
        Ok(())
    }
}

/// The product of the diagonals `[..., 1, n]` above, on and below the main one with `[..., n, k]`.
pub(super) fn multiply<T: Scalar>([upper, middle, lower, rhs]: &[Tensor; 4]) -> Result<Tensor> {
    let (batch, n, width) = rectangles(rhs)?;
    for (diagonal, name) in [(upper, "superdiagonal"), (middle, "main diagonal"), (lower, "subdiagonal")] {
        let (own, one, size) = rectangles(diagonal)?;
        if own != batch {
            return Err(Failure::invalid(format!(
                "All input tensors must have the same outer dimensions, got shapes {} and {}",
                diagonal.shape(),
                rhs.shape()
            )));
        }
        if (one, size) != (1, n) {
            return Err(Failure::invalid(format!("Invalid {name} shape {}, for n = {n}.", diagonal.shape())));
        }
    }
    let mut out = Vec::with_capacity(rhs.shape().checked_elements(T::DTYPE)?);
    let (upper, middle, lower) = (upper.slice::<T>()?, middle.slice::<T>()?, lower.slice::<T>()?);
    let all = rhs.slice::<T>()?;
    let mut pace = Pace::new();
    let rows = if out.capacity() == 0 { 0 } else { product(batch) * n };
    for row in 0..rows {
        pace.go(8 + 3 * width);
        let i = row % n;
        for column in 0..width {
            let at = |row: usize| all[row * width + column];
            let mut sum = middle[row] * at(row);
            if i > 0 {
                sum = sum + lower[row] * at(row - 1);
            }
            if i + 1 < n {
                sum = sum + upper[row] * at(row + 1);
            }
            out.push(sum);
        }
    }
    Ok(Tensor::from_vec(rhs.shape().clone(), out))
}
