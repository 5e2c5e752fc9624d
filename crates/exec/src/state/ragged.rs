//! Ragged tensors as variants: their form as elements of datasets and lists.

use std::sync::Arc;

use meshtf_kernels::call::ints;
use meshtf_kernels::checked_splits;
use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::rows;
use super::super::token::{Boxed, RaggedValue, Token, Tokens, Variant};
use super::op::{StateInputs, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("RaggedTensorToVariant", |node, _| {
        let rank = usize::try_from(node.attrs.int("RAGGED_RANK")?).unwrap_or(0);
        let (is_batched, dtype) = (node.attrs.bool("batched_input")?, node.attrs.dtype("Tsplits")?);
        simple(move |mut inputs, _| {
            let mut splits = inputs.rest(0)?;
            let values = splits.pop().filter(|_| splits.len() == rank);
            let values = values.ok_or_else(|| Failure::invalid("splits and values are missing"))?;
            if !is_batched {
                return Ok(one(boxed(Shape::scalar(), vec![RaggedValue::new(splits, values)])?));
            }
            let items = rows_of(&splits, &values, dtype)?;
            Ok(one(boxed([items.len()].into(), items)?))
        })
    });
    ops.insert("RaggedTensorFromVariant", |node, _| {
        let form = Form {
            given: node.attrs.int("input_ragged_rank")?,
            rank: node.attrs.int("output_ragged_rank")?,
            values: node.attrs.dtype("Tvalues")?,
            splits: node.attrs.dtype("Tsplits")?,
        };
        simple(move |mut inputs, _| {
            let boxed = inputs.boxed(0)?;
            form.whole(&boxed)
        })
    });
    ops.insert("RaggedTensorToVariantGradient", |node, _| {
        let dtype = node.attrs.dtype("Tvalues")?;
        simple(move |mut inputs, _| {
            let (boxed, shape) = (inputs.boxed(0)?, Shape::from_i64s(&inputs.host(2)?.to_i64s()?)?);
            let values = boxed.items().iter().map(|item| Ok(ragged(item)?.split_off()?.1));
            let values = values.collect::<Result<Vec<_>>>()?;
            Ok(one(joined(&values, dtype)?.reshaped(shape)?))
        })
    });
}

impl StateInputs {
    fn boxed(&mut self, index: usize) -> Result<Arc<Boxed>> {
        match self.token(index)? {
            Token::Variant(Variant::Boxed(boxed)) => Ok(boxed),
            Token::Variant(other) => Err(Failure::invalid(format!(
                "input {index} must be ragged tensors as variants, not a {}",
                other.kind()
            ))),
            _ => Err(Failure::invalid(format!("input {index} must be ragged tensors as variants"))),
        }
    }
}

fn boxed(shape: Shape, items: Vec<RaggedValue>) -> Result<Boxed> {
    Boxed::new(shape, items.into_iter().map(Token::from).collect())
}

fn ragged(token: &Token) -> Result<&RaggedValue> {
    match token {
        Token::Variant(Variant::Ragged(ragged)) => Ok(ragged),
        _ => Err(Failure::invalid("Input Variant element doesn't hold a RaggedTensorVariant")),
    }
}

/// Each row of a ragged tensor as a separate one; of values without splits, each value.
fn rows_of(splits: &[Tensor], values: &Tensor, dtype: DType) -> Result<Vec<RaggedValue>> {
    let Some(&size) = values.dims().first() else {
        return Err(Failure::invalid("the values of a ragged tensor must be at least a vector, got a scalar"));
    };
    rows::check_texts(&[values], 0)?;
    if splits.is_empty() {
        memory::admit(size.saturating_mul(size_of::<RaggedValue>() + size_of::<Tensor>()))?;
        return paced(0..size, 100).map(|i| Ok(RaggedValue::new(Vec::new(), rows::row(values, i)?))).collect();
    }
    let nested = checked_splits(splits, size)?;
    let count = nested[0].len() - 1;
    memory::admit(count.saturating_mul((nested.len() + 1).saturating_mul(size_of::<Tensor>() + size_of::<Token>())))?;
    let mut all = Vec::with_capacity(count);
    for row in paced(0..count, 100) {
        let (mut start, mut end) = (nested[0][row], nested[0][row + 1]);
        let mut own = Vec::with_capacity(nested.len() - 1);
        for splits in &nested[1..] {
            let part: Vec<usize> = splits[start..=end].iter().map(|split| split - splits[start]).collect();
            own.push(ints(dtype, [part.len()], &part)?);
            (start, end) = (splits[start], splits[end]);
        }
        all.push(RaggedValue::new(own, rows::between(values, start, end)?));
    }
    Ok(all)
}

/// The elements of several tensors, concatenated.
fn joined(parts: &[Tensor], dtype: DType) -> Result<Tensor> {
    let count = parts.iter().map(Tensor::len).fold(0usize, usize::saturating_add);
    rows::joined(dtype, [count].into(), &parts.iter().collect::<Vec<_>>())
}

/// The declared form of a ragged tensor that is made from variants.
struct Form {
    /// The number of ragged dimensions of each variant; -1 for the remaining ones.
    given: i64,
    rank: i64,
    values: DType,
    splits: DType,
}

