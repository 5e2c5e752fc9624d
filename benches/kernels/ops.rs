//! Kernels compared with burn called directly and with NumPy; and the executor compared with a loop over burn.

use std::cell::RefCell;
use std::hint::black_box;

use burn_backend::ops::{ConvOptions, FloatTensorOps};
use burn_backend::{Backend, TensorData};
use burn_flex::Flex;
use meshtf_engine::adapters::{BackendChoice, cpu};
use meshtf_engine::{Engine, EngineKernel, EngineOutcome, Values};
use meshtf_graph::{Attr, Attrs, Graph, NodeDef};
use meshtf_kernels::KernelNode;
use meshtf_tensor::{DType, Tensor};

use crate::graphs::{Stepper, chain, placeholder};
use crate::numpy::Numpy;
use crate::{best_of_turns, numbers};

pub struct Table {
    /// Only rows with this in their names.
    pub wanted: String,
    pub numpy: Numpy,
}

/// An op, and its inputs for meshtf and for burn.
struct Case<'a, const N: usize> {
    name: &'a str,
    op: &'a str,
    attrs: Attrs,
    inputs: Vec<Tensor>,
    direct_inputs: [Tensor; N],
}

impl<'a, const N: usize> Case<'a, N> {
    fn new(name: &'a str, op: &'a str, inputs: [Tensor; N]) -> Self {
        Case { name, op, attrs: Attrs::default(), inputs: inputs.to_vec(), direct_inputs: inputs }
    }
}

impl Table {
    pub fn head(&self) {
        println!(
            "{:<34} {:>8} {:>11} {:>11} {:>6} {:>11} {:>8}",
            "", "backend", "burn, ms", "meshtf, ms", "ratio", "numpy, ms", "of numpy"
        );
    }

    pub fn foot(&self) {
        println!(
            "ratio: meshtf's time in burn's; of numpy: meshtf's speed in numpy's (convolutions: windows and a product)"
        );
        if let Some(why) = self.numpy.why_not() {
            println!("numpy was not measured: {why}");
        }
    }

