//! `meshtf inspect`: the content of a model's file, of any form.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meshtf::program_file::{self, saved};
use meshtf::weight_file::{self, Listed};
use meshtf_graph::graphdef::meta;
use meshtf_graph::op::{self, Role};
use meshtf_graph::plan::{self, Signature};
use meshtf_graph::{Attr, FormatError, Graph, NodeDef, Program};
use meshtf_tensor::failure::{Failure, counted};
use meshtf_tensor::memory::Bytes;
use meshtf_tensor::{PartialShape, Shape};
use serde_json::{Value, json};

use super::inputs::read;
use super::paint::{Paint, Tone};
use super::table::table;
use super::{Exit, Outcome, Trouble, output};

/// Show the content of a model file: inputs, outputs, ops, tensors
///
/// Recognises a file by its content: graph.json, GraphDef, MetaGraph, ONNX; weights in safetensors (one file or an index), .npz,
/// .npy, PyTorch state dicts, Keras' .h5 and .keras, TensorFlow.js' model.json, GGUF and TensorFlow checkpoints; the folder of a
/// SavedModel or of a training. Says whether this build can run it. A pickle is read as data and never run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf inspect model.onnx
  meshtf inspect saved_model/
  meshtf inspect model.safetensors --all
  meshtf inspect state.pt --json | jq '.tensors[].name'")]
pub struct Args {
    /// File, folder, or the prefix of a TensorFlow checkpoint
    path: PathBuf,
    /// List all tensors, not only the first 40
    #[arg(long)]
    all: bool,
    /// Print JSON, with all tensors
    #[arg(long)]
    json: bool,
}

/// The number of tensors that are listed without --all.
const MOST_LISTED: usize = 40;
/// Constants of fewer bytes are a part of the computation, and not listed.
const LEAST_LISTED: usize = 64;

/// The content of a file.
#[derive(Default)]
struct Report {
    form: String,
    /// The file's own statements: opsets, versions, metadata.
    notes: Vec<(String, String)>,
    /// Named sets of inputs and outputs; one without a name, unless the file has signatures.
    signatures: Vec<Named>,
    operators: BTreeMap<String, u64>,
    unknown: BTreeMap<String, u64>,
    /// Whether this build can run it, or why not; `None` for weights alone.
    runs: Option<Result<(), String>>,
    tensors: Vec<Row>,
}

#[derive(Default)]
struct Named {
    name: Option<String>,
    /// Names and types.
    inputs: Vec<(String, String)>,
    outputs: Vec<(String, String)>,
}

struct Row {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
    /// Why it stands out: `variable`, or the file beside the model that has it.
    remark: String,
}

pub(super) fn inspect(args: Args) -> Outcome {
    let report = report(&args.path)?;
    match args.json {
        true => output::json_value(&report.json(&args.path))?,
        false => output::line(&report.text(&args.path, args.all, Paint::stdout()))?,
    }
    Ok(Exit::Ok)
}

