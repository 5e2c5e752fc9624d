//! The sizes of a model: parameters, memory and operations, in all and for each layer, variable or group of nodes.

use std::collections::{BTreeMap, HashMap, HashSet};

use meshtf_graph::op::Role;
use meshtf_graph::plan::{PlanOptions, Signature, plan, totals};
use meshtf_graph::{Attr, Graph, NodeId, Output, operations};
use meshtf_tensor::device::{DeviceFacts, DeviceKind, Task};
use meshtf_tensor::{DType, PartialShape};
use meshtf_train::file::Sections;
use meshtf_train::model::Model;
use meshtf_train::{GLOBAL_STEP, Variable, state_of};

use super::super::Trouble;

/// The deepest scopes that rows are made of by themselves.
const MAX_DEPTH: usize = 16;

/// A layer of a graph.json, a variable, or nodes whose names have the same beginning.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub name: String,
    /// The kind of layer, an op, or a number of nodes.
    pub kind: String,
    pub output: Option<(DType, PartialShape)>,
    pub parameters: u64,
    /// Those that are trained.
    pub trained: u64,
    pub bytes: u64,
    pub operations: u64,
    /// Nodes whose operations depend on unknown sizes.
    pub unknown: u64,
}

/// The sizes of a model.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    pub rows: Vec<Row>,
    /// Whether a placeholder takes any number of examples: then the numbers are those of so many.
    pub examples: Option<usize>,
    /// The variables whose shapes are not known.
    pub unknown_variables: u64,
    /// Bytes of the parameters that are trained.
    pub trained_bytes: u64,
    /// Bytes of the state of the optimizer, if the file trains.
    pub state: Option<u64>,
    /// Bytes of all values that a step computes, and of those at a time if each is released after its last use.
    pub values: u64,
    pub peak: Option<u64>,
    pub unknown_values: u64,
}

impl Sizes {
    pub fn sum(&self, of: impl Fn(&Row) -> u64) -> u64 {
        self.rows.iter().map(of).fold(0, u64::saturating_add)
    }
}

/// The request: which outputs count, how the names of rows are made, and the number of examples.
pub(super) struct Wanted<'a> {
    pub outputs: &'a [String],
    pub layers: &'a HashMap<String, String>,
    pub sections: Option<&'a Sections>,
    pub depth: Option<usize>,
    pub batch: usize,
    /// The shapes of placeholders that are stated.
    pub shapes: &'a [(String, Vec<usize>)],
}

/// Measures a graph.
pub(super) fn measure(graph: &Graph, wanted: &Wanted) -> Result<Sizes, Trouble> {
    let (graph, is_open) = of_batch(graph, wanted)?;
    let needed = needed(&graph, wanted.outputs)?;
    let mut variables = Model::from_graph(graph.clone()).variables();
    let is_counter = |one: &Variable| one.name == GLOBAL_STEP;
    let counter = variables.iter().find(|one| is_counter(one)).map(|one| one.handle.node);
    variables.retain(|one| !is_counter(one));
    let by_handle: HashMap<NodeId, &Variable> = variables.iter().map(|one| (one.handle.node, one)).collect();
    let trained = trained(&variables, wanted.sections);
    let depth = wanted.depth.unwrap_or_else(|| depth(&variables, wanted.layers));
    let mut sizes = Sizes { examples: is_open.then_some(wanted.batch), ..Sizes::default() };
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for (position, id) in ordered(&graph).into_iter().enumerate() {
        let node = graph.node(id);
        if Some(id) == counter {
            // It counts the steps of a training, as the optimizer's state does.
            continue;
        }
        let is_needed = needed.contains(&id);
        let group = groups.entry(group_of(&node.name, wanted.layers, depth)).or_default();
        if node.op.makes_variable {
            match by_handle.get(&id) {
                Some(variable) => group.add_variable(variable, trained.contains(&id), position, &mut sizes),
                None => sizes.unknown_variables += 1,
            }
        }
        if !is_needed {
            continue;
        }
        group.add(&graph, id, position);
        if !passes_on(&graph, id) {
            for bytes in values(&graph, id) {
                match bytes {
                    Some(bytes) => sizes.values = sizes.values.saturating_add(bytes),
                    None => sizes.unknown_values += 1,
                }
            }
        }
    }
    let mut rows: Vec<(usize, Row)> =
        groups.into_iter().filter_map(|(name, group)| group.row(name, &graph, wanted.layers)).collect();
    rows.sort_by_key(|(position, _)| *position);
    sizes.rows = rows.into_iter().map(|(_, row)| row).collect();
    sizes.state = wanted.sections.map(|sections| state(&variables, &trained, sections));
    sizes.peak = peak(&graph, &needed, wanted.outputs);
    Ok(sizes)
}

