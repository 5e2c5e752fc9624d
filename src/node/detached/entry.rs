//! One detached run: its state, and the work of its steps.
//!
//! The steps are made in parts of about a second, so that the run can be ended between two steps, and so that the values of its
//! last step are at hand. A part has as many steps as that takes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use meshtf_graph::Graph;
use meshtf_graph::plan::Signature;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Bytes;
use tokio::sync::Notify;

use super::attended::Attended;
use super::parts::{next_part, part};
use super::tail::{Tail, bytes};
use super::trained::Trained;
use crate::protocol::detached::{DetachedState, DetachedStatus, Followed, MAX_FETCHED, MAX_VALUE_BYTES};
use crate::protocol::look::{Fetched, Point};
use crate::protocol::training::TrainingStatus;
use crate::protocol::{Peer, SessionOptions};
use crate::runtime::requests::StepEvent;
use crate::session::Session;

/// The time over which the rate of steps is measured, and the points from which it is.
const WINDOW: Duration = Duration::from_secs(10);
const MAX_SEEN: usize = 256;
/// The pauses before steps are planned again.
const READY_AGAIN: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// How long the end of the session may take.
pub(super) const CLOSES_WITHIN: Duration = Duration::from_secs(10);

/// A detached run.
pub(super) struct Entry {
    pub run: SessionId,
    pub by: Peer,
    pub title: String,
    fetches: Vec<String>,
    count: u64,
    every: u64,
    /// Until it has ended: graph and feeds may be large.
    whole: Mutex<Option<Arc<Whole>>>,
    pub began: Instant,
    /// The steps that were done before it began here.
    first: u64,
    state: Mutex<State>,
    /// Wakes the run to give up the steps under way.
    pub gives_up: Notify,
    /// Wakes the run that waits for its client.
    pub heard: Notify,
    /// The task of this node, if it continues the run of another one.
    pub heir_on: Option<Task>,
    pub succession: Mutex<Succession>,
    /// If it is a training.
    pub training: Option<Trained>,
}

/// The beginning of a run that is known: how long ago it was, and the steps that were done before it began here.
pub(super) type Since = (Duration, u64);

/// All that a node needs to make a run.
pub(super) struct Whole {
    pub title: String,
    pub graph: Graph,
    pub options: SessionOptions,
    pub steps: Steps,
    /// Another node continues it if this one is lost.
    pub has_heir: bool,
    /// Its client stays.
    pub is_attended: bool,
}

/// The node that continues a run if this one is lost.
#[derive(Default)]
pub(super) struct Succession {
    pub heir: Option<Peer>,
    /// It could do so now.
    pub is_ready: bool,
    /// One is being asked.
    pub is_asking: bool,
    /// How often one after the other that was asked did not agree.
    pub refusals: u32,
    /// When one was asked last, and when the heir was notified of the steps that are done.
    pub asked: Option<Instant>,
    pub told: Option<Instant>,
}

/// The steps of a run.
pub(super) struct Steps {
    pub signature: Signature,
    pub feeds: Vec<Tensor>,
    pub count: u64,
    pub every: u64,
}

pub(super) struct State {
    pub state: DetachedState,
    /// Its steps are not planned yet.
    pub is_starting: bool,
    /// Who asked it to end.
    pub stopped_by: Option<Peer>,
    pub step: u64,
    /// Steps that were done, and when.
    seen: VecDeque<(Instant, u64)>,
    pub ended: Option<Instant>,
    pub fetched: Vec<Fetched>,
    pub notice: Option<String>,
    /// A training is over before its last step, since it does not improve.
    pub is_enough: bool,
    /// The states of a training.
    pub states: TrainingStatus,
    /// Why the values of the last step are not kept.
    unkept: Option<String>,
    pub tail: Tail,
    /// Its client, if that stays.
    pub attended: Option<Attended>,
}

impl Entry {
    /// A run that a participant began so long ago, of which these steps are done.
    pub fn new(run: SessionId, by: Peer, whole: Whole, since: Since) -> Entry {
        let bare = Entry::bare((run, by), whole.title.clone(), whole.steps.count, since);
        *bare.state() = State::new(since.1, whole.is_attended);
        let (fetches, every) = (whole.steps.signature.fetches.clone(), whole.steps.every);
        Entry { fetches, every, whole: Mutex::new(Some(Arc::new(whole))), ..bare }
    }

