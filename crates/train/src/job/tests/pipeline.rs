//! Tests of the graph of a training in stages: where its nodes are, what is sent, and the order of the turns. Its results are
//! tested in `src/trainer/tests/pipeline.rs`.

use super::*;

/// Four layers as wide as each other, the third with a way around it; `more` is added to the nodes.
fn layers(more: &str) -> String {
    format!(
        r#"{{"version": 1,
        "variables": {{
            "w1": {{"shape": [4, 4], "initial": "glorot_uniform"}}, "w2": {{"shape": [4, 4], "initial": "glorot_uniform"}},
            "w3": {{"shape": [4, 4], "initial": "glorot_uniform"}}, "w4": {{"shape": [4, 4], "initial": "glorot_uniform"}}}},
        "nodes": {{
            "x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [null, 4]}}}},
            "y": {{"op": "Placeholder", "attrs": {{"dtype": "int32", "shape": [null]}}}},
            "scaled": {{"op": "Mul", "inputs": ["x", 0.5]}},
            "a": {{"op": "MatMul", "inputs": ["scaled", "w1"]}}, "b": {{"op": "MatMul", "inputs": ["a", "w2"]}},
            "c": {{"op": "MatMul", "inputs": ["b", "w3"]}}, "around": {{"op": "AddV2", "inputs": ["c", "b"]}},
            "d": {{"op": "MatMul", "inputs": ["around", "w4"]}},
            "each": {{"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["d", "y"]}},
            "right": {{"op": "InTopKV2", "inputs": ["d", "y", 1]}},
            "ones": {{"op": "Cast", "inputs": ["right"], "attrs": {{"DstT": "float32"}}}},
            "accuracy": {{"op": "Mean", "inputs": ["ones", 0]}},
            {more}
            "loss": {{"op": "Mean", "inputs": ["each", 0]}}}}}}"#
    )
}

fn in_stages(workers: usize, microbatches: usize, batch: usize) -> TrainingGraph {
    let train = format!(
        r#""loss": "loss", "metrics": ["accuracy"], "mode": "pipeline", "workers": {workers}, "microbatches": {microbatches}"#
    );
    put_together_of(&layers(""), batch, &train).unwrap()
}

/// The worker that a node is on.
fn task(job: &TrainingGraph, name: &str) -> Option<usize> {
    let node = job.graph.node(job.graph.find(name).unwrap_or_else(|| panic!("no {name}")));
    let device: meshtf_tensor::device::DeviceSpec = node.device.parse().unwrap();
    device.task.map(|task| task as usize)
}

