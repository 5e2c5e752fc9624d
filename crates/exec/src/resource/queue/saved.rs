//! The saved state of a queue: its elements, whether it is closed, and the position of its random numbers.

use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_kernels::{Dice, DicePosition};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};
use serde::{Deserialize, Serialize};

use super::super::super::waiting::{Finished, Waited};
use super::super::{Edition, Lasting, Over, ResourceKey, Saved, Version, admit_tensors, check_spec};
use super::elements::{QueueElement, QueueElements, bytes};
use super::{Kind, MAX_QUEUE_BYTES, Queue};

/// The description of a queue in its node.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct QueueSpec {
    kind: Kind,
    types: Vec<DType>,
    shapes: Vec<PartialShape>,
    capacity: usize,
}

#[derive(Serialize, Deserialize)]
struct Form {
    spec: QueueSpec,
    is_closed: bool,
    /// Of a queue that shuffles.
    dice: Option<DicePosition>,
}

/// The contents of a queue without the ops that wait in it.
pub(in super::super) struct Contents {
    pub elements: Vec<QueueElement>,
    pub is_closed: bool,
    pub dice: Option<Dice>,
}

impl Lasting for Queue {
    const KIND: &'static str = "queue";

    fn empty(key: &ResourceKey, saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<Queue> {
        let Form { spec: QueueSpec { kind, types, shapes, capacity }, dice, .. } = saved.form(Self::KIND)?;
        let fits = match kind {
            Kind::Priority => types.first() == Some(&DType::I64),
            Kind::Fifo | Kind::Padding | Kind::Shuffle { .. } => true,
        };
        if !fits || types.is_empty() || !shapes.is_empty() && shapes.len() != types.len() {
            return Err(saved.malformed("no queue has such components"));
        }
        if matches!(kind, Kind::Shuffle { .. }) != dice.is_some() {
            return Err(saved.malformed("a queue that shuffles has random numbers, and no other"));
        }
        let dice = dice.as_ref().and_then(Dice::at);
        Ok(Queue::new(key.name.clone(), kind, types, shapes, capacity, dice))
    }
}

impl Queue {
    fn spec(&self) -> QueueSpec {
        let (types, shapes) = (self.types.clone(), self.shapes.clone());
        QueueSpec { kind: self.kind, types, shapes, capacity: self.capacity }
    }

    pub(super) fn saved(&self) -> Result<Saved> {
        let (Contents { elements, is_closed, dice }, version) = self.contents()?;
        let form = Form { spec: self.spec(), is_closed, dice: dice.as_ref().map(Dice::position) };
        Saved::new(Self::KIND, version, &form, elements.into_iter().flatten().collect())
    }

    pub(super) fn loaded(&self, saved: &Saved, over: Over<'_>) -> Result<Finished> {
        let Form { spec, is_closed, dice } = saved.form(Self::KIND)?;
        check_spec(Self::KIND, &self.name, &self.spec(), &spec)?;
        let dice = match dice {
            Some(position) => {
                Some(Dice::at(&position).ok_or_else(|| saved.malformed("no position of random numbers"))?)
            }
            None => None,
        };
        if matches!(self.kind, Kind::Shuffle { .. }) != dice.is_some() {
            return Err(saved.malformed("a queue that shuffles has random numbers, and no other"));
        }
        let elements = self.elements_of(&saved.tensors).map_err(|why| saved.malformed(&why.message))?;
        self.replace(Contents { elements, is_closed, dice }, saved.version, |version| version.check(Self::KIND, over))
    }

    /// The elements whose components follow each other in a list.
    ///
    /// # Errors
    /// InvalidArgument if they are no elements of this queue.
    pub(in super::super) fn elements_of(&self, tensors: &[Tensor]) -> Result<Vec<QueueElement>> {
        let elements = tensors.chunks(self.types.len().max(1));
        let elements: Vec<QueueElement> = elements.map(<[Tensor]>::to_vec).collect();
        elements.iter().try_for_each(|element| self.check(element, None))?;
        let priority = |element: &QueueElement| element.first().and_then(|first| first.to_i64().ok());
        if self.kind == Kind::Priority && !elements.is_sorted_by_key(priority) {
            return Err(Failure::invalid("the elements are not in the order of their priorities"));
        }
        Ok(elements)
    }

    /// The contents as they would be if no op waited here, and their version.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory for the list of the elements.
    pub(in super::super) fn contents(&self) -> Result<(Contents, Version)> {
        let state = self.hold();
        admit_tensors(state.elements.len().saturating_mul(self.types.len()))?;
        let mut elements = state.elements.clone();
        state.dequeues.iter().for_each(|dequeue| elements.put_back(dequeue.taken.clone()));
        let (elements, dice) = elements.into_parts();
        Ok((Contents { elements, is_closed: state.is_closed, dice }, state.elements.version))
    }

    /// Replaces the contents, if those that are there pass a check. What a waiting op has taken out was of the former ones, and
    /// is dropped.
    ///
    /// # Errors
    /// ResourceExhausted over the limit of a queue; the failure of the check.
    pub(in super::super) fn replace(
        &self,
        by: Contents,
        version: Edition,
        check: impl Fn(&Version) -> Result<()>,
    ) -> Result<Finished> {
        if by.elements.iter().map(bytes).fold(0, usize::saturating_add) > MAX_QUEUE_BYTES {
            let why = format!("queue '{}' would exceed the limit of {MAX_QUEUE_BYTES} bytes", self.name);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let state = &mut *self.hold();
        check(&state.elements.version)?;
        state.dequeues.iter_mut().for_each(|dequeue| dequeue.taken.clear());
        state.is_closed = by.is_closed;
        let mut replaced = state.elements.version;
        replaced.replace(version);
        state.elements = QueueElements::filled(self.kind, by.elements, by.dice);
        state.elements.version = replaced;
        Ok(self.advance(state))
    }
}
