//! The trace of the devices, as the step stats that TensorFlow's `timeline` displays.

use std::collections::HashSet;

use meshtf_graph::NodeDef;
use meshtf_graph::graphdef::{Dim, TensorShapeProto, graph_def};
use meshtf_graph::trace::{DeviceTrace, NodeTrace, OutputTrace};
use meshtf_tensor::device::{DeviceKind, DeviceName};

use super::message::{
    AllocationDescription, AllocatorMemoryUsed, DeviceStepStats, NodeExecStats, NodeOutput, RunMetadata, RunOptions,
    StepStats, TensorDescription,
};

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
                node_stats: nodes.into_iter().map(|run| stats(run, &allocator(&device))).collect(),
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

/// TensorFlow's name for the memory of a device.
fn allocator(device: &DeviceName) -> String {
    match device.kind {
        DeviceKind::Cpu => "cpu".to_owned(),
        DeviceKind::Gpu => format!("GPU_{}_bfc", device.index),
    }
}

/// A tensor that a node made.
fn output(OutputTrace { port, dtype, shape, bytes }: OutputTrace, allocator: &str) -> NodeOutput {
    let bytes = bytes as i64;
    let dim = shape.dims().iter().map(|&size| Dim { size: size as i64 }).collect();
    let allocation =
        AllocationDescription { requested_bytes: bytes, allocated_bytes: bytes, allocator_name: allocator.to_owned() };
    let description = TensorDescription {
        dtype: dtype.proto_number(),
        shape: Some(TensorShapeProto { dim, unknown_rank: false }),
        allocation_description: Some(allocation),
    };
    NodeOutput { slot: port as i32, tensor_description: Some(description) }
}

fn stats(run: NodeTrace, allocator: &str) -> NodeExecStats {
    let start = (run.start_ns / 1000) as i64;
    // Rounded up, so that short ops stay visible.
    let took = run.took_ns.div_ceil(1000) as i64;
    let bytes = run.outputs.iter().map(|output| output.bytes as i64).sum();
    let used = AllocatorMemoryUsed { allocator_name: allocator.to_owned(), total_bytes: bytes, peak_bytes: bytes };
    NodeExecStats {
        timeline_label: format!("{} = {}({})", run.name, run.op, run.inputs.join(", ")),
        node_name: run.name,
        scheduled_micros: start,
        all_start_micros: start,
        op_start_rel_micros: 0,
        op_end_rel_micros: took,
        all_end_rel_micros: took,
        memory: if bytes > 0 { vec![used] } else { Vec::new() },
        output: run.outputs.into_iter().map(|one| output(one, allocator)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::device::Task;
    use meshtf_tensor::{DType, Shape};

    #[test]
    fn a_trace_becomes_step_stats() {
        let node = NodeTrace {
            name: "y".into(),
            op: "AddV2".into(),
            inputs: vec!["x".into(), "x".into()],
            start_ns: 5_000_000_999,
            took_ns: 1_500,
            sent_bytes: 0,
            outputs: vec![OutputTrace { port: 0, dtype: DType::F32, shape: Shape::from(vec![2, 3]), bytes: 24 }],
        };
        let trace = DeviceTrace { device: Task::new("worker", 3).device(DeviceKind::Gpu, 1), nodes: vec![node] };
        let options = RunOptions { trace_level: 3, output_partition_graphs: true, ..RunOptions::default() };
        let metadata = metadata(vec![trace], &options);
        assert_eq!(metadata.partition_graphs[0].node[0].name, "y");
        let stats = metadata.step_stats.unwrap().dev_stats.remove(0);
        assert_eq!(stats.device, "/job:worker/replica:0/task:3/device:GPU:1");
        assert_eq!(stats.node_stats[0].timeline_label, "y = AddV2(x, x)");
        let stats = &stats.node_stats[0];
        assert_eq!((stats.all_start_micros, stats.op_end_rel_micros), (5_000_000, 2));
        assert_eq!((stats.memory[0].allocator_name.as_str(), stats.memory[0].total_bytes), ("GPU_1_bfc", 24));
        let description = stats.output[0].tensor_description.as_ref().unwrap();
        assert_eq!(description.dtype, 1);
        let sizes: Vec<i64> = description.shape.as_ref().unwrap().dim.iter().map(|dim| dim.size).collect();
        assert_eq!(sizes, [2, 3]);
        assert_eq!(description.allocation_description.as_ref().unwrap().requested_bytes, 24);
    }
}
