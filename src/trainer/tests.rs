//! Trainings by the library, in this process.

use std::sync::Arc;

use temp_dir::TempDir;

use super::*;
use crate::LocalCluster;
use crate::data::{Part as DataPart, Rows};
use crate::exec::BackendChoice;
use crate::model::Model;
use crate::protocol::SessionOptions;
use crate::tensor::Tensor;
use crate::train::file::{EvaluateSection, UpdateMode};
use crate::train::{Optimizer, Training};

/// Eight examples of two numbers.
const X: [f32; 16] = [0.5, -1.0, 1.5, 2.0, -0.5, 3.0, 2.5, 0.0, 4.0, -2.0, 3.0, 1.0, 5.0, 2.0, 4.0, -1.0];

fn examples() -> Examples {
    let y = Tensor::vector((0..8).map(|i| i % 2).collect::<Vec<i32>>());
    Examples::new(vec![("x".to_owned(), Tensor::from_vec([8, 2], X.to_vec())), ("y".to_owned(), y)]).unwrap()
}

/// A classifier behind a batch norm of the data itself.
fn normed() -> Graph {
    let m = Model::new();
    let (x, y) = (m.placeholder("x", DType::F32, [None, Some(2)]), m.placeholder("y", DType::I32, [None]));
    x.batch_norm("norm").dense("logits", 2).sparse_cross_entropy(&y).mean().named("loss");
    m.finish().unwrap()
}

fn sections(batch: usize, steps: u64) -> Sections {
    let mut sections = Sections::new("loss", Training::new(Optimizer::Sgd, 0.01), batch);
    sections.train.steps = Some(steps);
    sections
}

async fn session(trainer: &Trainer) -> (LocalCluster, Session) {
    let mut tasks = trainer.tasks();
    if tasks.is_empty() {
        tasks.push(Task::new("local", 0));
    }
    let cluster = LocalCluster::start(&tasks, BackendChoice::Flex).unwrap();
    let session = cluster.session(trainer.graph().clone(), &tasks[0], SessionOptions::default()).await.unwrap();
    (cluster, session)
}

/// The running averages of a batch's statistics are those of the first worker's part, or, where each worker takes whole batches, of all.
#[tokio::test(flavor = "multi_thread")]
async fn running_averages_are_kept_and_evaluated_with() {
    // A batch is all examples: its mean is the same in each step, and so the average is (1 - 0.99^n) of it.
    let mean = |rows: usize| [0, 1].map(|c| X.iter().skip(c).step_by(2).take(rows).sum::<f32>() / rows as f32);
    let steps = 40;
    let share = 1.0 - 0.99f32.powi(steps as i32);
    for (workers, ps, mode, rows) in [
        (0, 0, UpdateMode::Sync, 8),
        (2, 1, UpdateMode::Sync, 4),
        (2, 0, UpdateMode::Mirrored, 4),
        (2, 1, UpdateMode::Async, 8),
    ] {
        let mut sections = sections(8, steps);
        (sections.train.workers, sections.train.ps, sections.train.mode) = (workers, ps, mode);
        let trainer = Trainer::new(normed(), sections, examples(), &Options::default()).unwrap();
        let (_cluster, session) = session(&trainer).await;
        let ended = trainer.run(&session, &mut ()).await.unwrap();
        assert_eq!(ended, Ended { start: 0, step: steps, how: How::Done });
        let values = trainer.values(&session, |one| one.name == "norm/moving_mean").await.unwrap();
        let [(_, average)] = &values[..] else { panic!("{values:?}") };
        // A worker that does not wait may not see the other's last one.
        let near = if mode == UpdateMode::Async { 0.02 } else { 1e-5 };
        for (average, mean) in average.slice::<f32>().unwrap().iter().zip(mean(rows)) {
            assert!((average - share * mean).abs() < near, "{mode:?}: {average}, expected {}", share * mean);
        }
    }
    // What is held out is looked at with the averages: far from its own mean, it is not brought to 0.
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(2)]);
    let normed = x.batch_norm("norm");
    normed.mean().named("average");
    (normed * m.variable("w", [2], crate::train::Initializer::Ones)).square().mean().named("loss");
    let mut sections = sections(2, 3);
    (sections.data.hold_out, sections.train.training.rate) = (0.5, crate::train::Schedule::Constant(0.0));
    sections.evaluate = Some(EvaluateSection { metrics: vec!["average".to_owned()], ..EvaluateSection::default() });
    let x = Tensor::from_vec([8, 2], vec![100f32; 16]);
    let examples = Examples::new(vec![("x".to_owned(), x)]).unwrap();
    let trainer = Trainer::new(m.finish().unwrap(), sections, examples, &Options::default()).unwrap();
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
    let got = trainer.evaluate(&session).await.unwrap().means[1];
    // By hand: the average of the mean is (1 - 0.99^3) 100, that of the variance 0.99^3.
    let wanted = (100.0 - 100.0 * (1.0 - 0.99f64.powi(3))) / (0.99f64.powi(3) + 1e-3).sqrt();
    assert!((got - wanted).abs() < 1e-2, "{got}, expected {wanted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn averages_are_kept_where_some_workers_are_late_too() {
    let mut sections = sections(2, 20);
    (sections.train.workers, sections.train.ps, sections.train.backup) = (2, 1, 1);
    let trainer = Trainer::new(normed(), sections, examples(), &Options::default()).unwrap();
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
    let values = trainer.values(&session, |one| one.name == "norm/moving_mean").await.unwrap();
    // How many of its batches the first worker drops depends on who is first; some it does not.
    assert!(values[0].1.slice::<f32>().unwrap()[0] > 0.0, "{values:?}");
}

