//! NthElement: the element at an index of the last axis if that were sorted.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Numeric, Shape, Tensor, with_type};

use super::super::call::{self, input_dtype, kernel as call};
use super::super::math::widened;
use super::super::real::order;
use super::super::{HostKernel, KernelNode, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("NthElement", kernel);
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let reverse = node.attrs.bool("reverse")?;
    let found = widened(input_dtype(node, 0)?, |wide| {
        with_type!(wide, T => {
            call(move |[x, n]: [Tensor; 2]| nth::<T>(x, &n, reverse))
        }; F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
    });
    Ok(found)
}

fn nth<T: Numeric>(x: Tensor, n: &Tensor, reverse: bool) -> Result<Tensor> {
    let n = match n.to_i64() {
        Ok(n) if n < 0 => return Err(Failure::invalid(format!("Need n >= 0, got {n}"))),
        _ => call::size(n, "n")?,
    };
    let Some((&size, dims)) = x.dims().split_last() else {
        return Err(Failure::invalid("Input must be >= 1-D, got shape []"));
    };
    if n >= size {
        return Err(Failure::invalid(format!("Input must have at least n+1 = {} columns, got {size}", n + 1)));
    }
    let at = if reverse { size - 1 - n } else { n };
    let shape = Shape::from(dims);
    let mut out = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
    let mut x = call::owned(x)?;
    for row in paced(x.slice_mut::<T>()?.chunks_exact_mut(size), 4 * size) {
        out.push(*row.select_nth_unstable_by(at, order).1);
    }
    Ok(Tensor::from_vec(shape, out))
}
