//! Datasets whose elements a function makes or selects.

use std::sync::Arc;

use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::{Callee, Cardinality, Dataset, Element, INFINITE, Instance, Parts, Pull, Spec, UNKNOWN, pulled};
use crate::token::Token;

/// A function that an op holds, and the values it captured.
#[derive(Clone)]
pub(crate) struct Captured {
    pub callee: Arc<dyn Callee>,
    pub values: Vec<Token>,
}

impl Captured {
    pub fn instance(&self, pull: &Pull) -> Result<Box<dyn Instance>> {
        Arc::clone(&self.callee).instance(self.values.clone(), pull)
    }
}

/// The function's result for each element. If it fails with OutOfRange, that is a failure if the number of elements is to be
/// kept, and the end if not.
pub(crate) fn map(input: Arc<Dataset>, function: Captured, keeps_count: bool) -> Parts {
    Parts::new(input.cardinality, move |pull| {
        let mut function = function.instance(pull)?;
        pulled(input.elements(pull)?, move |input, pull| match input.next(pull)? {
            None => Ok(None),
            Some(element) => mapped(&mut *function, element, keeps_count, pull),
        })
    })
}

fn mapped(function: &mut dyn Instance, element: Element, keeps_count: bool, pull: &Pull) -> Result<Option<Element>> {
    match function.call(element, pull) {
        Err(failure) if failure.code == Code::OutOfRange && keeps_count => {
            let message = format!("Function invocation produced OutOfRangeError: {}", failure.message);
            Err(Failure { code: Code::InvalidArgument, message, ..failure })
        }
        Err(failure) if failure.code == Code::OutOfRange => Ok(None),
        answer => answer.map(Some),
    }
}

/// The elements that satisfy the predicate. Reports the number of these and of the other elements, under the name of the node.
pub(crate) fn filter(input: Arc<Dataset>, function: Captured, name: String) -> Parts {
    Parts::new(fewer(input.cardinality), move |pull| {
        let (mut function, mut dropped, mut kept) = (function.instance(pull)?, 0u64, 0u64);
        let names = [format!("{name}::dropped_elements"), format!("{name}::filtered_elements")];
        pulled(input.elements(pull)?, move |input, pull| {
            loop {
                turn::look();
                let Some(element) = input.next(pull)? else { return Ok(None) };
                let is_kept = truth(function.call(element.clone(), pull)?)?;
                let count = if is_kept { &mut kept } else { &mut dropped };
                *count += 1;
                if let Some(statistics) = pull.statistics {
                    statistics.set(&names[usize::from(is_kept)], *count as f32)?;
                }
                if is_kept {
                    return Ok(Some(element));
                }
            }
        })
    })
}

/// The elements whose last component is true, without that component.
pub(crate) fn filter_by_last(input: Arc<Dataset>) -> Parts {
    Parts::new(fewer(input.cardinality), move |pull| {
        pulled(input.elements(pull)?, move |input, pull| {
            loop {
                turn::look();
                let Some(mut element) = input.next(pull)? else { return Ok(None) };
                if truth(element.pop().into_iter().collect())? {
                    return Ok(Some(element));
                }
            }
        })
    })
}

/// The elements before the first that does not satisfy the predicate.
pub(crate) fn take_while(input: Arc<Dataset>, function: Captured) -> Parts {
    Parts::new(fewer(input.cardinality), move |pull| {
        let (mut function, mut has_ended) = (function.instance(pull)?, false);
        pulled(input.elements(pull)?, move |input, pull| {
            if has_ended {
                return Ok(None);
            }
            let Some(element) = input.next(pull)? else { return Ok(None) };
            has_ended = !truth(function.call(element.clone(), pull)?)?;
            Ok((!has_ended).then_some(element))
        })
    })
}

fn fewer(cardinality: Cardinality) -> Cardinality {
    if cardinality == 0 { 0 } else { UNKNOWN }
}

/// The answer of a predicate.
fn truth(answer: Element) -> Result<bool> {
    match <[Token; 1]>::try_from(answer) {
        Ok([token]) => {
            let tensor = token.host()?;
            let message = "Filter predicate `f` must return a scalar bool.";
            if tensor.rank() == 0 { tensor.item() } else { Err(Failure::invalid(message)) }
        }
        Err(_) => Err(Failure::invalid("Filter predicate `f` must return a scalar bool.")),
    }
}

/// The function's results for a state and each element; it returns the next state, and an element.
pub(crate) fn scan(input: Arc<Dataset>, initial: Vec<Token>, function: Captured, keeps_count: bool) -> Parts {
    Parts::new(input.cardinality, move |pull| {
        let (mut function, mut state) = (function.instance(pull)?, initial.clone());
        pulled(input.elements(pull)?, move |input, pull| {
            let Some(element) = input.next(pull)? else { return Ok(None) };
            let args = state.iter().cloned().chain(element).collect();
            let Some(mut answer) = mapped(&mut *function, args, keeps_count, pull)? else { return Ok(None) };
            if answer.len() < state.len() {
                return Err(Failure::invalid("the function of a scan answers less than its state"));
            }
            let made = answer.split_off(state.len());
            state = answer;
            Ok(Some(made))
        })
    })
}

/// The last state when the function has made a new one from each element.
///
/// # Errors
/// The failure of an element or of a call.
pub(crate) fn reduce(input: &Dataset, initial: Vec<Token>, function: &Captured, pull: &Pull) -> Result<Vec<Token>> {
    let mut function = function.instance(pull)?;
    let mut elements = input.iterate(pull)?;
    let mut state = initial;
    while let Some(element) = elements.next(pull)? {
        turn::look();
        state = function.call(state.into_iter().chain(element).collect(), pull)?;
    }
    Ok(state)
}

/// The elements without those that failed.
pub(crate) fn ignore_errors(input: Arc<Dataset>) -> Parts {
    let cardinality = match input.cardinality {
        INFINITE => INFINITE,
        other => fewer(other),
    };
    Parts::new(cardinality, move |pull| {
        pulled(input.elements(pull)?, move |input, pull| {
            loop {
                turn::look();
                match input.next(pull) {
                    Err(failure) if matches!(failure.code, Code::Cancelled | Code::ResourceExhausted) => {
                        return Err(failure);
                    }
                    Err(_) => {}
                    next => return next,
                }
            }
        })
    })
}

/// The dataset that a function returned.
pub(crate) fn dataset_of(answer: Element) -> Result<Arc<Dataset>> {
    let [Token::Variant(crate::token::Variant::Dataset(dataset))] = &answer[..] else {
        return Err(Failure::invalid("the function must answer one dataset"));
    };
    Ok(Arc::clone(dataset))
}

/// Refuses a dataset whose elements differ from the node's declaration.
pub(super) fn checked(dataset: Arc<Dataset>, spec: &Spec) -> Result<Arc<Dataset>> {
    dataset.spec.check_against(spec).map(|()| dataset)
}
