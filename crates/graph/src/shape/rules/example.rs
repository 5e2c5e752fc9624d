//! Shapes of parsed examples: sparse features in coordinates, dense ones in their shapes.

use meshtf_tensor::PartialShape;

use super::super::call::known;
use super::super::{Extent, Fact, Size};
use super::{Call, Entry};

pub(super) const RULES: &[Entry] = &[
    ("parse_example", parse, Extent::Unknown),
    ("parse_example_v2", parse_v2, Extent::Unknown),
    ("parse_single_example", parse_single, Extent::Unknown),
    ("parse_single_sequence", parse_single_sequence, Extent::Unknown),
    ("parse_sequence", parse_sequence, Extent::Unknown),
];

/// Indices, values and shapes of the sparse features, one for each type in an attribute, of that rank.
fn sparse(call: &Call, types: &str, rank: usize) -> Option<Vec<Fact>> {
    let count = call.node.attrs.dtypes(types).ok()?.len();
    let indices = (0..count).map(|_| Fact::from(vec![call.size(None), Size::Known(rank)]));
    let values = (0..count).map(|_| Fact::from(call.unknown(1)));
    let shapes = (0..count).map(|_| Fact::from(known(&[rank])));
    Some(indices.chain(values).chain(shapes).collect())
}

/// The shapes listed in an attribute, each with a prefix.
fn dense(call: &Call, shapes: &str, prefix: &[Size]) -> Option<Vec<Fact>> {
    let below = |shape: &PartialShape| call.stated(shape).map(|dims| [prefix, &dims[..]].concat()).into();
    Some(call.node.attrs.shapes(shapes).ok()?.iter().map(below).collect())
}

fn parse(call: &Call) -> Option<Vec<Fact>> {
    let batch = call.of_rank(0, 1)?;
    let mut facts = sparse(call, "sparse_types", 2)?;
    facts.extend(dense(call, "dense_shapes", &batch)?);
    Some(facts)
}

/// For a batch or for one example, depending on the rank of the first input.
fn parse_v2(call: &Call) -> Option<Vec<Fact>> {
    let batch = call.dims(0);
    let mut facts = match &batch {
        Some(batch) => sparse(call, "sparse_types", batch.len() + 1)?,
        None => {
            let count = call.node.attrs.dtypes("sparse_types").ok()?.len();
            let indices = (0..count).map(|_| Fact::from(call.unknown(2)));
            indices.chain((0..2 * count).map(|_| Fact::from(call.unknown(1)))).collect()
        }
    };
    match &batch {
        Some(batch) => facts.extend(dense(call, "dense_shapes", batch)?),
        None => facts.extend(call.node.attrs.shapes("dense_shapes").ok()?.iter().map(|_| Fact::default())),
    }
    let count = call.node.attrs.dtypes("ragged_value_types").ok()?.len();
    facts.extend((0..count).map(|_| Fact::from(call.unknown(1))));
    let rows = batch.as_ref().and_then(|batch| batch.first().copied());
    let splits = || rows.map_or_else(|| call.size(None), |rows| call.map(rows, |rows| rows.checked_add(1)));
    facts.extend((0..count).map(|_| Fact::from(vec![splits()])));
    Some(facts)
}

fn parse_single(call: &Call) -> Option<Vec<Fact>> {
    let mut facts = sparse(call, "sparse_types", 1)?;
    facts.extend(dense(call, "dense_shapes", &[])?);
    Some(facts)
}

fn parse_single_sequence(call: &Call) -> Option<Vec<Fact>> {
    let mut facts = sparse(call, "context_sparse_types", 1)?;
    facts.extend(dense(call, "context_dense_shapes", &[])?);
    facts.extend(sparse(call, "feature_list_sparse_types", 2)?);
    facts.extend(dense(call, "feature_list_dense_shapes", &[call.size(None)])?);
    Some(facts)
}

fn parse_sequence(call: &Call) -> Option<Vec<Fact>> {
    let batch = call.of_rank(0, 1)?;
    let mut facts = sparse(call, "context_sparse_types", 2)?;
    facts.extend(dense(call, "context_dense_shapes", &batch)?);
    facts.extend(sparse(call, "feature_list_sparse_types", 3)?);
    facts.extend(dense(call, "feature_list_dense_shapes", &[batch[0], call.size(None)])?);
    let lists = call.node.attrs.shapes("feature_list_dense_shapes").ok()?.len();
    facts.extend((0..lists).map(|_| Fact::from(batch.clone())));
    Some(facts)
}
