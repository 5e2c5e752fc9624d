//! Tests of training, which is run: optimizers against TensorFlow's (`tests/data/train/optimizers.json`, see
//! `tests/tf/recorder/training.py`), the rest against the same sums in plain loops.

use meshtf_cases::{list, tensor};
use meshtf_graph::gradient::{Gradient, Rows};
use meshtf_graph::{Graph, GraphBuilder};
use meshtf_tensor::failure::Code;
use meshtf_tensor::{DType, Data, PartialShape, Shape, Tensor};
use meshtf_train::job::FedPlaceholder;
use meshtf_train::{
    self as train, Clip, GLOBAL_STEP, Initializer, Optimizer, Schedule, Trained, Training, Variable, VariableSpec,
    WarmUp,
};
use serde_json::Value;

use super::Cluster;

pub(super) fn floats(tensor: &Tensor) -> Vec<f64> {
    match tensor.data() {
        Data::F32(values) => values.iter().map(|&value| value.into()).collect(),
        Data::F64(values) => values.clone(),
        other => panic!("{} is not a float", other.dtype()),
    }
}

pub(super) fn assert_near(got: &[f64], wanted: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (got, wanted) in got.iter().zip(wanted) {
        assert!((got - wanted).abs() <= tolerance * (1.0 + wanted.abs()), "{what}: {got}, wanted {wanted}");
    }
}

/// A graph whose variable `w` begins with a value and is fed its gradient: dense as `values`, or as rows with `indices`.
fn fed(training: &Training, first: &Tensor, is_ref: bool, is_sparse: bool) -> (Graph, Trained) {
    let mut g = GraphBuilder::new();
    let spec = VariableSpec {
        dtype: first.dtype(),
        is_ref,
        ..VariableSpec::new("w", first.shape().clone(), Initializer::Constant(first.clone()))
    };
    let w = train::add_variable(&mut g, &spec).unwrap();
    let values = g.placeholder("values", first.dtype(), PartialShape::UNKNOWN).unwrap();
    let gradient = if is_sparse {
        let indices = g.placeholder("indices", DType::I32, PartialShape::UNKNOWN).unwrap();
        let dense_shape = g.constant("dense_shape", [4, 2]).unwrap();
        Gradient::Sparse(Rows { values, indices, dense_shape })
    } else {
        Gradient::Dense(values)
    };
    let trained = train::apply(&mut g, &[w], &[gradient], training).unwrap();
    train::add_init(&mut g, "init", &trained.variables).unwrap();
    (g.finish().unwrap(), trained)
}

pub(super) fn run(cluster: &mut Cluster, graph: &Graph, feeds: &[(&str, Tensor)], names: &[&str]) -> Vec<Tensor> {
    cluster.run(graph, feeds, names).unwrap_or_else(|failure| panic!("{names:?}: {failure}"))
}

