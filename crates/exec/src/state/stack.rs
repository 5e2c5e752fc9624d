//! The ops of stacks.

use std::sync::Arc;

use meshtf_tensor::DType;
use meshtf_tensor::failure::Failure;

use super::super::resource::{Kept, Stack};
use super::super::token::{Token, Variant};
use super::op::{nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    // The older form has no size.
    ops.insert_all(["StackV2", "Stack"], |node, _| {
        let name = node.name.to_owned();
        simple(move |mut inputs, _| {
            let stated = if inputs.0.is_empty() { -1 } else { inputs.host(0)?.to_i64()? };
            let limit = usize::try_from(stated).unwrap_or(usize::MAX);
            let stack = Stack::new(name.clone(), limit);
            Ok(one(Token::Resource(Arc::new(stack))))
        })
    });
    ops.insert_call("StackPushV2", |mut inputs, _| {
        let stack = inputs.stack(0)?;
        let kept = match inputs.token(1)? {
            Token::Resource(handle) => Kept::Handle(handle),
            Token::Variant(Variant::List(list)) => Kept::List(list),
            other => Kept::Value(other.value()?),
        };
        stack.push(kept.clone())?;
        Ok(one(back(kept)))
    });
    ops.insert_call("StackCloseV2", |mut inputs, _| {
        inputs.stack(0)?.clear();
        Ok(nothing())
    });
    ops.insert("StackPopV2", |node, _| {
        let wanted = node.outputs.first().map(|output| output.dtype);
        simple(move |mut inputs, _| {
            let stack = inputs.stack(0)?;
            let kept = stack.pop()?;
            let dtype = match &kept {
                Kept::Value(value) => value.dtype(),
                Kept::Handle(_) => DType::Resource,
                Kept::List(_) => DType::Variant,
            };
            match wanted {
                Some(wanted) if wanted != dtype => {
                    Err(Failure::invalid(format!("Stack[{}] holds {dtype}, not {wanted}", stack.name())))
                }
                _ => Ok(one(back(kept))),
            }
        })
    });
}

fn back(kept: Kept) -> Token {
    match kept {
        Kept::Value(value) => Token::Value(value),
        Kept::Handle(handle) => Token::Resource(handle),
        Kept::List(list) => Token::Variant(Variant::List(list)),
    }
}
