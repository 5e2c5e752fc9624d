//! Rules for pools: the greatest element or the mean under a window, and their gradients.
//!
//! One dim is computed as two, the first of length 1. The index of a greatest element counts the elements of its plane, row
//! by row, so each plane is treated as a separate image.

use burn_ir::TensorIr;
use meshtf_graph::{Attr, Input, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Tensor, with_float};

use super::window::{Places, lifted, pads};
use crate::Lowering;
use crate::compose::{axis, integers, number, sizes};
use crate::values::dtype;

/// A window that moves over an image, in rows and columns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pool {
    pub size: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
}

/// A max pool that was lowered: the inputs of the op of its gradient.
#[derive(Debug)]
pub(crate) struct Pooled {
    pool: Pool,
    /// The input of burn's operation.
    x: Output,
    /// The greatest elements, with two spatial dims.
    values: Output,
    /// Their indices, as burn's operation made them.
    indices: Output,
}

/// The rows and columns of an image and of the pool's output, and the padding of the image.
struct Fit {
    image: [usize; 2],
    answer: [usize; 2],
    /// Before and after.
    sides: [(usize, usize); 2],
}

impl Pool {
    /// A pool over one dim.
    pub fn line(size: usize, stride: usize, padding: usize, dilation: usize) -> Pool {
        Pool { size: [1, size], stride: [1, stride], padding: [0, padding], dilation: [1, dilation] }
    }

    /// The geometry of the pool on an image with this output.
    fn over(&self, image: &[usize], answer: &[usize]) -> Result<Fit> {
        let (&[_, _, height, width], &[_, _, rows, columns]) = (image, answer) else {
            return Err(Failure::invalid(format!("no pooling turns {image:?} into {answer:?}")));
        };
        let mut fit = Fit { image: [height, width], answer: [rows, columns], sides: [(0, 0); 2] };
        for i in 0..2 {
            let (padding, stride) = (self.padding[i], self.stride[i]);
            let extent = self.dilation[i] * self.size[i].saturating_sub(1) + 1;
            let padded = fit.image[i] + 2 * padding;
            if [self.size[i], stride, fit.image[i], fit.answer[i]].contains(&0) {
                return Err(Failure::invalid(format!("no pooling turns {image:?} into {answer:?}")));
            }
            let even = padded.checked_sub(extent).is_some_and(|span| span / stride + 1 == fit.answer[i]);
            // The last window may extend beyond the padding, or end before its end.
            let needed = (fit.answer[i] - 1) * stride + extent;
            fit.sides[i] = (padding, if even { padding } else { needed.saturating_sub(fit.image[i] + padding) });
        }
        Ok(fit)
    }

    /// The attributes of an op over images whose channels come last, or else before rows and columns.
    fn attrs(&self, channels_last: bool) -> Vec<(&'static str, Attr)> {
        let outer = |[rows, columns]: [usize; 2]| -> Attr {
            let [rows, columns] = [rows as i64, columns as i64];
            if channels_last { [1, rows, columns, 1].into() } else { [1, 1, rows, columns].into() }
        };
        let mut attrs = vec![("ksize", outer(self.size)), ("strides", outer(self.stride))];
        if !channels_last {
            attrs.push(("data_format", "NCHW".into()));
        }
        attrs
    }

    /// The attributes of MaxPool and its gradient.
    fn attrs_of_max(&self, fit: &Fit) -> Vec<(&'static str, Attr)> {
        let mut attrs = self.attrs(false);
        attrs.push(("padding", if fit.is_padded() { "EXPLICIT" } else { "VALID" }.into()));
        if fit.is_padded() {
            let sides = fit.sides.iter().flat_map(|side| [side.0 as i64, side.1 as i64]);
            attrs.push(("explicit_paddings", [0; 4].into_iter().chain(sides).collect::<Vec<i64>>().into()));
        }
        attrs
    }

