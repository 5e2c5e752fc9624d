//! What each op makes of the shapes that it takes.

use super::{Dims, Element, Inputs, Size};
use crate::graph::Node;
use crate::tensor::Shape;

/// Most elements of a constant that is read as sizes or axes.
const MAX_VALUES: usize = 64;

/// The shapes of a node's outputs; `None` where nothing is known of any.
pub(super) fn outputs(node: &Node, inputs: &Inputs) -> Option<Vec<Option<Dims>>> {
    let one = |dims: Dims| Some(vec![Some(dims)]);
    match node.op.name {
        "Const" => one(known(node.attrs.tensor_type("value").ok()?.1.dims())),
        // A handle has its variable's shape here, for the ops that read it.
        "VariableV2" | "VarHandleOp" => one(inputs.known.stated(node)?),

        "Identity"
        | "StopGradient"
        | "CheckNumerics"
        | "PlaceholderWithDefault"
        | "ReadVariableOp"
        | "Cast"
        | "ZerosLike"
        | "Enter"
        | "Exit"
        | "NextIteration"
        | "LoopCond"
        | "BiasAdd"
        | "Cumsum"
        | "Cumprod"
        | "ReverseV2"
        | "Roll"
        | "RandomShuffle"
        | "AsString"
        | "StringUpper"
        | "Assign"
        | "AssignAdd"
        | "AssignSub"
        | "ScatterAdd"
        | "ScatterSub"
        | "ScatterUpdate"
        | "TensorScatterAdd"
        | "TensorScatterUpdate"
        | "MatrixBandPart"
        | "MatrixInverse"
        | "Cholesky"
        | "LRN" => one(inputs.dims(0)?),
        op if is_of_one(op) => one(inputs.dims(0)?),
        // Not every kernel of these refuses two shapes.
        "EluGrad" | "LeakyReluGrad" | "ReluGrad" | "RsqrtGrad" | "SigmoidGrad" | "SqrtGrad" | "TanhGrad" => {
            one(inputs.dims(0).filter(|dims| inputs.dims(1).as_ref() == Some(dims))?)
        }
        "AddN" => one(inputs.any(0..inputs.from.len())?),
        op if op.starts_with("Apply") => one(inputs.dims(0)?),

        // With this attribute off, shapes that do not fit are an answer: one false.
        "Equal" | "NotEqual" if !node.attrs.bool("incompatible_shape_error").unwrap_or(true) => None,
        op if is_of_two(op) => one(broadcast(inputs, &inputs.dims(0)?, &inputs.dims(1)?)?),
        "Select" => one(inputs.any([1, 2])?),
        "SelectV2" => {
            let branches = broadcast(inputs, &inputs.dims(1)?, &inputs.dims(2)?)?;
            one(broadcast(inputs, &inputs.dims(0)?, &branches)?)
        }

        "MatMul" => one(matmul(node, inputs)?),
        "L2Loss" => one(Vec::new()),
        "SparseSoftmaxCrossEntropyWithLogits" => {
            let logits = inputs.dims(0)?;
            Some(vec![Some(vec![*logits.first()?]), Some(logits)])
        }
        "SoftmaxCrossEntropyWithLogits" => {
            let both = broadcast(inputs, &inputs.dims(0)?, &inputs.dims(1)?)?;
            Some(vec![Some(vec![*both.first()?]), Some(both)])
        }
        "BiasAddGrad" if node.attrs.str("data_format").ok()? == "NHWC" => one(vec![*inputs.dims(0)?.last()?]),
        "Sum" | "Mean" | "Prod" | "Max" | "Min" | "All" | "Any" => one(reduced(node, inputs)?),
        "ArgMax" | "ArgMin" => {
            let mut dims = inputs.dims(0)?;
            dims.remove(axis(inputs.value(1)?, dims.len())?);
            one(dims)
        }

        "Shape" => one(known(&[inputs.dims(0)?.len()])),
        "ShapeN" => Some((0..inputs.from.len()).map(|input| Some(known(&[inputs.dims(input)?.len()]))).collect()),
        "Size" => one(Vec::new()),
        "Fill"
        | "RandomUniform"
        | "RandomStandardNormal"
        | "TruncatedNormal"
        | "RandomUniformInt"
        | "StatelessRandomNormalV2"
        | "StatelessRandomUniformV2" => one(inputs.sizes(0)?),
        "BroadcastTo" => one(inputs.sizes(1)?),
        "Reshape" => one(reshaped(inputs)?),
        "Range" => one(range(inputs)?),
        "Slice" => one(sliced(inputs)?),
        "StridedSlice" => one(strided(node, inputs)?),
        "Tile" => {
            let (dims, times) = (inputs.dims(0)?, inputs.counts(1)?);
            let tiled = |(size, times): (&Size, usize)| match times {
                1 => *size,
                times => inputs.size(size.known().and_then(|size| size.checked_mul(times))),
            };
            one(dims.iter().zip(times).map(tiled).collect())
        }
        "Pad" | "PadV2" | "MirrorPad" => {
            let (dims, pads) = (inputs.dims(0)?, inputs.counts(1)?);
            let (before_after, _) = pads.as_chunks::<2>();
            let padded = |(size, pads): (&Size, &[usize; 2])| match pads {
                [0, 0] => *size,
                [before, after] => {
                    inputs.size(size.known().and_then(|size| size.checked_add(*before)?.checked_add(*after)))
                }
            };
            one(dims.iter().zip(before_after).map(padded).collect())
        }
        "Transpose" => {
            let dims = inputs.dims(0)?;
            one(inputs.counts(1)?.iter().map(|&from| dims.get(from).copied()).collect::<Option<_>>()?)
        }
        "ExpandDims" => {
            let mut dims = inputs.dims(0)?;
            dims.insert(axis(inputs.value(1)?, dims.len() + 1)?, Size::Known(1));
            one(dims)
        }
        "Squeeze" => one(squeezed(node, inputs)?),
        "ConcatV2" => one(concatenated(inputs)?),
        "Pack" => {
            let mut dims = inputs.any(0..inputs.from.len())?;
            dims.insert(axis(node.attrs.int("axis").ok()?, dims.len() + 1)?, Size::Known(inputs.from.len()));
            one(dims)
        }
        "Unpack" => {
            let mut dims = inputs.dims(0)?;
            dims.remove(axis(node.attrs.int("axis").ok()?, dims.len())?);
            Some(vec![Some(dims); node.outputs.len()])
        }
        "Split" => {
            let mut dims = inputs.dims(1)?;
            let along = axis(inputs.value(0)?, dims.len())?;
            dims[along] = inputs.size(dims[along].known().map(|size| size / node.outputs.len().max(1)));
            Some(vec![Some(dims); node.outputs.len()])
        }
        "GatherV2" if node.attrs.int("batch_dims").ok()? == 0 => {
            let (params, indices) = (inputs.dims(0)?, inputs.dims(1)?);
            let along = axis(inputs.value(2)?, params.len())?;
            one(params[..along].iter().chain(&indices).chain(&params[along + 1..]).copied().collect())
        }
        "OneHot" if node.attrs.int("axis").ok()? == -1 => {
            let mut dims = inputs.dims(0)?;
            let depth = inputs.sizes(1).and_then(|depth| depth.first().copied());
            dims.push(depth.unwrap_or_else(|| inputs.size(None)));
            one(dims)
        }
        "Switch" => Some(vec![inputs.dims(0), inputs.dims(0)]),
        "Merge" => {
            let first = inputs.dims(0);
            let all_same = (1..inputs.from.len()).all(|input| inputs.dims(input) == first);
            Some(vec![first.filter(|_| all_same), Some(Vec::new())])
        }
        _ => None,
    }
}

