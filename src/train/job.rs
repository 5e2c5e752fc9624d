//! A model with all that training it takes: replicas on workers, queues of batches, the update, and what saves and restores it.

use std::collections::HashSet;

use super::file::{Sections, TrainSection};
use super::minimize::{apply_each, gradients};
use super::{Trained, clip};
use crate::device::DeviceSpec;
use crate::failure::{Failure, Result};
use crate::graph::gradient::Gradient;
use crate::graph::variable::ops::{cast, on};
use crate::graph::variable::{Variable, add_init, variable_of};
use crate::graph::{Attr, Attrs, Graph, GraphBuilder, Node, NodeDef, NodeId, Output};
use crate::tensor::{DType, PartialShape, Shape};

/// One kind of data: what it is fed to, and what an example is.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The placeholder.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// The shape of one example.
    pub example: Vec<usize>,
}

/// The graph of a training, and the names of its nodes.
#[derive(Clone, Debug)]
pub struct Job {
    /// All nodes.
    pub graph: Graph,
    /// Runs once the model's own variables have values: gives theirs to what the optimizer keeps.
    pub init: String,
    /// What steps run: one for all workers together, or one for each worker.
    pub steps: Vec<StepNodes>,
    /// The loss and the metrics of one replica, for evaluating: the data is then fed to the placeholders.
    pub evaluated: Vec<String>,
    /// A queue of batches for each replica.
    pub queues: Vec<Queue>,
    /// All variables.
    pub variables: Vec<Variable>,
    /// For each variable, what is fed to give it a value, and what is run then.
    pub restores: Vec<(String, String)>,
    /// The placeholder that steps which train feed with true, if there is one.
    pub training: Option<String>,
}

/// What a step runs and may fetch.
#[derive(Clone, Debug)]
pub struct StepNodes {
    /// Runs it.
    pub run: String,
    /// The mean loss of its batch: a float32.
    pub loss: String,
    /// The means of the metrics over its replicas, in their order.
    pub metrics: Vec<String>,
}

/// What fills and empties the queue of one replica.
#[derive(Clone, Debug)]
pub struct Queue {
    /// What is fed with batches, `[batches, ...]`, part by part.
    pub feeds: Vec<String>,
    /// Runs to take what is fed.
    pub enqueue: String,
    /// How many batches are in it, an int32.
    pub size: String,
    /// Runs to drop all of them.
    pub drain: String,
}

/// Begins the names of the nodes that fail a step whose loss is no number.
pub const CHECK: &str = "train/loss_is_a_number";

