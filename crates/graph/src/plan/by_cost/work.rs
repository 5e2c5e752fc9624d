//! The work of a step: the nodes of a graph in topological order, their estimated times on each device, the bytes between
//! them, and the units that have one device.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use meshtf_tensor::device::{DeviceFacts, DeviceName, DeviceSpec};

use super::super::group::Groups;
use super::ByCost;
use super::devices::{CACHED_BYTES, Processor, Way, machines, ns, processors, usable, ways};
use super::measured::{Factors, corrected};
use super::order::{in_loops, in_order};
use super::repeat::Repeats;
use super::schedule::Part;
use super::sizes::{Depth, Sizes};
use crate::op::Role;
use crate::{Graph, NodeId};

/// Most bytes of a constant that is copied to each device that uses it.
pub(in super::super) const MAX_COPIED_BYTES: u64 = 64 << 10;

/// Most devices of which one is chosen for a request: the master's and the fastest others. As many more, if a plan that runs has
/// nodes on them.
const MAX_CANDIDATES: usize = 16;

/// A value that a job takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// The job that makes it.
    pub from: usize,
    /// Its output; [`CONTROL`] for a control input.
    pub port: u32,
    pub bytes: u64,
    /// How often it is taken in a step; 0 if the one node or the other does not run.
    pub times: u64,
}

/// The port of a control input.
const CONTROL: u32 = u32::MAX;

/// The work of a node in a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Its op, as an index into the ops that compute.
    op: usize,
    /// The kernels that it calls.
    calls: u64,
    multiply_adds: u64,
    /// The bytes of stored values that it reads.
    stored: u64,
    /// The other bytes that it reads, and those that it writes.
    passing: u64,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub unit: usize,
    pub inputs: Vec<Taken>,
    /// The number of inputs of other jobs that are this one.
    pub consumers: u32,
    /// The bytes of its outputs, which it makes.
    pub makes: u64,
    /// The bytes of values inside of a function that it calls.
    pub inside: u64,
    /// The bytes that it puts where they stay until the step ends.
    pub piles: u64,
    /// `None` if it computes nothing.
    pub work: Option<Work>,
    /// How often it runs in a step.
    pub runs: u64,
    /// Its value comes from the master when a step begins.
    pub is_fed: bool,
    /// Its output is a result of the step.
    pub is_result: bool,
}

/// The nodes and devices. A unit is a group of nodes that have one device.
#[derive(Clone)]
pub(super) struct Problem {
    /// In topological order, except for the back edges of loops, which are left out.
    pub jobs: Vec<Job>,
    /// The position of each node among the jobs.
    at: Vec<usize>,
    /// For each unit, the devices of which one is to be chosen; ascending, at least one.
    pub candidates: Vec<Rc<[usize]>>,
    /// For each unit, the device by names, or the one where it was.
    names: Vec<usize>,
    /// For each unit, the bytes of its variables and constants.
    pub stored: Vec<u64>,
    /// By node: whether its first output is a variable or a constant, or only passes one on.
    is_stored: Vec<bool>,
    /// The units that leave a choice, but for variables that were placed before.
    is_open: Vec<bool>,
    pub processors: Vec<Processor>,
    /// By op that computes, and by device: the factors of its estimates.
    factors: Vec<Option<Factors>>,
    /// The ways between devices, by row and column.
    ways: Vec<Way>,
    /// The bytes of each memory that are free, or have variables or constants of this graph, as far as they are used; `None` if
    /// unknown.
    pub memories: Vec<Option<u64>>,
    /// The master's device.
    pub default: usize,
    /// The devices that nodes without a request may have.
    pub common: Rc<[usize]>,
    /// Whether steps of a series overlap.
    pub overlaps: bool,
}

