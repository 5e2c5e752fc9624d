//! Test of values that a GPU computes later, many at once: programs drawn at random, on a GPU and by the host's kernels, one op
//! at a time. A value is read at random, so that the same op is computed alone, within a chain, and beside others.

use meshtf_cases::with_node;
use meshtf_engine::adapters::{self, BackendChoice};
use meshtf_engine::{Engine, EngineOutcome, Value, Values};
use meshtf_kernels as kernel;
use meshtf_tensor::{DType, Shape, Tensor};
use meshtf_testing::means::{Means, missing};
use serde_json::{Value as Json, json};

/// Programs that are drawn.
const PROGRAMS: u64 = 40;

/// Ops of a program.
const OPS: usize = 60;

/// Numbers by a linear congruence: the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn float(&mut self) -> f32 {
        self.below(2001) as f32 / 500.0 - 2.0
    }

    fn tensor(&mut self, dims: &[usize], has_specials: bool) -> Tensor {
        const SPECIALS: [f32; 6] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0];
        let count = dims.iter().product();
        let number =
            |draw: &mut Draw| if has_specials && draw.below(6) == 0 { draw.of(&SPECIALS) } else { draw.float() };
        Tensor::from_vec(dims, (0..count).map(|_| number(self)).collect::<Vec<f32>>())
    }
}

/// A value on the GPU, and the same on the host.
#[derive(Clone)]
struct Both {
    gpu: Value,
    host: Tensor,
    /// It is exact: the GPU has computed nothing to it, so that comparisons give the same.
    is_given: bool,
    /// The op that made it.
    of: String,
}

struct Program {
    engine: Box<dyn Engine>,
    draw: Draw,
    values: Vec<Both>,
    bools: Vec<Both>,
    text: String,
}

impl Program {
    /// Runs an op on both; its outputs.
    fn run(&mut self, op: &str, attrs: Json, inputs: &[Both]) -> Vec<Both> {
        let case = json!({ "op": op, "attrs": attrs });
        let hosts: Vec<Tensor> = inputs.iter().map(|input| input.host.clone()).collect();
        self.text +=
            &format!("{op} {attrs} {:?}\n", hosts.iter().map(|host| host.shape().to_string()).collect::<Vec<_>>());
        let want = with_node(&case, &hosts, |node| {
            let mut kernel = kernel::compile(node)?.expect("the host has every kernel");
            kernel(hosts.iter().cloned().collect())
        });
        let want = want.unwrap_or_else(|failure| panic!("{}{failure}", self.text));
        let gpus: Values = inputs.iter().map(|input| input.gpu.clone()).collect();
        let got = with_node(&case, &hosts, |node| match self.engine.compile(node)? {
            Some(mut kernel) => (kernel.run)(gpus),
            None => Ok(EngineOutcome::Declined(gpus)),
        });
        match got.unwrap_or_else(|failure| panic!("{}{failure}", self.text)) {
            EngineOutcome::Done(got) => {
                let both = |(gpu, host): (Value, Tensor)| {
                    assert_eq!((gpu.dtype(), gpu.shape()), (host.dtype(), host.shape()), "{}", self.text);
                    Both { gpu, host, is_given: false, of: format!("{op} {attrs}") }
                };
                got.into_iter().zip(want).map(both).collect()
            }
            // The host computes it for the GPU, too.
            EngineOutcome::Declined(_) => {
                let both = |host: Tensor| Both {
                    gpu: self.engine.keep(host.clone()).unwrap(),
                    host,
                    is_given: true,
                    of: format!("{op} {attrs}, by the host"),
                };
                want.into_iter().map(both).collect()
            }
        }
    }

    fn one(&mut self, op: &str, attrs: Json, inputs: &[Both]) -> Both {
        self.run(op, attrs, inputs).swap_remove(0)
    }

    fn value(&mut self) -> Both {
        let at = self.draw.below(self.values.len());
        self.values[at].clone()
    }

