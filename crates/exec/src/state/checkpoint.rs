//! The ops that save and restore: they access the disk, in the folder that the task was given. States of iterators are saved
//! among the tensors, in TensorFlow's encoding of a variant; so are those that become strings.

use meshtf_engine::Engine;
use meshtf_kernels::{KernelNode, checkpoint};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};
use prost::Message;

use super::super::token::{Boxed, Token, Variant};
use super::named::Site;
use super::op::{StateOp, one, simple};

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

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    match node.op {
        "SerializeTensor" if node.attrs.dtype("T")? == DType::Variant => {
            return simple(|mut inputs, _| {
                let variants = vec![proto_of(&inputs.token(0)?)?];
                let dtype = DType::Variant.proto_number();
                let proto = TensorOfVariant { dtype, shape: Some(NoDims {}), variants };
                Ok(one(Tensor::scalar(proto.encode_to_vec())))
            });
        }
        "ParseTensor" if node.attrs.dtype("out_type")? == DType::Variant => {
            return simple(|mut inputs, _| {
                let proto = TensorOfVariant::decode(&*inputs.host(0)?.item::<Vec<u8>>()?).ok();
                let variant = proto.and_then(|mut proto| proto.variants.pop());
                state_of(variant.ok_or_else(|| Failure::invalid("Could not parse `serialized` as TensorProto"))?)
                    .map(one)
            });
        }
        _ => {}
    }
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
