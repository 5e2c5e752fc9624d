//! The training rate of the program, its loss, and its memory.

use std::time::{Duration, Instant};

use meshtf::{BackendChoice, Client, LocalCluster, Node, Session, SessionOptions};

use crate::measure::{cpu_seconds, resident_mb};
use crate::peer::{Peer, cluster};
use crate::program::{Batch, Numbers, Program};
use crate::report::Report;

/// Each figure is the best of this many rounds of this length: other load on the machine can only slow it down.
pub const ROUNDS: usize = 3;
pub const ROUND: Duration = Duration::from_millis(1500);
/// Steps after which single and parallel training are compared.
const COMPARED_STEPS: usize = 200;

/// A program on its tasks, initialised.
pub struct Up {
    pub session: Session,
    peers: Vec<Peer>,
    node: Node,
}

impl Up {
    pub async fn start(program: &Program) -> Up {
        let (peers, node) =
            cluster(&program.title.replace(' ', "-"), program.tasks[0].clone(), &program.tasks[1..]).await;
        let graph = program.graph.clone();
        let session = node.session(graph, None, SessionOptions::default()).await.expect("a session");
        initialise(&session, program).await;
        Up { session, peers, node }
    }

    pub async fn stop(self) {
        drop((self.session, self.peers));
        self.node.close().await;
    }

    /// CPU seconds that all its processes have used so far.
    fn cpu(&self) -> f64 {
        cpu_seconds(std::process::id()) + self.peers.iter().map(|peer| cpu_seconds(peer.id())).sum::<f64>()
    }
}

async fn initialise(session: &Session, program: &Program) {
    session.run().feeds(&program.initial()).target("init").await.expect("the variables are initialised");
}

async fn loss(session: &Session, program: &Program) -> f32 {
    let batch = Batch::next(&mut Numbers::new(7));
    let fetched = session.run().feeds(&program.evaluation(&batch)).fetch(program.loss).await.expect("a loss");
    fetched[0].item().expect("a float32")
}

/// Trains on batches that are the same for every program; returns the losses before and after.
async fn train(session: &Session, program: &Program) -> (f32, f32) {
    let before = loss(session, program).await;
    let mut numbers = Numbers::new(3);
    for _ in 0..COMPARED_STEPS {
        let batch = Batch::next(&mut numbers);
        session.run().feeds(&program.feeds(&batch)).target(program.train).await.expect("a step");
    }
    (before, loss(session, program).await)
}

/// The loss after this many steps in one process, to compare the others with.
pub async fn loss_after_training(program: &Program) -> f32 {
    let task = &program.tasks[0];
    let alone = LocalCluster::start(std::slice::from_ref(task), BackendChoice::Flex).expect("a cluster");
    let session = alone.session(program.graph.clone(), task, SessionOptions::default()).await.expect("a session");
    initialise(&session, program).await;
    train(&session, program).await.1
}

/// Steps per second, with a `run` per step on fresh batches, and with the workers running ahead on one.
pub async fn speed(report: &mut Report, program: &Program, single_loss: f32, recorded: u32, aim: &str) {
    let up = Up::start(program).await;
    let (before, after) = train(&up.session, program).await;
    assert!(after < before / 2.0, "{}: the loss went from {before} to {after}", program.title);
    let apart = (after - single_loss).abs() / single_loss;
    assert!(apart < 1e-2, "{}: a loss of {after}, and of {single_loss} in one process", program.title);

    let mut numbers = Numbers::new(5);
    let (mut one_by_one, mut ahead) = (Best::default(), Best::default());
    for _ in 0..ROUNDS {
        let (start, cpu) = (Instant::now(), up.cpu());
        let mut steps = 0;
        while start.elapsed() < ROUND {
            let batch = Batch::next(&mut numbers);
            up.session.run().feeds(&program.feeds(&batch)).target(program.train).await.expect("a step");
            steps += 1;
        }
        one_by_one.take(f64::from(steps), start.elapsed().as_secs_f64(), up.cpu() - cpu);

        let feeds = program.feeds(&Batch::next(&mut numbers));
        let count = (one_by_one.rate * ROUND.as_secs_f64()) as u64;
        let (start, cpu) = (Instant::now(), up.cpu());
        up.session.run().feeds(&feeds).target(program.train).steps(count).await.expect("steps");
        ahead.take(count as f64, start.elapsed().as_secs_f64(), up.cpu() - cpu);
    }
    let title = match program.title.strip_prefix("data ") {
        Some(workers) => format!("y = e^x, data-parallel, {workers} workers"),
        None => format!("y = e^x, {}", program.title),
    };
    for (how, best, aim) in [("a run a step", one_by_one, ""), ("workers running ahead", ahead, aim)] {
        let figure = format!("{:.0} steps/s ({:.0} CPU-µs a step)", best.rate, best.cpu * 1e6);
        let ratio = best.rate / f64::from(recorded);
        report.row(&format!("{title}, {how}"), figure, format!("{recorded} steps/s"), Some(ratio), aim);
    }
    up.stop().await;
}

/// The best of several rounds: steps per second, and CPU seconds per step.
struct Best {
    rate: f64,
    cpu: f64,
}

impl Default for Best {
    fn default() -> Self {
        Best { rate: 0.0, cpu: f64::INFINITY }
    }
}

impl Best {
    fn take(&mut self, steps: f64, seconds: f64, cpu: f64) {
        self.rate = self.rate.max(steps / seconds);
        self.cpu = self.cpu.min(cpu / steps);
    }
}

/// Resident memory of each process during a run.
pub async fn memory(report: &mut Report, program: &Program) {
    let up = Up::start(program).await;
    let feeds = program.feeds(&Batch::next(&mut Numbers::new(5)));
    let ids: Vec<u32> = std::iter::once(std::process::id()).chain(up.peers.iter().map(Peer::id)).collect();
    let resident = || ids.iter().map(|&id| format!("{:.1}", resident_mb(id))).collect::<Vec<_>>().join(", ");
    let mut after = Vec::new();
    for steps in [1_000, 9_000] {
        up.session.run().feeds(&feeds).target(program.train).steps(steps).each(0, |_, _| {}).await.expect("steps");
        after.push(resident());
    }
    report.row(
        "resident MB of master and workers (data 2) after 10,000 steps, beside after 1,000",
        after[1].clone(),
        format!("meshtf itself after 1,000: {}", after[0]),
        None,
        "no growth",
    );
    up.stop().await;
}
