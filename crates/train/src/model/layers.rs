//! Layers: functions of a value with variables, below the layer's name.

use meshtf_graph::Attrs;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::{DType, Tensor};

use super::{Model, Padding, Value, after};
use crate::{Initializer, VariableSpec};

/// Added to variances below a root.
const EPSILON: f64 = 1e-3;
/// The share of an average over past batches that each step keeps.
const MOMENTUM: f64 = 0.99;

impl Value {
    /// `x · kernel + bias` along the last dimension: `[..., inputs]` becomes `[..., units]`. Variables `NAME/kernel` (Glorot
    /// uniform) and `NAME/bias` (zeros).
    pub fn dense(&self, name: &str, units: usize) -> Value {
        let Some(sizes) = self.sizes("dense", 2) else { return self.clone() };
        let Some(&Some(inputs)) = sizes.last() else { return self.clone() };
        self.model.scope(name, || {
            let kernel = self.model.variable("kernel", [inputs, units], Initializer::GlorotUniform);
            let bias = self.model.variable("bias", [units], Initializer::Zeros);
            if sizes.len() == 2 {
                return self.matmul(&kernel) + bias;
            }
            let rows = self.reshape(&[-1, inputs as i32]).matmul(&kernel) + bias;
            let outer = sizes[1..sizes.len() - 1].iter().map(|size| size.unwrap_or(1) as i32);
            rows.reshape(&std::iter::once(-1).chain(outer).chain([units as i32]).collect::<Vec<_>>())
        })
    }

    /// A convolution of images `[n, height, width, channels]` with `filters` filters of `size` by `size` pixels, whose positions
    /// are `stride` pixels apart. Variables `NAME/kernel` (Glorot uniform) and `NAME/bias` (zeros).
    pub fn conv(&self, name: &str, filters: usize, size: usize, stride: i64, padding: Padding) -> Value {
        let Some(sizes) = self.sizes("conv", 4) else { return self.clone() };
        let channels = sizes[3].unwrap_or(1);
        self.model.scope(name, || {
            let kernel = self.model.variable("kernel", [size, size, channels, filters], Initializer::GlorotUniform);
            let bias = self.model.variable("bias", [filters], Initializer::Zeros);
            self.conv2d(&kernel, stride, padding) + bias
        })
    }

    /// All dimensions but the first merged into one: `[n, a, b]` becomes `[n, a · b]`.
    pub fn flatten(&self) -> Value {
        let Some(sizes) = self.sizes("flatten", 2) else { return self.clone() };
        let rest: usize = sizes[1..].iter().map(|size| size.unwrap_or(1)).product();
        self.reshape(&[-1, rest as i32])
    }

    /// Normalises the elements along the last dimension to mean 0 and variance 1, then scales them by the variable
    /// `NAME/gamma` and shifts them by `NAME/beta`.
    pub fn layer_norm(&self, name: &str) -> Value {
        let Some(sizes) = self.sizes("layer_norm", 2) else { return self.clone() };
        let Some(&Some(size)) = sizes.last() else { return self.clone() };
        self.model.scope(name, || {
            let gamma = self.model.variable("gamma", [size], Initializer::Ones);
            let beta = self.model.variable("beta", [size], Initializer::Zeros);
            let centered = self - self.mean_along(&[-1], true);
            let variance = centered.square().mean_along(&[-1], true);
            centered / (variance + EPSILON).sqrt() * gamma + beta
        })
    }

