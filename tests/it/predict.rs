//! `meshtf predict` and `meshtf generate`: trained models are applied to files, and write text.

use std::path::Path;
use std::time::Duration;

use meshtf::tensor::Tensor;
use meshtf_tensor::npy;
use serde_json::Value;

use crate::sandbox::{Sandbox, project};

/// The limit for learning a poem in a build without optimisation, on a machine that may be busy.
const LEARNS_WITHIN: Duration = Duration::from_secs(400);

/// A classifier of two numbers, trained with a table that has text for labels, a field that is missing, and other columns.
fn flowers(sandbox: &Sandbox) -> [String; 2] {
    let lines = (0..40).map(|i| {
        let (a, b) = (i % 8, i / 8);
        let kind = if a + b > 6 { "tall, wide" } else { "small" };
        format!("{i},{a},{}{},\"{kind}\"\n", b * 100, if i == 5 { "" } else { ".5" })
    });
    sandbox.file("flowers.csv", format!("no,a,b,kind\n{}7,3,,small\n", lines.collect::<String>()));
    let graph = sandbox.file(
        "flowers.json",
        r#"{ "version": 1,
        "variables": { "w": { "shape": [2, 2], "initial": "glorot_uniform" }, "v": { "shape": [2] } },
        "nodes": {
            "x": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 2] } },
            "y": { "op": "Placeholder", "attrs": { "dtype": "int32", "shape": [null] } },
            "xw": { "op": "MatMul", "inputs": ["x", "w"] }, "logits": { "op": "BiasAdd", "inputs": ["xw", "v"] },
            "best": { "op": "ArgMax", "inputs": ["logits", 1] },
            "losses": { "op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"] },
            "loss": { "op": "Mean", "inputs": ["losses", 0] } },
        "data": { "feed": {
            "x": { "file": "flowers.csv", "columns": ["a", "b"], "missing": "drop", "normalize": "standard" },
            "y": { "file": "flowers.csv", "columns": ["kind"], "classes": "auto" } }, "batch": 20, "shuffle": 1 },
        "train": { "loss": "loss", "optimizer": "adam", "rate": 0.2, "steps": 200 } }"#,
    );
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    [graph, run]
}

