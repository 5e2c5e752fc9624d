//! The models whose training the bench measures, on any number of devices.

use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams};
use burn::prelude::*;

use crate::numbers::{fixed, input, ints};
use crate::training::{Cnn, Mlp, batch};

/// One iteration on the devices; each device takes its share of the batch.
pub type Step<'a> = Box<dyn FnMut(usize) -> Tensor<1> + 'a>;
/// Starts a training on these devices.
pub type Start = for<'a> fn(&'a [Device]) -> Step<'a>;

/// The models, by their names.
pub const MODELS: [(&str, Start); 3] =
    [("mlp 784-128-10, batch 64", mlp), ("cnn 16 channels, batch 32", cnn), ("lstm 32, 20 steps, batch 16", lstm)];

/// Data-parallel training with Adam: a replica on each device, the gradients added up on the first.
fn train<'a, M: burn::module::Module + 'a>(
    devices: &'a [Device],
    model: impl Fn(&Device) -> M,
    loss: impl Fn(&M, &Device, usize, usize) -> Tensor<1> + 'a,
) -> Step<'a> {
    let main = devices[0].clone();
    let mut model = Some(fixed(model(&main.clone().autodiff()), 1));
    let mut optimizer = AdamConfig::new().init();
    Box::new(move |step| {
        let current = model.take().expect("it is put back");
        let mut sum = GradientsAccumulator::new();
        let mut seen = None;
        for (shard, device) in devices.iter().enumerate() {
            let device = device.clone().autodiff();
            let replica = if shard == 0 { current.clone() } else { current.clone().fork(&device) };
            let value = loss(&replica, &device, devices.len(), step * devices.len() + shard);
            if shard == 0 {
                seen = Some(value.clone().without_autodiff());
            }
            let grads = GradientsParams::from_grads(value.backward(), &replica);
            sum.accumulate(&current, if shard == 0 { grads } else { grads.to_device(&main, &current) });
        }
        model = Some(optimizer.step(1e-3, current, sum.grads()));
        seen.expect("there is a device")
    })
}

fn mlp(devices: &[Device]) -> Step<'_> {
    train(
        devices,
        |d| Mlp::new([784, 128, 10], d),
        |model, device, shares, seed| {
            let (x, y) = batch(64 / shares, 784, seed, device);
            CrossEntropyLossConfig::new().init(device).forward(model.forward(x), y)
        },
    )
}

fn cnn(devices: &[Device]) -> Step<'_> {
    train(
        devices,
        |d| Cnn::new(16, 28, d),
        |model, device, shares, seed| {
            let rows = 32 / shares;
            let (x, y) = (input([rows, 1, 28, 28], seed as u64, device), ints([rows], 10, seed as u64, device));
            CrossEntropyLossConfig::new().init(device).forward(model.forward(x, None), y)
        },
    )
}

#[derive(burn::module::Module, Debug)]
struct Recurrent {
    layer: Lstm,
    out: Linear,
}

pub fn lstm(devices: &[Device]) -> Step<'_> {
    let model =
        |d: &Device| Recurrent { layer: LstmConfig::new(16, 32, true).init(d), out: LinearConfig::new(32, 4).init(d) };
    train(devices, model, |model, device, shares, seed| {
        let rows = 16 / shares;
        let (x, y) = (input([rows, 20, 16], seed as u64, device), input([rows, 4], seed as u64 + 1, device));
        let (_, state) = model.layer.forward(x, None);
        MseLoss::new().forward(model.out.forward(state.hidden), y, Reduction::Mean)
    })
}
