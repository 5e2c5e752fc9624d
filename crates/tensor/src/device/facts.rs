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
        Capacity { memory: self.memory.filter(is_plausible), cores }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_numbers_are_unknown() {
        let check = |total, free, cores, has_memory: bool, has_cores: bool| {
            let memory = Some(DeviceMemory { total, free });
            let checked = Capacity { memory, cores: Some(cores) }.checked();
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
    }
}