/// A forecast of a series has the line of the last row that it is made from, or another field of that row.
#[test]
fn a_forecast_names_the_last_row_of_its_window() {
    let sandbox = Sandbox::new();
    let lines = |days: std::ops::Range<u32>| days.map(|i| format!("d{i},{}\n", i % 5)).collect::<String>();
    sandbox.file("loads.csv", format!("day,load\n{}", lines(0..30)));
    let graph = sandbox.file(
        "loads.json",
        r#"{ "version": 1,
        "nodes": {
            "x": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 3] } },
            "y": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null] } },
            "out": { "layer": "dense", "inputs": ["x"], "units": 1 }, "next": { "op": "Squeeze", "inputs": ["out"], "attrs": { "squeeze_dims": [1] } },
            "apart": { "op": "SquaredDifference", "inputs": ["next", "y"] }, "loss": { "op": "Mean", "inputs": ["apart", 0] } },
        "data": { "feed": {
            "x": { "file": "loads.csv", "columns": ["load"], "window": { "length": 3 } },
            "y": { "file": "loads.csv", "columns": ["load"], "window": { "length": 3, "ahead": 1 } } }, "batch": 9 },
        "train": { "loss": "loss", "optimizer": "adam", "rate": 0.01, "steps": 3 } }"#,
    );
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    let new = sandbox.file("new.csv", format!("day,load\n{}", lines(50..55)));
    let ids = |more: &[&str]| -> Vec<String> {
        let printed = sandbox.run(&[&["predict", &graph, &run, &new, "--local"], more].concat()).expect(0).stdout;
        printed.lines().map(|line| line.split(',').next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(ids(&[]), ["line", "4", "5", "6"]);
    assert_eq!(ids(&["--id", "day"]), ["day", "d52", "d53", "d54"]);
}

/// The new examples: the columns in another order, an id with a comma, and a line without one of the numbers.
const NEW: &str = "kind_id,b,a\n\"p, q\",0,0\nr,50,NA\ns,400,7\n";

#[test]
fn a_table_is_read_as_the_training_read_its_own_and_lines_have_their_ids() {
    let sandbox = Sandbox::new();
    let [graph, run] = flowers(&sandbox);
    let (new, whole) = (sandbox.file("new.csv", NEW), sandbox.file("whole.csv", NEW.replace("r,50,NA\n", "")));
    let logits = sandbox.run(&[
        "run",
        &graph,
        "--weights",
        &run,
        "--fetch",
        "logits",
        "--json",
        "--feed",
        &format!("x=@{whole}"),
    ]);
    let logits = logits.expect(0).json()["values"]["logits"]["value"].clone();
    let probability = |row: usize, class: usize| {
        let numbers: Vec<f64> = logits[row].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        numbers[class].exp() / numbers.iter().map(|x| x.exp()).sum::<f64>()
    };
    // A pipe has all as .csv.
    let printed = sandbox.run(&["predict", &graph, &run, &new, "--local"]).expect(0);
    let lines: Vec<&str> = printed.stdout.lines().collect();
    assert_eq!(lines[0], "kind_id,class,probability,p_small,\"p_tall, wide\"");
    assert!(lines[1].starts_with("\"p, q\",small,") && lines[2].starts_with("s,\"tall, wide\","), "{lines:?}");
    assert!(printed.stderr.contains("1 line left out, since fields are missing: 3"), "{}", printed.stderr);
    let out = |name: &str| sandbox.path(name).display().to_string();
    let predict = |more: &[&str]| sandbox.run(&[&["predict", &graph, &run], more].concat());
    predict(&[&new, "--local", "--out", &out("y.jsonl")]).expect(0);
    let text = std::fs::read_to_string(sandbox.path("y.jsonl")).unwrap();
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (row, (record, class)) in records.iter().zip(["small", "tall, wide"]).enumerate() {
        assert_eq!(record["class"], class);
        let own = record["probabilities"][class].as_f64().unwrap();
        assert!((own - probability(row, row)).abs() < 1e-5 && own == record["probability"], "{record}");
    }
    assert_eq!(records.len(), 2);
    // Several files, of one example at a time, with the numbers of lines as ids.
    let plain = sandbox.file("plain.csv", "a,b\n\n0,0\n");
    predict(&[&plain, &whole, "--local", "--batch", "1", "--out", &out("y.csv"), "--id", "a"]).expect(0);
    let text = std::fs::read_to_string(sandbox.path("y.csv")).unwrap();
    let starts: Vec<String> = text.lines().map(|line| line.split(',').take(3).collect::<Vec<_>>().join(",")).collect();
    assert_eq!(
        starts,
        ["file,a,class", &format!("{plain},0,small"), &format!("{whole},0,small"), &format!("{whole},7,\"tall")]
    );
    assert!(predict(&[&plain, "--local"]).expect(0).stdout.contains("\n3,small,"));
    // The classes alone, and the numbers alone.
    predict(&[&whole, "--local", "--fetch", "best", "--out", &out("y.npy")]).expect(0);
    assert_eq!(npy::read(&std::fs::read(sandbox.path("y.npy")).unwrap()).unwrap(), Tensor::vector(vec![0i64, 1]));
    predict(&[&whole, "--local", "--out", &out("p.npy")]).expect(0);
    let array = npy::read(&std::fs::read(sandbox.path("p.npy")).unwrap()).unwrap();
    assert_eq!(array.dims(), [2, 2]);
    assert!((f64::from(array.slice::<f32>().unwrap()[3]) - probability(1, 1)).abs() < 1e-5);
    // `run` writes the same records.
    let fed = format!("x=@{whole}");
    let run_out = ["run", &graph, "--weights", &run, "--fetch", "logits", "--feed", &fed, "--out", &out("r.csv")];
    sandbox.run(&run_out).expect(0);
    predict(&[&whole, "--local", "--out", &out("w.csv")]).expect(0);
    let text = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap();
    assert_eq!(text("r.csv"), text("w.csv"));
    // So do nodes.
    let _node = sandbox.node("local/0");
    predict(&[&whole, "--out", &out("m.csv")]).expect(0);
    assert_eq!(text("m.csv"), text("w.csv"));
}

#[test]
fn mistakes_are_named_and_leave_no_file() {
    let sandbox = Sandbox::new();
    let [graph, run] = flowers(&sandbox);
    let new = sandbox.file("new.csv", "a,b\n1,2\n3,x\n");
    let good = sandbox.file("good.csv", "a,b\n1,2\n");
    let out = |name: &str| sandbox.path(name).display().to_string();
    let refused = |more: &[&str], says: &[&str]| {
        sandbox.run(&[&["predict", &graph, &run], more, &["--local"]].concat()).expect(2).complains(says);
    };
    refused(&[&good, "--out", &out("y.xlsx")], &["y.xlsx: expected a file that ends in .csv, .jsonl or .npy"]);
    refused(&[&good, "--out", &out("y")], &["y: expected a file that ends in .csv, .jsonl or .npy"]);
    refused(&[&new, "--out", &out("y.csv")], &["new.csv", "line 3", "\"x\"", "not a number"]);
    refused(&[&good, "--id", "name"], &["there is no column name"]);
    refused(&[&sandbox.file("a.txt", "one\n")], &["the model was trained with examples in flowers.csv for x"]);
    refused(
        &[&good, "--fetch", "loss", "--feed", "y=[0]", "--out", &out("y.csv")],
        &["--fetch loss: it is one number for all examples together", "there are logits"],
    );
    refused(&[&good, "--fetch", "logit"], &["logit", "logits"]);
    refused(
        &[&good, "--fetch", "losses"],
        &["losses cannot be computed without the labels (y)", "good.csv: there is no column kind"],
    );
    for name in ["y.csv", "y.csv.part"] {
        assert!(!sandbox.path(name).exists(), "{name}");
    }
}

#[test]
fn values_have_the_unit_of_the_labels() {
    let sandbox = Sandbox::new();
    let lines: String = (0..50).map(|i| format!("{i},{}\n", 1000 + 30 * i)).collect();
    sandbox.file("rent.csv", format!("rooms,rent\n{lines}"));
    let graph = sandbox.file(
        "rent.json",
        r#"{ "version": 1, "variables": { "w": { "shape": [1, 1], "initial": "ones" }, "v": { "shape": [1] } },
        "nodes": {
            "x": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 1] } },
            "y": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 1] } },
            "xw": { "op": "MatMul", "inputs": ["x", "w"] }, "out": { "op": "BiasAdd", "inputs": ["xw", "v"] },
            "squares": { "op": "SquaredDifference", "inputs": ["out", "y"] },
            "loss": { "op": "Mean", "inputs": ["squares", [0, 1]] } },
        "data": { "feed": { "x": { "file": "rent.csv", "columns": ["rooms"], "normalize": "standard" },
                            "y": { "file": "rent.csv", "columns": ["rent"], "normalize": "minmax" } }, "batch": 50 },
        "train": { "loss": "loss", "optimizer": "adam", "rate": 0.05, "steps": 600 } }"#,
    );
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    let new = sandbox.file("new.csv", "rooms\n10\n20\n");
    let printed = sandbox.run(&["predict", &graph, &run, &new, "--local", "--json"]).expect(0).stdout;
    let records: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (record, (line, rent)) in records.iter().zip([(2, 1300.0), (3, 1600.0)]) {
        assert_eq!(record["line"], line);
        assert!((record["rent"].as_f64().unwrap() - rent).abs() < 5.0, "{record}");
    }
    assert_eq!(records.len(), 2);
}

