//! A builder of graphs in Rust: nodes added one by one, with device, name and control scopes.
//!
//! Names are made unique as in TensorFlow (`add`, `add_1`), so that a function that builds part of a graph may be called twice.
//! The op's existence is checked at once; the rest of a node is checked when the graph is finished.

mod settle;

use meshtf_tensor::device::DeviceSpec;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::{Attr, Attrs, Graph, GraphError, NodeDef, NodeId, Output, UniqueNames, op};

/// Builds a graph, node by node. A loop is closed with [`add_input`](GraphBuilder::add_input); a builder of an existing graph
/// extends it, and its nodes keep their ids.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    /// The graph that it extends.
    base: Graph,
    /// The nodes that it adds.
    nodes: Vec<NodeDef>,
    names: UniqueNames,
    /// The current name scope: `outer/inner/`, or empty.
    scope: String,
    device: DeviceSpec,
    control: Vec<NodeId>,
}

impl From<Graph> for GraphBuilder {
    /// A builder that extends a graph. The graph's nodes stay unchanged.
    fn from(base: Graph) -> GraphBuilder {
        let mut names = UniqueNames::default();
        base.nodes().for_each(|(_, node)| names.reserve(&node.name));
        GraphBuilder { base, names, ..GraphBuilder::default() }
    }
}

/// An input of an op: an output of a node, or a value.
#[derive(Clone, Debug)]
pub enum Input {
    /// An output of an existing node.
    Output(Output),
    /// A value, which the builder turns into a constant.
    Value(Tensor),
}

impl From<Output> for Input {
    fn from(output: Output) -> Input {
        Input::Output(output)
    }
}

impl<T: Into<Tensor>> From<T> for Input {
    fn from(value: T) -> Input {
        Input::Value(value.into())
    }
}

/// A node under construction; [`build`](OpBuilder::build) adds it.
#[must_use = "a node is added by build()"]
#[derive(Debug)]
pub struct OpBuilder<'g> {
    graph: &'g mut GraphBuilder,
    op: String,
    name: Option<String>,
    inputs: Vec<Input>,
    control: Vec<NodeId>,
    device: String,
    attrs: Attrs,
}

impl GraphBuilder {
    /// A builder without nodes.
    pub fn new() -> Self {
        GraphBuilder::default()
    }

