//! Runs whose client stays and prints their values, each of them once: such a run makes no more lines than are kept until the
//! client has them, and it ends with its client.

use std::time::{Duration, Instant};

use super::entry::{Entry, State};
use super::tail::Tail;
use crate::protocol::Peer;
use crate::protocol::detached::{DetachedState, MAX_LINE_BYTES, MAX_LINES};

/// How long a client may say nothing, as if it was stopped or cut off.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// The interval of the looks at whether the client is silent.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Most lines of a part of the run; another one begins while twice as many are on their way.
const PART_LINES: usize = MAX_LINES / 4;

/// The client of a run.
pub(super) struct Attended {
    /// The last line that it has, and the last step whose values it has.
    line: u64,
    step: u64,
    asked: Instant,
}

impl Attended {
    /// A client that has the values of so many steps.
    pub fn new(step: u64) -> Attended {
        Attended { line: 0, step, asked: Instant::now() }
    }

    /// It asks for the lines after that one.
    fn asks(&mut self, after: u64, tail: &Tail) {
        self.asked = Instant::now();
        self.line = self.line.max(after.min(tail.last()));
        self.step = self.step.max(tail.step_at(self.line));
    }

    /// The last step that the client lacks no value of, if values of each `every`-th step and of the last one are its lines.
    fn until(&self, count: u64, every: u64) -> u64 {
        let next = self.step.checked_div(every).map_or(count, |lines| (lines + 1).saturating_mul(every));
        next.min(count).saturating_sub(1)
    }
}

/// The lines of the next part, if the values of each have so many bytes.
fn part_lines(bytes: usize) -> usize {
    (MAX_LINE_BYTES / 4).checked_div(bytes).unwrap_or(PART_LINES).clamp(1, PART_LINES)
}

impl State {
    /// Whether the next part may begin. If the client is silent for too long, the run is to end.
    fn has_room(&mut self, by: &Peer, bytes: usize) -> bool {
        if self.is_left(by) {
            return true;
        }
        let Some(attended) = &self.attended else { return true };
        let (lines, kept) = self.tail.size_after(attended.line);
        let more = bytes.min(MAX_LINE_BYTES) * part_lines(bytes);
        lines <= 2 * PART_LINES && kept + more <= MAX_LINE_BYTES
    }

    /// Whether the client has all lines, or is not awaited any more.
    fn is_received(&mut self, by: &Peer, count: u64) -> bool {
        self.is_left(by) || self.attended.as_ref().is_none_or(|attended| attended.step >= count)
    }

    /// Whether the run is to end before its last step. So it is if its client is silent for too long.
    fn is_left(&mut self, by: &Peer) -> bool {
        if self.stopped_by.is_none() && self.attended.as_ref().is_some_and(|one| one.asked.elapsed() >= SILENT_FOR) {
            let why = format!("the client has asked for nothing for {} s: the run ends", SILENT_FOR.as_secs());
            self.tail.notice(why.clone());
            (self.notice, self.state, self.stopped_by) = (Some(why), DetachedState::Ending, Some(by.clone()));
        }
        self.stopped_by.is_some()
    }
}

impl Entry {
    /// A participant asks for the lines after that one. If it is the client of the run, returns the last step that it lacks no
    /// value of.
    pub fn received(&self, from: &Peer, after: u64) -> Option<u64> {
        if self.by != *from {
            return None;
        }
        let mut state = self.state();
        let State { attended, tail, .. } = &mut *state;
        attended.as_mut()?.asks(after, tail);
        drop(state);
        self.heard.notify_one();
        self.received_until()
    }

    /// The last step that its client lacks no value of, if that stays.
    pub fn received_until(&self) -> Option<u64> {
        self.state().attended.as_ref().map(|attended| attended.until(self.count(), self.every()))
    }

    /// The most steps of the next part, whose values have about so many bytes.
    pub(super) fn most_for_client(&self, most: u64, bytes: usize) -> u64 {
        match self.state().attended {
            Some(_) if self.every() > 0 => most.min(self.every().saturating_mul(part_lines(bytes) as u64)),
            _ => most,
        }
    }

