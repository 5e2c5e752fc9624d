//! Shapes: known ones, and the partially known ones stated by a graph's attributes.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{DType, MAX_TENSOR_BYTES};
use crate::failure::{Code, Failure, Result};
use crate::memory;

/// The sizes of a tensor's dimensions, outermost first. Rank 0 is a scalar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// The shape of a scalar: rank 0, one element.
    #[inline]
    pub fn scalar() -> Self {
        Shape::default()
    }

    /// The size of each dimension, the outermost first; none for a scalar.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Number of dimensions; 0 for a scalar.
    #[inline]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements; `None` if it overflows.
    #[inline]
    pub fn elements(&self) -> Option<usize> {
        self.0.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }

    /// Number of elements of a tensor that is about to be made; admits memory for it.
    ///
    /// # Errors
    /// ResourceExhausted if a `dtype` tensor of this shape would exceed [`MAX_TENSOR_BYTES`] or this process's memory
    /// budget.
    pub fn checked_elements(&self, dtype: DType) -> Result<usize> {
        let n = self.limited_elements(dtype)?;
        memory::admit(n * element_bytes(dtype)).map_err(|failure| Failure {
            message: format!("OOM when allocating tensor with shape{self} and type {dtype}: {}", failure.message),
            ..failure
        })?;
        Ok(n)
    }

    /// Number of elements if a tensor may have this shape; does not admit memory for it.
    ///
    /// # Errors
    /// ResourceExhausted if a `dtype` tensor of this shape would exceed [`MAX_TENSOR_BYTES`].
    pub fn limited_elements(&self, dtype: DType) -> Result<usize> {
        let size = element_bytes(dtype);
        self.elements().filter(|n| n.checked_mul(size).is_some_and(|bytes| bytes <= MAX_TENSOR_BYTES)).ok_or_else(
            || {
                Failure::new(
                    Code::ResourceExhausted,
                    format!(
                        "{} tensor of shape {self} exceeds the limit of {MAX_TENSOR_BYTES} bytes per tensor",
                        dtype.with_article()
                    ),
                )
            },
        )
    }

    /// Whether a `dtype` tensor of this shape may be made: see [`Shape::checked_elements`].
    #[inline]
    pub fn is_allowed(&self, dtype: DType) -> bool {
        self.checked_elements(dtype).is_ok()
    }

    /// A shape from signed sizes, as shape tensors hold them.
    ///
    /// # Errors
    /// InvalidArgument if one is negative.
    pub fn from_i64s(sizes: &[i64]) -> Result<Self> {
        sizes
            .iter()
            .map(|&d| usize::try_from(d).map_err(|_| Failure::invalid(format!("dimension {d} is negative"))))
            .collect::<Result<SmallVec<_>>>()
            .map(Shape)
    }

    /// Distance in elements between neighbours along each dimension of a row-major tensor. Saturates only if there are
    /// no elements.
    pub fn strides(&self) -> SmallVec<[usize; 4]> {
        let mut strides: SmallVec<[usize; 4]> = SmallVec::from_elem(1, self.rank());
        for axis in (1..self.rank()).rev() {
            strides[axis - 1] = strides[axis].saturating_mul(self.0[axis]);
        }
        strides
    }

    /// The shape that two shapes broadcast to, by NumPy's rule.
    ///
    /// # Errors
    /// InvalidArgument `Incompatible shapes: [2,3] vs. [4,5]`.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape> {
        if self == other {
            return Ok(self.clone());
        }
        let rank = self.rank().max(other.rank());
        let size = |shape: &Shape, axis: usize| {
            (axis + shape.rank()).checked_sub(rank).map_or(1, |own_axis| shape.0[own_axis])
        };
        (0..rank)
            .map(|axis| match (size(self, axis), size(other, axis)) {
                (a, b) if a == b => Ok(a),
                (1, b) => Ok(b),
                (a, 1) => Ok(a),
                _ => Err(Failure::invalid(format!("Incompatible shapes: {self} vs. {other}"))),
            })
            .collect::<Result<SmallVec<_>>>()
            .map(Shape)
    }
}

/// Bytes of one element; for a string, those of its handle.
fn element_bytes(dtype: DType) -> usize {
    dtype.size().unwrap_or(size_of::<Vec<u8>>())
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(SmallVec::from_vec(dims))
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(SmallVec::from_slice(&dims))
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Self {
        Shape(dims.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    /// `[2,3]`, as TensorFlow writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

/// A shape as stated by a graph: the rank or some sizes may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialShape(pub Option<Vec<Option<usize>>>);

impl PartialShape {
    /// Nothing is known, not even the rank.
    pub const UNKNOWN: PartialShape = PartialShape(None);

    /// Whether a tensor of `shape` is compatible with it.
    #[inline]
    pub fn admits(&self, shape: &Shape) -> bool {
        self.0.as_ref().is_none_or(|dims| {
            dims.len() == shape.rank()
                && dims.iter().zip(shape.dims()).all(|(want, &have)| want.is_none_or(|w| w == have))
        })
    }

    /// The shape, if every size is known.
    #[inline]
    pub fn known(&self) -> Option<Shape> {
        self.0.as_ref()?.iter().copied().collect()
    }
}

impl From<Vec<Option<usize>>> for PartialShape {
    fn from(dims: Vec<Option<usize>>) -> Self {
        PartialShape(Some(dims))
    }
}

impl<const N: usize> From<[Option<usize>; N]> for PartialShape {
    fn from(dims: [Option<usize>; N]) -> Self {
        PartialShape(Some(dims.to_vec()))
    }
}

impl<const N: usize> From<[usize; N]> for PartialShape {
    fn from(dims: [usize; N]) -> Self {
        PartialShape(Some(dims.map(Some).to_vec()))
    }
}

impl From<&Shape> for PartialShape {
    fn from(shape: &Shape) -> Self {
        PartialShape(Some(shape.dims().iter().copied().map(Some).collect()))
    }
}

impl fmt::Display for PartialShape {
    /// `[?,3]`, or `<unknown>` if not even the rank is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(dims) = &self.0 else { return f.write_str("<unknown>") };
        f.write_str("[")?;
        for (i, d) in dims.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            match d {
                Some(d) => write!(f, "{d}")?,
                None => f.write_str("?")?,
            }
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        let check = |a: &[usize], b: &[usize], want: Option<&[usize]>| {
            let got = Shape::from(a).broadcast(&Shape::from(b)).ok();
            assert_eq!(got, want.map(Shape::from), "{a:?} with {b:?}");
        };
        check(&[], &[2, 3], Some(&[2, 3]));
        check(&[3], &[2, 3], Some(&[2, 3]));
        check(&[2, 1], &[1, 3], Some(&[2, 3]));
        check(&[0], &[1], Some(&[0]));
        check(&[2, 3], &[4, 5], None);
        check(&[2], &[0], None);
    }

    #[test]
    fn strides_are_row_major() {
        assert_eq!(Shape::from([2, 3, 4]).strides().as_slice(), [12, 4, 1]);
        assert!(Shape::scalar().strides().is_empty());
    }

    #[test]
    fn a_partial_shape_admits_any_size_it_leaves_open() {
        let partial = PartialShape(Some(vec![None, Some(3)]));
        assert_eq!(partial.to_string(), "[?,3]");
        assert!(partial.admits(&[7, 3].into()));
        assert!(!partial.admits(&[7, 4].into()));
        assert!(!partial.admits(&[3].into()));
        assert!(PartialShape::UNKNOWN.admits(&Shape::scalar()));
    }
}
