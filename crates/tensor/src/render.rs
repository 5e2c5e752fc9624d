//! Formats tensors for people, as NumPy prints them, and for programs, as JSON.

use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use half::{bf16, f16};
use serde_json::{Value, json};

use super::{Complex, Data, Float, Stored, Tensor, with_float, with_stored};

/// Widest line of a printed tensor, in characters.
const LINE: usize = 75;
/// Tensors with more elements than this are printed with `...`.
const ELIDE_OVER: usize = 1000;
/// The number of items that an elided tensor shows at the beginning and end of each dimension.
const EDGE: usize = 3;
/// Most digits after the point in a list of floats.
const PRECISION: usize = 8;

impl fmt::Display for Tensor {
    /// `238`, `[1.  2.5]`, `[[1 2]\n [3 4]]`; large ones with `...` in the middle of each long dimension.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rank() == 0 {
            return f.write_str(&scalar(self));
        }
        if self.is_empty() {
            let shape = if self.rank() == 1 { String::new() } else { format!(" of shape {}", self.shape()) };
            return write!(f, "[]{shape}");
        }
        let elide = self.len() > ELIDE_OVER;
        let mut shown = Vec::new();
        places(self.dims(), 0, elide, &mut shown);
        let cells = columns(self, &shown);
        let mut text = String::new();
        nest(self.dims(), elide, 1, &mut cells.into_iter(), &mut text);
        f.write_str(&text)
    }
}

/// The indices of the printed elements, in order.
fn places(dims: &[usize], offset: usize, elide: bool, shown: &mut Vec<usize>) {
    let [length, inner @ ..] = dims else { return shown.push(offset) };
    let stride: usize = inner.iter().product();
    for i in kept(*length, elide).into_iter().flatten() {
        places(inner, offset + i * stride, elide, shown);
    }
}

/// The indices printed along a dimension, with `None` for the elided ones.
fn kept(length: usize, elide: bool) -> Vec<Option<usize>> {
    if elide && length > 2 * EDGE {
        (0..EDGE).map(Some).chain([None]).chain((length - EDGE..length).map(Some)).collect()
    } else {
        (0..length).map(Some).collect()
    }
}

/// Puts brackets around the cells; innermost lists are wrapped at [`LINE`].
fn nest(dims: &[usize], elide: bool, indent: usize, cells: &mut impl Iterator<Item = String>, text: &mut String) {
    let [length, inner @ ..] = dims else { return };
    text.push('[');
    let mut column = indent;
    for (i, place) in kept(*length, elide).into_iter().enumerate() {
        if inner.is_empty() {
            let cell = place.map_or_else(|| "...".to_owned(), |_| cells.next().unwrap_or_default());
            let width = cell.chars().count();
            // Leaves space for the closing brackets, as many as there are opening brackets before the list.
            if i > 0 && column + 1 + width > LINE - indent.min(LINE) {
                text.push('\n');
                text.push_str(&" ".repeat(indent));
                column = indent;
            } else if i > 0 {
                text.push(' ');
                column += 1;
            }
            text.push_str(&cell);
            column += width;
            continue;
        }
        if i > 0 {
            text.push_str(&"\n".repeat(inner.len()));
            text.push_str(&" ".repeat(indent));
        }
        match place {
            Some(_) => nest(inner, elide, indent + 1, cells, text),
            None => text.push_str("..."),
        }
    }
    text.push(']');
}

/// The elements at these indices, padded to equal width unless they are strings.
fn columns(tensor: &Tensor, places: &[usize]) -> Vec<String> {
    let cells = match tensor.data() {
        Data::String(v) => return places.iter().map(|&i| quoted(&v[i])).collect(),
        Data::Bool(v) => places.iter().map(|&i| if v[i] { "True" } else { "False" }.to_owned()).collect(),
        Data::C64(v) => pairs(&places.iter().map(|&i| v[i]).collect::<Vec<_>>()),
        Data::C128(v) => pairs(&places.iter().map(|&i| v[i]).collect::<Vec<_>>()),
        data => with_stored!(tensor.dtype(), T => {
            let v = T::stored_in(data).unwrap_or(&[]);
            places.iter().map(|&i| v[i].to_string()).collect::<Vec<_>>()
        })
        .or_else(|| {
            with_float!(tensor.dtype(), T => {
                let v = tensor.slice::<T>().unwrap_or(&[]);
                floats(&places.iter().map(|&i| v[i]).collect::<Vec<T>>())
            })
        })
        .unwrap_or_default(),
    };
    aligned(cells)
}

