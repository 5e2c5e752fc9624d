//! Tests of summaries, with counts by hand.

use super::*;

fn sizes(text: &str, batch: usize) -> Sizes {
    let program = meshtf_train::model::file::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let graph = Graph::new(program.nodes).unwrap();
    let sections = file::read(text).ok();
    let outputs = outputs(&graph, sections.as_ref(), program.fetch);
    let wanted = Wanted {
        outputs: &outputs,
        layers: &layers(text),
        sections: sections.as_ref(),
        depth: None,
        batch,
        shapes: &[],
    };
    measure(&graph, &wanted).unwrap()
}

const CLASSIFIER: &str = r#"{"version": 1, "nodes": {
    "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 8, 8, 2]}},
    "y": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null]}},
    "logits": {"layer": "dense", "inputs": ["flat"], "units": 5},
    "c": {"layer": "conv", "inputs": ["x"], "filters": 3, "size": 3, "padding": "SAME", "activation": "relu"},
    "n": {"layer": "batch_norm", "inputs": ["c"]},
    "p": {"layer": "max_pool", "inputs": ["n"]},
    "flat": {"layer": "flatten", "inputs": ["p"]},
    "losses": {"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"]},
    "loss": {"op": "Mean", "inputs": ["losses", 0]}},
    "data": {"feed": {"x": "x.npy", "y": "y.npy"}, "batch": 4},
    "train": {"loss": "loss", "optimizer": "adam", "rate": 0.1, "epochs": 1}}"#;

#[test]
fn a_row_is_a_layer_in_the_order_of_the_data() {
    let all = sizes(CLASSIFIER, 1);
    let row = |name: &str| all.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}: {all:?}"));
    let names: Vec<&str> =
        all.rows.iter().map(|row| row.name.as_str()).filter(|name| row(name).kind != "Placeholder").collect();
    let order = ["c", "n", "p", "flat", "logits", "losses", "loss"];
    assert!(names.iter().filter(|name| order.contains(name)).eq(order.iter()), "{names:?}");
    let shown = |name: &str| {
        let (dtype, shape) = row(name).output.as_ref().unwrap();
        format!("{} {dtype}{shape}", row(name).kind)
    };
    assert_eq!(shown("c"), "conv float32[1,8,8,3]");
    assert_eq!(shown("flat"), "flatten float32[1,48]");
    assert_eq!(shown("logits"), "dense float32[1,5]");
    // Keras counts the same: 3 · 3 · 2 · 3 + 3, 4 · 3 of which half are averages, 48 · 5 + 5.
    assert_eq!(["c", "n", "p", "logits"].map(|name| row(name).parameters), [57, 12, 0, 245]);
    assert_eq!(["c", "n", "logits"].map(|name| row(name).trained), [57, 6, 245]);
    assert_eq!(row("logits").bytes, 980);
    // The products and the biases; and the activation.
    assert_eq!(row("c").operations, 2 * 18 * 192 + 192 + 192);
    assert_eq!(row("logits").operations, 2 * 48 * 5 + 5);
    assert_eq!(row("p").operations, 4 * 48);
    assert_eq!(all.sum(|row| row.parameters), 314);
    assert_eq!((all.examples, all.unknown_values, all.sum(|row| row.unknown)), (Some(1), 0, 0));
    // Two slots of each trained number, two powers, and the counter of steps.
    assert_eq!(all.state, Some(2 * 4 * (57 + 6 + 245) + 2 * 4 + 8));
    // Twice the examples have twice the operations and values of all but the scalars.
    let twice = sizes(CLASSIFIER, 2);
    let of_layers = |sizes: &Sizes| {
        let own = sizes.rows.iter().filter(|row| ["c", "p", "logits"].contains(&row.name.as_str()));
        own.map(|row| row.operations).sum::<u64>()
    };
    assert_eq!(of_layers(&twice), 2 * of_layers(&all));
    assert!(twice.values > all.values && twice.peak > all.peak, "{twice:?}");
}

#[test]
fn a_plain_graph_has_rows_of_variables_and_nodes() {
    let text = r#"{"version": 1, "variables": {"w": {"shape": [4, 3]}, "fixed": {"shape": [3], "trainable": false}}, "nodes": {
        "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [5, 4]}},
        "h": {"op": "MatMul", "inputs": ["x", "w"]}, "y": {"op": "Add", "inputs": ["h", "fixed"]},
        "unused": {"op": "Neg", "inputs": ["y"]}}, "fetch": ["y"]}"#;
    let all = sizes(text, 1);
    let rows: Vec<String> =
        all.rows.iter().map(|row| format!("{} {} {}", row.name, row.kind, row.parameters)).collect();
    for row in ["x Placeholder 0", "w variable 12", "fixed variable 3", "h MatMul 0", "y Add 0"] {
        assert!(rows.iter().any(|own| own == row), "{row}: {rows:?}");
    }
    assert!(!rows.iter().any(|row| row.starts_with("unused")), "{rows:?}");
    // The placeholder has a fixed number of examples.
    assert_eq!((all.examples, all.state), (None, None));
    assert_eq!(all.sum(|row| row.operations), 2 * 4 * 15 + 15);
    // x, h and y are values.
    assert_eq!(all.values, 4 * (20 + 15 + 15));
    let text = as_text(Paint::OFF, &all, usize::MAX);
    for part in
        ["parameters   15 (60 B), 3 of them not trained", "operations   135 in a step", "values       200 B in a step"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(as_text(Paint::OFF, &all, 2).contains("more (--rows 0)"));
    assert_eq!(as_json(&all)["totals"]["parameters"], 15);
}

#[test]
fn scopes_are_cut_where_variables_differ() {
    let text = r#"{"version": 1, "variables": {"net/a/w": {"shape": [2]}, "net/b/w": {"shape": [2]}}, "nodes": {
        "net/a/y": {"op": "Neg", "inputs": ["net/a/w"]}, "net/b/y": {"op": "Add", "inputs": ["net/a/y", "net/b/w"]}},
        "fetch": ["net/b/y"]}"#;
    let names: Vec<String> = sizes(text, 1).rows.into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["net/a", "net/b"]);
}

#[test]
fn numbers_have_three_digits() {
    let cases =
        [(0, "0"), (999, "999"), (1000, "1.00 k"), (12_345, "12.3 k"), (999_600, "1.00 M"), (123_456_789, "123 M")];
    for (number, wanted) in cases {
        assert_eq!(short(number), wanted);
    }
}
