//! A state that is put back: only what the session has changed, and only as long as its master wants it.

use super::*;
use crate::protocol::guard::{Copied, GuardReport, Origin, SentResource, SentState};
use crate::protocol::inquiry::VariableName;

const GUARDED: SessionId = SessionId(1);

/// A piece that adds one to a variable.
fn adds(name: &DeviceName) -> Piece {
    let text = r#"{ "version": 1, "nodes": {
        "v": { "op": "VarHandleOp", "attrs": { "dtype": "int32", "shape": [], "shared_name": "v" } },
        "add": { "op": "AssignAddVariableOp", "inputs": ["v", 1] } } }"#;
    let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
    let options = PlanOptions { default_device: name.clone(), soft_placement: false, by_cost: None };
    let signature = Signature { targets: vec!["add".to_owned()], ..Signature::default() };
    plan(&graph, &[DeviceFacts::unknown(name.clone())], &signature, &options).unwrap().pieces.remove(0)
}

struct Guarded {
    bench: Bench,
    steps: u64,
}

impl Guarded {
    /// Sessions 1, which is guarded, and 2, with the same variable, which is 0.
    fn new() -> Guarded {
        let bench = bench();
        let piece = adds(&Task::new("t", 0).device(DeviceKind::Cpu, 0));
        for (session, guarded) in [(GUARDED, true), (SessionId(2), false)] {
            let (id, constants) = (PieceId { session, number: 0 }, Constants::default());
            let pieces = vec![(id, piece.clone())];
            bench.tell(MASTER, ToWorker::Register { session, isolated: false, pieces, constants, guarded });
            bench.registered().2.unwrap();
        }
        let mut all = Guarded { bench, steps: 0 };
        let key = all.key();
        let saved = meshtf_exec::Saved {
            kind: "variable".to_owned(),
            version: meshtf_exec::Edition { number: 1, mark: 1 },
            form: postcard::to_stdvec(&(
                meshtf_tensor::DType::I32,
                meshtf_tensor::PartialShape::from(Tensor::scalar(0i32).shape()),
            ))
            .unwrap(),
            tensors: vec![Tensor::scalar(0i32)],
        };
        all.bench.worker.devices()[0].load_saved(&key, GUARDED, &saved).unwrap();
        all.asks(ToGuard::Serve { session: GUARDED, ask: 1, of: Vec::new() }).unwrap();
        all
    }

    fn key(&self) -> meshtf_exec::ResourceKey {
        let device = (DeviceKind::Cpu, 0);
        let container = meshtf_exec::DEFAULT_CONTAINER.to_owned();
        meshtf_exec::ResourceKey { container, name: "v".to_owned(), session: None, device }
    }

    /// The report that answers a message.
    fn asks(&mut self, message: ToGuard) -> Result<Copied> {
        self.asks_as(MASTER, message)
    }

    /// The same for a message of that peer.
    fn asks_as(&mut self, from: &str, message: ToGuard) -> Result<Copied> {
        self.bench.tell(from, message.into());
        let (_, message) = self.bench.next();
        let Message::ToMaster(ToMaster::Guard { report, .. }) = message else { panic!("{message:?}") };
        match report {
            GuardReport::Ready { result, .. } | GuardReport::Restored { result, .. } => {
                result.map(|()| Copied::default())
            }
            GuardReport::Copied { result, .. } => result,
            GuardReport::Kept { result, .. } => result.map(|()| Copied::default()),
            GuardReport::Superseded { term } => Err(Failure::new(Code::Aborted, format!("term {term}"))),
            GuardReport::Inherited { .. } => panic!("a worker inherits nothing"),
        }
    }

    fn copy(&mut self, cut: u64, base: Option<u64>) -> Copied {
        let copied = self.asks(ToGuard::Copy { session: GUARDED, cut, base, buddy: Peer::new("buddy") }).unwrap();
        if copied.resources > 0 {
            let (to, message) = self.bench.next();
            let is_kept = matches!(&message, Message::ToWorker(ToWorker::Guard(ToGuard::Keep { .. })));
            assert!(to == "buddy" && is_kept, "{message:?}");
        }
        copied
    }

    fn restore(&mut self, ask: u64, cut: u64) -> Result<Copied> {
        self.asks(ToGuard::Restore { session: GUARDED, ask, cut, from: Origin::Here })
    }

