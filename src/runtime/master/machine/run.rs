//! Steps under way: one `Run` of a client with the number of steps that it requested, the workers a window ahead.

mod again;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use meshtf_graph::plan::{Mode, Signature};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Reason, Result, Stage};
use meshtf_tensor::ids::{PieceId, RequestId, SessionId, StepId};
use smallvec::SmallVec;

use super::feeds::{self, Feeds};
use super::guard::Guard;
use super::history::History;
use super::plans::{FeedWay, Part, Prepared, gone};
use super::register::{apart, out_of_reach};
use super::{Machine, Nanos, Sends, lost};
use crate::protocol::event::Event;
use crate::protocol::runs::StepTimes;
use crate::protocol::{Cluster, Envelope, Peer, PushedValue, Reply, ToClient, ToWorker};

/// Steps of one run that the workers may be ahead of the slowest piece.
const WINDOW: u64 = 32;
/// The same of a piece that is alone, if its steps are reported together: none of its values waits elsewhere, and over a slow
/// link a message takes as long as many steps.
const WINDOW_ALONE: u64 = 1024;
/// The interval at which a client that watches a run is notified of its progress.
const TELLS: Nanos = 100_000_000;
/// Most runs of one session under way at once.
pub(super) const MAX_RUNS: usize = 1024;

/// A client's request for a run.
pub(in super::super) struct Ask {
    pub plan: u32,
    pub steps: u64,
    pub every: u64,
    pub watched: bool,
    /// Those of every step, or a set for each.
    pub feeds: Vec<Tensor>,
}

/// A client's feeds for a partial run: a subset of the signature's feeds.
pub(in super::super) struct Fed {
    pub run: RequestId,
    pub feeds: Vec<u32>,
    /// The fetches that are then waited for.
    pub wanted: Vec<u32>,
    pub tensors: Vec<Tensor>,
}

/// A session's runs under way.
#[derive(Default)]
pub(super) struct Runs {
    /// By the number of their first step: the steps of two runs never overlap.
    runs: BTreeMap<u64, ClientRun>,
    by_request: HashMap<RequestId, u64>,
    /// How many steps have been requested so far; they count from 1.
    steps: u64,
}

/// A client's run under way.
pub(super) struct ClientRun {
    request: RequestId,
    plan: u32,
    signature: Arc<Signature>,
    /// The feeds that a partial run has not received yet.
    unfed: HashSet<u32>,
    parts: Arc<Vec<Part>>,
    /// The tasks of which the first sends values to the second.
    meets: Arc<BTreeSet<(Task, Task)>>,
    /// The indices of each piece's fetches in the signature.
    piece_fetches: Arc<HashMap<PieceId, Vec<u32>>>,
    feeds: Feeds,
    /// Its steps may wait for room, as in a queue that is full.
    fills: bool,
    /// Nobody waits for the end of each step, but for that of the last.
    together: bool,
    /// Bytes of the feeds of the open steps that have feeds of their own.
    ahead: usize,
    every: u64,
    /// When the client, if it watches, was last notified of the run's progress.
    told: Option<Nanos>,
    /// When its last step was done, or when it began.
    last_done: Nanos,
    /// Steps of the client's run that were done before this first one: it began again after a loss.
    before: u64,
    /// The last step, as the client counts, whose values the client has.
    delivered: u64,
    /// Its steps were done before, and its client has the answer: only their effects are of interest.
    is_silent: bool,
    /// The number in the journal under which it began again, or waits to begin, while a lost state is computed again.
    again: Option<u64>,
    /// The number of the first step by its plan.
    since: u64,
    /// Number of the run's first step, of the next to start, and one past its last.
    first: u64,
    next: u64,
    end: u64,
    /// The steps that started and are not finished, oldest first, without a gap.
    open: VecDeque<OpenStep>,
}

struct OpenStep {
    waits: HashSet<PieceId>,
    fetched: Vec<Option<Tensor>>,
    /// The devices' traces, if the plan is traced.
    traces: Vec<Tensor>,
    /// Bytes of its feeds, if they are its own.
    fed: usize,
}

