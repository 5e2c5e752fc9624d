//! Runs the steps of one program, one after another, on a session of the node.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn_ir::ScalarIr;
use burn_std::ExecutionError;
use tokio::sync::{Notify, mpsc};

use super::frame::Said;
use super::graph::{self, Built};
use super::message::{RequestId, SessionTask, TaskResponse, TaskResponseContent};
use super::program::{MAX_QUEUED, Recorder, SessionNo, WORTH_A_STEP};
use super::step::{Answer, Answered, ProgramStep, Recipe};
use crate::device::{DeviceName, Task};
use crate::failure::{Code, Failure, Reason, Result};
use crate::graph::Graph;
use crate::ids::Incarnation;
use crate::lock::lock;
use crate::lowering;
use crate::memory::{self, Reservation};
use crate::node::Node;
use crate::protocol::{Cluster, Peer, SessionOptions};
use crate::session::{AlonePlan, Session};
use crate::tensor::Tensor;

/// Most items that a program may have queued while a step of it runs; its sockets are not read beyond that.
const MAX_WAITING: usize = 4 * MAX_QUEUED;
/// How often a plan is made anew because a scalar changed that had not changed before; after that, all its scalars are fed.
const MAX_CHANGES: u32 = 4;
/// How often a step has its plan made again if the master does not keep it any more.
const MAX_PLANNED_AGAIN: usize = 3;
/// Most recipes whose plans are remembered; all are forgotten if there are more.
const MAX_RECIPES: usize = 4096;
/// Most operations and uploads that they have together.
const MAX_RECIPE_PARTS: usize = 1 << 20;

/// A program that is connected.
pub(super) struct Running {
    shared: Mutex<Shared>,
    /// Something has arrived that may be due.
    wake: Notify,
    /// A step has taken something out of the queues.
    freed: Notify,
    /// The last session was closed.
    over: Notify,
}

#[derive(Default)]
struct Shared {
    program: Recorder,
    replies: HashMap<SessionNo, mpsc::Sender<TaskResponse>>,
    next: SessionNo,
    /// A step is under way.
    is_running: bool,
    /// The first failure since a session's last sync, which tells it.
    failed: HashMap<SessionNo, Arc<Failure>>,
    /// Sessions of which a message was lost, and why: they have no tensors any more, and each request of theirs is told.
    refused: HashMap<SessionNo, Arc<Failure>>,
    counts: Counts,
}

impl Shared {
    /// Whether so much is queued that a session has to wait for a step. One is certain to come.
    fn is_full(&self) -> bool {
        self.program.queued() > MAX_WAITING && self.is_busy()
    }

    /// Whether a step runs, or is sure to.
    fn is_busy(&self) -> bool {
        self.is_running || self.program.is_due()
    }
}

/// How many steps a program has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub steps: u64,
    /// Those whose plan was there already.
    pub planned: u64,
}

