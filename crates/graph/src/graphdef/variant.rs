//! Constants of DT_VARIANT: a number or a bool under the name of its C++ type, which is the only content that TensorFlow
//! decodes from a graph, adds up and has zeros of.

use meshtf_tensor::{DType, Shape, Tensor};

use super::proto::{TensorProto, TensorShapeProto, VariantTensorDataProto};
use crate::Attr;

/// The types, by the names in a message.
const TYPES: [(&str, DType); 4] =
    [("int", DType::I32), ("float", DType::F32), ("double", DType::F64), ("bool", DType::Bool)];

/// The constant in a message of DT_VARIANT, whose shape is this.
pub(super) fn from_proto(proto: &TensorProto, shape: &Shape) -> Result<Attr, String> {
    let ([value], 0) = (proto.variant_val.as_slice(), shape.rank()) else {
        let count = proto.variant_val.len();
        return Err(format!("has {count} variants and the shape {shape}; a constant of DT_VARIANT is one of shape []"));
    };
    let Some((_, dtype)) = TYPES.iter().find(|(name, _)| *name == value.type_name) else {
        let known: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
        let why = "a constant of DT_VARIANT is one of";
        return Err(format!("is a DT_VARIANT of type {:?}; {why} {}", value.type_name, known.join(", ")));
    };
    Tensor::from_bytes(*dtype, Shape::scalar(), &value.metadata).map(Attr::Variant).map_err(|failure| failure.message)
}

/// The message of a variant that contains a number or a bool.
pub(super) fn to_proto(content: &Tensor) -> TensorProto {
    let name = TYPES.iter().find(|(_, dtype)| *dtype == content.dtype()).map_or("", |(name, _)| name);
    let metadata = content.bytes().map(<[u8]>::to_vec).unwrap_or_default();
    TensorProto {
        dtype: DType::Variant.proto_number(),
        tensor_shape: Some(TensorShapeProto::default()),
        variant_val: vec![VariantTensorDataProto { type_name: name.to_owned(), metadata }],
        ..TensorProto::default()
    }
}
