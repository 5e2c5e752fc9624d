//! Datasets without an input dataset: of given tensors, and of numbers.

use meshtf_kernels::cast;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::component::{hosted, row_of, rows_of};
use super::{INFINITE, Parts, given};
use crate::token::Token;

/// One element: these components.
pub(crate) fn whole(components: Vec<Token>) -> Parts {
    Parts::new(1, move |_| {
        let mut left = Some(components.clone());
        given(move |_| Ok(left.take()))
    })
}

/// An element for each row of some components.
///
/// # Errors
/// InvalidArgument if they have different numbers of rows, or one is a scalar.
pub(crate) fn slices(components: Vec<Token>) -> Result<Parts> {
    let components = hosted(components)?;
    let count = rows_of(&components)?;
    Ok(Parts::new(count as i64, move |_| {
        let (components, mut at) = (components.clone(), 0);
        given(move |_| {
            if at == count {
                return Ok(None);
            }
            at += 1;
            row_of(&components, at - 1).map(Some)
        })
    }))
}

/// The whole numbers from `start` on, below `stop` (above it, if `step` is negative), as `dtype`.
///
/// # Errors
/// InvalidArgument if the step is 0.
pub(crate) fn range(start: i64, stop: i64, step: i64, dtype: DType) -> Result<Parts> {
    if step == 0 {
        return Err(Failure::invalid("step must be a non-zero integer."));
    }
    let span = if step > 0 { i128::from(stop) - i128::from(start) } else { i128::from(start) - i128::from(stop) };
    let size = i128::from(step).abs();
    let count = ((span + size - 1) / size).max(0);
    Ok(Parts::new(i64::try_from(count).unwrap_or(INFINITE), move |_| {
        let mut at: i128 = 0;
        given(move |_| {
            if at == count {
                return Ok(None);
            }
            let number = i128::from(start) + at * i128::from(step);
            at += 1;
            // The number fits 64 bits, as it is between two such numbers.
            let number = Tensor::scalar(number as i64);
            let number = if dtype == DType::I64 { number } else { cast(number, dtype)? };
            Ok(Some(vec![number.into()]))
        })
    }))
}
