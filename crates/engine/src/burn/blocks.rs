//! Large computations of burn, block by block, so that the step can be cancelled between blocks. Each element is computed as
//! without blocks.

use burn_backend::{Slice, TensorData, TensorMetadata, try_read_sync};
use meshtf_kernels::call;
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Element, Ring, Shape, with_float};
use smallvec::SmallVec;

use super::array::{Array, Home};
use super::memory::{Backing, Order, held};

/// Start and size of a block along each axis.
pub(super) type Ranges = SmallVec<[(usize, usize); 8]>;

/// Size of a block along each axis.
pub(super) type Sizes = SmallVec<[usize; 8]>;

/// Most elements that one pass computes at once: some milliseconds.
pub(super) const MOST_ELEMENTS: usize = 1 << 22;

/// Fewest elements for which blocks pay, since each block is copied into the result: one of this size takes 50 ms.
const FEWEST_ELEMENTS: usize = 1 << 24;

/// Most elements reordered at once if neighbours are far apart, which takes ten times as long.
const MOST_SCATTERED: usize = MOST_ELEMENTS / 8;

/// Fewest rows in a block of reordered elements: as many neighbours as a cache line holds.
const FEWEST_ROWS: usize = 16;

/// Makes a result of `shape` in blocks of at most the sizes `block`; `make` computes the block at a position. The work of a
/// block makes the cost of the indirect call negligible.
///
/// # Errors
/// ResourceExhausted if there is not enough memory for the result; else the error of `make`.
pub(super) fn by_blocks<B: Backing>(
    device: &B::Device,
    dtype: DType,
    shape: Shape,
    block: &[usize],
    make: &mut dyn FnMut(&Ranges) -> Result<B::Raw>,
) -> Result<Array<B>> {
    shape.checked_elements(dtype)?;
    let no_float = || Failure::new(Code::Internal, format!("{dtype} cannot be computed in blocks"));
    let raw = if are_consecutive(block, shape.dims()) {
        with_float!(dtype, T => from_consecutive::<B, T>(device, &shape, block, make)).ok_or_else(no_float)??
    } else {
        // A vector of their type, since bytes would be copied on their way to the host.
        let zeros = with_float!(dtype, T => {
            TensorData::new(vec![<T as Ring>::ZERO; call::product(shape.dims())], held(&shape))
        });
        let mut raw = Some(B::float_from_data(zeros.ok_or_else(no_float)?, device));
        each_block(shape.dims(), block, &mut |ranges| {
            let part = make(ranges)?;
            let place: SmallVec<[Slice; 8]> =
                ranges.iter().map(|&(from, count)| Slice::from(from..from + count)).collect();
            raw = raw.take().map(|raw| B::float_slice_assign(raw, &place, part));
            Ok(())
        })?;
        raw.ok_or_else(|| Failure::new(Code::Internal, "the result was already taken"))?
    };
    Ok(Array { raw, dtype, shape, home: Home::default() })
}

/// Calls `act` with the position of each block, in the order of the elements; checks before each whether to stop.
fn each_block(dims: &[usize], block: &[usize], act: &mut dyn FnMut(&Ranges) -> Result<()>) -> Result<()> {
    let mut start = Sizes::from_elem(0, dims.len());
    loop {
        turn::look();
        let sizes = start.iter().zip(dims).zip(block);
        act(&sizes.map(|((&from, &size), &most)| (from, most.min(size - from))).collect())?;
        if !advance(&mut start, block, dims) {
            return Ok(());
        }
    }
}

/// Whether the blocks are consecutive runs of elements.
fn are_consecutive(block: &[usize], dims: &[usize]) -> bool {
    let innermost_cut = (0..dims.len()).rev().find(|&axis| block[axis] < dims[axis]);
    innermost_cut.is_none_or(|cut| (0..cut).all(|axis| block[axis].min(dims[axis]) == 1))
}

/// A result of consecutive blocks, in which nothing is written twice.
fn from_consecutive<B: Backing, E: Element + burn_backend::Element + bytemuck::Pod>(
    device: &B::Device,
    shape: &Shape,
    block: &[usize],
    make: &mut dyn FnMut(&Ranges) -> Result<B::Raw>,
) -> Result<B::Raw> {
    let mut elements: Vec<E> = Vec::with_capacity(call::product(shape.dims()));
    each_block(shape.dims(), block, &mut |ranges| {
        let part = make(ranges)?;
        if let Some((part, _)) = B::elements::<E>(&part) {
            elements.extend_from_slice(part);
            return Ok(());
        }
        let failed = || Failure::new(Code::Internal, "the backend failed to hand a block over");
        let data = try_read_sync(B::float_into_data(part)).ok_or_else(failed)?.map_err(|_| failed())?;
        elements.extend_from_slice(data.as_slice::<E>().map_err(|_| failed())?);
        Ok(())
    })?;
    Ok(B::float_from_data(TensorData::new(elements, held(shape)), device))
}

