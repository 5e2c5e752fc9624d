//! Local training, DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
//! arXiv:2311.08105): each worker has a copy of all variables and makes steps of its own with its own batches and its own slots.
//! After a round of them, the outer update (`rounds.rs`) changes the copies of all by the mean of the differences that the
//! workers have made (`differences.rs`).

use meshtf_graph::variable::ops::{binary, on};
use meshtf_graph::variable::{Initializer, Variable, VariableSpec, add_init, add_variable, read};
use meshtf_graph::{Graph, GraphBuilder};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::differences::is_quantized;
use super::mirrored::copies;
use super::replicas::Replicas;
use super::state::kept_once;
use super::updates::changed_in_steps;
use super::{Beside, Kept, Made, Team, held, mean, metrics, places_of_trained};
use crate::Training;
use crate::average::add_averages;
use crate::clip::clipped;
use crate::file::TrainSection;
use crate::minimize::{Applied, gradients};

/// The suffixes of the names of the variables that a worker has in addition, after the variable's.
const ANCHOR: &str = "/Anchor";
const MOMENTUM: &str = "/OuterMomentum";
const RESIDUAL: &str = "/Residual";

/// The variables of a worker for the outer updates, by trained variable.
pub(super) struct Worker {
    /// The variables that its steps change.
    pub trained: Vec<Variable>,
    /// The other variables of floats that its steps change, such as the running averages of a batch normalization.
    pub running: Vec<Variable>,
    /// The values of the trained variables after the last outer update.
    pub anchors: Vec<Variable>,
    /// The momenta of the outer update.
    pub momenta: Vec<Variable>,
    /// The rest of its differences that it has not sent yet: none if they are sent as they are.
    pub residuals: Vec<Variable>,
    /// The moving averages of the anchors, if this is the first worker and averages are kept.
    pub averages: Vec<Variable>,
    /// The devices of its variables.
    pub homes: Vec<String>,
}

impl Worker {
    /// The device on which its differences are put together.
    pub fn home(&self) -> &str {
        &self.trained[0].device
    }
}

/// Adds the local steps of each worker, and the variables of the outer update.
///
/// # Errors
/// InvalidArgument for rounds or workers that do not fit the mode; those of [`gradients`] and [`apply`](crate::apply).
pub(super) fn add(
    g: &mut GraphBuilder,
    graph: &Graph,
    replicas: &Replicas,
    train: &TrainSection,
    checks: bool,
) -> Result<(Made, Vec<Worker>)> {
    train.local.check()?;
    let refused = match train {
        TrainSection { fewest: Some(_), .. } => "no worker comes or goes, so fewer than all are not enough",
        TrainSection { backup: 1.., .. } => "all workers are needed: there is no backup",
        TrainSection { ps: 1.., .. } => "each worker has all variables: there is no ps",
        TrainSection { staleness: Some(_), .. } => {
            "workers wait for each other after each round: there is no staleness"
        }
        _ => "",
    };
    if !refused.is_empty() {
        return Err(Failure::invalid(format!("in mode local {refused}")));
    }
    let count = replicas.count();
    let (own, mut begun) = copies(g, graph, replicas)?;
    let places = places_of_trained(train, &own[0])?;
    let changed = changed_in_steps(graph, train)?;
    let is_running = |k: usize| !places.contains(&k) && own[0][k].dtype.is_float() && changed.contains(&own[0][k].name);
    let running: Vec<usize> = (0..own[0].len()).filter(|&k| is_running(k)).collect();
    let elements = places.iter().map(|&k| own[0][k].shape.elements().unwrap_or(0)).sum();
    let mut workers = Vec::with_capacity(count);
    for (i, variables) in own.iter().enumerate() {
        let trained: Vec<Variable> = places.iter().map(|&k| variables[k].clone()).collect();
        let mut worker = Worker {
            anchors: zeros_for(g, &trained, ANCHOR, None)?,
            momenta: zeros_for(g, &trained, MOMENTUM, None)?,
            residuals: match is_quantized(&train.local, elements, count) {
                true => zeros_for(g, &trained, RESIDUAL, Some(DType::F32))?,
                false => Vec::new(),
            },
            averages: match train.training.average {
                Some(decay) if i == 0 => add_averages(g, &trained, decay)?,
                _ => Vec::new(),
            },
            homes: variables.iter().map(|variable| variable.device.clone()).collect(),
            running: running.iter().map(|&k| variables[k].clone()).collect(),
            trained,
        };
        worker.homes.sort_unstable();
        worker.homes.dedup();
        for (anchor, variable) in worker.anchors.iter_mut().zip(&worker.trained) {
            anchor.assign = Some(on(g, &variable.device, |g| {
                let first = read(g, variable.handle, variable.is_ref, variable.dtype);
                let first = variable.assign.into_iter().fold(first, |first, assign| first.control(assign)).build()?;
                binary(g, "AssignVariableOp", anchor.handle, first)
            })?);
        }
        let added = [&worker.anchors, &worker.momenta, &worker.residuals, &worker.averages];
        begun.extend(added.into_iter().flatten().cloned());
        workers.push(worker);
    }
    let inner = Training { average: None, ..train.training.clone() };
    let (mut applied, mut teams) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (i, worker) in workers.iter().enumerate() {
        let losses = replicas.outputs(g, &train.loss, &[i])?;
        let found = gradients(g, &losses, &worker.trained)?;
        let loss = mean(g, "train/loss", &losses)?;
        let mut found = held(g, loss, &found, checks)?;
        if let Some(clip) = inner.clip {
            found = clipped(g, &found, clip)?.0;
        }
        let steps = Applied::begin(g, &worker.trained, &inner, &worker.trained[0].device, &replicas.prefix(i))?;
        let updates = steps.updates(g, &found)?;
        let run = steps.step(g, &updates, &[], &[])?;
        teams.push(Team { loss, metrics: metrics(g, replicas, train, &[i])?, run });
        applied.push(steps);
    }
    let (state, added) = state(&own, &places, &workers, &applied, replicas);
    drop(applied);
    begun.extend(added);
    let init = add_init(g, "train/init", &begun)?;
    Ok((Made { init, teams, state, early: 0..0, beside: Beside::default() }, workers))
}