impl Running {
    pub fn new() -> Running {
        let program = Recorder::new(WORTH_A_STEP);
        let shared = Mutex::new(Shared { program, ..Shared::default() });
        Running { shared, wake: Notify::new(), freed: Notify::new(), over: Notify::new() }
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
            // Before the look, so that none is missed after it.
            freed.as_mut().enable();
            match memory::try_reserve(bytes) {
                Ok(reserved) => return Ok(reserved),
                Err(failure) if !lock(&self.shared).is_busy() => return Err(failure.with_holder()),
                Err(_) => freed.await,
            }
        }
    }

    /// A message of a session is lost. Its content is unknown, so the state of the session is, too. What it still
    /// asks for is answered with the failure.
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

    /// Takes what a session sends, in order. Waits while too much is queued that a step is about to take away.
    ///
    /// # Errors
    /// ResourceExhausted if too much waits for what another session is to send.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, all was taken.
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
            // Before the look, so that none is missed after it.
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
        let mut steps = Steps { session: None, master: None, node, devices: &names, recipes: Recipes::default() };
        loop {
            let lost = tasks.lost(&node.cluster(), &devices);
            let (step, is_over) = {
                let mut shared = lock(&self.shared);
                for (task, of_it) in lost {
                    let why = format!("task {task} was lost, and with it the tensors that the program had there");
                    let failure = Failure::new(Code::Unavailable, why).on_task(&task.to_string());
                    shared.program.lost(|device| of_it.contains(&device), &Arc::new(failure));
                }
                // A client may contradict itself in ways that nothing here expects: its program ends, and no other.
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
                // Nobody waits for it once the program is gone.
                Some(step) => tokio::select! {
                    () = self.take(&mut steps, step) => {}
                    () = self.over.notified() => break,
                },
                None if is_over => break,
                None => self.wake.notified().await,
            }
        }
        let Counts { steps: ran, planned } = self.counts();
        tracing::info!("a burn program has ended: {ran} steps, {planned} of them with a plan that was there already");
        if let Some(session) = steps.session
            && let Err(failure) = session.close().await
        {
            tracing::debug!("the session of a burn program was not closed: {failure}");
        }
    }

    /// Runs a step and answers those who wait for it.
    async fn take(&self, steps: &mut Steps<'_>, step: ProgramStep) {
        let ran = if step.is_empty() { Ok(None) } else { steps.run(self, &step).await.map(Some) };
        let mut shared = lock(&self.shared);
        let failure = match ran {
            Ok(Some(Ran { values, refused, is_planned })) => {
                shared.counts.steps += 1;
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
        if steps.end_session(&failure) {
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

/// Sends the answers of a step; what is read is answered by `read`. A sync fails if a step has failed since the one before.
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
        // A session whose socket is gone is about to be closed; one that does not read its answers loses them.
        tracing::debug!("an answer to a burn program is dropped: {error}");
    }
}

/// The failure of a step whose operations cannot be lowered, nor refused.
fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let why = format!("an operation's arguments contradict each other: {}", said.unwrap_or("no rule holds for them"));
    Failure::new(Code::Internal, why)
}

/// A failure as burn tells it.
fn told(failure: &Failure) -> ExecutionError {
    ExecutionError::WithContext { reason: failure.to_string() }
}

fn nothing(place: usize) -> Failure {
    Failure::new(Code::Internal, format!("a step without operations cannot fetch value {place}"))
}

/// The tasks whose devices a program knows, as they were when it met them.
#[derive(Default)]
struct Tasks {
    incarnations: HashMap<Task, Incarnation>,
    seen: Option<Arc<Cluster>>,
}

impl Tasks {
    /// The tasks that are not what they were, each with the indices of its devices.
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

/// The plans of a program, and the session that has them.
struct Steps<'n> {
    session: Option<Session>,
    /// The session's master.
    master: Option<Peer>,
    node: &'n Node,
    devices: &'n (dyn Fn() -> Vec<String> + Send + Sync),
    recipes: Recipes,
}

/// The recipes that were planned, by their hashes.
#[derive(Default)]
struct Recipes {
    known: HashMap<u64, Vec<(Recipe, Arc<Planned>)>>,
    /// How many operations and uploads they have together.
    parts: usize,
}

/// A plan of a recipe.
struct Planned {
    /// The scalars that are constants of it; `None` is fed.
    scalars: Vec<Option<ScalarIr>>,
    /// How often a scalar that had been a constant changed.
    changes: u32,
    built: Built,
    /// `None` if all that it computes is refused.
    plan: Option<AlonePlan>,
}

/// What a step answers.
struct Ran {
    /// What the recipe fetches.
    values: Vec<Result<Tensor>>,
    /// What it does not keep since it cannot be computed, and why.
    refused: Vec<(usize, Failure)>,
    is_planned: bool,
}

impl Steps<'_> {
    /// Lets go of the session if its master is another process by now, or has ended it: then all is lost that the program kept.
    fn end_session(&mut self, failure: &Failure) -> bool {
        let is_ended = failure.code == Code::Aborted && failure.reason != Some(Reason::PlanGone);
        let is_gone = is_ended || self.node.master(None).ok() != self.master;
        if is_gone {
            (self.session, self.master) = (None, None);
            self.recipes = Recipes::default();
        }
        is_gone
    }

    async fn run(&mut self, running: &Running, step: &ProgramStep) -> Result<Ran> {
        let hash = step.hash();
        let (mut planned, is_planned) = match self.recipes.find(hash, &step.recipe) {
            Some(planned) if graph::fits(&planned.scalars, &step.scalars) => (planned, true),
            other => {
                let (scalars, changes) = match other {
                    Some(planned) => (planned.changed(&step.scalars), planned.changes + 1),
                    None => (step.scalars.iter().copied().map(Some).collect(), 0),
                };
                (self.plan(running, step, hash, scalars, changes).await?, false)
            }
        };
        let mut again = 0;
        let fetches = loop {
            let (Some(plan), Some(session)) = (planned.plan, &self.session) else { break Vec::new() };
            match session.step_alone(plan, planned.built.feeds(step)?).await {
                // No step has begun.
                Err(failure) if failure.reason == Some(Reason::PlanGone) && again < MAX_PLANNED_AGAIN => {
                    again += 1;
                    planned = self.plan(running, step, hash, planned.scalars.clone(), planned.changes).await?;
                }
                fetches => break fetches?,
            }
        };
        let Built { fetched, refused, .. } = &planned.built;
        let values = fetched.iter().map(|place| place.clone().map(|place| fetches[place].clone())).collect();
        Ok(Ran { values, refused: refused.clone(), is_planned })
    }

    /// Has a step planned, and remembers its recipe.
    async fn plan(
        &mut self,
        running: &Running,
        step: &ProgramStep,
        hash: u64,
        scalars: Vec<Option<ScalarIr>>,
        changes: u32,
    ) -> Result<Arc<Planned>> {
        let began = Instant::now();
        let devices = (self.devices)();
        let (nodes, signature, built) = {
            let shared = lock(&running.shared);
            let slots = &shared.program.slots;
            // What a client says of its tensors may contradict itself in ways that no rule expects.
            let build = AssertUnwindSafe(|| graph::build(&step.recipe, &scalars, slots, &devices));
            catch_unwind(build).unwrap_or_else(|panic| Err(panicked(&*panic)))?
        };
        let (lowered, count) = (began.elapsed(), nodes.len());
        if self.session.is_none() {
            // What a program keeps is its own, and goes with its session.
            let options = SessionOptions { isolated: true, soft_placement: true, ..SessionOptions::default() };
            self.master = self.node.master(None).ok();
            self.session = Some(self.node.session(Graph::default(), None, options).await?);
        }
        let plan = match &self.session {
            Some(session) if !signature.fetches.is_empty() || !signature.targets.is_empty() => {
                Some(session.prepare_alone(nodes, signature).await?)
            }
            _ => None,
        };
        let (parts, fed) = (step.recipe.parts.len(), scalars.iter().filter(|scalar| scalar.is_none()).count());
        tracing::debug!(
            "a step of {parts} operations and uploads is new, with {fed} scalars fed: {count} nodes, lowered in {lowered:.1?}, \
             planned after {:.1?}",
            began.elapsed()
        );
        let planned = Arc::new(Planned { scalars, changes, built, plan });
        self.recipes.keep(hash, &step.recipe, planned.clone());
        Ok(planned)
    }
}

