//! Estimates beside those computed by hand, and what has none.

use meshtf_graph::read;
use meshtf_tensor::device::{Capacity, DeviceKind, Rates, Task};
use meshtf_train::file;

use super::*;

/// Devices of tasks, with these multiply-adds a second, and as many bytes.
fn devices(rates: &[u64]) -> Vec<DeviceFacts> {
    let device = |(index, &rate): (usize, &u64)| {
        let rates = Some(Rates { multiply_adds: rate, bytes: rate, streamed: None });
        let name = Task::new("t", index as u32).device(DeviceKind::Cpu, 0);
        DeviceFacts { capacity: Capacity { rates, ..Capacity::default() }, ..DeviceFacts::unknown(name) }
    };
    rates.iter().enumerate().map(device).collect()
}

fn graph(text: &str) -> Graph {
    Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap()
}

fn near(value: &Value, wanted: f64) {
    let found = value.as_f64().unwrap();
    assert!((found - wanted).abs() <= wanted * 1e-9, "{found} beside {wanted}");
}

#[test]
fn the_parts_of_a_training_are_those_by_hand() {
    let text = include_str!("../../../../examples/train/digits.json");
    let (graph, sections) = (graph(text), file::read(text).unwrap());
    let step = Step::of_training(graph, &sections, None).unwrap();
    // 64 x 64 + 64 + 64 x 10 + 10 floats.
    let bytes = 4.0 * (64.0 * 64.0 + 64.0 + 64.0 * 10.0 + 10.0);
    assert_eq!((step.batch, step.gradients as f64), (Some(64), bytes));
    let estimated = Estimated::of(&step, &devices(&[1_000_000_000, 4_000_000_000])).unwrap();
    assert_eq!(estimated.device, "/job:t/task:1/device:CPU:0");
    let json = estimated.as_json();
    assert_eq!(
        (&json["kind"], &json["batch"], &json["rates_measured"]),
        (&json!("training"), &json!(64), &json!(true))
    );
    // Products alone, forwards and backwards, take (2 + 2) x 64 x 64 x 64 + 3 x 64 x 64 x 10 multiply-adds, at least.
    assert!(json["step_seconds"].as_f64().unwrap() > (2.0 * 64.0 * 64.0 * 64.0 + 3.0 * 64.0 * 64.0 * 10.0) / 4e9);
    for (at, gigabits, latency) in [(0, 1.0, 200e-6), (1, 10.0, 80e-6), (2, 100.0, 50e-6)] {
        let network = &json["networks"][at];
        near(&network["gigabits"], gigabits);
        let rate = gigabits * 125e6 * 1448.0 / 1538.0;
        for (row, n) in [(1, 2.0), (2, 4.0), (3, 8.0)] {
            let row = &network["tasks"][row];
            near(&row["tasks"], n);
            let (divided, each) = (&row["batch_divided"], &row["batch_each"]);
            near(&divided["examples_each"], 64.0 / n);
            for of in [divided, each] {
                near(&of["ring"]["transfer_seconds"], 2.0 * (n - 1.0) / n * bytes / rate);
                near(&of["ring"]["latency_seconds"], 2.0 * (n - 1.0) * latency);
                near(&of["ps"]["transfer_seconds"], 2.0 * n * bytes / rate);
                near(&of["ps"]["latency_seconds"], 2.0 * latency);
                let total = ["compute", "transfer", "latency"]
                    .map(|part| of["ring"][format!("{part}_seconds")].as_f64().unwrap());
                near(&of["ring"]["step_seconds"], total.iter().sum());
            }
            near(&each["ring"]["compute_seconds"], json["step_seconds"].as_f64().unwrap());
            near(&each["ring"]["examples_per_second"], 64.0 * n / each["ring"]["step_seconds"].as_f64().unwrap());
            near(&divided["ps"]["examples_per_second"], 64.0 / divided["ps"]["step_seconds"].as_f64().unwrap());
        }
        // One task sends nothing; 128 tasks are more than there are examples.
        near(&network["tasks"][0]["batch_divided"]["ring"]["step_seconds"], json["step_seconds"].as_f64().unwrap());
        assert!(network["tasks"][6]["batch_divided"].is_object() && network["tasks"][7]["batch_divided"].is_null());
    }
    // A part of a batch takes less, and not less than its share.
    let parts: Vec<f64> = estimated.parts.iter().filter_map(|(_, part)| part.map(|(_, time)| time)).collect();
    assert!(parts.windows(2).all(|pair| pair[1] < pair[0] && pair[1] > pair[0] / 2.1), "{parts:?}");
    let text = estimated.as_text(Paint::OFF);
    for part in [
        "a step of 64 examples takes ",
        "19.2 kB of gradients",
        "TASKS",
        "10 Gbit/s, 80µs for a message",
        "it pays up to ",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

const MODEL: &str = r#"{"version": 1, "nodes": {
    "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 1000]}},
    "w": {"op": "Fill", "inputs": [[1000, 1000], 1.0]},
    "y": {"op": "MatMul", "inputs": ["x", "w"], "device": "/job:none/task:7"}}}"#;

