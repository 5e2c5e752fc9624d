//! A recorded session in a folder: `case.json`, the graph, and arrays as .npy files.

use std::path::{Component, Path as FilePath, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use meshtf_graph::{self as graph, Graph};
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::json::{self, Fault, Kind, Path, Value};
use meshtf_tensor::{DType, Data, MAX_TENSOR_BYTES, Shape, Tensor, literal, npy};

/// A recorded session.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name, as recorded.
    pub name: String,
    /// Its subject.
    pub description: String,
    /// The graph of the session.
    pub graph: Graph,
    /// The tasks of its cluster, in the recorded order; the first is the session's master. Only `localhost/0` if the
    /// session had no cluster.
    tasks: Vec<Task>,
    /// Whether it was recorded with a cluster.
    pub has_cluster: bool,
    /// Whether nodes whose device does not exist run elsewhere on their task.
    pub soft_placement: bool,
    /// The relative tolerance: a float may differ from the recorded one by `atol` and `rtol` times its magnitude.
    pub rtol: f64,
    /// The absolute tolerance.
    pub atol: f64,
    /// Run in order, in one session.
    pub steps: Vec<RecordedStep>,
}

/// One step of a recorded session.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedStep {
    /// The fed tensors, by name.
    pub feeds: Vec<(String, Tensor)>,
    /// The names of the fetched tensors.
    pub fetches: Vec<String>,
    /// Nodes that are run without being fetched.
    pub targets: Vec<String>,
    /// The way in which the fetched values are compared.
    pub check: Check,
    /// The answer of TensorFlow.
    pub expected: Expected,
}

/// The ways to compare fetched values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Floats within the case's tolerances, everything else exactly.
    AllClose,
    /// All elements are equal.
    Exact,
    /// Only dtype and shape.
    Shape,
    /// A serialised summary: dtype and shape, but not the bytes.
    SummaryProto,
    /// The step must run; its values are not compared.
    Skip,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// One value for each fetch.
    Values(Vec<Tensor>),
    /// The step failed.
    Error(Recorded),
}

/// An error as TensorFlow raised it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its canonical class.
    pub code: Code,
    /// Its text.
    pub message: String,
}

impl Case {
    /// Reads the case in `folder`: `case.json` and `graph.pb`, or `graph.json` if that is missing.
    ///
    /// # Errors
    /// NotFound if a file is missing, InvalidArgument if one is invalid; the error names the file.
    pub fn read(folder: &FilePath) -> Result<Case> {
        let binary = folder.join("graph.pb");
        let path = if binary.exists() { binary } else { folder.join("graph.json") };
        let mut beside = |file: &str, _| load(&folder.join(file));
        let program = graph::read_beside(&load(&path)?, &mut beside).map_err(|error| in_file(&path, error))?;
        let graph = Graph::new(program.nodes).map_err(|error| in_file(&path, error))?;

        let path = folder.join("case.json");
        let bytes = load(&path)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| in_file(&path, error))?;
        // Python's json writes NaN and Infinity as words.
        let read = json::parse_relaxed(text).map_err(Trouble::from).and_then(|value| case(&value, graph, folder));
        read.map_err(|trouble| match trouble {
            Trouble::Content(fault) => in_file(&path, graph::FormatError::of_json(text, fault)),
            Trouble::File(failure) => failure,
        })
    }

    /// The tasks of the cluster, the session's master first.
    pub fn tasks(&self) -> Vec<Task> {
        self.tasks.clone()
    }
}

/// An error in the content of case.json, or in a file that it names.
enum Trouble {
    Content(Fault),
    File(Failure),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Trouble::Content(fault)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Trouble::File(failure)
    }
}

fn in_file(path: &FilePath, error: impl std::fmt::Display) -> Failure {
    Failure::invalid(format!("{}: {error}", path.display()))
}

/// The bytes of a file no larger than a tensor with its header.
fn load(path: &FilePath) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => Code::NotFound,
            _ => Code::InvalidArgument,
        };
        Failure::new(code, format!("{}: {error}", path.display()))
    };
    let limit = MAX_TENSOR_BYTES as u64 + (1 << 20);
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > limit {
        let why = format!("{} has {length} bytes, which exceeds the limit of {limit}", path.display());
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    std::fs::read(path).map_err(failed)
}

