//! Where each node of a step runs, and why.
//!
//! Nodes that must share a device (a reference to a variable or a handle of state leads from one to the other, or a
//! `_class` attribute says so) form a group, over the whole graph and not only what the step runs: so a variable is on the
//! same device for every step of a session. A group's device answers all its members' requests at once.
//!
//! Of several devices that answer a request, the first of these is taken: the default device, a device of the default
//! device's task, a CPU, the first by name. So `/job:ps/task:1` means that task's CPU even where it has a GPU.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::prune::{Item, ItemOp, Step, is_back_edge};
use super::{DeviceKind, DeviceName, DeviceSpec, Placement, PlanError, PlanOptions, Why};
use crate::graph::{Attr, Graph, Node, NodeId};
use crate::nearest::nearest;
use crate::tensor::DType;

/// Most bytes of a constant that is copied to each device that uses it.
const MAX_COPIED_BYTES: usize = 64 << 10;

/// The devices of a step's items.
#[derive(Debug)]
pub(super) struct Placed {
    /// Every device of the cluster, in the order of their names, each once.
    pub devices: Vec<DeviceName>,
    /// The devices that each item runs on, as places in `devices`, ascending: one, but for an Enter, a NextIteration or a
    /// small constant that is used on several.
    pub of_item: Vec<Vec<usize>>,
    /// Each node that runs, in the graph's order.
    pub placements: Vec<Placement>,
}

/// Places every item.
///
/// # Errors
/// NoDevices, NoSuchDevice, Apart, NoSuchColocation: for groups that have a node which runs.
pub(super) fn place(step: &Step, devices: &[DeviceName], options: &PlanOptions) -> Result<Placed, PlanError> {
    let devices: Vec<DeviceName> = devices.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    if devices.is_empty() {
        return Err(PlanError::NoDevices);
    }
    let groups = Groups::of(step.graph, options.soft_placement);
    let mut placer = Placer { step, groups, devices: &devices, options, chosen: HashMap::new() };

    let mut homes: Vec<Home> = Vec::with_capacity(step.items.len());
    for item in 0..step.items.len() {
        let home = match step.items[item].op {
            ItemOp::Node(id) => match followed(step, item).filter(|_| placer.is_free(id)) {
                Some(with) => Home { why: Why::Colocated { with: step.tensor_name(with, 0) }, ..homes[with].clone() },
                None => placer.home(id)?,
            },
            ItemOp::Feed(_, tensor) => placer.home(tensor.node).unwrap_or_else(|_| placer.default_home()),
            ItemOp::Fetch(..) => homes[step.items[item].inputs[0].0].clone(),
        };
        homes.push(home);
    }
    let homes = follow_consumers(step, &placer, homes);

    let mut placements: Vec<(NodeId, Placement)> = Vec::new();
    for (item, homes) in homes.iter().enumerate() {
        let ItemOp::Node(id) = step.items[item].op else { continue };
        let node = step.graph.node(id);
        placements.extend(homes.iter().map(|home| {
            let (node, op) = (node.name.clone(), node.op.name.to_owned());
            (id, Placement { node, op, device: devices[home.device].clone(), why: home.why.clone() })
        }));
    }
    placements.sort_by_key(|&(id, _)| id);
    let placements = placements.into_iter().map(|(_, placement)| placement).collect();
    let of_item = homes.iter().map(|homes| homes.iter().map(|home| home.device).collect()).collect();
    Ok(Placed { devices, of_item, placements })
}

/// Where an item runs, and why.
#[derive(Clone, Debug)]
struct Home {
    device: usize,
    why: Why,
}

/// The input whose device an item takes unless it requests another: what only looks at its input's shape goes where
/// the input is, and what only hands a value out of a loop stays in the loop's place, whatever it requests.
fn followed(step: &Step, item: usize) -> Option<usize> {
    let input = step.items[item].inputs.first()?.0;
    let node = step.node(item)?;
    match node.op.name {
        "Exit" | "RefExit" => Some(input),
        "Shape" | "ShapeN" | "Size" if node.device.is_empty() => {
            // A constant has no place of its own: it goes where it is used.
            Some(input).filter(|&input| !is_generator(step, input))
        }
        _ => None,
    }
}

