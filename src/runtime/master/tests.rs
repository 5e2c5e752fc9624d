//! A master between scripted workers and clients: its messages to each, their order, and the resources that it releases.

mod claims;
mod constants;

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex};

use meshtf_graph::plan::Piece;
use meshtf_graph::read;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceKind, DeviceName};
use meshtf_tensor::failure::Reason;
use meshtf_tensor::ids::{Incarnation, PieceId};

use super::*;
use crate::protocol::{Cluster, DeviceInfo, Envelope, Member, Message, ToWorker};

const PATIENCE: Duration = Duration::from_secs(30);

/// `y` on task 1, `z` on task 0, each of a feed and in as many copies as there are plans to make.
const GRAPH: &str = r#"{ "version": 1, "nodes": {
    "x":  { "op": "Placeholder", "attrs": { "dtype": "int32" } },
    "y0": { "op": "Neg", "inputs": ["x"], "device": "/job:t/task:1" },
    "y1": { "op": "Neg", "inputs": ["y0"], "device": "/job:t/task:1" },
    "y2": { "op": "Neg", "inputs": ["y1"], "device": "/job:t/task:1" },
    "z":  { "op": "Neg", "inputs": ["x"], "device": "/job:t/task:0" },
    "w":  { "op": "Neg", "inputs": ["x"], "device": "/job:t" } } }"#;

/// The network's treatment of messages, in addition to delivering them.
#[derive(Default)]
struct Whims {
    /// Peers that a send to waits for, until they are taken out.
    slow: HashSet<Peer>,
    /// Sends to this peer fail, with this failure.
    fails: Option<(Peer, Failure)>,
    /// The number of cluster reads that will panic.
    panics: usize,
    /// The next send to it panics.
    panics_for: Option<Peer>,
}

struct Network {
    cluster: Mutex<Arc<Cluster>>,
    sent: Sender<(Peer, Envelope)>,
    whims: Mutex<Whims>,
    changed: Condvar,
}

impl Router for Network {
    fn send(&self, to: &Peer, envelope: Envelope) -> Result<()> {
        let mut whims = self.whims.lock().unwrap();
        if let Some((_, failure)) = whims.fails.take_if(|(peer, _)| peer == to) {
            return Err(failure);
        }
        while whims.slow.contains(to) {
            whims = self.changed.wait_timeout(whims, PATIENCE).unwrap().0;
        }
        let panics = whims.panics_for.take_if(|peer| peer == to).is_some();
        drop(whims);
        assert!(!panics, "nothing is to be sent");
        self.sent.send((to.clone(), envelope)).unwrap();
        Ok(())
    }

    fn cluster(&self) -> Arc<Cluster> {
        let panics = {
            let mut whims = self.whims.lock().unwrap();
            let panics = whims.panics > 0;
            whims.panics = whims.panics.saturating_sub(1);
            panics
        };
        assert!(!panics, "the cluster is not to be looked at");
        Arc::clone(&self.cluster.lock().unwrap())
    }
}

/// A master, and all of its peers.
struct Bench {
    master: Master,
    network: Arc<Network>,
    sent: Receiver<(Peer, Envelope)>,
    requests: u64,
}

fn peer(name: &str) -> Peer {
    Peer::new(name)
}

fn cluster(incarnations: &[u64]) -> Arc<Cluster> {
    let member = |(&incarnation, index): (&u64, u32)| {
        let task = Task::new("t", index);
        let name: DeviceName = task.device(DeviceKind::Cpu, 0);
        let device = DeviceInfo::named(name);
        let peer = peer(&format!("t{index}.{incarnation}"));
        let incarnation = Incarnation(incarnation);
        Member { devices: vec![device], ..Member::bare(task, peer, incarnation) }
    };
    Arc::new(Cluster::new(incarnations.iter().zip(0..).map(member)))
}

fn bench(limits: MasterLimits) -> Bench {
    bench_of(Seat::of_node(Task::new("t", 0)), limits)
}

fn bench_of(seat: Seat, limits: MasterLimits) -> Bench {
    let (sender, sent) = channel();
    let network = Arc::new(Network {
        cluster: Mutex::new(cluster(&[0, 0])),
        sent: sender,
        whims: Mutex::default(),
        changed: Condvar::new(),
    });
    let master = Master::new(seat, network.clone(), limits, crate::events::Events::new(), &Arc::default());
    Bench { master, network, sent, requests: 0 }
}

