//! The documents' program by a trainer, which sends batches ahead to the workers, compared with the graph that is written by
//! hand and fed once.

use std::time::Instant;

use meshtf::train::Examples;
use meshtf::train::{Options, Trainer};
use meshtf::{Client, SessionOptions, Task};
use meshtf_graph::Attrs;
use meshtf_tensor::{DType, Tensor};
use meshtf_train::file::Sections;
use meshtf_train::model::{Model, Value};
use meshtf_train::{Optimizer, Training};

use crate::peer::cluster;
use crate::program::{BATCH, Batch, Numbers, Program};
use crate::report::Report;
use crate::runs::{ROUND, ROUNDS, Up};

/// Batches of different examples.
const BATCHES: usize = 10;
const WORKERS: usize = 2;

/// Steps per second of both, by turns.
pub async fn speed(report: &mut Report) {
    let program = Program::data(WORKERS);
    let by_hand = Up::start(&program).await;
    let feeds = program.feeds(&Batch::next(&mut Numbers::new(5)));
    let run = async |count: u64| {
        let start = Instant::now();
        by_hand.session.run().feeds(&feeds).target(program.train).steps(count).await.expect("steps");
        count as f64 / start.elapsed().as_secs_f64()
    };
    let count = (run(1000).await * ROUND.as_secs_f64()) as u64;
    let trainer = trainer(count);
    let workers: Vec<Task> = (0..WORKERS).map(|i| Task::new("worker", i as u32)).collect();
    let (peers, node) = cluster("trainer", Task::new("ps", 0), &workers).await;
    let session = node.session(trainer.graph().clone(), None, SessionOptions::default()).await.expect("a session");
    let (mut fed_once, mut trained) = (0.0f64, 0.0f64);
    for _ in 0..ROUNDS {
        fed_once = fed_once.max(run(count).await);
        let start = Instant::now();
        trainer.run(&session, &mut ()).await.expect("a training");
        trained = trained.max(count as f64 / start.elapsed().as_secs_f64());
    }
    let (figure, baseline) = (format!("{trained:.0} steps/s"), format!("{fed_once:.0} steps/s, by hand and fed once"));
    let what = format!("y = e^x by a trainer, {WORKERS} workers, 1 ps, batches sent ahead");
    report.row(&what, figure, baseline, Some(trained / fed_once), "at least 0.8");
    drop((session, peers));
    node.close().await;
    by_hand.stop().await;
}

fn trainer(steps: u64) -> Trainer {
    let m = Model::new();
    let leaky = |value: Value| m.op("LeakyRelu", &[&value], Attrs::default());
    let column = |name: &str| m.placeholder(name, DType::F32, [None, Some(1)]);
    let (x, y) = (column("x"), column("y"));
    let hidden = leaky(leaky(x.dense("W1", 16)).dense("W2", 32));
    (hidden.dense("W3", 1) - y).square().mean().named("loss");
    let mut sections = Sections::new("loss", Training::new(Optimizer::ADAM, 0.001), BATCH);
    (sections.train.workers, sections.train.ps) = (WORKERS, 1);
    (sections.train.steps, sections.data.shuffle) = (Some(steps), Some(1));
    let mut numbers = Numbers::new(3);
    let batches: Vec<Batch> = (0..BATCHES).map(|_| Batch::next(&mut numbers)).collect();
    let column = |name: &str, of: fn(&Batch) -> &[f32]| {
        let values: Vec<f32> = batches.iter().flat_map(|batch| of(batch).iter().copied()).collect();
        (name.to_owned(), Tensor::from_vec([BATCHES * BATCH, 1], values))
    };
    let examples = Examples::new(vec![column("x", Batch::x), column("y", Batch::y)]).expect("examples");
    Trainer::new(m.finish().expect("a model"), sections, examples, &Options::default()).expect("a training")
}
