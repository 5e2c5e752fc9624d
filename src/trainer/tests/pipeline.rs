//! Trainings in mode pipeline, compared with those of one worker that has whole batches.

use meshtf_train::job::Pipeline;
use meshtf_train::{Clip, Initializer, Schedule};

use super::*;

/// Examples of three numbers, a word and a class.
fn words(count: usize) -> Examples {
    let number = |at: usize| ((at * 7 + 3) % 11) as f32 * 0.2 - 1.0;
    let x = Tensor::from_vec([count, 3], (0..3 * count).map(number).collect::<Vec<f32>>());
    let word = Tensor::vector((0..count).map(|at| (at * 5 % 4) as i32).collect::<Vec<i32>>());
    let y = Tensor::vector((0..count).map(|at| (at % 3) as i32).collect::<Vec<i32>>());
    Examples::new(vec![("x".to_owned(), x), ("word".to_owned(), word), ("y".to_owned(), y)]).unwrap()
}

/// A table of words, and three layers. The first one goes around the second, and every other word's row is used again before the
/// last. The sum of squares of the first and the last layer is part of the loss.
fn model() -> Graph {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(3)]);
    let word = m.placeholder("word", DType::I32, [None]);
    let y = m.placeholder("y", DType::I32, [None]);
    let table = m.embedding("table", 4, 5, &word);
    let first = x.concat(&[&table], 1).dense("first", 6).tanh();
    let second = first.dense("second", 6).tanh() + &first;
    let logits = second.dense("third", 6).tanh().dense("logits", 3);
    let squares = m.tensor("first/kernel").square().sum() + m.tensor("logits/kernel").square().sum();
    let loss = logits.sparse_cross_entropy(&y).mean() + squares * 0.01;
    loss.named("loss");
    logits.accuracy(&y).named("accuracy");
    m.finish().unwrap()
}

/// Trains, and returns all values, by name, and what was recorded.
async fn trained(
    graph: Graph,
    examples: Examples,
    sections: Sections,
    options: &Options,
) -> (Vec<(String, Tensor)>, Vec<Vec<f64>>) {
    #[derive(Default)]
    struct Recorded(Vec<Vec<f64>>);
    impl Observer for Recorded {
        fn trained(&mut self, _: u64, values: &[f64]) -> Observed {
            self.0.push(values.to_vec());
            Ok(())
        }
    }
    let trainer = Trainer::new(graph, sections, examples, options).unwrap();
    let (_cluster, session) = session(&trainer).await;
    let mut recorded = Recorded::default();
    trainer.run(&session, &mut recorded).await.unwrap();
    let mut values = trainer.values(&session, |_| true).await.unwrap();
    values.sort_by(|a, b| a.0.cmp(&b.0));
    (values, recorded.0)
}

/// Whether two trainings come to the same, but for the rounding of float32.
fn assert_same(what: &str, a: &(Vec<(String, Tensor)>, Vec<Vec<f64>>), b: &(Vec<(String, Tensor)>, Vec<Vec<f64>>)) {
    let names = |all: &[(String, Tensor)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&a.0), names(&b.0), "{what}");
    for ((name, a), (_, b)) in a.0.iter().zip(&b.0) {
        if a.dtype() != DType::F32 {
            assert_eq!(a, b, "{what}: {name}");
            continue;
        }
        for (a, b) in a.slice::<f32>().unwrap().iter().zip(b.slice::<f32>().unwrap()) {
            assert!((a - b).abs() < 2e-5, "{what}: {name}: {a} and {b}");
        }
    }
    assert_eq!(a.1.len(), b.1.len(), "{what}");
    for (a, b) in a.1.iter().flatten().zip(b.1.iter().flatten()) {
        assert!((a - b).abs() < 2e-5, "{what}: {a} and {b}");
    }
}

fn of_batches(batch: usize, change: impl Fn(&mut Sections)) -> Sections {
    let mut sections = sections(batch, 8);
    sections.train.training.rate = Schedule::Constant(0.1);
    sections.train.metrics = vec!["accuracy".to_owned()];
    sections.data.shuffle = Some(5);
    change(&mut sections);
    sections
}

/// In any number of stages and micro-batches, also of different sizes: eight steps of each optimizer come to what one worker
/// makes of the whole batches.
#[tokio::test(flavor = "multi_thread")]
async fn steps_are_those_of_one_worker() {
    type Change = fn(&mut Sections);
    let changes: [(&str, Change); 4] = [
        ("sgd", |_| {}),
        ("adam", |sections| sections.train.training.optimizer = Optimizer::ADAM),
        ("momentum, clipped and averaged", |sections| {
            let training = &mut sections.train.training;
            training.optimizer = Optimizer::Momentum { momentum: 0.9, nesterov: false };
            (training.clip, training.average) = (Some(Clip::GlobalNorm(0.5)), Some(0.9));
            training.weight_decay = 0.01;
        }),
        ("some variables", |sections| {
            sections.train.variables = vec!["first/kernel".to_owned(), "third/kernel".to_owned()];
        }),
    ];
    for (what, change) in changes {
        let one = trained(model(), words(21), of_batches(7, change), &Options::default()).await;
        for (workers, microbatches) in [(1, 1), (1, 3), (2, 1), (2, 2), (2, 4), (3, 4), (3, 7)] {
            if what == "some variables" && workers > 2 {
                continue;
            }
            let sections = of_batches(7, |sections| {
                change(sections);
                (sections.train.mode, sections.train.workers) = (UpdateMode::Pipeline, workers);
                sections.train.microbatches = Some(microbatches);
            });
            let own = trained(model(), words(21), sections, &Options::default()).await;
            assert_same(&format!("{what}, {workers} stages, {microbatches} micro-batches"), &one, &own);
        }
    }
}

