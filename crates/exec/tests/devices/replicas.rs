//! Tests of replicas of a model on several workers, compared with one worker that takes whole batches.

use std::collections::BTreeMap;

use meshtf_graph::gradient::{Gradient, Rows};
use meshtf_graph::{Graph, GraphBuilder};
use meshtf_tensor::device::Task;
use meshtf_tensor::{DType, Shape, Tensor};
use meshtf_train::job::{self, FedPlaceholder, TrainingGraph};
use meshtf_train::ring::{BucketLimits, all_reduce};
use meshtf_train::{self as train, GLOBAL_STEP, Initializer, VariableSpec, file};

use super::Cluster;
use super::train::{assert_near, floats, run};

/// A network with a table that is looked up, a weight that is too large to go directly, and small ones.
const MODEL: &str = r#"{"version": 1,
    "variables": {
        "table": {"shape": [6, 3], "initial": {"uniform": {"low": -1, "high": 1}}},
        "w": {"shape": [3, 6000], "initial": "glorot_uniform"}, "b": {"shape": [6000], "initial": 0.5},
        "v": {"shape": [6000, 2], "initial": "glorot_uniform"}},
    "nodes": {
        "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 3]}},
        "word": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null]}},
        "y": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}},
        "row": {"op": "GatherV2", "inputs": ["table", "word", 0]}, "both": {"op": "AddV2", "inputs": ["x", "row"]},
        "xw": {"op": "MatMul", "inputs": ["both", "w"]}, "sum": {"op": "AddV2", "inputs": ["xw", "b"]},
        "hidden": {"op": "Tanh", "inputs": ["sum"]}, "out": {"op": "MatMul", "inputs": ["hidden", "v"]},
        "square": {"op": "SquaredDifference", "inputs": ["out", "y"]},
        "loss": {"op": "Mean", "inputs": ["square", [0, 1]]}}}"#;

fn part(name: &str, dtype: DType, example: &[usize]) -> FedPlaceholder {
    FedPlaceholder { name: name.to_owned(), dtype, example: example.to_vec(), there: None }
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 131) % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// The results of training: the loss of each step, and the model's variables at the end.
struct Learned {
    losses: Vec<f64>,
    weights: Vec<Vec<f64>>,
}

/// Sizes of transfers by which the larger variables of the model are divided: `w` is updated by one of two workers, `v` and `b`
/// together by another or in parts.
const DIVIDED: BucketLimits = BucketLimits { bucket: 40 << 10, joined: 16 << 10, direct: 4 << 10, undivided: 0 };

/// Trains for `batches` steps, on the workers and tasks that `train` specifies.
fn learn(optimizer: &str, train: &str, tasks: &[Task], batches: usize) -> Learned {
    learn_within(optimizer, train, tasks, batches, BucketLimits::default())
}

/// As [`learn`], with the sizes of transfers between mirrored workers.
fn learn_within(optimizer: &str, train: &str, tasks: &[Task], batches: usize, limits: BucketLimits) -> Learned {
    let Begun { job, mut cluster } = Begun::new(optimizer, train, tasks, batches, limits);
    let step = format!("^{}", job.steps[0].run);
    let mut losses = Vec::new();
    for _ in 0..batches {
        losses.push(floats(&run(&mut cluster, &job.graph, &[], &[&job.steps[0].loss, &step])[0])[0]);
    }
    let names = ["table", "w", "b", "v"];
    let all = run(&mut cluster, &job.graph, &[], &names);
    if train.contains("mirrored") {
        for worker in 1..job.queues.len() {
            let copies = names.map(|name| format!("replica_{worker}/{name}"));
            let copies = run(&mut cluster, &job.graph, &[], &copies.each_ref().map(String::as_str));
            assert!(copies == all, "worker {worker} has other weights than worker 0");
        }
        // The restored value is the same on all workers.
        let (feed, assign) = &job.restores[2];
        assert_eq!(job.variables[2].name, "b");
        run(
            &mut cluster,
            &job.graph,
            &[(feed, Tensor::from_vec([6000], vec![0.25f32; 6000]))],
            &[&format!("^{assign}")],
        );
        for worker in 0..job.queues.len() {
            let b = if worker == 0 { "b".to_owned() } else { format!("replica_{worker}/b") };
            assert_eq!(floats(&run(&mut cluster, &job.graph, &[], &[&b])[0]), [0.25; 6000]);
        }
    }
    assert_eq!(run(&mut cluster, &job.graph, &[], &[GLOBAL_STEP])[0].item::<i64>().unwrap(), batches as i64);
    Learned { losses, weights: all.iter().map(floats).collect() }
}

