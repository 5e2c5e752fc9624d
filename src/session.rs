//! A session: one graph on one master, run step by step.
//!
//! Opened with [`Client::session`](crate::Client::session), on a mesh or in one process. Variables and queues that its graph
//! makes stay on their tasks; the session itself ends when it is dropped.

mod alone;
mod constants;
pub(crate) mod detached;
mod init;
pub(crate) mod inquire;
mod partial;
mod run;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use self::constants::SentConstants;
pub(crate) use alone::AlonePlan;
pub use init::Init;
use meshtf_graph::plan::{Plan, Signature, Summary};
use meshtf_graph::trace::DeviceTrace;
use meshtf_graph::{Graph, NodeDef};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Reason, Result, counted};
use meshtf_tensor::ids::{RequestId, SessionId};
use meshtf_tensor::lock::lock;
pub(crate) use partial::PartialRun;
pub use run::{Run, RunOutput};

use crate::protocol::runs::Report;
use crate::protocol::{MAX_STEP_FEEDS, Peer, Reply, Request, SessionOptions};
use crate::runtime::requests::{EVENTS, Requests, StepEvent};

/// Fetched steps of a run that are under way at a time: half of those that may wait for the client.
const FETCHED_AT_ONCE: u64 = EVENTS as u64 / 2;

/// A session on a master. Steps are cheap: the plan of a (feeds, fetches, targets) signature is made once. Several runs may be
/// under way at a time. Variables and queues stay on their tasks when the session ends, unless it is isolated.
///
/// ```
/// use meshtf::graph::{GraphBuilder, NodeDef};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// g.constant("x", 20)?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// assert_eq!(session.run().fetch("x").await?["x"].item::<i32>()?, 20);
///
/// // Its graph may grow.
/// let inputs = vec!["x".into(), "x".into()];
/// session.extend(vec![NodeDef { name: "y".into(), op: "AddV2".into(), inputs, ..NodeDef::default() }]).await?;
/// assert_eq!(session.run().fetch("y").await?["y"].item::<i32>()?, 40);
/// session.close().await?;
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
pub struct Session {
    client: Arc<Requests>,
    master: Peer,
    id: SessionId,
    /// The large constants of the session's graph that the master has.
    constants: SentConstants,
    plans: Mutex<HashMap<Signature, Planned>>,
    /// Held during a request for a plan, so that concurrent first runs of the same signature request it once.
    preparing: tokio::sync::Mutex<()>,
    /// The lanes of partial runs that are taken.
    lanes: Arc<Mutex<BTreeSet<u32>>>,
    is_open: AtomicBool,
}

/// Maximum number of plans whose numbers a session remembers. A forgotten plan is requested again, which costs a message.
const MAX_KNOWN_PLANS: usize = 4096;
/// How many times a run has its plan prepared again if the master has dropped it.
const MAX_PREPARED_AGAIN: usize = 3;

/// A plan that the master has made.
#[derive(Clone)]
struct Planned {
    number: u32,
    summary: Arc<Summary>,
}

/// The steps of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Steps {
    /// How many steps to run.
    pub count: u64,
    /// Fetches are returned for every `every`-th step, and always for the last; 0: only for the last.
    pub every: u64,
}

impl Steps {
    /// One step.
    const ONE: Steps = Steps { count: 1, every: 0 };
}

impl Session {
    pub(crate) async fn open(
        client: Arc<Requests>,
        master: Peer,
        graph: &Graph,
        options: SessionOptions,
    ) -> Result<Session> {
        Session::open_as(SessionId(crate::random::u64()), client, master, graph, options).await
    }

