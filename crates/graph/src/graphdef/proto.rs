//! The messages of a GraphDef, with TensorFlow's field numbers, and their form in protobuf's JSON mapping.
//!
//! Only the fields that a graph needs are defined; other fields are skipped on reading. Dtypes stay numbers until a node uses
//! them.

// The messages and fields are documented by TensorFlow.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GraphDef {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeDef>,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<FunctionDefLibrary>,
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions: Option<VersionDef>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct VersionDef {
    #[prost(int32, tag = "1")]
    pub producer: i32,
}

/// The functions of a graph.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct FunctionDefLibrary {
    #[prost(message, repeated, tag = "1")]
    pub function: Vec<FunctionDef>,
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gradient: Vec<GradientDef>,
}

/// The function of a library that computes the gradient of another.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GradientDef {
    #[prost(string, tag = "1")]
    pub function_name: String,
    #[prost(string, tag = "2")]
    pub gradient_func: String,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionDef {
    #[prost(message, optional, tag = "1")]
    pub signature: Option<Signature>,
    #[prost(message, repeated, tag = "3")]
    pub node_def: Vec<NodeDef>,
    /// The tensor of the body for each output.
    #[prost(btree_map = "string, string", tag = "4")]
    pub ret: BTreeMap<String, String>,
    /// The nodes of the body that run even if no output needs them.
    #[prost(btree_map = "string, string", tag = "6")]
    pub control_ret: BTreeMap<String, String>,
}

/// The OpDef of a function.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Signature {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub input_arg: Vec<ArgDef>,
    #[prost(message, repeated, tag = "3")]
    pub output_arg: Vec<ArgDef>,
    #[prost(message, repeated, tag = "4")]
    pub attr: Vec<AttrDef>,
}

/// A formal input or output: of one type, of the type named by an attribute, or as many as attributes specify.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ArgDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int32, tag = "3")]
    #[serde(serialize_with = "data_type")]
    pub r#type: i32,
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub type_attr: String,
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub number_attr: String,
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub type_list_attr: String,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttrDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_value: Option<AttrValue>,
}

