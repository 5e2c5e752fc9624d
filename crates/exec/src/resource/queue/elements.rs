//! The elements of a queue, and the choice of the next one: the first, any, or the one of the least priority.

use std::collections::VecDeque;
use std::fmt::{Display, Formatter, Result as Formatted};

use meshtf_kernels::Dice;
use meshtf_tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::super::Version;

/// One element: a tensor for each component.
pub(super) type QueueElement = Vec<Tensor>;

/// The choice of a queue's next element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Fifo,
    /// First in, first out; stacked elements are padded to one size.
    Padding,
    /// Any element, as long as there are more than `keeps` or the queue is closed.
    Shuffle {
        keeps: usize,
        /// As the node states them.
        seeds: (i64, i64),
    },
    /// The least by the first component, which is an int64; among equals the one that came first.
    Priority,
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter) -> Formatted {
        f.write_str(match self {
            Kind::Fifo => "FIFOQueue",
            Kind::Padding => "PaddingFIFOQueue",
            Kind::Shuffle { .. } => "RandomShuffleQueue",
            Kind::Priority => "PriorityQueue",
        })
    }
}

/// The elements of one queue.
#[derive(Clone)]
pub(super) struct QueueElements {
    kind: Kind,
    list: VecDeque<QueueElement>,
    bytes: usize,
    /// The random choice of a queue that shuffles.
    dice: Option<Dice>,
    /// The version of the queue.
    pub version: Version,
}

impl QueueElements {
    /// No elements yet. `dice` are for a queue that shuffles.
    pub fn new(kind: Kind, dice: Option<Dice>) -> QueueElements {
        QueueElements { kind, list: VecDeque::new(), bytes: 0, dice, version: Version::default() }
    }

    /// These elements, in the order in which they would be taken out, or, of a queue that shuffles, are kept.
    pub fn filled(kind: Kind, elements: Vec<QueueElement>, dice: Option<Dice>) -> QueueElements {
        let bytes = elements.iter().map(bytes).sum();
        QueueElements { kind, list: elements.into(), bytes, dice, version: Version::default() }
    }

    /// The elements in their order, and the random choice.
    pub fn into_parts(self) -> (Vec<QueueElement>, Option<Dice>) {
        (self.list.into(), self.dice)
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes of all components of all elements.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// As [`QueueElements::bytes`], with the overhead of each.
    pub fn heap_bytes(&self) -> usize {
        self.list.iter().map(heap_bytes).sum()
    }

    pub fn push(&mut self, element: QueueElement) {
        self.version.raise();
        self.bytes += bytes(&element);
        match (self.kind, priority(&element)) {
            (Kind::Priority, Some(mine)) => {
                let at = self.list.partition_point(|other| priority(other).is_some_and(|other| other <= mine));
                self.list.insert(at, element);
            }
            _ => self.list.push_back(element),
        }
    }

    /// The next element, if one may be taken.
    pub fn pop(&mut self, is_closed: bool) -> Option<QueueElement> {
        let element = match (self.kind, &mut self.dice) {
            (Kind::Shuffle { keeps, .. }, Some(dice)) => {
                if self.list.is_empty() || !is_closed && self.list.len() <= keeps {
                    return None;
                }
                let at = dice.throw(self.list.len());
                self.list.swap_remove_back(at)?
            }
            _ => self.list.pop_front()?,
        };
        self.bytes -= bytes(&element);
        self.version.raise();
        Some(element)
    }

    /// Returns elements that were taken in this order and are not wanted after all.
    pub fn put_back(&mut self, taken: Vec<QueueElement>) {
        for element in taken.into_iter().rev() {
            if matches!(self.kind, Kind::Fifo | Kind::Padding) {
                self.bytes += bytes(&element);
                self.version.raise();
                self.list.push_front(element);
            } else {
                self.push(element);
            }
        }
    }
}

pub(super) fn bytes(element: &QueueElement) -> usize {
    element.iter().map(Tensor::byte_len).sum()
}

/// Bytes of memory that an element takes.
pub(super) fn heap_bytes(element: &QueueElement) -> usize {
    size_of::<QueueElement>() + element.iter().map(Tensor::heap_bytes).sum::<usize>()
}

fn priority(element: &QueueElement) -> Option<i64> {
    element.first()?.to_i64().ok()
}
