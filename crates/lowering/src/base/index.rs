//! Rules for elements and slices at indices: gather, and scatter into a tensor.
//!
//! An index out of range fails the step, on every device.

use burn_ir::{GatherNdOpIr, GatherOpIr, ScatterNdOpIr, ScatterOpIr, SelectAssignOpIr, SelectOpIr, TensorIr};
use burn_std::IndexingUpdateOp as Update;
use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::no_dim;
use crate::Lowering;
use crate::compose::{axis, sizes};
use crate::values::dtype;

/// Positions in a tensor: the coordinates of a position are along the last dim.
struct Positions {
    value: Output,
    /// The number of positions.
    count: usize,
    /// The number of coordinates of each.
    depth: usize,
}

impl Lowering<'_> {
    pub(super) fn select(&mut self, op: &SelectOpIr) -> Result<()> {
        let tensor = self.read(&op.tensor)?;
        let (indices, _) = self.indices(&op.indices)?;
        let value = self.node("GatherV2", [tensor.into(), indices.into(), axis(op.dim)?])?;
        self.write(&op.out, value)
    }

    /// out[i][j] = tensor[indices[i][j]][j] for dim 0: along the last dim, with the other dims as batch dims.
    pub(super) fn gather(&mut self, op: &GatherOpIr) -> Result<()> {
        let tensor = self.read(&op.tensor)?;
        let (indices, of) = self.indices(&op.indices)?;
        let rank = op.tensor.shape.len();
        let last = rank.checked_sub(1).filter(|_| op.dim < rank).ok_or_else(|| no_dim(op.dim))?;
        let agree = (0..rank).all(|dim| dim == op.dim || op.tensor.shape[dim] == op.indices.shape[dim]);
        let value = if agree {
            let (tensor, indices) = (self.swap_last(tensor, op.dim, rank)?, self.swap_last(indices, op.dim, rank)?);
            let batch = [("batch_dims", (last as i64).into())];
            let value = self.node_with("GatherV2", [tensor.into(), indices.into(), axis(last)?], &batch)?;
            self.swap_last(value, op.dim, rank)?
        } else {
            let positions = self.full_indices(indices, of, &op.indices.shape, op.dim)?;
            self.node("GatherNd", [tensor.into(), positions.into()])?
        };
        self.write(&op.out, value)
    }

    pub(super) fn gather_nd(&mut self, op: &GatherNdOpIr) -> Result<()> {
        let data = self.read(&op.data)?;
        let (indices, _) = self.indices(&op.indices)?;
        let value = self.node("GatherNd", [data.into(), indices.into()])?;
        self.write(&op.out, value)
    }

    /// Along a dim, slice i of the value goes to slice `indices[i]` of the tensor.
    pub(super) fn select_assign(&mut self, op: &SelectAssignOpIr) -> Result<()> {
        let (indices, of) = self.indices(&op.indices)?;
        let count = op.indices.shape.iter().product();
        let depth = op.dim + 1;
        let at: Vec<usize> = op.value.shape.iter().copied().take(depth).collect();
        if at.len() < depth {
            return Err(no_dim(op.dim));
        }
        // The dims before it are part of the positions, those after it belong to the slices.
        let value = if op.dim == 0 {
            self.reshape(indices, &op.indices.shape, &[count, 1])?
        } else {
            let mut along = vec![1; depth];
            along[op.dim] = count;
            let indices = self.reshape(indices, &op.indices.shape, &along)?;
            let indices = self.broadcast(indices, &along, &at)?;
            self.full_indices(indices, of, &at, op.dim)?
        };
        let positions = Positions { value, count: at.iter().product(), depth };
        self.update(&op.tensor, positions, &op.value, op.update, &op.out)
    }

    /// Element i, j of the value goes to tensor[indices[i][j]][j] for dim 0.
    pub(super) fn scatter(&mut self, op: &ScatterOpIr) -> Result<()> {
        let (indices, of) = self.indices(&op.indices)?;
        if op.dim >= op.tensor.shape.len() {
            return Err(no_dim(op.dim));
        }
        let value = self.full_indices(indices, of, &op.indices.shape, op.dim)?;
        let count = op.indices.shape.iter().product();
        let positions = Positions { value, count, depth: op.indices.shape.len() };
        self.update(&op.tensor, positions, &op.value, op.update, &op.out)
    }

    pub(super) fn scatter_nd(&mut self, op: &ScatterNdOpIr) -> Result<()> {
        let (value, _) = self.indices(&op.indices)?;
        let (&depth, outer) = op.indices.shape.split_last().ok_or_else(|| no_dim(0))?;
        let positions = Positions { value, count: outer.iter().product(), depth };
        self.update(&op.data, positions, &op.values, op.reduction, &op.out)
    }

    fn update(
        &mut self,
        tensor: &TensorIr,
        positions: Positions,
        value: &TensorIr,
        update: Update,
        out: &TensorIr,
    ) -> Result<()> {
        let (into, updates) = (self.read(tensor)?, self.read(value)?);
        let of = dtype(tensor.dtype)?;
        let op = match update {
            // burn's "add" of bools is their disjunction.
            Update::Add if of == DType::Bool => {
                let [into, updates] = [into, updates].map(|value| self.cast(value, of, DType::I32));
                let merged = self.node("TensorScatterMax", [into?.into(), positions.value.into(), updates?.into()])?;
                let merged = self.cast(merged, DType::I32, of)?;
                return self.write(out, merged);
            }
            Update::Mul => {
                let product = self.multiplied(into, positions, updates, tensor, value)?;
                return self.write(out, product);
            }
            Update::Assign => "TensorScatterUpdate",
            Update::Add => "TensorScatterAdd",
            Update::Min => "TensorScatterMin",
            Update::Max => "TensorScatterMax",
        };
        let value = self.node(op, [into.into(), positions.value.into(), updates.into()])?;
        self.write(out, value)
    }

    /// No op scatters products: multiplies by the product of all updates of the same position.
    fn multiplied(
        &mut self,
        into: Output,
        positions: Positions,
        updates: Output,
        tensor: &TensorIr,
        value: &TensorIr,
    ) -> Result<Output> {
        let shape = &tensor.shape[..];
        let Some((outer, inner)) = shape.split_at_checked(positions.depth) else {
            let why = format!("positions of {} numbers in a tensor of shape {shape:?}", positions.depth);
            return Err(Failure::invalid(why));
        };
        // The flat index of each position, looked up so that a coordinate out of range fails instead of wrapping into another
        // position.
        let slices: usize = outer.iter().product();
        let numbers = self.node("Range", [axis(0)?, axis(slices)?, axis(1)?])?;
        let numbers = self.node("Reshape", [numbers.into(), sizes(outer)?])?;
        let numbers = self.node("GatherNd", [numbers.into(), positions.value.into()])?;
        let numbers = self.node("Reshape", [numbers.into(), sizes(&[positions.count])?])?;
        let mut flat = vec![positions.count];
        flat.extend(inner);
        let updates = self.reshape(updates, &value.shape, &flat)?;
        let factors = self.node("UnsortedSegmentProd", [updates.into(), numbers.into(), axis(slices)?])?;
        flat[0] = slices;
        let factors = self.reshape(factors, &flat, shape)?;
        self.node("Mul", [into.into(), factors.into()])
    }
}
