//! The ops of conditional accumulators.

use std::sync::Arc;

use super::super::engine::Engine;
use super::super::kernel::KernelNode;
use super::super::resource::{Accumulator, Resource};
use super::super::token::Token;
use super::named::{Named, Site};
use super::op::{Outcome, StateInputs, StateOp, nothing, one, settle, simple, wrong_kind};
use crate::failure::{Failure, Result};
use crate::tensor::Tensor;

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    match node.op {
        "ResourceConditionalAccumulator" => handle(node, site),
        "ResourceAccumulatorApplyGradient" => simple(|mut inputs, _| {
            let accumulator = inputs.accumulator(0)?;
            let local_step = inputs.host(1)?.to_i64()?;
            for (waiter, result) in accumulator.apply(local_step, inputs.host(2)?)? {
                waiter.wake(result);
            }
            Ok(nothing())
        }),
        "ResourceAccumulatorSetGlobalStep" => simple(|mut inputs, _| {
            let accumulator = inputs.accumulator(0)?;
            let step = inputs.host(1)?.to_i64()?;
            accumulator.set_global_step(step);
            Ok(nothing())
        }),
        "ResourceAccumulatorNumAccumulated" => simple(|mut inputs, _| {
            let count = inputs.accumulator(0)?.count();
            Ok(one(Tensor::scalar(i32::try_from(count).unwrap_or(i32::MAX))))
        }),
        "ResourceAccumulatorTakeGradient" => Ok(Some(Box::new(|tokens, context| -> Result<Outcome> {
            let mut inputs = StateInputs(tokens);
            let accumulator = inputs.accumulator(0)?;
            let required = inputs.host(1)?.to_i64()?;
            let Some(required) = u64::try_from(required).ok().filter(|&required| required > 0) else {
                return Err(Failure::invalid(format!("Argument num_required must be at least 1, got {required}")));
            };
            let finished = accumulator.take(context.waiter(), required)?;
            settle(finished, context.wait, || Resource::Accumulator(accumulator))
        }))),
        _ => Ok(None),
    }
}

fn handle(node: &KernelNode, site: &Site) -> Result<Option<StateOp>> {
    let dtype = node.attrs.dtype("dtype")?;
    let shape = node.attrs.shape("shape")?.clone();
    let is_mean = node.attrs.str("reduction_type")? == "MEAN";
    let mut named = Named::new_own(node, site)?;
    simple(move |_, _| {
        let make = |name: &str| {
            let accumulator = Accumulator::new(name.to_owned(), dtype, shape.clone(), is_mean);
            Ok(Resource::Accumulator(Arc::new(accumulator)))
        };
        match named.find(make)? {
            Resource::Accumulator(accumulator) if accumulator.dtype() == dtype => {
                Ok(one(Token::Resource(Resource::Accumulator(accumulator))))
            }
            Resource::Accumulator(accumulator) => Err(Failure::invalid(format!(
                "accumulator {} is shared and holds {}, but this node says {dtype}",
                accumulator.name(),
                accumulator.dtype()
            ))),
            other => Err(wrong_kind("conditional accumulator", &other)),
        }
    })
}
