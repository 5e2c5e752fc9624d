//! Datasets that group the elements of one key.

use std::collections::BTreeMap;
use std::sync::Arc;

use meshtf_loops::turn;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;

use super::interleave::opened;
use super::mapped::Captured;
use super::window::whole;
use super::{Dataset, Element, Elements, Instance, Parts, Pull, Spec, UNKNOWN, bytes_of};
use crate::token::Token;

/// The functions of a dataset that groups elements into windows.
pub(crate) struct Windowing {
    /// The key of an element.
    pub key: Captured,
    /// From a key and the dataset of a window, a dataset.
    pub reduce: Captured,
    /// The number of elements of a key's window.
    pub size: Captured,
}

/// The reduced windows of each key, as soon as they have enough elements; the last ones at the end of the input.
pub(crate) fn by_window(input: Arc<Dataset>, functions: Windowing, spec: Spec) -> Parts {
    Parts::new(UNKNOWN, move |pull| {
        Ok(Box::new(ByWindow {
            from: Some(input.elements(pull)?),
            within: input.spec.clone(),
            spec: spec.clone(),
            key: functions.key.instance(pull)?,
            reduce: functions.reduce.instance(pull)?,
            size: functions.size.instance(pull)?,
            groups: BTreeMap::new(),
            sizes: BTreeMap::new(),
            of: None,
        }))
    })
}

struct ByWindow {
    from: Option<Box<dyn Elements>>,
    /// The specs of the input's elements, and of the output's.
    within: Spec,
    spec: Spec,
    key: Box<dyn Instance>,
    reduce: Box<dyn Instance>,
    size: Box<dyn Instance>,
    groups: BTreeMap<i64, Vec<Element>>,
    sizes: BTreeMap<i64, usize>,
    of: Option<Box<dyn Elements>>,
}

impl ByWindow {
    fn open(&mut self, key: i64, group: Vec<Element>, pull: &Pull) -> Result<()> {
        let held = group.iter().flatten().cloned().collect();
        let group = Dataset::new(self.within.clone(), held, whole(group))?;
        self.of = Some(opened(&mut *self.reduce, vec![Tensor::scalar(key).into(), group.into()], &self.spec, pull)?);
        Ok(())
    }

    fn size_of(&mut self, key: i64, pull: &Pull) -> Result<usize> {
        if let Some(&size) = self.sizes.get(&key) {
            return Ok(size);
        }
        let size = number(self.size.call(vec![Tensor::scalar(key).into()], pull)?, "`window_size_func`")?;
        let size = usize::try_from(size)
            .ok()
            .filter(|&size| size > 0)
            .ok_or_else(|| Failure::invalid(format!("Window size must be greater than zero, but got {size}.")))?;
        self.sizes.insert(key, size);
        Ok(size)
    }
}

impl Elements for ByWindow {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        loop {
            turn::look();
            if let Some(of) = &mut self.of {
                if let Some(element) = of.next(pull)? {
                    return Ok(Some(element));
                }
                self.of = None;
            }
            let Some(from) = &mut self.from else {
                let Some((key, group)) = self.groups.pop_first() else { return Ok(None) };
                self.open(key, group, pull)?;
                continue;
            };
            let Some(element) = from.next(pull)? else {
                self.from = None;
                continue;
            };
            memory::grow()?;
            let key = number(self.key.call(element.clone(), pull)?, "`key_func`")?;
            let size = self.size_of(key, pull)?;
            let group = self.groups.entry(key).or_default();
            group.push(element);
            if group.len() >= size {
                let group = std::mem::take(group);
                self.groups.remove(&key);
                self.open(key, group, pull)?;
            }
        }
    }

    fn bytes(&self) -> usize {
        let inner = |of: &Option<Box<dyn Elements>>| of.as_ref().map_or(0, |of| of.bytes());
        inner(&self.from) + inner(&self.of) + bytes_of(self.groups.values().flatten())
    }
}

/// The functions of a dataset that reduces the elements of each key.
pub(crate) struct Reducing {
    pub key: Captured,
    /// The initial state of a key.
    pub init: Captured,
    /// The next state, from a state and an element.
    pub reduce: Captured,
    /// An element, from the last state.
    pub finish: Captured,
}

/// The reduced elements of each key, in the order of the keys.
pub(crate) fn by_reducer(input: Arc<Dataset>, functions: Reducing) -> Parts {
    Parts::new(UNKNOWN, move |pull| {
        Ok(Box::new(ByReducer {
            from: Some(input.elements(pull)?),
            key: functions.key.instance(pull)?,
            init: functions.init.instance(pull)?,
            reduce: functions.reduce.instance(pull)?,
            finish: functions.finish.instance(pull)?,
            states: BTreeMap::new(),
        }))
    })
}

struct ByReducer {
    from: Option<Box<dyn Elements>>,
    key: Box<dyn Instance>,
    init: Box<dyn Instance>,
    reduce: Box<dyn Instance>,
    finish: Box<dyn Instance>,
    states: BTreeMap<i64, Vec<Token>>,
}

impl Elements for ByReducer {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        while let Some(from) = &mut self.from {
            turn::look();
            let Some(element) = from.next(pull)? else {
                self.from = None;
                break;
            };
            memory::grow()?;
            let key = number(self.key.call(element.clone(), pull)?, "`key_func`")?;
            let state = match self.states.remove(&key) {
                Some(state) => state,
                None => self.init.call(vec![Tensor::scalar(key).into()], pull)?,
            };
            self.states.insert(key, self.reduce.call(state.into_iter().chain(element).collect(), pull)?);
        }
        match self.states.pop_first() {
            Some((_, state)) => self.finish.call(state, pull).map(Some),
            None => Ok(None),
        }
    }

    fn bytes(&self) -> usize {
        self.from.as_ref().map_or(0, |from| from.bytes()) + bytes_of(self.states.values())
    }
}

/// The one int64 that a function returned.
fn number(answer: Element, what: &str) -> Result<i64> {
    let wrong = || Failure::invalid(format!("{what} must return a scalar int64."));
    let [token] = <[Token; 1]>::try_from(answer).map_err(|_| wrong())?;
    token.host()?.item::<i64>().map_err(|_| wrong())
}
