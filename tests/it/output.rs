//! Output: results, messages, files; and failures to write them.

use std::fs::OpenOptions;
use std::process::Stdio;

use serde_json::json;

use crate::sandbox::{SPLIT_238, Sandbox, project};

#[test]
fn an_unwritable_standard_error_is_not_a_failure() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", SPLIT_238);
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").expect("there is a full device"));
    let run = |arguments: &[&str]| sandbox.command(arguments).stderr(full()).output().expect("it starts");
    let ended = run(&["run", &graph]);
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(0), &b"238\n"[..]));
    assert_eq!(run(&["run", "nofile"]).status.code(), Some(2));
    assert_eq!(run(&["run", &graph, "-vv"]).status.code(), Some(0));
    assert_eq!(run(&["submit"]).status.code(), Some(2));
    assert_eq!(run(&["ticket", "--peer", "127.0.0.1:1"]).status.code(), Some(0));
}

#[test]
fn an_unwritable_result_is_a_failure() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", SPLIT_238);
    let full = OpenOptions::new().write(true).open("/dev/full").expect("there is a full device");
    let ended = sandbox.command(&["run", &graph]).stdout(full).output().expect("it starts");
    assert_eq!(ended.status.code(), Some(2));
    let ended = std::process::Command::new("sh")
        .args(["-c", "exec \"$0\" run \"$1\" >&-", env!("CARGO_BIN_EXE_meshtf"), &graph])
        .output()
        .expect("it starts");
    assert_eq!(ended.status.code(), Some(2), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn looking_for_gpus_says_nothing() {
    let sandbox = Sandbox::new();
    let graph = project("examples/gpu.json");
    let mut command = sandbox.command(&["run", &graph, "--backend", "wgpu", "--quiet"]);
    let ended = command.env_remove("XDG_RUNTIME_DIR").output().expect("it starts");
    // If there is no adapter, that is the whole message.
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!said.contains("XDG_RUNTIME_DIR"), "{said}");
}

#[test]
fn files_are_named_in_json_and_written_all_or_not_at_all() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1, "nodes": {"y": [1, 2], "z/w": 2.5, "s": ["a", "bc"], "same": ["a", "b"]}}"#,
    );
    // Any name that is none of a file of records is that of a folder.
    let out = sandbox.path("out.1").display().to_string();
    let ended = sandbox.run(&["run", &graph, "--fetch", "y,z/w", "--out", &out, "--json"]).expect(0);
    assert_eq!(ended.json()["files"], json!({ "y": format!("{out}/y.npy"), "z/w": format!("{out}/z_w.npy") }));
    for strings in ["s", "same"] {
        let none = sandbox.path("none");
        let folder = none.display().to_string();
        let ended = sandbox.run(&["run", &graph, "--fetch", "y", "--fetch", strings, "--out", &folder]).expect(2);
        ended.complains(&[strings, "string", ".npy"]);
        assert!(!none.exists(), "{strings}");
    }
    sandbox.run(&["run", &graph, "--fetch", "y", "--out", &graph]).expect(2).complains(&["it is an input of this run"]);
    let file = sandbox.file("file", "");
    sandbox.run(&["run", &graph, "--fetch", "y", "--out", &file]).expect(2).complains(&["it is a file"]);
    // A value never replaces what was fed.
    let fed = format!("y=@{out}/y.npy");
    let over = ["run", &graph, "--fetch", "z/w,y", "--feed", &fed, "--out", &out];
    sandbox.run(&over).expect(2).complains(&["out.1/y.npy: it is an input of this run; name another"]);
}

#[test]
fn several_lines_of_a_step_are_printed_below_its_number() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", r#"{"version": 1, "nodes": {"y": [[1, 2], [3, 4]], "z": 5}}"#);
    sandbox
        .run(&["run", &graph, "--fetch", "y,z", "--steps", "2", "--every", "1"])
        .prints("step 1:\ny:\n[[1 2]\n [3 4]]\nz: 5\nstep 2:\ny:\n[[1 2]\n [3 4]]\nz: 5");
}

#[test]
fn a_plan_knows_the_fed_shapes() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1, "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "int32"}, "device": "/job:local/task:0"},
            "y": {"op": "Neg", "inputs": ["x"], "device": "/job:local/task:0"},
            "z": {"op": "Neg", "inputs": ["y"], "device": "/job:local/task:1"}},
            "fetch": ["z"]}"#,
    );
    let plan = sandbox.run(&["plan", &graph, "--local", "--feed", "x=[1, 2, 3]", "--json"]).expect(0).json();
    assert_eq!(plan["transfers"][0]["bytes"], 12, "{plan}");
    // Feeds the constant x of 238, which is sent to both tasks, and y2, which is sent back.
    let split = sandbox.file("split.json", SPLIT_238);
    let plan = sandbox.run(&["plan", &split, "--local", "--feed", "x=[1, 2, 3]", "--json"]).expect(0).json();
    let bytes: Vec<_> = plan["transfers"].as_array().unwrap().iter().map(|transfer| &transfer["bytes"]).collect();
    assert_eq!(bytes, [12, 12], "{plan}");
}

