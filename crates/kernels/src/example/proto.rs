//! The messages of examples, with TensorFlow's field numbers.

use std::collections::BTreeMap;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Example {
    #[prost(message, optional, tag = "1")]
    pub features: Option<Features>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SequenceExample {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Features>,
    #[prost(message, optional, tag = "2")]
    pub feature_lists: Option<FeatureLists>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Features {
    #[prost(btree_map = "string, message", tag = "1")]
    pub feature: BTreeMap<String, Feature>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FeatureLists {
    #[prost(btree_map = "string, message", tag = "1")]
    pub feature_list: BTreeMap<String, FeatureList>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FeatureList {
    #[prost(message, repeated, tag = "1")]
    pub feature: Vec<Feature>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Feature {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    pub kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Floats(FloatList),
    #[prost(message, tag = "3")]
    Ints(Int64List),
}

#[derive(Clone, PartialEq, Message)]
pub struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FloatList {
    #[prost(float, repeated, tag = "1")]
    pub value: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    pub value: Vec<i64>,
}

impl Kind {
    #[inline]
    pub fn dtype(&self) -> DType {
        match self {
            Kind::Bytes(_) => DType::String,
            Kind::Floats(_) => DType::F32,
            Kind::Ints(_) => DType::I64,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Kind::Bytes(list) => list.value.len(),
            Kind::Floats(list) => list.value.len(),
            Kind::Ints(list) => list.value.len(),
        }
    }

    /// Appends the values to those of the same dtype.
    #[inline]
    pub fn append_to(self, data: &mut Data) {
        match (self, data) {
            (Kind::Bytes(mut list), Data::String(all)) => all.append(&mut list.value),
            (Kind::Floats(mut list), Data::F32(all)) => all.append(&mut list.value),
            (Kind::Ints(mut list), Data::I64(all)) => all.append(&mut list.value),
            _ => unreachable!("the dtype was compared"),
        }
    }
}

/// Reads a message.
///
/// # Errors
/// InvalidArgument if the bytes are not an example; ResourceExhausted if its contents exceed the memory budget.
pub fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M> {
    // An empty string takes two bytes in the message and 24 in memory.
    memory::admit(bytes.len().saturating_mul(16))?;
    M::decode(bytes).map_err(|_| {
        let shown = bytes[..bytes.len().min(200)].escape_ascii();
        Failure::invalid(format!("Could not parse example input, value: '{shown}'"))
    })
}
