//! Windows that move over the spatial axes of an image: kernel, stride, dilation, padding.

use meshtf_graph::{Attr, Output};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::Node;
use crate::unsupported;

/// Largest extent of a window along an axis, and largest stride and dilation.
const MAX: i64 = 1 << 20;

/// The movement of a window: an entry for each spatial axis.
#[derive(Clone, Debug)]
pub struct Window {
    pub kernel: Vec<i64>,
    pub stride: Vec<i64>,
    pub dilation: Vec<i64>,
    pub padding: Padding,
    pub ceil: bool,
}

/// Padding before and after each spatial axis.
pub type Sides = Vec<(i64, i64)>;

#[derive(Clone, Debug, PartialEq)]
pub enum Padding {
    /// Before and after each axis.
    Stated(Vec<(i64, i64)>),
    /// As much as it takes for `ceil(size / stride)` positions; the larger half after, or before.
    Same { is_upper: bool },
}

impl Window {
    /// The window that a node states.
    ///
    /// # Errors
    /// InvalidArgument for numbers that are not positive, or lists of another length.
    pub fn of(n: &Node, kernel: Vec<i64>) -> Result<Window> {
        let spatial = kernel.len();
        let list = |name: &str, default: i64, count: usize| -> Result<Vec<i64>> {
            let all = n.ints(name).filter(|all| !all.is_empty()).map_or_else(|| vec![default; count], <[i64]>::to_vec);
            if all.len() != count {
                return Err(Failure::invalid(format!("{name} has {} numbers; it takes {count}", all.len())));
            }
            if all.iter().any(|n| n.abs() > MAX) {
                return Err(Failure::invalid(format!("{name} is {all:?}, beyond the limit of {MAX}")));
            }
            Ok(all)
        };
        let (stride, dilation, pads) =
            (list("strides", 1, spatial)?, list("dilations", 1, spatial)?, list("pads", 0, 2 * spatial)?);
        if kernel.iter().chain(&stride).chain(&dilation).any(|n| !(1..=MAX).contains(n)) {
            return Err(Failure::invalid("its kernel, strides and dilations must be positive"));
        }
        let padding = match n.str("auto_pad", "NOTSET")? {
            "NOTSET" | "" => Padding::Stated((0..spatial).map(|i| (pads[i], pads[spatial + i])).collect()),
            "VALID" => Padding::Stated(vec![(0, 0); spatial]),
            "SAME_UPPER" => Padding::Same { is_upper: true },
            "SAME_LOWER" => Padding::Same { is_upper: false },
            other => return Err(Failure::invalid(format!("auto_pad is {other:?}"))),
        };
        Ok(Window { kernel, stride, dilation, padding, ceil: n.flag("ceil_mode", false) })
    }

    pub fn spatial(&self) -> usize {
        self.kernel.len()
    }

    /// From the first element under a window to the last.
    pub fn extent(&self, i: usize) -> i64 {
        (self.kernel[i] - 1) * self.dilation[i] + 1
    }

    /// The window over an image with a row of height 1 before it, if there is one spatial axis only.
    #[must_use]
    pub fn lifted(mut self) -> Window {
        if self.spatial() == 1 {
            self.kernel.insert(0, 1);
            self.stride.insert(0, 1);
            self.dilation.insert(0, 1);
            if let Padding::Stated(sides) = &mut self.padding {
                sides.insert(0, (0, 0));
            }
        }
        self
    }

    pub fn is_dilated(&self) -> bool {
        self.dilation.iter().any(|&n| n > 1)
    }

    /// The padding of each spatial axis of an image, with what the last window of a `ceil_mode` needs besides.
    ///
    /// # Errors
    /// Unimplemented if it depends on a size that is not known.
    pub fn sides(&self, cx: &Cx, x: Output) -> Result<(Sides, Vec<i64>)> {
        let mut sides = Vec::new();
        let mut more = vec![0; self.spatial()];
        for i in 0..self.spatial() {
            let size = cx.em.size(x, i + 2).map(|size| size as i64);
            let (extent, stride) = (self.extent(i), self.stride[i]);
            match &self.padding {
                Padding::Stated(stated) => {
                    let side = stated[i];
                    sides.push(side);
                    if self.ceil && stride > 1 {
                        let size =
                            size.ok_or_else(|| unsupported("unsupported: ceil_mode with a size that is not known"))?;
                        let padded = size + side.0 + side.1;
                        let mut count = (padded - extent + stride - 1).div_euclid(stride) + 1;
                        // A window that would begin in the padding after the image is left out.
                        if (count - 1) * stride >= size + side.0 {
                            count -= 1;
                        }
                        more[i] = ((count - 1) * stride + extent - padded).max(0);
                    }
                }
                Padding::Same { is_upper } => {
                    let total = match size {
                        Some(size) => ((size + stride - 1) / stride - 1) * stride + extent - size,
                        None if stride == 1 => extent - 1,
                        None => {
                            return Err(unsupported(
                                "unsupported: auto_pad with a stride and a size that is not known",
                            ));
                        }
                    }
                    .max(0);
                    let small = total / 2;
                    sides.push(if *is_upper { (small, total - small) } else { (total - small, small) });
                }
            }
        }
        Ok((sides, more))
    }