    fn row(&self, name: &str, choice: BackendChoice, burn: f64, ours: f64) {
        let (numpy, share) = match self.numpy.seconds(name) {
            Some(numpy) => (format!("{:.4}", numpy * 1e3), format!("{:.2}", numpy / ours)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let (choice, ratio) = (choice.to_string(), ours / burn);
        let (burn, ours) = (burn * 1e3, ours * 1e3);
        println!("{name:<34} {choice:>8} {burn:>11.4} {ours:>11.4} {ratio:>6.2} {numpy:>11} {share:>8}");
    }

    pub fn backend<B: Backend>(&self, choice: BackendChoice) {
        for n in [256, 1024, 2048] {
            let name = format!("matmul {n}");
            let case = || Case::new(&name, "MatMul", [numbers(&[n, n]), numbers(&[n, n])]);
            self.compare::<B, 2>(choice, &name, case, |[a, b]| B::float_matmul(a, b));
        }
        for (batch, side, channels, made) in [(32, 32, 3, 32), (8, 32, 64, 64)] {
            let name = format!("conv {batch}x{side}x{side}x{channels} to {made}, 3x3");
            let case = || Case {
                name: &name,
                op: "Conv2D",
                attrs: Attrs::from([("strides", Attr::Ints(vec![1; 4])), ("padding", Attr::Str(b"SAME".to_vec()))]),
                inputs: vec![numbers(&[batch, side, side, channels]), numbers(&[3, 3, channels, made])],
                // burn gets its preferred layouts: NCHW and OIHW.
                direct_inputs: [numbers(&[batch, channels, side, side]), numbers(&[made, channels, 3, 3])],
            };
            self.compare::<B, 2>(choice, &name, case, |[image, filter]| {
                B::conv2d(image, filter, None, ConvOptions::new([1, 1], [1, 1], [1, 1], 1))
            });
        }
        let name = "softmax 1024x1024";
        let case = || Case::new(name, "Softmax", [numbers(&[1024, 1024])]);
        self.compare::<B, 1>(choice, name, case, |[x]| B::softmax(x, 1));
        let large = [16 << 20];
        let name = "add 16 M floats";
        let case = || Case::new(name, "AddV2", [numbers(&large), numbers(&large)]);
        self.compare::<B, 2>(choice, name, case, |[x, y]| B::float_add(x, y));
        self.add_in_place::<B>(choice, "add 16 M floats in place", &large);
        let name = "sum 16 M floats";
        let case = || Case {
            name,
            op: "Sum",
            attrs: Attrs::default(),
            inputs: vec![numbers(&large), Tensor::vector(vec![0i32])],
            direct_inputs: [numbers(&large)],
        };
        self.compare::<B, 1>(choice, name, case, |[x]| B::float_sum(x));
        self.broadcasts::<B>(choice);
        self.reductions::<B>(choice);
    }

    /// The broadcasts of attention, normalisation and distances.
    fn broadcasts<B: Backend>(&self, choice: BackendChoice) {
        for (name, whole, part) in [
            ("add a mask to 8x12x128x128", [8, 12, 128, 128], [8, 1, 1, 128]),
            ("add a number a row of 64x400x128", [1, 64, 400, 128], [1, 64, 400, 1]),
            ("add a row an image of 64x400x128", [1, 64, 400, 128], [1, 64, 1, 128]),
            ("add in short rows of 100000x8", [1, 1, 100_000, 8], [1, 1, 100_000, 1]),
            ("add a column to a row, 2048 each", [1, 1, 2048, 1], [1, 1, 1, 2048]),
        ] {
            let case = || Case::new(name, "AddV2", [numbers(&whole), numbers(&part)]);
            self.compare::<B, 2>(choice, name, case, |[x, y]| B::float_add(x, y));
        }
    }

    /// Along the axes that models reduce: in the middle, the last, the first.
    fn reductions<B: Backend>(&self, choice: BackendChoice) {
        for (op, what, dims, axis) in [
            ("Sum", "time", [64, 400, 128], 1),
            ("Sum", "the last axis", [64, 128, 512], 2),
            ("Sum", "the batch", [1, 8192, 256], 1),
            ("Max", "time", [64, 400, 128], 1),
            ("Max", "the last axis", [64, 128, 512], 2),
            ("Max", "the batch", [1, 8192, 256], 1),
        ] {
            let name = format!("{} over {what} of {dims:?}", op.to_lowercase());
            let case = || Case {
                name: &name,
                op,
                attrs: Attrs::from([("keep_dims", Attr::Bool(true))]),
                inputs: vec![numbers(&dims), Tensor::vector(vec![axis as i32])],
                direct_inputs: [numbers(&dims)],
            };
            let direct = |[x]: [B::FloatTensorPrimitive; 1]| match op {
                "Sum" => B::float_sum_dim(x, axis),
                _ => B::float_max_dim(x, axis),
            };
            self.compare::<B, 1>(choice, &name, case, direct);
        }
    }

    /// An op on shared inputs, so that it makes a new output.
    fn compare<'a, B: Backend, const N: usize>(
        &self,
        choice: BackendChoice,
        name: &str,
        case: impl FnOnce() -> Case<'a, N>,
        direct: impl Fn([B::FloatTensorPrimitive; N]) -> B::FloatTensorPrimitive,
    ) {
        if !name.contains(&self.wanted) {
            return;
        }
        let case = case();
        let engine = cpu(choice).open().expect("the CPU is always there");
        let kept = keep(&*engine, &case.inputs);
        let mut kernel = compile(&*engine, case.op, case.attrs, &case.inputs);
        let held = case.direct_inputs.each_ref().map(float::<B>);
        let (burn, ours) =
            best_of_turns(|| drop(black_box(direct(held.clone()))), || drop(black_box(run(&mut kernel, kept.clone()))));
        self.row(case.name, choice, burn, ours);
    }

    /// An addition that overwrites its left input, which has no other owner.
    fn add_in_place<B: Backend>(&self, choice: BackendChoice, name: &str, dims: &[usize]) {
        if !name.contains(&self.wanted) {
            return;
        }
        let inputs = [numbers(dims), numbers(dims)];
        let engine = cpu(choice).open().expect("the CPU is always there");
        let mut kernel = compile(&*engine, "AddV2", Attrs::default(), &inputs);
        let mut kept = keep(&*engine, &inputs);
        let right = kept.pop().expect("two inputs");
        let left = RefCell::new(kept.pop());
        let direct_left = RefCell::new(Some(float::<B>(&inputs[0])));
        let direct_right = float::<B>(&inputs[1]);
        let (burn, ours) = best_of_turns(
            || {
                let x = direct_left.take().expect("put back");
                *direct_left.borrow_mut() = Some(B::float_add(x, direct_right.clone()));
            },
            || {
                let x = left.take().expect("put back");
                *left.borrow_mut() = run(&mut kernel, Values::from_iter([x, right.clone()])).pop();
            },
        );
        self.row(name, choice, burn, ours);
    }

    /// A chain of tiny additions, run by a device, compared with a loop over burn.
    pub fn executor(&self) {
        const OPS: usize = 10_000;
        let name = format!("{OPS} adds of 8 floats in a graph");
        if !name.contains(&self.wanted) {
            return;
        }
        let x = float::<Flex>(&numbers(&[8]));
        let choice = BackendChoice::Flex;
        let stepper = Stepper::open(choice);
        let piece = stepper.piece(&chain("AddV2", 2, OPS), &["x"], &["y"], &[]);
        let (burn, ours) = best_of_turns(
            || {
                let mut sum = x.clone();
                for _ in 0..OPS {
                    sum = Flex::float_add(sum, x.clone());
                }
                black_box(sum);
            },
            || drop(black_box(stepper.step(piece, vec![numbers(&[8])]))),
        );
        self.row(&name, choice, burn, ours);
        self.row("  an op of them", choice, burn / OPS as f64, ours / OPS as f64);
    }
}

pub fn float<B: Backend>(tensor: &Tensor) -> B::FloatTensorPrimitive {
    let elements = tensor.slice::<f32>().expect("floats").to_vec();
    B::float_from_data(TensorData::new(elements, tensor.dims().to_vec()), &Default::default())
}

pub fn keep(engine: &dyn Engine, inputs: &[Tensor]) -> Values {
    inputs.iter().map(|input| engine.keep(input.clone()).expect("kept")).collect()
}

pub fn run(kernel: &mut EngineKernel, inputs: Values) -> Values {
    match (kernel.run)(inputs).expect("the kernel runs") {
        EngineOutcome::Done(values) => values,
        EngineOutcome::Declined(_) => panic!("the engine declined"),
    }
}

/// The engine's kernel for an op on such inputs.
pub fn compile(engine: &dyn Engine, op: &str, attrs: Attrs, inputs: &[Tensor]) -> EngineKernel {
    let mut defs: Vec<NodeDef> =
        inputs.iter().enumerate().map(|(i, input)| placeholder(&format!("input{i}"), input.dtype())).collect();
    let names = (0..inputs.len()).map(|i| format!("input{i}")).collect();
    defs.push(NodeDef { name: "node".into(), op: op.into(), inputs: names, attrs, ..NodeDef::default() });
    let graph = Graph::new(defs).expect("the node is right");
    let node = graph.node(graph.find("node").expect("just added"));
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let node = KernelNode {
        name: &node.name,
        op: node.op.name,
        attrs: &node.attrs,
        inputs: &dtypes,
        outputs: &node.outputs,
        constants: 0,
    };
    engine.compile(&node).expect("it compiles").expect("the engine has it")
}
