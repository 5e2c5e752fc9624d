//! Element types, with TensorFlow's names and numbers for them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DType {
    /// float16, IEEE 754's binary16: 2 bytes.
    F16,
    /// bfloat16, a float32 without its lower 16 bits: 2 bytes.
    BF16,
    /// float32: 4 bytes.
    F32,
    /// float64: 8 bytes.
    F64,
    /// int8: 1 byte.
    I8,
    /// int16: 2 bytes.
    I16,
    /// int32: 4 bytes.
    I32,
    /// int64: 8 bytes.
    I64,
    /// uint8: 1 byte.
    U8,
    /// uint16: 2 bytes.
    U16,
    /// uint32: 4 bytes.
    U32,
    /// uint64: 8 bytes.
    U64,
    /// bool: 1 byte, 0 or 1.
    Bool,
    /// string: bytes, of any length for each element.
    String,
    /// A handle to state on a device; it never leaves its device.
    Resource,
    /// A list of values, or an optional value, which only ops make and read; it never leaves its device.
    Variant,
    // Messages count the dtypes in this order: a new one goes last.
    /// complex64, a float32 for the real part and one for the imaginary part: 8 bytes.
    C64,
    /// complex128, a float64 for the real part and one for the imaginary part: 16 bytes.
    C128,
    /// qint8, a quantised number: the integer in an int8, which a range or a scale gives a meaning.
    QI8,
    /// quint8, a quantised number, as a uint8.
    QU8,
    /// qint16, a quantised number, as an int16.
    QI16,
    /// quint16, a quantised number, as a uint16.
    QU16,
    /// qint32, a quantised number, as an int32.
    QI32,
}

/// dtype, NumPy-like name, suffix in GraphDef JSON (`DT_…`), number in protobuf, bytes per element.
const TABLE: [(DType, &str, &str, i32, Option<usize>); 23] = [
    (DType::F16, "float16", "HALF", 19, Some(2)),
    (DType::BF16, "bfloat16", "BFLOAT16", 14, Some(2)),
    (DType::F32, "float32", "FLOAT", 1, Some(4)),
    (DType::F64, "float64", "DOUBLE", 2, Some(8)),
    (DType::C64, "complex64", "COMPLEX64", 8, Some(8)),
    (DType::C128, "complex128", "COMPLEX128", 18, Some(16)),
    (DType::I8, "int8", "INT8", 6, Some(1)),
    (DType::I16, "int16", "INT16", 5, Some(2)),
    (DType::I32, "int32", "INT32", 3, Some(4)),
    (DType::I64, "int64", "INT64", 9, Some(8)),
    (DType::U8, "uint8", "UINT8", 4, Some(1)),
    (DType::U16, "uint16", "UINT16", 17, Some(2)),
    (DType::U32, "uint32", "UINT32", 22, Some(4)),
    (DType::U64, "uint64", "UINT64", 23, Some(8)),
    (DType::QI8, "qint8", "QINT8", 11, Some(1)),
    (DType::QI16, "qint16", "QINT16", 15, Some(2)),
    (DType::QI32, "qint32", "QINT32", 13, Some(4)),
    (DType::QU8, "quint8", "QUINT8", 12, Some(1)),
    (DType::QU16, "quint16", "QUINT16", 16, Some(2)),
    (DType::Bool, "bool", "BOOL", 10, Some(1)),
    (DType::String, "string", "STRING", 7, None),
    (DType::Resource, "resource", "RESOURCE", 20, None),
    (DType::Variant, "variant", "VARIANT", 21, None),
];