/// A training with first values, and its batches in the queues.
struct Begun {
    job: TrainingGraph,
    cluster: Cluster,
}

impl Begun {
    fn new(optimizer: &str, train: &str, tasks: &[Task], batches: usize, limits: BucketLimits) -> Begun {
        let batch = 12;
        let sections = format!(
            r#"{{"data": {{"feed": {{"x": "x", "word": "word", "y": "y"}}, "batch": {batch}}},
                "train": {{"loss": "loss", "optimizer": {optimizer}, "steps": {batches}{train}}}}}"#
        );
        let program = meshtf_graph::read(MODEL.as_bytes()).unwrap();
        let sections = file::read(&sections).unwrap();
        let parts = [part("x", DType::F32, &[3]), part("word", DType::I32, &[]), part("y", DType::F32, &[2])];
        let graph = Graph::new(program.nodes).unwrap();
        let workers: Vec<usize> = (0..sections.train.workers.max(1)).collect();
        let job = job::job_on(&workers, graph, &sections, &parts, batches, false, limits).unwrap();
        let mut cluster = Cluster::of(tasks);
        for node in program.init.iter().chain([&job.init]) {
            run(&mut cluster, &job.graph, &[], &[&format!("^{node}")]);
        }
        let rows = batch / job.queues.len();
        let (x, y) = (numbers(batches * batch * 3, 1), numbers(batches * batch * 2, 2));
        // Each worker has some words alone, and some in common with others.
        let words: Vec<i32> = (0..batches * batch).map(|i| (i * i % 7) as i32 % 5).collect();
        for (i, queue) in job.queues.iter().enumerate() {
            fn own<T: Copy>(all: &[T], width: usize, sizes: [usize; 4]) -> Vec<T> {
                let [batches, batch, rows, worker] = sizes;
                let of_step = |step: usize| &all[(step * batch + worker * rows) * width..][..rows * width];
                (0..batches).flat_map(of_step).copied().collect()
            }
            let sizes = [batches, batch, rows, i];
            let feeds = [
                (queue.feeds[0].as_str(), Tensor::from_vec([batches, rows, 3], own(&x, 3, sizes))),
                (queue.feeds[1].as_str(), Tensor::from_vec([batches, rows], own(&words, 1, sizes))),
                (queue.feeds[2].as_str(), Tensor::from_vec([batches, rows, 2], own(&y, 2, sizes))),
            ];
            run(&mut cluster, &job.graph, &feeds, &[&format!("^{}", queue.enqueue)]);
        }
        Begun { job, cluster }
    }

    fn with(optimizer: &str, workers: u32, batches: usize, limits: BucketLimits) -> Begun {
        let train = format!(r#", "workers": {workers}, "mode": "mirrored""#);
        let tasks: Vec<Task> = (0..workers).map(|i| Task::new("worker", i)).collect();
        Begun::new(optimizer, &train, &tasks, batches, limits)
    }

    /// The state, by name, after each of these numbers of further steps.
    fn states(&mut self, steps: &[usize]) -> Vec<BTreeMap<String, Tensor>> {
        let Begun { job, cluster } = self;
        let mut states = Vec::new();
        for &count in steps {
            for _ in 0..count {
                run(cluster, &job.graph, &[], &[&format!("^{}", job.steps[0].run)]);
            }
            let value = |variable: &train::Variable| {
                let tensor = job.graph.tensor_name(variable.value);
                (variable.name.clone(), run(cluster, &job.graph, &[], &[&tensor]).remove(0))
            };
            states.push(job.variables.iter().map(value).collect());
        }
        states
    }

    fn restore(&mut self, state: &BTreeMap<String, Tensor>) {
        let Begun { job, cluster } = self;
        for (variable, (feed, assign)) in job.variables.iter().zip(&job.restores) {
            run(cluster, &job.graph, &[(feed, state[&variable.name].clone())], &[&format!("^{assign}")]);
        }
    }

    /// Drops batches.
    fn skip(&mut self, batches: usize) {
        let Begun { job, cluster } = self;
        for queue in 0..job.queues.len() {
            for _ in 0..batches {
                run(cluster, &job.graph, &[], &[&format!("train/queue_{queue}/next")]);
            }
        }
    }
}