/// Puts a training together. A queue holds `capacity` batches.
///
/// # Errors
/// InvalidArgument for what does not fit: a name that does not exist, a batch that the workers cannot share equally; those of
/// [`gradients`] and [`apply`](super::apply).
pub fn job(graph: Graph, sections: &Sections, parts: &[Part], capacity: usize) -> Result<Job> {
    let train = &sections.train;
    let replicas = train.workers.max(1);
    if !train.is_async && !sections.data.batch.is_multiple_of(replicas) {
        let why = format!("a batch of {} examples cannot be shared equally by {replicas} workers", sections.data.batch);
        return Err(Failure::invalid(why));
    }
    for (what, name) in std::iter::once(("loss", &train.loss)).chain(train.metrics.iter().map(|name| ("metric", name)))
    {
        graph.output(name).map_err(|error| Failure::invalid(format!("{what} {name}: {error}")))?;
    }
    let rows = if train.is_async { sections.data.batch } else { sections.data.batch / replicas };
    let (defs, queues) = replicated(&graph, train, parts, rows, capacity)?;
    let mut g = GraphBuilder::from(Graph::new(defs)?);
    let variables = variables(&mut g)?;
    let trained = trained_of(train, &variables)?;
    let find = |g: &GraphBuilder, name: &str, i: usize| g.settled().output(&of_replica(&graph, parts, name, i));
    // The replicas of which the batches together make one update.
    let teams: Vec<Vec<usize>> = match train.is_async {
        true => (0..replicas).map(|i| vec![i]).collect(),
        false => vec![(0..replicas).collect()],
    };
    let (mut sets, mut losses) = (Vec::with_capacity(teams.len()), Vec::with_capacity(teams.len()));
    for team in &teams {
        let own = team.iter().map(|&i| Ok(find(&g, &train.loss, i)?)).collect::<Result<Vec<_>>>()?;
        let found = gradients(&mut g, &own, &trained)?;
        let (loss, held) = checked(&mut g, &own, &found)?;
        sets.push(held);
        losses.push(loss);
    }
    let (Trained { variables: added, .. }, runs) = apply_each(&mut g, &trained, &sets, &train.training, &[])?;
    let mut all = variables;
    let known: HashSet<String> = all.iter().map(|variable| variable.name.clone()).collect();
    let added: Vec<Variable> = added.into_iter().filter(|variable| !known.contains(&variable.name)).collect();
    let init = add_init(&mut g, "train/init", &added)?;
    all.extend(added);

    let mut steps = Vec::with_capacity(teams.len());
    for ((team, loss), run) in teams.iter().zip(losses).zip(runs) {
        let mut metrics = Vec::with_capacity(train.metrics.len());
        for name in &train.metrics {
            let of_each = team.iter().map(|&i| Ok(find(&g, name, i)?)).collect::<Result<Vec<_>>>()?;
            let metric = mean(&mut g, "train/metric", &of_each)?;
            metrics.push(g.tensor_name(metric));
        }
        steps.push(StepNodes { run: g.tensor_name(run), loss: g.tensor_name(loss), metrics });
    }
    let mut restores = Vec::with_capacity(all.len());
    for variable in &all {
        restores.push(restore(&mut g, variable)?);
    }
    let looked_at = sections.evaluate.iter().flat_map(|section| &section.metrics);
    let evaluated: Vec<String> = std::iter::once(&train.loss).chain(looked_at).cloned().collect();
    for name in &evaluated[1..] {
        graph.output(name).map_err(|error| Failure::invalid(format!("metric {name}: {error}")))?;
    }
    let is_flag = |node: &Node| node.op.name == "PlaceholderWithDefault" && node.outputs[0].dtype == DType::Bool;
    let flag = graph.find("training").filter(|&id| is_flag(graph.node(id)));
    Ok(Job {
        init: g.tensor_name(init),
        steps,
        evaluated,
        queues,
        variables: all,
        restores,
        training: flag.map(|_| "training".to_owned()),
        graph: g.finish()?,
    })
}

/// The mean of some losses, and gradients that are there only if it is a number.
fn checked(g: &mut GraphBuilder, losses: &[Output], gradients: &[Gradient]) -> Result<(Output, Vec<Gradient>)> {
    let loss = mean(g, "train/loss", losses)?;
    let home = g.device_of(losses[0]);
    let message = "the loss is no number";
    let check = on(g, &home, |g| g.op("CheckNumerics").name(CHECK).input(loss).attr("message", message).build())?;
    let mut held = Vec::with_capacity(gradients.len());
    for gradient in gradients {
        let values = clip::values(gradient);
        let device = g.device_of(values);
        let kept = on(g, &device, |g| g.op("Identity").name("train/held").input(values).control(check).build())?;
        held.push(clip::with_values(gradient, kept));
    }
    Ok((loss, held))
}

/// The nodes of the graph for each replica, which take batches from a queue of their own.
fn replicated(
    graph: &Graph,
    train: &TrainSection,
    parts: &[Part],
    rows: usize,
    capacity: usize,
) -> Result<(Vec<NodeDef>, Vec<Queue>)> {
    let depends = dependent(graph, parts);
    let mut loads = vec![0usize; train.ps];
    let all = graph.to_defs();
    let mut defs = Vec::with_capacity(all.len());
    let mut queues = Vec::new();
    for ((_, node), def) in graph.nodes().zip(&all).filter(|((id, _), _)| !depends[id.index()]) {
        let mut def = def.clone();
        if node.op.makes_variable {
            let bytes =
                node.attrs.shape("shape").ok().and_then(|shape| shape.known()).and_then(|shape| shape.elements());
            let bytes =
                bytes.unwrap_or(1).saturating_mul(node.attrs.dtype("dtype").ok().and_then(DType::size).unwrap_or(1));
            let least = loads.iter().enumerate().min_by_key(|(_, load)| **load).map(|(task, _)| task);
            match least {
                Some(task) if is_open(&def.device)? => {
                    loads[task] = loads[task].saturating_add(bytes);
                    def.device = within(&def.device, "ps", task)?;
                }
                None if train.workers > 0 => def.device = within(&def.device, "worker", 0)?,
                _ => {}
            }
        }
        defs.push(def);
    }
    for i in 0..train.workers.max(1) {
        for ((_, node), def) in graph.nodes().zip(&all).filter(|((id, _), _)| depends[id.index()]) {
            let mut def = NodeDef { name: named(&def.name, i), ..def.clone() };
            if train.workers > 0 {
                def.device = within(&def.device, "worker", i)?;
            }
            if let Some(part) = parts.iter().position(|part| part.name == node.name) {
                let from =
                    if part == 0 { format!("train/queue_{i}/next") } else { format!("train/queue_{i}/next:{part}") };
                def.op = "Identity".to_owned();
                def.inputs = vec![from];
                def.attrs = Attrs::from([("T", parts[part].dtype.into())]);
            } else {
                for input in &mut def.inputs {
                    let (control, tensor) = input.strip_prefix('^').map_or(("", input.as_str()), |name| ("^", name));
                    let (name, port) = crate::graph::split_tensor_name(tensor);
                    if graph.find(name).is_some_and(|id| depends[id.index()]) {
                        let port = if port == 0 { String::new() } else { format!(":{port}") };
                        *input = format!("{control}{}{port}", named(name, i));
                    }
                }
            }
            defs.push(def);
        }
        let first = graph.find(&parts[0].name).map(|id| graph.node(id).device.clone()).unwrap_or_default();
        let device = if train.workers > 0 { within(&first, "worker", i)? } else { first };
        let (nodes, queue) = queue(i, &device, parts, rows, capacity);
        defs.extend(nodes);
        queues.push(queue);
    }
    Ok((defs, queues))
}