impl Runs {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// The first step of the run that contains this started step.
    fn holding(&self, step: u64) -> Option<u64> {
        let (&first, run) = self.runs.range(..=step).next_back()?;
        (step < run.next).then_some(first)
    }

    /// Whether a request has a run.
    pub fn has(&self, request: RequestId) -> bool {
        self.by_request.contains_key(&request)
    }

    /// The first steps of the runs that a worker takes part in.
    pub fn needing(&self, worker: &Peer) -> Vec<u64> {
        let needs = |run: &ClientRun| run.parts.iter().any(|part| part.worker == *worker);
        self.runs.iter().filter(|(_, run)| needs(run)).map(|(&first, _)| first).collect()
    }

    fn remove(&mut self, first: u64) -> Option<ClientRun> {
        let run = self.runs.remove(&first)?;
        if !run.is_silent {
            self.by_request.remove(&run.request);
        }
        Some(run)
    }

    /// Forgets all runs; returns the requests that they would have answered.
    pub fn clear(&mut self) -> Vec<RequestId> {
        self.take_all().into_iter().filter(|run| !run.is_silent).map(|run| run.request).collect()
    }
}

impl ClientRun {
    /// The number of steps that may be open.
    fn window(&self) -> u64 {
        // Values would wait on the way, as many as steps are open.
        let has_no_values = self.signature.fetches.is_empty() && self.signature.mode == Mode::Whole;
        match (&self.feeds, &self.parts[..]) {
            (Feeds::Same(_), [part]) if self.together && part.pieces.len() == 1 && has_no_values => WINDOW_ALONE,
            _ => WINDOW,
        }
    }

    /// Opens the window as far as possible.
    fn advance(&mut self, window: u64, out: &mut Sends) {
        let together = self.together;
        let most = self.end.min(self.first_open() + window).saturating_sub(self.next);
        let open = self.open.len();
        let behind = self.feeds.ready(most, open, self.ahead);
        let target = self.next + behind;
        // One message opens many steps: while the window is more than half open there is no hurry.
        if behind == 0 || (behind < open as u64 && target != self.end) {
            return;
        }
        let first = std::mem::replace(&mut self.next, target);
        let run = self.since;
        for _ in first..target {
            let waits = self.parts.iter().flat_map(|part| part.pieces.iter().copied()).collect();
            let fetched = vec![None; self.signature.fetches.len()];
            self.open.push_back(OpenStep { waits, fetched, traces: Vec::new(), fed: 0 });
        }
        match &mut self.feeds {
            Feeds::Same(feeds) => {
                self.parts
                    .iter()
                    .for_each(|part| out.push(part.start((first, behind), (first > run, together), feeds)));
                if target == self.end {
                    // The last piece that gets a feed owns it, so no copy is needed.
                    feeds.clear();
                }
            }
            Feeds::PerStep(sets) => {
                let (fed, unfed): (Vec<&Part>, _) = self.parts.iter().partition(|part| !part.feeds.is_empty());
                let unfed = unfed.into_iter();
                unfed.for_each(|part| out.push(part.start((first, behind), (first > run, together), &[])));
                for (number, step) in (first..target).zip(self.open.iter_mut().skip(open)) {
                    let set = sets.pop_front().unwrap_or_default();
                    step.fed = feeds::bytes(&set);
                    self.ahead += step.fed;
                    let start = |part: &&Part| part.start((number, 1), (number > run, together), &set);
                    out.extend(fed.iter().map(start));
                }
            }
        }
    }

