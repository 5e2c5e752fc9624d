//! The documents' program: a network of 1, 16, 32 and 1 units with leaky ReLUs learns y = e^x with Adam, in batches of
//! 100.
//!
//! The graphs are TensorFlow 2.21's exports, including gradients; for more than two workers, the first worker's part is
//! repeated.

use meshtf::Task;
use meshtf_graph::{Attr, Graph, NodeDef, read};
use meshtf_tensor::Tensor;

/// Rows of a batch, over all workers.
pub const BATCH: usize = 100;

/// The prefix of a worker's nodes in TensorFlow's graph for two workers.
const TOWER: &str = "ps_1/";
const OTHER_TOWER: &str = "ps_2/";

/// A graph, and the names of its parts.
pub struct Program {
    pub title: String,
    pub graph: Graph,
    /// The master first.
    pub tasks: Vec<Task>,
    /// The node that trains one step.
    pub train: &'static str,
    /// The placeholders of `loss`: a whole batch.
    evaluated: (&'static str, &'static str),
    pub loss: &'static str,
    /// The placeholders of x and y for a step, worker by worker.
    fed: Vec<(String, String)>,
}

impl Program {
    pub fn single() -> Program {
        let placeholders = ("ps/Placeholder", "ps/Placeholder_1");
        Program {
            title: "single".to_owned(),
            graph: Graph::new(nodes(include_bytes!("exp_single.pb"))).expect("a graph"),
            tasks: vec![Task::new("master", 0)],
            train: "ps/Adam",
            evaluated: placeholders,
            loss: "ps/L2Loss",
            fed: vec![(placeholders.0.to_owned(), placeholders.1.to_owned())],
        }
    }

    /// Each layer on a separate task.
    pub fn model() -> Program {
        let placeholders = ("Placeholder", "Placeholder_1");
        Program {
            title: "model-parallel".to_owned(),
            graph: Graph::new(nodes(include_bytes!("exp_model.pb"))).expect("a graph"),
            tasks: ["master", "ps", "ps_"].map(|job| Task::new(job, 0)).to_vec(),
            train: "Adam",
            evaluated: placeholders,
            loss: "L2Loss",
            fed: vec![(placeholders.0.to_owned(), placeholders.1.to_owned())],
        }
    }

    /// The data spread over `workers`, whose gradients the master averages.
    pub fn data(workers: usize) -> Program {
        let towers: Vec<String> = (0..workers).map(|i| format!("tower_{i}/")).collect();
        let fed = towers.iter().map(|tower| (format!("{tower}Placeholder"), format!("{tower}Placeholder_1"))).collect();
        let masters = std::iter::once(Task::new("master", 0));
        Program {
            title: format!("data {workers}"),
            graph: Graph::new(spread(nodes(include_bytes!("exp_data.pb")), &towers)).expect("a graph"),
            tasks: masters.chain((0..workers).map(|i| Task::new("worker", i as u32))).collect(),
            train: "ps_3/Adam",
            evaluated: ("ps/Placeholder", "ps/Placeholder_1"),
            loss: "ps/L2Loss",
            fed,
        }
    }

    /// The initial weights: values that are fed instead of those of the random initialisers.
    pub fn initial(&self) -> Vec<(&'static str, Tensor)> {
        let mut numbers = Numbers::new(1);
        [("W1", [1, 16]), ("W2", [16, 32]), ("W3", [32, 1])]
            .into_iter()
            .map(|(name, shape)| {
                let feed = match name {
                    "W1" => "ps/W1/Initializer/random_uniform/RandomUniform",
                    "W2" => "ps/W2/Initializer/random_uniform/RandomUniform",
                    _ => "ps/W3/Initializer/random_uniform/RandomUniform",
                };
                (feed, Tensor::from_vec(shape, numbers.take(shape[0] * shape[1])))
            })
            .collect()
    }

