//! What burn computes at once, where that is much: an answer made block by block, with a look between the blocks whether the step
//! was given up. An element of the answer is computed as without blocks.

use burn_backend::Slice;
use smallvec::SmallVec;

use super::array::{Array, Home, Site, float};
use super::memory::{Backing, held};
use crate::exec::kernel::call;
use crate::exec::turn;
use crate::tensor::{DType, Shape};

/// Where a block begins and how large it is, axis by axis.
pub(super) type Ranges = SmallVec<[(usize, usize); 8]>;

/// Most elements that one pass over an answer makes at once: some milliseconds.
const MOST_ELEMENTS: usize = 1 << 22;

/// Fewest elements for which blocks pay, as each is copied into the answer: an answer of this size is made in 50 ms.
const FEWEST_ELEMENTS: usize = 1 << 24;

/// Makes an answer of `shape` block by block, of at most the sizes `block`; `make` answers what belongs at a place.
pub(super) fn by_blocks<B: Backing>(
    site: &Site<B>,
    dtype: DType,
    shape: Shape,
    block: &[usize],
    mut make: impl FnMut(&Ranges) -> B::Raw,
) -> Array<B> {
    let mut raw = B::float_zeros(held(&shape), &site.device, float(dtype));
    let mut start: SmallVec<[usize; 8]> = SmallVec::from_elem(0, shape.rank());
    loop {
        turn::look();
        let sizes = start.iter().zip(shape.dims()).zip(block);
        let ranges: Ranges = sizes.map(|((&from, &size), &most)| (from, most.min(size - from))).collect();
        let part = make(&ranges);
        let place: SmallVec<[Slice; 8]> = ranges.iter().map(|&(from, count)| Slice::from(from..from + count)).collect();
        raw = B::float_slice_assign(raw, &place, part);
        if !advance(&mut start, block, shape.dims()) {
            return Array { raw, dtype, shape, home: Home::default() };
        }
    }
}

/// Goes on to the next block; false after the last.
pub(super) fn advance(start: &mut [usize], block: &[usize], dims: &[usize]) -> bool {
    for axis in (0..start.len()).rev() {
        start[axis] += block[axis];
        if start[axis] < dims[axis] {
            return true;
        }
        start[axis] = 0;
    }
    false
}

/// Whether a pass over so many elements is to be made in blocks. A GPU makes it at once.
pub(super) fn is_much<B: Backing>(shape: &Shape) -> bool {
    !B::REMOTE && call::product(shape.dims()) > FEWEST_ELEMENTS
}

/// A function of each element, or of those at one place in several arrays that are broadcast to `shape`: of the rank of that. The
/// last `whole` axes are not cut: the function looks along them.
pub(super) fn elementwise<B: Backing, const N: usize>(
    site: &Site<B>,
    dtype: DType,
    shape: Shape,
    whole: usize,
    arrays: [Array<B>; N],
    function: impl Fn([B::Raw; N]) -> B::Raw,
) -> Array<B> {
    let mut block: SmallVec<[usize; 8]> = SmallVec::from_elem(1, shape.rank());
    let mut left = MOST_ELEMENTS;
    for axis in (0..shape.rank()).rev() {
        let size = shape.dims()[axis];
        block[axis] = if axis + whole >= shape.rank() { size } else { size.min(left).max(1) };
        left /= block[axis];
        if block[axis] < size {
            break;
        }
    }
    by_blocks(site, dtype, shape, &block, |ranges| function(arrays.each_ref().map(|array| part(array, ranges).raw)))
}

/// The part of an array that meets a block of what it is broadcast to.
pub(super) fn part<B: Backing>(array: &Array<B>, ranges: &[(usize, usize)]) -> Array<B> {
    let sizes: SmallVec<[usize; 8]> = array.shape.dims().iter().copied().collect();
    let cut = sizes.iter().zip(ranges).enumerate().filter(|(_, (size, _))| **size > 1);
    cut.fold(array.clone(), |array, (axis, (_, &(from, count)))| array.narrow(axis, from, count))
}

#[cfg(test)]
mod tests {
    use burn_backend::BoolDType;

    use super::*;
    use crate::tensor::Tensor;

    fn sum<B: Backing>(site: &Site<B>, shape: Shape, operands: [Tensor; 2]) -> Tensor {
        let arrays = operands.map(|tensor| site.array(tensor.into()).unwrap());
        let sum = elementwise(site, DType::F32, shape, 0, arrays, |[x, y]| B::float_add(x, y));
        sum.value().into_host().unwrap()
    }

    #[test]
    fn blocks_of_an_elementwise_function_meet_what_is_broadcast() {
        let floats = vec![DType::F32];
        let site: Site<burn_flex::Flex> = Site { device: Default::default(), bools: BoolDType::Native, floats };
        let (rows, columns) = (3, FEWEST_ELEMENTS / 3 + 1);
        let shape = Shape::from([rows, columns]);
        assert!(is_much::<burn_flex::Flex>(&shape));
        let column = Tensor::from_vec([rows, 1], vec![10f32, 20.0, 30.0]);
        let row = Tensor::from_vec([1, columns], (0..columns).map(|i| (i % 7) as f32).collect::<Vec<_>>());
        let sum = sum(&site, shape, [column, row]);
        let elements = sum.slice::<f32>().unwrap();
        assert_eq!(elements.len(), rows * columns);
        let wanted = |at: usize| (10 * (1 + at / columns) + at % columns % 7) as f32;
        assert_eq!(elements.iter().enumerate().find(|&(at, &x)| x != wanted(at)), None);
    }
}
