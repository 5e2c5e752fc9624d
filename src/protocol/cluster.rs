//! The nodes of a mesh: the information that a node sends about itself, and the snapshot of all of them on which planning
//! works.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use meshtf_tensor::device::{Capacity, DeviceFacts, DeviceName, Rates, Task};
use serde::{Deserialize, Serialize};

use super::{Incarnation, Peer};

/// A device as its node advertises it.
///
/// ```
/// use meshtf::{BackendChoice, Client, LocalCluster, Task};
///
/// let task = Task::new("local", 0);
/// let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex)?.cluster();
/// let cpu = &cluster.member(&task).unwrap().devices[0];
/// assert_eq!((cpu.name.to_string().as_str(), cpu.backend.as_str()), ("/job:local/task:0/device:CPU:0", "flex"));
/// println!("{}: {}, {:?} threads", cpu.name, cpu.description, cpu.capacity.cores);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its full name.
    pub name: DeviceName,
    /// burn backend that serves it: `flex`, `ndarray`, `wgpu`.
    pub backend: String,
    /// A description for people: a processor or adapter name.
    pub description: String,
    /// Its memory and processors. They follow the header of a Hello (`Hello::capacities`), where a node of an earlier release
    /// does not look for them.
    #[serde(skip)]
    pub capacity: Capacity,
}

impl DeviceInfo {
    /// The facts that the planner may know of it.
    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts { name: self.name.clone(), backend: self.backend.clone(), capacity: self.capacity }
    }

    /// A device of which only the name is known.
    #[cfg(test)]
    pub fn named(name: DeviceName) -> Self {
        DeviceInfo { name, backend: String::new(), description: String::new(), capacity: Capacity::default() }
    }
}

/// A node that the sender is connected with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPeer {
    /// Its PeerId.
    pub peer: Peer,
    /// The task it holds: it is up, whether or not the receiver can reach it.
    pub task: Task,
    /// Multiaddrs at which the receiver may reach it; there may be none.
    pub addresses: Vec<String>,
}

/// The self-description of a participant: sent first on every connection, and on change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of the protocol that it speaks: [`VERSION`](super::VERSION).
    pub version: u16,
    /// The mesh's name; other meshes are refused.
    pub mesh: String,
    /// The task it holds; `None` for a client, which hosts nothing.
    pub task: Option<Task>,
    /// A random number drawn at its start.
    pub incarnation: Incarnation,
    /// The devices of its task; none for a client.
    pub devices: Vec<DeviceInfo>,
    /// Multiaddrs it listens on.
    pub addresses: Vec<String>,
    /// When it started, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Since when it claims its task: since its start, or since it woke from a suspension in which its peers took it for dead.
    pub claims_since_unix_ms: u64,
    /// Whether it has held its task long enough that every peer could object. Of two that claim one task, the settled one keeps
    /// it.
    pub settled: bool,
    /// The nodes it is connected with, so that all participants meet each other.
    pub peers: Vec<KnownPeer>,
    /// Nodes that its peers are connected with and it cannot reach.
    pub out_of_reach: Vec<Peer>,
    /// The addresses, `host:port`, at which TensorFlow's clients reach it. They follow the rates of its devices, where a node of
    /// an earlier release does not look for them.
    #[serde(skip)]
    pub doors: Vec<String>,
    /// It takes the name of a task that is lost. That follows the doors, where a node of an earlier release does not look for it.
    #[serde(skip)]
    pub is_spare: bool,
}

/// Most addresses of [`Hello::doors`], and bytes of one.
pub const MAX_DOORS: usize = 8;
const MAX_DOOR_BYTES: usize = 300;

/// The addresses at which TensorFlow's clients reach the node of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskDoors {
    /// The task.
    pub task: Task,
    /// `host:port`: where it listens, and its address in the ClusterSpec of its cluster.
    pub doors: Vec<String>,
    /// The IP addresses of its machine, as far as it names them.
    pub machine: Vec<IpAddr>,
    /// Whether it is on this machine.
    pub is_here: bool,
}

impl Hello {
    /// The capacities of its devices, in their order; `None` if none is known.
    pub fn capacities(&self) -> Option<Vec<Capacity>> {
        let capacities: Vec<Capacity> = self.devices.iter().map(|device| device.capacity).collect();
        capacities.iter().any(|capacity| *capacity != Capacity::default()).then_some(capacities)
    }

