//! A classifier of points inside and outside of a circle, trained by two workers with a `Trainer`: batches, an evaluation on
//! held-out points, mirrored variables.
//!
//! `cargo run --release --example trainer` hosts both workers in this process. Prints the accuracy on the held-out points. With a
//! `meshtf::Node` in place of the `LocalCluster`, the nodes `worker/0` and `worker/1` of a mesh train.

use meshtf::model::Model;
use meshtf::tensor::DType;
use meshtf::train::{EvaluateSection, Examples, Optimizer, Options, Sections, Trainer, Training, UpdateMode};
use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions};

#[tokio::main]
async fn main() -> meshtf::Result<()> {
    println!("accuracy {:.3}", accuracy().await?);
    Ok(())
}

/// Trains the classifier; returns its accuracy on the held-out points.
pub async fn accuracy() -> meshtf::Result<f64> {
    let m = Model::new();
    let (x, y) = (m.placeholder("x", DType::F32, [None, Some(2)]), m.placeholder("y", DType::I32, [None]));
    let logits = x.dense("hidden", 16).tanh().dense("logits", 2);
    logits.sparse_cross_entropy(&y).mean().named("loss");
    logits.accuracy(&y).named("accuracy");
    let points: Vec<[f32; 2]> = (0..400).map(|i| [i % 20, i / 20].map(|at| at as f32 / 10.0 - 1.0)).collect();
    let inside: Vec<i32> = points.iter().map(|[a, b]| i32::from(a * a + b * b < 0.5)).collect();
    let examples = Examples::new(vec![("x".to_owned(), points.into()), ("y".to_owned(), inside.into())])?;

    let mut sections = Sections::new("loss", Training::new(Optimizer::ADAM, 0.02), 40);
    (sections.data.shuffle, sections.data.hold_out) = (Some(1), 0.2);
    (sections.train.epochs, sections.train.workers, sections.train.mode) = (Some(100), 2, UpdateMode::Mirrored);
    sections.evaluate = Some(EvaluateSection { metrics: vec!["accuracy".to_owned()], ..EvaluateSection::default() });
    let trainer = Trainer::new(m.finish()?, sections, examples, &Options::default())?;
    let cluster = LocalCluster::start(&trainer.tasks(), BackendChoice::Auto)?;
    let session = cluster.session(trainer.graph().clone(), &trainer.tasks()[0], SessionOptions::default()).await?;
    trainer.run(&session, &mut ()).await?;
    Ok(trainer.evaluate(&session).await?.means[1])
}
