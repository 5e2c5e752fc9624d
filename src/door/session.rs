//! A client's session: the node's own session, and what TensorFlow's protocol keeps beside it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::message::{RunMetadata, RunOptions, RunStepRequest};
use super::service::{milliseconds, panicked};
use super::trace::metadata;
use crate::failure::{Code, Failure, Result};
use crate::graph::graphdef::{GraphDef, Library};
use crate::plan::{DeviceSpec, Mode, Signature};
use crate::session::{PartialRun, Session};
use crate::tensor::Tensor;

/// Most callables of one session.
const MAX_CALLABLES: usize = 4096;

pub(super) struct DoorSession {
    session: Session,
    /// Held while the graph grows.
    graph: tokio::sync::Mutex<Growing>,
    /// Most that an operation may take.
    timeout: Option<Duration>,
    /// The devices it may use; all, where it is empty.
    filters: Vec<DeviceSpec>,
    callables: Mutex<HashMap<i64, Arc<Callable>>>,
    next_callable: AtomicI64,
    partial: Mutex<HashMap<String, Arc<PartialRun>>>,
    seen: Mutex<Seen>,
}

/// The functions that the graph has so far, and how often it was extended.
struct Growing {
    library: Library,
    version: i64,
}

/// When a session was last used, and over what.
struct Seen {
    at: Instant,
    connection: Option<Connection>,
}

/// Feeds, fetches and targets under a number.
pub(super) struct Callable {
    pub feed: Vec<String>,
    pub fetch: Vec<String>,
    pub target: Vec<String>,
    pub options: RunOptions,
}

/// What a step gave.
pub(super) struct Ran {
    pub fetched: Vec<(String, Tensor)>,
    pub metadata: Option<RunMetadata>,
}

impl DoorSession {
    pub fn new(
        session: Session,
        library: Library,
        timeout: Option<Duration>,
        filters: Vec<DeviceSpec>,
        connection: Option<Connection>,
    ) -> Self {
        DoorSession {
            session,
            graph: tokio::sync::Mutex::new(Growing { library, version: 0 }),
            timeout,
            filters,
            callables: Mutex::default(),
            next_callable: AtomicI64::new(0),
            partial: Mutex::default(),
            seen: Mutex::new(Seen { at: Instant::now(), connection }),
        }
    }

    pub fn filters(&self) -> &[DeviceSpec] {
        &self.filters
    }

    /// Notes that the session is used.
    pub fn seen(&self, connection: Option<&Connection>) {
        let mut seen = lock(&self.seen);
        seen.at = Instant::now();
        if connection.is_some() {
            seen.connection = connection.cloned();
        }
    }

    /// Whether its client is there, or was there less than `limit` ago.
    pub fn is_kept(&self, limit: Duration) -> bool {
        let seen = lock(&self.seen);
        seen.connection.as_ref().is_some_and(Connection::is_open) || seen.at.elapsed() < limit
    }

    /// Adds nodes; the graph's new version.
    ///
    /// # Errors
    /// Aborted where `version` is not the graph's: somebody else has extended it in between.
    pub async fn extend(&self, version: i64, graph_def: GraphDef) -> Result<i64> {
        let mut graph = self.graph.lock().await;
        if graph.version != version {
            let why = format!("Current version is {}, but caller expected {version}", graph.version);
            return Err(Failure::new(Code::Aborted, why));
        }
        let mut library = graph.library.clone();
        let (nodes, library) =
            tokio::task::spawn_blocking(move || Ok::<_, Failure>((library.expand(graph_def)?, library)))
                .await
                .map_err(panicked)??;
        self.session.extend(nodes).await?;
        *graph = Growing { library, version: version + 1 };
        Ok(graph.version)
    }

    /// Runs a step as a RunStep asks for it.
    pub async fn run(&self, request: RunStepRequest, feeds: Vec<(String, Tensor)>) -> Result<Ran> {
        let options = request.options.unwrap_or_default();
        if !request.partial_run_handle.is_empty() {
            return self.go_on(&request.partial_run_handle, feeds, request.fetch, &options).await;
        }
        let (names, feeds) = feeds.into_iter().unzip();
        self.step(names, feeds, request.fetch, request.target, &options).await
    }

