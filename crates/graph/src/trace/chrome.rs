//! A timeline in Chrome's Trace Event format, which Perfetto and `chrome://tracing` open.
//!
//! In this format, a task is a process, and the rows of a device are its threads: nodes that overlap in time are in different
//! rows. A transferred value is a flow from the node that sent it to the one that received it.

use meshtf_tensor::device::Task;
use serde_json::{Value, json};

use super::timeline::{DeviceTimeline, HALF_NS, Timeline};

/// Most rows of a device.
const ROWS_A_DEVICE: usize = 1 << 10;

impl Timeline {
    /// The trace as JSON: the top-level object of the format.
    pub fn chrome_trace(&self) -> Value {
        let mut tasks: Vec<&Task> = self.devices.iter().map(|device| &device.device.task).collect();
        tasks.sort();
        tasks.dedup();
        let process = |device: &DeviceTimeline| tasks.binary_search(&&device.device.task).unwrap_or(0) + 1;
        let mut events: Vec<Value> = tasks
            .iter()
            .enumerate()
            .map(|(i, task)| json!({ "ph": "M", "name": "process_name", "pid": i + 1, "args": { "name": task.to_string() } }))
            .collect();
        let mut rows = Vec::with_capacity(self.devices.len());
        for (d, device) in self.devices.iter().enumerate() {
            let (own, count) = rows_of(device);
            for row in 0..count {
                let name = device.device.to_string();
                let name = if row == 0 { name } else { format!("{name}, beside ({row})") };
                let thread = d * ROWS_A_DEVICE + row;
                events.push(json!({
                    "ph": "M", "name": "thread_name", "pid": process(device), "tid": thread, "args": { "name": name },
                }));
            }
            for (node, &row) in device.nodes.iter().zip(&own) {
                events.push(json!({
                    "ph": "X", "name": node.name, "cat": node.op, "pid": process(device), "tid": d * ROWS_A_DEVICE + row,
                    "ts": node.start_us, "dur": node.took_us, "args": { "op": node.op, "inputs": node.inputs },
                }));
            }
            rows.push(own);
        }
        for (number, way) in self.ways.iter().enumerate() {
            for (phase, (d, n)) in [("s", way.from), ("f", way.to)] {
                let (device, node) = (&self.devices[d], &self.devices[d].nodes[n]);
                events.push(json!({
                    "ph": phase, "bp": "e", "id": number, "name": "transfer", "cat": "transfer", "pid": process(device),
                    "tid": d * ROWS_A_DEVICE + rows[d][n], "ts": node.start_us + node.took_us,
                    "args": { "bytes": self.sent_bytes(way) },
                }));
            }
        }
        json!({ "displayTimeUnit": "ms", "traceEvents": events })
    }
}

/// The row of each node, such that nodes in one row do not overlap, and the number of rows.
fn rows_of(device: &DeviceTimeline) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..device.nodes.len()).collect();
    order.sort_by(|&a, &b| device.nodes[a].start_us.total_cmp(&device.nodes[b].start_us).then(a.cmp(&b)));
    let mut ends: Vec<f64> = Vec::new();
    let mut rows = vec![0; device.nodes.len()];
    for n in order {
        let node = &device.nodes[n];
        let free = ends.iter().position(|&end| end <= node.start_us + HALF_NS);
        let row = free.unwrap_or(ends.len()).min(ROWS_A_DEVICE - 1);
        let end = node.start_us + node.took_us;
        match ends.get_mut(row) {
            Some(place) => *place = place.max(end),
            None => ends.push(end),
        }
        rows[n] = row;
    }
    (rows, ends.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{DeviceTrace, NodeTrace};
    use meshtf_tensor::device::DeviceKind;

    fn node(name: &str, op: &str, start_us: u64, took_us: u64) -> NodeTrace {
        NodeTrace {
            name: name.to_owned(),
            op: op.to_owned(),
            start_ns: start_us * 1000,
            took_ns: took_us * 1000,
            ..NodeTrace::default()
        }
    }

    #[test]
    fn what_one_thread_ran_is_in_one_row() {
        // Each begins when the one before has ended, some within one microsecond.
        let mut start_ns = 1_790_000_000_123_456_789;
        let one = |n: u64| {
            let took_ns = 1 + n * 337 % 2000;
            start_ns += took_ns;
            NodeTrace { start_ns: start_ns - took_ns, took_ns, ..node("a", "A", 0, 0) }
        };
        let device = Task::new("w", 0).device(DeviceKind::Cpu, 0);
        let trace = DeviceTrace { device, nodes: (0..5000).map(one).collect() };
        let timeline = Timeline::of(&[trace]);
        assert_eq!(rows_of(&timeline.devices[0]).1, 1);
    }

    #[test]
    fn tasks_are_processes_and_what_overlaps_has_rows_of_its_own() {
        let device = |task: u32| Task::new("w", task).device(DeviceKind::Cpu, 0);
        let first = vec![node("b", "B", 2, 3), node("a", "A", 0, 10), node("_Send/a/0", "_Send", 10, 0)];
        let second = vec![node("_Recv/a/0", "_Recv", 12, 0), node("c", "C", 13, 2)];
        let traces = [(1, second), (0, first)].map(|(task, nodes)| DeviceTrace { device: device(task), nodes });
        let trace = Timeline::of(&traces).chrome_trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
        let runs: Vec<_> = of("X")
            .iter()
            .map(|event| {
                (event["name"].as_str().unwrap(), event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())
            })
            .collect();
        let row = ROWS_A_DEVICE as u64;
        // a starts first and has the first row; b runs meanwhile; the value is sent when a is done.
        let wanted = [("_Recv/a/0", 2, 0), ("c", 2, 0), ("b", 1, row + 1), ("a", 1, row), ("_Send/a/0", 1, row)];
        assert_eq!(runs, wanted);
        let (starts, ends) = (of("s"), of("f"));
        assert_eq!((starts.len(), ends.len()), (1, 1));
        assert_eq!((&starts[0]["pid"], &ends[0]["pid"], &starts[0]["id"]), (&json!(1), &json!(2), &ends[0]["id"]));
        assert!(starts[0]["ts"].as_f64() <= ends[0]["ts"].as_f64());
        let names: Vec<_> = of("M").iter().filter_map(|event| event["args"]["name"].as_str()).collect();
        assert_eq!(names[..2], ["/job:w/task:0", "/job:w/task:1"]);
    }
}
