//! Rules for convolutions over one, two or three dims, transposed ones, and their gradients.
//!
//! burn's images are `[batch, channels, spatial…]` and its filters `[out, in, spatial…]`, where `in` is the channels of one
//! group. The ops take images in that layout, and filters as `[spatial…, in, out]`. One dim is computed as two, the first of
//! length 1; for three there are no ops with explicit padding, so the image is padded with zeros before.
//!
//! A transposed convolution is the gradient of a convolution with respect to its image, with the same filter.

use burn_ir::{
    Conv1dOptionsIr, Conv2dOptionsIr, Conv3dOptionsIr, ConvTranspose1dOptionsIr, ConvTranspose2dOptionsIr,
    ConvTranspose3dOptionsIr, TensorIr,
};
use meshtf_graph::{Attr, Input, Output};
use meshtf_tensor::failure::{Failure, Result};

use super::window::{lifted, pads};
use crate::Lowering;
use crate::compose::sizes;

/// The movement of a filter over an image: an entry for each of two or three dims.
pub(super) struct Slide {
    stride: Vec<usize>,
    /// Before and after.
    padding: Vec<(usize, usize)>,
    dilation: Vec<usize>,
}

/// The tensors of a convolution, or of its gradient with respect to the image or the filter.
pub(super) struct Convolution<'a> {
    pub x: &'a TensorIr,
    pub weight: &'a TensorIr,
    pub slide: Slide,
    pub out: &'a TensorIr,
}

impl Slide {
    fn new(stride: &[usize], padding: &[(usize, usize)], dilation: &[usize]) -> Slide {
        let mut slide = Slide { stride: stride.to_vec(), padding: padding.to_vec(), dilation: dilation.to_vec() };
        if stride.len() == 1 {
            slide.stride.insert(0, 1);
            slide.padding.insert(0, (0, 0));
            slide.dilation.insert(0, 1);
        }
        slide
    }

    /// The movement of the filter in the convolution whose gradient a transposed convolution is.
    fn transposed(stride: &[usize], padding: &[usize], added: &[usize], dilation: &[usize]) -> Result<Slide> {
        let mut sides = Vec::new();
        for ((&stride, &padding), &added) in stride.iter().zip(padding).zip(added) {
            if added < stride {
                // The added rows or columns are beyond the last position of the filter.
                sides.push((padding, padding));
            } else if added < padding + stride {
                sides.push((padding, padding.saturating_sub(added)));
            } else {
                let why =
                    format!("padding_out is {added}; it must be less than stride + padding, {}", padding + stride);
                return Err(Failure::invalid(why));
            }
        }
        Ok(Slide::new(stride, &sides, dilation))
    }

    fn spatial(&self) -> usize {
        self.stride.len()
    }

    /// `Conv2D`, or the op for three dims.
    fn op(&self, gradient: &str) -> String {
        match (self.spatial(), gradient) {
            (2, _) => format!("Conv2D{gradient}"),
            (_, "") => "Conv3D".to_owned(),
            _ => format!("Conv3D{gradient}V2"),
        }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let outer =
            |values: &[usize]| -> Attr { [1, 1].iter().chain(values).map(|&n| n as i64).collect::<Vec<_>>().into() };
        let mut attrs = vec![("strides", outer(&self.stride)), ("dilations", outer(&self.dilation))];
        if self.spatial() == 2 {
            let sides = self.padding.iter().flat_map(|side| [side.0 as i64, side.1 as i64]);
            let all: Vec<i64> = [0; 4].into_iter().chain(sides).collect();
            attrs.push(("data_format", "NCHW".into()));
            attrs.push(("padding", "EXPLICIT".into()));
            attrs.push(("explicit_paddings", all.into()));
        } else {
            attrs.push(("data_format", "NCDHW".into()));
            attrs.push(("padding", "VALID".into()));
        }
        attrs
    }

    /// The zeros with which an image is padded before the op.
    fn zeros(&self) -> Vec<(usize, usize)> {
        if self.spatial() == 2 { vec![(0, 0); 2] } else { self.padding.clone() }
    }
}