fn limits(sessions: usize, plans: usize) -> MasterLimits {
    MasterLimits { sessions, plans, idle_kept: Duration::ZERO, ..MasterLimits::default() }
}

fn fetching(name: &str) -> Signature {
    Signature { feeds: vec!["x".to_owned()], fetches: vec![name.to_owned()], ..Signature::default() }
}

impl Bench {
    fn ask(&mut self, client: &str, request: Request, tensors: Vec<Tensor>) -> RequestId {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.master.deliver(&peer(client), ToMaster::Request { id, request }, tensors);
        id
    }

    fn next(&self) -> (String, Envelope) {
        let (to, envelope) = self.sent.recv_timeout(PATIENCE).expect("a message comes");
        (to.as_str().to_owned(), envelope)
    }

    /// The next answer, and its receiver.
    fn answer(&self) -> (String, RequestId, Result<Reply>, Vec<Tensor>) {
        let (to, Envelope { message, tensors }) = self.next();
        let Message::ToClient(ToClient::Reply { id, result }) = message else { panic!("{message:?}") };
        (to, id, result, tensors)
    }

    fn open(&mut self, client: &str, session: u64) -> Result<Reply> {
        let graph = Graph::new(read(GRAPH.as_bytes()).unwrap().nodes).unwrap().to_defs();
        let (session, options) = (SessionId(session), SessionOptions::default());
        let id = self.ask(client, Request::Open { session, graph, options, constants: Constants::default() }, vec![]);
        loop {
            // The session that made room for it may still be sending.
            let (_, Envelope { message, .. }) = self.next();
            match message {
                Message::ToClient(ToClient::Reply { id: answered, result }) if answered == id => return result,
                _ => {}
            }
        }
    }

    fn prepare(&mut self, session: u64, name: &str) -> RequestId {
        let request = Request::Prepare { session: SessionId(session), signature: fetching(name) };
        self.ask("client", request, vec![])
    }

    /// Confirms the next registration for a worker; returns its name, and the pieces.
    fn register(&self) -> (String, Vec<PieceId>) {
        let (to, Envelope { message, .. }) = self.next();
        let Message::ToWorker(ToWorker::Register { session, pieces, .. }) = message else { panic!("{message:?}") };
        let pieces: Vec<PieceId> = pieces.into_iter().map(|(id, _)| id).collect();
        let message = ToMaster::Registered { session, pieces: pieces.clone(), result: Ok(()) };
        self.master.deliver(&peer(&to), message, vec![]);
        (to, pieces)
    }

    /// Prepares a plan of one piece: its number, its worker and the piece.
    fn prepared(&mut self, session: u64, name: &str) -> (u32, String, PieceId) {
        let id = self.prepare(session, name);
        let (worker, pieces) = self.register();
        let (_, answered, result, _) = self.answer();
        let Ok(Reply::Prepared { plan, summary }) = result else { panic!("{result:?}") };
        assert_eq!((answered, summary.devices.len(), pieces.len()), (id, 1, 1));
        (plan, worker, pieces[0])
    }

    fn run(&mut self, session: u64, plan: u32, steps: u64) -> RequestId {
        let request = Request::Run { session: SessionId(session), plan, steps, every: 0, watched: false };
        self.ask("client", request, vec![Tensor::scalar(7i32)])
    }

    /// The steps that a worker is asked to start next.
    fn started(&self) -> (String, u64, u64) {
        let (to, Envelope { message, .. }) = self.next();
        let Message::ToWorker(ToWorker::Start { first, count, .. }) = message else { panic!("{message:?}") };
        (to, first, count)
    }

    fn done(&self, worker: &str, piece: PieceId, step: u64) {
        self.master.deliver(&peer(worker), ToMaster::Done { piece, step, count: 1 }, vec![Tensor::scalar(-7i32)]);
    }

    /// The worker and the pieces of the next message, which has to be a Forget.
    fn forgotten(&self) -> (String, Vec<PieceId>) {
        let (to, Envelope { message, .. }) = self.next();
        let Message::ToWorker(ToWorker::Forget { pieces }) = message else { panic!("{message:?}") };
        (to, pieces)
    }

