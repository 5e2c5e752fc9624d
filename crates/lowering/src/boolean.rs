//! Rules for operations on bools alone.

use burn_ir::BoolOperationIr;
use meshtf_tensor::failure::Result;

use super::Lowering;

impl Lowering<'_> {
    pub(super) fn boolean(&mut self, op: &BoolOperationIr) -> Result<()> {
        use BoolOperationIr as Op;
        match op {
            Op::IntoFloat(op) | Op::IntoInt(op) => self.converted(op),
            Op::Not(op) => self.unary("LogicalNot", op),
            Op::And(op) => self.binary("LogicalAnd", op),
            Op::Or(op) => self.binary("LogicalOr", op),
            Op::Xor(op) => self.binary("NotEqual", op),
        }
    }
}
