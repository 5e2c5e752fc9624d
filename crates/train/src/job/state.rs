//! The state of a mirrored training: the same variables under the same names for any number of workers, wherever they are kept.

use meshtf_graph::gradient::Gradient;
use meshtf_graph::variable::Variable;
use meshtf_graph::variable::ops::on;
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::failure::Result;

use super::exchange::{Exchange, whole};
use super::kept::Kept;
use super::shares::Unit;
use crate::minimize::Applied;
use crate::optimizer::Powers;

/// A variable, or a piece of one, that a worker updates.
pub(super) struct Part {
    pub variable: Variable,
    /// The sum of its gradients.
    pub sum: Gradient,
    /// The unit to which it belongs, and its index there; none if each worker updates the variable.
    pub unit: Option<(usize, usize)>,
}

/// The variables of the workers, and the parts that they update.
pub(super) struct Shared<'a> {
    /// For each worker, the variables of the model.
    pub own: &'a [Vec<Variable>],
    /// For each worker, those that are trained.
    pub trained: &'a [Vec<Variable>],
    /// The indices of these among all.
    pub places: &'a [usize],
    pub exchanges: &'a [Exchange<'a>],
    /// For each worker, the parts that it updates.
    pub parts: &'a [Vec<Part>],
}

/// The state, and the variables that were added for the optimizers, which each worker has for what it updates.
pub(super) fn state(
    g: &mut GraphBuilder,
    shared: &Shared,
    applied: &[Applied],
    prefixes: &[String],
) -> Result<(Vec<Kept>, Vec<Variable>)> {
    let (mut kept, mut added) = (Vec::new(), Vec::new());
    for (k, variable) in shared.own[0].iter().enumerate() {
        let copies = shared.own.iter().map(|own| own[k].clone()).collect();
        let exchange = shared.exchanges.iter().find(|exchange| match exchange.unit {
            Unit::Cut { place, .. } => shared.places[*place] == k,
            Unit::Owned { .. } => false,
        });
        let pieces = exchange.map_or_else(Vec::new, |exchange| exchange.shares.clone());
        kept.push(Kept { variable: variable.clone(), copies, pieces });
    }
    for (place, variable) in shared.trained[0].iter().enumerate() {
        let parts = shared.parts_of(place);
        let mut beside = Vec::with_capacity(parts.len());
        for &(worker, at) in &parts {
            let Applied { slots, averages, .. } = &applied[worker];
            beside.push(slots[at].0.iter().chain(averages.get(at)).cloned().collect::<Vec<Variable>>());
        }
        let is_cut = parts.first().is_some_and(|&(worker, at)| {
            let unit = shared.parts[worker][at].unit.map(|(unit, _)| shared.exchanges[unit].unit);
            matches!(unit, Some(Unit::Cut { .. }))
        });
        for s in 0..beside.first().map_or(0, Vec::len) {
            let all: Vec<Variable> = beside.iter().map(|own| own[s].clone()).collect();
            let (worker, at) = parts[0];
            let suffix = all[0].name.strip_prefix(&shared.parts[worker][at].variable.name).unwrap_or_default();
            let name = format!("{}{suffix}", variable.name);
            added.extend(all.iter().cloned());
            kept.push(match is_cut {
                false => Kept { variable: Variable { name, ..all[0].clone() }, copies: all, pieces: Vec::new() },
                true => {
                    let values: Vec<Output> = all.iter().map(|piece| piece.value).collect();
                    let value = on(g, &variable.device, |g| whole(g, &values, &variable.shape))?;
                    let described = Variable {
                        name,
                        value,
                        shape: variable.shape.clone(),
                        device: variable.device.clone(),
                        ..all[0].clone()
                    };
                    Kept { variable: described, copies: Vec::new(), pieces: all }
                }
            });
        }
    }
    kept_once(applied, prefixes, &shared.own[0], &mut kept, &mut added);
    Ok((kept, added))
}

/// Adds what each optimizer keeps once to the state and to the added variables, unless the model has such a variable itself. All
/// workers have the same values.
pub(super) fn kept_once(
    applied: &[Applied],
    prefixes: &[String],
    own: &[Variable],
    kept: &mut Vec<Kept>,
    added: &mut Vec<Variable>,
) {
    let (mut of_workers, mut counts) = ([Vec::new(), Vec::new()], Vec::new());
    for (worker, prefix) in applied.iter().zip(prefixes) {
        let plain = |variable: &Variable| {
            let name = variable.name.strip_prefix(prefix.as_str()).unwrap_or(&variable.name).to_owned();
            (name, variable.clone())
        };
        if let Some(Powers { beta1, beta2 }) = &worker.powers {
            of_workers[0].push(plain(beta1));
            of_workers[1].push(plain(beta2));
        }
        counts.push(plain(&worker.global_step));
    }
    let is_known = |name: &str| own.iter().any(|variable| variable.name == name);
    let once = of_workers.into_iter().chain([counts]);
    for all in once.filter(|all| all.first().is_some_and(|(name, _)| !is_known(name))) {
        let (names, copies): (Vec<String>, Vec<Variable>) = all.into_iter().unzip();
        added.extend(copies.iter().cloned());
        kept.push(Kept {
            variable: Variable { name: names[0].clone(), ..copies[0].clone() },
            copies,
            pieces: Vec::new(),
        });
    }
}

impl Shared<'_> {
    /// The parts of a trained variable: their workers, and their indices there. Pieces are in the order of their elements.
    fn parts_of(&self, place: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for (worker, parts) in self.parts.iter().enumerate() {
            for (at, part) in parts.iter().enumerate() {
                let order = match part.unit.map(|(unit, index)| (self.exchanges[unit].unit, index)) {
                    None => (part.variable.name == self.trained[worker][place].name).then_some(0),
                    Some((Unit::Owned { places, .. }, index)) => (places[index] == place).then_some(0),
                    Some((Unit::Cut { place: own, .. }, index)) => (*own == place).then_some(index),
                };
                found.extend(order.map(|order| (order, worker, at)));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, worker, at)| (worker, at)).collect()
    }
}
