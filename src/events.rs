//! The events of a node: the last of them, and their followers.
//!
//! Noting an event never blocks: the events that a follower does not take in time are dropped, and the numbers show how many.
//! Events of steps are noted only while there is a follower or a recent request for them, so that a step costs one read of a
//! flag.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use meshtf_tensor::lock::lock;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::protocol::event::{Event, Noted, Subject};

/// Most events that are kept for later requests, and as many of steps.
pub(crate) const MAX_KEPT: usize = 1024;

/// How long events of steps are noted and kept after a request for them.
pub(crate) const STEPS_FOR: Duration = Duration::from_secs(5);

/// Most events that wait for one follower; beyond that, it misses the oldest.
const MAX_WAITING: usize = 1024;

/// How long a limit that is reached again and again is not noted again: a refused client cannot fill the kept events.
const LIMIT_PAUSE: Duration = Duration::from_secs(10);
/// Most limits whose last note is remembered.
const MAX_PAUSING: usize = 64;

/// Most events per second that are logged at a level that people read: whatever clients do, the log stays readable and small.
const MOST_LINES: u64 = 50;
/// The period to which [`MOST_LINES`] applies.
const PACE: Duration = Duration::from_secs(1);

/// The events of one node.
pub(crate) struct Events {
    ring: Mutex<Ring>,
    /// The number of followers; all requesters of events of steps count as one.
    followers: Arc<AtomicUsize>,
    /// The number of runs that failed.
    failed_runs: AtomicU64,
}

struct Ring {
    /// Number of the last event.
    last: u64,
    pace: Pace,
    /// The last events, except those of steps.
    kept: VecDeque<Noted>,
    /// The events of steps, and until when they are kept.
    steps: Option<(VecDeque<Noted>, Instant)>,
    /// The channel to the followers; `None` while there is none.
    sender: Option<broadcast::Sender<Noted>>,
    /// The limits that were noted recently, and when.
    limits: BTreeMap<String, Instant>,
}

/// A follower of the events of a node, from its creation on. While there is one, the node notes the events of steps, too. Up to
/// 1024 events wait for it; beyond that it misses the oldest.
///
/// ```
/// use meshtf::graph::Graph;
/// use meshtf::status::Event;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let task = Task::new("local", 0);
/// let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Auto)?;
/// let mut events = cluster.events(&task)?;
/// let session = cluster.session(Graph::default(), &task, SessionOptions::default()).await?;
/// let noted = events.next().await.unwrap();
/// assert!(matches!(noted.event, Event::SessionOpened { .. }));
/// assert_eq!((noted.number, events.missed()), (1, 0));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
pub struct Follower {
    /// The number of followers.
    followers: Arc<AtomicUsize>,
    receiver: broadcast::Receiver<Noted>,
    missed: u64,
}

impl Events {
    pub fn new() -> Arc<Self> {
        let ring = Ring {
            last: 0,
            pace: Pace::default(),
            kept: VecDeque::new(),
            steps: None,
            sender: None,
            limits: BTreeMap::new(),
        };
        // A log that takes events of steps counts as a follower.
        let logs_steps = usize::from(tracing::enabled!(target: STEPS, tracing::Level::DEBUG));
        Arc::new(Events {
            ring: Mutex::new(ring),
            followers: Arc::new(AtomicUsize::new(logs_steps)),
            failed_runs: AtomicU64::new(0),
        })
    }

    /// Whether events of steps are to be noted.
    #[inline]
    pub fn are_followed(&self) -> bool {
        self.followers.load(Ordering::Relaxed) > 0
    }

    /// How many runs failed, without those that their clients cancelled or whose input was at its end.
    pub fn failed_runs(&self) -> u64 {
        self.failed_runs.load(Ordering::Relaxed)
    }

    /// Notes that a request was refused because of a limit, unless that was noted within [`LIMIT_PAUSE`].
    pub fn note_limit(&self, what: &str) {
        if self.is_limit_news(what, Instant::now()) {
            self.note(Event::LimitReached { what: what.to_owned() });
        }
    }

    fn is_limit_news(&self, what: &str, now: Instant) -> bool {
        let limits = &mut lock(&self.ring).limits;
        limits.retain(|_, noted| now.duration_since(*noted) < LIMIT_PAUSE);
        let is_news = limits.len() < MAX_PAUSING && !limits.contains_key(what);
        if is_news {
            limits.insert(what.to_owned(), now);
        }
        is_news
    }

