//! The engine without a backend: every node runs its host kernel.

use super::engine::{Engine, EngineKernel, Value};
use super::kernel::KernelNode;
use crate::failure::Result;
use crate::tensor::Tensor;

/// No backend: every node runs its host kernel, every tensor stays where it is.
pub struct HostEngine;

impl Engine for HostEngine {
    fn name(&self) -> &str {
        "host"
    }

    fn compile(&self, _node: &KernelNode) -> Result<Option<EngineKernel>> {
        Ok(None)
    }

    fn upload(&self, tensor: Tensor) -> Result<Value> {
        Ok(Value::Host(tensor))
    }

    fn small(&self) -> usize {
        usize::MAX
    }
}
