//! The Python module beside the Rust client, as ratios within one run: a table, never a timed test.
//!
//! `cargo bench --bench python`. Both are clients of the same two nodes, and run by turns, so that other load on the machine
//! affects both. The module is that of the Python that `MESHTF_PYTHON` names, or that `make bench` made next to the build.

#[path = "mesh/graphs.rs"]
mod graphs;
#[path = "mesh/measure.rs"]
#[allow(dead_code)]
mod measure;
#[path = "mesh/peer.rs"]
#[allow(dead_code)]
mod peer;
#[path = "mesh/report.rs"]
mod report;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use graphs::split;
use measure::{micros, spread};
use meshtf::{Client, LocalCluster, Node, NodeConfig, Session, SessionOptions, Task};
use meshtf_graph::{Graph, GraphBuilder};
use meshtf_tensor::{DType, PartialShape, Tensor};
use peer::{Peer, home};
use report::Report;

/// That of the command and of the module.
#[global_allocator]
static ALLOCATOR: meshtf::Allocator = meshtf::Allocator;

/// The other client's program.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/python/client.py");
/// Turns of each client, and steps of a turn.
const TURNS: usize = 30;
const STEPS: usize = 200;
/// Arrays in each turn, and the elements of one: 64 MB.
const ARRAYS: usize = 3;
const ELEMENTS: usize = 16 << 20;
/// How often the module is imported.
const IMPORTS: usize = 21;

fn main() {
    let Some(python) = python() else {
        eprintln!(
            "the Python module is not measured: `make bench` makes an environment that has it, or MESHTF_PYTHON names one"
        );
        return;
    };
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let mut report = Report::new("Rust client, in the same run");
    if "import".contains(&wanted) {
        import(&mut report, &python);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        if "processes".contains(&wanted) {
            beside(&mut report, &python).await;
        }
        if "local".contains(&wanted) {
            in_one_process(&mut report, &python).await;
        }
    });
    print!("{report}");
}

/// A Python that has the module.
fn python() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("MESHTF_PYTHON") {
        return Some(PathBuf::from(named));
    }
    let built = Path::new(env!("CARGO_BIN_EXE_meshtf")).parent()?.parent()?;
    Some(built.join("python/venv/bin/python")).filter(|python| python.exists())
}

/// The time of `import meshtf`, in an interpreter of its own.
fn import(report: &mut Report, python: &Path) {
    let code = "import time; t = time.perf_counter(); import meshtf; print(time.perf_counter() - t)";
    let time = || {
        let said = Command::new(python).args(["-c", code]).output().expect("Python runs");
        let seconds = String::from_utf8_lossy(&said.stdout).trim().parse().expect("a time");
        Duration::from_secs_f64(seconds)
    };
    time();
    let times = spread((0..IMPORTS).map(|_| time()).collect());
    report.row("import meshtf", format!("{:.1} ms", times.p50.as_secs_f64() * 1e3), String::new(), None, "50 ms");
}

/// An array that a task returns.
fn same() -> Graph {
    let mut graph = GraphBuilder::new();
    let x = graph.placeholder("x", DType::F32, PartialShape(Some(vec![None]))).expect("a placeholder");
    graph.op("Identity").name("y").input(x).device("/job:local/task:1").build().expect("a node");
    graph.finish().expect("a graph")
}

/// Two nodes in processes of their own, and two clients.
async fn beside(report: &mut Report, python: &Path) {
    let home = home("python");
    let tasks = [Task::new("local", 0), Task::new("local", 1)];
    let _peers: Vec<Peer> = tasks.iter().map(|task| Peer::start(&task.short(), &home)).collect();
    let config = NodeConfig { home: Some(home.clone()), mdns: false, ..NodeConfig::default() };
    let node = Node::start(config).await.expect("the client joins");
    assert!(node.wait_for(&tasks, Duration::from_secs(10)).await, "the tasks are found");
    let mut other = Other::start(python, &["mesh", &home.display().to_string()]);

    let own = node.session(split(), None, SessionOptions::default()).await.expect("a session");
    let (rust, module) = steps(&own, &mut other).await;
    step_row(report, "a step of the split 238, over processes", rust, module);
    drop(own);

    let own = node.session(same(), None, SessionOptions::default()).await.expect("a session");
    let (rust, module) = arrays(&own, &mut other).await;
    let rates = [module, rust].map(|times| ELEMENTS as f64 * 8.0 / spread(times).p50.as_secs_f64() / 1e9);
    let show = |rate: f64| format!("{rate:.2} GB/s");
    let what = "64 MB to a task of another process and back";
    report.row(what, show(rates[0]), show(rates[1]), Some(rates[0] / rates[1]), "at least 0.9");
    drop((own, other));
    node.close().await;
}

