//! Mirrored training of an MLP by two workers with 1 Gbit/s between them, compared with the capacity of that link.
//!
//! Each worker is in a separate network namespace (Linux, as root, with iproute2's `ip` and `tc`); without these the row is
//! omitted and the reason printed. The worker of the first namespace is a copy of this program, which measures. The capacity of
//! the link is measured with a bare TCP socket, by turns with the training: on a link that drops the excess, it is less than
//! the link's rate.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use meshtf::{BackendChoice, Client, Node, NodeConfig, Session, SessionOptions, Task};
use meshtf_graph::{GraphBuilder, Input};
use meshtf_tensor::{DType, Tensor};
use meshtf_train::file;
use meshtf_train::job::{FedPlaceholder, TrainingGraph, job};
use meshtf_train::{Initializer, VariableSpec, add_variable};

use crate::exchange::exchange;
use crate::peer::{Peer, home};
use crate::report::Report;

const ROLE: &str = "--serve-network";
/// The other end of the bare socket.
const BARE_ROLE: &str = "--serve-bare-network";
/// The file in the home folder with its address.
const BARE_FILE: &str = "bare";
/// The link's rate each way, as `tc` takes it.
const RATE: &str = "1gbit";
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const LAYERS: [usize; 4] = [784, 1024, 1024, 10];
/// Examples of a step, for each worker.
const BATCH: usize = 128;
const STEPS: usize = 8;
const ROUNDS: usize = 3;

/// Two namespaces with a cable between them, until they are dropped.
struct Network {
    names: [String; 2],
}