    /// Closes session 1: the workers that release it and the answers to its open requests, each in their order. The thread that
    /// planned last may still be at work, and then says that the session is closed beside the thread that ends it.
    fn close(&mut self, releases: usize, answers: usize) -> (Vec<String>, Vec<(RequestId, Result<Reply>)>) {
        let id = self.ask("client", Request::Close { session: SessionId(1) }, vec![]);
        let (mut released, mut answered) = (Vec::new(), Vec::new());
        for _ in 0..=releases + answers {
            match self.next() {
                (worker, Envelope { message: Message::ToWorker(ToWorker::Release { .. }), .. }) => {
                    released.push(worker)
                }
                (_, Envelope { message: Message::ToClient(ToClient::Reply { id, result }), .. }) => {
                    answered.push((id, result))
                }
                (_, other) => panic!("{:?}", other.message),
            }
        }
        let place = answered.iter().position(|(answered, _)| *answered == id).expect("the session is closed");
        assert_eq!(answered.remove(place).1, Ok(Reply::Closed));
        assert_eq!((released.len(), answered.len()), (releases, answers));
        self.is_quiet();
        (released, answered)
    }

    fn is_quiet(&self) {
        assert!(self.sent.try_recv().is_err());
    }
}

#[test]
fn the_master_of_a_client_opens_no_sessions_of_others() {
    let mut bench = bench_of(Seat::of_client(peer("client"), Task::new("t", 1)), limits(8, 8));
    bench.open("client", 1).unwrap();
    let refused = bench.open("other", 2).unwrap_err();
    assert_eq!((refused.code, refused.task), (Code::NotFound, None));
    // A plan of the client, whose worker answers.
    bench.prepared(1, "y0");
}

#[test]
fn a_panic_while_planning_fails_the_request_and_nothing_else() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    for _ in 0..8 {
        bench.network.whims.lock().unwrap().panics = 1;
        let id = bench.prepare(1, "y0");
        let (to, answered, result, _) = bench.answer();
        assert_eq!((to.as_str(), answered), ("client", id));
        let failure = result.unwrap_err();
        assert_eq!(failure.code, Code::Internal, "{failure}");
        assert_eq!(failure.task.as_deref(), Some("/job:t/task:0"), "{failure}");
        assert!(failure.message.contains("the cluster is not to be looked at"), "{failure}");
    }
    let (plan, worker, piece) = bench.prepared(1, "y0");
    bench.run(1, plan, 1);
    assert_eq!(bench.started(), ("t1.0".to_owned(), 1, 1));
    bench.done(&worker, piece, 1);
    assert_eq!(bench.answer().2.unwrap(), Reply::Ran { steps: 1 });
}

#[test]
fn a_panic_in_the_middle_of_a_session_ends_it_and_no_other() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    bench.open("client", 2).unwrap();
    let (_, worker, _) = bench.prepared(1, "y0");
    // The session's messages are lost.
    bench.network.whims.lock().unwrap().panics_for = Some(peer(&worker));
    let id = bench.prepare(1, "y1");
    let (to, Envelope { message, .. }) = bench.next();
    assert!(to == worker && matches!(message, Message::ToWorker(ToWorker::Release { .. })), "{message:?}");
    let mut answers = [bench.answer(), bench.answer()];
    answers.sort_by_key(|(_, id, ..)| *id);
    for (_, answered, result, _) in answers {
        let failure = result.unwrap_err();
        assert_eq!((answered, failure.code), (id, Code::Internal), "{failure}");
        assert!(failure.message.contains("nothing is to be sent"), "{failure}");
    }
    assert_eq!(bench.master.sessions(), 1);
    bench.prepared(2, "y0");
}

