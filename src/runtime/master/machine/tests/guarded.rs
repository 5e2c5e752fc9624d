//! Guarded sessions: no run waits for a cut that does not come, and the journal does not grow without one.

mod again;

use std::time::Duration;

use super::*;
use crate::protocol::guard::{Copied, Cut, ToGuard};

/// The way of a cut that the messages of a test go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Until {
    Serving,
    Copying,
    Sending,
    Complete,
}

/// A session with a guard, and a process for each task.
fn asleep() -> Script {
    let graph = Graph::new(read(GRAPH.as_bytes()).unwrap().nodes).unwrap();
    let options = SessionOptions { guard: Some(Duration::from_secs(1)), ..SessionOptions::default() };
    let machine = Machine::new(SessionId(7), Peer::new("client"), graph, options, MasterLimits::default(), 0);
    Script { machine, cluster: cluster(), sent: Vec::new() }
}

/// The same, of which a copy is taken before its first step.
fn guarded() -> Script {
    let mut script = asleep();
    // The first cut is due at once.
    let guard = script.machine.guard.as_mut().unwrap();
    guard.wake();
    script
}

/// The messages about the guard.
fn asked(sent: &[(Peer, Message)]) -> Vec<(Peer, ToGuard)> {
    let asked = sent.iter().filter_map(|(to, message)| match message {
        Message::ToWorker(ToWorker::Guard(message)) => Some((to.clone(), message.clone())),
        _ => None,
    });
    asked.collect()
}

/// The answers to the client.
fn answers(sent: &[(Peer, Message)]) -> Vec<&Result<Reply>> {
    let answers = sent.iter().filter_map(|(_, message)| match message {
        Message::ToClient(ToClient::Reply { result, .. }) => Some(result),
        _ => None,
    });
    answers.collect()
}

impl Guard {
    /// The first cut is due at once, and the first run waits for it.
    fn wake(&mut self) {
        (self.is_exposed, self.broken, self.due) = (false, None, 0);
    }
}

impl Script {
    /// All tasks are there again: time passes, until the way back from a loss ends. Returns all messages.
    fn back(&mut self, now: Nanos) -> Vec<(Peer, Message)> {
        let cluster = self.cluster.clone();
        let mut sent = Vec::new();
        let mut place = 0;
        for _ in 0..4 {
            let mut asked = self.machine.handle(SessionEvent::Tick { cluster: &cluster }, now);
            while let Some(of) = asked.take() {
                let options = PlanOptions {
                    default_device: Task::new("t", 0).device(DeviceKind::Cpu, 0),
                    soft_placement: false,
                    by_cost: None,
                };
                let plan = plan(of.graph(), &cluster.facts(), &of.signature, &options).map_err(Failure::from);
                let event = match of.request {
                    Some(request) => SessionEvent::Planned { request, of, plan, cluster: &cluster },
                    None => SessionEvent::Replanned { of, plan, cluster: &cluster },
                };
                asked = self.machine.handle(event, now);
            }
            sent.extend(self.sent());
            while let Some((to, message)) = sent.get(place).cloned() {
                place += 1;
                let answer = match message {
                    Message::ToWorker(ToWorker::Register { pieces, .. }) => {
                        let pieces = pieces.into_iter().map(|(id, _)| id).collect();
                        SessionEvent::Registered { worker: &to, pieces, result: Ok(()) }
                    }
                    Message::ToWorker(ToWorker::Guard(message)) => {
                        let (worker, report) = match message {
                            ToGuard::Serve { ask, .. } | ToGuard::Restore { ask, .. } => {
                                (&to, GuardReport::Ready { ask, result: Ok(()) })
                            }
                            ToGuard::Return { ask, .. } => (&to, GuardReport::Restored { ask, result: Ok(()) }),
                            ToGuard::GiveBack { ask, to: ref back, .. } => {
                                let report = GuardReport::Restored { ask, result: Ok(()) };
                                let back = back.clone();
                                sent.extend(self.report(&back, report, now));
                                continue;
                            }
                            _ => continue,
                        };
                        SessionEvent::Guarded { worker, report }
                    }
                    _ => continue,
                };
                sent.extend(self.on(answer, now));
            }
        }
        sent
    }

