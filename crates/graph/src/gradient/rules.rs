//! The gradient rules by their names in `op/table.txt`: each computes the gradients of a node's inputs from those of its
//! outputs.
//!
//! A rule adds ops of the vocabulary. Each family's file has a table of its rules.

mod activation;
mod arrange;
mod batch_norm;
mod binary;
mod complex;
mod convolution;
mod einsum;
mod factor;
mod flow;
mod gamma;
mod image;
mod index;
mod join;
mod linalg;
mod list;
mod loss;
mod matmul;
mod matrix;
mod normalize;
mod pool;
mod quantize;
mod ragged;
mod recurrent;
mod reduce;
mod scan;
mod segment;
mod sparse;
mod special;
mod tensor_array;
mod tridiagonal;
mod unary;

use std::collections::HashMap;
use std::sync::LazyLock;

use half::{bf16, f16};
use meshtf_tensor::failure::Failure;
use meshtf_tensor::{Complex, DType, Tensor};

use super::call::{Call, Grads};

/// Adds the nodes that turn the gradients of a node's outputs into those of its inputs.
pub(super) type Rule = fn(&mut Call) -> Grads;

/// A rule with its name in the table of ops.
#[derive(Clone, Copy, Debug)]
pub struct NamedRule {
    name: &'static str,
    pub(super) add: Rule,
}

impl NamedRule {
    /// Its name in the table of ops.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// The reason why a rule adds no gradient.
pub(super) enum Stop {
    /// The op has no rule.
    NoRule,
    /// It is part of a loop.
    Loop,
    /// The graph states that there must be none, with that reason.
    Prevented(String),
    /// The op has a rule, but not for a node like this: the detail.
    Unsupported(String),
    /// A node could not be added.
    Failed(Failure),
}

/// The tables of the families.
const FAMILIES: [&[(&str, Rule)]; 31] = [
    unary::RULES,
    binary::RULES,
    matmul::RULES,
    einsum::RULES,
    linalg::RULES,
    factor::RULES,
    activation::RULES,
    loss::RULES,
    convolution::RULES,
    pool::RULES,
    normalize::RULES,
    batch_norm::RULES,
    recurrent::RULES,
    quantize::RULES,
    arrange::RULES,
    join::RULES,
    index::RULES,
    image::RULES,
    reduce::RULES,
    scan::RULES,
    segment::RULES,
    flow::RULES,
    tensor_array::RULES,
    list::RULES,
    gamma::RULES,
    sparse::RULES,
    ragged::RULES,
    tridiagonal::RULES,
    complex::RULES,
    special::RULES,
    matrix::RULES,
];

static BY_NAME: LazyLock<HashMap<&str, NamedRule>> = LazyLock::new(|| all().map(|rule| (rule.name, rule)).collect());

/// Every rule.
pub(super) fn all() -> impl Iterator<Item = NamedRule> {
    FAMILIES.into_iter().flatten().map(|&(name, add)| NamedRule { name, add })
}

/// The rule of a name in the table of ops.
pub(super) fn named(name: &str) -> Option<NamedRule> {
    BY_NAME.get(name).copied()
}

/// A number as a scalar of a dtype; `None` for dtypes that are not numeric.
pub(super) fn number(dtype: DType, value: f64) -> Option<Tensor> {
    Some(match dtype {
        DType::F16 => Tensor::scalar(f16::from_f64(value)),
        DType::BF16 => Tensor::scalar(bf16::from_f64(value)),
        DType::F32 => Tensor::scalar(value as f32),
        DType::F64 => Tensor::scalar(value),
        DType::C64 => Tensor::scalar(Complex::new(value as f32, 0.0)),
        DType::C128 => Tensor::scalar(Complex::new(value, 0.0)),
        DType::I8 => Tensor::scalar(value as i8),
        DType::I16 => Tensor::scalar(value as i16),
        DType::I32 => Tensor::scalar(value as i32),
        DType::I64 => Tensor::scalar(value as i64),
        DType::U8 => Tensor::scalar(value as u8),
        DType::U16 => Tensor::scalar(value as u16),
        DType::U32 => Tensor::scalar(value as u32),
        DType::U64 => Tensor::scalar(value as u64),
        DType::Bool | DType::String | DType::Resource | DType::Variant => return None,
        DType::QI8 | DType::QU8 | DType::QI16 | DType::QU16 | DType::QI32 => return None,
    })
}

/// A vector of int64, or otherwise of int32.
pub(super) fn integers(dtype: DType, values: &[i64]) -> Tensor {
    match dtype {
        DType::I64 => Tensor::vector(values.to_vec()),
        _ => Tensor::vector(values.iter().map(|&value| value as i32).collect()),
    }
}
