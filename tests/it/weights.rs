//! Weights go once: a second start of a model sends none, whatever became of the processes that had them.

use std::path::PathBuf;
use std::time::Duration;

use meshtf_graph as graph;
use meshtf_tensor::safetensors::{self, Contents};
use meshtf_tensor::{DType, Tensor};

use crate::sandbox::{Ended, Sandbox, wait_until};

/// How long a task may take to write its weights.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of the weights of the model below: two of 4 MB.
const BYTES: u64 = 8_000_000;
/// Most bytes of a start that sends no weights.
const WITHOUT: u64 = 200_000;

/// A file with the sums of two tables, which are on the task ps/0.
fn model(sandbox: &Sandbox) -> String {
    let text = r#"{ "version": 1, "nodes": {
        "a": 1, "b": 1,
        "sum_a": { "op": "Sum", "inputs": ["a", 0], "device": "/job:ps/task:0" },
        "sum_b": { "op": "Sum", "inputs": ["b", 0], "device": "/job:ps/task:0" },
        "y": { "op": "AddV2", "inputs": ["sum_a", "sum_b"], "device": "/job:ps/task:0" } } }"#;
    let mut nodes = graph::read(text.as_bytes()).expect("a graph").nodes;
    for (name, first) in [("a", 0u32), ("b", 7)] {
        let node = nodes.iter_mut().find(|node| node.name == name).expect("a table");
        let table: Vec<f32> = (0..1_000_000u32).map(|at| (at.wrapping_add(first) % 8) as f32).collect();
        node.device = "/job:ps/task:0".to_owned();
        node.attrs.set("value", Tensor::vector(table).into());
        node.attrs.set("dtype", DType::F32.into());
    }
    sandbox.file("model.pb", graph::graphdef::to_binary(&nodes))
}

/// Sums of 125,000 times 0 to 7, of both tables.
const SUM: &str = "7000000.0";

impl Sandbox {
    fn submit(&self, model: &str) -> Ended {
        self.run(&["submit", model, "--fetch", "y", "--target", "worker/0", "--quiet", "--no-record"])
    }

    /// The bytes that a task has received since it started.
    fn received(&self, task: &str) -> u64 {
        let told = self.run(&["status", task, "--json"]).expect(0).json();
        told[0]["totals"]["received_bytes"].as_u64().expect("a number")
    }

    /// Starts the model; returns how many bytes its task received for that.
    fn costs(&self, model: &str) -> u64 {
        let before = self.received("ps/0");
        self.submit(model).prints(SUM);
        self.received("ps/0") - before
    }

    /// As [`Sandbox::costs`], of variables that get their values from a file.
    fn costs_with(&self, graph: &str, weights: &str) -> u64 {
        let before = self.received("ps/0");
        let start = ["submit", graph, "--weights", weights, "--target", "worker/0", "--quiet", "--no-record"];
        self.run(&start).prints(SUM);
        self.received("ps/0") - before
    }

    fn kept(&self) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(self.path("cache/weights"));
        let names = listed.into_iter().flatten().map(|entry| entry.expect("an entry").path());
        names.filter(|path| path.extension().is_some_and(|ending| ending == "weight")).collect()
    }

    /// Waits until the task has written the weights, and lists them.
    fn writes(&self) -> serde_json::Value {
        assert!(wait_until(PATIENCE, || self.kept().len() == 2), "{:?}", self.kept());
        self.run(&["cache", "--json"]).expect(0).json()
    }
}

#[test]
fn a_second_start_sends_none_even_after_the_task_was_restarted() {
    let sandbox = Sandbox::new();
    let _master = sandbox.node("worker/0");
    let ps = sandbox.node("ps/0");
    let model = model(&sandbox);
    let first = sandbox.costs(&model);
    assert!((BYTES..BYTES + WITHOUT).contains(&first), "{first}");
    let listed = sandbox.writes();
    let mut rows: Vec<_> = listed.as_array().expect("a list").iter().collect();
    rows.sort_by_key(|row| row["node"].as_str().map(str::to_owned));
    for (row, node) in rows.iter().zip(["a", "b"]) {
        assert_eq!((row["node"].as_str(), row["dtype"].as_str()), (Some(node), Some("float32")));
        assert_eq!(row["shape"], serde_json::json!([1_000_000]));
        assert!(row["bytes"].as_u64().is_some_and(|bytes| (BYTES / 2..BYTES / 2 + 1000).contains(&bytes)));
    }
    let second = sandbox.costs(&model);
    assert!(second < WITHOUT, "{second}");
    drop(ps);
    let _ps = sandbox.node("ps/0");
    let third = sandbox.costs(&model);
    assert!(third < WITHOUT, "{third}");

    // One that is damaged comes again, and so does one that was removed.
    let mut kept = sandbox.kept();
    kept.sort();
    let mut bytes = std::fs::read(&kept[0]).expect("a file");
    *bytes.last_mut().expect("elements") ^= 1;
    std::fs::write(&kept[0], bytes).expect("the file can be written");
    let one = sandbox.costs(&model);
    assert!((BYTES / 2..BYTES / 2 + WITHOUT).contains(&one), "{one}");
    sandbox.writes();
    let cleared = sandbox.run(&["cache", "clear", "--json"]).expect(0).json();
    assert_eq!(cleared["removed"], 2);
    assert!(sandbox.kept().is_empty());
    let both = sandbox.costs(&model);
    assert!((BYTES..BYTES + WITHOUT).contains(&both), "{both}");
    sandbox.writes();
    let said = sandbox.run(&["cache", "clear"]).expect(0);
    assert!(said.stdout.starts_with("removed 2 weights from "), "{}", said.stdout);
    let said = sandbox.run(&["cache"]).expect(0);
    assert!(said.stderr.contains("there are no weights in "), "{}", said.stderr);
}