#[test]
fn images_have_their_names_and_classes() {
    let sandbox = Sandbox::new();
    let image = |path: &str, red: u8| {
        let path = sandbox.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::from_pixel(2, 2, image::Rgb([red, 0, 255 - red])).save(&path).unwrap();
        path.display().to_string()
    };
    for i in 0..6 {
        image(&format!("colours/red/{i}.png"), 200 + i * 9);
        image(&format!("colours/blue/{i}.png"), i * 9);
    }
    let graph = sandbox.file(
        "colours.json",
        r#"{ "version": 1, "variables": { "w": { "shape": [12, 2], "initial": "glorot_uniform" } },
        "nodes": {
            "x": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 2, 2, 3] } },
            "y": { "op": "Placeholder", "attrs": { "dtype": "int32", "shape": [null] } },
            "flat": { "op": "Reshape", "inputs": ["x", [-1, 12]] }, "logits": { "op": "MatMul", "inputs": ["flat", "w"] },
            "losses": { "op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"] },
            "loss": { "op": "Mean", "inputs": ["losses", 0] } },
        "data": { "feed": { "x": { "images": "colours", "scale": 0.004 }, "y": { "classes": "colours" } }, "batch": 4 },
        "train": { "loss": "loss", "optimizer": "adam", "rate": 0.05, "steps": 100 } }"#,
    );
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    let single = image("one.png", 250);
    image("new/a.png", 10);
    image("new/b.png", 240);
    let folder = sandbox.path("new").display().to_string();
    let printed = sandbox.run(&["predict", &graph, &run, &folder, &single, "--local"]).expect(0).stdout;
    let starts: Vec<String> =
        printed.lines().map(|line| line.split(',').take(2).collect::<Vec<_>>().join(",")).collect();
    assert_eq!(
        starts,
        ["file,class", &format!("{folder}/a.png,blue"), &format!("{folder}/b.png,red"), &format!("{single},red")]
    );
    // Images of any size are read as those of the training; names are those in the folder if there is one.
    let path = sandbox.path("new/wide.png");
    image::RgbImage::from_pixel(40, 9, image::Rgb([240, 0, 15])).save(&path).unwrap();
    sandbox.file("new/Thumbs.db", "left by a system");
    let ids = |folders: &[&str]| {
        let printed = sandbox.run(&[&["predict", &graph, &run], folders, &["--local"]].concat()).expect(0).stdout;
        printed.lines().skip(1).map(|line| line.split(',').take(2).collect::<Vec<_>>().join(",")).collect::<Vec<_>>()
    };
    assert_eq!(ids(&[&folder]), ["a.png,blue", "b.png,red", "wide.png,red"]);
    image("other/a.png", 240);
    let other = sandbox.path("other").display().to_string();
    assert_eq!(ids(&[&folder, &other])[2..], [format!("{folder}/wide.png,red"), format!("{other}/a.png,red")]);
    let feed = format!("x=@{}", path.display());
    let probabilities =
        sandbox.run(&["run", &graph, "--weights", &run, "--feed", &feed, "--fetch", "logits"]).expect(0);
    assert!(!probabilities.stdout.is_empty());
    sandbox.file("new/notes.txt", "to be sorted");
    sandbox
        .run(&["predict", &graph, &run, &folder, "--local"])
        .expect(2)
        .complains(&[&folder, "notes.txt is not an image: it is text; expected images, .png"]);
    let webp = sandbox.file("new.webp", b"RIFF\x24\0\0\0WEBPVP8 ");
    let other = "new.webp is a WebP image by its content; expected images, .png, .jpg, .jpeg, .bmp, .gif";
    sandbox
        .run(&["predict", &graph, &run, &webp, "--local"])
        .expect(2)
        .complains(&[other, "the model was trained with colours for x"]);
    let feed = format!("x=@{webp}");
    sandbox
        .run(&["run", &graph, "--weights", &run, "--feed", &feed, "--fetch", "logits"])
        .expect(2)
        .complains(&["--feed x: ", other]);
}