/// Workers that share each batch learn the same as one worker with all of it, over 100 steps to 1e-5.
#[test]
fn several_workers_learn_what_one_does() {
    let momentum = r#"{"name": "momentum", "momentum": 0.5}, "rate": 0.002, "clip_norm": 2"#;
    let tasks = |workers: u32, ps: u32| -> Vec<Task> {
        (0..workers).map(|i| Task::new("worker", i)).chain((0..ps).map(|i| Task::new("ps", i))).collect()
    };
    let one = learn(momentum, "", &[Task::new("local", 0)], 100);
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&one.losses[80..]) < mean(&one.losses[..20]), "{:?}", one.losses);
    for (workers, ps, mode) in [
        (1, 1, "sync"),
        (2, 1, "sync"),
        (3, 2, "sync"),
        (2, 0, "sync"),
        (1, 0, "mirrored"),
        (2, 0, "mirrored"),
        (3, 0, "mirrored"),
    ] {
        let ps_key = if ps > 0 { format!(r#", "ps": {ps}"#) } else { String::new() };
        let train = format!(r#", "workers": {workers}, "mode": "{mode}"{ps_key}"#);
        let several = learn(momentum, &train, &tasks(workers, ps), 100);
        let what = format!("{mode}, {workers} workers, {ps} ps");
        assert_near(&several.losses, &one.losses, 1e-5, &what);
        for (several, one) in several.weights.iter().zip(&one.weights) {
            assert_near(several, one, 1e-5, &what);
        }
    }
}

/// Each optimizer's slots are on each worker, and so are its powers, averages and decay.
#[test]
fn mirrored_workers_keep_what_an_optimizer_needs() {
    let tasks = [Task::new("worker", 0), Task::new("worker", 1)];
    for optimizer in [
        r#""adam", "rate": {"exponential": {"rate": 0.01, "factor": 0.5, "every": 3}}, "average": 0.9"#,
        r#"{"name": "adamw", "decay": 0.1}, "rate": 0.01, "warm_up": 2"#,
        r#""lion", "rate": 0.001"#,
        r#"{"name": "rmsprop", "centered": true, "epsilon": 0.001}, "rate": 0.01, "clip_value": 0.01"#,
    ] {
        let one = learn(optimizer, "", &[Task::new("local", 0)], 8);
        for limits in [BucketLimits::default(), DIVIDED] {
            let two = learn_within(optimizer, r#", "workers": 2, "mode": "mirrored""#, &tasks, 8, limits);
            assert_near(&two.losses, &one.losses, 1e-5, optimizer);
        }
    }
}

/// Workers that each update a share of the variables learn what one worker does, whatever has to be added up for it.
#[test]
fn workers_that_divide_the_update_learn_what_one_does() {
    for (optimizer, batches) in [
        (r#"{"name": "momentum", "momentum": 0.5}, "rate": 0.002, "clip_norm": 2"#, 8),
        (r#""sgd", "rate": 0.01, "clip_norm": 0.01, "average": 0.5"#, 3),
        (r#""adam", "rate": 0.01, "weight_decay": 0.01"#, 3),
        (r#""ftrl", "rate": 0.01, "clip_value": 0.001"#, 3),
        (r#""adadelta", "rate": 0.1"#, 3),
    ] {
        let one = learn(optimizer, "", &[Task::new("local", 0)], batches);
        for workers in [2, 3] {
            let train = format!(r#", "workers": {workers}, "mode": "mirrored""#);
            let tasks: Vec<Task> = (0..workers).map(|i| Task::new("worker", i)).collect();
            let several = learn_within(optimizer, &train, &tasks, batches, DIVIDED);
            let what = format!("{workers} workers, {optimizer}");
            assert_near(&several.losses, &one.losses, 1e-5, &what);
            for (several, one) in several.weights.iter().zip(&one.weights) {
                assert_near(several, one, 1e-5, &what);
            }
        }
    }
}

/// The state of a mirrored training is the same for any number of workers: names, dtypes, shapes and values. One that was saved
/// with some workers continues with others.
#[test]
fn a_state_is_taken_up_by_any_number_of_workers() {
    let optimizer = r#""adam", "rate": 0.01, "average": 0.9"#;
    let whole = Begun::with(optimizer, 1, 12, BucketLimits::default()).states(&[12]);
    for (before, after) in [(2, 1), (2, 3), (1, 3), (3, 2)] {
        let half = Begun::with(optimizer, before, 12, DIVIDED).states(&[6]).remove(0);
        let mut rest = Begun::with(optimizer, after, 12, DIVIDED);
        rest.restore(&half);
        rest.skip(6);
        let got = rest.states(&[6]).remove(0);
        for ((name, got), (also, wanted)) in got.iter().zip(&whole[0]) {
            assert_eq!((name, got.dtype(), got.shape()), (also, wanted.dtype(), wanted.shape()));
            if got.dtype() == DType::I64 {
                assert_eq!(got, wanted, "{name}");
                continue;
            }
            assert_near(&floats(got), &floats(wanted), 1e-5, &format!("{name}, {before} and then {after} workers"));
        }
        assert_eq!(got.len(), whole[0].len());
    }
}

/// Gradients of several dtypes and shapes, dense and of rows, in buckets of every kind.
#[test]
fn all_tasks_have_the_same_sums() {
    let shapes: [(&str, DType, &[usize]); 6] = [
        ("small", DType::F32, &[3]),
        ("large", DType::F32, &[7, 11]),
        ("scalar", DType::F32, &[]),
        ("double", DType::F64, &[2, 5]),
        ("table", DType::F32, &[4, 2]),
        ("last", DType::F32, &[13]),
    ];
    for tasks in 1..5u32 {
        for limits in [
            BucketLimits::default(),
            BucketLimits { bucket: 64, joined: 64, direct: 0, undivided: 0 },
            BucketLimits { bucket: 100, joined: 20, direct: 30, undivided: 0 },
        ] {
            let mut g = GraphBuilder::new();
            let (mut variables, mut gradients) = (Vec::new(), Vec::new());
            for task in 0..tasks {
                let device = format!("/job:worker/task:{task}");
                let (mut own, mut set) = (Vec::new(), Vec::new());
                for (k, (name, dtype, dims)) in shapes.iter().enumerate() {
                    let shape = Shape::from(dims.to_vec());
                    let spec = VariableSpec {
                        dtype: *dtype,
                        device: device.clone(),
                        ..VariableSpec::new(&format!("{name}_{task}"), shape.clone(), Initializer::Zeros)
                    };
                    own.push(train::add_variable(&mut g, &spec).unwrap());
                    let values = numbers(shape.elements().unwrap(), k + 10 * task as usize);
                    let values = match dtype {
                        DType::F64 => Tensor::from_vec(shape, values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()),
                        _ => Tensor::from_vec(shape, values),
                    };
                    set.push(
                        g.with_device(&device, |g| {
                            if *name != "table" {
                                return g.constant("gradient", values).map(Gradient::Dense);
                            }
                            // Two of its rows, one of which all tasks have.
                            let rows = Tensor::from_vec([2, 2], vec![1f32, 2.0, 0.25, task as f32]);
                            let values = g.constant("rows", rows)?;
                            let indices = g.constant("indices", [0, 1 + task as i32 % 3])?;
                            let dense_shape = g.constant("shape", [4, 2])?;
                            Ok(Gradient::Sparse(Rows { values, indices, dense_shape }))
                        })
                        .unwrap(),
                    );
                }
                variables.push(own);
                gradients.push(set);
            }
            let sums = all_reduce(&mut g, &variables, &gradients, limits).unwrap();
            let mut names = Vec::new();
            for set in &sums {
                let mut own = Vec::new();
                for sum in set {
                    let dense = meshtf_graph::gradient::dense(&mut g, *sum).unwrap();
                    own.push(g.tensor_name(dense));
                }
                names.push(own);
            }
            let graph = g.finish().unwrap();
            // Two tasks exchange their gradients; no sum goes around the ring.
            let goes_around = graph.to_defs().iter().any(|node| node.op == "AddV2");
            assert_eq!(goes_around, tasks > 2 && limits.direct < 64, "{tasks} tasks, {limits:?}");
            let mut cluster = Cluster::of(&(0..tasks).map(|i| Task::new("worker", i)).collect::<Vec<_>>());
            let mut first: Option<Vec<Tensor>> = None;
            for own in &names {
                let got = run(&mut cluster, &graph, &[], &own.iter().map(String::as_str).collect::<Vec<_>>());
                assert!(first.get_or_insert_with(|| got.clone()) == &got, "{tasks} tasks, {limits:?}");
            }
            for (k, ((name, _, dims), got)) in shapes.iter().zip(first.unwrap()).enumerate() {
                let mut wanted = vec![0f64; dims.iter().product()];
                for task in 0..tasks as usize {
                    if *name == "table" {
                        let other = 2 * (1 + task % 3);
                        for (at, value) in [(0, 1.0), (1, 2.0), (other, 0.25), (other + 1, task as f64)] {
                            wanted[at] += value;
                        }
                        continue;
                    }
                    wanted
                        .iter_mut()
                        .zip(numbers(dims.iter().product(), k + 10 * task))
                        .for_each(|(sum, x)| *sum += f64::from(x));
                }
                assert_eq!(got.dims(), *dims, "{name}");
                assert_near(&floats(&got), &wanted, 1e-6, &format!("{name} of {tasks} tasks, {limits:?}"));
            }
        }
    }
}

/// Workers that do not wait for each other change the same variables, each by its own gradients.
#[test]
fn each_worker_of_an_async_training_makes_its_own_updates() {
    let text = r#"{"version": 1, "variables": {"w": {"shape": [], "initial": 1.0}},
        "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null]}},
                  "y": {"op": "Mul", "inputs": ["x", "w"]}, "loss": {"op": "Mean", "inputs": ["y", 0]}}}"#;
    let sections = r#"{"data": {"feed": {"x": "x"}, "batch": 2},
        "train": {"loss": "loss", "optimizer": {"name": "momentum", "momentum": 0.5}, "rate": 0.125, "steps": 2, "workers": 2, "mode": "async"}}"#;
    let program = meshtf_graph::read(text.as_bytes()).unwrap();
    let part = FedPlaceholder { name: "x".to_owned(), dtype: DType::F32, example: vec![], there: None };
    let sections = file::read(sections).unwrap();
    let job = job::job(Graph::new(program.nodes).unwrap(), &sections, &[part], 4, false).unwrap();
    let mut cluster = Cluster::of(&[Task::new("worker", 0), Task::new("worker", 1)]);
    run(&mut cluster, &job.graph, &[], &["^w/assign"]);
    run(&mut cluster, &job.graph, &[], &[&format!("^{}", job.init)]);
    let gradients = [0.5f32, -2.0];
    for (queue, x) in job.queues.iter().zip(gradients) {
        let batches = Tensor::from_vec([2, 2], vec![x; 4]);
        run(&mut cluster, &job.graph, &[(&queue.feeds[0], batches)], &[&format!("^{}", queue.enqueue)]);
    }
    let (mut w, mut m) = (1f64, 0f64);
    for worker in [0, 1, 1, 0] {
        let nodes = &job.steps[worker];
        let loss = run(&mut cluster, &job.graph, &[], &[&nodes.loss, &format!("^{}", nodes.run)]);
        assert_near(&floats(&loss[0]), &[w * f64::from(gradients[worker])], 1e-6, "loss");
        m = 0.5 * m + f64::from(gradients[worker]);
        w -= 0.125 * m;
        let now = run(&mut cluster, &job.graph, &[], &["w", "w/Momentum"]);
        assert_near(&[floats(&now[0])[0], floats(&now[1])[0]], &[w, m], 1e-6, "w and its momentum");
    }
    assert_eq!(run(&mut cluster, &job.graph, &[], &[GLOBAL_STEP])[0].item::<i64>().unwrap(), 4);
}

/// An update takes the mean of the first workers that bring gradients, and drops later ones.
#[test]
fn an_update_does_not_wait_for_a_worker_that_is_late() {
    let text = r#"{"version": 1, "variables": {"w": {"shape": [], "initial": 1.0}},
        "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null]}},
                  "y": {"op": "Mul", "inputs": ["x", "w"]}, "loss": {"op": "Mean", "inputs": ["y", 0]},
                  "most": {"op": "Max", "inputs": ["x", 0]}}}"#;
    let sections = r#"{"data": {"feed": {"x": "x"}, "batch": 2},
        "train": {"loss": "loss", "optimizer": "sgd", "rate": 0.5, "steps": 2, "metrics": ["most"],
                  "workers": 3, "ps": 1, "backup": 1}}"#;
    let program = meshtf_graph::read(text.as_bytes()).unwrap();
    let sections = file::read(sections).unwrap();
    let parts = [part("x", DType::F32, &[])];
    let job = job::job(Graph::new(program.nodes).unwrap(), &sections, &parts, 4, false).unwrap();
    let tasks = [("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2)].map(|(job, i)| Task::new(job, i));
    let mut cluster = Cluster::of(&tasks);
    let begin = job.begin[0].clone();
    for node in ["w/assign", &job.init, &begin] {
        run(&mut cluster, &job.graph, &[], &[&format!("^{node}")]);
    }
    // The gradient of each worker in each of its steps.
    let gradients = [[1.0f32, 2.0], [3.0, 100.0], [50.0, 6.0]];
    for (queue, own) in job.queues.iter().zip(gradients) {
        let batches = Tensor::from_vec([2, 1], own.to_vec());
        run(&mut cluster, &job.graph, &[(&queue.feeds[0], batches)], &[&format!("^{}", queue.enqueue)]);
    }
    let update = [job.steps[0].loss.clone(), job.steps[0].metrics[0].clone(), format!("^{}", job.steps[0].run)];
    let update = update.each_ref().map(String::as_str);
    let mut together = |workers: &[usize]| -> [f64; 3] {
        let begun = cluster.start(&job.graph, &[], &update, 1).unwrap();
        let steps: Vec<u64> = workers
            .iter()
            .map(|&i| cluster.start(&job.graph, &[], &[&format!("^{}", job.beside[i])], 1).unwrap())
            .collect();
        let means = cluster.wait(begun).unwrap();
        for step in steps {
            cluster.wait(step).unwrap();
        }
        let w = run(&mut cluster, &job.graph, &[], &["w"]);
        [floats(&means[0])[0], floats(&means[1])[0], floats(&w[0])[0]]
    };
    // Worker 2 is missing: the mean of 1 and 3.
    assert_eq!(together(&[0, 1]), [2.0, 2.0, 0.0]);
    // It comes for an update that has been made, and its 50 is dropped; then it is with worker 0: the mean of 2 and 6.
    assert_eq!(together(&[2, 0, 2]), [0.0, 4.0, -2.0]);
    let drains = job.queues.iter().map(|queue| &queue.drain).chain(&job.drains);
    let left = drains.map(|drain| run(&mut cluster, &job.graph, &[], &[&drain.size])[0].to_i64().unwrap());
    // A batch of worker 1, and a token of each worker: that of worker 1 is for the update that was made without it and for the
    // next.
    assert_eq!(left.collect::<Vec<_>>(), [0, 1, 0, 1, 2, 1, 0, 0, 0]);
    // An evaluation takes no token.
    let fed = [("x", Tensor::vector(vec![2f32, 4.0]))];
    assert_eq!(floats(&run(&mut cluster, &job.graph, &fed, &[&job.evaluated[0]])[0]), [-6.0]);
}
