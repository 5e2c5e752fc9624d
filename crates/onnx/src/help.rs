//! Parts of which the rules are composed: shapes that may be known only in a step, transpositions, reductions, casts.

use meshtf_graph::{Attr, Attrs, NodeDef, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use crate::cx::Cx;
use crate::emit::op;
use crate::unsupported;

/// A size: a number, or a scalar that a step computes (int64).
#[derive(Clone, Copy, Debug)]
pub enum Size {
    Known(i64),
    Of(Output),
}

impl From<usize> for Size {
    fn from(size: usize) -> Size {
        Size::Known(size as i64)
    }
}

impl From<i64> for Size {
    fn from(size: i64) -> Size {
        Size::Known(size)
    }
}

impl Cx<'_> {
    /// The shape of a tensor, an int64 vector.
    pub fn shape_of(&mut self, x: Output) -> Result<Output> {
        match self.em.shape(x).known() {
            Some(shape) => self.ints(&shape.dims().iter().map(|&size| size as i64).collect::<Vec<_>>()),
            None => op!(self.em, "Shape", x; "out_type" => DType::I64),
        }
    }

    /// The sizes of a tensor along all axes.
    ///
    /// # Errors
    /// Unimplemented if its rank is not known.
    pub fn sizes(&mut self, x: Output) -> Result<Vec<Size>> {
        let rank = self.em.rank(x)?;
        (0..rank).map(|axis| self.size(x, axis)).collect()
    }

    /// The size along an axis.
    pub fn size(&mut self, x: Output, axis: usize) -> Result<Size> {
        if let Some(size) = self.em.size(x, axis) {
            return Ok(size.into());
        }
        let shape = self.shape_of(x)?;
        Ok(Size::Of(op!(self.em, "GatherV2", shape, axis as i64, 0i64)?))
    }

    pub fn ints(&mut self, values: &[i64]) -> Result<Output> {
        self.em.constant(Tensor::vector(values.to_vec()))
    }

    /// A size as a scalar.
    pub fn scalar(&mut self, size: Size) -> Result<Output> {
        match size {
            Size::Known(size) => self.em.constant(Tensor::scalar(size)),
            Size::Of(output) => Ok(output),
        }
    }

    /// Sizes as an int64 vector.
    pub fn packed(&mut self, sizes: &[Size]) -> Result<Output> {
        let known = |size: &Size| if let Size::Known(size) = size { Some(*size) } else { None };
        if let Some(known) = sizes.iter().map(known).collect::<Option<Vec<i64>>>() {
            return self.ints(&known);
        }
        let all = sizes.iter().map(|&size| self.scalar(size).map(Into::into)).collect::<Result<Vec<_>>>()?;
        self.em.add("Pack", all, &[])
    }

    /// The result of an op on two sizes.
    pub fn compute(&mut self, op: &str, a: Size, b: Size) -> Result<Size> {
        if let (Size::Known(a), Size::Known(b)) = (a, b) {
            let known = match op {
                "AddV2" => a.checked_add(b),
                "Sub" => a.checked_sub(b),
                "Mul" => a.checked_mul(b),
                "FloorDiv" if b > 0 => Some(a.div_euclid(b)),
                "Maximum" => Some(a.max(b)),
                "Minimum" => Some(a.min(b)),
                _ => None,
            };
            return known
                .map(Size::Known)
                .ok_or_else(|| Failure::invalid(format!("{op} of the sizes {a} and {b} has no result")));
        }
        let (a, b) = (self.scalar(a)?, self.scalar(b)?);
        Ok(Size::Of(op!(self.em, op, a, b)?))
    }

    /// The product of sizes.
    pub fn product(&mut self, sizes: &[Size]) -> Result<Size> {
        sizes.iter().try_fold(Size::Known(1), |product, &size| match (product, size) {
            (Size::Known(1), size) | (size, Size::Known(1)) => Ok(size),
            (a, b) => self.compute("Mul", a, b),
        })
    }

    pub fn reshape(&mut self, x: Output, sizes: &[Size]) -> Result<Output> {
        let is_same = self.em.dims(x).is_some_and(|dims| {
            dims.len() == sizes.len()
                && dims
                    .iter()
                    .zip(sizes)
                    .all(|(own, size)| matches!((own, size), (Some(own), Size::Known(size)) if *own as i64 == *size))
        });
        if is_same {
            return Ok(x);
        }
        // A single size that is not known follows from the number of elements, unless there are none.
        let open = sizes.iter().filter(|size| matches!(size, Size::Of(_))).count();
        if open == 1 && sizes.iter().all(|size| !matches!(size, Size::Known(..=0))) {
            let sizes: Vec<i64> =
                sizes.iter().map(|size| if let Size::Known(size) = size { *size } else { -1 }).collect();
            return op!(self.em, "Reshape", x, sizes);
        }
        let shape = self.packed(sizes)?;
        op!(self.em, "Reshape", x, shape)
    }

    pub fn transpose(&mut self, x: Output, order: &[usize]) -> Result<Output> {
        if order.iter().enumerate().all(|(i, &axis)| i == axis) {
            return Ok(x);
        }
        // Two transpositions in a row are one, or none.
        let node = self.em.graph().node(x.node);
        if node.op.name == "Transpose"
            && let (from, Some(before)) = (node.inputs[0], self.em.ints(node.inputs[1]))
        {
            let order: Vec<usize> = order.iter().map(|&axis| before[axis] as usize).collect();
            let elem = self.em.elem(x);
            let whole = self.transpose(from, &order)?;
            self.em.set_elem(whole, elem);
            return Ok(whole);
        }
        let order: Vec<i64> = order.iter().map(|&axis| axis as i64).collect();
        op!(self.em, "Transpose", x, order)
    }

    /// Moves an axis to the end; the order that moves it back.
    pub fn moved_last(&mut self, x: Output, axis: usize) -> Result<(Output, Vec<usize>)> {
        let rank = self.em.rank(x)?;
        let order: Vec<usize> = (0..rank).filter(|&own| own != axis).chain([axis]).collect();
        let mut back = vec![0; rank];
        order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
        Ok((self.transpose(x, &order)?, back))
    }

    pub fn cast(&mut self, x: Output, to: DType) -> Result<Output> {
        if self.em.dtype(x) == to {
            return Ok(x);
        }
        op!(self.em, "Cast", x; "DstT" => to)
    }

    /// An index or size as int64.
    pub fn long(&mut self, x: Output) -> Result<Output> {
        self.cast(x, DType::I64)
    }

    /// The axis that an attribute or a constant denotes.
    ///
    /// # Errors
    /// InvalidArgument if there is no such axis.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        crate::axis(axis, rank)
            .ok_or_else(|| Failure::invalid(format!("axis {axis} is not one of a tensor of rank {rank}")))
    }

    /// As [`axis`](Cx::axis), of a tensor whose rank may not be known: an axis counted from the beginning is one nevertheless.
    ///
    /// # Errors
    /// As [`axis`](Cx::axis); Unimplemented for an axis counted from an end that is not known.
    pub fn axis_of(&self, x: Output, axis: i64) -> Result<usize> {
        match (self.em.dims(x), usize::try_from(axis)) {
            (Some(dims), _) => self.axis(axis, dims.len()),
            (None, Ok(axis)) => Ok(axis),
            (None, Err(_)) => Err(unsupported(format!("unsupported: axis {axis} of a tensor whose rank is not known"))),
        }
    }

    pub fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>> {
        axes.iter().map(|&axis| self.axis(axis, rank)).collect()
    }

    /// Adds axes of size 1 at these places of the result.
    pub fn unsqueeze(&mut self, x: Output, axes: &[usize]) -> Result<Output> {
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        sorted.iter().try_fold(x, |x, &axis| op!(self.em, "ExpandDims", x, axis as i64))
    }

    pub fn squeeze(&mut self, x: Output, axes: &[usize]) -> Result<Output> {
        if axes.is_empty() {
            return Ok(x);
        }
        let axes: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
        op!(self.em, "Squeeze", x; "squeeze_dims" => axes)
    }

    /// Axes that a step computes, of a tensor of this rank, counted from the beginning: `[count, 1]`.
    pub fn open_axes(&mut self, axes: Output, rank: usize) -> Result<Output> {
        let axes = self.long(axes)?;
        let axes = op!(self.em, "Reshape", axes, [-1i64])?;
        let axes = op!(self.em, "FloorMod", axes, rank as i64)?;
        self.unsqueeze(axes, &[1])
    }

    /// States the rank of a tensor whose shape the rules do not infer.
    pub fn of_rank(&mut self, x: Output, rank: usize) -> Result<Output> {
        if self.em.dims(x).is_some() {
            return Ok(x);
        }
        op!(self.em, "EnsureShape", x; "shape" => PartialShape(Some(vec![None; rank])))
    }

    /// Reduces some axes, which stay with size 1 if `keep` is true.
    pub fn reduce(&mut self, op: &str, x: Output, axes: &[usize], keep: bool) -> Result<Output> {
        let axes: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
        op!(self.em, op, x, axes; "keep_dims" => keep)
    }

    pub fn concat(&mut self, parts: &[Output], axis: usize) -> Result<Output> {
        match parts {
            [one] => Ok(*one),
            _ => {
                let args = parts.iter().map(|&part| part.into()).chain([(axis as i64).into()]).collect();
                self.em.add("ConcatV2", args, &[])
            }
        }
    }

    /// Cuts a tensor along an axis into parts of one size.
    pub fn split(&mut self, x: Output, axis: usize, count: usize) -> Result<Vec<Output>> {
        if count == 1 {
            return Ok(vec![x]);
        }
        self.em.many("Split", vec![(axis as i32).into(), x.into()], &[("num_split", Attr::Int(count as i64))], count)
    }

    /// The elements `from..to` along an axis; to the end if `to` is none.
    pub fn slice(&mut self, x: Output, axis: usize, from: Size, to: Option<Size>) -> Result<Output> {
        let rank = self.em.rank(x)?;
        let all: i64 = (0..rank).filter(|&own| own != axis).map(|own| 1 << own).sum();
        let place =
            |at: Size| -> Vec<Size> { (0..rank).map(|own| if own == axis { at } else { Size::Known(0) }).collect() };
        let begin = self.packed(&place(from))?;
        let end = self.packed(&place(to.unwrap_or(Size::Known(0))))?;
        let strides = vec![1i64; rank];
        let open = if to.is_none() { 1 << axis } else { 0 };
        op!(self.em, "StridedSlice", x, begin, end, strides; "begin_mask" => all, "end_mask" => all | open)
    }

    /// The same tensor, in a step that fails with this message unless a scalar is true.
    pub fn checked(&mut self, x: Output, holds: Output, why: &str) -> Result<Output> {
        let text = self.em.constant(Tensor::scalar(why.as_bytes().to_vec()))?;
        let (assert, same) = (self.em.scoped("Assert"), self.em.scoped("Identity"));
        let types = Attr::Types(vec![DType::String]);
        self.em.effect(assert.clone(), "Assert", &[holds, text], &[("T", types)])?;
        let inputs = vec![self.em.graph().tensor_name(x), format!("^{assert}")];
        let mut attrs = Attrs::default();
        attrs.set("T", Attr::Type(self.em.dtype(x)));
        self.em.extend(vec![NodeDef::on("", same.clone(), "Identity", inputs, attrs)])?;
        self.em.graph().output(&same).map_err(Failure::from)
    }

    /// Pads with a value, or with zeros; before and after each axis.
    pub fn pad(&mut self, x: Output, sides: &[(i64, i64)], value: Option<f64>) -> Result<Output> {
        if sides.iter().all(|&side| side == (0, 0)) {
            return Ok(x);
        }
        let flat: Vec<i64> = sides.iter().flat_map(|side| [side.0, side.1]).collect();
        let sides = Tensor::from_vec([sides.len(), 2], flat);
        match value {
            None => op!(self.em, "Pad", x, sides),
            Some(value) => op!(self.em, "PadV2", x, sides, value),
        }
    }

    /// The elements of a tensor of this shape, all equal.
    pub fn fill(&mut self, shape: Output, value: f64, dtype: DType) -> Result<Output> {
        let value = self.em.number(value, dtype)?;
        op!(self.em, "Fill", shape, value)
    }

    /// `[0, 1, … n-1]`, int64.
    pub fn range(&mut self, n: Size) -> Result<Output> {
        /// A longer one is computed in each step.
        const MAX_CONSTANT: i64 = 4096;
        match n {
            Size::Known(n @ 0..=MAX_CONSTANT) => self.ints(&(0..n).collect::<Vec<_>>()),
            n => {
                let n = self.scalar(n)?;
                op!(self.em, "Range", 0i64, n, 1i64)
            }
        }
    }

    /// A tensor in float32 if its dtype is narrower, for an op that is computed in float32; the dtype to return to.
    pub fn widened(&mut self, x: Output) -> Result<(Output, DType)> {
        let dtype = self.em.dtype(x);
        match dtype {
            DType::F16 | DType::BF16 => Ok((self.cast(x, DType::F32)?, dtype)),
            _ => Ok((x, dtype)),
        }
    }

    /// The known elements of an input that a rule cannot do without.
    ///
    /// # Errors
    /// Unimplemented if only a step computes them.
    pub fn needed(&self, x: Output, what: &str) -> Result<Vec<i64>> {
        self.em.ints(x).ok_or_else(|| unsupported(format!("unsupported: {what} that only a step computes")))
    }

    /// The whole shape of a tensor, for rules that depend on it.
    ///
    /// # Errors
    /// Unimplemented if a size is not known.
    pub fn static_shape(&self, x: Output) -> Result<Shape> {
        self.em.shape(x).known().ok_or_else(|| {
            unsupported(format!(
                "unsupported: its input has the shape {}, of which sizes are not known",
                self.em.shape(x)
            ))
        })
    }
}