fn called(program: &str, arguments: &[&str]) -> Result<(), String> {
    let shown = |why: String| format!("{program} {}: {why}", arguments.join(" "));
    let output = Command::new(program).args(arguments).output().map_err(|error| shown(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(shown(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

impl Network {
    fn new() -> Result<Network, String> {
        let network = Network { names: [0, 1].map(|end| format!("meshtf-bench-{}-{end}", std::process::id())) };
        let [a, b] = &network.names;
        for name in &network.names {
            called("ip", &["netns", "add", name])?;
            called("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        called("ip", &["link", "add", "mtf0", "netns", a, "type", "veth", "peer", "name", "mtf0", "netns", b])?;
        for (name, address) in network.names.iter().zip(ADDRESSES) {
            called("ip", &["-n", name, "addr", "add", &format!("{address}/24"), "dev", "mtf0"])?;
            called("ip", &["-n", name, "link", "set", "mtf0", "up"])?;
            let limit = ["rate", RATE, "burst", "256kb", "latency", "20ms"];
            called("tc", &[&["-n", name, "qdisc", "add", "dev", "mtf0", "root", "tbf"][..], &limit].concat())?;
        }
        Ok(network)
    }

    /// A program that runs in one of the two.
    fn command(&self, end: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[end]]).arg(program);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _gone = called("ip", &["netns", "del", name]);
        }
    }
}

pub fn speed(report: &mut Report) {
    let network = match Network::new() {
        Ok(network) => network,
        Err(why) => {
            return eprintln!("not measured: training over {RATE}, which takes network namespaces: {why}");
        }
    };
    let home = home("network");
    let meshtf = PathBuf::from(env!("CARGO_BIN_EXE_meshtf"));
    let _worker = Peer::run(network.command(1, &meshtf), "worker/1", &format!("{}:0", ADDRESSES[1]), &home, &[]);
    let program = std::env::current_exe().expect("this program has a path");
    let bare = network.command(1, &program).arg(BARE_ROLE).arg(&home).spawn();
    let _bare = Other(bare.expect("a copy of this program starts"));
    let output = network.command(0, &program).arg(ROLE).arg(&home).stderr(Stdio::inherit()).output();
    let output = output.expect("a copy of this program starts");
    assert!(output.status.success(), "the copy of this program that measures failed");
    let figures = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = figures.split_whitespace().map(|figure| figure.parse().expect("a figure")).collect();
    let [step, bytes, link, alone] = figures[..] else { panic!("four figures, not {figures:?}") };
    report.row(
        "mirrored, 2 workers, MLP 784-1024-1024-10, 1 Gbit/s between them",
        format!("{:.1} ms a step, {:.1} MB each way", step * 1e3, bytes / 1e6),
        format!("{:.1} ms for a bare socket, {:.1} ms to compute", link * 1e3, alone * 1e3),
        Some(link.max(alone) / step),
        "at least 0.9",
    );
}

/// A copy of this program that ends with this value.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// Plays the worker that measures, or the other end of its bare socket; returns whether `role` is one of them.
pub fn serve(role: &str, home: &Path) -> bool {
    match role {
        ROLE => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            runtime.expect("a runtime").block_on(measure(home));
        }
        BARE_ROLE => serve_bare(home),
        _ => return false,
    }
    true
}

/// Bytes of the gradients of one worker.
fn gradient_bytes() -> usize {
    LAYERS.windows(2).map(|pair| (pair[0] + 1) * pair[1] * size_of::<f32>()).sum()
}

fn serve_bare(home: &Path) {
    let listener = TcpListener::bind((ADDRESSES[1], 0)).expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    // Written in one step, since the other end reads the file as soon as it exists.
    std::fs::write(home.join("bare.new"), address).expect("a file in the home folder");
    std::fs::rename(home.join("bare.new"), home.join(BARE_FILE)).expect("a file in the home folder");
    let (stream, _) = listener.accept().expect("the bench connects");
    let (payload, mut room) = (vec![5; gradient_bytes()], vec![0; gradient_bytes()]);
    while exchange(&stream, &payload, &mut room) {}
}

/// A bare socket to the other namespace.
fn bare_stream(home: &Path) -> TcpStream {
    for _ in 0..1000 {
        if let Ok(address) = std::fs::read_to_string(home.join(BARE_FILE)) {
            return TcpStream::connect(address).expect("the other end listens");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the other end of the bare socket does not listen");
}

/// Prints the seconds of a step, the bytes that this worker sent in it, the seconds in which a bare socket exchanges the
/// gradients, and those in which one worker computes the work of both, on the cores of both.
async fn measure(home: &Path) {
    let (own, other) = (Task::new("worker", 0), Task::new("worker", 1));
    let config = NodeConfig {
        task: Some(own),
        backend: BackendChoice::Flex,
        listen: vec![format!("{}:0", ADDRESSES[0])],
        home: Some(home.to_owned()),
        mdns: false,
        ..NodeConfig::default()
    };
    let node = Node::start(config).await.expect("the node of this process starts");
    assert!(node.wait_for(&[other], Duration::from_secs(10)).await, "the other worker is found");
    let (both, one) = (Training::open(&node, 2).await, Training::open(&node, 1).await);
    let stream = bare_stream(home);
    let (payload, mut room) = (vec![3; gradient_bytes()], vec![0; gradient_bytes()]);
    let (mut step, mut bytes, mut link, mut alone) = (f64::MAX, f64::MAX, f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let before = sent_bytes();
        step = step.min(both.step_seconds().await);
        bytes = bytes.min((sent_bytes() - before) / STEPS as f64);
        let start = Instant::now();
        for _ in 0..STEPS {
            assert!(exchange(&stream, &payload, &mut room), "the other end is there");
        }
        link = link.min(start.elapsed().as_secs_f64() / STEPS as f64);
        alone = alone.min(one.step_seconds().await);
    }
    println!("{step} {bytes} {link} {alone}");
    drop((both, one));
    node.close().await;
}

/// A training that is under way.
struct Training {
    session: Session,
    job: TrainingGraph,
    /// Examples of a step for each of its workers.
    batch: usize,
}

impl Training {
    /// A training with `workers` workers, which share the batch of both.
    async fn open(node: &Node, workers: usize) -> Training {
        let job = model(workers);
        let session = node.session(job.graph.clone(), None, SessionOptions::default()).await.expect("a session");
        let assigns: Vec<String> = job.variables.iter().map(|variable| format!("{}/assign", variable.name)).collect();
        let assigns: Vec<&str> =
            assigns.iter().filter(|name| job.graph.find(name).is_some()).map(String::as_str).collect();
        session.run().targets(&assigns).await.expect("first values");
        session.run().target(&job.init).await.expect("what the optimizer keeps");
        let training = Training { session, job, batch: 2 * BATCH / workers };
        training.step_seconds().await;
        training
    }

    /// The mean time of some steps whose batches are in the queues.
    async fn step_seconds(&self) -> f64 {
        let [inputs, .., classes] = LAYERS;
        for queue in &self.job.queues {
            let examples = STEPS * self.batch;
            let x = (0..examples * inputs).map(|i| (i % 255) as f32 / 255.0).collect();
            let y = (0..examples).map(|i| (i % classes) as i32).collect();
            let (x, y) = (Tensor::from_vec([STEPS, self.batch, inputs], x), Tensor::from_vec([STEPS, self.batch], y));
            let feeds = [(queue.feeds[0].as_str(), x), (queue.feeds[1].as_str(), y)];
            self.session.run().feeds(&feeds).target(&queue.enqueue).await.expect("batches");
        }
        let start = Instant::now();
        self.session.run().target(&self.job.steps[0].run).steps(STEPS as u64).await.expect("steps");
        start.elapsed().as_secs_f64() / STEPS as f64
    }
}

/// The MLP, and its training by `workers` workers.
fn model(workers: usize) -> TrainingGraph {
    let mut g = GraphBuilder::new();
    let [inputs, .., classes] = LAYERS;
    let mut at = g.placeholder("x", DType::F32, [None, Some(inputs)]).expect("a placeholder");
    let labels = g.placeholder("y", DType::I32, [None]).expect("a placeholder");
    for (i, pair) in LAYERS.windows(2).enumerate() {
        let mut variable = |name: String, shape: &[usize], first: Initializer| {
            add_variable(&mut g, &VariableSpec::new(&name, shape, first)).expect("a variable").value
        };
        let (w, b) = (
            variable(format!("w{i}"), &[pair[0], pair[1]], Initializer::GlorotUniform),
            variable(format!("b{i}"), &[pair[1]], Initializer::Zeros),
        );
        let mut op = |op: &str, inputs: [Input; 2]| g.op(op).inputs(inputs).build().expect("a node");
        let product = op("MatMul", [at.into(), w.into()]);
        let sum = op("BiasAdd", [product.into(), b.into()]);
        at = if pair[1] == classes { sum } else { g.op("Relu").input(sum).build().expect("a node") };
    }
    let entropy = g.op("SparseSoftmaxCrossEntropyWithLogits").input(at).input(labels).build().expect("a node");
    g.op("Mean").name("loss").input(entropy).input(0).build().expect("a loss");
    let mode = if workers == 1 { "sync" } else { "mirrored" };
    let batch = 2 * BATCH;
    let sections = format!(
        r#"{{"data": {{"feed": {{"x": "x.npy", "y": "y.npy"}}, "batch": {batch}}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": 1e-3, "steps": {STEPS}, "workers": {workers}, "mode": "{mode}"}}}}"#
    );
    let sections = file::read(&sections).expect("sections");
    let part = |name: &str, dtype, example| FedPlaceholder { name: name.to_owned(), dtype, example, there: None };
    let parts = [part("x", DType::F32, vec![inputs]), part("y", DType::I32, vec![])];
    job(g.finish().expect("a graph"), &sections, &parts, STEPS, false).expect("a training")
}

/// Bytes sent over the cable so far, with all headers.
fn sent_bytes() -> f64 {
    let counter = std::fs::read_to_string("/sys/class/net/mtf0/statistics/tx_bytes").expect("the cable's counters");
    counter.trim().parse().expect("a number")
}
