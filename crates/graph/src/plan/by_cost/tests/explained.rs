//! The parts of an expected step, and the choice that would be the next best.

use super::*;

/// A plan by cost with the next best choice.
fn compared(graph: &Graph, devices: &[DeviceFacts], fetch: &str) -> Estimate {
    let mut options = options(devices);
    options.by_cost = Some(ByCost { compares: true, ..ByCost::default() });
    planned(graph, devices, &options, fetch).estimate.unwrap()
}

#[test]
fn the_parts_of_a_step_on_one_device_are_its_nodes() {
    // Four layers of 1024² that fit: each reads 4 MiB of weights, 210 µs at 20 GB/s, for 21 µs of products.
    let (graph, devices) = (layers(4, 1024), devices(&[1 << 30]));
    let Estimate { step, devices: parts, path, next, .. } = compared(&graph, &devices, "y3");
    let [only] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!((only.calls.as_nanos(), only.arithmetic.as_nanos(), only.receives.as_nanos()), (5 * 200, 0, 0));
    // Besides the weights, each product moves two rows of 4 KiB, and the first is filled.
    let weights = (4 * (1 << 20) * 1_000_000_000u64 / 20_000_000_000) as u128;
    let row = 4096 * 1_000_000_000u64 / 20_000_000_000;
    assert_eq!(
        only.memory.as_nanos(),
        4 * (weights + u128::from(2 * 4096 * 1_000_000_000u64 / 20_000_000_000)) + u128::from(row)
    );
    assert_eq!((path.computes, path.transfers, path.crossings), (only.computes(), Duration::ZERO, 0));
    assert_eq!(path.computes, step);
    assert_eq!(next, None, "there is no other device");
}

#[test]
fn the_next_best_of_a_division_is_all_on_one_and_the_other_way_round() {
    let (graph, devices) = (branches(4), devices(&[1 << 30, 1 << 30]));
    let divided = compared(&graph, &devices, "y");
    assert_eq!(divided.devices.len(), 2);
    let (device, alone) = divided.alone.clone().unwrap();
    assert_eq!(divided.next, Some(NextBest { devices: vec![device], step: alone }));
    // The products are bound by arithmetic: 2 branches of two, 2^30 each at 50 G a second, on each device.
    for part in &divided.devices {
        let products = 4 * (1u128 << 30) * 1_000_000_000 / 50_000_000_000;
        assert!(part.arithmetic.as_nanos().abs_diff(products) < products / 100, "{part:?}");
        assert!(part.memory < part.arithmetic / 10 && part.calls < part.memory, "{part:?}");
    }
    // A small one stays on the master's device; elsewhere its result would have to come back.
    let small = compared(&layers(4, 16), &devices, "y3");
    let next = small.next.unwrap();
    assert_eq!(next.devices, [devices[1].name.clone()]);
    assert!(next.step > small.step + Duration::from_micros(199), "{next:?}");
}

#[test]
fn the_next_best_does_without_a_device_if_memory_is_left() {
    // As many layers as two devices hold: of three, two others would do. Of two, there is no other choice that fits.
    let graph = layers(12, 1024);
    let three = devices(&[36 << 20, 36 << 20, 36 << 20]);
    let Estimate { next, alone, devices: parts, step, .. } = compared(&graph, &three, "y11");
    assert_eq!((parts.len(), alone), (2, None));
    let next = next.unwrap();
    assert!(next.devices.len() == 2 && next.step >= step, "{next:?} beside {step:?}");
    let used: Vec<&DeviceName> = parts.iter().map(|part| &part.device).collect();
    assert!(next.devices.iter().any(|device| !used.contains(&device)), "{next:?} beside {used:?}");
    assert_eq!(compared(&graph, &three[..2], "y11").next, None);
    // Nobody asked: it is not looked for.
    assert_eq!(planned(&graph, &three, &options(&three), "y11").estimate.unwrap().next, None);
}

#[test]
fn the_critical_path_is_the_step() {
    let mut numbers = search::Numbers(11);
    for round in 0..30 {
        let graph = drawn(&mut numbers, 15, 256, &["MatMul", "AddV2", "Exp"]);
        let devices = devices(&[1 << 30; 3]);
        let mut problem = problem(&graph, &devices);
        problem.connect_fast();
        let mut player = Player::new(&problem);
        let units: Vec<usize> = problem.all_on(0).iter().map(|_| numbers.below(3)).collect();
        let step = player.play(&units);
        let explained = player.explain(&units);
        assert_eq!(explained.computes + explained.transfers, step.time, "{round}: {explained:?}");
        assert!((explained.crossings > 0) == (explained.transfers > 0), "{round}: {explained:?}");
        // Played again, it is the same.
        assert_eq!(player.play(&units), step);
    }
}