fn case(value: &Value, graph: Graph, folder: &FilePath) -> Result<Case, Trouble> {
    let root = Path::Root;
    value.object(root, "case.json is an object")?;
    let clustered = tasks(value.get("cluster"), root.key("cluster"))?;
    let has_cluster = !clustered.is_empty();
    let steps = need(value, root, "steps")?.list(root.key("steps"), "steps is a list")?;
    let named = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(Case {
        name: optional_text(value, root, "case")?.or(named).unwrap_or_default(),
        description: optional_text(value, root, "desc")?.unwrap_or_default(),
        graph,
        tasks: if has_cluster { clustered } else { vec![Task::new("localhost", 0)] },
        has_cluster,
        soft_placement: soft_placement(value.get("config"), root.key("config"))?,
        rtol: number(need(value, root, "rtol")?, root.key("rtol"))?,
        atol: number(need(value, root, "atol")?, root.key("atol"))?,
        steps: steps
            .iter()
            .enumerate()
            .map(|(i, value)| step(value, root.key("steps").index(i), folder))
            .collect::<Result<_, _>>()?,
    })
}

/// `{"local": ["localhost:2222", …]}`: one task per address.
fn tasks(value: Option<&Value>, path: Path) -> Result<Vec<Task>, Fault> {
    let Some(value) = value.filter(|value| value.kind != Kind::Null) else { return Ok(Vec::new()) };
    let mut tasks = Vec::new();
    for job in value.object(path, "a cluster is an object of addresses by job")? {
        let path = path.key(&job.key);
        for i in 0..job.value.list(path, "a job is a list of addresses")?.len() {
            let task = format!("{}/{i}", job.key).parse();
            tasks.push(task.map_err(|error| Fault::content(&job.value, path, format!("{error}")))?);
        }
    }
    Ok(tasks)
}

/// Whether the session's ConfigProto, as an object or as its JSON in a string, allows soft placement.
fn soft_placement(value: Option<&Value>, path: Path) -> Result<bool, Fault> {
    let Some(value) = value else { return Ok(false) };
    let allows = |config: &Value| {
        let flag = config.get("allowSoftPlacement").or_else(|| config.get("allow_soft_placement"));
        flag.is_some_and(|flag| flag.kind == Kind::Bool(true))
    };
    match &value.kind {
        Kind::Null => Ok(false),
        Kind::Object(_) => Ok(allows(value)),
        Kind::String(text) => match json::parse(text) {
            Ok(config) => Ok(allows(&config)),
            Err(fault) => Err(Fault::content(value, path, format!("the config is not JSON: {}", fault.why))),
        },
        _ => Err(Fault::content(value, path, "a config is an object, its JSON in a string, or null")),
    }
}

fn step(value: &Value, path: Path, folder: &FilePath) -> Result<RecordedStep, Trouble> {
    value.object(path, "a step is an object")?;
    let error = value.get("error").filter(|error| error.kind != Kind::Null);
    let check = match optional_text(value, path, "check")?.as_deref() {
        None | Some("allclose") => Check::AllClose,
        Some("exact") => Check::Exact,
        Some("shape") => Check::Shape,
        Some("summary_proto") => Check::SummaryProto,
        Some("skip") => Check::Skip,
        Some(other) => {
            let why = format!("{other:?} is not allclose, exact, shape, summary_proto or skip");
            return Err(Fault::content(value.get("check").unwrap_or(value), path.key("check"), why).into());
        }
    };
    let fetches = names(value, path, "fetches")?;
    let expected = match error {
        Some(error) => Expected::Error(recorded(error, path.key("error"))?),
        None => {
            let values = tensors(value, path, "expected", folder)?;
            if values.len() != fetches.len() && check != Check::Skip {
                let why = format!("there are {} expected values for {} fetches", values.len(), fetches.len());
                return Err(Fault::content(value, path, why).into());
            }
            Expected::Values(values.into_iter().map(|(_, tensor)| tensor).collect())
        }
    };
    let feeds = tensors(value, path, "feeds", folder)?;
    Ok(RecordedStep { feeds, fetches, targets: names(value, path, "targets")?, check, expected })
}

