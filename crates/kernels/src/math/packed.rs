//! CompareAndBitpack (eight comparisons in a byte), ApproximateEqual and ClipByValue.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Element, Numeric, Shape, Tensor, with_number, with_type};

use super::super::Registry;
use super::super::call::{input_dtype, kernel as call};
use super::zip_to;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("CompareAndBitpack", |node| match input_dtype(node, 0)? {
        // For any threshold, true is above it.
        DType::Bool => Ok(Some(call(|[x, threshold]| packed(&x, &threshold, |x: &bool, _| *x)))),
        dtype => Ok(with_number!(dtype, T => call(|[x, threshold]| packed(&x, &threshold, |x: &T, y| x > y)))),
    });
    ops.insert("ApproximateEqual", |node| {
        let tolerance = f64::from(node.attrs.float("tolerance")?);
        Ok(with_type!(input_dtype(node, 0)?, T => call(move |[x, y]: [Tensor; 2]| {
            if x.shape() != y.shape() {
                let why = format!("x and y must be of the same shape. x shape: {}. y shape: {}", x.shape(), y.shape());
                return Err(Failure::invalid(why));
            }
            zip_to(&x, &y, |x: &T, y: &T| Numeric::to_f64(*x - *y).abs() < tolerance)
        }); F32 f32, F64 f64))
    });
    ops.insert("ClipByValue", |node| Ok(with_number!(input_dtype(node, 0)?, T => call(clipped::<T>))));
}

/// Eight comparisons with a threshold per byte; the first is the highest bit.
fn packed<T: Element>(x: &Tensor, threshold: &Tensor, is_above: impl Fn(&T, &T) -> bool) -> Result<Tensor> {
    let Some(&last) = x.dims().last() else {
        return Err(Failure::invalid("input should be at least a vector, got a scalar"));
    };
    let [threshold] = threshold.slice::<T>()? else {
        return Err(Failure::invalid(format!("Compare must be a scalar, got shape {}", threshold.shape())));
    };
    if !last.is_multiple_of(8) {
        let why = format!("Inner dimension of input should be divisible by 8, but got shape {}", x.shape());
        return Err(Failure::invalid(why));
    }
    let mut dims = x.dims().to_vec();
    dims.last_mut().into_iter().for_each(|last| *last /= 8);
    let shape = Shape::from(dims);
    let mut out = Vec::with_capacity(shape.checked_elements(DType::U8)?);
    let byte = |eight: &[T]| eight.iter().fold(0u8, |byte, x| byte << 1 | u8::from(is_above(x, threshold)));
    out.extend(paced(x.slice::<T>()?.chunks_exact(8), 8).map(byte));
    Ok(Tensor::from_vec(shape, out))
}

/// Elements clamped between two bounds, which are scalars or have the same shape.
fn clipped<T: Numeric>([x, low, high]: [Tensor; 3]) -> Result<Tensor> {
    for limit in [&low, &high] {
        if limit.len() != 1 && limit.shape() != x.shape() {
            return Err(Failure::invalid(format!(
                "clip_value_min and clip_value_max must be either of the same shape as input, or a scalar. Input shape: {} \
                 clip_value_min shape: {} clip_value_max shape: {}",
                x.shape(),
                low.shape(),
                high.shape()
            )));
        }
    }
    let (mut x, low, high) = (super::super::call::owned(x)?, low.slice::<T>()?, high.slice::<T>()?);
    let at = |limits: &[T], i: usize| if limits.len() == 1 { limits[0] } else { limits[i] };
    for (i, x) in paced(x.slice_mut::<T>()?.iter_mut().enumerate(), 4) {
        let high = at(high, i);
        let below = if *x > high { high } else { *x };
        let low = at(low, i);
        *x = if below < low { low } else { below };
    }
    Ok(x)
}
