//! The conversion between TensorProto and Tensor: the packed bytes, or one list of values whose last fills the rest of the
//! shape.

use half::{bf16, f16};
use meshtf_tensor::{Complex, DType, Data, Element, PartialShape, Shape, Tensor};

use super::proto::{Dim, TensorProto, TensorShapeProto, data_type_name};
use super::variant;
use crate::program::Budget;
use crate::{Attr, Filled};

/// The dtype of a value; for a reference, that of its value.
pub(super) fn dtype(number: i32) -> Result<DType, String> {
    DType::from_proto(number)
        .map(|(dtype, _)| dtype)
        .ok_or_else(|| format!("has dtype {}, which meshtf does not have", data_type_name(number)))
}

pub(super) fn partial_shape(proto: &TensorShapeProto) -> Result<PartialShape, String> {
    if proto.unknown_rank {
        return Ok(PartialShape::UNKNOWN);
    }
    let size = |dim: &Dim| match dim.size {
        -1 => Ok(None),
        n => usize::try_from(n).map(Some).map_err(|_| format!("has a dimension of size {n}")),
    };
    proto.dim.iter().map(size).collect::<Result<_, _>>().map(|dims| PartialShape(Some(dims)))
}

pub(super) fn shape_proto(shape: &PartialShape) -> TensorShapeProto {
    match &shape.0 {
        None => TensorShapeProto { dim: Vec::new(), unknown_rank: true },
        Some(dims) => TensorShapeProto {
            dim: dims.iter().map(|dim| Dim { size: dim.map_or(-1, |n| n as i64) }).collect(),
            unknown_rank: false,
        },
    }
}

/// The constant in a message. A large one of one repeated value is kept as that value and a shape.
pub(super) fn attr_from_proto(mut proto: TensorProto, budget: &mut Budget) -> Result<Attr, String> {
    let dtype = dtype(proto.dtype)?;
    let shape = shape(&proto)?;
    if dtype == DType::Variant {
        return variant::from_proto(&proto, &shape);
    }
    let stated = [
        proto.float_val.len(),
        proto.double_val.len(),
        // Two numbers per element.
        proto.scomplex_val.len().div_ceil(2),
        proto.dcomplex_val.len().div_ceil(2),
        proto.half_val.len(),
        proto.int_val.len(),
        proto.int64_val.len(),
        proto.uint32_val.len(),
        proto.uint64_val.len(),
        proto.bool_val.len(),
        proto.string_val.len(),
        // Packed: each element is present.
        if proto.tensor_content.is_empty() { 0 } else { 2 },
    ];
    let n = shape.limited_elements(dtype).map_err(|failure| failure.message)?;
    if stated.iter().sum::<usize>() > 1 || n < Filled::LEAST_ELEMENTS {
        return from_proto(proto, budget).map(Attr::Tensor);
    }
    proto.tensor_shape = None;
    let element = from_proto(proto, budget)?;
    Filled::new(element, shape).map(Attr::Filled).map_err(|failure| failure.message)
}

fn shape(proto: &TensorProto) -> Result<Shape, String> {
    Ok(match &proto.tensor_shape {
        None => Shape::scalar(),
        Some(shape) => partial_shape(shape)?.known().ok_or("is a tensor whose shape is not fully known")?,
    })
}

pub(super) fn from_proto(proto: TensorProto, budget: &mut Budget) -> Result<Tensor, String> {
    let dtype = dtype(proto.dtype)?;
    let shape = shape(&proto)?;
    let n = budget.elements(&shape, dtype)?;
    if !proto.tensor_content.is_empty() {
        budget.take(proto.tensor_content.len())?;
        if dtype == DType::String {
            let strings =
                unpack_strings(&proto.tensor_content, n).ok_or("is a string tensor whose content is cut off")?;
            return Tensor::new(shape, Data::String(strings)).map_err(|failure| failure.message);
        }
        return Tensor::from_bytes(dtype, shape, &proto.tensor_content).map_err(|failure| failure.message);
    }
    let bits = |bits: &[i32]| -> Result<Vec<u16>, String> {
        bits.iter().map(|&b| u16::try_from(b).map_err(|_| format!("has {b} in halfVal, which holds 16 bits"))).collect()
    };
    let data = match dtype {
        _ if dtype.is_quantized() => {
            let plain = TensorProto { dtype: dtype.stored_as().proto_number(), ..proto };
            return from_proto(plain, budget)?.retyped(dtype).map_err(|failure| failure.message);
        }
        DType::F32 => fill(proto.float_val, n, budget)?,
        DType::F64 => fill(proto.double_val, n, budget)?,
        DType::C64 => fill(pairs(&proto.scomplex_val, "scomplexVal")?, n, budget)?,
        DType::C128 => fill(pairs(&proto.dcomplex_val, "dcomplexVal")?, n, budget)?,
        DType::F16 => fill(bits(&proto.half_val)?.into_iter().map(f16::from_bits).collect(), n, budget)?,
        DType::BF16 => fill(bits(&proto.half_val)?.into_iter().map(bf16::from_bits).collect(), n, budget)?,
        DType::I32 => fill(proto.int_val, n, budget)?,
        DType::I16 => fill(narrow::<i16>(&proto.int_val)?, n, budget)?,
        DType::I8 => fill(narrow::<i8>(&proto.int_val)?, n, budget)?,
        DType::U16 => fill(narrow::<u16>(&proto.int_val)?, n, budget)?,
        DType::U8 => fill(narrow::<u8>(&proto.int_val)?, n, budget)?,
        DType::I64 => fill(proto.int64_val, n, budget)?,
        DType::U32 => fill(proto.uint32_val, n, budget)?,
        DType::U64 => fill(proto.uint64_val, n, budget)?,
        DType::Bool => fill(proto.bool_val, n, budget)?,
        DType::String => fill(proto.string_val, n, budget)?,
        DType::Variant => return Err("is a DT_VARIANT, which means nothing outside its process".into()),
        DType::Resource => return Err("is a resource handle, which means nothing outside its process".into()),
        DType::QI8 | DType::QU8 | DType::QI16 | DType::QU16 | DType::QI32 => unreachable!("handled above"),
    };
    Tensor::new(shape, data).map_err(|failure| failure.message)
}

