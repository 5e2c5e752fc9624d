//! Tests of a model's graph. Its results are tested in `src/exec/tests/models.rs`.

use meshtf_tensor::failure::Code;

use super::*;
use crate::Optimizer;

#[test]
fn names_devices_and_shapes_are_those_of_what_was_written() {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(8), Some(8), Some(3)]);
    let logits = m.on("/job:worker/task:1", || {
        m.scope("net", || x.conv("first", 4, 3, 2, math::Padding::Same).relu().flatten().dense("out", 5))
    });
    assert_eq!(logits.shape(), [None, Some(5)].into());
    assert_eq!(logits.dtype(), DType::F32);
    let names: Vec<String> = m.variables().iter().map(|variable| variable.name.clone()).collect();
    assert_eq!(names, ["net/first/kernel", "net/first/bias", "net/out/kernel", "net/out/bias"]);
    assert_eq!(m.variables()[2].shape, Shape::from([64, 5]));
    let loss = logits.square().mean();
    m.minimize(&loss, &Training::new(Optimizer::of_name("momentum").unwrap(), 0.1));
    let graph = m.finish().unwrap();
    for name in ["net/out/kernel/variable", "net/out/kernel/Momentum/variable", "net/out/kernel/initial/Mul"] {
        let node = graph.node(graph.find(name).unwrap_or_else(|| panic!("no {name}")));
        assert_eq!(node.device, "/job:worker/task:1", "{name}");
    }
    assert!(graph.find("init").is_some());
    // Values keep their names.
    assert_eq!(logits.name(), "net/out/AddV2");
    assert!(m.finish().unwrap().find("init_1").is_none());
}

/// An invalid call, and the expected error.
type Mistake<'a> = (&'a dyn Fn(&Model, &Value), &'a str);

#[test]
fn the_first_mistake_is_what_finish_says() {
    let of = |write: &dyn Fn(&Model, &Value)| {
        let m = Model::new();
        let x = m.placeholder("x", DType::F32, [None, Some(4)]);
        write(&m, &x);
        // Later calls have no effect.
        let loss = (x.dense("later", 2) * 2.0).mean();
        m.minimize(&loss, &Training::new(Optimizer::Sgd, 0.1));
        let failure = m.finish().unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument, "{failure}");
        failure.message
    };
    let cases: [Mistake; 7] = [
        (&|_, x| drop(x.lstm("l", 3)), "lstm: x has shape [?,4]; expected at least 3 dimensions"),
        (&|_, x| drop(x.dropout("d", 1.5)), "the share is 1.5"),
        (
            &|m, _| drop(m.placeholder("s", DType::F32, [None, Some(4097), Some(4)]).self_attention("a", 2, true)),
            "self_attention a: 4097 positions; with causal, there may be 4096",
        ),
        (&|m, x| m.on("/job:", || drop(x.exp())), "/job:"),
        (&|m, x| drop(x + m.constant(1i32)), "int32"),
        (&|_, x| drop(x.cast(DType::I32) * 0.5), "is int32, which cannot hold 0.5"),
        (&|m, _| m.variable("w", [2], Initializer::Zeros).named("a").tensor_twice(), "there is a node w already"),
    ];
    for (write, why) in cases {
        let message = of(write);
        assert!(message.contains(why), "{message}\nwanted {why}");
    }
}

impl Value {
    fn tensor_twice(&self) {
        self.model.variable("w", [2], Initializer::Zeros);
    }
}

#[test]
fn a_graph_that_was_read_goes_on() {
    let m = Model::new();
    m.placeholder("x", DType::F32, [None, Some(4)]).dense("layer", 2).named("y");
    let m = Model::from_graph(m.finish().unwrap());
    let loss = m.tensor("y").square().mean();
    let kernel = {
        let mut state = m.state();
        train::variable_of(&mut state.g, "layer/kernel").unwrap()
    };
    assert_eq!((kernel.name.as_str(), kernel.shape.dims()), ("layer/kernel", &[4, 2][..]));
    let trained = m.minimize_by(&loss, &[kernel], &Training::new(Optimizer::ADAM, 0.1)).unwrap();
    let mut names: Vec<&str> = trained.variables.iter().map(|variable| variable.name.as_str()).collect();
    names.sort_unstable();
    let slots =
        ["beta1_power", "beta2_power", "global_step", "layer/kernel", "layer/kernel/Adam", "layer/kernel/Adam_1"];
    assert_eq!(names, slots);
    m.finish().unwrap();
}

