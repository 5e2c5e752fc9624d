//! Pack of variants: datasets, or the arrays of tensors that stand for sparse tensors, as one array.

use meshtf_engine::Engine;
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape};

use super::super::dataset::Element;
use super::super::dataset::component::stacked;
use super::super::token::{Boxed, Token, Variant};
use super::named::Site;
use super::op::{StateOp, one, simple};

pub(super) fn compile(node: &KernelNode, _site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    if node.op != "Pack" || node.inputs.first() != Some(&DType::Variant) {
        return Ok(None);
    }
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
