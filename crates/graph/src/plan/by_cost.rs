//! Placement by cost: a device for each group of nodes that leaves a choice, so that a step is expected to end soonest, or the
//! steps of a series to follow each other most closely, and no device has to hold more than its memory.
//!
//! The choice is made for the whole graph, not for the nodes of one signature, so that variables are where they serve all of a
//! session's steps. What keeps state other than variables, uses files, or is in a loop of Enter and Exit stays where names put
//! it. Costs are estimates ([`work`]); a step is played through by them ([`schedule`]), and better choices are
//! looked for ([`search`]). The same graph and facts give the same choice.

mod devices;
mod measured;
mod order;
mod repeat;
mod schedule;
mod search;
mod sizes;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meshtf_tensor::device::{DeviceFacts, DeviceName, DeviceSpec, Task};
use serde::{Deserialize, Serialize};

pub(super) use self::devices::usable;
pub use self::measured::Measured;
use self::schedule::{Cost, Part, Player};
pub(super) use self::work::MAX_COPIED_BYTES;
use self::work::Problem;
use super::group::Groups;
use crate::{Graph, NodeId};

/// Most nodes of a graph that is placed by cost; a larger one is placed by names.
pub(super) const MAX_NODES: usize = 100_000;
/// A choice of several devices is expected to be faster than one device by at least this part, in percent: estimates differ
/// from what a run takes.
const GAIN_PERCENT: u64 = 10;
/// The master's device is preferred to another one that is expected to be faster by at most this part, in percent.
const NEAR_PERCENT: u64 = 5;

/// Most devices without which the next best choice is looked for, one at a time.
const MAX_LEFT_OUT: usize = 4;
/// Steps that run for so many nanoseconds have to save more than a change of devices costs.
const PAYS_WITHIN: u64 = 60_000_000_000;
/// The nanoseconds of a change of devices besides those of the bytes that are sent again: an assumption.
const CHANGE_NS: u64 = 1_000_000_000;

/// The rule by which nodes are placed whose requests several devices satisfy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PlaceBy {
    /// On the first of these devices: the master's if it is one of them.
    #[default]
    Names,
    /// Where a step is expected to end soonest, within the memory of the devices.
    Cost,
    /// Where most steps of a series are expected to end each second, within the memory of the devices: each device works on a
    /// step of its own, as in a pipeline. Only steps that do not wait for each other overlap so, as those of an inference.
    Throughput,
}

/// The facts, besides those of the devices, by which nodes are placed by cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByCost {
    /// The machine of each task, as a number; tasks that are not named have a machine of their own.
    pub machines: BTreeMap<Task, usize>,
    /// The device of variables and constants that were placed before, by the names of their nodes: they stay there.
    pub homes: BTreeMap<String, DeviceName>,
    /// The devices of nodes in a plan that runs, by the nodes' names: another choice is made only if it saves more within a
    /// minute of steps than the change costs, and at least a tenth of a step; or if less memory is lacking then, by a tenth of
    /// all variables and constants. Empty for a first plan.
    pub placed: BTreeMap<String, DeviceName>,
    /// The measured links of the master's task with others.
    pub links: BTreeMap<Task, LinkRate>,
    /// The times of nodes in steps that were traced.
    pub measured: Arc<Measured>,
    /// Whether to look for the next best choice, which takes up to twice as long again.
    pub compares: bool,
    /// Whether the steps of a series overlap, and are to follow each other as closely as possible ([`PlaceBy::Throughput`]).
    pub overlaps: bool,
}

/// A link of a task with another, as it was measured in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRate {
    /// The time that a message and its answer take.
    pub round_trip: Option<Duration>,
    /// Bytes a second of large values.
    pub bytes: Option<u64>,
}

/// The expectation of a placement by cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// The time of a step.
    pub step: Duration,
    /// The time from the end of a step to that of the next one, in a series of steps that overlap: as long as the device or
    /// the link takes that has most to do. `None` if the steps are not expected to overlap.
    pub interval: Option<Duration>,
    /// The best device for all nodes of the graph that leave a choice, and the time of the step with all of them there, or from
    /// one end to the next if steps overlap; `None` if none has the memory for them.
    pub alone: Option<(DeviceName, Duration)>,
    /// The time of a step with the devices of the plan that runs, or from one end to the next if steps overlap, if the choice is
    /// another one than that ([`ByCost::placed`]). It is not sent to clients.
    #[serde(skip)]
    pub before: Option<Duration>,
    /// The work of each device that has any, in the order of their names.
    pub devices: Vec<DeviceEstimate>,
    /// The chain of nodes and transfers that ends last: its parts together are the step.
    pub path: PathEstimate,
    /// The best other choice of devices among those that were compared and have the memory; `None` if there is none, or nobody
    /// asked.
    pub next: Option<NextBest>,
}

