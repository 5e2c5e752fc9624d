//! Normalisations: by the statistics of a batch, of an instance, of a group, of a layer.

use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::{Operator, microsoft, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    onnx("BatchNormalization", 1, batch),
    onnx("GroupNormalization", 18, group),
    onnx("InstanceNormalization", 1, instance),
    onnx("LRN", 1, local_response),
    onnx("LayerNormalization", 1, layer),
    onnx("LpNormalization", 1, by_norm),
    onnx("MeanVarianceNormalization", 9, mean_variance),
    onnx("RMSNormalization", 1, root_mean_square),
    onnx("SimplifiedLayerNormalization", 1, root_mean_square),
    microsoft("LayerNormalization", layer),
    microsoft("SimplifiedLayerNormalization", root_mean_square),
    microsoft("SkipLayerNormalization", skip_layer),
    microsoft("SkipSimplifiedLayerNormalization", skip_root_mean_square),
    microsoft("EmbedLayerNormalization", embed_layer),
];

/// A vector of the channels, with axes of size 1 for the others.
fn by_channel(cx: &mut Cx, vector: Output, rank: usize) -> Result<Output> {
    let axes: Vec<usize> = (1..rank.saturating_sub(1)).collect();
    if rank < 2 { Ok(vector) } else { cx.unsqueeze(vector, &axes) }
}

/// `(x - mean) / sqrt(variance + epsilon)`, with the reciprocal of the root.
fn normalised(cx: &mut Cx, x: Output, mean: Output, variance: Output, epsilon: f64) -> Result<(Output, Output)> {
    let variance = op!(cx.em, "AddV2", variance, epsilon)?;
    let root = op!(cx.em, "Rsqrt", variance)?;
    let centred = op!(cx.em, "Sub", x, mean)?;
    Ok((op!(cx.em, "Mul", centred, root)?, root))
}

/// Mean and variance over some axes, which stay with size 1.
fn moments(cx: &mut Cx, x: Output, axes: &[usize]) -> Result<(Output, Output)> {
    let mean = cx.reduce("Mean", x, axes, true)?;
    let square = op!(cx.em, "SquaredDifference", x, mean)?;
    Ok((mean, cx.reduce("Mean", square, axes, true)?))
}

/// The numbers of a constant of float32; of anything else the value in this dtype.
fn batch(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let params = [n.input(1)?, n.input(2)?, n.input(3)?, n.input(4)?];
    let epsilon = n.float("epsilon", 1e-5);
    let (rank, dtype) = (cx.em.rank(x)?, cx.em.dtype(x));
    let trains =
        if n.version < 7 { n.int("is_test", 0) == 0 && n.has_output(1) } else { n.flag("training_mode", false) };
    if !trains {
        let is_plain = |&param: &Output| cx.em.dtype(param) == DType::F32;
        if rank == 4 && dtype == DType::F32 && params.iter().all(is_plain) {
            let [scale, offset, mean, variance] = params;
            let y = op!(cx.em, "FusedBatchNormV3", x, scale, offset, mean, variance;
                "epsilon" => epsilon, "data_format" => "NCHW", "is_training" => false)?;
            return one(y);
        }
        let wide = cx.em.dtype(params[2]);
        let own = cx.cast(x, wide)?;
        let mut all = Vec::new();
        for param in params {
            let param = cx.cast(param, wide)?;
            all.push(by_channel(cx, param, rank)?);
        }
        let (y, _) = normalised(cx, own, all[2], all[3], epsilon.into())?;
        let y = op!(cx.em, "Mul", y, all[0])?;
        let y = op!(cx.em, "AddV2", y, all[1])?;
        return one(cx.cast(y, dtype)?);
    }
    let (own, dtype) = cx.widened(x)?;
    let axes: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
    let (mean, variance) = moments(cx, own, &axes)?;
    let (y, _) = normalised(cx, own, mean, variance, epsilon.into())?;
    let wide = cx.em.dtype(own);
    let mut all = Vec::new();
    for param in params {
        all.push(cx.cast(param, wide)?);
    }
    let (scale, offset) = (by_channel(cx, all[0], rank)?, by_channel(cx, all[1], rank)?);
    let y = op!(cx.em, "Mul", y, scale)?;
    let y = op!(cx.em, "AddV2", y, offset)?;
    let mut outputs = vec![Value::Tensor(cx.cast(y, dtype)?)];
    let momentum = f64::from(n.float("momentum", 0.9));
    for (old, new, param) in [(all[2], mean, params[2]), (all[3], variance, params[3])] {
        let new = cx.squeeze(new, &axes)?;
        let old = op!(cx.em, "Mul", old, momentum)?;
        let new = op!(cx.em, "Mul", new, 1.0 - momentum)?;
        let mixed = op!(cx.em, "AddV2", old, new)?;
        outputs.push(cx.cast(mixed, cx.em.dtype(param))?.into());
    }
    Ok(outputs)
}