    fn back(&mut self, ask: u64) -> Result<Copied> {
        self.asks(ToGuard::Return { session: GUARDED, ask })
    }

    /// A session adds one.
    fn step(&mut self, session: SessionId) {
        self.steps += 1;
        self.bench.start(MASTER, PieceId { session, number: 0 }, self.steps);
        let (_, message) = self.bench.next();
        assert!(matches!(message, Message::ToMaster(ToMaster::Done { .. })), "{message:?}");
    }

    fn value(&self) -> i32 {
        let variable = VariableName { name: "v".to_owned(), ..VariableName::default() };
        self.bench.worker.read_variable(&variable).unwrap().0.item().unwrap()
    }
}

#[test]
fn a_state_is_put_back_as_long_as_that_is_wanted() {
    let mut one = Guarded::new();
    one.step(GUARDED);
    assert_eq!(one.copy(1, None).resources, 1);
    one.step(GUARDED);
    one.restore(2, 1).unwrap();
    assert_eq!(one.value(), 2, "another task may refuse");
    one.back(2).unwrap();
    assert_eq!(one.value(), 1);
    // Its master gives up, or asks anew: an older ask is over.
    one.step(GUARDED);
    one.restore(3, 1).unwrap();
    one.asks(ToGuard::Serve { session: GUARDED, ask: 4, of: Vec::new() }).unwrap();
    assert_eq!(one.back(3).unwrap_err().code, Code::Cancelled);
    assert_eq!(one.value(), 2);
    one.restore(5, 1).unwrap();
    assert!(one.back(4).is_err());
    one.restore(6, 1).unwrap();
    one.bench.tell(MASTER, ToWorker::Release { session: GUARDED });
    assert!(one.back(6).is_err());
    assert_eq!(one.value(), 2, "the session is over");
}

#[test]
fn only_the_heir_takes_the_place_of_a_master_that_is_gone() {
    let mut one = Guarded::new();
    one.step(GUARDED);
    assert_eq!(one.copy(1, None).resources, 1);
    one.step(GUARDED);
    let adopt = |ask| ToGuard::Adopt { session: GUARDED, ask, term: 1, cut: 1, of: Vec::new() };
    let code = |result: Result<Copied>| result.unwrap_err().code;
    one.bench.tell(MASTER, ToGuard::Heir { session: GUARDED, heir: Some(Peer::new("heir")) }.into());
    one.bench.worker.down(&Peer::new(MASTER), None);
    assert_eq!(code(one.asks_as("stranger", adopt(10))), Code::PermissionDenied);
    one.asks_as("heir", adopt(10)).unwrap();
    one.asks_as("heir", adopt(11)).unwrap();
    assert_eq!(code(one.asks(ToGuard::Serve { session: GUARDED, ask: 12, of: Vec::new() })), Code::Aborted);
    // The copy has stayed.
    let restore = ToGuard::Restore { session: GUARDED, ask: 13, cut: 1, from: Origin::Here };
    one.asks_as("heir", restore).unwrap();
    assert_eq!(one.value(), 2);
    one.asks_as("heir", ToGuard::Return { session: GUARDED, ask: 13 }).unwrap();
    assert_eq!(one.value(), 1);
    // Nobody has named another heir.
    one.bench.worker.down(&Peer::new("heir"), None);
    assert_eq!(code(one.asks_as("other", adopt(20))), Code::PermissionDenied);
}

