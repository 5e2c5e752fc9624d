//! Gradients of reductions over the rows of each segment.

use meshtf_tensor::DType;

use super::Rule;
use crate::Output;
use crate::gradient::call::{Added, Call, Grads, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("segment_sum", |c| {
        let (ids, dy) = (c.x(1), c.dy()?);
        one(rows(c, dy, ids)?)
    }),
    ("segment_mean", |c| {
        let (x, ids, dy, dtype) = (c.x(0), c.x(1), c.dy()?, c.t());
        let count = c.shape(ids)?;
        let rank = c.un("Rank", x)?;
        let others = c.sub(rank, 1)?;
        let others = c.reshape(others, [1])?;
        let ones = c.bin("Fill", others, 1)?;
        let shape = c.concat([count, ones], 0)?;
        let one_each = c.bin("Fill", shape, super::number(dtype, 1.0).unwrap_or_else(|| 1.0f32.into()))?;
        let counts = c.bin("SegmentSum", one_each, ids)?;
        let share = c.div(dy, counts)?;
        one(rows(c, share, ids)?)
    }),
    ("segment_extreme", |c| {
        let (x, ids, y, dy, dtype) = (c.x(0), c.x(1), c.y(0), c.dy()?, c.t());
        let greatest = rows(c, y, ids)?;
        let is_it = c.bin("Equal", x, greatest)?;
        let indicators = c.cast(is_it, dtype)?;
        let counts = c.bin("SegmentSum", indicators, ids)?;
        let share = c.div(dy, counts)?;
        let shares = rows(c, share, ids)?;
        one(c.select(is_it, shares, c.num(0.0))?)
    }),
    ("segment_prod", |c| {
        // The product of the other elements, which is that of all without zeros if there is one zero.
        let (x, ids, y, dy) = (c.x(0), c.x(1), c.y(0), c.dy()?);
        let is_zero = c.bin("Equal", x, c.num(0.0))?;
        let zeros = c.cast(is_zero, meshtf_tensor::DType::I32)?;
        let zeros = c.bin("SegmentSum", zeros, ids)?;
        let many = c.bin("Greater", zeros, 1)?;
        let dy = c.select(many, c.num(0.0), dy)?;
        let others = c.select(is_zero, c.num(1.0), x)?;
        let products = c.bin("SegmentProd", others, ids)?;
        let (products, all) = (rows(c, products, ids)?, rows(c, y, ids)?);
        let quotient = c.div(all, others)?;
        let partial = c.select(is_zero, products, quotient)?;
        let dy = rows(c, dy, ids)?;
        one(c.mul(dy, partial)?)
    }),
    ("sparse_segment_sum", |c| of_table(c, "SparseSegmentSumGrad")),
    ("sparse_segment_mean", |c| of_table(c, "SparseSegmentMeanGrad")),
    ("sparse_segment_sqrt_n", |c| of_table(c, "SparseSegmentSqrtNGrad")),
    ("unsorted_segment_sum", |c| {
        let dy = c.dy()?;
        let kept = Kept::new(c)?;
        one(kept.rows(c, dy)?)
    }),
    ("unsorted_segment_extreme", |c| {
        // The gradient is shared equally by all greatest elements of a segment.
        let (x, ids, segments, y, dy, dtype) = (c.x(0), c.x(1), c.x(2), c.y(0), c.dy()?, c.t());
        let kept = Kept::new(c)?;
        let greatest = kept.rows(c, y)?;
        let is_it = c.bin("Equal", x, greatest)?;
        let is_it = c.bin("LogicalAnd", is_it, kept.is_kept)?;
        let indicators = c.cast(is_it, dtype)?;
        let counts = c.op("UnsortedSegmentSum").input(indicators).input(ids).input(segments).build()?;
        let share = c.div(dy, counts)?;
        let shares = kept.rows(c, share)?;
        one(c.select(is_it, shares, c.num(0.0))?)
    }),
    ("unsorted_segment_prod", product),
];

/// The gradient of a table whose rows were reduced by segment.
fn of_table(c: &mut Call, op: &str) -> Grads {
    let (table, indices, ids, dy) = (c.x(0), c.x(1), c.x(2), c.dy()?);
    let shape = c.shape(table)?;
    let rows = c.element(shape, 0)?;
    if c.node.attrs.bool("sparse_gradient").unwrap_or(false) {
        let sums = c.op(&format!("{op}V2")).input(dy).input(indices).input(ids).input(rows).build()?;
        let indices = Output { node: sums.node, port: 1 };
        return Ok(vec![Some(Call::rows(sums, indices, shape))]);
    }
    one(c.op(op).input(dy).input(indices).input(ids).input(rows).build()?)
}

/// For each row, the row of its segment.
fn rows(c: &mut Call, of: Output, ids: Output) -> Added {
    Ok(c.op("GatherV2").input(of).input(ids).input(0).build()?)
}

/// The rows that are in a segment: those whose id is not negative.
struct Kept {
    /// The ids, with 0 in place of negative ones.
    ids: Output,
    /// A mask of the shape of the data.
    is_kept: Output,
}

impl Kept {
    fn new(c: &mut Call) -> Result<Kept, super::Stop> {
        let (x, ids) = (c.x(0), c.x(1));
        let zeros = c.un("ZerosLike", ids)?;
        let is_kept = c.bin("GreaterEqual", ids, zeros)?;
        let ids = c.bin("Maximum", ids, zeros)?;
        // Followed by as many axes of size 1 as a row has axes.
        let (shape, of_ids) = (c.shape(x)?, c.shape(c.x(1))?);
        let (rank, of_ids_rank) = (c.un("Size", shape)?, c.un("Size", of_ids)?);
        let missing = c.sub(rank, of_ids_rank)?;
        let missing = c.reshape(missing, [1])?;
        let ones = c.bin("Fill", missing, 1)?;
        let sizes = c.concat([of_ids, ones], 0)?;
        let is_kept = c.reshape(is_kept, sizes)?;
        let is_kept = c.bin("BroadcastTo", is_kept, shape)?;
        Ok(Kept { ids, is_kept })
    }

    /// For each row that is in a segment, the row of its segment; zeros for the other rows.
    fn rows(&self, c: &mut Call, of: Output) -> Added {
        let rows = rows(c, of, self.ids)?;
        c.select(self.is_kept, rows, c.num(0.0))
    }
}

/// Each element's gradient has the product of the other elements of its segment: that of all divided by the element, unless
/// that is zero.
fn product(c: &mut Call) -> Grads {
    let (x, ids, segments, y, dy) = (c.x(0), c.x(1), c.x(2), c.y(0), c.dy()?);
    let is_zero = c.bin("Equal", x, c.num(0.0))?;
    let zeros = c.cast(is_zero, DType::I32)?;
    let zeros = c.op("UnsortedSegmentSum").input(zeros).input(ids).input(segments).build()?;
    let has_several = c.bin("Greater", zeros, 1)?;
    let dy = c.select(has_several, c.num(0.0), dy)?;
    let others = c.select(is_zero, c.num(1.0), x)?;
    let without_zeros = c.op("UnsortedSegmentProd").input(others).input(ids).input(segments).build()?;
    let kept = Kept::new(c)?;
    let whole = kept.rows(c, y)?;
    let without_zeros = kept.rows(c, without_zeros)?;
    let divided = c.div(whole, others)?;
    let rest = c.select(is_zero, without_zeros, divided)?;
    let dy = kept.rows(c, dy)?;
    one(c.mul(dy, rest)?)
}
