//! Why a graph cannot be planned.

use std::fmt;

use meshtf_tensor::device::{DeviceName, DeviceSpec};
use meshtf_tensor::failure::{Code, Failure, Reason, counted};
use meshtf_tensor::{DType, PartialShape};

use crate::GraphError;

/// Most devices that a message lists.
const MAX_LISTED: usize = 32;

/// How a signature uses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A value is given for it.
    Feed,
    /// Its value is asked for.
    Fetch,
    /// It is to run.
    Target,
}

/// Why a graph is not planned. Every message says what is wrong, where, and what would be right.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
// The text of each says what its fields are.
#[allow(missing_docs)]
pub enum PlanError {
    /// A name of the signature stands for no node.
    #[error("{usage} {name}: The operation, '{name}', does not exist in the graph{}", did_you_mean(nearest))]
    NoSuchNode { usage: Use, name: String, nearest: Vec<String> },
    /// A name of the signature stands for an output that its node does not have.
    #[error("{usage} {tensor}: {node} ({op}) has {}, numbered from 0{}", counted(*ports, "output"), as_target(*ports))]
    NoSuchPort { usage: Use, tensor: String, node: String, op: String, ports: usize },
    /// It needs a node that no step can run.
    #[error(transparent)]
    CannotRun(GraphError),
    /// There is neither a fetch nor a target.
    #[error("Must specify at least one target to fetch or execute.")]
    NothingAsked,
    /// The same tensor is fed twice.
    #[error("{tensor} is fed more than once")]
    FedTwice { tensor: String },
    /// A handle of state is fed or fetched.
    #[error("{usage} {tensor}: it is a handle of state on a device, which clients cannot {usage}")]
    Handle { usage: Use, tensor: String, node: String, op: String },
    /// A reference to a variable is fed.
    #[error(
        "{tensor} cannot be fed: input {index} of {node} ({op}) takes it as a reference to a variable, and a fed tensor is only a value"
    )]
    FedReference { tensor: String, node: String, op: String, index: usize },
    /// A placeholder would run that is not fed.
    #[error("You must feed a value for placeholder tensor '{node}' with dtype {}{}", tf_name(*dtype), and_shape(shape))]
    UnfedPlaceholder { node: String, op: String, dtype: DType, shape: PartialShape, device: DeviceName },
    /// A value inside a loop is fetched.
    #[error(
        "fetch {tensor}: it is inside the loop {frame:?}, where it has a value for each iteration; fetch the output of an Exit instead"
    )]
    FetchInLoop { tensor: String, node: String, op: String, frame: String },
    /// No node of the mesh is up.
    #[error("no node is up, so there is no device to run the graph on")]
    NoDevices,
    /// No device is as a node requests it.
    #[error(
        "Cannot assign a device for operation {node}: {node} was explicitly assigned to {requested} but available devices are [ {} ]. {hint}",
        list(devices)
    )]
    NoSuchDevice {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// What it requests.
        requested: DeviceSpec,
        /// The devices that there are, or some of them.
        devices: Vec<DeviceName>,
        /// What may help, as a sentence.
        hint: String,
        /// The whole task is missing, and its name is not a likely misspelling of one that is up.
        is_task_down: bool,
    },
    /// Two nodes that belong on one device are assigned to two.
    #[error(
        "Cannot colocate nodes {first} and {second}: {first} is assigned to {first_device}, {second} to {second_device}, but they \
         belong on one device (a reference to a variable, a handle of state or a _class attribute holds them together)"
    )]
    Apart { first: String, first_device: String, second: String, op: String, second_device: String },
    /// A node is to be where another is that does not exist.
    #[error("Node '{node}' expects to be colocated with unknown node '{with}'{}", did_you_mean(nearest))]
    NoSuchColocation { node: String, op: String, with: String, nearest: Vec<String> },
    /// A node takes values from two loops.
    #[error(
        "The node '{node}' has inputs from different frames. The input '{first}' is in frame '{first_frame}'. The input '{second}' is in \
         frame '{second_frame}'. Values enter a loop through Enter and leave it through Exit"
    )]
    Frames { node: String, op: String, first: String, first_frame: String, second: String, second_frame: String },
    /// A node of a loop is in none.
    #[error(
        "{node} ({op}) is outside of every loop; its input must come from an Enter, directly or through other nodes"
    )]
    OutsideLoop { node: String, op: String },
    /// Loops are in one another more deeply than they may be.
    #[error("{node} ({op}) enters the loop {frame:?} more than {limit} loops deep, which is the limit")]
    LoopsTooDeep { frame: String, node: String, op: String, limit: usize },
    /// A loop has two conditions.
    #[error("the loop {frame:?} has two LoopCond nodes, {first} and {second}; it must have one")]
    TwoConditions { frame: String, first: String, second: String, op: String },
    /// A loop that spans devices has no condition.
    #[error("the loop {frame:?} spans devices but has no LoopCond, so that only one of them could know when it ends")]
    NoCondition { frame: String, node: String, op: String },
}

