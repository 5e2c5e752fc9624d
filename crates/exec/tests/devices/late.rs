//! Updates of a worker that is late: it began its step before steps of another worker, and makes its update after theirs. And
//! workers that wait for one that is late.

use meshtf_graph::Graph;
use meshtf_tensor::device::Task;
use meshtf_tensor::{DType, Tensor};
use meshtf_train::file;
use meshtf_train::job::{self, FedPlaceholder, TrainingGraph};

use super::Cluster;
use super::train::{assert_near, floats, run};

/// The gradient of `w` is the mean of the batch, whatever `w` is: densely, and by the one row of a table.
const DENSE: &str = r#"{"version": 1, "variables": {"w": {"shape": [1, 1], "initial": 1.0}},
    "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null]}},
              "y": {"op": "Mul", "inputs": ["x", "w"]}, "loss": {"op": "Mean", "inputs": ["y", [0, 1]]}}}"#;
const SPARSE: &str = r#"{"version": 1, "variables": {"w": {"shape": [1, 1], "initial": 1.0}},
    "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null]}},
              "row": {"op": "GatherV2", "inputs": ["w", [0], 0]},
              "y": {"op": "Mul", "inputs": ["x", "row"]}, "loss": {"op": "Mean", "inputs": ["y", [0, 1]]}}}"#;

/// The slots and Adam's powers after three steps of worker 1 and one of worker 0, which began before them if `is_late`.
fn trained(model: &str, optimizer: &str, is_late: bool) -> Vec<(String, f64)> {
    let sections = format!(
        r#"{{"data": {{"feed": {{"x": "x"}}, "batch": 2}},
            "train": {{"loss": "loss", "optimizer": {optimizer}, "rate": 0.125, "steps": 4, "workers": 2, "ps": 1, "mode": "async"}}}}"#
    );
    let program = meshtf_graph::read(model.as_bytes()).unwrap();
    let part = FedPlaceholder { name: "x".to_owned(), dtype: DType::F32, example: vec![], there: None };
    let sections = file::read(&sections).unwrap();
    let job = job::job(Graph::new(program.nodes).unwrap(), &sections, &[part], 4, false).unwrap();
    let mut cluster = Cluster::of(&[("ps", 0), ("worker", 0), ("worker", 1)].map(|(job, i)| Task::new(job, i)));
    run(&mut cluster, &job.graph, &[], &["^w/assign"]);
    run(&mut cluster, &job.graph, &[], &[&format!("^{}", job.init)]);
    let step = |job: &TrainingGraph, worker: usize| format!("^{}", job.steps[worker].run);
    let fill = |cluster: &mut Cluster, worker: usize, gradient: f32| {
        let queue = &job.queues[worker];
        let batches = Tensor::from_vec([3, 2], vec![gradient; 6]);
        run(cluster, &job.graph, &[(&queue.feeds[0], batches)], &[&format!("^{}", queue.enqueue)]);
    };
    // Without a batch, worker 0 waits, after the variables have been read for its step.
    let late = is_late.then(|| cluster.start(&job.graph, &[], &[&step(&job, 0)], 1).unwrap());
    fill(&mut cluster, 1, 0.5);
    for _ in 0..3 {
        run(&mut cluster, &job.graph, &[], &[&step(&job, 1)]);
    }
    fill(&mut cluster, 0, -2.0);
    match late {
        Some(number) => drop(cluster.wait(number).unwrap()),
        None => drop(run(&mut cluster, &job.graph, &[], &[&step(&job, 0)])),
    }
    let kept = job.variables.iter().filter(|variable| variable.dtype == DType::F32 && variable.name != "w");
    let kept = kept.map(|variable| {
        let value = run(&mut cluster, &job.graph, &[], &[&job.graph.tensor_name(variable.value)]);
        (variable.name.clone(), floats(&value[0])[0])
    });
    kept.collect()
}

#[test]
fn no_update_is_lost_to_a_worker_that_is_late() {
    for optimizer in [
        r#""momentum""#,
        r#""adagrad""#,
        r#""adadelta""#,
        r#""rmsprop""#,
        r#"{"name": "rmsprop", "centered": true}"#,
        r#""adam""#,
        r#""adamw""#,
        r#""ftrl""#,
        r#""lion""#,
    ] {
        for model in [DENSE, SPARSE] {
            let (want, got) = (trained(model, optimizer, false), trained(model, optimizer, true));
            assert!(!want.is_empty(), "{optimizer}");
            for ((name, want), (_, got)) in want.iter().zip(&got) {
                // This one alone depends on the weight, which differs if a rate was taken earlier.
                if !name.ends_with("Ftrl_1") {
                    assert_near(&[*got], &[*want], 1e-6, &format!("{name} of {optimizer}"));
                }
            }
        }
    }
    // Hand calculation: 0.9 to the fifth power, the first being there before the first step.
    let adam = trained(DENSE, r#""adam""#, true);
    let power = adam.iter().find(|(name, _)| name == "beta1_power").unwrap().1;
    assert_near(&[power], &[0.9f64.powi(5)], 1e-6, "beta1_power");
}

/// Each step of a worker brings both variables, which are on two tasks, by an eighth nearer to the mean of its batch.
const NEARER: &str = r#"{"version": 1, "variables": {"v": {"shape": [1], "initial": 1.0}, "w": {"shape": [1], "initial": 1.0}},
    "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null]}},
              "far_v": {"op": "SquaredDifference", "inputs": ["v", "x"]}, "far_w": {"op": "SquaredDifference", "inputs": ["w", "x"]},
              "both": {"op": "Add", "inputs": ["far_v", "far_w"]}, "loss": {"op": "Mean", "inputs": ["both", [0]]}}}"#;

