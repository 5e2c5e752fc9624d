//! The walks of elementwise kernels: over one operand, and over two that are broadcast.
//!
//! The result is written over an input where that one is nobody else's and has the result's dtype and shape.

use super::super::broadcast::Broadcast;
use crate::failure::Result;
use crate::tensor::{Element, Tensor};

/// `f` of each element, in place where possible.
pub fn map<T: Element + Copy>(mut x: Tensor, f: impl Fn(T) -> T) -> Result<Tensor> {
    if x.is_unique() {
        for x in x.slice_mut::<T>()? {
            *x = f(*x);
        }
        return Ok(x);
    }
    map_to(&x, |&x| f(x))
}

/// `f` of each element, of another dtype.
pub fn map_to<T: Element, R: Element>(x: &Tensor, f: impl Fn(&T) -> R) -> Result<Tensor> {
    Ok(Tensor::from_vec(x.shape().clone(), x.slice::<T>()?.iter().map(f).collect()))
}

/// `f` of each pair of elements, in place where possible.
///
/// # Errors
/// InvalidArgument where the shapes cannot be broadcast together.
pub fn zip<T: Element + Copy>(mut x: Tensor, mut y: Tensor, f: impl Fn(T, T) -> T) -> Result<Tensor> {
    if x.shape() == y.shape() {
        if x.is_unique() {
            for (x, &y) in x.slice_mut::<T>()?.iter_mut().zip(y.slice::<T>()?) {
                *x = f(*x, y);
            }
            return Ok(x);
        }
        if y.is_unique() {
            for (y, &x) in y.slice_mut::<T>()?.iter_mut().zip(x.slice::<T>()?) {
                *y = f(x, *y);
            }
            return Ok(y);
        }
    } else if x.is_unique() && *x.shape() == x.shape().broadcast(y.shape())? {
        let walk = Broadcast::new(x.shape(), [x.shape(), y.shape()]);
        let (row, [_, step]) = (walk.row(), walk.steps());
        let ys = y.slice::<T>()?;
        let xs = x.slice_mut::<T>()?;
        walk.for_each_row(|[from, with]| {
            let xs = &mut xs[from..from + row];
            if step == 0 {
                let y = ys[with];
                xs.iter_mut().for_each(|x| *x = f(*x, y));
            } else {
                xs.iter_mut().zip(&ys[with..with + row]).for_each(|(x, &y)| *x = f(*x, y));
            }
        });
        return Ok(x);
    }
    zip_to(&x, &y, |&x, &y| f(x, y))
}

/// `f` of each pair of elements, of another dtype.
///
/// # Errors
/// As [`zip`]; ResourceExhausted where the result would be too large.
pub fn zip_to<T: Element, R: Element>(x: &Tensor, y: &Tensor, f: impl Fn(&T, &T) -> R) -> Result<Tensor> {
    let (xs, ys) = (x.slice::<T>()?, y.slice::<T>()?);
    if x.shape() == y.shape() {
        return Ok(Tensor::from_vec(x.shape().clone(), xs.iter().zip(ys).map(|(x, y)| f(x, y)).collect()));
    }
    let shape = x.shape().broadcast(y.shape())?;
    let mut out = Vec::with_capacity(shape.checked_elements(R::DTYPE)?);
    let walk = Broadcast::new(&shape, [x.shape(), y.shape()]);
    let row = walk.row();
    match walk.steps() {
        [1, 1] => walk.for_each_row(|[a, b]| {
            out.extend(xs[a..a + row].iter().zip(&ys[b..b + row]).map(|(x, y)| f(x, y)));
        }),
        [1, _] => walk.for_each_row(|[a, b]| out.extend(xs[a..a + row].iter().map(|x| f(x, &ys[b])))),
        [_, 1] => walk.for_each_row(|[a, b]| out.extend(ys[b..b + row].iter().map(|y| f(&xs[a], y)))),
        // Nothing moves only where there is one element.
        _ => walk.for_each_row(|[a, b]| out.extend((0..row).map(|_| f(&xs[a], &ys[b])))),
    }
    Ok(Tensor::from_vec(shape, out))
}