fn report(path: &Path) -> Result<Report, Trouble> {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", path.display()));
    let failed = |failure: Failure| match failure.refusal {
        Some(_) => Trouble::from(failure),
        None => Trouble::input(failure.message),
    };
    let is_saved = path.join(weight_file::SAVED_MODEL).is_file();
    if !is_saved && path.is_dir() {
        // The folder of a training, or of a model from a hub.
        let listed = meshtf::trainer::stored::list(path, meshtf::trainer::stored::Which::Best)?;
        return Ok(of_weights(listed));
    }
    if !is_saved && let Some(listed) = weight_file::list(path).map_err(failed)? {
        return Ok(of_weights(listed));
    }
    let file = program_file::file_of(path);
    let bytes = bytes::Bytes::from(read(&file)?);
    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
    let mut files = super::inputs::Files::in_folder(&folder);
    let mut beside = |name: &str, range| files.read(name, range);
    let wrong = |error: FormatError| match super::inputs::no_graph(&file, &error) {
        Some(why) => at(&why),
        None => at(&error),
    };
    if meshtf_onnx::is_model(&bytes) {
        let described = meshtf_onnx::describe(&bytes).map_err(wrong)?;
        let model = program_file::read_beside(&bytes, &mut beside).map(|(program, ports)| (program, ports.feeds()));
        return Ok(of_onnx(described, runs(model)));
    }
    let is_meta = meta::is_meta_graph(&bytes);
    if meta::is_saved_model(&bytes) || is_meta {
        let graph = match is_meta {
            true => meta::read_meta_graph(&bytes),
            false => saved::served(&bytes),
        };
        let program = program_file::read_at(&file, &bytes, &mut beside, None, Default::default());
        let program = program.map(|(program, ports)| (program, ports.feeds()));
        return of_saved(graph.map_err(wrong)?, is_meta, path, runs(program));
    }
    let program = program_file::read_beside(&bytes, &mut beside).map_err(wrong)?.0;
    let form = match serde_json::from_slice::<Keys>(&bytes) {
        Ok(keys) if keys.nodes.is_some() => "graph.json",
        Ok(_) => "TensorFlow GraphDef (JSON)",
        Err(_) => "TensorFlow GraphDef",
    };
    let mut report = of_nodes(form, &program.nodes);
    report.signatures = vec![Named {
        name: None,
        inputs: placeholders(&program.nodes),
        outputs: program.fetch.iter().map(|name| (name.clone(), String::new())).collect(),
    }];
    let feeds = program.feed.iter().map(|(name, _)| name.clone()).collect();
    report.runs = Some(runs(Ok((program, feeds))));
    Ok(report)
}

/// The keys by which the two forms of JSON differ.
#[derive(serde::Deserialize)]
struct Keys {
    nodes: Option<serde::de::IgnoredAny>,
}

