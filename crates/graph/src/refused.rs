//! Nodes that no step can run but that are kept: of an op that meshtf lacks, or with an attribute that it cannot represent.
//! TensorFlow programs have such nodes in addition to those they run (input pipelines, nodes that only an exporter needs), and
//! a run is refused only if it needs one.

use std::sync::Arc;

use meshtf_tensor::DType;

use super::{GraphError, Node, OpDef, Output, OutputType, op};

/// Most outputs of such a node that are known from the inputs that consume them: nothing else determines their number.
const MAX_PORTS: u32 = 64;

/// The op of every node that no step can run.
static UNKNOWN: OpDef = OpDef::unknown("an op that meshtf does not have");

/// The original statement of such a node, and the reason why it cannot run.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The node's name.
    pub node: String,
    /// The op type as stated.
    pub op: String,
    /// The error found by its reader; `None` if the op is unknown.
    pub why: Option<String>,
    /// The node that cannot run by itself, if this one only depends on it, directly or through others, for inputs without which
    /// it cannot be checked. All nodes of such a chain share that one and hold no copy: a client determines the length of the
    /// chain.
    pub because_of: Option<Arc<Refused>>,
}

impl Refused {
    /// The error when the node is needed.
    pub fn error(&self) -> GraphError {
        let Refused { node, op, why, .. } = self.because_of.as_deref().unwrap_or(self);
        let node = node.clone();
        match why {
            Some(why) => GraphError::CannotRun { node, why: why.clone() },
            None => GraphError::UnknownOp {
                node,
                op: op.clone(),
                nearest: op::nearest(op).into_iter().map(str::to_owned).collect(),
            },
        }
    }
}

/// The op of a node that is kept and cannot run.
pub(super) fn unknown_op() -> &'static OpDef {
    &UNKNOWN
}

/// Whether an output of a node that cannot run can be typed by the input that takes it.
pub(super) fn is_countable(input: Output) -> bool {
    input.port < MAX_PORTS
}

/// Types the outputs of nodes that cannot run by the inputs that consume them, so that they can still be fed.
pub(super) fn type_outputs(nodes: &mut [Node], taken: Vec<(Output, OutputType)>) {
    for (output, ty) in taken {
        let outputs = &mut nodes[output.node.index()].outputs;
        let port = output.port as usize;
        if outputs.len() <= port {
            outputs.resize(port + 1, UNTYPED);
        }
        let is_ref = ty.is_ref || (outputs[port].is_ref && outputs[port].dtype == ty.dtype);
        outputs[port] = OutputType { is_ref, ..ty };
    }
}

/// The type of an output that no runnable node consumes: no client can feed or fetch it.
pub(super) const UNTYPED: OutputType = OutputType { dtype: DType::Variant, is_ref: false };
