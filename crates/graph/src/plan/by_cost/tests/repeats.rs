//! Loops count as often as they run, of a conditional its dearer side, and calls of functions their bodies.

use std::collections::HashMap;

use super::*;
use crate::function::{Function, FunctionBody};
use crate::plan::by_cost::repeat::Repeats;
use crate::plan::by_cost::sizes::{Depth, Once, Sizes};
use crate::trace::{DeviceTrace, NodeTrace};
use crate::{Attrs, NodeDef};

/// How often each node of a graph runs, by its name; each takes 1 but those named `dear`, which take 100.
fn runs(graph: &Graph, measured: &Measured) -> HashMap<String, u64> {
    let sizes = Sizes::of(graph);
    let time = |id: NodeId| if graph.node(id).name.starts_with("dear") { 100 } else { 1 };
    let runs = Repeats::find(graph, &sizes.shapes).unwrap().runs(measured, time);
    graph.nodes().map(|(id, node)| (node.name.clone(), runs[id.index()])).collect()
}

/// A loop in frame `name` whose counter `{name}_i` begins at `first` and changes by `step`, an op and a constant; `condition` is
/// made of the nodes `{name}_i`, `{name}_limit` (which enters), and must be named `{name}_holds`.
fn counting(name: &str, first: &str, (op, step): (&str, i32), limit: &str, condition: &str) -> String {
    format!(
        r#""{name}_enter": {{"op": "Enter", "inputs": ["{first}"], "attrs": {{"frame_name": "{name}"}}}},
        "{name}_limit": {{"op": "Enter", "inputs": ["{limit}"], "attrs": {{"frame_name": "{name}", "is_constant": true}}}},
        "{name}_i": {{"op": "Merge", "inputs": ["{name}_enter", "{name}_next"]}},
        {condition},
        "{name}_cond": {{"op": "LoopCond", "inputs": ["{name}_holds"]}},
        "{name}_switch": {{"op": "Switch", "inputs": ["{name}_i", "{name}_cond"]}},
        "{name}_body": {{"op": "Identity", "inputs": ["{name}_switch:1"]}},
        "{name}_step": {{"op": "Const", "attrs": {{"dtype": "int32", "value": {step}}}, "control": ["{name}_body"]}},
        "{name}_more": {{"op": "{op}", "inputs": ["{name}_body", "{name}_step"]}},
        "{name}_next": {{"op": "NextIteration", "inputs": ["{name}_more"]}},
        "{name}_exit": {{"op": "Exit", "inputs": ["{name}_switch"]}}"#
    )
}