    /// Opens a session under this id, which no other session may have.
    pub(crate) async fn open_as(
        id: SessionId,
        client: Arc<Requests>,
        master: Peer,
        graph: &Graph,
        options: SessionOptions,
    ) -> Result<Session> {
        // Made before the request to the master: a client that gives up meanwhile closes the session that it opened.
        let mut session = Session {
            client,
            master,
            id,
            constants: SentConstants::default(),
            plans: Mutex::default(),
            preparing: tokio::sync::Mutex::default(),
            lanes: Arc::default(),
            is_open: AtomicBool::new(true),
        };
        let mut graph = graph.to_defs();
        let (constants, tensors) = session.constants.take_out(&mut graph, session.client.weights());
        let sent = constants.beside.clone();
        let request = Request::Open { session: id, graph, options, constants };
        let opened = match session.client.ask(&session.master, request, tensors, None) {
            Ok(asked) => asked.answer().await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = opened {
            *session.is_open.get_mut() = false;
            return Err(failure);
        }
        session.constants.came(sent);
        Ok(session)
    }

    /// Describes a run by the names of its feeds, fetches and targets. It begins when it is awaited: see [`Run`].
    pub fn run(&self) -> Run<'_> {
        Run::new(self)
    }

    /// Runs one step of a signature. The feeds, in its order, are passed on: if they are not shared, a large one is not copied
    /// on its way into a variable.
    pub(crate) async fn step(&self, signature: Signature, feeds: Vec<Tensor>) -> Result<RunOutput> {
        self.run_many(signature, feeds, Steps::ONE, false, |_| {}).await
    }

    /// Runs a step for each set of `feeds`: the values of a set are in the order of the signature's feeds.
    async fn run_fed_steps(
        &self,
        signature: Signature,
        feeds: Vec<Vec<Tensor>>,
        every: u64,
        watched: bool,
        on_event: impl FnMut(StepEvent) + Send,
    ) -> Result<RunOutput> {
        let each = signature.feeds.len();
        if feeds.is_empty() {
            return Err(Failure::invalid("a run with feeds for each step needs those of one step at least"));
        }
        if let Some((set, step)) = feeds.iter().zip(1u64..).find(|(set, _)| set.len() != each) {
            let why = format!("step {step} has {}, and the run {each}", counted(set.len(), "feed"));
            return Err(Failure::invalid(why));
        }
        let values = each.saturating_mul(feeds.len());
        if values > MAX_STEP_FEEDS {
            let why =
                format!("{values} feeds for the steps of one run, more than {MAX_STEP_FEEDS}; run fewer at a time");
            return Err(Failure::invalid(why));
        }
        let steps = Steps { count: feeds.len() as u64, every };
        self.run_many(signature, feeds.into_iter().flatten().collect(), steps, watched, on_event).await
    }

    /// Runs steps with the same feeds: as many at a time as have fetched values that fit the client's queue, so that `on_event`
    /// may take them slowly.
    async fn run_same(
        &self,
        signature: Signature,
        feeds: Vec<Tensor>,
        steps: Steps,
        watched: bool,
        mut on_event: impl FnMut(StepEvent) + Send,
    ) -> Result<RunOutput> {
        let part = FETCHED_AT_ONCE.saturating_mul(steps.every);
        if steps.every == 0 || steps.count <= part {
            return self.run_many(signature, feeds, steps, watched, on_event).await;
        }
        let mut done = 0;
        loop {
            let own = Steps { count: part.min(steps.count - done), every: steps.every };
            let on_own = |event: StepEvent| on_event(event.after_steps(done));
            let ran = self.run_many(signature.clone(), feeds.clone(), own, watched, on_own).await;
            let ran = ran.map_err(|failure| failure.after_steps(done))?;
            done += own.count;
            if done == steps.count {
                return Ok(ran);
            }
            on_event(StepEvent::Fetched { step: done, values: ran.values });
        }
    }

