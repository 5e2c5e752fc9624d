//! The names of a session that brings its own cluster (`ConfigProto.cluster_def`).
//!
//! TensorFlow calls this ClusterSpec propagation: the tasks have, for that session alone, the names that its client gives them,
//! by their addresses. Here an address is that of a door, which the nodes of a mesh state to each other. The session's names
//! become the mesh's names where a graph comes in, and the mesh's names become the session's where a failure, a trace or a list
//! of devices goes out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use futures::StreamExt as _;
use meshtf_graph::{Function, FunctionBody, NodeDef};
use meshtf_tensor::device::{DeviceKind, DeviceName, DeviceSpec, Task};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;

use super::message::ClusterDef;
use super::trace::full_name;
use crate::node::Node;
use crate::protocol::TaskDoors;

/// Maximum number of tasks in the cluster of a session.
const MAX_TASKS: usize = 4096;
/// How many names of machines are looked up at a time, and how long one may take.
const LOOKUPS: usize = 16;
const MAX_LOOKUP: Duration = Duration::from_secs(3);

/// The names of a session with a cluster of its own.
#[derive(Debug)]
pub(super) struct Names {
    tasks: BTreeMap<Task, Address>,
    /// The session's name of this node, and the mesh's.
    own: (Task, Task),
    /// The mesh's name of each task that was found, by the session's.
    found: Mutex<BTreeMap<Task, Task>>,
}

/// Where a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    /// As the client wrote it.
    text: String,
    port: u16,
    /// The addresses of its machine.
    ips: Vec<IpAddr>,
}

impl Address {
    fn read(text: &str) -> Result<Address> {
        let text = text.strip_prefix("grpc://").unwrap_or(text);
        let port = text.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let port = port.ok_or_else(|| {
            Failure::invalid(format!("cluster_def: {text:?} is not the address of a server, host:port"))
        })?;
        Ok(Address { text: text.to_owned(), port, ips: Vec::new() })
    }

    /// Looks up the name of its machine. A name that is not known has no addresses.
    async fn looked_up(mut self) -> Address {
        let found = tokio::time::timeout(MAX_LOOKUP, tokio::net::lookup_host(self.text.clone())).await;
        if let Ok(Ok(found)) = found {
            self.ips = found.map(|address| address.ip().to_canonical()).collect();
        }
        self
    }

    /// Whether it leads to the doors of a task: it is stated as one, or it is the same port of the same machine.
    fn leads_to(&self, other: &TaskDoors, here: &[IpAddr]) -> bool {
        let is_stated = |door: &String| *door == self.text;
        let has_port = |door: &String| door.rsplit_once(':').is_some_and(|(_, port)| port.parse() == Ok(self.port));
        let is_there = |ip: &IpAddr| match ip.is_loopback() || here.contains(ip) {
            true => other.is_here,
            false => other.machine.contains(ip),
        };
        // A loopback address is another machine's if a node there states it.
        let may_be_stated = other.is_here || !self.ips.iter().any(IpAddr::is_loopback);
        may_be_stated && other.doors.iter().any(is_stated)
            || other.doors.iter().any(has_port) && self.ips.iter().any(is_there)
    }
}

impl Names {
    /// The names that a client gives to the tasks of a mesh; `own` is this node's task.
    ///
    /// # Errors
    /// InvalidArgument if they are not a cluster that this node belongs to.
    pub async fn new(cluster: &ClusterDef, own: &Task, node: &Node) -> Result<Names> {
        let tasks = read(cluster)?;
        let looked_up = futures::stream::iter(tasks).map(async |(task, address)| (task, address.looked_up().await));
        let tasks: BTreeMap<Task, Address> = looked_up.buffer_unordered(LOOKUPS).collect().await;
        Names::among(tasks, own, &node.mesh().doors())
    }

