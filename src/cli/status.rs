//! `meshtf status`: the status of nodes.

use meshtf::Client;
use meshtf::node::Node;
use meshtf::protocol::status::{
    DeviceStatus, LimitStatus, LinkState, Listed, MemoryStatus, NodeStatus, PeerStatus, PieceStatus, ResourceStatus,
    SessionStatus,
};
use meshtf_tensor::PartialShape;
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Bytes;
use serde_json::{Value, json};

use super::paint::{Paint, Tone, complain, mention};
use super::reach::AskArgs;
use super::table::{TableRow, duration, place, rate, short_peer, table, taskless};
use super::{Exit, Outcome, Trouble, complete, output};

/// Show the state of nodes
///
/// Shows, for each node, the sessions whose master it is with their rate of steps, the pieces of graphs that it runs, its
/// devices, variables, queues and peers, and the use of its limits. Rates are averages over the last 0.25 s to 5 s. Long lists
/// are cut, with a note.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf status                       every node that is up
  meshtf status ps/0
  meshtf status --json | jq '.[] | {task, busy: [.devices[].busy_share]}'
  meshtf status worker/1 --json | jq '.[0].sessions.items[].steps_per_second'")]
pub struct Args {
    /// Task of the node [default: every node that is up]
    #[arg(value_name = "TASK", add = complete::tasks())]
    task: Option<Task>,
    /// Show every limit, those with less than 0.5 % in use, too
    #[arg(long)]
    limits: bool,
    /// Print JSON: a list with an object for each node
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    by: AskArgs,
}

pub(super) async fn status(args: Args) -> Outcome {
    let named: Vec<Task> = args.task.iter().cloned().collect();
    args.by.ask(&named, async |node: &Node| show(node, named.clone(), &args).await).await
}

async fn show(node: &Node, mut tasks: Vec<Task>, args: &Args) -> Outcome {
    let is_all = tasks.is_empty();
    if is_all {
        tasks = node.cluster().tasks().cloned().collect();
    }
    let asked = futures::future::join_all(tasks.iter().map(|task| node.status(Some(task)))).await;
    let mut troubles: Vec<Trouble> = Vec::new();
    let mut told = Vec::new();
    for (task, answer) in tasks.iter().zip(asked) {
        match answer {
            Ok(status) => told.push((task, status)),
            Err(failure) => troubles.push(failure.into()),
        }
    }
    if args.json {
        output::json_value(&told.iter().map(|(task, status)| node_json(task, status)).collect())?;
    } else {
        let text = |(task, status): &(&Task, NodeStatus)| node_text(Paint::stdout(), task, status, args.limits);
        let texts: Vec<String> = told.iter().map(text).collect();
        if !texts.is_empty() {
            output::line(&texts.join("\n\n\n"))?;
        }
    }
    if is_all {
        node.mesh().beyond().iter().for_each(|one| mention(one.unasked()));
    }
    // If one node does not answer, the others are still shown.
    let last = troubles.pop();
    troubles.iter().for_each(complain);
    last.map_or(Ok(Exit::Ok), Err)
}

