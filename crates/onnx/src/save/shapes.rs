//! Ops that move elements, or speak of shapes, as operators.

use meshtf_graph::{Node, NodeId, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};

use super::rules::{names, of};
use super::{Writer, int, list, text};
use crate::elem::Elem;
use crate::unsupported;

/// The outputs of a node; `None` for an op of another kind.
pub fn node(w: &mut Writer, id: NodeId, node: &Node) -> Result<Option<Vec<String>>> {
    let input = |place: usize| node.inputs.get(place).copied().ok_or_else(|| unsupported("an input is missing"));
    let made = match node.op.name {
        "Reshape" => {
            let (x, shape) = (w.name(input(0)?)?, as_sizes(w, input(1)?)?);
            // A size of 0 is one, not that of the input.
            w.put("Reshape", &[&x, &shape], vec![int("allowzero", i64::from(has_zero(w, input(1)?)))])
        }
        "Transpose" => {
            let axes = w.numbers(input(1)?)?;
            let x = w.name(input(0)?)?;
            w.put("Transpose", &[&x], vec![list("perm", &axes)])
        }
        "ExpandDims" => {
            let axes = w.numbers(input(1)?)?;
            let (x, axes) = (w.name(input(0)?)?, w.ints(&axes)?);
            w.put("Unsqueeze", &[&x, &axes], Vec::new())
        }
        "Squeeze" => {
            let axes = node.attrs.ints("squeeze_dims").map(<[i64]>::to_vec).unwrap_or_default();
            let x = w.name(input(0)?)?;
            match axes.is_empty() {
                true => w.put("Squeeze", &[&x], Vec::new()),
                false => {
                    let axes = w.ints(&axes)?;
                    w.put("Squeeze", &[&x, &axes], Vec::new())
                }
            }
        }
        "ConcatV2" => {
            let (last, parts) = node.inputs.split_last().ok_or_else(|| unsupported("an input is missing"))?;
            let axis = w.numbers(*last)?.first().copied().unwrap_or(0);
            let parts = names(w, parts)?;
            w.put("Concat", &of(&parts), vec![int("axis", axis)])
        }
        "Pack" => {
            let axis = node.attrs.int("axis").unwrap_or(0);
            let axes = w.ints(&[axis])?;
            let parts = names(w, &node.inputs)?;
            let parts: Vec<String> = parts.iter().map(|part| w.put("Unsqueeze", &[part, &axes], Vec::new())).collect();
            w.put("Concat", &of(&parts), vec![int("axis", axis)])
        }
        "Unpack" => {
            let (axis, count) = (node.attrs.int("axis").unwrap_or(0), node.outputs.len());
            let (x, axes) = (w.name(input(0)?)?, w.ints(&[axis])?);
            let sizes = w.ints(&vec![1; count])?;
            let parts = w.put_many("Split", &[&x, &sizes], vec![int("axis", axis)], count);
            let squeezed = parts.iter().map(|part| w.put("Squeeze", &[part, &axes], Vec::new()));
            return Ok(Some(squeezed.collect()));
        }
        "Split" => {
            let axis = w.numbers(input(0)?)?.first().copied().unwrap_or(0);
            let x = w.name(input(1)?)?;
            let count = node.outputs.len();
            let rank = w.rank(input(1)?)? as i64;
            let place = axis.rem_euclid(rank.max(1)) as usize;
            let size = w.graph.shapes().of(input(1)?).0.and_then(|dims| dims.get(place).copied().flatten());
            let size = size.ok_or_else(|| unsupported("the size along its axis must be known"))?;
            let sizes = w.ints(&vec![(size / count.max(1)) as i64; count])?;
            return Ok(Some(w.put_many("Split", &[&x, &sizes], vec![int("axis", axis)], count)));
        }
        "SplitV" => {
            let axis = w.numbers(input(2)?)?.first().copied().unwrap_or(0);
            let sizes = w.numbers(input(1)?)?;
            if sizes.iter().any(|&size| size < 0) {
                return Err(unsupported("its sizes must be stated, not -1"));
            }
            let (x, sizes) = (w.name(input(0)?)?, w.ints(&sizes)?);
            return Ok(Some(w.put_many("Split", &[&x, &sizes], vec![int("axis", axis)], node.outputs.len())));
        }
        "Slice" => {
            let (begin, size) = (w.numbers(input(1)?)?, w.numbers(input(2)?)?);
            let end: Vec<i64> = begin
                .iter()
                .zip(&size)
                .map(|(&begin, &size)| if size < 0 { i64::MAX } else { begin.saturating_add(size) })
                .collect();
            let axes: Vec<i64> = (0..begin.len() as i64).collect();
            let steps = vec![1; begin.len()];
            slice(w, input(0)?, [&begin, &end, &axes, &steps])?
        }
        "StridedSlice" => strided(w, node)?,
        "GatherV2" | "Gather" => {
            let axis = match node.inputs.get(2) {
                Some(&axis) => w.numbers(axis)?.first().copied().unwrap_or(0),
                None => 0,
            };
            if node.attrs.int("batch_dims").unwrap_or(0) != 0 {
                return Err(unsupported("batch_dims must be 0"));
            }
            let (x, indices) = (w.name(input(0)?)?, w.name(input(1)?)?);
            w.put("Gather", &[&x, &indices], vec![int("axis", axis)])
        }
        "ResourceGather" => {
            let (x, indices) = (w.name(input(0)?)?, w.name(input(1)?)?);
            w.put("Gather", &[&x, &indices], vec![int("axis", 0)])
        }
        "Tile" => {
            let (x, counts) = (w.name(input(0)?)?, as_sizes(w, input(1)?)?);
            w.put("Tile", &[&x, &counts], Vec::new())
        }
        "Pad" | "PadV2" | "MirrorPad" => {
            let pairs = w.numbers(input(1)?)?;
            let pads: Vec<i64> = pairs.iter().step_by(2).chain(pairs.iter().skip(1).step_by(2)).copied().collect();
            let (x, pads) = (w.name(input(0)?)?, w.ints(&pads)?);
            match (node.op.name, node.attrs.str("mode")) {
                ("MirrorPad", Ok("REFLECT")) => w.put("Pad", &[&x, &pads], vec![text("mode", "reflect")]),
                ("MirrorPad", _) => return Err(unsupported("mode SYMMETRIC")),
                ("PadV2", _) => {
                    let value = w.name(input(2)?)?;
                    w.put("Pad", &[&x, &pads, &value], Vec::new())
                }
                _ => w.put("Pad", &[&x, &pads], Vec::new()),
            }
        }
        "Shape" => {
            let x = w.name(input(0)?)?;
            let shape = w.put("Shape", &[&x], Vec::new());
            cast(w, shape, w.dtype(Output { node: id, port: 0 }))
        }
        "Fill" | "BroadcastTo" => {
            let (value, shape) = if node.op.name == "Fill" { (1, 0) } else { (0, 1) };
            let (value, shape) = (w.name(input(value)?)?, as_sizes(w, input(shape)?)?);
            w.put("Expand", &[&value, &shape], Vec::new())
        }
        "SpaceToBatchND" => space_to_batch(w, node)?,
        "BatchToSpaceND" => batch_to_space(w, node)?,
        "IdentityN" => {
            let inputs = names(w, &node.inputs)?;
            return Ok(Some(inputs.iter().map(|input| w.put("Identity", &[input], Vec::new())).collect()));
        }
        "OneHot" => {
            let axis = node.attrs.int("axis").unwrap_or(-1);
            let depth = as_sizes(w, input(1)?)?;
            let zero = w.ints(&[0])?;
            let parts = [input(3)?, input(2)?].map(|value| w.name(value));
            let [off, on] = parts;
            let values = [off?, on?].map(|value| w.put("Unsqueeze", &[&value, &zero], Vec::new()));
            let values = w.put("Concat", &of(&values), vec![int("axis", 0)]);
            // ONNX counts a negative index from the end; in TensorFlow it stands for no class.
            let indices = w.name(input(0)?)?;
            let indices = cast(w, indices, DType::I64);
            let (first, none) =
                (w.weight("number", &Tensor::scalar(0i64))?, w.weight("number", &Tensor::scalar(i64::MAX))?);
            let is_none = w.put("Less", &[&indices, &first], Vec::new());
            let indices = w.put("Where", &[&is_none, &none, &indices], Vec::new());
            w.put("OneHot", &[&indices, &depth, &values], vec![int("axis", axis)])
        }
        "TopKV2" => {
            let count = as_sizes(w, input(1)?)?;
            let one = w.ints(&[1])?;
            let count = w.put("Reshape", &[&count, &one], Vec::new());
            let x = w.name(input(0)?)?;
            let made = w.put_many("TopK", &[&x, &count], vec![int("axis", -1)], 2);
            let [values, places] = &made[..] else { return Ok(None) };
            let places = cast(w, places.clone(), w.dtype(Output { node: id, port: 1 }));
            return Ok(Some(vec![values.clone(), places]));
        }
        "ZerosLike" => {
            let x = w.name(input(0)?)?;
            let zero = Tensor::zeros(w.dtype(input(0)?), Shape::scalar())?;
            let (zero, shape) = (w.weight("number", &zero)?, w.put("Shape", &[&x], Vec::new()));
            w.put("Expand", &[&zero, &shape], Vec::new())
        }
        "Range" => {
            let parts = names(w, &node.inputs)?;
            w.put("Range", &of(&parts), Vec::new())
        }
        _ => return Ok(None),
    };
    Ok(Some(vec![made]))
}

