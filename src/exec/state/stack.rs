//! Stacks: what a loop keeps for its gradient. They live as long as a handle to them flows through their step.

use std::sync::{Arc, Mutex};

use super::super::engine::{Engine, Value};
use super::super::kernel::KernelNode;
use super::super::resource::Resource;
use super::super::token::Token;
use super::{Site, StateOp, nothing, one, simple};
use crate::failure::{Failure, Result};
use crate::lock::lock;
use crate::memory;

/// Most values on one stack.
const MAX_STACK: usize = 1 << 24;

pub(in crate::exec) struct Stack {
    name: String,
    limit: usize,
    values: Mutex<Vec<Value>>,
}

pub(super) fn compile(node: &KernelNode, _site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    let name = node.name.to_owned();
    match node.op {
        // The older form states no size.
        "StackV2" | "Stack" => simple(move |mut inputs, _| {
            let stated = if inputs.0.is_empty() { -1 } else { inputs.host(0)?.to_i64()? };
            let limit = usize::try_from(stated).unwrap_or(MAX_STACK).min(MAX_STACK);
            let stack = Stack { name: name.clone(), limit, values: Mutex::new(Vec::new()) };
            Ok(one(Token::Resource(Resource::Stack(Arc::new(stack)))))
        }),
        "StackPushV2" => simple(|mut inputs, _| {
            let stack = inputs.stack(0)?;
            let value = inputs.value(1)?;
            let mut values = lock(&stack.values);
            if values.len() >= stack.limit {
                let why = format!("Stack[{}] overflowed its max_size ({})", stack.name, stack.limit);
                return Err(Failure::invalid(why));
            }
            memory::grow()?;
            values.push(value.clone());
            Ok(one(value))
        }),
        "StackCloseV2" => simple(|mut inputs, _| {
            lock(&inputs.stack(0)?.values).clear();
            Ok(nothing())
        }),
        "StackPopV2" => {
            let wanted = node.outputs.first().map(|output| output.dtype);
            simple(move |mut inputs, _| {
                let stack = inputs.stack(0)?;
                let value = lock(&stack.values).pop();
                let value = value
                    .ok_or_else(|| Failure::invalid(format!("Stack[{}] is empty when calling Pop().", stack.name)))?;
                if wanted.is_some_and(|dtype| dtype != value.dtype()) {
                    return Err(Failure::invalid(format!(
                        "Stack[{}] holds {}, not {:?}",
                        stack.name,
                        value.dtype(),
                        wanted
                    )));
                }
                Ok(one(value))
            })
        }
        _ => Ok(None),
    }
}

impl Stack {
    pub(in crate::exec) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of its values; 0 where somebody is just changing it.
    pub(in crate::exec) fn bytes(&self) -> usize {
        self.values.try_lock().map_or(0, |values| values.iter().map(Value::heap_bytes).sum())
    }
}
