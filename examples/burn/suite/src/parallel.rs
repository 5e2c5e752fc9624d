//! Programs on two devices.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams, SgdConfig};
use burn::prelude::*;

use crate::numbers::{Numbers, fixed, input, ints};
use crate::program::Program;
use crate::training::{Mlp, batch, train};

pub fn programs() -> Vec<Program> {
    vec![
        Program::new("parallel/data", |devices| data(devices, 1, 8)).within(1e-3),
        Program::new("parallel/data, read every 5th", |devices| data(devices, 5, 15)).within(1e-3),
        Program::new("parallel/model", model),
        Program::new("parallel/moves", moves),
        Program::new("parallel/threads", threads),
        Program::new("parallel/a thread a device", thread_a_device),
    ]
}

/// A replica on each device, its gradients added up on the first.
fn data(devices: &[Device], every: usize, steps: usize) -> Numbers {
    let mut numbers = Numbers::default();
    let main = devices[0].clone();
    let mut model = fixed(Mlp::new([12, 16, 10], &main.clone().autodiff()), 1);
    let mut optimizer = AdamConfig::new().init();
    for step in 0..steps {
        let mut sum = GradientsAccumulator::new();
        for (shard, device) in devices.iter().enumerate() {
            let device = device.clone().autodiff();
            let (x, y) = batch(8, 12, 2 * step + shard, &device);
            let replica = model.clone().fork(&device);
            let loss = CrossEntropyLossConfig::new().init(&device).forward(replica.forward(x), y);
            if step % every == 0 {
                numbers.push(format!("loss {step} of {shard}"), loss.clone().without_autodiff());
            }
            sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &replica).to_device(&main, &model));
        }
        model = optimizer.step(1e-2, model, sum.grads());
    }
    numbers.parameters(&model);
    numbers
}

#[derive(Module, Debug)]
struct Halves {
    first: Linear,
    second: Linear,
}

/// One half of the model on each device; the activations between them move, and their gradient moves back.
fn model(devices: &[Device]) -> Numbers {
    let (here, there) = (devices[0].clone().autodiff(), devices[1].clone().autodiff());
    let mut numbers = Numbers::default();
    let halves = Halves {
        first: fixed(LinearConfig::new(6, 8).init(&here), 1),
        second: fixed(LinearConfig::new(8, 10).init(&there), 2),
    };
    train(&mut numbers, halves, SgdConfig::new().init(), 0.1, 6, |model, step| {
        let x = input([5, 6], 100 + step as u64, &here);
        let between = burn::tensor::activation::relu(model.first.forward(x)).to_device(&there);
        let y = ints([5], 10, 200 + step as u64, &there);
        CrossEntropyLossConfig::new().init(&there).forward(model.second.forward(between), y)
    });
    numbers
}

/// Tensors of every kind go back and forth, and to this process's own memory.
fn moves(devices: &[Device]) -> Numbers {
    let mut numbers = Numbers::default();
    let mut x = input([3, 4], 1, &devices[0]);
    for i in 0..6 {
        x = x.to_device(&devices[(i + 1) % 2]) * 1.5 + 0.25;
    }
    numbers.push("floats", x.clone());
    let ints = ints([5], 9, 1, &devices[0]).to_device(&devices[1]) + 1;
    numbers.push_int("ints", ints.clone());
    numbers.push_int("booleans", ints.greater_elem(4).to_device(&devices[0]).bool_not().int());
    let local = x.to_device(&Device::flex()) * 2.0;
    numbers.push("here", local.clone());
    numbers.push("and back", local.to_device(&devices[1]) - 1.0);
    // The same tensor moved twice, and used where it was.
    let y = input([2, 2], 3, &devices[0]);
    let (a, b) = (y.clone().to_device(&devices[1]), y.clone().to_device(&devices[1]));
    numbers.push("twice", a * b);
    numbers.push("where it was", y.sqrt().mul_scalar(0.0).is_nan().float());
    numbers
}

/// Four threads on one device, with tensors of their own and one that they share.
fn threads(devices: &[Device]) -> Numbers {
    let mut numbers = Numbers::default();
    let shared = input([8, 8], 1, &devices[0]);
    let results: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..4)
            .map(|i| {
                let (shared, device) = (shared.clone(), devices[0].clone());
                scope.spawn(move || {
                    let mut x = input([8, 8], 10 + i, &device);
                    for _ in 0..5 {
                        x = x.matmul(shared.clone()).tanh();
                    }
                    x.into_data().iter::<f64>().collect()
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a thread that ends")).collect()
    });
    for (i, result) in results.into_iter().enumerate() {
        numbers.push_all(format!("thread {i}"), result);
    }
    numbers.push("shared", shared);
    numbers
}

/// A thread trains on each device, like burn-train's workers; the first device collects the results.
fn thread_a_device(devices: &[Device]) -> Numbers {
    let mut numbers = Numbers::default();
    let models: Vec<Mlp> = std::thread::scope(|scope| {
        let handles: Vec<_> = devices
            .iter()
            .enumerate()
            .map(|(shard, device)| {
                let device = device.clone().autodiff();
                scope.spawn(move || {
                    let mut own = Numbers::default();
                    train(
                        &mut own,
                        fixed(Mlp::new([6, 8, 10], &device), 1),
                        SgdConfig::new().init(),
                        0.1,
                        4,
                        |model, step| {
                            let (x, y) = batch(4, 6, 2 * step + shard, &device);
                            CrossEntropyLossConfig::new().init(&device).forward(model.forward(x), y)
                        },
                    )
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a thread that ends")).collect()
    });
    let x = input([3, 6], 5, &devices[0]);
    let answers: Vec<Tensor<2>> =
        models.into_iter().map(|m| m.valid().to_device(&devices[0]).forward(x.clone())).collect();
    numbers.push("mean", Tensor::stack::<3>(answers, 0).mean_dim(0));
    numbers
}
