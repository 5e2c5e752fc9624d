//! The first values of variables.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::ops::{binary, scalar};
use crate::{Attr, Filled, GraphBuilder, Output};

/// The way to compute the first value of a variable. Random values depend on a seed, the name of the variable and its shape
/// alone, on any device.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// One value for all elements if it is a scalar; otherwise a value of the variable's shape.
    Constant(Tensor),
    /// Uniformly distributed from `low` to `high`.
    Uniform {
        /// The least value.
        low: f64,
        /// The exclusive upper bound.
        high: f64,
    },
    /// Normally distributed.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        stddev: f64,
    },
    /// Normally distributed; values further than two standard deviations from the mean are drawn again.
    TruncatedNormal {
        /// The mean.
        mean: f64,
        /// The standard deviation of the normal distribution before truncation.
        stddev: f64,
    },
    /// Uniform within ±√(6 / (inputs + outputs)).
    GlorotUniform,
    /// Truncated normal of variance 2 / (inputs + outputs).
    GlorotNormal,
    /// Uniform within ±√(6 / inputs).
    HeUniform,
    /// Truncated normal of variance 2 / inputs.
    HeNormal,
}

/// The standard deviation of a normal distribution of deviation 1 that is cut off at 2.
const TRUNCATED: f64 = 0.879_625_661_034_239_8;

impl Initializer {
    /// Adds the nodes that compute the value.
    pub(super) fn add(
        &self,
        g: &mut GraphBuilder,
        name: &str,
        shape: &Shape,
        dtype: DType,
        seed: i64,
    ) -> Result<Output> {
        let (inputs, outputs) = fans(shape);
        let glorot = 2.0 / (inputs + outputs);
        let he = 2.0 / inputs;
        let truncated = |variance: f64| ("StatelessTruncatedNormal", variance.sqrt() / TRUNCATED, 0.0);
        // Uniform values are drawn from 0 to 1.
        let uniform = |low: f64, high: f64| ("StatelessRandomUniform", high - low, low);
        let within = |variance: f64| uniform(-(3.0 * variance).sqrt(), (3.0 * variance).sqrt());
        let (op, scale, offset) = match self {
            Initializer::Zeros => return constant(g, &number(dtype, 0.0)?, shape),
            Initializer::Ones => return constant(g, &number(dtype, 1.0)?, shape),
            Initializer::Constant(value) => return self.stated(g, value, shape, dtype),
            Initializer::Uniform { low, high } => uniform(*low, *high),
            Initializer::Normal { mean, stddev } => ("StatelessRandomNormal", *stddev, *mean),
            Initializer::TruncatedNormal { mean, stddev } => ("StatelessTruncatedNormal", *stddev, *mean),
            Initializer::GlorotUniform => within(glorot),
            Initializer::GlorotNormal => truncated(glorot),
            Initializer::HeUniform => within(he),
            Initializer::HeNormal => truncated(he),
        };
        if !dtype.is_float() {
            return Err(Failure::invalid(format!("{dtype} has no random initial values; they are floats")));
        }
        let sizes: Vec<i64> = shape.dims().iter().map(|&size| size as i64).collect();
        let seeds = [seed, hash(name)];
        let drawn = g.op(op).input(sizes).input(seeds).attr("dtype", dtype).build()?;
        let scaled = binary(g, "Mul", drawn, scalar(dtype, scale)?)?;
        if offset == 0.0 { Ok(scaled) } else { binary(g, "AddV2", scaled, scalar(dtype, offset)?) }
    }

    fn stated(&self, g: &mut GraphBuilder, value: &Tensor, shape: &Shape, dtype: DType) -> Result<Output> {
        if value.dtype() != dtype {
            let why = format!("its initial value is {}, and it is {dtype}", value.dtype());
            return Err(Failure::invalid(why));
        }
        match value.rank() {
            0 => constant(g, value, shape),
            _ if value.shape() == shape => g.op("Const").attr("value", value.clone()).build(),
            _ => Err(Failure::invalid(format!("its initial value has shape {}, and it has {shape}", value.shape()))),
        }
    }
}

/// A constant whose elements are all equal. A large one is not stored element by element in the graph.
fn constant(g: &mut GraphBuilder, element: &Tensor, shape: &Shape) -> Result<Output> {
    let value = Attr::Filled(Filled::new(element.clone(), shape.clone())?);
    g.op("Const").attr("dtype", element.dtype()).attr("value", value).build()
}

fn number(dtype: DType, value: f64) -> Result<Tensor> {
    match dtype {
        DType::I32 => Ok(Tensor::scalar(value as i32)),
        DType::I64 => Ok(Tensor::scalar(value as i64)),
        _ => scalar(dtype, value),
    }
}

/// The fans of weights of this shape: the number of values that each output of the layer is computed from (fan in), and the
/// number of outputs that each input contributes to (fan out). They are the last two sizes, each times the product of those
/// before (the area of a filter).
fn fans(shape: &Shape) -> (f64, f64) {
    let sizes: Vec<f64> = shape.dims().iter().map(|&size| size as f64).collect();
    let (inputs, outputs) = match sizes[..] {
        [] => (1.0, 1.0),
        [n] => (n, n),
        [ref before @ .., inputs, outputs] => {
            let area: f64 = before.iter().product();
            (area * inputs, area * outputs)
        }
    };
    (f64::max(inputs, 1.0), f64::max(outputs, 1.0))
}

/// A hash of a name that is the same on every machine and in every version (FNV-1a).
fn hash(name: &str) -> i64 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash as i64
}