#[test]
fn a_run_tells_where_it_ran() {
    let sandbox = Sandbox::new();
    let split = sandbox.file("split.json", SPLIT_238);
    let (zero, one) = ("/job:local/task:0/device:CPU:0", "/job:local/task:1/device:CPU:0");
    let says = [
        format!("{zero}: y1/y, y1, y"),
        format!("{one}: y2/y, y2"),
        // With the sizes of the feeds: three of 4 bytes.
        format!("{one} -> {zero}: y2, 12 B"),
    ];
    let arguments = ["--feed", "x=[1, 2, 3]"];
    sandbox.run(&[&["run", split.as_str()], &arguments[..]].concat()).prints("[236 238 240]").complains(&says);
    let _nodes = [sandbox.node("local/0"), sandbox.node("local/1")];
    sandbox.run(&[&["submit", split.as_str()], &arguments[..]].concat()).prints("[236 238 240]").complains(&says);
    let ended = sandbox.run(&["submit", &split, "--json"]).expect(0).json();
    assert_eq!(ended["devices"], json!([zero, one]));
}

#[test]
fn cases_that_were_not_compared_do_not_differ() {
    let sandbox = Sandbox::new();
    let case = sandbox.path("case");
    std::fs::create_dir_all(&case).unwrap();
    std::fs::write(case.join("graph.json"), r#"{"version": 1, "nodes": {"y": 2}}"#).unwrap();
    let step = |expected: serde_json::Value| {
        let step = json!({ "fetches": ["y"], "expected": [expected] });
        let record = json!({ "case": "another", "rtol": 0, "atol": 0, "steps": [step],
            "cluster": { "local": ["localhost:1"] } });
        std::fs::write(case.join("case.json"), record.to_string()).unwrap();
    };
    let folder = case.display().to_string();
    step(json!({ "name": "y", "dtype": "int32", "shape": [], "data": 2 }));
    assert!(sandbox.run(&["verify", &folder]).expect(0).stdout.contains("ok       case "));
    step(json!({ "name": "y", "dtype": "int32", "shape": [], "npy": "nothing.npy" }));
    let ended = sandbox.run(&["verify", &folder]).expect(2);
    assert!(ended.stdout.contains("not compared  case ") && ended.stdout.contains("nothing.npy"), "{}", ended.stdout);
    step(json!({ "name": "y", "dtype": "int32", "shape": [], "data": 2 }));
    let _other = sandbox.node("other/0");
    let ended = sandbox.run(&["verify", "--mesh", &folder]).expect(4);
    assert!(ended.stdout.contains("not compared  case  no node serves local/0"), "{}", ended.stdout);
}

#[test]
fn a_traced_step_is_a_timeline_of_all_devices() {
    let sandbox = Sandbox::new();
    let split = sandbox.file("split.json", SPLIT_238);
    let _nodes = [sandbox.node("local/0"), sandbox.node("local/1")];
    for command in ["run", "submit"] {
        let file = sandbox.path(&format!("{command}-trace.json")).display().to_string();
        let arguments = [command, &split, "--feed", "x=2", "--steps", "3", "--every", "1", "--trace", &file];
        let ended = sandbox.run(&arguments).prints("step 1: 238\nstep 2: 238\nstep 3: 238");
        ended.complains(&["the traced step took ", "/job:local/task:1/device:CPU:0", "the critical path: ", &file]);
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |phase: &str, what: &str| {
            let events = events.iter().filter(|event| event["ph"] == phase);
            let mut found: Vec<_> = events.map(|event| (event["pid"].as_u64().unwrap(), event[what].clone())).collect();
            found.sort_by_key(|(process, what)| (*process, what.to_string()));
            found
        };
        let sums: Vec<_> =
            of("X", "name").into_iter().filter(|(_, name)| !name.as_str().unwrap().starts_with('_')).collect();
        for sum in [(1, json!("y1")), (1, json!("y")), (2, json!("y2"))] {
            assert!(sums.contains(&sum), "{command}: {sum:?} is not in {sums:?}");
        }
        // y2 is sent from the second task to the first.
        let (sent, received) = (of("s", "id"), of("f", "id"));
        let y2 = sent.iter().filter(|(from, id)| *from == 2 && received.contains(&(1, id.clone())));
        assert_eq!(y2.count(), 1, "{command}: {sent:?} {received:?}");
        let time =
            |phase: &str| events.iter().find(|event| event["ph"] == phase && event["id"] == 0).unwrap()["ts"].as_f64();
        assert!(time("s") <= time("f"), "{command}: {trace}");
    }
    let none = sandbox.path("none/trace.json").display().to_string();
    sandbox.run(&["run", &split, "--trace", &none]).expect(2).complains(&["--trace", "its folder does not exist"]);
}
