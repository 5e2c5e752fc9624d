//! Groups of nodes that must share a device, with the combined request of each group.
//!
//! Two nodes must share a device if a reference to a variable or a handle of state leads from one to the other, or if a
//! `_class` attribute of one names the other. Knows no devices, only requests.

use std::collections::HashMap;

use meshtf_tensor::device::{DeviceKind, DeviceSpec};
use meshtf_tensor::nearest::nearest;

use super::PlanError;
use crate::{Attr, Graph, Node, NodeId};

/// The nodes of a graph in groups that share a device: a union-find forest.
#[derive(Default)]
pub(super) struct Groups {
    parents: Vec<u32>,
    sizes: Vec<u32>,
    /// The request of each node.
    pub requests: Vec<DeviceSpec>,
    /// The request of each group, at its root.
    pub specs: Vec<GroupSpec>,
    /// Groups that cannot be placed, by root.
    faults: HashMap<NodeId, PlanError>,
}

/// The request of a group, and the first member that requested each part.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupSpec {
    pub spec: DeviceSpec,
    job: Option<NodeId>,
    task: Option<NodeId>,
    kind: Option<NodeId>,
    index: Option<NodeId>,
}

impl Groups {
    /// Groups the whole graph. Soft placement drops kinds and numbers of devices that contradict each other.
    pub fn of(graph: &Graph, soft_placement: bool) -> Groups {
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
                if is_ref || graph.output_type(input).dtype.is_handle() {
                    groups.union(id, input.node);
                }
            }
            for name in colocated_with(node) {
                match graph.find(&name) {
                    Some(other) => groups.union(id, other),
                    None => faults.push((id, no_such_colocation(node, name))),
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
        for (_, node) in graph.nodes() {
            // Graph::new has refused device strings that do not parse.
            let request = parsed.entry(&node.device).or_insert_with(|| node.device.parse().unwrap_or_default());
            self.requests.push(request.clone());
        }
        // Nodes that make handles come first: a node that takes a handle follows it, whatever it requests. So does TensorFlow,
        // whose clients request a worker's device for nodes that query the shape of a variable elsewhere.
        let takes_handle = |node: &Node| node.inputs.iter().any(|&input| graph.output_type(input).dtype.is_handle());
        let (takers, makers): (Vec<_>, Vec<_>) = graph.nodes().partition(|(_, node)| takes_handle(node));
        let makers = makers.into_iter().map(|(id, node)| (id, node, false));
        for (id, node, follows) in makers.chain(takers.into_iter().map(|(id, node)| (id, node, true))) {
            let request = self.requests[id.index()].clone();
            let root = self.find(id);
            if follows && self.specs[root.index()].spec.merge(&request).is_none() {
                continue;
            }
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
        }
    }

    /// The error of the group with that root; `None` if it can be placed.
    pub fn fault(&self, graph: &Graph, root: NodeId) -> Option<PlanError> {
        let mut fault = self.faults.get(&root)?.clone();
        if let PlanError::NoSuchColocation { with, nearest: near, .. } = &mut fault {
            let names = graph.nodes().map(|(_, node)| node.name.as_str());
            *near = nearest(with, names).into_iter().map(str::to_owned).collect();
        }
        Some(fault)
    }

    /// Whether a node is alone in its group.
    pub fn is_single(&self, id: NodeId) -> bool {
        self.sizes[self.find(id).index()] == 1
    }

    /// The root of a node's group.
    pub fn find(&self, id: NodeId) -> NodeId {
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
    /// Adds a member's request. Soft placement drops a kind or number of device that contradicts another.
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
                // A CPU runs every op.
                (self.spec.kind, self.spec.index) = (Some(DeviceKind::Cpu), None);
                Ok(())
            }
            result => result,
        }
    }

    /// The member that determined the group's device, other than `id` if there is one.
    pub fn decider(&self, graph: &Graph, id: NodeId, root: NodeId) -> String {
        let deciders = [self.task, self.job, self.kind, self.index];
        let other = deciders.into_iter().flatten().find(|&decider| decider != id).unwrap_or(root);
        graph.node(other).name.clone()
    }
}

/// The nodes that the `_class` attribute names as `loc:@name`.
pub(super) fn colocated_with(node: &Node) -> Vec<String> {
    let Some(Attr::Strs(classes)) = node.attrs.get("_class") else { return Vec::new() };
    let names = classes.iter().filter_map(|class| std::str::from_utf8(class).ok()?.strip_prefix("loc:@"));
    names.map(str::to_owned).collect()
}

/// The error omits the nearest names, which are looked up when it is reported.
fn no_such_colocation(node: &Node, with: String) -> PlanError {
    PlanError::NoSuchColocation { node: node.name.clone(), op: node.op.name.to_owned(), nearest: Vec::new(), with }
}
