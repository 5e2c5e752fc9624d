//! Iterations per second of the training of three models: on flex in the program itself, on burn's own remote server, on a server
//! that computes nothing, and on the mesh; on one device, and except for flex also data-parallel on two.
//!
//! `bench --door 127.0.0.1:3000 --server 127.0.0.1:3001 --nothing 127.0.0.1:3002 [--cpu NAME=PID]… [FILTER…]` measures the
//! servers that are given, in five rounds, each server in a process of its own. It prints a table of the medians, of their
//! ratios to one device of burn's own server, and of the processor time per iteration: of the program, and of the processes of
//! `--cpu`.

use std::process::Command;
use std::time::{Duration, Instant};

use burn::prelude::*;
use burn::remote::RemoteHost;
use suite::models::{MODELS, Step};

const TURNS: usize = 5;
/// Before each turn: the first iterations of a program are planned, later ones repeat them.
const WARM: usize = 5;
const TURN: Duration = Duration::from_secs(2);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A server: its flag on the command line, and its address; `None` for flex.
type Host = Option<(String, String)>;

struct Place {
    name: &'static str,
    host: Host,
    devices: usize,
}

impl Place {
    fn devices(&self) -> Result<Vec<Device>> {
        let mut all = match &self.host {
            None => vec![Device::flex()],
            Some((kind, address)) if kind == "--door" => meshtf_burn::Mesh::reach(address)?.devices("worker")?,
            Some((_, address)) => RemoteHost::websocket(&format!("ws://{address}")).devices()?.into_vec(),
        };
        all.truncate(self.devices);
        Ok(all)
    }
}

/// A process whose processor time is measured.
struct Process {
    name: String,
    id: u32,
}

impl Process {
    /// Its processor time so far in milliseconds, in steps of 10; 0 if the system does not show it.
    fn computed(&self) -> f64 {
        let told = std::fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        // After the name of the program, which may have spaces, the 12th and the 13th: in its own code, and in the system.
        let fields = told.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10.0
    }
}

fn main() -> Result<()> {
    let mut places = vec![Place { name: "flex, in the program", host: None, devices: 1 }];
    let (mut processes, mut filters, mut one) = (Vec::new(), Vec::new(), None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} takes a value"));
        match word.as_str() {
            "--server" | "--nothing" | "--door" => {
                let names = match word.as_str() {
                    "--server" => [BASE, "burn's server, 2 devices"],
                    "--nothing" => ["no kernels", "no kernels, 2 devices"],
                    _ => ["mesh", "mesh, 2 tasks"],
                };
                let host = Some((word.clone(), value()?));
                places.extend(names.iter().zip(1..).map(|(name, devices)| Place { name, host: host.clone(), devices }));
            }
            "--cpu" => {
                let named = value()?;
                let (name, id) = named.split_once('=').ok_or("--cpu takes NAME=PID")?;
                processes.push(Process { name: name.to_owned(), id: id.parse()? });
            }
            // The measurement that another process has started this one for.
            "--turn" => one = Some((value()?, value()?.parse::<usize>()?)),
            filter => filters.push(filter.to_owned()),
        }
    }
    if let Some((model, place)) = one {
        processes.insert(0, Process { name: "the program".to_owned(), id: std::process::id() });
        let (_, start) = MODELS.iter().find(|(name, _)| *name == model).ok_or("no model has this name")?;
        let devices = places.get(place).ok_or("there is no such place")?.devices()?;
        println!("{}", turn(start(&devices), &processes)?.write());
        return Ok(());
    }
    for (name, _) in MODELS {
        if filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str())) {
            table(name, &places, &processes)?;
        }
    }
    Ok(())
}

/// The baseline of the ratios.
const BASE: &str = "burn's server";

fn table(model: &str, places: &[Place], processes: &[Process]) -> Result<()> {
    let mut turns: Vec<Vec<Turn>> = places.iter().map(|_| Vec::new()).collect();
    for _ in 0..TURNS {
        for (place, turns) in turns.iter_mut().enumerate() {
            turns.push(other_process(model, place)?);
        }
    }
    let medians: Vec<Turn> = turns
        .into_iter()
        .map(|mut turns| {
            turns.sort_by(|a, b| a.rate.total_cmp(&b.rate));
            turns.swap_remove(TURNS / 2)
        })
        .collect();
    let base = places.iter().position(|place| place.name == BASE).unwrap_or(0);
    print!("{model:<28}{:>12}{:>9}{:>14}", "iterations/s", "", "the program");
    processes.iter().for_each(|process| print!("{:>15}", process.name));
    println!();
    for (place, turn) in places.iter().zip(&medians) {
        print!("  {:<26}{:>12.1}{:>8.2}×", place.name, turn.rate, turn.rate / medians[base].rate);
        turn.computed.iter().for_each(|computed| print!("{:>15}", format!("{computed:.2} ms")));
        println!();
    }
    Ok(())
}

/// The measurement of one round.
struct Turn {
    /// Iterations per second.
    rate: f64,
    /// Milliseconds of processor time per iteration, by process.
    computed: Vec<f64>,
}

impl Turn {
    fn write(&self) -> String {
        let all: Vec<String> = [self.rate].iter().chain(&self.computed).map(f64::to_string).collect();
        all.join(" ")
    }

    fn read(text: &str) -> Result<Turn> {
        let mut all = text.split_whitespace().map(str::parse);
        let rate = all.next().ok_or("a turn without a rate")??;
        Ok(Turn { rate, computed: all.collect::<std::result::Result<_, _>>()? })
    }
}

/// A round in a process of its own, which threads for other servers do not slow down.
fn other_process(model: &str, place: usize) -> Result<Turn> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args().skip(1)).args(["--turn", model, &place.to_string()]);
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{model} at place {place} ends with {}", output.status).into());
    }
    Turn::read(&String::from_utf8_lossy(&output.stdout))
}

/// Runs iterations for a while, and reads each loss ten iterations later, like a program that prints its progress.
fn turn(mut step: Step<'_>, processes: &[Process]) -> Result<Turn> {
    let mut losses = std::collections::VecDeque::new();
    let mut start = Instant::now();
    let mut before = Vec::new();
    for i in 0.. {
        losses.push_back(step(i));
        if losses.len() > 10 || i < WARM {
            let loss: f32 = losses.pop_front().expect("a loss was pushed").into_scalar();
            if !loss.is_finite() {
                return Err(format!("the loss of iteration {i} is {loss}").into());
            }
        }
        if i + 1 == WARM {
            start = Instant::now();
            before = processes.iter().map(Process::computed).collect();
        }
        if i >= WARM && start.elapsed() >= TURN {
            for loss in losses {
                let _: f32 = loss.into_scalar();
            }
            let iterations = (i + 1 - WARM) as f64;
            let rate = iterations / start.elapsed().as_secs_f64();
            let computed = processes.iter().zip(&before).map(|(process, before)| process.computed() - before);
            return Ok(Turn { rate, computed: computed.map(|computed| computed / iterations).collect() });
        }
    }
    unreachable!("the loop ends by time")
}
