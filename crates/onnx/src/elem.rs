//! The element types of ONNX, and the dtype in which meshtf holds the values of each.
//!
//! meshtf has no dtype of fewer than 8 bits, and no float of 8 bits. Integers of 4 and 2 bits are held as int8 and uint8; floats
//! of 8 and 4 bits as float32, which has all their values. Casts round to the narrow type.

use meshtf_tensor::DType;
use meshtf_tensor::failure::{Code, Failure, Result};

/// An element type, by onnx's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elem(pub i32);

impl Elem {
    pub const FLOAT: Elem = Elem(1);
    pub const UINT8: Elem = Elem(2);
    pub const INT8: Elem = Elem(3);
    pub const STRING: Elem = Elem(8);
    pub const BOOL: Elem = Elem(9);
    pub const BFLOAT16: Elem = Elem(16);
    pub const F8_E4M3FN: Elem = Elem(17);
    pub const F8_E4M3FNUZ: Elem = Elem(18);
    pub const F8_E5M2: Elem = Elem(19);
    pub const F8_E5M2FNUZ: Elem = Elem(20);
    pub const UINT4: Elem = Elem(21);
    pub const INT4: Elem = Elem(22);
    pub const F4_E2M1: Elem = Elem(23);
    pub const F8_E8M0: Elem = Elem(24);
    pub const UINT2: Elem = Elem(25);
    pub const INT2: Elem = Elem(26);
}

/// onnx's number, its name in lower case, and the dtype that holds it.
const TABLE: [(i32, &str, DType); 26] = [
    (1, "float", DType::F32),
    (2, "uint8", DType::U8),
    (3, "int8", DType::I8),
    (4, "uint16", DType::U16),
    (5, "int16", DType::I16),
    (6, "int32", DType::I32),
    (7, "int64", DType::I64),
    (8, "string", DType::String),
    (9, "bool", DType::Bool),
    (10, "float16", DType::F16),
    (11, "double", DType::F64),
    (12, "uint32", DType::U32),
    (13, "uint64", DType::U64),
    (14, "complex64", DType::C64),
    (15, "complex128", DType::C128),
    (16, "bfloat16", DType::BF16),
    (17, "float8e4m3fn", DType::F32),
    (18, "float8e4m3fnuz", DType::F32),
    (19, "float8e5m2", DType::F32),
    (20, "float8e5m2fnuz", DType::F32),
    (21, "uint4", DType::U8),
    (22, "int4", DType::I8),
    (23, "float4e2m1", DType::F32),
    (24, "float8e8m0", DType::F32),
    (25, "uint2", DType::U8),
    (26, "int2", DType::I8),
];

impl Elem {
    /// The dtype that holds its values.
    ///
    /// # Errors
    /// Unimplemented for a number that onnx does not define.
    pub fn dtype(self) -> Result<DType> {
        TABLE.iter().find(|row| row.0 == self.0).map(|row| row.2).ok_or_else(|| {
            Failure::new(Code::Unimplemented, format!("unsupported ONNX element type, number {}", self.0))
        })
    }

    /// The element type that a dtype holds if nothing else is stated.
    pub fn of(dtype: DType) -> Elem {
        TABLE.iter().find(|row| row.2 == dtype).map_or(Elem(0), |row| Elem(row.0))
    }

    /// Its name in onnx's schemas.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|row| row.0 == self.0).map_or("undefined", |row| row.1)
    }

    /// Whether another dtype holds its values, since meshtf has none for it.
    pub fn is_held(self) -> bool {
        self.0 >= 17
    }

    /// The bits of an integer of fewer than 8, and whether it is signed.
    pub fn narrow_int(self) -> Option<(u32, bool)> {
        match self {
            Elem::UINT4 => Some((4, false)),
            Elem::INT4 => Some((4, true)),
            Elem::UINT2 => Some((2, false)),
            Elem::INT2 => Some((2, true)),
            _ => None,
        }
    }

    /// The format of a float of 8 or 4 bits.
    pub fn narrow_float(self) -> Option<NarrowFloat> {
        let format = |bits, mantissa, bias, max, special| NarrowFloat { bits, mantissa, bias, max, special };
        Some(match self {
            Elem::F8_E4M3FN => format(8, 3, 7, 448.0, Special::Nan),
            Elem::F8_E4M3FNUZ => format(8, 3, 8, 240.0, Special::NegativeZeroIsNan),
            Elem::F8_E5M2 => format(8, 2, 15, 57344.0, Special::Ieee),
            Elem::F8_E5M2FNUZ => format(8, 2, 16, 57344.0, Special::NegativeZeroIsNan),
            Elem::F4_E2M1 => format(4, 1, 1, 6.0, Special::None),
            _ => return None,
        })
    }
}