    /// The plan for `fetch` of fed `x`, of the session's graph or of one of its own.
    pub fn planned(&mut self, fetch: &str, is_alone: bool, now: Nanos) -> (u32, Vec<PieceId>) {
        let signature = Signature { feeds: vec!["x".into()], fetches: vec![fetch.into()], ..Signature::default() };
        self.planned_for(signature, is_alone, now)
    }

    /// The same for a signature.
    pub fn planned_for(&mut self, signature: Signature, is_alone: bool, now: Nanos) -> (u32, Vec<PieceId>) {
        let (request, cluster) = (RequestId(1), self.cluster.clone());
        let graph = || Graph::new(read(GRAPH.as_bytes()).unwrap().nodes).unwrap();
        let alone = is_alone.then(|| AloneGraph { graph: graph(), constants: Stock::default() });
        let asked = SessionEvent::Prepare { request, signature, alone, cluster: &cluster };
        let of = self.machine.handle(asked, now).expect("nothing is planned yet");
        let options = PlanOptions {
            default_device: Task::new("t", 0).device(DeviceKind::Cpu, 0),
            soft_placement: false,
            by_cost: None,
        };
        let plan = plan(of.graph(), &cluster.facts(), &of.signature, &options).map_err(Failure::from);
        let mut sent = self.on(SessionEvent::Planned { request, of, plan, cluster: &cluster }, now);
        let mut all = Vec::new();
        for (to, message) in std::mem::take(&mut sent) {
            let Message::ToWorker(ToWorker::Register { pieces, .. }) = message else { continue };
            let pieces: Vec<PieceId> = pieces.into_iter().map(|(id, _)| id).collect();
            all.extend(&pieces);
            sent.extend(self.on(SessionEvent::Registered { worker: &to, pieces, result: Ok(()) }, now));
        }
        let prepared = sent.iter().find_map(|(_, message)| match message {
            Message::ToClient(ToClient::Reply { result: Ok(Reply::Prepared { plan, .. }), .. }) => Some(*plan),
            _ => None,
        });
        (prepared.expect("the plan is registered"), all)
    }

    fn report(&mut self, worker: &Peer, report: GuardReport, now: Nanos) -> Vec<(Peer, Message)> {
        self.on(SessionEvent::Guarded { worker, report }, now)
    }

    /// Answers for the workers as far as a cut goes; returns all messages.
    fn answer_guard(&mut self, mut sent: Vec<(Peer, Message)>, until: Until, now: Nanos) -> Vec<(Peer, Message)> {
        let mut place = 0;
        let mut buddies: Vec<(Peer, Cut, Peer)> = Vec::new();
        while place < sent.len() || !buddies.is_empty() {
            if place == sent.len() {
                let (worker, cut, of) = buddies.remove(0);
                sent.extend(self.report(&worker, GuardReport::Kept { cut, of, result: Ok(()) }, now));
                continue;
            }
            let (to, message) = sent[place].clone();
            place += 1;
            let Message::ToWorker(ToWorker::Guard(message)) = message else { continue };
            match message {
                ToGuard::Serve { ask, .. } if until != Until::Serving => {
                    sent.extend(self.report(&to, GuardReport::Ready { ask, result: Ok(()) }, now));
                }
                ToGuard::Copy { cut, buddy, .. } if until != Until::Copying => {
                    // Task 1 has no state.
                    let resources = u64::from(to != worker(1));
                    let copied = Copied { resources, ..Copied::default() };
                    sent.extend(self.report(&to, GuardReport::Copied { cut, result: Ok(copied) }, now));
                    if until == Until::Complete && resources > 0 {
                        buddies.push((buddy, cut, to));
                    }
                }
                _ => {}
            }
        }
        sent
    }