    fn among(tasks: BTreeMap<Task, Address>, own: &Task, doors: &[TaskDoors]) -> Result<Names> {
        let here = doors.iter().find(|one| one.task == *own);
        let ips: Vec<IpAddr> = here.map(|here| here.machine.clone()).unwrap_or_default();
        let is_own = |address: &Address| here.is_some_and(|here| address.leads_to(here, &ips));
        let mut named = tasks.iter().filter(|(_, address)| is_own(address)).map(|(task, _)| task);
        match (named.next().cloned(), named.next()) {
            (Some(name), None) => {
                let found = Mutex::new(BTreeMap::from([(name.clone(), own.clone())]));
                Ok(Names { tasks, own: (name, own.clone()), found })
            }
            (Some(one), Some(other)) => Err(Failure::invalid(format!(
                "Found multiple matching tasks that correspond to the master: {one} and {other} of the session's \
                 cluster_def are both this server; name it once"
            ))),
            (None, _) => {
                let stated = here.map(|here| here.doors.join(" or ")).unwrap_or_default();
                let all: Vec<String> = tasks.values().map(|address| address.text.clone()).collect();
                Err(Failure::invalid(format!(
                    "The master (current machine) is not included in the provided cluster_def: this server is {stated}, \
                     and the session's cluster_def has {}",
                    all.join(", ")
                )))
            }
        }
    }

    /// The mesh's name of a session's task, if its node is in the mesh now.
    ///
    /// # Errors
    /// InvalidArgument if several nodes are at its address, or if its node has another name in the session already.
    fn look_for(&self, task: &Task, doors: &[TaskDoors]) -> Result<Option<Task>> {
        let Some(address) = self.tasks.get(task) else { return Ok(None) };
        let mut found = lock(&self.found);
        if let Some(known) = found.get(task) {
            return Ok(Some(known.clone()));
        }
        let here: Vec<IpAddr> =
            doors.iter().filter(|one| one.is_here).flat_map(|one| one.machine.iter().copied()).collect();
        let mut there = doors.iter().filter(|one| address.leads_to(one, &here)).map(|one| &one.task);
        let (Some(name), second) = (there.next(), there.next()) else { return Ok(None) };
        if let Some(second) = second {
            let why = format!(
                "{task} of the session's cluster_def is at {}, and both {name} and {second} of the mesh serve clients at \
                 that address; give each its own port",
                address.text
            );
            return Err(Failure::invalid(why));
        }
        if let Some((other, _)) = found.iter().find(|(_, known)| *known == name) {
            let why = format!("{other} and {task} of the session's cluster_def are one server, {name} of the mesh");
            return Err(Failure::invalid(why));
        }
        found.insert(task.clone(), name.clone());
        Ok(Some(name.clone()))
    }

    /// Waits until the nodes of these tasks are in the mesh.
    ///
    /// # Errors
    /// Unavailable, with the tasks and their addresses, if some are not there in time; and as [`Names::look_for`].
    pub async fn find(&self, wanted: &BTreeSet<Task>, node: &Node, limit: Duration) -> Result<()> {
        let mut wrong = None;
        let mut missing: Vec<&Task> = Vec::new();
        let are_there = node.wait_until(limit, || {
            let doors = node.mesh().doors();
            missing = wanted
                .iter()
                .filter(|task| match self.look_for(task, &doors) {
                    Ok(there) => there.is_none(),
                    Err(failure) => {
                        wrong.get_or_insert(failure);
                        false
                    }
                })
                .collect();
            wrong.is_some() || missing.is_empty()
        });
        let are_there = are_there.await;
        if let Some(failure) = wrong {
            return Err(failure);
        }
        if are_there {
            return Ok(());
        }
        let shown = |task: &&Task| {
            let address = self.tasks.get(task).map_or("?", |address| address.text.as_str());
            format!("{task} at {address}")
        };
        let doors = node.mesh().doors();
        let there: Vec<String> =
            doors.iter().map(|one| format!("{} at {}", one.task.short(), one.doors.join(" or "))).collect();
        let why = format!(
            "the graph names {} of the session's cluster_def, where no node of the mesh was found within {} s; the nodes \
             with a server for clients: {}",
            missing.iter().map(shown).collect::<Vec<_>>().join(", "),
            limit.as_secs_f64(),
            there.join(", ")
        );
        Err(Failure::new(Code::Unavailable, why))
    }

