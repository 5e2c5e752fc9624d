//! Convolutions of images and both gradients, channels last: products of small tiles (`tile`) that read the pixels in place.
//!
//! Every sum is added in an order that follows from the sizes and the processor alone, whatever the number of threads. The
//! padding contributes nothing, even to infinities and NaN.

mod filter;
mod pass;
mod source;
#[cfg(test)]
mod tests;

use pass::{Grid, Pass};
use source::Tap;

use super::lanes::Width;
use super::panels;
use super::tail::Finish;

/// An ungrouped convolution. All sizes but `before` are at least 1.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    pub batch: usize,
    /// Height and width of the image, of the window, and of the output.
    pub image: [usize; 2],
    pub window: [usize; 2],
    pub answer: [usize; 2],
    /// Channels of the image and of the output.
    pub channels: usize,
    pub made: usize,
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Padding above and on the left.
    pub before: [usize; 2],
}

/// A filter as [`Convolution::packed`] arranges it.
#[derive(Debug)]
pub struct PackedFilter {
    width: Width,
    window: [usize; 2],
    channels: usize,
    made: usize,
    weights: Vec<f32>,
}

impl PackedFilter {
    /// The filter in HWIO that was packed, bit by bit.
    pub fn unpacked(&self) -> Vec<f32> {
        let rows = self.window[0] * self.window[1] * self.channels;
        panels::unpacked(self.width, &self.weights, [rows, self.made], [self.made, 1])
    }
}

/// Most multiplications of a part, within which there is no check for cancellation: a tenth of a second.
const MOST_WORK: usize = 1 << 32;
/// Most floats that are copied to be padded for one row of the output.
const MOST_SCRATCH: usize = 1 << 22;

impl Convolution {
    /// The output, as NHWC, for an image in NHWC and a filter in HWIO of these sizes, whose parts `finish` completes; `None` if a
    /// row of it takes too long, or too much memory.
    ///
    /// # Panics
    /// If the length of a slice does not match the sizes.
    pub fn answer(&self, image: &[f32], filter: &[f32], finish: Option<Finish>) -> Option<Vec<f32>> {
        self.answer_with(Width::widest(), image, filter, finish)
    }

    fn answer_with(&self, width: Width, image: &[f32], filter: &[f32], finish: Option<Finish>) -> Option<Vec<f32>> {
        assert_eq!((image.len(), filter.len()), (self.pixels(), self.weights()), "the sizes of the convolution");
        self.forward(width).carry_out(vec![self.windows()], image, filter, finish)
    }

    /// A filter in HWIO of these sizes in the order in which convolutions read it, for many images; `None` if it has infinities
    /// or NaN.
    ///
    /// # Panics
    /// If the length of the slice does not match the sizes.
    pub fn packed(&self, filter: &[f32]) -> Option<PackedFilter> {
        self.packed_with(Width::widest(), filter)
    }

    fn packed_with(&self, width: Width, filter: &[f32]) -> Option<PackedFilter> {
        assert_eq!(filter.len(), self.weights(), "the filter has the size of the convolution");
        let weights = || self.forward(width).packed(&self.windows().taps, filter);
        let is_finite = filter.iter().all(|weight| weight.is_finite());
        let Convolution { window, channels, made, .. } = *self;
        is_finite.then(|| PackedFilter { width, window, channels, made, weights: weights() })
    }

    /// As [`Convolution::answer`], with a filter that a convolution of the same filter sizes packed.
    ///
    /// # Panics
    /// As [`Convolution::answer`].
    pub fn answer_packed(&self, image: &[f32], filter: &PackedFilter, finish: Option<Finish>) -> Option<Vec<f32>> {
        assert_eq!(image.len(), self.pixels(), "the images have the size of the convolution");
        let own = self.window[0] * self.window[1] * self.channels * self.made.next_multiple_of(filter.width.lanes());
        assert_eq!(
            (filter.window, filter.weights.len()),
            (self.window, own),
            "the filter has the size of the convolution"
        );
        self.forward(filter.width).carry_out_packed(self.windows(), image, &filter.weights, finish)
    }

    /// The windows of the forward pass.
    fn windows(&self) -> Grid {
        Grid {
            first: [0, 0],
            apart: [1, 1],
            count: self.answer,
            step: self.stride,
            taps: [self.taps(0), self.taps(1)],
            is_added: false,
        }
    }

