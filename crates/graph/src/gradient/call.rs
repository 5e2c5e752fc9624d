//! The arguments of a rule: the node whose inputs' gradients it adds, the gradients of its outputs, and helpers that add nodes.

use meshtf_tensor::failure::Failure;
use meshtf_tensor::{DType, Tensor};

use super::context::{Arrival, Contexts};
use super::rules::{self, Stop};
use super::{Gradient, Rows};
use crate::op::Role;
use crate::{Attr, Graph, GraphBuilder, Input, Node, NodeId, OpBuilder, Output};

/// The gradients of a node's inputs, in order; omitted ones have none.
pub(super) type Grads = Result<Vec<Option<Gradient>>, Stop>;

/// The result of adding a node in a rule.
pub(super) type Added = Result<Output, Stop>;

/// One node to differentiate.
pub(super) struct Call<'a> {
    pub g: &'a mut GraphBuilder,
    contexts: &'a mut Contexts,
    /// The scope of these gradients, which distinguishes them from others of the same graph.
    pub source: &'a str,
    pub node: &'a Node,
    pub id: NodeId,
    grads: Vec<Option<Gradient>>,
}

/// The gradient of the first input alone.
pub(super) fn one(output: Output) -> Grads {
    Ok(vec![Some(Gradient::Dense(output))])
}

/// The gradients of the first inputs.
pub(super) fn all<const N: usize>(outputs: [Output; N]) -> Grads {
    Ok(outputs.into_iter().map(|output| Some(Gradient::Dense(output))).collect())
}

/// The gradients of the first inputs, some of which have none.
pub(super) fn some<const N: usize>(outputs: [Option<Output>; N]) -> Grads {
    Ok(outputs.into_iter().map(|output| output.map(Gradient::Dense)).collect())
}

/// No input has a gradient.
pub(super) fn none() -> Grads {
    Ok(Vec::new())
}

impl<'a> Call<'a> {
    pub fn new(
        g: &'a mut GraphBuilder,
        contexts: &'a mut Contexts,
        source: &'a str,
        node: &'a Node,
        id: NodeId,
        grads: Vec<Option<Gradient>>,
    ) -> Self {
        Call { g, contexts, source, node, id, grads }
    }

    /// An input of the node.
    pub fn x(&self, i: usize) -> Output {
        self.node.inputs[i]
    }

    /// An output of the node.
    pub fn y(&self, port: u32) -> Output {
        Output { node: self.id, port }
    }

    /// The dtype of a tensor of the graph that is differentiated.
    pub fn dtype(&self, output: Output) -> DType {
        self.g.settled().output_type(output).dtype
    }

    /// The dtype of the node's first input that has a gradient, or of its first output.
    pub fn t(&self) -> DType {
        let of_inputs = self.node.inputs.iter().map(|&input| self.dtype(input)).find(|dtype| dtype.is_differentiable());
        of_inputs.unwrap_or_else(|| self.node.outputs[0].dtype)
    }

    /// The gradient of an output, dense or sparse; `None` if it has none.
    pub fn gradient(&self, port: usize) -> Option<Gradient> {
        self.grads.get(port).copied().flatten()
    }

    /// The gradient of an output as a dense tensor; `None` if it has none.
    pub fn given(&mut self, port: usize) -> Result<Option<Output>, Stop> {
        let Some(gradient) = self.gradient(port) else { return Ok(None) };
        let dense = super::dense(self.g, gradient)?;
        self.grads[port] = Some(Gradient::Dense(dense));
        Ok(Some(dense))
    }

    /// The gradient of an output as a dense tensor: zeros if it has none.
    pub fn d(&mut self, port: usize) -> Added {
        match self.given(port)? {
            Some(given) => Ok(given),
            None => {
                let y = self.y(port as u32);
                let zeros = zeros_like(self.g, y)?;
                self.grads[port] = Some(Gradient::Dense(zeros));
                Ok(zeros)
            }
        }
    }

    /// The gradient of the first output.
    pub fn dy(&mut self) -> Added {
        self.d(0)
    }

    /// The condition under which a tensor that the node consumes arrives; `None` if no conditional decides it.
    pub fn arrival(&mut self, input: Output) -> Option<Arrival> {
        self.contexts.arrival(self.g.settled(), input)
    }

    /// A number, of the dtype in which the node computes.
    pub fn num(&self, value: f64) -> Input {
        let number = rules::number(self.t(), value);
        Input::Value(number.unwrap_or_else(|| Tensor::scalar(value as f32)))
    }

