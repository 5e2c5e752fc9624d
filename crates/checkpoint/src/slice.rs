//! Parts of tensors: their notation in a program (`"4 3 0,2:-"`) and in an index, and the copying of their elements.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Moved, Shape, Tensor, with_moved};

use super::data_loss;

/// A box inside a tensor: start and length along each dimension, `None` for the whole dimension.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slice(pub Vec<Option<(usize, usize)>>);

impl Slice {
    /// Parses a program's specification of a part: the shape of the whole, then start and length along each
    /// dimension, or `-` for all of it: `4 3 0,2:-`. `None` if it is empty: the tensor is the whole.
    ///
    /// # Errors
    /// InvalidArgument if it does not follow this grammar, or the slice is not inside the shape.
    pub fn parse(text: &str) -> Result<Option<(Shape, Slice)>> {
        if text.is_empty() {
            return Ok(None);
        }
        let bad = |why: &str| {
            Failure::invalid(format!(
                "Need dimensions and a slice in shape_and_slice specification ({why}): {text:?}; \
                 expected a form such as \"4 3 0,2:-\""
            ))
        };
        let mut words: Vec<&str> = text.split(' ').collect();
        let slice = words.pop().filter(|slice| !slice.is_empty()).ok_or_else(|| bad("the slice is missing"))?;
        let number = |word: &str| word.parse::<usize>().map_err(|_| bad("a size is not a number"));
        let shape: Shape = words.into_iter().map(number).collect::<Result<Vec<_>>>()?.into();
        let extent = |text: &str| match text.split_once(',') {
            _ if text == "-" => Ok(None),
            Some((start, length)) => Ok(Some((number(start)?, number(length)?))),
            None => Err(bad("a slice must be start,length or -")),
        };
        let slice = Slice(slice.split(':').map(extent).collect::<Result<_>>()?);
        slice.ranges(&shape).ok_or_else(|| bad("the slice is not inside the shape"))?;
        Ok(Some((shape, slice)))
    }

    /// All of a tensor of this rank.
    pub fn full(rank: usize) -> Slice {
        Slice(vec![None; rank])
    }

    /// Whether it is all of a tensor of this shape.
    pub fn is_full(&self, shape: &Shape) -> bool {
        self.ranges(shape)
            .is_some_and(|ranges| ranges.iter().zip(shape.dims()).all(|(range, &size)| range.len() == size))
    }

    /// The positions along each dimension; `None` if the slice is not inside this shape.
    pub fn ranges(&self, shape: &Shape) -> Option<Vec<std::ops::Range<usize>>> {
        if self.0.len() != shape.rank() {
            return None;
        }
        let range = |(extent, &size): (&Option<(usize, usize)>, &usize)| match *extent {
            None => Some(0..size),
            Some((start, length)) => start.checked_add(length).filter(|&end| end <= size).map(|end| start..end),
        };
        self.0.iter().zip(shape.dims()).map(range).collect()
    }

    /// Whether two parts of a tensor of this shape have an element in common.
    pub fn overlaps(&self, other: &Slice, shape: &Shape) -> bool {
        self.ranges(shape)
            .zip(other.ranges(shape))
            .is_some_and(|(own, other)| own.iter().zip(&other).all(|(a, b)| a.start.max(b.start) < a.end.min(b.end)))
    }

    /// The shape of this part of a tensor of shape `whole`.
    ///
    /// # Errors
    /// InvalidArgument if the slice is not inside it.
    pub fn shape(&self, whole: &Shape) -> Result<Shape> {
        let ranges = self.ranges(whole);
        let ranges = ranges.ok_or_else(|| Failure::invalid(format!("the slice {self:?} is not inside {whole}")))?;
        Ok(ranges.iter().map(ExactSizeIterator::len).collect())
    }

    /// The key of this part of tensor `name` in an index. Keys sort by name, then start and length.
    pub fn key(&self, name: &[u8]) -> Vec<u8> {
        let mut key = vec![0];
        for &byte in name {
            match byte {
                0x00 => key.extend([0x00, 0xff]),
                0xff => key.extend([0xff, 0x00]),
                other => key.push(other),
            }
        }
        key.extend([0x00, 0x01]);
        put_ordered(&mut key, self.0.len() as u64);
        for extent in &self.0 {
            let (start, length) = extent.map_or((0, -1), |(start, length)| (start as i64, length as i64));
            put_ordered_signed(&mut key, start);
            put_ordered_signed(&mut key, length);
        }
        key
    }
}

/// A number as its length in bytes and its bytes, the highest first, so that longer numbers sort after shorter ones.
fn put_ordered(key: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
    key.push((bytes.len() - zeros) as u8);
    key.extend(&bytes[zeros..]);
}

/// A signed number in as few bytes as hold it together with a unary count of the bytes.
fn put_ordered_signed(key: &mut Vec<u8>, value: i64) {
    let magnitude = if value < 0 { !value } else { value } as u64;
    let length = (u64::BITS - magnitude.leading_zeros()) as usize / 7 + 1;
    // Sign-extended; the last `length` bytes are written, with the count of them in their first bits.
    let wide = i128::from(value).to_be_bytes();
    let mut bytes = wide[wide.len() - length..].to_vec();
    let header = !(u16::MAX >> length);
    bytes[0] ^= (header >> 8) as u8;
    if let Some(second) = bytes.get_mut(1) {
        *second ^= header as u8;
    }
    key.extend(bytes);
}

