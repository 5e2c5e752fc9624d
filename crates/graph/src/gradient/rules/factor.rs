//! Gradients of matrix factorisations: QR and singular values, as in TensorFlow's `linalg_grad.py`.

use super::linalg::batch_product;
use super::{Rule, Stop};
use crate::Output;
use crate::gradient::call::{Added, Call, Grads, one};

pub(super) const RULES: &[(&str, Rule)] = &[("qr", qr), ("svd", svd)];

/// The rows and columns of the input's matrices, which must be known.
fn sizes(c: &Call) -> Result<(usize, usize), Stop> {
    let sizes = c.sizes(c.x(0));
    match sizes.as_deref() {
        Some([.., Some(rows), Some(columns)]) => Ok((*rows, *columns)),
        _ => Err(Stop::Unsupported("is supported only if the sizes of the matrix are known".to_owned())),
    }
}

/// Some of the columns of each matrix.
fn columns(c: &mut Call, x: Output, from: usize, to: Option<usize>) -> Added {
    let end = to.map_or(0, |to| to as i32);
    let slice = c.op("StridedSlice").input(x).input([0, from as i32]).input([0, end]).input([1, 1]);
    let slice = slice.attr("ellipsis_mask", 1);
    Ok(if to.is_none() { slice.attr("end_mask", 2) } else { slice }.build()?)
}

/// The gradient of <https://arxiv.org/abs/2009.10071>.
fn qr(c: &mut Call) -> Grads {
    let (rows, all) = sizes(c)?;
    if rows > all && c.flag("full_matrices") {
        let why = format!("is not supported for full_matrices with more rows ({rows}) than columns ({all})");
        return Err(Stop::Unsupported(why));
    }
    let (q, r, dq, dr) = (c.y(0), c.y(1), c.d(0)?, c.d(1)?);
    if rows >= all {
        return one(qr_of_deep(c, q, r, dq, dr)?);
    }
    // The first columns form a square matrix, from which the other columns follow.
    let x = c.x(0);
    let others = columns(c, x, rows, None)?;
    let square = columns(c, r, 0, Some(rows))?;
    let (of_square, of_others) = (columns(c, dr, 0, Some(rows))?, columns(c, dr, rows, None)?);
    let more = batch_product(c, others, false, of_others, true)?;
    let dq = c.add(dq, more)?;
    let first = qr_of_deep(c, q, square, dq, of_square)?;
    let last = batch_product(c, q, false, of_others, false)?;
    one(c.concat([first, last], -1)?)
}

/// For matrices with at least as many rows as columns.
fn qr_of_deep(c: &mut Call, q: Output, r: Output, dq: Output, dr: Output) -> Added {
    let diagonal = c.un("MatrixDiagPart", r)?;
    let ones = c.un("OnesLike", diagonal)?;
    let identity = c.un("MatrixDiag", ones)?;
    let inverse = c.op("MatrixTriangularSolve").input(r).input(identity).attr("lower", false).build()?;
    let inner = batch_product(c, q, true, dq, false)?;
    let of_r = batch_product(c, r, false, dr, true)?;
    let turned = batch_product(c, dq, true, q, false)?;
    let of_r_turned = batch_product(c, dr, false, r, true)?;
    let (sum, turned) = (c.add(inner, of_r)?, c.add(turned, of_r_turned)?);
    let difference = c.sub(sum, turned)?;
    let lower = c.op("MatrixBandPart").input(difference).input(-1i64).input(0i64).build()?;
    let lower = batch_product(c, lower, false, inverse, true)?;
    let middle = c.add(dr, lower)?;
    let along = batch_product(c, q, false, middle, false)?;
    let own = batch_product(c, q, false, inner, false)?;
    let rest = c.sub(dq, own)?;
    let beside = batch_product(c, rest, false, inverse, true)?;
    c.add(along, beside)
}

/// A number divided by its square: the reciprocal, but 0 for 0.
fn reciprocal(c: &mut Call, x: Output) -> Added {
    let square = c.un("Square", x)?;
    let square = c.add(square, c.num(1e-20))?;
    c.div(x, square)
}

/// The gradient of <https://j-towns.github.io/papers/svd-derivative.pdf>. It is infinite where singular values are equal.
fn svd(c: &mut Call) -> Grads {
    let (x, ds) = (c.x(0), c.d(0)?);
    let of_s = c.un("MatrixDiag", ds)?;
    if !c.flag("compute_uv") {
        let again = c.op("Svd").input(x).build()?;
        let left = batch_product(c, again.port(1), false, of_s, false)?;
        return one(batch_product(c, left, false, again.port(2), true)?);
    }
    let (rows, all) = sizes(c)?;
    let is_full = c.flag("full_matrices");
    if is_full && rows.abs_diff(all) > 1 {
        let why =
            format!("is not supported for full_matrices of {rows} rows and {all} columns, which differ by more than 1");
        return Err(Stop::Unsupported(why));
    }
    let (s, mut u, mut v, mut du, mut dv) = (c.y(0), c.y(1), c.y(2), c.d(1)?, c.d(2)?);
    // The gradient of a matrix with more rows than columns is that of the transpose, transposed.
    let is_deep = rows > all;
    let (least, most) = (rows.min(all), rows.max(all));
    if is_deep {
        (u, v, du, dv) = (v, u, dv, du);
    }
    let s_matrix = c.un("MatrixDiag", s)?;
    let squares = c.un("Square", s)?;
    let (row, column) = (c.bin("ExpandDims", squares, -2)?, c.bin("ExpandDims", squares, -1)?);
    let differences = c.sub(row, column)?;
    let factors = reciprocal(c, differences)?;
    let (v1, dv1) = (columns(c, v, 0, Some(least))?, columns(c, dv, 0, Some(least))?);
    let (of_u, of_v) = (batch_product(c, u, true, du, false)?, batch_product(c, v1, true, dv1, false)?);
    let (of_u, of_v) = (c.mul(factors, of_u)?, c.mul(factors, of_v)?);
    let mut inner = of_s;
    for (a, flips_a, b, flips_b) in [
        (of_u, false, s_matrix, false),
        (of_u, true, s_matrix, false),
        (s_matrix, false, of_v, false),
        (s_matrix, false, of_v, true),
    ] {
        let part = batch_product(c, a, flips_a, b, flips_b)?;
        inner = c.add(inner, part)?;
    }
    let left = batch_product(c, u, false, inner, false)?;
    let product = |c: &mut Call, left: Output, right: Output| match is_deep {
        false => batch_product(c, left, false, right, true),
        true => batch_product(c, right, false, left, true),
    };
    let mut whole = product(c, left, v1)?;
    if least < most {
        let along = batch_product(c, v1, true, dv1, false)?;
        let along = batch_product(c, v1, false, along, false)?;
        let mut beside = c.sub(dv1, along)?;
        if is_full {
            let (v2, dv2) = (columns(c, v, least, Some(most))?, columns(c, dv, least, Some(most))?);
            let across = batch_product(c, dv2, true, v1, false)?;
            let across = batch_product(c, v2, false, across, false)?;
            beside = c.sub(beside, across)?;
        }
        let inverse = reciprocal(c, s)?;
        let inverse = c.un("MatrixDiag", inverse)?;
        let left = batch_product(c, u, false, inverse, false)?;
        let rest = product(c, left, beside)?;
        whole = c.add(whole, rest)?;
    }
    one(whole)
}
