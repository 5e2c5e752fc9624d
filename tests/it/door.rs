//! The door under load: large, silent or endless requests of clients, authenticated or not, take neither its memory nor the
//! time of other clients.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use meshtf_graph::{Attr, Attrs, NodeDef, graphdef};
use meshtf_tensor::{DType, PartialShape, Tensor};

use crate::grpc::{Client, Refused, field, first, head, number};
use crate::network::Namespaces;
use crate::sandbox::{NodeProcess, Sandbox, wait_until};
use crate::unauthenticated::{Manner, during};

pub const TOKEN: &str = "0123456789abcdef";

const INVALID: u16 = 3;
const DEADLINE: u16 = 4;
pub const EXHAUSTED: u16 = 8;
const ABORTED: u16 = 10;
pub const UNAUTHENTICATED: u16 = 16;

/// Maximum growth of a node's memory while it is attacked.
const GROWTH_KB: u64 = 160 << 10;
/// The same for calls without a message, and the number of these calls.
const FLOOD_GROWTH_KB: u64 = 64 << 10;
const FLOOD: usize = 100_000;
/// The limit of a step while the door is attacked. On a busy machine it may take a good part of a second anyway.
const STEP_WITHIN: Duration = Duration::from_secs(10);

fn node(name: &str, op: &str, inputs: &[&str], attrs: Attrs) -> NodeDef {
    let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
    NodeDef { name: name.into(), op: op.into(), inputs, attrs, ..NodeDef::default() }
}

/// y = x + 1, where x is fed, of any shape; four = a placeholder of four numbers; a queue with its enqueue and dequeue.
pub fn graph() -> Vec<u8> {
    let dtype = ("dtype", Attr::Type(DType::F32));
    let shape = ("shape", Attr::Shape(PartialShape(Some(vec![Some(4)]))));
    let types = Attr::Types(vec![DType::I32]);
    let constant = |name: &str, value: Tensor| {
        let attrs = Attrs::from([("dtype", Attr::Type(value.dtype())), ("value", Attr::Tensor(value))]);
        node(name, "Const", &[], attrs)
    };
    graphdef::to_binary(&[
        node("x", "Placeholder", &[], Attrs::from([dtype.clone()])),
        constant("one", Tensor::scalar(1f32)),
        node("y", "AddV2", &["x", "one"], Attrs::default()),
        node("four", "Placeholder", &[], Attrs::from([dtype, shape])),
        node("six", "AddV2", &["four", "one"], Attrs::default()),
        constant("seven", Tensor::scalar(7i32)),
        node(
            "queue",
            "FIFOQueueV2",
            &[],
            Attrs::from([("component_types", types.clone()), ("shared_name", "queue".into())]),
        ),
        node("put", "QueueEnqueueV2", &["queue", "seven"], Attrs::default()),
        node("next", "QueueDequeueV2", &["queue"], Attrs::from([("component_types", types)])),
        node("size", "QueueSizeV2", &["queue"], Attrs::default()),
    ])
}

/// A CreateSessionRequest, with a token in its configuration if one is given.
pub fn create(graph: &[u8], token: Option<&str>) -> Vec<u8> {
    let config = |token: &str| field(2, field(16, field(11, field(1, token))));
    [field(1, graph), token.map(config).unwrap_or_default()].concat()
}

/// A float tensor of one dimension: as its bytes, or as one number for all its elements.
pub fn tensor(length: u64, content: Option<&[f32]>) -> Vec<u8> {
    let elements = match content {
        Some(values) => field(4, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()),
        None => field(5, 1f32.to_le_bytes()),
    };
    [number(1, 1), field(2, field(2, number(1, length))), elements].concat()
}

/// A RunStepRequest.
pub fn step(handle: &str, feeds: &[(&str, Vec<u8>)], fetch: &str) -> Vec<u8> {
    let feeds = feeds.iter().map(|(name, tensor)| field(2, [field(1, name), field(2, tensor)].concat()));
    [vec![field(1, handle)], feeds.collect(), vec![field(3, fetch)]].concat().concat()
}

