//! The ops of queues. An op that finds its queue full or empty waits in it, in order, without holding a thread.

use std::sync::Arc;

use meshtf_kernels::{Dice, KernelNode};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::super::resource::{How, Kind, Queue};
use super::super::token::Token;
use super::super::waiting::{Finished, Waiter};
use super::named::{Named, Site};
use super::op::{Outcome, StateInputs, StateOp, one, settle, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("FIFOQueueV2", |node, site| handle(node, site, Kind::Fifo));
    ops.insert("PaddingFIFOQueueV2", |node, site| handle(node, site, Kind::Padding));
    ops.insert("PriorityQueueV2", |node, site| handle(node, site, Kind::Priority));
    ops.insert("RandomShuffleQueueV2", |node, site| handle(node, site, shuffle(node)?));
    ops.insert("QueueEnqueueV2", |node, _| {
        waiting(node, |mut inputs, waiter| {
            let queue = inputs.queue(0)?;
            let finished = queue.enqueue(waiter, inputs.rest(1)?)?;
            Ok((queue, finished))
        })
    });
    ops.insert("QueueEnqueueManyV2", |node, _| {
        waiting(node, |mut inputs, waiter| {
            let queue = inputs.queue(0)?;
            let finished = queue.enqueue_many(waiter, &inputs.rest(1)?)?;
            Ok((queue, finished))
        })
    });
    ops.insert("QueueDequeueV2", |node, _| {
        waiting(node, |mut inputs, waiter| {
            let queue = inputs.queue(0)?;
            let finished = queue.dequeue(waiter)?;
            Ok((queue, finished))
        })
    });
    ops.insert("QueueDequeueManyV2", |node, _| dequeue_many(node, How::Many));
    ops.insert("QueueDequeueUpToV2", |node, _| dequeue_many(node, How::UpTo));
    ops.insert("QueueCloseV2", |node, _| {
        let cancels = node.attrs.bool("cancel_pending_enqueues")?;
        waiting(node, move |mut inputs, waiter| {
            let queue = inputs.queue(0)?;
            let finished = queue.close(waiter, cancels)?;
            Ok((queue, finished))
        })
    });
    ops.insert_call("QueueSizeV2", |mut inputs, _| {
        let size = inputs.queue(0)?.len();
        Ok(one(Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX))))
    });
    ops.insert_call("QueueIsClosedV2", |mut inputs, _| Ok(one(Tensor::scalar(inputs.queue(0)?.is_closed()))));
}

fn handle(node: &KernelNode, site: &Site, kind: Kind) -> Result<StateOp> {
    let mut types = node.attrs.dtypes("component_types")?.to_vec();
    let mut shapes = node.attrs.shapes("shapes")?.to_vec();
    if !shapes.is_empty() && shapes.len() != types.len() {
        return Err(Failure::invalid(format!("{} component types, but {} shapes", types.len(), shapes.len())));
    }
    if kind == Kind::Priority {
        // The priority itself, which the node does not list.
        types.insert(0, DType::I64);
        if shapes.is_empty() {
            shapes = vec![PartialShape::UNKNOWN; types.len() - 1];
        }
        shapes.insert(0, PartialShape(Some(Vec::new())));
    }
    let capacity = usize::try_from(node.attrs.int("capacity")?).unwrap_or(usize::MAX);
    let dice = matches!(kind, Kind::Shuffle { .. }).then(|| Dice::of(node)).transpose()?;
    let mut named = Named::new_own(node, site)?;
    simple(move |_, _| {
        let make =
            |name: &str| Queue::new(name.to_owned(), kind, types.clone(), shapes.clone(), capacity, dice.clone());
        let queue = named.find(make)?;
        queue.check_as(kind, &types, &shapes, capacity)?;
        Ok(one(Token::Resource(queue)))
    })
}

/// The kind of a queue that shuffles.
fn shuffle(node: &KernelNode) -> Result<Kind> {
    let (keeps, capacity) = (node.attrs.int("min_after_dequeue")?, node.attrs.int("capacity")?);
    let keeps =
        usize::try_from(keeps).map_err(|_| Failure::invalid(format!("min_after_dequeue {keeps} must be >= 0")))?;
    if usize::try_from(capacity).is_ok_and(|capacity| keeps >= capacity) {
        return Err(Failure::invalid(format!("min_after_dequeue {keeps} must be < capacity {capacity}")));
    }
    Ok(Kind::Shuffle { keeps, seeds: (node.attrs.int("seed")?, node.attrs.int("seed2")?) })
}

fn dequeue_many(node: &KernelNode, how: How) -> Result<StateOp> {
    waiting(node, move |mut inputs, waiter| {
        let queue = inputs.queue(0)?;
        let wanted = inputs.host(1)?.to_i64()?;
        let wanted = usize::try_from(wanted)
            .map_err(|_| Failure::invalid(format!("DequeueMany requested {wanted} < 0 elements")))?;
        let finished = queue.dequeue_many(waiter, wanted, how)?;
        Ok((queue, finished))
    })
}

/// An op that may have to wait in its queue.
fn waiting(
    node: &KernelNode,
    mut f: impl FnMut(StateInputs, Waiter) -> Result<(Arc<Queue>, Finished)> + Send + 'static,
) -> Result<StateOp> {
    if node.attrs.get("timeout_ms").is_some() && node.attrs.int("timeout_ms")? != -1 {
        return Err(Failure::invalid("Timeout not supported yet."));
    }
    Ok(Box::new(move |tokens, context| -> Result<Outcome> {
        let (queue, finished) = f(StateInputs(tokens), context.waiter())?;
        settle(finished, context.wait, || queue)
    }))
}
