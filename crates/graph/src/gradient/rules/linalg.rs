//! Gradients of linear algebra: inverses, determinants, factors and diagonals of matrices.

use super::{Rule, Stop, matmul};
use crate::Output;
use crate::gradient::call::{Added, Call, Grads, all, one, some};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("matrix_inverse", |c| {
        let (y, dy) = (c.y(0), c.dy()?);
        let product = match c.flag("adjoint") {
            false => {
                let right = batch_product(c, dy, false, y, true)?;
                batch_product(c, y, true, right, false)?
            }
            true => {
                let right = batch_product(c, dy, true, y, false)?;
                batch_product(c, y, false, right, false)?
            }
        };
        one(c.neg(product)?)
    }),
    ("matrix_determinant", |c| {
        let (y, dy) = (c.y(0), c.dy()?);
        let product = c.mul(dy, y)?;
        of_determinant(c, product, y)
    }),
    ("log_matrix_determinant", |c| {
        let (y, dy) = (c.y(1), c.d(1)?);
        of_determinant(c, dy, y)
    }),
    ("cholesky", cholesky),
    ("self_adjoint_eig_v2", self_adjoint_eig),
    ("matrix_solve", |c| {
        let (matrix, y, dy, adjoint) = (c.x(0), c.y(0), c.dy()?, c.flag("adjoint"));
        let by_rhs = c.op("MatrixSolve").input(matrix).input(dy).attr("adjoint", !adjoint).build()?;
        let by_matrix = of_matrix(c, by_rhs, y, adjoint)?;
        all([by_matrix, by_rhs])
    }),
    ("matrix_solve_ls", least_squares),
    ("matrix_triangular_solve", |c| {
        let (matrix, rhs, y, dy) = (c.x(0), c.x(1), c.y(0), c.dy()?);
        let (lower, adjoint) = (c.flag("lower"), c.flag("adjoint"));
        let solve = c.op("MatrixTriangularSolve").input(matrix).input(dy);
        let by_rhs = solve.attr("lower", lower).attr("adjoint", !adjoint).build()?;
        let by_matrix = of_matrix(c, by_rhs, y, adjoint)?;
        let kept = if lower { [-1i64, 0] } else { [0, -1] };
        let by_matrix = c.op("MatrixBandPart").input(by_matrix).input(kept[0]).input(kept[1]).build()?;
        matmul::unbroadcast(c, [matrix, rhs], [by_matrix, by_rhs])
    }),
    ("matrix_band_part", |c| {
        let (lower, upper, dy) = (c.x(1), c.x(2), c.dy()?);
        one(c.op("MatrixBandPart").input(dy).input(lower).input(upper).build()?)
    }),
    ("cross", |c| {
        let (a, b, dy) = (c.x(0), c.x(1), c.dy()?);
        all([c.bin("Cross", b, dy)?, c.bin("Cross", dy, a)?])
    }),
    ("matrix_set_diag", |c| {
        let (diagonal, dy) = (c.x(1), c.dy()?);
        let zeros = c.un("ZerosLike", diagonal)?;
        all([c.bin("MatrixSetDiag", dy, zeros)?, c.un("MatrixDiagPart", dy)?])
    }),
    ("matrix_set_diag_v2", |c| {
        let part = if c.node.op.name == "MatrixSetDiagV2" { "MatrixDiagPartV2" } else { "MatrixDiagPartV3" };
        let (diagonal, k, dy) = (c.x(1), c.x(2), c.dy()?);
        let zeros = c.un("ZerosLike", diagonal)?;
        let zero = c.g.constant("zero", super::number(c.t(), 0.0).unwrap_or_else(|| 0.0f32.into()))?;
        let rest = c.with_attrs(c.node.op.name, &[dy, zeros, k], &["align"])?;
        all([rest, c.with_attrs(part, &[dy, k, zero], &["align"])?])
    }),
    ("diag", |c| {
        let dy = c.dy()?;
        one(c.un("DiagPart", dy)?)
    }),
    ("diag_part", |c| {
        let dy = c.dy()?;
        one(c.un("Diag", dy)?)
    }),
    ("matrix_diag", |c| {
        let dy = c.dy()?;
        one(c.un("MatrixDiagPart", dy)?)
    }),
    ("matrix_diag_v2", |c| {
        let op = if c.node.op.name == "MatrixDiagV2" { "MatrixDiagPartV2" } else { "MatrixDiagPartV3" };
        let (k, dy) = (c.x(1), c.dy()?);
        let zero = c.g.constant("zero", super::number(c.t(), 0.0).unwrap_or_else(|| 0.0f32.into()))?;
        one(c.with_attrs(op, &[dy, k, zero], &["align"])?)
    }),
    ("matrix_diag_part", |c| {
        let dy = c.dy()?;
        let [rows, columns] = matrix_sizes(c)?;
        let zero = c.num(0.0);
        one(c.op("MatrixDiagV3").input(dy).input(0).input(rows).input(columns).input(zero).build()?)
    }),
    ("matrix_diag_part_v2", |c| {
        let op = if c.node.op.name == "MatrixDiagPartV2" { "MatrixDiagV2" } else { "MatrixDiagV3" };
        let (k, dy) = (c.x(1), c.dy()?);
        let [rows, columns] = matrix_sizes(c)?;
        let zero = c.g.constant("zero", super::number(c.t(), 0.0).unwrap_or_else(|| 0.0f32.into()))?;
        one(c.with_attrs(op, &[dy, k, rows, columns, zero], &["align"])?)
    }),
];

