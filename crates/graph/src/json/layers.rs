//! Layers of a document: nodes with a `layer` in place of an `op`, which stand for several nodes and variables.
//!
//! This module reads them and decides their order. The nodes themselves are added by an [`Expand`], since layers are functions
//! of `meshtf_train::model`.

use std::collections::{HashMap, HashSet};

use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::json::{Fault, Kind, Member, Path, Value, is_whole};
use meshtf_tensor::nearest::nearest;

use super::draft::{self, Draft, DraftInput, Made, unknown_key};
use super::layer_table::{LAYERS, LayerDef, OptionKind, layer_named};
use crate::build::is_node_name;
use crate::{Attr, Attrs, GraphError, NodeDef, op, split_tensor_name};

/// The most layers of a document.
const MAX_LAYERS: usize = 4096;
/// The deepest nesting of loops that is followed.
const MAX_LOOPS: usize = 256;
/// The reason why a layer is no part of a loop, and another way.
const NOT_IN_LOOPS: &str = "a layer cannot be part of a loop, since its variables are read once in a step, outside of all loops: \
                            write its operations in place of it, and let each variable enter the loop by Enter with \"is_constant\"";

/// A layer of a document, with all of its options.
pub struct Layer<'v, 'a> {
    /// The name of the layer, and of the node that has its output.
    pub name: &'v str,
    /// The kind of layer.
    pub def: &'static LayerDef,
    /// The tensors that it takes.
    pub inputs: Vec<&'v str>,
    /// The device that its nodes and variables request; may be empty.
    pub device: String,
    options: Vec<Option<Setting>>,
    value: &'v Value<'a>,
}

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Setting {
    Size(usize),
    Share(f64),
    Truth(bool),
    Word(&'static str),
    Seed(i64),
}

/// The nodes of a document with layers, and those that assign first values to the variables of the layers.
pub struct Expanded {
    /// All nodes of the document.
    pub nodes: Vec<NodeDef>,
    /// The names of the nodes that assign first values.
    pub assigns: Vec<String>,
}

/// Adds the nodes of layers to a graph.
pub trait Expand {
    /// Keeps a name of the document free for its node.
    fn reserve(&mut self, name: &str);

    /// Adds nodes of the document as they are.
    ///
    /// # Errors
    /// The first error of these nodes.
    fn add(&mut self, nodes: Vec<NodeDef>) -> Result<(), GraphError>;

    /// Adds the nodes of a layer, whose inputs were added before; the last one has the name of the layer. Returns the bytes
    /// of its constants.
    ///
    /// # Errors
    /// The reason why there is no such layer.
    fn expand(&mut self, layer: &Layer) -> Result<usize>;

    /// The graph.
    ///
    /// # Errors
    /// A node that cannot be added.
    fn finish(&mut self) -> Result<Expanded>;

    /// Receives the nodes that give the document's variables their first values, also if `init` names other nodes.
    fn first_values(&mut self, _assigns: &[String]) {}
}

/// The reader of documents that have no layers.
pub struct NoLayers;

impl Expand for NoLayers {
    fn reserve(&mut self, _: &str) {}

    fn add(&mut self, _: Vec<NodeDef>) -> Result<(), GraphError> {
        Ok(())
    }

    fn expand(&mut self, layer: &Layer) -> Result<usize> {
        Err(Failure::invalid(format!("layer {}: this reader takes operations only", layer.name)))
    }

    fn finish(&mut self) -> Result<Expanded> {
        Ok(Expanded { nodes: Vec::new(), assigns: Vec::new() })
    }
}

impl Layer<'_, '_> {
    /// A message about a node of the layer, or about its kind, as one about the layer.
    fn explained(&self, message: &str) -> String {
        let (name, kind) = (self.name, self.def.name);
        if message.starts_with("layer ") {
            return message.to_owned();
        }
        let node = message.strip_prefix(&format!("node {name}/")).and_then(|rest| rest.split_once(": "));
        let own = [format!("{kind} {name}: "), format!("{kind}: ")];
        let own = own.iter().find_map(|prefix| message.strip_prefix(prefix.as_str()));
        format!("layer {name} ({kind}): {}", node.map(|(_, rest)| rest).or(own).unwrap_or(message))
    }

    fn setting(&self, option: &str) -> Option<Setting> {
        let at = self.def.options.iter().position(|def| def.name == option)?;
        self.options[at]
    }

    /// An option that is a size; `None` if it is not stated.
    pub fn size(&self, option: &str) -> Option<usize> {
        if let Some(Setting::Size(size)) = self.setting(option) { Some(size) } else { None }
    }

    /// An option that is a share; 0 unless stated.
    pub fn share(&self, option: &str) -> f64 {
        if let Some(Setting::Share(share)) = self.setting(option) { share } else { 0.0 }
    }

    /// An option that is true or false; false unless stated.
    pub fn truth(&self, option: &str) -> bool {
        matches!(self.setting(option), Some(Setting::Truth(true)))
    }

    /// An option that is one of several words; `None` if it is not stated.
    pub fn word(&self, option: &str) -> Option<&'static str> {
        if let Some(Setting::Word(word)) = self.setting(option) { Some(word) } else { None }
    }

    /// The seed of its random numbers; 0 unless stated.
    pub fn seed(&self) -> i64 {
        if let Some(Setting::Seed(seed)) = self.setting("seed") { seed } else { 0 }
    }
}