impl Problem {
    pub fn of(
        graph: &Graph,
        groups: &Groups,
        devices: &[DeviceFacts],
        by_cost: &ByCost,
        mut by_name: impl FnMut(&DeviceSpec) -> Option<usize>,
    ) -> Problem {
        let machines = machines(devices, by_cost);
        let (processors, memories) = processors(devices, &machines);
        let order = in_order(graph);
        let sizes = Sizes::of(graph);
        let mut depth = Depth::default();
        let mut at = vec![0; graph.len()];
        order.iter().enumerate().for_each(|(place, id)| at[id.index()] = place);
        let default = by_name(&DeviceSpec::default()).unwrap_or(0);
        let used = by_cost.placed.values().collect();
        let mut lists = Candidates { devices, default, used, lists: HashMap::new() };
        let mut problem = Problem {
            jobs: Vec::with_capacity(order.len()),
            at,
            candidates: Vec::new(),
            names: Vec::new(),
            stored: Vec::new(),
            is_stored: vec![false; graph.len()],
            is_open: Vec::new(),
            processors,
            factors: Vec::new(),
            ways: ways(devices, &machines, &devices[default].name.task, &by_cost.links),
            memories: memories.iter().map(|size| size.map(|size| usable(size.free))).collect(),
            default,
            common: lists.of(&DeviceSpec::default()),
            overlaps: by_cost.overlaps,
        };
        let is_movable = movable(graph, groups, &order);
        let users = only_users(graph);
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        let mut ops: HashMap<&str, usize> = HashMap::new();
        for &id in &order {
            // A constant of one node goes where that one is.
            let is_free = groups.is_single(id) && groups.requests[id.index()].is_open();
            let root = groups.find(users[id.index()].filter(|_| is_free).unwrap_or(id));
            let spec = &groups.specs[root.index()].spec;
            let unit = problem.with_its_input(graph, groups, id).unwrap_or_else(|| {
                *numbers.entry(root.index()).or_insert_with(|| {
                    let own = by_name(spec).unwrap_or(default);
                    let all = if is_movable[root.index()] { lists.of(spec) } else { Rc::from([own]) };
                    problem.is_open.push(all.len() > 1);
                    problem.candidates.push(if all.is_empty() { Rc::from([own]) } else { all });
                    problem.names.push(own);
                    problem.stored.push(0);
                    problem.stored.len() - 1
                })
            });
            let (mut job, stored) = problem.job(&sizes, id, unit, &mut depth);
            if let Some(work) = &mut job.work {
                let (op, next) = (graph.node(id).op.name, ops.len());
                work.op = *ops.entry(op).or_insert_with(|| {
                    let of = |device: &DeviceFacts| by_cost.measured.of(&device.backend, op).copied();
                    problem.factors.extend(devices.iter().map(of));
                    next
                });
            }
            let name = &graph.node(id).name;
            let is_home = by_cost.homes.contains_key(name);
            if let Some(home) = by_cost.homes.get(name).or_else(|| by_cost.placed.get(name))
                && (is_home || stored > 0)
                && problem.is_open[unit]
                && let Some(device) = devices.iter().position(|device| device.name == *home)
            {
                if is_home {
                    (problem.candidates[unit], problem.names[unit]) = (Rc::from([device]), device);
                }
                let memory = problem.processors[device].memory;
                let total = memories[memory].map(|size| usable(size.total));
                let room = &mut problem.memories[memory];
                *room = room.zip(total).map(|(room, total)| room.saturating_add(stored).min(total));
            }
            problem.stored[unit] = problem.stored[unit].saturating_add(stored);
            problem.jobs.push(job);
        }
        problem.count_consumers();
        problem.repeat(&sizes, by_cost);
        problem
    }

    /// Counts how often each job runs, by the times of the master's device.
    fn repeat(&mut self, sizes: &Sizes, by_cost: &ByCost) {
        let Some(mut repeats) = Repeats::find(sizes.graph, &sizes.shapes) else { return };
        let (default, stored) = (self.default, self.all_stored());
        let runs = repeats.runs(&by_cost.measured, |id| self.once(&self.jobs[self.at[id.index()]], default, stored));
        for (node, runs) in runs.into_iter().enumerate() {
            let job = &mut self.jobs[self.at[node]];
            job.runs = runs;
            job.piles = job.piles.saturating_mul(runs);
        }
        for at in 0..self.jobs.len() {
            for place in 0..self.jobs[at].inputs.len() {
                let from = self.jobs[at].inputs[place].from;
                self.jobs[at].inputs[place].times = self.jobs[at].runs.min(self.jobs[from].runs);
            }
        }
    }

    /// The unit of the only input of a node that passes it on and that nothing else binds.
    fn with_its_input(&self, graph: &Graph, groups: &Groups, id: NodeId) -> Option<usize> {
        let node = graph.node(id);
        let [input] = node.inputs[..] else { return None };
        let follows = node.op.role == Role::Forward && groups.is_single(id) && groups.requests[id.index()].is_open();
        let unit = self.jobs.get(self.at[input.node.index()]).filter(|_| follows)?.unit;
        self.is_open[unit].then_some(unit)
    }