#[test]
fn a_master_that_comes_back_is_refused_once_its_heir_has_the_session() {
    let mut one = Guarded::new();
    one.step(GUARDED);
    assert_eq!(one.copy(1, None).resources, 1);
    one.bench.tell(MASTER, ToGuard::Complete { session: GUARDED, cut: 1 }.into());
    one.bench.tell(MASTER, ToGuard::Heir { session: GUARDED, heir: Some(Peer::new("heir")) }.into());
    // The master is the one that was cut off: it has lost its heir, and names none.
    one.bench.tell(MASTER, ToGuard::Heir { session: GUARDED, heir: None }.into());
    one.step(GUARDED);
    let adopt = |ask, term| ToGuard::Adopt { session: GUARDED, ask, term, cut: 1, of: Vec::new() };
    assert_eq!(one.asks_as("heir", adopt(9, 0)).unwrap_err().code, Code::FailedPrecondition, "it is the master's term");
    // The master is connected, and learns of it.
    one.bench.tell("heir", adopt(10, 1).into());
    let reports: Vec<(String, GuardReport)> = (0..2)
        .map(|_| match one.bench.next() {
            (to, Message::ToMaster(ToMaster::Guard { report, .. })) => (to.to_string(), report),
            (_, message) => panic!("{message:?}"),
        })
        .collect();
    let expected = [
        (MASTER.to_owned(), GuardReport::Superseded { term: 1 }),
        ("heir".to_owned(), GuardReport::Ready { ask: 10, result: Ok(()) }),
    ];
    assert_eq!(reports, expected);
    // Whatever it asks for, it is notified again, and nothing changes.
    let copy = ToGuard::Copy { session: GUARDED, cut: 2, base: Some(1), buddy: Peer::new("buddy") };
    let restore = |ask| ToGuard::Restore { session: GUARDED, ask, cut: 1, from: Origin::Here };
    for message in [copy, restore(20), ToGuard::Serve { session: GUARDED, ask: 21, of: Vec::new() }] {
        assert_eq!(one.asks(message).unwrap_err(), Failure::new(Code::Aborted, "term 1"));
    }
    for message in [ToGuard::Complete { session: GUARDED, cut: 2 }, ToGuard::Return { session: GUARDED, ask: 20 }] {
        assert_eq!(one.asks(message).unwrap_err().code, Code::Aborted);
    }
    one.bench.register(MASTER, PieceId { session: GUARDED, number: 9 });
    let (_, message) = one.bench.next();
    assert!(matches!(message, Message::ToMaster(ToMaster::Guard { report: GuardReport::Superseded { term: 1 }, .. })));
    assert_eq!(one.bench.registered().2.unwrap_err().code, Code::PermissionDenied);
    one.asks_as("heir", restore(30)).unwrap();
    one.asks_as("heir", ToGuard::Return { session: GUARDED, ask: 30 }).unwrap();
    assert_eq!(one.asks(ToGuard::Cede { session: GUARDED }).unwrap_err().code, Code::Aborted);
    one.bench.tell(MASTER, ToWorker::Release { session: GUARDED });
    assert_eq!(one.value(), 1);
}

#[test]
fn an_heir_comes_too_late_once_the_master_has_gone_on_without_it() {
    let mut one = Guarded::new();
    one.step(GUARDED);
    one.copy(1, None);
    one.bench.tell(MASTER, ToGuard::Heir { session: GUARDED, heir: Some(Peer::new("heir")) }.into());
    one.bench.tell(MASTER, ToGuard::Heir { session: GUARDED, heir: None }.into());
    one.step(GUARDED);
    one.copy(2, Some(1));
    one.bench.tell(MASTER, ToGuard::Complete { session: GUARDED, cut: 2 }.into());
    let adopt = ToGuard::Adopt { session: GUARDED, ask: 10, term: 1, cut: 1, of: Vec::new() };
    assert_eq!(one.asks_as("heir", adopt).unwrap_err().code, Code::FailedPrecondition);
    one.asks(ToGuard::Serve { session: GUARDED, ask: 3, of: Vec::new() }).unwrap();
    // A master that gives the session up leaves the copies to its heir.
    one.bench.tell(MASTER, ToGuard::Cede { session: GUARDED }.into());
    let adopt = ToGuard::Adopt { session: GUARDED, ask: 11, term: 1, cut: 2, of: Vec::new() };
    one.asks_as("heir", adopt).unwrap();
    one.asks_as("heir", ToGuard::Restore { session: GUARDED, ask: 12, cut: 2, from: Origin::Here }).unwrap();
}

