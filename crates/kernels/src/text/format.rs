//! AsString: numbers and bools as text, in the formats of C's printf. Rust's formats differ in width, precision and
//! exponents.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, with_complex, with_float, with_integer};

use super::super::call::{input_dtype, kernel as call, no_kernel};
use super::super::math::map_to;
use super::super::{HostKernel, KernelNode};

/// The largest width and precision of a node.
const MOST: i64 = 4096;

/// A float of either precision as f64.
#[inline]
fn wide(number: impl Into<f64>) -> f64 {
    number.into()
}

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    let dtype = input_dtype(node, 0)?;
    let format = Format::of(node, dtype)?;
    let found = match dtype {
        DType::Bool => {
            Some(call(move |[x]| map_to(&x, |&x: &bool| if x { b"true".to_vec() } else { b"false".to_vec() })))
        }
        DType::String => Some(call(move |[x]| map_to(&x, |x: &Vec<u8>| format.pad(x.clone())))),
        _ if dtype.is_complex() => with_complex!(dtype, T => call(move |[x]| map_to(&x, |x: &T| {
            let [re, im] = [x.re, x.im].map(|part| format.float(wide(part)));
            [b"(", &re[..], b",", &im, b")"].concat()
        }))),
        _ if dtype.is_unsigned_integer() => {
            with_integer!(dtype, T => call(move |[x]| map_to(&x, |x: &T| format.unsigned(x.to_string()))))
        }
        _ => with_integer!(dtype, T => call(move |[x]| map_to(&x, |x: &T| {
            let digits = x.to_string();
            match digits.strip_prefix('-') {
                Some(digits) => format.signed(true, digits.to_owned()),
                None => format.signed(false, digits),
            }
        })))
        .or_else(|| with_float!(dtype, T => call(move |[x]| map_to(&x, |&x: &T| format.float(x.to_f64()))))),
    };
    found.map_or_else(|| no_kernel(node), Ok)
}

#[derive(Clone, Copy)]
enum Notation {
    Fixed,
    Scientific,
    Shortest,
}

#[derive(Clone, Copy)]
struct Format {
    notation: Notation,
    /// The digits after the point (in the shortest form: the significant digits).
    precision: usize,
    width: usize,
    fill: Option<u8>,
}

impl Format {
    fn of(node: &KernelNode, dtype: DType) -> Result<Format> {
        let (scientific, shortest) = (node.attrs.bool("scientific")?, node.attrs.bool("shortest")?);
        let (precision, width) = (node.attrs.int("precision")?, node.attrs.int("width")?);
        let fill = match node.attrs.bytes("fill")? {
            [] => None,
            [fill @ (b' ' | b'+' | b'-' | b'0' | b'#')] => Some(*fill),
            [other] => {
                return Err(Failure::invalid(format!("Fill argument not supported: {:?}", char::from(*other))));
            }
            _ => return Err(Failure::invalid("Fill string must be one or fewer characters")),
        };
        if !dtype.is_differentiable() && dtype != DType::String {
            for (stated, what) in [
                (scientific, "scientific and shortest"),
                (shortest, "scientific and shortest"),
                (precision >= 0, "precision"),
            ] {
                if stated {
                    return Err(Failure::invalid(format!("{what} not supported for datatype {dtype}")));
                }
            }
        }
        if scientific && shortest {
            return Err(Failure::invalid("Cannot select both scientific and shortest notation"));
        }
        if precision > MOST || width > MOST {
            return Err(Failure::invalid(format!(
                "precision and width must be at most {MOST}, got {precision} and {width}"
            )));
        }
        Ok(Format {
            notation: match (scientific, shortest) {
                (true, _) => Notation::Scientific,
                (_, true) => Notation::Shortest,
                _ => Notation::Fixed,
            },
            precision: usize::try_from(precision).unwrap_or(6),
            width: usize::try_from(width).unwrap_or(0),
            fill,
        })
    }

    fn float(self, x: f64) -> Vec<u8> {
        let negative = x.is_sign_negative() && !x.is_nan();
        if !x.is_finite() {
            let format = Format { fill: self.fill.filter(|&fill| fill != b'0'), ..self };
            return format.signed(negative, if x.is_nan() { "nan" } else { "inf" }.to_owned());
        }
        let digits = match self.notation {
            Notation::Fixed => format!("{:.*}", self.precision, x.abs()),
            Notation::Scientific => scientific(x.abs(), self.precision),
            Notation::Shortest => shortest(x.abs(), self.precision),
        };
        self.signed(negative, digits)
    }

    /// The digits of an unsigned number.
    fn unsigned(self, digits: String) -> Vec<u8> {
        Format { fill: self.fill.filter(|&fill| fill != b'+' && fill != b' '), ..self }.signed(false, digits)
    }

    /// The digits with their sign, padded to the width.
    fn signed(self, negative: bool, digits: String) -> Vec<u8> {
        let sign = match self.fill {
            _ if negative => "-",
            Some(b'+') => "+",
            Some(b' ') => " ",
            _ => "",
        };
        let zeros = if self.fill == Some(b'0') { self.width.saturating_sub(sign.len() + digits.len()) } else { 0 };
        self.pad([sign, &"0".repeat(zeros), &digits].concat().into_bytes())
    }

    fn pad(self, mut text: Vec<u8>) -> Vec<u8> {
        let missing = self.width.saturating_sub(text.len());
        if self.fill == Some(b'-') {
            text.resize(text.len() + missing, b' ');
        } else {
            text.splice(..0, std::iter::repeat_n(b' ', missing));
        }
        text
    }
}

/// `%e`: an exponent of at least two digits.
fn scientific(x: f64, precision: usize) -> String {
    let text = format!("{x:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// `%g`: fixed or scientific, depending on the exponent, without trailing zeros.
pub(super) fn shortest(x: f64, precision: usize) -> String {
    let precision = precision.max(1);
    let rounded = scientific(x, precision - 1);
    let (digits, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let without_zeros = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    match exponent.parse::<i64>() {
        Ok(exponent) if (-4..precision as i64).contains(&exponent) => {
            without_zeros(&format!("{:.*}", (precision as i64 - 1 - exponent) as usize, x))
        }
        _ => format!("{}e{exponent}", without_zeros(digits)),
    }
}
