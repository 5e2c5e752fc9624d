//! Iterators: how far the elements of a dataset were asked for.

use std::sync::{Arc, Mutex};

use super::super::dataset::{Dataset, Element, Elements, Run, Spec};
use super::super::turn;
use super::Key;
use super::list::Look;
use crate::failure::{Code, Failure, Result};
use crate::lock::lock;

pub(in crate::exec) struct Iterator {
    key: Key,
    spec: Spec,
    /// `None` until it is made one over a dataset.
    elements: Mutex<Option<Box<dyn Elements>>>,
}

impl Iterator {
    /// An iterator over no dataset yet.
    pub fn new(key: Key, spec: Spec) -> Iterator {
        Iterator { key, spec, elements: Mutex::default() }
    }

    /// What names it in the table.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What its elements are like.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Begins with the first element of a dataset.
    ///
    /// # Errors
    /// InvalidArgument if its elements are others than the iterator's; if a function that it calls cannot run.
    pub fn begin(&self, dataset: &Dataset, run: &Run) -> Result<()> {
        dataset.spec.check_against(&self.spec)?;
        let elements = dataset.elements(run)?;
        *lock(&self.elements) = Some(elements);
        Ok(())
    }

    /// Does so with a dataset that is made for it, unless it has begun.
    ///
    /// # Errors
    /// What the making fails with; else as [`Iterator::begin`].
    pub fn begin_once(&self, run: &Run, make: impl FnOnce() -> Result<Arc<Dataset>>) -> Result<()> {
        let mut elements = lock(&self.elements);
        if elements.is_none() {
            let dataset = make()?;
            dataset.spec.check_against(&self.spec)?;
            *elements = Some(dataset.elements(run)?);
        }
        Ok(())
    }

    /// The next element; `None` at the end. May be given up between two elements of what it reads.
    ///
    /// # Errors
    /// FailedPrecondition if it is over no dataset; what the making of the element failed with.
    pub fn next(&self, run: &Run) -> Result<Option<Element>> {
        let mut elements = lock(&self.elements);
        let Some(elements) = &mut *elements else {
            let why = "GetNext() failed because the iterator has not been initialized. Ensure that you have run the initializer \
                       operation for this iterator before getting the next element.";
            return Err(Failure::new(Code::FailedPrecondition, why));
        };
        turn::in_part(|| elements.next(run))
    }

    /// Bytes of the elements that it keeps; 0 if somebody is just asking for one.
    pub fn bytes(&self) -> usize {
        self.elements.try_lock().map_or(0, |elements| elements.as_ref().map_or(0, |elements| elements.bytes()))
    }

    pub(super) fn look(&self) -> Look {
        let bytes = self.elements.try_lock().ok().map(|elements| elements.as_ref().map_or(0, |it| it.bytes()));
        Look { dtypes: self.spec.types.clone(), bytes, ..Look::default() }
    }
}