/// Advances to the next block; false after the last.
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

/// Whether a pass over this many elements is done in blocks. A GPU does it at once.
pub(super) fn is_large<B: Backing>(shape: &Shape) -> bool {
    !B::REMOTE && call::product(shape.dims()) > FEWEST_ELEMENTS
}

/// Consecutive blocks of some milliseconds each: as many of the last axes as that allows. The last `whole` axes are not
/// cut.
pub(super) fn leading(shape: &Shape, whole: usize) -> Sizes {
    leading_of(shape.dims(), whole, MOST_ELEMENTS)
}

fn leading_of(dims: &[usize], whole: usize, most: usize) -> Sizes {
    let mut block = Sizes::from_elem(1, dims.len());
    let mut left = most;
    for axis in (0..dims.len()).rev() {
        let size = dims[axis];
        block[axis] = if axis + whole >= dims.len() { size } else { size.min(left).max(1) };
        left /= block[axis].max(1);
        if block[axis] < size {
            break;
        }
    }
    block
}

/// A function of the elements at each position of arrays that are broadcast to `shape` and have its rank. The last
/// `whole` axes are not cut: the function works along them.
///
/// # Errors
/// As [`by_blocks`].
pub(super) fn elementwise<B: Backing, const N: usize>(
    device: &B::Device,
    dtype: DType,
    shape: Shape,
    whole: usize,
    arrays: [Array<B>; N],
    function: impl Fn([B::Raw; N]) -> B::Raw,
) -> Result<Array<B>> {
    let block = leading(&shape, whole);
    by_blocks(device, dtype, shape, &block, &mut |ranges| {
        Ok(function(arrays.each_ref().map(|array| part(array, ranges).raw)))
    })
}

/// The same elements, put in order.
///
/// # Errors
/// As [`by_blocks`].
pub(super) fn laid_out<B: Backing>(x: Array<B>) -> Result<Array<B>> {
    let is_scattered = B::order(&x.raw) == Order::Otherwise;
    let most = if is_scattered { MOST_SCATTERED } else { MOST_ELEMENTS };
    let mut block = leading_of(x.shape.dims(), 0, most);
    let outer = x.shape.dims().iter().position(|&size| size > 1).unwrap_or(0);
    if is_scattered && outer + 1 < block.len() && block[outer] < FEWEST_ROWS {
        // Neighbours in memory are in different rows: with fewer rows, the same memory would be read again and again.
        let rows = x.shape.dims()[outer].min(FEWEST_ROWS);
        let inner = leading_of(&x.shape.dims()[outer + 1..], 0, most / rows);
        block[outer] = rows;
        block[outer + 1..].copy_from_slice(&inner);
    }
    let (device, dtype, shape) = (x.raw.device(), x.dtype, x.shape.clone());
    by_blocks(&device, dtype, shape, &block, &mut |ranges| Ok(part(&x, ranges).raw))
}

/// The part of an array that is broadcast to a block.
pub(super) fn part<B: Backing>(array: &Array<B>, ranges: &[(usize, usize)]) -> Array<B> {
    let sizes: SmallVec<[usize; 8]> = array.shape.dims().iter().copied().collect();
    let cut = sizes.iter().zip(ranges).enumerate().filter(|(_, (size, _))| **size > 1);
    cut.fold(array.clone(), |array, (axis, (_, &(from, count)))| array.narrow(axis, from, count))
}

#[cfg(test)]
mod tests {
    use burn_backend::BoolDType;

    use super::super::array::Site;
    use super::*;
    use meshtf_tensor::Tensor;

    fn sum<B: Backing>(site: &Site<B>, shape: Shape, operands: [Tensor; 2]) -> Tensor {
        let arrays = operands.map(|tensor| site.array(tensor.into()).unwrap());
        let sum = elementwise(&site.device, DType::F32, shape, 0, arrays, |[x, y]| B::float_add(x, y)).unwrap();
        sum.value().into_host().unwrap()
    }

    #[test]
    fn an_elementwise_function_broadcasts_in_blocks() {
        let floats = vec![DType::F32];
        let site: Site<burn_flex::Flex> = Site { device: Default::default(), bools: BoolDType::Native, floats };
        let (rows, columns) = (3, FEWEST_ELEMENTS / 3 + 1);
        let shape = Shape::from([rows, columns]);
        assert!(is_large::<burn_flex::Flex>(&shape));
        let column = Tensor::from_vec([rows, 1], vec![10f32, 20.0, 30.0]);
        let row = Tensor::from_vec([1, columns], (0..columns).map(|i| (i % 7) as f32).collect::<Vec<_>>());
        let sum = sum(&site, shape, [column, row]);
        let elements = sum.slice::<f32>().unwrap();
        assert_eq!(elements.len(), rows * columns);
        let wanted = |at: usize| (10 * (1 + at / columns) + at % columns % 7) as f32;
        assert_eq!(elements.iter().enumerate().find(|&(at, &x)| x != wanted(at)), None);
    }
}
