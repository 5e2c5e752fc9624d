//! Cumsum, Cumprod and CumulativeLogsumexp: every partial result along an axis.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Complex, Float, Numeric, Ring, Tensor, with_type};

use super::super::Registry;
use super::super::call::{self, input_dtype, kernel as call};
use super::super::math::widened;
use super::super::real::{exp, ln_1p};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Cumsum", |node| {
        let (exclusive, reverse) = (node.attrs.bool("exclusive")?, node.attrs.bool("reverse")?);
        Ok(widened(input_dtype(node, 0)?, |dtype| {
            with_type!(dtype, T => {
                call(move |[x, axis]| scan(x, &axis, exclusive, reverse, T::ZERO, <T as Ring>::add))
            }; F32 f32, F64 f64, I32 i32, I64 i64, U64 u64, C64 Complex<f32>, C128 Complex<f64>)
        }))
    });
    ops.insert("Cumprod", |node| {
        let (exclusive, reverse) = (node.attrs.bool("exclusive")?, node.attrs.bool("reverse")?);
        Ok(widened(input_dtype(node, 0)?, |dtype| {
            with_type!(dtype, T => {
                call(move |[x, axis]| scan(x, &axis, exclusive, reverse, T::ONE, <T as Ring>::mul))
            }; F32 f32, F64 f64, I32 i32, I64 i64, U64 u64, C64 Complex<f32>, C128 Complex<f64>)
        }))
    });
    ops.insert("CumulativeLogsumexp", |node| {
        let (exclusive, reverse) = (node.attrs.bool("exclusive")?, node.attrs.bool("reverse")?);
        Ok(widened(input_dtype(node, 0)?, |dtype| {
            with_type!(dtype, T => {
                call(move |[x, axis]| scan(x, &axis, exclusive, reverse, T::LOWEST, log_sum_exp::<T>))
            }; F32 f32, F64 f64)
        }))
    });
}

/// The logarithm of the sum of two exponentials.
#[inline]
fn log_sum_exp<T: Float>(a: T, b: T) -> T {
    let (greater, less) = if a > b { (a, b) } else { (b, a) };
    if less == T::LOWEST || greater == T::HIGHEST { greater } else { greater + ln_1p(exp(less - greater)) }
}

fn scan<T: Ring>(
    mut x: Tensor,
    axis: &Tensor,
    exclusive: bool,
    reverse: bool,
    start: T,
    fold: impl Fn(T, T) -> T + Sync,
) -> Result<Tensor> {
    let (axis, rank) = (axis.to_i64()?, x.rank() as i64);
    let at = call::axis(axis, x.rank()).map_err(|_| {
        Failure::invalid(format!("ScanOp: Expected scan axis in the range [{}, {rank}), but got {axis}", -rank))
    })?;
    let (size, inner) = (x.dims()[at], call::product(&x.dims()[at + 1..]));
    if x.is_empty() {
        return Ok(x);
    }
    let block = size * inner;
    in_chunks(x.slice_mut::<T>()?.chunks_mut(chunk(2 * block) * block), |blocks| {
        let mut sums = vec![start; inner];
        let mut pace = Pace::new();
        for block in blocks.chunks_exact_mut(block) {
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
    });
    Ok(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_along_any_axis_are_those_of_a_loop() {
        for dims in [[900, 700, 1], [2, 1000, 300], [400, 3, 500], [1, 1, 600_000]] {
            let xs: Vec<i64> = (0..dims.iter().product::<usize>() as i64).map(|i| i * 7919 % 1009).collect();
            for (axis, exclusive, reverse) in [(0, false, false), (1, true, false), (1, false, true), (2, true, true)] {
                let inner: usize = dims[axis + 1..].iter().product();
                let mut want = vec![0; xs.len()];
                for first in (0..xs.len()).filter(|i| (i / inner).is_multiple_of(dims[axis])) {
                    let mut sum = 0;
                    for i in 0..dims[axis] {
                        let at = first + inner * if reverse { dims[axis] - 1 - i } else { i };
                        want[at] = if exclusive { sum } else { sum + xs[at] };
                        sum += xs[at];
                    }
                }
                let x = Tensor::from_vec(dims, xs.clone());
                let axis = Tensor::scalar(axis as i32);
                let got = scan(x, &axis, exclusive, reverse, 0i64, <i64 as Ring>::add).unwrap();
                assert!(got == Tensor::from_vec(dims, want), "{dims:?} along {axis:?}");
            }
        }
    }
}
