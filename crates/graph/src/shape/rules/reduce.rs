//! Shapes of ops that sum, compare or multiply along axes: reductions, segments, products, linear algebra, losses.

use super::elementwise::broadcast;
use super::{Entry, one};
use crate::shape::call::{Call, axis, merge, merge_sizes};
use crate::shape::{Dims, Element, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("reduce", reduced, Extent::AllButFirst),
    ("prod", product, Extent::AllButFirst),
    ("arg", arg, Extent::AllButFirst),
    ("segment", segment, Extent::Unknown),
    ("unsorted_segment", unsorted_segment, Extent::Unknown),
    ("matmul", matmul, Extent::Shapes),
    ("batch_matmul", batch_matmul, Extent::Shapes),
    ("batch_matmul_v2", batch_matmul_v2, Extent::Shapes),
    ("einsum", einsum, Extent::Unknown),
    ("square", square, Extent::Unknown),
    ("determinant", determinant, Extent::Unknown),
    ("eigen", eigen, Extent::Unknown),
    ("one_row_more", one_row_more, Extent::Unknown),
    ("banded_solve", banded_solve, Extent::Unknown),
    ("isotonic", isotonic, Extent::Shapes),
    ("approx_top_k", approx_top_k, Extent::Unknown),
    ("lu", lu, Extent::Unknown),
    ("qr", qr, Extent::Unknown),
    ("svd", svd, Extent::Unknown),
    ("nth", nth, Extent::Unknown),
    ("solve", solve, Extent::Unknown),
    ("solve_ls", solve_ls, Extent::Unknown),
    ("triangular_solve", triangular_solve, Extent::Unknown),
    ("cross_entropy", cross_entropy, Extent::Shapes),
    ("sparse_cross_entropy", sparse_cross_entropy, Extent::Shapes),
    ("top_k", top_k, Extent::AllButFirst),
    ("in_top_k", in_top_k, Extent::Shapes),
];

/// The axes in the second input are removed, or of size 1.
fn reduced(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    let keep = call.bool("keep_dims")?;
    let Some(axes) = call.values(1) else {
        return one(call.unknown(dims.len())).filter(|_| keep);
    };
    let axes: Vec<usize> = axes.iter().map(|&a| call.axis(a, dims.len())).collect::<Option<_>>()?;
    let kept = dims.iter().enumerate().filter_map(|(i, &size)| match (axes.contains(&i), keep) {
        (false, _) => Some(size),
        (true, true) => Some(Size::Known(1)),
        (true, false) => None,
    });
    one(kept.collect())
}

/// As [`reduced`], for products: the number of elements of a shape is followed.
fn product(call: &Call) -> Option<Vec<Fact>> {
    let mut facts = reduced(call)?;
    if facts[0].dims.as_ref().is_some_and(Vec::is_empty) {
        let product = call.values(0).and_then(|sizes| sizes.into_iter().try_fold(1i64, i64::checked_mul));
        let product = product.filter(|product| i32::try_from(*product).is_ok());
        facts[0].elements = product.map(|product| vec![Element::Known(product)]);
    }
    Some(facts)
}

/// The axis in the second input is removed.
fn arg(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    match call.value(1) {
        // As in TensorFlow, the axis of a scalar is left to the kernel.
        _ if dims.is_empty() => one(dims),
        Some(at) => {
            dims.remove(call.axis(at, dims.len())?);
            one(dims)
        }
        None => one(call.unknown(dims.len() - 1)),
    }
}

/// As many rows as segments.
fn segment(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    *dims.first_mut()? = call.size(None);
    one(dims)
}

/// As many rows as the third input specifies; each segment id selects a slice of the data.
fn unsorted_segment(call: &Call) -> Option<Vec<Fact>> {
    let (data, ids) = (call.dims(0)?, call.dims(1)?);
    merge(&data.get(..ids.len())?.to_vec(), &ids)?;
    let rows = call.size_in(2)?;
    one([rows].into_iter().chain(data[ids.len()..].iter().copied()).collect())
}

