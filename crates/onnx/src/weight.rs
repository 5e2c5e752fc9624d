//! Tensors of a model as host tensors: the constants in the file and those in files beside it, and the protos of values that
//! NumPy has no dtype for.

use meshtf_graph::Beside;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::half::{bf16, f16};
use meshtf_tensor::{Complex, DType, Data, Shape, Tensor};
use prost::bytes::Bytes;

use crate::elem::{Elem, decode_e8m0, encode_e8m0};
use crate::proto::{EXTERNAL, SparseTensorProto, TensorProto};

/// Bytes of a file that are read at a time, if a tensor has more: few, so that what the parts took fits between the tensors.
const PART: usize = 64 << 10;

/// The files beside the model. Of each, the parts are read that hold a tensor, one after the other: they may be larger together
/// than the memory.
pub struct Files<'b, 'f> {
    beside: &'b mut Beside<'f>,
}

impl<'b, 'f> Files<'b, 'f> {
    pub fn new(beside: &'b mut Beside<'f>) -> Self {
        Files { beside }
    }

    /// The bytes that the `external_data` of a tensor names.
    pub fn external(&mut self, proto: &TensorProto) -> Result<Bytes> {
        let External { location, from, length } = External::of(proto)?;
        let bytes = (self.beside)(location, from..from.saturating_add(length.unwrap_or(u64::MAX)))?;
        match length {
            Some(length) if bytes.len() as u64 != length => {
                let has = match bytes.len() {
                    0 => format!("has no bytes from {from} on"),
                    some => format!("has {}", from.saturating_add(some as u64)),
                };
                let why =
                    format!("its external data is the bytes from {from} on, {length} of them; {location:?} {has}");
                Err(Failure::invalid(why))
            }
            _ => Ok(bytes.into()),
        }
    }

    /// The elements that it names, read part by part into the memory that they keep; `None` if they are few, or if the file does
    /// not have them, which [`Files::external`] reports.
    fn elements(&mut self, proto: &TensorProto, dtype: DType, shape: &Shape) -> Result<Option<Tensor>> {
        let External { location, from, length } = External::of(proto)?;
        let needed = shape.limited_elements(dtype)?.saturating_mul(dtype.size().unwrap_or(usize::MAX));
        let Some(end) = from.checked_add(needed as u64).filter(|_| needed > PART && length == Some(needed as u64))
        else {
            return Ok(None);
        };
        // The last byte, before memory for all is asked for.
        if (self.beside)(location, end - 1..end)?.len() != 1 {
            return Ok(None);
        }
        let mut data = Data::zeros(dtype, shape.checked_elements(dtype)?);
        let Some(bytes) = data.bytes_mut() else { return Ok(None) };
        for (part, at) in bytes.chunks_mut(PART).zip((from..end).step_by(PART)) {
            let read = (self.beside)(location, at..at + part.len() as u64)?;
            if read.len() != part.len() {
                return Err(Failure::invalid(format!(
                    "its external data in {location:?} became shorter as it was read"
                )));
            }
            part.copy_from_slice(&read);
        }
        Tensor::new(shape.clone(), data).map(Some)
    }
}

/// The location of a tensor's data.
struct External<'p> {
    location: &'p str,
    from: u64,
    length: Option<u64>,
}

impl External<'_> {
    fn of(proto: &TensorProto) -> Result<External<'_>> {
        let get =
            |key: &str| proto.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
        let number = |key: &str| match get(key) {
            None => Ok(None),
            Some(text) => text.trim().parse::<u64>().map(Some).map_err(|_| {
                Failure::invalid(format!("its external data has {key} {text:?}, which is not a number of bytes"))
            }),
        };
        let location = get("location").filter(|location| !location.is_empty());
        let location = location.ok_or_else(|| Failure::invalid("its external data names no file (location)"))?;
        check_location(location)?;
        Ok(External { location, from: number("offset")?.unwrap_or(0), length: number("length")? })
    }
}

