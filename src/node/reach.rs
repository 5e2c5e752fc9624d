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

impl Node {
    /// Makes a client the master of its own sessions: of those that it opens without a target from now on. They do not end with
    /// a node, so guarded steps survive the loss of any node, and no node lists them. Graph nodes without a task are on that of
    /// `default`, or on the first by name. The first call counts, and a participant with a task is a master as it is.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use meshtf::{Client, Node, NodeConfig, SessionOptions};
    ///
    /// # async fn train(graph: meshtf::graph::Graph) -> Result<(), Box<dyn std::error::Error>> {
    /// let node = Node::start(NodeConfig::default()).await?;
    /// node.wait_for(&graph.tasks(), Duration::from_secs(30)).await;
    /// node.become_master(None)?;
    /// let options = SessionOptions { guard: Some(Duration::from_millis(500)), ..SessionOptions::default() };
    /// let session = node.session(graph, None, options).await?;
    /// session.run().target("train").steps(10_000).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Unavailable if no task of that name, or none at all, is up.
    pub fn become_master(&self, default: Option<&Task>) -> Result<()> {
        let cluster = self.mesh.cluster();
        let task = match default {
            Some(task) => Some(task).filter(|task| cluster.member(task).is_some()),
            None => cluster.tasks().next(),
        };
        // The holder of one that is not up is the error.
        let Some(task) = task else { return holder(&self.mesh, default).map(|_| ()) };
        self.host.become_master(self.mesh.peer(), task.clone());
        Ok(())
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
