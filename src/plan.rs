//! A graph made ready to run on a cluster: pruned to what is asked for, placed on devices, split into one piece per
//! device with a transfer wherever a value crosses.
//!
//! Pure and deterministic: the same graph, cluster and signature give the same plan, byte for byte.

pub mod device;

pub use device::{DeviceKind, DeviceName, DeviceSpec, NameError, Task};
use serde::{Deserialize, Serialize};

use crate::graph::{Attrs, OutputType};
use crate::tensor::DType;

/// What a step is fed and asked for. Feeds and fetches are tensors (`name` or `name:port`), targets are nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signature {
    pub feeds: Vec<String>,
    pub fetches: Vec<String>,
    pub targets: Vec<String>,
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
    pub node: String,
    pub op: String,
    pub device: DeviceName,
    pub why: Why,
}

/// Why a node was placed where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// Its device string leaves no choice, or its first match was taken.
    Requested,
    /// It goes where the named node is: `_class`, or state it shares.
    Colocated { with: String },
    /// What it requested does not exist; soft placement chose this.
    Soft { requested: String },
    /// It requested nothing: the master's default device.
    Default,
}

/// A value that crosses from one piece to another: one per value and consuming device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// `name:port`, or `^name` where only the order crosses.
    pub tensor: String,
    /// `None` where only the order crosses.
    pub dtype: Option<DType>,
    pub from: DeviceName,
    pub to: DeviceName,
    /// Bytes a step, where the shape is known without running.
    pub bytes: Option<u64>,
}

/// What one device does in a step. Nodes stand in topological order but for the back edges of loops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    pub device: DeviceName,
    pub nodes: Vec<PieceNode>,
    /// The signature's feeds that this piece takes, in the order they come with a step; `PieceOp::Feed` names a place here.
    pub feeds: Vec<u32>,
    /// The signature's fetches that this piece answers, in the order they go back; `PieceOp::Fetch` names a place here.
    pub fetches: Vec<u32>,
}

/// A node of a piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PieceNode {
    pub name: String,
    pub op: PieceOp,
    /// Where each input comes from: a node of this piece and its port.
    pub inputs: Vec<(u32, u32)>,
    /// Whether each input is taken as a reference to a variable.
    pub input_refs: Vec<bool>,
    /// Nodes of this piece that must have run before.
    pub control: Vec<u32>,
    pub outputs: Vec<OutputType>,
    pub attrs: Attrs,
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
    Send { transfer: u32, to: DeviceName },
    /// Answers what another piece pushes.
    Recv { transfer: u32, from: DeviceName },
}
