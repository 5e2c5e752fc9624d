//! A worker with a device and a scripted network: the pieces and sessions that it holds, and its answers.

mod constants;
mod guarded;
mod kept;

use std::sync::Condvar;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use meshtf_engine::host::HostEngine;
use meshtf_graph::plan::{PlanOptions, Signature, plan};
use meshtf_graph::{Graph, read};
use meshtf_tensor::device::{Capacity, DeviceFacts, DeviceKind};
use meshtf_tensor::ids::Incarnation;
use meshtf_tensor::memory::Budget;

use super::*;
use crate::protocol::{Cluster, Constants, DeviceInfo, Member, Message};
use crate::runtime::requests::Requests;
use crate::runtime::weights::Weights;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Whims {
    /// The number of sends that will panic.
    panics: usize,
    /// Sends wait.
    is_slow: bool,
    /// Sends with tensors fail.
    refuses: Option<Failure>,
}

struct Network {
    sent: Mutex<Sender<(Peer, Message)>>,
    whims: Mutex<Whims>,
    changed: Condvar,
}

impl Router for Network {
    fn send(&self, to: &Peer, envelope: Envelope) -> Result<()> {
        let panics = {
            let mut whims = self.whims.lock().unwrap();
            while whims.is_slow {
                whims = self.changed.wait_timeout(whims, PATIENCE).unwrap().0;
            }
            if let Some(failure) = whims.refuses.take_if(|_| !envelope.tensors.is_empty()) {
                return Err(failure);
            }
            let panics = whims.panics > 0;
            whims.panics = whims.panics.saturating_sub(1);
            panics
        };
        assert!(!panics, "nothing is to be sent");
        self.sent.lock().unwrap().send((to.clone(), envelope.message)).unwrap();
        Ok(())
    }

    fn cluster(&self) -> Arc<Cluster> {
        Arc::new(Cluster::new([Member::bare(Task::new("t", 0), Peer::new("self"), Incarnation(0))]))
    }
}

struct Bench {
    worker: Worker,
    network: Arc<Network>,
    sent: Receiver<(Peer, Message)>,
    piece: Piece,
    /// Its own requests.
    client: Arc<Requests>,
}

const MASTER: &str = "master";

fn bench() -> Bench {
    bench_of(|task, router, resources, fetch| (Worker::new(task, router, resources, fetch), ())).0
}

/// A worker, and what comes with it.
fn bench_of<T>(make: impl FnOnce(Task, Arc<dyn Router>, Arc<Resources>, Fetch) -> (Worker, T)) -> (Bench, T) {
    let (sender, sent) = channel();
    let network = Arc::new(Network { sent: Mutex::new(sender), whims: Mutex::default(), changed: Condvar::new() });
    let task = Task::new("t", 0);
    let resources = Arc::new(Resources::new().within(Budget::current()));
    let client = Requests::new(network.clone(), Weights::in_memory());
    let fetch = Fetch::new(Arc::clone(&client));
    let (worker, with) = make(task.clone(), network.clone(), resources.clone(), fetch);
    let name = task.device(DeviceKind::Cpu, 0);
    let device = Device::open(name.clone(), Box::new(HostEngine), resources, worker.sink()).unwrap();
    let capacity = Capacity::default();
    let info = DeviceInfo { name: name.clone(), backend: "host".into(), description: String::new(), capacity };
    worker.add_device(info, device);
    let piece = piece_of(Signature { fetches: vec!["y".to_owned()], ..Signature::default() });
    (Bench { worker, network, sent, piece, client }, with)
}

/// The piece that computes `y`.
fn piece_of(signature: Signature) -> Piece {
    let name = Task::new("t", 0).device(DeviceKind::Cpu, 0);
    let text = r#"{ "version": 1, "nodes": { "x": 2, "y": { "op": "Neg", "inputs": ["x"] } } }"#;
    let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
    let options = PlanOptions { default_device: name.clone(), soft_placement: false, by_cost: None };
    plan(&graph, &[DeviceFacts::unknown(name)], &signature, &options).unwrap().pieces.remove(0)
}

fn id(session: u64, number: u32) -> PieceId {
    PieceId { session: SessionId(session), number }
}

fn register(session: SessionId, pieces: Vec<(PieceId, Piece)>) -> ToWorker {
    ToWorker::Register { session, isolated: false, pieces, constants: Constants::default(), guarded: false }
}

impl Bench {
    fn tell(&self, from: &str, message: ToWorker) {
        self.worker.deliver(&Peer::new(from), message, Vec::new());
    }

    fn register(&self, from: &str, piece: PieceId) {
        let pieces = vec![(piece, self.piece.clone())];
        self.tell(from, register(piece.session, pieces));
    }

    fn start(&self, from: &str, piece: PieceId, first: u64) {
        self.tell(from, ToWorker::Start { pieces: vec![piece], first, count: 1, continues: false, together: false });
    }

