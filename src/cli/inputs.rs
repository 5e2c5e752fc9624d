//! What `submit`, `run` and `plan` have in common: a graph file, what to feed it, what to ask of it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Trouble;
use crate::device::DeviceSpec;
use crate::graph::{self, Graph};
use crate::plan::{Signature, Task};
use crate::tensor::{DType, MAX_TENSOR_BYTES, Tensor, literal, npy};

/// Largest file that is read, graph or array: what one tensor may hold, and room for a graph around it.
const MAX_FILE_BYTES: u64 = MAX_TENSOR_BYTES as u64 + (64 << 20);

/// A graph, feeds and fetches.
#[derive(Debug, clap::Args)]
pub(super) struct GraphArgs {
    /// Graph file: graph.json, or a GraphDef as TensorFlow writes it (JSON or binary); - reads stdin
    graph: PathBuf,
    /// Tensor to fetch, NAME or NAME:PORT; again, or with commas, for more [default: what the file says]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    fetch: Vec<String>,
    /// Value for a tensor: NAME=2.5, NAME=[[1,2],[3,4]], NAME='"text"' or NAME=@FILE.npy; again for more
    #[arg(long, value_name = "NAME=VALUE", value_parser = feed)]
    feed: Vec<Feed>,
    /// Node to run without fetching anything from it; again, or with commas, for more
    #[arg(long = "run", value_name = "NODE", value_delimiter = ',')]
    targets: Vec<String>,
}

/// `--feed NAME=VALUE`, taken apart.
#[derive(Clone, Debug, PartialEq)]
struct Feed {
    tensor: String,
    value: String,
}

fn feed(text: &str) -> Result<Feed, String> {
    match text.split_once('=') {
        Some((tensor, value)) if !tensor.is_empty() && !value.is_empty() => {
            Ok(Feed { tensor: tensor.to_owned(), value: value.to_owned() })
        }
        _ => Err("a feed is written NAME=VALUE, e.g. x=2.5, x=[[1,2],[3,4]] or x=@x.npy".to_owned()),
    }
}

/// A value as the command line states it, as the `dtype` that is wanted.
fn fed(value: &str, dtype: DType) -> Result<Tensor, String> {
    let fed = match value.strip_prefix('@') {
        None => literal::parse_as(value, dtype),
        Some(file) => {
            let bytes = read(file.as_ref()).map_err(|trouble| trouble.to_string())?;
            let array = npy::read(&bytes).and_then(|array| literal::convert_feed(array, dtype));
            return array.map_err(|failure| format!("{file}: {}", failure.message));
        }
    };
    fed.map_err(|failure| failure.message)
}

/// The bytes of a file; `-` is stdin.
fn read(path: &Path) -> Result<Vec<u8>, Trouble> {
    let name = if path.as_os_str() == "-" { "stdin".to_owned() } else { path.display().to_string() };
    let cannot = |error: std::io::Error| Trouble::input(format!("{name}: {error}"));
    let file: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(cannot)?)
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Trouble::input(format!("{name} is larger than {MAX_FILE_BYTES} bytes, the limit of one file")));
    }
    Ok(bytes)
}

/// A graph read and checked, with everything a step takes.
pub(super) struct Job {
    pub graph: Graph,
    pub feeds: Vec<(String, Tensor)>,
    pub fetches: Vec<String>,
    pub targets: Vec<String>,
    /// Nodes to run once before the first step.
    pub init: Vec<String>,
}

impl GraphArgs {
    /// Reads the file and every feed, and holds them against each other.
    pub fn read(&self) -> Result<Job, Trouble> {
        let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", self.graph.display()));
        let program = graph::read(&read(&self.graph)?).map_err(|error| at(&error))?;
        let graph = Graph::new(program.nodes).map_err(|error| at(&error))?;

        // Who says what to run means to go on with the variables as they are.
        let (fetches, targets, init) = if self.fetch.is_empty() && self.targets.is_empty() {
            (program.fetch, program.targets, program.init)
        } else {
            (self.fetch.clone(), self.targets.clone(), Vec::new())
        };
        if fetches.is_empty() && targets.is_empty() {
            return Err(Trouble::input(format!(
                "{} does not say what to fetch: name it with --fetch (or --run, to run a node without fetching)",
                self.graph.display()
            )));
        }
        for fetch in &fetches {
            graph.output(fetch)?;
        }
        for target in targets.iter().chain(&init) {
            graph.find_or_nearest(target)?;
        }

        // What the command line feeds stands before what the file feeds.
        let mut feeds: BTreeMap<String, Tensor> = program.feed.into_iter().collect();
        for Feed { tensor, value } in &self.feed {
            let output = graph.output(tensor)?;
            let dtype = graph.output_type(output).dtype;
            let fed = fed(value, dtype)
                .map_err(|why| Trouble::input(format!("--feed {tensor}: {why}; {tensor} is {dtype}")))?;
            feeds.insert(tensor.clone(), fed);
        }
        Ok(Job { graph, feeds: feeds.into_iter().collect(), fetches, targets, init })
    }
}

impl Job {
    pub fn signature(&self) -> Signature {
        Signature {
            feeds: self.feeds.iter().map(|(tensor, _)| tensor.clone()).collect(),
            fetches: self.fetches.clone(),
            targets: self.targets.clone(),
        }
    }

    /// The feeds as a session takes them.
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

    /// The tasks that the graph's device strings name, in the order of their names; a job without a number is its task 0.
    pub fn tasks(&self) -> Vec<Task> {
        let mut tasks: Vec<Task> = self
            .graph
            .nodes()
            .filter_map(|(_, node)| node.device.parse::<DeviceSpec>().ok())
            .filter_map(|spec| Some(Task::new(spec.job?, spec.task.unwrap_or(0))))
            .collect();
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }
}
