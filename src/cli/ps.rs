//! `meshtf ps`: the tasks that are up, their devices, addresses and uptime.

use std::time::{Duration, SystemTime};

use serde_json::json;

use super::diagnosis::conclude;
use super::reach::{Deadline, MeshArgs};
use super::table::{duration, short_peer};
use super::{Exit, Outcome, output, table};
use crate::device::DeviceName;
use crate::mesh::is_loopback;
use crate::protocol::{Cluster, Member};

/// The list counts as complete when it has not changed for this long.
const SETTLED_AFTER: Duration = Duration::from_millis(300);

/// List the tasks that are up
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf ps
  meshtf ps --json | jq -r '.[].task'
  meshtf ps --peer 10.0.0.7:4001

INDEX is that of a device for burn programs that connect now (`meshtf node --burn`).
Below the list are tasks that cannot reach each other, if there are any: steps
that need both fail.")]
pub struct Args {
    /// Print a list of objects: task, peer, incarnation, addresses, devices, since, cannot_reach
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    mesh: MeshArgs,
}

pub(super) async fn ps(args: Args) -> Outcome {
    let node = args.mesh.reach(&[], Deadline::after(None)).await?;
    // Nodes announce each other, so the list fills within milliseconds.
    let mut cluster = node.cluster();
    let mut still_since = tokio::time::Instant::now();
    while still_since.elapsed() < SETTLED_AFTER {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = node.cluster();
        if now != cluster {
            cluster = now;
            still_since = tokio::time::Instant::now();
        }
    }
    let missed = conclude(&node.mesh().tried());
    node.close().await;
    let members: Vec<&Member> = cluster.members().collect();
    if args.json {
        output::json_value(&members.iter().map(|member| as_json(member, &cluster)).collect())?;
    } else {
        output::line(&members_table(&members, &cluster))?;
        for (from, to) in cluster.apart() {
            output::line(&format!("{} cannot reach {}, though both are up", from.short(), to.short()))?;
        }
    }
    missed.iter().for_each(|conclusion| eprintln!("meshtf: {conclusion}"));
    Ok(Exit::Ok)
}

fn as_json(member: &Member, cluster: &Cluster) -> serde_json::Value {
    let out_of_reach = cluster.apart().filter(|(from, _)| *from == member.task);
    let cannot_reach: Vec<String> = out_of_reach.map(|(_, to)| to.to_string()).collect();
    let devices: Vec<_> = member
        .devices
        .iter()
        .map(|device| {
            json!({
                "index": index(&device.name, cluster),
                "name": device.name.to_string(),
                "backend": device.backend,
                "description": device.description,
            })
        })
        .collect();
    json!({
        "task": member.task.to_string(),
        "peer": member.peer.as_str(),
        "incarnation": member.incarnation.to_string(),
        "addresses": addresses(member),
        "devices": devices,
        "since_unix_ms": member.since_unix_ms,
        "cannot_reach": cannot_reach,
    })
}

/// The index by which a burn program that connects now knows a device.
fn index(device: &DeviceName, cluster: &Cluster) -> Option<usize> {
    cluster.devices().iter().position(|name| name == device)
}

fn members_table(members: &[&Member], cluster: &Cluster) -> String {
    let row = |member: &&Member| {
        let devices: Vec<String> = member
            .devices
            .iter()
            .map(|device| {
                format!("{}:{} {} ({})", device.name.kind.name(), device.name.index, device.backend, device.description)
            })
            .collect();
        let indices = member.devices.iter().filter_map(|device| index(&device.name, cluster));
        vec![
            member.task.short(),
            indices.map(|index| index.to_string()).collect::<Vec<_>>().join("\n"),
            devices.join("\n"),
            addresses(member).join("\n"),
            up_for(member.since_unix_ms),
            short_peer(member.peer.as_str()),
        ]
    };
    table::table(&["TASK", "INDEX", "DEVICES", "ADDRESSES", "UP", "PEER"], members.iter().map(row))
}

/// The addresses to dial it at. Loopback addresses are left out if there are others: whether they are known depends on
/// how the node was found, and the list should not vary with that.
fn addresses(member: &Member) -> Vec<&str> {
    let is_loopback = |address: &str| address.parse().is_ok_and(|address| is_loopback(&address));
    let (loopback, others): (Vec<&str>, Vec<&str>) =
        member.addresses.iter().map(String::as_str).partition(|address| is_loopback(address));
    if others.is_empty() { loopback } else { others }
}

fn up_for(since_unix_ms: u64) -> String {
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(since_unix_ms);
    duration(SystemTime::now().duration_since(since).unwrap_or_default().as_secs())
}
