//! The plan of a step on a cluster: the graph pruned to a signature, simplified, placed on devices, and split into one piece
//! per device with a transfer wherever a value crosses.
//!
//! Pure and deterministic: the same graph, devices, facts about them and signature give the same plan, byte for byte.

mod by_cost;
mod divide;
mod error;
mod frame;
mod group;
mod partition;
mod picture;
mod place;
mod prune;
pub mod scaling;
mod simplify;
mod summary;
mod svg;
mod totals;
mod waits;

use std::collections::{BTreeSet, HashMap, HashSet};

pub use by_cost::{ByCost, DeviceEstimate, Estimate, LinkRate, Measured, NextBest, PathEstimate, PlaceBy};
pub use divide::{divided, divided_among};
pub use error::{PlanError, Use};
use meshtf_tensor::device::{DeviceFacts, DeviceName};
use meshtf_tensor::{DType, PartialShape};
pub use picture::{Arrow, NodeBox, Picture};
pub use place::meant;
use serde::{Deserialize, Serialize};
pub use summary::{DeviceSummary, Summary};
pub use totals::{Total, totals};

use crate::op::Role;
use crate::{Attrs, Graph, GraphError, Node, NodeId, Output, OutputType};

/// Plans `signature` of `graph` on `devices`, whose order does not matter. Of two entries of one device the first counts.
///
/// Placement decides by the names of the devices, unless the options have it decide by cost where names leave a choice.
///
/// # Errors
/// [`PlanError`]: a name that the graph does not have, a device that does not exist, nodes that must but cannot share a device,
/// a placeholder that is needed and not fed, a node that no step can run, malformed loops.
pub fn plan(
    graph: &Graph,
    devices: &[DeviceFacts],
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

/// Plans the body of a function for one device, on which all of it runs regardless of the devices its nodes request.
///
/// # Errors
/// As [`plan`].
pub fn plan_body(graph: &Graph, device: &DeviceName, signature: &Signature) -> Result<Piece, PlanError> {
    let mut pruned = prune::prune_body(graph, signature)?;
    simplify::simplify(&mut pruned, signature.mode);
    let loops = frame::Loops::find(&pruned)?;
    let options = PlanOptions { default_device: device.clone(), soft_placement: true, by_cost: None };
    let placed = place::place(&pruned, &[DeviceFacts::unknown(device.clone())], &options)?;
    refuse_unfed(&pruned, &placed)?;
    let plan = partition::partition(&pruned, placed, &loops, signature.mode)?;
    plan.pieces.into_iter().next().ok_or(PlanError::NothingAsked)
}

/// Checks that the graph has everything that a step of this signature needs, on any devices.
///
/// # Errors
/// [`PlanError`]: a name that the graph does not have, a node that no step can run.
pub fn check(graph: &Graph, signature: &Signature) -> Result<(), PlanError> {
    prune::prune(graph, signature).map(drop)
}

/// The placement of nodes that request no device, or one that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// The device of nodes that request none: a device of the master's task. On other tasks, a device of the same kind is
    /// preferred.
    pub default_device: DeviceName,
    /// Run a node on any device of the requested task if that task has no device of the requested kind or number.
    pub soft_placement: bool,
    /// Place nodes whose requests several devices satisfy by cost, rather than on the first of these devices.
    pub by_cost: Option<ByCost>,
}

/// The feeds, fetches and targets of a step. Feeds and fetches are tensors (`name` or `name:port`), targets are nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signature {
    /// The fed tensors, in the order of the values that come with a step.
    pub feeds: Vec<String>,
    /// The fetched tensors, in the order of the values in the answer.
    pub fetches: Vec<String>,
    /// Nodes that run without being fetched.
    pub targets: Vec<String>,
    /// The time at which feeds are received and fetches are returned.
    pub mode: Mode,
}