#[test]
fn a_plan_that_is_made_anew_leaves_nothing_behind() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    // No node names the task, so that the plan goes to another worker when task 0 is restarted.
    let (plan, worker, piece) = bench.prepared(1, "w");
    assert_eq!(worker, "t0.0");
    *bench.network.cluster.lock().unwrap() = cluster(&[1, 0]);
    // The run gives the feeds back, and states in machine-readable form how to continue.
    bench.run(1, plan, 1);
    let (_, _, result, feeds) = bench.answer();
    let failure = result.unwrap_err();
    assert_eq!((failure.code, failure.reason), (Code::Aborted, Some(Reason::PlanGone)), "{failure}");
    assert_eq!(feeds, [Tensor::scalar(7i32)]);
    bench.prepare(1, "w");
    assert_eq!(bench.forgotten(), ("t0.0".to_owned(), vec![piece]));
    assert_eq!(bench.register().0, "t0.1");
    let Ok(Reply::Prepared { plan: anew, .. }) = bench.answer().2 else { panic!("prepared") };
    assert_ne!(anew, plan, "an old number never means a new plan");
    bench.prepared(1, "y0");
    assert_eq!(bench.close(2, 0).0, ["t0.1", "t1.0"]);
}

#[test]
fn a_worker_that_only_an_old_plan_used_is_told_of_the_end() {
    let mut bench = bench(limits(8, 1));
    bench.open("client", 1).unwrap();
    bench.prepared(1, "y0");
    // There is room for one plan.
    bench.prepare(1, "z");
    assert_eq!(bench.forgotten().0, "t1.0");
    assert_eq!(bench.register().0, "t0.0");
    bench.answer().2.unwrap();
    assert_eq!(bench.close(2, 0).0, ["t0.0", "t1.0"]);
}

#[test]
fn a_refused_registration_is_forgotten_everywhere() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    let signature = Signature { fetches: vec!["y0".to_owned(), "z".to_owned()], ..fetching("z") };
    let request = Request::Prepare { session: SessionId(1), signature };
    bench.ask("client", request, vec![]);
    let (first, pieces) = bench.register();
    assert_eq!(first, "t0.0");
    let (to, Envelope { message, .. }) = bench.next();
    let Message::ToWorker(ToWorker::Register { session, pieces: others, .. }) = message else { panic!("{message:?}") };
    let others: Vec<PieceId> = others.into_iter().map(|(id, _)| id).collect();
    let result = Err(Failure::invalid("no such kernel"));
    bench.master.deliver(&peer(&to), ToMaster::Registered { session, pieces: others.clone(), result }, vec![]);
    assert!(bench.answer().2.unwrap_err().message.contains("no such kernel"));
    assert_eq!([bench.forgotten(), bench.forgotten()], [(first, pieces), (to, others)]);
}

#[test]
fn the_plan_that_was_not_used_for_longest_goes_first() {
    let mut bench = bench(limits(8, 2));
    bench.open("client", 1).unwrap();
    let (first, worker, first_piece) = bench.prepared(1, "y0");
    let (second, _, second_piece) = bench.prepared(1, "y1");
    // The first is used, so that the second is dropped for the third.
    bench.run(1, first, 1);
    assert_eq!(bench.started(), (worker.clone(), 1, 1));
    bench.done(&worker, first_piece, 1);
    bench.answer().2.unwrap();
    bench.prepare(1, "y2");
    assert_eq!(bench.forgotten(), (worker.clone(), vec![second_piece]));
    let (_, third_pieces) = bench.register();
    let Ok(Reply::Prepared { plan: third, .. }) = bench.answer().2 else { panic!("prepared") };
    bench.run(1, second, 1);
    let failure = bench.answer().2.unwrap_err();
    assert_eq!(failure.reason, Some(Reason::PlanGone), "{failure}");
    // A number that never existed is a different failure.
    bench.run(1, 99, 1);
    let failure = bench.answer().2.unwrap_err();
    assert_eq!((failure.code, failure.reason), (Code::InvalidArgument, None), "{failure}");
    // A running plan is never dropped.
    bench.run(1, first, 1);
    bench.run(1, third, 1);
    assert_eq!((bench.started().1, bench.started().1), (2, 3));
    bench.prepare(1, "z");
    let failure = bench.answer().2.unwrap_err();
    assert_eq!(failure.code, Code::ResourceExhausted, "{failure}");
    bench.done(&worker, third_pieces[0], 3);
    bench.answer().2.unwrap();
    bench.prepare(1, "z");
    assert_eq!(bench.forgotten(), (worker, third_pieces));
}

