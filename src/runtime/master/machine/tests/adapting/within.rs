//! A guarded run of many steps, and a task that joins, refuses, and is lost.

use std::collections::{BTreeMap, VecDeque};

use super::super::super::guard::Phase;
use super::*;
use crate::protocol::guard::{Copied, GuardReport, ToGuard};

const STEPS: u64 = 2000;

/// The workers of a guarded session that is placed by cost, and what they and the client have seen.
struct Play {
    script: Script,
    now: Nanos,
    /// Parts of steps that are under way.
    begun: VecDeque<(Peer, PieceId, u64)>,
    /// How many fetches each piece has.
    pieces: BTreeMap<PieceId, usize>,
    /// Registrations that are not answered yet.
    registering: Vec<(Peer, Vec<PieceId>)>,
    /// The first step by each piece, and whether it continues a run.
    first: BTreeMap<PieceId, (Peer, u64, bool)>,
    /// The steps whose values the client has.
    fetched: Vec<u64>,
    failures: Vec<Failure>,
    /// The changes of plans.
    changes: usize,
    notes: Vec<String>,
    /// Copies reach their buddies; otherwise they are on their way.
    keeps_copies: bool,
    copies: Vec<(Peer, GuardReport)>,
}

impl Play {
    /// A run has begun on task 0 alone.
    fn begin() -> Play {
        let mut script = script(PlaceBy::Cost);
        script.machine.guard = Some(Guard::new(SECOND));
        let plan = number(&script.wants(1, 0));
        let mut play = Play {
            script,
            now: 0,
            begun: VecDeque::new(),
            pieces: BTreeMap::from([(PieceId { session: SessionId(7), number: 0 }, 1)]),
            registering: Vec::new(),
            first: BTreeMap::new(),
            fetched: Vec::new(),
            failures: Vec::new(),
            changes: 0,
            notes: Vec::new(),
            keeps_copies: true,
            copies: Vec::new(),
        };
        let (ask, cluster) = (Ask { plan, steps: STEPS, every: 1, watched: false, feeds: vec![] }, mesh(1));
        play.event(SessionEvent::Run { request: RequestId(2), ask, cluster: &cluster, is_comparing: false });
        play
    }

    /// Passes an event on, makes the plans that are asked for, and has the workers answer.
    fn event(&mut self, event: SessionEvent<'_>) {
        let mut to_plan = self.script.machine.handle(event, self.now);
        self.take_messages();
        while let Some(of) = to_plan.take() {
            let cluster = &self.script.cluster.clone();
            let plan = made(&of, cluster);
            let event = match (&of.present, of.request) {
                (Some(_), _) => SessionEvent::Compared { of, plan, cluster },
                (None, Some(request)) => SessionEvent::Planned { request, of, plan, cluster },
                (None, None) => SessionEvent::Replanned { of, plan, cluster },
            };
            to_plan = self.script.machine.handle(event, self.now);
            self.take_messages();
        }
    }

    fn take_messages(&mut self) {
        let sent: VecDeque<(Peer, Message)> = self.script.sent().into();
        for event in self.script.machine.take_happened() {
            match event {
                Event::PlannedAnew { .. } => self.changes += 1,
                Event::Guarded { what, .. } => self.notes.push(what),
                _ => {}
            }
        }
        let mut reports = Vec::new();
        for (to, message) in sent {
            // One that is gone takes nothing.
            if to.as_str() != "client" && self.script.cluster.member_of(&to).is_none() {
                continue;
            }
            match message {
                Message::ToWorker(ToWorker::Register { pieces, .. }) => {
                    self.pieces.extend(pieces.iter().map(|(id, piece)| (*id, piece.fetches.len())));
                    self.registering.push((to, pieces.into_iter().map(|(id, _)| id).collect()));
                }
                Message::ToWorker(ToWorker::Start { pieces, first, count, continues, .. }) => {
                    for &piece in &pieces {
                        self.first.entry(piece).or_insert((to.clone(), first, continues));
                    }
                    let steps = (first..first + count).flat_map(|step| pieces.iter().map(move |piece| (*piece, step)));
                    self.begun.extend(steps.map(|(piece, step)| (to.clone(), piece, step)));
                }
                Message::ToWorker(ToWorker::Abort { step, .. }) => {
                    self.begun.retain(|(worker, _, number)| !(*worker == to && *number == step.number));
                }
                Message::ToWorker(ToWorker::Forget { pieces }) => {
                    assert!(self.begun.iter().all(|(_, piece, _)| !pieces.contains(piece)), "a piece at work");
                }
                Message::ToWorker(ToWorker::Guard(message)) => match message {
                    ToGuard::Serve { ask, .. } | ToGuard::Restore { ask, .. } => {
                        reports.push((to, GuardReport::Ready { ask, result: Ok(()) }));
                    }
                    ToGuard::Copy { cut, buddy, .. } => {
                        assert!(self.begun.is_empty(), "a step is under way: {:?}", self.begun);
                        let resources = u64::from(to == worker(0));
                        let copied = Copied { resources, ..Copied::default() };
                        reports.push((to.clone(), GuardReport::Copied { cut, result: Ok(copied) }));
                        let kept = (buddy, GuardReport::Kept { cut, of: to, result: Ok(()) });
                        match resources > 0 {
                            true if self.keeps_copies => reports.push(kept),
                            true => self.copies.push(kept),
                            false => {}
                        }
                    }
                    ToGuard::Return { ask, .. } => reports.push((to, GuardReport::Restored { ask, result: Ok(()) })),
                    _ => {}
                },
                Message::ToClient(ToClient::Fetched { step, .. }) => self.fetched.push(step),
                Message::ToClient(ToClient::Reply { result: Ok(Reply::Ran { steps }), .. }) => self.fetched.push(steps),
                Message::ToClient(ToClient::Reply { result: Err(failure), .. }) => self.failures.push(failure),
                _ => {}
            }
        }
        for (worker, report) in reports {
            self.event(SessionEvent::Guarded { worker: &worker, report });
        }
    }