impl Form {
    /// The ragged tensors in an array as one, which has the dimensions of the array before its own.
    fn whole(&self, boxed: &Boxed) -> Result<Tokens> {
        let (dims, outer) = (boxed.shape.dims(), boxed.shape.rank() as i64);
        let own =
            if self.given >= 0 { self.given } else { (self.rank - outer).max(if self.rank == 0 { 0 } else { -1 }) };
        if own < 0 {
            return Err(Failure::invalid(format!(
                "Inferred input_ragged_rank (output_ragged_rank - encoded_variant.dims()) must be >= 0, found \
                 output_ragged_rank: {}, encoded_variant.dims(): {outer}, inferred input_ragged_rank: {}",
                self.rank,
                self.rank - outer
            )));
        }
        if self.rank != outer + own && (self.rank, own) != (0, 0) {
            return Err(Failure::invalid(format!(
                "output_ragged_rank must be equal to input_ragged_rank + encoded_ragged.dims(); output_ragged_rank: {}, \
                 input_ragged_rank: {own}, encoded_variant.dims(): {outer}.",
                self.rank
            )));
        }
        let items = boxed.items().iter().enumerate().map(|(i, item)| self.checked(i, item, own as usize));
        let mut items = items.collect::<Result<Vec<_>>>()?;
        if dims.is_empty() {
            let (splits, values) = items.remove(0);
            return Ok(splits.into_iter().chain([values]).map(|part| Some(part.into())).collect());
        }
        let (splits, values): (Vec<Vec<Tensor>>, Vec<Tensor>) = items.into_iter().unzip();
        let inner = inner_shape(&values)?;
        let whole = joined(&values, self.values)?;
        if self.rank == 0 {
            let shape: Shape = dims.iter().chain(values.first().map_or(&[][..], Tensor::dims)).copied().collect();
            return Ok(one(whole.reshaped(shape)?));
        }
        let mut all: Vec<Vec<usize>> =
            dims.windows(2).map(|pair| (0..=pair[0]).map(|i| i * pair[1]).collect()).collect();
        let rows = |(splits, values): (&Vec<Tensor>, &Tensor)| splits.first().map_or(values.dims()[0], |s| s.len() - 1);
        all.push(ends(splits.iter().zip(&values).map(rows)));
        for level in 0..own as usize {
            all.push(lengths_of(&splits, level)?);
        }
        let count: usize = values.iter().map(|values| values.dims()[0]).sum();
        let shape: Shape = std::iter::once(count).chain(inner).collect();
        let mut outputs = Tokens::new();
        for splits in all {
            outputs.push(Some(ints(self.splits, [splits.len()], &splits)?.into()));
        }
        outputs.push(Some(whole.reshaped(shape)?.into()));
        Ok(outputs)
    }

    /// The splits and values of a variant, checked against the form.
    fn checked(&self, i: usize, item: &Token, rank: usize) -> Result<(Vec<Tensor>, Tensor)> {
        let (splits, values) = ragged(item)?.split_off()?;
        let why = if splits.len() != rank {
            format!("Encoded input RaggedTensorVariant has ragged_rank={}.  Expected ragged_rank={rank}.", splits.len())
        } else if values.dtype() != self.values {
            format!("Expected values Tensor dtype: {}, found: {}", self.values, values.dtype())
        } else if values.rank() < 1 && self.rank != 0 {
            format!("Ragged values must have rank >= 1; encoded scalar element at index {i} has a scalar")
        } else if let Some(other) = splits.iter().find(|splits| splits.dtype() != self.splits) {
            format!("Expected row_splits Tensor dtype: {}, found: {}", self.splits, other.dtype())
        } else if let Some(other) = splits.iter().find(|splits| splits.rank() != 1 || splits.is_empty()) {
            let shape = other.shape();
            format!("Ragged splits must have rank 1; encoded scalar element at index {i} has splits of shape {shape}")
        } else {
            return Ok((splits, values));
        };
        Err(Failure::invalid(why))
    }
}

/// The shape of each value, which must be the same for all.
fn inner_shape(values: &[Tensor]) -> Result<Vec<usize>> {
    let inner = |values: &Tensor| values.dims().get(1..).unwrap_or_default().to_vec();
    let Some(first) = values.first() else { return Ok(Vec::new()) };
    let wanted = inner(first);
    for (i, values) in values.iter().enumerate() {
        if values.rank() != first.rank() {
            return Err(Failure::invalid(format!(
                "Rank of values must match for all components; values shape at index 0: {}, values shape at index {i}: {}",
                first.shape(),
                values.shape()
            )));
        }
        if inner(values) != wanted {
            return Err(Failure::invalid(format!(
                "All flat_values must have compatible shapes.  Shape at index 0: {}.  Shape at index {i}: {}.  If you are \
                 using tf.map_fn, then you may need to specify an explicit fn_output_signature with appropriate \
                 ragged_rank, and/or convert output tensors to RaggedTensors.",
                Shape::from(&wanted[..]),
                Shape::from(inner(values))
            )));
        }
    }
    Ok(wanted)
}

/// The splits of rows of some lengths.
fn ends(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut end = 0;
    let ends = lengths.map(|length| {
        end += length;
        end
    });
    std::iter::once(0).chain(ends).collect()
}

/// The splits of one dimension of some ragged tensors, as those of all.
fn lengths_of(splits: &[Vec<Tensor>], level: usize) -> Result<Vec<usize>> {
    let mut all = vec![0];
    for own in splits {
        let own = own[level].to_i64s()?;
        for pair in own.windows(2) {
            let length = usize::try_from(pair[1].saturating_sub(pair[0]));
            let length = length.map_err(|_| Failure::invalid("Ragged splits must be sorted"))?;
            all.push(all[all.len() - 1] + length);
        }
    }
    Ok(all)
}
