//! The times of nodes in traced steps beside their estimates, by which later estimates are corrected.
//!
//! A factor belongs to an op on a backend, and to nodes that take about as long: a call of a kernel costs another share of a
//! short one than of a long one. Each traced step moves a factor a quarter of the way to its own, so that one disturbed step
//! does little.

use std::collections::{BTreeMap, HashMap};

use meshtf_tensor::device::{DeviceFacts, DeviceSpec};

use super::super::group::Groups;
use super::repeat::Repeats;
use super::sizes::Sizes;
use super::work::Problem;
use super::{ByCost, MAX_NODES};
use crate::trace::DeviceTrace;
use crate::{Graph, NodeId, Output};

/// Classes of estimated times: up to 1 µs, and each four times as long as the one before.
const CLASSES: usize = 12;
/// Most pairs of an op and a backend that are remembered, and loops.
const MAX_KEPT: usize = 4096;
/// The factor of an estimate that was right.
const RIGHT: u64 = 1 << 10;
/// Least and largest factor: what is beyond was disturbed.
const LIMITS: (u64, u64) = (RIGHT / 32, RIGHT * 32);

/// The factors of one op on one backend, of each class; 0 for none.
pub(super) type Factors = [u64; CLASSES];

/// Factors between estimated and measured times, and iterations of loops, of all graphs of a process.
///
/// The iterations of a loop apply to every loop with a LoopCond of the same name and as many nodes, in whatever graph. Once as
/// many loops as are kept are known, others are not learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// By the name of the backend, and that of the op.
    factors: BTreeMap<String, BTreeMap<&'static str, Factors>>,
    /// The iterations of loops in the last step that was traced, by the names of their LoopConds and the numbers of their nodes.
    loops: BTreeMap<(String, usize), u64>,
}

