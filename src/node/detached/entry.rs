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
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Bytes;
use tokio::sync::Notify;

use super::tail::{Tail, bytes};
use crate::protocol::detached::{DetachedState, DetachedStatus, Followed, MAX_FETCHED, MAX_VALUE_BYTES};
use crate::protocol::look::{Fetched, Point};
use crate::protocol::{Peer, SessionOptions};
use crate::runtime::requests::StepEvent;
use crate::session::Session;

/// The time of a part, and the longest one; values that are large take a while to come, so such parts are longer.
const PART: Duration = Duration::from_secs(1);
const LONGEST_PART: Duration = Duration::from_secs(30);
/// Bytes of fetched values for which a part is a second longer.
const BYTES_A_SECOND: usize = 16 << 20;
/// Most steps of a part.
const MAX_PART: u64 = 1 << 24;
/// The time over which the rate of steps is measured, and the points from which it is.
const WINDOW: Duration = Duration::from_secs(10);
const MAX_SEEN: usize = 256;
/// The pauses before steps are planned again.
const READY_AGAIN: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// How long the end of the session may take.
const CLOSES_WITHIN: Duration = Duration::from_secs(10);

/// A detached run.
pub(super) struct Entry {
    pub run: SessionId,
    pub by: Peer,
    pub whole: Whole,
    began: Instant,
    /// The steps that were done before it began here.
    first: u64,
    state: Mutex<State>,
    /// Wakes the run to give up the steps under way.
    gives_up: Notify,
    pub succession: Mutex<Succession>,
}

/// All that a node needs to make a run.
pub(super) struct Whole {
    pub title: String,
    pub graph: Graph,
    pub options: SessionOptions,
    pub steps: Steps,
}

