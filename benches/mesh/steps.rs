//! meshtf's own figures.

use std::time::{Duration, Instant};

use meshtf::{BackendChoice, Client, LocalCluster, Node, Session, SessionOptions, Task};
use meshtf_graph::{Graph, GraphBuilder};
use meshtf_tensor::{DType, PartialShape, Tensor};

use crate::baseline::{self, Bare};
use crate::graphs::split;
use crate::measure::{cpu_seconds, micros, resident_mb, spread, time_each};
use crate::peer::{Peer, cluster, cluster_over, home};
use crate::report::Report;

const STEPS: usize = 3000;
const TENSOR_BYTES: usize = 64 << 20;
const TRANSFERS: usize = 31;
const TINY_OPS: usize = 10_000;
const LARGE_NODES: usize = 100_000;

/// This process as `local/0`, another as `local/1`, and a session on this one.
async fn two_tasks(name: &str, graph: Graph) -> (Vec<Peer>, Node, Session) {
    let (peers, node) = cluster(name, Task::new("local", 0), &[Task::new("local", 1)]).await;
    let session = node.session(graph, None, SessionOptions::default()).await.expect("a session");
    (peers, node, session)
}

/// The time until a node serves, and its memory when idle.
pub fn start(report: &mut Report) {
    let home = home("start");
    let mut times: Vec<Duration> = (0..5).map(|_| Peer::start("local/0", &home).served_after).collect();
    times.sort_unstable();
    report.row(
        "node start to serving",
        format!("{:.0} ms", times[2].as_secs_f64() * 1e3),
        String::new(),
        None,
        "500 ms",
    );
    let peer = Peer::start("local/0", &home);
    std::thread::sleep(Duration::from_secs(3));
    report.row(
        "resident memory of an idle node",
        format!("{:.1} MB", resident_mb(peer.id())),
        String::new(),
        None,
        "60 MB",
    );
}

/// 238, split over two tasks: one step through an open session.
pub async fn split_step(report: &mut Report) {
    let (peers, node, session) = two_tasks("step", split()).await;

    let mut times = Vec::new();
    for _ in 0..STEPS {
        let start = Instant::now();
        let fetched = session.run().fetch("y").await.expect("a step");
        times.push(start.elapsed());
        assert_eq!(fetched[0].item::<i32>().expect("an int32"), 238);
    }
    let step = spread(times.split_off(STEPS / 10));
    let echo = baseline::tcp_round_trip(STEPS);
    let ratio = step.p50.as_secs_f64() / echo.p50.as_secs_f64();
    let show = |spread: &crate::measure::Spread| format!("{} (p99 {})", micros(spread.p50), micros(spread.p99));
    report.row(
        "step of the split 238, beside a 64-byte round trip on raw TCP",
        show(&step),
        show(&echo),
        Some(ratio),
        "at most 8",
    );

    let count = 20_000;
    let start = Instant::now();
    session.run().fetch("y").steps(count).await.expect("steps");
    let each = start.elapsed() / count as u32;
    report.row("the same, workers running ahead", micros(each), micros(echo.p50), None, "");
    drop((session, peers));
    node.close().await;
}

/// Tensors from task 1 to task 0, through shared memory compared with a bare Unix socket, and over TCP compared with TLS on a
/// plain socket.
pub async fn transfer(report: &mut Report) {
    for (size, bytes, aim) in [("64 MB", TENSOR_BYTES, "at least 5 GB/s"), ("4 MB", 4 << 20, "")] {
        let what = format!("{size} tensor from task to task of one user, beside a bare Unix socket");
        moved(report, &what, bytes, true, baseline::BareUnix::connect(bytes), aim).await;
    }
    let what = "64 MB tensor from task to task (--tcp-only), beside TLS (AES-GCM) on a bare TcpStream";
    moved(report, what, TENSOR_BYTES, false, baseline::BareTls::connect(TENSOR_BYTES), "at least 0.85 of it").await;
}