    /// The gradient of the image, for that of the output; `None` as for [`Convolution::answer`].
    ///
    /// # Panics
    /// As [`Convolution::answer`].
    pub fn image_gradient(&self, filter: &[f32], gradient: &[f32]) -> Option<Vec<f32>> {
        self.image_gradient_with(Width::widest(), filter, gradient)
    }

    fn image_gradient_with(&self, width: Width, filter: &[f32], gradient: &[f32]) -> Option<Vec<f32>> {
        assert_eq!((gradient.len(), filter.len()), (self.answers(), self.weights()), "the sizes of the convolution");
        let (rows, columns) = (self.phases(0), self.phases(1));
        let grids = rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)));
        let grids = grids.map(|(row, column)| Grid {
            first: [row.0, column.0],
            apart: self.stride,
            count: [0, 1].map(|i| (self.image[i] - [row.0, column.0][i]).div_ceil(self.stride[i])),
            step: [1, 1],
            taps: [row.1.clone(), column.1.clone()],
            is_added: false,
        });
        self.backward(width).carry_out(grids.collect(), gradient, filter, None)
    }

    /// The gradient of the filter, for that of the output; `None` as for [`Convolution::answer`].
    ///
    /// # Panics
    /// As [`Convolution::answer`].
    pub fn filter_gradient(&self, image: &[f32], gradient: &[f32]) -> Option<Vec<f32>> {
        self.filter_gradient_with(Width::widest(), image, gradient)
    }

    fn filter_gradient_with(&self, width: Width, image: &[f32], gradient: &[f32]) -> Option<Vec<f32>> {
        assert_eq!((image.len(), gradient.len()), (self.pixels(), self.answers()), "the sizes of the convolution");
        filter::gradient(self, width, image, gradient)
    }

    /// Most bytes that the output or a gradient takes in addition to the result.
    pub fn scratch_bytes(&self) -> usize {
        let width = Width::widest();
        let passes = self.forward(width).scratch(self.made).max(self.backward(width).scratch(self.channels));
        size_of::<f32>() * passes.max(filter::scratch(self, width))
    }

    /// The forward pass: from the image to the output.
    fn forward(&self, width: Width) -> Pass {
        Pass {
            width,
            batch: self.batch,
            source: self.image,
            depth: self.channels,
            target: self.answer,
            made: self.made,
            window: self.window,
            is_transposed: false,
        }
    }

    /// The backward pass: from the output's gradient to that of the image.
    fn backward(&self, width: Width) -> Pass {
        Pass {
            width,
            batch: self.batch,
            source: self.answer,
            depth: self.made,
            target: self.image,
            made: self.channels,
            window: self.window,
            is_transposed: true,
        }
    }

    /// The taps of a window along a dimension, relative to its position without padding.
    fn taps(&self, axis: usize) -> Vec<Tap> {
        let at = |index: usize| (index * self.dilation[axis]) as isize - self.before[axis] as isize;
        (0..self.window[axis]).map(|index| Tap { at: at(index), index }).collect()
    }

    /// The outputs to which pixels contribute. If the stride is `n`, each tap meets every `n`th pixel only: for the pixels
    /// that meet the same taps, the first of them and the taps, in the order of the outputs.
    fn phases(&self, axis: usize) -> Vec<(usize, Vec<Tap>)> {
        let stride = self.stride[axis] as isize;
        let mut phases = std::collections::BTreeMap::<usize, Vec<Tap>>::new();
        for Tap { at, index } in self.taps(axis).into_iter().rev() {
            let first = at.rem_euclid(stride);
            if (first as usize) < self.image[axis] {
                phases.entry(first as usize).or_default().push(Tap { at: (first - at) / stride, index });
            }
        }
        phases.into_iter().collect()
    }

    fn pixels(&self) -> usize {
        self.batch * self.image[0] * self.image[1] * self.channels
    }

    fn answers(&self) -> usize {
        self.batch * self.answer[0] * self.answer[1] * self.made
    }

    fn weights(&self) -> usize {
        self.window[0] * self.window[1] * self.channels * self.made
    }
}

/// Cuts `count` into as few parts as the most of one allows, all of about the same size.
fn even_parts(count: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let parts = count.div_ceil(most).max(1);
    (0..parts).map(move |i| i * count / parts..(i + 1) * count / parts)
}
