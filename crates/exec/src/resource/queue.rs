//! Queues: ordered elements, and the ops that wait to put one in or to take one out, in the order they came. An op that waits
//! holds no thread.

mod elements;
mod saved;

use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) use self::elements::Kind;
use self::elements::{QueueElement, QueueElements, bytes, heap_bytes};
pub(super) use self::saved::Contents;
use meshtf_kernels::Dice;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use super::super::rows::{row, stack, stack_padded};
use super::super::waiting::{
    Answer, Finished, MAX_WAITERS, Shared, WaitId, Waited, Waiter, too_many_waiters, wake_all,
};
#[cfg(test)]
use super::Busy;
use super::list::Look;
use super::{Lasting, Over, Resource, Saved, Version, on_behalf};

/// Most bytes of elements in one queue.
pub(super) const MAX_QUEUE_BYTES: usize = 4 << 30;

pub(crate) struct Queue {
    name: String,
    kind: Kind,
    types: Vec<DType>,
    /// Empty if the graph states none.
    shapes: Vec<PartialShape>,
    capacity: usize,
    state: Shared<QueueState>,
}

pub(crate) struct QueueState {
    elements: QueueElements,
    is_closed: bool,
    /// In the order they came; only the first enqueue and the first dequeue may continue.
    enqueues: VecDeque<Enqueue>,
    dequeues: VecDeque<Dequeue>,
}

impl QueueState {
    fn close(&mut self) {
        self.is_closed = true;
        self.elements.version.raise();
    }
}

struct Enqueue {
    waiter: Waiter,
    what: Entering,
}

enum Entering {
    /// The elements that are not in the queue yet.
    Elements(VecDeque<QueueElement>),
    /// Closes the queue when the elements of earlier ops are in it.
    Close,
}

struct Dequeue {
    waiter: Waiter,
    wanted: usize,
    /// Elements taken out, and held until there are enough.
    taken: Vec<QueueElement>,
    how: How,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum How {
    /// One element as it is.
    One,
    /// The wanted number, stacked.
    Many,
    /// The wanted number, or the remainder when the queue is closed, stacked.
    UpTo,
}
impl Waited for Queue {
    type State = QueueState;

    fn shared(&self) -> &Shared<QueueState> {
        &self.state
    }

    /// Elements that a dequeue has taken return to the front.
    fn forget(&self, state: &mut QueueState, wait: WaitId) -> Finished {
        state.enqueues.retain(|enqueue| enqueue.waiter.wait != wait);
        let waits = state.dequeues.iter().position(|dequeue| dequeue.waiter.wait == wait);
        if let Some(dequeue) = waits.and_then(|at| state.dequeues.remove(at)) {
            state.elements.put_back(dequeue.taken);
        }
        self.advance(state)
    }
}

impl Resource for Queue {
    fn wanted() -> &'static str {
        "queue"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    /// Bytes of its elements, and of those that wait to get in; 0 while another thread changes it.
    fn bytes(&self) -> usize {
        let Some(state) = self.try_hold() else { return 0 };
        let waiting = state.enqueues.iter().filter_map(|enqueue| match &enqueue.what {
            Entering::Elements(elements) => Some(elements),
            Entering::Close => None,
        });
        let taken = state.dequeues.iter().flat_map(|dequeue| &dequeue.taken);
        waiting.flatten().chain(taken).map(heap_bytes).sum::<usize>() + state.elements.heap_bytes()
    }

    fn look(&self) -> Look {
        let state = self.try_hold();
        Look {
            dtypes: self.types.clone(),
            shape: if let [shape] = &self.shapes[..] { shape.clone() } else { PartialShape::UNKNOWN },
            bytes: state.as_ref().map(|state| state.elements.bytes()),
            length: state.as_ref().map(|state| state.elements.len()),
            version: None,
        }
    }

    fn version(&self) -> Option<Version> {
        self.try_hold().map(|state| state.elements.version)
    }

    fn save(&self) -> Result<Saved> {
        self.saved()
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        wake_all(self.loaded(saved, over)?);
        Ok(())
    }

    fn cancel(self: Arc<Self>, wait: WaitId) {
        self.give_up(wait);
    }

    #[cfg(test)]
    fn occupy(&self) -> Box<dyn Busy + '_> {
        Box::new(self.hold())
    }
}

impl Queue {
    /// An empty queue. `shapes` may be empty, if they are not known; `dice` are for a queue that shuffles.
    pub fn new(
        name: String,
        kind: Kind,
        types: Vec<DType>,
        shapes: Vec<PartialShape>,
        capacity: usize,
        dice: Option<Dice>,
    ) -> Queue {
        let elements = QueueElements::new(kind, dice);
        let state = Shared::new(QueueState {
            elements,
            is_closed: false,
            enqueues: VecDeque::new(),
            dequeues: VecDeque::new(),
        });
        Queue { name, kind, types, shapes, capacity, state }
    }

