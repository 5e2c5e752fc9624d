//! Select and SelectV2: one of two values by a condition.

use std::iter::repeat;

use meshtf_loops::turn::{ELEMENTS, blocks};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Moved, Shape, Tensor, with_moved};

use super::super::Registry;
use super::super::broadcast::Broadcast;
use super::super::call::{input_dtype, kernel as call};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Select", |node| {
        let dtype = input_dtype(node, 1)?;
        Ok(with_moved!(dtype, T => call(select::<T>)))
    });
    ops.insert("SelectV2", |node| {
        let dtype = input_dtype(node, 1)?;
        Ok(with_moved!(dtype, T => call(|[condition, t, e]| {
            let shape = condition.shape().broadcast(t.shape())?.broadcast(e.shape())?;
            choose::<T>(shape, condition, t, e)
        })))
    });
}

fn select<T: Moved>([condition, t, e]: [Tensor; 3]) -> Result<Tensor> {
    let dims = condition_shape(condition.shape(), [t.shape(), e.shape()])?;
    choose::<T>(t.shape().clone(), condition.reshaped(dims)?, t, e)
}

/// The shape to which Select's condition is reshaped for broadcasting to the two values, which have one shape. The
/// condition has that shape, is a scalar, or has one element for each row.
///
/// # Errors
/// InvalidArgument if the shapes are incompatible.
pub fn condition_shape(condition: &Shape, [t, e]: [&Shape; 2]) -> Result<Shape> {
    if t != e {
        return Err(Failure::invalid(format!("'then' and 'else' must have the same size, but received: {t} vs. {e}")));
    }
    if condition.rank() == 0 || condition == t {
        return Ok(condition.clone());
    }
    match (condition.dims(), t.dims()) {
        (&[conditions], &[rows, ..]) if conditions == rows => {
            Ok([conditions].into_iter().chain(t.dims()[1..].iter().map(|_| 1)).collect())
        }
        _ => Err(Failure::invalid(format!(
            "Inputs to operation of type Select must have the same size and shape, or the condition must be a vector \
             that matches the first dimension. condition: {condition} != then: {t}"
        ))),
    }
}

fn choose<T: Moved>(shape: Shape, condition: Tensor, t: Tensor, e: Tensor) -> Result<Tensor> {
    if let (&[condition], true) = (condition.slice::<bool>()?, t.shape() == e.shape() && *t.shape() == shape) {
        return Ok(if condition { t } else { e });
    }
    let (conditions, ts, es) = (condition.slice::<bool>()?, t.moved::<T>()?, e.moved::<T>()?);
    let mut out = Vec::with_capacity(shape.checked_elements(t.dtype())?);
    let dtype = t.dtype();
    let walk = Broadcast::new(&shape, [condition.shape(), t.shape(), e.shape()]);
    let (row, [step_c, step_t, step_e]) = (walk.row(), walk.steps());
    for [c, t, e] in walk.rows() {
        // The common cases: one condition per element, or one for a whole row; each value a whole row or one element for
        // all of a row.
        if step_c == 1 {
            for (i, conditions) in blocks(&conditions[c..c + row]).enumerate() {
                let (t, e) = (t + i * ELEMENTS * step_t, e + i * ELEMENTS * step_e);
                match (step_t, step_e) {
                    (1, 1) => out.extend(choices(conditions, &ts[t..], &es[e..])),
                    (1, 0) => out.extend(choices(conditions, &ts[t..], repeat(&es[e]))),
                    (0, 1) => out.extend(choices(conditions, repeat(&ts[t]), &es[e..])),
                    _ => out.extend(choices(conditions, repeat(&ts[t]), repeat(&es[e]))),
                }
            }
            continue;
        }
        out.extend((0..row).map(|i| choice(conditions[c + i * step_c], &ts[t + i * step_t], &es[e + i * step_e])));
    }
    Ok(Tensor::from_moved(dtype, shape, out))
}

/// The choice for each condition.
fn choices<'a, T: Moved>(
    conditions: &'a [bool],
    t: impl IntoIterator<Item = &'a T>,
    e: impl IntoIterator<Item = &'a T>,
) -> impl Iterator<Item = T> {
    conditions.iter().zip(t).zip(e).map(|((&condition, t), e)| choice(condition, t, e))
}

/// The choice between two numbers. Both are read, so that the compiler needs no branch: a processor would predict few of
/// them.
#[inline(always)]
fn choice<T: Moved>(condition: bool, t: &T, e: &T) -> T {
    if std::mem::needs_drop::<T>() {
        return if condition { t.clone() } else { e.clone() };
    }
    let (t, e) = (t.clone(), e.clone());
    if condition { t } else { e }
}