#[test]
fn variables_get_the_values_of_a_file_that_was_sent_before() {
    let sandbox = Sandbox::new();
    let _master = sandbox.node("worker/0");
    let ps = sandbox.node("ps/0");
    let graph = sandbox.file(
        "graph.json",
        r#"{ "version": 1,
        "variables": { "a": { "shape": [1000000], "device": "/job:ps/task:0" },
            "b": { "shape": [1000000], "device": "/job:ps/task:0" }, "zero": { "shape": [], "device": "/job:ps/task:0" } },
        "nodes": {
            "sum_a": { "op": "Sum", "inputs": ["a", 0], "device": "/job:ps/task:0" },
            "sum_b": { "op": "Sum", "inputs": ["b", 0], "device": "/job:ps/task:0" },
            "y": { "op": "AddN", "inputs": ["sum_a", "sum_b", "zero"], "device": "/job:ps/task:0" } }, "fetch": ["y"] }"#,
    );
    let table = |first: u32| Tensor::vector((0..1_000_000u32).map(|at| ((at + first) % 8) as f32).collect::<Vec<_>>());
    let tensors = [("a", table(0)), ("b", table(7)), ("zero", Tensor::scalar(0f32))];
    let tensors = tensors.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let mut bytes = Vec::new();
    safetensors::write(&mut bytes, &Contents { tensors, ..Contents::default() }).expect("a file of weights");
    let weights = sandbox.file("weights.safetensors", &bytes);
    let first = sandbox.costs_with(&graph, &weights);
    assert!((BYTES..BYTES + WITHOUT).contains(&first), "{first}");
    let listed = sandbox.writes();
    let mut nodes: Vec<_> = listed.as_array().expect("a list").iter().filter_map(|row| row["node"].as_str()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["a/restored/value", "b/restored/value"]);
    let second = sandbox.costs_with(&graph, &weights);
    assert!(second < WITHOUT, "{second}");
    drop(ps);
    let _ps = sandbox.node("ps/0");
    let third = sandbox.costs_with(&graph, &weights);
    assert!(third < WITHOUT, "{third}");
    // The file itself, read where it lies.
    sandbox.run(&["cache", "clear"]).expect(0);
    let added = sandbox.run(&["cache", "add", &weights, "--json"]).expect(0).json();
    assert_eq!((&added[0]["read_there"], &added[0]["copied"]), (&2.into(), &0.into()), "{added}");
    let fourth = sandbox.costs_with(&graph, &weights);
    assert!(fourth < WITHOUT, "{fourth}");
}

