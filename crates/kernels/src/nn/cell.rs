//! The common parts of recurrent cells: their sizes, and their weights.

use meshtf_loops::vector::MatrixView;
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

    /// The weights of the inputs and those of the previous outputs: the rows of a matrix of `columns` columns.
    pub fn weights<'a>(&self, w: &'a [f32], columns: usize) -> [MatrixView<'a>; 2] {
        let (of_inputs, of_outputs) = w.split_at(self.inputs * columns);
        let rows = |elements, rows: usize| MatrixView { elements, dims: [rows, columns], steps: [columns, 1] };
        [rows(of_inputs, self.inputs), rows(of_outputs, self.cells)]
    }

    /// Zeros for `rows` rows of `columns` columns.
    ///
    /// # Errors
    /// ResourceExhausted if they would be too large.
    pub fn zeros(rows: usize, columns: usize) -> Result<Vec<f32>> {
        Ok(vec![0f32; Shape::from([rows, columns]).checked_elements(DType::F32)?])
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

/// Consecutive rows as a matrix.
pub(super) fn matrix(elements: &[f32], [rows, columns]: [usize; 2]) -> MatrixView<'_> {
    MatrixView { elements, dims: [rows, columns], steps: [columns, 1] }
}

/// The transpose of a matrix.
pub(super) fn transposed(matrix: MatrixView) -> MatrixView {
    let ([rows, columns], [down, along]) = (matrix.dims, matrix.steps);
    MatrixView { dims: [columns, rows], steps: [along, down], ..matrix }
}
