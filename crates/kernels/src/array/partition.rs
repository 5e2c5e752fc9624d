//! DynamicPartition and DynamicStitch: slices distributed by number, and reassembled.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Moved, Shape, Tensor, with_moved};

use super::super::call;
use super::super::{Inputs, Outputs, Registry};
use super::view::not_held;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("DynamicPartition", |node| {
        let count = node.outputs.len();
        Ok(Some(Box::new(move |inputs| {
            let [data, partitions] = call::take(inputs)?;
            with_moved!(data.dtype(), T => partition::<T>(&data, &partitions, count))
                .unwrap_or_else(|| not_held(data.dtype()))
        })))
    });
    ops.insert_all(["DynamicStitch", "ParallelDynamicStitch"], |node| {
        let dtype = call::output_dtype(node, 0)?;
        Ok(Some(Box::new(move |inputs| {
            with_moved!(dtype, T => stitch::<T>(&inputs, dtype).map(call::one)).unwrap_or_else(|| not_held(dtype))
        })))
    });
}

fn partition<T: Moved>(data: &Tensor, partitions: &Tensor, count: usize) -> Result<Outputs> {
    if !data.dims().starts_with(partitions.dims()) {
        return Err(Failure::invalid(format!(
            "data.shape must start with partitions.shape, got data.shape = {}, partitions.shape = {}",
            data.shape(),
            partitions.shape()
        )));
    }
    let rest = &data.dims()[partitions.rank()..];
    let inner = call::product(rest);
    // Each part grows by doubling.
    memory::admit(2 * data.byte_len())?;
    let slices = data.moved::<T>()?;
    let mut parts: Vec<(usize, Vec<T>)> = vec![(0, Vec::new()); count];
    for (i, number) in paced(partitions.to_i64s()?.into_iter(), inner + 4).enumerate() {
        let Some((rows, part)) = usize::try_from(number).ok().and_then(|number| parts.get_mut(number)) else {
            let place = call::place(i, partitions.dims());
            return Err(Failure::invalid(format!("partitions{place} = {number} is not in [0, {count})")));
        };
        *rows += 1;
        part.extend_from_slice(&slices[i * inner..(i + 1) * inner]);
    }
    Ok(parts
        .into_iter()
        .map(|(rows, part)| {
            let shape: Shape = std::iter::once(rows).chain(rest.iter().copied()).collect();
            Tensor::from_moved(data.dtype(), shape, part)
        })
        .collect())
}

fn stitch<T: Moved>(inputs: &Inputs, dtype: DType) -> Result<Tensor> {
    let (indices, data) = inputs.split_at(inputs.len() / 2);
    let mut rest: Option<&[usize]> = None;
    let mut rows = 0;
    let mut numbers = Vec::with_capacity(indices.len());
    for (i, (indices, data)) in indices.iter().zip(data).enumerate() {
        if !data.dims().starts_with(indices.dims()) {
            return Err(Failure::invalid(format!(
                "data[{i}].shape = {} does not start with indices[{i}].shape = {}",
                data.shape(),
                indices.shape()
            )));
        }
        let own = &data.dims()[indices.rank()..];
        if *rest.get_or_insert(own) != own {
            return Err(Failure::invalid(format!(
                "Need data[0].shape[{}:] = data[{i}].shape[{}:], got {} and {}",
                inputs[0].rank(),
                indices.rank(),
                Shape::from(rest.unwrap_or_default()),
                Shape::from(own)
            )));
        }
        let own = indices.to_i64s()?;
        for &index in &own {
            let index = usize::try_from(index)
                .map_err(|_| Failure::invalid(format!("indices[{i}] is out of range: {index}")))?;
            rows = rows.max(index + 1);
        }
        numbers.push(own);
    }
    let rest = rest.unwrap_or_default();
    let shape: Shape = std::iter::once(rows).chain(rest.iter().copied()).collect();
    let mut out = vec![T::default(); shape.checked_elements(dtype)?];
    let inner = call::product(rest);
    for (numbers, data) in numbers.iter().zip(data) {
        let slices = data.moved::<T>()?;
        for (i, &to) in paced(numbers.iter(), inner + 4).enumerate() {
            out[to as usize * inner..][..inner].clone_from_slice(&slices[i * inner..(i + 1) * inner]);
        }
    }
    Ok(Tensor::from_moved(dtype, shape, out))
}