fn node_text(paint: Paint, task: &Task, status: &NodeStatus, with_limits: bool) -> String {
    let identity = &status.identity;
    let mesh = identity.mesh.as_ref().map_or_else(String::new, |mesh| format!(" of mesh {mesh}"));
    let title = format!("{task}{mesh}, meshtf {}, up {}", identity.version, duration(identity.up_ms / 1000));
    let parts = [
        Some(paint.tone(Tone::Strong, title)),
        part(paint, &status.devices, &DEVICES, device_row),
        part(paint, &status.sessions, &SESSIONS, session_row),
        part(paint, &status.pieces, &PIECES, piece_row),
        part(paint, &status.resources, &RESOURCES, resource_row),
        part(paint, &status.peers, &PEERS, peer_row),
        limits(paint, &status.limits, with_limits),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
}

/// A table, and the number of omitted rows; nothing if there are no rows.
fn part<T, R: Into<TableRow>>(paint: Paint, listed: &Listed<T>, header: &[&str], row: fn(&T) -> R) -> Option<String> {
    if listed.items.is_empty() {
        return None;
    }
    let mut text = table(paint, header, listed.items.iter().map(row));
    if listed.left_out() > 0 {
        text.push_str(&format!("\nand {} more", listed.left_out()));
    }
    Some(text)
}

const DEVICES: [&str; 6] = ["DEVICE", "BACKEND", "BUSY", "PIECES", "WAITING", "MEMORY"];

fn device_row(device: &DeviceStatus) -> Vec<String> {
    let waiting = match device.parked_values {
        0 if device.parked_bytes == 0 => "-".to_owned(),
        values => format!("{values} values, {}", Bytes(device.parked_bytes as usize)),
    };
    let memory = match device.memory {
        None => "unknown".to_owned(),
        Some(MemoryStatus { used, free: None }) => Bytes(used as usize).to_string(),
        Some(MemoryStatus { used, free: Some(free) }) => {
            format!("{}, {} free", Bytes(used as usize), Bytes(free as usize))
        }
    };
    vec![
        format!("{}:{}", device.name.kind.name(), device.name.index),
        format!("{} ({})", device.backend, device.description),
        format!("{:.0} %", 100.0 * device.busy_share),
        device.pieces.to_string(),
        waiting,
        memory,
    ]
}

const SESSIONS: [&str; 7] = ["SESSION", "CLIENT", "AGE", "PLANS", "RUNS", "STEPS", "STEPS/S"];

fn session_row(session: &SessionStatus) -> Vec<String> {
    vec![
        session.id.to_string(),
        short_peer(session.client.as_str()),
        duration(session.age_ms / 1000),
        session.plans.to_string(),
        session.runs.to_string(),
        session.steps.to_string(),
        rate(session.steps_per_second),
    ]
}

const PIECES: [&str; 5] = ["PIECE OF SESSION", "NUMBER", "DEVICE", "NODES", "STEPS"];

fn piece_row(piece: &PieceStatus) -> Vec<String> {
    vec![
        piece.session.to_string(),
        piece.number.to_string(),
        format!("{}:{}", piece.device.kind.name(), piece.device.index),
        piece.nodes.to_string(),
        piece.steps.to_string(),
    ]
}

pub(super) const RESOURCES: [&str; 6] = ["RESOURCE", "KIND", "DEVICE", "TYPE", "HOLDS", "VERSION"];

pub(super) fn resource_row(resource: &ResourceStatus) -> Vec<String> {
    let mut name = resource.name.clone();
    if resource.container != meshtf_exec::DEFAULT_CONTAINER {
        name = format!("{} in container {}", name, resource.container);
    }
    if resource.is_isolated {
        name = format!("{name} (of session {} alone)", resource.session);
    }
    let types: Vec<&str> = resource.dtypes.iter().map(|dtype| dtype.name()).collect();
    let shape = match &resource.shape {
        PartialShape(None) => String::new(),
        shape => shape.to_string(),
    };
    let bytes = resource.bytes.map_or_else(|| "changing".to_owned(), |bytes| Bytes(bytes as usize).to_string());
    let holds = resource.length.map_or_else(|| bytes.clone(), |length| format!("{length}, {bytes}"));
    vec![
        name,
        resource.kind.clone(),
        format!("{}:{}", resource.device.kind.name(), resource.device.index),
        format!("{}{shape}", types.join(", ")),
        holds,
        resource.version.map_or_else(|| "-".to_owned(), |version| version.to_string()),
    ]
}

/// The limits: those of which at least 0.5 % is in use, and the number of the others, or all of them.
fn limits(paint: Paint, limits: &[LimitStatus], all: bool) -> Option<String> {
    let (shown, unused): (Vec<_>, Vec<_>) = limits.iter().partition(|limit| all || is_in_use(limit));
    let mut parts = Vec::new();
    if !shown.is_empty() {
        parts.push(table(paint, &["LIMIT", "USED", "OF", ""], shown.into_iter().map(limit_row)));
    }
    match unused.len() {
        0 => {}
        1 => parts.push("1 limit is below 0.5 % (--limits shows it)".to_owned()),
        n => parts.push(format!("{n} limits are below 0.5 % (--limits shows them)")),
    }
    (!parts.is_empty()).then(|| parts.join("\n"))
}

/// Whether the row of a limit says more than 0 %.
fn is_in_use(limit: &LimitStatus) -> bool {
    limit.used > 0 && limit.limit.is_none_or(|most| limit.used as f64 >= 0.005 * most as f64)
}

/// The share of a limit from which on the limit is near.
const NEAR: f64 = 0.9;

const PEERS: [&str; 7] = ["PEER", "ADDRESS", "LINK", "ROUND TRIP", "CARRIES", "SENT", "RECEIVED"];

fn peer_row(peer: &PeerStatus) -> TableRow {
    let traffic = |bytes: u64, per_second: f64| match per_second {
        0.0 => Bytes(bytes as usize).to_string(),
        _ => format!("{}, {}/s", Bytes(bytes as usize), Bytes(per_second as usize)),
    };
    let state = match &peer.state {
        LinkState::Up => format!("up {}", duration(peer.up_ms / 1000)),
        LinkState::Mending { for_ms, why } => format!("reconnecting for {:.1} s: {why}", *for_ms as f64 / 1000.0),
    };
    let cells = vec![
        peer.task.as_ref().map_or_else(|| taskless(peer), Task::short),
        place(&peer.address).to_owned(),
        state,
        peer.round_trip_us.map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us as f64 / 1000.0)),
        peer.bulk_bytes_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", Bytes(rate as usize))),
        traffic(peer.sent_bytes, peer.sent_per_second),
        traffic(peer.received_bytes, peer.received_per_second),
    ];
    match peer.state {
        LinkState::Up => cells.into(),
        LinkState::Mending { .. } => TableRow::toned(Tone::Warning, cells),
    }
}