#[test]
fn each_stage_has_its_nodes_variables_and_slots() {
    for (workers, layers_of) in [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (4, [0, 1, 2, 3])] {
        let job = in_stages(workers, 2, 6);
        for (layer, wanted) in ["1", "2", "3", "4"].iter().zip(layers_of) {
            for name in [format!("w{layer}"), format!("w{layer}/variable"), format!("w{layer}/Adam/variable")] {
                assert_eq!(task(&job, &name), Some(wanted), "{name} of {workers}");
            }
        }
        for (node, layer) in [("scaled", 0), ("a", 0), ("b", 1), ("c", 2), ("d", 3), ("loss", 3), ("accuracy", 3)] {
            for name in [node.to_owned(), format!("replica_1/{node}")] {
                assert_eq!(task(&job, &name), Some(layers_of[layer]), "{name} of {workers}");
            }
        }
        // The examples come to the first stage and the labels to the last one, and are divided there.
        for (name, layer) in [("x", 0), ("train/batch_0", 0), ("train/batch_1", 3), ("replica_1/y", 3)] {
            assert_eq!(task(&job, name), Some(layers_of[layer]), "{name} of {workers}");
        }
        assert!(job.graph.find("replica_1/w1").is_none() && job.graph.find("replica_2/a").is_none());
        let Pipeline { stages, microbatches } = job.pipeline.as_ref().unwrap();
        assert_eq!(microbatches[..], [3, 3]);
        let tasks: Vec<usize> = stages.iter().map(|stage| stage.task).collect();
        assert_eq!(tasks, (0..workers).collect::<Vec<_>>());
        assert_eq!(stages.iter().map(|stage| stage.parameters).sum::<u64>(), 64);
        assert!((stages.iter().map(|stage| stage.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!((job.queues.len(), job.queues[0].feeds.len(), job.held[0].len()), (1, 2, 2));
    }
}

/// Between the stages, once for each micro-batch: the values that cross a cut, and their gradients. By hand, for a cut after `b`:
/// `b` is sent once though two nodes take it, and two gradients come back.
#[test]
fn only_values_and_their_gradients_are_sent() {
    let job = in_stages(2, 3, 6);
    let graph = &job.graph;
    let nodes = &job.steps[0];
    let ends = [&nodes.run, &nodes.loss].map(|name| graph.find(name).unwrap());
    let mut sent = HashSet::new();
    let mut open: Vec<NodeId> = ends.to_vec();
    let mut seen = HashSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        let node = graph.node(id);
        for input in &node.inputs {
            let (from, to) = (&graph.node(input.node).device, &node.device);
            if !from.is_empty() && !to.is_empty() && from != to {
                sent.insert((graph.tensor_name(*input), to.clone()));
            }
        }
        open.extend(node.sources());
    }
    let of = |task: usize| -> Vec<String> {
        let to = format!("/job:worker/task:{task}");
        let mut own: Vec<String> =
            sent.iter().filter(|(_, device)| *device == to).map(|(name, _)| name.clone()).collect();
        own.sort_unstable();
        own
    };
    // The learning rate and the powers of Adam's betas are with the first variable.
    let forward: Vec<String> = of(1).into_iter().filter(|name| name.ends_with('b')).collect();
    assert_eq!(forward, ["b", "replica_1/b", "replica_2/b"]);
    assert!(
        of(1).iter().filter(|name| !forward.contains(name)).all(|name| {
            let value = graph.output(name).unwrap();
            graph.shapes().known(value).is_some_and(|shape| shape.rank() == 0)
        }),
        "{:?}",
        of(1)
    );
    let back = of(0);
    assert_eq!(back.len(), 2 * 3, "{back:?}");
    for m in 0..3 {
        let scope = if m == 0 { "gradients/".to_owned() } else { format!("gradients_{m}/") };
        let own = back.iter().filter(|name| name.starts_with(&scope)).count();
        assert_eq!(own, 2, "{back:?}");
    }
}

/// The nodes that a node depends on, itself included.
fn before(graph: &Graph, last: NodeId) -> HashSet<NodeId> {
    let (mut seen, mut open) = (HashSet::new(), vec![last]);
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            open.extend(graph.node(id).sources());
        }
    }
    seen
}

