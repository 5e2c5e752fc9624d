//! Choices against all choices, by hand and on drawn graphs; memory as a limit; and what has no choice stays.

mod adapts;
mod explained;
mod overlaps;
mod repeats;

use std::fmt::Write as _;

use meshtf_tensor::device::{Capacity, DeviceKind, DeviceMemory, Rates, Streamed};
use meshtf_tensor::{DType, Tensor};

use super::*;
use crate::attr::{Attr, Filled};
use crate::plan::{Plan, PlanOptions, Signature, Why, plan};
use crate::read;

const RATES: Rates = Rates { multiply_adds: 50_000_000_000, bytes: 20_000_000_000, streamed: None };

fn graph(nodes: &str) -> Graph {
    Graph::new(read(format!(r#"{{"version": 1, "nodes": {{{nodes}}}}}"#).as_bytes()).unwrap().nodes).unwrap()
}

/// CPU devices of tasks on machines of their own, with these bytes of memory.
fn devices(memories: &[u64]) -> Vec<DeviceFacts> {
    let device = |(index, &total): (usize, &u64)| {
        let memory = Some(DeviceMemory { total, free: total });
        let capacity = Capacity { memory, cores: None, rates: Some(RATES) };
        DeviceFacts { capacity, ..DeviceFacts::unknown(Task::new("t", index as u32).device(DeviceKind::Cpu, 0)) }
    };
    memories.iter().enumerate().map(device).collect()
}

fn options(devices: &[DeviceFacts]) -> PlanOptions {
    let default_device = devices[0].name.clone();
    PlanOptions { default_device, soft_placement: false, by_cost: Some(ByCost::default()) }
}

fn planned(graph: &Graph, devices: &[DeviceFacts], options: &PlanOptions, fetch: &str) -> Plan {
    plan(graph, devices, &Signature { fetches: vec![fetch.into()], ..Signature::default() }, options).unwrap()
}

/// The tasks of a plan's nodes, by their names' beginnings.
fn tasks(plan: &Plan, begins: &str) -> Vec<u32> {
    let placed = plan.placements.iter().filter(|placement| placement.node.starts_with(begins));
    placed.map(|placement| placement.device.task.index).collect()
}

/// Layers in a row, each a product with a matrix of `size`² of float32, which is a variable.
fn layers(count: usize, size: usize) -> Graph {
    let mut nodes = format!(
        r#""x": {{"op": "Fill", "inputs": ["dims", "one"]}}, "dims": {{"op": "Const", "attrs": {{"dtype": "int32", "value": [1, {size}]}}}},
        "one": {{"op": "Const", "attrs": {{"dtype": "float32", "value": 1.0}}}}"#
    );
    for layer in 0..count {
        let before = if layer == 0 { "x".to_owned() } else { format!("y{}", layer - 1) };
        write!(
            nodes,
            r#", "w{layer}": {{"op": "VarHandleOp", "attrs": {{"dtype": "float32", "shape": [{size}, {size}]}}}},
            "r{layer}": {{"op": "ReadVariableOp", "inputs": ["w{layer}"], "attrs": {{"dtype": "float32"}}}},
            "y{layer}": {{"op": "MatMul", "inputs": ["{before}", "r{layer}"]}}"#
        )
        .unwrap();
    }
    graph(&nodes)
}

#[test]
fn a_small_graph_stays_on_the_masters_device() {
    let (graph, devices) = (layers(4, 16), devices(&[1 << 30, 1 << 30]));
    for default in 0..2 {
        let mut options = options(&devices);
        options.default_device = devices[default].name.clone();
        let plan = planned(&graph, &devices, &options, "y3");
        assert!(plan.placements.iter().all(|placement| placement.device == devices[default].name));
        assert!(plan.transfers.is_empty());
        let estimate = plan.estimate.unwrap();
        assert_eq!(estimate.alone, Some((devices[default].name.clone(), estimate.step)));
    }
}

#[test]
fn a_model_that_fits_into_no_memory_is_cut_where_least_crosses() {
    // Twelve layers of 4 MiB; two devices of 36 MiB, of which 27 are used: at most six and a bit on each.
    let (graph, devices) = (layers(12, 1024), devices(&[36 << 20, 36 << 20]));
    let plan = planned(&graph, &devices, &options(&devices), "y11");
    let of = tasks(&plan, "w");
    assert!(
        of.iter().filter(|&&task| task == 0).count() <= 6 && of.iter().filter(|&&task| task == 1).count() <= 6,
        "{of:?}"
    );
    // One value of 4 kB crosses, and no weights.
    let values: Vec<u64> = plan.transfers.iter().filter_map(|transfer| transfer.bytes).collect();
    assert_eq!(values, [4096], "{:?}", plan.transfers);
    assert!(plan.placements.iter().filter(|placement| placement.node.starts_with('w')).all(|own| own.why == Why::Cost));
    assert_eq!(plan.estimate.unwrap().alone, None);
}

#[test]
fn weights_are_not_sent_at_the_start_of_each_step_to_a_device_that_lacks_the_memory_for_them() {
    // Two processes of a machine that compute slower than the link carries: weights that are sent while others are used
    // would take no time, and they arrive before they are used.
    let (graph, mut devices) = (layers(12, 1024), devices(&[36 << 20, 36 << 20]));
    for device in &mut devices {
        device.capacity.rates = Some(Rates { bytes: 500_000_000, ..RATES });
    }
    let machines = devices.iter().map(|device| (device.name.task.clone(), 0)).collect();
    let by_cost = Some(ByCost { machines, ..ByCost::default() });
    let plan = planned(&graph, &devices, &PlanOptions { by_cost, ..options(&devices) }, "y11");
    let values: Vec<u64> = plan.transfers.iter().filter_map(|transfer| transfer.bytes).collect();
    assert!(values.iter().all(|&bytes| bytes == 4096), "{values:?}");
}

/// Sums of tables of 8 MB, which are constants, and the sum of those.
fn tables(count: usize) -> Graph {
    let names: Vec<String> = (0..count).map(|table| format!("w{table}")).collect();
    let of = |name: &String| format!(r#""{name}": 1, "s_{name}": {{"op": "Sum", "inputs": ["{name}", 0]}}"#);
    let nodes: Vec<String> = names.iter().map(of).collect();
    let sums: Vec<String> = names.iter().map(|name| format!("\"s_{name}\"")).collect();
    let sum = format!(r#""y": {{"op": "AddN", "inputs": [{}]}}"#, sums.join(", "));
    let text = format!(r#"{{"version": 1, "nodes": {{{}, {sum}}}}}"#, nodes.join(", "));
    let mut nodes = read(text.as_bytes()).unwrap().nodes;
    for node in nodes.iter_mut().filter(|node| node.name.starts_with('w')) {
        let table = Filled::new(Tensor::scalar(1f32), [2_000_000].into()).unwrap();
        node.attrs.set("value", Attr::Filled(table));
        node.attrs.set("dtype", DType::F32.into());
    }
    Graph::new(nodes).unwrap()
}

#[test]
fn constants_that_fit_into_no_memory_are_divided() {
    // 96 MB; of two devices of 120 MB, 90 are used. On two machines, and on one, where nothing else is gained.
    // They compute slower than links carry, so that to send constants in each step would take no time.
    let (graph, mut devices) = (tables(12), devices(&[120_000_000, 120_000_000]));
    for device in &mut devices {
        device.capacity.rates = Some(Rates { bytes: 500_000_000, ..RATES });
    }
    for machine in [1, 0] {
        let machines = devices.iter().zip(0..).map(|(device, at)| (device.name.task.clone(), at * machine)).collect();
        let by_cost = Some(ByCost { machines, ..ByCost::default() });
        let plan = planned(&graph, &devices, &PlanOptions { by_cost, ..options(&devices) }, "y");
        let of = tasks(&plan, "w");
        assert!((1..=11).contains(&of.iter().filter(|&&task| task == 0).count()), "{machine}: {of:?}");
        let values: Vec<Option<u64>> = plan.transfers.iter().map(|transfer| transfer.bytes).collect();
        assert!(values.iter().all(|&bytes| bytes == Some(4)), "{machine}: {values:?}");
        for total in crate::plan::totals(&plan, &graph, &devices).values() {
            assert!(total.peak <= 90_000_000, "{machine}: {total:?}");
        }
    }
}

/// Branches of products of matrices of 1024², which join at the end in one of 4 kB.
fn branches(count: usize) -> Graph {
    let size = 1024;
    let mut nodes = format!(
        r#""dims": {{"op": "Const", "attrs": {{"dtype": "int32", "value": [{size}, {size}]}}}},
        "one": {{"op": "Const", "attrs": {{"dtype": "float32", "value": 1.0}}}},
        "axis": {{"op": "Const", "attrs": {{"dtype": "int32", "value": [0]}}}},
        "y": {{"op": "AddN", "inputs": [{}]}}"#,
        (0..count).map(|branch| format!("\"s{branch}\"")).collect::<Vec<_>>().join(", ")
    );
    for branch in 0..count {
        write!(
            nodes,
            r#", "x{branch}": {{"op": "Fill", "inputs": ["dims", "one"]}}, "a{branch}": {{"op": "MatMul", "inputs": ["x{branch}", "x{branch}"]}},
            "b{branch}": {{"op": "MatMul", "inputs": ["a{branch}", "x{branch}"]}},
            "s{branch}": {{"op": "Sum", "inputs": ["b{branch}", "axis"]}}"#
        )
        .unwrap();
    }
    graph(&nodes)
}

#[test]
fn branches_are_computed_beside_each_other_on_machines_but_not_on_one() {
    let (graph, devices) = (branches(4), devices(&[1 << 30, 1 << 30]));
    let mut options = options(&devices);
    let plan = planned(&graph, &devices, &options, "y");
    let mut of = tasks(&plan, "b");
    of.sort_unstable();
    assert_eq!(of, [0, 0, 1, 1]);
    let Estimate { step, alone, .. } = plan.estimate.unwrap();
    let (_, alone) = alone.unwrap();
    assert!(step < alone.mul_f64(0.55), "{step:?} beside {alone:?}");
    // Two processes of a machine share its cores.
    let machines = devices.iter().map(|device| (device.name.task.clone(), 0)).collect();
    options.by_cost = Some(ByCost { machines, ..ByCost::default() });
    let plan = planned(&graph, &devices, &options, "y");
    assert_eq!(plan.pieces.len(), 1);
}

/// The expected time of a step on one device, in microseconds.
fn alone(graph: &Graph, devices: &[DeviceFacts], fetch: &str) -> u128 {
    planned(graph, devices, &options(devices), fetch).estimate.unwrap().step.as_micros()
}

#[test]
fn weights_that_no_cache_holds_are_read_from_memory() {
    let mut devices = devices(&[4 << 30]);
    let mut of = |count, size, cores| {
        devices[0].capacity.cores = cores;
        alone(&layers(count, size), &devices, &format!("y{}", count - 1))
    };
    // Three matrices of 2048² are 50.3 MB: 10.07 ms at a quarter of the caches' 20 GB/s, beside four calls of 0.2 µs, and seven
    // vectors of 8 kB in the caches.
    assert_eq!(of(3, 2048, None), 10_069);
    assert_eq!(of(3, 2048, Some(1)), 10_069, "8 GB/s are more than a quarter");
    // One of them, 16.8 MB, stays in the caches.
    assert_eq!(of(1, 2048, None), 840);
    // Of faster caches, the memory of a core brings 8 GB/s: 6.291 ms, beside seven vectors at 200 GB/s.
    devices[0].capacity.rates = Some(Rates { bytes: 200_000_000_000, ..RATES });
    devices[0].capacity.cores = Some(1);
    assert_eq!(alone(&layers(3, 2048), &devices, "y2"), 6_292);
    // Measured rates count: of 50.3 MB, the caches keep 16.8 MB, at 80 GB/s 0.210 ms, and memory brings the rest at 25 GB/s in
    // 1.342 ms.
    let streamed = Some(Streamed { kept: 80_000_000_000, memory: 25_000_000_000 });
    devices[0].capacity.rates = Some(Rates { bytes: 200_000_000_000, streamed, ..RATES });
    assert_eq!(alone(&layers(3, 2048), &devices, "y2"), 1_552);
    // Of six, 100.7 MB, they keep as much: 3.355 ms for the rest, beside seven calls and thirteen vectors.
    assert_eq!(alone(&layers(6, 2048), &devices, "y5"), 3_567);
    // All of one is in the caches.
    assert_eq!(alone(&layers(1, 2048), &devices, "y0"), 210);
}

#[test]
fn measured_links_decide_whether_a_division_pays() {
    let (graph, devices) = (branches(4), devices(&[1 << 30, 1 << 30]));
    let mut options = options(&devices);
    let mut pieces = |round_trip, bytes| {
        let link = LinkRate { round_trip: Some(Duration::from_millis(round_trip)), bytes };
        let links = BTreeMap::from([(devices[1].name.task.clone(), link)]);
        options.by_cost = Some(ByCost { links, ..ByCost::default() });
        planned(&graph, &devices, &options, "y").pieces.len()
    };
    // 86 ms on each of two, or 172 ms on one.
    assert_eq!(pieces(1, Some(100_000_000)), 2);
    assert_eq!(pieces(1000, None), 1);
}

#[test]
fn nodes_follow_variables_that_were_placed_before() {
    // Two processes of a machine, in turns: no processor is saved, but all weights would cross.
    let (graph, devices) = (layers(12, 1024), devices(&[1 << 30, 1 << 30]));
    let machines = devices.iter().map(|device| (device.name.task.clone(), 0)).collect();
    let homes = (0..12).map(|layer| (format!("w{layer}"), devices[layer / 6].name.clone())).collect();
    let by_cost = Some(ByCost { machines, homes, ..ByCost::default() });
    let plan = planned(&graph, &devices, &PlanOptions { by_cost, ..options(&devices) }, "y11");
    let values: Vec<u64> = plan.transfers.iter().filter_map(|transfer| transfer.bytes).collect();
    assert_eq!(values, [4096], "{:?}", plan.transfers);
}

#[test]
fn requests_colocation_and_homes_stay() {
    let nodes = r#"
        "x": {"op": "Const", "attrs": {"dtype": "float32", "value": 2.0}},
        "fixed": {"op": "Neg", "inputs": ["x"], "device": "/job:t/task:1"},
        "beside": {"op": "Exp", "inputs": ["fixed"], "attrs": {"_class": ["loc:@fixed"]}},
        "w": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": []}},
        "r": {"op": "ReadVariableOp", "inputs": ["w"], "attrs": {"dtype": "float32"}},
        "y": {"op": "AddV2", "inputs": ["beside", "r"]}"#;
    let (graph, devices) = (graph(nodes), devices(&[1 << 30, 1 << 30, 1 << 30]));
    let mut options = options(&devices);
    let homes = BTreeMap::from([("w".to_owned(), devices[2].name.clone())]);
    options.by_cost = Some(ByCost { homes, ..ByCost::default() });
    let plan = planned(&graph, &devices, &options, "y");
    let task = |name: &str| plan.placements.iter().find(|own| own.node == name).unwrap().device.task.index;
    assert_eq!(["fixed", "beside", "w", "r"].map(task), [1, 1, 2, 2]);
}

/// The nodes of a graph that have a choice of two devices.
fn free(nodes: &str) -> Vec<String> {
    let (graph, devices) = (graph(nodes), devices(&[1 << 30, 1 << 30]));
    let problem = problem(&graph, &devices);
    let units = problem.all_on(0);
    graph.nodes().filter(|(id, _)| problem.chosen(*id, &units).is_some()).map(|(_, node)| node.name.clone()).collect()
}

fn problem(graph: &Graph, devices: &[DeviceFacts]) -> Problem {
    let by_name = |spec: &DeviceSpec| devices.iter().position(|device| device.name.matches(spec));
    let groups = Groups::of(graph, false);
    Problem::of(graph, &groups, devices, &ByCost::default(), by_name)
}

#[test]
fn loops_stay_where_names_put_them() {
    let nodes = r#"
        "zero": {"op": "Const", "attrs": {"dtype": "float32", "value": 0.0}},
        "limit": {"op": "Const", "attrs": {"dtype": "float32", "value": 10.0}},
        "enter": {"op": "Enter", "inputs": ["zero"], "attrs": {"frame_name": "f"}},
        "bound": {"op": "Enter", "inputs": ["limit"], "attrs": {"frame_name": "f", "is_constant": true}},
        "merge": {"op": "Merge", "inputs": ["enter", "next"]},
        "less": {"op": "Less", "inputs": ["merge", "bound"]},
        "cond": {"op": "LoopCond", "inputs": ["less"]},
        "switch": {"op": "Switch", "inputs": ["merge", "cond"]},
        "one": {"op": "Const", "attrs": {"dtype": "float32", "value": 1.0}, "control": ["switch"]},
        "more": {"op": "AddV2", "inputs": ["switch:1", "one"]},
        "next": {"op": "NextIteration", "inputs": ["more"]},
        "exit": {"op": "Exit", "inputs": ["switch"]}"#;
    assert_eq!(free(nodes), [""; 0]);
}

#[test]
fn of_what_keeps_state_only_variables_have_a_choice() {
    let nodes = r#"
        "w": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": []}},
        "set": {"op": "AssignVariableOp", "inputs": ["w", "x"]},
        "x": {"op": "RandomUniform", "inputs": ["shape"], "attrs": {"dtype": "float32"}},
        "shape": {"op": "Const", "attrs": {"dtype": "int32", "value": [1]}},
        "old": {"op": "VariableV2", "attrs": {"dtype": "float32", "shape": []}},
        "queue": {"op": "FIFOQueueV2", "attrs": {"component_types": ["float32"]}},
        "put": {"op": "QueueEnqueueV2", "inputs": ["queue", "x"]},
        "stage": {"op": "Stage", "inputs": ["x"]},
        "a": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": [], "shared_name": "same"}},
        "b": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": [], "shared_name": "same"}},
        "file": {"op": "Const", "attrs": {"dtype": "string", "value": "f"}},
        "read": {"op": "ReadFile", "inputs": ["file"]},
        "y": {"op": "Neg", "inputs": ["x"]}"#;
    let mut free = free(nodes);
    free.sort();
    // `shape` goes where `x` is, and `file` where `read` is.
    assert_eq!(free, ["old", "set", "w", "y"]);
}

#[test]
fn an_output_of_many_bytes_is_no_copy_of_one_of_few() {
    // The parts of a split, and a control edge, cross to the second device; then nothing is there any more.
    let nodes = r#"
        "x": {"op": "Const", "attrs": {"dtype": "float32", "value": [1.0, 2.0, 3.0, 4.0]}},
        "n": {"op": "Neg", "inputs": ["x"]},
        "axis": {"op": "Const", "attrs": {"dtype": "int32", "value": 0}},
        "sizes": {"op": "Const", "attrs": {"dtype": "int32", "value": [1, 3]}},
        "split": {"op": "SplitV", "inputs": ["n", "sizes", "axis"], "attrs": {"num_split": 2}},
        "small": {"op": "Exp", "inputs": ["split"], "device": "/job:t/task:1"},
        "large": {"op": "Exp", "inputs": ["split:1"], "device": "/job:t/task:1"},
        "last": {"op": "Neg", "inputs": ["small"], "control": ["split"], "device": "/job:t/task:1"}"#;
    let (graph, devices) = (graph(nodes), devices(&[1 << 30, 1 << 30]));
    let problem = problem(&graph, &devices);
    let mut player = Player::new(&problem);
    let cost = player.play(&problem.all_on(0));
    assert_eq!(cost.crossings, 2);
    // `large` and `last` are results, which stay; the copies of four and twelve bytes are gone.
    assert_eq!(player.held(1), 12 + 4);
}

/// So many nodes that compute matrices of a size by one of the ops, each from one or two before it.
fn drawn(numbers: &mut search::Numbers, count: usize, size: usize, ops: &[&str]) -> Graph {
    let mut nodes = format!(
        r#""dims": {{"op": "Const", "attrs": {{"dtype": "int32", "value": [{size}, {size}]}}}},
        "one": {{"op": "Const", "attrs": {{"dtype": "float32", "value": 1.0}}}},
        "n0": {{"op": "Fill", "inputs": ["dims", "one"]}}"#
    );
    for at in 1..count {
        let op = ops[numbers.below(ops.len())];
        let first = numbers.below(at);
        let second = if op == "Exp" { String::new() } else { format!(r#", "n{}""#, numbers.below(at)) };
        write!(nodes, r#", "n{at}": {{"op": "{op}", "inputs": ["n{first}"{second}]}}"#).unwrap();
    }
    graph(&nodes)
}

#[test]
fn the_search_finds_choices_within_a_twentieth_of_the_best() {
    let mut numbers = search::Numbers(7);
    // Of single steps, and of series of steps that overlap.
    for (round, overlaps) in (0..40).flat_map(|round| [(round, false), (round, true)]) {
        let graph = drawn(&mut numbers, 12, 512, &["MatMul", "MatMul", "AddV2", "Exp"]);
        let memories = [[1 << 30, 1 << 30], [5 << 20, 6 << 20]][round % 2];
        let mut devices = devices(&memories);
        // Between processes of a machine whose processors are apart, so that a division pays; one is faster.
        if let Some(rates) = &mut devices[1].capacity.rates {
            rates.multiply_adds = rates.multiply_adds * 13 / 10;
        }
        let mut problem = problem(&graph, &devices);
        problem.overlaps = overlaps;
        problem.connect_fast();
        let mut player = Player::new(&problem);
        let start = problem.all_on(0);
        let of_start = player.play(&start);
        let (_, best) = search::best(&problem, &mut player, &start, of_start, search::BUDGET);
        let (_, found) = search::climbed(&problem, &mut player, &start, of_start, search::BUDGET);
        assert!(found.over <= best.over, "{round}: {found:?} beside {best:?}");
        // If no choice fits, that which lacks least is found, whatever its time.
        let limit = best.length() + best.length() / 20;
        assert!(best.over > 0 || found.length() <= limit, "{round}: {found:?} beside {best:?}");
    }
}

#[test]
fn a_long_chain_is_placed_the_same_each_time() {
    let (graph, devices) = (layers(500, 64), devices(&[1 << 21; 8]));
    let problem = problem(&graph, &devices);
    let choose = || {
        let mut player = Player::new(&problem);
        let first = problem.all_on(0);
        let of_first = player.play(&first);
        search::best(&problem, &mut player, &first, of_first, search::BUDGET)
    };
    assert!(choose().1.over == 0);
    assert_eq!(choose(), choose());
}
