//! One step of training: gradients of a loss by variables, and their application.

use std::collections::HashMap;

use meshtf_graph::gradient::{self, Differentiation, Gradient};
use meshtf_graph::variable::ops::{binary, cast, on, scalar};
use meshtf_graph::variable::{Initializer, Variable, VariableSpec, add_variable, read, variable_of};
use meshtf_graph::{GraphBuilder, Node, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::GLOBAL_STEP;
use super::average::{add_averages, update_average};
use super::clip::{Clip, clipped, values, with_values};
use super::dense::Update;
use super::optimizer::{Optimizer, Powers, Slots};
use super::schedule::Schedule;

/// The parameters of training.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// The rule by which gradients change variables.
    pub optimizer: Optimizer,
    /// The learning rate.
    pub rate: Schedule,
    /// The limit of gradients.
    pub clip: Option<Clip>,
    /// The share of each weight, times the learning rate, that is subtracted before each update.
    pub weight_decay: f64,
    /// The decay of moving averages of the variables, from 0 to below 1, if averages are to be kept.
    pub average: Option<f64>,
    /// The device of the step counter; if it is empty, the first variable's.
    pub device: String,
}

impl Training {
    /// Without clipping, weight decay and averages.
    pub fn new(optimizer: Optimizer, rate: impl Into<Schedule>) -> Training {
        Training { optimizer, rate: rate.into(), clip: None, weight_decay: 0.0, average: None, device: String::new() }
    }
}

/// The nodes of training.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The node that a step runs: `train/step`.
    pub step: Output,
    /// The number of updates so far, before the step: an int64.
    pub global_step: Variable,
    /// The learning rate of the step, a float32.
    pub rate: Output,
    /// The global norm of the gradients before they were clipped, if clipping computed it.
    pub norm: Option<Output>,
    /// Every variable: those that are trained, and those that were added for them.
    pub variables: Vec<Variable>,
}

/// Adds the gradients of a loss by variables, and the update of the variables by them.
///
/// # Errors
/// Those of [`gradients`] and [`apply`].
pub fn minimize(g: &mut GraphBuilder, loss: Output, variables: &[Variable], training: &Training) -> Result<Trained> {
    let found = gradients(g, &[loss], variables)?;
    apply(g, variables, &found, training)
}

/// Adds the gradients of the mean of some losses, those of replicas of one model, by each variable.
///
/// # Errors
/// InvalidArgument if a loss is not a float, or does not depend on a variable, which is named; those of
/// [`gradient::gradients`].
pub fn gradients(g: &mut GraphBuilder, losses: &[Output], variables: &[Variable]) -> Result<Vec<Gradient>> {
    gradients_of_share(g, losses, 1.0 / losses.len().max(1) as f64, variables)
}

/// As [`gradients`], of the sum of some losses times `share`: that of each in a mean with others, which are elsewhere.
pub(super) fn gradients_of_share(
    g: &mut GraphBuilder,
    losses: &[Output],
    share: f64,
    variables: &[Variable],
) -> Result<Vec<Gradient>> {
    if variables.is_empty() {
        return Err(Failure::invalid("there is no variable to train"));
    }
    if losses.is_empty() {
        return Err(Failure::invalid("there is no loss"));
    }
    g.settle()?;
    let mut starts = Vec::with_capacity(losses.len());
    for &loss in losses {
        let graph = g.settled();
        let (dtype, device) = (graph.output_type(loss).dtype, graph.node(loss.node).device.clone());
        let name = graph.tensor_name(loss);
        if let Some(shape) = graph.shapes().known(loss).filter(|shape| shape.rank() > 0) {
            return Err(Failure::invalid(format!(
                "the loss {name} has shape {shape}; it must be one number, so take its mean"
            )));
        }
        let start = scalar(dtype, share);
        let start = start.map_err(|_| Failure::invalid(format!("the loss {name} is {dtype}; it must be a float")))?;
        starts.push(match share {
            1.0 => None,
            _ => Some(on(g, &device, |g| g.constant("share", start))?),
        });
    }
    // The gradient by the handle is the sum of that by the value and those by rows that were looked up through the handle.
    let handles: Vec<Output> = variables.iter().map(|variable| variable.handle).collect();
    let options = Differentiation { starts, ..Differentiation::default() };
    let found = gradient::gradients(g, losses, &handles, &options)?;
    let mut all = Vec::with_capacity(found.len());
    for (variable, found) in variables.iter().zip(found) {
        all.push(found.ok_or_else(|| {
            let (graph, name) = (g.settled(), &variable.name);
            let why = match gradient::cut_off_at(graph, losses[0], variable.handle) {
                None => format!("does not depend on variable {name}"),
                Some(end) => {
                    let Node { name: end, op, .. } = graph.node(end);
                    format!("has no gradient with respect to variable {name}: that ends at {end}, a {}", op.name)
                }
            };
            let loss = g.tensor_name(losses[0]);
            Failure::invalid(format!(
                "the loss {loss} {why}; if {name} is not to be trained, say so (trainable: false), or name those that are (variables in \
                 the section train)"
            ))
        })?);
    }
    Ok(all)
}

