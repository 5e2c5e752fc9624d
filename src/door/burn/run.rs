//! Runs the steps of one program, one after another, on a session of the node.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use crate::Client;
use burn_ir::ScalarIr;
use burn_std::ExecutionError;
use meshtf_lowering as lowering;
use meshtf_tensor::device::{DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::Incarnation;
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::{Budget, Reservation};
use tokio::sync::{Notify, mpsc};

use super::frame::Said;
use super::graph;
use super::message::{RequestId, SessionTask, TaskResponse, TaskResponseContent};
use super::plans::{Plans, Ran};
use super::program::{MAX_QUEUED, Recorder, SessionNo, WORTH_A_STEP};
use super::step::{Answer, Answered, ProgramStep};
use crate::node::Node;
use crate::protocol::Cluster;

/// Maximum number of queued items of a program while a step of it runs; with more, its sockets are not read.
const MAX_WAITING: usize = 4 * MAX_QUEUED;

/// A connected program.
pub(super) struct Running {
    shared: Mutex<Shared>,
    /// An item has arrived that may be due.
    wake: Notify,
    /// A step has taken items out of the queues.
    freed: Notify,
    /// The last session was closed.
    over: Notify,
    /// The memory budget of the node.
    budget: Arc<Budget>,
}

#[derive(Default)]
struct Shared {
    program: Recorder,
    replies: HashMap<SessionNo, mpsc::Sender<TaskResponse>>,
    next: SessionNo,
    /// A step is under way.
    is_running: bool,
    /// The first failure since a session's last sync, which reports it.
    failed: HashMap<SessionNo, Arc<Failure>>,
    /// Sessions that lost a message, and why: they have no tensors any more, and each of their requests is answered with the
    /// failure.
    refused: HashMap<SessionNo, Arc<Failure>>,
    counts: Counts,
}

impl Shared {
    /// Whether the queue is so long that a session has to wait for a step. A step is certain to come.
    fn is_full(&self) -> bool {
        self.program.queued() > MAX_WAITING && self.is_busy()
    }

    /// Whether a step runs, or is certain to.
    fn is_busy(&self) -> bool {
        self.is_running || self.program.is_due()
    }
}

/// How many steps a program has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub steps: u64,
    /// Their operations and uploads.
    pub parts: u64,
    /// The steps that ran an existing plan.
    pub planned: u64,
}

impl Running {
    pub fn new(budget: Arc<Budget>) -> Running {
        let program = Recorder::new(WORTH_A_STEP);
        let shared = Mutex::new(Shared { program, ..Shared::default() });
        Running { shared, wake: Notify::new(), freed: Notify::new(), over: Notify::new(), budget }
    }

    /// Opens a session on a device; its answers go to `replies`.
    pub fn open(&self, device: u32, replies: mpsc::Sender<TaskResponse>) -> SessionNo {
        let mut shared = lock(&self.shared);
        let number = shared.next;
        shared.next += 1;
        shared.program.open(number, device, crate::random::u64());
        shared.replies.insert(number, replies);
        number
    }

    /// Ends a session.
    pub fn close(&self, session: SessionNo) {
        let mut shared = lock(&self.shared);
        shared.program.close(session);
        shared.replies.remove(&session);
        shared.failed.remove(&session);
        shared.refused.remove(&session);
        let is_over = shared.replies.is_empty();
        drop(shared);
        self.wake.notify_one();
        if is_over {
            self.over.notify_one();
        }
    }

    /// Whether a session of it is on this device.
    pub fn has(&self, device: u32) -> bool {
        let shared = lock(&self.shared);
        let mut open = shared.replies.keys().filter(|session| !shared.refused.contains_key(session));
        open.any(|session| shared.program.device(*session) == device)
    }