fn instance(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, scale, offset) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (own, dtype) = cx.widened(x)?;
    let rank = cx.em.rank(x)?;
    let (mean, variance) = moments(cx, own, &(2..rank).collect::<Vec<_>>())?;
    let (y, _) = normalised(cx, own, mean, variance, n.float("epsilon", 1e-5).into())?;
    let wide = cx.em.dtype(own);
    let (scale, offset) = (cx.cast(scale, wide)?, cx.cast(offset, wide)?);
    let (scale, offset) = (by_channel(cx, scale, rank)?, by_channel(cx, offset, rank)?);
    let y = op!(cx.em, "Mul", y, scale)?;
    let y = op!(cx.em, "AddV2", y, offset)?;
    one(cx.cast(y, dtype)?)
}

/// Before opset 21 the scale and the offset are those of the groups, since then those of the channels.
fn group(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, scale, offset) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let groups = n.int("num_groups", 0);
    if groups < 1 {
        return Err(Failure::invalid(format!("num_groups is {groups}")));
    }
    let (own, dtype) = cx.widened(x)?;
    let sizes = cx.sizes(own)?;
    let rank = sizes.len();
    let per = cx.compute("FloorDiv", sizes[1], Size::Known(groups))?;
    let rest = cx.product(&sizes[2..])?;
    let inner = cx.compute("Mul", per, rest)?;
    let grouped = cx.reshape(own, &[sizes[0], Size::Known(groups), inner])?;
    let (mean, variance) = moments(cx, grouped, &[2])?;
    let (y, _) = normalised(cx, grouped, mean, variance, n.float("epsilon", 1e-5).into())?;
    let wide = cx.em.dtype(own);
    let (scale, offset) = (cx.cast(scale, wide)?, cx.cast(offset, wide)?);
    if n.version < 21 {
        let (scale, offset) = (by_channel(cx, scale, 3)?, by_channel(cx, offset, 3)?);
        let y = op!(cx.em, "Mul", y, scale)?;
        let y = op!(cx.em, "AddV2", y, offset)?;
        let y = cx.reshape(y, &sizes)?;
        return one(cx.cast(y, dtype)?);
    }
    let y = cx.reshape(y, &sizes)?;
    let (scale, offset) = (by_channel(cx, scale, rank)?, by_channel(cx, offset, rank)?);
    let y = op!(cx.em, "Mul", y, scale)?;
    let y = op!(cx.em, "AddV2", y, offset)?;
    one(cx.cast(y, dtype)?)
}

/// Normalised over the last axes, with mean and the reciprocal of the deviation.
fn layer_of(cx: &mut Cx, x: Output, axis: usize, epsilon: f64) -> Result<(Output, Output, Output)> {
    let rank = cx.em.rank(x)?;
    let (mean, variance) = moments(cx, x, &(axis..rank).collect::<Vec<_>>())?;
    let (y, root) = normalised(cx, x, mean, variance, epsilon)?;
    Ok((y, mean, root))
}