/// A RunStepRequest up to the first element of its feed, which has `count` elements; and the length of the whole.
pub fn begun_step(handle: &str, elements: usize) -> (Vec<u8>, usize) {
    let content = 4 * elements;
    let tensor = [number(1, 1), field(2, field(2, number(1, elements as u64))), head(4, content)].concat();
    let named = [field(1, "x:0"), head(2, tensor.len() + content), tensor].concat();
    let message = [field(1, handle), head(2, named.len() + content), named].concat();
    let length = message.len() + content;
    (message, length)
}

pub fn session(client: &Client, request: &[u8]) -> String {
    let created = client.call("CreateSession", request).expect("a session");
    String::from_utf8(first(&created, 1).expect("a handle").to_vec()).unwrap()
}

/// Fetches x + 1 of some numbers through the door; returns how long it took.
pub fn works(client: &Client, handle: &str, length: usize) -> Duration {
    let began = Instant::now();
    let values = vec![41f32; length];
    let answer = client.call("RunStep", &step(handle, &[("x:0", tensor(length as u64, Some(&values)))], "y:0"));
    let answer = answer.expect("a step");
    let y = first(first(&answer, 1).unwrap(), 2).expect("a tensor");
    assert!(y.ends_with(&42f32.to_le_bytes().repeat(length.min(2))), "{} bytes", y.len());
    began.elapsed()
}

pub fn refused(answer: Result<Vec<u8>, Refused>, code: u16, says: &str) {
    let refused = answer.expect_err("refused");
    assert!(refused.code == code && refused.message.contains(says), "not {code} {says:?}: {refused:?}");
}

/// A node with a door that requires a token, and a client that has shown it.
fn guarded(sandbox: &Sandbox) -> (NodeProcess, Client, String) {
    let token = sandbox.file("token", TOKEN);
    let node = sandbox.node_with("local/0", &["--grpc", "127.0.0.1:0", "--grpc-token-file", &token]);
    let client = Client::new(node.said("grpc"));
    let handle = session(&client, &create(&graph(), Some(TOKEN)));
    works(&client, &handle, 4);
    settles(sandbox, &node);
    (node, client, handle)
}

/// Waits for the end of the measurements of a node's devices, for which it takes memory, and has its peak begin anew. On a
/// machine that is too busy they come to nothing.
fn settles(sandbox: &Sandbox, node: &NodeProcess) {
    let is_measured = || {
        let listed = sandbox.run(&["ps", "--json"]).expect(0).json();
        listed[0]["devices"][0]["streamed_bytes_per_second"].is_u64()
    };
    wait_until(Duration::from_secs(5), is_measured);
    // Where the system has it (Linux): else the peak is higher from the beginning.
    let _without = std::fs::write(format!("/proc/{}/clear_refs", node.process.pid()), "5");
}

/// The peak memory of a node, in kB; `None` if the system does not report it.
pub fn peak_kb(node: &NodeProcess) -> Option<u64> {
    status_kb(node, "VmHWM:")
}

/// The heap and the other anonymous memory of a node at present, in kB: without the pages of its code, which a node returns some
/// seconds after its start.
pub fn anonymous_kb(node: &NodeProcess) -> Option<u64> {
    status_kb(node, "RssAnon:")
}

fn status_kb(node: &NodeProcess, key: &str) -> Option<u64> {
    let status = node.proc("status", "how much memory a node takes for its door")?;
    status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

/// Attacks while a client works: its steps continue, and the node's memory stays within the limit.
fn under_attack(node: &NodeProcess, client: &Client, handle: &str, attack: impl FnOnce(&str) + Send) {
    let before = peak_kb(node);
    let door = node.said("grpc");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            attack(door);
            is_over.store(true, Ordering::Relaxed);
        });
        let mut longest = Duration::ZERO;
        while !is_over.load(Ordering::Relaxed) && !attacker.is_finished() {
            longest = longest.max(works(client, handle, 4));
        }
        attacker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        longest = longest.max(works(client, handle, 300_000));
        assert!(longest < STEP_WITHIN, "a step took {longest:?}");
    });
    if let (Some(before), Some(after)) = (before, peak_kb(node)) {
        assert!(after <= before + GROWTH_KB, "the node grew from {before} kB to {after} kB");
    }
}