#[test]
fn optimizers_do_what_tensorflows_do() {
    let file = meshtf_testing::means::root().join("tests/data/train/optimizers.json");
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut names: Vec<&str> = cases.iter().map(|case| case["optimizer"].as_str().unwrap()).collect();
    names.dedup();
    assert!(Optimizer::NAMES.iter().all(|name| names.contains(name)), "{names:?}");
    for (i, case) in cases.iter().enumerate() {
        let name = case["optimizer"].as_str().unwrap();
        let mut optimizer = Optimizer::of_name(name).unwrap();
        for (number, value) in case["numbers"].as_object().unwrap() {
            optimizer.set(number, value.as_f64().unwrap_or_else(|| f64::from(value.as_bool().unwrap()))).unwrap();
        }
        let first = tensor(&case["first"]);
        let is_sparse = case["steps"][0]["indices"].is_array();
        let is_ref = case["is_ref"] == true;
        let (graph, _) = fed(&Training::new(optimizer, 0.125), &first, is_ref, is_sparse);
        let mut cluster = Cluster::new(1);
        run(&mut cluster, &graph, &[], &["^init"]);
        let tolerance = if first.dtype() == DType::F32 { 2e-6 } else { 1e-12 };
        for (number, (step, after)) in list(&case["steps"]).iter().zip(list(&case["after"])).enumerate() {
            let mut feeds = vec![("values", tensor(&step["values"]))];
            if is_sparse {
                feeds.push(("indices", tensor(&step["indices"])));
            }
            run(&mut cluster, &graph, &feeds, &["^train/step"]);
            for (variable, wanted) in after.as_object().unwrap() {
                let got = run(&mut cluster, &graph, &[], &[variable]);
                let what = format!("{i}: {name} {} after step {number}: {variable}", case["numbers"]);
                assert_eq!(got[0].shape(), tensor(wanted).shape(), "{what}");
                assert_near(&floats(&got[0]), &floats(&tensor(wanted)), tolerance, &what);
            }
            let count = run(&mut cluster, &graph, &[], &[GLOBAL_STEP]);
            assert_eq!(count[0].item::<i64>().unwrap(), number as i64 + 1);
        }
        cluster.is_empty();
    }
}

/// Rows that were looked up twice, and rows that were not, with optimizers that TensorFlow lacks.
#[test]
fn rows_of_a_sparse_gradient_alone_are_updated() {
    let first = Tensor::from_vec([4, 2], vec![1f64, -2.0, 0.5, 4.0, -1.0, 0.25, 3.0, 2.0]);
    let steps = [
        ([2, 0, 2], [0.5, -1.0, 0.25, 0.75, 0.125, -0.5]),
        ([1, 1, 2], [-0.5, 0.25, 1.0, -0.125, 0.5, 0.25]),
        ([0, 2, 0], [-2.0, 1.0, -1.0, 1.0, 0.5, 0.5]),
    ];
    let (rate, beta1, beta2, decay) = (0.125, 0.75, 0.5, 0.25);
    let lion = Optimizer::Lion { beta1, beta2 };
    let (graph, _) = fed(&Training::new(lion, rate), &first, false, true);
    let (mut w, mut m) = (floats(&first), vec![0f64; 8]);
    let mut cluster = Cluster::new(1);
    run(&mut cluster, &graph, &[], &["^init"]);
    for (indices, values) in steps {
        let feeds = [("values", Tensor::from_vec([3, 2], values.to_vec())), ("indices", indices.into())];
        run(&mut cluster, &graph, &feeds, &["^train/step"]);
        let mut sums = std::collections::BTreeMap::<i32, [f64; 2]>::new();
        for (row, part) in indices.iter().zip(values.chunks(2)) {
            let sum = sums.entry(*row).or_default();
            *sum = [sum[0] + part[0], sum[1] + part[1]];
        }
        for (row, gradient) in sums {
            for (column, g) in gradient.into_iter().enumerate() {
                let at = row as usize * 2 + column;
                w[at] -= rate * (beta1 * m[at] + (1.0 - beta1) * g).signum();
                m[at] = beta2 * m[at] + (1.0 - beta2) * g;
            }
        }
        let got = run(&mut cluster, &graph, &[], &["w", "w/Lion"]);
        assert_near(&floats(&got[0]), &w, 1e-12, "w");
        assert_near(&floats(&got[1]), &m, 1e-12, "w/Lion");
    }

    // All weights decay, whichever rows the gradient has.
    let training = Training { weight_decay: decay, ..Training::new(Optimizer::Sgd, rate) };
    let (graph, _) = fed(&training, &first, false, true);
    let mut w = floats(&first);
    run(&mut cluster, &graph, &[], &["^init"]);
    for (indices, values) in steps {
        let feeds = [("values", Tensor::from_vec([3, 2], values.to_vec())), ("indices", indices.into())];
        run(&mut cluster, &graph, &feeds, &["^train/step"]);
        w.iter_mut().for_each(|w| *w -= *w * rate * decay);
        for (row, part) in indices.iter().zip(values.chunks(2)) {
            w[*row as usize * 2] -= rate * part[0];
            w[*row as usize * 2 + 1] -= rate * part[1];
        }
        assert_near(&floats(&run(&mut cluster, &graph, &[], &["w"])[0]), &w, 1e-12, "w that decays");
    }
}