    /// The job of a node, and the bytes that it stores between steps.
    fn job(&mut self, sizes: &Sizes, id: NodeId, unit: usize, depth: &mut Depth) -> (Job, u64) {
        let graph = sizes.graph;
        let node = graph.node(id);
        let role = node.op.role;
        let stored = match role {
            Role::Const => sizes.made(id),
            _ if node.op.makes_variable => sizes.variable(id),
            _ => 0,
        };
        let mut inputs: Vec<Taken> = Vec::with_capacity(node.inputs.len() + node.control.len());
        let passes_on = role == Role::Forward || node.op.reads_variable;
        let first = node.inputs.first().is_some_and(|input| input.port == 0 && self.is_stored[input.node.index()]);
        self.is_stored[id.index()] = role == Role::Const || node.op.makes_variable || passes_on && first;
        let (mut of_stored, mut of_passing) = (0u64, 0u64);
        for &input in &node.inputs {
            let from = graph.node(input.node);
            if from.op.role.leads_back(role) {
                continue;
            }
            let bytes = sizes.bytes(input);
            let is_stored = input.port == 0 && self.is_stored[input.node.index()];
            let read = if is_stored { &mut of_stored } else { &mut of_passing };
            *read = read.saturating_add(bytes);
            let is_copied = from.op.role == Role::Const && from.control.is_empty() && bytes <= MAX_COPIED_BYTES;
            if !is_copied {
                inputs.push(Taken { from: self.at[input.node.index()], port: input.port, bytes, times: 1 });
            }
        }
        let control = node.control.iter();
        inputs.extend(control.map(|before| Taken { from: self.at[before.index()], port: CONTROL, bytes: 0, times: 1 }));
        let mut job = Job { unit, inputs, piles: sizes.piled(id), runs: 1, is_fed: node.op.is_fed, ..Job::default() };
        if Sizes::computes(node) {
            let once = sizes.once(id, depth);
            let passing = of_passing.saturating_add(once.bytes);
            let (calls, multiply_adds) = (once.calls, once.multiply_adds);
            job.work = Some(Work { op: 0, calls, multiply_adds, stored: of_stored, passing });
            (job.makes, job.inside) = (sizes.made(id), once.peak);
        }
        (job, stored)
    }

    fn count_consumers(&mut self) {
        self.jobs.iter_mut().for_each(|job| job.consumers = 0);
        for at in 0..self.jobs.len() {
            for place in 0..self.jobs[at].inputs.len() {
                let from = self.jobs[at].inputs[place].from;
                self.jobs[from].consumers += 1;
            }
        }
        self.jobs.iter_mut().for_each(|job| job.is_result = job.consumers == 0 && job.makes > 0);
    }

    /// The same, in which nodes that compute, and for which the condition holds, do nothing.
    pub fn without_nodes(&self, condition: impl Fn(NodeId) -> bool) -> Problem {
        let mut problem = self.clone();
        for (_, &at) in self.at.iter().enumerate().filter(|(node, _)| condition(NodeId(*node as u32))) {
            let job = &mut problem.jobs[at];
            if job.work.is_some() {
                *job = Job { unit: job.unit, ..Job::default() };
            }
        }
        problem.count_consumers();
        problem
    }

    /// Nanoseconds of all runs of a job on a device whose memory has so many bytes of stored values.
    pub fn time(&self, job: &Job, device: usize, stored: u64) -> u64 {
        self.once(job, device, stored).saturating_mul(job.runs)
    }

    /// The parts of that time.
    pub fn parts(&self, job: &Job, device: usize, stored: u64) -> Part {
        let Some(work) = job.work else { return Part::default() };
        let all = self.time(job, device, stored);
        let (calls, arithmetic, moves) = self.bounds(work, device, stored);
        let estimate = u128::from(calls.saturating_add(arithmetic.max(moves)).max(1));
        let calls = (u128::from(all) * u128::from(calls) / estimate) as u64;
        let rest = all.saturating_sub(calls);
        if arithmetic >= moves {
            Part { calls, arithmetic: rest, ..Part::default() }
        } else {
            Part { calls, memory: rest, ..Part::default() }
        }
    }