    fn places(&self, fit: &Fit) -> [Places; 2] {
        [0, 1].map(|i| Places {
            window: self.size[i],
            count: fit.answer[i],
            stride: self.stride[i],
            dilation: self.dilation[i],
        })
    }

    /// The factor from each output of a pool over the padded image to that of this pool: 1 if all elements under the window
    /// are counted.
    fn shares(&self, fit: &Fit, count_padding: bool) -> Vec<f64> {
        let counted = |i: usize, at: usize| {
            let (start, padding) = (at * self.stride[i], self.padding[i]);
            let end = start + self.size[i];
            let (from, to) = if count_padding {
                (start, end.min(fit.image[i] + 2 * padding))
            } else {
                (start.max(padding), end.min(fit.image[i] + padding))
            };
            to.saturating_sub(from).max(1)
        };
        let all = self.size[0] * self.size[1];
        let share = |y, x| all as f64 / (counted(0, y) * counted(1, x)) as f64;
        (0..fit.answer[0]).flat_map(|y| (0..fit.answer[1]).map(move |x| share(y, x))).collect()
    }
}

impl Fit {
    fn padded(&self) -> [usize; 2] {
        [0, 1].map(|i| self.image[i] + self.sides[i].0 + self.sides[i].1)
    }

    fn is_padded(&self) -> bool {
        self.padded() != self.image
    }

    /// The index in the image of a position of the padded one; in the padding, that of the nearest element.
    fn inner_index(&self, [y, x]: [usize; 2]) -> usize {
        let inner = |at: usize, i: usize| at.saturating_sub(self.sides[i].0).min(self.image[i] - 1);
        inner(y, 0) * self.image[1] + inner(x, 1)
    }
}

