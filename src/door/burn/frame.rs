//! What a frame says.
//!
//! An operation's bytes are the same in each iteration of a loop but for the ids of its tensors and its scalars. Those are found
//! without knowing what the operation is, and replaced by their places; what then remains is decoded once, and looked up from
//! then on. Whether a place holds what it seems to hold is checked against what the whole was decoded to: an operation for which
//! that is not so is decoded each time.

use std::collections::HashMap;

use burn_ir::{OperationIr, ScalarIr};
use burn_std::id::StreamId;
use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::form::{Call, Form};
use super::message::{self, RemoteMessage, SessionTask};
use crate::failure::Result;

/// How an operation begins: an array of the stream and the operation, in two maps with one entry each. The stream is an array of
/// its number.
const OPERATION: &[u8] = b"\x81\xa4Task\x81\xb1RegisterOperation\x92\x91";
/// How a tensor begins: an array of four, the first of which is an array of its id.
const TENSOR: [u8; 2] = [0x94, 0x91];
/// How a place among scalars begins.
const PLACE: &[u8] = b"\x81\xa4UInt";
/// Most tensors, and most scalars, of an operation that is looked up: their places take one byte.
const MAX_PLACES: usize = 128;
/// Most bytes of such an operation.
const MAX_LENGTH: usize = 2 << 10;
/// Most operations that are remembered, and most bytes of them together; all are forgotten if there are more.
const MAX_KNOWN: usize = 2048;
const MAX_KNOWN_BYTES: usize = 512 << 10;

/// What a client says.
#[derive(Debug)]
pub(super) enum Said {
    Operation(StreamId, Call),
    Task(Box<SessionTask>),
    /// The session ends.
    End,
}

/// The operations that a session knows by their bytes.
#[derive(Default)]
pub(super) struct Frames {
    known: HashMap<Box<[u8]>, Known, RandomState>,
    /// How many bytes the known ones have together.
    bytes: usize,
    operation: Operation,
}

/// An operation's bytes, and what was taken out of them.
#[derive(Default)]
struct Operation {
    /// With places instead of ids and scalars.
    bytes: Vec<u8>,
    ids: SmallVec<[u64; 8]>,
    scalars: SmallVec<[ScalarIr; 2]>,
}

/// What bytes stand for.
struct Known {
    form: std::sync::Arc<Form>,
    /// For each tensor of the form: which of the ids in the bytes it has, and whether this is its last use.
    tensors: SmallVec<[(u8, bool); 4]>,
    /// For each scalar of the form: which of those in the bytes it is.
    scalars: SmallVec<[u8; 4]>,
}

impl Frames {
    /// What a frame says, in order.
    ///
    /// # Errors
    /// InvalidArgument if it is not what a client sends.
    pub fn read(&mut self, frame: &[u8]) -> Result<Vec<Said>> {
        match self.read_known(frame) {
            Some(all) => Ok(all),
            None => Ok(message::decode(frame)?.into_iter().map(Said::from).collect()),
        }
    }

    /// The same; `None` if the frame has to be decoded as a whole, or cannot be.
    fn read_known(&mut self, frame: &[u8]) -> Option<Vec<Said>> {
        let (mut rest, count) = match frame {
            [short @ 0x90..=0x9f, rest @ ..] => (rest, usize::from(short & 0x0f)),
            [0xdc, high, low, rest @ ..] => (rest, usize::from(u16::from_be_bytes([*high, *low]))),
            _ => return None,
        };
        let mut all = Vec::with_capacity(count.min(frame.len()));
        for _ in 0..count {
            if let Some(operation) = rest.strip_prefix(OPERATION) {
                let (value, size) = unsigned(operation)?;
                let operation = &operation[size..];
                let length = self.operation.take_out(operation)?;
                all.push(Said::Operation(StreamId { value }, self.call(&operation[..length])?));
                rest = &operation[length..];
            } else {
                let (message, after) = rest.split_at(length(rest)?);
                all.push(Said::from(rmp_serde::from_slice::<RemoteMessage>(message).ok()?));
                rest = after;
            }
        }
        Some(all)
    }

    /// The operation whose bytes were taken apart.
    fn call(&mut self, whole: &[u8]) -> Option<Call> {
        let Operation { bytes, ids, scalars } = &self.operation;
        if let Some(Known { form, tensors: places, scalars: scalar_places }) = self.known.get(&bytes[..]) {
            let tensors = places.iter().map(|&(place, is_last)| (ids[usize::from(place)], is_last)).collect();
            let scalars = scalar_places.iter().map(|&place| scalars[usize::from(place)]).collect();
            return Some(Call { form: form.clone(), tensors, scalars });
        }
        let call = Call::new(rmp_serde::from_slice::<OperationIr>(whole).ok()?);
        if let Some(known) = self.operation.known_as(&call) {
            if self.known.len() >= MAX_KNOWN || self.bytes + bytes.len() > MAX_KNOWN_BYTES {
                (self.known, self.bytes) = Default::default();
            }
            self.bytes += bytes.len();
            self.known.insert(bytes[..].into(), known);
        }
        Some(call)
    }
}

