//! The large constants of a session's graph, and which worker holds which of them.
//!
//! The master has each once: its graph, the plans made of it and the messages share the elements. Of those that are kept by their
//! contents it has none, but knows the nodes: the workers take them from the session's client.

use std::collections::HashMap;

use meshtf_graph::{Attr, NodeDef};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;
use meshtf_tensor::ids::PieceId;

use super::plans::Part;
use super::{Peer, Pieces};
use crate::protocol::constants::{HeldConstants, Reference, TakenOut, nodes_of};
use crate::protocol::{Constants, Content};

#[derive(Default)]
pub(in super::super) struct Stock {
    /// All that the client sent. The graph keeps them too, and never loses a node.
    values: HashMap<Content, Tensor>,
    /// The attributes of each node that are among them.
    of_node: HashMap<String, Vec<(String, Content)>>,
    /// The same, of those that are kept by their contents. Their nodes have substitutes.
    kept: HashMap<String, Vec<(String, Content)>>,
    /// The constants that each worker confirmed to hold, by the pieces that use them on it. A worker reads of new pieces and of
    /// those to forget in the order in which this machine decided it: it holds no less than this when it reads a message that
    /// relies on it.
    held: HashMap<Peer, HeldConstants>,
}

/// Constants that came with nodes which are not part of the graph yet: those that are kept by their contents without a value.
pub(in super::super) type Arrived = Vec<(String, String, Content, Option<Tensor>)>;

impl Stock {
    /// Gives the client's nodes the constants that they lack, and returns which those were.
    ///
    /// # Errors
    /// As [`Constants::put_back`].
    pub fn put_back(&self, nodes: &mut [NodeDef], constants: &Constants, tensors: Vec<Tensor>) -> Result<Arrived> {
        constants.put_back(&mut [&mut *nodes], tensors, |content| self.values.get(content).cloned())?;
        constants.all_kept(&mut [&mut *nodes])?;
        let name = |node: u32| nodes.get(node as usize).map(|node| node.name.clone());
        let kept = constants
            .kept
            .iter()
            .filter_map(|Reference { node, attr, content, .. }| Some((name(*node)?, attr.clone(), *content, None)));
        let arrived = constants.references.iter().filter_map(|reference| {
            let node = nodes.get(reference.node as usize)?;
            let Some(Attr::Tensor(value)) = node.attrs.get(&reference.attr) else { return None };
            Some((node.name.clone(), reference.attr.clone(), reference.content, Some(value.clone())))
        });
        Ok(arrived.chain(kept).collect())
    }

    /// Adds constants whose nodes belong to the graph now.
    pub fn add(&mut self, arrived: Arrived) {
        for (node, attr, content, value) in arrived {
            let of_node = match value {
                Some(value) => {
                    self.values.insert(content, value);
                    &mut self.of_node
                }
                None => &mut self.kept,
            };
            of_node.entry(node).or_default().push((attr, content));
        }
    }

    /// Takes the constants out of pieces that are to be sent.
    pub fn take_out(&self, pieces: &mut Pieces) -> TakenOut {
        let content = |all: &HashMap<String, Vec<(String, Content)>>, node: &str, attr: &str| {
            let attrs = all.get(node)?;
            attrs.iter().find(|(name, _)| name == attr).map(|(_, content)| *content)
        };
        let mut taken = TakenOut::of(&mut nodes_of(pieces), |node, attr, _| content(&self.of_node, node, attr));
        taken.note_kept(&mut nodes_of(pieces), |node, attr| content(&self.kept, node, attr));
        taken
    }

    /// The references of a message to a worker to the constants of its pieces, and the constants to send with it: those that
    /// the worker does not hold.
    pub fn beside(&self, taken: TakenOut, worker: &Peer) -> (Constants, Vec<Tensor>) {
        let held = self.held.get(worker);
        taken.without(|content| held.is_some_and(|held| held.get(content).is_some()))
    }

    /// A worker has compiled its part of a plan, and holds the constants that it uses.
    pub(super) fn registered(&mut self, part: &Part) {
        let held = self.held.entry(part.worker.clone()).or_default();
        for (piece, content) in &part.constants {
            if let Some(value) = self.values.get(content) {
                held.hold(*content, value, *piece);
            }
        }
    }

    /// A worker is asked to forget pieces.
    pub fn forgotten(&mut self, worker: &Peer, pieces: &[PieceId]) {
        if let Some(held) = self.held.get_mut(worker) {
            held.release(pieces);
        }
    }

    /// The constants that a worker holds are not known any more: it is gone, or does not hold those that it should.
    pub fn lost(&mut self, worker: &Peer) {
        self.held.remove(worker);
    }
}
