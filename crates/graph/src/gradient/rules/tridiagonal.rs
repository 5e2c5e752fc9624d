//! Gradients of tridiagonal systems, and of square roots of matrices.

use super::{Rule, Stop};
use crate::gradient::call::{Added, Call, Grads, all, one};
use crate::{Input, Output};

pub(super) const RULES: &[(&str, Rule)] =
    &[("tridiagonal_solve", solve), ("tridiagonal_matmul", multiply), ("matrix_square_root", square_root)];

/// `x[..., from:to, :]`, or `x[..., from:to]` if the axis is the last.
fn cut(c: &mut Call, x: Output, is_last: bool, from: Option<i32>, to: Option<i32>) -> Added {
    let ends = |end: Option<i32>| if is_last { vec![0, end.unwrap_or(0)] } else { vec![0, end.unwrap_or(0), 0] };
    let mask = |end: Option<i32>| i64::from(end.is_none()) * 2 + if is_last { 0 } else { 4 };
    let slice = c.op("StridedSlice").name("strided_slice").input(x).input(ends(from)).input(ends(to));
    let slice = slice.input(vec![1; if is_last { 2 } else { 3 }]).attr("ellipsis_mask", 1);
    Ok(slice.attr("begin_mask", mask(from)).attr("end_mask", mask(to)).build()?)
}

/// The elements shifted by one towards the beginning of an axis, or the end, and padded with a zero.
fn shifted(c: &mut Call, x: Output, is_last: bool, to_begin: bool) -> Added {
    let axis = if is_last { -1 } else { -2 };
    let first = cut(c, x, is_last, None, Some(1))?;
    let zeros = c.un("ZerosLike", first)?;
    if to_begin {
        let rest = cut(c, x, is_last, Some(1), None)?;
        return c.concat([rest, zeros], axis);
    }
    let rest = cut(c, x, is_last, None, Some(-1))?;
    c.concat([zeros, rest], axis)
}

/// `x[..., row, :]` of the diagonals.
fn diagonal(c: &mut Call, diagonals: Output, row: i32) -> Added {
    let slice = c.op("StridedSlice").name("strided_slice").input(diagonals).input([0, row, 0]).input([0, row + 1, 0]);
    let slice = slice.input([1, 1, 1]).attr("ellipsis_mask", 1).attr("shrink_axis_mask", 2);
    Ok(slice.attr("begin_mask", 4).attr("end_mask", 4).build()?)
}

fn stacked(c: &mut Call, rows: [Output; 3]) -> Added {
    Ok(c.op("Pack").name("stack").inputs(rows).attr("axis", -2i64).build()?)
}

fn solve(c: &mut Call) -> Grads {
    let (diagonals, x, dy) = (c.x(0), c.y(0), c.dy()?);
    let (upper, middle, lower) = (diagonal(c, diagonals, 0)?, diagonal(c, diagonals, 1)?, diagonal(c, diagonals, 2)?);
    let (upper, lower) = (shifted(c, lower, true, true)?, shifted(c, upper, true, false)?);
    let transposed = stacked(c, [upper, middle, lower])?;
    let by_rhs = c.with_attrs("TridiagonalSolve", &[transposed, dy], &["partial_pivoting", "perturb_singular"])?;
    // The three diagonals of the product of the gradient of the right side and the transposed solution.
    let neighbours = [shifted(c, x, false, true)?, x, shifted(c, x, false, false)?];
    let mut rows = Vec::with_capacity(3);
    for neighbour in neighbours {
        let product = c.mul(by_rhs, neighbour)?;
        rows.push(c.sum(product, [-1], false)?);
    }
    let by_diagonals = stacked(c, [rows[0], rows[1], rows[2]])?;
    let by_diagonals = c.neg(by_diagonals)?;
    all([by_diagonals, by_rhs])
}

fn multiply(c: &mut Call) -> Grads {
    let (rhs, dy) = (c.x(3), c.dy()?);
    let conj = c.conj(rhs)?;
    let neighbours = [shifted(c, conj, false, true)?, conj, shifted(c, conj, false, false)?];
    let mut grads = Vec::with_capacity(4);
    for neighbour in neighbours {
        let product = c.mul(neighbour, dy)?;
        let sum = c.sum(product, [-1], false)?;
        grads.push(c.op("ExpandDims").input(sum).input(-2).build()?);
    }
    let mut parts = Vec::with_capacity(3);
    for input in 0..3 {
        let diagonal = c.x(input);
        let flat = c.op("Squeeze").input(diagonal).attr("squeeze_dims", [-2i64]).build()?;
        let column = c.op("ExpandDims").input(flat).input(-1).build()?;
        let column = c.conj_like(column, diagonal)?;
        parts.push(c.mul(column, dy)?);
    }
    let (upper, lower) = (shifted(c, parts[0], false, false)?, shifted(c, parts[2], false, true)?);
    let sum = c.add(upper, parts[1])?;
    let by_rhs = c.add(sum, lower)?;
    all([grads[0], grads[1], grads[2], by_rhs])
}

/// With r r = a: dr follows from r dr + dr r = da, a system with as many equations as a matrix has elements.
fn square_root(c: &mut Call) -> Grads {
    let (root, dy) = (c.y(0), c.dy()?);
    let rank = c.rank(root).filter(|rank| *rank >= 2);
    let rank = rank.ok_or_else(|| Stop::Unsupported("needs to know the rank of its input".to_owned()))? as i32;
    let order: Vec<i32> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    let shape = c.shape(root)?;
    let (outer, size) = (c.part(shape, 0, Some(-2))?, c.part(shape, -1, None)?);
    let vector = c.concat([outer, size], 0)?;
    let number = c.num(1.0);
    let ones = c.op("Fill").input(vector).input(number).build()?;
    let eye = c.un("MatrixDiag", ones)?;
    let transposed = c.bin("Transpose", root, order.clone())?;
    let (first, second) = (kronecker(c, eye, transposed, outer, size)?, kronecker(c, root, eye, outer, size)?);
    let system = c.add(first, second)?;
    let rhs = c.bin("Transpose", dy, order.clone())?;
    let count = c.mul(size, size)?;
    let column = c.concat([Input::from(outer), count.into(), [1].into()], 0)?;
    let rhs = c.reshape(rhs, column)?;
    let solved = c.bin("MatrixSolve", system, rhs)?;
    let solved = c.reshape(solved, shape)?;
    one(c.bin("Transpose", solved, order)?)
}

/// The Kronecker products of square matrices of one size.
fn kronecker(c: &mut Call, a: Output, b: Output, outer: Output, size: Output) -> Added {
    let parts = |first: Input, second: Input| [outer.into(), first.clone(), second.clone(), first, second];
    let of_a = c.concat(parts(size.into(), [1].into()), 0)?;
    let of_b = c.concat(parts([1].into(), size.into()), 0)?;
    let (a, b) = (c.reshape(a, of_a)?, c.reshape(b, of_b)?);
    let product = c.mul(a, b)?;
    let count = c.mul(size, size)?;
    let whole = c.concat([outer, count, count], 0)?;
    c.reshape(product, whole)
}
