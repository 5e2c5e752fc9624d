//! The index of a checkpoint: the number of data shards, and the position of each tensor in them.

use std::collections::BTreeMap;

use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape};
use prost::Message;

use super::slice::Slice;
use super::{MAX_SHARDS, data_loss, table};

/// The key of the header, which comes before all others.
const HEADER_KEY: &[u8] = b"";
const LITTLE_ENDIAN: i32 = 0;
/// The version of the format that this module writes, and the newest that it reads.
const VERSION: i32 = 1;

/// The index of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    pub shards: u32,
    /// By key: a tensor's name, or [`Slice::key`] for a part of one.
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

/// The position of a tensor, or the parts in which it is saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub dtype: DType,
    pub shape: Shape,
    pub shard: u32,
    pub offset: u64,
    pub size: u64,
    /// Masked checksum of the bytes.
    pub crc32c: u32,
    /// The parts in which the tensor is saved; empty if it is saved whole.
    pub slices: Vec<Slice>,
}

impl Index {
    /// The bytes of the index file.
    pub fn encode(&self) -> Vec<u8> {
        let header = proto::Header {
            num_shards: self.shards as i32,
            endianness: LITTLE_ENDIAN,
            version: Some(proto::Version { producer: VERSION, min_consumer: 0 }),
        };
        let header = header.encode_to_vec();
        let values: Vec<Vec<u8>> = self.entries.values().map(|entry| entry.to_proto().encode_to_vec()).collect();
        let entries = self.entries.keys().map(Vec::as_slice).zip(values.iter().map(Vec::as_slice));
        table::encode(std::iter::once((HEADER_KEY, header.as_slice())).chain(entries))
    }

    /// Reads the bytes of an index file.
    ///
    /// # Errors
    /// DataLoss if they are not a valid index, or its byte order or version is not supported.
    pub fn decode(file: &[u8]) -> Result<Index> {
        let mut entries = table::decode(file)?.into_iter();
        let header = match entries.next() {
            Some((key, value)) if key == HEADER_KEY => proto::Header::decode(value.as_slice()).ok(),
            _ => None,
        };
        let header = header.ok_or_else(|| data_loss("the index has no header"))?;
        if header.endianness != LITTLE_ENDIAN {
            return Err(data_loss("the checkpoint was written on a big-endian machine"));
        }
        let wanted = header.version.unwrap_or_default().min_consumer;
        if wanted > VERSION {
            return Err(data_loss(format!(
                "the checkpoint needs a reader of version {wanted}, but this is version {VERSION}"
            )));
        }
        let shards = u32::try_from(header.num_shards).ok().filter(|&shards| (1..=MAX_SHARDS).contains(&shards));
        let shards = shards.ok_or_else(|| {
            data_loss(format!("the checkpoint has an invalid number of shards: {}", header.num_shards))
        })?;
        let entry = |(key, value): (Vec<u8>, Vec<u8>)| {
            let entry = proto::Entry::decode(value.as_slice()).ok().and_then(|entry| Entry::from_proto(&entry));
            let entry = entry.filter(|entry| entry.shard < shards).ok_or_else(|| {
                data_loss(format!("the index's entry for {} cannot be read", String::from_utf8_lossy(&key)))
            })?;
            Ok((key, entry))
        };
        Ok(Index { shards, entries: entries.map(entry).collect::<Result<_>>()? })
    }

    /// Adds the entry of a whole tensor or a part; false if the key exists already.
    pub fn insert(&mut self, key: Vec<u8>, entry: Entry) -> bool {
        match self.entries.entry(key) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(entry);
                true
            }
            std::collections::btree_map::Entry::Occupied(_) => false,
        }
    }
}

impl Entry {
    fn to_proto(&self) -> proto::Entry {
        proto::Entry {
            dtype: self.dtype.proto_number(),
            shape: Some(proto::Shape {
                dim: self.shape.dims().iter().map(|&size| proto::Dim { size: size as i64 }).collect(),
            }),
            shard_id: self.shard as i32,
            offset: self.offset as i64,
            size: self.size as i64,
            crc32c: self.crc32c,
            slices: self.slices.iter().map(slice_to_proto).collect(),
        }
    }

    /// `None` if a number is out of bounds, or host tensors do not support the dtype.
    fn from_proto(entry: &proto::Entry) -> Option<Entry> {
        let (dtype, is_ref) = DType::from_proto(entry.dtype)?;
        let sizes = entry.shape.iter().flat_map(|shape| &shape.dim);
        Some(Entry {
            dtype: Some(dtype).filter(|&dtype| !is_ref && dtype != DType::Resource)?,
            shape: sizes.map(|dim| usize::try_from(dim.size).ok()).collect::<Option<Shape>>()?,
            shard: u32::try_from(entry.shard_id).ok()?,
            offset: u64::try_from(entry.offset).ok()?,
            size: u64::try_from(entry.size).ok()?,
            crc32c: entry.crc32c,
            slices: entry.slices.iter().map(slice_from_proto).collect::<Option<_>>()?,
        })
    }
}

pub(super) fn slice_to_proto(slice: &Slice) -> proto::Slice {
    let extent = |extent: &Option<(usize, usize)>| match *extent {
        None => proto::Extent { start: 0, length: None },
        Some((start, length)) => proto::Extent { start: start as i64, length: Some(length as i64) },
    };
    proto::Slice { extent: slice.0.iter().map(extent).collect() }
}

pub(super) fn slice_from_proto(slice: &proto::Slice) -> Option<Slice> {
    let extent = |extent: &proto::Extent| match extent.length {
        None => Some(None),
        Some(length) => Some(Some((usize::try_from(extent.start).ok()?, usize::try_from(length).ok()?))),
    };
    slice.extent.iter().map(extent).collect::<Option<_>>().map(Slice)
}

/// The messages, with TensorFlow's field numbers (tensor_bundle.proto, tensor_shape.proto, tensor_slice.proto).
pub(super) mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Header {
        #[prost(int32, tag = "1")]
        pub num_shards: i32,
        #[prost(int32, tag = "2")]
        pub endianness: i32,
        #[prost(message, optional, tag = "3")]
        pub version: Option<Version>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Version {
        #[prost(int32, tag = "1")]
        pub producer: i32,
        #[prost(int32, tag = "2")]
        pub min_consumer: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Entry {
        #[prost(int32, tag = "1")]
        pub dtype: i32,
        #[prost(message, optional, tag = "2")]
        pub shape: Option<Shape>,
        #[prost(int32, tag = "3")]
        pub shard_id: i32,
        #[prost(int64, tag = "4")]
        pub offset: i64,
        #[prost(int64, tag = "5")]
        pub size: i64,
        #[prost(fixed32, tag = "6")]
        pub crc32c: u32,
        #[prost(message, repeated, tag = "7")]
        pub slices: Vec<Slice>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Shape {
        #[prost(message, repeated, tag = "2")]
        pub dim: Vec<Dim>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Dim {
        #[prost(int64, tag = "1")]
        pub size: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Slice {
        #[prost(message, repeated, tag = "1")]
        pub extent: Vec<Extent>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Extent {
        #[prost(int64, tag = "1")]
        pub start: i64,
        /// Absent for a whole dimension, unlike a length of 0.
        #[prost(int64, optional, tag = "2")]
        pub length: Option<i64>,
    }
}
