//! Convolutions of numbers with scales and zero points, and of float32 with such a filter: any number of spatial axes, in any
//! order, with padding, strides, dilation of both operands, and groups.

use meshtf_loops::chunks::{chunk, in_chunks, threads};
use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};
use prost::Message;

use super::super::call::{kernel as call, product};
use super::super::{KernelNode, Registry};
use super::is_of;
use super::uniform::{Limits, Scaling, axis};
use super::uniform_product::{Completed, Fitted};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("UniformQuantizedConvolution", |node| {
        if axis(node, "lhs_")?.is_some() {
            return Err(Failure::invalid("lhs_quantization_axis Attr must be -1 (per-tensor)."));
        }
        let (attrs, axes) = (Attrs::of(node)?, [axis(node, "rhs_")?, axis(node, "output_")?]);
        let limits = Limits::of(node, "output_")?;
        let kernel = call(move |inputs| quantized(&attrs, inputs, axes, limits));
        Ok(is_of(node, &[DType::QI8, DType::QI8], DType::QI32).then_some(kernel))
    });
    ops.insert("UniformQuantizedConvolutionHybrid", |node| {
        let (attrs, axis) = (Attrs::of(node)?, axis(node, "rhs_")?);
        let kernel = call(move |inputs| hybrid(&attrs, inputs, axis));
        Ok(is_of(node, &[DType::F32, DType::QI8], DType::F32).then_some(kernel))
    });
}

/// The meaning of each axis: TensorFlow's UniformQuantizedConvolutionDimensionNumbersAttr.
#[derive(Clone, PartialEq, Message)]
struct Numbers {
    #[prost(int64, tag = "1")]
    input_batch: i64,
    #[prost(int64, tag = "2")]
    input_feature: i64,
    #[prost(int64, repeated, tag = "3")]
    input_spatial: Vec<i64>,
    #[prost(int64, tag = "4")]
    kernel_input_feature: i64,
    #[prost(int64, tag = "5")]
    kernel_output_feature: i64,
    #[prost(int64, repeated, tag = "6")]
    kernel_spatial: Vec<i64>,
    #[prost(int64, tag = "7")]
    output_batch: i64,
    #[prost(int64, tag = "8")]
    output_feature: i64,
    #[prost(int64, repeated, tag = "9")]
    output_spatial: Vec<i64>,
}

#[derive(Clone, PartialEq)]
enum Padding {
    Same,
    Valid,
    /// Before and after, for each spatial axis.
    Explicit(Vec<usize>),
}

struct Attrs {
    strides: Vec<usize>,
    padding: Padding,
    lhs_dilation: Vec<usize>,
    rhs_dilation: Vec<usize>,
    batch_groups: usize,
    feature_groups: usize,
    /// `None` for batch, features, and the spatial axes in order.
    numbers: Option<Numbers>,
}

impl Attrs {
    fn of(node: &KernelNode) -> Result<Attrs> {
        let at_least = |least: i64, name: &str, value: i64| {
            let value = i32::try_from(value).ok().filter(|&value| i64::from(value) >= least);
            value
                .map(|value| value as usize)
                .ok_or_else(|| Failure::invalid(format!("all elements of {name} must be int32s of at least {least}")))
        };
        let list = |name: &str, least: i64| -> Result<Vec<usize>> {
            node.attrs.ints(name)?.iter().map(|&value| at_least(least, name, value)).collect()
        };
        let explicit = list("explicit_padding", 0)?;
        let padding = match node.attrs.str("padding")? {
            "EXPLICIT" => Padding::Explicit(explicit),
            "SAME" | "VALID" if !explicit.is_empty() => {
                return Err(Failure::invalid("If padding is not 'EXPLICIT', explicit_padding must be empty."));
            }
            "SAME" => Padding::Same,
            "VALID" => Padding::Valid,
            other => {
                let why = format!("padding must be one of EXPLICIT, SAME and VALID, but given: {other}");
                return Err(Failure::invalid(why));
            }
        };
        let numbers = match node.attrs.bytes("dimension_numbers")? {
            [] => None,
            bytes => Some(Numbers::decode(bytes).map_err(|error| {
                Failure::invalid(format!("dimension_numbers is not a message of dimension numbers: {error}"))
            })?),
        };
        let count = |name: &str| at_least(1, name, node.attrs.int(name)?);
        Ok(Attrs {
            strides: list("window_strides", 1)?,
            padding,
            lhs_dilation: list("lhs_dilation", 1)?,
            rhs_dilation: list("rhs_dilation", 1)?,
            batch_groups: count("batch_group_count")?,
            feature_groups: count("feature_group_count")?,
            numbers: numbers.filter(|numbers| !numbers.input_spatial.is_empty()),
        })
    }
}