    /// Time passes and the three steps of the run are done: the messages about the guard that follow.
    fn next_cut(&mut self, pieces: &[PieceId], now: Nanos) -> Vec<(Peer, ToGuard)> {
        let cluster = self.cluster.clone();
        let mut sent = self.on(SessionEvent::Tick { cluster: &cluster }, now);
        (1..=3).for_each(|step| sent.extend(self.done(pieces, step, now)));
        asked(&sent)
    }

    fn journal(&self) -> usize {
        self.machine.guard.as_ref().map_or(0, |guard| guard.journal.iter().count())
    }
}

#[test]
fn no_copy_is_taken_before_the_steps_have_run_for_a_while() {
    let mut script = asleep();
    let (plan, pieces) = script.planned("y", false, 0);
    let cluster = script.cluster.clone();
    // A run of one step alone.
    let sent = script.run(plan, 1, false, SECOND);
    assert_eq!(started(&sent), [("worker 0", 1, 1), ("worker 1", 1, 1)]);
    script.done(&pieces, 1, SECOND);
    let sent = script.on(SessionEvent::Tick { cluster: &cluster }, 100 * SECOND);
    assert_eq!((asked(&sent), script.journal()), (vec![], 0));
    // From the second on they are the steps of a training, even if each is a run of its own.
    for (steps, step) in [(1, 2), (3, 2)] {
        let mut script = asleep();
        let (plan, pieces) = script.planned("y", false, 0);
        script.run(plan, 1, false, SECOND);
        script.done(&pieces, 1, SECOND);
        let sent = script.run(plan, steps, false, 200 * SECOND);
        assert_eq!(started(&sent), [("worker 0", step, steps), ("worker 1", step, steps)]);
        assert!(!first_start(&sent).1, "a cut waits for the end of each step");
        let sent = script.on(SessionEvent::Tick { cluster: &cluster }, 201 * SECOND - 1);
        assert_eq!(asked(&sent), []);
        let sent = script.on(SessionEvent::Tick { cluster: &cluster }, 201 * SECOND);
        assert_eq!(asked(&sent).len(), 2, "{sent:?}");
    }
}

#[test]
fn a_guard_of_any_distance_takes_a_cut() {
    let mut script = guarded();
    script.machine.guard = Some(Guard::new(10_000 * SECOND));
    script.machine.guard.as_mut().unwrap().wake();
    let (plan, pieces) = script.planned("y", false, 0);
    let sent = script.run(plan, 3, false, 0);
    script.answer_guard(sent, Until::Complete, 0);
    assert_eq!(script.next_cut(&pieces, 9_999 * SECOND), []);
}

#[test]
fn a_lost_task_leaves_no_cut_that_waits_for_it() {
    for until in [Until::Serving, Until::Copying, Until::Sending] {
        let mut script = guarded();
        let (plan, _) = script.planned("y", false, 0);
        let sent = script.run(plan, 3, false, 0);
        script.answer_guard(sent, until, 0);
        let failure = Failure::new(Code::Unavailable, "task t/1 is gone");
        let sent = script.on(SessionEvent::Down { peer: &worker(1), failure: &failure }, SECOND);
        assert!(matches!(answers(&sent)[..], [Err(_)]), "{until:?}: {sent:?}");
        // Another process holds the task; the client makes its requests again.
        let task = Task::new("t", 1);
        let device = DeviceInfo::named(task.device(DeviceKind::Cpu, 0));
        let other = Member { devices: vec![device], ..Member::bare(task, Peer::new("other"), Incarnation(9)) };
        let stays = script.cluster.members().find(|member| member.task == Task::new("t", 0)).cloned().unwrap();
        script.cluster = Cluster::new([stays, other]);
        let (plan, _) = script.planned("y", false, 2 * SECOND);
        let sent = script.run(plan, 3, false, 2 * SECOND);
        let sent = script.answer_guard(sent, Until::Complete, 2 * SECOND);
        assert_eq!(started(&sent), [("worker 0", 4, 3), ("other", 4, 3)], "{until:?}: {sent:?}");
    }
}