impl Lowering<'_> {
    pub(super) fn convolution(&mut self, of: Convolution, bias: Option<&TensorIr>) -> Result<()> {
        let (x, image) = self.lifted(of.x)?;
        let (filter, _) = self.filter(of.weight)?;
        let (x, _) = self.surrounded(x, &image, &of.slide)?;
        let answer = self.node_with(&of.slide.op(""), [x.into(), filter.into()], &of.slide.attrs())?;
        self.finish(answer, bias, of.slide.spatial(), of.out)
    }

    /// The gradient with respect to the image, or a transposed convolution: `of.x` is then its input, and `of.out` the image.
    pub(super) fn convolution_by_image(&mut self, of: Convolution, bias: Option<&TensorIr>) -> Result<()> {
        let (gradient, _) = self.lifted(of.x)?;
        let (filter, _) = self.filter(of.weight)?;
        let image = lifted(&of.out.shape);
        let sides = of.slide.zeros();
        let whole = enlarged(&image, &sides);
        let inputs: [Input; 3] = [sizes(&whole)?, filter.into(), gradient.into()];
        let mut answer = self.node_with(&of.slide.op("BackpropInput"), inputs, &of.slide.attrs())?;
        if whole != image {
            let begin: Vec<usize> = [0, 0].into_iter().chain(sides.iter().map(|side| side.0)).collect();
            answer = self.node("Slice", [answer.into(), sizes(&begin)?, sizes(&image)?])?;
        }
        self.finish(answer, bias, of.slide.spatial(), of.out)
    }

    /// The gradient with respect to the filter: `of.x` is the image.
    pub(super) fn convolution_by_filter(&mut self, of: Convolution, gradient: &TensorIr) -> Result<()> {
        let (x, image) = self.lifted(of.x)?;
        let (gradient, _) = self.lifted(gradient)?;
        let (x, _) = self.surrounded(x, &image, &of.slide)?;
        let filter = lifted(&of.weight.shape);
        let order = places_first(filter.len());
        let stated: Vec<usize> = order.iter().map(|&dim| filter[dim]).collect();
        let inputs: [Input; 3] = [x.into(), sizes(&stated)?, gradient.into()];
        let answer = self.node_with(&of.slide.op("BackpropFilter"), inputs, &of.slide.attrs())?;
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &dim)| back[dim] = at);
        let answer = self.transpose(answer, &back)?;
        let answer = self.reshape(answer, &filter, &of.out.shape)?;
        self.write(of.out, answer)
    }

    /// The gradient with respect to the bias: the sum over all dims but the channels.
    pub(super) fn convolution_by_bias(&mut self, gradient: &TensorIr, out: &TensorIr) -> Result<()> {
        let others: Vec<usize> = (0..gradient.shape.rank()).filter(|&dim| dim != 1).collect();
        let value = self.read(gradient)?;
        let answer = self.node("Sum", [value.into(), sizes(&others)?])?;
        self.write(out, answer)
    }

    /// A filter in the layout of the ops, and its dims in burn's, with at least two spatial dims.
    fn filter(&mut self, weight: &TensorIr) -> Result<(Output, Vec<usize>)> {
        let (value, dims) = self.lifted(weight)?;
        Ok((self.transpose(value, &places_first(dims.len()))?, dims))
    }

    /// An image padded with the zeros that the op does not add.
    fn surrounded(&mut self, x: Output, image: &[usize], slide: &Slide) -> Result<(Output, Vec<usize>)> {
        let sides = slide.zeros();
        let whole = enlarged(image, &sides);
        let x = if whole == image { x } else { self.node("Pad", [x.into(), pads(&sides)?])? };
        Ok((x, whole))
    }

    /// Adds the bias, and reshapes the result to burn's shape.
    fn finish(&mut self, answer: Output, bias: Option<&TensorIr>, spatial: usize, out: &TensorIr) -> Result<()> {
        let mut answer = answer;
        if let Some(bias) = bias {
            let bias = self.read(bias)?;
            let attrs = [("data_format", "NCHW".into())];
            answer = self.node_with("BiasAdd", [answer.into(), bias.into()], &attrs)?;
        }
        let dims = lifted(&out.shape);
        debug_assert_eq!(dims.len(), spatial + 2);
        let answer = self.reshape(answer, &dims, &out.shape)?;
        self.write(out, answer)
    }
}

/// The order of dims that makes `[out, in, spatial…]` into `[spatial…, in, out]`.
fn places_first(rank: usize) -> Vec<usize> {
    (2..rank).chain([1, 0]).collect()
}

/// The dims of a padded image.
fn enlarged(image: &[usize], sides: &[(usize, usize)]) -> Vec<usize> {
    let mut dims = image.to_vec();
    dims[2..].iter_mut().zip(sides).for_each(|(size, side)| *size += side.0 + side.1);
    dims
}

macro_rules! slides {
    ($($options:ty, $option:ident => $slide:expr;)*) => {
        $(impl TryFrom<&$options> for Slide {
            type Error = Failure;

            fn try_from($option: &$options) -> Result<Slide> {
                $slide
            }
        })*
    };
}

slides! {
    Conv1dOptionsIr, o => Ok(Slide::new(&o.stride, &o.padding, &o.dilation));
    Conv2dOptionsIr, o => Ok(Slide::new(&o.stride, &o.padding, &o.dilation));
    Conv3dOptionsIr, o => Ok(Slide::new(&o.stride, &o.padding.map(|side| (side, side)), &o.dilation));
    ConvTranspose1dOptionsIr, o => Slide::transposed(&o.stride, &o.padding, &o.padding_out, &o.dilation);
    ConvTranspose2dOptionsIr, o => Slide::transposed(&o.stride, &o.padding, &o.padding_out, &o.dilation);
    ConvTranspose3dOptionsIr, o => Slide::transposed(&o.stride, &o.padding, &o.padding_out, &o.dilation);
}
