//! The comparison of a value with the recorded one.

use std::fmt;

use meshtf_tensor::{DType, Data, Numeric, Tensor, with_float, with_moved};

use super::Check;

/// The difference between a value and the recorded one.
#[derive(Clone, Debug, PartialEq)]
pub enum Mismatch {
    /// The dtypes differ.
    DType {
        /// The recorded dtype.
        expected: DType,
        /// The dtype of the value.
        got: DType,
    },
    /// The shapes differ.
    Shape {
        /// The recorded shape, as text.
        expected: String,
        /// The shape of the value, as text.
        got: String,
    },
    /// The first element that differs, its index, and the number of elements that differ.
    Element {
        /// Its index; empty for a scalar.
        index: Vec<usize>,
        /// The recorded element, as text.
        expected: String,
        /// The element of the value, as text.
        got: String,
        /// The number of elements that differ.
        differ: usize,
        /// The number of all elements.
        of: usize,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::DType { expected, got } => write!(f, "expected {expected}, got {got}"),
            Mismatch::Shape { expected, got } => write!(f, "expected shape {expected}, got {got}"),
            Mismatch::Element { index, expected, got, differ, of } => {
                write!(f, "expected {expected}, got {got}")?;
                if !index.is_empty() {
                    write!(f, " at {index:?}")?;
                }
                if *differ > 1 { write!(f, "; {differ} of {of} elements differ") } else { Ok(()) }
            }
        }
    }
}

impl std::error::Error for Mismatch {}

/// Compares `got` with `expected`: dtype and shape always, except for [`Check::Skip`]; then integers, bools and strings
/// exactly, and floats by `|got - expected| <= atol + rtol * |expected|`, with NaN equal to NaN and infinities by sign.
///
/// # Errors
/// The first difference.
pub fn compare(expected: &Tensor, got: &Tensor, check: Check, rtol: f64, atol: f64) -> Result<(), Mismatch> {
    if check == Check::Skip {
        return Ok(());
    }
    if expected.dtype() != got.dtype() {
        return Err(Mismatch::DType { expected: expected.dtype(), got: got.dtype() });
    }
    if expected.shape() != got.shape() {
        return Err(Mismatch::Shape { expected: expected.shape().to_string(), got: got.shape().to_string() });
    }
    if matches!(check, Check::Shape | Check::SummaryProto) {
        return Ok(());
    }
    let (rtol, atol) = if check == Check::Exact { (0.0, 0.0) } else { (rtol, atol) };
    let differing: Vec<usize> = with_float!(expected.dtype(), T => {
        let (a, b) = (expected.slice::<T>().unwrap_or(&[]), got.slice::<T>().unwrap_or(&[]));
        (0..a.len()).filter(|&i| !is_close(a[i].to_f64(), b[i].to_f64(), rtol, atol)).collect()
    })
    .or_else(|| match (expected.data(), got.data()) {
        (Data::C64(a), Data::C64(b)) => {
            let near = |x: f32, y: f32| is_close(x.into(), y.into(), rtol, atol);
            Some((0..a.len()).filter(|&i| !(near(a[i].re, b[i].re) && near(a[i].im, b[i].im))).collect())
        }
        (Data::C128(a), Data::C128(b)) => {
            let near = |x: f64, y: f64| is_close(x, y, rtol, atol);
            Some((0..a.len()).filter(|&i| !(near(a[i].re, b[i].re) && near(a[i].im, b[i].im))).collect())
        }
        _ => None,
    })
    .or_else(|| {
        with_moved!(expected.dtype(), T => {
            let (a, b) = (expected.moved::<T>().unwrap_or(&[]), got.moved::<T>().unwrap_or(&[]));
            (0..a.len()).filter(|&i| a[i] != b[i]).collect()
        })
    })
    .unwrap_or_default();
    let Some(&first) = differing.first() else { return Ok(()) };
    let strides = expected.shape().strides();
    let index = strides.iter().zip(expected.dims()).map(|(stride, d)| first / stride % d).collect();
    let at = |tensor: &Tensor| tensor.element(first).to_string();
    Err(Mismatch::Element { index, expected: at(expected), got: at(got), differ: differing.len(), of: expected.len() })
}

fn is_close(expected: f64, got: f64, rtol: f64, atol: f64) -> bool {
    if expected.is_finite() && got.is_finite() {
        (got - expected).abs() <= atol + rtol * expected.abs()
    } else {
        got == expected || (got.is_nan() && expected.is_nan())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_close_and_all_else_is_equal() {
        let same = |a: Tensor, b: Tensor| compare(&a, &b, Check::AllClose, 1e-5, 1e-6).map_err(|m| m.to_string());
        assert_eq!(same(Tensor::scalar(1f32), Tensor::scalar(1.000_009f32)), Ok(()));
        assert_eq!(same(Tensor::scalar(0f64), Tensor::scalar(9e-7)), Ok(()));
        assert_eq!(same(Tensor::scalar(f32::NAN), Tensor::scalar(f32::NAN)), Ok(()));
        assert_eq!(same(Tensor::scalar(f32::INFINITY), Tensor::scalar(f32::INFINITY)), Ok(()));
        assert_eq!(same(Tensor::scalar(b"a".to_vec()), Tensor::scalar(b"a".to_vec())), Ok(()));

        let check = |a: Tensor, b: Tensor, want: &str| assert_eq!(same(a, b), Err(want.to_owned()));
        check(Tensor::scalar(1f32), Tensor::scalar(1.00002f32), "expected 1.0, got 1.00002");
        check(Tensor::scalar(f32::INFINITY), Tensor::scalar(f32::NEG_INFINITY), "expected inf, got -inf");
        check(Tensor::scalar(f32::MAX), Tensor::scalar(f32::INFINITY), "expected 3.4028235e+38, got inf");
        check(Tensor::scalar(0f32), Tensor::scalar(f32::NAN), "expected 0.0, got nan");
        check(Tensor::scalar(1i32), Tensor::scalar(1i64), "expected int32, got int64");
        check(Tensor::vector(vec![1i32]), Tensor::scalar(1i32), "expected shape [1], got []");
        check(
            Tensor::from_vec([2, 2], vec![1i32, 2, 3, 4]),
            Tensor::from_vec([2, 2], vec![1i32, 2, 5, 6]),
            "expected 3, got 5 at [1, 0]; 2 of 4 elements differ",
        );
        check(Tensor::vector(vec![true]), Tensor::vector(vec![false]), "expected True, got False at [0]");
        check(Tensor::scalar(b"a".to_vec()), Tensor::scalar(b"b".to_vec()), "expected a, got b");
    }

    #[test]
    fn each_check_compares_only_what_it_names() {
        let (one, two) = (Tensor::scalar(1f32), Tensor::scalar(2f32));
        for (check, is_same) in [(Check::Exact, false), (Check::Shape, true), (Check::SummaryProto, true)] {
            assert_eq!(compare(&one, &two, check, 10.0, 10.0).is_ok(), is_same, "{check:?}");
        }
        let other = Tensor::vector(vec![1i32]);
        assert!(compare(&one, &other, Check::Shape, 0.0, 0.0).is_err());
        assert!(compare(&one, &other, Check::Skip, 0.0, 0.0).is_ok());
    }
}
