//! The layout of a message on a wire: a prefix of fixed length, a postcard header, then the tensors' elements as they are.
//! docs/protocol.md defines it byte by byte.
//!
//! Pure. The same frame travels on the control stream and on a bulk stream. This module trusts no length: the lengths that a
//! frame claims are compared with the limits before anything is allocated for them.

#[cfg(test)]
mod layout;
mod stand_in;

use meshtf_tensor::device::{Capacity, Rates, Task};
use meshtf_tensor::failure::Failure;
use meshtf_tensor::{DType, Data, Shape, Tensor};
use serde::{Deserialize, Serialize};

pub use self::stand_in::{TELLING_BYTES, stand_in};
use super::error::{Holder, MeshError};
use crate::protocol::{Envelope, Hello, MAX_MESSAGE_BYTES, MAX_STEP_FEEDS, Message};

/// Bytes of a prefix: kind, header length, payload length, number, after, behind, frames and bulk taken.
pub const PREFIX_BYTES: usize = 1 + 4 + 8 + 8 + 8 + 8 + 8 + 8;
/// Most bytes a message may have, header and tensors, to travel on the control stream.
pub const MAX_SMALL_BYTES: usize = 64 << 10;
/// Most bytes of a frame on the control stream: a Hello that names many peers is more than a small message.
pub const MAX_CONTROL_FRAME_BYTES: usize = 1 << 20;
/// Most tensors in one message.
pub const MAX_TENSORS: usize = MAX_STEP_FEEDS;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An [`Envelope`].
    Message = 0,
    /// A sign of life, which acknowledges as every frame does; empty.
    Ping = 1,
    /// A [`Refusal`]; the connection ends with it.
    Refused = 2,
    /// A request to dial a bulk stream, from a peer that has bulk to send and cannot dial; empty.
    Call = 3,
    /// A [`Standing`], first on a control stream.
    Standing = 4,
    /// A number to send back at once, to measure the round-trip time.
    Echo = 5,
    /// The number of an [`Kind::Echo`], sent back.
    Echoed = 6,
}

/// The first bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    pub kind: Kind,
    pub header_bytes: usize,
    pub payload_bytes: usize,
    /// Counts a link's messages from 1, those on the control stream and the bulk separately. 0: a frame of one connection
    /// alone, which is not sent again.
    pub number: u64,
    /// The bulk message that must have been delivered before this one; 0: none.
    pub after: u64,
    /// How many messages of the control stream must have been taken before this bulk message is delivered.
    pub behind: u64,
    /// The messages of this receiver on the link that the sender has taken.
    pub taken: Taken,
}

/// The messages of the other end that one end of a link has taken: an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Every message of the control stream up to this one.
    pub frames: u64,
    /// Every bulk message up to this one.
    pub bulk: u64,
}

/// The first frame on a control stream: with which link the two may continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The number of the new link, if none continues. It is drawn at random.
    pub fresh: u64,
    /// The link that the sender has with the peer.
    pub link: Option<LinkNumbers>,
    pub taken: Taken,
    /// The bulk messages taken beyond those.
    pub bulk_beyond: Vec<u64>,
}

/// The numbers by which the two ends call a link: `own` is the number of the sending end, `theirs` of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkNumbers {
    pub own: u64,
    pub theirs: u64,
}

impl Standing {
    /// The link that continues if one end sent this and the other `theirs`: the one that both have.
    pub fn goes_on(&self, theirs: &Standing) -> Option<LinkNumbers> {
        self.link.filter(|link| theirs.link == Some(LinkNumbers { own: link.theirs, theirs: link.own }))
    }
}

/// Why a participant is refused by another to which it could prove the mesh key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The task it claims is held by a live node.
    TaskTaken { task: Task, holder: Holder },
    /// It is of another mesh.
    OtherMesh { mesh: String },
    /// It speaks another version of the protocol.
    OtherVersion { version: u16 },
    /// The peers are at their limit.
    Crowded { limit: usize },
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::TaskTaken { task, holder } => write!(f, "{task} is held by {holder}"),
            Refusal::OtherMesh { mesh } => write!(f, "it is of another mesh, {mesh:?}"),
            Refusal::OtherVersion { version } => write!(
                f,
                "it speaks version {version} of the protocol, this program version {}; run the same meshtf on both",
                crate::protocol::VERSION
            ),
            Refusal::Crowded { limit } => write!(f, "it has {limit} peers, which is its limit"),
        }
    }
}