    fn next(&self) -> (String, Message) {
        let (to, message) = self.sent.recv_timeout(PATIENCE).expect("a message comes");
        (to.as_str().to_owned(), message)
    }

    /// The answer to a registration, which comes next.
    fn registered(&self) -> (String, PieceId, Result<()>) {
        let (to, message) = self.next();
        let Message::ToMaster(ToMaster::Registered { pieces, result, .. }) = message else { panic!("{message:?}") };
        (to, pieces[0], result)
    }

    fn pieces(&self) -> usize {
        self.worker.state.all_devices()[0].holds().pieces
    }
}

#[test]
fn a_panic_while_registering_is_answered_and_the_next_is_served() {
    let bench = bench();
    for round in 0..4 {
        bench.network.whims.lock().unwrap().panics = 1;
        bench.register(MASTER, id(1, 2 * round));
        let (to, piece, result) = bench.registered();
        let failure = result.unwrap_err();
        assert_eq!((to.as_str(), piece, failure.code), (MASTER, id(1, 2 * round), Code::Internal), "{failure}");
        assert!(failure.message.contains("nothing is to be sent"), "{failure}");
        assert_eq!(failure.task.as_deref(), Some("/job:t/task:0"), "{failure}");
        bench.register(MASTER, id(1, 2 * round + 1));
        assert_eq!(bench.registered(), (MASTER.to_owned(), id(1, 2 * round + 1), Ok(())));
    }
}

#[test]
fn pieces_are_forgotten_registered_or_not() {
    let bench = bench();
    bench.register(MASTER, id(1, 0));
    bench.registered().2.unwrap();
    // While the answer to one registration is on its way out, the next waits, and is forgotten before its turn.
    bench.network.whims.lock().unwrap().is_slow = true;
    bench.register(MASTER, id(1, 1));
    bench.register(MASTER, id(1, 2));
    bench.tell(MASTER, ToWorker::Forget { pieces: vec![id(1, 0), id(1, 2)] });
    bench.network.whims.lock().unwrap().is_slow = false;
    bench.network.changed.notify_all();
    assert_eq!(bench.registered(), (MASTER.to_owned(), id(1, 1), Ok(())));
    assert_eq!(bench.registered().2.unwrap_err().code, Code::Cancelled);
    assert_eq!(bench.pieces(), 1);
    bench.start(MASTER, id(1, 0), 1);
    let (_, message) = bench.next();
    assert!(
        matches!(&message, Message::ToMaster(ToMaster::Failed { failure, .. }) if failure.code == Code::Aborted),
        "{message:?}"
    );
    bench.start(MASTER, id(1, 1), 2);
    let (_, message) = bench.next();
    assert_eq!(message, Message::from(ToMaster::Done { piece: id(1, 1), step: 2, count: 1 }));
    // The session still exists, without a piece, until it is released.
    bench.tell(MASTER, ToWorker::Forget { pieces: vec![id(1, 1)] });
    assert_eq!((bench.pieces(), bench.worker.state.sessions().len()), (0, 1));
    bench.tell(MASTER, ToWorker::Release { session: SessionId(1) });
    assert_eq!(bench.worker.holds(), None);
}

#[test]
fn the_ends_of_steps_that_nobody_waits_for_are_reported_together() {
    const STEPS: u64 = 64;
    let bench = bench();
    let silent = piece_of(Signature { targets: vec!["y".to_owned()], ..Signature::default() });
    bench.tell(MASTER, register(SessionId(1), vec![(id(1, 0), silent), (id(1, 1), bench.piece.clone())]));
    bench.registered().2.unwrap();
    let reported = |piece: PieceId, first: u64, together: bool| -> Vec<u64> {
        let (pieces, continues) = (vec![piece], first > 1);
        bench.tell(MASTER, ToWorker::Start { pieces, first, count: STEPS, continues, together });
        let (mut next, mut counts) = (first, Vec::new());
        while next < first + STEPS {
            let (to, message) = bench.next();
            let Message::ToMaster(ToMaster::Done { piece: of, step, count }) = message else { panic!("{message:?}") };
            next += count;
            assert_eq!((to.as_str(), of, step), (MASTER, piece, next - 1), "each step once, in order");
            counts.push(count);
        }
        counts
    };
    assert_eq!(reported(id(1, 0), 1, false), [1; STEPS as usize]);
    let together = reported(id(1, 0), 1 + STEPS, true);
    // At half of what was started, and at half of the rest; more often only if a step takes 100 ms.
    assert!(together.len() < STEPS as usize / 2 && together.iter().any(|&count| count > 1), "{together:?}");
    assert_eq!(reported(id(1, 1), 1 + 2 * STEPS, true), [1; STEPS as usize], "values are not held back");
}

