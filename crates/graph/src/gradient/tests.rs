//! Tests of the walk, without running a graph: the nodes that it adds, their devices, and the graphs that it refuses. Their
//! values are compared with TensorFlow's in `crates/exec/tests/devices/gradients.rs`.

use std::collections::HashSet;

use meshtf_tensor::failure::Code;
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::*;
use crate::{Attr, Graph, NodeDef, op};

fn outputs(g: &mut GraphBuilder, names: &[&str]) -> Vec<Output> {
    g.settle().unwrap();
    names.iter().map(|name| g.settled().output(name).unwrap()).collect()
}

fn by(g: &mut GraphBuilder, ys: &[&str], xs: &[&str]) -> Result<Vec<Option<Gradient>>> {
    by_with(g, ys, xs, Differentiation::default())
}

fn by_with(g: &mut GraphBuilder, ys: &[&str], xs: &[&str], options: Differentiation) -> Result<Vec<Option<Gradient>>> {
    let (ys, xs) = (outputs(g, ys), outputs(g, xs));
    gradients(g, &ys, &xs, &options)
}

fn name(g: &GraphBuilder, gradient: Option<Gradient>) -> String {
    match gradient {
        None => "none".to_owned(),
        Some(Gradient::Dense(output)) => g.tensor_name(output),
        Some(Gradient::Sparse(rows)) => format!("rows {}", g.tensor_name(rows.values)),
    }
}

fn x_and(ops: &[&str]) -> GraphBuilder {
    let mut g = GraphBuilder::new();
    let mut last = g.placeholder("x", DType::F32, PartialShape::UNKNOWN).unwrap();
    for &op in ops {
        last = g.op(op).name(&op.to_lowercase()).input(last).build().unwrap();
    }
    g
}

#[test]
fn every_op_states_its_gradient() {
    let is_silent = |op: &&op::OpDef| {
        let has_both = !op.inputs.is_empty() && !op.outputs.is_empty();
        has_both && matches!(op.gradient, GradientRule::Unstated)
    };
    let silent: Vec<&str> = op::all().into_iter().filter(is_silent).map(|op| op.name).collect();
    assert!(silent.is_empty(), "these state no `gradient RULE`: {}", silent.join(", "));
}

#[test]
fn every_rule_is_of_an_op_and_has_a_name_of_its_own() {
    let names: Vec<&str> = rules::all().map(|rule| rule.name()).collect();
    let distinct: HashSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), distinct.len(), "two rules of one name");
    let used = op::all().into_iter().filter_map(|op| match op.gradient {
        GradientRule::Rule(rule) => Some(rule.name()),
        GradientRule::None | GradientRule::Unknown | GradientRule::Unstated => None,
    });
    let used: HashSet<&str> = used.collect();
    assert_eq!(distinct.difference(&used).collect::<Vec<_>>(), [&""; 0], "no op has these rules");
}

#[test]
fn nodes_are_named_and_placed_after_those_they_are_of() {
    let mut g = GraphBuilder::new();
    let x = g.constant("x", [1.0f32, 2.0]).unwrap();
    let y = g.with_device("/job:worker/task:1", |g| g.op("Tanh").name("a/y").input(x).build()).unwrap();
    g.op("Mul").name("z").input(y).input(y).device("/job:ps/task:0").build().unwrap();
    let found = by(&mut g, &["z"], &["x"]).unwrap();
    assert_eq!(name(&g, found[0]), "gradients/a/y_grad/TanhGrad");
    let device =
        |name: &str| &g.nodes().iter().find(|node| node.name == name).unwrap_or_else(|| panic!("no {name}")).device;
    for (node, wanted) in [
        ("gradients/Fill", "/job:ps/task:0"),
        ("gradients/z_grad/Mul", "/job:ps/task:0"),
        ("gradients/z_grad/Mul_1", "/job:ps/task:0"),
        // Where paths meet: on the device of the node whose output's gradient it is.
        ("gradients/AddN", "/job:worker/task:1"),
        ("gradients/a/y_grad/TanhGrad", "/job:worker/task:1"),
    ] {
        assert_eq!(device(node), wanted, "{node}");
    }
    let again = by(&mut g, &["z"], &["x"]).unwrap();
    assert_eq!(name(&g, again[0]), "gradients_1/a/y_grad/TanhGrad");
}