/// A training of two workers of bounded staleness whose steps can begin; worker 0 has batches of 0, worker 1 of 1.
fn bounded(staleness: usize) -> (Cluster, TrainingGraph) {
    let sections = format!(
        r#"{{"data": {{"feed": {{"x": "x"}}, "batch": 2}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.0625, "steps": 20, "workers": 2, "ps": 2, "mode": "async",
                "staleness": {staleness}}}}}"#
    );
    let program = meshtf_graph::read(NEARER.as_bytes()).unwrap();
    let part = FedPlaceholder { name: "x".to_owned(), dtype: DType::F32, example: vec![], there: None };
    let sections = file::read(&sections).unwrap();
    let job = job::job(Graph::new(program.nodes).unwrap(), &sections, &[part], 20, false).unwrap();
    let tasks = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)];
    let mut cluster = Cluster::of(&tasks.map(|(job, i)| Task::new(job, i)));
    run(&mut cluster, &job.graph, &[], &["^v/assign", "^w/assign"]);
    run(&mut cluster, &job.graph, &[], &[&format!("^{}", job.init)]);
    level(&mut cluster, &job);
    for (queue, x) in job.queues.iter().zip([0.0f32, 1.0]) {
        let batches = Tensor::from_vec([10, 2], vec![x; 20]);
        run(&mut cluster, &job.graph, &[(&queue.feeds[0], batches)], &[&format!("^{}", queue.enqueue)]);
    }
    (cluster, job)
}

/// Gives each worker the tokens of the beginning.
fn level(cluster: &mut Cluster, job: &TrainingGraph) {
    let runs: Vec<String> = job.levels.iter().map(|level| format!("^{}", level.run)).collect();
    run(cluster, &job.graph, &[], &runs.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Waits until this many updates are counted.
fn reach(cluster: &mut Cluster, job: &TrainingGraph, updates: i64) {
    let count = job.variables.iter().find(|variable| variable.name == "global_step").unwrap();
    let count = job.graph.tensor_name(count.value);
    while run(cluster, &job.graph, &[], &[&count])[0].to_i64().unwrap() < updates {
        std::thread::yield_now();
    }
}

/// The value of both variables.
fn both(cluster: &mut Cluster, job: &TrainingGraph) -> f64 {
    let values = ["v", "w"].map(|name| {
        let variable = job.variables.iter().find(|variable| variable.name == name).unwrap();
        floats(&run(cluster, &job.graph, &[], &[&job.graph.tensor_name(variable.value)])[0])[0]
    });
    assert_eq!(values[0], values[1]);
    values[0]
}

/// The value after steps of the workers, one after the other, by hand.
fn by_hand(workers: &[usize]) -> f64 {
    workers.iter().fold(1.0, |value, &worker| value - (value - worker as f64) / 8.0)
}

#[test]
fn a_worker_is_ahead_by_no_more_steps_than_it_may() {
    for staleness in [1, 3] {
        let (mut cluster, job) = bounded(staleness);
        let run_of = |worker: usize| format!("^{}", job.steps[worker].run);
        // The first worker makes one update more than it may be ahead, and waits before it reads the variables again.
        let first = cluster.start(&job.graph, &[], &[&run_of(0)], 10).unwrap();
        let mut all = vec![0; staleness + 1];
        reach(&mut cluster, &job, all.len() as i64);
        for _ in 0..3 {
            run(&mut cluster, &job.graph, &[], &[&run_of(1)]);
            all.extend([1, 0]);
            reach(&mut cluster, &job, all.len() as i64);
        }
        assert_near(&[both(&mut cluster, &job)], &[by_hand(&all)], 1e-6, &format!("{staleness} steps ahead"));
        // The second worker is lost.
        for node in &job.absent[1] {
            cluster.start(&job.graph, &[], &[&format!("^{node}")], 10).unwrap();
        }
        cluster.wait(first + 9).unwrap();
        all.extend(vec![0; 13 - all.len()]);
        assert_near(&[both(&mut cluster, &job)], &[by_hand(&all)], 1e-6, "alone");
    }
}

#[test]
fn the_steps_ahead_are_counted_anew() {
    let (mut cluster, job) = bounded(2);
    for _ in 0..2 {
        run(&mut cluster, &job.graph, &[], &[&format!("^{}", job.steps[0].run)]);
        level(&mut cluster, &job);
    }
    for (step, worker) in job.steps.iter().zip([0, 1]) {
        let first = cluster.start(&job.graph, &[], &[&format!("^{}", step.run)], 2).unwrap();
        cluster.wait(first + 1).unwrap_or_else(|failure| panic!("worker {worker}: {failure}"));
    }
}
