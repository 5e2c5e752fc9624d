//! A session that is placed by cost, and a task that joins.

mod within;

use meshtf_graph::plan::{ByCost, PlaceBy};
use meshtf_tensor::device::{Capacity, Rates};
use meshtf_tensor::failure::Reason;

use super::super::adapting::{Adapting, Placed};
use super::*;

/// Two products that need not be on one device.
const BRANCHES: &str = r#"{ "version": 1, "nodes": {
    "x": { "op": "Fill", "inputs": [[2048, 2048], 1.0] }, "z": { "op": "Fill", "inputs": [[2048, 2048], 2.0] },
    "a": { "op": "MatMul", "inputs": ["x", "x"] }, "b": { "op": "MatMul", "inputs": ["z", "z"] },
    "c": { "op": "MatMul", "inputs": ["a", "x"] }, "d": { "op": "MatMul", "inputs": ["b", "z"] },
    "e": { "op": "Sum", "inputs": ["c", 0] }, "f": { "op": "Sum", "inputs": ["d", 0] },
    "y": { "op": "AddV2", "inputs": ["e", "f"] } } }"#;

/// A mesh of so many tasks, each with a machine of its own.
fn mesh(tasks: u32) -> Cluster {
    Cluster::new((0..tasks).map(|index| {
        let task = Task::new("t", index);
        let rates = Some(Rates { multiply_adds: 50_000_000_000, bytes: 20_000_000_000, streamed: None });
        let capacity = Capacity { rates, ..Capacity::default() };
        let device = DeviceInfo { capacity, ..DeviceInfo::named(task.device(DeviceKind::Cpu, 0)) };
        Member { devices: vec![device], ..Member::bare(task, worker(index), Incarnation(index.into())) }
    }))
}

fn script(place_by: PlaceBy) -> Script {
    let graph = Graph::new(read(BRANCHES.as_bytes()).unwrap().nodes).unwrap();
    let options = SessionOptions { place_by, ..SessionOptions::default() };
    let machine = Machine::new(SessionId(7), Peer::new("client"), graph, options, MasterLimits::default(), 0);
    Script { machine, cluster: mesh(1), sent: Vec::new() }
}

fn made(of: &ToPlan, cluster: &Cluster) -> Result<Plan> {
    let placed = of.present.as_ref().map(|present| present.placed.by_name(of.graph())).unwrap_or_default();
    let by_cost = Some(ByCost { placed, ..ByCost::default() });
    let default_device = Task::new("t", 0).device(DeviceKind::Cpu, 0);
    let options = PlanOptions { default_device, soft_placement: false, by_cost };
    Ok(plan(of.graph(), &cluster.facts(), &of.signature, &options)?)
}

impl Script {
    /// Asks for the plan of `y`; the answers, once all workers have its pieces.
    fn wants(&mut self, request: u64, now: Nanos) -> Vec<(Peer, Message)> {
        let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
        let (request, cluster) = (RequestId(request), self.cluster.clone());
        let asked = SessionEvent::Prepare { request, signature, alone: None, cluster: &cluster };
        let Some(of) = self.machine.handle(asked, now) else { return self.sent() };
        let plan = made(&of, &cluster);
        let sent = self.on(SessionEvent::Planned { request, of, plan, cluster: &cluster }, now);
        self.registered(&sent, now)
    }

    /// Confirms the registrations among these messages; the answers.
    fn registered(&mut self, sent: &[(Peer, Message)], now: Nanos) -> Vec<(Peer, Message)> {
        let mut answers = Vec::new();
        for (to, message) in sent {
            let Message::ToWorker(ToWorker::Register { pieces, .. }) = message else { continue };
            let pieces: Vec<PieceId> = pieces.iter().map(|(id, _)| *id).collect();
            answers.extend(self.on(SessionEvent::Registered { worker: to, pieces, result: Ok(()) }, now));
        }
        answers
    }

    /// A run of one step: what is to be planned, and the messages.
    fn runs(&mut self, request: u64, plan: u32, now: Nanos) -> (Option<ToPlan>, Vec<(Peer, Message)>) {
        let ask = Ask { plan, steps: 1, every: 0, watched: false, feeds: Vec::new() };
        let cluster = self.cluster.clone();
        let of = self.machine.handle(
            SessionEvent::Run { request: RequestId(request), ask, cluster: &cluster, is_comparing: false },
            now,
        );
        (of, self.sent())
    }
}

fn number(answers: &[(Peer, Message)]) -> u32 {
    let [(_, Message::ToClient(ToClient::Reply { result: Ok(Reply::Prepared { plan, .. }), .. }))] = answers else {
        panic!("{answers:?}")
    };
    *plan
}

