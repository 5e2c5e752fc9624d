//! Programs of files, with the files next to them that hold their constants and variables.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use bytes::Bytes;
use meshtf_graph::{FormatError, Graph, GraphError, NodeDef, Program};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{MAX_TENSOR_BYTES, MAX_TEXT_BYTES, Tensor, memory};

use super::trained::Patterns;
use super::{Ports, Tuning, file_of, read_at};

/// Largest file of a graph: protobuf's limit, and some space.
pub const MAX_FILE_BYTES: u64 = MAX_TEXT_BYTES as u64 + (64 << 20);
/// Largest part of a file of constants that is read at once: the limit of one tensor, and some space for the form around it.
const MAX_PART_BYTES: u64 = MAX_TENSOR_BYTES as u64 + (64 << 20);

/// Smallest file whose large weights are read one by one. A smaller one leaves little memory free when it is read as a whole, and
/// its parts leave more of it between the weights.
const LEAST_APART: u64 = 16 << 20;

/// The files in the folder of a model that hold its weights, each opened once.
pub struct Files<'f> {
    folder: &'f Path,
    open: HashMap<String, File>,
}

impl Files<'_> {
    pub fn in_folder(folder: &Path) -> Files<'_> {
        Files { folder, open: HashMap::new() }
    }

    /// The bytes of a range of a file that it has.
    ///
    /// # Errors
    /// The reason of the system with the file's name; InvalidArgument for a part that exceeds the limit of a file.
    pub fn read(&mut self, name: &str, range: Range<u64>) -> Result<Vec<u8>, Failure> {
        let path = self.folder.join(name);
        let cannot = |error: std::io::Error| Failure::invalid(format!("{}: {error}", path.display()));
        let was_open = self.open.contains_key(name);
        let file = match self.open.entry(name.to_owned()) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => place.insert(File::open(&path).map_err(cannot)?),
        };
        let metadata = file.metadata().map_err(cannot)?;
        // A pipe has no length, and is read from its beginning to its end.
        if !metadata.is_file() && (range.start > 0 || was_open) {
            let why = format!(
                "{}: it is no regular file: of a pipe or a device no part can be read by itself, and a model's external data are read \
                 part by part; copy it to a file first",
                path.display()
            );
            return Err(Failure::invalid(why));
        }
        let length = metadata.len();
        let wanted = range.end.min(length.max(range.start)).saturating_sub(range.start);
        let most = range.end.saturating_sub(range.start).min(MAX_PART_BYTES + 1);
        if range.start > 0 || length > 0 {
            file.seek(SeekFrom::Start(range.start)).map_err(cannot)?;
        }
        // The length is true, or the file is read as far as it goes: no more is reserved than there is.
        let known = usize::try_from(wanted.min(most)).unwrap_or(0);
        memory::admit(known)?;
        let mut bytes = Vec::with_capacity(known);
        file.take(most).read_to_end(&mut bytes).map_err(cannot)?;
        if bytes.len() as u64 > MAX_PART_BYTES {
            let why = format!("{} exceeds the limit of {MAX_PART_BYTES} bytes per part", path.display());
            return Err(Failure::invalid(why));
        }
        Ok(bytes)
    }
}

/// The program of a file, checked.
///
/// ```
/// use meshtf::graph::ProgramFile;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # let folder = temp_dir::TempDir::new()?;
/// # let path = folder.path().join("graph.json");
/// # std::fs::write(&path, r#"{ "version": 1, "nodes": { "y": { "op": "AddV2", "inputs": [40, 2] } }, "fetch": ["y"] }"#)?;
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let file = ProgramFile::load(&path, None)?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(file.graph, None, SessionOptions::default()).await?;
/// assert_eq!(session.run().fetches(&file.fetch).await?[0].item::<i32>()?, 42);
/// # Ok::<(), meshtf::Failure>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProgramFile {
    /// Its graph.
    pub graph: Graph,
    /// The tensors that a run fetches by default.
    pub fetch: Vec<String>,
    /// The values that a run feeds by default.
    pub feed: Vec<(String, Tensor)>,
    /// The nodes that a run runs by default.
    pub targets: Vec<String>,
    /// The nodes that give the variables their first values, to be run once: see [`Init`](crate::Init).
    pub init: Vec<String>,
    ports: Ports,
}