    /// A value that is broadcast with another.
    fn partner(&mut self, shape: &Shape) -> Both {
        let fits: Vec<usize> = (0..self.values.len())
            .filter(|&i| {
                self.values[i]
                    .host
                    .shape()
                    .broadcast(shape)
                    .is_ok_and(|both| both.dims().iter().product::<usize>() < 5000)
            })
            .collect();
        let at = self.draw.of(&fits);
        self.values[at].clone()
    }

    fn ints(&self, values: &[i32]) -> Both {
        let host = Tensor::vector(values.to_vec());
        Both { gpu: Value::Host(host.clone()), host, is_given: true, of: "a number".into() }
    }

    fn int(&self, value: i32) -> Both {
        let host = Tensor::scalar(value);
        Both { gpu: Value::Host(host.clone()), host, is_given: true, of: "a number".into() }
    }

    /// An op of a kind drawn at random; whether it fits the values drawn for it is not known before.
    fn step(&mut self) -> Vec<Both> {
        let x = self.value();
        let shape = x.host.shape().clone();
        let (dims, rank) = (shape.dims().to_vec(), shape.rank());
        match self.draw.below(26) {
            0..4 => {
                const ONE: [&str; 20] = [
                    "Abs",
                    "Neg",
                    "Exp",
                    "Log",
                    "Sqrt",
                    "Rsqrt",
                    "Tanh",
                    "Sigmoid",
                    "Relu",
                    "Relu6",
                    "Square",
                    "Sign",
                    "Sin",
                    "Cos",
                    "Elu",
                    "Selu",
                    "Softplus",
                    "Softsign",
                    "Log1p",
                    "Reciprocal",
                ];
                let op = self.draw.of(&ONE);
                self.run(op, json!({}), &[x])
            }
            4..8 => {
                const TWO: [&str; 8] =
                    ["Add", "AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "SquaredDifference"];
                let (op, y) = (self.draw.of(&TWO), self.partner(&shape));
                let both = if self.draw.below(2) == 0 { [x, y] } else { [y, x] };
                self.run(op, json!({}), &both)
            }
            8 => {
                const GRADIENTS: [&str; 5] = ["ReluGrad", "TanhGrad", "SigmoidGrad", "SoftplusGrad", "EluGrad"];
                let (op, y) = (self.draw.of(&GRADIENTS), self.draw.tensor(&dims, false));
                let y = self.given(y);
                self.run(op, json!({}), &[x, y])
            }
            9 => {
                let sum = self.one("AddN", json!({}), &[x.clone(), x.clone(), x.clone()]);
                vec![sum]
            }
            10 if rank >= 1 => {
                let axis = self.draw.below(rank) as i32;
                let (op, keep) = (self.draw.of(&["Sum", "Mean", "Max"]), self.draw.below(2) == 0);
                let axis = self.ints(&[axis]);
                self.run(op, json!({ "keep_dims": keep }), &[x, axis])
            }
            11 if rank == 2 => {
                let columns = 1 + self.draw.below(6);
                let y = self.draw.tensor(&[dims[1], columns], false);
                let y = self.given(y);
                self.run("MatMul", json!({}), &[x, y])
            }
            12 if rank >= 2 => {
                let mut axes: Vec<i32> = (0..rank as i32).collect();
                axes.rotate_left(1 + self.draw.below(rank - 1));
                let axes = self.ints(&axes);
                self.run("Transpose", json!({}), &[x, axes])
            }
            13 if rank >= 1 => {
                let all: i32 = dims.iter().product::<usize>() as i32;
                let sizes = self.draw.of(&[[-1, 1], [1, -1], [all, 1]]);
                let sizes = self.ints(&sizes);
                self.run("Reshape", json!({}), &[x, sizes])
            }
            14 if rank >= 1 => {
                let begin: Vec<i32> = dims.iter().map(|&size| self.draw.below(size) as i32).collect();
                let size: Vec<i32> = dims
                    .iter()
                    .zip(&begin)
                    .map(|(&all, &from)| 1 + self.draw.below(all - from as usize) as i32)
                    .collect();
                let (begin, size) = (self.ints(&begin), self.ints(&size));
                self.run("Slice", json!({}), &[x, begin, size])
            }
            15 if rank >= 1 => {
                let axis = self.draw.below(rank);
                let (y, along) = (self.one("Neg", json!({}), std::slice::from_ref(&x)), self.int(axis as i32));
                self.run("ConcatV2", json!({}), &[x, y, along])
            }
            16 if rank >= 1 && dims[rank - 1] % 2 == 0 => {
                let along = self.int(rank as i32 - 1);
                self.run("Split", json!({ "num_split": 2 }), &[along, x])
            }
            17 if (1..4).contains(&rank) => self.run("Pack", json!({ "axis": 0 }), &[x.clone(), x]),
            18 if rank >= 1 => {
                let op = self.draw.of(&["Softmax", "LogSoftmax"]);
                self.run(op, json!({}), &[x])
            }
            20 if rank >= 1 => {
                let (begin, end) = (vec![0; rank], dims.iter().map(|&size| size as i32).collect::<Vec<_>>());
                let (begin, end, steps) = (self.ints(&begin), self.ints(&end), self.ints(&vec![2; rank]));
                self.run("StridedSlice", json!({}), &[x, begin, end, steps])
            }
            21 if (1..4).contains(&rank) => {
                let (mut whole, mut times) = (vec![2], vec![1; rank]);
                whole.extend(dims.iter().map(|&size| size as i32));
                match dims.iter().position(|&size| size == 1) {
                    Some(single) if self.draw.below(2) == 0 => {
                        times[single] = 3;
                        let times = self.ints(&times);
                        self.run("Tile", json!({}), &[x, times])
                    }
                    _ => {
                        let whole = self.ints(&whole);
                        self.run("BroadcastTo", json!({}), &[x, whole])
                    }
                }
            }
            22 if rank >= 2 && dims[0] <= 7 => self.run("Unpack", json!({ "num": dims[0], "axis": 0 }), &[x]),
            23 if rank == 2 => {
                let classes = (0..dims[0]).map(|_| self.draw.below(dims[1]) as i32).collect::<Vec<_>>();
                let classes = self.ints(&classes);
                self.run("SparseSoftmaxCrossEntropyWithLogits", json!({}), &[x, classes])
            }
            24 if rank == 2 => {
                let labels = self.draw.tensor(&dims, false);
                let labels = self.given(labels);
                self.run("SoftmaxCrossEntropyWithLogits", json!({}), &[x, labels])
            }
            25 if (1..=4).contains(&rank) && dims.iter().product::<usize>() >= 8 => {
                // Its channels are those of the last dimension.
                let channels = dims[rank - 1];
                let image = [&[1; 4][..4 - rank], &dims[..]].concat();
                let sizes = self.ints(&image.iter().map(|&size| size as i32).collect::<Vec<_>>());
                let image = self.one("Reshape", json!({}), &[x, sizes]);
                let [scale, offset] = [(); 2].map(|_| self.draw.tensor(&[channels], false));
                let [scale, offset] = [scale, offset].map(|own| self.given(own));
                let nothing = Tensor::vector(Vec::<f32>::new());
                let nothing =
                    Both { gpu: Value::Host(nothing.clone()), host: nothing, is_given: true, of: "nothing".into() };
                let inputs = [image, scale, offset, nothing.clone(), nothing];
                let attrs = json!({ "is_training": true, "epsilon": 0.1, "U": "float32" });
                let mut made = self.run("FusedBatchNormV3", attrs, &inputs);
                made.truncate(3);
                made
            }
            19 if !self.bools.is_empty() => {
                let at = self.draw.below(self.bools.len());
                let condition = self.bools[at].clone();
                if self.draw.below(2) == 0 {
                    return self.run("Cast", json!({ "DstT": "float32" }), &[condition]);
                }
                let y = self.one("Neg", json!({}), std::slice::from_ref(&x));
                let fits = condition.host.shape().broadcast(&shape).is_ok();
                if fits { self.run("SelectV2", json!({}), &[condition, x, y]) } else { vec![y] }
            }
            _ => {
                // Exact values alone, since the result jumps.
                let given: Vec<Both> = self.values.iter().filter(|value| value.is_given).cloned().collect();
                let (x, y) = (self.draw.below(given.len()), self.draw.below(given.len()));
                let (x, y) = (given[x].clone(), given[y].clone());
                if x.host.shape().broadcast(y.host.shape()).is_ok() {
                    let op = self.draw.of(&["Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual"]);
                    let holds = self.one(op, json!({}), &[x, y]);
                    let not = self.one("LogicalNot", json!({}), std::slice::from_ref(&holds));
                    self.bools.extend([holds, not]);
                }
                Vec::new()
            }
        }
    }

    fn given(&self, host: Tensor) -> Both {
        Both { gpu: self.engine.upload(host.clone()).unwrap(), host, is_given: true, of: "a tensor".into() }
    }

    /// Compares a value, which computes it on the GPU.
    fn check(&self, value: &Both) {
        let got = value.gpu.clone().into_host().unwrap();
        if got.dtype() == DType::Bool {
            assert_eq!(got, value.host, "{}", self.text);
            return;
        }
        for (i, (got, want)) in got.slice::<f32>().unwrap().iter().zip(value.host.slice::<f32>().unwrap()).enumerate() {
            let is_near =
                got == want || got.is_nan() && want.is_nan() || (got - want).abs() <= 2e-4 * want.abs().max(1.0);
            assert!(is_near, "{}element {i} of {} {}: {got}, wanted {want}", self.text, value.of, value.host.shape());
        }
    }

    /// Whether small differences in a value stay small, so that it may be computed on.
    fn is_tame(value: &Both) -> bool {
        let all = value.host.slice::<f32>().unwrap();
        !all.is_empty()
            && all.len() < 4000
            && value.host.rank() <= 5
            && all.iter().all(|x| x.is_nan() || x.abs() < 50.0)
    }
}

#[test]
fn values_that_wait_are_those_of_the_host() {
    let open =
        || adapters::gpus(BackendChoice::Wgpu).into_iter().next().map(|offer| offer.open().expect("it was offered"));
    for seed in 0..PROGRAMS {
        let Some(engine) = open() else { return missing(Means::Gpu, "values that a GPU computes later") };
        let (draw, text) = (Draw(seed), format!("program {seed}\n"));
        let mut program = Program { engine, draw, values: Vec::new(), bools: Vec::new(), text };
        let has_specials = seed % 4 == 3;
        for dims in [&[5, 7][..], &[7], &[5, 1], &[2, 5, 7], &[3, 4], &[4], &[300, 3], &[1], &[6, 2]] {
            let tensor = program.draw.tensor(dims, has_specials);
            let given = program.given(tensor);
            program.values.push(given);
        }
        let number = program.draw.float();
        let number = Tensor::scalar(number);
        program.values.push(Both {
            gpu: Value::Host(number.clone()),
            host: number,
            is_given: true,
            of: "a number".into(),
        });
        for _ in 0..OPS {
            let made = program.step();
            for value in made {
                if program.draw.below(4) == 0 {
                    program.check(&value);
                }
                if Program::is_tame(&value) {
                    program.values.push(value);
                } else {
                    program.check(&value);
                }
            }
        }
        program.values.iter().chain(&program.bools).for_each(|value| program.check(value));
    }
}

fn gpu(test: &str) -> Option<Box<dyn Engine>> {
    let first = adapters::gpus(BackendChoice::Wgpu).into_iter().next();
    if first.is_none() {
        missing(Means::Gpu, test);
    }
    first.map(|offer| offer.open().expect("it was offered"))
}

fn floats(value: Value) -> Vec<f32> {
    value.into_host().unwrap().slice::<f32>().unwrap().to_vec()
}

/// A chain of sums, each of which needs the one before, is computed and dropped on a stack of this size, which calls within each
/// other for all of it would exceed.
#[test]
fn a_chain_of_sums_is_as_long_as_it_likes() {
    const LENGTH: usize = 20_000;
    const STACK: usize = 1 << 20;
    let Some(engine) = gpu("a long chain of sums") else { return };
    let hosts = [Tensor::from_vec([1, 4], vec![0f32; 4]), Tensor::vector(vec![1i32])];
    let mean = json!({ "op": "Mean", "attrs": { "keep_dims": true } });
    let mut mean = with_node(&mean, &hosts, |node| engine.compile(node)).unwrap().unwrap();
    let hosts = [Tensor::from_vec([1, 1], vec![0f32]), Tensor::vector(vec![0f32; 4])];
    let product = json!({ "op": "Mul", "attrs": {} });
    let mut product = with_node(&product, &hosts, |node| engine.compile(node)).unwrap().unwrap();
    let mut chain = move || {
        // The mean of the factors is 1.
        let factors = engine.upload(Tensor::vector(vec![0.5f32, 1.0, 1.5, 1.0])).unwrap();
        let mut value = engine.upload(Tensor::from_vec([1, 4], vec![3f32; 4])).unwrap();
        let done = |outcome| match outcome {
            EngineOutcome::Done(mut values) => values.remove(0),
            EngineOutcome::Declined(_) => panic!("it was declined"),
        };
        for _ in 0..LENGTH {
            let axis = Value::Host(Tensor::vector(vec![1i32]));
            let of_row = done((mean.run)(Values::from_iter([value, axis])).unwrap());
            value = done((product.run)(Values::from_iter([of_row, factors.clone()])).unwrap());
        }
        value
    };
    let run = move || {
        drop(chain());
        floats(chain())
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(run).unwrap();
    assert_eq!(thread.join().unwrap(), [1.5, 3.0, 4.5, 3.0]);
}

/// The loss of logits whose differences are small beside them is that of the differences.
#[test]
fn a_loss_of_large_logits_is_exact() {
    let Some(engine) = gpu("a loss of large logits") else { return };
    let logits = [0f32, 0.5, 1.0].map(|more| 1e6 + more);
    let hosts = [Tensor::from_vec([2, 3], [logits, logits].concat()), Tensor::vector(vec![0i32, 2])];
    let case = json!({ "op": "SparseSoftmaxCrossEntropyWithLogits", "attrs": {} });
    let mut kernel = with_node(&case, &hosts, |node| engine.compile(node)).unwrap().unwrap();
    let inputs = [engine.upload(hosts[0].clone()).unwrap(), Value::Host(hosts[1].clone())];
    let EngineOutcome::Done(values) = (kernel.run)(Values::from_iter(inputs)).unwrap() else { panic!("declined") };
    // log(1 + e^0.5 + e^1), and that less 1.
    for (got, want) in floats(values[0].clone()).into_iter().zip([1.680_269_7, 0.680_269_7]) {
        assert!((got - want).abs() < 1e-5, "{got}, wanted {want}");
    }
}

/// The next value of a variable that waits is that of the old value, even if that is then written to.
#[test]
fn an_update_that_waits_keeps_the_old_value() {
    let Some(engine) = gpu("an update that waits") else { return };
    let attrs = meshtf_graph::Attrs::default();
    let compile = |op, inputs: &[DType]| {
        let node = meshtf_kernels::KernelNode { name: "node", op, attrs: &attrs, inputs, outputs: &[], constants: 0 };
        engine.compile(&node).unwrap().unwrap()
    };
    let mut update = compile("AssignSub", &[DType::F32; 2]);
    let mut scatter = compile("ScatterAdd", &[DType::F32, DType::I32, DType::F32]);
    let upload = |values: [f32; 4]| engine.upload(Tensor::from_vec([2, 2], values.to_vec())).unwrap();
    let run = |kernel: &mut meshtf_engine::EngineKernel, inputs: Vec<Value>| {
        let EngineOutcome::Done(mut values) = (kernel.run)(Values::from_iter(inputs)).unwrap() else {
            panic!("declined")
        };
        values.remove(0)
    };
    let old = upload([1.0, 2.0, 3.0, 4.0]);
    let new = run(&mut update, vec![old.clone(), upload([0.5, 0.5, 0.5, 0.5])]);
    let indices = Value::Host(Tensor::vector(vec![1i32]));
    let row = engine.upload(Tensor::from_vec([1, 2], vec![10f32, 20.0])).unwrap();
    // Nobody else has the old value.
    let scattered = run(&mut scatter, vec![old, indices, row]);
    assert_eq!(floats(scattered), [1.0, 2.0, 13.0, 24.0]);
    assert_eq!(floats(new), [0.5, 1.5, 2.5, 3.5]);
}
