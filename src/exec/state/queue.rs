//! Queues. An op that finds its queue full or empty waits in it, in order, without holding a thread.

mod elements;
mod rows;

use std::collections::VecDeque;
use std::sync::Arc;

use self::elements::{Element, Elements, Kind, bytes, heap_bytes};
use self::rows::stack_padded;
pub(super) use self::rows::{row, stack};
use super::super::engine::Engine;
use super::super::kernel::{Dice, KernelNode};
use super::super::mailbox::Ticket;
use super::super::resource::Resource;
use super::super::token::{Token, Tokens};
use super::shared::{Shared, Waited};
use super::{
    Ended, Inputs, MAX_WAITERS, Named, Outcome, Site, StateOp, Waiter, nothing, one, settle, simple, too_many_waiters,
    wrong_kind,
};
use crate::failure::{Code, Failure, Result};
use crate::memory;
use crate::tensor::{DType, PartialShape, Shape, Tensor};

/// Most bytes of elements in one queue.
const MAX_QUEUE_BYTES: usize = 4 << 30;

pub(in crate::exec) struct Queue {
    name: String,
    kind: Kind,
    types: Vec<DType>,
    /// Empty where the graph states none.
    shapes: Vec<PartialShape>,
    capacity: usize,
    state: Shared<State>,
}

pub(super) struct State {
    elements: Elements,
    is_closed: bool,
    /// In the order they came; only the first of each may go on.
    enqueues: VecDeque<Enqueue>,
    dequeues: VecDeque<Dequeue>,
}

struct Enqueue {
    waiter: Waiter,
    what: Entering,
}

enum Entering {
    /// What is not in the queue yet.
    Elements(VecDeque<Element>),
    /// Closes when those before it are in.
    Close,
}

struct Dequeue {
    waiter: Waiter,
    wanted: usize,
    /// Taken out, and held until there are enough.
    taken: Vec<Element>,
    how: How,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// One element as it is.
    One,
    /// So many, stacked.
    Many,
    /// So many, or what is left when the queue is closed, stacked.
    UpTo,
}

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    if node.attrs.get("timeout_ms").is_some() && node.attrs.int("timeout_ms")? != -1 {
        return Err(Failure::invalid("Timeout not supported yet."));
    }
    match node.op {
        "FIFOQueueV2" | "PaddingFIFOQueueV2" | "RandomShuffleQueueV2" | "PriorityQueueV2" => handle(node, site),
        "QueueEnqueueV2" => waiting(|mut inputs, waiter| {
            let queue = inputs.queue(0)?;
            let element = inputs.rest(1)?;
            queue.check(&element, None)?;
            let ended = queue.enqueue(waiter, VecDeque::from([element]))?;
            Ok((queue, ended))
        }),
        "QueueEnqueueManyV2" => waiting(|mut inputs, waiter| {
            let queue = inputs.queue(0)?;
            let components = inputs.rest(1)?;
            let rows = queue.rows(&components)?;
            let ended = queue.enqueue(waiter, split(&components, rows)?)?;
            Ok((queue, ended))
        }),
        "QueueDequeueV2" => waiting(|mut inputs, waiter| {
            let queue = inputs.queue(0)?;
            let ended = queue.dequeue(waiter, 1, How::One)?;
            Ok((queue, ended))
        }),
        "QueueDequeueManyV2" => dequeue_many(How::Many),
        "QueueDequeueUpToV2" => dequeue_many(How::UpTo),
        "QueueCloseV2" => {
            let cancels = node.attrs.bool("cancel_pending_enqueues")?;
            waiting(move |mut inputs, waiter| {
                let queue = inputs.queue(0)?;
                let ended = queue.close(waiter, cancels)?;
                Ok((queue, ended))
            })
        }
        "QueueSizeV2" => simple(|mut inputs, _| {
            let size = inputs.queue(0)?.hold().elements.len();
            Ok(one(Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX))))
        }),
        "QueueIsClosedV2" => simple(|mut inputs, _| Ok(one(Tensor::scalar(inputs.queue(0)?.hold().is_closed)))),
        _ => Ok(None),
    }
}

fn handle(node: &KernelNode, site: &Site) -> Result<Option<StateOp>> {
    let kind = Kind::of(node)?;
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
    let mut named = Named::new(node, site)?;
    simple(move |_, _| {
        let make = |name: &str| {
            let (name, types, shapes) = (name.to_owned(), types.clone(), shapes.clone());
            let elements = Elements::new(kind, dice.clone());
            let state =
                Shared::new(State { elements, is_closed: false, enqueues: VecDeque::new(), dequeues: VecDeque::new() });
            Ok(Resource::Queue(Arc::new(Queue { name, kind, types, shapes, capacity, state })))
        };
        let queue = match named.find(make)? {
            Resource::Queue(queue) => queue,
            other => return Err(wrong_kind("queue", &other)),
        };
        if (queue.kind, &queue.types, &queue.shapes, queue.capacity) != (kind, &types, &shapes, capacity) {
            let why = format!(
                "queue '{}' is shared and is of another kind or has other component types, shapes or capacity than this \
                 node says",
                queue.name
            );
            return Err(Failure::invalid(why));
        }
        Ok(one(Token::Resource(Resource::Queue(queue))))
    })
}