    /// Reserves memory for a message. While there is too little, it waits for the steps of the program, which may release some.
    ///
    /// # Errors
    /// ResourceExhausted if there is too little, and no step is under way; names the largest holder.
    ///
    /// # Cancellation
    /// If the future is dropped, nothing is reserved.
    pub async fn reserve(&self, bytes: usize) -> Result<Reservation> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Before the check, so that no notification is missed after it.
            freed.as_mut().enable();
            match self.budget.try_reserve(bytes) {
                Ok(reserved) => return Ok(reserved),
                Err(failure) if !lock(&self.shared).is_busy() => return Err(failure.with_holder()),
                Err(_) => freed.await,
            }
        }
    }

    /// Marks a session as lost, since a message of it is lost: its content is unknown, so the state of the session is, too.
    /// Later requests of the session are answered with the failure.
    pub fn refuse(&self, session: SessionNo, failure: Failure) {
        let mut shared = lock(&self.shared);
        for request in shared.program.close(session) {
            tell(&shared, session, &request, &failure);
        }
        shared.refused.entry(session).or_insert_with(|| Arc::new(failure));
        drop(shared);
        self.wake.notify_one();
    }

    /// How many steps it has run so far.
    pub fn counts(&self) -> Counts {
        lock(&self.shared).counts
    }

    /// Takes the messages of a session, in order. Waits while the queue is full and a step is about to take items away.
    ///
    /// # Errors
    /// ResourceExhausted if too many items wait for a tensor from another session.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, all messages were taken.
    pub async fn push(&self, session: SessionNo, said: impl Iterator<Item = Said>) -> Result<()> {
        {
            let mut shared = lock(&self.shared);
            let refused = shared.refused.get(&session).cloned();
            for said in said {
                match (said, &refused) {
                    (Said::Operation(stream, call), None) => shared.program.push_operation(session, stream, call)?,
                    (Said::Task(task), None) => shared.program.push(session, *task)?,
                    (Said::Task(task), Some(failure)) => tell(&shared, session, &task, failure),
                    (Said::Operation(..), Some(_)) | (Said::End, _) => {}
                }
            }
            answer_at_once(&mut shared);
            if shared.program.is_due() {
                self.wake.notify_one();
            }
            if !shared.is_full() {
                return Ok(());
            }
        }
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Before the check, so that no notification is missed after it.
            freed.as_mut().enable();
            if !lock(&self.shared).is_full() {
                return Ok(());
            }
            freed.await;
        }
    }

    /// Runs its steps until its last session is closed.
    ///
    /// `devices` returns the names of the devices by index; names that it has returned once do not change.
    pub async fn run(&self, node: &Node, devices: impl Fn() -> Vec<DeviceName> + Send + Sync) {
        let mut tasks = Tasks::default();
        let names = || devices().iter().map(ToString::to_string).collect();
        let mut plans = Plans::new(node, &names);
        loop {
            let lost = tasks.lost(&node.cluster(), &devices);
            let (step, is_over) = {
                let mut shared = lock(&self.shared);
                for (task, of_it) in lost {
                    let why = format!("task {task} was lost, and with it the tensors that the program had there");
                    let failure = Failure::new(Code::Unavailable, why).on_task(&task.to_string());
                    shared.program.lost(|device| of_it.contains(&device), &Arc::new(failure));
                }
                // A client may contradict itself in ways that this code does not expect: its program ends, and no other.
                let step = catch_unwind(AssertUnwindSafe(|| shared.program.next_step()));
                let step = step.unwrap_or_else(|panic| {
                    tracing::error!("a burn program ends: {}", panicked(&*panic));
                    shared.replies.clear();
                    None
                });
                answer_at_once(&mut shared);
                shared.is_running = step.is_some();
                (step, shared.replies.is_empty())
            };
            self.freed.notify_waiters();
            match step {
                // No client waits for it once the program is gone.
                Some(step) => tokio::select! {
                    () = self.take(&mut plans, step) => {}
                    () = self.over.notified() => break,
                },
                None if is_over => break,
                None => self.wake.notified().await,
            }
        }
        let Counts { steps: ran, parts, planned } = self.counts();
        tracing::info!(
            "a burn program has ended: {ran} steps of {parts} operations and uploads, {planned} of the steps with a plan that was \
             there already"
        );
        if let Some(session) = plans.into_session()
            && let Err(failure) = session.close().await
        {
            tracing::debug!("the session of a burn program was not closed: {failure}");
        }
    }

    /// Runs a step and answers the requests that wait for it.
    async fn take(&self, plans: &mut Plans<'_>, step: ProgramStep) {
        let lower = |scalars: &[Option<ScalarIr>], devices: &[String]| {
            let shared = lock(&self.shared);
            // A client's description of its tensors may contradict itself in ways that no rule expects.
            let build = AssertUnwindSafe(|| graph::build(&step.recipe, scalars, &shared.program.slots, devices));
            catch_unwind(build).unwrap_or_else(|panic| Err(panicked(&*panic)))
        };
        let ran = if step.is_empty() { Ok(None) } else { plans.run(&step, lower).await.map(Some) };
        let mut shared = lock(&self.shared);
        let failure = match ran {
            Ok(Some(Ran { values, refused, is_planned })) => {
                shared.counts.steps += 1;
                shared.counts.parts += step.recipe.parts.len() as u64;
                shared.counts.planned += u64::from(is_planned);
                for (place, failure) in refused {
                    shared.program.failed(&step.kept[place], &Arc::new(failure));
                }
                for (key, place) in &step.held {
                    shared.program.came(key, values[*place].clone());
                }
                return answer(&mut shared, step.answers, |place, tensor| {
                    values[place].clone().and_then(|value| lowering::data(&value, tensor))
                });
            }
            Ok(None) => return answer(&mut shared, step.answers, |place, _| Err(nothing(place))),
            Err(failure) => Arc::new(failure),
        };
        tracing::debug!("a step of a burn program failed: {failure}");
        let held = step.held.iter().map(|(key, _)| key);
        step.kept.iter().chain(held).for_each(|key| shared.program.failed(key, &failure));
        shared.program.slots.not_emptied(&step.recipe.emptied);
        if plans.end_session(&failure) {
            shared.program.lost(|_| true, &failure);
        }
        // If slots could not be emptied, the program has lost nothing.
        if !step.recipe.parts.is_empty() {
            let sessions: Vec<SessionNo> = shared.replies.keys().copied().collect();
            for session in sessions {
                shared.failed.entry(session).or_insert_with(|| failure.clone());
            }
        }
        answer(&mut shared, step.answers, |_, _| Err((*failure).clone()));
    }
}

