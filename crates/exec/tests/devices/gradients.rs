//! Tests of the gradients of graphs, which are run: against TensorFlow's (`tests/data/gradients/*.json`, see
//! `tests/tf/recorder/gradients.py`), and against central differences.
//!
//! Each op is differentiated twice, with the shapes of its inputs known and unknown, and its gradients again. A case may have
//! `rtol` and `atol` in place of the dtype's tolerance, `constant`: inputs that the gradient needs to be constants, `static:
//! true` if it needs the shapes to be known, `differences: false` if the function has a kink or its gradient is defined
//! otherwise, `"first"` if only the gradients' own gradients are. `second_refused` is an op without a gradient rule in meshtf,
//! `second_ours` the reason why the gradients of the gradients differ from TensorFlow's.

use std::path::PathBuf;

use meshtf_cases::{attr, list, same, tensor};
use meshtf_graph::gradient::{self, Differentiation, Gradient};
use meshtf_graph::{Graph, GraphBuilder, Output, graphdef, op};
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::{Complex, DType, PartialShape, Tensor};
use serde_json::Value;

use super::Cluster;

/// The distance to either side at which the function is evaluated for its differences.
const STEP: f64 = 1e-5;

/// The number of directions in which the function is evaluated.
const DIRECTIONS: usize = 3;

/// A tensor that is fed, by its name.
type Feed = (String, Tensor);

/// The differentiated function, of the feeds.
type Function<'a> = dyn FnMut(&[Feed]) -> Result<f64, String> + 'a;

/// The text of a graph, the output that is differentiated, the names it is differentiated by, the feeds, and the gradients.
type Whole<'a> = (&'a str, &'a str, &'a [&'a str], &'a [(&'a str, &'a str)], &'a [&'a str]);

/// A graph with its gradients, and those of its gradients.
struct Differentiated {
    graph: Graph,
    ys: Vec<String>,
    feeds: Vec<Feed>,
    /// The floats among the feeds, by which it is differentiated.
    xs: Vec<usize>,
    first: Gradients,
    /// `None` if there are no first ones.
    second: Option<Gradients>,
}

struct Gradients {
    starts: Vec<Tensor>,
    /// By each of `xs`, dense, and whether it was sparse.
    found: Vec<Option<(String, bool)>>,
}

fn files() -> Vec<PathBuf> {
    let folder = meshtf_testing::means::root().join("tests/data/gradients");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn gradients_are_tensorflows_and_those_of_differences() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for file in files() {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        for (i, case) in cases.iter().enumerate() {
            count += 1;
            for shapes_are_known in [true, false] {
                if !shapes_are_known && case["static"] == true {
                    continue;
                }
                if let Err(why) = check(case, shapes_are_known) {
                    let shapes = if shapes_are_known { "known" } else { "unknown" };
                    let what = if case["op"].is_string() { &case["op"] } else { &case["name"] };
                    wrong.push(format!("{name}[{i}] {what} {} shapes {shapes}: {why}", case["attrs"]));
                }
            }
        }
    }
    assert!(count > 200, "{count} cases");
    let shown: Vec<&str> = wrong.iter().take(200).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} of {count} cases are wrong:\n{}", wrong.len(), shown.join("\n"));
}

