//! Shapes that are known without running: constants, variables, placeholders with a full shape, and what the commoner
//! ops make of them. For the bytes of transfers; what is not known here is `None`, never a guess.

use super::prune::{ItemOp, Step};
use crate::graph::Node;
use crate::tensor::Shape;

/// Most elements of a constant that is read as sizes or axes.
const MAX_VALUES: usize = 64;

/// The shapes of a step's values, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    /// By item and port; shorter where the rest is unknown.
    shapes: Vec<Vec<Option<Shape>>>,
    /// By item: the elements of output 0 where that is a small known integer tensor.
    values: Vec<Option<Vec<i64>>>,
}

impl Shapes {
    /// Infers what can be inferred. Every item is looked at once, in order.
    pub fn infer(step: &Step) -> Shapes {
        let mut known = Shapes::default();
        for item in 0..step.items.len() {
            let (shapes, values) = match step.items[item].op {
                ItemOp::Feed(_, tensor) => {
                    let node = step.graph.node(tensor.node);
                    let stated = if node.op.name == "Placeholder" { attr_shape(node) } else { None };
                    (vec![stated], None)
                }
                ItemOp::Node(id) => {
                    let node = step.graph.node(id);
                    let view = Inputs { known: &known, from: &step.items[item].inputs };
                    (outputs(node, &view).unwrap_or_default(), values(node, &view))
                }
                ItemOp::Fetch(..) => (Vec::new(), None),
            };
            known.shapes.push(shapes);
            known.values.push(values);
        }
        known
    }

    /// The shape of an item's output.
    pub fn of(&self, item: usize, port: u32) -> Option<&Shape> {
        self.shapes.get(item)?.get(port as usize)?.as_ref()
    }
}

/// What is known of a node's inputs.
struct Inputs<'a> {
    known: &'a Shapes,
    from: &'a [(usize, u32)],
}

impl Inputs<'_> {
    fn shape(&self, input: usize) -> Option<Shape> {
        let &(item, port) = self.from.get(input)?;
        self.known.of(item, port).cloned()
    }

    fn dims(&self, input: usize) -> Option<Vec<usize>> {
        self.shape(input).map(|shape| shape.dims().to_vec())
    }

    fn values(&self, input: usize) -> Option<&[i64]> {
        match self.from.get(input)? {
            &(item, 0) => self.known.values.get(item)?.as_deref(),
            _ => None,
        }
    }

    fn sizes(&self, input: usize) -> Option<Shape> {
        Shape::from_i64s(self.values(input)?).ok()
    }

    fn value(&self, input: usize) -> Option<i64> {
        match self.values(input)? {
            [one] => Some(*one),
            _ => None,
        }
    }

    fn all(&self) -> impl Iterator<Item = Option<Shape>> + '_ {
        (0..self.from.len()).map(|input| self.shape(input))
    }

    /// The last input, for ops that take their axis there.
    fn last(&self) -> usize {
        self.from.len().saturating_sub(1)
    }
}

