//! A graph made ready to run on a cluster: pruned to what a signature asks for, simplified, placed on devices, and split into
//! one piece per device with a transfer wherever a value crosses.
//!
//! Pure and deterministic: the same graph, cluster and signature give the same plan, byte for byte.

mod error;
mod frame;
mod group;
mod partition;
mod picture;
mod place;
mod prune;
mod simplify;
mod summary;
mod waits;

use std::collections::{BTreeSet, HashMap, HashSet};

pub use error::{PlanError, Use};
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::{DType, PartialShape};
pub use picture::{Arrow, NodeBox, Picture};
pub use place::meant;
use serde::{Deserialize, Serialize};
pub use summary::{DeviceSummary, Summary};

use crate::op::Role;
use crate::{Attrs, Graph, GraphError, Output, OutputType};

/// Plans what `signature` asks of `graph` on `devices`, whose order does not matter.
///
/// # Errors
/// [`PlanError`]: a name that the graph does not have, a device that does not exist, nodes that must but cannot share a
/// device, a placeholder that is needed and not fed, a node that no step can run, loops that are malformed.
pub fn plan(
    graph: &Graph,
    devices: &[DeviceName],
    signature: &Signature,
    options: &PlanOptions,
) -> Result<Plan, PlanError> {
    let mut pruned = prune::prune(graph, signature)?;
    simplify::simplify(&mut pruned, signature.mode);
    let loops = frame::Loops::find(&pruned)?;
    let placed = place::place(&pruned, devices, options)?;
    refuse_unfed(&pruned, &placed)?;
    partition::partition(&pruned, placed, &loops, signature.mode)
}

/// Plans the body of a function for one device, on which all of it runs, whatever its nodes request.
///
/// # Errors
/// As [`plan`].
pub fn plan_body(graph: &Graph, device: &DeviceName, signature: &Signature) -> Result<Piece, PlanError> {
    let mut pruned = prune::prune_body(graph, signature)?;
    simplify::simplify(&mut pruned, signature.mode);
    let loops = frame::Loops::find(&pruned)?;
    let options = PlanOptions { default_device: device.clone(), soft_placement: true };
    let placed = place::place(&pruned, std::slice::from_ref(device), &options)?;
    refuse_unfed(&pruned, &placed)?;
    let plan = partition::partition(&pruned, placed, &loops, signature.mode)?;
    plan.pieces.into_iter().next().ok_or(PlanError::NothingAsked)
}

/// Whether the graph has all that a step of this signature needs, whatever the devices.
///
/// # Errors
/// [`PlanError`]: a name that the graph does not have, a node that no step can run.
pub fn check(graph: &Graph, signature: &Signature) -> Result<(), PlanError> {
    prune::prune(graph, signature).map(drop)
}

/// How to place nodes that request no device, or one that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Where nodes run that request nothing: a device of the master's task. On other tasks, a device of the same kind is
    /// preferred.
    pub default_device: DeviceName,
    /// Run a node on any device of the task it names if that task has none of the kind or number it names.
    pub soft_placement: bool,
}

/// What a step feeds, fetches and runs. Feeds and fetches are tensors (`name` or `name:port`), targets are nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signature {
    /// What is fed, in the order in which values come with a step.
    pub feeds: Vec<String>,
    /// What is fetched, in the order in which values are answered.
    pub fetches: Vec<String>,
    /// Nodes that run without being fetched.
    pub targets: Vec<String>,
    /// How feeds and fetches go.
    pub mode: Mode,
}

/// How a step takes its feeds and returns its fetches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// All feeds at its start, all fetches at its end.
    #[default]
    Whole,
    /// The same, and each device reports what it ran and when: a [`trace::DeviceTrace`] as one more fetch.
    Traced,
    /// Feeds come, and fetches go, one by one while the step is under way. Such a step may stay unfinished for long, and the
    /// steps of one plan run in their order: those that are under way at once have lanes, and so plans, of their own.
    Partial {
        /// Which lane, from 0.
        lane: u32,
    },
}

impl Mode {
    /// Whether feeds come and fetches go while the step is under way.
    pub fn is_partial(self) -> bool {
        matches!(self, Mode::Partial { .. })
    }
}

