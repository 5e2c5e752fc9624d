//! Runs burn programs on the mesh and on flex, and compares their results.
//!
//! `suite --door 127.0.0.1:3000 [--token TOKEN] [FILTER…]` uses the devices of the mesh, `--server 127.0.0.1:3001` those of
//! burn's own remote server, `--flex` flex itself. It runs the programs whose names contain one of the filters, and prints a
//! line for each. `--list` prints the names. `--numbers NAME` runs one program, and prints its numbers.

use std::process::{Command, ExitCode};
use std::time::Instant;

use burn::remote::RemoteHost;
use burn::tensor::Device;
use suite::program::{self, Program, run};
use suite::{examples, learner, losses, modules, parallel, signal, tensors, training};

fn main() -> ExitCode {
    match suite() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn programs() -> Vec<Program> {
    // The learner runs last: burn's own server has no all-reduce, and none of its sessions survives one.
    [
        training::programs(),
        parallel::programs(),
        modules::programs(),
        losses::programs(),
        tensors::programs(),
        signal::programs(),
        examples::programs(),
        learner::programs(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn suite() -> Result<bool, Box<dyn std::error::Error>> {
    let (mut devices, mut filters, mut token, mut door, mut numbers) = (None, Vec::new(), None, None, None);
    let mut words = std::env::args().skip(1);
    // The flags that name the devices, for another process with the same ones.
    let mut place = Vec::new();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} takes a value"));
        let mut placed = || value().inspect(|value| place.extend([word.clone(), value.clone()]));
        match word.as_str() {
            "--door" => door = Some(placed()?),
            "--token" => token = Some(placed()?),
            "--server" => devices = Some(RemoteHost::websocket(&format!("ws://{}", placed()?)).devices()?.into_vec()),
            "--flex" => {
                place.push(word);
                devices = Some(vec![Device::flex(); 2]);
            }
            "--numbers" => numbers = Some(value()?),
            "--list" => {
                programs().iter().for_each(|p| println!("{}", p.name));
                return Ok(true);
            }
            filter => filters.push(filter.to_owned()),
        }
    }
    if let Some(address) = door {
        let mut door = meshtf_burn::Mesh::at(&address);
        if let Some(token) = token {
            door = door.with_token(&token);
        }
        let mesh = door.reach()?;
        if numbers.is_none() {
            println!("{} devices: {}", mesh.names().len(), mesh.names().join(", "));
        }
        devices = Some(mesh.names().iter().map(|name| mesh.device(name)).collect::<Result<_, _>>()?);
    }
    let devices = devices.ok_or("name the devices: --door ADDRESS, --server ADDRESS or --flex")?;
    let two: Vec<Device> = devices.iter().cycle().take(2).cloned().collect();
    let flex = [Device::flex(), Device::flex()];

    program::keep_panics_quiet();
    if let Some(name) = numbers {
        let program = programs().into_iter().find(|program| program.name == name).ok_or("no program has this name")?;
        print!("{}", run(&program, &two)?.write());
        return Ok(true);
    }
    let itself = std::env::current_exe()?;
    let on_its_own = |program: &Program| {
        let mut command = Command::new(&itself);
        command.args(&place).args(["--numbers", &program.name]);
        command
    };
    let (mut passed, mut failed) = (0, Vec::new());
    for program in programs() {
        if !filters.is_empty() && !filters.iter().any(|f| program.name.contains(f.as_str())) {
            continue;
        }
        let start = Instant::now();
        let verdict = match run(&program, &flex) {
            Err(e) => Err(format!("on flex: {e}")),
            Ok(expected) => match program.may_hang() {
                true => program::attempt(&program, || on_its_own(&program)),
                false => run(&program, &two),
            }
            .and_then(|answer| {
                let (off, place) = answer.compare(&expected)?;
                if off > program.tolerance {
                    Err(format!("differs by {off:.1e}: {place}"))
                } else {
                    Ok((off, answer.count()))
                }
            }),
        };
        let seconds = start.elapsed().as_secs_f64();
        match verdict {
            Ok((off, count)) => {
                passed += 1;
                println!("ok      {:<44} {count:>6} numbers, off by {off:.0e}, {seconds:.1} s", program.name);
            }
            Err(e) => {
                println!("FAILED  {:<44} {e}", program.name);
                failed.push(program.name);
            }
        }
    }
    println!(
        "{passed} passed, {} failed{}",
        failed.len(),
        if failed.is_empty() { String::new() } else { format!(": {}", failed.join(", ")) }
    );
    if passed + failed.len() == 0 {
        return Err("no program has such a name".into());
    }
    Ok(failed.is_empty())
}
