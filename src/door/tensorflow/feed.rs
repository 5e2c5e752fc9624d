//! Feeds in a client's messages: elements are read from the network directly into their tensor.
//!
//! The size that a few bytes would expand to is counted, and checked against the graph, before it is allocated.

use std::sync::Arc;

use bytes::BufMut;
use meshtf_graph::graphdef::weigh::{Field, SHAPE, Schema, TENSOR as TENSOR_SCHEMA, weigh};
use meshtf_graph::graphdef::{TensorProto, TensorShapeProto, tensor_from_proto};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, MAX_TENSOR_BYTES, Shape, Tensor};
use prost::Message as _;

use super::pieces::{append, malformed};
use super::readers::Readers;
use super::rope::Rope;
use super::tensor::{CONTENT, Name, TENSOR};

/// Larger messages are decoded on threads that may block.
const AT_ONCE: usize = 256 << 10;
/// Maximum size of a feed without its tensor in bytes: its name.
const MAX_NAME_BYTES: usize = 64 << 10;
/// Maximum memory of a decoded shape; no shape has more dimensions.
const MAX_HEAD_BYTES: usize = 1 << 20;
/// Maximum memory allocated for a tensor that is only announced; more when this much has been received.
const CLAIMED: usize = 16 << 20;

/// The fields of a TensorProto except its elements.
#[derive(Clone, PartialEq, prost::Message)]
struct Head {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    tensor_shape: Option<TensorShapeProto>,
}

/// The memory that a [`Head`] takes when decoded.
static HEAD: Schema = Schema(&[(2, Field::One(&SHAPE))]);

impl Head {
    /// Its dtype and shape, if meshtf supports the dtype and all dimensions are known.
    fn read(bytes: &[u8]) -> Result<Option<(DType, Shape)>> {
        weigh(bytes, &HEAD, MAX_HEAD_BYTES)?;
        let head = Head::decode(bytes).map_err(|error| malformed(&error))?;
        let Some((dtype, _)) = DType::from_proto(head.dtype) else { return Ok(None) };
        let dims = head.tensor_shape.map(|shape| shape.dim).unwrap_or_default();
        let dims = dims.iter().map(|dim| usize::try_from(dim.size).ok()).collect::<Option<Vec<_>>>();
        Ok(dims.map(|dims| (dtype, Shape::from(dims))))
    }
}

/// How tensors are read: what is known about feeds in advance, and where large ones are decoded.
pub(super) struct Reading<'a> {
    pub readers: &'a Readers,
    /// Whether a value of this dtype and shape may be fed to the tensor of this name.
    pub admits: &'a (dyn Fn(&str, DType, &Shape) -> Result<()> + Sync),
}