#[test]
fn what_does_not_depend_has_no_gradient_or_zeros() {
    let make = || {
        let mut g = x_and(&["Floor", "Neg"]);
        let x = g.settle().map(|()| g.settled().output("x").unwrap()).unwrap();
        let int = g.op("Cast").name("int").input(x).attr("DstT", DType::I32).build().unwrap();
        let back = g.op("Cast").name("back").input(int).attr("DstT", DType::F32).build().unwrap();
        g.op("Mul").name("z").input(back).input(x).build().unwrap();
        g.op("VarHandleOp").name("v").attr("dtype", DType::F64).attr("shape", PartialShape::UNKNOWN).build().unwrap();
        g
    };
    let mut g = make();
    // Gradients pass neither through rounding nor through an integer.
    assert_eq!(by(&mut g, &["neg"], &["x", "v"]).unwrap(), [None, None]);
    let of_product = by(&mut g, &["z"], &["x", "int"]).unwrap();
    assert!(name(&g, of_product[0]).starts_with("gradients_1/z_grad/"), "{}", name(&g, of_product[0]));
    assert_eq!(of_product[1], None);
    let mut g = make();
    let options = Differentiation { unconnected: Unconnected::Zero, ..Differentiation::default() };
    let zeros = by_with(&mut g, &["neg"], &["x", "v"], options).unwrap();
    assert_eq!([name(&g, zeros[0]), name(&g, zeros[1])], ["gradients/ZerosLike", "gradients/Fill_1"]);
    assert!(g.finish().is_ok());
}

#[test]
fn stops_count_as_constants() {
    let mut g = x_and(&["Exp", "Sin"]);
    let stops = outputs(&mut g, &["exp"]);
    let options = Differentiation { stops, ..Differentiation::default() };
    let found = by_with(&mut g, &["sin"], &["x", "exp"], options).unwrap();
    assert_eq!(found[0], None);
    assert!(name(&g, found[1]).starts_with("gradients/sin_grad/"));
    let mut g = x_and(&["Exp", "StopGradient", "Sin"]);
    assert_eq!(by(&mut g, &["sin"], &["x"]).unwrap(), [None]);
}

#[test]
fn rows_stay_rows_until_they_meet_a_dense_gradient() {
    let mut g = GraphBuilder::new();
    let table =
        g.op("VarHandleOp").name("w").attr("dtype", DType::F32).attr("shape", PartialShape::from([4, 2])).build();
    let table = table.unwrap();
    let look_up = |g: &mut GraphBuilder, name: &str| {
        g.op("ResourceGather").name(name).input(table).input([0, 3]).attr("dtype", DType::F32).build().unwrap()
    };
    let (a, b) = (look_up(&mut g, "a"), look_up(&mut g, "b"));
    let sum = g.op("AddV2").name("sum").input(a).input(b).build().unwrap();
    let found = by(&mut g, &["sum"], &["w"]).unwrap();
    assert_eq!(name(&g, found[0]), "rows gradients/concat");
    let read = g.op("ReadVariableOp").name("read").input(table).attr("dtype", DType::F32).build().unwrap();
    let whole = g.op("Sum").name("whole").input(read).input([0]).build().unwrap();
    g.op("AddV2").name("both").input(sum).input(whole).build().unwrap();
    let found = by(&mut g, &["both"], &["w"]).unwrap();
    assert_eq!(name(&g, found[0]), "gradients_1/AddN");
    g.finish().unwrap();
}

#[test]
fn what_has_no_gradient_is_refused_with_the_path_to_it() {
    let mut g = x_and(&["Lu", "Exp", "Neg"]);
    let before = g.settle().map(|()| g.settled().len()).unwrap();
    let failure = by(&mut g, &["neg"], &["x"]).unwrap_err();
    assert_eq!(failure.code, Code::Unimplemented);
    assert_eq!(failure.message, "node lu: Lu has no gradient; the path to it is neg <- exp <- lu");
    // Nothing is left behind, not even a reserved name.
    assert_eq!(g.nodes().len(), 0);
    assert_eq!(g.settled().len(), before);
    assert_eq!(by(&mut g, &["neg"], &["lu"]).map(|found| name(&g, found[0])).unwrap(), "gradients/exp_grad/mul");

    let mut g = x_and(&["PreventGradient", "Exp"]);
    let failure = by(&mut g, &["exp"], &["x"]).unwrap_err();
    assert!(failure.message.contains("node preventgradient: its gradient is disabled"), "{failure}");
    assert!(failure.message.contains("exp <- preventgradient"), "{failure}");

    let mut g = x_and(&["Exp"]);
    g.op("Exp").name("far").input(0.0f32).build().unwrap();
    let foreign = outputs(&mut g, &["far"]);
    let mut other = x_and(&["Exp"]);
    let x = outputs(&mut other, &["x"]);
    assert_eq!(
        gradients(&mut other, &foreign, &x, &Differentiation::default()).unwrap_err().code,
        Code::InvalidArgument
    );
    let options = Differentiation { starts: vec![None, None], ..Differentiation::default() };
    assert!(by_with(&mut other, &["exp"], &["x"], options).unwrap_err().message.contains("2 tensors to start from"));
}

