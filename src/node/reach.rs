//! The way from a node's own clients to the tasks of the mesh.

use std::sync::Arc;

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::{Node, no_task};
use crate::client::{Reach, Route};
use crate::mesh::Mesh;
use crate::protocol::{Cluster, Peer};
use crate::runtime::requests::Requests;

impl Reach for Node {
    fn live(&self) -> Arc<Cluster> {
        self.mesh.cluster()
    }

    fn reach(&self, target: Option<&Task>) -> Result<Route> {
        Ok((Arc::clone(&self.host.client), self.master(target)?))
    }

    fn own_master(&self) -> Option<Task> {
        self.task.clone()
    }

    fn has_met(&self, master: &Task, other: &Task) -> bool {
        has_met(&self.mesh, master, other)
    }
}

/// A node as the client of the runs that it makes by itself: its sessions are on its own master.
pub(super) struct Own {
    pub mesh: Mesh,
    pub requests: Arc<Requests>,
    pub task: Option<Task>,
}

impl Reach for Own {
    fn live(&self) -> Arc<Cluster> {
        self.mesh.cluster()
    }

    fn reach(&self, target: Option<&Task>) -> Result<Route> {
        Ok((Arc::clone(&self.requests), holder(&self.mesh, target.or(self.task.as_ref()))?))
    }

    fn own_master(&self) -> Option<Task> {
        self.task.clone()
    }

    fn has_met(&self, master: &Task, other: &Task) -> bool {
        has_met(&self.mesh, master, other)
    }
}

fn has_met(mesh: &Mesh, master: &Task, other: &Task) -> bool {
    let cluster = mesh.cluster();
    let by = |master: &Peer| *master == *mesh.peer() || mesh.is_met_by(other, master);
    cluster.member(other).is_some() && cluster.member(master).is_some_and(|member| by(&member.peer))
}

/// The peer that holds a task, or the first one by name.
///
/// # Errors
/// Unavailable if it is not up, with the tasks that are.
pub(super) fn holder(mesh: &Mesh, wanted: Option<&Task>) -> Result<Peer> {
    let cluster = mesh.cluster();
    let member = match wanted {
        Some(task) => cluster.member(task),
        None => cluster.members().next(),
    };
    member.map(|member| member.peer.clone()).ok_or_else(|| match wanted {
        None => Failure::new(Code::Unavailable, "no node of the mesh is up"),
        Some(task) => no_task(mesh, task, &cluster),
    })
}
