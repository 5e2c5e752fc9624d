//! Normalization: over the batch, for each channel, and over neighbouring channels (local response).

use meshtf_loops::turn::paced;
use meshtf_loops::vector::LocalResponse;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::smallvec;

use super::super::call::{input_dtype, kernel as call, owned, take};
use super::super::real::widened;
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use super::layout::{channels_first, channels_last};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("FusedBatchNormV3", |node| {
        let norm = BatchNorm::of(node, node.attrs.float("exponential_avg_factor")?)?;
        for_halves(node, Box::new(move |inputs| norm.forward(take(inputs)?)))
    });
    ops.insert("FusedBatchNormGradV3", |node| {
        let norm = BatchNorm::of(node, 1.0)?;
        for_halves(node, Box::new(move |inputs| norm.backward(take(inputs)?)))
    });
    ops.insert("LRN", |node| {
        let norm = local_response(node)?;
        for_halves(node, call(move |[input]| respond(&norm, input)))
    });
    ops.insert("LRNGrad", |node| {
        let norm = local_response(node)?;
        for_halves(node, call(move |inputs| respond_backward(&norm, inputs)))
    });
}

/// The kernel for float32, and for half floats, which it computes in float32.
fn for_halves(node: &KernelNode, kernel: HostKernel) -> Result<Option<HostKernel>> {
    match input_dtype(node, 0)? {
        DType::F16 | DType::BF16 | DType::F32 => Ok(Some(widened(node, kernel))),
        _ => Ok(None),
    }
}

struct BatchNorm {
    epsilon: f32,
    /// The weight of this batch in the running averages; if it is 1, they are not read.
    factor: f32,
    is_training: bool,
    channels_first: bool,
    rank: usize,
}

impl BatchNorm {
    fn of(node: &KernelNode, factor: f32) -> Result<BatchNorm> {
        let format = node.attrs.str("data_format")?;
        Ok(BatchNorm {
            epsilon: node.attrs.float("epsilon")?,
            factor,
            is_training: node.attrs.bool("is_training")?,
            channels_first: format.starts_with("NC"),
            rank: format.len(),
        })
    }

    fn channels_last(&self, x: Tensor) -> Result<Tensor> {
        if x.rank() != self.rank {
            return Err(Failure::invalid(format!("input must be {}-dimensional, got {}", self.rank, x.shape())));
        }
        if self.channels_first { channels_last::<f32>(&x) } else { Ok(x) }
    }

    fn back(&self, x: Tensor) -> Result<Tensor> {
        if self.channels_first { channels_first::<f32>(&x) } else { Ok(x) }
    }

    /// The elements of `tensor`, one f32 for each channel.
    fn channel<'a>(&self, name: &str, tensor: &'a Tensor, channels: usize) -> Result<&'a [f32]> {
        if tensor.rank() != 1 {
            return Err(Failure::invalid(format!("{name} must be 1-dimensional, got {}", tensor.shape())));
        }
        if tensor.len() != channels {
            let when = if matches!(name, "mean" | "variance") {
                if self.is_training {
                    "When is_training=true and a running average is kept, "
                } else {
                    "When is_training=false, "
                }
            } else {
                ""
            };
            return Err(Failure::invalid(format!(
                "{when}{name} must have the same number of elements as the channels of x, got {} and {channels}",
                tensor.len()
            )));
        }
        tensor.slice()
    }

    fn forward(&self, [x, scale, offset, old_mean, old_variance]: [Tensor; 5]) -> Result<Outputs> {
        let mut x = self.channels_last(x)?;
        let channels = x.dims()[self.rank - 1];
        let (scale, offset) = (self.channel("scale", &scale, channels)?, self.channel("offset", &offset, channels)?);
        let averages = || -> Result<_> {
            Ok((self.channel("mean", &old_mean, channels)?, self.channel("variance", &old_variance, channels)?))
        };
        if x.is_empty() {
            let undefined = Tensor::vector(vec![f32::NAN; channels]);
            let zeros = Tensor::vector(vec![0f32; channels]);
            let nothing = Tensor::vector(Vec::<f32>::new());
            return Ok(smallvec![self.back(x)?, undefined.clone(), undefined, zeros.clone(), zeros, nothing]);
        }
        let (mean, variance) = if self.is_training {
            moments(x.slice()?, channels)
        } else {
            let (mean, variance) = averages()?;
            (mean.to_vec(), variance.to_vec())
        };
        let weights: Vec<f32> =
            scale.iter().zip(&variance).map(|(scale, variance)| scale / (variance + self.epsilon).sqrt()).collect();
        let places = x.len() / channels;
        for place in paced(x.slice_mut::<f32>()?.chunks_exact_mut(channels), channels) {
            for (((x, &mean), &weight), &offset) in place.iter_mut().zip(&mean).zip(&weights).zip(offset) {
                *x = (*x - mean) * weight + offset;
            }
        }
        let (new_mean, new_variance) = if self.is_training {
            // The running variance is the unbiased estimate; the gradient needs the biased one.
            let unbias = places as f32 / (places.max(2) - 1) as f32;
            let unbiased: Vec<f32> = variance.iter().map(|variance| variance * unbias).collect();
            if self.factor == 1.0 {
                (mean.clone(), unbiased)
            } else {
                let blend = |old: &[f32], new: &[f32]| {
                    old.iter().zip(new).map(|(old, new)| (1.0 - self.factor) * old + self.factor * new).collect()
                };
                let (old_mean, old_variance) = averages()?;
                (blend(old_mean, &mean), blend(old_variance, &unbiased))
            }
        } else {
            (mean.clone(), variance.clone())
        };
        let [new_mean, new_variance, mean, variance] =
            [new_mean, new_variance, mean, variance].map(Tensor::vector::<f32>);
        Ok(smallvec![self.back(x)?, new_mean, new_variance, mean, variance, Tensor::vector(Vec::<f32>::new())])
    }

    fn backward(&self, [gradient, x, scale, mean, variance, _reserved]: [Tensor; 6]) -> Result<Outputs> {
        let (mut gradient, x) = (self.channels_last(gradient)?, self.channels_last(x)?);
        if gradient.shape() != x.shape() {
            return Err(Failure::invalid(format!(
                "x and y_backprop must have same shape, but x has shape {} and y_backprop has shape {}",
                x.shape(),
                gradient.shape()
            )));
        }
        let channels = x.dims()[self.rank - 1];
        let scale = self.channel("scale", &scale, channels)?;
        let (mean, variance) = (self.channel("mean", &mean, channels)?, self.channel("variance", &variance, channels)?);
        let factor: Vec<f32> = variance.iter().map(|variance| 1.0 / (variance + self.epsilon).sqrt()).collect();
        let (mut sums, mut products) = (vec![0f64; channels], vec![0f64; channels]);
        let xs = x.slice::<f32>()?;
        if !xs.is_empty() {
            let pairs = gradient.slice::<f32>()?.chunks_exact(channels).zip(xs.chunks_exact(channels));
            for (dy, x) in paced(pairs, 2 * channels) {
                for c in 0..channels {
                    sums[c] += f64::from(dy[c]);
                    products[c] += f64::from(dy[c] * ((x[c] - mean[c]) * factor[c]));
                }
            }
            let places = (xs.len() / channels) as f32;
            let pairs = gradient.slice_mut::<f32>()?.chunks_exact_mut(channels).zip(xs.chunks_exact(channels));
            for (dy, x) in paced(pairs, 2 * channels) {
                for c in 0..channels {
                    let centred = if self.is_training {
                        let normal = (x[c] - mean[c]) * factor[c];
                        dy[c] - sums[c] as f32 / places - normal * (products[c] as f32 / places)
                    } else {
                        dy[c]
                    };
                    dy[c] = centred * scale[c] * factor[c];
                }
            }
        }
        let to_f32 = |sums: Vec<f64>| Tensor::vector(sums.into_iter().map(|sum| sum as f32).collect::<Vec<_>>());
        let nothing = Tensor::vector(Vec::<f32>::new());
        Ok(smallvec![self.back(gradient)?, to_f32(products), to_f32(sums), nothing.clone(), nothing])
    }
}

