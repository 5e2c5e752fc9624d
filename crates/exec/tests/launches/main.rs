//! Test of the cost of a step on a GPU, in counts that are the same on every machine: kernels launched, submissions, buffers,
//! tensors copied. The models are those of `benches/tf/models.py`, recorded by `tests/tf/models.py`.
//!
//! A binary of its own: the counts are those of the whole process.

#[path = "../devices/cluster.rs"]
#[allow(dead_code, reason = "the other tests use the rest of it")]
mod cluster;

use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use cluster::Cluster;
use meshtf_engine::Engine;
use meshtf_engine::adapters::{self, BackendChoice};
use meshtf_engine::traffic::{Traffic, Watch};
use meshtf_graph::Graph;
use meshtf_tensor::device::Task;
use meshtf_testing::means::{Means, missing, root};

/// Most of each in a step that updates all variables and fetches the loss, once the first steps have run.
struct Most {
    model: &'static str,
    launches: u64,
    /// Command buffers that the queue gets.
    submissions: u64,
    /// Tensors copied to the GPU, and from it.
    uploads: u64,
    reads: u64,
}

const fn most(model: &'static str, launches: u64, submissions: u64, uploads: u64, reads: u64) -> Most {
    Most { model, launches, submissions, uploads, reads }
}

/// A number here may only fall. They were counted on a software Vulkan (lavapipe), the same in every run, and hold there: other
/// adapters may have other kernels for products. The buffers, which are
/// printed as well, are those by which the memory of the GPU grows, and depend on its alignments.
const MODELS: [Most; 11] = [
    most("tiny", 29, 3, 2, 1),
    most("mlp", 20, 3, 2, 1),
    most("autoencoder", 27, 4, 2, 1),
    most("vae", 31, 5, 2, 1),
    most("word2vec", 56, 19, 18, 1),
    most("transformer", 116, 7, 2, 1),
    most("cnn", 39, 4, 2, 1),
    most("residual", 152, 7, 2, 1),
    most("lstm", 226, 10, 2, 1),
    most("lstm_loop", 254, 10, 2, 1),
    most("gru", 410, 15, 2, 1),
];

/// Steps after which nothing is compiled or chosen any more.
const FIRST_STEPS: u64 = 2;

/// Counts the messages by which wgpu reports its calls.
struct Calls;

static SUBMISSIONS: AtomicU64 = AtomicU64::new(0);
static BUFFERS: AtomicU64 = AtomicU64::new(0);