#[test]
fn replicas_pay_until_the_link_is_full() {
    let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
    let step = Step::new(&graph(MODEL), signature.clone(), Some(50)).unwrap();
    assert_eq!((step.gradients, step.crosses), (0, (200_000, 200_000)));
    let estimated = Estimated::of(&step, &devices(&[10_000_000_000])).unwrap();
    let json = estimated.as_json();
    let whole = json["step_seconds"].as_f64().unwrap();
    // 50 x 1000 x 1000 products at 10 G a second are 5 ms, and the matrix is filled in 0.4 ms.
    assert!((0.0054..0.0056).contains(&whole), "{whole}");
    let rates = |network: usize| -> Vec<f64> {
        let tasks = json["networks"][network]["tasks"].as_array().unwrap();
        tasks.iter().map(|row| row["steps_per_second"].as_f64().unwrap()).collect()
    };
    // 588 steps of 200 kB a second by 1 Gbit/s: more than three devices compute.
    let link = 125e6 * 1448.0 / 1538.0 / 200_000.0;
    let wanted: Vec<f64> = TASKS.iter().map(|&tasks| (f64::from(tasks) / whole).min(link)).collect();
    assert_eq!(rates(0), wanted);
    assert_eq!(json["networks"][0]["pays_until"], json!(4));
    assert_eq!(json["networks"][2]["pays_until"], json!(256));
    assert!(estimated.as_text(Paint::OFF).contains("replicas pay up to 4\n"));
}

