//! The inputs that `submit`, `run` and `plan` share: a graph file, feeds and fetches.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(super) use meshtf::program_file::load::Files;
use meshtf::program_file::load::{Content, NoGraph};
use meshtf::program_file::{self, Ports, Tuning, load};
use meshtf::trainer::Fits;
use meshtf::trainer::answers::{Answer, answers};
use meshtf::trainer::unseen::Unseen;
use meshtf::trainer::weights::At;
use meshtf::weight_file;
use meshtf_graph::op::Role;
use meshtf_graph::plan::{self, Signature};
use meshtf_graph::{Attr, FormatError, Graph, GraphError, NodeDef, NodeId, Program, split_tensor_name};
use meshtf_onnx::Port;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::nearest::nearest;
use meshtf_tensor::{DType, Tensor};
use meshtf_train::file::{self, Sections};
use meshtf_weights::map::Rules;

use super::Trouble;
use super::feeds::{Fed, FeedArgs, Of};
use super::predictions::Header;
use super::tuned::{Model, read_for_run};

/// Maximum number of placeholders that are named in a message, besides those whose names are near.
const MAX_NAMED: usize = 8;

/// A graph, feeds and fetches.
#[derive(Debug, clap::Args)]
pub(super) struct GraphArgs {
    /// Graph file: graph.json, a TensorFlow GraphDef (JSON or binary) or MetaGraph, an ONNX model, or the folder of a SavedModel;
    /// - is stdin
    graph: PathBuf,
    /// Signature of a SavedModel, whose inputs and outputs are names for --feed and --fetch [default: serving_default, or the
    /// only one]
    #[arg(long, value_name = "NAME")]
    signature: Option<String>,
    /// Tensor to fetch, NAME or NAME:PORT; repeatable, or separated by commas [default: the file's]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    fetch: Vec<String>,
    #[command(flatten)]
    feeds: FeedArgs,
    /// Node to run without fetching its outputs; repeatable, or separated by commas
    #[arg(long = "run", value_name = "NODE", value_delimiter = ',')]
    targets: Vec<String>,
}

/// Rules by which the tensors of --weights get the names of the graph's variables.
#[derive(Debug, Default, clap::Args)]
pub(super) struct MapArgs {
    /// File with rules that give the tensors of --weights the names of variables: a list such as [{"prefix": "model.", "to":
    /// ""}, {"pattern": "layer(\\d+)", "to": "h$1"}, {"name": "fc.weight", "to": "out/kernel", "transpose": [1, 0]}, {"prefix":
    /// "aux.", "drop": true}]; each applies to the name that those before it made
    #[arg(long, value_name = "FILE", requires = "weights")]
    map: Option<PathBuf>,
}

impl MapArgs {
    /// The rules of the file.
    pub fn rules(&self) -> Result<Option<Rules>, Trouble> {
        self.map.as_deref().map(rules).transpose()
    }
}

/// The rules of a file.
pub(super) fn rules(path: &Path) -> Result<Rules, Trouble> {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("--map {}: {why}", path.display()));
    let text = String::from_utf8(read(path)?).map_err(|_| at(&"it is not text"))?;
    Rules::read(&text).map_err(|failure| at(&failure.message))
}

/// The bytes of a file; `-` is stdin.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Trouble> {
    let name = if path.as_os_str() == "-" { "stdin".to_owned() } else { path.display().to_string() };
    let read = if path.as_os_str() == "-" { load::all_of(std::io::stdin().lock(), 0) } else { load::content(path) };
    read.map_err(|failure| Trouble::input(format!("{name}: {}", failure.message)))
}

/// The program of a file, and the graph of its nodes, which are no longer in the program.
pub(super) fn read_graph(path: &Path) -> Result<(Program, Graph), Trouble> {
    read_program(path).map(|(program, graph, _)| (program, graph))
}

/// As [`read_graph`], with the bytes of the file.
pub(super) fn read_program(path: &Path) -> Result<(Program, Graph, Vec<u8>), Trouble> {
    read_with_ports(path, None).map(|(program, graph, bytes, _)| (program, graph, bytes))
}

/// As [`read_program`], with the inputs and outputs of a model: those of a signature, where it has several.
pub(super) fn read_with_ports(path: &Path, signature: Option<&str>) -> Result<Model, Trouble> {
    read_tuned(path, signature, Tuning::default())
}

/// As [`read_with_ports`]; parts of an ONNX model are read in another way.
pub(super) fn read_tuned(path: &Path, signature: Option<&str>, tuning: Tuning) -> Result<Model, Trouble> {
    read_noting(path, signature, tuning, &mut |_, _, _| {})
}

