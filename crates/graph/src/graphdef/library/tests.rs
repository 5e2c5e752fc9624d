//! Tests of small graphs with functions, with the nodes of their expansion written by hand.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::graphdef::{Library, from_json, read_json};
use crate::{Graph, NodeDef};

/// A GraphDef of these nodes and functions, in JSON.
fn graph(nodes: &[String], functions: &[String]) -> String {
    format!(r#"{{"node": [{}], "library": {{"function": [{}]}}}}"#, nodes.join(", "), functions.join(", "))
}

/// A node: `name = Op input input @device`, and its attributes in JSON.
fn node(line: &str, attrs: &str) -> String {
    let (line, device) = line.split_once(" @").unwrap_or((line, ""));
    let (name, rest) = line.split_once(" = ").expect("a node has an op");
    let mut words = rest.split(' ');
    let op = words.next().expect("a node has an op");
    let inputs: Vec<String> = words.map(|input| format!("{input:?}")).collect();
    let inputs = inputs.join(", ");
    format!(r#"{{"name": "{name}", "op": "{op}", "input": [{inputs}], "device": "{device}", "attr": {{{attrs}}}}}"#)
}

/// A function of floats: `f(a, b) -> x, y`, where `x` and `y` are outputs that `ret` names.
fn function(signature: &str, nodes: &[String], ret: &str, control_ret: &str) -> String {
    let (name, rest) = signature.split_once('(').expect("a signature");
    let (inputs, outputs) = rest.split_once(") -> (").expect("a signature");
    let args = |list: &str| {
        let args = list.trim_end_matches(')').split(", ").filter(|arg| !arg.is_empty());
        let args = args.map(|arg| {
            let (name, ty) = arg.split_once(": ").unwrap_or((arg, r#""type": "DT_FLOAT""#));
            format!(r#"{{"name": "{name}", {ty}}}"#)
        });
        args.collect::<Vec<_>>().join(", ")
    };
    let pairs = |text: &str| {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').expect("a pair"));
        pairs.map(|(key, value)| format!("{key:?}: {value:?}")).collect::<Vec<_>>().join(", ")
    };
    format!(
        r#"{{"signature": {{"name": "{name}", "inputArg": [{}], "outputArg": [{}]}}, "nodeDef": [{}], "ret": {{{}}},
            "controlRet": {{{}}}}}"#,
        args(inputs),
        args(outputs),
        nodes.join(", "),
        pairs(ret),
        pairs(control_ret)
    )
}

fn constant(line: &str) -> String {
    node(line, r#""dtype": {"type": "DT_FLOAT"}, "value": {"tensor": {"dtype": "DT_FLOAT", "floatVal": [1]}}"#)
}

fn placeholder(name: &str, dtype: &str) -> String {
    node(&format!("{name} = Placeholder"), &format!(r#""dtype": {{"type": "{dtype}"}}"#))
}

fn variable(name: &str, device: &str) -> String {
    node(&format!("{name} = VarHandleOp @{device}"), r#""dtype": {"type": "DT_FLOAT"}, "shape": {"shape": {}}"#)
}

const FLOAT: &str = r#""T": {"type": "DT_FLOAT"}"#;
const DTYPE: &str = r#""dtype": {"type": "DT_FLOAT"}"#;
const HANDLE: &str = r#""type": "DT_RESOURCE""#;

fn func(key: &str, name: &str) -> String {
    format!(r#""{key}": {{"func": {{"name": "{name}"}}}}"#)
}

fn lines(nodes: &[NodeDef]) -> Vec<String> {
    let line = |node: &NodeDef| {
        let mut line = format!("{} = {}", node.name, node.op);
        node.inputs.iter().for_each(|input| line += &format!(" {input}"));
        if node.device.is_empty() { line } else { format!("{line} @{}", node.device) }
    };
    nodes.iter().map(line).collect()
}

/// Expands, and checks that the result is a graph.
fn expanded(nodes: &[String], functions: &[String]) -> Vec<String> {
    let nodes = from_json(&graph(nodes, functions)).unwrap();
    Graph::new(nodes.clone()).unwrap();
    lines(&nodes)
}

/// The reason why the graph is refused, or why the first of its nodes that no step can run cannot.
fn refused(nodes: &[String], functions: &[String]) -> String {
    match from_json(&graph(nodes, functions)) {
        Err(error) => error.to_string(),
        Ok(nodes) => {
            let graph = Graph::new(nodes).unwrap();
            let refusal = graph.nodes().find_map(|(id, _)| graph.refusal(id));
            refusal.expect("a node that no step can run").to_string()
        }
    }
}

fn square() -> String {
    function("f(a) -> (o)", &[node("m = Mul a a:0", FLOAT)], "o=m:z:0", "")
}

#[test]
fn a_call_is_the_nodes_of_its_body_under_the_callers_name() {
    let nodes = [
        constant("x = Const"),
        node("y = PartitionedCall x @/job:w/task:1", &func("f", "f")),
        node("z = f y:0 ^x", ""),
        node("u = Neg z", FLOAT),
    ];
    let wanted = [
        "x = Const",
        "y/m = Mul x x @/job:w/task:1",
        "y = Identity y/m @/job:w/task:1",
        "z/m = Mul y:0 y:0",
        "z = Identity z/m ^x",
        "u = Neg z",
    ];
    assert_eq!(expanded(&nodes, &[square()]), wanted);
}

#[test]
fn a_body_names_outputs_by_their_argument_and_states_some_of_its_device() {
    let split =
        node("s = Split axis:output:0 a @/device:CPU:0", r#""T": {"placeholder": "T"}, "num_split": {"i": "3"}"#);
    let axis = node(
        "axis = Const",
        r#""dtype": {"type": "DT_INT32"}, "value": {"tensor": {"dtype": "DT_INT32", "intVal": [0]}}"#,
    );
    let merged = node(
        "b = ConcatV2 s:output:2 s:output:0 axis:output",
        r#""T": {"placeholder": "T"}, "N": {"i": 2}, "Tidx": {"type": "DT_INT32"}"#,
    );
    // The name of a list of outputs denotes all of them.
    let signature = r#"f(a: "typeAttr": "T") -> (b: "typeAttr": "T", all: "typeAttr": "T","numberAttr": "n")"#;
    let f = function(signature, &[split, axis, merged], "b=b:output:0 all=s:output", "");
    let nodes =
        [constant("x = Const"), node("y = f x @/job:w/task:1", r#""T": {"type": "DT_FLOAT"}, "n": {"i": "3"}"#)];
    let wanted = [
        "x = Const",
        "y/s = Split y/axis x @/job:w/task:1/device:CPU:0",
        "y/axis = Const @/job:w/task:1",
        "y/b = ConcatV2 y/s:2 y/s y/axis @/job:w/task:1",
        "y = IdentityN y/b y/s y/s:1 y/s:2 @/job:w/task:1",
    ];
    assert_eq!(expanded(&nodes, &[f]), wanted);
}

#[test]
fn effects_wait_for_what_the_call_waits_for_and_the_caller_for_them() {
    let body = [
        constant("one = Const"),
        node("add = AssignAddVariableOp v one:output:0", DTYPE),
        node("read = ReadVariableOp v ^add", DTYPE),
        node("inner = g read:value:0 ^add", ""),
    ];
    let f = function(&format!("f(v: {HANDLE}) -> (o)"), &body, "o=inner:o:0", "done=add inner=inner");
    let g = function("g(a) -> (o)", &[], "o=a", "");
    let nodes = [
        variable("v", "/job:ps/task:0"),
        node("a = NoOp", ""),
        node("b = NoOp", ""),
        node("y = StatefulPartitionedCall v ^a ^b @/job:w/task:0", &func("f", "f")),
    ];
    let wanted = [
        "v = VarHandleOp @/job:ps/task:0",
        "a = NoOp",
        "b = NoOp",
        "y/start = NoOp ^a ^b @/job:w/task:0",
        "y/inner/start = NoOp ^y/add ^y/start @/job:w/task:0",
        "y/inner = Identity y/read ^y/add @/job:w/task:0",
        "y/one = Const ^y/start @/job:w/task:0",
        // A node that uses a handle runs on the handle's device.
        "y/add = AssignAddVariableOp v y/one ^y/start",
        "y/read = ReadVariableOp v ^y/add ^y/start",
        "y = Identity y/read ^y/add ^y/inner ^a ^b @/job:w/task:0",
    ];
    assert_eq!(expanded(&nodes, &[f, g]), wanted);
}

#[test]
fn a_branch_runs_on_live_values_alone() {
    let then = function("then(a) -> (o)", &[node("m = Mul a a", FLOAT)], "o=m:z:0", "");
    let other = function("other(a) -> (o)", &[constant("one = Const")], "o=one:output:0", "");
    let call = format!("{}, {}", func("then_branch", "then"), func("else_branch", "other"));
    let nodes = [placeholder("p", "DT_BOOL"), constant("x = Const"), node("y = StatelessIf p x", &call)];
    let wanted = [
        "p = Placeholder",
        "x = Const",
        "y/switch_pred = Switch p p",
        "y/switch_t = Identity y/switch_pred:1",
        "y/switch_f = Identity y/switch_pred",
        "y/switch_0 = Switch x p",
        "y/then/m = Mul y/switch_0:1 y/switch_0:1",
        "y/else/one = Const ^y/switch_f",
        "y/merge_0 = Merge y/else/one y/then/m",
        "y = Identity y/merge_0",
    ];
    assert_eq!(expanded(&nodes, &[then, other]), wanted);
}

#[test]
fn a_loop_goes_round_with_what_changes_and_keeps_what_does_not() {
    let args = format!("i, v: {HANDLE}");
    let cond = function(
        &format!("cond({args}) -> (o: \"type\": \"DT_BOOL\")"),
        &[constant("ten = Const"), node("l = Less i ten:output:0", FLOAT)],
        "o=l:z:0",
        "",
    );
    let body = [node("r = ReadVariableOp v", DTYPE), node("n = AddV2 i r:value:0", FLOAT)];
    let body = function(&format!("body({args}) -> (i1, v1: {HANDLE})"), &body, "i1=n:z:0 v1=v", "");
    let call = format!("{}, {}", func("cond", "cond"), func("body", "body"));
    let nodes = [
        constant("x = Const"),
        variable("v", "/job:ps/task:0"),
        node("y = While x v @/job:w/task:0", &call),
        node("r = ReadVariableOp y:1", DTYPE),
    ];
    let wanted = [
        "x = Const",
        "v = VarHandleOp @/job:ps/task:0",
        "y/enter_0 = Enter x @/job:w/task:0",
        "y/merge_0 = Merge y/enter_0 y/next_iteration_0 @/job:w/task:0",
        "y/enter_1 = Enter v",
        "y/cond/ten = Const ^y/merge_0 @/job:w/task:0",
        "y/cond/l = Less y/merge_0 y/cond/ten @/job:w/task:0",
        "y/loop_cond = LoopCond y/cond/l @/job:w/task:0",
        "y/switch_0 = Switch y/merge_0 y/loop_cond @/job:w/task:0",
        "y/exit_0 = Exit y/switch_0 @/job:w/task:0",
        "y/round = Identity y/switch_0:1 @/job:w/task:0",
        "y/fixed_1 = Identity y/enter_1 ^y/round",
        "y/body/r = ReadVariableOp y/fixed_1",
        "y/body/n = AddV2 y/switch_0:1 y/body/r @/job:w/task:0",
        "y/next_iteration_0 = NextIteration y/body/n @/job:w/task:0",
        "y/handle = Const @/job:w/task:0",
        "y = IdentityN y/exit_0 y/handle ^y/exit_0 @/job:w/task:0",
        // A handle comes from its origin, not through the caller.
        "r = ReadVariableOp v",
    ];
    assert_eq!(expanded(&nodes, &[cond, body]), wanted);
}

#[test]
fn a_library_grows_with_its_graph() {
    let mut library = Library::default();
    let piece = |text: &str| read_json::graph(&meshtf_tensor::json::parse(text).unwrap()).unwrap();
    let first = graph(&[constant("x = Const"), node("y = f x", "")], &[square()]);
    assert_eq!(lines(&library.expand(piece(&first)).unwrap()), ["x = Const", "y/m = Mul x x", "y = Identity y/m"]);
    // The functions come again with each piece; names of expanded nodes are in use.
    let neg = function("neg(a) -> (o)", &[node("m = Neg a", FLOAT), node("q = f m:y:0", "")], "o=q:o:0", "");
    let second = graph(&[node("y/m_1 = neg y", ""), node("z = f y/m_1", "")], &[square(), neg]);
    let wanted = [
        "y/m_1/q/m = Mul y/m_1/m y/m_1/m",
        "y/m_1/m = Neg y",
        "y/m_1 = Identity y/m_1/q/m",
        "z/m = Mul y/m_1 y/m_1",
        "z = Identity z/m",
    ];
    assert_eq!(lines(&library.expand(piece(&second)).unwrap()), wanted);
    // A different function of the same name is refused, and the rest of its piece is forgotten.
    let other = function("f(a) -> (o)", &[], "o=a", "");
    let new = function("new(a) -> (o)", &[], "o=a", "");
    let error = library.expand(piece(&graph(&[], &[new, other]))).unwrap_err().to_string();
    assert_eq!(error, "there are two functions \"f\" that differ");
    let nodes = library.expand(piece(&graph(&[node("n = PartitionedCall y", &func("f", "new"))], &[]))).unwrap();
    assert_eq!(nodes[0].refused.as_deref(), Some("calls \"new\", which is not a function of the graph's library"));
    // A piece adds its own content, and copies nothing of the existing library.
    let (_, growth) = library.expanded(piece(&graph(&[node("last = f y", "")], &[square()]))).unwrap();
    let names: BTreeSet<&str> = growth.names.iter().map(String::as_str).collect();
    assert_eq!((names, growth.handles.len()), (BTreeSet::from(["last", "last/m"]), 0));
    assert!(Arc::ptr_eq(&growth.functions, &library.functions));
}

#[test]
fn what_cannot_be_expanded_is_refused_by_name() {
    let x = || constant("x = Const");
    let check = |nodes: &[String], functions: &[String], want: &str| {
        let error = refused(nodes, functions);
        assert!(error.contains(want), "{error}\n{want}");
    };
    let twice = function("f(a) -> (o)", &[node("n = f a", "")], "o=n:o:0", "");
    check(&[x(), node("y = f x", "")], &[twice], "node y/n: calls f within f (f); functions are expanded before");
    check(&[node("y = f", "")], &[square()], "node y: function f: it takes 1 input, got 0");
    let lost = function("f(a) -> (o)", &[node("m = Neg b", FLOAT)], "o=m:y:0", "");
    check(&[x(), node("y = f x", "")], &[lost], "node y/m: input \"b\" is neither an argument nor an output");
    let lost = function("f(a) -> (o)", &[], "", "");
    check(
        &[x(), node("y = f x", "")],
        &[lost],
        "node y: function f: its output \"o\" does not come from one of its nodes",
    );
    let lost = function("f(a) -> (o)", &[node("m = Neg a", r#""T": {"placeholder": "T"}"#)], "o=m:y:0", "");
    check(&[x(), node("y = f x", "")], &[lost], "node y/m: attribute \"T\" stands for attribute \"T\" of its function");
    check(&[x(), node("y = f z", ""), node("z = f y", "")], &[square()], "depends on itself through calls alone");
    check(&[node("y = While", r#""cond": {"b": true}"#)], &[], "node y: attribute \"cond\" of While is not a function");
    check(&[node("y = SymbolicGradient", "")], &[square()], "attribute \"f\" of SymbolicGradient is not a function");
    check(
        &[x(), node("y = SymbolicGradient x", &func("f", "f"))],
        &[square()],
        "node y: asks for the gradient of f: it takes 2 inputs, got 1",
    );
    let coarse = function("f(a) -> (o)", &[node("n = TruncateMod a a", FLOAT)], "o=n:z:0", "");
    let call = node("y = SymbolicGradient x x", &func("f", "f"));
    check(&[x(), call], &[coarse], "node y: asks for the gradient of f: ");
    let call =
        format!("{}, {}, \"Tcond\": {{\"type\": \"DT_INT32\"}}", func("then_branch", "f"), func("else_branch", "f"));
    check(&[x(), node("y = If x x", &call)], &[square()], "node y: the condition is DT_INT32; meshtf takes DT_BOOL");
    let call = format!("{}, {}", func("cond", "f"), func("body", "f"));
    check(&[x(), node("y = While x", &call)], &[square()], "node y: its condition f must return one DT_BOOL");
    let double = function("g(a) -> (o, p)", &[], "o=a p=a", "");
    let call = format!("{}, {}", func("then_branch", "f"), func("else_branch", "g"));
    check(
        &[placeholder("p", "DT_BOOL"), x(), node("y = If p x", &call)],
        &[square(), double],
        "node y: its branches return different numbers or types of values",
    );
}

#[test]
fn a_few_functions_do_not_become_a_graph_without_end() {
    // Each calls the next twice.
    let many = |i: usize| {
        let calls = ["c", "d"].map(|call| node(&format!("{call} = f{} a", i + 1), ""));
        function(&format!("f{i}(a) -> (o)"), &calls, "o=c:o:0", "")
    };
    let mut functions: Vec<String> = (0..60).map(many).collect();
    functions.push(function("f60(a) -> (o)", &[], "o=a", ""));
    let text = graph(&[constant("x = Const"), node("y = f0 x", "")], &functions);
    let mut library = Library { limit: 1000, ..Library::default() };
    let piece = read_json::graph(&meshtf_tensor::json::parse(&text).unwrap()).unwrap();
    let nodes = library.expand(piece).unwrap();
    let why = nodes[1].refused.as_deref().unwrap();
    assert!(why.contains("with it, the functions of the graph expand to more than 1000 nodes"), "{why}");
    // The nodes were counted, and none was made.
    assert_eq!((nodes.len(), library.names.len()), (2, 2));

    let one = |i: usize| {
        let call = node(&format!("c = f{} a", i + 1), "");
        function(&format!("f{i}(a) -> (o)"), &[call], "o=c:o:0", "")
    };
    let mut functions: Vec<String> = (0..80).map(one).collect();
    functions.push(function("f80(a) -> (o)", &[], "o=a", ""));
    let error = refused(&[constant("x = Const"), node("y = f0 x", "")], &functions);
    assert!(error.contains("calls f64, more than 64 functions deep"), "{error}");
}

/// Each call passes on twice the data that it received, so that the sixtieth would receive more than any memory holds.
#[test]
fn what_calls_hand_on_does_not_grow_without_end() {
    let many = |i: usize| {
        let attr = r#""h": {"func": {"name": "h", "attr": {"p": {"placeholder": "h"}, "q": {"placeholder": "h"}}}}"#;
        function(&format!("f{i}(a) -> (o)"), &[node(&format!("c = f{} a", i + 1), attr)], "o=c:o:0", "")
    };
    let mut functions: Vec<String> = (0..60).map(many).collect();
    functions.push(function("f60(a) -> (o)", &[], "o=a", ""));
    let error = refused(&[constant("x = Const"), node("y = f0 x", &func("h", "h"))], &functions);
    assert!(error.contains("more than 1048576 bytes"), "{error}");
    let deep = |i: usize| {
        let attr = r#""h": {"func": {"name": "h", "attr": {"p": {"func": {"name": "h", "attr": {"p": {"placeholder": "h"}}}}}}}"#;
        function(&format!("f{i}(a) -> (o)"), &[node(&format!("c = f{} a", i + 1), attr)], "o=c:o:0", "")
    };
    let mut functions: Vec<String> = (0..60).map(deep).collect();
    functions.push(function("f60(a) -> (o)", &[], "o=a", ""));
    let nodes = [constant("x = Const"), node("y = f0 x", &func("h", "h"))];
    assert_eq!(expanded(&nodes, &functions).last().map(String::as_str), Some("y = Identity x"));
}

#[test]
fn the_gradient_of_a_function_is_derived_where_it_is_asked_for() {
    let call = |attrs: &str| node("g = SymbolicGradient x x @/job:w/task:1", &format!("{}, {attrs}", func("f", "f")));
    let types = r#""Tin": {"list": {"type": ["DT_FLOAT", "DT_FLOAT"]}}, "Tout": {"list": {"type": ["DT_FLOAT"]}}"#;
    let all = expanded(&[constant("x = Const"), call(types), node("y = Neg g", FLOAT)], &[square()]);
    let last = all.iter().find(|line| line.starts_with("g = Identity ")).unwrap();
    assert!(last.starts_with("g = Identity g/gradients/") && last.ends_with(" @/job:w/task:1"), "{last}");
    assert!(all.iter().skip(1).all(|line| line == "y = Neg g" || line.ends_with("@/job:w/task:1")), "{all:?}");

    // The library may state it.
    let stated = function("df(a, d) -> (o)", &[node("m = Add a d", FLOAT)], "o=m:z:0", "");
    let text = graph(&[constant("x = Const"), call(types)], &[square(), stated]);
    let pair = |of: &str, is: &str| format!(r#"{{"functionName": "{of}", "gradientFunc": "{is}"}}"#);
    let with = |pairs: &str| text.replace(r#""library": {"#, &format!(r#""library": {{"gradient": [{pairs}], "#));
    let nodes = lines(&from_json(&with(&pair("f", "df"))).unwrap());
    assert_eq!(&nodes[1..], ["g/m = Add x x @/job:w/task:1", "g = Identity g/m @/job:w/task:1"]);
    let two = [pair("f", "df"), pair("f", "f")].join(", ");
    let error = from_json(&with(&two)).unwrap_err().to_string();
    assert!(error.contains("the gradient of function \"f\" is \"df\", and cannot be \"f\", too"), "{error}");
}

/// TensorFlow 1.15 names functions after lambdas.
#[test]
fn functions_that_are_values_may_have_any_name() {
    let name = "__inference_Dataset_map_<lambda>_11";
    let double = function(&format!("{name}(a) -> (o)"), &[node("m = Add a a", FLOAT)], "o=m:z:0", "");
    let list = |key: &str, kind: &str, value: &str| format!(r#""{key}": {{"list": {{"{kind}": [{value}]}}}}"#);
    let (types, shapes) = (list("output_types", "type", r#""DT_FLOAT""#), list("output_shapes", "shape", "{}"));
    let map = format!("{}, {types}, {shapes}, {}", func("f", name), r#""Targuments": {"list": {}}"#);
    let components = list("Toutput_types", "type", r#""DT_FLOAT""#);
    let one = node("d = TensorDataset x", &format!("{components}, {shapes}"));
    let text = graph(&[constant("x = Const"), one, node("e = MapDataset d", &map)], &[double]);
    let nodes = from_json(&text).unwrap();
    let read = Graph::new(nodes.clone()).unwrap();
    assert!(!read.has_refused());
    let body = nodes[2].attrs.function("f").unwrap();
    assert_eq!(lines(&body.nodes)[1], "__inference_Dataset_map__lambda__11/m = Add arg0 arg0");
    Graph::new(body.nodes.clone()).unwrap();
    // It is written under its own name, and read again.
    let again = crate::graphdef::from_binary(&crate::graphdef::to_binary(&nodes)).unwrap();
    assert_eq!(again[2].attrs.function("f").unwrap().name, name);
}

/// Each of these took a time that was quadratic in the size of the graph.
#[test]
fn wide_calls_are_expanded_in_one_breath() {
    let n = 10_000;
    // As many branches.
    let branches = vec![r#"{"name": "f"}"#; n].join(", ");
    let case = node("y = Case p x", &format!(r#""branches": {{"list": {{"func": [{branches}]}}}}"#));
    let effect = function("f(a) -> ()", &[node("m = Neg a", FLOAT)], "", "m=m");
    let nodes = [placeholder("p", "DT_INT32"), constant("x = Const"), case];
    let nodes = from_json(&graph(&nodes, &[effect])).unwrap();
    assert!(nodes.len() > 3 * n && nodes.iter().all(|node| node.refused.is_none()));
    // As many outputs of a function, and of a node, each taken by its name.
    let outputs: Vec<String> = (0..n).map(|i| format!("o{i}")).collect();
    let ret: Vec<String> = (0..n).map(|i| format!("o{i}=s:output:{i}")).collect();
    let axis = node("axis = Const", r#""dtype": {"type": "DT_INT32"}, "value": {"tensor": {"dtype": "DT_INT32"}}"#);
    let split = node("s = Split axis:output:0 a", &format!(r#"{FLOAT}, "num_split": {{"i": "{n}"}}"#));
    let many = function(&format!("many(a) -> ({})", outputs.join(", ")), &[axis, split], &ret.join(" "), "");
    let take: Vec<String> = (0..n).map(|i| node(&format!("t{i} = Neg c:o{i}:0"), FLOAT)).collect();
    let call = [vec![node("c = many a", "")], take].concat();
    let all = function("all(a) -> (o)", &call, &format!("o=t{}:y:0", n - 1), "");
    let nodes = from_json(&graph(&[constant("x = Const"), node("y = all x", "")], &[many, all])).unwrap();
    assert_eq!(lines(&nodes).last().unwrap(), &format!("y = Identity y/t{}", n - 1));
    assert!(lines(&nodes).contains(&"y/t7 = Neg y/c/s:7".to_owned()));
}

#[test]
fn a_call_that_cannot_be_expanded_leaves_the_rest_as_it_is() {
    let nodes =
        [constant("x = Const"), node("y = SymbolicGradient x", ""), node("z = f x", ""), node("u = Neg y", FLOAT)];
    let nodes = from_json(&graph(&nodes, &[square()])).unwrap();
    let read = Graph::new(nodes).unwrap();
    let refused: Vec<&str> =
        read.nodes().filter(|(_, node)| node.refused.is_some()).map(|(_, node)| &*node.name).collect();
    assert_eq!(refused, ["y"]);
    assert!(read.find("z/m").is_some());
}