/// The graph for so many examples: placeholders with an open first size have this one. Returns whether there is such a one. The
/// nodes request no devices.
fn of_batch(graph: &Graph, wanted: &Wanted) -> Result<(Graph, bool), Trouble> {
    let (mut defs, mut is_open) = (graph.to_defs(), false);
    for (name, sizes) in wanted.shapes {
        let wrong = |why: String| Trouble::input(format!("--shape {name}: {why}"));
        let id = graph.find_or_nearest(name).map_err(|error| wrong(error.to_string()))?;
        let node = graph.node(id);
        let stated = node.attrs.shape("shape").ok().filter(|_| node.op.name.starts_with("Placeholder"));
        let stated = stated.ok_or_else(|| wrong(format!("its op is {}, not Placeholder", node.op.name)))?;
        if !stated.admits(&sizes.clone().into()) {
            return Err(wrong(format!("its shape is {stated}")));
        }
        defs[id.index()].attrs.set("shape", Attr::Shape(PartialShape(Some(sizes.iter().copied().map(Some).collect()))));
    }
    for def in &mut defs {
        def.device = String::new();
        let is_placeholder = graph.find(&def.name).is_some_and(|id| graph.node(id).op.role == Role::Placeholder);
        let Ok(PartialShape(Some(sizes))) = def.attrs.shape("shape") else { continue };
        if is_placeholder && sizes.first() == Some(&None) {
            let mut sizes = sizes.clone();
            sizes[0] = Some(wanted.batch);
            def.attrs.set("shape", Attr::Shape(PartialShape(Some(sizes))));
            is_open = true;
        }
    }
    Ok((Graph::new(defs)?, is_open))
}

/// The nodes that these outputs depend on; without any, all that do more than give variables their first values.
fn needed(graph: &Graph, outputs: &[String]) -> Result<HashSet<NodeId>, Trouble> {
    let mut open: Vec<NodeId> = Vec::new();
    for name in outputs {
        let found = graph.output(name).map(|output| output.node);
        open.push(found.or_else(|error| graph.find(name).ok_or(error))?);
    }
    if outputs.is_empty() {
        let mut used = HashSet::new();
        graph.nodes().for_each(|(_, node)| used.extend(node.sources()));
        let is_end = |id: &NodeId| {
            let op = graph.node(*id).op;
            !used.contains(id) && !op.assigns && op.role != Role::Nothing
        };
        open.extend(graph.nodes().map(|(id, _)| id).filter(is_end));
    }
    let mut seen: HashSet<NodeId> = open.iter().copied().collect();
    while let Some(id) = open.pop() {
        open.extend(graph.node(id).sources().filter(|before| seen.insert(*before)));
    }
    Ok(seen)
}

/// The nodes in an order in which each comes after those that it takes, but for the edges by which loops lead back.
fn ordered(graph: &Graph) -> Vec<NodeId> {
    let role = |id: NodeId| graph.node(id).op.role;
    let before = |id: NodeId| {
        let sources = graph.node(id).sources();
        sources.filter(move |from| !role(*from).leads_back(role(id))).collect::<Vec<_>>()
    };
    let (mut done, mut seen) = (Vec::with_capacity(graph.len()), HashSet::new());
    for (start, _) in graph.nodes() {
        let mut open = vec![(start, false)];
        while let Some((id, is_after)) = open.pop() {
            if is_after {
                done.push(id);
            } else if seen.insert(id) {
                open.push((id, true));
                open.extend(before(id).into_iter().rev().map(|from| (from, false)));
            }
        }
    }
    done
}