    /// Passes feeds to the pieces that wait for them.
    fn feed(&mut self, session: SessionId, fed: Fed, plan: &Prepared, out: &mut Sends) -> Result<()> {
        if fed.feeds.len() != fed.tensors.len() {
            return Err(Failure::invalid(format!("{} feeds, but {} values", fed.feeds.len(), fed.tensors.len())));
        }
        let Signature { feeds: feed_names, fetches: fetch_names, .. } = &*self.signature;
        if fed.feeds.len() > feed_names.len() || fed.wanted.len() > fetch_names.len() {
            let why = format!(
                "{} feeds and {} fetches, but the partial run has {} and {}",
                fed.feeds.len(),
                fed.wanted.len(),
                feed_names.len(),
                fetch_names.len()
            );
            return Err(Failure::invalid(why));
        }
        for (&feed, tensor) in fed.feeds.iter().zip(&fed.tensors) {
            plan.check_feed(feed as usize, tensor)?;
            if !self.unfed.contains(&feed) {
                let name = &feed_names[feed as usize];
                return Err(Failure::invalid(format!("the feed {name} of this partial run has already been fed.")));
            }
        }
        for &fetch in &fed.wanted {
            let needed = plan.needed_feeds.get(fetch as usize).into_iter().flatten();
            let mut missing = needed.filter(|feed| self.unfed.contains(feed) && !fed.feeds.contains(feed));
            if let Some(&feed) = missing.next() {
                let (feed, fetch) = (&feed_names[feed as usize], &fetch_names[fetch as usize]);
                return Err(Failure::invalid(format!(
                    "{fetch} needs {feed}, which has not been fed to this partial run yet"
                )));
            }
        }
        let step = StepId { session, number: self.first };
        for (feed, tensor) in fed.feeds.into_iter().zip(fed.tensors) {
            // The same feed twice in one call is fed once.
            if !self.unfed.remove(&feed) {
                continue;
            }
            for FeedWay { worker, device, transfer } in &plan.feed_ways[feed as usize] {
                let value = PushedValue { transfer: *transfer, iterations: SmallVec::new(), is_dead: false };
                let message = ToWorker::Push { step, to: device.clone(), values: vec![value] };
                out.push((worker.clone(), Envelope::new(message, vec![tensor.clone()])));
            }
        }
        Ok(())
    }

    /// The tasks of these two, if one sends values to the other in this run.
    fn meet(&self, one: &Peer, other: &Peer) -> Option<(&Task, &Task)> {
        let task = |peer: &Peer| self.parts.iter().find(|part| part.worker == *peer).map(|part| &part.task);
        let (one, other) = (task(one)?, task(other)?);
        let pairs = [(one.clone(), other.clone()), (other.clone(), one.clone())];
        pairs.iter().any(|pair| self.meets.contains(pair)).then_some((one, other))
    }

    /// Notes which steps are done, and which began after that: each the first, on the session's count, and how many.
    fn tell_steps(&self, session: SessionId, done: (u64, u64), begun: (u64, u64), happened: &mut Vec<Event>) {
        // The client counts the steps of its run.
        let of_run = |step: u64| step - self.first + 1 + self.before;
        let run = self.request;
        if done.1 > 0 {
            happened.push(Event::StepsDone { session, run, first: of_run(done.0), count: done.1 });
        }
        if begun.1 > 0 {
            happened.push(Event::StepsBegun { session, run, first: of_run(begun.0), count: begun.1 });
        }
    }

    fn first_open(&self) -> u64 {
        self.next - self.open.len() as u64
    }

    /// Makes the workers give up every open step.
    pub fn abort(&self, session: SessionId, failure: &Failure, out: &mut Sends) {
        for number in self.first_open()..self.next {
            self.abort_step(StepId { session, number }, failure, out);
        }
    }

    fn abort_step(&self, step: StepId, failure: &Failure, out: &mut Sends) {
        for part in self.parts.iter() {
            out.push((part.worker.clone(), ToWorker::Abort { step, failure: failure.clone() }.into()));
        }
    }

