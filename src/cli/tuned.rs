//! Models of other programs in a training, and with its weights: initializers of an ONNX model become variables, and the file of
//! the sections may add nodes, such as a loss.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use meshtf::program_file::{Ports, Tuning, extension};
use meshtf::trainer::Error;
use meshtf::trainer::weights::{At, names};
use meshtf_graph::op::Role;
use meshtf_graph::{Graph, NodeDef, Program};
use meshtf_kernels::files::is_match;
use meshtf_tensor::nearest::nearest;
use meshtf_train::file::Sections;
use meshtf_train::job::names_of_variables;

use super::Trouble;
use super::inputs::{Files, read_to_run, read_tuned};

/// The node by which a training gives the variables of a file first values, if the file states none.
const INIT: &str = "init";

/// Most initializers that are named in a message.
const MAX_NAMED: usize = 8;

/// A program, its graph, the content of its file, and its inputs and outputs.
pub(super) type Model = (Program, Graph, Vec<u8>, Ports);

/// Reads a model for weights: initializers of an ONNX model that the weights have are variables.
pub(super) fn read_for_weights(
    path: &Path,
    signature: Option<&str>,
    weights: Option<At>,
    tensors: &[String],
) -> Result<Model, Trouble> {
    with_weights(read_tuned, path, signature, weights, tensors)
}

/// As [`read_for_weights`], for a graph that runs, as [`read_to_run`].
pub(super) fn read_for_run(path: &Path, signature: Option<&str>, weights: Option<At>) -> Result<Model, Trouble> {
    with_weights(read_to_run, path, signature, weights, &[])
}

fn with_weights(
    read: fn(&Path, Option<&str>, Tuning) -> Result<Model, Trouble>,
    path: &Path,
    signature: Option<&str>,
    weights: Option<At>,
    tensors: &[String],
) -> Result<Model, Trouble> {
    let Some(at) = weights else { return read(path, signature, Tuning { is_variable: None, tensors }) };
    // Listed for the first initializer: weights of other models are read once, later.
    let listed: OnceCell<Result<BTreeSet<String>, Error>> = OnceCell::new();
    let is_variable = |name: &str| {
        let listed = listed.get_or_init(|| names(at).map(|names| names.into_iter().collect()));
        listed.as_ref().is_ok_and(|names| names.contains(name))
    };
    let model = read(path, signature, Tuning { is_variable: Some(&is_variable), tensors })?;
    match listed.into_inner() {
        None => {}
        Some(Err(Error::Input(why))) => return Err(Trouble::input(format!("weights {why}"))),
        Some(Err(other)) => return Err(other.into()),
        Some(Ok(names)) if let Some(other) = model.3.variables.iter().find(|own| !names.contains(&own.name)) => {
            let rule = serde_json::json!([{ "name": other.initializer, "to": other.name }]);
            return Err(Trouble::input(format!(
                "weights {}: the initializer {} of {} is the variable {} of its graph, since nodes lack such a name or another one \
                 has it; name the tensor so by --map, as in {rule}",
                at.path.display(),
                other.initializer,
                path.display(),
                other.name
            )));
        }
        // Those of layers that are added are no initializers.
        Some(Ok(_)) if model.3.variables.is_empty() && tensors.is_empty() => {
            return Err(Trouble::input(format!(
                "weights {0}: none has the name of an initializer of {1}: `meshtf inspect` lists the names of both, and --map gives \
                 others",
                at.path.display(),
                path.display()
            )));
        }
        Some(Ok(_)) => {}
    }
    Ok(model)
}

