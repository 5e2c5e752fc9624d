//! Variables: the state that steps read and change, with their first values.

mod initial;
pub mod ops;

use self::ops::on;
pub use initial::Initializer;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Shape};

use super::{Attr, GraphBuilder, OpBuilder, Output};

/// The attribute of a variable's node that specifies whether it is trained.
const TRAINABLE: &str = "_trainable";

/// A variable of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name: of its value in checkpoints, of the node that reads it, and the prefix of its slots' names.
    pub name: String,
    /// Its value at the start of a step: each step reads it once.
    pub value: Output,
    /// Its handle, or a reference to it if [`is_ref`](Variable::is_ref).
    pub handle: Output,
    /// Whether it is a reference variable (VariableV2), as in graphs of TensorFlow 1.
    pub is_ref: bool,
    /// The dtype of its value.
    pub dtype: DType,
    /// The shape of its value.
    pub shape: Shape,
    /// The device that its nodes request; may be empty.
    pub device: String,
    /// Whether an optimizer changes it.
    pub trainable: bool,
    /// The node that assigns its first value; `None` for a variable of a graph that was read.
    pub assign: Option<Output>,
}

/// The specification of a new variable.
#[derive(Clone, Debug, PartialEq)]
pub struct VariableSpec {
    /// Its name.
    pub name: String,
    /// The shape of its value.
    pub shape: Shape,
    /// The dtype of its value; the default is float32.
    pub dtype: DType,
    /// Its first value.
    pub initial: Initializer,
    /// The seed of a random first value.
    pub seed: i64,
    /// Whether an optimizer changes it.
    pub trainable: bool,
    /// The device that it requests; the parts that are left open come from the enclosing scope.
    pub device: String,
    /// Whether it is a reference variable (VariableV2), as the slots of a reference variable are.
    pub is_ref: bool,
}

impl VariableSpec {
    /// A trainable variable of float32.
    pub fn new(name: &str, shape: impl Into<Shape>, initial: Initializer) -> VariableSpec {
        VariableSpec {
            name: name.to_owned(),
            shape: shape.into(),
            dtype: DType::F32,
            initial,
            seed: 0,
            trainable: true,
            device: String::new(),
            is_ref: false,
        }
    }
}

/// Adds a variable: `NAME/variable` is its handle, `NAME` its value, and `NAME/assign` assigns its first value, which the nodes
/// below `NAME/initial` compute. It is stored, and saved, under its name.
///
/// # Errors
/// InvalidArgument if the name is taken or not valid, or the first value does not fit.
pub fn add_variable(g: &mut GraphBuilder, spec: &VariableSpec) -> Result<Variable> {
    let in_variable =
        |failure: Failure| Failure { message: format!("variable {}: {}", spec.name, failure.message), ..failure };
    on(g, &spec.device, |g| {
        let value_name = g.full_name(&spec.name);
        if g.is_taken(&value_name) {
            return Err(Failure::invalid(format!(
                "there is a node {value_name} already; give the variable another name"
            )));
        }
        let handle = g.op(if spec.is_ref { "VariableV2" } else { "VarHandleOp" });
        // The attribute is set only if the variable is not trained, as graphs of other origin lack it.
        let handle = if spec.trainable { handle } else { handle.attr(TRAINABLE, false) };
        let handle = handle
            .name(&format!("{}/variable", spec.name))
            .attr("dtype", spec.dtype)
            .attr("shape", spec.shape.clone())
            .attr("shared_name", value_name.as_str())
            .build()?;
        let value = read(g, handle, spec.is_ref, spec.dtype).name(&spec.name).build()?;
        let initial = g.with_scope(&format!("{}/initial", spec.name), |g| {
            spec.initial.add(g, &value_name, &spec.shape, spec.dtype, spec.seed)
        });
        let initial = initial.map_err(in_variable)?;
        let assign = g.op(if spec.is_ref { "Assign" } else { "AssignVariableOp" });
        let assign = assign.name(&format!("{}/assign", spec.name)).input(handle).input(initial).build()?;
        Ok(Variable {
            name: value_name,
            value,
            handle,
            is_ref: spec.is_ref,
            dtype: spec.dtype,
            shape: spec.shape.clone(),
            device: g.device_of(handle),
            trainable: spec.trainable,
            assign: Some(assign),
        })
    })
}

/// Begins a node that reads a variable.
pub fn read(g: &mut GraphBuilder, handle: Output, is_ref: bool, dtype: DType) -> OpBuilder<'_> {
    if is_ref { g.op("Identity").input(handle) } else { g.op("ReadVariableOp").input(handle).attr("dtype", dtype) }
}

/// The variable of a graph that a node makes or reads: by the name of a VariableV2 or a VarHandleOp, or of the node that
/// [`add_variable`] adds for its value.
///
/// # Errors
/// NotFound or InvalidArgument if there is no such variable, or its shape is not known.
pub fn variable_of(g: &mut GraphBuilder, name: &str) -> Result<Variable> {
    g.settle()?;
    let graph = g.settled();
    let mut output = graph.output(name)?;
    let mut node = graph.node(output.node);
    let mut value = None;
    if node.op.reads_variable {
        value = Some(output);
        output = node.inputs[0];
        node = graph.node(output.node);
    }
    if !node.op.makes_variable {
        return Err(Failure::invalid(format!(
            "{name} is not a variable: it is the output of {} ({})",
            node.name, node.op.name
        )));
    }
    let dtype = node.attrs.dtype("dtype")?;
    let shape: PartialShape = node.attrs.shape("shape")?.clone();
    let Some(shape) = shape.known() else {
        return Err(Failure::invalid(format!("the shape of variable {name} is not known")));
    };
    let shared = node.attrs.str("shared_name").unwrap_or_default();
    let own = if shared.is_empty() { node.name.clone() } else { shared.to_owned() };
    let (is_ref, device) = (node.outputs[0].is_ref, node.device.clone());
    let trainable = !matches!(node.attrs.get(TRAINABLE), Some(Attr::Bool(false)));
    let node_name = node.name.clone();
    let value = match value {
        Some(value) => value,
        None => on(g, &device, |g| read(g, output, is_ref, dtype).name(&format!("{node_name}/read")).build())?,
    };
    Ok(Variable { name: own, value, handle: output, is_ref, dtype, shape, device, trainable, assign: None })
}

/// Adds a node that assigns every variable its first value, except for variables of a graph that was read.
///
/// # Errors
/// InvalidArgument if the name is not valid.
pub fn add_init(g: &mut GraphBuilder, name: &str, variables: &[Variable]) -> Result<Output> {
    let mut init = g.op("NoOp").name(name);
    for assign in variables.iter().filter_map(|variable| variable.assign) {
        init = init.control(assign);
    }
    init.build()
}
