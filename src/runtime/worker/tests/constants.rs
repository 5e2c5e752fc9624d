//! Large constants: how long a worker holds them, and for which sessions.

use super::*;
use crate::protocol::Content;
use crate::protocol::constants::TakenOut;
use crate::protocol::constants::nodes_of;

const TABLE: Content = Content([7; 32]);

/// A piece that computes the maximum of a table, and the table.
fn piece() -> (Piece, Tensor) {
    let text = r#"{ "version": 1, "nodes": {
        "x": 2, "table": { "op": "Fill", "inputs": [[3000], "x"] }, "y": { "op": "Max", "inputs": ["table", 0] } } }"#;
    let mut defs = read(text.as_bytes()).unwrap().nodes;
    let table = Tensor::vector((0..3000).collect::<Vec<i32>>());
    for def in defs.iter_mut().filter(|def| def.name == "table") {
        (def.op, def.inputs) = ("Const".to_owned(), vec![]);
        def.attrs.set("value", table.clone().into());
    }
    let graph = Graph::new(defs).unwrap();
    let signature = Signature { fetches: vec!["y".to_owned()], ..Signature::default() };
    let name = Task::new("t", 0).device(DeviceKind::Cpu, 0);
    let options = PlanOptions { default_device: name.clone(), soft_placement: false, by_cost: None };
    (plan(&graph, &[DeviceFacts::unknown(name)], &signature, &options).unwrap().pieces.remove(0), table)
}

impl Bench {
    /// Sends a piece, with its table or without; returns the answer.
    fn register_with(&self, id: PieceId, piece: &Piece, with_table: bool) -> Result<()> {
        let mut pieces = vec![(id, piece.clone())];
        let taken = TakenOut::of(&mut nodes_of(&mut pieces), |_, _, _| Some(TABLE));
        assert_eq!(taken.references.len(), 1);
        let (constants, tensors) = taken.without(|_| !with_table);
        let message = ToWorker::Register { session: id.session, isolated: false, pieces, constants, guarded: false };
        self.worker.deliver(&Peer::new(MASTER), message, tensors);
        self.registered().2
    }

    fn runs(&self, piece: PieceId, step: u64) {
        self.start(MASTER, piece, step);
        assert_eq!(self.next().1, Message::from(ToMaster::Done { piece, step, count: 1 }));
    }

    fn constants(&self, session: u64) -> Option<usize> {
        self.worker.state.sessions().get(&SessionId(session)).map(|session| session.constants.len())
    }
}

#[test]
fn a_constant_stays_for_as_long_as_a_piece_uses_it() {
    let bench = bench();
    let (piece, table) = piece();
    bench.register_with(id(1, 0), &piece, true).unwrap();
    bench.register_with(id(1, 1), &piece, false).unwrap();
    bench.runs(id(1, 1), 1);
    assert_eq!(bench.constants(1), Some(1));
    bench.tell(MASTER, ToWorker::Forget { pieces: vec![id(1, 0)] });
    bench.register_with(id(1, 2), &piece, false).unwrap();
    bench.runs(id(1, 2), 2);
    bench.tell(MASTER, ToWorker::Forget { pieces: vec![id(1, 1), id(1, 2)] });
    assert_eq!((bench.constants(1), bench.pieces()), (Some(0), 0));
    // Then it has to come again.
    let failure = bench.register_with(id(1, 3), &piece, false).unwrap_err();
    assert_eq!(failure.code, Code::FailedPrecondition, "{failure}");
    assert_eq!(failure.task.as_deref(), Some("/job:t/task:0"));
    assert!(failure.message.contains("constant 0707070707070707 of node table was not sent"), "{failure}");
    bench.register_with(id(1, 3), &piece, true).unwrap();
    bench.runs(id(1, 3), 3);
    bench.tell(MASTER, ToWorker::Release { session: SessionId(1) });
    assert_eq!(bench.worker.holds(), None);
    drop(piece);
    assert!(table.is_unique(), "nobody else has its elements");
}

#[test]
fn a_session_gets_no_constant_of_another() {
    let bench = bench();
    let (piece, _) = piece();
    bench.register_with(id(1, 0), &piece, true).unwrap();
    // A session that knows the constant's content does not get it.
    let failure = bench.register_with(id(2, 0), &piece, false).unwrap_err();
    assert_eq!(failure.code, Code::FailedPrecondition, "{failure}");
    assert_eq!((bench.constants(1), bench.constants(2)), (Some(1), None));
}

#[test]
fn a_registration_that_fails_leaves_no_constant() {
    let bench = bench();
    let (piece, _) = piece();
    bench.register_with(id(1, 0), &bench.piece_elsewhere(&piece), true).unwrap_err();
    assert_eq!(bench.constants(1), None);
    bench.register_with(id(1, 1), &piece, true).unwrap();
    bench.register_with(id(1, 2), &bench.piece_elsewhere(&piece), true).unwrap_err();
    assert_eq!(bench.constants(1), Some(1));
    // Fewer tensors than the message announces.
    let constants = Constants { beside: vec![TABLE], ..Constants::default() };
    let pieces = vec![(id(1, 3), piece)];
    bench
        .tell(MASTER, ToWorker::Register { session: SessionId(1), isolated: false, pieces, constants, guarded: false });
    assert_eq!(bench.registered().2.unwrap_err().code, Code::InvalidArgument);
    bench.tell(MASTER, ToWorker::Release { session: SessionId(1) });
    assert_eq!(bench.worker.holds(), None);
}

impl Bench {
    /// A piece for a device that does not exist.
    fn piece_elsewhere(&self, piece: &Piece) -> Piece {
        Piece { device: Task::new("t", 0).device(DeviceKind::Gpu, 7), ..piece.clone() }
    }
}
