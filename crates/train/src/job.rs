//! The graph of a training: the model's replicas on workers, queues of batches, the update, and the nodes that save and
//! restore.

mod accumulator;
mod alone;
mod backup;
mod cuts;
mod differences;
mod elsewhere;
mod exchange;
mod kept;
mod local;
mod microbatches;
mod mirrored;
mod pipeline;
mod queue;
mod replicas;
mod rounds;
mod shares;
mod stages;
mod staleness;
mod state;
mod turns;
mod units;
mod updates;
mod worker_file;

use std::collections::HashSet;
use std::ops::Range;

pub use self::alone::{Alone, alone};
pub use self::elsewhere::Elsewhere;
pub use self::kept::{Kept, restore, restore_constant};
pub(crate) use self::microbatches::BATCH;
use self::microbatches::Cut;
pub use self::microbatches::{Pipeline, in_pipeline};
use self::queue::QUEUE;
pub use self::queue::QueueNodes;
pub(crate) use self::queue::name_of_next;
use self::replicas::{Filled, Replicas};
pub use self::rounds::Rounds;
pub(crate) use self::shares::share;
pub use self::stages::Stage;
pub use self::staleness::Level;
pub(crate) use self::staleness::MOST_STALE;
use self::updates::all_of;
pub use self::updates::changes_variables;
pub use self::worker_file::Held;
use meshtf_graph::gradient::Gradient;
use meshtf_graph::op::Role;
use meshtf_graph::variable::ops::{cast, on};
use meshtf_graph::variable::{Variable, add_init, variable_of};
use meshtf_graph::{Graph, GraphBuilder, Node, NodeDef, NodeId, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::file::{Sections, TrainSection, UpdateMode};
use super::minimize::{apply_each, gradients};
use super::{Trained, clip};
use crate::data::WorkerFile;
use crate::ring::BucketLimits;

/// A placeholder that the training feeds, with the dtype and the shape of an example.
#[derive(Clone, Debug, PartialEq)]
pub struct FedPlaceholder {
    /// The placeholder.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// The shape of one example.
    pub example: Vec<usize>,
    /// The file on the workers that contains it, if any: then indices into the file are fed.
    pub there: Option<WorkerFile>,
}

/// The graph of a training, and the names of its nodes.
#[derive(Clone, Debug)]
pub struct TrainingGraph {
    /// All nodes.
    pub graph: Graph,
    /// Initialises the optimizer's variables, once the model's variables have values.
    pub init: String,
    /// The nodes that steps run: one set for all workers together, or one for each worker.
    pub steps: Vec<StepNodes>,
    /// In a training whose workers make steps of their own between two updates: those. The steps of all workers together are
    /// rounds then.
    pub rounds: Option<Rounds>,
    /// In mode pipeline: the stages and the micro-batches.
    pub pipeline: Option<Pipeline>,
    /// The loss and the metrics of one replica, for evaluations: the data is then fed to the placeholders.
    pub evaluated: Vec<String>,
    /// The names of what evaluations feed and fetch on a worker.
    pub elsewhere: Elsewhere,
    /// The nodes that run in parallel with the steps, as often as they do: the workers, if an update does not wait for all of
    /// them.
    pub beside: Vec<String>,
    /// For each of those, the node that takes one of its tokens, of which it gets one for each update.
    pub tokens: Vec<String>,
    /// For each of those, the node that makes the token of the next update its only one. Run between two updates.
    pub joins: Vec<String>,
    /// For each worker of a training of bounded staleness, nodes to be run when the worker is lost, each as often as there are
    /// steps: they give the others its tokens, and take those that the others give it.
    pub absent: Vec<Vec<String>>,
    /// In a training of bounded staleness, nodes to be run before the first step, and those of the living workers again, between
    /// two steps, when a worker was lost.
    pub levels: Vec<Level>,
    /// Run before the first step, in this order, whether the variables were initialised or restored.
    pub begin: Vec<String>,
    /// A queue of batches for each replica.
    pub queues: Vec<QueueNodes>,
    /// For each replica, part by part, the nodes that take examples of those that are stored on the workers.
    pub held: Vec<Vec<Option<Held>>>,
    /// Leftovers of a training that was killed, beside those in the queues of batches.
    pub drains: Vec<Drain>,
    /// All variables.
    pub variables: Vec<Variable>,
    /// For each variable, the placeholder for a new value, and the node that assigns it.
    pub restores: Vec<(String, String)>,
    /// The placeholder that steps which train feed with true, if there is one.
    pub training: Option<String>,
}

/// The nodes that a step runs and may fetch.
#[derive(Clone, Debug)]
pub struct StepNodes {
    /// The node that runs it.
    pub run: String,
    /// The mean loss of its batch: a float32.
    pub loss: String,
    /// The means of the metrics over its replicas, in their order.
    pub metrics: Vec<String>,
}

impl TrainingGraph {
    /// The nodes that compute a loss of a batch: of all workers together, or of each.
    pub fn losses(&self) -> &[StepNodes] {
        self.rounds.as_ref().map_or(&self.steps, |rounds| &rounds.local)
    }
}

impl StepNodes {
    /// The tensors that a step fetches to report it: the loss, and the metrics.
    pub fn fetches(&self) -> Vec<&str> {
        std::iter::once(&self.loss).chain(&self.metrics).map(String::as_str).collect()
    }
}

/// A queue or an accumulator whose contents no step is to take.
#[derive(Clone, Debug)]
pub struct Drain {
    /// The number of elements, an int32.
    pub size: String,
    /// Runs to drop them, if there are any.
    pub drop: String,
}

/// The prefix of the names of the nodes that fail a step whose loss is not finite.
pub const CHECK: &str = "train/loss_is_a_number";

/// The prefix of the names of the nodes that fail a step with a gradient that is not finite, where that is requested.
pub const CHECK_GRADIENT: &str = "train/gradient_is_a_number";

/// The prefix of the names of the nodes that fail a round after which a variable is not finite.
pub const CHECK_DIFFERENCE: &str = "train/difference_is_a_number";

/// The node of a model that runs the nodes of each step in addition to the update, unless the section `train` names others.
pub const UPDATES: &str = "train/updates";

/// The node of a model whose value is the index of the replica, a constant, from 0: it determines the replica's random
/// numbers.
pub const REPLICA: &str = "train/replica";

/// Assembles a training. A queue holds `capacity` batches. `checks`: whether gradients that are not finite fail a step, as a
/// loss does.
///
/// # Errors
/// As [`job_on`].
pub fn job(
    graph: Graph,
    sections: &Sections,
    parts: &[FedPlaceholder],
    capacity: usize,
    checks: bool,
) -> Result<TrainingGraph> {
    let tasks: Vec<usize> = (0..sections.train.workers.max(1)).collect();
    job_on(&tasks, graph, sections, parts, capacity, checks, BucketLimits::default())
}

/// As [`job`], with the replicas on the tasks of job `worker` with these numbers, as many as the sections have `workers`, and
/// with the sizes of transfers between mirrored workers.
///
/// # Errors
/// InvalidArgument for inconsistent input: a name that does not exist, a batch that the workers cannot share equally; those
/// of [`gradients`] and [`apply`](super::apply).
pub fn job_on(
    tasks: &[usize],
    graph: Graph,
    sections: &Sections,
    parts: &[FedPlaceholder],
    capacity: usize,
    checks: bool,
    limits: BucketLimits,
) -> Result<TrainingGraph> {
    let train = &sections.train;
    let looked_at = sections.evaluate.iter().flat_map(|section| &section.metrics);
    let metrics = train.metrics.iter().chain(looked_at.clone()).map(|name| ("metric", name));
    for (what, name) in std::iter::once(("loss", &train.loss)).chain(metrics) {
        graph.output(name).map_err(|error| Failure::invalid(format!("{what} {name}: {error}")))?;
    }
    let constants: Vec<&str> = sections.data.constants.iter().map(|(name, _)| name.as_str()).collect();
    let mut replicas = Replicas::of(&graph, train, parts, &constants, tasks);
    train.check_pipeline()?;
    if train.mode == UpdateMode::Pipeline {
        replicas.cut = Some(Cut::of(&replicas, &constants, sections.data.batch)?);
    }
    let Filled { mut defs, queues, held } = replicas.nodes(train.rows(sections.data.batch)?, capacity)?;
    let evaluated: Vec<String> = std::iter::once(&train.loss).chain(looked_at.clone()).cloned().collect();
    let (elsewhere, copies) = match &sections.evaluate {
        Some(section) => {
            let classes = section.confusion.iter().flat_map(|both| [&both.labels, &both.predictions]);
            replicas.elsewhere(&evaluated.iter().chain(classes).map(String::as_str).collect::<Vec<_>>(), &held)?
        }
        None => <(Elsewhere, Vec<NodeDef>)>::default(),
    };
    defs.extend(copies);
    let mut g = GraphBuilder::from(Graph::new(defs)?);
    for name in train.metrics.iter().chain(looked_at.clone()) {
        check_metric(&g, name, replicas.outputs(&g, name, &[0])?[0])?;
    }
    let mut local = Vec::new();
    let mut made = match train.mode {
        UpdateMode::Sync if train.backup > 0 => backup::add(&mut g, &replicas, train)?,
        UpdateMode::Sync | UpdateMode::Async => shared(&mut g, &replicas, train, checks)?,
        UpdateMode::Mirrored => mirrored::add(&mut g, &graph, &replicas, train, checks, limits)?,
        UpdateMode::Local => {
            let (made, workers) = local::add(&mut g, &graph, &replicas, train, checks)?;
            local = workers;
            made
        }
        UpdateMode::Pipeline => pipeline::add(&mut g, &replicas, train, checks)?,
    };
    let also = updates::add(&mut g, &replicas, train, &mut made.teams)?;
    let rounds = match local.is_empty() {
        true => None,
        false => Some(rounds::add(&mut g, &local, train, &mut made, limits)?),
    };
    if let (Some(staleness), true) = (train.staleness, made.teams.len() > 1) {
        let variables: Vec<Variable> = made.state.iter().map(|kept| kept.variable.clone()).collect();
        made.beside = staleness::bound(&mut g, &mut made.teams, &variables, staleness)?;
    }
    let names = |g: &GraphBuilder, outputs: &[Output]| outputs.iter().map(|&output| g.tensor_name(output)).collect();
    let steps = made.teams.iter().map(|Team { loss, metrics, run }| StepNodes {
        run: g.tensor_name(*run),
        loss: g.tensor_name(*loss),
        metrics: names(&g, metrics),
    });
    let steps = steps.collect();
    let mut restores = Vec::with_capacity(made.state.len());
    for kept in &made.state {
        restores.push(restore(&mut g, kept)?);
    }
    let is_flag =
        |node: &Node| node.op.is_fed && node.op.role != Role::Placeholder && node.outputs[0].dtype == DType::Bool;
    let flag = graph.find("training").filter(|&id| is_flag(graph.node(id)));
    let init = g.tensor_name(made.init);
    let Beside { begin, drains, workers, joins, levels, absent, gates, after } = made.beside;
    let whole = updates::after(backup::gated(g.finish()?, &gates)?, &[also, after].concat())?;
    let (whole, places) = mirrored::sooner(whole, &made.early)?;
    let moved = |output: Output| Output { node: places[output.node.index()], ..output };
    let moved = |variable: Variable| Variable {
        value: moved(variable.value),
        handle: moved(variable.handle),
        assign: variable.assign.map(moved),
        ..variable
    };
    Ok(TrainingGraph {
        init,
        steps,
        rounds,
        pipeline: replicas.cut.map(Pipeline::from),
        tokens: (0..workers.len()).map(replicas::token).collect(),
        beside: workers,
        joins,
        absent,
        levels,
        begin: begin.into_iter().collect(),
        held,
        drains,
        evaluated,
        elsewhere,
        queues,
        variables: made.state.into_iter().map(|kept| moved(kept.variable)).collect(),
        restores,
        training: flag.map(|_| "training".to_owned()),
        graph: whole,
    })
}

/// The device of each worker's queue, if `first` is the first placeholder that is fed.
///
/// # Errors
/// InvalidArgument for a device that cannot be read.
pub fn homes(graph: &Graph, train: &TrainSection, first: &str) -> Result<Vec<String>> {
    homes_on(graph, train, first, &(0..train.workers.max(1)).collect::<Vec<_>>())
}

/// As [`homes`], with the workers on the tasks with these numbers.
fn homes_on(graph: &Graph, train: &TrainSection, first: &str, tasks: &[usize]) -> Result<Vec<String>> {
    let first = graph.find(first).map(|id| graph.node(id).device.clone()).unwrap_or_default();
    let home =
        |&task: &usize| if train.workers > 0 { replicas::within(&first, "worker", task) } else { Ok(first.clone()) };
    tasks.iter().map(home).collect()
}

/// The nodes and variables that were added to the replicas of a model.
struct Made {
    /// Initialises the added variables.
    init: Output,
    teams: Vec<Team>,
    /// The variables that make up the state of the training.
    state: Vec<Kept>,
    /// The indices of the nodes that are to be moved to directly after their inputs.
    early: Range<usize>,
    beside: Beside,
}

/// Replicas whose batches together make one update.
struct Team {
    /// The means of the loss and the metrics over them.
    loss: Output,
    metrics: Vec<Output>,
    /// Runs a step of it.
    run: Output,
}

/// The nodes in addition to the updates.
#[derive(Default)]
struct Beside {
    begin: Option<String>,
    drains: Vec<Drain>,
    workers: Vec<String>,
    joins: Vec<String>,
    levels: Vec<Level>,
    absent: Vec<Vec<String>>,
    /// Nodes whose first input is to be replaced, with the name of the new one.
    gates: Vec<(String, String)>,
    /// Nodes that are to wait for other nodes, by their names.
    after: Vec<(String, String)>,
}

/// Adds updates of variables that all replicas share: one by all of them together, or one by each.
fn shared(g: &mut GraphBuilder, replicas: &Replicas, train: &TrainSection, checks: bool) -> Result<Made> {
    let variables = variables(g)?;
    let trained = trained_of(train, &variables)?;
    let teams: Vec<Vec<usize>> = match train.mode {
        UpdateMode::Async => (0..replicas.count()).map(|i| vec![i]).collect(),
        _ => vec![(0..replicas.count()).collect()],
    };
    let (mut sets, mut losses) = (Vec::with_capacity(teams.len()), Vec::with_capacity(teams.len()));
    for team in &teams {
        let own = replicas.outputs(g, &train.loss, team)?;
        let found = gradients(g, &own, &trained)?;
        let loss = mean(g, "train/loss", &own)?;
        sets.push(held(g, loss, &found, checks)?);
        losses.push(loss);
    }
    let (Trained { variables: added, .. }, runs) = apply_each(g, &trained, &sets, &train.training, &[])?;
    let added = without(added, &variables);
    let init = add_init(g, "train/init", &added)?;
    let mut made = Vec::with_capacity(teams.len());
    for ((team, loss), run) in teams.iter().zip(losses).zip(runs) {
        made.push(Team { loss, metrics: metrics(g, replicas, train, team)?, run });
    }
    let state = variables.into_iter().chain(added).map(Kept::alone).collect();
    Ok(Made { init, teams: made, state, early: 0..0, beside: Beside::default() })
}

/// Rejects a metric that is not a single number in the first replica.
fn check_metric(g: &GraphBuilder, name: &str, metric: Output) -> Result<()> {
    let (graph, dtype) = (g.settled(), g.settled().output_type(metric).dtype);
    let shape = graph.shapes().known(metric);
    let is_number = dtype.is_float() || dtype.is_integer() || dtype == DType::Bool;
    if is_number && shape.as_ref().is_none_or(|shape| shape.elements() == Some(1)) {
        return Ok(());
    }
    let shape = shape.map_or_else(String::new, |shape| shape.to_string());
    Err(Failure::invalid(format!("metric {name} is {dtype}{shape}; it must be one number, so take its mean")))
}

/// The means of the metrics over some replicas.
fn metrics(g: &mut GraphBuilder, replicas: &Replicas, train: &TrainSection, team: &[usize]) -> Result<Vec<Output>> {
    let mut means = Vec::with_capacity(train.metrics.len());
    for name in &train.metrics {
        let of_each = replicas.outputs(g, name, team)?;
        means.push(mean(g, "train/metric", &of_each)?);
    }
    Ok(means)
}

/// The added variables, without the known ones.
fn without(added: Vec<Variable>, known: &[Variable]) -> Vec<Variable> {
    let known: HashSet<&str> = known.iter().map(|variable| variable.name.as_str()).collect();
    added.into_iter().filter(|variable| !known.contains(variable.name.as_str())).collect()
}

/// Gradients that exist only if the loss is finite, and with `checks`, only if all of them are, too.
fn held(g: &mut GraphBuilder, loss: Output, gradients: &[Gradient], checks: bool) -> Result<Vec<Gradient>> {
    let home = g.device_of(loss);
    let message = "the loss is not finite";
    let mut check = on(g, &home, |g| g.op("CheckNumerics").name(CHECK).input(loss).attr("message", message).build())?;
    if checks {
        g.settle()?;
        let all: Vec<Output> = gradients.iter().map(clip::values).collect();
        let floats = all.into_iter().filter(|&one| g.settled().output_type(one).dtype.is_float());
        let mut checked = vec![check];
        for gradient in floats.collect::<Vec<Output>>() {
            let (device, message) = (g.device_of(gradient), "a gradient is not finite");
            checked.push(on(g, &device, |g| {
                g.op("CheckNumerics")
                    .name(CHECK_GRADIENT)
                    .input(gradient)
                    .control(check)
                    .attr("message", message)
                    .build()
            })?);
        }
        check = all_of(g, "train/gradients_are_numbers", &home, checked)?;
    }
    // In the order in which they are computed, on which their consumers can rely.
    let mut order: Vec<usize> = (0..gradients.len()).collect();
    order.sort_by_key(|&place| clip::values(&gradients[place]).node);
    let mut held = gradients.to_vec();
    for place in order {
        let values = clip::values(&gradients[place]);
        let device = g.device_of(values);
        let kept = on(g, &device, |g| g.op("Identity").name("train/held").input(values).control(check).build())?;
        held[place] = clip::with_values(&gradients[place], kept);
    }
    Ok(held)
}

/// Every variable of a graph.
pub fn variables(g: &mut GraphBuilder) -> Result<Vec<Variable>> {
    g.settle()?;
    names_of_variables(g.settled()).iter().map(|name| variable_of(g, name)).collect()
}

/// The names by which [`variable_of`] finds every variable of a graph.
pub fn names_of_variables(graph: &Graph) -> Vec<String> {
    let makes = graph.nodes().filter(|(_, node)| node.op.makes_variable && !node.name.starts_with(QUEUE));
    makes.map(|(id, _)| name_of_variable(graph, id)).collect()
}

/// The name of the variable that a node makes: that of the node that reads it, if there is one.
fn name_of_variable(graph: &Graph, handle: NodeId) -> String {
    let read = graph
        .nodes()
        .find(|(_, node)| node.op.reads_variable && node.inputs[0].node == handle && node.control.is_empty());
    read.map_or_else(|| graph.node(handle).name.clone(), |(_, node)| node.name.clone())
}

/// The places of the variables that are trained among those of a replica.
fn places_of_trained(train: &TrainSection, variables: &[Variable]) -> Result<Vec<usize>> {
    let chosen = trained_of(train, variables)?;
    let is_chosen = |k: &usize| chosen.iter().any(|variable| variable.name == variables[*k].name);
    Ok((0..variables.len()).filter(is_chosen).collect())
}

/// The variables that are trained: the named ones, or all that are trainable.
fn trained_of(train: &TrainSection, variables: &[Variable]) -> Result<Vec<Variable>> {
    if train.variables.is_empty() {
        let can = |variable: &&Variable| variable.trainable && variable.dtype.is_float();
        return Ok(variables.iter().filter(can).cloned().collect());
    }
    let find = |name: &String| {
        variables.iter().find(|variable| variable.name == *name).cloned().ok_or_else(|| {
            let near = meshtf_tensor::nearest::nearest(name, variables.iter().map(|variable| variable.name.as_str()));
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

/// The mean of some scalars as a float32, on the device of the first.
fn mean(g: &mut GraphBuilder, name: &str, all: &[Output]) -> Result<Output> {
    let device = g.device_of(all[0]);
    on(g, &device, |g| {
        let floats = all.iter().map(|&one| cast(g, one, DType::F32)).collect::<Result<Vec<_>>>()?;
        let sum = g.op("AddN").inputs(floats).build()?;
        g.op("Mul").name(name).input(sum).input(1.0 / all.len() as f32).build()
    })
}

#[cfg(test)]
mod tests;