    /// The rates of its devices, in their order; `None` if none is known.
    pub fn rates(&self) -> Option<Vec<Option<Rates>>> {
        let rates: Vec<Option<Rates>> = self.devices.iter().map(|device| device.capacity.rates).collect();
        rates.iter().any(Option::is_some).then_some(rates)
    }

    /// Takes the capacities and the rates that a peer sent after its Hello: of each, one for each device, or none.
    /// Implausible numbers count as unknown.
    pub fn set_capacities(&mut self, capacities: &[Capacity], rates: &[Option<Rates>]) {
        if capacities.len() != self.devices.len() {
            return;
        }
        for (index, (device, capacity)) in self.devices.iter_mut().zip(capacities).enumerate() {
            let rates = if rates.len() == capacities.len() { rates[index] } else { None };
            device.capacity = Capacity { rates, ..*capacity }.checked();
        }
    }

    /// Takes the addresses of doors that a peer sent after its Hello, as far as they keep the limits.
    pub fn set_doors(&mut self, mut doors: Vec<String>) {
        doors.retain(|door| door.len() <= MAX_DOOR_BYTES);
        doors.truncate(MAX_DOORS);
        self.doors = doors;
    }
}

/// A node of the cluster: a task and the peer that holds it.
///
/// ```
/// use meshtf::status::{Cluster, DeviceKind, Member};
/// use meshtf::{BackendChoice, Client, LocalCluster, Task};
///
/// fn has_gpu(member: &Member) -> bool {
///     member.devices.iter().any(|device| device.name.kind == DeviceKind::Gpu)
/// }
///
/// let tasks = [Task::new("worker", 0), Task::new("worker", 1)];
/// let cluster = LocalCluster::start(&tasks, BackendChoice::Flex)?.cluster();
/// assert!(!cluster.members().any(has_gpu));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The task.
    pub task: Task,
    /// The peer that holds it.
    pub peer: Peer,
    /// The random number of the process that holds it.
    pub incarnation: Incarnation,
    /// Its devices.
    pub devices: Vec<DeviceInfo>,
    /// Multiaddrs that it listens on.
    pub addresses: Vec<String>,
    /// When it started, in milliseconds since 1970.
    pub since_unix_ms: u64,
}

/// The tasks of a mesh and their holders: an immutable snapshot.
///
/// ```
/// use meshtf::{BackendChoice, Client, LocalCluster, Task};
///
/// let tasks = [Task::new("worker", 0), Task::new("ps", 0)];
/// let cluster = LocalCluster::start(&tasks, BackendChoice::Flex)?.cluster();
/// let names: Vec<String> = cluster.tasks().map(Task::short).collect();
/// assert_eq!(names, ["ps/0", "worker/0"]);
/// assert_eq!(cluster.devices()[0].to_string(), "/job:ps/task:0/device:CPU:0");
/// assert!(cluster.member(&Task::new("worker", 1)).is_none());
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    members: BTreeMap<Task, Member>,
    /// Pairs of tasks of which the first reports that it cannot reach the second, though both are up.
    apart: BTreeSet<(Task, Task)>,
}

impl Member {
    /// The IP addresses by which other machines reach it.
    pub(crate) fn machine(&self) -> BTreeSet<&str> {
        let parts = self.addresses.iter().filter_map(|address| {
            let mut parts = address.split('/').skip(1);
            let (kind, ip) = (parts.next()?, parts.next()?);
            let is_loopback = ip.starts_with("127.") || ip == "::1";
            (matches!(kind, "ip4" | "ip6") && !is_loopback).then_some(ip)
        });
        parts.collect()
    }
}

