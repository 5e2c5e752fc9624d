//! Trainings on one device: the losses of all iterations, and the parameters at the end.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::*;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::*;
use burn::prelude::*;
use burn::store::ModuleRecord;

use crate::numbers::{Numbers, fixed, floats, input, ints};
use crate::program::Program;

#[derive(Module, Debug)]
pub struct Mlp {
    hidden: Linear,
    out: Linear,
    act: Relu,
}

impl Mlp {
    pub fn new([width, hidden, out]: [usize; 3], device: &Device) -> Mlp {
        Mlp {
            hidden: LinearConfig::new(width, hidden).init(device),
            out: LinearConfig::new(hidden, out).init(device),
            act: Relu::new(),
        }
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.out.forward(self.act.forward(self.hidden.forward(x)))
    }
}

#[derive(Module, Debug)]
pub struct Cnn {
    conv: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
    dropout: Dropout,
    out: Linear,
}

impl Cnn {
    /// For one-channel images of `size` by `size`, an even number; ten classes.
    pub fn new(channels: usize, size: usize, device: &Device) -> Cnn {
        Cnn {
            conv: Conv2dConfig::new([1, channels], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                // The norm takes a bias away again: its gradient would be rounding noise, which Adam makes steps of.
                .with_bias(false)
                .init(device),
            norm: BatchNormConfig::new(channels).init(device),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            dropout: DropoutConfig::new(0.5).init(),
            out: LinearConfig::new(channels * size * size / 4, 10).init(device),
        }
    }

    /// `mask` is what a dropout layer would draw: without one, there is no dropout here.
    pub fn forward(&self, x: Tensor<4>, mask: Option<Tensor<2>>) -> Tensor<2> {
        let x = self.pool.forward(burn::tensor::activation::relu(self.norm.forward(self.conv.forward(x))));
        let x: Tensor<2> = x.flatten(1, 3);
        self.out.forward(match mask {
            Some(mask) => x * mask,
            None => x,
        })
    }

    /// The model for inference: dropout passes everything.
    fn evaluate(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(burn::tensor::activation::relu(self.norm.forward(self.conv.forward(x))));
        self.out.forward(self.dropout.forward(x.flatten(1, 3)))
    }
}

/// Makes an optimizer in its first state.
type Start = fn() -> ModuleOptimizer;

/// Trains `model` for `steps` steps; `loss` computes the loss of one.
pub fn train<M: Module>(
    numbers: &mut Numbers,
    mut model: M,
    mut optimizer: ModuleOptimizer,
    rate: f64,
    steps: usize,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> M {
    for step in 0..steps {
        let value = loss(&model, step);
        numbers.push(format!("loss {step}"), value.clone().without_autodiff());
        let grads = GradientsParams::from_grads(value.backward(), &model);
        model = optimizer.step(rate, model, grads);
    }
    numbers.parameters(&model);
    model
}

/// One batch for [`Mlp`]: the numbers of another seed each step.
pub fn batch(rows: usize, width: usize, step: usize, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    (input([rows, width], 100 + step as u64, device), ints([rows], 10, 500 + step as u64, device))
}

pub fn programs() -> Vec<Program> {
    let mut programs = vec![
        Program::new("training/mlp with Adam", |devices| mlp(devices, AdamConfig::new().init())),
        Program::new("training/mlp 784-128-10", |devices| {
            let device = devices[0].clone().autodiff();
            let mut numbers = Numbers::default();
            train(
                &mut numbers,
                fixed(Mlp::new([784, 128, 10], &device), 1),
                AdamConfig::new().init(),
                1e-3,
                5,
                |model, step| {
                    let (x, y) = batch(64, 784, step, &device);
                    CrossEntropyLossConfig::new().init(&device).forward(model.forward(x), y)
                },
            );
            numbers
        })
        .within(1e-3),
        Program::new("training/cnn", cnn),
        Program::new("training/lstm", lstm).within(1e-3),
        Program::new("training/gru", gru).within(1e-3),
        Program::new("training/transformer encoder", transformer).within(1e-3),
        Program::new("training/embedding", embedding),
        Program::new("training/save and load", records),
        Program::new("training/read every 100th", every_hundredth).within(1e-3),
        Program::new("training/gradient accumulation", accumulation),
        Program::new("training/frozen layer", |devices| {
            let device = devices[0].clone().autodiff();
            let mut numbers = Numbers::default();
            let mut model = fixed(Mlp::new([6, 8, 10], &device), 1);
            model.hidden = model.hidden.freeze();
            train(&mut numbers, model, SgdConfig::new().init(), 0.1, 5, |model, step| step_loss(model, step, &device));
            numbers
        }),
    ];
    let clip = || Some(GradientClippingConfig::Norm(0.5));
    let optimizers: Vec<(&str, Start)> = vec![
        ("SGD", || SgdConfig::new().init()),
        ("SGD with momentum", || SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init()),
        ("SGD with Nesterov momentum and weight decay", || {
            let momentum = MomentumConfig::new().with_nesterov(true);
            SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(Some(WeightDecayConfig::new(0.01))).init()
        }),
        ("AdamW with weight decay", || AdamWConfig::new().with_weight_decay(0.05).init()),
        ("Adam with amsgrad", || AdamConfig::new().with_amsgrad(true).init()),
        ("Adam with values clipped", || {
            AdamConfig::new().with_grad_clipping(Some(GradientClippingConfig::Value(0.05))).init()
        }),
        ("RMSProp", || RmsPropConfig::new().init()),
        ("AdaGrad", || AdaGradConfig::new().init()),
        ("Lion", || LionConfig::new().init()),
        ("Lamb", || LambConfig::new().init()),
        ("Adan", || AdanConfig::new().init()),
        ("Adafactor", || AdafactorConfig::new().init()),
    ];
    for (name, optimizer) in optimizers {
        programs.push(Program::new(format!("training/{name}"), move |devices| mlp(devices, optimizer())).within(1e-3));
    }
    programs.push(Program::new("training/Muon", muon).within(1e-3));
    for (name, search) in [("LBFGS", LineSearchFn::None), ("LBFGS with a line search", LineSearchFn::StrongWolfe)] {
        programs.push(Program::new(format!("training/{name}"), move |devices| lbfgs(devices, search)).within(1e-3));
    }
    programs.push(
        Program::new("training/AdamW with norms clipped", move |devices| {
            mlp(devices, AdamWConfig::new().with_grad_clipping(clip()).init())
        })
        .within(1e-3),
    );
    programs
}

/// Muon is for matrices alone: two of them, one wide and one tall.
fn muon(devices: &[Device]) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(&device);
    let model = vec![layer(6, 8), layer(8, 10)];
    train(&mut numbers, fixed(model, 1), MuonConfig::new().init(), 1e-2, 6, |model, step| {
        let (x, y) = batch(8, 6, step, &device);
        CrossEntropyLossConfig::new().init(&device).forward(model[1].forward(model[0].forward(x).tanh()), y)
    });
    numbers
}

/// LBFGS computes the loss several times per step, and reads many values.
fn lbfgs(devices: &[Device], search: LineSearchFn) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let mut optimizer = LBFGSConfig::new().with_max_iter(4).with_line_search_fn(search).init();
    let mut model = fixed(Mlp::new([6, 8, 10], &device), 1);
    for step in 0..3 {
        let value;
        (model, value) = optimizer.step(0.1, model, |model: Mlp| {
            let loss = step_loss(&model, 0, &device);
            let value = loss.clone().without_autodiff().into_scalar();
            (value, GradientsParams::from_grads(loss.backward(), &model))
        });
        numbers.push_all(format!("loss {step}"), vec![value]);
    }
    numbers.parameters(&model);
    numbers
}

