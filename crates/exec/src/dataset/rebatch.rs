//! Datasets that convert batches: rows to sparse tensors, or each batch to several parts.

use std::sync::Arc;

use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Data, PartialShape, Shape, Tensor, with_moved};

use super::batch::{batch_size, batches, gather};
use super::component::{hosted, tensor};
use super::{Dataset, Element, INFINITE, Parts, UNKNOWN, pulled};
use crate::rows;
use crate::token::{Boxed, Token};

/// Batches of `size` elements, each one sparse tensor, which is an array of its indices, values and shape. `row` is the shape
/// of an element; where a size is unknown, it is the largest of the batch.
///
/// # Errors
/// InvalidArgument if the size is not positive, or elements have more than one component.
pub(crate) fn dense_to_sparse(input: Arc<Dataset>, size: i64, row: PartialShape) -> Result<Parts> {
    let size = batch_size(size)?;
    if input.spec.types.len() != 1 {
        return Err(Failure::invalid("DenseToSparseDataset only supports inputs with a single component."));
    }
    let cardinality = batches(input.cardinality, size, false);
    Ok(Parts::new(cardinality, move |pull| {
        let (row, dtype) = (row.clone(), input.spec.types[0]);
        pulled(input.elements(pull)?, move |input, pull| {
            let Some(elements) = gather(input, pull, size, false)? else { return Ok(None) };
            let rows: Vec<&Tensor> = elements.iter().flatten().map(tensor).collect::<Result<_>>()?;
            sparse(&rows, &row, dtype).map(|sparse| Some(vec![sparse]))
        })
    }))
}

fn sparse(rows: &[&Tensor], shape: &PartialShape, dtype: DType) -> Result<Token> {
    let wanted = shape.0.as_deref().unwrap_or_default();
    let mut dims: Vec<usize> = wanted.iter().map(|size| size.unwrap_or(0)).collect();
    for row in rows {
        if row.rank() != wanted.len() {
            return Err(Failure::invalid(format!(
                "Input element had shape ({}) that is incompatible with the row shape ({shape}).",
                row.shape()
            )));
        }
        for ((most, wanted), &size) in dims.iter_mut().zip(wanted).zip(row.dims()) {
            match wanted {
                None => *most = size.max(*most),
                Some(wanted) if size > *wanted => {
                    return Err(Failure::new(
                        Code::DataLoss,
                        format!(
                            "Input element had shape ({}) that is larger than the row shape ({shape}).",
                            row.shape()
                        ),
                    ));
                }
                Some(_) => {}
            }
        }
    }
    let count = rows.iter().map(|row| row.len()).sum();
    let rank = dims.len() + 1;
    let mut indices: Vec<i64> = Vec::with_capacity(Shape::from([count, rank]).checked_elements(DType::I64)?);
    for (number, row) in rows.iter().enumerate() {
        turn::look();
        for place in 0..row.len() {
            let first = indices.len();
            let mut rest = place;
            for &size in row.dims().iter().rev() {
                indices.push((rest % size) as i64);
                rest /= size;
            }
            indices.push(number as i64);
            indices[first..].reverse();
        }
    }
    rows::check_texts(rows, 0)?;
    let values: Option<Result<Tensor>> = with_moved!(dtype, T => {
        let mut values: Vec<T> = Vec::with_capacity(Shape::from([count]).checked_elements(dtype)?);
        for row in rows {
            values.extend_from_slice(row.moved::<T>()?);
        }
        Ok(Tensor::from_moved(dtype, [count], values))
    });
    let values = values.unwrap_or_else(|| Err(Failure::invalid("a handle cannot be an element of a sparse tensor")))?;
    let sizes: Vec<i64> = std::iter::once(rows.len()).chain(dims).map(|size| size as i64).collect();
    let indices = Tensor::new([count, rank], Data::I64(indices))?;
    let parts = [indices, values, Tensor::vector(sizes)].map(Token::from);
    Boxed::new(Shape::from([3]), parts.to_vec()).map(Token::from)
}

/// Each element split into `count` parts, one after the other: each part has the same number of rows of a component, except the
/// last ones, which may have fewer or none.
///
/// # Errors
/// InvalidArgument if the count is not positive.
pub(crate) fn rebatch(input: Arc<Dataset>, count: i64) -> Result<Parts> {
    let parts = usize::try_from(count).ok().filter(|&count| count > 0);
    let parts = parts.ok_or_else(|| Failure::invalid("num_replicas must be greater than zero."))?;
    let cardinality = match input.cardinality {
        as_it_is @ (INFINITE | UNKNOWN) => as_it_is,
        elements => elements.saturating_mul(count),
    };
    Ok(Parts::new(cardinality, move |pull| {
        // The element that is split, and the index of its next part.
        let (mut element, mut at) = (Element::new(), 0);
        pulled(input.elements(pull)?, move |input, pull| {
            if at == 0 {
                let Some(next) = input.next(pull)? else { return Ok(None) };
                element = hosted(next)?;
            }
            let part = |(i, component): (usize, &Token)| {
                let component = tensor(component)?;
                let Some(&count) = component.dims().first() else {
                    return Err(Failure::invalid(format!(
                        "Cannot rebatch dataset: All components must have at least one dimension. Perhaps your input dataset is \
                         not batched? Component {i} is scalar."
                    )));
                };
                let each = count.div_ceil(parts);
                let end = (each.saturating_mul(at + 1)).min(count);
                rows::between(component, each.saturating_mul(at).min(end), end).map(Token::from)
            };
            let made = element.iter().enumerate().map(part).collect::<Result<_>>()?;
            at = (at + 1) % parts;
            Ok(Some(made))
        })
    }))
}
