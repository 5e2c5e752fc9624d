//! What lies in a queue, and which element goes next: the first, any, or the one of the least priority.

use std::collections::VecDeque;
use std::fmt::{Display, Formatter, Result as Formatted};

use super::super::super::kernel::{Dice, KernelNode};
use crate::failure::{Failure, Result};
use crate::tensor::Tensor;

/// One element: a tensor for each component.
pub(super) type Element = Vec<Tensor>;

/// Which kind of queue a node asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Fifo,
    /// First in, first out; what is stacked is filled up to one size.
    Padding,
    /// Any element, as long as more than `keeps` are there or the queue is closed.
    Shuffle {
        keeps: usize,
    },
    /// The least of the first component, which is an int64; among equals the one that came first.
    Priority,
}

impl Kind {
    pub fn of(node: &KernelNode) -> Result<Kind> {
        Ok(match node.op {
            "PaddingFIFOQueueV2" => Kind::Padding,
            "PriorityQueueV2" => Kind::Priority,
            "RandomShuffleQueueV2" => {
                let (keeps, capacity) = (node.attrs.int("min_after_dequeue")?, node.attrs.int("capacity")?);
                let keeps = usize::try_from(keeps)
                    .map_err(|_| Failure::invalid(format!("min_after_dequeue {keeps} must be >= 0")))?;
                if usize::try_from(capacity).is_ok_and(|capacity| keeps >= capacity) {
                    let why = format!("min_after_dequeue {keeps} must be < capacity {capacity}");
                    return Err(Failure::invalid(why));
                }
                Kind::Shuffle { keeps }
            }
            _ => Kind::Fifo,
        })
    }
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
pub(super) struct Elements {
    kind: Kind,
    list: VecDeque<Element>,
    bytes: usize,
    /// Chooses where a queue gives any element.
    dice: Option<Dice>,
}

impl Elements {
    /// None yet. `dice` are for a queue that gives any.
    pub fn new(kind: Kind, dice: Option<Dice>) -> Elements {
        Elements { kind, list: VecDeque::new(), bytes: 0, dice }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Of all components of all elements.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// As [`Elements::bytes`], with what surrounds each.
    pub fn heap_bytes(&self) -> usize {
        self.list.iter().map(heap_bytes).sum()
    }

    pub fn push(&mut self, element: Element) {
        self.bytes += bytes(&element);
        match (self.kind, priority(&element)) {
            (Kind::Priority, Some(mine)) => {
                let at = self.list.partition_point(|other| priority(other).is_some_and(|other| other <= mine));
                self.list.insert(at, element);
            }
            _ => self.list.push_back(element),
        }
    }

    /// The next, where there is one to be had.
    pub fn pop(&mut self, is_closed: bool) -> Option<Element> {
        let element = match (self.kind, &mut self.dice) {
            (Kind::Shuffle { keeps }, Some(dice)) => {
                if self.list.is_empty() || !is_closed && self.list.len() <= keeps {
                    return None;
                }
                let at = dice.throw(self.list.len());
                self.list.swap_remove_back(at)?
            }
            _ => self.list.pop_front()?,
        };
        self.bytes -= bytes(&element);
        Some(element)
    }

    /// What was taken in this order and is not wanted after all.
    pub fn put_back(&mut self, taken: Vec<Element>) {
        for element in taken.into_iter().rev() {
            if matches!(self.kind, Kind::Fifo | Kind::Padding) {
                self.bytes += bytes(&element);
                self.list.push_front(element);
            } else {
                self.push(element);
            }
        }
    }
}

pub(super) fn bytes(element: &Element) -> usize {
    element.iter().map(Tensor::byte_len).sum()
}

/// Bytes of memory that an element takes.
pub(super) fn heap_bytes(element: &Element) -> usize {
    size_of::<Element>() + element.iter().map(Tensor::heap_bytes).sum::<usize>()
}

fn priority(element: &Element) -> Option<i64> {
    element.first()?.to_i64().ok()
}