fn check(case: &Value, shapes_are_known: bool) -> Result<(), String> {
    let made = match (differentiated(case, shapes_are_known), case["prevented"] == true) {
        (Ok(made), false) => made,
        (Err(failure), true) if failure.code == Code::Unimplemented => return Ok(()),
        (Err(failure), _) => return Err(format!("failed with {failure}")),
        (Ok(_), true) => return Err("it was to be refused".to_owned()),
    };
    let mut cluster = Cluster::new(1);
    let run = |cluster: &mut Cluster, feeds: &[Feed], names: &[String]| -> Result<Vec<Tensor>, String> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let feeds: Vec<(&str, Tensor)> = feeds.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        cluster.run(&made.graph, &feeds, &names).map_err(|failure| failure.to_string())
    };
    let orders = [
        (Some(&made.first), "gradients", &made.ys),
        (made.second.as_ref(), "second", &made.first.found.iter().flatten().map(|(name, _)| name.clone()).collect()),
    ];
    for (gradients, key, ys) in orders {
        let Some(gradients) = gradients else { continue };
        let names: Vec<String> = gradients.found.iter().flatten().map(|(name, _)| name.clone()).collect();
        let got = run(&mut cluster, &made.feeds, &names).map_err(|why| format!("{key}: {why}"))?;
        let mut got = got.into_iter();
        let by_x: Vec<Option<Tensor>> =
            gradients.found.iter().map(|found| found.as_ref().map(|_| got.next().unwrap())).collect();
        let is_ours = key == "second" && case["second_ours"].is_string();
        if let Some(wanted) = case[key].as_array().filter(|_| !is_ours) {
            compare(case, key, &by_x, wanted)?;
        }
        if key == "gradients" && case["gradients"].is_array() {
            let sparse = |i: usize| gradients.found[i].as_ref().is_some_and(|(_, sparse)| *sparse);
            let sparse: Vec<usize> = (0..by_x.len()).filter(|&i| sparse(i)).collect();
            let wanted: Vec<usize> = list(&case["sparse"]).iter().map(|i| i.as_u64().unwrap() as usize).collect();
            if sparse != wanted {
                return Err(format!("the gradients {sparse:?} are sparse, wanted {wanted:?}"));
            }
        }
        let is_wide = |tensor: &Tensor| matches!(tensor.dtype(), DType::F64 | DType::C128);
        let all_f64 = made.xs.iter().all(|&x| is_wide(&made.feeds[x].1)) && gradients.starts.iter().all(is_wide);
        let has_differences = case["differences"] != false && (key == "gradients" || case["differences"] != "first");
        if all_f64 && has_differences {
            let mut function = |feeds: &[Feed]| {
                let values = run(&mut cluster, feeds, ys)?;
                Ok(values.iter().zip(&gradients.starts).map(|(value, start)| product(value, start)).sum())
            };
            differences(&made, &by_x, &mut function).map_err(|why| format!("{key}: {why}"))?;
        }
    }
    Ok(())
}

fn compare(case: &Value, key: &str, got: &[Option<Tensor>], wanted: &[Value]) -> Result<(), String> {
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let zeros = |value: &Tensor| floats(value).iter().all(|&x| x == 0.0);
        match (got, wanted.is_null()) {
            (None, true) => {}
            (Some(got), false) => {
                // Sums in another order differ slightly more than single ops do.
                let case = serde_json::json!({
                    "rtol": case["rtol"].as_f64().unwrap_or(if matches!(got.dtype(), DType::F64 | DType::C128) { 1e-10 } else { 2e-5 }),
                    "atol": case["atol"].as_f64().unwrap_or(if matches!(got.dtype(), DType::F64 | DType::C128) { 1e-11 } else { 4e-6 }),
                });
                same(&case, got, &tensor(wanted)).map_err(|why| format!("{key}[{i}]: {why}"))?;
            }
            // A constant's gradient may be none, or zeros.
            (None, false) if zeros(&tensor(wanted)) => {}
            (Some(got), true) if zeros(got) => {}
            _ => return Err(format!("{key}[{i}]: answered {got:?}, wanted {wanted}")),
        }
    }
    Ok(())
}

/// Compares gradients with the differences of their function, along some directions of all inputs at once.
fn differences(made: &Differentiated, by_x: &[Option<Tensor>], function: &mut Function) -> Result<(), String> {
    for direction in 0..DIRECTIONS {
        let mut along = 0.0;
        let mut feeds = [made.feeds.clone(), made.feeds.clone()];
        for (k, (&x, gradient)) in made.xs.iter().zip(by_x).enumerate() {
            let value = &made.feeds[x].1;
            let turn = |i: usize| ((1 + i + 3 * k) as f64 * (1.3 + direction as f64)).sin();
            let moved = |by: f64| -> Tensor {
                let moved: Vec<f64> = floats(value).iter().enumerate().map(|(i, x)| x + by * turn(i)).collect();
                let bytes: Vec<u8> = moved.iter().flat_map(|x| x.to_le_bytes()).collect();
                Tensor::from_bytes(value.dtype(), value.shape().clone(), &bytes).unwrap()
            };
            for (feeds, by) in feeds.iter_mut().zip([STEP, -STEP]) {
                feeds[x].1 = moved(by);
            }
            let gradient = gradient.as_ref().map(floats).unwrap_or_default();
            along += gradient.iter().enumerate().map(|(i, slope)| slope * turn(i)).sum::<f64>();
        }
        let difference = (function(&feeds[0])? - function(&feeds[1])?) / (2.0 * STEP);
        if (difference - along).abs() > 4e-6 * (1.0 + difference.abs()) {
            return Err(format!("the gradient is {along} along direction {direction}, the difference {difference}"));
        }
    }
    Ok(())
}