#[test]
fn a_graph_that_was_read_is_trained() {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(3)]);
    let seen = x.dropout("less", 0.5).dense("out", 1).square().mean().named("loss");
    m.variable("unused", [2], Initializer::Ones);
    assert_eq!(seen.name(), "loss");
    let graph = m.finish().unwrap();
    let m = Model::from_graph(graph.clone());
    let names: Vec<String> = m.variables().into_iter().map(|variable| variable.name).collect();
    assert_eq!(names, ["global_step", "out/kernel", "out/bias", "unused"]);
    // Layers that need the step counter and the training flag use the existing ones.
    let loss = m.tensor("loss").reshape(&[1, 1]).dropout("more", 0.5).mean();
    m.minimize(&loss, &Training::new(Optimizer::Sgd, 0.1));
    let trained = m.finish().unwrap();
    for name in ["training_1", "global_step_1", "init_1"] {
        assert!(trained.find(name).is_none(), "{name}");
    }
    let changed = |name: &str| {
        let handle = trained.find(name).unwrap();
        let uses = |node: &Node| !node.op.reads_variable && node.inputs.iter().any(|input| input.node == handle);
        trained.nodes().filter(|(_, node)| uses(node)).count()
    };
    // Each once by its first value, and those that the loss depends on once by the step.
    let of = ["out/kernel/variable", "out/bias/variable", "unused/variable", "global_step/variable"].map(changed);
    assert_eq!(of, [2, 2, 1, 2]);
    // New variables get a separate init node, and a model that was finished continues as one that was read.
    let m = Model::from_graph(graph);
    m.minimize(&m.tensor("loss"), &Training::new(Optimizer::ADAM, 0.1));
    let graph = m.finish().unwrap();
    let begins = &graph.node(graph.find("init_1").unwrap()).control;
    assert!(begins.iter().all(|&id| graph.node(id).name.contains("Adam") || graph.node(id).name.contains("beta")));
    assert!(m.variables().iter().any(|variable| variable.name == "out/kernel/Adam_1"));
}

#[test]
fn a_call_that_failed_is_taken_back() {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(2)]);
    let n = m.placeholder("n", DType::I32, [None, Some(2)]);
    let kept = m.variable("kept", [2], Initializer::Ones);
    let names = || -> Vec<String> {
        m.variables();
        let state = m.state();
        state.g.settled().nodes().map(|(_, node)| node.name.clone()).collect()
    };
    let before = names();
    let fails = |add: &dyn Fn(), part: &str| {
        let failure = m.attempt(add).unwrap_err();
        assert!(failure.message.contains(part), "{failure}");
        assert_eq!(names(), before, "after {failure}");
    };
    fails(&|| drop(&x + &n), "int32");
    // A layer that has added variables, the step counter and the training flag.
    fails(&|| drop(x.dropout("drop", 0.5).dense("d", 3) + &n), "int32");
    fails(&|| drop(n.dense("d", 3)), "int32");
    // Shapes are checked as a node is added.
    fails(&|| drop(&x * &m.variable("three", [3], Initializer::Ones)), "do not broadcast");
    fails(&|| m.minimize(&x.sum(), &Training::new(Optimizer::Sgd, 0.1)), "kept");
    // All names are free again, and what is added then is complete.
    let loss = (x.dropout("drop", 0.5).dense("d", 2) * &kept).mean();
    m.attempt(|| m.minimize(&loss, &Training::new(Optimizer::ADAM, 0.1))).unwrap();
    assert_eq!(m.attempt(|| m.node("TopKV2", "top", &[&x, &m.constant(1)], Attrs::default())).unwrap().1.len(), 2);
    let slope = m.attempt(|| m.gradients(&[&loss], &[&kept, &x])).unwrap();
    assert_eq!((slope[0].shape(), slope[1].shape()), ([2].into(), [None, Some(2)].into()));
    // The graph so far leaves the model as it is.
    let (so_far, init) = m.graph().unwrap();
    let is_same = |other: &Graph| so_far.nodes().zip(other.nodes()).all(|((_, a), (_, b))| a.name == b.name);
    assert_eq!(init.as_deref(), Some("init"));
    assert!(m.graph().is_ok_and(|(again, _)| again.len() == so_far.len() && is_same(&again)));
    let graph = m.finish().unwrap();
    assert!(graph.len() == so_far.len() && is_same(&graph));
    for name in ["d/kernel", "drop/StatelessRandomUniform", "global_step", "training", "init", "train/step", "top"] {
        assert!(graph.find(name).is_some(), "{name}");
    }
    for name in ["d_1", "d_1/kernel", "three", "global_step_1", "init_1"] {
        assert!(graph.find(name).is_none(), "{name}");
    }
}
