//! Tensors as people write them: `2.5`, `[[1, 2], [3, 4]]`, `"text"`, `true`.
//!
//! If a dtype is given, every number must fit it without losing its fraction or exceeding its range (2.0 is an int32;
//! 1.5 is not, and 300 is not an int8). Otherwise, as in TensorFlow with Python's values, integers are int32, numbers
//! with a point or an exponent float32, and text string. A list has elements of one kind; integers mixed with fractions
//! are float32. A complex number, of which the dtype must be given, is a number or a string such as `"1+2j"`. Bytes that are
//! not text are written `{"base64": "…"}`.

use std::fmt::{self, Display};
use std::str::FromStr;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use half::{bf16, f16};

use super::{Complex, DType, Data, Element, Float, Integer, Numeric, Shape, Tensor, with_integer, with_number};
use crate::failure::{Failure, Result};
use crate::json::{self, Fault, Kind, Path, Value};

/// Most characters that an error shows of a literal.
const MOST_SHOWN: usize = 60;

/// Parses a typed literal: JSON, and also NaN and infinities.
///
/// # Errors
/// InvalidArgument if the text is not a literal, or its lists are ragged or of mixed kinds.
pub fn parse(text: &str) -> Result<Tensor> {
    let value = json::parse_relaxed(text).map_err(|fault| typed(text, &fault))?;
    from_json(&value, None, Path::Root).map_err(|fault| typed(text, &fault))
}

/// Parses a literal of dtype `dtype`. A string need not be quoted, nor a complex number.
///
/// # Errors
/// As [`parse`], and if a value does not fit `dtype`.
pub fn parse_as(text: &str, dtype: DType) -> Result<Tensor> {
    let is_bare = !text.trim_start().starts_with(['"', '[', '{']);
    if dtype == DType::String && is_bare {
        return Ok(Tensor::scalar(text.as_bytes().to_vec()));
    }
    if dtype.is_complex() && is_bare {
        let number = match dtype {
            DType::C64 => complex::<f32>(text).map(Tensor::scalar),
            _ => complex::<f64>(text).map(Tensor::scalar),
        };
        return number.map_err(|why| Failure::invalid(format!("{:?} is not a valid tensor: {why}", start_of(text))));
    }
    let value = json::parse_relaxed(text).map_err(|fault| typed(text, &fault))?;
    from_json(&value, Some(dtype), Path::Root).map_err(|fault| typed(text, &fault))
}

/// The error for a literal typed by a user.
pub fn typed(text: &str, fault: &Fault) -> Failure {
    let (line, column) = json::position(text, fault.at);
    let shown = start_of(text);
    let place = if line == 1 { format!("column {column}") } else { format!("line {line}, column {column}") };
    Failure::invalid(format!("{shown:?} is not a valid tensor: {place}: {}", fault.why))
}

