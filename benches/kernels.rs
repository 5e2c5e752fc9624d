//! What meshtf costs over burn: kernels beside burn called directly, and the executor beside a loop over burn.
//!
//! Prints a table; needs no harness. `cargo bench --bench kernels`, or with a word to run only what has it in its name.

#![allow(deprecated)] // burn-ndarray is measured beside its successor.

use std::hint::black_box;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn_backend::ops::ConvOptions;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, TensorData};
use burn_flex::Flex;
use burn_ndarray::NdArray;
use meshtf::Failure;
use meshtf::device::{DeviceKind, DeviceName, Task};
use meshtf::exec::adapters::{BackendChoice, cpu};
use meshtf::exec::engine::{Engine, EngineKernel, Ran, Values};
use meshtf::exec::kernel::KernelNode;
use meshtf::exec::{Device, Resources, Sink};
use meshtf::graph::{Attr, Attrs, Graph, NodeDef};
use meshtf::ids::{PieceId, SessionId, StepId};
use meshtf::plan::{PlanOptions, Signature, plan};
use meshtf::tensor::{DType, Tensor};

/// The allocator of the `meshtf` command, so that both sides of a ratio and the command itself are on the same.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let mut bench = Bench { wanted };
    println!("{:<34} {:>10} {:>12} {:>12} {:>7}", "", "backend", "burn, ms", "meshtf, ms", "ratio");
    bench.backend::<Flex>(BackendChoice::Flex);
    bench.backend::<NdArray>(BackendChoice::NdArray);
    bench.executor();
}

struct Bench {
    wanted: String,
}

impl Bench {
    fn backend<B: Backend>(&mut self, choice: BackendChoice) {
        for n in [256, 1024, 2048] {
            let (a, b) = (numbers(&[n, n]), numbers(&[n, n]));
            self.compare::<B, _>(&format!("matmul {n}"), choice, "MatMul", Attrs::default(), &[a, b], |[a, b]| {
                B::float_matmul(a, b)
            });
        }
        for (batch, side, channels, made) in [(32, 32, 3, 32), (8, 32, 64, 64)] {
            let name = format!("conv {batch}x{side}x{side}x{channels} to {made}, 3x3");
            let attrs = Attrs::from([("strides", Attr::Ints(vec![1; 4])), ("padding", Attr::Str(b"SAME".to_vec()))]);
            let (image, filter) = (numbers(&[batch, side, side, channels]), numbers(&[3, 3, channels, made]));
            // burn is given what it likes best: NCHW and OIHW.
            let likes = [numbers(&[batch, channels, side, side]), numbers(&[made, channels, 3, 3])];
            self.compare_with::<B, 2>(&name, choice, "Conv2D", attrs, &[image, filter], &likes, |[image, filter]| {
                B::conv2d(image, filter, None, ConvOptions::new([1, 1], [1, 1], [1, 1], 1))
            });
        }
        let square = numbers(&[1024, 1024]);
        self.compare::<B, _>("softmax 1024x1024", choice, "Softmax", Attrs::default(), &[square], |[x]| {
            B::softmax(x, 1)
        });
        let million = 1 << 20;
        let (x, y) = (numbers(&[16 * million]), numbers(&[16 * million]));
        self.compare::<B, _>("add 16 M floats", choice, "AddV2", Attrs::default(), &[x, y], |[x, y]| {
            B::float_add(x, y)
        });
        let axes = Tensor::vector(vec![0i32]);
        let x = numbers(&[16 * million]);
        self.compare_with::<B, 1>(
            "sum 16 M floats",
            choice,
            "Sum",
            Attrs::default(),
            &[x.clone(), axes],
            &[x],
            |[x]| B::float_sum(x),
        );
        let tiny = numbers(&[8]);
        self.compare::<B, _>("add 8 floats", choice, "AddV2", Attrs::default(), &[tiny.clone(), tiny], |[x, y]| {
            B::float_add(x, y)
        });
    }

    fn compare<B: Backend, const N: usize>(
        &mut self,
        name: &str,
        choice: BackendChoice,
        op: &str,
        attrs: Attrs,
        inputs: &[Tensor; N],
        direct: impl Fn([B::FloatTensorPrimitive; N]) -> B::FloatTensorPrimitive,
    ) {
        self.compare_with::<B, N>(name, choice, op, attrs, inputs, &inputs.clone(), direct);
    }

    #[allow(clippy::too_many_arguments)]
    fn compare_with<B: Backend, const N: usize>(
        &mut self,
        name: &str,
        choice: BackendChoice,
        op: &str,
        attrs: Attrs,
        inputs: &[Tensor],
        direct_inputs: &[Tensor; N],
        direct: impl Fn([B::FloatTensorPrimitive; N]) -> B::FloatTensorPrimitive,
    ) {
        if !name.contains(&self.wanted) {
            return;
        }
        let engine = cpu(choice).open().expect("the CPU is always there");
        let kept: Values = inputs.iter().map(|input| engine.keep(input.clone()).expect("kept")).collect();
        let mut kernel = kernel(&*engine, op, attrs, inputs);
        let held: [B::FloatTensorPrimitive; N] = direct_inputs.each_ref().map(|input| {
            let elements = input.slice::<f32>().expect("floats").to_vec();
            B::float_from_data(TensorData::new(elements, input.dims().to_vec()), &Default::default())
        });
        let burn = median(|| drop(black_box(direct(held.clone()))));
        let ours = median(|| match kernel(kept.clone()).expect("the kernel runs") {
            Ran::Done(values) => drop(black_box(values)),
            Ran::Declined(_) => panic!("{op} was declined"),
        });
        println!(
            "{name:<34} {:>10} {:>12.4} {:>12.4} {:>7.2}",
            choice.to_string(),
            burn * 1e3,
            ours * 1e3,
            ours / burn
        );
    }

