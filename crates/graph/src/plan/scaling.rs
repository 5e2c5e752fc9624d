//! The expected times of data-parallel steps: formulas over the time of a step on one device, the bytes of its gradients, and
//! networks.
//!
//! Nothing is taken to happen at the same time: neither do gradients travel while others are computed, nor do tasks share a
//! machine. A run that overlaps them is faster, by at most the shorter of both.

use core::time::Duration;
use std::collections::{BTreeMap, HashSet};

use meshtf_tensor::DType;
use meshtf_tensor::device::DeviceFacts;

use super::by_cost::MAX_NODES;
use super::{ByCost, Estimate, PlanError, PlanOptions, Signature, plan};
use crate::op::Role;
use crate::{Graph, NodeDef, NodeId, Output};

/// A doubling of the tasks pays if it raises the throughput by at least this part, in percent.
const GAIN_PERCENT: f64 = 10.0;

/// A network between tasks that are on machines of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Bytes a second in each direction of a task's link.
    pub bytes: f64,
    /// The time of a short message from one task to another.
    pub latency: Duration,
}

impl Network {
    /// Ethernet of so many Gbit/s, of which 94 % are payload: 1,448 of the 1,538 bytes of a frame.
    pub fn ethernet(gigabits: u32, latency: Duration) -> Network {
        Network { bytes: f64::from(gigabits) * 125e6 * 1448.0 / 1538.0, latency }
    }
}

/// The parts of a step, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepParts {
    /// Computing, in seconds.
    pub compute: f64,
    /// Bytes on links, in seconds.
    pub transfer: f64,
    /// Waiting for messages to arrive, in seconds.
    pub latency: f64,
}

impl StepParts {
    /// All of a step, in seconds.
    pub fn total(&self) -> f64 {
        self.compute + self.transfer + self.latency
    }
}

/// A step of `tasks` mirrored workers, each of which computes for so many seconds: their gradients of so many bytes are summed
/// around a ring. Each task sends and receives 2 (n - 1) / n of the bytes in 2 (n - 1) rounds (Patarasuk and Yuan, "Bandwidth
/// optimal all-reduce algorithms for clusters of workstations", 2009).
pub fn ring(tasks: u32, compute: f64, gradients: u64, network: Network) -> StepParts {
    let (n, rounds) = (f64::from(tasks), 2.0 * f64::from(tasks.saturating_sub(1)));
    let transfer = rounds / n.max(1.0) * gradients as f64 / network.bytes;
    StepParts { compute, transfer, latency: rounds * network.latency.as_secs_f64() }
}

/// A step of `tasks` workers and one parameter server on a machine of its own: its link carries the variables to each worker, and
/// then the gradients of each (Li et al., "Scaling distributed machine learning with the parameter server", 2014). One worker
/// has the variables itself.
pub fn servers(tasks: u32, compute: f64, gradients: u64, network: Network) -> StepParts {
    if tasks <= 1 {
        return StepParts { compute, ..StepParts::default() };
    }
    let transfer = 2.0 * f64::from(tasks) * gradients as f64 / network.bytes;
    StepParts { compute, transfer, latency: 2.0 * network.latency.as_secs_f64() }
}

/// Requests a second that `tasks` replicas answer, each of which computes for so many seconds, if the link of the client carries
/// so many bytes to them and back for each.
pub fn replicas(tasks: u32, compute: f64, (to, back): (u64, u64), network: Network) -> f64 {
    let computed = f64::from(tasks) / compute;
    match to.max(back) {
        0 => computed,
        bytes => computed.min(network.bytes / bytes as f64),
    }
}

/// The number of tasks up to which each doubling raises the throughput by a tenth. `rows` has the tasks, each twice as many as
/// before, and the throughput.
pub fn pays_until(rows: &[(u32, f64)]) -> u32 {
    let gains = |pair: &&[(u32, f64)]| pair[1].1 >= pair[0].1 * (1.0 + GAIN_PERCENT / 100.0);
    let doublings = rows.windows(2).take_while(gains).count();
    rows.get(doublings).map_or(1, |row| row.0)
}

/// The expectation of a step of which all nodes are on one device, whatever devices they request; `None` if the graph is too
/// large for estimates.
///
/// # Errors
/// As [`plan`](super::plan()).
pub fn on_one(graph: &Graph, device: &DeviceFacts, signature: &Signature) -> Result<Option<Estimate>, PlanError> {
    if graph.len() > MAX_NODES {
        return Ok(None);
    }
    let anywhere = |def: NodeDef| NodeDef { device: String::new(), ..def };
    let graph = Graph::new(graph.to_defs().into_iter().map(anywhere).collect());
    let Ok(graph) = graph else { return Ok(None) };
    let options =
        PlanOptions { default_device: device.name.clone(), soft_placement: true, by_cost: Some(ByCost::default()) };
    Ok(plan(&graph, std::slice::from_ref(device), signature, &options)?.estimate)
}