fn layer(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, scale, offset) = (n.input(0)?, n.input(1)?, n.maybe(2)?);
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", -1), rank)?;
    let (own, dtype) = if n.int("stash_type", 1) == 1 { cx.widened(x)? } else { (x, cx.em.dtype(x)) };
    let (y, mean, root) = layer_of(cx, own, axis, n.float("epsilon", 1e-5).into())?;
    let y = cx.cast(y, dtype)?;
    let mut y = op!(cx.em, "Mul", y, scale)?;
    if let Some(offset) = offset {
        y = op!(cx.em, "AddV2", y, offset)?;
    }
    Ok(vec![y.into(), mean.into(), root.into()])
}

/// `x / sqrt(mean(x²) + epsilon)` over the last axes, with the reciprocal of the root.
fn by_mean_square(cx: &mut Cx, x: Output, axis: usize, epsilon: f64) -> Result<(Output, Output)> {
    let rank = cx.em.rank(x)?;
    let square = op!(cx.em, "Square", x)?;
    let mean = cx.reduce("Mean", square, &(axis..rank).collect::<Vec<_>>(), true)?;
    let mean = op!(cx.em, "AddV2", mean, epsilon)?;
    let root = op!(cx.em, "Rsqrt", mean)?;
    Ok((op!(cx.em, "Mul", x, root)?, root))
}

fn root_mean_square(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, scale) = (n.input(0)?, n.input(1)?);
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", -1), rank)?;
    let (own, _) = if n.int("stash_type", 1) == 1 { cx.widened(x)? } else { (x, cx.em.dtype(x)) };
    let (y, root) = by_mean_square(cx, own, axis, n.float("epsilon", 1e-5).into())?;
    let y = cx.cast(y, cx.em.dtype(scale))?;
    Ok(vec![op!(cx.em, "Mul", y, scale)?.into(), root.into()])
}

/// The input, the skipped one and a bias, added.
fn skipped(cx: &mut Cx, n: &Node, bias: usize) -> Result<Output> {
    let (x, skip) = (n.input(0)?, n.input(1)?);
    let sum = op!(cx.em, "AddV2", x, skip)?;
    match n.maybe(bias)? {
        Some(bias) => op!(cx.em, "AddV2", sum, bias),
        None => Ok(sum),
    }
}

fn skip_layer(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let sum = skipped(cx, n, 4)?;
    let (scale, offset) = (n.input(2)?, n.maybe(3)?);
    let (own, dtype) = cx.widened(sum)?;
    let last = cx.em.rank(sum)? - 1;
    let (y, mean, root) = layer_of(cx, own, last, n.float("epsilon", 1e-12).into())?;
    let y = cx.cast(y, dtype)?;
    let mut y = op!(cx.em, "Mul", y, scale)?;
    if let Some(offset) = offset {
        y = op!(cx.em, "AddV2", y, offset)?;
    }
    Ok(vec![y.into(), mean.into(), root.into(), sum.into()])
}

fn skip_root_mean_square(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let sum = skipped(cx, n, 3)?;
    let scale = n.input(2)?;
    let (own, dtype) = cx.widened(sum)?;
    let last = cx.em.rank(sum)? - 1;
    let (y, root) = by_mean_square(cx, own, last, n.float("epsilon", 1e-12).into())?;
    let y = cx.cast(y, dtype)?;
    let y = op!(cx.em, "Mul", y, scale)?;
    Ok(vec![y.into(), root.into(), root.into(), sum.into()])
}