/// `while x < 10 { x = body(x, switch) }` on a separate device; `y` is the value that leaves it.
fn a_loop(body: impl FnOnce(&mut GraphBuilder, Output, Output) -> Output) -> GraphBuilder {
    let mut g = GraphBuilder::new();
    let x = g.placeholder("x", DType::F32, PartialShape::UNKNOWN).unwrap();
    let exit = g.with_device("/job:local/task:1", |g| {
        let start = g.op("Enter").name("enter").input(x).attr("frame_name", "f").build()?;
        let i = g.op("Merge").name("i").input(start).build()?;
        let limit = g.op("Enter").name("limit").input(10.0f32).attr("frame_name", "f").attr("is_constant", true);
        let limit = limit.build()?;
        let less = g.op("Less").name("less").input(i).input(limit).build()?;
        let go_on = g.op("LoopCond").name("go_on").input(less).build()?;
        let switch = g.op("Switch").name("switch").input(i).input(go_on).build()?;
        let next = body(g, i, switch.port(1));
        let back = g.op("NextIteration").name("next").input(next).build()?;
        g.add_input(i, back)?;
        g.op("Exit").name("exit").input(switch).build()
    });
    let exit = exit.unwrap();
    g.op("Neg").name("y").input(exit).build().unwrap();
    g.op("StopGradient").name("stopped").input(exit).build().unwrap();
    g
}

fn squared(g: &mut GraphBuilder, _: Output, x: Output) -> Output {
    g.op("Square").name("square").input(x).build().unwrap()
}

/// The values for a loop's gradient are stored on the loop's device, and its nodes run there; a second gradient has separate
/// ones.
#[test]
fn the_gradient_of_a_loop_is_a_loop_on_its_device() {
    let mut g = a_loop(squared);
    let found = by(&mut g, &["y"], &["x"]).unwrap();
    assert_eq!(name(&g, found[0]), "gradients/b_enter");
    let ours = |op: &str| g.nodes().iter().filter(|node| node.op == op).collect::<Vec<_>>();
    for op in ["StackV2", "StackPushV2", "StackPopV2", "LoopCond"] {
        assert_eq!(ours(op).len(), 1, "{op}");
        assert_eq!(ours(op)[0].device, "/job:local/task:1", "{op}");
    }
    let frames: HashSet<&str> = ours("Enter").iter().map(|node| node.attrs.str("frame_name").unwrap()).collect();
    assert_eq!(frames, HashSet::from(["f", "gradients/f"]));
    // In addition to the gradient of the body: a counter for each of the two loops, and the gradient of the loop variable.
    assert_eq!(ours("NextIteration").len(), 3);
    let again = by(&mut g, &["y"], &["x"]).unwrap();
    assert_eq!(name(&g, again[0]), "gradients_1/b_enter");
    assert_eq!(by(&mut g, &["stopped"], &["x"]).unwrap(), [None]);
    g.finish().unwrap();
}

#[test]
fn what_a_loop_does_in_another_order_is_refused_by_name() {
    let mut g = a_loop(squared);
    for (y, x) in [("square", "x"), ("y", "square"), ("y", "enter")] {
        let failure = by(&mut g, &[y], &[x]).unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument);
        assert!(failure.message.contains(" is inside of a loop, where it has a value for each"), "{failure}");
    }
    let mut g = a_loop(|g, merged, x| g.op("Mul").name("product").input(merged).input(x).build().unwrap());
    let failure = by(&mut g, &["y"], &["x"]).unwrap_err();
    assert_eq!(failure.code, Code::Unimplemented);
    assert!(
        failure.message.contains("node product: the gradient of Mul is not supported: it takes i before"),
        "{failure}"
    );
    assert!(failure.message.ends_with("y <- exit <- next <- product"), "{failure}");
    let names: Vec<String> = g.nodes().iter().map(|node| node.name.clone()).collect();
    assert!(names.is_empty(), "{names:?}");
}