impl Operation {
    /// Takes out what seem to be ids and scalars of the operation that these bytes begin with; returns its length.
    fn take_out(&mut self, from: &[u8]) -> Option<usize> {
        let Operation { bytes, ids, scalars } = self;
        bytes.clear();
        ids.clear();
        scalars.clear();
        // How many values are to come, where the next is, and up to where all was copied.
        let (mut values, mut at, mut copied) = (1usize, 0, 0);
        while values > 0 {
            values -= 1;
            let rest = &from[at..];
            if let Some(tensor) = rest.strip_prefix(&TENSOR)
                && ids.len() < MAX_PLACES
                && let Some((id, size)) = unsigned(tensor)
            {
                at += TENSOR.len();
                bytes.extend_from_slice(&from[copied..at]);
                bytes.push(ids.len() as u8);
                ids.push(id);
                at += size;
                copied = at;
                values += 3;
            } else if scalars.len() < MAX_PLACES
                && let Some((value, size)) = scalar(rest)
            {
                bytes.extend_from_slice(&from[copied..at]);
                bytes.extend_from_slice(PLACE);
                bytes.push(scalars.len() as u8);
                scalars.push(value);
                at += size;
                copied = at;
            } else {
                let (size, more) = value(rest)?;
                at += size;
                values = values.checked_add(more).filter(|values| *values <= from.len())?;
            }
        }
        bytes.extend_from_slice(&from[copied..at]);
        Some(at)
    }

    /// How these bytes say what a call is; `None` if what was taken out of them is not what the call has.
    fn known_as(&self, call: &Call) -> Option<Known> {
        let Operation { bytes, ids, scalars } = self;
        if bytes.len() > MAX_LENGTH {
            return None;
        }
        let placed = Call::new(rmp_serde::from_slice::<OperationIr>(bytes).ok()?);
        if placed.form != call.form || placed.tensors.len() != ids.len() || placed.scalars.len() != scalars.len() {
            return None;
        }
        let (mut seen, mut seen_scalars) = ([false; MAX_PLACES], [false; MAX_PLACES]);
        let mut is_new = |place: usize| !std::mem::replace(seen.get_mut(place).unwrap_or(&mut true), true);
        let mut tensors = SmallVec::new();
        for ((place, is_last), (id, was_last)) in placed.tensors.iter().zip(&call.tensors) {
            let index = usize::try_from(*place).ok().filter(|index| is_new(*index))?;
            if ids.get(index) != Some(id) || is_last != was_last {
                return None;
            }
            tensors.push((index as u8, *is_last));
        }
        let mut is_new = |place: usize| !std::mem::replace(seen_scalars.get_mut(place).unwrap_or(&mut true), true);
        let mut places = SmallVec::new();
        for (place, scalar) in placed.scalars.iter().zip(&call.scalars) {
            let ScalarIr::UInt(place) = place else { return None };
            let index = usize::try_from(*place).ok().filter(|index| is_new(*index))?;
            if scalars.get(index) != Some(scalar) {
                return None;
            }
            places.push(index as u8);
        }
        Some(Known { form: call.form.clone(), tensors, scalars: places })
    }
}

impl From<RemoteMessage> for Said {
    fn from(message: RemoteMessage) -> Said {
        match message {
            RemoteMessage::Task(task) => match *task {
                SessionTask::RegisterOperation(stream, operation) => Said::Operation(stream, Call::new(*operation)),
                task => Said::Task(Box::new(task)),
            },
            RemoteMessage::Close(_) | RemoteMessage::Init(_) => Said::End,
        }
    }
}

/// The unsigned number that these bytes begin with, and its length.
fn unsigned(bytes: &[u8]) -> Option<(u64, usize)> {
    Some(match *bytes {
        [small @ 0..=0x7f, ..] => (u64::from(small), 1),
        [0xcc, a, ..] => (u64::from(a), 2),
        [0xcd, a, b, ..] => (u64::from(u16::from_be_bytes([a, b])), 3),
        [0xce, a, b, c, d, ..] => (u64::from(u32::from_be_bytes([a, b, c, d])), 5),
        [0xcf, ref rest @ ..] => (u64::from_be_bytes(*rest.first_chunk()?), 9),
        _ => return None,
    })
}

