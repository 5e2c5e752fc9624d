//! The facts about a device: what placement may know of it besides its name.
//!
//! Facts are measured where the device is and travel with its node's description, so they may be old, and a peer may send
//! any number: [`Capacity::checked`] drops the implausible ones. No fact changes the result of a step.

use serde::{Deserialize, Serialize};

use super::DeviceName;

/// Most bytes of memory that a device is believed to have: 1 PiB.
pub const MAX_MEMORY_BYTES: u64 = 1 << 50;
/// Most cores that a device is believed to have.
pub const MAX_CORES: u32 = 1 << 16;
/// The highest rate that a device is believed to have, a second.
pub const MAX_RATE: u64 = 1 << 53;
/// The bytes of the smaller and the larger matrix with which reading is measured: caches keep all of the smaller one, or most,
/// and little of the larger one.
pub const STREAMED_BYTES: [u64; 2] = [16 << 20, 128 << 20];

/// A device as the planner knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its full name.
    pub name: DeviceName,
    /// The backend that serves it: `flex`, `ndarray`, `wgpu`; empty if it is unknown.
    pub backend: String,
    /// Its memory and processors.
    pub capacity: Capacity,
}

/// The memory and the processors of a device. `None`: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// The memory for values.
    pub memory: Option<DeviceMemory>,
    /// CPU: the number of threads on which its kernels compute at a time. Unknown for a GPU, whose cores are not comparable.
    pub cores: Option<u32>,
    /// Its measured rates. They follow the capacities on the wire, where a node of an earlier release does not look for them.
    #[serde(skip)]
    pub rates: Option<Rates>,
}

/// The rates of a device on tensors of float32, a second: the best of a few short measurements while its node started, and a
/// second later. They are lower if the machine was busy then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Multiply-adds of a product of two square matrices; an operation each, or two, as one counts.
    pub multiply_adds: u64,
    /// Bytes that an addition of two tensors, of 1 MiB each on a CPU and 128 MiB on a GPU, reads and writes.
    pub bytes: u64,
    /// Those of weights; `None` on a GPU, whose additions read memory, if there was no memory to measure them, and if the times
    /// were not plausible.
    pub streamed: Option<Streamed>,
}

/// The bytes of a matrix that products of a row with it read, a second: by two sizes of [`STREAMED_BYTES`], of each the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streamed {
    /// Of the smaller one.
    pub kept: u64,
    /// Of the bytes by which the other one is larger, in the time that it takes longer: those come from memory.
    pub memory: u64,
}

impl Rates {
    /// The best of two measurements.
    #[must_use]
    pub fn best(self, other: Rates) -> Rates {
        Rates {
            multiply_adds: self.multiply_adds.max(other.multiply_adds),
            bytes: self.bytes.max(other.bytes),
            streamed: self.streamed.or(other.streamed),
        }
    }
}

/// The memory of a device for values, in bytes. All CPU devices of a process share theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// All of it. CPU: the memory budget of the process.
    pub total: u64,
    /// The part that was not in use when it was last measured.
    pub free: u64,
}

impl DeviceFacts {
    /// A device of which only the name is known.
    pub fn unknown(name: DeviceName) -> DeviceFacts {
        DeviceFacts { name, backend: String::new(), capacity: Capacity::default() }
    }
}

impl Capacity {
    /// The same without numbers that no device has.
    #[must_use]
    pub fn checked(self) -> Capacity {
        let is_plausible =
            |memory: &DeviceMemory| (1..=MAX_MEMORY_BYTES).contains(&memory.total) && memory.free <= memory.total;
        let cores = self.cores.filter(|cores| (1..=MAX_CORES).contains(cores));
        let is_rate = |rate: &u64| (1..=MAX_RATE).contains(rate);
        let rates = self.rates.filter(|rates| is_rate(&rates.multiply_adds) && is_rate(&rates.bytes));
        let are_rates = |streamed: &Streamed| is_rate(&streamed.kept) && is_rate(&streamed.memory);
        let rates = rates.map(|rates| Rates { streamed: rates.streamed.filter(are_rates), ..rates });
        Capacity { memory: self.memory.filter(is_plausible), cores, rates }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_numbers_are_unknown() {
        let check = |total, free, cores, has_memory: bool, has_cores: bool| {
            let memory = Some(DeviceMemory { total, free });
            let checked = Capacity { memory, cores: Some(cores), rates: None }.checked();
            assert_eq!(checked.memory, memory.filter(|_| has_memory), "{total} {free}");
            assert_eq!(checked.cores, Some(cores).filter(|_| has_cores), "{cores}");
        };
        check(8 << 30, 3 << 30, 16, true, true);
        check(8 << 30, 8 << 30, 1, true, true);
        check(8 << 30, 0, MAX_CORES, true, true);
        check(MAX_MEMORY_BYTES, 1, MAX_CORES + 1, true, false);
        check(MAX_MEMORY_BYTES + 1, 1, 0, false, false);
        check(0, 0, u32::MAX, false, false);
        check(5, 6, 1, false, true);
        assert_eq!(Capacity::default().checked(), Capacity::default());

        let check = |multiply_adds, bytes, has_rates: bool| {
            let rates = Some(Rates { multiply_adds, bytes, streamed: Some(Streamed { kept: bytes, memory: bytes }) });
            let checked = Capacity { rates, ..Capacity::default() }.checked();
            assert_eq!(checked.rates, rates.filter(|_| has_rates), "{multiply_adds} {bytes}");
        };
        check(1, MAX_RATE, true);
        check(0, 5, false);
        check(5, MAX_RATE + 1, false);
        let of = |streamed| Rates { multiply_adds: 1, bytes: 1, streamed };
        let checked = |streamed| Capacity { rates: Some(of(streamed)), ..Capacity::default() }.checked().rates;
        let [good, bad] = [7, 0].map(|memory| Some(Streamed { kept: 7, memory }));
        assert_eq!(checked(good), Some(of(good)));
        assert_eq!(checked(bad), Some(of(None)), "the others count without it");
    }
}
