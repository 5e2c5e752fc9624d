//! A cluster within one process: the same masters, workers and plans, without a network.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use meshtf_checkpoint::DataDir;
use meshtf_engine::adapters::{BackendChoice, cpu};
use meshtf_exec::Resources;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::Incarnation;
use meshtf_tensor::memory::Budget;

use crate::client::{Reach, Route};
use crate::events::Follower;
use crate::protocol::{Cluster, DeviceInfo, Envelope, Member, Peer};
use crate::runtime::host::{Host, requested_gpus};
use crate::runtime::router::Router;
use crate::runtime::weights::Weights;

/// A cluster in this process. Dropping it shuts its devices down.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use meshtf::graph::GraphBuilder;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// let mut graph = GraphBuilder::new();
/// let x = graph.constant("x", 2)?;
/// let three_hundred = graph.constant("three_hundred", 300)?;
/// graph.op("Add").name("y").input(x).input(three_hundred).device("/job:local/task:1").build()?;
///
/// let tasks = [Task::new("local", 0), Task::new("local", 1)];
/// let cluster = LocalCluster::start(&tasks, BackendChoice::Auto)?;
/// let session = cluster.session(graph.finish()?, &tasks[0], SessionOptions::default()).await?;
/// assert_eq!(session.run().fetch("y").await?["y"].item::<i32>()?, 302);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
pub struct LocalCluster {
    bus: Arc<Bus>,
    /// The bus holds the hosts weakly, since each host holds the bus.
    hosts: BTreeMap<Task, Arc<Host>>,
}

/// Delivers messages between the hosts.
struct Bus {
    hosts: OnceLock<BTreeMap<Peer, Weak<Host>>>,
    cluster: OnceLock<Arc<Cluster>>,
}

struct LocalRouter {
    me: Peer,
    bus: Arc<Bus>,
}

impl Router for LocalRouter {
    fn send(&self, to: &Peer, envelope: Envelope) -> Result<()> {
        let host = self.bus.hosts.get().and_then(|hosts| hosts.get(to)).and_then(Weak::upgrade);
        let host = host.ok_or_else(|| Failure::new(Code::Unavailable, format!("{to} is not in this cluster")))?;
        host.deliver(&self.me, envelope);
        Ok(())
    }

    fn cluster(&self) -> Arc<Cluster> {
        self.bus.cluster.get().cloned().unwrap_or_default()
    }
}

impl LocalCluster {
    /// Starts the tasks, each with the devices that `backend` finds on this machine. Graphs may not access files.
    ///
    /// # Errors
    /// InvalidArgument if there is no task, one is named twice, or the backend has no device on this machine.
    pub fn start(tasks: &[Task], backend: BackendChoice) -> Result<LocalCluster> {
        LocalCluster::start_with_data(tasks, backend, None)
    }

    /// Like [`LocalCluster::start`]; graphs may save and restore files in `data`, which the tasks share.
    ///
    /// # Errors
    /// As [`LocalCluster::start`].
    pub fn start_with_data(tasks: &[Task], backend: BackendChoice, data: Option<DataDir>) -> Result<LocalCluster> {
        LocalCluster::start_within(tasks, backend, data, &Arc::default())
    }

    /// As [`LocalCluster::start_with_data`], with a memory budget that the tasks share.
    ///
    /// # Errors
    /// As [`LocalCluster::start`].
    #[doc(hidden)]
    pub fn start_within(
        tasks: &[Task],
        backend: BackendChoice,
        data: Option<DataDir>,
        budget: &Arc<Budget>,
    ) -> Result<LocalCluster> {
        if tasks.is_empty() {
            return Err(Failure::invalid("a cluster needs at least one task"));
        }
        let bus = Arc::new(Bus { hosts: OnceLock::new(), cluster: OnceLock::new() });
        let weights = Weights::in_memory();
        let mut hosts = BTreeMap::new();
        let mut members = Vec::new();
        for task in tasks {
            let peer = peer_of(task);
            let router: Arc<dyn Router> = Arc::new(LocalRouter { me: peer.clone(), bus: Arc::clone(&bus) });
            let resources = data.clone().map_or_else(Resources::new, Resources::with_data).within(Arc::clone(budget));
            let host = Arc::new(Host::new(Some(task), &router, resources, Arc::clone(&weights)));
            let devices = open_devices(task, backend, &host)?;
            if hosts.insert(task.clone(), host).is_some() {
                return Err(Failure::invalid(format!("task {task} is named twice")));
            }
            members.push(Member {
                task: task.clone(),
                peer,
                incarnation: Incarnation(crate::random::u64()),
                devices,
                addresses: Vec::new(),
                since_unix_ms: 0,
            });
        }
        let _first = bus.cluster.set(Arc::new(Cluster::new(members)));
        let _first = bus.hosts.set(hosts.iter().map(|(task, host)| (peer_of(task), Arc::downgrade(host))).collect());
        Ok(LocalCluster { bus, hosts })
    }

