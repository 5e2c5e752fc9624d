//! A step of a program: items cut out of its queues, in an order and with numbers that are the same whenever the program
//! repeats the same operations.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use burn_ir::{ScalarIr, TensorIr};
use burn_std::distributed::ReduceOperation;
use foldhash::fast::FixedState;
use meshtf_lowering as lowering;
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

use super::form::Form;
use super::message::RequestId;
use super::program::{Held, Item, Key, MAX_QUEUED, Place, Recorder, SessionNo, State, Work};
use super::slots::{Kind, Slot};

/// Largest value that the door holds instead of a slot.
const MAX_HELD_BYTES: usize = 4 << 10;
/// Maximum number of values that it holds.
const MAX_HELD_VALUES: usize = 1 << 14;

/// Maximum number of lists of items whose memory is kept from step to step.
const MAX_KEPT_LISTS: usize = 8;

/// The computation of a step. Two steps with the same recipe have the same plan: only scalars, seeds and uploads differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Recipe {
    pub parts: Vec<Part>,
    /// Values read out of slots: the number of the value in this step, and the slot.
    pub resident: Vec<(u32, Slot)>,
    /// Values that stay after it: the number of the value, and the slot.
    pub kept: Vec<(u32, Slot)>,
    /// Slots whose values are to be dropped.
    pub emptied: Vec<Slot>,
    /// Values that are read.
    pub fetched: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) enum Part {
    /// An operation on a device, with the numbers of its inputs and outputs. Its scalars are the next of
    /// [`ProgramStep::scalars`].
    Operation { device: u32, form: Arc<Form>, numbers: SmallVec<[u32; 4]> },
    /// The next upload of [`ProgramStep::uploads`].
    Upload { device: u32, number: u32, dtype: DType, shape: Shape },
    /// Values reduced to one.
    Reduce { device: u32, inputs: Vec<u32>, output: u32, dtype: DType, mean: bool },
}

/// A step, with the data that differ between steps of the same recipe.
#[derive(Debug, Default)]
pub(super) struct ProgramStep {
    pub recipe: Recipe,
    pub scalars: Vec<ScalarIr>,
    pub seeds: Vec<[i64; 2]>,
    pub uploads: Vec<Tensor>,
    pub answers: Vec<Answer>,
    /// The values that stay after it, in the order of the recipe's.
    pub kept: Vec<Key>,
    /// The values that the door has after it, and their indices in the fetches of the recipe.
    pub held: Vec<(Key, usize)>,
    /// The hash of the recipe's parts, except those that feed values that the door has.
    operations: u64,
}

/// An answer after a step.
#[derive(Debug)]
pub(super) struct Answer {
    pub session: SessionNo,
    pub request: RequestId,
    pub what: Answered,
}

#[derive(Debug)]
pub(super) enum Answered {
    /// The value at this index of the fetches, which is this tensor.
    Read(usize, TensorIr),
    /// This value, which is this tensor.
    Held(Tensor, TensorIr),
    Sync,
    /// The value to read does not exist.
    Failed(Arc<Failure>),
}

impl ProgramStep {
    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        let Recipe { parts: _, resident: _, kept, emptied, fetched } = &self.recipe;
        kept.is_empty() && emptied.is_empty() && fetched.is_empty()
    }

    /// The hash of the recipe.
    pub fn hash(&self) -> u64 {
        let Recipe { parts: _, resident, kept, emptied, fetched } = &self.recipe;
        hash(&(self.operations, resident, kept, emptied, fetched))
    }
}

fn hash(value: &impl Hash) -> u64 {
    FixedState::default().hash_one(value)
}

impl Recorder {
    fn state(&self, key: &Key) -> Option<&State> {
        self.values.get(key).map(|value| &value.state)
    }

