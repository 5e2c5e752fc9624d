//! The feeds of steps and evaluations in addition to batches, and the random numbers of each worker.

use meshtf_graph::Attrs;
use meshtf_tensor::Shape;
use meshtf_train::Schedule;
use meshtf_train::model::Value;

use super::*;

/// The numbers of workers and of tasks of job `ps`, the update mode, and how many workers may be late.
const LAYOUTS: [(usize, usize, UpdateMode, usize); 7] = [
    (0, 0, UpdateMode::Sync, 0),
    (2, 1, UpdateMode::Sync, 0),
    (2, 0, UpdateMode::Mirrored, 0),
    (2, 1, UpdateMode::Async, 0),
    (3, 1, UpdateMode::Sync, 1),
    (2, 0, UpdateMode::Local, 0),
    (1, 0, UpdateMode::Pipeline, 0),
];

fn laid_out(mut sections: Sections, layout: (usize, usize, UpdateMode, usize)) -> Sections {
    (sections.train.workers, sections.train.ps, sections.train.mode, sections.train.backup) = layout;
    sections.train.training.rate = Schedule::Constant(0.0);
    sections
}

/// A loss that is `keep` times the mean of the squares of `x`, and the tensor `keep`.
fn kept() -> Graph {
    let m = Model::new();
    let (x, keep) = (m.placeholder("x", DType::F32, [None, Some(2)]), m.placeholder("keep", DType::F32, [0usize; 0]));
    let w = m.variable("w", [2], meshtf_train::Initializer::Ones);
    let loss = (x * w).square().mean() * &keep;
    loss.named("loss");
    (&keep * 1.0).named("seen");
    m.finish().unwrap()
}

fn constant<T: Into<Tensor>>(value: T) -> Vec<(String, Tensor)> {
    vec![("keep".to_owned(), value.into())]
}

fn xs(values: &[f32]) -> Examples {
    let x = Tensor::from_vec([values.len() / 2, 2], values.to_vec());
    Examples::new(vec![("x".to_owned(), x)]).unwrap()
}

/// Keeps the recorded values of the steps.
#[derive(Debug, Default)]
struct Recorded(Vec<Vec<f64>>);

impl Observer for Recorded {
    fn trained(&mut self, _: u64, values: &[f64]) -> Observed {
        self.0.push(values.to_vec());
        Ok(())
    }
}