    /// Follows the events of a task from now on.
    ///
    /// # Errors
    /// NotFound if there is no such task.
    pub fn events(&self, task: &Task) -> Result<Follower> {
        Ok(self.host(task)?.events.follow())
    }

    fn host(&self, task: &Task) -> Result<&Arc<Host>> {
        self.hosts.get(task).ok_or_else(|| {
            let known: Vec<String> = self.hosts.keys().map(Task::to_string).collect();
            Failure::new(Code::NotFound, format!("task {task} does not exist; the tasks are {}", known.join(", ")))
        })
    }
}

impl Reach for LocalCluster {
    fn live(&self) -> Arc<Cluster> {
        self.bus.cluster.get().cloned().unwrap_or_default()
    }

    fn reach(&self, target: Option<&Task>) -> Result<Route> {
        let (task, host) = match target {
            Some(task) => (task, self.host(task)?),
            None => self.hosts.first_key_value().ok_or_else(|| Failure::invalid("the cluster has no task"))?,
        };
        Ok((Arc::clone(&host.client), peer_of(task)))
    }
}

fn peer_of(task: &Task) -> Peer {
    Peer::new(task.short())
}

/// Opens the devices that `backend` finds and adds them to the host.
fn open_devices(task: &Task, backend: BackendChoice, host: &Host) -> Result<Vec<DeviceInfo>> {
    let offers = std::iter::once(cpu(backend)).chain(requested_gpus(backend)?);
    offers.map(|offer| host.serve(task, offer)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;
    use crate::StepEvent;
    use crate::protocol::SessionOptions;
    use meshtf_graph::GraphBuilder;
    use meshtf_tensor::{DType, Tensor};

    #[tokio::test]
    async fn a_watched_run_reports_progress_and_ends_with_its_future() {
        let mut graph = GraphBuilder::new();
        graph.constant("x", 2).unwrap();
        let task = Task::new("local", 0);
        let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
        let session = cluster.session(graph.finish().unwrap(), &task, SessionOptions::default()).await.unwrap();
        // More steps than could ever run, until progress was reported twice.
        let count = u64::MAX / 2;
        let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
        let run = session.run().fetch("x").steps(count).watch(0, |event| sender.send(event).unwrap());
        let watch = async { [told.recv().await.unwrap(), told.recv().await.unwrap()] };
        let [first, second] = tokio::select! {
            ran = run => panic!("{ran:?}"),
            told = watch => told,
        };
        let through = |event: StepEvent| match event {
            StepEvent::Progress { steps, .. } => steps,
            other => panic!("{other:?}"),
        };
        let (first, second) = (through(first), through(second));
        assert!(0 < first && first < second && second < count, "{first}, {second}");
        // The session can run again.
        assert_eq!(session.run().fetch("x").await.unwrap().values, [Tensor::scalar(2i32)]);
    }

    #[tokio::test]
    async fn there_may_be_more_sets_of_fetches_than_plans() {
        // Sums of subsets of 13 numbers: more sets than a master keeps plans per session.
        let mut graph = GraphBuilder::new();
        let names: Vec<String> = (0..13).map(|n| format!("n{n}")).collect();
        for (n, name) in names.iter().enumerate() {
            graph.constant(name, 1 << n).unwrap();
        }
        let task = Task::new("local", 0);
        let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
        let session = cluster.session(graph.finish().unwrap(), &task, SessionOptions::default()).await.unwrap();
        let limit = crate::runtime::master::MasterLimits::default().plans as i32;
        // The first sets are requested again at the end, when their plans have been evicted.
        for set in (1..limit + 100).chain(1..100) {
            let fetches: Vec<&str> = (0..13).filter(|n| set >> n & 1 == 1).map(|n| names[n].as_str()).collect();
            let ran = session.run().fetches(&fetches).await.unwrap_or_else(|failure| panic!("set {set}: {failure}"));
            let sum: i32 = ran.values.iter().map(|value| value.item::<i32>().unwrap()).sum();
            assert_eq!(sum, set);
        }
        let held = cluster.host(&task).unwrap().holds();
        assert!(held.contains(&format!("pieces: {limit},")), "{held}");
        session.close().await.unwrap();
        // The device's own thread handles its messages; the query is behind them in the queue.
        assert_eq!(cluster.host(&task).unwrap().holds(), "");
    }

    /// Waits until the unfinished work of a task satisfies the condition.
    async fn comes_to_hold(cluster: &LocalCluster, task: &Task, what: impl Fn(&str) -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while let held = cluster.host(task).unwrap().holds()
            && !what(&held)
        {
            assert!(std::time::Instant::now() < deadline, "{held}");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_cancelled_opening_leaves_no_session() {
        let mut graph = GraphBuilder::new();
        graph.constant("x", 2).unwrap();
        let graph = graph.finish().unwrap();
        let task = Task::new("local", 0);
        let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
        // From no patience to plenty, often enough to meet the planner's thread at each point of its work.
        for patience in (0..40).cycle().take(2_000) {
            let given_up = async {
                for _ in 0..patience {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                opened = cluster.session(graph.clone(), &task, SessionOptions::default()) => drop(opened.unwrap()),
                () = given_up => {}
            }
        }
        comes_to_hold(&cluster, &task, str::is_empty).await;
    }

    #[tokio::test]
    async fn a_cluster_can_be_dropped_while_a_session_runs() {
        for _ in 0..50 {
            let mut graph = GraphBuilder::new();
            graph.constant("x", 2).unwrap();
            let task = Task::new("local", 0);
            let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
            let session = cluster.session(graph.finish().unwrap(), &task, SessionOptions::default()).await.unwrap();
            let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
            let run = session.run().fetch("x").steps(u64::MAX / 2).watch(1, |event| sender.send(event).unwrap());
            tokio::select! {
                ran = run => panic!("{ran:?}"),
                _begun = told.recv() => {}
            }
            // On a separate thread, since the drop might hang.
            let (ended, end) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                drop(cluster);
                ended.send(()).unwrap();
            });
            end.recv_timeout(std::time::Duration::from_secs(30)).expect("the cluster ends");
            drop(session);
        }
    }

    #[tokio::test]
    async fn a_run_whose_steps_are_consumed_slowly_continues_and_can_be_dropped() {
        let mut graph = GraphBuilder::new();
        graph.constant("x", 2).unwrap();
        let task = Task::new("local", 0);
        let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
        let session = cluster.session(graph.finish().unwrap(), &task, SessionOptions::default()).await.unwrap();
        // More fetches of endless steps than may wait for the client.
        let (enough, seen) = tokio::sync::oneshot::channel();
        let mut enough = Some(enough);
        let count = |step, _| {
            if step == 5000 {
                enough.take().map(|enough| enough.send(()));
            }
        };
        tokio::select! {
            ran = session.run().fetch("x").steps(u64::MAX / 2).each(1, count) => panic!("{ran:?}"),
            seen = seen => seen.unwrap(),
        }
        comes_to_hold(&cluster, &task, |held| held.contains("with 0 runs")).await;
        session.close().await.unwrap();
        comes_to_hold(&cluster, &task, str::is_empty).await;
    }

    /// No allocator counts in these tests: the process has next to nothing in use.
    #[tokio::test]
    async fn each_cluster_refuses_by_its_own_limit() {
        let task = Task::new("local", 0);
        let mut open = Vec::new();
        // Both exist at the same time, and a third one that has no limit.
        for limit in [Some(30_000_000), Some(1_000_000_000), None] {
            let budget = limit.map_or_else(Arc::default, Budget::of);
            let tasks = std::slice::from_ref(&task);
            let cluster = LocalCluster::start_within(tasks, BackendChoice::Flex, None, &budget).unwrap();
            let told = cluster.bus.cluster.get().unwrap().member(&task).unwrap().devices[0].capacity.memory;
            assert_eq!(told.map(|memory| memory.total), limit.map(|limit| limit as u64));
            let mut graph = GraphBuilder::new();
            let n = graph.placeholder("n", DType::I32, [None]).unwrap();
            let one = graph.constant("one", 1f32).unwrap();
            let filled = graph.op("Fill").name("filled").input(n).input(one).build().unwrap();
            let axis = graph.constant("axis", 0).unwrap();
            graph.op("Max").name("most").input(filled).input(axis).build().unwrap();
            let graph = graph.finish().unwrap();
            let session = cluster.session(graph, &task, SessionOptions::default()).await.unwrap();
            open.push((cluster, session));
        }
        let fill = async |cluster: usize, elements: i32| {
            let ran = open[cluster].1.run().feed("n", vec![elements]).fetch("most").await;
            ran.map(|ran| ran["most"].item::<f32>().unwrap()).map_err(|failure| failure.message)
        };
        let is_refused = |ran: Result<f32, String>, limit: &str| {
            let why = ran.unwrap_err();
            assert!(why.contains(&format!("of its {limit} (--memory) in use")), "{why}");
        };
        for _ in 0..3 {
            let [small, large, none] = [fill(0, 10_000_000), fill(1, 10_000_000), fill(2, 10_000_000)];
            let (small, large, none) = tokio::join!(small, large, none);
            is_refused(small, "30.0 MB");
            assert_eq!((large, none), (Ok(1.0), Ok(1.0)));
            let (small, large) = tokio::join!(fill(0, 400_000_000), fill(1, 400_000_000));
            is_refused(small, "30.0 MB");
            is_refused(large, "1.00 GB");
        }
    }
}