/// Adds a variable for each of some, of zeros, and of the same dtype unless another one is stated.
fn zeros_for(
    g: &mut GraphBuilder,
    variables: &[Variable],
    suffix: &str,
    dtype: Option<DType>,
) -> Result<Vec<Variable>> {
    let mut all = Vec::with_capacity(variables.len());
    for Variable { name, shape, device, dtype: own, .. } in variables {
        let spec = VariableSpec {
            dtype: dtype.unwrap_or(*own),
            trainable: false,
            device: device.clone(),
            ..VariableSpec::new(&format!("{name}{suffix}"), shape.clone(), Initializer::Zeros)
        };
        all.push(add_variable(g, &spec)?);
    }
    Ok(all)
}

/// The state after a round, and the variables that were added for the optimizers. All copies of a variable are equal then, and
/// equal to its anchors; those of one that steps change and that is of no floats, such as a count, are those of each worker, of
/// which the first worker's is kept.
fn state(
    own: &[Vec<Variable>],
    places: &[usize],
    workers: &[Worker],
    applied: &[Applied],
    replicas: &Replicas,
) -> (Vec<Kept>, Vec<Variable>) {
    let (mut kept, mut added) = (Vec::new(), Vec::new());
    let equal = |copies: Vec<Variable>| Kept { variable: copies[0].clone(), copies, pieces: Vec::new() };
    for k in 0..own[0].len() {
        let anchors = places.iter().position(|&place| place == k);
        let anchors = workers.iter().filter_map(|worker| Some(worker.anchors[anchors?].clone()));
        kept.push(equal(own.iter().map(|own| own[k].clone()).chain(anchors).collect()));
    }
    for place in 0..places.len() {
        kept.push(equal(workers.iter().map(|worker| worker.momenta[place].clone()).collect()));
        for (worker, applied) in workers.iter().zip(applied) {
            let slots = &applied.slots[place].0;
            added.extend(slots.iter().cloned());
            let alone = slots.iter().chain(worker.residuals.get(place)).chain(worker.averages.get(place));
            kept.extend(alone.cloned().map(Kept::alone));
        }
    }
    let prefixes: Vec<String> = (0..workers.len()).map(|i| replicas.prefix(i)).collect();
    kept_once(applied, &prefixes, &own[0], &mut kept, &mut added);
    (kept, added)
}
