//! Models of other programs in a training, and with its weights: initializers of an ONNX model, and constants of a graph without
//! variables, become variables, and the file of the sections may add nodes, such as a loss.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use meshtf::program_file::trained::Patterns;
use meshtf::program_file::{Ports, Tuning, extension};
use meshtf::trainer::Error;
use meshtf::trainer::weights::{At, names};
use meshtf_graph::op::Role;
use meshtf_graph::plan::Signature;
use meshtf_graph::plan::scaling::needed;
use meshtf_graph::{Graph, Node, NodeDef, Program, split_tensor_name};
use meshtf_kernels::files::is_match;
use meshtf_train::file::Sections;

use super::Trouble;
use super::inputs::{Files, read_to_run, read_tuned};

/// The node by which a training gives the variables of a file first values, if the file states none.
const INIT: &str = "init";

/// A program, its graph, the content of its file, and its inputs and outputs.
pub(super) type Model = (Program, Graph, Vec<u8>, Ports);

/// Reads a model for weights: initializers and constants of a model without variables that the weights have are variables.
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
                "weights {0}: none has the name of a weight of {1}: `meshtf inspect` lists the names of both, and --map gives \
                 others",
                at.path.display(),
                path.display()
            )));
        }
        Some(Ok(_)) => {}
    }
    Ok(model)
}

/// Reads the graph of a training: the weights of a model without variables that train are those that the section "train" names
/// by patterns as its variables. `with`: the file of the sections, if it is not the graph's, and its text, which may have nodes.
pub(super) fn read_for_training(
    path: &Path,
    with: Option<(&PathBuf, &str)>,
    sections: &mut Sections,
) -> Result<Graph, Trouble> {
    let tensors = with.map_or_else(Vec::new, |(_, text)| extension::references(text));
    let named = sections.train.variables.clone();
    let patterns = Patterns::new(&named);
    let is_variable = |name: &str| patterns.is_variable(name);
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
    if patterns.has_weights() {
        let at = |why: String| Trouble::input(format!("{}: {why}", path.display()));
        patterns.check(&bytes.into(), &graph, &ports).map_err(at)?;
        sections.train.variables.clear();
    } else {
        sections.train.variables = matched(&graph, &sections.train.loss, named);
    }
    feed_inputs(sections, &graph, &ports);
    Ok(graph)
}

/// Names of variables in place of the patterns that match some on which a loss depends.
fn matched(graph: &Graph, loss: &str, named: Vec<String>) -> Vec<String> {
    let signature = Signature { fetches: vec![loss.to_owned()], ..Signature::default() };
    let needed = needed(graph, &signature);
    let makes = graph.nodes().filter(|(id, node)| node.op.makes_variable && needed.contains(id));
    let own = |(_, node): (_, &Node)| match node.attrs.str("shared_name") {
        Ok(shared) if !shared.is_empty() => shared.to_owned(),
        _ => node.name.clone(),
    };
    let all: Vec<String> = makes.map(own).collect();
    let mut chosen = Vec::new();
    for name in named {
        let found: Vec<&String> = match all.contains(&name) {
            true => Vec::new(),
            false => all.iter().filter(|own| is_match(&name, own)).collect(),
        };
        // One that matches none is refused by its name.
        if found.is_empty() {
            chosen.push(name);
        }
        let new: Vec<String> = found.into_iter().filter(|own| !chosen.contains(own)).cloned().collect();
        chosen.extend(new);
    }
    chosen
}

/// Gives the data of a model's inputs the names of the tensors by which they are fed.
fn feed_inputs(sections: &mut Sections, graph: &Graph, ports: &Ports) {
    let data = sections.data.feed.iter_mut().map(|(name, _)| name);
    let constants = sections.data.constants.iter_mut().map(|(name, _)| name);
    let evaluate = sections.evaluate.iter_mut().flat_map(|section| {
        let feed = section.feed.iter_mut().map(|(name, _)| name);
        feed.chain(section.constants.iter_mut().map(|(name, _)| name))
    });
    for name in data.chain(constants).chain(evaluate).filter(|name| graph.find(name).is_none()) {
        *name = split_tensor_name(ports.tensor(name)).0.to_owned();
    }
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
