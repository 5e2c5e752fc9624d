//! The arithmetic of a node: an estimate by the shapes of its inputs and outputs, for summaries of models.
//!
//! The counts are those of TensorFlow's profiler (`flops_registry.py`) for the ops that it knows: a multiplication and an
//! addition are two operations, a function of an element is one unless it is made of several. An op that only moves, selects,
//! draws or looks up elements has none.

use crate::attr::Attrs;
use crate::op::Role;
use crate::{Graph, Node, NodeId, Output, Shapes};

/// The arithmetic operations of one run of a node; `None` if a size that they depend on is not known.
pub fn operations(graph: &Graph, id: NodeId) -> Option<u64> {
    operations_by(graph, graph.shapes(), id)
}

/// As [`operations`], by these shapes of the graph.
pub(crate) fn operations_by(graph: &Graph, shapes: &Shapes, id: NodeId) -> Option<u64> {
    let node = graph.node(id);
    if node.op.role != Role::Compute {
        return Some(0);
    }
    let sized = Sized { shapes, node, id };
    match node.op.name {
        "MatMul" | "SparseMatMul" => sized.product("transpose_a"),
        "BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3" => sized.product("adj_x"),
        "Einsum" => sized.einsum(),
        "Conv2D" | "Conv3D" => sized.convolution(false),
        "DepthwiseConv2dNative" | "Dilation2D" => sized.convolution(true),
        "Conv2DBackpropInput" => sized.gradient_of_convolution(&sized.output(0)?, &sized.input(1)?),
        "Conv2DBackpropFilter" => sized.gradient_of_convolution(&sized.input(0)?, &sized.output(0)?),
        "AvgPool" | "MaxPool" | "MaxPoolWithArgmax" | "AvgPool3D" | "MaxPool3D" => {
            Some(area(&node.attrs)?.saturating_mul(elements(&sized.output(0)?)))
        }
        "AvgPoolGrad" => Some(area(&node.attrs)?.saturating_mul(times(2, &sized.input(1)?))),
        "MaxPoolGrad" => Some(area(&node.attrs)?.saturating_add(1).saturating_mul(elements(&sized.input(1)?))),
        "Sum" | "Max" | "Min" | "Prod" | "All" | "Any" | "ArgMax" | "ArgMin" | "BiasAddGrad" => {
            Some(elements(&sized.input(0)?).saturating_sub(elements(&sized.output(0)?)))
        }
        "Mean" | "Cumsum" | "Cumprod" => Some(elements(&sized.input(0)?)),
        "L2Loss" => Some(times(3, &sized.input(0)?).saturating_sub(1)),
        "AddN" | "AccumulateNV2" => Some(times((node.inputs.len() as u64).saturating_sub(1), &sized.input(0)?)),
        "FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3" => Some(times(4, &sized.input(0)?)),
        "SoftmaxCrossEntropyWithLogits" | "SparseSoftmaxCrossEntropyWithLogits" => {
            // The softmax, and a product with the label or a look-up by it.
            Some(times(6, &sized.input(0)?))
        }
        "BlockLSTM" | "BlockLSTMV2" => sized.lstm(1, 4),
        "LSTMBlockCell" => sized.lstm(0, 3),
        "GRUBlockCell" => sized.gru(),
        name => match of_element(name) {
            0 => Some(0),
            each => Some(each.saturating_mul(elements(&sized.output(0)?))),
        },
    }
}

/// The operations for each element of the output of an op that computes them one by one; 0 for any other op.
fn of_element(op: &str) -> u64 {
    match op {
        "Abs" | "Acos" | "Acosh" | "Add" | "AddV2" | "Asin" | "Asinh" | "Atan" | "Atan2" | "Atanh" | "BiasAdd"
        | "BiasAddV1" | "Ceil" | "Cos" | "Cosh" | "Digamma" | "Div" | "DivNoNan" | "Elu" | "EluGrad" | "Equal"
        | "Erf" | "Erfc" | "Exp" | "Expm1" | "Floor" | "FloorDiv" | "FloorMod" | "Greater" | "GreaterEqual" | "Inv"
        | "LeakyRelu" | "LeakyReluGrad" | "Less" | "LessEqual" | "Lgamma" | "Log" | "Log1p" | "LogicalAnd"
        | "LogicalNot" | "LogicalOr" | "Maximum" | "Minimum" | "Mod" | "Mul" | "MulNoNan" | "Neg" | "NotEqual"
        | "Pow" | "RealDiv" | "Reciprocal" | "Relu" | "Relu6" | "Relu6Grad" | "ReluGrad" | "Rint" | "Round"
        | "Selu" | "SeluGrad" | "Sigmoid" | "Sign" | "Sin" | "Sinh" | "Softplus" | "SoftplusGrad" | "Softsign"
        | "SoftsignGrad" | "Sqrt" | "Square" | "Sub" | "Tan" | "Tanh" | "TruncateDiv" | "TruncateMod" | "Xdivy"
        | "Xlogy" => 1,
        "ClipByValue" | "ReciprocalGrad" | "InvGrad" | "Rsqrt" | "SqrtGrad" | "SquaredDifference" => 2,
        "SigmoidGrad" | "TanhGrad" => 3,
        "RsqrtGrad" => 4,
        "LogSoftmax" | "Softmax" => 5,
        _ => 0,
    }
}

