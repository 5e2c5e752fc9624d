//! Sparse tensors, each of three tensors: the indices of its elements (a row each), the elements, and the shape.

mod arrange;
mod counts;
mod cross;
mod math;
mod pairs;
mod rows;
mod segment;

use std::cmp::Ordering;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Moved, Shape, Tensor, with_moved};

use super::Registry;
use super::call::vector;

/// Registers the ops on sparse tensors.
pub(super) fn register(ops: &mut Registry) {
    arrange::register(ops);
    rows::register(ops);
    math::register(ops);
    segment::register(ops);
    cross::register(ops);
    counts::register(ops);
    pairs::register(ops);
}

/// A sparse tensor among the inputs of a kernel.
struct Sparse {
    indices: Vec<i64>,
    values: Tensor,
    dims: Vec<i64>,
}

impl Sparse {
    /// Assembles the three tensors, whose shapes must match. The range of the indices is not checked.
    fn of(indices: &Tensor, values: Tensor, shape: &Tensor) -> Result<Sparse> {
        let dims = vector(shape, "the shape of a sparse tensor", false)?;
        let ([rows, width], [count]) = (indices.dims(), values.dims()) else {
            return Err(Failure::invalid(format!(
                "Input indices should be a matrix but received shape: {}, with values of shape {}",
                indices.shape(),
                values.shape()
            )));
        };
        if rows != count || *width != dims.len() {
            return Err(Failure::invalid(format!(
                "Number of values must match first dimension of indices, and their width the rank: got {count} values, \
                 indices of shape {} and rank {}",
                indices.shape(),
                dims.len()
            )));
        }
        Ok(Sparse { indices: indices.to_i64s()?, values, dims })
    }

    /// As [`of`](Sparse::of), with a check that every index is within the shape.
    fn within(indices: &Tensor, values: Tensor, shape: &Tensor) -> Result<Sparse> {
        let sparse = Sparse::of(indices, values, shape)?;
        for (i, row) in sparse.rows().enumerate() {
            if row.iter().zip(&sparse.dims).any(|(at, size)| !(0..*size).contains(at)) {
                let shape = Shape::from_i64s(&sparse.dims)?;
                return Err(Failure::invalid(format!(
                    "indices[{i}] = {row:?} is out of bounds: need 0 <= index < {shape}"
                )));
            }
        }
        Ok(sparse)
    }

    #[inline]
    fn rank(&self) -> usize {
        self.dims.len()
    }

    #[inline]
    fn len(&self) -> usize {
        self.values.len()
    }

    /// The index of each element. For a scalar, each is empty.
    fn rows(&self) -> impl Iterator<Item = &[i64]> {
        (0..self.len()).map(|i| self.row(i))
    }

    fn row(&self, i: usize) -> &[i64] {
        &self.indices[i * self.rank()..][..self.rank()]
    }

    /// The indices that this tensor or another one of its rank has, if the elements of both are in order; and the position of the
    /// element in each that has it.
    fn merged<'a>(
        &'a self,
        other: &'a Sparse,
    ) -> impl Iterator<Item = (&'a [i64], Option<usize>, Option<usize>)> + use<'a> {
        let (mut i, mut j) = (0, 0);
        std::iter::from_fn(move || {
            let order = match (i < self.len(), j < other.len()) {
                (true, true) => self.row(i).cmp(other.row(j)),
                (true, false) => Ordering::Less,
                (false, true) => Ordering::Greater,
                (false, false) => return None,
            };
            let row = if order.is_le() { self.row(i) } else { other.row(j) };
            let places = (order.is_le().then_some(i), order.is_ge().then_some(j));
            i += usize::from(order.is_le());
            j += usize::from(order.is_ge());
            Some((row, places.0, places.1))
        })
    }

    /// The elements in the order of their indices; those of equal indices keep their order.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by(|&i, &j| self.row(i).cmp(self.row(j)));
        order
    }
}

/// The values at some positions.
fn picked(values: &Tensor, places: &[usize]) -> Result<Tensor> {
    fn pick<T: Moved>(values: &Tensor, places: &[usize]) -> Result<Tensor> {
        let (dtype, values) = (values.dtype(), values.moved::<T>()?);
        let shape = Shape::from([places.len()]);
        shape.checked_elements(dtype)?;
        Ok(Tensor::from_moved(dtype, shape, places.iter().map(|&place| values[place].clone()).collect::<Vec<T>>()))
    }
    let dtype = values.dtype();
    with_moved!(dtype, T => pick::<T>(values, places)).unwrap_or_else(|| super::array::not_held(dtype))
}

/// Indices as a matrix of that width.
fn matrix(indices: Vec<i64>, rows: usize, width: usize) -> Tensor {
    Tensor::from_vec([rows, width], indices)
}
