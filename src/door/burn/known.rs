//! The operations that a session knows by their bytes.
//!
//! An operation's bytes are the same in each iteration of a loop but for the ids of its tensors and its scalars. Those are
//! found without knowledge of the operation and replaced by their indices; the remainder is decoded once, and looked up from
//! then on. Whether a field holds an id or a scalar, as its bytes suggest, is checked against the decoded operation: if it does
//! not, the operation is decoded each time.
//!
//! A loop also repeats the order of its operations. The operation that last followed the same few operations is tried first: if
//! the bytes are its, nothing has to be found or looked up.

use std::collections::HashMap;
use std::sync::Arc;

use burn_ir::{OperationIr, ScalarIr};
use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::form::{Call, Form};
use super::messagepack::{scalar, unsigned, value};

/// The head of a tensor: an array of four, the first of which is an array of its id.
const TENSOR: [u8; 2] = [0x94, 0x91];
/// The head of an index into the scalars.
const PLACE: &[u8] = b"\x81\xa4UInt";
/// Maximum number of tensors, and of scalars, of an operation that is looked up: their indices take one byte.
const MAX_PLACES: usize = 128;
/// Maximum size of such an operation in bytes.
const MAX_LENGTH: usize = 2 << 10;
/// Maximum number of remembered operations, and their maximum total size in bytes; at least half are forgotten if there are
/// more.
const MAX_KNOWN: usize = 1 << 13;
const MAX_KNOWN_BYTES: usize = 2 << 20;
/// Number of remembered guesses, each of the operation that follows four given ones.
const GUESSES_BITS: u32 = 13;
/// None of the known operations.
const NONE: u16 = u16::MAX;

/// The known operations of a session.
#[derive(Default)]
pub(super) struct Operations {
    all: Vec<Known>,
    /// The number of the operation with these bytes.
    by_bytes: HashMap<Arc<[u8]>, u16, RandomState>,
    /// Their total size in bytes.
    bytes: usize,
    /// The last four, 16 bits each.
    recent: u64,
    /// The operation that last followed four such, by their hash; empty as long as none is known.
    guesses: Vec<u16>,
    taken_out: TakenOut,
}

/// An operation's bytes, and the ids and scalars taken out of them.
#[derive(Default)]
struct TakenOut {
    /// With indices instead of ids and scalars.
    bytes: Vec<u8>,
    /// The offsets of the indices, in order.
    gaps: SmallVec<[Gap; 8]>,
    ids: SmallVec<[u64; 8]>,
    scalars: SmallVec<[ScalarIr; 2]>,
}

/// The offset of an index in an operation's bytes, and whether it stands for a scalar.
type Gap = (usize, bool);

/// The meaning of some bytes.
struct Known {
    bytes: Arc<[u8]>,
    gaps: SmallVec<[(u16, bool); 4]>,
    form: Arc<Form>,
    /// For each tensor of the form: the index of its id in the bytes, and whether this is its last use.
    tensors: SmallVec<[(u8, bool); 4]>,
    /// For each scalar of the form: its index in those of the bytes.
    scalars: SmallVec<[u8; 4]>,
    /// It has been read again since operations were last forgotten.
    is_used: bool,
}

impl Operations {
    /// The operation at the head of these bytes, and its length.
    pub fn read(&mut self, from: &[u8]) -> Option<(Call, usize)> {
        let place = (self.recent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - GUESSES_BITS)) as usize;
        let guess = self.guesses.get(place).copied().unwrap_or(NONE);
        if let Some(known) = self.all.get_mut(usize::from(guess))
            && let Some(read) = known.read(from)
        {
            known.is_used = true;
            self.recent = self.recent << 16 | u64::from(guess);
            return Some(read);
        }
        let length = self.taken_out.take_out(from)?;
        let TakenOut { bytes, ids, scalars, .. } = &self.taken_out;
        let (call, is) = match self.by_bytes.get(&bytes[..]) {
            Some(&is) => {
                let known = &mut self.all[usize::from(is)];
                known.is_used = true;
                (known.call(ids, scalars), is)
            }
            None => {
                let call = Call::new(rmp_serde::from_slice::<OperationIr>(&from[..length]).ok()?);
                let is = self.taken_out.known_as(&call).map_or(NONE, |known| self.add(known));
                (call, is)
            }
        };
        if let Some(guess) = self.guesses.get_mut(place) {
            *guess = is;
        }
        self.recent = self.recent << 16 | u64::from(is);
        Some((call, length))
    }

    fn add(&mut self, known: Known) -> u16 {
        if self.all.len() >= MAX_KNOWN || self.bytes + known.bytes.len() > MAX_KNOWN_BYTES {
            self.forget();
        }
        self.guesses.resize(1 << GUESSES_BITS, NONE);
        let is = self.all.len() as u16;
        self.bytes += known.bytes.len();
        self.by_bytes.insert(known.bytes.clone(), is);
        self.all.push(known);
        is
    }

    /// Forgets the operations that have not been read since the last call of this function, and of the rest those beyond half
    /// of the limits.
    fn forget(&mut self) {
        let all = std::mem::take(&mut self.all);
        (self.by_bytes, self.bytes, self.guesses) = Default::default();
        for known in all.into_iter().filter(|known| known.is_used).take(MAX_KNOWN / 2) {
            if self.bytes + known.bytes.len() <= MAX_KNOWN_BYTES / 2 {
                self.add(Known { is_used: false, ..known });
            }
        }
    }
}

