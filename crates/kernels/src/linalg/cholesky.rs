//! CholeskyGrad: the gradient of Cholesky factors.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Numeric as _, Tensor};

use super::{Scalar, admit_beside, eliminate, matrices, square, transposed};

/// The gradients of symmetric matrices, given their lower factors L and the gradients of these, of which only the lower
/// halves are read. They are the symmetric parts of P, divided from the left by the transpose of L and from the right by L;
/// P is the lower half of the product of the transpose and the gradient, with half its diagonal (Murray, Differentiation of
/// the Cholesky decomposition, arXiv:1602.07527).
pub(super) fn gradient<T: Scalar>(factor: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let (_, n) = square(factor)?;
    square(gradient)?;
    if factor.shape() != gradient.shape() {
        return Err(Failure::invalid(format!(
            "Inputs to CholeskyGrad must have the same shape: {} and {}",
            factor.shape(),
            gradient.shape()
        )));
    }
    if factor.is_empty() {
        return Ok(gradient.clone());
    }
    admit_beside::<T>(factor.shape(), 4, factor)?;
    let half = T::of(T::Real::from_f64(0.5));
    let mut out = Vec::with_capacity(factor.len());
    for (l, g) in matrices(factor.slice::<T>()?, n).zip(matrices(gradient.slice::<T>()?, n)) {
        let turned = transposed(l, n, n);
        // Element k of column i of the factor is zero for k < i.
        let mut p = vec![T::ZERO; n * n];
        for (i, j) in (0..n).flat_map(|i| (0..=i).map(move |j| (i, j))) {
            let sum = (i..n).fold(T::ZERO, |sum, k| sum + l[k * n + i] * g[k * n + j]);
            p[i * n + j] = if i == j { half * sum } else { sum };
        }
        eliminate(&turned, n, &mut p, n, false, false);
        // To divide from the right is to divide the transpose from the left by the transpose.
        let mut p = transposed(&p, n, n);
        eliminate(&turned, n, &mut p, n, false, false);
        out.extend((0..n * n).map(|at| half * (p[at] + p[at % n * n + at / n])));
    }
    Ok(Tensor::from_vec(factor.shape().clone(), out))
}
