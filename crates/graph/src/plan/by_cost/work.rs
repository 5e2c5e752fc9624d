//! The work of a step: the nodes of a graph in topological order, their estimated times on each device, the bytes between
//! them, and the units that have one device.

use std::collections::{BTreeMap, HashMap};

use meshtf_tensor::DType;
use meshtf_tensor::device::{DeviceFacts, DeviceKind, DeviceMemory, Rates, Task};

use super::super::group::Groups;
use super::super::{PlanError, PlanOptions};
use super::ByCost;
use crate::op::Role;
use crate::operations::operations;
use crate::{Graph, NodeId, Output};

/// Most bytes of a constant that is copied to each device that uses it.
pub(in super::super) const MAX_COPIED_BYTES: u64 = 64 << 10;

/// Nanoseconds of a node beside its arithmetic, on a CPU and on a GPU.
const CALL_NS: [u64; 2] = [1_000, 20_000];
/// The rates of a device that are not known.
const UNKNOWN: [Rates; 2] = [
    Rates { multiply_adds: 20_000_000_000, bytes: 10_000_000_000 },
    Rates { multiply_adds: 1_000_000_000_000, bytes: 300_000_000_000 },
];

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

impl Way {
    /// Nanoseconds until a value of so many bytes is there.
    pub fn time(self, bytes: u64) -> u64 {
        if self.rate == 0 { 0 } else { self.latency.saturating_add(ns(bytes, self.rate)) }
    }
}

/// Nanoseconds for an amount at a rate a second.
fn ns(amount: u64, rate: u64) -> u64 {
    (u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1))).min(u128::from(u64::MAX >> 8)) as u64
}

/// A device with what a step of it shares with others.
#[derive(Clone, Debug)]
pub(super) struct Processor {
    rates: Rates,
    call_ns: u64,
    /// The devices that compute one at a time: the CPU devices of a machine are one processor.
    pub clock: usize,
    /// The devices that share a memory: the CPU devices of a task.
    pub memory: usize,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub unit: usize,
    /// The jobs whose values it takes, with the bytes of each value; 0 for a control input.
    pub inputs: Vec<(usize, u64)>,
    /// The number of inputs of other jobs that are this one.
    pub consumers: u32,
    /// The bytes of its outputs, which it makes.
    pub makes: u64,
    /// Multiply-adds, and the bytes that it reads and writes; `None` if it computes nothing.
    pub work: Option<(u64, u64)>,
    /// Its value comes from the master when a step begins.
    pub is_fed: bool,
    /// Its output is a result of the step.
    pub is_result: bool,
}

/// The nodes and devices.
pub(super) struct Problem {
    /// In topological order, except for the back edges of loops, which are left out.
    pub jobs: Vec<Job>,
    /// The position of each node among the jobs.
    at: Vec<usize>,
    /// For each unit, the devices of which one is to be chosen; ascending, at least one.
    pub candidates: Vec<Vec<usize>>,
    /// For each unit, the bytes of its variables and constants.
    pub stored: Vec<u64>,
    /// The units whose nodes have a choice and neither request nor home.
    is_open: Vec<bool>,
    pub processors: Vec<Processor>,
    /// The ways between devices, by row and column.
    ways: Vec<Way>,
    /// The bytes of each memory that are free, or have resources of this graph; `None` if unknown.
    pub memories: Vec<Option<u64>>,
    /// All bytes of each memory.
    totals: Vec<Option<u64>>,
    /// The master's device.
    pub default: usize,
    names: Vec<String>,
}

impl Problem {
    pub fn of(
        graph: &Graph,
        groups: &Groups,
        devices: &[DeviceFacts],
        options: &PlanOptions,
        by_cost: &ByCost,
    ) -> Problem {
        let (processors, sizes) = processors(devices, by_cost);
        let order = in_order(graph);
        let mut at = vec![0; graph.len()];
        order.iter().enumerate().for_each(|(place, id)| at[id.index()] = place);
        let default = devices.iter().position(|device| device.name == options.default_device);
        let default =
            default.or_else(|| devices.iter().position(|device| device.name.task == options.default_device.task));
        let default = default.unwrap_or(0);

        let mut units = Units::of(graph, groups, &order);
        let mut problem = Problem {
            jobs: Vec::with_capacity(order.len()),
            at,
            candidates: Vec::new(),
            stored: Vec::new(),
            is_open: Vec::new(),
            processors,
            ways: ways(devices, by_cost),
            memories: sizes.iter().map(|size| size.map(|size| size.free)).collect(),
            totals: sizes.iter().map(|size| size.map(|size| size.total)).collect(),
            default,
            names: devices.iter().map(|device| device.name.to_string()).collect(),
        };
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        for &id in &order {
            let root = units.find(groups.find(id).index());
            let unit = *numbers.entry(root).or_insert_with(|| {
                problem.add_unit(candidates(groups, NodeId(root as u32), devices));
                problem.stored.len() - 1
            });
            let (job, stored) = problem.job(graph, id, unit);
            if let Some(home) = by_cost.homes.get(&graph.node(id).name)
                && let Some(device) = devices.iter().position(|device| device.name == *home)
                && problem.candidates[unit].contains(&device)
            {
                problem.candidates[unit] = vec![device];
                let room = &mut problem.memories[problem.processors[device].memory];
                *room = room.map(|room| room.saturating_add(stored));
            }
            problem.stored[unit] = problem.stored[unit].saturating_add(stored);
            problem.jobs.push(job);
        }
        problem.count_consumers();
        problem
    }

