//! A plan that runs, beside those that would be chosen now.

use super::*;

const BOTH: [u64; 2] = [1 << 30; 2];

/// The choice for a session that runs this plan, over links of so many milliseconds and bytes a second, if they are known.
fn again(graph: &Graph, devices: &[DeviceFacts], ran: &Plan, link: Option<(u64, u64)>) -> Plan {
    let link = link.map_or(LinkRate::default(), |(round_trip, bytes)| LinkRate {
        round_trip: Some(Duration::from_millis(round_trip)),
        bytes: Some(bytes),
    });
    let links = devices.iter().map(|device| (device.name.task.clone(), link)).collect();
    let placed = ran.placements.iter().map(|one| (one.node.clone(), one.device.clone())).collect();
    let by_cost = Some(ByCost { placed, links, ..ByCost::default() });
    planned(graph, devices, &PlanOptions { by_cost, ..options(devices) }, "y")
}

/// The tasks of all nodes but constants, of which each device has its own.
fn computing(plan: &Plan) -> Vec<(&str, u32)> {
    let nodes = plan.placements.iter().filter(|one| one.op != "Const");
    nodes.map(|one| (one.node.as_str(), one.device.task.index)).collect()
}

/// The plan with one device, as before the second joined.
fn alone_before(graph: &Graph, devices: &[DeviceFacts]) -> Plan {
    planned(graph, &devices[..1], &options(devices), "y")
}

#[test]
fn steps_that_a_device_which_joins_makes_shorter_move_to_it_once() {
    let (graph, devices) = (branches(4), devices(&BOTH));
    let ran = alone_before(&graph, &devices);
    let plan = again(&graph, &devices, &ran, Some((1, 100_000_000)));
    let mut of = tasks(&plan, "b");
    of.sort_unstable();
    assert_eq!(of, [0, 0, 1, 1]);
    let estimate = plan.estimate.clone().unwrap();
    assert_eq!(estimate.before, Some(ran.estimate.unwrap().step));
    let stays = again(&graph, &devices, &plan, Some((1, 100_000_000)));
    assert_eq!((computing(&stays), stays.estimate.as_ref().unwrap().before), (computing(&plan), None));
    // A link that has become slow takes them back.
    let back = again(&graph, &devices, &plan, Some((1000, 100_000_000)));
    assert_eq!(back.pieces.len(), 1);
    assert!(back.estimate.unwrap().before.unwrap() > Duration::from_millis(500));
}

#[test]
fn a_division_that_has_come_to_save_little_stays() {
    let (graph, mut devices) = (branches(4), devices(&BOTH));
    let mut with = |tenths: u64| {
        devices[1].capacity.rates = Some(Rates { multiply_adds: RATES.multiply_adds / tenths * 10, ..RATES });
        devices.clone()
    };
    // At some slowness a new plan does without the device: what it saved a bit before that is a tenth.
    let of = |devices: &Vec<DeviceFacts>| planned(&graph, devices, &options(devices), "y");
    let all: Vec<Vec<DeviceFacts>> = (30..100).map(&mut with).collect();
    let slow = all.iter().position(|devices| of(devices).pieces.len() == 1).unwrap();
    let ran = of(&all[slow - 1]);
    assert_eq!(ran.pieces.len(), 2);
    let stays = again(&graph, &all[slow], &ran, None);
    assert_eq!((computing(&stays), stays.estimate.as_ref().unwrap().before), (computing(&ran), None));
}

/// Products of a vector of `size` with as many matrices, and the sum of their results.
fn products(count: usize, size: usize) -> Graph {
    let shape = format!(r#"{{"dtype": "float32", "shape": [{size}, {size}]}}"#);
    let of = |i: usize| {
        format!(
            r#""w{i}": {{"op": "Placeholder", "attrs": {shape}}}, "p{i}": {{"op": "MatMul", "inputs": ["w{i}", "w{i}"]}},
            "b{i}": {{"op": "MatMul", "inputs": ["p{i}", "w{i}"]}}, "s{i}": {{"op": "Sum", "inputs": ["b{i}", 0]}}"#
        )
    };
    let nodes: Vec<String> = (0..count).map(of).collect();
    let sums: Vec<String> = (0..count).map(|i| format!("\"s{i}\"")).collect();
    let mut defs = read(
        format!(
            r#"{{"version": 1, "nodes": {{{}, "y": {{"op": "AddN", "inputs": [{}]}}}}}}"#,
            nodes.join(", "),
            sums.join(", ")
        )
        .as_bytes(),
    )
    .unwrap()
    .nodes;
    for def in defs.iter_mut().filter(|def| def.op == "Placeholder") {
        let value = Tensor::zeros(DType::F32, [size, size]).unwrap();
        def.op = "Const".into();
        def.attrs = [("dtype", Attr::Type(DType::F32)), ("value", Attr::Tensor(value))].into();
    }
    Graph::new(defs).unwrap()
}

#[test]
fn constants_that_take_longer_to_be_sent_than_a_minute_of_steps_saves_stay() {
    // Two of four matrices of 4 MiB: at most 30 s are saved in a minute, less the second of a change.
    let (graph, devices) = (products(4, 1024), devices(&BOTH));
    let ran = alone_before(&graph, &devices);
    let pieces = |rate| again(&graph, &devices, &ran, Some((1, rate))).pieces.len();
    assert_eq!(pieces(1_000_000), 2, "9 s");
    assert_eq!(pieces(250_000), 1, "34 s");
}

#[test]
fn a_device_whose_memory_others_have_taken_is_left() {
    // The matrices are on it, and count as room that there is.
    let (graph, mut devices) = (products(4, 1024), devices(&BOTH));
    let ran = alone_before(&graph, &devices);
    let with = |free: u64, devices: &mut Vec<DeviceFacts>| {
        devices[0].capacity.memory = Some(DeviceMemory { total: 64 << 20, free });
        again(&graph, devices, &ran, Some((1, 250_000))).pieces.len()
    };
    assert_eq!(with(32 << 20, &mut devices), 1);
    assert_eq!(with(1 << 20, &mut devices), 2);
}

#[test]
fn a_plan_on_a_device_that_is_not_among_the_fastest_moves() {
    let graph = branches(4);
    let mut devices = devices(&[1 << 30; 20]);
    let count = devices.len();
    // The last one was there alone, when it was the only one. It is a hundred times slower than those that joined.
    devices[count - 1].capacity.rates = Some(Rates { multiply_adds: RATES.multiply_adds / 100, ..RATES });
    let ran = planned(&graph, &devices[count - 1..], &options(&devices[count - 1..]), "y");
    assert!(computing(&ran).iter().all(|(_, task)| *task == count as u32 - 1));
    let plan = again(&graph, &devices, &ran, Some((1, 100_000_000)));
    assert!(computing(&plan).iter().all(|(_, task)| *task != count as u32 - 1), "{:?}", computing(&plan));
    let estimate = plan.estimate.unwrap();
    assert!(estimate.before.unwrap() > 2 * estimate.step, "{estimate:?}");
}