impl Known {
    /// The same operation with other ids and scalars, and its length, if the bytes begin with it.
    fn read(&self, from: &[u8]) -> Option<(Call, usize)> {
        let (mut ids, mut scalars) = (SmallVec::<[u64; 8]>::new(), SmallVec::<[ScalarIr; 2]>::new());
        let (mut rest, mut compared) = (from, 0);
        for &(gap, is_scalar) in &self.gaps {
            let gap = usize::from(gap);
            rest = rest.strip_prefix(&self.bytes[compared..gap])?;
            let size;
            if is_scalar {
                let found = scalar(rest)?;
                (size, compared) = (found.1, gap + PLACE.len() + 1);
                scalars.push(found.0);
            } else {
                let found = unsigned(rest)?;
                (size, compared) = (found.1, gap + 1);
                ids.push(found.0);
            }
            rest = &rest[size..];
        }
        rest = rest.strip_prefix(&self.bytes[compared..])?;
        Some((self.call(&ids, &scalars), from.len() - rest.len()))
    }

    fn call(&self, ids: &[u64], scalars: &[ScalarIr]) -> Call {
        let tensors = self.tensors.iter().map(|&(place, is_last)| (ids[usize::from(place)], is_last)).collect();
        let scalars = self.scalars.iter().map(|&place| scalars[usize::from(place)]).collect();
        Call { form: self.form.clone(), tensors, scalars }
    }
}

impl TakenOut {
    /// Takes out the apparent ids and scalars of the operation at the head of these bytes; returns its length.
    fn take_out(&mut self, from: &[u8]) -> Option<usize> {
        let TakenOut { bytes, gaps, ids, scalars } = self;
        bytes.clear();
        gaps.clear();
        ids.clear();
        scalars.clear();
        // The number of values to come, the offset of the next one, and the end of the copied bytes.
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
                gaps.push((bytes.len(), false));
                bytes.push(ids.len() as u8);
                ids.push(id);
                at += size;
                copied = at;
                values += 3;
            } else if scalars.len() < MAX_PLACES
                && let Some((value, size)) = scalar(rest)
            {
                bytes.extend_from_slice(&from[copied..at]);
                gaps.push((bytes.len(), true));
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

    /// The relation of these bytes to a call; `None` if the ids and scalars taken out of them are not the call's.
    fn known_as(&self, call: &Call) -> Option<Known> {
        let TakenOut { bytes, gaps, ids, scalars } = self;
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
        let gaps = gaps.iter().map(|&(gap, is_scalar)| (gap as u16, is_scalar)).collect();
        let (bytes, form) = (Arc::from(&bytes[..]), call.form.clone());
        Some(Known { bytes, gaps, form, tensors, scalars: places, is_used: false })
    }
}

#[cfg(test)]
mod tests {
    use burn_ir::{BinaryOpIr, CustomOpIr, NumericOperationIr, ScalarOpIr, TensorId, TensorIr, TensorStatus};
    use burn_std::id::StreamId;
    use burn_std::{DType, Shape};

    use super::super::frame::{Frames, Said};
    use super::super::fuzz;
    use super::super::message::{self, RemoteMessage, SessionTask};
    use super::*;
    use meshtf_tensor::failure::Result;

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

    fn read(frames: &mut Frames, frame: &[u8]) -> Result<Vec<Said>> {
        let mut said = Vec::new();
        frames.read(frame, &mut said).map(|()| said)
    }

