//! Batch, Unbatch and UnbatchGrad, which join the inputs of several steps and take them apart again; and BatchFunction, which
//! calls a function in between.

use std::sync::Arc;
use std::time::Duration;

use meshtf_kernels::{Dice, KernelNode};
use meshtf_tensor::failure::{Code, Failure, Result};

use super::super::resource::{BatchCall, BatchIndex, BatchLimits, BatchUse, Batching, Unbatching, rows_of_call};
use super::super::token::Token;
use super::named::{Named, Site};
use super::op::{Outcome, StateInputs, StateOp, settle};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Batch", |node, site| {
        let (limits, mut named) = (limits(node)?, Named::new_own(node, site)?);
        Ok(Box::new(move |tokens, context| {
            let inputs = StateInputs(tokens).rest(0)?;
            let batch: Arc<Batching> =
                named.find(|name| Batching::new(name.to_owned(), limits.clone(), BatchUse::Whole))?;
            batch.check_as(&limits)?;
            let call = call(context.waiter(), inputs, Vec::new())?;
            let finished = batch.add(call)?;
            settle(finished, context.wait, || batch)
        }))
    });
    ops.insert("BatchFunction", |node, site| {
        let (limits, mut named) = (limits(node)?, Named::new_own(node, site)?);
        let width = node.attrs.dtypes("Tin")?.len();
        let callee = (site.callee)(node.attrs.function("f")?, site);
        Ok(Box::new(move |mut tokens, context| {
            let mut captured = tokens.drain(width.min(tokens.len())..).collect::<Option<Vec<Token>>>();
            let captured = captured.take().ok_or_else(|| Failure::invalid("a captured tensor is missing"))?;
            let captured = captured.into_iter().map(Token::held).collect::<Result<Vec<_>>>()?;
            let inputs = StateInputs(tokens).rest(0)?;
            let make =
                |name: &str| Batching::new(name.to_owned(), limits.clone(), BatchUse::Function(Arc::clone(&callee)));
            let batch: Arc<Batching> = named.find(make)?;
            batch.check_as(&limits)?;
            let call = call(context.waiter(), inputs, captured)?;
            let finished = batch.add(call)?;
            settle(finished, context.wait, || batch)
        }))
    });
    ops.insert("Unbatch", |node, site| {
        let micros = node.attrs.int("timeout_micros")?;
        let time = u64::try_from(micros).ok().filter(|&micros| micros > 0).map(Duration::from_micros);
        parts(node, site, time, |inputs, parts, waiter| {
            let (data, index, id) = (inputs.host(0)?, inputs.host(1)?, inputs.host(2)?.to_i64()?);
            parts.part(waiter, &data, &BatchIndex::of(&index, &data)?, id)
        })
    });
    ops.insert("UnbatchGrad", |node, site| {
        parts(node, site, None, |inputs, parts, waiter| {
            let (data, index, gradient) = (inputs.host(0)?, inputs.host(1)?, inputs.host(2)?);
            if gradient.rank() == 0 {
                return Err(Failure::invalid("the gradient of a part of a batch has no rows"));
            }
            let id = inputs.host(3)?.to_i64()?;
            parts.gradient(waiter, &BatchIndex::of(&index, &data)?, gradient, id)
        })
    });
}

fn call(
    waiter: super::super::waiting::Waiter,
    inputs: Vec<meshtf_tensor::Tensor>,
    captured: Vec<Token>,
) -> Result<BatchCall> {
    let rows = rows_of_call(&inputs)?;
    // No two calls have one number, of whatever session and task.
    let id = (Dice::unpredictable_seeds().0 >> 1) as i64;
    Ok(BatchCall { waiter, inputs, captured, rows, id })
}

type Finished = super::super::waiting::Finished;
type Waiter = super::super::waiting::Waiter;

fn parts(
    node: &KernelNode,
    site: &Site,
    time: Option<Duration>,
    f: impl Fn(&mut StateInputs, &Arc<Unbatching>, Waiter) -> Result<Finished> + Send + 'static,
) -> Result<StateOp> {
    let mut named = Named::new_own(node, site)?;
    Ok(Box::new(move |tokens, context| -> Result<Outcome> {
        let parts: Arc<Unbatching> = named.find(|name| Unbatching::new(name.to_owned(), time))?;
        let finished = f(&mut StateInputs(tokens), &parts, context.waiter())?;
        settle(finished, context.wait, || parts)
    }))
}

fn limits(node: &KernelNode) -> Result<BatchLimits> {
    let number = |name: &str| {
        let stated = node.attrs.int(name)?;
        let number = usize::try_from(stated).ok();
        number.ok_or_else(|| Failure::invalid(format!("{name} must not be negative, got {stated}")))
    };
    let rows = number("max_batch_size")?;
    if rows == 0 {
        return Err(Failure::invalid("max_batch_size must be positive; was 0"));
    }
    let micros = number("batch_timeout_micros")?;
    let allowed = node.attrs.ints("allowed_batch_sizes")?;
    if !allowed.is_sorted_by(|a, b| a < b) || allowed.iter().any(|&size| size <= 0) {
        return Err(Failure::invalid("allowed_batch_sizes entries must be monotonically increasing"));
    }
    let splits =
        node.attrs.get("enable_large_batch_splitting").is_some() && node.attrs.bool("enable_large_batch_splitting")?;
    if splits {
        let why = "calls larger than a batch are not split: enable_large_batch_splitting must be false";
        return Err(Failure::new(Code::Unimplemented, why));
    }
    if allowed.last().is_some_and(|&last| last as usize != rows) {
        return Err(Failure::invalid(
            "final entry in allowed_batch_sizes must equal max_batch_size when enable_large_batch_splitting is False",
        ));
    }
    let allowed = allowed.iter().map(|&size| size as usize).collect();
    Ok(BatchLimits { rows, time: Duration::from_micros(micros as u64), allowed })
}
