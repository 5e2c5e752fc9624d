//! `meshtf doctor`: why nodes do not meet, and what is missing on this machine.

use std::path::PathBuf;

use meshtf::doctor::{Examination, Finding, Level, examine, summary};
use meshtf::node::NodeConfig;
use meshtf_tensor::device::Task;
use serde_json::json;

use super::config::Found;
use super::os_error::in_words;
use super::paint::{Paint, Tone};
use super::reach::{MeshArgs, read_cluster_spec};
use super::{Exit, Outcome, complete, output};

/// Diagnose nodes that do not find each other
///
/// Checks in this order: the configuration file, the mesh key, folders, ports, interfaces, multicast, every peer that is
/// configured, announced or remembered, the nodes that answer, GPUs, memory and the data folder. Each warning and problem has a
/// remedy. If two machines do not find each other, run the command on both.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf doctor
  meshtf doctor --peer 10.0.0.7:4001          check the connection to a node
  meshtf doctor --listen 0.0.0.0:4001         check an address to listen on
  meshtf doctor --config /etc/meshtf/config.toml
  meshtf doctor --quick --expect worker/0     as the health check of a service
  meshtf doctor --json | jq '.findings[] | select(.level == \"problem\")'

The exit code is 1 if there is a problem, and 0 otherwise. Warnings are no
problems.")]
pub struct Args {
    /// Skip the checks that take longer than two seconds: multicast, mDNS, GPUs
    #[arg(long)]
    quick: bool,
    /// Task that must be up; repeatable, or separated by commas
    #[arg(long, value_name = "TASK", value_delimiter = ',', add = complete::tasks())]
    expect: Vec<Task>,
    /// Address to listen on, HOST:PORT or a multiaddr, to be checked; repeatable, or separated by commas
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Folder of the files that graphs may save and restore, to be checked
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// File with a ClusterSpec, JSON from jobs to addresses, which are dialled
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// TOML file with values of flags by their names, for flags that are not given: the file of `meshtf node`, which is
    /// checked, too [default: config.toml next to the keys, else /etc/meshtf/config.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "MESHTF_CONFIG")]
    config: Option<PathBuf>,
    /// The result of the search for that file.
    #[arg(skip)]
    pub found: Found,
    /// Print JSON: an object with ok and findings (check, level, what, remedy)
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
    findings.iter_mut().for_each(|finding| finding.what = in_words(&finding.what).into_owned());
    findings
}

/// The configuration file of `meshtf node`.
fn config(found: &Found) -> Finding {
    match found {
        Found::Nowhere => Finding::ok("config", "no configuration file"),
        Found::Absent(path) => {
            Finding::ok("config", format!("no configuration file: {} does not exist", path.display()))
        }
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
        _ => Tone::Bad,
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
        check(Found::Absent(path.clone()), Level::Ok, "/h/config.toml does not exist", "");
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