/// The values that a narrow float has besides numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Infinities and NaN, as in IEEE 754.
    Ieee,
    /// NaN, in the place of the largest numbers.
    Nan,
    /// NaN, in the place of negative zero.
    NegativeZeroIsNan,
    /// No others.
    None,
}

/// The layout of a float of 8 or 4 bits: a sign, an exponent, a mantissa.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NarrowFloat {
    pub bits: u32,
    pub mantissa: u32,
    pub bias: i32,
    /// The largest finite number.
    pub max: f32,
    pub special: Special,
}

impl NarrowFloat {
    /// The exponent of the smallest normal number.
    pub fn least_exponent(&self) -> i32 {
        1 - self.bias
    }

    /// The number of some bits.
    pub fn decode(&self, bits: u8) -> f32 {
        let width = self.bits - 1;
        let sign = bits >> width & 1;
        let rest = u32::from(bits) & ((1 << width) - 1);
        let all = (1 << width) - 1;
        match self.special {
            Special::NegativeZeroIsNan if sign == 1 && rest == 0 => return f32::NAN,
            Special::Nan if rest == all => return f32::NAN,
            Special::Ieee if rest >> self.mantissa == all >> self.mantissa => {
                let is_nan = rest & ((1 << self.mantissa) - 1) != 0;
                let value = if is_nan { f32::NAN } else { f32::INFINITY };
                return if sign == 1 { -value } else { value };
            }
            _ => {}
        }
        let exponent = (rest >> self.mantissa) as i32;
        let fraction = (rest & ((1 << self.mantissa) - 1)) as f32 / (1 << self.mantissa) as f32;
        let value = match exponent {
            0 => fraction * (self.least_exponent() as f32).exp2(),
            _ => (1.0 + fraction) * ((exponent - self.bias) as f32).exp2(),
        };
        if sign == 1 { -value } else { value }
    }

    /// The bits of a number that the format has; of NaN, the format's.
    pub fn encode(&self, value: f32) -> u8 {
        let codes = 0..=u8::MAX >> (8 - self.bits);
        let is_same = |code: &u8| {
            let own = self.decode(*code);
            (own.is_nan() && value.is_nan()) || (own == value && own.is_sign_negative() == value.is_sign_negative())
        };
        // A zero whose sign the format does not have.
        codes.clone().find(is_same).or_else(|| codes.clone().find(|&code| self.decode(code) == value)).unwrap_or(0)
    }
}

/// The number of the bits of a float8e8m0, a power of two.
pub fn decode_e8m0(bits: u8) -> f32 {
    match bits {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// The bits of a power of two.
pub fn encode_e8m0(value: f32) -> u8 {
    if value.is_nan() { 255 } else { (value.to_bits() >> 23) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats_have_the_values_of_their_formats() {
        let format = |elem: Elem| elem.narrow_float().unwrap();
        assert_eq!(format(Elem::F8_E4M3FN).decode(0x7e), 448.0);
        assert!(format(Elem::F8_E4M3FN).decode(0x7f).is_nan());
        assert_eq!(format(Elem::F8_E5M2).decode(0x7b), 57344.0);
        assert_eq!(format(Elem::F8_E5M2).decode(0xfc), f32::NEG_INFINITY);
        assert_eq!(format(Elem::F8_E4M3FNUZ).decode(0x7f), 240.0);
        assert!(format(Elem::F8_E5M2FNUZ).decode(0x80).is_nan());
        assert_eq!(
            (0..8).map(|bits| format(Elem::F4_E2M1).decode(bits)).sum::<f32>(),
            0.5 + 1.0 + 1.5 + 2.0 + 3.0 + 4.0 + 6.0
        );
        for elem in [17, 18, 19, 20, 23].map(Elem) {
            let format = format(elem);
            for code in 0..=u8::MAX >> (8 - format.bits) {
                let value = format.decode(code);
                assert!(value.is_nan() || format.encode(value) == code, "{} {code}", elem.name());
            }
        }
        assert_eq!((decode_e8m0(127), encode_e8m0(8.0), decode_e8m0(0)), (1.0, 130, 2f32.powi(-127)));
    }
}
