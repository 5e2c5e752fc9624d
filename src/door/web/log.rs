//! The last events of all nodes, as the page shows them. They are fetched while a page follows, the new ones each time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meshtf_tensor::device::Task;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::Client;
use crate::node::Node;
use crate::protocol::event::Noted;

/// Maximum number of events that are kept, and that are shown.
const MAX_KEPT: usize = 512;
const MAX_SHOWN: usize = 40;
/// Maximum number of answers of a node in a row: one has 128 events at most, and a node keeps 1024.
const MAX_ANSWERS: usize = 9;

/// The events, the oldest first, and the number of the last of each node.
#[derive(Default)]
pub struct Log(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    last: BTreeMap<Task, u64>,
    events: VecDeque<(Task, Noted)>,
}

impl Log {
    /// Fetches the new events of the nodes that are up, and returns the last of all, the newest first. A node that does not
    /// answer in time is asked again by the next call.
    pub async fn update(&self, node: &Node, limit: Duration) -> Value {
        let mut kept = self.0.lock().await;
        let cluster = node.cluster();
        let asked = cluster.tasks().map(async |task| {
            let mut after = kept.last.get(task).copied().unwrap_or(0);
            let mut found = Vec::new();
            for _ in 0..MAX_ANSWERS {
                match timeout(limit, node.events_of(task, after, false)).await {
                    Ok(Ok(events)) if !events.is_empty() => {
                        after = events.last().map_or(after, |last| last.number);
                        found.extend(events);
                    }
                    _ => break,
                }
            }
            (task.clone(), after, found)
        });
        let told = futures::future::join_all(asked).await;
        kept.last.retain(|task, _| told.iter().any(|(own, ..)| own == task));
        for (task, after, events) in told {
            kept.last.insert(task.clone(), after);
            kept.events.extend(events.into_iter().map(|noted| (task.clone(), noted)));
        }
        kept.cut();
        kept.shown()
    }
}

impl Kept {
    /// Brings the events of all nodes into the order of their times, and drops the oldest.
    fn cut(&mut self) {
        self.events.make_contiguous().sort_by_key(|(_, noted)| noted.unix_ms);
        let more = self.events.len().saturating_sub(MAX_KEPT);
        self.events.drain(..more);
    }

    fn shown(&self) -> Value {
        let event = |(task, noted): &(Task, Noted)| {
            json!([noted.unix_ms, task.short(), noted.event.name(), noted.event.to_string()])
        };
        self.events.iter().rev().take(MAX_SHOWN).map(event).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::event::Event;

    #[test]
    fn the_last_events_of_all_nodes_are_shown_by_time() {
        let mut kept = Kept::default();
        for (task, start) in [(Task::new("ps", 0), 0), (Task::new("worker", 1), 1)] {
            let noted = |n: u64| Noted {
                number: n,
                unix_ms: 2 * n + start,
                event: Event::LimitReached { what: format!("limit {n}") },
            };
            kept.events.extend((0..1000).map(|n| (task.clone(), noted(n))));
        }
        kept.cut();
        let shown = kept.shown();
        let shown = shown.as_array().unwrap();
        assert_eq!((kept.events.len(), shown.len()), (MAX_KEPT, MAX_SHOWN));
        assert_eq!(
            (&shown[0][0], &shown[0][1], &shown[0][2]),
            (&json!(1999), &json!("worker/1"), &json!("limit_reached"))
        );
        assert_eq!((&shown[1][0], &shown[1][1]), (&json!(1998), &json!("ps/0")));
        assert!(shown[1][3].as_str().unwrap().contains("limit 999"));
    }
}