/// What an observer was told.
#[derive(Default)]
struct Told {
    trained: Vec<u64>,
    evaluated: Vec<u64>,
    weights: Vec<u64>,
    traced: Vec<(u64, u64, usize)>,
    fails_at: Option<u64>,
}

impl Observer for Told {
    fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
        assert!(values.len() == 1 && values[0] > 0.0, "{values:?}");
        self.trained.push(step);
        match self.fails_at == Some(step) {
            true => Err("that is enough".into()),
            false => Ok(()),
        }
    }

    fn evaluated(&mut self, step: u64, evaluated: &Evaluated) -> Observed {
        assert_eq!((evaluated.means.len(), &evaluated.confusion), (1, &None));
        self.evaluated.push(step);
        Ok(())
    }

    fn weights(&mut self, step: u64, weights: &[(String, Tensor)]) -> Observed {
        assert!(weights.iter().any(|(name, _)| name == "logits/kernel"), "{weights:?}");
        self.weights.push(step);
        Ok(())
    }

    fn traced(&mut self, first: u64, steps: u64, traces: Vec<crate::trace::DeviceTrace>) -> Observed {
        let runs = traces.iter().flat_map(|trace| &trace.nodes).filter(|node| node.name == "train/step").count();
        self.traced.push((first, steps, runs));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_is_told_what_it_asks_for() {
    let mut sections = sections(2, 30);
    sections.data.hold_out = 0.25;
    sections.evaluate = Some(EvaluateSection { every: 12, ..EvaluateSection::default() });
    let options = Options { trace: true, ..Options::default() };
    let mut trainer = Trainer::new(normed(), sections, examples(), &options).unwrap();
    assert_eq!((trainer.steps(), trainer.steps_per_epoch(), trainer.names()), (30, 3, vec!["loss".to_owned()]));
    trainer.record_every(8);
    trainer.report_weights();
    let (_cluster, session) = session(&trainer).await;
    let mut told = Told::default();
    trainer.run(&session, &mut told).await.unwrap();
    assert_eq!(told.trained, [8, 16, 24, 30]);
    assert_eq!((&told.evaluated, &told.weights), (&vec![12, 24, 30], &vec![12, 24, 30]));
    assert_eq!(told.traced, [(11, 4, 4)]);
    let error = trainer.run(&session, &mut Told { fails_at: Some(16), ..Told::default() }).await.unwrap_err();
    assert!(matches!(&error, Error::Observer(own) if own.to_string() == "that is enough"), "{error}");
    // It can be stopped, and run again.
    let ended = trainer.run_until(&session, &mut (), std::future::ready(())).await.unwrap();
    assert!(ended.how == How::Stopped && (1..30).contains(&ended.step), "{ended:?}");
    assert_eq!(trainer.run(&session, &mut ()).await.unwrap().step, 30);
}

#[test]
fn what_does_not_fit_is_said() {
    let refused = |graph: Graph, sections: Sections, examples: Examples| {
        Trainer::new(graph, sections, examples, &Options::default()).map(|_| ()).unwrap_err()
    };
    let one = |name: &str, tensor: Tensor| Examples::new(vec![(name.to_owned(), tensor)]).unwrap();
    for (examples, why) in [
        (
            one("x", Tensor::from_vec([8, 3], vec![0f32; 24])),
            "data for x: an example is float32[3], and the placeholder",
        ),
        (
            one("x", Tensor::from_vec([8, 2], vec![0f64; 16])),
            "data for x: an example is float64[2], and the placeholder",
        ),
        (one("loss", Tensor::vector(vec![0f32; 8])), "data for loss: it is a node Identity, and no Placeholder"),
        (one("z", Tensor::vector(vec![0f32; 8])), "data for z: "),
    ] {
        let error = refused(normed(), sections(2, 3), examples);
        assert!(matches!(&error, Error::Input(text) if text.contains(why)), "{error}\nwanted {why}");
    }
    let mut other = sections(2, 3);
    other.train.updates = vec!["norn/moving_mean".to_owned()];
    for (sections, why) in
        [(sections(9, 3), "a batch is 9, and there are 8 examples"), (other, "update norn/moving_mean: ")]
    {
        let error = refused(normed(), sections, examples());
        assert!(matches!(&error, Error::Sections(text) if text.contains(why)), "{error}\nwanted {why}");
    }
}

/// Examples that are read as they are taken, one of which cannot be.
#[derive(Debug)]
struct Damaged {
    at: usize,
    /// What is read in its place, if it can be.
    value: Option<f32>,
}

impl Rows for Damaged {
    fn count(&self) -> usize {
        200
    }

    fn example(&self) -> (DType, &[usize]) {
        (DType::F32, &[2])
    }

    fn read(&self, places: &[usize]) -> crate::Result<Tensor> {
        let row = |&place: &usize| match self.value {
            _ if place != self.at => Ok([place as f32 / 100.0, 1.0]),
            Some(value) => Ok([value, 1.0]),
            None => Err(Failure::invalid(format!("x.npy: example {place}: it cannot be read"))),
        };
        let rows: Vec<[f32; 2]> = places.iter().map(row).collect::<crate::Result<_>>()?;
        Ok(Tensor::from(rows))
    }
}

/// A training that a bad example ends has done the steps before it, and its state is saved.
#[tokio::test(flavor = "multi_thread")]
async fn the_state_before_a_bad_example_is_saved() {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(2)]);
    x.dense("out", 1).square().mean().named("loss");
    let graph = m.finish().unwrap();
    for (value, workers, whys) in [
        (None, 0, ["x.npy: example 150: it cannot be read", "the state after step 37 is saved"]),
        (None, 2, ["x.npy: example 150: it cannot be read", "the state after step 37 is saved"]),
        (Some(f32::NAN), 0, ["the loss is NaN or infinite in step 38", "the state before it is saved"]),
    ] {
        let folder = TempDir::new().unwrap();
        let data = |value| {
            let rows = Damaged { at: 150, value };
            Examples::of(vec![("x".to_owned(), DataPart::Elsewhere(Arc::new(rows)))]).unwrap()
        };
        let mut sections = sections(4, 50);
        (sections.train.workers, sections.train.ps) = (workers, workers);
        let options = Options { checkpoint: Some(folder.child("run")), ..Options::default() };
        let trainer = Trainer::new(graph.clone(), sections.clone(), data(value), &options).unwrap();
        let (_cluster, other) = session(&trainer).await;
        let error = trainer.run(&other, &mut ()).await.unwrap_err().to_string();
        assert!(whys.iter().all(|why| error.contains(why)), "{error}");
        // Once the data is mended, it goes on from there, to where it would have come.
        let options = Options { resume: true, ..options };
        let trainer = Trainer::new(graph.clone(), sections.clone(), data(Some(1.5)), &options).unwrap();
        let ended = trainer.run(&other, &mut ()).await.unwrap();
        assert_eq!(ended, Ended { start: 37, step: 50, how: How::Done });
        let options = Options { checkpoint: Some(folder.child("whole")), ..Options::default() };
        let whole = Trainer::new(graph.clone(), sections, data(Some(1.5)), &options).unwrap();
        whole.run(&other, &mut ()).await.unwrap();
        let state = |run: &str| std::fs::read(folder.child(run).join("step-000000000050.safetensors")).unwrap();
        assert!(state("run") == state("whole"), "{value:?}, {workers} workers");
    }
}