/// A long chain with a sum of two gradients at each link: the added nodes grow linearly with it, and nothing recurses.
#[test]
fn what_is_added_grows_with_the_graph() {
    let added = |links: usize| {
        let mut defs = vec![NodeDef { name: "x".into(), op: "Const".into(), ..NodeDef::default() }];
        defs[0].attrs.set("value", Tensor::scalar(1.0f32).into());
        for i in 0..links {
            let before = if i == 0 { "x".to_owned() } else { format!("y{}", i - 1) };
            let op = if i % 2 == 0 { "Tanh" } else { "Mul" };
            let inputs = if i % 2 == 0 { vec![before] } else { vec![before.clone(), before] };
            defs.push(NodeDef { name: format!("y{i}"), op: op.into(), inputs, ..NodeDef::default() });
        }
        let mut g = GraphBuilder::from(Graph::new(defs).unwrap());
        by(&mut g, &[&format!("y{}", links - 1)], &["x"]).unwrap();
        g.nodes().len()
    };
    let (some, many) = (added(1000), added(10_000));
    assert!(many > 10_000 && many <= 10 * some, "{some} nodes for 1,000, {many} for 10,000");
}

#[test]
fn gradients_of_a_graph_by_name() {
    let mut g = GraphBuilder::new();
    let table = g.constant("a/b", [[1.0f32, 2.0], [3.0, 4.0]]).unwrap();
    let rows = g.op("GatherV2").name("rows").input(table).input([1]).input(0).build().unwrap();
    let parts = g.op("Unpack").name("parts").input(rows).attr("num", 2).attr("axis", 1).build().unwrap();
    g.op("Mul").name("y").input(parts).input(parts.port(1)).build().unwrap();
    let names: Vec<String> = ["a/b", "parts:1", "rows"].map(str::to_owned).to_vec();
    let (graph, found) = of_graph(g.finish().unwrap(), &["y".to_owned()], &names, Unconnected::None).unwrap();
    let fetched: Vec<&str> = found.iter().map(|one| one.name.as_deref().unwrap()).collect();
    assert_eq!(fetched, ["gradients/a/b", "gradients/parts_1", "gradients/rows"]);
    let rows = found[0].rows.as_ref().unwrap();
    assert_eq!(rows, &["values", "indices", "dense_shape"].map(|part| format!("gradients/a/b/{part}")));
    assert!(found[1].rows.is_none() && rows.iter().all(|name| graph.find(name).is_some()));
    let again = of_graph(graph, &["gradients/rows".to_owned()], &["a/b".to_owned()], Unconnected::Zero).unwrap().1;
    assert_eq!(again[0].name.as_deref(), Some("gradients_1/a/b"));
}

/// The first node of a gradient is a Fill, named `Fill` if that is free.
#[test]
fn gradients_have_their_names_whatever_computes_them() {
    let mut g = GraphBuilder::new();
    let shape = g.constant("shape", [2i32]).unwrap();
    let filled = g.op("Fill").name("Fill").input(shape).input(3.0f32).build().unwrap();
    let other = g.op("Square").name("Square_grad/Mul").input(filled).build().unwrap();
    g.op("Square").name("Square").input(other).build().unwrap();
    let by: Vec<String> = ["Fill", "Square_grad/Mul", "Square"].map(str::to_owned).to_vec();
    let (graph, found) = of_graph(g.finish().unwrap(), &["Square".to_owned()], &by, Unconnected::None).unwrap();
    for (one, by) in found.iter().zip(by) {
        let name = format!("gradients/{by}");
        assert_eq!(one.name.as_deref(), Some(name.as_str()));
        assert_eq!(graph.node(graph.find(&name).unwrap()).op.name, "Identity", "{name}");
    }
}

#[test]
fn gradients_of_what_is_placed_with_another_are_there_too() {
    let mut g = GraphBuilder::new();
    let v = g.with_device("/job:ps/task:1", |g| g.constant("v", [1.0f32, 2.0])).unwrap();
    let with = |name: &str| Attr::Strs(vec![format!("loc:@{name}").into_bytes()]);
    let read = g.op("Identity").name("read").input(v).attr("_class", with("v")).build().unwrap();
    let square = g.op("Square").name("square").input(read).attr("_class", with("read")).build().unwrap();
    let other = g.op("Square").name("other").input(square).build().unwrap();
    g.op("Add").name("y").input(other).input(square).build().unwrap();
    let (graph, _) = of_graph(g.finish().unwrap(), &["y".to_owned()], &["v".to_owned()], Unconnected::None).unwrap();
    let devices = |scope: &str| {
        let own = graph.nodes().filter(|(_, node)| node.name.starts_with(scope) && node.op.name != "Const");
        let devices: Vec<&str> = own.map(|(_, node)| node.device.as_str()).collect();
        assert!(!devices.is_empty(), "{scope}");
        devices
    };
    for (scope, wanted) in [
        ("gradients/square_grad/", "/job:ps/task:1"),
        ("gradients/AddN", "/job:ps/task:1"),
        ("gradients/other_grad/", ""),
    ] {
        assert!(devices(scope).iter().all(|device| *device == wanted), "{scope}: {:?}", devices(scope));
    }
}
