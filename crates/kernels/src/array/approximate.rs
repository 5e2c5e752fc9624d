//! ApproxTopK: the greatest or least elements along an axis. On a CPU they are exact, as TensorFlow's are.

use std::cmp::Ordering;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Float, Shape, Tensor, with_float};
use smallvec::smallvec;

use super::super::call::{self, input_dtype};
use super::super::{HostKernel, Outputs, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ApproxTopK", |node| {
        let (k, axis) = (node.attrs.int("k")?, node.attrs.int("reduction_dimension")?);
        let is_greatest = node.attrs.bool("is_max_k")?;
        if !node.attrs.bool("aggregate_to_topk")? {
            let text = "ApproxTopK returns k elements: aggregate_to_topk must be true";
            return Err(Failure::new(Code::Unimplemented, text));
        }
        let k = usize::try_from(k).map_err(|_| Failure::invalid(format!("k must be non-negative, got {k}")))?;
        Ok(with_float!(input_dtype(node, 0)?, T => Box::new(move |inputs| {
            let [x] = call::take(inputs)?;
            top::<T>(&x, k, axis, is_greatest)
        }) as HostKernel))
    });
}

fn top<T: Float>(x: &Tensor, k: usize, axis: i64, is_greatest: bool) -> Result<Outputs> {
    let axis = call::axis(axis, x.rank())?;
    let size = x.dims()[axis];
    if k > size {
        return Err(Failure::invalid(format!("input must have at least k={k} columns, it has {size}")));
    }
    let mut dims = x.dims().to_vec();
    dims[axis] = k;
    let shape = Shape::from(&dims[..]);
    let all = shape.checked_elements(T::DTYPE)?;
    let (mut values, mut places) = (vec![T::ZERO; all], vec![0i32; all]);
    let inner = call::product(&dims[axis + 1..]);
    let outer = call::product(&dims[..axis]);
    let elements = x.slice::<T>()?;
    let mut pace = Pace::new();
    let lanes = if all == 0 { 0 } else { outer * inner };
    for lane in 0..lanes {
        pace.go(8 * size);
        let (start, end) = (lane / inner * size * inner + lane % inner, lane / inner * k * inner + lane % inner);
        let at = |i: usize| elements[start + i * inner];
        let mut order: Vec<usize> = (0..size).collect();
        order.sort_by(|&i, &j| {
            let (a, b) = if is_greatest { (at(j), at(i)) } else { (at(i), at(j)) };
            a.partial_cmp(&b).unwrap_or(Ordering::Equal)
        });
        for (rank, &i) in order[..k].iter().enumerate() {
            values[end + rank * inner] = at(i);
            places[end + rank * inner] = i as i32;
        }
    }
    Ok(smallvec![Tensor::from_vec(shape.clone(), values), Tensor::from_vec(shape, places)])
}
