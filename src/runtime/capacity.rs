//! The memory and the processors of a node's devices, as they are now.

use meshtf_tensor::device::{Capacity, DeviceKind, DeviceMemory};
use meshtf_tensor::memory::Budget;

/// The capacity of a device of a node with this budget, without rates. The memory of a CPU is the budget's, and unknown if it
/// has no limit: the machine's memory is shared with other programs. Of a GPU the drivers report nothing that is comparable.
pub(crate) fn now(kind: DeviceKind, budget: &Budget) -> Capacity {
    match kind {
        DeviceKind::Cpu => Capacity { memory: memory(budget), cores: cores(), rates: None },
        DeviceKind::Gpu => Capacity::default(),
    }
}

/// Whether the free memory has changed enough that peers should know: by an eighth of the total.
pub(crate) fn is_news(told: Capacity, now: Capacity) -> bool {
    match (told.memory, now.memory) {
        (Some(told), Some(now)) => told.total != now.total || told.free.abs_diff(now.free) > now.total / 8,
        (told, now) => told.is_some() != now.is_some(),
    }
}

fn memory(budget: &Budget) -> Option<DeviceMemory> {
    Some(DeviceMemory { total: budget.limit()? as u64, free: budget.free()? as u64 })
}

/// Kernels of a CPU device spread their work over as many threads as the process may use.
fn cores() -> Option<u32> {
    u32::try_from(std::thread::available_parallelism().ok()?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_cpu_is_the_budget() {
        let budget = Budget::of(64 << 30);
        let known = now(DeviceKind::Cpu, &budget);
        let memory = known.memory.expect("there is a budget");
        assert_eq!(memory.total, 64 << 30);
        assert!(memory.free <= memory.total && memory.free > 32 << 30, "{memory:?}");
        assert!(known.cores.is_some_and(|cores| cores > 0));
        assert_eq!(known, known.checked());
        assert_eq!(now(DeviceKind::Gpu, &budget), Capacity::default());
        assert_eq!(now(DeviceKind::Cpu, &Budget::default()).memory, None);
    }

    #[test]
    fn small_changes_of_free_memory_are_no_news() {
        let of = |total, free| Capacity { memory: Some(DeviceMemory { total, free }), cores: Some(2), rates: None };
        let check = |told, now, news: bool| assert_eq!(is_news(told, now), news, "{told:?} {now:?}");
        check(of(800, 500), of(800, 400), false);
        check(of(800, 500), of(800, 399), true);
        check(of(800, 500), of(800, 601), true);
        check(of(800, 500), of(900, 500), true);
        check(Capacity::default(), of(800, 500), true);
        check(of(800, 500), Capacity::default(), true);
        check(Capacity::default(), Capacity::default(), false);
    }
}
