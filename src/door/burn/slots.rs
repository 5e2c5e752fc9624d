//! Where tensors stay between steps: each in a slot of its device, which is a variable there.
//!
//! A tensor takes the slot that the same tensor of an earlier step with the same operations had, if that is free: so a program's loop
//! comes back to the same slots, with every iteration or with every second, and its steps are the same steps.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;

use crate::tensor::{DType, Shape};

/// What the tensors of some slots have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    /// The index of the device.
    pub device: u32,
    pub dtype: DType,
    pub shape: Shape,
}

/// A slot: the number of its kind, and its own among those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot {
    pub kind: u32,
    pub number: u32,
}

/// What a tensor is in a program: the hash of the operations of the step that makes it, and its place among those that stay.
pub(super) type Part = (u64, u32);

/// Most parts whose slots are remembered; all are forgotten if there are more.
const MAX_PARTS: usize = 1 << 16;

/// The slots of a program.
#[derive(Debug, Default)]
pub(super) struct Slots {
    numbers: HashMap<Kind, u32>,
    kinds: Vec<Kind>,
    used: Vec<Used>,
    /// The slots that a tensor's predecessors had.
    parts: HashMap<Part, SmallVec<[Slot; 2]>>,
}

/// Which slots of a kind are taken.
#[derive(Debug, Default)]
struct Used {
    /// Those below `next` that are not.
    free: BTreeSet<u32>,
    /// Those of them that no part had.
    unowned: BTreeSet<u32>,
    /// No slot from here on was ever taken.
    next: u32,
}

impl Slots {
    /// A free slot for a part, which is taken from now on.
    pub fn take(&mut self, part: Part, kind: Kind) -> Slot {
        let kind = self.number(kind);
        if self.parts.len() >= MAX_PARTS {
            self.parts.clear();
            self.used.iter_mut().for_each(|used| used.unowned.clone_from(&used.free));
        }
        let owned = self.parts.entry(part).or_default();
        let used = &mut self.used[kind as usize];
        if let Some(slot) = owned.iter().find(|slot| slot.kind == kind && used.free.contains(&slot.number)) {
            used.free.remove(&slot.number);
            return *slot;
        }
        let number = used.unowned.pop_first().unwrap_or_else(|| {
            used.next += 1;
            used.next - 1
        });
        used.free.remove(&number);
        let slot = Slot { kind, number };
        owned.push(slot);
        slot
    }

    fn number(&mut self, kind: Kind) -> u32 {
        if let Some(&number) = self.numbers.get(&kind) {
            return number;
        }
        let number = self.kinds.len() as u32;
        self.numbers.insert(kind.clone(), number);
        self.kinds.push(kind);
        self.used.push(Used::default());
        number
    }

    pub fn free(&mut self, slot: Slot) {
        self.used[slot.kind as usize].free.insert(slot.number);
    }

    pub fn is_taken(&self, slot: Slot) -> bool {
        let used = &self.used[slot.kind as usize];
        slot.number < used.next && !used.free.contains(&slot.number)
    }

    pub fn kind(&self, slot: Slot) -> &Kind {
        &self.kinds[slot.kind as usize]
    }

    /// How many are taken.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.used.iter().map(|used| used.next as usize - used.free.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(device: u32) -> Kind {
        Kind { device, dtype: DType::F32, shape: Shape::from([2, 3]) }
    }

    #[test]
    fn a_part_comes_back_to_its_slots() {
        let mut slots = Slots::default();
        let first: Vec<Slot> = (0..3).map(|part| slots.take((7, part), kind(0))).collect();
        assert_eq!(first.iter().map(|slot| slot.number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(slots.take((7, 3), kind(1)), Slot { kind: 1, number: 0 });
        // While its slot is taken, it takes a second one, and no other part's.
        slots.free(first[0]);
        let second = slots.take((7, 1), kind(0));
        assert_eq!(second.number, 3);
        slots.free(first[1]);
        assert_eq!(slots.take((7, 1), kind(0)), first[1]);
        assert_eq!(slots.take((7, 0), kind(0)), first[0]);
        assert_eq!((slots.len(), slots.kind(first[0]).device), (5, 0));
        assert!(slots.is_taken(second));
    }

    #[test]
    fn slots_of_parts_that_are_forgotten_are_used_again() {
        let mut slots = Slots::default();
        for part in 0..3 * MAX_PARTS as u64 {
            let slot = slots.take((part, 0), kind(0));
            slots.free(slot);
        }
        assert!(slots.used[0].next as usize <= MAX_PARTS && slots.parts.len() <= MAX_PARTS);
    }
}