/// The elements; of complex numbers, both parts of each.
fn floats(value: &Tensor) -> Vec<f64> {
    match value.dtype() {
        DType::C64 => value.slice::<Complex<f32>>().unwrap().iter().flat_map(|x| [x.re.into(), x.im.into()]).collect(),
        DType::C128 => value.slice::<Complex<f64>>().unwrap().iter().flat_map(|x| [x.re, x.im]).collect(),
        DType::F64 => value.slice::<f64>().unwrap().to_vec(),
        DType::F32 => value.slice::<f32>().unwrap().iter().map(|&x| x.into()).collect(),
        other => panic!("no case has {other} floats"),
    }
}

fn product(a: &Tensor, b: &Tensor) -> f64 {
    floats(a).iter().zip(floats(b)).map(|(a, b)| a * b).sum()
}

/// The op of a case in a graph, or the graph of the case, with its gradients.
fn differentiated(case: &Value, shapes_are_known: bool) -> Result<Differentiated, Failure> {
    if case["graph"].is_object() {
        return graph_differentiated(case, shapes_are_known);
    }
    let name = case["op"].as_str().unwrap();
    let mut g = GraphBuilder::new();
    let (mut inputs, mut feeds, mut xs) = (Vec::new(), Vec::new(), Vec::new());
    for (i, input) in list(&case["inputs"]).iter().enumerate() {
        let (value, name) = (tensor(input), format!("input{i}"));
        let is_constant = shapes_are_known || list(&case["constant"]).contains(&i.into());
        if !value.dtype().is_differentiable() && is_constant {
            inputs.push(g.constant(&name, value)?);
            continue;
        }
        let shape = if shapes_are_known { value.shape().into() } else { PartialShape::UNKNOWN };
        inputs.push(g.placeholder(&name, value.dtype(), shape)?);
        if value.dtype().is_differentiable() {
            xs.push(feeds.len());
        }
        feeds.push((name, value));
    }
    let mut node = g.op(name).name("node").inputs(inputs.clone());
    for (key, value) in case["attrs"].as_object().into_iter().flatten() {
        node = node.attr(key, attr(name, key, value));
    }
    let node = node.build()?;
    let probe = Graph::new(g.nodes().to_vec())?;
    let is_float = |port: &u32| probe.output_type(node.port(*port)).dtype.is_differentiable();
    let ports: Vec<u32> = match case["outputs"].as_array() {
        Some(ports) => ports.iter().map(|port| port.as_u64().unwrap() as u32).collect(),
        None => (0..probe.node(node.node).outputs.len() as u32).filter(is_float).collect(),
    };
    let ys: Vec<Output> = ports.into_iter().map(|port| node.port(port)).collect();
    let by: Vec<Output> = xs.iter().map(|&x: &usize| probe.output(&feeds[x].0)).collect::<Result<_, _>>()?;
    twice(case, g, ys, by, (feeds, xs))
}

