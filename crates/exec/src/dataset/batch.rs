//! Datasets of batches of another's elements, or of their rows.

use std::sync::Arc;

use meshtf_loops::turn;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;

use super::component::{hosted, row_of, rows_of, stacked};
use super::{Dataset, Element, Elements, INFINITE, Parts, Pull, UNKNOWN, pulled};

/// Batches of `size` elements, stacked; the last elements are left out if they are fewer and `drops`.
///
/// # Errors
/// InvalidArgument if the size is not positive.
pub(crate) fn batch(input: Arc<Dataset>, size: i64, drops: bool) -> Result<Parts> {
    let size = batch_size(size)?;
    let cardinality = batches(input.cardinality, size, drops);
    Ok(Parts::new(cardinality, move |pull| {
        pulled(input.elements(pull)?, move |input, pull| {
            let Some(elements) = gather(input, pull, size, drops)? else { return Ok(None) };
            (0..elements[0].len()).map(|i| stacked(&elements, i)).collect::<Result<_>>().map(Some)
        })
    }))
}

pub(super) fn batch_size(size: i64) -> Result<usize> {
    usize::try_from(size)
        .ok()
        .filter(|&size| size > 0)
        .ok_or_else(|| Failure::invalid("Batch size must be greater than zero."))
}

pub(super) fn batches(elements: i64, size: usize, drops: bool) -> i64 {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    match elements {
        INFINITE | UNKNOWN => elements,
        elements => elements / size + i64::from(!drops && elements % size != 0),
    }
}

/// The next elements, at most as many as fit a batch; `None` if there are none, or too few and `drops` is set.
pub(super) fn gather(input: &mut dyn Elements, pull: &Pull, size: usize, drops: bool) -> Result<Option<Vec<Element>>> {
    let mut elements = Vec::new();
    while elements.len() < size {
        turn::look();
        match input.next(pull)? {
            Some(element) => elements.push(hosted(element)?),
            None => break,
        }
        memory::grow()?;
    }
    let is_enough = elements.len() == size || !drops && !elements.is_empty();
    Ok(is_enough.then_some(elements))
}

/// Each row of each element.
pub(crate) fn unbatch(input: Arc<Dataset>) -> Parts {
    let first = input.spec.shapes.first().and_then(|shape| *shape.0.as_ref()?.first()?);
    let cardinality = match (input.cardinality, first) {
        (as_it_is @ (INFINITE | UNKNOWN | 0), _) => as_it_is,
        (_, None) => UNKNOWN,
        (elements, Some(rows)) => elements.saturating_mul(i64::try_from(rows).unwrap_or(i64::MAX)),
    };
    Parts::new(cardinality, move |pull| {
        // The element that is split, the index of its next row, and the number of its rows.
        let (mut element, mut at, mut count) = (Vec::new(), 0, 0);
        pulled(input.elements(pull)?, move |input, pull| {
            while at == count {
                turn::look();
                let Some(next) = input.next(pull)? else { return Ok(None) };
                (element, at, count) = (Vec::new(), 0, 0);
                let next = hosted(next)?;
                count = rows_of(&next)?;
                element = next;
            }
            at += 1;
            row_of(&element, at - 1).map(Some)
        })
    })
}
