//! Normalisation of quantised images: of each channel of each image, and by moments that are inputs.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::call::{product, take};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::scale::{FromReal, Range, least, most};
use super::{is_of, range, scalar, with_range};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("QuantizedInstanceNorm", |node| {
        let norm = InstanceNorm::of(node)?;
        Ok(is_of(node, &[DType::QU8], DType::QU8)
            .then(|| Box::new(move |inputs| norm.normalized(inputs)) as HostKernel))
    });
    ops.insert("QuantizedBatchNormWithGlobalNormalization", |node| {
        let (epsilon, scales) = (node.attrs.float("variance_epsilon")?, node.attrs.bool("scale_after_normalization")?);
        let kernel = move |inputs| by_moments(inputs, epsilon, scales);
        Ok(is_of(node, &[DType::QU8], DType::QI32).then(|| Box::new(kernel) as HostKernel))
    });
}

#[derive(Clone, Copy)]
struct InstanceNorm {
    epsilon: f32,
    /// The least width of the range of the output.
    least_width: f32,
    /// The range of the output if it is given; otherwise it is that of the numbers.
    given: Option<Range>,
}

impl InstanceNorm {
    fn of(node: &KernelNode) -> Result<InstanceNorm> {
        let given = match node.attrs.bool("output_range_given")? {
            true => Some(Range { min: node.attrs.float("given_y_min")?, max: node.attrs.float("given_y_max")? }),
            false => None,
        };
        if let Some(Range { min, max }) = given.filter(|range| range.min >= range.max) {
            return Err(Failure::invalid(format!("given_y_min must be less than given_y_max : {min} >= {max}")));
        }
        let (epsilon, least_width) = (node.attrs.float("variance_epsilon")?, node.attrs.float("min_separation")?);
        Ok(InstanceNorm { epsilon, least_width, given })
    }

    fn normalized(self, inputs: Inputs) -> Result<Outputs> {
        let [x, min, max] = take(inputs)?;
        let own = Range { min: scalar(&min, "x_min")?, max: scalar(&max, "x_max")? };
        if own.min >= own.max {
            return Err(Failure::invalid(format!(
                "input_min must be less than input_max : {} >= {}",
                own.min, own.max
            )));
        }
        let &[batch, height, width, channels] = x.dims() else {
            return Err(Failure::invalid(format!("x must be 4-dimensional, got shape {}", x.shape())));
        };
        let pixels = product(&[height, width]);
        let mut normal = Vec::with_capacity(x.shape().checked_elements(DType::F32)?);
        let elements = x.stored::<u8>()?;
        let scale = (own.max - own.min) / 255.0;
        for image in elements.chunks(product(&[pixels, channels]).max(1)).take(batch) {
            let mean = averages(image, channels, pixels, |_, x| f64::from(x));
            let mean: Vec<f32> = mean.into_iter().map(|mean| mean as f32).collect();
            let centred = |channel: usize, x: u8| scale * (f32::from(x) - mean[channel]);
            let variance = averages(image, channels, pixels, |channel, x| f64::from(centred(channel, x).powi(2)));
            let factors: Vec<f32> =
                variance.into_iter().map(|variance| 1.0 / (variance as f32 + self.epsilon).sqrt()).collect();
            for row in paced(image.chunks(channels), 4 * channels) {
                normal.extend(row.iter().enumerate().map(|(channel, &x)| centred(channel, x) * factors[channel]));
            }
        }
        let mut range = self.given.unwrap_or_else(|| {
            let ends =
                normal.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &x| (least(min, x), most(max, x)));
            Range { min: ends.0, max: ends.1 }
        });
        if range.max - range.min < self.least_width {
            range.max = range.min + self.least_width;
        }
        let whole = FromReal::<u8>::new(range);
        let numbers = paced(normal.into_iter(), 4).map(|x| whole.quantized(x)).collect();
        Ok(with_range(Tensor::from_stored(DType::QU8, x.shape().clone(), numbers), range))
    }
}

/// The average of `f` over the pixels of an image, for each channel.
fn averages(image: &[u8], channels: usize, pixels: usize, f: impl Fn(usize, u8) -> f64) -> Vec<f64> {
    let mut sums = vec![0f64; channels];
    for row in paced(image.chunks(channels.max(1)), 4 * channels) {
        sums.iter_mut().zip(row).enumerate().for_each(|(channel, (sum, &x))| *sum += f(channel, x));
    }
    sums.into_iter().map(|sum| sum / pixels as f64).collect()
}

/// The fixed-point numbers in which an image is normalised by moments: 10 bits after the point.
const FIXED: Range = Range { min: -1_048_576.0, max: 1_048_576.0 };

fn by_moments(inputs: Inputs, epsilon: f32, scales: bool) -> Result<Outputs> {
    let inputs: [Tensor; 15] = take(inputs)?;
    let [x, x_min, x_max, moments @ ..] = inputs;
    if x.rank() != 4 {
        return Err(Failure::invalid(format!("input must be 4-dimensional, got shape {}", x.shape())));
    }
    let depth = x.dims()[3];
    let of_x = range(&x_min, &x_max, ["t_min", "t_max"])?;
    let mut real = Vec::with_capacity(4);
    for (part, name) in moments.chunks(3).zip(["m", "v", "beta", "gamma"]) {
        let [numbers, min, max] = part else { continue };
        if numbers.dims() != [depth] {
            let why = format!(
                "{name} must be a vector with an element for each of the {depth} channels, got shape {}",
                numbers.shape()
            );
            return Err(Failure::invalid(why));
        }
        let range = range(min, max, [&format!("{name}_min"), &format!("{name}_max")])?;
        real.push(numbers.stored::<u8>()?.iter().map(|&x| range.real(x)).collect::<Vec<f32>>());
    }
    let [mean, variance, beta, gamma] = &real[..] else { return Err(Failure::invalid("a moment is missing")) };
    x.shape().checked_elements(DType::QI32)?;
    let lines: Vec<[i32; 2]> = (0..depth)
        .map(|channel| {
            let factor = 1.0 / (variance[channel] + epsilon).sqrt();
            let factor = if scales { factor * gamma[channel] } else { factor };
            [factor, -mean[channel] * factor + beta[channel]].map(|x| FIXED.quantized(x))
        })
        .collect();
    let one: i32 = FIXED.quantized(1.0);
    let mut numbers = Vec::with_capacity(x.len());
    for row in paced(x.stored::<u8>()?.chunks(depth.max(1)), 8 * depth) {
        numbers.extend(row.iter().zip(&lines).map(|(&x, &[factor, offset])| {
            let x: i32 = of_x.requantized(x, FIXED);
            (x.wrapping_mul(factor) / one).wrapping_add(offset)
        }));
    }
    Ok(with_range(Tensor::from_stored(DType::QI32, x.shape().clone(), numbers), FIXED))
}
