//! Updates of variables on a GPU, so that neither they nor their gradients leave it.
//!
//! A kernel takes the variables' values and then the op's other inputs, and returns the new values. On a CPU, the host updates
//! in one pass, for which burn needs several.

use burn_backend::tensor::IndexingUpdateOp;
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{Shape, Tensor};

use super::array::{Array, Home, Site, done, host_scalar, places};
use super::elementwise::arrays;
use super::memory::{Backing, upload};
use super::updates::UpdateRule;
use super::{Body, fits};
use crate::{EngineOutcome, Value, Values};

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    if !B::REMOTE {
        return Ok(None);
    }
    if let Some(rule) = UpdateRule::of(node)? {
        return Ok(Some(by_rule(rule)));
    }
    Ok(match node.op {
        "AssignAdd" | "AssignAddVariableOp" => Some(assign(B::float_add)),
        "AssignSub" | "AssignSubVariableOp" => Some(assign(B::float_sub)),
        "ScatterAdd" | "ResourceScatterAdd" => Some(Box::new(scatter_add)),
        "UnsortedSegmentSum" => Some(Box::new(segment_sum)),
        _ => None,
    })
}

/// The variable and one tensor of its shape. A single number is left to the host, which keeps it.
fn assign<B: Backing>(both: fn(B::Raw, B::Raw) -> B::Raw) -> Body<B> {
    Box::new(move |site, inputs| {
        if inputs[0].len() == 1 || inputs[0].shape() != inputs[1].shape() {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let [var, by] = arrays(site, inputs)?;
        done(var.map(|raw| both(raw, by.raw)))
    })
}

/// The op's inputs other than the variables are single numbers, the rates, and the gradient, which has the variables' shape.
/// Variables that are single numbers cannot be told from rates: the host updates them.
fn by_rule<B: Backing>(rule: UpdateRule) -> Body<B> {
    let count = rule.variables();
    Box::new(move |site: &Site<B>, inputs: Values| {
        let shape = inputs[0].shape().clone();
        let is_array = |i: usize| i < count || inputs[i].len() != 1;
        let arrays: Vec<usize> = (0..inputs.len()).filter(|&i| is_array(i)).collect();
        let fits = shape.elements() != Some(1) && arrays.len() == count + 1;
        if !fits || arrays.iter().any(|&i| *inputs[i].shape() != shape) {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let of_op = inputs.iter().enumerate().filter(|(i, rate)| !arrays.contains(i) && rate.rank() == 0);
        let of_op = of_op.map(|(_, rate)| Ok(host_scalar(&rate.clone().into_host()?.into())));
        let of_op: Option<Vec<f64>> = of_op.collect::<Result<_>>()?;
        let Some(rates) = of_op.and_then(|of_op| rule.rates(&of_op)) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let dtype = inputs[0].dtype();
        let mut raws = Vec::with_capacity(count + 1);
        for value in inputs.into_iter().enumerate().filter(|(i, _)| arrays.contains(i)).map(|(_, value)| value) {
            raws.push(site.array(value)?.raw);
        }
        let gradient = raws.pop().expect("they were counted");
        let new = B::updated(raws, gradient, rule, rates).into_iter();
        let value = |raw| Array::<B> { raw, dtype, shape: shape.clone(), home: Home::default() }.value();
        Ok(EngineOutcome::Done(new.map(value).collect()))
    })
}

/// ScatterAdd: adds the rows of the updates to rows of the variable, by the indices on the host.
fn scatter_add<B: Backing>(site: &Site<B>, mut inputs: Values) -> Result<EngineOutcome> {
    let (shape, updates) = (inputs[0].shape().clone(), inputs[2].shape());
    let Some((&rows, row)) = shape.dims().split_first() else { return Ok(EngineOutcome::Declined(inputs)) };
    let wanted: Shape = inputs[1].shape().dims().iter().chain(row).copied().collect();
    let (true, Some(indices)) = (*updates == wanted, indices(&inputs[1], rows)?) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let updates = inputs.swap_remove(2);
    let into = site.array(inputs.swap_remove(0))?;
    done(with_rows(site, into, indices, site.array(updates)?)?)
}

/// UnsortedSegmentSum, of rows whose segments are on the host.
fn segment_sum<B: Backing>(site: &Site<B>, mut inputs: Values) -> Result<EngineOutcome> {
    let (data, segments) = (inputs[0].shape().clone(), inputs[1].shape());
    let count = match &inputs[2] {
        Value::Host(count) if count.rank() == 0 => usize::try_from(count.to_i64()?).unwrap_or(0),
        _ => 0,
    };
    let row = data.dims().strip_prefix(segments.dims());
    let (Some(row), Some(indices)) = (row, indices(&inputs[1], count)?) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let shape: Shape = [count].iter().chain(row).copied().collect();
    if !fits::<B>(&shape, inputs[0].dtype()) || shape.rank() > B::MAX_RANK {
        return Ok(EngineOutcome::Declined(inputs));
    }
    let data = site.array(inputs.swap_remove(0))?;
    let into = site.full(0.0, data.dtype, shape);
    done(with_rows(site, into, indices, data)?)
}

/// Indices of rows, if they are on the host, there are some, and each is in range.
fn indices(value: &Value, rows: usize) -> Result<Option<Vec<i32>>> {
    let Value::Host(indices) = value else { return Ok(None) };
    Ok(places(indices, rows)?.filter(|indices| !indices.is_empty()))
}

/// Adds to rows of `into` those of `rows`, one for each index.
fn with_rows<B: Backing>(site: &Site<B>, into: Array<B>, indices: Vec<i32>, rows: Array<B>) -> Result<Array<B>> {
    let mut dims = into.shape.dims().to_vec();
    dims[0] = indices.len();
    let rows = rows.reshape(dims.into())?;
    let indices = upload::<B>(Tensor::vector(indices), &site.device, site.bools);
    Ok(into.map(|raw| B::float_select_assign(raw, 0, indices, rows.raw, IndexingUpdateOp::Add)))
}
