//! Operations of burn's `NumericOperationIr`.

use burn_ir::NumericOperationIr;

use super::{Lowering, refused};
use crate::failure::Result;

impl Lowering<'_> {
    pub(super) fn numeric(&mut self, op: &NumericOperationIr) -> Result<()> {
        Err(refused(&format!("{op:?}"), "no rule"))
    }
}
