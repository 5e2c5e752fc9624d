//! The nodes that fill the tables of a graph: a SavedModel runs them before its first answer, and has the files that they read.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use meshtf_graph::graphdef::meta::ASSETS;
use meshtf_graph::op::Role;
use meshtf_graph::{Attr, Graph, Node, NodeDef, NodeId};
use meshtf_tensor::Tensor;

use super::graph::needed_by;
use crate::cli::Trouble;

/// Ops that fill a table, which is their first input.
const FILLERS: &[&str] = &[
    "InitializeTable",
    "InitializeTableV2",
    "InitializeTableFromTextFile",
    "InitializeTableFromTextFileV2",
    "LookupTableImport",
    "LookupTableImportV2",
    "LookupTableInsert",
    "LookupTableInsertV2",
];

/// The fillers of a graph's tables.
#[derive(Default)]
pub(super) struct Filling {
    /// In the order of the graph.
    pub nodes: Vec<NodeId>,
    /// The paths of files that they read, by the constants that name them.
    files: BTreeMap<NodeId, PathBuf>,
}

impl Filling {
    /// The nodes among those of `init` that fill a table which is among the `needed` ones.
    ///
    /// # Errors
    /// A table that stays empty, or is filled from something that is not in the file.
    pub fn of(graph: &Graph, init: &[String], needed: &BTreeSet<NodeId>) -> Result<Filling, String> {
        let tables: Vec<&Node> =
            needed.iter().map(|&id| graph.node(id)).filter(|node| makes_table(node.op.name)).collect();
        let mut filling = Filling::default();
        if tables.is_empty() {
            return Ok(filling);
        }
        let keys: BTreeSet<String> = tables.iter().map(|table| key(table)).collect();
        let mut filled = BTreeSet::new();
        for id in needed_by(graph, init.iter().filter_map(|name| graph.find(name))) {
            let node = graph.node(id);
            let Some(table) = FILLERS.contains(&node.op.name).then(|| origin(graph, node.inputs[0].node)) else {
                continue;
            };
            let key = key(graph.node(table));
            if !keys.contains(&key) {
                continue;
            }
            if node.op.name.starts_with("InitializeTableFromTextFile") {
                let (constant, path) = file(graph, node)?;
                filling.files.insert(constant, path);
            }
            filling.nodes.push(id);
            filled.insert(key);
        }
        // One that changes may begin empty.
        let is_fixed = |table: &&&Node| table.op.name.starts_with("HashTable");
        if let Some(empty) = tables.iter().filter(is_fixed).find(|table| !filled.contains(&key(table))) {
            return Err(format!("table {} would be empty: the file's init runs no node that fills it", empty.name));
        }
        let before = needed_by(graph, filling.nodes.iter().copied());
        if let Some(&fed) = before.iter().find(|&&id| graph.node(id).op.role == Role::Placeholder) {
            let name = &graph.node(fed).name;
            return Err(format!(
                "a table is filled from the placeholder {name}, which nobody feeds when a model is loaded"
            ));
        }
        Ok(filling)
    }

    /// Copies the files into the folder of the model's assets, and has their constants name them there. Returns the tensors of
    /// the paths and the names of the files.
    pub fn copy(&self, graph: &Graph, nodes: &mut [NodeDef], model: &Path) -> Result<Vec<(String, String)>, Trouble> {
        let mut names: BTreeMap<&Path, String> = BTreeMap::new();
        let mut assets = Vec::new();
        for (&constant, path) in &self.files {
            let at = |error: std::io::Error| Trouble::input(format!("{}: {error}", path.display()));
            let name = match names.get(path.as_path()) {
                Some(name) => name.clone(),
                None => {
                    let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let is_taken = |name: &String| names.values().any(|other| other == name);
                    let name = (0..).map(|i| if i == 0 { own.clone() } else { format!("{i}_{own}") });
                    let name = name.into_iter().find(|name| !is_taken(name)).expect("there are more names than files");
                    fs::create_dir_all(model.join(ASSETS)).map_err(at)?;
                    fs::copy(path, model.join(ASSETS).join(&name)).map_err(at)?;
                    names.insert(path, name.clone());
                    name
                }
            };
            let node = &graph.node(constant).name;
            if let Some(node) = nodes.iter_mut().find(|own| own.name == *node) {
                node.attrs.set("value", Attr::Tensor(Tensor::from(name.as_str())));
            }
            assets.push((format!("{node}:0"), name));
        }
        Ok(assets)
    }
}

/// Makes one node of those that share a table: TensorFlow 2 has a table for each when it loads a graph.
pub(super) fn join(nodes: &mut Vec<NodeDef>) {
    let mut first: HashMap<String, String> = HashMap::new();
    let mut others: HashMap<String, String> = HashMap::new();
    for node in nodes.iter().filter(|node| makes_table(&node.op)) {
        let Some(shared) = node.attrs.str("shared_name").ok().filter(|name| !name.is_empty()) else { continue };
        match first.entry(shared.to_owned()) {
            Entry::Vacant(place) => _ = place.insert(node.name.clone()),
            Entry::Occupied(own) => _ = others.insert(node.name.clone(), own.get().clone()),
        }
    }
    nodes.retain(|node| !others.contains_key(&node.name));
    for input in nodes.iter_mut().flat_map(|node| &mut node.inputs) {
        let name = input.trim_start_matches('^').trim_end_matches(":0");
        if let Some(own) = others.get(name) {
            *input = format!("{}{own}", if input.starts_with('^') { "^" } else { "" });
        }
    }
}

/// Whether an op makes a table that outlives a step.
fn makes_table(op: &str) -> bool {
    op.contains("HashTable") && !op.starts_with("Anonymous")
}

/// The name that several nodes of one table share.
fn key(table: &Node) -> String {
    let shared = table.attrs.str("shared_name").ok().filter(|name| !name.is_empty());
    shared.map_or_else(|| table.name.clone(), str::to_owned)
}

/// The node that makes a value, through nodes that only pass it.
fn origin(graph: &Graph, mut id: NodeId) -> NodeId {
    // A graph has cycles in loops alone, whose nodes are others.
    while graph.node(id).op.name == "Identity" {
        id = graph.node(id).inputs[0].node;
    }
    id
}

/// The constant that names the file of a table, and its path.
fn file(graph: &Graph, node: &Node) -> Result<(NodeId, PathBuf), String> {
    let wrong = |why: &str| format!("node {}: the name of the file that it reads {why}", node.name);
    let id = origin(graph, node.inputs[1].node);
    let constant = graph.node(id);
    if constant.op.role != Role::Const {
        return Err(wrong("is no constant"));
    }
    let value = constant.attrs.whole_tensor("value").map_err(|failure| failure.message)?;
    match value.slice::<Vec<u8>>() {
        Ok([path]) => {
            let path = std::str::from_utf8(path).map_err(|_| wrong("is no text"))?;
            Ok((id, PathBuf::from(path)))
        }
        _ => Err(wrong("is not one text")),
    }
}
