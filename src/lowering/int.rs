//! Operations of burn's `IntOperationIr`.

use burn_ir::IntOperationIr;

use super::{Lowering, refused};
use crate::failure::Result;

impl Lowering<'_> {
    pub(super) fn int(&mut self, op: &IntOperationIr) -> Result<()> {
        Err(refused(&format!("{op:?}"), "no rule"))
    }
}