#[test]
fn rates_follow_the_step() {
    let steps = Schedule::Steps { after: vec![3, 5], rates: vec![1.0, 0.5, 0.125] };
    let falling = |staircase| Schedule::Exponential { rate: 2.0, factor: 0.5, every: 4, staircase };
    let cosine = Schedule::Cosine { rate: 0.5, steps: 6, last: 0.25 };
    let warm = Schedule::WarmUp(WarmUp { steps: 4, then: Box::new(cosine.clone()) });
    let of_cosine = |step: f64| {
        let share = step.clamp(0.0, 6.0) / 6.0;
        0.5 * (0.25 + 0.75 * 0.5 * (1.0 + (std::f64::consts::PI * share).cos()))
    };
    let cases: [(Schedule, &dyn Fn(f64) -> f64); 6] = [
        (0.375.into(), &|_| 0.375),
        (steps, &|step| [1.0, 0.5, 0.125][usize::from(step >= 3.0) + usize::from(step >= 5.0)]),
        (falling(false), &|step| 2.0 * 0.5f64.powf(step / 4.0)),
        (falling(true), &|step| 2.0 * 0.5f64.powf((step / 4.0).floor())),
        (cosine, &of_cosine),
        (warm, &|step| of_cosine(step - 4.0) * f64::min((step + 1.0) / 4.0, 1.0)),
    ];
    for (schedule, wanted) in cases {
        let (graph, trained) =
            fed(&Training::new(Optimizer::Sgd, schedule.clone()), &Tensor::scalar(0f32), false, false);
        let rate = graph.tensor_name(trained.rate);
        let mut cluster = Cluster::new(1);
        run(&mut cluster, &graph, &[], &["^init"]);
        let mut w = 0.0;
        for step in 0..9 {
            let fed = ("values", Tensor::scalar(1f32));
            let got = run(&mut cluster, &graph, &[fed], &[&rate, "^train/step"]);
            assert_near(&floats(&got[0]), &[wanted(step.into())], 1e-6, &format!("{schedule:?} at {step}"));
            w -= wanted(step.into());
            assert_near(&floats(&run(&mut cluster, &graph, &[], &["w"])[0]), &[w], 1e-6, "w");
        }
    }
}