fn number(name: &str, value: i32) -> String {
    format!(r#""{name}": {{"op": "Const", "attrs": {{"dtype": "int32", "value": {value}}}}}"#)
}

fn comparison(name: &str, op: &str, inputs: &str) -> String {
    format!(r#""{name}_holds": {{"op": "{op}", "inputs": [{inputs}]}}"#)
}

#[test]
fn a_counter_and_constants_tell_the_iterations() {
    let (i, limit) = (r#""l_i", "l_limit""#, r#""l_limit", "l_i""#);
    // By hand: the condition, the first value, the change of the counter, the limit, and how often the body runs.
    let cases = [
        ("Less", i, 0, ("AddV2", 1), 7, 7),
        ("Less", i, 0, ("AddV2", 3), 7, 3),
        ("LessEqual", i, 1, ("Add", 2), 7, 4),
        ("Greater", i, 9, ("Sub", 2), 2, 4),
        ("GreaterEqual", i, 9, ("AddV2", -1), 1, 9),
        ("NotEqual", i, 2, ("AddV2", 2), 10, 4),
        // The limit stands first: 12 > i.
        ("Greater", limit, 0, ("AddV2", 4), 12, 3),
        ("Less", i, 5, ("AddV2", 1), 5, 0),
        // It never fails; never equals; steps past: nothing is known.
        ("Less", i, 0, ("Sub", 1), 7, 10),
        ("NotEqual", i, 0, ("AddV2", 2), 7, 10),
        ("Less", i, 0, ("Mul", 2), 7, 10),
    ];
    for (op, inputs, first, change, limit, wanted) in cases {
        let condition = comparison("l", op, inputs);
        let counted = counting("l", "first", change, "limit", &condition);
        let graph = graph(&[number("first", first), number("limit", limit), counted].join(", "));
        let runs = runs(&graph, &Measured::default());
        assert_eq!(runs["l_more"], wanted, "{op} {inputs} from {first} by {change:?} to {limit}");
        assert_eq!((runs["first"], runs["l_enter"]), (1, 1));
    }
}

#[test]
fn conditions_of_several_parts_and_sizes_of_tensors_are_counted() {
    // As tf.while_loop has it with maximum_iterations: a counter, and a condition that only a run tells.
    let both = r#""l_few": {"op": "Less", "inputs": ["l_i", "l_limit"]}, "l_go": {"op": "Enter", "inputs": ["go"], "attrs": {"frame_name": "l"}},
        "l_holds": {"op": "LogicalAnd", "inputs": ["l_few", "l_go"]}"#;
    let rows = r#""x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [12, 3]}}, "shape": {"op": "Shape", "inputs": ["x"]},
        "rows": {"op": "StridedSlice", "inputs": ["shape", [0], [1], [1]], "attrs": {"shrink_axis_mask": 1}},
        "go": {"op": "Placeholder", "attrs": {"dtype": "bool", "shape": []}}"#;
    let nodes = format!("{}, {rows}, {}", number("first", 0), counting("l", "first", ("AddV2", 1), "rows", both));
    assert_eq!(runs(&graph(&nodes), &Measured::default())["l_more"], 12);
    // A loop back from the last value of another one, as gradients have it: 12 down to 1.
    let back = counting("b", "l_exit", ("Sub", 1), "one", &comparison("b", "GreaterEqual", r#""b_i", "b_limit""#));
    assert_eq!(runs(&graph(&format!("{nodes}, {}, {back}", number("one", 1))), &Measured::default())["b_more"], 12);
}

/// A loop of three iterations around one whose condition only a run tells.
fn nested() -> Graph {
    let inner = r#""m_enter": {"op": "Enter", "inputs": ["l_body"], "attrs": {"frame_name": "m"}},
        "m_i": {"op": "Merge", "inputs": ["m_enter", "m_next"]},
        "m_sum": {"op": "Square", "inputs": ["m_i"]}, "m_holds": {"op": "Less", "inputs": ["m_sum", "m_i"]},
        "m_cond": {"op": "LoopCond", "inputs": ["m_holds"]}, "m_switch": {"op": "Switch", "inputs": ["m_i", "m_cond"]},
        "m_more": {"op": "Neg", "inputs": ["m_switch:1"]}, "m_next": {"op": "NextIteration", "inputs": ["m_more"]},
        "m_exit": {"op": "Exit", "inputs": ["m_switch"]}"#;
    let outer = counting("l", "first", ("AddV2", 1), "limit", &comparison("l", "Less", r#""l_i", "l_limit""#));
    let used = outer.replace(r#""inputs": ["l_more"]"#, r#""inputs": ["l_sum"]"#);
    let sum = r#""l_sum": {"op": "AddV2", "inputs": ["l_more", "l_zero"]}, "l_zero": {"op": "Mul", "inputs": ["m_exit", "l_step"]}"#;
    graph(&format!("{}, {}, {used}, {inner}, {sum}", number("first", 0), number("limit", 3)))
}

#[test]
fn a_traced_step_tells_what_constants_do_not() {
    let graph = nested();
    // The next value of the counter is more than a sum with a constant: nothing is known of either loop.
    let before = runs(&graph, &Measured::default());
    assert_eq!((before["l_more"], before["m_more"]), (10, 100));
    // The outer condition holds 3 times and fails once; in these iterations the inner one holds 4 times each, and fails.
    let ran = [("l_holds", "Less", 4), ("l_more", "AddV2", 3), ("m_holds", "Less", 3 * 5), ("m_more", "Neg", 3 * 4)];
    let node =
        |&(name, op, _): &(&str, &str, usize)| NodeTrace { name: name.into(), op: op.into(), ..NodeTrace::default() };
    let nodes = ran.iter().flat_map(|of| std::iter::repeat_n(node(of), of.2)).collect();
    let devices = devices(&[1 << 30]);
    let mut measured = Measured::default();
    measured.learn(&graph, &devices, &[DeviceTrace { device: devices[0].name.clone(), nodes }]);
    let after = runs(&graph, &measured);
    assert_eq!((after["l_more"], after["m_more"], after["m_holds"]), (3, 12, 12));
}

#[test]
fn of_a_conditional_the_dearer_side_counts() {
    let nodes = |then: &str, other: &str| {
        format!(
            r#""p": {{"op": "Placeholder", "attrs": {{"dtype": "bool", "shape": []}}}},
            "x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [4]}}}},
            "switch": {{"op": "Switch", "inputs": ["x", "p"]}},
            "{then}": {{"op": "Neg", "inputs": ["switch:1"]}}, "{other}": {{"op": "Exp", "inputs": ["switch"]}},
            "y": {{"op": "Merge", "inputs": ["{other}", "{then}"]}}, "after": {{"op": "Neg", "inputs": ["y"]}}"#
        )
    };
    for (then, other, wanted) in [("dear", "cheap", (1, 0)), ("cheap", "dear", (0, 1)), ("one", "other", (1, 0))] {
        let runs = runs(&graph(&nodes(then, other)), &Measured::default());
        assert_eq!((runs[then], runs[other]), wanted, "{then} and {other}");
        assert_eq!((runs["switch"], runs["after"]), (1, 1));
    }
    // 1024² numbers at 20 GB/s, read and written: 419 µs. Their negation and another function do not count both.
    let large = nodes("one", "other").replace("[4]", "[1024, 1024]");
    let feeds = vec!["x".to_owned(), "p".to_owned()];
    let devices = devices(&[1 << 30]);
    let signature = Signature { feeds, fetches: vec!["y".into()], ..Signature::default() };
    let plan = plan(&graph(&large), &devices, &signature, &options(&devices)).unwrap();
    assert_eq!(plan.estimate.unwrap().step.as_micros(), 419);
}

#[test]
fn a_loop_takes_the_time_of_its_iterations() {
    let matrix = r#""x": {"op": "Fill", "inputs": [[512, 512], 1.0]},
        "x_enter": {"op": "Enter", "inputs": ["x"], "attrs": {"frame_name": "l"}},
        "x_i": {"op": "Merge", "inputs": ["x_enter", "x_next"]}, "x_switch": {"op": "Switch", "inputs": ["x_i", "l_cond"]},
        "x_more": {"op": "MatMul", "inputs": ["x_switch:1", "x_switch:1"]},
        "x_next": {"op": "NextIteration", "inputs": ["x_more"]}, "y": {"op": "Exit", "inputs": ["x_switch"]}"#;
    let counted = counting("l", "first", ("AddV2", 1), "limit", &comparison("l", "Less", r#""l_i", "l_limit""#));
    let graph = graph(&format!("{}, {}, {counted}, {matrix}", number("first", 0), number("limit", 7)));
    // A Fill of 1 MiB, 52,428 and 200 ns; and seven times 512³ products at 50 G a second, 2,684,354 ns, with three calls.
    let devices = devices(&[1 << 30]);
    let step = planned(&graph, &devices, &options(&devices), "y").estimate.unwrap().step;
    assert_eq!(step.as_nanos(), 52_628 + 7 * (2_684_354 + 3 * 200));
}

/// A GraphDef in JSON that calls `double` once, and loops it five times: `x` of 256 x 256 is multiplied by itself.
const CALLED: &str = r#"{"node": [
    {"name": "x", "op": "Placeholder", "attr": {"dtype": {"type": "DT_FLOAT"}, "shape": {"shape": {"dim": [{"size": 256}, {"size": 256}]}}}},
    {"name": "zero", "op": "Const", "attr": {"dtype": {"type": "DT_INT32"}, "value": {"tensor": {"dtype": "DT_INT32", "tensorShape": {}, "intVal": [0]}}}},
    {"name": "once", "op": "PartitionedCall", "input": ["x"], "attr": {"Tin": {"list": {"type": ["DT_FLOAT"]}}, "Tout": {"list": {"type": ["DT_FLOAT"]}}, "f": {"func": {"name": "double"}}}},
    {"name": "often", "op": "StatelessWhile", "input": ["zero", "x"], "attr": {"T": {"list": {"type": ["DT_INT32", "DT_FLOAT"]}}, "cond": {"func": {"name": "few"}}, "body": {"func": {"name": "again"}}}}],
  "library": {"function": [
    {"signature": {"name": "double", "inputArg": [{"name": "a", "type": "DT_FLOAT"}], "outputArg": [{"name": "b", "type": "DT_FLOAT"}]},
     "nodeDef": [{"name": "dear", "op": "MatMul", "input": ["a", "a"], "attr": {"T": {"type": "DT_FLOAT"}}}], "ret": {"b": "dear:product:0"}},
    {"signature": {"name": "few", "inputArg": [{"name": "i", "type": "DT_INT32"}, {"name": "a", "type": "DT_FLOAT"}], "outputArg": [{"name": "b", "type": "DT_BOOL"}]},
     "nodeDef": [{"name": "limit", "op": "Const", "attr": {"dtype": {"type": "DT_INT32"}, "value": {"tensor": {"dtype": "DT_INT32", "tensorShape": {}, "intVal": [5]}}}},
       {"name": "less", "op": "Less", "input": ["i", "limit:output:0"], "attr": {"T": {"type": "DT_INT32"}}}], "ret": {"b": "less:z:0"}},
    {"signature": {"name": "again", "inputArg": [{"name": "i", "type": "DT_INT32"}, {"name": "a", "type": "DT_FLOAT"}],
       "outputArg": [{"name": "j", "type": "DT_INT32"}, {"name": "b", "type": "DT_FLOAT"}]},
     "nodeDef": [{"name": "one", "op": "Const", "attr": {"dtype": {"type": "DT_INT32"}, "value": {"tensor": {"dtype": "DT_INT32", "tensorShape": {}, "intVal": [1]}}}},
       {"name": "next", "op": "AddV2", "input": ["i", "one:output:0"], "attr": {"T": {"type": "DT_INT32"}}},
       {"name": "call", "op": "PartitionedCall", "input": ["a"], "attr": {"Tin": {"list": {"type": ["DT_FLOAT"]}}, "Tout": {"list": {"type": ["DT_FLOAT"]}}, "f": {"func": {"name": "double"}}}}],
     "ret": {"j": "next:z:0", "b": "call:output:0"}}]}}"#;

#[test]
fn calls_and_loops_of_functions_take_the_time_of_their_bodies() {
    let graph = Graph::new(read(CALLED.as_bytes()).unwrap().nodes).unwrap();
    let devices = devices(&[1 << 30]);
    let step = |fetch: &str| {
        let signature = Signature { feeds: vec!["x".into()], fetches: vec![fetch.into()], ..Signature::default() };
        plan(&graph, &devices, &signature, &options(&devices)).unwrap().estimate.unwrap().step.as_nanos()
    };
    // 256³ products at 50 G a second are 335,544 ns.
    assert_eq!(step("once"), 335_544 + 200);
    assert_eq!(step("often:1"), 5 * (335_544 + 3 * 200));
}

/// A node that calls a function for each row of `x`: the sum of a row, and its negation.
fn of_rows(depth: usize) -> Vec<NodeDef> {
    let node = |name: &str, op: &str, inputs: &[&str], attrs: Attrs| {
        NodeDef::on("", name.into(), op, inputs.iter().map(|&input| input.to_owned()).collect(), attrs)
    };
    let float = || Attr::Type(DType::F32);
    let mut body = vec![
        node("a", "Placeholder", &[], Attrs::from([("dtype", float())])),
        NodeDef::constant("all".into(), String::new(), Tensor::vector(vec![0i32]).into()),
    ];
    if depth == 0 {
        body.push(node("b", "Neg", &["a"], Attrs::default()));
    } else {
        let mut inner = of_rows(depth - 1).pop().unwrap();
        (inner.name, inner.inputs) = ("b".into(), vec!["a".into()]);
        body.push(inner);
    }
    let function = Function::new(FunctionBody {
        name: "f".into(),
        nodes: body,
        args: vec![("a".into(), DType::F32)],
        results: vec![("b".into(), DType::F32)],
        effects: Vec::new(),
    });
    let open = meshtf_tensor::PartialShape::UNKNOWN;
    let attrs = Attrs::from([
        ("f", Attr::Func(function)),
        ("Targuments", Attr::Types(vec![DType::F32])),
        ("output_types", Attr::Types(vec![DType::F32])),
        ("output_shapes", Attr::Shapes(vec![open])),
    ]);
    let shape = Attr::Shape([3, 5, 7].into());
    vec![
        node("x", "Placeholder", &[], Attrs::from([("dtype", float()), ("shape", shape)])),
        node("y", "MapDefun", &["x"], attrs),
    ]
}

#[test]
fn a_function_of_each_row_counts_for_each() {
    let once = |depth: usize| {
        let graph = Graph::new(of_rows(depth)).unwrap();
        let sizes = Sizes::of(&graph);
        sizes.once(graph.find("y").unwrap(), &mut Depth::default())
    };
    // Three rows of 5 x 7 floats, each read and written; the node itself writes one float of an open shape.
    let row = 5 * 7 * 4;
    let multiply_adds = 3 * (5 * 7 / 2);
    assert_eq!(once(0), Once { calls: 1 + 3, multiply_adds, bytes: 3 * 2 * row + 4, peak: row });
    // Within each row a function of each of five rows of 7.
    let inner = 5 * 2 * 7 * 4 + 4 + row;
    assert_eq!(once(1), Once { calls: 1 + 3 * (1 + 5), multiply_adds: 3 * 5 * 3, bytes: 3 * inner + 4, peak: 4 + 28 });
    // A chain of functions is followed so far, and without a limit of ranks: rows of what has none count once.
    assert!(once(14).calls > once(1).calls);
}