/// The scalar that these bytes begin with, and its length: a map from the name of its type to its value.
fn scalar(bytes: &[u8]) -> Option<(ScalarIr, usize)> {
    let [0x81, name @ 0xa3..=0xa5, rest @ ..] = bytes else { return None };
    let (name, value) = rest.split_at_checked(usize::from(name & 0x1f))?;
    let (scalar, size) = match (name, value) {
        (b"Float", [0xcb, rest @ ..]) => (ScalarIr::Float(f64::from_be_bytes(*rest.first_chunk()?)), 9),
        (b"Int", value) => signed(value).map(|(value, size)| (ScalarIr::Int(value), size))?,
        (b"UInt", value) => unsigned(value).map(|(value, size)| (ScalarIr::UInt(value), size))?,
        (b"Bool", [value @ (0xc2 | 0xc3), ..]) => (ScalarIr::Bool(*value == 0xc3), 1),
        _ => return None,
    };
    Some((scalar, 2 + name.len() + size))
}

/// The number that these bytes begin with, and its length.
fn signed(bytes: &[u8]) -> Option<(i64, usize)> {
    Some(match *bytes {
        [small @ 0xe0..=0xff, ..] => (i64::from(small as i8), 1),
        [0xd0, a, ..] => (i64::from(a as i8), 2),
        [0xd1, a, b, ..] => (i64::from(i16::from_be_bytes([a, b])), 3),
        [0xd2, a, b, c, d, ..] => (i64::from(i32::from_be_bytes([a, b, c, d])), 5),
        [0xd3, ref rest @ ..] => (i64::from_be_bytes(*rest.first_chunk()?), 9),
        _ => unsigned(bytes).and_then(|(value, size)| Some((i64::try_from(value).ok()?, size)))?,
    })
}

/// The length of the value that these bytes begin with, with all that it contains.
fn length(bytes: &[u8]) -> Option<usize> {
    let (mut values, mut at) = (1usize, 0);
    while values > 0 {
        let (size, more) = value(&bytes[at..])?;
        at += size;
        values = (values - 1).checked_add(more).filter(|values| *values <= bytes.len())?;
    }
    Some(at)
}

