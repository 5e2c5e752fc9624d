//! Models of texts and of TFRecords, from the file to their answers.

use serde_json::Value;

use crate::sandbox::{Sandbox, project};

/// The classes that a model gives the examples of a file.
fn classes(sandbox: &Sandbox, graph: &str, run: &str, file: &str) -> Vec<(Value, Value)> {
    let printed = sandbox.run(&["predict", graph, run, file, "--local", "--json"]).expect(0).stdout;
    let record = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        let id = ["line", "file", "example"].iter().find_map(|id| record.get(id)).cloned();
        (id.unwrap(), record["class"].clone())
    };
    printed.lines().map(record).collect()
}

const GOOD: [&str; 4] = ["a lovely film", "Lovely, and well played!", "well made", "what a lovely story"];
const BAD: [&str; 4] = ["a dull film", "Dull. And badly played!", "badly made", "what a dull story"];

#[test]
fn texts_of_a_table_are_told_apart_by_their_words() {
    let sandbox = Sandbox::new();
    let lines: String = (0..24)
        .map(|i| format!("{i},\"{}\",{}\n", if i % 2 == 0 { GOOD } else { BAD }[i / 2 % 4], ["up", "down"][i % 2]))
        .collect();
    let table = sandbox.file("reviews.csv", format!("no,review,verdict\n{lines}"));
    let (graph, run) = (sandbox.path("model.json").display().to_string(), sandbox.path("run").display().to_string());
    sandbox.run(&["new", "text", &table, "--out", &graph]).expect(0).complains(&["24 texts of 2 classes"]);
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet", "--steps", "150"]).expect(0);
    let new = sandbox.file("new.csv", "review,id\nan unseen but lovely thing,a\nso DULL!,b\n");
    let wanted = [("up", 2), ("down", 3)];
    let printed = sandbox.run(&["predict", &graph, &run, &new, "--local"]).expect(0).stdout;
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[1].starts_with("a,up,") && lines[2].starts_with("b,down,"), "{printed}");
    assert_eq!(lines.len(), wanted.len() + 1);
    // Weights without the vocabulary cannot read words.
    let weights = sandbox.path("w.npz").display().to_string();
    sandbox.run(&["export", &run, "--to", &weights]).expect(0);
    let refused = sandbox.run(&["predict", &graph, &weights, &new, "--local"]).expect(2);
    refused.complains(&["its vocabulary was measured when the model was trained"]);
}

#[test]
fn texts_of_a_folder_are_told_apart_by_their_words() {
    let sandbox = Sandbox::new();
    for (class, texts) in [("good", GOOD), ("bad", BAD)] {
        let folder = sandbox.path("reviews").join(class);
        std::fs::create_dir_all(&folder).unwrap();
        texts.iter().enumerate().for_each(|(i, text)| std::fs::write(folder.join(format!("{i}.txt")), text).unwrap());
    }
    let (graph, run) = (sandbox.path("model.json").display().to_string(), sandbox.path("run").display().to_string());
    let folder = sandbox.path("reviews").display().to_string();
    sandbox.run(&["new", "text", &folder, "--out", &graph]).expect(0);
    let trained = sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--steps", "150"]);
    trained.expect(0).complains(&["reviews: 8 texts; classes: 0 bad, 1 good"]);
    let new = sandbox.file("new.txt", "a lovely\nstory\n");
    assert_eq!(classes(&sandbox, &graph, &run, &new), [(Value::from(new.clone()), Value::from("good"))]);
}

/// A model of the token after two others, in a text that repeats itself.
fn counting(sandbox: &Sandbox, tokens: &str, text: &str) -> [String; 2] {
    sandbox.file("story.txt", text);
    let source = format!("\"file\": \"story.txt\", \"tokens\": \"{tokens}\", \"vocabulary\": 8");
    let graph = sandbox.file(
        "story.json",
        format!(
            r#"{{ "version": 1,
        "variables": {{ "e": {{ "shape": [8, 8], "initial": "glorot_uniform" }},
                       "w": {{ "shape": [16, 8], "initial": "glorot_uniform" }} }},
        "nodes": {{
            "x": {{ "op": "Placeholder", "attrs": {{ "dtype": "int32", "shape": [null, 2] }} }},
            "y": {{ "op": "Placeholder", "attrs": {{ "dtype": "int32", "shape": [null] }} }},
            "seen": {{ "op": "GatherV2", "inputs": ["e", "x", 0] }},
            "flat": {{ "op": "Reshape", "inputs": ["seen", [-1, 16]] }},
            "logits": {{ "op": "MatMul", "inputs": ["flat", "w"] }},
            "losses": {{ "op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"] }},
            "loss": {{ "op": "Mean", "inputs": ["losses", 0] }} }},
        "data": {{ "feed": {{ "x": {{ {source}, "window": {{ "length": 2 }} }},
                             "y": {{ {source}, "window": {{ "length": 2, "ahead": 1 }} }} }},
                  "batch": 16, "shuffle": 1, "hold_out": {{ "last": 0.25 }} }},
        "train": {{ "loss": "loss", "optimizer": "adam", "rate": 0.1, "steps": 100 }},
        "evaluate": {{ "every": 50 }},
        "generate": {{ "feed": "x", "logits": "logits" }} }}"#
        ),
    );
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    [graph, run]
}