/// Feeds that state half a billion elements, all of them 1.
fn splats(handle: &str, count: usize) -> Vec<u8> {
    step(handle, &vec![("x:0", tensor((1 << 29) - 1, None)); count], "y:0")
}

#[test]
fn an_unauthenticated_peer_s_requests_are_not_decoded() {
    let sandbox = Sandbox::new();
    let (node, client, handle) = guarded(&sandbox);
    let empty_nodes = field(1, [0x0a, 0].repeat(4 << 20));
    under_attack(&node, &client, &handle, |door| {
        let unauthenticated = Client::new(door);
        for _ in 0..12 {
            refused(
                unauthenticated.call("RunStep", &splats("nosuch", 8)),
                ABORTED,
                "Session handle \"nosuch\" is not found",
            );
            // The handle may also come after the feeds.
            let behind = [splats("", 8), field(1, "nosuch")].concat();
            refused(unauthenticated.call("RunStep", &behind[2..]), ABORTED, "nosuch");
        }
        for token in [None, Some(""), Some("0123456789abcde"), Some("0123456789abcdef0")] {
            refused(
                unauthenticated.call("CreateSession", &create(&empty_nodes, token)),
                UNAUTHENTICATED,
                "requires a token",
            );
        }
        let names = [0x22, 0].repeat(4 << 20);
        for method in ["PartialRunSetup", "MakeCallable", "RunCallable", "ExtendSession", "CloseSession"] {
            refused(unauthenticated.call(method, &[field(1, "nosuch"), names.clone()].concat()), ABORTED, "nosuch");
        }
        refused(unauthenticated.call("Reset", &names), UNAUTHENTICATED, "requires a token");
        refused(unauthenticated.call("ListDevices", &names), UNAUTHENTICATED, "requires a token");
        let wrong = Client::new(door).with_token("0123456789abcde");
        refused(wrong.call("Reset", &[]), UNAUTHENTICATED, "requires a token");
        let known = Client::new(door).with_token(TOKEN);
        known.call("ListDevices", &[]).expect("the token is right");
    });
}

#[test]
fn memory_that_a_few_bytes_ask_for_is_counted_first() {
    let sandbox = Sandbox::new();
    let node = sandbox.node_with("local/0", &["--grpc", "127.0.0.1:0", "--grpc-limit", "67108864"]);
    let client = Client::new(node.said("grpc"));
    let handle = session(&client, &create(&graph(), None));
    under_attack(&node, &client, &handle, |door| {
        let other = Client::new(door);
        let own = session(&other, &create(&graph(), None));
        for _ in 0..12 {
            refused(other.call("RunStep", &splats(&own, 8)), EXHAUSTED, "--grpc-limit");
        }
        let four = step(&own, &[("four:0", tensor((1 << 29) - 1, None))], "six:0");
        refused(other.call("RunStep", &four), EXHAUSTED, "--grpc-limit");
        let nodes = [0x0a, 0].repeat((1 << 20) + 1);
        refused(other.call("CreateSession", &create(&nodes, None)), EXHAUSTED, "more nodes than 1048576");
        let names = [field(1, &own), [0x1a, 0].repeat(5 << 20)].concat();
        refused(other.call("PartialRunSetup", &names), EXHAUSTED, "the names in the request");
        refused(other.call("RunStep", &names), EXHAUSTED, "the names in the request");
        let names = [field(1, &own), [0x22, 0].repeat(1 << 16)].concat();
        refused(other.call("RunCallable", &names), EXHAUSTED, "the names in the request");
        works(&other, &own, 4);
    });
}

#[test]
fn announced_but_unsent_messages_block_nobody() {
    let sandbox = Sandbox::new();
    let (node, client, handle) = guarded(&sandbox);
    under_attack(&node, &client, &handle, |door| {
        let silent = Client::new(door);
        let known = Client::new(door).with_token(TOKEN);
        let own = session(&known, &create(&graph(), None));
        let mut waiting = Vec::new();
        for _ in 0..8 {
            let mut unauthenticated = silent.begin("CreateSession").unwrap();
            unauthenticated.send(200 << 20, &[], false);
            let mut claim = known.begin("RunStep").unwrap();
            let (begun, claimed) = begun_step(&own, 375_000_000);
            claim.send(claimed, &begun, false);
            waiting.push((unauthenticated, claim));
        }
        let third = Client::new(door).with_token(TOKEN);
        let theirs = session(&third, &create(&graph(), None));
        works(&third, &theirs, 1_000_000);
        for (unauthenticated, claim) in waiting {
            refused(silent.answer(unauthenticated), DEADLINE, "of the request in");
            refused(known.answer(claim), DEADLINE, "of the request in");
        }
    });
}

