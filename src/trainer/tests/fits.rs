//! The refusals before the first step, or before a state is saved; and the number of examples that are evaluated at a time.

use meshtf_train as train;
use meshtf_train::file::ConfusionNodes;

use super::*;

/// The mean of a row in half precision.
fn half_precision() -> Graph {
    let m = Model::new();
    let x = m.placeholder("x", DType::F16, [None, Some(2)]);
    let w = train::VariableSpec { dtype: DType::F16, ..train::VariableSpec::new("w", [2], train::Initializer::Ones) };
    let y = &x * m.variable_of(&w);
    y.square().mean().named("loss");
    let limit = m.constant(half::f16::from_f32(1.0));
    m.op("Greater", &[&y.mean(), &limit], meshtf_graph::Attrs::default()).named("is_more");
    m.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_numbers_of_any_dtype() {
    let mut sections = sections(4, 2);
    (sections.data.hold_out, sections.train.training.rate) = (0.5, train::Schedule::Constant(0.0));
    sections.train.metrics = vec!["is_more".to_owned()];
    sections.evaluate = Some(EvaluateSection { metrics: sections.train.metrics.clone(), ..EvaluateSection::default() });
    let x = Tensor::from_vec([8, 2], vec![half::f16::from_f32(1.5); 16]);
    let examples = Examples::new(vec![("x".to_owned(), x)]).unwrap();
    let trainer = Trainer::new(half_precision(), sections, examples, &Options::default()).unwrap();
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
    assert_eq!(trainer.evaluate(&session).await.unwrap().means, [2.25, 1.0]);
}

#[test]
fn what_is_looked_at_is_checked_before_the_first_step() {
    let m = Model::new();
    let (x, z) = (m.placeholder("x", DType::F32, [None, Some(2)]), m.placeholder("z", DType::I32, [None]));
    x.dense("d", 2).square().mean().named("loss");
    z.named("class");
    m.op("AsString", &[&x.mean()], meshtf_graph::Attrs::default()).named("text");
    let graph = m.finish().unwrap();
    let confused = |labels: &str| {
        let confusion = ConfusionNodes { labels: labels.to_owned(), predictions: "loss".to_owned() };
        Some(EvaluateSection { confusion: Some(confusion), ..EvaluateSection::default() })
    };
    let with = |change: &dyn Fn(&mut Sections)| {
        let mut sections = sections(2, 3);
        sections.data.hold_out = 0.5;
        sections.evaluate = Some(EvaluateSection::default());
        change(&mut sections);
        sections
    };
    let metric = |name: &str| vec![name.to_owned()];
    for (sections, why) in [
        (with(&|s| s.evaluate = confused("class")), "nothing for placeholder z, which class needs"),
        (with(&|s| s.evaluate = confused("loss")), "$.evaluate.confusion: loss: it is float32; expected a class"),
        (with(&|s| s.train.updates = metric("class")), "nothing for placeholder z, which class needs"),
        (with(&|s| s.train.metrics = metric("text")), "metric text is string[]; it must be one number"),
    ] {
        let x = Examples::new(vec![("x".to_owned(), Tensor::from_vec([8, 2], X.to_vec()))]).unwrap();
        let error = Trainer::new(graph.clone(), sections, x, &Options::default()).map(|_| ()).unwrap_err();
        assert!(matches!(&error, Error::Sections(text) if text.contains(why)), "{error}\nwanted {why}");
    }
}

/// The root of a number times a weight: where the number is 0, the loss is 0 and its gradient is not a number.
fn roots() -> Graph {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None]);
    (x * m.variable("w", [], train::Initializer::Ones)).sqrt().mean().named("loss");
    m.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_not_finite_is_not_saved() {
    let folder = TempDir::new().unwrap();
    let x = || Examples::new(vec![("x".to_owned(), Tensor::vector(vec![1f32, 4.0, 0.0, 1.0]))]).unwrap();
    for (name, every, check_numerics, parts, left) in [
        (
            "each",
            Some(Every::Steps(1)),
            false,
            &["variable w contains NaN or infinity after step 3, whose state"][..],
            &[1, 2][..],
        ),
        (
            "one",
            Some(Every::Steps(2)),
            false,
            &["the loss is NaN or infinite in step 4", "could not be saved: variable w"],
            &[2],
        ),
        (
            "checked",
            None,
            true,
            &["a gradient is NaN or infinite in step 3, which changed nothing; the state before it is saved", "Sqrt"],
            &[2],
        ),
    ] {
        let options = Options { checkpoint: Some(folder.child(name)), every, check_numerics, ..Options::default() };
        let trainer = Trainer::new(roots(), sections(1, 4), x(), &options).unwrap();
        let (_cluster, session) = session(&trainer).await;
        let error = trainer.run(&session, &mut ()).await.unwrap_err();
        let Error::NotFinite(text) = &error else { panic!("{error}") };
        assert!(parts.iter().all(|part| text.contains(part)), "{text}\nwanted {parts:?}");
        let files: Vec<_> = left.iter().map(|&step| stored::state(&folder.child(name), step)).collect();
        assert_eq!(stored::states(&folder.child(name)).unwrap(), files, "{text}");
    }
    // All workers check their own gradients before any variable is changed.
    for mode in [UpdateMode::Mirrored, UpdateMode::Async] {
        let mut sections = sections(2, 2);
        (sections.train.workers, sections.train.mode) = (2, mode);
        let options = Options { check_numerics: true, ..Options::default() };
        let trainer = Trainer::new(roots(), sections, x(), &options).unwrap();
        let (_cluster, session) = session(&trainer).await;
        let error = trainer.run(&session, &mut ()).await.unwrap_err();
        assert!(matches!(&error, Error::NotFinite(text) if text.contains("a gradient is NaN")), "{error}");
        let values = trainer.values(&session, |one| one.name == "w").await.unwrap();
        assert!(values[0].1.item::<f32>().unwrap().is_finite(), "{values:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placeholder_of_a_fixed_number_of_examples_is_fed_as_many() {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [Some(2)]);
    (x * m.variable("w", [], train::Initializer::Ones)).mean().named("loss");
    let graph = m.finish().unwrap();
    let x = || Examples::new(vec![("x".to_owned(), Tensor::vector((0..9).map(|i| i as f32).collect::<Vec<f32>>()))]);
    let with = |batch: usize, hold_out: f64| {
        let mut sections = sections(batch, 2);
        (sections.train.training.rate, sections.data.hold_out) = (train::Schedule::Constant(0.0), hold_out);
        sections.evaluate = Some(EvaluateSection::default());
        sections
    };
    for (sections, why) in [
        (with(4, 0.6), "$.data.batch: placeholder x takes 2 examples at a time, a worker takes 4"),
        (with(2, 0.15), "$.evaluate: 1 examples are evaluated, and a placeholder takes 2 at a time"),
    ] {
        let error = Trainer::new(graph.clone(), sections, x().unwrap(), &Options::default()).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), why);
    }
    let trainer = Trainer::new(graph, with(2, 0.6), x().unwrap(), &Options::default()).unwrap();
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
    // Of five, the last is left out.
    let held = trainer.held_out.as_ref().unwrap();
    let four: f32 = held.take(&[0, 1, 2, 3], &[4]).unwrap()[0].slice::<f32>().unwrap().iter().sum();
    assert_eq!((held.len(), trainer.evaluate(&session).await.unwrap().means), (5, vec![f64::from(four) / 4.0]));
}

