//! The interface that a mesh and a cluster in one process share: sessions, and inquiries about tasks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use meshtf_graph::Graph;
use meshtf_graph::plan::{Plan, Signature};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};

use crate::protocol::event::Noted;
use crate::protocol::inquiry::VariableName;
use crate::protocol::status::{NodeStatus, ResourceStatus};
use crate::protocol::{Cluster, Peer, SessionOptions};
use crate::runtime::requests::Requests;
use crate::session::{Session, explain, inquire};

/// The way from a client to the tasks. Outside this crate nothing implements it, so that [`Client`] may grow.
pub trait Reach: Send + Sync {
    /// The live tasks.
    fn live(&self) -> Arc<Cluster>;

    /// The route to `target`, or to the default task.
    fn reach(&self, target: Option<&Task>) -> Result<Route>;

    /// The default task, if it is a certain one: the own task, or one that the user named.
    #[doc(hidden)]
    fn own_master(&self) -> Option<Task> {
        None
    }

    /// Whether the task `master` has a connection with the task `other`, as far as it has reported.
    #[doc(hidden)]
    fn has_met(&self, _master: &Task, _other: &Task) -> bool {
        true
    }
}

/// The client's end of requests, and the peer that holds a task.
pub type Route = (Arc<Requests>, Peer);

/// A client of tasks: of a mesh with [`Node`](crate::Node), or of a cluster in this process with
/// [`LocalCluster`](crate::LocalCluster). A program that takes `&impl Client` runs on both.
///
/// A `target` is the task that masters a session or answers an inquiry. Without one it is the node's own task, or else the
/// first task by name.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// async fn answer(client: &impl Client) -> meshtf::Result<i32> {
///     let mut graph = GraphBuilder::new();
///     let x = graph.constant("x", 40)?;
///     graph.op("Add").name("y").input(x).input(2).build()?;
///     let session = client.session(graph.finish()?, None, SessionOptions::default()).await?;
///     session.run().fetch("y").await?["y"].item()
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// assert_eq!(answer(&cluster).await?, 42);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
pub trait Client: Reach {
    /// The tasks that are up now, and their devices.
    fn cluster(&self) -> Arc<Cluster> {
        self.live()
    }

