//! Shapes of ops of boosted trees.

use super::{Entry, one};
use crate::shape::call::{Call, known};
use crate::shape::{Dims, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("tree_summary", summary, Extent::Shapes),
    ("tree_stats", stats, Extent::Shapes),
    ("sparse_tree_stats", sparse_stats, Extent::Unknown),
    ("tree_splits", splits, Extent::Unknown),
    ("tree_split", |call| split(call, logits(call)?), Extent::Unknown),
    ("sparse_tree_split", |call| split(call, Size::Known(1)), Extent::Unknown),
    ("tree_logits", |call| one(vec![batch(call, 1)?, logits(call)?]), Extent::Unknown),
    ("tree_outputs", |call| one(vec![batch(call, 1)?]), Extent::Unknown),
    ("tree_training", training, Extent::Unknown),
    ("ensemble_states", ensemble_states, Extent::Shapes),
    ("quantile_summaries", |call| each(call, |call| vec![call.size(None), Size::Known(4)]), Extent::Unknown),
    ("quantile_boundaries", |call| each(call, |call| call.unknown(1)), Extent::Unknown),
    ("tree_buckets", buckets, Extent::Shapes),
];

/// Outputs of the same shape.
fn each(call: &Call, dims: fn(&Call) -> Dims) -> Option<Vec<Fact>> {
    Some((0..call.node.outputs.len()).map(|_| dims(call).into()).collect())
}

/// A size that an attribute states.
fn stated(call: &Call, attr: &str) -> Option<Size> {
    Some(Size::Known(usize::try_from(call.int(attr)?).ok()?))
}

fn logits(call: &Call) -> Option<Size> {
    stated(call, "logits_dimension")
}

/// The number of examples, which an input has a row or an element for.
fn batch(call: &Call, input: usize) -> Option<Size> {
    match call.dims(input) {
        Some(dims) => dims.first().copied(),
        None => Some(call.size(None)),
    }
}

fn summary(call: &Call) -> Option<Vec<Fact>> {
    let sizes = ["num_features", "max_splits", "num_buckets"].map(|attr| stated(call, attr));
    let [features, splits, buckets] = sizes;
    one(vec![features?, splits?, buckets?, Size::Known(2)])
}

/// The sums of each node, dimension of the feature and bucket, with one more bucket for missing values.
fn stats(call: &Call) -> Option<Vec<Fact>> {
    let (gradients, hessians) = (call.of_rank(1, 2)?[1], call.of_rank(2, 2)?[1]);
    let width = match (gradients, hessians) {
        (Size::Known(gradients), Size::Known(hessians)) => gradients.checked_add(hessians),
        _ => None,
    };
    let buckets = call.map(stated(call, "num_buckets")?, |buckets| buckets.checked_add(1));
    one(vec![stated(call, "max_splits")?, call.of_rank(3, 2)?[1], buckets, call.size(width)])
}

fn sparse_stats(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![vec![call.size(None), Size::Known(4)].into(), call.unknown(1).into(), known(&[4]).into()])
}

/// Lists of nodes, gains and thresholds, and of the weights on both sides.
fn splits(call: &Call) -> Option<Vec<Fact>> {
    let features = usize::try_from(call.int("num_features")?).ok()?.min(call.node.outputs.len());
    let vectors = (0..3 * features).map(|_| Fact::from(call.unknown(1)));
    let columns = (0..2 * features).map(|_| Fact::from(vec![call.size(None), Size::Known(1)]));
    Some(vectors.chain(columns).collect())
}

/// Nodes, gains, dimensions and thresholds, the weights on both sides, and the kinds of the splits.
fn split(call: &Call, logits: Size) -> Option<Vec<Fact>> {
    let (vector, rows) = (|| Fact::from(call.unknown(1)), || Fact::from(vec![call.size(None), logits]));
    Some(vec![vector(), vector(), vector(), vector(), rows(), rows(), vector()])
}

fn training(call: &Call) -> Option<Vec<Fact>> {
    let batch = batch(call, 3)?;
    Some(vec![vec![batch, logits(call)?].into(), vec![batch].into(), vec![batch].into()])
}

fn ensemble_states(_: &Call) -> Option<Vec<Fact>> {
    let scalar = || Fact::from(Dims::new());
    Some(vec![scalar(), scalar(), scalar(), scalar(), known(&[2]).into()])
}

fn buckets(call: &Call) -> Option<Vec<Fact>> {
    (0..call.node.outputs.len()).map(|input| Some(call.of_rank(input, 1)?.into())).collect()
}