fn start_of(text: &str) -> String {
    let mut shown: String = text.chars().take(MOST_SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// The lengths of nested lists, by the first list at each depth.
pub fn lengths(value: &Value) -> Vec<usize> {
    let mut dims = Vec::new();
    let mut first = value;
    while let Kind::List(items) = &first.kind {
        dims.push(items.len());
        match items.first() {
            Some(item) => first = item,
            None => break,
        }
    }
    dims
}

/// The tensor that a JSON value denotes; `wanted` as for [`parse_as`].
pub fn from_json(value: &Value, wanted: Option<DType>, path: Path) -> Result<Tensor, Fault> {
    let dims = lengths(value);
    let mut leaves = Vec::new();
    collect(value, &dims, path, &mut leaves)?;
    let dtype = match wanted {
        Some(dtype) => dtype,
        None => natural(&leaves).map_err(|(leaf, why)| Fault::content(leaf, path, why))?,
    };
    let data = elements(&leaves, dtype).map_err(|(leaf, why)| Fault::content(leaf.unwrap_or(value), path, why))?;
    Tensor::new(Shape::from(dims), data).map_err(|failure| Fault::content(value, path, failure.message))
}

/// The dtype of a value if none is given.
pub fn natural_dtype(value: &Value, path: Path) -> Result<DType, Fault> {
    from_json(value, None, path).map(|tensor| tensor.dtype())
}

/// The scalars of nested lists, in order; all lists at one depth have the same length.
fn collect<'v, 'a>(
    value: &'v Value<'a>,
    dims: &[usize],
    path: Path,
    leaves: &mut Vec<&'v Value<'a>>,
) -> Result<(), Fault> {
    match (&value.kind, dims) {
        (Kind::List(items), [length, inner @ ..]) if items.len() == *length => {
            items.iter().enumerate().try_for_each(|(i, item)| collect(item, inner, path.index(i), leaves))
        }
        (Kind::List(items), [length, ..]) => {
            let why = format!(
                "a list of {} beside one of {length}: lists at one depth must have the same length",
                items.len()
            );
            Err(Fault::content(value, path, why))
        }
        (Kind::List(_), []) => {
            Err(Fault::content(value, path, "a list beside a scalar: all elements must be nested equally deep"))
        }
        (_, [_, ..]) => Err(Fault::content(
            value,
            path,
            format!("{} beside a list: all elements must be nested equally deep", value.describe()),
        )),
        (_, []) => {
            leaves.push(value);
            Ok(())
        }
    }
}

/// The dtype of scalars if none is given.
fn natural<'v, 'a>(leaves: &[&'v Value<'a>]) -> Result<DType, (&'v Value<'a>, String)> {
    let mut dtype = None;
    for &leaf in leaves {
        let own = match &leaf.kind {
            Kind::Bool(_) => DType::Bool,
            Kind::Number(text) if json::is_whole(text) => DType::I32,
            Kind::Number(_) => DType::F32,
            Kind::String(_) | Kind::Object(_) => DType::String,
            Kind::Null | Kind::List(_) => return Err((leaf, "null is not a tensor value".into())),
        };
        dtype = match (dtype, own) {
            (None, own) => Some(own),
            (Some(a), b) if a == b => Some(a),
            (Some(DType::I32 | DType::F32), DType::I32 | DType::F32) => Some(DType::F32),
            (Some(a), b) => {
                return Err((
                    leaf,
                    format!("{} in a list of {a}s: all values of a tensor must have one dtype", b.with_article()),
                ));
            }
        };
    }
    Ok(dtype.unwrap_or(DType::F32))
}

type Misfit<'v, 'a> = (Option<&'v Value<'a>>, String);

fn elements<'v, 'a>(leaves: &[&'v Value<'a>], dtype: DType) -> Result<Data, Misfit<'v, 'a>> {
    fn all<'v, 'a, T: Element>(
        leaves: &[&'v Value<'a>],
        read: impl Fn(&Value) -> Result<T, String>,
    ) -> Result<Data, Misfit<'v, 'a>> {
        leaves
            .iter()
            .map(|&leaf| read(leaf).map_err(|why| (Some(leaf), why)))
            .collect::<Result<Vec<T>, _>>()
            .map(T::into_data)
    }
    let whole = with_integer!(dtype.stored_as(), T => all(leaves, |leaf| integer::<T>(leaf, dtype)));
    if let Some(data) = whole {
        return data.map(|data| data.retyped(dtype).expect("the integers are those that the dtype is stored as"));
    }
    match dtype {
        DType::F16 => all(leaves, |leaf| float(leaf, |text| text.parse().ok().map(f16::from_f64))),
        DType::BF16 => all(leaves, |leaf| float(leaf, |text| text.parse().ok().map(bf16::from_f64))),
        DType::F32 => all(leaves, |leaf| float(leaf, |text| text.parse::<f32>().ok())),
        DType::F64 => all(leaves, |leaf| float(leaf, |text| text.parse::<f64>().ok())),
        DType::C64 => all(leaves, complex_of::<f32>),
        DType::C128 => all(leaves, complex_of::<f64>),
        DType::Bool => all(leaves, |leaf| match leaf.kind {
            Kind::Bool(value) => Ok(value),
            _ => Err(format!("expected true or false, got {}", shown(leaf))),
        }),
        DType::String => all(leaves, bytes),
        _ => Err((None, format!("{} cannot be written as a literal", dtype.with_article()))),
    }
}

/// An integer, or a quantised number of `dtype`, which is stored as a `T`.
fn integer<T: Integer + FromStr + TryFrom<i128>>(leaf: &Value, dtype: DType) -> Result<T, String> {
    let Kind::Number(text) = leaf.kind else {
        return Err(format!("{} is not {}", shown(leaf), dtype.with_article()));
    };
    let range = || format!("{text} is out of the range of {dtype}, {} to {}", Limit(T::LOWEST), Limit(T::HIGHEST));
    if json::is_whole(text) {
        let text = if text.bytes().all(|b| matches!(b, b'-' | b'0')) { "0" } else { text };
        return text.parse().map_err(|_| range());
    }
    // An integer written as a fraction, such as 2.0 or 1e3, if float64 holds every integer of its size.
    match text.parse::<f64>() {
        Ok(value) if value.fract() != 0.0 => {
            Err(format!("{text} is not {}, which holds integers only", dtype.with_article()))
        }
        Ok(value) if value.abs() <= 9_007_199_254_740_992.0 => T::try_from(value as i128).map_err(|_| range()),
        _ => Err(range()),
    }
}

/// Displays an extreme of an integer type in full, including the unsigned 64-bit one.
struct Limit<T>(T);

impl<T: Integer> Display for Limit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match T::DTYPE {
            DType::U64 if self.0 == T::HIGHEST => write!(f, "{}", u64::MAX),
            _ => write!(f, "{}", self.0.to_i64()),
        }
    }
}

