//! A graph with the values of its variables as an ONNX model or a SavedModel.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use meshtf::trainer::stored::Which;
use meshtf::trainer::weights::{At, Weights};
use meshtf::weight_file;
use meshtf_checkpoint::{DataDir, Saved, Whole, save};
use meshtf_graph::graphdef::meta::{self, Port, Saver, Signature, Written};
use meshtf_graph::op::Role;
use meshtf_graph::{Attr, Graph, NodeDef, NodeId, Output, Program, UniqueNames};
use meshtf_onnx::save::Export;
use meshtf_tensor::failure::counted;
use meshtf_tensor::safetensors::Contents;
use meshtf_tensor::{DType, Shape, Tensor};
use meshtf_weights::map::Rules;

use super::ExportArgs;
use super::tables::{self, Filling};
use crate::cli::inputs::Files;
use crate::cli::paint::mention;
use crate::cli::tuned::read_for_weights;
use crate::cli::{Exit, Outcome, Trouble, output};

/// The node that fills the tables.
const INIT: &str = "save/init";

/// The forms of a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Onnx,
    SavedModel,
}

impl Form {
    /// The form of a path; `None` if it is one of weights.
    pub fn of(path: &Path) -> Result<Option<Form>, Trouble> {
        if path.is_dir() {
            let is_empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
            return match is_empty {
                true => Ok(Some(Form::SavedModel)),
                false => Err(Trouble::input(format!(
                    "--to {}: this folder is not empty; name a file, or a new folder for a SavedModel",
                    path.display()
                ))),
            };
        }
        let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        Ok(match path.extension() {
            _ if is_folder => Some(Form::SavedModel),
            Some(ending) if ending == "onnx" => Some(Form::Onnx),
            _ => None,
        })
    }
}

/// A graph to be written.
struct Model {
    graph: Graph,
    /// Names and tensors.
    inputs: Vec<(String, Output)>,
    outputs: Vec<(String, Output)>,
    /// By the nodes that make the variables.
    values: HashMap<NodeId, Tensor>,
    filling: Filling,
}

pub fn export(args: &ExportArgs, form: Form) -> Outcome {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("cannot write {}: {why}", args.to.display()));
    let make_folder = || output::make_folder_of(&args.to).map_err(|error| at(&error));
    if form == Form::Onnx
        && let Some((bytes, count)) = tuned(args)?
    {
        make_folder()?;
        write_synced(&args.to, &bytes).map_err(|error| at(&error))?;
        let weights = counted(count, "initializer");
        output::line(&format!("{}: {}, with {weights} of the weights", args.to.display(), args.from.display()))?;
        return Ok(Exit::Ok);
    }
    let model = read(args)?;
    make_folder()?;
    let (inputs, outputs) = (model.inputs.len(), model.outputs.len());
    let kept = kept(&model);
    let values = model.values.keys().filter(|id| kept.contains(id)).count();
    match form {
        Form::Onnx => {
            let Model { graph, inputs, outputs, values, .. } = model;
            let bytes = meshtf_onnx::save::save(Export { graph: &graph, inputs, outputs, values });
            let bytes = bytes.map_err(|failure| match failure.refusal {
                Some(_) => Trouble::from(failure),
                None => at(&failure.message),
            })?;
            write_synced(&args.to, &bytes).map_err(|error| at(&error))?;
        }
        Form::SavedModel => saved_model(&args.to, model)?,
    }
    let counts = [(inputs, "input"), (outputs, "output"), (values, "variable")];
    let ports = counts.map(|(count, noun)| counted(count, noun)).join(", ");
    output::line(&format!("{}: {ports}, from {}", args.to.display(), args.from.display()))?;
    Ok(Exit::Ok)
}

/// Writes a file whole or not at all, also if power fails.
fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = Whole::begin(path)?;
    file.write_all(bytes)?;
    file.sync()?;
    file.end().map(|_| ())
}

/// The weights that are named.
fn at_weights<'a>(args: &'a ExportArgs, map: Option<&'a Rules>) -> Option<At<'a>> {
    let which = if args.last { Which::Last } else { Which::Best };
    args.weights.as_deref().map(|path| At { path, which, averages: args.averages, map })
}

