//! `meshtf plan --estimate`: the expected times of data-parallel work on 1 to 256 tasks and several networks, and where more
//! tasks stop paying.
//!
//! The formulas are in [`meshtf_graph::plan::scaling`]. A training is divided in two ways: with the same batch, of which each
//! task has a part (strong scaling), and with as large a batch for each task as for one (weak scaling).

use std::time::Duration;

use meshtf_graph::op::Role;
use meshtf_graph::plan::scaling::{self, Network, StepParts, pays_until};
use meshtf_graph::plan::{PlanError, Signature};
use meshtf_graph::{Attr, Graph, NodeId};
use meshtf_tensor::PartialShape;
use meshtf_tensor::device::DeviceFacts;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::memory::Bytes;
use meshtf_train::file::Sections;
use serde_json::{Value, json};

use super::super::paint::{Paint, Tone};
use super::super::table::wide_table;
use super::Trouble;

/// The numbers of tasks.
const TASKS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Ethernet, in Gbit/s, with the time of a short message between two machines.
const NETWORKS: [(u32, Duration); 3] =
    [(1, Duration::from_micros(200)), (10, Duration::from_micros(80)), (100, Duration::from_micros(50))];

/// A step whose time can be estimated.
#[derive(Debug)]
pub struct Step {
    graph: Graph,
    signature: Signature,
    /// The examples of the whole batch: the first size of the first placeholder.
    batch: Option<usize>,
    /// The placeholders that have as many rows as the batch.
    divided: Vec<NodeId>,
    /// Bytes of the gradients; 0 for a step that changes no variable.
    gradients: u64,
    /// Bytes that are fed, and fetched.
    crosses: (u64, u64),
}

impl Step {
    /// A step of a training, with its batch unless another is wanted.
    pub fn of_training(graph: Graph, sections: &Sections, batch: Option<usize>) -> Result<Step, Trouble> {
        let (graph, step) = meshtf_train::job::alone(graph, &sections.train)?;
        let mut defs = graph.to_defs();
        for (name, value) in &sections.data.constants {
            if let Some(id) = graph.find(name).filter(|&id| graph.node(id).op.role == Role::Placeholder) {
                defs[id.index()].attrs.set("shape", Attr::Shape(value.shape().into()));
            }
        }
        let signature = Signature { targets: vec![step], ..Signature::default() };
        let remedy = |_: &str| "state its shape in the file".to_owned();
        Step::with(&Graph::new(defs)?, signature, Some(batch.unwrap_or(sections.data.batch)), &remedy)
    }

    /// A step of a graph; `batch` is the size of placeholders whose first one is open. Placeholders are fed.
    pub fn new(graph: &Graph, signature: Signature, batch: Option<usize>) -> Result<Step, Trouble> {
        let remedy = |name: &str| {
            format!("feed a value (--feed {name}=…), or state its shape in the file; --batch states a first size")
        };
        Step::with(graph, signature, batch, &remedy)
    }

    /// `remedy`: the remedy for the open shape of a placeholder of this name.
    fn with(
        graph: &Graph,
        mut signature: Signature,
        batch: Option<usize>,
        remedy: &dyn Fn(&str) -> String,
    ) -> Result<Step, Trouble> {
        let needed = scaling::needed(graph, &signature);
        let mut defs = graph.to_defs();
        let fed = |tensor: &String| graph.output(tensor).ok().map(|output| output.node);
        let mut placeholders: Vec<NodeId> = signature.feeds.iter().filter_map(fed).collect();
        for (id, node) in graph.nodes().filter(|(id, _)| needed.contains(id)) {
            if node.op.role == Role::Placeholder && !placeholders.contains(&id) {
                signature.feeds.push(node.name.clone());
                placeholders.push(id);
            }
        }
        placeholders.sort_unstable();
        let mut first = None;
        for &id in &placeholders {
            let node = graph.node(id);
            let Ok(shape) = node.attrs.shape("shape") else { continue };
            let open = |shape: &PartialShape| {
                let (name, remedy) = (&node.name, remedy(&node.name));
                Trouble::input(format!(
                    "{name} has the shape {shape}, which leaves open what a step computes: {remedy}"
                ))
            };
            let Some(sizes) = &shape.0 else { return Err(open(shape)) };
            let mut sizes = sizes.clone();
            if let (Some(size), Some(batch)) = (sizes.first_mut(), batch) {
                size.get_or_insert(batch);
            }
            if sizes.iter().any(Option::is_none) {
                return Err(open(&PartialShape(Some(sizes))));
            }
            if first.is_none() {
                first = sizes.first().copied().flatten();
            }
            defs[id.index()].attrs.set("shape", Attr::Shape(PartialShape(Some(sizes))));
        }
        let graph = Graph::new(defs)?;
        let has_batch = |&id: &NodeId| {
            let shape = graph.node(id).attrs.shape("shape").ok().and_then(|shape| shape.0.as_ref()?.first().copied());
            first.is_some() && shape == Some(first)
        };
        let divided = placeholders.iter().copied().filter(has_batch).collect();
        let gradients = scaling::gradient_bytes(&graph, &scaling::needed(&graph, &signature));
        let bytes = |tensors: &[String]| {
            let of = |tensor: &String| {
                let output = graph.output(tensor).ok()?;
                let size = graph.output_type(output).dtype.size()? as u64;
                Some(graph.shapes().known(output)?.elements()? as u64 * size)
            };
            tensors.iter().filter_map(of).fold(0, u64::saturating_add)
        };
        let crosses = (bytes(&signature.feeds), bytes(&signature.fetches));
        Ok(Step { batch: first, divided, gradients, crosses, signature, graph })
    }

