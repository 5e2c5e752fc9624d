//! The GPU kernels of batch normalisation: passes over all elements.

#![allow(unsafe_code, reason = "kernels are launched without bounds checks")]

use burn_backend::ops::FloatTensorOps;
use burn_backend::{FloatDType, TensorMetadata};
use burn_wgpu::{CubeBackend, CubeTensor};
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::super::bits::Launch;
use super::NormPass;

#[cube]
fn factor<N: Size>(variance: Vector<f32, N>, epsilon: f32) -> Vector<f32, N> {
    Vector::new(1.0f32) / (variance + Vector::new(epsilon)).sqrt()
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn normalise<N: Size>(
    x: LinearView<'_, Vector<f32, N>>,
    mean: LinearView<'_, Vector<f32, N>>,
    variance: LinearView<'_, Vector<f32, N>>,
    scale: LinearView<'_, Vector<f32, N>>,
    offset: LinearView<'_, Vector<f32, N>>,
    mut to: LinearViewMut<'_, Vector<f32, N>>,
    epsilon: f32,
) {
    if !to.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let slope = factor(variance.read(ABSOLUTE_POS), epsilon) * scale.read(ABSOLUTE_POS);
    let centred = x.read(ABSOLUTE_POS) - mean.read(ABSOLUTE_POS);
    to.write(ABSOLUTE_POS, centred * slope + offset.read(ABSOLUTE_POS));
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn product<N: Size>(
    gradient: LinearView<'_, Vector<f32, N>>,
    x: LinearView<'_, Vector<f32, N>>,
    mean: LinearView<'_, Vector<f32, N>>,
    variance: LinearView<'_, Vector<f32, N>>,
    mut to: LinearViewMut<'_, Vector<f32, N>>,
    epsilon: f32,
) {
    if !to.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let centred = x.read(ABSOLUTE_POS) - mean.read(ABSOLUTE_POS);
    let normal = centred * factor(variance.read(ABSOLUTE_POS), epsilon);
    to.write(ABSOLUTE_POS, gradient.read(ABSOLUTE_POS) * normal);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn backward<N: Size>(
    gradient: LinearView<'_, Vector<f32, N>>,
    x: LinearView<'_, Vector<f32, N>>,
    mean: LinearView<'_, Vector<f32, N>>,
    variance: LinearView<'_, Vector<f32, N>>,
    scale: LinearView<'_, Vector<f32, N>>,
    sums: LinearView<'_, Vector<f32, N>>,
    products: LinearView<'_, Vector<f32, N>>,
    mut to: LinearViewMut<'_, Vector<f32, N>>,
    epsilon: f32,
    places: f32,
) {
    if !to.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let places = Vector::new(places);
    let factor = factor(variance.read(ABSOLUTE_POS), epsilon);
    let normal = (x.read(ABSOLUTE_POS) - mean.read(ABSOLUTE_POS)) * factor;
    let along = sums.read(ABSOLUTE_POS) / places + normal * (products.read(ABSOLUTE_POS) / places);
    to.write(ABSOLUTE_POS, (gradient.read(ABSOLUTE_POS) - along) * (factor * scale.read(ABSOLUTE_POS)));
}

/// One pass over all elements. The first of the inputs has the shape of the output, and the others are broadcast to it.
///
/// # Panics
/// If there are fewer inputs than the pass has.
pub fn passed(pass: NormPass, inputs: Vec<CubeTensor>, epsilon: f32) -> CubeTensor {
    let to = CubeBackend::float_empty(inputs[0].shape(), &inputs[0].device(), FloatDType::F32);
    let at = Launch::over(&to, &inputs.iter().collect::<Vec<_>>());
    let onto = to.clone().into_linear_view();
    let count = |input: &CubeTensor| input.shape().num_elements();
    // The number of elements of a channel; the third input has one number per channel.
    let places = inputs.get(2).map_or(1, |numbers| count(&inputs[0]) / count(numbers).max(1));
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("a pass has all its inputs").into_linear_view_like(&to);
    // SAFETY: a thread reads and writes only the elements at its index, none past the end.
    unsafe {
        match pass {
            NormPass::Normalise => normalise::launch_unchecked(
                &at.client,
                at.cubes,
                at.cube,
                at.address,
                at.width,
                next(),
                next(),
                next(),
                next(),
                next(),
                onto,
                epsilon,
            ),
            NormPass::Product => product::launch_unchecked(
                &at.client,
                at.cubes,
                at.cube,
                at.address,
                at.width,
                next(),
                next(),
                next(),
                next(),
                onto,
                epsilon,
            ),
            NormPass::Backward => backward::launch_unchecked(
                &at.client,
                at.cubes,
                at.cube,
                at.address,
                at.width,
                next(),
                next(),
                next(),
                next(),
                next(),
                next(),
                next(),
                onto,
                epsilon,
                places as f32,
            ),
        }
    }
    to
}