impl DType {
    /// Every dtype.
    #[inline]
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    #[inline]
    fn row(self) -> &'static (DType, &'static str, &'static str, i32, Option<usize>) {
        TABLE.iter().find(|row| row.0 == self).expect("the table has every dtype")
    }

    /// The name users read and write: `float32`.
    #[inline]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The name in GraphDef JSON without its `DT_`: `FLOAT`.
    #[inline]
    pub fn proto_name(self) -> &'static str {
        self.row().2
    }

    /// The number in `tensorflow.DataType`.
    #[inline]
    pub fn proto_number(self) -> i32 {
        self.row().3
    }

    /// The dtype of the name that users write; aliases such as `float` and `double` are accepted.
    #[inline]
    pub fn from_name(name: &str) -> Option<DType> {
        let long = match name {
            "half" => "float16",
            "float" => "float32",
            "double" => "float64",
            "int" => "int32",
            other => other,
        };
        TABLE.iter().find(|row| row.1 == long).map(|row| row.0)
    }

    /// The dtype of a number in `tensorflow.DataType`, and whether it is a reference to a variable (whose number is greater by
    /// 100).
    #[inline]
    pub fn from_proto(number: i32) -> Option<(DType, bool)> {
        let (plain, is_ref) = if number > 100 { (number - 100, true) } else { (number, false) };
        TABLE.iter().find(|row| row.3 == plain).map(|row| (row.0, is_ref))
    }

    /// Whether its values stay on the device that made them.
    #[inline]
    pub fn is_handle(self) -> bool {
        matches!(self, DType::Resource | DType::Variant)
    }

    /// Bytes per element; `None` for strings, resources and variants.
    #[inline]
    pub fn size(self) -> Option<usize> {
        match self {
            DType::C128 => Some(16),
            DType::F64 | DType::I64 | DType::U64 | DType::C64 => Some(8),
            DType::F32 | DType::I32 | DType::U32 | DType::QI32 => Some(4),
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 | DType::QI16 | DType::QU16 => Some(2),
            DType::I8 | DType::U8 | DType::Bool | DType::QI8 | DType::QU8 => Some(1),
            DType::String | DType::Resource | DType::Variant => None,
        }
    }

    /// Its name with an article, for messages: `an int32`, `a uint8`.
    #[inline]
    pub fn with_article(self) -> String {
        let article = if self.name().starts_with('i') { "an" } else { "a" };
        format!("{article} {}", self.name())
    }

    /// Whether it is one of the four floats.
    #[inline]
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Whether it is complex64 or complex128.
    #[inline]
    pub fn is_complex(self) -> bool {
        matches!(self, DType::C64 | DType::C128)
    }

    /// Whether values of it have gradients: floats and complex numbers.
    #[inline]
    pub fn is_differentiable(self) -> bool {
        self.is_float() || self.is_complex()
    }

    /// The dtype of the parts of a complex number; every other dtype is its own.
    #[inline]
    pub fn real(self) -> DType {
        match self {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => other,
        }
    }

    /// Whether it is one of the five quantised dtypes, which are not integers: only ops of quantised numbers compute with them.
    #[inline]
    pub fn is_quantized(self) -> bool {
        self.stored_as() != self
    }

    /// The integer dtype that a quantised dtype is stored as; every other dtype is its own.
    #[inline]
    pub fn stored_as(self) -> DType {
        match self {
            DType::QI8 => DType::I8,
            DType::QU8 => DType::U8,
            DType::QI16 => DType::I16,
            DType::QU16 => DType::U16,
            DType::QI32 => DType::I32,
            other => other,
        }
    }

    /// Whether it is a signed or unsigned integer; bool is not.
    #[inline]
    pub fn is_integer(self) -> bool {
        self.is_signed_integer() || self.is_unsigned_integer()
    }

    /// Whether it is int8, int16, int32 or int64.
    #[inline]
    pub fn is_signed_integer(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Whether it is uint8, uint16, uint32 or uint64.
    #[inline]
    pub fn is_unsigned_integer(self) -> bool {
        matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }
}

impl fmt::Display for DType {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for dtype in DType::all() {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert_eq!(DType::from_proto(dtype.proto_number()), Some((dtype, false)));
            assert_eq!(DType::from_proto(dtype.proto_number() + 100), Some((dtype, true)));
            assert_eq!(dtype.size(), dtype.row().4);
            assert_eq!(dtype.stored_as().size(), dtype.size());
            assert_eq!(dtype.is_quantized(), dtype.name().starts_with('q'));
        }
        assert_eq!(DType::from_proto(0), None);
        assert_eq!(DType::from_name("float"), Some(DType::F32));
        assert_eq!(DType::from_proto(118), Some((DType::C128, true)));
        let quantized = [11, 12, 13, 15, 16].map(|number| DType::from_proto(number).unwrap().0.name());
        assert_eq!(quantized, ["qint8", "quint8", "qint32", "qint16", "quint16"]);
    }
}