/// The order of each stage is that of the papers, written down by hand: the products of a turn depend on those of the one before,
/// forward and backward.
#[test]
fn turns_follow_each_other_as_one_forward_and_one_backward() {
    for (workers, microbatches, orders) in [
        (1, 3, &["F0 B0 F1 B1 F2 B2"][..]),
        (2, 4, &["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
        (4, 2, &["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
        (
            4,
            5,
            &[
                "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
                "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
                "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
                "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
            ],
        ),
    ] {
        let job = in_stages(workers, microbatches, 10);
        let graph = &job.graph;
        // Of a product, the gradients by both factors are added, also where a step needs one alone.
        let in_step = before(graph, graph.find(&job.steps[0].run).unwrap());
        let products = |stage: usize, turn: &str| -> Vec<NodeId> {
            let (kind, m) = turn.split_at(1);
            let (forward, backward) = match m {
                "0" => (String::new(), "gradients/".to_owned()),
                m => (format!("replica_{m}/"), format!("gradients_{m}/")),
            };
            let is_one = |name: &str| match kind {
                "F" => ["a", "b", "c", "d"].iter().any(|layer| name == format!("{forward}{layer}")),
                _ => name.starts_with(&backward),
            };
            let found = graph.nodes().filter(|(id, node)| {
                in_step.contains(id)
                    && node.op.name == "MatMul"
                    && is_one(&node.name)
                    && node.device.ends_with(&format!("task:{stage}"))
            });
            found.map(|(id, _)| id).collect()
        };
        for (stage, order) in orders.iter().enumerate() {
            let order: Vec<&str> = order.split(' ').collect();
            for pair in order.windows(2) {
                let [earlier, later] = [pair[0], pair[1]].map(|turn| products(stage, turn));
                assert!(!earlier.is_empty() && !later.is_empty(), "{pair:?} of stage {stage}");
                for to in later {
                    let known = before(graph, to);
                    for from in &earlier {
                        let names = [*from, to].map(|id| &graph.node(id).name);
                        assert!(known.contains(from), "{names:?}: {pair:?} of stage {stage}");
                    }
                }
            }
        }
    }
}

/// A node that the loss needs through variables alone stays with them, and its number is sent; the loss is a stage's last node.
#[test]
fn a_sum_of_squares_is_where_its_variable_is() {
    let more = r#""half": {"op": "L2Loss", "inputs": ["w1"]}, "other": {"op": "L2Loss", "inputs": ["w4"]},
        "squares": {"op": "AddV2", "inputs": ["half", "other"]},
        "mean": {"op": "Mean", "inputs": ["each", 0]}, "total": {"op": "AddV2", "inputs": ["mean", "squares"]},"#;
    let train = r#""loss": "total", "mode": "pipeline", "workers": 4, "microbatches": 2"#;
    let job = put_together_of(&layers(more), 4, train).unwrap();
    let tasks = ["half", "w1", "other", "w4", "replica_1/total"].map(|name| task(&job, name));
    assert_eq!(tasks, [0, 0, 3, 3, 3].map(Some));
}

/// A placeholder that is not fed, and states no sizes, hides none.
#[test]
fn the_sizes_of_defaults_count() {
    let train = r#""loss": "loss", "mode": "pipeline", "workers": 3, "microbatches": 2"#;
    let stages = |graph: &str| put_together_of(graph, 8, train).unwrap().pipeline.unwrap().stages;
    let shown = stages(&layers(""));
    let by_default =
        r#""given": {"op": "PlaceholderWithDefault", "inputs": ["scaled"], "attrs": {"shape": [null, null]}},"#;
    let hidden = stages(&layers(by_default).replace(r#"["scaled", "w1"]"#, r#"["given", "w1"]"#));
    assert_eq!(hidden, shown);
    assert!(shown.iter().all(|stage| stage.share > 0.1) && shown[1].receives == 4.0, "{shown:?}");
}

/// Two layers with one variable are in one stage, with everything between them; so two stages are all that there are.
#[test]
fn what_uses_a_variable_is_in_one_stage() {
    let tied = layers("").replace(r#"["b", "w3"]"#, r#"["b", "w1"]"#);
    let stages = |workers: usize| {
        let train =
            format!(r#""loss": "loss", "mode": "pipeline", "workers": {workers}, "variables": ["w1", "w2", "w4"]"#);
        put_together_of(&tied, 8, &train)
    };
    let job = stages(2).unwrap();
    let tasks = ["a", "b", "c", "w2", "d"].map(|name| task(&job, name));
    assert_eq!(tasks, [0, 0, 0, 0, 1].map(Some));
    let failure = stages(3).unwrap_err().message;
    assert!(failure.starts_with("\"workers\" is 3, and the model has 2 stages at most"), "{failure}");
}

#[test]
fn what_does_not_fit_the_mode_is_refused() {
    for (batch, train, why) in [
        (8, r#""workers": 5"#, "\"workers\" is 5, and the model has 4 stages at most: each trains a variable"),
        (
            3,
            r#""workers": 2, "microbatches": 4"#,
            "a batch of 3 examples has no 4 micro-batches: \"microbatches\" is 1 to 3",
        ),
        (4, r#""workers": 2, "variables": ["w5"]"#, "there is no variable w5"),
    ] {
        let train = format!(r#""loss": "loss", "mode": "pipeline", {train}"#);
        let failure = put_together_of(&layers(""), batch, &train).unwrap_err();
        assert!(failure.message.contains(why), "{failure}");
    }
    for (node, what) in [("\"inputs\": [\"a\", \"w2\"]", "node b"), ("\"shape\": [4, 4], \"initial\"", "variable w")] {
        let graph = layers("").replacen(node, &format!("\"device\": \"/job:worker/task:1\", {node}"), 1);
        let failure = put_together_of(&graph, 4, r#""loss": "loss", "mode": "pipeline", "workers": 2"#).unwrap_err();
        let is_told = failure.message.contains(what) && failure.message.contains("so its device names no job");
        assert!(is_told, "{failure}");
    }
}