    /// Refuses a node that names this queue and describes another one, with TensorFlow's message.
    ///
    /// # Errors
    /// InvalidArgument.
    pub fn check_as(&self, kind: Kind, types: &[DType], shapes: &[PartialShape], capacity: usize) -> Result<()> {
        let differs = |has: String, requested: String| {
            let why = format!("Shared queue '{}' has {has} but requested {requested}", self.name);
            Err(Failure::invalid(why))
        };
        match (self.kind, kind) {
            (Kind::Shuffle { keeps: has, .. }, Kind::Shuffle { keeps, .. }) if has != keeps => {
                return differs(format!("min_after_dequeue {has}"), format!("min_after_dequeue was {keeps}."));
            }
            // A node without seeds takes any.
            (Kind::Shuffle { seeds: has, .. }, Kind::Shuffle { seeds, .. }) if seeds != (0, 0) && has != seeds => {
                return differs(format!("random seeds {has:?}"), format!("seeds are {seeds:?}."));
            }
            (Kind::Shuffle { .. }, Kind::Shuffle { .. }) => {}
            (has, requested) if has != requested => {
                let why = format!("Shared queue '{}': Expected {has}, found {requested}", self.name);
                return Err(Failure::invalid(why));
            }
            _ => {}
        }
        if self.capacity != capacity {
            return differs(format!("capacity {}", self.capacity), format!("capacity was {capacity}"));
        }
        if self.types != types {
            let names = |types: &[DType]| types.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
            let requested = format!("component types were {}", names(types));
            return differs(format!("component types {}", names(&self.types)), requested);
        }
        if self.shapes != shapes {
            let shown = |shapes: &[PartialShape]| {
                let shapes: Vec<String> = shapes.iter().map(PartialShape::to_string).collect();
                format!("[{}]", shapes.join(","))
            };
            let requested = format!("component shapes were {}", shown(shapes));
            return differs(format!("component shapes {}", shown(&self.shapes)), requested);
        }
        Ok(())
    }

    /// The number of elements in the queue.
    pub fn len(&self) -> usize {
        self.hold().elements.len()
    }

    pub fn is_closed(&self) -> bool {
        self.hold().is_closed
    }

    /// Puts one element in, or waits for room.
    pub fn enqueue(&self, waiter: Waiter, element: Vec<Tensor>) -> Result<Finished> {
        self.check(&element, None)?;
        self.enter(waiter, VecDeque::from([element]))
    }

    /// Puts each row of the components in as an element.
    pub fn enqueue_many(&self, waiter: Waiter, components: &[Tensor]) -> Result<Finished> {
        let rows = self.rows(components)?;
        self.enter(waiter, split(components, rows)?)
    }