impl ProgramFile {
    /// Reads a graph.json, a GraphDef (binary or JSON), a MetaGraph, an ONNX model, or the folder of a SavedModel, with the files
    /// next to it that it refers to. `signature` chooses one of a SavedModel: by default `serving_default`, or the only one.
    ///
    /// # Errors
    /// NotFound if there is no such file; InvalidArgument for its content, with the location and the remedy; ResourceExhausted if
    /// there is not enough memory for it.
    pub fn load(path: impl AsRef<Path>, signature: Option<&str>) -> Result<ProgramFile> {
        ProgramFile::load_trained(path, signature, &[])
    }

    /// As [`load`](ProgramFile::load), with variables in place of weights, which a training changes: the initializers of an ONNX
    /// model, or the constants of a graph without variables, whose names match one of `trained`. In these, `*` is any text, `?`
    /// any character, and `[12]` one of a set. Only floats are weights, and of constants those with a dimension. The variables
    /// have the names of the weights, and `init` gives them the values of the file.
    ///
    /// # Errors
    /// As [`load`](ProgramFile::load); InvalidArgument if one of `trained` matches no weight that the outputs need.
    pub fn load_trained(path: impl AsRef<Path>, signature: Option<&str>, trained: &[String]) -> Result<ProgramFile> {
        let named = path.as_ref();
        let at = |failure: Failure| Failure { message: format!("{}: {}", named.display(), failure.message), ..failure };
        let path = &file_of(named);
        let content = Content::open(path).map_err(at)?;
        let read = |tuning: Tuning| checked(path, &content, signature, tuning, &mut |_, _, _| {});
        ProgramFile::of(&content.bytes, trained, read).map_err(at)
    }

    /// Reads the content of such a file, except a SavedModel's folder; it may refer to no other file.
    ///
    /// # Errors
    /// As [`ProgramFile::load`].
    pub fn read(content: &[u8]) -> Result<ProgramFile> {
        ProgramFile::read_trained(content, &[])
    }

    /// As [`read`](ProgramFile::read), with variables in place of weights, as [`load_trained`](ProgramFile::load_trained).
    ///
    /// ```
    /// # use meshtf::graph::ProgramFile;
    /// let frozen = r#"{ "version": 1, "nodes": {
    ///     "w": { "op": "Const", "attrs": { "value": { "dtype": "float32", "value": [1, 2] } } },
    ///     "y": { "op": "Neg", "inputs": ["w"] } } }"#;
    /// let file = ProgramFile::read_trained(frozen.as_bytes(), &["w*".to_owned()])?;
    /// // It reads a variable now, which `init` gives the value of the constant.
    /// let w = file.graph.find("w").unwrap();
    /// assert_eq!((file.graph.node(w).op.name, file.init.len()), ("ReadVariableOp", 1));
    /// # Ok::<(), meshtf::Failure>(())
    /// ```
    ///
    /// # Errors
    /// As [`ProgramFile::load_trained`].
    pub fn read_trained(content: &[u8], trained: &[String]) -> Result<ProgramFile> {
        let mut beside =
            |file: &str, _| Err(Failure::invalid(format!("{file:?} cannot be read: the graph has no folder")));
        let bytes = Bytes::copy_from_slice(content);
        let read = |tuning: Tuning| {
            let read = super::read_tuned(&bytes, &mut beside, tuning).map_err(NoGraph::Content)?;
            with_graph(read, content).map_err(NoGraph::Nodes)
        };
        ProgramFile::of(&bytes, trained, read)
    }

    fn of(
        content: &Bytes,
        trained: &[String],
        read: impl FnOnce(Tuning) -> Result<Checked, NoGraph>,
    ) -> Result<ProgramFile> {
        let patterns = Patterns::new(trained);
        let is_variable = |name: &str| patterns.is_variable(name);
        let is_tuned = !trained.is_empty();
        let tuning = Tuning { is_variable: is_tuned.then_some(&is_variable), ..Tuning::default() };
        let (program, graph, ports) = read(tuning)?;
        if is_tuned {
            patterns.check(content, &graph, &ports).map_err(Failure::invalid)?;
        }
        let Program { fetch, feed, targets, init, .. } = program;
        Ok(ProgramFile { graph, fetch, feed, targets, init, ports })
    }

