//! `guide`: two convolutions, an adaptive pool, two linear layers; Adam; each picture is uploaded and normalised by itself.

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig, Relu};
use burn::optim::AdamConfig;
use burn::prelude::*;
use burn::tensor::TensorData;
use burn::train::{ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, TrainOutput, TrainStep};

use super::{CLASSES, Picture, SIDE, has_learned, loader, pictures};
use crate::learner::{Course, launch};
use crate::numbers::{Numbers, fixed_within};

const HIDDEN: usize = 64;
const BATCH: usize = 20;

#[derive(Module, Debug)]
struct Model {
    first: Conv2d,
    second: Conv2d,
    pool: AdaptiveAvgPool2d,
    dropout: Dropout,
    hidden: Linear,
    out: Linear,
    activation: Relu,
}

impl Model {
    fn new(dropout: f64, device: &Device) -> Model {
        Model {
            first: Conv2dConfig::new([1, 8], [3, 3]).init(device),
            second: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([8, 8]).init(),
            dropout: DropoutConfig::new(dropout).init(),
            hidden: LinearConfig::new(16 * 8 * 8, HIDDEN).init(device),
            out: LinearConfig::new(HIDDEN, CLASSES).init(device),
            activation: Relu::new(),
        }
    }

    fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let count = images.dims()[0];
        let x = self.dropout.forward(self.first.forward(images.reshape([count, 1, SIDE, SIDE])));
        let x = self.activation.forward(self.dropout.forward(self.second.forward(x)));
        let x = self.hidden.forward(self.pool.forward(x).reshape([count, 16 * 8 * 8]));
        self.out.forward(self.activation.forward(self.dropout.forward(x)))
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

struct OneByOne;

impl Batcher<Picture, Batch> for OneByOne {
    fn batch(&self, items: Vec<Picture>, device: &Device) -> Batch {
        let (mut images, mut classes) = (Vec::new(), Vec::new());
        for Picture { pixels, class } in items {
            let image = Tensor::<2>::from_data(TensorData::new(pixels, [SIDE, SIDE]), device);
            images.push((image.reshape([1, SIDE, SIDE]) / 255 - 0.1307) / 0.3081);
            classes.push(Tensor::<1, Int>::from_data([class], device));
        }
        Batch { images: Tensor::cat(images, 0), classes: Tensor::cat(classes, 0) }
    }
}

pub fn train(devices: &[Device], strategy: ExecutionStrategy, dropout: f64) -> Numbers {
    let device = &devices[0];
    device.seed(42);
    let train = loader(OneByOne, pictures(if dropout > 0.0 { 200 } else { 60 }, 1), BATCH, device);
    let valid = loader(OneByOne, pictures(30, 2), BATCH, device);
    let epochs = if dropout > 0.0 { 6 } else { 2 };
    let course = Course { strategy, train, valid, epochs, checkpoints: None };
    let model = fixed_within(Model::new(dropout, &device.clone().autodiff()), 1, 0.1);
    let (model, seen) = launch(course, Learner::new(model, AdamConfig::new().init(), 1e-3));

    let mut numbers = Numbers::default();
    let Batch { images, classes } = OneByOne.batch(pictures(40, 3), device);
    let logits = model.forward(images);
    if dropout > 0.0 {
        numbers.push_all("has learned", vec![has_learned(logits, classes)]);
    } else {
        numbers.push("logits", logits);
        numbers.parameters(&model);
        numbers.metrics(&seen);
    }
    numbers
}
