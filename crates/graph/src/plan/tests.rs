//! Tests of plans of small graphs, rendered as text, and of the invariants of every plan.

use std::collections::{BTreeMap, BTreeSet};

use meshtf_tensor::Tensor;
use meshtf_tensor::device::{Capacity, DeviceMemory};
use meshtf_tensor::failure::{Code, Failure};

use super::*;
use crate::{Attr, NodeDef};

mod crossing;
mod parts;
mod placing;
mod recorded;
mod simplified;

/// A graph with one node per line: `name = OP INPUT… KEY=VALUE… @DEVICE`, or `name = 2` for a constant.
fn graph(text: &str) -> Graph {
    let defs = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| {
        let (name, rest) = line.split_once(" = ").expect("name = …");
        let mut words = rest.split_whitespace();
        let op = words.next().expect("an op");
        let mut def = NodeDef { name: name.to_owned(), op: op.to_owned(), ..NodeDef::default() };
        if let Ok(value) = op.parse::<i32>() {
            def.op = "Const".to_owned();
            def.attrs.set("value", Attr::Tensor(Tensor::scalar(value)));
        }
        for word in words {
            match (word.strip_prefix('@'), word.split_once('=')) {
                (Some(device), _) => def.device = device.to_owned(),
                (None, Some((key, value))) => def.attrs.set(key, attr(key, value)),
                (None, None) => def.inputs.push(word.to_owned()),
            }
        }
        def
    });
    Graph::new(defs.collect()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn attr(key: &str, value: &str) -> Attr {
    match (key, value) {
        ("_class", name) => Attr::Strs(vec![format!("loc:@{name}").into_bytes()]),
        ("shape", sizes) => Attr::Shape(PartialShape(Some(sizes.split(',').map(|size| size.parse().ok()).collect()))),
        (_, "true" | "false") => Attr::Bool(value == "true"),
        _ => match (DType::from_name(value), value.parse()) {
            (Some(dtype), _) => Attr::Type(dtype),
            (None, Ok(int)) => Attr::Int(int),
            (None, Err(_)) => Attr::Str(value.as_bytes().to_vec()),
        },
    }
}

fn devices(names: &[&str]) -> Vec<DeviceFacts> {
    names.iter().map(|name| DeviceFacts::unknown(name.parse().expect("a device name"))).collect()
}

/// Two tasks with one CPU each, the cluster of most of these tests.
fn two_tasks() -> Vec<DeviceFacts> {
    devices(&["/job:local/task:0/device:CPU:0", "/job:local/task:1/device:CPU:0"])
}

fn options(devices: &[DeviceFacts]) -> PlanOptions {
    PlanOptions { default_device: devices[0].name.clone(), soft_placement: false, by_cost: None }
}

fn signature(feeds: &[&str], fetches: &[&str], targets: &[&str]) -> Signature {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Signature { feeds: owned(feeds), fetches: owned(fetches), targets: owned(targets), ..Signature::default() }
}

/// Plans, and checks the plan against every invariant.
fn checked(graph: &Graph, devices: &[DeviceFacts], signature: &Signature, options: &PlanOptions) -> Plan {
    let made = plan(graph, devices, signature, options).unwrap_or_else(|error| panic!("{error}"));
    check_invariants(graph, signature, &made);
    let reversed: Vec<DeviceFacts> = devices.iter().rev().cloned().collect();
    let again = plan(graph, &reversed, signature, options).expect("it planned before");
    assert_eq!(postcard::to_stdvec(&made).unwrap(), postcard::to_stdvec(&again).unwrap(), "not the same bytes");
    made
}

fn check_invariants(graph: &Graph, signature: &Signature, plan: &Plan) {
    assert!(plan.pieces.is_sorted_by(|a, b| a.device < b.device), "pieces in the order of their devices");
    let mut sends: BTreeMap<u32, (&DeviceName, &DeviceName)> = BTreeMap::new();
    let mut recvs: BTreeMap<u32, (&DeviceName, &DeviceName)> = BTreeMap::new();
    let mut runs: Vec<(&str, &DeviceName)> = Vec::new();
    let mut fetched: Vec<u32> = Vec::new();
    for piece in &plan.pieces {
        check_piece(piece);
        fetched.extend(&piece.fetches);
        for node in &piece.nodes {
            match &node.op {
                PieceOp::Op(_) => runs.push((&node.name, &piece.device)),
                PieceOp::Send { transfer, to } => {
                    assert_eq!(sends.insert(*transfer, (&piece.device, to)), None, "one Send a transfer");
                }
                PieceOp::Recv { transfer, from } => {
                    assert_eq!(recvs.insert(*transfer, (from, &piece.device)), None, "one Recv a transfer");
                }
                PieceOp::Feed(_) | PieceOp::Fetch(_) => {}
            }
        }
    }
    let transfers: BTreeMap<u32, _> = (0..).zip(plan.transfers.iter().map(|t| (&t.from, &t.to))).collect();
    assert_eq!(sends, transfers);
    assert_eq!(recvs, transfers);
    // But a variable may be read at several times.
    let is_variable = |name: &str| graph.find(name).is_some_and(|node| graph.node(node).op.name == "VariableV2");
    let values: Vec<_> = plan.transfers.iter().filter(|t| !is_variable(&t.tensor)).collect();
    let distinct: BTreeSet<_> = values.iter().map(|t| (&t.tensor, &t.to)).collect();
    assert_eq!(distinct.len(), values.len(), "one transfer a value and device");
    assert!(plan.transfers.iter().all(|t| t.from != t.to && !t.dtype.is_some_and(DType::is_handle)));

    fetched.sort_unstable();
    assert_eq!(fetched, (0..signature.fetches.len() as u32).collect::<Vec<_>>(), "each fetch once");
    assert_eq!(plan.feed_types.len(), signature.feeds.len());
    assert_eq!(plan.fetch_types.len(), signature.fetches.len());

    let mut placed: Vec<(&str, &DeviceName)> = plan.placements.iter().map(|p| (p.node.as_str(), &p.device)).collect();
    let in_order: Vec<_> = placed.iter().map(|(name, _)| graph.find(name)).collect();
    assert!(in_order.is_sorted(), "placements in the graph's order");
    placed.sort_unstable();
    runs.sort_unstable();
    assert_eq!(placed, runs, "what is placed is what runs");
    for pair in runs.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        let op = graph.node(graph.find(pair[0].0).unwrap()).op.name;
        assert!(matches!(op, "Enter" | "NextIteration" | "Const"), "{} runs twice", pair[0].0);
    }
}

