//! The expectation of a plan that was placed by cost: the parts of a step, and the next best choice of devices.

use std::collections::BTreeMap;
use std::time::Duration;

use meshtf_graph::plan::{Estimate, Plan, Why};
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
            })
        })
        .collect();
    let alone = estimate.alone.as_ref();
    let next = estimate.next.as_ref();
    json!({
        "step_seconds": estimate.step.as_secs_f64(),
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
    let first = match &estimate.alone {
        Some((device, alone)) => format!("expected: {step:.1?} per step; {alone:.1?} if all is on {device}"),
        None => format!("expected: {step:.1?} per step; no device alone has the memory for it"),
    };
    let time = |time: Duration| if time.is_zero() { "-".to_owned() } else { format!("{time:.1?}") };
    let reasons = reasons(plan);
    let rows = estimate.devices.iter().map(|of| {
        vec![
            of.device.to_string(),
            time(of.computes()),
            time(of.arithmetic),
            time(of.memory),
            time(of.calls),
            time(of.receives),
            reasons.get(&of.device).cloned().unwrap_or_default(),
        ]
    });
    let header = ["DEVICE", "COMPUTES", "ARITHMETIC", "MEMORY", "CALLS", "RECEIVES", "NODES"];
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
            format!("next best: {:.1?} per step{on}", next.step)
        }
        None => "next best: no other choice of devices has the memory".to_owned(),
    };
    format!(
        "{}\n{}\ncritical path: {:.1?} of computing, {crossings}\n{next}",
        paint.tone(Tone::Strong, first),
        wide_table(paint, &header, rows),
        path.computes,
    )
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
