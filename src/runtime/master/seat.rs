//! The participant that a master belongs to.

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure};

use crate::protocol::{Peer, ToMaster};

/// A node, or a client that masters its own sessions.
pub(crate) struct Seat {
    /// The task of graph nodes that name none: the node's own, or one that the client chose.
    pub task: Task,
    /// The client.
    client: Option<Peer>,
}

impl Seat {
    /// That of the node that holds `task`.
    pub fn of_node(task: Task) -> Seat {
        Seat { task, client: None }
    }

    /// That of a client, which holds no task.
    pub fn of_client(client: Peer, default: Task) -> Seat {
        Seat { task: default, client: Some(client) }
    }

    /// Why it does not take a message, if so: nobody else opens sessions on a client, or leaves some to it.
    pub fn refusal(&self, from: &Peer, message: &ToMaster) -> Option<Failure> {
        let is_own = self.client.as_ref().is_none_or(|client| client == from);
        let is_of_sessions = matches!(message, ToMaster::Request { .. } | ToMaster::Inherit { .. });
        (is_of_sessions && !is_own)
            .then(|| Failure::new(Code::NotFound, "only a node with a task has sessions of others"))
    }

    /// A failure of the master itself, on the node's task.
    pub fn here(&self, failure: Failure) -> Failure {
        match self.client {
            Some(_) => failure,
            None => failure.on_task(&self.task.to_string()),
        }
    }
}