/// The file of an ONNX model with other weights, if that is what is exported: the model stays as it is otherwise. The number of
/// the weights.
fn tuned(args: &ExportArgs) -> Result<Option<(Vec<u8>, usize)>, Trouble> {
    let map = args.rules()?;
    let (Some(at), true) = (at_weights(args, map.as_ref()), args.fetch.is_empty() && args.from.is_file()) else {
        return Ok(None);
    };
    let (_, graph, bytes, ports) = read_for_weights(&args.from, args.signature.as_deref(), Some(at), &[])?;
    if ports.variables.is_empty() {
        return Ok(None);
    }
    let (_, weights) = Weights::add(graph, at)?;
    weights.remarks.iter().for_each(mention);
    let by_node: HashMap<&str, &Tensor> = weights.values().collect();
    let mut values = BTreeMap::new();
    for own in &ports.variables {
        let lacks = || Trouble::input(format!("weights {}: there is none for {}", at.path.display(), own.name));
        values.insert(own.initializer.as_str(), *by_node.get(own.handle.as_str()).ok_or_else(lacks)?);
    }
    let mut files = Files::in_folder(args.from.parent().unwrap_or(Path::new("")));
    let mut beside = |file: &str, range| files.read(file, range);
    let written = meshtf_onnx::replaced(&bytes, &values, &mut beside);
    let written = written.map_err(|error| Trouble::input(format!("{}: {error}", args.from.display())))?;
    Ok(Some((written, values.len())))
}

/// The values that weights give the variables of a graph, by the names of the variables.
pub fn weights(args: &ExportArgs) -> Result<Contents, Trouble> {
    let map = args.rules()?;
    let at = at_weights(args, map.as_ref()).ok_or_else(|| Trouble::input("--weights is missing"))?;
    let (_, graph, _, _) = read_for_weights(&args.from, args.signature.as_deref(), Some(at), &[])?;
    let (_, weights) = Weights::add(graph, at)?;
    weights.remarks.iter().for_each(mention);
    let tensors = weights.named().map(|(name, value)| (name.to_owned(), value.clone())).collect();
    Ok(Contents { tensors, ..Contents::default() })
}

/// Reads the graph and the values of its variables.
fn read(args: &ExportArgs) -> Result<Model, Trouble> {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", args.from.display()));
    if args.from.is_dir() && !args.from.join(weight_file::SAVED_MODEL).is_file() {
        let from = args.from.display();
        return Err(at(&format!(
            "this folder has weights alone, and no graph: export the graph with them, `meshtf export graph.json --weights {from} --to {}`",
            args.to.display()
        )));
    }
    let map = args.rules()?;
    let (program, graph, _, ports) =
        read_for_weights(&args.from, args.signature.as_deref(), at_weights(args, map.as_ref()), &[])?;
    let named = match args.fetch.is_empty() {
        true => program.fetch.clone(),
        false => args.fetch.iter().map(|name| ports.tensor(name).to_owned()).collect(),
    };
    if named.is_empty() {
        return Err(at(&ports.nothing_to_fetch("name the outputs of the model by --fetch")));
    }
    let mut outputs = Vec::with_capacity(named.len());
    for name in named {
        let output = graph.output(&name).map_err(|error| Trouble::input(format!("--fetch {name}: {error}")))?;
        outputs.push((name.trim_end_matches(":0").replace(':', "_"), output));
    }
    let mut inputs = Vec::new();
    for (name, tensor) in ports.named_inputs() {
        inputs.push((name, graph.output(&tensor).map_err(|error| at(&error))?));
    }
    let (graph, values) = match at_weights(args, map.as_ref()) {
        Some(weights) => {
            let (with, weights) = Weights::add(graph.clone(), weights)?;
            weights.remarks.iter().for_each(mention);
            let id = |name: &str| with.find(name);
            let values = weights.values().filter_map(|(name, value)| Some((id(name)?, value.clone()))).collect();
            (graph, values)
        }
        None => {
            let values = first_values(&graph, &program);
            (graph, values)
        }
    };
    let needed = needed(&graph, &outputs);
    let filling = Filling::of(&graph, &program.init, &needed).map_err(|why| at(&why))?;
    let before = needed_by(&graph, filling.nodes.iter().copied());
    let lacks = needed.union(&before).find(|&&id| graph.node(id).op.makes_variable && !values.contains_key(&id));
    if let Some(&id) = lacks {
        return Err(at(&format!("variable {} has no value that the file states; give --weights", graph.node(id).name)));
    }
    let mut names = BTreeSet::new();
    if let Some((name, _)) = outputs.iter().find(|(name, _)| !names.insert(name.as_str())) {
        return Err(Trouble::input(format!("--fetch: two outputs would have the name {name}")));
    }
    // Placeholders that the outputs need are inputs under their own names.
    let fed: BTreeSet<NodeId> = inputs.iter().map(|(_, output)| output.node).collect();
    inputs.retain(|(_, output)| needed.contains(&output.node));
    for &id in needed.iter().filter(|id| !fed.contains(id)) {
        let node = graph.node(id);
        if node.op.role == Role::Placeholder {
            inputs.push((node.name.clone(), Output { node: id, port: 0 }));
        }
    }
    Ok(Model { graph, inputs, outputs, values, filling })
}