    /// Seconds of a step with so many examples on a device; with the whole batch if there is none to divide.
    fn time(&self, examples: Option<usize>, device: &DeviceFacts) -> Result<Option<f64>, Trouble> {
        let mut graph = None;
        if let Some(examples) = examples.filter(|&examples| Some(examples) != self.batch) {
            let mut defs = self.graph.to_defs();
            for id in &self.divided {
                let def = &mut defs[id.index()];
                let Ok(PartialShape(Some(sizes))) = def.attrs.shape("shape") else { continue };
                let mut sizes = sizes.clone();
                sizes[0] = Some(examples);
                def.attrs.set("shape", Attr::Shape(PartialShape(Some(sizes))));
            }
            let divided = Graph::new(defs)?;
            // Other sizes of the graph say that it takes the whole batch alone.
            if divided.shapes().conflict().is_some() {
                return Ok(None);
            }
            graph = Some(divided);
        }
        let refused = |error: PlanError| Trouble::from(Failure::from(error));
        let estimate =
            scaling::on_one(graph.as_ref().unwrap_or(&self.graph), device, &self.signature).map_err(refused)?;
        let estimate = estimate.ok_or_else(|| Trouble::input("the graph is too large for an estimate of its times"))?;
        Ok(Some(estimate.step.as_secs_f64().max(1e-9)))
    }
}

/// The estimates of a step.
#[derive(Debug)]
pub struct Estimated {
    device: String,
    /// Whether the device has measured its rates.
    is_measured: bool,
    batch: Option<usize>,
    gradients: u64,
    crosses: (u64, u64),
    /// Seconds of a whole step on one device.
    whole: f64,
    /// For each number of tasks, the part of the batch, and the seconds of its step; without those that have no example.
    parts: Vec<(u32, Option<(usize, f64)>)>,
}

impl Estimated {
    /// Of the devices, the one on which the step takes least counts, and each task has one like it.
    pub fn of(step: &Step, devices: &[DeviceFacts]) -> Result<Estimated, Trouble> {
        let mut best: Option<(f64, &DeviceFacts)> = None;
        for device in devices {
            let time = step.time(None, device)?.unwrap_or(f64::MAX);
            if best.is_none_or(|(least, _)| time < least) {
                best = Some((time, device));
            }
        }
        let (whole, device) = best.ok_or_else(|| Trouble::input("there is no device"))?;
        let mut parts = Vec::with_capacity(TASKS.len());
        for tasks in TASKS {
            let each = step.batch.filter(|&batch| batch >= tasks as usize).map(|batch| batch.div_ceil(tasks as usize));
            let time = match each {
                Some(each) if step.gradients > 0 => step.time(Some(each), device)?.map(|time| (each, time)),
                _ => None,
            };
            parts.push((tasks, time));
        }
        let is_measured = device.capacity.rates.is_some();
        let (device, batch) = (device.name.to_string(), step.batch);
        Ok(Estimated { device, is_measured, batch, gradients: step.gradients, crosses: step.crosses, whole, parts })
    }

