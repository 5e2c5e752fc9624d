//! A test of failures: a burn program is killed, and a task is killed under another program.
//!
//! `faults` starts and ends the nodes itself, and prints a line for each case. The environment variable MESHTF names the binary.
//! `faults --train DOOR` is the program that is killed, `faults --sum DOOR` one that adds up a few numbers.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use serde_json::Value;
use suite::nodes::{Nodes, Result};
use suite::numbers::{Numbers, fixed, input};
use suite::training::{Mlp, batch, train};

/// The time limit for the release of a program's tensors on a task after its end.
const PATIENCE: Duration = Duration::from_secs(30);
const TOLERANCE: f64 = 1e-4;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["--train", door] => {
            let ended = mesh(door).map(|devices| train_for_ever(&devices));
            return fail(&ended.unwrap_or_else(|error| error.to_string()));
        }
        ["--sum", door] => {
            return match mesh(door).map(|devices| input([4, 4], 5, &devices[0]).sum().try_into_scalar::<f32>()) {
                Ok(Ok(_)) => ExitCode::SUCCESS,
                Ok(Err(error)) => fail(&error.to_string()),
                Err(error) => fail(&error.to_string()),
            };
        }
        _ => return fail("faults [--train DOOR | --sum DOOR]"),
    }
    let tests: [(&str, fn() -> Result<()>); 3] = [
        ("a program that is killed leaves nothing", killed),
        ("a task that is killed is told by name", lost),
        ("an upload for which a node has no memory is told", too_large),
    ];
    let mut passed = true;
    for (name, test) in tests {
        let start = Instant::now();
        match test() {
            Ok(()) => println!("ok      {name:<52} {:.1} s", start.elapsed().as_secs_f64()),
            Err(error) => {
                passed = false;
                println!("FAILED  {name:<52} {error}");
            }
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

fn mesh(door: &str) -> Result<Vec<Device>> {
    Ok(meshtf_burn::Mesh::reach(door)?.devices("worker")?)
}

/// A model that is trained on several devices, its gradients added up on the first.
struct Training {
    model: Mlp,
    optimizer: ModuleOptimizer,
}

impl Training {
    fn new(main: &Device) -> Training {
        let model = fixed(Mlp::new([12, 16, 10], &main.clone().autodiff()), 1);
        Training { model, optimizer: AdamConfig::new().init() }
    }

    /// One iteration; returns the loss on the last device, or the reason why it cannot be read.
    fn step(&mut self, devices: &[Device], step: usize) -> std::result::Result<f32, String> {
        let (mut sum, mut seen) = (GradientsAccumulator::new(), None);
        for (shard, device) in devices.iter().enumerate() {
            let device = device.clone().autodiff();
            let (x, y) = batch(8, 12, devices.len() * step + shard, &device);
            let replica = self.model.clone().fork(&device);
            let loss = CrossEntropyLossConfig::new().init(&device).forward(replica.forward(x), y);
            seen = Some(loss.clone().without_autodiff());
            let grads = GradientsParams::from_grads(loss.backward(), &replica).to_device(&devices[0], &self.model);
            sum.accumulate(&self.model, grads);
        }
        self.model = self.optimizer.step(1e-2, self.model.clone(), sum.grads());
        seen.expect("there is a device").try_into_scalar::<f32>().map_err(|error| error.to_string())
    }
}

/// Prints its progress; returns the reason of its end.
fn train_for_ever(devices: &[Device]) -> String {
    let mut training = Training::new(&devices[0]);
    for i in 0.. {
        if let Err(error) = training.step(devices, i) {
            return error;
        }
        println!("{i}");
    }
    unreachable!("it is ended by somebody else")
}

/// The resources of programs on a node, in its status.
fn held(status: &Value) -> Result<u64> {
    let total = |part: &str| status[part]["total"].as_u64().ok_or_else(|| format!("no {part} in {status}"));
    Ok(total("resources")? + total("pieces")? + total("sessions")?)
}

fn killed() -> Result<()> {
    let nodes = Nodes::start(2)?;
    let mut program = Command::new(std::env::current_exe()?)
        .args(["--train", &nodes.door])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let mut lines = BufReader::new(program.stdout.take().ok_or("no pipe")?).lines();
    let far = lines.by_ref().map_while(std::result::Result::ok).any(|line| line == "20");
    let during = nodes.status()?;
    program.kill()?;
    program.wait()?;
    if !far || during.len() != 2 {
        return Err("the program did not train on two nodes".into());
    }
    for status in &during {
        if held(status)? == 0 {
            return Err(format!("the program had nothing on {}", status["task"]).into());
        }
    }
    let start = Instant::now();
    loop {
        let left: Vec<u64> = nodes.status()?.iter().map(held).collect::<Result<_>>()?;
        if left == [0, 0] {
            break;
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("of its variables, pieces and sessions {left:?} are left").into());
        }
    }
    // The door still works.
    let devices = mesh(&nodes.door)?;
    let mut training = Training::new(&devices[0]);
    for i in 0..3 {
        training.step(&devices, i)?;
    }
    Ok(())
}

fn lost() -> Result<()> {
    let mut nodes = Nodes::start(2)?;
    let devices = mesh(&nodes.door)?;
    let kept = input([4, 4], 5, &devices[0]);
    let gone = input([4, 4], 5, &devices[1]);
    let mut training = Training::new(&devices[0]);
    for i in 0..20 {
        training.step(&devices, i)?;
    }
    nodes.kill(1)?;
    let error = (20..1000).find_map(|i| training.step(&devices, i).err()).ok_or("training goes on without a task")?;
    if !error.contains("worker/1") && !error.contains("/job:worker/task:1") {
        return Err(format!("the error of a training step does not name the task: {error}").into());
    }
    match gone.try_into_data() {
        Ok(_) => return Err("a tensor of a task that is gone can be read".into()),
        Err(error) if error.to_string().contains("task:1") || error.to_string().contains("worker/1") => {}
        Err(error) => return Err(format!("the error of a read does not name the task: {error}").into()),
    }
    // Tensors on the other task are unchanged, and the program continues there.
    let numbers = |device: &Device, kept: Tensor<2>| {
        let mut numbers = Numbers::default();
        numbers.push("kept", kept);
        let device = device.clone().autodiff();
        train(
            &mut numbers,
            fixed(Mlp::new([12, 16, 10], &device), 1),
            AdamConfig::new().init(),
            1e-2,
            5,
            |model, i| {
                let (x, y) = batch(8, 12, i, &device);
                CrossEntropyLossConfig::new().init(&device).forward(model.forward(x), y)
            },
        );
        numbers
    };
    let flex = Device::flex();
    let (off, place) = numbers(&devices[0], kept).compare(&numbers(&flex, input([4, 4], 5, &flex)))?;
    if off > TOLERANCE {
        return Err(format!("after the loss, {place}").into());
    }
    Ok(())
}

fn too_large() -> Result<()> {
    const MEGABYTE: usize = 1_000_000;
    let nodes = Nodes::start_with(1, &["--memory", "200MB"])?;
    let device = mesh(&nodes.door)?.remove(0);
    let before = nodes.resident(0);
    let ones = |megabytes: usize| Tensor::<1>::from_data(&vec![1f32; megabytes * MEGABYTE / 4][..], &device);
    let sum: f32 = ones(40).sum().try_into_scalar().map_err(|error| error.to_string())?;
    if sum != 1e7 {
        return Err(format!("the sum of ten million ones is {sum}").into());
    }
    let refused = match ones(400).sum().try_into_scalar::<f32>() {
        Ok(_) => return Err("400 MB are taken on a node that may use 200 MB".into()),
        Err(error) => error.to_string(),
    };
    if !refused.contains("is refused: this takes 800 MB, but the process has") {
        return Err(format!("the error does not say what there is no memory for: {refused}").into());
    }
    if let (Some(before), Some(after)) = (before, nodes.resident(0))
        && after > before + 200 * MEGABYTE as u64
    {
        return Err(format!("the node grew by {} bytes", after - before).into());
    }
    // Another program is served.
    let program = Command::new(std::env::current_exe()?).args(["--sum", &nodes.door]).output()?;
    if !program.status.success() {
        return Err(String::from_utf8_lossy(&program.stderr).trim().into());
    }
    Ok(())
}
