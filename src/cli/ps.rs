//! `meshtf ps`: the tasks that are up, their devices, addresses and uptime.

mod wide;

use std::collections::BTreeMap;
use std::time::Duration;

use meshtf::Client;
use meshtf::diagnosis::{conclude_at_last, is_expecting, shown_place};
use meshtf::mesh::{Attempt, Beyond, Release, Speaks, is_loopback, may_be_reached, unexplained};
use meshtf::protocol::status::{Identity, PeerStatus};
use meshtf::protocol::{Cluster, Member, Peer, VERSION};
use meshtf_tensor::device::{DeviceName, Task};
use serde_json::json;

use super::paint::{Paint, Tone, complain, mention};
use super::reach::{Deadline, MeshArgs, shown};
use super::table::{duration, place, short_peer};
use super::{Exit, Outcome, output, table};

/// The list counts as complete when it has not changed for this long.
const SETTLED_AFTER: Duration = Duration::from_millis(300);
/// How long a node may take to report its version.
const ANSWER_LIMIT: Duration = Duration::from_millis(1500);
/// How long peers may take to answer that are given or hearsay and are not tasks yet: longer than a connection takes to fail.
const TRIED_WITHIN: Duration = Duration::from_secs(2);
/// The interval of the checks meanwhile.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// List the tasks that are up
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf ps
  meshtf ps --wide      memory and rates of devices, round trips of links
  meshtf ps --json | jq -r '.[].task // empty'
  meshtf ps --peer 10.0.0.7:4001

INDEX is the index of a device for burn programs that connect now (`--burn`).
VERSION is the release of the node's meshtf. A node that speaks another version
of the protocol is listed without its task, with its release and protocol. One
that only other nodes reach, through a firewall, is listed with their tasks. A
spare (`meshtf node --spare`) has no task until one is lost.
Below the list are pairs of tasks that cannot reach each other: steps that need
both fail.")]
pub struct Args {
    /// Print JSON: a list of objects with task, peer, incarnation, version, protocol, addresses, devices, up_ms,
    /// since_unix_ms, cannot_reach; through for a node that only those tasks reach; spare for one that waits for a lost task
    #[arg(long)]
    json: bool,
    /// Also list devices with their memory and the rates that they measured (multiply-adds, bytes of additions in the processor's
    /// caches, bytes of weights in the caches and in memory), and links with their round trips and the rates at which they
    /// carried large values
    #[arg(long, conflicts_with = "json")]
    wide: bool,
    #[command(flatten)]
    mesh: MeshArgs,
}

pub(super) async fn ps(args: Args) -> Outcome {
    let node = args.mesh.reach(&[], Deadline::after(None)).await?;
    // Nodes announce each other, so the list fills within milliseconds.
    let mut cluster = node.cluster();
    let mut still_since = tokio::time::Instant::now();
    while still_since.elapsed() < SETTLED_AFTER {
        tokio::time::sleep(LOOKS_EVERY).await;
        let now = node.cluster();
        if now != cluster {
            cluster = now;
            still_since = tokio::time::Instant::now();
        }
    }
    // The reason why a peer is not met is known when the attempt has ended: behind a firewall that drops it, that takes a
    // while.
    let began = tokio::time::Instant::now();
    let is_open = || {
        let tried = node.mesh().tried();
        is_expecting(&tried) || may_be_reached(&node.mesh().beyond(), &tried)
    };
    while began.elapsed() < TRIED_WITHIN && is_open() {
        tokio::time::sleep(LOOKS_EVERY).await;
    }
    let cluster = node.cluster();
    let statuses = node.statuses(ANSWER_LIMIT).await.into_iter().filter_map(|(task, told)| Some((task, told.ok()?)));
    let (mut told, mut spares, mut links) = (Told::new(), Spares::new(), wide::Links::new());
    for (task, status) in statuses {
        told.insert(task.clone(), status.identity);
        let of_node = status.peers.items.iter().filter(|peer| peer.is_spare);
        spares.extend(of_node.map(|peer| (peer.peer.clone(), peer.clone())));
        links.insert(task, status.peers.items);
    }
    let beyond = node.mesh().beyond();
    let attempts = unexplained(&beyond, node.mesh().tried());
    let (missed, others) = (conclude_at_last(&attempts), others(&attempts));
    node.close().await;
    let members: Vec<&Member> = cluster.members().collect();
    if args.json {
        let members = members.iter().map(|member| as_json(member, &told, &cluster));
        let all = members.chain(beyond.iter().map(beyond_as_json)).chain(others.iter().map(other_as_json));
        output::json_value(&all.chain(spares.values().map(spare_as_json)).collect())?;
    } else {
        let paint = Paint::stdout();
        output::line(&members_table(paint, &members, &told, (&beyond, &others, &spares), &cluster))?;
        for (from, to) in cluster.apart() {
            let what = format!("{} cannot reach {}, though both are up", from.short(), to.short());
            output::line(&paint.tone(Tone::Bad, what))?;
        }
        if args.wide {
            output::line(&format!("\n{}", wide::tables(paint, &members, &links)))?;
        }
    }
    for conclusion in &missed {
        // A peer was met, so another mesh on the same network is no problem.
        match conclusion.may_be_fine {
            true => mention(shown(conclusion, Paint::stderr())),
            false => complain(shown(conclusion, Paint::stderr())),
        }
    }
    Ok(Exit::Ok)
}