/// The row of a node: its layer, or the first parts of its name.
fn group_of(name: &str, layers: &HashMap<String, String>, depth: usize) -> String {
    let ends = name.match_indices('/').map(|(end, _)| end).chain([name.len()]);
    if let Some(layer) = ends.clone().map(|end| &name[..end]).find(|own| layers.contains_key(*own)) {
        return layer.to_owned();
    }
    let end = ends.clone().nth(depth.saturating_sub(1)).unwrap_or(name.len());
    name[..end].to_owned()
}

/// The depth of names at which variables are first told apart.
fn depth(variables: &[Variable], layers: &HashMap<String, String>) -> usize {
    let rows = |depth: usize| {
        let names = variables.iter().map(|variable| group_of(&variable.name, layers, depth));
        names.collect::<HashSet<_>>().len()
    };
    let is_enough = |depth: &usize| rows(*depth) > 1;
    if variables.len() < 2 { 1 } else { (1..=MAX_DEPTH).find(is_enough).unwrap_or(1) }
}

/// The handles of the variables that are trained.
fn trained(variables: &[Variable], sections: Option<&Sections>) -> HashSet<NodeId> {
    let named = sections.map(|sections| &sections.train.variables[..]).unwrap_or_default();
    let is_trained = |variable: &&Variable| match named {
        [] => variable.trainable && variable.dtype.is_float(),
        named => named.contains(&variable.name),
    };
    variables.iter().filter(is_trained).map(|variable| variable.handle.node).collect()
}

fn bytes_of(variable: &Variable) -> u64 {
    elements(variable).saturating_mul(variable.dtype.size().unwrap_or(0) as u64)
}

fn elements(variable: &Variable) -> u64 {
    variable.shape.elements().unwrap_or(0) as u64
}

/// Bytes of the slots of the optimizer, the powers that it keeps, the moving averages and the counter of steps.
fn state(variables: &[Variable], trained: &HashSet<NodeId>, sections: &Sections) -> u64 {
    let (slots, powers) = state_of(&sections.train.training.optimizer);
    let each = slots as u64 + u64::from(sections.train.training.average.is_some());
    let own: Vec<&Variable> = variables.iter().filter(|one| trained.contains(&one.handle.node)).collect();
    let powers = own.first().map_or(0, |first| powers * first.dtype.size().unwrap_or(0)) as u64;
    let counter = size_of::<i64>() as u64;
    own.iter().map(|one| each.saturating_mul(bytes_of(one))).sum::<u64>() + powers + counter
}

/// Whether a node has no value of its own.
fn passes_on(graph: &Graph, id: NodeId) -> bool {
    let op = graph.node(id).op;
    op.role.forwards()
        || op.role == Role::Const
        || op.reads_variable
        || op.makes_variable
        || matches!(op.name, "Reshape" | "Squeeze" | "ExpandDims" | "StopGradient")
}

/// The bytes of each value of a node.
fn values(graph: &Graph, id: NodeId) -> Vec<Option<u64>> {
    let node = graph.node(id);
    let own = node.outputs.iter().zip(0..).filter(|(ty, _)| !ty.is_ref && !ty.dtype.is_handle());
    own.map(|(ty, port)| {
        let sizes = graph.shapes().of(Output { node: id, port }).0?;
        sizes.iter().try_fold(ty.dtype.size()? as u64, |bytes, size| bytes.checked_mul((*size)? as u64))
    })
    .collect()
}

