//! The line of a submission whose variables begin from their first values: which they are, and the known reasons why they had no
//! value, though an earlier run had given them some.

use std::collections::BTreeMap;
use std::time::Duration;

use meshtf::client::Reach as _;
use meshtf::protocol::event::Event;
use meshtf::{Client, Init};
use meshtf_tensor::device::{DeviceKind, DeviceSpec, Task};

use super::reach::Reached;
use super::runs;
use super::table::duration;

/// How long a node may take to report its events and its status.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// How long after the end of a process its loss may be noticed, when another process may have its task already.
const NOTICED: Duration = Duration::from_secs(5);
/// Maximum number of variables, and of tasks, that are named.
const MOST_NAMED: usize = 4;

/// The known past of the variables.
#[derive(Default)]
struct Before {
    /// Tasks that hold variables and were started again, and how long each has been up, if it reports it.
    restarted: Vec<(Task, Option<Duration>)>,
    /// The id of the last recorded run of the same graph, and its steps.
    run: Option<(String, u64)>,
}

/// The line for a graph, by the hash of its nodes, whose init is about to run because no variable has a value.
pub(super) async fn line(reached: &Reached, init: &Init, graph_hash: &str) -> Option<String> {
    // A variable of graph.json is named in it without the ending of its node.
    let names: Vec<&str> = init.variables().map(|(name, _)| named(name)).collect();
    if names.is_empty() {
        return None;
    }
    let devices: Vec<DeviceSpec> = init.variables().filter_map(|(_, device)| device.parse().ok()).collect();
    let before = Before { restarted: restarted(reached, &devices).await, run: runs::last_of(graph_hash) };
    Some(text(&names, &before))
}

/// The name of a variable in a graph.json, of the node that holds it.
fn named(node: &str) -> &str {
    node.strip_suffix("/variable").filter(|name| !name.is_empty()).unwrap_or(node)
}

fn text(names: &[&str], before: &Before) -> String {
    let more = names.len().saturating_sub(MOST_NAMED);
    let mut named = names.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
    if more > 0 {
        named.push_str(&format!(" and {more} more"));
    }
    let begin = if names.len() == 1 { "begins from its first value" } else { "begin from their first values" };
    let mut line = format!("no variable was initialized, so init runs: {named} {begin}");
    for (task, up) in before.restarted.iter().take(MOST_NAMED) {
        let up = up.map(|up| format!(", up {}", duration(up.as_secs()))).unwrap_or_default();
        line.push_str(&format!("; {} was restarted{up}: the values of its earlier process are lost", task.short()));
    }
    if let Some((id, steps)) = &before.run {
        let steps = if *steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") };
        line.push_str(&format!("; before, run {id} of this graph did {steps}"));
    }
    line
}

/// The tasks that may hold variables of these devices, that another node has lost, and that were started again since.
async fn restarted(reached: &Reached, devices: &[DeviceSpec]) -> Vec<(Task, Option<Duration>)> {
    let cluster = reached.live();
    let holds = |task: &Task| devices.iter().any(|device| task.device(DeviceKind::Cpu, 0).matches(&device.task_only()));
    let asked = cluster.members().map(async |member| {
        let events = tokio::time::timeout(ANSWER_LIMIT, reached.events_of(&member.task, 0, false)).await;
        let mut events = events.ok().and_then(Result::ok).unwrap_or_default();
        events.retain(|noted| matches!(&noted.event, Event::TaskLost { task: Some(task), .. } if holds(task)));
        (member, events)
    });
    let told = futures::future::join_all(asked).await;
    if told.iter().all(|(_, losses)| losses.is_empty()) {
        // A status takes a node a quarter of a second: it measures rates.
        return Vec::new();
    }
    let asked = cluster.members().map(async |member| {
        let status = tokio::time::timeout(ANSWER_LIMIT, reached.status(&member.task)).await;
        let up = status.ok().and_then(Result::ok).map(|status| Duration::from_millis(status.identity.up_ms));
        (&member.task, up)
    });
    let up: BTreeMap<&Task, Option<Duration>> = futures::future::join_all(asked).await.into_iter().collect();
    let mut all = BTreeMap::new();
    for (member, losses) in &told {
        let Some(own_up) = up.get(&member.task).copied().flatten() else { continue };
        // The time by the clock of the node that reports.
        let now = member.since_unix_ms.saturating_add(own_up.as_millis() as u64);
        for noted in losses {
            let Event::TaskLost { task: Some(task), .. } = &noted.event else { continue };
            let Some(up) = up.get(task) else { continue };
            if is_younger(*up, Duration::from_millis(now.saturating_sub(noted.unix_ms))) {
                all.insert(task.clone(), *up);
            }
        }
    }
    all.into_iter().collect()
}

/// Whether a process that has been up for this time, if it is known, was started after the loss of a task so long ago. A process
/// that has lost its connections alone was started before it.
fn is_younger(up: Option<Duration>, lost_ago: Duration) -> bool {
    up.is_none_or(|up| up <= lost_ago + NOTICED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_variables_and_what_was_before() {
        assert_eq!(
            text(&["w"], &Before::default()),
            "no variable was initialized, so init runs: w begins from its first value"
        );
        let before = Before {
            restarted: vec![(Task::new("ps", 0), Some(Duration::from_secs(72))), (Task::new("ps", 1), None)],
            run: Some(("3f09".to_owned(), 5000)),
        };
        assert_eq!(
            text(&["a", "b", "c", "d", "e"], &before),
            "no variable was initialized, so init runs: a, b, c, d and 1 more begin from their first values; ps/0 was \
             restarted, up 1 min 12 s: the values of its earlier process are lost; ps/1 was restarted: the values of its \
             earlier process are lost; before, run 3f09 of this graph did 5000 steps"
        );
    }

    #[test]
    fn a_variable_is_named_as_in_the_file() {
        assert_eq!(
            ["n/variable", "h/kernel/variable", "w", "/variable"].map(named),
            ["n", "h/kernel", "w", "/variable"]
        );
    }

    #[test]
    fn a_process_that_only_lost_its_connections_was_not_restarted() {
        let seconds = Duration::from_secs;
        assert!(is_younger(Some(seconds(30)), seconds(40)));
        assert!(is_younger(Some(seconds(2)), seconds(1)), "it was started before its end was noticed");
        assert!(!is_younger(Some(seconds(4000)), seconds(40)));
        assert!(is_younger(None, seconds(40)));
    }
}