fn aligned(cells: Vec<String>) -> Vec<String> {
    let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    cells.into_iter().map(|cell| format!("{cell:>width$}")).collect()
}

/// Complex numbers of one list: the real and the imaginary parts each aligned as [`floats`] are.
fn pairs<T: Shortest>(values: &[Complex<T>]) -> Vec<String> {
    let real = aligned(floats(&values.iter().map(|value| value.re).collect::<Vec<_>>()));
    let signed = |text: String| if text.starts_with('-') { text } else { format!("+{text}") };
    let imaginary = floats(&values.iter().map(|value| value.im).collect::<Vec<_>>());
    let imaginary = aligned(imaginary.into_iter().map(signed).collect());
    let with_unit = |(real, imaginary): (String, String)| {
        let number = imaginary.trim_end();
        format!("{real}{number}j{}", &imaginary[number.len()..])
    };
    real.into_iter().zip(imaginary).map(with_unit).collect()
}

/// A float type with a shortest decimal form.
trait Shortest: Float {
    /// The fewest digits that round-trip, without an exponent.
    fn shortest(self) -> String;
    /// The same with an exponent: `1.5e-7`.
    fn shortest_exp(self) -> String;
}

macro_rules! shortest {
    ($($type:ty: $as:expr),*) => {
        $(impl Shortest for $type {
            fn shortest(self) -> String {
                format!("{}", $as(self))
            }
            fn shortest_exp(self) -> String {
                format!("{:e}", $as(self))
            }
        })*
    };
}

shortest!(f32: |x| x, f64: |x| x, f16: half_digits::<f16>, bf16: half_digits::<bf16>);

/// The number with the fewest decimal digits that rounds to this half float.
fn half_digits<T: Float>(value: T) -> f64 {
    let exact = value.to_f64();
    (0..17)
        .filter_map(|digits| format!("{exact:.digits$e}").parse::<f64>().ok())
        .find(|&near| T::from_f64(near).to_f64() == exact)
        .unwrap_or(exact)
}

/// Floats of one list: each with as many digits as it needs up to [`PRECISION`], aligned at the point; with exponents if their
/// magnitudes differ by more than NumPy aligns.
fn floats<T: Shortest>(values: &[T]) -> Vec<String> {
    let sizes = || values.iter().map(|v| v.to_f64().abs()).filter(|v| v.is_finite() && *v > 0.0);
    let (least, most) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    let exponents = most >= 1e8 || (most > 0.0 && (least < 1e-4 || most / least > 1000.0));
    let parts: Vec<Digits> = values.iter().map(|&v| if exponents { scientific(v) } else { positional(v) }).collect();
    let width = parts.iter().map(|parts| parts.fraction.len()).max().unwrap_or(0);
    let cell = |Digits { whole, fraction, exponent }: Digits| match exponent {
        _ if !whole.ends_with(|c: char| c.is_ascii_digit()) => whole,
        Some(exponent) => format!("{whole}.{fraction:0<width$}{exponent}"),
        None => format!("{whole}.{fraction:<width$}"),
    };
    parts.into_iter().map(cell).collect()
}

/// The text of a float in parts; NaN and infinities are entirely in `whole`.
struct Digits {
    whole: String,
    fraction: String,
    exponent: Option<String>,
}

impl Digits {
    fn new(mantissa: &str, exponent: Option<String>) -> Self {
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        Digits { whole: whole.to_owned(), fraction: fraction.trim_end_matches('0').to_owned(), exponent }
    }
}