/// The transfer by which a feed comes that is given while its step is under way, by its place among the piece's feeds;
/// transfers between pieces count from 0.
pub const fn late_feed(place: u32) -> u32 {
    u32::MAX - place
}

/// For each fetch, the feeds that it cannot be computed without, by their places in the signature.
///
/// # Errors
/// If the graph has no such tensor.
pub fn needed_feeds(graph: &Graph, signature: &Signature) -> Result<Vec<Vec<u32>>, GraphError> {
    let fed: HashMap<Output, u32> = signature
        .feeds
        .iter()
        .zip(0..)
        .map(|(feed, place)| Ok((graph.output(feed)?, place)))
        .collect::<Result<_, _>>()?;
    let needs = |fetch: &String| {
        let mut needed = BTreeSet::new();
        let mut seen = HashSet::new();
        let mut open = vec![(graph.output(fetch)?, false)];
        while let Some((output, is_control)) = open.pop() {
            if let (Some(&place), false) = (fed.get(&output), is_control) {
                needed.insert(place);
            } else if seen.insert(output.node) {
                let node = graph.node(output.node);
                open.extend(node.inputs.iter().map(|&input| (input, false)));
                open.extend(node.control.iter().map(|&node| (Output { node, port: 0 }, true)));
            }
        }
        Ok(needed.into_iter().collect())
    };
    signature.fetches.iter().map(needs).collect()
}

/// A planned graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// One per device that has something to do, in the order of the devices' names.
    pub pieces: Vec<Piece>,
    /// Every transfer between pieces; a transfer's id is its place here.
    pub transfers: Vec<Transfer>,
    /// Where each node that runs was placed, and why, in the graph's order.
    pub placements: Vec<Placement>,
    /// dtype of each feed, in the signature's order.
    pub feed_types: Vec<DType>,
    /// dtype of each fetch, in the signature's order.
    pub fetch_types: Vec<DType>,
}

/// Where a node was placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node's name.
    pub node: String,
    /// Its op.
    pub op: String,
    /// Where it runs.
    pub device: DeviceName,
    /// Why it runs there.
    pub why: Why,
}

/// Why a node was placed where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// Its device string leaves no choice, or its first match was taken.
    Requested,
    /// It goes where the named node is: `_class`, or state it shares.
    Colocated {
        /// The node's name.
        with: String,
    },
    /// What it requested does not exist; soft placement chose this.
    Soft {
        /// Its device string.
        requested: String,
    },
    /// It requested nothing: the master's default device.
    Default,
}

/// A value that crosses from one piece to another: one per value and consuming device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// `name:port`, or `^name` if only the order crosses.
    pub tensor: String,
    /// `None` if only the order crosses.
    pub dtype: Option<DType>,
    /// The device whose piece has it.
    pub from: DeviceName,
    /// The device whose piece takes it.
    pub to: DeviceName,
    /// Bytes a step, if the shape is known without running.
    pub bytes: Option<u64>,
}

/// What one device does in a step.
///
/// What holds for every piece that [`plan`] makes, and what an executor may rely on:
///
/// - `nodes` stand in topological order, over data and control inputs alike, but for the back edges of loops
///   (`NextIteration` to `Merge`), which lead to an earlier node of the same piece.
/// - Every input and control index is in range, and its producer has `frame == output_frame` or is an `Enter` or `Exit`
///   whose `output_frame` is the consumer's `frame`. All inputs of a node come from one frame, the one it runs in.
/// - References and handles (dtype resource) never cross devices: if `input_refs` is true or a handle is taken, the
///   producer is in the same piece. A reference that is used elsewhere is sent as its value.
/// - One Send and one Recv belong to each transfer. Both run once for each iteration of their frame (once a step in
///   frame 0), and a Send of a dead value pushes that it is dead, so each Recv gets exactly one push an iteration.
///   A transfer whose dtype is `None` carries order alone: its Send has no data input, only control inputs, and its
///   Recv has no output; it is dead if what it waits for is dead.
/// - `NextIteration`, `Exit` and `Enter` are never apart from what they belong to: NextIteration is on its Merge's device,
///   Exit on its input's, and each device that uses an Enter's output has an Enter of its own (same name), so that
///   what goes into a loop crosses devices before the loop, and what comes out after it. Small constants that request no
///   device are copied in the same way. Every other node is in exactly one piece.
/// - A piece with a node in a frame has all the frame's parents in `frames`, and knows for each frame where the
///   loop's condition comes from (see [`Frame::pred`]), though it may hold no Enter of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The device that runs it.
    pub device: DeviceName,
    /// Its nodes, in topological order.
    pub nodes: Vec<PieceNode>,
    /// The frames that nodes of this piece run in, parents first. `frames[0]` is the root: outside of every loop.
    pub frames: Vec<Frame>,
    /// The signature's feeds that this piece takes, in the order they come with a step; `PieceOp::Feed` names a place here.
    pub feeds: Vec<u32>,
    /// The signature's fetches that this piece answers, in the order they go back; `PieceOp::Fetch` names a place here.
    pub fetches: Vec<u32>,
    /// How a step takes its feeds and answers its fetches.
    pub mode: Mode,
}