/// Refuses a path that leads out of the model's folder.
fn check_location(location: &str) -> Result<()> {
    let path = std::path::Path::new(location);
    let is_normal = |part| matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir);
    if location.contains(['\\', '\0', ':']) || !path.components().all(is_normal) {
        return Err(Failure::invalid(format!(
            "its external data is in {location:?}; only a file in the model's folder, or below it, is read"
        )));
    }
    Ok(())
}

/// The value of a message, and its element type.
///
/// # Errors
/// InvalidArgument if dims, type and data do not fit; Unimplemented for a type that onnx does not define.
pub fn tensor(proto: &TensorProto, files: Option<&mut Files>) -> Result<(Tensor, Elem)> {
    let elem = Elem(proto.data_type);
    let dtype = elem.dtype()?;
    let shape = Shape::from_i64s(&proto.dims)?;
    let n = shape.limited_elements(dtype)?;
    let raw = if proto.data_location == EXTERNAL {
        let files = files.ok_or_else(|| Failure::invalid("its data is in another file, which is not read here"))?;
        let is_plain = sub_byte_bits(elem).is_none() && !elem.is_held();
        if is_plain
            && !matches!(dtype, DType::Bool | DType::String)
            && let Some(value) = files.elements(proto, dtype, &shape)?
        {
            return Ok((value, elem));
        }
        Some(files.external(proto)?)
    } else {
        proto.raw_data.clone().filter(|raw| !raw.is_empty() || n == 0)
    };
    if dtype == DType::String {
        let strings: Vec<Vec<u8>> = proto.string_data.iter().map(|text| text.to_vec()).collect();
        return Ok((stated(shape, Data::String(strings))?, elem));
    }
    if let Some(raw) = raw {
        return Ok((from_raw(elem, dtype, shape, n, &raw)?, elem));
    }
    Ok((from_lists(proto, elem, dtype, shape, n)?, elem))
}

/// A tensor whose data was counted by the file, and may not fit its shape.
fn stated(shape: Shape, data: Data) -> Result<Tensor> {
    let (dims, got) = (shape.to_string(), data.len());
    Tensor::new(shape, data)
        .map_err(|_| Failure::invalid(format!("its dims are {dims}, and its data has {got} elements")))
}

/// Elements of packed bytes. Those of fewer than 8 bits lie in the lower bits first.
fn from_raw(elem: Elem, dtype: DType, shape: Shape, n: usize, raw: &[u8]) -> Result<Tensor> {
    let bits = sub_byte_bits(elem);
    let wrong = |needed: usize| {
        Failure::invalid(format!("{} of shape {shape} takes {needed} bytes, and it has {}", elem.name(), raw.len()))
    };
    if let Some(bits) = bits {
        let per = 8 / bits as usize;
        if raw.len() != n.div_ceil(per) {
            return Err(wrong(n.div_ceil(per)));
        }
        shape.checked_elements(dtype)?;
        let mask = (1u8 << bits) - 1;
        let codes = (0..n).map(|i| raw[i / per] >> (bits as usize * (i % per)) & mask);
        return Ok(held(elem, shape, codes.collect()));
    }
    if elem.is_held() {
        if raw.len() != n {
            return Err(wrong(n));
        }
        shape.checked_elements(dtype)?;
        return Ok(held(elem, shape, raw.to_vec()));
    }
    let needed = n * dtype.size().unwrap_or(1);
    if raw.len() != needed {
        return Err(wrong(needed));
    }
    if dtype == DType::Bool {
        return stated(shape, Data::Bool(raw.iter().map(|&byte| byte != 0).collect()));
    }
    Tensor::from_bytes(dtype, shape, raw)
}

/// The bits of an element that shares a byte with others.
fn sub_byte_bits(elem: Elem) -> Option<u32> {
    match elem {
        Elem::F4_E2M1 => Some(4),
        _ => elem.narrow_int().map(|(bits, _)| bits),
    }
}

