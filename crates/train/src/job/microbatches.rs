//! The nodes of a model in mode pipeline: a copy for each micro-batch of those that depend on the examples, each on the task
//! of its stage. Variables, and what is computed of them alone, are there once.

use meshtf_graph::op::Role;
use meshtf_graph::variable::ops::{binary, cast, on};
use meshtf_graph::{Attr, Attrs, Graph, GraphBuilder, Node, NodeDef, NodeId, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::queue::{QueueNodes, name_of_next, queue};
use super::replicas::{Filled, Replicas, drawn_for, output_of, pass_on, rename, spec, within};
use super::stages::{Stage, Stages};
use super::{Drain, FedPlaceholder};
use crate::file::{Sections, UpdateMode, bubble};

/// The stages of a model, and the parts of a batch that go through them.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// In the order of the values.
    pub stages: Vec<Stage>,
    /// The number of examples of each micro-batch.
    pub microbatches: Vec<usize>,
}

impl Pipeline {
    /// The share of a step in which a stage waits for the first micro-batch, or after the last one, if all stages take equally
    /// long.
    pub fn bubble(&self) -> f64 {
        bubble(self.stages.len(), self.microbatches.len())
    }
}

/// The stages and the micro-batches of a model whose replicas they are.
pub(super) struct Cut {
    pub stages: Stages,
    /// The number of examples of each micro-batch.
    pub sizes: Vec<usize>,
}

impl Cut {
    pub fn of(replicas: &Replicas, constants: &[&str], batch: usize) -> Result<Cut> {
        let Replicas { graph, train, parts, tasks, is_copied, .. } = replicas;
        if let Some(part) = parts.iter().find(|part| part.there.is_some()) {
            let why = format!("the examples of {} are on the workers; in mode pipeline, examples are fed", part.name);
            return Err(Failure::invalid(why));
        }
        let sizes = train.microbatch_sizes(batch)?;
        let stages = Stages::of(graph, train, parts, (&is_copied[..], tasks), constants, sizes[0])?;
        Ok(Cut { stages, sizes })
    }
}

impl From<Cut> for Pipeline {
    fn from(Cut { stages, sizes }: Cut) -> Pipeline {
        Pipeline { stages: stages.each, microbatches: sizes }
    }
}

/// The stages and micro-batches of a training in mode pipeline, without its examples: these have the shapes that the placeholders
/// state. `None` in another mode.
///
/// # Errors
/// InvalidArgument if the model cannot be cut into as many stages, or the batch into as many parts.
pub fn in_pipeline(graph: &Graph, sections: &Sections) -> Result<Option<Pipeline>> {
    let train = &sections.train;
    if train.mode != UpdateMode::Pipeline {
        return Ok(None);
    }
    train.check_pipeline()?;
    let constants: Vec<&str> = sections.data.constants.iter().map(|(name, _)| name.as_str()).collect();
    let fed = graph.nodes().filter(|(_, node)| node.op.role == Role::Placeholder && !constants.contains(&&*node.name));
    let part = |node: &Node| FedPlaceholder {
        name: node.name.clone(),
        dtype: node.outputs[0].dtype,
        example: match node.attrs.shape("shape") {
            Ok(PartialShape(Some(sizes))) => sizes.iter().skip(1).map(|size| size.unwrap_or(1)).collect(),
            _ => Vec::new(),
        },
        there: None,
    };
    let parts: Vec<FedPlaceholder> = fed.map(|(_, node)| part(node)).collect();
    let tasks: Vec<usize> = (0..train.workers).collect();
    let replicas = Replicas::of(graph, train, &parts, &constants, &tasks);
    Ok(Some(Cut::of(&replicas, &constants, sections.data.batch)?.into()))
}

/// The prefix of the names of the nodes that take a part of a whole batch.
pub(crate) const BATCH: &str = "train/batch_";

/// Bytes up to which a constant may be on any device that uses it.
const SMALL: usize = 1024;

