use super::super::{HostKernel, KernelNode};
use crate::failure::Result;
pub(super) fn kernel(_node: &KernelNode) -> Result<Option<HostKernel>> {
    Ok(None)
}
