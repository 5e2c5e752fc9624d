//! The sum of gradients of some rows: for each row that has any, the sum of its gradients and their number.

use std::cmp::Ordering;
use std::ops::Div;

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, PartialShape, Ring, Shape, Tensor, with_float};

/// A gradient of some rows.
pub(crate) struct Slices {
    /// int64 `[rows]`, in ascending order if it is to be added row by row.
    pub indices: Tensor,
    /// `[rows, ...]`.
    pub values: Tensor,
    /// The dimensions of the whole tensor, int64, if they are known.
    pub shape: Option<Tensor>,
}

/// The sum of some [`Slices`].
pub(super) struct Sum {
    indices: Vec<i64>,
    counts: Vec<u64>,
    values: Tensor,
}

/// Checks a gradient against the shape of the accumulator, and, if there is a sum, against the sum.
///
/// # Errors
/// InvalidArgument, with TensorFlow's message.
pub(super) fn check(slices: &Slices, dtype: DType, declared: &PartialShape, sum: Option<&Sum>) -> Result<()> {
    let Slices { indices, values, shape } = slices;
    if values.dtype() != dtype {
        return Err(Failure::invalid(format!("Expected a gradient of {dtype}, got {}", values.dtype())));
    }
    if indices.rank() != 1 {
        let why = format!("Input indices should be vector but received shape: {}", indices.shape());
        return Err(Failure::invalid(why));
    }
    let Some(&rows) = values.dims().first() else { return Err(Failure::invalid("Values cannot be 0-dimensional.")) };
    if rows != indices.len() {
        return Err(Failure::invalid(format!("Expected {} non-empty input values, got {rows}", indices.len())));
    }
    let declared = declared.0.as_deref().unwrap_or_default();
    if let Some(shape) = shape {
        check_shape(&shape.to_i64s()?, declared)?;
    }
    if let Some(&Some(limit)) = declared.first() {
        let over = indices.slice::<i64>()?.iter().enumerate().find(|&(_, &row)| row >= limit as i64);
        if let Some((i, row)) = over {
            return Err(Failure::invalid(format!(
                "Shape mismatch: index of slice {i} exceeded limits of shape; index is {row} exceeded {limit}"
            )));
        }
    }
    let (wanted, least) = match sum {
        Some(sum) => (sum.values.dims().iter().copied().map(Some).collect(), ""),
        None => (declared.to_vec(), " at least"),
    };
    let rank = values.rank();
    if rank < wanted.len() || sum.is_some() && rank > wanted.len() {
        let why = format!("Shape mismatch: expected values rank{least} {}, got {rank}", wanted.len());
        return Err(Failure::invalid(why));
    }
    for (i, (&wanted, &got)) in wanted.iter().zip(values.dims()).enumerate().skip(1) {
        if let Some(wanted) = wanted.filter(|&wanted| wanted != got) {
            let why = format!("Shape mismatch: expected values dim {i} to be {wanted}, got {got}");
            return Err(Failure::invalid(why));
        }
    }
    Ok(())
}

fn check_shape(sizes: &[i64], declared: &[Option<usize>]) -> Result<()> {
    if declared.len() > sizes.len() {
        let (least, got) = (declared.len(), sizes.len());
        return Err(Failure::invalid(format!("Shape mismatch: expected shape rank at least {least}, got {got}")));
    }
    for (i, (wanted, &got)) in declared.iter().zip(sizes).enumerate() {
        if let Some(wanted) = wanted.filter(|&wanted| wanted as i64 != got) {
            let why = format!("Shape mismatch: expected shape dim {i} to be {wanted}, got {got}");
            return Err(Failure::invalid(why));
        }
    }
    Ok(())
}

impl Sum {
    /// The sum of one gradient, which was checked.
    pub fn new(slices: Slices) -> Result<Sum> {
        let indices = slices.indices.into_vec::<i64>()?;
        Ok(Sum { counts: vec![1; indices.len()], indices, values: slices.values })
    }

    /// The rows, the number of gradients of each, and their sums.
    pub fn to_tensors(&self) -> Vec<Tensor> {
        vec![Tensor::vector(self.indices.clone()), Tensor::vector(self.counts.clone()), self.values.clone()]
    }