fn positional<T: Shortest>(value: T) -> Digits {
    if let Some(word) = word(value.to_f64()) {
        return Digits::new(word, None);
    }
    let shortest = value.shortest();
    let fraction = shortest.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let text = if fraction > PRECISION { format!("{:.PRECISION$}", value.to_f64()) } else { shortest };
    Digits::new(&text, None)
}

fn scientific<T: Shortest>(value: T) -> Digits {
    if let Some(word) = word(value.to_f64()) {
        return Digits::new(word, None);
    }
    let shortest = value.shortest_exp();
    let fraction =
        shortest.split_once('e').map_or("", |(mantissa, _)| mantissa).split_once('.').map_or(0, |(_, f)| f.len());
    let text = if fraction > PRECISION { format!("{:.PRECISION$e}", value.to_f64()) } else { shortest };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    Digits::new(mantissa, Some(padded_exponent(exponent)))
}

/// An exponent with its sign and at least two digits.
fn padded_exponent(exponent: &str) -> String {
    match exponent.strip_prefix('-') {
        Some(digits) => format!("e-{digits:0>2}"),
        None => format!("e+{exponent:0>2}"),
    }
}

fn word(value: f64) -> Option<&'static str> {
    match value {
        v if v.is_nan() => Some("nan"),
        f64::INFINITY => Some("inf"),
        f64::NEG_INFINITY => Some("-inf"),
        _ => None,
    }
}

/// A rank-0 tensor: text unchanged, a float in the fewest digits that round-trip.
fn scalar(tensor: &Tensor) -> String {
    match tensor.data() {
        Data::String(v) => plain(&v[0]),
        Data::Bool(v) => if v[0] { "True" } else { "False" }.to_owned(),
        Data::C64(v) => lone_pair(v[0]),
        Data::C128(v) => lone_pair(v[0]),
        data => with_stored!(tensor.dtype(), T => T::stored_in(data).and_then(|v| v.first()).map(|v| v.to_string()))
            .or_else(|| with_float!(tensor.dtype(), T => tensor.item::<T>().ok().map(lone_float)))
            .flatten()
            .unwrap_or_default(),
    }
}

fn lone_float<T: Shortest>(value: T) -> String {
    let size = value.to_f64().abs();
    if let Some(word) = word(value.to_f64()) {
        return word.to_owned();
    }
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = value.shortest_exp();
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{mantissa}{}", padded_exponent(exponent));
    }
    let text = value.shortest();
    if text.contains('.') { text } else { text + ".0" }
}

/// A number within a message: as a scalar is displayed, but whole numbers without a point: `2`, `0.25`, `1e+300`.
pub fn number_text(value: f64) -> String {
    let text = lone_float(value);
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// `2j`, `(1+2j)`: omits a real part of 0, as NumPy does.
fn lone_pair<T: Shortest>(value: Complex<T>) -> String {
    if value.re == T::ZERO && value.re.to_f64().is_sign_positive() {
        return format!("{}j", short(value.im));
    }
    format!("({})", whole_pair(value))
}

/// `1+2j`, with both parts.
fn whole_pair<T: Shortest>(value: Complex<T>) -> String {
    let imaginary = short(value.im);
    format!("{}{}{imaginary}j", short(value.re), if imaginary.starts_with('-') { "" } else { "+" })
}

/// A float in the fewest digits that round-trip, without a decimal point if it needs none.
fn short<T: Shortest>(value: T) -> String {
    let text = lone_float(value);
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Text unchanged, so that it can be piped to another program; control characters and invalid UTF-8 are escaped.
fn plain(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            let is_safe = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
            text.chars().map(|c| if is_safe(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
        }
        Err(_) => quoted(bytes),
    }
}

fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("b\"{}\"", bytes.escape_ascii()),
    }
}