/// The shapes of a node's outputs; `None` where nothing is known of any.
fn outputs(node: &Node, inputs: &Inputs) -> Option<Vec<Option<Shape>>> {
    let one = |shape: Shape| Some(vec![Some(shape)]);
    match node.op.name {
        "Const" => one(node.attrs.tensor("value").ok()?.shape().clone()),
        // A handle has its variable's shape here, for the ops that read it.
        "VariableV2" | "VarHandleOp" => one(attr_shape(node)?),
        "Assign" => one(inputs.shape(0).or_else(|| inputs.shape(1))?),

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
        | "LRN" => one(inputs.shape(0)?),
        "Abs" | "Atan" | "Ceil" | "Cos" | "Cosh" | "Elu" | "Erf" | "Exp" | "Expm1" | "Floor" | "IsFinite" | "IsNan"
        | "LeakyRelu" | "Lgamma" | "Log" | "Log1p" | "LogSoftmax" | "LogicalNot" | "Neg" | "Reciprocal" | "Relu"
        | "Relu6" | "Rint" | "Round" | "Rsqrt" | "Selu" | "Sigmoid" | "Sign" | "Sin" | "Sinh" | "Softmax"
        | "Softplus" | "Softsign" | "Sqrt" | "Square" | "Tan" | "Tanh" => one(inputs.shape(0)?),
        "EluGrad" | "LeakyReluGrad" | "ReluGrad" | "RsqrtGrad" | "SigmoidGrad" | "SqrtGrad" | "TanhGrad" => {
            one(inputs.shape(0).or_else(|| inputs.shape(1))?)
        }
        "AddN" => one(inputs.all().flatten().next()?),
        op if op.starts_with("Apply") => one(inputs.shape(0)?),

        "Add" | "AddV2" | "Atan2" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "DivNoNan" | "Equal" | "FloorDiv"
        | "FloorMod" | "Greater" | "GreaterEqual" | "LeftShift" | "Less" | "LessEqual" | "LogicalAnd" | "LogicalOr"
        | "Maximum" | "Minimum" | "Mul" | "NotEqual" | "Pow" | "RealDiv" | "SquaredDifference" | "Sub"
        | "TruncateDiv" | "TruncateMod" | "Xdivy" => one(inputs.shape(0)?.broadcast(&inputs.shape(1)?).ok()?),
        "Select" => one(inputs.shape(1).or_else(|| inputs.shape(2))?),
        "SelectV2" => {
            let (condition, then, other) = (inputs.shape(0)?, inputs.shape(1)?, inputs.shape(2)?);
            one(condition.broadcast(&then).ok()?.broadcast(&other).ok()?)
        }

        "MatMul" => one(matmul(node, inputs)?),
        "L2Loss" => one(Shape::scalar()),
        "SparseSoftmaxCrossEntropyWithLogits" | "SoftmaxCrossEntropyWithLogits" => {
            let logits = inputs.shape(0)?;
            let batch = *logits.dims().first()?;
            Some(vec![Some(Shape::from([batch])), Some(logits)])
        }
        "BiasAddGrad" if node.attrs.str("data_format").ok()? == "NHWC" => {
            one(Shape::from([*inputs.shape(0)?.dims().last()?]))
        }
        "Sum" | "Mean" | "Prod" | "Max" | "Min" | "All" | "Any" => one(reduced(node, inputs)?),
        "ArgMax" | "ArgMin" => {
            let mut dims = inputs.dims(0)?;
            dims.remove(axis(inputs.value(1)?, dims.len())?);
            one(dims.into())
        }

        "Shape" => one(Shape::from([inputs.shape(0)?.rank()])),
        "ShapeN" => Some(inputs.all().map(|shape| Some(Shape::from([shape?.rank()]))).collect()),
        "Size" => one(Shape::scalar()),
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
            let (dims, times) = (inputs.dims(0)?, inputs.sizes(1)?);
            one(dims.iter().zip(times.dims()).map(|(d, n)| d.checked_mul(*n)).collect::<Option<_>>()?)
        }
        "Pad" | "PadV2" | "MirrorPad" => {
            let (dims, pads) = (inputs.dims(0)?, inputs.sizes(1)?);
            let (before_after, _) = pads.dims().as_chunks::<2>();
            one(dims
                .iter()
                .zip(before_after)
                .map(|(d, [a, b])| d.checked_add(*a)?.checked_add(*b))
                .collect::<Option<_>>()?)
        }
        "Transpose" => {
            let (dims, order) = (inputs.dims(0)?, inputs.sizes(1)?);
            one(order.dims().iter().map(|&from| dims.get(from).copied()).collect::<Option<_>>()?)
        }
        "ExpandDims" => {
            let mut dims = inputs.dims(0)?;
            dims.insert(axis(inputs.value(1)?, dims.len() + 1)?, 1);
            one(dims.into())
        }
        "Squeeze" => one(squeezed(node, inputs)?),
        "ConcatV2" => one(concatenated(inputs)?),
        "Pack" => {
            let mut dims = inputs.dims(0)?;
            dims.insert(axis(node.attrs.int("axis").ok()?, dims.len() + 1)?, inputs.from.len());
            one(dims.into())
        }
        "Unpack" => {
            let mut dims = inputs.dims(0)?;
            dims.remove(axis(node.attrs.int("axis").ok()?, dims.len())?);
            Some(vec![Some(dims.into()); node.outputs.len()])
        }
        "Split" => {
            let mut dims = inputs.dims(1)?;
            let along = axis(inputs.value(0)?, dims.len())?;
            dims[along] /= node.outputs.len().max(1);
            Some(vec![Some(dims.into()); node.outputs.len()])
        }
        "GatherV2" if node.attrs.int("batch_dims").ok()? == 0 => {
            let (params, indices) = (inputs.dims(0)?, inputs.dims(1)?);
            let along = axis(inputs.value(2)?, params.len())?;
            one(params[..along].iter().chain(&indices).chain(&params[along + 1..]).copied().collect())
        }
        "OneHot" if node.attrs.int("axis").ok()? == -1 => {
            let mut dims = inputs.dims(0)?;
            dims.push(usize::try_from(inputs.value(1)?).ok()?);
            one(dims.into())
        }
        "Switch" => Some(vec![inputs.shape(0), inputs.shape(0)]),
        "Merge" => {
            let first = inputs.shape(0);
            let all_same = inputs.all().all(|shape| shape == first);
            Some(vec![first.filter(|_| all_same), Some(Shape::scalar())])
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
        "Shape" => inputs.shape(0)?.dims().iter().map(|&d| i64::try_from(d).ok()).collect(),
        "Size" => Some(vec![i64::try_from(inputs.shape(0)?.elements()?).ok()?]),
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

fn attr_shape(node: &Node) -> Option<Shape> {
    node.attrs.shape("shape").ok()?.known()
}

/// An axis of a tensor of that rank, counted from the end where negative.
fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then_some(axis as usize)
}

fn matmul(node: &Node, inputs: &Inputs) -> Option<Shape> {
    let (a, b) = (inputs.dims(0)?, inputs.dims(1)?);
    let ([rows, inner], [inner_b, columns]) = (a.as_slice(), b.as_slice()) else { return None };
    let rows = if node.attrs.bool("transpose_a").ok()? { inner } else { rows };
    let columns = if node.attrs.bool("transpose_b").ok()? { inner_b } else { columns };
    Some(Shape::from([*rows, *columns]))
}

fn reduced(node: &Node, inputs: &Inputs) -> Option<Shape> {
    let dims = inputs.dims(0)?;
    let axes: Vec<usize> = inputs.values(1)?.iter().map(|&a| axis(a, dims.len())).collect::<Option<_>>()?;
    let keep = node.attrs.bool("keep_dims").ok()?;
    let kept = dims.iter().enumerate().filter_map(|(i, &d)| match (axes.contains(&i), keep) {
        (false, _) => Some(d),
        (true, true) => Some(1),
        (true, false) => None,
    });
    Some(kept.collect())
}

fn reshaped(inputs: &Inputs) -> Option<Shape> {
    let wanted = inputs.values(1)?;
    if let Ok(shape) = Shape::from_i64s(wanted) {
        return Some(shape);
    }
    let elements = inputs.shape(0)?.elements()?;
    let rest: Shape = wanted.iter().filter(|&&d| d != -1).map(|&d| usize::try_from(d).ok()).collect::<Option<_>>()?;
    let missing = elements.checked_div(rest.elements()?)?;
    Some(wanted.iter().map(|&d| usize::try_from(d).unwrap_or(missing)).collect())
}

fn range(inputs: &Inputs) -> Option<Shape> {
    let (start, limit, delta) = (inputs.value(0)?, inputs.value(1)?, inputs.value(2)?);
    let span = i128::from(limit) - i128::from(start);
    let delta = i128::from(delta);
    let count = if delta == 0 { return None } else { (span + delta - delta.signum()) / delta };
    Some(Shape::from([usize::try_from(count.max(0)).ok()?]))
}

fn sliced(inputs: &Inputs) -> Option<Shape> {
    let sizes = inputs.values(2)?;
    if let Ok(shape) = Shape::from_i64s(sizes) {
        return Some(shape);
    }
    let (dims, begin) = (inputs.dims(0)?, inputs.sizes(1)?);
    let sizes = sizes.iter().zip(&dims).zip(begin.dims()).map(|((&size, &dim), &begin)| match size {
        -1 => dim.checked_sub(begin),
        size => usize::try_from(size).ok(),
    });
    sizes.collect()
}

/// `x[a:b:c, d]` without `...` and new axes.
fn strided(node: &Node, inputs: &Inputs) -> Option<Shape> {
    let mask = |name: &str| node.attrs.int(name).ok();
    if mask("ellipsis_mask")? != 0 || mask("new_axis_mask")? != 0 {
        return None;
    }
    let (begin_mask, end_mask, shrink_mask) = (mask("begin_mask")?, mask("end_mask")?, mask("shrink_axis_mask")?);
    let dims = inputs.dims(0)?;
    let (begins, ends, strides) = (inputs.values(1)?, inputs.values(2)?, inputs.values(3)?);
    let mut kept = Vec::with_capacity(dims.len());
    for (i, &dim) in dims.iter().enumerate() {
        let (Some(&begin), Some(&end), Some(&stride)) = (begins.get(i), ends.get(i), strides.get(i)) else {
            kept.push(dim);
            continue;
        };
        let bit = |mask: i64| mask >> i & 1 == 1;
        if bit(shrink_mask) {
            continue;
        }
        let dim = i64::try_from(dim).ok()?;
        let (low, high) = if stride > 0 { (0, dim) } else { (-1, dim - 1) };
        let place = |at: i64| (if at < 0 { at.saturating_add(dim) } else { at }).clamp(low, high);
        let (first, last) = if stride > 0 { (0, dim) } else { (dim - 1, -1) };
        let begin = if bit(begin_mask) { first } else { place(begin) };
        let end = if bit(end_mask) { last } else { place(end) };
        let count = if stride == 0 { return None } else { (end - begin + stride - stride.signum()) / stride };
        kept.push(usize::try_from(count.max(0)).ok()?);
    }
    Some(kept.into())
}

fn squeezed(node: &Node, inputs: &Inputs) -> Option<Shape> {
    let dims = inputs.dims(0)?;
    let axes: Vec<usize> =
        node.attrs.ints("squeeze_dims").ok()?.iter().map(|&a| axis(a, dims.len())).collect::<Option<_>>()?;
    let goes = |i: usize, d: usize| if axes.is_empty() { d == 1 } else { axes.contains(&i) };
    Some(dims.iter().enumerate().filter(|&(i, &d)| !goes(i, d)).map(|(_, &d)| d).collect())
}

fn concatenated(inputs: &Inputs) -> Option<Shape> {
    let mut dims = inputs.dims(0)?;
    let along = axis(inputs.value(inputs.last())?, dims.len())?;
    for input in 1..inputs.last() {
        dims[along] = dims[along].checked_add(*inputs.dims(input)?.get(along)?)?;
    }
    Some(dims.into())
}