/// The axes of a tensor in the order batch (of a filter: output features), features, spatial axes.
type Order = Vec<usize>;

/// An axis along which a filter slides.
struct Slide {
    size: usize,
    window: usize,
    output: usize,
    stride: usize,
    before: usize,
    lhs_dilation: usize,
    rhs_dilation: usize,
}

/// A convolution of operands of known shapes.
struct Conv {
    orders: [Order; 3],
    slides: Vec<Slide>,
    batch_groups: usize,
    feature_groups: usize,
    lhs: Shape,
    rhs: Shape,
    out: Shape,
}

/// The size of an axis with its elements apart.
fn dilated(size: usize, dilation: usize) -> usize {
    size.checked_sub(1).map_or(0, |last| last * dilation + 1)
}

impl Conv {
    fn new(attrs: &Attrs, lhs: &Shape, rhs: &Shape) -> Result<Conv> {
        let rank = lhs.rank();
        if rank != rhs.rank() || rank < 3 {
            return Err(Failure::invalid(format!(
                "lhs and rhs must have the same number of dimensions, at least 3; given shapes {lhs} and {rhs}"
            )));
        }
        let spatial = rank - 2;
        let orders = orders(attrs.numbers.as_ref(), rank)?;
        let each = |name: &str, all: &[usize]| match all.len() {
            0 => Ok(vec![1; spatial]),
            n if n == spatial => Ok(all.to_vec()),
            n => Err(Failure::invalid(format!("Size of {name} Attr must be dims - 2, {spatial}; given {n}"))),
        };
        let strides = each("window_strides", &attrs.strides)?;
        let (apart, spread) = (each("lhs_dilation", &attrs.lhs_dilation)?, each("rhs_dilation", &attrs.rhs_dilation)?);
        if let Padding::Explicit(all) = &attrs.padding
            && all.len() != 2 * spatial
        {
            let why =
                format!("Size of explicit_padding Attr must be 2 * (rank - 2), {}; given {}", 2 * spatial, all.len());
            return Err(Failure::invalid(why));
        }
        let [of_lhs, of_rhs, of_out] = &orders;
        let size = |shape: &Shape, order: &Order, i: usize| shape.dims()[order[i]];
        let (batch, features) = (size(lhs, of_lhs, 0), size(lhs, of_lhs, 1));
        let (out_features, in_features) = (size(rhs, of_rhs, 0), size(rhs, of_rhs, 1));
        if Some(features) != in_features.checked_mul(attrs.feature_groups) || in_features == 0 {
            return Err(Failure::invalid(format!(
                "the lhs feature dimension must be feature_group_count times that of rhs, which must not be 0, but {features} \
                 is not {} * {in_features}",
                attrs.feature_groups
            )));
        }
        for (name, size, groups) in [
            ("rhs output feature", out_features, attrs.feature_groups),
            ("rhs output feature", out_features, attrs.batch_groups),
            ("lhs batch", batch, attrs.batch_groups),
        ] {
            if size % groups != 0 {
                let why = format!(
                    "the {name} dimension must be a multiple of the number of groups, but {size} is none of {groups}"
                );
                return Err(Failure::invalid(why));
            }
        }
        let mut dims = vec![0; rank];
        (dims[of_out[0]], dims[of_out[1]]) = (batch / attrs.batch_groups, out_features);
        let mut slides = Vec::with_capacity(spatial);
        for i in 0..spatial {
            let (own, window) = (size(lhs, of_lhs, i + 2), size(rhs, of_rhs, i + 2));
            let (covered, span) = (dilated(own, apart[i]), dilated(window, spread[i]));
            let (before, after) = match &attrs.padding {
                Padding::Valid => (0, 0),
                Padding::Explicit(all) => (all[2 * i], all[2 * i + 1]),
                Padding::Same => {
                    let count = covered.div_ceil(strides[i]);
                    let total = (count.saturating_sub(1) * strides[i] + span).saturating_sub(covered);
                    (total / 2, total - total / 2)
                }
            };
            let Some(room) = (covered + before + after + 1).checked_sub(span) else {
                return Err(Failure::invalid(format!(
                    "the filter spans {span} elements along a spatial axis of {covered} with padding {before} and {after}"
                )));
            };
            let output = room.div_ceil(strides[i]);
            dims[of_out[i + 2]] = output;
            let (lhs_dilation, rhs_dilation) = (apart[i], spread[i]);
            slides.push(Slide { size: own, window, output, stride: strides[i], before, lhs_dilation, rhs_dilation });
        }
        let (lhs, rhs, out) = (lhs.clone(), rhs.clone(), Shape::from(dims));
        Ok(Conv {
            orders,
            slides,
            batch_groups: attrs.batch_groups,
            feature_groups: attrs.feature_groups,
            lhs,
            rhs,
            out,
        })
    }

