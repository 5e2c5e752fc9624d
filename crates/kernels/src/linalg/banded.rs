//! BandedTriangularSolve: systems of linear equations with a banded triangular matrix.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Shape, Tensor};

use super::{Scalar, product, rectangles};
use crate::broadcast::Broadcast;

/// Solves for each column of `[..., n, k]`. `[..., bands, n]` contains the diagonals: the main one is the first of a lower
/// triangular matrix and the last of an upper one, and each element is stored at the index of its row. Leading dimensions are
/// broadcast.
pub(super) fn solve<T: Scalar>(matrix: &Tensor, rhs: &Tensor, lower: bool, adjoint: bool) -> Result<Tensor> {
    for (i, tensor) in [matrix, rhs].into_iter().enumerate() {
        if tensor.rank() < 2 {
            return Err(Failure::invalid(format!("In[{i}] ndims must be >= 2: {}", tensor.rank())));
        }
        if tensor.is_empty() {
            let text = format!("In[{i}] must not be an empty tensor: it has shape {}", tensor.shape());
            return Err(Failure::invalid(text));
        }
    }
    let ((batch, bands, n), (rhs_batch, rows, width)) = (rectangles(matrix)?, rectangles(rhs)?);
    let (batch, rhs_batch) = (Shape::from(batch), Shape::from(rhs_batch));
    let batches = batch.broadcast(&rhs_batch).map_err(|_| {
        Failure::invalid(format!(
            "In[0] and In[1] must have compatible batch dimensions: {} vs. {}",
            matrix.shape(),
            rhs.shape()
        ))
    })?;
    if n != rows {
        let text = format!("In[0] mismatch In[1] shape: {n} vs. {rows}: {} {}", matrix.shape(), rhs.shape());
        return Err(Failure::invalid(text));
    }
    let shape: Shape = batches.dims().iter().copied().chain([n, width]).collect();
    let mut out = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
    let (matrices, sides) = (matrix.slice::<T>()?, rhs.slice::<T>()?);
    // TensorFlow looks at the diagonal of the first matrix.
    let main = if lower { 0 } else { bands - 1 };
    if matrices[main * n..][..n].contains(&T::ZERO) {
        return Err(Failure::invalid("Input matrix is not invertible."));
    }
    let walk = Broadcast::new(&batches, [&batch, &rhs_batch]);
    let (row, [step, rhs_step]) = (walk.row(), walk.steps());
    let mut pairs = Vec::with_capacity(product(batches.dims()));
    for [a, b] in walk.rows() {
        pairs.extend((0..row).map(|i| (a + i * step, b + i * rhs_step)));
    }
    let mut pace = Pace::new();
    for (own, side) in pairs {
        let system = Banded { diagonals: &matrices[own * bands * n..][..bands * n], bands, n, lower, adjoint };
        let start = out.len();
        out.extend_from_slice(&sides[side * n * width..][..n * width]);
        system.eliminate(&mut out[start..], width, &mut pace);
    }
    Ok(Tensor::from_vec(shape, out))
}

struct Banded<'a, T> {
    diagonals: &'a [T],
    bands: usize,
    n: usize,
    lower: bool,
    adjoint: bool,
}

impl<T: Scalar> Banded<'_, T> {
    /// The element of a row and a column, neither of which is farther from the diagonal than the bands.
    fn at(&self, i: usize, j: usize) -> T {
        let (i, j) = if self.adjoint { (j, i) } else { (i, j) };
        let band = if self.lower { i - j } else { self.bands - 1 - (j - i) };
        let value = self.diagonals[band * self.n + i];
        if self.adjoint { value.conj() } else { value }
    }

    fn eliminate(&self, x: &mut [T], width: usize, pace: &mut Pace) {
        let n = self.n;
        let is_forward = self.lower != self.adjoint;
        for step in 0..n {
            let i = if is_forward { step } else { n - 1 - step };
            let others = if is_forward { i.saturating_sub(self.bands - 1)..i } else { i + 1..(i + self.bands).min(n) };
            for k in others {
                pace.go(width);
                let factor = self.at(i, k);
                for column in 0..width {
                    x[i * width + column] = x[i * width + column] - factor * x[k * width + column];
                }
            }
            let pivot = self.at(i, i);
            x[i * width..][..width].iter_mut().for_each(|x| *x = *x / pivot);
        }
    }
}