impl Cluster {
    /// The cluster of these members, one for each task.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Self {
        let members = members.into_iter().map(|member| (member.task.clone(), member)).collect();
        Cluster { members, apart: BTreeSet::new() }
    }

    /// The same snapshot with pairs of tasks of which the first reports that it cannot reach the second.
    #[must_use]
    pub fn with_apart(mut self, apart: impl IntoIterator<Item = (Task, Task)>) -> Self {
        self.apart = apart.into_iter().collect();
        self
    }

    /// Pairs of tasks of which the first cannot reach the second, though both are up.
    pub fn apart(&self) -> impl Iterator<Item = &(Task, Task)> {
        self.apart.iter()
    }

    /// The pair of these two of which the first reports that it cannot reach the second, if there is one.
    pub fn are_apart<'a>(&self, one: &'a Task, other: &'a Task) -> Option<(&'a Task, &'a Task)> {
        let says = |from: &Task, to: &Task| !self.apart.is_empty() && self.apart.contains(&(from.clone(), to.clone()));
        match (says(one, other), says(other, one)) {
            (true, _) => Some((one, other)),
            (_, true) => Some((other, one)),
            _ => None,
        }
    }

    /// The member that is to keep something for a task: the next by name, on another machine if there is one, of those that the
    /// task reaches and that `fits` holds for.
    pub(crate) fn buddy(&self, task: &Task, fits: impl Fn(&Member) -> bool) -> Option<&Member> {
        let own = self.member(task).map(Member::machine).unwrap_or_default();
        let is_here = |member: &Member| own.is_empty() || member.machine().iter().any(|ip| own.contains(ip));
        let others = self.members().filter(|member| fits(member) && self.are_apart(task, &member.task).is_none());
        others.min_by_key(|member| (is_here(member), member.task <= *task, member.task.clone()))
    }

    /// The members, in the order of their tasks.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The member that holds that task, if there is one.
    pub fn member(&self, task: &Task) -> Option<&Member> {
        self.members.get(task)
    }

    /// The member of that peer, if it holds a task.
    pub fn member_of(&self, peer: &Peer) -> Option<&Member> {
        self.members.values().find(|member| member.peer == *peer)
    }

    /// The tasks, in their order.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.members.keys()
    }

    /// Every device of every task, in the order of their names.
    pub fn devices(&self) -> Vec<DeviceName> {
        self.members.values().flat_map(|member| member.devices.iter().map(|device| device.name.clone())).collect()
    }

    /// The facts about every device of every task, in the order of their names.
    pub fn facts(&self) -> Vec<DeviceFacts> {
        self.members.values().flat_map(|member| member.devices.iter().map(DeviceInfo::facts)).collect()
    }

    /// The machine of each task, as a number. Tasks of which one has all addresses of the other are on one machine; one address
    /// in common is not enough, since bridges of containers have the same on every machine. So are those that no other machine
    /// reaches.
    #[doc(hidden)]
    pub fn machines(&self) -> BTreeMap<Task, usize> {
        let mut machines: Vec<BTreeSet<&str>> = Vec::new();
        let mut numbers = BTreeMap::new();
        for member in self.members.values() {
            let own = member.machine();
            let is_same =
                |of: &BTreeSet<&str>| of.is_empty() == own.is_empty() && (of.is_subset(&own) || own.is_subset(of));
            let number = machines.iter().position(is_same).unwrap_or(machines.len());
            match machines.get_mut(number) {
                Some(known) => known.extend(own),
                None => machines.push(own),
            }
            numbers.insert(member.task.clone(), number);
        }
        numbers
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_that_each_machine_has_does_not_make_them_one() {
        let member = |index: u32, ips: &[&str]| {
            let task = Task::new("t", index);
            let addresses = ips.iter().map(|ip| format!("/ip4/{ip}/tcp/1")).collect();
            Member { addresses, ..Member::bare(task.clone(), Peer::new(&*task.short()), Incarnation(1)) }
        };
        let machines = |members: &[(u32, &[&str])]| {
            let cluster = Cluster::new(members.iter().map(|&(index, ips)| member(index, ips)));
            cluster.machines().into_values().collect::<Vec<_>>()
        };
        let docker = "172.17.0.1";
        let of = machines(&[(0, &["10.0.0.1", docker]), (1, &["10.0.0.2", docker]), (2, &["10.0.0.1"])]);
        assert_eq!(of, [0, 1, 0]);
        // Only on this machine, and by no address.
        assert_eq!(machines(&[(0, &["127.0.0.1"]), (1, &[]), (2, &["10.0.0.1"])]), [0, 0, 1]);
    }
}
