//! Padding of float32 in this process's memory with its mirrored contents. Other inputs are left to the host.

use meshtf_kernels::KernelNode;
use meshtf_loops::vector::{self, Stretch};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape};
use smallvec::smallvec;

use super::dense::{Direct, floats, made};
use crate::{EngineOutcome, Value, Values};

/// Most mirrored positions in one dimension, each of which is a separate run.
const MOST: usize = 1 << 16;

pub(super) fn kernel(node: &KernelNode) -> Result<Option<Direct>> {
    if node.op != "MirrorPad" || node.inputs[0] != DType::F32 {
        return Ok(None);
    }
    // The number of elements at an edge that are not mirrored.
    let border = if node.attrs.str("mode")? == "SYMMETRIC" { 0 } else { 1 };
    Ok(Some(Box::new(move |inputs| padded(border, inputs))))
}

fn padded(border: usize, inputs: Values) -> Result<EngineOutcome> {
    let (Some(xs), Value::Host(paddings)) = (floats(&inputs[0]), &inputs[1]) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let dims = inputs[0].shape().dims();
    let paddings = paddings.to_i64s()?;
    let runs = |(&size, padding): (&usize, &[i64])| {
        let [before, after] = [padding[0], padding[1]].map(|count| usize::try_from(count).ok());
        mirrored(size, before?, after?, border)
    };
    let axes: Option<Vec<Vec<Stretch>>> = dims.iter().zip(paddings.chunks_exact(2)).map(runs).collect();
    let Some(axes) = axes.filter(|axes| paddings.len() == 2 * dims.len() && axes.len() == dims.len()) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let shape: Shape = axes.iter().map(|runs| runs.iter().map(|run| run.count).sum()).collect();
    shape.checked_elements(DType::F32)?;
    Ok(EngineOutcome::Done(smallvec![made(&shape, vector::picked(xs, dims, &axes, 0.0))]))
}

/// A dimension with its mirrored contents before and after it; `None` if it has too few elements, or if they are too many.
fn mirrored(size: usize, before: usize, after: usize, border: usize) -> Option<Vec<Stretch>> {
    let most = before.max(after);
    if most > MOST || most > 0 && most + border > size {
        return None;
    }
    let one = |from: usize| Stretch { count: 1, from: Some(from) };
    let left = (0..before).rev().map(|i| one(i + border));
    let right = (0..after).map(|i| one(size - 1 - border - i));
    Some(left.chain([Stretch { count: size, from: Some(0) }]).chain(right).collect())
}
