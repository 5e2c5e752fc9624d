//! Launches that a node is asked for more than once.

use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::plan::Signature;
use meshtf_graph::read;
use meshtf_tensor::device::Task;

use super::*;
use crate::node::{NewRun, Node, NodeConfig};
use crate::protocol::SessionOptions;
use crate::session::detached::leave_to;

#[test]
fn as_many_runs_start_at_a_time_as_leave_room_for_other_inquiries() {
    let starting = Mutex::default();
    let mut all: Vec<Start<'_>> =
        (0..MAX_STARTING as u64).map(|run| Start::of(&starting, SessionId(run)).unwrap()).collect();
    assert_eq!(Start::of(&starting, SessionId(99)).err().map(|why| why.code), Some(Code::ResourceExhausted));
    all.pop();
    // One that starts already is not begun a second time, and is there once.
    let twice = Start::alone(&starting, SessionId(0)).err().map(|why| why.code);
    assert_eq!((twice, lock(&starting).len()), (Some(Code::AlreadyExists), MAX_STARTING - 1));
    // One that somebody ends while it is prepared does not begin.
    let start = Start::alone(&starting, SessionId(99)).unwrap();
    assert_eq!(start.check(), Ok(()));
    lock(&starting).iter_mut().for_each(|one| one.1 = true);
    assert_eq!(start.check().err().map(|why| why.code), Some(Code::Cancelled));
}

#[test]
fn a_node_that_refused_a_run_is_asked_again_soon_and_then_less_often() {
    let pause = |refusals| entry::Succession { refusals, ..entry::Succession::default() }.pause().as_secs();
    assert_eq!([0, 1, 4, 5, 99].map(pause), [2, 4, 32, 60, 60]);
}

async fn node(home: &temp_dir::TempDir, task: &Task) -> Node {
    let config = NodeConfig {
        task: Some(task.clone()),
        backend: BackendChoice::Flex,
        listen: vec!["127.0.0.1:0".into()],
        home: Some(home.path().to_owned()),
        mdns: false,
        open: true,
        ..NodeConfig::default()
    };
    Node::start(config).await.unwrap()
}

fn sum() -> Graph {
    let text = r#"{ "version": 1, "nodes": { "y": { "op": "AddV2", "inputs": [{ "value": 1 }, { "value": 2 }] } } }"#;
    Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap()
}

fn new_run(graph: &Graph) -> NewRun<'_> {
    NewRun {
        title: "é".repeat(1000),
        graph,
        options: SessionOptions::default(),
        signature: Signature { fetches: vec!["y".into()], ..Signature::default() },
        feeds: Vec::new(),
        steps: 1 << 60,
        every: 0,
        has_heir: false,
        is_attended: false,
    }
}

/// A member of the mesh that names the run of another node replaces nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_heir_keeps_the_run_of_the_node_that_left_it() {
    let home = temp_dir::TempDir::new().unwrap();
    let tasks = [0, 1, 2].map(|index| Task::new("local", index));
    let mut nodes = Vec::new();
    for task in &tasks {
        nodes.push(node(&home, task).await);
    }
    for node in &nodes {
        assert!(node.wait_for(&tasks, Duration::from_secs(60)).await);
    }
    let peer = |task: usize| nodes[0].mesh.cluster().member(&tasks[task]).unwrap().peer.clone();
    let (graph, run, client) = (sum(), NewRun::name(), Peer::new("a client"));
    let leaves = async |node: usize, run: SessionId, task: usize| {
        let about = (run, client.clone(), tasks[task].clone(), 0);
        leave_to(&nodes[node].host.client, &peer(0), about, new_run(&graph)).await.map_err(|failure| failure.code)
    };
    assert_eq!(leaves(1, run, 1).await, Ok(()));
    assert_eq!(leaves(2, run, 2).await, Err(Code::AlreadyExists));
    assert_eq!(leaves(2, run, 1).await, Err(Code::InvalidArgument), "it is not the node of that task");
    assert_eq!(leaves(1, run, 1).await, Ok(()), "its node may send it again");
    // Its client cannot launch it here a second time, nor can anyone else.
    let again = nodes[2].launch(Some(&tasks[0]), run, new_run(&graph)).await.unwrap_err();
    assert_eq!(again.code, Code::AlreadyExists);
    assert!(again.message.contains("is under way on local/1"), "{again}");
    // Nor does it take the place of a run that is under way.
    let own = NewRun::name();
    nodes[0].launch(Some(&tasks[0]), own, new_run(&graph)).await.unwrap();
    assert_eq!(leaves(2, own, 2).await, Err(Code::AlreadyExists));
    nodes[0].stop_run(&tasks[0], own, true).await.unwrap();
    for node in nodes {
        node.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_there_is_not_begun_again() {
    let home = temp_dir::TempDir::new().unwrap();
    let task = Task::new("local", 0);
    let node = node(&home, &task).await;
    let graph = sum();
    let new = || new_run(&graph);
    let run = NewRun::name();
    let first = node.launch(Some(&task), run, new()).await.unwrap();
    // The answer was lost, or the asker has lost patience.
    let again = node.launch(Some(&task), run, new()).await.unwrap();
    assert_eq!((first.run, again.run, again.state.is_over()), (run, run, false));
    assert!(again.title.len() <= 256, "{}", again.title.len());
    assert_eq!(node.detached(&task).await.unwrap().len(), 1);
    // Who asks again whether it has ended hears of its state.
    while !node.stop_run(&task, run, false).await.unwrap().state.is_over() {
        tokio::task::yield_now().await;
    }
    assert_eq!(node.launch(Some(&task), run, new()).await.unwrap().state.name(), "stopped");
    let wrong = NewRun { signature: Signature { fetches: vec!["z".into()], ..Signature::default() }, ..new() };
    assert!(node.launch(Some(&task), NewRun::name(), wrong).await.unwrap_err().message.contains('z'));
    assert_eq!(node.detached(&task).await.unwrap().len(), 1, "one that does not start is not kept");
    node.close().await;
}