#[test]
fn characters_and_words_are_written() {
    let sandbox = Sandbox::new();
    let [graph, run] = counting(&sandbox, "characters", &"abcé".repeat(30));
    let generate = |graph: &str, run: &str, prompt: &str| {
        let words = ["generate", graph, run, "--local", "--prompt", prompt, "--temperature", "0", "--length", "5"];
        sandbox.run(&words)
    };
    assert_eq!(generate(&graph, &run, "ab").expect(0).stdout, "abcéabc\n");
    let new = sandbox.file("new.txt", "abc");
    let token = |i: i64, token: &str| (Value::from(i), Value::from(token));
    assert_eq!(classes(&sandbox, &graph, &run, &new), [token(0, "c"), token(1, "é")]);
    generate(&graph, &run, "aüb?")
        .expect(2)
        .complains(&["--prompt: the model does not know \"ü\", \"?\"; it knows \"b\", \"a\", \"é\", \"c\""]);
    generate(&graph, &run, "").expect(2).complains(&["the model continues a text of characters"]);
    let sandbox = Sandbox::new();
    let [graph, run] = counting(&sandbox, "words", &"One two three, four.\n".repeat(30));
    let written = sandbox.run(&[
        "generate",
        &graph,
        &run,
        "--local",
        "--prompt",
        "one TWO",
        "--temperature",
        "0",
        "--length",
        "4",
    ]);
    assert_eq!(written.expect(0).stdout, "one TWO three four one two\n");
    let unknown = sandbox.run(&["generate", &graph, &run, "--local", "--prompt", "five two", "--length", "1"]);
    unknown.expect(0).complains(&["the model does not know five"]);
}

#[test]
fn a_byte_that_the_model_does_not_know_is_named() {
    let sandbox = Sandbox::new();
    sandbox.file("poem.txt", std::fs::read(project("examples/train/poem.txt")).unwrap());
    let graph = sandbox.file("poem.json", std::fs::read(project("examples/train/poem.json")).unwrap());
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet", "--steps", "1"]).expect(0);
    let refused = sandbox.run(&["generate", &graph, &run, "--local", "--prompt", "a é"]).expect(2);
    refused.complains(&["--prompt: the model knows the bytes 0 to 127, and 'é' has the byte 195"]);
}

#[test]
fn a_feature_of_records_is_trained_with_and_predicted() {
    let sandbox = Sandbox::new();
    let records = std::fs::read(project("tests/data/train/examples.tfrecord.gz")).unwrap();
    let file = sandbox.file("a.tfrecord.gz", &records);
    let graph = sandbox.file(
        "model.json",
        r#"{ "version": 1, "variables": { "w": { "shape": [12, 2], "initial": "glorot_uniform" } },
        "nodes": {
            "x": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 2, 2, 3] } },
            "y": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 2] } },
            "flat": { "op": "Reshape", "inputs": ["x", [-1, 12]] }, "out": { "op": "MatMul", "inputs": ["flat", "w"] },
            "squares": { "op": "SquaredDifference", "inputs": ["out", "y"] },
            "loss": { "op": "Mean", "inputs": ["squares", [0, 1]] } },
        "data": { "feed": { "x": { "file": "*.tfrecord.gz", "feature": "image/encoded", "scale": 0.1 },
                            "y": { "file": "*.tfrecord.gz", "feature": "point" } }, "batch": 3 },
        "train": { "loss": "loss", "optimizer": "adam", "rate": 0.05, "steps": 300 } }"#,
    );
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    let printed = sandbox.run(&["predict", &graph, &run, &file, "--local", "--json"]).expect(0).stdout;
    let answers: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 3);
    for (i, record) in answers.iter().enumerate() {
        assert_eq!(record["example"], i);
        // The points are (i + 0.5, -1), and the pixels grow with i.
        for (place, wanted) in [(0, i as f64 + 0.5), (1, -1.0)] {
            assert!((record["out"][place].as_f64().unwrap() - wanted).abs() < 0.1, "{record}");
        }
    }
    sandbox.file("b.tfrecord.gz", &records[..200]);
    let refused = sandbox.run(&["train", &graph, "--local"]).expect(2);
    refused.complains(&["*.tfrecord.gz: b.tfrecord.gz: gzip: "]);
}
