//! Models: those that `new` writes, their summaries, and layers with every command that takes a graph.

use serde_json::Value;

use crate::sandbox::Sandbox;

/// A sine with a period of 20 lines and noise, by the hour.
fn sine(lines: usize) -> String {
    let mut seed = 7u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(seed >> 8) / f64::from(1u32 << 24) - 0.5
    };
    let line = |i: usize| {
        let (day, hour) = (i / 24, i % 24);
        let load = 50.0 + 10.0 * (i as f64 * std::f64::consts::TAU / 20.0).sin() + 2.0 * noise();
        format!("2026-{:02}-{:02}T{hour:02}:00,{load:.3},station\n", day / 28 + 1, day % 28 + 1)
    };
    std::iter::once("time,load,name\n".to_owned()).chain((0..lines).map(line)).collect()
}

#[test]
fn a_series_is_forecast_better_than_by_its_last_value() {
    let sandbox = Sandbox::new();
    let table = sandbox.file("power.csv", sine(600));
    let model = sandbox.path("model.json").display().to_string();
    let written = sandbox.run(&["new", "series", &table, "--out", &model]).expect(0);
    written.complains(&["600 lines: 24 of them, of 3 numbers, forecast load", "column name is left out: it is text"]);
    let run = sandbox.path("run").display().to_string();
    let words = ["train", &model, "--local", "--checkpoint", &run, "--json", "--steps", "150"];
    let printed = sandbox.run(&words).expect(0).stdout;
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let held_out = lines.iter().rev().find(|line| line["evaluated"].is_object()).unwrap();
    let of = |name: &str| held_out["evaluated"][name].as_f64().unwrap();
    // The change of a sine from one line to the next is a tenth of its variance; the noise alone is less.
    assert!(of("loss") < 0.7 * of("last_value"), "{held_out}");
    // The next value after the end, in the unit of the column.
    let forecast = sandbox.run(&["predict", &model, &run, &table, "--local", "--json"]).expect(0).stdout;
    let last: Value = serde_json::from_str(forecast.lines().last().unwrap()).unwrap();
    let load = last["load"].as_f64().unwrap();
    assert!((35.0..65.0).contains(&load), "{last}");
}

#[test]
fn a_summary_is_one_of_every_file_that_a_graph_is_in() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "g.json",
        r#"{"version": 1, "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 4]}},
            "h": {"layer": "dense", "inputs": ["x"], "units": 3, "activation": "relu"},
            "y": {"layer": "dense", "inputs": ["h"], "units": 2},
            "s": {"op": "Sum", "inputs": ["y", [0, 1]]}}, "fetch": ["s"]}"#,
    );
    let total = |file: &str, more: &[&str]| {
        let json = sandbox.run(&[&["summary", file, "--json"], more].concat()).expect(0).json();
        (json["totals"]["parameters"].as_u64().unwrap(), json["totals"]["operations"].as_u64().unwrap())
    };
    // 2 · 4 · 3 + 3 + 3 of the first layer, 2 · 3 · 2 + 2 of the second, and the sum.
    assert_eq!(total(&graph, &[]), (23, 30 + 14 + 1));
    assert_eq!(total(&graph, &["--fetch", "h"]), (23, 30));
    assert_eq!(total(&graph, &["--fetch", "h", "--batch", "8"]), (23, 240));
    let text = sandbox.run(&["summary", &graph]).expect(0).stdout;
    let row = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
    assert!(row("h ").contains("dense") && row("h ").contains("[1,3]") && row("h ").contains("15"), "{text}");
    // The same with gradients, as a GraphDef.
    let out = sandbox.path("g.pb").display().to_string();
    sandbox.run(&["differentiate", &graph, "--of", "s", "--by", "h/kernel", "--out", &out]).expect(0);
    assert_eq!(total(&out, &["--fetch", "s"]), (23, 45));
    sandbox.run(&["summary", &out, "--fetch", "nothing"]).expect(2).complains(&["nothing"]);
}