pub(super) fn matmul(call: &Call) -> Option<Vec<Fact>> {
    let matrix = |input| call.of_rank(input, 2).or_else(|| call.refuse(|| "both have to be matrices".to_owned()));
    let (a, b) = (matrix(0)?, matrix(1)?);
    let (across_a, across_b) = (call.bool("transpose_a")?, call.bool("transpose_b")?);
    call.common("the inner sizes", a[usize::from(!across_a)], b[usize::from(across_b)])?;
    one(vec![a[usize::from(across_a)], b[usize::from(!across_b)]])
}

/// Products of the matrices in the last two axes; the other axes are the same in both.
fn batch_matmul(call: &Call) -> Option<Vec<Fact>> {
    let b = call.dims(1)?;
    let of_same_rank = || {
        let mut dims = b.clone();
        let rows = dims.len().checked_sub(2)?;
        dims[rows..].fill_with(|| call.size(None));
        Some(dims)
    };
    let a = call.dims(0).or_else(of_same_rank)?;
    multiplied(call, &a, &b)
}

/// As [`batch_matmul`], with leading axes that broadcast.
fn batch_matmul_v2(call: &Call) -> Option<Vec<Fact>> {
    multiplied(call, &call.dims(0)?, &call.dims(1)?)
}

fn multiplied(call: &Call, a: &Dims, b: &Dims) -> Option<Vec<Fact>> {
    let (batch_a, a) = a.split_at_checked(a.len().checked_sub(2)?)?;
    let (batch_b, b) = b.split_at_checked(b.len().checked_sub(2)?)?;
    let (adj_a, adj_b) = (call.bool("adj_x")?, call.bool("adj_y")?);
    call.common("the inner sizes", a[usize::from(!adj_a)], b[usize::from(adj_b)])?;
    let batch = broadcast(call, &batch_a.to_vec(), &batch_b.to_vec());
    let mut dims = batch.or_else(|| call.refuse(|| "the axes before the matrices do not broadcast".to_owned()))?;
    dims.extend([a[usize::from(adj_a)], b[usize::from(!adj_b)]]);
    one(dims)
}

/// `ij,jk->ik`, without `...`.
fn einsum(call: &Call) -> Option<Vec<Fact>> {
    let equation: String = call.node.attrs.str("equation").ok()?.chars().filter(|c| *c != ' ').collect();
    let (inputs, output) = equation.split_once("->")?;
    let labels: Vec<&str> = inputs.split(',').collect();
    if labels.len() != call.len() || equation.contains('.') {
        return None;
    }
    let mut sizes: Vec<(char, Size)> = Vec::new();
    for (input, labels) in labels.iter().enumerate() {
        let count = labels.chars().count();
        let other = || {
            let own = call.dims(input)?.len();
            call.refuse(|| format!("input {input} has rank {own}, and {count} labels, {labels}"))
        };
        let dims = call.of_rank(input, count).or_else(other)?;
        for (label, size) in labels.chars().zip(dims) {
            match sizes.iter_mut().find(|(own, _)| *own == label) {
                Some((_, known)) => *known = call.common(&format!("for the label {label}, the sizes"), *known, size)?,
                None => sizes.push((label, size)),
            }
        }
    }
    let size = |label| sizes.iter().find(|(own, _)| *own == label).map(|(_, size)| *size);
    one(output.chars().map(size).collect::<Option<_>>()?)
}

/// Square matrices in the last two axes.
fn square(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let rows = dims.len().checked_sub(2)?;
    let side = merge_sizes(dims[rows], dims[rows + 1])?;
    dims[rows..].fill(side);
    one(dims)
}

/// Eigenvalues in place of the matrices, and the matrices of eigenvectors, if they are requested.
fn eigen(call: &Call) -> Option<Vec<Fact>> {
    let vectors = square(call).map(|mut facts| facts.remove(0)).unwrap_or_default();
    let mut values = vectors.dims.clone();
    values.as_mut().and_then(Vec::pop);
    let vectors = if call.bool("compute_v")? { vectors } else { vec![Size::Known(0)].into() };
    Some(vec![values.into(), vectors])
}

