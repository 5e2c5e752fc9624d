//! A classifier of points inside and outside of a circle: two layers, each on a task of its own, trained by a step in the graph.
//!
//! `cargo run --release --example classifier` hosts both tasks in this process. Prints the accuracy on the training data.

use meshtf::model::Model;
use meshtf::tensor::{DType, Tensor};
use meshtf::train::{Optimizer, Training};
use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};

#[tokio::main]
async fn main() -> meshtf::Result<()> {
    println!("accuracy {:.3}", accuracy().await?);
    Ok(())
}

/// Trains the classifier; returns its accuracy on the training data.
pub async fn accuracy() -> meshtf::Result<f32> {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(2)]);
    let y = m.placeholder("y", DType::I32, [None]);
    let hidden = m.on("/job:worker/task:0", || x.dense("hidden", 16).tanh());
    let logits = m.on("/job:worker/task:1", || hidden.dense("logits", 2));
    let loss = logits.sparse_cross_entropy(&y).mean();
    let accuracy = logits.accuracy(&y).named("accuracy");
    m.minimize(&loss, &Training::new(Optimizer::ADAM, 0.05));

    let tasks = [Task::new("worker", 0), Task::new("worker", 1)];
    let cluster = LocalCluster::start(&tasks, BackendChoice::Auto)?;
    let session = cluster.session(m.finish()?, &tasks[0], SessionOptions::default()).await?;
    let points: Vec<[f32; 2]> =
        (0..400).map(|i| [(i % 20) as f32 / 10.0 - 1.0, (i / 20) as f32 / 10.0 - 1.0]).collect();
    let inside: Vec<i32> = points.iter().map(|[a, b]| i32::from(a * a + b * b < 0.5)).collect();
    let feeds = [("x", Tensor::from(points)), ("y", Tensor::from(inside))];
    session.run().target("init").await?;
    session.run().feeds(&feeds).target("train/step").steps(300).await?;
    session.run().feeds(&feeds).fetch(accuracy.name()).await?[0].item()
}