/// The node that continues a run if this one is lost.
#[derive(Default)]
pub(super) struct Succession {
    pub heir: Option<Peer>,
    /// It could do so now.
    pub is_ready: bool,
    /// One is being asked.
    pub is_asking: bool,
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

struct State {
    state: DetachedState,
    /// Who asked it to end.
    stopped_by: Option<Peer>,
    step: u64,
    /// Steps that were done, and when.
    seen: VecDeque<(Instant, u64)>,
    ended: Option<Instant>,
    fetched: Vec<Fetched>,
    notice: Option<String>,
    tail: Tail,
}

impl Entry {
    /// A run that a participant began so long ago, of which these steps are done.
    pub fn new(run: SessionId, by: Peer, whole: Whole, (age, first): (Duration, u64)) -> Entry {
        let state = State {
            state: DetachedState::Running,
            stopped_by: None,
            step: first,
            seen: VecDeque::new(),
            ended: None,
            fetched: Vec::new(),
            notice: None,
            tail: Tail::default(),
        };
        let (now, state, gives_up) = (Instant::now(), Mutex::new(state), Notify::new());
        let began = now.checked_sub(age).unwrap_or(now);
        Entry { run, by, whole, began, first, state, gives_up, succession: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// When it ended, if it has.
    pub fn ended(&self) -> Option<Instant> {
        self.state().ended
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

    /// Bytes of the values of its last step.
    pub fn value_bytes(&self) -> usize {
        self.state().tail.value_bytes()
    }

    /// Makes room for the values of later runs.
    pub fn forget_values(&self) {
        let mut state = self.state();
        if state.tail.last_values().is_some() {
            state.tail.forget_values();
            state.notice = Some("the values of its last step made room for those of later runs".to_owned());
        }
    }

    /// The run as it is now.
    pub fn status(&self) -> DetachedStatus {
        self.status_of(&self.state())
    }

    fn status_of(&self, state: &State) -> DetachedStatus {
        let since = |then: Instant| then.elapsed().as_millis() as u64;
        DetachedStatus {
            run: self.run,
            title: self.whole.title.clone(),
            by: self.by.clone(),
            state: state.state.clone(),
            step: state.step,
            of: self.whole.steps.count,
            steps_per_second: state.rate(Instant::now()).filter(|_| state.ended.is_none()),
            age_ms: since(self.began),
            ended_ms: state.ended.map(since),
            fetched: state.fetched.clone(),
            notice: state.notice.clone(),
            heir: self.heir(),
        }
        .cut()
    }

    /// Its lines after that number, with the values of the last step after the last line.
    pub fn follow(&self, after: u64) -> (Followed, Vec<Tensor>) {
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
        let followed = Followed {
            status: self.status_of(&state),
            fetches: self.whole.steps.signature.fetches.clone(),
            lines: part.lines,
            missed: part.missed,
            has_more: part.has_more,
            last,
        };
        (followed, part.tensors)
    }

    /// Has it end between two steps, or at once.
    pub fn stop(&self, by: &Peer, now: bool) -> DetachedStatus {
        let mut state = self.state();
        if !state.state.is_over() {
            state.stopped_by.get_or_insert_with(|| by.clone());
            state.state = DetachedState::Ending;
            if now {
                self.gives_up.notify_one();
            }
        }
        self.status_of(&state)
    }

    /// Its node ends.
    pub fn give_up(&self) {
        self.gives_up.notify_one();
    }

    /// Makes its steps, and ends its session.
    pub async fn work(self: Arc<Self>, session: Session) {
        let outcome = tokio::select! {
            biased;
            () = self.gives_up.notified() => Ok(()),
            outcome = self.make_steps(&session) => outcome,
        };
        // Steps that were given up end with it. A master that is gone has no session.
        let _closed = tokio::time::timeout(CLOSES_WITHIN, session.close()).await;
        self.end(outcome);
    }

    async fn make_steps(&self, session: &Session) -> Result<()> {
        let Steps { signature, feeds, count, every } = &self.whole.steps;
        let named: Vec<(&String, Tensor)> = signature.feeds.iter().zip(feeds.iter().cloned()).collect();
        let (mut done, mut most) = (self.first, 1);
        self.make_ready(session).await?;
        while done < *count && self.state().stopped_by.is_none() {
            let (steps, told_every) = part(most, done, *count, *every);
            let began = Instant::now();
            let run = session.run().feeds(&named).fetches(&signature.fetches).targets(&signature.targets);
            let on_event = |event: StepEvent| self.happened(event.after_steps(done));
            let ran = run.steps(steps).watch(told_every, on_event).await;
            let values = ran.map_err(|failure| failure.after_steps(done))?.values;
            done += steps;
            most = next_part(most, began.elapsed(), bytes(&values));
            self.part_done(done, values);
        }
        Ok(())
    }

    /// Has the steps planned. A run that another node continues may lose one more task meanwhile, before any step could wait for
    /// that: it is planned again.
    async fn make_ready(&self, session: &Session) -> Result<()> {
        for pause in READY_AGAIN {
            match session.make_ready(&self.whole.steps.signature).await {
                Err(failure) if failure.code == Code::Unavailable => tokio::time::sleep(pause).await,
                ready => return ready,
            }
        }
        session.make_ready(&self.whole.steps.signature).await
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
                let text = note.to_string();
                state.notice = Some(text.clone());
                state.tail.notice(text);
            }
            StepEvent::PartialFetch { .. } => {}
        }
    }

    /// The steps up to this one are done; the values are its fetches.
    fn part_done(&self, done: u64, values: Vec<Tensor>) {
        let Steps { count, every, ref signature, .. } = self.whole.steps;
        let mut state = self.state();
        state.stepped(done, Instant::now());
        state.fetched = numbers(&signature.fetches, &values, done);
        // The last step's are told at the end.
        if every > 0 && done < count && done.is_multiple_of(every) {
            state.tail.values(done, values.clone());
        }
        if let Err(bytes) = state.tail.keep(done, values) {
            let (bytes, limit) = (Bytes(bytes), Bytes(MAX_VALUE_BYTES));
            state.notice = Some(format!("the values of a step take {bytes}, and {limit} at most are kept"));
        }
    }

    /// No step follows.
    pub fn end(&self, outcome: Result<(), Failure>) {
        let mut state = self.state();
        state.state = match outcome {
            Err(failure) => DetachedState::Failed(failure),
            Ok(()) if state.step >= self.whole.steps.count => DetachedState::Done,
            Ok(()) => DetachedState::Stopped { by: state.stopped_by.clone().unwrap_or_else(|| self.by.clone()) },
        };
        let has_values = state.tail.last_values().is_some() || self.whole.steps.signature.fetches.is_empty();
        if state.state == DetachedState::Done && !has_values {
            // The last copy of the state came after the last step.
            let why = "the values of its last step were lost with the node that had made it";
            state.notice.get_or_insert_with(|| why.to_owned());
        }
        state.ended = Some(Instant::now());
    }
}

impl State {
    fn stepped(&mut self, step: u64, now: Instant) {
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

/// The next steps, and the distance of those whose values are lines among them: `most` at most, after those that are done. Steps
/// whose values are lines count from the first of the run: a part that does not begin at one ends there.
fn part(most: u64, done: u64, count: u64, every: u64) -> (u64, u64) {
    let left = most.min(count - done);
    match done.checked_rem(every) {
        None => (left, 0),
        Some(0) => (left, every),
        Some(after) => (left.min(every - after), 0),
    }
}

/// The most steps of the next part, after one with `most` steps that took this long and whose values have these bytes.
fn next_part(most: u64, took: Duration, bytes: usize) -> u64 {
    let wanted = (PART + PART.mul_f64(bytes as f64 / BYTES_A_SECOND as f64)).min(LONGEST_PART);
    if took < wanted / 2 {
        (2 * most).min(MAX_PART)
    } else if took > 2 * wanted {
        (most / 2).max(1)
    } else {
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_steps_whose_values_are_lines() {
        // Whatever the sizes of parts, each tenth step is a line: inside of a part, or at its end.
        for most in [1, 3, 10, 64] {
            let (mut done, mut lines) = (0, Vec::new());
            while done < 42 {
                let (steps, every) = part(most, done, 42, 10);
                assert!((1..=most).contains(&steps) && done + steps <= 42);
                lines.extend((1..steps).filter(|step| every > 0 && step % every == 0).map(|step| done + step));
                done += steps;
                lines.extend((done % 10 == 0).then_some(done));
            }
            assert_eq!(lines, [10, 20, 30, 40], "{most}");
        }
        assert_eq!(part(8, 0, 5, 0), (5, 0));
    }

    #[test]
    fn the_numbers_of_a_step_are_shown_floats_first() {
        let names = ["n", "v", "loss", "name"].map(str::to_owned);
        let values =
            [Tensor::scalar(7i64), Tensor::vector(vec![1f32]), Tensor::scalar(0.5f32), Tensor::scalar(b"x".to_vec())];
        let all = numbers(&names, &values, 3);
        let shown: Vec<(&str, u64, f64)> = all.iter().map(|one| (&*one.name, one.last.step, one.last.value)).collect();
        assert_eq!(shown, [("loss", 3, 0.5), ("n", 3, 7.0)]);
    }

    #[test]
    fn a_part_takes_about_a_second_and_longer_with_large_values() {
        let after = |most, ms, bytes| next_part(most, Duration::from_millis(ms), bytes);
        assert_eq!([after(8, 100, 0), after(8, 900, 0), after(8, 2100, 0), after(1, 60_000, 0)], [16, 8, 4, 1]);
        assert_eq!(after(8, 900, BYTES_A_SECOND * 2), 16);
        assert_eq!(after(8, 61_000, usize::MAX), 4, "the longest is 30 s");
        assert_eq!(after(MAX_PART, 1, 0), MAX_PART);
    }
}
