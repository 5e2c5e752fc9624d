//! Graphs on a device, without a mesh: the overhead of the executor.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use meshtf::Failure;
use meshtf_engine::adapters::{BackendChoice, cpu};
use meshtf_exec::{Device, Pushed, Resources, Sink};
use meshtf_graph::plan::{PlanOptions, Signature, plan};
use meshtf_graph::{Attr, Attrs, Graph, NodeDef};
use meshtf_tensor::device::{DeviceFacts, DeviceKind, DeviceName, Task};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::{DType, PartialShape, Tensor};

/// A node with its attributes and inputs.
pub fn node<const N: usize>(name: &str, op: &str, inputs: &[&str], attrs: [(&str, Attr); N]) -> NodeDef {
    let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
    NodeDef { name: name.into(), op: op.into(), inputs, attrs: Attrs::from(attrs), ..NodeDef::default() }
}

pub fn placeholder(name: &str, dtype: DType) -> NodeDef {
    node(name, "Placeholder", &[], [("dtype", Attr::Type(dtype))])
}

/// `y = op(op(x, x), x) …`; for an op with one input, `y = op(op(x)) …`
pub fn chain(op: &str, inputs: usize, length: usize) -> Graph {
    let mut defs = vec![placeholder("x", DType::F32)];
    for i in 0..length {
        let before = if i == 0 { "x".to_owned() } else { format!("value{}", i - 1) };
        let name = if i + 1 == length { "y".to_owned() } else { format!("value{i}") };
        defs.push(node(&name, op, &[&before, "x"][..inputs], []));
    }
    Graph::new(defs).expect("the chain is right")
}

/// A step of learning `target = x · w`: forward, a hand-written gradient, and the descent. `start` begins it.
pub fn training(rows: usize, inputs: usize, outputs: usize) -> Graph {
    let shape = PartialShape::from([inputs, outputs]);
    let zeros = Tensor::zeros(DType::F32, [inputs, outputs]).expect("small");
    let constant = |value: Tensor| [("dtype", Attr::Type(value.dtype())), ("value", Attr::Tensor(value))];
    Graph::new(vec![
        node("w", "VariableV2", &[], [("dtype", Attr::Type(DType::F32)), ("shape", Attr::Shape(shape))]),
        node("zeros", "Const", &[], constant(zeros)),
        node("start", "Assign", &["w", "zeros"], []),
        placeholder("x", DType::F32),
        placeholder("target", DType::F32),
        node("rate", "Const", &[], constant(Tensor::scalar(0.01f32))),
        node("share", "Const", &[], constant(Tensor::scalar(2.0 / (rows * outputs) as f32))),
        node("axes", "Const", &[], constant(Tensor::vector(vec![0i32, 1]))),
        node("product", "MatMul", &["x", "w"], []),
        node("error", "Sub", &["product", "target"], []),
        node("squares", "Square", &["error"], []),
        node("loss", "Mean", &["squares", "axes"], []),
        node("slope", "Mul", &["error", "share"], []),
        node("gradient", "MatMul", &["x", "slope"], [("transpose_a", Attr::Bool(true))]),
        node("train", "ApplyGradientDescent", &["w", "rate", "gradient"], []),
    ])
    .expect("the step is right")
}

/// One device with pieces of one graph.
pub struct Stepper {
    name: DeviceName,
    device: Device,
    done: Receiver<Result<Vec<Tensor>, Failure>>,
    steps: Cell<u64>,
    pieces: Cell<u32>,
}

struct Results(Mutex<Sender<Result<Vec<Tensor>, Failure>>>);

impl Sink for Results {
    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

    fn push(&self, _: StepId, _: &DeviceName, _: Vec<Pushed>) {}

    fn done(&self, _: PieceId, _: StepId, fetches: Vec<Tensor>) {
        let _ = self.0.lock().expect("nobody panics").send(Ok(fetches));
    }

    fn failed(&self, _: StepId, failure: Failure) {
        let _ = self.0.lock().expect("nobody panics").send(Err(failure));
    }
}

impl Stepper {
    pub fn open(choice: BackendChoice) -> Stepper {
        let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
        let (sender, done) = channel();
        let engine = cpu(choice).open().expect("the CPU is always there");
        let sink = Arc::new(Results(Mutex::new(sender)));
        let device = Device::open(name.clone(), engine, Arc::new(Resources::new()), sink).expect("a thread");
        Stepper { name, device, done, steps: Cell::new(0), pieces: Cell::new(0) }
    }

    pub fn piece(&self, graph: &Graph, feeds: &[&str], fetches: &[&str], targets: &[&str]) -> PieceId {
        let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        let signature =
            Signature { feeds: names(feeds), fetches: names(fetches), targets: names(targets), ..Signature::default() };
        let options = PlanOptions { default_device: self.name.clone(), soft_placement: false, by_cost: None };
        let plan = plan(graph, &[DeviceFacts::unknown(self.name.clone())], &signature, &options).expect("it plans");
        self.pieces.set(self.pieces.get() + 1);
        let id = PieceId { session: SessionId(1), number: self.pieces.get() };
        self.device.register(id, plan.pieces[0].clone()).expect("it compiles");
        id
    }

    pub fn step(&self, piece: PieceId, feeds: Vec<Tensor>) -> Vec<Tensor> {
        self.steps(piece, 1, feeds).remove(0)
    }

    /// Consecutive steps, each with these feeds.
    pub fn steps(&self, piece: PieceId, count: u64, feeds: Vec<Tensor>) -> Vec<Vec<Tensor>> {
        let first = self.steps.get() + 1;
        self.steps.set(self.steps.get() + count);
        self.device.start(piece, first, count, false, feeds);
        (0..count).map(|_| self.done.recv().expect("the device lives").expect("the step runs")).collect()
    }
}
