//! The storage of tensors between steps: each in a slot of its device, which is a variable on that device.
//!
//! A tensor takes the slot that the same tensor of an earlier step with the same operations had, if that slot is free: so a
//! program's loop returns to the same slots, in every iteration or in every second one, and its steps are the same steps. A
//! tensor without such a predecessor takes a slot that the step frees, as parameters take those of the parameters that they
//! replace. A small tensor whose predecessor still exists, such as a loss that is read later, has no slot: the door holds its
//! value.

use std::collections::{BTreeSet, HashMap, VecDeque};

use meshtf_tensor::{DType, Shape};
use smallvec::SmallVec;

/// The common properties of the tensors of some slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    /// The index of the device.
    pub device: u32,
    pub dtype: DType,
    pub shape: Shape,
}

impl Kind {
    /// Size of a tensor's elements in bytes; `None` if unknown.
    pub fn bytes(&self) -> Option<usize> {
        self.shape.elements()?.checked_mul(self.dtype.size()?)
    }
}

/// A slot: the number of its kind, and its number in that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot {
    pub kind: u32,
    pub number: u32,
}

/// The identity of a tensor in a program: the hash of the operations of the step that makes it, and its index in those that
/// stay.
pub(super) type StepTensor = (u64, u32);

/// Maximum number of parts whose slots are remembered; all are forgotten if there are more.
const MAX_PARTS: usize = 1 << 16;

/// The slots of a program.
#[derive(Debug, Default)]
pub(super) struct Slots {
    numbers: HashMap<Kind, u32>,
    kinds: Vec<Kind>,
    used: Vec<Used>,
    parts: HashMap<StepTensor, Owned>,
    /// Free slots that still have a value, in the order in which they were freed.
    freed: VecDeque<Freed>,
}

/// The slots of a tensor's predecessors.
#[derive(Debug, Default)]
struct Owned {
    slots: SmallVec<[Slot; 2]>,
    /// One of the predecessors was held by the door.
    is_held: bool,
}

#[derive(Debug)]
struct Freed {
    slot: Slot,
    /// The number of steps since then that have not taken it.
    waited: u32,
}

/// A free slot that no step has taken for this many steps is emptied.
const EMPTIED_AFTER: u32 = 2;
/// A larger value is dropped after the step that freed its slot.
const LARGE: usize = 8 << 20;

/// The slots of a kind that are taken.
#[derive(Debug, Default)]
struct Used {
    /// Those below `next` that are not taken.
    free: BTreeSet<u32>,
    /// Those of the free slots that no part has had.
    unowned: BTreeSet<u32>,
    /// No slot from this number on was ever taken.
    next: u32,
}

impl Slots {
    /// Takes a free slot for a part. `None` if the part `may_be_held` and its predecessor still has its own: then its
    /// successors are held, too, so that their steps are the same.
    pub fn take(&mut self, part: StepTensor, kind: Kind, may_be_held: bool) -> Option<Slot> {
        let kind = self.number(kind);
        if self.parts.len() >= MAX_PARTS {
            self.parts.clear();
            self.used.iter_mut().for_each(|used| used.unowned.clone_from(&used.free));
        }
        let owned = self.parts.entry(part).or_default();
        let used = &mut self.used[kind as usize];
        if may_be_held && owned.is_held {
            return None;
        }
        if let Some(slot) = owned.slots.iter().find(|slot| slot.kind == kind && used.free.contains(&slot.number)) {
            used.free.remove(&slot.number);
            return Some(*slot);
        }
        if may_be_held && !owned.slots.is_empty() {
            owned.is_held = true;
            return None;
        }
        let is_fresh =
            |freed: &&Freed| freed.waited == 0 && freed.slot.kind == kind && used.free.contains(&freed.slot.number);
        let number = match self.freed.iter().find(is_fresh) {
            Some(freed) => freed.slot.number,
            None => used.unowned.pop_first().unwrap_or_else(|| {
                used.next += 1;
                used.next - 1
            }),
        };
        used.free.remove(&number);
        used.unowned.remove(&number);
        let slot = Slot { kind, number };
        owned.slots.push(slot);
        Some(slot)
    }

    /// Ends a step: returns the slots that are to be emptied now, in their order.
    pub fn due_to_be_emptied(&mut self) -> Vec<Slot> {
        let mut due = Vec::new();
        let mut freed = std::mem::take(&mut self.freed);
        freed.retain_mut(|freed| {
            let is_large = self.kind(freed.slot).bytes().is_none_or(|bytes| bytes > LARGE);
            let is_due = is_large || freed.waited >= EMPTIED_AFTER;
            freed.waited += 1;
            if is_due && !self.is_taken(freed.slot) {
                due.push(freed.slot);
            }
            !is_due && !self.is_taken(freed.slot)
        });
        self.freed = freed;
        due.sort_unstable();
        due.dedup();
        due
    }

