//! Runs as the guard of a session sees them: held, pushed on, and begun again after a loss.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{RequestId, SessionId, StepId};

use super::super::plans::Prepared;
use super::super::{Machine, Sends};
use super::{ClientRun, Runs};
use crate::protocol::event::Event;

impl Runs {
    /// Whether every step that started is done.
    pub fn are_between_steps(&self) -> bool {
        self.runs.values().all(|run| run.open.is_empty())
    }

    /// Whether a step that may wait for room is under way.
    pub fn fill(&self) -> bool {
        self.runs.values().any(|run| run.fills && !run.open.is_empty())
    }

    /// The plans of the runs.
    pub fn plans(&self) -> impl Iterator<Item = u32> {
        self.runs.values().map(|run| run.plan)
    }

    /// The runs, the first to begin first.
    pub fn all(&mut self) -> impl Iterator<Item = &mut ClientRun> {
        self.runs.values_mut()
    }

    /// Takes all runs.
    pub fn take_all(&mut self) -> Vec<ClientRun> {
        self.by_request.clear();
        std::mem::take(&mut self.runs).into_values().collect()
    }

    /// Whether all runs can be computed again from a cut.
    pub fn all_can_be_replayed(&self) -> bool {
        self.runs.values().all(|run| !run.signature.mode.is_partial())
    }

    /// Has every run that is between two steps begin the next; those that have not begun, if their plan may. Returns whether one
    /// did.
    pub fn push_on(&mut self, may_begin: impl Fn(u32) -> bool, out: &mut Sends) -> bool {
        let mut any = false;
        let waits = |run: &&mut ClientRun| run.open.is_empty() && (run.next > run.first || may_begin(run.plan));
        for run in self.runs.values_mut().filter(waits) {
            run.advance(1, out);
            any |= !run.open.is_empty();
        }
        any
    }

    /// The steps that are under way: of each run the first step of the run, and the first that has not begun.
    pub fn begun(&self) -> Vec<(u64, u64)> {
        self.runs.iter().filter(|(_, run)| !run.open.is_empty()).map(|(&first, run)| (first, run.next)).collect()
    }

    /// Whether some of those steps are still under way.
    pub fn are_open(&self, begun: &[(u64, u64)]) -> bool {
        begun.iter().any(|(first, next)| self.runs.get(first).is_some_and(|run| run.first_open() < *next))
    }

    /// Whether the run of a request is not one that is computed again up to this step.
    pub fn is_new(&self, request: RequestId, reached: u64) -> bool {
        let run = self.by_request.get(&request).and_then(|first| self.runs.get(first));
        run.is_some_and(|run| run.again.is_none_or(|number| number == u64::MAX) || run.done_so_far() >= reached)
    }

    /// Nobody waits for the run of a request any more, which ends with this step of those that are computed again: later ones
    /// that have begun are given up. Returns whether there are any.
    pub fn silence(
        &mut self,
        request: RequestId,
        last: u64,
        (session, failure): (SessionId, &Failure),
        out: &mut Sends,
    ) -> bool {
        let Some(run) = self.by_request.remove(&request).and_then(|first| self.runs.get_mut(&first)) else {
            return false;
        };
        (run.is_silent, run.told) = (true, None);
        run.end = run.first + (last - run.before);
        let given_up = run.end..run.next;
        for number in given_up.clone().rev() {
            run.ahead -= run.open.pop_back().map_or(0, |step| step.fed);
            run.abort_step(StepId { session, number }, failure, out);
        }
        run.next = run.next.min(run.end);
        !given_up.is_empty()
    }

    /// How many steps have been requested so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The next steps have numbers after this one.
    pub fn begin_after(&mut self, step: u64) {
        self.steps = step;
    }

    /// The plan of a request's run.
    pub fn plan_of(&self, request: RequestId) -> Option<u32> {
        self.runs.get(self.by_request.get(&request)?).map(|run| run.plan)
    }

    /// Takes the run of a request, none of whose steps has begun.
    pub fn take(&mut self, request: RequestId) {
        if let Some(&first) = self.by_request.get(&request) {
            self.remove(first);
        }
    }

