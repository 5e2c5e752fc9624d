//! The rounds of a local training: the steps of the workers, and the outer update after them.
//!
//! The steps of each worker are a run of their own, and so are the outer updates. They wait for each other on each worker alone,
//! by two queues: a step gives a token when it is made, of which the outer update takes as many as the round has steps; and a
//! step takes one of those that an update gives. Between two rounds there is one less than a round has steps, so the last step
//! of a round ends once the update is made. Nothing but differences, running averages, losses and metrics
//! travels between workers, once in a round.

use meshtf_graph::variable::ops::{binary, cast, on, scalar};
use meshtf_graph::variable::{Initializer, Variable, VariableSpec, add_variable, read};
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use super::differences;
use super::local::Worker;
use super::queue::tokens;
use super::updates::all_of;
use super::{CHECK_DIFFERENCE, Drain, Made, StepNodes, Team, mean};
use crate::average::update_average;
use crate::file::TrainSection;
use crate::ring::BucketLimits;

/// The nodes of a training whose workers make steps of their own between two updates that they make together.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// The number of steps of a whole round.
    pub steps: u64,
    /// For each worker, the nodes of its steps.
    pub local: Vec<StepNodes>,
    /// For each worker, the placeholder for the number of steps of the rounds that are run, an int32.
    pub counts: Vec<String>,
}

/// A worker's part of the outer update.
struct Part {
    /// The number of steps of a round.
    count: Output,
    /// The node that takes the tokens of the steps.
    taken: Output,
    /// The differences of the trained variables, in float32.
    differences: Vec<Output>,
    /// The values of the running variables, in float32.
    running: Vec<Output>,
    /// The sums of the loss and the metrics over the steps of a round, and the nodes that make them 0 again.
    sums: Vec<Output>,
    reset: Vec<Output>,
}

/// Makes the steps of the workers, one team each, wait for rounds, and adds the outer update: the only team from then on.
pub(super) fn add(
    g: &mut GraphBuilder,
    workers: &[Worker],
    train: &TrainSection,
    made: &mut Made,
    limits: BucketLimits,
) -> Result<Rounds> {
    let (mut local, mut parts, mut begun) = (Vec::new(), Vec::new(), Vec::new());
    let teams = std::mem::take(&mut made.teams);
    for (i, (worker, team)) in workers.iter().zip(&teams).enumerate() {
        let home = g.device_of(team.run);
        for name in [step_token(i), permit(i)] {
            g.extend(tokens(&name, &home))?;
            made.beside.drains.push(Drain { size: format!("{name}/size"), drop: format!("{name}/drain") });
        }
        let sums = sums(g, i, team)?;
        begun.extend(sums.iter().filter_map(|sum| sum.assign));
        if train.local.steps > 1 {
            begun.push(on(g, &home, |g| {
                let given = Tensor::vector(vec![0i64; train.local.steps as usize - 1]);
                let given = g.constant("train/permits", given)?;
                give(g, &permit(i), given)
            })?);
        }
        local.push(step(g, i, worker, team, &sums)?);
        parts.push(part(g, i, worker, &home, &sums)?);
    }
    let differences = parts.iter_mut().map(|part| std::mem::take(&mut part.differences)).collect();
    let means = g.with_scope("train/differences", |g| differences::mean(g, workers, differences, limits))?;
    let running: Vec<Vec<Output>> = parts.iter_mut().map(|part| std::mem::take(&mut part.running)).collect();
    let running = g.with_scope("train/running", |g| differences::running_means(g, workers, &running, limits))?;
    let mut ends = Vec::with_capacity(workers.len());
    for (i, ((worker, part), mean)) in workers.iter().zip(&parts).zip(&means).enumerate() {
        let mut done = update(g, worker, train, mean)?;
        for (variable, &mean) in worker.running.iter().zip(&running[i]) {
            done.push(on(g, &variable.device, |g| assign(g, variable, mean))?);
        }
        done.extend(part.reset.iter().chain(&mean.kept));
        let home = g.device_of(part.taken);
        let given = on(g, &home, |g| {
            let count = binary(g, "Reshape", part.count, [1])?;
            let tokens = binary(g, "Fill", count, Tensor::scalar(0i64))?;
            g.with_control(&done, |g| give(g, &permit(i), tokens))
        })?;
        ends.push(ended(g, &worker.homes, &home, given)?);
    }
    let home = g.device_of(parts[0].taken);
    let begin = all_of(g, "train/begin", &home, begun)?;
    made.beside.begin = Some(g.tensor_name(begin));
    let mut means = Vec::new();
    for k in 0..parts[0].sums.len() {
        let sums: Vec<Output> = parts.iter().map(|part| part.sums[k]).collect();
        let sum = mean(g, "train/round_sum", &sums)?;
        means.push(on(g, &home, |g| {
            let count = cast(g, parts[0].count, DType::F32)?;
            binary(g, "RealDiv", sum, count)
        })?);
    }
    let run = all_of(g, "train/round", &home, ends)?;
    made.teams = vec![Team { loss: means[0], metrics: means[1..].to_vec(), run }];
    let counts = parts.iter().map(|part| g.tensor_name(part.count)).collect();
    Ok(Rounds { steps: train.local.steps, local, counts })
}

