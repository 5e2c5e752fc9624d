//! `meshtf doctor`: why nodes do not meet, and what is missing on this machine.

mod finding;
mod interfaces;
mod machine;
mod peers;
mod stages;

use std::path::PathBuf;

use serde_json::json;

use self::finding::{Finding, Level, summary};
use super::paint::Paint;
use super::reach::MeshArgs;
use super::{Exit, Outcome, Trouble, memory, output};
use crate::device::Task;
use crate::exec::{BackendChoice, gpus};
use crate::mesh::{home, remembered_ports};

/// Find out why nodes do not meet, and what this machine lacks
///
/// Checks in order the mesh key, the folders, ports, interfaces, multicast, every peer that is configured, announced or
/// remembered, the nodes that answer, GPUs, memory and the data folder. Each finding that is not well has its remedy.
/// Run it on both of two machines that do not meet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf doctor
  meshtf doctor --peer 10.0.0.7:4001          can that node be reached from here?
  meshtf doctor --listen 0.0.0.0:4001         could a node listen there?
  meshtf doctor --quick --expect worker/0     as the health check of a service
  meshtf doctor --json | jq '.findings[] | select(.level == \"problem\")'

The exit code is 0 if there is no problem, and 1 if there is one. Warnings do not count.")]
pub struct Args {
    /// Leave out what takes longer than a second or two: multicast, mDNS, GPUs
    #[arg(long)]
    quick: bool,
    /// Task that must be up; repeatable, or separated by commas
    #[arg(long, value_name = "TASK", value_delimiter = ',')]
    expect: Vec<Task>,
    /// Check whether a node can listen on this address; repeatable
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<String>,
    /// Check this folder for --data
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print an object: ok, findings (check, level, what, remedy)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    mesh: MeshArgs,
}

pub(super) async fn doctor(args: Args) -> Outcome {
    let findings = examine(&args).await?;
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    if args.json {
        let list: Vec<_> = findings.iter().map(Finding::json).collect();
        output::json_value(&json!({ "ok": worst < Level::Problem, "findings": list }))?;
    } else {
        let paint = Paint::stdout();
        for finding in &findings {
            output::line(&finding.shown(paint))?;
        }
        let tone = if worst < Level::Warning { Level::Ok.tone() } else { worst.tone() };
        output::line(&paint.tone(tone, summary(&findings)))?;
    }
    Ok(if worst < Level::Problem { Exit::Ok } else { Exit::Differs })
}

/// All findings, in the order of the checks.
async fn examine(args: &Args) -> Result<Vec<Finding>, Trouble> {
    let home = home().map_err(|error| Trouble::input(error.to_string()))?;
    let key = machine::key(&home, &args.mesh.mesh, args.mesh.open);
    let has_key = key.level < Level::Problem;
    let mut findings = vec![key, machine::folder("home", &home), machine::folder("registry", &home.join("run"))];

    let interfaces = match interfaces::list() {
        Ok(all) => all,
        Err(error) => {
            findings.push(Finding::warning("interfaces", format!("they cannot be listed: {error}"), "ip address"));
            Vec::new()
        }
    };
    let remembered = remembered_ports(&home, &args.mesh.mesh).unwrap_or_default();
    findings.extend(machine::ports(&args.listen, &remembered, &interfaces));
    findings.push(machine::interfaces(&interfaces));
    if !args.quick && !args.mesh.no_mdns {
        let looked = tokio::task::spawn_blocking(move || interfaces::multicast(&interfaces)).await;
        findings.extend(looked.unwrap_or_default());
    }

    if has_key {
        match peers::look(&args.mesh, args.quick).await {
            Ok(seen) => {
                findings.extend(stages::lines(&seen));
                findings.extend(peers::judge(&args.mesh.mesh, &seen, &args.expect));
            }
            Err(why) => findings.push(Finding::problem("peers", why, "See the problems above.")),
        }
    } else {
        findings.push(Finding::note(
            "peers",
            "not looked for: this machine has no key to show",
            "First the key, above.",
        ));
    }

    if !args.quick {
        let found = tokio::task::spawn_blocking(|| gpus(BackendChoice::Auto)).await.unwrap_or_default();
        let names: Vec<String> = found.into_iter().map(|gpu| gpu.description).collect();
        findings.push(machine::gpus(&names, &machine::graphics_files()));
    }
    findings.extend(machine::memory(memory::default_budget(), crate::descriptors::limit()));
    findings.push(machine::folder("data", &args.data.clone().unwrap_or_else(|| home.join("data"))));
    Ok(findings)
}
