//! The ops of conditional accumulators.

use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::resource::{Accumulator, Form, Gradient, Slices};
use super::super::token::Token;
use super::super::waiting::wake_all;
use super::named::{Named, Site};
use super::op::{Outcome, StateInputs, StateOp, nothing, one, settle, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ResourceConditionalAccumulator", |node, site| handle(node, site, Form::Dense));
    ops.insert("SparseConditionalAccumulator", |node, site| match node.attrs.dtype("dtype")? {
        DType::F16 | DType::F32 | DType::F64 => handle(node, site, Form::Sparse),
        other => Err(Failure::invalid(format!("{} takes float16, float32 or float64, not {other}", node.op))),
    });
    ops.insert("ResourceAccumulatorApplyGradient", |_, _| apply(|inputs| Ok(Gradient::Dense(inputs.host(2)?))));
    ops.insert("SparseAccumulatorApplyGradient", |node, _| {
        let has_shape = node.attrs.bool("has_known_shape")?;
        apply(move |inputs| {
            let shape = has_shape.then(|| inputs.host(4)).transpose()?;
            Ok(Gradient::Sparse(Slices { indices: inputs.host(2)?, values: inputs.host(3)?, shape }))
        })
    });
    ops.insert_call("ResourceAccumulatorSetGlobalStep", |mut inputs, _| {
        let accumulator = inputs.accumulator(0)?;
        let step = inputs.host(1)?.to_i64()?;
        accumulator.set_global_step(step);
        Ok(nothing())
    });
    ops.insert_call("ResourceAccumulatorNumAccumulated", |mut inputs, _| {
        let count = inputs.accumulator(0)?.count();
        Ok(one(Tensor::scalar(i32::try_from(count).unwrap_or(i32::MAX))))
    });
    ops.insert("ResourceAccumulatorTakeGradient", |_, _| take(Form::Dense));
    ops.insert("SparseAccumulatorTakeGradient", |_, _| take(Form::Sparse));
}

fn apply(mut gradient: impl FnMut(&mut StateInputs) -> Result<Gradient> + Send + 'static) -> Result<StateOp> {
    simple(move |mut inputs, _| {
        let accumulator = inputs.accumulator(0)?;
        let local_step = inputs.host(1)?.to_i64()?;
        wake_all(accumulator.apply(local_step, gradient(&mut inputs)?)?);
        Ok(nothing())
    })
}

fn take(form: Form) -> Result<StateOp> {
    Ok(Box::new(move |tokens, context| -> Result<Outcome> {
        let mut inputs = StateInputs(tokens);
        let accumulator = inputs.accumulator(0)?;
        if accumulator.form() != form {
            return Err(accumulator.of_other_form());
        }
        let required = inputs.host(1)?.to_i64()?;
        let Some(required) = u64::try_from(required).ok().filter(|&required| required > 0) else {
            return Err(Failure::invalid(format!("Argument num_required must be positive, but was {required}")));
        };
        let finished = accumulator.take(context.waiter(), required)?;
        settle(finished, context.wait, || accumulator)
    }))
}

fn handle(node: &KernelNode, site: &Site, form: Form) -> Result<StateOp> {
    let dtype = node.attrs.dtype("dtype")?;
    let shape = node.attrs.shape("shape")?.clone();
    let is_mean = node.attrs.str("reduction_type")? == "MEAN";
    let mut named = Named::new_own(node, site)?;
    simple(move |_, _| {
        let make = |name: &str| Accumulator::new(name.to_owned(), form, dtype, shape.clone(), is_mean);
        let accumulator = named.find(make)?;
        if accumulator.form() != form {
            return Err(accumulator.of_other_form());
        }
        if accumulator.dtype() != dtype {
            return Err(Failure::invalid(format!(
                "accumulator {} is shared and holds {}, but this node says {dtype}",
                accumulator.name(),
                accumulator.dtype()
            )));
        }
        Ok(one(Token::Resource(accumulator)))
    })
}
