//! The placement of each node of a pruned graph, and the reason for it.
//!
//! Nodes that must share a device form a group, over the whole graph and not only the nodes that the step runs: a variable is
//! thus on the same device for every step of a session. A group's device satisfies the requests of all its members.
//!
//! Of several devices that satisfy a request, the first of these is chosen: the default device, a device of the default
//! device's task, a CPU, the first by name. So `/job:ps/task:1` means that task's CPU even if it has a GPU. The choice depends
//! on names alone, unless the options ask for a choice by cost ([`by_cost`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use meshtf_tensor::device::{DeviceFacts, DeviceSpec, Task};
use meshtf_tensor::nearest::nearest;
use meshtf_tensor::{DType, Shape, Tensor};

use super::by_cost::{self, Chosen, Estimate, MAX_COPIED_BYTES};
use super::group::Groups;
use super::prune::{Item, ItemOp, PrunedGraph};
use super::{Placement, PlanError, PlanOptions, Why};
use crate::op::Role;
use crate::{Node, NodeId};

/// The devices of the items.
#[derive(Debug)]
pub(super) struct Placed {
    /// Every device of the cluster, sorted by name, without duplicates.
    pub devices: Vec<DeviceFacts>,
    /// The devices that each item runs on, as indices into `devices`, ascending: one, except for an Enter, a NextIteration or a
    /// small constant that is used on several.
    pub of_item: Vec<Vec<usize>>,
    /// Each node that runs, in the graph's order.
    pub placements: Vec<Placement>,
    /// If devices were chosen by cost.
    pub estimate: Option<Estimate>,
}

/// Places every item.
///
/// # Errors
/// NoDevices, NoSuchDevice, Apart, NoSuchColocation: for groups that have a node which runs.
pub(super) fn place(pruned: &PrunedGraph, devices: &[DeviceFacts], options: &PlanOptions) -> Result<Placed, PlanError> {
    let mut devices = devices.to_vec();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices.dedup_by(|later, first| later.name == first.name);
    if devices.is_empty() {
        return Err(PlanError::NoDevices);
    }
    let groups = Groups::of(pruned.graph, options.soft_placement);
    let mut placer = Placer { pruned, groups, devices: &devices, options, chosen: HashMap::new(), by_cost: None };
    placer.choose_by_cost()?;

    let mut homes: Vec<Home> = Vec::with_capacity(pruned.items.len());
    for item in 0..pruned.items.len() {
        let home = match pruned.items[item].op {
            ItemOp::Node(id) => {
                let own = placer.home(id)?;
                match followed(pruned, item).filter(|_| placer.groups.is_single(id)) {
                    Some(with) => Home { device: homes[with].device, why: because_of(pruned, with) },
                    None => own,
                }
            }
            ItemOp::Feed(_, tensor) => placer.home(tensor.node).unwrap_or_else(|_| placer.default_home()),
            ItemOp::Fetch(..) => homes[pruned.items[item].inputs[0].0].clone(),
        };
        homes.push(home);
    }
    let homes = follow_consumers(pruned, &placer, homes);

    let mut placements: Vec<(NodeId, Placement)> = Vec::new();
    for (item, homes) in homes.iter().enumerate() {
        let ItemOp::Node(id) = pruned.items[item].op else { continue };
        let node = pruned.graph.node(id);
        placements.extend(homes.iter().map(|home| {
            let (node, op) = (node.name.clone(), node.op.name.to_owned());
            (id, Placement { node, op, device: devices[home.device].name.clone(), why: home.why.clone() })
        }));
    }
    placements.sort_by_key(|&(id, _)| id);
    let placements = placements.into_iter().map(|(_, placement)| placement).collect();
    let of_item = homes.iter().map(|homes| homes.iter().map(|home| home.device).collect()).collect();
    let estimate = placer.by_cost.map(|chosen| chosen.estimate);
    Ok(Placed { devices, of_item, placements, estimate })
}

/// The device of an item, and the reason for it.
#[derive(Clone, Debug)]
struct Home {
    device: usize,
    why: Why,
}