/// Eigenvalues as a row above the matrices of eigenvectors.
fn one_row_more(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = square(call)?.remove(0).dims?;
    let rows = dims.len().checked_sub(2)?;
    dims[rows] = call.map(dims[rows], |rows| rows.checked_add(1));
    one(dims)
}

/// The unknowns of equations with banded matrices: in the shape of the right sides, with batches that broadcast.
fn banded_solve(call: &Call) -> Option<Vec<Fact>> {
    let (matrix, right) = (call.dims(0)?, call.dims(1)?);
    let (batch, matrix) = matrix.split_at_checked(matrix.len().checked_sub(2)?)?;
    let (batch_right, right) = right.split_at_checked(right.len().checked_sub(2)?)?;
    let mut dims = broadcast(call, &batch.to_vec(), &batch_right.to_vec())?;
    dims.extend([merge_sizes(matrix[1], right[0])?, right[1]]);
    one(dims)
}

/// The greatest or least elements along an axis, and their indices.
fn approx_top_k(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let at = axis(call.int("reduction_dimension")?, dims.len())?;
    dims[at] = match call.bool("aggregate_to_topk")? {
        true => Size::Known(usize::try_from(call.int("k")?).ok()?),
        false => call.size(None),
    };
    Some(vec![dims.clone().into(), dims.into()])
}

/// Two tensors of the shape of the first.
fn isotonic(call: &Call) -> Option<Vec<Fact>> {
    let fact: Fact = call.dims(0)?.into();
    Some(vec![fact.clone(), fact])
}

/// The factors of square matrices in one, and the order of their rows.
fn lu(call: &Call) -> Option<Vec<Fact>> {
    let factors = square(call)?.remove(0);
    let mut rows = factors.dims.clone()?;
    rows.pop();
    Some(vec![factors, rows.into()])
}

/// The leading axes, the rows, the columns and the lesser of both, of matrices in the last two axes.
fn sides(call: &Call) -> Option<(Dims, Size, Size, Size)> {
    let mut batch = call.dims(0)?;
    let (columns, rows) = (batch.pop()?, batch.pop()?);
    let lesser = match (rows.known(), columns.known()) {
        (Some(rows), Some(columns)) => Size::Known(rows.min(columns)),
        _ => call.size(None),
    };
    Some((batch, rows, columns, lesser))
}

fn qr(call: &Call) -> Option<Vec<Fact>> {
    let (batch, rows, columns, lesser) = sides(call)?;
    let between = if call.bool("full_matrices")? { rows } else { lesser };
    let with = |sizes: [Size; 2]| batch.iter().copied().chain(sizes).collect::<Dims>();
    Some(vec![with([rows, between]).into(), with([between, columns]).into()])
}

fn svd(call: &Call) -> Option<Vec<Fact>> {
    let none = || Fact::from(vec![Size::Known(0)]);
    let (full, wants_vectors) = (call.bool("full_matrices")?, call.bool("compute_uv")?);
    let Some((batch, rows, columns, lesser)) = sides(call) else {
        return (!wants_vectors).then(|| vec![Fact::default(), none(), none()]);
    };
    let with = |sizes: &[Size]| Fact::from(batch.iter().chain(sizes).copied().collect::<Dims>());
    let (left, right) = if full { (rows, columns) } else { (lesser, lesser) };
    Some(match wants_vectors {
        true => vec![with(&[lesser]), with(&[rows, left]), with(&[columns, right])],
        false => vec![with(&[lesser]), none(), none()],
    })
}

/// One element in place of the last axis.
fn nth(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    dims.pop()?;
    one(dims)
}

/// Scalars, in place of square matrices in the last two axes.
fn determinant(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    let rest = dims.len().checked_sub(2)?;
    merge_sizes(dims[rest], dims[rest + 1])?;
    let dims = dims[..rest].to_vec();
    Some(call.node.outputs.iter().map(|_| dims.clone().into()).collect())
}