    /// The tensor of a name: an input or an output of the model may have another one than its tensor. Any other name is returned
    /// as it is.
    pub fn tensor<'a>(&'a self, name: &'a str) -> &'a str {
        self.ports.tensor(name)
    }

    /// The inputs of a model, by name, and their tensors; for other formats, none.
    pub fn inputs(&self) -> Vec<(String, String)> {
        self.ports.named_inputs()
    }

    /// The tensors that are fetched by default, each with the name that the model has for it.
    pub fn outputs(&self) -> Vec<(String, String)> {
        self.fetch.iter().map(|tensor| (self.ports.name(tensor).to_owned(), tensor.clone())).collect()
    }
}

impl From<Graph> for ProgramFile {
    /// A graph of which a run fetches and feeds nothing by default.
    fn from(graph: Graph) -> ProgramFile {
        ProgramFile {
            graph,
            fetch: Vec::new(),
            feed: Vec::new(),
            targets: Vec::new(),
            init: Vec::new(),
            ports: Ports::default(),
        }
    }
}

/// The program of a file, the graph of its nodes, which are no longer in the program, and the inputs and outputs of a model.
pub type Checked = (Program, Graph, Ports);

/// The reason why a file has no graph.
#[derive(Debug)]
pub enum NoGraph {
    /// Its content is no program.
    Content(FormatError),
    /// The nodes of the program are wrong.
    Nodes(Failure),
}

impl From<NoGraph> for Failure {
    fn from(why: NoGraph) -> Failure {
        match why {
            NoGraph::Content(error) => error.into(),
            NoGraph::Nodes(failure) => failure,
        }
    }
}

/// The content of a program's file.
pub struct Content {
    /// The bytes; those of a model may lack large weights, which are read from the file one by one.
    pub bytes: Bytes,
    own: Option<Own>,
}

/// The file that has the weights of a model, open.
struct Own {
    name: String,
    file: File,
    /// Its length and time of change as it was opened.
    stamp: (u64, Option<SystemTime>),
}

impl From<Vec<u8>> for Content {
    /// All that there is of a program.
    fn from(bytes: Vec<u8>) -> Content {
        Content { bytes: Bytes::from(bytes), own: None }
    }
}

impl Content {
    /// That of a file; the large weights of an ONNX model stay in it until they are needed, one by one.
    ///
    /// # Errors
    /// As [`content`].
    pub fn open(path: &Path) -> Result<Content> {
        match Content::apart(path)? {
            Some(apart) => Ok(apart),
            None => content(path).map(Content::from),
        }
    }

    /// A model without its large weights; `None` for all other files.
    fn apart(path: &Path) -> Result<Option<Content>> {
        let name = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.contains(['\\', ':']));
        // A pipe can be opened once.
        if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
            return Ok(None);
        }
        let (Some(name), Ok(file)) = (name, File::open(path)) else { return Ok(None) };
        let Ok(stamp) = stamp(&file) else { return Ok(None) };
        let is_large = (LEAST_APART..=MAX_FILE_BYTES).contains(&stamp.0);
        if !is_large {
            return Ok(None);
        }
        let mut reader = &file;
        let mut read = |at: u64, into: &mut [u8]| {
            let read = reader.seek(SeekFrom::Start(at)).and_then(|_| reader.read_exact(into));
            read.map_err(|error| Failure::invalid(error.to_string()))
        };
        let left = meshtf_onnx::without_weights(stamp.0, name, &mut read)?;
        let own = |bytes| Content { bytes: Bytes::from(bytes), own: Some(Own { name: name.to_owned(), file, stamp }) };
        Ok(left.map(own))
    }
}