#[test]
fn what_has_no_estimate_is_refused_by_its_name() {
    let text = include_str!("../../../../examples/train/digits.json").replace("[null, 64]", "[null, null]");
    let open = Step::of_training(graph(&text), &file::read(&text).unwrap(), None).unwrap_err().to_string();
    assert!(open.contains("x has the shape [64,?]") && open.contains("in the file"), "{open}");
    let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
    let open = Step::new(&graph(MODEL), signature.clone(), None).unwrap_err().to_string();
    assert!(
        open.contains("x has the shape [?,1000]") && open.contains("--feed x=") && open.contains("--batch"),
        "{open}"
    );
    let unknown = MODEL.replace(r#", "shape": [null, 1000]"#, "");
    let unknown = Step::new(&graph(&unknown), signature.clone(), Some(4)).unwrap_err().to_string();
    assert!(unknown.contains("x has the shape <unknown>"), "{unknown}");
    let step = Step::new(&graph(MODEL), signature.clone(), Some(4)).unwrap();
    assert!(Estimated::of(&step, &[]).unwrap_err().to_string().contains("no device"));
}

/// A training of a table, of which each step looks up some rows, and of a matrix; `more` is a part of its section `train`.
fn of_rows(more: &str, batch: Option<usize>) -> Result<Step, Trouble> {
    let text = format!(
        r#"{{"version": 1, "variables": {{"table": {{"shape": [100, 3]}}, "w": {{"shape": [3, 2]}}}}, "nodes": {{
        "scales": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [null]}}}},
        "rows": {{"op": "Placeholder", "attrs": {{"dtype": "int32", "shape": [null]}}}},
        "seen": {{"op": "GatherV2", "inputs": ["table", "rows", 0]}},
        "y": {{"op": "MatMul", "inputs": ["seen", "w"]}}, "scaled": {{"op": "Mul", "inputs": ["y", "scales"]}},
        "loss": {{"op": "Mean", "inputs": ["scaled", [0, 1]]}}}},
        "data": {{"feed": {{"scales": [1.0, 2.0], "rows": "rows.npy"}}, "batch": 8}},
        "train": {{"loss": "loss", "optimizer": "adam", "rate": 0.1, "steps": 1{more}}}}}"#
    );
    let program = meshtf_train::model::file::read(text.as_bytes()).unwrap();
    Step::of_training(Graph::new(program.nodes).unwrap(), &file::read(&text).unwrap(), batch)
}

#[test]
fn gradients_are_those_of_the_trained_variables_and_the_batch_is_that_of_examples() {
    // Eight rows of 3 floats, and 3 x 2: of whatever else a step updates nothing is sent.
    for more in ["", r#", "average": 0.9"#, r#", "weight_decay": 0.1"#] {
        let step = of_rows(more, None).unwrap();
        assert_eq!((step.batch, step.gradients), (Some(8), (8 * 3 + 3 * 2) * 4), "{more}");
        assert_eq!(step.divided.len(), 1, "the two scales are no examples");
    }
    assert_eq!(of_rows("", Some(2)).unwrap().divided.len(), 1);
    assert_eq!(of_rows("", Some(16)).unwrap().gradients, (16 * 3 + 3 * 2) * 4);
}

#[test]
fn a_batch_is_the_size_that_it_gives() {
    let text = r#"{"version": 1, "nodes": {
        "scale": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [3]}},
        "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 3]}},
        "v": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": []}},
        "count": {"op": "AssignAddVariableOp", "inputs": ["v", 1.0]},
        "y": {"op": "Mul", "inputs": ["x", "scale"], "control": ["count"]}}}"#;
    let signature = |fetch: &str| Signature { fetches: vec![fetch.into()], ..Signature::default() };
    let step = Step::new(&graph(text), signature("y"), Some(5)).unwrap();
    // A counter makes no training.
    assert_eq!((step.batch, step.divided.len(), step.gradients), (Some(5), 1, 0));
    let refused = Step::new(&graph(text), signature("scale"), Some(5)).unwrap_err().to_string();
    assert!(refused.contains("--batch 5: no placeholder"), "{refused}");
}

#[test]
fn a_batch_that_the_graph_states_elsewhere_is_not_divided() {
    let text = r#"{"version": 1, "nodes": {
        "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [8, 4]}},
        "w": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": [8, 4]}},
        "step": {"op": "ResourceApplyGradientDescent", "inputs": ["w", 0.1, "sum"]},
        "rows": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [4, 4]}},
        "both": {"op": "ConcatV2", "inputs": ["rows", "rows", 0]},
        "sum": {"op": "AddV2", "inputs": ["x", "both"]}}}"#;
    let signature = Signature { targets: vec!["step".into()], ..Signature::default() };
    let step = Step::new(&graph(text), signature, None).unwrap();
    let estimated = Estimated::of(&step, &devices(&[1_000_000_000])).unwrap();
    let row = &estimated.as_json()["networks"][0]["tasks"][1];
    assert!(row["batch_divided"].is_null() && row["batch_each"].is_object(), "{row}");
}