/// The identities that nodes reported, by their tasks: the version of meshtf, and the time since the start by the node's own
/// clock.
type Told = BTreeMap<Task, Identity>;

/// The spares that nodes have a link with, as one of these sees them.
type Spares = BTreeMap<Peer, PeerStatus>;

/// The address of a node of another version of the protocol, and its version of meshtf.
type Other = (String, Speaks);

/// All such nodes that were seen, each once.
fn others(attempts: &[Attempt]) -> Vec<Other> {
    let mut others: Vec<Other> =
        attempts.iter().filter_map(|attempt| Some((shown_place(attempt), attempt.speaks?))).collect();
    others.sort_unstable();
    others.dedup();
    others
}

/// An object with the keys of a member that can be known.
fn other_as_json((place, speaks): &Other) -> serde_json::Value {
    json!({
        "task": null,
        "version": speaks.release.as_ref().map(Release::as_str),
        "protocol": speaks.protocol,
        "addresses": [place],
    })
}

/// An object with the keys of a node that others reach that can be known.
fn beyond_as_json(one: &Beyond) -> serde_json::Value {
    json!({
        "task": one.task.to_string(),
        "peer": one.peer.as_str(),
        "version": null,
        "addresses": one.addresses,
        "through": one.through.iter().map(Task::to_string).collect::<Vec<_>>(),
    })
}

/// An object with the keys of a spare that can be known.
fn spare_as_json(spare: &PeerStatus) -> serde_json::Value {
    json!({ "task": null, "spare": true, "peer": spare.peer.as_str(), "version": null, "addresses": [spare.address] })
}

fn as_json(member: &Member, told: &Told, cluster: &Cluster) -> serde_json::Value {
    let out_of_reach = cluster.apart().filter(|(from, _)| *from == member.task);
    let cannot_reach: Vec<String> = out_of_reach.map(|(_, to)| to.to_string()).collect();
    let devices: Vec<_> = member
        .devices
        .iter()
        .map(|device| {
            let streamed = device.capacity.rates.and_then(|rates| rates.streamed);
            json!({
                "index": index(&device.name, cluster),
                "name": device.name.to_string(),
                "backend": device.backend,
                "description": device.description,
                "cores": device.capacity.cores,
                "memory_bytes": device.capacity.memory.map(|memory| memory.total),
                "free_bytes": device.capacity.memory.map(|memory| memory.free),
                "multiply_adds_per_second": device.capacity.rates.map(|rates| rates.multiply_adds),
                "bytes_per_second": device.capacity.rates.map(|rates| rates.bytes),
                "kept_bytes_per_second": streamed.map(|streamed| streamed.kept),
                "streamed_bytes_per_second": streamed.map(|streamed| streamed.memory),
            })
        })
        .collect();
    json!({
        "task": member.task.to_string(),
        "peer": member.peer.as_str(),
        "incarnation": member.incarnation.to_string(),
        "version": told.get(&member.task).map(|identity| &identity.version),
        "protocol": VERSION,
        "addresses": addresses(member),
        "devices": devices,
        "up_ms": told.get(&member.task).map(|identity| identity.up_ms),
        "since_unix_ms": member.since_unix_ms,
        "cannot_reach": cannot_reach,
    })
}

/// The index by which a burn program that connects now knows a device.
fn index(device: &DeviceName, cluster: &Cluster) -> Option<usize> {
    cluster.devices().iter().position(|name| name == device)
}

