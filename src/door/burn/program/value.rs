//! A program's values: the state, the location and the lifetime of each.

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
    /// The contribution of a device to the n-th reduction over a group of devices.
    Share { group: u16, device: u16, reduction: u64 },
}

/// The state of a value.
#[derive(Clone, Debug)]
pub(in crate::door::burn) enum State {
    /// Another session is to send it.
    Awaited,
    /// A queued item makes it.
    Queued { stream: usize, at: u64 },
    /// It exists.
    There(Place),
    /// It is in the step that is being made, under this number; and its previous location, unless the step makes it.
    Here(u32, Option<Place>),
    /// The operation that would have made it failed.
    Failed(Arc<Failure>),
}

/// The location of a value between steps.
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
    /// Counts the value: a clone of the recorder's `held`.
    pub _counted: Arc<()>,
}

#[derive(Debug)]
pub(in crate::door::burn) struct Value {
    pub state: State,
    /// The number of its uses in the queues.
    pub uses: u32,
    /// The number of uses that end it: 1 but for a share of a reduction, which each participant uses once.
    pub ends_after: u32,
    /// The item that takes it, of a transfer.
    pub(super) taken: Option<(usize, u64)>,
}

impl Value {
    pub(super) fn new(state: State) -> Value {
        Value { state, uses: 0, ends_after: 1, taken: None }
    }

    /// It cannot be used any more.
    pub(super) fn is_over(&self) -> bool {
        self.uses == 0 && self.ends_after == 0
    }
}

impl State {
    /// Its slot, also while a step uses it.
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
