//! `text-classification`: embeddings of tokens and positions, a transformer encoder with norms first and a padding mask, a linear
//! head on the first position; Adam with weight decay, and Noam's learning rate.

use burn::data::dataloader::batcher::Batcher;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::module::Module;
use burn::nn::attention::{SeqLengthOption, generate_padding_mask};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::prelude::*;
use burn::train::{ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, TrainOutput, TrainStep};

use super::{has_learned, loader};
use crate::learner::{Course, launch};
use crate::numbers::{Draw, Numbers, fixed_within};

const TOPICS: usize = 4;
/// Token 0 pads, 1 to 4 name a topic, and the others have no meaning.
const TOKENS: usize = 48;
const LENGTH: usize = 14;
const WIDTH: usize = 32;
const BATCH: usize = 16;

#[derive(Module, Debug)]
struct Model {
    encoder: TransformerEncoder,
    tokens: Embedding,
    positions: Embedding,
    out: Linear,
}

impl Model {
    fn new(dropout: f64, device: &Device) -> Model {
        let encoder = TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 4, 2)
            .with_norm_first(true)
            .with_quiet_softmax(true)
            .with_dropout(dropout);
        Model {
            encoder: encoder.init(device),
            tokens: EmbeddingConfig::new(TOKENS, WIDTH).init(device),
            positions: EmbeddingConfig::new(LENGTH, WIDTH).init(device),
            out: LinearConfig::new(WIDTH, TOPICS).init(device),
        }
    }

    fn classify(&self, batch: Batch) -> ClassificationOutput {
        let device = &self.tokens.devices()[0];
        let (tokens, topics) = (batch.tokens.to_device(device), batch.topics.to_device(device));
        let [count, length] = tokens.dims();
        let positions = Tensor::<1, Int>::arange(0..length as i64, device).reshape([1, length]).repeat_dim(0, count);
        let x = (self.positions.forward(positions) + self.tokens.forward(tokens)) / 2;
        let x = self.encoder.forward(TransformerEncoderInput::new(x).mask_pad(batch.padding.to_device(device)));
        let output = self.out.forward(x).slice([0..count, 0..1]).reshape([count, TOPICS]);
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        ClassificationOutput::new(loss.forward(output.clone(), topics.clone()), output, topics)
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
    tokens: Tensor<2, Int>,
    topics: Tensor<1, Int>,
    padding: Tensor<2, Bool>,
}

#[derive(Clone, Debug)]
struct Sentence {
    tokens: Vec<usize>,
    topic: usize,
}

/// Sentences of 5 to 12 tokens, of which every third names the topic.
fn sentences(count: usize, seed: u64) -> Vec<Sentence> {
    let mut draw = Draw::new(seed);
    let mut below = |end: usize| (draw.unit() * end as f64) as usize;
    (0..count)
        .map(|i| {
            let topic = i % TOPICS;
            let length = 5 + below(8);
            let mut tokens: Vec<usize> = (0..length).map(|_| 1 + TOPICS + below(TOKENS - TOPICS - 1)).collect();
            let from = below(3);
            tokens.iter_mut().skip(from).step_by(3).for_each(|token| *token = 1 + topic);
            Sentence { tokens, topic }
        })
        .collect()
}

struct Padded;

impl Batcher<Sentence, Batch> for Padded {
    fn batch(&self, items: Vec<Sentence>, device: &Device) -> Batch {
        let topics = items.iter().map(|item| Tensor::<1, Int>::from_data([item.topic as i64], device)).collect();
        let tokens = items.into_iter().map(|item| item.tokens).collect();
        let padded = generate_padding_mask(0, tokens, SeqLengthOption::Fixed(LENGTH), device);
        Batch { tokens: padded.tensor, topics: Tensor::cat(topics, 0), padding: padded.mask }
    }
}

pub fn train(devices: &[Device], strategy: ExecutionStrategy, dropout: f64) -> Numbers {
    let device = &devices[0];
    device.seed(42);
    let train = loader(Padded, sentences(if dropout > 0.0 { 160 } else { 64 }, 1), BATCH, device);
    let valid = loader(Padded, sentences(32, 2), BATCH, device);
    let epochs = if dropout > 0.0 { 5 } else { 2 };
    let course = Course { strategy, train, valid, epochs, checkpoints: None };
    let model = fixed_within(Model::new(dropout, &device.clone().autodiff()), 1, 0.2);
    let optimizer = AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(5e-5))).init();
    let rate = NoamLrSchedulerConfig::new(0.1).with_warmup_steps(20).with_model_size(WIDTH).init();
    let (model, seen) = launch(course, Learner::new(model, optimizer, rate.expect("a schedule")));

    let mut numbers = Numbers::default();
    let answer = model.classify(Padded.batch(sentences(40, 3), device));
    if dropout > 0.0 {
        numbers.push_all("has learned", vec![has_learned(answer.output, answer.targets)]);
    } else {
        numbers.push("logits", answer.output);
        numbers.parameters(&model);
        numbers.metrics(&seen);
    }
    numbers
}
