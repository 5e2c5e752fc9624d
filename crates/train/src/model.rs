//! Models written in Rust: values with operators, layers, and an optimizer that minimizes a loss.
//!
//! ```
//! use meshtf_train::model::Model;
//! use meshtf_tensor::DType;
//! use meshtf_train::{Optimizer, Training};
//!
//! let m = Model::new();
//! let x = m.placeholder("x", DType::F32, [None, Some(2)]);
//! let y = m.placeholder("y", DType::I32, [None]);
//! let logits = m.on("/job:worker/task:0", || x.dense("hidden", 8).tanh().dense("out", 3));
//! let loss = logits.sparse_cross_entropy(&y).mean().named("loss");
//! m.minimize(&loss, &Training::new(Optimizer::ADAM, 0.01));
//! let graph = m.finish()?;
//! // A session runs `init` once, and then `train/step` with x and y fed.
//! assert!(graph.find("init").is_some() && graph.find("train/step").is_some());
//! # Ok::<(), meshtf_tensor::failure::Failure>(())
//! ```
//!
//! No call between these lines fails: the first error is remembered, with its context, and [`Model::finish`] returns it.

mod attempt;
mod attention;
pub mod file;
mod layers;
mod math;
mod recurrent;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

pub use math::{Operand, Padding};
use meshtf_graph::gradient::{self, Differentiation, Unconnected};
use meshtf_graph::op::Role;
use meshtf_graph::variable::variable_of;
use meshtf_graph::{Attrs, Graph, GraphBuilder, Input, Node, NodeId, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use crate::job::{REPLICA, UPDATES, names_of_variables};
use crate::{self as train, GLOBAL_STEP, Initializer, Trained, Training, Variable, VariableSpec};

/// A graph under construction. Its clones share it.
#[derive(Clone, Debug, Default)]
pub struct Model(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    g: GraphBuilder,
    variables: Vec<Variable>,
    /// Whether the graph was read, and may have variables that are not known yet.
    has_more: bool,
    /// The nodes that a training step runs in addition to the optimizer's update, for layers that keep averages.
    updates: Vec<Output>,
    /// Whether a step of the model runs these.
    is_minimized: bool,
    global_step: Option<Variable>,
    /// Whether a step trains: fed by the steps that do.
    training: Option<Output>,
    /// The index of the replica, once it was requested.
    replica: Option<Output>,
    seed: i64,
    /// The first error. Nothing is added after it.
    failed: Option<Failure>,
}

/// A tensor of a model.
#[derive(Clone, Debug)]
pub struct Value {
    model: Model,
    /// None after a failure.
    output: Option<Output>,
}

/// The name of the scalar bool that steps which train feed with true, if a layer needs it. It is false by default.
pub const TRAINING: &str = "training";

impl Model {
    /// A model without nodes.
    pub fn new() -> Model {
        Model::default()
    }

    /// Continues with a graph, whose nodes stay unchanged. Its variables are the model's, too, except those of an unknown
    /// shape; the graph's nodes initialise them.
    pub fn from_graph(graph: Graph) -> Model {
        let model = Model::new();
        {
            let mut state = model.state();
            (state.g, state.has_more) = (GraphBuilder::from(graph), true);
        }
        model
    }

    /// The seed of initial values and of dropout from now on; 0 without this.
    pub fn seed(&self, seed: i64) {
        self.state().seed = seed;
    }

    /// A tensor that steps feed.
    pub fn placeholder(&self, name: &str, dtype: DType, shape: impl Into<PartialShape>) -> Value {
        self.add(|state| state.g.placeholder(name, dtype, shape))
    }

    /// A constant.
    pub fn constant(&self, value: impl Into<Tensor>) -> Value {
        self.add(|state| state.g.constant("Const", value))
    }

    /// A tensor of the graph by its name.
    pub fn tensor(&self, name: &str) -> Value {
        self.add(|state| {
            state.g.settle()?;
            Ok(state.g.settled().output(name)?)
        })
    }

    /// A new variable of float32 that is trained; its value.
    pub fn variable(&self, name: &str, shape: impl Into<Shape>, initial: Initializer) -> Value {
        self.variable_of(&VariableSpec::new(name, shape, initial))
    }

    /// A new variable; its value. The model's seed is added to that of `spec`.
    pub fn variable_of(&self, spec: &VariableSpec) -> Value {
        self.add(|state| Ok(state.variable(spec)?.value))
    }

    /// Adds a node of any op; returns its first output.
    pub fn op(&self, op: &str, inputs: &[&Value], attrs: Attrs) -> Value {
        let inputs: Vec<Option<Output>> = inputs.iter().map(|value| value.output).collect();
        self.add(|state| {
            let mut node = state.g.op(op);
            for input in inputs {
                node = node.input(input.ok_or_else(after)?);
            }
            for (name, value) in attrs.0 {
                node = node.attr(&name, value);
            }
            node.build()
        })
    }

    /// Adds a node of any op under a name; returns its name, to which a number is appended if another node has it, and all its
    /// outputs. After a failure there is neither.
    pub fn node(&self, op: &str, name: &str, inputs: &[&Value], attrs: Attrs) -> (String, Vec<Value>) {
        let inputs: Vec<Option<Output>> = inputs.iter().map(|value| value.output).collect();
        let first = self.add(|state| {
            let mut node = state.g.op(op).name(name);
            for input in inputs {
                node = node.input(input.ok_or_else(after)?);
            }
            for (name, value) in attrs.0 {
                node = node.attr(&name, value);
            }
            node.build()
        });
        let Some(output) = first.output else { return (String::new(), Vec::new()) };
        let count = self.state().g.settled().node(output.node).outputs.len();
        (first.name(), (0..count as u32).map(|port| first.port(port)).collect())
    }

    /// The gradients of the sum of the elements of some values with respect to others, in their order; zeros for a value that
    /// none of them depends on. Empty after a failure.
    pub fn gradients(&self, of: &[&Value], by: &[&Value]) -> Vec<Value> {
        let outputs = |values: &[&Value]| values.iter().map(|value| value.output).collect::<Option<Vec<Output>>>();
        let (Some(ys), Some(xs)) = (outputs(of), outputs(by)) else { return Vec::new() };
        let mut state = self.state();
        if state.failed.is_some() {
            return Vec::new();
        }
        match state.gradients(&ys, &xs) {
            Ok(found) => {
                drop(state);
                found.into_iter().map(|output| Value { model: self.clone(), output: Some(output) }).collect()
            }
            Err(failure) => {
                state.failed = Some(failure);
                Vec::new()
            }
        }
    }

    /// Requests a device for the nodes that `add` adds; see [`GraphBuilder::with_device`].
    pub fn on<T>(&self, device: &str, add: impl FnOnce() -> T) -> T {
        let outer = self.state().g.enter_device(device);
        match outer {
            Ok(outer) => {
                let made = add();
                self.state().g.leave_device(outer);
                made
            }
            Err(failure) => {
                self.fail(failure);
                add()
            }
        }
    }

    /// Puts `scope/` before the names of the nodes that `add` adds; see [`GraphBuilder::with_scope`].
    pub fn scope<T>(&self, scope: &str, add: impl FnOnce() -> T) -> T {
        let outer = self.state().g.enter_scope(scope);
        let made = add();
        self.state().g.leave_scope(outer);
        made
    }

    /// Adds the nodes that train the model's trainable variables by the gradients of a loss: the node `train/step`. Of the
    /// variables of a graph that was read, those that the loss depends on are trained.
    pub fn minimize(&self, loss: &Value, training: &Training) {
        let variables = self.variables();
        let needed = self.state().before(loss.output);
        let is_trained = |variable: &Variable| match variable.assign {
            Some(_) => variable.trainable,
            None => variable.trainable && variable.dtype.is_float() && needed.contains(&variable.handle.node),
        };
        let trained: Vec<Variable> = variables.into_iter().filter(is_trained).collect();
        self.minimize_by(loss, &trained, training);
    }

    /// As [`minimize`](Model::minimize), for these variables only. Returns the added nodes, unless an error occurred.
    pub fn minimize_by(&self, loss: &Value, variables: &[Variable], training: &Training) -> Option<Trained> {
        let output = loss.output;
        let mut state = self.state();
        if state.failed.is_some() {
            return None;
        }
        match state.minimize(output, variables, training) {
            Ok(trained) => Some(trained),
            Err(failure) => {
                state.failed = Some(failure);
                None
            }
        }
    }

    /// The number of nodes so far.
    pub fn len(&self) -> usize {
        self.state().g.settled().len()
    }

    /// Whether it has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The variables so far.
    pub fn variables(&self) -> Vec<Variable> {
        let mut state = self.state();
        if state.failed.is_none()
            && let Err(failure) = state.find_more()
        {
            state.failed = Some(failure);
        }
        state.variables.clone()
    }

    /// The number of updates so far, before the step: an int64.
    pub fn global_step(&self) -> Value {
        self.add(State::global_step)
    }

    /// Whether the step trains, a bool: steps that do feed [`TRAINING`] with true.
    pub fn is_training(&self) -> Value {
        self.add(State::is_training)
    }

    /// The index of the worker's replica in a training with several, an int64; 0 otherwise. Add it to a seed to have other
    /// random numbers on each worker.
    pub fn replica(&self) -> Value {
        self.add(State::replica)
    }

    /// The graph so far, as [`finish`](Model::finish) returns it, and the node that initialises its variables, if any is new. The
    /// model continues as it is.
    ///
    /// # Errors
    /// The first error since the model was created.
    pub fn graph(&self) -> Result<(Graph, Option<String>)> {
        let mut state = self.state();
        match &state.failed {
            Some(failure) => Err(failure.clone()),
            None => state.complete(),
        }
    }

    /// The graph, with the node `init` that initialises every variable (`init_1` if that name is taken), except those of a
    /// graph that was read; without other variables, there is no such node. If layers keep running averages and the model was
    /// not minimized, the node [`UPDATES`] updates those, and a training of the graph runs it in each step. The model
    /// continues with that graph as with one that was read.
    ///
    /// # Errors
    /// The first error since the model was created.
    pub fn finish(&self) -> Result<Graph> {
        let mut state = self.state();
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let (graph, _) = state.complete()?;
        // Values keep their names, and the model may continue.
        state.g = GraphBuilder::from(graph.clone());
        state.variables.clear();
        state.has_more = true;
        state.updates.clear();
        state.is_minimized = false;
        Ok(graph)
    }

    /// Adds an output, unless an error occurred before.
    fn add(&self, add: impl FnOnce(&mut State) -> Result<Output>) -> Value {
        let mut state = self.state();
        let output = match state.failed {
            Some(_) => None,
            None => match add(&mut state).and_then(|output| state.g.settle().map(|()| output)) {
                Ok(output) => Some(output),
                Err(failure) => {
                    state.failed = Some(failure);
                    None
                }
            },
        };
        drop(state);
        Value { model: self.clone(), output }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    fn fail(&self, failure: Failure) {
        self.state().failed.get_or_insert(failure);
    }

    /// A value that cannot exist, with the reason.
    fn refuse(&self, why: String) -> Value {
        self.fail(Failure::invalid(why));
        Value { model: self.clone(), output: None }
    }
}

impl State {
    fn variable(&mut self, spec: &VariableSpec) -> Result<Variable> {
        let spec = VariableSpec { seed: spec.seed.wrapping_add(self.seed), ..spec.clone() };
        let variable = train::add_variable(&mut self.g, &spec)?;
        self.variables.push(variable.clone());
        Ok(variable)
    }

    /// The graph with the nodes that initialise new variables and update averages, and the first of the two.
    fn complete(&mut self) -> Result<(Graph, Option<String>)> {
        self.g.settle()?;
        let mut g = GraphBuilder::from(self.g.settled().clone());
        let has_new = self.variables.iter().any(|variable| variable.assign.is_some());
        let init = if has_new { Some(train::add_init(&mut g, "init", &self.variables)?) } else { None };
        let init = init.map(|init| g.tensor_name(init));
        if !self.is_minimized {
            add_updates(&mut g, &self.updates)?;
        }
        Ok((g.finish()?, init))
    }

    /// Adds the variables of the graph that was read.
    fn find_more(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.has_more) {
            return Ok(());
        }
        self.g.settle()?;
        let outer = self.g.enter_root();
        for name in names_of_variables(self.g.settled()) {
            // One of an unknown shape can be used, but not trained or saved.
            let found = variable_of(&mut self.g, &name).ok();
            let is_new = |one: &Variable| self.variables.iter().all(|known| known.handle != one.handle);
            self.variables.extend(found.filter(is_new));
        }
        self.g.leave_scope(outer);
        self.g.settle()
    }

    /// The nodes that an output depends on.
    fn before(&self, output: Option<Output>) -> HashSet<NodeId> {
        let (mut open, mut seen) = (Vec::from_iter(output.map(|output| output.node)), HashSet::new());
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                open.extend(self.g.settled().node(id).inputs.iter().map(|input| input.node));
            }
        }
        seen
    }

    fn global_step(&mut self) -> Result<Output> {
        if let Some(step) = &self.global_step {
            return Ok(step.value);
        }
        if self.g.is_taken(GLOBAL_STEP) {
            let outer = self.g.enter_root();
            let own = variable_of(&mut self.g, GLOBAL_STEP);
            self.g.leave_scope(outer);
            let own = own?;
            if own.dtype != DType::I64 || own.shape.rank() > 0 {
                let why = format!("{GLOBAL_STEP} is {}{}; a count of steps is int64[]", own.dtype, own.shape);
                return Err(Failure::invalid(why));
            }
            return Ok(self.global_step.insert(own).value);
        }
        let spec = VariableSpec {
            dtype: DType::I64,
            trainable: false,
            ..VariableSpec::new(GLOBAL_STEP, Shape::scalar(), Initializer::Zeros)
        };
        let outer = self.g.enter_root();
        let step = self.variable(&spec);
        self.g.leave_scope(outer);
        let step = step?;
        self.global_step = Some(step.clone());
        Ok(step.value)
    }

    fn is_training(&mut self) -> Result<Output> {
        if let Some(training) = self.training {
            return Ok(training);
        }
        let is_flag =
            |node: &Node| node.op.is_fed && node.op.role != Role::Placeholder && node.outputs[0].dtype == DType::Bool;
        let training = self.find_or_add(TRAINING, is_flag, |g| {
            g.op("PlaceholderWithDefault").name(TRAINING).input(false).attr("shape", Shape::scalar()).build()
        })?;
        Ok(*self.training.insert(training))
    }

    /// The index of the replica, an int64.
    fn replica(&mut self) -> Result<Output> {
        if let Some(replica) = self.replica {
            return Ok(replica);
        }
        let is_number = |node: &Node| node.op.role == Role::Const && node.outputs[0].dtype == DType::I64;
        let replica = self.find_or_add(REPLICA, is_number, |g| g.constant(REPLICA, 0i64))?;
        Ok(*self.replica.insert(replica))
    }

    /// The output of the node of this name, if it matches; else adds it, outside of all scopes.
    fn find_or_add(
        &mut self,
        name: &str,
        is_it: impl Fn(&Node) -> bool,
        add: impl FnOnce(&mut GraphBuilder) -> Result<Output>,
    ) -> Result<Output> {
        self.g.settle()?;
        let graph = self.g.settled();
        if let Some(node) = graph.find(name).filter(|&id| is_it(graph.node(id))) {
            return Ok(Output { node, port: 0 });
        }
        let outer = self.g.enter_root();
        let added = add(&mut self.g);
        self.g.leave_scope(outer);
        added
    }

    fn gradients(&mut self, ys: &[Output], xs: &[Output]) -> Result<Vec<Output>> {
        // The gradient by a handle includes that of rows that were looked up through it.
        let by: Vec<Output> = xs
            .iter()
            .map(|x| self.variables.iter().find(|variable| variable.value == *x).map_or(*x, |variable| variable.handle))
            .collect();
        let options = Differentiation { unconnected: Unconnected::Zero, ..Differentiation::default() };
        let found = gradient::gradients(&mut self.g, ys, &by, &options)?;
        let mut whole = Vec::with_capacity(xs.len());
        for (x, found) in xs.iter().zip(found) {
            let device = self.g.device_of(*x);
            let found = found.ok_or_else(|| Failure::invalid(format!("{} has no gradient", self.g.tensor_name(*x))))?;
            whole.push(self.g.with_device(&device, |g| gradient::dense(g, found))?);
        }
        self.g.settle()?;
        Ok(whole)
    }

    fn minimize(&mut self, loss: Option<Output>, variables: &[Variable], training: &Training) -> Result<Trained> {
        let loss = loss.ok_or_else(after)?;
        let gradients = train::gradients(&mut self.g, &[loss], variables)?;
        let updates = self.updates.clone();
        self.is_minimized = true;
        let mut trained = train::apply_with(&mut self.g, variables, &gradients, training, &updates)?;
        // The step counter may have existed before, with its initialiser.
        trained.variables.retain(|variable| self.variables.iter().all(|known| known.name != variable.name));
        self.variables.extend(trained.variables.clone());
        Ok(trained)
    }
}