/// Nested lists of numbers, bools and strings. NaN and infinities are the strings `"NaN"`, `"Infinity"` and
/// `"-Infinity"`; a complex number is the string `"1+2j"`; a string that is not UTF-8 is `{"base64": "…"}`.
/// [`literal`](super::literal) parses it back. A tensor without elements is `[]`, whatever its shape.
pub fn to_json(tensor: &Tensor) -> Value {
    if tensor.is_empty() {
        return json!([]);
    }
    let items: Vec<Value> = match tensor.data() {
        Data::Bool(v) => v.iter().map(|&v| v.into()).collect(),
        Data::String(v) => v.iter().map(|v| string_to_json(v)).collect(),
        Data::U64(v) => v.iter().map(|&v| v.into()).collect(),
        Data::C64(v) => v.iter().map(|&v| whole_pair(v).into()).collect(),
        Data::C128(v) => v.iter().map(|&v| whole_pair(v).into()).collect(),
        data => with_stored!(tensor.dtype(), T => {
            T::stored_in(data).unwrap_or(&[]).iter().map(|&v| super::Numeric::to_i64(v).into()).collect::<Vec<Value>>()
        })
        .or_else(|| {
            with_float!(tensor.dtype(), T => {
                tensor.slice::<T>().unwrap_or(&[]).iter().map(|&v| float_to_json(v)).collect::<Vec<Value>>()
            })
        })
        .unwrap_or_default(),
    };
    fn nest(dims: &[usize], items: &mut impl Iterator<Item = Value>) -> Value {
        match dims {
            [] => items.next().unwrap_or_default(),
            [length, inner @ ..] => (0..*length).map(|_| nest(inner, items)).collect(),
        }
    }
    nest(tensor.dims(), &mut items.into_iter())
}

/// A float with the digits that its own type needs, not those of the float64 that JSON readers parse it as.
#[allow(private_bounds)]
pub fn float_to_json<T: Shortest>(value: T) -> Value {
    match value.to_f64() {
        v if v.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        exact => value.shortest_exp().parse().unwrap_or(exact).into(),
    }
}