fn dequeue_many(how: How) -> Result<Option<StateOp>> {
    waiting(move |mut inputs, waiter| {
        let queue = inputs.queue(0)?;
        let wanted = inputs.host(1)?.to_i64()?;
        let wanted = usize::try_from(wanted)
            .map_err(|_| Failure::invalid(format!("DequeueMany requested {wanted} < 0 elements")))?;
        let suffices = |shape: &PartialShape| match queue.kind {
            Kind::Padding => shape.0.is_some(),
            _ => shape.known().is_some(),
        };
        if queue.shapes.is_empty() || !queue.shapes.iter().all(suffices) {
            return Err(Failure::invalid(format!(
                "{}'s DequeueMany and DequeueUpTo require the components to have specified shapes.",
                queue.kind
            )));
        }
        let ended = queue.dequeue(waiter, wanted, how)?;
        Ok((queue, ended))
    })
}

/// An op that may have to wait in its queue.
fn waiting(
    mut f: impl FnMut(Inputs, Waiter) -> Result<(Arc<Queue>, Ended)> + Send + 'static,
) -> Result<Option<StateOp>> {
    Ok(Some(Box::new(move |tokens, call| -> Result<Outcome> {
        let (queue, ended) = f(Inputs(tokens), Waiter::of(call))?;
        settle(ended, call.ticket, || Resource::Queue(queue))
    })))
}

impl Waited for Queue {
    type State = State;

    fn shared(&self) -> &Shared<State> {
        &self.state
    }

    /// What a dequeue has taken goes back to the front.
    fn forget(&self, state: &mut State, ticket: Ticket) -> Ended {
        state.enqueues.retain(|enqueue| enqueue.waiter.ticket != ticket);
        let waits = state.dequeues.iter().position(|dequeue| dequeue.waiter.ticket == ticket);
        if let Some(dequeue) = waits.and_then(|at| state.dequeues.remove(at)) {
            state.elements.put_back(dequeue.taken);
        }
        self.advance(state)
    }
}