/// Complex numbers whose parts alternate.
fn pairs<T: Copy>(parts: &[T], field: &str) -> Result<Vec<Complex<T>>, String> {
    match parts.as_chunks::<2>() {
        (pairs, []) => Ok(pairs.iter().map(|&[re, im]| Complex { re, im }).collect()),
        _ => Err(format!("has {} numbers in {field}, which holds two for each element", parts.len())),
    }
}

/// `n` values: the stated ones, then the last repeated; zeros if none is stated, as in TensorFlow.
fn fill<T: Element + Default>(mut values: Vec<T>, n: usize, budget: &mut Budget) -> Result<Data, String> {
    if values.len() > n {
        return Err(format!("has {} values, but its shape holds {n}", values.len()));
    }
    // Each repetition of a string takes the bytes of the string.
    let last = values.last().cloned().unwrap_or_default();
    let payload = match T::into_data(vec![last.clone()]) {
        Data::String(strings) => strings[0].len(),
        _ => 0,
    };
    budget.expand((n - values.len()).saturating_mul(size_of::<T>() + payload))?;
    values.resize(n, last);
    Ok(T::into_data(values))
}

fn narrow<T: TryFrom<i32> + Element>(values: &[i32]) -> Result<Vec<T>, String> {
    values
        .iter()
        .map(|&v| T::try_from(v).map_err(|_| format!("has {v} in intVal, which is not {}", T::DTYPE.with_article())))
        .collect()
}

/// Strings in tensor_content: their lengths as varints, then their bytes.
fn unpack_strings(mut content: &[u8], n: usize) -> Option<Vec<Vec<u8>>> {
    if n > content.len() {
        return None;
    }
    let lengths: Vec<u64> = (0..n).map(|_| prost::encoding::decode_varint(&mut content).ok()).collect::<Option<_>>()?;
    let mut strings = Vec::with_capacity(n);
    for length in lengths {
        let (string, rest) = content.split_at_checked(usize::try_from(length).ok()?)?;
        strings.push(string.to_vec());
        content = rest;
    }
    content.is_empty().then_some(strings)
}

/// The form in which TensorFlow writes constants: one value in the list of its dtype, several packed as bytes.
pub(super) fn to_proto(tensor: &Tensor) -> TensorProto {
    let mut proto = TensorProto {
        dtype: tensor.dtype().proto_number(),
        tensor_shape: Some(shape_proto(&tensor.shape().into())),
        ..TensorProto::default()
    };
    match (tensor.data(), tensor.bytes()) {
        (Data::String(strings), _) => proto.string_val.clone_from(strings),
        (_, Some(bytes)) if tensor.len() > 1 => proto.tensor_content = bytes.to_vec(),
        (Data::F32(v), _) => proto.float_val.clone_from(v),
        (Data::F64(v), _) => proto.double_val.clone_from(v),
        (Data::C64(v), _) => proto.scomplex_val = v.iter().flat_map(|x| [x.re, x.im]).collect(),
        (Data::C128(v), _) => proto.dcomplex_val = v.iter().flat_map(|x| [x.re, x.im]).collect(),
        (Data::F16(v), _) => proto.half_val = v.iter().map(|x| i32::from(x.to_bits())).collect(),
        (Data::BF16(v), _) => proto.half_val = v.iter().map(|x| i32::from(x.to_bits())).collect(),
        (Data::I32(v) | Data::QI32(v), _) => proto.int_val.clone_from(v),
        (Data::I16(v) | Data::QI16(v), _) => proto.int_val = v.iter().map(|&x| x.into()).collect(),
        (Data::I8(v) | Data::QI8(v), _) => proto.int_val = v.iter().map(|&x| x.into()).collect(),
        (Data::U16(v) | Data::QU16(v), _) => proto.int_val = v.iter().map(|&x| x.into()).collect(),
        (Data::U8(v) | Data::QU8(v), _) => proto.int_val = v.iter().map(|&x| x.into()).collect(),
        (Data::I64(v), _) => proto.int64_val.clone_from(v),
        (Data::U32(v), _) => proto.uint32_val.clone_from(v),
        (Data::U64(v), _) => proto.uint64_val.clone_from(v),
        (Data::Bool(v), _) => proto.bool_val.clone_from(v),
    }
    proto
}
