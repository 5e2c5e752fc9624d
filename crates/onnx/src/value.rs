//! Values from outside: the protos that a step is fed, and those that its results are written as.

use meshtf_graph::graphdef;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};
use prost::Message as _;
use prost::bytes::Bytes;

use crate::proto::{OptionalProto, SequenceProto, TensorProto};
use crate::{Elem, Kind, Port, weight};

/// A value as a step is fed it.
pub type Fed = Tensor;

/// A result as it is written to a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// NumPy has its dtype.
    Tensor(Tensor),
    /// A TensorProto, SequenceProto or OptionalProto.
    Proto(Vec<u8>),
}

impl Port {
    /// The tensor that a step is fed, from the message of the port's kind.
    ///
    /// # Errors
    /// InvalidArgument if the bytes are no such message, or one of other elements.
    pub fn fed(&self, bytes: &[u8]) -> Result<Fed> {
        let damaged = |error: prost::DecodeError| {
            Failure::invalid(format!("{}: not the message of its type: {error}", self.name))
        };
        let bytes = Bytes::copy_from_slice(bytes);
        let strings = match self.kind {
            Kind::Tensor(elem) => {
                let proto = TensorProto::decode(bytes).map_err(damaged)?;
                return self.tensor_of(&proto, elem);
            }
            Kind::Sequence(elem) => self.strings(&SequenceProto::decode(bytes).map_err(damaged)?, elem)?,
            Kind::Optional(elem) => {
                // Some writers leave out the message around the tensor.
                let optional = OptionalProto::decode(bytes.clone()).ok().filter(|proto| proto.elem_type <= 2);
                match optional
                    .and_then(|proto| proto.tensor_value)
                    .or_else(|| TensorProto::decode(bytes).ok().filter(|proto| proto.data_type != 0))
                {
                    Some(proto) => vec![serialized(&self.tensor_of(&proto, elem)?)],
                    None => Vec::new(),
                }
            }
            Kind::OptionalSequence(elem) => {
                let optional = OptionalProto::decode(bytes.clone()).ok().and_then(|proto| proto.sequence_value);
                match optional
                    .or_else(|| SequenceProto::decode(bytes).ok().filter(|proto| !proto.tensor_values.is_empty()))
                {
                    Some(proto) => {
                        let mut strings = vec![Vec::new()];
                        strings.extend(self.strings(&proto, elem)?);
                        strings
                    }
                    None => Vec::new(),
                }
            }
        };
        Ok(Tensor::vector(strings))
    }

    /// Whether it is a sequence or an optional, which steps are fed as strings.
    pub fn is_list(&self) -> bool {
        !matches!(self.kind, Kind::Tensor(_))
    }

    /// The tensor that a step is fed, from one of the port's elements.
    pub fn fed_tensor(&self, value: Tensor) -> Fed {
        match self.kind {
            Kind::Tensor(_) => value,
            Kind::Optional(_) | Kind::Sequence(_) => Tensor::vector(vec![serialized(&value)]),
            Kind::OptionalSequence(_) => Tensor::vector(vec![Vec::new(), serialized(&value)]),
        }
    }

    /// The dtype of its elements.
    ///
    /// # Errors
    /// Unimplemented for a type that onnx does not define.
    pub fn dtype(&self) -> Result<DType> {
        match self.kind {
            Kind::Tensor(elem) | Kind::Sequence(elem) | Kind::Optional(elem) | Kind::OptionalSequence(elem) => {
                elem.dtype()
            }
        }
    }

    fn tensor_of(&self, proto: &TensorProto, elem: Elem) -> Result<Tensor> {
        let (tensor, own) = weight::tensor(proto, None)?;
        if own != elem {
            return Err(Failure::invalid(format!(
                "{}: the model takes {}, and the file has {}",
                self.name,
                elem.name(),
                own.name()
            )));
        }
        Ok(tensor)
    }

    fn strings(&self, proto: &SequenceProto, elem: Elem) -> Result<Vec<Vec<u8>>> {
        proto.tensor_values.iter().map(|proto| self.tensor_of(proto, elem).map(|tensor| serialized(&tensor))).collect()
    }

    /// Whether its values are written as protos: NumPy has no dtype for them.
    pub fn is_proto(&self) -> bool {
        match self.kind {
            Kind::Tensor(elem) => elem.is_held() || matches!(elem, Elem::STRING | Elem::BFLOAT16),
            Kind::Sequence(_) | Kind::Optional(_) | Kind::OptionalSequence(_) => true,
        }
    }

    /// A fetched value in the form in which it is written.
    ///
    /// # Errors
    /// InvalidArgument if a sequence's strings are no tensors.
    pub fn shown(&self, value: &Tensor) -> Result<Shown> {
        let proto = match self.kind {
            Kind::Tensor(_) if !self.is_proto() => return Ok(Shown::Tensor(value.clone())),
            Kind::Tensor(elem) => weight::to_proto(value, elem, &self.name).encode_to_vec(),
            Kind::Sequence(elem) => self.sequence(value.slice::<Vec<u8>>()?, elem)?.encode_to_vec(),
            Kind::Optional(elem) => {
                let tensor = value.slice::<Vec<u8>>()?.first().map(|bytes| parsed(bytes)).transpose()?;
                let tensor_value = tensor.map(|tensor| weight::to_proto(&tensor, elem, ""));
                // 1 is a tensor; 0 says that there is no value.
                let elem_type = i32::from(tensor_value.is_some());
                OptionalProto { name: self.name.clone(), elem_type, tensor_value, sequence_value: None }.encode_to_vec()
            }
            Kind::OptionalSequence(elem) => {
                let strings = value.slice::<Vec<u8>>()?;
                let sequence_value = strings.split_first().map(|(_, rest)| self.sequence(rest, elem)).transpose()?;
                let elem_type = if sequence_value.is_some() { 3 } else { 0 };
                OptionalProto { name: self.name.clone(), elem_type, tensor_value: None, sequence_value }.encode_to_vec()
            }
        };
        Ok(Shown::Proto(proto))
    }

    fn sequence(&self, strings: &[Vec<u8>], elem: Elem) -> Result<SequenceProto> {
        let tensor = |bytes: &Vec<u8>| parsed(bytes).map(|tensor| weight::to_proto(&tensor, elem, ""));
        let tensor_values = strings.iter().map(tensor).collect::<Result<_>>()?;
        // 1 is a tensor.
        Ok(SequenceProto { name: self.name.clone(), elem_type: 1, tensor_values, sequence_values: Vec::new() })
    }
}

/// A tensor as the ops SerializeTensor and ParseTensor have it.
fn serialized(tensor: &Tensor) -> Vec<u8> {
    graphdef::tensor_to_proto(tensor).encode_to_vec()
}

fn parsed(bytes: &[u8]) -> Result<Tensor> {
    let proto = graphdef::TensorProto::decode(bytes)
        .map_err(|error| Failure::invalid(format!("no serialized tensor: {error}")))?;
    graphdef::tensor_from_proto(proto)
}
