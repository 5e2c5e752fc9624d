//! `meshtf node --web`: the page, the events that it follows, and the metrics; accepted and refused requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::sandbox::{NodeProcess, SPLIT_238, Sandbox};

const SOON: Duration = Duration::from_secs(60);

fn address(node: &NodeProcess) -> SocketAddr {
    node.said("web").parse().expect("an address")
}

/// Sends a request for a path; returns the connection, to read the answer from.
fn ask(address: SocketAddr, path: &str, headers: &str) -> TcpStream {
    ask_by("GET", address, path, headers)
}

fn ask_by(method: &str, address: SocketAddr, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(SOON)).unwrap();
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    write!(stream, "{method} {path} HTTP/1.1\r\n{host}{headers}\r\n").expect("it reads");
    stream
}

/// The status, the head and the body of an answer.
fn get(address: SocketAddr, path: &str, headers: &str) -> (u16, String, String) {
    let mut text = String::new();
    ask(address, path, headers).read_to_string(&mut text).expect("an answer in UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("no status in {head}")), head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn the_page_follows_the_mesh_and_prometheus_reads_the_node() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node_with("local/0", &["--web", "127.0.0.1:0"]);
    let _one = sandbox.node("local/1");
    let graph = sandbox.file("graph.json", SPLIT_238);
    sandbox.run(&["submit", &graph]).prints("238");
    let web = address(&zero);

    let (status, head, page) = get(web, "/", "");
    assert_eq!(status, 200, "{head}");
    assert!(head.contains("text/html") && head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(page.contains("new EventSource(\"events\""), "{page}");

    let (status, head, text) = get(web, "/metrics", "");
    assert!(status == 200 && head.contains("text/plain; version=0.0.4"), "{head}");
    let version = env!("CARGO_PKG_VERSION");
    let info = format!("meshtf_info{{version=\"{version}\",task=\"local/0\",mesh=\"{}\"}} 1", sandbox.mesh);
    for part in [
        &info[..],
        "# TYPE meshtf_device_busy_seconds_total counter",
        "meshtf_link_up{peer=\"local/1\"} 1",
        "meshtf_steps_total 1\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }

    // Events arrive without further requests, one per line, each followed by an empty line.
    let events = BufReader::new(ask(web, "/events", "")).lines().map(|line| line.expect("it goes on"));
    let pictures: Vec<Value> =
        events.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).take(2).collect();
    for picture in pictures {
        let tasks: Vec<&str> =
            picture["nodes"].as_array().unwrap().iter().map(|node| node["task"].as_str().unwrap()).collect();
        assert_eq!((tasks, picture["mesh"].as_str()), (vec!["local/0", "local/1"], Some(&sandbox.mesh[..])));
        assert_eq!(picture["nodes"][0]["links"][0]["to"], "local/1");
    }

    assert_eq!(get(web, "/mesh", "").0, 200);
    assert_eq!(get(web, "/nothing", "").0, 404);
    assert_eq!(get(web, "/", "Host: evil.example\r\n").0, 403);
    assert_eq!(get(web, "/mesh", "Origin: http://evil.example\r\n").0, 403);
    assert_eq!(get(web, "/events", "Sec-Fetch-Site: cross-site\r\n").0, 403);
    let by = |method: &str, path: &str| {
        let mut answer = String::new();
        ask_by(method, web, path, "Content-Length: 0\r\n").read_to_string(&mut answer).unwrap();
        answer
    };
    let refused = by("POST", "/mesh");
    assert!(
        refused.starts_with("HTTP/1.1 405") && refused.to_ascii_lowercase().contains("allow: get, head"),
        "{refused}"
    );
    // The head alone, of the same status and kind.
    for (path, status) in [("/metrics", 200), ("/events", 200), ("/nothing", 404)] {
        let head = by("HEAD", path);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")) && head.ends_with("\r\n\r\n"), "{path}: {head}");
        assert!(head.to_ascii_lowercase().contains("content-type: text/"), "{path}: {head}");
    }
}

#[test]
fn others_than_this_machine_need_a_token() {
    let sandbox = Sandbox::new();
    let refused = ["node", "--name", "local/0", "--listen", "127.0.0.1:0", "--web", "0.0.0.0:0"];
    sandbox.run(&refused).expect(2).complains(&["--web-token-file"]);
    let token = sandbox.file("token", "0123456789abcdef\n");
    let node = sandbox.node_with("local/0", &["--web", "127.0.0.1:0", "--web-token-file", &token]);
    let web = address(&node);
    assert_eq!(get(web, "/metrics", "").0, 401);
    assert_eq!(get(web, "/metrics", "Authorization: Bearer 0123456789abcdeX\r\n").0, 401);
    assert_eq!(get(web, "/metrics", "Authorization: Bearer 0123456789abcdef\r\n").0, 200);
    assert_eq!(get(web, "/mesh?token=0123456789abcdef", "Host: gpu-box:8080\r\n").0, 200);
}
