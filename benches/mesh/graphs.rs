//! Graphs that several benches run.

use meshtf_graph::{Graph, GraphBuilder, Input};

/// 238, split over two tasks.
pub fn split() -> Graph {
    let mut graph = GraphBuilder::new();
    let x = graph.constant("x", 2).expect("a constant");
    let mut add = |name: &str, op: &str, a: Input, b: Input, device: &str| {
        graph.op(op).name(name).input(a).input(b).device(device).build().expect("a node")
    };
    let y1 = add("y1", "AddV2", x.into(), 300.into(), "/job:local/task:0");
    let y2 = add("y2", "Sub", x.into(), 66.into(), "/job:local/task:1");
    add("y", "AddV2", y1.into(), y2.into(), "/job:local/task:0");
    graph.finish().expect("a graph")
}
