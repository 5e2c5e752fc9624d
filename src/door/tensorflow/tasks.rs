//! The tasks of the mesh, as a session of TensorFlow's client waits for them and lists them.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshtf_graph::Graph;
use meshtf_tensor::device::{DeviceKind, DeviceName, DeviceSpec, Task};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;

use super::message::{DeviceAttributes, ListDevicesResponse};
use super::names::Names;
use super::trace::full_name;
use crate::Client;
use crate::node::Node;
use crate::protocol::{Cluster, Member};

/// How long a new session waits for the tasks that its graph names, if the client sets no limit; and how long a list of devices
/// waits for the tasks of the ClusterSpec.
pub(super) const TASKS_WAIT: Duration = Duration::from_secs(10);
/// How long it waits if none of the jobs exists: then the graph was written for another cluster.
const OTHER_CLUSTER_WAIT: Duration = Duration::from_millis(1500);

/// The tasks.
pub(super) struct Tasks {
    node: Arc<Node>,
    /// Those of the ClusterSpec of this node; none if it has none.
    stated: BTreeSet<Task>,
    /// The jobs that graphs named and that existed: one that is gone may come back.
    met: Mutex<HashSet<String>>,
    /// Tasks of the ClusterSpec that a list of devices has awaited in vain.
    late: Mutex<HashSet<Task>>,
}

impl Tasks {
    pub fn new(node: Arc<Node>, stated: BTreeSet<Task>) -> Tasks {
        Tasks { node, stated, met: Mutex::default(), late: Mutex::default() }
    }

    /// Waits until the tasks that a graph names are up, except those that the session's filters exclude.
    ///
    /// # Errors
    /// InvalidArgument if the mesh has none of the jobs, or if one is neither in this node's ClusterSpec nor in the mesh;
    /// Unavailable if some tasks are still missing, with their names.
    pub async fn wait_for(&self, graph: &Graph, filters: &[DeviceSpec], timeout: Option<Duration>) -> Result<()> {
        let limit = timeout.unwrap_or(TASKS_WAIT);
        let tasks: Vec<Task> = graph.tasks().into_iter().filter(|task| passes(filters, task)).collect();
        let is_known = |task: &Task, cluster: &Cluster| {
            let is_of_job = |other: &Task| other.job == task.job;
            self.stated.iter().any(is_of_job) || cluster.tasks().any(is_of_job) || lock(&self.met).contains(&task.job)
        };
        let unknown = |cluster: &Cluster| -> Vec<Task> {
            tasks.iter().filter(|task| !is_known(task, cluster)).cloned().collect()
        };
        if !self.stated.is_empty() {
            let cluster = self.node.cluster();
            let others = unknown(&cluster);
            if !others.is_empty() {
                return Err(other_cluster(graph, &others, &cluster));
            }
        }
        let knows_one = |cluster: &Cluster| unknown(cluster).len() < tasks.len();
        let first = limit.min(OTHER_CLUSTER_WAIT);
        let are_there = tasks.is_empty()
            || self.node.wait_for(&tasks, first).await
            || knows_one(&self.node.cluster()) && self.node.wait_for(&tasks, limit.saturating_sub(first)).await;
        if are_there {
            lock(&self.met).extend(tasks.into_iter().map(|task| task.job));
            return Ok(());
        }
        let cluster = self.node.cluster();
        if !knows_one(&cluster) {
            return Err(other_cluster(graph, &tasks, &cluster));
        }
        let missing: Vec<String> =
            tasks.iter().filter(|task| cluster.member(task).is_none()).map(Task::to_string).collect();
        let there: Vec<String> = cluster.tasks().map(Task::to_string).collect();
        let why = format!(
            "the graph names {}, which did not come up within {} s; the tasks that are up: {}",
            missing.join(", "),
            limit.as_secs_f64(),
            there.join(", ")
        );
        Err(Failure::new(Code::Unavailable, why))
    }

    /// The devices of the tasks that a session sees. Waits for tasks of the ClusterSpec that still start, once for each.
    pub async fn list(&self, filters: &[DeviceSpec], names: Option<&Names>) -> ListDevicesResponse {
        match names {
            Some(names) => names.look_for_all(&self.node),
            None => self.wait_for_stated(filters).await,
        }
        let mut response = ListDevicesResponse::default();
        for member in self.node.cluster().members() {
            let name = match names.map(|names| names.of(&member.task)) {
                Some(None) => continue,
                Some(Some(name)) => name,
                None => member.task.clone(),
            };
            let named = |device: &DeviceName| DeviceName { task: name.clone(), ..device.clone() };
            let devices =
                member.devices.iter().map(|device| attributes(member, &named(&device.name), &device.description));
            if self.node.task() == Some(&member.task) {
                response.local_device.extend(devices);
            } else if passes(filters, &name) {
                response.remote_device.extend(devices);
            }
        }
        response
    }

    async fn wait_for_stated(&self, filters: &[DeviceSpec]) {
        let late = lock(&self.late).clone();
        let wanted = |task: &&Task| passes(filters, task) && !late.contains(*task);
        let awaited: Vec<Task> = self.stated.iter().filter(wanted).cloned().collect();
        if awaited.is_empty() || self.node.wait_for(&awaited, TASKS_WAIT).await {
            return;
        }
        let cluster = self.node.cluster();
        lock(&self.late).extend(awaited.into_iter().filter(|task| cluster.member(task).is_none()));
    }
}

/// Whether a session with these filters sees a task.
pub(super) fn passes(filters: &[DeviceSpec], task: &Task) -> bool {
    let device = task.device(DeviceKind::Cpu, 0);
    filters.is_empty() || filters.iter().any(|filter| device.matches(&filter.task_only()))
}

/// TensorFlow's error for a graph whose jobs are not in the cluster: those of `others`.
fn other_cluster(graph: &Graph, others: &[Task], cluster: &Cluster) -> Failure {
    let devices: Vec<String> = cluster.devices().iter().map(full_name).collect();
    let names = |device: &str| {
        let job = device.parse::<DeviceSpec>().ok().and_then(|spec| spec.job);
        job.is_some_and(|job| others.iter().any(|task| task.job == job))
    };
    let node = graph.nodes().map(|(_, node)| node).find(|node| names(&node.device));
    let (name, device) = node.map_or(("", ""), |node| (node.name.as_str(), node.device.as_str()));
    let jobs: BTreeSet<&str> = others.iter().map(|task| task.job.as_str()).collect();
    let why = format!(
        "Cannot assign a device for operation {name}: {name} was explicitly assigned to {device} but available devices are [ {} ]. \
         This cluster has no job {}, which the graph names",
        devices.join(", "),
        jobs.into_iter().collect::<Vec<_>>().join(" and no job ")
    );
    let failure = Failure::invalid(why);
    if let Some(node) = node { failure.at_node(name, node.op.name) } else { failure }
}

/// A device in the form of TensorFlow's clients.
fn attributes(member: &Member, name: &DeviceName, description: &str) -> DeviceAttributes {
    DeviceAttributes {
        name: full_name(name),
        device_type: name.kind.name().to_owned(),
        incarnation: member.incarnation.0,
        physical_device_desc: description.to_owned(),
    }
}