/// The sizes of an input from an axis on, all known.
fn sizes_from(w: &Writer, x: Output, first: usize) -> Result<Vec<i64>> {
    let dims = w.graph.shapes().of(x).0.unwrap_or_default();
    let sizes: Option<Vec<i64>> = dims.iter().skip(first).map(|size| size.map(|size| size as i64)).collect();
    sizes.filter(|sizes| !sizes.is_empty()).ok_or_else(|| unsupported("its sizes apart from the first must be known"))
}

/// Blocks of pixels as further examples, by which dilated convolutions are computed: padded, cut into blocks, and moved.
fn space_to_batch(w: &mut Writer, node: &Node) -> Result<String> {
    let [x, block, paddings] = node.inputs[..] else { return Err(unsupported("an input is missing")) };
    let (block, paddings, sizes) = (w.numbers(block)?, w.numbers(paddings)?, sizes_from(w, x, 1)?);
    let count = block.len();
    if sizes.len() < count || paddings.len() != 2 * count {
        return Err(unsupported("its inputs do not fit each other"));
    }
    let rest = &sizes[count..];
    let zeros = vec![0; rest.len()];
    let side = |place: usize| (0..count).map(move |axis| 2 * axis + place);
    let begins = side(0).map(|place| paddings[place]);
    let ends = side(1).map(|place| paddings[place]);
    let pads: Vec<i64> =
        std::iter::once(0).chain(begins).chain(zeros.clone()).chain([0]).chain(ends).chain(zeros).collect();
    let padded: Vec<i64> = (0..count).map(|axis| sizes[axis] + paddings[2 * axis] + paddings[2 * axis + 1]).collect();
    let (name, pads) = (w.name(x)?, w.ints(&pads)?);
    let name = w.put("Pad", &[&name, &pads], Vec::new());
    // [N, h, b, w, b, C], then [b, b, N, h, w, C].
    let mut cut = vec![-1];
    cut.extend((0..count).flat_map(|axis| [padded[axis] / block[axis].max(1), block[axis]]));
    cut.extend(rest);
    let mut order: Vec<i64> = (0..count as i64).map(|axis| 2 * axis + 2).collect();
    order.push(0);
    order.extend((0..count as i64).map(|axis| 2 * axis + 1));
    order.extend((0..rest.len() as i64).map(|axis| 2 * count as i64 + 1 + axis));
    let mut result = vec![-1];
    result.extend((0..count).map(|axis| padded[axis] / block[axis].max(1)));
    result.extend(rest);
    moved(w, &name, [&cut, &order, &result])
}

