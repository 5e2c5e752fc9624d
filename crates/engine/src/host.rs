//! The engine without a backend: every node runs its host kernel.

use meshtf_kernels::KernelNode;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;

use crate::{Engine, EngineKernel, Value};

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