/// A whole graph; without shapes, the shape of every placeholder is unknown.
fn graph_differentiated(case: &Value, shapes_are_known: bool) -> Result<Differentiated, Failure> {
    let mut defs = graphdef::from_json(&case["graph"].to_string())?;
    for def in defs.iter_mut().filter(|def| def.op == "Placeholder" && !shapes_are_known) {
        def.attrs.set("shape", PartialShape::UNKNOWN.into());
    }
    let graph = Graph::new(defs)?;
    let outputs = |names: &Value| -> Result<Vec<Output>, Failure> {
        Ok(list(names).iter().map(|name| graph.output(name.as_str().unwrap())).collect::<Result<_, _>>()?)
    };
    let (ys, by) = (outputs(&case["of"])?, outputs(&case["by"])?);
    let feeds: Vec<Feed> =
        case["feeds"].as_object().unwrap().iter().map(|(name, value)| (name.clone(), tensor(value))).collect();
    let place = |x: &Value| feeds.iter().position(|(name, _)| Some(name.as_str()) == x.as_str()).unwrap();
    let xs = list(&case["by"]).iter().map(place).collect();
    twice(case, GraphBuilder::from(graph), ys, by, (feeds, xs))
}

/// Adds the gradients and the gradients of these.
fn twice(
    case: &Value,
    mut g: GraphBuilder,
    ys: Vec<Output>,
    by: Vec<Output>,
    (feeds, xs): (Vec<Feed>, Vec<usize>),
) -> Result<Differentiated, Failure> {
    let (first, dense) = add(&mut g, &ys, &by, list(&case["starts"]))?;
    let starts = list(&case["second_starts"]);
    if case["second"].is_array() && starts.len() != dense.len() {
        return Err(Failure::invalid(format!("{} gradients, TensorFlow has {}", dense.len(), starts.len())));
    }
    let second = match starts.is_empty() {
        true => None,
        false => match (add(&mut g, &dense, &by, starts), case["second_refused"].as_str()) {
            (Ok((second, _)), None) => Some(second),
            (Err(failure), Some(op)) if failure.message.contains(&format!("{op} has no gradient")) => None,
            (Err(failure), None) if failure.code == Code::Unimplemented && case["second"].is_null() => None,
            (Err(failure), _) => return Err(failure),
            (Ok(_), Some(op)) => return Err(Failure::invalid(format!("{op} has a gradient"))),
        },
    };
    let ys = ys.into_iter().map(|y| g.tensor_name(y)).collect();
    Ok(Differentiated { graph: g.finish()?, ys, feeds, xs, first, second })
}

/// Adds gradients as dense ones. `starts` are the gradients of `ys` by which they are multiplied.
fn add(
    g: &mut GraphBuilder,
    ys: &[Output],
    xs: &[Output],
    starts: &[Value],
) -> Result<(Gradients, Vec<Output>), Failure> {
    let starts: Vec<Tensor> = starts.iter().map(tensor).collect();
    let given = starts.iter().map(|start| g.constant("start", start.clone()).map(Some)).collect::<Result<_, _>>()?;
    let options = Differentiation { starts: given, ..Differentiation::default() };
    let (mut found, mut dense) = (Vec::new(), Vec::new());
    for gradient in gradient::gradients(g, ys, xs, &options)? {
        let Some(gradient) = gradient else {
            found.push(None);
            continue;
        };
        let output = gradient::dense(g, gradient)?;
        found.push(Some((g.tensor_name(output), matches!(gradient, Gradient::Sparse(_)))));
        dense.push(output);
    }
    Ok((Gradients { starts, found }, dense))
}

/// Rules that other tests cover: rules of gradient ops are in the second gradients of the ops and loops they belong to, and
/// variables and random numbers have a test below. TensorFlow makes no new nodes of `QuantizeAndDequantize`; its newer forms
/// have the same rule.
const ELSEWHERE: &[&str] = &[
    "FusedBatchNormGrad",
    "FusedBatchNormGradV2",
    "FusedBatchNormGradV3",
    "MaxPoolGrad",
    "Print",
    "QuantizeAndDequantize",
    "RandomGamma",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "StackPopV2",
    "StackPushV2",
];

/// Each op that has a rule is differentiated by a case.
#[test]
fn every_rule_has_a_case() {
    let text: String = files().iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let has_case = |name: &str| text.contains(&format!("\"op\":\"{name}\""));
    let is_older = |name: &str| op::lookup(name).is_some_and(|op| op.runs_as().name != op.name);
    let names = op::all().into_iter().map(|op| op.name).filter(|name| gradient::has_rule(name) && !is_older(name));
    let missing: Vec<&str> = names.filter(|name| !has_case(name)).collect();
    assert_eq!(missing, ELSEWHERE, "no case of tests/data/gradients has them");
}