fn limit_row(limit: &LimitStatus) -> TableRow {
    let amount = |count: u64| match limit.name.contains("bytes") || limit.name == "memory" {
        true => Bytes(count as usize).to_string(),
        false => count.to_string(),
    };
    let share = limit.limit.map(|most| format!("{:.0} %", 100.0 * limit.used as f64 / most.max(1) as f64));
    let near = limit.limit.is_some_and(|most| limit.used as f64 > NEAR * most as f64);
    let cells = vec![
        limit.name.clone(),
        amount(limit.used),
        limit.limit.map_or_else(|| "no limit".to_owned(), amount),
        share.unwrap_or_default(),
    ];
    if near { TableRow::toned(Tone::Warning, cells) } else { cells.into() }
}

fn node_json(task: &Task, status: &NodeStatus) -> Value {
    let (identity, totals) = (&status.identity, &status.totals);
    json!({
        "task": task.to_string(),
        "incarnation": identity.incarnation.map(|incarnation| incarnation.to_string()),
        "version": identity.version,
        "mesh": identity.mesh,
        "up_ms": identity.up_ms,
        "window_ms": status.window_ms,
        "sessions": listed(&status.sessions, session_json),
        "pieces": listed(&status.pieces, piece_json),
        "devices": listed(&status.devices, device_json),
        "resources": listed(&status.resources, resource_json),
        "peers": listed(&status.peers, peer_json),
        "limits": status.limits.iter().map(|LimitStatus { name, used, limit }| {
            json!({ "name": name, "used": used, "limit": limit })
        }).collect::<Value>(),
        "totals": {
            "steps": totals.steps,
            "failed_runs": totals.failed_runs,
            "sent_bytes": totals.sent_bytes,
            "received_bytes": totals.received_bytes,
        },
    })
}