/// A constant from task 1 to task 0, and the same number of bytes through `bare`.
async fn moved(report: &mut Report, what: &str, bytes: usize, local: bool, mut bare: impl Bare, aim: &str) {
    let mut graph = GraphBuilder::new();
    let big = Tensor::from_vec([bytes / 4], vec![1.5f32; bytes / 4]);
    let big = graph.op("Const").name("big").attr("value", big).device("/job:local/task:1").build().expect("a constant");
    graph.op("Size").name("size").input(big).device("/job:local/task:0").build().expect("a node");
    let (own, others) = (Task::new("local", 0), [Task::new("local", 1)]);
    let (peers, node) = cluster_over(&format!("transfer-{local}-{bytes}"), own, &others, local).await;
    let graph = graph.finish().expect("a graph");
    let session = node.session(graph, None, SessionOptions::default()).await.expect("a session");

    // In turns, so that other load on the machine affects both.
    session.run().fetch("size").await.expect("a step");
    bare.move_once();
    let (here, there, sink) = (std::process::id(), peers[0].id(), bare.peer());
    let (mut times, mut bare_times) = (Vec::new(), Vec::new());
    let (mut used, mut bare_used) = (0.0, 0.0);
    let transfers = TRANSFERS * TENSOR_BYTES / bytes;
    for _ in 0..TRANSFERS {
        let cpu = || cpu_seconds(here) + cpu_seconds(there);
        let before = cpu();
        for _ in 0..transfers / TRANSFERS {
            let start = Instant::now();
            session.run().fetch("size").await.expect("a step");
            times.push(start.elapsed());
        }
        used += cpu() - before;

        let cpu = || cpu_seconds(here) + cpu_seconds(sink);
        let before = cpu();
        for _ in 0..transfers / TRANSFERS {
            let start = Instant::now();
            bare.move_once();
            bare_times.push(start.elapsed());
        }
        bare_used += cpu() - before;
    }
    let rate = |times| bytes as f64 / spread(times).p50.as_secs_f64();
    let (rate, bare_rate) = (rate(times), rate(bare_times));
    let all = (bytes * transfers) as f64 / 1e9;
    let show = |rate: f64, used: f64| format!("{:.2} GB/s ({:.2} CPU-s/GB)", rate / 1e9, used / all);
    report.row(what, show(rate, used), show(bare_rate, bare_used), Some(rate / bare_rate), aim);
    drop((session, peers));
    node.close().await;
}

/// A chain of adds that alternates between two tasks: from the graph to the end of its first step.
pub async fn large_graph(report: &mut Report) {
    let (peer, node, session) = two_tasks("large", GraphBuilder::new().finish().expect("a graph")).await;
    drop(session);
    let mut graph = GraphBuilder::new();
    let one = graph.constant("one", 1).expect("a constant");
    let mut at = one;
    for i in 0..LARGE_NODES {
        let device = format!("/job:local/task:{}", i / 1000 % 2);
        let add = graph.op("AddV2").name(&format!("n{i}")).input(at).input(one).device(&device);
        at = add.build().expect("a node");
    }
    let graph = graph.finish().expect("a graph");
    let last = format!("n{}", LARGE_NODES - 1);
    let start = Instant::now();
    let session = node.session(graph, None, SessionOptions::default()).await.expect("a session");
    let fetched = session.run().fetch(&last).await.expect("a step");
    let took = start.elapsed();
    assert_eq!(fetched[0].item::<i32>().expect("an int32"), LARGE_NODES as i32 + 1);
    let start = Instant::now();
    session.run().fetch(&last).await.expect("a step");
    let step = start.elapsed();
    report.row(
        "a graph of 100,000 nodes over two tasks: opened, planned, registered",
        format!("{:.2} s, and {:.1} ms a step", (took - step).as_secs_f64(), step.as_secs_f64() * 1e3),
        String::new(),
        None,
        "2 s",
    );
    drop((session, peer));
    node.close().await;
}

/// A chain of tiny adds in one process, compared with calling burn directly.
pub async fn tiny_ops(report: &mut Report) {
    use burn_backend::TensorData;
    use burn_backend::ops::FloatTensorOps;
    use burn_flex::{Flex, FlexDevice};

    let mut graph = GraphBuilder::new();
    let mut at = graph.placeholder("x", DType::F32, PartialShape::UNKNOWN).expect("a placeholder");
    let one = graph.constant("one", 1f32).expect("a constant");
    for i in 0..TINY_OPS {
        at = graph.op("AddV2").name(&format!("add_{i}")).input(at).input(one).build().expect("a node");
    }
    let last = format!("add_{}", TINY_OPS - 1);
    let task = Task::new("local", 0);
    let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).expect("a cluster");
    let session =
        cluster.session(graph.finish().expect("a graph"), &task, SessionOptions::default()).await.expect("a session");
    let mut times = Vec::new();
    for _ in 0..60 {
        let start = Instant::now();
        let fetched = session.run().feed("x", Tensor::scalar(1f32)).fetch(&last).await.expect("a step");
        times.push(start.elapsed());
        assert_eq!(fetched[0].item::<f32>().expect("a float32"), 1.0 + TINY_OPS as f32);
    }
    let ours = spread(times.split_off(10)).p50.as_secs_f64() / TINY_OPS as f64;

    let one = || Flex::float_from_data(TensorData::new(vec![1f32], [1]), &FlexDevice);
    let direct = time_each(50, || {
        let other = one();
        let mut at = one();
        for _ in 0..TINY_OPS {
            at = Flex::float_add(at, other.clone());
        }
        std::hint::black_box(at);
    });
    let direct = direct.p50.as_secs_f64() / TINY_OPS as f64;
    let show = |seconds: f64| format!("{:.2} µs an op", seconds * 1e6);
    report.row(
        "10,000 tiny adds in a session, beside calling burn (flex) directly",
        show(ours),
        show(direct),
        Some(ours / direct),
        "",
    );
}