    /// The next step, if one is due. The values that it keeps count as resident from now on; [`Recorder::failed`] takes that
    /// back.
    pub fn next_step(&mut self) -> Option<ProgramStep> {
        if std::mem::take(&mut self.is_after_step) {
            let emptied = self.slots.due_to_be_emptied();
            // In a separate step, so that the steps of a loop are the same whatever was dropped before.
            if !emptied.is_empty() {
                return Some(ProgramStep { recipe: Recipe { emptied, ..Recipe::default() }, ..ProgramStep::default() });
            }
        }
        let mut lists = self.cut()?;
        // In the order of devices, not in that of their messages.
        lists.sort_by_key(|(stream, _)| (self.device(self.streams[*stream].session), *stream));
        let most = lists.iter().map(|(_, items)| items.len()).sum();
        let (kinds, made, fed) = (Vec::with_capacity(most), Vec::with_capacity(most), Vec::new());
        let mut making = Making { program: self, step: ProgramStep::default(), kinds, made, fed };
        making.step.recipe.parts.reserve(most / 2);
        // Each stream as far as it gets without the others.
        loop {
            let mut went_on = false;
            for (stream, items) in &mut lists {
                went_on |= making.go_on(*stream, items);
            }
            if !went_on {
                break;
            }
        }
        // Items are left only if a client's operations use their own outputs.
        for (stream, mut items) in lists {
            items.drain(..).for_each(|item| making.give_up(stream, item));
            making.program.keep_room(items);
        }
        Some(making.finish())
    }

    /// Keeps the memory of a step's list of items for the next step.
    fn keep_room(&mut self, items: VecDeque<Item>) {
        if self.taken.len() < MAX_KEPT_LISTS && items.capacity() <= 2 * MAX_QUEUED {
            self.taken.push(items);
        }
    }

    /// A step failed, and with it this value, which the step would have kept.
    pub fn failed(&mut self, key: &Key, failure: &Arc<Failure>) {
        if let Some(value) = self.values.get_mut(key)
            && let State::There(Place::Slot(slot)) = std::mem::replace(&mut value.state, State::Failed(failure.clone()))
        {
            self.slots.free(slot);
        }
    }

    /// Stores the value that a step made for the door.
    pub fn came(&mut self, key: &Key, result: Result<Tensor, Failure>) {
        // Its session may be closed by now.
        let Some(value) = self.values.get_mut(key) else { return };
        match (result, &mut value.state) {
            (Ok(tensor), State::There(Place::Held(held))) => held.value = Some(tensor),
            (Ok(_), _) => {}
            (Err(failure), _) => self.failed(key, &Arc::new(failure)),
        }
    }

    /// The values in the slots of these devices are lost.
    pub fn lost(&mut self, is_lost: impl Fn(u32) -> bool, failure: &Arc<Failure>) {
        for value in self.values.values_mut() {
            if let State::There(Place::Slot(slot)) = value.state
                && is_lost(self.slots.kind(slot).device)
            {
                self.slots.free(slot);
                value.state = State::Failed(failure.clone());
            }
        }
        self.slots.lost(is_lost);
    }
}

struct Making<'p> {
    program: &'p mut Recorder,
    step: ProgramStep,
    /// The dtype and shape of each value of the step, by its number.
    kinds: Vec<(DType, Shape)>,
    /// The values that the step has made, in order, or read out of slots, each with its device.
    made: Vec<(Key, u32)>,
    /// The indices of the parts that feed values that the door has.
    fed: Vec<usize>,
}

