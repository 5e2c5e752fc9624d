//! Operations of burn's `BoolOperationIr`.

use burn_ir::BoolOperationIr;

use super::{Lowering, refused};
use crate::failure::Result;

impl Lowering<'_> {
    pub(super) fn boolean(&mut self, op: &BoolOperationIr) -> Result<()> {
        Err(refused(&format!("{op:?}"), "no rule"))
    }
}
