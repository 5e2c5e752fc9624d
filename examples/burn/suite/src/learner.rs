//! burn-train's learner, on one device and on two, with generated data.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::constant::ConstantLr;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, SgdConfig};
use burn::prelude::*;
use burn::tensor::TensorData;
use burn::tensor::distributed::{DistributedConfig, ReduceOperation};
use burn::train::logger::{EvaluationProgressLogger, InMemoryMetricLogger, TrainingProgressLogger};
use burn::train::metric::{
    AccuracyMetric, IterationSpeedMetric, LearningRateMetric, LossMetric, MetricDefinition, MetricId,
};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};
use burn::train::{
    ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, MultiDeviceOptim, SupervisedTraining, TrainOutput,
    TrainStep,
};

use crate::numbers::{Draw, Numbers, fixed};
use crate::program::Program;
use crate::training::Mlp;

const WIDTH: usize = 6;
const BATCH: usize = 4;
/// Batches per epoch; each of two devices takes half of them.
const BATCHES: usize = 6;

#[derive(Clone, Debug)]
struct Item {
    x: Vec<f32>,
    y: i32,
}

#[derive(Clone, Debug)]
pub struct Batch {
    x: Tensor<2>,
    y: Tensor<1, Int>,
}

struct Stack;

impl Batcher<Item, Batch> for Stack {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Batch {
        let x = items.iter().flat_map(|item| item.x.iter().copied()).collect::<Vec<f32>>();
        let y = items.iter().map(|item| item.y).collect::<Vec<i32>>();
        Batch {
            x: Tensor::from_data(TensorData::new(x, [items.len(), WIDTH]), device),
            y: Tensor::from_data(TensorData::new(y, [items.len()]), device),
        }
    }
}

impl Mlp {
    fn classify(&self, batch: Batch) -> ClassificationOutput {
        let output = self.forward(batch.x);
        let loss = CrossEntropyLossConfig::new().init(&output.device()).forward(output.clone(), batch.y.clone());
        ClassificationOutput::new(loss, output, batch.y)
    }
}

