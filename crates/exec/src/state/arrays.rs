//! Pack of variants: datasets, or the arrays of tensors that stand for sparse tensors, as one array.

use meshtf_kernels::KernelNode;
use meshtf_tensor::Shape;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::super::dataset::Element;
use super::super::dataset::component::stacked;
use super::super::token::{Boxed, Token, Variant};
use super::op::{StateOp, one, simple};
use super::optional::takes_variants;
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_if(takes_variants, "Pack", |node, _| pack(node));
}

fn pack(node: &KernelNode) -> Result<StateOp> {
    if node.attrs.int("axis")? != 0 {
        return Err(Failure::new(Code::Unimplemented, "variants are packed along axis 0 only"));
    }
    simple(|mut inputs, _| {
        let count = inputs.0.len();
        let all = inputs.held(0..count)?.into_iter().map(|token| array(token).map(|array| vec![array]));
        Ok(one(stacked(&all.collect::<Result<Vec<Element>>>()?, 0)?))
    })
}

/// An array as it is; another variant as an array without dimensions.
fn array(token: Token) -> Result<Token> {
    match token {
        Token::Variant(Variant::Boxed(_)) => Ok(token),
        other => Boxed::new(Shape::scalar(), vec![other]).map(Token::from),
    }
}