    /// The tasks of the session that a graph names.
    ///
    /// # Errors
    /// InvalidArgument if a device is of no task of the session.
    pub fn named_by(&self, nodes: &[NodeDef], filters: &[DeviceSpec]) -> Result<BTreeSet<Task>> {
        let mut all = BTreeSet::new();
        let devices: BTreeMap<&str, &NodeDef> = nodes.iter().map(|node| (node.device.as_str(), node)).collect();
        for (device, node) in devices {
            all.extend(self.chosen(device, filters).map_err(|failure| failure.at_node(&node.name, &node.op))?);
        }
        for node in nodes {
            for function in node.attrs.0.values().flat_map(|attr| attr.held_functions()) {
                all.extend(self.named_by(&function.nodes, filters)?);
            }
        }
        Ok(all)
    }

    /// Gives the devices of nodes, and of the functions that they call, the mesh's names. Their tasks have been found.
    ///
    /// # Errors
    /// As [`Names::named_by`].
    pub fn rename(&self, nodes: &mut [NodeDef], filters: &[DeviceSpec]) -> Result<()> {
        for node in nodes {
            if let Some(task) = self.chosen(&node.device, filters)? {
                let spec: DeviceSpec = node.device.parse().unwrap_or_default();
                let found = lock(&self.found).get(&task).cloned();
                let Task { job, index } = found.ok_or_else(|| lost(&task))?;
                node.device = DeviceSpec { job: Some(job), task: Some(index), ..spec }.to_string();
            }
            for attr in node.attrs.0.values_mut() {
                for function in attr.held_functions_mut() {
                    if !self.named_by(&function.nodes, filters)?.is_empty() {
                        let mut body = FunctionBody::clone(function);
                        self.rename(&mut body.nodes, filters)?;
                        *function = Function::new(body);
                    }
                }
            }
        }
        Ok(())
    }

    /// The session's task for a device string, if that asks for one. Of several, TensorFlow prefers the master, and else the
    /// first.
    fn chosen(&self, device: &str, filters: &[DeviceSpec]) -> Result<Option<Task>> {
        // A device string that is none is reported with its node when the graph is read.
        let Ok(spec) = device.parse::<DeviceSpec>() else { return Ok(None) };
        if spec.job.is_none() && spec.task.is_none() {
            return Ok(None);
        }
        let wants = spec.task_only();
        let matches = |task: &&Task| {
            let cpu = task.device(DeviceKind::Cpu, 0);
            let is_own = **task == self.own.0;
            let passes = is_own || filters.is_empty() || filters.iter().any(|one| cpu.matches(&one.task_only()));
            passes && cpu.matches(&wants)
        };
        let own = Some(&self.own.0).filter(matches);
        own.or_else(|| self.tasks.keys().find(matches)).cloned().map(Some).ok_or_else(|| {
            let all: Vec<String> = self.tasks.keys().map(|task| full_name(&task.device(DeviceKind::Cpu, 0))).collect();
            Failure::invalid(format!(
                "Cannot assign a device for operation: it was explicitly assigned to {device} but available devices are \
                 [ {} ], those of the session's cluster_def",
                all.join(", ")
            ))
        })
    }

    /// The session's name of a task of the mesh, if it has one.
    pub fn of(&self, task: &Task) -> Option<Task> {
        lock(&self.found).iter().find(|(_, known)| *known == task).map(|(name, _)| name.clone())
    }

    /// Looks for the tasks of which no graph has spoken yet, without waiting.
    pub fn look_for_all(&self, node: &Node) {
        let doors = node.mesh().doors();
        for task in self.tasks.keys() {
            let _not_there = self.look_for(task, &doors);
        }
    }

    /// A device with the session's name of its task.
    pub fn device(&self, name: DeviceName) -> DeviceName {
        match self.of(&name.task) {
            Some(task) => DeviceName { task, ..name },
            None => name,
        }
    }

    /// A failure in the session's names.
    pub fn failure(&self, mut failure: Failure) -> Failure {
        let found = lock(&self.found).clone();
        failure.message = renamed(&failure.message, &found);
        for name in [&mut failure.device, &mut failure.task].into_iter().flatten() {
            *name = renamed(name, &found);
        }
        failure
    }
}

