//! The formulas of an elementwise op: each makes the kernels for a class of element types.

use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::super::call::input_dtype;
use super::super::{HostKernel, KernelNode};
use super::widened;

/// Makes the kernel for a dtype; `None` if the formula is for others.
pub type Formula = fn(DType) -> Option<HostKernel>;

/// The kernel of a node by the first formula for its dtype or, if there is none, for the wide one.
pub fn kernel(node: &KernelNode, formulas: &[Formula]) -> Result<Option<HostKernel>> {
    let dtype = input_dtype(node, 0)?;
    let find = |dtype| formulas.iter().find_map(|formula| formula(dtype));
    Ok(find(dtype).or_else(|| widened(dtype, find)))
}

/// A [`Formula`] for the listed dtypes: an expression with a type of a class.
macro_rules! formula {
    ($t:ident: $class:path => $kernel:expr; $($variant:ident $type:ty),+) => {
        |dtype| {
            fn kernel<$t: $class>() -> crate::HostKernel {
                $kernel
            }
            meshtf_tensor::with_type!(dtype, T => kernel::<T>(); $($variant $type),+)
        }
    };
}

/// The same, for a class.
macro_rules! formula_of {
    (halves: $t:ident => $kernel:expr) => {
        formula!($t: meshtf_tensor::Float => $kernel; F16 half::f16, BF16 half::bf16)
    };
    // Half floats are widened, and their results rounded once.
    (floats: $t:ident => $kernel:expr) => {
        formula!($t: meshtf_tensor::Float => $kernel; F32 f32, F64 f64)
    };
    // Half floats are rounded at every step of the formula.
    (floats_by_steps: $t:ident => $kernel:expr) => {
        formula!($t: meshtf_tensor::Float => $kernel; F16 half::f16, BF16 half::bf16, F32 f32, F64 f64)
    };
    // Narrow integers are widened, and their results wrapped once.
    (integers: $t:ident => $kernel:expr) => {
        formula!($t: meshtf_tensor::Integer => $kernel; I32 i32, I64 i64, U64 u64)
    };
    (numbers: $t:ident => $kernel:expr) => {
        formula!($t: meshtf_tensor::Numeric => $kernel; F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
    };
    (numbers_by_steps: $t:ident => $kernel:expr) => {
        formula!($t: meshtf_tensor::Numeric => $kernel;
            F16 half::f16, BF16 half::bf16, F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
    };
    (complex: $t:ident => $kernel:expr) => {
        formula!($t: crate::math::Pair => $kernel; C64 meshtf_tensor::Complex<f32>, C128 meshtf_tensor::Complex<f64>)
    };
}

/// Registers ops by their formulas: `"Name": class(formula), …;`. Each class is a macro of the file.
macro_rules! formulas {
    ($ops:ident, $kernel:path; $($($op:literal),+: $($class:ident($($formula:tt)+)),+;)+) => {
        $($ops.insert_all([$($op),+], |node| $kernel(node, &[$($class!($($formula)+)),+]));)+
    };
}
