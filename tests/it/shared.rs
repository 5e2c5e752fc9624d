//! Large values between nodes of one user on one machine: through shared memory, unless a flag disables it.

use std::time::Duration;

use crate::links::{Training, training};
use crate::sandbox::{NodeProcess, Sandbox, wait_until};

/// Number of rings of shared memory that a node has mapped.
fn rings(node: &NodeProcess) -> Option<usize> {
    let maps = node.proc("maps", "the shared memory of nodes")?;
    Some(maps.lines().filter(|line| line.contains("memfd:meshtf-ring")).count())
}

/// ps/0, worker/1 and chief/0 in the middle of a training in which ps/0 sends 2 MB to worker/1 each step.
fn in_the_middle(sandbox: &Sandbox, flags: &[&str]) -> ([NodeProcess; 3], Training) {
    let graph = sandbox.file("training.json", training(500_000));
    let nodes = ["ps/0", "worker/1", "chief/0"].map(|name| sandbox.node_with(name, flags));
    let mut training = Training::begin(sandbox, &graph);
    // Its output is checked: no value is lost, duplicated or changed.
    training.goes_on();
    (nodes, training)
}

#[test]
#[cfg(target_os = "linux")]
fn large_values_go_through_shared_memory_which_ends_with_a_killed_peer() {
    for killed in [0, 1] {
        let sandbox = Sandbox::new();
        let (nodes, training) = in_the_middle(&sandbox, &[]);
        let Some(both) = rings(&nodes[0]).zip(rings(&nodes[1])) else { return };
        assert!((1..=4).contains(&both.0) && (1..=4).contains(&both.1), "{both:?} rings");
        assert_eq!(rings(&nodes[2]), Some(0), "nothing large passes through the master");
        nodes[killed].process.signal("KILL");
        training.client.end_within(Duration::from_secs(30)).expect(4);
        let other = &nodes[1 - killed];
        let freed = wait_until(Duration::from_secs(30), || rings(other) == Some(0));
        assert!(freed, "{:?} rings are left", rings(other));
    }
}

#[test]
fn over_tcp_alone_there_is_no_shared_memory() {
    let sandbox = Sandbox::new();
    let (nodes, _training) = in_the_middle(&sandbox, &["--tcp-only"]);
    for node in &nodes {
        assert!(rings(node).is_none_or(|rings| rings == 0));
    }
}