/// The elements of a node's outputs, where they are small integer tensors, from the first on.
pub(super) fn elements(node: &Node, inputs: &Inputs) -> Vec<Vec<Element>> {
    let of = |dims: Dims| {
        dims.into_iter().map(|size| match size {
            Size::Known(size) => Some(Element::Known(i64::try_from(size).ok()?)),
            Size::Unknown(number) => Some(Element::Size(number)),
        })
    };
    let one = match node.op.name {
        "Const" => {
            let value = node.attrs.tensor("value").ok().filter(|value| value.len() <= MAX_VALUES);
            let values = value.and_then(|value| value.to_i64s().ok());
            values.map(|values| values.into_iter().map(Element::Known).collect())
        }
        "Shape" => inputs.dims(0).and_then(|dims| of(dims).collect()),
        "ShapeN" => {
            let all = (0..inputs.from.len()).map_while(|input| of(inputs.dims(input)?).collect());
            return all.collect();
        }
        "Size" => {
            let shape = || inputs.dims(0)?.iter().copied().map(Size::known).collect::<Option<Shape>>();
            shape().and_then(|shape| Some(vec![Element::Known(i64::try_from(shape.elements()?).ok()?)]))
        }
        "Identity" | "Enter" => inputs.elements(0).map(<[Element]>::to_vec),
        // Between equal shapes nothing was broadcast.
        "BroadcastGradientArgs" => match (inputs.elements(0), inputs.elements(1)) {
            (Some(a), Some(b)) if a == b => return vec![Vec::new(); 2],
            _ if inputs.shape_of(0).is_some_and(|of| Some(of) == inputs.shape_of(1)) => return vec![Vec::new(); 2],
            _ => None,
        },
        "Pack" if inputs.from.len() <= MAX_VALUES => {
            (0..inputs.from.len()).map(|input| Some(*inputs.elements_of_rank(0, input)?.first()?)).collect()
        }
        "ConcatV2" => {
            let parts = (0..inputs.last()).map(|input| inputs.elements_of_rank(1, input));
            parts.collect::<Option<Vec<_>>>().map(|parts| parts.concat()).filter(|all| all.len() <= MAX_VALUES)
        }
        _ => None,
    };
    one.into_iter().collect()
}