pub fn string_to_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": BASE64_STANDARD.encode(bytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn numbers_within_messages_have_no_row_of_zeros() {
        let shown = [2.0, 0.25, 5e15, 1e16, -1e300, 1e-7, f64::INFINITY].map(number_text);
        assert_eq!(shown, ["2", "0.25", "5000000000000000", "1e+16", "-1e+300", "1e-07", "inf"]);
    }

    #[test]
    fn tensors_print_as_numpy_prints_them() {
        // Each expectation is the output of numpy 2 for the same array.
        let check = |tensor: Tensor, want: &str| assert_eq!(tensor.to_string(), want);
        check(Tensor::scalar(238i32), "238");
        check(Tensor::scalar(0.1f32), "0.1");
        check(Tensor::scalar(2f32), "2.0");
        check(Tensor::scalar(1e-5f32), "1e-05");
        check(Tensor::scalar(1.5e17f64), "1.5e+17");
        check(Tensor::scalar(1e300f64), "1e+300");
        check(Tensor::scalar(f16::from_f32(0.1)), "0.1");
        check(Tensor::scalar(f32::NAN), "nan");
        check(Tensor::scalar(true), "True");
        check(Tensor::scalar(200u8).retyped(DType::QU8).unwrap(), "200");
        check(Tensor::vector(vec![-7i32, 10]).retyped(DType::QI32).unwrap(), "[-7 10]");
        check(Tensor::from_vec([2, 2], vec![1f32, 2., 3., 4.]), "[[1. 2.]\n [3. 4.]]");
        check(Tensor::vector(vec![1f32, 2.5, -3.25]), "[ 1.    2.5  -3.25]");
        check(Tensor::vector(vec![0.1f64, 0.123_456_789_012]), "[0.1        0.12345679]");
        check(Tensor::vector(vec![1e-10f32, 1.]), "[1.e-10 1.e+00]");
        check(Tensor::vector(vec![1.5e-10f64, -1.]), "[ 1.5e-10 -1.0e+00]");
        check(Tensor::vector(vec![1f32, f32::NAN, f32::NEG_INFINITY]), "[  1.  nan -inf]");
        check(Tensor::vector(vec![1i32, -20]), "[  1 -20]");
        check(Tensor::vector(vec![true, false]), "[ True False]");
        check(Tensor::from_vec([2, 1, 2], vec![1u8, 2, 3, 4]), "[[[1 2]]\n\n [[3 4]]]");
        check(Tensor::zeros(DType::F32, [0]).unwrap(), "[]");
        check(
            Tensor::vector((0..30i64).collect()),
            "[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23\n 24 25 26 27 28 29]",
        );
        check(Tensor::vector((0..2000i64).collect()), "[   0    1    2 ... 1997 1998 1999]");
        check(
            Tensor::from_vec([2000, 1], (0..2000i32).collect()),
            "[[   0]\n [   1]\n [   2]\n ...\n [1997]\n [1998]\n [1999]]",
        );
    }

    #[test]
    fn complex_numbers_print_as_numpy_prints_them() {
        let check = |tensor: Tensor, want: &str| assert_eq!(tensor.to_string(), want);
        let of = |re: f64, im: f64| Complex::new(re, im);
        check(Tensor::scalar(Complex::new(1f32, 2.0)), "(1+2j)");
        check(Tensor::scalar(Complex::new(-0.0f32, -0.1)), "(-0-0.1j)");
        check(Tensor::scalar(of(1e-5, 1e20)), "(1e-05+1e+20j)");
        check(Tensor::scalar(Complex::new(f32::NAN, f32::INFINITY)), "(nan+infj)");
        check(Tensor::scalar(of(0.0, 0.0)), "0j");
        check(Tensor::vector(vec![Complex::new(1f32, 2.0), Complex::new(-3.25, -0.5)]), "[ 1.  +2.j  -3.25-0.5j]");
        check(Tensor::from_vec([1, 2], vec![of(1.5, 0.0), of(2.0, 0.0)]), "[[1.5+0.j 2. +0.j]]");
        check(Tensor::vector(vec![of(1e-10, 1.0), of(2.0, -3e5)]), "[1.e-10+1.e+00j 2.e+00-3.e+05j]");
        check(Tensor::vector(vec![of(f64::NAN, 1.0), of(1.0, f64::NEG_INFINITY)]), "[nan +1.j  1.-infj]");
    }

    #[test]
    fn strings_print_as_text_without_control_characters() {
        let check = |tensor: Tensor, want: &str| assert_eq!(tensor.to_string(), want);
        check(Tensor::scalar("Hello, 分散 TensorFlow!".as_bytes().to_vec()), "Hello, 分散 TensorFlow!");
        check(Tensor::scalar(b"a\x1b[31m\n".to_vec()), "a\\u{1b}[31m\n");
        check(Tensor::scalar(vec![0xff, b'a']), "b\"\\xffa\"");
        check(Tensor::vector(vec![b"a b".to_vec(), b"\"".to_vec()]), r#"["a b" "\""]"#);
        check(Tensor::zeros(DType::F32, [2, 0]).unwrap(), "[] of shape [2,0]");
    }

    #[test]
    fn json_holds_every_value() {
        let check = |tensor: Tensor, want: &str| assert_eq!(to_json(&tensor).to_string(), want);
        check(Tensor::scalar(238i32), "238");
        check(Tensor::scalar(0.1f32), "0.1");
        check(Tensor::scalar(u64::MAX), "18446744073709551615");
        check(Tensor::vector(vec![-128i8, 3]).retyped(DType::QI8).unwrap(), "[-128,3]");
        check(Tensor::from_vec([2, 2], vec![1f32, 2.5, f32::NAN, f32::INFINITY]), r#"[[1.0,2.5],["NaN","Infinity"]]"#);
        check(Tensor::zeros(DType::I32, [2, 0]).unwrap(), "[]");
        check(Tensor::vector(vec![Complex::new(0.1f32, -2.0), Complex::new(0.0, f32::NAN)]), r#"["0.1-2j","0+nanj"]"#);
        check(Tensor::vector(vec![b"a".to_vec(), vec![0xff]]), r#"["a",{"base64":"/w=="}]"#);
    }
}
