//! Trainings through the library, in this process.

mod elastic;
mod fed;
mod fits;
mod given;
mod images;
mod kept;
mod local;
mod on_workers;
mod pipeline;
mod sent;
mod windows;

use std::sync::Arc;

use crate::Client;
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::{DType, Tensor};
use meshtf_train::data::{Column, Rows};
use meshtf_train::file::{EvaluateSection, UpdateMode};
use meshtf_train::model::Model;
use meshtf_train::{Optimizer, Training};
use temp_dir::TempDir;

use super::*;
use crate::LocalCluster;
use crate::protocol::SessionOptions;

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

/// The running averages of a batch's statistics are those of the first worker's part, of the first micro-batch, or, where
/// each worker takes whole batches, of all.
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
        (2, 0, UpdateMode::Local, 8),
        // Eight micro-batches of one example.
        (2, 0, UpdateMode::Pipeline, 1),
    ] {
        // In mode local, both take a whole batch in a step, one half of the examples each, and have the mean of their averages.
        let mut sections = sections(if mode == UpdateMode::Local { 4 } else { 8 }, steps);
        (sections.train.workers, sections.train.ps, sections.train.mode) = (workers, ps, mode);
        let trainer = Trainer::new(normed(), sections, examples(), &Options::default()).unwrap();
        let (_cluster, session) = session(&trainer).await;
        let ended = trainer.run(&session, &mut ()).await.unwrap();
        assert_eq!(ended, Ended { start: 0, step: steps, how: How::Done });
        let values = trainer.values(&session, |one| one.name == "norm/moving_mean").await.unwrap();
        let [(_, average)] = &values[..] else { panic!("{values:?}") };
        if mode == UpdateMode::Local {
            for name in ["norm/moving_mean", "norm/moving_variance"] {
                let copy = format!("replica_1/{name}");
                let both = session.run().fetches([name, &copy]).await.unwrap().values;
                assert_eq!(both[0], both[1], "{name}");
            }
        }
        // A worker that does not wait may not see the other's last one.
        let near = if mode == UpdateMode::Async { 0.02 } else { 1e-5 };
        for (average, mean) in average.slice::<f32>().unwrap().iter().zip(mean(rows)) {
            assert!((average - share * mean).abs() < near, "{mode:?}: {average}, expected {}", share * mean);
        }
    }
    // Held-out examples are evaluated with the averages: far from their own mean, they are not normalized to 0.
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(2)]);
    let normed = x.batch_norm("norm");
    normed.mean().named("average");
    (normed * m.variable("w", [2], meshtf_train::Initializer::Ones)).square().mean().named("loss");
    let mut sections = sections(2, 3);
    (sections.data.hold_out, sections.train.training.rate) = (0.5, meshtf_train::Schedule::Constant(0.0));
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
    // How many of its batches the first worker drops depends on which is first: it continues until there was one that it did
    // not drop.
    let mut sections = sections(2, 100_000);
    (sections.train.workers, sections.train.ps, sections.train.backup) = (2, 1, 1);
    let trainer = Trainer::new(normed(), sections, examples(), &Options::default()).unwrap();
    let (_cluster, session) = session(&trainer).await;
    let average = async || {
        let values = trainer.values(&session, |one| one.name == "norm/moving_mean").await;
        // Until they have their initial values, variables have none.
        values.map_or(0.0, |values| values[0].1.slice::<f32>().unwrap()[0])
    };
    let kept = async { while average().await <= 0.0 {} };
    trainer.run_until(&session, &mut (), kept).await.unwrap();
    assert!(average().await > 0.0);
}

