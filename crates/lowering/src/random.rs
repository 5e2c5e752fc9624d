//! Rules for random tensors: drawn from a seed that is fed, on which alone they depend. They are not the numbers that burn's
//! backends would draw.

use burn_ir::RandomOpIr;
use burn_std::Distribution;
use meshtf_graph::{Input, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::Lowering;
use super::compose::{number, sizes};
use super::values::dtype;

impl Lowering<'_> {
    /// `Default` is \[0, 1) for floats, and all values of the type for integers; other distributions are converted to
    /// integers as by Rust's `as`.
    pub(super) fn random(&mut self, op: &RandomOpIr) -> Result<()> {
        let to = dtype(op.out.dtype)?;
        let float = if to.is_float() { to } else { DType::F64 };
        let shape = &op.out.shape[..];
        let value = match op.distribution {
            Distribution::Default if to.is_float() => self.uniform(shape, to)?,
            Distribution::Default => {
                // The lowest bits of a random int64 are a random number of a smaller type.
                let value = self.draw("StatelessRandomUniformFullInt", shape, DType::I64)?;
                self.cast(value, DType::I64, to)?
            }
            Distribution::Bernoulli(probability) if (0.0..=1.0).contains(&probability) => {
                let value = self.uniform(shape, DType::F32)?;
                let value = self.node("Less", [value.into(), number(probability, DType::F32)?])?;
                self.cast(value, DType::Bool, to)?
            }
            Distribution::Uniform(low, high) if low < high && to.is_float() => {
                let value = self.uniform(shape, to)?;
                self.scaled(value, high - low, low, to)?
            }
            Distribution::Uniform(low, high) if (low as i64) < high as i64 => {
                let seed = self.seed_input()?;
                let [low, high] = [low, high].map(|bound| Input::Value(Tensor::scalar(bound as i64)));
                let value = self.node("StatelessRandomUniformInt", [sizes(shape)?, seed, low, high])?;
                self.cast(value, DType::I64, to)?
            }
            Distribution::Normal(mean, deviation) if deviation >= 0.0 && mean.is_finite() => {
                let value = self.draw("StatelessRandomNormal", shape, float)?;
                let value = self.scaled(value, deviation, mean, float)?;
                self.cast(value, float, to)?
            }
            Distribution::Bernoulli(_) | Distribution::Uniform(..) | Distribution::Normal(..) => {
                return Err(Failure::invalid(format!("there is no distribution {:?}", op.distribution)));
            }
        };
        self.write(&op.out, value)
    }

    /// Uniform in [0, 1).
    fn uniform(&mut self, shape: &[usize], dtype: DType) -> Result<Output> {
        self.draw("StatelessRandomUniform", shape, dtype)
    }

    fn draw(&mut self, op: &str, shape: &[usize], dtype: DType) -> Result<Output> {
        let seed = self.seed_input()?;
        self.node_with(op, [sizes(shape)?, seed], &[("dtype", dtype.into())])
    }

    /// `value * factor + offset`, without a factor of 1 or an offset of 0.
    fn scaled(&mut self, value: Output, factor: f64, offset: f64, dtype: DType) -> Result<Output> {
        let mut value = value;
        if factor != 1.0 {
            value = self.node("Mul", [value.into(), number(factor, dtype)?])?;
        }
        if offset != 0.0 {
            value = self.node("AddV2", [value.into(), number(offset, dtype)?])?;
        }
        Ok(value)
    }
}
