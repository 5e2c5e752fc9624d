//! A compiled piece as data: its nodes with the action of each and the targets of its outputs, its frames, its stages.

use std::collections::HashMap;
use std::sync::Arc;

use meshtf_engine::{EngineKernel, Value};
use meshtf_graph::plan::{Mode, PieceOp};
use meshtf_kernels::HostKernel;
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::Failure;

use crate::state::StateOp;

/// A compiled piece. One set of kernels serves one step at a time; for steps that overlap they are compiled again
/// ([`Source`](super::Source)).
pub(crate) struct CompiledPiece {
    /// Shared with the kernels that run in parallel with the step's own thread.
    pub code: Arc<PieceCode>,
    /// The action of each node.
    pub acts: Vec<Act>,
    /// The piece's feeds and fetches, as indices into those of the signature.
    pub feeds: Vec<u32>,
    pub fetches: Vec<u32>,
}

impl CompiledPiece {
    /// The values that the graph gives its nodes.
    pub fn constants(&self) -> impl Iterator<Item = &Value> {
        self.acts.iter().filter_map(|act| match act {
            Act::Const(value) => Some(value),
            _ => None,
        })
    }
}

/// The part that is the same for every step.
pub(crate) struct PieceCode {
    pub nodes: Vec<CompiledNode>,
    pub edges: Vec<Edge>,
    pub frames: Vec<FrameCode>,
    /// The node that receives each transfer.
    pub recvs: HashMap<u32, u32>,
    pub fetches: usize,
    pub mode: Mode,
    /// The nodes in the order of the receives that they wait for. `None` if there are loops or branches, or if nodes other than
    /// receives wait.
    pub stages: Option<Stages>,
    /// A step that was quick may run inline the next time: nothing in it waits, and its inputs alone decide how long it takes.
    pub may_run_inline: bool,
}

pub(crate) struct CompiledNode {
    pub name: String,
    pub op: String,
    /// The frame it runs in.
    pub frame: u32,
    /// The frame its outputs are in.
    pub output_frame: u32,
    /// Its index among the nodes of its frame.
    pub local: u32,
    /// The index of its first input among the input slots of its frame.
    pub first_input: u32,
    pub inputs: u32,
    pub outputs: u32,
    /// Bit i: input i is taken as a reference.
    pub input_refs: u64,
    /// The start of its part of [`PieceCode::edges`]: first the edges of the outputs, in the order of their ports, then the
    /// control edges.
    pub first_edge: u32,
    pub control_edges: u32,
    pub end_edge: u32,
    /// It decides whether the loop of its frame continues.
    pub is_pred: bool,
    /// For a Merge: the number of its inputs that come in a first and in a later iteration.
    pub merges: Option<(u32, u32)>,
}

/// One edge from an output, or from the end of a node, to an input.
pub(crate) struct Edge {
    pub port: u32,
    pub to: u32,
    /// The index of the consumer's input; [`CONTROL`] if only the order matters.
    pub input: u32,
    /// The input's slot in the consumer's frame.
    pub slot: u32,
    /// No later edge takes the same output, so that the value is moved, not shared.
    pub is_last: bool,
    /// From an Enter: the value goes to every iteration, not only to the first.
    pub is_invariant: bool,
}

/// [`Edge::input`] of a control edge.
pub(crate) const CONTROL: u32 = u32::MAX;

/// A frame of the piece.
pub(crate) struct FrameCode {
    /// The enclosing frame; the root's is itself.
    pub parent: u32,
    /// The number of loops around it; 0 for the root.
    pub depth: u32,
    /// Its index among its parent's children.
    pub place: u32,
    pub children: Vec<u32>,
    pub parallel_iterations: u32,
    pub has_pred: bool,
    pub slots: u32,
    /// The initial wait counts of the frame's nodes when an iteration starts.
    pub waits: Vec<Wait>,
    /// The nodes that are ready at once.
    pub sources: Vec<u32>,
}

/// The state of a node of one iteration that still waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    /// Inputs and control inputs to come; for a Merge the control inputs, and one for the data.
    pub pending: u32,
    /// For a Merge that has its data: the index of that input. Before: the number of dead inputs so far.
    pub merged: u32,
    pub is_open: bool,
    pub is_dead: bool,
}

/// The action of a node. `is_kept`: the value is copied to the engine's memory at once, for all its consumers.
pub(crate) enum Act {
    Feed {
        place: u32,
        is_kept: bool,
    },
    Fetch(u32),
    Send {
        transfer: u32,
        to: DeviceName,
    },
    Recv {
        transfer: u32,
        is_kept: bool,
    },
    Const(Value),
    Nothing,
    /// Does nothing either, and is alive even if all its inputs are dead: the gradient of a branch within a loop uses it to
    /// know that the branch is settled.
    ControlTrigger,
    /// Identity and its kin.
    Forward,
    /// IdentityN.
    ForwardAll,
    Switch,
    Merge,
    Enter,
    Exit,
    NextIteration,
    Kernel {
        engine: Option<EngineKernel>,
        host: Option<HostKernel>,
    },
    State(StateOp),
    /// A placeholder without a feed.
    Unfed(Failure),
}

/// The stages of a piece.
pub(crate) struct Stages {
    /// A stage comes after those whose values it takes.
    pub stages: Vec<Stage>,
    /// The nodes that run, stage by stage.
    pub nodes: Vec<Placed>,
    pub receives: Vec<Receive>,
    pub routes: Vec<Route>,
    /// The index in `receives` of each transfer.
    pub by_transfer: HashMap<u32, u32>,
}

pub(crate) struct Stage {
    /// Its part of [`Stages::nodes`].
    pub first: u32,
    pub end: u32,
    /// The number of receives that it waits for.
    pub waits: u32,
}

/// A node in its stage.
pub(crate) struct Placed {
    pub node: u32,
    /// The targets of its outputs: its part of [`Stages::routes`], in the order of the ports.
    pub first_route: u32,
    pub end_route: u32,
    /// A kernel that touches nothing but its inputs, so that it may run in parallel with other kernels.
    pub is_pure: bool,
    /// A control edge orders it after a kernel.
    pub is_after: bool,
}

pub(crate) struct Receive {
    pub placed: Placed,
    /// The stages that wait for it, in their order.
    pub stages: Vec<u32>,
}

/// One route from an output to an input.
pub(crate) struct Route {
    pub port: u32,
    pub slot: u32,
    /// No later route takes the same output, so that the value is moved, not shared.
    pub is_last: bool,
}

impl CompiledNode {
    /// Names this node in a failure that names none. A fetch is named by the output it fetches, since no client wrote a node
    /// for it.
    pub fn blamed(&self, failure: Failure) -> Failure {
        match self.name.strip_prefix("_Fetch/") {
            Some(tensor) if failure.node.is_none() => Failure { node: Some(tensor.to_owned()), ..failure },
            _ => failure.at_node(&self.name, &self.op),
        }
    }
}

/// The op type, for messages and for kernels.
pub(super) fn op_name(op: &PieceOp) -> &str {
    match op {
        PieceOp::Op(op) => op,
        PieceOp::Feed(_) => "_Feed",
        PieceOp::Fetch(_) => "_Fetch",
        PieceOp::Send { .. } => "_Send",
        PieceOp::Recv { .. } => "_Recv",
    }
}