/// A label that is not a class fails a step of a run of many: its number is that of the training, and what was trained before
/// it is saved.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_has_its_number_and_loses_nothing() {
    let folder = TempDir::new().unwrap();
    for (mode, workers, says) in
        [(UpdateMode::Sync, 0, "; the state before this step is saved"), (UpdateMode::Async, 2, "")]
    {
        let mut sections = sections(1, 8);
        (sections.train.mode, sections.train.workers) = (mode, workers);
        let y = Tensor::vector(vec![0, 1, 0, 1, 0, 2, 0, 1]);
        let examples = vec![("x".to_owned(), Tensor::from_vec([8, 2], X.to_vec())), ("y".to_owned(), y)];
        let at = folder.child(format!("{workers}"));
        let options = Options { checkpoint: Some(at.clone()), every: Some(Every::Steps(2)), ..Options::default() };
        let trainer = Trainer::new(normed(), sections, Examples::new(examples).unwrap(), &options).unwrap();
        let (_cluster, session) = session(&trainer).await;
        let Err(Error::Failed(failure)) = trainer.run(&session, &mut ()).await else { panic!("class 2 of 2") };
        assert_eq!(failure.stage, meshtf_tensor::failure::Stage::InStep(6), "{failure}");
        assert!(failure.message.ends_with(says), "{failure}");
        let last = stored::states(&at).unwrap().pop().unwrap().file_stem().unwrap().to_string_lossy().into_owned();
        let wanted = if workers == 0 { "5" } else { "4" };
        assert!(last.ends_with(wanted), "{last}");
    }
}

/// The gradient of a table stays rows, and the mean of the workers that are first is that of all if all contribute the same.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_averaged_where_some_workers_are_late() {
    let m = Model::new();
    let rows = m.placeholder("rows", DType::I64, [None]);
    m.embedding("words", 4, 2, &rows).sum().named("loss");
    let graph = m.finish().unwrap();
    let table = async |rate: f64| {
        let mut sections = sections(4, 3);
        (sections.train.workers, sections.train.ps, sections.train.backup) = (3, 1, 1);
        sections.train.training.rate = meshtf_train::Schedule::Constant(rate);
        let rows = Tensor::vector([1i64, 3].repeat(6));
        let examples = Examples::new(vec![("rows".to_owned(), rows)]).unwrap();
        let trainer = Trainer::new(graph.clone(), sections, examples, &Options::default()).unwrap();
        let ops: Vec<&str> = trainer.graph().nodes().map(|(_, node)| node.op.name).collect();
        assert!(ops.contains(&"SparseConditionalAccumulator") && !ops.contains(&"UnsortedSegmentSum"));
        let (_cluster, session) = session(&trainer).await;
        trainer.run(&session, &mut ()).await.unwrap();
        let values = trainer.values(&session, |one| one.name == "words/table").await.unwrap();
        values[0].1.slice::<f32>().unwrap().to_vec()
    };
    // Three updates, in each of which both rows lose half of a gradient of 1.
    let (first, last) = (table(0.0).await, table(0.5).await);
    for (i, (first, last)) in first.iter().zip(&last).enumerate() {
        let lost = if (i / 2) % 2 == 1 { 1.5 } else { 0.0 };
        assert!((first - lost - last).abs() < 1e-6, "element {i}: {first} became {last}");
    }
}

/// A state is saved once its step is counted: that step is then whole.
#[test]
fn what_counts_a_step_waits_for_its_averages() {
    for (workers, ps, mode, counted, averaged) in [
        (0, 0, UpdateMode::Sync, 1, 2),
        (2, 1, UpdateMode::Sync, 1, 2),
        (2, 0, UpdateMode::Mirrored, 2, 4),
        (2, 1, UpdateMode::Async, 2, 2),
        (2, 0, UpdateMode::Local, 2, 2),
        (2, 0, UpdateMode::Pipeline, 1, 2),
    ] {
        let mut sections = sections(4, 1);
        (sections.train.workers, sections.train.ps, sections.train.mode) = (workers, ps, mode);
        let trainer = Trainer::new(normed(), sections, examples(), &Options::default()).unwrap();
        let graph = trainer.graph();
        let changes = |id, op: &str, variable: &str| {
            let node = graph.node(id);
            node.op.name.starts_with(op) && graph.node(node.inputs[0].node).name.contains(variable)
        };
        let counts = graph.nodes().map(|(id, _)| id).filter(|&id| changes(id, "AssignAdd", "global_step"));
        let counts: Vec<_> = counts.collect();
        assert_eq!(counts.len(), counted, "{mode:?}");
        for count in counts {
            let (mut open, mut seen) = (vec![count], std::collections::HashSet::new());
            while let Some(id) = open.pop() {
                if seen.insert(id) {
                    let node = graph.node(id);
                    open.extend(node.sources());
                }
            }
            let averages = seen.into_iter().filter(|&id| changes(id, "AssignSub", "norm/moving_")).count();
            assert_eq!(averages, averaged, "{mode:?}");
        }
    }
}