/// The way back, without the pixels that are cropped.
fn batch_to_space(w: &mut Writer, node: &Node) -> Result<String> {
    let [x, block, crops] = node.inputs[..] else { return Err(unsupported("an input is missing")) };
    let (block, crops, sizes) = (w.numbers(block)?, w.numbers(crops)?, sizes_from(w, x, 1)?);
    let count = block.len();
    if sizes.len() < count || crops.len() != 2 * count {
        return Err(unsupported("its inputs do not fit each other"));
    }
    let rest = &sizes[count..];
    // [b, b, N, h, w, C], then [N, h, b, w, b, C].
    let mut cut = block.clone();
    cut.push(-1);
    cut.extend(&sizes);
    let mut order = vec![count as i64];
    order.extend((0..count as i64).flat_map(|axis| [count as i64 + 1 + axis, axis]));
    order.extend((0..rest.len() as i64).map(|axis| 2 * count as i64 + 1 + axis));
    let whole: Vec<i64> = (0..count).map(|axis| sizes[axis] * block[axis]).collect();
    let mut result = vec![-1];
    result.extend(&whole);
    result.extend(rest);
    let name = w.name(x)?;
    let name = moved(w, &name, [&cut, &order, &result])?;
    let begins: Vec<i64> = (0..count).map(|axis| crops[2 * axis]).collect();
    let ends: Vec<i64> = (0..count).map(|axis| whole[axis] - crops[2 * axis + 1]).collect();
    let axes: Vec<i64> = (1..=count as i64).collect();
    let mut inputs = vec![name];
    for part in [&begins, &ends, &axes] {
        inputs.push(w.ints(part)?);
    }
    Ok(w.put("Slice", &of(&inputs), Vec::new()))
}

