//! The devices of a placement by cost: their rates and memories, and the ways of values between them.

use std::collections::{BTreeMap, HashMap};

use meshtf_tensor::device::{DeviceFacts, DeviceKind, DeviceMemory, Rates, STREAMED_BYTES, Streamed, Task};

use super::{ByCost, LinkRate};

/// Nanoseconds of a node beside its arithmetic, on a CPU and on a GPU.
const CALL_NS: [u64; 2] = [200, 20_000];
/// The rates of a device that are not known.
const UNKNOWN: [Rates; 2] = [
    Rates { multiply_adds: 20_000_000_000, bytes: 10_000_000_000, streamed: None },
    Rates { multiply_adds: 1_000_000_000_000, bytes: 300_000_000_000, streamed: None },
];
/// The bytes that the caches of a processor hold: a value that is larger is read at the rate of its memory and, where reading is
/// not measured, so are all weights of a device that are larger together.
pub(super) const CACHED_BYTES: u64 = 32 << 20;
/// Where it is not measured: the memory of a processor is slower than its caches by this factor, and brings at most so many bytes
/// a second to a core.
const STREAMED_PART: u64 = 4;
const STREAMED_BY_CORE: u64 = 8_000_000_000;

/// The part of a memory that is used: the rest is for values of nodes that run beside each other, and for messages.
pub(in super::super) fn usable(bytes: u64) -> u64 {
    bytes / 4 * 3
}

/// The way of a value from one device to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    /// Nanoseconds until the first byte is there.
    pub latency: u64,
    /// Bytes a second; 0 for the device itself.
    pub rate: u64,
}

/// Between a CPU and a GPU of one process.
const IN_TASK: Way = Way { latency: 20_000, rate: 5_000_000_000 };
/// Between two processes of a machine.
pub(super) const IN_MACHINE: Way = Way { latency: 30_000, rate: 1_500_000_000 };
/// Between two machines: Ethernet of 1 Gbit/s.
const IN_MESH: Way = Way { latency: 200_000, rate: 117_000_000 };

/// Nanoseconds of the work for a message beside its bytes: an assumption.
const MESSAGE_NS: u64 = 10_000;

/// A latency that counts: a measured one may be that of a message that waited.
const MAX_LATENCY: u32 = 1_000_000_000;

impl Way {
    /// Nanoseconds until a value of so many bytes is there.
    pub fn time(self, bytes: u64) -> u64 {
        if self.rate == 0 { 0 } else { self.latency.saturating_add(ns(bytes, self.rate)) }
    }

    /// Nanoseconds for which a value of so many bytes keeps others from being sent.
    pub fn occupied(self, bytes: u64) -> u64 {
        if self.rate == 0 { 0 } else { MESSAGE_NS.saturating_add(ns(bytes, self.rate)) }
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
pub(super) fn ns(amount: u64, rate: u64) -> u64 {
    (u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1))).min(u128::from(u64::MAX >> 8)) as u64
}

/// A device with what a step of it shares with others.
#[derive(Clone, Debug)]
pub(super) struct Processor {
    /// Multiply-adds, bytes in its caches, and bytes in its memory, a second.
    pub multiply_adds: u64,
    pub cached: u64,
    pub streamed: u64,
    /// Bytes of stored values that its caches keep between steps, a second; with the most that they keep. `None`: not measured.
    pub kept: Option<(u64, u64)>,
    pub call_ns: u64,
    /// The devices that compute one at a time: the CPU devices of a machine are one processor.
    pub clock: usize,
    /// The devices that share a memory: the CPU devices of a task.
    pub memory: usize,
}

impl Processor {
    /// Nanoseconds to read so many of the bytes that it stores, all of which a step reads once.
    pub fn reading(&self, bytes: u64, stored: u64) -> u64 {
        let Some((rate, most)) = self.kept else {
            // By assumption, the caches keep all or nothing until the next step.
            return ns(bytes, if stored > CACHED_BYTES { self.streamed } else { self.cached });
        };
        let part = u128::from(bytes) * u128::from(most) / u128::from(stored.max(most));
        let kept = if stored > most { part as u64 } else { bytes }.min(bytes);
        ns(kept, rate).saturating_add(ns(bytes - kept, self.streamed))
    }
}

pub(super) fn processors(devices: &[DeviceFacts], machines: &[usize]) -> (Vec<Processor>, Vec<Option<DeviceMemory>>) {
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
        let Rates { multiply_adds, bytes: cached, streamed } = device.capacity.rates.unwrap_or(UNKNOWN[kind]);
        // The additions of a GPU are measured with tensors that no cache holds.
        let by_cores = device.capacity.cores.map_or(u64::MAX, |cores| u64::from(cores) * STREAMED_BY_CORE);
        let assumed = if is_cpu { (cached / STREAMED_PART).min(by_cores) } else { cached };
        let kept = streamed.map(|streamed| (streamed.kept, STREAMED_BYTES[0]));
        let streamed = streamed.map_or(assumed, |Streamed { memory, .. }| memory);
        all.push(Processor { multiply_adds, cached, streamed, kept, call_ns: CALL_NS[kind], clock, memory });
    }
    (all, sizes)
}

/// The machine of each device, as a number.
pub(super) fn machines(devices: &[DeviceFacts], by_cost: &ByCost) -> Vec<usize> {
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

pub(super) fn ways(
    devices: &[DeviceFacts],
    machines: &[usize],
    master: &Task,
    links: &BTreeMap<Task, LinkRate>,
) -> Vec<Way> {
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