/// The number of the shape of a node's first output, where it is that of an input.
pub(super) fn like(node: &Node, inputs: &Inputs) -> Option<u32> {
    let is_scalar = |input: usize| inputs.dims(input).is_some_and(|dims| dims.is_empty());
    match node.op.name {
        "Identity" | "StopGradient" | "Cast" | "ZerosLike" => inputs.like(0),
        op if is_of_one(op) => inputs.like(0),
        op if is_of_two(op) => match (inputs.like(0), inputs.like(1)) {
            (a, b) if a == b => a,
            (_, b) if is_scalar(0) => b,
            (a, _) if is_scalar(1) => a,
            _ => None,
        },
        "SelectV2" => inputs.like(0).filter(|_| (1..3).all(|input| inputs.like(input) == inputs.like(0))),
        // All inputs must have one shape.
        "AddN" => inputs.like(0),
        "Reshape" | "BroadcastTo" => inputs.shape_of(1),
        "Fill" => inputs.shape_of(0),
        _ => None,
    }
}

/// The number of the shape that a node's first output is, written as a list.
pub(super) fn shape_of(node: &Node, inputs: &Inputs) -> Option<u32> {
    match node.op.name {
        "Shape" => inputs.like(0),
        "Identity" => inputs.shape_of(0),
        _ => None,
    }
}

/// Whether each element of the answer is a function of one of the input, or of those along an axis.
fn is_of_one(op: &str) -> bool {
    matches!(
        op,
        "Abs"
            | "Atan"
            | "Ceil"
            | "Cos"
            | "Cosh"
            | "Elu"
            | "Erf"
            | "Exp"
            | "Expm1"
            | "Floor"
            | "IsFinite"
            | "IsNan"
            | "LeakyRelu"
            | "Lgamma"
            | "Log"
            | "Log1p"
            | "LogSoftmax"
            | "LogicalNot"
            | "Neg"
            | "Reciprocal"
            | "Relu"
            | "Relu6"
            | "Rint"
            | "Round"
            | "Rsqrt"
            | "Selu"
            | "Sigmoid"
            | "Sign"
            | "Sin"
            | "Sinh"
            | "Softmax"
            | "Softplus"
            | "Softsign"
            | "Sqrt"
            | "Square"
            | "Tan"
            | "Tanh"
    )
}

