//! Gradients of ragged tensors, which consist of splits and values: the values have gradients.

use meshtf_tensor::DType;

use super::{Rule, Stop};
use crate::gradient::Gradient;
use crate::gradient::call::{Added, Call, Grads, one};
use crate::{Attr, Input, Output};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("ragged_gather", gather),
    ("ragged_tensor_to_sparse", |c| {
        let (values, dy) = (c.node.inputs.len() - 1, c.d(1)?);
        let shape = c.shape(c.x(values))?;
        let by_values = c.reshape(dy, shape)?;
        Ok(at(values, Gradient::Dense(by_values)))
    }),
    ("ragged_tensor_to_tensor", to_dense),
    ("ragged_tensor_from_variant", from_variant),
    ("ragged_tensor_to_variant", to_variant),
];

/// The gradient of one input alone.
fn at(place: usize, gradient: Gradient) -> Vec<Option<Gradient>> {
    let mut all = vec![None; place];
    all.push(Some(gradient));
    all
}

/// Rows of the gradient: the values chosen by each index.
fn gather(c: &mut Call) -> Grads {
    let indices = c.node.inputs.len() - 1;
    let values = indices - 1;
    let dy = c.d(c.node.outputs.len() - 1)?;
    // The beginning and end of the values of each row.
    let mut splits = c.x(0);
    let dtype = c.dtype(splits);
    for inner in 1..values {
        let next = c.x(inner);
        splits = c.op("GatherV2").input(next).input(splits).input(0).build()?;
    }
    let flat = c.reshape(c.x(indices), [-1])?;
    let starts = c.op("GatherV2").input(splits).input(flat).input(0).build()?;
    let after = c.part(splits, 1, None)?;
    let limits = c.op("GatherV2").input(after).input(flat).input(0).build()?;
    let one: Input = if dtype == DType::I64 { 1i64.into() } else { 1i32.into() };
    let rows = c.op("RaggedRange").input(starts).input(limits).input(one).attr("Tsplits", dtype).build()?;
    let shape = c.shape_as(c.x(values), dtype)?;
    Ok(at(values, Call::rows(dy, rows.port(1), shape)))
}

/// The gradients of elements that came from values go to these; those of the default are summed up.
fn to_dense(c: &mut Call) -> Grads {
    let (values, default, dy) = (c.x(1), c.x(2), c.dy()?);
    let Some(of_default) = c.sizes(default) else {
        return Err(Stop::Unsupported("needs to know the rank of its default value".to_owned()));
    };
    let Attr::Strs(forms) = c.attr("row_partition_types") else {
        return Err(Stop::Unsupported("has no row_partition_types".to_owned()));
    };
    let ragged = forms.iter().filter(|form| *form != b"FIRST_DIM_SIZE").count() as i32;
    // For each element the index of the value that it came from: -1 for the default.
    let sizes = c.shape_of_added(dy)?;
    let outer = c.part(sizes, 0, Some(ragged + 1))?;
    let shape = c.shape(values)?;
    let count = c.element(shape, 0)?;
    let numbers = c.op("Range").name("range").input(0).input(count).input(1).build()?;
    let partitions: Vec<Output> = c.node.inputs[3..].to_vec();
    let sources = c.op("RaggedTensorToTensor").input(outer).input(numbers).input(-1).inputs(partitions);
    let sources = sources.attr("row_partition_types", Attr::Strs(forms)).build()?;
    let is_value = c.bin("NotEqual", sources, -1)?;
    let is_default = c.un("LogicalNot", is_value)?;
    // One row per element.
    let inner = c.part(sizes, ragged + 1, None)?;
    let rows = c.concat([Input::from([-1]), inner.into()], 0)?;
    let rows = c.reshape(dy, rows)?;
    let by_values = where_true(c, rows, is_value)?;
    let flat = c.reshape(sources, [-1])?;
    let indices = where_true(c, flat, is_value)?;
    let by_default = where_true(c, rows, is_default)?;
    let summed = match of_default.iter().position(|size| *size != Some(1)) {
        // Leading sizes of 1 are equivalent to none.
        Some(first) if of_default[first].is_none() => {
            return Err(Stop::Unsupported("needs to know the shape of its default value".to_owned()));
        }
        Some(first) => (of_default.len() - first) as i32,
        None => 0,
    };
    let rank = c.un("Rank", by_default)?;
    let axes = c.sub(rank, summed)?;
    let axes = c.op("Range").name("range").input(0).input(axes).input(1).build()?;
    let sum = c.sum(by_default, axes, false)?;
    let default = c.shape(default)?;
    let by_default = c.reshape(sum, default)?;
    Ok(vec![None, Some(Call::rows(by_values, indices, shape)), Some(Gradient::Dense(by_default))])
}

/// The gradient of a ragged tensor in a variant is also a ragged tensor, with the same splits.
fn from_variant(c: &mut Call) -> Grads {
    let ragged_rank = c.node.outputs.len() - 1;
    let dy = c.d(ragged_rank)?;
    let is_batch = match c.rank(c.x(0)) {
        Some(0) => false,
        Some(1) => true,
        None => ragged_rank > 0,
        Some(_) => {
            return Err(Stop::Unsupported("has a gradient only for a scalar or a vector of variants".to_owned()));
        }
    };
    let splits: Vec<Output> = (0..ragged_rank).map(|port| c.y(port as u32)).collect();
    let dtype = c.node.outputs.first().map_or(DType::I64, |splits| splits.dtype);
    let encoded = c
        .op("RaggedTensorToVariant")
        .inputs(splits)
        .input(dy)
        .attr("Tsplits", if ragged_rank > 0 { dtype } else { DType::I64 });
    one(encoded.attr("RAGGED_RANK", ragged_rank as i64).attr("batched_input", is_batch).build()?)
}

fn to_variant(c: &mut Call) -> Grads {
    let (values, dy) = (c.node.inputs.len() - 1, c.dy()?);
    // No splits exist that describe how the values are spread over a batch of dense tensors, and none are needed.
    let splits = if values > 0 { c.x(0) } else { c.g.constant("splits", 0i64)? };
    let shape = c.shape(c.x(values))?;
    let dtype = c.dtype(c.x(values));
    let decoded = c.op("RaggedTensorToVariantGradient").input(dy).input(splits).input(shape).attr("Tvalues", dtype);
    let by_values = decoded.build()?;
    Ok(at(values, Gradient::Dense(by_values)))
}

/// The rows whose element in a mask of any shape is true.
fn where_true(c: &mut Call, rows: Output, mask: Output) -> Added {
    let mask = c.reshape(mask, [-1])?;
    let places = c.un("Where", mask)?;
    let places = c.op("Squeeze").input(places).attr("squeeze_dims", [1i64]).build()?;
    Ok(c.op("GatherV2").input(rows).input(places).input(0).build()?)
}