/// The header of a message, before the tensors' elements.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Header {
    pub message: Message,
    pub tensors: Vec<TensorHeader>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorHeader {
    pub dtype: DType,
    pub shape: Shape,
    /// The elements of a tensor of strings; those of every other dtype are in the payload.
    pub strings: Option<Vec<serde_bytes::ByteBuf>>,
}

#[derive(Serialize)]
struct HeaderRef<'a> {
    message: &'a Message,
    tensors: Vec<TensorHeaderRef<'a>>,
}

#[derive(Serialize)]
struct TensorHeaderRef<'a> {
    dtype: DType,
    shape: &'a Shape,
    strings: Option<Vec<&'a serde_bytes::Bytes>>,
}

impl Prefix {
    pub fn encode(self) -> [u8; PREFIX_BYTES] {
        let mut bytes = [0; PREFIX_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1..5].copy_from_slice(&(self.header_bytes as u32).to_le_bytes());
        bytes[5..13].copy_from_slice(&(self.payload_bytes as u64).to_le_bytes());
        let numbers = [self.number, self.after, self.behind, self.taken.frames, self.taken.bulk];
        for (place, number) in bytes[13..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// # Errors
    /// An unknown kind, and lengths that exceed `limit` together.
    pub fn decode(bytes: &[u8; PREFIX_BYTES], limit: usize) -> Result<Self, Failure> {
        let kind = match bytes[0] {
            0 => Kind::Message,
            1 => Kind::Ping,
            2 => Kind::Refused,
            3 => Kind::Call,
            4 => Kind::Standing,
            5 => Kind::Echo,
            6 => Kind::Echoed,
            other => return Err(Failure::invalid(format!("unknown kind of frame: {other}"))),
        };
        let [_, a, b, c, d, rest @ ..] = bytes;
        let header_bytes = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let number = |at: usize| rest[at..at + 8].iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
        let payload_bytes = number(0);
        let total = payload_bytes.saturating_add(header_bytes as u64);
        if total > limit as u64 {
            return Err(Failure::invalid(format!("a frame of {total} bytes exceeds the limit of {limit}")));
        }
        Ok(Prefix {
            kind,
            header_bytes,
            payload_bytes: payload_bytes as usize,
            number: number(8),
            after: number(16),
            behind: number(24),
            taken: Taken { frames: number(32), bulk: number(40) },
        })
    }

    /// A frame that acknowledges nothing.
    fn of(kind: Kind, header_bytes: usize, payload_bytes: usize) -> Self {
        Prefix { kind, header_bytes, payload_bytes, number: 0, after: 0, behind: 0, taken: Taken::default() }
    }

    /// The number of bytes that follow.
    pub fn body_bytes(self) -> usize {
        self.header_bytes + self.payload_bytes
    }
}

/// Prefix and header of an envelope; its tensors' bytes are to follow.
///
/// # Errors
/// [`MeshError::TooLarge`] over the limit of one message.
pub fn encode_head(envelope: &Envelope) -> Result<(Prefix, Vec<u8>), MeshError> {
    let header =
        HeaderRef { message: &envelope.message, tensors: envelope.tensors.iter().map(tensor_header).collect() };
    let mut head = postcard::to_extend(&header, vec![0; PREFIX_BYTES])
        .map_err(|error| MeshError::Encode { why: error.to_string() })?;
    if let Message::Hello(hello) = &envelope.message {
        head = after_hello(hello, head).map_err(|error| MeshError::Encode { why: error.to_string() })?;
    }
    let (header_bytes, payload_bytes) = (head.len() - PREFIX_BYTES, payload_bytes(envelope));
    let bytes = header_bytes.saturating_add(payload_bytes);
    let is_long = u32::try_from(header_bytes).is_err();
    if bytes > MAX_MESSAGE_BYTES || is_long || envelope.tensors.len() > MAX_TENSORS {
        let limit = if is_long { u32::MAX as usize } else { MAX_MESSAGE_BYTES };
        return Err(MeshError::TooLarge { bytes, limit });
    }
    let prefix = Prefix::of(Kind::Message, header_bytes, payload_bytes);
    head[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
    Ok((prefix, head))
}

/// Adds the fields that follow a Hello, as far as they are known: an earlier one is empty if only a later one is.
fn after_hello(hello: &Hello, mut head: Vec<u8>) -> postcard::Result<Vec<u8>> {
    let (capacities, rates) = (hello.capacities(), hello.rates());
    let has_doors = !hello.doors.is_empty() || hello.is_spare;
    if capacities.is_some() || has_doors {
        head = postcard::to_extend(&capacities.unwrap_or_default(), head)?;
    }
    if rates.is_some() || has_doors {
        head = postcard::to_extend(&rates.unwrap_or_default(), head)?;
    }
    if has_doors {
        head = postcard::to_extend(&hello.doors, head)?;
    }
    if hello.is_spare {
        head = postcard::to_extend(&hello.is_spare, head)?;
    }
    Ok(head)
}

/// Reads the fields that follow a Hello, as far as they decode.
fn read_after_hello(hello: &mut Hello, rest: &[u8]) {
    let Ok((capacities, rest)) = postcard::take_from_bytes::<Vec<Capacity>>(rest) else { return };
    let Ok((rates, rest)) = postcard::take_from_bytes::<Vec<Option<Rates>>>(rest) else {
        return hello.set_capacities(&capacities, &[]);
    };
    hello.set_capacities(&capacities, &rates);
    let Ok((doors, rest)) = postcard::take_from_bytes::<Vec<String>>(rest) else { return };
    hello.set_doors(doors);
    hello.is_spare = postcard::from_bytes(rest).unwrap_or(false);
}

/// A frame of `kind` around a value, for the control stream.
///
/// # Errors
/// If the value cannot be encoded.
pub fn encode_value(kind: Kind, value: &impl Serialize) -> Result<Vec<u8>, MeshError> {
    let mut frame = postcard::to_extend(value, vec![0; PREFIX_BYTES])
        .map_err(|error| MeshError::Encode { why: error.to_string() })?;
    let header_bytes = frame.len() - PREFIX_BYTES;
    let prefix = Prefix::of(kind, header_bytes, 0);
    frame[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
    Ok(frame)
}

/// A frame that is only its prefix.
pub fn empty_frame(kind: Kind) -> [u8; PREFIX_BYTES] {
    Prefix::of(kind, 0, 0).encode()
}

/// Writes into a finished frame the fields that are known only when it leaves: its number, and the acknowledgement.
pub fn stamp(frame: &mut [u8], number: u64, taken: Taken) {
    for (at, value) in [(13, number), (37, taken.frames), (45, taken.bulk)] {
        frame[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// Bytes of the tensors that follow an envelope's header.
pub fn payload_bytes(envelope: &Envelope) -> usize {
    envelope.tensors.iter().filter_map(Tensor::bytes).map(<[u8]>::len).sum()
}

/// The header of a message.
///
/// # Errors
/// If it is not one, if a tensor cannot have such a shape or dtype, or if the tensors do not take exactly
/// `payload_bytes`.
pub fn decode_header(bytes: &[u8], payload_bytes: usize) -> Result<Header, Failure> {
    let (mut header, rest) = postcard::take_from_bytes::<Header>(bytes)
        .map_err(|error| Failure::invalid(format!("the header of a message does not decode: {error}")))?;
    if let Message::Hello(hello) = &mut header.message {
        read_after_hello(hello, rest);
    }
    if header.tensors.len() > MAX_TENSORS {
        return Err(Failure::invalid(format!("a message of more than {MAX_TENSORS} tensors")));
    }
    let mut total = 0usize;
    for tensor in &header.tensors {
        total = total.saturating_add(tensor.payload_bytes()?);
    }
    if total != payload_bytes {
        return Err(Failure::invalid(format!("tensors of {total} bytes in a payload of {payload_bytes}")));
    }
    Ok(header)
}

/// A whole message, all of whose bytes are present.
///
/// # Errors
/// As [`decode_header`], and for a bool that is neither 0 nor 1.
pub fn decode(header: &[u8], payload: &[u8]) -> Result<Envelope, Failure> {
    let Header { message, tensors } = decode_header(header, payload.len())?;
    let mut rest = payload;
    let tensors = tensors
        .into_iter()
        .map(|tensor| {
            let (bytes, after) = rest.split_at(tensor.payload_bytes()?);
            rest = after;
            match tensor.strings {
                Some(strings) => Tensor::new(tensor.shape, string_data(strings)),
                None => Tensor::from_bytes(tensor.dtype, tensor.shape, bytes),
            }
        })
        .collect::<Result<_, _>>()?;
    Ok(Envelope { message, tensors })
}

pub fn string_data(strings: Vec<serde_bytes::ByteBuf>) -> Data {
    Data::String(strings.into_iter().map(serde_bytes::ByteBuf::into_vec).collect())
}

impl TensorHeader {
    /// Bytes of this tensor in the payload.
    ///
    /// # Errors
    /// For a dtype that host tensors do not have, a shape that exceeds the limit of a tensor, and strings that do not fill the
    /// shape.
    pub fn payload_bytes(&self) -> Result<usize, Failure> {
        let elements = self.shape.limited_elements(self.dtype)?;
        match (self.dtype, &self.strings, self.dtype.size()) {
            (DType::String, Some(strings), _) if strings.len() == elements => Ok(0),
            (DType::String, _, _) => Err(Failure::invalid("the strings of a tensor do not fill its shape")),
            (_, None, Some(size)) => elements
                .checked_mul(size)
                .ok_or_else(|| Failure::invalid(format!("{} of shape {} exceeds every limit", self.dtype, self.shape))),
            _ => Err(Failure::invalid(format!("a {} cannot be sent", self.dtype))),
        }
    }
}

fn tensor_header(tensor: &Tensor) -> TensorHeaderRef<'_> {
    let strings = match tensor.data() {
        Data::String(strings) => Some(strings.iter().map(|s| serde_bytes::Bytes::new(s)).collect()),
        _ => None,
    };
    TensorHeaderRef { dtype: tensor.dtype(), shape: tensor.shape(), strings }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::inquiry::{Inquiry, VariableName};
    use crate::protocol::{Constants, PushedValue, Reply, Request, ToClient, ToHost, ToMaster, ToWorker};
    use meshtf_graph::plan::{Mode, Piece};
    use meshtf_tensor::device::DeviceKind;
    use meshtf_tensor::device::Task;
    use meshtf_tensor::ids::{PieceId, RequestId, SessionId, StepId};

    pub fn whole(envelope: &Envelope) -> Vec<u8> {
        let (_, mut bytes) = encode_head(envelope).unwrap();
        envelope.tensors.iter().filter_map(Tensor::bytes).for_each(|part| bytes.extend_from_slice(part));
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Envelope, Failure> {
        let (prefix, body) = bytes.split_at_checked(PREFIX_BYTES).ok_or_else(|| Failure::invalid("short"))?;
        let prefix = Prefix::decode(prefix.try_into().unwrap(), MAX_CONTROL_FRAME_BYTES)?;
        if prefix.body_bytes() != body.len() {
            return Err(Failure::invalid("short"));
        }
        decode(&body[..prefix.header_bytes], &body[prefix.header_bytes..])
    }

    pub fn example() -> Envelope {
        Envelope {
            message: ToClient::Fetched { id: RequestId(7), step: 3 }.into(),
            tensors: vec![
                Tensor::scalar(238i32),
                Tensor::from_vec([2, 2], vec![true, false, true, true]),
                Tensor::vector(vec![b"a".to_vec(), vec![], vec![0xff, 0]]),
                Tensor::from_vec([0, 3], Vec::<f64>::new()),
                Tensor::vector(vec![1.5f32, f32::INFINITY]),
            ],
        }
    }

    #[test]
    fn messages_survive_the_wire() {
        let step = StepId { session: SessionId(1), number: 9 };
        let abort = ToWorker::Abort { step, failure: Failure::invalid("no") };
        for envelope in [example(), Envelope::from(abort)] {
            assert_eq!(parse(&whole(&envelope)).unwrap(), envelope);
        }
    }

    #[test]
    fn the_first_bytes_tell_who_waits_for_an_answer() {
        let check = |message: Message, want: Option<Message>| {
            let (prefix, bytes) = encode_head(&message.into()).unwrap();
            assert_eq!(stand_in(&bytes[PREFIX_BYTES..][..prefix.header_bytes.min(TELLING_BYTES)]), want);
        };
        let (id, session) = (RequestId(u64::MAX), SessionId(1 << 40));
        let (graph, options, constants) = (vec![Default::default(); 9], Default::default(), Default::default());
        let open = Request::Open { session, graph, options, constants };
        let close = ToMaster::Request { id, request: Request::Close { session: SessionId(id.0) } };
        check(ToMaster::Request { id, request: open }.into(), Some(close.into()));
        let piece = |number| {
            let piece = Piece {
                device: Task::new("local", 0).device(DeviceKind::Cpu, 0),
                nodes: Vec::new(),
                frames: Vec::new(),
                feeds: vec![1, 2],
                fetches: vec![3],
                mode: Mode::Whole,
            };
            (PieceId { session, number }, piece)
        };
        let pieces = vec![piece(u32::MAX), piece(3)];
        let registered = ToMaster::Registered { session, pieces: vec![pieces[0].0], result: Ok(()) };
        let register =
            ToWorker::Register { session, isolated: true, pieces, constants: Constants::default(), guarded: false };
        check(register.into(), Some(registered.into()));
        let variable = VariableName { name: "w".to_owned(), ..VariableName::default() };
        let write = ToHost::Ask { id, inquiry: Inquiry::WriteVariable { variable, expected: Some(3) } };
        check(write.into(), Some(ToHost::Ask { id, inquiry: Inquiry::Status }.into()));
        let fetched = || Some(ToClient::Fetched { id, step: 0 }.into());
        check(ToClient::Fetched { id, step: 7 }.into(), fetched());
        check(ToClient::PartialFetch { id, fetch: 1 }.into(), fetched());
        check(ToClient::Reply { id, result: Ok(Reply::Ran { steps: 9 }) }.into(), fetched());
        let (piece, step) = (PieceId { session, number: 5 }, StepId { session, number: 1 << 33 });
        let done = || Some(ToMaster::Done { piece, step: 8, count: 1 }.into());
        check(ToMaster::Done { piece, step: 8, count: 3 }.into(), done());
        check(ToMaster::PartialFetch { piece, step: 8, place: 2 }.into(), done());
        let start = ToWorker::Start { pieces: vec![piece; 3], first: 4, count: 2, continues: true, together: true };
        let start = Message::from(start);
        check(start.clone(), Some(start));
        let to = Task::new("a_job_of_a_rather_long_name", 3).device(DeviceKind::Gpu, 1);
        let values = vec![PushedValue { transfer: 1, iterations: Default::default(), is_dead: false }; 100];
        let stands = ToWorker::Push { step, to: to.clone(), values: Vec::new() };
        check(ToWorker::Push { step, to, values }.into(), Some(stands.into()));
        check(ToWorker::Release { session }.into(), None);
    }

    #[test]
    fn a_prefix_survives_the_wire() {
        let prefix = Prefix {
            kind: Kind::Call,
            header_bytes: 0x0102_0304,
            payload_bytes: 77,
            number: 5,
            after: 1 << 40,
            behind: 3,
            taken: Taken { frames: 1 << 50, bulk: 9 },
        };
        let mut bytes = prefix.encode();
        assert_eq!(Prefix::decode(&bytes, MAX_MESSAGE_BYTES), Ok(prefix));
        let later = Taken { frames: 7, bulk: 1 << 33 };
        stamp(&mut bytes, 6, later);
        assert_eq!(Prefix::decode(&bytes, MAX_MESSAGE_BYTES), Ok(Prefix { number: 6, taken: later, ..prefix }));
    }

    #[test]
    fn both_ends_say_alike_which_link_goes_on() {
        let standing = |link: Option<(u64, u64)>| Standing {
            fresh: 9,
            link: link.map(|(own, theirs)| LinkNumbers { own, theirs }),
            taken: Taken::default(),
            bulk_beyond: vec![],
        };
        let check = |ours, theirs, goes_on: bool| {
            let (ours, theirs) = (standing(ours), standing(theirs));
            assert_eq!(ours.goes_on(&theirs), ours.link.filter(|_| goes_on));
            assert_eq!(theirs.goes_on(&ours), theirs.link.filter(|_| goes_on));
        };
        check(Some((1, 2)), Some((2, 1)), true);
        check(Some((1, 2)), None, false);
        check(Some((1, 2)), Some((3, 1)), false);
        check(Some((1, 2)), Some((1, 2)), false);
        check(None, None, false);
    }

    #[test]
    fn lies_are_refused_before_anything_is_allocated() {
        let tensor = |dtype, shape: Vec<usize>, strings| TensorHeader { dtype, shape: shape.into(), strings };
        let lies = [
            tensor(DType::F32, vec![usize::MAX, 2], None),
            tensor(DType::F32, vec![1 << 40], None),
            tensor(DType::String, vec![2], None),
            tensor(DType::String, vec![2], Some(vec![])),
            tensor(DType::F32, vec![1], Some(vec![])),
            tensor(DType::Resource, vec![1], None),
        ];
        for lie in lies {
            assert!(lie.payload_bytes().is_err(), "{lie:?}");
        }
        let mut bytes = whole(&example());
        bytes[5] ^= 1;
        assert!(parse(&bytes).is_err());
        let huge = Prefix::of(Kind::Message, 9, usize::MAX);
        assert!(Prefix::decode(&huge.encode(), MAX_MESSAGE_BYTES).is_err());
    }

    #[test]
    fn a_tensor_above_4_gib_is_one_message_and_one_above_the_limit_is_none() {
        // Zeros that nobody has written to take no memory.
        let zeros = |bytes: usize| Tensor::zeros(DType::U8, [bytes]).unwrap();
        let of = |tensors: Vec<Tensor>| Envelope { tensors, ..example() };
        let bytes = (4 << 30) + 8;
        let (prefix, head) = encode_head(&of(vec![zeros(bytes)])).unwrap();
        assert_eq!((prefix.payload_bytes, payload_of(&prefix)), (bytes, Ok(bytes)));
        let header = decode_header(&head[PREFIX_BYTES..], bytes).unwrap();
        assert_eq!(header.tensors[0].payload_bytes(), Ok(bytes));
        let one = zeros(bytes);
        let refused = encode_head(&of(vec![one.clone(), one])).unwrap_err();
        assert!(matches!(refused, MeshError::TooLarge { limit: MAX_MESSAGE_BYTES, .. }), "{refused}");
    }

    /// The length of the payload, as it is read again.
    fn payload_of(prefix: &Prefix) -> Result<usize, Failure> {
        Prefix::decode(&prefix.encode(), MAX_MESSAGE_BYTES).map(|read| read.payload_bytes)
    }

    #[test]
    fn a_byte_that_is_no_bool_is_refused() {
        let envelope = Envelope { tensors: vec![Tensor::scalar(true)], ..example() };
        let mut bytes = whole(&envelope);
        *bytes.last_mut().unwrap() = 2;
        assert!(parse(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let _ = decode(&bytes, &[]);
        }

        #[test]
        fn a_changed_byte_never_panics(at in 0usize..400, to in any::<u8>()) {
            let mut bytes = whole(&example());
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = parse(&bytes);
        }
    }
}
