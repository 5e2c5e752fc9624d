//! BatchNormWithGlobalNormalization and its gradient: the earliest form of batch normalization, with a given mean and
//! variance.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Float, Shape, Tensor, with_type};
use smallvec::smallvec;

use super::super::call::{input_dtype, take};
use super::super::real::rsqrt;
use super::super::{HostKernel, KernelNode, Outputs, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("BatchNormWithGlobalNormalization", |node| kernel(node, false));
    ops.insert("BatchNormWithGlobalNormalizationGrad", |node| kernel(node, true));
}

fn kernel(node: &KernelNode, is_gradient: bool) -> Result<Option<HostKernel>> {
    let norm =
        Norm { epsilon: node.attrs.float("variance_epsilon")?, scales: node.attrs.bool("scale_after_normalization")? };
    let kernel = with_type!(input_dtype(node, 0)?, T => Box::new(move |inputs| {
        let inputs = take(inputs)?;
        if is_gradient { norm.backward::<T>(&inputs) } else { norm.forward::<T>(&inputs) }
    }) as HostKernel; F16 half::f16, F32 f32, F64 f64);
    Ok(kernel)
}

#[derive(Clone, Copy)]
struct Norm {
    epsilon: f32,
    /// Whether the normalized values are multiplied by gamma.
    scales: bool,
}

/// The number of channels of a `[batch, height, width, channels]` tensor, after a check that each vector has as many
/// elements.
fn channels(input: &Tensor, vectors: &[(&Tensor, &str)]) -> Result<usize> {
    let &[_, _, _, channels] = input.dims() else {
        return Err(Failure::invalid(format!("input must be 4-dimensional, got shape {}", input.shape())));
    };
    for (vector, name) in vectors {
        if vector.rank() != 1 {
            return Err(Failure::invalid(format!("{name} must be 1-dimensional, got shape {}", vector.shape())));
        }
        if vector.len() != channels {
            let why =
                format!("{name} must have as many elements as input has channels: {} and {channels}", vector.len());
            return Err(Failure::invalid(why));
        }
    }
    Ok(channels)
}

impl Norm {
    /// The factor of each channel, without gamma.
    fn factors<T: Float>(&self, variance: &Tensor) -> Result<Vec<T>> {
        let epsilon = T::from_f64(self.epsilon.into());
        Ok(variance.slice::<T>()?.iter().map(|&variance| rsqrt(variance + epsilon)).collect())
    }

    fn forward<T: Float>(&self, [input, mean, variance, beta, gamma]: &[Tensor; 5]) -> Result<Outputs> {
        let vectors = [(mean, "mean"), (variance, "var"), (beta, "beta"), (gamma, "gamma")];
        let channels = channels(input, &vectors)?;
        let mut factors = self.factors::<T>(variance)?;
        if self.scales {
            factors.iter_mut().zip(gamma.slice::<T>()?).for_each(|(factor, &gamma)| *factor = *factor * gamma);
        }
        let (mean, beta) = (mean.slice::<T>()?, beta.slice::<T>()?);
        let mut out = Vec::with_capacity(input.shape().checked_elements(T::DTYPE)?);
        let mut pace = Pace::new();
        for row in input.slice::<T>()?.chunks_exact(channels.max(1)) {
            pace.go(2 * channels);
            out.extend(row.iter().enumerate().map(|(c, &x)| (x - mean[c]) * factors[c] + beta[c]));
        }
        Ok(smallvec![Tensor::from_vec(input.shape().clone(), out)])
    }

    fn backward<T: Float>(&self, [input, mean, variance, gamma, backprop]: &[Tensor; 5]) -> Result<Outputs> {
        let channels = channels(input, &[(mean, "mean"), (variance, "var"), (gamma, "gamma")])?;
        if backprop.shape() != input.shape() {
            return Err(Failure::invalid(format!(
                "out_backprop must have the shape of input {}, got {}",
                input.shape(),
                backprop.shape()
            )));
        }
        let (factors, mean, gamma) = (self.factors::<T>(variance)?, mean.slice::<T>()?, gamma.slice::<T>()?);
        let scale: Vec<T> =
            (0..channels).map(|c| if self.scales { factors[c] * gamma[c] } else { factors[c] }).collect();
        let mut by_input = Vec::with_capacity(input.shape().checked_elements(T::DTYPE)?);
        // For each channel the sum of the gradients, and of their products with the input's deviation from the mean.
        let (mut sums, mut products) = (vec![T::ZERO; channels], vec![T::ZERO; channels]);
        let rows = input.slice::<T>()?.chunks_exact(channels.max(1));
        let mut pace = Pace::new();
        for (row, gradients) in rows.zip(backprop.slice::<T>()?.chunks_exact(channels.max(1))) {
            pace.go(4 * channels);
            for (c, (&x, &gradient)) in row.iter().zip(gradients).enumerate() {
                by_input.push(gradient * scale[c]);
                sums[c] = sums[c] + gradient;
                products[c] = products[c] + gradient * (x - mean[c]);
            }
        }
        let vector = |f: &dyn Fn(usize) -> T| Tensor::from_vec(Shape::from([channels]), (0..channels).map(f).collect());
        let half = T::from_f64(-0.5);
        Ok(smallvec![
            Tensor::from_vec(input.shape().clone(), by_input),
            vector(&|c| -sums[c] * scale[c]),
            vector(&|c| products[c] * half * scale[c] * factors[c] * factors[c]),
            vector(&|c| sums[c]),
            vector(&|c| if self.scales { products[c] * factors[c] } else { T::ZERO }),
        ])
    }
}
