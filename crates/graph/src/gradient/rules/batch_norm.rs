//! The gradient of the first form of batch normalisation, which is an op; and the gradient of the gradient of the newer forms,
//! which is not an op but is composed of others.
//!
//! With g the gradient of the output, h = (x - mean) / deviation and m the mean over all but the channels, the op computes
//! dx = scale / deviation (g - m(g) - h m(g h)), dscale = sum(g h) and doffset = sum(g); u, v and w are the gradients of these.

use meshtf_tensor::DType;

use super::{Rule, Stop};
use crate::Output;
use crate::gradient::Gradient;
use crate::gradient::call::{Added, Call, Grads, all};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("fused_batch_norm_grad", second),
    ("batch_norm_with_global_normalization", |c| {
        let dy = c.dy()?;
        let inputs = [c.x(0), c.x(1), c.x(2), c.x(4), dy];
        let attrs = ["variance_epsilon", "scale_after_normalization"];
        let all = c.with_attrs("BatchNormWithGlobalNormalizationGrad", &inputs, &attrs)?;
        Ok((0..5).map(|port| Some(Gradient::Dense(all.port(port)))).collect())
    }),
];

/// The terms of the formulas, in float32 and with shapes that can be broadcast with each other.
struct Terms {
    g: Output,
    x: Output,
    scale: Output,
    u: Output,
    v: Output,
    w: Output,
    /// The axes other than channels.
    axes: Vec<i32>,
    /// The shape of a tensor with one element for each channel.
    of_channels: Vec<i32>,
}

fn second(c: &mut Call) -> Grads {
    let format = c.node.attrs.str("data_format").unwrap_or("NHWC");
    let (axes, of_channels): (&[i32], &[i32]) = match format {
        "NCHW" => (&[0, 2, 3], &[1, -1, 1, 1]),
        "NDHWC" => (&[0, 1, 2, 3], &[1, 1, 1, 1, -1]),
        "NCDHW" => (&[0, 2, 3, 4], &[1, -1, 1, 1, 1]),
        _ => (&[0, 1, 2], &[1, 1, 1, -1]),
    };
    let (axes, of_channels) = (axes.to_vec(), of_channels.to_vec());
    let (g, x, scale) = (c.x(0), c.x(1), c.x(2));
    let dtype = c.dtype(x);
    let (u, v, w) = (c.d(0)?, c.d(1)?, c.d(2)?);
    let [g, x, u] = [in_full(c, g, dtype)?, in_full(c, x, dtype)?, in_full(c, u, dtype)?];
    let mut spread = |output: Output| c.reshape(output, of_channels.clone());
    let (scale, v, w) = (spread(scale)?, spread(v)?, spread(w)?);
    let terms = Terms { g, x, scale, u, v, w, axes, of_channels };
    let [by_g, by_x, by_scale] = if c.flag("is_training") { of_batch(c, &terms)? } else { of_given(c, &terms)? };
    let by_scale = c.reshape(by_scale, [-1])?;
    all([back(c, by_g, dtype)?, back(c, by_x, dtype)?, by_scale])
}

