//! Large constants of a graph, which are sent outside the header of a message, as the values of steps are, and only once.
//!
//! A node whose constant is large travels without that attribute; a [`Reference`] states the content that belongs to it. The
//! content itself is sent with the message, or was sent with an earlier one of the session that its receiver still keeps.
//!
//! Constants from [`MIN_KEPT_BYTES`] on travel apart from the messages: their nodes have a substitute of the same dtype and
//! shape, and the tasks that use them take them from a participant that has them. A task compares each with its content before
//! it uses it, so such a content is valid for all sessions.
//!
//! The content of a smaller one is a name within its client's session: nobody compares it, and a client that gives two constants
//! the same name harms only itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use meshtf_graph::plan::{Piece, PieceNode};
use meshtf_graph::{Attr, Attrs, Filled, NodeDef};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::PieceId;
use meshtf_tensor::{DType, Data, Shape, Tensor, constant};
use serde::{Deserialize, Serialize};

use super::Peer;

/// Most bytes of elements of a constant that stays in its node, and so in the header of every message that contains the node.
pub const MAX_INLINE_CONSTANT_BYTES: usize = 4 << 10;

/// Most different constants of one message that are sent outside its header; further ones stay in it.
pub const MAX_CONSTANTS: usize = 1 << 15;

/// Fewest bytes of elements of a constant that travels apart from the messages about its node, and is kept by its content.
pub const MIN_KEPT_BYTES: usize = 64 << 10;

/// Most constants that one inquiry asks for.
pub const MAX_ASKED: usize = 1024;

/// Most bytes of the constants that one inquiry asks for, unless it is one constant alone.
pub const MAX_ASKED_BYTES: usize = 64 << 20;

/// Goes into each hash first, so that no other use of the same hash function yields the same hashes.
const CONTEXT: &str = "meshtf 2026 constant";

/// The identity of a constant: BLAKE3 of its dtype, shape and elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Content(pub [u8; 32]);

impl Content {
    /// The content of a constant.
    pub fn of(value: &Tensor) -> Content {
        let mut hash = blake3::Hasher::new_derive_key(CONTEXT);
        let mut number = |number: usize| {
            hash.update(&(number as u64).to_le_bytes());
        };
        number(value.dtype() as usize);
        number(value.rank());
        value.dims().iter().for_each(|&size| number(size));
        match constant::at_hand(value).data() {
            Data::String(strings) => strings.iter().for_each(|string| {
                hash.update(&(string.len() as u64).to_le_bytes());
                hash.update(string);
            }),
            elements => {
                hash.update(elements.bytes().unwrap_or_default());
            }
        }
        Content(*hash.finalize().as_bytes())
    }

    /// All 64 digits.
    pub fn digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The content of these digits.
    pub fn from_digits(digits: &str) -> Option<Content> {
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() || !digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Content(bytes))
    }
}

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
    /// The attributes that are substitutes, [`Filled`] with a zero of the constant's dtype: the receiver keeps their constants by
    /// content, or takes them from a participant that has them.
    pub kept: Vec<Reference>,
    /// The participant that has those constants; `None`: the sender.
    pub holder: Option<Peer>,
}

/// A constant that is kept by its content, as its receiver knows it before it has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Its content.
    pub content: Content,
    /// The first node that has it.
    pub node: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

impl Kept {
    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        let bytes = |size| self.shape.elements()?.checked_mul(size);
        self.dtype.size().and_then(bytes).unwrap_or(usize::MAX)
    }

    /// Whether a value is of its dtype and shape.
    pub fn admits(&self, value: &Tensor) -> bool {
        (value.dtype(), value.shape()) == (self.dtype, &self.shape)
    }
}

/// Whether a constant is kept by its content.
pub fn is_kept(constant: &Tensor) -> bool {
    constant.dtype().size().is_some() && constant.byte_len() >= MIN_KEPT_BYTES
}

/// The substitute for a constant in a message.
///
/// # Errors
/// ResourceExhausted if it exceeds the limit of a tensor.
pub fn substitute(value: &Tensor) -> Result<Attr> {
    let zero = Tensor::zeros(value.dtype(), [])?;
    Filled::substitute(zero, value.shape().clone()).map(Attr::Filled)
}