    /// A chain of tiny additions, run by a device, beside the same by a loop over burn.
    fn executor(&mut self) {
        const OPS: usize = 10_000;
        let name = format!("{OPS} adds of 8 floats in a graph");
        if !name.contains(&self.wanted) {
            return;
        }
        let x: <Flex as burn_backend::BackendTypes>::FloatTensorPrimitive =
            Flex::float_from_data(TensorData::new(vec![0.5f32; 8], [8]), &Default::default());
        let burn = median(|| {
            let mut sum = x.clone();
            for _ in 0..OPS {
                sum = Flex::float_add(sum, x.clone());
            }
            black_box(sum);
        });
        let run = |choice: BackendChoice| {
            let stepper = Stepper::open(choice, &chain(OPS), &["x"], &["y"]);
            median(|| drop(black_box(stepper.step(vec![Tensor::vector(vec![0.5f32; 8])]))))
        };
        for choice in [BackendChoice::Flex, BackendChoice::NdArray] {
            let ours = run(choice);
            println!(
                "{name:<34} {:>10} {:>12.4} {:>12.4} {:>7.2}",
                choice.to_string(),
                burn * 1e3,
                ours * 1e3,
                ours / burn
            );
            println!(
                "{:<34} {:>10} {:>9.3} us {:>9.3} us",
                "  an op",
                "",
                burn * 1e6 / OPS as f64,
                ours * 1e6 / OPS as f64
            );
        }
    }
}

/// The kernel that the engine has for an op on such inputs.
fn kernel(engine: &dyn Engine, op: &str, attrs: Attrs, inputs: &[Tensor]) -> EngineKernel {
    let mut defs: Vec<NodeDef> =
        inputs.iter().enumerate().map(|(i, input)| placeholder(&format!("input{i}"), input.dtype())).collect();
    let names = (0..inputs.len()).map(|i| format!("input{i}")).collect();
    defs.push(NodeDef { name: "node".into(), op: op.into(), inputs: names, attrs, ..NodeDef::default() });
    let graph = Graph::new(defs).expect("the node is right");
    let node = graph.node(graph.find("node").expect("just added"));
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let node =
        KernelNode { name: &node.name, op: node.op.name, attrs: &node.attrs, inputs: &dtypes, outputs: &node.outputs };
    engine.compile(&node).expect("it compiles").expect("the engine has it")
}

fn placeholder(name: &str, dtype: DType) -> NodeDef {
    let attrs = Attrs::from([("dtype", Attr::Type(dtype))]);
    NodeDef { name: name.into(), op: "Placeholder".into(), attrs, ..NodeDef::default() }
}

/// `y = x + x + x …`
fn chain(ops: usize) -> Graph {
    let mut defs = vec![placeholder("x", DType::F32)];
    for i in 0..ops {
        let before = if i == 0 { "x".to_owned() } else { format!("sum{}", i - 1) };
        let name = if i + 1 == ops { "y".to_owned() } else { format!("sum{i}") };
        defs.push(NodeDef { name, op: "AddV2".into(), inputs: vec![before, "x".into()], ..NodeDef::default() });
    }
    Graph::new(defs).expect("the chain is right")
}

/// One device with one piece.
struct Stepper {
    device: Device,
    piece: PieceId,
    done: std::sync::mpsc::Receiver<Result<Vec<Tensor>, Failure>>,
    steps: std::cell::Cell<u64>,
}

struct Results(Mutex<Sender<Result<Vec<Tensor>, Failure>>>);

impl Sink for Results {
    fn push(&self, _: StepId, _: &DeviceName, _: u32, _: &[u32], _: Option<Tensor>) {}

    fn done(&self, _: PieceId, _: StepId, fetches: Vec<Tensor>) {
        let _ = self.0.lock().expect("nobody panics").send(Ok(fetches));
    }

    fn failed(&self, _: StepId, failure: Failure) {
        let _ = self.0.lock().expect("nobody panics").send(Err(failure));
    }
}

impl Stepper {
    fn open(choice: BackendChoice, graph: &Graph, feeds: &[&str], fetches: &[&str]) -> Stepper {
        let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
        let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        let signature = Signature { feeds: names(feeds), fetches: names(fetches), targets: Vec::new() };
        let options = PlanOptions { default_device: name.clone(), soft_placement: false };
        let plan = plan(graph, std::slice::from_ref(&name), &signature, &options).expect("it plans");
        let (sender, done) = channel();
        let engine = cpu(choice).open().expect("the CPU is always there");
        let sink = Arc::new(Results(Mutex::new(sender)));
        let device = Device::open(name, engine, Arc::new(Resources::new()), sink).expect("a thread");
        let piece = PieceId { session: SessionId(1), number: 1 };
        device.register(piece, plan.pieces[0].clone()).expect("it compiles");
        Stepper { device, piece, done, steps: std::cell::Cell::new(0) }
    }

    fn step(&self, feeds: Vec<Tensor>) -> Vec<Tensor> {
        self.steps.set(self.steps.get() + 1);
        self.device.start(self.piece, self.steps.get(), 1, feeds);
        self.done.recv().expect("the device lives").expect("the step runs")
    }
}

/// Numbers that are neither all alike nor random.
fn numbers(dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    Tensor::from_vec(dims, (0..count).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect::<Vec<f32>>())
}

/// Seconds that a call takes: the median of as many as fit into a second, after a first one.
fn median(mut call: impl FnMut()) -> f64 {
    call();
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || (begun.elapsed().as_secs_f64() < 1.0 && times.len() < 10_000) {
        let start = Instant::now();
        call();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
