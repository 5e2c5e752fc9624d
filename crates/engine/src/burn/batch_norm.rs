//! Batch normalisation of float32 in this process's memory, and its gradient, channels last
//! (`meshtf_loops::vector::channels`). Other inputs are left to the host.

use meshtf_kernels::KernelNode;
use meshtf_loops::vector::channels::{self, Normal};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use smallvec::smallvec;

use super::dense::{Direct, floats, made, over};
use crate::{EngineOutcome, Value, Values};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<Direct>> {
    let is_last = |attr: &str| node.attrs.str(attr).map(|format| !format.starts_with("NC"));
    Ok(match node.op {
        "FusedBatchNormV3" | "FusedBatchNormGradV3" if is_last("data_format")? => {
            let norm = BatchNorm {
                epsilon: node.attrs.float("epsilon")?,
                is_training: node.attrs.bool("is_training")?,
                rank: node.attrs.str("data_format")?.len(),
            };
            if node.op == "FusedBatchNormGradV3" {
                Some(Box::new(move |inputs| norm.backward(inputs)))
            } else {
                let factor = node.attrs.float("exponential_avg_factor")?;
                // The host blends the running averages.
                (factor == 1.0).then(|| -> Direct { Box::new(move |inputs| norm.forward(inputs)) })
            }
        }
        _ => None,
    })
}

/// Whether inputs of the op may have no elements: running averages that are not read.
pub(super) fn takes_empty(op: &str) -> bool {
    matches!(op, "FusedBatchNormV3" | "FusedBatchNormGradV3")
}

struct BatchNorm {
    epsilon: f32,
    is_training: bool,
    rank: usize,
}

/// A number for each channel, as float32.
fn rounded(numbers: &[f64]) -> Value {
    vector(numbers.iter().map(|&x| x as f32).collect())
}

fn vector(numbers: Vec<f32>) -> Value {
    Value::Host(Tensor::vector(numbers))
}

impl BatchNorm {
    /// The number of channels, if the elements have the format's rank and are not empty, and each of the given values has one
    /// number for each channel.
    fn channels(&self, xs: &Value, of_channels: &[Value]) -> Option<usize> {
        let channels = xs.shape().dims().last().copied().filter(|_| xs.rank() == self.rank && !xs.is_empty())?;
        of_channels.iter().all(|value| value.shape().dims() == [channels]).then_some(channels)
    }

    fn factor(&self, variance: f32) -> f32 {
        1.0 / (variance + self.epsilon).sqrt()
    }

    fn forward(&self, mut inputs: Values) -> Result<EngineOutcome> {
        // If the running averages start anew, the old ones may be omitted.
        let of_channels = if self.is_training { 1..3 } else { 1..5 };
        let channels = (inputs.len() == 5).then(|| self.channels(&inputs[0], &inputs[of_channels])).flatten();
        let (Some(channels), Some(xs), Some(scales), Some(offsets)) =
            (channels, floats(&inputs[0]), floats(&inputs[1]), floats(&inputs[2]))
        else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        budget::admit(channels::scratch_bytes(xs.len(), channels))?;
        let (means, variances): (Vec<f32>, Vec<f32>) = if self.is_training {
            let [means, variances] = channels::moments(xs, channels).map(|all| all.into_iter().map(|x| x as f32));
            (means.collect(), variances.collect())
        } else {
            let (Some(means), Some(variances)) = (floats(&inputs[3]), floats(&inputs[4])) else {
                return Ok(EngineOutcome::Declined(inputs));
            };
            (means.to_vec(), variances.to_vec())
        };
        let normal: Vec<Normal> = means
            .iter()
            .zip(&variances)
            .zip(scales.iter().zip(offsets))
            .map(|((&mean, &variance), (&scale, &offset))| Normal {
                mean,
                factor: self.factor(variance),
                scale,
                offset,
            })
            .collect();
        let places = xs.len() / channels;
        let answer = if over(&mut inputs[0], |xs| channels::normalise_over(xs, &normal)) {
            inputs.swap_remove(0)
        } else {
            let xs = floats(&inputs[0]).unwrap_or_default();
            budget::admit(size_of_val(xs))?;
            made(inputs[0].shape(), channels::normalised(xs, &normal))
        };
        // The running variance is the unbiased estimate; the gradient needs the biased one.
        let unbias = if self.is_training { places as f32 / (places.max(2) - 1) as f32 } else { 1.0 };
        let unbiased = variances.iter().map(|variance| variance * unbias).collect();
        let [averages, unbiased, means, variances] = [means.clone(), unbiased, means, variances].map(vector);
        Ok(EngineOutcome::Done(smallvec![answer, averages, unbiased, means, variances, vector(Vec::new())]))
    }

    fn backward(&self, mut inputs: Values) -> Result<EngineOutcome> {
        let channels = (inputs.len() == 6).then(|| self.channels(&inputs[1], &inputs[2..5])).flatten();
        let (Some(channels), true) = (channels, inputs[0].shape() == inputs[1].shape()) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let all: Option<Vec<&[f32]>> = inputs[..5].iter().map(floats).collect();
        let Some(&[gradient, xs, scales, means, variances]) = all.as_deref() else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let normal: Vec<Normal> = means
            .iter()
            .zip(variances)
            .zip(scales)
            .map(|((&mean, &variance), &scale)| Normal { mean, factor: self.factor(variance), scale, offset: 0.0 })
            .collect();
        budget::admit(channels::scratch_bytes(xs.len(), channels))?;
        let [sums, products] = channels::gradient_sums(gradient, xs, &normal);
        let places = (xs.len() / channels) as f32;
        let of_means = [&sums, &products].map(|all| all.iter().map(|&sum| sum as f32 / places).collect::<Vec<f32>>());
        let of_means = of_means.each_ref().map(|all| &all[..]);
        // Moments that do not depend on the elements have no gradient: a product remains.
        let product: Vec<Normal> = normal.iter().map(|of| Normal { mean: 0.0, ..*of }).collect();
        let (first, others) = inputs.split_at_mut(1);
        let xs = floats(&others[0]).unwrap_or_default();
        let is_over = over(&mut first[0], |gradient| {
            if self.is_training {
                channels::gradient_over(gradient, xs, &normal, of_means);
            } else {
                channels::normalise_over(gradient, &product);
            }
        });
        let answer = if is_over {
            inputs.swap_remove(0)
        } else {
            let gradient = floats(&first[0]).unwrap_or_default();
            budget::admit(size_of_val(gradient))?;
            let answer = if self.is_training {
                channels::gradient_of(gradient, xs, &normal, of_means)
            } else {
                channels::normalised(gradient, &product)
            };
            made(first[0].shape(), answer)
        };
        let nothing = vector(Vec::new());
        Ok(EngineOutcome::Done(smallvec![answer, rounded(&products), rounded(&sums), nothing.clone(), nothing]))
    }
}
