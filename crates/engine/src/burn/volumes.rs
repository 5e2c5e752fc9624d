//! Three-dimensional convolutions of float32 in this process's memory, and their gradients: as convolutions of images
//! (`meshtf_loops::vector`) whose channels are multiplied by the depth of the filter. Other inputs are left to the host.
//!
//! Each plane of the output is the convolution of an image whose channels are those of all planes under the windows' depth,
//! concatenated; the padding's are zeros.

use meshtf_kernels::{KernelNode, Slide};
use meshtf_loops::turn::look;
use meshtf_loops::vector::{Axis, Convolution};
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape};

use super::Body;
use super::channels_last::is_near;
use super::dense::{self, floats};
use super::depthwise::sizes;
use super::memory::Backing;
use crate::{EngineOutcome, Values};

/// With fewer multiplications than this the host is no slower; and it sums in double.
const FEWEST_PRODUCTS: usize = 1 << 14;

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let function: fn(&Slide, &Values) -> Result<Option<EngineOutcome>> = match node.op {
        "Conv3D" => answer,
        "Conv3DBackpropInputV2" => image_gradient,
        "Conv3DBackpropFilterV2" => filter_gradient,
        _ => return Ok(None),
    };
    // Errors in the attributes are reported by the host.
    let Some(slide) = Slide::of(node, 3).ok().filter(|slide| !slide.channels_first) else { return Ok(None) };
    if !B::IN_PLACE || node.outputs[0].dtype != DType::F32 {
        return Ok(None);
    }
    Ok(Some(Box::new(move |_, inputs: Values| {
        let inputs = inputs.into_iter().map(dense::in_order).collect::<Result<Values>>()?;
        Ok(function(&slide, &inputs)?.unwrap_or(EngineOutcome::Declined(inputs)))
    })))
}

/// A convolution whose shapes fit.
struct Volumes {
    batch: usize,
    depth: Axis,
    /// Floats of one plane of the volumes.
    plane: usize,
    /// Over planes of the output, with the channels of all planes under a window.
    convolution: Convolution,
    answer: Shape,
}

impl Volumes {
    /// `None` if it is grouped, small, or too large for this method.
    fn new(slide: &Slide, volumes: &Shape, filter: &Shape) -> Option<Volumes> {
        let (&[batch, deep, high, wide, channels], &[planes, rows, columns, taken, made]) =
            (volumes.dims(), filter.dims())
        else {
            return None;
        };
        let [depth, height, width] = slide.over([deep, high, wide], [planes, rows, columns]).ok()?;
        let answer: Shape = [batch, depth.output, height.output, width.output, made].into();
        let products = answer.elements()?.checked_mul(planes * rows * columns)?.checked_mul(channels)?;
        if channels != taken || products < FEWEST_PRODUCTS || volumes.elements()? == 0 {
            return None;
        }
        let convolution = Convolution {
            batch: batch.checked_mul(depth.output)?,
            image: [high, wide],
            window: [rows, columns],
            answer: [height.output, width.output],
            channels: channels.checked_mul(planes)?,
            made,
            stride: [height.stride, width.stride],
            dilation: [height.dilation, width.dilation],
            before: [height.before, width.before],
        };
        let most = convolution.channels.max(made);
        let near = [height, width].into_iter().all(|axis| {
            let window = axis.window.saturating_mul(axis.dilation);
            [axis.input.saturating_add(axis.before), window, axis.stride].into_iter().all(|place| is_near(place, most))
        });
        near.then_some(Volumes { batch, depth, plane: high * wide * channels, convolution, answer })
    }

    /// Channels of the volumes.
    fn channels(&self) -> usize {
        self.convolution.channels / self.depth.window
    }

    /// Admits the memory of a function in addition to its result: the concatenated planes, and its scratch.
    ///
    /// # Errors
    /// ResourceExhausted if there is not enough memory.
    fn admit(&self, result: &Shape) -> Result<()> {
        let planes = [self.convolution.batch, self.plane, self.depth.window].into_iter().fold(1, usize::saturating_mul);
        let floats = planes.saturating_add(result.checked_elements(DType::F32)?);
        budget::admit(floats.saturating_mul(size_of::<f32>()).saturating_add(self.convolution.scratch_bytes()))
    }

