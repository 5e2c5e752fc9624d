//! What recurrent cells have in common: their sizes, and inputs beside what came out before.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

/// The sizes of a cell: examples, numbers of an input, numbers of an output, and gates.
pub(super) struct CellSizes {
    pub batch: usize,
    pub inputs: usize,
    pub cells: usize,
    gates: usize,
}

impl CellSizes {
    /// Of an input `[batch, inputs]`, of what was there before, `[batch, cells]`, with its name, and of so many gates.
    ///
    /// # Errors
    /// InvalidArgument if they do not fit each other.
    pub fn of(x: &Shape, (name, before): (&str, &Shape), gates: usize) -> Result<CellSizes> {
        let (&[batch, inputs], &[rows, cells]) = (x.dims(), before.dims()) else {
            return Err(Failure::invalid(format!("x and {name} must be matrices, got {x} and {before}")));
        };
        if rows != batch {
            return Err(Failure::invalid(format!("{name}.dims(0) != batch_size: {rows} vs. {batch}")));
        }
        Ok(CellSizes { batch, inputs, cells, gates })
    }

    /// Holds the weights and biases of the gates against the sizes.
    pub fn check_weights(&self, (w_name, w): (&str, &Tensor), (b_name, b): (&str, &Tensor)) -> Result<()> {
        let columns = format!("cell_size * {}", self.gates);
        let columns = (&columns[..], self.gates * self.cells);
        check(w_name, w, &[("input_size + cell_size", self.inputs + self.cells), columns])?;
        check(b_name, b, &[columns])
    }

    /// Refuses what is not `[batch, cells]`.
    pub fn check(&self, name: &str, value: &Tensor) -> Result<()> {
        check(name, value, &[("batch_size", self.batch), ("cell_size", self.cells)])
    }
}

/// Refuses a tensor of another shape than these sizes, which have names.
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

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Inputs and what came out before as one matrix `[batch, inputs + cells]`.
pub(super) fn beside(sizes: &CellSizes, x: &[f32], h: &[f32]) -> Result<Tensor> {
    let shape = Shape::from([sizes.batch, sizes.inputs + sizes.cells]);
    let mut both = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    for row in 0..sizes.batch {
        both.extend_from_slice(&x[row * sizes.inputs..][..sizes.inputs]);
        both.extend_from_slice(&h[row * sizes.cells..][..sizes.cells]);
    }
    Ok(Tensor::from_vec(shape, both))
}

/// Some columns of a matrix, from `first` on, as many as `into` has.
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