fn step_loss(model: &Mlp, step: usize, device: &Device) -> Tensor<1> {
    let (x, y) = batch(8, 6, step, device);
    CrossEntropyLossConfig::new().init(device).forward(model.forward(x), y)
}

fn mlp(devices: &[Device], optimizer: ModuleOptimizer) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    train(&mut numbers, fixed(Mlp::new([6, 8, 10], &device), 1), optimizer, 1e-2, 10, |model, step| {
        step_loss(model, step, &device)
    });
    numbers
}

fn cnn(devices: &[Device]) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let model =
        train(&mut numbers, fixed(Cnn::new(4, 8, &device), 1), AdamConfig::new().init(), 1e-2, 5, |model, step| {
            let x = input([6, 1, 8, 8], 100 + step as u64, &device);
            let mask = ints([6, 64], 2, 200 + step as u64, &device).float() * 2.0;
            let y = ints([6], 10, 300 + step as u64, &device);
            CrossEntropyLossConfig::new().init(&device).forward(model.forward(x, Some(mask)), y)
        });
    let x = input([3, 1, 8, 8], 7, &devices[0]);
    numbers.push("evaluation", model.valid().evaluate(x));
    numbers
}

#[derive(Module, Debug)]
struct Recurrent<L: Module> {
    layer: L,
    out: Linear,
}

fn lstm(devices: &[Device]) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let model =
        Recurrent { layer: LstmConfig::new(3, 6, true).init(&device), out: LinearConfig::new(6, 2).init(&device) };
    train(&mut numbers, fixed(model, 1), AdamConfig::new().init(), 1e-2, 5, |model, step| {
        let (x, y) = (input([4, 7, 3], 100 + step as u64, &device), input([4, 2], 200 + step as u64, &device));
        let (_, state) = model.layer.forward(x, None);
        MseLoss::new().forward(model.out.forward(state.hidden), y, Reduction::Mean)
    });
    numbers
}