/// The tasks of a cluster and their addresses.
fn read(cluster: &ClusterDef) -> Result<BTreeMap<Task, Address>> {
    let mut tasks: BTreeMap<Task, Address> = BTreeMap::new();
    let count: usize = cluster.job.iter().map(|job| job.tasks.len()).sum();
    if count > MAX_TASKS {
        return Err(Failure::invalid(format!("cluster_def has {count} tasks, more than {MAX_TASKS}")));
    }
    for job in &cluster.job {
        for (index, address) in &job.tasks {
            let task: Task = format!("{}/{index}", job.name)
                .parse()
                .map_err(|error| Failure::invalid(format!("cluster_def: {error}")))?;
            let address = Address::read(address)?;
            if let Some((other, _)) = tasks.iter().find(|(_, known)| known.text == address.text) {
                let why = format!("cluster_def: {} is the address of both {other} and {task}", address.text);
                return Err(Failure::invalid(why));
            }
            if tasks.insert(task.clone(), address).is_some() {
                return Err(Failure::invalid(format!("cluster_def: {task} is listed twice")));
            }
        }
    }
    Ok(tasks)
}

fn lost(task: &Task) -> Failure {
    Failure::new(Code::Unavailable, format!("{task} of the session's cluster_def was not found in the mesh"))
}

