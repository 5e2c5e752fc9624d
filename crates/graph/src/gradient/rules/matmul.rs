//! Gradients of matrix products.

use super::Rule;
use crate::Output;
use crate::gradient::call::{Added, Call, Grads, all};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("matmul", |c| {
        let [by_x, by_y] = factors(c, "MatMul", ["transpose_a", "transpose_b"])?;
        all([by_x, by_y])
    }),
    ("batch_matmul", |c| {
        let [by_x, by_y] = factors(c, "BatchMatMul", ["adj_x", "adj_y"])?;
        all([by_x, by_y])
    }),
    ("batch_matmul_v2", |c| {
        let (x, y) = (c.x(0), c.x(1));
        let product = c.node.outputs[0].dtype;
        if [x, y].iter().any(|&factor| c.dtype(factor) != product) {
            return Err(super::Stop::Unsupported("has a gradient only where all dtypes are equal".to_owned()));
        }
        let [by_x, by_y] = factors(c, "BatchMatMulV2", ["adj_x", "adj_y"])?;
        unbroadcast(c, [x, y], [by_x, by_y])
    }),
    // The product is float32, whatever the dtypes of the factors.
    ("sparse_matmul", |c| {
        let [by_x, by_y] = factors(c, "SparseMatMul", ["transpose_a", "transpose_b"])?;
        let (x, y) = (c.dtype(c.x(0)), c.dtype(c.x(1)));
        all([c.cast(by_x, x)?, c.cast(by_y, y)?])
    }),
];

/// The gradients of `op(x) op(y)`, where each op may transpose.
fn factors(c: &mut Call, op: &str, flags: [&str; 2]) -> Result<[Output; 2], super::Stop> {
    let (mut x, mut y, dz) = (c.x(0), c.x(1), c.dy()?);
    // The batch ops use the adjoint, which also conjugates.
    if op == "MatMul" {
        (x, y) = (c.conj(x)?, c.conj(y)?);
    }
    let (x_flips, y_flips) = (c.flag(flags[0]), c.flag(flags[1]));
    let mut product = |a: Output, flips_a: bool, b: Output, flips_b: bool| -> Added {
        Ok(c.op(op).input(a).input(b).attr(flags[0], flips_a).attr(flags[1], flips_b).build()?)
    };
    let by_x = match x_flips {
        false => product(dz, false, y, !y_flips)?,
        true => product(y, y_flips, dz, true)?,
    };
    let by_y = match y_flips {
        false => product(x, !x_flips, dz, false)?,
        true => product(dz, true, x, x_flips)?,
    };
    Ok([by_x, by_y])
}

/// The gradients of two batches of matrices whose leading axes (all but the last two) were broadcast.
pub(super) fn unbroadcast(c: &mut Call, of: [Output; 2], gradients: [Output; 2]) -> Grads {
    let batch = |c: &Call, i: usize| {
        let sizes = c.sizes(of[i])?;
        let batch = sizes.get(..sizes.len().checked_sub(2)?)?;
        batch.iter().copied().collect::<Option<Vec<usize>>>()
    };
    if batch(c, 0).is_some_and(|first| batch(c, 1) == Some(first)) {
        return all(gradients);
    }
    let shapes = [c.shape(of[0])?, c.shape(of[1])?];
    let batches = [c.part(shapes[0], 0, Some(-2))?, c.part(shapes[1], 0, Some(-2))?];
    let axes = c.bin("BroadcastGradientArgs", batches[0], batches[1])?;
    let mut reduced = gradients;
    for (i, gradient) in reduced.iter_mut().enumerate() {
        let sum = c.sum(*gradient, axes.port(i as u32), false)?;
        *gradient = c.reshape(sum, shapes[i])?;
    }
    all(reduced)
}
