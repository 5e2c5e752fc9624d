//! Datasets that arrange the elements of others: a part of them, repeated, concatenated, or zipped.

use std::sync::Arc;

use meshtf_loops::turn;
use meshtf_tensor::failure::{Failure, Result};

use super::{Cardinality, Dataset, Element, Elements, INFINITE, Parts, Pull, UNKNOWN, pulled};

/// The same elements.
pub(crate) fn same(input: Arc<Dataset>) -> Parts {
    Parts::new(input.cardinality, move |pull| input.elements(pull))
}

/// The first `count` elements, or all if `count` is negative.
pub(crate) fn take(input: Arc<Dataset>, count: i64) -> Parts {
    let cardinality = match (input.cardinality, u64::try_from(count)) {
        (all, Err(_)) => all,
        (INFINITE, Ok(_)) => count,
        (UNKNOWN, Ok(0)) => 0,
        (UNKNOWN, Ok(_)) => UNKNOWN,
        (all, Ok(_)) => all.min(count),
    };
    Parts::new(cardinality, move |pull| {
        let mut left = u64::try_from(count).unwrap_or(u64::MAX);
        pulled(input.elements(pull)?, move |input, pull| {
            if left == 0 {
                return Ok(None);
            }
            left -= 1;
            input.next(pull)
        })
    })
}

/// All but the first `count` elements; none if `count` is negative.
pub(crate) fn skip(input: Arc<Dataset>, count: i64) -> Parts {
    let cardinality = match (input.cardinality, u64::try_from(count)) {
        (_, Err(_)) => 0,
        (all @ (INFINITE | UNKNOWN), Ok(_)) => all,
        (all, Ok(_)) => (all - count).max(0),
    };
    Parts::new(cardinality, move |pull| {
        let mut left = u64::try_from(count).ok();
        pulled(input.elements(pull)?, move |input, pull| {
            let Some(left) = &mut left else { return Ok(None) };
            while *left > 0 {
                turn::look();
                *left -= 1;
                if input.next(pull)?.is_none() {
                    *left = 0;
                    return Ok(None);
                }
            }
            input.next(pull)
        })
    })
}

/// The elements repeated `count` times, or without end if `count` is negative.
pub(crate) fn repeat(input: Arc<Dataset>, count: i64) -> Parts {
    let cardinality = match (input.cardinality, count) {
        (_, 0) | (0, _) => 0,
        (INFINITE, _) => INFINITE,
        (UNKNOWN, ..0) => INFINITE,
        (UNKNOWN, _) => UNKNOWN,
        (_, ..0) => INFINITE,
        (all, _) => all.saturating_mul(count),
    };
    Parts::new(cardinality, move |pull| {
        let from = if count == 0 { None } else { Some(input.elements(pull)?) };
        Ok(Box::new(Repeat { dataset: Arc::clone(&input), from, left: u64::try_from(count).ok(), is_fresh: true }))
    })
}

struct Repeat {
    dataset: Arc<Dataset>,
    from: Option<Box<dyn Elements>>,
    /// Rounds, this one included; `None` without end.
    left: Option<u64>,
    /// The round has given no element yet.
    is_fresh: bool,
}

impl Elements for Repeat {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        while let Some(from) = &mut self.from {
            turn::look();
            if let Some(element) = from.next(pull)? {
                self.is_fresh = false;
                return Ok(Some(element));
            }
            let goes_on = match &mut self.left {
                // An input without elements would be repeated forever.
                None => !self.is_fresh,
                Some(left) => {
                    *left -= 1;
                    *left > 0
                }
            };
            self.is_fresh = true;
            self.from = if goes_on { Some(self.dataset.elements(pull)?) } else { None };
        }
        Ok(None)
    }

    fn bytes(&self) -> usize {
        self.from.as_ref().map_or(0, |from| from.bytes())
    }
}