    async fn step(
        &self,
        names: Vec<String>,
        feeds: Vec<Tensor>,
        fetches: Vec<String>,
        targets: Vec<String>,
        options: &RunOptions,
    ) -> Result<Ran> {
        let is_traced = options.trace_level > 0 || options.output_partition_graphs;
        let mode = if is_traced { Mode::Traced } else { Mode::Whole };
        let signature = Signature { feeds: names, fetches: fetches.clone(), targets, mode };
        let ran = self.within(options, self.session.step(signature, feeds)).await?;
        let fetched = fetches.into_iter().zip(ran.fetches).collect();
        Ok(Ran { fetched, metadata: is_traced.then(|| metadata(ran.traces, options)) })
    }

    /// `work`, which is given up when its time is over.
    async fn within<T>(&self, options: &RunOptions, work: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = milliseconds(options.timeout_in_ms).into_iter().chain(self.timeout).min();
        let Some(limit) = limit else { return work.await };
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            let why = format!("the step was not done after {} ms, its limit, and was cancelled", limit.as_millis());
            Err(Failure::new(Code::DeadlineExceeded, why))
        })
    }

    pub fn make_callable(&self, callable: Callable) -> Result<i64> {
        let mut callables = lock(&self.callables);
        if callables.len() >= MAX_CALLABLES {
            let why = format!("the session has {MAX_CALLABLES} callables already; release some");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let handle = self.next_callable.fetch_add(1, Ordering::Relaxed);
        callables.insert(handle, Arc::new(callable));
        Ok(handle)
    }

    /// Runs a callable; `feeds` stand in the order in which it names them.
    pub async fn run_callable(&self, handle: i64, feeds: Vec<Tensor>) -> Result<Ran> {
        let callable = lock(&self.callables).get(&handle).cloned().ok_or_else(|| no_callable(handle))?;
        if callable.feed.len() != feeds.len() {
            let why = format!("the callable takes {} feeds, and {} came", callable.feed.len(), feeds.len());
            return Err(Failure::invalid(why));
        }
        let Callable { feed, fetch, target, options } = &*callable;
        self.step(feed.clone(), feeds, fetch.clone(), target.clone(), options).await
    }

    pub fn release_callable(&self, handle: i64) -> Result<()> {
        lock(&self.callables).remove(&handle).map(|_| ()).ok_or_else(|| no_callable(handle))
    }

    /// Begins a partial run; its handle.
    pub async fn partial_setup(&self, feed: Vec<String>, fetch: Vec<String>, target: Vec<String>) -> Result<String> {
        let run = self.within(&RunOptions::default(), self.session.begin(feed, fetch, target)).await?;
        let handle = format!("{:016x}", crate::random::u64());
        lock(&self.partial).insert(handle.clone(), Arc::new(run));
        Ok(handle)
    }

    async fn go_on(
        &self,
        handle: &str,
        feeds: Vec<(String, Tensor)>,
        fetch: Vec<String>,
        options: &RunOptions,
    ) -> Result<Ran> {
        let run = lock(&self.partial).get(handle).cloned();
        let run = run.ok_or_else(|| {
            Failure::invalid(
                "Must run 'setup' before performing partial runs: there is no such partial run, or it is over",
            )
        })?;
        let result = self.within(options, run.go_on(feeds, &fetch)).await;
        let is_over = match &result {
            Ok(_) => run.is_over().await,
            // A feed or fetch that was not announced leaves the run as it was.
            Err(failure) => failure.step.is_some() || failure.code != Code::InvalidArgument,
        };
        if is_over {
            lock(&self.partial).remove(handle);
        }
        Ok(Ran { fetched: fetch.into_iter().zip(result?).collect(), metadata: None })
    }

    /// Ends the session; what still runs in it ends with Cancelled.
    pub async fn end(&self) -> Result<()> {
        self.session.end().await
    }
}

fn no_callable(handle: i64) -> Failure {
    Failure::invalid(format!("No such callable handle: {handle}"))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