/// A loop as one piece sees it. It runs anew for each iteration of its parent; iterations count from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// `frame_name` of its Enter nodes; empty for the root.
    pub name: String,
    /// Place of the enclosing frame in [`Piece::frames`]; the root is its own parent.
    pub parent: u32,
    /// Most iterations under way at once; 1 for the root.
    pub parallel_iterations: u32,
    /// The node of this piece that answers, once an iteration, whether the loop goes on: its LoopCond, or the Recv of it
    /// if another piece holds that. After an iteration for which it is false or dead there is no further one. `None`
    /// for the root, and for a frame without LoopCond, which has one iteration.
    pub pred: Option<u32>,
}

/// A node of a piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PieceNode {
    /// The graph's name for it; `_Feed/x`, `_Fetch/x`, `_Send/x/7`, `_Recv/x/7` for what planning adds (7: the transfer).
    pub name: String,
    /// What it does.
    pub op: PieceOp,
    /// Where each input comes from: a node of this piece and its port.
    pub inputs: Vec<(u32, u32)>,
    /// Whether each input is taken as a reference to a variable.
    pub input_refs: Vec<bool>,
    /// Nodes of this piece that must have run before.
    pub control: Vec<u32>,
    /// The type of each output.
    pub outputs: Vec<OutputType>,
    /// Complete: every attribute of the op that has a value or default, and those that begin with `_`.
    pub attrs: Attrs,
    /// The frame it runs in, and its inputs are from: a place in [`Piece::frames`].
    pub frame: u32,
    /// The frame its outputs (and control edges from it) are in: its own, but for Enter (the loop's) and Exit (the parent).
    pub output_frame: u32,
}

/// What a node of a piece does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PieceOp {
    /// An op of the vocabulary.
    Op(String),
    /// Answers a fed value.
    Feed(u32),
    /// Hands its input to the client.
    Fetch(u32),
    /// Pushes its input to another piece: `transfers[transfer]`.
    Send {
        /// Its place in the plan's transfers.
        transfer: u32,
        /// The device whose piece takes it.
        to: DeviceName,
    },
    /// Answers what another piece pushes.
    Recv {
        /// Its place in the plan's transfers.
        transfer: u32,
        /// The device whose piece has it.
        from: DeviceName,
    },
}

/// Refuses a placeholder that would certainly run. One with a control input may be in a branch that is not taken; it fails
/// when it runs.
fn refuse_unfed(pruned: &prune::PrunedGraph, placed: &place::Placed) -> Result<(), PlanError> {
    for (item, it) in pruned.items.iter().enumerate() {
        let Some(node) = pruned.node(item).filter(|node| node.op.role == Role::Placeholder) else { continue };
        if it.control.is_empty() {
            return Err(PlanError::UnfedPlaceholder {
                node: node.name.clone(),
                op: node.op.name.to_owned(),
                dtype: node.outputs[0].dtype,
                shape: node.attrs.shape("shape").cloned().unwrap_or(PartialShape::UNKNOWN),
                device: placed.devices[placed.of_item[item][0]].clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