/// As [`read_tuned`]; `note` is called with each part of a file beside the program that is read: the file, the first byte, and
/// the number of bytes.
pub(super) fn read_noting(
    path: &Path,
    signature: Option<&str>,
    tuning: Tuning,
    note: &mut dyn FnMut(&Path, u64, usize),
) -> Result<Model, Trouble> {
    let path = &program_file::file_of(path);
    read_content(path, read(path)?.into(), signature, tuning, note)
}

/// As [`read_tuned`], for a graph that runs: the bytes of a model may lack its large weights, which are read one by one.
pub(super) fn read_to_run(path: &Path, signature: Option<&str>, tuning: Tuning) -> Result<Model, Trouble> {
    if path.as_os_str() == "-" {
        return read_tuned(path, signature, tuning);
    }
    let path = &program_file::file_of(path);
    let content = Content::open(path);
    let content = content.map_err(|failure| Trouble::input(format!("{}: {}", path.display(), failure.message)))?;
    read_content(path, content, signature, tuning, &mut |_, _, _| {})
}

fn read_content(
    path: &Path,
    content: Content,
    signature: Option<&str>,
    tuning: Tuning,
    note: &mut dyn FnMut(&Path, u64, usize),
) -> Result<Model, Trouble> {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", path.display()));
    let read = load::checked(path, &content, signature, tuning, note);
    let (program, graph, ports) = read.map_err(|why| match why {
        NoGraph::Content(FormatError::NoMemory { .. }) => Trouble::from(Failure::from(why)),
        NoGraph::Content(error) => match no_graph(path, &error) {
            Some(why) => at(&why),
            None => at(&error),
        },
        NoGraph::Nodes(failure) => at(&failure.message),
    })?;
    // Nobody else has them: they are not copied.
    Ok((program, graph, content.bytes.into(), ports))
}

/// The reason why a file is no graph, if it is a file of another kind.
pub(super) fn no_graph(path: &Path, error: &FormatError) -> Option<String> {
    if matches!(error, FormatError::Node { .. } | FormatError::TooLarge { .. }) || path.as_os_str() == "-" {
        return None;
    }
    let source = weight_file::source(path).ok()?;
    match meshtf_weights::Form::of(&source) {
        Ok(Some(form)) => Some(format!(
            "it has weights alone ({form}), and no graph: `meshtf inspect {0}` lists them; for a graph with variables of those names, use \
             `meshtf run GRAPH --weights {0}`",
            path.display()
        )),
        Ok(None) => meshtf_weights::other(&source).ok().flatten(),
        Err(_) => None,
    }
}

/// The placeholders of a graph, those that are named like this first, for a message on a name that is none of them.
pub(super) fn placeholders(graph: &Graph, name: &str) -> String {
    let all =
        || graph.nodes().filter(|(_, node)| node.op.role == Role::Placeholder).map(|(_, node)| node.name.as_str());
    let mut names: Vec<&str> = nearest(name, all());
    names.extend(all().filter(|own| !names.contains(own)).take(MAX_NAMED).collect::<Vec<_>>());
    let more = if all().count() > names.len() { ", …" } else { "" };
    match &names[..] {
        [] => "the graph has no placeholders".to_owned(),
        [one] => format!("the placeholder of the graph is {one}"),
        names => format!("the placeholders of the graph are {}{more}", names.join(", ")),
    }
}

/// The error for an invalid name to feed.
pub(super) fn feed_error(graph: &Graph, name: &str, error: &GraphError) -> Trouble {
    match error {
        GraphError::NoSuchNode { .. } => {
            let why = format!("there is no tensor {name}; {}", placeholders(graph, split_tensor_name(name).0));
            Trouble::input(format!("--feed {name}: {why}"))
        }
        _ => asked("feed", name, error),
    }
}

/// The error for an invalid name to fetch, feed or run, with a hint.
fn asked(role: &str, name: &str, error: &GraphError) -> Trouble {
    let hint = match error {
        GraphError::NoSuchPort { ports: 0, .. } => {
            format!("; it has no output to {role}; to run it, use --run (or \"targets\" in the file)")
        }
        GraphError::NoSuchNode { .. } if role == "run" && name.contains(':') => {
            "; expected the name of a node, without :PORT".to_owned()
        }
        _ => String::new(),
    };
    Trouble::input(format!("{role} {name}: {error}{hint}"))
}