#[test]
fn a_session_is_its_masters_alone() {
    let bench = bench();
    bench.register(MASTER, id(1, 0));
    bench.registered().2.unwrap();
    bench.register("other", id(1, 1));
    assert_eq!(bench.registered().2.unwrap_err().code, Code::PermissionDenied);
    bench.register(MASTER, id(1, 0));
    assert_eq!(bench.registered().2.unwrap_err().code, Code::AlreadyExists);
    bench.tell("other", ToWorker::Forget { pieces: vec![id(1, 0)] });
    bench.tell("other", ToWorker::Release { session: SessionId(1) });
    bench.start(MASTER, id(1, 0), 1);
    assert_eq!(bench.next().1, Message::from(ToMaster::Done { piece: id(1, 0), step: 1, count: 1 }));
    // A piece that claims to be of another session than the message is.
    let pieces = vec![(id(2, 0), bench.piece.clone())];
    bench.tell(MASTER, register(SessionId(1), pieces));
    assert_eq!(bench.registered().2.unwrap_err().code, Code::PermissionDenied);
    assert_eq!(bench.pieces(), 1);
    // Nor does it leave a session behind.
    let pieces = vec![(id(2, 0), bench.piece.clone())];
    bench.tell(MASTER, register(SessionId(3), pieces));
    assert_eq!(bench.registered().2.unwrap_err().code, Code::PermissionDenied);
    assert_eq!(bench.worker.state.sessions().len(), 1);
}

#[test]
fn only_the_master_of_a_session_guards_it() {
    use crate::protocol::guard::{GuardReport, Origin};
    let bench = bench();
    let session = SessionId(1);
    let serve = |ask| ToGuard::Serve { session, ask, of: Vec::new() };
    let report = |from: &str, message: ToGuard| {
        bench.tell(from, message.into());
        let (to, message) = bench.next();
        let Message::ToMaster(ToMaster::Guard { report, .. }) = message else { panic!("{message:?}") };
        assert_eq!(to, from);
        match report {
            GuardReport::Ready { result, .. } | GuardReport::Restored { result, .. } => result,
            GuardReport::Copied { result, .. } => result.map(|_| ()),
            GuardReport::Kept { result, .. } => result,
            GuardReport::Inherited { .. } | GuardReport::Superseded { .. } => panic!("nobody takes its place"),
        }
    };
    // One that came before the master of the pieces does not stay.
    report("other", serve(1)).unwrap();
    bench.register(MASTER, id(1, 0));
    bench.registered().2.unwrap();
    let buddy = Peer::new("buddy");
    let copy = |cut| ToGuard::Copy { session, cut, base: None, buddy: buddy.clone() };
    let restore = |from| ToGuard::Restore { session, ask: 2, cut: 1, from };
    let back = ToGuard::Return { session, ask: 2 };
    let give_back = ToGuard::GiveBack { session, ask: 2, cut: 1, of: buddy.clone(), to: buddy.clone() };
    for message in [serve(1), copy(1), restore(Origin::Here), restore(Origin::Nothing), back, give_back] {
        let result = report("other", message.clone());
        assert_eq!(result.unwrap_err().code, Code::PermissionDenied, "{message:?}");
    }
    report(MASTER, serve(1)).unwrap();
    report(MASTER, copy(1)).unwrap();
    assert_eq!(report("other", copy(2)).unwrap_err().code, Code::PermissionDenied);
}

#[test]
fn a_task_that_went_is_told_of_and_a_client_leaves_nothing() {
    let bench = bench();
    bench.register(MASTER, id(1, 0));
    bench.registered().2.unwrap();
    bench.start(MASTER, id(1, 0), 1);
    bench.next();
    for client in ["one", "another"] {
        bench.worker.down(&Peer::new(client), None);
    }
    assert!(bench.worker.state.lost_peers().is_empty());
    let (task, peer) = (Task::new("t", 1), Peer::new("task 1"));
    bench.worker.down(&peer, Some(&task));
    bench.worker.report_lost(&peer, "the wire was cut");
    let (to, message) = bench.next();
    assert_eq!(to, MASTER);
    assert!(matches!(message, Message::ToMaster(ToMaster::PeerLost { until: 1, .. })), "{message:?}");
    assert!(bench.worker.state.lost_peers().is_empty());
}

#[test]
fn what_cannot_be_sent_to_the_master_fails_the_step() {
    let bench = bench();
    bench.register(MASTER, id(1, 0));
    bench.registered().2.unwrap();
    let failure = Failure::invalid("a message of 5 GiB");
    bench.network.whims.lock().unwrap().refuses = Some(failure.clone());
    bench.start(MASTER, id(1, 0), 1);
    let step = StepId { session: SessionId(1), number: 1 };
    let failure = failure.on_task("/job:t/task:0");
    assert_eq!(bench.next().1, Message::from(ToMaster::Failed { step, failure }));
}
