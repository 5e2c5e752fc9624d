//! Runs with feeds for each step, on a cluster in this process.

use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::read;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Stage;

use super::*;
use crate::{Client, LocalCluster};

/// `y` is `x` times `w` on the other task, plus `x`; `sum` adds up all `x` in a variable; `part` is row `x` of three.
const GRAPH: &str = r#"{ "version": 1, "nodes": {
    "x": { "op": "Placeholder", "attrs": { "dtype": "int32", "shape": [] } },
    "w": { "op": "Placeholder", "attrs": { "dtype": "int32" } },
    "product": { "op": "Mul", "inputs": ["x", "w"], "device": "/job:local/task:1" },
    "y": { "op": "AddV2", "inputs": ["product", "x"], "device": "/job:local/task:0" },
    "v": { "op": "VarHandleOp", "attrs": { "dtype": "int32", "shape": [] }, "device": "/job:local/task:1" },
    "zero": { "op": "AssignVariableOp", "inputs": ["v", 0], "device": "/job:local/task:1" },
    "bump": { "op": "AssignAddVariableOp", "inputs": ["v", "x"], "device": "/job:local/task:1" },
    "sum": { "op": "ReadVariableOp", "inputs": ["v"], "control": ["bump"], "attrs": { "dtype": "int32" },
        "device": "/job:local/task:1" },
    "part": { "op": "GatherV2", "inputs": [[10, 20, 30], "x", 0], "device": "/job:local/task:1" } } }"#;

async fn session() -> (LocalCluster, Session) {
    let tasks = [Task::new("local", 0), Task::new("local", 1)];
    let cluster = LocalCluster::start(&tasks, BackendChoice::Flex).unwrap();
    let graph = Graph::new(read(GRAPH.as_bytes()).unwrap().nodes).unwrap();
    let session = cluster.session(graph, &tasks[0], SessionOptions::default()).await.unwrap();
    (cluster, session)
}

fn of(feeds: &[&str], fetches: &[&str]) -> Signature {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Signature { feeds: owned(feeds), fetches: owned(fetches), ..Signature::default() }
}

fn scalars(numbers: &[i32]) -> Vec<Tensor> {
    numbers.iter().map(|&number| Tensor::scalar(number)).collect()
}

#[tokio::test]
async fn each_step_sees_its_own_feeds() {
    let (_cluster, session) = session().await;
    // More steps than are open at once.
    for (count, every) in [(1, 0), (2, 1), (100, 1), (100, 7), (77, 0)] {
        session.run().target("zero").await.unwrap();
        let feeds = (1..=count).map(|step| scalars(&[step, 1000 - step])).collect();
        let mut seen = Vec::new();
        let on_event = |event| match event {
            StepEvent::Fetched { step, values } => seen.push((step, values)),
            other => panic!("{other:?}"),
        };
        let ran = session.run_fed_steps(of(&["x", "w"], &["y", "sum"]), feeds, every, false, on_event).await.unwrap();
        let want = |step: i32| scalars(&[step * (1000 - step) + step, step * (step + 1) / 2]);
        assert_eq!(ran.values, want(count), "{count} steps");
        let before = (1..count).filter(|step| every > 0 && (*step as u64).is_multiple_of(every));
        let before: Vec<_> = before.map(|step| (step as u64, want(step))).collect();
        assert_eq!(seen, before, "{count} steps, every {every}");
    }
    // A feed of each step and one of all steps.
    session.run().target("zero").await.unwrap();
    let ran = session.run().feed("w", 10).feed_steps("x", [1, 2, 3]).fetches(["y", "sum"]).await.unwrap();
    assert_eq!(ran.values, scalars(&[33, 6]));
    // The same plan runs with the same feeds for all of its steps.
    let feeds = [("x", Tensor::scalar(2i32)), ("w", Tensor::scalar(5i32))];
    session.run().target("zero").await.unwrap();
    let ran = session.run().feeds(&feeds).fetches(["y", "sum"]).steps(3).await.unwrap();
    assert_eq!(ran.values, scalars(&[12, 6]));
}

