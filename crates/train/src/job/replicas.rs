//! The replicas of a model on the workers: the nodes that each worker has a copy of, their devices and their names.

use meshtf_graph::op::Role;
use meshtf_graph::variable::ops::on;
use meshtf_graph::{Attr, Attrs, Graph, GraphBuilder, Node, NodeDef, NodeId, Output, split_tensor_name};
use meshtf_tensor::device::DeviceSpec;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::literal::convert_feed;
use meshtf_tensor::{DType, Tensor};

use super::microbatches::{Cut, written_once};
use super::queue::{QueueNodes, name_of_next, queue, tokens};
use super::units::loops;
use super::worker_file::Held;
use super::{FedPlaceholder, REPLICA, homes_on};
use crate::file::{TrainSection, UpdateMode};

/// The distance between the seeds of two replicas: an odd number, far from the distance of two seeds of one graph.
const APART: i64 = 0x5851_F42D_4C95_7F2D;

/// The prefix of the name of the node with which a node is colocated.
pub(super) const COLOCATED: &[u8] = b"loc:@";

/// A model of which each worker has a replica.
pub(super) struct Replicas<'a> {
    pub graph: &'a Graph,
    pub train: &'a TrainSection,
    pub parts: &'a [FedPlaceholder],
    /// By replica, or by stage: the number of its task of job `worker`.
    pub tasks: &'a [usize],
    /// By node: whether each replica has a copy.
    pub is_copied: Vec<bool>,
    /// By node: whether it is random, with other numbers in other replicas.
    pub is_drawn: Vec<bool>,
    /// In mode pipeline: the stages, and the micro-batches, each of which has a replica.
    pub cut: Option<Cut>,
    /// Whether the graph's original nodes are kept in addition to those of the replicas.
    stays: bool,
}

/// The nodes of all replicas, and the nodes that fill their queues.
pub(super) struct Filled {
    pub defs: Vec<NodeDef>,
    pub queues: Vec<QueueNodes>,
    /// For each replica, part by part, the examples that are stored on its worker.
    pub held: Vec<Vec<Option<Held>>>,
}