/// Whether the item is a constant that depends on nothing and nothing binds to a place: it goes where it is used.
fn is_generator(step: &Step, item: usize) -> bool {
    let Item { inputs, control, .. } = &step.items[item];
    inputs.is_empty() && control.is_empty() && step.node(item).is_some_and(|node| node.op.name == "Const")
}

/// Where every item runs, after those that go where they are used have gone there: Enter and NextIteration always, so
/// that nothing crosses at the border of a loop or an iteration; a constant that nothing binds to a place, to several
/// devices only where it is small; a feed, where that is one device.
fn follow_consumers(step: &Step, placer: &Placer, homes: Vec<Home>) -> Vec<Vec<Home>> {
    let consumers = consumers(step);
    let mut homes: Vec<Vec<Home>> = homes.into_iter().map(|home| vec![home]).collect();
    // From the last to the first, so that consumers have moved before what they consume follows them.
    for item in (0..step.items.len()).rev() {
        let op = step.op(item);
        let mut most_devices = match step.items[item].op {
            ItemOp::Feed(..) => 1,
            ItemOp::Fetch(..) => continue,
            ItemOp::Node(id) => match op {
                "Enter" | "RefEnter" | "NextIteration" | "RefNextIteration" => usize::MAX,
                "Const" if is_generator(step, item) && placer.is_free(id) => 1,
                _ => continue,
            },
        };
        if op == "Const" && step.node(item).is_some_and(is_small) {
            most_devices = usize::MAX;
        }
        // The first consumer on each device.
        let mut users: BTreeMap<usize, usize> = BTreeMap::new();
        for &to in &consumers[item] {
            let counts = match op {
                "NextIteration" | "RefNextIteration" => is_back_edge(op, step.op(to)),
                _ => !matches!(step.items[to].op, ItemOp::Fetch(..)),
            };
            for home in homes[to].iter().filter(|_| counts) {
                users.entry(home.device).or_insert(to);
            }
        }
        if !users.is_empty() && users.len() <= most_devices {
            let own = homes[item][0].clone();
            let follow = |(device, user): (usize, usize)| match device == own.device {
                true => own.clone(),
                false => Home { device, why: Why::Colocated { with: step.tensor_name(user, 0) } },
            };
            homes[item] = users.into_iter().map(follow).collect();
        }
    }
    // A fetch is where its value is, which may have moved.
    for item in 0..step.items.len() {
        if let ItemOp::Fetch(..) = step.items[item].op {
            homes[item] = vec![homes[step.items[item].inputs[0].0][0].clone()];
        }
    }
    homes
}

fn consumers(step: &Step) -> Vec<Vec<usize>> {
    let mut consumers: Vec<Vec<usize>> = vec![Vec::new(); step.items.len()];
    for (to, item) in step.items.iter().enumerate() {
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
    node.attrs.tensor("value").is_ok_and(|value| value.byte_len() <= MAX_COPIED_BYTES)
}

/// Chooses devices.
struct Placer<'a> {
    step: &'a Step<'a>,
    groups: Groups,
    devices: &'a [DeviceName],
    options: &'a PlanOptions,
    /// What was chosen for a request.
    chosen: HashMap<DeviceSpec, Option<Choice>>,
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    device: usize,
    is_soft: bool,
}

