//! Admission to a mesh: no peer without the mesh key is admitted, whatever it tries, unless the mesh is open.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::sandbox::Sandbox;

fn fetch_two(sandbox: &Sandbox) -> String {
    sandbox.file("graph.json", r#"{"version": 1, "nodes": {"y": 2}, "fetch": ["y"]}"#)
}

#[test]
fn another_key_is_refused() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("local/0");
    let unauthenticated = sandbox.elsewhere();
    let graph = fetch_two(&unauthenticated);
    // The name of the mesh and the address are right, and the key is its own.
    unauthenticated.run(&["ticket", "--no-mdns"]).expect(0);
    unauthenticated.run(&["submit", &graph, "--peer", zero.address()]).expect(4);
    unauthenticated.run(&["submit", &graph, "--peer", zero.address(), "--open"]).expect(4);
    // Nor does a node of another key become part of the mesh.
    let _other = unauthenticated.node_with("local/1", &["--peer", zero.address()]);
    let listed = sandbox.run(&["ps", "--json"]).expect(0).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    sandbox.run(&["submit", &fetch_two(&sandbox)]).prints("2");
}

#[test]
fn garbage_on_the_port_harms_nobody() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("local/0");
    let address = zero.socket_address();
    let megabyte = vec![0xaa; 1 << 20];
    let garbage: [&[u8]; 6] = [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x13/multistream/1.0.0\n\x0b/yamux/1.0.0\n",
        b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc",
        &megabyte,
    ];
    for bytes in garbage {
        for _ in 0..4 {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
            // It may hang up while the test still sends.
            let _ = stream.write_all(bytes);
            let _ = stream.read(&mut [0; 512]);
        }
    }
    sandbox.run(&["submit", &fetch_two(&sandbox)]).prints("2");
    assert!(!zero.process.stderr().contains("panicked"), "{}", zero.process.stderr());
}

#[test]
fn open_nodes_meet_without_a_key_and_say_so() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node_with("local/0", &["--open"]);
    assert!(zero.process.stderr().contains("--open"), "{}", zero.process.stderr());
    let other = sandbox.elsewhere();
    other.run(&["submit", &fetch_two(&other), "--open", "--peer", zero.address()]).prints("2");
}