#[test]
fn what_is_evaluated_at_a_time_has_a_limit_in_bytes() {
    let m = Model::new();
    m.placeholder("x", DType::F32, [None, Some(2)]);
    let graph = m.finish().unwrap();
    for (rows, elements, wanted) in [(32, 2, 1024), (4, 224 * 224 * 3, 27), (64, 224 * 224 * 3, 64), (2048, 2, 2048)] {
        let x = Tensor::zeros(DType::F32, [1, elements]).unwrap();
        let examples = Examples::new(vec![("x".to_owned(), x)]).unwrap();
        let chunk = Chunk { examples: wanted, is_fixed: false };
        assert_eq!(Chunk::of(&graph, &examples, rows).unwrap(), chunk);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_values_are_those_of_the_node_init() {
    for named in [vec![], vec!["init".to_owned()]] {
        let without = Sections { init: named.clone(), ..sections(2, 3) };
        let trainer = Trainer::new(normed(), without, examples(), &Options::default()).unwrap();
        let (_cluster, session) = session(&trainer).await;
        trainer.run(&session, &mut ()).await.unwrap();
        let mut defs = normed().to_defs();
        defs.iter_mut().filter(|def| def.name == "init").for_each(|def| def.name = "begin".to_owned());
        let refused = |init: Vec<String>| {
            let sections = Sections { init, ..sections(2, 3) };
            let graph = Graph::new(defs.clone()).unwrap();
            Trainer::new(graph, sections, examples(), &Options::default()).map(|_| ()).unwrap_err().to_string()
        };
        let error = refused(named);
        assert!(error.contains("$.init is missing: the nodes that give variables such as"), "{error}");
        let error = refused(vec!["beginn".to_owned()]);
        assert!(error.contains("$.init: ") && error.contains("begin"), "{error}");
    }
}

/// A source of an evaluation that states no scale has that of the training.
#[test]
fn what_is_evaluated_is_scaled_as_in_the_training() {
    let folder = TempDir::new().unwrap();
    let x = meshtf_tensor::npy::write(&Tensor::from_vec([4, 2], vec![3f32; 8])).unwrap();
    std::fs::write(folder.child("x.npy"), x).unwrap();
    for (own, wanted) in [(r#""x.npy""#, 1.5), (r#"{"file": "x.npy", "scale": 2}"#, 6.0)] {
        let text = format!(
            r#"{{"data": {{"feed": {{"x": {{"file": "x.npy", "scale": 0.5}}}}, "batch": 2}},
                "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1}},
                "evaluate": {{"every": 1, "feed": {{"x": {own}}}}}}}"#
        );
        let sections = meshtf_train::file::read(&text).unwrap();
        let m = Model::new();
        m.placeholder("x", DType::F32, [None, Some(2)]).square().mean().named("loss");
        let loaded = load(&sections, &m.finish().unwrap(), folder.path(), &Found::default()).unwrap();
        let evaluated = loaded.data.evaluate.unwrap().take(&[0], &[1]).unwrap();
        assert_eq!(evaluated[0], Tensor::from_vec([1, 2], vec![wanted as f32; 2]), "{own}");
    }
}
