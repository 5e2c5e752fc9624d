//! Constants that no device has the memory for, divided into parts, with the nodes that take them: matrix products by columns or
//! rows, look-ups by rows. And matrix products by columns, or in pairs by columns and then by rows, so that several devices
//! compute them. The parts are placed by cost as any other constants.
//!
//! A product by columns is concatenated: its values are those of the whole up to rounding, since a kernel may add the terms of a
//! narrow product in another order. One by rows is a sum of products, whose terms are added in another order, too; that is done
//! only where the nodes that take the constant cannot be divided by columns. Of a look-up each part has the rows that it holds,
//! and any rows for all other indices; from these the right ones are selected, with the same bits. An index that the whole table
//! does not have is refused by its first part or its last.

mod pairs;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use meshtf_tensor::device::{DeviceFacts, DeviceKind, Task};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};

use super::by_cost::usable;
use super::group::colocated_with;
use crate::op::Role;
use crate::{Attr, Attrs, Graph, Node, NodeDef, NodeId, UniqueNames};

/// A part has at most this share of the largest memory, unless that makes more than [`MAX_PARTS`]: smaller parts fill memories
/// better.
const PART: u64 = 4;
/// Most parts of a constant.
const MAX_PARTS: usize = 64;

/// The graph with parts in place of each constant that is larger than what any of the devices may hold; `None` if there is none
/// that can be divided. A constant stays whole if it, or a node that only passes it on, is among the `named` nodes, which are
/// fed, fetched or run; if a device is requested for it or for what takes it; if another node has to be on its device; or if
/// something takes it that cannot be divided. Devices of unknown memory have no limit.
///
/// The whole memory of the devices counts, whatever is in use: the same graph gets the same parts again, which the devices may
/// have already.
///
/// # Errors
/// ResourceExhausted if there is no memory for the parts.
pub fn divided(graph: &Graph, devices: &[DeviceFacts], named: &[&str]) -> Result<Option<Graph>> {
    let Some(largest) = largest(devices) else { return Ok(None) };
    divided_by(graph, largest, named, None, |value, uses| cut(value, uses, largest))
}

/// The graph with `count` parts in place of each constant of more than `least` bytes that only matrix products take; `None` if
/// there is none. What keeps a constant whole in [`divided`] does so here. Products are divided by columns; one that takes values
/// of such, or functions of their elements, is divided by rows, and all between goes part by part.
///
/// # Errors
/// ResourceExhausted if there is no memory for the parts.
pub fn divided_among(graph: &Graph, count: usize, least: u64, named: &[&str]) -> Result<Option<Graph>> {
    let columns = |value: &Tensor, uses: &[Use]| {
        let Kind::Product { columns } = uses.first()?.kind else { return None };
        let is_same = uses.iter().all(|of| of.kind == Kind::Product { columns });
        (is_same && value.rank() == 2 && value.dims()[columns] >= count).then_some((columns, count))
    };
    divided_by(graph, least, named, Some(count), columns)
}

/// The graph with the parts along an axis, and in the number, that `cut` returns for a constant of more than `least` bytes; with
/// `pairs`, in so many parts first those of products by rows after products by columns.
fn divided_by(
    graph: &Graph,
    least: u64,
    named: &[&str],
    pairs: Option<usize>,
    cut: impl Fn(&Tensor, &[Use]) -> Option<(usize, usize)>,
) -> Result<Option<Graph>> {
    let is_large = |(_, node): &(NodeId, &Node)| {
        let value = node.attrs.get("value");
        let bytes = match value {
            Some(Attr::Tensor(value)) if value.dtype().size().is_some() => value.byte_len(),
            _ => 0,
        };
        node.op.role == Role::Const && bytes as u64 > least
    };
    let large: Vec<(NodeId, &Node)> = graph.nodes().filter(is_large).collect();
    if large.is_empty() {
        return Ok(None);
    }
    let named: HashSet<NodeId> = named.iter().filter_map(|name| graph.find(crate::split_tensor_name(name).0)).collect();
    let mut divider = Divider::of(graph);
    if let Some(count) = pairs {
        for &(id, _) in &large {
            divider.divide_pair(id, count, &named)?;
        }
    }
    for (id, node) in large {
        let Some((passing, uses)) = divider.uses(id, &named) else { continue };
        let Ok(value) = node.attrs.tensor("value") else { continue };
        let Some((axis, count)) = cut(value, &uses) else { continue };
        divider.divide(id, value, &uses, axis, count)?;
        divider.gone.extend(passing);
    }
    if divider.replaced.is_empty() {
        return Ok(None);
    }
    Ok(Some(divider.finish()?))
}

