//! Biases: one number per channel, added at every position, and their gradient, summed over all positions.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Tensor, with_number};

use super::super::call::{input_dtype, kernel as call};
use super::super::real::{narrow, widen};
use super::super::{HostKernel, KernelNode, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("BiasAdd", |node| addition(node, is_channels_first(node)?));
    // The older op, which has no layout.
    ops.insert("BiasAddV1", |node| addition(node, false));
    ops.insert("BiasAddGrad", |node| {
        let (dtype, channels_first) = (input_dtype(node, 0)?, is_channels_first(node)?);
        let computed_in = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        Ok(with_number!(computed_in, T => {
            call(move |[gradient]| narrow(bias_add_grad::<T>(&widen(gradient), channels_first)?, dtype))
        }))
    });
}

fn is_channels_first(node: &KernelNode) -> Result<bool> {
    Ok(node.attrs.str("data_format")? == "NCHW")
}

fn addition(node: &KernelNode, channels_first: bool) -> Result<Option<HostKernel>> {
    let dtype = input_dtype(node, 0)?;
    Ok(with_number!(dtype, T => call(move |[value, bias]| bias_add::<T>(value, &bias, channels_first))))
}

/// The number of channels of a tensor, and the number of contiguous elements of one channel.
fn channels(tensor: &Tensor, channels_first: bool) -> Result<(usize, usize)> {
    let dims = tensor.dims();
    match (dims, channels_first) {
        ([_, channels, places @ ..], true) if dims.len() > 2 => Ok((*channels, places.iter().product())),
        ([_, .., channels], _) => Ok((*channels, 1)),
        _ => Err(Failure::invalid(format!("Input tensor must be at least 2D: {}", tensor.shape()))),
    }
}

fn bias_add<T: Numeric>(mut value: Tensor, bias: &Tensor, channels_first: bool) -> Result<Tensor> {
    let (channels, run) = channels(&value, channels_first)?;
    if bias.rank() != 1 {
        return Err(Failure::invalid(format!("Biases must be 1D: {}", bias.shape())));
    }
    if bias.len() != channels {
        let which = if channels_first { "channel" } else { "last" };
        return Err(Failure::invalid(format!(
            "Must provide as many biases as the {which} dimension of the input tensor: {} vs. {}",
            bias.shape(),
            value.shape()
        )));
    }
    let bias = bias.slice::<T>()?;
    if value.is_empty() {
        return Ok(value);
    }
    let elements = value.slice_mut::<T>()?;
    if run == 1 {
        for place in paced(elements.chunks_exact_mut(channels), channels) {
            place.iter_mut().zip(bias).for_each(|(x, &b)| *x = T::add(*x, b));
        }
    } else {
        for (places, &b) in paced(elements.chunks_exact_mut(run).zip(bias.iter().cycle()), run) {
            places.iter_mut().for_each(|x| *x = T::add(*x, b));
        }
    }
    Ok(value)
}

fn bias_add_grad<T: Numeric>(gradient: &Tensor, channels_first: bool) -> Result<Tensor> {
    let (channels, run) = channels(gradient, channels_first)?;
    let mut sums = vec![T::ZERO; channels];
    let elements = gradient.slice::<T>()?;
    if elements.is_empty() {
        return Ok(Tensor::vector(sums));
    }
    if run == 1 {
        for place in paced(elements.chunks_exact(channels), channels) {
            sums.iter_mut().zip(place).for_each(|(sum, &g)| *sum = T::add(*sum, g));
        }
    } else {
        for (i, places) in paced(elements.chunks_exact(run), run).enumerate() {
            let sum = &mut sums[i % channels];
            *sum = places.iter().fold(*sum, |sum, &g| T::add(sum, g));
        }
    }
    Ok(Tensor::vector(sums))
}