    /// Answers the registrations.
    fn register(&mut self) {
        for (worker, pieces) in std::mem::take(&mut self.registering) {
            self.event(SessionEvent::Registered { worker: &worker, pieces, result: Ok(()) });
        }
    }

    /// So many parts of steps end.
    fn works(&mut self, count: usize) {
        for _ in 0..count {
            let Some((_, piece, step)) = self.begun.pop_front() else { return };
            let tensors = vec![Tensor::scalar(step as f32); self.pieces[&piece]];
            self.event(SessionEvent::Done { piece, step, count: 1, tensors });
        }
    }

    /// 100 ms pass, in which so many parts of steps end.
    fn passes(&mut self, count: usize) {
        self.now += 100 * MS;
        let cluster = self.script.cluster.clone();
        self.event(SessionEvent::Tick { cluster: &cluster });
        self.event(SessionEvent::Look { cluster: &cluster });
        self.works(count);
    }

    /// A second task joins, and its pieces are on their way.
    fn joined() -> Play {
        let mut play = Play::begin();
        (0..20).for_each(|_| play.passes(1));
        play.script.cluster = mesh(2);
        while play.registering.is_empty() {
            assert!(play.now < 10 * SECOND, "no other plan");
            play.passes(1);
        }
        assert_eq!(play.changes, 0, "it waits for its workers");
        play
    }

    /// As [`Play::joined`], and the run continues with the plan of both tasks.
    fn changed() -> Play {
        let mut play = Play::joined();
        play.register();
        assert_eq!(play.changes, 1);
        play.changes_run();
        play
    }

    /// Time passes until the run continues with a plan of both tasks.
    fn changes_run(&mut self) {
        let until = self.now + 10 * SECOND;
        while !self.runs_on(1) {
            assert!(self.now < until, "the run keeps its plan: {:?}", self.notes);
            self.passes(0);
            for _ in 0..40 {
                if !self.runs_on(1) {
                    self.works(1);
                }
            }
        }
    }

    fn runs_on(&self, task: u32) -> bool {
        self.begun.iter().any(|(peer, ..)| *peer == worker(task))
    }

    /// The task is lost.
    fn loses(&mut self, task: u32) {
        let left = self.script.cluster.members().filter(|member| member.task != Task::new("t", task)).cloned();
        self.script.cluster = Cluster::new(left.collect::<Vec<_>>());
        let failure = Failure::new(Code::Unavailable, "it is gone").on_task(&format!("/job:t/task:{task}"));
        self.begun.retain(|(peer, ..)| *peer != worker(task));
        self.registering.retain(|(peer, _)| *peer != worker(task));
        self.event(SessionEvent::Down { peer: &worker(task), failure: &failure });
    }

    /// The run continues to its end, where each step's values have come once and in their order.
    fn ends(mut self) -> Play {
        while self.fetched.last() != Some(&STEPS) {
            assert_eq!(self.failures, [], "{:?}", self.notes);
            assert!(self.now < 300 * SECOND, "after {:?}: {:?}", self.fetched.last(), self.notes);
            self.register();
            self.passes(40);
        }
        assert_eq!(self.fetched, (1..=STEPS).collect::<Vec<_>>());
        self
    }
}

