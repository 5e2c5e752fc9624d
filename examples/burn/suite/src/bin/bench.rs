//! Iterations a second of three models that train: on flex in this process, on burn's own remote server, on one device of the
//! mesh, and data-parallel on two.
//!
//! `bench --door 127.0.0.1:3000 --server 127.0.0.1:3001 [--cpu NAME=PID]… [FILTER…]`: what is not named is not measured. Each
//! place takes its turn five times; a table shows the medians, and their ratios to burn's own server. Below each row stands where
//! an iteration's processor time goes: to this program (`here`), and to the processes that `--cpu` names.

use std::time::{Duration, Instant};

use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams};
use burn::prelude::*;
use burn::remote::RemoteHost;
use suite::numbers::{fixed, input, ints};
use suite::training::{Cnn, Mlp, batch};

const TURNS: usize = 5;
/// Before each turn: the first iterations of a program are planned, later ones repeat them.
const WARM: usize = 5;
const TURN: Duration = Duration::from_secs(2);

struct Place {
    name: &'static str,
    devices: Vec<Device>,
}

/// A process whose processor time is measured.
struct Process {
    name: String,
    id: u32,
}

impl Process {
    /// Milliseconds that it has computed so far, in steps of 10; 0 if the system does not tell.
    fn computed(&self) -> f64 {
        let told = std::fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        // After the name of the program, which may have spaces, the 12th and the 13th: in its own code, and in the system.
        let fields = told.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10.0
    }
}

/// One iteration on the devices; each device takes its share of the batch.
type Step<'a> = Box<dyn FnMut(usize) -> Tensor<1> + 'a>;
type Start = for<'a> fn(&'a [Device]) -> Step<'a>;

const MODELS: [(&str, Start); 3] =
    [("mlp 784-128-10, batch 64", mlp), ("cnn 16 channels, batch 32", cnn), ("lstm 32, 20 steps, batch 16", lstm)];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut places = vec![Place { name: "flex, here", devices: vec![Device::flex()] }];
    let mut processes = vec![Process { name: "here".to_owned(), id: std::process::id() }];
    let mut filters = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} takes an address"));
        match word.as_str() {
            "--server" => {
                let host = RemoteHost::websocket(&format!("ws://{}", value()?));
                places.push(Place { name: "burn's server", devices: host.devices()?.into_vec()[..1].to_vec() });
            }
            "--door" => {
                let mesh = meshtf_burn::Mesh::reach(&value()?)?;
                let devices =
                    mesh.names().iter().take(2).map(|name| mesh.device(name)).collect::<Result<Vec<_>, _>>()?;
                places.push(Place { name: "mesh", devices: devices[..1].to_vec() });
                if devices.len() == 2 {
                    places.push(Place { name: "mesh, 2 tasks", devices });
                }
            }
            "--cpu" => {
                let named = words.next().unwrap_or_default();
                let (name, id) = named.split_once('=').ok_or("--cpu takes NAME=PID")?;
                processes.push(Process { name: name.to_owned(), id: id.parse()? });
            }
            filter => filters.push(filter.to_owned()),
        }
    }
    print!("{:<30}", "iterations/s");
    places.iter().for_each(|place| print!("{:>22}", place.name));
    println!();
    for (name, start) in MODELS {
        if filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str())) {
            row(name, start, &places, &processes);
        }
    }
    Ok(())
}

fn row(name: &str, start: Start, places: &[Place], processes: &[Process]) {
    let mut turns: Vec<Vec<Turn>> = places.iter().map(|_| Vec::new()).collect();
    for _ in 0..TURNS {
        for (place, turns) in places.iter().zip(&mut turns) {
            turns.push(turn(start(&place.devices), processes));
        }
    }
    let medians: Vec<Turn> = turns
        .into_iter()
        .map(|mut turns| {
            turns.sort_by(|a, b| a.rate.total_cmp(&b.rate));
            turns.swap_remove(TURNS / 2)
        })
        .collect();
    let base = places.iter().position(|place| place.name == "burn's server").unwrap_or(0);
    print!("{name:<30}");
    medians
        .iter()
        .for_each(|turn| print!("{:>22}", format!("{:.1} ({:.2}×)", turn.rate, turn.rate / medians[base].rate)));
    println!();
    for (process, of) in processes.iter().enumerate() {
        print!("{:<30}", format!("    {} computes", of.name));
        medians.iter().for_each(|turn| print!("{:>22}", format!("{:.2} ms", turn.computed[process])));
        println!();
    }
}