/// The mean and variance of each channel, summed in f64.
fn moments(x: &[f32], channels: usize) -> (Vec<f32>, Vec<f32>) {
    let places = (x.len() / channels) as f64;
    let mut mean = vec![0f64; channels];
    for place in paced(x.chunks_exact(channels), channels) {
        mean.iter_mut().zip(place).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    mean.iter_mut().for_each(|sum| *sum /= places);
    let mut variance = vec![0f64; channels];
    for place in paced(x.chunks_exact(channels), channels) {
        for ((sum, &x), mean) in variance.iter_mut().zip(place).zip(&mean) {
            *sum += (f64::from(x) - mean) * (f64::from(x) - mean);
        }
    }
    (mean.iter().map(|&x| x as f32).collect(), variance.iter().map(|&sum| (sum / places) as f32).collect())
}

/// The local response normalization of a node.
pub fn local_response(node: &KernelNode) -> Result<LocalResponse> {
    let radius = node.attrs.int("depth_radius")?;
    Ok(LocalResponse {
        radius: usize::try_from(radius)
            .map_err(|_| Failure::invalid(format!("depth_radius must not be negative, got {radius}")))?,
        bias: node.attrs.float("bias")?,
        alpha: node.attrs.float("alpha")?,
        beta: node.attrs.float("beta")?,
    })
}

fn respond(norm: &LocalResponse, input: Tensor) -> Result<Tensor> {
    check_rank("in", input.shape())?;
    let Some(&channels) = input.dims().last().filter(|_| !input.is_empty()) else { return Ok(input) };
    memory::admit(norm.scratch_bytes(channels))?;
    let mut output = owned(input)?;
    norm.normalise_over(output.slice_mut::<f32>()?, channels);
    Ok(output)
}

fn respond_backward(norm: &LocalResponse, [gradient, input, output]: [Tensor; 3]) -> Result<Tensor> {
    check_rank("in", input.shape())?;
    if gradient.shape() != input.shape() || output.shape() != input.shape() {
        return Err(Failure::invalid(format!(
            "input_grads, input_image, and out_image should have the same shape, got {}, {} and {}",
            gradient.shape(),
            input.shape(),
            output.shape()
        )));
    }
    let Some(&channels) = input.dims().last().filter(|_| !input.is_empty()) else { return Ok(gradient) };
    memory::admit(norm.scratch_bytes(channels).saturating_add(gradient.byte_len()))?;
    let [dy, xs, ys] = [gradient.slice()?, input.slice()?, output.slice()?];
    Ok(Tensor::from_vec(input.shape().clone(), norm.gradient(dy, xs, ys, channels)))
}

fn check_rank(what: &str, shape: &Shape) -> Result<()> {
    if shape.rank() == 4 { Ok(()) } else { Err(Failure::invalid(format!("{what} must be 4-dimensional, got {shape}"))) }
}