impl Reading<'_> {
    /// Reads a NamedTensorProto of `length` bytes.
    pub async fn named(&self, rope: &mut Rope, length: usize) -> Result<(String, Tensor)> {
        let end = rope.left().saturating_sub(length);
        let mut tensor = None;
        let mut rest = Vec::new();
        while let Some(length) = rope.field(end, TENSOR, &mut rest, MAX_NAME_BYTES).await? {
            let Name { name } = Name::decode(&*rest).map_err(|error| malformed(&error))?;
            // protobuf would merge repeated tensors; no client writes them, and each would have to be decoded by
            // itself.
            if tensor.is_some() {
                return Err(Failure::invalid(format!("the feed {name:?} has two tensors")));
            }
            tensor = Some(self.tensor(rope, length, &name).await?);
        }
        let Name { name } = Name::decode(&*rest).map_err(|error| malformed(&error))?;
        match tensor {
            Some(tensor) => Ok((name, tensor)),
            None => Err(Failure::invalid(format!("the feed {name:?} has no tensor"))),
        }
    }

    /// Reads a TensorProto of `length` bytes that is fed to `name`.
    pub async fn tensor(&self, rope: &mut Rope, length: usize, name: &str) -> Result<Tensor> {
        let end = rope.left().saturating_sub(length);
        let mut filled = None;
        let mut packed: Option<Vec<u8>> = None;
        let mut rest = Vec::new();
        while let Some(length) = rope.field(end, CONTENT, &mut rest, usize::MAX).await? {
            // Only one each, since the fields before it are decoded again for each.
            if filled.is_some() || packed.is_some() {
                return Err(Failure::invalid(format!("the tensor fed to {name:?} has two contents")));
            }
            // TensorFlow writes fields by number: dtype and shape come before the content. If a client does not, if
            // many fields come before it, which take long to decode, or for strings and bools, whose bytes are not
            // their elements, the content is kept and decoded at the end.
            if rest.len() <= AT_ONCE {
                filled = self.fill(rope, end, length, &rest, name).await?;
            }
            if filled.is_none() {
                let packed = packed.get_or_insert_default();
                let memory = Arc::clone(rope.share().memory());
                rope.copy(length, end, |bytes| append(packed, bytes, &memory)).await?;
            }
        }
        match filled {
            Some(tensor) => Ok(tensor),
            None => self.stated(rope, rest, packed.unwrap_or_default(), name).await,
        }
    }

    /// The tensor of a message that states its elements one by one, or one value for all of them: a few bytes can request
    /// for any amount of memory, which is counted before it is allocated.
    async fn stated(&self, rope: &mut Rope, stated: Vec<u8>, packed: Vec<u8>, name: &str) -> Result<Tensor> {
        let mut elements = 0;
        let is_long = stated.len() > AT_ONCE;
        let (head, becomes, stated) = if is_long {
            let look = move || Ok((Head::read(&stated)?, weigh(&*stated, &TENSOR_SCHEMA, MAX_TENSOR_BYTES)?, stated));
            self.readers.run(look).await?
        } else {
            (Head::read(&stated)?, 0, stated)
        };
        if let Some((dtype, shape)) = head {
            let size = dtype.size().unwrap_or(size_of::<Vec<u8>>());
            elements = shape.checked_elements(dtype)? * size;
            if elements > AT_ONCE {
                (self.admits)(name, dtype, &shape)?;
            }
        }
        let decoded = |stated: &[u8]| TensorProto::decode(stated).map_err(|error| malformed(&error));
        let mut proto = if is_long {
            rope.expand(becomes)?;
            self.readers.run_taking(becomes, move || decoded(&stated)).await?
        } else {
            decoded(&stated)?
        };
        // The last string is repeated for all that are missing.
        let repeated = proto.string_val.last().map_or(0, Vec::len);
        elements = elements.saturating_add(repeated.saturating_mul(elements / size_of::<Vec<u8>>()));
        proto.tensor_content = packed;
        if elements.max(proto.tensor_content.len()) <= AT_ONCE {
            return tensor_from_proto(proto);
        }
        rope.expand(elements)?;
        self.readers.run_taking(elements, move || tensor_from_proto(proto)).await
    }

    /// The tensor that the fields `before` describe, filled with the next `length` bytes; `None` if its bytes are not
    /// its elements.
    async fn fill(
        &self,
        rope: &mut Rope,
        end: usize,
        length: usize,
        before: &[u8],
        name: &str,
    ) -> Result<Option<Tensor>> {
        let Some((dtype, shape)) = Head::read(before)? else { return Ok(None) };
        let Some(size) = dtype.size().filter(|_| dtype != DType::Bool) else { return Ok(None) };
        let count = shape.checked_elements(dtype)?;
        if count * size != length {
            let why = format!(
                "a tensor of dtype {dtype} and shape {shape} takes {} bytes, but its content has {length}",
                count * size
            );
            return Err(Failure::invalid(why));
        }
        if length > AT_ONCE {
            (self.admits)(name, dtype, &shape)?;
        }
        let mut data = {
            let _turn = memory::Turn::begin(rope.share().memory());
            let begins = count.min(CLAIMED / size);
            memory::admit(begins * size).map_err(Failure::with_holder)?;
            Data::zeros(dtype, begins)
        };
        let first = fill_bytes(&mut data, 0, rope, end).await?;
        if first < length {
            // This much was received, so the rest is allocated.
            let begun = data;
            let grown = move || {
                let mut data = Data::zeros(dtype, count);
                if let (Some(to), Some(from)) = (data.bytes_mut(), begun.bytes()) {
                    to[..from.len()].copy_from_slice(from);
                }
                Ok(data)
            };
            data = self.readers.run_taking(length, grown).await?;
            fill_bytes(&mut data, first, rope, end).await?;
        }
        Tensor::new(shape, data).map(Some)
    }
}

