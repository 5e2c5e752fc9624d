//! Datasets of the elements of other datasets, which a function makes from each element: one after the other, or by turns.

use std::sync::Arc;

use meshtf_loops::turn;
use meshtf_tensor::failure::{Failure, Result};

use super::mapped::{Captured, checked, dataset_of};
use super::{Dataset, Element, Elements, Instance, Parts, Pull, Spec, UNKNOWN};

/// The elements of the dataset that the function makes from the first element, then those of the next, and so on.
pub(crate) fn flat_map(input: Arc<Dataset>, function: Captured, spec: Spec) -> Parts {
    Parts::new(UNKNOWN, move |pull| {
        Ok(Box::new(FlatMap {
            from: input.elements(pull)?,
            function: function.instance(pull)?,
            spec: spec.clone(),
            of: None,
        }))
    })
}

struct FlatMap {
    from: Box<dyn Elements>,
    function: Box<dyn Instance>,
    spec: Spec,
    of: Option<Box<dyn Elements>>,
}

impl Elements for FlatMap {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        loop {
            turn::look();
            if let Some(of) = &mut self.of {
                if let Some(element) = of.next(pull)? {
                    return Ok(Some(element));
                }
                self.of = None;
            }
            match self.from.next(pull)? {
                Some(element) => self.of = Some(opened(&mut *self.function, element, &self.spec, pull)?),
                None => return Ok(None),
            }
        }
    }

    fn bytes(&self) -> usize {
        self.from.bytes() + self.of.as_ref().map_or(0, |of| of.bytes())
    }
}

/// The elements of the dataset that the function makes from an element.
pub(super) fn opened(
    function: &mut dyn Instance,
    element: Element,
    spec: &Spec,
    pull: &Pull,
) -> Result<Box<dyn Elements>> {
    checked(dataset_of(function.call(element, pull)?)?, spec)?.elements(pull)
}

/// Cycles through several datasets: a block of elements of one, then as many of the next.
///
/// # Errors
/// InvalidArgument if one of the two numbers is not positive.
pub(crate) fn interleave(input: Arc<Dataset>, function: Captured, spec: Spec, cycle: i64, block: i64) -> Result<Parts> {
    let positive = |number: i64, what: &str| {
        let number = usize::try_from(number).ok().filter(|&number| number > 0);
        number.ok_or_else(|| Failure::invalid(format!("{what} must be greater than zero.")))
    };
    let (cycle, block) = (positive(cycle, "cycle_length")?, positive(block, "block_length")?);
    Ok(Parts::new(UNKNOWN, move |pull| {
        Ok(Box::new(Interleave {
            from: input.elements(pull)?,
            has_ended: false,
            function: function.instance(pull)?,
            spec: spec.clone(),
            open: Vec::new(),
            cycle,
            block,
            at: 0,
            given: 0,
        }))
    }))
}

struct Interleave {
    from: Box<dyn Elements>,
    /// The input has ended.
    has_ended: bool,
    function: Box<dyn Instance>,
    spec: Spec,
    /// The datasets that take turns; a slot whose dataset has ended is free for the next.
    open: Vec<Option<Box<dyn Elements>>>,
    cycle: usize,
    block: usize,
    /// The slot whose turn it is, and the number of elements it has given in this turn.
    at: usize,
    given: usize,
}

impl Interleave {
    fn turn_to_next(&mut self) {
        self.given = 0;
        self.at = (self.at + 1) % self.cycle;
        // Slots that never had a dataset get no turn once the input has ended.
        if self.has_ended && self.at >= self.open.len() {
            self.at = 0;
        }
    }
}

impl Elements for Interleave {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        while !self.has_ended || self.open.iter().any(Option::is_some) {
            turn::look();
            if let Some(Some(open)) = self.open.get_mut(self.at) {
                match open.next(pull)? {
                    Some(element) => {
                        self.given += 1;
                        if self.given == self.block {
                            self.turn_to_next();
                        }
                        return Ok(Some(element));
                    }
                    None => {
                        self.open[self.at] = None;
                        self.turn_to_next();
                    }
                }
            } else if self.has_ended {
                self.turn_to_next();
            } else {
                match self.from.next(pull)? {
                    Some(element) => {
                        let opened = opened(&mut *self.function, element, &self.spec, pull)?;
                        match self.open.get_mut(self.at) {
                            Some(place) => *place = Some(opened),
                            None => self.open.push(Some(opened)),
                        }
                    }
                    None => self.has_ended = true,
                }
            }
        }
        Ok(None)
    }

    fn bytes(&self) -> usize {
        self.from.bytes() + self.open.iter().flatten().map(|open| open.bytes()).sum::<usize>()
    }
}
