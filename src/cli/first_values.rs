//! The line of a submission whose variables begin from their first values: which they are, and the known reasons why they had no
//! value, though an earlier run had given them some.

use std::collections::BTreeSet;
use std::time::Duration;

use meshtf_tensor::device::{DeviceKind, DeviceSpec, Task};

use super::reach::Reached;
use super::runs;
use super::table::duration;
use crate::client::Reach as _;
use crate::protocol::event::Event;
use crate::{Client, Init};

/// How long a node may take to report its events and its status.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
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
    let names: Vec<&str> = init.variables().map(|(name, _)| name).collect();
    if names.is_empty() {
        return None;
    }
    let devices: Vec<DeviceSpec> = init.variables().filter_map(|(_, device)| device.parse().ok()).collect();
    let before = Before { restarted: restarted(reached, &devices).await, run: runs::last_of(graph_hash) };
    Some(text(&names, &before))
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

/// The tasks that may hold variables of these devices, that another node has lost, and that are up again.
async fn restarted(reached: &Reached, devices: &[DeviceSpec]) -> Vec<(Task, Option<Duration>)> {
    let cluster = reached.live();
    let holds = |task: &Task| devices.iter().any(|device| task.device(DeviceKind::Cpu, 0).matches(&device.task_only()));
    let asked = cluster
        .tasks()
        .map(async |task| tokio::time::timeout(ANSWER_LIMIT, reached.events_of(task, 0, false)).await.ok()?.ok());
    let told = futures::future::join_all(asked).await;
    let lost: BTreeSet<Task> = told
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|noted| match noted.event {
            Event::TaskLost { task: Some(task), .. } => Some(task),
            _ => None,
        })
        .filter(|task| holds(task) && cluster.member(task).is_some())
        .collect();
    let up = lost.into_iter().map(async |task| {
        let status = tokio::time::timeout(ANSWER_LIMIT, reached.status(&task)).await;
        let up = status.ok().and_then(Result::ok).map(|status| Duration::from_millis(status.identity.up_ms));
        (task, up)
    });
    futures::future::join_all(up).await
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
}