/// The gradients if mean and variance are those of the batch.
fn of_batch(c: &mut Call, t: &Terms) -> Result<[Output; 3], Stop> {
    let mean_x = mean(c, t, t.x)?;
    let centred = c.sub(t.x, mean_x)?;
    let square = c.un("Square", centred)?;
    let variance = mean(c, t, square)?;
    let inverse = inverse_deviation(c, variance)?;
    let h = c.mul(centred, inverse)?;
    let (uh, gh, ug) = (c.mul(t.u, h)?, c.mul(t.g, h)?, c.mul(t.u, t.g)?);
    let (mean_u, mean_g) = (mean(c, t, t.u)?, mean(c, t, t.g)?);
    let (mean_uh, mean_gh, mean_ug) = (mean(c, t, uh)?, mean(c, t, gh)?, mean(c, t, ug)?);
    let factor = c.mul(t.scale, inverse)?;

    // With respect to g: scale / deviation (u - m(u) - h m(u h)) + v h + w
    let rest = c.sub(t.u, mean_u)?;
    let along_h = c.mul(h, mean_uh)?;
    let rest = c.sub(rest, along_h)?;
    let by_g = c.mul(factor, rest)?;
    let vh = c.mul(t.v, h)?;
    let by_g = c.add(by_g, vh)?;
    let by_g = c.add(by_g, t.w)?;

    // p = m(u g) - m(u) m(g) - m(u h) m(g h); with respect to scale: n p / deviation
    let means = c.mul(mean_u, mean_g)?;
    let p = c.sub(mean_ug, means)?;
    let alongs = c.mul(mean_uh, mean_gh)?;
    let p = c.sub(p, alongs)?;
    let (size, channels) = (c.un("Size", t.x)?, c.un("Size", t.scale)?);
    let count = c.bin("FloorDiv", size, channels)?;
    let count = c.cast(count, DType::F32)?;
    let by_scale = c.mul(inverse, p)?;
    let by_scale = c.mul(by_scale, count)?;

    // With respect to h: v g - scale / deviation (u m(g h) + g m(u h)); and with respect to x through h and through the
    // deviation.
    let first = c.mul(t.u, mean_gh)?;
    let second = c.mul(t.g, mean_uh)?;
    let both = c.add(first, second)?;
    let both = c.mul(factor, both)?;
    let vg = c.mul(t.v, t.g)?;
    let by_h = c.sub(vg, both)?;
    let mean_by_h = mean(c, t, by_h)?;
    let product = c.mul(by_h, h)?;
    let mean_product = mean(c, t, product)?;
    let scaled = c.mul(factor, p)?;
    let mean_product = c.add(mean_product, scaled)?;
    let by_x = c.sub(by_h, mean_by_h)?;
    let along_h = c.mul(h, mean_product)?;
    let by_x = c.sub(by_x, along_h)?;
    let by_x = c.mul(inverse, by_x)?;
    Ok([by_g, by_x, by_scale])
}

/// The gradients if mean and variance are given, and count as constants.
fn of_given(c: &mut Call, t: &Terms) -> Result<[Output; 3], Stop> {
    let (mean, variance) = (c.x(3), c.x(4));
    let mean = c.reshape(mean, t.of_channels.clone())?;
    let variance = c.reshape(variance, t.of_channels.clone())?;
    let inverse = inverse_deviation(c, variance)?;
    let centred = c.sub(t.x, mean)?;
    let h = c.mul(centred, inverse)?;
    let factor = c.mul(t.scale, inverse)?;
    let by_g = c.mul(t.u, factor)?;
    let vh = c.mul(t.v, h)?;
    let by_g = c.add(by_g, vh)?;
    let by_g = c.add(by_g, t.w)?;
    let by_x = c.mul(t.v, t.g)?;
    let by_x = c.mul(by_x, inverse)?;
    let product = c.mul(t.u, t.g)?;
    let sum = c.sum(product, t.axes.clone(), true)?;
    let by_scale = c.mul(sum, inverse)?;
    Ok([by_g, by_x, by_scale])
}

fn mean(c: &mut Call, t: &Terms, of: Output) -> Added {
    Ok(c.op("Mean").input(of).input(t.axes.clone()).attr("keep_dims", true).build()?)
}

fn inverse_deviation(c: &mut Call, variance: Output) -> Added {
    let epsilon = c.node.attrs.float("epsilon").unwrap_or(0.0);
    let sum = c.add(variance, epsilon)?;
    c.un("Rsqrt", sum)
}

fn in_full(c: &mut Call, x: Output, dtype: DType) -> Added {
    if dtype == DType::F32 { Ok(x) } else { c.cast(x, DType::F32) }
}

fn back(c: &mut Call, x: Output, dtype: DType) -> Added {
    if dtype == DType::F32 { Ok(x) } else { c.cast(x, dtype) }
}
