//! Files of programs: the functions that recognise graph.json, GraphDef, MetaGraph, SavedModel and ONNX by their content.

pub mod extension;
pub mod load;
pub mod saved;
pub mod trained;
mod vocabulary;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use meshtf_graph::graphdef::meta;
use meshtf_graph::{Beside, FormatError, Program};
pub use meshtf_onnx::Tuning;
use meshtf_onnx::{Port, Variable};
use meshtf_tensor::failure::Failure;

/// The inputs and outputs of a model, whose names a graph does not have. Empty for other formats.
#[derive(Clone, Debug, Default)]
pub struct Ports {
    /// Those of an ONNX model, which have element types, too.
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// Those of a signature, and their tensors.
    named: Vec<(String, String)>,
    /// The tensors of its inputs.
    fed: Vec<String>,
    /// The name of that signature.
    pub signature: Option<String>,
    /// The signatures of the file, if none of them is the default one and there are several.
    pub others: Vec<String>,
    /// Whether `init` restores the values that the file has: of a SavedModel, of a MetaGraph, of [`variables`](Ports::variables).
    pub is_model: bool,
    /// The initializers of an ONNX model, or the constants of a graph, that are variables.
    pub variables: Vec<Variable>,
}

impl Ports {
    /// The reason why nothing is known to be fetched: `remedy`, or the signatures from which one has to be chosen.
    pub fn nothing_to_fetch(&self, remedy: &str) -> String {
        match self.others.as_slice() {
            [] => format!("it does not say what to fetch: {remedy}"),
            names => format!("it has several signatures: use --signature {}, or --fetch", names.join(" or ")),
        }
    }

    /// The tensor of a name of the model; any other name is that of a tensor already.
    pub fn tensor<'a>(&'a self, name: &'a str) -> &'a str {
        if let Some((_, tensor)) = self.named.iter().find(|(own, _)| own == name) {
            return tensor;
        }
        let all = || self.inputs.iter().chain(&self.outputs);
        let named = all().find(|port| port.name == name && port.tensor != name);
        // A name of a tensor comes first, should one be the other's name in the model.
        match named.filter(|_| !all().any(|port| port.tensor == name)) {
            Some(port) => &port.tensor,
            None => name,
        }
    }

    /// The inputs of the model with the tensors by which they are fed.
    pub fn named_inputs(&self) -> Vec<(String, String)> {
        let own = self.inputs.iter().map(|port| (port.name.clone(), port.tensor.clone()));
        own.chain(self.named.iter().filter(|(_, tensor)| self.fed.contains(tensor)).cloned()).collect()
    }

    /// The tensors by which the inputs are fed.
    pub fn feeds(&self) -> Vec<String> {
        self.inputs.iter().map(|port| port.tensor.clone()).chain(self.fed.clone()).collect()
    }

    /// The name of an output of the model that is fetched by this tensor; the tensor's own if it has none.
    pub fn name<'a>(&'a self, tensor: &'a str) -> &'a str {
        let of_signature = self.named.iter().find(|(_, own)| own == tensor && !self.fed.contains(own));
        match (self.output(tensor), of_signature) {
            (Some(port), _) => &port.name,
            (None, Some((name, _))) => name,
            (None, None) => tensor,
        }
    }

    /// The input that is fed by this tensor.
    pub fn input(&self, tensor: &str) -> Option<&Port> {
        self.inputs.iter().find(|port| port.tensor == tensor)
    }

    /// The output that is fetched by this tensor.
    pub fn output(&self, tensor: &str) -> Option<&Port> {
        self.outputs.iter().find(|port| port.tensor == tensor)
    }
}

/// Reads a program of any format. No other file is read: see [`read_beside`].
///
/// # Errors
/// The error, its location in the file, and the remedy.
pub fn read(bytes: &[u8]) -> Result<Program, FormatError> {
    let refuse = |file: &str| format!("{file:?} cannot be read: this graph was given without a folder");
    read_beside(&Bytes::copy_from_slice(bytes), &mut |file, _| Err(Failure::invalid(refuse(file))))
        .map(|(program, _)| program)
}

/// As [`read`]; `beside` reads the files next to the program that may hold its constants.
///
/// # Errors
/// As [`read`], and if such a file cannot be read.
pub fn read_beside(bytes: &Bytes, beside: &mut Beside) -> Result<(Program, Ports), FormatError> {
    read_tuned(bytes, beside, Tuning::default())
}

/// As [`read_beside`]; parts of a model are read in another way.
fn read_tuned(bytes: &Bytes, beside: &mut Beside, tuning: Tuning) -> Result<(Program, Ports), FormatError> {
    let of_meta = |graph| saved::program(graph, (None, Path::new("")), None).map(|read| trained::tuned(read, tuning));
    if meta::is_saved_model(bytes) && !meshtf_onnx::is_model(bytes) {
        return of_meta(saved::served(bytes)?);
    }
    if meta::is_meta_graph(bytes) {
        return of_meta(meta::read_meta_graph(bytes)?);
    }
    if !meshtf_onnx::is_model(bytes) {
        let program = meshtf_train::model::file::read_beside(bytes, beside)?;
        return Ok(trained::tuned((program, Ports::default()), tuning));
    }
    let model = meshtf_onnx::read_tuned(bytes, beside, tuning)?;
    let fetch = model.outputs.iter().map(|port| port.tensor.clone()).collect();
    let is_model = model.init.is_some();
    let init = model.init.into_iter().collect();
    let program = Program { nodes: model.nodes, fetch, init, ..Program::default() };
    let (inputs, outputs, variables) = (model.inputs, model.outputs, model.variables);
    Ok((program, Ports { inputs, outputs, variables, is_model, ..Ports::default() }))
}

/// The file of the program at a path: a SavedModel is a folder.
pub fn file_of(path: &Path) -> PathBuf {
    let saved = path.join(crate::weight_file::SAVED_MODEL);
    if saved.is_file() { saved } else { path.to_owned() }
}

/// As [`read_beside`], for a file at a path: variables of a SavedModel or a MetaGraph have the values that lie next to it, and
/// feeds and fetches the names of a signature.
///
/// # Errors
/// As [`read_beside`]; if there is no such signature, or the values do not fit.
pub fn read_at(
    path: &Path,
    bytes: &Bytes,
    beside: &mut Beside,
    signature: Option<&str>,
    tuning: Tuning,
) -> Result<(Program, Ports), FormatError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    if meta::is_saved_model(bytes) && !meshtf_onnx::is_model(bytes) {
        let prefix = crate::weight_file::prefix(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
        let read = saved::program(saved::served(bytes)?, (prefix.as_deref(), folder), signature)?;
        return Ok(trained::tuned(read, tuning));
    }
    if meta::is_meta_graph(bytes) {
        // `model.ckpt.meta` lies next to `model.ckpt.index`.
        let prefix = path.extension().filter(|ending| *ending == "meta").map(|_| path.with_extension(""));
        let prefix = prefix.and_then(|prefix| crate::weight_file::prefix(&prefix));
        let read = saved::program(meta::read_meta_graph(bytes)?, (prefix.as_deref(), folder), signature)?;
        return Ok(trained::tuned(read, tuning));
    }
    match signature {
        Some(name) => Err(FormatError::NoGraph {
            why: format!(
                "it has no signatures, and so none named {name:?}: --signature is for a SavedModel or a MetaGraph"
            ),
        }),
        None => read_tuned(bytes, beside, tuning),
    }
}
