//! The loops of elementwise kernels: over one operand, and over two that are broadcast.
//!
//! The result overwrites an input that is not shared and has the result's dtype and shape. Code generic over the function
//! is kept short, since it is compiled for every op and dtype.

use meshtf_loops::turn::{blocks, blocks_mut};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{Element, Shape, Tensor};

use super::super::array::broadcast_to;
use super::super::broadcast::Broadcast;
use super::super::call::owned;

/// `f` of each element, in place if the tensor is not shared.
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

/// `f` of each pair of elements, in place if an operand is not shared and has the result's shape.
///
/// # Errors
/// InvalidArgument if the shapes cannot be broadcast together; ResourceExhausted if the result would be too large.
pub fn zip<T: Element + Copy>(x: Tensor, y: Tensor, f: impl Fn(T, T) -> T) -> Result<Tensor> {
    let Operands { mut over, other, is_second, walk } = Operands::of(x, y)?;
    let (to, from) = (over.slice_mut::<T>()?, other.slice::<T>()?);
    for ([at, with], count) in walk.blocks() {
        let to = &mut to[at..at + count];
        if walk.steps()[1] == 0 {
            let other = from[with];
            if is_second {
                to.iter_mut().for_each(|y| *y = f(other, *y));
            } else {
                to.iter_mut().for_each(|x| *x = f(*x, other));
            }
        } else {
            let from = &from[with..with + count];
            if is_second {
                to.iter_mut().zip(from).for_each(|(y, &x)| *y = f(x, *y));
            } else {
                to.iter_mut().zip(from).for_each(|(x, &y)| *x = f(*x, y));
            }
        }
    }
    Ok(over)
}

/// Two operands, one of which is overwritten by the result.
struct Operands {
    /// The operand that is overwritten. It has the shape of the result and is not shared.
    over: Tensor,
    other: Tensor,
    /// Whether the second operand, not the first, is overwritten.
    is_second: bool,
    walk: Broadcast<2>,
}

impl Operands {
    fn of(x: Tensor, y: Tensor) -> Result<Operands> {
        let shape = if x.shape() == y.shape() { None } else { Some(x.shape().broadcast(y.shape())?) };
        let fits = |operand: &Tensor| shape.as_ref().is_none_or(|shape| operand.shape() == shape);
        let takes_first = fits(&x) && x.is_unique();
        let is_second = !takes_first && fits(&y) && (shape.is_some() || y.is_unique());
        let (over, other) = match shape {
            _ if is_second => (y, x),
            None => (x, y),
            Some(shape) => (broadcast_to(x, shape)?, y),
        };
        let walk = walk(over.shape(), [over.shape(), other.shape()]);
        Ok(Operands { over: owned(over)?, other, is_second, walk })
    }
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
    for ([a, b], count) in walk.blocks() {
        match walk.steps() {
            [1, 1] => out.extend(xs[a..a + count].iter().zip(&ys[b..b + count]).map(|(x, y)| f(x, y))),
            [1, _] => out.extend(xs[a..a + count].iter().map(|x| f(x, &ys[b]))),
            // At least one of them is contiguous in every row of the common shape.
            [_, _] => out.extend(ys[b..b + count].iter().map(|y| f(&xs[a], y))),
        }
    }
    Ok(Tensor::from_vec(shape, out))
}

#[inline]
fn walk(shape: &Shape, operands: [&Shape; 2]) -> Broadcast<2> {
    if operands[0] == operands[1] {
        Broadcast::flat(shape.elements().unwrap_or(0))
    } else {
        Broadcast::new(shape, operands)
    }
}
