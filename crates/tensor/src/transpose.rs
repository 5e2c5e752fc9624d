//! A tensor with its axes in another order.

use super::{Shape, Tensor, with_quantized, with_type};
use crate::failure::{Failure, Result};
use crate::memory;

/// The tensor whose axis `i` is axis `order[i]` of this one.
///
/// # Errors
/// InvalidArgument if these are no order of its axes; ResourceExhausted if there is not enough memory for it.
pub fn transposed(x: &Tensor, order: &[usize]) -> Result<Tensor> {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..x.rank()) {
        return Err(Failure::invalid(format!("axes {order:?} are no order of its {} axes", x.rank())));
    }
    let strides = x.shape().strides();
    let dims: Vec<usize> = order.iter().map(|&axis| x.dims()[axis]).collect();
    let steps: Vec<usize> = order.iter().map(|&axis| strides[axis]).collect();
    memory::admit(x.heap_bytes())?;
    let dtype = x.dtype();
    let moved = with_quantized!(dtype, T => {
        Tensor::from_stored(dtype, Shape::from(&dims[..]), in_order(x.stored::<T>()?, &dims, &steps))
    });
    let moved = match moved {
        None => with_type!(dtype, T => {
            Tensor::from_vec(Shape::from(&dims[..]), in_order(x.slice::<T>()?, &dims, &steps))
        }),
        moved => moved,
    };
    moved.ok_or_else(|| Failure::invalid("handles are not transposed"))
}

/// The elements in the order of these dimensions, where each step along one is so many elements.
fn in_order<T: Clone>(from: &[T], dims: &[usize], steps: &[usize]) -> Vec<T> {
    let mut all = Vec::with_capacity(from.len());
    let (mut index, mut at) = (vec![0usize; dims.len()], 0usize);
    for _ in 0..from.len() {
        all.push(from[at].clone());
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            at += steps[axis];
            if index[axis] < dims[axis] {
                break;
            }
            at -= steps[axis] * dims[axis];
            index[axis] = 0;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn quantised_numbers_keep_their_dtype() {
        let of = |x: Tensor, dtype| x.retyped(dtype).unwrap();
        let x = of(Tensor::from_vec([2, 3], vec![-1i8, 2, 3, 4, 5, 6]), DType::QI8);
        assert_eq!(
            transposed(&x, &[1, 0]).unwrap(),
            of(Tensor::from_vec([3, 2], vec![-1i8, 4, 2, 5, 3, 6]), DType::QI8)
        );
        let x = of(Tensor::from_vec([1, 2], vec![7i32, -8]), DType::QI32);
        assert_eq!(transposed(&x, &[1, 0]).unwrap(), of(Tensor::from_vec([2, 1], vec![7i32, -8]), DType::QI32));
    }

    #[test]
    fn axes_change_places() {
        let x = Tensor::from_vec([2, 3, 1], vec![1i16, 2, 3, 4, 5, 6]);
        assert_eq!(transposed(&x, &[1, 2, 0]).unwrap(), Tensor::from_vec([3, 1, 2], vec![1i16, 4, 2, 5, 3, 6]));
        assert_eq!(transposed(&x, &[0, 1, 2]).unwrap(), x);
        let texts = Tensor::from_vec([1, 2], vec![b"a".to_vec(), b"bc".to_vec()]);
        assert_eq!(transposed(&texts, &[1, 0]).unwrap(), texts.clone().reshaped([2, 1]).unwrap());
        assert_eq!(transposed(&Tensor::scalar(true), &[]).unwrap(), Tensor::scalar(true));
        let none = Tensor::from_vec([0, 4], Vec::<f64>::new());
        assert_eq!(transposed(&none, &[1, 0]).unwrap().dims(), [4, 0]);
        for order in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3]] {
            let why = transposed(&x, order).unwrap_err().message;
            assert!(why.contains("are no order of its 3 axes"), "{why}");
        }
    }
}
