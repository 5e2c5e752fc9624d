//! First-in first-out queues. An op that finds its queue full or empty waits in it, in order, without holding a thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::super::engine::Engine;
use super::super::kernel::KernelNode;
use super::super::mailbox::Ticket;
use super::super::resource::{Resource, lock};
use super::super::token::{Token, Tokens};
use super::{
    Inputs, MAX_WAITERS, Named, Outcome, Site, StateOp, Waiter, nothing, one, settle, simple, too_many_waiters,
    wrong_kind,
};
use crate::failure::{Code, Failure, Result};
use crate::tensor::{DType, Data, PartialShape, Shape, Tensor, with_type};

/// Most bytes of elements in one queue.
const MAX_QUEUE_BYTES: usize = 4 << 30;

pub(in crate::exec) struct Queue {
    name: String,
    types: Vec<DType>,
    /// Empty where the graph states none.
    shapes: Vec<PartialShape>,
    capacity: usize,
    state: Mutex<State>,
}

/// One element: a tensor for each component.
type Element = Vec<Tensor>;

#[derive(Default)]
struct State {
    elements: VecDeque<Element>,
    bytes: usize,
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

type Ended = Vec<(Waiter, Result<Tokens>)>;

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    if node.attrs.get("timeout_ms").is_some() && node.attrs.int("timeout_ms")? != -1 {
        return Err(Failure::invalid("Timeout not supported yet."));
    }
    match node.op {
        "FIFOQueueV2" => handle(node, site),
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
            let size = lock(&inputs.queue(0)?.state).elements.len();
            Ok(one(Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX))))
        }),
        _ => Ok(None),
    }
}