    fn add_unit(&mut self, candidates: Vec<usize>) {
        self.is_open.push(candidates.len() > 1);
        // A request that no device satisfies is refused elsewhere.
        self.candidates.push(if candidates.is_empty() { vec![self.default] } else { candidates });
        self.stored.push(0);
    }

    /// The job of a node, and the bytes that it stores between steps.
    fn job(&self, graph: &Graph, id: NodeId, unit: usize) -> (Job, u64) {
        let node = graph.node(id);
        let role = node.op.role;
        let outputs = || (0..node.outputs.len() as u32).map(|port| bytes_of(graph, Output { node: id, port }));
        let size = || outputs().fold(0u64, u64::saturating_add);
        let stored = match role {
            Role::Const => size(),
            _ if node.op.makes_variable => variable_bytes(graph, id),
            _ => 0,
        };
        let mut inputs: Vec<(usize, u64)> = Vec::with_capacity(node.inputs.len() + node.control.len());
        let mut reads = 0u64;
        for &input in &node.inputs {
            let from = graph.node(input.node);
            if from.op.role.leads_back(role) {
                continue;
            }
            let bytes = bytes_of(graph, input);
            reads = reads.saturating_add(bytes);
            let is_copied = from.op.role == Role::Const && bytes <= MAX_COPIED_BYTES;
            if !is_copied {
                inputs.push((self.at[input.node.index()], bytes));
            }
        }
        inputs.extend(node.control.iter().map(|before| (self.at[before.index()], 0)));
        let is_still = role != Role::Compute || node.op.makes_variable || node.op.reads_variable;
        let work = (!is_still).then(|| (operations(graph, id).unwrap_or(0) / 2, reads.saturating_add(size())));
        let makes = if is_still { 0 } else { size() };
        let is_fed = node.op.is_fed;
        (Job { unit, inputs, consumers: 0, makes, work, is_fed, is_result: false }, stored)
    }

    fn count_consumers(&mut self) {
        self.jobs.iter_mut().for_each(|job| job.consumers = 0);
        for at in 0..self.jobs.len() {
            for place in 0..self.jobs[at].inputs.len() {
                let from = self.jobs[at].inputs[place].0;
                self.jobs[from].consumers += 1;
            }
        }
        self.jobs.iter_mut().for_each(|job| job.is_result = job.consumers == 0 && job.makes > 0);
    }

    /// Nodes for which the condition holds do nothing.
    pub fn leave_out(&mut self, condition: impl Fn(NodeId) -> bool) {
        for (_, &at) in self.at.iter().enumerate().filter(|(node, _)| condition(NodeId(*node as u32))) {
            let job = &mut self.jobs[at];
            (job.inputs, job.makes, job.work, job.is_result) = (Vec::new(), 0, None, false);
        }
        self.count_consumers();
    }

    /// Nanoseconds of a job on a device.
    pub fn time(&self, job: &Job, device: usize) -> u64 {
        let Some((multiply_adds, bytes)) = job.work else { return 0 };
        let Processor { rates, call_ns, .. } = &self.processors[device];
        call_ns + ns(multiply_adds, rates.multiply_adds).max(ns(bytes, rates.bytes))
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
        self.candidates.iter().map(|of| if of.contains(&device) { device } else { self.preferred(of) }).collect()
    }

    /// The device among these that is taken without a reason for another one.
    pub fn preferred(&self, of: &[usize]) -> usize {
        if of.contains(&self.default) { self.default } else { of[0] }
    }

    /// The device of a node whose request leaves a choice.
    pub fn chosen(&self, id: NodeId, units: &[usize]) -> Option<usize> {
        let job = &self.jobs[self.at[id.index()]];
        self.is_open[job.unit].then(|| units[job.unit])
    }

    /// The error if a memory does not hold the variables and constants of its devices.
    pub fn lacking(&self, units: &[usize]) -> Option<PlanError> {
        let mut stored = vec![0u64; self.memories.len()];
        for (unit, &device) in units.iter().enumerate() {
            let of = &mut stored[self.processors[device].memory];
            *of = of.saturating_add(self.stored[unit]);
        }
        let over = |(of, stored): (&Option<u64>, &u64)| of.is_some_and(|memory| *stored > memory);
        if !self.totals.iter().zip(&stored).any(over) {
            return None;
        }
        let known = self
            .processors
            .iter()
            .zip(&self.names)
            .filter_map(|(of, name)| self.totals[of.memory].map(|memory| (name.clone(), memory)));
        Some(PlanError::TooLarge {
            needed: stored.iter().fold(0, |all, own| all.saturating_add(*own)),
            devices: known.collect(),
        })
    }
}