/// Two tasks in the process of each client.
async fn in_one_process(report: &mut Report, python: &Path) {
    let tasks = [Task::new("local", 0), Task::new("local", 1)];
    let cluster = LocalCluster::start(&tasks, meshtf::BackendChoice::Flex).expect("a cluster");
    let mut other = Other::start(python, &["local"]);
    let own = cluster.session(split(), None, SessionOptions::default()).await.expect("a session");
    let (rust, module) = steps(&own, &mut other).await;
    step_row(report, "a step of the split 238, in one process", rust, module);
}

fn step_row(report: &mut Report, what: &str, rust: Vec<Duration>, module: Vec<Duration>) {
    let (rust, module) = (spread(rust), spread(module));
    let show = |spread: &measure::Spread| format!("{} (p99 {})", micros(spread.p50), micros(spread.p99));
    let ratio = module.p50.as_secs_f64() / rust.p50.as_secs_f64();
    report.row(what, show(&module), show(&rust), Some(ratio), "at most 60 µs more");
}

/// Times of steps: of this client, and of the other.
async fn steps(own: &Session, other: &mut Other) -> (Vec<Duration>, Vec<Duration>) {
    let (mut rust, mut module) = (Vec::new(), Vec::new());
    // The first turn warms up.
    for turn in 0..=TURNS {
        let mut times = Vec::with_capacity(STEPS);
        for _ in 0..STEPS {
            let start = Instant::now();
            let fetched = own.run().fetch("y").await.expect("a step");
            times.push(start.elapsed());
            assert_eq!(fetched[0].item::<i32>().expect("an int32"), 238);
        }
        let theirs = other.times("steps", STEPS);
        if turn > 0 {
            rust.extend(times);
            module.extend(theirs);
        }
    }
    (rust, module)
}

/// Times of an array to a task and back: of this client, and of the other.
async fn arrays(own: &Session, other: &mut Other) -> (Vec<Duration>, Vec<Duration>) {
    let (mut rust, mut module) = (Vec::new(), Vec::new());
    let array = Tensor::from_vec([ELEMENTS], vec![1.5f32; ELEMENTS]);
    for turn in 0..=TURNS {
        let mut times = Vec::with_capacity(ARRAYS);
        for _ in 0..ARRAYS {
            let start = Instant::now();
            let fetched = own.run().feed("x", array.clone()).fetch("y").await.expect("a step");
            times.push(start.elapsed());
            assert_eq!(fetched[0].dims(), [ELEMENTS]);
        }
        let theirs = other.times("arrays", ARRAYS);
        if turn > 0 {
            rust.extend(times);
            module.extend(theirs);
        }
    }
    (rust, module)
}

/// The client in Python, which measures when it is asked to.
struct Other {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Other {
    fn start(python: &Path, arguments: &[&str]) -> Other {
        let mut child = Command::new(python)
            .arg(SCRIPT)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let asks = child.stdin.take().expect("it is piped");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        Other { child, asks, answers }
    }

    /// The times of so many runs.
    fn times(&mut self, what: &str, count: usize) -> Vec<Duration> {
        writeln!(self.asks, "{what} {count}").expect("the client runs");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the client answers");
        let nanoseconds: Vec<u64> = serde_json::from_str(&line).expect("times");
        nanoseconds.into_iter().map(Duration::from_nanos).collect()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}
