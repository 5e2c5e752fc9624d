//! The ops of optionals, and those that take any variant. Variants are values, not state: an op returns a new one, which may be
//! the old one, changed, if no other holder shares it.

use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::token::{Boxed, Optional, Token, Variant};
use super::super::variant::{sum, zeros};
use super::op::{StateOp, one, simple};
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
    ops.insert_if(has_variants, "Print", |node, _| {
        let no_kernel = || Failure::new(Code::Internal, "Print has no kernel");
        let mut host = meshtf_kernels::compile(node)?.ok_or_else(no_kernel)?;
        simple(move |mut inputs, _| {
            let printed =
                (0..inputs.0.len()).map(|i| shown(inputs.0.get(i).cloned().flatten())).collect::<Result<_>>()?;
            host(printed)?;
            Ok(one(inputs.token(0)?))
        })
    });
}

/// A Const of DT_VARIANT, whose content is a number or a bool.
///
/// # Errors
/// InvalidArgument if the content is not of rank 0.
pub(crate) fn constant(content: Tensor) -> Result<StateOp> {
    let variant = Token::from(Boxed::new(Shape::scalar(), vec![content.into()])?);
    simple(move |_, _| Ok(one(variant.clone())))
}

/// The tensor that Print writes for an input: for a variant, TensorFlow's words for it.
fn shown(token: Option<Token>) -> Result<Tensor> {
    match token.ok_or_else(|| Failure::invalid("an input of Print is missing"))? {
        Token::Variant(variant) => {
            let content = match &variant {
                Variant::Boxed(boxed) => boxed.number().cloned(),
                _ => None,
            };
            let Some(number) = content else {
                return Ok(Tensor::scalar(format!("Variant<type: {}>", variant.kind()).into_bytes()));
            };
            // TensorFlow names the type of C++.
            let kind = match number.dtype() {
                DType::I32 => "int".to_owned(),
                DType::F32 => "float".to_owned(),
                DType::F64 => "double".to_owned(),
                other => other.to_string(),
            };
            Ok(Tensor::scalar(format!("Variant<type: {kind} value: {}>", number.into_host()?).into_bytes()))
        }
        other => other.host(),
    }
}

fn has_variants(node: &KernelNode) -> Result<bool> {
    Ok(node.inputs.contains(&DType::Variant))
}

/// Whether the inputs of a node are variants.
pub(super) fn takes_variants(node: &KernelNode) -> Result<bool> {
    Ok(node.inputs.first() == Some(&DType::Variant))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(content: Tensor) -> Token {
        Boxed::new(Shape::scalar(), vec![content.into()]).unwrap().into()
    }

    /// The sum and the words are those of TensorFlow's aggregate_ops_test: 3 + 3 + 5 + 4 = 15.
    #[test]
    fn variants_of_numbers_are_added_and_printed() {
        let all = [3, 3, 5, 4].map(|number| variant(Tensor::scalar(number)));
        let total = all.into_iter().reduce(|a, b| sum(a, b).unwrap()).unwrap();
        let printed = |token: &Token| shown(Some(token.clone())).unwrap().item::<Vec<u8>>().unwrap();
        assert_eq!(printed(&total), b"Variant<type: int value: 15>");
        assert_eq!(printed(&zeros(total).unwrap()), b"Variant<type: int value: 0>");
        assert_eq!(printed(&variant(Tensor::scalar(0.5f32))), b"Variant<type: float value: 0.5>");
        assert_eq!(printed(&Optional::new(None).unwrap().into()), b"Variant<type: optional>");
        let mixed = sum(variant(Tensor::scalar(1)), variant(Tensor::scalar(1.0f32))).unwrap_err();
        assert!(mixed.to_string().contains("Cannot add float32"), "{mixed}");
        let kept = variant(Tensor::scalar(b"state".to_vec()));
        assert!(zeros(kept).is_err(), "the state of an iterator has no zeros");
    }
}
