//! The detached runs of a mesh: which nodes have them, and the one that a word names.

use std::time::{Duration, Instant};

use meshtf::Client;
use meshtf::mesh::{MeshKey, home};
use meshtf::node::Node;
use meshtf::protocol::detached::{DetachedState, DetachedStatus};
use meshtf::protocol::{Peer, SessionId};
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, counted};
use serde_json::{Value, json};

use super::paint::{Tone, warn};
use super::reach::MeshArgs;
use super::table::{TableRow, duration, number, per_second, short_peer};
use super::{Exit, Trouble};

/// How long a node may take to list its runs.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long a list that is not of the mesh alone waits for nodes in all, for the first one, and for those that it announces.
const WITHIN: Duration = Duration::from_millis(950);
const FOUND_WITHIN: Duration = Duration::from_millis(650);
const ALL_WITHIN: Duration = Duration::from_millis(150);
/// The interval of requests to a node that answers too many others, and how long it may be that busy.
const ASKS_AGAIN: Duration = Duration::from_millis(200);
const BUSY_FOR: Duration = Duration::from_secs(15);
/// How long another node has to continue the run of one that is lost.
const CONTINUED_WITHIN: Duration = Duration::from_secs(15);
/// Digits of a run's name that are shown, and that name it even where not all runs are known.
const SHOWN_DIGITS: usize = 8;
/// Most runs, and most nodes, that a message names.
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

/// The runs of all nodes, those that began last first.
pub(super) struct Listed {
    pub runs: Vec<Found>,
    /// A clause for each node that did not list its own.
    silent: Vec<String>,
}

async fn all(node: &Node, limit: Duration) -> Listed {
    let mut runs = Vec::new();
    let mut silent: Vec<String> = node.mesh().beyond().iter().map(|one| one.unasked()).collect();
    for (task, list) in lists(node, limit).await {
        match list {
            Ok(list) => runs.extend(list.into_iter().map(|status| Found { task: task.clone(), status })),
            Err(failure) => silent.push(failure.to_string()),
        }
    }
    runs.sort_by_key(|one| one.status.age_ms);
    Listed { runs: each_once(runs), silent }
}

/// Asks again while the node answers too many others.
pub(super) async fn patiently<T>(ask: impl AsyncFn() -> Result<T, Failure>) -> Result<T, Failure> {
    let began = Instant::now();
    loop {
        match ask().await {
            Err(failure) if failure.code == Code::ResourceExhausted && began.elapsed() < BUSY_FOR => {
                tokio::time::sleep(ASKS_AGAIN).await;
            }
            told => return told,
        }
    }
}

/// Each run once: a node that was cut off may still list one that another has continued.
fn each_once(found: Vec<Found>) -> Vec<Found> {
    let mut once: Vec<Found> = Vec::new();
    for one in found {
        match once.iter_mut().find(|known| known.status.run == one.status.run) {
            Some(known) if rank(&known.status.state) > rank(&one.status.state) => *known = one,
            Some(_) => {}
            None => once.push(one),
        }
    }
    once
}

/// The order in which the states of one run on several nodes count.
fn rank(state: &DetachedState) -> u8 {
    match state {
        DetachedState::Moved => 3,
        DetachedState::Failed(_) => 2,
        state => u8::from(state.is_over()),
    }
}

/// The run after its state on a node is final: another node has it, if that was cut off, or if this one took its place too soon.
pub(super) async fn continued(node: &Node, found: &Found) -> Result<Option<Found>, Trouble> {
    let run = found.status.run;
    match &found.status.state {
        DetachedState::Moved => {
            let why = format!("{} was cut off for a while, and another node has the run", found.task.short());
            elsewhere(node, run, Failure::new(Code::Unavailable, why)).await.map(Some)
        }
        DetachedState::Failed(failure) if failure.code == Code::Unavailable => {
            let failed = |one: &Found| matches!(one.status.state, DetachedState::Failed(_) | DetachedState::Moved);
            Ok(anywhere(node, run).await.filter(|one| !failed(one)))
        }
        _ => Ok(None),
    }
}

/// The run after its node failed: if that is lost, or has another process, another node may continue the run.
pub(super) async fn elsewhere(node: &Node, run: SessionId, failure: Failure) -> Result<Found, Trouble> {
    if !matches!(failure.code, Code::Unavailable | Code::NotFound) {
        return Err(failure.into());
    }
    let began = Instant::now();
    while began.elapsed() < CONTINUED_WITHIN {
        tokio::time::sleep(ASKS_AGAIN).await;
        if let Some(found) = anywhere(node, run).await {
            return Ok(found);
        }
    }
    let within = CONTINUED_WITHIN.as_secs();
    let mut trouble = Trouble::from(failure).with_hint(&format!("; no other node continued the run within {within} s"));
    trouble.exit = Exit::Mesh;
    Err(trouble)
}

/// The run of that name, on whichever node it is by now. Nodes that do not answer do not have it.
async fn anywhere(node: &Node, run: SessionId) -> Option<Found> {
    let all = lists(node, ANSWER_LIMIT).await.into_iter().filter_map(|(task, list)| {
        let status = list.ok()?.into_iter().find(|one| one.run == run && one.state != DetachedState::Moved)?;
        Some(Found { task, status })
    });
    each_once(all.collect()).pop()
}

