//! The ops of stacks.

use std::sync::Arc;

use super::super::engine::Engine;
use super::super::kernel::KernelNode;
use super::super::resource::{Resource, Stack};
use super::super::token::Token;
use super::named::Site;
use super::op::{StateOp, nothing, one, simple};
use crate::failure::{Failure, Result};

pub(super) fn compile(node: &KernelNode, _site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    let name = node.name.to_owned();
    match node.op {
        // The older form states no size.
        "StackV2" | "Stack" => simple(move |mut inputs, _| {
            let stated = if inputs.0.is_empty() { -1 } else { inputs.host(0)?.to_i64()? };
            let limit = usize::try_from(stated).unwrap_or(usize::MAX);
            let stack = Stack::new(name.clone(), limit);
            Ok(one(Token::Resource(Resource::Stack(Arc::new(stack)))))
        }),
        "StackPushV2" => simple(|mut inputs, _| {
            let stack = inputs.stack(0)?;
            let value = inputs.value(1)?;
            stack.push(value.clone())?;
            Ok(one(value))
        }),
        "StackCloseV2" => simple(|mut inputs, _| {
            inputs.stack(0)?.clear();
            Ok(nothing())
        }),
        "StackPopV2" => {
            let wanted = node.outputs.first().map(|output| output.dtype);
            simple(move |mut inputs, _| {
                let stack = inputs.stack(0)?;
                let value = stack.pop()?;
                if wanted.is_some_and(|dtype| dtype != value.dtype()) {
                    return Err(Failure::invalid(format!(
                        "Stack[{}] holds {}, not {:?}",
                        stack.name(),
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