impl Recipes {
    fn find(&self, hash: u64, recipe: &Recipe) -> Option<Arc<Planned>> {
        let same = self.known.get(&hash)?;
        same.iter().find(|(known, _)| known == recipe).map(|(_, planned)| planned.clone())
    }

    /// Remembers a recipe's plan, in place of an older one.
    fn keep(&mut self, hash: u64, recipe: &Recipe, planned: Arc<Planned>) {
        if self.known.len() >= MAX_RECIPES || self.parts >= MAX_RECIPE_PARTS {
            *self = Recipes::default();
        }
        let same = self.known.entry(hash).or_default();
        match same.iter_mut().find(|(known, _)| known == recipe) {
            Some((_, older)) => *older = planned,
            None => {
                self.parts += recipe.parts.len();
                same.push((recipe.clone(), planned));
            }
        }
    }
}

impl Planned {
    /// The scalars of the next plan when these have come: what has changed is fed from now on.
    fn changed(&self, scalars: &[ScalarIr]) -> Vec<Option<ScalarIr>> {
        if self.changes >= MAX_CHANGES {
            return vec![None; scalars.len()];
        }
        let keep = |(constant, scalar): (&Option<ScalarIr>, &ScalarIr)| {
            constant.filter(|constant| graph::is_same(*constant, *scalar))
        };
        self.scalars.iter().zip(scalars).map(keep).collect()
    }
}
