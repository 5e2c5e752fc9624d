//! Iterators whose elements are dealt to several devices in turn: the first element to the first device, the next to the second.
//! The elements of a device that is behind wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;

use super::super::dataset::{Dataset, Element, Pull, Spec, bytes_of};
use super::iterator::{MadeAgain, patiently};
use super::list::Look;
use super::queue::MAX_QUEUE_BYTES;
use super::{Iterator, Resource, ResourceKey};

pub(crate) struct MultiIterator {
    elements: Iterator,
    dealt: Mutex<Dealt>,
}

struct Dealt {
    /// Counts the datasets that it has been begun over; 0 before the first.
    incarnation: i64,
    /// The elements of each device that it has not taken. One that failed is a failure of its device alone.
    waiting: Vec<VecDeque<Result<Element>>>,
    bytes: usize,
    /// The device of the next element.
    next: usize,
    is_over: bool,
}

impl Resource for MultiIterator {
    fn wanted() -> &'static str {
        "multi-device iterator"
    }

    fn kind(&self) -> &'static str {
        "multi-device iterator"
    }

    fn bytes(&self) -> usize {
        self.elements.bytes() + self.dealt.try_lock().map_or(0, |dealt| dealt.bytes)
    }

    fn look(&self) -> Look {
        let length = self.dealt.try_lock().ok().map(|dealt| dealt.waiting.iter().map(VecDeque::len).sum());
        Look { length, ..self.elements.look() }
    }

    fn unsaved(&self) -> &'static str {
        "its elements are dealt to devices that are not saved"
    }
}

impl MultiIterator {
    /// For so many devices, over no dataset yet.
    pub fn new(key: ResourceKey, spec: Spec, devices: usize) -> MultiIterator {
        let waiting = (0..devices).map(|_| VecDeque::new()).collect();
        let dealt = Dealt { incarnation: 0, waiting, bytes: 0, next: 0, is_over: false };
        MultiIterator { elements: Iterator::new(key, spec), dealt: Mutex::new(dealt) }
    }

    /// Its key in the resource table.
    pub fn key(&self) -> &ResourceKey {
        self.elements.key()
    }

    /// The dtypes and shapes of its elements.
    pub fn spec(&self) -> &Spec {
        self.elements.spec()
    }

    /// Begins with the first element of a dataset. The answer is to be given with each request for an element of it.
    ///
    /// # Errors
    /// As [`Iterator::begin`].
    pub fn begin(&self, dataset: Arc<Dataset>, pull: &Pull) -> Result<i64> {
        let mut dealt = patiently(&self.dealt);
        self.elements.begin(dataset, pull)?;
        dealt.waiting.iter_mut().for_each(VecDeque::clear);
        (dealt.bytes, dealt.next, dealt.is_over) = (0, 0, false);
        dealt.incarnation += 1;
        Ok(dealt.incarnation)
    }

    /// The next element of a device; `None` at the end. May be cancelled between two elements that it reads.
    ///
    /// # Errors
    /// InvalidArgument for a device that it does not have, or a dataset that it is not over any more; ResourceExhausted if the
    /// elements that wait for other devices are too large; the failure of the element.
    pub fn next(&self, device: i32, incarnation: i64, pull: &Pull, again: MadeAgain) -> Result<Option<Element>> {
        let mut dealt = patiently(&self.dealt);
        if incarnation != dealt.incarnation {
            let expected = dealt.incarnation;
            let why = format!("Invalid incarnation id. Provided: {incarnation}; Expected: {expected}");
            return Err(Failure::invalid(why));
        }
        let count = dealt.waiting.len();
        let device = usize::try_from(device).ok().filter(|&device| device < count).ok_or_else(|| {
            Failure::invalid(format!("there is no shard {device}: the iterator has {count}, counted from 0"))
        })?;
        loop {
            if let Some(element) = dealt.waiting[device].pop_front() {
                dealt.bytes -= element.as_ref().map_or(0, |element| bytes_of([element]));
                return element.map(Some);
            }
            if dealt.is_over {
                return Ok(None);
            }
            let element = match self.elements.next(pull, again) {
                Ok(None) => {
                    dealt.is_over = true;
                    return Ok(None);
                }
                Err(failure) if failure.code == Code::Cancelled => return Err(failure),
                Ok(Some(element)) => Ok(element),
                Err(failure) => Err(failure),
            };
            let bytes = element.as_ref().map_or(0, |element| bytes_of([element]));
            if dealt.bytes.saturating_add(bytes) > MAX_QUEUE_BYTES {
                let why = format!(
                    "the elements that wait for the other devices of a multi-device iterator take more than {MAX_QUEUE_BYTES} \
                     bytes, the limit: each device has to take its own"
                );
                return Err(Failure::new(Code::ResourceExhausted, why));
            }
            memory::grow()?;
            let to = dealt.next;
            dealt.waiting[to].push_back(element);
            dealt.bytes += bytes;
            dealt.next = (to + 1) % count;
        }
    }
}