impl<'a> Replicas<'a> {
    /// `constants` are fed the same values in all replicas, so no replica has a copy of those.
    pub fn of(
        graph: &'a Graph,
        train: &'a TrainSection,
        parts: &'a [FedPlaceholder],
        constants: &[&str],
        tasks: &'a [usize],
    ) -> Replicas<'a> {
        let dependent = |on: Vec<NodeId>| dependent(graph, constants, on);
        let is_drawn = drawn(graph, train);
        let drawn = graph.nodes().map(|(id, _)| id).filter(|id| is_drawn[id.index()]);
        let own: Vec<NodeId> = parts.iter().filter_map(|part| graph.find(&part.name)).chain(drawn).collect();
        let stays = train.backup > 0;
        let is_copied = match train.mode {
            UpdateMode::Sync if stays => {
                // Each worker reads the variables when its step begins.
                let makes = graph.nodes().filter(|(_, node)| node.op.makes_variable).map(|(id, _)| id);
                let with_variables = own.iter().copied().chain(makes).collect();
                let (by_data, mut depends) = (dependent(own), dependent(with_variables));
                for (id, _) in graph.nodes().filter(|(_, node)| node.op.makes_variable || node.op.assigns) {
                    depends[id.index()] = by_data[id.index()];
                }
                depends
            }
            UpdateMode::Sync | UpdateMode::Async => dependent(own),
            UpdateMode::Pipeline => {
                // Of a loop, each micro-batch has all nodes or none.
                let mut own: Vec<NodeId> = own.into_iter().chain(written_once(graph)).collect();
                let loops = loops(graph);
                loop {
                    let depends = dependent(own.clone());
                    let mut is_partly = vec![false; graph.len()];
                    (0..graph.len()).filter(|&at| depends[at]).for_each(|at| is_partly[loops[at]] = true);
                    let others = graph.nodes().map(|(id, _)| id);
                    let before = own.len();
                    own.extend(others.filter(|id| is_partly[loops[id.index()]] && !depends[id.index()]));
                    if own.len() == before {
                        break depends;
                    }
                }
            }
            UpdateMode::Mirrored | UpdateMode::Local => {
                // A placeholder that a step feeds in addition to the data is fed once.
                let is_fed = |node: &Node| node.op.is_fed && parts.iter().all(|part| part.name != node.name);
                graph.nodes().map(|(_, node)| !is_fed(node)).collect()
            }
        };
        Replicas { graph, train, parts, tasks, is_copied, is_drawn, cut: None, stays }
    }

    /// The number of replicas.
    pub fn count(&self) -> usize {
        self.cut.as_ref().map_or(self.train.workers.max(1), |cut| cut.sizes.len())
    }

    /// The name of a tensor, or of a node, in a replica.
    pub fn named(&self, tensor: &str, replica: usize) -> String {
        let (name, port) = split_tensor_name(tensor);
        let name = if self.is_copied(name) { self.prefix(replica) + name } else { name.to_owned() };
        output_of(name, port)
    }

    /// Whether each replica has a copy of the node of this name.
    pub fn is_copied(&self, name: &str) -> bool {
        self.graph.find(name).is_some_and(|id| self.is_copied[id.index()])
    }

    /// The prefix of the names of a replica's copies: empty in the first, unless the graph's original nodes are kept.
    pub fn prefix(&self, replica: usize) -> String {
        prefix_of(replica + usize::from(self.stays))
    }

    /// A tensor of some replicas.
    pub fn outputs(&self, g: &GraphBuilder, tensor: &str, replicas: &[usize]) -> Result<Vec<Output>> {
        replicas.iter().map(|&replica| Ok(g.settled().output(&self.named(tensor, replica))?)).collect()
    }

    /// Adds switches that withhold a replica's batches if `late` holds; returns the nodes whose inputs they replace, with the
    /// names of the new inputs.
    pub fn gates(&self, g: &mut GraphBuilder, replica: usize, late: Output) -> Result<Vec<(String, String)>> {
        g.settle()?;
        let next = g.settled().output(&name_of_next(replica))?;
        let device = g.device_of(next);
        let mut gates = Vec::with_capacity(self.parts.len());
        for (k, part) in (0..).zip(self.parts) {
            let name = format!("train/queue_{replica}/gate");
            let gate = on(g, &device, |g| g.op("Switch").name(&name).input(next.port(k)).input(late).build())?;
            gates.push((self.named(&part.name, replica), g.tensor_name(gate)));
        }
        Ok(gates)
    }

    /// The nodes of all replicas. Each replica takes batches of `rows` rows from a separate queue with a capacity of
    /// `capacity` of them.
    pub fn nodes(&self, rows: usize, capacity: usize) -> Result<Filled> {
        if let Some(cut) = &self.cut {
            return self.in_stages(cut, capacity);
        }
        let all = self.graph.to_defs();
        let mut loads = vec![0usize; self.train.ps];
        let mut defs = Vec::with_capacity(all.len());
        let stay = |id: NodeId| self.stays || !self.is_copied[id.index()];
        for ((id, node), def) in self.graph.nodes().zip(&all).filter(|((id, _), _)| stay(*id)) {
            let mut def = def.clone();
            if node.op.makes_variable {
                def.device = self.device_of_variable(node, &mut loads)?;
            } else if self.is_copied[id.index()] {
                def.device = self.on_worker(&def.device, 0)?;
            }
            defs.push(def);
        }
        let (mut queues, mut held) = (Vec::with_capacity(self.count()), Vec::with_capacity(self.count()));
        let homes = homes_on(self.graph, self.train, &self.parts[0].name, self.tasks)?;
        for (i, device) in homes.iter().enumerate() {
            for ((id, node), def) in self.graph.nodes().zip(&all).filter(|((id, _), _)| self.is_copied[id.index()]) {
                let copy = self.copy(node, def, i)?;
                defs.push(if self.is_drawn[id.index()] { drawn_for(i, node, copy)? } else { copy });
            }
            let (nodes, queue, own) = queue(i, device, self.parts, rows, capacity);
            held.push(own);
            defs.extend(nodes);
            queues.push(queue);
            if self.stays {
                let first = defs.iter().zip(self.graph.nodes()).find(|(_, (_, node))| node.op.makes_variable);
                let home = first.map(|(def, _)| def.device.clone()).unwrap_or_default();
                defs.extend(tokens(&token(i), &home));
            }
        }
        Ok(Filled { defs, queues, held })
    }

    /// The device on the task of a replica, unless it names a job itself.
    ///
    /// # Errors
    /// InvalidArgument for a device that cannot be read.
    pub fn on_worker(&self, device: &str, replica: usize) -> Result<String> {
        within(device, "worker", self.tasks.get(replica).copied().unwrap_or(replica))
    }

    /// The device of a variable that all replicas share: on the task of `ps` with the fewest bytes, unless it names a job
    /// itself.
    fn device_of_variable(&self, node: &Node, loads: &mut [usize]) -> Result<String> {
        let shape = node.attrs.shape("shape").ok().and_then(|shape| shape.known());
        let elements = shape.and_then(|shape| shape.elements()).unwrap_or(1);
        let width = node.attrs.dtype("dtype").ok().and_then(DType::size).unwrap_or(1);
        let least = loads.iter().enumerate().min_by_key(|(_, load)| **load).map(|(task, _)| task);
        match least {
            Some(task) if spec(&node.device)?.job.is_none() => {
                loads[task] = loads[task].saturating_add(elements.saturating_mul(width));
                within(&node.device, "ps", task)
            }
            None if self.train.workers > 0 => self.on_worker(&node.device, 0),
            _ => Ok(node.device.clone()),
        }
    }

    /// A node in a replica.
    fn copy(&self, node: &Node, def: &NodeDef, replica: usize) -> Result<NodeDef> {
        let mut def = NodeDef { name: self.prefix(replica) + &def.name, ..def.clone() };
        let shared = node.attrs.str("shared_name").unwrap_or_default();
        if self.train.workers > 0 {
            if node.op.makes_variable && spec(&def.device)?.job.is_some() {
                let name = if shared.is_empty() { node.name.as_str() } else { shared };
                let (device, mode) = (&node.device, self.train.mode.name());
                return Err(Failure::invalid(format!(
                    "variable {name} is on {device}; in mode {mode} each worker has its own, so its device names no job"
                )));
            }
            // A small constant without a device is on each device that uses it.
            if node.op.role != Role::Const || !def.device.is_empty() {
                def.device = self.on_worker(&def.device, replica)?;
            }
        }
        if let Some(part) = self.parts.iter().position(|part| part.name == node.name) {
            pass_on(&mut def, output_of(name_of_next(replica), part as u32), self.parts[part].dtype);
            return Ok(def);
        }
        rename(&mut def, |name| self.named(name, replica));
        // A variable is read once the worker's step may begin.
        let is_variable = |id: NodeId| self.graph.node(id).op.makes_variable;
        if self.stays && node.inputs.iter().any(|input| is_variable(input.node)) {
            def.inputs.push(format!("^{}", token(replica)));
        }
        if node.op.makes_variable && !shared.is_empty() {
            let own = self.prefix(replica) + shared;
            def.attrs.set("shared_name", own.into());
        }
        Ok(def)
    }
}