fn handle(node: &KernelNode, site: &Site) -> Result<Option<StateOp>> {
    let types = node.attrs.dtypes("component_types")?.to_vec();
    let shapes = node.attrs.shapes("shapes")?.to_vec();
    if !shapes.is_empty() && shapes.len() != types.len() {
        return Err(Failure::invalid(format!("{} component types, but {} shapes", types.len(), shapes.len())));
    }
    let capacity = usize::try_from(node.attrs.int("capacity")?).unwrap_or(usize::MAX);
    let mut named = Named::new(node, site)?;
    simple(move |_, _| {
        let make = |name: &str| {
            let (name, types, shapes) = (name.to_owned(), types.clone(), shapes.clone());
            Ok(Resource::Queue(Arc::new(Queue { name, types, shapes, capacity, state: Mutex::default() })))
        };
        let queue = match named.find(make)? {
            Resource::Queue(queue) => queue,
            other => return Err(wrong_kind("queue", &other)),
        };
        if (&queue.types, &queue.shapes, queue.capacity) != (&types, &shapes, capacity) {
            let why = format!(
                "queue '{}' is shared and has other component types, shapes or capacity than this node says",
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
        if queue.shapes.is_empty() || queue.shapes.iter().any(|shape| shape.known().is_none()) {
            return Err(Failure::invalid(
                "FIFOQueue's DequeueMany and DequeueUpTo require the components to have specified shapes.",
            ));
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

impl Queue {
    fn enqueue(&self, waiter: Waiter, elements: VecDeque<Element>) -> Result<Ended> {
        let state = &mut *lock(&self.state);
        if state.enqueues.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("queue '{}'", self.name)));
        }
        state.enqueues.push_back(Enqueue { waiter, what: Entering::Elements(elements) });
        Ok(self.advance(state))
    }

    fn dequeue(&self, waiter: Waiter, wanted: usize, how: How) -> Result<Ended> {
        let state = &mut *lock(&self.state);
        if state.dequeues.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("queue '{}'", self.name)));
        }
        state.dequeues.push_back(Dequeue { waiter, wanted, taken: Vec::new(), how });
        Ok(self.advance(state))
    }

    fn close(&self, waiter: Waiter, cancels: bool) -> Result<Ended> {
        let state = &mut *lock(&self.state);
        if !cancels {
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

    /// Forgets an op that waits; what a dequeue has taken goes back to the front.
    pub(in crate::exec) fn cancel(&self, ticket: Ticket) {
        let state = &mut *lock(&self.state);
        state.enqueues.retain(|enqueue| enqueue.waiter.ticket != ticket);
        let waits = state.dequeues.iter().position(|dequeue| dequeue.waiter.ticket == ticket);
        if let Some(dequeue) = waits.and_then(|at| state.dequeues.remove(at)) {
            state.put_back(dequeue.taken);
        }
        for (waiter, result) in self.advance(state) {
            waiter.wake(result);
        }
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
                Err(Failure::new(Code::Cancelled, format!("FIFOQueue '{}' is closed.", self.name)))
            }
            Entering::Elements(mut elements) => loop {
                if state.elements.len() >= self.capacity && !elements.is_empty() {
                    state.enqueues.push_front(Enqueue { waiter, what: Entering::Elements(elements) });
                    return false;
                }
                let Some(element) = elements.pop_front() else { break Ok(nothing()) };
                let bytes = bytes(&element);
                if state.bytes + bytes > MAX_QUEUE_BYTES {
                    let why = format!("queue '{}' passes the limit of {MAX_QUEUE_BYTES} bytes", self.name);
                    break Err(Failure::new(Code::ResourceExhausted, why));
                }
                state.bytes += bytes;
                state.elements.push_back(element);
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
            let Some(element) = state.elements.pop_front() else { break };
            state.bytes -= bytes(&element);
            dequeue.taken.push(element);
        }
        let took = dequeue.taken.len();
        let result = if took >= dequeue.wanted {
            self.gather(dequeue.taken, dequeue.how)
        } else if !state.is_closed {
            state.dequeues.push_front(dequeue);
            return took > before;
        } else if dequeue.how == How::UpTo && took > 0 {
            self.gather(dequeue.taken, dequeue.how)
        } else {
            state.put_back(dequeue.taken);
            let why = format!(
                "FIFOQueue '{}' is closed and has insufficient elements (requested {}, current size {})",
                self.name,
                dequeue.wanted,
                state.elements.len()
            );
            Err(Failure::new(Code::OutOfRange, why))
        };
        ended.push((dequeue.waiter, result));
        true
    }

    /// What a dequeue answers.
    fn gather(&self, mut taken: Vec<Element>, how: How) -> Result<Tokens> {
        if how == How::One {
            let element = taken.pop().unwrap_or_default();
            return Ok(element.into_iter().map(|tensor| Some(tensor.into())).collect());
        }
        let component = |i: usize| {
            let shape = self.shapes[i].known().unwrap_or_default();
            let rows: Vec<&Tensor> = taken.iter().map(|element| &element[i]).collect();
            stack(self.types[i], &shape, &rows).map(|tensor| Some(tensor.into()))
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

impl State {
    fn put_back(&mut self, taken: Vec<Element>) {
        for element in taken.into_iter().rev() {
            self.bytes += bytes(&element);
            self.elements.push_front(element);
        }
    }
}

fn bytes(element: &Element) -> usize {
    element.iter().map(Tensor::byte_len).sum()
}

/// Each row of the components as an element.
fn split(components: &[Tensor], rows: usize) -> Result<VecDeque<Element>> {
    (0..rows).map(|i| components.iter().map(|tensor| row(tensor, i)).collect()).collect()
}

/// Row `i` of a tensor.
pub(super) fn row(tensor: &Tensor, i: usize) -> Result<Tensor> {
    let shape = Shape::from(&tensor.dims()[1..]);
    let size = shape.elements().unwrap_or(0);
    let part: Option<Result<Data>> = with_type!(tensor.dtype(), T => {
        tensor.slice::<T>().map(|all| <T as crate::tensor::Element>::into_data(all[i * size..(i + 1) * size].to_vec()))
    });
    Tensor::new(shape, part.ok_or_else(|| Failure::invalid("a handle is no tensor"))??)
}

/// Tensors of one shape and dtype as the rows of one.
pub(super) fn stack(dtype: DType, shape: &Shape, rows: &[&Tensor]) -> Result<Tensor> {
    let whole: Shape = std::iter::once(rows.len()).chain(shape.dims().iter().copied()).collect();
    let elements = whole.checked_elements(dtype)?;
    let data: Option<Result<Data>> = with_type!(dtype, T => {
        let mut all: Vec<T> = Vec::with_capacity(elements);
        rows.iter().try_for_each(|row| row.slice::<T>().map(|part| all.extend_from_slice(part)))
            .map(|()| <T as crate::tensor::Element>::into_data(all))
    });
    Tensor::new(whole, data.ok_or_else(|| Failure::invalid("a handle is no tensor"))??)
}
