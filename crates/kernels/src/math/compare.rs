//! Comparisons: two inputs of one dtype, a bool for each pair of elements.

use meshtf_tensor::failure::Result;
use meshtf_tensor::{Complex, Element, Tensor, with_type};

use super::super::call::{input_dtype, kernel as call, no_kernel};
use super::super::{HostKernel, KernelNode};
use super::{widened, zip_to};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let dtype = match node.op {
        "Equal" | "NotEqual" | "Less" | "LessEqual" | "Greater" | "GreaterEqual" => input_dtype(node, 0)?,
        _ => return Ok(None),
    };
    let found = match node.op {
        "Equal" | "NotEqual" => {
            let (equal, strict) = (node.op == "Equal", node.attrs.bool("incompatible_shape_error")?);
            widened(dtype, |dtype| {
                with_type!(dtype, T => equality::<T>(equal, strict);
                    F32 f32, F64 f64, I32 i32, I64 i64, U64 u64, Bool bool, String Vec<u8>, C64 Complex<f32>, C128 Complex<f64>)
            })
        }
        op => widened(dtype, |dtype| {
            with_type!(dtype, T => order::<T>(op); F32 f32, F64 f64, I32 i32, I64 i64, U64 u64).flatten()
        }),
    };
    found.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
}

/// Equal or NotEqual. Unless `strict`, incompatible shapes are not an error but count as unequal.
fn equality<T: Element>(equal: bool, strict: bool) -> HostKernel {
    call(move |[x, y]: [Tensor; 2]| {
        if !strict && x.shape().broadcast(y.shape()).is_err() {
            return Ok(Tensor::scalar(!equal));
        }
        if equal { zip_to(&x, &y, |x: &T, y| x == y) } else { zip_to(&x, &y, |x: &T, y| x != y) }
    })
}

fn order<T: Element + PartialOrd>(op: &str) -> Option<HostKernel> {
    fn by<T: Element>(f: impl Fn(&T, &T) -> bool + Copy + Send + 'static) -> HostKernel {
        call(move |[x, y]| zip_to(&x, &y, f))
    }
    Some(match op {
        "Less" => by(|x: &T, y| x < y),
        "LessEqual" => by(|x: &T, y| x <= y),
        "Greater" => by(|x: &T, y| x > y),
        "GreaterEqual" => by(|x: &T, y| x >= y),
        _ => return None,
    })
}