    /// As [`sides`](Window::sides), with sizes that only a step tells: before, after, and besides.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn open_sides(&self, cx: &mut Cx, x: Output) -> Result<Vec<[Size; 3]>> {
        let mut all = Vec::new();
        for i in 0..self.spatial() {
            let size = cx.size(x, i + 2)?;
            let (extent, stride) = (Size::Known(self.extent(i)), Size::Known(self.stride[i]));
            let zero = Size::Known(0);
            // The number of positions that begin before `end`.
            let positions = |cx: &mut Cx, end: Size| {
                let up = cx.compute("AddV2", end, Size::Known(self.stride[i] - 1))?;
                cx.compute("FloorDiv", up, stride)
            };
            // The elements that so many windows cover beyond `end`.
            let beyond = |cx: &mut Cx, count: Size, end: Size| {
                let steps = cx.compute("Sub", count, Size::Known(1))?;
                let last = cx.compute("Mul", steps, stride)?;
                let covered = cx.compute("AddV2", last, extent)?;
                let rest = cx.compute("Sub", covered, end)?;
                cx.compute("Maximum", rest, zero)
            };
            all.push(match &self.padding {
                Padding::Stated(stated) if !self.ceil || self.stride[i] == 1 => {
                    [Size::Known(stated[i].0), Size::Known(stated[i].1), zero]
                }
                Padding::Stated(stated) => {
                    let (before, after) = stated[i];
                    let begun = cx.compute("AddV2", size, Size::Known(before))?;
                    let padded = cx.compute("AddV2", begun, Size::Known(after))?;
                    let rest = cx.compute("Sub", padded, extent)?;
                    let count = positions(cx, rest)?;
                    let count = cx.compute("AddV2", count, Size::Known(1))?;
                    // A window that would begin in the padding after the image is left out.
                    let most = positions(cx, begun)?;
                    let count = cx.compute("Minimum", count, most)?;
                    [Size::Known(before), Size::Known(after), beyond(cx, count, padded)?]
                }
                Padding::Same { is_upper } => {
                    let count = positions(cx, size)?;
                    let total = beyond(cx, count, size)?;
                    let small = cx.compute("FloorDiv", total, Size::Known(2))?;
                    let large = cx.compute("Sub", total, small)?;
                    if *is_upper { [small, large, zero] } else { [large, small, zero] }
                }
            });
        }
        Ok(all)
    }

    /// A window without padding over an image that has it: of its own, if sizes that only a step tells decide. `value` is that of
    /// the padding, zero if there is none.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn closed(self, cx: &mut Cx, x: Output, value: Option<f64>) -> Result<(Window, Output)> {
        if self.sides(cx, x).is_ok() {
            return Ok((self, x));
        }
        let sides: Vec<[Size; 2]> = self
            .open_sides(cx, x)?
            .into_iter()
            .map(|[before, after, more]| Ok([before, cx.compute("AddV2", after, more)?]))
            .collect::<Result<_>>()?;
        let x = padded(cx, x, &sides, value)?;
        let none = vec![(0, 0); self.spatial()];
        Ok((Window { padding: Padding::Stated(none), ceil: false, ..self }, x))
    }

    /// An attribute with an entry for each axis of the image.
    pub fn outer(values: &[i64]) -> Attr {
        [1, 1].iter().chain(values).copied().collect::<Vec<i64>>().into()
    }

    /// The elements under each window, as an axis after each spatial one: `[…, positions, kernel, …]` of a padded image.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn windows(&self, cx: &mut Cx, padded: Output) -> Result<Output> {
        let mut y = padded;
        for i in (0..self.spatial()).rev() {
            let size = cx.size(y, i + 2)?;
            let span = cx.compute("Sub", size, Size::Known(self.extent(i)))?;
            let count = cx.compute("FloorDiv", span, Size::Known(self.stride[i]))?;
            let count = cx.compute("AddV2", count, Size::Known(1))?;
            let starts = cx.range(count)?;
            let starts = op!(cx.em, "Mul", starts, self.stride[i])?;
            let starts = cx.unsqueeze(starts, &[1])?;
            let offsets: Vec<i64> = (0..self.kernel[i]).map(|at| at * self.dilation[i]).collect();
            let places = op!(cx.em, "AddV2", starts, Tensor::vector(offsets))?;
            y = op!(cx.em, "GatherV2", y, places, (i + 2) as i64)?;
        }
        Ok(y)
    }
}

/// An image padded along its spatial axes.
pub fn padded(cx: &mut Cx, x: Output, sides: &[[Size; 2]], value: Option<f64>) -> Result<Output> {
    if sides.iter().flatten().all(|size| matches!(size, Size::Known(0))) {
        return Ok(x);
    }
    let pairs: Vec<Size> = [Size::Known(0); 4].into_iter().chain(sides.iter().flatten().copied()).collect();
    let pairs = cx.packed(&pairs)?;
    let pairs = cx.reshape(pairs, &[Size::Known(sides.len() as i64 + 2), Size::Known(2)])?;
    match value {
        None => op!(cx.em, "Pad", x, pairs),
        Some(value) => op!(cx.em, "PadV2", x, pairs, value),
    }
}

/// The padding of all axes from that of the spatial ones.
pub fn all_sides(sides: &[(i64, i64)], more: &[i64]) -> Vec<(i64, i64)> {
    [(0, 0); 2].into_iter().chain(sides.iter().zip(more).map(|(side, more)| (side.0, side.1 + more))).collect()
}
