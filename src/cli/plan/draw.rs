//! A plan as a picture: Graphviz's dot, with a box for each device.

use std::collections::HashMap;
use std::fmt::Write as _;

use meshtf_graph::Graph;
use meshtf_graph::plan::Plan;
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::memory::Bytes;

/// Maximum number of nodes that are drawn: Graphviz takes minutes for more.
const MAX_NODES: usize = 2000;

/// The plan of `graph` for `dot`. Nodes are drawn in the box of their device; an edge between two boxes is a transfer, with its
/// bytes if they are known; a control edge is dotted.
pub fn dot(plan: &Plan, graph: &Graph) -> String {
    let drawn = &plan.placements[..plan.placements.len().min(MAX_NODES)];
    let places: HashMap<&str, &DeviceName> = drawn.iter().map(|one| (one.node.as_str(), &one.device)).collect();
    let mut text =
        "digraph plan {\n  rankdir=LR; node [shape=box, style=\"rounded,filled\", fillcolor=white];\n".to_owned();
    for (number, piece) in plan.pieces.iter().enumerate() {
        let hue = number as f64 / plan.pieces.len() as f64;
        let device = quoted(&piece.device.to_string());
        let _never = writeln!(
            text,
            "  subgraph cluster_{number} {{\n    label={device}; style=filled; fillcolor=\"{hue:.3} 0.15 1\";"
        );
        for node in drawn.iter().filter(|node| node.device == piece.device) {
            let (name, label) = (quoted(&node.node), quoted(&format!("{}\n{}", node.node, node.op)));
            let _never = writeln!(text, "    {name} [label={label}];");
        }
        text.push_str("  }\n");
    }
    for node in drawn {
        let Some(id) = graph.find(&node.node) else { continue };
        let of = graph.node(id);
        let to = quoted(&node.node);
        let name = |id| graph.node(id).name.as_str();
        for input in &of.inputs {
            if let Some(from) = places.get(name(input.node)) {
                let style = if *from == &node.device {
                    String::new()
                } else {
                    crossing(plan, name(input.node), input.port as usize, from, &node.device)
                };
                let _never = writeln!(text, "  {} -> {to}{style};", quoted(name(input.node)));
            }
        }
        for before in of.control.iter().filter(|before| places.contains_key(name(**before))) {
            let _never = writeln!(text, "  {} -> {to} [style=dotted];", quoted(name(*before)));
        }
    }
    if plan.placements.len() > drawn.len() {
        let more = quoted(&format!("and {} more nodes", plan.placements.len() - drawn.len()));
        let _never = writeln!(text, "  label={more};");
    }
    text.push_str("}\n");
    text
}

/// The style of the edge of a transfer.
fn crossing(plan: &Plan, node: &str, port: usize, from: &DeviceName, to: &DeviceName) -> String {
    let is_it = |tensor: &str| match tensor.rsplit_once(':') {
        Some((name, number)) => name == node && number == port.to_string(),
        None => tensor == node && port == 0,
    };
    let found = plan.transfers.iter().find(|one| one.from == *from && one.to == *to && is_it(&one.tensor));
    let bytes = found.and_then(|transfer| transfer.bytes);
    let label = bytes.map_or_else(|| "?".to_owned(), |bytes| Bytes(bytes as usize).to_string());
    format!(" [penwidth=2, color=red, label={}]", quoted(&label))
}

/// A string of dot; a line break is kept.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_graph::plan::{PlanOptions, Signature, plan};
    use meshtf_graph::read;
    use meshtf_tensor::device::{DeviceFacts, DeviceKind, Task};

    #[test]
    fn a_split_graph_has_a_box_for_each_device_and_its_transfer() {
        let text = r#"{"version": 1, "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [3]}, "device": "/job:t/task:0"},
            "y": {"op": "Neg", "inputs": ["x"], "device": "/job:t/task:1"},
            "z": {"op": "Neg", "inputs": ["y"], "control": ["x"], "device": "/job:t/task:1"}}}"#;
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let device = |task: u32| Task::new("t", task).device(DeviceKind::Cpu, 0);
        let signature = Signature { feeds: vec!["x".into()], fetches: vec!["z".into()], ..Signature::default() };
        let options = PlanOptions { default_device: device(0), soft_placement: false, by_cost: None };
        let plan = plan(&graph, &[0, 1].map(|task| DeviceFacts::unknown(device(task))), &signature, &options).unwrap();
        let drawn = dot(&plan, &graph);
        for line in [
            "label=\"/job:t/task:1/device:CPU:0\"",
            "    \"y\" [label=\"y\\nNeg\"];\n    \"z\" [label=\"z\\nNeg\"];\n  }\n",
            "  \"y\" -> \"z\";\n",
        ] {
            assert!(drawn.contains(line), "{line} is not in\n{drawn}");
        }
        assert!(drawn.starts_with("digraph plan {\n") && drawn.ends_with("}\n"), "{drawn}");
        assert_eq!(drawn.matches('{').count(), drawn.matches('}').count());
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a \"b\"\\c\nd"), "\"a \\\"b\\\"\\\\c\\nd\"");
    }
}
