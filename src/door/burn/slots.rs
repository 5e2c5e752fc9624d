//! Where tensors stay between steps: each in a slot of its device, which is a variable there.
//!
//! A tensor takes the lowest slot that is free among those of its device, dtype and shape. So a program's loop comes back to the
//! same slots with every iteration, and its steps are the same steps.

use std::collections::{BTreeSet, HashMap};

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

/// The slots of a program.
#[derive(Debug, Default)]
pub(super) struct Slots {
    numbers: HashMap<Kind, u32>,
    kinds: Vec<Kind>,
    used: Vec<Used>,
}

/// Which slots of a kind are taken.
#[derive(Debug, Default)]
struct Used {
    /// Those below `next` that are not.
    free: BTreeSet<u32>,
    /// No slot from here on was ever taken.
    next: u32,
}

impl Slots {
    /// The lowest free slot of a kind, which is taken from now on.
    pub fn take(&mut self, kind: Kind) -> Slot {
        let number = match self.numbers.get(&kind) {
            Some(&number) => number,
            None => {
                let number = self.kinds.len() as u32;
                self.numbers.insert(kind.clone(), number);
                self.kinds.push(kind);
                self.used.push(Used::default());
                number
            }
        };
        let used = &mut self.used[number as usize];
        let lowest = used.free.pop_first().unwrap_or_else(|| {
            used.next += 1;
            used.next - 1
        });
        Slot { kind: number, number: lowest }
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

    #[test]
    fn the_lowest_free_slot_is_taken() {
        let mut slots = Slots::default();
        let kind = |device| Kind { device, dtype: DType::F32, shape: Shape::from([2, 3]) };
        let first: Vec<Slot> = (0..3).map(|_| slots.take(kind(0))).collect();
        assert_eq!(first.iter().map(|slot| slot.number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(slots.take(kind(1)), Slot { kind: 1, number: 0 });
        slots.free(first[1]);
        slots.free(first[0]);
        assert_eq!((slots.take(kind(0)).number, slots.take(kind(0)).number), (0, 1));
        assert_eq!(slots.take(kind(0)).number, 3);
        assert_eq!((slots.len(), slots.kind(first[0]).device), (5, 0));
    }
}
