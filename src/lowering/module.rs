//! Operations of burn's `ModuleOperationIr`.

use burn_ir::ModuleOperationIr;

use super::{Lowering, refused};
use crate::failure::Result;

impl Lowering<'_> {
    pub(super) fn module(&mut self, op: &ModuleOperationIr) -> Result<()> {
        Err(refused(&format!("{op:?}"), "no rule"))
    }
}