/// The unknowns of linear equations: in the shape of the right sides, which have as many rows as the matrix.
fn solve(call: &Call) -> Option<Vec<Fact>> {
    let (matrix, right) = match (call.dims(0), call.dims(1)) {
        (Some(matrix), Some(right)) => (matrix, right),
        (Some(mut matrix), None) => {
            *matrix.last_mut()? = call.size(None);
            return one(matrix);
        }
        (None, right) => return one(right?),
    };
    let (batch, matrix) = matrix.split_at_checked(matrix.len().checked_sub(2)?)?;
    let (batch_right, right) = right.split_at_checked(right.len().checked_sub(2)?)?;
    let mut dims = merge(&batch.to_vec(), &batch_right.to_vec())?;
    let side = merge_sizes(matrix[0], matrix[1])?;
    dims.extend([merge_sizes(side, right[0])?, right[1]]);
    one(dims)
}

/// As many rows as the matrix has columns.
fn solve_ls(call: &Call) -> Option<Vec<Fact>> {
    let (matrix, right) = (call.dims(0)?, call.dims(1)?);
    let (batch, matrix) = matrix.split_at_checked(matrix.len().checked_sub(2)?)?;
    let (batch_right, right) = right.split_at_checked(right.len().checked_sub(2)?)?;
    let mut dims = merge(&batch.to_vec(), &batch_right.to_vec())?;
    merge_sizes(matrix[0], right[0])?;
    dims.extend([matrix[1], right[1]]);
    one(dims)
}

/// As [`solve`], with batches that broadcast.
fn triangular_solve(call: &Call) -> Option<Vec<Fact>> {
    let (matrix, right) = (call.dims(0)?, call.dims(1)?);
    let (batch, matrix) = matrix.split_at_checked(matrix.len().checked_sub(2)?)?;
    let (batch_right, right) = right.split_at_checked(right.len().checked_sub(2)?)?;
    let mut dims = broadcast(call, &batch.to_vec(), &batch_right.to_vec())?;
    let side = merge_sizes(matrix[0], matrix[1])?;
    dims.extend([merge_sizes(side, right[0])?, right[1]]);
    one(dims)
}

/// A loss for each row, and its gradient.
fn cross_entropy(call: &Call) -> Option<Vec<Fact>> {
    // TensorFlow regards sizes that may broadcast as equal.
    let merged = call.equal([0, 1]).filter(|_| !call.doubts_state());
    let both = match (call.dims(0), call.dims(1)) {
        (Some(a), Some(b)) => merged
            .or_else(|| broadcast(call, &a, &b))
            .or_else(|| call.refuse(|| "logits and labels do not broadcast to one shape".to_owned()))?,
        _ => merged.unwrap_or_else(|| call.unknown(2)),
    };
    if both.len() != 2 {
        return None;
    }
    Some(vec![vec![both[0]].into(), both.into()])
}

fn sparse_cross_entropy(call: &Call) -> Option<Vec<Fact>> {
    let mut logits = call.only_of_rank(0, 2)?;
    let labels = call.of_rank(1, 1).or_else(|| call.refuse(|| "labels are a vector".to_owned()))?;
    logits[0] = call.common("the numbers of examples", logits[0], labels[0])?;
    Some(vec![vec![logits[0]].into(), logits.into()])
}

/// The largest elements of the last axis, and their indices.
fn top_k(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let k = match call.int("k") {
        Some(k) => Size::Known(usize::try_from(k).ok()?),
        None => call.size_in(1)?,
    };
    let last = dims.last_mut()?;
    if let (Some(k), Some(own)) = (k.known(), last.known().filter(|own| k.known() > Some(*own))) {
        return call.refuse(|| format!("the last axis has {own} elements, fewer than {k}"));
    }
    *last = k;
    Some(vec![dims.clone().into(), dims.into()])
}

fn in_top_k(call: &Call) -> Option<Vec<Fact>> {
    let (predictions, targets) = (call.of_rank(0, 2)?, call.of_rank(1, 1)?);
    one(vec![call.common("the numbers of examples", predictions[0], targets[0])?])
}