/// A node, and the shapes around it.
struct Sized<'g> {
    shapes: &'g Shapes,
    node: &'g Node,
    id: NodeId,
}

impl Sized<'_> {
    fn input(&self, index: usize) -> Option<Vec<usize>> {
        known(self.shapes, *self.node.inputs.get(index)?)
    }

    fn output(&self, port: u32) -> Option<Vec<usize>> {
        known(self.shapes, Output { node: self.id, port })
    }

    /// A matrix product: `transposed` is the attribute for a first operand that is turned.
    fn product(&self, transposed: &str) -> Option<u64> {
        let a = self.input(0)?;
        let is_turned = self.node.attrs.bool(transposed).unwrap_or(false);
        let inner = *a.get(a.len().checked_sub(if is_turned { 2 } else { 1 })?)?;
        Some((2 * inner as u64).saturating_mul(elements(&self.output(0)?)))
    }

    /// A sum over the labels that the output lacks; not known of an equation with an ellipsis.
    fn einsum(&self) -> Option<u64> {
        let equation = self.node.attrs.str("equation").ok()?.replace(' ', "");
        let (of_inputs, of_output) = equation.split_once("->").filter(|_| !equation.contains('.'))?;
        let (mut inner, mut seen) = (1u64, Vec::new());
        for (index, labels) in of_inputs.split(',').enumerate() {
            for (label, size) in labels.chars().zip(self.input(index)?) {
                if !of_output.contains(label) && !seen.contains(&label) {
                    seen.push(label);
                    inner = inner.saturating_mul(size as u64);
                }
            }
        }
        let each = if self.node.inputs.len() > 1 || inner > 1 { 2 } else { 0 };
        Some(inner.saturating_mul(times(each, &self.output(0)?)))
    }

    /// Of a filter `[height, width, channels, filters]`, each element of the output takes all but the filters; without the
    /// channels if these are separate.
    fn convolution(&self, is_separate: bool) -> Option<u64> {
        let filter = self.input(1)?;
        let spatial = filter.len().checked_sub(match (is_separate, self.node.op.name) {
            (true, "Dilation2D") => 1,
            (true, _) => 2,
            (false, _) => 1,
        })?;
        Some(times(2, &filter[..spatial]).saturating_mul(elements(&self.output(0)?)))
    }

    /// `image`: the input of the convolution; `filter`: its filter.
    fn gradient_of_convolution(&self, image: &[usize], filter: &[usize]) -> Option<u64> {
        let is_first = self.node.attrs.str("data_format").is_ok_and(|format| format == "NCHW");
        let channels = *image.get(if is_first { 1 } else { 3 })? as u64;
        let strides: u64 = self
            .node
            .attrs
            .ints("strides")
            .ok()?
            .iter()
            .fold(1u64, |all, stride| all.saturating_mul((*stride).max(1) as u64));
        let all = times(2, image).saturating_mul(elements(filter));
        Some(all / (channels * strides).max(1))
    }

    /// The gates of an LSTM: the products, the bias, and about ten operations on each unit.
    fn lstm(&self, x: usize, w: usize) -> Option<u64> {
        let (x, w) = (self.input(x)?, self.input(w)?);
        let [rows, columns] = w[..] else { return None };
        let examples = elements(x.get(..x.len().checked_sub(1)?)?);
        let each = 2 * rows as u64 * columns as u64 + columns as u64 + 10 * (columns as u64 / 4);
        Some(examples.saturating_mul(each))
    }

    /// The gates and the candidate of a GRU, their biases, and about eight operations on each unit.
    fn gru(&self) -> Option<u64> {
        let (x, gates, candidate) = (self.input(0)?, self.input(2)?, self.input(3)?);
        let units = *candidate.get(1)? as u64;
        let each = 2 * (elements(&gates) + elements(&candidate)) + 3 * units + 8 * units;
        Some((*x.first()? as u64).saturating_mul(each))
    }
}

fn known(shapes: &Shapes, output: Output) -> Option<Vec<usize>> {
    shapes.of(output).0?.into_iter().collect()
}