    /// Starts a node of this op type.
    pub fn op(&mut self, op: &str) -> OpBuilder<'_> {
        OpBuilder {
            op: op.to_owned(),
            name: None,
            inputs: Vec::new(),
            control: self.control.clone(),
            device: String::new(),
            attrs: Attrs::default(),
            graph: self,
        }
    }

    /// Adds a constant.
    ///
    /// # Errors
    /// InvalidArgument if the name is not valid.
    pub fn constant(&mut self, name: &str, value: impl Into<Tensor>) -> Result<Output> {
        self.op("Const").name(name).attr("value", value.into()).build()
    }

    /// Adds a placeholder, a tensor that every step feeds.
    ///
    /// # Errors
    /// InvalidArgument if the name is not valid.
    pub fn placeholder(&mut self, name: &str, dtype: DType, shape: impl Into<PartialShape>) -> Result<Output> {
        self.op("Placeholder").name(name).attr("dtype", dtype).attr("shape", shape.into()).build()
    }

    /// Requests `device` for the nodes that `add` adds. The parts that it leaves open come from the enclosing scope.
    ///
    /// # Errors
    /// InvalidArgument if `device` is not a device string; those of `add`.
    pub fn with_device<T>(&mut self, device: &str, add: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let inner = over(&parse(device)?, &self.device);
        let outer = std::mem::replace(&mut self.device, inner);
        let result = add(self);
        self.device = outer;
        result
    }

    /// Requests `device` for the nodes that follow, outside of any [`with_device`](GraphBuilder::with_device).
    ///
    /// # Errors
    /// InvalidArgument if `device` is not a device string.
    pub fn set_device(&mut self, device: &str) -> Result<()> {
        self.device = parse(device)?;
        Ok(())
    }

    /// Puts `scope/` before the names of the nodes that `add` adds, or `scope_1/` if `scope` is taken.
    ///
    /// # Errors
    /// Those of `add`.
    pub fn with_scope<T>(&mut self, scope: &str, add: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let inner = format!("{}/", self.names.unique(&format!("{}{scope}", self.scope)));
        let outer = std::mem::replace(&mut self.scope, inner);
        let result = add(self);
        self.scope = outer;
        result
    }

    /// Makes the nodes that `add` adds wait for these.
    ///
    /// # Errors
    /// Those of `add`.
    pub fn with_control<T>(&mut self, before: &[Output], add: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = self.control.clone();
        self.control.extend(before.iter().map(|output| output.node));
        let result = add(self);
        self.control = outer;
        result
    }

    /// Adds an input to a node that this builder has added: a loop's Merge is added before the NextIteration that it takes.
    ///
    /// # Errors
    /// InvalidArgument if a node is not of this graph, or existed before this builder.
    pub fn add_input(&mut self, node: Output, input: Output) -> Result<()> {
        let name = self.input_name(input)?;
        let Some(added) = node.node.index().checked_sub(self.base.len()) else {
            let why = format!("{} was in the graph before; its inputs cannot change", self.base.node(node.node).name);
            return Err(Failure::invalid(why));
        };
        let def = self.nodes.get_mut(added).ok_or_else(foreign)?;
        let at = def.inputs.iter().position(|input| input.starts_with('^')).unwrap_or(def.inputs.len());
        def.inputs.insert(at, name);
        Ok(())
    }

    /// The name by which a step fetches or feeds this output: `y`, or `y:1`.
    ///
    /// # Panics
    /// For an output of another graph.
    pub fn tensor_name(&self, output: Output) -> String {
        self.input_name(output).expect("the output is of this graph")
    }

    /// The nodes that it has added so far.
    pub fn nodes(&self) -> &[NodeDef] {
        &self.nodes
    }

    /// Checks and links the added nodes. The cost depends on them, not on the size of the graph that it extends.
    ///
    /// # Errors
    /// As [`Graph::new`].
    pub fn finish(self) -> Result<Graph, GraphError> {
        let mut graph = self.base;
        graph.extend(self.nodes)?;
        Ok(graph)
    }

    fn input_name(&self, output: Output) -> Result<String> {
        let name = match output.node.index().checked_sub(self.base.len()) {
            None => &self.base.node(output.node).name,
            Some(added) => &self.nodes.get(added).ok_or_else(foreign)?.name,
        };
        Ok(if output.port == 0 { name.clone() } else { format!("{name}:{}", output.port) })
    }

    /// Reserves a name: no later node gets it until it is released.
    pub fn reserve(&mut self, name: &str) {
        self.names.reserve(name);
    }

    /// Releases a reserved name, which no node has: the next node that requests it gets it.
    pub fn release(&mut self, name: &str) {
        self.names.release(name);
    }

    fn push(&mut self, def: NodeDef) -> Output {
        self.nodes.push(def);
        Output { node: NodeId((self.base.len() + self.nodes.len() - 1) as u32), port: 0 }
    }
}