#[test]
fn gradients_are_clipped_together_or_one_by_one() {
    // A dense gradient, and rows of which one occurs twice.
    let (dense, rows): ([f64; 2], [f64; 4]) = ([3.0, -4.0], [6.0, -0.5, 0.25, 8.0]);
    let norm = dense.iter().chain(&rows).map(|x| x * x).sum::<f64>().sqrt();
    for (clip, of) in [
        (Clip::Value(1.0), Box::new(|x: f64| x.clamp(-1.0, 1.0)) as Box<dyn Fn(f64) -> f64>),
        (Clip::GlobalNorm(2.0), Box::new(move |x| x * 2.0 / norm)),
        (Clip::GlobalNorm(20.0), Box::new(|x| x)),
    ] {
        let mut g = GraphBuilder::new();
        let specs = [("a", Shape::from([2])), ("t", Shape::from([3, 2]))];
        let variables = specs.map(|(name, shape)| {
            let spec = VariableSpec { dtype: DType::F64, ..VariableSpec::new(name, shape, Initializer::Zeros) };
            train::add_variable(&mut g, &spec).unwrap()
        });
        let fixed = g.constant("dense", dense).unwrap();
        let values = g.constant("values", Tensor::from_vec([2, 2], rows.to_vec())).unwrap();
        let (indices, dense_shape) = (g.constant("indices", [1, 1]).unwrap(), g.constant("shape", [3, 2]).unwrap());
        let gradients = [Gradient::Dense(fixed), Gradient::Sparse(Rows { values, indices, dense_shape })];
        let training = Training { clip: Some(clip), ..Training::new(Optimizer::Sgd, 1.0) };
        let trained = train::apply(&mut g, &variables, &gradients, &training).unwrap();
        train::add_init(&mut g, "init", &trained.variables).unwrap();
        let graph = g.finish().unwrap();
        let mut cluster = Cluster::new(1);
        run(&mut cluster, &graph, &[], &["^init"]);
        run(&mut cluster, &graph, &[], &["^train/step"]);
        let got = run(&mut cluster, &graph, &[], &["a", "t"]);
        assert_near(&floats(&got[0]), &dense.map(|x| -of(x)), 1e-6, "a");
        let row = [-of(rows[0]) - of(rows[2]), -of(rows[1]) - of(rows[3])];
        assert_near(&floats(&got[1]), &[0.0, 0.0, row[0], row[1], 0.0, 0.0], 1e-6, "t");
        if let Some(found) = trained.norm {
            assert_near(
                &floats(&run(&mut cluster, &graph, &[], &[&graph.tensor_name(found)])[0]),
                &[norm],
                1e-6,
                "norm",
            );
        }
    }
}

#[test]
fn averages_follow_the_weights() {
    let training = Training { average: Some(0.75), ..Training::new(Optimizer::Sgd, 1.0) };
    let (graph, _) = fed(&training, &Tensor::vector(vec![1f64, -2.0]), false, false);
    let mut cluster = Cluster::new(1);
    run(&mut cluster, &graph, &[], &["^init"]);
    let (mut w, mut average) = ([1f64, -2.0], [1f64, -2.0]);
    for _ in 0..3 {
        run(&mut cluster, &graph, &[("values", [0.5f64, 0.25].into())], &["^train/step"]);
        w = [w[0] - 0.5, w[1] - 0.25];
        average = [0, 1].map(|i| 0.75 * average[i] + 0.25 * w[i]);
        let got = run(&mut cluster, &graph, &[], &["w/ExponentialMovingAverage"]);
        assert_near(&floats(&got[0]), &average, 1e-12, "average");
    }
}

#[test]
fn first_values_are_those_of_their_distribution_and_seed() {
    let shape = [200usize, 100];
    let variance = |inputs: f64| 2.0 / inputs;
    // The initializer, its mean, its variance, and the largest deviation from the mean.
    let cases = [
        (Initializer::Uniform { low: -1.0, high: 3.0 }, 1.0, 16.0 / 12.0, 2.0),
        (Initializer::Normal { mean: 2.0, stddev: 0.5 }, 2.0, 0.25, f64::INFINITY),
        (Initializer::TruncatedNormal { mean: 1.0, stddev: 0.5 }, 1.0, 0.25 * 0.773_74, 1.0),
        (Initializer::GlorotUniform, 0.0, variance(300.0), (6f64 / 300.0).sqrt()),
        (Initializer::GlorotNormal, 0.0, variance(300.0), 2.0 * (2f64 / 300.0).sqrt() / 0.879_625_66),
        (Initializer::HeUniform, 0.0, variance(200.0), (6f64 / 200.0).sqrt()),
        (Initializer::HeNormal, 0.0, variance(200.0), 2.0 * (2f64 / 200.0).sqrt() / 0.879_625_66),
    ];
    for (initial, mean, variance, most) in cases {
        let draw = |name: &str, seed: i64| {
            let mut g = GraphBuilder::new();
            let spec = VariableSpec { seed, ..VariableSpec::new(name, shape, initial.clone()) };
            let w = train::add_variable(&mut g, &spec).unwrap();
            train::add_init(&mut g, "init", std::slice::from_ref(&w)).unwrap();
            let graph = g.finish().unwrap();
            let mut cluster = Cluster::new(1);
            run(&mut cluster, &graph, &[], &["^init"]);
            floats(&run(&mut cluster, &graph, &[], &[name])[0])
        };
        let drawn = draw("w", 1);
        let n = drawn.len() as f64;
        let got_mean = drawn.iter().sum::<f64>() / n;
        let got_variance = drawn.iter().map(|x| (x - got_mean).powi(2)).sum::<f64>() / n;
        assert!((got_mean - mean).abs() < 5.0 * (variance / n).sqrt(), "{initial:?}: the mean is {got_mean}");
        assert!(
            (got_variance / variance - 1.0).abs() < 0.05,
            "{initial:?}: the variance is {got_variance}, not {variance}"
        );
        assert!(drawn.iter().all(|x| (x - mean).abs() <= most * (1.0 + 1e-6)), "{initial:?}");
        assert_eq!(drawn, draw("w", 1));
        assert!(drawn != draw("w", 2) && drawn != draw("v", 1), "{initial:?}");
    }
}

