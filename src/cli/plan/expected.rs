//! The expectation of a plan that was placed by cost: the parts of a step, and the next best choice of devices.

use std::collections::BTreeMap;
use std::time::Duration;

use meshtf_graph::plan::{DeviceEstimate, Estimate, Plan, Why};
use meshtf_tensor::device::DeviceName;
use serde_json::{Value, json};

use super::super::paint::{Paint, Tone};
use super::super::table::wide_table;

pub fn as_json(estimate: &Estimate) -> Value {
    let devices: Vec<Value> = estimate
        .devices
        .iter()
        .map(|of| {
            json!({
                "device": of.device.to_string(),
                "computes_seconds": of.computes().as_secs_f64(),
                "arithmetic_seconds": of.arithmetic.as_secs_f64(),
                "memory_seconds": of.memory.as_secs_f64(),
                "calls_seconds": of.calls.as_secs_f64(),
                "receives_seconds": of.receives.as_secs_f64(),
                "busy": busy(estimate, of),
            })
        })
        .collect();
    let alone = estimate.alone.as_ref();
    let next = estimate.next.as_ref();
    json!({
        "step_seconds": estimate.step.as_secs_f64(),
        "interval_seconds": estimate.interval.map(|interval| interval.as_secs_f64()),
        "alone": alone.map(|(device, step)| json!({ "device": device.to_string(), "step_seconds": step.as_secs_f64() })),
        "devices": devices,
        "critical_path": {
            "computes_seconds": estimate.path.computes.as_secs_f64(),
            "transfers_seconds": estimate.path.transfers.as_secs_f64(),
            "transfers": estimate.path.crossings,
        },
        "next": next.map(|next| {
            let devices: Vec<String> = next.devices.iter().map(DeviceName::to_string).collect();
            json!({ "devices": devices, "step_seconds": next.step.as_secs_f64() })
        }),
    })
}

pub fn as_text(paint: Paint, plan: &Plan, estimate: &Estimate) -> String {
    let step = estimate.step;
    let (each, unit) = match estimate.interval {
        Some(interval) => (format!("a step of a series each {interval:.1?}, which takes {step:.1?}"), "each "),
        None => (format!("{step:.1?} per step"), ""),
    };
    let first = match &estimate.alone {
        Some((device, alone)) => format!("expected: {each}; {unit}{alone:.1?} if all is on {device}"),
        None => format!("expected: {each}; no device alone has the memory for it"),
    };
    let time = |time: Duration| if time.is_zero() { "-".to_owned() } else { format!("{time:.1?}") };
    let reasons = reasons(plan);
    let rows = estimate.devices.iter().map(|of| {
        let mut row = vec![
            of.device.to_string(),
            time(of.computes()),
            time(of.arithmetic),
            time(of.memory),
            time(of.calls),
            time(of.receives),
        ];
        row.extend(busy(estimate, of).map(|share| format!("{:.0} %", 100.0 * share)));
        row.push(reasons.get(&of.device).cloned().unwrap_or_default());
        row
    });
    let mut header = vec!["DEVICE", "COMPUTES", "ARITHMETIC", "MEMORY", "CALLS", "RECEIVES"];
    header.extend(estimate.interval.map(|_| "BUSY"));
    header.push("NODES");
    let path = &estimate.path;
    let crossings = match path.crossings {
        0 => "no transfer".to_owned(),
        1 => format!("{:.1?} for 1 transfer", path.transfers),
        many => format!("{:.1?} for {many} transfers", path.transfers),
    };
    let next = match &estimate.next {
        Some(next) => {
            let devices: Vec<String> = next.devices.iter().map(DeviceName::to_string).collect();
            let on = if devices.is_empty() { String::new() } else { format!(" on {}", devices.join(", ")) };
            let unit = if estimate.interval.is_some() { "a step each " } else { "" };
            let per = if estimate.interval.is_some() { "" } else { " per step" };
            let faster = faster(estimate.interval.unwrap_or(step), next.step);
            format!("\nnext best: {unit}{:.1?}{per}{on}{faster}", next.step)
        }
        // Where names leave no choice, there is no other one.
        None if plan.placements.iter().any(|placement| placement.why == Why::Cost) => {
            "\nnext best: no other choice that was compared has the memory".to_owned()
        }
        None => String::new(),
    };
    format!(
        "{}\n{}\ncritical path: {:.1?} of computing, {crossings}{next}",
        paint.tone(Tone::Strong, first),
        wide_table(paint, &header, rows),
        path.computes,
    )
}