/// The runs of each node, or why it does not list them.
async fn lists(node: &Node, limit: Duration) -> Vec<(Task, Result<Vec<DetachedStatus>, Failure>)> {
    let cluster = node.cluster();
    let asked = cluster.tasks().map(async |task| {
        let seconds = (limit.as_secs_f64() * 10.0).round() / 10.0;
        let late = || format!("{} did not list its detached runs within {seconds} s", task.short());
        let list = patiently(async || node.detached(task).await);
        let answer = tokio::time::timeout(limit, list).await;
        (task.clone(), answer.unwrap_or_else(|_| Err(Failure::new(Code::DeadlineExceeded, late()))))
    });
    futures::future::join_all(asked).await
}

/// The runs of the mesh, as far as its nodes are found at once; a node that does not list its own is reported. Without a key of
/// the mesh, nobody is looked for.
pub(super) async fn at_hand(mesh: &MeshArgs) -> Vec<Found> {
    let has_key = || home().is_ok_and(|home| MeshKey::load(&home, &mesh.mesh).is_ok());
    if !mesh.open && !has_key() {
        return Vec::new();
    }
    let Ok(node) = Node::start(mesh.client()).await else { return Vec::new() };
    let began = Instant::now();
    let mut runs = Vec::new();
    if node.wait_for(&[], FOUND_WITHIN).await {
        node.wait_for_all(ALL_WITHIN).await;
        let listed = all(&node, WITHIN.saturating_sub(began.elapsed())).await;
        listed.silent.iter().for_each(warn);
        runs = listed.runs;
    }
    node.close().await;
    runs
}

/// The run that a word names: the beginning of its digits, or `last`.
pub(super) async fn find(node: &Node, named: &str) -> Result<Found, Trouble> {
    if !is_sure(named) {
        node.wait_for_all(ANSWER_LIMIT).await;
    }
    named_in(all(node, ANSWER_LIMIT).await, named)
}

/// Whether a word names no other run, whatever the nodes have that did not answer: digits as they are shown.
fn is_sure(named: &str) -> bool {
    named != "last" && named.len() >= SHOWN_DIGITS
}

fn named_in(Listed { mut runs, silent }: Listed, named: &str) -> Result<Found, Trouble> {
    let is_last = named == "last";
    if is_last {
        runs.truncate(1);
    } else {
        let digits = named.to_ascii_lowercase();
        runs.retain(|one| !digits.is_empty() && one.status.run.to_string().starts_with(&digits));
    }
    let nodes = silent[..silent.len().min(MOST_NAMED)].join("; ");
    match &runs[..] {
        [one] if silent.is_empty() || is_sure(named) => Ok(one.clone()),
        [_] => {
            let why = format!("{named} may be another run than it seems, since not all are known: {nodes}");
            Err(Trouble::mesh(format!("{why}; name the run by {SHOWN_DIGITS} digits at least")))
        }
        [] if !silent.is_empty() => {
            let which = if is_last { String::new() } else { format!(" {named}") };
            Err(Trouble::mesh(format!("no node that answers has a detached run{which}, and not all answer: {nodes}")))
        }
        [] if is_last => Err(Trouble::input("no node of the mesh has a detached run")),
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
            training: None,
        };
        Found { task: Task::new("worker", 0), status }
    }

    #[test]
    fn a_run_is_named_by_the_beginning_of_its_digits_or_as_the_last() {
        let runs = vec![found(0x3f09_0000_0000_0001, 5), found(0x3f10_0000_0000_0002, 70_000)];
        let all =
            |silent: &[&str]| Listed { runs: runs.clone(), silent: silent.iter().map(|&one| one.to_owned()).collect() };
        let id = |named: &str| named_in(all(&[]), named).map(|one| one.status.run.0).map_err(|why| why.to_string());
        assert_eq!(id("3F09"), Ok(0x3f09_0000_0000_0001));
        assert_eq!(id("3f100000"), Ok(0x3f10_0000_0000_0002));
        assert_eq!(id("last"), Ok(0x3f09_0000_0000_0001));
        assert!(id("3f").unwrap_err().contains("beginning of several runs: 3f09000000000001, 3f10000000000002"));
        assert!(id("a").unwrap_err().contains("no node of the mesh has a detached run a;"));
        assert!(id("").is_err());
        assert!(named_in(Listed { runs: Vec::new(), silent: Vec::new() }, "last").is_err());
        // Where a node does not answer, only as many digits as are shown name a run.
        let id = |named: &str| named_in(all(&["worker/1 is slow"]), named).map(|one| one.status.run.0);
        assert_eq!(id("3f100000").ok(), Some(0x3f10_0000_0000_0002));
        for named in ["last", "3f10", "a", "3f101111"] {
            let why = id(named).unwrap_err();
            assert_eq!(why.exit, Exit::Mesh, "{named}");
            assert!(why.to_string().contains("worker/1 is slow"), "{why}");
        }
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
        let mut moved = ended.clone();
        moved.status.state = DetachedState::Moved;
        for all in [vec![ended.clone(), moved.clone()], vec![moved, ended.clone()]] {
            assert_eq!(each_once(all)[0].status.state, ended.status.state);
        }
        // The heir has made all steps, and the master came back later.
        let mut done = Found { task: Task::new("worker", 1), ..found(1, 9) };
        done.status.state = DetachedState::Done;
        for all in [vec![ended.clone(), done.clone()], vec![done, ended.clone()]] {
            assert_eq!(each_once(all)[0].status.state, DetachedState::Done);
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
