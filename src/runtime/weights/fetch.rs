//! The constants of a registration: from memory, from the disk, or from the participant that offers them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::{Duration, Instant};

use meshtf_tensor::failure::{Code, Failure, Result, counted};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::memory::Bytes;
use meshtf_tensor::{Tensor, constant};

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
/// A holder from which less than [`LEAST_BYTES`] came for so long is given up.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(60);
/// More than what keeps a link alive.
const LEAST_BYTES: u64 = 256 << 10;
/// The master is silent while the client, which it asks, sends: it gives up a silent one itself, so it has so many times as long.
const TIMES_FOR_MASTER: u32 = 30;

/// The way to constants that are not in memory.
#[derive(Clone)]
pub(crate) struct Fetch {
    client: Arc<Requests>,
    under_way: Arc<AtomicUsize>,
    max_silence: Duration,
}

impl Fetch {
    pub fn new(client: Arc<Requests>) -> Fetch {
        Fetch { client, under_way: Arc::default(), max_silence: MAX_SILENCE }
    }

    /// The same, which gives up a silent holder after this time.
    #[cfg(test)]
    pub fn with_max_silence(self, max_silence: Duration) -> Fetch {
        Fetch { max_silence, ..self }
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
        for (holder, left) in holders.iter().zip((0..holders.len()).rev()) {
            // The last one is the master, which may have to ask the client.
            let passes_on = left == 0;
            let received = || self.client.received_from(holder);
            let work = || self.take_from((holder, passes_on), session, missing, have, &is_wanted);
            match patiently(PAUSES, &is_wanted, received, work) {
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
    ///
    /// # Errors
    /// As [`Fetch::all`].
    fn take_from(
        &self,
        (holder, passes_on): (&Peer, bool),
        session: SessionId,
        missing: &[&Kept],
        have: &mut HashMap<Content, Tensor>,
        is_wanted: &impl Fn() -> bool,
    ) -> Result<()> {
        let missing: Vec<&Kept> = missing.iter().copied().filter(|one| !have.contains_key(&one.content)).collect();
        let mut parts = parts(&missing).into_iter().peekable();
        let mut asked: VecDeque<(&[&Kept], Asked)> = VecDeque::new();
        loop {
            while let Some(part) = parts.next_if(|next| goes_beside(next, asked.iter().map(|(part, _)| *part))) {
                let contents = part.iter().map(|one| one.content).collect();
                let inquiry = Inquiry::Constants { session, contents };
                asked.push_back((part, self.client.inquire(holder, inquiry, Vec::new())?));
            }
            let Some((part, asked)) = asked.pop_front() else { return Ok(()) };
            let limit = self.max_silence.saturating_mul(if passes_on { TIMES_FOR_MASTER } else { 1 });
            let Some(answer) = wait_for(&self.client, holder, asked, limit, is_wanted) else {
                return Err(if is_wanted() { silent(holder, limit) } else { not_wanted() });
            };
            let (reply, values) = answer?;
            if !matches!(reply, Reply::Told(Answer::Constants)) || values.len() != part.len() {
                return Err(Failure::new(Code::Internal, format!("unexpected answer from {holder}: {reply:?}")));
            }
            let contents = contents(&values);
            for ((one, value), content) in part.iter().zip(values).zip(contents) {
                if content != one.content {
                    let Kept { content, node, dtype, shape } = one;
                    let why = format!(
                        "the {dtype} of shape {shape} that {holder} sent as constant {content} of node {node} has \
                         another content"
                    );
                    return Err(Failure::new(Code::DataLoss, why));
                }
                let value = constant::kept(value);
                self.weights().write(one, &value);
                have.insert(content, value);
            }
            if !is_wanted() {
                return Err(not_wanted());
            }
        }
    }
}

/// The answer of a holder, unless it is silent for longer than the limit, or the answer is not wanted any more.
pub(super) fn wait_for(
    client: &Requests,
    holder: &Peer,
    asked: Asked,
    limit: Duration,
    is_wanted: impl Fn() -> bool,
) -> Option<Result<(Reply, Vec<Tensor>)>> {
    let (mut since, mut bytes) = (Instant::now(), client.received_from(holder));
    // A sixth of the limit: an answer that is not wanted is noticed soon.
    asked.wait_while(limit.min(MAX_SILENCE) / 6, || {
        let received = client.received_from(holder);
        // A link that began anew counts from 0.
        if received.abs_diff(bytes) >= LEAST_BYTES {
            (since, bytes) = (Instant::now(), received);
        }
        is_wanted() && since.elapsed() < limit
    })
}

/// The failure of a holder that is connected and does not answer: another one may.
pub(super) fn silent(holder: &Peer, limit: Duration) -> Failure {
    let why = format!("{holder} is connected, and did not send the constants that it offers for {} s", limit.as_secs());
    Failure::new(Code::Unavailable, why)
}

/// Does work with a holder, and again if the holder has too much to do. A pause in which others received from it on the same link
/// does not count: large constants take it for minutes.
fn patiently(
    [first, longest]: [Duration; 2],
    is_wanted: &impl Fn() -> bool,
    received: impl Fn() -> u64,
    mut work: impl FnMut() -> Result<()>,
) -> Result<()> {
    let (mut pause, mut left) = (first, MAX_AGAIN);
    loop {
        match work() {
            Err(failure) if failure.code == Code::ResourceExhausted && left > 0 && is_wanted() => {
                let before = received();
                thread::sleep(pause);
                // Of the pause alone: a message that the work itself has no memory for is received, too.
                left -= u32::from(received().abs_diff(before) < LEAST_BYTES);
                pause = (2 * pause).min(longest);
            }
            done => return done,
        }
    }
}

fn not_wanted() -> Failure {
    Failure::new(Code::Cancelled, "its session ended while its constants were on their way")
}

/// Whether a part may be asked for beside those that are under way: one that is larger than an inquiry's usual limit is asked for
/// alone, since the link carries few of the largest.
fn goes_beside<'a>(next: &[&Kept], mut asked: impl ExactSizeIterator<Item = &'a [&'a Kept]>) -> bool {
    let is_large = |part: &[&Kept]| matches!(part, [one] if one.bytes() > MAX_ASKED_BYTES);
    asked.len() == 0 || asked.len() < AT_ONCE && !is_large(next) && !asked.any(is_large)
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use meshtf_tensor::{DType, Shape};

    use super::*;
    use crate::protocol::status::{NetworkStatus, PeerStatus};
    use crate::protocol::{Cluster, Envelope};
    use crate::runtime::router::Router;

    /// A peer that never answers, and from which bytes come each time that somebody looks, up to a number of times.
    struct Coming {
        looks: AtomicU64,
        most: u64,
    }

    impl Router for Coming {
        fn send(&self, _: &Peer, _: Envelope) -> Result<()> {
            Ok(())
        }

        fn cluster(&self) -> Arc<Cluster> {
            Arc::default()
        }

        fn network(&self) -> NetworkStatus {
            let looks = self.looks.fetch_add(1, Ordering::Relaxed).min(self.most);
            let (peer, received_bytes) = (Peer::new("holder"), looks * LEAST_BYTES);
            let peer = PeerStatus { peer, received_bytes, ..PeerStatus::quiet(None) };
            NetworkStatus { peers: vec![peer], ..NetworkStatus::default() }
        }
    }

    #[test]
    fn a_holder_is_given_up_once_nothing_comes_from_it() {
        let holder = Peer::new("holder");
        for most in [0, 20] {
            let router = Arc::new(Coming { looks: AtomicU64::new(0), most });
            let client = Requests::new(Arc::clone(&router) as Arc<dyn Router>, Weights::in_memory());
            let ask = || client.inquire(&holder, Inquiry::Status, Vec::new()).unwrap();
            let limit = Duration::from_millis(30);
            assert!(wait_for(&client, &holder, ask(), limit, || true).is_none());
            // It looks six times within the limit, whatever the number of times that bytes came before.
            assert!(router.looks.load(Ordering::Relaxed) > most, "{most}");
            // Nobody wants the answer: one look is enough.
            let before = router.looks.load(Ordering::Relaxed);
            assert!(wait_for(&client, &holder, ask(), Duration::from_secs(1), || false).is_none());
            assert_eq!(router.looks.load(Ordering::Relaxed) - before, 2);
        }
    }

    fn kept(bytes: usize) -> Kept {
        let shape = Shape::from(vec![bytes]);
        Kept { content: Content([0; 32]), node: String::new(), dtype: DType::U8, shape }
    }

    #[test]
    fn a_large_constant_is_asked_for_alone() {
        let (small, large) = (kept(MAX_ASKED_BYTES), kept(MAX_ASKED_BYTES + 1));
        let (small, large) = (&[&small][..], &[&large][..]);
        assert!([small, large].iter().all(|next| goes_beside(next, [].into_iter())));
        assert!(goes_beside(small, [small].into_iter()));
        assert!(!goes_beside(large, [small].into_iter()));
        assert!(!goes_beside(small, [large].into_iter()));
        assert!(!goes_beside(small, [small; AT_ONCE].into_iter()));
    }

    #[test]
    fn a_busy_holder_is_asked_again_for_as_long_as_it_sends_to_others() {
        let pauses = [Duration::ZERO; 2];
        for (busy, sends_for) in [(3, 0), (100, 200), (u32::MAX, 0), (u32::MAX, 50)] {
            let (mut asked, looks) = (0u32, AtomicU64::new(0));
            // It is looked at before and after each pause.
            let received = || (looks.fetch_add(1, Ordering::Relaxed)).min(2 * sends_for) * LEAST_BYTES;
            let done = patiently(pauses, &|| true, received, || {
                asked += 1;
                let too_much = || Failure::new(Code::ResourceExhausted, "the link is full");
                if asked <= busy { Err(too_much()) } else { Ok(()) }
            });
            match busy {
                u32::MAX => assert_eq!((asked, done.is_err()), (1 + MAX_AGAIN + sends_for as u32, true)),
                _ => assert_eq!((asked, done.is_ok()), (busy + 1, true)),
            }
        }
    }

    #[test]
    fn parts_stay_within_the_limits_of_an_inquiry() {
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
