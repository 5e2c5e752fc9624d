//! Datasets of datasets: each element is a window over some elements of another dataset.

use std::collections::VecDeque;
use std::sync::Arc;

use meshtf_loops::turn;
use meshtf_tensor::PartialShape;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;

use super::{Dataset, Element, Elements, INFINITE, Parts, Pull, Spec, UNKNOWN, bytes_of, given};
use crate::token::Token;

/// The selection of a window's elements.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    /// The number of elements.
    pub size: i64,
    /// The distance from the first element of a window to that of the next.
    pub shift: i64,
    /// The distance between two elements of a window.
    pub stride: i64,
    /// Whether windows with fewer elements are left out.
    pub drops: bool,
}

/// Windows over the elements: a dataset for each component.
///
/// # Errors
/// InvalidArgument if a number is not positive.
pub(crate) fn window(input: Arc<Dataset>, window: Window) -> Result<Parts> {
    let positive = |number: i64, what: &str| {
        let number = usize::try_from(number).ok().filter(|&number| number > 0);
        number.ok_or_else(|| Failure::invalid(format!("Window {what} must be greater than zero.")))
    };
    let (size, shift) = (positive(window.size, "size")?, positive(window.shift, "shift")?);
    let stride = positive(window.stride, "stride")?;
    let span = (size - 1).saturating_mul(stride).saturating_add(1);
    let cardinality = match (input.cardinality, window.drops) {
        (all @ (INFINITE | UNKNOWN), _) => all,
        (all, false) => all.div_ceil_by(shift),
        (all, true) => (all - i64::try_from(span).unwrap_or(i64::MAX) + 1).max(0).div_ceil_by(shift),
    };
    Ok(Parts::new(cardinality, move |pull| {
        let spec = input.spec.clone();
        let from = Some(input.elements(pull)?);
        Ok(Box::new(Windows { from, spec, held: VecDeque::new(), span, shift, stride, drops: window.drops }))
    }))
}

trait DivCeil {
    fn div_ceil_by(self, by: usize) -> i64;
}

impl DivCeil for i64 {
    fn div_ceil_by(self, by: usize) -> i64 {
        let by = i64::try_from(by).unwrap_or(i64::MAX);
        self / by + i64::from(self % by != 0)
    }
}

struct Windows {
    from: Option<Box<dyn Elements>>,
    /// The spec of the elements.
    spec: Spec,
    /// The elements and failures for the next window.
    held: VecDeque<Result<Element>>,
    span: usize,
    shift: usize,
    stride: usize,
    drops: bool,
}

impl Windows {
    /// The next element, or its failure; `None` at the end.
    fn pull(&mut self, pull: &Pull) -> Option<Result<Element>> {
        turn::look();
        let next = self.from.as_mut()?.next(pull).transpose();
        if next.is_none() {
            self.from = None;
        }
        next
    }
}

impl Elements for Windows {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        while self.held.len() < self.span {
            memory::grow()?;
            match self.pull(pull) {
                Some(element) => self.held.push_back(element),
                None => break,
            }
        }
        if self.held.is_empty() || self.drops && self.held.len() < self.span {
            return Ok(None);
        }
        let taken: Result<Vec<Element>> = self.held.iter().step_by(self.stride).cloned().collect();
        let held = self.held.len();
        for _ in held..self.shift {
            if self.pull(pull).is_none() {
                break;
            }
        }
        self.held.drain(..self.shift.min(held));
        let taken = taken?;
        let component = |i: usize| {
            let spec = Spec {
                types: vec![self.spec.types[i]],
                shapes: vec![self.spec.shapes.get(i).cloned().unwrap_or(PartialShape::UNKNOWN)],
            };
            let values: Option<Vec<Token>> = taken.iter().map(|element| element.get(i).cloned()).collect();
            let values = values.ok_or_else(|| Failure::invalid(format!("an element has no component {i}")))?;
            let elements = values.iter().map(|value| vec![value.clone()]).collect();
            Dataset::new(spec, values, whole(elements)).map(Token::from)
        };
        (0..self.spec.types.len()).map(component).collect::<Result<_>>().map(Some)
    }

    fn bytes(&self) -> usize {
        let held = self.held.iter().filter_map(|element| element.as_ref().ok());
        self.from.as_ref().map_or(0, |from| from.bytes()) + bytes_of(held)
    }
}

/// A dataset of these elements.
pub(super) fn whole(elements: Vec<Element>) -> Parts {
    let elements: Arc<[Element]> = elements.into();
    Parts::new(elements.len() as i64, move |_| {
        let (elements, mut at) = (Arc::clone(&elements), 0);
        given(move |_| {
            at += 1;
            Ok(elements.get(at - 1).cloned())
        })
    })
}
