//! `meshtf doctor`: why nodes do not meet, and what is missing on this machine.

mod finding;
mod interfaces;
mod machine;
mod peers;
mod stages;

use std::path::PathBuf;

use self::finding::{Finding, Level, summary};
use meshtf_engine::adapters::{BackendChoice, gpus};
use meshtf_tensor::device::Task;
use serde_json::json;

use super::config::Found;
use super::paint::Paint;
use super::reach::{MeshArgs, read_cluster_spec};
use super::{Exit, Outcome, memory, output};
use crate::mesh::{KeyError, MeshError, MeshKey, home, remembered_ports, running_at};
use crate::node::NodeError;

/// Find out why nodes do not meet, and what this machine lacks
///
/// Checks in order the configuration file, the mesh key, the folders, ports, interfaces, multicast, every peer that is
/// configured, announced or remembered, the nodes that answer, GPUs, memory and the data folder. Each finding that is not well
/// has its remedy. Run it on both of two machines that do not meet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf doctor
  meshtf doctor --peer 10.0.0.7:4001          can that node be reached from here?
  meshtf doctor --listen 0.0.0.0:4001         could a node listen there?
  meshtf doctor --config /etc/meshtf/config.toml
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
    pub listen: Vec<String>,
    /// Check this folder for --data
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Try the addresses of this ClusterSpec, as for `meshtf node`
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// TOML file of `meshtf node`: it is checked, and its mesh, peer, listen, data, cluster, open, no-mdns and tcp-only are taken
    /// where they are not given [default: config.toml beside the keys, if it exists]
    #[arg(long, value_name = "FILE", env = "MESHTF_CONFIG")]
    config: Option<PathBuf>,
    /// The result of the search for that file.
    #[arg(skip)]
    pub found: Found,
    /// Print an object: ok, findings (check, level, what, remedy)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub mesh: MeshArgs,
}

pub(super) async fn doctor(args: Args) -> Outcome {
    let findings = examine(&args, home()).await;
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
async fn examine(args: &Args, home: Result<PathBuf, KeyError>) -> Vec<Finding> {
    let mut findings = vec![machine::config(&args.found)];
    match &home {
        Ok(home) => {
            findings.push(machine::key(home, &args.mesh.mesh, args.mesh.open));
            findings.push(machine::folder("home", home));
            findings.push(machine::folder("registry", &home.join("run")));
        }
        Err(error) => {
            findings.push(Finding::problem("home", error.to_string(), "export MESHTF_HOME=/path/of/a/folder"))
        }
    }
    let may_join = home.is_ok() && !findings.iter().any(|one| one.check == "key" && one.level == Level::Problem);

    let interfaces = match interfaces::list() {
        Ok(all) => all,
        Err(error) => {
            findings.push(Finding::warning("interfaces", format!("they cannot be listed: {error}"), "ip address"));
            Vec::new()
        }
    };
    let mesh = &args.mesh.mesh;
    let remembered = home.as_ref().ok().and_then(|home| remembered_ports(home, mesh).ok());
    let own = home.as_ref().ok().and_then(|home| Some(running_at(home, mesh, &MeshKey::load(home, mesh).ok()?)));
    findings.extend(machine::ports(
        &args.listen,
        &remembered.unwrap_or_default(),
        &machine::sockets(&own.unwrap_or_default()),
        &interfaces,
    ));
    findings.push(machine::interfaces(&interfaces));
    if !args.quick && !args.mesh.no_mdns {
        let looked = tokio::task::spawn_blocking(move || interfaces::multicast(&interfaces)).await;
        findings.extend(looked.unwrap_or_default());
    }

    if may_join {
        findings.extend(of_mesh(args).await);
    } else {
        let what = "not looked for: without a key and a folder for it, this machine cannot join";
        findings.push(Finding::note("peers", what, "First the problem above."));
    }

    if !args.quick {
        let found = tokio::task::spawn_blocking(|| gpus(BackendChoice::Auto)).await.unwrap_or_default();
        let names: Vec<String> = found.into_iter().map(|gpu| gpu.description).collect();
        findings.push(machine::gpus(&names, &machine::graphics_files()));
    }
    findings.extend(machine::memory(memory::default_budget(), crate::descriptors::limit()));
    let data = args.data.clone().or_else(|| home.ok().map(|home| home.join("data")));
    findings.extend(data.map(|data| machine::folder("data", &data)));
    findings
}

/// The findings on peers.
async fn of_mesh(args: &Args) -> Vec<Finding> {
    let cluster = match args.cluster.as_deref().map(read_cluster_spec).transpose() {
        Ok(cluster) => cluster,
        Err(trouble) => {
            return vec![Finding::problem("cluster", trouble.to_string(), "Correct the file, or its name.")];
        }
    };
    match peers::look(&args.mesh, cluster, args.quick).await {
        Ok(seen) => {
            let mut findings = stages::lines(&seen);
            findings.extend(peers::judge(&args.mesh.mesh, &seen, &args.expect));
            findings
        }
        Err(error) => vec![Finding::problem("peers", error.to_string(), not_joined(&error))],
    }
}

/// The remedy if this machine could not begin to search for peers.
fn not_joined(error: &NodeError) -> &'static str {
    match error {
        NodeError::Mesh(MeshError::Address { .. }) => {
            "Correct the address: it is of --peer, MESHTF_PEERS, `peer` in the configuration file, or --cluster."
        }
        _ => "`meshtf doctor -vv` logs what was tried.",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Line::parse_from(line.split(' ')).args
    }

    #[tokio::test]
    async fn a_user_without_a_home_is_told_with_all_else_that_was_checked() {
        let findings = examine(&args("doctor --quick --no-mdns"), Err(KeyError::NoHome)).await;
        let of = |check: &str| findings.iter().find(|finding| finding.check == check).map(|finding| finding.level);
        assert_eq!(of("home"), Some(Level::Problem), "{findings:?}");
        assert_eq!((of("peers"), of("key")), (Some(Level::Note), None), "{findings:?}");
        assert!(of("port").is_some() && of("memory").is_some(), "{findings:?}");
    }

    #[tokio::test]
    async fn an_address_that_is_none_is_to_be_corrected() {
        let folder = temp_dir::TempDir::new().unwrap();
        let findings =
            examine(&args("doctor --quick --no-mdns --open --peer nonsense"), Ok(folder.path().into())).await;
        let peers: Vec<&Finding> = findings.iter().filter(|finding| finding.check == "peers").collect();
        let remedy = peers[0].remedy.as_deref().unwrap();
        assert!(peers.len() == 1 && remedy.starts_with("Correct the address"), "{findings:?}");
    }

    #[tokio::test]
    async fn a_cluster_file_that_is_not_there_is_told() {
        let folder = temp_dir::TempDir::new().unwrap();
        let findings = examine(&args("doctor --quick --open --cluster /no/such.json"), Ok(folder.path().into())).await;
        let cluster = findings.iter().find(|finding| finding.check == "cluster").unwrap();
        assert!(cluster.level == Level::Problem && cluster.what.contains("/no/such.json"), "{findings:?}");
    }
}