fn float<T: Float>(leaf: &Value, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
    let text: &str = match &leaf.kind {
        Kind::Number(text) => text,
        Kind::String(text) if matches!(&**text, "NaN" | "Infinity" | "-Infinity") => text,
        _ => return Err(format!("{} is not {}", shown(leaf), T::DTYPE.with_article())),
    };
    let value = parse(text).ok_or_else(|| format!("{text} is not {}", T::DTYPE.with_article()))?;
    let stated_infinite = text.ends_with(|c: char| c.is_ascii_alphabetic());
    if value.to_f64().is_infinite() && !stated_infinite {
        return Err(format!("{text} is out of the range of {}", T::DTYPE));
    }
    Ok(value)
}

fn complex_of<T: Float + FromStr>(leaf: &Value) -> Result<Complex<T>, String>
where
    Complex<T>: Element,
{
    match &leaf.kind {
        Kind::Number(text) => complex(text),
        Kind::String(text) => complex(text),
        _ => Err(format!("{} is not {}", shown(leaf), Complex::<T>::DTYPE.with_article())),
    }
}

/// A complex number as Python writes it: `1+2j`, `(1+2j)`, `-1.5e3j`, `2`, `nan+infj`.
fn complex<T: Float + FromStr>(text: &str) -> Result<Complex<T>, String>
where
    Complex<T>: Element,
{
    let bare = text.trim();
    let bare = bare.strip_prefix('(').and_then(|bare| bare.strip_suffix(')')).unwrap_or(bare);
    let dtype = Complex::<T>::DTYPE;
    let part = |part: &str| -> Result<T, String> {
        let value: T = part.parse().map_err(|_| {
            format!("{:?} is not {}, which is written as in 1+2j", start_of(text), dtype.with_article())
        })?;
        if value.to_f64().is_infinite() && !part.ends_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(format!("{part} is out of the range of {dtype}"));
        }
        Ok(value)
    };
    let Some(number) = bare.strip_suffix(['j', 'J']) else { return Ok(Complex { re: part(bare)?, im: T::ZERO }) };
    // The sign between the parts is that of no exponent.
    let is_between = |&(at, _): &(usize, &str)| at > 0 && !number[..at].ends_with(['e', 'E']);
    let at = number.rmatch_indices(['+', '-']).find(is_between).map_or(0, |(at, _)| at);
    let (real, imaginary) = number.split_at(at);
    let imaginary = match imaginary {
        "" | "+" => T::ONE,
        "-" => -T::ONE,
        stated => part(stated)?,
    };
    Ok(Complex { re: if real.is_empty() { T::ZERO } else { part(real)? }, im: imaginary })
}

fn bytes(leaf: &Value) -> Result<Vec<u8>, String> {
    match &leaf.kind {
        Kind::String(text) => Ok(text.as_bytes().to_vec()),
        Kind::Object(members) => match members.as_slice() {
            [member] if member.key == "base64" => match &member.value.kind {
                Kind::String(text) => {
                    BASE64_STANDARD.decode(text.as_bytes()).map_err(|e| format!("invalid base64: {e}"))
                }
                _ => Err("base64 must be a string".into()),
            },
            _ => Err("bytes that are not text must be written {\"base64\": \"…\"}".into()),
        },
        _ => Err(format!("{} is not a string; text must be in double quotes", shown(leaf))),
    }
}

