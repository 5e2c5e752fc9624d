//! The way from a node's own clients to the tasks of the mesh.

use std::sync::Arc;

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Result;

use super::Node;
use crate::client::{Reach, Route};
use crate::protocol::{Cluster, Peer};

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
        let cluster = self.mesh.cluster();
        let by = |master: &Peer| *master == *self.mesh.peer() || self.mesh.is_met_by(other, master);
        cluster.member(other).is_some() && cluster.member(master).is_some_and(|member| by(&member.peer))
    }
}