/// What one turn of a place measures.
struct Turn {
    /// Iterations a second.
    rate: f64,
    /// Milliseconds of processor time an iteration, by process.
    computed: Vec<f64>,
}

/// Runs iterations for a while; each loss is read, ten iterations after it, as a program does that prints its progress.
fn turn(mut step: Step<'_>, processes: &[Process]) -> Turn {
    let mut losses = std::collections::VecDeque::new();
    let mut start = Instant::now();
    let mut before = Vec::new();
    for i in 0.. {
        losses.push_back(step(i));
        if losses.len() > 10 || i < WARM {
            let loss: f32 = losses.pop_front().expect("a loss was pushed").into_scalar();
            assert!(loss.is_finite(), "the loss of iteration {i} is {loss}");
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
            return Turn { rate, computed: computed.map(|computed| computed / iterations).collect() };
        }
    }
    unreachable!("the loop ends by time")
}

/// Data-parallel training with Adam: a replica on each device, the gradients added up on the first.
fn train<'a, M: burn::module::Module + 'a>(
    devices: &'a [Device],
    model: impl Fn(&Device) -> M,
    loss: impl Fn(&M, &Device, usize, usize) -> Tensor<1> + 'a,
) -> Step<'a> {
    let main = devices[0].clone();
    let mut model = Some(fixed(model(&main.clone().autodiff()), 1));
    let mut optimizer = AdamConfig::new().init();
    Box::new(move |step| {
        let current = model.take().expect("it is put back");
        let mut sum = GradientsAccumulator::new();
        let mut seen = None;
        for (shard, device) in devices.iter().enumerate() {
            let device = device.clone().autodiff();
            let replica = if shard == 0 { current.clone() } else { current.clone().fork(&device) };
            let value = loss(&replica, &device, devices.len(), step * devices.len() + shard);
            if shard == 0 {
                seen = Some(value.clone().without_autodiff());
            }
            let grads = GradientsParams::from_grads(value.backward(), &replica);
            sum.accumulate(&current, if shard == 0 { grads } else { grads.to_device(&main, &current) });
        }
        model = Some(optimizer.step(1e-3, current, sum.grads()));
        seen.expect("there is a device")
    })
}

fn mlp(devices: &[Device]) -> Step<'_> {
    train(
        devices,
        |d| Mlp::new([784, 128, 10], d),
        |model, device, shares, seed| {
            let (x, y) = batch(64 / shares, 784, seed, device);
            CrossEntropyLossConfig::new().init(device).forward(model.forward(x), y)
        },
    )
}

fn cnn(devices: &[Device]) -> Step<'_> {
    train(
        devices,
        |d| Cnn::new(16, 28, d),
        |model, device, shares, seed| {
            let rows = 32 / shares;
            let (x, y) = (input([rows, 1, 28, 28], seed as u64, device), ints([rows], 10, seed as u64, device));
            CrossEntropyLossConfig::new().init(device).forward(model.forward(x, None), y)
        },
    )
}

#[derive(burn::module::Module, Debug)]
struct Recurrent {
    layer: Lstm,
    out: Linear,
}

fn lstm(devices: &[Device]) -> Step<'_> {
    let model =
        |d: &Device| Recurrent { layer: LstmConfig::new(16, 32, true).init(d), out: LinearConfig::new(32, 4).init(d) };
    train(devices, model, |model, device, shares, seed| {
        let rows = 16 / shares;
        let (x, y) = (input([rows, 20, 16], seed as u64, device), input([rows, 4], seed as u64 + 1, device));
        let (_, state) = model.layer.forward(x, None);
        MseLoss::new().forward(model.out.forward(state.hidden), y, Reduction::Mean)
    })
}