/// The input whose device an item shares: for an op that uses only its input's shape, unless it requests a device, and for an
/// Exit, whatever it requests.
fn followed(pruned: &PrunedGraph, item: usize) -> Option<usize> {
    let input = pruned.items[item].inputs.first()?.0;
    let node = pruned.node(item)?;
    // A constant has no fixed device: it follows its consumers.
    let looks = node.op.uses_only_shape && node.device.is_empty() && !is_generator(pruned, input);
    (node.op.role == Role::Exit || looks).then_some(input)
}

/// Whether the item is a constant without inputs and control inputs, which may follow its consumers.
fn is_generator(pruned: &PrunedGraph, item: usize) -> bool {
    let Item { inputs, control, .. } = &pruned.items[item];
    inputs.is_empty() && control.is_empty() && pruned.role(item) == Role::Const
}

/// The devices of every item after the items that follow their consumers have moved there: Enter and NextIteration always, so
/// that nothing crosses at the border of a loop or an iteration; a constant that nothing binds to a device, to several devices
/// only if it is small; a feed, if it has consumers on one device only.
fn follow_consumers(pruned: &PrunedGraph, placer: &Placer, homes: Vec<Home>) -> Vec<Vec<Home>> {
    let consumers = consumers(pruned);
    let mut homes: Vec<Vec<Home>> = homes.into_iter().map(|home| vec![home]).collect();
    // From the last to the first, so that consumers move before the items that follow them.
    for item in (0..pruned.items.len()).rev() {
        let role = pruned.role(item);
        let mut most_devices = match pruned.items[item].op {
            ItemOp::Feed(..) => 1,
            ItemOp::Fetch(..) => continue,
            ItemOp::Node(id) => match role {
                Role::Enter | Role::NextIteration => usize::MAX,
                Role::Const if is_generator(pruned, item) && placer.is_free(id) => 1,
                _ => continue,
            },
        };
        if role == Role::Const && pruned.node(item).is_some_and(is_small) {
            most_devices = usize::MAX;
        }
        // The first consumer on each device.
        let mut users: BTreeMap<usize, usize> = BTreeMap::new();
        for &to in &consumers[item] {
            let counts = match role {
                Role::NextIteration => role.leads_back(pruned.role(to)),
                _ => !matches!(pruned.items[to].op, ItemOp::Fetch(..)),
            };
            for home in homes[to].iter().filter(|_| counts) {
                users.entry(home.device).or_insert(to);
            }
        }
        if !users.is_empty() && users.len() <= most_devices {
            let own = homes[item][0].clone();
            let follow = |(device, user): (usize, usize)| match device == own.device {
                true => own.clone(),
                false => Home { device, why: because_of(pruned, user) },
            };
            homes[item] = users.into_iter().map(follow).collect();
        }
    }
    // A fetch is on the device of its value, which may have moved.
    for item in 0..pruned.items.len() {
        if let ItemOp::Fetch(..) = pruned.items[item].op {
            homes[item] = vec![homes[pruned.items[item].inputs[0].0][0].clone()];
        }
    }
    homes
}

fn because_of(pruned: &PrunedGraph, item: usize) -> Why {
    Why::Colocated { with: pruned.tensor_name(item, 0) }
}

fn consumers(pruned: &PrunedGraph) -> Vec<Vec<usize>> {
    let mut consumers: Vec<Vec<usize>> = vec![Vec::new(); pruned.items.len()];
    for (to, item) in pruned.items.iter().enumerate() {
        for from in item.inputs.iter().map(|&(from, _)| from).chain(item.control.iter().copied()) {
            if consumers[from].last() != Some(&to) {
                consumers[from].push(to);
            }
        }
    }
    consumers
}

/// Whether a constant is small enough to be copied to each device that uses it, rather than sent in each step.
fn is_small(node: &Node) -> bool {
    let fixed = |(dtype, shape): (DType, &Shape)| shape.elements()?.checked_mul(dtype.size()?);
    let bytes = node.attrs.tensor_type("value").ok().and_then(fixed);
    let strings = || node.attrs.tensor("value").map_or(usize::MAX, Tensor::byte_len);
    bytes.unwrap_or_else(strings) as u64 <= MAX_COPIED_BYTES
}

