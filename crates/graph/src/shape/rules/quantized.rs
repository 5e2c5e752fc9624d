//! Shapes of ops on quantised numbers: most output their result and the two ends of its range.

use super::{Entry, Rule, arrange, elementwise, image, one, reduce};
use crate::shape::call::Call;
use crate::shape::{Dims, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("quantize", quantize, Extent::Shapes),
    ("same_and_range", |call| and_range(call, elementwise::same), Extent::Shapes),
    ("broadcast_and_range", |call| and_range(call, elementwise::broadcasting), Extent::Shapes),
    ("bias_and_range", |call| and_range(call, elementwise::bias), Extent::Shapes),
    ("matmul_and_range", |call| and_range(call, reduce::matmul), Extent::Shapes),
    ("conv2d_and_range", |call| and_range(call, image::conv2d), Extent::Shapes),
    ("pool2d_and_range", |call| and_range(call, image::pool2d), Extent::Shapes),
    ("resize_and_range", |call| and_range(call, image::resize), Extent::Unknown),
    ("reshape_and_range", |call| and_range(call, arrange::reshape), Extent::Unknown),
    ("concat_and_range", |call| and_range(call, concat), Extent::Unknown),
    ("quantize_gradient", quantize_gradient, Extent::Shapes),
    ("dot", dot, Extent::Shapes),
];

/// The result of a rule, and the ends of its range.
fn and_range(call: &Call, rule: Rule) -> Option<Vec<Fact>> {
    let result = rule(call).and_then(|facts| facts.into_iter().next()).unwrap_or_default();
    Some(vec![result, Dims::new().into(), Dims::new().into()])
}

/// Numbers of the shape of the input, and the ends of the range of each slice along an axis, of which a single slice has scalars.
fn quantize(call: &Call) -> Option<Vec<Fact>> {
    if call.int("axis")? < 0 {
        return and_range(call, elementwise::same);
    }
    let result = elementwise::same(call)?.into_iter().next()?;
    let ends = match call.of_rank(2, 1)?[..] {
        [slices @ Size::Known(count)] if count != 1 => vec![slices].into(),
        _ => Fact::default(),
    };
    Some(vec![result, ends.clone(), ends])
}

fn concat(call: &Call) -> Option<Vec<Fact>> {
    arrange::concatenated(call, 1..1 + usize::try_from(call.int("N")?).ok()?, 0)
}

/// The gradients of numbers, and those of the ends of their range, which have the shape of the lower one.
fn quantize_gradient(call: &Call) -> Option<Vec<Fact>> {
    let numbers = Fact { dims: call.merged([0, 1]), ..Fact::default() };
    let end = Fact { dims: call.dims(2), ..Fact::default() };
    Some(vec![numbers, end.clone(), end])
}

/// The product of two matrices.
fn dot(call: &Call) -> Option<Vec<Fact>> {
    let (lhs, rhs) = (call.of_rank(0, 2)?, call.of_rank(1, 2)?);
    call.common("the inner sizes", lhs[1], rhs[0])?;
    one(vec![lhs[0], rhs[1]])
}