/// Reads the graph of a training: the initializers of an ONNX model that train are those that the section "train" names by
/// patterns as its variables. `with`: the file of the sections, if it is not the graph's, and its text, which may have nodes.
pub(super) fn read_for_training(
    path: &Path,
    with: Option<(&PathBuf, &str)>,
    sections: &mut Sections,
) -> Result<Graph, Trouble> {
    let tensors = with.map_or_else(Vec::new, |(_, text)| extension::references(text));
    let patterns = sections.train.variables.clone();
    let floats: OnceCell<()> = OnceCell::new();
    let is_variable = |name: &str| {
        floats.get_or_init(|| ());
        patterns.iter().any(|pattern| pattern == name || is_match(pattern, name))
    };
    let (program, mut graph, bytes, ports) =
        read_tuned(path, None, Tuning { is_variable: Some(&is_variable), tensors: &tensors })?;
    let mut init = program.init;
    if let Some((file, text)) = with {
        let own = (init.is_empty() && sections.init.is_empty() && graph.find(INIT).is_some()).then(|| INIT.to_owned());
        let more = extend(&mut graph, file, text)?;
        if !more.is_empty() {
            init.extend(own.into_iter().chain(more));
        }
    }
    // The variables of the model and of layers get first values whatever else the file states.
    sections.init.retain(|name| !init.contains(name));
    sections.init.splice(0..0, init);
    // Only an ONNX model has initializers.
    if floats.get().is_some() {
        check_patterns(path, &bytes, &patterns, &graph, &ports)?;
        sections.train.variables.clear();
    }
    Ok(graph)
}

/// Adds the nodes of a file of sections to a graph; returns those that give their variables first values. A node with the name of
/// a placeholder replaces it: the model takes the value that the node computes.
pub(super) fn extend(graph: &mut Graph, file: &Path, text: &str) -> Result<Vec<String>, Trouble> {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", file.display()));
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut files = Files::in_folder(folder);
    let mut beside = |file: &str, range| files.read(file, range);
    let more = extension::read(graph, text, &mut beside).map_err(|error| at(&error))?;
    // The file is that of the whole model, of which only the sections count.
    let is_own = |node: &NodeDef| graph.find(&node.name).is_some_and(|id| graph.node(id).op.name == node.op);
    if more.nodes.iter().all(is_own) && more.nodes.iter().any(|node| !is_placeholder(graph, &node.name)) {
        return Ok(Vec::new());
    }
    let replaced = more.nodes.iter().map(|node| &node.name).filter(|name| is_placeholder(graph, name));
    let replaced: BTreeSet<String> = replaced.cloned().collect();
    if replaced.is_empty() {
        graph.extend(more.nodes).map_err(|error| at(&error))?;
    } else {
        let mut nodes = graph.to_defs();
        nodes.retain(|node| !replaced.contains(&node.name));
        nodes.extend(more.nodes);
        *graph = Graph::new(nodes).map_err(|error| at(&error))?;
    }
    graph.check_shapes().map_err(|error| at(&error))?;
    Ok(more.init)
}

fn is_placeholder(graph: &Graph, name: &str) -> bool {
    graph.find(name).is_some_and(|id| graph.node(id).op.role == Role::Placeholder)
}

/// Refuses patterns that match no initializer of a model and no variable of the nodes that were added.
fn check_patterns(path: &Path, bytes: &[u8], patterns: &[String], graph: &Graph, ports: &Ports) -> Result<(), Trouble> {
    let at = |why: String| Trouble::input(format!("{}: {why}", path.display()));
    let all: Vec<String> = match meshtf_onnx::describe(&Bytes::copy_from_slice(bytes)) {
        Ok(model) => {
            model.weights.into_iter().filter(|weight| weight.elem.contains("float")).map(|own| own.name).collect()
        }
        Err(error) => return Err(at(error.to_string())),
    };
    let shown = |names: &[&str]| {
        let more = if names.len() > MAX_NAMED { ", …" } else { "" };
        format!("{}{more}", names.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", "))
    };
    let floats: Vec<&str> = all.iter().map(String::as_str).collect();
    let own = names_of_variables(graph);
    // Layers that are added may train alone.
    if patterns.is_empty() && own.is_empty() {
        return Err(at(format!(
            "\"variables\" is missing in the section \"train\": the initializers that train, by names or patterns such as \
             \"*.weight\"; the model has {}",
            shown(&floats)
        )));
    }
    for pattern in patterns {
        let matches = |name: &str| pattern == name || is_match(pattern, name);
        let is_initializer = ports.variables.iter().any(|own| matches(&own.initializer) || matches(&own.name));
        if !is_initializer && !own.iter().any(|name| matches(name)) {
            let near = nearest(pattern, floats.iter().copied());
            let hint = if near.is_empty() { floats.clone() } else { near };
            return Err(at(format!(
                "$.train.variables: {pattern:?} matches no initializer of floats that the outputs need; there are {}",
                shown(&hint)
            )));
        }
    }
    Ok(())
}