/// The prefix of the copies with this number; those with number 0 have the names of the model.
pub(super) fn prefix_of(number: usize) -> String {
    if number == 0 { String::new() } else { format!("replica_{number}/") }
}

/// The name of an output of a node.
pub(super) fn output_of(node: String, port: u32) -> String {
    if port == 0 { node } else { format!("{node}:{port}") }
}

/// Has the copy of a placeholder pass on another tensor.
pub(super) fn pass_on(def: &mut NodeDef, from: String, dtype: DType) {
    def.op = "Identity".to_owned();
    def.inputs = vec![from];
    def.attrs = Attrs::from([("T", dtype.into())]);
}

/// Renames the inputs of a copy, and the nodes with which it is colocated.
pub(super) fn rename(def: &mut NodeDef, named: impl Fn(&str) -> String) {
    for input in &mut def.inputs {
        let (control, tensor) = input.strip_prefix('^').map_or(("", input.as_str()), |name| ("^", name));
        *input = format!("{control}{}", named(tensor));
    }
    if let Some(Attr::Strs(classes)) = def.attrs.get("_class") {
        let renamed = classes.iter().map(|class| {
            let with = class.strip_prefix(COLOCATED).and_then(|name| std::str::from_utf8(name).ok());
            with.map_or_else(|| class.clone(), |with| [COLOCATED, named(with).as_bytes()].concat())
        });
        let renamed = Attr::Strs(renamed.collect());
        def.attrs.set("_class", renamed);
    }
}

