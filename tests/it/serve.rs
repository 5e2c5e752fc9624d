//! `meshtf serve`: requests of both interfaces on connections that stay, requests that are computed together, and those that are
//! refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::sandbox::{Running, Sandbox, wait_until};

const SOON: Duration = Duration::from_secs(60);
/// y = x·w + b, with w = (1, 1) and b = 0.5; and the places of the elements that are not 0, whose number is not known before.
const LINEAR: &str = r#"{"version": 1, "fetch": ["y"],
    "variables": {"w": {"shape": [2, 1], "initial": 1}, "b": {"shape": [1], "initial": 0.5}},
    "nodes": {
        "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}},
        "xw": {"op": "MatMul", "inputs": ["x", "w"], "device": "/job:local/task:0"},
        "y": {"op": "AddV2", "inputs": ["xw", "b"]},
        "places": {"op": "Where", "inputs": ["x"]}}}"#;

/// A server, and its address.
fn served(sandbox: &Sandbox, arguments: &[&str]) -> (Running, SocketAddr) {
    let graph = sandbox.file("linear.json", LINEAR);
    listening(sandbox.start(&[&["serve", &graph, "--http", "127.0.0.1:0"], arguments].concat()))
}

/// A server that was started, and its address.
fn listening(child: Running) -> (Running, SocketAddr) {
    let line = child.next_line(SOON).expect("the line of its addresses");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("no address in {line}"));
    (child, address)
}

/// A connection that stays.
struct Connection(BufReader<TcpStream>, SocketAddr);

impl Connection {
    fn to(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(SOON)).unwrap();
        Connection(BufReader::new(stream), address)
    }

    fn ask(&mut self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let host = self.1;
        let length = body.len();
        write!(
            self.0.get_mut(),
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        )
        .expect("it reads");
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).expect("an answer") > 0, "the connection ended");
            let line = line.trim_end().to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", count)) => length = count.parse().unwrap(),
                Some(_) => {}
                None if line.is_empty() => break,
                None => status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status"),
            }
        }
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer).expect("the whole answer");
        (status, String::from_utf8(answer).expect("text"))
    }

    fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let (status, answer) = self.ask("POST", path, "", &body.to_string());
        (status, serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}")))
    }
}

