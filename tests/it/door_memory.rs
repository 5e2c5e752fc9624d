//! The door's limits and the node's memory budget: bytes from clients count as they arrive, and unauthenticated clients that
//! exhaust their budget do not keep other clients out.

use std::time::Duration;

use crate::door::{
    EXHAUSTED, TOKEN, UNAUTHENTICATED, anonymous_kb, begun_step, create, graph, peak_kb, refused, session, works,
};
use crate::grpc::{Call, Client, field};
use crate::sandbox::{NodeProcess, Sandbox, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
/// The memory of a process in addition to the counted bytes: threads, and the allocator's reserve.
const BESIDE_KB: u64 = 32 << 10;

/// A node with a door and a budget; `asks` states whether the door requires the token.
fn node(sandbox: &Sandbox, budget: &str, asks: bool) -> NodeProcess {
    let token = sandbox.file("token", TOKEN);
    let mut arguments = vec!["--memory", budget, "--grpc", "127.0.0.1:0"];
    if asks {
        arguments.extend(["--grpc-token-file", &token]);
    }
    sandbox.node_with("local/0", &arguments)
}

/// Waits until a node uses this much more anonymous memory.
fn has_grown(node: &NodeProcess, before: Option<u64>, kb: u64) {
    if let Some(before) = before {
        let has_grown = || anonymous_kb(node) >= Some(before + kb);
        assert!(wait_until(PATIENCE, has_grown), "nothing came: {before} kB before, {:?} now", anonymous_kb(node));
    }
}

/// The node never used more memory than before, plus this much and the uncounted rest.
fn stays_within(node: &NodeProcess, before: Option<u64>, kb: u64) {
    if let (Some(before), Some(peak)) = (before, peak_kb(node)) {
        assert!(peak <= before + kb + BESIDE_KB, "it grew from {before} kB to {peak} kB, by more than {kb} kB");
    }
}

#[test]
fn unauthenticated_peers_that_exhaust_their_budget_keep_nobody_out() {
    let sandbox = Sandbox::new();
    let node = node(&sandbox, "200MB", true);
    let client = Client::new(node.said("grpc"));
    let handle = session(&client, &create(&graph(), Some(TOKEN)));
    works(&client, &handle, 4);
    let before = peak_kb(&node);
    let unauthenticated = Client::new(node.said("grpc"));
    let idle = anonymous_kb(&node);
    // A quarter of the budget is theirs.
    refused(unauthenticated.call("CreateSession", &vec![0; 50_000_001]), EXHAUSTED, "the limit of 50000000");
    let mut waiting: Vec<Call> = Vec::new();
    for turn in 0..4 {
        let mut call = unauthenticated.begin("CreateSession").unwrap();
        call.send(50_000_000, &vec![0; 49_999_990], false);
        if turn == 0 {
            has_grown(&node, idle, 40_000);
        }
        waiting.push(call);
        // One without a session, which has only the token in the message; and one with a session.
        let newcomer = Client::new(node.said("grpc"));
        let theirs = session(&newcomer, &create(&graph(), Some(TOKEN)));
        works(&newcomer, &theirs, 4);
        works(&newcomer, &theirs, 1_000_000);
        works(&client, &handle, 1_000_000);
    }
    refused(unauthenticated.call("CreateSession", &create(&graph(), None)), UNAUTHENTICATED, "requires a token");
    // Each but the last is evicted, at the latest for the next one.
    waiting.pop();
    for call in waiting {
        refused(unauthenticated.answer(call), EXHAUSTED, "have not shown the token");
    }
    stays_within(&node, before, 100_000);
}

#[test]
fn requests_over_the_budget_are_refused_as_they_arrive() {
    let sandbox = Sandbox::new();
    let node = node(&sandbox, "100MB", false);
    let client = Client::new(node.said("grpc"));
    let handle = session(&client, &create(&graph(), None));
    works(&client, &handle, 4);
    let before = peak_kb(&node);
    let others: Vec<Client> = (0..2).map(|_| Client::new(node.said("grpc"))).collect();
    let large = create(&vec![0; 120_000_000], None);
    let calls: Vec<(&Client, Call)> = others
        .iter()
        .map(|other| {
            let mut call = other.begin("CreateSession").unwrap();
            call.send(large.len(), &large, true);
            (other, call)
        })
        .collect();
    for (other, call) in calls {
        refused(other.answer(call), EXHAUSTED, "of its 100 MB (--memory) in use");
    }
    stays_within(&node, before, 100_000);
    works(&client, &handle, 1_000_000);
}

#[test]
fn concurrent_feeds_share_the_budget() {
    const ELEMENTS: usize = 15_000_000;
    /// How many of their bytes are sent first.
    const FIRST: usize = 16;
    let sandbox = Sandbox::new();
    let node = node(&sandbox, "200MB", false);
    let client = Client::new(node.said("grpc"));
    let handle = session(&client, &create(&graph(), None));
    works(&client, &handle, 4);
    let before = peak_kb(&node);
    let others: Vec<Client> = (0..6).map(|_| Client::new(node.said("grpc"))).collect();
    let fetch = field(3, "y:0");
    // Each of these six would fit alone, and starts before much has arrived: 60 MB, and as much for its result.
    let begun: Vec<(&Client, Call)> = others
        .iter()
        .map(|other| {
            let mut call = other.begin("RunStep").unwrap();
            let (message, length) = begun_step(&handle, ELEMENTS);
            call.send(length + fetch.len(), &[message, vec![0; FIRST]].concat(), false);
            // By then, the messages that came earlier on its connection have been checked.
            works(other, &handle, 4);
            (other, call)
        })
        .collect();
    let content = [vec![0; 4 * ELEMENTS - FIRST], fetch].concat();
    let sent: Vec<(&Client, Call)> = begun
        .into_iter()
        .map(|(other, mut call)| {
            let _refused = call.body.send_data(content.clone().into(), true);
            (other, call)
        })
        .collect();
    let answers: Vec<_> = sent.into_iter().map(|(other, call)| other.answer(call)).collect();
    for answer in answers.into_iter().filter(Result::is_err) {
        refused(answer, EXHAUSTED, "of its 200 MB (--memory) in use");
    }
    // The allocator keeps the memory of one request for the next, and may not have reused two of their blocks yet. Without a
    // budget it grew by 390 MB.
    stays_within(&node, before, 200_000 + 2 * 4 * ELEMENTS as u64 / 1000);
    works(&client, &handle, 1_000_000);
}