    fn enter(&self, waiter: Waiter, elements: VecDeque<QueueElement>) -> Result<Finished> {
        let state = &mut *self.hold();
        if state.enqueues.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("queue '{}'", self.name)));
        }
        state.enqueues.push_back(Enqueue { waiter, what: Entering::Elements(elements) });
        Ok(self.advance(state))
    }

    /// Puts elements in that have the queue's components. For a queue without a limit on the number of elements.
    ///
    /// # Errors
    /// ResourceExhausted over the limit of a queue or the memory budget.
    pub fn put(&self, elements: Vec<QueueElement>) -> Result<Finished> {
        let state = &mut *self.hold();
        for element in elements {
            self.admit(state, &element)?;
            state.elements.push(element);
        }
        Ok(self.advance(state))
    }

    fn admit(&self, state: &QueueState, element: &QueueElement) -> Result<()> {
        if state.elements.bytes() + bytes(element) > MAX_QUEUE_BYTES {
            let why = format!("queue '{}' exceeds the limit of {MAX_QUEUE_BYTES} bytes", self.name);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        memory::grow()
    }

    /// Closes a queue that no op waits to put an element in.
    pub fn end(&self) -> Finished {
        let state = &mut *self.hold();
        state.close();
        self.advance(state)
    }

    /// Takes one element out, or waits for one.
    pub fn dequeue(&self, waiter: Waiter) -> Result<Finished> {
        self.leave(waiter, 1, How::One)
    }

    /// Takes elements out, stacked, or waits for them.
    ///
    /// # Errors
    /// InvalidArgument if the shapes of the components are not known well enough to stack them.
    pub fn dequeue_many(&self, waiter: Waiter, wanted: usize, how: How) -> Result<Finished> {
        let suffices = |shape: &PartialShape| match self.kind {
            Kind::Padding => shape.0.is_some(),
            _ => shape.known().is_some(),
        };
        if self.shapes.is_empty() || !self.shapes.iter().all(suffices) {
            return Err(Failure::invalid(format!(
                "{}'s DequeueMany and DequeueUpTo require the components to have specified shapes.",
                self.kind
            )));
        }
        self.leave(waiter, wanted, how)
    }

    fn leave(&self, waiter: Waiter, wanted: usize, how: How) -> Result<Finished> {
        let state = &mut *self.hold();
        if state.dequeues.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("queue '{}'", self.name)));
        }
        state.dequeues.push_back(Dequeue { waiter, wanted, taken: Vec::new(), how });
        Ok(self.advance(state))
    }

    /// Closes the queue: once the waiting elements are in it, or, if it `cancels`, at once.
    pub fn close(&self, waiter: Waiter, cancels: bool) -> Result<Finished> {
        let state = &mut *self.hold();
        if !cancels {
            if state.enqueues.len() >= MAX_WAITERS {
                return Err(too_many_waiters(&format!("queue '{}'", self.name)));
            }
            state.enqueues.push_back(Enqueue { waiter, what: Entering::Close });
            return Ok(self.advance(state));
        }
        state.close();
        let cancelled =
            || Failure::new(Code::Cancelled, format!("Enqueue operation on queue '{}' was cancelled", self.name));
        let mut finished: Finished =
            state.enqueues.drain(..).map(|enqueue| (enqueue.waiter, Err(cancelled()))).collect();
        finished.extend(self.advance(state));
        finished.push((waiter, Ok(Answer::new())));
        Ok(finished)
    }

    /// Lets waiting ops continue, as far as they can.
    fn advance(&self, state: &mut QueueState) -> Finished {
        let mut finished = Vec::new();
        loop {
            // An op that waited continues for its own session, whichever made way for it.
            let enqueues = state.enqueues.front().map(|enqueue| enqueue.waiter.session());
            let did = enqueues.is_some_and(|of| on_behalf(of, || self.advance_enqueue(state, &mut finished)));
            let dequeues = state.dequeues.front().map(|dequeue| dequeue.waiter.session());
            if !dequeues.is_some_and(|of| on_behalf(of, || self.advance_dequeue(state, &mut finished))) && !did {
                return finished;
            }
        }
    }

    /// Whether the first enqueue finished.
    fn advance_enqueue(&self, state: &mut QueueState, finished: &mut Finished) -> bool {
        let Some(Enqueue { waiter, what }) = state.enqueues.pop_front() else { return false };
        let result = match what {
            Entering::Close if state.is_closed => {
                Err(Failure::new(Code::Aborted, format!("Queue '{}' is already closed.", self.name)))
            }
            Entering::Close => {
                state.close();
                Ok(Answer::new())
            }
            Entering::Elements(_) if state.is_closed => {
                Err(Failure::new(Code::Cancelled, format!("{} '{}' is closed.", self.kind, self.name)))
            }
            Entering::Elements(mut elements) => loop {
                if state.elements.len() >= self.capacity && !elements.is_empty() {
                    state.enqueues.push_front(Enqueue { waiter, what: Entering::Elements(elements) });
                    return false;
                }
                let Some(element) = elements.pop_front() else { break Ok(Answer::new()) };
                if let Err(failure) = self.admit(state, &element) {
                    break Err(failure);
                }
                state.elements.push(element);
            },
        };
        finished.push((waiter, result));
        true
    }

    /// Whether the first dequeue finished, or made room that an enqueue may wait for.
    fn advance_dequeue(&self, state: &mut QueueState, finished: &mut Finished) -> bool {
        let Some(mut dequeue) = state.dequeues.pop_front() else { return false };
        let before = dequeue.taken.len();
        // A dequeue from a priority queue takes its elements once there are enough, as in TensorFlow: taken as they come, they
        // would not be in order.
        let is_short = self.kind == Kind::Priority && !state.is_closed && state.elements.len() < dequeue.wanted;
        while !is_short && dequeue.taken.len() < dequeue.wanted {
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
        finished.push((dequeue.waiter, result));
        true
    }

    /// The output of a dequeue. If that cannot be made, `taken` is unchanged.
    fn gather(&self, taken: &mut Vec<QueueElement>, how: How) -> Result<Answer> {
        if how == How::One {
            let element = taken.pop().unwrap_or_default();
            return Ok(Answer::from_vec(element));
        }
        let component = |i: usize| {
            let shape: Shape = self.shapes[i].0.iter().flatten().map(|size| size.unwrap_or(0)).collect();
            let rows: Vec<&Tensor> = taken.iter().map(|element| &element[i]).collect();
            match self.kind {
                Kind::Padding => stack_padded(self.types[i], &shape, &rows),
                _ => stack(self.types[i], &shape, &rows),
            }
        };
        (0..self.types.len()).map(component).collect()
    }

    /// Checks an element, or `rows` stacked ones, against the queue's component types and shapes.
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

    /// The number of elements stacked in these components.
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
fn split(components: &[Tensor], rows: usize) -> Result<VecDeque<QueueElement>> {
    (0..rows).map(|i| components.iter().map(|tensor| row(tensor, i)).collect()).collect()
}
