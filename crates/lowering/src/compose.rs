//! Helpers from which the rules are composed: nodes, constants, permutations, reshapes, casts, index tensors.

use burn_ir::{BinaryOpIr, ScalarIr, ScalarOpIr, TensorIr, UnaryOpIr};
use meshtf_graph::{Attr, Input, Output};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};
use smallvec::SmallVec;

use super::Lowering;
use super::values::{dtype, scalar_tensor};

impl Lowering<'_> {
    /// Adds a node; its first output.
    pub fn node<const N: usize>(&mut self, op: &str, inputs: [Input; N]) -> Result<Output> {
        self.graph.op(op).inputs(inputs).build()
    }

    /// Adds a node with attributes; its first output.
    pub fn node_with<const N: usize>(
        &mut self,
        op: &str,
        inputs: [Input; N],
        attrs: &[(&str, Attr)],
    ) -> Result<Output> {
        let node = self.graph.op(op).inputs(inputs);
        attrs.iter().fold(node, |node, (name, value)| node.attr(name, value.clone())).build()
    }

    /// Lowers an operation of one tensor that is one op.
    pub fn unary(&mut self, op: &str, ir: &UnaryOpIr) -> Result<()> {
        let input = self.read(&ir.input)?;
        let value = self.node(op, [input.into()])?;
        self.write(&ir.out, value)
    }

    /// Lowers an operation of two tensors that is one op.
    pub fn binary(&mut self, op: &str, ir: &BinaryOpIr) -> Result<()> {
        let (lhs, rhs) = (self.read(&ir.lhs)?, self.read(&ir.rhs)?);
        let value = self.node(op, [lhs.into(), rhs.into()])?;
        self.write(&ir.out, value)
    }

    /// Lowers an operation of a tensor and a scalar, which has the tensor's dtype, that is one op.
    pub fn with_scalar(&mut self, op: &str, ir: &ScalarOpIr) -> Result<()> {
        let lhs = self.read(&ir.lhs)?;
        let rhs = self.scalar_input(ir.rhs, dtype(ir.lhs.dtype)?)?;
        let value = self.node(op, [lhs.into(), rhs])?;
        self.write(&ir.out, value)
    }

    /// A value reduced along dims, which stay with length 1. Adds nothing if they have that length.
    pub fn reduce(&mut self, op: &str, value: Output, shape: &[usize], axes: &[usize]) -> Result<Output> {
        if axes.iter().all(|&axis| shape.get(axis) == Some(&1)) {
            return Ok(value);
        }
        self.node_with(op, [value.into(), sizes(axes)?], &[("keep_dims", true.into())])
    }

    /// A value reduced to one element, shape \[1\].
    pub fn reduce_all(&mut self, op: &str, value: Output, shape: &[usize]) -> Result<Output> {
        if shape.len() == 1 {
            return self.reduce(op, value, shape, &[0]);
        }
        let axes: SmallVec<[usize; 8]> = (0..shape.len()).collect();
        let value = self.node(op, [value.into(), sizes(&axes)?])?;
        self.node("Reshape", [value.into(), sizes(&[1])?])
    }

    /// A value in another shape of as many elements. Adds nothing if it has that shape.
    pub fn reshape(&mut self, value: Output, from: &[usize], to: &[usize]) -> Result<Output> {
        if from == to {
            return Ok(value);
        }
        self.node("Reshape", [value.into(), sizes(to)?])
    }

    /// A value with its dims in another order: dim i of the result is dim `order[i]` of the value. Adds nothing for the same
    /// order.
    pub fn transpose(&mut self, value: Output, order: &[usize]) -> Result<Output> {
        if order.iter().enumerate().all(|(i, &dim)| i == dim) {
            return Ok(value);
        }
        self.node("Transpose", [value.into(), sizes(order)?])
    }

    /// A value with dim `dim` and the last one swapped; applied twice, it is the identity. Adds nothing if `dim` is the last
    /// one.
    pub fn swap_last(&mut self, value: Output, dim: usize, rank: usize) -> Result<Output> {
        self.transpose(value, &swapped(rank, dim, rank - 1))
    }

    /// A value repeated along its dims of length 1 up to this shape. Adds nothing if it has that shape.
    pub fn broadcast(&mut self, value: Output, from: &[usize], to: &[usize]) -> Result<Output> {
        if from == to {
            return Ok(value);
        }
        self.node("BroadcastTo", [value.into(), sizes(to)?])
    }

    /// A value in another dtype, converted as by Rust's `as`. Adds nothing if it has that dtype.
    pub fn cast(&mut self, value: Output, from: DType, to: DType) -> Result<Output> {
        if from == to {
            return Ok(value);
        }
        self.node_with("Cast", [value.into()], &[("DstT", to.into())])
    }

    /// The position of each element of a tensor of shape `at` in another tensor of the same rank: along `dim`, the element of
    /// `indices`, which has the shape `at`, too; along the other dims, its own coordinate. Each position has `at.len()`
    /// coordinates.
    pub fn full_indices(&mut self, indices: Output, of: DType, at: &[usize], dim: usize) -> Result<Output> {
        let mut coordinates = Vec::with_capacity(at.len());
        for (axis, &size) in at.iter().enumerate() {
            if axis == dim {
                coordinates.push(indices);
                continue;
            }
            let mut along = vec![1; at.len()];
            along[axis] = size;
            let value = integers(0..size, of)?.reshaped(along.clone())?;
            let range = self.graph.constant("range", value)?;
            coordinates.push(self.broadcast(range, &along, at)?);
        }
        self.graph.op("Pack").inputs(coordinates).attr("axis", at.len() as i64).build()
    }

    /// A tensor of indices in a dtype that gathers and scatters accept; with that dtype.
    pub fn indices(&mut self, tensor: &TensorIr) -> Result<(Output, DType)> {
        let from = dtype(tensor.dtype)?;
        let to = if from == DType::I64 { DType::I64 } else { DType::I32 };
        let to = if matches!(from, DType::U32 | DType::U64) { DType::I64 } else { to };
        let value = self.read(tensor)?;
        Ok((self.cast(value, from, to)?, to))
    }
}

