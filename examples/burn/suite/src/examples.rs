//! The models of burn's own examples `guide`, `mnist` and `text-classification`, trained like those, with generated data.
//!
//! Dropout draws other numbers on the mesh than on flex. So each model is trained without dropout, and all its numbers are
//! compared; and longer with dropout, and its accuracy is checked.

mod guide;
mod mnist;
mod text;

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::prelude::*;
use burn::train::{ExecutionStrategy, MultiDeviceOptim};

use crate::numbers::Draw;
use crate::program::Program;

/// A picture's width and height.
const SIDE: usize = 28;
const CLASSES: usize = 10;

pub fn programs() -> Vec<Program> {
    vec![
        Program::new("example/guide", |devices| guide::train(devices, one(devices), 0.0)).within(1e-3),
        Program::new("example/guide, with dropout", |devices| guide::train(devices, one(devices), 0.5)),
        Program::new("example/mnist", |devices| mnist::train(devices, one(devices), 0.0)).within(1e-3),
        Program::new("example/mnist, two devices", |devices| mnist::train(devices, both(devices), 0.0)).within(1e-3),
        Program::new("example/mnist, with dropout", |devices| mnist::train(devices, one(devices), 0.25)),
        Program::new("example/text classification", |devices| text::train(devices, one(devices), 0.0)).within(1e-3),
        Program::new("example/text classification, two devices", |devices| text::train(devices, both(devices), 0.0))
            .within(1e-3),
        Program::new("example/text classification, with dropout", |devices| text::train(devices, one(devices), 0.1)),
    ]
}

fn one(devices: &[Device]) -> ExecutionStrategy {
    ExecutionStrategy::single(devices[0].clone().autodiff())
}

/// Both devices train, each with its share of the optimizer's work.
fn both(devices: &[Device]) -> ExecutionStrategy {
    let devices = devices.iter().map(|device| device.clone().autodiff()).collect();
    ExecutionStrategy::multi(devices, MultiDeviceOptim::OptimSharded)
}

/// Batches of `items` in an order that is drawn once for every device, loaded by a thread of its own.
fn loader<I, B>(
    batcher: impl Batcher<I, B> + 'static,
    items: Vec<I>,
    batch: usize,
    device: &Device,
) -> Arc<dyn DataLoader<B>>
where
    I: Clone + Send + Sync + std::fmt::Debug + 'static,
    B: Clone + Send + std::fmt::Debug + 'static,
{
    DataLoaderBuilder::new(batcher)
        .batch_size(batch)
        .shuffle(42)
        .num_workers(1)
        .set_device(device.clone())
        .build(InMemDataset::new(items))
}

/// A picture of a class, its pixels from 0 to 255.
#[derive(Clone, Debug)]
struct Picture {
    pixels: Vec<f32>,
    class: i32,
}

/// Pictures of all classes in turn: a bright bar on noise, whose height depends on the class.
fn pictures(count: usize, seed: u64) -> Vec<Picture> {
    let mut draw = Draw::new(seed);
    (0..count)
        .map(|i| {
            let class = i % CLASSES;
            let mut pixels = draw.floats(SIDE * SIDE, 0.0, 80.0);
            let (left, width) = ((draw.unit() * 8.0) as usize, 12 + (draw.unit() * 8.0) as usize);
            for row in 2 * class + 3..2 * class + 6 {
                pixels[row * SIDE + left..row * SIDE + left + width].iter_mut().for_each(|pixel| *pixel += 160.0);
            }
            Picture { pixels, class: class as i32 }
        })
        .collect()
}

/// Whether at least nine tenths of these rows of logits are highest at their class.
fn has_learned(logits: Tensor<2>, classes: Tensor<1, Int>) -> f64 {
    let rows = classes.dims()[0];
    let right: i64 = logits.argmax(1).squeeze_dim::<1>(1).equal(classes).int().sum().into_scalar();
    f64::from(u8::from(10 * right as usize >= 9 * rows))
}