    fn is_training(&self) -> bool {
        self.gradients > 0
    }

    fn examples(&self) -> f64 {
        self.batch.unwrap_or(1) as f64
    }

    pub fn as_json(&self) -> Value {
        let networks: Vec<Value> = NETWORKS
            .iter()
            .map(|&(gigabits, latency)| {
                let network = Network::ethernet(gigabits, latency);
                let rows = self.rows(network);
                json!({
                    "gigabits": gigabits,
                    "latency_seconds": latency.as_secs_f64(),
                    "tasks": rows.iter().map(|row| row.as_json()).collect::<Vec<_>>(),
                    "pays_until": self.limits(&rows).as_json(),
                })
            })
            .collect();
        json!({
            "kind": if self.is_training() { "training" } else { "inference" },
            "device": self.device,
            "rates_measured": self.is_measured,
            "batch": self.batch,
            "step_seconds": self.whole,
            "gradient_bytes": self.gradients,
            "fed_bytes": self.crosses.0,
            "fetched_bytes": self.crosses.1,
            "networks": networks,
        })
    }

    pub fn as_text(&self, paint: Paint) -> String {
        let of = match self.batch {
            Some(batch) => format!(" of {batch} examples"),
            None => String::new(),
        };
        let step = Duration::from_secs_f64(self.whole);
        let rates = if self.is_measured { "" } else { ", by assumed rates: it has not measured its own" };
        let crosses = if self.is_training() {
            format!("{} of gradients", Bytes(self.gradients as usize))
        } else {
            let (fed, fetched) = self.crosses;
            format!("{} fed and {} fetched", Bytes(fed as usize), Bytes(fetched as usize))
        };
        let mut text = format!(
            "{}\n{crosses}; each task has a device like it, on a machine of its own",
            paint.tone(Tone::Strong, format_args!("a step{of} takes {step:.1?} on {}{rates}", self.device))
        );
        for (gigabits, latency) in NETWORKS {
            let rows = self.rows(Network::ethernet(gigabits, latency));
            let limits = self.limits(&rows);
            let title = format!("{gigabits} Gbit/s, {latency:?} for a message");
            text.push_str(&format!("\n\n{}\n", paint.tone(Tone::Strong, title)));
            let (header, rows): (&[&str], Vec<Vec<String>>) = if self.is_training() {
                let header = &["TASKS", "EACH", "RING", "PER SECOND", "PS", "PER SECOND", "WHOLE EACH: RING", "PS"];
                (header, rows.iter().map(Row::cells).collect())
            } else {
                (&["TASKS", "STEPS PER SECOND"], rows.iter().map(Row::cells).collect())
            };
            text.push_str(&wide_table(paint, header, rows));
            text.push_str(&format!("\n{}", limits.as_text()));
        }
        text
    }

    /// The rows of a network.
    fn rows(&self, network: Network) -> Vec<Row> {
        let of = |&(tasks, part): &(u32, Option<(usize, f64)>)| {
            if !self.is_training() {
                return Row::Replicas(tasks, scaling::replicas(tasks, self.whole, self.crosses, network));
            }
            let both = |compute: f64| {
                [scaling::ring, scaling::servers].map(|formula| formula(tasks, compute, self.gradients, network))
            };
            let per_second = |examples: f64, parts: [StepParts; 2]| parts.map(|of| (of, examples / of.total()));
            Row::Workers {
                tasks,
                strong: part.map(|(each, compute)| (each, per_second(self.examples(), both(compute)))),
                weak: per_second(self.examples() * f64::from(tasks), both(self.whole)),
            }
        };
        self.parts.iter().map(of).collect()
    }

    /// Where more tasks stop paying.
    fn limits(&self, rows: &[Row]) -> Limits {
        let until =
            |of: &dyn Fn(&Row) -> Option<(u32, f64)>| pays_until(&rows.iter().map_while(of).collect::<Vec<_>>());
        if !self.is_training() {
            return Limits::Replicas(until(&|row| row.replicas()));
        }
        let strong = self.parts[0].1.is_some();
        Limits::Workers {
            strong: strong.then(|| [0, 1].map(|formula| until(&|row| row.strong(formula)))),
            weak: [0, 1].map(|formula| until(&|row| row.weak(formula))),
        }
    }
}