impl Replicas<'_> {
    /// The task of a stage.
    pub fn task_of(&self, stage: usize) -> usize {
        self.tasks.get(stage).copied().unwrap_or(stage)
    }

    /// The device of a node in its stage: that of the first stage for one that may be anywhere.
    fn device_in(&self, cut: &Cut, id: NodeId) -> Result<String> {
        let device = &self.graph.node(id).device;
        within(device, "worker", self.task_of(cut.stages.of[id.index()].unwrap_or(0)))
    }

    /// Refuses nodes of the loss with a job in their device, which may not be that of their stage.
    fn check_devices(&self, cut: &Cut) -> Result<()> {
        for (id, node) in self.graph.nodes() {
            if (cut.stages.needed[id.index()] || node.op.makes_variable) && spec(&node.device)?.job.is_some() {
                let Node { name, device, .. } = node;
                let what = if node.op.makes_variable { "variable" } else { "node" };
                return Err(Failure::invalid(format!(
                    "{what} {name} is on {device}; in mode pipeline, the stage of a node says which worker it is on, \
                     so its device names no job"
                )));
            }
        }
        Ok(())
    }

    /// The nodes of all micro-batches, and the queues of whole batches, of `capacity` of them.
    pub fn in_stages(&self, cut: &Cut, capacity: usize) -> Result<Filled> {
        self.check_devices(cut)?;
        let all = self.graph.to_defs();
        let mut defs = Vec::new();
        for ((id, node), def) in self.graph.nodes().zip(&all).filter(|((id, _), _)| !self.is_copied[id.index()]) {
            let mut def = def.clone();
            let stays = def.device.is_empty() && (is_small(node) || cut.stages.of[id.index()].is_none());
            if !stays && spec(&def.device)?.job.is_none() {
                def.device = self.device_in(cut, id)?;
            }
            defs.push(def);
        }
        for m in 0..cut.sizes.len() {
            for ((id, node), def) in self.graph.nodes().zip(&all).filter(|((id, _), _)| self.is_copied[id.index()]) {
                let copy = self.of_microbatch(cut, (id, node), def, m)?;
                defs.push(if self.is_drawn[id.index()] { drawn_for(m, node, copy)? } else { copy });
            }
        }
        let (nodes, queue, held) = self.whole_batches(cut, capacity)?;
        defs.extend(nodes);
        Ok(Filled { defs, queues: vec![queue], held: vec![held.iter().map(|_| None).collect()] })
    }

    /// A node for a micro-batch.
    fn of_microbatch(&self, cut: &Cut, (id, node): (NodeId, &Node), def: &NodeDef, m: usize) -> Result<NodeDef> {
        let mut def = NodeDef { name: self.prefix(m) + &def.name, ..def.clone() };
        if node.op.role != Role::Const || !def.device.is_empty() {
            def.device = self.device_in(cut, id)?;
        }
        if let Some(k) = self.parts.iter().position(|part| part.name == node.name) {
            pass_on(&mut def, output_of(split(k), m as u32), self.parts[k].dtype);
            return Ok(def);
        }
        rename(&mut def, |name| self.named(name, m));
        // The loops of two copies are two loops.
        if let Ok(frame) = node.attrs.str("frame_name") {
            let own = self.prefix(m) + frame;
            def.attrs.set("frame_name", own.into());
        }
        Ok(def)
    }

    /// The queues of whole batches: each part of the examples comes to the stage that takes it, and is divided there.
    fn whole_batches(&self, cut: &Cut, capacity: usize) -> Result<(Vec<NodeDef>, QueueNodes, Vec<usize>)> {
        let rows: usize = cut.sizes.iter().sum();
        let stage =
            |part: &FedPlaceholder| self.graph.find(&part.name).and_then(|id| cut.stages.of[id.index()]).unwrap_or(0);
        let of_parts: Vec<usize> = self.parts.iter().map(stage).collect();
        let mut used = of_parts.clone();
        used.sort_unstable();
        used.dedup();
        let (mut defs, mut drains) = (Vec::new(), Vec::new());
        let (mut feeds, mut enqueued) = (vec![String::new(); of_parts.len()], Vec::new());
        for (i, &stage) in used.iter().enumerate() {
            let own: Vec<usize> = (0..of_parts.len()).filter(|&k| of_parts[k] == stage).collect();
            let parts: Vec<FedPlaceholder> = own.iter().map(|&k| self.parts[k].clone()).collect();
            let device = within("", "worker", self.task_of(stage))?;
            let (nodes, queue, _) = queue(i, &device, &parts, rows, capacity);
            defs.extend(nodes);
            for ((port, &k), feed) in own.iter().enumerate().zip(queue.feeds) {
                feeds[k] = feed;
                let next = output_of(name_of_next(i), port as u32);
                defs.extend(divided(&device, k, self.parts[k].dtype, next, &cut.sizes));
            }
            enqueued.push(queue.enqueue);
            drains.push(queue.drain);
        }
        let home = within("", "worker", self.task_of(0))?;
        let mut drain = drains.remove(0);
        if !drains.is_empty() {
            let all = std::iter::once(&drain).chain(&drains);
            let (nodes, of_all) = emptied(&home, &all.cloned().collect::<Vec<Drain>>());
            defs.extend(nodes);
            drain = of_all;
        }
        let name = "train/enqueue_batches".to_owned();
        let inputs = enqueued.iter().map(|node| format!("^{node}")).collect();
        defs.push(NodeDef::on(&home, name.clone(), "NoOp", inputs, Attrs::default()));
        Ok((defs, QueueNodes { feeds, enqueue: name, drain }, of_parts))
    }
}

