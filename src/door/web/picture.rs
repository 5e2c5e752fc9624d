//! The mesh at one moment, as the page takes it: every node with its devices, sessions and variables, and the links between
//! them.

use std::time::Duration;

use crate::Client;
use meshtf_tensor::device::Task;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::log::Log;
use crate::node::Node;
use crate::protocol::Cluster;
use crate::protocol::look::Fetched;
use crate::protocol::runs::{RunStatus, Series};
use crate::protocol::status::{LinkState, NodeStatus};

/// How long a node may take to report its status.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Asks every node that is up.
pub async fn of(node: &Node, log: &Log) -> Value {
    let cluster = node.cluster();
    // A node that does not report its runs in time is shown without them.
    let runs = cluster.tasks().map(async |task| {
        let runs = timeout(ANSWER_LIMIT, node.runs(Some(task))).await;
        (task.clone(), runs.ok().and_then(Result::ok).unwrap_or_default().runs)
    });
    let (told, runs, events) =
        tokio::join!(node.statuses(ANSWER_LIMIT), futures::future::join_all(runs), log.update(node, ANSWER_LIMIT));
    let told = told.into_iter();
    let told: Vec<_> = told.map(|(task, status)| (task, status.map_err(|failure| failure.message))).collect();
    // Nodes that others reach have no status here: they are named.
    let beyond = node.mesh().beyond().iter().map(|one| one.unasked()).collect();
    let mut whole = whole(&node.cluster(), &told, beyond);
    whole["runs"] = of_runs(runs);
    whole["events"] = events;
    whole
}

/// The runs of all masters, those under way first, and then the newest.
fn of_runs(runs: Vec<(Task, Vec<RunStatus>)>) -> Value {
    let mut all: Vec<(Task, RunStatus)> =
        runs.into_iter().flat_map(|(task, runs)| runs.into_iter().map(move |run| (task.clone(), run))).collect();
    all.sort_by_key(|(_, run)| (run.end().is_some(), run.age_ms));
    let value =
        |series: &Series| json!([series.name, series.is_held_out, series.points.last().map(|point| point.value)]);
    let run = |(task, run): &(Task, RunStatus)| {
        json!({
            "master": task.short(),
            "session": run.report.session.to_string(),
            "title": run.report.title,
            "step": run.report.step,
            "of": run.report.of,
            "left_ms": run.report.left_ms,
            "values": run.report.values.iter().map(value).collect::<Vec<_>>(),
            "age_ms": run.age_ms,
            "end": run.end(),
        })
    };
    all.iter().map(run).collect()
}

fn whole(cluster: &Cluster, told: &[(Task, Result<NodeStatus, String>)], beyond: Vec<String>) -> Value {
    let mesh = told.iter().find_map(|(_, status)| status.as_ref().ok()?.identity.mesh.clone());
    let apart: Vec<_> = cluster.apart().map(|(from, to)| json!([from.short(), to.short()])).collect();
    let nodes: Vec<Value> = told
        .iter()
        .map(|(task, status)| match status {
            Ok(status) => of_node(task, status),
            Err(why) => json!({ "task": task.short(), "silent": why }),
        })
        .collect();
    json!({ "mesh": mesh, "nodes": nodes, "apart": apart, "beyond": beyond })
}

