//! Convolutions, pools and batch normalisation as operators. ONNX has channels first alone, so those with channels last get a
//! transposition on each side.

use meshtf_graph::{Node, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::transposed;

use super::{Writer, int, list, text};
use crate::unsupported;

/// The output of a node; `None` for an op of another kind.
pub fn node(w: &mut Writer, node: &Node) -> Result<Option<String>> {
    Ok(Some(match node.op.name {
        "Conv2D" => conv(w, node, false)?,
        "DepthwiseConv2dNative" => conv(w, node, true)?,
        "MaxPool" => pool(w, node, "MaxPool")?,
        "AvgPool" => pool(w, node, "AveragePool")?,
        "FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3" => norm(w, node)?,
        _ => return Ok(None),
    }))
}

/// Whether channels are last; and a list of four numbers as those of height and width.
fn format(node: &Node) -> Result<bool> {
    match node.attrs.str("data_format") {
        Err(_) | Ok("NHWC") => Ok(true),
        Ok("NCHW") => Ok(false),
        Ok(other) => Err(unsupported(format!("data_format {other}"))),
    }
}

fn sides(node: &Node, name: &str, is_last: bool) -> Result<[i64; 2]> {
    match node.attrs.ints(name) {
        Err(_) | Ok([]) => Ok([1, 1]),
        Ok(&[1, h, w, 1]) if is_last => Ok([h, w]),
        Ok(&[1, 1, h, w]) if !is_last => Ok([h, w]),
        Ok(other) => Err(unsupported(format!("{name} {other:?}"))),
    }
}

fn padding(node: &Node, is_last: bool) -> Result<super::AttributeProto> {
    Ok(match node.attrs.str("padding")? {
        "SAME" => text("auto_pad", "SAME_UPPER"),
        "VALID" => text("auto_pad", "VALID"),
        "EXPLICIT" => {
            let own = node.attrs.ints("explicit_paddings")?;
            let from = if is_last { 2 } else { 4 };
            let part =
                own.get(from..from + 4).ok_or_else(|| unsupported("explicit_paddings of fewer than 8 numbers"))?;
            list("pads", &[part[0], part[2], part[1], part[3]])
        }
        other => return Err(unsupported(format!("padding {other}"))),
    })
}

/// The padding of a convolution. Runtimes refuse auto_pad beside dilations, so such padding is written as numbers.
fn padding_of(w: &Writer, node: &Node, kernel: [usize; 2], is_last: bool) -> Result<super::AttributeProto> {
    let dilations = sides(node, "dilations", is_last)?;
    if node.attrs.str("padding")? != "SAME" || dilations == [1, 1] {
        return padding(node, is_last);
    }
    let strides = sides(node, "strides", is_last)?;
    let dims = w.graph.shapes().of(node.inputs[0]).0;
    let mut pads = [0; 4];
    for (side, taps) in kernel.into_iter().enumerate() {
        let span = (taps.max(1) as i64 - 1).saturating_mul(dilations[side]);
        let all = match strides[side] {
            1 => span,
            stride => {
                let axis = side + if is_last { 1 } else { 2 };
                let size = dims.as_ref().and_then(|dims| dims.get(axis).copied().flatten()).map(|size| size as i64);
                let size = size.filter(|_| stride > 0).ok_or_else(|| {
                    unsupported("padding SAME with dilations and strides, of an image whose size is not known")
                })?;
                ((size.max(1) - 1) / stride * stride + span + 1 - size).max(0)
            }
        };
        (pads[side], pads[side + 2]) = (all / 2, all - all / 2);
    }
    Ok(list("pads", &pads))
}

fn first(w: &mut Writer, x: &str, is_last: bool) -> String {
    if is_last { w.put("Transpose", &[x], vec![list("perm", &[0, 3, 1, 2])]) } else { x.to_owned() }
}

fn last(w: &mut Writer, x: String, is_last: bool) -> String {
    if is_last { w.put("Transpose", &[&x], vec![list("perm", &[0, 2, 3, 1])]) } else { x }
}

fn conv(w: &mut Writer, node: &Node, is_depthwise: bool) -> Result<String> {
    let is_last = format(node)?;
    let [x, filter, ..] = node.inputs[..] else { return Err(unsupported("an input is missing")) };
    let size = |w: &Writer, output: Output| w.shape(output).map(|shape| shape.dims().to_vec());
    let &[height, width, channels, outputs] =
        &size(w, filter).ok_or_else(|| unsupported("the shape of its filter must be known"))?[..]
    else {
        return Err(unsupported("its filter is not of rank 4"));
    };
    let kernel = match is_depthwise {
        false => turned(w, filter, &[3, 2, 0, 1], None)?,
        // One filter of one channel for each output.
        true => turned(w, filter, &[2, 3, 0, 1], Some([channels * outputs, 1, height, width]))?,
    };
    let dims = w.graph.shapes().of(x).0;
    let own = dims.and_then(|dims| dims.get(if is_last { 3 } else { 1 }).copied().flatten());
    let group = match (is_depthwise, own) {
        (true, _) => channels,
        (false, Some(own)) if channels > 0 && own % channels == 0 => own / channels,
        _ => 1,
    };
    let attributes = vec![
        list("strides", &sides(node, "strides", is_last)?),
        list("dilations", &sides(node, "dilations", is_last)?),
        list("kernel_shape", &[height as i64, width as i64]),
        int("group", group as i64),
        padding_of(w, node, [height, width], is_last)?,
    ];
    let x = w.name(x)?;
    let x = first(w, &x, is_last);
    let y = w.put("Conv", &[&x, &kernel], attributes);
    Ok(last(w, y, is_last))
}

/// A filter with its axes in another order and another shape: a constant at once, or by operators.
fn turned(w: &mut Writer, filter: Output, axes: &[usize; 4], shape: Option<[usize; 4]>) -> Result<String> {
    if let Some(value) = w.constant(filter) {
        let own = w.wanted_name(w.origin(filter));
        if value.rank() != axes.len() {
            return Err(unsupported("its filter is not of rank 4"));
        }
        let mut value = transposed(&value, axes)?;
        if let Some(shape) = shape {
            value = value.reshaped(shape.to_vec())?;
        }
        return w.weight_once(&own, &value);
    }
    let name = w.name(filter)?;
    let axes: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
    let name = w.put("Transpose", &[&name], vec![list("perm", &axes)]);
    match shape {
        None => Ok(name),
        Some(shape) => {
            let shape = w.ints(&shape.map(|size| size as i64))?;
            Ok(w.put("Reshape", &[&name, &shape], Vec::new()))
        }
    }
}

fn pool(w: &mut Writer, node: &Node, op: &str) -> Result<String> {
    let is_last = format(node)?;
    let attributes = vec![
        list("kernel_shape", &sides(node, "ksize", is_last)?),
        list("strides", &sides(node, "strides", is_last)?),
        padding(node, is_last)?,
    ];
    let x = w.name(node.inputs[0])?;
    let x = first(w, &x, is_last);
    let y = w.put(op, &[&x], attributes);
    Ok(last(w, y, is_last))
}

fn norm(w: &mut Writer, node: &Node) -> Result<String> {
    if node.attrs.bool("is_training").unwrap_or(true) {
        return Err(unsupported("it normalises by the batch (is_training); write the graph of inference"));
    }
    let is_last = format(node)?;
    let inputs = super::rules::names(w, &node.inputs)?;
    let [x, scale, offset, mean, variance] = &super::rules::of(&inputs)[..] else {
        return Err(unsupported("an input is missing"));
    };
    let x = first(w, x, is_last);
    let epsilon = super::real("epsilon", node.attrs.float("epsilon").unwrap_or(1e-4));
    let y = w.put("BatchNormalization", &[&x, scale, offset, mean, variance], vec![epsilon]);
    Ok(last(w, y, is_last))
}