impl PlanError {
    /// The canonical class, as TensorFlow's for the same fault.
    pub fn code(&self) -> Code {
        match self {
            PlanError::NoSuchNode { .. } => Code::NotFound,
            PlanError::NoDevices => Code::Unavailable,
            _ => Code::InvalidArgument,
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let failure = Failure::new(error.code(), error.to_string());
        match &error {
            PlanError::NoSuchDevice { node, op, is_task_down: true, .. } => {
                failure.at_node(node, op).because(Reason::TaskDown)
            }
            PlanError::NoSuchPort { node, op, .. }
            | PlanError::Handle { node, op, .. }
            | PlanError::FedReference { node, op, .. }
            | PlanError::FetchInLoop { node, op, .. }
            | PlanError::NoSuchDevice { node, op, .. }
            | PlanError::NoSuchColocation { node, op, .. }
            | PlanError::Frames { node, op, .. }
            | PlanError::OutsideLoop { node, op }
            | PlanError::NoCondition { node, op, .. }
            | PlanError::LoopsTooDeep { node, op, .. }
            | PlanError::Apart { second: node, op, .. } => failure.at_node(node, op),
            PlanError::UnfedPlaceholder { node, op, device, .. } => {
                failure.at_node(node, op).on_device(&device.to_string())
            }
            PlanError::CannotRun(GraphError::UnknownOp { node, op, .. }) => failure.at_node(node, op),
            PlanError::TwoConditions { second: node, op, .. } => failure.at_node(node, op),
            PlanError::NoSuchNode { .. }
            | PlanError::CannotRun(_)
            | PlanError::NothingAsked
            | PlanError::FedTwice { .. }
            | PlanError::NoDevices => failure,
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Use::Feed => "feed",
            Use::Fetch => "fetch",
            Use::Target => "run",
        })
    }
}

/// The name TensorFlow's messages have for a dtype: `float` for float32.
fn tf_name(dtype: DType) -> String {
    dtype.proto_name().to_lowercase()
}

fn and_shape(shape: &PartialShape) -> impl fmt::Display + '_ {
    fmt::from_fn(move |f| if shape.0.is_some() { write!(f, " and shape {shape}") } else { Ok(()) })
}

fn as_target(ports: usize) -> &'static str {
    if ports == 0 { "; to run it without a value, name it as a target" } else { "" }
}

fn did_you_mean(nearest: &[String]) -> impl fmt::Display + '_ {
    fmt::from_fn(move |f| match nearest {
        [] => Ok(()),
        names => write!(f, "; did you mean {}?", names.join(" or ")),
    })
}

fn list(devices: &[DeviceName]) -> impl fmt::Display + '_ {
    fmt::from_fn(move |f| {
        for (i, device) in devices.iter().take(MAX_LISTED).enumerate() {
            write!(f, "{}{device}", if i == 0 { "" } else { ", " })?;
        }
        match devices.len().saturating_sub(MAX_LISTED) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    })
}