/// The token of a step that a worker has made, and that with which a step ends.
fn step_token(worker: usize) -> String {
    format!("train/local_step_{worker}")
}

fn permit(worker: usize) -> String {
    format!("train/permit_{worker}")
}

fn queue_of(g: &GraphBuilder, tokens: &str) -> Result<Output> {
    Ok(g.settled().output(&format!("{tokens}/queue"))?)
}

/// Adds the node that puts tokens, a vector, into their queue.
fn give(g: &mut GraphBuilder, name: &str, tokens: Output) -> Result<Output> {
    let queue = queue_of(g, name)?;
    g.op("QueueEnqueueManyV2").input(queue).input(tokens).build()
}

/// Adds variables for the sums of the loss and the metrics of a worker over the steps of a round.
fn sums(g: &mut GraphBuilder, worker: usize, team: &Team) -> Result<Vec<Variable>> {
    let mut sums = Vec::with_capacity(team.metrics.len() + 1);
    for (k, &value) in std::iter::once(&team.loss).chain(&team.metrics).enumerate() {
        let spec = VariableSpec {
            trainable: false,
            device: g.device_of(value),
            ..VariableSpec::new(&format!("train/sum_{worker}_{k}"), Shape::scalar(), Initializer::Zeros)
        };
        sums.push(add_variable(g, &spec)?);
    }
    Ok(sums)
}

/// Adds the end of a worker's step.
fn step(g: &mut GraphBuilder, i: usize, worker: &Worker, team: &Team, sums: &[Variable]) -> Result<StepNodes> {
    let mut added = vec![team.run];
    for (sum, &value) in sums.iter().zip(std::iter::once(&team.loss).chain(&team.metrics)) {
        added.push(on(g, &sum.device, |g| {
            g.op("AssignAddVariableOp").input(sum.handle).input(value).control(team.run).build()
        })?);
    }
    let home = g.device_of(team.run);
    let given = on(g, &home, |g| {
        let queue = queue_of(g, &step_token(i))?;
        g.with_control(&added, |g| binary(g, "QueueEnqueueV2", queue, Tensor::scalar(0i64)))
    })?;
    let taken = g.settled().output(&permit(i))?;
    let both = all_of(g, "train/local_step_made", &home, [given, taken])?;
    let run = ended(g, &worker.homes, &home, both)?;
    Ok(StepNodes {
        run: g.tensor_name(run),
        loss: g.tensor_name(team.loss),
        metrics: team.metrics.iter().map(|&metric| g.tensor_name(metric)).collect(),
    })
}

/// Adds the end of a step on each device of a worker that has variables: it begins its part of the next step when it has done
/// that of this one.
fn ended(g: &mut GraphBuilder, homes: &[String], home: &str, end: Output) -> Result<Output> {
    let mut ends = vec![end];
    for other in homes.iter().filter(|other| *other != home) {
        ends.push(all_of(g, "train/ended_there", other, [end])?);
    }
    all_of(g, "train/local_ended", home, ends)
}

