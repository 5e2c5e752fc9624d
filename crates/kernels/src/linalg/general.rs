//! Eig: eigenvalues and eigenvectors of matrices that need not be symmetric, by the Schur form.

use meshtf_loops::turn::look;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Complex, DType, Shape, Tensor, memory};
use smallvec::smallvec;

use super::function::{Schur, Wide, multiplied};
use super::{product, square};
use crate::Outputs;

type C = Complex<f64>;

const ZERO: C = C::new(0.0, 0.0);

/// The eigenvalues of each matrix in the order of its Schur form, and its eigenvectors as columns of length one; without
/// `wants_vectors` these are a scalar, as TensorFlow has it. Both are complex128.
pub(super) fn eigen<T: Wide>(input: &Tensor, wants_vectors: bool) -> Result<Outputs> {
    let (batch, n) = square(input)?;
    let values_shape: Shape = batch.iter().copied().chain([n]).collect();
    let elements = values_shape.checked_elements(DType::C128)? + input.shape().checked_elements(DType::C128)?;
    let each = if input.is_empty() { 0 } else { 6 * n * n };
    memory::admit((elements + each) * size_of::<C>())?;
    let (mut values, mut vectors) = (Vec::new(), Vec::new());
    let count = if n == 0 { 0 } else { product(batch) };
    for matrix in input.slice::<T>()?.chunks_exact((n * n).max(1)).take(count) {
        let matrix: Vec<C> = matrix.iter().map(|x| x.widened()).collect();
        if !matrix.iter().all(|x| x.re.is_finite() && x.im.is_finite()) {
            return Err(Failure::invalid("Eigen decomposition was not successful. The input might not be valid."));
        }
        let form = Schur::of(matrix, n)?;
        values.extend((0..n).map(|i| form.t[i * n + i]));
        if wants_vectors {
            vectors.extend(of_triangle(&form));
        }
    }
    if !wants_vectors {
        return Ok(smallvec![Tensor::from_vec(values_shape, values), Tensor::scalar(ZERO)]);
    }
    Ok(smallvec![Tensor::from_vec(values_shape, values), Tensor::from_vec(input.shape().clone(), vectors)])
}

/// The eigenvectors as columns, in the order of the diagonal: those of the triangular factor by substitution, turned back.
fn of_triangle(form: &Schur) -> Vec<C> {
    let (n, t) = (form.n, &form.t);
    let largest = t.iter().map(|x| x.norm()).fold(0.0, f64::max);
    let least = C::new(f64::EPSILON * if largest == 0.0 { 1.0 } else { largest }, 0.0);
    let mut x = vec![ZERO; n * n];
    for k in (0..n).rev() {
        look();
        x[k * n + k] = C::new(1.0, 0.0);
        for i in (0..k).rev() {
            let sum: C = (i + 1..=k).map(|j| t[i * n + j] * x[j * n + k]).sum();
            let apart = t[i * n + i] - t[k * n + k];
            // Equal eigenvalues are moved apart by no more than the rounding.
            x[i * n + k] = -sum / if apart == ZERO { least } else { apart };
        }
    }
    let mut columns = multiplied(&form.q, &x, n);
    for k in 0..n {
        let length = (0..n).map(|i| columns[i * n + k].norm_sqr()).sum::<f64>().sqrt();
        (0..n).for_each(|i| columns[i * n + k] /= length);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_times_its_vectors_is_the_vectors_times_the_values() {
        let number = |i: usize| C::new(((i * 37 + 11) % 23) as f64 / 7.0 - 1.5, ((i * 53 + 5) % 19) as f64 / 6.0 - 1.5);
        for n in [1, 2, 3, 6, 15] {
            for is_real in [true, false] {
                let a: Vec<C> = (0..n * n).map(number).map(|z| if is_real { z.re.into() } else { z }).collect();
                let outputs = eigen::<C>(&Tensor::from_vec([n, n], a.clone()), true).unwrap();
                let (e, v) = (outputs[0].slice::<C>().unwrap(), outputs[1].slice::<C>().unwrap());
                let left = multiplied(&a, v, n);
                for (i, left) in left.iter().enumerate() {
                    assert!((left - v[i] * e[i % n]).norm() < 1e-11, "{n} {is_real} {i}");
                }
                for k in 0..n {
                    let length: f64 = (0..n).map(|i| v[i * n + k].norm_sqr()).sum();
                    assert!((length - 1.0).abs() < 1e-12);
                }
            }
        }
    }
}