/// The bytes that the largest memory of a task may hold; `None` if one is not known, or there is no device.
fn largest(devices: &[DeviceFacts]) -> Option<u64> {
    let mut memories: BTreeMap<(&Task, Option<u32>), Option<u64>> = BTreeMap::new();
    for device in devices {
        let own = (device.name.kind != DeviceKind::Cpu).then_some(device.name.index);
        memories.insert((&device.name.task, own), device.capacity.memory.map(|memory| usable(memory.total)));
    }
    memories.into_values().try_fold(0, |most, memory| Some(most.max(memory?))).filter(|&most| most > 0)
}

/// A node that takes a constant.
#[derive(Clone, Copy)]
struct Use {
    node: NodeId,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A product whose right factor it is; `columns` is the axis of the columns.
    Product { columns: usize },
    /// A look-up of rows.
    Rows,
}

impl Kind {
    /// Whether a division along an axis leaves the order of sums as it is; `None` if there is no such division.
    fn keeps_sums(self, axis: usize) -> Option<bool> {
        match self {
            Kind::Product { columns } => Some(columns == axis),
            Kind::Rows => (axis == 0).then_some(true),
        }
    }
}

/// The axis and the number of parts; `None` if the nodes that take the constant cannot be divided along one axis, or none is long
/// enough.
fn cut(value: &Tensor, uses: &[Use], largest: u64) -> Option<(usize, usize)> {
    let count = (value.byte_len() as u64).div_ceil((largest / PART).max(1));
    let count = usize::try_from(count).ok()?.min(MAX_PARTS);
    let sums = |axis: usize| {
        let kept: Option<Vec<bool>> = uses.iter().map(|of| of.kind.keeps_sums(axis)).collect();
        Some((kept?.into_iter().filter(|kept| !kept).count(), axis))
    };
    let axes = (0..value.rank().min(2)).filter(|&axis| value.dims()[axis] >= count);
    axes.filter_map(sums).min().map(|(_, axis)| (axis, count))
}

struct Divider<'g> {
    graph: &'g Graph,
    consumers: Vec<Vec<NodeId>>,
    /// The nodes whose `_class` names a node.
    colocated: HashMap<NodeId, Vec<NodeId>>,
    names: UniqueNames,
    added: Vec<NodeDef>,
    /// The definitions in place of nodes.
    replaced: HashMap<NodeId, NodeDef>,
    gone: HashSet<NodeId>,
}