    /// The feeds for training on `batch`, each worker on its share.
    pub fn feeds<'a>(&'a self, batch: &Batch) -> Vec<(&'a str, Tensor)> {
        let share = |i: usize| i * BATCH / self.fed.len();
        let parts = self.fed.iter().enumerate().flat_map(|(i, (x, y))| {
            let rows = share(i)..share(i + 1);
            [(x.as_str(), column(&batch.x[rows.clone()])), (y.as_str(), column(&batch.y[rows]))]
        });
        parts.collect()
    }

    /// The feeds for evaluating the loss on `batch`.
    pub fn evaluation(&self, batch: &Batch) -> Vec<(&'static str, Tensor)> {
        vec![(self.evaluated.0, column(&batch.x)), (self.evaluated.1, column(&batch.y))]
    }
}

/// Points of the curve.
pub struct Batch {
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Batch {
    pub fn next(numbers: &mut Numbers) -> Batch {
        let x = numbers.take(BATCH);
        Batch { y: x.iter().map(|x| x.exp()).collect(), x }
    }

    pub fn x(&self) -> &[f32] {
        &self.x
    }

    pub fn y(&self) -> &[f32] {
        &self.y
    }
}

/// The same numbers in [0, 1) each time, from a seed.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    fn take(&mut self, count: usize) -> Vec<f32> {
        // Knuth's linear congruential generator; its upper bits are good enough for points of a curve.
        let mut next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32
        };
        (0..count).map(|_| next()).collect()
    }
}

fn column(values: &[f32]) -> Tensor {
    Tensor::from_vec([values.len(), 1], values.to_vec())
}

fn nodes(graph: &[u8]) -> Vec<NodeDef> {
    read(graph).expect("a GraphDef of TensorFlow's").nodes
}

/// The graph for two workers, with a copy of the first worker's part for each of `towers`: the i-th for worker i.
fn spread(nodes: Vec<NodeDef>, towers: &[String]) -> Vec<NodeDef> {
    let mut spread = Vec::new();
    for node in nodes {
        let input = node.inputs.first().map_or("", String::as_str);
        if node.name.starts_with(TOWER) {
            for (i, tower) in towers.iter().enumerate() {
                let device = format!("/job:worker/task:{i}");
                spread.push(NodeDef { device, ..renamed(&node, tower) });
            }
        } else if node.name.starts_with(OTHER_TOWER) || input.starts_with(OTHER_TOWER) {
            // The second worker's part, and the nodes that pass its gradients to the average.
        } else if input.starts_with(TOWER) {
            // The nodes that pass a gradient to the average: one for each worker, all along the same axis.
            for tower in towers {
                let mut copy = renamed(&node, tower);
                copy.name = format!("{tower}{}", node.name);
                copy.inputs[1].clone_from(&node.inputs[1]);
                spread.push(copy);
            }
        } else if node.op == "ConcatV2" {
            let (first, axis) = (&node.inputs[0], &node.inputs[2]);
            let parts = towers.iter().map(|tower| format!("{tower}{first}"));
            let inputs = parts.chain([axis.clone()]).collect();
            let mut concat = NodeDef { inputs, ..node.clone() };
            concat.attrs.set("N", Attr::Int(towers.len() as i64));
            spread.push(concat);
        } else {
            spread.push(node);
        }
    }
    spread
}

/// A node whose name, and its inputs' names, are changed from the first worker's to another worker's.
fn renamed(node: &NodeDef, tower: &str) -> NodeDef {
    let name = |name: &str| match name.strip_prefix('^') {
        Some(name) => format!("^{}", name.replacen(TOWER, tower, 1)),
        None => name.replacen(TOWER, tower, 1),
    };
    let mut copy = node.clone();
    copy.name = name(&node.name);
    copy.inputs = node.inputs.iter().map(|input| name(input)).collect();
    if let Some(Attr::Strs(beside)) = node.attrs.get("_class") {
        let of_tower = |text: &Vec<u8>| String::from_utf8_lossy(text).replacen(TOWER, tower, 1).into_bytes();
        copy.attrs.set("_class", Attr::Strs(beside.iter().map(of_tower).collect()));
    }
    copy
}
