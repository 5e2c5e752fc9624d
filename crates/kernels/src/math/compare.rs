//! Comparisons: two inputs of one dtype, a bool for each pair of elements.

use meshtf_tensor::failure::Result;
use meshtf_tensor::{Complex, Element, Tensor, with_type};

use super::super::call::{input_dtype, kernel as call};
use super::super::{HostKernel, KernelNode, Registry};
use super::{widened, zip_to};

/// The kernel of a comparison by that operator.
macro_rules! order {
    ($operator:tt) => {
        |node| {
            Ok(widened(input_dtype(node, 0)?, |dtype| {
                with_type!(dtype, T => call(|[x, y]| zip_to(&x, &y, |x: &T, y: &T| x $operator y));
                    F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
            }))
        }
    };
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Equal", |node| equality_of(node, true));
    ops.insert("NotEqual", |node| equality_of(node, false));
    ops.insert("Less", order!(<));
    ops.insert("LessEqual", order!(<=));
    ops.insert("Greater", order!(>));
    ops.insert("GreaterEqual", order!(>=));
}

fn equality_of(node: &KernelNode, equal: bool) -> Result<Option<HostKernel>> {
    let strict = node.attrs.bool("incompatible_shape_error")?;
    Ok(widened(input_dtype(node, 0)?, |dtype| {
        with_type!(dtype, T => equality::<T>(equal, strict);
            F32 f32, F64 f64, I32 i32, I64 i64, U64 u64, Bool bool, String Vec<u8>, C64 Complex<f32>, C128 Complex<f64>)
    }))
}

/// Whether elements are equal or not. Unless `strict`, incompatible shapes are not an error but count as unequal.
fn equality<T: Element>(equal: bool, strict: bool) -> HostKernel {
    call(move |[x, y]: [Tensor; 2]| {
        if !strict && x.shape().broadcast(y.shape()).is_err() {
            return Ok(Tensor::scalar(!equal));
        }
        if equal { zip_to(&x, &y, |x: &T, y| x == y) } else { zip_to(&x, &y, |x: &T, y| x != y) }
    })
}