/// Adds the update of variables by their gradients, one for each.
///
/// # Errors
/// InvalidArgument for invalid parameters, and names that are taken.
pub fn apply(
    g: &mut GraphBuilder,
    variables: &[Variable],
    gradients: &[Gradient],
    training: &Training,
) -> Result<Trained> {
    apply_with(g, variables, gradients, training, &[])
}

/// As [`apply`], if the step runs other nodes, too.
///
/// # Errors
/// As [`apply`].
pub fn apply_with(
    g: &mut GraphBuilder,
    variables: &[Variable],
    gradients: &[Gradient],
    training: &Training,
    others: &[Output],
) -> Result<Trained> {
    Ok(apply_each(g, variables, &[gradients.to_vec()], training, others)?.0)
}

/// As [`apply_with`], for several sets of gradients that change the same variables. Returns the node that a step of each set
/// runs; that of the first is also in the added nodes.
///
/// # Errors
/// As [`apply`].
pub(super) fn apply_each(
    g: &mut GraphBuilder,
    variables: &[Variable],
    sets: &[Vec<Gradient>],
    training: &Training,
    others: &[Output],
) -> Result<(Trained, Vec<Output>)> {
    let Some(first) = variables.first().filter(|_| sets.iter().all(|set| set.len() == variables.len())) else {
        return Err(Failure::invalid("expected at least one variable, and a gradient for each"));
    };
    let applied = Applied::begin(g, variables, training, &first.device, "")?;
    let (mut steps, mut norm) = (Vec::with_capacity(sets.len()), None);
    for set in sets {
        let (gradients, of_set) = match training.clip {
            None => (set.clone(), None),
            Some(clip) => clipped(g, set, clip)?,
        };
        norm = norm.or(of_set);
        let updates = applied.updates(g, &gradients)?;
        steps.push(applied.step(g, &updates, &[], others)?);
    }
    let Applied { global_step, rate, slots, powers, averages, .. } = applied;
    let mut all = variables.to_vec();
    all.extend(slots.into_iter().flat_map(|slots| slots.0));
    if let Some(Powers { beta1, beta2 }) = powers {
        all.extend([beta1, beta2]);
    }
    all.extend(averages);
    all.push(global_step.clone());
    let Some(&step) = steps.first() else { return Err(Failure::invalid("there are no gradients")) };
    Ok((Trained { step, global_step, rate, norm, variables: all }, steps))
}

/// The state of an optimizer for some variables, and what a step needs of it.
pub(super) struct Applied<'a> {
    variables: &'a [Variable],
    training: &'a Training,
    /// The device of what exists once for all variables.
    home: String,
    decay: f64,
    pub global_step: Variable,
    pub rate: Output,
    rates: HashMap<DType, Output>,
    /// Those of each variable.
    pub slots: Vec<Slots>,
    pub powers: Option<Powers>,
    /// That of each variable, if averages are kept.
    pub averages: Vec<Variable>,
}

impl<'a> Applied<'a> {
    /// Adds the state. `home` is the device of what exists once for all variables, unless the training names one; `prefix`
    /// begins the names of these nodes.
    ///
    /// # Errors
    /// As [`apply`].
    pub fn begin(
        g: &mut GraphBuilder,
        variables: &'a [Variable],
        training: &'a Training,
        home: &str,
        prefix: &str,
    ) -> Result<Applied<'a>> {
        training.optimizer.check()?;
        let decay = training.weight_decay + training.optimizer.decay();
        if !(decay >= 0.0 && decay.is_finite()) {
            return Err(Failure::invalid(format!("the weight decay is {decay}; expected a number from 0")));
        }
        let home = if training.device.is_empty() { home } else { &training.device };
        let global_step = count_of_steps(g, home, prefix)?;
        let rate = on(g, home, |g| training.rate.add(g, global_step.value))?;
        let powers = training.optimizer.add_powers(g, variables, prefix)?;
        let mut rates: HashMap<DType, Output> = HashMap::from([(DType::F32, rate)]);
        let mut slots = Vec::with_capacity(variables.len());
        for variable in variables {
            slots.push(training.optimizer.add_slots(g, variable)?);
            if let std::collections::hash_map::Entry::Vacant(free) = rates.entry(variable.dtype) {
                free.insert(on(g, home, |g| cast(g, rate, variable.dtype))?);
            }
        }
        let averages = match training.average {
            Some(decay) => add_averages(g, variables, decay)?,
            None => Vec::new(),
        };
        let home = home.to_owned();
        Ok(Applied { variables, training, home, decay, global_step, rate, rates, slots, powers, averages })
    }

    /// Adds the update of each variable by its gradient.
    ///
    /// # Errors
    /// As [`apply`].
    pub fn updates(&self, g: &mut GraphBuilder, gradients: &[Gradient]) -> Result<Vec<Output>> {
        let mut updates = Vec::with_capacity(self.variables.len());
        for ((variable, slots), &gradient) in self.variables.iter().zip(&self.slots).zip(gradients) {
            let rate = self.rates[&variable.dtype];
            let update = on(g, &variable.device, |g| {
                g.with_scope(&format!("train/update_{}", variable.name.replace('/', "_")), |g| {
                    let mut update = Update { g, variable, slots, powers: self.powers.as_ref(), rate };
                    let gradient = update.after_decay(gradient, self.decay)?;
                    match gradient {
                        Gradient::Dense(gradient) => update.dense(&self.training.optimizer, gradient),
                        Gradient::Sparse(rows) => update.sparse(&self.training.optimizer, rows),
                    }
                })
            })?;
            updates.push(update);
        }
        Ok(updates)
    }

    /// Adds the end of a step that makes these updates: it changes the rest of the state, and is counted once all of that and
    /// the nodes `also` have run. Returns the node that runs all of it, and `others`.
    ///
    /// # Errors
    /// As [`apply`].
    pub fn step(&self, g: &mut GraphBuilder, updates: &[Output], also: &[Output], others: &[Output]) -> Result<Output> {
        let mut done = updates.to_vec();
        done.extend(advance(g, self.powers.as_ref(), &self.training.optimizer, updates)?);
        for (variable, average) in self.variables.iter().zip(&self.averages) {
            done.push(update_average(g, variable, average, self.training.average.unwrap_or_default(), updates)?);
        }
        done.extend(also);
        let count = &self.global_step;
        let counted = on(g, &self.home, |g| {
            let add = if count.is_ref { "AssignAdd" } else { "AssignAddVariableOp" };
            g.with_control(&done, |g| binary(g, add, count.handle, Tensor::scalar(1i64)))
        })?;
        on(g, &self.home, |g| {
            let step = g.op("NoOp").name("train/step").control(counted);
            others.iter().fold(step, |step, &other| step.control(other)).build()
        })
    }
}