/// Each layer with an input that it takes, and its variables.
const LAYERS: [(&str, &str, &str, &str); 13] = [
    (r#""dense", "units": 3"#, "float32", "[2, 4]", "kernel,bias"),
    (r#""conv", "filters": 3, "size": 3, "padding": "SAME""#, "float32", "[2, 4, 4, 2]", "kernel,bias"),
    (r#""max_pool""#, "float32", "[2, 4, 4, 2]", ""),
    (r#""avg_pool""#, "float32", "[2, 4, 4, 2]", ""),
    (r#""flatten""#, "float32", "[2, 4, 2]", ""),
    (r#""dropout", "rate": 0.5"#, "float32", "[2, 4]", ""),
    (r#""batch_norm""#, "float32", "[2, 4]", "gamma,beta"),
    (r#""layer_norm""#, "float32", "[2, 4]", "gamma,beta"),
    (r#""embedding", "rows": 7, "width": 4"#, "int32", "[2, 5]", "table"),
    (r#""lstm", "units": 3, "last": true"#, "float32", "[2, 5, 4]", "kernel,bias"),
    (r#""gru", "units": 3"#, "float32", "[2, 5, 4]", "gates/kernel,gates/bias,candidate/kernel,candidate/bias"),
    (r#""attention""#, "float32", "[2, 5, 4]", ""),
    (r#""self_attention", "heads": 2, "causal": true"#, "float32", "[2, 5, 4]", "query/kernel,output/bias"),
];

#[test]
fn every_layer_works_with_every_command_that_takes_a_graph() {
    let sandbox = Sandbox::new();
    let _node = sandbox.node("local/0");
    for (place, (layer, dtype, shape, variables)) in LAYERS.into_iter().enumerate() {
        // The node keeps the variables of a name.
        let name = format!("h{place}");
        let open = shape.replacen("[2", "[null", 1);
        let inputs = if layer.starts_with("\"attention") { r#""x", "x", "x""# } else { r#""x""# };
        let graph = sandbox.file(
            "layer.json",
            format!(
                r#"{{"version": 1, "nodes": {{
                "x": {{"op": "Placeholder", "attrs": {{"dtype": "{dtype}", "shape": {open}}}}},
                "{name}": {{"layer": {layer}, "inputs": [{inputs}]}},
                "w": {{"op": "Square", "inputs": ["{name}"]}}, "rank": {{"op": "Rank", "inputs": ["w"]}},
                "all": {{"op": "Range", "inputs": [0, "rank", 1]}}, "loss": {{"op": "Sum", "inputs": ["w", "all"]}}}},
                "fetch": ["loss"], "feed": {{"x": {{"value": 1, "shape": {shape}}}}}}}"#
            ),
        );
        let trace = sandbox.path("trace.json").display().to_string();
        let run = sandbox.run(&["run", &graph, "--quiet", "--trace", &trace]).expect(0).stdout;
        let submitted = sandbox.run(&["submit", &graph, "--quiet"]).expect(0).stdout;
        assert_eq!(run, submitted, "{layer}");
        sandbox.run(&["plan", &graph]).expect(0);
        sandbox.run(&["summary", &graph]).expect(0);
        let by = match variables {
            "" => "x".to_owned(),
            several => several.split(',').map(|part| format!("{name}/{part}")).collect::<Vec<_>>().join(","),
        };
        for out in ["d.json", "d.pb"] {
            let out = sandbox.path(out).display().to_string();
            sandbox.run(&["differentiate", &graph, "--of", "loss", "--by", &by, "--out", &out]).expect(0);
        }
        let first = by.split(',').next().unwrap();
        let fetch = format!("gradients/{first}");
        let differentiated = sandbox.path("d.json").display().to_string();
        sandbox.run(&["plan", &differentiated, "--local"]).expect(0);
        let words = ["run", &differentiated, "--fetch", &fetch, "--init", "--json"];
        let words = if variables.is_empty() && !layer.contains("dropout") { &words[..4] } else { &words[..] };
        let gradient = sandbox.run(words).expect(0).stdout;
        assert!(!gradient.is_empty(), "{layer}");
    }
}

#[test]
fn a_mistake_in_a_layer_names_the_layer_and_its_line() {
    let sandbox = Sandbox::new();
    let refused = |nodes: &str, says: &[&str]| {
        let graph = sandbox.file("g.json", format!("{{\"version\": 1, \"nodes\": {{\n{nodes}}}, \"fetch\": [\"h\"]}}"));
        for words in [&["run", &graph][..], &["plan", &graph, "--local"], &["summary", &graph]] {
            let ended = sandbox.run(words).expect(2);
            assert!(!ended.stderr.contains("node h/"), "{}", ended.stderr);
            ended.complains(says);
        }
    };
    let x =
        |dtype: &str| format!(r#""x": {{"op": "Placeholder", "attrs": {{"dtype": "{dtype}", "shape": [null, 4]}}}},"#);
    let dense = r#""h": {"layer": "dense", "inputs": ["x"], "units": 3}"#;
    refused(
        &format!("{}\n{dense}", x("int32")),
        &["$.nodes.h (line 3, column 6)", "layer h (dense): x is int32, and it takes float32", "\"DstT\": \"float32\""],
    );
    let embedding = r#""h": {"layer": "embedding", "inputs": ["x"], "rows": 3, "width": 2}"#;
    refused(&format!("{}\n{embedding}", x("float32")), &["layer h (embedding): x is float32", "int32 or int64"]);
    let lstm = r#""h": {"layer": "lstm", "inputs": ["x"], "units": 3}"#;
    refused(&format!("{}\n{lstm}", x("float32")), &["layer h (lstm): x has shape [?,4]"]);
    // Within a loop.
    let entered = format!(
        "{}\n\"e\": {{\"op\": \"Enter\", \"inputs\": [\"x\"], \"attrs\": {{\"frame_name\": \"f\"}}}},\n{}",
        x("float32"),
        r#""h": {"layer": "dense", "inputs": ["e"], "units": 3}"#
    );
    refused(&entered, &["line 4", "layer h is within a loop, which its input enters at e", "outside of all loops"]);
    // A step says the layer, too.
    let graph = sandbox.file(
        "e.json",
        format!("{{\"version\": 1, \"nodes\": {{\n{}\n{embedding}}}, \"fetch\": [\"h\"], \"feed\": {{\"x\": [[1, 9, 0, 0]]}}}}", x("int32")),
    );
    let ended = sandbox.run(&["run", &graph]).expect(3);
    ended.complains(&["9 is not in [0, 3)", "layer h (embedding), ", "e.json line 3"]);
}
