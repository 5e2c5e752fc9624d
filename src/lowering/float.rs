//! Operations of burn's `FloatOperationIr`.

use burn_ir::FloatOperationIr;

use super::{Lowering, refused};
use crate::failure::Result;

impl Lowering<'_> {
    pub(super) fn float(&mut self, op: &FloatOperationIr) -> Result<()> {
        Err(refused(&format!("{op:?}"), "no rule"))
    }
}