/// More steps than may wait for the client are run in parts, which cannot be told from one run.
#[tokio::test]
async fn each_of_many_steps_is_seen_once_and_in_order() {
    let text = r#"{"version": 1, "variables": {"n": {"shape": [], "dtype": "int64"}},
        "nodes": {"more": {"op": "AssignAddVariableOp", "inputs": ["n/variable", {"value": 1, "dtype": "int64"}]},
            "read": {"op": "ReadVariableOp", "inputs": ["n/variable"], "control": ["more"], "attrs": {"dtype": "int64"}},
            "left": {"op": "Sub", "inputs": ["read", {"value": 2900, "dtype": "int64"}]},
            "y": {"op": "FloorDiv", "inputs": [1, "left"]}}}"#;
    let graph = Graph::new(meshtf_graph::read(text.as_bytes()).unwrap().nodes).unwrap();
    let task = Task::new("local", 0);
    let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
    let session = cluster.session(graph, &task, SessionOptions::default()).await.unwrap();
    session.run().target("n/assign").await.unwrap();
    let mut seen = Vec::new();
    let each = |step: u64, values: Vec<Tensor>| seen.push((step, values[0].to_i64().unwrap()));
    let last = session.run().fetch("read").steps(2650).each(1, each).await.unwrap();
    assert_eq!(last["read"].to_i64().unwrap(), 2650);
    assert_eq!(seen, (1..2650).map(|step| (step, step as i64)).collect::<Vec<_>>());
    // The failing step is counted from the first.
    let failure = session.run().fetch("y").steps(2000).each(1, |_, _| ()).await.unwrap_err();
    assert!(failure.to_string().contains("step 250)"), "{failure}");
}

#[tokio::test]
async fn the_shapes_of_the_steps_may_differ() {
    let (_cluster, session) = session().await;
    let feeds = (1..=40usize).map(|n| vec![Tensor::scalar(2i32), Tensor::from_vec([n], vec![n as i32; n])]).collect();
    let mut seen = Vec::new();
    let on_event = |event| {
        if let StepEvent::Fetched { values, .. } = event {
            seen.extend(values);
        }
    };
    let ran = session.run_fed_steps(of(&["x", "w"], &["y"]), feeds, 1, false, on_event).await.unwrap();
    seen.extend(ran.values);
    let want: Vec<Tensor> = (1..=40usize).map(|n| Tensor::from_vec([n], vec![2 * n as i32 + 2; n])).collect();
    assert_eq!(seen, want);
}

#[tokio::test]
async fn a_step_that_fails_is_named_and_the_session_runs_on() {
    let (_cluster, session) = session().await;
    let signature = of(&["x"], &["part"]);
    // The row of step 38 does not exist.
    let feeds = |bad: i32| (1..=60).map(|step| scalars(&[if step == 38 { bad } else { step % 3 }])).collect();
    let failure = session.run_fed_steps(signature.clone(), feeds(3), 1, false, |_| {}).await.unwrap_err();
    assert_eq!((failure.code, failure.stage), (Code::InvalidArgument, Stage::InStep(38)), "{failure}");
    assert_eq!(failure.node.as_deref(), Some("part"), "{failure}");
    let ran = session.run_fed_steps(signature.clone(), feeds(2), 0, false, |_| {}).await.unwrap();
    assert_eq!(ran.values, scalars(&[10]));

    let refused = async |feeds: Vec<Vec<Tensor>>, why: &str| {
        let failure = session.run_fed_steps(signature.clone(), feeds, 0, false, |_| {}).await.unwrap_err();
        assert!(failure.code == Code::InvalidArgument && failure.message.contains(why), "{failure}");
    };
    refused(vec![], "one step at least").await;
    refused(vec![scalars(&[1]), scalars(&[])], "step 2 has 0 feeds").await;
    refused(vec![scalars(&[1]), vec![Tensor::scalar(1.5f32)]], "step 2: feed x is int32").await;
    refused(vec![scalars(&[1]); MAX_STEP_FEEDS + 1], "65537 feeds").await;
    let uneven = session.run().feed_steps("x", [1, 2]).feed_steps("w", [1, 2, 3]).fetch("y").await.unwrap_err();
    assert!(uneven.message.contains("x has 2 values, and the run 3 steps"), "{uneven}");
}

#[tokio::test]
async fn a_run_that_is_dropped_ends() {
    let (_cluster, session) = session().await;
    session.run().target("zero").await.unwrap();
    let feeds = vec![scalars(&[1]); MAX_STEP_FEEDS];
    let (sender, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let run = session.run_fed_steps(of(&["x"], &["sum"]), feeds, 16, false, |event| sender.send(event).unwrap());
    tokio::select! {
        ran = run => panic!("{ran:?}"),
        event = begun.recv() => assert!(event.is_some()),
    }
    // The session continues, and the steps that were not started do not run.
    let ran = session.run_fed_steps(of(&["x"], &["sum"]), vec![scalars(&[0]); 2], 0, false, |_| {}).await.unwrap();
    let sum = ran[0].item::<i32>().unwrap();
    assert!((16..MAX_STEP_FEEDS as i32).contains(&sum), "{sum}");
    let again = session.run_fed_steps(of(&["x"], &["sum"]), vec![scalars(&[0]); 2], 0, false, |_| {}).await.unwrap();
    assert_eq!(again[0].item::<i32>().unwrap(), sum, "a step ran after the end of its run");
}