#[cfg(test)]
impl Problem {
    pub fn unit_of(&self, id: NodeId) -> usize {
        self.jobs[self.at[id.index()]].unit
    }

    /// All devices are connected as the processes of one machine are.
    pub fn connect_fast(&mut self) {
        self.ways.iter_mut().filter(|way| way.rate > 0).for_each(|way| *way = IN_MACHINE);
    }
}

/// Bytes of a value of a step, with 1 for each size that is not known.
fn bytes_of(graph: &Graph, output: Output) -> u64 {
    let ty = graph.output_type(output);
    let (Some(size), false) = (ty.dtype.size(), ty.dtype.is_handle()) else { return 0 };
    let shape = graph.shapes().of(output);
    let sizes = shape.0.as_deref().unwrap_or_default();
    sizes.iter().fold(size as u64, |bytes, size| bytes.saturating_mul(size.unwrap_or(1) as u64))
}

fn variable_bytes(graph: &Graph, id: NodeId) -> u64 {
    let attrs = &graph.node(id).attrs;
    let size = attrs.dtype("dtype").ok().and_then(DType::size).unwrap_or(0) as u64;
    let Ok(shape) = attrs.shape("shape") else { return 0 };
    shape.0.iter().flatten().fold(size, |bytes, size| bytes.saturating_mul(size.unwrap_or(1) as u64))
}

/// The devices that satisfy the request of a group.
fn candidates(groups: &Groups, root: NodeId, devices: &[DeviceFacts]) -> Vec<usize> {
    let spec = &groups.specs[root.index()].spec;
    (0..devices.len()).filter(|&device| devices[device].name.matches(spec)).collect()
}

fn processors(devices: &[DeviceFacts], by_cost: &ByCost) -> (Vec<Processor>, Vec<Option<DeviceMemory>>) {
    let mut clocks: HashMap<(usize, bool, u32), usize> = HashMap::new();
    let mut memories: HashMap<(&Task, Option<u32>), usize> = HashMap::new();
    let mut sizes = Vec::new();
    let machines = machines(devices, by_cost);
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
        let rates = device.capacity.rates.unwrap_or(UNKNOWN[kind]);
        all.push(Processor { rates, call_ns: CALL_NS[kind], clock, memory });
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

fn ways(devices: &[DeviceFacts], by_cost: &ByCost) -> Vec<Way> {
    let machines = machines(devices, by_cost);
    let mut ways = Vec::with_capacity(devices.len() * devices.len());
    for (from, of_from) in devices.iter().enumerate() {
        for (to, of_to) in devices.iter().enumerate() {
            ways.push(match () {
                () if from == to => Way::default(),
                () if of_from.name.task == of_to.name.task => IN_TASK,
                () if machines[from] == machines[to] => IN_MACHINE,
                () => IN_MESH,
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
    let mut ready: std::collections::BTreeSet<u32> =
        (0..graph.len() as u32).filter(|&id| open[id as usize] == 0).collect();
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

/// Groups that have one device by choice: those with nodes in one loop. A group with a request stays apart.
struct Units {
    parents: Vec<usize>,
}

impl Units {
    fn of(graph: &Graph, groups: &Groups, order: &[NodeId]) -> Units {
        let mut units = Units { parents: (0..graph.len()).collect() };
        // For each node, the outermost loop that its outputs are in, as one of its nodes; and how deep they are in it.
        let mut inside: Vec<Option<(usize, u32)>> = vec![None; graph.len()];
        let mut named: HashMap<&str, usize> = HashMap::new();
        for &id in order {
            let node = graph.node(id);
            let own = groups.find(id).index();
            let before = node.inputs.iter().map(|input| input.node).chain(node.control.iter().copied());
            let around = before.filter_map(|from| inside[from.index()]).max_by_key(|&(_, depth)| depth);
            let frame = match (node.op.role, around) {
                (Role::Enter, None) => {
                    let name = node.attrs.str("frame_name").unwrap_or_default();
                    Some((*named.entry(name).or_insert(own), 1))
                }
                (Role::Enter, Some((of, depth))) => Some((of, depth + 1)),
                (_, around) => around,
            };
            let Some((of, depth)) = frame else { continue };
            let is_free = |root: usize| groups.specs[root].spec.is_open();
            if is_free(own) && is_free(of) {
                units.union(own, of);
            }
            let depth = if node.op.role == Role::Exit { depth - 1 } else { depth };
            inside[id.index()] = (depth > 0).then_some((of, depth));
        }
        units
    }

    fn find(&mut self, mut at: usize) -> usize {
        while self.parents[at] != at {
            self.parents[at] = self.parents[self.parents[at]];
            at = self.parents[at];
        }
        at
    }

    /// The smaller number stays the root.
    fn union(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.parents[a.max(b)] = a.min(b);
    }
}