/// Adds what a worker's steps of a round have come to, once all of them are made.
fn part(g: &mut GraphBuilder, i: usize, worker: &Worker, home: &str, sums: &[Variable]) -> Result<Part> {
    let (count, taken) = on(g, home, |g| {
        let count = g.placeholder(&format!("train/steps_{i}"), DType::I32, PartialShape::from(&Shape::scalar()))?;
        let queue = queue_of(g, &step_token(i))?;
        let taken = g.op("QueueDequeueManyV2").input(queue).input(count);
        Ok((count, taken.attr("component_types", vec![DType::I64]).build()?))
    })?;
    let now = |g: &mut GraphBuilder, variable: &Variable| {
        read(g, variable.handle, variable.is_ref, variable.dtype).control(taken).build()
    };
    let mut differences = Vec::with_capacity(worker.trained.len());
    for (variable, anchor) in worker.trained.iter().zip(&worker.anchors) {
        differences.push(on(g, &variable.device, |g| {
            let (value, before) = (now(g, variable)?, now(g, anchor)?);
            let difference = binary(g, "Sub", before, value)?;
            let difference = if variable.dtype == DType::F32 { difference } else { cast(g, difference, DType::F32)? };
            let message = format!("variable {} is not finite", variable.name);
            g.op("CheckNumerics").name(CHECK_DIFFERENCE).input(difference).attr("message", message.as_str()).build()
        })?);
    }
    let mut running = Vec::with_capacity(worker.running.len());
    for variable in &worker.running {
        running.push(on(g, &variable.device, |g| {
            let value = now(g, variable)?;
            if variable.dtype == DType::F32 { Ok(value) } else { cast(g, value, DType::F32) }
        })?);
    }
    let (mut values, mut reset) = (Vec::with_capacity(sums.len()), Vec::with_capacity(sums.len()));
    for sum in sums {
        on(g, &sum.device, |g| {
            let value = now(g, sum)?;
            values.push(value);
            reset.push(g.op("AssignVariableOp").input(sum.handle).input(0f32).control(value).build()?);
            Ok(())
        })?;
    }
    Ok(Part { count, taken, differences, running, sums: values, reset })
}

fn assign(g: &mut GraphBuilder, variable: &Variable, value: Output) -> Result<Output> {
    let op = if variable.is_ref { "Assign" } else { "AssignVariableOp" };
    binary(g, op, variable.handle, value)
}

/// Adds the update of a worker's anchors by the mean of all differences, after which its steps continue from these. Returns the
/// nodes that have run then.
fn update(
    g: &mut GraphBuilder,
    worker: &Worker,
    train: &TrainSection,
    mean: &differences::Mean,
) -> Result<Vec<Output>> {
    let mut done = Vec::with_capacity(worker.trained.len());
    let each = worker.trained.iter().zip(&worker.anchors).zip(&worker.momenta).zip(&mean.of_each).enumerate();
    for (k, (((variable, anchor), momentum), &mean)) in each {
        let assigned = on(g, &variable.device, |g| {
            let (rate, factor) = (scalar(anchor.dtype, train.local.rate)?, scalar(anchor.dtype, train.local.momentum)?);
            let applied = g.op("ResourceApplyMomentum").name("train/outer_update").input(anchor.handle);
            let applied = applied.input(momentum.handle).input(rate).input(mean).input(factor);
            let applied = applied.attr("use_nesterov", true).build()?;
            let value = read(g, anchor.handle, anchor.is_ref, anchor.dtype).control(applied).build()?;
            assign(g, variable, value)
        })?;
        done.push(assigned);
        if let Some(average) = worker.averages.get(k) {
            let decay = train.training.average.unwrap_or_default();
            done.push(update_average(g, variable, average, decay, &[assigned])?);
        }
    }
    Ok(done)
}