    fn decoded(frame: &[u8]) -> String {
        format!("{:?}", message::decode(frame).unwrap().into_iter().map(Said::from).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_known_by_its_bytes_is_what_would_be_decoded() {
        let (mut operations, mut known) = (0, 0);
        for (_, name, bytes) in fuzz::examples() {
            let mut frames = Frames::default();
            for time in ["decoded", "known", "guessed"] {
                let said = read(&mut frames, &bytes).unwrap();
                assert_eq!(format!("{said:?}"), decoded(&bytes), "{name}, {time}");
                operations += said.iter().filter(|said| matches!(said, Said::Operation(..))).count();
            }
            known += frames.operations.all.len();
        }
        // Each was read three times. Those that are not known have no scalar that equals itself, or differ in their ids alone.
        assert!(operations > 600 && known > operations / 3 * 9 / 10, "{known} known of {operations}");
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
            let said = read(&mut frames, &bytes).unwrap();
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
        // By content, a form does not depend on whether it drops a tensor.
        assert!(forms[2] == forms[3] && !Arc::ptr_eq(&forms[2], &forms[3]));
        // The two that scale by a float and by an integer differ in their scalars alone.
        assert!(forms[0] == forms[1] && forms[0] != forms[2]);
        assert_eq!(frames.operations.all.len(), 4);
    }

    #[test]
    fn what_only_looks_like_a_known_operation_is_decoded() {
        let mut frames = Frames::default();
        let tensors: Vec<TensorIr> = (0..200).map(|id| tensor(id, TensorStatus::ReadOnly)).collect();
        // More tensors than there are indices.
        let many = frame(vec![OperationIr::Custom(CustomOpIr::new("many", &tensors, &tensors[..1]))]);
        for _ in 0..2 {
            assert_eq!(format!("{:?}", read(&mut frames, &many).unwrap()), decoded(&many));
        }
        assert!(frames.operations.all.is_empty());
        // The bytes may be cut off anywhere.
        let add = BinaryOpIr { lhs: tensors[0].clone(), rhs: tensors[1].clone(), out: tensors[2].clone() };
        let whole = frame(vec![numeric(NumericOperationIr::Add(add)); 2]);
        for _ in 0..5 {
            read(&mut frames, &whole).unwrap();
            assert!((0..whole.len()).all(|length| read(&mut frames, &whole[..length]).is_err()));
        }
        // Lengths that no message has.
        for bytes in [&b"\x91\xdd\xff\xff\xff\xff"[..], b"\x91\xdf\xff\xff\xff\xff\x01", b"\x91\xc6\xff\xff\xff\xff"] {
            assert!(read(&mut frames, bytes).is_err());
        }
    }

    fn drop_of(size: usize) -> OperationIr {
        OperationIr::Drop(TensorIr { shape: Shape::new([size]), ..tensor(1, TensorStatus::ReadWrite) })
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_comes_again_stays() {
        let mut frames = Frames::default();
        let is_known = |frames: &Frames, size| {
            let mut taken_out = TakenOut::default();
            taken_out.take_out(&rmp_serde::to_vec(&drop_of(size)).unwrap()).unwrap();
            frames.operations.by_bytes.contains_key(&taken_out.bytes[..])
        };
        for size in 0..3 * MAX_KNOWN {
            read(&mut frames, &frame(vec![drop_of(size)])).unwrap();
            read(&mut frames, &frame(vec![drop_of(size % 10)])).unwrap();
            let Operations { all, by_bytes, bytes, .. } = &frames.operations;
            assert!(all.len() <= MAX_KNOWN && by_bytes.len() == all.len() && *bytes <= MAX_KNOWN_BYTES);
        }
        assert_eq!(frames.operations.bytes, frames.operations.all.iter().map(|known| known.bytes.len()).sum::<usize>());
        assert!((0..10).all(|size| is_known(&frames, size)) && !is_known(&frames, 20));
    }

    #[test]
    fn a_loop_is_guessed_from_its_third_iteration_on() {
        let of = |id, size| TensorIr { shape: Shape::new([size]), ..tensor(id, TensorStatus::ReadOnly) };
        let mut frames = Frames::default();
        let mut guessed = Vec::new();
        for i in 0..4u64 {
            // Sizes in an order in which the same size has others after it.
            for (n, size) in [1usize, 2, 3, 1, 2, 4, 1, 1, 5, 3].into_iter().enumerate() {
                let n = n as u64;
                let scaled =
                    ScalarOpIr { lhs: of(100 * i + n, size), rhs: ScalarIr::Float(i as f64), out: of(n, size) };
                let bytes = frame(vec![numeric(NumericOperationIr::MulScalar(scaled))]);
                frames.operations.taken_out.bytes.clear();
                assert_eq!(format!("{:?}", read(&mut frames, &bytes).unwrap()), decoded(&bytes));
                guessed.push(frames.operations.taken_out.bytes.is_empty());
            }
        }
        assert!(guessed[20..].iter().all(|guessed| *guessed) && !guessed[..10].contains(&true), "{guessed:?}");
    }
}
