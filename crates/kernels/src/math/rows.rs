//! Betainc, whose three inputs have one shape or are scalars, and Cross, the product of vectors of three elements.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Float, Numeric, Tensor, with_type};

use super::super::Registry;
use super::super::call::{input_dtype, kernel as call};
use super::special::betainc;
use super::widened;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Betainc", |node| {
        Ok(with_type!(input_dtype(node, 0)?, T => call(incomplete_beta::<T>); F32 f32, F64 f64))
    });
    ops.insert("Cross", |node| {
        Ok(widened(
            input_dtype(node, 0)?,
            |wide| with_type!(wide, T => call(cross::<T>); F32 f32, F64 f64, I32 i32, I64 i64, U64 u64),
        ))
    });
}

fn incomplete_beta<T: Float>(inputs: [Tensor; 3]) -> Result<Tensor> {
    let shape = inputs.iter().map(Tensor::shape).find(|shape| shape.rank() > 0).unwrap_or(inputs[0].shape()).clone();
    if let Some(other) = inputs.iter().find(|input| input.rank() > 0 && *input.shape() != shape) {
        let why = format!("Shapes of a, b and x are inconsistent: {shape} and {}; scalars fit any", other.shape());
        return Err(Failure::invalid(why));
    }
    let mut out = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
    let [a, b, x] = [inputs[0].slice::<T>()?, inputs[1].slice::<T>()?, inputs[2].slice::<T>()?];
    let at = |values: &[T], i: usize| if values.len() == 1 { values[0] } else { values[i] }.to_f64();
    for i in paced(0..shape.elements().unwrap_or(0), 64) {
        out.push(T::from_f64(betainc(at(a, i), at(b, i), at(x, i))));
    }
    Ok(Tensor::from_vec(shape, out))
}

fn cross<T: Numeric>([a, b]: [Tensor; 2]) -> Result<Tensor> {
    if a.shape() != b.shape() {
        return Err(Failure::invalid(format!("Both inputs must be of same shape: {} vs. {}", a.shape(), b.shape())));
    }
    if a.dims().last() != Some(&3) {
        let why = format!("Cross-products are only defined for 3-element vectors, got {}", a.shape());
        return Err(Failure::new(Code::FailedPrecondition, why));
    }
    let mut out = Vec::with_capacity(a.shape().checked_elements(T::DTYPE)?);
    for (u, v) in paced(a.slice::<T>()?.chunks_exact(3).zip(b.slice::<T>()?.chunks_exact(3)), 9) {
        let minor = |i: usize, j: usize| u[i].mul(v[j]).sub(u[j].mul(v[i]));
        out.extend([minor(1, 2), minor(2, 0), minor(0, 1)]);
    }
    Ok(Tensor::from_vec(a.shape().clone(), out))
}