fn check_piece(piece: &Piece) {
    let op = |node: &PieceNode| if let PieceOp::Op(op) = &node.op { op.clone() } else { String::new() };
    assert_eq!(piece.frames[0].parent, 0);
    for (i, frame) in piece.frames.iter().enumerate().skip(1) {
        assert!((frame.parent as usize) < i, "parents first");
        assert!(frame.parallel_iterations > 0);
        if let Some(pred) = frame.pred {
            let pred = &piece.nodes[pred as usize];
            assert_eq!((pred.output_frame as usize, pred.outputs[0].dtype), (i, DType::Bool));
        }
    }
    for (i, node) in piece.nodes.iter().enumerate() {
        assert_eq!(node.inputs.len(), node.input_refs.len());
        for (&(from, port), &is_ref) in node.inputs.iter().zip(&node.input_refs) {
            let producer = &piece.nodes[from as usize];
            assert!((port as usize) < producer.outputs.len(), "{} reads {}:{port}", node.name, producer.name);
            assert!(!is_ref || producer.outputs[port as usize].is_ref, "{} takes no reference", node.name);
            let is_back = op(producer) == "NextIteration" && op(node) == "Merge";
            assert!((from as usize) < i || is_back, "{} before its input {}", node.name, producer.name);
            assert_eq!(producer.output_frame, node.frame, "{} and its input {}", node.name, producer.name);
        }
        for &before in &node.control {
            assert!((before as usize) < i);
            assert_eq!(piece.nodes[before as usize].output_frame, node.frame);
        }
        let (own, out) = (node.frame as usize, node.output_frame as usize);
        match op(node).as_str() {
            "Enter" => assert_eq!(piece.frames[out].parent as usize, own),
            "Exit" => assert_eq!(piece.frames[own].parent as usize, out),
            _ => assert_eq!(own, out),
        }
        match node.op {
            PieceOp::Feed(place) => assert!((place as usize) < piece.feeds.len()),
            PieceOp::Fetch(place) => assert!((place as usize) < piece.fetches.len() && own == 0),
            _ => {}
        }
    }
}

/// `tensor from→to` with tasks' numbers, for plans over `/job:local`.
fn transfers(plan: &Plan) -> Vec<String> {
    let told = plan.transfers.iter().map(|t| format!("{} {}→{}", t.tensor, t.from.task.index, t.to.task.index));
    told.collect()
}

/// `node task why`
fn placements(plan: &Plan) -> Vec<String> {
    let why = |why: &Why| match why {
        Why::Requested => "requested".to_owned(),
        Why::Colocated { with } => format!("with {with}"),
        Why::Soft { .. } => "soft".to_owned(),
        Why::Default => "default".to_owned(),
        Why::Cost => "cost".to_owned(),
    };
    plan.placements.iter().map(|p| format!("{} {} {}", p.node, p.device.task.index, why(&p.why))).collect()
}

#[test]
fn the_first_graph_is_split_where_it_says() {
    let graph = graph(
        "x = 2
         k300 = 300
         k66 = 66
         y1 = Add x k300 @/job:local/task:0
         y2 = Sub x k66 @/job:local/task:1
         y = Add y1 y2 @/job:local/task:0
         unused = Neg y @/job:nowhere",
    );
    let devices = two_tasks();
    let plan = checked(&graph, &devices, &signature(&[], &["y"], &[]), &options(&devices));
    assert_eq!(transfers(&plan), ["y2 1→0"]);
    assert_eq!(plan.transfers[0].bytes, Some(4));
    assert_eq!(
        placements(&plan),
        [
            "x 0 default",
            "x 1 with y2",
            "k300 0 default",
            "k66 1 with y2",
            "y1 0 requested",
            "y2 1 requested",
            "y 0 requested"
        ]
    );
    let whole = checked(&graph, &devices[..1], &signature(&[], &["x", "k66"], &[]), &options(&devices));
    assert_eq!((whole.pieces.len(), whole.transfers.len()), (1, 0));
}

#[test]
fn a_value_crosses_once_to_each_device_and_order_rides_along() {
    let graph = graph(
        "x = 1 @/job:local/task:0
         a = Neg x @/job:local/task:1
         b = Abs x @/job:local/task:1
         c = NoOp ^x @/job:local/task:1
         d = NoOp ^noop @/job:local/task:1
         e = NoOp ^noop ^a @/job:local/task:1
         noop = NoOp @/job:local/task:0",
    );
    let devices = two_tasks();
    let plan = checked(&graph, &devices, &signature(&[], &["a", "b"], &["c", "d", "e"]), &options(&devices));
    assert_eq!(transfers(&plan), ["x 0→1", "^noop 0→1"]);
}
