//! Discovery of nodes: on one machine, over a link with multicast, and by address where there is none.

use std::time::Duration;

use serde_json::Value;

use crate::network::Namespaces;
use crate::sandbox::{NodeProcess, SPLIT_238, Sandbox, wait_until};

/// The limit for events that should come soon, on a machine that is busy.
const SOON: Duration = Duration::from_secs(60);

fn submits_238(sandbox: &Sandbox) {
    let graph = sandbox.file("graph.json", SPLIT_238);
    sandbox.run(&["submit", &graph]).prints("238");
}

#[test]
fn on_a_machine_with_nothing_but_lo() {
    let Some(namespaces) = Namespaces::new(1, "discovery with only lo") else { return };
    let sandbox = Sandbox::new().in_namespace(&namespaces.names[0]);
    let _zero = sandbox.node("local/0");
    let _one = sandbox.node("local/1");
    submits_238(&sandbox);
}

#[test]
fn processes_of_one_machine_meet_through_unix_sockets_though_mdns_hears_them() {
    let Some(namespaces) = Namespaces::new(2, "Unix sockets beside mDNS") else { return };
    namespaces.join();
    let sandbox = Sandbox::new().in_namespace(&namespaces.names[0]);
    let _zero = sandbox.node("local/0");
    // The order in which the socket and the address are heard of differs from one start to the next.
    for n in 1..=6 {
        let _other = sandbox.node(&format!("local/{n}"));
        let mut link = Value::Null;
        let is_met = wait_until(SOON, || {
            let told = sandbox.run(&["status", "local/0", "--json"]).expect(0).json();
            let peers = told[0]["peers"]["items"].as_array().unwrap();
            link =
                peers.iter().find(|peer| peer["task"] == format!("/job:local/task:{n}")).cloned().unwrap_or_default();
            link != Value::Null
        });
        assert!(is_met, "local/{n}");
        assert!(link["address"].as_str().unwrap().starts_with("/unix/"), "{link}");
    }
}

/// Two machines on one cable, each with a node.
fn two_machines(namespaces: &Namespaces) -> (Sandbox, Sandbox, NodeProcess, NodeProcess) {
    namespaces.join();
    let here = Sandbox::new().in_namespace(&namespaces.names[0]);
    let there = here.elsewhere().in_namespace(&namespaces.names[1]);
    here.admits(&there);
    let zero = here.node("local/0");
    let one = there.node("local/1");
    (here, there, zero, one)
}

#[test]
fn over_a_link_with_multicast() {
    let Some(namespaces) = Namespaces::new(2, "discovery by mDNS over a veth") else { return };
    let (here, there, _zero, _one) = two_machines(&namespaces);
    submits_238(&here);
    submits_238(&there);
}

#[test]
fn a_cut_cable_is_noticed_within_eight_seconds() {
    let Some(namespaces) = Namespaces::new(2, "a cut cable") else { return };
    let (here, _there, _zero, _one) = two_machines(&namespaces);
    let graph = here.file("graph.json", SPLIT_238);
    let client = here.start(&["submit", &graph, "--steps", "1000000000", "--every", "10", "--target", "local/0"]);
    assert!(client.next_line(Duration::from_secs(60)).is_some(), "{}", client.stderr());
    let cut = std::time::Instant::now();
    namespaces.cut_cable();
    client.end_within(Duration::from_secs(30)).expect(4).complains(&["/job:local/task:1"]);
    assert!(cut.elapsed() < Duration::from_secs(8), "{:?}", cut.elapsed());
}

#[test]
fn by_address_where_multicast_is_silent() {
    // Two sandboxes share no registry folder, and `lo` carries no multicast: only the address remains.
    let Some(namespaces) = Namespaces::new(1, "--peer without multicast") else { return };
    let here = Sandbox::new().in_namespace(&namespaces.names[0]);
    let there = here.elsewhere().in_namespace(&namespaces.names[0]);
    here.admits(&there);
    let zero = here.node_with("local/0", &["--listen", "127.0.0.1:0"]);
    let _one = there.node_with("local/1", &["--listen", "127.0.0.1:0", "--peer", zero.address()]);
    submits_238(&here);
}

#[test]
fn by_a_cluster_file_with_fixed_addresses() {
    // Two sandboxes share no registry folder and do not search the network: only the file remains.
    let here = Sandbox::new();
    let there = here.elsewhere();
    here.admits(&there);
    // Held until both are known, so that they differ; free again when the nodes start.
    let sockets = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let [zero, one] = sockets.map(|socket| socket.local_addr().expect("a bound socket").to_string());
    let spec = format!(r#"{{"local": ["{zero}", "{one}"]}}"#);
    let file = here.file("cluster.json", spec);
    let start = |sandbox: &Sandbox, name: &str| {
        let node = sandbox.start(&["node", "--name", name, "--cluster", &file, "--no-mdns"]);
        NodeProcess::start(node, name)
    };
    let first = start(&here, "local/0");
    let _second = start(&there, "local/1");
    assert!(first.address().ends_with(zero.rsplit(':').next().unwrap()), "{} for {zero}", first.line);
    submits_238(&here);
    // A task that is missing in the file, and a file that is not a ClusterSpec.
    here.run(&["node", "--name", "local/7", "--cluster", &file]).expect(2).complains(&["local", "cluster"]);
    let wrong = here.file("wrong.json", r#"{"local": 7}"#);
    here.run(&["node", "--name", "local/0", "--cluster", &wrong]).expect(2).complains(&[
        "wrong.json",
        "$.local",
        "list of addresses",
    ]);
}