/// Whether each element of the answer is a function of one of each input, broadcast together.
fn is_of_two(op: &str) -> bool {
    matches!(
        op,
        "Add"
            | "AddV2"
            | "Atan2"
            | "BitwiseAnd"
            | "BitwiseOr"
            | "BitwiseXor"
            | "DivNoNan"
            | "Equal"
            | "FloorDiv"
            | "FloorMod"
            | "Greater"
            | "GreaterEqual"
            | "LeftShift"
            | "Less"
            | "LessEqual"
            | "LogicalAnd"
            | "LogicalOr"
            | "Maximum"
            | "Minimum"
            | "Mul"
            | "NotEqual"
            | "Pow"
            | "RealDiv"
            | "SquaredDifference"
            | "Sub"
            | "TruncateDiv"
            | "TruncateMod"
            | "Xdivy"
    )
}

fn known(sizes: &[usize]) -> Dims {
    sizes.iter().copied().map(Size::Known).collect()
}

/// An axis of a tensor of that rank, counted from the end where negative.
fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then_some(axis as usize)
}

/// NumPy's rule; `None` where the shapes do not go together.
fn broadcast(inputs: &Inputs, a: &Dims, b: &Dims) -> Option<Dims> {
    let rank = a.len().max(b.len());
    let size = |dims: &Dims, axis: usize| match (axis + dims.len()).checked_sub(rank) {
        Some(own) => dims[own],
        None => Size::Known(1),
    };
    let one = |axis: usize| match (size(a, axis), size(b, axis)) {
        (Size::Known(1), other) | (other, Size::Known(1)) => Some(other),
        (a, b) if a == b => Some(a),
        (Size::Known(_), Size::Known(_)) => None,
        // An unknown size is that or 1: it broadcasts to what is known.
        (Size::Known(size), _) | (_, Size::Known(size)) => Some(Size::Known(size)),
        (Size::Unknown(_), Size::Unknown(_)) => Some(inputs.size(None)),
    };
    (0..rank).map(one).collect()
}

fn matmul(node: &Node, inputs: &Inputs) -> Option<Dims> {
    // Of any matrices, two of the four sizes are the product's.
    let matrix = |input: usize| match inputs.dims(input) {
        Some(dims) => <[Size; 2]>::try_from(dims).ok(),
        None => Some([inputs.size(None), inputs.size(None)]),
    };
    let (a, b) = (matrix(0)?, matrix(1)?);
    let rows = a[usize::from(node.attrs.bool("transpose_a").ok()?)];
    let columns = b[usize::from(!node.attrs.bool("transpose_b").ok()?)];
    Some(vec![rows, columns])
}

fn reduced(node: &Node, inputs: &Inputs) -> Option<Dims> {
    let dims = inputs.dims(0)?;
    let axes: Vec<usize> = inputs.values(1)?.iter().map(|&a| axis(a, dims.len())).collect::<Option<_>>()?;
    let keep = node.attrs.bool("keep_dims").ok()?;
    let kept = dims.iter().enumerate().filter_map(|(i, &size)| match (axes.contains(&i), keep) {
        (false, _) => Some(size),
        (true, true) => Some(Size::Known(1)),
        (true, false) => None,
    });
    Some(kept.collect())
}

fn reshaped(inputs: &Inputs) -> Option<Dims> {
    let wanted = inputs.elements_of_rank(1, 1)?;
    let missing = || {
        let known = |&element: &Element| match element {
            Element::Known(-1) => None,
            Element::Known(size) => Some(usize::try_from(size).ok()),
            Element::Size(_) => Some(None),
        };
        let rest: Shape = wanted.iter().filter_map(known).collect::<Option<_>>()?;
        let shape: Shape = inputs.dims(0)?.iter().copied().map(Size::known).collect::<Option<_>>()?;
        shape.elements()?.checked_div(rest.elements()?)
    };
    let size = |&element: &Element| match element {
        Element::Known(-1) => Some(inputs.size(missing())),
        Element::Known(size) => Some(Size::Known(usize::try_from(size).ok()?)),
        Element::Size(number) => Some(Size::Unknown(number)),
    };
    wanted.iter().map(size).collect()
}