/// The part of the time between the ends of two steps of a series in which a device computes; what is left to 1 is its bubble.
/// `None` if steps do not overlap.
fn busy(estimate: &Estimate, of: &DeviceEstimate) -> Option<f64> {
    let interval = estimate.interval.filter(|interval| !interval.is_zero())?;
    Some(of.computes().as_secs_f64() / interval.as_secs_f64())
}

/// Remarks that the next best step is faster than the plan's.
fn faster(step: Duration, next: Duration) -> &'static str {
    match () {
        () if next >= step => "",
        () if next.as_secs_f64() > step.as_secs_f64() * 0.9 => "; it would save less than a tenth",
        () => "; it is faster in this step, but devices are chosen for the whole graph",
    }
}

/// For each device, how many of its nodes are there for which reason.
fn reasons(plan: &Plan) -> BTreeMap<DeviceName, String> {
    let mut counts: BTreeMap<DeviceName, BTreeMap<&str, usize>> = BTreeMap::new();
    for placement in &plan.placements {
        let why = match placement.why {
            Why::Cost => "by cost",
            Why::Requested => "requested",
            Why::Colocated { .. } => "with others",
            Why::Soft { .. } => "soft",
            Why::Default => "default",
        };
        *counts.entry(placement.device.clone()).or_default().entry(why).or_default() += 1;
    }
    let text = |of: BTreeMap<&str, usize>| {
        let parts: Vec<String> = of.into_iter().map(|(why, count)| format!("{count} {why}")).collect();
        parts.join(", ")
    };
    counts.into_iter().map(|(device, of)| (device, text(of))).collect()
}

#[cfg(test)]
mod tests {
    use meshtf_graph::plan::{ByCost, NextBest, PlanOptions, Signature, plan};
    use meshtf_graph::{Graph, read};
    use meshtf_tensor::device::{DeviceFacts, DeviceKind, Task};

    use super::*;

    /// The lines on the next best choice, on so many devices.
    fn next_best(tasks: u32, device: &str, change: impl FnOnce(&mut Estimate)) -> Vec<String> {
        let text = format!(
            r#"{{"version": 1, "nodes": {{"x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [4]}}, "device": "{device}"}},
            "y": {{"op": "Exp", "inputs": ["x"], "device": "{device}"}}}}}}"#
        );
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let facts: Vec<DeviceFacts> =
            (0..tasks).map(|task| DeviceFacts::unknown(Task::new("t", task).device(DeviceKind::Cpu, 0))).collect();
        let by_cost = Some(ByCost { compares: true, ..ByCost::default() });
        let options = PlanOptions { default_device: facts[0].name.clone(), soft_placement: false, by_cost };
        let signature = Signature { fetches: vec!["y".into()], ..Signature::default() }.with_placeholders(&graph);
        let plan = plan(&graph, &facts, &signature, &options).unwrap();
        let mut estimate = plan.estimate.clone().unwrap();
        change(&mut estimate);
        let text = as_text(Paint::OFF, &plan, &estimate);
        text.lines().filter(|line| line.starts_with("next best")).map(str::to_owned).collect()
    }

    #[test]
    fn the_next_best_is_told_if_there_is_a_choice() {
        let same = |_: &mut Estimate| {};
        assert!(next_best(1, "", same).is_empty());
        assert!(next_best(2, "/job:t/task:1", same).is_empty());
        let [other] = &next_best(2, "", same)[..] else { panic!("one line") };
        assert!(other.ends_with(" per step on /job:t/task:1/device:CPU:0"), "{other}");
        let none = next_best(2, "", |estimate| estimate.next = None);
        assert_eq!(none, ["next best: no other choice that was compared has the memory"]);
    }

    #[test]
    fn a_next_best_that_is_faster_is_no_surprise() {
        let told = |step: u64, next: u64| {
            next_best(2, "", |estimate| {
                estimate.step = Duration::from_micros(step);
                estimate.next = Some(NextBest { devices: Vec::new(), step: Duration::from_micros(next) });
            })
            .remove(0)
        };
        assert_eq!(told(100, 100), "next best: 100.0µs per step");
        assert_eq!(told(100, 95), "next best: 95.0µs per step; it would save less than a tenth");
        let faster =
            "next best: 50.0µs per step; it is faster in this step, but devices are chosen for the whole graph";
        assert_eq!(told(100, 50), faster);
    }
}