/// A loop runs for each micro-batch by itself.
#[tokio::test(flavor = "multi_thread")]
async fn loops_are_apart() {
    // More iterations than run in parallel, too.
    for iterations in [3, 40] {
        loops_of(iterations).await;
    }
}

async fn loops_of(iterations: usize) {
    let graph = || {
        let text = r#"{"version": 1,
            "variables": {"w": {"shape": [3], "initial": "ones"}, "v": {"shape": [3], "initial": "ones"}},
            "nodes": {
                "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 3]}},
                "word": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null]}},
                "y": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null]}},
                "begin": {"op": "Mul", "inputs": ["x", "w"]},
                "count": {"op": "Enter", "inputs": [0], "attrs": {"frame_name": "around"}},
                "value": {"op": "Enter", "inputs": ["begin"], "attrs": {"frame_name": "around"}},
                "three": {"op": "Enter", "inputs": [3], "attrs": {"frame_name": "around", "is_constant": true}},
                "one": {"op": "Enter", "inputs": [1], "attrs": {"frame_name": "around", "is_constant": true}},
                "m0": {"op": "Merge", "inputs": ["count", "n0"]}, "m1": {"op": "Merge", "inputs": ["value", "n1"]},
                "less": {"op": "Less", "inputs": ["m0", "three"]}, "go": {"op": "LoopCond", "inputs": ["less"]},
                "s0": {"op": "Switch", "inputs": ["m0", "go"]}, "s1": {"op": "Switch", "inputs": ["m1", "go"]},
                "more": {"op": "AddV2", "inputs": ["s0:1", "one"]}, "squared": {"op": "Tanh", "inputs": ["s1:1"]},
                "n0": {"op": "NextIteration", "inputs": ["more"]}, "n1": {"op": "NextIteration", "inputs": ["squared"]},
                "end": {"op": "Exit", "inputs": ["s1"]},
                "product": {"op": "Mul", "inputs": ["end", "v"]},
                "loss": {"op": "Mean", "inputs": ["product", [0, 1]]}}}"#;
        let text = text.replace(r#""inputs": [3]"#, &format!(r#""inputs": [{iterations}]"#));
        let program = meshtf_graph::read(text.as_bytes()).unwrap();
        (Graph::new(program.nodes).unwrap(), program.init)
    };
    let sections = |workers: usize, mode: UpdateMode| {
        let mut sections = sections(6, 3);
        sections.init = graph().1;
        (sections.train.workers, sections.train.mode) = (workers, mode);
        sections.train.microbatches = (mode == UpdateMode::Pipeline).then_some(4);
        sections
    };
    let one = trained(graph().0, words(6), sections(0, UpdateMode::Sync), &Options::default()).await;
    for workers in [1, 2] {
        let own = trained(graph().0, words(6), sections(workers, UpdateMode::Pipeline), &Options::default()).await;
        assert_same(&format!("{workers} stages, {iterations} iterations"), &one, &own);
    }
}

/// A state that was saved by one worker or by some stages continues in any other number of them, and evaluations are those of the
/// whole model.
#[tokio::test(flavor = "multi_thread")]
async fn states_continue_in_other_stages() {
    let whole = trained(model(), words(21), of_batches(7, |_| {}), &Options::default()).await;
    let folder = TempDir::new().unwrap();
    let mut last = None;
    for (place, (steps, workers)) in [(3, 2), (5, 0), (8, 3)].into_iter().enumerate() {
        let mut sections = of_batches(7, |sections| {
            sections.evaluate =
                Some(EvaluateSection { metrics: vec!["accuracy".to_owned()], ..EvaluateSection::default() });
        });
        sections.train.workers = workers;
        sections.train.mode = if workers > 0 { UpdateMode::Pipeline } else { UpdateMode::Sync };
        let options = Options {
            steps: Some(steps),
            checkpoint: Some(folder.path().to_owned()),
            resume: place > 0,
            ..Options::default()
        };
        let data = TrainingData { evaluate: Some(words(5)), ..TrainingData::from(words(21)) };
        let trainer = Trainer::new(model(), sections, data, &options).unwrap();
        let (_cluster, session) = session(&trainer).await;
        let ended = trainer.run(&session, &mut ()).await.unwrap();
        assert_eq!(ended.step, steps);
        let mut values = trainer.values(&session, |_| true).await.unwrap();
        values.sort_by(|a, b| a.0.cmp(&b.0));
        let evaluated = trainer.evaluate(&session).await.unwrap().means;
        assert_eq!(evaluated.len(), 2);
        last = Some((values, evaluated));
    }
    let (values, evaluated) = last.unwrap();
    assert_same("three runs", &(whole.0, Vec::new()), &(values, Vec::new()));
    // The evaluation of one worker with the same weights.
    let mut sections = of_batches(7, |sections| {
        sections.evaluate =
            Some(EvaluateSection { metrics: vec!["accuracy".to_owned()], ..EvaluateSection::default() });
    });
    sections.train.training.rate = Schedule::Constant(0.0);
    sections.train.steps = Some(9);
    let options = Options { checkpoint: Some(folder.path().to_owned()), resume: true, ..Options::default() };
    let data = TrainingData { evaluate: Some(words(5)), ..TrainingData::from(words(21)) };
    let trainer = Trainer::new(model(), sections, data, &options).unwrap();
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
    for (a, b) in trainer.evaluate(&session).await.unwrap().means.iter().zip(evaluated) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
}