/// A number as an input of this dtype, shape [].
pub fn number(value: f64, dtype: DType) -> Result<Input> {
    Ok(Input::Value(scalar_tensor(ScalarIr::Float(value), dtype)?))
}

/// Sizes, dims or positions as an input: int32, or int64 if one of them needs that.
pub fn sizes(values: &[usize]) -> Result<Input> {
    let narrow: Option<Vec<i32>> = values.iter().map(|&value| i32::try_from(value).ok()).collect();
    Ok(Input::Value(match narrow {
        Some(narrow) => Tensor::vector(narrow),
        None => integers(values.iter().copied(), DType::I64)?,
    }))
}

/// A dim, or a count, as an input: int32, shape [].
pub fn axis(value: usize) -> Result<Input> {
    let value = i32::try_from(value).map_err(|_| Failure::invalid(format!("{value} does not fit into int32")))?;
    Ok(Input::Value(Tensor::scalar(value)))
}

/// A list of numbers of int32 or int64.
///
/// # Errors
/// InvalidArgument if one of them does not fit; ResourceExhausted if there are more than [`MAX_INTEGERS`].
pub fn integers(values: impl Iterator<Item = usize>, dtype: DType) -> Result<Tensor> {
    let mut count = 0;
    let values = values.inspect(|_| count += 1).take(MAX_INTEGERS + 1);
    let tensor = integers_of(values, dtype)?;
    if count > MAX_INTEGERS {
        let why = format!("its indices would be a constant of more than {MAX_INTEGERS} integers");
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    Ok(tensor)
}

fn integers_of(values: impl Iterator<Item = usize>, dtype: DType) -> Result<Tensor> {
    let large = |value: usize| Failure::invalid(format!("{value} does not fit into {dtype}"));
    if dtype == DType::I64 {
        let values: Result<Vec<i64>> = values.map(|value| i64::try_from(value).map_err(|_| large(value))).collect();
        return values.map(Tensor::vector);
    }
    let values: Result<Vec<i32>> = values.map(|value| i32::try_from(value).map_err(|_| large(value))).collect();
    values.map(Tensor::vector)
}

/// Most integers of one constant that a rule makes.
pub const MAX_INTEGERS: usize = 1 << 24;

/// All dims in their order, except that these two are swapped.
pub fn swapped(rank: usize, a: usize, b: usize) -> SmallVec<[usize; 8]> {
    let mut order: SmallVec<[usize; 8]> = (0..rank).collect();
    order.swap(a, b);
    order
}
