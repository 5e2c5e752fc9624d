//! `mnist`: blocks of convolution, batch norm and max pool, then linear layers with GELU; AdamW with cautious weight decay and a
//! rate that is composed of three schedules; the model is saved after each epoch.

use burn::data::dataloader::batcher::Batcher;
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Gelu, Linear, LinearConfig, PaddingConfig2d, Relu};
use burn::optim::AdamWConfig;
use burn::prelude::*;
use burn::tensor::TensorData;
use burn::train::{ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, TrainOutput, TrainStep};

use super::{CLASSES, Picture, SIDE, has_learned, loader, pictures};
use crate::learner::{Course, launch};
use crate::numbers::{Numbers, fixed_within};

/// Instead of 64 in burn's example, which takes ten times as long.
const CHANNELS: usize = 16;
const HIDDEN: usize = 64;
const BATCH: usize = 20;

#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm,
    activation: Relu,
    pool: MaxPool2d,
}

impl Block {
    fn new(channels: [usize; 2], device: &Device) -> Block {
        Block {
            conv: Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Valid).init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
            activation: Relu::new(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.pool.forward(self.activation.forward(self.norm.forward(self.conv.forward(x))))
    }
}

#[derive(Module, Debug)]
struct Model {
    first: Block,
    second: Block,
    dropout: Dropout,
    linear: [Linear; 3],
    activation: Gelu,
}

impl Model {
    fn new(dropout: f64, device: &Device) -> Model {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Model {
            first: Block::new([1, CHANNELS], device),
            second: Block::new([CHANNELS, CHANNELS], device),
            dropout: DropoutConfig::new(dropout).init(),
            // Of 28 by 28 the two blocks leave 5 by 5.
            linear: [linear(CHANNELS * 5 * 5, HIDDEN), linear(HIDDEN, HIDDEN), linear(HIDDEN, CLASSES)],
            activation: Gelu::new(),
        }
    }

    fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let count = images.dims()[0];
        let x = images.reshape([count, 1, SIDE, SIDE]).detach();
        let x = self.second.forward(self.first.forward(x)).flatten(1, 3);
        let [first, second, last] = &self.linear;
        let x = self.dropout.forward(self.activation.forward(first.forward(x)));
        last.forward(self.dropout.forward(self.activation.forward(second.forward(x))))
    }

    fn classify(&self, batch: Batch) -> ClassificationOutput {
        let output = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        ClassificationOutput::new(loss.forward(output.clone(), batch.classes.clone()), output, batch.classes)
    }
}

impl TrainStep for Model {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Model {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

#[derive(Clone, Debug)]
struct Batch {
    images: Tensor<3>,
    classes: Tensor<1, Int>,
}

/// Puts a batch together on flex, and uploads it whole.
struct Whole;

impl Batcher<Picture, Batch> for Whole {
    fn batch(&self, items: Vec<Picture>, device: &Device) -> Batch {
        let here = Device::flex();
        let image = |picture: &Picture| {
            let image = Tensor::<3>::from_data(TensorData::new(picture.pixels.clone(), [1, SIDE, SIDE]), &here);
            (image / 255 - 0.1307) / 0.3081
        };
        let images = Tensor::cat(items.iter().map(image).collect(), 0);
        let classes: Vec<i32> = items.iter().map(|picture| picture.class).collect();
        let count = classes.len();
        Batch {
            images: Tensor::from_data(images.into_data(), device),
            classes: Tensor::from_data(TensorData::new(classes, [count]), device),
        }
    }
}

pub fn train(devices: &[Device], strategy: ExecutionStrategy, dropout: f64) -> Numbers {
    let device = &devices[0];
    device.seed(42);
    let train = loader(Whole, pictures(if dropout > 0.0 { 200 } else { 80 }, 1), BATCH, device);
    let valid = loader(Whole, pictures(30, 2), BATCH, device);
    let epochs = if dropout > 0.0 { 4 } else { 2 };
    let folder = std::env::temp_dir().join(format!("meshtf-suite-mnist-{}", std::process::id()));
    let course = Course { strategy, train, valid, epochs, checkpoints: Some(folder.clone()) };
    let model = fixed_within(Model::new(dropout, &device.clone().autodiff()), 1, 0.1);
    let optimizer = AdamWConfig::new().with_cautious_weight_decay(true).with_weight_decay(5e-5).init();
    // The product of the three: warmed up over the first iterations, then falling.
    let rate = ComposedLrSchedulerConfig::new()
        .cosine(CosineAnnealingLrSchedulerConfig::new(1.0, 200))
        .linear(LinearLrSchedulerConfig::new(1e-2, 1.0, 4))
        .linear(LinearLrSchedulerConfig::new(3e-3, 1e-3, 100));
    let (model, seen) = launch(course, Learner::new(model, optimizer, rate.init().expect("three schedules")));
    let saved = std::fs::read_dir(folder.join("checkpoint")).expect("the folder of checkpoints").count();
    std::fs::remove_dir_all(&folder).expect("a folder that this made");

    let mut numbers = Numbers::default();
    let Batch { images, classes } = Whole.batch(pictures(40, 3), device);
    let logits = model.forward(images);
    numbers.push_all("files saved", vec![saved as f64]);
    if dropout > 0.0 {
        numbers.push_all("has learned", vec![has_learned(logits, classes)]);
    } else {
        numbers.push("logits", logits);
        numbers.parameters(&model);
        numbers.metrics(&seen);
    }
    numbers
}