/// The weights are checked before the data, which is not blamed for them.
#[test]
fn wrong_weights_are_named() {
    let sandbox = Sandbox::new();
    sandbox.file("t.csv", "a,b,y\n1,2,3\n2,3,5\n3,4,7\n4,5,9\n");
    let model = |name: &str, units: u32| {
        let text = format!(
            r#"{{ "version": 1, "variables": {{ "w": {{ "shape": [2, {units}] }} }}, "nodes": {{
            "x": {{ "op": "Placeholder", "attrs": {{ "dtype": "float32", "shape": [null, 2] }} }},
            "y": {{ "op": "Placeholder", "attrs": {{ "dtype": "float32", "shape": [null, 1] }} }},
            "out": {{ "op": "MatMul", "inputs": ["x", "w"] }}, "off": {{ "op": "Sub", "inputs": ["out", "y"] }},
            "square": {{ "op": "Square", "inputs": ["off"] }}, "loss": {{ "op": "Mean", "inputs": ["square", [0, 1]] }} }},
            "data": {{ "feed": {{ "x": {{ "file": "t.csv", "columns": ["a", "b"], "normalize": "standard" }}, "y": "t.csv:y" }},
            "batch": 2 }}, "train": {{ "loss": "loss", "optimizer": "sgd", "rate": 0.01, "steps": 4 }} }}"#
        );
        sandbox.file(name, text)
    };
    let (graph, other) = (model("one.json", 1), model("two.json", 2));
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &other, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    let (table, none) = (sandbox.path("t.csv").display().to_string(), sandbox.path("run9").display().to_string());
    let differs = "are of another model: variable w is float32[2,2] there and float32[2,1] in the graph";
    let feed = format!("x=@{table}");
    for (weights, why) in [(&none, "does not exist"), (&run, differs)] {
        let words = ["predict", &graph, weights, &table, "--local"];
        sandbox.run(&words).expect(2).complains(&[&format!("WEIGHTS {weights}"), why]);
        let words = ["run", &graph, "--weights", weights, "--feed", &feed, "--fetch", "out"];
        sandbox.run(&words).expect(2).complains(&[&format!("--weights {weights}"), why]);
    }
}

