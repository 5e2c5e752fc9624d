//! The walks of elementwise kernels: over one operand, and over two that are broadcast.
//!
//! The result overwrites an input that is not shared if it has the result's dtype and shape. Code generic over the
//! function is kept short, since it is compiled for every op and dtype.

use super::super::array::broadcast_to;
use super::super::broadcast::Broadcast;
use super::super::call::owned;
use crate::exec::turn::{ELEMENTS, blocks, blocks_mut, look};
use crate::failure::Result;
use crate::tensor::{Element, Shape, Tensor};

/// `f` of each element, in place if possible.
pub fn map<T: Element + Copy>(x: Tensor, f: impl Fn(T) -> T) -> Result<Tensor> {
    let mut x = owned(x)?;
    for block in blocks_mut(x.slice_mut::<T>()?) {
        block.iter_mut().for_each(|x| *x = f(*x));
    }
    Ok(x)
}

/// `f` of each element, of another dtype.
pub fn map_to<T: Element, R: Element>(x: &Tensor, f: impl Fn(&T) -> R) -> Result<Tensor> {
    let mut out = Vec::with_capacity(x.shape().checked_elements(R::DTYPE)?);
    for block in blocks(x.slice::<T>()?) {
        out.extend(block.iter().map(&f));
    }
    Ok(Tensor::from_vec(x.shape().clone(), out))
}

/// `f` of each pair of elements, in place if possible.
///
/// # Errors
/// InvalidArgument if the shapes cannot be broadcast together; ResourceExhausted if the result would be too large.
pub fn zip<T: Element + Copy>(x: Tensor, y: Tensor, f: impl Fn(T, T) -> T) -> Result<Tensor> {
    if x.shape() == y.shape() {
        return if !x.is_unique() && y.is_unique() { over(y, &x, |y, x| f(x, y)) } else { over(x, &y, f) };
    }
    let shape = x.shape().broadcast(y.shape())?;
    if *y.shape() == shape && !(*x.shape() == shape && x.is_unique()) {
        return over(y, &x, |y, x| f(x, y));
    }
    over(broadcast_to(x, shape)?, &y, f)
}

/// Overwrites `x` with `f` of each pair; `y` is broadcast to the shape of `x`.
fn over<T: Element + Copy>(x: Tensor, y: &Tensor, f: impl Fn(T, T) -> T) -> Result<Tensor> {
    let mut x = owned(x)?;
    let walk = walk(x.shape(), [x.shape(), y.shape()]);
    let (row, [_, step]) = (walk.row(), walk.steps());
    let ys = y.slice::<T>()?;
    let xs = x.slice_mut::<T>()?;
    for [at, with] in walk.rows() {
        let xs = &mut xs[at..at + row];
        for (i, xs) in blocks_mut(xs).enumerate() {
            if step == 0 {
                let y = ys[with];
                xs.iter_mut().for_each(|x| *x = f(*x, y));
            } else {
                let ys = &ys[with + i * ELEMENTS..][..xs.len()];
                xs.iter_mut().zip(ys).for_each(|(x, &y)| *x = f(*x, y));
            }
        }
    }
    Ok(x)
}

/// `f` of each pair of elements, of another dtype.
///
/// # Errors
/// As [`zip`].
pub fn zip_to<T: Element, R: Element>(x: &Tensor, y: &Tensor, f: impl Fn(&T, &T) -> R) -> Result<Tensor> {
    let (xs, ys) = (x.slice::<T>()?, y.slice::<T>()?);
    let shape = x.shape().broadcast(y.shape())?;
    let mut out = Vec::with_capacity(shape.checked_elements(R::DTYPE)?);
    let walk = walk(&shape, [x.shape(), y.shape()]);
    let (row, steps) = (walk.row(), walk.steps());
    for [a, b] in walk.rows() {
        for first in (0..row).step_by(ELEMENTS) {
            if first > 0 {
                look();
            }
            let count = ELEMENTS.min(row - first);
            let (a, b) = (a + first * steps[0], b + first * steps[1]);
            match steps {
                [1, 1] => out.extend(xs[a..a + count].iter().zip(&ys[b..b + count]).map(|(x, y)| f(x, y))),
                [1, 0] => out.extend(xs[a..a + count].iter().map(|x| f(x, &ys[b]))),
                [0, 1] => out.extend(ys[b..b + count].iter().map(|y| f(&xs[a], y))),
                _ => out.extend((0..count).map(|i| f(&xs[a + i * steps[0]], &ys[b + i * steps[1]]))),
            }
        }
    }
    Ok(Tensor::from_vec(shape, out))
}

fn walk(shape: &Shape, operands: [&Shape; 2]) -> Broadcast<2> {
    if operands[0] == operands[1] {
        Broadcast::flat(shape.elements().unwrap_or(0))
    } else {
        Broadcast::new(shape, operands)
    }
}
