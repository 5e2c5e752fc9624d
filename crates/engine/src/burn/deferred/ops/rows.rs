//! Ops that compute numbers of rows: sums, softmax, losses, batch normalisation, products.

use std::sync::Arc;

use burn_wgpu::CubeBackend;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::{SmallVec, smallvec};

use super::super::super::array::places;
use super::super::super::bits::{ComparisonFunction, UnaryFunction};
use super::super::super::memory::upload;
use super::super::super::reduce;
use super::super::node::{Axis, FoldShape, Function, Node, force};
use super::super::{BatchNorm, Kind};
use super::updates::Formula;
use super::views::as_shape;
use super::{Nodes, Place, ints, operand, operands};
use crate::{Value, Values};

/// Most rows that one thread sums up.
const MOST_ROWS: usize = 256;

/// Most multiplications of a product that is deferred, and most for one element: larger ones are worth a kernel that reads each
/// factor fewer times.
const MOST_MULTIPLICATIONS: usize = 1 << 18;
const MOST_INNER: usize = 128;

/// Most classes whose numbers float32 tells apart.
const MOST_CLASSES: usize = 1 << 24;

/// Sum, Mean and Max.
pub(super) fn fold(inputs: &Values, keeps: bool, kind: Kind, place: &Place) -> Result<Option<Arc<Node>>> {
    let shape = inputs[0].shape().clone();
    if ints(&inputs[1])?.is_none() {
        return Ok(None);
    }
    let Some(gone) = reduce::axes(&inputs[1], shape.rank())? else { return Ok(None) };
    let sizes = shape.dims().iter().zip(&gone);
    let new: Shape = match keeps {
        true => sizes.map(|(&size, &gone)| if gone { 1 } else { size }).collect(),
        false => sizes.filter(|&(_, &gone)| !gone).map(|(&size, _)| size).collect(),
    };
    if new == shape {
        return Ok(None);
    }
    let Some(node) = operand(&inputs[0], place)? else { return Ok(None) };
    Ok(folded(node, |axis| gone[axis], kind, new))
}

/// A value folded over dimensions next to each other.
fn folded(node: Arc<Node>, gone: impl Fn(usize) -> bool, kind: Kind, shape: Shape) -> Option<Arc<Node>> {
    let mut runs: SmallVec<[(usize, bool); 8]> = SmallVec::new();
    for (i, &size) in node.shape.dims().iter().enumerate().filter(|&(_, &size)| size != 1) {
        match runs.last_mut() {
            Some((run, is_gone)) if *is_gone == gone(i) => *run *= size,
            _ => runs.push((size, gone(i))),
        }
    }
    let (matrices, rows, columns) = match runs[..] {
        [(rows, true)] => (1, rows, 1),
        [(matrices, false), (rows, true)] => (matrices, rows, 1),
        [(rows, true), (columns, false)] => (1, rows, columns),
        [(matrices, false), (rows, true), (columns, false)] => (matrices, rows, columns),
        _ => return None,
    };
    let divisor = (kind == Kind::Mean).then_some(rows as f32);
    let mut whole = FoldShape { matrices, rows, columns, part: rows, is_most: kind == Kind::Max, divisor };
    let mut node = node;
    while whole.rows > MOST_ROWS {
        let parts = FoldShape { part: MOST_ROWS, divisor: None, ..whole };
        let rows = parts.parts();
        let sums = Shape::from([matrices, rows, columns]);
        node = Node::of(Function::Fold(parts), smallvec![node], DType::F32, sums);
        whole = FoldShape { rows, part: rows, ..whole };
    }
    Some(Node::of(Function::Fold(whole), smallvec![node], DType::F32, shape))
}

pub(super) fn bias_grad(inputs: &Values, channels_first: bool, place: &Place) -> Result<Option<Arc<Node>>> {
    let shape = inputs[0].shape();
    if shape.rank() < 2 {
        return Ok(None);
    }
    let channels = if channels_first { 1 } else { shape.rank() - 1 };
    let new = Shape::from([shape.dims()[channels]]);
    let Some(node) = operand(&inputs[0], place)? else { return Ok(None) };
    Ok(folded(node, |axis| axis != channels, Kind::Sum, new))
}

/// L2Loss.
pub(super) fn half_squares(inputs: &Values, place: &Place) -> Result<Option<Arc<Node>>> {
    let Some(x) = operand(&inputs[0], place)? else { return Ok(None) };
    let shape = x.shape.clone();
    let squares = Node::of(Function::Mul, smallvec![Arc::clone(&x), x], DType::F32, shape);
    let half = Node::number(0.5, Shape::scalar(), place.device);
    let sum = folded(squares, |_| true, Kind::Sum, Shape::scalar());
    Ok(sum.map(|sum| Node::of(Function::Mul, smallvec![sum, half], DType::F32, Shape::scalar())))
}

/// Rows less their largest element, and the sums of their exponentials.
struct Rows {
    /// For each row, with the last dimension of size 1.
    most: Arc<Node>,
    sum: Arc<Node>,
    /// For each element.
    less: Arc<Node>,
    exponential: Arc<Node>,
}