impl log::Log for Calls {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.target().starts_with("wgpu_core::device")
    }

    fn log(&self, record: &log::Record) {
        if !self.enabled(record.metadata()) {
            return;
        }
        if record.args().as_str() == Some("Queue::submit") {
            SUBMISSIONS.fetch_add(1, Ordering::Relaxed);
        } else if record.target().ends_with("global") && record.args().to_string().starts_with("Device::create_buffer")
        {
            BUFFERS.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// The requests to the GPU.
struct Counts {
    traffic: Traffic,
    submissions: u64,
    buffers: u64,
}

fn model(name: &str) -> Graph {
    let file = std::fs::File::open(root().join(format!("tests/data/models/{name}.pb.gz"))).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    Graph::new(meshtf_graph::graphdef::from_binary(&bytes).unwrap()).unwrap()
}

/// A model on a device, with its variables set.
struct Trained {
    graph: Graph,
    cluster: Cluster,
    losses: Vec<f32>,
}

impl Trained {
    fn on(graph: Graph, engine: Box<dyn Engine>) -> Trained {
        let engine = Mutex::new(Some(engine));
        let mut cluster = Cluster::with(&[Task::new("local", 0)], || engine.lock().unwrap().take().expect("one task"));
        cluster.run(&graph, &[], &["^start"]).unwrap_or_else(|failure| panic!("{failure}"));
        Trained { graph, cluster, losses: Vec::new() }
    }

    /// Registers a piece, runs these many steps of it, and counts.
    fn train(&mut self, steps: u64) -> Counts {
        let (submissions, buffers) = (SUBMISSIONS.load(Ordering::Relaxed), BUFFERS.load(Ordering::Relaxed));
        let watch = Watch::new();
        let first = self.cluster.start(&self.graph, &[], &["loss", "^step"], steps).unwrap();
        for step in first..first + steps {
            let fetched = self.cluster.wait(step).unwrap_or_else(|failure| panic!("{failure}"));
            self.losses.push(fetched[0].item::<f32>().unwrap());
        }
        Counts {
            traffic: watch.traffic(),
            submissions: SUBMISSIONS.load(Ordering::Relaxed) - submissions,
            buffers: BUFFERS.load(Ordering::Relaxed) - buffers,
        }
    }

    /// The counts of one step, once nothing is compiled or chosen any more: the difference between two steps and one.
    fn step(&mut self) -> Counts {
        self.train(FIRST_STEPS);
        let (one, two) = (self.train(1), self.train(2));
        let mut traffic = two.traffic;
        for (kernel, count) in &mut traffic.launches {
            let before = one.traffic.launches.iter().find(|(other, _)| other == kernel);
            *count -= before.map_or(0, |(_, count)| *count);
        }
        traffic.uploads -= one.traffic.uploads;
        traffic.uploaded_bytes -= one.traffic.uploaded_bytes;
        traffic.reads -= one.traffic.reads;
        traffic.read_bytes -= one.traffic.read_bytes;
        let submissions = two.submissions.saturating_sub(one.submissions);
        let buffers = two.buffers.saturating_sub(one.buffers);
        Counts { traffic, submissions, buffers }
    }
}

/// The first GPU, and its name.
fn gpu() -> Option<(Box<dyn Engine>, String)> {
    let offer = adapters::gpus(BackendChoice::Wgpu).into_iter().next()?;
    let name = offer.description.clone();
    Some((offer.open().expect("it was offered"), name))
}

#[test]
fn a_step_asks_no_more_of_a_gpu_than_it_did() {
    let Some((_, adapter)) = gpu() else { return missing(Means::Gpu, "the launches of a step") };
    let is_lavapipe = adapter.contains("llvmpipe");
    if !is_lavapipe {
        eprintln!("NOT RUN: the most launches of a step are those of lavapipe, and this is {adapter}");
    }
    log::set_logger(&Calls).expect("nothing else logs");
    log::set_max_level(log::LevelFilter::Trace);
    let chosen = std::env::var("MESHTF_TEST_MODELS").unwrap_or_default();
    let mut wrong = Vec::new();
    for most in MODELS.iter().filter(|most| chosen.is_empty() || chosen.split(',').any(|name| name == most.model)) {
        let mut on_gpu = Trained::on(model(most.model), gpu().expect("it was there").0);
        let Counts { traffic, submissions, buffers } = on_gpu.step();
        let mut on_cpu = Trained::on(model(most.model), adapters::cpu(BackendChoice::Flex).open().unwrap());
        on_cpu.train(FIRST_STEPS + 3);
        eprintln!(
            "{}: {} launches, {submissions} submissions, {buffers} buffers, {} uploads ({} bytes), {} reads ({} bytes)",
            most.model,
            traffic.launches(),
            traffic.uploads,
            traffic.uploaded_bytes,
            traffic.reads,
            traffic.read_bytes
        );
        for (kernel, count) in traffic.launches.iter().take(40) {
            eprintln!("  {count:5} {kernel}");
        }
        let is_near = |(got, want): (&f32, &f32)| (got - want).abs() <= 1e-3 * want.abs().max(1.0);
        if !on_gpu.losses.iter().zip(&on_cpu.losses).all(is_near) {
            wrong.push(format!("{}: losses {:?}, on a CPU {:?}", most.model, on_gpu.losses, on_cpu.losses));
        }
        let counts = [
            ("launches", traffic.launches(), most.launches),
            ("submissions", submissions, most.submissions),
            ("uploads", traffic.uploads, most.uploads),
            ("reads", traffic.reads, most.reads),
        ];
        for (what, count, most_of) in counts {
            if is_lavapipe && count > most_of {
                wrong.push(format!("{}: {count} {what}, at most {most_of} before", most.model));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
