//! The mean of a hundred numbers on two tasks: each computes the mean of one half, and the master the mean of the two.
//!
//! `cargo run --release --example mean` hosts both tasks in this process. Prints 49.5.

use std::error::Error;

use meshtf::graph::{Graph, GraphBuilder};
use meshtf::tensor::{DType, PartialShape, Tensor};
use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tasks = [Task::new("local", 0), Task::new("local", 1)];
    let cluster = LocalCluster::start(&tasks, BackendChoice::Auto)?;
    let session = cluster.session(program()?, &tasks[0], SessionOptions::default()).await?;

    let numbers: Vec<f32> = (0u8..100).map(f32::from).collect();
    let fetched = session.run().feed("x", Tensor::vector(numbers)).fetch("overall").await?;
    println!("{}", fetched[0].item::<f32>()?);
    Ok(())
}

fn program() -> meshtf::Result<Graph> {
    let mut graph = GraphBuilder::new();
    let x = graph.placeholder("x", DType::F32, PartialShape(Some(vec![Some(100)])))?;
    let mut batch_mean = |device: &str, begin: i32, size: i32| {
        graph.with_device(device, |graph| {
            let batch = graph.op("Slice").input(x).input(vec![begin]).input(vec![size]).build()?;
            graph.op("Mean").input(batch).input(0).build()
        })
    };
    let first = batch_mean("/job:local/task:1", 0, 50)?;
    let second = batch_mean("/job:local/task:0", 50, -1)?;
    graph.with_device("/job:local/task:0", |graph| {
        let sum = graph.op("Add").input(first).input(second).build()?;
        graph.op("RealDiv").name("overall").input(sum).input(2f32).build()
    })?;
    Ok(graph.finish()?)
}
