//! The machine of a session in isolation: events with invented times in, messages out. There is no lock, no clock and no
//! thread.

mod adapting;
mod fed;
mod guarded;

use meshtf_graph::plan::{PlanOptions, plan};
use meshtf_graph::read;
use meshtf_tensor::device::{DeviceKind, DeviceName};

use super::*;
use crate::protocol::{DeviceInfo, Member, Message};

impl Machine {
    /// How many runs are under way.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }
}

const SECOND: Nanos = 1_000_000_000;
const MS: Nanos = 1_000_000;

/// `y` on task 1 of `x` on task 0, which is fed.
const GRAPH: &str = r#"{ "version": 1, "nodes": {
    "x": { "op": "Placeholder", "attrs": { "dtype": "int32" }, "device": "/job:t/task:0" },
    "w": { "op": "Neg", "inputs": ["x"], "device": "/job:t/task:0" },
    "y": { "op": "Neg", "inputs": ["w"], "device": "/job:t/task:1" } } }"#;

fn worker(index: u32) -> Peer {
    Peer::new(format!("worker {index}"))
}

fn cluster() -> Cluster {
    Cluster::new((0..2).map(|index| {
        let task = Task::new("t", index);
        let name: DeviceName = task.device(DeviceKind::Cpu, 0);
        let device = DeviceInfo::named(name);
        Member { devices: vec![device], ..Member::bare(task, worker(index), Incarnation(index.into())) }
    }))
}

/// A machine, and all of its messages, one per line.
struct Script {
    machine: Machine,
    cluster: Cluster,
    sent: Vec<String>,
}

impl Script {
    /// A session that was opened at `now`.
    fn new(now: Nanos) -> Script {
        let graph = Graph::new(read(GRAPH.as_bytes()).unwrap().nodes).unwrap();
        let (client, options) = (Peer::new("client"), SessionOptions::default());
        let machine = Machine::new(SessionId(7), client, graph, options, MasterLimits::default(), now);
        Script { machine, cluster: cluster(), sent: Vec::new() }
    }

    /// Passes an event to the machine; returns the messages that follow.
    fn on(&mut self, event: SessionEvent<'_>, now: Nanos) -> Vec<(Peer, Message)> {
        assert!(self.machine.handle(event, now).is_none(), "something is to be planned");
        self.sent()
    }

    fn sent(&mut self) -> Vec<(Peer, Message)> {
        let mut outgoing = Sends::new();
        self.machine.take_outgoing(&mut outgoing);
        self.sent.extend(outgoing.iter().map(|(to, envelope)| format!("{to}: {envelope:?}")));
        outgoing.into_iter().map(|(to, envelope)| (to, envelope.message)).collect()
    }

    /// Makes and registers the plan for `y`: its number and its pieces, by worker.
    fn prepare(&mut self, now: Nanos) -> (u32, Vec<PieceId>) {
        let signature = Signature { feeds: vec!["x".into()], fetches: vec!["y".into()], ..Signature::default() };
        let (request, cluster) = (RequestId(1), self.cluster.clone());
        let asked = SessionEvent::Prepare { request, signature, alone: None, cluster: &cluster };
        let of = self.machine.handle(asked, now).expect("nothing is planned yet");
        assert!(self.sent().is_empty(), "a plan is not there before it is made");
        let options = PlanOptions {
            default_device: Task::new("t", 0).device(DeviceKind::Cpu, 0),
            soft_placement: false,
            by_cost: None,
        };
        let plan = plan(of.graph(), &cluster.facts(), &of.signature, &options).map_err(Failure::from);
        let registers = self.on(SessionEvent::Planned { request, of, plan, cluster: &cluster }, now);
        assert_eq!(registers.len(), 2, "{registers:?}");
        let mut all = Vec::new();
        for (i, (to, message)) in registers.into_iter().enumerate() {
            let Message::ToWorker(ToWorker::Register { pieces, .. }) = message else { panic!("{message:?}") };
            let pieces: Vec<PieceId> = pieces.into_iter().map(|(id, _)| id).collect();
            all.extend(&pieces);
            let answers = self.on(SessionEvent::Registered { worker: &to, pieces, result: Ok(()) }, now);
            assert_eq!(answers.len(), i, "the answer waits for both workers");
            if let Some((to, answer)) = answers.into_iter().next() {
                assert_eq!(to.as_str(), "client");
                let Message::ToClient(ToClient::Reply { id: RequestId(1), result }) = answer else { panic!() };
                let Ok(Reply::Prepared { plan, .. }) = result else { panic!("{result:?}") };
                return (plan, all);
            }
        }
        panic!("the plan was not answered");
    }

