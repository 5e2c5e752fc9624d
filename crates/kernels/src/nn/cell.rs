//! The common parts of recurrent cells: their sizes, and the concatenation of inputs and previous outputs.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

/// The sizes of a cell: the number of examples, of elements of an input, of elements of an output, and of gates.
pub(super) struct CellSizes {
    pub batch: usize,
    pub inputs: usize,
    pub cells: usize,
    gates: usize,
}

impl CellSizes {
    /// The sizes from an input `[batch, inputs]`, the previous output or state `[batch, cells]` with its name, and the
    /// number of gates.
    ///
    /// # Errors
    /// InvalidArgument if the shapes do not match.
    pub fn of(x: &Shape, (name, before): (&str, &Shape), gates: usize) -> Result<CellSizes> {
        let (&[batch, inputs], &[rows, cells]) = (x.dims(), before.dims()) else {
            return Err(Failure::invalid(format!("x and {name} must be matrices, got {x} and {before}")));
        };
        if rows != batch {
            return Err(Failure::invalid(format!("{name}.dims(0) != batch_size: {rows} vs. {batch}")));
        }
        Ok(CellSizes { batch, inputs, cells, gates })
    }

    /// Checks the shapes of the weights and biases of the gates.
    pub fn check_weights(&self, (w_name, w): (&str, &Tensor), (b_name, b): (&str, &Tensor)) -> Result<()> {
        let columns = format!("cell_size * {}", self.gates);
        let columns = (&columns[..], self.gates * self.cells);
        check(w_name, w, &[("input_size + cell_size", self.inputs + self.cells), columns])?;
        check(b_name, b, &[columns])
    }

    /// Checks that the shape is `[batch, cells]`.
    pub fn check(&self, name: &str, value: &Tensor) -> Result<()> {
        check(name, value, &[("batch_size", self.batch), ("cell_size", self.cells)])
    }
}

/// Checks that a tensor has the `wanted` sizes, each of which has a name for messages.
pub(super) fn check(name: &str, tensor: &Tensor, wanted: &[(&str, usize)]) -> Result<()> {
    if tensor.rank() != wanted.len() {
        let why = format!("{name} must be rank {} but is rank {}", wanted.len(), tensor.rank());
        return Err(Failure::invalid(why));
    }
    for (at, (&got, &(what, wanted))) in tensor.dims().iter().zip(wanted).enumerate() {
        if got != wanted {
            return Err(Failure::invalid(format!("{name}.dim_size({at}) != {what}: {got} vs. {wanted}")));
        }
    }
    Ok(())
}

#[inline]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Inputs and previous outputs, concatenated to one matrix `[batch, inputs + cells]`.
pub(super) fn beside(sizes: &CellSizes, x: &[f32], h: &[f32]) -> Result<Tensor> {
    let shape = Shape::from([sizes.batch, sizes.inputs + sizes.cells]);
    let mut both = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    for row in 0..sizes.batch {
        both.extend_from_slice(&x[row * sizes.inputs..][..sizes.inputs]);
        both.extend_from_slice(&h[row * sizes.cells..][..sizes.cells]);
    }
    Ok(Tensor::from_vec(shape, both))
}

/// Copies columns of a matrix, from `first` on, as many as fit `into`.
pub(super) fn narrow_rows(matrix: &Tensor, first: usize, into: &mut [f32]) -> Result<()> {
    let &[rows, columns] = matrix.dims() else { return Ok(()) };
    let wanted = into.len().checked_div(rows).unwrap_or(0);
    if wanted == 0 {
        return Ok(());
    }
    let all = matrix.slice::<f32>()?;
    for (row, into) in into.chunks_exact_mut(wanted).enumerate() {
        into.copy_from_slice(&all[row * columns + first..][..wanted]);
    }
    Ok(())
}
