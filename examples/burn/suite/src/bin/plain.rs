//! A program without a line for the mesh: it trains on burn's default device, and prints its losses.
//!
//! `BURN_DEVICE=flex plain` and `meshtf burn -- plain` print the same lines.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Device;
use suite::numbers::fixed;
use suite::training::{Mlp, batch};

fn main() {
    let device = Device::default().autodiff();
    let mut model = fixed(Mlp::new([6, 8, 10], &device), 1);
    let mut optimizer = AdamConfig::new().init();
    for step in 0..20 {
        let (x, y) = batch(8, 6, step, &device);
        let loss = CrossEntropyLossConfig::new().init(&device).forward(model.forward(x), y);
        println!("{step}: {:.3}", loss.clone().without_autodiff().into_scalar::<f32>());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, grads);
    }
}