/// The length of the value that these bytes begin with, without what it contains, and how many values that are.
fn value(bytes: &[u8]) -> Option<(usize, usize)> {
    let of =
        |size: usize| bytes.get(1..=size)?.iter().try_fold(0usize, |sum, &byte| Some(sum << 8 | usize::from(byte)));
    let (size, more) = match *bytes.first()? {
        0..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (1, 0),
        map @ 0x80..=0x8f => (1, 2 * usize::from(map & 0x0f)),
        array @ 0x90..=0x9f => (1, usize::from(array & 0x0f)),
        text @ 0xa0..=0xbf => (1 + usize::from(text & 0x1f), 0),
        0xcc | 0xd0 => (2, 0),
        0xcd | 0xd1 => (3, 0),
        0xca | 0xce | 0xd2 => (5, 0),
        0xcb | 0xcf | 0xd3 => (9, 0),
        0xc4 | 0xd9 => (2 + of(1)?, 0),
        0xc5 | 0xda => (3 + of(2)?, 0),
        0xc6 | 0xdb => (5 + of(4)?, 0),
        0xdc => (3, of(2)?),
        0xdd => (5, of(4)?),
        0xde => (3, 2 * of(2)?),
        0xdf => (5, of(4)?.checked_mul(2)?),
        // What is reserved, and extensions, of which a client sends none.
        _ => return None,
    };
    (size <= bytes.len()).then_some((size, more))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn_ir::{BinaryOpIr, CustomOpIr, NumericOperationIr, ScalarOpIr, TensorId, TensorIr, TensorStatus};
    use burn_std::{DType, Shape};

    use super::super::fuzz;
    use super::*;

    const STREAM: StreamId = StreamId { value: 1 << 40 };

    fn tensor(id: u64, status: TensorStatus) -> TensorIr {
        TensorIr { id: TensorId::new(id), shape: Shape::new([2, 300]), status, dtype: DType::F32 }
    }

    fn frame(operations: Vec<OperationIr>) -> Vec<u8> {
        let task = |operation| SessionTask::RegisterOperation(STREAM, Box::new(operation));
        let messages: Vec<RemoteMessage> =
            operations.into_iter().map(|operation| RemoteMessage::Task(Box::new(task(operation)))).collect();
        rmp_serde::to_vec(&messages).unwrap()
    }

    fn numeric(operation: NumericOperationIr) -> OperationIr {
        OperationIr::NumericFloat(DType::F32, operation)
    }

    fn decoded(frame: &[u8]) -> String {
        format!("{:?}", message::decode(frame).unwrap().into_iter().map(Said::from).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_known_by_its_bytes_is_what_would_be_decoded() {
        let (mut operations, mut known) = (0, 0);
        for (_, name, bytes) in fuzz::examples() {
            let mut frames = Frames::default();
            for time in ["decoded", "known"] {
                let said = frames.read(&bytes).unwrap();
                assert_eq!(format!("{said:?}"), decoded(&bytes), "{name}, {time}");
                operations += said.iter().filter(|said| matches!(said, Said::Operation(..))).count();
            }
            known += frames.known.len();
        }
        // Each was read twice. Those that are not known have no scalar that equals itself, or differ in their ids alone.
        assert!(operations > 400 && known > operations / 2 * 9 / 10, "{known} known of {operations}");
    }

    #[test]
    fn an_operation_has_the_same_form_with_other_tensors_and_scalars() {
        use TensorStatus::{NotInit, ReadOnly, ReadWrite};
        let mut frames = Frames::default();
        let mut forms: Vec<Arc<Form>> = Vec::new();
        // Ids and scalars that take one to nine bytes.
        for (i, base) in [0, 100, 200, 70_000, 1 << 33].into_iter().enumerate() {
            let of = |n: u64, status| tensor(base + n, status);
            let scale = |by| {
                let (lhs, out) = (of(1, ReadWrite), of(2, NotInit));
                numeric(NumericOperationIr::MulScalar(ScalarOpIr { lhs, rhs: by, out }))
            };
            let add = |lhs, rhs| numeric(NumericOperationIr::Add(BinaryOpIr { lhs, rhs, out: of(3, NotInit) }));
            let bytes = frame(vec![
                scale(ScalarIr::Float(0.1 * i as f64)),
                scale(ScalarIr::Int(-(base as i64))),
                add(of(1, ReadOnly), of(1, ReadOnly)),
                add(of(1, ReadOnly), of(2, ReadWrite)),
                OperationIr::Drop(of(9, ReadWrite)),
            ]);
            let said = frames.read(&bytes).unwrap();
            assert_eq!(format!("{said:?}"), decoded(&bytes));
            let calls: Vec<Call> = said
                .into_iter()
                .map(|said| match said {
                    Said::Operation(STREAM, call) => call,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(calls[1].scalars[..], [ScalarIr::Int(-(base as i64))]);
            assert_eq!(calls[3].tensors[..], [(base + 1, false), (base + 2, true), (base + 3, false)]);
            if i == 0 {
                forms = calls.iter().map(|call| call.form.clone()).collect();
            }
            assert!(calls.iter().zip(&forms).all(|(call, form)| Arc::ptr_eq(&call.form, form)), "{base}");
        }
        // What lets go of a tensor and what does not are of one form, by content.
        assert!(forms[2] == forms[3] && !Arc::ptr_eq(&forms[2], &forms[3]));
        // The two that scale by a float and by an integer differ in their scalars alone.
        assert!(forms[0] == forms[1] && forms[0] != forms[2]);
        assert_eq!(frames.known.len(), 4);
    }

    #[test]
    fn what_only_looks_like_a_known_operation_is_decoded() {
        let mut frames = Frames::default();
        let tensors: Vec<TensorIr> = (0..200).map(|id| tensor(id, TensorStatus::ReadOnly)).collect();
        // More tensors than there are places.
        let many = frame(vec![OperationIr::Custom(CustomOpIr::new("many", &tensors, &tensors[..1]))]);
        for _ in 0..2 {
            assert_eq!(format!("{:?}", frames.read(&many).unwrap()), decoded(&many));
        }
        assert!(frames.known.is_empty());
        // Anything may be cut off.
        let add = BinaryOpIr { lhs: tensors[0].clone(), rhs: tensors[1].clone(), out: tensors[2].clone() };
        let whole = frame(vec![numeric(NumericOperationIr::Add(add)); 2]);
        frames.read(&whole).unwrap();
        assert!((0..whole.len()).all(|length| frames.read(&whole[..length]).is_err()));
        // Lengths that no message has.
        for bytes in [&b"\x91\xdd\xff\xff\xff\xff"[..], b"\x91\xdf\xff\xff\xff\xff\x01", b"\x91\xc6\xff\xff\xff\xff"] {
            assert!(frames.read(bytes).is_err());
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut frames = Frames::default();
        for size in 0..3 * MAX_KNOWN {
            let shaped = TensorIr { shape: Shape::new([size]), ..tensor(1, TensorStatus::ReadWrite) };
            frames.read(&frame(vec![OperationIr::Drop(shaped)])).unwrap();
            let bytes: usize = frames.known.keys().map(|bytes| bytes.len()).sum();
            assert!(frames.known.len() <= MAX_KNOWN && bytes == frames.bytes && bytes <= MAX_KNOWN_BYTES);
        }
    }
}
