//! The elements of a part as fields of a TensorProto, which has one for each kind of dtype.

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Complex, DType, Data, Shape, Tensor};
use prost::Message;

use crate::{data_loss, table};

/// The field of an entry's value with the part, and the part's field with the elements (saved_tensor_slice.proto).
const PART: u32 = 2;
const ELEMENTS: u32 = 3;
/// protobuf's wire type of fields with a length.
const WITH_LENGTH: u32 = 2;
/// The byte before the part's length in the value of an entry.
pub const PART_TAG: u8 = (PART << 3 | WITH_LENGTH) as u8;

macro_rules! fields {
    ($($name:ident: $kind:tt, $tag:tt, $type:ty;)*) => {
        $(#[derive(Clone, PartialEq, prost::Message)]
        struct $name {
            #[prost($kind, repeated, tag = $tag)]
            values: Vec<$type>,
        })*
    };
}

fields! {
    Floats: float, "5", f32;
    Doubles: double, "6", f64;
    Ints: int32, "7", i32;
    Int64s: int64, "10", i64;
    Bools: bool, "11", bool;
    Halves: int32, "13", i32;
    Complex64s: float, "9", f32;
    Complex128s: double, "12", f64;
}

#[derive(Clone, PartialEq, prost::Message)]
struct Strings {
    #[prost(bytes = "vec", repeated, tag = "8")]
    values: Vec<Vec<u8>>,
}

/// Whether the older form has a field for the dtype; TensorFlow writes no other dtypes.
pub fn has_field(dtype: DType) -> bool {
    use DType::{BF16, QI16, QU16, Resource, U32, U64, Variant};
    !matches!(dtype, BF16 | U32 | U64 | QI16 | QU16 | Resource | Variant)
}

/// Most bytes of memory that one byte of a file takes when read: an empty string is two bytes in the file, an int64 may
/// be one.
pub fn memory_per_byte(dtype: DType) -> usize {
    match dtype {
        DType::F32 | DType::F64 | DType::C64 | DType::C128 | DType::Bool => 1,
        DType::String => 12,
        DType::I64 => 8,
        _ => 4,
    }
}

/// Appends the elements to a part that has its other fields.
///
/// # Errors
/// Unimplemented for a dtype without a field.
pub fn put(part: &mut Vec<u8>, tensor: &Tensor) -> Result<()> {
    fn put(part: &mut Vec<u8>, elements: &impl Message) {
        part.push((ELEMENTS << 3 | WITH_LENGTH) as u8);
        table::put_varint(part, elements.encoded_len() as u64);
        elements.encode(part).expect("memory takes what is written to it");
    }
    match tensor.data() {
        Data::F32(values) => put(part, &Floats { values: values.to_vec() }),
        Data::F64(values) => put(part, &Doubles { values: values.to_vec() }),
        Data::I64(values) => put(part, &Int64s { values: values.to_vec() }),
        Data::I32(values) | Data::QI32(values) => put(part, &Ints { values: values.to_vec() }),
        Data::I16(values) => put(part, &Ints { values: values.iter().map(|&x| x.into()).collect() }),
        Data::I8(values) | Data::QI8(values) => put(part, &Ints { values: values.iter().map(|&x| x.into()).collect() }),
        Data::U16(values) => put(part, &Ints { values: values.iter().map(|&x| x.into()).collect() }),
        Data::U8(values) | Data::QU8(values) => put(part, &Ints { values: values.iter().map(|&x| x.into()).collect() }),
        Data::F16(values) => put(part, &Halves { values: values.iter().map(|x| x.to_bits().into()).collect() }),
        Data::C64(values) => put(part, &Complex64s { values: values.iter().flat_map(|x| [x.re, x.im]).collect() }),
        Data::C128(values) => put(part, &Complex128s { values: values.iter().flat_map(|x| [x.re, x.im]).collect() }),
        Data::Bool(values) => put(part, &Bools { values: values.to_vec() }),
        Data::String(values) => put(part, &Strings { values: values.to_vec() }),
        _ => return Err(not_supported("Saving", tensor.dtype())),
    }
    Ok(())
}