/// Multiplies the powers of Adam's betas by the betas, after the updates.
fn advance(
    g: &mut GraphBuilder,
    powers: Option<&Powers>,
    optimizer: &Optimizer,
    updates: &[Output],
) -> Result<Vec<Output>> {
    let (Some(Powers { beta1, beta2 }), Some(betas)) = (powers, betas(optimizer)) else { return Ok(Vec::new()) };
    let mut done = Vec::with_capacity(2);
    for (power, beta) in [(beta1, betas.0), (beta2, betas.1)] {
        done.push(on(g, &power.device, |g| {
            g.with_control(updates, |g| {
                // Read now: the value from the beginning of the step has not the steps that other workers have made since.
                let now = read(g, power.handle, power.is_ref, power.dtype).build()?;
                let next = binary(g, "Mul", now, scalar(power.dtype, beta)?)?;
                let assign = if power.is_ref { "Assign" } else { "AssignVariableOp" };
                binary(g, assign, power.handle, next)
            })
        })?);
    }
    Ok(done)
}

/// The variable that counts the steps: the graph's, if it has one.
pub(super) fn count_of_steps(g: &mut GraphBuilder, home: &str, prefix: &str) -> Result<Variable> {
    // One for the whole graph, in whatever scope the training is.
    let outer = g.enter_root();
    let count = count_at_root(g, home, &format!("{prefix}{GLOBAL_STEP}"));
    g.leave_scope(outer);
    count
}

fn count_at_root(g: &mut GraphBuilder, home: &str, name: &str) -> Result<Variable> {
    if !g.is_taken(name) {
        let spec = VariableSpec {
            dtype: DType::I64,
            trainable: false,
            device: home.to_owned(),
            ..VariableSpec::new(name, Shape::scalar(), Initializer::Zeros)
        };
        return add_variable(g, &spec);
    }
    let own = variable_of(g, name)?;
    if own.dtype != DType::I64 || own.shape.rank() > 0 {
        let why = format!("{name} counts the steps; it must be a scalar int64, but is {}{}", own.dtype, own.shape);
        return Err(Failure::invalid(why));
    }
    Ok(Variable { trainable: false, ..own })
}

fn betas(optimizer: &Optimizer) -> Option<(f64, f64)> {
    match *optimizer {
        Optimizer::Adam { beta1, beta2, .. } | Optimizer::AdamW { beta1, beta2, .. } => Some((beta1, beta2)),
        _ => None,
    }
}

impl Update<'_> {
    /// The gradient after weight decay. The decay waits for the gradient, which follows every read of the variable in this
    /// step and the check of the loss.
    fn after_decay(&mut self, gradient: Gradient, decay: f64) -> Result<Gradient> {
        if decay == 0.0 {
            return Ok(gradient);
        }
        let share = self.scaled(self.rate, decay)?;
        let part = self.times(self.variable.value, share)?;
        let part = self.g.op("Identity").input(part).control(values(&gradient)).build()?;
        let smaller = self.assign("AssignSub", self.variable, part)?;
        let held = self.g.op("Identity").input(values(&gradient)).control(smaller).build()?;
        Ok(with_values(&gradient, held))
    }
}
