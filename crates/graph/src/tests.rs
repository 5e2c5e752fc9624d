//! Tests of graphs from files: the recorded ones, and invalid ones.

use meshtf_tensor::Tensor;
use meshtf_testing::means::recorded_sessions;

use super::*;

#[test]
fn recorded_graphs_read_alike_in_both_forms_and_are_right() {
    let mut in_both = 0;
    for case in recorded_sessions() {
        let name = case.display();
        let load = |file: &str| {
            let program = read(&std::fs::read(case.join(file)).unwrap());
            program.unwrap_or_else(|error| panic!("{name}/{file}: {error}")).nodes
        };
        let binary = load("graph.pb");
        // Some cases have only the binary form, to be small.
        let has_json = case.join("graph.json").exists();
        in_both += usize::from(has_json);
        let json = if has_json { load("graph.json") } else { binary.clone() };
        assert_eq!(json, binary, "{name}");
        assert_eq!(graphdef::from_json(&graphdef::to_json(&json)).unwrap(), json, "{name}");
        assert_eq!(graphdef::from_binary(&graphdef::to_binary(&json)).unwrap(), json, "{name}");
        let graph = Graph::new(json).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(Graph::new(graph.to_defs()).unwrap().to_defs(), graph.to_defs(), "{name}");
    }
    assert!(in_both >= 14, "only {in_both} recorded sessions have both forms");
}

/// A node `name op input,input` with the attributes; `-` for no inputs.
fn def(text: &str, attrs: &[(&str, Attr)]) -> NodeDef {
    let mut words = text.split(' ');
    let (name, op, inputs) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or("-"));
    let inputs = inputs.split(',').filter(|input| *input != "-").map(str::to_owned).collect();
    let attrs = Attrs(attrs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect());
    NodeDef { name: name.into(), op: op.into(), inputs, attrs, ..NodeDef::default() }
}

fn two() -> NodeDef {
    def("x Const", &[("value", Attr::Tensor(Tensor::scalar(2i32)))])
}

fn float() -> NodeDef {
    def("f Const", &[("value", Attr::Tensor(Tensor::scalar(2f32)))])
}

#[test]
fn what_follows_from_the_inputs_is_filled_in() {
    let graph = Graph::new(vec![
        def("y Pack x,z,x", &[]),
        def("z Neg x", &[]),
        two(),
        def("s Split x,y", &[("num_split", Attr::Int(3))]),
        def("a Assert b,x,f,^z,^z", &[]),
        def("b Const", &[("value", Attr::Tensor(Tensor::scalar(true)))]),
        float(),
    ])
    .unwrap();
    let attrs = |name: &str| &graph.node(graph.find(name).unwrap()).attrs;
    assert_eq!(attrs("x").dtype("dtype"), Ok(DType::I32));
    assert_eq!((attrs("y").int("N"), attrs("y").dtype("T"), attrs("y").int("axis")), (Ok(3), Ok(DType::I32), Ok(0)));
    assert_eq!(attrs("a").dtypes("T"), Ok([DType::I32, DType::F32].as_slice()));
    let assert = graph.node(graph.find("a").unwrap());
    assert_eq!(assert.control, [graph.find("z").unwrap()]);
    assert_eq!(graph.output("s:2").map(|output| graph.output_type(output).dtype), Ok(DType::I32));
}

#[test]
fn references_are_taken_where_the_op_wants_them_and_read_where_it_does_not() {
    let variable =
        || def("v VariableV2", &[("dtype", Attr::Type(DType::F32)), ("shape", Attr::Shape(Default::default()))]);
    let graph = Graph::new(vec![variable(), float(), def("set Assign v,f", &[]), def("read Identity v", &[])]).unwrap();
    let node = |name: &str| graph.node(graph.find(name).unwrap());
    assert_eq!(node("set").input_refs, [true, false]);
    assert!(node("set").outputs[0].is_ref);
    assert_eq!(node("read").input_refs, [false]);
    assert!(!node("read").outputs[0].is_ref);
    let error = Graph::new(vec![float(), def("set Assign f,f", &[])]).unwrap_err().to_string();
    assert!(error.contains("input 0 of Assign (ref) is a reference to a variable, but f is a value"), "{error}");
}

