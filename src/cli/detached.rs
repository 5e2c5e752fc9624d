//! The detached runs of a mesh: which nodes have them, and the one that a word names.

use std::time::Duration;

use meshtf::Client;
use meshtf::mesh::{MeshKey, home};
use meshtf::node::Node;
use meshtf::protocol::detached::{DetachedState, DetachedStatus};
use meshtf::protocol::{Peer, SessionId};
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, counted};
use serde_json::{Value, json};

use super::Trouble;
use super::paint::{Tone, complain};
use super::reach::MeshArgs;
use super::table::{TableRow, duration, number, per_second, short_peer};

/// How long a node may take to list its runs.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long a list that is not of the mesh alone waits for nodes in all, for the first one, and for those that it announces.
const WITHIN: Duration = Duration::from_millis(950);
const FOUND_WITHIN: Duration = Duration::from_millis(650);
const ALL_WITHIN: Duration = Duration::from_millis(150);
/// Digits of a run's name that are shown.
const SHOWN_DIGITS: usize = 8;
/// Most runs that a message names.
const MOST_NAMED: usize = 8;

/// A run and its node.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub task: Task,
    pub status: DetachedStatus,
}

/// The name of a run, for people: the beginning of its digits.
pub(super) fn short_id(run: SessionId) -> String {
    let mut digits = run.to_string();
    digits.truncate(SHOWN_DIGITS);
    digits
}

/// The runs of all nodes, those that began last first. A node that does not answer is reported.
pub(super) async fn all(node: &Node) -> Vec<Found> {
    let mut found = Vec::new();
    for (task, list) in lists(node).await {
        match list {
            Ok(list) => found.extend(list.into_iter().map(|status| Found { task: task.clone(), status })),
            Err(failure) => complain(Trouble::from(failure)),
        }
    }
    found.sort_by_key(|one| one.status.age_ms);
    each_once(found)
}

/// Each run once: a node that was cut off may still list one that another has continued.
fn each_once(found: Vec<Found>) -> Vec<Found> {
    let mut once: Vec<Found> = Vec::new();
    for one in found {
        match once.iter_mut().find(|known| known.status.run == one.status.run) {
            Some(known) if known.status.state.is_over() && !one.status.state.is_over() => *known = one,
            Some(_) => {}
            None => once.push(one),
        }
    }
    once
}

/// The run of that name, on whichever node it is by now. Nodes that do not answer do not have it.
pub(super) async fn anywhere(node: &Node, run: SessionId) -> Option<Found> {
    let all = lists(node).await.into_iter().filter_map(|(task, list)| {
        let status = list.ok()?.into_iter().find(|one| one.run == run)?;
        Some(Found { task, status })
    });
    each_once(all.collect()).pop()
}

/// The runs of each node, or why it does not list them.
async fn lists(node: &Node) -> Vec<(Task, Result<Vec<DetachedStatus>, Failure>)> {
    let cluster = node.cluster();
    let asked = cluster.tasks().map(async |task| {
        let late = || format!("{} does not answer within {} s", task.short(), ANSWER_LIMIT.as_secs());
        let answer = tokio::time::timeout(ANSWER_LIMIT, node.detached(task)).await;
        (task.clone(), answer.unwrap_or_else(|_| Err(Failure::new(Code::DeadlineExceeded, late()))))
    });
    futures::future::join_all(asked).await
}

/// The runs of the mesh, as far as its nodes are found at once. Without a key of the mesh, nobody is looked for.
pub(super) async fn at_hand(mesh: &MeshArgs) -> Vec<Found> {
    let has_key = || home().is_ok_and(|home| MeshKey::load(&home, &mesh.mesh).is_ok());
    if !mesh.open && !has_key() {
        return Vec::new();
    }
    let Ok(node) = Node::start(mesh.client()).await else { return Vec::new() };
    let find = async {
        if !node.wait_for(&[], FOUND_WITHIN).await {
            return Vec::new();
        }
        node.wait_for_all(ALL_WITHIN).await;
        all(&node).await
    };
    let found = tokio::time::timeout(WITHIN, find).await.unwrap_or_default();
    node.close().await;
    found
}

/// The run that a word names: the beginning of its digits, or `last`.
pub(super) async fn find(node: &Node, named: &str) -> Result<Found, Trouble> {
    named_in(all(node).await, named)
}

fn named_in(mut runs: Vec<Found>, named: &str) -> Result<Found, Trouble> {
    if named != "last" {
        let digits = named.to_ascii_lowercase();
        runs.retain(|one| !digits.is_empty() && one.status.run.to_string().starts_with(&digits));
    } else {
        runs.truncate(1);
    }
    match &runs[..] {
        [one] => Ok(one.clone()),
        [] if named == "last" => Err(Trouble::input("no node of the mesh has a detached run")),
        [] => Err(Trouble::input(format!("no node of the mesh has a detached run {named}; `meshtf runs` lists them"))),
        several => {
            let ids: Vec<String> = several.iter().take(MOST_NAMED).map(|one| one.status.run.to_string()).collect();
            let more = if several.len() > ids.len() { ", …" } else { "" };
            Err(Trouble::input(format!("{named} is the beginning of several runs: {}{more}", ids.join(", "))))
        }
    }
}

impl Found {
    /// The titles of the columns of [`Found::row`].
    pub const HEADER: [&str; 8] = ["RUN", "NODE", "BEGAN", "MODEL", "STEPS", "RATE", "VALUE", "STATE"];