/// A graph with the gradients of `y` by each of `xs`, dense, and their names.
fn with_gradients(graph: Graph, y: &str, xs: &[&str]) -> (Graph, Vec<String>) {
    let output = |name: &str| graph.output(name).unwrap();
    let (y, xs) = (output(y), xs.iter().copied().map(output).collect::<Vec<_>>());
    let mut g = GraphBuilder::from(graph);
    let found = gradient::gradients(&mut g, &[y], &xs, &Differentiation::default()).unwrap();
    let dense = |found: Option<Gradient>| {
        let dense = gradient::dense(&mut g, found.unwrap()).unwrap();
        g.tensor_name(dense)
    };
    let names = found.into_iter().map(dense).collect();
    (g.finish().unwrap(), names)
}

/// Variables of both kinds, by their handles or references and not by the values read.
#[test]
fn gradients_by_variables() {
    let graph = super::graph(
        "three = Const is=(3.0,4.0)
         axis = Const is=(0)
         i = Const is=(1,1,)
         old = VariableV2 shape=[2] dtype=float32
         init_old = Assign old three
         read_old = Identity old
         new = VarHandleOp shape=[2] dtype=float32 shared_name=\"new\"
         init_new = AssignVariableOp new three dtype=float32
         read_new = ReadVariableOp new dtype=float32
         rows = ResourceGather new i dtype=float32
         printed = Print rows rows first_n=0 U=<float32>
         product = Mul read_old read_new
         first = Sum product axis
         second = Sum printed axis
         p = Placeholder dtype=bool shape=[]
         handle = Switch new p
         read_on = ReadVariableOp handle:1 dtype=float32
         values = Switch three p
         off = Identity values
         branch = Merge off read_on
         third = Sum branch axis
         y = AddN first second third",
    );
    let (graph, names) = with_gradients(graph, "y", &["old", "new"]);
    let mut cluster = Cluster::new(1);
    cluster.run(&graph, &[], &["^init_old", "^init_new"]).unwrap();
    // Only one branch reads the other variable once more.
    for (holds, by_new) in [("true", "4.0,7.0"), ("false", "3.0,6.0")] {
        cluster.check(&graph, &[("p", holds)], &[(&names[0], "3.0,4.0"), (&names[1], by_new)]);
    }
}

/// Rows, one of them taken twice, and elements, each with its own weight.
#[test]
fn gradients_by_slices_of_a_variable() {
    let graph = super::graph(
        "value = Placeholder dtype=float32 shape=[2,2]
         rows_at = Placeholder dtype=int32 shape=[3,1]
         elements_at = Placeholder dtype=int64 shape=[2,2]
         weights = Const is=(10.0,20.0)
         w = VarHandleOp shape=[2,2] dtype=float32 shared_name=\"w\"
         init = AssignVariableOp w value dtype=float32
         rows = ResourceGatherNd w rows_at dtype=float32
         elements = ResourceGatherNd w elements_at dtype=float32
         weighted = Mul elements weights
         both = Const is=(0,1,)
         one = Const is=(0,)
         first = Sum rows both
         second = Sum weighted one
         y = Add first second",
    );
    let (graph, names) = with_gradients(graph, "y", &["w"]);
    let value = ("value", Tensor::from_vec([2, 2], vec![1f32, 2.0, 3.0, 4.0]));
    let rows_at = ("rows_at", Tensor::from_vec([3, 1], vec![1i32, 1, 0]));
    let feeds = [value, rows_at, ("elements_at", Tensor::from_vec([2, 2], vec![0i64, 1, 1, 0]))];
    let mut cluster = Cluster::new(1);
    cluster.run(&graph, &feeds, &["^init"]).unwrap();
    let values = cluster.run(&graph, &feeds, &["rows", "elements", &names[0]]).unwrap();
    let wanted: [&[f64]; 3] = [&[3.0, 4.0, 3.0, 4.0, 1.0, 2.0], &[2.0, 3.0], &[1.0, 11.0, 22.0, 2.0]];
    assert_eq!([0, 1, 2].map(|i| floats(&values[i])), wanted);
    let beyond = Tensor::from_vec([3, 1], vec![1i32, 2, 0]);
    let failure = cluster.run(&graph, &[("rows_at", beyond)], &["rows"]).unwrap_err();
    assert!(failure.message.contains("does not index into param shape [2,2]"), "{failure}");
}