/// A scalar for a message: numbers and short text as written, other values by their kind.
fn shown(leaf: &Value) -> String {
    match &leaf.kind {
        Kind::Number(text) => (*text).to_owned(),
        Kind::String(text) if text.len() <= 40 => format!("{text:?}"),
        Kind::Bool(value) => value.to_string(),
        _ => leaf.describe().to_owned(),
    }
}

/// Converts a fed value to the requested dtype if nothing is lost but the digits that a narrower float rounds off. NumPy makes
/// int64 and float64 by default, and such arrays may feed int32 and float32 placeholders. Integers may feed quantised ones, which
/// NumPy lacks.
///
/// # Errors
/// InvalidArgument if a value would change (1.5 for an int32, 3000000000 for an int32, 1e300 for a float32, 16777217 for a
/// float32), for a complex number where another dtype is wanted, and for a conversion between numbers, bools and strings.
pub fn convert_feed(tensor: Tensor, wanted: DType) -> Result<Tensor> {
    let have = tensor.dtype();
    if have == wanted {
        return Ok(tensor);
    }
    if wanted.is_complex() {
        return to_complex(tensor, wanted);
    }
    if wanted.is_quantized() && have.is_integer() {
        return convert_feed(tensor, wanted.stored_as())?.retyped(wanted);
    }
    let is_number = |dtype: DType| dtype.is_float() || dtype.is_integer();
    if !is_number(have) || !is_number(wanted) {
        return Err(Failure::invalid(format!("expected {wanted}, got {have}")));
    }
    let shape = tensor.shape().clone();
    let data = with_number!(have, S => with_number!(wanted, T => cast::<S, T>(tensor.slice::<S>()?)));
    Tensor::new(shape, data.flatten().expect("both are dtypes of numbers")?)
}

/// Real numbers get an imaginary part of 0.
fn to_complex(tensor: Tensor, wanted: DType) -> Result<Tensor> {
    let shape = tensor.shape().clone();
    let parts: Vec<f64> = match tensor.data() {
        Data::C64(v) => v.iter().flat_map(|x| [f64::from(x.re), f64::from(x.im)]).collect(),
        Data::C128(v) => v.iter().flat_map(|x| [x.re, x.im]).collect(),
        _ if matches!(tensor.dtype(), DType::Bool | DType::String) => {
            return Err(Failure::invalid(format!("expected {wanted}, got {}", tensor.dtype())));
        }
        _ => convert_feed(tensor, wanted.real()).and_then(|real| match real.data() {
            Data::F32(v) => Ok(v.iter().flat_map(|&x| [f64::from(x), 0.0]).collect()),
            _ => real.slice::<f64>().map(|v| v.iter().flat_map(|&x| [x, 0.0]).collect()),
        })?,
    };
    let (pairs, _) = parts.as_chunks::<2>();
    let data = match wanted {
        DType::C64 => Data::C64(
            pairs
                .iter()
                .map(|part| Ok(Complex { re: narrow(part[0])?, im: narrow(part[1])? }))
                .collect::<Result<_>>()?,
        ),
        _ => Data::C128(pairs.iter().map(|&[re, im]| Complex { re, im }).collect()),
    };
    Tensor::new(shape, data)
}

/// A part of a complex64.
fn narrow(part: f64) -> Result<f32> {
    let lost = || Failure::invalid(format!("{} (float64) does not fit complex64 unchanged", Tensor::scalar(part)));
    unchanged(part).ok_or_else(lost)
}

fn cast<S: Numeric, T: Numeric>(values: &[S]) -> Result<Data> {
    let lost = |value: S| {
        let value = Tensor::scalar(value);
        Failure::invalid(format!("{value} ({}) does not fit {} unchanged", S::DTYPE, T::DTYPE))
    };
    values
        .iter()
        .map(|&value| unchanged(value).ok_or_else(|| lost(value)))
        .collect::<Result<Vec<T>>>()
        .map(T::into_data)
}

/// The same number as a `T`; between floats the nearest one, unless that is infinite.
fn unchanged<S: Numeric, T: Numeric>(value: S) -> Option<T> {
    if T::DTYPE.is_integer() {
        let number = whole(value)?;
        let near = T::from_i64(number as i64);
        return (whole(near) == Some(number)).then_some(near);
    }
    let near = T::from_f64(value.to_f64());
    let is_kept = if S::DTYPE.is_integer() {
        whole(near) == whole(value)
    } else {
        near.to_f64().is_finite() == value.to_f64().is_finite()
    };
    is_kept.then_some(near)
}