impl Rows {
    fn of(x: &Arc<Node>) -> Option<Rows> {
        let last = x.shape.rank().checked_sub(1)?;
        let mut dims = x.shape.dims().to_vec();
        dims[last] = 1;
        let each = Shape::from(dims);
        let over_rows = |node: &Arc<Node>, kind| match node.shape == each {
            true => Some(Arc::clone(node)),
            false => folded(Arc::clone(node), |axis| axis == last, kind, each.clone()),
        };
        let most = over_rows(x, Kind::Max)?;
        let less = elementwise_of(Function::Sub, [x, &most]);
        let exponential =
            Node::of(Function::One(UnaryFunction::Exp), smallvec![Arc::clone(&less)], DType::F32, x.shape.clone());
        let sum = over_rows(&exponential, Kind::Sum)?;
        Some(Rows { most, sum, less, exponential })
    }

    /// The logarithms of the sums.
    fn logarithm(&self) -> Arc<Node> {
        let shape = self.sum.shape.clone();
        Node::of(Function::One(UnaryFunction::Log), smallvec![Arc::clone(&self.sum)], DType::F32, shape)
    }
}

/// A function of two values, of which the first has the larger shape.
fn elementwise_of(function: Function, [x, y]: [&Arc<Node>; 2]) -> Arc<Node> {
    Node::of(function, smallvec![Arc::clone(x), Arc::clone(y)], DType::F32, x.shape.clone())
}

pub(super) fn softmax(inputs: &Values, is_log: bool, place: &Place) -> Result<Option<Arc<Node>>> {
    let Some(x) = operand(&inputs[0], place)? else { return Ok(None) };
    Ok(Rows::of(&x).map(|rows| match is_log {
        true => elementwise_of(Function::Sub, [&rows.less, &rows.logarithm()]),
        false => elementwise_of(Function::Div, [&rows.exponential, &rows.sum]),
    }))
}

/// The loss of each row, and its gradient with respect to the logits. The labels are probabilities, or the number of a class for
/// each row, on the host; an invalid number is left to the host.
pub(super) fn cross_entropy(inputs: &Values, is_sparse: bool, place: &Place) -> Result<Option<Nodes>> {
    let &[rows, classes] = inputs[0].shape().dims() else { return Ok(None) };
    if is_sparse && classes > MOST_CLASSES {
        return Ok(None);
    }
    let labels = match (is_sparse, &inputs[1]) {
        (true, Value::Host(labels)) => {
            let taken = places(labels, classes)?.filter(|taken| taken.len() == rows && labels.rank() == 1);
            let Some(taken) = taken else { return Ok(None) };
            let numbers: Vec<f32> = taken.into_iter().map(|class| class as f32).collect();
            let raw = upload::<CubeBackend>(Tensor::vector(numbers), place.device, place.bools);
            Some(Node::leaf(raw, DType::F32, Shape::from([rows])))
        }
        (false, labels) if labels.shape() == inputs[0].shape() => operand(labels, place)?,
        _ => None,
    };
    let (Some(labels), Some(x)) = (labels, operand(&inputs[0], place)?) else { return Ok(None) };
    let each = Shape::from([rows]);
    let Some(of_rows) = Rows::of(&x) else { return Ok(None) };
    let logarithm = of_rows.logarithm();
    let probability = elementwise_of(Function::Div, [&of_rows.exponential, &of_rows.sum]);
    if !is_sparse {
        // Minus the sum of the labels times the logarithms of the probabilities.
        let logs = elementwise_of(Function::Sub, [&of_rows.less, &logarithm]);
        let weighted = elementwise_of(Function::Mul, [&logs, &labels]);
        let minus = Node::of(Function::One(UnaryFunction::Neg), smallvec![weighted], DType::F32, x.shape.clone());
        let loss = match classes {
            1 => Some(as_shape(minus, each)),
            _ => folded(minus, |axis| axis == 1, Kind::Sum, each),
        };
        let gradient = elementwise_of(Function::Sub, [&probability, &labels]);
        return Ok(loss.map(|loss| smallvec![loss, gradient]));
    }
    let whole = x.shape.clone();
    let own = Node::of(Function::Pick, smallvec![Arc::clone(&x), Arc::clone(&labels)], DType::F32, each.clone());
    // The difference of two logits is exact if they are near each other, however large they are.
    let less = elementwise_of(Function::Sub, [&own, &as_shape(Arc::clone(&of_rows.most), each.clone())]);
    let loss = elementwise_of(Function::Sub, [&as_shape(logarithm, each), &less]);
    let class = Node::of(Function::Coordinate(1), smallvec![x], DType::F32, whole.clone());
    let column = as_shape(labels, Shape::from([rows, 1]));
    let equal = Function::Compare(ComparisonFunction::Equal);
    let is_own = Node::of(equal, smallvec![class, column], DType::Bool, whole.clone());
    let one = Node::of(Function::ToFloat, smallvec![is_own], DType::F32, whole);
    Ok(Some(smallvec![loss, elementwise_of(Function::Sub, [&probability, &one])]))
}

