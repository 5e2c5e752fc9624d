//! Launches that a node is asked for more than once.

use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::plan::Signature;
use meshtf_graph::read;
use meshtf_tensor::device::Task;

use super::*;
use crate::node::{NewRun, Node, NodeConfig};
use crate::protocol::SessionOptions;

#[test]
fn as_many_runs_start_at_a_time_as_leave_room_for_other_inquiries() {
    let starting = Mutex::new(0);
    let mut all: Vec<Start<'_>> = (0..MAX_STARTING).map(|_| Start::of(&starting).unwrap()).collect();
    assert_eq!(Start::of(&starting).err().map(|why| why.code), Some(Code::ResourceExhausted));
    all.pop();
    assert!(Start::of(&starting).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_there_is_not_begun_again() {
    let home = temp_dir::TempDir::new().unwrap();
    let task = Task::new("local", 0);
    let config = NodeConfig {
        task: Some(task.clone()),
        backend: BackendChoice::Flex,
        listen: vec!["127.0.0.1:0".into()],
        home: Some(home.path().to_owned()),
        mdns: false,
        open: true,
        ..NodeConfig::default()
    };
    let node = Node::start(config).await.unwrap();
    let text = r#"{ "version": 1, "nodes": { "y": { "op": "AddV2", "inputs": [{ "value": 1 }, { "value": 2 }] } } }"#;
    let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
    let new = || NewRun {
        title: "é".repeat(1000),
        graph: &graph,
        options: SessionOptions::default(),
        signature: Signature { fetches: vec!["y".into()], ..Signature::default() },
        feeds: Vec::new(),
        steps: 1 << 60,
        every: 0,
        has_heir: false,
    };
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
