//! Tests that every recorded session of TensorFlow is planned on its own cluster, or refused if TensorFlow refused to place it:
//! the sessions in `tests/cases`, and all of those in `../shared/corpus` if that exists.

use std::fs;
use std::path::Path;

use meshtf_tensor::device::{DeviceKind, Task};
use meshtf_testing::means::recorded_sessions;
use serde_json::Value;

use super::*;
use crate::graphdef;

#[test]
fn every_recorded_session_plans() {
    let mut faults = Vec::new();
    for case in recorded_sessions() {
        check_case(&case, &mut faults);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn check_case(case: &Path, faults: &mut Vec<String>) {
    let read =
        |file: &str| fs::read(case.join(file)).unwrap_or_else(|error| panic!("{}/{file}: {error}", case.display()));
    let session: Value = serde_json::from_slice(&read("case.json")).expect("JSON");
    let graph = Graph::new(graphdef::from_binary(&read("graph.pb")).expect("a GraphDef")).expect("a graph");
    let devices = cluster(&session["cluster"]);
    let soft_placement = session["config"].as_str().is_some_and(|config| config.contains("allowSoftPlacement"));
    let options = PlanOptions { soft_placement, ..options(&devices) };
    for (number, step) in session["steps"].as_array().expect("steps").iter().enumerate() {
        let signature = Signature {
            feeds: names(&step["feeds"]),
            fetches: names(&step["fetches"]),
            targets: names(&step["targets"]),
            ..Signature::default()
        };
        let refusal = step["error"]["message"]
            .as_str()
            .filter(|message| message.contains("Cannot assign a device") || message.contains("You must feed a value"));
        match (plan(&graph, &devices, &signature, &options), refusal) {
            (Ok(plan), None) => {
                check_invariants(&graph, &signature, &plan);
                if devices.len() == 1 {
                    assert!(plan.transfers.is_empty());
                }
            }
            (Err(error), Some(_)) if error.code() == Code::InvalidArgument => {}
            (got, wanted) => faults.push(format!("{} step {number}: {got:?}, not {wanted:?}", case.display())),
        }
    }
}

/// A CPU for each task of the case's cluster.
fn cluster(cluster: &Value) -> Vec<DeviceFacts> {
    let cpu = |task: Task| DeviceFacts::unknown(task.device(DeviceKind::Cpu, 0));
    let Some(jobs) = cluster.as_object() else { return vec![cpu(Task::new("localhost", 0))] };
    let tasks = jobs.iter().flat_map(|(job, addresses)| {
        let count = addresses.as_array().map_or(0, Vec::len) as u32;
        (0..count).map(move |index| cpu(Task::new(job.clone(), index)))
    });
    tasks.collect()
}

/// The names in a list, of strings or of objects.
fn names(list: &Value) -> Vec<String> {
    let name = |item: &Value| item.as_str().or_else(|| item["name"].as_str()).expect("a name").to_owned();
    list.as_array().map_or_else(Vec::new, |items| items.iter().map(name).collect())
}
