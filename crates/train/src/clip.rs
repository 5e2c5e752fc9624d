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
    let (Clip::Value(limit) | Clip::GlobalNorm(limit)) = clip;
    if !(limit > 0.0 && limit.is_finite()) {
        return Err(Failure::invalid(format!("gradients cannot be clipped to {limit}; expected a number above 0")));
    }
    g.settle()?;
    let of = |g: &GraphBuilder, gradient: &Gradient| {
        let values = values(gradient);
        (values, g.settled().output_type(values).dtype, g.settled().node(values.node).device.clone())
    };
    let parts: Vec<(Output, DType, String)> = gradients.iter().map(|gradient| of(g, gradient)).collect();
    g.with_scope("clip", |g| {
        let mut norm = None;
        let mut factor = None;
        if let Clip::GlobalNorm(_) = clip {
            let mut squares = Vec::with_capacity(parts.len());
            for (values, dtype, device) in &parts {
                let half = on(g, device, |g| {
                    // The squares of half floats soon overflow.
                    let is_half = matches!(dtype, DType::F16 | DType::BF16);
                    let own = if is_half { cast(g, *values, DType::F32)? } else { *values };
                    let half = unary(g, "L2Loss", own)?;
                    if *dtype == DType::F64 { cast(g, half, DType::F32) } else { Ok(half) }
                })?;
                squares.push(half);
            }
            let half = g.op("AddN").inputs(squares).build()?;
            let twice = binary(g, "Mul", half, 2f32)?;
            let whole = g.op("Sqrt").name("global_norm").input(twice).build()?;
            // 1 unless the norm is above the limit.
            let most = binary(g, "Maximum", whole, limit as f32)?;
            factor = Some(binary(g, "RealDiv", limit as f32, most)?);
            norm = Some(whole);
        }
        let mut limited = Vec::with_capacity(parts.len());
        for (gradient, (values, dtype, device)) in gradients.iter().zip(&parts) {
            let values = on(g, device, |g| match factor {
                None => {
                    let (low, high) = (scalar(*dtype, -limit)?, scalar(*dtype, limit)?);
                    let below = binary(g, "Minimum", *values, high)?;
                    binary(g, "Maximum", below, low)
                }
                Some(factor) => {
                    let factor = if *dtype == DType::F32 { factor } else { cast(g, factor, *dtype)? };
                    binary(g, "Mul", *values, factor)
                }
            })?;
            limited.push(with_values(gradient, values));
        }
        Ok((limited, norm))
    })
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
