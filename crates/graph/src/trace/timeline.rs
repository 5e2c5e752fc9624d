//! A traced step on one clock: the busy times of each device, the costs of the step, and its critical path.
//!
//! Every device records times by the clock of its own machine. The transferred values show the offset between the clocks of two
//! tasks: the difference between the least apparent transfer times in the two directions is twice the offset. That assumes that
//! the fastest transfer takes equally long in both directions, as NTP (RFC 5905) does. If values were transferred in one
//! direction only, the clocks are shifted just far enough for none to arrive before it was sent.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use meshtf_tensor::device::{DeviceName, Task};

use super::{DeviceTrace, NodeTrace};

/// A traced step with the times of all devices by one clock, in microseconds since its first node started.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// The devices, in the order of the traces.
    pub devices: Vec<DeviceTimeline>,
    /// The values transferred between devices.
    pub ways: Vec<Way>,
}

/// The nodes of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTimeline {
    /// The device.
    pub device: DeviceName,
    /// Its nodes, in the order of completion.
    pub nodes: Vec<NodeTime>,
}

/// One run of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeTime {
    /// The node's name.
    pub name: String,
    /// Its op.
    pub op: String,
    /// The names of the producers of its inputs; then, as `^name`, those of its control inputs.
    pub inputs: Vec<String>,
    /// Its start, in microseconds.
    pub start_us: f64,
    /// Its duration, in microseconds.
    pub took_us: f64,
    /// Bytes of the value that it sent to another device.
    pub sent_bytes: u64,
}

impl NodeTime {
    fn end_us(&self) -> f64 {
        self.start_us + self.took_us
    }

    /// The name of its transfer, the same at both ends; `None` if its name does not begin with `kind`.
    fn transfer(&self, kind: &str) -> Option<&str> {
        self.name.strip_prefix(kind)
    }
}

/// A transferred value: the node and device that sent it, and those that received it, as indices into the [`Timeline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Device and node of the sender.
    pub from: (usize, usize),
    /// Device and node of the receiver.
    pub to: (usize, usize),
}

/// Times are whole nanoseconds, and sums of floats are slightly less exact.
pub(super) const HALF_NS: f64 = 0.5e-3;

const SEND: &str = "_Send/";
const RECEIVE: &str = "_Recv/";

impl Timeline {
    /// The timeline of the devices' traces of one step.
    pub fn of(traces: &[DeviceTrace]) -> Timeline {
        // Relative to the first start by any clock: a float can hold the nanoseconds of a step, but not of a century.
        let zero = traces.iter().flat_map(|trace| &trace.nodes).map(|node| node.start_ns).min().unwrap_or(0);
        let time = |node: &NodeTrace| NodeTime {
            name: node.name.clone(),
            op: node.op.clone(),
            inputs: node.inputs.clone(),
            start_us: (node.start_ns - zero) as f64 / 1e3,
            took_us: node.took_ns as f64 / 1e3,
            sent_bytes: node.sent_bytes,
        };
        let devices = traces.iter().map(|trace| DeviceTimeline {
            device: trace.device.clone(),
            nodes: trace.nodes.iter().map(time).collect(),
        });
        let mut timeline = Timeline { devices: devices.collect(), ways: Vec::new() };
        timeline.ways = timeline.find_ways();
        let late = timeline.lateness();
        for device in &mut timeline.devices {
            let late = late.get(&device.device.task).copied().unwrap_or(0.0);
            device.nodes.iter_mut().for_each(|node| node.start_us -= late);
        }
        let nodes = || timeline.devices.iter().flat_map(|device| &device.nodes);
        let first = nodes().map(|node| node.start_us).fold(f64::INFINITY, f64::min);
        timeline.devices.iter_mut().flat_map(|device| &mut device.nodes).for_each(|node| node.start_us -= first);
        timeline
    }