/// The integer that a number equals; `None` if it is not one, or exceeds every integer dtype.
fn whole<N: Numeric>(value: N) -> Option<i128> {
    match N::DTYPE {
        DType::U64 => Some(i128::from(value.to_i64() as u64)),
        dtype if dtype.is_integer() => Some(i128::from(value.to_i64())),
        _ => {
            let value = value.to_f64();
            (value.fract() == 0.0 && value.abs() < 2f64.powi(65)).then_some(value as i128)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn literals_have_the_dtype_tensorflow_gives_them() {
        let check = |text: &str, want: Tensor| assert_eq!(parse(text).unwrap(), want, "{text}");
        check("2", Tensor::scalar(2i32));
        check("-0", Tensor::scalar(0i32));
        check("2.5", Tensor::scalar(2.5f32));
        check("1e3", Tensor::scalar(1000f32));
        check("true", Tensor::scalar(true));
        check("\"hello\"", Tensor::scalar(b"hello".to_vec()));
        check("[[1, 2], [3, 4]]", Tensor::from_vec([2, 2], vec![1i32, 2, 3, 4]));
        check("[1, 0.5]", Tensor::vector(vec![1f32, 0.5]));
        check("[]", Tensor::vector(Vec::<f32>::new()));
        check("[[], []]", Tensor::from_vec([2, 0], Vec::<f32>::new()));
        check("[\"a\", {\"base64\": \"/w==\"}]", Tensor::vector(vec![b"a".to_vec(), vec![0xff]]));
        check("-Infinity", Tensor::scalar(f32::NEG_INFINITY));
    }

    #[test]
    fn a_requested_dtype_is_kept() {
        let check = |text: &str, want: Tensor| assert_eq!(parse_as(text, want.dtype()).unwrap(), want, "{text}");
        check("2", Tensor::scalar(2f64));
        check("2.0", Tensor::scalar(2i32));
        check("-0.0", Tensor::scalar(0i8));
        check("-3e2", Tensor::scalar(-300i16));
        check("[-3, 127]", Tensor::vector(vec![-3i8, 127]).retyped(DType::QI8).unwrap());
        check("18446744073709551615", Tensor::scalar(u64::MAX));
        check("[1, 2]", Tensor::vector(vec![f16::from_f32(1.0), f16::from_f32(2.0)]));
        check("inf", Tensor::scalar(f64::INFINITY));
        check("\"Infinity\"", Tensor::scalar(f32::INFINITY));
        check("hello there", Tensor::scalar(b"hello there".to_vec()));
        check("12", Tensor::scalar(b"12".to_vec()));
        check("\"\"", Tensor::scalar(Vec::<u8>::new()));
        check("0.1", Tensor::scalar(0.1f32));
        let pair = |re: f64, im: f64| Tensor::scalar(Complex::new(re, im));
        check("1.5-2j", pair(1.5, -2.0));
        check("(1e-3+2E+2j)", pair(1e-3, 200.0));
        check("-2e1j", pair(0.0, -20.0));
        check("1-j", pair(1.0, -1.0));
        check("-7", pair(-7.0, 0.0));
        check("-inf+infj", pair(f64::NEG_INFINITY, f64::INFINITY));
        check("[1, \"2j\"]", Tensor::vector(vec![Complex::new(1f32, 0.0), Complex::new(0.0, 2.0)]));
        assert!(parse_as("NaN", DType::F32).unwrap().item::<f32>().unwrap().is_nan());
    }

    #[test]
    fn errors_say_why_a_literal_does_not_fit() {
        let check = |text: &str, dtype: DType, part: &str| {
            let failure = parse_as(text, dtype).expect_err(text);
            assert!(failure.message.contains(part), "{text}: {failure}");
        };
        check("1.5", DType::I32, "1.5 is not an int32, which holds integers only");
        check("3000000000", DType::I32, "out of the range of int32, -2147483648 to 2147483647");
        check("-1", DType::U64, "0 to 18446744073709551615");
        check("256.0", DType::U8, "0 to 255");
        check("256", DType::QU8, "256 is out of the range of quint8, 0 to 255");
        check("0.5", DType::QI32, "0.5 is not a qint32, which holds integers only");
        check("1e30", DType::I64, "out of the range");
        check("1e39", DType::F32, "out of the range of float32");
        check("70000", DType::F16, "out of the range of float16");
        check("[[1, 2], [3]]", DType::I32, "the same length");
        check("[1, [2]]", DType::I32, "a list beside a scalar");
        check("[[1], 2]", DType::I32, "a number beside a list");
        check("1", DType::Bool, "true or false");
        check("true", DType::I32, "true is not an int32");
        check("[1]", DType::String, "double quotes");
        check("1+2", DType::C64, "\"1+2\" is not a complex64, which is written as in 1+2j");
        check("[\"1e39j\"]", DType::C64, "1e39 is out of the range of complex64");
        check("[true]", DType::C128, "true is not a complex128");
        check("", DType::C128, "is not a complex128");
        check("null", DType::F32, "is not a float32");
        check("[1, 2", DType::F32, "column 6");
        check("2", DType::Resource, "cannot be written as a literal");
        assert!(parse("[1, \"a\"]").unwrap_err().message.contains("a string in a list of int32s"));
        assert!(parse("3000000000").unwrap_err().message.contains("out of the range of int32"));
    }

    #[test]
    fn feeds_are_cast_only_if_nothing_is_lost() {
        let check = |have: Tensor, want: Tensor| assert_eq!(convert_feed(have, want.dtype()).unwrap(), want);
        check(Tensor::vector(vec![1i64, -2]), Tensor::vector(vec![1i32, -2]));
        check(Tensor::scalar(0.1f64), Tensor::scalar(0.1f32));
        check(Tensor::scalar(f64::INFINITY), Tensor::scalar(f32::INFINITY));
        check(Tensor::scalar(7i64), Tensor::scalar(7f32));
        check(Tensor::scalar(2.0f64), Tensor::scalar(2u8));
        check(Tensor::scalar(u64::MAX), Tensor::scalar(u64::MAX));
        check(Tensor::scalar(Complex::new(0.5f64, -2.0)), Tensor::scalar(Complex::new(0.5f32, -2.0)));
        check(Tensor::scalar(3i64), Tensor::scalar(Complex::new(3f32, 0.0)));
        check(Tensor::scalar(0.1f32), Tensor::scalar(Complex::new(f64::from(0.1f32), 0.0)));
        let refuse = |have: Tensor, wanted: DType, part: &str| {
            let failure = convert_feed(have, wanted).unwrap_err();
            assert!(failure.message.contains(part), "{failure}");
        };
        refuse(Tensor::scalar(1.5f64), DType::I32, "1.5 (float64) does not fit int32 unchanged");
        refuse(Tensor::scalar(f64::NAN), DType::I32, "nan (float64) does not fit int32 unchanged");
        refuse(Tensor::scalar(3_000_000_000i64), DType::I32, "3000000000");
        refuse(Tensor::scalar(-1e300f64), DType::F32, "-1e+300 (float64) does not fit float32");
        refuse(Tensor::scalar(16_777_217i64), DType::F32, "16777217");
        refuse(Tensor::scalar(u64::MAX), DType::I64, "18446744073709551615");
        refuse(Tensor::scalar(Complex::new(1f32, 0.0)), DType::F32, "expected float32, got complex64");
        refuse(Tensor::scalar(Complex::new(0.0, 1e300)), DType::C64, "1e+300 (float64) does not fit complex64");
        refuse(Tensor::scalar(true), DType::C64, "expected complex64, got bool");
        refuse(Tensor::scalar(true), DType::I32, "expected int32, got bool");
        refuse(Tensor::scalar(-1i64), DType::QU8, "-1 (int64) does not fit uint8 unchanged");
        refuse(Tensor::scalar(1f32), DType::QI8, "expected qint8, got float32");
        refuse(Tensor::scalar(1i8).retyped(DType::QI8).unwrap(), DType::I8, "expected int8, got qint8");
        refuse(Tensor::scalar(1i32), DType::String, "expected string, got int32");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r#"[\[\]{}"0-9.eE+\-, a-z]{0,32}"#) {
            let _ = parse(&text);
            for dtype in DType::all() {
                let _ = parse_as(&text, dtype);
            }
        }
    }
}