/// A draft of a layer for the inference of dtypes: float32 if it has variables, otherwise the dtype of its first input.
pub(super) fn drafted<'v, 'a>(layer: &Layer<'v, 'a>) -> Option<Draft<'v, 'a>> {
    let attrs = if layer.def.keeps_dtype { Attrs::default() } else { Attrs::from([("T", DType::F32.into())]) };
    let inputs = layer.inputs.first().map(|input| DraftInput::Tensor(input)).into_iter().collect();
    let made = Made::Op { op: op::lookup("Identity")?, inputs, attrs };
    Some(Draft { name: layer.name, device: String::new(), control: Vec::new(), made })
}

/// Reads a node that has a `layer`.
pub(super) fn read<'v, 'a>(member: &'v Member<'a>, path: Path) -> Result<Layer<'v, 'a>, Fault> {
    if !is_node_name(&member.key) {
        let why = GraphError::BadName { name: member.key.to_string() }.to_string();
        return Err(Fault::of_content(member.at, path, why));
    }
    let members = member.value.object(path, "a layer is an object")?;
    let kind = member.value.get("layer").unwrap_or(&member.value);
    let def = known(kind, path.key("layer"))?;
    let mut layer = Layer {
        name: &member.key,
        def,
        inputs: Vec::new(),
        device: String::new(),
        options: vec![None; def.options.len()],
        value: &member.value,
    };
    for Member { key, at, value } in members {
        let path = path.key(key);
        match &**key {
            "layer" => {}
            "description" => _ = value.text(path)?,
            "device" => layer.device = draft::device(value, path)?,
            "inputs" => layer.inputs = inputs(value, path)?,
            _ => match def.options.iter().position(|option| option.name == key) {
                Some(i) => layer.options[i] = Some(setting(def.options[i].kind, value, path)?),
                None => {
                    let own = def.options.iter().map(|option| option.name);
                    let known: Vec<&str> =
                        ["layer", "inputs"].into_iter().chain(own).chain(["device", "description"]).collect();
                    return Err(unknown_key(key, *at, path, &known));
                }
            },
        }
    }
    if let Some(missing) = def.options.iter().zip(&layer.options).find(|(def, set)| def.required && set.is_none()) {
        let name = missing.0.name;
        return Err(Fault::content(&member.value, path, format!("layer {} states {name:?}", def.name)));
    }
    let (least, most) = def.inputs;
    if !(least..=most).contains(&layer.inputs.len()) {
        let takes = if least == most { least.to_string() } else { format!("{least} or {most}") };
        let plural = if most == 1 { "input" } else { "inputs" };
        let why = format!("layer {} takes {takes} {plural}, got {}", def.name, layer.inputs.len());
        return Err(Fault::content(member.value.get("inputs").unwrap_or(&member.value), path, why));
    }
    Ok(layer)
}

