//! Words that a shell completes while a command line is typed: tasks and devices of the nodes that are up, runs, ops. The scripts
//! of `meshtf completions` start this command with [`VARIABLE`] set, and with the words so far.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use meshtf::Client;
use meshtf::node::Node;
use meshtf::protocol::Cluster;
use meshtf_graph::op;

use super::Cli;
use super::reach::MeshArgs;
use super::runs::known;

/// The variable of the environment that has the name of the shell.
pub(super) const VARIABLE: &str = "MESHTF_COMPLETE";
/// How long a completion waits for nodes in all, for the first one, and for those that it announces.
const WITHIN: Duration = Duration::from_millis(950);
const FOUND_WITHIN: Duration = Duration::from_millis(650);
const ALL_WITHIN: Duration = Duration::from_millis(150);

/// Answers a shell; `None` if no shell asks.
pub(super) fn answer() -> Option<ExitCode> {
    let folder = std::env::current_dir().ok();
    let asked = CompleteEnv::with_factory(Cli::command).var(VARIABLE);
    match asked.try_complete(std::env::args_os(), folder.as_deref()) {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        // A message would be in the way of the command line.
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// The tasks that are up.
pub(super) fn tasks() -> ArgValueCompleter {
    of_cluster(|cluster| {
        let mut tasks: Vec<_> = cluster.tasks().cloned().collect();
        tasks.sort_unstable();
        tasks.iter().map(|task| task.short()).collect()
    })
}

/// The kinds and numbers of devices that there are on tasks.
pub(super) fn devices() -> ArgValueCompleter {
    of_cluster(|cluster| {
        let short = |name: &str| name.rsplit_once("device:").map(|(_, device)| device.to_lowercase());
        let all: BTreeSet<String> = cluster.facts().iter().filter_map(|facts| short(&facts.name.to_string())).collect();
        all.into_iter().collect()
    })
}

/// Names of a cluster, which are asked for only if the word is no flag.
fn of_cluster(names: fn(&Cluster) -> Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let current = current.to_string_lossy();
        if current.starts_with('-') {
            return Vec::new();
        }
        let up = cluster().map(|cluster| names(&cluster)).unwrap_or_default();
        up.into_iter().filter(|name| name.starts_with(&*current)).map(CompletionCandidate::new).collect()
    })
}

/// The ids of the newest runs.
pub(super) fn runs() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let current = current.to_string_lossy();
        if current.starts_with('-') {
            return Vec::new();
        }
        let last = ("last".to_owned(), "the newest".to_owned());
        let all = std::iter::once(last).chain(known()).filter(|(id, _)| id.starts_with(&*current));
        all.map(|(id, about)| CompletionCandidate::new(id).help(Some(about.into()))).collect()
    })
}

/// The names of ops.
pub(super) fn ops() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let current = current.to_string_lossy().to_lowercase();
        let names = op::all().into_iter().map(|op| op.name);
        names.filter(|name| name.to_lowercase().starts_with(&current)).map(CompletionCandidate::new).collect()
    })
}

/// The flags of a command line by which a mesh is reached.
#[derive(Debug, Parser)]
struct Reaching {
    #[command(flatten)]
    mesh: MeshArgs,
}

/// Reads them from the words so far, of which others may be incomplete.
fn reaching(words: impl Iterator<Item = String>) -> Option<MeshArgs> {
    let (mut own, mut words) = (vec!["meshtf".to_owned()], words.peekable());
    while let Some(word) = words.next() {
        match &*word {
            "--mesh" | "--peer" => {
                own.extend(words.next_if(|next| !next.is_empty()).map(|next| format!("{word}={next}")))
            }
            "--open" | "--no-mdns" | "--tcp-only" => own.push(word),
            other if other.starts_with("--mesh=") || other.starts_with("--peer=") => own.push(word),
            _ => {}
        }
    }
    Reaching::try_parse_from(own).ok().map(|reaching| reaching.mesh)
}

/// The nodes that are up, as far as they are found in time.
fn cluster() -> Option<Arc<Cluster>> {
    let mesh = reaching(
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).skip_while(|word| word != "--").skip(1),
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().ok()?;
    let found = runtime.block_on(async {
        let find = async {
            let node = Node::start(mesh.client()).await.ok()?;
            if node.wait_for(&[], FOUND_WITHIN).await {
                node.wait_for_all(ALL_WITHIN).await;
            }
            let cluster = node.cluster();
            node.close().await;
            Some(cluster)
        };
        tokio::time::timeout(WITHIN, find).await.ok()?
    });
    runtime.shutdown_background();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mesh_of_the_words_so_far_is_asked() {
        let of = |line: &str| reaching(line.split(' ').map(str::to_owned)).unwrap();
        let mesh = of("meshtf submit g.json --mesh lab --peer 10.0.0.7:4001 --open --steps --target ");
        assert_eq!((&*mesh.mesh, &mesh.peer[..], mesh.open), ("lab", &["10.0.0.7:4001".to_owned()][..], true));
        let mesh = of("meshtf submit --mesh=lab --tcp-only --target=wor --peer ");
        assert_eq!((&*mesh.mesh, mesh.tcp_only, mesh.no_mdns), ("lab", true, false));
    }

    #[test]
    fn ops_are_found_in_any_case() {
        let names: Vec<String> = ops()
            .complete(OsStr::new("matmu"))
            .into_iter()
            .map(|one| one.get_value().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["MatMul"]);
        // Nobody is asked for a flag.
        assert!(tasks().complete(OsStr::new("--")).is_empty() && runs().complete(OsStr::new("-")).is_empty());
    }
}
