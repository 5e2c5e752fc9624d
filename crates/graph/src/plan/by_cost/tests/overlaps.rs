//! Series of steps that overlap: stages of a pipeline, which follow each other as closely as the busiest one allows.

use super::*;

/// A plan for most steps a second.
fn streamed(graph: &Graph, devices: &[DeviceFacts], fetch: &str) -> Plan {
    let by_cost = Some(ByCost { overlaps: true, compares: true, ..ByCost::default() });
    planned(graph, devices, &PlanOptions { by_cost, ..options(devices) }, fetch)
}

/// Nanoseconds of so many layers of 1024² at 20 GB/s: each reads 4 MiB of weights and moves two rows of 4 KiB; and a call.
fn layers_take(count: u64) -> u64 {
    count * ((4 << 20) * 1_000_000_000 / 20_000_000_000 + 2 * 4096 * 1_000_000_000 / 20_000_000_000 + 200)
}

#[test]
fn a_chain_becomes_stages_that_take_as_long_as_each_other() {
    // One step of a chain ends soonest on one device, whose caches hold the weights.
    let (graph, devices) = (layers(6, 1024), devices(&[1 << 30, 1 << 30, 1 << 30]));
    let plan = planned(&graph, &devices[..2], &options(&devices), "y5");
    assert_eq!((plan.pieces.len(), plan.estimate.unwrap().interval), (1, None));
    for (count, most) in [(2, 3), (3, 2)] {
        let plan = streamed(&graph, &devices[..count], "y5");
        let of = tasks(&plan, "w");
        let on = |task| of.iter().filter(|&&other| other == task).count();
        assert!((0..count as u32).all(|task| (1..=most).contains(&on(task))), "{of:?}");
        let estimate = plan.estimate.unwrap();
        let interval = estimate.interval.unwrap().as_nanos() as u64;
        // The first value is filled on the first device.
        assert!(interval.abs_diff(layers_take(most as u64)) < 1_000, "{interval}");
        let (_, alone) = estimate.alone.unwrap();
        assert!((alone.as_nanos() as u64).abs_diff(layers_take(6)) < 1_000, "{alone:?}");
        // A single step takes longer than on one device: its values cross.
        assert!(estimate.step > alone, "{:?}", estimate.step);
        assert!(estimate.next.unwrap().step.as_nanos() as u64 > interval);
        // The chain may end on the device where it began.
        let values: Vec<Option<u64>> = plan.transfers.iter().map(|one| one.bytes).collect();
        assert!(values.len() <= count && values.iter().all(|&bytes| bytes == Some(4096)), "{values:?}");
    }
}

#[test]
fn a_faster_device_gets_more_of_the_layers() {
    let (graph, mut devices) = (layers(9, 1024), devices(&[1 << 30, 1 << 30]));
    devices[1].capacity.rates = Some(Rates { bytes: 2 * RATES.bytes, ..RATES });
    // Weights of 24 MiB and less stay in the caches.
    let of = tasks(&streamed(&graph, &devices, "y8"), "w");
    assert_eq!(of.iter().filter(|&&task| task == 1).count(), 6, "{of:?}");
}

#[test]
fn what_takes_longer_to_send_than_to_compute_stays() {
    // Values of 4 MiB would cross, at 117 MB/s; and a step of a few microseconds is shorter than the work for a message.
    let chain = r#"
        "dims": {"op": "Const", "attrs": {"dtype": "int32", "value": [1024, 1024]}},
        "one": {"op": "Const", "attrs": {"dtype": "float32", "value": 1.0}}, "x": {"op": "Fill", "inputs": ["dims", "one"]},
        "a": {"op": "Exp", "inputs": ["x"]}, "b": {"op": "Neg", "inputs": ["a"]}, "c": {"op": "Exp", "inputs": ["b"]},
        "s": {"op": "Sum", "inputs": ["c", "axes"]}, "axes": {"op": "Const", "attrs": {"dtype": "int32", "value": [0, 1]}}"#;
    let devices = devices(&[1 << 30, 1 << 30]);
    for (graph, fetch) in [(graph(chain), "s"), (layers(4, 16), "y3")] {
        let plan = streamed(&graph, &devices, fetch);
        let estimate = plan.estimate.unwrap();
        assert_eq!(plan.pieces.len(), 1, "{fetch}");
        assert_eq!(estimate.alone, Some((devices[0].name.clone(), estimate.interval.unwrap())), "{fetch}");
    }
    // The processes of a machine share its cores.
    let graph = layers(8, 1024);
    let machines = devices.iter().map(|device| (device.name.task.clone(), 0)).collect();
    let by_cost = Some(ByCost { machines, overlaps: true, ..ByCost::default() });
    assert_eq!(planned(&graph, &devices, &PlanOptions { by_cost, ..options(&devices) }, "y7").pieces.len(), 1);
}

#[test]
fn values_of_steps_that_wait_for_a_stage_have_to_fit() {
    // Rows of 64 times 4 KiB cross from the device that has the first ones, and 32 steps may wait: 8 MiB.
    let layer = |at: usize, before: &str| {
        format!(
            r#", "w{at}": {{"op": "VarHandleOp", "attrs": {{"dtype": "float32", "shape": [1024, 1024]}}}},
            "r{at}": {{"op": "ReadVariableOp", "inputs": ["w{at}"], "attrs": {{"dtype": "float32"}}}},
            "y{at}": {{"op": "MatMul", "inputs": ["{before}", "r{at}"]}}"#
        )
    };
    let rows = r#""dims": {"op": "Const", "attrs": {"dtype": "int32", "value": [64, 1024]}},
        "one": {"op": "Const", "attrs": {"dtype": "float32", "value": 1.0}}, 
        "x": {"op": "Fill", "inputs": ["dims", "one"], "device": "/job:t/task:0"}"#;
    let nodes: String =
        (0..8).map(|at| layer(at, &if at == 0 { "x".into() } else { format!("y{}", at - 1) })).collect();
    let graph = graph(&format!("{rows}{nodes}"));
    let on_second = |bytes| {
        let plan = streamed(&graph, &devices(&[1 << 30, bytes]), "y7");
        tasks(&plan, "w").iter().filter(|&&task| task == 1).count()
    };
    // Of 28 MiB, 21 are used: three weights of 4 MiB, besides the 8 and results.
    assert_eq!([1 << 30, 28 << 20].map(on_second), [4, 3]);
}