fn known(value: &Value, path: Path) -> Result<&'static LayerDef, Fault> {
    let name = value.text(path)?;
    LAYERS.iter().find(|def| def.name == name).ok_or_else(|| {
        let lower = name.to_lowercase();
        let hint = match (layer_named(name), nearest(&lower, LAYERS.iter().map(|def| def.name)).first()) {
            (Some(def), _) => format!("did you mean {:?}?", def.name),
            (None, Some(near)) => format!("did you mean {near:?}?"),
            (None, None) => {
                format!("there are {}", LAYERS.iter().map(|def| def.name).collect::<Vec<_>>().join(", "))
            }
        };
        Fault::content(value, path, format!("unknown layer {name:?}; {hint}"))
    })
}

fn inputs<'v>(value: &'v Value, path: Path) -> Result<Vec<&'v str>, Fault> {
    let items = value.list(path, "inputs are a list")?;
    let one = |(i, item): (usize, &'v Value)| match &item.kind {
        Kind::String(name) if !name.is_empty() && !name.starts_with('^') => Ok(&**name),
        _ => Err(Fault::content(item, path.index(i), "an input of a layer is the name of a tensor")),
    };
    items.iter().enumerate().map(one).collect()
}

fn setting(kind: OptionKind, value: &Value, path: Path) -> Result<Setting, Fault> {
    let number = if let Kind::Number(number) = value.kind { Some(number) } else { None };
    let whole = number.filter(|number| is_whole(number));
    let text = if let Kind::String(text) = &value.kind { Some(&**text) } else { None };
    let read = match kind {
        OptionKind::Size => {
            let size = whole.and_then(|number| number.parse().ok()).filter(|&size: &u32| size > 0 && size <= 1 << 30);
            size.map(|size| Setting::Size(size as usize))
        }
        OptionKind::Share => {
            let share = number.and_then(|number| number.parse().ok()).filter(|share| (0.0..1.0).contains(share));
            share.map(Setting::Share)
        }
        OptionKind::Truth => {
            let truth = if let Kind::Bool(truth) = value.kind { Some(truth) } else { None };
            truth.map(Setting::Truth)
        }
        OptionKind::Seed => whole.and_then(|number| number.parse().ok()).map(Setting::Seed),
        OptionKind::Word(words) => words.iter().find(|word| Some(**word) == text).map(|word| Setting::Word(word)),
    };
    read.ok_or_else(|| {
        let words = if let OptionKind::Word(words) = kind { words } else { &[] };
        let near = text.and_then(|text| nearest(text, words.iter().copied()).first().copied());
        let hint = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
        Fault::content(value, path, format!("expected {}{hint}", kind.in_words()))
    })
}

/// Adds the nodes and the layers of a document in the order of their dependencies.
pub(super) fn expand(
    document: &Value,
    mut nodes: Vec<NodeDef>,
    layers: &[Layer],
    budget: &mut crate::program::Budget,
    into: &mut dyn Expand,
) -> Result<Expanded, Fault> {
    let section = Path::Root.key("nodes");
    let at_node = |error: &GraphError| {
        let name = error.node().unwrap_or_default();
        let value = document.get("nodes").and_then(|all| all.get(name)).unwrap_or(document);
        Fault::content(value, section.key(name), error.to_string())
    };
    if let Some(more) = layers.get(MAX_LAYERS) {
        return Err(Fault::content(
            more.value,
            section.key(more.name),
            format!("there are more than {MAX_LAYERS} layers"),
        ));
    }
    let fault = |layer: &Layer, why: String| Fault::content(layer.value, section.key(layer.name), why);
    let names = || nodes.iter().map(|node| node.name.as_str()).chain(layers.iter().map(|layer| layer.name));
    let known: HashSet<&str> = names().collect();
    for layer in layers {
        if let Some(unknown) = layer.inputs.iter().find(|input| !known.contains(split_tensor_name(input).0)) {
            let near = nearest(split_tensor_name(unknown).0, names());
            let hint = near.first().map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            let why = format!("layer {}: input {unknown:?} names a node that does not exist{hint}", layer.name);
            return Err(fault(layer, why));
        }
    }
    if let Some((layer, enter)) = in_a_loop(&nodes, layers) {
        let why = format!("layer {} is within a loop, which its input enters at {enter}; {NOT_IN_LOOPS}", layer.name);
        return Err(fault(layer, why));
    }
    for node in &nodes {
        into.reserve(&node.name);
    }
    let mut left: Vec<&Layer> = layers.iter().collect();
    while !left.is_empty() {
        let waiting = after(&nodes, &left);
        let is_ready = |i: usize| !waiting.contains(&i);
        let (mut ready, mut rest) = (Vec::new(), Vec::new());
        for (i, node) in nodes.into_iter().enumerate() {
            if is_ready(i) { ready.push(node) } else { rest.push(node) }
        }
        nodes = rest;
        into.add(ready).map_err(|error| at_node(&error))?;
        let before = left.len();
        loop {
            let open: HashSet<&str> =
                nodes.iter().map(|node| node.name.as_str()).chain(left.iter().map(|layer| layer.name)).collect();
            let takes_open =
                |layer: &&Layer| layer.inputs.iter().any(|input| open.contains(split_tensor_name(input).0));
            let (still, now): (Vec<&Layer>, Vec<&Layer>) = left.iter().partition(|layer| takes_open(layer));
            if now.is_empty() {
                break;
            }
            for layer in now {
                let bytes = into.expand(layer).map_err(|failure| fault(layer, layer.explained(&failure.message)))?;
                budget.take(bytes).map_err(|why| fault(layer, why))?;
            }
            left = still;
        }
        if left.len() == before {
            let why = format!("layer {} depends on itself; {NOT_IN_LOOPS}", left[0].name);
            return Err(fault(left[0], why));
        }
    }
    into.add(nodes).map_err(|error| at_node(&error))?;
    into.finish().map_err(|failure| Fault::content(document, section, failure.message))
}

