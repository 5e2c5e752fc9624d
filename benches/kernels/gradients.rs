//! The time to add the gradients of a large graph, and to plan a training as well as its model, without running anything.

use std::time::Instant;

use meshtf_graph::plan::{PlanOptions, Signature, plan};
use meshtf_graph::{Graph, GraphBuilder, gradient};
use meshtf_tensor::DType;
use meshtf_tensor::device::{DeviceFacts, DeviceKind, Task};
use meshtf_train::model::Model;
use meshtf_train::{Optimizer, Training};

/// Layers of five nodes each.
const LAYERS: usize = 2000;
/// Dense layers of the model that is planned.
const DENSE: usize = 300;

/// Prints both times.
pub fn report() {
    added();
    plans();
}

/// Prints the least time of some turns, in milliseconds.
fn added() {
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

/// Prints the time to plan a loss and a training step, the least of some turns each.
fn plans() {
    let m = Model::new();
    let mut last = m.placeholder("x", DType::F32, [None, Some(4)]);
    for i in 0..DENSE {
        last = last.dense(&format!("layer_{i}"), 4).tanh();
    }
    let loss = last.square().mean().named("loss");
    m.minimize(&loss, &Training::new(Optimizer::ADAM, 0.01));
    let graph = m.finish().expect("a model");
    let device = Task::new("local", 0).device(DeviceKind::Cpu, 0);
    let options = PlanOptions { default_device: device.clone(), soft_placement: false, by_cost: None };
    let devices = [DeviceFacts::unknown(device)];
    let of = |fetch: &str, target: Option<&str>| Signature {
        feeds: vec!["x".to_owned()],
        fetches: vec![fetch.to_owned()],
        targets: target.map(str::to_owned).into_iter().collect(),
        ..Signature::default()
    };
    let (forward, training) = (of("loss", None), of("loss", Some("train/step")));
    let (mut of_forward, mut of_training) = (f64::MAX, f64::MAX);
    for _ in 0..10 {
        for (signature, best) in [(&forward, &mut of_forward), (&training, &mut of_training)] {
            let begun = Instant::now();
            plan(&graph, &devices, signature, &options).expect("a plan");
            *best = best.min(begun.elapsed().as_secs_f64());
        }
    }
    println!(
        "plan of {DENSE} dense layers: {:.1} ms, with their training by Adam {:.1} ms, {:.1} times (aim: at most 8)",
        of_forward * 1e3,
        of_training * 1e3,
        of_training / of_forward
    );
}

/// Products, biases, activations and sums in a chain.
fn layers() -> Graph {
    let mut g = GraphBuilder::new();
    let mut build = || -> meshtf::Result<()> {
        let x = g.placeholder("x", DType::F32, meshtf_tensor::PartialShape::UNKNOWN)?;
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