    fn run(&mut self, plan: u32, steps: u64, watched: bool, now: Nanos) -> Vec<(Peer, Message)> {
        let ask = Ask { plan, steps, every: 0, watched, feeds: vec![Tensor::scalar(7i32)] };
        let cluster = self.cluster.clone();
        self.on(SessionEvent::Run { request: RequestId(2), ask, cluster: &cluster, is_comparing: false }, now)
    }

    /// Both pieces are done with a step.
    fn done(&mut self, pieces: &[PieceId], step: u64, now: Nanos) -> Vec<(Peer, Message)> {
        let mut sent = self.on(SessionEvent::Done { piece: pieces[0], step, count: 1, tensors: vec![] }, now);
        let is_progress =
            |(_, message): &(Peer, Message)| matches!(message, Message::ToClient(ToClient::Progress { .. }));
        assert!(sent.iter().all(is_progress), "a step is not over before both have done their part: {sent:?}");
        sent.extend(
            self.on(SessionEvent::Done { piece: pieces[1], step, count: 1, tensors: vec![Tensor::scalar(7i32)] }, now),
        );
        sent
    }
}

/// The steps that workers are asked to start: the worker, the first step and their number.
fn started(sent: &[(Peer, Message)]) -> Vec<(&str, u64, u64)> {
    let starts = sent.iter().filter_map(|(to, message)| match message {
        Message::ToWorker(ToWorker::Start { first, count, .. }) => Some((to.as_str(), *first, *count)),
        _ => None,
    });
    starts.collect()
}

