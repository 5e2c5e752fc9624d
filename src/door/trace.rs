//! What the devices ran, as the step stats that TensorFlow's `timeline` draws.

use super::message::{DeviceStepStats, NodeExecStats, RunMetadata, StepStats};
use crate::plan::trace::{DeviceTrace, NodeTrace};

/// The metadata of a traced step.
pub(super) fn metadata(traces: Vec<DeviceTrace>) -> RunMetadata {
    let dev_stats = traces
        .into_iter()
        .map(|DeviceTrace { device, nodes }| DeviceStepStats {
            device: format!(
                "/job:{}/replica:0/task:{}/device:{}:{}",
                device.task.job,
                device.task.index,
                device.kind.name(),
                device.index
            ),
            node_stats: nodes.into_iter().map(stats).collect(),
        })
        .collect();
    RunMetadata { step_stats: Some(StepStats { dev_stats }) }
}

fn stats(run: NodeTrace) -> NodeExecStats {
    let start = run.start_us as i64;
    // What took no whole microsecond is still to be seen.
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
    use crate::plan::{DeviceKind, Task};

    #[test]
    fn a_trace_becomes_step_stats() {
        let node = NodeTrace {
            name: "y".into(),
            op: "AddV2".into(),
            inputs: vec!["x".into(), "x".into()],
            start_us: 5_000_000,
            took_ns: 1_500,
        };
        let trace = DeviceTrace { device: Task::new("worker", 3).device(DeviceKind::Gpu, 1), nodes: vec![node] };
        let stats = metadata(vec![trace]).step_stats.unwrap().dev_stats.remove(0);
        assert_eq!(stats.device, "/job:worker/replica:0/task:3/device:GPU:1");
        assert_eq!(stats.node_stats[0].timeline_label, "y = AddV2(x, x)");
        assert_eq!((stats.node_stats[0].all_start_micros, stats.node_stats[0].op_end_rel_micros), (5_000_000, 2));
    }
}