#[test]
fn a_run_under_way_continues_with_the_plan_that_pays_from_a_cut_on() {
    let play = Play::changed();
    let before = play.fetched.len() as u64;
    let begun: Vec<_> = play.first.iter().filter(|(piece, _)| piece.number > 0).map(|(_, first)| first).collect();
    // The next step after the last one that is done, which continues no run there.
    assert_eq!(begun, [&(worker(0), before + 1, false), &(worker(1), before + 1, false)]);
    let play = play.ends();
    assert_eq!((play.script.machine.steps_done(), play.changes), (STEPS, 1), "no step is computed twice");
    // The plan before is gone, and the new one is that of the next run.
    assert_eq!(play.script.machine.plans.len(), 1);
}

#[test]
fn a_run_keeps_its_plan_until_all_pieces_of_the_other_are_there() {
    let mut play = Play::joined();
    let (worker, pieces) = play.registering.pop().unwrap();
    play.register();
    (0..200).for_each(|_| play.passes(1));
    assert_eq!((play.changes, play.begun.iter().all(|(_, piece, _)| piece.number == 0)), (0, true));
    assert!(play.registering.is_empty(), "one change at a time");
    // Cuts may have become rare: the next one is taken at once.
    while !matches!(play.script.machine.guard.as_ref().unwrap().phase, Phase::Steps) {
        play.works(1);
    }
    play.script.machine.guard.as_mut().unwrap().due = 1000 * SECOND;
    play.event(SessionEvent::Registered { worker: &worker, pieces, result: Ok(()) });
    play.changes_run();
    assert_eq!(play.ends().script.machine.steps_done(), STEPS);
}

#[test]
fn a_run_continues_if_a_worker_refuses_its_pieces_of_the_other_plan() {
    let mut play = Play::joined();
    let (worker, pieces) = play.registering.pop().unwrap();
    let full = Failure::new(Code::ResourceExhausted, "no memory");
    play.event(SessionEvent::Registered { worker: &worker, pieces, result: Err(full) });
    play.registering.clear();
    (0..9).for_each(|_| play.passes(40));
    assert_eq!((play.changes, play.begun.iter().all(|(_, piece, _)| piece.number == 0)), (0, true));
    assert_eq!(play.ends().script.machine.steps_done(), STEPS);
}

#[test]
fn a_task_that_is_lost_while_a_plan_for_it_is_prepared_is_not_missed() {
    let mut play = Play::joined();
    play.loses(1);
    let play = play.ends();
    assert_eq!((play.changes, play.script.machine.steps_done()), (0, STEPS), "{:?}", play.notes);
}

#[test]
fn a_task_that_had_joined_and_is_lost_is_left_out() {
    // Right after the change, while the cut of it is on its way, and after later ones.
    for (keeps_copies, passes) in [(true, 0), (false, 0), (true, 30)] {
        let mut play = Play::joined();
        play.register();
        play.keeps_copies = keeps_copies;
        play.changes_run();
        (0..passes).for_each(|_| play.passes(1));
        play.works(5);
        play.loses(1);
        let play = play.ends();
        let place = format!("copies come: {keeps_copies}, {passes}: {:?}", play.notes);
        assert!(play.notes.iter().any(|note| note.contains("continued from")), "{place}");
        // It did not wait until its name was taken again.
        assert!(play.now < 60 * SECOND, "{place}");
    }
}

#[test]
fn the_next_cut_is_taken_at_once_if_a_run_is_to_change() {
    let mut play = Play::joined();
    // Copies have come before; those of the next cut take long.
    play.keeps_copies = false;
    (0..100).for_each(|_| play.passes(3));
    play.register();
    // The next one is due much later.
    play.script.machine.guard.as_mut().unwrap().due = 1000 * SECOND;
    let is_on_its_way = (play.changes, play.runs_on(1), play.copies.len());
    assert_eq!(is_on_its_way, (1, false, 1), "{:?}", play.notes);
    let (buddy, report) = play.copies.pop().unwrap();
    play.event(SessionEvent::Guarded { worker: &buddy, report });
    let kept = play.now;
    play.changes_run();
    assert!(play.now - kept < SECOND / 2, "{}", play.now - kept);
}

