//! The ops that save and restore: they touch the disk, in the folder that the task was given. States of iterators are saved
//! among the tensors, each as TensorFlow encodes a variant.

use prost::Message;

use super::super::engine::Engine;
use super::super::kernel::{KernelNode, checkpoint};
use super::super::token::{Boxed, Token, Variant};
use super::named::Site;
use super::op::{StateOp, simple};
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Shape, Tensor};

/// TensorFlow's VariantTensorDataProto.
#[derive(Clone, PartialEq, Message)]
struct VariantProto {
    #[prost(string, tag = "1")]
    type_name: String,
    #[prost(bytes = "vec", tag = "2")]
    metadata: Vec<u8>,
}

/// What the state of an iterator is called.
const ITERATOR: &str = "meshtf::Iterator";

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    let Some(mut kernel) = checkpoint::on_disk(node, site.resources.data())? else { return Ok(None) };
    let restored = if node.op == "RestoreV2" { node.attrs.dtypes("dtypes")?.to_vec() } else { Vec::new() };
    simple(move |mut inputs, _| {
        let given = (0..inputs.0.len()).map(|i| encoded(inputs.token(i)?)).collect::<Result<_>>()?;
        let outputs = kernel(given)?.into_iter().enumerate();
        let decoded = outputs.map(|(i, tensor)| match restored.get(i) {
            Some(DType::Variant) => decoded(&tensor).map(Some),
            _ => Ok(Some(tensor.into())),
        });
        decoded.collect()
    })
}

/// The tensor of an input; of the state of an iterator, the proto that stands for it.
fn encoded(token: Token) -> Result<Tensor> {
    let Token::Variant(Variant::Boxed(boxed)) = &token else { return token.host() };
    let (0, [Token::Value(state)]) = (boxed.shape.rank(), boxed.items()) else {
        return Err(Failure::invalid("a checkpoint keeps tensors and states of iterators, and no other variants"));
    };
    let metadata = state.clone().into_host()?.item::<Vec<u8>>()?;
    Ok(Tensor::scalar(VariantProto { type_name: ITERATOR.to_owned(), metadata }.encode_to_vec()))
}

/// The state that a proto stands for.
fn decoded(proto: &Tensor) -> Result<Token> {
    let proto = VariantProto::decode(&*proto.item::<Vec<u8>>()?).ok().filter(|proto| proto.type_name == ITERATOR);
    let proto =
        proto.ok_or_else(|| Failure::invalid("the checkpoint has a variant that is not the state of an iterator"))?;
    Boxed::new(Shape::scalar(), vec![Tensor::scalar(proto.metadata).into()]).map(Token::from)
}
