//! The errors of planning.

use std::fmt;

use meshtf_tensor::device::{DeviceName, DeviceSpec};
use meshtf_tensor::failure::{Code, Failure, Reason, counted};
use meshtf_tensor::{DType, PartialShape};

use crate::GraphError;

/// Most devices that a message lists.
const MAX_LISTED: usize = 32;

/// The use of a name in a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is fed.
    Feed,
    /// It is fetched.
    Fetch,
    /// It is a target.
    Target,
}

/// The reason why a graph cannot be planned. Every message states the error, its location, and the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
// The text of each variant explains its fields.
#[allow(missing_docs)]
pub enum PlanError {
    /// A name in the signature denotes no node.
    #[error("{usage} {name}: The operation, '{name}', does not exist in the graph{}", did_you_mean(nearest))]
    NoSuchNode { usage: Use, name: String, nearest: Vec<String> },
    /// A name in the signature denotes an output that its node does not have.
    #[error("{usage} {tensor}: {node} ({op}) has {}, numbered from 0{}", counted(*ports, "output"), as_target(*ports))]
    NoSuchPort { usage: Use, tensor: String, node: String, op: String, ports: usize },
    /// The step needs a node that no step can run.
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
    /// A placeholder that is not fed would run.
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
    /// No device satisfies the request of a node.
    #[error(
        "Cannot assign a device for operation {node}: {node} was explicitly assigned to {requested} but available devices are [ {} ]. {hint}",
        list(devices)
    )]
    NoSuchDevice {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// Its request.
        requested: DeviceSpec,
        /// The available devices, or some of them.
        devices: Vec<DeviceName>,
        /// A suggestion, as a sentence.
        hint: String,
        /// The whole task is missing, and its name is not a likely misspelling of one that is up.
        is_task_down: bool,
    },
    /// Two nodes that must share a device are assigned to different ones.
    #[error(
        "Cannot colocate nodes {first} and {second}: {first} is assigned to {first_device}, {second} to {second_device}, but they \
         belong on one device (a reference to a variable, a handle of state or a _class attribute holds them together)"
    )]
    Apart { first: String, first_device: String, second: String, op: String, second_device: String },
    /// A node must share a device with one that does not exist.
    #[error("Node '{node}' expects to be colocated with unknown node '{with}'{}", did_you_mean(nearest))]
    NoSuchColocation { node: String, op: String, with: String, nearest: Vec<String> },
    /// A node takes values from two loops.
    #[error(
        "The node '{node}' has inputs from different frames. The input '{first}' is in frame '{first_frame}'. The input '{second}' is in \
         frame '{second_frame}'. Values enter a loop through Enter and leave it through Exit"
    )]
    Frames { node: String, op: String, first: String, first_frame: String, second: String, second_frame: String },
    /// A control flow node is outside of every loop.
    #[error(
        "{node} ({op}) is outside of every loop; its input must come from an Enter, directly or through other nodes"
    )]
    OutsideLoop { node: String, op: String },
    /// Loops are nested more deeply than the limit.
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
    /// The canonical class, the same as TensorFlow's for this error.
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
            PlanError::Handle { usage: Use::Fetch, node, op, .. } => {
                failure.at_node(node, op).because(Reason::HandleFetched)
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

/// TensorFlow's name for a dtype in messages: `float` for float32.
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