/// Which nodes depend on the data: those that each replica has for itself.
fn dependent(graph: &Graph, parts: &[Part]) -> Vec<bool> {
    let mut depends = vec![false; graph.len()];
    let mut users: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        for from in node.inputs.iter().map(|input| input.node).chain(node.control.iter().copied()) {
            users[from.index()].push(id);
        }
    }
    let mut open: Vec<NodeId> = parts.iter().filter_map(|part| graph.find(&part.name)).collect();
    while let Some(id) = open.pop() {
        if !std::mem::replace(&mut depends[id.index()], true) {
            open.extend(&users[id.index()]);
        }
    }
    depends
}

/// The name of a node in a replica: its own in the first.
fn named(name: &str, replica: usize) -> String {
    if replica == 0 { name.to_owned() } else { format!("replica_{replica}/{name}") }
}

/// The name of a tensor in a replica.
fn of_replica(graph: &Graph, parts: &[Part], tensor: &str, replica: usize) -> String {
    let (name, port) = crate::graph::split_tensor_name(tensor);
    let depends = graph.find(name).is_some_and(|id| dependent(graph, parts)[id.index()]);
    let name = if depends { named(name, replica) } else { name.to_owned() };
    if port == 0 { name } else { format!("{name}:{port}") }
}

fn is_open(device: &str) -> Result<bool> {
    Ok(spec(device)?.job.is_none())
}

/// The device on a task, unless it names a job itself.
fn within(device: &str, job: &str, task: usize) -> Result<String> {
    let spec = spec(device)?;
    if spec.job.is_some() {
        return Ok(device.to_owned());
    }
    Ok(DeviceSpec { job: Some(job.to_owned()), task: Some(task as u32), ..spec }.to_string())
}

fn spec(device: &str) -> Result<DeviceSpec> {
    device.parse().map_err(|error: crate::device::NameError| Failure::invalid(error.to_string()))
}