/// Trains; the first metric of each step is to be the constant.
async fn runs_with_a_quarter(trainer: &Trainer, session: &Session, layout: (usize, usize, UpdateMode, usize)) {
    let mut recorded = Recorded::default();
    trainer.run(session, &mut recorded).await.unwrap();
    assert!(!recorded.0.is_empty() && recorded.0.iter().all(|values| values[1] == 0.25), "{layout:?}: {recorded:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn constants_are_fed_in_steps_and_others_in_evaluations() {
    for layout in LAYOUTS {
        let mut sections = laid_out(sections(4, 6), layout);
        sections.data.constants = constant(Tensor::scalar(0.25f64));
        sections.train.metrics = vec!["seen".to_owned()];
        let metrics = sections.train.metrics.clone();
        sections.evaluate =
            Some(EvaluateSection { constants: constant(Tensor::scalar(2i64)), metrics, ..EvaluateSection::default() });
        let data = TrainingData { evaluate: Some(xs(&[3.0, 0.0, 0.0, 0.0, 0.0, 3.0])), ..TrainingData::from(xs(&X)) };
        let trainer = Trainer::new(kept(), sections, data, &Options::default()).unwrap();
        let (_cluster, session) = session(&trainer).await;
        runs_with_a_quarter(&trainer, &session, layout).await;
        // The mean of 9, 0, 0, 0, 0 and 9 is 3, twice that is 6.
        assert_eq!(trainer.evaluate(&session).await.unwrap().means, [6.0, 2.0], "{layout:?}");
    }
}

/// The default value, without a constant, depends on a placeholder that is not fed, and differs on each worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_constant_takes_the_place_of_a_default_on_every_worker() {
    let m = Model::new();
    let (x, other) =
        (m.placeholder("x", DType::F32, [None, Some(2)]), m.placeholder("other", DType::F32, [None::<usize>]));
    let attrs = Attrs::from([("shape", Shape::scalar().into()), ("dtype", DType::F32.into())]);
    let keep = m.op("PlaceholderWithDefault", &[&(x.mean() + other.mean())], attrs).named("kept");
    let w = m.variable("w", [2], meshtf_train::Initializer::Ones);
    ((x * w).square().mean() * &keep).named("loss");
    let graph = m.finish().unwrap();
    let node = graph.nodes().find(|(_, node)| node.op.name == "PlaceholderWithDefault").unwrap().1.name.clone();
    for layout in LAYOUTS {
        let mut sections = laid_out(sections(4, 6), layout);
        sections.data.constants = vec![(node.clone(), Tensor::scalar(0.25f64))];
        sections.train.metrics = vec!["kept".to_owned()];
        let trainer = Trainer::new(graph.clone(), sections, xs(&X), &Options::default()).unwrap();
        let (_cluster, session) = session(&trainer).await;
        runs_with_a_quarter(&trainer, &session, layout).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_out_is_evaluated_with_the_constants_of_the_steps() {
    let mut sections = laid_out(sections(2, 3), LAYOUTS[0]);
    sections.data.constants = constant(Tensor::scalar(0.5f32));
    sections.data.hold_out = 0.5;
    sections.evaluate = Some(EvaluateSection::default());
    let trainer = Trainer::new(kept(), sections, xs(&[2.0; 16]), &Options::default()).unwrap();
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
    assert_eq!(trainer.evaluate(&session).await.unwrap().means, [2.0]);
}

#[test]
fn what_cannot_be_fed_is_refused() {
    let with = |change: &dyn Fn(&mut Sections)| {
        let mut sections = sections(2, 3);
        sections.data.constants = constant(Tensor::scalar(1f32));
        change(&mut sections);
        sections
    };
    let evaluate = |constants: Vec<(String, Tensor)>| Some(EvaluateSection { constants, ..EvaluateSection::default() });
    let own = || TrainingData { evaluate: Some(xs(&X)), ..TrainingData::from(xs(&X)) };
    for (sections, data, why) in [
        (with(&|s| s.data.constants = Vec::new()), xs(&X).into(), "$.data.feed has nothing for placeholder keep"),
        (
            with(&|s| s.data.constants = constant(Tensor::scalar(true))),
            own(),
            "$.data.feed.keep: expected float32, got bool",
        ),
        (
            with(&|s| s.data.constants = constant(Tensor::vector(vec![1f32, 2.0]))),
            own(),
            "$.data.feed.keep: its shape is [2], and the placeholder takes []",
        ),
        (
            with(&|s| s.data.constants.push(("kept".to_owned(), Tensor::scalar(1f32)))),
            own(),
            "$.data.feed.kept: The operation, 'kept', does not exist in the graph",
        ),
        (
            with(&|s| s.data.constants.push(("w".to_owned(), Tensor::scalar(1f32)))),
            own(),
            "$.data.feed.w: its op is ReadVariableOp, not Placeholder",
        ),
        (
            with(&|s| s.data.constants.push(("x".to_owned(), Tensor::from(vec![[1f32, 2.0]])))),
            own(),
            "$.data.feed.x: it is fed with examples and with a constant",
        ),
        (
            with(&|s| s.evaluate = evaluate(constant(Tensor::scalar(f64::MAX)))),
            own(),
            "$.evaluate.feed.keep: 1.7976931348623157e+308 (float64) does not fit float32",
        ),
        (
            with(&|s| (s.evaluate, s.data.hold_out) = (evaluate(Vec::new()), 0.5)),
            own(),
            "$.evaluate.feed and $.data.hold_out both say",
        ),
        (with(&|s| s.evaluate = evaluate(Vec::new())), xs(&X).into(), "$.evaluate needs examples"),
        (
            with(&|s| s.evaluate = evaluate(Vec::new())),
            TrainingData { evaluate: Some(xs(&[])), ..TrainingData::from(xs(&X)) },
            "$.evaluate.feed: there is no example",
        ),
        (
            with(&|s| s.evaluate = evaluate(Vec::new())),
            TrainingData {
                evaluate: Some(Examples::new(vec![("x".to_owned(), Tensor::vector(vec![1f32]))]).unwrap()),
                ..TrainingData::from(xs(&X))
            },
            "data for x: an example is float32[], and the placeholder takes float32 in batches [?,2]",
        ),
    ] {
        let error = Trainer::new(kept(), sections, data, &Options::default()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}; expected {why}");
    }
}

/// The random numbers of each of two workers, and of a single one.
#[tokio::test(flavor = "multi_thread")]
async fn each_worker_draws_its_own_random_numbers() {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(2)]);
    let w = m.variable("w", [2], meshtf_train::Initializer::Ones);
    let seeds =
        Attrs::from([("seed", 3.into()), ("seed2", 5.into()), ("dtype", DType::F32.into()), ("T", DType::I32.into())]);
    let noise: Value = m.op("RandomUniform", &[&m.constant([2i32, 2])], seeds);
    noise.named("noise");
    let dropped = m.constant(Tensor::from_vec([64], vec![1f32; 64])).dropout("dropped", 0.5);
    dropped.named("left");
    ((x * w).mean() + noise.mean() + dropped.mean()).named("loss");
    let graph = m.finish().unwrap();
    let drawn = async |layout| {
        let trainer =
            Trainer::new(graph.clone(), laid_out(sections(4, 1), layout), xs(&X), &Options::default()).unwrap();
        let (_cluster, session) = session(&trainer).await;
        trainer.begin(&session, &mut ()).await.unwrap();
        for begin in &trainer.job.begin {
            session.run().target(begin).await.unwrap();
        }
        let feeds = [("training", Tensor::scalar(true))];
        let prefixes = match layout {
            (_, _, _, 1) => ["replica_1/", "replica_2/", "replica_3/"].as_slice(),
            (2, ..) => &["", "replica_1/"],
            _ => &[""],
        };
        let mut all = Vec::new();
        for prefix in prefixes {
            let names = [format!("{prefix}noise"), format!("{prefix}left")];
            all.push(session.run().feeds(&feeds).fetch(&names[0]).fetch(&names[1]).await.unwrap().values);
        }
        all
    };
    let alone = drawn(LAYOUTS[0]).await.remove(0);
    for layout in &LAYOUTS[1..] {
        let all = drawn(*layout).await;
        assert_eq!(all[0], alone, "{layout:?}");
        for (i, own) in all.iter().enumerate() {
            for other in &all[..i] {
                assert!(own[0] != other[0] && own[1] != other[1], "{layout:?}: {all:?}");
            }
        }
    }
}

/// Whoever's turn the first step is, each worker has batches for the steps that it runs: none would wait for one that nobody
/// sends.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_take_turns_have_the_batches_of_theirs() {
    for start in 1..4 {
        let folder = TempDir::new().unwrap();
        let upto = |steps: u64, resume: bool| {
            let mut sections = sections(2, steps);
            (sections.train.workers, sections.train.ps, sections.train.mode) = (3, 1, UpdateMode::Async);
            let options = Options { checkpoint: Some(folder.child("run")), resume, ..Options::default() };
            Trainer::new(normed(), sections, examples(), &options).unwrap()
        };
        let first = upto(start, false);
        let (_cluster, one) = session(&first).await;
        first.run(&one, &mut ()).await.unwrap();
        let then = upto(start + 2, true);
        let (_cluster, one) = session(&then).await;
        let ended = tokio::time::timeout(Duration::from_secs(60), then.run(&one, &mut ())).await.expect("it ends");
        assert_eq!(ended.unwrap().step, start + 2);
    }
}