    /// A piece has done its part of `count` steps up to one. Returns whether the run is over.
    fn done(
        &mut self,
        client: &Peer,
        (piece, number, count): (PieceId, u64, u64),
        tensors: Vec<Tensor>,
        (now, may_start): (Nanos, bool),
        seen: &mut History,
        out: &mut Sends,
    ) -> bool {
        let place = number.checked_sub(self.first_open()).and_then(|place| usize::try_from(place).ok());
        let Some(place) = place.filter(|&place| place < self.open.len()) else { return false };
        if !self.open[place].waits.remove(&piece) {
            return false;
        }
        let before = usize::try_from(count.saturating_sub(1)).unwrap_or(usize::MAX);
        self.open.range_mut(place.saturating_sub(before)..place).for_each(|step| _ = step.waits.remove(&piece));
        let step = &mut self.open[place];
        let mut tensors = tensors.into_iter();
        if !self.signature.mode.is_partial() {
            for (&place, tensor) in self.piece_fetches.get(&piece).into_iter().flatten().zip(&mut tensors) {
                step.fetched[place as usize] = Some(tensor);
            }
        }
        step.traces.extend(tensors);
        // Steps end in order for the client, though a later one may be done before an earlier one.
        while self.open.front().is_some_and(|step| step.waits.is_empty()) {
            let number = self.first_open();
            let Some(step) = self.open.pop_front() else { break };
            self.ahead -= step.fed;
            seen.add(number, &self.signature.fetches, &step.fetched, &step.traces);
            let tensors: Vec<Tensor> = step.fetched.into_iter().flatten().chain(step.traces).collect();
            let so_far = number - self.first + 1 + self.before;
            if number + 1 == self.end {
                if self.is_silent {
                    return true;
                }
                let message = ToClient::Reply { id: self.request, result: Ok(Reply::Ran { steps: so_far }) };
                out.push((client.clone(), Envelope::new(message, tensors)));
                return true;
            }
            if self.every > 0 && so_far.is_multiple_of(self.every) && so_far > self.delivered && !self.is_silent {
                self.delivered = so_far;
                let message = ToClient::Fetched { id: self.request, step: so_far };
                out.push((client.clone(), Envelope::new(message, tensors)));
            }
        }
        if self.told.is_some_and(|told| now.saturating_sub(told) >= TELLS) {
            let steps = self.done_so_far();
            let fetched = seen.last_of(&self.signature.fetches);
            out.push((client.clone(), ToClient::Progress { id: self.request, steps, fetched }.into()));
            self.told = Some(now);
        }
        if may_start {
            self.advance(self.window(), out);
        }
        false
    }
}

impl Machine {
    /// Begins a run, or sends the client the reason why not.
    pub(super) fn begin(&mut self, request: RequestId, mut ask: Ask, cluster: &Cluster, now: Nanos) {
        if let Err(failure) = self.try_begin(request, &mut ask, cluster, now) {
            // The client prepares the plan again and continues, and need not have kept its feeds for that.
            let feeds = if failure.reason == Some(Reason::PlanGone) { ask.feeds } else { Vec::new() };
            self.answer_with(request, Err(failure), feeds);
        }
    }