#[test]
fn wrong_graphs_are_refused_with_their_place() {
    let check = |nodes: Vec<NodeDef>, part: &str| {
        let error = Graph::new(nodes).map(|_| ()).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    check(vec![two(), two()], "two nodes are named \"x\"");
    check(vec![def("a:b NoOp", &[])], "\"a:b\" is not a node name");
    check(
        vec![two(), def("y Add x,xx", &[])],
        "node y: input \"xx\" names a node that does not exist; did you mean x?",
    );
    check(vec![two(), def("y Neg x:1", &[])], "node y: input \"x:1\": x (Const) has 1 output");
    check(vec![two(), def("y Add x", &[])], "node y: Add takes 2 inputs, got 1");
    check(vec![two(), def("y Add x,x,x", &[])], "Add takes 2 inputs, got 3");
    check(vec![two(), float(), def("y Add x,f", &[])], "input 1 of Add (y) is int32, but f is float32");
    check(vec![two(), def("y Sqrt x", &[])], "attribute \"T\" of Sqrt is int32; it must be one of");
    check(vec![two(), def("y Neg x", &[("t", Attr::Bool(true))])], "attribute \"t\" of Neg does not exist");
    check(vec![def("p Placeholder", &[])], "attribute \"dtype\" of Placeholder is missing; it is a dtype");
    check(vec![def("p Placeholder", &[("dtype", Attr::Int(1))])], "\"dtype\" of Placeholder is not a dtype");
    check(
        vec![def("c Const", &[("value", Attr::Tensor(Tensor::scalar(2i32))), ("dtype", Attr::Type(DType::F32))])],
        "\"value\" of Const is int32, but dtype says float32",
    );
    check(vec![two(), def("a Add x,b", &[]), def("b Add x,a", &[])], "the graph has a cycle: ");
    check(vec![def("a NoOp ^a", &[])], "the graph has a cycle: a -> a;");
    check(vec![NodeDef { device: "/job:a/tsk:1".into(), ..two() }], "node x: device \"/job:a/tsk:1\"");
    check(vec![def("s Split x,x", &[("num_split", Attr::Int(1 << 40))]), two()], "the most is");
    check(vec![two(), def("n Pack -", &[])], "the least is 1");
}

/// Nodes that no step can run are kept; the node that consumes their output determines its type.
#[test]
fn nodes_of_unknown_ops_are_kept_as_data() {
    let refused = NodeDef { refused: Some("attribute \"T\" is odd".into()), ..def("odd Neg x", &[]) };
    let t = |dtype| ("T", Attr::Type(dtype));
    let defs = vec![
        two(),
        def("u Addd x,v:7,^x", &[("odd", Attr::Int(1))]),
        def("v Nosuch", &[]),
        def("w Neg u:1", &[t(DType::F32)]),
        // It cannot be checked without the outputs of `u`, and neither can their number.
        def("open Neg u:3", &[]),
        def("far Neg u:64", &[t(DType::F32)]),
        refused,
    ];
    let graph = Graph::new(defs).unwrap();
    let refusal = |name: &str| graph.refusal(graph.find(name).unwrap()).map(|error| error.to_string());
    let unknown = "node u: unknown op \"Addd\"; did you mean Add";
    assert!(refusal("u").unwrap().starts_with(unknown));
    assert_eq!(refusal("v").unwrap(), "node v: unknown op \"Nosuch\"");
    assert_eq!((refusal("x"), refusal("w")), (None, None));
    assert!(refusal("open").unwrap().starts_with(unknown) && refusal("far").unwrap().starts_with(unknown));
    assert_eq!(refusal("odd").unwrap(), "node odd: attribute \"T\" is odd");
    assert_eq!(graph.output_type(graph.output("u:1").unwrap()).dtype, DType::F32);
    assert!(graph.output("u:2").unwrap_err().to_string().starts_with(unknown));
    let again = Graph::new(graph.to_defs()).unwrap();
    assert_eq!(again.to_defs(), graph.to_defs());
    let missing = Graph::new(vec![two(), def("u Nosuch x:1", &[])]).unwrap_err().to_string();
    assert!(missing.contains("x (Const) has 1 output"), "{missing}");
}

/// In a chain of any length behind a node that cannot run, each error names the cause, and no node holds a copy of the original
/// statement.
#[test]
fn a_long_chain_behind_an_unknown_op_is_kept() {
    let n = 100_000;
    let follow =
        |i: usize| def(&format!("n{i} Identity {}", if i == 0 { "u".into() } else { format!("n{}", i - 1) }), &[]);
    let defs: Vec<NodeDef> = [def("u Nosuch", &[])].into_iter().chain((0..n).map(follow)).collect();
    let graph = Graph::new(defs).unwrap();
    for i in [0, 1, n - 1] {
        let refusal = graph.refusal(graph.find(&format!("n{i}")).unwrap()).unwrap();
        assert_eq!(refusal.to_string(), "node u: unknown op \"Nosuch\"");
    }
    let refused = |name: &str| graph.node(graph.find(name).unwrap()).refused.as_ref().unwrap();
    let last = refused(&format!("n{}", n - 1)).because_of.as_ref();
    assert!(last.is_some_and(|root| std::sync::Arc::ptr_eq(root, refused("u"))));
}

#[test]
fn a_large_graph_is_checked_in_one_breath() {
    // Quadratic steps would take a minute here.
    let n = 20_000;
    let node = |i: usize| def(&format!("n{i} NoOp {}", if i == 0 { "-".into() } else { format!("^n{}", i - 1) }), &[]);
    let mut nodes: Vec<NodeDef> = (0..n).map(node).collect();
    let all: Vec<String> = (0..n).map(|i| format!("^n{i}")).collect();
    nodes.push(NodeDef { inputs: [all.clone(), all].concat(), ..def("init NoOp", &[]) });
    let graph = Graph::new(nodes.clone()).unwrap();
    assert_eq!(graph.node(graph.find("init").unwrap()).control.len(), n);
    nodes[0].inputs.push(format!("^n{}", n - 1));
    let error = Graph::new(nodes).unwrap_err().to_string();
    assert!(error.contains("n0 -> n1 -> ") || error.contains("(19984 more)"), "{error}");
    assert!(error.len() < 500, "{error}");
}

#[test]
fn names_asked_for_are_found_or_their_neighbours_are() {
    let graph = Graph::new(vec![two()]).unwrap();
    assert!(graph.output("x").is_ok() && graph.output("x:0").is_ok());
    assert!(graph.output("nosuch").unwrap_err().to_string().contains("The operation, 'nosuch', does not exist"));
    assert!(graph.output("y").unwrap_err().to_string().contains("did you mean x?"));
    assert!(graph.output("x:1").unwrap_err().to_string().contains("Const has 1 output,"));
}

fn node(name: &str, op: &str, inputs: &[&str]) -> NodeDef {
    let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
    NodeDef { name: name.to_owned(), op: op.to_owned(), inputs, ..NodeDef::default() }
}

fn constant(name: &str) -> NodeDef {
    NodeDef { attrs: Attrs::from([("value", Attr::Tensor(Tensor::scalar(1f32)))]), ..node(name, "Const", &[]) }
}

#[test]
fn an_extended_graph_is_the_one_that_is_made_at_once() {
    let first = vec![constant("a"), node("lost", "NoSuchOp", &["a"]), node("b", "Neg", &["a"])];
    // The outputs of a node that cannot run are typed by the inputs that consume them.
    let second =
        vec![node("d", "AddV2", &["c", "b"]), node("c", "Abs", &["lost:1", "^b"]), node("e", "Neg", &["b", "^d"])];
    let mut grown = Graph::new(first.clone()).unwrap();
    assert!(grown.shapes().of(grown.output("b").unwrap()).known().is_some());
    grown.extend(second.clone()).unwrap();
    let whole = Graph::new([first, second].concat()).unwrap();
    assert_eq!(grown.to_defs(), whole.to_defs());
    let outputs = |graph: &Graph| graph.nodes().map(|(_, node)| node.outputs.clone()).collect::<Vec<_>>();
    assert_eq!(outputs(&grown), outputs(&whole));
    assert_eq!((grown.find("c"), grown.find("e")), (whole.find("c"), whole.find("e")));
    assert_eq!(grown.shapes().of(grown.output("e").unwrap()), whole.shapes().of(whole.output("e").unwrap()));
}

#[test]
fn an_extension_that_is_wrong_leaves_nothing_behind() {
    let mut graph = Graph::new(vec![constant("a"), node("lost", "NoSuchOp", &["a"])]).unwrap();
    let before = (graph.to_defs(), format!("{:?}", graph.nodes().collect::<Vec<_>>()));
    let fine = || vec![node("b", "Neg", &["a"]), node("c", "Neg", &["lost"])];
    let mut refuse = |wrong: NodeDef, part: &str| {
        let error = graph.extend([fine(), vec![wrong]].concat()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!((graph.to_defs(), format!("{:?}", graph.nodes().collect::<Vec<_>>())), before);
        assert_eq!((graph.find("b"), graph.find("c")), (None, None));
    };
    refuse(node("a", "NoOp", &[]), "a");
    refuse(node("b", "NoOp", &[]), "b");
    refuse(node("d", "Neg", &["nowhere"]), "nowhere");
    refuse(node("d", "Neg", &["d"]), "cycle");
    refuse(node("d", "Neg", &["a", "a"]), "takes 1 input, got 2");
    refuse(node("d", "LogicalNot", &["b"]), "bool");
    graph.extend(fine()).unwrap();
    assert_eq!(graph.len(), 4);
}
