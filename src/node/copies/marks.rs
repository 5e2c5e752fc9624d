//! Marks on the variables of tasks, as a participant sets them and asks for them.

use futures::future::join_all;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::Incarnation;

use crate::node::Node;
use crate::protocol::Peer;
use crate::protocol::copies::Mark;
use crate::session::inquire;

/// A process that holds a task.
pub(crate) struct Holder {
    peer: Peer,
    process: Incarnation,
}

impl Node {
    /// The processes that hold these tasks now.
    ///
    /// # Errors
    /// Unavailable if a task is not there.
    pub(crate) fn holders<'a>(&self, tasks: impl IntoIterator<Item = &'a Task>) -> Result<Vec<Holder>> {
        let cluster = self.mesh.cluster();
        let of = |task: &Task| {
            let gone = || Failure::new(Code::Unavailable, format!("{} is not there", task.short()));
            let member = cluster.member(task).ok_or_else(gone)?;
            Ok(Holder { peer: member.peer.clone(), process: member.incarnation })
        };
        tasks.into_iter().map(of).collect()
    }

    /// Sets a mark on the variables of these processes; those that hold no task any more, or do not answer, do not have it.
    pub(crate) async fn set_mark(&self, holders: &[Holder], mark: Mark) {
        let requests = self.requests();
        join_all(holders.iter().map(|holder| inquire::set_mark(&requests, &holder.peer, holder.process, mark))).await;
    }

    /// Whether the variables of all these tasks have a mark.
    ///
    /// # Errors
    /// As [`Node::holders`], and those of the nodes.
    pub(crate) async fn have_mark<'a>(&self, tasks: impl IntoIterator<Item = &'a Task>, mark: Mark) -> Result<bool> {
        let (requests, holders) = (self.requests(), self.holders(tasks)?);
        let has = join_all(holders.iter().map(|holder| inquire::has_mark(&requests, &holder.peer, mark))).await;
        has.into_iter().try_fold(true, |all, has| Ok(all && has?))
    }
}