    pub(super) fn bare((run, by): (SessionId, Peer), title: String, count: u64, (age, first): Since) -> Entry {
        let now = Instant::now();
        Entry {
            run,
            by,
            title,
            fetches: Vec::new(),
            count,
            every: 0,
            whole: Mutex::new(None),
            began: now.checked_sub(age).unwrap_or(now),
            first,
            state: Mutex::new(State::new(first, false)),
            gives_up: Notify::new(),
            heard: Notify::new(),
            heir_on: None,
            succession: Mutex::default(),
            training: None,
        }
    }

    /// All of it, unless it has ended.
    pub fn whole(&self) -> Option<Arc<Whole>> {
        lock(&self.whole).clone()
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// When it ended, if it has.
    pub fn ended(&self) -> Option<Instant> {
        self.state().ended
    }

    /// Whether its steps are not planned yet.
    pub fn is_starting(&self) -> bool {
        self.state().is_starting
    }

    /// Whether somebody has asked it to end.
    pub fn is_stopped(&self) -> bool {
        self.state().stopped_by.is_some()
    }

    /// The number of all steps.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The distance of the steps whose values are lines, or 0.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// The steps that are done.
    pub fn step(&self) -> u64 {
        self.state().step
    }

    /// The node that could continue it now.
    fn heir(&self) -> Option<Peer> {
        let succession = lock(&self.succession);
        succession.heir.clone().filter(|_| succession.is_ready)
    }

    /// How long ago it began.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Bytes of the values that are kept: those of its lines, and of its last step.
    pub fn value_bytes(&self) -> usize {
        self.state().tail.value_bytes()
    }

    /// Makes room for the values of later runs.
    pub fn forget_values(&self) {
        let mut state = self.state();
        if state.tail.last_values().is_some() {
            state.unkept = Some("the values of its last step made room for those of runs that ended later".to_owned());
        }
        state.tail.forget_values();
    }

    /// The run as it is now.
    pub fn status(&self) -> DetachedStatus {
        let heir = self.heir();
        self.status_of(&self.state(), heir)
    }

    /// The same for one who begins a run of this name.
    ///
    /// # Errors
    /// AlreadyExists if it is that of another participant.
    pub fn status_for(&self, by: &Peer) -> Result<DetachedStatus> {
        match self.by == *by {
            true => Ok(self.status()),
            false => Err(Failure::new(Code::AlreadyExists, format!("run {} is that of another participant", self.run))),
        }
    }

    /// The heir is that of before: who looks after heirs asks for the state, so nobody asks for the heir while holding that.
    fn status_of(&self, state: &State, heir: Option<Peer>) -> DetachedStatus {
        let since = |then: Instant| then.elapsed().as_millis() as u64;
        DetachedStatus {
            run: self.run,
            title: self.title.clone(),
            by: self.by.clone(),
            state: state.state.clone(),
            step: state.step,
            of: self.count,
            steps_per_second: state.rate(Instant::now()).filter(|_| state.ended.is_none()),
            age_ms: since(self.began),
            ended_ms: state.ended.map(since),
            fetched: state.fetched.clone(),
            notice: state.unkept.as_ref().filter(|_| state.state.is_over()).or(state.notice.as_ref()).cloned(),
            heir,
            training: self.training.as_ref().map(|_| state.states),
        }
        .cut()
    }

    /// Its lines after that number, with the values of the last step after the last line.
    pub fn follow(&self, after: u64) -> (Followed, Vec<Tensor>) {
        let heir = self.heir();
        let state = self.state();
        let mut part = state.tail.after(after);
        let mut last = None;
        if state.state.is_over()
            && !part.has_more
            && let Some((step, values)) = state.tail.last_values()
        {
            last = Some(*step);
            part.tensors.extend(values.iter().cloned());
        }
        let has_values = !part.lines.is_empty() || last.is_some();
        let followed = Followed {
            status: self.status_of(&state, heir),
            fetches: if has_values { self.fetches.clone() } else { Vec::new() },
            lines: part.lines,
            missed: part.missed,
            has_more: part.has_more,
            last,
            unkept: state.unkept.clone().filter(|_| state.state.is_over()),
            training: self.training.as_ref().map(|training| training.info.clone()),
        };
        (followed, part.tensors)
    }

    /// Has it end between two steps, or at once.
    pub fn stop(&self, by: &Peer, now: bool) -> DetachedStatus {
        let heir = self.heir();
        let mut state = self.state();
        if !state.state.is_over() {
            state.stopped_by.get_or_insert_with(|| by.clone());
            state.state = DetachedState::Ending;
            // Of one that starts, no step is under way.
            if now || state.is_starting {
                self.gives_up.notify_one();
            }
            self.training.iter().for_each(|training| training.stops.notify_one());
            self.heard.notify_one();
        }
        self.status_of(&state, heir)
    }

    /// Its node ends.
    pub fn give_up(&self) {
        self.gives_up.notify_one();
    }

    /// The session that it is to begin with, unless it is ended before it has that.
    pub async fn start(&self, session: impl Future<Output = Result<Session>>) -> Result<Session> {
        tokio::select! {
            biased;
            () = self.gives_up.notified() => Err(Failure::new(Code::Cancelled, "the run was ended before its first step")),
            session = session => session,
        }
    }

    /// It did not start; whether somebody had ended it. Otherwise that is its failure.
    pub fn ends_unstarted(&self, failure: &Failure) -> bool {
        let is_ended = self.state().stopped_by.is_some();
        self.end(if is_ended { Ok(()) } else { Err(failure.clone()) });
        is_ended
    }

    /// Makes its steps, and ends its session. `is_moved`: whether another node has that by now.
    pub async fn work(self: Arc<Self>, session: Session, is_moved: impl Fn() -> bool) {
        self.state().is_starting = false;
        let outcome = tokio::select! {
            biased;
            () = self.gives_up.notified() => Ok(()),
            outcome = self.make_steps(&session) => outcome,
        };
        let is_moved = outcome.is_err() && is_moved();
        // Steps that were given up end with it. A master that is gone has no session.
        let _closed = tokio::time::timeout(CLOSES_WITHIN, session.close()).await;
        self.end_as(outcome, is_moved);
    }

    async fn make_steps(&self, session: &Session) -> Result<()> {
        let Some(whole) = self.whole() else { return Ok(()) };
        let Steps { signature, feeds, count, every } = &whole.steps;
        let named: Vec<(&String, Tensor)> = signature.feeds.iter().zip(feeds.iter().cloned()).collect();
        let (mut done, mut most, mut value_bytes) = (self.first, 1, 0);
        make_ready(session, signature).await?;
        while done < *count && self.state().stopped_by.is_none() {
            self.wait_for_room(value_bytes).await;
            if self.is_stopped() {
                break;
            }
            let (steps, told_every) = part(self.most_for_client(most, value_bytes), done, *count, *every);
            let began = Instant::now();
            let run = session.run().feeds(&named).fetches(&signature.fetches).targets(&signature.targets);
            let on_event = |event: StepEvent| self.happened(event.after_steps(done));
            let ran = run.steps(steps).watch(told_every, on_event).await;
            let values = ran.map_err(|failure| failure.after_steps(done))?.values;
            done += steps;
            value_bytes = bytes(&values);
            most = next_part((most, steps), began.elapsed(), value_bytes);
            self.part_done(done, values);
        }
        self.wait_until_received().await;
        Ok(())
    }

    fn happened(&self, event: StepEvent) {
        let mut state = self.state();
        match event {
            StepEvent::Progress { steps, fetched } => {
                state.stepped(steps, Instant::now());
                state.fetched = fetched;
                state.fetched.truncate(MAX_FETCHED);
            }
            StepEvent::Fetched { step, values } => {
                state.stepped(step, Instant::now());
                state.tail.values(step, values);
            }
            StepEvent::Guard(note) => {
                let text = note.text(self.heir_on.as_ref());
                state.notice = Some(text.clone());
                state.tail.notice(text);
            }
            StepEvent::PartialFetch { .. } => {}
        }
    }

    /// The steps up to this one are done; the values are its fetches.
    pub fn part_done(&self, done: u64, values: Vec<Tensor>) {
        let mut state = self.state();
        state.stepped(done, Instant::now());
        state.fetched = numbers(&self.fetches, &values, done);
        // The last step's are told at the end, unless the run waits until they are received.
        let is_line = match done < self.count {
            true => self.every > 0 && done.is_multiple_of(self.every),
            false => state.attended.is_some(),
        };
        if is_line {
            state.tail.values(done, values.clone());
        }
        match state.tail.keep(done, values) {
            Ok(()) => state.unkept = None,
            // Those who follow it learn of this long before its end.
            Err(bytes) if state.unkept.is_none() => {
                let (bytes, limit) = (Bytes(bytes), Bytes(MAX_VALUE_BYTES));
                let why = format!("the values of a step take {bytes}, and those of the last are kept up to {limit}");
                state.unkept = Some(why.clone());
                state.tail.notice(why);
            }
            Err(_) => {}
        }
    }

    /// No step follows.
    pub fn end(&self, outcome: Result<(), Failure>) {
        self.end_as(outcome, false);
    }

    fn end_as(&self, outcome: Result<(), Failure>, is_moved: bool) {
        self.training.iter().for_each(Trained::measure);
        let mut state = self.state();
        state.state = match outcome {
            Err(_) if is_moved => DetachedState::Moved,
            Err(failure) => DetachedState::Failed(failure),
            Ok(()) if state.step >= self.count || state.is_enough => DetachedState::Done,
            Ok(()) => DetachedState::Stopped { by: state.stopped_by.clone().unwrap_or_else(|| self.by.clone()) },
        };
        let has_values = state.tail.last_values().is_some() || self.fetches.is_empty();
        if state.state == DetachedState::Done && !has_values {
            // The last copy of the state came after the last step.
            let why = "the values of its last step were lost with the node that had made it";
            state.unkept.get_or_insert_with(|| why.to_owned());
        }
        state.ended = Some(Instant::now());
        drop(state);
        *lock(&self.whole) = None;
    }
}

impl State {
    /// That of a run of which so many steps are done, and whose client stays.
    pub fn new(step: u64, is_attended: bool) -> State {
        State {
            state: DetachedState::Running,
            is_starting: true,
            stopped_by: None,
            step,
            seen: VecDeque::new(),
            ended: None,
            fetched: Vec::new(),
            notice: None,
            is_enough: false,
            states: TrainingStatus::default(),
            unkept: None,
            tail: Tail::default(),
            attended: is_attended.then(|| Attended::new(step)),
        }
    }

