//! Many clients at once: all get the right answer in time, and the nodes keep no memory of them.

use std::thread;
use std::time::Duration;

use crate::sandbox::{NodeProcess, Sandbox, wait_until};

const CLIENTS: usize = 8;
const SUBMITS: usize = 100;
/// Memory that a node may keep after the load, beyond its memory after a first round.
const GROWTH_LIMIT_KB: u64 = 24 * 1024;

/// A split graph whose answer identifies the submit: (x + 300) on task 0 and (x - 66) on task 1.
fn graph(x: usize) -> (String, String) {
    let text = crate::sandbox::SPLIT_238.replace(r#""x":  2"#, &format!(r#""x":  {x}"#));
    (text, (2 * x + 234).to_string())
}

fn load(sandbox: &Sandbox) {
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                for submit in (client..SUBMITS).step_by(CLIENTS) {
                    let (text, answer) = graph(submit);
                    let file = sandbox.file(&format!("graph-{submit}.json"), text);
                    let target = ["local/0", "local/1"][submit % 2];
                    sandbox.run(&["submit", &file, "--quiet", "--target", target]).prints(&answer);
                }
            });
        }
    });
}

#[test]
fn a_hundred_submits_from_eight_clients() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("local/0");
    let one = sandbox.node("local/1");
    let nodes = [&zero, &one];
    load(&sandbox);
    let before = resident_kb(nodes);
    load(&sandbox);
    let Some(before) = before else { return };
    // Sessions close asynchronously; the memory follows.
    let mut after = u64::MAX;
    let settled = wait_until(Duration::from_secs(10), || {
        after = resident_kb(nodes).unwrap_or(0);
        after <= before + GROWTH_LIMIT_KB
    });
    assert!(settled, "the nodes grew from {before} kB to {after} kB");
}

/// Resident memory of both, in kB; `None` if the system does not report it.
fn resident_kb(nodes: [&NodeProcess; 2]) -> Option<u64> {
    nodes
        .iter()
        .map(|node| {
            let status = node.proc("status", "how much memory nodes take under load")?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        })
        .sum()
}
