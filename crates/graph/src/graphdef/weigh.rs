//! The memory that a message takes once it is decoded, computed from its bytes: two bytes can require hundreds.
//!
//! Walks the fields without allocating them, so that a message of an unauthenticated peer, or one that is designed to be large,
//! is refused while it is still small. The cost of a field is specified by a [`Schema`] next to the messages of a GraphDef.

use meshtf_tensor::failure::{Code, Failure, Result};
use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};

use super::proto;
use crate::MAX_NODES;

/// Most bytes that the messages of a graph may take while it is read.
pub const MAX_GRAPH_BYTES: usize = 4 << 30;
/// Deepest nesting of messages: the limit of protobuf's own decoders.
const MAX_DEPTH: usize = 100;
/// The number of elements for which a list makes room with its first, and for each further one: it doubles when it is full.
const FIRST: usize = 4;
const FURTHER: usize = 2;
/// The same numbers for a map: its first entry takes a whole leaf, and leaves stay at least half full.
const FIRST_ENTRY: usize = 12;

/// A kind of message: its fields by their number, below 64. Other fields are skipped, as decoders do.
pub struct Schema(pub &'static [(u32, Field)]);

/// The cost of a field.
pub enum Field {
    /// A string or bytes, not repeated.
    Text,
    /// Strings or bytes, each with a handle.
    Texts,
    /// Numbers of this many bytes, each separate or packed.
    Numbers(usize),
    /// A message stored inline in its parent.
    One(&'static Schema),
    /// A boxed message of this many bytes.
    Apart(usize, &'static Schema),
    /// Messages of this many bytes each.
    Many(usize, &'static Schema),
    /// Entries of a map, of this many bytes each.
    Entries(usize, &'static Schema),
    /// Nodes of a graph, which are also counted.
    Nodes,
}

/// Walks a message; returns the number of bytes that it takes once it is decoded, in addition to its own length.
///
/// # Errors
/// InvalidArgument if the bytes are not a message; ResourceExhausted if it takes more than `most`, or the graph in it
/// has more nodes than a graph may have.
pub fn weigh(message: impl Buf, schema: &'static Schema, most: usize) -> Result<usize> {
    Walk::default().run(message, schema, most)
}

#[derive(Default)]
struct Walk {
    bytes: usize,
    nodes: usize,
    /// The number of fields that are in no schema.
    unknown: usize,
}

/// A message during the walk.
struct Open {
    schema: &'static Schema,
    /// The number of bytes that remain after its end.
    end: usize,
    /// The lists and maps of which an element has been seen, by field.
    begun: u64,
}

impl Walk {
    fn run(&mut self, mut message: impl Buf, schema: &'static Schema, most: usize) -> Result<usize> {
        let mut open = vec![Open { schema, end: 0, begun: 0 }];
        while let Some(top) = open.last_mut() {
            let left = message.remaining();
            if left == top.end {
                open.pop();
                continue;
            }
            let end = top.end;
            let (tag, wire) = decode_key(&mut message).map_err(malformed)?;
            let length = match wire {
                WireType::Varint => {
                    decode_varint(&mut message).map_err(malformed)?;
                    0
                }
                WireType::ThirtyTwoBit => 4,
                WireType::SixtyFourBit => 8,
                WireType::LengthDelimited => {
                    usize::try_from(decode_varint(&mut message).map_err(malformed)?).map_err(|_| cut_off())?
                }
                WireType::StartGroup | WireType::EndGroup => {
                    return Err(Failure::invalid("not a valid protobuf message: they have a group"));
                }
            };
            let after = message.remaining().checked_sub(length).filter(|&after| after >= end).ok_or_else(cut_off)?;
            let inner = self.field(top, tag, wire, length);
            if self.nodes > MAX_NODES {
                let why = format!("the graph has more nodes than {MAX_NODES}, the most there may be");
                return Err(Failure::new(Code::ResourceExhausted, why));
            }
            if self.bytes > most {
                let why = format!("the message takes more than {most} bytes once it is decoded, the most there may be");
                return Err(Failure::new(Code::ResourceExhausted, why));
            }
            match inner {
                Some(_) if open.len() == MAX_DEPTH => {
                    return Err(Failure::invalid(format!("the message has messages nested deeper than {MAX_DEPTH}")));
                }
                Some(schema) => open.push(Open { schema, end: after, begun: 0 }),
                None => message.advance(length),
            }
        }
        Ok(self.bytes)
    }

    /// Counts a field; returns the schema of the message in it, if it is one.
    fn field(&mut self, open: &mut Open, tag: u32, wire: WireType, length: usize) -> Option<&'static Schema> {
        let Some((_, field)) = open.schema.0.iter().find(|(own, _)| *own == tag) else {
            self.unknown += 1;
            return None;
        };
        let mut places = |first: usize| {
            let mark = 1u64 << (tag % 64);
            let before = open.begun;
            open.begun |= mark;
            if before & mark == 0 { first } else { FURTHER }
        };
        let is_message = wire == WireType::LengthDelimited;
        match field {
            Field::Text => self.bytes += length,
            Field::Texts => self.bytes += length + places(FIRST) * size_of::<Vec<u8>>(),
            // A packed field has at most as many numbers as bytes.
            Field::Numbers(size) => self.bytes += size * (places(FIRST) + FURTHER * length),
            Field::One(inner) => return is_message.then_some(*inner),
            Field::Apart(size, inner) => {
                self.bytes += size;
                return is_message.then_some(*inner);
            }
            Field::Many(size, inner) => {
                self.bytes += size * places(FIRST);
                return is_message.then_some(*inner);
            }
            Field::Entries(size, inner) => {
                self.bytes += size * places(FIRST_ENTRY);
                return is_message.then_some(*inner);
            }
            Field::Nodes => {
                self.nodes += 1;
                self.bytes += size_of::<proto::NodeDef>() * places(FIRST);
                return is_message.then_some(&NODE);
            }
        }
        None
    }
}

fn malformed(error: prost::DecodeError) -> Failure {
    Failure::invalid(format!("not a valid protobuf message: {error}"))
}

fn cut_off() -> Failure {
    Failure::invalid("not a valid protobuf message: a field reaches beyond its end")
}

/// The entry of a map of strings.
const TEXT_ENTRY: usize = size_of::<(String, String)>();
const ATTR_ENTRY: usize = size_of::<(String, proto::AttrValue)>();

static EMPTY: Schema = Schema(&[]);
static STRING_PAIR: Schema = Schema(&[(1, Field::Text), (2, Field::Text)]);
static ATTR_PAIR: Schema = Schema(&[(1, Field::Text), (2, Field::One(&ATTR_VALUE))]);

pub static GRAPH: Schema = Schema(&[(1, Field::Nodes), (2, Field::One(&LIBRARY)), (4, Field::One(&VERSIONS))]);

static VERSIONS: Schema = Schema(&[(1, Field::One(&EMPTY))]);

static LIBRARY: Schema = Schema(&[
    (1, Field::Many(size_of::<proto::FunctionDef>(), &FUNCTION)),
    (2, Field::Many(size_of::<proto::GradientDef>(), &STRING_PAIR)),
]);

static FUNCTION: Schema = Schema(&[
    (1, Field::One(&SIGNATURE)),
    (3, Field::Nodes),
    (4, Field::Entries(TEXT_ENTRY, &STRING_PAIR)),
    (6, Field::Entries(TEXT_ENTRY, &STRING_PAIR)),
]);

static SIGNATURE: Schema = Schema(&[
    (1, Field::Text),
    (2, Field::Many(size_of::<proto::ArgDef>(), &ARG)),
    (3, Field::Many(size_of::<proto::ArgDef>(), &ARG)),
    (4, Field::Many(size_of::<proto::AttrDef>(), &ATTR_DEF)),
]);

static ARG: Schema =
    Schema(&[(1, Field::Text), (3, Field::One(&EMPTY)), (4, Field::Text), (5, Field::Text), (6, Field::Text)]);

static ATTR_DEF: Schema = Schema(&[(1, Field::Text), (3, Field::One(&ATTR_VALUE))]);

static NODE: Schema = Schema(&[
    (1, Field::Text),
    (2, Field::Text),
    (3, Field::Texts),
    (4, Field::Text),
    (5, Field::Entries(ATTR_ENTRY, &ATTR_PAIR)),
]);

static ATTR_VALUE: Schema = Schema(&[
    (1, Field::Apart(size_of::<proto::ListValue>(), &LIST)),
    (2, Field::Text),
    (3, Field::One(&EMPTY)),
    (4, Field::One(&EMPTY)),
    (5, Field::One(&EMPTY)),
    (6, Field::One(&EMPTY)),
    (7, Field::One(&SHAPE)),
    (8, Field::Apart(size_of::<proto::TensorProto>(), &TENSOR)),
    (9, Field::Text),
    (10, Field::One(&FUNCTION_NAME)),
]);

static LIST: Schema = Schema(&[
    (2, Field::Texts),
    (3, Field::Numbers(8)),
    (4, Field::Numbers(4)),
    (5, Field::Numbers(1)),
    (6, Field::Numbers(4)),
    (7, Field::Many(size_of::<proto::TensorShapeProto>(), &SHAPE)),
    (8, Field::Many(size_of::<proto::TensorProto>(), &TENSOR)),
    (9, Field::Many(size_of::<proto::NameAttrList>(), &FUNCTION_NAME)),
]);

static FUNCTION_NAME: Schema = Schema(&[(1, Field::Text), (2, Field::Entries(ATTR_ENTRY, &ATTR_PAIR))]);

pub static SHAPE: Schema = Schema(&[(2, Field::Many(size_of::<proto::Dim>(), &DIM)), (3, Field::One(&EMPTY))]);

static DIM: Schema = Schema(&[(1, Field::One(&EMPTY))]);

pub static TENSOR: Schema = Schema(&[
    (1, Field::One(&EMPTY)),
    (2, Field::One(&SHAPE)),
    (4, Field::Text),
    (5, Field::Numbers(4)),
    (6, Field::Numbers(8)),
    (7, Field::Numbers(4)),
    (8, Field::Texts),
    (9, Field::Numbers(4)),
    (10, Field::Numbers(8)),
    (11, Field::Numbers(1)),
    (12, Field::Numbers(8)),
    (13, Field::Numbers(4)),
    (15, Field::Many(size_of::<proto::VariantTensorDataProto>(), &VARIANT)),
    (16, Field::Numbers(4)),
    (17, Field::Numbers(8)),
]);

static VARIANT: Schema = Schema(&[(1, Field::Text), (2, Field::Text)]);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message as _;

    use super::super::proto::*;
    use super::*;

    fn attr(value: Value) -> AttrValue {
        AttrValue { value: Some(value) }
    }

    fn tensor() -> TensorProto {
        TensorProto {
            dtype: 1,
            tensor_shape: Some(TensorShapeProto { dim: vec![Dim { size: 2 }], unknown_rank: true }),
            tensor_content: vec![1],
            float_val: vec![1.0],
            double_val: vec![1.0],
            int_val: vec![1],
            string_val: vec![vec![1]],
            scomplex_val: vec![1.0],
            dcomplex_val: vec![1.0],
            int64_val: vec![1],
            bool_val: vec![true],
            half_val: vec![1],
            variant_val: vec![VariantTensorDataProto { type_name: "int".into(), metadata: vec![1] }],
            uint32_val: vec![1],
            uint64_val: vec![1],
        }
    }

    /// A graph that has every field of every message. A new field must be added to it, and to its schema.
    fn everything() -> GraphDef {
        let call = NameAttrList { name: "f".into(), attr: BTreeMap::from([("a".into(), attr(Value::I(1)))]) };
        let list = ListValue {
            s: vec![vec![1]],
            i: vec![1],
            f: vec![1.0],
            b: vec![true],
            r#type: vec![1],
            shape: vec![TensorShapeProto { dim: vec![Dim { size: 3 }], unknown_rank: true }],
            tensor: vec![tensor()],
            func: vec![call.clone()],
        };
        let values = [
            Value::List(Box::new(list)),
            Value::S(vec![1]),
            Value::I(1),
            Value::F(1.0),
            Value::B(true),
            Value::Type(1),
            Value::Shape(TensorShapeProto { dim: vec![Dim { size: 3 }], unknown_rank: true }),
            Value::Tensor(Box::new(tensor())),
            Value::Placeholder("p".into()),
            Value::Func(call),
        ];
        let node = NodeDef {
            name: "n".into(),
            op: "Op".into(),
            input: vec!["x".into()],
            device: "/cpu:0".into(),
            attr: values.into_iter().enumerate().map(|(i, value)| (i.to_string(), attr(value))).collect(),
        };
        let arg = ArgDef {
            name: "a".into(),
            r#type: 1,
            type_attr: "T".into(),
            number_attr: "N".into(),
            type_list_attr: "L".into(),
        };
        let signature = Signature {
            name: "f".into(),
            input_arg: vec![arg.clone()],
            output_arg: vec![arg],
            attr: vec![AttrDef { name: "T".into(), default_value: Some(attr(Value::Type(1))) }],
        };
        let pair = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let function = FunctionDef {
            signature: Some(signature),
            node_def: vec![node.clone()],
            ret: pair.clone(),
            control_ret: pair,
        };
        let gradient = GradientDef { function_name: "f".into(), gradient_func: "g".into() };
        GraphDef {
            node: vec![node],
            library: Some(FunctionDefLibrary { function: vec![function], gradient: vec![gradient] }),
            versions: Some(VersionDef { producer: 1 }),
        }
    }

    #[test]
    fn every_field_has_its_cost() {
        let bytes = everything().encode_to_vec();
        let mut walk = Walk::default();
        walk.run(&*bytes, &GRAPH, usize::MAX).unwrap();
        assert_eq!((walk.unknown, walk.nodes), (0, 2));
    }

    #[test]
    fn what_a_few_bytes_ask_for_is_counted() {
        let node = size_of::<NodeDef>();
        let check = |message: &[u8], schema: &'static Schema, bytes: usize| {
            assert_eq!(weigh(message, schema, usize::MAX).unwrap(), bytes, "{message:?}");
        };
        check(&[], &GRAPH, 0);
        // Three empty nodes: room for four with the first, and for two more with each further one.
        check(&[0x0a, 0, 0x0a, 0, 0x0a, 0], &GRAPH, 8 * node);
        // A node with the name "ab" and two empty inputs.
        check(&[0x0a, 8, 0x0a, 2, b'a', b'b', 0x1a, 0, 0x1a, 0], &GRAPH, 4 * node + 2 + 6 * 24);
        // A function with an empty node.
        check(&[0x12, 4, 0x0a, 2, 0x1a, 0], &GRAPH, 4 * node + 4 * size_of::<FunctionDef>());
        // Three int64 of one byte each, packed.
        check(&[0x52, 3, 1, 2, 3], &TENSOR, 8 * (4 + 2 * 3));
        // An unknown field.
        check(&[0xfa, 0x01, 1, 0], &GRAPH, 0);
    }

    #[test]
    fn what_is_too_large_or_no_message_is_refused() {
        let check = |message: &[u8], most: usize, code: Code| {
            let refused = weigh(message, &GRAPH, most).unwrap_err();
            assert_eq!(refused.code, code, "{refused}");
        };
        check(&[0x0a, 0, 0x0a, 0], size_of::<NodeDef>() * 5, Code::ResourceExhausted);
        check(&[0x0a, 0].repeat(MAX_NODES + 1), usize::MAX, Code::ResourceExhausted);
        check(&[0x0a, 9], usize::MAX, Code::InvalidArgument);
        check(&[0x0a], usize::MAX, Code::InvalidArgument);
        check(&[0x0b, 0x0c], usize::MAX, Code::InvalidArgument);
        // A function of a function of a function …, as an attribute of a node.
        let deep = (0..MAX_DEPTH).fold(Vec::new(), |inner: Vec<u8>, _| field(10, &field(2, &field(2, &inner))));
        check(&field(1, &field(5, &field(2, &deep))), usize::MAX, Code::InvalidArgument);
    }

    fn field(tag: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        prost::encoding::encode_key(tag, WireType::LengthDelimited, &mut out);
        prost::encoding::encode_varint(bytes.len() as u64, &mut out);
        out.extend_from_slice(bytes);
        out
    }
}