fn of_node(task: &Task, status: &NodeStatus) -> Value {
    let devices = status.devices.items.iter().map(|device| {
        json!({
            "name": format!("{}:{}", device.name.kind.name(), device.name.index),
            "backend": device.backend,
            "description": device.description,
            "busy": device.busy_share,
            "used": device.memory.map(|memory| memory.used),
            "free": device.memory.and_then(|memory| memory.free),
            "pieces": device.pieces,
        })
    });
    let sessions = status.sessions.items.iter().map(|session| {
        json!({
            "id": session.id.to_string(),
            "age_ms": session.age_ms,
            "runs": session.runs,
            "steps": session.steps,
            "rate": session.steps_per_second,
            "fetched": session.fetched.iter().map(fetched).collect::<Vec<_>>(),
        })
    });
    let links = status.peers.items.iter().filter_map(|peer| {
        Some(json!({
            "to": peer.task.as_ref()?.short(),
            "up": peer.state == LinkState::Up,
            "round_trip_us": peer.round_trip_us,
            "sent": peer.sent_per_second,
            "received": peer.received_per_second,
        }))
    });
    let variables = status.resources.items.iter().map(|resource| {
        json!({
            "name": resource.name,
            "kind": resource.kind,
            "bytes": resource.bytes,
            "version": resource.version,
        })
    });
    json!({
        "task": task.short(),
        "version": status.identity.version,
        "up_ms": status.identity.up_ms,
        "devices": devices.collect::<Vec<_>>(),
        "sessions": { "total": status.sessions.total, "items": sessions.collect::<Vec<_>>() },
        "links": links.collect::<Vec<_>>(),
        "clients": status.clients(),
        "variables": { "total": status.resources.total, "items": variables.collect::<Vec<_>>() },
    })
}

fn fetched(one: &Fetched) -> Value {
    json!([one.name, one.last.value])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::look::Point;
    use crate::protocol::runs::Report;
    use crate::protocol::status::{Listed, PeerStatus};
    use meshtf_tensor::ids::SessionId;

    #[test]
    fn runs_under_way_come_before_those_that_have_ended() {
        let run = |id: u64, age_ms, end: Option<&str>| {
            let point = Point { step: 5, value: 0.5 };
            let series = Series { name: "loss".into(), is_held_out: true, points: vec![point] };
            let report = Report {
                step: 5,
                left_ms: Some(1000),
                values: vec![series],
                end: end.map(str::to_owned),
                ..Report::new(SessionId(id), "digits.json", 10)
            };
            RunStatus { report, age_ms, reported_ms: 0, is_open: true }
        };
        let runs = vec![
            (Task::new("ps", 0), vec![run(1, 50, Some("done")), run(2, 900, None)]),
            (Task::new("ps", 1), vec![run(3, 20, Some("done")), run(4, 800, None)]),
        ];
        let shown = of_runs(runs);
        let sessions: Vec<&str> =
            shown.as_array().unwrap().iter().map(|run| &run["session"].as_str().unwrap()[15..]).collect();
        assert_eq!(sessions, ["4", "2", "3", "1"]);
        assert_eq!(shown[0]["values"], json!([["loss", true, 0.5]]));
        assert_eq!(
            (&shown[0]["master"], &shown[0]["of"], &shown[0]["end"]),
            (&json!("ps/1"), &json!(10), &Value::Null)
        );
    }

    #[test]
    fn nodes_that_tell_and_that_do_not_are_in_the_picture() {
        let (ps, worker) = (Task::new("ps", 0), Task::new("worker", 1));
        let peer = |task| PeerStatus { round_trip_us: Some(70), sent_per_second: 12.0, ..PeerStatus::quiet(task) };
        let status =
            NodeStatus { peers: Listed::all(vec![peer(Some(worker.clone())), peer(None)]), ..NodeStatus::default() };
        let cluster = Cluster::default().with_apart([(worker.clone(), ps.clone())]);
        let beyond = "worker/2, reached through ps/0, has not been asked: no connection";
        let told = [(ps, Ok(status)), (worker, Err("it does not answer".into()))];
        let picture = whole(&cluster, &told, vec![beyond.to_owned()]);
        assert_eq!(picture["beyond"], json!([beyond]));
        assert_eq!(picture["apart"], json!([["worker/1", "ps/0"]]));
        assert_eq!(picture["nodes"][1], json!({ "task": "worker/1", "silent": "it does not answer" }));
        let ps = &picture["nodes"][0];
        assert_eq!((&ps["clients"], ps["links"].as_array().map(Vec::len)), (&json!(1), Some(1)));
        assert_eq!((&ps["links"][0]["to"], &ps["links"][0]["sent"]), (&json!("worker/1"), &json!(12.0)));
    }
}