impl Lowering<'_> {
    pub(super) fn max_pool(&mut self, x: &TensorIr, pool: &Pool, out: &TensorIr) -> Result<()> {
        let (image, dims) = self.lifted(x)?;
        let fit = pool.over(&dims, &lifted(&out.shape))?;
        let answer = if pool.dilation == [1, 1] {
            self.node_with("MaxPool", [image.into()], &pool.attrs_of_max(&fit))?
        } else {
            let image = self.padded(image, &fit, f64::NEG_INFINITY, dtype(x.dtype)?)?;
            let windows = self.windows(image, pool.places(&fit))?;
            self.node("Max", [windows.into(), sizes(&[2, 4])?])?
        };
        self.write_lifted(out, answer)
    }

    pub(super) fn max_pool_with_indices(
        &mut self,
        x: &TensorIr,
        pool: &Pool,
        [out, out_indices]: [&TensorIr; 2],
    ) -> Result<()> {
        let (image, dims) = self.lifted(x)?;
        let answer = lifted(&out.shape);
        let fit = pool.over(&dims, &answer)?;
        let of = dtype(x.dtype)?;
        let (values, found) = if pool.dilation == [1, 1] {
            let values = self.node_with("MaxPool", [image.into()], &pool.attrs_of_max(&fit))?;
            (values, self.greatest(image, pool, &fit, of, &answer)?)
        } else {
            self.greatest_apart(image, pool, &fit, of, &answer)?
        };
        self.write_lifted(out, values)?;
        let found = self.cast(found, DType::I64, dtype(out_indices.dtype)?)?;
        let found = self.reshape(found, &answer, &out_indices.shape)?;
        if pool.dilation == [1, 1] {
            let pooled = Pooled { pool: pool.clone(), x: self.read(x)?, values, indices: found };
            self.pooled.insert(out_indices.id, pooled);
        }
        self.write(out_indices, found)
    }

    /// The indices of the greatest elements, in int64: each plane is treated as an image of one channel. If the gradient is
    /// in the same graph, they have no consumer.
    fn greatest(&mut self, image: Output, pool: &Pool, fit: &Fit, of: DType, answer: &[usize]) -> Result<Output> {
        let image = self.padded(image, fit, f64::NEG_INFINITY, of)?;
        let ([height, width], planes) = (fit.padded(), answer[0] * answer[1]);
        let image = self.node("Reshape", [image.into(), sizes(&[planes, height, width, 1])?])?;
        let mut attrs = pool.attrs(true);
        attrs.push(("padding", "VALID".into()));
        let found = self.node_with("MaxPoolWithArgmax", [image.into()], &attrs)?.port(1);
        let found = self.reshape(found, &[planes, fit.answer[0], fit.answer[1], 1], answer)?;
        if !fit.is_padded() {
            return Ok(found);
        }
        let inner = (0..height).flat_map(|y| (0..width).map(move |x| [y, x])).map(|at| fit.inner_index(at));
        let inner = Input::Value(integers(inner, DType::I64)?);
        self.node("GatherV2", [inner, found.into(), axis(0)?])
    }

    /// The greatest elements and their indices, in int64, for a dilated window.
    fn greatest_apart(
        &mut self,
        image: Output,
        pool: &Pool,
        fit: &Fit,
        of: DType,
        answer: &[usize],
    ) -> Result<(Output, Output)> {
        let image = self.padded(image, fit, f64::NEG_INFINITY, of)?;
        let windows = self.windows(image, pool.places(fit))?;
        let windows = self.transpose(windows, &[0, 1, 3, 5, 2, 4])?;
        let ([rows, columns], [height, width]) = (fit.answer, pool.size);
        let under = height * width;
        let windows = self.node("Reshape", [windows.into(), sizes(&[answer, &[under]].concat())?])?;
        let values = self.node("Max", [windows.into(), sizes(&[4])?])?;
        let place = self.node("ArgMax", [windows.into(), axis(4)?])?;
        // The position in the window, and the window, determine the element.
        let first =
            integers((0..rows * columns).map(|window| window * under), DType::I64)?.reshaped([rows, columns])?;
        let place = self.node("AddV2", [place.into(), Input::Value(first)])?;
        let element = |window: usize, place: usize| {
            let at = |i: usize, window: usize, place: usize| window * pool.stride[i] + place * pool.dilation[i];
            fit.inner_index([at(0, window / columns, place / width), at(1, window % columns, place % width)])
        };
        let all = (0..rows * columns).flat_map(|window| (0..under).map(move |place| (window, place)));
        let element = Input::Value(integers(all.map(|(window, place)| element(window, place)), DType::I64)?);
        Ok((values, self.node("GatherV2", [element, place.into(), axis(0)?])?))
    }

    /// The gradient goes to the greatest elements.
    pub(super) fn max_pool_backward(
        &mut self,
        [x, gradient, indices]: [&TensorIr; 3],
        pool: &Pool,
        out: &TensorIr,
    ) -> Result<()> {
        let read = (self.read(x)?, self.read(indices)?);
        let same = self.pooled.get(&indices.id).filter(|made| (made.x, made.indices) == read && made.pool == *pool);
        let Some(values) = same.map(|made| made.values) else {
            return self.max_pool_backward_by_indices([x, gradient, indices], out);
        };
        let ((image, dims), (value, from)) = (self.lifted(x)?, self.lifted(gradient)?);
        let fit = pool.over(&dims, &from)?;
        let inputs: [Input; 3] = [image.into(), values.into(), value.into()];
        let answer = self.node_with("MaxPoolGrad", inputs, &pool.attrs_of_max(&fit))?;
        self.write_lifted(out, answer)
    }

    /// Each element of the gradient is added to the element of the image at its index.
    fn max_pool_backward_by_indices(&mut self, [x, gradient, indices]: [&TensorIr; 3], out: &TensorIr) -> Result<()> {
        let (dims, from) = (lifted(&x.shape), lifted(&gradient.shape));
        let (&[batch, channels, height, width], &[_, _, rows, columns]) = (&dims[..], &from[..]) else {
            return Err(Failure::invalid(format!(
                "no pooling turns {:?} into {:?}",
                &x.shape[..],
                &gradient.shape[..]
            )));
        };
        let (planes, plane) = (batch * channels, height * width);
        let all = planes * plane;
        let wide = if i32::try_from(all).is_ok() { DType::I32 } else { DType::I64 };
        let each = [planes, rows * columns];
        let (found, of) = self.indices(indices)?;
        let found = self.cast(found, of, wide)?;
        let found = self.reshape(found, &indices.shape, &each)?;
        let count = |n: usize| -> Result<Input> { Ok(integers([n].into_iter(), wide)?.reshaped([])?.into()) };
        let first = self.node("Range", [count(0)?, count(all)?, count(plane.max(1))?])?;
        let first = self.node("Reshape", [first.into(), sizes(&[planes, 1])?])?;
        let found = self.node("AddV2", [found.into(), first.into()])?;
        let value = self.read(gradient)?;
        let value = self.reshape(value, &gradient.shape, &each)?;
        let answer = self.node("UnsortedSegmentSum", [value.into(), found.into(), count(all)?])?;
        let answer = self.reshape(answer, &[all], &out.shape)?;
        self.write(out, answer)
    }

    pub(super) fn avg_pool(&mut self, x: &TensorIr, pool: &Pool, count_padding: bool, out: &TensorIr) -> Result<()> {
        let (image, dims) = self.lifted(x)?;
        let fit = pool.over(&dims, &lifted(&out.shape))?;
        let of = dtype(x.dtype)?;
        let image = self.padded(image, &fit, 0.0, of)?;
        let mut attrs = pool.attrs(false);
        attrs.push(("padding", "VALID".into()));
        let answer = self.node_with("AvgPool", [image.into()], &attrs)?;
        let answer = self.shared(answer, pool, &fit, count_padding, of)?;
        self.write_lifted(out, answer)
    }

    pub(super) fn avg_pool_backward(
        &mut self,
        pool: &Pool,
        gradient: &TensorIr,
        count_padding: bool,
        out: &TensorIr,
    ) -> Result<()> {
        let (value, from) = self.lifted(gradient)?;
        let dims = lifted(&out.shape);
        let fit = pool.over(&dims, &from)?;
        let value = self.shared(value, pool, &fit, count_padding, dtype(gradient.dtype)?)?;
        let whole = [&dims[..2], &fit.padded()].concat();
        let mut attrs = pool.attrs(false);
        attrs.push(("padding", "VALID".into()));
        let mut answer = self.node_with("AvgPoolGrad", [sizes(&whole)?, value.into()], &attrs)?;
        if fit.is_padded() {
            let begin = [0, 0, fit.sides[0].0, fit.sides[1].0];
            answer = self.node("Slice", [answer.into(), sizes(&begin)?, sizes(&dims)?])?;
        }
        self.write_lifted(out, answer)
    }

    /// Multiplies the means of whole windows, so that they are those of the elements that count.
    fn shared(&mut self, mean: Output, pool: &Pool, fit: &Fit, count_padding: bool, of: DType) -> Result<Output> {
        let shares = pool.shares(fit, count_padding);
        if shares.iter().all(|&share| share == 1.0) {
            return Ok(mean);
        }
        self.node("Mul", [mean.into(), Input::Value(floats(&shares, &fit.answer, of)?)])
    }

    fn padded(&mut self, image: Output, fit: &Fit, value: f64, of: DType) -> Result<Output> {
        match fit.is_padded() {
            false => Ok(image),
            true if value == 0.0 => self.node("Pad", [image.into(), pads(&fit.sides)?]),
            true => self.node("PadV2", [image.into(), pads(&fit.sides)?, number(value, of)?]),
        }
    }
}

/// A constant of floats.
pub(super) fn floats(values: &[f64], shape: &[usize], dtype: DType) -> Result<Tensor> {
    let made =
        with_float!(dtype, T => Tensor::from_vec(shape.to_vec(), values.iter().map(|&x| T::from_f64(x)).collect()));
    made.ok_or_else(|| Failure::invalid(format!("a tensor of {dtype} is not one of floats")))
}