#[test]
fn a_process_that_is_new_to_a_session_refuses_its_earlier_master() {
    let mut one = Guarded::new();
    let session = SessionId(7);
    one.asks_as("heir", ToGuard::Adopt { session, ask: 10, term: 1, cut: 1, of: Vec::new() }).unwrap();
    let serve = ToGuard::Serve { session, ask: 11, of: Vec::new() };
    assert_eq!(one.asks(serve.clone()).unwrap_err(), Failure::new(Code::Aborted, "term 1"));
    one.bench.register(MASTER, PieceId { session, number: 0 });
    let (_, message) = one.bench.next();
    assert!(matches!(message, Message::ToMaster(ToMaster::Guard { report: GuardReport::Superseded { term: 1 }, .. })));
    assert_eq!(one.bench.registered().2.unwrap_err().code, Code::PermissionDenied);
    one.asks_as("heir", serve).unwrap();
}

#[test]
fn a_state_is_not_put_back_over_the_changes_of_another_session() {
    let mut one = Guarded::new();
    let other = SessionId(2);
    one.step(other);
    assert_eq!(one.copy(1, None).shared, None);
    one.restore(2, 1).unwrap();
    one.back(2).unwrap();
    one.step(other);
    let refused = one.restore(3, 1).unwrap_err();
    let expected = "another session has changed variable 'v' since the newest copy";
    assert_eq!((refused.code, &*refused.message), (Code::FailedPrecondition, expected));
    assert_eq!(one.copy(2, Some(1)).shared.as_deref(), Some("variable 'v'"));
    // A change that comes after all tasks agreed is not lost either.
    one.restore(4, 2).unwrap();
    one.step(other);
    assert_eq!(one.back(4).unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(one.value(), 3);
    // Nor what it has made where this session had nothing.
    assert_eq!(
        one.asks(ToGuard::Restore { session: GUARDED, ask: 5, cut: 2, from: Origin::Nothing }).unwrap_err().code,
        Code::FailedPrecondition
    );
}

#[test]
fn what_came_to_be_where_there_was_nothing_is_dropped() {
    let mut one = Guarded::new();
    one.step(GUARDED);
    one.asks(ToGuard::Restore { session: GUARDED, ask: 2, cut: 1, from: Origin::Nothing }).unwrap();
    one.back(2).unwrap();
    assert_eq!(one.bench.worker.state.resources.version(&one.key()), None);
    assert_eq!(one.copy(2, None).resources, 0);
}

/// A worker whose queued work is done by hand, with three variables of 40 MiB that belong to the guarded session.
fn of_large_variables() -> (Bench, crate::runtime::worker::by_hand::ByHand) {
    let (bench, queued) = bench_of(Worker::by_hand);
    let value = Tensor::vector(vec![0u8; 40 << 20]);
    for name in ["a", "b", "c"] {
        let container = meshtf_exec::DEFAULT_CONTAINER.to_owned();
        let device = (DeviceKind::Cpu, 0);
        let key = meshtf_exec::ResourceKey { container, name: name.to_owned(), session: None, device };
        let spec = (meshtf_tensor::DType::U8, meshtf_tensor::PartialShape::UNKNOWN);
        let saved = meshtf_exec::Saved {
            kind: "variable".to_owned(),
            version: meshtf_exec::Edition::default(),
            form: postcard::to_stdvec(&spec).unwrap(),
            tensors: vec![value.clone()],
        };
        bench.worker.devices()[0].load_saved(&key, GUARDED, &saved).unwrap();
        bench.worker.state.resources.guard_also(GUARDED, std::iter::once(&key));
    }
    bench.tell(MASTER, ToGuard::Serve { session: GUARDED, ask: 1, of: Vec::new() }.into());
    bench.next();
    (bench, queued)
}

/// The messages that were sent, in short.
fn sent(bench: &Bench) -> Vec<String> {
    let short = |(to, message): (Peer, Message)| match message {
        Message::ToWorker(ToWorker::Guard(ToGuard::Keep { cut, chunk, chunks, .. })) => {
            format!("{to}: {chunk} of {chunks} of cut {cut}")
        }
        Message::ToMaster(ToMaster::Guard { report: GuardReport::Copied { cut, result: Ok(_) }, .. }) => {
            format!("{to}: copied {cut}")
        }
        other => panic!("{to}: {other:?}"),
    };
    bench.sent.try_iter().map(short).collect()
}

#[test]
fn a_copy_leaves_room_on_its_link() {
    let (bench, queued) = of_large_variables();
    let copy = |cut| {
        bench.tell(MASTER, ToGuard::Copy { session: GUARDED, cut, base: None, buddy: Peer::new("buddy") }.into());
        bench.worker.guard_next(&queued);
        sent(&bench)
    };
    let taken = |from: &str, cut, chunk| {
        let parcel = crate::protocol::guard::Parcel::Cut(cut);
        bench.tell(from, ToGuard::Taken { session: GUARDED, parcel, chunk }.into());
        sent(&bench)
    };
    // Two chunks are more than may be on their way.
    assert_eq!(copy(1), ["master: copied 1", "buddy: 0 of 3 of cut 1"]);
    assert_eq!(taken("stranger", 1, 0), [""; 0]);
    assert_eq!(taken("buddy", 1, 0), ["buddy: 1 of 3 of cut 1"]);
    assert_eq!(taken("buddy", 1, 0), [""; 0], "a chunk is taken once");
    // Another cut is taken in its place: what is left of the first is not sent.
    assert_eq!(copy(2), ["master: copied 2", "buddy: 0 of 3 of cut 2"]);
    assert_eq!(taken("buddy", 1, 1), [""; 0]);
    assert_eq!(taken("buddy", 2, 0), ["buddy: 1 of 3 of cut 2"]);
    assert_eq!(taken("buddy", 2, 1), ["buddy: 2 of 3 of cut 2"]);
    assert_eq!(taken("buddy", 2, 2), [""; 0]);
    assert_eq!(bench.worker.state.parcels.len(), 0);
    // A loss ends the way of a cut.
    assert_eq!(copy(3), ["master: copied 3", "buddy: 0 of 3 of cut 3"]);
    let back = ToGuard::Restore { session: GUARDED, ask: 2, cut: 2, from: Origin::Here };
    bench.tell(MASTER, back.into());
    assert_eq!(bench.worker.state.parcels.len(), 0);
}

#[test]
fn a_copy_does_not_wait_for_pieces_that_are_compiled() {
    let (bench, queued) = of_large_variables();
    bench.register(MASTER, PieceId { session: GUARDED, number: 0 });
    bench.tell(MASTER, ToGuard::Copy { session: GUARDED, cut: 1, base: None, buddy: Peer::new("buddy") }.into());
    bench.worker.guard_next(&queued);
    assert_eq!(sent(&bench)[..1], ["master: copied 1"]);
    assert!(queued.registers() && !queued.guards());
    bench.worker.register_next(&queued);
    assert_eq!(bench.registered().2, Ok(()));
}

#[test]
fn a_state_that_is_given_back_comes_in_chunks_too() {
    let (bench, queued) = of_large_variables();
    let (ward, back) = (Peer::new("ward"), Peer::new("back"));
    let serve = ToGuard::Serve { session: GUARDED, ask: 2, of: vec![ward.clone()] };
    bench.tell(MASTER, serve.into());
    bench.next();
    // A part of two chunks; each is confirmed to its sender.
    for chunk in 0..2 {
        let resource = SentResource {
            container: meshtf_exec::DEFAULT_CONTAINER.to_owned(),
            name: format!("v{chunk}"),
            is_own: false,
            device: (DeviceKind::Cpu, 0),
            state: Some(SentState {
                kind: "variable".to_owned(),
                version: meshtf_exec::Edition::default(),
                tensors: 1,
            }),
        };
        let keep = ToGuard::Keep { session: GUARDED, cut: 1, base: None, chunk, chunks: 2, resources: vec![resource] };
        let tensors = vec![Tensor::vector(vec![0u8]), Tensor::vector(vec![0u8; 40 << 20])];
        bench.worker.deliver(&ward, keep.into(), tensors);
        bench.worker.guard_next(&queued);
        let (to, message) = bench.next();
        let parcel = crate::protocol::guard::Parcel::Cut(1);
        let expected = ToWorker::from(ToGuard::Taken { session: GUARDED, parcel, chunk });
        assert_eq!((to.as_str(), message), ("ward", expected.into()));
    }
    let (to, message) = bench.next();
    assert!(to == MASTER && format!("{message:?}").contains("Kept"), "{message:?}");
    let give = || ToGuard::GiveBack { session: GUARDED, ask: 3, cut: 1, of: ward.clone(), to: back.clone() };
    let loads = || -> Vec<u32> {
        let chunk = |(to, message): (Peer, Message)| match message {
            Message::ToWorker(ToWorker::Guard(ToGuard::Load { ask: 3, cut: 1, chunk, chunks: 2, .. })) => chunk,
            other => panic!("{to}: {other:?}"),
        };
        bench.sent.try_iter().map(chunk).collect()
    };
    bench.tell(MASTER, give().into());
    bench.worker.guard_next(&queued);
    assert_eq!(loads(), [0]);
    let parcel = crate::protocol::guard::Parcel::Ask(3);
    bench.tell("back", ToGuard::Taken { session: GUARDED, parcel, chunk: 0 }.into());
    assert_eq!(loads(), [1]);
    // Whoever is gone takes nothing, of which the master learns.
    bench.worker.down(&Peer::new("back"), None);
    assert_eq!(bench.worker.state.parcels.len(), 0);
    let restored = || {
        let (to, message) = bench.next();
        let Message::ToMaster(ToMaster::Guard { report: GuardReport::Restored { ask, result }, .. }) = message else {
            panic!("{to}: {message:?}")
        };
        (to, ask, result.unwrap_err().code)
    };
    assert_eq!(restored(), (MASTER.to_owned(), 3, Code::Unavailable));
    // A state that the master asked for before is not given back any more.
    bench.tell(MASTER, ToGuard::Serve { session: GUARDED, ask: 4, of: vec![Peer::new("ward")] }.into());
    bench.next();
    bench.tell(MASTER, give().into());
    bench.worker.guard_next(&queued);
    assert_eq!(restored(), (MASTER.to_owned(), 3, Code::Cancelled));
}

#[test]
fn a_chunk_is_taken_while_a_state_is_put_back() {
    let (bench, queued) = of_large_variables();
    bench.tell(MASTER, ToGuard::Copy { session: GUARDED, cut: 1, base: None, buddy: Peer::new("buddy") }.into());
    bench.worker.guard_next(&queued);
    assert_eq!(sent(&bench), ["master: copied 1", "buddy: 0 of 3 of cut 1"]);
    // The lock under which a state is put back.
    let guards = lock(&bench.worker.state.guards);
    let parcel = crate::protocol::guard::Parcel::Cut(1);
    bench.tell("buddy", ToGuard::Taken { session: GUARDED, parcel, chunk: 0 }.into());
    drop(guards);
    assert_eq!(sent(&bench), ["buddy: 1 of 3 of cut 1"]);
}

#[test]
fn a_copy_leaves_a_quarter_of_the_memory_to_steps() {
    // Three variables of 40 MiB each, whose copies take as much.
    for (mebibytes, fits) in [(161, true), (159, false)] {
        let (bench, queued) = Budget::of(mebibytes << 20).run(of_large_variables);
        bench.tell(MASTER, ToGuard::Serve { session: GUARDED, ask: 2, of: vec![Peer::new("ward")] }.into());
        bench.next();
        bench.tell(MASTER, ToGuard::Copy { session: GUARDED, cut: 1, base: None, buddy: Peer::new("buddy") }.into());
        bench.worker.guard_next(&queued);
        let (_, message) = bench.next();
        let Message::ToMaster(ToMaster::Guard { report: GuardReport::Copied { result, .. }, .. }) = message else {
            panic!("{message:?}")
        };
        assert_eq!(result.map(drop).map_err(|failure| failure.code), fits.then_some(()).ok_or(Code::ResourceExhausted));
        // So does one of another task.
        bench.sent.try_iter().for_each(drop);
        let keep = ToGuard::Keep { session: GUARDED, cut: 1, base: None, chunk: 0, chunks: 1, resources: vec![] };
        let tensors = vec![Tensor::vector(vec![0u8; 120 << 20])];
        bench.worker.deliver(&Peer::new("ward"), keep.into(), tensors);
        bench.worker.guard_next(&queued);
        let kept = bench.sent.try_iter().find_map(|(_, message)| match message {
            Message::ToMaster(ToMaster::Guard { report: GuardReport::Kept { result, .. }, .. }) => Some(result),
            _ => None,
        });
        let kept = kept.expect("the master learns of it").map_err(|failure| failure.code);
        assert_eq!(kept, fits.then_some(()).ok_or(Code::ResourceExhausted), "{mebibytes} MiB");
    }
}