#[test]
fn tasks_that_have_the_file_read_the_weights_there() {
    let sandbox = Sandbox::new();
    let sent = model(&sandbox);
    // The same content elsewhere, as on another machine.
    let copy = sandbox.path("models/copy.pb");
    std::fs::create_dir(sandbox.path("models")).expect("a folder");
    std::fs::copy(&sent, &copy).expect("a copy");
    std::fs::write(sandbox.path("models/notes.json"), "{}").expect("another file");
    let folder = sandbox.path("models").display().to_string();
    let added = sandbox.run(&["cache", "add", &folder, "--json"]).expect(0).json();
    let want = serde_json::json!([{ "file": copy.display().to_string(), "read_there": 2, "read_there_bytes": BYTES,
        "copied": 0, "copied_bytes": 0, "too_large": 0, "too_large_bytes": 0 }]);
    assert_eq!(added, want);
    let listed = sandbox.run(&["cache", "--json"]).expect(0).json();
    let rows = listed.as_array().expect("a list");
    assert!(rows.len() == 2 && rows.iter().all(|row| row["file"] == copy.display().to_string().as_str()), "{listed}");
    let _master = sandbox.node("worker/0");
    {
        let _ps = sandbox.node("ps/0");
        let first = sandbox.costs(&sent);
        assert!(first < WITHOUT, "{first}");
        assert!(sandbox.kept().is_empty(), "they are not kept twice");
        // Both nodes have this folder.
        let all = sandbox.run(&["cache", "--all", "--json"]).expect(0).json();
        let [ps, master] = &all.as_array().expect("a list")[..] else { panic!("{all}") };
        assert!(ps["task"] == "/job:ps/task:0" && master["task"] == "/job:worker/task:0", "{all}");
        assert_eq!((&ps["total"], &ps["in_models_bytes"], &ps["kept_bytes"]), (&2.into(), &BYTES.into(), &0.into()));
        assert_eq!(ps["weights"].as_array().map(Vec::len), Some(2));
        let said = sandbox.run(&["cache", "--all"]).expect(0);
        assert!(said.stdout.contains("/job:ps/task:0: 2 weights, 0 B of 8.59 GB in its folder"), "{}", said.stdout);
        assert!(!said.stdout.contains(&folder), "names of files are not told: {}", said.stdout);
    }
    // The file is another one now: of the second table, a number is.
    let mut bytes = std::fs::read(&copy).expect("the copy");
    let last = bytes.windows(4).rposition(|four| four == 7f32.to_le_bytes()).expect("a seven");
    bytes[last] ^= 1;
    std::fs::write(&copy, bytes).expect("the file can be written");
    let _ps = sandbox.node("ps/0");
    let one = sandbox.costs(&sent);
    assert!((BYTES / 2..BYTES / 2 + WITHOUT).contains(&one), "{one}");
    let said = sandbox.run(&["cache", "add", &folder]).expect(0);
    assert!(said.stdout.contains("copy.pb: 2 weights, 8.00 MB, read where they lie"), "{}", said.stdout);
    sandbox.run(&["cache", "clear"]).expect(0);
    assert!(copy.exists());
    // A model that cannot be read is no other file: the others are read, and the command fails.
    std::fs::write(sandbox.path("models/damaged.onnx"), "no model").expect("another file");
    let said = sandbox.run(&["cache", "add", &folder]).expect(2);
    assert!(said.stdout.contains("copy.pb: 2 weights"), "{}", said.stdout);
    assert!(said.stderr.contains("damaged.onnx") && said.stderr.contains("notes.json"), "{}", said.stderr);
    let wrong = sandbox.file("readme.txt", "no model");
    let said = sandbox.run(&["cache", "add", &wrong]).expect(2);
    assert!(said.stderr.contains("readme.txt"), "{}", said.stderr);
}

#[test]
fn the_disk_is_bounded_and_may_be_off_or_full() {
    let sandbox = Sandbox::new();
    let model = model(&sandbox);
    let _master = sandbox.node("worker/0");
    {
        // For one of the two.
        let _ps = sandbox.node_with("ps/0", &["--cache", "5MB"]);
        assert!(sandbox.costs(&model) >= BYTES);
        assert!(wait_until(PATIENCE, || sandbox.kept().len() == 1));
        let second = sandbox.costs(&model);
        assert!((BYTES / 2..BYTES / 2 + WITHOUT).contains(&second), "{second}");
    }
    sandbox.run(&["cache", "clear"]).expect(0);
    {
        let _ps = sandbox.node_with("ps/0", &["--cache", "off"]);
        for _ in 0..2 {
            assert!(sandbox.costs(&model) >= BYTES);
        }
        assert!(sandbox.kept().is_empty());
    }
    // A folder that cannot be made, as on a disk that takes nothing.
    std::fs::remove_dir_all(sandbox.path("cache")).expect("the folder of the cache");
    sandbox.file("cache", "");
    let _ps = sandbox.node("ps/0");
    for _ in 0..2 {
        assert!(sandbox.costs(&model) >= BYTES);
    }
}

#[test]
fn sessions_at_a_time_share_them_in_memory() {
    let sandbox = Sandbox::new();
    let _master = sandbox.node("worker/0");
    let _ps = sandbox.node_with("ps/0", &["--cache", "off"]);
    let model = model(&sandbox);
    let endless = ["--fetch", "y", "--target", "worker/0", "--quiet", "--no-record", "--steps", "1000000000"];
    let running = sandbox.start(&[&["submit", model.as_str()][..], &endless].concat());
    let steps = || {
        let told = sandbox.run(&["status", "worker/0", "--json"]).expect(0).json();
        told[0]["totals"]["steps"].as_u64().expect("a number")
    };
    assert!(wait_until(PATIENCE, || steps() > 0));
    // The steps themselves have messages, too.
    let before = sandbox.received("ps/0");
    assert!(before >= BYTES, "{before}");
    let cost = sandbox.costs(&model);
    assert!(cost < BYTES / 2, "{cost}");
    drop(running);
}

#[test]
fn only_this_user_may_read_the_weights() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let _nodes = [sandbox.node("worker/0"), sandbox.node("ps/0")];
    let model = model(&sandbox);
    sandbox.submit(&model).prints(SUM);
    sandbox.writes();
    let mode = |path: PathBuf| std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    assert_eq!(mode(sandbox.path("cache/weights")), 0o700);
    assert!(sandbox.kept().into_iter().all(|path| mode(path) == 0o600));
}
