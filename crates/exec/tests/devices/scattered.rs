//! Tests that the partitioned answer is the unpartitioned one: recorded sessions with their nodes scattered over three tasks at
//! random, loops and branches cut wherever it falls, still give the recorded answers.
//!
//! Graphs with reference variables are left out: a reader of one continues to show its later updates on the same device, and
//! not on another, in TensorFlow too, so that scattering changes their results.

use std::collections::BTreeSet;

use meshtf_graph::Node;
use meshtf_recorded::{Case, Expected, compare};
use meshtf_testing::means::recorded_sessions;

use super::*;

/// The number of times that each session is scattered anew.
const ROUNDS: u64 = 2;
/// Sessions of `tests/cases` that can be scattered.
const LEAST_SCATTERED: usize = 20;

#[test]
fn scattered_sessions_answer_the_same() {
    let mut faults = Vec::new();
    let mut scattered = 0;
    for folder in recorded_sessions() {
        let case = Case::read(&folder).expect("a recorded session");
        if !can_be_scattered(&case) {
            continue;
        }
        scattered += 1;
        for round in 0..ROUNDS {
            faults.extend(replay(&case, round).err().map(|fault| format!("{} round {round}: {fault}", case.name)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(scattered >= LEAST_SCATTERED, "only {scattered} sessions can be scattered");
}

fn replay(case: &Case, round: u64) -> Result<(), String> {
    let mut cluster = Cluster::new(3);
    let graph = scatter(&case.graph, &cluster.names, 0x9e37_79b9_7f4a_7c15 ^ (round + 1));
    for (number, step) in case.steps.iter().enumerate() {
        let feeds: Vec<(&str, Tensor)> =
            step.feeds.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let targets: Vec<String> = step.targets.iter().map(|target| format!("^{target}")).collect();
        let wanted: Vec<&str> = step.fetches.iter().chain(&targets).map(String::as_str).collect();
        match (&step.expected, cluster.run(&graph, &feeds, &wanted)) {
            (Expected::Values(expected), Ok(got)) => {
                for (fetch, (expected, got)) in step.fetches.iter().zip(expected.iter().zip(&got)) {
                    compare(expected, got, step.check, case.rtol, case.atol)
                        .map_err(|mismatch| format!("step {number}: {fetch}: {mismatch}"))?;
                }
            }
            (Expected::Error(expected), Err(failure)) if failure.code == expected.code => {}
            (expected, got) => return Err(format!("step {number}: {got:?}, not {expected:?}")),
        }
    }
    Ok(())
}

/// Whether scattering keeps the answers: not if reference variables would race, a device that is missing was to be refused, or
/// the session needs files (these devices have no data folder).
fn can_be_scattered(case: &Case) -> bool {
    let is_placement = |expected: &Expected| {
        matches!(expected, Expected::Error(error)
            if error.code == Code::InvalidArgument && error.message.contains("Cannot assign a device"))
    };
    let needs_files = |op: &str| {
        op.starts_with("Save") || op.starts_with("Restore") || matches!(op, "CacheDataset" | "MergeV2Checkpoints")
    };
    !case.graph.nodes().any(|(_, node)| node.outputs.iter().any(|ty| ty.is_ref) || needs_files(node.op.name))
        && !case.steps.iter().any(|step| is_placement(&step.expected))
}

/// The graph with a device drawn for each node that nothing binds to another.
fn scatter(graph: &Graph, devices: &[DeviceName], mut seed: u64) -> Graph {
    let mut bound: BTreeSet<&str> = BTreeSet::new();
    for (_, node) in graph.nodes() {
        let companions = companions(node);
        let takes_handle = node.inputs.iter().any(|&input| graph.output_type(input).dtype.is_handle());
        // A node that names its state itself, as the ops of a staging area do, finds it on its own device alone.
        let names_state = node.attrs.get("shared_name").is_some();
        if takes_handle || names_state || node.outputs.iter().any(|ty| ty.dtype.is_handle()) || !companions.is_empty() {
            bound.insert(&node.name);
        }
        bound.extend(companions);
    }
    let mut defs = graph.to_defs();
    for def in &mut defs {
        // Xorshift: the same draw on every run.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let device = &devices[(seed % devices.len() as u64) as usize];
        def.device = if bound.contains(def.name.as_str()) { String::new() } else { device.to_string() };
    }
    Graph::new(defs).expect("it was a graph before")
}

/// The nodes that a node's `_class` attribute binds it to.
fn companions(node: &Node) -> Vec<&str> {
    let Some(Attr::Strs(classes)) = node.attrs.get("_class") else { return Vec::new() };
    classes.iter().filter_map(|class| std::str::from_utf8(class).ok()?.strip_prefix("loc:@")).collect()
}