    /// Notes an event, in the log too.
    pub fn note(&self, event: Event) {
        if matches!(event, Event::RunFailed { .. }) && !event.is_usual_end() {
            self.failed_runs.fetch_add(1, Ordering::Relaxed);
        }
        let (is_paced, left_out) = match event.subject() {
            Subject::Steps => (true, 0),
            _ => lock(&self.ring).pace.admit(Instant::now()),
        };
        if left_out > 0 {
            tracing::warn!("{left_out} events were not logged, since there were more than {MOST_LINES} in a second");
        }
        log(&event, is_paced);
        let mut ring = lock(&self.ring);
        ring.last += 1;
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let noted = Noted { number: ring.last, unix_ms, event };
        // Under the lock, so that every follower gets the events in the order of their numbers. It never waits.
        let is_heard = ring.sender.as_ref().is_some_and(|sender| sender.send(noted.clone()).is_ok());
        if !is_heard {
            ring.sender = None;
        }
        if noted.event.subject() != Subject::Steps {
            return keep(&mut ring.kept, noted);
        }
        match &mut ring.steps {
            Some((_, until)) if *until <= Instant::now() => {
                ring.steps = None;
                self.followers.fetch_sub(1, Ordering::Relaxed);
            }
            Some((steps, _)) => keep(steps, noted),
            None => {}
        }
    }

    /// For [`STEPS_FOR`] from now on, events of steps are noted and kept too.
    pub fn keep_steps(&self) {
        self.keep_steps_until(Instant::now() + STEPS_FOR);
    }

