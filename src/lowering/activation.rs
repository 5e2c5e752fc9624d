//! Operations of burn's `ActivationOperationIr`.

use burn_ir::ActivationOperationIr;

use super::{Lowering, refused};
use crate::failure::Result;

impl Lowering<'_> {
    pub(super) fn activation(&mut self, op: &ActivationOperationIr) -> Result<()> {
        Err(refused(&format!("{op:?}"), "no rule"))
    }
}