/// The most bytes of values at a time in a step on one device.
fn peak(graph: &Graph, needed: &HashSet<NodeId>, outputs: &[String]) -> Option<u64> {
    let (fetches, targets): (Vec<String>, Vec<String>) =
        outputs.iter().cloned().partition(|name| graph.output(name).is_ok());
    let fed = graph.nodes().filter(|(id, node)| needed.contains(id) && node.op.role == Role::Placeholder);
    let feeds = fed.map(|(_, node)| node.name.clone()).collect();
    let device = Task::new("localhost", 0).device(DeviceKind::Cpu, 0);
    let signature = Signature { feeds, fetches, targets, ..Signature::default() };
    let options = PlanOptions { default_device: device.clone(), soft_placement: true, by_cost: None };
    let plan = plan(graph, &[DeviceFacts::unknown(device.clone())], &signature, &options).ok()?;
    totals(&plan, graph, &[]).get(&device).map(|total| total.peak)
}

/// The nodes of a row.
#[derive(Debug, Default)]
struct Group {
    row: Row,
    nodes: Vec<(usize, NodeId)>,
    /// The value of its only variable, and the place of its first one.
    variable: Option<(DType, PartialShape)>,
    variables: usize,
    first: Option<usize>,
}

impl Group {
    fn add_variable(&mut self, variable: &Variable, is_trained: bool, position: usize, sizes: &mut Sizes) {
        let (count, bytes) = (elements(variable), bytes_of(variable));
        self.row.parameters += count;
        self.row.bytes += bytes;
        if is_trained {
            self.row.trained += count;
            sizes.trained_bytes += bytes;
        }
        let shape = PartialShape(Some(variable.shape.dims().iter().map(|size| Some(*size)).collect()));
        self.variable = Some((variable.dtype, shape));
        self.variables += 1;
        self.first = Some(self.first.map_or(position, |first| first.min(position)));
    }

    fn add(&mut self, graph: &Graph, id: NodeId, position: usize) {
        self.nodes.push((position, id));
        match operations(graph, id) {
            Some(count) => self.row.operations = self.row.operations.saturating_add(count),
            None => self.row.unknown += 1,
        }
    }

    /// The row, and its place among the others; `None` for one of constants alone, and of nodes that no step needs.
    fn row(self, name: String, graph: &Graph, layers: &HashMap<String, String>) -> Option<(usize, Row)> {
        let Group { mut row, nodes, variable, variables, first } = self;
        let of = |id: NodeId| graph.node(id);
        let own = nodes.iter().find(|(_, id)| of(*id).name == name);
        let is_taken = |id: NodeId| {
            let op = of(id).op;
            op.role != Role::Const && op.role != Role::Nothing && !op.makes_variable
        };
        let last = nodes.iter().rev().find(|(_, id)| is_taken(*id));
        let is_variable = variables == 1
            && nodes.iter().all(|(_, id)| {
                let op = of(*id).op;
                op.makes_variable || op.reads_variable || op.role == Role::Forward || op.role == Role::Const
            });
        let place = match own.or(last) {
            Some(&(position, id)) if is_taken(id) => {
                let output = Output { node: id, port: 0 };
                row.output = of(id).outputs.first().map(|ty| (ty.dtype, graph.shapes().of(output)));
                position
            }
            _ if variables > 0 => first?,
            _ => return None,
        };
        let computing: Vec<NodeId> = nodes.iter().map(|(_, id)| *id).filter(|id| is_taken(*id)).collect();
        row.kind = match (layers.get(&name), own, &computing[..]) {
            (Some(layer), _, _) => layer.clone(),
            _ if is_variable || nodes.is_empty() => "variable".to_owned(),
            (_, Some(&(_, id)), _) => of(id).op.name.to_owned(),
            (_, _, [only]) => of(*only).op.name.to_owned(),
            (_, _, several) => format!("{} nodes", several.len()),
        };
        if row.kind == "variable" {
            row.output = row.output.filter(|(dtype, _)| !dtype.is_handle()).or(variable);
        }
        row.name = name;
        Some((place, row))
    }
}