/// Fills the bytes of `data` from index `from` on; returns the index reached.
async fn fill_bytes(data: &mut Data, from: usize, rope: &mut Rope, end: usize) -> Result<usize> {
    let Some(bytes) = data.bytes_mut() else { return Ok(from) };
    let (length, mut rest) = (bytes.len(), &mut bytes[from..]);
    let count = rest.len();
    let fill = |bytes: &[u8]| {
        rest.put_slice(bytes);
        Ok(())
    };
    rope.copy(count, end, fill).await?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use prost::encoding::{WireType, encode_key, encode_varint};

    use super::super::rope::tests::rope;
    use super::super::tensor::tests::tensors;
    use super::*;
    use meshtf_graph::graphdef::{Dim, tensor_to_proto};
    use meshtf_tensor::failure::Code;

    fn anything(_: &str, _: DType, _: &Shape) -> Result<()> {
        Ok(())
    }

    #[tokio::test]
    async fn a_feed_may_arrive_in_any_pieces() {
        let readers = Readers::new(1, Arc::default());
        let reading = Reading { readers: &readers, admits: &anything };
        for tensor in tensors() {
            let named = Name { name: "x:0".into() }.encode_to_vec();
            let bytes = [named, field(TENSOR, &tensor_to_proto(&tensor).encode_to_vec())].concat();
            for piece in [1, 3, 1000, bytes.len()] {
                let (name, read) = reading.named(&mut rope(&bytes, piece).await, bytes.len()).await.unwrap();
                assert_eq!((name.as_str(), &read), ("x:0", &tensor));
            }
        }
    }

    #[tokio::test]
    async fn a_large_feed_is_read_in_two_parts() {
        let readers = Readers::new(1, Arc::default());
        let reading = Reading { readers: &readers, admits: &anything };
        let tensor = Tensor::vector((0..(CLAIMED / 4 + 1000) as u32).collect::<Vec<u32>>());
        let bytes = tensor_to_proto(&tensor).encode_to_vec();
        let read = reading.tensor(&mut rope(&bytes, 1 << 20).await, bytes.len(), "x").await.unwrap();
        assert!(read == tensor);
    }

    /// A field with these bytes.
    fn field(tag: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_key(tag, WireType::LengthDelimited, &mut out);
        encode_varint(bytes.len() as u64, &mut out);
        out.extend_from_slice(bytes);
        out
    }

    /// A TensorProto of this dtype and length with these elements; the last one is repeated.
    fn splat(dtype: DType, length: i64, elements: TensorProto) -> Vec<u8> {
        let shape = TensorShapeProto { dim: vec![Dim { size: length }], unknown_rank: false };
        TensorProto { dtype: dtype.proto_number(), tensor_shape: Some(shape), ..elements }.encode_to_vec()
    }

    #[tokio::test]
    async fn repeated_elements_are_counted_before_they_are_made() {
        let readers = Readers::new(1, Arc::default());
        let ones = |length| splat(DType::F32, length, TensorProto { float_val: vec![1.0], ..Default::default() });
        let texts = |length| {
            let string_val = vec![vec![b'x'; 1000]];
            splat(DType::String, length, TensorProto { string_val, ..Default::default() })
        };
        let reading = Reading { readers: &readers, admits: &anything };
        let check = async |bytes: Vec<u8>, read: Option<usize>| {
            let answer = reading.tensor(&mut rope(&bytes, bytes.len()).await, bytes.len(), "x").await;
            match read {
                Some(length) => assert_eq!(answer.unwrap().len(), length),
                None => assert_eq!(answer.unwrap_err().code, Code::ResourceExhausted),
            }
        };
        // The budget of these tests is 64 MiB per message.
        check(ones(10), Some(10)).await;
        check(ones(1 << 20), Some(1 << 20)).await;
        check(ones(1 << 25), None).await;
        check(ones((1 << 29) - 1), None).await;
        check(texts(10), Some(10)).await;
        check(texts(100_000), None).await;
        // Each is admitted alone, but not both in one message.
        let two = ones(10 << 20);
        let both = [field(7, &two), field(7, &two)].concat();
        let mut message = rope(&both, both.len()).await;
        let mut answers = Vec::new();
        while let Some(length) = message.field(0, 7, &mut Vec::new(), 0).await.unwrap() {
            answers.push(reading.tensor(&mut message, length, "x").await.is_ok());
            if answers.last() == Some(&false) {
                break;
            }
        }
        assert_eq!(answers, [true, false]);
    }

    #[tokio::test]
    async fn a_large_feed_that_does_not_fit_is_refused_before_it_is_made() {
        let readers = Readers::new(1, Arc::default());
        let admits = |name: &str, dtype: DType, shape: &Shape| {
            assert_eq!((name, dtype), ("x:0", DType::F32));
            if shape.dims() == [1 << 20] { Ok(()) } else { Err(Failure::invalid("not for this")) }
        };
        let reading = Reading { readers: &readers, admits: &admits };
        let check = async |proto: Vec<u8>, is_read: bool| {
            let bytes = [Name { name: "x:0".into() }.encode_to_vec(), field(TENSOR, &proto)].concat();
            let answer = reading.named(&mut rope(&bytes, bytes.len()).await, bytes.len()).await;
            assert_eq!(answer.is_ok(), is_read);
        };
        let one = || TensorProto { float_val: vec![1.0], ..Default::default() };
        check(splat(DType::F32, 1 << 20, one()), true).await;
        check(splat(DType::F32, (1 << 20) + 1, one()), false).await;
        let content = |length| tensor_to_proto(&Tensor::zeros(DType::F32, vec![length]).unwrap()).encode_to_vec();
        check(content(1 << 20), true).await;
        check(content((1 << 20) - 1), false).await;
        // A small feed is left to the session, whose error explains more.
        check(splat(DType::F32, 2, one()), true).await;
    }

    /// Fields are decoded once: a message of many parts costs as much as its bytes.
    #[tokio::test]
    async fn fields_before_many_parts_are_not_decoded_for_each() {
        let readers = Readers::new(1, Arc::default());
        let reading = Reading { readers: &readers, admits: &anything };
        // Unknown fields, or dimensions.
        let unknown =
            |bytes: usize| [0xc8, 0x01].iter().chain(&[0]).copied().cycle().take(bytes / 3 * 3).collect::<Vec<u8>>();
        let check = async |tensor: Vec<u8>, code: Code| {
            let answer = reading.tensor(&mut rope(&tensor, 1 << 14).await, tensor.len(), "x").await;
            assert_eq!(answer.unwrap_err().code, code);
        };
        check([unknown(3 << 20), [0x22, 0].repeat(1 << 16)].concat(), Code::InvalidArgument).await;
        check([0x22, 0].repeat(2), Code::InvalidArgument).await;
        check(field(2, &[0x12, 0].repeat(1 << 20)), Code::ResourceExhausted).await;
        check([field(2, &[0x12, 0].repeat(1 << 20)), vec![0x22, 0]].concat(), Code::ResourceExhausted).await;
        let check = async |named: Vec<u8>, code: Code| {
            let answer = reading.named(&mut rope(&named, 1 << 14).await, named.len()).await;
            assert_eq!(answer.unwrap_err().code, code);
        };
        let one = field(TENSOR, &splat(DType::F32, 1, TensorProto { float_val: vec![1.0], ..Default::default() }));
        check([unknown(MAX_NAME_BYTES - 3), one.repeat(1 << 16)].concat(), Code::InvalidArgument).await;
        check([unknown(MAX_NAME_BYTES + 3), one.clone()].concat(), Code::ResourceExhausted).await;
        // The allowed number of bytes before the content does no harm.
        let [mut a, content] = [DType::F32; 2].map(|_| tensor_to_proto(&Tensor::vector(vec![1f32, 2.0])));
        let bytes = std::mem::take(&mut a.tensor_content);
        assert_eq!(bytes, content.tensor_content);
        let late = [a.encode_to_vec(), unknown(1 << 20), field(CONTENT, &bytes)].concat();
        let read = reading.tensor(&mut rope(&late, 1 << 14).await, late.len(), "x").await.unwrap();
        assert_eq!(read, Tensor::vector(vec![1f32, 2.0]));
    }

    #[tokio::test]
    async fn content_that_does_not_fit_is_refused() {
        let readers = Readers::new(1, Arc::default());
        let reading = Reading { readers: &readers, admits: &anything };
        let mut proto = tensor_to_proto(&Tensor::vector(vec![1f32, 2.0]));
        proto.tensor_content.pop();
        let bytes = proto.encode_to_vec();
        let refused = reading.tensor(&mut rope(&bytes, 4).await, bytes.len(), "x").await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
    }
}
