//! Batches of elements whose sizes differ: each is padded at the end.

use std::sync::Arc;

use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Data, Shape, Tensor, with_moved};

use super::batch::{batch_size, batches, gather};
use super::component::tensor;
use super::{Dataset, Parts, pulled};
use crate::rows::{check_texts, place};
use crate::token::Token;

/// Batches of `size` elements. `shapes` are the sizes to which each component is padded, -1 for the largest of the batch, and
/// `fills` the padding values.
///
/// # Errors
/// InvalidArgument if the size of a batch is not positive, a shape has a size below -1 or is not a vector, or a padding value
/// is not a scalar.
pub(crate) fn padded_batch(
    input: Arc<Dataset>,
    size: i64,
    shapes: &[Tensor],
    fills: Vec<Tensor>,
    drops: bool,
) -> Result<Parts> {
    let size = batch_size(size)?;
    let shapes = shapes.iter().map(sizes).collect::<Result<Vec<_>>>()?;
    for fill in &fills {
        if fill.rank() > 0 {
            return Err(Failure::invalid("All padding values must be scalars"));
        }
    }
    if shapes.len() != fills.len() || shapes.len() != input.spec.types.len() {
        return Err(Failure::invalid(format!(
            "Number of padded shapes ({}) must match the number of components in the input dataset's elements ({})",
            shapes.len(),
            input.spec.types.len()
        )));
    }
    for (i, (fill, dtype)) in fills.iter().zip(&input.spec.types).enumerate() {
        if fill.dtype() != *dtype {
            return Err(Failure::invalid(format!(
                "Mismatched type between padding value {i} and input dataset's component {i}: {} vs. {dtype}",
                fill.dtype()
            )));
        }
    }
    let cardinality = batches(input.cardinality, size, drops);
    Ok(Parts::new(cardinality, move |pull| {
        let (shapes, fills) = (shapes.clone(), fills.clone());
        pulled(input.elements(pull)?, move |input, pull| {
            let Some(elements) = gather(input, pull, size, drops)? else { return Ok(None) };
            let component = |i: usize| {
                let missing = || Failure::invalid(format!("an element has no component {i}"));
                let parts = elements.iter().map(|element| tensor(element.get(i).ok_or_else(missing)?));
                let parts = parts.collect::<Result<Vec<&Tensor>>>()?;
                filled_up(i, &parts, &shapes[i], &fills[i]).map(Token::from)
            };
            (0..shapes.len()).map(component).collect::<Result<_>>().map(Some)
        })
    }))
}

/// Sizes; `None` for the largest of the batch.
fn sizes(shape: &Tensor) -> Result<Vec<Option<usize>>> {
    if shape.rank() != 1 {
        return Err(Failure::invalid("All padded shapes must be vectors"));
    }
    let size = |size: i64| match size {
        -1 => Ok(None),
        0.. => Ok(Some(size as usize)),
        _ => Err(Failure::invalid(format!("a padded size must be at least -1, got {size}"))),
    };
    shape.to_i64s()?.into_iter().map(size).collect()
}

fn filled_up(component: usize, parts: &[&Tensor], sizes: &[Option<usize>], fill: &Tensor) -> Result<Tensor> {
    let mut dims: Vec<usize> = sizes.iter().map(|size| size.unwrap_or(0)).collect();
    for part in parts {
        if part.rank() != dims.len() {
            return Err(Failure::invalid(format!(
                "All elements in a batch must have the same rank as the padded shape for component{component}: expected rank \
                 {} but got element with rank {}",
                dims.len(),
                part.rank()
            )));
        }
        for ((most, wanted), &size) in dims.iter_mut().zip(sizes).zip(part.dims()) {
            match wanted {
                None => *most = size.max(*most),
                Some(wanted) if size > *wanted => {
                    let why = "Attempted to pad to a smaller size than the input element.";
                    return Err(Failure::new(Code::DataLoss, why));
                }
                Some(_) => {}
            }
        }
    }
    let whole: Shape = std::iter::once(parts.len()).chain(dims.iter().copied()).collect();
    let elements = whole.checked_elements(fill.dtype())?;
    let beside = elements.saturating_sub(parts.iter().map(|part| part.len()).sum());
    let one = if let Data::String(texts) = fill.data() { texts.iter().map(Vec::len).sum() } else { 0usize };
    check_texts(parts, one.saturating_mul(beside))?;
    let each = if parts.is_empty() { 0 } else { elements / parts.len() };
    let filled: Option<Result<Tensor>> = with_moved!(fill.dtype(), T => {
        let mut all = vec![fill.moved_item::<T>()?; elements];
        for (i, part) in parts.iter().enumerate() {
            turn::look();
            place(&mut all[i * each..(i + 1) * each], &dims, part.moved::<T>()?, part.dims());
        }
        Ok(Tensor::from_moved(fill.dtype(), whole, all))
    });
    filled.unwrap_or_else(|| Err(Failure::invalid("a handle cannot be padded")))
}