fn queue(i: usize, device: &str, parts: &[Part], rows: usize, capacity: usize) -> (Vec<NodeDef>, Queue) {
    let types: Vec<DType> = parts.iter().map(|part| part.dtype).collect();
    let shapes: Vec<Shape> =
        parts.iter().map(|part| std::iter::once(rows).chain(part.example.iter().copied()).collect()).collect();
    // Another model's batches are of another queue, and so are those of a training that sends more or fewer at a time.
    let kind: Vec<String> = types.iter().zip(&shapes).map(|(dtype, shape)| format!("{dtype}{shape}")).collect();
    let node = |name: &str, op: &str, inputs: Vec<String>, attrs: Attrs| NodeDef {
        name: format!("train/queue_{i}{name}"),
        op: op.to_owned(),
        inputs,
        device: device.to_owned(),
        attrs,
        ..NodeDef::default()
    };
    let own = format!("train/queue_{i}");
    let whole = Attrs::from([
        ("component_types", types.clone().into()),
        ("shapes", Attr::Shapes(shapes.iter().map(PartialShape::from).collect())),
        ("capacity", (capacity as i64).into()),
        ("shared_name", format!("train/queue_{i}/{capacity}/{}", kind.join(",")).into()),
    ]);
    let of_types = || Attrs::from([("component_types", types.clone().into())]);
    let mut nodes = vec![
        node("", "FIFOQueueV2", vec![], whole),
        node("/next", "QueueDequeueV2", vec![own.clone()], of_types()),
        node("/size", "QueueSizeV2", vec![own.clone()], Attrs::default()),
        node("/drain", "QueueDequeueManyV2", vec![own.clone(), format!("{own}/size")], of_types()),
    ];
    let mut inputs = vec![own.clone()];
    let mut feeds = Vec::with_capacity(parts.len());
    for (k, (part, shape)) in parts.iter().zip(&shapes).enumerate() {
        let sizes = std::iter::once(None).chain(shape.dims().iter().copied().map(Some)).collect();
        let attrs = Attrs::from([("dtype", part.dtype.into()), ("shape", Attr::Shape(PartialShape(Some(sizes))))]);
        nodes.push(node(&format!("/feed_{k}"), "Placeholder", vec![], attrs));
        feeds.push(format!("{own}/feed_{k}"));
    }
    inputs.extend(feeds.iter().cloned());
    nodes.push(node("/enqueue", "QueueEnqueueManyV2", inputs, Attrs::from([("Tcomponents", types.into())])));
    let (enqueue, size, drain) = (format!("{own}/enqueue"), format!("{own}/size"), format!("{own}/drain"));
    (nodes, Queue { feeds, enqueue, size, drain })
}

/// Every variable of a graph.
pub(crate) fn variables(g: &mut GraphBuilder) -> Result<Vec<Variable>> {
    let reads = |graph: &Graph, handle: NodeId| {
        let read = graph.nodes().find(|(_, node)| {
            node.op.name == "ReadVariableOp" && node.inputs[0].node == handle && node.control.is_empty()
        });
        read.map(|(_, node)| node.name.clone())
    };
    g.settle()?;
    let graph = g.settled();
    let makes = graph.nodes().filter(|(_, node)| node.op.makes_variable);
    let names: Vec<String> = makes.map(|(id, node)| reads(graph, id).unwrap_or_else(|| node.name.clone())).collect();
    names.iter().map(|name| variable_of(g, name)).collect()
}

/// The variables that are trained: those that are named, or all that can be.
fn trained_of(train: &TrainSection, variables: &[Variable]) -> Result<Vec<Variable>> {
    if train.variables.is_empty() {
        let can = |variable: &&Variable| variable.trainable && variable.dtype.is_float();
        return Ok(variables.iter().filter(can).cloned().collect());
    }
    let find = |name: &String| {
        variables.iter().find(|variable| variable.name == *name).cloned().ok_or_else(|| {
            let near = crate::nearest::nearest(name, variables.iter().map(|variable| variable.name.as_str()));
            let hint = near.first().map_or_else(String::new, |near| format!("; did you mean {near}?"));
            Failure::invalid(format!("there is no variable {name}{hint}"))
        })
    };
    let mut names = train.variables.iter();
    if let Some(twice) = names.find(|name| train.variables.iter().filter(|other| other == name).count() > 1) {
        return Err(Failure::invalid(format!("train.variables names {twice} twice")));
    }
    train.variables.iter().map(find).collect()
}

/// The mean of some scalars as a float32, where the first is.
fn mean(g: &mut GraphBuilder, name: &str, all: &[Output]) -> Result<Output> {
    let device = g.device_of(all[0]);
    on(g, &device, |g| {
        let floats = all.iter().map(|&one| cast(g, one, DType::F32)).collect::<Result<Vec<_>>>()?;
        let sum = g.op("AddN").inputs(floats).build()?;
        g.op("Mul").name(name).input(sum).input(1.0 / all.len() as f32).build()
    })
}

/// Adds what gives a variable another value: what is fed, and what is run then.
pub(crate) fn restore(g: &mut GraphBuilder, variable: &Variable) -> Result<(String, String)> {
    on(g, &variable.device, |g| {
        g.with_scope("train/restore", |g| {
            let value = g.placeholder("value", variable.dtype, PartialShape::from(&variable.shape))?;
            let op = if variable.is_ref { "Assign" } else { "AssignVariableOp" };
            let assign = g.op(op).name("assign").input(variable.handle).input(value).build()?;
            Ok((g.tensor_name(value), g.tensor_name(assign)))
        })
    })
}

#[cfg(test)]
mod tests;
