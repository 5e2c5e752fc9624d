//! Datasets of the elements that a function makes from a state: those of a Python generator.

use std::sync::Arc;

use meshtf_tensor::failure::{Code, Result};

use super::mapped::Captured;
use super::{Element, Elements, Instance, Parts, Pull, Spec, UNKNOWN};
use crate::token::Token;

/// The functions of such a dataset.
#[derive(Clone)]
pub(crate) struct Functions {
    /// Makes the state.
    pub init: Captured,
    /// Makes an element from the state, or fails with OutOfRange after the last.
    pub next: Captured,
    /// Is called with the state after the last element.
    pub finalize: Captured,
}

/// The elements that `next` makes.
pub(crate) fn generated(functions: Functions, spec: Spec) -> Parts {
    let functions = Arc::new(functions);
    Parts::new(UNKNOWN, move |pull| {
        let next = functions.next.instance(pull)?;
        Ok(Box::new(Generated {
            functions: Arc::clone(&functions),
            next,
            spec: spec.clone(),
            state: None,
            is_over: false,
        }))
    })
}

struct Generated {
    functions: Arc<Functions>,
    next: Box<dyn Instance>,
    spec: Spec,
    /// Made with the first element.
    state: Option<Vec<Token>>,
    is_over: bool,
}

impl Elements for Generated {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        if self.is_over {
            return Ok(None);
        }
        let state = match &self.state {
            Some(state) => state.clone(),
            None => self.state.insert(self.functions.init.instance(pull)?.call(Vec::new(), pull)?).clone(),
        };
        match self.next.call(state.clone(), pull) {
            Ok(element) => {
                self.spec.check(&element)?;
                Ok(Some(element))
            }
            Err(failure) if failure.code == Code::OutOfRange => {
                self.is_over = true;
                self.functions.finalize.instance(pull)?.call(state, pull)?;
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }
}
