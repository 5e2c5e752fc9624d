//! A client's session: the node's session, and the state that TensorFlow's protocol adds.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use meshtf_graph::graphdef::{GraphDef, Growth, Library};
use meshtf_graph::op::{ArgType, OpDef};
use meshtf_graph::plan::{Mode, Signature};
use meshtf_graph::{Attr, FED_ANY_SHAPE, FROM_WORKING_FOLDER, Function, FunctionBody, NodeDef, op, split_tensor_name};
use meshtf_tensor::device::DeviceSpec;
use meshtf_tensor::failure::{Code, Failure, Reason, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{DType, Tensor};

use super::connection::Connection;
use super::lineage::Descent;
use super::message::{RunMetadata, RunOptions, RunStepRequest, milliseconds};
use super::names::Names;
use super::readers::Readers;
use super::recent::{Full, RecentlyUsed};
use super::tasks::TASKS_WAIT;
use super::trace::metadata;
use crate::node::Node;
use crate::session::{PartialRun, Session};

/// Maximum number of callables of one session.
const MAX_CALLABLES: usize = 4096;
/// Maximum number of partial runs of one session: fewer than there are lanes, so that one may begin before another ends.
const MAX_PARTIAL_RUNS: usize = 250;
/// Maximum number of steps that one call may request. `meshtf tf` requests 1,000.
const MAX_STEPS: u64 = 10_000;

pub(super) struct DoorSession {
    session: Session,
    /// Held while the graph grows.
    graph: tokio::sync::Mutex<Growing>,
    known: Mutex<Known>,
    /// Time limit of an operation.
    timeout: Option<Duration>,
    /// The devices it may use; all if empty.
    filters: Vec<DeviceSpec>,
    /// Its names of the tasks, if they are not the mesh's.
    names: Option<Names>,
    callables: Mutex<RecentlyUsed<i64, Arc<Callable>>>,
    next_callable: AtomicI64,
    /// The partial runs, or the failure of one for its first call.
    partial: Mutex<RecentlyUsed<String, Arc<Result<PartialRun>>>>,
    seen: Mutex<Seen>,
    /// Its place among the sessions of its graph, if the node's variables outlive its process.
    descent: Option<Descent>,
}

/// The functions of the graph so far, and how often it was extended.
struct Growing {
    library: Arc<Library>,
    version: i64,
}

/// The parts of a graph that a door looks at.
#[derive(Default)]
pub(super) struct Known {
    /// The dtypes that placeholders accept. Like TensorFlow's servers, a door leaves the comparison of shapes to the client:
    /// Keras feeds targets that no loss reads with a scalar.
    placeholders: HashMap<String, DType>,
    /// The nodes that may make handles of state.
    handles: HashSet<String>,
}

impl Known {
    pub fn of(nodes: &[NodeDef]) -> Known {
        let is_fed = |node: &&NodeDef| op::lookup(&node.op).is_some_and(|op| op.is_fed);
        let takes = |node: &NodeDef| Some((node.name.clone(), node.attrs.dtype("dtype").ok()?));
        Known {
            placeholders: nodes.iter().filter(is_fed).filter_map(takes).collect(),
            handles: nodes.iter().filter(|node| makes_handles(node)).map(|node| node.name.clone()).collect(),
        }
    }

    fn add(&mut self, more: Known) {
        self.placeholders.extend(more.placeholders);
        self.handles.extend(more.handles);
    }

    /// Whether this tensor may be a handle.
    fn is_handle(&self, tensor: &str) -> bool {
        self.handles.contains(split_tensor_name(tensor).0)
    }

    fn admits(&self, name: &str, dtype: DType) -> Result<()> {
        match self.placeholders.get(name.strip_suffix(":0").unwrap_or(name)) {
            Some(own) if *own != dtype => Err(Failure::invalid(format!("feed {name} is {own}, got {dtype}"))),
            _ => Ok(()),
        }
    }
}

/// Whether an op may make handles, by its outputs and the dtypes among its attributes.
fn makes_handles(node: &NodeDef) -> bool {
    let is_stated = |attr: &Attr| matches!(attr, Attr::Type(dtype) if dtype.is_handle());
    let is_fixed =
        |op: &OpDef| op.outputs.iter().any(|output| matches!(output.ty, ArgType::Fixed(dtype) if dtype.is_handle()));
    op::lookup(&node.op).is_some_and(is_fixed) || node.attrs.0.values().any(is_stated)
}

/// The nodes of a GraphDef as a TensorFlow client means them: relative file names are relative to the program's folder,
/// since the program searches for its checkpoints itself, and placeholders may be fed with values of any shape.
pub(super) fn stated(library: &Library, graph_def: GraphDef) -> Result<(Vec<NodeDef>, Growth)> {
    let (mut nodes, growth) = library.expanded(graph_def)?;
    name_files_from_working_folder(&mut nodes);
    for node in nodes.iter_mut().filter(|node| op::lookup(&node.op).is_some_and(|op| op.is_fed)) {
        node.attrs.set(FED_ANY_SHAPE, Attr::Bool(true));
    }
    Ok((nodes, growth))
}

fn name_files_from_working_folder(nodes: &mut [NodeDef]) {
    for node in nodes {
        if op::lookup(&node.op).is_some_and(|op| op.uses_files) {
            node.attrs.set(FROM_WORKING_FOLDER, Attr::Bool(true));
        }
        for attr in node.attrs.0.values_mut() {
            for function in attr.held_functions_mut() {
                if function.nodes.iter().any(may_use_files) {
                    let mut body = FunctionBody::clone(function);
                    name_files_from_working_folder(&mut body.nodes);
                    *function = Function::new(body);
                }
            }
        }
    }
}

/// Whether a node uses files, or a function that it calls may: nodes without files are not copied.
fn may_use_files(node: &NodeDef) -> bool {
    let in_function =
        |attr: &Attr| attr.held_functions().iter().any(|function| function.nodes.iter().any(may_use_files));
    op::lookup(&node.op).is_some_and(|op| op.uses_files) || node.attrs.0.values().any(in_function)
}

/// When a session was last used, and over which connection.
struct Seen {
    at: Instant,
    connection: Option<Connection>,
}

/// The feeds, fetches and targets of a handle.
pub(super) struct Callable {
    pub feed: Vec<String>,
    pub fetch: Vec<String>,
    pub target: Vec<String>,
    /// Tensors that other tensors are fed with.
    pub connected: Vec<(String, String)>,
    pub options: RunOptions,
}

/// The result of a step.
pub(super) struct StepAnswer {
    pub fetched: Vec<(String, Tensor)>,
    pub metadata: Option<RunMetadata>,
}

impl DoorSession {
    pub fn new(
        session: Session,
        library: Library,
        known: Known,
        timeout: Option<Duration>,
        filters: Vec<DeviceSpec>,
        names: Option<Names>,
        connection: Option<Connection>,
    ) -> Self {
        DoorSession {
            session,
            graph: tokio::sync::Mutex::new(Growing { library: Arc::new(library), version: 0 }),
            known: Mutex::new(known),
            timeout,
            filters,
            names,
            callables: Mutex::new(RecentlyUsed::new(MAX_CALLABLES)),
            next_callable: AtomicI64::new(0),
            partial: Mutex::new(RecentlyUsed::new(MAX_PARTIAL_RUNS)),
            seen: Mutex::new(Seen { at: Instant::now(), connection }),
            descent: None,
        }
    }

    /// The same session, with a place among those of its graph.
    #[must_use]
    pub fn with_descent(self, descent: Option<Descent>) -> Self {
        DoorSession { descent, ..self }
    }

    pub fn filters(&self) -> &[DeviceSpec] {
        &self.filters
    }

    /// The time limit of an operation.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Its names of the tasks, if they are not the mesh's.
    pub fn names(&self) -> Option<&Names> {
        self.names.as_ref()
    }

    /// A failure in the session's names.
    fn in_own_names(&self, failure: Failure) -> Failure {
        match &self.names {
            Some(names) => names.failure(failure),
            None => failure,
        }
    }

    /// Notes that the session was used.
    pub fn seen(&self, connection: Option<&Connection>) {
        let mut seen = lock(&self.seen);
        seen.at = Instant::now();
        if connection.is_some() {
            seen.connection = connection.cloned();
        }
    }

    /// Whether its client is connected.
    pub fn has_client(&self) -> bool {
        lock(&self.seen).connection.as_ref().is_some_and(Connection::is_open)
    }

    /// Whether its client was last seen on this connection.
    pub fn is_of(&self, connection: &Connection) -> bool {
        lock(&self.seen).connection.as_ref().is_some_and(|own| own.is_same(connection))
    }

    /// The time since its last call.
    pub fn idle(&self) -> Duration {
        lock(&self.seen).at.elapsed()
    }

    /// Checks that a value of this dtype may be fed to a tensor, as far as the graph specifies it.
    ///
    /// # Errors
    /// InvalidArgument if it may not.
    pub fn admits(&self, name: &str, dtype: DType) -> Result<()> {
        lock(&self.known).admits(name, dtype)
    }

    /// Checks that the callable's feed number `place` accepts a value of this dtype.
    ///
    /// # Errors
    /// As [`DoorSession::admits`].
    pub fn callable_admits(&self, handle: i64, place: usize, dtype: DType) -> Result<()> {
        let callable = self.callable(handle)?;
        callable.feed.get(place).map_or(Ok(()), |name| self.admits(name, dtype))
    }

    /// Adds nodes; returns the graph's new version.
    ///
    /// # Errors
    /// Aborted if `version` is not the graph's: another call has extended it in between.
    pub async fn extend(&self, version: i64, graph_def: GraphDef, readers: &Readers, node: &Node) -> Result<i64> {
        let mut graph = self.graph.lock().await;
        if graph.version != version {
            let why = format!("Current version is {}, but caller expected {version}", graph.version);
            return Err(Failure::new(Code::Aborted, why));
        }
        let library = Arc::clone(&graph.library);
        let (mut nodes, growth) = readers.run(move || stated(&library, graph_def)).await?;
        if let Some(names) = &self.names {
            let wanted = names.named_by(&nodes, &self.filters)?;
            names.find(&wanted, node, self.timeout.unwrap_or(TASKS_WAIT)).await?;
            names.rename(&mut nodes, &self.filters)?;
        }
        let more = Known::of(&nodes);
        self.descent.iter().for_each(Descent::extended);
        self.session.extend(nodes).await.map_err(|failure| self.in_own_names(failure))?;
        lock(&self.known).add(more);
        // It is not shared any longer, except with a call that was cancelled while it read.
        Arc::make_mut(&mut graph.library).grow(growth);
        graph.version += 1;
        Ok(graph.version)
    }

    /// Runs a step as requested by a RunStep.
    pub async fn run(&self, mut request: RunStepRequest, feeds: Vec<(String, Tensor)>) -> Result<StepAnswer> {
        let options = request.options.take().unwrap_or_default();
        options.check()?;
        let Some(descent) = &self.descent else { return self.run_with(options, request, feeds).await };
        if let Some(lost) = descent.begins()
            && request.partial_run_handle.is_empty()
            && !options.is_traced()
            && descent.is_behind(&self.session, lost, &request, &feeds).await
        {
            return Ok(StepAnswer { fetched: Vec::new(), metadata: None });
        }
        let marking = descent.marking(&request, &feeds);
        let ran = self.run_with(options, request, feeds).await;
        descent.ran(marking, &ran).await;
        ran
    }

    async fn run_with(
        &self,
        options: RunOptions,
        request: RunStepRequest,
        feeds: Vec<(String, Tensor)>,
    ) -> Result<StepAnswer> {
        if !request.partial_run_handle.is_empty() {
            return self.go_on(&request.partial_run_handle, feeds, request.fetch, &options).await;
        }
        let (names, feeds): (Vec<String>, Vec<Tensor>) = feeds.into_iter().unzip();
        let steps = options.steps();
        if steps > 1 {
            let is_plain = names.is_empty() && request.fetch.is_empty() && !options.is_traced();
            if !is_plain || request.target.is_empty() {
                return Err(Failure::invalid("a run of many steps has targets, and no feeds, fetches or trace"));
            }
            if steps > MAX_STEPS {
                let why = format!("a run is asked for {steps} steps; it has {MAX_STEPS} at most");
                return Err(Failure::invalid(why));
            }
            self.steps(request.target, &options).await?;
            return Ok(StepAnswer { fetched: Vec::new(), metadata: None });
        }
        self.step(names, feeds, request.fetch, request.target, &options).await
    }

    /// Runs targets many times, each time to its end before the next begins, until one fails: the effects until then stay.
    async fn steps(&self, targets: Vec<String>, options: &RunOptions) -> Result<()> {
        let signature = Signature { feeds: Vec::new(), fetches: Vec::new(), targets, mode: Mode::Whole };
        let first = self.within(options, self.session.step(signature.clone(), Vec::new())).await?;
        let rest = options.steps() - 1;
        if first.summary.devices.len() == 1 && self.limit(options).is_none() {
            // One device runs them one after the other by itself. Several would run ahead of each other: when one failed,
            // elements that another had taken out of a queue for a later step would be lost.
            let targets: Vec<&str> = signature.targets.iter().map(String::as_str).collect();
            let ran = self.session.run().targets(&targets).steps(rest).await;
            return ran.map(drop).map_err(|failure| self.in_own_names(failure));
        }
        for _ in 0..rest {
            self.within(options, self.session.step(signature.clone(), Vec::new())).await?;
        }
        Ok(())
    }

    async fn step(
        &self,
        names: Vec<String>,
        feeds: Vec<Tensor>,
        fetches: Vec<String>,
        targets: Vec<String>,
        options: &RunOptions,
    ) -> Result<StepAnswer> {
        let is_traced = options.is_traced();
        let mode = if is_traced { Mode::Traced } else { Mode::Whole };
        // As in TensorFlow, the step runs although a handle is fetched, and a failure of its own comes first.
        let is_handle = |tensor: &String| lock(&self.known).is_handle(tensor);
        let unfetched = fetches.iter().any(is_handle).then(|| {
            let targets = fetches.iter().chain(&targets).cloned().collect();
            (Signature { feeds: names.clone(), fetches: Vec::new(), targets, mode: Mode::Whole }, feeds.clone())
        });
        let signature = Signature { feeds: names, fetches: fetches.clone(), targets, mode };
        let mut ran = match (self.within(options, self.session.step(signature, feeds)).await, unfetched) {
            (Err(failure), Some((signature, feeds))) if failure.reason == Some(Reason::HandleFetched) => {
                self.within(options, self.session.step(signature, feeds)).await?;
                return Err(failure);
            }
            (ran, _) => ran?,
        };
        if let Some(names) = &self.names {
            ran.traces.iter_mut().for_each(|trace| trace.device = names.device(trace.device.clone()));
        }
        let fetched = fetches.into_iter().zip(ran.values).collect();
        Ok(StepAnswer { fetched, metadata: is_traced.then(|| metadata(ran.traces, options)) })
    }

    /// How long a step may take.
    fn limit(&self, options: &RunOptions) -> Option<Duration> {
        milliseconds(options.timeout_in_ms).into_iter().chain(self.timeout).min()
    }

    /// `work`, cancelled when its time is over.
    async fn within<T>(&self, options: &RunOptions, work: impl Future<Output = Result<T>>) -> Result<T> {
        let done = match self.limit(options) {
            None => work.await,
            Some(limit) => tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
                let why = format!("the step was cancelled at its limit of {} ms", limit.as_millis());
                Err(Failure::new(Code::DeadlineExceeded, why))
            }),
        };
        done.map_err(|failure| self.in_own_names(failure))
    }

    /// Stores a callable; if there are too many, the least recently used one is dropped.
    pub fn make_callable(&self, callable: Callable) -> i64 {
        let mut callables = lock(&self.callables);
        // Calls under way hold theirs, so any may be dropped.
        let _gone = callables.evict_for_one_more(|_| Some(0));
        let handle = self.next_callable.fetch_add(1, Ordering::Relaxed);
        callables.insert(handle, Arc::new(callable));
        handle
    }

    fn callable(&self, handle: i64) -> Result<Arc<Callable>> {
        let mut callables = lock(&self.callables);
        if let Some(callable) = callables.get(&handle) {
            return Ok(Arc::clone(callable));
        }
        if callables.was_evicted(&handle) {
            let why = format!(
                "callable {handle} was released: the session reached its limit of {MAX_CALLABLES} and released the \
                 least recently used one; make it again"
            );
            return Err(Failure::new(Code::Aborted, why));
        }
        Err(no_callable(handle))
    }

    /// Runs a callable; `feeds` are in the callable's order.
    pub async fn run_callable(&self, handle: i64, feeds: Vec<Tensor>) -> Result<StepAnswer> {
        // It is none of the runs that are not made.
        self.descent.iter().for_each(Descent::begins_otherwise);
        if let (Some(descent), Ok(callable)) = (&self.descent, self.callable(handle)) {
            let ends = callable.fetch.iter().chain(&callable.target);
            descent.may_restore(ends, callable.feed.iter().map(String::as_str).zip(&feeds));
        }
        let ran = self.run_that_callable(handle, feeds).await;
        if let Some(descent) = &self.descent {
            descent.ran(None, &ran).await;
        }
        ran
    }

    async fn run_that_callable(&self, handle: i64, feeds: Vec<Tensor>) -> Result<StepAnswer> {
        let callable = self.callable(handle)?;
        if callable.feed.len() != feeds.len() {
            let why = format!("the callable takes {} feeds, got {}", callable.feed.len(), feeds.len());
            return Err(Failure::invalid(why));
        }
        let Callable { feed, fetch, target, connected, options } = &*callable;
        options.check()?;
        let (mut names, mut feeds) = (feed.clone(), feeds);
        if !connected.is_empty() {
            // A separate step computes them, and the callable's step is fed with them.
            let (from, to): (Vec<String>, Vec<String>) = connected.iter().cloned().unzip();
            let computed = self.step(names.clone(), feeds.clone(), from, Vec::new(), options).await?;
            names.extend(to);
            feeds.extend(computed.fetched.into_iter().map(|(_, tensor)| tensor));
        }
        self.step(names, feeds, fetch.clone(), target.clone(), options).await
    }

    pub fn release_callable(&self, handle: i64) -> Result<()> {
        lock(&self.callables).remove(&handle).map(|_| ()).ok_or_else(|| no_callable(handle))
    }

    /// Begins a partial run; returns its handle.
    pub async fn partial_setup(&self, feed: Vec<String>, fetch: Vec<String>, target: Vec<String>) -> Result<String> {
        if let Some(descent) = &self.descent {
            descent.begins_otherwise();
            descent.may_restore(fetch.iter().chain(&target), std::iter::empty());
        }
        // It needs a lane before it begins, so two may be evicted if two begin at once.
        self.evict_for_a_partial_run()?;
        let run = match self.within(&RunOptions::default(), self.session.begin(feed, fetch, target)).await {
            // In TensorFlow, the placeholder fails when it runs: with the first call that continues the run.
            Err(failure) if failure.op.as_deref().and_then(op::lookup).is_some_and(|op| op.is_fed) => Err(failure),
            run => Ok(run?),
        };
        let handle = format!("{:016x}", crate::random::u64());
        self.evict_for_a_partial_run()?;
        lock(&self.partial).insert(handle.clone(), Arc::new(run));
        Ok(handle)
    }

    /// Cancels the least recently continued partial run if no lane is free.
    fn evict_for_a_partial_run(&self) -> Result<()> {
        let is_idle = |run: &Arc<Result<PartialRun>>| (Arc::strong_count(run) == 1).then_some(0);
        let cancelled = lock(&self.partial).evict_for_one_more(is_idle);
        cancelled.map(drop).map_err(|Full| {
            let why = format!(
                "the session has reached its limit of {MAX_PARTIAL_RUNS} partial runs, all of which are in use"
            );
            Failure::new(Code::ResourceExhausted, why)
        })
    }

    fn partial_run(&self, handle: &str) -> Result<Arc<Result<PartialRun>>> {
        let mut runs = lock(&self.partial);
        if let Some(run) = runs.get(handle) {
            return Ok(Arc::clone(run));
        }
        if runs.was_evicted(handle) {
            let why = format!(
                "the partial run was cancelled: the session reached its limit of {MAX_PARTIAL_RUNS} and cancelled the \
                 least recently continued one; set it up again"
            );
            return Err(Failure::new(Code::Aborted, why));
        }
        let why = "Must run 'setup' before performing partial runs: this partial run does not exist or has ended";
        Err(Failure::invalid(why))
    }

    async fn go_on(
        &self,
        handle: &str,
        feeds: Vec<(String, Tensor)>,
        fetch: Vec<String>,
        options: &RunOptions,
    ) -> Result<StepAnswer> {
        let run = self.partial_run(handle)?;
        let run = match &*run {
            Ok(run) => run,
            Err(failure) => {
                lock(&self.partial).remove(handle);
                return Err(failure.clone());
            }
        };
        let result = self.within(options, run.go_on(feeds, &fetch)).await;
        let is_over = match &result {
            Ok(_) => run.is_over().await,
            // A feed or fetch that was not declared leaves the run unchanged.
            Err(failure) => failure.is_in_step() || failure.code != Code::InvalidArgument,
        };
        if is_over {
            lock(&self.partial).remove(handle);
        }
        Ok(StepAnswer { fetched: fetch.into_iter().zip(result?).collect(), metadata: None })
    }

    /// Ends the session; its running steps end with Cancelled.
    ///
    /// # Cancellation
    /// The session ends even if the future is dropped.
    pub async fn end(&self) -> Result<()> {
        self.session.end().await
    }

    /// Ends it as its client asks for.
    ///
    /// # Errors
    /// As [`DoorSession::end`].
    pub async fn close(&self) -> Result<()> {
        let ended = self.end().await;
        self.descent.iter().for_each(Descent::closed);
        ended
    }
}

fn no_callable(handle: i64) -> Failure {
    Failure::invalid(format!("No such callable handle: {handle}"))
}