/// Copies the common elements of two parts of one tensor from one to the other; returns their number.
///
/// # Errors
/// DataLoss if a part is not inside the whole or has the wrong number of elements.
pub fn copy(whole: &Shape, from: (&Slice, &Tensor), to: (&Slice, &mut Tensor)) -> Result<usize> {
    let bad = || data_loss(format!("a slice does not fit its tensor of shape {whole}"));
    let (source, target) = (from.0.ranges(whole).ok_or_else(bad)?, to.0.ranges(whole).ok_or_else(bad)?);
    let fits = |ranges: &[std::ops::Range<usize>], tensor: &Tensor| {
        ranges.iter().map(ExactSizeIterator::len).eq(tensor.dims().iter().copied())
    };
    if !fits(&source, from.1) || !fits(&target, to.1) {
        return Err(bad());
    }
    let common: Vec<_> = source.iter().zip(&target).map(|(a, b)| a.start.max(b.start)..a.end.min(b.end)).collect();
    if common.iter().any(|range| range.is_empty()) {
        return Ok(0);
    }
    with_moved!(from.1.dtype(), T => copy_box::<T>(&source, from.1, &target, to.1, &common)?);
    Ok(common.iter().map(ExactSizeIterator::len).product())
}

fn copy_box<T: Moved>(
    source: &[std::ops::Range<usize>],
    from: &Tensor,
    target: &[std::ops::Range<usize>],
    to: &mut Tensor,
    common: &[std::ops::Range<usize>],
) -> Result<()> {
    let row = common.last().map_or(1, ExactSizeIterator::len);
    let outer = &common[..common.len().saturating_sub(1)];
    let (from_strides, to_strides) = (from.shape().strides(), to.shape().strides());
    let (elements, into) = (from.moved::<T>()?, to.moved_mut::<T>()?);
    let mut at: Vec<usize> = common.iter().map(|range| range.start).collect();
    loop {
        let place = |ranges: &[std::ops::Range<usize>], strides: &[usize]| {
            at.iter().zip(ranges).zip(strides).map(|((at, range), stride)| (at - range.start) * stride).sum::<usize>()
        };
        let (start, end) = (place(source, &from_strides), place(target, &to_strides));
        into[end..end + row].clone_from_slice(&elements[start..start + row]);
        // To the next row: the last outer dimension that can advance does; those after it start over.
        let Some(axis) = (0..outer.len()).rev().find(|&axis| at[axis] + 1 < outer[axis].end) else { return Ok(()) };
        at[axis] += 1;
        for later in axis + 1..outer.len() {
            at[later] = outer[later].start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_read() {
        let check = |text: &str, want: Option<(&[usize], Slice)>| {
            let got = Slice::parse(text).unwrap();
            assert_eq!(got, want.map(|(shape, slice)| (Shape::from(shape), slice)), "{text}");
        };
        check("", None);
        check("4 3 0,2:-", Some((&[4, 3], Slice(vec![Some((0, 2)), None]))));
        check("5 2,3", Some((&[5], Slice(vec![Some((2, 3))]))));
        for bad in ["4", "4 3", "4 3 0,2", "4 3 0,2:1,3", "x -", "4 1", "4 -1,2", " "] {
            assert!(Slice::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_common_elements_of_parts_are_copied() {
        let whole = Shape::from([3, 4]);
        let from = Tensor::from_vec([2, 3], vec![1, 2, 3, 4, 5, 6]);
        let mut to = Tensor::from_vec([2, 4], vec![0; 8]);
        let (source, target) = (Slice(vec![Some((0, 2)), Some((1, 3))]), Slice(vec![Some((1, 2)), None]));
        assert_eq!(copy(&whole, (&source, &from), (&target, &mut to)).unwrap(), 3);
        assert_eq!(to.slice::<i32>().unwrap(), [0, 4, 5, 6, 0, 0, 0, 0]);
        assert!(copy(&whole, (&target, &from), (&source, &mut to)).is_err());
    }

    /// From TensorFlow's description of its ordered code.
    #[test]
    fn keys_order_as_numbers_do() {
        let encoded = |value: i64| {
            let mut key = Vec::new();
            put_ordered_signed(&mut key, value);
            key
        };
        assert_eq!(encoded(0), [0x80]);
        assert_eq!(encoded(-1), [0x7f]);
        assert_eq!(encoded(63), [0xbf]);
        assert_eq!(encoded(64), [0xc0, 0x40]);
        assert_eq!(encoded(-65), [0x3f, 0xbf]);
        let values =
            [i64::MIN, -1 << 40, -8193, -8192, -65, -64, -1, 0, 1, 63, 64, 8191, 8192, 1 << 48, 1 << 62, i64::MAX];
        assert!(values.map(encoded).is_sorted());
    }
}