    /// Nanoseconds of the calls of one run of some work, of its arithmetic, and of the bytes that it moves.
    fn bounds(&self, work: Work, device: usize, stored: u64) -> (u64, u64, u64) {
        let processor = &self.processors[device];
        // A single value that is larger than the caches is new in each step: they keep nothing of it.
        let of_stored = processor.reading(work.stored, stored);
        let whole = if work.passing > CACHED_BYTES { processor.streamed } else { processor.cached };
        let moves = of_stored.saturating_add(ns(work.passing, whole));
        (work.calls.saturating_mul(processor.call_ns), ns(work.multiply_adds, processor.multiply_adds), moves)
    }

    /// Nanoseconds of one run of a job.
    fn once(&self, job: &Job, device: usize, stored: u64) -> u64 {
        let Some(work) = job.work else { return 0 };
        let (calls, arithmetic, moves) = self.bounds(work, device, stored);
        let estimate = calls.saturating_add(arithmetic.max(moves));
        let factors = &self.factors[work.op * self.processors.len() + device];
        factors.as_ref().map_or(estimate, |factors| corrected(estimate, factors))
    }

    /// Nanoseconds of one run of a node on a device whose steps read so many bytes of stored values; `None` if it computes
    /// nothing.
    pub fn estimate(&self, id: NodeId, device: usize, stored: u64) -> Option<u64> {
        let job = &self.jobs[self.at[id.index()]];
        job.work.map(|_| self.once(job, device, stored))
    }

    /// The bytes of stored values that a node reads.
    pub fn reads_stored(&self, id: NodeId) -> u64 {
        self.jobs[self.at[id.index()]].work.map_or(0, |work| work.stored)
    }

    /// Whether all devices of nodes without a request compute one at a time.
    pub fn has_one_clock(&self) -> bool {
        let mut clocks = self.common.iter().map(|&device| self.processors[device].clock);
        clocks.next().is_none_or(|first| clocks.all(|clock| clock == first))
    }

    /// The bytes of all variables and constants.
    pub fn all_stored(&self) -> u64 {
        self.stored.iter().fold(0, |all, &bytes| all.saturating_add(bytes))
    }

    pub fn way(&self, from: usize, to: usize) -> Way {
        self.ways[from * self.processors.len() + to]
    }

    /// Nanoseconds until a value can be on a device that computes beside the one that has it, or that it takes from a series of
    /// overlapping steps; the most there are, if there is none.
    pub fn least_latency(&self) -> u64 {
        let devices = self.processors.len();
        let pairs = (0..devices * devices).map(|pair| (pair / devices, pair % devices));
        let apart = pairs.filter(|&(from, to)| self.processors[from].clock != self.processors[to].clock);
        let least = |way: Way| if self.overlaps { way.occupied(0) } else { way.latency };
        apart.map(|(from, to)| least(self.way(from, to))).min().unwrap_or(u64::MAX)
    }

    /// The same without a device, for units that leave a choice.
    pub fn without(&self, device: usize) -> Problem {
        let mut problem = self.clone();
        let rest = |of: &Rc<[usize]>| of.iter().copied().filter(|&other| other != device).collect::<Rc<[usize]>>();
        for (candidates, name) in problem.candidates.iter_mut().zip(&mut problem.names) {
            let others = rest(candidates);
            if let (Some(&first), true) = (others.first(), candidates.len() > others.len()) {
                (*candidates, *name) = (others, if *name == device { first } else { *name });
            }
        }
        problem.common = rest(&self.common);
        problem
    }

    /// The devices of the units in a plan that runs, and those of `others` for units that it leaves out. `None` if there is no
    /// such plan, or a unit may not stay there.
    pub fn present(
        &self,
        graph: &Graph,
        devices: &[DeviceFacts],
        placed: &BTreeMap<String, DeviceName>,
        others: &[usize],
    ) -> Option<Vec<usize>> {
        let mut units = others.to_vec();
        let places: HashMap<&DeviceName, usize> = devices.iter().map(|device| &device.name).zip(0..).collect();
        for (id, node) in graph.nodes() {
            let unit = self.jobs[self.at[id.index()]].unit;
            let Some(place) = placed.get(&node.name).filter(|_| self.is_open[unit]) else { continue };
            units[unit] = places.get(place).copied().filter(|&device| self.may_have(unit, device))?;
        }
        (!placed.is_empty()).then_some(units)
    }