fn listed<T>(listed: &Listed<T>, one: fn(&T) -> Value) -> Value {
    json!({ "total": listed.total, "items": listed.items.iter().map(one).collect::<Value>() })
}

fn session_json(session: &SessionStatus) -> Value {
    json!({
        "id": session.id.to_string(),
        "client": session.client.as_str(),
        "age_ms": session.age_ms,
        "idle_ms": session.idle_ms,
        "plans": session.plans,
        "runs": session.runs,
        "steps": session.steps,
        "steps_per_second": session.steps_per_second,
    })
}

fn piece_json(piece: &PieceStatus) -> Value {
    json!({
        "session": piece.session.to_string(),
        "number": piece.number,
        "master": piece.master.as_str(),
        "device": piece.device.to_string(),
        "nodes": piece.nodes,
        "steps": piece.steps,
    })
}

fn device_json(device: &DeviceStatus) -> Value {
    json!({
        "name": device.name.to_string(),
        "backend": device.backend,
        "description": device.description,
        "memory_used": device.memory.map(|memory| memory.used),
        "memory_free": device.memory.and_then(|memory| memory.free),
        "busy_us": device.busy_us,
        "busy_share": device.busy_share,
        "sessions": device.sessions,
        "pieces": device.pieces,
        "steps": device.steps,
        "parked_values": device.parked_values,
        "parked_bytes": device.parked_bytes,
    })
}

pub(super) fn resource_json(resource: &ResourceStatus) -> Value {
    let sizes =
        |sizes: &Vec<Option<usize>>| sizes.iter().map(|&size| size.map_or(json!(-1), |size| json!(size))).collect();
    json!({
        "name": resource.name,
        "container": resource.container,
        "kind": resource.kind,
        "device": resource.device.to_string(),
        "session": resource.session.to_string(),
        "isolated": resource.is_isolated,
        "dtypes": resource.dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>(),
        "shape": resource.shape.0.as_ref().map(|shape| -> Value { sizes(shape) }),
        "bytes": resource.bytes,
        "length": resource.length,
        "version": resource.version,
    })
}

fn peer_json(peer: &PeerStatus) -> Value {
    let (state, mending_ms, why) = match &peer.state {
        LinkState::Up => ("up", None, None),
        LinkState::Mending { for_ms, why } => ("mending", Some(*for_ms), Some(why)),
    };
    json!({
        "peer": peer.peer.as_str(),
        "task": peer.task.as_ref().map(Task::to_string),
        "spare": peer.is_spare,
        "address": peer.address,
        "state": state,
        "mending_ms": mending_ms,
        "why": why,
        "up_ms": peer.up_ms,
        "heard_ms": peer.heard_ms,
        "round_trip_us": peer.round_trip_us,
        "bulk_bytes_per_second": peer.bulk_bytes_per_second,
        "sent_bytes": peer.sent_bytes,
        "received_bytes": peer.received_bytes,
        "sent_per_second": peer.sent_per_second,
        "received_per_second": peer.received_per_second,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_with_next_to_no_use_are_one_line() {
        let limit = |name: &str, used, limit| LimitStatus { name: name.to_owned(), used, limit };
        let all = [
            limit("sessions", 1, Some(64)),
            limit("steps", 0, Some(4096)),
            limit("peers", 4, Some(1024)),
            limit("memory", 12_000_000, None),
            limit("files", 980, Some(1000)),
        ];
        let text = limits(Paint::OFF, &all, false).unwrap();
        let first: Vec<&str> = text.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
        assert_eq!(first, ["LIMIT", "sessions", "memory", "files", "2"], "{text}");
        assert!(text.ends_with("2 limits are below 0.5 % (--limits shows them)"), "{text}");
        assert_eq!(limits(Paint::OFF, &all, true).unwrap().lines().count(), 6);
        assert_eq!(limits(Paint::OFF, &all[1..2], false).unwrap(), "1 limit is below 0.5 % (--limits shows it)");
        assert_eq!(limits(Paint::OFF, &[], false), None);
    }
}