fn members_table(
    paint: Paint,
    members: &[&Member],
    told: &Told,
    (beyond, others, spares): (&[Beyond], &[Other], &Spares),
    cluster: &Cluster,
) -> String {
    let row = |member: &&Member| {
        let devices: Vec<String> = member
            .devices
            .iter()
            .map(|device| {
                format!("{}:{} {} ({})", device.name.kind.name(), device.name.index, device.backend, device.description)
            })
            .collect();
        let (identity, unknown) = (told.get(&member.task), || "?".to_owned());
        let indices = member.devices.iter().filter_map(|device| index(&device.name, cluster));
        table::TableRow::from(vec![
            member.task.short(),
            indices.map(|index| index.to_string()).collect::<Vec<_>>().join("\n"),
            devices.join("\n"),
            addresses(member).join("\n"),
            identity.map_or_else(unknown, |identity| duration(identity.up_ms / 1000)),
            identity.map_or_else(unknown, |identity| identity.version.clone()),
            short_peer(member.peer.as_str()),
        ])
    };
    let through = |one: &Beyond| {
        let how = format!("reached through {}", one.shown_through());
        let cells = [&one.task.short(), "", "", &how, "?", "?", &short_peer(one.peer.as_str())].map(str::to_owned);
        table::TableRow::from(cells.to_vec())
    };
    let other = |(place, speaks): &Other| {
        let release = speaks.release.as_ref().map_or("another", Release::as_str);
        let version = format!("{release}, protocol {} (here {VERSION})", speaks.protocol);
        let cells = ["?", "", "", place, "", &version, ""].map(str::to_owned);
        table::TableRow::toned(Tone::Warning, cells.to_vec())
    };
    let spare = |spare: &PeerStatus| {
        let up = duration(spare.up_ms / 1000);
        let cells = ["spare", "", "", place(&spare.address), &up, "?", &short_peer(spare.peer.as_str())];
        table::TableRow::from(cells.map(str::to_owned).to_vec())
    };
    let all = members.iter().map(row).chain(beyond.iter().map(through));
    let header = ["TASK", "INDEX", "DEVICES", "ADDRESSES", "UP", "VERSION", "PEER"];
    table::table(paint, &header, all.chain(others.iter().map(other)).chain(spares.values().map(spare)))
}

/// The addresses to dial it at. Loopback addresses are left out if there are others: whether they are known depends on
/// how the node was found, and the list should not vary with that.
fn addresses(member: &Member) -> Vec<&str> {
    let is_loopback = |address: &str| address.parse().is_ok_and(|address| is_loopback(&address));
    let (loopback, others): (Vec<&str>, Vec<&str>) =
        member.addresses.iter().map(String::as_str).partition(|address| is_loopback(address));
    if others.is_empty() { loopback } else { others }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf::mesh::{Source, Verdict, parse_address};
    use meshtf::protocol::Incarnation;

    #[test]
    fn nodes_are_listed_with_their_versions_and_those_of_another_protocol_too() {
        let task = Task::new("local", 0);
        let cluster = Cluster::new([Member {
            task: task.clone(),
            peer: Peer::new("p"),
            incarnation: Incarnation(1),
            devices: Vec::new(),
            addresses: Vec::new(),
            since_unix_ms: 0,
        }]);
        let members: Vec<&Member> = cluster.members().collect();
        // The member started in 1970 by its clock, and the node has measured its own time since then.
        let identity = Identity { version: "0.9.1".to_owned(), up_ms: 3_723_000, ..Identity::default() };
        let told = Told::from([(task, identity)]);
        let attempt = |source, speaks| Attempt {
            source,
            place: String::new(),
            address: Some(parse_address("10.0.0.7:4001").unwrap()),
            verdict: Verdict::OtherVersion,
            outcome: String::new(),
            speaks,
            peer: None,
        };
        let speaks = Some(Speaks { protocol: 900, release: Release::new("2.0.0") });
        let nameless = Some(Speaks { protocol: 1, release: None });
        let seen = [(Source::Lan, speaks), (Source::Configured, speaks), (Source::Lan, None), (Source::Lan, nameless)];
        let others = others(&seen.map(|(source, speaks)| attempt(source, speaks)));

        let table = members_table(Paint::OFF, &members, &told, (&[], &others, &Spares::new()), &cluster);
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!((rows.len(), rows[1][0]), (4, "local/0"), "{table}");
        assert!(rows[1].contains(&"0.9.1") && table.contains(" 1 h 2 min "), "{table}");
        let here = format!("{VERSION})");
        assert_eq!(rows[2], ["?", "10.0.0.7:4001", "another,", "protocol", "1", "(here", &here]);
        assert_eq!(rows[3], ["?", "10.0.0.7:4001", "2.0.0,", "protocol", "900", "(here", &here]);

        let object = as_json(members[0], &told, &cluster);
        assert_eq!((&object["version"], &object["protocol"]), (&json!("0.9.1"), &json!(VERSION)));
        assert_eq!(object["up_ms"], json!(3_723_000));
        let silent = members_table(Paint::OFF, &members, &Told::default(), (&[], &[], &Spares::new()), &cluster);
        assert!(silent.lines().nth(1).unwrap().split_whitespace().filter(|cell| *cell == "?").count() == 2, "{silent}");
        let objects: Vec<serde_json::Value> = others.iter().map(other_as_json).collect();
        let want = |version: Option<&str>, protocol: u16| json!({ "task": null, "version": version, "protocol": protocol, "addresses": ["10.0.0.7:4001"] });
        assert_eq!(objects, [want(None, 1), want(Some("2.0.0"), 900)]);
    }
}
