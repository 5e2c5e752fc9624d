//! Nodes that are up by the word of connected peers, and that this participant has no connection with: a firewall may admit
//! the peers alone.

use std::collections::BTreeMap;
use std::fmt;

use meshtf_tensor::device::Task;

use super::Attempt;
use super::discovery::{Source, Verdict};
use super::roster::Roster;
use crate::protocol::Peer;

/// A node that is reached through others only: their sessions use it, this participant cannot ask it anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// The task that it holds.
    pub task: Task,
    /// Its PeerId.
    pub peer: Peer,
    /// Its addresses, as far as they are known.
    pub addresses: Vec<String>,
    /// The tasks of the connected nodes that are connected with it, at least one.
    pub through: Vec<Task>,
}

impl fmt::Display for Beyond {
    /// `worker/0, reached through ps/0`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, reached through {}", self.task.short(), self.shown_through())
    }
}

impl Beyond {
    /// `ps/0, ps/1`
    pub fn shown_through(&self) -> String {
        self.through.iter().map(Task::short).collect::<Vec<_>>().join(", ")
    }

    /// The line for a view that asks every node: `worker/0, reached through ps/0, has not been asked: no connection`
    pub fn unasked(&self) -> String {
        format!("{self}, has not been asked: no connection")
    }

    /// Whether that attempt was one to reach this node.
    fn is_of(&self, attempt: &Attempt) -> bool {
        attempt.peer.as_ref() == Some(&self.peer)
    }
}

impl Roster {
    /// The nodes that connected ones name, and that this participant has no connection with, in the order of their tasks. Nodes
    /// that hold the same task for different peers are several.
    pub fn beyond(&self) -> Vec<Beyond> {
        let cluster = self.cluster().borrow().clone();
        let mut all: BTreeMap<(Task, Peer), Beyond> = BTreeMap::new();
        for link in self.links() {
            let hello = link.hello();
            // A client's connections are of no use to sessions.
            let Some(teller) = &hello.task else { continue };
            for known in &hello.peers {
                if known.peer == self.me || cluster.member(&known.task).is_some() || self.link(&known.peer).is_some() {
                    continue;
                }
                let key = (known.task.clone(), known.peer.clone());
                let found = all.entry(key).or_insert_with(|| Beyond {
                    task: known.task.clone(),
                    peer: known.peer.clone(),
                    addresses: known.addresses.clone(),
                    through: Vec::new(),
                });
                found.through.push(teller.clone());
            }
        }
        let mut all: Vec<Beyond> = all.into_values().collect();
        all.iter_mut().for_each(|one| one.through.sort_unstable());
        all
    }
}

/// Whether a node that is known by the word of others alone may still be reached: an attempt is under way.
pub fn may_be_reached(beyond: &[Beyond], attempts: &[Attempt]) -> bool {
    let is_pending = |attempt: &Attempt| attempt.verdict == Verdict::Pending && attempt.address.is_some();
    attempts.iter().any(|attempt| is_pending(attempt) && beyond.iter().any(|one| one.is_of(attempt)))
}

/// The attempts without those at nodes that others reach, unless the user gave the address.
pub fn unexplained(beyond: &[Beyond], mut attempts: Vec<Attempt>) -> Vec<Attempt> {
    let is_given = |source| matches!(source, Source::Configured | Source::ClusterFile);
    attempts.retain(|attempt| is_given(attempt.source) || !beyond.iter().any(|one| one.is_of(attempt)));
    attempts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::parse_address;

    #[test]
    fn an_attempt_at_a_node_that_others_reach_is_explained_unless_its_address_was_given() {
        let beyond = Beyond {
            task: Task::new("worker", 0),
            peer: Peer::new("w"),
            addresses: Vec::new(),
            through: vec![Task::new("ps", 0), Task::new("ps", 1)],
        };
        let text = "worker/0, reached through ps/0, ps/1";
        assert_eq!(beyond.to_string(), text);
        assert_eq!(beyond.unasked(), format!("{text}, has not been asked: no connection"));
        let attempt = |source, peer: &str, verdict| Attempt {
            source,
            place: String::new(),
            address: Some(parse_address("10.0.0.7:4001").unwrap()),
            verdict,
            outcome: String::new(),
            speaks: None,
            peer: Some(Peer::new(peer)),
        };
        let attempts = vec![
            attempt(Source::Lan, "w", Verdict::Silent),
            attempt(Source::Configured, "w", Verdict::Silent),
            attempt(Source::Lan, "other", Verdict::Pending),
        ];
        assert!(!may_be_reached(std::slice::from_ref(&beyond), &attempts));
        assert!(may_be_reached(std::slice::from_ref(&beyond), &[attempt(Source::Hearsay, "w", Verdict::Pending)]));
        assert_eq!(unexplained(&[beyond], attempts.clone()), attempts[1..]);
    }
}
