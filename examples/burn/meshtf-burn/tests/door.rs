//! `Mesh::reach` with right and wrong answers, from a listener of this test.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use meshtf_burn::{Error, Mesh};

/// Answers one request with `status` and `body`. Returns the address, and a handle that returns the request.
fn door(status: &'static str, body: &'static str) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(&stream).lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
            .unwrap();
        lines
    });
    (address, asked)
}

const TWO: &str = r#"{"protocol": 2, "devices": [{"index": 0, "name": "/job:worker/task:0/device:CPU:0"},
    {"index": 1, "name": "/job:worker/task:1/device:CPU:0"}]}"#;

#[test]
fn the_devices_of_a_mesh_are_listed() {
    let (address, asked) = door("200 OK", TWO);
    let mesh = Mesh::at(&format!("ws://{address}/")).with_token("secret").reach().unwrap();
    assert_eq!(mesh.names(), ["/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0"]);
    let lines = asked.join().unwrap();
    assert_eq!(lines[0], "GET /devices HTTP/1.1");
    assert!(lines.iter().any(|line| line.eq_ignore_ascii_case("authorization: bearer secret")), "{lines:?}");

    let there = mesh.names();
    assert_eq!(mesh.device("/job:ps").unwrap_err(), Error::NoDevice { asked: "/job:ps".into(), there: there.clone() });
    assert_eq!(mesh.devices("ps").unwrap_err(), Error::NoDevice { asked: "/job:ps".into(), there });
    assert_eq!(mesh.device("worker").unwrap_err(), Error::Name { asked: "worker".into() });
    // The listener is gone: the device is listed, but its session cannot be opened.
    let error = mesh.device("/task:1/cpu:0").unwrap_err();
    assert!(matches!(&error, Error::Connect { device, .. } if device == "/job:worker/task:1/device:CPU:0"), "{error}");
}

#[test]
fn an_answer_that_is_no_list_of_devices_is_an_error() {
    let reach = |status, body| {
        let (address, asked) = door(status, body);
        let error = Mesh::reach(&address).unwrap_err();
        asked.join().unwrap();
        (error, address)
    };
    let (error, address) = reach("401 Unauthorized", "");
    assert_eq!(error, Error::Token { address });
    let (error, address) = reach("200 OK", r#"{"protocol": 6, "devices": []}"#);
    assert_eq!(error, Error::Protocol { address, door: 6 });
    for (status, body) in [
        ("404 Not Found", ""),
        ("200 OK", "hello"),
        ("200 OK", r#"{"protocol": 2, "devices": [{"index": 0, "name": "x"}]}"#),
    ] {
        let (error, _) = reach(status, body);
        assert!(matches!(error, Error::Answer { .. }), "{error}");
    }
}

#[test]
fn a_port_where_nothing_listens_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    assert!(matches!(Mesh::reach(&address).unwrap_err(), Error::Unreachable { .. }));
}
