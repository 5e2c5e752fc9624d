//! Mirrored training of two workers: the bytes of gradients that they move both ways, compared with a bare pair of sockets.

use std::time::{Duration, Instant};

use meshtf::{Client, Session, SessionOptions, Task};
use meshtf_graph::GraphBuilder;
use meshtf_tensor::{DType, Tensor};
use meshtf_train::file;
use meshtf_train::job::{FedPlaceholder, TrainingGraph, job};
use meshtf_train::{Initializer, VariableSpec, add_variable};

use crate::exchange::Pair;
use crate::measure::cpu_seconds;
use crate::peer::cluster;
use crate::report::Report;

/// The variables, and the elements of each: 64 MB in all.
const VARIABLES: usize = 16;
const ELEMENTS: usize = 1 << 20;
/// Bytes of gradients that each worker sends and receives in a step.
pub const BYTES: usize = VARIABLES * ELEMENTS * 4;
/// Each figure is the best of this many rounds of `STEPS` steps: other load on the machine can only slow it down.
const ROUNDS: usize = 4;
const STEPS: usize = 8;

pub async fn speed(report: &mut Report) {
    let alone = alone().await;
    let job = model(2);
    let (peers, node) = cluster("mirrored", Task::new("worker", 0), &[Task::new("worker", 1)]).await;
    let session = node.session(job.graph.clone(), None, SessionOptions::default()).await.expect("a session");
    let begin: Vec<String> = (0..VARIABLES).map(|i| format!("w{i}/assign")).collect();
    let begin: Vec<&str> = begin.iter().map(String::as_str).collect();
    session.run().targets(&begin).await.expect("first values");
    session.run().target(&job.init).await.expect("what the optimizer keeps");
    let mut pair = Pair::start();
    let (mut mirrored, mut bare) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        mirrored = mirrored.min(steps(&session, &job).await / STEPS as u32);
        let start = Instant::now();
        (0..STEPS).for_each(|_| pair.exchange());
        bare = bare.min(start.elapsed() / STEPS as u32);
    }
    let rate = |time: Duration| 2.0 * BYTES as f64 / time.as_secs_f64() / 1e9;
    let (own, other) = (rate(mirrored), rate(bare));
    let (figure, baseline) = (format!("{own:.2} GB/s"), format!("{other:.2} GB/s, a bare pair of sockets"));
    report.row(
        "mirrored, 2 workers, 64 MB of gradients, both ways",
        figure,
        baseline,
        Some(own / other),
        "at least 0.8",
    );
    // Processors that both compute and copy cannot do both at once.
    let exchange = mirrored.saturating_sub(Duration::from_secs_f64(alone));
    let own = rate(exchange);
    report.row(
        "the same, without the time that each worker computes",
        format!("{own:.2} GB/s ({:.0} of {:.0} ms)", exchange.as_secs_f64() * 1e3, mirrored.as_secs_f64() * 1e3),
        format!("{other:.2} GB/s"),
        Some(own / other),
        "at least 0.8",
    );
    drop((session, peers));
    node.close().await;
}

/// The computation of a single worker, which exchanges nothing, in the same step, in seconds of one processor.
async fn alone() -> f64 {
    let job = model(1);
    let (peers, node) = cluster("mirrored-alone", Task::new("worker", 0), &[]).await;
    let session = node.session(job.graph.clone(), None, SessionOptions::default()).await.expect("a session");
    let begin: Vec<String> = (0..VARIABLES).map(|i| format!("w{i}/assign")).collect();
    let begin: Vec<&str> = begin.iter().map(String::as_str).collect();
    session.run().targets(&begin).await.expect("first values");
    session.run().target(&job.init).await.expect("what the optimizer keeps");
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let before = cpu_seconds(std::process::id());
        steps(&session, &job).await;
        best = best.min((cpu_seconds(std::process::id()) - before) / STEPS as f64);
    }
    drop((session, peers));
    node.close().await;
    best
}

/// A model whose step computes little but gradients: the sum of all elements, times the mean of the batch.
fn model(workers: usize) -> TrainingGraph {
    let mut g = GraphBuilder::new();
    let x = g.placeholder("x", DType::F32, [None]).expect("a placeholder");
    let share = g.op("Mean").input(x).input(0).build().expect("a mean");
    let mut sums = Vec::new();
    for i in 0..VARIABLES {
        let spec = VariableSpec::new(&format!("w{i}"), [ELEMENTS], Initializer::Zeros);
        let w = add_variable(&mut g, &spec).expect("a variable");
        sums.push(g.op("Sum").input(w.value).input(0).build().expect("a sum"));
    }
    let sum = g.op("AddN").inputs(sums).build().expect("their sum");
    g.op("Mul").name("loss").input(sum).input(share).build().expect("a loss");
    let sections = format!(
        r#"{{"data": {{"feed": {{"x": "x.npy"}}, "batch": 2}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": 1e-6, "steps": {STEPS}, "workers": {workers}, "mode": "mirrored"}}}}"#
    );
    let sections = file::read(&sections).expect("sections");
    let parts = [FedPlaceholder { name: "x".to_owned(), dtype: DType::F32, example: vec![], there: None }];
    job(g.finish().expect("a graph"), &sections, &parts, STEPS, false).expect("a training")
}

/// The duration of `STEPS` steps whose batches are in the queues.
async fn steps(session: &Session, job: &TrainingGraph) -> Duration {
    for queue in &job.queues {
        let rows = 2 / job.queues.len();
        let batches = Tensor::from_vec([STEPS, rows], vec![1f32; STEPS * rows]);
        session.run().feed(&queue.feeds[0], batches).target(&queue.enqueue).await.expect("batches");
    }
    let start = Instant::now();
    session.run().target(&job.steps[0].run).steps(STEPS as u64).await.expect("steps");
    start.elapsed()
}