    fn try_begin(&mut self, request: RequestId, ask: &mut Ask, cluster: &Cluster, now: Nanos) -> Result<()> {
        if self.runs.len() >= MAX_RUNS {
            let why = format!("{MAX_RUNS} runs of this session are under way already");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let is_logged = |guard: &mut Guard| guard.journal.active(request).is_some();
        if self.runs.has(request) || self.guard.as_mut().is_some_and(is_logged) {
            return Err(Failure::new(Code::AlreadyExists, format!("request {request} is under way already")));
        }
        if let Some(failure) = self.guard.as_mut().and_then(|guard| guard.owed.take()) {
            return Err(failure);
        }
        let plan = self.plans.used(ask.plan)?;
        let is_guarded = self.guard.is_some() && plan.is_shared && !plan.signature.mode.is_partial();
        if let Some(task) = plan.missed(cluster) {
            if self.options.ends_with_its_tasks {
                return Err(lost(task));
            }
            return Err(gone(&format!("task {task} is gone or was restarted")));
        }
        if !plan.signature.mode.is_partial() {
            Feeds::check(plan, &ask.feeds, ask.steps)?;
        } else if ask.steps != 1 || !ask.feeds.is_empty() {
            return Err(Failure::invalid("a partial run has one step, and gets its feeds later"));
        }
        if ask.steps == 0 || plan.parts.is_empty() {
            self.answer(request, Ok(Reply::Ran { steps: ask.steps }));
            return Ok(());
        }
        if let Some((from, to)) = apart(&plan.meets, cluster) {
            return Err(out_of_reach(from, to));
        }
        let first = self.runs.steps + 1;
        let end = first
            .checked_add(ask.steps)
            .ok_or_else(|| Failure::invalid("the session cannot run that many more steps"))?;
        let feeds = Feeds::of(std::mem::take(&mut ask.feeds), plan.signature.feeds.len(), ask.steps);
        if let Some(guard) = &mut self.guard {
            let has_room = guard.journal.begin(request, &plan.signature, &feeds, ask.steps, (ask.every, ask.watched));
            guard.begins(ask.steps > 1 || self.steps_done > 0, (is_guarded, has_room), self.now);
        }
        let mut run = ClientRun {
            request,
            plan: ask.plan,
            signature: Arc::clone(&plan.signature),
            unfed: (0..plan.feed_ways.len() as u32).collect(),
            parts: Arc::clone(&plan.parts),
            meets: Arc::clone(&plan.meets),
            piece_fetches: Arc::clone(&plan.piece_fetches),
            feeds,
            fills: plan.fills,
            // Followers are told of each step.
            together: self.guard.is_none() && ask.every == 0 && !ask.watched && !self.tells_steps,
            ahead: 0,
            every: ask.every,
            told: ask.watched.then_some(now),
            last_done: now,
            before: 0,
            delivered: 0,
            is_silent: false,
            again: None,
            since: first,
            first,
            next: first,
            end,
            open: VecDeque::new(),
        };
        plan.runs += 1;
        self.runs.steps = end - 1;
        if self.guard.is_none() {
            run.resume(self.id, self.tells_steps, &mut self.outbox, &mut self.happened);
        }
        self.runs.by_request.insert(request, first);
        self.runs.runs.insert(first, run);
        if self.guard.is_some() {
            if ask.watched || ask.every > 0 {
                self.tell_untold(request);
            }
            self.guard_run(ask.plan, cluster);
            self.replay();
            self.resume();
            self.drained();
        }
        Ok(())
    }

    /// Gives up the run of a request, if it is under way.
    pub(super) fn cancel(&mut self, request: RequestId, failure: &Failure) {
        if self.cancel_lost(request, failure) {
            return;
        }
        if let Some(&first) = self.runs.by_request.get(&request) {
            self.fail_run(first, failure);
        }
    }

    /// Gives up the run of that first step and answers the client.
    pub(super) fn fail_run(&mut self, first: u64, failure: &Failure) {
        let Some(run) = self.runs.remove(first) else { return };
        if run.is_silent {
            run.abort(self.id, failure, &mut self.outbox);
            let unneeded = self.plans.run_over(run.plan);
            self.forget(unneeded);
            return self.give_up_recovery(failure);
        }
        self.tell_limit(failure);
        let (session, why) = (self.id, failure.to_string());
        self.happened.push(Event::RunFailed { session, run: run.request, code: failure.code, why });
        run.abort(self.id, failure, &mut self.outbox);
        self.answer(run.request, Err(failure.clone()));
        let unneeded = self.plans.run_over(run.plan);
        self.forget(unneeded);
        self.guard_run_over(run.request, Some(failure), run.next > run.first);
        self.replay();
        self.drained();
    }

    /// Gives a partial run some of its feeds.
    pub(super) fn feed(&mut self, request: RequestId, fed: Fed) {
        let result = self.try_feed(fed).map(|()| Reply::Fed);
        self.answer(request, result);
    }

    fn try_feed(&mut self, fed: Fed) -> Result<()> {
        let over = || Failure::invalid("this partial run does not exist, or has ended").because(Reason::RunOver);
        let first = self.runs.by_request.get(&fed.run);
        let run = first.and_then(|first| self.runs.runs.get_mut(first)).ok_or_else(over)?;
        if !run.signature.mode.is_partial() {
            return Err(over());
        }
        let plan = self.plans.get(run.plan).ok_or_else(over)?;
        run.feed(self.id, fed, plan, &mut self.outbox)
    }

    /// A fetch of a partial run.
    pub(super) fn partial_fetch(&mut self, piece: PieceId, step: u64, place: u32, tensors: Vec<Tensor>) {
        let run = self.runs.holding(step).and_then(|first| self.runs.runs.get(&first));
        let Some(run) = run else { return };
        let fetch = run.piece_fetches.get(&piece).and_then(|fetches| fetches.get(place as usize));
        if let Some(&fetch) = fetch {
            let message = ToClient::PartialFetch { id: run.request, fetch };
            self.send(self.client.clone(), Envelope::new(message, tensors));
        }
    }

    /// How long the steps took that are done since the last call.
    pub fn take_step_times(&mut self) -> StepTimes {
        std::mem::take(&mut self.step_times)
    }

    /// A piece has done its part of `count` steps up to one.
    pub(super) fn done(&mut self, piece: PieceId, (step, count): (u64, u64), tensors: Vec<Tensor>, now: Nanos) {
        let Some(first) = self.runs.holding(step) else { return };
        let Some(run) = self.runs.runs.get_mut(&first) else { return };
        let may_start = self.guard.as_ref().is_none_or(|guard| guard.lets(run));
        self.seen.piece_done(piece, step, now);
        let (done_before, begun_before) = (run.first_open(), run.next);
        let is_over =
            run.done(&self.client, (piece, step, count), tensors, (now, may_start), &mut self.seen, &mut self.outbox);
        let (done, begun) = (run.first_open() - done_before, run.next - begun_before);
        self.steps_done += done;
        if done > 0 {
            self.step_times.add(done, now.saturating_sub(run.last_done));
            if let Some(guard) = &mut self.guard {
                guard.step_done(run.last_done, now);
            }
            run.last_done = now;
        }
        if let Some(plan) = self.plans.get_mut(run.plan).filter(|_| done > 0) {
            plan.steps += done;
        }
        if self.tells_steps {
            run.tell_steps(self.id, (done_before, done), (begun_before, begun), &mut self.happened);
        }
        let (plan, request, is_silent, again) = (run.plan, run.request, run.is_silent, run.again);
        if let Some(guard) = self.guard.as_mut().filter(|_| done > 0 && !is_silent)
            && let Some(logged) = guard.journal.active(request)
        {
            logged.done = run.done_so_far();
            logged.delivered = run.delivered;
        }
        if is_over {
            self.runs.runs.remove(&first);
            if !is_silent {
                self.runs.by_request.remove(&request);
            }
            let unneeded = self.plans.run_over(plan);
            self.forget(unneeded);
            match (is_silent, again, &mut self.guard) {
                (true, Some(number), Some(guard)) => guard.journal.is_done_again(number),
                _ => self.guard_run_over(request, None, true),
            }
            self.replay();
        }
        self.drained();
    }

    /// A worker lost its link with `peer` while steps up to `until` were requested: those that need it would wait forever.
    pub(super) fn peer_lost(&mut self, worker: &Peer, until: u64, peer: &Peer, why: &str) {
        let begun = self.runs.runs.range(..=until);
        let stuck: Vec<(u64, Failure)> = begun
            .filter_map(|(&first, run)| run.meet(worker, peer).map(|(from, to)| (first, out_of_reach(from, to))))
            .collect();
        for (first, failure) in stuck {
            let message = format!("{}: {why}", failure.message);
            self.fail_or_go_back(first, &Failure { message, ..failure });
        }
        self.part_lost(worker, peer);
    }

    /// A message that a worker needs for a step could not be sent.
    pub(super) fn unsent_step(&mut self, step: u64, failure: &Failure) {
        if let Some(first) = self.runs.holding(step) {
            self.fail_or_go_back(first, failure);
        }
    }

    /// A run fails, unless a task is lost and the session goes back to its newest cut.
    fn fail_or_go_back(&mut self, first: u64, failure: &Failure) {
        if !self.guards_against_failure(failure) {
            self.fail_run(first, failure);
        }
    }

    /// A step failed on a worker.
    pub(super) fn failed(&mut self, step: u64, failure: Failure) {
        let Some(first) = self.runs.holding(step) else { return };
        // The device counts the session's steps, the client those of its run.
        let before = self.runs.runs.get(&first).map_or(0, |run| run.before);
        self.fail_or_go_back(first, &Failure { stage: Stage::InStep(step - first + 1 + before), ..failure });
    }
}
