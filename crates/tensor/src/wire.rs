//! Tensors inside serialised messages and graphs: dtype, shape and the elements in their memory layout.
//!
//! Used for constants of a graph. The values of a step are sent next to their message, not in it.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{DType, Data, Shape, Tensor, constant};

#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    dtype: DType,
    shape: Shape,
    #[serde(with = "serde_bytes", borrow)]
    bytes: std::borrow::Cow<'a, [u8]>,
    /// Lengths of the strings that `bytes` holds one after the other; empty for every other dtype.
    lengths: Vec<u32>,
}

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Those of a constant are not kept for it.
        let at_hand = constant::at_hand(self);
        let (bytes, lengths) = match at_hand.data() {
            Data::String(strings) => (strings.concat().into(), strings.iter().map(|s| s.len() as u32).collect()),
            other => (other.bytes().expect("all but strings have bytes").into(), Vec::new()),
        };
        Wire { dtype: self.dtype(), shape: self.shape().clone(), bytes, lengths }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        if wire.dtype != DType::String {
            return Tensor::from_bytes_at_hand(wire.dtype, wire.shape, &wire.bytes).map_err(D::Error::custom);
        }
        let mut rest = &*wire.bytes;
        let mut strings = Vec::new();
        for length in wire.lengths {
            let (string, after) = rest
                .split_at_checked(length as usize)
                .ok_or_else(|| D::Error::custom("a string is longer than what is left"))?;
            strings.push(string.to_vec());
            rest = after;
        }
        Tensor::new(wire.shape, Data::String(strings)).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Complex;

    #[test]
    fn tensors_survive_the_wire() {
        let tensors = [
            Tensor::scalar(true),
            Tensor::from_vec([2, 2], vec![1f64, f64::NEG_INFINITY, 0.5, -0.0]),
            Tensor::vector(vec![b"a".to_vec(), vec![], vec![0xff]]),
            Tensor::zeros(DType::I8, [0, 3]).unwrap(),
            Tensor::vector(vec![Complex::new(1f32, -2.5), Complex::new(f32::INFINITY, -0.0)]),
            Tensor::scalar(Complex::new(0.1f64, 1e300)),
        ];
        for tensor in tensors {
            let bytes = postcard::to_allocvec(&tensor).unwrap();
            assert_eq!(postcard::from_bytes::<Tensor>(&bytes).unwrap(), tensor);
        }
    }

    #[test]
    fn an_inconsistent_wire_form_is_refused() {
        let mut bytes = postcard::to_allocvec(&Tensor::vector(vec![1u8, 2, 3])).unwrap();
        bytes.truncate(bytes.len() - 2);
        assert!(postcard::from_bytes::<Tensor>(&bytes).is_err());
    }
}