    /// Computes each element of the output: `f` of its batch in `lhs`, its channel and the sum of the products of integers less
    /// their zero points, modulo 2^32. `lhs` has a zero point for each of its batches, or one for all.
    fn computed<T: Copy + Default + Send + Sync>(
        &self,
        lhs: &[i8],
        lhs_zeros: &[i32],
        rhs: &[i8],
        of_rhs: &Scaling,
        f: impl Fn(usize, usize, i32) -> T + Sync,
    ) -> Result<Vec<T>> {
        let [of_lhs, of_rhs_axes, of_out] = &self.orders;
        let strides = |shape: &Shape, order: &Order| -> Vec<usize> {
            let strides = shape.strides();
            order.iter().map(|&axis| strides[axis]).collect()
        };
        let (lhs_strides, rhs_strides) = (strides(&self.lhs, of_lhs), strides(&self.rhs, of_rhs_axes));
        let out_strides = strides(&self.out, of_out);
        let (batch, channels) = (self.out.dims()[of_out[0]], self.out.dims()[of_out[1]]);
        let features = self.rhs.dims()[of_rhs_axes[1]];
        let outputs: Vec<usize> = self.slides.iter().map(|slide| slide.output).collect();
        let windows: Vec<usize> = self.slides.iter().map(|slide| slide.window).collect();
        let (places, under) = (product(&outputs), product(&windows));
        let (per_feature_group, per_batch_group) = (channels / self.feature_groups, channels / self.batch_groups);
        memory::admit(self.out.elements().unwrap_or(usize::MAX).saturating_mul(2 * size_of::<T>()))?;
        memory::admit(under.saturating_mul(size_of::<(Option<usize>, usize)>() * threads()))?;
        // By position, then batch, then channel.
        let each = batch * channels;
        let mut out = vec![T::default(); places * each];
        let many = chunk(each.saturating_mul(features).saturating_mul(under));
        in_chunks(out.chunks_mut((many * each).max(1)).enumerate(), |(i, to)| {
            for (place, to) in (i * many..).zip(to.chunks_mut(each)) {
                let elements = self.under(&index(place, &outputs), &windows, &lhs_strides[2..], &rhs_strides[2..]);
                for (at, to) in to.iter_mut().enumerate() {
                    let (own_batch, channel) = (at / channels, at % channels);
                    let lhs_batch = channel / per_batch_group * batch + own_batch;
                    let zero = lhs_zeros[if lhs_zeros.len() > 1 { lhs_batch } else { 0 }];
                    // Padding is the zero point, as an int8.
                    let outside = i32::from(zero as i8).wrapping_sub(zero);
                    let first = channel / per_feature_group * features;
                    let mut sum = 0i32;
                    for feature in 0..features {
                        let base = lhs_batch * lhs_strides[0] + (first + feature) * lhs_strides[1];
                        let weights = channel * rhs_strides[0] + feature * rhs_strides[1];
                        for &(element, weight) in &elements {
                            let x = element.map_or(outside, |at| i32::from(lhs[base + at]).wrapping_sub(zero));
                            let y = i32::from(rhs[weights + weight]).wrapping_sub(of_rhs.zero(channel));
                            sum = sum.wrapping_add(x.wrapping_mul(y));
                        }
                    }
                    *to = f(lhs_batch, channel, sum);
                }
            }
        });
        let mut ordered = vec![T::default(); out.len()];
        for (place, part) in out.chunks(each.max(1)).enumerate() {
            let base: usize = index(place, &outputs).iter().zip(&out_strides[2..]).map(|(i, stride)| i * stride).sum();
            for (at, &value) in part.iter().enumerate() {
                ordered[base + at / channels * out_strides[0] + at % channels * out_strides[1]] = value;
            }
        }
        Ok(ordered)
    }