    /// The device of each unit if all that leave a choice are on `device`.
    pub fn all_on(&self, device: usize) -> Vec<usize> {
        (0..self.candidates.len()).map(|unit| self.settled(unit, device)).collect()
    }

    /// The device if a unit may have it, or else the one by names.
    pub fn settled(&self, unit: usize, device: usize) -> usize {
        if self.may_have(unit, device) { device } else { self.names[unit] }
    }

    pub fn may_have(&self, unit: usize, device: usize) -> bool {
        self.candidates[unit].binary_search(&device).is_ok()
    }

    /// The device of a node that leaves a choice.
    pub fn chosen(&self, id: NodeId, units: &[usize]) -> Option<usize> {
        let unit = self.jobs[self.at[id.index()]].unit;
        self.is_open[unit].then_some(units[unit])
    }
}

#[cfg(test)]
impl Problem {
    /// All devices are connected as the processes of one machine are.
    pub fn connect_fast(&mut self) {
        self.ways.iter_mut().filter(|way| way.rate > 0).for_each(|way| *way = super::devices::IN_MACHINE);
    }
}

/// For each constant without inputs and control inputs, the node that uses it, if it is the only one.
fn only_users(graph: &Graph) -> Vec<Option<NodeId>> {
    let mut users = vec![None; graph.len()];
    let mut has_several = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        for from in node.inputs.iter().map(|input| input.node.index()) {
            has_several[from] |= users[from].is_some_and(|user| user != id);
            users[from] = Some(id);
        }
    }
    for (id, node) in graph.nodes() {
        let is_generator = node.op.role == Role::Const && node.inputs.is_empty() && node.control.is_empty();
        if !is_generator || has_several[id.index()] {
            users[id.index()] = None;
        }
    }
    users
}

/// The devices that satisfy a request, of which one is to be chosen.
struct Candidates<'a> {
    devices: &'a [DeviceFacts],
    default: usize,
    /// Those of a plan that runs.
    used: HashSet<&'a DeviceName>,
    lists: HashMap<DeviceSpec, Rc<[usize]>>,
}

impl Candidates<'_> {
    /// The master's device and the fastest others, with those of a plan that runs, ascending.
    fn of(&mut self, spec: &DeviceSpec) -> Rc<[usize]> {
        if let Some(known) = self.lists.get(spec) {
            return Rc::clone(known);
        }
        let mut all: Vec<usize> =
            (0..self.devices.len()).filter(|&device| self.devices[device].name.matches(spec)).collect();
        let rate = |device: usize| self.devices[device].capacity.rates.map_or(0, |rates| rates.multiply_adds);
        all.sort_by_key(|&device| (device != self.default, Reverse(rate(device)), device));
        let slower = all.split_off(all.len().min(MAX_CANDIDATES)).into_iter();
        all.extend(slower.filter(|&device| self.used.contains(&self.devices[device].name)).take(MAX_CANDIDATES));
        all.sort_unstable();
        let list: Rc<[usize]> = all.into();
        self.lists.insert(spec.clone(), Rc::clone(&list));
        list
    }
}

/// By the roots of groups: whether the group may be on any device that satisfies its request. Of what keeps state only variables
/// are: other state may be shared in ways that the graph does not say. Loops stay together, where names put them.
fn movable(graph: &Graph, groups: &Groups, order: &[NodeId]) -> Vec<bool> {
    let mut is_movable = vec![true; graph.len()];
    let inside = in_loops(graph, order);
    let mut variables: HashMap<(&str, &str), NodeId> = HashMap::new();
    for (id, node) in graph.nodes() {
        let takes_state = || {
            let mut inputs = node.inputs.iter().zip(&node.input_refs);
            inputs.any(|(&input, &is_ref)| is_ref || graph.output_type(input).dtype.is_handle())
        };
        let root = groups.find(id).index();
        let binds = node.op.stateful && !node.op.makes_variable && !takes_state();
        if binds || node.op.uses_files || inside[id.index()] {
            is_movable[root] = false;
        }
        if node.op.makes_variable {
            let attr = |name| node.attrs.str(name).ok().filter(|text| !text.is_empty());
            let key = (attr("container").unwrap_or_default(), attr("shared_name").unwrap_or(&node.name));
            let other = *variables.entry(key).or_insert(id);
            if groups.find(other).index() != root {
                (is_movable[root], is_movable[groups.find(other).index()]) = (false, false);
            }
        }
    }
    is_movable
}
