//! The constants of a registration: from memory, from the disk, or from the participant that offers them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result, counted};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::memory::Bytes;

use super::{Turn, Weights, contents};
use crate::protocol::constants::{Kept, MAX_ASKED, MAX_ASKED_BYTES};
use crate::protocol::inquiry::{Answer, Inquiry};
use crate::protocol::{Content, Peer, Reply};
use crate::runtime::requests::{Asked, Requests};

/// Most registrations whose constants are on their way.
const MAX_FETCHING: usize = 256;
/// How often a holder that has too much to do is asked again.
const MAX_AGAIN: u32 = 12;
/// The pause before that: doubled each time, up to a second.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// Inquiries that are under way at a time: the next one is sent while one is answered.
const AT_ONCE: usize = 2;

/// The way to constants that are not in memory.
#[derive(Clone)]
pub(crate) struct Fetch {
    client: Arc<Requests>,
    under_way: Arc<AtomicUsize>,
}

impl Fetch {
    pub fn new(client: Arc<Requests>) -> Fetch {
        Fetch { client, under_way: Arc::default() }
    }

    /// The constants that this participant has.
    pub fn weights(&self) -> &Arc<Weights> {
        self.client.weights()
    }

    /// A slot for constants that are to be fetched.
    ///
    /// # Errors
    /// ResourceExhausted if too many wait for theirs.
    pub fn turn(&self) -> Result<Turn> {
        Turn::take(&self.under_way, MAX_FETCHING).ok_or_else(|| {
            let why = format!("{MAX_FETCHING} registrations wait for their constants already");
            Failure::new(Code::ResourceExhausted, why)
        })
    }

    /// The constants of a session's pieces, from the first of the `holders` that can be reached if this participant does not
    /// have them. Waits for them. It gives up once `is_wanted` is false.
    ///
    /// # Errors
    /// Unavailable if no holder is reached; DataLoss if a constant is not that of its content; ResourceExhausted if there is no
    /// memory; Cancelled if it is not wanted any more.
    pub fn all(
        &self,
        session: SessionId,
        kept: &[Kept],
        holders: &[Peer],
        is_wanted: impl Fn() -> bool + Sync,
    ) -> Result<HashMap<Content, Tensor>> {
        let mut have = HashMap::new();
        let mut missing = Vec::new();
        for one in kept {
            match self.weights().at_hand(&one.content) {
                Some(value) => drop(have.insert(one.content, value)),
                None => missing.push(one),
            }
        }
        let in_memory = have.len();
        let loaded = self.weights().read_cache(&missing, &is_wanted)?;
        if !is_wanted() {
            return Err(not_wanted());
        }
        let on_disk = loaded.len();
        have.extend(loaded);
        missing.retain(|one| !have.contains_key(&one.content));
        if !missing.is_empty() {
            self.take(session, &missing, holders, &mut have, is_wanted)?;
        }
        let have: HashMap<Content, Tensor> = self.weights().note(have).into_iter().collect();
        let bytes = missing.iter().map(|one| one.bytes()).sum();
        tracing::debug!(
            target: "meshtf::weights",
            in_memory, on_disk, received = missing.len(), bytes,
            "{} of session {session}: {in_memory} in memory, {on_disk} from the disk, {} of {} received",
            counted(kept.len(), "large constant"), missing.len(), Bytes(bytes)
        );
        Ok(have)
    }

