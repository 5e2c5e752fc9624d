//! A graph built in Rust and run on two tasks. Prints 238.
//!
//! `cargo run --release --example 238` hosts both tasks in this process. `cargo run --release --example 238 -- --mesh` joins
//! the mesh as task `local/0`, and needs a second one: `meshtf node --name local/1`.

use std::error::Error;
use std::time::Duration;

use meshtf::graph::{Graph, GraphBuilder};
use meshtf::{BackendChoice, Client, LocalCluster, Node, NodeConfig, SessionOptions, Task};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tasks = [Task::new("local", 0), Task::new("local", 1)];
    let fetched = if std::env::args().any(|argument| argument == "--mesh") {
        let node = Node::start(NodeConfig { task: Some(tasks[0].clone()), ..NodeConfig::default() }).await?;
        if !node.wait_for(&tasks, Duration::from_secs(10)).await {
            return Err("local/1 was not found: start `meshtf node --name local/1`".into());
        }
        let session = node.session(program()?, None, SessionOptions::default()).await?;
        let fetched = session.run().fetch("y").await?;
        session.close().await?;
        node.close().await;
        fetched
    } else {
        let cluster = LocalCluster::start(&tasks, BackendChoice::Auto)?;
        let session = cluster.session(program()?, &tasks[0], SessionOptions::default()).await?;
        session.run().fetch("y").await?
    };
    println!("{}", fetched[0].item::<i32>()?);
    Ok(())
}

/// `x = 2`, `y1 = x + 300` on task 0, `y2 = x - 66` on task 1, `y = y1 + y2` on task 0.
fn program() -> meshtf::Result<Graph> {
    let mut graph = GraphBuilder::new();
    let x = graph.constant("x", 2)?;
    let y2 = graph.with_device("/job:local/task:1", |graph| graph.op("Sub").name("y2").input(x).input(66).build())?;
    graph.with_device("/job:local/task:0", |graph| {
        let y1 = graph.op("Add").name("y1").input(x).input(300).build()?;
        graph.op("Add").name("y").input(y1).input(y2).build()
    })?;
    Ok(graph.finish()?)
}
