//! The requests of a participant about runs that nodes make by themselves.

use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Result;

use super::{NewRun, NewTraining, Node};
use crate::protocol::SessionId;
use crate::protocol::detached::{DetachedStatus, Followed};
use crate::protocol::training::StateFile;
use crate::session::detached as runs;

impl Node {
    /// Begins a run on the node of `target`, which continues without this participant. If that has it already, it is not begun
    /// again.
    ///
    /// # Errors
    /// Those of a session and of its plan; ResourceExhausted if too many such runs are under way there; Cancelled if somebody
    /// ended it meanwhile; and as [`Node::status`].
    ///
    /// # Cancellation
    /// If the future is dropped after its first poll, the run may begin nonetheless: [`Node::stop_run`] ends it.
    #[doc(hidden)]
    pub async fn launch(&self, target: Option<&Task>, run: SessionId, of: NewRun<'_>) -> Result<DetachedStatus> {
        runs::launch(&self.host.client, &self.master(target)?, run, of).await
    }

    /// As [`Node::launch`], of a training. Its first step begins before the answer.
    ///
    /// # Errors
    /// Those of [`Node::launch`] and of a training.
    ///
    /// # Cancellation
    /// As [`Node::launch`].
    #[doc(hidden)]
    pub async fn launch_training(&self, target: &Task, run: SessionId, of: NewTraining<'_>) -> Result<DetachedStatus> {
        runs::launch_training(&self.host.client, &self.master(Some(target))?, run, of).await
    }

    /// A part of a state that the node of `target` has of a training, from the byte `offset` on, the bytes of the whole, and
    /// a stamp, which is another one if the file was replaced since an earlier part.
    ///
    /// # Errors
    /// NotFound if it does not have the run, or not the state any more; and as [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    #[doc(hidden)]
    pub async fn state_part(
        &self,
        target: &Task,
        of: (SessionId, StateFile),
        offset: u64,
    ) -> Result<(u64, u64, Tensor)> {
        runs::state_part(&self.host.client, &self.master(Some(target))?, of, offset).await
    }

    /// The detached runs of the node of `target`, the newest first.
    ///
    /// # Errors
    /// As [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    #[doc(hidden)]
    pub async fn detached(&self, target: &Task) -> Result<Vec<DetachedStatus>> {
        runs::list(&self.host.client, &self.master(Some(target))?).await
    }

    /// The lines of a detached run of the node of `target` after that number, and their values.
    ///
    /// # Errors
    /// NotFound if that node does not have the run; and as [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    #[doc(hidden)]
    pub async fn follow(&self, target: &Task, run: SessionId, after: u64) -> Result<(Followed, Vec<Tensor>)> {
        runs::follow(&self.host.client, &self.master(Some(target))?, run, after).await
    }

    /// Has a detached run of the node of `target` end between two steps, or `now`.
    ///
    /// # Errors
    /// As [`Node::follow`].
    ///
    /// # Cancellation
    /// If the future is dropped after its first poll, the run may end nonetheless.
    #[doc(hidden)]
    pub async fn stop_run(&self, target: &Task, run: SessionId, now: bool) -> Result<DetachedStatus> {
        runs::stop(&self.host.client, &self.master(Some(target))?, run, now).await
    }
}