impl OpBuilder<'_> {
    /// Sets the node's name; the default is the name of its op type.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Adds an input: an output of another node, or a value, which becomes a constant.
    pub fn input(mut self, input: impl Into<Input>) -> Self {
        self.inputs.push(input.into());
        self
    }

    /// Adds inputs, for example the values of a Pack.
    pub fn inputs<I: Into<Input>>(mut self, inputs: impl IntoIterator<Item = I>) -> Self {
        self.inputs.extend(inputs.into_iter().map(Into::into));
        self
    }

    /// Makes the node wait for another.
    pub fn control(mut self, before: Output) -> Self {
        self.control.push(before.node);
        self
    }

    /// Requests a device. The parts that it leaves open come from the enclosing scope.
    pub fn device(mut self, device: &str) -> Self {
        device.clone_into(&mut self.device);
        self
    }

    /// Sets an attribute. Dtypes and counts that can be inferred from the inputs may be omitted.
    pub fn attr(mut self, name: &str, value: impl Into<Attr>) -> Self {
        self.attrs.set(name, value.into());
        self
    }

    /// Adds the node and returns its first output.
    ///
    /// # Errors
    /// InvalidArgument for an unknown op, an invalid device string, and inputs of another graph.
    pub fn build(self) -> Result<Output> {
        let OpBuilder { graph, op, name, inputs, control, device, attrs } = self;
        let def = op::lookup(&op).ok_or_else(|| GraphError::UnknownOp {
            node: name.clone().unwrap_or_else(|| op.clone()),
            nearest: op::nearest(&op).into_iter().map(str::to_owned).collect(),
            op: op.clone(),
        })?;
        let device = over(&parse(&device)?, &graph.device).to_string();
        let name = graph.names.unique(&format!("{}{}", graph.scope, name.as_deref().unwrap_or(&op)));
        let mut names = Vec::with_capacity(inputs.len() + control.len());
        let count = inputs.len();
        for (i, input) in inputs.into_iter().enumerate() {
            let output = match input {
                Input::Output(output) => output,
                Input::Value(value) => {
                    let argument = super::build::argument_name(def, &attrs, count, i);
                    let name = graph.names.unique(&format!("{name}/{argument}"));
                    let attrs = Attrs::from([("dtype", value.dtype().into()), ("value", value.into())]);
                    graph.push(NodeDef {
                        name,
                        op: "Const".into(),
                        device: device.clone(),
                        attrs,
                        ..NodeDef::default()
                    })
                }
            };
            names.push(graph.input_name(output)?);
        }
        for node in control {
            names.push(format!("^{}", graph.input_name(Output { node, port: 0 })?));
        }
        Ok(graph.push(NodeDef { name, op, inputs: names, device, attrs, refused: None }))
    }
}

fn parse(device: &str) -> Result<DeviceSpec> {
    device.parse().map_err(|error: meshtf_tensor::device::NameError| Failure::invalid(error.to_string()))
}

/// The request of `inner`, with the open parts taken from `outer`.
fn over(inner: &DeviceSpec, outer: &DeviceSpec) -> DeviceSpec {
    DeviceSpec {
        job: inner.job.clone().or_else(|| outer.job.clone()),
        task: inner.task.or(outer.task),
        kind: inner.kind.or(outer.kind),
        index: inner.index.or(outer.index),
    }
}