    /// Whether a step of a run of this plan has begun.
    pub fn has_begun(&self, plan: u32) -> bool {
        self.runs.values().any(|run| run.plan == plan && run.next > run.first)
    }

    /// The runs that have begun may continue while others are computed again, and those of these plans may begin.
    pub fn let_all_go(&mut self, may_begin: impl Fn(u32) -> bool) {
        for run in self.runs.values_mut().filter(|run| run.next > run.first || may_begin(run.plan)) {
            run.again.get_or_insert(u64::MAX);
        }
    }

    /// The run of a request may begin while others are computed again.
    pub fn let_go(&mut self, request: RequestId) {
        let run = self.by_request.get(&request).and_then(|first| self.runs.get_mut(first));
        if let Some(run) = run {
            run.again.get_or_insert(u64::MAX);
        }
    }
}

impl ClientRun {
    pub fn plan(&self) -> u32 {
        self.plan
    }

    pub fn request(&self) -> RequestId {
        self.request
    }

    /// Whether it is computed again for its effects alone.
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Whether its steps may wait for room.
    pub fn fills(&self) -> bool {
        self.fills
    }

    /// Whether it may run while others are computed again.
    pub fn is_replayed(&self) -> bool {
        self.again.is_some()
    }

    /// How many steps are done, as the client counts.
    pub fn done_so_far(&self) -> u64 {
        self.before + self.first_open() - self.first
    }

    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Continues with another plan of the same signature, unless a step is under way. Returns whether it does.
    pub fn continues_with(&mut self, number: u32, plan: &Prepared) -> bool {
        if !self.open.is_empty() {
            return false;
        }
        (self.plan, self.since) = (number, self.next);
        (self.parts, self.meets) = (Arc::clone(&plan.parts), Arc::clone(&plan.meets));
        (self.piece_fetches, self.fills) = (Arc::clone(&plan.piece_fetches), plan.fills);
        true
    }

    /// Starts the steps that were held.
    pub fn resume(&mut self, session: SessionId, tells_steps: bool, out: &mut Sends, happened: &mut Vec<Event>) {
        let begun = self.next;
        self.advance(self.window(), out);
        if tells_steps {
            self.tell_steps(session, (begun, 0), (begun, self.next - begun), happened);
        }
    }
}

impl Machine {
    /// Begins a run of the journal again after a loss, from the step in the newest cut.
    ///
    /// # Errors
    /// Internal if its plan is not there, which was made for it.
    pub(in super::super) fn begin_again(&mut self, entry: u64) -> Result<()> {
        let gone = || Failure::new(Code::Internal, "a run cannot be computed again: its plan is not there");
        let guard = self.guard.as_mut().ok_or_else(gone)?;
        let logged = guard.journal.numbered(entry).ok_or_else(gone)?;
        let number = self.plans.ready(&logged.signature).ok_or_else(gone)?;
        let plan = self.plans.get_mut(number).ok_or_else(gone)?;
        let first = self.runs.steps + 1;
        let end = first.checked_add(logged.total - logged.from).ok_or_else(gone)?;
        let has_begun = logged.is_over || logged.reached() > 0;
        let mut run = ClientRun {
            request: logged.request,
            plan: number,
            signature: Arc::clone(&plan.signature),
            unfed: HashSet::new(),
            parts: Arc::clone(&plan.parts),
            meets: Arc::clone(&plan.meets),
            piece_fetches: Arc::clone(&plan.piece_fetches),
            feeds: logged.feeds(),
            fills: plan.fills,
            together: false,
            ahead: 0,
            every: logged.every,
            told: (logged.is_watched && !logged.is_over).then_some(self.now),
            last_done: self.now,
            before: logged.from,
            delivered: logged.delivered,
            is_silent: logged.is_over,
            again: None,
            since: first,
            first,
            next: first,
            end,
            open: VecDeque::new(),
        };
        // One that waited for a cut does not begin before it is taken, once the others are computed again.
        run.again = guard.cover(number, &plan.signature, has_begun).then_some(entry);
        plan.runs += 1;
        self.runs.steps = end - 1;
        if !run.is_silent {
            self.runs.by_request.insert(run.request, first);
        }
        self.runs.runs.insert(first, run);
        self.resume();
        Ok(())
    }
}