    /// A builder for a node of that op.
    pub fn op(&mut self, op: &str) -> OpBuilder<'_> {
        self.g.op(op)
    }

    /// A node of an op with one input.
    pub fn un(&mut self, op: &str, x: impl Into<Input>) -> Added {
        Ok(self.g.op(op).input(x).build()?)
    }

    /// A node of an op with two inputs.
    pub fn bin(&mut self, op: &str, x: impl Into<Input>, y: impl Into<Input>) -> Added {
        Ok(self.g.op(op).input(x).input(y).build()?)
    }

    pub fn mul(&mut self, x: impl Into<Input>, y: impl Into<Input>) -> Added {
        Ok(self.g.op("Mul").name("mul").input(x).input(y).build()?)
    }

    pub fn add(&mut self, x: impl Into<Input>, y: impl Into<Input>) -> Added {
        Ok(self.g.op("AddV2").name("add").input(x).input(y).build()?)
    }

    pub fn sub(&mut self, x: impl Into<Input>, y: impl Into<Input>) -> Added {
        Ok(self.g.op("Sub").name("sub").input(x).input(y).build()?)
    }

    pub fn div(&mut self, x: impl Into<Input>, y: impl Into<Input>) -> Added {
        Ok(self.g.op("RealDiv").name("truediv").input(x).input(y).build()?)
    }

    pub fn neg(&mut self, x: impl Into<Input>) -> Added {
        self.un("Neg", x)
    }

    pub fn cast(&mut self, x: Output, to: DType) -> Added {
        Ok(self.g.op("Cast").input(x).attr("DstT", to).build()?)
    }

    pub fn reshape(&mut self, x: impl Into<Input>, shape: impl Into<Input>) -> Added {
        self.bin("Reshape", x, shape)
    }

    /// `x` summed over axes.
    pub fn sum(&mut self, x: impl Into<Input>, axes: impl Into<Input>, keep_dims: bool) -> Added {
        Ok(self.g.op("Sum").input(x).input(axes).attr("keep_dims", keep_dims).build()?)
    }

    /// `x` where `condition` holds, `y` elsewhere; all three may be broadcast.
    pub fn select(&mut self, condition: Output, x: impl Into<Input>, y: impl Into<Input>) -> Added {
        Ok(self.g.op("SelectV2").input(condition).input(x).input(y).build()?)
    }

    /// The concatenation of tensors.
    pub fn concat<I: Into<Input>>(&mut self, parts: impl IntoIterator<Item = I>, axis: i32) -> Added {
        Ok(self.g.op("ConcatV2").name("concat").inputs(parts).input(axis).build()?)
    }

    /// `x[at]` of a vector.
    pub fn element(&mut self, x: Output, at: i32) -> Added {
        let end = if at == -1 { i32::MAX } else { at + 1 };
        let slice = self.g.op("StridedSlice").name("strided_slice").input(x);
        Ok(slice.input([at]).input([end]).input([1]).attr("shrink_axis_mask", 1).build()?)
    }

    /// `x[from..to]` of a vector; both count from the end if negative, and `None` is the end.
    pub fn part(&mut self, x: Output, from: i32, to: Option<i32>) -> Added {
        let slice = self.g.op("StridedSlice").name("strided_slice").input(x);
        let end_mask = i64::from(to.is_none());
        Ok(slice.input([from]).input([to.unwrap_or(0)]).input([1]).attr("end_mask", end_mask).build()?)
    }

    /// The conjugate of a tensor of the graph that is differentiated or of a gradient; real numbers are their own.
    ///
    /// `like` is a tensor of that graph with the same dtype.
    pub fn conj_like(&mut self, x: Output, like: Output) -> Added {
        if self.dtype(like).is_complex() { self.un("Conj", x) } else { Ok(x) }
    }

    /// The conjugate of a tensor of the graph that is differentiated.
    pub fn conj(&mut self, x: Output) -> Added {
        self.conj_like(x, x)
    }

    /// A complex number of two parts, whose dtype `part` is float32 or float64.
    pub fn complex(&mut self, re: impl Into<Input>, im: impl Into<Input>, part: DType) -> Added {
        let whole = if part == DType::F64 { DType::C128 } else { DType::C64 };
        Ok(self.g.op("Complex").input(re).input(im).attr("Tout", whole).build()?)
    }

    /// The shape of a tensor of the graph that is differentiated, as an int32 vector: a constant if it is known.
    pub fn shape(&mut self, of: Output) -> Added {
        self.shape_as(of, DType::I32)
    }

    /// The shape as a vector of int32 or int64.
    pub fn shape_as(&mut self, of: Output, dtype: DType) -> Added {
        match self.g.settled().shapes().known(of) {
            Some(shape) => {
                let sizes: Vec<i64> = shape.dims().iter().map(|&size| size as i64).collect();
                Ok(self.g.constant("Shape", rules::integers(dtype, &sizes))?)
            }
            None => Ok(self.g.op("Shape").input(of).attr("out_type", dtype).build()?),
        }
    }

    /// The shape of a tensor that was added.
    pub fn shape_of_added(&mut self, of: Output) -> Added {
        self.un("Shape", of)
    }

    /// The sizes of a tensor of the differentiated graph, as far as they are known; `None` if not even its rank is.
    pub fn sizes(&self, of: Output) -> Option<Vec<Option<usize>>> {
        if of.node.index() >= self.g.settled().len() {
            return None;
        }
        self.g.settled().shapes().of(of).0
    }

    /// The rank of a tensor of the graph that is differentiated, if it is known.
    pub fn rank(&self, of: Output) -> Option<usize> {
        Some(self.sizes(of)?.len())
    }

    /// The elements of an input that is a constant of integers.
    pub fn constant(&self, input: usize) -> Option<Vec<i64>> {
        let node = self.g.settled().node(self.x(input).node);
        (node.op.role == Role::Const).then(|| node.attrs.tensor("value").ok()?.to_i64s().ok())?
    }

    /// The gradient of an input that was broadcast, from the gradient of the broadcast tensor: summed over the axes along which
    /// it was broadcast. `with` is the other input of the broadcast.
    pub fn reduced(&mut self, gradient: Output, to: Output, with: Output) -> Added {
        if self.g.settled().shapes().are_same(to, with) {
            return Ok(gradient);
        }
        let axes = match (self.sizes(to), self.sizes(with)) {
            (Some(to), Some(with)) => broadcast_axes(&to, &with),
            _ => None,
        };
        let axes: Input = match axes {
            Some(axes) if axes.is_empty() && self.rank(to) >= self.rank(with) => return Ok(gradient),
            Some(axes) => Tensor::vector(axes).into(),
            None => {
                let (to, with) = (self.shape(to)?, self.shape(with)?);
                self.bin("BroadcastGradientArgs", to, with)?.into()
            }
        };
        let sum = self.sum(gradient, axes, true)?;
        let shape = self.shape(to)?;
        self.reshape(sum, shape)
    }

    /// The gradients of two inputs that were broadcast with each other.
    pub fn reduced_pair(&mut self, x: Option<Output>, y: Option<Output>) -> Grads {
        let (to_x, to_y) = (self.x(0), self.x(1));
        let x = x.map(|x| self.reduced(x, to_x, to_y)).transpose()?;
        let y = y.map(|y| self.reduced(y, to_y, to_x)).transpose()?;
        some([x, y])
    }

    /// An attribute of the node, for a rule that passes it on.
    pub fn attr(&self, name: &str) -> Attr {
        self.node.attrs.get(name).cloned().unwrap_or(Attr::Empty)
    }

    /// A bool attribute of the node.
    pub fn flag(&self, name: &str) -> bool {
        self.node.attrs.bool(name).unwrap_or(false)
    }

    /// A node of an op that has these attributes of the node that is differentiated.
    pub fn with_attrs(&mut self, op: &str, inputs: &[Output], names: &[&str]) -> Added {
        let attrs: Vec<(String, Attr)> =
            names.iter().filter_map(|&name| Some((name.to_owned(), self.node.attrs.get(name)?.clone()))).collect();
        let mut node = self.g.op(op).inputs(inputs.iter().copied());
        for (name, value) in attrs {
            node = node.attr(&name, value);
        }
        Ok(node.build()?)
    }

    /// Rows of a gradient.
    pub fn rows(values: Output, indices: Output, dense_shape: Output) -> Gradient {
        Gradient::Sparse(Rows { values, indices, dense_shape })
    }
}