    fn keep_steps_until(&self, end: Instant) {
        match &mut lock(&self.ring).steps {
            Some((_, until)) => *until = end,
            steps => {
                *steps = Some((VecDeque::new(), end));
                self.followers.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Number of the last event; 0 if there was none.
    pub fn last(&self) -> u64 {
        lock(&self.ring).last
    }

    /// The last events after `number`, the oldest first, and if requested the kept ones of steps.
    pub fn since(&self, number: u64, with_steps: bool) -> Vec<Noted> {
        let ring = lock(&self.ring);
        let steps = ring.steps.iter().filter(|_| with_steps).flat_map(|(steps, _)| steps);
        let mut since: Vec<Noted> =
            ring.kept.iter().chain(steps).filter(|noted| noted.number > number).cloned().collect();
        since.sort_unstable_by_key(|noted| noted.number);
        since
    }

    pub fn follow(&self) -> Follower {
        let receiver = lock(&self.ring).sender.get_or_insert_with(|| broadcast::Sender::new(MAX_WAITING)).subscribe();
        self.followers.fetch_add(1, Ordering::Relaxed);
        Follower { followers: Arc::clone(&self.followers), receiver, missed: 0 }
    }
}

/// How many events were logged in the current second, and how many were left out in all of it.
#[derive(Default)]
struct Pace {
    began: Option<Instant>,
    lines: u64,
}

impl Pace {
    /// Whether one more is to be logged, and how many of the second before were not.
    fn admit(&mut self, now: Instant) -> (bool, u64) {
        let mut left_out = 0;
        if self.began.is_none_or(|began| now.duration_since(began) >= PACE) {
            left_out = self.lines.saturating_sub(MOST_LINES);
            *self = Pace { began: Some(now), lines: 0 };
        }
        self.lines += 1;
        (self.lines <= MOST_LINES, left_out)
    }
}

/// The targets of the log's lines on steps, and on runs that failed.
const STEPS: &str = "meshtf::steps";
const RUNS: &str = "meshtf::runs";

/// Events for the operator of a node are logged as information or a warning. Clients come and go all the time, links break and
/// mend, and steps are more frequent still: these are logged below that, as are events that come too fast to be read.
fn log(event: &Event, is_paced: bool) {
    let name = event.name();
    match (event.subject(), event) {
        _ if !is_paced => tracing::debug!(event = name, "{event}"),
        _ if event.is_usual_end() => tracing::debug!(event = name, "{event}"),
        // Their clients are told as well, and some run in this process.
        (_, Event::RunFailed { .. }) => tracing::warn!(target: RUNS, event = name, "{event}"),
        (Subject::Limits, _) => tracing::warn!(event = name, "{event}"),
        (_, Event::TaskMet { task: None, .. } | Event::TaskLost { task: None, .. }) => {
            tracing::debug!(event = name, "{event}");
        }
        (_, Event::LinkDown { .. } | Event::LinkUp { .. }) => tracing::debug!(event = name, "{event}"),
        (Subject::Peers | Subject::Sessions, _) => tracing::info!(event = name, "{event}"),
        (Subject::Steps, _) => tracing::debug!(target: STEPS, event = name, "{event}"),
    }
}

fn keep(ring: &mut VecDeque<Noted>, noted: Noted) {
    if ring.len() >= MAX_KEPT {
        ring.pop_front();
    }
    ring.push_back(noted);
}

impl Follower {
    /// The next event; `None` once the node is gone. Events that came while too many waited are left out, and counted.
    ///
    /// # Cancellation
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Noted> {
        loop {
            match self.receiver.recv().await {
                Ok(noted) => return Some(noted),
                Err(RecvError::Lagged(missed)) => self.missed += missed,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// How many events it has missed.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.followers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::ids::{RequestId, SessionId};

    fn limit(n: usize) -> Event {
        Event::LimitReached { what: n.to_string() }
    }

    #[test]
    fn a_second_has_so_many_lines_and_tells_what_was_left_out() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let at = |pace: &mut Pace, ms: u64| pace.admit(start + Duration::from_millis(ms));
        let admitted = (0..MOST_LINES + 30).filter(|n| at(&mut pace, *n) == (true, 0)).count() as u64;
        assert_eq!(admitted, MOST_LINES);
        assert_eq!(at(&mut pace, 999), (false, 0));
        assert_eq!(at(&mut pace, 1000), (true, 31));
        assert_eq!(at(&mut pace, 1001), (true, 0));
        assert_eq!(at(&mut pace, 60_000), (true, 0));
    }

    #[test]
    fn a_limit_that_is_reached_all_the_time_is_noted_now_and_then() {
        let (events, start) = (Events::new(), Instant::now());
        assert!(events.is_limit_news("peers", start) && events.is_limit_news("pages", start));
        assert!(!events.is_limit_news("peers", start + LIMIT_PAUSE / 2));
        assert!(events.is_limit_news("peers", start + LIMIT_PAUSE));
        let noted = (0..2 * MAX_PAUSING).filter(|n| events.is_limit_news(&n.to_string(), start + LIMIT_PAUSE)).count();
        assert_eq!(noted, MAX_PAUSING - 1);
        events.note_limit("unauthenticated peers");
        events.note_limit("unauthenticated peers");
        assert_eq!(events.last(), 0, "there is no room to know of one more");
        let other = Events::new();
        other.note_limit("unauthenticated peers");
        other.note_limit("unauthenticated peers");
        let kept: Vec<Event> = other.since(0, false).into_iter().map(|noted| noted.event).collect();
        assert_eq!(kept, [Event::LimitReached { what: "unauthenticated peers".into() }]);
    }

    #[test]
    fn failed_runs_are_counted() {
        use meshtf_tensor::failure::Code;
        let events = Events::new();
        let failed = |code| Event::RunFailed { session: SessionId(1), run: RequestId(1), code, why: "why".into() };
        for code in [Code::InvalidArgument, Code::Cancelled, Code::OutOfRange, Code::Unavailable] {
            events.note(failed(code));
        }
        assert_eq!(events.failed_runs(), 2);
    }

    #[tokio::test]
    async fn a_follower_gets_what_comes_after_it_and_counts_what_it_missed() {
        let events = Events::new();
        events.note(limit(1));
        let mut follower = events.follow();
        events.note(limit(2));
        let noted = follower.next().await.unwrap();
        assert_eq!((noted.number, noted.event), (2, limit(2)));
        let many = MAX_WAITING + 10;
        (0..many).for_each(|n| events.note(limit(n)));
        // The ten oldest had no room.
        let next = follower.next().await.unwrap();
        assert_eq!((follower.missed(), next.number, next.event), (10, 13, limit(10)));
        let kept = events.since(0, false);
        assert_eq!((kept.len(), kept[0].number), (MAX_KEPT, (2 + many - MAX_KEPT) as u64 + 1));
        assert_eq!(events.since(2 + many as u64 - 1, false).len(), 1);
    }

    #[tokio::test]
    async fn events_of_steps_go_to_followers_alone() {
        let events = Events::new();
        let done = Event::StepsDone { session: SessionId(1), run: RequestId(1), first: 1, count: 1 };
        assert!(!events.are_followed());
        let mut follower = events.follow();
        assert!(events.are_followed());
        events.note(done.clone());
        assert_eq!(follower.next().await.unwrap().event, done);
        drop(follower);
        assert!(!events.are_followed());
        assert_eq!(events.since(0, true), [], "none is kept");
    }

    #[test]
    fn events_of_steps_are_kept_for_a_while_after_somebody_asked() {
        let events = Events::new();
        let done = |first| Event::StepsDone { session: SessionId(1), run: RequestId(1), first, count: 1 };
        events.keep_steps();
        events.keep_steps();
        assert!(events.are_followed());
        (0..MAX_KEPT as u64 + 5).for_each(|n| events.note(done(n)));
        events.note(limit(1));
        // The first five had no room; they take none from other events.
        let numbers: Vec<u64> = events.since(0, true).iter().map(|noted| noted.number).collect();
        assert_eq!(numbers, (6..=MAX_KEPT as u64 + 6).collect::<Vec<_>>());
        assert_eq!(events.since(0, false).iter().map(|noted| &noted.event).collect::<Vec<_>>(), [&limit(1)]);
        // The last request is long ago: the next step is the last that is noted.
        events.keep_steps_until(Instant::now());
        assert!(events.are_followed());
        events.note(done(1));
        assert!(!events.are_followed());
        assert_eq!(events.since(0, true).len(), 1);
        // A new request begins anew, with or without a follower.
        let follower = events.follow();
        events.keep_steps();
        events.note(done(2));
        assert_eq!(events.since(0, true).len(), 2);
        drop(follower);
        assert!(events.are_followed());
    }
}