    /// The sum that has these tensors; `None` if no sum has them, or one of `most` gradients a row.
    pub fn of_tensors(rows: &Tensor, counts: &Tensor, values: &Tensor, most: u64) -> Option<Sum> {
        let (indices, counts) = (rows.slice::<i64>().ok()?.to_vec(), counts.slice::<u64>().ok()?.to_vec());
        let is_sum = counts.iter().all(|&count| (1..=most).contains(&count))
            && indices.len() == counts.len()
            && values.dims().first() == Some(&indices.len());
        is_sum.then(|| Sum { indices, counts, values: values.clone() })
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&self.indices[..]) + size_of_val(&self.counts[..]) + self.values.byte_len()
    }

    /// Adds a gradient, which was checked against this. If that fails, nothing has changed.
    pub fn add(&mut self, slices: &Slices) -> Result<()> {
        let sum: Option<Result<Sum>> = with_float!(self.values.dtype(), T => self.plus::<T>(slices));
        *self = sum.unwrap_or_else(|| Err(Failure::invalid("the values are not floats")))?;
        Ok(())
    }

    /// Merges both by their indices, in the order of each.
    fn plus<T: Ring>(&self, slices: &Slices) -> Result<Sum> {
        let (ours, theirs) = (self.values.slice::<T>()?, slices.values.slice::<T>()?);
        let rows = slices.indices.slice::<i64>()?;
        let most = self.indices.len() + rows.len();
        let inner = &self.values.dims()[1..];
        let whole = |rows: usize| std::iter::once(rows).chain(inner.iter().copied()).collect::<Shape>();
        let elements = whole(most).checked_elements(T::DTYPE)?;
        Shape::from([most, 2]).checked_elements(DType::I64)?;
        let width = inner.iter().product::<usize>();
        let mut values: Vec<T> = Vec::with_capacity(elements);
        let (mut indices, mut counts) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let (mut i, mut j) = (0, 0);
        for _ in paced(0..most, width.max(1)) {
            let order = match (self.indices.get(i), rows.get(j)) {
                (Some(our), Some(their)) => our.cmp(their),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            let (our, their) = (|| &ours[i * width..][..width], || &theirs[j * width..][..width]);
            match order {
                Ordering::Less => values.extend_from_slice(our()),
                Ordering::Greater => values.extend_from_slice(their()),
                Ordering::Equal => values.extend(our().iter().zip(their()).map(|(&x, &y)| Ring::add(x, y))),
            }
            indices.push(if order.is_gt() { rows[j] } else { self.indices[i] });
            counts.push(if order.is_gt() { 1 } else { self.counts[i] + u64::from(order.is_eq()) });
            i += usize::from(order.is_le());
            j += usize::from(order.is_ge());
        }
        Ok(Sum { values: Tensor::from_vec(whole(indices.len()), values), indices, counts })
    }

    /// Divides each row by the number of its gradients. If that fails, nothing has changed.
    pub fn divide(&mut self) -> Result<()> {
        let width = self.values.dims()[1..].iter().product::<usize>().max(1);
        let counts = &self.counts;
        let done: Option<Result<()>> = with_float!(self.values.dtype(), T => {
            self.values.slice_mut::<T>().map(|values| {
                for (row, &count) in paced(values.chunks_exact_mut(width).zip(counts), width) {
                    let count = <T as Numeric>::from_f64(count as f64);
                    row.iter_mut().for_each(|x| *x = Div::div(*x, count));
                }
            })
        });
        done.unwrap_or_else(|| Err(Failure::invalid("the values are not floats")))
    }

    /// The rows, their values, and the dimensions of the whole tensor, of which the first is -1 if it is not declared.
    pub fn into_parts(self, declared: &PartialShape) -> [Tensor; 3] {
        let first = declared.0.as_ref().and_then(|dims| *dims.first()?).map_or(-1, |size| size as i64);
        let inner = self.values.dims()[1..].iter().map(|&size| size as i64);
        let shape = std::iter::once(first).chain(inner).collect::<Vec<i64>>();
        [Tensor::vector(self.indices), self.values, Tensor::vector(shape)]
    }
}