/// The elements of one dataset, then those of the other.
///
/// # Errors
/// InvalidArgument if their types differ.
pub(crate) fn concatenate(first: Arc<Dataset>, second: Arc<Dataset>) -> Result<Parts> {
    if first.spec.types != second.spec.types {
        let types =
            [&first, &second].map(|it| it.spec.types.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", "));
        let why = "input dataset and dataset to concatenate have different output_types";
        return Err(Failure::invalid(format!("{why} {} and {}", types[0], types[1])));
    }
    let cardinality = match (first.cardinality, second.cardinality) {
        (INFINITE, _) | (_, INFINITE) => INFINITE,
        (UNKNOWN, _) | (_, UNKNOWN) => UNKNOWN,
        (a, b) => a.saturating_add(b),
    };
    Ok(Parts::new(cardinality, move |pull| {
        Ok(Box::new(Chain { from: first.elements(pull)?, next: Some(Arc::clone(&second)) }))
    }))
}

struct Chain {
    from: Box<dyn Elements>,
    next: Option<Arc<Dataset>>,
}

impl Elements for Chain {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        loop {
            if let Some(element) = self.from.next(pull)? {
                return Ok(Some(element));
            }
            match self.next.take() {
                Some(next) => self.from = next.elements(pull)?,
                None => return Ok(None),
            }
        }
    }

    fn bytes(&self) -> usize {
        self.from.bytes()
    }
}

/// The elements of several datasets in parallel, until one of them ends.
pub(crate) fn zip(inputs: Vec<Arc<Dataset>>) -> Parts {
    let least = |a: Cardinality, b: Cardinality| match (a, b) {
        (INFINITE, other) | (other, INFINITE) => other,
        (UNKNOWN, _) | (_, UNKNOWN) => UNKNOWN,
        (a, b) => a.min(b),
    };
    let cardinality = inputs.iter().map(|input| input.cardinality).reduce(least).unwrap_or(0);
    Parts::new(cardinality, move |pull| {
        let from = inputs.iter().map(|input| input.elements(pull)).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(Zip { from }))
    })
}

struct Zip {
    /// Empty after the end.
    from: Vec<Box<dyn Elements>>,
}

impl Elements for Zip {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        if self.from.is_empty() {
            return Ok(None);
        }
        let mut all = Element::new();
        for from in &mut self.from {
            match from.next(pull)? {
                Some(element) => all.extend(element),
                None => {
                    self.from.clear();
                    return Ok(None);
                }
            }
        }
        Ok(Some(all))
    }

    fn bytes(&self) -> usize {
        self.from.iter().map(|from| from.bytes()).sum()
    }
}

/// Every `shards`-th element, from the one at `index` on.
///
/// # Errors
/// InvalidArgument if there is no such shard.
pub(crate) fn shard(input: Arc<Dataset>, shards: i64, index: i64, non_empty: bool) -> Result<Parts> {
    if shards <= 0 {
        return Err(Failure::invalid(format!(
            "Number of shards must be greater than zero (currently num_shards = {shards})."
        )));
    }
    if !(0..shards).contains(&index) {
        let why = format!("Index must be between 0 and {} (currently index = {index}).", shards - 1);
        return Err(Failure::invalid(why));
    }
    let cardinality = match input.cardinality {
        all @ (INFINITE | UNKNOWN) => all,
        all => all / shards + i64::from(index < all % shards),
    };
    Ok(Parts::new(cardinality, move |pull| {
        let mut skipped = 0;
        pulled(input.elements(pull)?, move |input, pull| {
            let before = if skipped == 0 { index } else { shards - 1 };
            for i in 0..before {
                turn::look();
                if input.next(pull)?.is_none() {
                    if non_empty && skipped == 0 {
                        return Err(Failure::invalid(format!(
                            "Could not apply FILE based sharding: the dataset only has {i} file(s), which is not enough for \
                             the required {shards} shards/workers."
                        )));
                    }
                    return Ok(None);
                }
            }
            skipped = 1;
            input.next(pull)
        })
    }))
}