/// The tensor of codes of fewer than 8 bits, or of floats of 8.
fn held(elem: Elem, shape: Shape, codes: Vec<u8>) -> Tensor {
    if let Some((bits, is_signed)) = elem.narrow_int() {
        let shift = 8 - bits;
        return match is_signed {
            false => Tensor::from_vec(shape, codes),
            true => Tensor::from_vec(
                shape,
                codes.into_iter().map(|code| ((code << shift) as i8) >> shift).collect::<Vec<i8>>(),
            ),
        };
    }
    let values: Vec<f32> = match elem.narrow_float() {
        Some(format) => {
            let table: Vec<f32> =
                (0..=u8::MAX).map(|code| format.decode(code & (u8::MAX >> (8 - format.bits)))).collect();
            codes.into_iter().map(|code| table[usize::from(code)]).collect()
        }
        None => codes.into_iter().map(decode_e8m0).collect(),
    };
    Tensor::from_vec(shape, values)
}

/// Elements of the typed lists.
fn from_lists(proto: &TensorProto, elem: Elem, dtype: DType, shape: Shape, n: usize) -> Result<Tensor> {
    let ints = &proto.int32_data;
    if let Some(bits) = sub_byte_bits(elem) {
        let raw: Vec<u8> = ints.iter().map(|&int| int as u8).collect();
        let _ = bits;
        return from_raw(elem, dtype, shape, n, &raw);
    }
    if elem.is_held() {
        let raw: Vec<u8> = ints.iter().map(|&int| int as u8).collect();
        return from_raw(elem, dtype, shape, n, &raw);
    }
    let data = match dtype {
        DType::F32 => Data::F32(proto.float_data.clone()),
        DType::F64 => Data::F64(proto.double_data.clone()),
        DType::I64 => Data::I64(proto.int64_data.clone()),
        DType::U64 => Data::U64(proto.uint64_data.clone()),
        DType::U32 => Data::U32(proto.uint64_data.iter().map(|&value| value as u32).collect()),
        DType::I32 => Data::I32(ints.clone()),
        DType::I16 => Data::I16(ints.iter().map(|&int| int as i16).collect()),
        DType::I8 => Data::I8(ints.iter().map(|&int| int as i8).collect()),
        DType::U16 => Data::U16(ints.iter().map(|&int| int as u16).collect()),
        DType::U8 => Data::U8(ints.iter().map(|&int| int as u8).collect()),
        DType::Bool => Data::Bool(ints.iter().map(|&int| int != 0).collect()),
        DType::F16 => Data::F16(ints.iter().map(|&int| f16::from_bits(int as u16)).collect()),
        DType::BF16 => Data::BF16(ints.iter().map(|&int| bf16::from_bits(int as u16)).collect()),
        DType::C64 => Data::C64(proto.float_data.chunks_exact(2).map(|part| Complex::new(part[0], part[1])).collect()),
        DType::C128 => {
            Data::C128(proto.double_data.chunks_exact(2).map(|part| Complex::new(part[0], part[1])).collect())
        }
        _ => return Err(Failure::new(Code::Unimplemented, format!("unsupported ONNX element type {}", elem.name()))),
    };
    stated(shape, data)
}

/// A sparse constant as a dense tensor.
///
/// # Errors
/// As [`tensor`]; InvalidArgument for an index outside of the dims.
pub fn sparse(proto: &SparseTensorProto, mut files: Option<&mut Files>) -> Result<(Tensor, Elem)> {
    let (Some(values), Some(indices)) = (&proto.values, &proto.indices) else {
        return Err(Failure::invalid("a sparse tensor lacks values or indices"));
    };
    let (values, elem) = tensor(values, files.as_deref_mut())?;
    let (indices, _) = tensor(indices, files)?;
    let shape = Shape::from_i64s(&proto.dims)?;
    let n = shape.checked_elements(values.dtype())?;
    let (at, strides) = (indices.to_i64s()?, shape.strides());
    let (rank, count) = (if indices.rank() == 2 { shape.rank() } else { 1 }, values.len());
    if at.len() != count * rank {
        return Err(Failure::invalid("a sparse tensor has another number of indices than of values"));
    }
    let place = |i: usize| -> Option<usize> {
        if indices.rank() != 2 {
            return usize::try_from(at[i]).ok().filter(|&at| at < n);
        }
        at[i * rank..(i + 1) * rank]
            .iter()
            .zip(shape.dims())
            .zip(&strides)
            .try_fold(0, |sum, ((&at, &size), stride)| {
                usize::try_from(at).ok().filter(|&at| at < size).map(|at| sum + at * stride)
            })
    };
    let places: Option<Vec<usize>> = (0..count).map(place).collect();
    let places =
        places.ok_or_else(|| Failure::invalid(format!("a sparse tensor has an index outside of its dims {shape}")))?;
    let dense = meshtf_tensor::with_type!(values.dtype(), T => {
        let from = values.slice::<T>()?;
        let mut all: Vec<T> = vec![T::default(); n];
        for (&to, value) in places.iter().zip(from) {
            all[to].clone_from(value);
        }
        Tensor::from_vec(shape.clone(), all)
    });
    dense.map(|dense| (dense, elem)).ok_or_else(|| Failure::invalid("a sparse tensor of handles"))
}

