//! Bad input: one clear message with the fault, its location and the expectation; exit code 2, and no files left behind.

use crate::sandbox::{Ended, Sandbox};

/// Runs `graph` in one process with more `arguments`.
fn run(graph: impl AsRef<[u8]>, arguments: &[&str]) -> Ended {
    let sandbox = Sandbox::new();
    let file = sandbox.file("graph.json", graph);
    let mut all = vec!["run", &file];
    all.extend(arguments);
    sandbox.run(&all)
}

/// A graph with these nodes that fetches `y`.
fn nodes(nodes: &str) -> String {
    format!(r#"{{"version": 1, "nodes": {{{nodes}}}, "fetch": ["y"]}}"#)
}

#[track_caller]
fn refused(graph: impl AsRef<[u8]>, arguments: &[&str], says: &[&str]) {
    let ended = run(graph, arguments).expect(2).complains(says);
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.lines().count() <= 4, "one clear message: {}", ended.stderr);
}

#[test]
fn files_that_are_no_graph() {
    refused("", &[], &["graph.json"]);
    refused("hello", &[], &["graph.json"]);
    refused([0xff, 0x00, 0x80, 0x41], &[], &["graph.json"]);
    refused(r#"{"version": 1, "nodes": {"y": 2}, "fetch": ["y"]"#, &[], &["line 1"]);
    refused(r#"{"version": 9, "nodes": {"y": 2}}"#, &[], &["version"]);
    refused("[".repeat(200_000), &[], &["graph.json"]);
    refused(nodes(&format!(r#""y": {}1{}"#, "[".repeat(5000), "]".repeat(5000))), &[], &["deep"]);
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "no-such-file.json"]).expect(2).complains(&["no-such-file.json"]);
}

/// A GraphDef may have nodes that meshtf cannot run, as those of TensorFlow's programs have in addition to the nodes that they
/// run.
#[test]
fn graph_defs_with_more_than_a_run_needs() {
    let graph = r#"{"node": [
        {"name": "x", "op": "Const", "attr": {"dtype": {"type": "DT_INT32"}, "value": {"tensor": {"dtype": "DT_INT32", "intVal": [7]}}}},
        {"name": "y", "op": "Neg", "input": ["x"], "attr": {"T": {"type": "DT_INT32"}}},
        {"name": "u", "op": "Addd", "input": ["x", "x"]},
        {"name": "v", "op": "Neg", "input": ["u"], "attr": {"T": {"type": "DT_INT32"}}},
        {"name": "c", "op": "Const", "attr": {"dtype": {"type": "DT_INT4"}, "value": {"tensor": {"dtype": "DT_INT4"}}}},
        {"name": "m", "op": "MapDataset", "attr": {"f": {"func": {"name": "f"}}}}
    ]}"#;
    assert!(run(graph, &["--fetch", "y"]).expect(0).stdout.contains("-7"));
    assert!(run(graph, &["--fetch", "v", "--feed", "u=5"]).expect(0).stdout.contains("-5"));
    refused(graph, &["--fetch", "v"], &["graph.json: node u: unknown op \"Addd\"; did you mean Add"]);
    refused(graph, &["--fetch", "u"], &["node u: unknown op \"Addd\""]);
    refused(graph, &["--run", "c"], &["node c: attribute \"dtype\" has dtype DT_INT4"]);
    refused(graph, &["--run", "m"], &["node m: holds \"f\", which is not a function of the graph's library"]);
}

#[test]
fn graphs_that_are_wrong() {
    refused(
        nodes(r#""a": {"op": "Neg", "inputs": ["y"]}, "y": {"op": "Neg", "inputs": ["a"]}"#),
        &[],
        &["cycle", "a", "y"],
    );
    refused(nodes(r#""x": 2, "y": {"op": "Ad", "inputs": ["x", "x"]}"#), &[], &["\"Ad\"", "did you mean Add"]);
    refused(nodes(r#""count": 2, "y": {"op": "Neg", "inputs": ["cuont"]}"#), &[], &["cuont", "did you mean count"]);
    refused(nodes(r#""x": 2, "y": {"op": "Neg", "inputs": ["x:3"]}"#), &[], &["x:3", "1 output"]);
    refused(nodes(r#""x": 2, "y": {"op": "Add", "inputs": ["x"]}"#), &[], &["takes 2 inputs, got 1"]);
    refused(nodes(r#""x": 2, "z": "two", "y": {"op": "Sub", "inputs": ["x", "z"]}"#), &[], &["node y", "string"]);
    refused(
        nodes(r#""x": 2, "y": {"op": "Sub", "inputs": ["x", 0.5]}"#),
        &[],
        &["nodes.y.inputs[1]", "0.5 is not an int32"],
    );
    refused(nodes(r#""y": 2"#), &["--fetch", "z"], &["z"]);
    refused(
        nodes(r#""loss": 2, "y": 3"#),
        &["--fetch", "los"],
        &["The operation, 'los', does not exist", "did you mean loss"],
    );
    refused(
        nodes(r#""y": {"op": "Neg", "inputs": [2], "device": "/job:local/task:one"}"#),
        &[],
        &["/job:local/task:one"],
    );
    // 2 GiB of zeros, requested in a few bytes.
    refused(
        nodes(
            r#""y": {"op": "Const", "attrs": {"dtype": "float32", "value": {"dtype": "float32", "shape": [536870912], "fill": 0}}}"#,
        ),
        &[],
        &["y"],
    );
}

#[test]
fn shapes_that_do_not_fit() {
    let add = nodes(r#""a": [[1, 2, 3]], "b": [[1, 2]], "y": {"op": "Add", "inputs": ["a", "b"]}"#);
    refused(add, &[], &["line 1", "node y (Add): a is [1,3], b is [1,2]: they do not broadcast to one shape"]);
    let product = nodes(r#""a": [[1, 2, 3]], "y": {"op": "MatMul", "inputs": ["a", "a"]}"#);
    refused(
        product,
        &[],
        &["$.nodes.y (line 1", "node y (MatMul): a is [1,3], a is [1,3]: the inner sizes 3 and 1 differ"],
    );
    // Those that depend on a feed are found in the step.
    let open = nodes(
        r#""x": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null]}}, "y": {"op": "Add", "inputs": ["x", [1, 2]]}"#,
    );
    run(&open, &["--feed", "x=[1, 2, 3]"]).expect(3).complains(&["Incompatible shapes", "[3]", "[2]", "node y"]);
    // Errors that only a run can find are the graph's failure.
    run(nodes(r#""a": 7, "b": 0, "y": {"op": "FloorDiv", "inputs": ["a", "b"]}"#), &[])
        .expect(3)
        .complains(&["division by zero", "node y"]);
}

#[test]
fn feeds_that_do_not_fit() {
    let graph = nodes(
        r#""x": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [2]}}, "y": {"op": "Neg", "inputs": ["x"]}"#,
    );
    run(&graph, &["--feed", "x=[1, 2]"]).prints("[-1 -2]");
    refused(&graph, &[], &["You must feed a value for placeholder tensor 'x'"]);
    refused(&graph, &["--feed", "x=1.5"], &["x", "1.5", "int32"]);
    refused(&graph, &["--feed", "x=[1, 2.5]"], &["x", "2.5", "int32"]);
    refused(&graph, &["--feed", "x=[3000000000, 1]"], &["x", "3000000000", "int32"]);
    refused(&graph, &["--feed", "x=\"two\""], &["x", "int32"]);
    refused(&graph, &["--feed", "x=[[1], [2, 3]]"], &["x"]);
    refused(&graph, &["--feed", "x=[1, 2"], &["x"]);
    refused(&graph, &["--feed", "z=1"], &["z"]);
    refused(&graph, &["--feed", "x"], &["NAME=VALUE"]);
    refused(&graph, &["--feed", "x=[1, 2, 3]"], &["x", "shape [2]", "shape [3]"]);
}

/// A .npy file with this header and these bytes.
fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    let length = u16::try_from(header.len() + 1).expect("a short header");
    file.extend(length.to_le_bytes());
    file.extend(header.as_bytes());
    file.push(b'\n');
    file.extend(data);
    file
}

#[test]
fn npy_files_that_lie() {
    let graph =
        nodes(r#""x": {"op": "Placeholder", "attrs": {"dtype": "int32"}}, "y": {"op": "Neg", "inputs": ["x"]}"#);
    let two = [1, 0, 0, 0, 2, 0, 0, 0];
    let check = |file: &[u8], says: Result<&str, &[&str]>| {
        let sandbox = Sandbox::new();
        let graph = sandbox.file("graph.json", &graph);
        let feed = format!("x=@{}", sandbox.file("x.npy", file));
        let ended = sandbox.run(&["run", &graph, "--feed", &feed]);
        match says {
            Ok(value) => drop(ended.prints(value)),
            Err(says) => drop(ended.expect(2).complains(says)),
        }
    };
    let header =
        |descr: &str, shape: &str| format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    check(&npy(&header("<i4", "(2,)"), &two), Ok("[-1 -2]"));
    check(&npy(&header("<i4", "(2,)"), &two[..5]), Err(&["x.npy"]));
    check(&npy(&header("<i4", "(3,)"), &two), Err(&["x.npy"]));
    check(&npy(&header("<i4", "(1099511627776, 1099511627776)"), &two), Err(&["x.npy"]));
    check(&npy(&header("<i4", "(1000000000000,)"), &two), Err(&["x.npy"]));
    check(&npy(&header("<f4", "(2,)"), &two), Err(&["x", "float32", "int32"]));
    check(&npy(&header("|O", "(2,)"), &two), Err(&["x.npy"]));
    check(b"\x93NUMPY", Err(&["x.npy"]));
    check(b"", Err(&["x.npy"]));
    check(b"PK\x03\x04 something else", Err(&["x.npy"]));
}

#[test]
fn names_that_nobody_has() {
    let sandbox = Sandbox::new();
    let _zero = sandbox.node("local/0");
    let _one = sandbox.node("local/1");
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1, "nodes": {"x": 2, "y": {"op": "Neg", "inputs": ["x"], "device": "/job:loacl/task:1"}}, "fetch": ["y"]}"#,
    );
    sandbox.run(&["submit", &graph]).expect(2).complains(&[
        "Cannot assign a device",
        "y",
        "/job:loacl/task:1",
        "/job:local/task:0",
        "/job:local/task:1",
    ]);
    let right = sandbox.file("right.json", r#"{"version": 1, "nodes": {"y": 2}, "fetch": ["y"]}"#);
    sandbox
        .run(&["submit", &right, "--target", "local/2"])
        .expect(4)
        .complains(&["/job:local/task:2", "the tasks that are up: local/0, local/1"]);
    sandbox.run(&["submit", &right, "--target", "local"]).expect(2).complains(&["local/0"]);
    sandbox.run(&["submit", &right, "--peer", "nonsense::"]).expect(2).complains(&["nonsense"]);
    // A missing device, and the same with soft placement.
    let gpu = sandbox.file(
        "gpu.json",
        r#"{"version": 1, "nodes": {"x": 2, "y": {"op": "Neg", "inputs": ["x"], "device": "/job:local/task:1/gpu:7"}}, "fetch": ["y"]}"#,
    );
    sandbox.run(&["submit", &gpu]).expect(2).complains(&["GPU:7", "/job:local/task:1/device:CPU:0"]);
    sandbox.run(&["submit", &gpu, "--soft-placement"]).prints("-2");
    // The mesh still works.
    sandbox.run(&["submit", &right]).prints("2");
}

#[test]
fn feeds_as_they_are_typed() {
    let graph = nodes(
        r#""x": {"op": "Placeholder", "attrs": {"dtype": "float32"}}, "y": {"op": "Neg", "inputs": ["x"]},
           "s": {"op": "Placeholder", "attrs": {"dtype": "string"}}, "t": {"op": "Identity", "inputs": ["s"]}"#,
    );
    run(&graph, &["--feed", r#"x={"value": 1, "shape": [2, 2]}"#]).prints("[[-1. -1.]\n [-1. -1.]]");
    run(&graph, &["--feed", r#"x={"value": 1, "dtype": "int64"}"#]).prints("-1.0");
    run(&graph, &["--fetch", "t", "--feed", r#"s="@x""#]).prints("@x");
    refused(&graph, &["--feed", "x=1,2"], &["for a list use [1,2]"]);
    refused(&graph, &["--fetch", "t", "--feed", "s="], &[r#"s='""'"#]);
    refused(&graph, &["--feed", "x=1", "--feed", "x=2"], &["x is fed more than once"]);
    refused(&graph, &["--feed", "x=1", "--feed", "x:0=2"], &["x is fed more than once"]);
    let ended = run(&graph, &["--feed", "x=@nothing.npy"]).expect(2).stderr;
    assert!(ended.contains("nothing.npy") && !ended.contains("float32"), "{ended}");
}

#[test]
fn names_that_are_asked_for() {
    let graph = nodes(r#""y": 2, "n": {"op": "NoOp"}"#);
    refused(&graph, &["--fetch", "z"], &["fetch z: The operation, 'z', does not exist in the graph"]);
    refused(&graph, &["--run", "y:0"], &["run y:0: ", "the name of a node, without :PORT"]);
    refused(&graph, &["--fetch", "n"], &["fetch n: ", "--run"]);
    refused(nodes(r#""y": {"op": "Neg", "inputs": [2], "control": ["zz"]}"#), &[], &[r#"control input "zz" names"#]);
    refused(
        nodes(r#""b": true, "y": {"op": "Neg", "inputs": ["b"]}"#),
        &[],
        &["is bool; it must be one of", "that of its input b", "$.nodes.y (line "],
    );
    run(nodes(r#""y": {"base64": "aGk="}"#), &[]).prints("hi");
    // The constant node for the literal 66 has the same device, though the file does not list it.
    refused(
        nodes(r#""x": 2, "y": {"op": "Sub", "inputs": ["x", 66], "device": "/gpu:9"}"#),
        &[],
        &["Cannot assign a device for operation y: "],
    );
    let variable = nodes(r#""y": {"op": "VariableV2", "attrs": {"dtype": "float32", "shape": []}}"#);
    run(variable, &[]).expect(3).complains(&["uninitialized value y (node y, on /job:"]);
    refused(nodes(r#""y": 2"#), &["--target", "local/99999999999"], &["too large; the maximum is 4294967295"]);
}

#[test]
fn a_graph_may_come_through_a_named_pipe() {
    let sandbox = Sandbox::new();
    let pipe = sandbox.path("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("a named pipe can be made");
    // More than a pipe holds: the writer ends once all is read.
    let graph = nodes(&format!(r#""y": {}2"#, " ".repeat(1 << 20)));
    let path = pipe.clone();
    let writer = std::thread::spawn(move || std::fs::write(path, graph));
    sandbox.run(&["run", &pipe.display().to_string()]).prints("2");
    writer.join().expect("it does not panic").expect("all was read");
}