/// The nodes that a step may run: those that its fetches and targets depend on, without what only feeds need.
pub fn needed(graph: &Graph, signature: &Signature) -> HashSet<NodeId> {
    let fed: HashSet<Output> = signature.feeds.iter().filter_map(|feed| graph.output(feed).ok()).collect();
    let fetched = signature.fetches.iter().filter_map(|fetch| graph.output(fetch).ok());
    let targets = signature.targets.iter().filter_map(|target| graph.find(target));
    let mut open: Vec<NodeId> =
        fetched.filter(|output| !fed.contains(output)).map(|output| output.node).chain(targets).collect();
    let mut needed = HashSet::new();
    while let Some(id) = open.pop() {
        if needed.insert(id) {
            let node = graph.node(id);
            open.extend(node.inputs.iter().filter(|input| !fed.contains(input)).map(|input| input.node));
            open.extend(&node.control);
        }
    }
    needed
}

/// Bytes of the gradients of a step: those of each variable of floats that one of these nodes updates by an op that takes a
/// gradient (`Apply…`, `SparseApply…`) or rows to add (`ScatterAdd`, `ScatterSub`); of a sparse update, its rows alone. 0 if none
/// does. `AssignAdd` and `AssignSub` do not count: counters and moving averages use them. Moments that change by `ScatterAdd` do.
pub fn gradient_bytes(graph: &Graph, needed: &HashSet<NodeId>) -> u64 {
    let bytes = |dtype: DType, shape: Option<u64>| shape.unwrap_or(1).saturating_mul(dtype.size().unwrap_or(0) as u64);
    let mut of_variables: BTreeMap<NodeId, u64> = BTreeMap::new();
    for (_, node) in graph.nodes().filter(|(id, _)| needed.contains(id)) {
        let Some(sparse) = updates(node.op.name) else { continue };
        let Some(variable) = node.inputs.first().and_then(|&first| maker(graph, first)) else { continue };
        let attrs = &graph.node(variable).attrs;
        let Some(dtype) = attrs.dtype("dtype").ok().filter(|dtype| dtype.is_float()) else { continue };
        let whole = attrs.shape("shape").ok().and_then(|shape| {
            shape.0.as_ref()?.iter().try_fold(1u64, |all, size| Some(all.saturating_mul((*size)? as u64)))
        });
        // The largest value that it takes besides variables is the gradient.
        let of_input = |&input: &Output| {
            let ty = graph.output_type(input);
            let elements = graph.shapes().known(input).and_then(|shape| shape.elements()).map(|all| all as u64);
            (!ty.is_ref && ty.dtype.is_float()).then(|| bytes(ty.dtype, elements))
        };
        let own = if sparse { node.inputs.iter().filter_map(of_input).max() } else { None };
        let all = of_variables.entry(variable).or_default();
        *all = (*all).max(own.unwrap_or_else(|| bytes(dtype, whole)));
    }
    of_variables.values().fold(0, |all, &bytes| all.saturating_add(bytes))
}

/// Whether an op that updates a variable by a gradient does so for some of its rows; `None` for any other op.
fn updates(op: &str) -> Option<bool> {
    let of = op.strip_prefix("Resource").unwrap_or(op);
    let begins = |names: &[&str]| names.iter().any(|name| of.starts_with(name));
    match () {
        () if begins(&["SparseApply", "ScatterAdd", "ScatterSub"]) => Some(true),
        () if begins(&["Apply"]) => Some(false),
        () => None,
    }
}

