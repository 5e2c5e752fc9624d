//! The examination of a machine and its mesh: why nodes do not meet, and what is missing on this machine.
//!
//! Each check has a part that inspects, and a pure part that concludes. `meshtf doctor` prints the findings.

mod finding;
mod interfaces;
mod machine;
mod peers;
mod stages;

use std::path::PathBuf;

pub use self::finding::{Finding, Level};
#[doc(hidden)]
pub use self::finding::{duration, summary};
#[doc(hidden)]
pub use self::machine::{SERVICE_HOME, as_service};
use meshtf_engine::adapters::{BackendChoice, gpus};
use meshtf_tensor::device::Task;

use crate::mesh::{KeyError, MeshError, MeshKey, home, remembered_ports, running_at};
use crate::node::{NodeConfig, NodeError};

/// The checks to make.
///
/// ```
/// use meshtf::doctor::Examination;
/// use meshtf::{NodeConfig, Task};
///
/// // Whether ps/0 can be reached from here, without the checks that take long.
/// let node = NodeConfig { peers: vec!["ps.example.org:4001".into()], ..NodeConfig::default() };
/// let examination = Examination { node, expected: vec![Task::new("ps", 0)], quick: true };
/// ```
#[derive(Clone, Debug, Default)]
pub struct Examination {
    /// The node that is to run on this machine: its mesh, peers, addresses to listen on, folders. Its task is ignored: the
    /// examination joins as a client.
    pub node: NodeConfig,
    /// The tasks that must be up.
    pub expected: Vec<Task>,
    /// Leaves out the checks that take longer than a second or two: multicast, mDNS, GPUs.
    pub quick: bool,
}

/// Makes the checks, in this order: the mesh key, the folders, ports, interfaces, multicast, every peer that is configured,
/// announced or remembered, the nodes that answer, GPUs, memory and the data folder. A check that cannot be made is a finding.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use meshtf::NodeConfig;
/// use meshtf::doctor::{Examination, Level, examine};
///
/// # let folder = std::env::temp_dir().join(format!("meshtf-doctor-{}", std::process::id()));
/// let node = NodeConfig { open: true, mdns: false, home: Some(folder.clone()), ..NodeConfig::default() };
/// let findings = examine(&Examination { node, quick: true, ..Examination::default() }).await;
/// let key = findings.iter().find(|finding| finding.check == "key").unwrap();
/// assert_eq!(key.level, Level::Note, "the mesh is open: {}", key.what);
/// # let _ = std::fs::remove_dir_all(folder);
/// # });
/// ```
///
/// # Cancellation
/// Dropping the future ends the examination.
pub async fn examine(examination: &Examination) -> Vec<Finding> {
    let home = examination.node.home.clone().map_or_else(home, Ok);
    examine_at(examination, home).await
}

/// All findings, in the order of the checks.
async fn examine_at(examination: &Examination, home: Result<PathBuf, KeyError>) -> Vec<Finding> {
    let Examination { node, quick, .. } = examination;
    let (mesh, mut findings) = (&node.mesh, Vec::new());
    match &home {
        Ok(home) => {
            findings.push(machine::key(home, mesh, node.open));
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
    let remembered = home.as_ref().ok().and_then(|home| remembered_ports(home, mesh).ok());
    let own = home.as_ref().ok().and_then(|home| Some(running_at(home, mesh, &MeshKey::load(home, mesh).ok()?)));
    findings.extend(machine::ports(
        &node.listen,
        &remembered.unwrap_or_default(),
        &machine::sockets(&own.unwrap_or_default()),
        &interfaces,
    ));
    findings.push(machine::interfaces(&interfaces));
    if !quick && node.mdns {
        let looked = tokio::task::spawn_blocking(move || interfaces::multicast(&interfaces)).await;
        findings.extend(looked.unwrap_or_default());
    }

    if may_join {
        findings.extend(of_mesh(examination).await);
    } else {
        let what = "not looked for: without a key and a folder for it, this machine cannot join";
        findings.push(Finding::note("peers", what, "First the problem above."));
    }

    if !quick {
        let found = tokio::task::spawn_blocking(|| gpus(BackendChoice::Auto)).await.unwrap_or_default();
        let names: Vec<String> = found.into_iter().map(|gpu| gpu.description).collect();
        findings.push(machine::gpus(&names, &machine::graphics_files()));
    }
    findings.extend(machine::memory(crate::machine::default_budget(), crate::descriptors::limit()));
    let data = node.data.clone().or_else(|| home.ok().map(|home| home.join("data")));
    findings.extend(data.map(|data| machine::folder("data", &data)));
    findings
}

/// The findings on peers.
async fn of_mesh(examination: &Examination) -> Vec<Finding> {
    match peers::look(&examination.node, examination.quick).await {
        Ok(seen) => {
            let mut findings = stages::lines(&seen);
            findings.extend(peers::judge(&examination.node.mesh, &seen, &examination.expected));
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
    use super::*;

    fn quick(peers: &[&str], open: bool) -> Examination {
        let peers = peers.iter().map(|&peer| peer.to_owned()).collect();
        let node = NodeConfig { peers, open, mdns: false, ..NodeConfig::default() };
        Examination { node, quick: true, ..Examination::default() }
    }

    #[tokio::test]
    async fn a_user_without_a_home_is_told_with_all_else_that_was_checked() {
        let findings = examine_at(&quick(&[], false), Err(KeyError::NoHome)).await;
        let of = |check: &str| findings.iter().find(|finding| finding.check == check).map(|finding| finding.level);
        assert_eq!(of("home"), Some(Level::Problem), "{findings:?}");
        assert_eq!((of("peers"), of("key")), (Some(Level::Note), None), "{findings:?}");
        assert!(of("port").is_some() && of("memory").is_some(), "{findings:?}");
    }

    #[tokio::test]
    async fn an_address_that_is_none_is_to_be_corrected() {
        let folder = temp_dir::TempDir::new().unwrap();
        let findings = examine_at(&quick(&["nonsense"], true), Ok(folder.path().into())).await;
        let peers: Vec<&Finding> = findings.iter().filter(|finding| finding.check == "peers").collect();
        let remedy = peers[0].remedy.as_deref().unwrap();
        assert!(peers.len() == 1 && remedy.starts_with("Correct the address"), "{findings:?}");
    }
}
