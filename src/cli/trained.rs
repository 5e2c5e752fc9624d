//! A trained model of the command line: its graph, its weights, and the host of its session.

use std::path::PathBuf;
use std::sync::Arc;

use meshtf::program_file::extension;
use meshtf::protocol::SessionOptions;
use meshtf::trainer::stored::Which;
use meshtf::trainer::weights::{At, Weights};
use meshtf::{Client, Session};
use meshtf_graph::Graph;
use meshtf_tensor::memory::Budget;

use super::host::HostArgs;
use super::paint::mention;
use super::signals::Signals;
use super::tuned::{extend, read_for_weights};
use super::{Outcome, Trouble};

/// A model, its weights, and where it runs.
#[derive(Debug, clap::Args)]
pub(super) struct TrainedArgs {
    /// Graph file: graph.json, a TensorFlow GraphDef (JSON or binary), or an ONNX model
    pub graph: PathBuf,
    /// Weights of the model: the folder of a training, whose best weights are used if there are some, else its last state, a
    /// .safetensors or .npz file, or the prefix of a TensorFlow checkpoint
    #[arg(value_name = "WEIGHTS")]
    pub weights: PathBuf,
    /// File with the sections "data", "train" and "evaluate", "init" for a GraphDef, and perhaps "nodes" that are added to the
    /// graph [default: the graph's]
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// Use the moving averages of the weights, from the training
    #[arg(long)]
    averages: bool,
    /// Use the last state of the folder even if there are best weights
    #[arg(long)]
    last: bool,
    /// Print less: no progress and no notices; results, warnings and errors stay
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub host: HostArgs,
}

impl TrainedArgs {
    /// Which state of a folder is meant.
    pub fn which(&self) -> Which {
        if self.last { Which::Last } else { Which::Best }
    }

    /// The file of the sections.
    pub fn from(&self) -> &PathBuf {
        self.with.as_ref().unwrap_or(&self.graph)
    }

    /// The weights.
    pub fn at(&self) -> At<'_> {
        At { path: &self.weights, which: self.which(), averages: self.averages, map: None }
    }

    /// The graph, with the nodes of --with.
    pub fn graph(&self) -> Result<Graph, Trouble> {
        let Some(with) = &self.with else {
            return read_for_weights(&self.graph, None, Some(self.at()), &[]).map(|model| model.1);
        };
        let text = self.text()?;
        let tensors = extension::references(&text);
        let mut graph = read_for_weights(&self.graph, None, Some(self.at()), &tensors)?.1;
        extend(&mut graph, with, &text)?;
        Ok(graph)
    }

    /// The text of that file.
    pub fn text(&self) -> Result<String, Trouble> {
        let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", self.from().display()));
        let text = std::fs::read(self.from()).map_err(|error| at(&error))?;
        String::from_utf8(text).map_err(|_| at(&"it is not text, so it has no sections; use --with FILE"))
    }

    /// Opens a session of the graph, gives the variables their values, and does `work`; a signal ends it, with `stopped` as the
    /// message on what it leaves.
    pub async fn in_session(
        &self,
        graph: Graph,
        budget: &Arc<Budget>,
        stopped: &str,
        work: impl AsyncFnOnce(&Session) -> Outcome,
    ) -> Outcome {
        let tasks = graph.tasks();
        let (graph, weights) = Weights::add(graph, self.at())?;
        weights.remarks.iter().filter(|_| !self.quiet).for_each(mention);
        if !self.quiet && self.weights.is_dir() {
            mention(format_args!("weights from {}", weights.origin));
        }
        let reached = self.host.reach(tasks, budget).await?;
        let outcome = async {
            let session = reached.session(graph, None, SessionOptions::default()).await?;
            let mut signals = Signals::listen()?;
            let run = async {
                weights.set(&session).await?;
                work(&session).await
            };
            let outcome = tokio::select! {
                outcome = run => outcome,
                request = signals.next() => {
                    Err(Trouble::new(request.exit, format!("stopped by {}{stopped}", request.signal)))
                }
            };
            // A failed session is closed nevertheless; its loss has been reported.
            let _ = session.close().await;
            outcome
        };
        let outcome = outcome.await.map_err(|trouble| reached.explain_trouble(trouble));
        let outcome = outcome.map_err(|trouble| trouble.in_layer(&self.graph, || std::fs::read(&self.graph).ok()));
        reached.close().await;
        if self.host.local { outcome.map_err(Trouble::without_mesh) } else { outcome }
    }
}