    pub fn stepped(&mut self, step: u64, now: Instant) {
        self.step = self.step.max(step);
        self.seen.push_back((now, self.step));
        let is_old = |seen: &VecDeque<(Instant, u64)>| {
            seen.len() > 2 && seen.get(1).is_some_and(|(at, _)| now.duration_since(*at) > WINDOW)
        };
        while self.seen.len() > MAX_SEEN || is_old(&self.seen) {
            self.seen.pop_front();
        }
    }

    /// Steps in a second.
    fn rate(&self, now: Instant) -> Option<f64> {
        let ((first, from), (_, to)) = (self.seen.front()?, self.seen.back()?);
        let seconds = now.duration_since(*first).as_secs_f64();
        (seconds > 0.0 && to > from).then(|| (to - from) as f64 / seconds)
    }
}

/// Has the steps planned. A run that another node continues may lose one more task meanwhile, before any step could wait for
/// that: it is planned again.
async fn make_ready(session: &Session, signature: &Signature) -> Result<()> {
    for pause in READY_AGAIN {
        match session.make_ready(signature).await {
            Err(failure) if failure.code == Code::Unavailable => tokio::time::sleep(pause).await,
            ready => return ready,
        }
    }
    session.make_ready(signature).await
}

/// The scalars among the fetches of a step, floats first.
fn numbers(names: &[String], values: &[Tensor], step: u64) -> Vec<Fetched> {
    let number = |value: &Tensor| {
        let float = value.item::<f32>().map(f64::from).or_else(|_| value.item::<f64>());
        let integer = || value.item::<i32>().map(f64::from).or_else(|_| value.item::<i64>().map(|value| value as f64));
        float.or_else(|_| integer()).ok()
    };
    let scalars = names.iter().zip(values).filter(|(_, value)| value.rank() == 0);
    let mut all: Vec<(bool, Fetched)> = scalars
        .filter_map(|(name, value)| {
            let last = Point { step, value: number(value)? };
            Some((!value.dtype().is_float(), Fetched { name: name.clone(), last }))
        })
        .collect();
    all.sort_by_key(|(is_later, _)| *is_later);
    all.into_iter().map(|(_, one)| one).take(MAX_FETCHED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::detached::{Line, LineKind};

    #[test]
    fn the_numbers_of_a_step_are_shown_floats_first() {
        let names = ["n", "v", "loss", "name"].map(str::to_owned);
        let values =
            [Tensor::scalar(7i64), Tensor::vector(vec![1f32]), Tensor::scalar(0.5f32), Tensor::scalar(b"x".to_vec())];
        let all = numbers(&names, &values, 3);
        let shown: Vec<(&str, u64, f64)> = all.iter().map(|one| (&*one.name, one.last.step, one.last.value)).collect();
        assert_eq!(shown, [("loss", 3, 0.5), ("n", 3, 7.0)]);
    }

    fn whole(count: u64, every: u64) -> Whole {
        let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
        let steps = Steps { signature, feeds: vec![Tensor::scalar(1f32)], count, every };
        let options = SessionOptions::default();
        Whole { title: "g.json".into(), graph: Graph::default(), options, steps, has_heir: false, is_attended: false }
    }

    fn entry(count: u64, every: u64) -> Entry {
        Entry::new(SessionId(1), Peer::new("me"), whole(count, every), (Duration::ZERO, 0))
    }

    #[test]
    fn graph_and_feeds_end_with_the_run() {
        let entry = entry(2, 0);
        let held = Arc::downgrade(&entry.whole().unwrap());
        entry.part_done(2, vec![Tensor::scalar(3f32)]);
        entry.end(Ok(()));
        assert!(entry.whole().is_none() && held.upgrade().is_none());
        let (followed, values) = entry.follow(0);
        assert_eq!((followed.last, followed.fetches, followed.unkept), (Some(2), vec!["y".to_owned()], None));
        assert_eq!(values, [Tensor::scalar(3f32)]);
    }

    #[test]
    fn values_that_are_not_kept_are_told_at_once_and_apart_from_other_notices() {
        let entry = entry(3, 0);
        (1..=2).for_each(|step| entry.part_done(step, vec![Tensor::vector(vec![0u8; MAX_VALUE_BYTES + 1])]));
        let (followed, _) = entry.follow(0);
        assert!(
            matches!(&followed.lines[..], [Line { number: 1, what: LineKind::Notice(why) }] if why.contains("67.1 MB"))
        );
        assert_eq!((followed.status.notice, followed.unkept), (None, None), "a later step may be smaller");
        entry.part_done(3, vec![Tensor::vector(vec![0u8; MAX_VALUE_BYTES + 1])]);
        entry.end(Ok(()));
        let (followed, _) = entry.follow(1);
        assert!(followed.unkept.is_some_and(|why| why.contains("67.1 MB")));
        assert_eq!((followed.status.state, followed.last), (DetachedState::Done, None));
        assert_eq!((followed.fetches, followed.lines), (vec![], vec![]), "there is nothing to name");
    }

    #[tokio::test]
    async fn a_run_that_starts_is_ended_at_once() {
        let entry = entry(3, 0);
        assert_eq!(entry.stop(&Peer::new("you"), false).state, DetachedState::Ending);
        let never = std::future::pending::<Result<Session>>();
        assert_eq!(entry.start(never).await.err().map(|why| why.code), Some(Code::Cancelled));
        entry.end(Ok(()));
        assert_eq!(entry.status().state, DetachedState::Stopped { by: Peer::new("you") });
    }
}
