//! A state that is put back: only what the session has changed, and only as long as its master wants it.

use super::*;
use crate::protocol::guard::{Copied, GuardReport, Origin};
use crate::protocol::inquiry::VariableName;

const GUARDED: SessionId = SessionId(1);

/// A piece that adds one to a variable.
fn adds(name: &DeviceName) -> Piece {
    let text = r#"{ "version": 1, "nodes": {
        "v": { "op": "VarHandleOp", "attrs": { "dtype": "int32", "shape": [], "shared_name": "v" } },
        "add": { "op": "AssignAddVariableOp", "inputs": ["v", 1] } } }"#;
    let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
    let options = PlanOptions { default_device: name.clone(), soft_placement: false };
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
        self.bench.tell(MASTER, message.into());
        let (_, message) = self.bench.next();
        let Message::ToMaster(ToMaster::Guard { report, .. }) = message else { panic!("{message:?}") };
        match report {
            GuardReport::Ready { result, .. } | GuardReport::Restored { result, .. } => {
                result.map(|()| Copied::default())
            }
            GuardReport::Copied { result, .. } => result,
            GuardReport::Kept { result, .. } => result.map(|()| Copied::default()),
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