/// Whether this build runs a program: its fetches and its init, if it names some, else every node.
fn runs(program: Result<(Program, Vec<String>), FormatError>) -> Result<(), String> {
    let (program, feeds) = program.map_err(|error| error.to_string())?;
    let graph = Graph::new(program.nodes).map_err(|error| error.to_string())?;
    graph.check_shapes().map_err(|error| error.to_string())?;
    let is_named = !program.fetch.is_empty() || !program.targets.is_empty();
    let every = || graph.nodes().map(|(_, node)| node.name.clone()).collect();
    let targets = if is_named { program.targets } else { every() };
    let step = Signature { feeds, fetches: program.fetch, targets, ..Signature::default() };
    let init = Signature { targets: program.init, ..Signature::default() };
    for signature in [step, init].iter().filter(|step| !step.fetches.is_empty() || !step.targets.is_empty()) {
        plan::check(&graph, signature).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn of_weights(listed: Listed) -> Report {
    let row = |entry: meshtf_weights::Entry| Row {
        remark: if entry.dtype.is_none() { "not read: no such dtype".to_owned() } else { String::new() },
        name: entry.name,
        dtype: entry.stored,
        shape: entry.shape,
        bytes: entry.bytes,
    };
    let tensors = listed.tensors.into_iter().map(row).collect();
    Report { form: listed.form, notes: listed.notes, tensors, ..Report::default() }
}

fn of_onnx(described: meshtf_onnx::Description, runs: Result<(), String>) -> Report {
    let mut notes: Vec<(String, String)> = described
        .opsets
        .into_iter()
        .map(|(domain, version)| (format!("opset of {domain}"), version.to_string()))
        .collect();
    if !described.producer.is_empty() {
        notes.push(("producer".to_owned(), described.producer));
    }
    let row = |weight: meshtf_onnx::Weight| Row {
        name: weight.name,
        dtype: weight.elem.to_owned(),
        shape: weight.dims.into_iter().map(|dim| usize::try_from(dim).unwrap_or(0)).collect(),
        bytes: weight.bytes,
        remark: weight.file.map(|file| format!("in {file}")).unwrap_or_default(),
    };
    Report {
        form: "ONNX model".to_owned(),
        notes,
        signatures: vec![Named { name: None, inputs: described.inputs, outputs: described.outputs }],
        operators: described.operators,
        unknown: described.unknown,
        runs: Some(runs),
        tensors: described.weights.into_iter().map(row).collect(),
    }
}

fn of_saved(graph: meta::MetaGraph, is_meta: bool, path: &Path, runs: Result<(), String>) -> Result<Report, Trouble> {
    let form = if is_meta { "TensorFlow MetaGraph" } else { "TensorFlow SavedModel" };
    let mut report = of_nodes(form, &graph.nodes);
    report.notes.push(("written by".to_owned(), format!("TensorFlow {}", graph.tensorflow)));
    if !graph.tags.is_empty() {
        report.notes.push(("tags".to_owned(), graph.tags.join(" ")));
    }
    if !graph.assets.is_empty() {
        let files: Vec<&str> = graph.assets.iter().map(|(_, file)| file.as_str()).collect();
        report.notes.push(("assets".to_owned(), files.join(" ")));
    }
    let port = |port: meta::Port| {
        let dtype = port.dtype.map_or_else(|| "of a dtype that meshtf lacks".to_owned(), |dtype| dtype.to_string());
        (port.name, format!("{dtype}{}", port.shape))
    };
    let signature = |(name, signature): (String, meta::Signature)| Named {
        name: Some(name),
        inputs: signature.inputs.into_iter().map(port).collect(),
        outputs: signature.outputs.into_iter().map(port).collect(),
    };
    report.signatures = graph.signatures.into_iter().map(signature).collect();
    if report.signatures.is_empty() {
        report.signatures = vec![Named { inputs: placeholders(&graph.nodes), ..Named::default() }];
    }
    // Variables with their names in the checkpoint, and their true shapes.
    let prefix = match is_meta {
        true => weight_file::prefix(&path.with_extension("")),
        false => weight_file::prefix(path),
    };
    if let Some(prefix) = prefix {
        let listed = weight_file::list(&prefix).map_err(|failure| Trouble::input(failure.message))?;
        report.tensors.retain(|row| row.remark != VARIABLE);
        report.tensors.extend(listed.into_iter().flat_map(|listed| of_weights(listed).tensors));
    }
    report.runs = Some(runs);
    Ok(report)
}

/// The remark of a variable.
const VARIABLE: &str = "variable";

/// The ops and tensors of nodes.
fn of_nodes(form: &str, nodes: &[NodeDef]) -> Report {
    let mut report = Report { form: form.to_owned(), ..Report::default() };
    report.notes.push(("nodes".to_owned(), nodes.len().to_string()));
    for node in nodes {
        *report.operators.entry(node.op.clone()).or_default() += 1;
        let Some(op) = op::lookup(&node.op) else {
            *report.unknown.entry(node.op.clone()).or_default() += 1;
            continue;
        };
        let row = |dtype: String, shape: &Shape, bytes: usize, remark: &str| Row {
            name: node.name.clone(),
            dtype,
            shape: shape.dims().to_vec(),
            bytes: bytes as u64,
            remark: remark.to_owned(),
        };
        if op.makes_variable {
            let Ok(dtype) = node.attrs.dtype("dtype") else { continue };
            let shape = node.attrs.shape("shape").ok().and_then(PartialShape::known);
            let shape = shape.unwrap_or_default();
            let bytes = shape.elements().unwrap_or(0).saturating_mul(dtype.size().unwrap_or(0));
            report.tensors.push(row(dtype.to_string(), &shape, bytes, VARIABLE));
        }
        if let Some(Attr::Tensor(value)) = node.attrs.get("value").filter(|_| op.role == Role::Const)
            && value.byte_len() >= LEAST_LISTED
        {
            report.tensors.push(row(value.dtype().to_string(), value.shape(), value.byte_len(), "constant"));
        }
    }
    report
}

/// The placeholders of a graph.
fn placeholders(nodes: &[NodeDef]) -> Vec<(String, String)> {
    let is_placeholder = |node: &&NodeDef| op::lookup(&node.op).is_some_and(|op| op.role == Role::Placeholder);
    let one = |node: &NodeDef| {
        let dtype = node.attrs.dtype("dtype").map(|dtype| dtype.to_string()).unwrap_or_default();
        let shape = node.attrs.shape("shape").map(ToString::to_string).unwrap_or_default();
        (node.name.clone(), format!("{dtype}{shape}"))
    };
    nodes.iter().filter(is_placeholder).map(one).collect()
}

impl Report {
    fn bytes(&self) -> u64 {
        self.tensors.iter().fold(0, |bytes, row| bytes.saturating_add(row.bytes))
    }

    fn text(&self, path: &Path, all: bool, paint: Paint) -> String {
        let mut lines = vec![format!("{}: {}", paint.tone(Tone::Strong, path.display()), self.form)];
        lines.extend(self.notes.iter().map(|(name, value)| format!("  {name}: {value}")));
        match &self.runs {
            Some(Ok(())) => lines.push(format!("  {}", paint.tone(Tone::Good, "this build runs it"))),
            Some(Err(why)) => lines.push(format!("  {} {why}", paint.tone(Tone::Bad, "this build does not run it:"))),
            None => {
                lines.push("  weights alone, for the variables of a graph: meshtf run GRAPH --weights FILE".to_owned())
            }
        }
        let ops = |ops: &BTreeMap<String, u64>| {
            let mut ops: Vec<(&String, &u64)> = ops.iter().collect();
            ops.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            ops.into_iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        if !self.unknown.is_empty() {
            lines.push(format!("  {} {}", paint.tone(Tone::Bad, "unknown ops:"), ops(&self.unknown)));
        }
        for signature in &self.signatures {
            let of = signature.name.as_ref().map(|name| format!(" of signature {name}")).unwrap_or_default();
            for (kind, ports) in [("inputs", &signature.inputs), ("outputs", &signature.outputs)] {
                if !ports.is_empty() {
                    lines.push(format!("{kind}{of}"));
                    lines.extend(ports.iter().map(|(name, ty)| format!("  {name}  {ty}").trim_end().to_owned()));
                }
            }
        }
        if !self.operators.is_empty() {
            lines.push("ops".to_owned());
            lines.push(format!("  {}", ops(&self.operators)));
        }
        if !self.tensors.is_empty() {
            let count = counted(self.tensors.len(), "tensor");
            lines.push(format!("{count}, {}", Bytes(usize::try_from(self.bytes()).unwrap_or(usize::MAX))));
            let most = if all { usize::MAX } else { MOST_LISTED };
            let row = |row: &Row| {
                let shape = Shape::from(row.shape.clone()).to_string();
                vec![format!("  {}", row.name), row.dtype.clone(), shape, row.bytes.to_string(), row.remark.clone()]
            };
            lines.push(table(
                paint,
                &["  NAME", "DTYPE", "SHAPE", "BYTES", ""],
                self.tensors.iter().take(most).map(row),
            ));
            if self.tensors.len() > most {
                lines.push(format!("  … and {} more; --all lists them", self.tensors.len() - most));
            }
        }
        lines.join("\n")
    }

    fn json(&self, path: &Path) -> Value {
        let ports = |ports: &[(String, String)]| -> Value {
            ports.iter().map(|(name, ty)| json!({ "name": name, "type": ty })).collect()
        };
        let signature =
            |own: &Named| json!({ "name": own.name, "inputs": ports(&own.inputs), "outputs": ports(&own.outputs) });
        let row = |row: &Row| json!({ "name": row.name, "dtype": row.dtype, "shape": row.shape, "bytes": row.bytes, "remark": row.remark });
        json!({
            "file": path.display().to_string(),
            "form": self.form,
            "notes": self.notes.iter().cloned().collect::<BTreeMap<_, _>>(),
            "signatures": self.signatures.iter().map(signature).collect::<Value>(),
            "ops": self.operators,
            "unknown_ops": self.unknown,
            "runs": self.runs.as_ref().map(Result::is_ok),
            "why_not": self.runs.as_ref().and_then(|runs| runs.as_ref().err()),
            "bytes": self.bytes(),
            "tensors": self.tensors.iter().map(row).collect::<Value>(),
        })
    }
}