#[test]
fn calls_over_the_limit_of_a_connection_are_refused_at_once() {
    let sandbox = Sandbox::new();
    let (node, client, handle) = guarded(&sandbox);
    under_attack(&node, &client, &handle, |door| {
        for (caller, most) in [(Client::new(door), 16), (Client::new(door).with_token(TOKEN), 256)] {
            const OVER: usize = 100;
            let limit = format!("{most} calls of this connection wait for their requests");
            let calls = (0..most + OVER).map(|_| caller.begin("RunStep").unwrap()).collect();
            // Which of them exceed the limit is up to the door; these are answered without waiting for others.
            let (over, mut within) = caller.first_answers(calls, OVER);
            over.into_iter().for_each(|answer| refused(answer, EXHAUSTED, &limit));
            refused(caller.answer(caller.begin("RunStep").unwrap()), EXHAUSTED, &limit);
            // Once their messages arrive, the others are served, and new calls are accepted.
            let message = field(1, "nosuch");
            within.iter_mut().for_each(|call| call.send(message.len(), &message, true));
            for call in within {
                refused(caller.answer(call), ABORTED, "Session handle \"nosuch\" is not found");
            }
            refused(caller.call("RunStep", &message), ABORTED, "nosuch");
        }
    });
}

#[test]
fn a_flood_of_calls_without_a_message_takes_no_memory() {
    let sandbox = Sandbox::new();
    let (node, client, handle) = guarded(&sandbox);
    let before = peak_kb(&node);
    under_attack(&node, &client, &handle, |door| {
        for token in [None, Some(TOKEN)] {
            let caller = || token.iter().fold(Client::new(door), |client, token| client.with_token(token));
            // Requests that end: each gets an error.
            for (count, at_once) in [(FLOOD, FLOOD), (FLOOD / 10, 1)] {
                let codes = caller().flood("RunStep", count, at_once, true);
                assert_eq!(codes.get(&INVALID), Some(&count), "{token:?}, {at_once} at once: {codes:?}");
            }
            // Requests that stay open: all but a few are refused.
            let codes = caller().flood("RunStep", FLOOD, FLOOD, false);
            assert!(codes.get(&EXHAUSTED) > Some(&(FLOOD / 2)), "{token:?}: {codes:?}");
        }
    });
    if let (Some(before), Some(after)) = (before, peak_kb(&node)) {
        assert!(after <= before + FLOOD_GROWTH_KB, "the node grew from {before} kB to {after} kB");
    }
}

#[test]
fn a_silent_connection_is_closed() {
    use std::io::{Read, Write};
    let sandbox = Sandbox::new();
    let node = sandbox.node_with("local/0", &["--grpc", "127.0.0.1:0"]);
    for said in [&b""[..], b"PRI * HTTP"] {
        let mut stream = TcpStream::connect(node.said("grpc")).unwrap();
        stream.write_all(said).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut rest = Vec::new();
        // The door may send its greeting first; then it closes the connection.
        let ended = stream.read_to_end(&mut rest);
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it is still open");
    }
}

#[test]
fn many_unauthenticated_peers_do_not_keep_clients_out() {
    let sandbox = Sandbox::new();
    let (node, client, handle) = guarded(&sandbox);
    for manner in [Manner::HalfOpen, Manner::Slow, Manner::Garbage] {
        during(node.said("grpc").parse().unwrap(), manner, || {
            // From the same address as the crowd.
            for _ in 0..3 {
                let newcomer = Client::new(node.said("grpc"));
                let theirs = session(&newcomer, &create(&graph(), Some(TOKEN)));
                works(&newcomer, &theirs, 4);
                works(&client, &handle, 4);
            }
        });
    }
}