fn recorded(value: &Value, path: Path) -> Result<Recorded, Fault> {
    let number = number(need(value, path, "code")?, path.key("code"))?;
    let code = Code::from_number(number as u8)
        .filter(|code| f64::from(code.number()) == number)
        .ok_or_else(|| Fault::content(value, path.key("code"), format!("{number} is not a canonical code")))?;
    Ok(Recorded { code, message: optional_text(value, path, "message")?.unwrap_or_default() })
}

/// Named tensors, each from its .npy, its `data` or its `b64`.
fn tensors(step: &Value, path: Path, key: &str, folder: &FilePath) -> Result<Vec<(String, Tensor)>, Trouble> {
    let path = path.key(key);
    let Some(value) = step.get(key).filter(|value| value.kind != Kind::Null) else { return Ok(Vec::new()) };
    value
        .list(path, "this is a list of tensors")?
        .iter()
        .enumerate()
        .map(|(i, item)| {
            let path = path.index(i);
            let name = need(item, path, "name")?.text(path.key("name"))?.to_owned();
            Ok((name, tensor(item, path, folder)?))
        })
        .collect()
}

fn tensor(value: &Value, path: Path, folder: &FilePath) -> Result<Tensor, Trouble> {
    let stated = need(value, path, "dtype")?;
    let dtype = DType::from_name(stated.text(path.key("dtype"))?)
        .ok_or_else(|| Fault::content(stated, path.key("dtype"), "this is not a dtype"))?;
    let sizes = need(value, path, "shape")?;
    let shape = Shape::from_i64s(&literal::from_json(sizes, Some(DType::I64), path.key("shape"))?.to_i64s()?)?;
    let fault = |at: &Value, key: &str, why: String| Trouble::from(Fault::content(at, path.key(key), why));

    if let Some(file) = value.get("npy") {
        let text = file.text(path.key("npy"))?;
        let relative = PathBuf::from(text);
        if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(fault(file, "npy", format!("{text:?} leads out of the case's folder")));
        }
        let file = folder.join(relative);
        let read = npy::read(&load(&file)?).map_err(|failure| in_file(&file, failure.message))?;
        if (read.dtype(), read.shape()) != (dtype, &shape) {
            let why = format!("it contains {} of shape {}, not {dtype} of shape {shape}", read.dtype(), read.shape());
            return Err(in_file(&file, why).into());
        }
        return Ok(read);
    }
    if let Some(data) = value.get("data") {
        let read = literal::from_json(data, Some(dtype), path.key("data"))?;
        return read.reshaped(shape).map_err(|failure| fault(data, "data", failure.message));
    }
    if let Some(encoded) = value.get("b64") {
        let path = path.key("b64");
        let strings = encoded
            .list(path, "b64 is a list of strings")?
            .iter()
            .enumerate()
            .map(|(i, item)| {
                let text = item.text(path.index(i))?;
                BASE64_STANDARD.decode(text).map_err(|error| Fault::content(item, path.index(i), format!("{error}")))
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        return Tensor::new(shape, Data::String(strings)).map_err(|failure| fault(encoded, "b64", failure.message));
    }
    Err(Fault::content(value, path, "a tensor needs \"npy\", \"data\" or \"b64\"").into())
}

fn names(value: &Value, path: Path, key: &str) -> Result<Vec<String>, Fault> {
    let Some(list) = value.get(key).filter(|value| value.kind != Kind::Null) else { return Ok(Vec::new()) };
    let path = path.key(key);
    let items = list.list(path, "this is a list of names")?;
    items.iter().enumerate().map(|(i, item)| item.text(path.index(i)).map(str::to_owned)).collect()
}

fn need<'v, 'a>(value: &'v Value<'a>, path: Path, key: &str) -> Result<&'v Value<'a>, Fault> {
    value.get(key).ok_or_else(|| Fault::content(value, path, format!("{key:?} is missing")))
}

fn optional_text(value: &Value, path: Path, key: &str) -> Result<Option<String>, Fault> {
    match value.get(key) {
        None => Ok(None),
        Some(value) if value.kind == Kind::Null => Ok(None),
        Some(value) => value.text(path.key(key)).map(|text| Some(text.to_owned())),
    }
}

fn number(value: &Value, path: Path) -> Result<f64, Fault> {
    let read = match value.kind {
        Kind::Number(text) => text.parse().ok(),
        _ => None,
    };
    read.ok_or_else(|| Fault::content(value, path, format!("expected a number, found {}", value.describe())))
}

#[cfg(test)]
mod tests;