impl Signature {
    /// With each placeholder of the graph that the step needs among the feeds: to plan a step without its values.
    #[must_use]
    pub fn with_placeholders(mut self, graph: &Graph) -> Signature {
        let needed = scaling::needed(graph, &self);
        let fed = self.feeds.iter().filter_map(|feed| graph.output(feed).ok());
        let fed: HashSet<NodeId> = fed.map(|output| output.node).collect();
        let is_open = |(id, node): &(NodeId, &Node)| {
            node.op.role == Role::Placeholder && needed.contains(id) && !fed.contains(id)
        };
        self.feeds.extend(graph.nodes().filter(is_open).map(|(_, node)| node.name.clone()));
        self
    }
}

/// The time at which a step receives its feeds and returns its fetches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// All feeds at its start, all fetches at its end.
    #[default]
    Whole,
    /// The same, and each device reports the nodes that it ran, with times: a [`crate::trace::DeviceTrace`] as one more fetch.
    Traced,
    /// Feeds are received, and fetches returned, one by one while the step runs. Such a step may stay unfinished for long, and
    /// the steps of one plan run in order: concurrent ones have separate lanes, and so separate plans.
    Partial {
        /// The lane, from 0.
        lane: u32,
    },
}

impl Mode {
    /// Whether feeds are received and fetches returned while the step runs.
    pub fn is_partial(self) -> bool {
        matches!(self, Mode::Partial { .. })
    }
}

/// The transfer of a feed that is received while its step runs, by its index among the piece's feeds; transfers between pieces
/// count from 0.
pub const fn late_feed(place: u32) -> u32 {
    u32::MAX - place
}

/// For each fetch, the feeds that it depends on, by their indices in the signature.
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
    /// One per device that has nodes to run, in the order of the devices' names.
    pub pieces: Vec<Piece>,
    /// Every transfer between pieces; a transfer's id is its index.
    pub transfers: Vec<Transfer>,
    /// The placement of each node that runs, and the reason for it, in the graph's order.
    pub placements: Vec<Placement>,
    /// The dtype of each feed, in the signature's order.
    pub feed_types: Vec<DType>,
    /// The dtype of each fetch, in the signature's order.
    pub fetch_types: Vec<DType>,
    /// The expectation of the placement, if it was made by cost.
    pub estimate: Option<Estimate>,
}

/// The placement of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node's name.
    pub node: String,
    /// Its op.
    pub op: String,
    /// The device that runs it.
    pub device: DeviceName,
    /// The reason for the placement.
    pub why: Why,
}

/// The reason for the placement of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// Its device string leaves no choice, or its first match was taken.
    Requested,
    /// It must share a device with the named node: `_class`, or shared state.
    Colocated {
        /// The node's name.
        with: String,
    },
    /// The requested device does not exist; soft placement chose this one.
    Soft {
        /// Its device string.
        requested: String,
    },
    /// It requested no device: the master's default device.
    Default,
    /// Its request leaves a choice: the device by which a step is expected to end soonest.
    Cost,
}

/// A value that crosses from one piece to another: one per value and consuming device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// `name`, or `name:port` for another output than the first; `^name` for a control edge.
    pub tensor: String,
    /// `None` for a control edge.
    pub dtype: Option<DType>,
    /// The device whose piece sends it.
    pub from: DeviceName,
    /// The device whose piece receives it.
    pub to: DeviceName,
    /// Bytes per step, if the shape is known without running the graph.
    pub bytes: Option<u64>,
}

