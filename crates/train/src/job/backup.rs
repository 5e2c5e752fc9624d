//! Synchronous training with backup workers, as in TensorFlow's SyncReplicasOptimizer: an update does not wait for the
//! slowest workers.
//!
//! Each worker runs separate steps, and one more run makes the updates. A step of a worker takes a token, the number of the
//! update that it contributes to, and delivers its gradients to accumulators, which drop those for an update that has been
//! made. An update takes the mean as soon as enough workers have delivered theirs, and then gives each worker its next token.
//! A worker that takes a token whose update has been made drops that batch, so that it soon catches up with the other
//! workers.

use meshtf_graph::gradient::Gradient;
use meshtf_graph::variable::ops::{binary, cast, on};
use meshtf_graph::variable::{Variable, add_init, read};
use meshtf_graph::{Graph, GraphBuilder, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape};

use super::accumulator::Accumulator;
use super::replicas::{Replicas, token};
use super::updates::all_of;
use super::{Beside, Drain, Kept, Made, Team, held, trained_of, updates, variables, without};
use crate::file::TrainSection;
use crate::minimize::{apply_each, count_of_steps, gradients_of_share};
use crate::{Trained, Training, clip};

/// Adds the steps of the workers, and the update.
pub(super) fn add(g: &mut GraphBuilder, replicas: &Replicas, train: &TrainSection) -> Result<Made> {
    let own = variables(g)?;
    let trained = trained_of(train, &own)?;
    let home = trained.first().map(|variable| variable.device.clone()).unwrap_or_default();
    let global_step = count_of_steps(g, &home, "")?;
    let names: Vec<&String> = std::iter::once(&train.loss).chain(&train.metrics).collect();
    g.settle()?;
    let mut found = Vec::with_capacity(replicas.count());
    for i in 0..replicas.count() {
        let loss = replicas.outputs(g, &train.loss, &[i])?[0];
        found.push(gradients_of_share(g, &[loss], 1.0, &trained)?);
    }
    let mut gradients = Vec::with_capacity(trained.len());
    for (i, (variable, like)) in trained.iter().zip(&found[0]).enumerate() {
        gradients.push(Accumulator::for_gradient(g, &format!("gradient_{i}"), variable, like)?);
    }
    let mut numbers = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        numbers.push(Accumulator::dense(g, &format!("number_{i}"), name, DType::F32, &Shape::scalar(), &home)?);
    }
    let mut beside = Beside::default();
    for (i, found) in found.into_iter().enumerate() {
        g.settle()?;
        let step = g.settled().output(&token(i))?;
        let loss = replicas.outputs(g, &train.loss, &[i])?[0];
        let mut brought = Vec::with_capacity(gradients.len() + numbers.len());
        for (one, found) in gradients.iter().zip(found) {
            brought.push(one.bring(g, step, found)?);
        }
        for (one, name) in numbers.iter().zip(&names) {
            let number = replicas.outputs(g, name, &[i])?[0];
            let device = g.device_of(number);
            let number = on(g, &device, |g| cast(g, number, DType::F32))?;
            brought.push(one.bring(g, step, Gradient::Dense(number))?);
        }
        // Only the first worker runs the model's additional updates, as in training where all workers wait for each other.
        if i == 0 {
            let (also, waits) = updates::of_worker(g, replicas, train, i, loss)?;
            brought.extend(also);
            beside.after.extend(waits);
        }
        let device = g.device_of(loss);
        let run = all_of(g, &format!("train/worker_{i}"), &device, brought)?;
        beside.workers.push(g.tensor_name(run));
        let late = on(g, &home, |g| {
            let now = read(g, global_step.handle, global_step.is_ref, DType::I64).control(step).build()?;
            binary(g, "Greater", now, step)
        })?;
        beside.gates.extend(replicas.gates(g, i, late)?);
        let drain = |what: &str| format!("{}/{what}", token(i));
        beside.drains.push(Drain { size: drain("size"), drop: drain("drain") });
    }
    for one in gradients.iter().chain(&numbers) {
        beside.drains.push(one.drain(g)?);
    }

    let mut means = Vec::with_capacity(numbers.len());
    for one in &numbers {
        means.push(clip::values(&one.take(g, train.needed())?));
    }
    let mut taken = Vec::with_capacity(gradients.len());
    for one in &gradients {
        taken.push(one.take(g, train.needed())?);
    }
    let taken = held(g, means[0], &taken, false)?;
    let training = Training { device: home.clone(), ..train.training.clone() };
    let (Trained { variables: added, .. }, runs) = apply_each(g, &trained, &[taken], &training, &[])?;
    let mut added = without(added, &[&own[..], std::slice::from_ref(&global_step)].concat());
    added.extend(without(vec![global_step.clone()], &own));
    let init = add_init(g, "train/init", &added)?;
    // A metric is taken whether or not it is fetched.
    let before: Vec<Output> = means.iter().chain(&runs).copied().collect();
    let run = give_tokens(g, "train/update", &global_step, replicas.count(), &before, &home)?;
    let mut set = Vec::new();
    for one in gradients.iter().chain(&numbers) {
        set.push(one.set_step(g, &global_step)?);
    }
    let begin = give_tokens(g, "train/begin", &global_step, replicas.count(), &set, &home)?;
    beside.begin = Some(g.tensor_name(begin));
    for i in 0..replicas.count() {
        let queue = g.settled().output(&format!("{}/queue", token(i)))?;
        let drop = g.settled().output(&format!("{}/drain", token(i)))?;
        let join = on(g, &home, |g| {
            let next = read(g, global_step.handle, global_step.is_ref, DType::I64).build()?;
            g.op("QueueEnqueueV2").name("train/join").input(queue).input(next).control(drop).build()
        })?;
        beside.joins.push(g.tensor_name(join));
    }
    let team = Team { loss: means[0], metrics: means[1..].to_vec(), run };
    let state = own.into_iter().chain(added).map(Kept::alone).collect();
    Ok(Made { init, teams: vec![team], state, early: 0..0, beside })
}

/// Adds the nodes that give each worker a token of the next update, once other nodes have run.
fn give_tokens(
    g: &mut GraphBuilder,
    name: &str,
    global_step: &Variable,
    workers: usize,
    before: &[Output],
    home: &str,
) -> Result<Output> {
    let mut queues = Vec::with_capacity(workers);
    for i in 0..workers {
        queues.push(g.settled().output(&format!("{}/queue", token(i)))?);
    }
    let given = on(g, home, |g| {
        let next = g.with_control(before, |g| read(g, global_step.handle, global_step.is_ref, DType::I64).build())?;
        let mut given = Vec::with_capacity(workers);
        for queue in queues {
            given.push(g.op("QueueEnqueueV2").input(queue).input(next).build()?);
        }
        Ok(given)
    })?;
    all_of(g, name, home, given)
}

/// A graph in which the first inputs of some nodes are replaced.
pub(super) fn gated(graph: Graph, gates: &[(String, String)]) -> Result<Graph> {
    if gates.is_empty() {
        return Ok(graph);
    }
    let mut defs = graph.to_defs();
    for (node, input) in gates {
        if let Some(id) = graph.find(node) {
            defs[id.index()].inputs[0].clone_from(input);
        }
    }
    Ok(Graph::new(defs)?)
}