#[test]
fn the_least_recently_used_session_is_evicted() {
    let sandbox = Sandbox::new();
    let node = sandbox.node_with("local/0", &["--grpc", "127.0.0.1:0"]);
    let [client, other] = [(); 2].map(|()| Client::new(node.said("grpc")));
    let first = session(&client, &create(&graph(), None));
    let second = session(&client, &create(&graph(), None));
    // A session with a running step stays.
    let busy = session(&client, &create(&graph(), None));
    let mut waits = client.begin("RunStep").unwrap();
    let message = step(&busy, &[], "next:0");
    waits.send(message.len(), &message, true);
    let kept: Vec<String> = (3..1024).map(|_| session(&other, &create(&[], None))).collect();
    // The door is full. The others were just used, and their client is connected: its own least recent one is evicted.
    works(&client, &first, 4);
    let next = session(&client, &create(&graph(), None));
    refused(client.call("RunStep", &step(&second, &[], "y:0")), ABORTED, "its limit of 1024 sessions");
    works(&client, &first, 4);
    works(&client, &next, 4);
    // Sessions of a client that has gone are evicted first.
    drop(other);
    let freed = wait_until(Duration::from_secs(60), || {
        works(&client, &first, 4);
        let newest = session(&client, &create(&graph(), None));
        works(&client, &newest, 4);
        client.call("ListDevices", &field(1, &kept[0])).is_err()
    });
    assert!(freed, "the sessions of a client that went away stay");
    let put = [field(1, &first), field(4, "put")].concat();
    client.call("RunStep", &put).expect("put");
    client.answer(waits).expect("the step of a busy session");
}

#[test]
fn a_client_behind_a_cut_cable_leaves_nothing_running() {
    let Some(namespaces) = Namespaces::new(2, "a cut cable in front of the door") else { return };
    namespaces.join();
    let sandbox = Sandbox::new().in_namespace(&namespaces.names[0]);
    let token = sandbox.file("token", TOKEN);
    let node = sandbox.node_with("local/0", &["--grpc", "10.77.0.1:0", "--grpc-token-file", &token]);
    let near = Client::over(connect_from(&namespaces.names[0], node.said("grpc")));
    let handle = session(&near, &create(&graph(), Some(TOKEN)));
    let far = Client::over(connect_from(&namespaces.names[1], node.said("grpc"))).with_token(TOKEN);
    let theirs = session(&far, &create(&graph(), None));
    let mut waits = far.begin("RunStep").unwrap();
    let message = step(&theirs, &[], "next:0");
    waits.send(message.len(), &message, true);
    works(&far, &theirs, 4);

    namespaces.cut_cable();
    let sees_it = || std::fs::read_to_string(format!("/proc/{}/net/tcp", node.process.pid())).unwrap();
    // 10.77.0.2, as the kernel writes it, in the state ESTABLISHED.
    let is_open = || sees_it().lines().any(|line| line.contains(" 02004D0A:") && line.contains(" 01 "));
    assert!(is_open());
    assert!(wait_until(Duration::from_secs(60), || !is_open()), "the connection is held for open");
    // No client dequeues the elements that are enqueued now.
    works(&near, &handle, 4);
    near.call("RunStep", &[field(1, &handle), field(4, "put")].concat()).expect("put");
    let size = near.call("RunStep", &step(&handle, &[], "size:0")).expect("a size");
    let size = first(first(&size, 1).unwrap(), 2).unwrap();
    assert!(size.ends_with(&1i32.to_le_bytes()), "the step of the lost client took it: {size:?}");
}

/// Connects from within a network namespace; the socket stays in it.
fn connect_from(namespace: &str, door: &str) -> TcpStream {
    use nix::sched::{CloneFlags, setns};
    let (path, door) = (format!("/run/netns/{namespace}"), door.to_owned());
    let connected = thread::spawn(move || {
        let file = std::fs::File::open(path).expect("the namespace is there");
        // It moves this thread only, which ends after this function.
        setns(file, CloneFlags::CLONE_NEWNET).expect("the namespace can be entered");
        TcpStream::connect(door).expect("the door is open")
    });
    connected.join().expect("connected")
}
