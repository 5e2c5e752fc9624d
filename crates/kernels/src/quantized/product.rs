//! Products of matrices of uint8s, and convolutions: sums of int32s, of which a range is computed from those of the factors.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::call::take;
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::scale::Range;
use super::{is_of, range, wide_range, with_range};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("QuantizedMatMul", |node| {
        let transposed = [node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?];
        Ok(of_bytes(node).then(|| Box::new(move |inputs| matmul(inputs, transposed)) as HostKernel))
    });
    ops.insert("QuantizedConv2D", |node| {
        let windows = Windows::of(node)?;
        Ok(of_bytes(node).then(|| Box::new(move |inputs| windows.convolved(inputs)) as HostKernel))
    });
}

fn of_bytes(node: &KernelNode) -> bool {
    is_of(node, &[DType::QU8, DType::QU8], DType::QI32)
}

/// The numbers less their zero point.
fn shifted(x: &[u8], zero: i32) -> Result<Vec<i32>> {
    memory::admit(size_of_val(x) * size_of::<i32>())?;
    Ok(x.iter().map(|&x| i32::from(x).wrapping_sub(zero)).collect())
}

/// Adds the product of a number and a row to another row, modulo 2^32.
#[inline]
pub(super) fn add_scaled(to: &mut [i32], x: i32, row: &[i32]) {
    if x != 0 {
        to.iter_mut().zip(row).for_each(|(to, &y)| *to = to.wrapping_add(x.wrapping_mul(y)));
    }
}

fn matmul(inputs: Inputs, [transpose_a, transpose_b]: [bool; 2]) -> Result<Outputs> {
    let [a, b, min_a, max_a, min_b, max_b] = take(inputs)?;
    let (of_a, of_b) =
        (wide_range(&min_a, &max_a, ["min_a", "max_a"])?, wide_range(&min_b, &max_b, ["min_b", "max_b"])?);
    let (&[rows_a, columns_a], &[rows_b, columns_b]) = (a.dims(), b.dims()) else {
        return Err(Failure::invalid(format!(
            "In[0] and In[1] must be matrices, got shapes {} and {}",
            a.shape(),
            b.shape()
        )));
    };
    let (rows, depth) = if transpose_a { (columns_a, rows_a) } else { (rows_a, columns_a) };
    let (same, columns) = if transpose_b { (columns_b, rows_b) } else { (rows_b, columns_b) };
    if depth != same {
        return Err(Failure::invalid(format!("Matrix size-incompatible: In[0]: {}, In[1]: {}", a.shape(), b.shape())));
    }
    let shape = Shape::from([rows, columns]);
    let mut out = vec![0i32; shape.checked_elements(DType::QI32)?];
    let (a, zero_a) = (a.stored::<u8>()?, of_a.zero::<u8>());
    let b = shifted(b.stored::<u8>()?, of_b.zero::<u8>())?;
    let b = if transpose_b { turned(&b, columns, depth)? } else { b };
    let many = chunk(depth.saturating_mul(columns));
    in_chunks(out.chunks_mut((many * columns).max(1)).enumerate(), |(i, to)| {
        for (row, to) in (i * many..).zip(to.chunks_mut(columns)) {
            for k in 0..depth {
                let x = if transpose_a { a[k * rows + row] } else { a[row * depth + k] };
                add_scaled(to, i32::from(x).wrapping_sub(zero_a), &b[k * columns..(k + 1) * columns]);
            }
        }
    });
    Ok(with_range(Tensor::from_stored(DType::QI32, shape, out), Range::of_product::<u8, u8, i32>(of_a, of_b)))
}

/// The transpose of a matrix.
fn turned(x: &[i32], rows: usize, columns: usize) -> Result<Vec<i32>> {
    memory::admit(size_of_val(x))?;
    let mut all = Vec::with_capacity(x.len());
    for column in 0..columns {
        all.extend(x[column..].iter().step_by(columns).take(rows));
    }
    Ok(all)
}

/// The attributes of a convolution.
#[derive(Clone, Copy)]
struct Windows {
    stride: usize,
    /// Whether the image is padded so that each stride has a window.
    is_same: bool,
}

/// The windows along an axis of the image.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    window: usize,
    count: usize,
    /// The elements of the first window before the image; negative if the first elements are in no window.
    before: isize,
}

impl Windows {
    fn of(node: &KernelNode) -> Result<Windows> {
        let strides = node.attrs.ints("strides")?;
        let &[1, stride, same, 1] = strides else {
            return Err(Failure::invalid(format!(
                "strides must be [1, s, s, 1]: those over batch and depth are not supported; got {strides:?}"
            )));
        };
        if stride != same {
            return Err(Failure::invalid("strides in the row and column dimensions must be equal"));
        }
        let stride = usize::try_from(stride).ok().filter(|&stride| stride > 0 && i32::try_from(stride).is_ok());
        let stride = stride.ok_or_else(|| Failure::invalid(format!("strides must be positive, got {same}")))?;
        // An older graph does not state them.
        let dilations = match node.attrs.get("dilations") {
            Some(_) => node.attrs.ints("dilations")?,
            None => &[1; 4],
        };
        if dilations.iter().any(|&dilation| dilation != 1) || dilations.len() != 4 {
            return Err(Failure::invalid(format!("dilations must be [1, 1, 1, 1], got {dilations:?}")));
        }
        Ok(Windows { stride, is_same: node.attrs.str("padding")? == "SAME" })
    }

