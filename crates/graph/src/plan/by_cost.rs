//! Placement by cost: a device for each group of nodes that leaves a choice, so that a step is expected to end soonest and no
//! device has to hold more than its memory.
//!
//! The choice is made for the whole graph, not for the nodes of one signature: a variable is thus on the same device for every
//! step of a session. Costs are estimates ([`work`]); a step is played through by them ([`schedule`]), and better choices are
//! looked for ([`search`]). The same graph and facts give the same choice.

mod schedule;
mod search;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

use meshtf_tensor::device::{DeviceFacts, DeviceName, Task};
use serde::{Deserialize, Serialize};

use self::schedule::{Cost, Player};
pub(super) use self::work::MAX_COPIED_BYTES;
use self::work::Problem;
use super::group::Groups;
use super::{PlanError, PlanOptions};
use crate::{Graph, NodeId};

/// A choice of several devices is expected to be faster than one device by at least this part, in percent: estimates differ
/// from what a run takes.
const GAIN_PERCENT: u64 = 10;
/// The master's device is preferred to another one that is expected to be faster by at most this part, in percent.
const NEAR_PERCENT: u64 = 5;

/// The facts, besides those of the devices, by which nodes are placed by cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByCost {
    /// The machine of each task, as a number; tasks that are not named have a machine of their own.
    pub machines: BTreeMap<Task, usize>,
    /// The device of nodes that were placed before: they stay there if it still exists.
    pub homes: BTreeMap<String, DeviceName>,
}

/// The expectation of a placement by cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// The time of a step.
    pub step: Duration,
    /// The best device that could hold all nodes of the graph that leave a choice, and the time of the step there; `None` if
    /// there is none with the memory for them.
    pub alone: Option<(DeviceName, Duration)>,
}

/// The devices that were chosen.
#[derive(Debug)]
pub(super) struct Chosen {
    /// By node: an index into the devices. Only for groups that leave a choice.
    of_node: Vec<Option<usize>>,
    pub estimate: Estimate,
}

impl Chosen {
    /// The device of a node, unless its request determines one.
    pub fn device(&self, node: NodeId) -> Option<usize> {
        self.of_node[node.index()]
    }
}

/// Chooses devices for the groups of a graph. The estimate is of a step in which the nodes run for which `runs` holds.
///
/// # Errors
/// TooLarge if the variables and constants do not fit into the memory of the devices.
pub(super) fn choose(
    graph: &Graph,
    groups: &Groups,
    devices: &[DeviceFacts],
    options: &PlanOptions,
    by_cost: &ByCost,
    runs: impl Fn(NodeId) -> bool,
) -> Result<Chosen, PlanError> {
    let mut problem = Problem::of(graph, groups, devices, options, by_cost);
    let mut player = Player::new(&problem);
    let singles: Vec<(usize, Cost)> =
        (0..devices.len()).map(|device| (device, player.play(&problem.all_on(device)))).collect();
    let (alone, of_alone) = best_single(&singles, problem.default);
    let (split, of_split) =
        if of_alone.over == 0 && of_alone.time / 100 * (100 - GAIN_PERCENT) <= problem.least_latency() {
            // The first value would not be there before it is done.
            (problem.all_on(alone), of_alone)
        } else {
            search::best(&problem, &mut player, &problem.all_on(alone), of_alone)
        };
    let is_worth_it = of_split.over < of_alone.over
        || of_split.over == of_alone.over && of_split.time < of_alone.time / 100 * (100 - GAIN_PERCENT);
    let units = if is_worth_it { split } else { problem.all_on(alone) };
    if let Some(lacking) = problem.lacking(&units) {
        return Err(lacking);
    }
    let of_node = graph.nodes().map(|(id, _)| problem.chosen(id, &units)).collect();
    problem.leave_out(|id| !runs(id));
    let mut player = Player::new(&problem);
    let mut time = |units: &[usize]| Duration::from_nanos(player.play(units).time);
    let step = time(&units);
    let alone = (of_alone.over == 0).then(|| (devices[alone].name.clone(), time(&problem.all_on(alone))));
    Ok(Chosen { of_node, estimate: Estimate { step, alone } })
}

/// The device that serves best alone: the default one unless another is faster by more than [`NEAR_PERCENT`].
fn best_single(singles: &[(usize, Cost)], default: usize) -> (usize, Cost) {
    let best =
        *singles.iter().min_by_key(|(device, cost)| (cost.over, cost.time, *device != default)).expect("a device");
    let own = singles[default];
    let is_near = own.1.over == best.1.over && own.1.time <= best.1.time.saturating_mul(100 + NEAR_PERCENT) / 100;
    if is_near { own } else { best }
}