#[test]
fn plans_of_many_nodes_make_room_for_one_another() {
    // Of a feed, one Neg, two, or three, and a fetch: 3, 4 and 5 nodes.
    let mut bench = bench(MasterLimits { plan_nodes: 9, ..limits(8, 8) });
    bench.open("client", 1).unwrap();
    let (first, worker, first_piece) = bench.prepared(1, "y0");
    let (_, _, second_piece) = bench.prepared(1, "y1");
    bench.prepare(1, "y2");
    assert_eq!(bench.forgotten(), (worker.clone(), vec![first_piece]));
    let (_, third_pieces) = bench.register();
    let Ok(Reply::Prepared { plan: third, .. }) = bench.answer().2 else { panic!("prepared") };
    assert_ne!(first, third);
    // A running plan is not dropped, and then there is no room.
    bench.run(1, third, 1);
    bench.started();
    bench.run(1, third - 1, 1);
    bench.started();
    bench.prepare(1, "z");
    let failure = bench.answer().2.unwrap_err();
    assert_eq!(failure.code, Code::ResourceExhausted, "{failure}");
    assert!(failure.message.contains("8 plans and 9 nodes"), "{failure}");
    bench.done(&worker, second_piece, 2);
    bench.answer().2.unwrap();
    bench.done(&worker, third_pieces[0], 1);
    bench.answer().2.unwrap();
}

#[test]
fn two_requests_for_one_plan_share_it() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    // The second request comes from a client that did not wait for the first.
    let first = bench.prepare(1, "y0");
    let (to, Envelope { message, .. }) = bench.next();
    let Message::ToWorker(ToWorker::Register { session, pieces, .. }) = message else { panic!("{message:?}") };
    let second = bench.prepare(1, "y0");
    // It is through planning once a third request of the session is.
    let extended =
        bench.ask("client", Request::Extend { session, nodes: vec![], constants: Constants::default() }, vec![]);
    assert_eq!(bench.answer().1, extended);
    let pieces = pieces.into_iter().map(|(id, _)| id).collect();
    bench.master.deliver(&peer(&to), ToMaster::Registered { session, pieces, result: Ok(()) }, vec![]);
    assert_eq!([bench.answer().1, bench.answer().1], [first, second]);
    bench.is_quiet();
}

#[test]
fn where_sessions_are_too_many_the_idle_one_of_who_has_most_goes() {
    let mut bench = bench(limits(3, 8));
    bench.open("other", 10).unwrap();
    bench.open("client", 1).unwrap();
    bench.open("client", 2).unwrap();
    // The older of the two is used meanwhile; another client's is older than both.
    let (plan, ..) = bench.prepared(1, "y0");
    bench.open("client", 3).unwrap();
    let ended = |bench: &mut Bench, session: u64| {
        bench.run(session, plan, 1);
        bench.answer().2.unwrap_err()
    };
    let failure = ended(&mut bench, 2);
    assert_eq!((failure.code, failure.reason), (Code::Aborted, None), "{failure}");
    assert!(failure.message.contains("3 sessions were open here"), "{failure}");
    let failure = ended(&mut bench, 77);
    assert!(failure.message.contains("it ended, or this node was restarted"), "{failure}");
    // A running session is not idle.
    bench.run(1, plan, 1);
    bench.started();
    bench.open("client", 4).unwrap();
    assert!(ended(&mut bench, 3).message.contains("sessions were open"));
    assert_eq!(bench.master.sessions(), 3);
}

#[test]
fn sessions_in_use_are_not_ended_for_others() {
    let mut bench = bench(MasterLimits { idle_kept: Duration::from_secs(3600), ..limits(2, 8) });
    bench.open("client", 1).unwrap();
    bench.open("other", 2).unwrap();
    let failure = bench.open("third", 3).unwrap_err();
    assert_eq!(failure.code, Code::ResourceExhausted, "{failure}");
    assert!(failure.message.contains("within the last 3600 s"), "{failure}");
}