    /// These slots were not emptied after all.
    pub fn not_emptied(&mut self, slots: &[Slot]) {
        self.freed.extend(slots.iter().map(|&slot| Freed { slot, waited: 0 }));
    }

    /// Removes the slots of such devices from those to be emptied: their values are gone.
    pub fn lost(&mut self, is_lost: impl Fn(u32) -> bool) {
        let kinds = &self.kinds;
        self.freed.retain(|freed| !is_lost(kinds[freed.slot.kind as usize].device));
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

    /// The value in the slot has no uses left. It stays in memory until a step takes the slot, or the slot is emptied.
    pub fn free(&mut self, slot: Slot) {
        if self.used[slot.kind as usize].free.insert(slot.number) {
            self.freed.push_back(Freed { slot, waited: 0 });
        }
    }

    pub fn is_taken(&self, slot: Slot) -> bool {
        let used = &self.used[slot.kind as usize];
        slot.number < used.next && !used.free.contains(&slot.number)
    }

    pub fn kind(&self, slot: Slot) -> &Kind {
        &self.kinds[slot.kind as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Slots {
        /// The number of slots that are taken.
        pub fn len(&self) -> usize {
            self.used.iter().map(|used| used.next as usize - used.free.len()).sum()
        }
    }

    fn kind(device: u32) -> Kind {
        Kind { device, dtype: DType::F32, shape: Shape::from([2, 3]) }
    }

    #[test]
    fn a_part_comes_back_to_its_slots() {
        let mut slots = Slots::default();
        let take = |slots: &mut Slots, part, kind| slots.take(part, kind, false).unwrap();
        let first: Vec<Slot> = (0..3).map(|part| take(&mut slots, (7, part), kind(0))).collect();
        assert_eq!(first.iter().map(|slot| slot.number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(take(&mut slots, (7, 3), kind(1)), Slot { kind: 1, number: 0 });
        // While its slot is taken, it takes a second one.
        let second = take(&mut slots, (7, 1), kind(0));
        assert_eq!(second.number, 3);
        slots.free(first[0]);
        slots.free(first[1]);
        assert_eq!(take(&mut slots, (7, 1), kind(0)), first[1]);
        assert_eq!(take(&mut slots, (7, 0), kind(0)), first[0]);
        assert_eq!((slots.len(), slots.kind(first[0]).device), (5, 0));
        assert!(slots.is_taken(second));
        // A new part takes the slot that the step frees, not one that an earlier step left.
        slots.free(first[2]);
        assert_eq!(take(&mut slots, (8, 0), kind(0)), first[2]);
        slots.free(second);
        assert!(slots.due_to_be_emptied().is_empty());
        assert_eq!(take(&mut slots, (8, 1), kind(0)).number, 4);
    }

    #[test]
    fn a_part_whose_predecessor_is_still_there_may_be_held() {
        let mut slots = Slots::default();
        let slot = slots.take((7, 0), kind(0), true).unwrap();
        assert_eq!(slots.take((7, 0), kind(0), true), None);
        slots.free(slot);
        assert_eq!(slots.take((7, 0), kind(0), true), None, "from then on");
        assert_eq!(slots.take((7, 0), kind(0), false), Some(slot), "unless there is no room for it");
    }

    #[test]
    fn a_slot_that_no_step_takes_is_emptied() {
        let large = Kind { shape: Shape::from([LARGE / 4 + 1]), ..kind(0) };
        let mut slots = Slots::default();
        let [small, other] = [0, 1].map(|part| slots.take((7, part), kind(0), false).unwrap());
        let large = slots.take((7, 2), large, false).unwrap();
        [small, other, large].into_iter().for_each(|slot| slots.free(slot));
        assert_eq!(slots.due_to_be_emptied(), [large]);
        assert_eq!(slots.take((7, 1), kind(0), false), Some(other));
        assert!(slots.due_to_be_emptied().is_empty());
        assert_eq!(slots.due_to_be_emptied(), [small]);
        slots.not_emptied(&[small]);
        slots.lost(|device| device == 0);
        assert!((0..3).all(|_| slots.due_to_be_emptied().is_empty()));
    }

    #[test]
    fn slots_of_parts_that_are_forgotten_are_used_again() {
        let mut slots = Slots::default();
        for part in 0..3 * MAX_PARTS as u64 {
            let slot = slots.take((part, 0), kind(0), false).unwrap();
            slots.free(slot);
            // None of the slots that the previous step freed is left.
            (0..4).for_each(|_| drop(slots.due_to_be_emptied()));
        }
        assert!(slots.used[0].next as usize <= MAX_PARTS && slots.parts.len() <= MAX_PARTS);
    }
}