/// The part of a step that runs on one device.
///
/// Invariants of every piece that [`plan`] makes, on which an executor may rely:
///
/// - `nodes` are in topological order, over data and control inputs alike, except for the back edges of loops (`NextIteration`
///   to `Merge`), which lead to an earlier node of the same piece.
/// - Every input and control index is in range, and its producer has `frame == output_frame` or is an `Enter` or `Exit`
///   whose `output_frame` is the consumer's `frame`. All inputs of a node come from one frame, the one it runs in.
/// - References and handles (dtype resource) never cross devices: if `input_refs` is true or a handle is consumed, the producer
///   is in the same piece. A reference that is used elsewhere is sent as its value.
/// - Each transfer has one Send and one Recv. Both run once for each iteration of their frame (once per step in frame 0), and a
///   Send of a dead value sends its deadness, so each Recv receives exactly one value per iteration. A transfer whose dtype is
///   `None` is a control edge: its Send has no data input, only control inputs, and its Recv has no output; it is dead if one
///   of its control inputs is dead.
/// - `NextIteration`, `Exit` and `Enter` are never separated from the nodes they belong to: NextIteration is on its Merge's
///   device, Exit on its input's, and each device that uses an Enter's output has a separate Enter (same name), so that values
///   cross devices before they enter the loop, and after they leave it. Small constants that request no device are copied in
///   the same way. Every other node is in exactly one piece.
/// - A piece with a node in a frame has all the frame's parents in `frames`, and specifies for each frame the source of the
///   loop's condition (see [`Frame::pred`]), even if it has no Enter of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The device that runs it.
    pub device: DeviceName,
    /// Its nodes, in topological order.
    pub nodes: Vec<PieceNode>,
    /// The frames of the nodes of this piece, parents first. `frames[0]` is the root: outside of every loop.
    pub frames: Vec<Frame>,
    /// The signature's feeds that this piece uses, in the order they come with a step; `PieceOp::Feed` is an index into this
    /// list.
    pub feeds: Vec<u32>,
    /// The signature's fetches that this piece answers, in the order they are returned; `PieceOp::Fetch` is an index into this
    /// list.
    pub fetches: Vec<u32>,
    /// The time at which a step receives its feeds and returns its fetches.
    pub mode: Mode,
}

/// A loop in one piece. It runs anew for each iteration of its parent; iterations count from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// `frame_name` of its Enter nodes; empty for the root.
    pub name: String,
    /// Index of the enclosing frame in [`Piece::frames`]; the root is its own parent.
    pub parent: u32,
    /// Most concurrent iterations; 1 for the root.
    pub parallel_iterations: u32,
    /// The node of this piece that outputs, once per iteration, whether the loop continues: its LoopCond, or the Recv of it if
    /// another piece has that. An iteration for which it is false or dead is the last. `None` for the root, and for a frame
    /// without LoopCond, which has one iteration.
    pub pred: Option<u32>,
}

/// A node of a piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PieceNode {
    /// The graph's name for it; `_Feed/x`, `_Fetch/x`, `_Send/x/7`, `_Recv/x/7` for nodes added by planning (7: the transfer).
    pub name: String,
    /// Its operation.
    pub op: PieceOp,
    /// The source of each input: a node of this piece and its port.
    pub inputs: Vec<(u32, u32)>,
    /// Whether each input is taken as a reference to a variable.
    pub input_refs: Vec<bool>,
    /// Nodes of this piece that must have run before.
    pub control: Vec<u32>,
    /// The type of each output.
    pub outputs: Vec<OutputType>,
    /// Complete: every attribute of the op that has a value or default, and those that begin with `_`.
    pub attrs: Attrs,
    /// The frame of the node and its inputs: an index into [`Piece::frames`].
    pub frame: u32,
    /// The frame of its outputs (and control edges from it): `frame`, except for Enter (the loop's) and Exit (the parent).
    pub output_frame: u32,
}

/// The operation of a piece's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PieceOp {
    /// An op of the vocabulary.
    Op(String),
    /// Outputs a fed value.
    Feed(u32),
    /// Returns its input to the client.
    Fetch(u32),
    /// Sends its input to another piece: `transfers[transfer]`.
    Send {
        /// Its index in the plan's transfers.
        transfer: u32,
        /// The device whose piece receives it.
        to: DeviceName,
    },
    /// Outputs the value sent by another piece.
    Recv {
        /// Its index in the plan's transfers.
        transfer: u32,
        /// The device whose piece sends it.
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
                device: placed.devices[placed.of_item[item][0]].name.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
