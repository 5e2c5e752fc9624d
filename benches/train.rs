//! The cost of a training step: the documents' y = e^x program, whole, cut into layers, and data-parallel.
//!
//! `cargo bench --bench train`, or with a word (`single`, `model`, `data 8`, `trainer`, `mirrored`, `network`, `memory`) to run
//! only the rows whose names contain it. A table, never a timed test. Each task but the master is a `meshtf node` process; the
//! client is in the master's.

#[path = "train/exchange.rs"]
mod exchange;
#[path = "mesh/measure.rs"]
#[allow(dead_code)] // Shared with the bench `mesh`, which uses more of it.
mod measure;
#[path = "train/mirrored.rs"]
mod mirrored;
#[path = "train/network.rs"]
mod network;
#[path = "mesh/peer.rs"]
#[allow(dead_code)] // As above.
mod peer;
#[path = "train/program.rs"]
mod program;
#[path = "mesh/report.rs"]
mod report;
#[path = "train/runs.rs"]
mod runs;
#[path = "train/trainer.rs"]
mod trainer;

use program::Program;
use report::Report;

/// The allocator of the `meshtf` command, so that this process computes like its nodes.
#[global_allocator]
static ALLOCATOR: meshtf::Allocator = meshtf::Allocator;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // A copy of this program that serves as the other end of a baseline.
    if let [role, path] = arguments.as_slice()
        && (exchange::serve(role, path.as_ref()) || network::serve(role, path.as_ref()))
    {
        return;
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = words.join(" ");
    let mut report = Report::new("TensorFlow, from the record");
    // As many threads for the network as `meshtf node` has.
    let threads = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 4));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let single = Program::single();
        let single_loss = runs::loss_after_training(&single).await;
        // TensorFlow 2.21 on an otherwise idle 2-core machine (Cascade Lake, 2.5 GHz), a `run` a step.
        let programs = [
            (single, 1250, "at least 5000"),
            (Program::model(), 184, ""),
            (Program::data(2), 162, "at least 1500"),
            (Program::data(4), 93, ""),
            (Program::data(8), 48, "at least 800"),
        ];
        for (program, recorded, aim) in programs {
            if program.title.contains(&wanted) {
                runs::speed(&mut report, &program, single_loss, recorded, aim).await;
            }
        }
        if "trainer".contains(&wanted) {
            trainer::speed(&mut report).await;
        }
        if "mirrored".contains(&wanted) {
            mirrored::speed(&mut report).await;
        }
        if "network".contains(&wanted) {
            network::speed(&mut report);
        }
        if "memory".contains(&wanted) {
            runs::memory(&mut report, &Program::data(2)).await;
        }
    });
    print!("{report}");
}