fn gru(devices: &[Device]) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let model =
        Recurrent { layer: GruConfig::new(3, 6, true).init(&device), out: LinearConfig::new(6, 2).init(&device) };
    train(&mut numbers, fixed(model, 1), AdamConfig::new().init(), 1e-2, 5, |model, step| {
        let (x, y) = (input([4, 7, 3], 100 + step as u64, &device), input([4, 7, 2], 200 + step as u64, &device));
        MseLoss::new().forward(model.out.forward(model.layer.forward(x, None)), y, Reduction::Mean)
    });
    numbers
}

#[derive(Module, Debug)]
struct Text {
    words: Embedding,
    places: Embedding,
    encoder: TransformerEncoder,
    out: Linear,
}

fn transformer(devices: &[Device]) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let model = Text {
        words: EmbeddingConfig::new(20, 8).init(&device),
        places: EmbeddingConfig::new(5, 8).init(&device),
        encoder: TransformerEncoderConfig::new(8, 16, 2, 2).with_dropout(0.0).init(&device),
        out: LinearConfig::new(8, 4).init(&device),
    };
    let logits = |model: &Text, words: Tensor<2, Int>| {
        let [batch, length] = words.dims();
        let places =
            Tensor::<1, Int>::arange(0..length as i64, &words.device()).reshape([1, length]).repeat_dim(0, batch);
        let x = model.words.forward(words) + model.places.forward(places);
        let x: Tensor<2> = model.encoder.forward(TransformerEncoderInput::new(x)).mean_dim(1).squeeze_dim(1);
        model.out.forward(x)
    };
    let model = train(&mut numbers, fixed(model, 1), AdamConfig::new().init(), 1e-2, 4, |model, step| {
        let y = ints([4], 4, 300 + step as u64, &device);
        CrossEntropyLossConfig::new().init(&device).forward(logits(model, ints([4, 5], 20, step as u64, &device)), y)
    });
    numbers.push("evaluation", logits(&model.valid(), ints([2, 5], 20, 9, &devices[0])));
    numbers
}

fn embedding(devices: &[Device]) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let model = fixed(EmbeddingConfig::new(12, 4).init(&device), 1);
    train(&mut numbers, model, SgdConfig::new().init(), 0.5, 6, |model, step| {
        let vectors = model.forward(ints([3, 4], 12, step as u64, &device));
        MseLoss::new().forward(vectors, floats([3, 4, 4], 50 + step as u64, 0.0, 1.0, &device), Reduction::Mean)
    });
    numbers
}

/// Trains, saves the model and the optimizer as bytes, loads both into new ones, and continues, with the same results.
fn records(devices: &[Device]) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let mut optimizer = AdamConfig::new().init();
    let mut model = fixed(Mlp::new([6, 8, 10], &device), 1);
    let step = |model: Mlp, optimizer: &mut ModuleOptimizer, step| {
        let loss = step_loss(&model, step, &device);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        optimizer.step(1e-2, model, grads)
    };
    for i in 0..3 {
        model = step(model, &mut optimizer, i);
    }
    let bytes = model.clone().into_record().into_bytes().expect("a record as bytes");
    let state = optimizer.into_bytes().expect("an optimizer's state as bytes");
    let record = ModuleRecord::from_bytes(bytes).expect("the record that was written");
    let mut loaded = fixed(Mlp::new([6, 8, 10], &device), 2).load_record(record);
    let mut optimizer = AdamConfig::new().init().from_bytes(state).expect("the state that was written");
    numbers.parameters(&loaded);
    for i in 3..6 {
        loaded = step(loaded, &mut optimizer, i);
    }
    numbers.parameters(&loaded);
    numbers
}

/// No value is read for 100 iterations.
fn every_hundredth(devices: &[Device]) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let (mut model, mut optimizer) = (fixed(Mlp::new([6, 8, 10], &device), 1), SgdConfig::new().init());
    for step in 0..201 {
        let loss = step_loss(&model, step % 7, &device);
        if step % 100 == 0 {
            numbers.push(format!("loss {step}"), loss.clone().without_autodiff());
        }
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, grads);
    }
    numbers.parameters(&model);
    numbers
}

fn accumulation(devices: &[Device]) -> Numbers {
    let device = devices[0].clone().autodiff();
    let mut numbers = Numbers::default();
    let (mut model, mut optimizer) = (fixed(Mlp::new([6, 8, 10], &device), 1), AdamConfig::new().init());
    let mut accumulator = GradientsAccumulator::new();
    for step in 0..9 {
        let loss = step_loss(&model, step, &device);
        accumulator.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        if step % 3 == 2 {
            model = optimizer.step(1e-2, model, accumulator.grads());
        }
    }
    numbers.parameters(&model);
    numbers
}
