//! SavedModels and MetaGraphs as programs: signatures become names of feeds and fetches, the values of variables constants that
//! `init` assigns, and the files of tables their contents.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use meshtf_checkpoint::{Checkpoint, Slice};
use meshtf_graph::graphdef::meta::{self, ASSETS, MetaGraph, Port, Signature};
use meshtf_graph::{Attr, FormatError, NodeDef, Program, split_tensor_name};
use meshtf_tensor::failure::Failure;
use meshtf_tensor::nearest::nearest;
use meshtf_tensor::{DType, MAX_TENSOR_BYTES, Tensor};

use super::{Ports, vocabulary};
use crate::weight_file;

/// The tag of the graph that answers requests.
const SERVE: &str = "serve";
/// The signature that is used unless another one is named.
const DEFAULT: &str = "serving_default";
/// Most bytes of the values of all variables.
const MAX_VALUES: usize = 4 * MAX_TENSOR_BYTES;
/// The node that `init` runs.
const INIT: &str = "restored/init";

/// The graph of a SavedModel that is run: the one that serves, or the only one.
///
/// # Errors
/// NoGraph if the file is damaged, or has no such graph.
pub fn served(bytes: &[u8]) -> Result<MetaGraph, FormatError> {
    let mut graphs = meta::saved_model(bytes)?;
    let index = match graphs.iter().position(|graph| graph.tags.iter().any(|tag| tag == SERVE)) {
        Some(index) => index,
        None if graphs.len() == 1 => 0,
        None => {
            let tags: Vec<String> = graphs.iter().map(|graph| graph.tags.join(" ")).collect();
            return Err(no_graph(format!("none of its graphs is tagged {SERVE:?}; the tags are {tags:?}")));
        }
    };
    Ok(graphs.swap_remove(index))
}

/// The program of a graph whose variables are in the checkpoint with a prefix, if it has some.
///
/// # Errors
/// NoGraph for a signature that does not exist, or variables that cannot be restored.
pub fn program(
    graph: MetaGraph,
    (prefix, folder): (Option<&Path>, &Path),
    signature: Option<&str>,
) -> Result<(Program, Ports), FormatError> {
    let chosen = chosen(&graph, signature)?.map(|(name, signature)| (name.clone(), signature.clone()));
    let MetaGraph { nodes, restored, init, assets, .. } = graph;
    let taken: BTreeSet<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let mut adding = Adding { nodes, taken, controls: Vec::new(), bytes: 0 };
    if let Some(prefix) = prefix {
        let checkpoint = weight_file::open_checkpoint(prefix).map_err(of_failure)?;
        adding.values(&checkpoint, &restored)?;
    }
    let files: HashMap<&str, &str> =
        assets.iter().map(|(tensor, file)| (split_tensor_name(tensor).0, file.as_str())).collect();
    adding.tables(&files, folder)?;
    adding.paths(&files, folder);
    adding.controls.extend(init);
    let mut program = Program::default();
    let mut ports = Ports { is_model: true, ..Ports::default() };
    if let Some((_, signature)) = chosen {
        for port in &signature.inputs {
            ports.fed.push(plain(&port.tensor));
            ports.named.push((port.name.clone(), plain(&port.tensor)));
        }
        for port in &signature.outputs {
            let tensor = adding.output(port);
            ports.named.push((port.name.clone(), tensor.clone()));
            program.fetch.push(tensor);
        }
    }
    if !adding.controls.is_empty() {
        let inputs = adding.controls.iter().map(|name| format!("^{name}")).collect();
        let name = adding.free(INIT);
        adding.add(NodeDef { name: name.clone(), op: "NoOp".to_owned(), inputs, ..NodeDef::default() });
        program.init = vec![name];
    }
    program.nodes = adding.nodes;
    Ok((program, ports))
}

/// The signature that is asked for, or the default one.
fn chosen<'g>(graph: &'g MetaGraph, wanted: Option<&str>) -> Result<Option<(&'g String, &'g Signature)>, FormatError> {
    let all = &graph.signatures;
    let Some(wanted) = wanted else {
        return Ok(all.get_key_value(DEFAULT).or_else(|| all.iter().next().filter(|_| all.len() == 1)));
    };
    all.get_key_value(wanted).map(Some).ok_or_else(|| {
        let names: Vec<&str> = all.keys().map(String::as_str).collect();
        let near = nearest(wanted, names.iter().copied());
        let hint = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
        no_graph(format!("it has no signature {wanted:?}; it has {}{hint}", names.join(", ")))
    })
}

