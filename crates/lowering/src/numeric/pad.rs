//! Rules for padding.

use burn_ir::{PadModeIr, PadOpIr};
use meshtf_graph::Input;
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use crate::Lowering;
use crate::compose::{axis, integers};
use crate::values::dtype;

impl Lowering<'_> {
    pub(super) fn pad(&mut self, op: &PadOpIr) -> Result<()> {
        let shape = &op.input.shape[..];
        if op.padding.len() != shape.len() {
            let why = format!("there are {} paddings for {} dims", op.padding.len(), shape.len());
            return Err(Failure::invalid(why));
        }
        let mut value = self.read(&op.input)?;
        let amounts = op.padding.iter().flat_map(|&(before, after)| [before, after]);
        let amounts = Input::Value(integers(amounts, DType::I64)?.reshaped([shape.len(), 2])?);
        match op.mode {
            PadModeIr::Constant(scalar) => {
                let fill = self.scalar_input(scalar, dtype(op.input.dtype)?)?;
                value = self.node("PadV2", [value.into(), amounts, fill])?;
            }
            PadModeIr::Reflect => {
                value = self.node_with("MirrorPad", [value.into(), amounts], &[("mode", "REFLECT".into())])?;
            }
            // The positions beyond a border are those of the border.
            PadModeIr::Edge => {
                for (dim, (&(before, after), &size)) in op.padding.iter().zip(shape).enumerate() {
                    if before + after == 0 {
                        continue;
                    }
                    let last = size.checked_sub(1).ok_or_else(|| Failure::invalid("an empty dim has no edge"))?;
                    let from = (0..before + size + after).map(|at| at.saturating_sub(before).min(last));
                    let from = Input::Value(integers(from, DType::I32)?);
                    value = self.node("GatherV2", [value.into(), from, axis(dim)?])?;
                }
            }
        }
        self.write(&op.out, value)
    }
}