/// The expected work of a device in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceEstimate {
    /// The device.
    pub device: DeviceName,
    /// The time of nodes whose arithmetic takes longer than the bytes that they read and write.
    pub arithmetic: Duration,
    /// The time of the other nodes, which are bound by memory.
    pub memory: Duration,
    /// The time of the calls of kernels.
    pub calls: Duration,
    /// The time of the transfers to it, one after the other; it may compute meanwhile.
    pub receives: Duration,
}

impl DeviceEstimate {
    /// The time that the device computes.
    pub fn computes(&self) -> Duration {
        self.arithmetic + self.memory + self.calls
    }
}

/// The parts of the critical path of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathEstimate {
    /// The time of its nodes.
    pub computes: Duration,
    /// The time of its transfers.
    pub transfers: Duration,
    /// The number of transfers.
    pub crossings: u64,
}

/// Another choice of devices. Its step may take less time than that of the plan: devices are chosen for all nodes of the graph,
/// of which the step may run some, and a choice of several devices has to save at least a tenth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextBest {
    /// The devices with nodes that compute, in the order of their names.
    pub devices: Vec<DeviceName>,
    /// The time of a step; if steps overlap, that from one end to the next.
    pub step: Duration,
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

/// Chooses devices for the groups of a graph; `None` if it is too large for a search. `by_name` is the device of a request by
/// names. The estimate is of a step in which the nodes run for which `runs` holds.
pub(super) fn choose(
    graph: &Graph,
    groups: &Groups,
    devices: &[DeviceFacts],
    by_cost: &ByCost,
    by_name: impl FnMut(&DeviceSpec) -> Option<usize>,
    runs: impl Fn(NodeId) -> bool,
) -> Option<Chosen> {
    if graph.len() > MAX_NODES {
        return None;
    }
    let problem = Problem::of(graph, groups, devices, by_cost, by_name);
    let step = problem.without_nodes(|id| !runs(id));
    let mut player = Player::new(&problem);
    let mut play = |device: usize| (device, player.play(&problem.all_on(device)));
    let singles: Vec<(usize, Cost)> = problem.common.iter().map(|&device| play(device)).collect();
    let (alone, of_alone) = best_single(&singles, problem.default);
    let on_one = problem.all_on(alone);
    // The first value would not be on another processor before one device is done, and none has to cross.
    let is_short = of_alone.over == 0
        && of_alone.crossings == 0
        && of_alone.length() / 100 * (100 - GAIN_PERCENT) <= problem.least_latency();
    // On one processor, a division saves memory and no time.
    let is_one = of_alone.over == 0 && of_alone.crossings == 0 && problem.has_one_clock();
    let (units, other) = if is_short || is_one {
        (on_one.clone(), None)
    } else {
        let (split, of_split) = search::best(&problem, &mut player, &on_one, of_alone, search::BUDGET);
        let is_faster = of_split.length() < of_alone.length() / 100 * (100 - GAIN_PERCENT);
        let is_worth_it = of_split.over < of_alone.over || of_split.over == of_alone.over && is_faster;
        if is_worth_it { (split, None) } else { (on_one.clone(), Some(split)) }
    };
    let present = problem.present(graph, devices, &by_cost.placed, &units);
    let (units, before) = match present {
        Some(present) if pays((&problem, &mut player), &step, &present, &units) => (units, Some(present)),
        Some(present) => (present, None),
        None => (units, None),
    };
    let next = if by_cost.compares { next_best(&problem, &mut player, &units, other) } else { None };
    let of_node = graph.nodes().map(|(id, _)| problem.chosen(id, &units)).collect();
    let mut player = Player::new(&step);
    let ns = Duration::from_nanos;
    let of_step = player.play(&units);
    let (step, interval) = (ns(of_step.time), by_cost.overlaps.then(|| ns(of_step.interval)));
    let alone = (of_alone.over == 0).then(|| (devices[alone].name.clone(), ns(player.play(&on_one).length())));
    let before = before.map(|units| ns(player.play(&units).length()));
    let works = |of: &Part| *of != Part { receives: of.receives, ..Part::default() };
    let next = next.map(|units| {
        let (step, parts) = (ns(player.play(&units).length()), player.explain(&units).devices);
        let devices = devices.iter().zip(&parts).filter(|(_, part)| works(part));
        NextBest { devices: devices.map(|(device, _)| device.name.clone()).collect(), step }
    });
    let explained = player.explain(&units);
    let of_device = |(device, part): (&DeviceFacts, &Part)| DeviceEstimate {
        device: device.name.clone(),
        arithmetic: ns(part.arithmetic),
        memory: ns(part.memory),
        calls: ns(part.calls),
        receives: ns(part.receives),
    };
    let parts = devices.iter().zip(&explained.devices).filter(|(_, part)| **part != Part::default());
    let path = PathEstimate {
        computes: ns(explained.computes),
        transfers: ns(explained.transfers),
        crossings: explained.crossings,
    };
    let devices = parts.map(of_device).collect();
    Some(Chosen { of_node, estimate: Estimate { step, interval, alone, before, devices, path, next } })
}