impl Value {
    /// The name by which steps fetch or feed it; empty after a failure.
    pub fn name(&self) -> String {
        self.output.map(|output| self.model.state().g.tensor_name(output)).unwrap_or_default()
    }

    /// The same value under a name; if another node has it, in whatever case of letters, a number is appended, as for all
    /// nodes.
    pub fn named(&self, name: &str) -> Value {
        let output = self.output;
        self.model.add(|state| state.g.op("Identity").name(name).input(output.ok_or_else(after)?).build())
    }

    /// Its dtype; float32 after a failure.
    pub fn dtype(&self) -> DType {
        self.output.map_or(DType::F32, |output| self.model.state().g.settled().output_type(output).dtype)
    }

    /// The known part of its shape.
    pub fn shape(&self) -> PartialShape {
        self.output.map_or(PartialShape::UNKNOWN, |output| self.model.state().g.settled().shapes().of(output))
    }

    /// Adds a node that takes this value and `others`.
    fn with(&self, op: &str, others: impl IntoIterator<Item = Input>) -> Value {
        self.with_attrs(op, others, Attrs::default())
    }

    fn with_attrs(&self, op: &str, others: impl IntoIterator<Item = Input>, attrs: Attrs) -> Value {
        let output = self.output;
        self.model.add(|state| {
            let mut node = state.g.op(op).input(output.ok_or_else(after)?).inputs(others);
            for (name, value) in attrs.0 {
                node = node.attr(&name, value);
            }
            node.build()
        })
    }

