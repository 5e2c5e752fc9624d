//! Tests of the placement of a training's nodes, and of rejected input. Its results are tested in `src/exec/tests/train.rs`.

mod pipeline;

use super::*;
use crate::file;

const GRAPH: &str = r#"{"version": 1,
    "variables": {
        "large": {"shape": [4, 100], "initial": "glorot_uniform"},
        "small": {"shape": [100]},
        "w": {"shape": [100, 2], "initial": "glorot_uniform"},
        "fixed": {"shape": [2], "trainable": false, "device": "/job:other/task:3"}},
    "nodes": {
        "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 4]}},
        "y": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null]}},
        "a": {"op": "MatMul", "inputs": ["x", "large"]},
        "b": {"op": "Tanh", "inputs": ["sum"]}, "sum": {"op": "AddV2", "inputs": ["a", "small"]},
        "scaled": {"op": "Mul", "inputs": ["w", 2]},
        "logits": {"op": "MatMul", "inputs": ["b", "scaled"]}, "out": {"op": "AddV2", "inputs": ["logits", "fixed"]},
        "each": {"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["out", "y"]},
        "loss": {"op": "Mean", "inputs": ["each", 0]}}}"#;

fn put_together(batch: usize, train: &str) -> Result<TrainingGraph> {
    put_together_of(GRAPH, batch, train)
}

fn put_together_of(graph: &str, batch: usize, train: &str) -> Result<TrainingGraph> {
    with_parts(graph, batch, train, |graph, sections, parts| job(graph, sections, parts, 8, false))
}

fn with_parts(
    graph: &str,
    batch: usize,
    train: &str,
    build: impl FnOnce(Graph, &Sections, &[FedPlaceholder]) -> Result<TrainingGraph>,
) -> Result<TrainingGraph> {
    let text = format!(
        r#"{{"data": {{"feed": {{"x": "x.npy", "y": "y.npy"}}, "batch": {batch}}},
            "train": {{"optimizer": "adam", "rate": 0.1, "steps": 5, {train}}}}}"#
    );
    let sections = file::read(&text).unwrap();
    let graph = Graph::new(meshtf_graph::read(graph.as_bytes()).unwrap().nodes).unwrap();
    let parts = [
        FedPlaceholder { name: "x".to_owned(), dtype: DType::F32, example: vec![4], there: None },
        FedPlaceholder { name: "y".to_owned(), dtype: DType::I32, example: vec![], there: None },
    ];
    build(graph, &sections, &parts)
}