/// A graph to which nodes are added.
struct Adding {
    nodes: Vec<NodeDef>,
    taken: BTreeSet<String>,
    /// The nodes that `init` waits for.
    controls: Vec<String>,
    /// The bytes of the values that were added.
    bytes: usize,
}

impl Adding {
    fn free(&self, name: &str) -> String {
        if !self.taken.contains(name) {
            return name.to_owned();
        }
        let numbered = (1..).map(|n| format!("{name}_{n}")).find(|name| !self.taken.contains(name));
        numbered.expect("there are more numbers than nodes")
    }

    fn add(&mut self, node: NodeDef) {
        self.taken.insert(node.name.clone());
        self.nodes.push(node);
    }

    /// Assigns the variables of a checkpoint: those that the graph's saver restores, and others by their names.
    fn values(&mut self, checkpoint: &Checkpoint, restored: &[meta::Restored]) -> Result<(), FormatError> {
        let by_saver: HashMap<&str, &meta::Restored> =
            restored.iter().map(|restored| (restored.variable.as_str(), restored)).collect();
        let keys: BTreeSet<String> =
            checkpoint.tensors().map(|(name, ..)| String::from_utf8_lossy(name).into_owned()).collect();
        for place in 0..self.nodes.len() {
            let node = &self.nodes[place];
            if !vocabulary::makes_variable(&node.op) {
                continue;
            }
            let shared = node.attrs.str("shared_name").unwrap_or_default();
            let key = match by_saver.get(node.name.as_str()) {
                Some(restored) => Some((restored.key.as_str(), restored.part.as_str())),
                None => [shared, node.name.as_str()].into_iter().find(|key| keys.contains(*key)).map(|key| (key, "")),
            };
            let Some((key, part)) = key else { continue };
            let name = node.name.clone();
            let at = |failure: Failure| match failure.refusal {
                Some(_) => FormatError::NoMemory { why: failure.message },
                None => no_graph(format!("variable {name}: {}", failure.message)),
            };
            let dtype = node.attrs.dtype("dtype").map_err(at)?;
            let part = Slice::parse(part).map_err(at)?;
            let value = checkpoint.tensor(key.as_bytes(), dtype, part.as_ref()).map_err(at)?;
            self.bytes = self.bytes.saturating_add(value.byte_len());
            if self.bytes > MAX_VALUES {
                return Err(no_graph(format!(
                    "its variables have more than {MAX_VALUES} bytes, the limit for one model"
                )));
            }
            self.assign(place, dtype, value);
        }
        Ok(())
    }

    /// Adds the nodes that assign a value to the variable of a node.
    fn assign(&mut self, place: usize, dtype: DType, value: Tensor) {
        let (variable, device) = (self.nodes[place].name.clone(), self.nodes[place].device.clone());
        let is_resource = self.nodes[place].op == "VarHandleOp";
        let constant = self.constant(&format!("restored/{variable}/value"), value, &device);
        let name = self.free(&format!("restored/{variable}/assign"));
        let op = if is_resource { "AssignVariableOp" } else { "Assign" };
        let mut node = NodeDef {
            name: name.clone(),
            op: op.to_owned(),
            inputs: vec![variable, constant],
            device,
            ..NodeDef::default()
        };
        node.attrs.set(if is_resource { "dtype" } else { "T" }, Attr::Type(dtype));
        self.add(node);
        self.controls.push(name);
    }

    /// Adds a constant; returns its name.
    fn constant(&mut self, name: &str, value: Tensor, device: &str) -> String {
        let name = self.free(name);
        let mut node =
            NodeDef { name: name.clone(), op: "Const".to_owned(), device: device.to_owned(), ..NodeDef::default() };
        node.attrs.set("dtype", Attr::Type(value.dtype()));
        node.attrs.set("value", Attr::Tensor(value));
        self.add(node);
        name
    }