    /// This as an input; after a failure, a dummy.
    fn input(&self) -> Input {
        self.output.map_or_else(|| Input::Value(Tensor::scalar(0f32)), Input::Output)
    }

    fn port(&self, port: u32) -> Value {
        Value { model: self.model.clone(), output: self.output.map(|output| output.port(port)) }
    }

    /// Its sizes, at least `least` of them, of which only the first may be unknown.
    fn sizes(&self, what: &str, least: usize) -> Option<Vec<Option<usize>>> {
        self.output?;
        let shape = self.shape();
        match &shape.0 {
            Some(sizes) if sizes.len() >= least && sizes[1..].iter().all(Option::is_some) => Some(sizes.clone()),
            _ => {
                let name = self.name();
                self.model.fail(Failure::invalid(format!(
                    "{what}: {name} has shape {shape}; expected at least {least} dimensions, of which only the first may \
                     be unknown"
                )));
                None
            }
        }
    }
}

/// Adds the node [`UPDATES`], outside of all scopes, if layers keep averages.
fn add_updates(g: &mut GraphBuilder, updates: &[Output]) -> Result<()> {
    if updates.is_empty() {
        return Ok(());
    }
    let outer = g.enter_root();
    let added = updates.iter().fold(g.op("NoOp").name(UPDATES), |all, &one| all.control(one)).build();
    g.leave_scope(outer);
    added.map(|_| ())
}

/// The placeholder failure of nodes that are not added after a failure; it is never returned to the caller.
fn after() -> Failure {
    Failure::invalid("an earlier call failed")
}

#[cfg(test)]
mod tests;