/// The first layer that takes a value from within a loop, and the node by which that enters the loop.
fn in_a_loop<'a, 'l, 'v, 'd>(
    nodes: &'a [NodeDef],
    layers: &'l [Layer<'v, 'd>],
) -> Option<(&'l Layer<'v, 'd>, &'a str)> {
    if !nodes.iter().any(|node| is_enter(&node.op)) {
        return None;
    }
    let by_name: HashMap<&str, &NodeDef> = nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let of_layers: HashMap<&str, &Layer> = layers.iter().map(|layer| (layer.name, layer)).collect();
    layers.iter().find_map(|layer| {
        // A tensor's node, and the number of loops that it has left on the way to the layer.
        let mut open: Vec<(&str, usize)> = layer.inputs.iter().map(|input| (split_tensor_name(input).0, 0)).collect();
        let mut seen: HashSet<(&str, usize)> = open.iter().copied().collect();
        while let Some((name, left)) = open.pop() {
            let mut add = |before: (&'a str, usize)| {
                if before.1 <= MAX_LOOPS && seen.insert(before) {
                    open.push(before);
                }
            };
            if let Some(node) = by_name.get(name) {
                let left = match &*node.op {
                    op if is_enter(op) && left == 0 => return Some((layer, node.name.as_str())),
                    op if is_enter(op) => left - 1,
                    "Exit" | "RefExit" => left + 1,
                    _ => left,
                };
                let inputs = node.inputs.iter().filter(|input| !input.starts_with('^'));
                inputs.for_each(|input| add((split_tensor_name(input).0, left)));
            } else if let Some(other) = of_layers.get(name) {
                open.extend(
                    other.inputs.iter().map(|input| (split_tensor_name(input).0, left)).filter(|one| seen.insert(*one)),
                );
            }
        }
        None
    })
}

fn is_enter(op: &str) -> bool {
    matches!(op, "Enter" | "RefEnter")
}

/// The indices of the nodes that depend on one of these layers.
fn after(nodes: &[NodeDef], layers: &[&Layer]) -> HashSet<usize> {
    let mut consumers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        for input in &node.inputs {
            consumers.entry(split_tensor_name(input.trim_start_matches('^')).0).or_default().push(i);
        }
    }
    let mut open: Vec<&str> = layers.iter().map(|layer| layer.name).collect();
    let mut waiting = HashSet::new();
    while let Some(name) = open.pop() {
        for &i in consumers.get(name).into_iter().flatten() {
            if waiting.insert(i) {
                open.push(&nodes[i].name);
            }
        }
    }
    waiting
}

/// The bytes of the constants among these attributes of nodes.
pub fn constant_bytes<'n>(attrs: impl Iterator<Item = &'n Attrs>) -> usize {
    let bytes = |attrs: &Attrs| if let Some(Attr::Tensor(value)) = attrs.get("value") { value.byte_len() } else { 0 };
    attrs.map(bytes).sum()
}
