//! The work of a step: the nodes of a graph in topological order, their estimated times on each device, the bytes between
//! them, and the units that have one device.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use meshtf_tensor::device::{DeviceFacts, DeviceKind, DeviceMemory, DeviceSpec, Rates, Task};
use meshtf_tensor::{DType, PartialShape};

use super::super::group::Groups;
use super::measured::{Factors, corrected};
use super::{ByCost, LinkRate};
use crate::op::Role;
use crate::operations::operations;
use crate::{Graph, NodeId, Output};

/// Most bytes of a constant that is copied to each device that uses it.
pub(in super::super) const MAX_COPIED_BYTES: u64 = 64 << 10;

/// Most devices of which one is chosen for a request: the master's and the fastest others.
const MAX_CANDIDATES: usize = 16;

/// Nanoseconds of a node beside its arithmetic, on a CPU and on a GPU.
const CALL_NS: [u64; 2] = [200, 20_000];
/// The rates of a device that are not known.
const UNKNOWN: [Rates; 2] = [
    Rates { multiply_adds: 20_000_000_000, bytes: 10_000_000_000 },
    Rates { multiply_adds: 1_000_000_000_000, bytes: 300_000_000_000 },
];
/// The bytes that the caches of a processor hold: what is larger is read at the rate of its memory.
const CACHED_BYTES: u64 = 32 << 20;
/// The memory of a processor is slower than its caches by this factor, and brings at most so many bytes a second to a core.
const STREAMED_PART: u64 = 4;
const STREAMED_BY_CORE: u64 = 8_000_000_000;

/// The part of a memory that is used: the rest is for values of nodes that run beside each other, and for messages.
fn usable(bytes: u64) -> u64 {
    bytes / 4 * 3
}

/// The way of a value from one device to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    /// Nanoseconds until the first byte is there.
    latency: u64,
    /// Bytes a second; 0 for the device itself.
    rate: u64,
}

/// Between a CPU and a GPU of one process.
const IN_TASK: Way = Way { latency: 20_000, rate: 5_000_000_000 };
/// Between two processes of a machine.
const IN_MACHINE: Way = Way { latency: 30_000, rate: 1_500_000_000 };
/// Between two machines: Ethernet of 1 Gbit/s.
const IN_MESH: Way = Way { latency: 200_000, rate: 117_000_000 };

/// A latency that counts: a measured one may be that of a message that waited.
const MAX_LATENCY: u32 = 1_000_000_000;

impl Way {
    /// Nanoseconds until a value of so many bytes is there.
    pub fn time(self, bytes: u64) -> u64 {
        if self.rate == 0 { 0 } else { self.latency.saturating_add(ns(bytes, self.rate)) }
    }

    /// The same with the figures of a link, as far as they were measured.
    fn measured(self, link: Option<&LinkRate>) -> Way {
        let Some(link) = link else { return self };
        let latency = link.round_trip.map_or(self.latency, |time| (time.as_nanos() / 2).min(MAX_LATENCY.into()) as u64);
        Way { latency: latency.max(1), rate: link.bytes.unwrap_or(self.rate).max(1) }
    }

    fn slower(self, other: Way) -> Way {
        Way { latency: self.latency.max(other.latency), rate: self.rate.min(other.rate) }
    }
}

/// Nanoseconds for an amount at a rate a second.
fn ns(amount: u64, rate: u64) -> u64 {
    (u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1))).min(u128::from(u64::MAX >> 8)) as u64
}

/// A device with what a step of it shares with others.
#[derive(Clone, Debug)]
pub(super) struct Processor {
    /// Multiply-adds, bytes in its caches, and bytes in its memory, a second.
    multiply_adds: u64,
    cached: u64,
    streamed: u64,
    call_ns: u64,
    /// The devices that compute one at a time: the CPU devices of a machine are one processor.
    pub clock: usize,
    /// The devices that share a memory: the CPU devices of a task.
    pub memory: usize,
}

/// A value that a job takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// The job that makes it.
    pub from: usize,
    /// Its output; [`CONTROL`] for a control input.
    pub port: u32,
    pub bytes: u64,
}

/// The port of a control input.
const CONTROL: u32 = u32::MAX;

/// The work of a node in a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Its op, as an index into the ops that compute.
    op: usize,
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
    /// `None` if it computes nothing.
    pub work: Option<Work>,
    /// Its value comes from the master when a step begins.
    pub is_fed: bool,
    /// Its output is a result of the step.
    pub is_result: bool,
}