/// Words, places and segments, embedded, added and normalised.
fn embed_layer(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (words, segments) = (n.input(0)?, n.maybe(1)?);
    let (word_table, place_table, segment_table) = (n.input(2)?, n.input(3)?, n.maybe(4)?);
    let (scale, offset) = (n.input(5)?, n.input(6)?);
    let mut sum = op!(cx.em, "GatherV2", word_table, words, 0i64)?;
    let places = match n.maybe(8)? {
        Some(places) => places,
        None => {
            let length = cx.size(words, 1)?;
            cx.range(length)?
        }
    };
    let place = op!(cx.em, "GatherV2", place_table, places, 0i64)?;
    sum = op!(cx.em, "AddV2", sum, place)?;
    if let (Some(segments), Some(table)) = (segments, segment_table) {
        let segment = op!(cx.em, "GatherV2", table, segments, 0i64)?;
        sum = op!(cx.em, "AddV2", sum, segment)?;
    }
    let (y, _, _) = layer_of(cx, sum, 2, n.float("epsilon", 1e-12).into())?;
    let y = op!(cx.em, "Mul", y, scale)?;
    let y = op!(cx.em, "AddV2", y, offset)?;
    let mask = match n.maybe(7)? {
        Some(mask) => {
            let mask = cx.cast(mask, DType::I32)?;
            cx.reduce("Sum", mask, &[1], false)?
        }
        None => {
            let batch = cx.size(words, 0)?;
            let shape = cx.packed(&[batch])?;
            cx.fill(shape, 0.0, DType::I32)?
        }
    };
    Ok(vec![y.into(), mask.into(), sum.into()])
}

fn by_norm(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", -1), rank)?;
    let norm = match n.int("p", 2) {
        1 => {
            let abs = op!(cx.em, "Abs", x)?;
            cx.reduce("Sum", abs, &[axis], true)?
        }
        _ => {
            let square = op!(cx.em, "Square", x)?;
            let sum = cx.reduce("Sum", square, &[axis], true)?;
            op!(cx.em, "Sqrt", sum)?
        }
    };
    // Of zeros the result is zero.
    one(op!(cx.em, "DivNoNan", x, norm)?)
}

fn mean_variance(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let axes = cx.axes(n.ints("axes").unwrap_or(&[0, 2, 3]), rank)?;
    let (mean, variance) = moments(cx, x, &axes)?;
    let centred = op!(cx.em, "Sub", x, mean)?;
    let deviation = op!(cx.em, "Sqrt", variance)?;
    let deviation = op!(cx.em, "AddV2", deviation, 1e-9)?;
    one(op!(cx.em, "RealDiv", centred, deviation)?)
}

/// Divided by a power of the sum of squares over neighbouring channels.
fn local_response(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let size = n.int("size", 1).clamp(1, 1 << 20);
    let (alpha, beta, bias) = (n.float("alpha", 1e-4), n.float("beta", 0.75), n.float("bias", 1.0));
    let rank = cx.em.rank(x)?;
    let square = op!(cx.em, "Square", x)?;
    let (before, after) = ((size - 1) / 2, size - 1 - (size - 1) / 2);
    let mut sides = vec![(0, 0); rank];
    sides[1] = (before, after);
    let padded = cx.pad(square, &sides, None)?;
    // The sums of `size` channels: differences of sums from the first on would lose digits.
    let channels = cx.size(x, 1)?;
    let channels = cx.range(channels)?;
    let channels = cx.unsqueeze(channels, &[1])?;
    let offsets = cx.ints(&(0..size).collect::<Vec<_>>())?;
    let places = op!(cx.em, "AddV2", channels, offsets)?;
    let windows = op!(cx.em, "GatherV2", padded, places, 1i64)?;
    let sum = cx.reduce("Sum", windows, &[2], false)?;
    let y = op!(cx.em, "Mul", sum, f64::from(alpha) / size as f64)?;
    let y = op!(cx.em, "AddV2", y, f64::from(bias))?;
    let y = op!(cx.em, "Pow", y, f64::from(beta))?;
    one(op!(cx.em, "RealDiv", x, y)?)
}
