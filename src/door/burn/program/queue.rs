//! Queues: the items of each stream, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use burn_ir::{ScalarIr, TensorIr};
use burn_std::distributed::ReduceOperation;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Failure;
use smallvec::SmallVec;

use super::SessionNo;
use super::value::Key;
use crate::door::burn::form::Form;
use crate::door::burn::message::RequestId;

/// An item of a queue.
#[derive(Debug)]
pub(in crate::door::burn) struct Item {
    pub work: Work,
    /// Its inputs, and whether this is the last use of each.
    pub inputs: SmallVec<[(Key, bool); 2]>,
    pub outputs: SmallVec<[Key; 1]>,
}

#[derive(Debug)]
pub(in crate::door::burn) enum Work {
    /// An operation with its scalars, and with a seed if it draws random numbers.
    Operation(Arc<Form>, SmallVec<[ScalarIr; 1]>, Option<Box<[i64; 2]>>),
    Upload(Tensor),
    /// Its output is its input.
    Alias,
    /// Its output is its inputs, reduced.
    Reduce(ReduceOperation),
    /// It releases a tensor.
    Drop,
    /// It cannot be computed.
    Refused(Arc<Failure>),
    Read(RequestId, Box<TensorIr>),
    Sync(RequestId),
}

impl Work {
    pub(super) fn computes(&self) -> bool {
        matches!(self, Work::Operation(..) | Work::Reduce(_))
    }
}

pub(in crate::door::burn) struct Stream {
    pub session: SessionNo,
    pub(super) items: VecDeque<Item>,
    /// The number of the first item.
    pub(super) front: u64,
    /// The first item that computes since the last mark.
    pub(super) computes_from: Option<u64>,
    /// The position of the last mark.
    pub(super) marked: u64,
    /// Bytes uploaded since then.
    pub(super) uploaded: usize,
    /// The number of steps without an item of it.
    pub(super) idle: u32,
}

impl Stream {
    pub(super) fn end(&self) -> u64 {
        self.front + self.items.len() as u64
    }

    /// Moves the items before a given one to the end of `taken`.
    pub(super) fn take(&mut self, before: u64, taken: &mut VecDeque<Item>) {
        let count = (before - self.front) as usize;
        if taken.is_empty() && count == self.items.len() {
            std::mem::swap(taken, &mut self.items);
        } else {
            taken.extend(self.items.drain(..count));
        }
        self.front = before;
        if self.computes_from.is_some_and(|from| from < before) {
            let since = self.marked.saturating_sub(before) as usize;
            let first = self.items.iter().skip(since).position(|item| item.work.computes());
            self.computes_from = first.map(|first| before + (since + first) as u64);
        }
    }
}
