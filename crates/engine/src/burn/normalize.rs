//! Batch normalisation and its gradient on a GPU. A CPU's is in `batch_norm`.

#[cfg(feature = "wgpu")]
mod kernels;

use burn_backend::Scalar;
#[cfg(feature = "wgpu")]
pub use kernels::passed;
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::smallvec;

use super::Body;
use super::array::{Array, Home, Site};
use super::bits::BinaryFunction;
use super::elementwise::arrays;
use super::memory::Backing;
use super::reduce::{AxisFold, fold};
use crate::{EngineOutcome, Value, Values};

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let is_backward = node.op == "FusedBatchNormGradV3";
    if !B::REMOTE || !(is_backward || node.op == "FusedBatchNormV3") || node.inputs.iter().any(|&x| x != DType::F32) {
        return Ok(None);
    }
    let format = node.attrs.str("data_format")?;
    let norm = BatchNorm {
        epsilon: node.attrs.float("epsilon")?,
        is_training: node.attrs.bool("is_training")?,
        rank: format.len(),
        axis: if format.starts_with("NC") { 1 } else { format.len() - 1 },
    };
    if is_backward {
        return Ok(Some(Box::new(move |site, inputs| norm.backward(site, inputs))));
    }
    // The host blends the running averages.
    let starts_anew = node.attrs.float("exponential_avg_factor")? == 1.0;
    Ok(starts_anew.then(|| -> Body<B> { Box::new(move |site, inputs| norm.forward(site, inputs)) }))
}

struct BatchNorm {
    epsilon: f32,
    is_training: bool,
    rank: usize,
    /// The dimension of the channels.
    axis: usize,
}

impl BatchNorm {
    /// The number of channels, if the elements have the format's rank, and each of the other values a number for each
    /// channel.
    fn channels(&self, xs: &Value, of_channels: &[Value]) -> Option<usize> {
        let channels = *xs.shape().dims().get(self.axis).filter(|_| xs.rank() == self.rank && !xs.is_empty())?;
        of_channels.iter().all(|value| value.shape().dims() == [channels]).then_some(channels)
    }

    /// A number for each channel, in the shape that is broadcast along the channels.
    fn along<B: Backing>(&self, of_channels: &Array<B>) -> Result<B::Raw> {
        let mut dims = vec![1; self.rank];
        dims[self.axis] = of_channels.shape.dims()[0];
        Ok(of_channels.clone().reshape(dims.into())?.raw)
    }

    /// The mean or the sum of each channel.
    fn folded<B: Backing>(&self, raw: B::Raw, of: &Shape, kind: AxisFold) -> Result<Array<B>> {
        let all = Array { raw, dtype: DType::F32, shape: of.clone(), home: Home::default() };
        fold(all, kind, |axis| axis != self.axis, Shape::from([of.dims()[self.axis]]))
    }

    fn forward<B: Backing>(&self, site: &Site<B>, mut inputs: Values) -> Result<EngineOutcome> {
        // If the running averages start anew, the old ones may be omitted.
        let of_channels = if self.is_training { 1..3 } else { 1..5 };
        if inputs.len() != 5 || self.channels(&inputs[0], &inputs[of_channels]).is_none() {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let averages: Values = inputs.drain(3..).collect();
        let [xs, scales, offsets] = arrays::<B, 3>(site, inputs)?;
        let shape = xs.shape.clone();
        let places = shape.dims().iter().product::<usize>() / scales.shape.dims()[0];
        let averages = if self.is_training { None } else { Some(arrays::<B, 2>(site, averages)?) };
        let means = match &averages {
            Some([means, _]) => means.clone(),
            None => self.folded(xs.raw.clone(), &shape, AxisFold::Mean)?,
        };
        let along_means = self.along(&means)?;
        let variances = match averages {
            Some([_, variances]) => variances,
            None => {
                let squares = B::two(xs.raw.clone(), along_means.clone(), BinaryFunction::SquaredDifference);
                self.folded(squares, &shape, AxisFold::Mean)?
            }
        };
        let inputs = vec![xs.raw, along_means, self.along(&variances)?, self.along(&scales)?, self.along(&offsets)?];
        let raw = B::passed(NormPass::Normalise, inputs, self.epsilon);
        let answer = Array::<B> { raw, dtype: DType::F32, shape, home: Home::default() };
        // The running variance is the unbiased estimate; the gradient needs the biased one.
        let unbias = if self.is_training { places as f32 / (places.max(2) - 1) as f32 } else { 1.0 };
        let unbiased = variances.clone().map(|raw| B::float_mul_scalar(raw, Scalar::from(unbias)));
        let of_channels = [means.clone(), unbiased, means, variances].map(Array::value);
        Ok(EngineOutcome::Done([answer.value()].into_iter().chain(of_channels).chain([nothing()]).collect()))
    }

    fn backward<B: Backing>(&self, site: &Site<B>, mut inputs: Values) -> Result<EngineOutcome> {
        inputs.truncate(5);
        let is_whole = inputs.len() == 5 && inputs[0].shape() == inputs[1].shape();
        if !is_whole || self.channels(&inputs[0], &inputs[2..]).is_none() {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let [gradient, xs, scales, means, variances] = arrays::<B, 5>(site, inputs)?;
        let shape = xs.shape.clone();
        let all = |of_channels: &[&Array<B>]| -> Result<Vec<B::Raw>> {
            let along = of_channels.iter().map(|array| self.along(array));
            [Ok(gradient.raw.clone()), Ok(xs.raw.clone())].into_iter().chain(along).collect()
        };
        let sums = self.folded(gradient.raw.clone(), &shape, AxisFold::Sum)?;
        let all_products = B::passed(NormPass::Product, all(&[&means, &variances])?, self.epsilon);
        let products = self.folded(all_products, &shape, AxisFold::Sum)?;
        // Moments that do not depend on the elements have no gradient: a product remains.
        let no_sums = site.full(0.0, DType::F32, sums.shape.clone());
        let [of_sums, of_products] = if self.is_training { [&sums, &products] } else { [&no_sums, &no_sums] };
        let inputs = all(&[&means, &variances, &scales, of_sums, of_products])?;
        let raw = B::passed(NormPass::Backward, inputs, self.epsilon);
        let answer = Array::<B> { raw, dtype: DType::F32, shape, home: Home::default() };
        Ok(EngineOutcome::Done(smallvec![answer.value(), products.value(), sums.value(), nothing(), nothing()]))
    }
}

/// A pass over all elements: its other inputs are numbers of the channels, broadcast.
#[derive(Clone, Copy, Debug)]
pub enum NormPass {
    /// Of the elements, the means, variances, scales and offsets.
    Normalise,
    /// Of the gradients, the elements, the means and variances: the gradients times the normalised elements.
    Product,
    /// Of the same, the scales, the sums of the gradients and those of the products: the gradient of the elements.
    Backward,
}

fn nothing() -> Value {
    Value::Host(Tensor::vector(Vec::<f32>::new()))
}