/// The rows and columns of the matrices in the first input.
fn matrix_sizes(c: &mut Call) -> Result<[Output; 2], super::Stop> {
    let shape = c.shape(c.x(0))?;
    Ok([c.element(shape, -2)?, c.element(shape, -1)?])
}

/// The product of two batches of matrices, either of which may be transposed.
pub(super) fn batch_product(c: &mut Call, a: Output, flips_a: bool, b: Output, flips_b: bool) -> Added {
    Ok(c.op("BatchMatMulV2").name("MatMul").input(a).input(b).attr("adj_x", flips_a).attr("adj_y", flips_b).build()?)
}

/// The gradient with respect to the matrix of a linear system, from that with respect to its right side.
pub(super) fn of_matrix(c: &mut Call, by_rhs: Output, y: Output, adjoint: bool) -> Added {
    let product = match adjoint {
        false => batch_product(c, by_rhs, false, y, true)?,
        true => batch_product(c, y, false, by_rhs, true)?,
    };
    c.neg(product)
}

/// With respect to the matrix and the right side. With at least as many rows as columns, the solution is that of the normal
/// equations `(AᵀA + λ) X = AᵀB`, otherwise the least-norm one, `X = Aᵀ (AAᵀ + λ)⁻¹ B`.
fn least_squares(c: &mut Call) -> Grads {
    let (a, b, x, dx) = (c.x(0), c.x(1), c.y(0), c.dy()?);
    if !c.flag("fast") {
        return Err(Stop::Unsupported("has a gradient only where `fast` is true".to_owned()));
    }
    let sizes = c.sizes(a).unwrap_or_default();
    let &[.., Some(rows), Some(columns)] = sizes.as_slice() else {
        return Err(Stop::Unsupported("needs to know the sizes of its matrix".to_owned()));
    };
    let is_tall = rows >= columns;
    let product = batch_product(c, a, is_tall, a, !is_tall)?;
    let diagonal = c.un("MatrixDiagPart", product)?;
    let ones = c.un("OnesLike", diagonal)?;
    let dtype = c.dtype(a);
    let regularizer = c.cast(c.x(2), dtype)?;
    let regularizers = c.mul(ones, regularizer)?;
    let regularizers = c.un("MatrixDiag", regularizers)?;
    let system = c.add(product, regularizers)?;
    let factor = c.un("Cholesky", system)?;
    if is_tall {
        let z = solved(c, factor, dx)?;
        let by_b = batch_product(c, a, false, z, false)?;
        let (xz, zx) = (batch_product(c, x, false, z, true)?, batch_product(c, z, false, x, true)?);
        let both = c.add(xz, zx)?;
        let (of_b, of_a) = (batch_product(c, b, false, z, true)?, batch_product(c, a, false, both, false)?);
        return some([Some(c.sub(of_b, of_a)?), Some(by_b), None]);
    }
    let product = batch_product(c, a, false, dx, false)?;
    let by_b = solved(c, factor, product)?;
    let u = solved(c, factor, b)?;
    let explained = batch_product(c, a, true, by_b, false)?;
    let rest = c.sub(dx, explained)?;
    // The solution is computed again, so that its own gradient includes λ.
    let solution = batch_product(c, u, true, a, false)?;
    let (of_rest, of_x) = (batch_product(c, u, false, rest, true)?, batch_product(c, by_b, false, solution, false)?);
    some([Some(c.sub(of_rest, of_x)?), Some(by_b), None])
}

