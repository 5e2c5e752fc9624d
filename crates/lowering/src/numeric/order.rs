//! Rules for the largest elements along a dim, and for sorting.

use burn_ir::TensorIr;
use meshtf_graph::{Input, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use crate::Lowering;
use crate::base::no_dim;
use crate::compose::axis;
use crate::values::dtype;

impl Lowering<'_> {
    /// The k largest along a dim, largest first: their values, their positions, or both.
    pub(super) fn top_k(
        &mut self,
        input: &TensorIr,
        dim: usize,
        k: usize,
        values: Option<&TensorIr>,
        positions: Option<&TensorIr>,
    ) -> Result<()> {
        let value = self.read(input)?;
        let (largest, at) = self.largest(value, input, dim, k)?;
        if let Some(out) = values {
            self.write(out, largest)?;
        }
        positions.map_or(Ok(()), |out| self.write_positions(at, out))
    }

    /// All elements along a dim in order. Equal ones keep their order; burn leaves it unspecified.
    pub(super) fn sort(
        &mut self,
        input: &TensorIr,
        dim: usize,
        descending: bool,
        values: Option<&TensorIr>,
        positions: Option<&TensorIr>,
    ) -> Result<()> {
        let size = *input.shape.get(dim).ok_or_else(|| no_dim(dim))?;
        // Ascending is descending after a map that reverses the order: for floats Neg, for integers Invert, which unlike Neg
        // is correct for all of them.
        let turned = match dtype(input.dtype)? {
            _ if descending => None,
            dtype if dtype.is_float() => Some("Neg"),
            _ => Some("Invert"),
        };
        let mut value = self.read(input)?;
        if let Some(op) = turned {
            value = self.node(op, [value.into()])?;
        }
        let (mut sorted, at) = self.largest(value, input, dim, size)?;
        if let Some(out) = values {
            if let Some(op) = turned {
                sorted = self.node(op, [sorted.into()])?;
            }
            self.write(out, sorted)?;
        }
        positions.map_or(Ok(()), |out| self.write_positions(at, out))
    }

    /// The values and the positions (int32) of the k largest along a dim.
    fn largest(&mut self, value: Output, shaped: &TensorIr, dim: usize, k: usize) -> Result<(Output, Output)> {
        let rank = shaped.shape.len();
        if dim >= rank {
            return Err(no_dim(dim));
        }
        let value = self.swap_last(value, dim, rank)?;
        let top = self.node("TopKV2", [Input::Output(value), axis(k)?])?;
        Ok((self.swap_last(top, dim, rank)?, self.swap_last(top.port(1), dim, rank)?))
    }

    fn write_positions(&mut self, at: Output, out: &TensorIr) -> Result<()> {
        let at = self.cast(at, DType::I32, dtype(out.dtype)?)?;
        self.write(out, at)
    }
}