/// The node that lets a step of a worker begin, if workers may be late.
pub(super) fn token(replica: usize) -> String {
    format!("train/token_{replica}")
}

/// By node: whether it is random, or the index of the replica, and the loss or a metric depends on it.
fn drawn(graph: &Graph, train: &TrainSection) -> Vec<bool> {
    let (mut is_drawn, mut seen) = (vec![false; graph.len()], vec![false; graph.len()]);
    let names = std::iter::once(&train.loss).chain(&train.metrics);
    let mut open: Vec<NodeId> = names.filter_map(|name| Some(graph.output(name).ok()?.node)).collect();
    while let Some(id) = open.pop() {
        if std::mem::replace(&mut seen[id.index()], true) {
            continue;
        }
        let node = graph.node(id);
        is_drawn[id.index()] = node.op.draws() || node.name == REPLICA && node.op.role == Role::Const;
        open.extend(node.sources());
    }
    is_drawn
}

/// A random node of a replica, with different seeds if the original specifies any; or the replica's index.
pub(super) fn drawn_for(replica: usize, node: &Node, mut def: NodeDef) -> Result<NodeDef> {
    if node.op.role == Role::Const {
        def.attrs.set("value", Attr::Tensor(convert_feed(Tensor::scalar(replica as i64), node.outputs[0].dtype)?));
        return Ok(def);
    }
    let (seed, seed2) = (node.attrs.int("seed")?, node.attrs.int("seed2")?);
    if (seed, seed2) != (0, 0) {
        def.attrs.set("seed2", seed2.wrapping_add((replica as i64).wrapping_mul(APART)).into());
    }
    Ok(def)
}

/// The nodes that depend on some nodes, these included; placeholders that are fed a constant depend on nothing.
pub(super) fn dependent(graph: &Graph, constants: &[&str], on: Vec<NodeId>) -> Vec<bool> {
    let mut depends = vec![false; graph.len()];
    let is_constant = |id: NodeId| constants.contains(&graph.node(id).name.as_str());
    let mut users: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        for from in node.sources() {
            users[from.index()].push(id);
        }
    }
    let mut open = on;
    while let Some(id) = open.pop() {
        if !is_constant(id) && !std::mem::replace(&mut depends[id.index()], true) {
            open.extend(&users[id.index()]);
        }
    }
    depends
}

/// The device on a task, unless it names a job itself.
pub(super) fn within(device: &str, job: &str, task: usize) -> Result<String> {
    let spec = spec(device)?;
    if spec.job.is_some() {
        return Ok(device.to_owned());
    }
    Ok(DeviceSpec { job: Some(job.to_owned()), task: Some(task as u32), ..spec }.to_string())
}

pub(super) fn spec(device: &str) -> Result<DeviceSpec> {
    device.parse().map_err(|error: meshtf_tensor::device::NameError| Failure::invalid(error.to_string()))
}