    /// Takes constants from a holder, some at a time.
    fn take(
        &self,
        session: SessionId,
        missing: &[&Kept],
        holders: &[Peer],
        have: &mut HashMap<Content, Tensor>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<()> {
        let mut failed = None;
        for holder in holders {
            match patiently(&is_wanted, || self.take_from(holder, session, missing, have, &is_wanted)) {
                Ok(()) => return Ok(()),
                // It is not connected, or does not have them: another one may.
                Err(failure) if matches!(failure.code, Code::Unavailable | Code::NotFound) => failed = Some(failure),
                Err(failure) => return Err(failure),
            }
        }
        let none = || Failure::new(Code::Unavailable, "nobody offers the constants that this task lacks");
        Err(failed.unwrap_or_else(none))
    }

    /// Takes those of the constants that are still missing from a holder.
    fn take_from(
        &self,
        holder: &Peer,
        session: SessionId,
        missing: &[&Kept],
        have: &mut HashMap<Content, Tensor>,
        is_wanted: &impl Fn() -> bool,
    ) -> Result<()> {
        let missing: Vec<&Kept> = missing.iter().copied().filter(|one| !have.contains_key(&one.content)).collect();
        let mut parts = parts(&missing).into_iter();
        let mut asked: VecDeque<(&[&Kept], Asked)> = VecDeque::new();
        loop {
            while asked.len() < AT_ONCE
                && let Some(part) = parts.next()
            {
                let contents = part.iter().map(|one| one.content).collect();
                let inquiry = Inquiry::Constants { session, contents };
                asked.push_back((part, self.client.inquire(holder, inquiry, Vec::new())?));
            }
            let Some((part, asked)) = asked.pop_front() else { return Ok(()) };
            let (reply, values) = asked.wait()?;
            if !matches!(reply, Reply::Told(Answer::Constants)) || values.len() != part.len() {
                return Err(Failure::new(Code::Internal, format!("unexpected answer from {holder}: {reply:?}")));
            }
            for ((one, value), content) in part.iter().zip(&values).zip(contents(&values)) {
                if content != one.content {
                    let Kept { content, node, dtype, shape } = one;
                    let why = format!(
                        "the {dtype} of shape {shape} that {holder} sent as constant {content} of node {node} has \
                         another content"
                    );
                    return Err(Failure::new(Code::DataLoss, why));
                }
                self.weights().write(one, value);
                have.insert(content, value.clone());
            }
            if !is_wanted() {
                return Err(not_wanted());
            }
        }
    }
}

/// Does work with a holder, and again if the holder has too much to do.
fn patiently(is_wanted: &impl Fn() -> bool, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    let (mut pause, mut left) = (PAUSES[0], MAX_AGAIN);
    loop {
        match work() {
            Err(failure) if failure.code == Code::ResourceExhausted && left > 0 && is_wanted() => {
                thread::sleep(pause);
                (pause, left) = ((2 * pause).min(PAUSES[1]), left - 1);
            }
            done => return done,
        }
    }
}

fn not_wanted() -> Failure {
    Failure::new(Code::Cancelled, "its session ended while its constants were on their way")
}

/// Constants, in parts that one inquiry may ask for.
fn parts<'k, 'a>(mut all: &'a [&'k Kept]) -> Vec<&'a [&'k Kept]> {
    let mut parts = Vec::new();
    while !all.is_empty() {
        let mut bytes = 0usize;
        let fits = |one: &&&Kept| {
            bytes = bytes.saturating_add(one.bytes());
            bytes <= MAX_ASKED_BYTES
        };
        let count = all.iter().take(MAX_ASKED).take_while(fits).count().max(1);
        let (part, rest) = all.split_at(count);
        parts.push(part);
        all = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::{DType, Shape};

    #[test]
    fn parts_stay_within_the_limits_of_an_inquiry() {
        let kept = |bytes: usize| Kept {
            content: Content([0; 32]),
            node: String::new(),
            dtype: DType::U8,
            shape: Shape::from(vec![bytes]),
        };
        let counts = |sizes: &[usize]| {
            let all: Vec<Kept> = sizes.iter().map(|&bytes| kept(bytes)).collect();
            let all: Vec<&Kept> = all.iter().collect();
            parts(&all).iter().map(|part| part.len()).collect::<Vec<_>>()
        };
        let half = MAX_ASKED_BYTES / 2;
        assert_eq!(counts(&[half, half, 1, 3 * half, half, 1]), [2, 1, 1, 2]);
        assert_eq!(counts(&[]), [] as [usize; 0]);
        assert_eq!(counts(&[1; MAX_ASKED + 1]), [MAX_ASKED, 1]);
    }
}
