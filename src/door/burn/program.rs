//! The queues of a program, and when a part of them becomes a step.
//!
//! A program has a session for each device, and each of its threads a stream in that session. Messages are queued. A read of a
//! tensor makes a step of all items that its stream has queued before, and of the items of other streams that they depend on; a
//! value that the door holds is answered at once.
//! A stream that begins to upload after it has computed enough makes a step, too: so a loop runs one iteration at a time, while
//! the program queues the next one. Steps depend on the content of each stream alone, never on the time at which a message
//! arrives: so a loop has the same steps in every iteration, and each is planned once.
//!
//! This module uses no lock, clock or socket.

mod cut;
mod queue;
mod value;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use self::cut::{Mark, Why};
use self::queue::Stream;
pub(super) use self::queue::{Item, Work};
use self::value::Value;
pub(super) use self::value::{Held, Key, Place, State};
use burn_ir::{DistributedOperationIr, GraphBindings, GraphId, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_std::id::StreamId;
use foldhash::fast::RandomState;
use meshtf_lowering as lowering;
use meshtf_tensor::failure::{Code, Failure, Result};
use smallvec::{SmallVec, smallvec};

use super::form::{Call, Given};
use super::message::{RequestId, SessionTask};
use super::relative::Graphs;
use super::slots::Slots;
use super::step::{Answer, Answered};

/// Maximum number of operations of one stream in the queue; with more they become a step, even if the program requests none.
pub(super) const MAX_QUEUED: usize = 1 << 15;
/// Minimum number of items, from the first that computes, that become a step because the stream continues with an upload. A
/// loader that uploads the items of a batch one by one, and computes a little with each, makes a few steps per batch instead of
/// one per item.
pub(super) const WORTH_A_STEP: u64 = 32;
/// Maximum number of items in the queue while no step can take any.
const MAX_HELD: usize = 1 << 20;
/// Maximum number of bytes that one stream uploads before they become a step.
const MAX_UPLOADED: usize = 1 << 30;
/// Maximum number of groups of devices that reduce together.
const MAX_GROUPS: usize = 1024;
/// Maximum number of tensors that a program may hold.
const MAX_TENSORS: usize = 1 << 22;

/// A session of a program, by its number.
pub(super) type SessionNo = u32;

struct ProgramSession {
    device: u32,
    seed: u64,
    /// How many random operations it has queued.
    drawn: u64,
    /// How many reductions over each group of devices it has taken part in.
    reductions: HashMap<u16, u64>,
    streams: HashMap<StreamId, usize, RandomState>,
    graphs: Graphs,
    is_open: bool,
}

#[derive(Default)]
pub(super) struct Recorder {
    sessions: BTreeMap<SessionNo, ProgramSession>,
    pub streams: Vec<Stream>,
    /// Looked up several times for each operation.
    pub values: HashMap<Key, Value, RandomState>,
    pub slots: Slots,
    /// Counts the values that the door has: each holds a clone of it.
    pub held: Arc<()>,
    /// Answers that need no step.
    pub answers: Vec<Answer>,
    /// A step was made since the last search for slots to empty.
    pub is_after_step: bool,
    /// The groups of devices that reduce together.
    groups: HashMap<Vec<u16>, u16>,
    /// Streams whose threads are gone, for reuse.
    spare: Vec<usize>,
    marks: VecDeque<Mark>,
    /// Incremented whenever a mark that had to wait may be ready.
    arrivals: u64,
    /// The value of `arrivals` at which all marks had to wait.
    waited_at: Option<(u64, usize)>,
    queued: usize,
    /// Empty lists for the items that a step takes out of the queues.
    pub taken: Vec<VecDeque<Item>>,
    /// Minimum number of items of a step that no read requested.
    worth_a_step: u64,
}

impl Recorder {
    /// Steps that no read requested have at least `worth_a_step` items, from the first that computes.
    pub fn new(worth_a_step: u64) -> Recorder {
        Recorder { worth_a_step, ..Recorder::default() }
    }

    /// A session on a device, and the seed of its random numbers unless the program sets one.
    pub fn open(&mut self, session: SessionNo, device: u32, seed: u64) {
        let (streams, graphs) = (HashMap::default(), Graphs::default());
        let opened =
            ProgramSession { device, seed, drawn: 0, reductions: HashMap::new(), streams, graphs, is_open: true };
        self.sessions.insert(session, opened);
    }

    /// Ends a session, whose tensors will not be read any more. Other sessions can still use the tensors that it sent to them.
    /// Returns the requests that get no answer.
    pub fn close(&mut self, session: SessionNo) -> Vec<SessionTask> {
        let mut requests = Vec::new();
        let Some(closed) = self.sessions.get_mut(&session) else { return requests };
        closed.is_open = false;
        let gone = Arc::new(unsent());
        let streams: Vec<(StreamId, usize)> = closed.streams.iter().map(|(id, stream)| (*id, *stream)).collect();
        for (id, stream) in streams {
            let stream = &mut self.streams[stream];
            self.queued -= stream.items.len();
            let mut taken = VecDeque::new();
            stream.take(stream.end(), &mut taken);
            for item in taken {
                match item.work {
                    Work::Read(request, tensor) => requests.push(SessionTask::ReadTensor(request, id, *tensor)),
                    Work::Sync(request) => requests.push(SessionTask::SyncBackend(request, id)),
                    _ => {}
                }
                item.inputs.into_iter().for_each(|(key, is_last)| self.used(key, is_last));
            }
        }
        let open: HashSet<u32> = self.sessions.values().filter(|own| own.is_open).map(|own| own.device).collect();
        let is_alone = self.sessions.values().filter(|own| own.is_open).count() <= 1;
        let slots = &mut self.slots;
        self.values.retain(|key, value| {
            if matches!(key, Key::Tensor(of, _) if *of == session) {
                if let State::There(Place::Slot(slot)) = value.state {
                    slots.free(slot);
                }
                return false;
            }
            let is_gone = match (&value.state, key) {
                (State::Queued { stream, .. }, _) => self.streams[*stream].session == session,
                (State::Awaited, Key::Share { device, .. }) => !open.contains(&u32::from(*device)),
                (State::Awaited, _) => is_alone,
                _ => false,
            };
            if is_gone {
                value.state = State::Failed(gone.clone());
            }
            true
        });
        self.sessions.retain(|_, session| session.is_open || !session.streams.is_empty());
        self.arrivals += 1;
        requests
    }

    /// A use of a value is done, or will not occur.
    pub fn used(&mut self, key: Key, is_last: bool) {
        let Some(value) = self.values.get_mut(&key) else { return };
        value.uses -= 1;
        if is_last {
            value.ends_after = value.ends_after.saturating_sub(1);
        }
        if !value.is_over() {
            return;
        }
        if let Some(slot) = self.values.remove(&key).and_then(|value| value.state.slot()) {
            self.slots.free(slot);
        }
    }

    /// The index of a session's device.
    pub fn device(&self, session: SessionNo) -> u32 {
        self.sessions.get(&session).map_or(0, |session| session.device)
    }

    /// Items that are queued.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Whether an item waits to become a step.
    pub fn is_due(&self) -> bool {
        !self.marks.is_empty() && self.waited_at != Some((self.arrivals, self.marks.len()))
    }

    /// Queues a task of a session. A task that needs no step is answered by the caller.
    ///
    /// # Errors
    /// ResourceExhausted if the queue is full, or there are too many tensors, so that the program cannot continue.
    pub fn push(&mut self, session: SessionNo, task: SessionTask) -> Result<()> {
        self.has_room()?;
        self.take(session, task);
        Ok(())
    }

    /// Queues an operation of a session.
    ///
    /// # Errors
    /// As [`Recorder::push`].
    pub fn push_operation(&mut self, session: SessionNo, stream: StreamId, call: Call) -> Result<()> {
        self.has_room()?;
        self.operation(session, stream, call);
        Ok(())
    }

    fn has_room(&self) -> Result<()> {
        if self.queued > MAX_HELD || self.values.len() > MAX_TENSORS {
            let why = format!(
                "a program may have at most {MAX_TENSORS} tensors, and at most {MAX_HELD} operations that wait for input from \
                 another of its sessions"
            );
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        Ok(())
    }

    fn take(&mut self, session: SessionNo, task: SessionTask) {
        match task {
            SessionTask::Seed(seed) => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    (session.seed, session.drawn) = (seed, 0);
                }
            }
            SessionTask::RegisterOperation(stream, operation) => {
                self.operation(session, stream, Call::new(*operation));
            }
            SessionTask::RegisterTensor(stream, id, data) => {
                let work = match lowering::tensor(&data) {
                    Ok(tensor) => Work::Upload(tensor),
                    Err(failure) => Work::Refused(Arc::new(failure)),
                };
                self.queue(session, stream, work, smallvec![], smallvec![key(session, id)]);
            }
            SessionTask::RegisterAlias { stream_id, new_id, src_id } => {
                let inputs = smallvec![(key(session, src_id), false)];
                self.queue(session, stream_id, Work::Alias, inputs, smallvec![key(session, new_id)]);
            }
            SessionTask::ExposeTensorLocal { stream_id, tensor, transfer_id } => {
                let inputs = smallvec![used(session, &tensor)];
                self.queue(session, stream_id, Work::Alias, inputs, smallvec![Key::Transfer(transfer_id)]);
                self.arrivals += 1;
            }
            SessionTask::RegisterTensorLocal { stream_id, transfer_id, new_id } => {
                let transfer = Key::Transfer(transfer_id);
                // The session that is to send it was opened earlier.
                let others = self.sessions.iter().filter(|(number, own)| **number != session && own.is_open).count();
                let absent = if others == 0 { State::Failed(Arc::new(unsent())) } else { State::Awaited };
                self.values.entry(transfer).or_insert_with(|| Value::new(absent));
                let inputs = smallvec![(transfer, true)];
                let at = self.queue(session, stream_id, Work::Alias, inputs, smallvec![key(session, new_id)]);
                if let Some(value) = self.values.get_mut(&transfer) {
                    value.taken = Some(at);
                }
                self.arrivals += 1;
            }
            SessionTask::ReadTensor(request, stream, tensor) if self.read_at_once(session, request, &tensor) => {
                // The steps are the same, whether or not the value has arrived.
                self.end_step(session, stream);
            }
            SessionTask::ReadTensor(request, stream, tensor) => {
                let inputs = smallvec![used(session, &tensor)];
                let read = Work::Read(request, Box::new(tensor));
                let (stream, at) = self.queue(session, stream, read, inputs, smallvec![]);
                self.mark(stream, at + 1, Why::Read, Vec::new());
            }
            SessionTask::SyncBackend(request, stream) => {
                let (stream, at) = self.queue(session, stream, Work::Sync(request), smallvec![], smallvec![]);
                let streams = self.sessions.get(&session).into_iter().flat_map(|own| own.streams.values());
                let also = streams.filter(|other| **other != stream).map(|other| (*other, self.streams[*other].end()));
                let also = also.collect();
                self.mark(stream, at + 1, Why::Read, also);
            }
            SessionTask::RegisterTensorRemote(stream, _, id) => {
                let why = "the tensor belongs to another server; use one address for all devices".to_owned();
                let refused = Work::Refused(Arc::new(Failure::new(Code::Unimplemented, why)));
                self.queue(session, stream, refused, smallvec![], smallvec![key(session, id)]);
            }
            SessionTask::ExposeTensorRemote { stream_id, tensor, .. } => {
                self.queue(session, stream_id, Work::Drop, smallvec![used(session, &tensor)], smallvec![]);
            }
            SessionTask::RegisterAndExecuteGraph { stream_id, graph_id, relative_graph, bindings } => {
                let Some(own) = self.sessions.get_mut(&session) else { return };
                let added = own.graphs.add(graph_id, relative_graph);
                self.graph(session, stream_id, graph_id, &bindings, added);
            }
            SessionTask::ExecuteGraph { stream_id, graph_id, bindings } => {
                self.graph(session, stream_id, graph_id, &bindings, Ok(()));
            }
            SessionTask::DTypeUsage(..)
            | SessionTask::ProfileStart(..)
            | SessionTask::ProfileEnd(..)
            | SessionTask::ProfileAbandon(..) => {}
        }
    }

    /// Answers a read of a value that the door has; returns whether it does.
    fn read_at_once(&mut self, session: SessionNo, request: RequestId, tensor: &TensorIr) -> bool {
        let (key, is_last) = used(session, tensor);
        let Some(value) = self.values.get_mut(&key) else { return false };
        let Some(held) = value.state.held() else { return false };
        let what = Answered::Held(held.clone(), tensor.clone());
        value.uses += 1;
        self.answers.push(Answer { session, request, what });
        self.used(key, is_last);
        true
    }

    /// Makes a step of all items that a stream has queued so far.
    fn end_step(&mut self, session: SessionNo, id: StreamId) {
        if let Some(&stream) = self.sessions.get(&session).and_then(|own| own.streams.get(&id)) {
            self.mark(stream, self.streams[stream].end(), Why::Read, Vec::new());
        }
    }

    /// Queues the operations of a graph that the client knows by number, if that is `known`.
    fn graph(
        &mut self,
        session: SessionNo,
        stream: StreamId,
        id: GraphId,
        bindings: &GraphBindings,
        known: Result<()>,
    ) {
        let Some(own) = self.sessions.get_mut(&session) else { return };
        match known.and_then(|()| own.graphs.bound(id, bindings)) {
            Ok(operations) => {
                operations.into_iter().for_each(|operation| self.operation(session, stream, Call::new(operation)));
            }
            Err(failure) => {
                let made = bindings.tensors.iter().map(|(_, id)| key(session, *id));
                let made = made.filter(|key| !self.values.contains_key(key)).collect();
                self.queue(session, stream, Work::Refused(Arc::new(failure)), smallvec![], made);
            }
        }
    }

    fn operation(&mut self, session: SessionNo, stream: StreamId, call: Call) {
        let given = |&(id, is_last): &Given| (Key::Tensor(session, id), is_last);
        let (inputs, outputs) = call.split();
        let inputs: SmallVec<[(Key, bool); 2]> = inputs.iter().map(given).collect();
        let outputs: SmallVec<[Key; 1]> = outputs.iter().map(|output| given(output).0).collect();
        match &call.form.operation {
            // The tensor that it names was sent before, or the operation concerns the sessions alone.
            OperationIr::Init(_) | OperationIr::Distributed(DistributedOperationIr::SyncCollective) => {}
            OperationIr::Drop(_) => {
                let inputs = inputs.into_iter().map(|(key, _)| (key, true)).collect();
                self.queue(session, stream, Work::Drop, inputs, smallvec![]);
            }
            OperationIr::Distributed(DistributedOperationIr::AllReduce(reduce)) => {
                let mut devices: Vec<u16> = reduce.device_ids.iter().map(|id| id.index_id).collect();
                devices.sort_unstable();
                devices.dedup();
                let fresh = self.groups.len() as u16;
                let Some(own) = self.sessions.get_mut(&session) else { return };
                let own_device = u16::try_from(own.device).ok().filter(|device| devices.contains(device));
                let Some(device) = own_device.filter(|_| self.groups.len() < MAX_GROUPS) else {
                    let why = format!("device {} is not among the devices {devices:?} of a reduction", own.device);
                    let refused = Work::Refused(Arc::new(Failure::invalid(why)));
                    self.queue(session, stream, refused, inputs, outputs);
                    return;
                };
                let group = *self.groups.entry(devices.clone()).or_insert(fresh);
                let count = own.reductions.entry(group).or_default();
                let reduction = *count;
                *count += 1;
                let share = |device| Key::Share { group, device, reduction };
                for &device in &devices {
                    let awaited = || Value { ends_after: devices.len() as u32, ..Value::new(State::Awaited) };
                    self.values.entry(share(device)).or_insert_with(awaited);
                }
                self.queue(session, stream, Work::Alias, inputs, smallvec![share(device)]);
                let shares = devices.iter().map(|&device| (share(device), true)).collect();
                self.queue(session, stream, Work::Reduce(reduce.op), shares, outputs);
                self.arrivals += 1;
            }
            _ => {
                let seed = call.form.draws_random.then(|| Box::new(self.draw(session)));
                let Call { form, scalars, .. } = call;
                self.queue(session, stream, Work::Operation(form, scalars, seed), inputs, outputs);
            }
        }
    }

    /// The seed of the next random operation of a session.
    fn draw(&mut self, session: SessionNo) -> [i64; 2] {
        let Some(session) = self.sessions.get_mut(&session) else { return [0, 0] };
        session.drawn += 1;
        [session.seed as i64, session.drawn as i64]
    }

    /// Appends to a stream; returns the stream and the item's number.
    fn queue(
        &mut self,
        session: SessionNo,
        id: StreamId,
        work: Work,
        inputs: SmallVec<[(Key, bool); 2]>,
        outputs: SmallVec<[Key; 1]>,
    ) -> (usize, u64) {
        let fresh = self.streams.len();
        let Some(own) = self.sessions.get_mut(&session) else { return (0, 0) };
        let stream = match own.streams.get(&id) {
            Some(stream) => *stream,
            None => {
                let stream = self.spare.pop().unwrap_or(fresh);
                own.streams.insert(id, stream);
                if stream == fresh {
                    let items = VecDeque::new();
                    let computes_from = None;
                    self.streams.push(Stream {
                        session,
                        items,
                        front: 0,
                        computes_from,
                        marked: 0,
                        uploaded: 0,
                        idle: 0,
                    });
                }
                self.streams[stream].session = session;
                stream
            }
        };
        let own = &self.streams[stream];
        let at = own.end();
        if at - own.marked.max(own.front) >= MAX_QUEUED as u64 || own.uploaded > MAX_UPLOADED {
            self.mark(stream, at, Why::Full, Vec::new());
        } else if matches!(work, Work::Upload(_))
            && own.computes_from.is_some_and(|from| at - from >= self.worth_a_step)
        {
            self.mark(stream, at, Why::Over, Vec::new());
        }
        if let Work::Upload(tensor) = &work {
            self.streams[stream].uploaded += tensor.byte_len();
        }
        for (key, _) in &inputs {
            let absent = || {
                let why = format!("{key:?} does not exist: it was never made, or its last use has passed");
                Value::new(State::Failed(Arc::new(Failure::invalid(why))))
            };
            self.values.entry(*key).or_insert_with(absent).uses += 1;
        }
        for key in &outputs {
            // It may be awaited already.
            let value = self.values.entry(*key).or_insert_with(|| Value::new(State::Awaited));
            value.state = State::Queued { stream, at };
        }
        let queue = &mut self.streams[stream];
        if work.computes() {
            queue.computes_from.get_or_insert(at);
        }
        queue.items.push_back(Item { work, inputs, outputs });
        self.queued += 1;
        (stream, at)
    }

    fn mark(&mut self, stream: usize, before: u64, why: Why, also: Vec<(usize, u64)>) {
        let marked = &mut self.streams[stream];
        (marked.computes_from, marked.marked, marked.uploaded) = (None, before, 0);
        self.marks.push_back(Mark { stream, before, why, also });
    }
}

fn unsent() -> Failure {
    Failure::new(Code::Unavailable, "the session that was to send it is closed")
}

fn key(session: SessionNo, id: TensorId) -> Key {
    Key::Tensor(session, id.value())
}

/// A use of a tensor, and whether it is the last.
fn used(session: SessionNo, tensor: &TensorIr) -> (Key, bool) {
    (key(session, tensor.id), tensor.status == TensorStatus::ReadWrite)
}