    /// Gives tables that are read from a file of the model the contents of that file, since the tasks do not have it.
    fn tables(&mut self, files: &HashMap<&str, &str>, folder: &Path) -> Result<(), FormatError> {
        for place in 0..self.nodes.len() {
            let node = &self.nodes[place];
            if !matches!(node.op.as_str(), "InitializeTableFromTextFile" | "InitializeTableFromTextFileV2") {
                continue;
            }
            let Some(file) = node.inputs.get(1).and_then(|input| self.file(input, files)) else { continue };
            let table = node.inputs[0].clone();
            let (key, value) = self.types(&table);
            let path = weight_file::inside(folder, &format!("{ASSETS}/{file}")).map_err(of_failure)?;
            let (name, device) = (node.name.clone(), node.device.clone());
            let attrs = node.attrs.clone();
            let filled = super::vocabulary::filled(&attrs, (key, value), &path);
            let (keys, values) = filled.map_err(|failure| no_graph(format!("node {name}: {}", failure.message)))?;
            let keys = self.constant(&format!("{name}/keys"), keys, &device);
            let values = self.constant(&format!("{name}/values"), values, &device);
            let node = &mut self.nodes[place];
            node.op = if node.op.ends_with("V2") { "InitializeTableV2" } else { "InitializeTable" }.to_owned();
            let control = node.inputs.iter().filter(|input| input.starts_with('^')).cloned();
            node.inputs = [table, keys, values].into_iter().chain(control).collect();
            node.attrs.0.retain(|name, _| name.starts_with('_'));
            node.attrs.set("Tkey", Attr::Type(key));
            node.attrs.set("Tval", Attr::Type(value));
        }
        Ok(())
    }

    /// Gives the tensors of paths their values, which TensorFlow feeds when it loads a model.
    fn paths(&mut self, files: &HashMap<&str, &str>, folder: &Path) {
        for node in &mut self.nodes {
            let Some(file) = files.get(node.name.as_str()) else { continue };
            let path = folder.join(ASSETS).join(file).display().to_string();
            node.op = "Const".to_owned();
            node.inputs.retain(|input| input.starts_with('^'));
            node.attrs.0.retain(|name, _| name.starts_with('_'));
            node.attrs.set("dtype", Attr::Type(DType::String));
            node.attrs.set("value", Attr::Tensor(Tensor::from(path.as_str())));
        }
    }

    /// The node that an input comes from, through nodes that only pass it.
    fn origin(&self, input: &str) -> Option<&NodeDef> {
        let mut name = split_tensor_name(input).0;
        for _ in 0..64 {
            let node = self.nodes.iter().find(|node| node.name == name)?;
            match node.op.as_str() {
                "Identity" => name = split_tensor_name(node.inputs.first()?).0,
                // TensorFlow 2 keeps the path of a file in a variable, which is assigned once.
                "ReadVariableOp" => {
                    let variable = split_tensor_name(node.inputs.first()?).0;
                    let assigns = |node: &&NodeDef| {
                        node.op == "AssignVariableOp"
                            && node.inputs.first().is_some_and(|input| split_tensor_name(input).0 == variable)
                    };
                    let assign = self.nodes.iter().find(assigns)?;
                    name = split_tensor_name(assign.inputs.get(1)?).0;
                }
                _ => return Some(node),
            }
        }
        None
    }

    /// The file of the folder of assets whose path an input is.
    fn file(&self, input: &str, files: &HashMap<&str, &str>) -> Option<String> {
        files.get(self.origin(input)?.name.as_str()).map(|file| (*file).to_owned())
    }

    /// The dtypes of the keys and values of a table.
    fn types(&self, table: &str) -> (DType, DType) {
        let node = self.origin(table);
        let of = |attr: &str| node.and_then(|node| node.attrs.dtype(attr).ok());
        (of("key_dtype").unwrap_or(DType::String), of("value_dtype").unwrap_or(DType::I64))
    }

    /// A node for an output under its name in the signature, if no other node has that; returns the tensor to fetch.
    fn output(&mut self, port: &Port) -> String {
        let is_name = port.name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && port.name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
        if !is_name || self.taken.contains(&port.name) {
            return plain(&port.tensor);
        }
        let mut node = NodeDef {
            name: port.name.clone(),
            op: "Identity".to_owned(),
            inputs: vec![port.tensor.clone()],
            ..NodeDef::default()
        };
        if let Some(dtype) = port.dtype {
            node.attrs.set("T", Attr::Type(dtype));
        }
        self.add(node);
        port.name.clone()
    }
}

/// The name of a tensor without the port 0, as a graph has it.
fn plain(tensor: &str) -> String {
    tensor.strip_suffix(":0").unwrap_or(tensor).to_owned()
}

fn no_graph(why: String) -> FormatError {
    FormatError::NoGraph { why }
}

fn of_failure(failure: Failure) -> FormatError {
    match failure.refusal {
        Some(_) => FormatError::NoMemory { why: failure.message },
        None => no_graph(failure.message),
    }
}