/// A table that is looked up by its handle gets rows, and a weight that is read gets a dense gradient; both train.
#[test]
fn a_model_is_minimized() {
    let mut g = GraphBuilder::new();
    let table = VariableSpec::new("table", [5, 2], Initializer::Uniform { low: -1.0, high: 1.0 });
    let table = train::add_variable(&mut g, &table).unwrap();
    let w = train::add_variable(&mut g, &VariableSpec::new("w", [2, 1], Initializer::GlorotUniform)).unwrap();
    let rows =
        g.op("ResourceGather").input(table.handle).input([0, 2, 4, 2]).attr("dtype", DType::F32).build().unwrap();
    let y = g.op("MatMul").input(rows).input(w.value).build().unwrap();
    let off = g.op("Sub").input(y).input([[1f32], [2.0], [-1.0], [2.0]]).build().unwrap();
    g.op("L2Loss").name("loss").input(off).build().unwrap();
    let loss = g.settle().map(|()| g.settled().output("loss").unwrap()).unwrap();
    let trained = train::minimize(&mut g, loss, &[table, w], &Training::new(Optimizer::ADAM, 0.1)).unwrap();
    train::add_init(&mut g, "init", &trained.variables).unwrap();
    let graph = g.finish().unwrap();
    assert!(graph.nodes().any(|(_, node)| node.op.name == "ResourceScatterAdd"));
    let mut cluster = Cluster::new(1);
    run(&mut cluster, &graph, &[], &["^init"]);
    let before = run(&mut cluster, &graph, &[], &["table", "loss"]);
    for _ in 0..120 {
        run(&mut cluster, &graph, &[], &["^train/step"]);
    }
    let after = run(&mut cluster, &graph, &[], &["table", "loss"]);
    assert!(floats(&after[1])[0] < 1e-2 * floats(&before[1])[0], "{before:?} {after:?}");
    // Rows without a look-up stay.
    assert_eq!(floats(&after[0])[2..4], floats(&before[0])[2..4]);
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let mut g = GraphBuilder::new();
    let variable = |g: &mut GraphBuilder, name: &str| -> Variable {
        train::add_variable(g, &VariableSpec::new(name, [2], Initializer::Ones)).unwrap()
    };
    let (w, idle) = (variable(&mut g, "w"), variable(&mut g, "idle"));
    let square = g.op("Square").name("square").input(w.value).build().unwrap();
    let loss = g.op("Sum").name("loss").input(square).input(0).build().unwrap();
    let whole = g.op("Cast").name("whole").input(loss).attr("DstT", DType::I32).build().unwrap();
    let sgd = Training::new(Optimizer::Sgd, 0.1);
    let mut refused = |loss, variables: &[Variable], training: &Training| {
        let failure = train::minimize(&mut g, loss, variables, training).unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument, "{failure}");
        failure.message
    };
    let both = [w.clone(), idle];
    assert!(refused(loss, &both, &sgd).contains("the loss loss does not depend on variable idle"));
    assert!(refused(square, &both[..1], &sgd).contains("the loss square has shape [2]"));
    assert!(refused(whole, &both[..1], &sgd).contains("the loss whole is int32"));
    assert!(refused(loss, &[], &sgd).contains("no variable to train"));
    let bad = |training: Training| training;
    let wrong = [
        (bad(Training::new(Optimizer::Sgd, -1.0)), "the rate is -1"),
        (bad(Training::new(Optimizer::Adam { beta1: 1.0, beta2: 0.9, epsilon: 1e-8 }, 0.1)), "beta1 is 1"),
        (bad(Training { clip: Some(Clip::GlobalNorm(0.0)), ..sgd.clone() }), "cannot be clipped to 0"),
        (bad(Training { average: Some(1.0), ..sgd.clone() }), "the decay of averages is 1"),
        (bad(Training { weight_decay: -0.5, ..sgd.clone() }), "the weight decay is -0.5"),
        (bad(Training::new(Optimizer::Sgd, Schedule::Steps { after: vec![5, 5], rates: vec![1.0; 3] })), "must ascend"),
    ];
    for (training, why) in wrong {
        let mut g = GraphBuilder::new();
        let w = variable(&mut g, "w");
        let loss = g.op("L2Loss").input(w.value).build().unwrap();
        let failure = train::minimize(&mut g, loss, &[w], &training).unwrap_err();
        assert!(failure.message.contains(why), "{failure}");
    }
    let mut adam = Optimizer::ADAM;
    assert!(adam.set("momentum", 0.5).unwrap_err().message.contains("it has beta1, beta2, epsilon"));
    let mut g = GraphBuilder::new();
    variable(&mut g, "w");
    let taken = train::add_variable(&mut g, &VariableSpec::new("w", [2], Initializer::Ones)).unwrap_err();
    assert!(taken.message.contains("there is a node w already"), "{taken}");
}

