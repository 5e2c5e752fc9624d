//! Conversion between elements and strings of their bytes: DecodeRaw, DecodePaddedRaw, EncodeBase64, DecodeBase64,
//! ParseTensor, SerializeTensor, and DecodeCompressed.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use meshtf_graph::graphdef::{TensorProto, tensor_from_proto};
use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};
use prost::Message;

use super::super::Registry;
use super::super::call::{check_text_bytes, kernel as call, no_kernel, output_dtype};
use super::media::proto;
use crate::files::{Compression, inflate};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("DecodeRaw", |node| {
        let (dtype, is_little) = (output_dtype(node, 0)?, node.attrs.bool("little_endian")?);
        let Some(size) = dtype.size() else { return no_kernel(node) };
        Ok(Some(call(move |[texts]| decode_raw(&texts, dtype, size, is_little))))
    });
    ops.insert("DecodePaddedRaw", |node| {
        let (dtype, is_little) = (output_dtype(node, 0)?, node.attrs.bool("little_endian")?);
        let Some(size) = dtype.size() else { return no_kernel(node) };
        Ok(Some(call(move |[texts, width]| decode_padded(&texts, width.to_i64()?, dtype, size, is_little))))
    });
    ops.insert("EncodeBase64", |node| {
        let engine = engine(node.attrs.bool("pad")?);
        Ok(Some(call(move |[texts]| {
            let encoded = |text: &Vec<u8>| Ok(engine.encode(text).into_bytes());
            each(&texts, encoded, |length| length.div_ceil(3).saturating_mul(4))
        })))
    });
    ops.insert("DecodeBase64", |_| {
        let engine = engine(false);
        Ok(Some(call(move |[texts]| {
            let decoded = |text: &Vec<u8>| {
                if text.ends_with(b"=") && !text.len().is_multiple_of(4) {
                    return Err(Failure::invalid("Invalid character found in base64."));
                }
                if text.len() % 4 == 1 && !text.ends_with(b"=") {
                    return Err(Failure::invalid("Base64 string length cannot be 1 modulo 4."));
                }
                engine.decode(text).map_err(|_| Failure::invalid("Invalid character found in base64."))
            };
            each(&texts, decoded, |length| length)
        })))
    });
    ops.insert("ParseTensor", |node| {
        let dtype = output_dtype(node, 0)?;
        Ok(Some(call(move |[serialized]| parse_tensor(&serialized, dtype))))
    });
    ops.insert("SerializeTensor", |node| {
        if node.inputs.first() == Some(&DType::Variant) {
            return no_kernel(node);
        }
        Ok(Some(call(|[tensor]| Ok(Tensor::scalar(proto(&tensor)?.encode_to_vec())))))
    });
    ops.insert("DecodeCompressed", |node| {
        let compression = Compression::named(node.attrs.str("compression_type")?)?;
        Ok(Some(call(move |[texts]| each(&texts, |text| inflate(text, compression), |_| 0))))
    });
}

/// The result of `f` for each string; `size` estimates the bytes of one result from those of its string.
fn each(texts: &Tensor, f: impl Fn(&Vec<u8>) -> Result<Vec<u8>>, size: impl Fn(usize) -> usize) -> Result<Tensor> {
    let all = texts.slice::<Vec<u8>>()?;
    texts.shape().checked_elements(DType::String)?;
    check_text_bytes(all.iter().map(|text| size(text.len())).fold(0, usize::saturating_add))?;
    let mut pace = Pace::new();
    let mut done = Vec::with_capacity(all.len());
    let mut bytes = 0usize;
    for text in all {
        pace.go(50 + text.len());
        let one = f(text)?;
        bytes += one.len();
        if size(1) == 0 {
            check_text_bytes(bytes)?;
        }
        done.push(one);
    }
    Ok(Tensor::from_vec(texts.shape().clone(), done))
}

/// Base64 with the URL-safe alphabet; padding is optional when decoding.
#[inline]
fn engine(pads: bool) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new()
        .with_encode_padding(pads)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&URL_SAFE, config)
}

/// The elements of each string; all strings have the same length.
fn decode_raw(texts: &Tensor, dtype: DType, size: usize, is_little: bool) -> Result<Tensor> {
    let all = texts.slice::<Vec<u8>>()?;
    let length = all.first().map_or(0, Vec::len);
    if let Some(i) = all.iter().position(|text| text.len() != length) {
        let why = format!(
            "DecodeRaw requires input strings to all be the same size, but element {i} has size {} != {length}",
            all[i].len()
        );
        return Err(Failure::invalid(why));
    }
    if length % size != 0 {
        let why =
            format!("Input to DecodeRaw has length {length} that is not a multiple of {size}, the size of {dtype}");
        return Err(Failure::invalid(why));
    }
    elements(texts, length / size, dtype, size, is_little)
}

/// The first `width` bytes of each string as elements; shorter strings are padded with zeros.
fn decode_padded(texts: &Tensor, width: i64, dtype: DType, size: usize, is_little: bool) -> Result<Tensor> {
    let positive = usize::try_from(width).ok().filter(|&width| width > 0);
    let width =
        positive.ok_or_else(|| Failure::invalid(format!("fixed_length ({width}) must be greater than zero.")))?;
    if width % size != 0 {
        let why = format!("fixed_length ({width}) must be a multiple of the size of out_type ({size})");
        return Err(Failure::invalid(why));
    }
    elements(texts, width / size, dtype, size, is_little)
}

fn elements(texts: &Tensor, count: usize, dtype: DType, size: usize, is_little: bool) -> Result<Tensor> {
    let shape: Shape = texts.dims().iter().copied().chain([count]).collect();
    let total = shape.checked_elements(dtype)?;
    let mut bytes: Vec<u8> = Vec::with_capacity(total * size);
    let mut pace = Pace::new();
    for text in texts.slice::<Vec<u8>>()? {
        pace.go(count * size);
        let taken = &text[..text.len().min(count * size)];
        bytes.extend_from_slice(taken);
        bytes.resize(bytes.len() + count * size - taken.len(), 0);
    }
    if !is_little {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool {
        // Every byte except 0 is true.
        bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    }
    Tensor::from_bytes(dtype, shape, &bytes)
}

fn parse_tensor(serialized: &Tensor, wanted: DType) -> Result<Tensor> {
    if serialized.rank() != 0 {
        let why = format!("Expected `serialized` to be a scalar, got shape: {}", serialized.shape());
        return Err(Failure::invalid(why));
    }
    let bytes = &serialized.slice::<Vec<u8>>()?[0];
    // The lists of a message take more memory than the message.
    check_text_bytes(bytes.len().saturating_mul(8))?;
    let invalid = |why: String| Failure::invalid(format!("Could not parse `serialized` as TensorProto: {why}"));
    let proto = TensorProto::decode(bytes.as_slice()).map_err(|error| invalid(error.to_string()))?;
    let tensor = tensor_from_proto(proto).map_err(|failure| match failure.code {
        Code::ResourceExhausted => failure,
        _ => invalid(failure.message),
    })?;
    if tensor.dtype() != wanted {
        let why = format!("Type mismatch between parsed tensor ({}) and dtype ({wanted})", tensor.dtype());
        return Err(Failure::invalid(why));
    }
    Ok(tensor)
}