impl Own {
    /// That the weights are those of the file that was opened.
    ///
    /// # Errors
    /// FailedPrecondition if it has changed since.
    fn check_unchanged(&self) -> Result<()> {
        if stamp(&self.file).is_ok_and(|stamp| stamp == self.stamp) {
            return Ok(());
        }
        Err(Failure::new(Code::FailedPrecondition, "the file changed while it was read; read it again"))
    }
}

/// The length of a file, and when it was changed.
fn stamp(file: &File) -> std::io::Result<(u64, Option<SystemTime>)> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.modified().ok()))
}

/// The content of a file.
///
/// # Errors
/// NotFound if there is none; InvalidArgument with the reason of the system, or for a file above the limit.
pub fn content(path: &Path) -> Result<Vec<u8>> {
    let cannot = |error: std::io::Error| {
        let code = if error.kind() == ErrorKind::NotFound { Code::NotFound } else { Code::InvalidArgument };
        Failure::new(code, error.to_string())
    };
    let file = File::open(path).map_err(cannot)?;
    let length = file.metadata().map_err(cannot)?.len();
    // A pipe has none.
    let known = usize::try_from(length.min(MAX_FILE_BYTES)).unwrap_or(0);
    memory::admit(known)?;
    all_of(file, known)
}

/// As [`content`], of a source that is open already, and that has about so many bytes, if that is known.
///
/// # Errors
/// As [`content`].
pub fn all_of(source: impl Read, known: usize) -> Result<Vec<u8>> {
    // With room for the read that finds the end.
    let mut bytes = Vec::with_capacity(if known == 0 { 0 } else { known + 32 });
    let read = source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::invalid(error.to_string()))?;
    match bytes.len() as u64 > MAX_FILE_BYTES {
        false => Ok(bytes),
        true => Err(Failure::invalid(format!("it exceeds the limit of {MAX_FILE_BYTES} bytes per file"))),
    }
}

/// The program of a file with its content, checked. `note` is called with each part of a file beside it that is read: the file,
/// the first byte, and the number of bytes.
///
/// # Errors
/// As [`read_at`]; InvalidArgument for a wrong node, with its location in the content, and the layer that it is of.
pub fn checked(
    path: &Path,
    content: &Content,
    signature: Option<&str>,
    tuning: Tuning,
    note: &mut dyn FnMut(&Path, u64, usize),
) -> Result<Checked, NoGraph> {
    // That of stdin is the current one.
    let folder = path.parent().unwrap_or(Path::new(""));
    let Content { bytes: content, own } = content;
    let mut files = Files::in_folder(folder);
    if let Some(own) = own {
        let file = own.file.try_clone().map_err(|error| NoGraph::Nodes(Failure::invalid(error.to_string())))?;
        files.open.insert(own.name.clone(), file);
    }
    let mut beside = |file: &str, range: Range<u64>| {
        let from = range.start;
        let bytes = files.read(file, range)?;
        note(&folder.join(file), from, bytes.len());
        Ok(bytes)
    };
    let read = read_at(path, content, &mut beside, signature, tuning).map_err(NoGraph::Content)?;
    own.as_ref().map_or(Ok(()), Own::check_unchanged).map_err(NoGraph::Nodes)?;
    with_graph(read, content).map_err(NoGraph::Nodes)
}

/// A program with the graph of its nodes, checked.
fn with_graph((mut program, ports): (Program, Ports), content: &[u8]) -> Result<Checked> {
    let graph = graph(std::mem::take(&mut program.nodes), content)?;
    Ok((program, graph, ports))
}

/// The graph of nodes, checked; an error has its location in the content, and the layer that the node is of.
fn graph(nodes: Vec<NodeDef>, content: &[u8]) -> Result<Graph> {
    let graph = Graph::new(nodes).and_then(|graph| graph.check_shapes().map(|()| graph));
    graph.map_err(|error| {
        let place = error.node().and_then(|node| meshtf_graph::place_of(content, node));
        let why = in_layer(&error, content).unwrap_or_else(|| error.to_string());
        let message = place.map_or_else(|| why.clone(), |place| format!("{place}: {why}"));
        Failure { node: error.node().map(str::to_owned), ..Failure::invalid(message) }
    })
}