/// Zeros of the shape of a tensor of the graph that is differentiated, or of the value of the variable that it is a handle of.
pub(super) fn zeros_like(g: &mut GraphBuilder, x: Output) -> meshtf_tensor::failure::Result<Output> {
    let graph = g.settled();
    if graph.output_type(x).dtype != DType::Resource {
        return g.op("ZerosLike").input(x).build();
    }
    let zero = rules::number(value_dtype(graph, x), 0.0).unwrap_or_else(|| Tensor::scalar(0.0f32));
    let shape = g.op("VariableShape").input(x).build()?;
    g.op("Fill").input(shape).input(zero).build()
}

/// The dtype of a tensor, or of the value of the variable that it is a handle of.
pub(super) fn value_dtype(graph: &Graph, x: Output) -> DType {
    let dtype = graph.output_type(x).dtype;
    if dtype != DType::Resource {
        return dtype;
    }
    // A handle is passed on from the node that makes the variable, by one input at each node.
    let (mut at, mut left) = (x.node, graph.len());
    while let (false, Some(input), true) = (graph.node(at).op.makes_variable, graph.node(at).inputs.first(), left > 0) {
        (at, left) = (input.node, left - 1);
    }
    graph.node(at).attrs.dtype("dtype").unwrap_or(DType::F32)
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// The axes of the common shape along which a tensor of sizes `to` is broadcast with one of sizes `with`; `None` if that
/// depends on unknown sizes.
fn broadcast_axes(to: &[Option<usize>], with: &[Option<usize>]) -> Option<Vec<i32>> {
    let rank = to.len().max(with.len());
    let size = |sizes: &[Option<usize>], axis: usize| match (axis + sizes.len()).checked_sub(rank) {
        Some(own) => sizes[own],
        None => Some(1),
    };
    let mut axes = Vec::new();
    for axis in 0..rank {
        match (size(to, axis), size(with, axis)) {
            (Some(1), Some(1)) => {}
            (Some(1), _) => axes.push(axis as i32),
            (Some(_), _) | (None, Some(1)) => {}
            (None, _) => return None,
        }
    }
    Some(axes)
}