    /// Normalises each feature, the last dimension, to mean 0 and variance 1: in steps that train, over the batch; in others,
    /// by averages over past batches (`NAME/moving_mean`, `NAME/moving_variance`). Then scales by `NAME/gamma` and shifts by
    /// `NAME/beta`.
    pub fn batch_norm(&self, name: &str) -> Value {
        let Some(sizes) = self.sizes("batch_norm", 2) else { return self.clone() };
        let Some(&Some(size)) = sizes.last() else { return self.clone() };
        let model = &self.model;
        let is_training = model.is_training();
        model.scope(name, || {
            let gamma = model.variable("gamma", [size], Initializer::Ones);
            let beta = model.variable("beta", [size], Initializer::Zeros);
            let axes: Vec<i32> = (0..sizes.len() as i32 - 1).collect();
            let mean = self.mean_along(&axes, false);
            let variance = (self - mean.clone()).square().mean_along(&axes, false);
            let kept = |kept: &str, initial: Initializer, now: &Value| {
                let spec = VariableSpec { trainable: false, ..VariableSpec::new(kept, [size], initial) };
                let average = model.variable_of(&spec);
                model.also(&average, &((&average - now.stop_gradient()) * (1.0 - MOMENTUM)));
                now.or_else(&is_training, &average)
            };
            let mean = kept("moving_mean", Initializer::Zeros, &mean);
            let variance = kept("moving_variance", Initializer::Ones, &variance);
            (self - mean) / (variance + EPSILON).sqrt() * gamma + beta
        })
    }

    /// In steps that train, sets that share of the elements to 0 and scales the other ones up; other elements each step and
    /// on each worker, the same ones for the same seed of the model, name, step and worker.
    pub fn dropout(&self, name: &str, share: f64) -> Value {
        if !(0.0..1.0).contains(&share) {
            return self.model.refuse(format!("dropout {name}: the share is {share}; expected 0 to below 1"));
        }
        let (is_training, step) = (self.model.is_training(), self.model.global_step());
        let replica = self.model.replica();
        self.model.scope(name, || {
            let seed = self.model.constant(self.model.seed_of(name)) + replica;
            let shape = self.with("Shape", []);
            let one = [1i32];
            let seeds = seed.reshape(&one).concat(&[&step.reshape(&one)], 0);
            let attrs = Attrs::from([("dtype", DType::F32.into())]);
            let drawn = self.model.op("StatelessRandomUniform", &[&shape, &seeds], attrs);
            let kept = self.model.op("GreaterEqual", &[&drawn, &self.model.constant(share as f32)], Attrs::default());
            (self * kept.cast(self.dtype()) * (1.0 / (1.0 - share))).or_else(&is_training, self)
        })
    }
}

impl Model {
    /// The rows of a table `[rows, width]` for indices of any shape, which must be below `rows`. The gradient has only the
    /// rows that were looked up. Variable `NAME/table` (uniform from -0.05 to 0.05).
    pub fn embedding(&self, name: &str, rows: usize, width: usize, indices: &Value) -> Value {
        let spec = VariableSpec::new("table", [rows, width], Initializer::Uniform { low: -0.05, high: 0.05 });
        let indices = indices.output;
        self.scope(name, || {
            self.add(|state| {
                let table = state.variable(&spec)?;
                let rows = state.g.op("ResourceGather").input(table.handle).input(indices.ok_or_else(after)?);
                rows.attr("dtype", DType::F32).build()
            })
        })
    }

    /// Makes training steps subtract `less` from a variable, given by its value.
    fn also(&self, value: &Value, less: &Value) {
        let (value, less) = (value.output, less.output);
        self.add(|state| {
            let (value, less) = (value.ok_or_else(after)?, less.ok_or_else(after)?);
            let variable = state.variables.iter().find(|variable| variable.value == value);
            let handle = variable.ok_or_else(|| Failure::invalid("it is not a variable"))?.handle;
            let update = state.g.op("AssignSubVariableOp").input(handle).input(less).build()?;
            state.updates.push(update);
            Ok(update)
        });
    }

    /// A number derived from the model's seed and a name.
    fn seed_of(&self, name: &str) -> Tensor {
        let state = self.state();
        let full = state.g.full_name(name);
        let seed = full.bytes().fold(state.seed, |seed, byte| seed.wrapping_mul(1_000_003).wrapping_add(byte.into()));
        Tensor::scalar(seed)
    }
}
