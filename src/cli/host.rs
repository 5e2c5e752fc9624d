//! The host of a command's session: this process, or the nodes that are up.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Budget;

use super::memory::MemoryArgs;
use super::reach::{Deadline, MeshArgs, Reached};
use super::{Exit, Trouble, complete};

/// Where a graph runs.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct HostArgs {
    /// Host all tasks of the graph in this process, without a network
    #[arg(long)]
    pub local: bool,
    /// Folder of the files that graphs may save and restore; with --local [default: none]
    #[arg(long, value_name = "DIR", requires = "local")]
    data: Option<PathBuf>,
    /// Compute backend; auto selects the best one available; with --local
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    backend: BackendChoice,
    /// Task of the master, which also runs nodes without a device [default: the first by name]
    #[arg(long, value_name = "TASK", add = complete::tasks())]
    pub target: Option<Task>,
    #[command(flatten)]
    pub mesh: MeshArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
}

impl HostArgs {
    /// The host: this process, or the nodes of these tasks.
    pub async fn reach(&self, tasks: Vec<Task>, budget: &Arc<Budget>) -> Result<Reached, Trouble> {
        if !self.local {
            let reached =
                self.mesh.reach_for(tasks, self.target.as_ref(), Deadline::after(None), Arc::clone(budget)).await;
            return reached.map_err(|trouble| match trouble.exit {
                Exit::Mesh => trouble.with_hint("\nor use --local to run in this process, without a mesh"),
                _ => trouble,
            });
        }
        Reached::local(tasks, self.target.as_ref(), self.backend, data_dir(self.data.as_deref())?, budget)
    }
}

/// The folder of `--data`.
pub(super) fn data_dir(folder: Option<&Path>) -> Result<Option<DataDir>, Trouble> {
    let open = |folder: &Path| {
        DataDir::new(folder).map_err(|error| Trouble::input(format!("--data {}: {error}", folder.display())))
    };
    folder.map(open).transpose()
}