fn foreign() -> Failure {
    Failure::invalid("an input is an output of another graph")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_unique_and_scoped() {
        let mut g = GraphBuilder::new();
        let names: Result<Vec<String>> = (0..3).map(|_| g.constant("add", 1).map(|x| g.tensor_name(x))).collect();
        assert_eq!(names.unwrap(), ["add", "add_1", "add_2"]);
        let inner = |g: &mut GraphBuilder| g.with_scope("layer", |g| g.with_scope("b", |g| g.constant("w", 1)));
        let (first, second) = (inner(&mut g).unwrap(), inner(&mut g).unwrap());
        assert_eq!((g.tensor_name(first), g.tensor_name(second)), ("layer/b/w".into(), "layer_1/b/w".into()));
        let other_case = g.constant("ADD", 1).unwrap();
        assert_eq!(g.tensor_name(other_case), "ADD_3");
        let unnamed = g.op("NoOp").build().unwrap();
        assert_eq!(g.tensor_name(unnamed), "NoOp");
    }

    #[test]
    fn the_number_behind_a_name_is_not_looked_for_from_1_each_time() {
        let mut g = GraphBuilder::new();
        g.constant("add_40000", 1).unwrap();
        // A search from 1 would take over a billion lookups.
        let last = (0..50_000).map(|_| g.op("NoOp").name("add").build().unwrap()).last().unwrap();
        assert_eq!(g.tensor_name(last), "add_50000");
    }

    #[test]
    fn the_inner_device_wins_where_it_says_something() {
        let mut g = GraphBuilder::new();
        let mut device = |outer: &str, inner: &str| {
            let built = g.with_device(outer, |g| g.op("NoOp").device(inner).build());
            built.map(|node| g.nodes()[node.node.index()].device.clone())
        };
        assert_eq!(device("/job:a/task:1", "/gpu:0").unwrap(), "/job:a/task:1/device:GPU:0");
        assert_eq!(device("/job:a/task:1", "/task:2").unwrap(), "/job:a/task:2");
        assert_eq!(device("/job:a/gpu:1", "").unwrap(), "/job:a/device:GPU:1");
        assert!(device("job:a", "").is_err() && device("", "/tpu:0").is_err());
        let after = g.op("NoOp").build().unwrap();
        assert_eq!(g.nodes()[after.node.index()].device, "");
    }

    #[test]
    fn literals_and_control_become_nodes_and_edges() {
        let mut g = GraphBuilder::new();
        let a = g.constant("a", [1.0f32, 2.0]).unwrap();
        let packed = g
            .with_control(&[a], |g| g.op("Pack").name("p").input([3.0f32, 4.0]).input(a).attr("axis", 1).build())
            .unwrap();
        let parts = g.op("Split").name("s").input(0).input(packed).attr("num_split", 2).build().unwrap();
        g.op("Neg").name("n").input(parts.port(1)).build().unwrap();
        let graph = g.finish().unwrap();
        let names: Vec<&str> = graph.nodes().map(|(_, node)| node.name.as_str()).collect();
        assert_eq!(names, ["a", "p/values_0", "p", "s/split_dim", "s", "n"]);
        let node = |name: &str| graph.node(graph.find(name).unwrap());
        assert_eq!(node("p").control, [graph.find("a").unwrap()]);
        assert_eq!(graph.tensor_name(node("n").inputs[0]), "s:1");
    }

    #[test]
    fn a_builder_goes_on_with_a_graph() {
        let mut g = GraphBuilder::new();
        g.constant("x", 2).unwrap();
        let graph = g.finish().unwrap();
        let x = graph.output("x").unwrap();
        let mut g = GraphBuilder::from(graph);
        let again = g.constant("X", 3).unwrap();
        assert_eq!((g.tensor_name(x), g.tensor_name(again)), ("x".into(), "X_1".into()));
        let sum = g.op("Add").name("sum").input(x).input(again).control(x).build().unwrap();
        let refused = g.add_input(x, sum).unwrap_err();
        assert!(refused.message.contains("x was in the graph before"), "{refused}");
        let graph = g.finish().unwrap();
        let node = graph.node(graph.find("sum").unwrap());
        assert_eq!((node.inputs.clone(), node.control.clone()), (vec![x, again], vec![x.node]));
    }

    #[test]
    fn mistakes_are_told_where_they_are_made() {
        let mut g = GraphBuilder::new();
        let far = Output { node: NodeId(7), port: 0 };
        let check = |result: Result<Output>, part: &str| {
            let failure = result.unwrap_err();
            assert!(failure.message.contains(part), "{failure}");
        };
        check(g.op("MatMull").name("m").build(), "node m: unknown op \"MatMull\"; did you mean MatMul");
        check(g.op("Neg").input(far).build(), "another graph");
        assert!(g.add_input(far, far).is_err());
        g.op("Neg").build().unwrap();
        assert!(g.finish().unwrap_err().to_string().contains("Neg takes 1 input, got 0"));
    }
}