/// The choice of devices.
struct Placer<'a> {
    pruned: &'a PrunedGraph<'a>,
    groups: Groups,
    devices: &'a [DeviceFacts],
    options: &'a PlanOptions,
    /// The choice made for each request.
    chosen: HashMap<DeviceSpec, Option<Choice>>,
    /// The choice by cost.
    by_cost: Option<Chosen>,
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    device: usize,
    is_soft: bool,
}

impl Placer<'_> {
    /// Chooses devices by cost, if the options say so.
    ///
    /// # Errors
    /// NoSuchDevice for a variable that was placed before on a device that is not there.
    fn choose_by_cost(&mut self) -> Result<(), PlanError> {
        let Some(by_cost) = &self.options.by_cost else { return Ok(()) };
        let (pruned, devices) = (self.pruned, self.devices);
        let node = |item: &Item| if let ItemOp::Node(id) = item.op { Some(id) } else { None };
        let run: HashSet<NodeId> = pruned.items.iter().filter_map(node).collect();
        for (name, home) in &by_cost.homes {
            let is_gone = devices.iter().all(|device| device.name != *home);
            // A constant is sent again.
            let is_lost = |id: &NodeId| is_gone && run.contains(id) && pruned.graph.node(*id).op.makes_variable;
            if let Some(id) = pruned.graph.find(name).filter(is_lost) {
                return Err(self.no_such_device(id, DeviceSpec::from(home)));
            }
        }
        let groups = std::mem::take(&mut self.groups);
        let by_name = |spec: &DeviceSpec| self.choose(spec).map(|choice| choice.device);
        let chosen = by_cost::choose(pruned.graph, &groups, devices, by_cost, by_name, |id| run.contains(&id));
        (self.groups, self.by_cost) = (groups, chosen);
        Ok(())
    }

    /// Whether the node has neither a request nor a group, so that nothing binds it to a device.
    fn is_free(&self, id: NodeId) -> bool {
        self.groups.is_single(id) && self.groups.requests[id.index()].is_open()
    }

    fn default_home(&mut self) -> Home {
        let device = self.choose(&DeviceSpec::default()).map_or(0, |choice| choice.device);
        Home { device, why: Why::Default }
    }

    fn home(&mut self, id: NodeId) -> Result<Home, PlanError> {
        let graph = self.pruned.graph;
        let group = self.groups.find(id);
        if let Some(fault) = self.groups.fault(graph, group) {
            return Err(fault);
        }
        if let Some(device) = self.by_cost.as_ref().and_then(|chosen| chosen.device(id)) {
            return Ok(Home { device, why: Why::Cost });
        }
        let own = self.groups.requests[id.index()].clone();
        let whole = self.groups.specs[group.index()].clone();
        let Some(Choice { device, is_soft }) = self.choose(&whole.spec) else {
            let is_own = !own.is_open() && self.choose(&own).is_none();
            return Err(self.no_such_device(id, if is_own { own } else { whole.spec }));
        };
        let why = if self.groups.is_single(id) || !own.is_open() {
            let has_own = self.devices[device].name.matches(&own);
            // A node that takes a handle follows it, even to another task.
            let is_moved = self.options.soft_placement && self.devices[device].name.matches(&own.task_only());
            let follows = !is_soft && !has_own && !is_moved;
            match (own.is_open(), is_soft || !has_own) {
                (true, _) => Why::Default,
                _ if follows => Why::Colocated { with: whole.decider(graph, id, group) },
                (false, true) => Why::Soft { requested: own.to_string() },
                (false, false) if self.choose(&own).is_some_and(|alone| alone.device == device) => Why::Requested,
                (false, false) => Why::Colocated { with: whole.decider(graph, id, group) },
            }
        } else if whole.spec.is_open() {
            Why::Default
        } else {
            Why::Colocated { with: whole.decider(graph, id, group) }
        };
        Ok(Home { device, why })
    }

    /// The device that satisfies a request best; with soft placement, a device of the requested task if none does.
    fn choose(&mut self, spec: &DeviceSpec) -> Option<Choice> {
        if let Some(&known) = self.chosen.get(spec) {
            return known;
        }
        let exact = self.first_match(spec).map(|device| Choice { device, is_soft: false });
        let choice = exact.or_else(|| {
            let soft = spec.task_only();
            let soft = if self.options.soft_placement { self.first_match(&soft) } else { None };
            soft.map(|device| Choice { device, is_soft: true })
        });
        self.chosen.insert(spec.clone(), choice);
        choice
    }

    fn first_match(&self, spec: &DeviceSpec) -> Option<usize> {
        let default = &self.options.default_device;
        let names = self.devices.iter().map(|device| &device.name).enumerate();
        let matching = names.filter(|(_, device)| device.matches(spec));
        matching
            .min_by_key(|&(place, device)| {
                (device != default, device.task != default.task, device.kind != default.kind, place)
            })
            .map(|(place, _)| place)
    }

    /// The node whose device string a user wrote: for a constant made of a literal input, its consumer, from which it has its
    /// name and device.
    fn placed_by_user(&self, id: NodeId) -> NodeId {
        let graph = self.pruned.graph;
        let constant = graph.node(id);
        let is_for = |node: &Node| {
            constant.name.strip_prefix(&node.name).is_some_and(|rest| rest.starts_with('/'))
                && node.device == constant.device
                && node.inputs.iter().any(|input| input.node == id)
        };
        if constant.op.role != Role::Const {
            return id;
        }
        graph.nodes().find(|(_, node)| is_for(node)).map_or(id, |(consumer, _)| consumer)
    }

    fn no_such_device(&self, id: NodeId, requested: DeviceSpec) -> PlanError {
        let node = self.pruned.graph.node(self.placed_by_user(id));
        let (hint, is_task_down) = hint(&requested, self.devices);
        PlanError::NoSuchDevice {
            node: node.name.clone(),
            op: node.op.name.to_owned(),
            hint,
            is_task_down,
            requested,
            devices: self.devices.iter().map(|device| device.name.clone()).collect(),
        }
    }
}

