//! The share of a program's steps that reuse a plan, and the cost of an operation at the door.
//!
//! `steps plans` fails if fewer than 99 of 100 steps of burn-train's learner over 1,000 iterations reuse a plan. `steps cost`
//! prints the node's processor time per operation apart from its kernels. Both start and end the node themselves; the
//! environment variable MESHTF names its binary. The training runs in another process of this program, since the door reports a
//! program's counts at its end.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use suite::learner;
use suite::models::lstm;
use suite::nodes::{Nodes, Result};

const ITERATIONS: usize = 1_000;
/// Iterations of the LSTM, each of thousands of operations.
const LSTM_ITERATIONS: usize = 300;
/// Least share of steps that reuse a plan, in percent.
const LEAST_PLANNED: f64 = 99.0;
/// Most microseconds per operation, on an idle machine.
const MOST_FOR_AN_OPERATION: f64 = 8.0;
/// The time limit for the door's report of a program's end.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match steps() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn steps() -> Result<bool> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["plans"] => plans(),
        ["cost"] => cost(),
        ["train", program, door] => train(program, door).map(|()| true),
        _ => Err("steps plans, or steps cost".into()),
    }
}

fn plans() -> Result<bool> {
    let ended = run(&Nodes::start_with(1, &["-v"])?, "learner")?;
    let share = 100.0 * ended.planned / ended.steps;
    let passed = share >= LEAST_PLANNED && ended.steps >= ITERATIONS as f64;
    let verdict = if passed { "ok     " } else { "FAILED " };
    println!(
        "{verdict} {share:.2} % of {} steps had a plan, with burn-train's learner over {ITERATIONS} iterations",
        ended.steps
    );
    Ok(passed)
}

fn cost() -> Result<bool> {
    let nodes = Nodes::start_with(1, &["-v"])?;
    let Some(before) = computed(nodes.process(0)) else {
        println!("NOT RUN what an operation costs: this system does not tell what threads compute");
        return Ok(true);
    };
    let ended = run(&nodes, "lstm")?;
    let after = computed(nodes.process(0)).ok_or("what threads compute was told, and is not any more")?;
    let of = |is_device: bool| -> f64 {
        let since = |name: &String| after[name] - before.get(name).copied().unwrap_or(0.0);
        after.keys().filter(|name| name.starts_with("CPU:") == is_device).map(since).sum()
    };
    let (door, kernels) = (1e6 * of(false) / ended.operations, 1e6 * of(true) / ended.operations);
    let verdict = if door <= MOST_FOR_AN_OPERATION { "ok     " } else { "OVER   " };
    println!(
        "{verdict} {door:.1} µs an operation at the door (at most {MOST_FOR_AN_OPERATION} on an idle machine), {kernels:.1} µs on the \
         device's threads: LSTM, {:.0} operations an iteration",
        ended.operations / LSTM_ITERATIONS as f64
    );
    Ok(true)
}

/// The door's report of a program that has ended.
struct Ended {
    steps: f64,
    operations: f64,
    planned: f64,
}

/// Trains in another process, and waits for the door's report of its end.
fn run(nodes: &Nodes, program: &str) -> Result<Ended> {
    let status = Command::new(std::env::current_exe()?).args(["train", program, &nodes.door]).status()?;
    if !status.success() {
        return Err(format!("{program} ends with {status}").into());
    }
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let log = nodes.log(0)?;
        if let Some((_, told)) = log.split_once("a burn program has ended: ") {
            let mut numbers = told.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
            let mut next = || numbers.next().ok_or_else(|| format!("the door tells {told:?}"));
            return Ok(Ended { steps: next()?, operations: next()?, planned: next()? });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("the door does not tell that the program has ended".into())
}

fn train(program: &str, door: &str) -> Result<()> {
    let device = meshtf_burn::Mesh::reach(door)?.devices("worker")?.swap_remove(0);
    match program {
        "learner" => learner::long(&device, ITERATIONS),
        "lstm" => {
            let devices = [device];
            let mut step = lstm(&devices);
            let mut last = None;
            (0..LSTM_ITERATIONS).for_each(|i| last = Some(step(i)));
            let loss: f32 = last.ok_or("there was no iteration")?.into_scalar();
            if !loss.is_finite() {
                return Err(format!("the loss is {loss}").into());
            }
        }
        other => return Err(format!("there is no program {other}").into()),
    }
    Ok(())
}

/// Processor time of the threads of a process so far in seconds, by their names; `None` if the system does not show it.
fn computed(process: u32) -> Option<BTreeMap<String, f64>> {
    let mut sums = BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let thread = thread.ok()?.path();
        // A thread that has ended since is not counted.
        let read = |file: &str| std::fs::read_to_string(thread.join(file));
        let (Ok(name), Ok(times)) = (read("comm"), read("schedstat")) else { continue };
        let nanoseconds: f64 = times.split(' ').next()?.parse().ok()?;
        *sums.entry(name.trim().to_owned()).or_insert(0.0) += nanoseconds / 1e9;
    }
    Some(sums)
}
