//! Spares: participants without a task that take the name of one that is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Budget;

use super::{Node, NodeConfig, NodeError};
use crate::mesh::MeshError;

/// How long a lost task may take to come back by itself, as under a supervisor.
const COMES_BACK_WITHIN: Duration = Duration::from_millis(500);
/// Beyond that, each spare waits for a time of its own up to this, so that two of them rarely want one name at once.
const APART_MS: u64 = 300;
/// The interval at which names that nobody holds are looked at again: other nodes may still name their holders.
const LOOKS: Duration = Duration::from_millis(200);

impl Node {
    /// Joins without a task, as a spare: nodes list it as such.
    ///
    /// # Errors
    /// As [`Node::start`].
    ///
    /// # Cancellation
    /// As [`Node::start`].
    #[doc(hidden)]
    pub async fn start_spare(config: NodeConfig, budget: Arc<Budget>) -> Result<Node, NodeError> {
        Node::join_mesh(NodeConfig { task: None, listen: Vec::new(), ..config }, budget, None, true, None).await
    }

    /// Waits, as a spare, until a process that holds a task is lost, and nobody has taken its name for a while. A task that
    /// another node can still reach, or that has left, is not lost. `before` are tasks that were lost before this participant
    /// joined. Returns its name, and the other lost tasks.
    ///
    /// # Errors
    /// If this participant leaves the mesh.
    ///
    /// # Cancellation
    /// Dropping the future only ends the wait.
    #[doc(hidden)]
    pub async fn lost_task(&self, mut before: BTreeSet<Task>) -> Result<(Task, BTreeSet<Task>), NodeError> {
        let mut watch = self.mesh.lost_tasks();
        let apart = Duration::from_millis(self.mesh.incarnation().0 % APART_MS);
        let gone = || NodeError::from(MeshError::Left);
        loop {
            watch.wait_for(|lost| !lost.is_empty() || !before.is_empty()).await.map_err(|_| gone())?;
            tokio::time::sleep(COMES_BACK_WITHIN + apart).await;
            // Alone, it is this participant that is lost.
            if !self.mesh.cluster().is_empty() {
                before.retain(|task| !self.is_up(task));
                let mut lost: BTreeSet<Task> =
                    watch.borrow().iter().filter(|task| !self.is_up(task)).chain(&before).cloned().collect();
                // Of several, not every spare takes the same.
                let one = self.mesh.incarnation().0 as usize % lost.len().max(1);
                if let Some(task) = lost.iter().nth(one).cloned() {
                    lost.remove(&task);
                    return Ok((task, lost));
                }
            }
            tokio::time::sleep(LOOKS).await;
        }
    }
}