#[test]
fn replicas_are_on_workers_and_variables_are_spread_by_bytes() {
    let job = put_together(6, r#""loss": "loss", "workers": 2, "ps": 2"#).unwrap();
    let device = |name: &str| {
        let id = job.graph.find(name).unwrap_or_else(|| panic!("no {name}"));
        job.graph.node(id).device.clone()
    };
    for (name, wanted) in [
        // The large one alone, and then the other variables until they weigh as much.
        ("large/variable", "/job:ps/task:0"),
        ("small/variable", "/job:ps/task:1"),
        ("w/variable", "/job:ps/task:1"),
        ("w/Adam/variable", "/job:ps/task:1"),
        ("fixed/variable", "/job:other/task:3"),
        ("x", "/job:worker/task:0"),
        ("replica_1/x", "/job:worker/task:1"),
        ("replica_1/loss", "/job:worker/task:1"),
        ("train/queue_1", "/job:worker/task:1"),
        // Nodes that do not depend on the data exist once.
        ("scaled", ""),
    ] {
        assert_eq!(device(name), wanted, "{name}");
    }
    assert!(job.graph.find("replica_1/scaled").is_none());
    let node = |name: &str| job.graph.node(job.graph.find(name).unwrap());
    assert_eq!(job.graph.shapes().of(Output { node: job.graph.find("replica_1/x").unwrap(), port: 0 }), [3, 4].into());
    assert_eq!(node("replica_1/x").op.name, "Identity");
    let names: Vec<&str> = job.variables.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!(names[..4], ["large", "small", "w", "fixed"]);
    assert!(names.contains(&"small/Adam_1") && names.contains(&"global_step") && !names.contains(&"fixed/Adam"));
    assert_eq!(job.restores.len(), job.variables.len());
    assert_eq!(job.queues.len(), 2);
}

/// Where some workers are missing, the others have the replicas, under the names that these have on the first workers.
#[test]
fn replicas_may_be_on_some_of_the_workers() {
    for (train, mirrored) in [
        (r#""loss": "loss", "workers": 2"#, false),
        (r#""loss": "loss", "workers": 2, "mode": "mirrored""#, true),
        (r#""loss": "loss", "workers": 2, "mode": "local""#, true),
    ] {
        let graph = GRAPH.replace(r#", "device": "/job:other/task:3""#, "");
        let on = |tasks: &[usize]| {
            with_parts(&graph, 6, train, |graph, sections, parts| {
                job_on(tasks, graph, sections, parts, 8, false, BucketLimits::default())
            })
            .unwrap()
        };
        let (first, some) = (on(&[0, 1]), on(&[1, 4]));
        let device = |job: &TrainingGraph, name: &str| job.graph.node(job.graph.find(name).unwrap()).device.clone();
        for (name, task) in [("x", 1), ("replica_1/x", 4), ("train/queue_1", 4), ("large/variable", 1)] {
            assert_eq!(device(&some, name), format!("/job:worker/task:{task}"), "{name}");
        }
        assert_eq!(some.graph.find("replica_1/large/variable").is_some(), mirrored);
        // They differ in nothing else: not in the state either.
        let elsewhere = |device: &str| device.replace("task:1", "task:4").replace("task:0", "task:1");
        assert_eq!(first.graph.len(), some.graph.len());
        for ((_, first), (_, some)) in first.graph.nodes().zip(some.graph.nodes()) {
            assert_eq!((&first.name, elsewhere(&first.device)), (&some.name, some.device.clone()));
        }
        let state = |job: &TrainingGraph| job.variables.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!((state(&first), &first.restores), (state(&some), &some.restores));
    }
}

/// Between the tasks of a local training, only the outer update has edges: a step of a worker is on its task alone.
#[test]
fn local_steps_stay_on_their_worker() {
    let graph = GRAPH.replace(r#", "device": "/job:other/task:3""#, "");
    let train = r#""loss": "loss", "metrics": ["loss"], "workers": 3, "mode": "local", "local": {"steps": 7}"#;
    let job = put_together_of(&graph, 6, train).unwrap();
    let rounds = job.rounds.as_ref().unwrap();
    assert_eq!((rounds.steps, rounds.local.len(), job.steps.len(), rounds.counts.len()), (7, 3, 1, 3));
    let task = |id: NodeId| job.graph.node(id).device.clone();
    for (i, nodes) in rounds.local.iter().enumerate() {
        let (mut open, mut seen) = (vec![job.graph.find(&nodes.run).unwrap()], HashSet::new());
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                let own = task(id);
                assert!(own.is_empty() || own == format!("/job:worker/task:{i}"), "{own}");
                open.extend(job.graph.node(id).sources());
            }
        }
    }
    // In a round nothing else travels: to each worker the bytes (`Cast`) and scales (`Maximum`) of the two others, and to the
    // first the sums of the losses and metrics of the two others, and the ends of their parts.
    let round = &job.steps[0];
    let fetched = std::iter::once(&round.loss).chain(&round.metrics).map(|name| job.graph.output(name).unwrap().node);
    let mut open: Vec<NodeId> = fetched.chain(job.graph.find(&round.run)).collect();
    let (mut seen, mut between) = (HashSet::new(), Vec::new());
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            let sources: Vec<NodeId> = job.graph.node(id).sources().collect();
            let crossing = sources.iter().filter(|&&from| !task(from).is_empty() && task(from) != task(id));
            between.extend(crossing.map(|&from| job.graph.node(from).op.name));
            open.extend(sources);
        }
    }
    between.sort_unstable();
    let expected = [("Cast", 6), ("Maximum", 6), ("NoOp", 2), ("ReadVariableOp", 4)];
    assert_eq!(between, expected.map(|(op, count)| vec![op; count]).concat());
    let names: Vec<&str> = job.variables.iter().map(|variable| variable.name.as_str()).collect();
    for name in
        ["w", "w/OuterMomentum", "w/Adam", "w/Residual", "replica_1/w/Adam", "replica_2/w/Residual", "global_step"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for name in ["replica_1/w", "w/Anchor", "replica_1/w/OuterMomentum", "replica_1/global_step"] {
        assert!(!names.contains(&name), "{name}");
    }
}

#[test]
fn one_worker_is_where_its_devices_say() {
    let job = put_together(6, r#""loss": "loss""#).unwrap();
    assert!(job.graph.nodes().all(|(_, node)| node.device.is_empty() || node.device == "/job:other/task:3"));
    assert_eq!(job.queues.len(), 1);
}

/// A variable may be a metric, too, and so may the loss.
#[test]
fn no_two_means_share_an_accumulator() {
    let train = r#""loss": "loss", "metrics": ["scale", "loss"], "workers": 3, "ps": 1, "backup": 1"#;
    let scale = GRAPH.replace(r#""variables": {"#, r#""variables": {"scale": {"shape": []},"#);
    let graph = scale.replace(r#"["w", 2]"#, r#"["w", "scale"]"#);
    let job = put_together_of(&graph, 6, train).unwrap();
    let accumulators = job.graph.nodes().filter(|(_, node)| node.op.name == "ResourceConditionalAccumulator");
    let mut names: Vec<&str> = accumulators.map(|(_, node)| node.attrs.str("shared_name").unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    // Of four gradients, the loss and two metrics.
    assert_eq!(names.len(), 7, "{names:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    for (batch, train, why) in [
        (5, r#""loss": "loss", "workers": 2"#, "a batch of 5 examples cannot be divided equally among 2 workers"),
        (
            4,
            r#""loss": "loss", "workers": 2, "mode": "mirrored""#,
            "variable fixed is on /job:other/task:3; in mode mirrored",
        ),
        (
            4,
            r#""loss": "loss", "workers": 2, "mode": "local""#,
            "variable fixed is on /job:other/task:3; in mode local",
        ),
        (4, r#""loss": "los""#, "loss los: "),
        (4, r#""loss": "each""#, "the loss each has shape"),
        (4, r#""loss": "loss", "variables": ["smal"]"#, "there is no variable smal; did you mean small?"),
        (4, r#""loss": "loss", "metrics": ["accuracy"]"#, "metric accuracy: "),
        (4, r#""loss": "loss", "variables": ["fixed", "global"]"#, "there is no variable global"),
    ] {
        let failure = put_together(batch, train).unwrap_err();
        assert!(failure.message.contains(why), "{failure}");
    }
}