    /// Runs `steps` steps. `feeds` are those of every step, or of the first step, of the second, and so on.
    async fn run_many(
        &self,
        signature: Signature,
        feeds: Vec<Tensor>,
        steps: Steps,
        watched: bool,
        mut on_event: impl FnMut(StepEvent) + Send,
    ) -> Result<RunOutput> {
        let count = signature.fetches.len();
        let sent = feeds.len();
        let (mut feeds, mut again) = (feeds, 0);
        let (mut values, summary) = loop {
            let plan = self.planned(&signature).await?;
            match self.run_plan(plan.number, feeds, steps, watched, &mut on_event).await {
                (Ok(values), _) => break (values, plan.summary),
                // The master has dropped it for plans that are used more, or a task of it was restarted; no step has begun. The
                // next plan omits that task, or the failure names the missing part.
                (Err(failure), back)
                    if failure.reason == Some(Reason::PlanGone) && back.len() == sent && again < MAX_PREPARED_AGAIN =>
                {
                    again += 1;
                    feeds = back;
                    self.forget(&signature, plan.number);
                }
                (Err(failure), _) => return Err(failure),
            }
        };
        let traces = values.split_off(count.min(values.len()));
        let traces = traces.iter().map(DeviceTrace::from_tensor).collect::<Result<_>>()?;
        Ok(RunOutput { names: signature.fetches, values, traces, summary })
    }

    /// A signature's plan.
    async fn planned(&self, signature: &Signature) -> Result<Planned> {
        match self.known(signature) {
            Some(plan) => Ok(plan),
            None => {
                let _turn = self.preparing.lock().await;
                match self.known(signature) {
                    Some(plan) => Ok(plan),
                    None => self.prepare(signature).await,
                }
            }
        }
    }

    /// Has a signature planned before its first run, so that this has no error of a plan.
    pub(crate) async fn make_ready(&self, signature: &Signature) -> Result<()> {
        self.planned(signature).await.map(|_| ())
    }

    fn plans(&self) -> MutexGuard<'_, HashMap<Signature, Planned>> {
        lock(&self.plans)
    }

    fn known(&self, signature: &Signature) -> Option<Planned> {
        self.plans().get(signature).cloned()
    }

    /// Removes the plan of that number, which does not run any more.
    fn forget(&self, signature: &Signature, number: u32) {
        let mut plans = self.plans();
        if plans.get(signature).is_some_and(|plan| plan.number == number) {
            plans.remove(signature);
        }
    }

    /// Asks the master for a signature's plan.
    async fn prepare(&self, signature: &Signature) -> Result<Planned> {
        let planned = prepare(&self.client, &self.master, self.id, signature).await?;
        let mut plans = self.plans();
        if plans.len() >= MAX_KNOWN_PLANS {
            plans.clear();
        }
        plans.insert(signature.clone(), planned.clone());
        Ok(planned)
    }

    /// Runs a plan; returns the fetches of the last step, or a failure and the feeds that were not used.
    async fn run_plan(
        &self,
        plan: u32,
        tensors: Vec<Tensor>,
        steps: Steps,
        watched: bool,
        on_event: &mut impl FnMut(StepEvent),
    ) -> (Result<Vec<Tensor>>, Vec<Tensor>) {
        let Steps { count, every } = steps;
        let request = Request::Run { session: self.id, plan, steps: count, every, watched };
        let (sender, mut events) = Requests::events();
        let asked = match self.client.ask(&self.master, request, tensors, (every > 0 || watched).then_some(sender)) {
            Ok(asked) => asked,
            Err(failure) => return (Err(failure), Vec::new()),
        };
        let cancel = CancelOnDrop { session: self, run: asked.id, armed: true };
        let answer = asked.answer_with_feeds();
        tokio::pin!(answer);
        let (result, tensors) = loop {
            tokio::select! {
                biased;
                Some(event) = events.recv() => on_event(event),
                result = &mut answer => break result,
            }
        };
        // If this end gave up, the master does not know of it yet.
        if result.as_ref().err().is_none_or(|failure| failure.code != Code::ResourceExhausted) {
            cancel.disarm();
        }
        while let Ok(event) = events.try_recv() {
            on_event(event);
        }
        match result {
            Ok(Reply::Ran { .. }) => (Ok(tensors), Vec::new()),
            Ok(other) => (Err(unexpected(&other)), Vec::new()),
            Err(failure) => (Err(failure), tensors),
        }
    }

    /// Adds nodes to the session's graph; they may take inputs from the existing nodes.
    ///
    /// # Errors
    /// InvalidArgument if a node is wrong; the graph is then as it was.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the master may have added the nodes or may still add them.
    pub async fn extend(&self, mut nodes: Vec<NodeDef>) -> Result<()> {
        let (constants, tensors) = self.constants.take_out(&mut nodes, self.client.weights());
        let sent = constants.beside.clone();
        let request = Request::Extend { session: self.id, nodes, constants };
        self.client.ask(&self.master, request, tensors, None)?.answer().await?;
        self.constants.came(sent);
        Ok(())
    }

    /// Reserves names for this session until it ends or gives them back. Every other session of the same master that has one of
    /// them ends: before this is ready, its workers have cancelled its runs. So of sessions that replace each other, such as
    /// that of a killed training and that of its continuation, only the last works. A session claims at most 65,536 names of at
    /// most 1024 bytes each. The names of sessions with other default tasks, and of isolated ones, are separate.
    ///
    /// # Errors
    /// InvalidArgument for more or longer names; Aborted if the session has ended; Unavailable if the master is gone.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the session may have the names.
    pub async fn claim(&self, names: Vec<String>) -> Result<()> {
        let request = Request::Claim { session: self.id, names };
        self.client.ask(&self.master, request, Vec::new(), None)?.answer().await.map(|_| ())
    }

    /// Gives back all names that the session has claimed.
    ///
    /// # Errors
    /// Aborted if the session has ended; Unavailable if the master is gone.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the session may still have them.
    pub async fn disclaim(&self) -> Result<()> {
        self.claim(Vec::new()).await
    }

    /// Its id.
    #[doc(hidden)]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Reports on a run of this session to its master, for those who watch the mesh.
    #[doc(hidden)]
    pub async fn report(&self, report: Report) -> Result<()> {
        inquire::report(&self.client, &self.master, report).await
    }

    /// Ends the session: waits until the master has released it. Dropping a session ends it too, without waiting.
    ///
    /// # Errors
    /// Unavailable if the master is gone.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the session is closed all the same.
    pub async fn close(self) -> Result<()> {
        self.end().await
    }

    /// As [`Session::close`], while there may be other references to the session; their runs end with Cancelled.
    pub(crate) async fn end(&self) -> Result<()> {
        if !self.is_open.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        self.client.ask(&self.master, Request::Close { session: self.id }, Vec::new(), None)?.answer().await.map(|_| ())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if *self.is_open.get_mut() {
            // The answer is not awaited; a master that is gone has forgotten the session already.
            let _answer = self.client.ask(&self.master, Request::Close { session: self.id }, Vec::new(), None);
        }
    }
}

