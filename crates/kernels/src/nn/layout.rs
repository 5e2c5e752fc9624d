//! Conversion of tensors between channels-first and channels-last.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{Element, Shape, Tensor};

/// Converts `[batch, channels, space…]` to `[batch, space…, channels]`.
pub fn channels_last<T: Element + Copy>(tensor: &Tensor) -> Result<Tensor> {
    let &[batch, channels, ref places @ ..] = tensor.dims() else { return Ok(tensor.clone()) };
    let shape: Shape = [batch].into_iter().chain(places.iter().copied()).chain([channels]).collect();
    transposed::<T>(tensor, shape, channels, places.iter().product())
}

/// Converts `[batch, space…, channels]` to `[batch, channels, space…]`.
pub fn channels_first<T: Element + Copy>(tensor: &Tensor) -> Result<Tensor> {
    let &[batch, ref places @ .., channels] = tensor.dims() else { return Ok(tensor.clone()) };
    let shape: Shape = [batch, channels].into_iter().chain(places.iter().copied()).collect();
    transposed::<T>(tensor, shape, places.iter().product(), channels)
}

/// Each batch entry transposed, as a matrix of `rows` by `columns`.
fn transposed<T: Element + Copy>(tensor: &Tensor, shape: Shape, rows: usize, columns: usize) -> Result<Tensor> {
    let from = tensor.slice::<T>()?;
    let mut to: Vec<T> = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
    if !from.is_empty() {
        let mut pace = Pace::new();
        for matrix in from.chunks_exact(rows * columns) {
            for column in 0..columns {
                pace.go(rows);
                to.extend(matrix[column..].iter().step_by(columns));
            }
        }
    }
    Ok(Tensor::from_vec(shape, to))
}