/// A loss that is not a number fails the step before anything is changed.
#[test]
fn a_loss_that_is_no_number_changes_nothing() {
    let text = r#"{"version": 1, "variables": {"w": {"shape": [], "initial": 2.0}},
        "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null]}},
                  "y": {"op": "Mul", "inputs": ["x", "w"]}, "loss": {"op": "Sum", "inputs": ["y", 0]}}}"#;
    let sections = r#"{"data": {"feed": {"x": "x"}, "batch": 1}, "train": {"loss": "loss", "optimizer": "sgd", "rate": 1, "steps": 2}}"#;
    let program = meshtf_graph::read(text.as_bytes()).unwrap();
    let part = FedPlaceholder { name: "x".to_owned(), dtype: DType::F32, example: vec![], there: None };
    let sections = train::file::read(sections).unwrap();
    let job = train::job::job(Graph::new(program.nodes).unwrap(), &sections, &[part], 4, false).unwrap();
    let mut cluster = Cluster::new(1);
    run(&mut cluster, &job.graph, &[], &["^w/assign"]);
    run(&mut cluster, &job.graph, &[], &[&format!("^{}", job.init)]);
    let queue = &job.queues[0];
    let batches = Tensor::from_vec([2, 1], vec![0.5f32, f32::NAN]);
    run(&mut cluster, &job.graph, &[(&queue.feeds[0], batches)], &[&format!("^{}", queue.enqueue)]);
    let step = format!("^{}", job.steps[0].run);
    run(&mut cluster, &job.graph, &[], &[&step]);
    let failure = cluster.run(&job.graph, &[], &[&step]).unwrap_err();
    assert_eq!(failure.node.as_deref(), Some(train::job::CHECK), "{failure}");
    let after = run(&mut cluster, &job.graph, &[], &["w", GLOBAL_STEP]);
    assert_eq!((floats(&after[0])[0], after[1].item::<i64>().unwrap()), (1.5, 1));
}