    /// The pairs of nodes that are the two ends of a transfer; in a loop, the first run with the first.
    fn find_ways(&self) -> Vec<Way> {
        let mut sent: HashMap<&str, Vec<(usize, usize)>> = HashMap::new();
        let ends = |kind| {
            self.devices.iter().enumerate().flat_map(move |(d, device)| {
                let named = move |(n, node): (usize, &'_ NodeTime)| Some(((d, n), node.transfer(kind)?.len()));
                device.nodes.iter().enumerate().filter_map(named)
            })
        };
        let name = |(d, n): (usize, usize), bytes: usize| {
            let name = &self.devices[d].nodes[n].name;
            &name[name.len() - bytes..]
        };
        for (at, bytes) in ends(SEND) {
            sent.entry(name(at, bytes)).or_default().push(at);
        }
        sent.values_mut().for_each(|sent| sent.reverse());
        let ways =
            ends(RECEIVE).filter_map(|(to, bytes)| Some(Way { from: sent.get_mut(name(to, bytes))?.pop()?, to }));
        ways.collect()
    }

    /// The offset of each task's clock from that of the first task, in microseconds; positive if ahead.
    fn lateness(&self) -> BTreeMap<Task, f64> {
        let task = |(d, _): (usize, usize)| &self.devices[d].device.task;
        let time = |(d, n): (usize, usize)| self.devices[d].nodes[n].end_us();
        // The least apparent transfer time from one task to another.
        let mut least: BTreeMap<(&Task, &Task), f64> = BTreeMap::new();
        for way in self.ways.iter().filter(|way| task(way.from) != task(way.to)) {
            let took = time(way.to) - time(way.from);
            let least = least.entry((task(way.from), task(way.to))).or_insert(took);
            *least = least.min(took);
        }
        let ahead = |of: &Task, than: &Task| match (least.get(&(than, of)), least.get(&(of, than))) {
            (Some(there), Some(back)) => Some((there - back) / 2.0),
            (Some(there), None) => Some(there.min(0.0)),
            (None, Some(back)) => Some(-back.min(0.0)),
            (None, None) => None,
        };
        let mut late = BTreeMap::new();
        for first in self.devices.iter().map(|device| &device.device.task) {
            if late.contains_key(first) {
                continue;
            }
            late.insert(first.clone(), 0.0);
            let mut open = vec![first];
            while let Some(known) = open.pop() {
                for other in self.devices.iter().map(|device| &device.device.task) {
                    if !late.contains_key(other)
                        && let Some(ahead) = ahead(other, known)
                    {
                        late.insert(other.clone(), late[known] + ahead);
                        open.push(other);
                    }
                }
            }
        }
        late
    }

    /// The duration of the step, from the start of its first node to the end of its last, in microseconds.
    pub fn took_us(&self) -> f64 {
        self.devices.iter().flat_map(|device| &device.nodes).map(NodeTime::end_us).fold(0.0, f64::max)
    }

    /// The costs of the step.
    pub fn costs(&self) -> Costs {
        let took_us = self.took_us();
        let devices = self.devices.iter().map(|device| {
            let busy_us = busy(device);
            let end_us = device.nodes.iter().map(NodeTime::end_us).fold(0.0, f64::max);
            DeviceTime {
                device: device.device.clone(),
                busy_us,
                waiting_us: end_us - busy_us,
                idle_us: took_us - end_us,
            }
        });
        let mut ops: BTreeMap<&str, OpTime> = BTreeMap::new();
        for node in self.devices.iter().flat_map(|device| &device.nodes) {
            let of = ops.entry(&node.op).or_insert_with(|| OpTime { op: node.op.clone(), runs: 0, took_us: 0.0 });
            of.runs += 1;
            of.took_us += node.took_us;
        }
        let mut ops: Vec<OpTime> = ops.into_values().filter(|op| op.took_us > 0.0).collect();
        ops.sort_by(|a, b| b.took_us.total_cmp(&a.took_us).then_with(|| a.op.cmp(&b.op)));
        Costs { took_us, devices: devices.collect(), ops, path: self.critical_path(), links: self.links() }
    }

    /// Bytes of a transferred value.
    pub(super) fn sent_bytes(&self, way: &Way) -> u64 {
        self.devices[way.from.0].nodes[way.from.1].sent_bytes
    }

    /// The transfers from one device to another, most bytes first.
    fn links(&self) -> Vec<LinkBytes> {
        let mut links: BTreeMap<(usize, usize), (u64, u64)> = BTreeMap::new();
        for way in &self.ways {
            let (values, bytes) = links.entry((way.from.0, way.to.0)).or_default();
            (*values, *bytes) = (*values + 1, bytes.saturating_add(self.sent_bytes(way)));
        }
        let device = |d: usize| self.devices[d].device.clone();
        let link = |((from, to), (values, bytes))| LinkBytes { from: device(from), to: device(to), values, bytes };
        let mut links: Vec<LinkBytes> = links.into_iter().map(link).collect();
        links.sort_by_key(|link| Reverse(link.bytes));
        links
    }

    /// The critical path: from the node that ended last back to the last thing it waited for, an input or the previous node on
    /// its device, and so on.
    fn critical_path(&self) -> Vec<PathPart> {
        let sent: HashMap<(usize, usize), (usize, usize)> = self.ways.iter().map(|way| (way.to, way.from)).collect();
        // By device: the runs of each name, in the order of completion.
        let named: Vec<HashMap<&str, Vec<usize>>> = self
            .devices
            .iter()
            .map(|device| {
                let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
                for (n, node) in device.nodes.iter().enumerate() {
                    named.entry(&node.name).or_default().push(n);
                }
                named
            })
            .collect();
        let end = |(d, n): (usize, usize)| self.devices[d].nodes[n].end_us();
        let all = self.devices.iter().enumerate().flat_map(|(d, device)| (0..device.nodes.len()).map(move |n| (d, n)));
        let Some(mut at) = all.max_by(|&a, &b| end(a).total_cmp(&end(b)).then(Reverse(a).cmp(&Reverse(b)))) else {
            return Vec::new();
        };
        let most = self.devices.iter().map(|device| device.nodes.len()).sum();
        let mut path = Vec::new();
        loop {
            let node = &self.devices[at.0].nodes[at.1];
            // The last run of an input that had ended when this one started.
            let input = |name: &String| {
                let runs = named[at.0].get(name.strip_prefix('^').unwrap_or(name))?;
                let before = runs.partition_point(|&n| n < at.1);
                before.checked_sub(1).map(|i| (at.0, runs[i]))
            };
            // Of those that ended at the same time, an input.
            let all = self.ran_before(at).into_iter().chain(node.inputs.iter().filter_map(input));
            let before = sent.get(&at).copied().or_else(|| all.max_by(|&a, &b| end(a).total_cmp(&end(b))));
            let waited_us = before.map_or(node.start_us, |before| node.start_us - end(before)).max(0.0);
            path.push(PathPart {
                device: self.devices[at.0].device.clone(),
                name: node.name.clone(),
                op: node.op.clone(),
                took_us: node.took_us,
                waited_us,
            });
            match before {
                Some(before) if path.len() < most => at = before,
                _ => break,
            }
        }
        path.reverse();
        path
    }

    /// The last node of a device that had ended when this one started.
    fn ran_before(&self, (d, n): (usize, usize)) -> Option<(usize, usize)> {
        let nodes = &self.devices[d].nodes;
        let began = nodes[n].start_us + HALF_NS;
        (0..n).rev().take(MOST_BESIDE).find(|&before| nodes[before].end_us() <= began).map(|before| (d, before))
    }
}

/// Most concurrent nodes of a device that the search for the critical path considers.
const MOST_BESIDE: usize = 64;

/// Microseconds in which at least one node of a device ran.
fn busy(device: &DeviceTimeline) -> f64 {
    let mut runs: Vec<Range<f64>> = device.nodes.iter().map(|node| node.start_us..node.end_us()).collect();
    runs.sort_by(|a, b| a.start.total_cmp(&b.start));
    let (mut busy, mut until) = (0.0, 0.0f64);
    for run in runs {
        busy += (run.end - run.start.max(until)).max(0.0);
        until = until.max(run.end);
    }
    busy
}

/// The costs of a step, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// From the start of the first node to the end of the last.
    pub took_us: f64,
    /// Device by device.
    pub devices: Vec<DeviceTime>,
    /// Op by op, the most expensive first.
    pub ops: Vec<OpTime>,
    /// The critical path, from its first node on.
    pub path: Vec<PathPart>,
    /// The transfers between devices, most bytes first.
    pub links: Vec<LinkBytes>,
}