impl TrainStep for Mlp {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Mlp {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

pub fn programs() -> Vec<Program> {
    vec![
        Program::new("learner/one device", |devices| {
            let one = ExecutionStrategy::single(devices[0].clone().autodiff());
            learn(one, &devices[0], different(), true)
        })
        .within(1e-3),
        Program::new("learner/two devices", |devices| {
            let devices: Vec<Device> = devices.iter().map(|d| d.clone().autodiff()).collect();
            let main = devices[0].clone().inner();
            learn(ExecutionStrategy::multi(devices, MultiDeviceOptim::OptimMainDevice), &main, different(), false)
        })
        .within(1e-3),
        Program::new("learner/two devices, sharded optimizer", |devices| {
            let devices: Vec<Device> = devices.iter().map(|d| d.clone().autodiff()).collect();
            let main = devices[0].clone().inner();
            learn(ExecutionStrategy::multi(devices, MultiDeviceOptim::OptimSharded), &main, different(), false)
        })
        .within(1e-3),
        // Every batch is the same one here, so that the mean of the devices' gradients is what one device would compute:
        // flex is a single device, on which no all-reduce can be run.
        Program::new("learner/distributed data parallel", |devices| {
            let main = devices[0].clone();
            if devices[0] == devices[1] {
                return learn(ExecutionStrategy::single(main.clone().autodiff()), &main, alike(BATCHES / 2), false);
            }
            let devices: Vec<Device> = devices.iter().map(|d| d.clone().autodiff()).collect();
            let mean = DistributedConfig { all_reduce_op: ReduceOperation::Mean };
            learn(ExecutionStrategy::ddp(devices, mean), &main, alike(BATCHES), false)
        })
        .within(1e-3)
        // burn 0.22's collector of gradients forgets a device that begins its next iteration before the other has asked for
        // the end of this one: both then wait forever, on any backend.
        .attempted(10, Duration::from_secs(10)),
    ]
}

/// Items of which no two are alike.
fn different() -> Vec<Item> {
    let mut draw = Draw::new(11);
    (0..BATCH * BATCHES).map(|_| Item { x: draw.floats(WIDTH, -1.0, 1.0), y: (draw.unit() * 10.0) as i32 }).collect()
}

/// The same batch, `times` times.
fn alike(times: usize) -> Vec<Item> {
    std::iter::repeat_n(&different()[..BATCH], times).flatten().cloned().collect()
}

/// Trains for two epochs. Returns the parameters and, on request, the metrics of each epoch.
fn learn(strategy: ExecutionStrategy, main: &Device, items: Vec<Item>, metrics: bool) -> Numbers {
    let loader = |items: Vec<Item>| -> Arc<dyn DataLoader<Batch>> {
        DataLoaderBuilder::new(Stack).batch_size(BATCH).set_device(main.clone()).build(InMemDataset::new(items))
    };
    let (train, valid) = (loader(items.clone()), loader(items[..2 * BATCH].to_vec()));
    let course = Course { strategy, train, valid, epochs: 2, checkpoints: None };
    let model = fixed(Mlp::new([WIDTH, 8, 10], &main.clone().autodiff()), 1);
    let optimizer = if metrics { AdamConfig::new().init() } else { SgdConfig::new().init() };
    let (model, seen) = launch(course, Learner::new(model, optimizer, ConstantLr::new(0.05)));
    let mut numbers = Numbers::default();
    numbers.parameters(&model);
    if metrics {
        numbers.metrics(&seen);
    }
    numbers
}

/// Trains for an even number of iterations, with threads that load and one that reads metrics.
pub fn long(device: &Device, iterations: usize) {
    let items: Vec<Item> = different().into_iter().cycle().take(BATCH * iterations / 2).collect();
    let loader = |items: Vec<Item>| {
        let builder = DataLoaderBuilder::new(Stack).batch_size(BATCH).num_workers(2).set_device(device.clone());
        builder.build(InMemDataset::new(items))
    };
    let (train, valid) = (loader(items.clone()), loader(items[..4 * BATCH].to_vec()));
    let strategy = ExecutionStrategy::single(device.clone().autodiff());
    let course = Course { strategy, train, valid, epochs: 2, checkpoints: None };
    let model = Mlp::new([WIDTH, 8, 10], &device.clone().autodiff());
    launch(course, Learner::new(model, AdamConfig::new().init(), ConstantLr::new(1e-3)));
}

/// The course of a training.
pub struct Course<M: TrainStep + InferenceStep> {
    pub strategy: ExecutionStrategy,
    pub train: Arc<dyn DataLoader<<M as TrainStep>::Input>>,
    pub valid: Arc<dyn DataLoader<<M as InferenceStep>::Input>>,
    pub epochs: usize,
    /// The folder in which model, optimizer and scheduler are saved after each epoch.
    pub checkpoints: Option<PathBuf>,
}

/// Trains with burn-train's learner. Returns the model, and the last value of each metric by its name: those of training, and
/// those of validation.
pub fn launch<M>(course: Course<M>, learner: Learner<M>) -> (M, BTreeMap<String, f64>)
where
    M: TrainStep<Output = ClassificationOutput>
        + InferenceStep<Output = ClassificationOutput>
        + Module
        + std::fmt::Display
        + 'static,
{
    let seen = Seen::default();
    let folder = std::env::temp_dir().join(format!("meshtf-suite-{}", std::process::id()));
    let folder = course.checkpoints.clone().unwrap_or(folder);
    let mut training = SupervisedTraining::new(&folder, course.train, course.valid)
        .metrics((LossMetric::new(), AccuracyMetric::new()))
        .metric_train(IterationSpeedMetric::new())
        .metric_train_numeric(LearningRateMetric::new())
        .num_epochs(course.epochs)
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_application_logger(None)
        .renderer(Box::new(Collect(seen.clone())))
        .with_training_strategy(course.strategy.into());
    if course.checkpoints.is_some() {
        training = training.with_default_checkpointers();
    }
    let result = training.launch(learner);
    if let Some(error) = result.error {
        panic!("{error}");
    }
    let seen = seen.lock().expect("no thread panics with it").clone();
    assert!(!seen.is_empty(), "no metric was rendered");
    (result.model, seen)
}

/// The last value of each metric.
type Seen = Arc<Mutex<BTreeMap<String, f64>>>;

/// A renderer that shows nothing.
struct Collect(Seen);

impl Collect {
    fn note(&self, split: &str, state: MetricState) {
        if let MetricState::Numeric(entry, Some(value)) = state {
            let id: &MetricId = &entry.metric_id;
            self.0.lock().expect("no thread panics with it").insert(format!("{split} {id:?}"), value.current());
        }
    }
}

impl MetricsRendererTraining for Collect {
    fn update_train(&mut self, state: MetricState) {
        self.note("training", state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.note("validation", state);
    }
}

impl MetricsRendererEvaluation for Collect {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}
}

impl MetricsRenderer for Collect {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, _definition: MetricDefinition) {}
}

impl TrainingProgressLogger for Collect {
    fn start(&mut self, _epochs: usize, _first: usize, _items: Option<usize>, _label: Option<&str>) {}
    fn update_epoch(&mut self, _epoch: usize) {}
    fn start_split(&mut self, _split: &str, _items: usize) {}
    fn update_split(&mut self, _items: usize) {}
    fn end_split(&mut self) {}
    fn end(&mut self) {}
    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for Collect {
    fn start_global_progress(&mut self, _tests: usize) {}
    fn start_test(&mut self, _name: &str, _items: usize) {}
    fn update_test_progress(&mut self, _items: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _event: String) {}
}