/// The solution of a system whose matrix has this Cholesky factor.
fn solved(c: &mut Call, factor: Output, rhs: Output) -> Added {
    let solve = |c: &mut Call, rhs: Output, adjoint: bool| -> Added {
        let solve = c.op("MatrixTriangularSolve").input(factor).input(rhs);
        Ok(solve.attr("lower", true).attr("adjoint", adjoint).build()?)
    };
    let half = solve(c, rhs, false)?;
    solve(c, half, true)
}

/// For each matrix, a multiple of its transposed inverse.
fn of_determinant(c: &mut Call, multiple: Output, determinant: Output) -> Grads {
    let x = c.x(0);
    let inverse = c.op("MatrixInverse").input(x).attr("adjoint", true).build()?;
    let shape = c.shape(determinant)?;
    let ones = c.g.constant("ones", [1, 1])?;
    let shape = c.concat([shape, ones], 0)?;
    let multiple = c.reshape(multiple, shape)?;
    one(c.mul(multiple, inverse)?)
}

fn cholesky(c: &mut Call) -> Grads {
    let (l, dl) = (c.y(0), c.dy()?);
    let diagonal = c.un("MatrixDiagPart", l)?;
    let ones = c.un("OnesLike", diagonal)?;
    let identity = c.un("MatrixDiag", ones)?;
    let inverse = c.op("MatrixTriangularSolve").input(l).input(identity).attr("lower", true).build()?;
    let product = batch_product(c, l, true, dl, false)?;
    let lower = c.op("MatrixBandPart").input(product).input(-1i64).input(0i64).build()?;
    let diagonal = c.op("MatrixBandPart").input(product).input(0i64).input(0i64).build()?;
    let half = c.mul(diagonal, c.num(0.5))?;
    let middle = c.sub(lower, half)?;
    // The gradient is symmetric: the sum of one product and its transpose, halved.
    let left = batch_product(c, inverse, true, middle, false)?;
    let lower = batch_product(c, left, false, inverse, false)?;
    let right = batch_product(c, middle, true, inverse, false)?;
    let upper = batch_product(c, inverse, true, right, false)?;
    let sum = c.add(lower, upper)?;
    one(c.mul(sum, c.num(0.5))?)
}

/// Only the lower triangle of the matrix is read, so the gradient is in that alone.
fn self_adjoint_eig(c: &mut Call) -> Grads {
    let (matrix, values, of_values) = (c.x(0), c.y(0), c.d(0)?);
    let diagonal = c.un("MatrixDiag", of_values)?;
    let (vectors, inner) = if c.flag("compute_v") {
        let (vectors, of_vectors) = (c.y(1), c.d(1)?);
        let (row, column) = (c.bin("ExpandDims", values, -2)?, c.bin("ExpandDims", values, -1)?);
        // The reciprocals of the differences, with zero on the diagonal.
        let differences = c.sub(row, column)?;
        let square = c.un("Square", differences)?;
        let square = c.add(square, c.num(1e-20))?;
        let reciprocals = c.div(differences, square)?;
        let product = batch_product(c, vectors, true, of_vectors, false)?;
        let product = c.mul(reciprocals, product)?;
        (vectors, c.add(diagonal, product)?)
    } else {
        let again = c.op("SelfAdjointEigV2").input(matrix).build()?;
        (again.port(1), diagonal)
    };
    let right = batch_product(c, inner, false, vectors, true)?;
    let whole = batch_product(c, vectors, false, right, false)?;
    let right = batch_product(c, inner, true, vectors, true)?;
    let turned = batch_product(c, vectors, false, right, false)?;
    let sum = c.add(whole, turned)?;
    let below = c.op("MatrixBandPart").input(sum).input(-1i64).input(0i64).build()?;
    let on_diagonal = c.un("MatrixDiagPart", whole)?;
    one(c.bin("MatrixSetDiag", below, on_diagonal)?)
}
