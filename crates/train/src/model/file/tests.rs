//! Tests of layers in graph.json. Their values are tested in `crates/exec/tests/devices/layers.rs`.

use meshtf_graph::Graph;

use super::*;

/// A graph.json with these nodes, and a placeholder `x` of four numbers an example.
fn nodes(nodes: &str) -> String {
    let x = r#""x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 4]}}"#;
    format!("{{\"version\": 1, \"nodes\": {{\n{x},\n{nodes}}}}}")
}

#[test]
fn a_layer_becomes_nodes_and_variables_of_its_name() {
    let text = nodes(
        r#""y": {"op": "Mul", "inputs": ["k", 2]},
        "k": {"layer": "dense", "inputs": ["s"], "units": 3, "activation": "relu", "device": "/job:ps/task:1"},
        "s": {"op": "Neg", "inputs": ["h"]},
        "h": {"layer": "dense", "inputs": ["x"], "units": 5, "seed": 7}"#,
    );
    let program = read(text.as_bytes()).unwrap();
    assert_eq!(program, read(text.as_bytes()).unwrap());
    assert_eq!(program.init, ["h/kernel/assign", "h/bias/assign", "k/kernel/assign", "k/bias/assign"]);
    let graph = Graph::new(program.nodes).unwrap();
    graph.check_shapes().unwrap();
    let shape = |name: &str| graph.shapes().of(graph.output(name).unwrap()).to_string();
    assert_eq!(["h/kernel", "h", "k/bias", "k", "y"].map(shape), ["[4,5]", "[?,5]", "[3]", "[?,3]", "[?,3]"]);
    for name in ["k", "k/Relu", "k/kernel/variable"] {
        assert_eq!(graph.node(graph.find(name).unwrap()).device, "/job:ps/task:1", "{name}");
    }
    assert!(graph.find("init").is_none());
}

#[test]
fn layers_that_differ_in_training_bring_the_nodes_of_a_model() {
    let text = nodes(
        r#""n": {"layer": "batch_norm", "inputs": ["x"]},
        "d": {"layer": "dropout", "inputs": ["n"], "rate": 0.5}"#,
    );
    let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
    for name in [super::super::TRAINING, crate::job::UPDATES, crate::GLOBAL_STEP, "n/moving_mean", "d"] {
        assert!(graph.find(name).is_some(), "{name}");
    }
}

#[test]
fn a_wrong_layer_is_refused_with_its_place() {
    let refused = |text: &str, why: &str| {
        let error = read(nodes(text).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("(line 3, column"), "{error}\nwanted {why}");
    };
    refused(
        r#""h": {"layer": "dens", "inputs": ["x"], "units": 5}"#,
        "unknown layer \"dens\"; did you mean \"dense\"?",
    );
    refused(r#""h": {"layer": "Conv2D", "inputs": ["x"]}"#, "did you mean \"conv\"?");
    refused(r#""h": {"layer": "dense", "inputs": ["x"], "unit": 5}"#, "unknown key \"unit\"; did you mean \"units\"?");
    refused(r#""h": {"layer": "dense", "inputs": ["x"]}"#, "layer dense states \"units\"");
    refused(r#""h": {"layer": "dense", "inputs": ["x"], "units": 0}"#, "expected a whole number from 1");
    refused(r#""h": {"layer": "dense", "inputs": ["x", "x"], "units": 2}"#, "takes 1 input, got 2");
    refused(r#""h": {"layer": "dense", "inputs": ["xx"], "units": 2}"#, "does not exist; did you mean x?");
    refused(
        r#""h": {"layer": "lstm", "inputs": ["x"], "units": 2}"#,
        "layer h (lstm): x has shape [?,4]; expected at least 3",
    );
    refused(r#""h": {"layer": "dense", "inputs": ["h"], "units": 2}"#, "layer h depends on itself");
    let relu = r#""h": {"layer": "dense", "inputs": ["x"], "units": 2, "activation": "rleu"}"#;
    refused(relu, "did you mean \"relu\"?");
    let image = r#""i": {"op": "Reshape", "inputs": ["x", [-1, 2, 2, 1]]}, "h": {"layer": "LAYER"},
        "f": {"layer": "flatten", "inputs": ["h"]}, "y": {"layer": "dense", "inputs": ["f"], "units": 2}"#;
    let window = |layer: &str| image.replace(r#"{"layer": "LAYER"}"#, layer);
    refused(
        &window(r#"{"layer": "max_pool", "inputs": ["i"], "size": 3}"#),
        "layer h (max_pool): i is [?,2,2,1]: the window spans 3 elements along axis 1, and the image has 2",
    );
    refused(
        &window(r#"{"layer": "conv", "inputs": ["i"], "size": 3, "filters": 4}"#),
        "layer h (conv): i is [?,2,2,1], h/kernel is [3,3,1,4]: the window spans 3 elements",
    );
    let pool = r#"{"op": "AvgPool", "inputs": ["i"],
        "attrs": {"ksize": [1, 3, 3, 1], "strides": [1, 1, 1, 1], "padding": "VALID"}}"#;
    refused(&window(pool), "node h (AvgPool): i is [?,2,2,1]: the window spans 3 elements");
    // An error in the graph of a layer has the place of the layer.
    let text = nodes(r#""h": {"layer": "dense", "inputs": ["x"], "units": 5}"#);
    let place = meshtf_graph::place_of(text.as_bytes(), "h/MatMul").unwrap();
    assert_eq!(place, "$.nodes.h (line 3, column 1)");
}
