//! `meshtf run`: runs a graph in this process, on as many tasks as it names, without a network.

use std::path::PathBuf;
use std::sync::Arc;

use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Budget;

use super::host::data_dir;
use super::inputs::GraphArgs;
use super::memory::MemoryArgs;
use super::reach::{Deadline, Reached};
use super::runs::Kind;
use super::submit::StepArgs;
use super::{Outcome, Trouble, complete};

/// Run a graph in this process, without a network
///
/// Hosts every task that the graph's device strings name (/job:localhost/task:0 if they name none), so that a graph for a mesh
/// runs unchanged. The output is that of `meshtf submit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf run graph.json
  meshtf run graph.json --fetch y --feed x=2.5
  meshtf run model.onnx --feed x=@x.npy
  meshtf run resnet.onnx --feed @cat.jpg --scale 1/255 --top 5 --labels n.txt
  meshtf run resnet.onnx --feed @photos/ --size 224 --fit crop --out scores.csv
  meshtf run model.onnx --feed x=@table.csv:a,b --out y.csv
  meshtf run model.onnx --feed @inputs.npz    each array to its input
  meshtf run saved_model/ --feed input=@x.npy
  meshtf run graph.json --weights state.pt --map map.json
  meshtf run graph.json --backend wgpu --soft-placement")]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    steps: StepArgs,
    /// Task of the master, which also runs nodes without a device [default: the first that the graph names]
    #[arg(long, value_name = "TASK", add = complete::tasks())]
    target: Option<Task>,
    /// Compute backend; auto selects the best one available
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    backend: BackendChoice,
    /// Folder of the files that graphs may save and restore; they can access no others [default: none]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    pub memory: MemoryArgs,
}

pub(super) async fn run(args: Args, budget: Arc<Budget>) -> Outcome {
    let map = args.steps.map.rules()?;
    let job = args.graph.read(args.steps.weights(map.as_ref()))?;
    args.steps.check(&job)?;
    let data = data_dir(args.data.as_deref())?;
    let deadline = Deadline::after(args.steps.timeout);
    let reached = Reached::local(job.tasks(), args.target.as_ref(), args.backend, data, &budget)?;
    let kept = "nothing is kept: the variables were in this process";
    args.steps.run(&reached, &job, Kind::Run, deadline, kept).await.map_err(Trouble::without_mesh)
}
