//! Colours: on a terminal, and nowhere else.

use std::process::{Command, Stdio};

use crate::sandbox::{SPLIT_238, Sandbox};
use meshtf_testing::means::{Means, missing};

/// The beginning of a colour.
const ESCAPE: &str = "\u{1b}[";

/// The output of a command on a terminal, stdout and stderr together.
fn on_a_terminal(sandbox: &Sandbox, arguments: &[String], variables: &[(&str, &str)]) -> Option<String> {
    let quoted: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
    let line = format!("'{}' {}", env!("CARGO_BIN_EXE_meshtf"), quoted.join(" "));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("MESHTF_HOME", sandbox.path("")).env("MESHTF_MESH", &sandbox.mesh);
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command.env("TERM", "xterm-256color").envs(variables.iter().copied()).stdin(Stdio::null());
    Some(String::from_utf8_lossy(&command.output().ok()?.stdout).into_owned())
}

#[test]
fn a_terminal_has_colours_and_pipes_and_no_color_have_none() {
    let sandbox = Sandbox::new();
    let _zero = sandbox.node("local/0");
    let _one = sandbox.node("local/1");
    let graph = sandbox.file("graph.json", SPLIT_238);
    let wrong = sandbox.file("wrong.json", r#"{"version": 1, "nodes": {"a": {"op": "Nonsense"}}, "fetch": ["a"]}"#);
    let trace = sandbox.path("trace.json").display().to_string();
    // A command, and its coloured output: on stdout or stderr.
    let cases: &[(&[&str], &str)] = &[
        (&["submit", &graph], "fetched y in 1 step"),
        (&["submit", &graph, "--trace", &trace], "the traced step took"),
        (&["submit", &wrong], "meshtf:"),
        (&["run", &graph], "/job:local/task:1/device:CPU:0"),
        (&["plan", &graph], "DEVICE"),
        (&["plan", &graph, "--local"], "per step"),
        (&["ps"], "TASK"),
        (&["status", "local/0", "--limits"], "LIMIT"),
        (&["doctor", "--quick", "--expect", "local/0"], "ok      "),
        (&["doctor", "--quick", "--expect", "local/7"], "1 problem"),
        (&["events", "local/0", "--now"], "local/1 ("),
    ];
    for (arguments, part) in cases {
        let piped = sandbox.run(arguments);
        let (out, err) = (&piped.stdout, &piped.stderr);
        assert!(!out.contains(ESCAPE) && !err.contains(ESCAPE), "{arguments:?}: {out:?} {err:?}");
        assert!(out.contains(part) || err.contains(part), "{arguments:?}: {out} {err}");

        let words: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let Some(shown) = on_a_terminal(&sandbox, &words, &[]) else {
            return missing(Means::Terminal, "colours on a terminal");
        };
        let line = shown.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{arguments:?}: {shown:?}"));
        assert!(line.contains(ESCAPE), "{arguments:?}: {line:?} in {shown:?}");
        for variables in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let plain = on_a_terminal(&sandbox, &words, &[variables]).unwrap_or_default();
            assert!(plain.contains(part) && !plain.contains(ESCAPE), "{arguments:?} {variables:?}: {plain:?}");
        }
    }
    // Output for programs never has colours.
    let words = ["doctor", "--quick", "--json"].map(str::to_owned);
    let json = on_a_terminal(&sandbox, &words, &[]).unwrap_or_default();
    assert!(json.contains("\"findings\"") && !json.contains(ESCAPE), "{json:?}");
}
