//! Graphs that are deep: long chains of nodes, many loops one after the other, and nested loops.

use std::fmt::Write;

use crate::sandbox::Sandbox;

/// The nodes of a `graph.json`, as text.
#[derive(Default)]
struct Nodes(String);

impl Nodes {
    fn add(&mut self, name: &str, op: &str, inputs: &[&str], attrs: &str) {
        let inputs = inputs.iter().map(|input| format!("{input:?}")).collect::<Vec<_>>().join(", ");
        write!(self.0, r#""{name}": {{ "op": "{op}", "inputs": [{inputs}], "attrs": {{ {attrs} }} }}, "#)
            .expect("text");
    }

    fn constant(&mut self, name: &str, value: usize, after: &str) {
        write!(self.0, r#""{name}": {{ "value": {value}, "control": [{after}] }}, "#).expect("text");
    }

    /// The head of loop `k`, which continues while its number is less than `end`; inside, the number is `at{k}`.
    fn begin_loop(&mut self, k: usize, from: &str, end: &str) {
        let frame = format!(r#""frame_name": "loop{k}""#);
        self.add(&format!("in{k}"), "Enter", &[from], &frame);
        self.add(&format!("end{k}"), "Enter", &[end], &format!(r#"{frame}, "is_constant": true"#));
        self.add(&format!("i{k}"), "Merge", &[&format!("in{k}"), &format!("next{k}")], "");
        self.add(&format!("more{k}"), "Less", &[&format!("i{k}"), &format!("end{k}")], "");
        self.add(&format!("go{k}"), "LoopCond", &[&format!("more{k}")], "");
        self.add(&format!("now{k}"), "Switch", &[&format!("i{k}"), &format!("go{k}")], "");
        self.add(&format!("at{k}"), "Identity", &[&format!("now{k}:1")], "");
    }

    /// The end of loop `k`, whose number becomes `then`; its exit is `out{k}`.
    fn end_loop(&mut self, k: usize, then: &str) {
        self.add(&format!("next{k}"), "NextIteration", &[then], "");
        self.add(&format!("out{k}"), "Exit", &[&format!("now{k}")], "");
    }

    /// One more than the number of loop `k`.
    fn add_one(&mut self, k: usize) {
        self.constant(&format!("one{k}"), 1, &format!(r#""at{k}""#));
        self.add(&format!("plus{k}"), "Add", &[&format!("at{k}"), &format!("one{k}")], "");
    }

    /// Writes the graph to a file that fetches `fetch`.
    fn file(self, sandbox: &Sandbox, fetch: &str) -> String {
        let nodes = self.0.trim_end().trim_end_matches(',');
        sandbox.file("deep.json", format!(r#"{{ "version": 1, "nodes": {{ {nodes} }}, "fetch": ["{fetch}"] }}"#))
    }
}

/// `loops` nested loops; the innermost makes 1 of 0, with which all end.
fn nested(loops: usize) -> Nodes {
    let mut nodes = Nodes::default();
    nodes.constant("start", 0, "");
    nodes.constant("end", 1, "");
    for k in 0..loops {
        let (from, end) = match k.checked_sub(1) {
            Some(outer) => (format!("at{outer}"), format!("end{outer}")),
            None => ("start".to_owned(), "end".to_owned()),
        };
        nodes.begin_loop(k, &from, &end);
    }
    nodes.add_one(loops - 1);
    nodes.end_loop(loops - 1, &format!("plus{}", loops - 1));
    for k in (0..loops - 1).rev() {
        nodes.end_loop(k, &format!("out{}", k + 1));
    }
    nodes
}

#[test]
fn deep_graphs_are_answered() {
    let sandbox = Sandbox::new();
    let _node = sandbox.node("local/0");
    let submit = |graph: &str| sandbox.run(&["submit", graph, "--quiet"]);

    // A chain of nodes that pass a value on, and one of nodes that compute.
    let mut row = Nodes::default();
    row.constant("n0", 7, "");
    for i in 1..=50_000 {
        row.add(&format!("n{i}"), "Identity", &[&format!("n{}", i - 1)], "");
    }
    submit(&row.file(&sandbox, "n50000")).prints("7");
    let mut row = Nodes::default();
    row.constant("n0", 7, "");
    for i in 1..=20_001 {
        row.add(&format!("n{i}"), "Neg", &[&format!("n{}", i - 1)], "");
    }
    submit(&row.file(&sandbox, "n20001")).prints("-7");

    // Loops one after the other, each of which counts up by two.
    let mut row = Nodes::default();
    row.constant("start", 0, "");
    for k in 0..2000 {
        let from = if k == 0 { "start".to_owned() } else { format!("out{}", k - 1) };
        row.constant(&format!("until{k}"), 2 * (k + 1), "");
        row.begin_loop(k, &from, &format!("until{k}"));
        row.add_one(k);
        row.end_loop(k, &format!("plus{k}"));
    }
    submit(&row.file(&sandbox, "out1999")).prints("4000");

    // The greatest depth of loops, and one more.
    submit(&nested(256).file(&sandbox, "out0")).prints("1");
    submit(&nested(257).file(&sandbox, "out0"))
        .expect(2)
        .complains(&["256 loops deep, which is the limit", "\"loop256\""]);
}
