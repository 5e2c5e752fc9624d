//! A program's values: what each is, where it is, and for how long.

use std::sync::Arc;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Failure;

use super::SessionNo;
use crate::door::burn::slots::Slot;

/// A value of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::door::burn) enum Key {
    /// A tensor of a session.
    Tensor(SessionNo, u64),
    /// A tensor on its way to another session.
    Transfer(u64),
    /// What a device gives to the n-th reduction over a group of devices.
    Share { group: u16, device: u16, reduction: u64 },
}

/// Where a value is.
#[derive(Clone, Debug)]
pub(in crate::door::burn) enum State {
    /// Another session is to send it.
    Awaited,
    /// Something that is queued makes it.
    Queued { stream: usize, at: u64 },
    /// It is there.
    There(Place),
    /// It is in the step that is being made, by this number; and where it was before, unless the step makes it.
    Here(u32, Option<Place>),
    /// What would have made it failed.
    Failed(Arc<Failure>),
}

/// Where a value is between steps.
#[derive(Clone, Debug)]
pub(in crate::door::burn) enum Place {
    /// In a slot.
    Slot(Slot),
    /// The door has it.
    Held(Held),
}

/// A value that the door has, or will have after the step that makes it.
#[derive(Clone, Debug)]
pub(in crate::door::burn) struct Held {
    pub value: Option<Tensor>,
    /// Each is counted by a clone of this.
    pub _counted: Arc<()>,
}

#[derive(Debug)]
pub(in crate::door::burn) struct Value {
    pub state: State,
    /// How often what is queued uses it.
    pub uses: u32,
    /// How many more uses end it: 1 but for a share of a reduction, which each participant uses once.
    pub ends_after: u32,
    /// Who takes it, of a transfer.
    pub(super) taken: Option<(usize, u64)>,
}

impl Value {
    pub(super) fn new(state: State) -> Value {
        Value { state, uses: 0, ends_after: 1, taken: None }
    }

    /// It cannot be used any longer.
    pub(super) fn is_over(&self) -> bool {
        self.uses == 0 && self.ends_after == 0
    }
}

impl State {
    /// The slot that it has, also while a step uses it.
    pub(super) fn slot(&self) -> Option<Slot> {
        match self {
            State::There(Place::Slot(slot)) | State::Here(_, Some(Place::Slot(slot))) => Some(*slot),
            _ => None,
        }
    }

    /// The value, if the door has it, also while a step uses it.
    pub(in crate::door::burn) fn held(&self) -> Option<&Tensor> {
        match self {
            State::There(Place::Held(held)) | State::Here(_, Some(Place::Held(held))) => held.value.as_ref(),
            _ => None,
        }
    }
}