    fn axis(self, size: usize, window: usize) -> Result<Axis> {
        let count = match self.is_same {
            true => size.div_ceil(self.stride),
            false => match (size + self.stride).checked_sub(window) {
                Some(room) => room / self.stride,
                None => {
                    let why =
                        format!("Computed output size would be negative: a window of {window} over {size} elements");
                    return Err(Failure::invalid(why));
                }
            },
        };
        let covered = count.saturating_sub(1).saturating_mul(self.stride).saturating_add(window);
        let beyond = covered as isize - size as isize;
        let before = if self.is_same { beyond / 2 } else { (beyond + 1) / 2 };
        Ok(Axis { size, window, count, before })
    }

    fn convolved(self, inputs: Inputs) -> Result<Outputs> {
        let [x, filter, min_x, max_x, min_filter, max_filter] = take(inputs)?;
        let (&[batch, height, width, depth], &[rows, columns, filter_depth, channels]) = (x.dims(), filter.dims())
        else {
            return Err(Failure::invalid(format!(
                "input and filter must be 4-dimensional, got shapes {} and {}",
                x.shape(),
                filter.shape()
            )));
        };
        let (of_x, of_filter) = (
            range(&min_x, &max_x, ["min_input", "max_input"])?,
            range(&min_filter, &max_filter, ["min_filter", "max_filter"])?,
        );
        if depth != filter_depth {
            return Err(Failure::invalid(format!(
                "input and filter must have the same depth: {depth} vs {filter_depth}"
            )));
        }
        let axes = [self.axis(height, rows)?, self.axis(width, columns)?];
        let shape = Shape::from([batch, axes[0].count, axes[1].count, channels]);
        let elements = shape.checked_elements(DType::QI32)?;
        if elements == 0 || filter.is_empty() {
            let why = format!(
                "the input, the filter and the output must have elements; their shapes are {}, {} and {shape}",
                x.shape(),
                filter.shape()
            );
            return Err(Failure::invalid(why));
        }
        let mut out = vec![0i32; elements];
        let filter = shifted(filter.stored::<u8>()?, of_filter.zero::<u8>())?;
        let zero = of_x.zero::<u8>();
        let image = Image { pixels: x.stored::<u8>()?, depth, zero, axes, stride: self.stride };
        let many = chunk(rows.saturating_mul(columns).saturating_mul(depth).saturating_mul(channels));
        in_chunks(out.chunks_mut(many * channels).enumerate(), |(i, to)| {
            for (place, to) in (i * many..).zip(to.chunks_mut(channels)) {
                image.add_window(place, &filter, to);
            }
        });
        Ok(with_range(Tensor::from_stored(DType::QI32, shape, out), Range::of_product::<u8, u8, i32>(of_x, of_filter)))
    }
}

/// An image under a window.
struct Image<'a> {
    pixels: &'a [u8],
    depth: usize,
    zero: i32,
    axes: [Axis; 2],
    stride: usize,
}

impl Image<'_> {
    /// Adds the products of the window at a position with a filter, a row of it for each channel of a pixel.
    fn add_window(&self, place: usize, filter: &[i32], to: &mut [i32]) {
        let [down, across] = self.axes;
        let (batch, row, column) =
            (place / across.count / down.count, place / across.count % down.count, place % across.count);
        // Outside the image is the integer of 0, as a byte: that differs from 0 if 0 is above the range.
        let outside = if self.zero < 0 { 0 } else { i32::from(self.zero as u8).wrapping_sub(self.zero) };
        let mut rows = filter.chunks_exact(to.len());
        for y in self.under(down, row) {
            for x in self.under(across, column) {
                let pixel = y.zip(x).map(|(y, x)| ((batch * down.size + y) * across.size + x) * self.depth);
                for (channel, weights) in rows.by_ref().take(self.depth).enumerate() {
                    let value =
                        pixel.map_or(outside, |at| i32::from(self.pixels[at + channel]).wrapping_sub(self.zero));
                    add_scaled(to, value, weights);
                }
            }
        }
    }

    /// The positions under a window along an axis; `None` outside the image.
    fn under(&self, axis: Axis, place: usize) -> impl Iterator<Item = Option<usize>> {
        let first = (place * self.stride) as isize - axis.before;
        (0..axis.window).map(move |i| usize::try_from(first + i as isize).ok().filter(|&at| at < axis.size))
    }
}