/// The message of a value of this element type.
pub fn to_proto(value: &Tensor, elem: Elem, name: &str) -> TensorProto {
    let mut proto = TensorProto {
        dims: value.dims().iter().map(|&size| size as i64).collect(),
        data_type: elem.0,
        name: name.to_owned(),
        ..TensorProto::default()
    };
    if let Data::String(strings) = value.data() {
        proto.string_data = strings.iter().map(|text| Bytes::from(text.clone())).collect();
        return proto;
    }
    let raw = if let Some((bits, _)) = elem.narrow_int() {
        let codes: Vec<u8> = value.bytes().unwrap_or_default().iter().map(|byte| byte & ((1 << bits) - 1)).collect();
        packed(&codes, bits)
    } else if let (Some(format), Ok(values)) = (elem.narrow_float(), value.slice::<f32>()) {
        let codes: Vec<u8> = values.iter().map(|&value| format.encode(value)).collect();
        if format.bits == 4 { packed(&codes, 4) } else { codes }
    } else if let (Elem::F8_E8M0, Ok(values)) = (elem, value.slice::<f32>()) {
        values.iter().map(|&value| encode_e8m0(value)).collect()
    } else {
        value.bytes().unwrap_or_default().to_vec()
    };
    proto.raw_data = Some(Bytes::from(raw));
    proto
}

fn packed(codes: &[u8], bits: u32) -> Vec<u8> {
    let per = 8 / bits as usize;
    codes
        .chunks(per)
        .map(|part| part.iter().enumerate().fold(0, |byte, (i, code)| byte | code << (bits as usize * i)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::proto::StringStringEntryProto;

    /// A tensor of this many float32 behind the eighth byte of a file.
    fn external(count: usize) -> TensorProto {
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
        let external_data = vec![
            entry("location", "w.bin".to_owned()),
            entry("offset", "8".to_owned()),
            entry("length", (4 * count).to_string()),
        ];
        let (dims, data_location) = (vec![count as i64], EXTERNAL);
        TensorProto { dims, data_type: 1, data_location, external_data, ..TensorProto::default() }
    }

    #[test]
    fn large_external_data_is_read_in_parts_that_the_file_must_have() {
        let count = PART / 4 + 3;
        let numbers: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let mut file = vec![0; 8];
        numbers.iter().for_each(|number| file.extend(number.to_le_bytes()));
        let read = |file: &[u8]| {
            let mut parts: Vec<usize> = Vec::new();
            let mut beside = |_: &str, range: Range<u64>| {
                let at = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(file.len());
                let bytes = file[at(range.start)..at(range.end)].to_vec();
                parts.push(bytes.len());
                Ok(bytes)
            };
            let value = tensor(&external(count), Some(&mut Files::new(&mut beside)));
            (value.map(|(value, _)| value), parts)
        };
        let (value, parts) = read(&file);
        assert_eq!(value.unwrap().slice::<f32>().unwrap(), numbers);
        assert_eq!(parts, [1, PART, 12]);
        let failure = read(&file[..file.len() - 1]).0.unwrap_err();
        let why =
            format!("its external data is the bytes from 8 on, {} of them; \"w.bin\" has {}", 4 * count, 4 * count + 7);
        assert_eq!(failure.message, why);
        assert!(read(&[]).0.unwrap_err().message.ends_with("has no bytes from 8 on"));
    }
}