impl Placer<'_> {
    /// Whether nothing says where the node goes: no request, and no group.
    fn is_free(&self, id: NodeId) -> bool {
        self.groups.is_single(id) && self.groups.requests[id.index()].is_open()
            || matches!(self.step.graph.node(id).op.name, "Exit" | "RefExit") && self.groups.is_single(id)
    }

    fn default_home(&mut self) -> Home {
        let device = self.choose(&DeviceSpec::default()).map_or(0, |choice| choice.device);
        Home { device, why: Why::Default }
    }

    fn home(&mut self, id: NodeId) -> Result<Home, PlanError> {
        let graph = self.step.graph;
        let group = self.groups.find(id);
        if let Some(fault) = self.groups.faults.get(&group) {
            return Err(fault.clone());
        }
        let own = self.groups.requests[id.index()].clone();
        let whole = self.groups.specs[group.index()].clone();
        let Some(Choice { device, is_soft }) = self.choose(&whole.spec) else {
            return Err(self.no_such_device(id, &own, &whole));
        };
        let why = if self.groups.is_single(id) || !own.is_open() {
            match (own.is_open(), is_soft || !self.devices[device].matches(&own)) {
                (true, _) => Why::Default,
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

    /// The device that answers a request best; with soft placement, of its task where the request itself has none.
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
        let matching = self.devices.iter().enumerate().filter(|(_, device)| device.matches(spec));
        matching
            .min_by_key(|&(place, device)| {
                (device != default, device.task != default.task, device.kind != DeviceKind::Cpu, place)
            })
            .map(|(place, _)| place)
    }

    fn no_such_device(&mut self, id: NodeId, own: &DeviceSpec, whole: &GroupSpec) -> PlanError {
        let node = self.step.graph.node(id);
        let requested = if !own.is_open() && self.choose(own).is_none() { own.clone() } else { whole.spec.clone() };
        PlanError::NoSuchDevice {
            node: node.name.clone(),
            op: node.op.name.to_owned(),
            hint: hint(&requested, self.devices),
            requested,
            devices: self.devices.to_vec(),
        }
    }
}

/// What would be right, for a request that no device answers.
fn hint(requested: &DeviceSpec, devices: &[DeviceName]) -> String {
    let place = requested.task_only();
    if devices.iter().any(|device| device.matches(&place)) {
        let place = if place.is_open() { "No task".to_owned() } else { place.to_string() };
        let has = if place == "No task" { "has" } else { "has no" };
        let what = match (requested.kind, requested.index) {
            (Some(kind), Some(index)) => format!("{}:{index}", kind.name()),
            (Some(kind), None) => kind.name().to_owned(),
            (None, Some(index)) => format!("device {index}"),
            (None, None) => "such device".to_owned(),
        };
        return format!("{place} {has} {what}; with soft placement the operation runs on a CPU instead.");
    }
    let tasks: BTreeSet<String> = devices.iter().map(|device| device.task.short()).collect();
    let jobs: BTreeSet<&str> = devices.iter().map(|device| device.task.job.as_str()).collect();
    let near: Vec<String> = match (&requested.job, requested.task) {
        (Some(job), Some(task)) => {
            let near = nearest(&format!("{job}/{task}"), tasks.iter().map(String::as_str));
            near.into_iter().map(str::to_owned).collect()
        }
        (Some(job), None) => nearest(job, jobs.iter().copied()).into_iter().map(|job| format!("/job:{job}")).collect(),
        _ => Vec::new(),
    };
    if near.is_empty() {
        let jobs: Vec<&str> = jobs.into_iter().collect();
        format!("No node is up as {place}; jobs that are: {}.", jobs.join(", "))
    } else {
        format!("No node is up as {place}; did you mean {}?", near.join(" or "))
    }
}

/// The nodes of a graph in groups that share a device: a union-find forest.
struct Groups {
    parents: Vec<u32>,
    sizes: Vec<u32>,
    /// What each node requests.
    requests: Vec<DeviceSpec>,
    /// What each group requests, at its root.
    specs: Vec<GroupSpec>,
    /// Groups that cannot be placed, by root.
    faults: HashMap<NodeId, PlanError>,
}

/// What a group requests, and the first member that requested each part.
#[derive(Clone, Debug, Default)]
struct GroupSpec {
    spec: DeviceSpec,
    job: Option<NodeId>,
    task: Option<NodeId>,
    kind: Option<NodeId>,
    index: Option<NodeId>,
}

impl Groups {
    fn of(graph: &Graph, soft_placement: bool) -> Groups {
        let mut groups = Groups {
            parents: (0..graph.len() as u32).collect(),
            sizes: vec![1; graph.len()],
            requests: Vec::with_capacity(graph.len()),
            specs: vec![GroupSpec::default(); graph.len()],
            faults: HashMap::new(),
        };
        let mut faults: Vec<(NodeId, PlanError)> = Vec::new();
        for (id, node) in graph.nodes() {
            for (&input, &is_ref) in node.inputs.iter().zip(&node.input_refs) {
                if is_ref || graph.output_type(input).dtype == DType::Resource {
                    groups.union(id, input.node);
                }
            }
            for name in colocated_with(node) {
                match graph.find(&name) {
                    Some(other) => groups.union(id, other),
                    None => faults.push((id, no_such_colocation(graph, node, name))),
                }
            }
        }
        for (id, fault) in faults {
            groups.faults.entry(groups.find(id)).or_insert(fault);
        }
        groups.merge_requests(graph, soft_placement);
        groups
    }

    fn merge_requests(&mut self, graph: &Graph, soft_placement: bool) {
        let mut parsed: HashMap<&str, DeviceSpec> = HashMap::new();
        for (id, node) in graph.nodes() {
            // Graph::new has refused what does not parse.
            let request = parsed.entry(&node.device).or_insert_with(|| node.device.parse().unwrap_or_default()).clone();
            let root = self.find(id);
            if let Err(first) = self.specs[root.index()].add(id, &request, soft_placement) {
                let fault = PlanError::Apart {
                    first: graph.node(first).name.clone(),
                    first_device: graph.node(first).device.clone(),
                    second: node.name.clone(),
                    op: node.op.name.to_owned(),
                    second_device: node.device.clone(),
                };
                self.faults.entry(root).or_insert(fault);
            }
            self.requests.push(request);
        }
    }

    fn is_single(&self, id: NodeId) -> bool {
        self.sizes[self.find(id).index()] == 1
    }

    fn find(&self, id: NodeId) -> NodeId {
        let mut at = id.0;
        while self.parents[at as usize] != at {
            at = self.parents[at as usize];
        }
        NodeId(at)
    }

    fn union(&mut self, a: NodeId, b: NodeId) {
        let (a, b) = (self.find(a), self.find(b));
        if a != b {
            // By size, so that paths stay short; the smaller id breaks a tie.
            let (size_a, size_b) = (self.sizes[a.index()], self.sizes[b.index()]);
            let (root, child) = if (size_a, b) >= (size_b, a) { (a, b) } else { (b, a) };
            self.parents[child.index()] = root.0;
            self.sizes[root.index()] = size_a + size_b;
        }
    }
}

impl GroupSpec {
    /// Takes a member's request in. Soft placement gives up a kind or number of device that contradicts another.
    ///
    /// # Errors
    /// The member whose request this one contradicts.
    fn add(&mut self, id: NodeId, request: &DeviceSpec, soft_placement: bool) -> Result<(), NodeId> {
        fn part<T: Clone + PartialEq>(
            have: &mut Option<T>,
            by: &mut Option<NodeId>,
            want: &Option<T>,
            id: NodeId,
        ) -> Result<(), NodeId> {
            match (&*have, want, *by) {
                (Some(have), Some(want), Some(first)) if have != want => Err(first),
                (None, Some(want), _) => {
                    (*have, *by) = (Some(want.clone()), Some(id));
                    Ok(())
                }
                _ => Ok(()),
            }
        }
        part(&mut self.spec.job, &mut self.job, &request.job, id)?;
        part(&mut self.spec.task, &mut self.task, &request.task, id)?;
        let kind = part(&mut self.spec.kind, &mut self.kind, &request.kind, id);
        let index = part(&mut self.spec.index, &mut self.index, &request.index, id);
        match kind.and(index) {
            Err(_) if soft_placement => {
                // A CPU takes everything.
                (self.spec.kind, self.spec.index) = (Some(DeviceKind::Cpu), None);
                Ok(())
            }
            result => result,
        }
    }

    /// The member that decided where the group goes, other than `id` where there is one.
    fn decider(&self, graph: &Graph, id: NodeId, root: NodeId) -> String {
        let deciders = [self.task, self.job, self.kind, self.index];
        let other = deciders.into_iter().flatten().find(|&decider| decider != id).unwrap_or(root);
        graph.node(other).name.clone()
    }
}

/// The nodes that the `_class` attribute names as `loc:@name`.
fn colocated_with(node: &Node) -> Vec<String> {
    let Some(Attr::Strs(classes)) = node.attrs.get("_class") else { return Vec::new() };
    let names = classes.iter().filter_map(|class| std::str::from_utf8(class).ok()?.strip_prefix("loc:@"));
    names.map(str::to_owned).collect()
}

fn no_such_colocation(graph: &Graph, node: &Node, with: String) -> PlanError {
    PlanError::NoSuchColocation {
        node: node.name.clone(),
        op: node.op.name.to_owned(),
        nearest: nearest(&with, graph.nodes().map(|(_, node)| node.name.as_str()))
            .into_iter()
            .map(str::to_owned)
            .collect(),
        with,
    }
}
