//! ArgMax and ArgMin: the first position of the greatest or least element along an axis.

use super::super::call::{self, input_dtype, kernel as call, no_kernel, output_dtype};
use super::super::math::{cast, wide};
use super::super::{HostKernel, KernelNode};
use crate::exec::turn::Pace;
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Data, Element, Numeric, Shape, Tensor, with_type};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let greatest = match node.op {
        "ArgMax" => true,
        "ArgMin" => false,
        _ => return Ok(None),
    };
    let (dtype, to) = (input_dtype(node, 0)?, output_dtype(node, 0)?);
    // False sorts before true.
    let wide = if dtype == DType::Bool { DType::I32 } else { wide(dtype) };
    let found = with_type!(wide, T => call(move |[x, axis]| place::<T>(&cast(x, wide)?, &axis, greatest, to));
        F32 f32, F64 f64, I32 i32, I64 i64, U64 u64);
    found.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
}

fn place<T: Numeric + Element>(x: &Tensor, axis: &Tensor, greatest: bool, to: DType) -> Result<Tensor> {
    let axis = match axis.data() {
        Data::I16(values) if values.len() == 1 => i64::from(values[0]),
        _ => axis.to_i64()?,
    };
    let rank = x.rank() as i64;
    let at = call::axis(axis, x.rank()).map_err(|_| {
        Failure::invalid(format!("Expected dimension in the range [{}, {rank}), but got {axis}", -rank))
    })?;
    let size = x.dims()[at];
    if size == 0 {
        return Err(Failure::invalid(format!("Reduction axis {at} is empty in shape {}", x.shape())));
    }
    let inner = call::product(&x.dims()[at + 1..]);
    let mut dims = x.dims().to_vec();
    dims.remove(at);
    let mut places = vec![0i64; Shape::from(dims.as_slice()).checked_elements(DType::I64)?];
    if !places.is_empty() {
        let mut best = vec![T::ZERO; inner];
        let mut pace = Pace::new();
        for (block, places) in x.slice::<T>()?.chunks_exact(size * inner).zip(places.chunks_exact_mut(inner)) {
            // Starts from the least value: neither NaN nor a tie replaces what was found first.
            best.fill(if greatest { T::LOWEST } else { T::HIGHEST });
            for (i, row) in block.chunks_exact(inner).enumerate() {
                pace.go(inner);
                for ((best, place), &x) in best.iter_mut().zip(&mut *places).zip(row) {
                    if if greatest { x > *best } else { x < *best } {
                        (*best, *place) = (x, i as i64);
                    }
                }
            }
        }
    }
    cast(Tensor::from_vec(Shape::from(dims), places), to)
}