/// The elements in the value of an entry, as a tensor of `shape`.
///
/// # Errors
/// Unimplemented for a dtype without a field; DataLoss if their number does not match the shape.
pub fn take(value: &[u8], dtype: DType, shape: Shape) -> Result<Tensor> {
    fn read<M: Message + Default>(bytes: &[u8]) -> Result<M> {
        M::decode(bytes).map_err(|error| data_loss(format!("the elements cannot be read: {error}")))
    }
    let bytes = field(field(value, PART)?, ELEMENTS)?;
    let data = match dtype {
        DType::QI8 | DType::QU8 | DType::QI32 => {
            return take(value, dtype.stored_as(), shape)?.retyped(dtype);
        }
        DType::F32 => Data::F32(read::<Floats>(bytes)?.values),
        DType::F64 => Data::F64(read::<Doubles>(bytes)?.values),
        DType::I64 => Data::I64(read::<Int64s>(bytes)?.values),
        DType::I32 => Data::I32(read::<Ints>(bytes)?.values),
        DType::I16 => Data::I16(read::<Ints>(bytes)?.values.iter().map(|&x| x as i16).collect()),
        DType::I8 => Data::I8(read::<Ints>(bytes)?.values.iter().map(|&x| x as i8).collect()),
        DType::U16 => Data::U16(read::<Ints>(bytes)?.values.iter().map(|&x| x as u16).collect()),
        DType::U8 => Data::U8(read::<Ints>(bytes)?.values.iter().map(|&x| x as u8).collect()),
        DType::F16 => {
            Data::F16(read::<Halves>(bytes)?.values.iter().map(|&bits| half::f16::from_bits(bits as u16)).collect())
        }
        DType::C64 => Data::C64(pairs(&read::<Complex64s>(bytes)?.values)?),
        DType::C128 => Data::C128(pairs(&read::<Complex128s>(bytes)?.values)?),
        DType::Bool => Data::Bool(read::<Bools>(bytes)?.values),
        DType::String => Data::String(read::<Strings>(bytes)?.values),
        _ => return Err(not_supported("Restoring", dtype)),
    };
    Tensor::new(shape, data).map_err(|failure| data_loss(failure.message))
}

/// Complex numbers from consecutive real and imaginary parts.
fn pairs<T: Copy>(parts: &[T]) -> Result<Vec<Complex<T>>> {
    match parts.as_chunks::<2>() {
        (pairs, []) => Ok(pairs.iter().map(|&[re, im]| Complex { re, im }).collect()),
        _ => Err(data_loss("a complex number lacks its imaginary part")),
    }
}

pub fn not_supported(doing: &str, dtype: DType) -> Failure {
    let why = "the older form of checkpoints cannot store it; SaveV2 and RestoreV2 can";
    Failure::new(Code::Unimplemented, format!("{doing} data type {dtype} not yet supported: {why}"))
}

/// The bytes of a message's field `number`; empty if it is absent.
fn field(message: &[u8], number: u32) -> Result<&[u8]> {
    let bad = || data_loss("the value of a part is not a valid message");
    let (mut rest, mut found) = (message, &message[..0]);
    while !rest.is_empty() {
        let tag = table::take_varint(&mut rest)?;
        let length = match tag & 7 {
            0 => {
                table::take_varint(&mut rest)?;
                0
            }
            1 => 8,
            2 => usize::try_from(table::take_varint(&mut rest)?).map_err(|_| bad())?,
            5 => 4,
            _ => return Err(bad()),
        };
        let (bytes, after) = rest.split_at_checked(length).ok_or_else(bad)?;
        if tag == u64::from(number << 3 | WITH_LENGTH) {
            found = bytes;
        }
        rest = after;
    }
    Ok(found)
}