/// A number of tasks on a network: for a training by the ring and by a parameter server, each with its examples a second.
enum Row {
    Workers { tasks: u32, strong: Option<(usize, [(StepParts, f64); 2])>, weak: [(StepParts, f64); 2] },
    Replicas(u32, f64),
}

impl Row {
    fn strong(&self, formula: usize) -> Option<(u32, f64)> {
        match self {
            Row::Workers { tasks, strong: Some((_, of)), .. } => Some((*tasks, of[formula].1)),
            _ => None,
        }
    }

    fn weak(&self, formula: usize) -> Option<(u32, f64)> {
        match self {
            Row::Workers { tasks, weak, .. } => Some((*tasks, weak[formula].1)),
            Row::Replicas(..) => None,
        }
    }

    fn replicas(&self) -> Option<(u32, f64)> {
        match self {
            Row::Replicas(tasks, rate) => Some((*tasks, *rate)),
            Row::Workers { .. } => None,
        }
    }

    fn as_json(&self) -> Value {
        let one = |(parts, rate): (StepParts, f64)| {
            json!({
                "step_seconds": parts.total(),
                "compute_seconds": parts.compute,
                "transfer_seconds": parts.transfer,
                "latency_seconds": parts.latency,
                "examples_per_second": rate,
            })
        };
        match self {
            Row::Replicas(tasks, rate) => json!({ "tasks": tasks, "steps_per_second": rate }),
            Row::Workers { tasks, strong, weak } => json!({
                "tasks": tasks,
                "batch_divided": strong.map(|(each, of)| {
                    json!({ "examples_each": each, "ring": one(of[0]), "ps": one(of[1]) })
                }),
                "batch_each": { "ring": one(weak[0]), "ps": one(weak[1]) },
            }),
        }
    }

    fn cells(&self) -> Vec<String> {
        match self {
            Row::Replicas(tasks, rate) => vec![tasks.to_string(), shown(*rate)],
            Row::Workers { tasks, strong, weak } => {
                let mut cells = vec![tasks.to_string()];
                match strong {
                    Some((each, of)) => {
                        cells.push(each.to_string());
                        for (parts, rate) in of {
                            let step = Duration::from_secs_f64(parts.total());
                            cells.extend([format!("{step:.1?}"), shown(*rate)]);
                        }
                    }
                    None => cells.extend(std::iter::repeat_n("-".to_owned(), 5)),
                }
                cells.extend(weak.iter().map(|(_, rate)| shown(*rate)));
                cells
            }
        }
    }
}

/// A rate with three digits or more.
fn shown(rate: f64) -> String {
    match rate {
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate if rate >= 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.2}"),
    }
}

/// The numbers of tasks up to which each doubling raises the throughput by a tenth: by the ring, and with a parameter server.
enum Limits {
    Workers { strong: Option<[u32; 2]>, weak: [u32; 2] },
    Replicas(u32),
}

impl Limits {
    fn as_json(&self) -> Value {
        let both = |[ring, ps]: [u32; 2]| json!({ "ring": ring, "ps": ps });
        match self {
            Limits::Replicas(tasks) => json!(tasks),
            Limits::Workers { strong, weak } => {
                json!({ "batch_divided": strong.map(both), "batch_each": both(*weak) })
            }
        }
    }

    fn as_text(&self) -> String {
        let both = |[ring, ps]: [u32; 2]| format!("{ring} by ring and {ps} with a ps");
        match self {
            Limits::Replicas(tasks) => format!("replicas pay up to {tasks}"),
            Limits::Workers { strong: Some(strong), weak } => {
                format!("it pays up to {}; with the whole batch on each, up to {}", both(*strong), both(*weak))
            }
            Limits::Workers { strong: None, weak } => {
                format!("with the whole batch on each, it pays up to {}", both(*weak))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use meshtf_graph::read;
    use meshtf_tensor::device::{Capacity, DeviceKind, Rates, Task};
    use meshtf_train::file;

    use super::*;

    /// Devices of tasks, with these multiply-adds a second, and as many bytes.
    fn devices(rates: &[u64]) -> Vec<DeviceFacts> {
        let device = |(index, &rate): (usize, &u64)| {
            let rates = Some(Rates { multiply_adds: rate, bytes: rate });
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
        let text = include_str!("../../../examples/train/digits.json");
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
        let text = include_str!("../../../examples/train/digits.json").replace("[null, 64]", "[null, null]");
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
}
