//! Gradient clipping: gradients limited before they are applied.

use meshtf_graph::gradient::{Gradient, Rows};
use meshtf_graph::variable::ops::{binary, cast, on, scalar, unary};
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

/// The limit of gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Each element to ±this.
    Value(f64),
    /// All gradients together: scaled by the same factor so that the root of the sum of all squares is at most this.
    GlobalNorm(f64),
}

/// Limits gradients. Returns them, and their global norm before that, a scalar of float32, if it was needed. As in
/// TensorFlow, the rows of a sparse gradient count as they are listed: one that is listed twice counts twice.
///
/// # Errors
/// InvalidArgument for a limit that is not above 0.
pub fn clipped(g: &mut GraphBuilder, gradients: &[Gradient], clip: Clip) -> Result<(Vec<Gradient>, Option<Output>)> {
    check(clip)?;
    g.with_scope("clip", |g| match clip {
        Clip::Value(limit) => Ok((within(g, gradients, limit)?, None)),
        Clip::GlobalNorm(limit) => {
            let squares = half_squares(g, gradients)?;
            let (norm, factor) = factor(g, &squares, limit)?;
            Ok((scaled(g, gradients, factor)?, Some(norm)))
        }
    })
}

/// # Errors
/// InvalidArgument for a limit that is not above 0.
pub(super) fn check(clip: Clip) -> Result<()> {
    let (Clip::Value(limit) | Clip::GlobalNorm(limit)) = clip;
    match limit > 0.0 && limit.is_finite() {
        true => Ok(()),
        false => Err(Failure::invalid(format!("gradients cannot be clipped to {limit}; expected a number above 0"))),
    }
}

/// Each element limited to ±`limit`.
pub(super) fn within(g: &mut GraphBuilder, gradients: &[Gradient], limit: f64) -> Result<Vec<Gradient>> {
    changed(g, gradients, |g, values, dtype| {
        let (low, high) = (scalar(dtype, -limit)?, scalar(dtype, limit)?);
        let below = binary(g, "Minimum", values, high)?;
        binary(g, "Maximum", below, low)
    })
}

/// Half of the sum of the squares of each gradient, a float32 on its device.
pub(super) fn half_squares(g: &mut GraphBuilder, gradients: &[Gradient]) -> Result<Vec<Output>> {
    g.settle()?;
    let mut halves = Vec::with_capacity(gradients.len());
    for values in gradients.iter().map(values) {
        let (dtype, device) = (g.settled().output_type(values).dtype, g.device_of(values));
        halves.push(on(g, &device, |g| {
            // The squares of half floats soon overflow.
            let is_half = matches!(dtype, DType::F16 | DType::BF16);
            let own = if is_half { cast(g, values, DType::F32)? } else { values };
            let half = unary(g, "L2Loss", own)?;
            if dtype == DType::F64 { cast(g, half, DType::F32) } else { Ok(half) }
        })?);
    }
    Ok(halves)
}

/// The global norm, given half of each gradient's sum of squares, and the factor that limits it.
pub(super) fn factor(g: &mut GraphBuilder, halves: &[Output], limit: f64) -> Result<(Output, Output)> {
    let half = g.op("AddN").inputs(halves.iter().copied()).build()?;
    let twice = binary(g, "Mul", half, 2f32)?;
    let norm = g.op("Sqrt").name("global_norm").input(twice).build()?;
    // 1 unless the norm is above the limit.
    let most = binary(g, "Maximum", norm, limit as f32)?;
    Ok((norm, binary(g, "RealDiv", limit as f32, most)?))
}

/// Gradients times a float32.
pub(super) fn scaled(g: &mut GraphBuilder, gradients: &[Gradient], factor: Output) -> Result<Vec<Gradient>> {
    changed(g, gradients, |g, values, dtype| {
        let factor = if dtype == DType::F32 { factor } else { cast(g, factor, dtype)? };
        binary(g, "Mul", values, factor)
    })
}

/// Gradients whose elements are those of `change`, which is given the elements and their dtype.
fn changed(
    g: &mut GraphBuilder,
    gradients: &[Gradient],
    mut change: impl FnMut(&mut GraphBuilder, Output, DType) -> Result<Output>,
) -> Result<Vec<Gradient>> {
    g.settle()?;
    let mut all = Vec::with_capacity(gradients.len());
    for gradient in gradients {
        let values = values(gradient);
        let (dtype, device) = (g.settled().output_type(values).dtype, g.device_of(values));
        let values = on(g, &device, |g| change(g, values, dtype))?;
        all.push(with_values(gradient, values));
    }
    Ok(all)
}

/// The elements of a gradient.
pub(super) fn values(gradient: &Gradient) -> Output {
    match gradient {
        Gradient::Dense(values) | Gradient::Sparse(Rows { values, .. }) => *values,
    }
}

/// The same gradient with other elements.
pub(super) fn with_values(gradient: &Gradient, values: Output) -> Gradient {
    match gradient {
        Gradient::Dense(_) => Gradient::Dense(values),
        Gradient::Sparse(rows) => Gradient::Sparse(Rows { values, ..*rows }),
    }
}