/// A validated graph with all arguments of a step.
pub(super) struct StepRequest {
    /// The file of the graph.
    pub file: PathBuf,
    /// All files that were read.
    files: Vec<PathBuf>,
    pub graph: Graph,
    /// The inputs and outputs of an ONNX model.
    pub ports: Ports,
    pub feeds: Vec<(String, Tensor)>,
    pub fetches: Vec<String>,
    /// The names by which the fetches are shown: those of the command line, else those that the model has for them.
    pub names: Vec<String>,
    pub targets: Vec<String>,
    /// Nodes to run once before the first step, as named in the file.
    pub init: Vec<String>,
    /// Whether they run without --init.
    pub runs_init: bool,
    /// The content of the graph's file, which may have the sections of a training.
    text: Vec<u8>,
    /// The measurements of that training.
    fits: Fits,
    /// The first file that is fed and was read as the training reads its own.
    read: Option<Unseen>,
}

impl GraphArgs {
    /// The graph and the sections of a file that has those of a training, unless a fetch or node is named; stdin has none.
    pub fn training(&self) -> Result<Option<(Graph, Sections)>, Trouble> {
        if !self.fetch.is_empty() || !self.targets.is_empty() {
            return Ok(None);
        }
        self.whole_training()
    }

    /// The graph and the training of the file, if it has one, whatever is to run.
    pub fn whole_training(&self) -> Result<Option<(Graph, Sections)>, Trouble> {
        if self.graph.as_os_str() == "-" {
            return Ok(None);
        }
        let bytes = read(&program_file::file_of(&self.graph))?;
        // The graph of another file, which may be large, is not made here.
        let Some(text) = std::str::from_utf8(&bytes).ok().filter(|text| file::has_training(text)) else {
            return Ok(None);
        };
        let (_, graph, _) = read_program(&self.graph)?;
        let sections = file::read(text);
        let sections = sections.map_err(|fault| Trouble::input(format!("{}: {fault}", self.graph.display())))?;
        Ok(Some((graph, sections)))
    }

    /// Reads the file and every feed, and checks them against each other.
    /// `weights` has what was measured for the training of the model.
    pub fn read(&self, weights: Option<At>) -> Result<StepRequest, Trouble> {
        let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", self.graph.display()));
        let (program, graph, bytes, ports) = read_for_run(&self.graph, self.signature.as_deref(), weights)?;
        let named = |names: &[String]| names.iter().map(|name| ports.tensor(name).to_owned()).collect();

        // Explicit fetches or targets mean that the current values of the variables are kept.
        let by_file = self.fetch.is_empty() && self.targets.is_empty();
        let (fetches, targets) = match by_file {
            true => (program.fetch, program.targets),
            false => (named(&self.fetch), self.targets.clone()),
        };
        // The values that a model restores are part of it, whatever is fetched.
        let runs_init = (by_file || ports.is_model) && !program.init.is_empty();
        let init = program.init;
        if fetches.is_empty() && targets.is_empty() {
            return Err(at(&ports.nothing_to_fetch("use --fetch (or --run, to run a node without fetching)")));
        }
        let names = match by_file {
            true => fetches.iter().map(|tensor| ports.name(tensor).to_owned()).collect(),
            false => self.fetch.clone(),
        };
        for fetch in &fetches {
            graph.output(fetch).map_err(|error| asked("fetch", fetch, &error))?;
        }
        for target in targets.iter().chain(init.iter().filter(|_| runs_init)) {
            graph.find_or_nearest(target).map_err(|error| asked("run", target, &error))?;
        }

        let own = fetches.iter().chain(&targets).map(|name| split_tensor_name(name).0);
        let wanted = own.filter_map(|name| graph.find(name)).collect();
        let of = Of { path: &self.graph, text: &bytes, graph: &graph, ports: &ports, wanted, weights };
        // The command line's feeds override the file's.
        let Fed { feeds, files: fed, fits, unseen: read } = self.feeds.read(&of, program.feed.into_iter().collect())?;
        // Reports a node that no step can run now, before the master does.
        if graph.has_refused() {
            let fed: Vec<String> = feeds.keys().cloned().collect();
            let step = |fetches: &[String], targets: &[String]| Signature {
                feeds: fed.clone(),
                fetches: fetches.to_vec(),
                targets: targets.to_vec(),
                ..Signature::default()
            };
            let first = runs_init.then(|| step(&[], &init));
            for signature in first.into_iter().chain([step(&fetches, &targets)]) {
                plan::check(&graph, &signature).map_err(|error| at(&error))?;
            }
        }
        let feeds = feeds.into_iter().collect();
        let file = self.graph.clone();
        let files = fed.into_iter().chain([file.clone()]).chain(weights.map(|at| at.path.to_owned())).collect();
        // A binary file has no sections of a training, and may be as large as all weights: the first step packs these. A model
        // without its weights may be text by chance.
        let mut text = bytes;
        if std::str::from_utf8(&text).is_err() || meshtf_onnx::is_model(&text) {
            text = Vec::new();
            meshtf::allocator::give_back();
        }
        Ok(StepRequest { file, files, graph, ports, feeds, fetches, names, targets, init, runs_init, text, fits, read })
    }
}

