//! A test of memory leaks: the resident memory of the nodes and of the program, after 1,000 and after 10,000 iterations of a
//! small model with Adam.
//!
//! `memory` starts and ends the nodes itself, and prints a line for each process. The environment variable MESHTF names the
//! binary.

use std::process::ExitCode;
use std::time::Instant;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsParams};
use suite::nodes::{Nodes, Result, resident};
use suite::numbers::fixed;
use suite::training::{Mlp, batch};

const FIRST: usize = 1_000;
const LAST: usize = 10_000;
/// The number of iterations between two reads of the loss.
const READ_EVERY: usize = 10;
/// The variation of resident memory on a busy machine, with the allocator's reserves for its threads. A leak of 6 kB per
/// iteration exceeds it.
const NOISE: u64 = 48 << 20;

fn main() -> ExitCode {
    match memory() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn memory() -> Result<bool> {
    let nodes = Nodes::start(2)?;
    let devices = meshtf_burn::Mesh::reach(&nodes.door)?.devices("worker")?;
    let look = || [nodes.resident(0), nodes.resident(1), resident(std::process::id())];
    let start = Instant::now();
    let (device, other) = (devices[0].clone().autodiff(), devices[1].clone());
    let mut model = fixed(Mlp::new([12, 16, 10], &device), 1);
    let mut optimizer = AdamConfig::new().init();
    let mut first = [None; 3];
    for i in 1..=LAST {
        let (x, y) = batch(8, 12, i % 64, &device);
        let loss = CrossEntropyLossConfig::new().init(&device).forward(model.forward(x), y);
        let seen = loss.clone().without_autodiff();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, grads);
        if i % READ_EVERY == 0 {
            // The other node takes part.
            let seen: f32 = seen.to_device(&other).try_into_scalar().map_err(|e| e.to_string())?;
            if !seen.is_finite() {
                return Err(format!("the loss of iteration {i} is {seen}").into());
            }
        }
        if i == FIRST {
            first = look();
        }
    }
    let last = look();
    let rate = LAST as f64 / start.elapsed().as_secs_f64();
    let mut passed = true;
    for (i, name) in ["worker/0", "worker/1", "the program"].into_iter().enumerate() {
        let (Some(first), Some(last)) = (first[i], last[i]) else {
            println!("NOT RUN {name}: this system does not tell what a process has resident");
            continue;
        };
        // burn's client is not tested.
        let grows = i < 2 && last > first + NOISE;
        passed &= !grows;
        let verdict = if grows { "FAILED " } else { "ok     " };
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "{verdict} memory of {name:<12} {:>7.1} MB after {FIRST} iterations, {:>7.1} MB after {LAST}, {rate:.0}/s",
            megabytes(first),
            megabytes(last)
        );
    }
    Ok(passed)
}