#[test]
fn a_slow_way_to_one_worker_holds_up_no_other_session() {
    let mut bench = bench(limits(8, 8));
    for session in [1, 2] {
        bench.open("client", session).unwrap();
    }
    let (slow, worker, _) = bench.prepared(1, "y0");
    let (quick, ..) = bench.prepared(2, "z");
    bench.network.whims.lock().unwrap().slow.insert(peer(&worker));
    std::thread::scope(|scope| {
        let (master, client) = (&bench.master, peer("client"));
        let run = Request::Run { session: SessionId(1), plan: slow, steps: 1, every: 0, watched: false };
        let message = ToMaster::Request { id: RequestId(1001), request: run };
        let asked = scope.spawn(move || {
            master.deliver(&client, message, vec![Tensor::scalar(7i32)]);
        });
        // The other session's step goes out meanwhile.
        while bench.master.state.sessions.find(SessionId(1)).unwrap().lock().machine.runs() == 0 {
            std::thread::yield_now();
        }
        let run = Request::Run { session: SessionId(2), plan: quick, steps: 1, every: 0, watched: false };
        let message = ToMaster::Request { id: RequestId(1002), request: run };
        bench.master.deliver(&peer("client"), message, vec![Tensor::scalar(7i32)]);
        assert_eq!(bench.started(), ("t0.0".to_owned(), 1, 1));
        // A decision about the slow session in the meantime waits for its turn and overtakes nothing.
        let step = meshtf_tensor::ids::StepId { session: SessionId(1), number: 1 };
        let failed = ToMaster::Failed { step, failure: Failure::invalid("no") };
        bench.master.deliver(&peer(&worker), failed, vec![]);
        bench.is_quiet();
        bench.network.whims.lock().unwrap().slow.clear();
        bench.network.changed.notify_all();
        asked.join().unwrap();
    });
    assert_eq!(bench.started(), (worker.clone(), 1, 1));
    let (to, Envelope { message, .. }) = bench.next();
    assert!(to == worker && matches!(message, Message::ToWorker(ToWorker::Abort { .. })), "{message:?}");
    assert_eq!(bench.answer().1, RequestId(1001));
}

#[test]
fn an_answer_that_cannot_be_sent_is_told() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    let (plan, worker, piece) = bench.prepared(1, "y0");
    let run = bench.run(1, plan, 1);
    bench.started();
    let too_large = Failure::invalid("a message of 5 GiB");
    bench.network.whims.lock().unwrap().fails = Some((peer("client"), too_large.clone()));
    bench.done(&worker, piece, 1);
    let (_, answered, result, _) = bench.answer();
    assert_eq!((answered, result), (run, Err(too_large)));
}

#[test]
fn what_a_worker_has_no_room_for_fails_what_it_is_for_alone() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    let (plan, worker, piece) = bench.prepared(1, "y0");
    let other = bench.run(1, plan, 1);
    assert_eq!(bench.started().1, 1);
    let full = Failure::new(Code::ResourceExhausted, "the queue is full");
    bench.network.whims.lock().unwrap().fails = Some((peer(&worker), full.clone()));
    let run = bench.run(1, plan, 1);
    let (to, Envelope { message, .. }) = bench.next();
    assert!(
        to == worker && matches!(message, Message::ToWorker(ToWorker::Abort { step, .. }) if step.number == 2),
        "{message:?}"
    );
    let (_, answered, result, _) = bench.answer();
    assert_eq!((answered, result), (run, Err(full.clone())));
    // A run of the same plan that was under way continues, and the plan stays.
    bench.done(&worker, piece, 1);
    assert_eq!(bench.answer().1, other);
    bench.run(1, plan, 1);
    assert_eq!(bench.started().1, 3);
    // Pieces that cannot be sent fail their plan.
    bench.network.whims.lock().unwrap().fails = Some((peer(&worker), full.clone()));
    let prepare = bench.prepare(1, "y1");
    let (_, answered, result, _) = bench.answer();
    assert_eq!((answered, result), (prepare, Err(full)));
    assert_eq!(bench.forgotten().0, worker);
    bench.done(&worker, piece, 3);
    assert!(bench.answer().2.is_ok());
}

#[test]
fn a_session_closes_though_it_is_being_planned() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    let (plan, worker, _) = bench.prepared(1, "y0");
    let run = bench.run(1, plan, 5);
    bench.started();
    let waits = bench.prepare(1, "y1");
    bench.next();
    let (released, answers) = bench.close(1, 2);
    assert_eq!(released, [worker]);
    assert_eq!(answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [run, waits]);
    assert!(answers.iter().all(|(_, result)| result.as_ref().is_err_and(|failure| failure.code == Code::Cancelled)));
    assert_eq!(bench.master.sessions(), 0);
}
