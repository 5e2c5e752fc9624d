//! `meshtf serve`: a model's answers over HTTP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshtf::door::serving;
use meshtf::doors::{Door, DoorConfig, DoorError, ServedModel, ServedPort};
use meshtf::protocol::SessionOptions;
use meshtf::trainer::stored::Which;
use meshtf::trainer::weights::{At, Weights};
use meshtf::{Client, Init, Session};
use meshtf_graph::op::Role;
use meshtf_graph::plan::{Signature, needed_feeds};
use meshtf_graph::{Graph, Output};
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::memory::Budget;

use super::host::HostArgs;
use super::inputs::{GraphArgs, MapArgs, StepRequest};
use super::node::{read_token, refused, socket_address};
use super::paint::mention;
use super::place::PlaceArgs;
use super::reach::Reached;
use super::signals::Signals;
use super::{Exit, Outcome, Trouble, output};

/// Maximum length of a model's name.
const MAX_NAME: usize = 128;

/// Answer HTTP requests with a model
///
/// Serves one model: as TensorFlow Serving's REST interface does, at /v1/models/NAME:predict, and by the Open Inference Protocol
/// (version 2), at /v2/models/NAME/infer. Its inputs are those of an ONNX model or of a signature, else the placeholders that the
/// fetches need; its outputs are the fetches. GET / lists the addresses, /metrics is for Prometheus.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf serve resnet.onnx --local
  meshtf serve model.onnx --http 127.0.0.1:8501 --model flowers
  meshtf serve model.onnx --max-batch 32
  meshtf serve saved_model/ --signature serving_default
  meshtf serve graph.json --fetch y --weights run1
  meshtf serve model.onnx --http 0.0.0.0:8000 --http-token-file token

Ask it:
  curl -d '{\"instances\": [[1, 2]]}' 127.0.0.1:8000/v1/models/model:predict")]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    /// Address of the server; HOST:0 selects a free port. Not encrypted; an address other than loopback requires
    /// --http-token-file
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000", value_parser = socket_address)]
    http: SocketAddr,
    /// File with the token of clients, readable by its owner only (chmod 600). They present it as `authorization: Bearer TOKEN`
    #[arg(long, value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// Name of the model in the addresses: letters, digits, `.`, `_` and `-` [default: that of its file]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Maximum number of examples of several requests that are computed together, if they wait at the same time: for models that
    /// compute each example (each row of the first dimension) by itself. 1: each request is computed alone
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_batch: u32,
    /// Weights for the variables, in place of init: a file of any form that `meshtf inspect` lists, or the folder of a training
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    #[command(flatten)]
    map: MapArgs,
    /// Use the moving averages of the weights, from the training; with --weights
    #[arg(long, requires = "weights")]
    averages: bool,
    /// Use another device of the task if a requested device does not exist
    #[arg(long)]
    soft_placement: bool,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    pub host: HostArgs,
}

pub(super) async fn serve(args: Args, budget: Arc<Budget>) -> Outcome {
    let mut signals = Signals::listen()?;
    let map = args.map.rules()?;
    let averages = args.averages;
    let at = args.weights.as_deref().map(|path| At { path, which: Which::Best, averages, map: map.as_ref() });
    let mut job = args.graph.read(at)?;
    let model = model(&args, &job)?;
    let token = read_token("--http-token-file", args.http_token_file.as_deref())?;
    let config = DoorConfig { address: args.http, token };
    let reached = args.host.reach(job.tasks(), &budget).await?;
    let reached = Arc::new(reached);
    let served = async {
        let place_by = args.place.rule(&job.graph, args.host.target.is_some());
        job.divide(place_by, &reached, false).await?;
        let opening = Opening::read(&args, &job, at)?;
        let door = open(opening, model, config, &reached).await.map_err(|trouble| job.explained(trouble))?;
        // As with a node, a signal is the way to end it.
        let request = signals.next().await;
        tracing::info!("stopped by {}", request.signal);
        drop(door);
        Ok(Exit::Ok)
    };
    let outcome = served.await.map_err(|trouble: Trouble| reached.explain_trouble(trouble));
    // The server may be opening a session right now, which ends with the process.
    if let Some(reached) = Arc::into_inner(reached) {
        reached.close().await;
    }
    outcome
}

/// A session in which the variables have their values.
struct Opening {
    graph: Graph,
    init: Init,
    /// The nodes of the init.
    first: Vec<String>,
    weights: Option<Weights>,
    options: SessionOptions,
}

impl Opening {
    fn read(args: &Args, job: &StepRequest, at: Option<At<'_>>) -> Result<Opening, Trouble> {
        let (graph, weights) = match at {
            Some(at) => {
                let (graph, weights) =
                    Weights::add_for(job.graph.clone(), at, job.fetches().into_iter().chain(job.targets()))?;
                weights.remarks.iter().for_each(mention);
                (graph, Some(weights))
            }
            None => (job.graph.clone(), None),
        };
        let first = if weights.is_some() { Vec::new() } else { job.init.clone() };
        let (graph, init) = Init::of(graph, &first);
        let (soft_placement, place_by) = (args.soft_placement, args.place.rule(&graph, args.host.target.is_some()));
        let options = SessionOptions { soft_placement, place_by, ..SessionOptions::default() };
        Ok(Opening { graph, init, first, weights, options })
    }