    /// The run in a table.
    pub fn row(&self) -> TableRow {
        let status = &self.status;
        let steps =
            if status.step == status.of { status.of.to_string() } else { format!("{}/{}", status.step, status.of) };
        let value = status.fetched.first();
        let cells = vec![
            short_id(status.run),
            self.task.short(),
            format!("{} ago", duration(status.age_ms / 1000)),
            status.title.clone(),
            steps,
            status.steps_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", per_second(rate))),
            value.map_or_else(|| "-".to_owned(), |one| format!("{} {}", one.name, number(one.last.value))),
            state(status),
        ];
        match status.state {
            DetachedState::Failed(_) => TableRow::toned(Tone::Bad, cells),
            DetachedState::Stopped { .. } | DetachedState::Ending => TableRow::toned(Tone::Warning, cells),
            DetachedState::Running => TableRow::toned(Tone::Good, cells),
            _ => cells.into(),
        }
    }

    /// The run for programs.
    pub fn json(&self) -> Value {
        let DetachedStatus { run, title, by, state, step, of, age_ms, ended_ms, notice, heir, .. } = &self.status;
        let values = self.status.fetched.iter().map(|one| json!({ "name": one.name, "last": one.last.value }));
        let message = match state {
            DetachedState::Failed(failure) => Some(failure.to_string()),
            _ => notice.clone(),
        };
        json!({
            "id": run.to_string(),
            "kind": "detached",
            "state": state.name(),
            "node": self.task.to_string(),
            "by": by.as_str(),
            "heir": heir.as_ref().map(Peer::as_str),
            "graph": title,
            "steps": { "done": step, "total": of },
            "steps_per_second": self.status.steps_per_second,
            "seconds": age_ms.saturating_sub(ended_ms.unwrap_or(0)) / 1000,
            "began_ms_ago": age_ms,
            "ended_ms_ago": ended_ms,
            "values": values.collect::<Vec<_>>(),
            "message": message,
        })
    }
}

/// The state in a few words: by whom it was ended, or the code of its failure.
fn state(status: &DetachedStatus) -> String {
    match &status.state {
        DetachedState::Stopped { by } => format!("stopped by {}", short_peer(by.as_str())),
        DetachedState::Failed(failure) => format!("failed: {:?}", failure.code),
        state => state.name().to_owned(),
    }
}

/// `step 420 of 1000, began 12 s ago by …AbCdEfGh`.
pub(super) fn standing(status: &DetachedStatus) -> String {
    let (age, by) = (duration(status.age_ms / 1000), short_peer(status.by.as_str()));
    let of = counted(usize::try_from(status.of).unwrap_or(usize::MAX), "step");
    format!("{} of {of}, begun {age} ago by {by}", status.step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(run: u64, age_ms: u64) -> Found {
        let status = DetachedStatus {
            run: SessionId(run),
            title: "g.json".into(),
            by: Peer::new("p"),
            state: DetachedState::Running,
            step: 3,
            of: 9,
            steps_per_second: Some(1.5),
            age_ms,
            ended_ms: None,
            fetched: Vec::new(),
            notice: None,
            heir: Some(Peer::new("h")),
        };
        Found { task: Task::new("worker", 0), status }
    }

    #[test]
    fn a_run_is_named_by_the_beginning_of_its_digits_or_as_the_last() {
        let runs = vec![found(0x3f09_0000_0000_0001, 5), found(0x3f10_0000_0000_0002, 70_000)];
        let id = |named: &str| named_in(runs.clone(), named).map(|one| one.status.run.0).map_err(|why| why.to_string());
        assert_eq!(id("3F09"), Ok(0x3f09_0000_0000_0001));
        assert_eq!(id("3f100000"), Ok(0x3f10_0000_0000_0002));
        assert_eq!(id("last"), Ok(0x3f09_0000_0000_0001));
        assert!(id("3f").unwrap_err().contains("beginning of several runs: 3f09000000000001, 3f10000000000002"));
        assert!(id("a").unwrap_err().contains("no node of the mesh has a detached run a;"));
        assert!(id("").is_err());
        assert!(named_in(Vec::new(), "last").is_err());
    }

    #[test]
    fn a_run_that_another_node_continued_is_there() {
        let mut ended = found(1, 5);
        ended.status.state = DetachedState::Failed(Failure::invalid("it was cut off"));
        let running = Found { task: Task::new("worker", 1), ..found(1, 5) };
        for all in [vec![ended.clone(), running.clone()], vec![running, ended.clone()]] {
            let once = each_once(all);
            assert_eq!((once.len(), once[0].task.short().as_str()), (1, "worker/1"));
        }
        assert_eq!(each_once(vec![ended, found(2, 7)]).len(), 2);
    }

    #[test]
    fn a_run_is_a_row_and_an_object() {
        let mut one = found(0x3f09_0000_0000_0001, 72_000);
        let row = super::super::table::table(super::super::paint::Paint::OFF, &Found::HEADER, [one.row()]);
        for part in ["3f090000", "worker/0", "g.json", "3/9", "/s", "running"] {
            assert!(row.contains(part), "{part}: {row}");
        }
        one.status.state = DetachedState::Stopped { by: Peer::new("a long name of a peer") };
        (one.status.ended_ms, one.status.steps_per_second) = (Some(2000), None);
        let object = one.json();
        assert_eq!(
            (&object["state"], &object["seconds"], &object["steps"]["done"]),
            (&json!("stopped"), &json!(70), &json!(3))
        );
        assert_eq!(state(&one.status), "stopped by …f a peer");
    }
}
