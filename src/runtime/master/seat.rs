//! The participant that a master belongs to.

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Failure;

/// A node, or a client that masters its own sessions.
pub(crate) struct Seat {
    /// The task of graph nodes that name none: the node's own, or one that the client chose.
    pub task: Task,
    is_client: bool,
}

impl Seat {
    /// That of the node that holds `task`.
    pub fn of_node(task: Task) -> Seat {
        Seat { task, is_client: false }
    }

    /// That of a client, which holds no task.
    pub fn of_client(default: Task) -> Seat {
        Seat { task: default, is_client: true }
    }

    /// A failure of the master itself, on the node's task.
    pub fn here(&self, failure: Failure) -> Failure {
        if self.is_client { failure } else { failure.on_task(&self.task.to_string()) }
    }
}
