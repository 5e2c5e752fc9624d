//! The ops of optionals, and those that take any variant. Variants are values, not state: an op returns a new one, which may be
//! the old one, changed, if no other holder shares it.

use meshtf_engine::Engine;
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::token::{Optional, Token};
use super::super::variant::{sum, zeros};
use super::named::Site;
use super::op::{StateOp, one, simple};

pub(super) fn compile(node: &KernelNode, _site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    let takes_variants = node.inputs.first() == Some(&DType::Variant);
    match node.op {
        "OptionalFromValue" => simple(|inputs, _| {
            let values = inputs.0.into_iter().flatten().map(Token::held).collect::<Result<Vec<_>>>()?;
            Ok(one(Optional::new(Some(values))?))
        }),
        "OptionalNone" => simple(|_, _| Ok(one(Optional::new(None)?))),
        "OptionalHasValue" => simple(|mut inputs, _| Ok(one(Tensor::scalar(inputs.optional(0)?.values.is_some())))),
        "OptionalGetValue" => {
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
        }
        "ZerosLike" if takes_variants => simple(|mut inputs, _| Ok(one(zeros(inputs.token(0)?)?))),
        "AddN" if takes_variants => simple(|inputs, _| {
            let mut all = inputs.0.into_iter().flatten();
            let first = all.next().ok_or_else(|| Failure::invalid("AddN takes at least one input"))?;
            Ok(one(all.try_fold(first, sum)?))
        }),
        _ => Ok(None),
    }
}