/// The text of an error in a node of a layer, as one of the layer.
fn in_layer(error: &GraphError, content: &[u8]) -> Option<String> {
    let node = error.node()?;
    let layer = meshtf_graph::layer_of(content, node)?;
    let text = error.to_string();
    let rest = text.strip_prefix(&format!("node {node}"))?;
    // `node h/MatMul (MatMul): why`, or `node h/MatMul: why`.
    let why = rest.strip_prefix(" (").and_then(|rest| rest.split_once("): ")).map(|(op, why)| format!("{op}: {why}"));
    let why = why.or_else(|| rest.strip_prefix(": ").map(str::to_owned))?;
    Some(format!("layer {} ({}): {why}", layer.name, layer.kind))
}

#[cfg(test)]
mod tests {
    use meshtf_graph::Attr;
    use meshtf_onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto};
    use prost::Message as _;
    use temp_dir::TempDir;

    use super::*;

    const COUNT: usize = LEAST_APART as usize / 4 + 5;

    /// A file of a model that negates a weight.
    fn model(folder: &TempDir) -> std::path::PathBuf {
        let raw = 1.5f32.to_le_bytes().repeat(COUNT);
        let weight = TensorProto {
            dims: vec![COUNT as i64],
            data_type: 1,
            name: "w".to_owned(),
            raw_data: Some(Bytes::from(raw)),
            ..TensorProto::default()
        };
        let node = NodeProto {
            input: vec!["w".to_owned()],
            output: vec!["y".to_owned()],
            op_type: "Neg".to_owned(),
            ..NodeProto::default()
        };
        let output = vec![ValueInfoProto { name: "y".to_owned(), ..ValueInfoProto::default() }];
        let graph = GraphProto { node: vec![node], output, initializer: vec![weight], ..GraphProto::default() };
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 17 }];
        let model = ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() };
        let path = folder.child("m.onnx");
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        path
    }

    #[test]
    fn large_weights_of_a_model_are_read_from_its_file() {
        let folder = TempDir::new().unwrap();
        let path = model(&folder);
        let opened = Content::open(&path).unwrap();
        assert!(opened.own.is_some() && opened.bytes.len() < 1000);
        let whole = ProgramFile::read(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(ProgramFile::load(&path, None).unwrap().graph.to_defs(), whole.graph.to_defs());
        let weight = whole.graph.node(whole.graph.find("w").unwrap());
        let Some(Attr::Tensor(weight)) = weight.attrs.get("value") else { panic!("{weight:?}") };
        assert_eq!(weight.slice::<f32>().unwrap()[COUNT - 1], 1.5);
        // Other content is read as a whole.
        let text = folder.child("text");
        std::fs::write(&text, "{}".repeat(LEAST_APART as usize)).unwrap();
        let opened = Content::open(&text).unwrap();
        assert_eq!((opened.own.is_none(), opened.bytes.len()), (true, 2 * LEAST_APART as usize));
        assert_eq!(Content::open(&folder.child("none")).err().unwrap().code, Code::NotFound);
    }

    #[test]
    fn a_model_whose_file_changes_meanwhile_is_refused() {
        type Change = (fn(&mut Vec<u8>), &'static str);
        let changes: [Change; 2] = [
            (|bytes| bytes.push(0), "the file changed while it was read; read it again"),
            (|bytes| bytes.truncate(COUNT), "the bytes from"),
        ];
        for (change, why) in changes {
            let folder = TempDir::new().unwrap();
            let path = model(&folder);
            let opened = Content::open(&path).unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            change(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
            let read = checked(&path, &opened, None, Tuning::default(), &mut |_, _, _| {});
            let failure = Failure::from(read.unwrap_err());
            assert!(failure.message.contains(why), "{}", failure.message);
        }
        // Another file in its place is another file: what was opened is read.
        let folder = TempDir::new().unwrap();
        let path = model(&folder);
        let opened = Content::open(&path).unwrap();
        std::fs::rename(&path, folder.child("old")).unwrap();
        std::fs::write(&path, b"other").unwrap();
        assert!(checked(&path, &opened, None, Tuning::default(), &mut |_, _, _| {}).is_ok());
    }
}