#[test]
fn a_run_does_not_change_before_a_first_copy_is_kept() {
    let mut play = Play::begin();
    play.keeps_copies = false;
    (0..40).for_each(|_| play.passes(1));
    play.script.cluster = mesh(2);
    (0..60).for_each(|_| {
        play.passes(1);
        play.register();
    });
    // A cut was taken, whose copies are on their way.
    assert_eq!((play.changes, play.runs_on(1), play.copies.len()), (1, false, 1), "{:?}", play.notes);
    play.loses(1);
    assert_eq!(play.ends().script.machine.steps_done(), STEPS);
}

#[test]
fn a_task_without_which_there_is_no_plan_is_waited_for() {
    [true, false].into_iter().for_each(is_waited_for);
}

fn is_waited_for(comes_back: bool) {
    let mut play = Play::changed();
    play.works(5);
    // The task that is left has no memory for anything.
    let none = Some(meshtf_tensor::device::DeviceMemory { total: 1, free: 1 });
    play.loses(1);
    let mut left = play.script.cluster.members().next().unwrap().clone();
    left.devices[0].capacity.memory = none;
    play.script.cluster = Cluster::new([left]);
    (0..if comes_back { 500 } else { 700 }).for_each(|_| play.passes(1));
    if !comes_back {
        let waited = play.failures.iter().any(|failure| failure.message.contains("did not come back within 60 s"));
        return assert!(waited, "{:?} {:?}", play.failures, play.notes);
    }
    assert!(play.begun.is_empty() && play.failures.is_empty(), "{:?}", play.notes);
    // Another process has taken its name.
    let back =
        Member { peer: Peer::new("other"), incarnation: Incarnation(9), ..mesh(2).members().last().unwrap().clone() };
    let first = mesh(1).members().next().unwrap().clone();
    play.script.cluster = Cluster::new([first, back]);
    assert!(play.ends().notes.iter().any(|note| note.contains("continued from")));
}

#[test]
fn facts_that_vary_change_a_run_ever_more_rarely() {
    let mut play = Play::changed();
    // The second task is fast and slow in turns; no step ends meanwhile but those that a cut waits for.
    let with = |rate: u64| {
        let mut members: Vec<Member> = mesh(2).members().cloned().collect();
        members[1].devices[0].capacity.rates =
            Some(Rates { multiply_adds: rate, bytes: 20_000_000_000, streamed: None });
        Cluster::new(members)
    };
    let mut turns = 0;
    while play.now < 300 * SECOND {
        let is_slow = play.script.machine.plans.iter().all(|plan| plan.parts.len() > 1);
        play.script.cluster = with(if is_slow { 50_000_000 } else { 50_000_000_000 });
        let before = play.changes;
        play.register();
        play.passes(0);
        if play.script.machine.waits_to_change() {
            play.passes(64);
        }
        turns += play.changes - before;
    }
    // After pauses of 10, 20, 40, 80 and 160 s at least.
    assert!((2..=5).contains(&turns), "{turns}");
    assert!(play.failures.is_empty());
}

#[test]
fn what_keeps_state_is_not_left_behind_for_a_task_of_the_same_job() {
    let text = br#"{ "version": 1, "nodes": {
        "q": { "op": "FIFOQueueV2", "attrs": { "component_types": ["float32"], "shapes": [[]] }, "device": "/job:t" },
        "n": { "op": "QueueSizeV2", "inputs": ["q"], "device": "/job:t" },
        "x": { "op": "Fill", "inputs": [[64, 64], 1.0] }, "y": { "op": "Sum", "inputs": ["x", 0] } } }"#;
    let graph = Graph::new(read(text).unwrap().nodes).unwrap();
    let member = |name: &str, index: u32| {
        let task = Task::new(name, index);
        let devices = vec![DeviceInfo::named(task.device(DeviceKind::Cpu, 0))];
        Member { devices, ..Member::bare(task, Peer::new(format!("{name} {index}")), Incarnation(1)) }
    };
    let planned = |cluster: &Cluster, fetch: &str| {
        let default_device = Task::new("master", 0).device(DeviceKind::Cpu, 0);
        let by_cost = Some(ByCost::default());
        let options = PlanOptions { default_device, soft_placement: false, by_cost };
        let signature = Signature { fetches: vec![fetch.into()], ..Signature::default() };
        plan(&graph, &cluster.facts(), &signature, &options).unwrap()
    };
    let before = Cluster::new([member("master", 0), member("t", 1)]);
    let after = Cluster::new([member("master", 0), member("t", 0), member("t", 1)]);
    let stays = |fetch: &str, cluster: &Cluster| {
        Placed::of(&planned(&before, fetch), &graph).leaves_state(&planned(cluster, fetch), &graph)
    };
    assert!(stays("n", &before) && stays("y", &after));
    assert!(!stays("n", &after));
}
