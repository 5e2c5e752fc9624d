//! The trace of the devices, as the step stats that TensorFlow's `timeline` displays.

use std::collections::HashSet;

use meshtf_graph::NodeDef;
use meshtf_graph::graphdef::graph_def;
use meshtf_graph::trace::{DeviceTrace, NodeTrace};
use meshtf_tensor::device::DeviceName;

use super::message::{DeviceStepStats, NodeExecStats, RunMetadata, RunOptions, StepStats};

/// The metadata of a traced step.
pub(super) fn metadata(traces: Vec<DeviceTrace>, options: &RunOptions) -> RunMetadata {
    let partition_graphs = match options.output_partition_graphs {
        true => traces.iter().map(|trace| graph_def(&nodes(trace))).collect(),
        false => Vec::new(),
    };
    let step_stats = (options.trace_level > 0).then(|| StepStats {
        dev_stats: traces
            .into_iter()
            .map(|DeviceTrace { device, nodes }| DeviceStepStats {
                device: full_name(&device),
                node_stats: nodes.into_iter().map(stats).collect(),
            })
            .collect(),
    });
    RunMetadata { step_stats, partition_graphs }
}

/// A device's name in TensorFlow's form.
pub(super) fn full_name(device: &DeviceName) -> String {
    let DeviceName { task, kind, index } = device;
    format!("/job:{}/replica:0/task:{}/device:{}:{index}", task.job, task.index, kind.name())
}

/// The nodes that a device ran, without repetitions.
fn nodes(trace: &DeviceTrace) -> Vec<NodeDef> {
    let mut seen = HashSet::new();
    let device = full_name(&trace.device);
    let first = trace.nodes.iter().filter(|node| seen.insert(&node.name));
    first
        .map(|NodeTrace { name, op, inputs, .. }| NodeDef {
            name: name.clone(),
            op: op.clone(),
            inputs: inputs.clone(),
            device: device.clone(),
            ..NodeDef::default()
        })
        .collect()
}

fn stats(run: NodeTrace) -> NodeExecStats {
    let start = (run.start_ns / 1000) as i64;
    // Rounded up, so that short ops stay visible.
    let took = run.took_ns.div_ceil(1000) as i64;
    NodeExecStats {
        timeline_label: format!("{} = {}({})", run.name, run.op, run.inputs.join(", ")),
        node_name: run.name,
        scheduled_micros: start,
        all_start_micros: start,
        op_start_rel_micros: 0,
        op_end_rel_micros: took,
        all_end_rel_micros: took,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::device::{DeviceKind, Task};

    #[test]
    fn a_trace_becomes_step_stats() {
        let node = NodeTrace {
            name: "y".into(),
            op: "AddV2".into(),
            inputs: vec!["x".into(), "x".into()],
            start_ns: 5_000_000_999,
            took_ns: 1_500,
            sent_bytes: 0,
        };
        let trace = DeviceTrace { device: Task::new("worker", 3).device(DeviceKind::Gpu, 1), nodes: vec![node] };
        let options = RunOptions { trace_level: 3, output_partition_graphs: true, ..RunOptions::default() };
        let metadata = metadata(vec![trace], &options);
        assert_eq!(metadata.partition_graphs[0].node[0].name, "y");
        let stats = metadata.step_stats.unwrap().dev_stats.remove(0);
        assert_eq!(stats.device, "/job:worker/replica:0/task:3/device:GPU:1");
        assert_eq!(stats.node_stats[0].timeline_label, "y = AddV2(x, x)");
        assert_eq!((stats.node_stats[0].all_start_micros, stats.node_stats[0].op_end_rel_micros), (5_000_000, 2));
    }
}
