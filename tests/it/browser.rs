//! `meshtf node --web` in a real browser: the page draws the nodes' reports by its own script, and loads nothing from
//! elsewhere.
//!
//! Chromium is controlled over a pipe by the DevTools protocol: JSON, with a zero byte after each message.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::sandbox::{Sandbox, wait_until};
use meshtf_testing::means::{Means, missing};

/// Far above the expected time: the machine may be busy.
const SOON: Duration = Duration::from_secs(120);

/// A number that is fetched from one task, of values that another one makes.
const NOISE: &str = r#"{"version": 1, "nodes": {
    "noise": {"op": "RandomUniform", "inputs": [[2]], "attrs": {"dtype": "float32"}, "device": "/job:local/task:1"},
    "loss": {"op": "Mean", "inputs": ["noise", [0]], "device": "/job:local/task:0"}}, "fetch": ["loss"]}"#;

/// The content of the page, counted in its document.
const SHOWN: &str = r##"(() => {
    const count = what => document.querySelectorAll(what).length;
    const texts = what => [...document.querySelectorAll(what)].map(one => one.textContent);
    return {
        tasks: texts("#picture text").filter(text => text.includes("/") && !text.includes(" ")),
        links: count("#picture line") > 0, devices: texts("#devices tr td:nth-child(2)"),
        sessions: count("#sessions tr.choice"), fetched: texts("#sessions td:nth-child(5)").join(" "),
        curve: document.querySelector("figure[data-curve=loss] path")?.getAttribute("d") ?? "",
        boxes: texts("#plan rect.of-device + text"), steps: count("#step rect.of-device") > 0,
        wrong: document.querySelector("#state").textContent,
        foreign: performance.getEntriesByType("resource").map(one => one.name).filter(name => !name.startsWith(location.origin)),
    };
})()"##;

/// Finds Chromium and starts it.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/chromium");

struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: mpsc::Receiver<Value>,
    last: u64,
}

impl Browser {
    /// `None` if none is installed that draws an empty page.
    fn start(sandbox: &Sandbox) -> Option<Browser> {
        let found = Command::new(SCRIPT).arg("works").output().expect("there is bash");
        let name = String::from_utf8(found.stdout).expect("a name");
        if !found.status.success() {
            return None;
        }
        // The protocol is spoken on the descriptors 3 and 4.
        let on_three_and_four = r#"exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null"#;
        let mut child = Command::new("sh")
            .args(["-c", on_three_and_four, "sh", SCRIPT, "run", name.trim()])
            .arg(sandbox.path("profile"))
            .arg("--remote-debugging-pipe")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let commands = child.stdin.take().expect("stdin is piped");
        let told = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for message in told.split(0).map_while(Result::ok) {
                let message: Value = serde_json::from_slice(&message).expect("JSON");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Some(Browser { child, commands, answers, last: 0 })
    }

    fn ask(&mut self, session: Option<&str>, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        write!(self.commands, "{message}\0").and_then(|()| self.commands.flush()).expect("the browser runs");
        loop {
            let answer = self.answers.recv_timeout(SOON).unwrap_or_else(|error| panic!("{method}: {error}"));
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Opens a page; returns the protocol's session with it.
    fn open(&mut self, url: &str) -> String {
        let target = self.ask(None, "Target.createTarget", json!({ "url": url }))["targetId"].clone();
        let attached = self.ask(None, "Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        attached["sessionId"].as_str().expect("a session").to_owned()
    }

    fn evaluate(&mut self, page: &str, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        self.ask(Some(page), "Runtime.evaluate", params)["result"]["value"].clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn a_browser_draws_the_mesh_and_a_session_that_runs() {
    let sandbox = Sandbox::new();
    let Some(mut browser) = Browser::start(&sandbox) else {
        return missing(Means::Chromium, "the page in a browser");
    };
    let zero = sandbox.node_with("local/0", &["--web", "127.0.0.1:0"]);
    let _one = sandbox.node("local/1");
    let graph = sandbox.file("noise.json", NOISE);
    let _runs = sandbox.start(&["submit", &graph, "--steps", "1000000000", "--target", "local/0"]);

    let page = browser.open(&format!("http://{}/", zero.said("web")));
    let mut shown = Value::Null;
    let is_whole = wait_until(SOON, || {
        shown = browser.evaluate(&page, SHOWN);
        shown["sessions"] == 1
            && shown["links"] == true
            && shown["curve"].as_str().is_some_and(|path| path.contains('L'))
            && shown["boxes"].as_array().is_some_and(|boxes| !boxes.is_empty())
            && shown["steps"] == true
    });
    assert!(is_whole, "{shown:#}");
    assert_eq!(shown["tasks"], json!(["local/0", "local/1"]), "{shown:#}");
    let devices = shown["devices"].as_array().unwrap();
    assert!(devices.len() == 2 && devices[0].as_str().unwrap().starts_with("CPU:0 "), "{shown:#}");
    assert!(shown["fetched"].as_str().unwrap().starts_with("loss 0."), "{shown:#}");
    assert_eq!(shown["boxes"], json!(["loss", "noise"]), "{shown:#}");
    assert_eq!((&shown["wrong"], &shown["foreign"]), (&json!(""), &json!([])), "{shown:#}");

    // The address contains a session that was chosen by hand.
    browser.evaluate(&page, "document.querySelector('#sessions button').click()");
    let id = browser.evaluate(&page, "document.querySelector('#sessions button').textContent");
    // The client reports its steps, of how many, and the time left.
    let title = browser.evaluate(&page, "document.querySelector('#title').textContent");
    let (title, id) = (title.as_str().unwrap(), id.as_str().unwrap());
    assert!(title.starts_with("noise.json: step ") && title.contains(" of 1000000000"), "{title}");
    assert!(title.ends_with(&format!("(session {id})")), "{title}");
    let run = browser.evaluate(&page, "document.querySelector('#runs tr.choice').textContent");
    assert!(run.as_str().unwrap().contains("running"), "{run}");
}
