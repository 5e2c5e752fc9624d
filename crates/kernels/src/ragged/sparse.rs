//! RaggedTensorToSparse: each value with its index in all dimensions.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::smallvec;

use super::super::call::product;
use super::super::{Inputs, Outputs, Registry};
use super::places;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("RaggedTensorToSparse", |_| Ok(Some(Box::new(to_sparse))));
}

fn to_sparse(mut inputs: Inputs) -> Result<Outputs> {
    let values = inputs.pop().filter(|_| !inputs.is_empty());
    let values = values.ok_or_else(|| Failure::new(Code::Internal, "RaggedTensorToSparse takes splits and values"))?;
    let Some((&rows, inner)) = values.dims().split_first() else {
        return Err(Failure::invalid("rt_dense_values must be at least a vector, got a scalar"));
    };
    let splits = checked(&inputs, rows)?;
    let (size, depth) = (product(inner), splits.len() + values.rank());
    let elements = Shape::from([rows, size, depth]).checked_elements(DType::I64)?;
    let mut indices: Vec<i64> = Vec::with_capacity(elements);
    let mut pace = Pace::new();
    let last = splits.len() - 1;
    // The current row of each ragged dimension.
    let mut at = vec![0; splits.len()];
    for row in 0..splits[last].len() - 1 {
        at[last] = row;
        for dim in (0..last).rev() {
            while splits[dim][at[dim] + 1] <= at[dim + 1] {
                at[dim] += 1;
            }
        }
        let own = splits[last][row + 1] - splits[last][row];
        pace.go(16 + (own * size).saturating_mul(depth));
        for i in 0..own {
            for element in 0..size {
                indices.push(at[0] as i64);
                indices.extend((1..=last).map(|dim| (at[dim] - splits[dim - 1][at[dim - 1]]) as i64));
                indices.push(i as i64);
                let first = indices.len();
                let mut rest = element;
                for &size in inner.iter().rev() {
                    indices.push((rest % size) as i64);
                    rest /= size;
                }
                indices[first..].reverse();
            }
        }
    }
    let widths = splits.iter().map(|splits| splits.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0));
    let shape = std::iter::once(splits[0].len() - 1).chain(widths).chain(inner.iter().copied());
    let shape: Vec<i64> = shape.map(|size| size as i64).collect();
    let count = values.len();
    Ok(smallvec![Tensor::from_vec([count, depth], indices), values.reshaped([count])?, Tensor::vector(shape)])
}

/// The splits of each dimension. Each must have as many rows as the previous one specifies, and the last must end at the
/// number of values.
///
/// # Errors
/// InvalidArgument if one does not.
pub fn checked(nested: &[Tensor], rows: usize) -> Result<Vec<Vec<usize>>> {
    let no_match =
        || Failure::invalid("Final value of ragged splits must match the length the corresponding ragged values.");
    let mut all: Vec<Vec<usize>> = Vec::with_capacity(nested.len());
    for splits in nested {
        let splits = splits.to_i64s()?;
        let Some(&first) = splits.first() else { return Err(Failure::invalid("ragged splits may not be empty.")) };
        if first != 0 {
            return Err(Failure::invalid("First value of ragged splits must be 0."));
        }
        if let Some(pair) = splits.windows(2).find(|pair| pair[1] < pair[0]) {
            let why = format!("Ragged splits should be non decreasing, but we got {} followed by {}", pair[0], pair[1]);
            return Err(Failure::invalid(why));
        }
        if all.last().is_some_and(|before| before.last() != Some(&(splits.len() - 1))) {
            return Err(no_match());
        }
        all.push(places(&splits).unwrap_or_default());
    }
    if all.last().and_then(|splits| splits.last()) != Some(&rows) {
        return Err(no_match());
    }
    Ok(all)
}
