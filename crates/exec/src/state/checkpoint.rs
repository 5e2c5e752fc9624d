//! The ops that save and restore: they access the disk, in the folder that the task was given. States of iterators are saved
//! among the tensors, in TensorFlow's encoding of a variant; so are those that become strings.

use meshtf_kernels::{KernelNode, checkpoint};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};
use prost::Message;

use super::super::token::{Boxed, Token, Variant};
use super::named::Site;
use super::op::{StateOp, one, simple};
use super::registry::Registry;

/// TensorFlow's VariantTensorDataProto.
#[derive(Clone, PartialEq, Message)]
struct VariantProto {
    #[prost(string, tag = "1")]
    type_name: String,
    #[prost(bytes = "vec", tag = "2")]
    metadata: Vec<u8>,
}

/// TensorFlow's TensorProto of a variant.
#[derive(Clone, PartialEq, Message)]
struct TensorOfVariant {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<NoDims>,
    #[prost(message, repeated, tag = "15")]
    variants: Vec<VariantProto>,
}

#[derive(Clone, PartialEq, Message)]
struct NoDims {}

/// The type name of the state of an iterator.
const ITERATOR: &str = "meshtf::Iterator";

pub(super) fn register(ops: &mut Registry) {
    let is_state = |node: &KernelNode| Ok(node.attrs.dtype("T")? == DType::Variant);
    ops.insert_if(is_state, "SerializeTensor", |_, _| {
        simple(|mut inputs, _| {
            let variants = vec![proto_of(&inputs.token(0)?)?];
            let dtype = DType::Variant.proto_number();
            let proto = TensorOfVariant { dtype, shape: Some(NoDims {}), variants };
            Ok(one(Tensor::scalar(proto.encode_to_vec())))
        })
    });
    let is_state = |node: &KernelNode| Ok(node.attrs.dtype("out_type")? == DType::Variant);
    ops.insert_if(is_state, "ParseTensor", |_, _| {
        simple(|mut inputs, _| {
            let proto = TensorOfVariant::decode(&*inputs.host(0)?.item::<Vec<u8>>()?).ok();
            let variant = proto.and_then(|mut proto| proto.variants.pop());
            state_of(variant.ok_or_else(|| Failure::invalid("Could not parse `serialized` as TensorProto"))?).map(one)
        })
    });
    for op in checkpoint::ops() {
        ops.insert(op, on_disk);
    }
}

/// An op that saves, restores or merges.
fn on_disk(node: &KernelNode, site: &Site) -> Result<StateOp> {
    let no_kernel = || Failure::new(Code::Internal, format!("{} has no kernel", node.op));
    let mut kernel = checkpoint::on_disk(node, site.folder(node))?.ok_or_else(no_kernel)?;
    let dtypes: Vec<DType> = node.outputs.iter().map(|output| output.dtype).collect();
    simple(move |mut inputs, _| {
        let given = (0..inputs.0.len()).map(|i| encoded(inputs.token(i)?)).collect::<Result<_>>()?;
        let outputs = kernel(given)?.into_iter().enumerate();
        let decoded = outputs.map(|(i, tensor)| match dtypes.get(i) {
            Some(DType::Variant) => decoded(&tensor).map(Some),
            _ => Ok(Some(tensor.into())),
        });
        decoded.collect()
    })
}

/// The tensor of an input; for the state of an iterator, its proto.
fn encoded(token: Token) -> Result<Tensor> {
    match &token {
        Token::Variant(_) => Ok(Tensor::scalar(proto_of(&token)?.encode_to_vec())),
        _ => token.host(),
    }
}

fn proto_of(token: &Token) -> Result<VariantProto> {
    if let Token::Variant(Variant::Boxed(boxed)) = token
        && let (0, [Token::Value(state)]) = (boxed.shape.rank(), boxed.items())
    {
        let metadata = state.clone().into_host()?.item::<Vec<u8>>()?;
        return Ok(VariantProto { type_name: ITERATOR.to_owned(), metadata });
    }
    Err(Failure::invalid("of variants, only the states of iterators can be saved"))
}

/// The state in a proto.
fn decoded(proto: &Tensor) -> Result<Token> {
    let proto = VariantProto::decode(&*proto.item::<Vec<u8>>()?);
    state_of(proto.map_err(|error| Failure::invalid(format!("the checkpoint has a variant that is none: {error}")))?)
}

fn state_of(proto: VariantProto) -> Result<Token> {
    if proto.type_name != ITERATOR {
        let why =
            format!("of variants, only the states of iterators can be restored, and this is {:?}", proto.type_name);
        return Err(Failure::invalid(why));
    }
    Boxed::new(Shape::scalar(), vec![Tensor::scalar(proto.metadata).into()]).map(Token::from)
}