/// The remedy for a request that no device satisfies; and whether the request names a task that is down, rather than a device
/// that its task lacks or a misspelt name.
fn hint(requested: &DeviceSpec, devices: &[DeviceFacts]) -> (String, bool) {
    let place = requested.task_only();
    if devices.iter().any(|device| device.name.matches(&place)) {
        let what = match (requested.kind, requested.index) {
            (Some(kind), Some(index)) => format!("{}:{index}", kind.name()),
            (Some(kind), None) => kind.name().to_owned(),
            (None, index) => format!("device {}", index.unwrap_or_default()),
        };
        let has = if place.is_open() { "No task has".to_owned() } else { format!("{place} has no") };
        return (format!("{has} {what}; with soft placement the operation runs on a CPU instead."), false);
    }
    let tasks: BTreeSet<&Task> = devices.iter().map(|device| &device.name.task).collect();
    let meant = meant(&place, tasks.iter().copied());
    if meant.is_empty() {
        let tasks: Vec<String> = tasks.iter().map(|task| task.short()).collect();
        (format!("No node serves {place}; the tasks that are up: {}.", tasks.join(", ")), true)
    } else {
        (format!("No node serves {place}; did you mean {}?", meant.join(" or ")), false)
    }
}

/// The names among `tasks` of which the request may be a misspelling; empty if it names another task of a job that is up: that
/// task is down.
pub fn meant<'a>(requested: &DeviceSpec, tasks: impl IntoIterator<Item = &'a Task>) -> Vec<String> {
    let tasks: Vec<&Task> = tasks.into_iter().collect();
    let Some(job) = &requested.job else { return Vec::new() };
    if tasks.iter().any(|task| task.job == *job) {
        return Vec::new();
    }
    if let Some(task) = requested.task {
        let others: Vec<String> = tasks.iter().map(|task| task.short()).collect();
        let near = nearest(&format!("{job}/{task}"), others.iter().map(String::as_str));
        near.into_iter().map(str::to_owned).collect()
    } else {
        let jobs: BTreeSet<&str> = tasks.iter().map(|task| task.job.as_str()).collect();
        nearest(job, jobs).into_iter().map(|job| format!("/job:{job}")).collect()
    }
}
