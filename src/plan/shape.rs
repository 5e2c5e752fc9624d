//! Shapes that are known without running: constants, variables, placeholders, and what the commoner ops make of them. A
//! rank may be known though a size is not. For the bytes of transfers; what is not known here is `None`, never a guess.

use super::prune::{ItemOp, Step};
use crate::graph::Node;
use crate::tensor::{PartialShape, Shape};

/// Most elements of a constant that is read as sizes or axes.
const MAX_VALUES: usize = 64;

/// The sizes of a tensor whose rank is known.
type Dims = Vec<Option<usize>>;

/// The shapes of a step's values, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    /// By item and port; shorter where the rest is unknown.
    dims: Vec<Vec<Option<Dims>>>,
    /// By item: the elements of output 0 where that is a small known integer tensor.
    values: Vec<Option<Vec<i64>>>,
}

impl Shapes {
    /// Infers what can be inferred. Every item is looked at once, in order.
    pub fn infer(step: &Step) -> Shapes {
        let mut known = Shapes::default();
        for item in 0..step.items.len() {
            let (dims, values) = match step.items[item].op {
                ItemOp::Feed(_, tensor) => {
                    let node = step.graph.node(tensor.node);
                    let stated = if node.op.name == "Placeholder" { stated(node) } else { None };
                    (vec![stated], None)
                }
                ItemOp::Node(id) => {
                    let node = step.graph.node(id);
                    let view = Inputs { known: &known, from: &step.items[item].inputs };
                    (outputs(node, &view).unwrap_or_default(), values(node, &view))
                }
                ItemOp::Fetch(..) => (Vec::new(), None),
            };
            known.dims.push(dims);
            known.values.push(values);
        }
        known
    }

    /// The shape of an item's output, where every size is known.
    pub fn of(&self, item: usize, port: u32) -> Option<Shape> {
        self.dims(item, port)?.iter().copied().collect()
    }

    fn dims(&self, item: usize, port: u32) -> Option<&Dims> {
        self.dims.get(item)?.get(port as usize)?.as_ref()
    }
}

/// What is known of a node's inputs.
struct Inputs<'a> {
    known: &'a Shapes,
    from: &'a [(usize, u32)],
}