/// As [`GRAPH`], with `z` on task 2.
const THREE: &str = r#"{ "version": 1, "nodes": {
    "x": { "op": "Placeholder", "attrs": { "dtype": "int32" }, "device": "/job:t/task:0" },
    "w": { "op": "Neg", "inputs": ["x"], "device": "/job:t/task:0" },
    "y": { "op": "Neg", "inputs": ["w"], "device": "/job:t/task:1" },
    "z": { "op": "Neg", "inputs": ["x"], "device": "/job:t/task:2" } } }"#;

/// A session of [`THREE`], with three tasks.
fn of_three() -> Script {
    let mut script = guarded();
    script.machine.graph = Arc::new(Graph::new(read(THREE.as_bytes()).unwrap().nodes).unwrap());
    script.cluster = Cluster::new((0..3).map(|index| member(index, worker(index), index.into())));
    script
}

fn member(index: u32, peer: Peer, incarnation: u64) -> Member {
    let task = Task::new("t", index);
    let device = DeviceInfo::named(task.device(DeviceKind::Cpu, 0));
    Member { devices: vec![device], ..Member::bare(task, peer, Incarnation(incarnation)) }
}

#[test]
fn a_run_that_began_while_a_task_was_lost_gets_the_plan_of_the_tasks_that_are_there() {
    let mut script = of_three();
    let (beside, _) = script.planned("z", false, 0);
    let (plan, _) = script.planned("y", false, 0);
    let sent = script.run(plan, 3, false, 0);
    let sent = script.answer_guard(sent, Until::Complete, 0);
    assert_eq!(started(&sent), [("worker 0", 1, 3), ("worker 1", 1, 3)], "{sent:?}");
    // Task 1 is lost, a run of task 2 alone is asked for, and then task 2 is lost.
    let failure = Failure::new(Code::Unavailable, "it is gone");
    script.on(SessionEvent::Down { peer: &worker(1), failure: &failure }, SECOND);
    let (ask, cluster) = (
        Ask { plan: beside, steps: 1, every: 0, watched: false, feeds: vec![Tensor::scalar(7i32)] },
        script.cluster.clone(),
    );
    let sent =
        script.on(SessionEvent::Run { request: RequestId(9), ask, cluster: &cluster, is_comparing: false }, SECOND);
    assert_eq!((started(&sent), answers(&sent).len()), (vec![], 0), "it waits");
    script.on(SessionEvent::Down { peer: &worker(2), failure: &failure }, SECOND);
    script.cluster =
        Cluster::new([member(0, worker(0), 0), member(1, Peer::new("other 1"), 8), member(2, Peer::new("other 2"), 9)]);
    let sent = script.back(2 * SECOND);
    let mut begun = started(&sent);
    begun.sort_unstable();
    let tasks: Vec<&str> = begun.iter().map(|(peer, ..)| *peer).collect();
    assert_eq!(tasks, ["other 1", "other 2", "worker 0"], "{sent:?}");
}

#[test]
fn a_plan_on_a_task_of_which_no_copy_was_taken_waits_for_one() {
    let mut script = of_three();
    let (plan, _) = script.planned("y", false, 0);
    let sent = script.run(plan, 3, false, 0);
    // It is there before the tasks of the other copy.
    let (late, _) = script.planned("z", false, 0);
    script.answer_guard(sent, Until::Complete, 0);
    let (feeds, cluster) = (vec![Tensor::scalar(7i32)], script.cluster.clone());
    let ask = Ask { plan: late, steps: 1, every: 0, watched: false, feeds };
    let sent =
        script.on(SessionEvent::Run { request: RequestId(9), ask, cluster: &cluster, is_comparing: false }, SECOND);
    assert_eq!(started(&sent), [], "{sent:?}");
    assert!(!asked(&sent).is_empty(), "{sent:?}");
}