/// The nodes that are written.
fn kept(model: &Model) -> BTreeSet<NodeId> {
    let outputs = model.outputs.iter().map(|(_, output)| output.node);
    needed_by(&model.graph, outputs.chain(model.filling.nodes.iter().copied()))
}

/// The nodes that outputs need.
fn needed(graph: &Graph, outputs: &[(String, Output)]) -> BTreeSet<NodeId> {
    needed_by(graph, outputs.iter().map(|(_, output)| output.node))
}

/// These nodes, and those before them.
pub(super) fn needed_by(graph: &Graph, nodes: impl Iterator<Item = NodeId>) -> BTreeSet<NodeId> {
    let mut open: Vec<NodeId> = nodes.collect();
    let mut seen: BTreeSet<NodeId> = open.iter().copied().collect();
    while let Some(id) = open.pop() {
        open.extend(graph.node(id).sources().filter(|&before| seen.insert(before)));
    }
    seen
}

/// The constants that the init of a program assigns to variables.
fn first_values(graph: &Graph, program: &Program) -> HashMap<NodeId, Tensor> {
    let mut open: Vec<NodeId> = program.init.iter().filter_map(|name| graph.find(name)).collect();
    let mut seen: BTreeSet<NodeId> = open.iter().copied().collect();
    let mut values = HashMap::new();
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        if matches!(node.op.name, "AssignVariableOp" | "Assign")
            && let [variable, value] = node.inputs[..]
            && graph.node(value.node).op.role == Role::Const
            && let Ok(value) = graph.node(value.node).attrs.whole_tensor("value")
        {
            values.insert(variable.node, value);
        }
        open.extend(node.sources().filter(|&before| seen.insert(before)));
    }
    values
}

/// Writes the folder of a SavedModel: under another name until it is complete.
fn saved_model(to: &Path, model: Model) -> Result<(), Trouble> {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("cannot write {}: {why}", to.display()));
    let name = to.file_name().ok_or_else(|| at(&"this is not the name of a folder"))?.display().to_string();
    let part = Part(to.with_file_name(format!(".{name}.{:016x}.part", meshtf::random::u64())));
    let variables = part.0.join("variables");
    fs::create_dir_all(&variables).map_err(|error| at(&error))?;
    let port = |(name, output): &(String, Output)| Port {
        name: name.clone(),
        tensor: model.graph.tensor_name(*output),
        dtype: Some(model.graph.output_type(*output).dtype),
        shape: model.graph.shapes().of(*output),
    };
    let signature = Signature {
        inputs: model.inputs.iter().map(port).collect(),
        outputs: model.outputs.iter().map(port).collect(),
    };
    let kept = kept(&model);
    let places: BTreeSet<usize> = kept.iter().map(|id| id.index()).collect();
    let all = model.graph.to_defs().into_iter().enumerate();
    // Without devices, since a program that loads the folder seldom has the tasks of the mesh: TensorFlow places all in its own.
    let kept_node =
        |(place, node): (usize, NodeDef)| places.contains(&place).then(|| NodeDef { device: String::new(), ..node });
    let mut nodes: Vec<NodeDef> = all.filter_map(kept_node).collect();
    tables::join(&mut nodes);
    let mut held: Vec<(String, bool, String, &Tensor)> = Vec::new();
    for (id, value) in model.values.iter().filter(|(id, _)| kept.contains(id)) {
        let node = model.graph.node(*id);
        let shared = node.attrs.str("shared_name").ok().filter(|name| !name.is_empty());
        held.push((node.name.clone(), node.outputs[0].is_ref, shared.unwrap_or(&node.name).to_owned(), value));
    }
    // Several nodes of one variable, as TensorFlow 2 has them in its functions, share its value.
    held.sort_by(|a, b| (&a.2, &a.0).cmp(&(&b.2, &b.0)));
    held.dedup_by(|a, b| a.2 == b.2);
    let tensors: Vec<Saved> = held.iter().map(|(_, _, key, value)| Saved::new(key.as_bytes(), value, None)).collect();
    let saver = (!held.is_empty()).then(|| add_saver(&mut nodes, &held));
    if saver.is_some() {
        let dir = DataDir::new(&variables).map_err(|error| at(&error))?;
        save(&dir, b"variables", &tensors).map_err(|failure| at(&failure.message))?;
    }
    let assets = model.filling.copy(&model.graph, &mut nodes, &part.0)?;
    let init = (!model.filling.nodes.is_empty()).then(|| add_init(&mut nodes, &model));
    let written =
        Written { nodes: &nodes, signature: &signature, saver: saver.as_ref(), init: init.as_deref(), assets: &assets };
    let bytes = meta::to_saved_model(&written);
    meshtf_checkpoint::write_whole(&part.0.join("saved_model.pb"), &bytes).map_err(|error| at(&error))?;
    // An empty folder of that name makes room.
    if to.is_dir() {
        fs::remove_dir(to).map_err(|error| at(&error))?;
    }
    fs::rename(&part.0, to).map_err(|error| at(&error))
}