/// The variable that a handle or reference leads to.
fn maker(graph: &Graph, output: Output) -> Option<NodeId> {
    let mut at = output.node;
    for _ in 0..graph.len() {
        let node = graph.node(at);
        match node.op.role {
            _ if node.op.makes_variable => return Some(at),
            Role::Forward | Role::Enter | Role::Switch => at = node.inputs.first()?.node,
            // An update outputs the reference that it takes.
            _ if node.input_refs.first() == Some(&true) => at = node.inputs.first()?.node,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::device::{Capacity, DeviceKind, Rates, Task};

    use super::*;
    use crate::read;

    fn network() -> Network {
        // Of round figures, so that times can be computed by hand.
        Network { bytes: 1e8, latency: Duration::from_millis(1) }
    }

    #[test]
    fn the_parts_of_a_step_are_those_of_the_formulas() {
        let parts = |compute, transfer, latency| StepParts { compute, transfer, latency };
        let near = |one: StepParts, other: StepParts| {
            let pairs = [(one.compute, other.compute), (one.transfer, other.transfer), (one.latency, other.latency)];
            assert!(pairs.iter().all(|(a, b)| (a - b).abs() < 1e-12), "{one:?} beside {other:?}");
        };
        // 40 MB of gradients: of four tasks each sends 60 MB in six rounds.
        near(ring(1, 0.5, 40_000_000, network()), parts(0.5, 0.0, 0.0));
        near(ring(2, 0.25, 40_000_000, network()), parts(0.25, 0.4, 0.002));
        near(ring(4, 0.125, 40_000_000, network()), parts(0.125, 0.6, 0.006));
        // The server sends 160 MB and receives as many.
        near(servers(1, 0.5, 40_000_000, network()), parts(0.5, 0.0, 0.0));
        near(servers(4, 0.125, 40_000_000, network()), parts(0.125, 3.2, 0.002));
        assert_eq!(ring(4, 0.125, 0, network()).total(), 0.131);
        // 50 requests a second of each, and 1 MB back for each: the link carries 100.
        let all = |tasks| replicas(tasks, 0.02, (1000, 1_000_000), network());
        assert_eq!([1, 2, 4].map(all), [50.0, 100.0, 100.0]);
        assert_eq!(replicas(3, 0.5, (0, 0), network()), 6.0);
        // 1 Gbit/s: 117.7 MB a second.
        let ethernet = Network::ethernet(1, Duration::ZERO);
        assert_eq!(ethernet.bytes.round(), 117_685_306.0);
    }

    #[test]
    fn it_pays_until_a_doubling_gains_less_than_a_tenth() {
        assert_eq!(pays_until(&[(1, 100.0), (2, 190.0), (4, 300.0), (8, 320.0), (16, 640.0)]), 4);
        assert_eq!(pays_until(&[(1, 100.0), (2, 109.0)]), 1);
        assert_eq!(pays_until(&[(1, 1.0), (2, 2.0)]), 2);
        assert_eq!(pays_until(&[]), 1);
    }

    #[test]
    fn gradients_are_those_of_updated_variables() {
        let text = r#"{"version": 1, "nodes": {
            "w": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": [10, 3]}, "device": "/job:elsewhere/task:3"},
            "t": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": [1000, 8]}},
            "n": {"op": "VarHandleOp", "attrs": {"dtype": "int64", "shape": []}},
            "other": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": [50]}},
            "old": {"op": "VariableV2", "attrs": {"dtype": "float64", "shape": [7]}},
            "g": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [10, 3]}},
            "rows": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [4, 8]}},
            "v": {"op": "Placeholder", "attrs": {"dtype": "float64", "shape": [7]}},
            "fill": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [50]}},
            "a": {"op": "ResourceApplyGradientDescent", "inputs": ["w", 0.1, "g"]},
            "b": {"op": "ResourceScatterSub", "inputs": ["t", [1, 2, 3, 4], "rows"], "attrs": {"dtype": "float32"}},
            "c": {"op": "AssignAddVariableOp", "inputs": ["n", "one"]},
            "one": {"op": "Placeholder", "attrs": {"dtype": "int64", "shape": []}},
            "d": {"op": "ApplyGradientDescent", "inputs": ["old", {"value": 0.1, "dtype": "float64"}, "v"]},
            "average": {"op": "AssignSub", "inputs": ["old", "v"]},
            "count": {"op": "AssignAddVariableOp", "inputs": ["other", "fill"]},
            "e": {"op": "AssignVariableOp", "inputs": ["other", "fill"]},
            "step": {"op": "NoOp", "control": ["a", "b", "c", "d", "e"]}}}"#;
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let of = |targets: &[&str]| {
            let targets = targets.iter().map(|&target| target.to_owned()).collect();
            gradient_bytes(&graph, &needed(&graph, &Signature { targets, ..Signature::default() }))
        };
        assert_eq!(of(&["a"]), 10 * 3 * 4);
        assert_eq!(of(&["b"]), 4 * 8 * 4);
        assert_eq!(of(&["d"]), 7 * 8);
        assert_eq!(of(&["c", "e", "average", "count"]), 0);
        assert_eq!(of(&["step"]), 120 + 128 + 56);
        // The rest that the step needs is fed beside the feeds.
        let signature = Signature { feeds: vec!["g:0".into()], targets: vec!["step".into()], ..Signature::default() };
        let mut feeds = signature.with_placeholders(&graph).feeds;
        feeds.sort();
        assert_eq!(feeds, ["fill", "g:0", "one", "rows", "v"]);
        // On one device, whatever the nodes request: 120 bytes read and written take no time beside the calls.
        let name = Task::new("t", 0).device(DeviceKind::Cpu, 0);
        let rates = Some(Rates { multiply_adds: 1_000_000_000, bytes: 1_000_000_000, streamed: None });
        let capacity = Capacity { rates, ..Capacity::default() };
        let device = DeviceFacts { capacity, ..DeviceFacts::unknown(name) };
        let signature = Signature { feeds: vec!["g".into()], targets: vec!["a".into()], ..Signature::default() };
        let step = on_one(&graph, &device, &signature).unwrap().unwrap().step;
        assert!((200..1500).contains(&step.as_nanos()), "{step:?}");
    }
}
