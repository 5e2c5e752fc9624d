//! Tensors in the messages to a client: elements are sent from their tensor without a copy.

use bytes::{BufMut, Bytes, BytesMut};
use meshtf_graph::graphdef::{TensorProto, tensor_to_proto};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// `tensor_content` of a TensorProto.
pub(super) const CONTENT: u32 = 4;
/// `tensor` of a NamedTensorProto.
pub(super) const TENSOR: u32 = 2;
/// A tensor of at least this many bytes is sent from its own memory; a smaller one is copied to the message.
const APART: usize = 16 << 10;
/// protobuf's own limit for a message.
const MAX_MESSAGE_BYTES: usize = i32::MAX as usize;

/// The fields of a NamedTensorProto except its tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Name {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// An outgoing message: small parts in one buffer, large tensors in their own memory.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    segments: Vec<Bytes>,
    open: BytesMut,
    length: usize,
}

/// A tensor whose memory the network sends from.
struct Lent(Tensor);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes().unwrap_or_default()
    }
}

impl Outgoing {
    /// Writes a whole message.
    pub fn message(message: &impl prost::Message) -> Outgoing {
        let mut out = Outgoing::default();
        out.append(message);
        out
    }

    /// Appends the fields of a message.
    pub fn append(&mut self, message: &impl prost::Message) {
        self.length += message.encoded_len();
        self.open.put_slice(&message.encode_to_vec());
    }

    /// Writes a tensor as field `tag`: as a NamedTensorProto if it has a name, otherwise as a TensorProto.
    pub fn tensor(&mut self, tag: u32, name: Option<&str>, tensor: Tensor) {
        let has_content = tensor.dtype() != DType::String && !tensor.is_empty();
        let head = if has_content { head_of(&tensor) } else { tensor_to_proto(&tensor) }.encode_to_vec();
        let content = if has_content { tensor.byte_len() } else { 0 };
        let tensor_length = head.len() + if has_content { field_len(CONTENT, content) } else { 0 };
        let start = self.open.len();
        match name {
            None => self.key(tag, tensor_length),
            Some(name) => {
                let name = Name { name: name.to_owned() }.encode_to_vec();
                self.key(tag, name.len() + field_len(TENSOR, tensor_length));
                self.open.put_slice(&name);
                self.key(TENSOR, tensor_length);
            }
        }
        self.open.put_slice(&head);
        if has_content {
            self.key(CONTENT, content);
        }
        self.length += self.open.len() - start + content;
        if content < APART {
            self.open.put_slice(if has_content { tensor.bytes().unwrap_or_default() } else { &[] });
        } else {
            self.segments.push(self.open.split().freeze());
            self.segments.push(Bytes::from_owner(Lent(tensor)));
        }
    }

    /// Its bytes, as many as [`Outgoing::check`] returned.
    pub fn into_segments(mut self) -> Vec<Bytes> {
        if !self.open.is_empty() {
            self.segments.push(self.open.freeze());
        }
        self.segments
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// ResourceExhausted if it exceeds the limit of a protobuf message, which no client could read.
    pub fn check(&self) -> Result<u32> {
        if self.length > MAX_MESSAGE_BYTES {
            let why = format!(
                "the fetched values take {} bytes, which exceeds protobuf's limit of {MAX_MESSAGE_BYTES}; fetch them in \
                 several runs",
                self.length
            );
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        Ok(self.length as u32)
    }

    fn key(&mut self, tag: u32, length: usize) {
        encode_key(tag, WireType::LengthDelimited, &mut self.open);
        encode_varint(length as u64, &mut self.open);
    }
}

/// dtype and shape.
fn head_of(tensor: &Tensor) -> TensorProto {
    TensorProto {
        dtype: tensor.dtype().proto_number(),
        tensor_shape: Some(meshtf_graph::graphdef::shape_proto(&tensor.shape().into())),
        ..TensorProto::default()
    }
}

/// Size of a field that holds `length` bytes.
fn field_len(tag: u32, length: usize) -> usize {
    key_len(tag) + encoded_len_varint(length as u64) + length
}

#[cfg(test)]
pub(super) mod tests {
    use half::{bf16, f16};

    use super::*;
    use meshtf_graph::graphdef::tensor_from_proto;

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Named {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, optional, tag = "2")]
        pub tensor: Option<TensorProto>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Response {
        #[prost(message, repeated, tag = "1")]
        tensor: Vec<Named>,
        #[prost(int32, tag = "3")]
        status_code: i32,
    }

    pub fn tensors() -> Vec<Tensor> {
        vec![
            Tensor::scalar(1.5f32),
            Tensor::from_vec(vec![2, 3], vec![1i64, -2, 3, i64::MAX, 0, i64::MIN]),
            Tensor::vector(vec![true, false, true]),
            Tensor::vector(vec![b"a".to_vec(), Vec::new(), vec![0xff; 300]]),
            Tensor::scalar(b"hello".to_vec()),
            Tensor::zeros(DType::F64, vec![0, 3]).unwrap(),
            Tensor::vector(vec![f16::from_f32(0.5), f16::NEG_INFINITY]),
            Tensor::vector(vec![bf16::from_f32(3.0)]),
            Tensor::vector((0..APART as u32).collect::<Vec<u32>>()),
            Tensor::vector(vec![7u8; APART]),
        ]
    }

    #[test]
    fn written_messages_are_valid_protobuf() {
        let mut out = Outgoing::default();
        for (i, tensor) in tensors().into_iter().enumerate() {
            out.tensor(1, Some(&format!("t{i}:0")), tensor);
        }
        out.append(&super::super::message::RunStepResponse { status_code: 3, ..Default::default() });
        let length = out.check().unwrap() as usize;
        let bytes = out.into_segments().concat();
        assert_eq!(bytes.len(), length);
        let response = Response::decode(&*bytes).unwrap();
        assert_eq!(response.status_code, 3);
        for (i, (named, tensor)) in response.tensor.into_iter().zip(tensors()).enumerate() {
            assert_eq!(named.name, format!("t{i}:0"));
            assert_eq!(tensor_from_proto(named.tensor.unwrap()).unwrap(), tensor);
        }
    }
}