    async fn open(&self, reached: &Reached) -> Result<Session, Failure> {
        let session = reached.session(self.graph.clone(), None, self.options.clone()).await?;
        match &self.weights {
            Some(weights) => weights.set(&session).await?,
            None if !self.first.is_empty() && self.init.is_due(&session).await? => {
                session.run().targets(&self.first).await?;
            }
            None => {}
        }
        Ok(session)
    }
}

/// Opens the server, and says where it is.
async fn open(
    opening: Opening,
    model: ServedModel,
    config: DoorConfig,
    reached: &Arc<Reached>,
) -> Result<Door, Trouble> {
    let name = model.name.clone();
    let (opening, reached) = (Arc::new(opening), Arc::downgrade(reached));
    let sessions = move || {
        let (opening, reached) = (Arc::clone(&opening), reached.upgrade());
        async move {
            let ended = || Failure::new(Code::Cancelled, "the server is being closed");
            opening.open(&*reached.ok_or_else(ended)?).await
        }
    };
    let door = serving::open(sessions, model, config).await.map_err(|error| match error {
        DoorError::Session(failure) => Trouble::from(failure),
        error => refused(error),
    })?;
    let at = format!("http://{}", door.address());
    output::line(&format!("{name} serves {at}/v1/models/{name}:predict and {at}/v2/models/{name}/infer"))?;
    Ok(door)
}

/// The model that the arguments describe.
fn model(args: &Args, job: &StepRequest) -> Result<ServedModel, Trouble> {
    if !job.targets.is_empty() {
        let named = job.targets.join(", ");
        return Err(Trouble::input(format!(
            "{named}: a model that is served has outputs alone, and runs no other nodes"
        )));
    }
    let name = match &args.model {
        Some(name) if is_name(name) => name.clone(),
        Some(name) => {
            let why = format!("expected at most {MAX_NAME} letters, digits, '.', '_' and '-'");
            return Err(Trouble::input(format!("--model {name:?}: {why}")));
        }
        None => name_of(&job.file),
    };
    let graph = &job.graph;
    let mut inputs = inputs(job)?;
    for input in &mut inputs {
        input.is_optional |= job.feeds.iter().any(|(tensor, _)| *tensor == input.tensor);
    }
    let outputs =
        job.fetches.iter().map(|tensor| port(graph, job.ports.name(tensor), tensor)).collect::<Result<_, _>>()?;
    let batch = args.max_batch as usize;
    let signature = job.ports.signature.clone().unwrap_or_else(|| ServedModel::SIGNATURE.to_owned());
    Ok(ServedModel { name, signature, inputs, outputs, fixed: job.feeds.clone(), batch })
}

/// The inputs by their names in the model; of a graph without such names, the placeholders that the fetches need.
fn inputs(job: &StepRequest) -> Result<Vec<ServedPort>, Trouble> {
    let graph = &job.graph;
    let named = job.ports.named_inputs();
    if !named.is_empty() {
        return named.iter().map(|(name, tensor)| port(graph, name, tensor)).collect();
    }
    let placeholders = graph.nodes().filter(|(_, node)| node.op.role == Role::Placeholder);
    let feeds: Vec<String> = placeholders.map(|(_, node)| node.name.clone()).collect();
    let step = Signature { feeds, fetches: job.fetches.clone(), ..Signature::default() };
    let needed: BTreeSet<u32> = needed_feeds(graph, &step)?.into_iter().flatten().collect();
    needed.into_iter().map(|place| &step.feeds[place as usize]).map(|name| port(graph, name, name)).collect()
}

fn port(graph: &Graph, name: &str, tensor: &str) -> Result<ServedPort, Trouble> {
    let output: Output = graph.output(tensor)?;
    let (name, tensor) = (name.to_owned(), tensor.to_owned());
    let dtype = graph.output_type(output).dtype;
    // A node that computes a value by itself is fed at will.
    let is_optional = graph.node(output.node).op.role != Role::Placeholder;
    Ok(ServedPort { name, tensor, dtype, shape: graph.shapes().of(output), is_optional })
}

fn is_name(name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_of_name)
}

/// The name of a file without its ending, as far as a model may have it.
fn name_of(file: &Path) -> String {
    let is_folder = file.is_dir();
    let stem = if is_folder { file.file_name() } else { file.file_stem() };
    let name: String = stem.map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String =
        name.chars().map(|letter| if is_name(&letter.to_string()) { letter } else { '_' }).take(MAX_NAME).collect();
    if name.trim_matches(['.', '_', '-']).is_empty() { "model".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_the_name_of_its_file() {
        let check = |file: &str, name: &str| assert_eq!(name_of(Path::new(file)), name, "{file}");
        check("models/resnet-18.onnx", "resnet-18");
        check("my model.json", "my_model");
        check("-", "model");
        check("..", "model");
        assert!(is_name("a.b_c-1") && !is_name("a:b") && !is_name("") && !is_name(&"a".repeat(129)));
    }
}