/// A text in which each name of a task of the mesh, `/job:a/task:1` or `/job:a/replica:0/task:1`, is the session's.
fn renamed(text: &str, found: &BTreeMap<Task, Task>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/job:") {
        let (before, name) = rest.split_at(at);
        out.push_str(before);
        let job: &str =
            name["/job:".len()..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or("");
        let after_job = &name["/job:".len() + job.len()..];
        let replica = if after_job.starts_with("/replica:0") { "/replica:0" } else { "" };
        let number = after_job[replica.len()..].strip_prefix("/task:");
        let digits = number.map_or("", |number| &number[..number.bytes().take_while(u8::is_ascii_digit).count()]);
        let theirs = digits.parse().ok().and_then(|index| {
            let task = Task::new(job, index);
            found.iter().find(|(_, known)| **known == task).map(|(name, _)| name)
        });
        match theirs {
            Some(Task { job: own, index }) => {
                out.push_str(&format!("/job:{own}{replica}/task:{index}"));
                rest = &after_job[replica.len() + "/task:".len() + digits.len()..];
            }
            None => {
                out.push_str("/job:");
                rest = &name["/job:".len()..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::super::message::JobDef;
    use super::*;

    fn cluster(jobs: &[(&str, &[(i32, &str)])]) -> ClusterDef {
        let job = |(name, tasks): &(&str, &[(i32, &str)])| JobDef {
            name: (*name).to_owned(),
            tasks: tasks.iter().map(|(index, address)| (*index, (*address).to_owned())).collect(),
        };
        ClusterDef { job: jobs.iter().map(job).collect() }
    }

    fn doors(task: (&str, u32), doors: &[&str], machine: &str, is_here: bool) -> TaskDoors {
        TaskDoors {
            task: Task::new(task.0, task.1),
            doors: doors.iter().map(|&door| door.to_owned()).collect(),
            machine: vec![machine.parse().unwrap()],
            is_here,
        }
    }

    /// Addresses whose machines are numbers are looked up without a network.
    async fn names(cluster: &ClusterDef, doors: &[TaskDoors]) -> Result<Names> {
        let mut tasks = BTreeMap::new();
        for (task, address) in read(cluster)? {
            let is_number = address.text.parse::<std::net::SocketAddr>().is_ok();
            tasks.insert(task, if is_number { address.looked_up().await } else { address });
        }
        Names::among(tasks, &doors[0].task, doors)
    }

    fn node(device: &str) -> NodeDef {
        NodeDef { name: "x".into(), op: "NoOp".into(), device: device.into(), ..NodeDef::default() }
    }

    #[tokio::test]
    async fn tasks_are_found_by_the_addresses_of_their_doors() {
        let mesh = [
            doors(("worker", 0), &["127.0.0.1:2222", "a.example:2222"], "10.0.0.1", true),
            doors(("worker", 1), &["127.0.0.1:2223"], "10.0.0.1", true),
            doors(("ps", 4), &["127.0.0.1:2222"], "10.0.0.2", false),
        ];
        let sparse = cluster(&[("elastic", &[(7, "127.0.0.1:2222"), (9, "10.0.0.1:2223"), (11, "10.0.0.2:2222")])]);
        let names = names(&sparse, &mesh).await.unwrap();
        let check = |index: u32, want: Option<(&str, u32)>| {
            let found = names.look_for(&Task::new("elastic", index), &mesh).unwrap();
            assert_eq!(found, want.map(|(job, index)| Task::new(job, index)), "{index}");
        };
        check(7, Some(("worker", 0)));
        check(9, Some(("worker", 1)));
        check(11, Some(("ps", 4)));
        check(8, None);

        let mut graph =
            [node("/job:elastic/replica:0/task:11/device:CPU:0"), node("/job:elastic"), node("/cpu:0"), node("")];
        let wanted = names.named_by(&graph, &[]).unwrap();
        assert_eq!(wanted, BTreeSet::from([Task::new("elastic", 7), Task::new("elastic", 11)]));
        names.rename(&mut graph, &[]).unwrap();
        let renamed: Vec<&str> = graph.iter().map(|node| node.device.as_str()).collect();
        assert_eq!(renamed, ["/job:ps/task:4/device:CPU:0", "/job:worker/task:0", "/cpu:0", ""]);

        // The mesh's own names are none of the session's.
        let refused = names.named_by(&[node("/job:ps/task:4")], &[]).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.contains("/job:elastic/replica:0/task:11/device:CPU:0"), "{refused}");
        let only: DeviceSpec = "/job:elastic/task:9".parse().unwrap();
        assert!(names.named_by(&[node("/job:elastic/task:11")], &[only]).is_err());

        let failure =
            Failure::invalid("from /job:ps/task:4 to /job:ps/task:40 and /job:worker/replica:0/task:1/device:CPU:0");
        let failure = names.failure(failure.on_device("/job:ps/task:4/device:CPU:0"));
        assert_eq!(
            failure.message,
            "from /job:elastic/task:11 to /job:ps/task:40 and /job:elastic/replica:0/task:9/device:CPU:0"
        );
        assert_eq!(failure.device.as_deref(), Some("/job:elastic/task:11/device:CPU:0"));
    }

    #[tokio::test]
    async fn clusters_that_are_none_are_refused() {
        let mesh = [
            doors(("worker", 0), &["127.0.0.1:2222", "a.example:2222"], "10.0.0.1", true),
            doors(("worker", 1), &["127.0.0.1:2223"], "10.0.0.1", true),
        ];
        let check = async |jobs: &[(&str, &[(i32, &str)])], says: &str| {
            let refused = names(&cluster(jobs), &mesh).await.unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument);
            assert!(refused.message.contains(says), "{refused}");
        };
        check(&[("a", &[(0, "127.0.0.1:2223")])], "is not included in the provided cluster_def").await;
        check(&[], "is not included").await;
        check(&[("a", &[(0, "127.0.0.1:2222"), (1, "10.0.0.1:2222")])], "Found multiple matching tasks").await;
        check(&[("a", &[(0, "127.0.0.1:2222"), (1, "127.0.0.1:2222")])], "the address of both").await;
        check(&[("a", &[(-1, "127.0.0.1:2222")])], "a/-1").await;
        check(&[("9", &[(0, "127.0.0.1:2222")])], "9/0").await;
        check(&[("a", &[(0, "127.0.0.1")])], "host:port").await;
        let all = cluster(&[("a", &[(0, "a.example:2222"), (1, "127.0.0.1:2223"), (2, "10.0.0.1:2223")])]);
        let twice = names(&all, &mesh).await.unwrap();
        assert!(twice.look_for(&Task::new("a", 1), &mesh).unwrap().is_some());
        let refused = twice.look_for(&Task::new("a", 2), &mesh).unwrap_err();
        assert!(refused.message.contains("are one server, /job:worker/task:1"), "{refused}");
    }
}