#[test]
fn a_plan_by_cost_is_changed_between_runs_if_a_task_that_joins_makes_steps_shorter() {
    let mut script = script(PlaceBy::Cost);
    let first = script.wants(1, 0);
    let first = number(&first);
    assert!(script.runs(2, first, 0).0.is_none(), "it has just been made");
    let piece = PieceId { session: SessionId(7), number: 0 };
    script.on(SessionEvent::Done { piece, step: 1, count: 1, tensors: vec![Tensor::scalar(1f32)] }, 0);
    script.cluster = mesh(2);
    // The comparison is made beside the run that asks for it.
    let (of, sent) = script.runs(3, first, 6 * SECOND);
    let of = of.expect("another task is there");
    assert_eq!(started(&sent), [("worker 0", 2, 1)]);
    let (plan, cluster) = (made(&of, &script.cluster), script.cluster.clone());
    let sent = script.on(SessionEvent::Compared { of, plan, cluster: &cluster }, 6 * SECOND);
    assert_eq!(sent.iter().map(|(to, _)| to.as_str()).collect::<Vec<_>>(), ["worker 0", "worker 1"], "{sent:?}");
    assert!(script.machine.take_happened().is_empty(), "it waits for its workers");
    script.on(SessionEvent::Done { piece, step: 2, count: 1, tensors: vec![Tensor::scalar(1f32)] }, 6 * SECOND);
    let (of, ran) = script.runs(4, first, 7 * SECOND);
    assert!(of.is_none());
    assert_eq!(started(&ran), [("worker 0", 3, 1)], "until then the one that there is runs on");
    assert_eq!(script.registered(&sent, 8 * SECOND), []);
    let events: Vec<String> = script.machine.take_happened().iter().map(Event::to_string).collect();
    assert!(events.iter().any(|event| event.contains("/job:t/task:1/device:CPU:0")), "{events:?}");
    // Until the run ends, its pieces stay; its client is asked to prepare the plan again for the next run.
    let ended =
        script.on(SessionEvent::Done { piece, step: 3, count: 1, tensors: vec![Tensor::scalar(1f32)] }, 8 * SECOND);
    let is_forgotten = |(_, message): &(Peer, Message)| matches!(message, Message::ToWorker(ToWorker::Forget { .. }));
    assert!(ended.iter().any(is_forgotten), "{ended:?}");
    let (_, refused) = script.runs(5, first, 8 * SECOND);
    let [(_, Message::ToClient(ToClient::Reply { result: Err(failure), .. }))] = &refused[..] else {
        panic!("{refused:?}")
    };
    assert_eq!(failure.reason, Some(Reason::PlanGone), "{failure}");
    let second = number(&script.wants(6, 8 * SECOND));
    let (_, sent) = script.runs(7, second, 8 * SECOND);
    assert_eq!(started(&sent), [("worker 0", 4, 1), ("worker 1", 4, 1)]);
}

#[test]
fn a_plan_that_a_worker_refuses_or_does_not_live_to_see_changes_nothing() {
    for is_lost in [false, true] {
        let mut script = script(PlaceBy::Cost);
        let first = number(&script.wants(1, 0));
        script.runs(2, first, 0);
        script.cluster = mesh(2);
        let of = script.runs(3, first, 6 * SECOND).0.expect("another task is there");
        let (plan, cluster) = (made(&of, &script.cluster), script.cluster.clone());
        let sent = script.on(SessionEvent::Compared { of, plan, cluster: &cluster }, 6 * SECOND);
        let pieces = sent.iter().find_map(|(to, message)| match message {
            Message::ToWorker(ToWorker::Register { pieces, .. }) if *to == worker(1) => {
                Some(pieces.iter().map(|(id, _)| *id).collect::<Vec<_>>())
            }
            _ => None,
        });
        let full = Failure::new(Code::ResourceExhausted, "no memory");
        let event = match is_lost {
            true => SessionEvent::Down { peer: &worker(1), failure: &full },
            false => {
                SessionEvent::Registered { worker: &worker(1), pieces: pieces.unwrap(), result: Err(full.clone()) }
            }
        };
        let told = script.on(event, 7 * SECOND);
        assert!(told.iter().all(|(to, _)| to.as_str() != "client"), "{told:?}");
        assert_eq!(number(&script.wants(4, 8 * SECOND)), first);
        assert_eq!(started(&script.runs(5, first, 8 * SECOND).1), [("worker 0", 3, 1)]);
    }
}

#[test]
fn a_plan_that_stays_is_left_as_it_is() {
    let mut script = script(PlaceBy::Cost);
    let first = number(&script.wants(1, 0));
    script.runs(2, first, 0);
    let of = script.runs(3, first, 20 * SECOND).0.expect("some time has passed");
    let (plan, cluster) = (made(&of, &script.cluster), script.cluster.clone());
    assert_eq!(script.on(SessionEvent::Compared { of, plan, cluster: &cluster }, 20 * SECOND), []);
    assert!(script.machine.take_happened().is_empty());
}

#[test]
fn a_plan_by_names_is_never_compared() {
    let mut script = script(PlaceBy::Names);
    let first = number(&script.wants(1, 0));
    for second in 0..100 {
        assert!(script.runs(second + 2, first, second * SECOND).0.is_none());
    }
}

#[test]
fn comparisons_are_ever_rarer_unless_the_devices_change() {
    let (mut adapting, one, two) = (Adapting::default(), mesh(1), mesh(2));
    let mut due = |cluster: &Cluster, rest: u64, from: u64, to: u64| -> Vec<u64> {
        (from..to).filter(|&second| adapting.is_due(rest * SECOND, cluster, second * SECOND)).collect()
    };
    assert_eq!(due(&one, 5, 0, 80), [5, 15, 35, 75]);
    assert_eq!(due(&two, 5, 81, 100), [81, 86, 96], "a task joins");
    assert_eq!(due(&one, 10, 100, 135), [106, 116, 136].into_iter().filter(|&second| second < 135).collect::<Vec<_>>());
}