fn range(inputs: &Inputs) -> Option<Dims> {
    let (start, limit, delta) = (inputs.value(0)?, inputs.value(1)?, inputs.value(2)?);
    let (span, delta) = (i128::from(limit) - i128::from(start), i128::from(delta));
    let count = (span + delta - delta.signum()).checked_div(delta)?;
    Some(known(&[usize::try_from(count.max(0)).ok()?]))
}

fn sliced(inputs: &Inputs) -> Option<Dims> {
    let (dims, begins) = (inputs.dims(0), inputs.counts(1));
    let rest = |i: usize| {
        let dim = dims.as_ref()?.get(i)?.known();
        dim?.checked_sub(*begins.as_ref()?.get(i)?)
    };
    let size = |(i, &size): (usize, &i64)| match size {
        -1 => inputs.size(rest(i)),
        size => inputs.size(usize::try_from(size).ok()),
    };
    Some(inputs.values(2)?.iter().enumerate().map(size).collect())
}

/// `x[a:b:c, d]` without `...` and new axes.
fn strided(node: &Node, inputs: &Inputs) -> Option<Dims> {
    let mask = |name: &str| node.attrs.int(name).ok();
    if mask("ellipsis_mask")? != 0 || mask("new_axis_mask")? != 0 {
        return None;
    }
    let (begin_mask, end_mask, shrink_mask) = (mask("begin_mask")?, mask("end_mask")?, mask("shrink_axis_mask")?);
    let (begins, ends, strides) = (inputs.values(1)?, inputs.values(2)?, inputs.values(3)?);
    let mut kept = Dims::new();
    for (i, &size) in inputs.dims(0)?.iter().enumerate() {
        let (Some(&begin), Some(&end), Some(&stride)) = (begins.get(i), ends.get(i), strides.get(i)) else {
            kept.push(size);
            continue;
        };
        let bit = |mask: i64| i < 64 && mask >> i & 1 == 1;
        if !bit(shrink_mask) {
            let begin = Some(begin).filter(|_| !bit(begin_mask));
            let end = Some(end).filter(|_| !bit(end_mask));
            kept.push(match (begin.unwrap_or(0), end, stride) {
                (0, None, 1) => size,
                _ => inputs.size(size.known().and_then(|size| strides_taken(size, begin, end, stride))),
            });
        }
    }
    Some(kept)
}

/// How many elements `begin:end:stride` takes of `size`.
fn strides_taken(size: usize, begin: Option<i64>, end: Option<i64>, stride: i64) -> Option<usize> {
    let size = i64::try_from(size).ok()?;
    let (first, last) = if stride > 0 { (0, size) } else { (size - 1, -1) };
    let place = |at: i64| (if at < 0 { at.saturating_add(size) } else { at }).clamp(first.min(last), first.max(last));
    let (begin, end) = (begin.map_or(first, place), end.map_or(last, place));
    let count = (end - begin).checked_add(stride)?.checked_sub(stride.signum())?.checked_div(stride)?;
    usize::try_from(count.max(0)).ok()
}

fn squeezed(node: &Node, inputs: &Inputs) -> Option<Dims> {
    let dims = inputs.dims(0)?;
    let axes: Vec<usize> =
        node.attrs.ints("squeeze_dims").ok()?.iter().map(|&a| axis(a, dims.len())).collect::<Option<_>>()?;
    if axes.is_empty() && dims.iter().any(|size| size.known().is_none()) {
        return None;
    }
    let goes = |i: usize, size: Size| if axes.is_empty() { size == Size::Known(1) } else { axes.contains(&i) };
    Some(dims.iter().enumerate().filter(|&(i, &size)| !goes(i, size)).map(|(_, &size)| size).collect())
}

fn concatenated(inputs: &Inputs) -> Option<Dims> {
    let mut dims = inputs.any(0..inputs.last())?;
    let along = axis(inputs.value(inputs.last())?, dims.len())?;
    let mut parts = (0..inputs.last()).map(|input| inputs.dims(input)?.get(along)?.known());
    dims[along] = inputs.size(parts.try_fold(0usize, |sum, part| sum.checked_add(part?)));
    Some(dims)
}
