//! Three models of a text, each trained in seconds: a GRU over its characters, a small transformer over its characters, and
//! embeddings of its words, whose updates change only the rows of the words in a batch.
//!
//! `cargo run --release --example language` hosts all tasks in this process. Prints for each model the share of the characters or
//! words that it predicts correctly.

use meshtf::model::{Model, Value};
use meshtf::tensor::{DType, Tensor};
use meshtf::train::{Optimizer, Training};
use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};

/// The beginning of "Alice's Adventures in Wonderland" by Lewis Carroll, 1865.
const TEXT: &str = "alice was beginning to get very tired of sitting by her sister on the bank and of having nothing to do once \
                    or twice she had peeped into the book her sister was reading but it had no pictures or conversations in it \
                    and what is the use of a book thought alice without pictures or conversations";
/// Number of characters from which a model predicts the next one.
const LENGTH: usize = 12;

#[tokio::main]
async fn main() -> meshtf::Result<()> {
    println!("characters by a GRU: {:.3} right", characters(reads).await?);
    println!("characters by a transformer: {:.3} right", characters(attends).await?);
    println!("words by embeddings: {:.3} right", words().await?);
    Ok(())
}

/// Trains a model to predict each character of the text from those before it; returns the share of correct predictions.
pub async fn characters(model: impl FnOnce(&Model, &Value, usize) -> Value) -> meshtf::Result<f32> {
    let mut known: Vec<u8> = TEXT.bytes().collect();
    known.sort_unstable();
    known.dedup();
    let codes: Vec<i32> =
        TEXT.bytes().filter_map(|byte| known.iter().position(|&one| one == byte)).map(|i| i as i32).collect();
    let windows: Vec<i32> = codes.windows(LENGTH + 1).flat_map(|window| &window[..LENGTH]).copied().collect();
    let next: Vec<i32> = codes[LENGTH..].to_vec();
    let m = Model::new();
    let x = m.placeholder("x", DType::I32, [None, Some(LENGTH)]);
    let logits = model(&m, &x, known.len());
    let x = Tensor::from_vec([next.len(), LENGTH], windows);
    fit(&m, &logits, &[Task::new("worker", 0)], x, next, 0.01, 60).await
}

/// A GRU, whose outputs of all characters are used.
pub fn reads(m: &Model, x: &Value, classes: usize) -> Value {
    let seen = m.embedding("letters", classes, 16, x).gru("gru", 48);
    seen.flatten().dense("logits", classes)
}

/// One block of a transformer.
pub fn attends(m: &Model, x: &Value, classes: usize) -> Value {
    let places = m.variable("places", [LENGTH, 32], meshtf::model::Initializer::Uniform { low: -0.1, high: 0.1 });
    let seen = m.embedding("letters", classes, 32, x) + places;
    let seen = (&seen + seen.self_attention("attention", 4, true)).layer_norm("first");
    let seen = (&seen + seen.dense("wide", 64).relu().dense("narrow", 32)).layer_norm("second");
    seen.flatten().dense("logits", classes)
}

/// Trains embeddings to predict each word from the two before it, the table on one task and the rest on another.
pub async fn words() -> meshtf::Result<f32> {
    let mut known: Vec<&str> = TEXT.split(' ').collect();
    known.sort_unstable();
    known.dedup();
    let words: Vec<i32> =
        TEXT.split(' ').filter_map(|word| known.iter().position(|one| *one == word)).map(|i| i as i32).collect();
    let pairs: Vec<i32> = words.windows(3).flat_map(|window| &window[..2]).copied().collect();
    let m = Model::new();
    let x = m.placeholder("x", DType::I32, [None, Some(2)]);
    // The gradient of the table has only the rows that were looked up.
    let rows = m.on("/job:ps/task:0", || m.embedding("words", known.len(), 24, &x));
    let logits = m.on("/job:worker/task:0", || rows.flatten().dense("next", known.len()));
    let x = Tensor::from_vec([words.len() - 2, 2], pairs);
    let tasks = [Task::new("ps", 0), Task::new("worker", 0)];
    fit(&m, &logits, &tasks, x, words[2..].to_vec(), 0.05, 60).await
}

/// Fits a model to examples; returns the share of them that it then classifies correctly.
async fn fit(
    m: &Model,
    logits: &Value,
    tasks: &[Task],
    x: Tensor,
    classes: Vec<i32>,
    rate: f64,
    steps: u64,
) -> meshtf::Result<f32> {
    let y = m.placeholder("y", DType::I32, [None]);
    let accuracy = logits.accuracy(&y).named("accuracy");
    m.minimize(&logits.sparse_cross_entropy(&y).mean(), &Training::new(Optimizer::ADAM, rate));
    let cluster = LocalCluster::start(tasks, BackendChoice::Auto)?;
    let session = cluster.session(m.finish()?, &tasks[0], SessionOptions::default()).await?;
    let feeds = [("x", x), ("y", Tensor::vector(classes))];
    session.run().target("init").await?;
    session.run().feeds(&feeds).target("train/step").steps(steps).await?;
    session.run().feeds(&feeds).fetch(accuracy.name()).await?[0].item()
}