    /// The elements of an image under the window at a position, and those of the filter over them, as offsets. Padding has no
    /// element.
    fn under(&self, place: &[usize], windows: &[usize], lhs: &[usize], rhs: &[usize]) -> Vec<(Option<usize>, usize)> {
        let one = |at: usize| {
            let (mut element, mut weight) = (Some(0), 0);
            for (axis, k) in index(at, windows).into_iter().enumerate() {
                let slide = &self.slides[axis];
                let position = (place[axis] * slide.stride + k * slide.rhs_dilation).checked_sub(slide.before);
                let own = position.filter(|at| at % slide.lhs_dilation == 0).map(|at| at / slide.lhs_dilation);
                element = element.zip(own.filter(|&at| at < slide.size)).map(|(all, at)| all + at * lhs[axis]);
                weight += k * rhs[axis];
            }
            (element, weight)
        };
        (0..product(windows)).map(one).collect()
    }
}

/// The position of an element among elements of these sizes.
fn index(mut at: usize, sizes: &[usize]) -> Vec<usize> {
    let mut index = vec![0; sizes.len()];
    for (own, &size) in index.iter_mut().zip(sizes).rev() {
        *own = at % size.max(1);
        at /= size.max(1);
    }
    index
}

/// The axes of both operands and of the output.
fn orders(numbers: Option<&Numbers>, rank: usize) -> Result<[Order; 3]> {
    let Some(numbers) = numbers else { return Ok(std::array::from_fn(|_| (0..rank).collect())) };
    let Numbers { input_spatial, kernel_spatial, output_spatial, .. } = numbers;
    let all = [
        (numbers.input_batch, numbers.input_feature, input_spatial),
        (numbers.kernel_output_feature, numbers.kernel_input_feature, kernel_spatial),
        (numbers.output_batch, numbers.output_feature, output_spatial),
    ];
    let order = |(first, second, spatial): (i64, i64, &Vec<i64>)| {
        let order: Option<Order> =
            [first, second].iter().chain(spatial).map(|&axis| usize::try_from(axis).ok()).collect();
        let is_whole = |order: &Order| order.len() == rank && (0..rank).all(|axis| order.contains(&axis));
        order.filter(is_whole).ok_or_else(|| {
            Failure::invalid(format!("dimension_numbers must name each of the {rank} axes of every tensor once"))
        })
    };
    let [lhs, rhs, out] = all;
    Ok([order(lhs)?, order(rhs)?, order(out)?])
}