impl<'g> Divider<'g> {
    fn of(graph: &'g Graph) -> Divider<'g> {
        let mut consumers = vec![Vec::new(); graph.len()];
        let mut names = UniqueNames::default();
        let mut colocated: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
        for (id, node) in graph.nodes() {
            for with in colocated_with(node).iter().filter_map(|name| graph.find(name)) {
                colocated.entry(with).or_default().push(id);
            }
            node.sources().for_each(|from| consumers[from.index()].push(id));
            names.reserve(&node.name);
        }
        let (added, replaced, gone) = (Vec::new(), HashMap::new(), HashSet::new());
        Divider { graph, consumers, colocated, names, added, replaced, gone }
    }

    /// The constant with the nodes that only pass it on, and those that take it, if all of these can be divided.
    fn uses(&self, constant: NodeId, named: &HashSet<NodeId>) -> Option<(HashSet<NodeId>, Vec<Use>)> {
        let (mut open, mut passing, mut uses) = (vec![constant], HashSet::new(), Vec::new());
        while let Some(at) = open.pop() {
            let from = self.graph.node(at);
            if !from.device.is_empty() || !from.control.is_empty() || named.contains(&at) {
                return None;
            }
            passing.insert(at);
            for &id in &self.consumers[at.index()] {
                let node = self.graph.node(id);
                let passes_on = node.op.role == Role::Forward && node.inputs.len() == 1;
                match passes_on {
                    _ if node.control.contains(&at) => return None,
                    true => open.push(id),
                    false => uses.push(self.used(id, at)?),
                }
            }
        }
        // Of these nodes each may have to be with another that goes; any other pair has to stay together.
        let own: HashSet<NodeId> = passing.iter().copied().chain(uses.iter().map(|of| of.node)).collect();
        let goes = |name: &String| self.graph.find(name).is_some_and(|with| passing.contains(&with));
        let is_free = own.iter().all(|&id| colocated_with(self.graph.node(id)).iter().all(goes))
            && passing.iter().filter_map(|id| self.colocated.get(id)).flatten().all(|id| own.contains(id));
        (is_free && !uses.is_empty()).then_some((passing, uses))
    }

    /// A use of a constant, if it can be divided.
    fn used(&self, id: NodeId, from: NodeId) -> Option<Use> {
        let node = self.graph.node(id);
        // A reference has to be on the device of its variable, and is read after the control inputs.
        let is_free = node.device.is_empty() && !node.inputs.iter().any(|&input| self.graph.output_type(input).is_ref);
        let places: Vec<usize> = (0..node.inputs.len()).filter(|&place| node.inputs[place].node == from).collect();
        let rank = |place: usize| self.graph.shapes().of(node.inputs[place]).0.map(|sizes| sizes.len());
        let flag = |name: &str| node.attrs.bool(name).unwrap_or(false);
        let kind = match (node.op.name, &places[..]) {
            ("MatMul", [1]) => Kind::Product { columns: usize::from(!flag("transpose_b")) },
            ("BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3", [1]) if rank(1) == Some(2) && rank(0) >= Some(2) => {
                Kind::Product { columns: usize::from(!flag("adj_y")) }
            }
            ("Gather", [0]) => Kind::Rows,
            ("GatherV2", [0]) => {
                let axis = self.graph.shapes().integers(*node.inputs.get(2)?)?;
                let is_plain = axis == [Some(0)] && node.attrs.int("batch_dims").unwrap_or(0) == 0;
                is_plain.then_some(Kind::Rows)?
            }
            _ => return None,
        };
        // The selection needs the rank of the look-up, and compares indices with constants of their dtype.
        let is_known = match kind {
            Kind::Rows => {
                let indices = self.graph.output_type(*node.inputs.get(1)?).dtype;
                rank(0).is_some() && matches!(indices, DType::I32 | DType::I64)
            }
            Kind::Product { .. } => true,
        };
        let is_whole = !self.replaced.contains_key(&id) && !self.gone.contains(&id);
        (is_free && is_known && is_whole).then_some(Use { node: id, kind })
    }

    fn divide(&mut self, id: NodeId, value: &Tensor, uses: &[Use], axis: usize, count: usize) -> Result<()> {
        let name = self.graph.node(id).name.clone();
        let size = value.dims()[axis];
        let mut parts = Vec::with_capacity(count);
        let mut begin = 0;
        for part in 0..count {
            let rows = size / count + usize::from(part < size % count);
            let value = part_of(value, axis, begin, rows)?;
            parts.push((self.constant(&format!("{name}/part{part}"), value), begin, rows));
            begin += rows;
        }
        let parts: Rc<[(String, usize, usize)]> = parts.into();
        for of in uses {
            match of.kind {
                Kind::Product { columns } if columns == axis => self.by_columns(of.node, &parts),
                Kind::Product { .. } => self.by_rows(of.node, &parts),
                Kind::Rows => self.look_up(of.node, &parts, value.rank()),
            }
        }
        Ok(())
    }

    /// A product with each part, side by side.
    fn by_columns(&mut self, id: NodeId, parts: &[(String, usize, usize)]) {
        let node = self.graph.node(id);
        let a = self.graph.tensor_name(node.inputs[0]);
        let mut inputs: Vec<String> = parts.iter().map(|(part, ..)| self.same(node, part, &[&a, part])).collect();
        inputs.push(self.constant(&format!("{}/axis", node.name), Tensor::scalar(-1i32)));
        self.replace(id, "ConcatV2", inputs);
    }

    /// A product of a part of the left factor with each part, summed.
    fn by_rows(&mut self, id: NodeId, parts: &[(String, usize, usize)]) {
        let node = self.graph.node(id);
        let a = self.graph.tensor_name(node.inputs[0]);
        let turned = ["transpose_a", "adj_x"].iter().any(|&name| node.attrs.bool(name).unwrap_or(false));
        let sizes = Tensor::vector(parts.iter().map(|&(_, _, rows)| rows as i64).collect());
        let sizes = self.constant(&format!("{}/sizes", node.name), sizes);
        let axis = self.constant(&format!("{}/axis", node.name), Tensor::scalar(if turned { -2i32 } else { -1 }));
        let attrs = Attrs::from([("num_split", Attr::Int(parts.len() as i64))]);
        let split = self.node(&format!("{}/split", node.name), "SplitV", vec![a, sizes, axis], attrs);
        let products: Vec<String> = parts
            .iter()
            .enumerate()
            .map(|(at, (part, ..))| self.same(node, part, &[&format!("{split}:{at}"), part]))
            .collect();
        self.replace(id, "AddN", products);
    }

    /// A look-up in each part, and the selection of the rows that it has.
    fn look_up(&mut self, id: NodeId, parts: &[(String, usize, usize)], rank: usize) {
        let node = self.graph.node(id);
        let indices = self.graph.tensor_name(node.inputs[1]);
        let is_wide = self.graph.output_type(node.inputs[1]).dtype == DType::I64;
        let number = |value: usize| if is_wide { Tensor::scalar(value as i64) } else { Tensor::scalar(value as i32) };
        let base = node.name.clone();
        let axis = self.constant(&format!("{base}/axis"), Tensor::scalar(0i32));
        let last = self.constant(&format!("{base}/last"), Tensor::scalar(-1i32));
        let mut of_later: Option<String> = None;
        for (at, (part, begin, rows)) in parts.iter().enumerate().rev() {
            let of = |what: &str| format!("{base}/{what}{at}");
            let mut own = indices.clone();
            if at > 0 {
                let begin = self.constant(&of("begin"), number(*begin));
                let least = self.constant(&of("least"), number(0));
                own = self.node(&of("from"), "Sub", vec![own, begin], Attrs::default());
                own = self.node(&of("above"), "Maximum", vec![own, least], Attrs::default());
            }
            if at + 1 < parts.len() {
                let most = self.constant(&of("most"), number(rows - 1));
                own = self.node(&of("below"), "Minimum", vec![own, most], Attrs::default());
            }
            let found = self.node(&of("part"), "GatherV2", vec![part.clone(), own, axis.clone()], Attrs::default());
            let Some(later) = of_later.take() else {
                of_later = Some(found);
                continue;
            };
            let end = self.constant(&of("end"), number(begin + rows));
            let mut is_own = self.node(&of("is"), "Less", vec![indices.clone(), end], Attrs::default());
            for axis in 1..rank {
                let name = format!("{base}/is{at}_{axis}");
                is_own = self.node(&name, "ExpandDims", vec![is_own, last.clone()], Attrs::default());
            }
            let inputs = vec![is_own, found, later];
            if at == 0 {
                self.replace(id, "SelectV2", inputs);
            } else {
                of_later = Some(self.node(&of("select"), "SelectV2", inputs, Attrs::default()));
            }
        }
    }

    /// A node of the same op and attributes, for a part. The nodes that `_class` names go.
    fn same(&mut self, node: &Node, part: &str, inputs: &[&str]) -> String {
        let mut attrs: Attrs = node.attrs.clone();
        attrs.0.retain(|name, _| name != "_class");
        let end = part.rsplit('/').next().unwrap_or("part");
        let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
        let name = format!("{}/{end}", node.name);
        let control = node.control.iter().map(|&id| format!("^{}", self.graph.node(id).name));
        self.node(
            &name,
            node.op.name,
            control.fold(inputs, |mut all: Vec<String>, one| {
                all.push(one);
                all
            }),
            attrs,
        )
    }

    fn constant(&mut self, name: &str, value: Tensor) -> String {
        let name = self.names.unique(name);
        self.added.push(NodeDef::constant(name.clone(), String::new(), Attr::Tensor(value)));
        name
    }

    fn node(&mut self, name: &str, op: &str, inputs: Vec<String>, attrs: Attrs) -> String {
        let name = self.names.unique(name);
        self.added.push(NodeDef::on("", name.clone(), op, inputs, attrs));
        name
    }

    /// The node of the same name that has the result of the parts.
    fn replace(&mut self, id: NodeId, op: &str, inputs: Vec<String>) {
        let node = self.graph.node(id);
        let control = node.control.iter().map(|&id| format!("^{}", self.graph.node(id).name));
        let inputs = inputs.into_iter().chain(control).collect();
        self.replaced.insert(id, NodeDef::on("", node.name.clone(), op, inputs, Attrs::default()));
    }

    fn finish(mut self) -> Result<Graph> {
        let mut defs = Vec::with_capacity(self.graph.len() + self.added.len());
        for ((id, _), def) in self.graph.nodes().zip(self.graph.to_defs()) {
            match self.replaced.remove(&id) {
                _ if self.gone.contains(&id) => {}
                Some(other) => defs.push(other),
                None => defs.push(def),
            }
        }
        defs.append(&mut self.added);
        Ok(Graph::new(defs)?)
    }
}

/// Rows `begin` to `begin + rows` of an axis of a tensor.
fn part_of(value: &Tensor, axis: usize, begin: usize, rows: usize) -> Result<Tensor> {
    let dims = value.dims();
    let inner: usize = dims[axis + 1..].iter().product::<usize>() * value.dtype().size().unwrap_or(0);
    let outer: usize = dims[..axis].iter().product();
    let mut shape: Vec<usize> = dims.to_vec();
    shape[axis] = rows;
    let bytes = value.bytes().unwrap_or_default();
    let row = dims[axis] * inner;
    let own = |at: usize| &bytes[at * row + begin * inner..at * row + (begin + rows) * inner];
    if outer == 1 {
        return Tensor::from_bytes(value.dtype(), Shape::from(shape), own(0));
    }
    let mut part = Vec::with_capacity(outer * rows * inner);
    (0..outer).for_each(|at| part.extend_from_slice(own(at)));
    Tensor::from_bytes(value.dtype(), Shape::from(shape), &part)
}