/// The most micro-batches of which a stage holds values, seen in a trace: a forward turn ends before the backward turn that makes
/// room for the next one begins.
#[tokio::test(flavor = "multi_thread")]
async fn turns_run_in_their_order() {
    use meshtf_graph::trace::DeviceTrace;
    #[derive(Default)]
    struct Traced(Vec<DeviceTrace>);
    impl Observer for Traced {
        fn traced(&mut self, _: u64, _: u64, traces: Vec<DeviceTrace>) -> Observed {
            self.0 = traces;
            Ok(())
        }
    }
    let sections = of_batches(6, |sections| {
        (sections.train.mode, sections.train.workers, sections.train.microbatches) = (UpdateMode::Pipeline, 2, Some(6));
        sections.train.steps = Some(1);
    });
    let trainer = Trainer::new(model(), sections, words(6), &Options { trace: true, ..Options::default() }).unwrap();
    let Pipeline { stages, microbatches } = trainer.pipeline().unwrap();
    assert_eq!((stages.len(), microbatches.len()), (2, 6));
    assert!((trainer.pipeline().unwrap().bubble() - 1.0 / 7.0).abs() < 1e-12);
    let (_cluster, session) = session(&trainer).await;
    let mut traced = Traced::default();
    trainer.run(&session, &mut traced).await.unwrap();
    assert_eq!(traced.0.len(), 2);
    for (stage, wanted) in ["FFBFBFBFBFBB", "FBFBFBFBFBFB"].into_iter().enumerate() {
        let trace = traced.0.iter().find(|trace| trace.device.task.index as usize == stage).unwrap();
        let mut products: Vec<_> = trace.nodes.iter().filter(|node| node.op == "MatMul").collect();
        products.sort_by_key(|node| node.start_ns);
        // A product of a gradient has its micro-batch in its scope, others in their prefix.
        let turn = |name: &str| {
            let (first, rest) = name.split_once('/').unwrap();
            let number = |prefix: &str| first.strip_prefix(prefix).map(|number| number.parse::<usize>().unwrap_or(0));
            match number("gradients") {
                Some(_) => ('B', first.strip_prefix("gradients_").map_or(0, |number| number.parse().unwrap())),
                None => ('F', number("replica_").filter(|_| !rest.is_empty()).unwrap_or(0)),
            }
        };
        let mut turns: Vec<(char, usize)> = products.iter().map(|node| turn(&node.name)).collect();
        turns.dedup();
        let found: String = turns.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(found, wanted, "stage {stage}: {turns:?}");
        for kind in ['F', 'B'] {
            let own: Vec<usize> = turns.iter().filter(|turn| turn.0 == kind).map(|turn| turn.1).collect();
            assert_eq!(own, [0, 1, 2, 3, 4, 5], "stage {stage}");
        }
    }
}

#[test]
fn micro_batches_fit_their_placeholders() {
    let sections = |microbatches: usize| {
        of_batches(6, |sections| {
            (sections.train.mode, sections.train.workers) = (UpdateMode::Pipeline, 2);
            sections.train.microbatches = Some(microbatches);
            sections.train.metrics.clear();
        })
    };
    // A model of three examples at a time.
    let graph = || {
        let m = Model::new();
        let x = m.placeholder("x", DType::F32, [Some(3), Some(3)]);
        m.placeholder("word", DType::I32, [None]);
        let y = m.placeholder("y", DType::I32, [None]);
        let loss = x.dense("first", 4).dense("second", 3).sparse_cross_entropy(&y).mean();
        loss.named("loss");
        m.variable("unused", [2], Initializer::Ones);
        m.finish().unwrap()
    };
    let mut section = sections(2);
    section.train.variables = ["first/kernel", "second/kernel"].map(str::to_owned).into();
    Trainer::new(graph(), section, words(6), &Options::default()).unwrap();
    for (microbatches, why) in [
        (3, "placeholder x takes 3 examples at a time, a worker takes 2"),
        (7, "a batch of 6 examples has no 7 micro-batches: \"microbatches\" is 1 to 6"),
    ] {
        let error = Trainer::new(graph(), sections(microbatches), words(6), &Options::default()).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}