fn told(sent: &[(Peer, Message)]) -> Vec<u64> {
    let told = sent.iter().filter_map(|(_, message)| match message {
        Message::ToClient(ToClient::Progress { id: RequestId(2), steps, .. }) => Some(*steps),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_window_of_steps_is_open_and_moves_by_half() {
    let mut script = Script::new(0);
    let (plan, pieces) = script.prepare(0);
    let sent = script.run(plan, 100, false, 0);
    assert_eq!(started(&sent), [("worker 0", 1, 32), ("worker 1", 1, 32)]);
    for step in 1..16 {
        assert_eq!(script.done(&pieces, step, 0), [], "step {step}");
    }
    let sent = script.done(&pieces, 16, 0);
    assert_eq!(started(&sent), [("worker 0", 33, 16), ("worker 1", 33, 16)]);
    // A step that is done before earlier ones opens nothing.
    for step in 18..40 {
        assert_eq!(script.done(&pieces, step, 0), [], "step {step}");
    }
    let sent = script.done(&pieces, 17, 0);
    assert_eq!(started(&sent), [("worker 0", 49, 23), ("worker 1", 49, 23)]);
}

#[test]
fn a_report_of_several_steps_ends_each_of_them() {
    let mut script = Script::new(0);
    let (plan, pieces) = script.prepare(0);
    script.run(plan, 100, false, 0);
    let done = |script: &mut Script, piece: PieceId, step: u64, count: u64| {
        let sent = script.on(SessionEvent::Done { piece, step, count, tensors: vec![] }, 0);
        (started(&sent).first().map(|&(_, first, count)| (first, count)), script.machine.steps_done())
    };
    assert_eq!(done(&mut script, pieces[0], 10, 10), (None, 0));
    // Steps that the piece has reported before count once, and a report cannot be of more than those that are open.
    assert_eq!(done(&mut script, pieces[1], 4, 4), (None, 4));
    assert_eq!(done(&mut script, pieces[1], 8, u64::MAX), (None, 8));
    assert_eq!(done(&mut script, pieces[1], 9, 0), (None, 9));
    assert_eq!(done(&mut script, pieces[0], 32, 22), (None, 9));
    assert_eq!(done(&mut script, pieces[1], 40, 31), (None, 9), "it was not started");
    assert_eq!(done(&mut script, pieces[1], 16, 7), (Some((33, 16)), 16));
    assert_eq!(done(&mut script, pieces[1], 32, 16), (Some((49, 16)), 32));
}

/// The number of steps that a worker is asked to start first, and whether it may report their ends together.
fn first_start(sent: &[(Peer, Message)]) -> (u64, bool) {
    let starts = sent.iter().find_map(|(_, message)| match message {
        Message::ToWorker(ToWorker::Start { count, together, .. }) => Some((*count, *together)),
        _ => None,
    });
    starts.expect("a start")
}

#[test]
fn a_piece_that_is_alone_may_be_far_ahead_if_nobody_waits_for_each_step() {
    // On one task, and on both; of a fetch, values would wait on the way.
    for (node, is_fetched, every, watched, expected) in [
        ("w", false, 0, false, (1024, true)),
        ("w", true, 0, false, (32, true)),
        ("w", false, 1, false, (32, false)),
        ("w", false, 0, true, (32, false)),
        ("y", false, 0, false, (32, true)),
        ("y", false, 0, true, (32, false)),
    ] {
        let mut script = Script::new(0);
        let names = |holds: bool| if holds { vec![node.to_owned()] } else { Vec::new() };
        let (feeds, fetches, targets) = (vec!["x".into()], names(is_fetched), names(!is_fetched));
        let signature = Signature { feeds, fetches, targets, ..Signature::default() };
        let (plan, pieces) = script.planned_for(signature, false, 0);
        let ask = Ask { plan, steps: 4000, every, watched, feeds: vec![Tensor::scalar(7i32)] };
        let cluster = script.cluster.clone();
        let sent =
            script.on(SessionEvent::Run { request: RequestId(2), ask, cluster: &cluster, is_comparing: false }, 0);
        assert_eq!(first_start(&sent), expected, "{node} {is_fetched} {every} {watched}");
        if let ([piece], false, 0, false) = (&pieces[..], is_fetched, every, watched) {
            let done = |step| SessionEvent::Done { piece: *piece, step, count: 512, tensors: vec![] };
            assert_eq!(started(&script.on(done(512), 0)), [("worker 0", 1025, 512)]);
            assert_eq!(started(&script.on(done(1024), 0)), [("worker 0", 1537, 512)]);
        }
    }
}

#[test]
fn a_worker_is_told_which_steps_continue_a_run() {
    let continues = |sent: &[(Peer, Message)]| -> Vec<bool> {
        let starts = sent.iter().filter_map(|(_, message)| match message {
            Message::ToWorker(ToWorker::Start { continues, .. }) => Some(*continues),
            _ => None,
        });
        starts.collect()
    };
    let mut script = Script::new(0);
    let (plan, pieces) = script.prepare(0);
    assert_eq!(continues(&script.run(plan, 48, false, 0)), [false; 2]);
    let later: Vec<bool> = (1..=48).flat_map(|step| continues(&script.done(&pieces, step, 0))).collect();
    assert_eq!(later, [true; 2]);
    assert_eq!(continues(&script.run(plan, 1, false, 0)), [false; 2], "the next run is another");
}

#[test]
fn who_watches_a_run_is_told_every_100_ms_how_far_it_is() {
    let begun = 5 * SECOND;
    // When each step is done after the run began, and the step counts that the client is sent then.
    let times: [(Nanos, &[u64]); 7] = [
        (1, &[]),
        (100 * MS - 1, &[]),
        // The first worker's part of the third step is done, which counts once it is whole.
        (100 * MS, &[2]),
        (100 * MS, &[]),
        (200 * MS - 1, &[]),
        (250 * MS, &[5]),
        // The next is due 100 ms after the report, not after it was due.
        (345 * MS, &[]),
    ];
    for watched in [true, false] {
        let mut script = Script::new(0);
        let (plan, pieces) = script.prepare(SECOND);
        script.run(plan, 20, watched, begun);
        for ((after, expected), step) in times.iter().zip(1..) {
            let sent = script.done(&pieces, step, begun + after);
            let expected = if watched { *expected } else { &[] };
            assert_eq!(told(&sent), expected, "step {step}, {after} ns after the run began, watched: {watched}");
        }
    }
}

#[test]
fn a_session_is_idle_from_when_its_client_last_asked() {
    let mut script = Script::new(2 * SECOND);
    let ms = |script: &Script, now| {
        let status = script.machine.status(now);
        (status.age_ms, status.idle_ms, status.runs, status.steps)
    };
    assert_eq!(ms(&script, 2 * SECOND), (0, 0, 0, 0));
    assert_eq!(ms(&script, 5 * SECOND), (3000, 3000, 0, 0));
    let (plan, pieces) = script.prepare(6 * SECOND);
    assert_eq!((ms(&script, 7 * SECOND), script.machine.used()), ((5000, 1000, 0, 0), 6 * SECOND));
    script.run(plan, 2, false, 8 * SECOND);
    assert_eq!(ms(&script, 8 * SECOND), (6000, 0, 1, 0));
    // Workers' reports do not count as requests of the client.
    script.done(&pieces, 1, 9 * SECOND);
    assert_eq!(ms(&script, 9 * SECOND), (7000, 1000, 1, 1));
    script.done(&pieces, 2, 10 * SECOND);
    assert_eq!((ms(&script, 10 * SECOND), script.machine.is_idle()), ((8000, 2000, 0, 2), true));
    // Time does not go back if another thread read the clock before.
    assert_eq!(ms(&script, SECOND), (0, 0, 0, 2));
}

#[test]
fn a_worker_that_is_gone_fails_the_run_once_and_the_other_is_told() {
    let mut script = Script::new(0);
    let (plan, pieces) = script.prepare(0);
    script.run(plan, 4, false, 0);
    let failure = Failure::new(Code::Unavailable, "task t/1 is gone");
    let sent = script.on(SessionEvent::Down { peer: &worker(1), failure: &failure }, 0);
    let aborted: Vec<&str> = sent
        .iter()
        .filter(|(_, message)| matches!(message, Message::ToWorker(ToWorker::Abort { .. })))
        .map(|(to, _)| to.as_str())
        .collect();
    assert!(aborted.contains(&"worker 0"), "{sent:?}");
    let answers: Vec<&Message> = sent.iter().filter(|(to, _)| to.as_str() == "client").map(|(_, m)| m).collect();
    let [Message::ToClient(ToClient::Reply { id: RequestId(2), result: Err(why) })] = answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(why.code, Code::Unavailable);
    // A late message of the other worker belongs to no run.
    assert_eq!(script.on(SessionEvent::Done { piece: pieces[0], step: 1, count: 1, tensors: vec![] }, 0), []);
    assert_eq!(script.machine.runs(), 0);
}

#[test]
fn a_step_that_cannot_be_sent_names_the_task_that_is_gone() {
    let mut script = Script::new(0);
    let (plan, _) = script.prepare(0);
    script.run(plan, 4, false, 0);
    let failure = Failure::new(Code::Unavailable, "12D3KooW is not connected");
    let sent = script.on(SessionEvent::Unsent { to: &worker(1), about: Subject::Step(1), failure: &failure }, 0);
    let answer = sent.iter().find_map(|(to, message)| match message {
        Message::ToClient(ToClient::Reply { result: Err(why), .. }) if to.as_str() == "client" => Some(why),
        _ => None,
    });
    let Some(why) = answer else { panic!("{sent:?}") };
    assert_eq!((why.code, &*why.message), (Code::Unavailable, "task /job:t/task:1 is gone: its connection ended"));
}

#[test]
fn the_same_events_at_the_same_times_send_the_same() {
    let play = || {
        let mut script = Script::new(1);
        let (plan, pieces) = script.prepare(2);
        script.run(plan, 40, true, 3);
        for step in 1..=30 {
            script.done(&pieces, step, step * 40 * MS);
        }
        let failure = Failure::new(Code::Cancelled, "the client closed the session");
        script.on(SessionEvent::End { failure: &failure }, 2 * SECOND);
        script.sent
    };
    let (first, second) = (play(), play());
    // Two of Register, one of each answer, two of Start, some of Progress, and the end.
    assert!(first.len() > 10, "{first:#?}");
    assert_eq!(first, second);
}