impl StepRequest {
    pub fn signature(&self) -> Signature {
        Signature {
            feeds: self.feeds.iter().map(|(tensor, _)| tensor.clone()).collect(),
            fetches: self.fetches.clone(),
            targets: self.targets.clone(),
            ..Signature::default()
        }
    }

    /// The graph with a placeholder of the fed shape for each fed tensor, for planning without the values. If the
    /// file's placeholder does not admit the shape, it is left for the run to refuse.
    pub fn graph_as_fed(&self) -> Cow<'_, Graph> {
        if self.feeds.is_empty() {
            return Cow::Borrowed(&self.graph);
        }
        let mut defs = self.graph.to_defs();
        // Fed nodes that run nevertheless, since something depends on the node and not on its value.
        let mut run: BTreeSet<NodeId> =
            self.targets.iter().chain(&self.init).filter_map(|name| self.graph.find(name)).collect();
        run.extend(self.graph.nodes().flat_map(|(_, node)| &node.control));
        for (tensor, value) in &self.feeds {
            let Ok(output) = self.graph.output(tensor) else { continue };
            let node = self.graph.node(output.node);
            let is_only_value = matches!(&node.outputs[..], [one] if !one.is_ref) && !node.input_refs.contains(&true);
            let admits = node.op.role != Role::Placeholder
                || node.attrs.shape("shape").is_ok_and(|shape| shape.admits(value.shape()));
            if !is_only_value || !admits || run.contains(&output.node) {
                continue;
            }
            let mut attrs = node.attrs.clone();
            attrs.0.retain(|name, _| name.starts_with('_'));
            attrs.set("dtype", Attr::Type(value.dtype()));
            attrs.set("shape", Attr::Shape(value.shape().into()));
            let (name, device) = (node.name.clone(), node.device.clone());
            defs[output.node.index()] =
                NodeDef { name, op: "Placeholder".to_owned(), device, attrs, ..NodeDef::default() };
        }
        Graph::new(defs).map_or(Cow::Borrowed(&self.graph), Cow::Owned)
    }

    /// The shown names of the fetches, their dtypes, and whether NumPy has none for it.
    pub fn fetch_types(&self) -> Result<Vec<(&str, DType, bool)>, Trouble> {
        let mut types = Vec::with_capacity(self.fetches.len());
        for (name, tensor) in self.names.iter().zip(&self.fetches) {
            let is_proto = self.ports.output(tensor).is_some_and(Port::is_proto);
            types.push((name.as_str(), self.graph.output_type(self.graph.output(tensor)?).dtype, is_proto));
        }
        Ok(types)
    }

    /// The shown name of a tensor that is fetched.
    pub fn shown<'n>(&'n self, tensor: &'n str) -> &'n str {
        self.fetches.iter().position(|own| own == tensor).map_or(tensor, |at| self.names[at].as_str())
    }

    /// An error of a step, with the layer in place of a node of it.
    pub fn explained(&self, trouble: Trouble) -> Trouble {
        trouble.in_layer(&self.file, || Some(self.text.clone()))
    }

    /// The files that are read.
    pub fn inputs(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    /// The feeds in the form that a session takes.
    pub fn feeds(&self) -> Vec<(&str, Tensor)> {
        self.feeds.iter().map(|(tensor, value)| (tensor.as_str(), value.clone())).collect()
    }

    pub fn fetches(&self) -> Vec<&str> {
        self.fetches.iter().map(String::as_str).collect()
    }

    pub fn targets(&self) -> Vec<&str> {
        self.targets.iter().map(String::as_str).collect()
    }

    pub fn init(&self) -> Vec<&str> {
        self.init.iter().map(String::as_str).collect()
    }

    /// The tasks that the graph names.
    pub fn tasks(&self) -> Vec<Task> {
        self.graph.tasks()
    }

    /// Whether the graph's file has the sections of a training.
    pub fn is_trained(&self) -> bool {
        file::read(std::str::from_utf8(&self.text).unwrap_or_default()).is_ok()
    }

    /// The meaning of the fetches, for records of the examples that were fed, and these examples if they came from a file.
    pub fn predictions(&self) -> Result<(Header, Option<&Unseen>), Trouble> {
        let sections = file::read(std::str::from_utf8(&self.text).unwrap_or_default());
        let answers = match sections {
            Ok(sections) => answers(&self.graph, &sections, &self.fits, &self.fetches)?,
            // A graph without sections has values alone.
            Err(_) => self.names.iter().map(|name| Answer::of_values(name)).collect(),
        };
        Ok((Header { ids: Vec::new(), answers }, self.read.as_ref()))
    }
}