/// The name for this [`NodeDef`] next to the graph's own. protobuf's errors contain the defined name, so that is TensorFlow's.
pub type NodeMessage = NodeDef;

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub op: String,
    #[prost(string, repeated, tag = "3")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input: Vec<String>,
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device: String,
    #[prost(btree_map = "string, message", tag = "5")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attr: BTreeMap<String, AttrValue>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct AttrValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    #[serde(flatten)]
    pub value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Value {
    // The two large ones are boxed; otherwise every attribute would be as large.
    #[prost(message, boxed, tag = "1")]
    List(Box<ListValue>),
    #[prost(bytes, tag = "2")]
    #[serde(serialize_with = "base64")]
    S(Vec<u8>),
    #[prost(int64, tag = "3")]
    #[serde(serialize_with = "text")]
    I(i64),
    #[prost(float, tag = "4")]
    #[serde(serialize_with = "float")]
    F(f32),
    #[prost(bool, tag = "5")]
    B(bool),
    #[prost(int32, tag = "6")]
    #[serde(serialize_with = "data_type")]
    Type(i32),
    #[prost(message, tag = "7")]
    Shape(TensorShapeProto),
    #[prost(message, boxed, tag = "8")]
    Tensor(Box<TensorProto>),
    #[prost(string, tag = "9")]
    Placeholder(String),
    #[prost(message, tag = "10")]
    Func(NameAttrList),
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct ListValue {
    #[prost(bytes, repeated, tag = "2")]
    #[serde(serialize_with = "base64s", skip_serializing_if = "Vec::is_empty")]
    pub s: Vec<Vec<u8>>,
    #[prost(int64, repeated, tag = "3")]
    #[serde(serialize_with = "texts", skip_serializing_if = "Vec::is_empty")]
    pub i: Vec<i64>,
    #[prost(float, repeated, tag = "4")]
    #[serde(serialize_with = "floats", skip_serializing_if = "Vec::is_empty")]
    pub f: Vec<f32>,
    #[prost(bool, repeated, tag = "5")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub b: Vec<bool>,
    #[prost(int32, repeated, tag = "6")]
    #[serde(serialize_with = "data_types", skip_serializing_if = "Vec::is_empty")]
    pub r#type: Vec<i32>,
    #[prost(message, repeated, tag = "7")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<TensorShapeProto>,
    #[prost(message, repeated, tag = "8")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensor: Vec<TensorProto>,
    #[prost(message, repeated, tag = "9")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub func: Vec<NameAttrList>,
}

/// A function named by an attribute, with its own attributes.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct NameAttrList {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(btree_map = "string, message", tag = "2")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attr: BTreeMap<String, AttrValue>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dim: Vec<Dim>,
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown_rank: bool,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct Dim {
    /// -1 if it is unknown.
    #[prost(int64, tag = "1")]
    #[serde(serialize_with = "text")]
    pub size: i64,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TensorProto {
    #[prost(int32, tag = "1")]
    #[serde(serialize_with = "data_type")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub tensor_shape: Option<TensorShapeProto>,
    #[prost(bytes, tag = "4")]
    #[serde(serialize_with = "base64", skip_serializing_if = "Vec::is_empty")]
    pub tensor_content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    #[serde(serialize_with = "floats", skip_serializing_if = "Vec::is_empty")]
    pub float_val: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    #[serde(serialize_with = "doubles", skip_serializing_if = "Vec::is_empty")]
    pub double_val: Vec<f64>,
    /// int32, int16, int8, uint16 and uint8, and the quantised dtypes that are stored as them.
    #[prost(int32, repeated, tag = "7")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub int_val: Vec<i32>,
    #[prost(bytes, repeated, tag = "8")]
    #[serde(serialize_with = "base64s", skip_serializing_if = "Vec::is_empty")]
    pub string_val: Vec<Vec<u8>>,
    /// The real and the imaginary part of each complex64 in turn.
    #[prost(float, repeated, tag = "9")]
    #[serde(serialize_with = "floats", skip_serializing_if = "Vec::is_empty")]
    pub scomplex_val: Vec<f32>,
    #[prost(int64, repeated, tag = "10")]
    #[serde(serialize_with = "texts", skip_serializing_if = "Vec::is_empty")]
    pub int64_val: Vec<i64>,
    #[prost(bool, repeated, tag = "11")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bool_val: Vec<bool>,
    /// As `scomplex_val`, for complex128.
    #[prost(double, repeated, tag = "12")]
    #[serde(serialize_with = "doubles", skip_serializing_if = "Vec::is_empty")]
    pub dcomplex_val: Vec<f64>,
    /// The bits of float16 and bfloat16.
    #[prost(int32, repeated, tag = "13")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub half_val: Vec<i32>,
    #[prost(message, repeated, tag = "15")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variant_val: Vec<VariantTensorDataProto>,
    #[prost(uint32, repeated, tag = "16")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uint32_val: Vec<u32>,
    #[prost(uint64, repeated, tag = "17")]
    #[serde(serialize_with = "texts", skip_serializing_if = "Vec::is_empty")]
    pub uint64_val: Vec<u64>,
}

/// A variant: the name of its type, and its content in an encoding of that type.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VariantTensorDataProto {
    #[prost(string, tag = "1")]
    pub type_name: String,
    #[prost(bytes, tag = "2")]
    #[serde(serialize_with = "base64", skip_serializing_if = "Vec::is_empty")]
    pub metadata: Vec<u8>,
}

/// The names of `tensorflow.DataType` that meshtf has no dtype for, without their `DT_`.
const FOREIGN: [(&str, i32); 11] = [
    ("INVALID", 0),
    ("FLOAT8_E5M2", 24),
    ("FLOAT8_E4M3FN", 25),
    ("FLOAT8_E4M3FNUZ", 26),
    ("FLOAT8_E4M3B11FNUZ", 27),
    ("FLOAT8_E5M2FNUZ", 28),
    ("INT4", 29),
    ("UINT4", 30),
    ("INT2", 31),
    ("UINT2", 32),
    ("FLOAT4_E2M1FN", 33),
];

/// `DT_FLOAT` for 1, `DT_FLOAT_REF` for 101; the number itself if it has no name.
pub(super) fn data_type_name(number: i32) -> String {
    let (plain, suffix) = if number > 100 { (number - 100, "_REF") } else { (number, "") };
    let own = meshtf_tensor::DType::from_proto(plain).map(|(dtype, _)| dtype.proto_name());
    let name = own.or_else(|| FOREIGN.iter().find(|(_, n)| *n == plain).map(|(name, _)| *name));
    name.map_or_else(|| number.to_string(), |name| format!("DT_{name}{suffix}"))
}

/// The number of `DT_FLOAT`.
pub(super) fn data_type_number(name: &str) -> Option<i32> {
    let name = name.strip_prefix("DT_")?;
    let (name, offset) = name.strip_suffix("_REF").map_or((name, 0), |name| (name, 100));
    meshtf_tensor::DType::all()
        .find(|dtype| dtype.proto_name() == name)
        .map(|dtype| dtype.proto_number())
        .or_else(|| FOREIGN.iter().find(|(own, _)| *own == name).map(|(_, number)| *number))
        .map(|number| number + offset)
}

fn text<T: ToString, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn texts<T: ToString, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(T::to_string))
}

fn base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&super::encode_base64(bytes))
}

fn base64s<S: Serializer>(values: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|bytes| super::encode_base64(bytes)))
}

fn data_type<S: Serializer>(number: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&data_type_name(*number))
}

fn data_types<S: Serializer>(numbers: &[i32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(|&number| data_type_name(number)))
}

/// A number, or the word that stands for one that JSON cannot write.
#[derive(Serialize)]
#[serde(untagged)]
enum Real<T> {
    Number(T),
    Word(&'static str),
}

macro_rules! reals {
    ($many:ident, $type:ty, $real:ident) => {
        fn $real(value: $type) -> Real<$type> {
            match value {
                v if v.is_nan() => Real::Word("NaN"),
                <$type>::INFINITY => Real::Word("Infinity"),
                <$type>::NEG_INFINITY => Real::Word("-Infinity"),
                v => Real::Number(v),
            }
        }

        fn $many<S: Serializer>(values: &[$type], serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(values.iter().map(|&value| $real(value)))
        }
    };
}

reals!(floats, f32, real32);
reals!(doubles, f64, real64);

fn float<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    real32(*value).serialize(serializer)
}