impl Making<'_> {
    /// Takes in the items of a stream up to one that uses a value still to be made; returns whether there was any.
    fn go_on(&mut self, stream: usize, items: &mut VecDeque<Item>) -> bool {
        let session = self.program.streams[stream].session;
        let device = self.program.device(session);
        let mut any = false;
        while let Some(item) = items.front() {
            let is_made = |(key, _): &(Key, bool)| {
                !matches!(
                    self.program.values.get(key).map(|value| &value.state),
                    Some(State::Queued { .. } | State::Awaited)
                )
            };
            if !item.inputs.iter().all(is_made) {
                break;
            }
            let item = items.pop_front().expect("it is in front");
            self.take(session, device, item);
            any = true;
        }
        any
    }

    /// Takes an item whose inputs no other item can make.
    fn give_up(&mut self, stream: usize, item: Item) {
        let session = self.program.streams[stream].session;
        let failure = Arc::new(Failure::invalid("an operation uses what it makes itself, or what is made after it"));
        self.fail(&item.outputs, &failure);
        if let Work::Read(request, _) | Work::Sync(request) = item.work {
            self.step.answers.push(Answer { session, request, what: Answered::Failed(failure) });
        }
        for (key, is_last) in item.inputs {
            self.program.used(key, is_last);
        }
    }

    fn take(&mut self, session: SessionNo, device: u32, item: Item) {
        let Item { work, inputs, outputs } = item;
        if let Work::Read(request, tensor) = &work
            && let Some(value) = self.program.state(&inputs[0].0).and_then(State::held)
        {
            let what = Answered::Held(value.clone(), (**tensor).clone());
            self.program.answers.push(Answer { session, request: *request, what });
            return inputs.into_iter().for_each(|(key, is_last)| self.program.used(key, is_last));
        }
        let mut numbers: SmallVec<[u32; 4]> = SmallVec::new();
        let mut failed = None;
        if !matches!(work, Work::Drop) {
            for (key, _) in &inputs {
                match self.number(key, device) {
                    Ok(number) => numbers.push(number),
                    Err(failure) => {
                        failed = Some(failure);
                        break;
                    }
                }
            }
        }
        let answer = |what, request| Answer { session, request, what };
        match (work, failed) {
            (Work::Read(request, _), Some(failure)) => {
                self.step.answers.push(answer(Answered::Failed(failure), request))
            }
            (_, Some(failure)) | (Work::Refused(failure), None) => self.fail(&outputs, &failure),
            (Work::Operation(form, scalars, seed), None) => {
                self.operation(device, form, &scalars, seed, numbers, &outputs);
            }
            (Work::Upload(tensor), None) => {
                let number = self.upload(device, tensor);
                self.make(&outputs, number, device);
            }
            (Work::Alias, None) => self.make(&outputs, numbers[0], device),
            (Work::Reduce(how), None) => {
                let (dtype, shape) = self.kinds[numbers[0] as usize].clone();
                let output = self.fresh(dtype, shape);
                let mean = matches!(how, ReduceOperation::Mean);
                self.step.recipe.parts.push(Part::Reduce { device, inputs: numbers.to_vec(), output, dtype, mean });
                self.make(&outputs, output, device);
            }
            (Work::Drop, None) => {}
            (Work::Read(request, tensor), None) => {
                let fetched = &mut self.step.recipe.fetched;
                let place = fetched.iter().position(|number| *number == numbers[0]).unwrap_or_else(|| {
                    fetched.push(numbers[0]);
                    fetched.len() - 1
                });
                self.step.answers.push(answer(Answered::Read(place, *tensor), request));
            }
            (Work::Sync(request), None) => self.step.answers.push(answer(Answered::Sync, request)),
        }
        for (key, is_last) in inputs {
            self.program.used(key, is_last);
        }
    }

    fn operation(
        &mut self,
        device: u32,
        form: Arc<Form>,
        scalars: &[ScalarIr],
        seed: Option<Box<[i64; 2]>>,
        mut numbers: SmallVec<[u32; 4]>,
        outputs: &[Key],
    ) {
        let is_same = |(input, number): (&(Option<DType>, Shape), &u32)| {
            let (dtype, shape) = &self.kinds[*number as usize];
            input.0 == Some(*dtype) && input.1 == *shape
        };
        if let Some(other) = form.inputs.iter().zip(&numbers).position(|pair| !is_same(pair)) {
            let (dtype, shape) = &self.kinds[numbers[other] as usize];
            let tensor = form.operation.inputs().nth(other).expect("a form has its operation's inputs");
            let says = format!("{:?} of shape {:?}", tensor.dtype, &tensor.shape[..]);
            let why = format!("{} reads {says}, but it is {dtype} of shape {shape}", lowering::name(&form.operation));
            return self.fail(outputs, &Arc::new(Failure::invalid(why)));
        }
        let made = match &form.outputs {
            Ok(made) => made,
            Err(failure) => return self.fail(outputs, failure),
        };
        for ((dtype, shape), key) in made.iter().zip(outputs) {
            let number = self.fresh(*dtype, shape.clone());
            numbers.push(number);
            self.make(&[*key], number, device);
        }
        self.step.scalars.extend_from_slice(scalars);
        self.step.seeds.extend(seed.map(|seed| *seed));
        self.step.recipe.parts.push(Part::Operation { device, form, numbers });
    }

    /// The number that a value has in this step.
    fn number(&mut self, key: &Key, device: u32) -> Result<u32, Arc<Failure>> {
        let value = self.program.values.get_mut(key).ok_or_else(|| Arc::new(gone(key)))?;
        match &value.state {
            State::Here(number, _) => Ok(*number),
            State::Failed(failure) => Err(failure.clone()),
            State::There(place @ Place::Slot(slot)) => {
                let (place, slot) = (place.clone(), *slot);
                let number = self.kinds.len() as u32;
                value.state = State::Here(number, Some(place));
                let Kind { dtype, shape, .. } = self.program.slots.kind(slot).clone();
                self.kinds.push((dtype, shape));
                self.step.recipe.resident.push((number, slot));
                self.made.push((*key, device));
                Ok(number)
            }
            State::There(place @ Place::Held(Held { value: Some(tensor), .. })) => {
                let (place, tensor) = (place.clone(), tensor.clone());
                let number = self.kinds.len() as u32;
                value.state = State::Here(number, Some(place));
                self.made.push((*key, device));
                self.fed.push(self.step.recipe.parts.len());
                Ok(self.upload(device, tensor))
            }
            State::There(Place::Held(Held { value: None, .. })) | State::Awaited | State::Queued { .. } => {
                Err(Arc::new(gone(key)))
            }
        }
    }

    /// A value that is fed.
    fn upload(&mut self, device: u32, tensor: Tensor) -> u32 {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        let number = self.fresh(dtype, shape.clone());
        self.step.recipe.parts.push(Part::Upload { device, number, dtype, shape });
        self.step.uploads.push(tensor);
        number
    }

    fn fresh(&mut self, dtype: DType, shape: Shape) -> u32 {
        self.kinds.push((dtype, shape));
        self.kinds.len() as u32 - 1
    }

    fn make(&mut self, outputs: &[Key], number: u32, device: u32) {
        for key in outputs {
            if let Some(value) = self.program.values.get_mut(key) {
                value.state = State::Here(number, None);
                self.made.push((*key, device));
            }
        }
    }

    fn fail(&mut self, outputs: &[Key], failure: &Arc<Failure>) {
        for key in outputs {
            if let Some(value) = self.program.values.get_mut(key) {
                value.state = State::Failed(failure.clone());
            }
        }
    }

    /// Assigns slots to the values that stay.
    fn finish(self) -> ProgramStep {
        let Making { program, mut step, kinds, made, fed } = self;
        // Without those that would not exist if their values were in slots: the values of a loop have the same predecessors
        // then.
        let is_own = |place: &usize| fed.binary_search(place).is_err();
        let own: Vec<&Part> =
            (0..step.recipe.parts.len()).filter(is_own).map(|place| &step.recipe.parts[place]).collect();
        step.operations = hash(&own);
        for (place, (key, device)) in made.into_iter().enumerate() {
            let Some(State::Here(number, was)) = program.state(&key) else { continue };
            let (number, was) = (*number, was.clone());
            let now = was.unwrap_or_else(|| {
                let (dtype, shape) = kinds[number as usize].clone();
                let kind = Kind { device, dtype, shape };
                let fetched = &mut step.recipe.fetched;
                let is_fetched = fetched.iter().position(|fetched| *fetched == number);
                let may_be_held = kind.bytes().is_some_and(|bytes| bytes <= MAX_HELD_BYTES)
                    && Arc::strong_count(&program.held) <= MAX_HELD_VALUES;
                let slot = match is_fetched {
                    // It is sent to the door in any case.
                    Some(_) if may_be_held => None,
                    _ => program.slots.take((step.operations, place as u32), kind, may_be_held),
                };
                match slot {
                    Some(slot) => {
                        step.recipe.kept.push((number, slot));
                        step.kept.push(key);
                        Place::Slot(slot)
                    }
                    None => {
                        step.held.push((key, is_fetched.unwrap_or(fetched.len())));
                        if is_fetched.is_none() {
                            fetched.push(number);
                        }
                        Place::Held(Held { value: None, _counted: program.held.clone() })
                    }
                }
            });
            if let Some(value) = program.values.get_mut(&key) {
                value.state = State::There(now);
            }
        }
        program.is_after_step |= !step.is_empty();
        step
    }
}

fn gone(key: &Key) -> Failure {
    Failure::new(Code::Internal, format!("{key:?} is used before it is made"))
}
