//! Large constants of a graph, which are sent outside the header of a message, as the values of steps are, and only once.
//!
//! A node whose constant is large travels without that attribute; a [`Reference`] states the content that belongs to it. The
//! content itself is sent with the message, or was sent with an earlier one of the session that its receiver still keeps.
//!
//! A content is named by its client, and known within that client's session alone. So no client can obtain another's constant
//! by its name, and a client that gives two constants the same name harms only itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use meshtf_graph::plan::{Piece, PieceNode};
use meshtf_graph::{Attr, Attrs, NodeDef};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::PieceId;
use serde::{Deserialize, Serialize};

/// Most bytes of elements of a constant that stays in its node, and so in the header of every message that contains the node.
pub const MAX_INLINE_CONSTANT_BYTES: usize = 4 << 10;

/// Most different constants of one message that are sent outside its header; further ones stay in it.
pub const MAX_CONSTANTS: usize = 1 << 15;

/// The identity of a constant: BLAKE3 of its dtype, shape and elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Content(pub [u8; 32]);

impl fmt::Display for Content {
    /// The first bytes, which are enough to distinguish two contents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An attribute that a node lacks in its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The piece, by its index in the message; 0 for the nodes of a graph.
    pub piece: u32,
    /// The node, by its index in the piece or graph.
    pub node: u32,
    /// The attribute's name.
    pub attr: String,
    /// The content of its value.
    pub content: Content,
}

/// The constants that the nodes of a message lack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constants {
    /// The attributes that are left out of their nodes.
    pub references: Vec<Reference>,
    /// The contents of the message's tensors, in their order. The receiver has all other contents that are referred to.
    pub beside: Vec<Content>,
}

/// A node in a message: of a graph or of a piece.
pub trait Travels {
    /// The node's name, and its attributes.
    fn parts(&mut self) -> (&str, &mut Attrs);
}

impl Travels for NodeDef {
    fn parts(&mut self) -> (&str, &mut Attrs) {
        (&self.name, &mut self.attrs)
    }
}

impl Travels for PieceNode {
    fn parts(&mut self) -> (&str, &mut Attrs) {
        (&self.name, &mut self.attrs)
    }
}

/// The nodes of each of these pieces.
pub fn nodes_of(pieces: &mut [(PieceId, Piece)]) -> Vec<&mut [PieceNode]> {
    pieces.iter_mut().map(|(_, piece)| &mut piece.nodes[..]).collect()
}

/// The constants that were taken out of nodes.
#[derive(Default)]
pub struct TakenOut {
    /// Their positions, in the order of the nodes.
    pub references: Vec<Reference>,
    values: BTreeMap<Content, Tensor>,
}

impl TakenOut {
    /// Takes the large constants out of the nodes of one or more pieces; `content` gives the content of a node's attribute, or
    /// `None` if it is to stay.
    pub fn of<N: Travels>(
        pieces: &mut [&mut [N]],
        mut content: impl FnMut(&str, &str, &Tensor) -> Option<Content>,
    ) -> TakenOut {
        let mut taken = TakenOut::default();
        for (nodes, piece) in pieces.iter_mut().zip(0..) {
            for (node, place) in nodes.iter_mut().zip(0..) {
                let (name, attrs) = node.parts();
                attrs.0.retain(|attr, value| {
                    let Attr::Tensor(tensor) = value else { return true };
                    let is_large = tensor.byte_len() > MAX_INLINE_CONSTANT_BYTES;
                    let content = is_large.then(|| content(name, attr, tensor)).flatten();
                    content.is_none_or(|content| !taken.take((piece, place), attr, content, tensor))
                });
            }
        }
        taken
    }

    fn take(&mut self, (piece, node): (u32, u32), attr: &str, content: Content, tensor: &Tensor) -> bool {
        if self.values.len() >= MAX_CONSTANTS && !self.values.contains_key(&content) {
            return false;
        }
        self.values.entry(content).or_insert_with(|| tensor.clone());
        self.references.push(Reference { piece, node, attr: attr.to_owned(), content });
        true
    }

    /// The references of a message, and the constants to send with it: all that its receiver does not have.
    pub fn without(mut self, is_there: impl Fn(&Content) -> bool) -> (Constants, Vec<Tensor>) {
        self.values.retain(|content, _| !is_there(content));
        let (beside, tensors) = self.values.into_iter().unzip();
        (Constants { references: self.references, beside }, tensors)
    }
}

impl Constants {
    /// Gives nodes back the constants that they lack; `tensors` came with the message, and `held` returns those that came
    /// earlier.
    ///
    /// # Errors
    /// InvalidArgument if there is no such node, or there are more or fewer tensors than the message states; FailedPrecondition
    /// if a constant is neither sent with the message nor held.
    pub fn put_back<N: Travels>(
        &self,
        pieces: &mut [&mut [N]],
        tensors: Vec<Tensor>,
        held: impl Fn(&Content) -> Option<Tensor>,
    ) -> Result<()> {
        if self.beside.len() != tensors.len() {
            let why = format!("a message announces {} constants and carries {}", self.beside.len(), tensors.len());
            return Err(Failure::invalid(why));
        }
        let came: HashMap<&Content, Tensor> = self.beside.iter().zip(tensors).collect();
        for Reference { piece, node, attr, content } in &self.references {
            let nodes = pieces.get_mut(*piece as usize);
            let Some(travels) = nodes.and_then(|nodes| nodes.get_mut(*node as usize)) else {
                return Err(Failure::invalid(format!("constant {content} belongs to a node that does not exist")));
            };
            let (name, attrs) = travels.parts();
            let Some(value) = held(content).or_else(|| came.get(content).cloned()) else {
                let why =
                    format!("constant {content} of node {name} was not sent in this session, or is no longer kept");
                return Err(Failure::new(Code::FailedPrecondition, why));
            };
            attrs.set(attr.as_str(), Attr::Tensor(value));
        }
        Ok(())
    }
}