/// Each step has other samples, so the step that computes the gradient returns them, too.
#[test]
fn gradients_by_the_parameter_of_samples() {
    let graph = super::graph(
        "n = Const is=(2,2,)
         alpha = Placeholder dtype=float32 shape=[3]
         samples = RandomGamma n alpha seed=7 seed2=9
         slopes = RandomGammaGrad alpha samples
         axes = Const is=(0,1,)
         wanted = Sum slopes axes",
    );
    let (graph, names) = with_gradients(graph, "samples", &["alpha"]);
    let alpha = [("alpha", Tensor::vector(vec![0.4f32, 2.0, 9.0]))];
    let values = Cluster::new(1).run(&graph, &alpha, &[&names[0], "wanted", "samples"]).unwrap();
    let got = floats(&values[0]);
    assert_eq!(got, floats(&values[1]));
    // A sample of a large parameter moves about as much as the parameter.
    assert!(got.iter().all(|slope| slope.is_finite() && *slope > 0.0) && (got[2] / 4.0 - 1.0).abs() < 0.5, "{got:?}");
    assert_eq!(values[2].shape().dims(), [2, 2, 3]);
}

/// Computations of whole graphs: paths that meet, branches, tables, variables, and gradients of gradients.
#[test]
fn gradients_of_whole_graphs() {
    let cases: [Whole; 11] = [
        // y = x^2 + 3 x: 2 x + 3
        (
            "x = Placeholder dtype=float32 shape=[2]
             three = Const is=(3.0)
             square = Square x
             triple = Mul x three
             y = AddV2 square triple",
            "y",
            &["x"],
            &[("x", "1.0,4.0")],
            &["5.0,11.0"],
        ),
        // The branch that is taken: 2 x, or -1.
        (CONDITIONAL, "y", &["x"], &[("x", "3.0"), ("p", "true")], &["6.0"]),
        (CONDITIONAL, "y", &["x"], &[("x", "3.0"), ("p", "false")], &["-1.0"]),
        // A branch that takes its inputs without a Switch.
        (DIRECT, "y", &["x"], &[("x", "3.0"), ("p", "true")], &["6.0"]),
        (DIRECT, "y", &["x"], &[("x", "3.0"), ("p", "false")], &["-1.0"]),
        // One inside another: only if both hold it is x^2.
        (NESTED, "y", &["x"], &[("x", "3.0"), ("p", "true"), ("q", "true")], &["6.0"]),
        (NESTED, "y", &["x"], &[("x", "3.0"), ("p", "true"), ("q", "false")], &["5.0"]),
        (NESTED, "y", &["x"], &[("x", "3.0"), ("p", "false"), ("q", "true")], &["-1.0"]),
        // A product of the elements of a list; the gradient of each is the product of the others.
        (LIST_IN_A_LOOP, "y", &["x"], &[("x", "2.0,3.0,5.0")], &["15.0,10.0,6.0"]),
        // By hand: y = (x0 x1)^3.
        (LIST_OF_AN_ITERATION, "y", &["x"], &[("x", "2.0,0.5")], &["1.5,6.0"]),
        // Rows that are looked up twice, and a dense use of the same table.
        (
            "w = Placeholder dtype=float32 shape=[3]
             i = Const is=(0,2,0,)
             axis = Const is=(0)
             rows = GatherV2 w i axis
             all = Sum rows axis
             square = Square w
             squares = Sum square axis
             y = AddV2 all squares",
            "y",
            &["w"],
            &[("w", "1.0,2.0,3.0")],
            &["4.0,4.0,7.0"],
        ),
    ];
    for (text, y, xs, feeds, wanted) in cases {
        let (graph, fetched) = with_gradients(super::graph(text), y, xs);
        let expected: Vec<(&str, &str)> = fetched.iter().map(String::as_str).zip(wanted.iter().copied()).collect();
        Cluster::new(1).check(&graph, feeds, &expected);
    }
}