/// A shape, an order of its axes, and the shape of the result.
fn moved(w: &mut Writer, x: &str, [cut, order, result]: [&[i64]; 3]) -> Result<String> {
    let (cut, result) = (w.ints(cut)?, w.ints(result)?);
    let name = w.put("Reshape", &[x, &cut], Vec::new());
    let name = w.put("Transpose", &[&name], vec![list("perm", order)]);
    Ok(w.put("Reshape", &[&name, &result], Vec::new()))
}

fn has_zero(w: &Writer, shape: Output) -> bool {
    w.numbers(shape).is_ok_and(|sizes| sizes.contains(&0))
}

/// Sizes as int64, which operators take.
fn as_sizes(w: &mut Writer, output: Output) -> Result<String> {
    if let Ok(sizes) = w.numbers(output) {
        return w.ints(&sizes);
    }
    let name = w.name(output)?;
    Ok(match w.dtype(output) {
        DType::I64 => name,
        _ => cast(w, name, DType::I64),
    })
}

fn cast(w: &mut Writer, name: String, to: DType) -> String {
    w.put("Cast", &[&name], vec![int("to", Elem::of(to).0.into())])
}

/// Adds a Slice: begins, ends, axes, steps.
fn slice(w: &mut Writer, x: Output, parts: [&[i64]; 4]) -> Result<String> {
    let mut inputs = vec![w.name(x)?];
    for part in parts {
        inputs.push(w.ints(part)?);
    }
    Ok(w.put("Slice", &of(&inputs), Vec::new()))
}

/// A slice with masks, as Python's `x[1:, ::2, 0, tf.newaxis]`.
fn strided(w: &mut Writer, node: &Node) -> Result<String> {
    let [x, begin, end, strides, ..] = node.inputs[..] else { return Err(unsupported("an input is missing")) };
    let (begin, end, strides) = (w.numbers(begin)?, w.numbers(end)?, w.numbers(strides)?);
    let mask = |name: &str, place: usize| node.attrs.int(name).unwrap_or(0) >> place & 1 == 1;
    let rank = w.rank(x)?;
    let count = begin.len();
    let specified = (0..count).filter(|&place| !mask("new_axis_mask", place) && !mask("ellipsis_mask", place)).count();
    let (mut begins, mut ends, mut axes, mut steps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // Axes of the input that are dropped, and axes of the result that are new.
    let (mut dropped, mut new) = (Vec::new(), Vec::new());
    let (mut axis, mut place_of_result) = (0i64, 0i64);
    for place in 0..count {
        if mask("ellipsis_mask", place) {
            let skipped = rank.saturating_sub(specified) as i64;
            (axis, place_of_result) = (axis + skipped, place_of_result + skipped);
            continue;
        }
        if mask("new_axis_mask", place) {
            new.push(place_of_result);
            place_of_result += 1;
            continue;
        }
        let step = strides[place];
        if mask("shrink_axis_mask", place) {
            begins.push(begin[place]);
            ends.push(if begin[place] == -1 { i64::MAX } else { begin[place] + 1 });
            steps.push(1);
            dropped.push(axis);
        } else {
            let is_back = step < 0;
            let first = if is_back { i64::MAX } else { 0 };
            let last = if is_back { i64::MIN + 1 } else { i64::MAX };
            begins.push(if mask("begin_mask", place) { first } else { begin[place] });
            ends.push(if mask("end_mask", place) { last } else { end[place] });
            steps.push(step);
            place_of_result += 1;
        }
        axes.push(axis);
        axis += 1;
    }
    let mut name = slice(w, x, [&begins, &ends, &axes, &steps])?;
    if !dropped.is_empty() {
        let axes = w.ints(&dropped)?;
        name = w.put("Squeeze", &[&name, &axes], Vec::new());
    }
    if !new.is_empty() {
        let axes = w.ints(&new)?;
        name = w.put("Unsqueeze", &[&name, &axes], Vec::new());
    }
    Ok(name)
}