/// Answers a task of a session that is lost, if the client waits for an answer.
fn tell(shared: &Shared, session: SessionNo, task: &SessionTask, failure: &Failure) {
    match task {
        SessionTask::ReadTensor(request, ..) => {
            reply(shared, session, *request, TaskResponseContent::ReadTensor(Err(told(failure))));
        }
        SessionTask::SyncBackend(request, _) => {
            reply(shared, session, *request, TaskResponseContent::SyncBackend(Err(told(failure))));
        }
        _ => {}
    }
}

/// Sends the answers that need no step.
fn answer_at_once(shared: &mut Shared) {
    let answers = std::mem::take(&mut shared.program.answers);
    answer(shared, answers, |place, _| Err(nothing(place)));
}

/// Sends the answers of a step; the values that are read come from `read`. A sync fails if a step has failed since the last
/// one.
fn answer(
    shared: &mut Shared,
    answers: Vec<Answer>,
    read: impl Fn(usize, &burn_ir::TensorIr) -> Result<burn_std::TensorData>,
) {
    for Answer { session, request, what } in answers {
        let content = match what {
            Answered::Read(place, tensor) => {
                TaskResponseContent::ReadTensor(read(place, &tensor).map_err(|f| told(&f)))
            }
            Answered::Held(value, tensor) => {
                TaskResponseContent::ReadTensor(lowering::data(&value, &tensor).map_err(|f| told(&f)))
            }
            Answered::Failed(failure) => TaskResponseContent::ReadTensor(Err(told(&failure))),
            Answered::Sync => TaskResponseContent::SyncBackend(
                shared.failed.remove(&session).map_or(Ok(()), |failure| Err(told(&failure))),
            ),
        };
        reply(shared, session, request, content);
    }
}

fn reply(shared: &Shared, session: SessionNo, id: RequestId, content: TaskResponseContent) {
    if let Some(replies) = shared.replies.get(&session)
        && let Err(error) = replies.try_send(TaskResponse { content, id })
    {
        // A session whose socket is gone is about to be closed; a session that does not read its answers loses them.
        tracing::debug!("an answer to a burn program is dropped: {error}");
    }
}

/// The failure of a step whose operations cannot be lowered, nor refused.
fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let why = format!("an operation's arguments contradict each other: {}", said.unwrap_or("no rule holds for them"));
    Failure::new(Code::Internal, why)
}

/// A failure in burn's form.
fn told(failure: &Failure) -> ExecutionError {
    ExecutionError::WithContext { reason: failure.to_string() }
}

fn nothing(place: usize) -> Failure {
    Failure::new(Code::Internal, format!("a step without operations cannot fetch value {place}"))
}

/// The tasks whose devices a program knows, in the state in which it met them.
#[derive(Default)]
struct Tasks {
    incarnations: HashMap<Task, Incarnation>,
    seen: Option<Arc<Cluster>>,
}

impl Tasks {
    /// The tasks that have changed, each with the indices of its devices.
    fn lost(&mut self, cluster: &Arc<Cluster>, devices: impl Fn() -> Vec<DeviceName>) -> Vec<(Task, Vec<u32>)> {
        if self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, cluster)) {
            return Vec::new();
        }
        self.seen = Some(Arc::clone(cluster));
        let is_same =
            |task: &Task, known: &Incarnation| cluster.member(task).is_some_and(|now| now.incarnation == *known);
        let gone: Vec<Task> = self
            .incarnations
            .iter()
            .filter(|(task, known)| !is_same(task, known))
            .map(|(task, _)| task.clone())
            .collect();
        self.incarnations.retain(|task, known| is_same(task, known));
        for member in cluster.members() {
            self.incarnations.entry(member.task.clone()).or_insert(member.incarnation);
        }
        let devices = devices();
        let of = |task: &Task| {
            devices.iter().zip(0..).filter(|(name, _)| name.task == *task).map(|(_, index)| index).collect()
        };
        gone.into_iter().map(|task| (task.clone(), of(&task))).collect()
    }
}