/// Cancels a run whose future is dropped before its answer: on a timeout, for example.
struct CancelOnDrop<'a> {
    session: &'a Session,
    run: RequestId,
    armed: bool,
}

impl CancelOnDrop<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            let Session { client, master, id, .. } = self.session;
            let _answer = client.ask(master, Request::Cancel { session: *id, run: self.run }, Vec::new(), None);
        }
    }
}

/// Plans a graph on a master without running it.
pub(crate) async fn explain(
    client: &Arc<Requests>,
    master: &Peer,
    graph: &Graph,
    signature: Signature,
    options: SessionOptions,
) -> Result<Plan> {
    let mut nodes = graph.to_defs();
    constants::leave_out_elements(&mut nodes);
    let request = Request::Explain { graph: nodes, signature, options };
    match client.ask(master, request, Vec::new(), None)?.answer().await? {
        (Reply::Explained(mut plan), _) => {
            constants::put_back_elements(&mut plan, graph);
            Ok(*plan)
        }
        (other, _) => Err(unexpected(&other)),
    }
}

/// Has a session's master plan a signature.
async fn prepare(client: &Arc<Requests>, master: &Peer, session: SessionId, signature: &Signature) -> Result<Planned> {
    let request = Request::Prepare { session, signature: signature.clone() };
    match client.ask(master, request, Vec::new(), None)?.answer().await? {
        (Reply::Prepared { plan, summary }, _) => Ok(Planned { number: plan, summary: Arc::new(summary) }),
        (other, _) => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::new(Code::Internal, format!("unexpected reply from the master: {reply:?}"))
}