#[test]
fn a_model_answers_both_interfaces() {
    let sandbox = Sandbox::new();
    let _node = sandbox.node("local/0");
    // On the mesh, and in the process.
    for arguments in [&["--model", "lin"][..], &["--model", "lin", "--local"]] {
        let (child, address) = served(&sandbox, arguments);
        let mut connection = Connection::to(address);
        let rows = json!({ "instances": [[1, 2], [3, 4]] });
        assert_eq!(connection.post("/v1/models/lin:predict", &rows), (200, json!({ "predictions": [[3.5], [7.5]] })));
        let columns = json!({ "inputs": { "x": [[1, 2]] } });
        let path = "/v1/models/lin/versions/1:predict";
        assert_eq!(connection.post(path, &columns), (200, json!({ "outputs": [[3.5]] })));
        let x = json!({ "name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2] });
        let (status, answer) = connection.post("/v2/models/lin/infer", &json!({ "id": "7", "inputs": [x] }));
        let y = json!({ "name": "y", "shape": [1, 1], "datatype": "FP32", "data": [3.5] });
        let want = json!({ "model_name": "lin", "model_version": "1", "id": "7", "outputs": [y] });
        assert_eq!((status, answer), (200, want));

        let mut refused = |path: &str, body: Value, status: u16, why: &str| {
            let (own, answer) = connection.post(path, &body);
            assert!(
                own == status && answer["error"].as_str().is_some_and(|error| error.contains(why)),
                "{own} {answer}"
            );
        };
        let wide = "input x: the value has the shape [1,3], and the model takes [?,2]";
        refused("/v1/models/lin:predict", json!({ "instances": [[1, 2, 3]] }), 400, wide);
        refused("/v1/models/lin:predict", json!({ "inputs": {} }), 400, "input x is missing");
        refused("/v1/models/other:predict", rows, 404, "this server has lin");
        refused("/v1/models/lin/versions/2:predict", json!({}), 404, "lin has version 1");
        refused("/v1/models/lin:classify", json!({}), 501, "use :predict");
        refused("/v2/models/lin", json!({}), 405, "use GET");
        let (status, answer) = connection.ask("POST", "/v1/models/lin:predict", "", "{\"instances\": [");
        assert!(status == 400 && answer.contains("line 1, column 16"), "{answer}");
        let (status, metrics) = connection.ask("GET", "/metrics", "", "");
        assert!(status == 200 && metrics.contains("meshtf_serve_request_seconds_count 3\n"), "{metrics}");
        assert!(metrics.contains("meshtf_serve_refused_total 3\n"), "{metrics}");
        child.signal("TERM");
        child.end().expect(0);
    }
}

/// A request for another signature than the one that is served is refused, not answered with that one.
#[test]
fn the_signature_of_a_request_is_the_one_that_is_served() {
    let sandbox = Sandbox::new();
    let model = format!("{}/tests/data/weights/signatures", env!("CARGO_MANIFEST_DIR"));
    let words = ["serve", &model, "--signature", "g", "--local", "--http", "127.0.0.1:0"];
    let (_child, address) = listening(sandbox.start(&words));
    let mut connection = Connection::to(address);
    let path = "/v1/models/signatures:predict";
    let right = (200, json!({ "outputs": [1.5, 2.5] }));
    for named in [json!("g"), json!("")] {
        let body = json!({ "signature_name": named, "inputs": { "k": 0.5 } });
        assert_eq!(connection.post(path, &body), right, "{named}");
    }
    assert_eq!(connection.post(path, &json!({ "inputs": { "k": 0.5 } })), right);
    for other in ["f", "serving_default"] {
        let (status, answer) = connection.post(path, &json!({ "signature_name": other, "inputs": { "k": 0.5 } }));
        let why = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && why.contains(&format!("no signature {other:?}; this server has \"g\"")), "{answer}");
    }
    let (_, told) = connection.ask("GET", "/v1/models/signatures/metadata", "", "");
    let told: Value = serde_json::from_str(&told).unwrap();
    let signatures = told["metadata"]["signature_def"]["signature_def"].as_object().unwrap();
    assert_eq!(signatures.keys().collect::<Vec<_>>(), ["g"]);
}

/// The master is lost with the variables, and comes back.
#[test]
fn a_session_that_was_lost_is_opened_again() {
    let sandbox = Sandbox::new();
    let node = sandbox.node("local/0");
    let (_server, address) = served(&sandbox, &[]);
    let mut connection = Connection::to(address);
    let rows = json!({ "instances": [[1, 2]] });
    let path = "/v1/models/linear:predict";
    let right = (200, json!({ "predictions": [[3.5]] }));
    assert_eq!(connection.post(path, &rows), right);
    node.process.signal("KILL");
    drop(node);
    let (status, answer) = connection.post(path, &rows);
    assert_eq!(status, 503, "{answer}");
    // By the name of the task, whether the request was under way or came later.
    let why = answer["error"].as_str().unwrap_or_default();
    assert!(why.contains("/job:local/task:0"), "{answer}");
    assert_eq!(connection.ask("GET", "/v2/health/ready", "", "").0, 503);
    let _node = sandbox.node("local/0");
    assert!(wait_until(SOON, || connection.ask("GET", "/v2/health/ready", "", "").0 == 200), "it is not opened");
    assert_eq!(connection.post(path, &rows), right);
}

/// Requests that come while a step is computed share the next one; each gets its own rows.
#[test]
fn requests_that_wait_are_computed_together() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 40;
    let sandbox = Sandbox::new();
    let (_server, address) = served(&sandbox, &["--local", "--max-batch", "64"]);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut connection = Connection::to(address);
                for i in 0..REQUESTS {
                    let (a, b) = (client as f64, i as f64);
                    let rows = json!({ "instances": [[a, b], [b, b]] });
                    let want = json!({ "predictions": [[a + b + 0.5], [2.0 * b + 0.5]] });
                    assert_eq!(connection.post("/v1/models/linear:predict", &rows), (200, want));
                }
            });
        }
    });
    let (_, metrics) = Connection::to(address).ask("GET", "/metrics", "", "");
    let count = |name: &str| -> usize {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect(name);
        line.parse().unwrap()
    };
    assert_eq!(count("meshtf_serve_request_seconds_count"), CLIENTS * REQUESTS);
    let together = count("meshtf_serve_batched_total");
    // Requests that were computed alone have a step each.
    assert!(count("meshtf_serve_steps_total") <= CLIENTS * REQUESTS - together / 2, "{metrics}");
}

/// An output has two rows for each example: the requests are computed alone, and right.
#[test]
fn a_model_that_mixes_examples_is_not_computed_together() {
    let sandbox = Sandbox::new();
    let (_server, address) = served(&sandbox, &["--local", "--max-batch", "64", "--fetch", "places"]);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let mut connection = Connection::to(address);
                for _ in 0..20 {
                    let columns = json!({ "inputs": [[1.0, 2.0]] });
                    let want = json!({ "outputs": [[0, 0], [0, 1]] });
                    assert_eq!(connection.post("/v1/models/linear:predict", &columns), (200, want));
                }
            });
        }
    });
}

#[test]
fn clients_without_the_token_learn_nothing() {
    let sandbox = Sandbox::new();
    let token = sandbox.file("token", "correct horse battery staple");
    let (_server, address) = served(&sandbox, &["--local", "--http-token-file", &token]);
    let mut connection = Connection::to(address);
    for (method, path) in [("GET", "/"), ("GET", "/v2/models/linear"), ("POST", "/v1/models/linear:predict")] {
        let (status, answer) = connection.ask(method, path, "Authorization: Bearer wrong\r\n", "");
        assert!(status == 401 && answer.contains("requires a token"), "{answer}");
    }
    let shown = "Authorization: Bearer correct horse battery staple\r\n";
    assert_eq!(connection.ask("GET", "/v2/health/ready", shown, "").0, 200);
    // A page of the web in the user's browser.
    assert_eq!(connection.ask("GET", "/v2", &format!("{shown}Origin: http://evil.example\r\n"), "").0, 403);
    let open = sandbox.run(&["serve", &sandbox.file("g.json", LINEAR), "--local", "--http", "0.0.0.0:0"]);
    open.complains(&["--http 0.0.0.0:0 can be reached from other machines", "--http-token-file"]).expect(2);
}

#[test]
fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let sandbox = Sandbox::new();
    let (_server, address) = served(&sandbox, &["--local"]);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let head = "POST /v1/models/linear:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40000000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(&mut stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 413 "), "{line}");
}
