//! The ops of optionals, and those that take any variant. Variants are values, not state: an op returns a new one, which may be
//! the old one, changed, if no other holder shares it.

use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::token::{Optional, Token};
use super::super::variant::{sum, zeros};
use super::op::{one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_call("OptionalFromValue", |inputs, _| {
        let values = inputs.0.into_iter().flatten().map(Token::held).collect::<Result<Vec<_>>>()?;
        Ok(one(Optional::new(Some(values))?))
    });
    ops.insert_call("OptionalNone", |_, _| Ok(one(Optional::new(None)?)));
    ops.insert_call("OptionalHasValue", |mut inputs, _| Ok(one(Tensor::scalar(inputs.optional(0)?.values.is_some()))));
    ops.insert("OptionalGetValue", |node, _| {
        let count = node.outputs.len();
        simple(move |mut inputs, _| {
            let optional = inputs.optional(0)?;
            let Some(values) = &optional.values else {
                return Err(Failure::invalid("The given optional does not have a value."));
            };
            if values.len() != count {
                let why = format!("the optional holds {} values, not {count}", values.len());
                return Err(Failure::invalid(why));
            }
            Ok(values.iter().cloned().map(Some).collect())
        })
    });
    ops.insert_if(takes_variants, "ZerosLike", |_, _| simple(|mut inputs, _| Ok(one(zeros(inputs.token(0)?)?))));
    ops.insert_if(takes_variants, "AddN", |_, _| {
        simple(|inputs, _| {
            let mut all = inputs.0.into_iter().flatten();
            let first = all.next().ok_or_else(|| Failure::invalid("AddN takes at least one input"))?;
            Ok(one(all.try_fold(first, sum)?))
        })
    });
}

/// Whether the inputs of a node are variants.
pub(super) fn takes_variants(node: &KernelNode) -> Result<bool> {
    Ok(node.inputs.first() == Some(&DType::Variant))
}