impl Inputs<'_> {
    fn dims(&self, input: usize) -> Option<Dims> {
        let &(item, port) = self.from.get(input)?;
        self.known.dims(item, port).cloned()
    }

    /// The shape of inputs that all have the same: of the one that is known best.
    fn any(&self, inputs: impl IntoIterator<Item = usize>) -> Option<Dims> {
        let known = inputs.into_iter().filter_map(|input| self.dims(input));
        known.min_by_key(|dims| dims.iter().filter(|size| size.is_none()).count())
    }

    /// The elements of a small integer input.
    fn values(&self, input: usize) -> Option<&[i64]> {
        match self.from.get(input)? {
            &(item, 0) => self.known.values.get(item)?.as_deref(),
            _ => None,
        }
    }

    /// The one element of an integer input.
    fn value(&self, input: usize) -> Option<i64> {
        match self.values(input)? {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// The shape that an input's elements are.
    fn sizes(&self, input: usize) -> Option<Vec<usize>> {
        self.values(input)?.iter().map(|&size| usize::try_from(size).ok()).collect()
    }

    /// The last input, for ops that take their axis there.
    fn last(&self) -> usize {
        self.from.len().saturating_sub(1)
    }
}

/// The shapes of a node's outputs; `None` where nothing is known of any.
fn outputs(node: &Node, inputs: &Inputs) -> Option<Vec<Option<Dims>>> {
    let one = |dims: Dims| Some(vec![Some(dims)]);
    match node.op.name {
        "Const" => one(known(node.attrs.tensor("value").ok()?.dims())),
        // A handle has its variable's shape here, for the ops that read it.
        "VariableV2" | "VarHandleOp" => one(stated(node)?),
        "Assign" => one(inputs.any([0, 1])?),

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
        "Abs" | "Atan" | "Ceil" | "Cos" | "Cosh" | "Elu" | "Erf" | "Exp" | "Expm1" | "Floor" | "IsFinite" | "IsNan"
        | "LeakyRelu" | "Lgamma" | "Log" | "Log1p" | "LogSoftmax" | "LogicalNot" | "Neg" | "Reciprocal" | "Relu"
        | "Relu6" | "Rint" | "Round" | "Rsqrt" | "Selu" | "Sigmoid" | "Sign" | "Sin" | "Sinh" | "Softmax"
        | "Softplus" | "Softsign" | "Sqrt" | "Square" | "Tan" | "Tanh" => one(inputs.dims(0)?),
        "EluGrad" | "LeakyReluGrad" | "ReluGrad" | "RsqrtGrad" | "SigmoidGrad" | "SqrtGrad" | "TanhGrad" => {
            one(inputs.any([0, 1])?)
        }
        "AddN" => one(inputs.any(0..inputs.from.len())?),
        op if op.starts_with("Apply") => one(inputs.dims(0)?),

        "Add" | "AddV2" | "Atan2" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "DivNoNan" | "Equal" | "FloorDiv"
        | "FloorMod" | "Greater" | "GreaterEqual" | "LeftShift" | "Less" | "LessEqual" | "LogicalAnd" | "LogicalOr"
        | "Maximum" | "Minimum" | "Mul" | "NotEqual" | "Pow" | "RealDiv" | "SquaredDifference" | "Sub"
        | "TruncateDiv" | "TruncateMod" | "Xdivy" => one(broadcast(&inputs.dims(0)?, &inputs.dims(1)?)?),
        "Select" => one(inputs.any([1, 2])?),
        "SelectV2" => {
            let branches = broadcast(&inputs.dims(1)?, &inputs.dims(2)?)?;
            one(broadcast(&inputs.dims(0)?, &branches)?)
        }

        "MatMul" => one(matmul(node, inputs)?),
        "L2Loss" => one(Vec::new()),
        "SparseSoftmaxCrossEntropyWithLogits" | "SoftmaxCrossEntropyWithLogits" => {
            let logits = inputs.dims(0)?;
            Some(vec![Some(vec![*logits.first()?]), Some(logits)])
        }
        "BiasAddGrad" if node.attrs.str("data_format").ok()? == "NHWC" => one(vec![*inputs.dims(0)?.last()?]),
        "Sum" | "Mean" | "Prod" | "Max" | "Min" | "All" | "Any" => one(reduced(node, inputs)?),
        "ArgMax" | "ArgMin" => {
            let mut dims = inputs.dims(0)?;
            dims.remove(axis(inputs.value(1)?, dims.len())?);
            one(dims)
        }

        "Shape" => one(vec![Some(inputs.dims(0)?.len())]),
        "ShapeN" => Some((0..inputs.from.len()).map(|input| Some(vec![Some(inputs.dims(input)?.len())])).collect()),
        "Size" => one(Vec::new()),
        "Fill"
        | "RandomUniform"
        | "RandomStandardNormal"
        | "TruncatedNormal"
        | "RandomUniformInt"
        | "StatelessRandomNormalV2"
        | "StatelessRandomUniformV2" => one(known(&inputs.sizes(0)?)),
        "BroadcastTo" => one(known(&inputs.sizes(1)?)),
        "Reshape" => one(reshaped(inputs)?),
        "Range" => one(range(inputs)?),
        "Slice" => one(sliced(inputs)?),
        "StridedSlice" => one(strided(node, inputs)?),
        "Tile" => {
            let (dims, times) = (inputs.dims(0)?, inputs.sizes(1)?);
            one(dims.iter().zip(times).map(|(size, times)| size.and_then(|size| size.checked_mul(times))).collect())
        }
        "Pad" | "PadV2" | "MirrorPad" => {
            let (dims, pads) = (inputs.dims(0)?, inputs.sizes(1)?);
            let (before_after, _) = pads.as_chunks::<2>();
            let padded = |(size, [before, after]): (&Option<usize>, &[usize; 2])| {
                size.and_then(|size| size.checked_add(*before)?.checked_add(*after))
            };
            one(dims.iter().zip(before_after).map(padded).collect())
        }
        "Transpose" => {
            let dims = inputs.dims(0)?;
            one(inputs.sizes(1)?.iter().map(|&from| dims.get(from).copied()).collect::<Option<_>>()?)
        }
        "ExpandDims" => {
            let mut dims = inputs.dims(0)?;
            dims.insert(axis(inputs.value(1)?, dims.len() + 1)?, Some(1));
            one(dims)
        }
        "Squeeze" => one(squeezed(node, inputs)?),
        "ConcatV2" => one(concatenated(inputs)?),
        "Pack" => {
            let mut dims = inputs.any(0..inputs.from.len())?;
            dims.insert(axis(node.attrs.int("axis").ok()?, dims.len() + 1)?, Some(inputs.from.len()));
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
            dims[along] = dims[along].map(|size| size / node.outputs.len().max(1));
            Some(vec![Some(dims); node.outputs.len()])
        }
        "GatherV2" if node.attrs.int("batch_dims").ok()? == 0 => {
            let (params, indices) = (inputs.dims(0)?, inputs.dims(1)?);
            let along = axis(inputs.value(2)?, params.len())?;
            one(params[..along].iter().chain(&indices).chain(&params[along + 1..]).copied().collect())
        }
        "OneHot" if node.attrs.int("axis").ok()? == -1 => {
            let mut dims = inputs.dims(0)?;
            dims.push(inputs.value(1).and_then(|depth| usize::try_from(depth).ok()));
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

/// The elements of a node's first output, where it is a small known integer tensor.
fn values(node: &Node, inputs: &Inputs) -> Option<Vec<i64>> {
    match node.op.name {
        "Const" => {
            let value = node.attrs.tensor("value").ok().filter(|value| value.len() <= MAX_VALUES)?;
            value.to_i64s().ok()
        }
        "Shape" => inputs.dims(0)?.iter().map(|&size| i64::try_from(size?).ok()).collect(),
        "Size" => {
            let shape: Shape = inputs.dims(0)?.iter().copied().collect::<Option<_>>()?;
            Some(vec![i64::try_from(shape.elements()?).ok()?])
        }
        "Identity" | "Enter" => inputs.values(0).map(<[i64]>::to_vec),
        "Pack" if inputs.from.len() <= MAX_VALUES => (0..inputs.from.len()).map(|input| inputs.value(input)).collect(),
        "ConcatV2" => {
            let parts = (0..inputs.last()).map(|input| inputs.values(input));
            let all: Vec<i64> = parts.collect::<Option<Vec<_>>>()?.concat();
            Some(all).filter(|all| all.len() <= MAX_VALUES)
        }
        _ => None,
    }
}

fn known(sizes: &[usize]) -> Dims {
    sizes.iter().copied().map(Some).collect()
}

/// What a node's attribute `shape` says.
fn stated(node: &Node) -> Option<Dims> {
    let PartialShape(dims) = node.attrs.shape("shape").ok()?;
    dims.clone()
}

/// An axis of a tensor of that rank, counted from the end where negative.
fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then_some(axis as usize)
}

/// NumPy's rule; `None` where the shapes do not go together.
fn broadcast(a: &Dims, b: &Dims) -> Option<Dims> {
    let rank = a.len().max(b.len());
    let size = |dims: &Dims, axis: usize| match (axis + dims.len()).checked_sub(rank) {
        Some(own) => dims[own],
        None => Some(1),
    };
    let one = |axis: usize| match (size(a, axis), size(b, axis)) {
        (Some(1), other) | (other, Some(1)) => Some(other),
        (Some(a), Some(b)) => (a == b).then_some(Some(a)),
        // An unknown size is that or 1: it broadcasts to what is known.
        (known, None) | (None, known) => Some(known),
    };
    (0..rank).map(one).collect()
}

fn matmul(node: &Node, inputs: &Inputs) -> Option<Dims> {
    // Of any matrices, two of the four sizes are the product's.
    let matrix = |input: usize| inputs.dims(input).map_or(Some([None; 2]), |dims| <[_; 2]>::try_from(dims).ok());
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
        (true, true) => Some(Some(1)),
        (true, false) => None,
    });
    Some(kept.collect())
}

fn reshaped(inputs: &Inputs) -> Option<Dims> {
    let wanted = inputs.values(1)?;
    let rest: Shape = wanted.iter().filter_map(|&size| usize::try_from(size).ok()).collect();
    let missing = || {
        let shape: Shape = inputs.dims(0)?.iter().copied().collect::<Option<_>>()?;
        shape.elements()?.checked_div(rest.elements()?)
    };
    Some(wanted.iter().map(|&size| if size == -1 { missing() } else { usize::try_from(size).ok() }).collect())
}

fn range(inputs: &Inputs) -> Option<Dims> {
    let (start, limit, delta) = (inputs.value(0)?, inputs.value(1)?, inputs.value(2)?);
    let (span, delta) = (i128::from(limit) - i128::from(start), i128::from(delta));
    let count = (span + delta - delta.signum()).checked_div(delta)?;
    Some(vec![usize::try_from(count.max(0)).ok()])
}

fn sliced(inputs: &Inputs) -> Option<Dims> {
    let (dims, begins) = (inputs.dims(0), inputs.sizes(1));
    let size = |(i, &size): (usize, &i64)| match size {
        -1 => {
            let dim = *dims.as_ref()?.get(i)?;
            dim?.checked_sub(*begins.as_ref()?.get(i)?)
        }
        size => usize::try_from(size).ok(),
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
            kept.push(size.and_then(|size| strides_taken(size, begin, end, stride)));
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
    if axes.is_empty() && dims.contains(&None) {
        return None;
    }
    let goes = |i: usize, size: Option<usize>| if axes.is_empty() { size == Some(1) } else { axes.contains(&i) };
    Some(dims.iter().enumerate().filter(|&(i, &size)| !goes(i, size)).map(|(_, &size)| size).collect())
}

fn concatenated(inputs: &Inputs) -> Option<Dims> {
    let mut dims = inputs.any(0..inputs.last())?;
    let along = axis(inputs.value(inputs.last())?, dims.len())?;
    let mut parts = (0..inputs.last()).map(|input| inputs.dims(input)?.get(along).copied().flatten());
    dims[along] = parts.try_fold(0usize, |sum, part| sum.checked_add(part?));
    Some(dims)
}
