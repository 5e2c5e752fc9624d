//! Exit codes: each situation has one code, in all its forms.

use std::thread;

use crate::sandbox::{Sandbox, project};

/// A graph of one node on that device.
fn on(device: &str) -> String {
    format!(
        r#"{{ "version": 1, "nodes": {{ "x": 2, "y": {{ "op": "Neg", "inputs": ["x"], "device": "{device}" }} }}, "fetch": ["y"] }}"#
    )
}

/// A variable on that device, which is read.
fn variable_on(device: &str) -> String {
    format!(
        r#"{{ "version": 1, "nodes": {{
             "v": {{ "op": "VarHandleOp", "device": "{device}", "attrs": {{ "dtype": "int32", "shape": [] }} }},
             "y": {{ "op": "ReadVariableOp", "inputs": ["v"], "attrs": {{ "dtype": "int32" }} }} }}, "fetch": ["y"] }}"#
    )
}

/// The exit code, the subcommand, the graphs that it is tried with, the arguments after them, and the parts of its error.
type Situation<'a> = (i32, &'a str, Vec<String>, &'a [&'a str], &'a [&'a str]);

/// Situations in their forms: a command, its arguments after the graph, and its message in addition to its code.
#[test]
fn one_situation_has_one_code() {
    let sandbox = Sandbox::new();
    let _nodes = [sandbox.node("local/0"), sandbox.node("local/1")];
    let here = on("/job:local/task:1");
    let down = |device: &str| vec![on(device), variable_on(device)];
    let slip = |device: &str| vec![on(device)];
    let is_down = &["No node serves /job:", "the tasks that are up: local/0, local/1"][..];
    let is_slip = &["No node serves /job:loacl", "did you mean"][..];
    let mut situations: Vec<Situation> = Vec::new();
    // A task that is down.
    for device in
        ["/job:local/task:7", "/job:local/replica:0/task:7/device:CPU:0", "/job:ps/task:0", "/job:ps", "/task:5"]
    {
        let says = if device.starts_with("/job") { is_down } else { &["No node serves /task:5"][..] };
        situations.push((4, "submit", down(device), &[], says));
        situations.push((4, "submit", down(device), &["--soft-placement"], says));
        situations.push((4, "plan", down(device), &[], says));
    }
    situations.push((4, "submit", vec![here.clone()], &["--target", "local/7"], is_down));
    situations.push((4, "submit", vec![here.clone()], &["--target", "ps/0"], is_down));
    situations.push((4, "plan", vec![here.clone()], &["--target", "ps/0"], is_down));
    // A misspelt name.
    for device in ["/job:loacl/task:1", "/job:loacl", "/job:loacl/task:1/device:CPU:0"] {
        situations.push((2, "submit", slip(device), &[], is_slip));
        situations.push((2, "plan", slip(device), &[], is_slip));
    }
    situations.push((2, "submit", vec![here.clone()], &["--target", "loacl/1"], is_slip));
    situations.push((2, "plan", vec![here.clone()], &["--target", "loacl/1"], is_slip));
    // A device that an existing task does not have.
    situations.push((2, "submit", slip("/job:local/task:1/gpu:9"), &[], &["/job:local/task:1 has no GPU:9"]));
    situations.push((2, "plan", slip("/gpu:9"), &[], &["No task has GPU:9"]));
    // A variable without a value, however it is reached.
    situations.push((3, "submit", vec![variable_on("/job:local/task:1")], &[], &["uninitialized value v"]));
    situations.push((3, "run", vec![variable_on("/job:local/task:1")], &[], &["uninitialized value v"]));
    // A name that the graph does not have.
    for command in ["submit", "plan", "run"] {
        situations.push((2, command, vec![here.clone()], &["--fetch", "z"], &["'z', does not exist"]));
    }
    // All wait for tasks that do not come; so they run in parallel.
    thread::scope(|scope| {
        for (number, (code, command, graphs, arguments, says)) in situations.into_iter().enumerate() {
            let sandbox = &sandbox;
            scope.spawn(move || {
                for (place, graph) in graphs.iter().enumerate() {
                    let file = sandbox.file(&format!("{number}.{place}.json"), graph);
                    let ended = sandbox.run(&[&[command, file.as_str()], arguments].concat());
                    assert_eq!(ended.code(), code, "{command} {graph} {arguments:?}: {}", ended.stderr);
                    ended.complains(says);
                }
            });
        }
    });
    // In one process every task that the graph names exists; a number without a job does not.
    sandbox.run(&["run", &sandbox.file("job.json", on("/job:ps"))]).prints("-2");
    sandbox.run(&["run", &sandbox.file("task.json", on("/task:5"))]).expect(2).complains(&["No node serves /task:5"]);
    sandbox.run(&["run", &project("examples/graph.json")]).prints("238");
}
