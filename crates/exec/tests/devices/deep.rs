//! Tests of pieces that are very deep: long chains of nodes, and loops within loops.

use meshtf_graph::plan::{Frame, Mode, Piece, PieceNode, PieceOp};
use meshtf_graph::{Attrs, OutputType};

use super::*;

/// A node of a piece, in one frame, with one int32 output or, for a fetch, none.
fn piece_node(name: String, op: PieceOp, input: Option<u32>, frames: [u32; 2]) -> PieceNode {
    let is_fetch = matches!(op, PieceOp::Fetch(_));
    let attrs = match &op {
        PieceOp::Op(op) if op == "Const" => Attrs::from([("value", Attr::Tensor(Tensor::scalar(7)))]),
        _ => Attrs::default(),
    };
    PieceNode {
        name,
        op,
        inputs: input.map(|from| (from, 0)).into_iter().collect(),
        input_refs: vec![false; usize::from(input.is_some())],
        control: Vec::new(),
        outputs: if is_fetch { Vec::new() } else { vec![OutputType { dtype: DType::I32, is_ref: false }] },
        attrs,
        frame: frames[0],
        output_frame: frames[1],
    }
}

pub(super) fn piece(frames: u32, ops: impl IntoIterator<Item = (&'static str, [u32; 2])>) -> Piece {
    let frame = |i: u32| Frame {
        name: if i == 0 { String::new() } else { format!("loop{i}") },
        parent: i.saturating_sub(1),
        parallel_iterations: 1,
        pred: None,
    };
    let mut nodes = vec![piece_node("seven".into(), PieceOp::Op("Const".into()), None, [0, 0])];
    for (op, frames) in ops {
        let before = nodes.len() as u32 - 1;
        nodes.push(piece_node(format!("n{before}"), PieceOp::Op(op.into()), Some(before), frames));
    }
    let last = nodes.len() as u32 - 1;
    nodes.push(piece_node("_Fetch/x".into(), PieceOp::Fetch(0), Some(last), [0, 0]));
    Piece {
        device: Task::new("local", 0).device(DeviceKind::Cpu, 0),
        nodes,
        frames: (0..=frames).map(frame).collect(),
        feeds: Vec::new(),
        fetches: vec![0],
        mode: Mode::Whole,
    }
}

/// A constant passed through this number of nodes.
pub(super) fn chain(nodes: usize) -> Piece {
    piece(0, std::iter::repeat_n(("Identity", [0, 0]), nodes))
}

/// A constant that enters this number of loops, each within the one before, and exits them again.
fn nest(loops: u32) -> Piece {
    let enters = (1..=loops).map(|i| ("Enter", [i - 1, i]));
    let exits = (1..=loops).rev().map(|i| ("Exit", [i, i - 1]));
    piece(loops, enters.chain(exits))
}

#[test]
fn depth_costs_neither_the_stack_nor_the_square_of_itself() {
    let cluster = Cluster::new(1);
    let device = cluster.device(&cluster.names[0]);
    for (number, piece) in [chain(200_000), nest(30_000)].into_iter().enumerate() {
        let id = PieceId { session: cluster.session, number: number as u32 };
        device.register(id, piece).unwrap();
        device.start(id, 1 + 2 * number as u64, 2, false, Vec::new());
        for _ in 0..2 {
            match cluster.events.recv_timeout(PATIENCE).expect("a step that waits for nothing ends") {
                Event::Done { fetches, .. } => assert_eq!(fetches, [Tensor::scalar(7)]),
                Event::Failed { failure, .. } => panic!("{failure}"),
            }
        }
    }
    cluster.is_empty();
    device.release(cluster.session);
}