/// Whether a plan that runs on some devices is to be changed to others: for memory, if at least a tenth of all that is stored is
/// lacking less, or since its steps then save more than the change costs. The memory is that of the whole graph, the time that
/// of the step. Variables and constants that are elsewhere then count as sent by the master.
fn pays<'a>(
    (problem, player): (&'a Problem, &mut Player<'a>),
    step: &Problem,
    present: &[usize],
    other: &[usize],
) -> bool {
    let (lacks, lacked) = (player.play(present).over, player.play(other).over);
    if lacked != lacks && lacks.abs_diff(lacked) >= problem.all_stored() / 10 {
        return lacked < lacks;
    }
    let mut player = Player::new(step);
    let (now, then) = (player.play(present), player.play(other));
    let saved = now.length().saturating_sub(then.length());
    let in_time = u128::from(PAYS_WITHIN) * u128::from(saved) / u128::from(now.length().max(1));
    let moved = present.iter().zip(other).zip(&problem.stored).filter(|((from, to), _)| from != to);
    let sent = moved.map(|((_, &to), &bytes)| problem.way(problem.default, to).occupied(bytes));
    let costs = sent.fold(CHANGE_NS, u64::saturating_add);
    saved > now.length() / 100 * GAIN_PERCENT && in_time > u128::from(costs)
}

/// The best choice besides `chosen` that fits into the memories: of all on one device, of `other`, and of the best without one of
/// the first devices of the chosen.
fn next_best<'a>(
    problem: &'a Problem,
    player: &mut Player<'a>,
    chosen: &[usize],
    other: Option<Vec<usize>>,
) -> Option<Vec<usize>> {
    let alone = problem.common.iter().map(|&device| problem.all_on(device));
    let mut all: Vec<(Cost, Vec<usize>)> = alone.chain(other).map(|units| (player.play(&units), units)).collect();
    let mut used: Vec<usize> = chosen.iter().copied().filter(|device| problem.common.contains(device)).collect();
    used.sort_unstable();
    used.dedup();
    // Without its only device, a choice is one of the others alone or divided; those alone are there already.
    for &device in used.iter().take(MAX_LEFT_OUT).filter(|_| problem.common.len() > 2) {
        let rest = problem.without(device);
        let mut player = Player::new(&rest);
        let first = rest.all_on(rest.common[0]);
        let of_first = player.play(&first);
        let (units, cost) = search::best(&rest, &mut player, &first, of_first, search::BUDGET / MAX_LEFT_OUT);
        all.push((cost, units));
    }
    all.retain(|(cost, units)| cost.over == 0 && units != chosen);
    all.into_iter().min_by_key(|(cost, _)| *cost).map(|(_, units)| units)
}

/// The device that serves best alone: the default one unless another is faster by more than [`NEAR_PERCENT`].
fn best_single(singles: &[(usize, Cost)], default: usize) -> (usize, Cost) {
    let least = |(device, cost): &&(usize, Cost)| (cost.over, cost.length(), *device != default);
    let best = singles.iter().min_by_key(least).copied().unwrap_or((default, Cost::default()));
    let own = singles.iter().find(|(device, _)| *device == default).copied().unwrap_or(best);
    let is_near =
        own.1.over == best.1.over && own.1.length() <= best.1.length().saturating_mul(100 + NEAR_PERCENT) / 100;
    if is_near { own } else { best }
}
