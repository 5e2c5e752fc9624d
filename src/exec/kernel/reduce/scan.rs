//! Cumsum and Cumprod: every partial result along an axis.

use super::super::call::{self, input_dtype, kernel as call, no_kernel};
use super::super::math::widened;
use super::super::{HostKernel, KernelNode};
use crate::exec::turn::Pace;
use crate::failure::{Failure, Result};
use crate::tensor::{Numeric, Tensor, with_type};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let sums = match node.op {
        "Cumsum" => true,
        "Cumprod" => false,
        _ => return Ok(None),
    };
    let (exclusive, reverse) = (node.attrs.bool("exclusive")?, node.attrs.bool("reverse")?);
    let dtype = input_dtype(node, 0)?;
    let found = widened(dtype, |dtype| {
        with_type!(dtype, T => if sums {
            call(move |[x, axis]| scan(x, &axis, exclusive, reverse, T::ZERO, T::add))
        } else {
            call(move |[x, axis]| scan(x, &axis, exclusive, reverse, T::ONE, T::mul))
        }; F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
    });
    found.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
}

fn scan<T: Numeric>(
    mut x: Tensor,
    axis: &Tensor,
    exclusive: bool,
    reverse: bool,
    start: T,
    fold: impl Fn(T, T) -> T,
) -> Result<Tensor> {
    let (axis, rank) = (axis.to_i64()?, x.rank() as i64);
    let at = call::axis(axis, x.rank()).map_err(|_| {
        Failure::invalid(format!("ScanOp: Expected scan axis in the range [{}, {rank}), but got {axis}", -rank))
    })?;
    let (size, inner) = (x.dims()[at], call::product(&x.dims()[at + 1..]));
    if x.is_empty() {
        return Ok(x);
    }
    let mut sums = vec![start; inner];
    let mut pace = Pace::new();
    for block in x.slice_mut::<T>()?.chunks_exact_mut(size * inner) {
        sums.fill(start);
        for i in 0..size {
            pace.go(inner);
            let i = if reverse { size - 1 - i } else { i };
            for (sum, x) in sums.iter_mut().zip(&mut block[i * inner..(i + 1) * inner]) {
                let before = *sum;
                *sum = fold(before, *x);
                *x = if exclusive { before } else { *sum };
            }
        }
    }
    Ok(x)
}