fn elements(sizes: &[usize]) -> u64 {
    sizes.iter().fold(1u64, |all, size| all.saturating_mul(*size as u64))
}

/// So many operations for each element.
fn times(each: u64, sizes: &[usize]) -> u64 {
    each.saturating_mul(elements(sizes))
}

/// The elements of the window of a pool.
fn area(attrs: &Attrs) -> Option<u64> {
    let sizes = attrs.ints("ksize").ok()?;
    Some(sizes.iter().fold(1, |all, size| all.saturating_mul((*size).max(1) as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read;

    /// The operations of the node `y` with these nodes.
    fn of(nodes: &str) -> Option<u64> {
        let text = format!(r#"{{"version": 1, "nodes": {{{nodes}}}}}"#);
        let graph = Graph::new(read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}")).nodes).unwrap();
        operations(&graph, graph.find("y").unwrap())
    }

    fn x(shape: &str) -> String {
        format!(r#""x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": {shape}}}}}"#)
    }

    fn w(shape: &str) -> String {
        format!(r#""w": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": {shape}}}}}"#)
    }

    /// The counts of TensorFlow 2.21's profiler, `tf.compat.v1.profiler.profile(…, float_operation())`.
    #[test]
    fn counts_are_tensorflows() {
        let cases = [
            ("[5, 7]", "[7, 3]", r#""op": "MatMul", "inputs": ["x", "w"]"#, 210),
            ("[7, 5]", "[7, 3]", r#""op": "MatMul", "inputs": ["x", "w"], "attrs": {"transpose_a": true}"#, 210),
            ("[2, 5, 7]", "[2, 7, 3]", r#""op": "BatchMatMulV2", "inputs": ["x", "w"]"#, 420),
            (
                "[2, 8, 8, 3]",
                "[3, 3, 3, 4]",
                r#""op": "Conv2D", "inputs": ["x", "w"], "attrs": {"strides": [1, 1, 1, 1], "padding": "SAME"}"#,
                27648,
            ),
            (
                "[2, 8, 8, 3]",
                "[3, 3, 3, 2]",
                r#""op": "DepthwiseConv2dNative", "inputs": ["x", "w"], "attrs": {"strides": [1, 1, 1, 1], "padding": "VALID"}"#,
                7776,
            ),
            (
                "[2, 8, 8, 3]",
                "[1]",
                r#""op": "MaxPool", "inputs": ["x"], "attrs": {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}"#,
                384,
            ),
            ("[5, 7]", "[1]", r#""op": "Mean", "inputs": ["x", [0, 1]]"#, 35),
            ("[5, 7]", "[1]", r#""op": "Sum", "inputs": ["x", [1]]"#, 30),
            ("[5, 7]", "[1]", r#""op": "Softmax", "inputs": ["x"]"#, 175),
            ("[5, 7]", "[7]", r#""op": "SquaredDifference", "inputs": ["x", "w"]"#, 70),
            ("[5, 7]", "[7]", r#""op": "BiasAdd", "inputs": ["x", "w"]"#, 35),
            ("[5, 7]", "[5, 7]", r#""op": "AddN", "inputs": ["x", "w", "x"]"#, 70),
            ("[5, 7]", "[1]", r#""op": "L2Loss", "inputs": ["x"]"#, 104),
        ];
        for (of_x, of_w, y, wanted) in cases {
            let nodes = format!(r#"{}, {}, "y": {{{y}}}"#, x(of_x), w(of_w));
            assert_eq!(of(&nodes), Some(wanted), "{y} of {of_x} and {of_w}");
        }
    }

    #[test]
    fn a_count_needs_sizes_only_where_it_depends_on_them() {
        let of = |shape: &str, y: &str| of(&format!(r#"{}, {}, "y": {{{y}}}"#, x(shape), w("[7, 3]")));
        assert_eq!(of("[null, 7]", r#""op": "MatMul", "inputs": ["x", "w"]"#), None);
        assert_eq!(of("[null, 7]", r#""op": "Identity", "inputs": ["x"]"#), Some(0));
        assert_eq!(of("[null, 7]", r#""op": "Shape", "inputs": ["x"]"#), Some(0));
        // As for the matrix product.
        let einsum =
            |equation: &str| format!(r#""op": "Einsum", "inputs": ["x", "w"], "attrs": {{"equation": "{equation}"}}"#);
        let [two, three] = ["ab,bc->ac", "tab,bc->tac"].map(einsum);
        assert_eq!((of("[5, 7]", &two), of("[2, 5, 7]", &three)), (Some(210), Some(420)));
        let turned = r#""op": "Einsum", "inputs": ["x"], "attrs": {"equation": "ab->ba"}"#;
        assert_eq!(of("[5, 7]", turned), Some(0));
    }
}