/// A folder that is deleted unless it was renamed.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        // It is gone if it was completed.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Adds the node by which the tables are filled; returns its name.
fn add_init(nodes: &mut Vec<NodeDef>, model: &Model) -> String {
    let mut names = UniqueNames::default();
    nodes.iter().for_each(|node| names.reserve(&node.name));
    let name = names.unique(INIT);
    let inputs = model.filling.nodes.iter().map(|&id| format!("^{}", model.graph.node(id).name)).collect();
    nodes.push(NodeDef { name: name.clone(), op: "NoOp".to_owned(), inputs, ..NodeDef::default() });
    name
}

/// Adds the nodes by which TensorFlow restores and saves variables: their names, whether they are references, and keys.
fn add_saver(nodes: &mut Vec<NodeDef>, held: &[(String, bool, String, &Tensor)]) -> Saver {
    let text = |name: &str, value: Tensor| {
        let mut node = NodeDef { name: name.to_owned(), op: "Const".to_owned(), ..NodeDef::default() };
        node.attrs.set("dtype", Attr::Type(DType::String));
        node.attrs.set("value", Attr::Tensor(value));
        node
    };
    let texts = |name: &str, values: Vec<&str>| {
        let values: Vec<Vec<u8>> = values.into_iter().map(|text| text.as_bytes().to_vec()).collect();
        text(name, Tensor::vector(values))
    };
    let node = |name: &str, op: &str, inputs: &[&str]| NodeDef {
        name: name.to_owned(),
        op: op.to_owned(),
        inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
        ..NodeDef::default()
    };
    let dtypes = Attr::Types(held.iter().map(|(_, _, _, value)| value.dtype()).collect());
    nodes.push(text("save/filename/input", Tensor::from("model")));
    let mut file = node("save/Const", "PlaceholderWithDefault", &["save/filename/input"]);
    file.attrs.set("dtype", Attr::Type(DType::String));
    file.attrs.set("shape", Attr::Shape((&Shape::scalar()).into()));
    nodes.push(file);
    nodes.push(texts("save/tensor_names", held.iter().map(|(_, _, key, _)| key.as_str()).collect()));
    nodes.push(texts("save/shape_and_slices", vec![""; held.len()]));
    let mut write = node("save/SaveV2", "SaveV2", &["save/Const", "save/tensor_names", "save/shape_and_slices"]);
    let mut restore =
        node("save/RestoreV2", "RestoreV2", &["save/Const", "save/tensor_names", "save/shape_and_slices"]);
    let mut all = node("save/restore_all", "NoOp", &[]);
    for (place, (variable, is_ref, _, value)) in held.iter().enumerate() {
        let (read, assign) = (format!("save/read_{place}"), format!("save/assign_{place}"));
        let dtype = Attr::Type(value.dtype());
        let mut reading = node(&read, if *is_ref { "Identity" } else { "ReadVariableOp" }, &[variable]);
        reading.attrs.set(if *is_ref { "T" } else { "dtype" }, dtype.clone());
        nodes.push(reading);
        write.inputs.push(read);
        let from = format!("save/RestoreV2:{place}");
        let mut assigning = node(&assign, if *is_ref { "Assign" } else { "AssignVariableOp" }, &[variable, &from]);
        assigning.attrs.set(if *is_ref { "T" } else { "dtype" }, dtype);
        nodes.push(assigning);
        all.inputs.push(format!("^{assign}"));
    }
    write.attrs.set("dtypes", dtypes.clone());
    restore.attrs.set("dtypes", dtypes);
    let mut saved = node("save/control_dependency", "Identity", &["save/Const", "^save/SaveV2"]);
    saved.attrs.set("T", Attr::Type(DType::String));
    nodes.extend([write, restore, all, saved]);
    Saver {
        filename: "save/Const:0".to_owned(),
        save: "save/control_dependency:0".to_owned(),
        restore: "save/restore_all".to_owned(),
    }
}
