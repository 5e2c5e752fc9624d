//! Gradients of banded systems, of the eigenvalues of matrices that need not be symmetric, and of isotonic regression.

use meshtf_tensor::DType;

use super::linalg::{batch_product, of_matrix};
use super::{Rule, Stop, matmul};
use crate::Output;
use crate::gradient::call::{Added, Call, Grads, one};

pub(super) const RULES: &[(&str, Rule)] =
    &[("banded_triangular_solve", banded), ("eig", eig), ("isotonic_regression", isotonic)];

/// That of a system of a whole matrix; of its gradient, the diagonals are taken.
fn banded(c: &mut Call) -> Grads {
    let (matrix, rhs, y, dy, dtype) = (c.x(0), c.x(1), c.y(0), c.dy()?, c.t());
    let (lower, adjoint) = (c.flag("lower"), c.flag("adjoint"));
    let solve = c.op("BandedTriangularSolve").input(matrix).input(dy);
    let by_rhs = solve.attr("lower", lower).attr("adjoint", !adjoint).build()?;
    let by_matrix = of_matrix(c, by_rhs, y, adjoint)?;
    let shape = c.shape(matrix)?;
    let bands = c.element(shape, -2)?;
    let ends = if lower {
        let first = c.op("Sub").name("sub").input(1).input(bands).build()?;
        c.op("Pack").name("stack").input(first).input(0).build()?
    } else {
        let last = c.sub(bands, 1)?;
        c.op("Pack").name("stack").input(0).input(last).build()?
    };
    let zero = number(dtype, 0.0)?;
    let part = c.op("MatrixDiagPartV3").input(by_matrix).input(ends).input(zero).attr("align", "LEFT_RIGHT");
    let by_matrix = part.build()?;
    matmul::unbroadcast(c, [matrix, rhs], [by_matrix, by_rhs])
}

fn number(dtype: DType, value: f64) -> Result<meshtf_tensor::Tensor, Stop> {
    super::number(dtype, value).ok_or_else(|| Stop::Unsupported(format!("has no gradient for {dtype}")))
}

/// Equation 4.77 of <https://arxiv.org/abs/1701.00392>. It is infinite where eigenvalues are equal.
fn eig(c: &mut Call) -> Grads {
    let (x, values, of_values) = (c.x(0), c.y(0), c.d(0)?);
    let (dtype, own) = (c.dtype(values), c.dtype(x));
    let diagonal = c.un("MatrixDiag", of_values)?;
    let (vectors, middle) = if c.flag("compute_v") {
        let (vectors, of_vectors) = (c.y(1), c.d(1)?);
        let (row, column) = (c.bin("ExpandDims", values, -2)?, c.bin("ExpandDims", values, -1)?);
        let differences = c.sub(row, column)?;
        let square = c.un("Square", differences)?;
        let square = c.add(square, number(dtype, 1e-20)?)?;
        let inverse = c.un("Reciprocal", square)?;
        // Zero on the diagonal.
        let reciprocals = c.mul(differences, inverse)?;
        let reciprocals = c.un("Conj", reciprocals)?;
        let product = batch_product(c, vectors, true, of_vectors, false)?;
        // The length of a vector does not change.
        let along = real(c, product, dtype)?;
        let along = c.un("MatrixDiagPart", along)?;
        let along = c.un("MatrixDiag", along)?;
        let lengths = batch_product(c, vectors, true, vectors, false)?;
        let kept = batch_product(c, lengths, false, along, false)?;
        let rest = c.sub(product, kept)?;
        let beside = c.mul(reciprocals, rest)?;
        (vectors, c.add(diagonal, beside)?)
    } else {
        let again = c.op("Eig").input(x).attr("compute_v", true).attr("Tout", dtype).build()?;
        (again.port(1), diagonal)
    };
    let right = batch_product(c, middle, false, vectors, true)?;
    let whole = c.op("MatrixSolve").input(vectors).input(right).attr("adjoint", true).build()?;
    one(if own == dtype { whole } else { c.cast(whole, own)? })
}

/// The real parts, as complex numbers.
fn real(c: &mut Call, x: Output, dtype: DType) -> Added {
    let part = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
    let parts = c.op("Real").input(x).attr("Tout", part).build()?;
    c.cast(parts, dtype)
}

/// The mean over each group, for each of its elements. The groups of the second row are numbered after those of the first.
fn isotonic(c: &mut Call) -> Grads {
    let (x, groups, dy, dtype) = (c.x(0), c.y(1), c.dy()?, c.t());
    let shape = c.shape(x)?;
    let width = c.element(shape, -1)?;
    let row = c.op("Pack").name("stack").input(-1).input(width).build()?;
    let groups = c.reshape(groups, row)?;
    let rows = c.shape_of_added(groups)?;
    let count = c.element(rows, 0)?;
    let end = c.mul(count, width)?;
    let first = c.op("Range").name("range").input(0).input(count).input(1).build()?;
    let first = c.mul(first, width)?;
    let first = c.op("ExpandDims").input(first).input(1).build()?;
    let ids = c.add(groups, first)?;
    let ids = c.reshape(ids, [-1])?;
    let flat = c.reshape(dy, [-1])?;
    let ones = c.un("OnesLike", flat)?;
    let sums = c.op("UnsortedSegmentSum").input(flat).input(ids).input(end).build()?;
    let counts = c.op("UnsortedSegmentSum").input(ones).input(ids).input(end).build()?;
    let counts = c.bin("Maximum", counts, number(dtype, 1.0)?)?;
    let means = c.div(sums, counts)?;
    let each = c.op("GatherV2").input(means).input(ids).input(0).build()?;
    one(c.reshape(each, shape)?)
}