impl Queue {
    fn enqueue(&self, waiter: Waiter, elements: VecDeque<Element>) -> Result<Ended> {
        let state = &mut *self.hold();
        if state.enqueues.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("queue '{}'", self.name)));
        }
        state.enqueues.push_back(Enqueue { waiter, what: Entering::Elements(elements) });
        Ok(self.advance(state))
    }

    fn dequeue(&self, waiter: Waiter, wanted: usize, how: How) -> Result<Ended> {
        let state = &mut *self.hold();
        if state.dequeues.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("queue '{}'", self.name)));
        }
        state.dequeues.push_back(Dequeue { waiter, wanted, taken: Vec::new(), how });
        Ok(self.advance(state))
    }

    fn close(&self, waiter: Waiter, cancels: bool) -> Result<Ended> {
        let state = &mut *self.hold();
        if !cancels {
            if state.enqueues.len() >= MAX_WAITERS {
                return Err(too_many_waiters(&format!("queue '{}'", self.name)));
            }
            state.enqueues.push_back(Enqueue { waiter, what: Entering::Close });
            return Ok(self.advance(state));
        }
        state.is_closed = true;
        let cancelled =
            || Failure::new(Code::Cancelled, format!("Enqueue operation on queue '{}' was cancelled", self.name));
        let mut ended: Ended = state.enqueues.drain(..).map(|enqueue| (enqueue.waiter, Err(cancelled()))).collect();
        ended.extend(self.advance(state));
        ended.push((waiter, Ok(nothing())));
        Ok(ended)
    }

    /// Bytes of its elements, and of those that wait to get in; 0 where somebody is just changing it.
    pub(in crate::exec) fn bytes(&self) -> usize {
        let Some(state) = self.try_hold() else { return 0 };
        let waiting = state.enqueues.iter().filter_map(|enqueue| match &enqueue.what {
            Entering::Elements(elements) => Some(elements),
            Entering::Close => None,
        });
        let taken = state.dequeues.iter().flat_map(|dequeue| &dequeue.taken);
        waiting.flatten().chain(taken).map(heap_bytes).sum::<usize>() + state.elements.heap_bytes()
    }

    /// Lets those who wait go on, as far as they can.
    fn advance(&self, state: &mut State) -> Ended {
        let mut ended = Vec::new();
        while self.advance_enqueue(state, &mut ended) | self.advance_dequeue(state, &mut ended) {}
        ended
    }

    /// Whether the first enqueue came to its end.
    fn advance_enqueue(&self, state: &mut State, ended: &mut Ended) -> bool {
        let Some(Enqueue { waiter, what }) = state.enqueues.pop_front() else { return false };
        let result = match what {
            Entering::Close if state.is_closed => {
                Err(Failure::new(Code::Aborted, format!("Queue '{}' is already closed.", self.name)))
            }
            Entering::Close => {
                state.is_closed = true;
                Ok(nothing())
            }
            Entering::Elements(_) if state.is_closed => {
                Err(Failure::new(Code::Cancelled, format!("{} '{}' is closed.", self.kind, self.name)))
            }
            Entering::Elements(mut elements) => loop {
                if state.elements.len() >= self.capacity && !elements.is_empty() {
                    state.enqueues.push_front(Enqueue { waiter, what: Entering::Elements(elements) });
                    return false;
                }
                let Some(element) = elements.pop_front() else { break Ok(nothing()) };
                if state.elements.bytes() + bytes(&element) > MAX_QUEUE_BYTES {
                    let why = format!("queue '{}' passes the limit of {MAX_QUEUE_BYTES} bytes", self.name);
                    break Err(Failure::new(Code::ResourceExhausted, why));
                }
                if let Err(failure) = memory::grow() {
                    break Err(failure);
                }
                state.elements.push(element);
            },
        };
        ended.push((waiter, result));
        true
    }

    /// Whether the first dequeue came to its end, or took something that an enqueue waits for the place of.
    fn advance_dequeue(&self, state: &mut State, ended: &mut Ended) -> bool {
        let Some(mut dequeue) = state.dequeues.pop_front() else { return false };
        let before = dequeue.taken.len();
        while dequeue.taken.len() < dequeue.wanted {
            let Some(element) = state.elements.pop(state.is_closed) else { break };
            dequeue.taken.push(element);
        }
        let took = dequeue.taken.len();
        let result = if took >= dequeue.wanted || state.is_closed && dequeue.how == How::UpTo && took > 0 {
            let answer = self.gather(&mut dequeue.taken, dequeue.how);
            if answer.is_err() {
                state.elements.put_back(dequeue.taken);
            }
            answer
        } else if !state.is_closed {
            state.dequeues.push_front(dequeue);
            return took > before;
        } else {
            state.elements.put_back(dequeue.taken);
            let why = format!(
                "{} '{}' is closed and has insufficient elements (requested {}, current size {})",
                self.kind,
                self.name,
                dequeue.wanted,
                state.elements.len()
            );
            Err(Failure::new(Code::OutOfRange, why))
        };
        ended.push((dequeue.waiter, result));
        true
    }

    /// What a dequeue answers. Where that cannot be made, what it has taken is left as it is.
    fn gather(&self, taken: &mut Vec<Element>, how: How) -> Result<Tokens> {
        if how == How::One {
            let element = taken.pop().unwrap_or_default();
            return Ok(element.into_iter().map(|tensor| Some(tensor.into())).collect());
        }
        let component = |i: usize| {
            let shape: Shape = self.shapes[i].0.iter().flatten().map(|size| size.unwrap_or(0)).collect();
            let rows: Vec<&Tensor> = taken.iter().map(|element| &element[i]).collect();
            let stacked = match self.kind {
                Kind::Padding => stack_padded(self.types[i], &shape, &rows),
                _ => stack(self.types[i], &shape, &rows),
            };
            stacked.map(|tensor| Some(tensor.into()))
        };
        (0..self.types.len()).map(component).collect()
    }

    /// Holds an element, or many stacked, against the queue's component types and shapes.
    fn check(&self, components: &[Tensor], rows: Option<usize>) -> Result<()> {
        if components.len() != self.types.len() {
            let why =
                format!("Wrong number of components in tuple. Expected {}, got {}", self.types.len(), components.len());
            return Err(Failure::invalid(why));
        }
        for (i, (tensor, &dtype)) in components.iter().zip(&self.types).enumerate() {
            if tensor.dtype() != dtype {
                let why = format!("Type mismatch in tuple component {i}. Expected {dtype}, got {}", tensor.dtype());
                return Err(Failure::invalid(why));
            }
            let Some(shape) = self.shapes.get(i) else { continue };
            let mut wanted = shape.clone();
            if let (Some(dims), Some(rows)) = (&mut wanted.0, rows) {
                dims.insert(0, Some(rows));
            }
            if !wanted.admits(tensor.shape()) {
                let why = format!("Shape mismatch in tuple component {i}. Expected {wanted}, got {}", tensor.shape());
                return Err(Failure::invalid(why));
            }
        }
        Ok(())
    }

    /// How many elements lie stacked in these components.
    fn rows(&self, components: &[Tensor]) -> Result<usize> {
        let Some(&rows) = components.first().and_then(|tensor| tensor.dims().first()) else {
            return Err(Failure::invalid("EnqueueMany takes components with a dimension of elements, not scalars"));
        };
        if let Some((i, other)) = components.iter().enumerate().find(|(_, tensor)| tensor.dims().first() != Some(&rows))
        {
            let got = other.dims().first().map_or_else(|| "none".to_owned(), usize::to_string);
            let why = format!(
                "All input tensors must have the same size in the 0th dimension. Component {i} has {got}, and should have {rows}"
            );
            return Err(Failure::invalid(why));
        }
        self.check(components, Some(rows))?;
        Ok(rows)
    }
}

/// Each row of the components as an element.
fn split(components: &[Tensor], rows: usize) -> Result<VecDeque<Element>> {
    (0..rows).map(|i| components.iter().map(|tensor| row(tensor, i)).collect()).collect()
}