/// Whether an attribute is such a substitute.
fn is_substitute(value: &Attr) -> bool {
    matches!(value, Attr::Filled(filled) if filled.is_substitute())
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
    /// The positions of the substitutes for those that are kept by their contents.
    pub kept: Vec<Reference>,
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

    /// Notes the substitutes in the nodes of one or more pieces; `content` gives the content of a node's constant that is kept.
    pub fn note_kept<N: Travels>(
        &mut self,
        pieces: &mut [&mut [N]],
        mut content: impl FnMut(&str, &str) -> Option<Content>,
    ) {
        for (nodes, piece) in pieces.iter_mut().zip(0..) {
            for (travels, node) in nodes.iter_mut().zip(0..) {
                let (name, attrs) = travels.parts();
                for attr in attrs.0.iter().filter(|(_, value)| is_substitute(value)).map(|(attr, _)| attr) {
                    // Without a content it stays, and the task that would use it refuses it.
                    if let Some(content) = content(name, attr) {
                        self.kept.push(Reference { piece, node, attr: attr.clone(), content });
                    }
                }
            }
        }
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
        (Constants { references: self.references, beside, kept: self.kept, holder: None }, tensors)
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
            let (name, attrs) = at(pieces, *piece, *node, content)?;
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

impl Constants {
    /// The constants of a message that are kept by their contents, each once.
    ///
    /// # Errors
    /// InvalidArgument if a reference is to no substitute, or two constants of one content differ in dtype or shape.
    pub fn all_kept<N: Travels>(&self, pieces: &mut [&mut [N]]) -> Result<Vec<Kept>> {
        let mut all: Vec<Kept> = Vec::new();
        let mut known: HashMap<Content, usize> = HashMap::new();
        for Reference { piece, node, attr, content } in &self.kept {
            let (name, attrs) = at(pieces, *piece, *node, content)?;
            let Some(Attr::Filled(substitute)) = attrs.get(attr).filter(|value| is_substitute(value)) else {
                let why = format!("node {name} has no substitute for constant {content} in {attr}");
                return Err(Failure::invalid(why));
            };
            let (dtype, shape) = (substitute.element().dtype(), substitute.shape());
            let index = *known.entry(*content).or_insert(all.len());
            match all.get(index) {
                None => all.push(Kept { content: *content, node: name.to_owned(), dtype, shape: shape.clone() }),
                Some(kept) if (kept.dtype, &kept.shape) == (dtype, shape) => {}
                Some(kept) => {
                    let why = format!("constant {content} is {} {} in node {}", kept.dtype, kept.shape, kept.node);
                    return Err(Failure::invalid(format!("{why}, and {dtype} {shape} in node {name}")));
                }
            }
        }
        Ok(all)
    }

    /// Replaces the substitutes by the constants.
    ///
    /// # Errors
    /// InvalidArgument if there is no such node; FailedPrecondition if a constant is missing.
    pub fn fill<N: Travels>(&self, pieces: &mut [&mut [N]], constants: &HashMap<Content, Tensor>) -> Result<()> {
        for Reference { piece, node, attr, content } in &self.kept {
            let (name, attrs) = at(pieces, *piece, *node, content)?;
            let Some(value) = constants.get(content) else {
                let why = format!("constant {content} of node {name} is not kept here");
                return Err(Failure::new(Code::FailedPrecondition, why));
            };
            attrs.set(attr.as_str(), Attr::Tensor(value.clone()));
        }
        Ok(())
    }
}

/// The node that a reference is to.
fn at<'n, N: Travels>(
    pieces: &'n mut [&mut [N]],
    piece: u32,
    node: u32,
    content: &Content,
) -> Result<(&'n str, &'n mut Attrs)> {
    let nodes = pieces.get_mut(piece as usize);
    let travels = nodes.and_then(|nodes| nodes.get_mut(node as usize));
    let no_node = || Failure::invalid(format!("constant {content} belongs to a node that does not exist"));
    travels.map(Travels::parts).ok_or_else(no_node)
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
    fn a_content_is_the_hash_of_type_shape_and_elements() {
        let number = |number: u64| number.to_le_bytes().to_vec();
        let hash = |parts: &[Vec<u8>]| Content(blake3::derive_key(CONTEXT, &parts.concat()));
        let value = Tensor::from_vec([2, 1], vec![1i16, -2]);
        // int16 is the sixth dtype; its rank, its sizes, its elements.
        assert_eq!(Content::of(&value), hash(&[number(5), number(2), number(2), number(1), vec![1, 0, 0xfe, 0xff]]));
        let strings = Tensor::vector(vec![b"ab".to_vec(), vec![]]);
        let parts = [number(13), number(1), number(2), number(2), b"ab".to_vec(), number(0)];
        assert_eq!(Content::of(&strings), hash(&parts));
        let digits = Content::of(&value).digits();
        assert_eq!((Content::from_digits(&digits), digits.len()), (Some(Content::of(&value)), 64));
        for wrong in ["", &digits[1..], &digits.to_uppercase(), &format!("+{}", &digits[1..])] {
            assert_eq!(Content::from_digits(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn substitutes_belong_to_their_nodes() {
        let (small, large) = (vec![1u8; MIN_KEPT_BYTES - 1], vec![1u8; MIN_KEPT_BYTES]);
        assert!(!is_kept(&Tensor::vector(small)) && !is_kept(&Tensor::vector(vec![vec![0u8; MIN_KEPT_BYTES]])));
        let value = Tensor::vector(large);
        assert!(is_kept(&value));
        let of = |node: u32, content: Content| Reference { piece: 0, node, attr: "value".to_owned(), content };
        let node = |value: &Tensor| {
            let attrs = Attrs::from([("value", substitute(value).unwrap())]);
            NodeDef { name: "n".to_owned(), attrs, ..NodeDef::default() }
        };
        let mut nodes = [node(&value), node(&value), node(&value.clone().reshaped([2, MIN_KEPT_BYTES / 2]).unwrap())];
        let mut code = |kept: Vec<Reference>| {
            Constants { kept, ..Constants::default() }.all_kept(&mut [&mut nodes[..]]).map_err(|failure| failure.code)
        };
        let kept = code(vec![of(0, content(1)), of(1, content(1)), of(2, content(2))]).unwrap();
        assert_eq!(kept.iter().map(|kept| kept.content).collect::<Vec<_>>(), [content(1), content(2)]);
        assert!(kept[0].admits(&value) && !kept[1].admits(&value));
        // One content of two shapes, a node that does not exist, and one without a substitute.
        assert_eq!(code(vec![of(0, content(1)), of(2, content(1))]), Err(Code::InvalidArgument));
        assert_eq!(code(vec![of(3, content(1))]), Err(Code::InvalidArgument));
        // An ordinary tensor of equal elements is none; and a substitute that nobody replaced is never a value.
        let filled = Filled::new(Tensor::scalar(1u8), [MIN_KEPT_BYTES].into()).unwrap();
        let plain = NodeDef { attrs: Attrs::from([("value", Attr::Filled(filled))]), ..nodes[0].clone() };
        let constants = Constants { kept: vec![of(0, content(1))], ..Constants::default() };
        assert_eq!(constants.all_kept(&mut [&mut [plain][..]]).unwrap_err().code, Code::InvalidArgument);
        let failure = nodes[0].attrs.whole_tensor("value").unwrap_err();
        assert_eq!(failure.code, Code::FailedPrecondition);
        assert_eq!(failure.message, "the uint8 of shape [65536] is a substitute, whose elements did not come");
        assert_eq!(constants.fill(&mut [&mut nodes[..]], &HashMap::new()).unwrap_err().code, Code::FailedPrecondition);
        constants.fill(&mut [&mut nodes[..]], &[(content(1), value)].into()).unwrap();
        assert_eq!(constants.all_kept(&mut [&mut nodes[..]]).unwrap_err().code, Code::InvalidArgument);
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
        let nothing_beside = Constants { references, ..Constants::default() };
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