    /// Opens a session on the master `target`.
    ///
    /// # Errors
    /// Unavailable if `target` is not up, with the tasks that are; NotFound if its name looks like a typo; InvalidArgument if
    /// the graph is wrong.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the master closes the session that it may have opened.
    fn session<'t>(
        &self,
        graph: Graph,
        target: impl Into<Option<&'t Task>> + Send,
        options: SessionOptions,
    ) -> impl Future<Output = Result<Session>> + Send {
        let reached = self.reach(target.into());
        async move {
            let (requests, master) = reached?;
            Session::open(requests, master, &graph, options).await
        }
    }

    /// Plans a graph on the master `target` without running it.
    ///
    /// # Errors
    /// As [`Client::session`], and those of a plan: names that do not exist, a device request that no task satisfies.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the master plans to the end nonetheless, and its answer is dropped.
    fn explain<'t>(
        &self,
        graph: &Graph,
        target: impl Into<Option<&'t Task>> + Send,
        signature: Signature,
        options: SessionOptions,
    ) -> impl Future<Output = Result<Plan>> + Send {
        let reached = self.reach(target.into());
        async move {
            let (requests, master) = reached?;
            explain(&requests, &master, graph, signature, options).await
        }
    }

    /// The events of a task after the event of that number, or for 0 from the first that it keeps: the oldest ones, a limited
    /// number per call. The number of the last is the argument of the next call; an empty answer means that there are no newer
    /// ones.
    ///
    /// They include the events of steps if `with_steps` is set: from the first call that requests them, and as long as no more
    /// than 5 s pass between two such calls. A task keeps the last 1024 of them, and as many of the others.
    ///
    /// # Errors
    /// As [`Client::status`].
    ///
    /// # Cancellation
    /// As [`Client::status`].
    fn events_of<'t>(
        &self,
        target: impl Into<Option<&'t Task>> + Send,
        after: u64,
        with_steps: bool,
    ) -> impl Future<Output = Result<Vec<Noted>>> + Send {
        let reached = self.reach(target.into());
        async move {
            let (requests, node) = reached?;
            inquire::events(&requests, &node, after, with_steps).await
        }
    }

    /// The status of a task.
    ///
    /// # Errors
    /// Unavailable if it is not up, with the tasks that are; NotFound if its name looks like a typo.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the answer of the task is dropped. Nothing changes on the task.
    fn status<'t>(
        &self,
        target: impl Into<Option<&'t Task>> + Send,
    ) -> impl Future<Output = Result<NodeStatus>> + Send {
        let reached = self.reach(target.into());
        async move {
            let (requests, node) = reached?;
            inquire::status(&requests, &node).await
        }
    }

    /// The status of every task that is up. All are queried at once; DeadlineExceeded for those that do not answer within
    /// `limit`. The runtime must have its timer enabled.
    ///
    /// # Cancellation
    /// As [`Client::status`].
    fn statuses(&self, limit: Duration) -> impl Future<Output = Vec<(Task, Result<NodeStatus>)>> + Send {
        let cluster = self.live();
        async move {
            let asked = cluster.tasks().map(async |task| {
                let answer = tokio::time::timeout(limit, self.status(task)).await;
                let late = || format!("it did not answer within {} s", limit.as_secs_f64());
                (task.clone(), answer.unwrap_or_else(|_| Err(Failure::new(Code::DeadlineExceeded, late()))))
            });
            futures::future::join_all(asked).await
        }
    }

    /// The variables, queues, accumulators, tables, iterators and readers of a task, in the order of their names.
    ///
    /// # Errors
    /// As [`Client::status`].
    ///
    /// # Cancellation
    /// As [`Client::status`].
    fn resources<'t>(
        &self,
        target: impl Into<Option<&'t Task>> + Send,
    ) -> impl Future<Output = Result<Vec<ResourceStatus>>> + Send {
        let reached = self.reach(target.into());
        async move {
            let (requests, node) = reached?;
            inquire::resources(&requests, &node).await
        }
    }

    /// The value of a task's variable that sessions share, and its version: the number of its changes.
    ///
    /// # Errors
    /// NotFound if there is no such variable; PermissionDenied if it is an isolated session's; FailedPrecondition while
    /// it has no value; InvalidArgument if several devices have one of that name and `device` is `None`. And as
    /// [`Client::status`].
    ///
    /// # Cancellation
    /// As [`Client::status`].
    fn read_variable<'t>(
        &self,
        target: impl Into<Option<&'t Task>> + Send,
        variable: VariableName,
    ) -> impl Future<Output = Result<(Tensor, u64)>> + Send {
        let reached = self.reach(target.into());
        async move {
            let (requests, node) = reached?;
            inquire::read_variable(&requests, &node, variable).await
        }
    }

    /// Sets a task's variable that sessions share; if a version is `expected`, only if the variable has that version. Returns
    /// the new version.
    ///
    /// # Errors
    /// Aborted if the variable has another version than that; InvalidArgument if it takes no such value; and as
    /// [`Client::read_variable`].
    ///
    /// # Cancellation
    /// If the future is dropped after its first poll, the task sets the variable nonetheless, now or when an op that changes it
    /// is done. [`Client::read_variable`] shows by the version whether it has.
    fn write_variable<'t>(
        &self,
        target: impl Into<Option<&'t Task>> + Send,
        variable: VariableName,
        value: Tensor,
        expected: Option<u64>,
    ) -> impl Future<Output = Result<u64>> + Send {
        let reached = self.reach(target.into());
        async move {
            let (requests, node) = reached?;
            inquire::write_variable(&requests, &node, variable, value, expected).await
        }
    }
}

impl<T: Reach> Client for T {}
