//! The ops of barriers. An op that takes elements waits in the barrier's queue of complete elements.

use meshtf_kernels::KernelNode;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::super::resource::Barrier;
use super::super::token::Token;
use super::super::waiting::wake_all;
use super::named::{Named, Site};
use super::op::{StateInputs, StateOp, nothing, one, settle, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Barrier", handle);
    ops.insert("BarrierInsertMany", |node, _| {
        let index = usize::try_from(node.attrs.int("component_index")?)
            .map_err(|_| Failure::invalid("component_index must not be negative"))?;
        simple(move |mut inputs, _| {
            let barrier = inputs.barrier(0)?;
            wake_all(barrier.insert(index, &inputs.host(1)?, &inputs.host(2)?)?);
            Ok(nothing())
        })
    });
    ops.insert("BarrierTakeMany", |node, _| {
        if node.attrs.int("timeout_ms")? != -1 {
            return Err(Failure::invalid("Timeout not supported yet."));
        }
        let may_be_fewer = node.attrs.bool("allow_small_batch")?;
        Ok(Box::new(move |tokens, context| {
            let mut inputs = StateInputs(tokens);
            let (barrier, wanted) = (inputs.barrier(0)?, inputs.host(1)?.to_i64()?);
            let wanted = usize::try_from(wanted)
                .map_err(|_| Failure::invalid(format!("BarrierTakeMany requested {wanted} < 0 elements")))?;
            let finished = barrier.take(context.waiter(), wanted, may_be_fewer)?;
            settle(finished, context.wait, || barrier.ready())
        }))
    });
    ops.insert("BarrierClose", |node, _| {
        let cancels = node.attrs.bool("cancel_pending_enqueues")?;
        simple(move |mut inputs, _| {
            wake_all(inputs.barrier(0)?.close(cancels)?);
            Ok(nothing())
        })
    });
    ops.insert_call("BarrierReadySize", |mut inputs, _| size(inputs.barrier(0)?.ready().len()));
    ops.insert_call("BarrierIncompleteSize", |mut inputs, _| size(inputs.barrier(0)?.incomplete()));
}

fn size(count: usize) -> Result<super::super::token::Tokens> {
    Ok(one(Tensor::scalar(i32::try_from(count).unwrap_or(i32::MAX))))
}

fn handle(node: &KernelNode, site: &Site) -> Result<StateOp> {
    let types = node.attrs.dtypes("component_types")?.to_vec();
    let shapes = node.attrs.shapes("shapes")?.to_vec();
    if !shapes.is_empty() && shapes.len() != types.len() {
        let why = format!("All of the component shapes must be specified: {} of {}", shapes.len(), types.len());
        return Err(Failure::invalid(why));
    }
    if node.attrs.int("capacity")? != -1 {
        let why = format!(
            "Barrier only accepts capacity=-1.  Feed the inputs through a queue, got {}",
            node.attrs.int("capacity")?
        );
        return Err(Failure::new(Code::InvalidArgument, why));
    }
    let mut named = Named::new(node, site)?;
    simple(move |_, _| {
        let barrier = named.find(|name| Barrier::new(name.to_owned(), types.clone(), shapes.clone()))?;
        if !barrier.is_as(&types, &shapes) {
            return Err(Failure::invalid(format!(
                "Shared barrier '{}' has other component types or component shapes than this node says",
                barrier.name()
            )));
        }
        Ok(one(Token::Resource(barrier)))
    })
}
