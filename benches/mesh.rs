//! The costs of a mesh, as ratios within one run: a table, never a timed test.
//!
//! `cargo bench --bench mesh`. Each figure is next to its baseline, measured in the same run on the same machine: a step and a
//! round trip on raw TCP, a tensor from task to task and TLS on a plain socket, a tiny op and burn called directly. Peers are
//! separate processes: this program starts `meshtf node`s and copies of itself.

#[path = "mesh/baseline.rs"]
mod baseline;
#[path = "mesh/graphs.rs"]
mod graphs;
#[path = "mesh/measure.rs"]
mod measure;
#[path = "mesh/peer.rs"]
mod peer;
#[path = "mesh/report.rs"]
mod report;
#[path = "mesh/steps.rs"]
mod steps;

use report::Report;

/// The allocator of the `meshtf` command, so that both sides of a ratio use the same one as the command.
#[global_allocator]
static ALLOCATOR: meshtf::Allocator = meshtf::Allocator;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // A copy of this program that serves as the other end of a baseline.
    if let [role, ..] = arguments.as_slice()
        && baseline::serve(role)
    {
        return;
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let mut report = Report::new("baseline in this run");
    // As many threads for the network as `meshtf node` has.
    let threads = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 4));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        if "start".contains(&wanted) {
            steps::start(&mut report);
        }
        if "step".contains(&wanted) {
            steps::split_step(&mut report).await;
        }
        if "transfer".contains(&wanted) {
            steps::transfer(&mut report).await;
        }
        if "large".contains(&wanted) {
            steps::large_graph(&mut report).await;
        }
        if "ops".contains(&wanted) {
            steps::tiny_ops(&mut report).await;
        }
    });
    print!("{report}");
}
