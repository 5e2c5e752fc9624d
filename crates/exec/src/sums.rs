//! Sums and means of tensors, in place.

use std::ops::Div;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Complex, Data, Integer, Numeric, Ring, Tensor, with_float, with_integer, with_ring};

/// Adds a tensor of the same shape and dtype.
pub(super) fn add(sum: &mut Tensor, gradient: &Tensor) -> Result<()> {
    let dtype = sum.dtype();
    let done: Option<Result<()>> = with_ring!(dtype, T => {
        gradient.slice::<T>().and_then(|gradient| {
            sum.slice_mut::<T>()?.iter_mut().zip(gradient).for_each(|(x, &y)| *x = Ring::add(*x, y));
            Ok(())
        })
    });
    done.unwrap_or_else(|| Err(Failure::invalid(format!("{dtype} is not a numeric dtype"))))
}

/// Divides by a number. If that fails, nothing has changed.
pub(super) fn divide(sum: &mut Tensor, count: u64) -> Result<()> {
    let dtype = sum.dtype();
    let count_f64 = count as f64;
    let floats: Option<Result<()>> = with_float!(dtype, T => {
        let count = <T as Numeric>::from_f64(count_f64);
        sum.slice_mut::<T>().map(|sum| sum.iter_mut().for_each(|x| *x = Div::div(*x, count)))
    });
    if dtype.is_complex() {
        sum.admit_writing()?;
        match sum.data_mut() {
            Data::C64(sum) => {
                sum.iter_mut().for_each(|x| *x = Complex::new(x.re / count_f64 as f32, x.im / count_f64 as f32))
            }
            Data::C128(sum) => sum.iter_mut().for_each(|x| *x = Complex::new(x.re / count_f64, x.im / count_f64)),
            _ => {}
        }
        return Ok(());
    }
    let done = floats.or_else(|| {
        with_integer!(dtype, T => {
            let count = <T as Numeric>::from_i64(count as i64);
            sum.slice_mut::<T>().map(|sum| {
                sum.iter_mut().for_each(|x| *x = Integer::checked_div(*x, count).unwrap_or_default());
            })
        })
    });
    done.unwrap_or_else(|| Err(Failure::invalid(format!("{dtype} is not a numeric dtype"))))
}
