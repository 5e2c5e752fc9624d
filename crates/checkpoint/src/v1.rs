//! The older form of checkpoints, TensorFlow's V1: one table, in which each part of a tensor is an entry with all its
//! elements, and the first entry lists the tensors. Several such files, each with some of the tensors or of their parts, are
//! one checkpoint under a pattern such as `model-?????-of-00003`.

mod elements;
mod pattern;
mod read;
mod write;

/// The functions that the fuzzer calls.
#[doc(hidden)]
pub(super) mod fuzz {
    pub use super::elements::take;
    pub use super::pattern::matches;
    pub use super::write::value;
}

pub use read::Files;
pub use write::save;

/// The key of the entry that lists the tensors.
const META_KEY: &[u8] = b"";
/// The version of the format that this module writes, and the newest that it reads.
const VERSION: i32 = 1;

/// The messages, with TensorFlow's field numbers (saved_tensor_slice.proto).
mod proto {
    use super::super::bundle::proto::{Shape, Slice, Version};

    /// The value of every entry: the first field under the empty key, the second under the others.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Meta {
        #[prost(message, optional, tag = "1")]
        pub meta: Option<Tensors>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Tensors {
        #[prost(message, repeated, tag = "1")]
        pub tensor: Vec<Tensor>,
        #[prost(message, optional, tag = "2")]
        pub versions: Option<Version>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Tensor {
        #[prost(bytes = "vec", tag = "1")]
        pub name: Vec<u8>,
        #[prost(message, optional, tag = "2")]
        pub shape: Option<Shape>,
        #[prost(int32, tag = "3")]
        pub dtype: i32,
        #[prost(message, repeated, tag = "4")]
        pub slice: Vec<Slice>,
    }

    /// The fields before the elements of a part.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Part {
        #[prost(bytes = "vec", tag = "1")]
        pub name: Vec<u8>,
        #[prost(message, optional, tag = "2")]
        pub slice: Option<Slice>,
    }
}

#[cfg(test)]
mod tests;