    /// Calls `f(plane of the output, plane of the volumes, position in the windows' depth)`, the planes counted through the
    /// batch.
    fn for_each_plane(&self, mut f: impl FnMut(usize, usize, usize)) {
        for (volume, z) in (0..self.batch).flat_map(|volume| (0..self.depth.output).map(move |z| (volume, z))) {
            look();
            for k in 0..self.depth.window {
                if let Some(from) = self.depth.position(z, k) {
                    f(volume * self.depth.output + z, volume * self.depth.input + from, k);
                }
            }
        }
    }

    /// The images that are convolved.
    fn side_by_side(&self, volumes: &[f32]) -> Vec<f32> {
        let (channels, all) = (self.channels(), self.convolution.channels);
        let mut images = vec![0f32; self.convolution.batch * self.plane * self.depth.window];
        self.for_each_plane(|image, plane, k| {
            let image = &mut images[image * self.plane * self.depth.window..][..self.plane * self.depth.window];
            let pixels = volumes[plane * self.plane..][..self.plane].chunks_exact(channels);
            for (to, pixel) in image.chunks_exact_mut(all).zip(pixels) {
                to[k * channels..][..channels].copy_from_slice(pixel);
            }
        });
        images
    }

    /// The volumes whose planes are in the images; each plane is the sum of all its occurrences.
    fn apart(&self, images: &[f32]) -> Vec<f32> {
        let (channels, all) = (self.channels(), self.convolution.channels);
        let mut volumes = vec![0f32; self.batch * self.depth.input * self.plane];
        self.for_each_plane(|image, plane, k| {
            let image = &images[image * self.plane * self.depth.window..][..self.plane * self.depth.window];
            let pixels = volumes[plane * self.plane..][..self.plane].chunks_exact_mut(channels);
            for (to, from) in pixels.zip(image.chunks_exact(all)) {
                to.iter_mut().zip(&from[k * channels..]).for_each(|(to, from)| *to += from);
            }
        });
        volumes
    }

    /// The filter with its depth merged into the channels, or back.
    fn turned(&self, filter: &[f32], to_images: bool) -> Vec<f32> {
        let [rows, columns] = self.convolution.window;
        let (run, window) = (self.channels() * self.convolution.made, rows * columns);
        let mut turned = vec![0f32; filter.len()];
        for (k, place) in (0..self.depth.window).flat_map(|k| (0..window).map(move |place| (k, place))) {
            let (deep, flat) = ((k * window + place) * run, (place * self.depth.window + k) * run);
            let (from, to) = if to_images { (deep, flat) } else { (flat, deep) };
            turned[to..to + run].copy_from_slice(&filter[from..from + run]);
        }
        turned
    }
}

fn answer(slide: &Slide, inputs: &Values) -> Result<Option<EngineOutcome>> {
    let Some(fit) = Volumes::new(slide, inputs[0].shape(), inputs[1].shape()) else { return Ok(None) };
    let (Some(volumes), Some(filter)) = (floats(&inputs[0]), floats(&inputs[1])) else { return Ok(None) };
    fit.admit(&fit.answer)?;
    let made = fit.convolution.answer(&fit.side_by_side(volumes), &fit.turned(filter, true), None);
    made.map(|made| dense::done(&fit.answer, made)).transpose()
}

fn image_gradient(slide: &Slide, inputs: &Values) -> Result<Option<EngineOutcome>> {
    let Some(shape) = sizes(&inputs[0]) else { return Ok(None) };
    let Some(fit) = Volumes::new(slide, &shape, inputs[1].shape()) else { return Ok(None) };
    let (Some(filter), Some(gradient)) = (floats(&inputs[1]), floats(&inputs[2])) else { return Ok(None) };
    if inputs[2].shape() != &fit.answer {
        return Ok(None);
    }
    fit.admit(&shape)?;
    let images = fit.convolution.image_gradient(&fit.turned(filter, true), gradient);
    images.map(|images| dense::done(&shape, fit.apart(&images))).transpose()
}

fn filter_gradient(slide: &Slide, inputs: &Values) -> Result<Option<EngineOutcome>> {
    let Some(shape) = sizes(&inputs[1]) else { return Ok(None) };
    let Some(fit) = Volumes::new(slide, inputs[0].shape(), &shape) else { return Ok(None) };
    let (Some(volumes), Some(gradient)) = (floats(&inputs[0]), floats(&inputs[2])) else { return Ok(None) };
    if inputs[2].shape() != &fit.answer {
        return Ok(None);
    }
    fit.admit(&shape)?;
    let filter = fit.convolution.filter_gradient(&fit.side_by_side(volumes), gradient);
    filter.map(|filter| dense::done(&shape, fit.turned(&filter, false))).transpose()
}