#[test]
fn a_cut_does_not_wait_for_ever() {
    for (until, seconds) in [(Until::Serving, 60), (Until::Copying, 60), (Until::Sending, 600)] {
        let mut script = guarded();
        let (plan, pieces) = script.planned("y", false, 0);
        let sent = script.run(plan, 3, false, 0);
        let mut sent = script.answer_guard(sent, until, 0);
        let cluster = script.cluster.clone();
        let before = script.on(SessionEvent::Tick { cluster: &cluster }, seconds * SECOND - 1);
        assert_eq!(before, [], "{until:?}");
        sent.extend(script.on(SessionEvent::Tick { cluster: &cluster }, seconds * SECOND));
        assert_eq!(started(&sent), [("worker 0", 1, 3), ("worker 1", 1, 3)], "{until:?}");
        // The next cut is taken later.
        let later = script.next_cut(&pieces, (seconds + 600) * SECOND);
        assert!(!later.is_empty(), "{until:?}");
    }
}

#[test]
fn a_part_on_its_way_is_lost_with_the_link() {
    let mut script = guarded();
    let (plan, pieces) = script.planned("y", false, 0);
    let sent = script.run(plan, 3, false, 0);
    script.answer_guard(sent, Until::Sending, 0);
    let why = "the wire was cut".to_owned();
    // Steps up to 0: none of them needs the link.
    script.on(SessionEvent::PeerLost { worker: &worker(0), until: 0, peer: worker(1), why }, 0);
    assert!(!script.next_cut(&pieces, 3 * SECOND).is_empty());
}

#[test]
fn only_a_buddy_confirms_a_part() {
    let mut script = guarded();
    let (plan, _) = script.planned("y", false, 0);
    let sent = script.run(plan, 3, false, 0);
    script.answer_guard(sent, Until::Sending, 0);
    let kept = |of| GuardReport::Kept { cut: 1, of: worker(of), result: Ok(()) };
    for (from, of) in [(0, 0), (1, 1), (0, 1)] {
        assert_eq!(script.report(&worker(from), kept(of), 0), [], "{from} of {of}");
    }
    let complete = script.report(&worker(1), kept(0), 0);
    assert_eq!(asked(&complete).len(), 2, "{complete:?}");
}

#[test]
fn a_session_without_shared_plans_runs() {
    let mut script = guarded();
    let (plan, pieces) = script.planned("y", true, 0);
    let sent = script.run(plan, 1, false, 0);
    let sent = script.answer_guard(sent, Until::Complete, 0);
    assert_eq!(started(&sent), [("worker 0", 1, 1), ("worker 1", 1, 1)], "{sent:?}");
    let done = script.done(&pieces, 1, SECOND);
    assert!(matches!(answers(&done)[..], [Ok(Reply::Ran { .. })]), "{done:?}");
    // Nor does time take a cut of no task.
    let cluster = script.cluster.clone();
    for seconds in [10, 700, 2000] {
        let sent = script.on(SessionEvent::Tick { cluster: &cluster }, seconds * SECOND);
        assert_eq!(asked(&sent), [], "after {seconds} s");
    }
}

#[test]
fn the_journal_of_a_session_on_one_task_does_not_grow() {
    let mut script = guarded();
    let only = script.cluster.members().find(|member| member.task == Task::new("t", 0)).cloned().unwrap();
    script.cluster = Cluster::new([only]);
    let (plan, pieces) = script.planned("w", false, 0);
    for step in 1..=10 {
        let sent = script.run(plan, 1, false, step);
        assert_eq!(started(&sent), [("worker 0", step, 1)]);
        let sent = script
            .on(SessionEvent::Done { piece: pieces[0], step, count: 1, tensors: vec![Tensor::scalar(7i32)] }, step);
        assert!(matches!(answers(&sent)[..], [Ok(Reply::Ran { .. })]), "{sent:?}");
        assert_eq!(script.journal(), 0, "step {step}");
    }
}