/// The constants of a session that a worker holds, each for as long as one of its pieces uses it. The worker keeps one such
/// record, and the master one for each worker.
#[derive(Debug, Default)]
pub struct HeldConstants {
    constants: HashMap<Content, (Tensor, BTreeSet<PieceId>)>,
}

impl HeldConstants {
    /// The constant of that content, if the worker holds it.
    pub fn get(&self, content: &Content) -> Option<&Tensor> {
        self.constants.get(content).map(|(value, _)| value)
    }

    /// The number of constants.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.constants.len()
    }

    /// Keeps a constant until the piece is forgotten, or for longer if other pieces use it.
    pub fn hold(&mut self, content: Content, value: &Tensor, piece: PieceId) {
        self.constants.entry(content).or_insert_with(|| (value.clone(), BTreeSet::new())).1.insert(piece);
    }

    /// These pieces use no constant any more.
    pub fn release(&mut self, pieces: &[PieceId]) {
        self.constants.retain(|_, (_, users)| {
            pieces.iter().for_each(|piece| {
                users.remove(piece);
            });
            !users.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::ids::SessionId;

    fn content(number: usize) -> Content {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Content(bytes)
    }

    fn node(name: &str, value: Tensor) -> NodeDef {
        let attrs = Attrs::from([("value", Attr::Tensor(value)), ("dtype", Attr::Int(1))]);
        NodeDef { name: name.to_owned(), attrs, ..NodeDef::default() }
    }

    /// A tensor of this many bytes.
    fn bytes(count: usize) -> Tensor {
        Tensor::vector(vec![count as u8; count])
    }

    #[test]
    fn large_constants_are_taken_out_once_each_and_put_back() {
        let sizes = [1, MAX_INLINE_CONSTANT_BYTES, MAX_INLINE_CONSTANT_BYTES + 1, 9000, 9000];
        let nodes = || sizes.map(|size| node(&format!("of_{size}"), bytes(size)));
        let [mut first, mut second] = [nodes(), nodes()];
        let (constants, tensors) =
            TakenOut::of(&mut [&mut first[..], &mut second[..4]], |_, _, value| Some(content(value.len())))
                .without(|_| false);
        let places: Vec<_> = constants.references.iter().map(|reference| (reference.piece, reference.node)).collect();
        assert_eq!(places, [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3)]);
        let mut sent: Vec<usize> = tensors.iter().map(Tensor::len).collect();
        sent.sort_unstable();
        assert_eq!((sent, constants.beside.len()), (vec![MAX_INLINE_CONSTANT_BYTES + 1, 9000], 2));
        let left: Vec<bool> = first.iter().map(|node| node.attrs.get("value").is_some()).collect();
        assert_eq!(left, [true, true, false, false, false]);
        constants.put_back(&mut [&mut first[..], &mut second[..4]], tensors.clone(), |_| None).unwrap();
        assert_eq!((first, second), (nodes(), nodes()));

        let code = |constants: &Constants, tensors: Vec<Tensor>| {
            constants.put_back(&mut [&mut nodes()[..]], tensors, |_| None).unwrap_err().code
        };
        assert_eq!(code(&constants, vec![]), Code::InvalidArgument, "fewer than it says");
        assert_eq!(code(&constants, tensors), Code::InvalidArgument, "there is one piece");
        let references = constants.references[..1].to_vec();
        let nothing_beside = Constants { references, beside: vec![] };
        assert_eq!(code(&nothing_beside, vec![]), Code::FailedPrecondition);
        let held = |_: &Content| Some(bytes(MAX_INLINE_CONSTANT_BYTES + 1));
        nothing_beside.put_back(&mut [&mut nodes()[..]], vec![], held).unwrap();
    }

    #[test]
    fn constants_beyond_those_that_may_go_beside_a_message_stay_in_it() {
        let large = bytes(MAX_INLINE_CONSTANT_BYTES + 1);
        let mut nodes: Vec<NodeDef> = (0..MAX_CONSTANTS + 3).map(|n| node(&n.to_string(), large.clone())).collect();
        // The last but one has the content of the first.
        let number = |name: &str| name.parse::<usize>().unwrap() % (MAX_CONSTANTS + 1);
        let taken = TakenOut::of(&mut [&mut nodes], |name, _, _| Some(content(number(name))));
        assert_eq!((taken.references.len(), taken.values.len()), (MAX_CONSTANTS + 2, MAX_CONSTANTS));
        assert!(nodes[MAX_CONSTANTS].attrs.get("value").is_some());
    }

    #[test]
    fn a_constant_is_held_for_as_long_as_a_piece_uses_it() {
        let piece = |number| PieceId { session: SessionId(1), number };
        let mut held = HeldConstants::default();
        for (constant, user) in [(1, 0), (1, 1), (2, 1), (3, 2)] {
            held.hold(content(constant), &bytes(constant), piece(user));
        }
        let has = |held: &HeldConstants| {
            (1..=3).filter(|&constant| held.get(&content(constant)).is_some()).collect::<Vec<_>>()
        };
        held.release(&[piece(0), piece(9)]);
        assert_eq!(has(&held), [1, 2, 3]);
        held.release(&[piece(1)]);
        assert_eq!(has(&held), [3]);
        held.release(&[piece(2)]);
        assert!(held.len() == 0);
    }
}
