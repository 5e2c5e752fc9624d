//! `meshtf doctor`: why nodes do not meet, and what is missing on this machine.

use std::path::PathBuf;

use meshtf_tensor::device::Task;
use serde_json::json;

use super::config::Found;
use super::paint::{Paint, Tone};
use super::reach::{MeshArgs, read_cluster_spec};
use super::{Exit, Outcome, output};
use crate::doctor::{Examination, Finding, Level, examine, summary};
use crate::node::NodeConfig;

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
    /// where they are not given [default: config.toml beside the keys, else /etc/meshtf/config.toml, if it exists]
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
    let findings = findings(&args).await;
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    if args.json {
        let list: Vec<_> = findings.iter().map(as_json).collect();
        output::json_value(&json!({ "ok": worst < Level::Problem, "findings": list }))?;
    } else {
        let paint = Paint::stdout();
        for finding in &findings {
            output::line(&shown(finding, paint))?;
        }
        let level = if worst < Level::Warning { Level::Ok } else { worst };
        output::line(&paint.tone(tone(level), summary(&findings)))?;
    }
    Ok(if worst < Level::Problem { Exit::Ok } else { Exit::Differs })
}

/// The findings on the command's own files, and those of the examination.
async fn findings(args: &Args) -> Vec<Finding> {
    let mut findings = vec![config(&args.found)];
    let cluster = match args.cluster.as_deref().map(read_cluster_spec).transpose() {
        Ok(cluster) => cluster,
        Err(trouble) => {
            findings.push(Finding::problem("cluster", trouble.to_string(), "Correct the file, or its name."));
            None
        }
    };
    let node = NodeConfig { cluster, listen: args.listen.clone(), data: args.data.clone(), ..args.mesh.client() };
    findings.extend(examine(&Examination { node, expected: args.expect.clone(), quick: args.quick }).await);
    findings
}

/// The configuration file of `meshtf node`.
fn config(found: &Found) -> Finding {
    match found {
        Found::Nowhere => Finding::ok("config", "no configuration file"),
        Found::Absent(path) => Finding::ok("config", format!("no configuration file: there is no {}", path.display())),
        Found::Read { path, flags } => {
            let flags = if flags.is_empty() { "nothing".to_owned() } else { flags.join(", ") };
            Finding::ok("config", format!("{} sets {flags}", path.display()))
        }
        Found::Wrong(why) => Finding::problem(
            "config",
            format!("a node would not start with its configuration file: {why}"),
            "Correct the file; `meshtf node --name local/0 --config /dev/null --print-config` prints one with every flag.",
        ),
    }
}

fn tone(level: Level) -> Tone {
    match level {
        Level::Ok => Tone::Good,
        Level::Note => Tone::Dim,
        Level::Warning => Tone::Warning,
        Level::Problem => Tone::Bad,
    }
}

/// As lines for people.
fn shown(finding: &Finding, paint: Paint) -> String {
    let level = paint.tone(tone(finding.level), format_args!("{:8}", finding.level.name()));
    let line = format!("{level} {:11} {}", finding.check, finding.what);
    match &finding.remedy {
        Some(remedy) => format!("{line}\n{:20} {}", "", paint.tone(Tone::Accent, format_args!("→ {remedy}"))),
        None => line,
    }
}

fn as_json(finding: &Finding) -> serde_json::Value {
    json!({ "check": finding.check, "level": finding.level.name(), "what": finding.what, "remedy": finding.remedy })
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

    #[test]
    fn the_configuration_file_is_told_with_what_it_sets() {
        let check = |found: Found, level: Level, part: &str, remedy: &str| {
            let finding = config(&found);
            let remedies = finding.remedy.as_deref().unwrap_or_default();
            assert!(finding.level == level && finding.what.contains(part) && remedies.contains(remedy), "{finding:?}");
        };
        let path = PathBuf::from("/h/config.toml");
        check(Found::Absent(path.clone()), Level::Ok, "no /h/config.toml", "");
        let flags = vec!["mesh".to_owned(), "peer".to_owned()];
        check(Found::Read { path, flags }, Level::Ok, "/h/config.toml sets mesh, peer", "");
        check(Found::Wrong("c: line 1".into()), Level::Problem, "c: line 1", "--print-config");
    }

    #[tokio::test]
    async fn a_cluster_file_that_is_not_there_is_told() {
        let line = "doctor --quick --open --no-mdns --cluster /no/such.json";
        let findings = findings(&Line::parse_from(line.split(' ')).args).await;
        let cluster = findings.iter().find(|finding| finding.check == "cluster").unwrap();
        assert!(cluster.level == Level::Problem && cluster.what.contains("/no/such.json"), "{findings:?}");
    }
}
