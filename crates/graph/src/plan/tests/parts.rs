//! Tests that the pieces of a graph, run one by one, compute the same as the whole graph: random graphs of integer arithmetic,
//! and a long one.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A random directed acyclic graph of integer arithmetic on random devices.
#[derive(Debug, Clone)]
struct Program {
    /// Op, two inputs and a control input (indices modulo the number of nodes before), device.
    nodes: Vec<(u8, usize, usize, Option<usize>, u8)>,
    fetches: Vec<usize>,
    feeds: Vec<usize>,
}

fn program() -> impl Strategy<Value = Program> {
    let node = (0u8..5, any::<usize>(), any::<usize>(), proptest::option::weighted(0.2, any::<usize>()), 0u8..4);
    (
        proptest::collection::vec(node, 1..40),
        proptest::collection::vec(any::<usize>(), 1..5),
        proptest::collection::vec(any::<usize>(), 0..4),
    )
        .prop_map(|(nodes, fetches, feeds)| Program { nodes, fetches, feeds })
}

impl Program {
    fn graph(&self) -> Graph {
        let name = |i: usize| format!("n{i}");
        let defs = self.nodes.iter().enumerate().map(|(i, &(op, a, b, control, device))| {
            let mut def = NodeDef { name: name(i), ..NodeDef::default() };
            if i == 0 || op == 0 {
                def.op = "Const".to_owned();
                def.attrs.set("value", Attr::Tensor(Tensor::scalar(i as i64 + 2)));
            } else {
                def.op = ["", "Add", "Sub", "Mul", "Neg"][usize::from(op)].to_owned();
                def.inputs.push(name(a % i));
                if op != 4 {
                    def.inputs.push(name(b % i));
                }
            }
            if let (Some(control), true) = (control, i > 0) {
                def.inputs.push(format!("^n{}", control % i));
            }
            if device < 3 {
                def.device = format!("/job:local/task:{device}");
            }
            def
        });
        Graph::new(defs.collect()).expect("every input stands before its node")
    }

    /// The value of a node in the whole graph, by recursion.
    fn value(&self, i: usize, fed: &BTreeMap<usize, i64>) -> i64 {
        let (op, a, b, ..) = self.nodes[i];
        match (fed.get(&i), op) {
            (Some(&value), _) => value,
            (None, 0) => i as i64 + 2,
            (None, _) if i == 0 => 2,
            (None, op) => {
                let (a, b) = (self.value(a % i, fed), self.value(b % i, fed));
                arithmetic(["", "Add", "Sub", "Mul", "Neg"][usize::from(op)], &[a, b])
            }
        }
    }
}

fn arithmetic(op: &str, inputs: &[i64]) -> i64 {
    match op {
        "Add" => inputs[0].wrapping_add(inputs[1]),
        "Sub" => inputs[0].wrapping_sub(inputs[1]),
        "Mul" => inputs[0].wrapping_mul(inputs[1]),
        "Neg" => inputs[0].wrapping_neg(),
        other => panic!("{other}"),
    }
}

/// Runs the pieces of a plan without loops, each as far as possible, in turns; returns the fetches.
fn run_pieces(plan: &Plan, feeds: &[i64]) -> Vec<i64> {
    let mut crossed: BTreeMap<u32, Option<i64>> = BTreeMap::new();
    let mut fetched = vec![0; plan.fetch_types.len()];
    let mut done: Vec<Vec<Option<i64>>> = plan.pieces.iter().map(|piece| vec![None; piece.nodes.len()]).collect();
    loop {
        let mut went_on = false;
        for (piece, done) in plan.pieces.iter().zip(&mut done) {
            for (i, node) in piece.nodes.iter().enumerate() {
                let inputs: Option<Vec<i64>> = node.inputs.iter().map(|&(from, _)| done[from as usize]).collect();
                let waits = node.control.iter().any(|&from| done[from as usize].is_none());
                let (None, Some(inputs), false) = (done[i], inputs, waits) else { continue };
                done[i] = match &node.op {
                    PieceOp::Op(op) if op == "Const" => node.attrs.tensor("value").unwrap().item().ok(),
                    PieceOp::Op(op) => Some(arithmetic(op, &inputs)),
                    PieceOp::Feed(place) => Some(feeds[piece.feeds[*place as usize] as usize]),
                    PieceOp::Fetch(place) => {
                        fetched[piece.fetches[*place as usize] as usize] = inputs[0];
                        Some(0)
                    }
                    PieceOp::Send { transfer, .. } => {
                        crossed.insert(*transfer, inputs.first().copied());
                        Some(0)
                    }
                    PieceOp::Recv { transfer, .. } => crossed.get(transfer).map(|value| value.unwrap_or(0)),
                };
                went_on |= done[i].is_some();
            }
        }
        if !went_on {
            assert!(done.iter().flatten().all(Option::is_some), "a node never ran");
            return fetched;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]
    #[test]
    fn the_parts_answer_what_the_whole_does(program in program()) {
        let n = program.nodes.len();
        let feeds: BTreeSet<usize> = program.feeds.iter().map(|i| i % n).collect();
        let fed: BTreeMap<usize, i64> = feeds.iter().map(|&i| (i, 1000 + i as i64)).collect();
        let fetches: Vec<usize> = program.fetches.iter().map(|i| i % n).collect();
        let signature = Signature {
            feeds: feeds.iter().map(|i| format!("n{i}")).collect(),
            fetches: fetches.iter().map(|i| format!("n{i}:0")).collect(),
            targets: vec![format!("n{}", n - 1)],
            ..Signature::default()
        };
        let tasks = ["/job:local/task:0/cpu:0", "/job:local/task:1/cpu:0", "/job:local/task:2/cpu:0"];
        let devices = devices(&tasks);
        let plan = checked(&program.graph(), &devices, &signature, &options(&devices));
        let expected: Vec<i64> = fetches.iter().map(|&i| program.value(i, &fed)).collect();
        prop_assert_eq!(run_pieces(&plan, &fed.values().copied().collect::<Vec<_>>()), expected);
    }
}

#[test]
fn a_hundred_thousand_nodes_are_planned() {
    let defs = (0..100_000).map(|i: u32| {
        let mut def = NodeDef { name: format!("n{i}"), op: "Neg".into(), ..NodeDef::default() };
        def.device = format!("/job:local/task:{}", i / 1000 % 2);
        match i {
            0 => {
                def.op = "Const".into();
                def.attrs.set("value", Attr::Tensor(Tensor::scalar(1f32)));
            }
            _ => def.inputs.push(format!("n{}", i - 1)),
        }
        def
    });
    let graph = Graph::new(defs.collect()).expect("a chain");
    let devices = two_tasks();
    let plan = plan(&graph, &devices, &signature(&[], &["n99999"], &[]), &options(&devices)).expect("it plans");
    assert_eq!(plan.transfers.len(), 99);
    assert!(plan.transfers.iter().all(|transfer| transfer.bytes == Some(4)));
}