/// The outputs of a batch normalisation or of its gradient, and the number of empty ones after them.
pub(super) fn normalised(norm: &BatchNorm, inputs: &Values, place: &Place) -> Result<Option<(Nodes, usize)>> {
    let shape = inputs[0].shape().clone();
    let channels = shape.dims().get(norm.axis).copied().filter(|_| shape.rank() == norm.rank);
    let first = if norm.is_backward { 2 } else { 1 };
    // If the running averages start anew, the old ones may be omitted.
    let of_channels = if norm.is_backward || !norm.is_training { first..5 } else { first..3 };
    let (Some(channels), 5..) = (channels, inputs.len()) else { return Ok(None) };
    if norm.is_backward && *inputs[1].shape() != shape
        || inputs[of_channels.clone()].iter().any(|value| value.shape().dims() != [channels])
    {
        return Ok(None);
    }
    let Some(taken) = operands(&inputs[..of_channels.end], place)? else { return Ok(None) };
    let formula = Formula { shape: shape.clone(), device: place.device.clone() };
    let along = |node: &Arc<Node>| {
        let dims: Shape = (0..norm.rank).map(|i| if i == norm.axis { channels } else { 1 }).collect();
        let axes = vec![Axis { from: Some(norm.axis), start: 0, step: 1 }];
        Node::of(Function::View(axes), smallvec![Arc::clone(node)], DType::F32, dims)
    };
    let fold =
        |node: &Arc<Node>, kind| folded(Arc::clone(node), |axis| axis != norm.axis, kind, Shape::from([channels]));
    let deviation = |variance: &Arc<Node>| {
        let of = Formula { shape: Shape::from([channels]), device: place.device.clone() };
        along(&of.root(&of.add(variance, &of.number(norm.epsilon))))
    };
    let places = shape.elements().unwrap_or(0) / channels.max(1);
    if norm.is_backward {
        let [gradient, x, scale, mean, variance] = &taken[..] else { return Ok(None) };
        let deviation = deviation(variance);
        let normal = formula.div(&formula.sub(x, &along(mean)), &deviation);
        let sums = fold(gradient, Kind::Sum);
        let (Some(sums), Some(products)) = (sums, fold(&formula.mul(gradient, &normal), Kind::Sum)) else {
            return Ok(None);
        };
        // Moments that do not depend on the elements have no gradient.
        let own = if norm.is_training {
            let share = formula.number(1.0 / places as f32);
            let less = formula.mul(&formula.add(&along(&sums), &formula.mul(&normal, &along(&products))), &share);
            formula.sub(gradient, &less)
        } else {
            Arc::clone(gradient)
        };
        let answer = formula.div(&formula.mul(&own, &along(scale)), &deviation);
        return Ok(Some((smallvec![answer, products, sums], 2)));
    }
    let (x, scale, offset) = (&taken[0], &taken[1], &taken[2]);
    let (mean, variance) = match &taken[3..] {
        [mean, variance] => (Some(Arc::clone(mean)), Some(Arc::clone(variance))),
        _ => {
            let mean = fold(x, Kind::Mean);
            let variance = mean.as_ref().and_then(|mean| {
                let off = formula.sub(x, &along(mean));
                fold(&formula.mul(&off, &off), Kind::Mean)
            });
            (mean, variance)
        }
    };
    let (Some(mean), Some(variance)) = (mean, variance) else { return Ok(None) };
    let normal = formula.div(&formula.sub(x, &along(&mean)), &deviation(&variance));
    let answer = formula.add(&formula.mul(&normal, &along(scale)), &along(offset));
    // The running variance is the unbiased estimate; the gradient needs the biased one.
    let unbias = if norm.is_training { places as f32 / (places.max(2) - 1) as f32 } else { 1.0 };
    let of = Formula { shape: Shape::from([channels]), device: place.device.clone() };
    let unbiased = of.mul(&variance, &of.number(unbias));
    Ok(Some((smallvec![answer, Arc::clone(&mean), unbiased, mean, variance], 1)))
}

/// A small product of matrices.
pub(super) fn matrix_product(inputs: &Values, transposed: [bool; 2], place: &Place) -> Result<Option<Arc<Node>>> {
    let [&[a, b], &[c, d]] = [inputs[0].shape().dims(), inputs[1].shape().dims()] else { return Ok(None) };
    let (rows, inner) = if transposed[0] { (b, a) } else { (a, b) };
    let (other, columns) = if transposed[1] { (d, c) } else { (c, d) };
    let work = rows.saturating_mul(inner).saturating_mul(columns);
    if inner != other || inner == 0 || inner > MOST_INNER || work > MOST_MULTIPLICATIONS || work == 0 {
        return Ok(None);
    }
    let Some(factors) = operands(inputs, place)? else { return Ok(None) };
    // Each element of a factor is read several times.
    force(&factors);
    Ok(Some(Node::of(Function::Product(transposed), factors, DType::F32, Shape::from([rows, columns]))))
}