/// Forms that hold tensors alone lose the classes and the normalization, and the command says so.
#[test]
fn an_export_without_the_measurements_of_the_data_says_so() {
    let sandbox = Sandbox::new();
    let [_, run] = flowers(&sandbox);
    let exported = |name: &str| {
        let to = sandbox.path(name).display().to_string();
        sandbox.run(&["export", &run, "--to", &to]).expect(0)
    };
    for name in ["w.npz", "model.ckpt"] {
        exported(name).complains(&[name, "without what was measured of the data for x, y (normalization, classes"]);
    }
    let whole = exported("w.safetensors");
    assert!(!whole.stderr.contains("measured"), "{}", whole.stderr);
}

/// The lines of a poem are learned by heart: the most probable text is that of the file.
#[test]
fn a_model_of_characters_writes_what_it_read() {
    let sandbox = Sandbox::new();
    let poem = std::fs::read(project("examples/train/poem.txt")).unwrap();
    sandbox.file("poem.txt", &poem);
    let graph = sandbox.file("poem.json", std::fs::read(project("examples/train/poem.json")).unwrap());
    let run = sandbox.path("run").display().to_string();
    let training = sandbox.start(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]);
    training.end_within(LEARNS_WITHIN).expect(0);
    let generate = |more: &[&str]| {
        let words = ["generate", &graph, &run, "--local"];
        sandbox.run(&[&words, more].concat()).expect(0).stdout
    };
    let poem = String::from_utf8(poem).unwrap();
    let written = generate(&["--prompt", "He t", "--temperature", "0", "--length", "35"]);
    let line = poem.lines().find(|line| line.starts_with("He t")).unwrap();
    assert_eq!(written.lines().next(), Some(line), "{written}");
    // After the end of a line another one begins, and each text has the prompt.
    let written = generate(&["--temperature", "0.2", "--length", "120", "--seed", "3", "--repeat", "2"]);
    let known = |line: &&str| poem.lines().any(|own| own == *line);
    assert!(written.lines().filter(known).count() >= 3, "{written}");
    let draw = |seed: &str| generate(&["--seed", seed, "--length", "60", "--top-k", "20"]);
    assert_eq!(draw("1"), draw("1"));
    assert_ne!(draw("1"), draw("2"));
    assert_eq!(draw("1").len(), 60 + usize::from(!draw("1")[..60].ends_with('\n')));
    let none = project("examples/train/exp.json");
    sandbox.run(&["generate", &none, &run, "--local"]).expect(2).complains(&["\"generate\" is missing"]);
    let missing = sandbox.path("nosuch").display().to_string();
    let refused = sandbox.run(&["generate", &graph, &missing, "--local"]).expect(2);
    refused.complains(&[&format!("WEIGHTS {missing}: does not exist")]);
    assert!(Path::new(&run).exists());
}
