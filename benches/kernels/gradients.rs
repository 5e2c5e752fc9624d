//! How long it takes to add the gradients of a large graph, without running anything.

use std::time::Instant;

use meshtf::graph::{Graph, GraphBuilder, gradient};
use meshtf::tensor::DType;

/// Layers of five nodes each.
const LAYERS: usize = 2000;

/// Prints the least time of some turns, in milliseconds.
pub fn report() {
    let mut best = f64::MAX;
    let mut added = 0;
    for _ in 0..10 {
        let graph = layers();
        let (y, x) = (graph.output("y").expect("it was added"), graph.output("x").expect("it was added"));
        let mut g = GraphBuilder::from(graph);
        let begun = Instant::now();
        gradient::gradients(&mut g, &[y], &[x], &gradient::Differentiation::default()).expect("it has gradients");
        best = best.min(begun.elapsed().as_secs_f64());
        added = g.nodes().len();
    }
    println!("gradients of {} nodes, {added} added: {:.1} ms (aim: under 200)", 5 * LAYERS + 2, best * 1e3);
}

/// Products, biases, activations and sums, one behind the other.
fn layers() -> Graph {
    let mut g = GraphBuilder::new();
    let mut build = || -> meshtf::Result<()> {
        let x = g.placeholder("x", DType::F32, meshtf::tensor::PartialShape::UNKNOWN)?;
        let mut last = x;
        for _ in 0..LAYERS {
            let weights = g.constant("w", [[0.5f32, 0.1], [0.2, 0.4]])?;
            let product = g.op("MatMul").input(last).input(weights).build()?;
            let active = g.op("Tanh").input(product).build()?;
            let gate = g.op("Sigmoid").input(product).build()?;
            last = g.op("Mul").input(active).input(gate).build()?;
        }
        g.op("Square").name("y").input(last).build().map(|_| ())
    };
    build().expect("the nodes are valid");
    g.finish().expect("the graph is valid")
}
