//! Operations of burn's `BaseOperationIr`.

use burn_ir::BaseOperationIr;

use super::{Lowering, refused};
use crate::failure::Result;

impl Lowering<'_> {
    pub(super) fn base(&mut self, op: &BaseOperationIr) -> Result<()> {
        Err(refused(&format!("{op:?}"), "no rule"))
    }
}