    /// Waits until its client has so many of its lines that those of another part find room.
    pub(super) async fn wait_for_room(&self, bytes: usize) {
        self.wait_for_client(|state| state.has_room(&self.by, bytes)).await;
    }

    /// Waits until its client has the values of the last step: if this node is lost before that, another makes the step again.
    pub(super) async fn wait_until_received(&self) {
        self.wait_for_client(|state| state.is_received(&self.by, self.count())).await;
    }

    async fn wait_for_client(&self, is_met: impl Fn(&mut State) -> bool) {
        while !is_met(&mut self.state()) {
            let _silent = tokio::time::timeout(LOOKS_EVERY, self.heard.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::Tensor;

    use super::*;

    fn of(bytes: usize) -> Vec<Tensor> {
        vec![Tensor::vector(vec![0u8; bytes])]
    }

    #[test]
    fn a_cut_may_have_no_step_whose_values_the_client_lacks() {
        let until = |step, count, every| Attended::new(step).until(count, every);
        // Lines are steps 10, 20, 30 and the last one, 35.
        assert_eq!([until(0, 35, 10), until(10, 35, 10), until(19, 35, 10), until(30, 35, 10)], [9, 19, 19, 34]);
        // The last one alone.
        assert_eq!([until(0, 35, 0), until(20, 35, 0), until(0, 1, 0)], [34, 34, 0]);
        assert_eq!(until(u64::MAX - 1, u64::MAX, u64::MAX / 2), u64::MAX - 1);
    }

    #[test]
    fn what_a_client_asks_for_says_which_steps_it_has() {
        let (mut tail, mut client) = (Tail::default(), Attended::new(20));
        tail.values(30, of(1));
        tail.notice("a task was lost".to_owned());
        tail.values(40, of(1));
        tail.notice("it came back".to_owned());
        let mut asks = |after| {
            client.asks(after, &tail);
            (client.line, client.step)
        };
        assert_eq!([asks(0), asks(1), asks(2), asks(3), asks(4)], [(0, 20), (1, 30), (2, 30), (3, 40), (4, 40)]);
        // Late, or about lines of an earlier process.
        assert_eq!([asks(1), asks(99)], [(4, 40), (4, 40)]);
    }

    #[test]
    fn a_part_has_as_many_lines_as_are_kept_with_those_on_their_way() {
        assert_eq!([part_lines(0), part_lines(1), part_lines(1 << 16), part_lines(usize::MAX)], [256, 256, 16, 1]);
        for bytes in [0, 1, 5000, MAX_LINE_BYTES / 4 + 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1] {
            let mut state = State::new(0, true);
            let (mut step, mut parts) = (0, 0);
            while state.has_room(&Peer::new("me"), bytes) && parts <= MAX_LINES {
                (0..part_lines(bytes)).for_each(|_| {
                    step += 1;
                    state.tail.values(step, of(bytes));
                });
                parts += 1;
            }
            assert!((1..MAX_LINES).contains(&parts), "{bytes}: {parts}");
            assert_eq!(state.tail.after(0).missed, 0, "{bytes}: all are kept");
            // The client has them.
            let State { attended, tail, .. } = &mut state;
            attended.as_mut().unwrap().asks(u64::MAX, tail);
            assert!(state.has_room(&Peer::new("me"), bytes), "{bytes}");
        }
        let mut state = State::new(0, false);
        (1..=3000).for_each(|step| state.tail.values(step, of(1)));
        assert!(state.has_room(&Peer::new("me"), 1), "nobody is waited for");
    }

    #[test]
    fn a_run_ends_with_its_client() {
        let me = Peer::new("me");
        let mut state = State::new(0, true);
        assert!(!state.is_left(&me) && !state.is_received(&me, 1));
        let long_ago = Instant::now().checked_sub(SILENT_FOR);
        let Some(long_ago) = long_ago else { return };
        state.attended.as_mut().unwrap().asked = long_ago;
        assert!(state.is_left(&me) && state.is_received(&me, 1) && state.has_room(&me, 1));
        assert_eq!((state.state.name(), state.stopped_by), ("ending", Some(me)));
    }
}