impl Measured {
    /// Learns from the traces of a step of a graph, unless that is too large to be placed by cost. Nodes of open sizes do not
    /// count; of those that ran several times, the mean does.
    pub fn learn(&mut self, graph: &Graph, devices: &[DeviceFacts], traces: &[DeviceTrace]) {
        if graph.len() > MAX_NODES {
            return;
        }
        let by_name = |spec: &DeviceSpec| devices.iter().position(|device| device.name.matches(spec));
        let groups = Groups::of(graph, true);
        let problem = Problem::of(graph, &groups, devices, &ByCost::default(), by_name);
        let mut ran: HashMap<NodeId, u64> = HashMap::new();
        for trace in traces {
            let Some(device) = devices.iter().position(|device| device.name == trace.device) else { continue };
            // The nodes, with their times and runs.
            let mut took: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
            for node in &trace.nodes {
                let Some(id) = graph.find(&node.name).filter(|&id| graph.node(id).op.name == node.op) else { continue };
                let (all, runs) = took.entry(id).or_default();
                (*all, *runs) = (all.saturating_add(node.took_ns), *runs + 1);
            }
            ran.extend(took.iter().map(|(&id, &(_, runs))| (id, runs)));
            let stored = took.keys().map(|&id| problem.reads_stored(id)).fold(0, u64::saturating_add);
            let mut sums: BTreeMap<(&'static str, usize), (u64, u64)> = BTreeMap::new();
            for (id, (took, runs)) in took.into_iter().filter(|&(id, _)| has_sizes(graph, id)) {
                let Some(estimate) = problem.estimate(id, device, stored) else { continue };
                let (estimates, times) = sums.entry((graph.node(id).op.name, class(estimate))).or_default();
                (*estimates, *times) = (estimates.saturating_add(estimate), times.saturating_add(took / runs));
            }
            for ((op, class), (estimates, times)) in sums {
                self.note(&devices[device].backend, op, class, times.saturating_mul(RIGHT) / estimates.max(1));
            }
        }
        let sizes = Sizes::of(graph);
        for (of, iterations) in Repeats::find(graph, &sizes.shapes)
            .iter()
            .flat_map(|repeats| repeats.traced(|id| ran.get(&id).copied().unwrap_or(0)))
        {
            if self.loops.len() < MAX_KEPT || self.loops.contains_key(&of) {
                self.loops.insert(of, iterations);
            }
        }
    }

    /// The iterations of a loop, by the name of its LoopCond and the number of its nodes.
    pub(super) fn iterations(&self, condition: &str, nodes: usize) -> Option<u64> {
        // The key is owned: such look-ups are rare.
        self.loops.get(&(condition.to_owned(), nodes)).copied()
    }

    fn note(&mut self, backend: &str, op: &'static str, class: usize, factor: u64) {
        let kept: usize = self.factors.values().map(BTreeMap::len).sum();
        let is_known = self.of(backend, op).is_some();
        if !is_known && kept >= MAX_KEPT {
            return;
        }
        let factor = factor.clamp(LIMITS.0, LIMITS.1);
        let of_backend = self.factors.entry(backend.to_owned()).or_default();
        let known = &mut of_backend.entry(op).or_insert([0; CLASSES])[class];
        *known = if *known == 0 { factor } else { (*known * 3 + factor) / 4 };
    }

    /// The factors of an op on a backend.
    pub(super) fn of(&self, backend: &str, op: &str) -> Option<&Factors> {
        self.factors.get(backend)?.get(op)
    }
}

/// An estimate, corrected by the factor of the nearest class that has one.
pub(super) fn corrected(estimate: u64, factors: &Factors) -> u64 {
    let own = class(estimate);
    let nearest = (0..CLASSES).filter(|&class| factors[class] > 0).min_by_key(|&class| class.abs_diff(own));
    nearest.map_or(estimate, |class| estimate.saturating_mul(factors[class]) / RIGHT)
}

fn class(estimate: u64) -> usize {
    let thousands = estimate / 1000;
    (thousands.checked_ilog2().map_or(0, |log| log as usize / 2 + 1)).min(CLASSES - 1)
}

/// Whether the sizes of all values around a node are known.
fn has_sizes(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let outputs = (0..node.outputs.len() as u32).map(|port| Output { node: id, port });
    let mut around = node.inputs.iter().copied().chain(outputs);
    around.all(|output| graph.output_type(output).dtype.is_handle() || graph.shapes().of(output).known().is_some())
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::device::{Capacity, DeviceKind, DeviceName, Rates, Task};

    use super::*;
    use crate::read;
    use crate::trace::NodeTrace;

    const NODES: &str = r#"{"version": 1, "nodes": {
        "dims": {"op": "Const", "attrs": {"dtype": "int32", "value": [1000, 1000]}},
        "one": {"op": "Const", "attrs": {"dtype": "float32", "value": 1.0}},
        "open": {"op": "Placeholder", "attrs": {"dtype": "float32"}},
        "x": {"op": "Fill", "inputs": ["dims", "one"]},
        "a": {"op": "Exp", "inputs": ["x"]},
        "b": {"op": "Exp", "inputs": ["open"]},
        "c": {"op": "Neg", "inputs": ["a"]}}}"#;

    fn device() -> DeviceFacts {
        let rates = Some(Rates { multiply_adds: 1_000_000_000_000, bytes: 8_000_000_000, streamed: None });
        let capacity = Capacity { rates, ..Capacity::default() };
        let name = Task::new("t", 0).device(DeviceKind::Cpu, 0);
        DeviceFacts { capacity, backend: "flex".into(), ..DeviceFacts::unknown(name) }
    }

    fn traced(device: &DeviceName, nodes: &[(&str, &str, u64)]) -> DeviceTrace {
        let node = |&(name, op, took_ns): &(&str, &str, u64)| NodeTrace {
            name: name.into(),
            op: op.into(),
            took_ns,
            ..NodeTrace::default()
        };
        DeviceTrace { device: device.clone(), nodes: nodes.iter().map(node).collect() }
    }

    #[test]
    fn times_correct_the_estimates_of_their_op_and_size() {
        let graph = Graph::new(read(NODES.as_bytes()).unwrap().nodes).unwrap();
        let devices = [device()];
        let mut measured = Measured::default();
        // 8 MB at 8 GB/s, and a call of 0.2 µs: 1.0002 ms are expected of `a`, which takes twice as long.
        measured.learn(&graph, &devices, &[traced(&devices[0].name, &[("a", "Exp", 2_000_400)])]);
        let factors = *measured.of("flex", "Exp").unwrap();
        assert_eq!(corrected(1_000_200, &factors), 2_000_400);
        // Another size takes the factor of the nearest; another op or backend has none.
        assert_eq!(corrected(10_000, &factors), 20_000);
        assert!(measured.of("flex", "Neg").is_none() && measured.of("ndarray", "Exp").is_none());
        // A later step moves it by a quarter of the difference: (3 · 2 + 6) / 4 = 3.
        measured.learn(&graph, &devices, &[traced(&devices[0].name, &[("a", "Exp", 6_001_200)])]);
        assert_eq!(corrected(1_000_200, measured.of("flex", "Exp").unwrap()), 3_000_600);
    }

    #[test]
    fn open_sizes_and_strangers_teach_nothing_and_of_several_runs_the_mean_counts() {
        let graph = Graph::new(read(NODES.as_bytes()).unwrap().nodes).unwrap();
        let devices = [device()];
        let mut measured = Measured::default();
        let elsewhere = Task::new("t", 1).device(DeviceKind::Cpu, 0);
        let nodes = [("b", "Exp", 5), ("nobody", "Exp", 5), ("a", "Log", 5)];
        measured.learn(&graph, &devices, &[traced(&devices[0].name, &nodes), traced(&elsewhere, &[("a", "Exp", 5)])]);
        assert_eq!(measured, Measured::default());
        // 1.0002 ms are expected; one and three times as long are twice on average.
        let twice = [("c", "Neg", 1_000_200), ("c", "Neg", 3_000_600)];
        measured.learn(&graph, &devices, &[traced(&devices[0].name, &twice)]);
        assert_eq!(corrected(1_000_200, measured.of("flex", "Neg").unwrap()), 2_000_400);
        // A disturbed time counts as the limit.
        measured.learn(&graph, &devices, &[traced(&devices[0].name, &[("a", "Exp", u64::MAX)])]);
        assert_eq!(corrected(1_000, measured.of("flex", "Exp").unwrap()), 32_000);
    }
}
