//! Rules for cumulative operations along a dim.

use burn_ir::DimOpIr;
use meshtf_graph::Output;
use meshtf_tensor::failure::Result;
use smallvec::{SmallVec, smallvec};

use crate::Lowering;
use crate::base::no_dim;
use crate::compose::{axis, sizes};

impl Lowering<'_> {
    pub(super) fn cumulative(&mut self, op: &str, ir: &DimOpIr) -> Result<()> {
        let value = self.read(&ir.input)?;
        let value = self.node(op, [value.into(), axis(ir.axis)?])?;
        self.write(&ir.out, value)
    }

    /// The smallest, or largest, element so far, for which there is no op. After a round, each element has that of the last 2, 4,
    /// 8, .. up to it: one round for each bit of the dim's length.
    pub(super) fn running(&mut self, op: &str, ir: &DimOpIr) -> Result<()> {
        let shape = &ir.input.shape[..];
        let size = *shape.get(ir.axis).ok_or_else(|| no_dim(ir.axis))?;
        let mut value = self.read(&ir.input)?;
        let mut width = 1;
        while width < size {
            let first = self.part(value, shape, ir.axis, 0, width)?;
            let earlier = self.part(value, shape, ir.axis, 0, size - width)?;
            let later = self.part(value, shape, ir.axis, width, size - width)?;
            let merged = self.node(op, [earlier.into(), later.into()])?;
            value = self.node("ConcatV2", [first.into(), merged.into(), axis(ir.axis)?])?;
            width *= 2;
        }
        self.write(&ir.out, value)
    }

    /// `len` slices along a dim, from `start` on.
    fn part(&mut self, value: Output, shape: &[usize], dim: usize, start: usize, len: usize) -> Result<Output> {
        let mut begin: SmallVec<[usize; 8]> = smallvec![0; shape.len()];
        let mut size: SmallVec<[usize; 8]> = shape.into();
        (begin[dim], size[dim]) = (start, len);
        self.node("Slice", [value.into(), sizes(&begin)?, sizes(&size)?])
    }
}
