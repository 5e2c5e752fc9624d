//! The ops StringJoin, ReduceJoin and UnsortedSegmentJoin.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::array::View;
use super::super::call::{self, check_text_bytes, kernel as call, one, vector};
use super::super::{Inputs, Outputs, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("StringJoin", |node| {
        let separator = node.attrs.bytes("separator")?.to_vec();
        Ok(Some(Box::new(move |inputs| join(&inputs, &separator))))
    });
    ops.insert("UnsortedSegmentJoin", |node| {
        let separator = node.attrs.bytes("separator")?.to_vec();
        Ok(Some(call(move |[inputs, ids, count]| segment_join(&inputs, &ids, &count, &separator))))
    });
    ops.insert("ReduceJoin", |node| {
        let (separator, keep_dims) = (node.attrs.bytes("separator")?.to_vec(), node.attrs.bool("keep_dims")?);
        Ok(Some(call(move |[inputs, axes]| reduce_join(&inputs, &axes, keep_dims, &separator))))
    });
}

/// The work of creating a string, in elements.
const STRING: usize = 64;

/// Joins element by element; a scalar is joined with every element of the other inputs.
fn join(inputs: &Inputs, separator: &[u8]) -> Result<Outputs> {
    let shape = inputs.iter().map(Tensor::shape).find(|shape| shape.rank() > 0).cloned().unwrap_or_default();
    if let Some(other) = inputs.iter().find(|input| input.rank() > 0 && *input.shape() != shape) {
        return Err(Failure::invalid(format!("Input shapes do not match: {shape} vs. {}", other.shape())));
    }
    let columns: Vec<&[Vec<u8>]> = inputs.iter().map(Tensor::slice).collect::<Result<_>>()?;
    let n = shape.elements().unwrap_or(0);
    let bytes = columns.iter().fold(separator.len().saturating_mul(columns.len()).saturating_mul(n), |sum, column| {
        let own: usize = column.iter().map(Vec::len).sum();
        sum.saturating_add(if column.len() == 1 { own.saturating_mul(n) } else { own })
    });
    check_text_bytes(bytes)?;
    let strings = paced(0..n, STRING + bytes.checked_div(n).unwrap_or(0))
        .map(|i| {
            let parts: Vec<&[u8]> =
                columns.iter().map(|column| if let [one] = column { one } else { &column[i] }.as_slice()).collect();
            parts.join(separator)
        })
        .collect();
    Ok(one(Tensor::from_vec(shape, strings)))
}

/// Joins along axes; the first of the named axes varies fastest.
fn reduce_join(inputs: &Tensor, axes: &Tensor, keep_dims: bool, separator: &[u8]) -> Result<Tensor> {
    let rank = inputs.rank();
    let mut over = Vec::new();
    for axis in vector(axes, "reduction_indices", true)? {
        let at = call::axis(axis, rank).map_err(|_| {
            Failure::new(
                Code::OutOfRange,
                format!("Invalid reduction dimension {axis} for input with {rank} dimension(s)"),
            )
        })?;
        if over.contains(&at) {
            return Err(Failure::invalid(format!("Duplicate reduction dimension {at}")));
        }
        over.push(at);
    }
    let all = View::all(inputs.shape());
    let kept = (0..rank).filter(|axis| !over.contains(axis));
    let order: Vec<usize> = kept.chain(over.iter().rev().copied()).collect();
    let moved: Shape = order.iter().map(|&axis| inputs.dims()[axis]).collect();
    let rows = View { offset: 0, dims: order.iter().map(|&axis| all.dims[axis]).collect() }.read(inputs, moved)?;
    let shape: Shape = (0..rank)
        .filter(|axis| keep_dims || !over.contains(axis))
        .map(|axis| if over.contains(&axis) { 1 } else { inputs.dims()[axis] })
        .collect();
    check_text_bytes(rows.byte_len().saturating_add(separator.len().saturating_mul(rows.len())))?;
    let n = shape.elements().unwrap_or(0);
    let strings = rows.slice::<Vec<u8>>()?;
    let row = strings.len().checked_div(n).unwrap_or(0);
    let joined = paced(0..n, STRING * row).map(|i| strings[i * row..(i + 1) * row].join(separator)).collect();
    Ok(Tensor::from_vec(shape, joined))
}

/// The strings of each segment, joined in order.
fn segment_join(inputs: &Tensor, ids: &Tensor, count: &Tensor, separator: &[u8]) -> Result<Tensor> {
    let count = call::size(count, "num_segments")?;
    let Some(rest) = inputs.dims().strip_prefix(ids.dims()) else {
        let (ids, inputs) = (ids.shape(), inputs.shape());
        return Err(Failure::invalid(format!("segment_ids of shape {ids} do not fit inputs of shape {inputs}")));
    };
    let shape: Shape = std::iter::once(count).chain(rest.iter().copied()).collect();
    let total = shape.checked_elements(DType::String)?;
    let row: usize = rest.iter().product();
    check_text_bytes(inputs.byte_len().saturating_add(separator.len().saturating_mul(inputs.len())))?;
    let mut joined: Vec<Option<Vec<u8>>> = vec![None; total];
    let strings = inputs.slice::<Vec<u8>>()?;
    for (i, id) in paced(ids.to_i64s()?.into_iter().enumerate(), STRING * row.max(1)) {
        let Some(segment) = usize::try_from(id).ok().filter(|&segment| segment < count) else {
            let at = call::place(i, ids.dims());
            let why = "segment_ids are not allowed to exceed num_segments or to have negative values";
            return Err(Failure::invalid(format!("{why}: segment_ids{at} = {id}, num_segments = {count}")));
        };
        for (into, text) in joined[segment * row..].iter_mut().zip(&strings[i * row..(i + 1) * row]) {
            match into {
                None => *into = Some(text.clone()),
                Some(before) => {
                    before.extend_from_slice(separator);
                    before.extend_from_slice(text);
                }
            }
        }
    }
    Ok(Tensor::from_vec(shape, joined.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>()))
}