/// The scaling of a filter, or of the output, by an axis that must be that of the output features.
fn by_channel(
    [scales, zeros]: [&Tensor; 2],
    (shape, order, feature): (&Shape, &Order, usize),
    axis: Option<usize>,
    name: &str,
) -> Result<Scaling> {
    if axis.is_some_and(|axis| axis != order[feature]) {
        return Err(Failure::invalid(format!(
            "{name}_quantization_axis Attr must be -1 (per-tensor) or the axis of the output features, {}",
            order[feature]
        )));
    }
    Scaling::of(scales, zeros, shape, axis)?.positive(name)
}

fn quantized(attrs: &Attrs, inputs: [Tensor; 8], axes: [Option<usize>; 2], limits: Limits) -> Result<Tensor> {
    let [lhs, rhs, lhs_scales, lhs_zeros, rhs_scales, rhs_zeros, scales, zeros] = inputs;
    let of_lhs = Scaling::of(&lhs_scales, &lhs_zeros, lhs.shape(), None)?.positive("lhs")?;
    let conv = Conv::new(attrs, lhs.shape(), rhs.shape())?;
    let [_, order, out_order] = &conv.orders;
    let of_rhs = by_channel([&rhs_scales, &rhs_zeros], (&conv.rhs, order, 0), axes[0], "rhs")?;
    let of_out = by_channel([&scales, &zeros], (&conv.out, out_order, 1), axes[1], "output")?;
    conv.out.checked_elements(DType::QI32)?;
    let completed = Completed::new(&of_lhs, &of_rhs, of_out, conv.rhs.dims()[order[0]], limits)?;
    let (image, filter) = (lhs.stored::<i8>()?, rhs.stored::<i8>()?);
    let out = conv.computed(image, &of_lhs.zeros, filter, &of_rhs, |_, channel, sum| completed.of(channel, sum))?;
    Ok(Tensor::from_stored(DType::QI32, conv.out, out))
}

fn hybrid(attrs: &Attrs, inputs: [Tensor; 4], axis: Option<usize>) -> Result<Tensor> {
    let [lhs, rhs, rhs_scales, rhs_zeros] = inputs;
    let conv = Conv::new(attrs, lhs.shape(), rhs.shape())?;
    let of_rhs = by_channel([&rhs_scales, &rhs_zeros], (&conv.rhs, &conv.orders[1], 0), axis, "rhs")?;
    conv.out.checked_elements(DType::F32)?;
    // Each batch has a scale and a zero point of its own.
    let batch_axis = conv.orders[0][0];
    let (batches, inner) = (lhs.dims()[batch_axis], product(&lhs.dims()[batch_axis + 1..]));
    memory::admit(lhs.len().saturating_mul(2 * size_of::<f32>()))?;
    let all = lhs.slice::<f32>()?;
    let mut apart = vec![Vec::with_capacity(lhs.len() / batches.max(1)); batches];
    for (i, run) in all.chunks(inner.max(1)).enumerate() {
        apart[i % batches].extend_from_slice(run);
    }
    let fitted: Vec<Fitted> = paced(apart.iter(), 4 * lhs.len() / batches.max(1)).map(|own| Fitted::new(own)).collect();
    let mut taken: Vec<_> = fitted.iter().map(|own| own.whole.iter().copied()).collect();
    let mut whole = Vec::with_capacity(lhs.len());
    for (i, run) in all.chunks(inner.max(1)).enumerate() {
        whole.extend(taken[i % batches].by_ref().take(run.len()));
    }
    let (scales, batch_zeros): (Vec<f32>, Vec<i32>) = fitted.iter().map(|own| (own.scale, own.zero)).unzip();
    let out = conv.computed(&whole, &batch_zeros, rhs.stored::<i8>()?, &of_rhs, |batch, channel, sum| {
        sum as f32 * scales[batch] * of_rhs.scale(channel)
    })?;
    Ok(Tensor::from_vec(conv.out, out))
}