/// The nodes and devices. A unit is a group of nodes that have one device.
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
    /// The bytes of each memory that are free, or have variables of this graph, as far as they are used; `None` if unknown.
    pub memories: Vec<Option<u64>>,
    /// The master's device.
    pub default: usize,
    /// The devices that nodes without a request may have.
    pub common: Rc<[usize]>,
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
        let (processors, sizes) = processors(devices, &machines);
        let order = in_order(graph);
        let mut at = vec![0; graph.len()];
        order.iter().enumerate().for_each(|(place, id)| at[id.index()] = place);
        let default = by_name(&DeviceSpec::default()).unwrap_or(0);
        let mut lists = Candidates { devices, default, lists: HashMap::new() };
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
            memories: sizes.iter().map(|size| size.map(|size| usable(size.free))).collect(),
            default,
            common: lists.of(&DeviceSpec::default()),
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
            let (mut job, stored) = problem.job(graph, id, unit);
            if let Some(work) = &mut job.work {
                let (op, next) = (graph.node(id).op.name, ops.len());
                work.op = *ops.entry(op).or_insert_with(|| {
                    let of = |device: &DeviceFacts| by_cost.measured.of(&device.backend, op).copied();
                    problem.factors.extend(devices.iter().map(of));
                    next
                });
            }
            if let Some(home) = by_cost.homes.get(&graph.node(id).name)
                && let Some(device) = devices.iter().position(|device| device.name == *home)
                && problem.is_open[unit]
            {
                (problem.candidates[unit], problem.names[unit]) = (Rc::from([device]), device);
                let memory = problem.processors[device].memory;
                let total = sizes[memory].map(|size| usable(size.total));
                let room = &mut problem.memories[memory];
                *room = room.zip(total).map(|(room, total)| room.saturating_add(stored).min(total));
            }
            problem.stored[unit] = problem.stored[unit].saturating_add(stored);
            problem.jobs.push(job);
        }
        problem.count_consumers();
        problem
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
    fn job(&mut self, graph: &Graph, id: NodeId, unit: usize) -> (Job, u64) {
        let node = graph.node(id);
        let role = node.op.role;
        let values = node.outputs.iter().enumerate().filter(|(_, output)| !output.is_ref);
        let size = || values.clone().map(|(port, _)| bytes_of(graph, Output { node: id, port: port as u32 }));
        let size = || size().fold(0u64, u64::saturating_add);
        let stored = match role {
            Role::Const => size(),
            _ if node.op.makes_variable => variable_bytes(graph, id),
            _ => 0,
        };
        let mut inputs: Vec<Taken> = Vec::with_capacity(node.inputs.len() + node.control.len());
        let passes_on = role == Role::Forward || node.op.reads_variable;
        let first = node.inputs.first().is_some_and(|input| input.port == 0 && self.is_stored[input.node.index()]);
        self.is_stored[id.index()] = role == Role::Const || node.op.makes_variable || passes_on && first;
        let mut work = Work::default();
        for &input in &node.inputs {
            let from = graph.node(input.node);
            if from.op.role.leads_back(role) {
                continue;
            }
            let bytes = bytes_of(graph, input);
            let is_stored = input.port == 0 && self.is_stored[input.node.index()];
            let read = if is_stored { &mut work.stored } else { &mut work.passing };
            *read = read.saturating_add(bytes);
            let is_copied = from.op.role == Role::Const && from.control.is_empty() && bytes <= MAX_COPIED_BYTES;
            if !is_copied {
                inputs.push(Taken { from: self.at[input.node.index()], port: input.port, bytes });
            }
        }
        let control = node.control.iter();
        inputs.extend(control.map(|before| Taken { from: self.at[before.index()], port: CONTROL, bytes: 0 }));
        let is_still = role != Role::Compute || node.op.makes_variable || node.op.reads_variable;
        let work = (!is_still).then(|| Work {
            multiply_adds: operations(graph, id).unwrap_or(0) / 2,
            passing: work.passing.saturating_add(size()),
            ..work
        });
        let makes = if is_still { 0 } else { size() };
        let is_fed = node.op.is_fed;
        (Job { unit, inputs, consumers: 0, makes, work, is_fed, is_result: false }, stored)
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

    /// Nodes that compute, and for which the condition holds, do nothing.
    pub fn leave_out(&mut self, condition: impl Fn(NodeId) -> bool) {
        for (_, &at) in self.at.iter().enumerate().filter(|(node, _)| condition(NodeId(*node as u32))) {
            let job = &mut self.jobs[at];
            if job.work.is_some() {
                *job = Job { unit: job.unit, ..Job::default() };
            }
        }
        self.count_consumers();
    }

    /// Nanoseconds of a job on a device whose memory has so many bytes of stored values.
    pub fn time(&self, job: &Job, device: usize, stored: u64) -> u64 {
        let Some(Work { op, multiply_adds, stored: own, passing }) = job.work else { return 0 };
        let processor = &self.processors[device];
        // A step reads all that is stored: if the caches do not hold all of it, they hold nothing of it at the next step.
        let moved = |bytes, of| ns(bytes, if of > CACHED_BYTES { processor.streamed } else { processor.cached });
        let moves = moved(own, stored).saturating_add(moved(passing, passing));
        let estimate = processor.call_ns + ns(multiply_adds, processor.multiply_adds).max(moves);
        let factors = &self.factors[op * self.processors.len() + device];
        factors.as_ref().map_or(estimate, |factors| corrected(estimate, factors))
    }

    /// Nanoseconds of a node on a device whose steps read so many bytes of stored values; `None` if it computes nothing.
    pub fn estimate(&self, id: NodeId, device: usize, stored: u64) -> Option<u64> {
        let job = &self.jobs[self.at[id.index()]];
        job.work.map(|_| self.time(job, device, stored))
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

    /// Nanoseconds until a value can be on a device that computes beside the one that has it; the most there are, if there is
    /// none.
    pub fn least_latency(&self) -> u64 {
        let devices = self.processors.len();
        let pairs = (0..devices * devices).map(|pair| (pair / devices, pair % devices));
        let apart = pairs.filter(|&(from, to)| self.processors[from].clock != self.processors[to].clock);
        apart.map(|(from, to)| self.way(from, to).latency).min().unwrap_or(u64::MAX)
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
        self.ways.iter_mut().filter(|way| way.rate > 0).for_each(|way| *way = IN_MACHINE);
    }
}

/// Bytes of a value of a step, with 1 for each size that is not known.
fn bytes_of(graph: &Graph, output: Output) -> u64 {
    let ty = graph.output_type(output);
    let (Some(size), false) = (ty.dtype.size(), ty.dtype.is_handle()) else { return 0 };
    bytes_at_least(size, &graph.shapes().of(output))
}

fn variable_bytes(graph: &Graph, id: NodeId) -> u64 {
    let attrs = &graph.node(id).attrs;
    let size = attrs.dtype("dtype").ok().and_then(DType::size).unwrap_or(0);
    attrs.shape("shape").map_or(0, |shape| bytes_at_least(size, shape))
}

/// Bytes of elements of this size, with 1 for each size of the shape that is not known.
fn bytes_at_least(size: usize, shape: &PartialShape) -> u64 {
    let sizes = shape.0.iter().flatten();
    sizes.fold(size as u64, |bytes, size| bytes.saturating_mul(size.unwrap_or(1) as u64))
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
    lists: HashMap<DeviceSpec, Rc<[usize]>>,
}

impl Candidates<'_> {
    /// The master's device and the fastest others, ascending.
    fn of(&mut self, spec: &DeviceSpec) -> Rc<[usize]> {
        if let Some(known) = self.lists.get(spec) {
            return Rc::clone(known);
        }
        let mut all: Vec<usize> =
            (0..self.devices.len()).filter(|&device| self.devices[device].name.matches(spec)).collect();
        let rate = |device: usize| self.devices[device].capacity.rates.map_or(0, |rates| rates.multiply_adds);
        all.sort_by_key(|&device| (device != self.default, Reverse(rate(device)), device));
        all.truncate(MAX_CANDIDATES);
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

/// Whether each node is in a loop of Enter and Exit, or at its border.
fn in_loops(graph: &Graph, order: &[NodeId]) -> Vec<bool> {
    let mut inside = vec![false; graph.len()];
    // How deep the outputs of each node are in loops.
    let mut depth = vec![0u32; graph.len()];
    for &id in order {
        let node = graph.node(id);
        let before = node.inputs.iter().map(|input| input.node).chain(node.control.iter().copied());
        let around = before.map(|from| depth[from.index()]).max().unwrap_or(0);
        depth[id.index()] = match node.op.role {
            Role::Enter => around + 1,
            Role::Exit => around.saturating_sub(1),
            _ => around,
        };
        inside[id.index()] = around > 0 || depth[id.index()] > 0;
    }
    inside
}

fn processors(devices: &[DeviceFacts], machines: &[usize]) -> (Vec<Processor>, Vec<Option<DeviceMemory>>) {
    let mut clocks: HashMap<(usize, bool, u32), usize> = HashMap::new();
    let mut memories: HashMap<(&Task, Option<u32>), usize> = HashMap::new();
    let mut sizes = Vec::new();
    let mut all = Vec::with_capacity(devices.len());
    for (place, device) in devices.iter().enumerate() {
        let is_cpu = device.name.kind == DeviceKind::Cpu;
        let kind = usize::from(!is_cpu);
        let own = if is_cpu { (machines[place], true, 0) } else { (place, false, device.name.index) };
        let next = clocks.len();
        let clock = *clocks.entry(own).or_insert(next);
        let memory =
            *memories.entry((&device.name.task, (!is_cpu).then_some(device.name.index))).or_insert_with(|| {
                sizes.push(device.capacity.memory);
                sizes.len() - 1
            });
        let Rates { multiply_adds, bytes: cached } = device.capacity.rates.unwrap_or(UNKNOWN[kind]);
        // The rate of a GPU is measured with tensors that no cache holds.
        let by_cores = device.capacity.cores.map_or(u64::MAX, |cores| u64::from(cores) * STREAMED_BY_CORE);
        let streamed = if is_cpu { (cached / STREAMED_PART).min(by_cores) } else { cached };
        all.push(Processor { multiply_adds, cached, streamed, call_ns: CALL_NS[kind], clock, memory });
    }
    (all, sizes)
}

/// The machine of each device, as a number.
fn machines(devices: &[DeviceFacts], by_cost: &ByCost) -> Vec<usize> {
    let mut next = by_cost.machines.values().max().map_or(0, |most| most + 1);
    let mut own: BTreeMap<&Task, usize> = by_cost.machines.iter().map(|(task, &machine)| (task, machine)).collect();
    let mut number = |task| {
        *own.entry(task).or_insert_with(|| {
            next += 1;
            next - 1
        })
    };
    devices.iter().map(|device| number(&device.name.task)).collect()
}

fn ways(devices: &[DeviceFacts], machines: &[usize], master: &Task, links: &BTreeMap<Task, LinkRate>) -> Vec<Way> {
    let mut ways = Vec::with_capacity(devices.len() * devices.len());
    // Of a link that is not the master's own: the slower one of the master's with both.
    let measured = |from: &Task, to: &Task, usual: Way| {
        let own = [from, to].into_iter().filter(|task| *task != master).map(|task| usual.measured(links.get(task)));
        own.reduce(Way::slower).unwrap_or(usual)
    };
    for (from, of_from) in devices.iter().enumerate() {
        for (to, of_to) in devices.iter().enumerate() {
            ways.push(match () {
                () if from == to => Way::default(),
                () if of_from.name.task == of_to.name.task => IN_TASK,
                () => {
                    let usual = if machines[from] == machines[to] { IN_MACHINE } else { IN_MESH };
                    measured(&of_from.name.task, &of_to.name.task, usual)
                }
            });
        }
    }
    ways
}

/// The nodes in topological order, those that are ready in the graph's order; nodes of a cycle that is no loop at the end.
fn in_order(graph: &Graph) -> Vec<NodeId> {
    let mut open = vec![0u32; graph.len()];
    let mut consumers: Vec<Vec<u32>> = vec![Vec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        let values = node.inputs.iter().map(|input| input.node);
        for from in values
            .filter(|&from| !graph.node(from).op.role.leads_back(node.op.role))
            .chain(node.control.iter().copied())
        {
            open[id.index()] += 1;
            consumers[from.index()].push(id.0);
        }
    }
    let mut order = Vec::with_capacity(graph.len());
    let mut ready: BTreeSet<u32> = (0..graph.len() as u32).filter(|&id| open[id as usize] == 0).collect();
    let mut is_done = vec![false; graph.len()];
    while let Some(id) = ready.pop_first() {
        is_done[id as usize] = true;
        order.push(NodeId(id));
        for &to in &consumers[id as usize] {
            open[to as usize] -= 1;
            if open[to as usize] == 0 {
                ready.insert(to);
            }
        }
    }
    order.extend((0..graph.len() as u32).filter(|&id| !is_done[id as usize]).map(NodeId));
    order
}