/// The node that divides a part of the examples.
fn split(part: usize) -> String {
    format!("train/microbatches_{part}")
}

/// The nodes that divide a part of a batch.
fn divided(device: &str, part: usize, dtype: DType, next: String, sizes: &[usize]) -> Vec<NodeDef> {
    let (whole, own) = (format!("{BATCH}{part}"), split(part));
    let (of, axis) = (format!("{own}/sizes"), format!("{own}/axis"));
    let sizes: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
    let attrs =
        Attrs::from([("num_split", (sizes.len() as i64).into()), ("T", dtype.into()), ("Tlen", DType::I64.into())]);
    vec![
        NodeDef::on(device, whole.clone(), "Identity", vec![next], Attrs::from([("T", dtype.into())])),
        NodeDef::constant(of.clone(), device.to_owned(), Attr::Tensor(Tensor::vector(sizes))),
        NodeDef::constant(axis.clone(), device.to_owned(), Attr::Tensor(Tensor::scalar(0i32))),
        NodeDef::on(device, own, "SplitV", vec![whole, of, axis], attrs),
    ]
}

/// The nodes that tell how many batches all queues have together, and drop them.
fn emptied(device: &str, drains: &[Drain]) -> (Vec<NodeDef>, Drain) {
    let (size, drop) = ("train/batches/size".to_owned(), "train/batches/drain".to_owned());
    let sizes: Vec<String> = drains.iter().map(|drain| drain.size.clone()).collect();
    let attrs = Attrs::from([("T", DType::I32.into()), ("N", (sizes.len() as i64).into())]);
    let waits = drains.iter().map(|drain| format!("^{}", drain.drop)).collect();
    let nodes = vec![
        NodeDef::on(device, size.clone(), "AddN", sizes, attrs),
        NodeDef::on(device, drop.clone(), "NoOp", waits, Attrs::default()),
    ];
    (nodes, Drain { size, drop })
}

fn is_small(node: &Node) -> bool {
    let bytes = |node: &Node| {
        let ty = node.attrs.tensor_type("value").ok()?;
        Some(ty.1.elements()?.saturating_mul(ty.0.size()?))
    };
    node.op.role == Role::Const && bytes(node).is_none_or(|bytes| bytes <= SMALL)
}

/// The nodes of a model of which each micro-batch has copies although no example determines them: parts of a step that are
/// written once, such as arrays of tensors.
pub(super) fn written_once(graph: &Graph) -> impl Iterator<Item = NodeId> {
    const OPS: [&str; 5] = ["TensorArray", "TensorArrayV2", "TensorArrayV3", "Stack", "StackV2"];
    graph.nodes().filter(|(_, node)| OPS.contains(&node.op.name)).map(|(id, _)| id)
}

/// The mean of values of micro-batches, each with its share of the batch, as a float32 on the device of the first.
pub(super) fn mean(g: &mut GraphBuilder, name: &str, all: &[Output], sizes: &[usize]) -> Result<Output> {
    let whole: usize = sizes.iter().sum();
    let device = g.device_of(all[0]);
    on(g, &device, |g| {
        let mut shares = Vec::with_capacity(all.len());
        for (&one, &size) in all.iter().zip(sizes) {
            let float = cast(g, one, DType::F32)?;
            shares.push(binary(g, "Mul", float, (size as f64 / whole as f64) as f32)?);
        }
        g.op("AddN").name(name).inputs(shares).build()
    })
}
