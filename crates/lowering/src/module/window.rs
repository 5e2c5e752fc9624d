//! Helpers for images under a moving window.

use burn_ir::{TensorIr, Unfold4dOpIr};
use meshtf_graph::{Input, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use crate::Lowering;
use crate::compose::{axis, integers};

/// The elements of an axis under a window, which moves `stride` at a time; its elements are `dilation` apart.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub window: usize,
    pub count: usize,
    pub stride: usize,
    pub dilation: usize,
}

impl Lowering<'_> {
    /// The value of an image, or of a filter, with at least two spatial dims; with its dims.
    pub(super) fn lifted(&mut self, tensor: &TensorIr) -> Result<(Output, Vec<usize>)> {
        let dims = lifted(&tensor.shape);
        if dims.len() < 4 {
            return Err(Failure::invalid(format!("a tensor has shape {:?}, which is not an image", &tensor.shape[..])));
        }
        let value = self.read(tensor)?;
        Ok((self.reshape(value, &tensor.shape, &dims)?, dims))
    }

    /// Writes an image in burn's shape.
    pub(super) fn write_lifted(&mut self, tensor: &TensorIr, value: Output) -> Result<()> {
        let value = self.reshape(value, &lifted(&tensor.shape), &tensor.shape)?;
        self.write(tensor, value)
    }

    /// The elements at each position of a window: `[batch, channels, window's rows, rows, window's columns, columns]`.
    pub(super) fn windows(&mut self, image: Output, [rows, columns]: [Places; 2]) -> Result<Output> {
        let image = self.node("GatherV2", [image.into(), rows.indices()?.into(), axis(2)?])?;
        self.node("GatherV2", [image.into(), columns.indices()?.into(), axis(4)?])
    }

    /// The elements under each window as a column: `[batch, channels · window, windows]`.
    pub(super) fn unfold4d(&mut self, op: &Unfold4dOpIr) -> Result<()> {
        let (x, dims) = self.lifted(&op.x)?;
        let options = &op.options;
        let sides = options.padding.map(|side| (side, side));
        let x = if options.padding == [0, 0] { x } else { self.node("Pad", [x.into(), pads(&sides)?])? };
        let places = |i: usize| {
            let extent = options.dilation[i] * op.kernel_size[i].saturating_sub(1) + 1;
            let size = dims[i + 2] + 2 * options.padding[i];
            let (stride, dilation) = (options.stride[i], options.dilation[i]);
            let count = size.checked_sub(extent).map_or(0, |span| span / stride.max(1) + 1);
            Places { window: op.kernel_size[i], count, stride, dilation }
        };
        let windows = self.windows(x, [places(0), places(1)])?;
        let columns = self.transpose(windows, &[0, 1, 2, 4, 3, 5])?;
        let [rows, across] = [places(0), places(1)];
        let from = [dims[0], dims[1], rows.window, across.window, rows.count, across.count];
        let answer = self.reshape(columns, &from, &op.out.shape)?;
        self.write(&op.out, answer)
    }
}

impl Places {
    /// The index of the element at each position of the window, for each window: `[window, count]`.
    fn indices(&self) -> Result<Tensor> {
        let all = (0..self.window).flat_map(|k| (0..self.count).map(move |at| k * self.dilation + at * self.stride));
        integers(all, DType::I32)?.reshaped([self.window, self.count])
    }
}

/// The dims of an image, or of a filter, with at least two spatial dims: one of length 1 is put before a single one.
pub(super) fn lifted(dims: &[usize]) -> Vec<usize> {
    match *dims {
        [batch, channels, length] => vec![batch, channels, 1, length],
        _ => dims.to_vec(),
    }
}

/// The paddings input of `Pad` and `PadV2` for an image.
pub(super) fn pads(sides: &[(usize, usize)]) -> Result<Input> {
    let all = [(0, 0); 2].into_iter().chain(sides.iter().copied()).flat_map(|side| [side.0, side.1]);
    Ok(Input::Value(integers(all, DType::I32)?.reshaped([sides.len() + 2, 2])?))
}