/// The values sent from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkBytes {
    /// The device that sent.
    pub from: DeviceName,
    /// The device that received.
    pub to: DeviceName,
    /// The number of values.
    pub values: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The time of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTime {
    /// The device.
    pub device: DeviceName,
    /// Time in which at least one node ran.
    pub busy_us: f64,
    /// Time in which none ran, but more were to come.
    pub waiting_us: f64,
    /// Time after its last node had ended.
    pub idle_us: f64,
}

/// The time of one op, of all its nodes on all devices.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTime {
    /// The op.
    pub op: String,
    /// The number of runs.
    pub runs: u64,
    /// Their total duration.
    pub took_us: f64,
}

/// A node of the critical path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathPart {
    /// The device that ran it.
    pub device: DeviceName,
    /// Its name.
    pub name: String,
    /// Its op.
    pub op: String,
    /// Its duration.
    pub took_us: f64,
    /// The delay between the end of the previous node on the path and the start of this one: it waited for its device or, if it
    /// receives, for the transfer.
    pub waited_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::device::DeviceKind;

    fn node(name: &str, op: &str, inputs: &[&str], start_us: u64, took_us: u64) -> NodeTrace {
        let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
        // A value has ten bytes for each character of its name.
        let sent_bytes = if op == "_Send" { 10 * name.len() as u64 } else { 0 };
        NodeTrace {
            name: name.to_owned(),
            op: op.to_owned(),
            inputs,
            start_ns: start_us * 1000,
            took_ns: took_us * 1000,
            sent_bytes,
            outputs: Vec::new(),
        }
    }

    /// a on task 0 is sent to task 1, where b is computed from it and sent back; task 0 meanwhile computes c, and finally d
    /// from both. The second task's clock is `ahead` microseconds ahead. A transfer takes 5 microseconds.
    fn traces(ahead: u64) -> Vec<DeviceTrace> {
        let device = |task| Task::new("w", task).device(DeviceKind::Cpu, 0);
        let first = vec![
            node("a", "Exp", &[], 1000, 10),
            node("_Send/a/0", "_Send", &["a"], 1010, 0),
            node("c", "Neg", &["a"], 1010, 3),
            node("_Recv/b/1", "_Recv", &[], 1040, 0),
            node("d", "Mul", &["c", "_Recv/b/1"], 1041, 4),
        ];
        let second = vec![
            node("_Recv/a/0", "_Recv", &[], 1015 + ahead, 0),
            node("b", "MatMul", &["_Recv/a/0"], 1015 + ahead, 20),
            node("_Send/b/1", "_Send", &["b"], 1035 + ahead, 0),
        ];
        vec![DeviceTrace { device: device(0), nodes: first }, DeviceTrace { device: device(1), nodes: second }]
    }

    #[test]
    fn clocks_are_aligned_by_what_travelled_both_ways() {
        let aligned = Timeline::of(&traces(0));
        assert_eq!(aligned.ways.len(), 2);
        assert_eq!(aligned.took_us(), 45.0);
        for ahead in [7, 1_000_000] {
            assert_eq!(Timeline::of(&traces(ahead)), aligned, "{ahead} us ahead");
        }
        // One direction only: shifted just far enough for the value to arrive when it was sent.
        let one_way = |behind: u64| {
            let mut traces = traces(0);
            traces[0].nodes.truncate(3);
            traces[1].nodes.truncate(2);
            traces[1].nodes.iter_mut().for_each(|node| node.start_ns -= behind * 1000);
            let timeline = Timeline::of(&traces);
            timeline.devices[1].nodes[0].start_us - timeline.devices[0].nodes[1].start_us
        };
        assert_eq!([one_way(0), one_way(5), one_way(500)], [5.0, 0.0, 0.0]);
    }

    #[test]
    fn costs_say_where_the_time_went() {
        let costs = Timeline::of(&traces(33)).costs();
        let times: Vec<_> = costs.devices.iter().map(|time| [time.busy_us, time.waiting_us, time.idle_us]).collect();
        // Task 0 runs for 10 + 3 + 4 of 45; task 1 for 20, and has no nodes after 35.
        assert_eq!(times, [[17.0, 28.0, 0.0], [20.0, 15.0, 10.0]]);
        let ops: Vec<_> = costs.ops.iter().map(|op| (op.op.as_str(), op.took_us)).collect();
        assert_eq!(ops, [("MatMul", 20.0), ("Exp", 10.0), ("Mul", 4.0), ("Neg", 3.0)]);
        let path: Vec<_> = costs.path.iter().map(|part| (part.name.as_str(), part.waited_us)).collect();
        let wanted = [
            ("a", 0.0),
            ("_Send/a/0", 0.0),
            ("_Recv/a/0", 5.0),
            ("b", 0.0),
            ("_Send/b/1", 0.0),
            ("_Recv/b/1", 5.0),
            ("d", 1.0),
        ];
        assert_eq!(path, wanted);
        // `_Send/a/0` in one direction, `_Send/b/1` in the other.
        let links: Vec<_> = costs
            .links
            .iter()
            .map(|link| (link.from.task.index, link.to.task.index, link.values, link.bytes))
            .collect();
        assert_eq!(links, [(0, 1, 1, 90), (1, 0, 1, 90)]);
    }

    #[test]
    fn runs_beside_each_other_count_once_and_nothing_is_no_step() {
        let device = Task::new("w", 0).device(DeviceKind::Cpu, 0);
        let nodes = vec![node("a", "A", &[], 5, 10), node("b", "B", &[], 8, 4), node("c", "C", &["a"], 20, 1)];
        let costs = Timeline::of(&[DeviceTrace { device, nodes }]).costs();
        assert_eq!((costs.devices[0].busy_us, costs.devices[0].waiting_us), (11.0, 5.0));
        let none = Timeline::of(&[]).costs();
        assert!(none.took_us == 0.0 && none.devices.is_empty() && none.path.is_empty());
    }

    #[test]
    fn a_path_leads_through_what_kept_the_device() {
        let device = Task::new("w", 0).device(DeviceKind::Cpu, 0);
        // c has no inputs, and y only c: but the device had b to run, and a before it.
        let nodes = vec![
            node("a", "A", &[], 0, 10),
            node("b", "B", &["a"], 10, 20),
            node("c", "C", &[], 31, 1),
            node("y", "Y", &["c"], 32, 4),
        ];
        let costs = Timeline::of(&[DeviceTrace { device, nodes }]).costs();
        let path: Vec<_> = costs.path.iter().map(|part| (part.name.as_str(), part.waited_us)).collect();
        assert_eq!(path, [("a", 0.0), ("b", 0.0), ("c", 1.0), ("y", 0.0)]);
    }

    #[test]
    fn a_path_leads_through_what_only_orders() {
        let device = Task::new("w", 0).device(DeviceKind::Cpu, 0);
        let nodes =
            vec![node("a", "A", &[], 0, 10), node("b", "B", &[], 0, 12), node("train", "NoOp", &["^a", "^b"], 13, 0)];
        let costs = Timeline::of(&[DeviceTrace { device, nodes }]).costs();
        let path: Vec<_> = costs.path.iter().map(|part| (part.name.as_str(), part.waited_us)).collect();
        assert_eq!(path, [("b", 0.0), ("train", 1.0)]);
    }

    #[test]
    fn a_path_through_a_loop_takes_the_run_before() {
        let device = Task::new("w", 0).device(DeviceKind::Cpu, 0);
        let turn =
            |i: u64| [node("next", "NextIteration", &["add"], 10 * i, 1), node("add", "Add", &["next"], 10 * i + 1, 9)];
        let costs = Timeline::of(&[DeviceTrace { device, nodes: (0..3).flat_map(turn).collect() }]).costs();
        let names: Vec<_> = costs.path.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["next", "add", "next", "add", "next", "add"]);
    }
}