/// The calls of an observer.
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

    fn traced(&mut self, first: u64, steps: u64, traces: Vec<meshtf_graph::trace::DeviceTrace>) -> Observed {
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

/// The event that ends an observer's training.
struct Ends {
    at: u64,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    /// A folder that is replaced by a file then.
    spoils: Option<std::path::PathBuf>,
    fails: bool,
}

impl Observer for Ends {
    fn trained(&mut self, step: u64, _: &[f64]) -> Observed {
        if step != self.at {
            return Ok(());
        }
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(folder) = self.spoils.take() {
            std::fs::remove_dir_all(&folder)?;
            std::fs::write(&folder, "")?;
        }
        if self.fails { Err("that is enough".into()) } else { Ok(()) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_whose_last_step_is_done_was_not_stopped() {
    let mut sections = sections(2, 10);
    sections.data.hold_out = 0.25;
    sections.evaluate = Some(EvaluateSection { every: 10, ..EvaluateSection::default() });
    let trainer = Trainer::new(normed(), sections, examples(), &Options::default()).unwrap();
    let (_cluster, session) = session(&trainer).await;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let mut observer = Ends { at: 10, stop: Some(stop), spoils: None, fails: false };
    let ended = trainer.run_until(&session, &mut observer, async { stopped.await.unwrap() }).await.unwrap();
    assert_eq!(ended, Ended { start: 0, step: 10, how: How::Done });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_run_does_not_touch_the_states_of_the_first() {
    let folder = TempDir::new().unwrap();
    let options =
        Options { checkpoint: Some(folder.child("run")), every: Some(Every::Steps(2)), keep: 2, ..Options::default() };
    let trainer = Trainer::new(normed(), sections(2, 10), examples(), &options).unwrap();
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
    let files = || stored::states(&folder.child("run")).unwrap();
    let names = ["step-000000000008.safetensors", "step-000000000010.safetensors"];
    assert_eq!(files(), names.map(|name| folder.child("run").join(name)));
    let error = trainer.run(&session, &mut ()).await.unwrap_err().to_string();
    assert!(error.contains("continue it with --resume, or name another folder with --checkpoint"), "{error}");
    assert_eq!(files().len(), 2);
    // Whatever else the folder contains, a saved state stays.
    let kept = Kept { model: &[], fits: &Fits::new(), options: "{}" };
    let own = Folder::new(&folder.child("run"), 2, &sections(2, 10), kept, 8).unwrap();
    let own = own.save(4, Vec::new()).unwrap();
    assert_eq!(files(), [own, folder.child("run").join(names[1])]);
}

#[test]
fn a_training_that_saves_nothing_leaves_no_folder() {
    let folder = TempDir::new().unwrap();
    let (outer, own) = (folder.child("runs"), folder.child("there"));
    std::fs::create_dir(&own).unwrap();
    let kept = Kept { model: &[], fits: &Fits::new(), options: "{}" };
    let of = |path: &std::path::Path| Folder::new(path, 2, &sections(2, 10), kept, 8).unwrap();
    let made = of(&outer.join("a"));
    let other = made.clone();
    drop(made);
    assert!(outer.join("a").is_dir(), "somebody may still save");
    drop(other);
    assert!(!outer.exists());
    // A folder that was there before stays, and so does one with a state.
    drop(of(&own));
    assert!(own.is_dir());
    let saved = of(&outer.join("b")).save(4, Vec::new()).unwrap();
    assert!(saved.is_file());
}

#[test]
fn options_that_say_nothing_are_refused() {
    let weights = Some(std::path::PathBuf::from("run"));
    let values = vec![("logits/bias".to_owned(), Tensor::vector(vec![0f32; 2]))];
    for (options, why) in [
        (Options { steps: Some(0), ..Options::default() }, "steps is 0"),
        (Options { every: Some(Every::Steps(0)), ..Options::default() }, "every is 0 steps"),
        (Options { every: Some(Every::Time(Duration::ZERO)), ..Options::default() }, "every is 0 s"),
        (
            Options { resume: true, weights: weights.clone(), ..Options::default() },
            "weights cannot be used with resume",
        ),
        (Options { values: values.clone(), weights, ..Options::default() }, "values cannot be used with weights"),
        (Options { values, resume: true, ..Options::default() }, "nor with resume"),
    ] {
        let error = Trainer::new(normed(), sections(2, 3), examples(), &options).map(|_| ()).unwrap_err();
        assert!(matches!(&error, Error::Input(text) if text.contains(why)), "{error}\nwanted {why}");
    }
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
        (one("loss", Tensor::vector(vec![0f32; 8])), "data for loss: its op is Identity, not Placeholder"),
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

/// Examples that are read as they are taken, one of which cannot be read.
#[derive(Debug)]
struct Damaged {
    at: usize,
    /// The value that is read in its place, if it can be read.
    value: Option<f32>,
}

impl Rows for Damaged {
    fn count(&self) -> usize {
        200
    }

    fn example(&self) -> (DType, &[usize]) {
        (DType::F32, &[2])
    }

    fn read(&self, places: &[usize]) -> meshtf_tensor::failure::Result<Tensor> {
        let row = |&place: &usize| match self.value {
            _ if place != self.at => Ok([place as f32 / 100.0, 1.0]),
            Some(value) => Ok([value, 1.0]),
            None => Err(Failure::invalid(format!("x.npy: example {place}: it cannot be read"))),
        };
        let rows: Vec<[f32; 2]> = places.iter().map(row).collect::<meshtf_tensor::failure::Result<_>>()?;
        Ok(Tensor::from(rows))
    }
}

/// A training that a bad example ends has done the steps before it, and its state is saved.
#[tokio::test(flavor = "multi_thread")]
async fn the_state_before_a_bad_example_is_saved() {
    let graph = squares();
    let unread = ["x.npy: example 150: it cannot be read", "the state after step 37 is saved"];
    let not_finite = ["the loss is NaN or infinite in step 38", "the state before it is saved"];
    for (value, workers, ps, mode, whys) in [
        (None, 0, 0, UpdateMode::Sync, unread),
        (None, 2, 1, UpdateMode::Sync, unread),
        (None, 2, 0, UpdateMode::Mirrored, unread),
        (Some(f32::NAN), 0, 0, UpdateMode::Sync, not_finite),
        (Some(f32::NAN), 2, 1, UpdateMode::Sync, not_finite),
        (Some(f32::NAN), 2, 0, UpdateMode::Mirrored, not_finite),
    ] {
        let folder = TempDir::new().unwrap();
        let data = |value| {
            let rows = Damaged { at: 150, value };
            Examples::of(vec![("x".to_owned(), Column::Elsewhere(Arc::new(rows)))]).unwrap()
        };
        let mut sections = sections(4, 50);
        (sections.train.workers, sections.train.ps, sections.train.mode) = (workers, ps, mode);
        let options = Options { checkpoint: Some(folder.child("run")), ..Options::default() };
        let trainer = Trainer::new(graph.clone(), sections.clone(), data(value), &options).unwrap();
        let (_cluster, other) = session(&trainer).await;
        let error = trainer.run(&other, &mut ()).await.unwrap_err().to_string();
        assert!(whys.iter().all(|why| error.contains(why)), "{error}");
        // Once the data is repaired, it continues from there, to the result of an uninterrupted training.
        let options = Options { resume: true, ..options };
        let trainer = Trainer::new(graph.clone(), sections.clone(), data(Some(1.5)), &options).unwrap();
        let ended = trainer.run(&other, &mut ()).await.unwrap();
        assert_eq!(ended, Ended { start: 37, step: 50, how: How::Done });
        let options = Options { checkpoint: Some(folder.child("whole")), ..Options::default() };
        let whole = Trainer::new(graph.clone(), sections, data(Some(1.5)), &options).unwrap();
        whole.run(&other, &mut ()).await.unwrap();
        let state = |run: &str| std::fs::read(folder.child(run).join("step-000000000050.safetensors")).unwrap();
        assert!(state("run") == state("whole"), "{value:?}, {workers} workers, {mode:?}");
    }
}

/// A loss behind a batch norm, which keeps averages, of examples without labels.
fn squares() -> Graph {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(2)]);
    x.batch_norm("norm").dense("out", 1).square().mean().named("loss");
    m.finish().unwrap()
}

/// A training of which step 38 has a loss that is NaN.
fn broken(folder: &TempDir) -> Trainer {
    let rows = Damaged { at: 150, value: Some(f32::NAN) };
    let data = Examples::of(vec![("x".to_owned(), Column::Elsewhere(Arc::new(rows)))]).unwrap();
    let options = Options { checkpoint: Some(folder.child("run")), ..Options::default() };
    let mut trainer = Trainer::new(squares(), sections(4, 50), data, &options).unwrap();
    trainer.record_every(1);
    trainer
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_wrong_first_is_told() {
    // The observer's error is not lost in a later failure: neither that of a step,
    let folder = TempDir::new().unwrap();
    let trainer = broken(&folder);
    let (_cluster, session) = session(&trainer).await;
    let observer = || Ends { at: 37, stop: None, spoils: None, fails: false };
    let error = trainer.run(&session, &mut Ends { fails: true, ..observer() }).await.unwrap_err();
    assert!(matches!(&error, Error::Observer(_)), "{error}");
    // nor that of a state that cannot be saved.
    let mut spoils = Ends { spoils: Some(folder.child("run")), ..observer() };
    let error = trainer.run(&session, &mut spoils).await.unwrap_err().to_string();
    assert!(
        error.contains("in step 38") && error.contains("the state before it could not be saved: cannot"),
        "{error}"
    );
}

/// Examples that exist once another task had a turn.
#[derive(Debug)]
struct Waits {
    begun: tokio::sync::mpsc::UnboundedSender<()>,
    may_end: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Rows for Waits {
    fn count(&self) -> usize {
        8
    }

    fn example(&self) -> (DType, &[usize]) {
        (DType::F32, &[2])
    }

    fn read(&self, places: &[usize]) -> meshtf_tensor::failure::Result<Tensor> {
        let gone = |_| Failure::invalid("nobody else had a turn");
        self.begun.send(()).map_err(|_| Failure::invalid("nobody is there"))?;
        self.may_end.lock().unwrap().recv_timeout(Duration::from_secs(20)).map_err(gone)?;
        Ok(Tensor::from(vec![[0.5f32, 1.0]; places.len()]))
    }
}

/// A node may run on the same thread: it can answer while a file is read.
#[tokio::test]
async fn reading_files_does_not_keep_others_from_running() {
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (ends, may_end) = std::sync::mpsc::channel();
    let rows = Waits { begun, may_end: std::sync::Mutex::new(may_end) };
    let data = Examples::of(vec![("x".to_owned(), Column::Elsewhere(Arc::new(rows)))]).unwrap();
    let trainer = Trainer::new(squares(), sections(4, 10), data, &Options::default()).unwrap();
    let (_cluster, session) = session(&trainer).await;
    let other = tokio::spawn(async move {
        while begins.recv().await.is_some() {
            let _ = ends.send(());
        }
    });
    assert_eq!(trainer.run(&session, &mut ()).await.unwrap().step, 10);
    drop(trainer);
    other.await.unwrap();
}