const CONDITIONAL: &str = "x = Placeholder dtype=float32 shape=[]
    p = Placeholder dtype=bool shape=[]
    s = Switch x p
    off = Neg s
    on = Square s:1
    m = Merge off on
    y = Identity m";

const DIRECT: &str = "x = Placeholder dtype=float32 shape=[]
    p = Placeholder dtype=bool shape=[]
    s = Switch x p
    off = Neg s
    on = Mul s:1 x
    m = Merge off on
    y = Identity m";

const NESTED: &str = "x = Placeholder dtype=float32 shape=[]
    p = Placeholder dtype=bool shape=[]
    q = Placeholder dtype=bool shape=[]
    s = Switch x p
    sq = Switch q p
    off = Neg s
    t = Switch s:1 sq:1
    five = Const is=(5.0)
    inner_off = Mul t five
    inner_on = Square t:1
    inner = Merge inner_off inner_on
    on = Identity inner
    m = Merge off on
    y = Identity m";

/// A list that a loop reads and does not change.
const LIST_IN_A_LOOP: &str = "x = Placeholder dtype=float32 shape=[3]
    any = Const is=(-1)
    zero = Const is=(0)
    one = Const is=(1)
    three = Const is=(3)
    first = Const is=(1.0)
    list = TensorListFromTensor x any element_dtype=float32
    ei = Enter zero frame_name=\"w\"
    ea = Enter first frame_name=\"w\"
    el = Enter list frame_name=\"w\" is_constant=true
    e1 = Enter one frame_name=\"w\" is_constant=true
    en = Enter three frame_name=\"w\" is_constant=true
    ex = Enter any frame_name=\"w\" is_constant=true
    mi = Merge ei ni
    ma = Merge ea na
    less = Less mi en
    cond = LoopCond less
    si = Switch mi cond
    sa = Switch ma cond
    ai = Add si:1 e1
    item = TensorListGetItem el si:1 ex element_dtype=float32
    aa = Mul sa:1 item
    ni = NextIteration ai
    na = NextIteration aa
    y = Exit sa";

/// A list that each iteration makes anew for a loop inside.
const LIST_OF_AN_ITERATION: &str = "x = Placeholder dtype=float32 shape=[2]
    any = Const is=(-1)
    zero = Const is=(0)
    one = Const is=(1)
    two = Const is=(2)
    first = Const is=(1.0)
    ei = Enter zero frame_name=\"outer\"
    ea = Enter first frame_name=\"outer\"
    e1 = Enter one frame_name=\"outer\" is_constant=true
    e2 = Enter two frame_name=\"outer\" is_constant=true
    ex = Enter x frame_name=\"outer\" is_constant=true
    ey = Enter any frame_name=\"outer\" is_constant=true
    mi = Merge ei ni
    ma = Merge ea na
    less = Less mi e2
    cond = LoopCond less
    si = Switch mi cond
    sa = Switch ma cond
    live = Identity si:1
    e0 = Const is=(0) ^live
    ef = Const is=(1.0) ^live
    scaled = Mul ex sa:1
    list = TensorListFromTensor scaled ey element_dtype=float32
    ej = Enter e0 frame_name=\"inner\"
    eb = Enter ef frame_name=\"inner\"
    i1 = Enter e1 frame_name=\"inner\" is_constant=true
    i2 = Enter e2 frame_name=\"inner\" is_constant=true
    il = Enter list frame_name=\"inner\" is_constant=true
    iy = Enter ey frame_name=\"inner\" is_constant=true
    mj = Merge ej nj
    mb = Merge eb nb
    less2 = Less mj i2
    cond2 = LoopCond less2
    sj = Switch mj cond2
    sb = Switch mb cond2
    aj = Add sj:1 i1
    item = TensorListGetItem il sj:1 iy element_dtype=float32
    ab = Mul sb:1 item
    nj = NextIteration aj
    nb = NextIteration ab
    b = Exit sb
    ai = Add si:1 e1
    ni = NextIteration ai
    na = NextIteration b
    y = Exit sa";
