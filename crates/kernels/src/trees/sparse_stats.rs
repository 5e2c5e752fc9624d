//! Sums of gradients and hessians by node and bucket of a feature that most examples lack: BoostedTreesSparseAggregateStats.

use std::collections::{BTreeMap, HashSet};

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::smallvec;

use super::super::call::take;
use super::super::{HostKernel, Outputs, Registry};
use super::stats::{Batch, size};
use super::{matrix, vector};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("BoostedTreesSparseAggregateStats", |node| {
        let (splits, buckets) = (size(node, "max_splits")?, size(node, "num_buckets")?);
        let kernel = move |inputs| aggregated(&take(inputs)?, splits as i32, buckets as i32);
        Ok(Some(Box::new(kernel) as HostKernel))
    });
}

/// Bytes of an entry of the sums besides its elements.
const ENTRY_BYTES: usize = 96;

/// The sums by node, dimension of the feature and bucket.
struct Sums<'a> {
    batch: &'a Batch<'a>,
    sums: BTreeMap<[i32; 3], Vec<f32>>,
    pace: Pace,
}

impl Sums<'_> {
    fn add(&mut self, example: usize, dimension: i32, bucket: i32) {
        let width = self.batch.width();
        self.pace.go(32 + width);
        let sums = self.sums.entry([self.batch.nodes[example], dimension, bucket]).or_insert_with(|| vec![0.0; width]);
        sums.iter_mut().zip(self.batch.of_example(example)).for_each(|(sum, own)| *sum += own);
    }
}

/// A sparse feature: the position of each value as example and dimension, the values, and the number of dimensions.
struct Feature<'a> {
    indices: &'a [i32],
    values: &'a [i32],
    dimensions: i32,
}

impl<'a> Feature<'a> {
    fn of([indices, values, shape]: [&'a Tensor; 3], buckets: i32) -> Result<Feature<'a>> {
        let (positions, columns) = matrix::<i32>(indices, "feature_indices")?;
        if columns != 2 {
            return Err(Failure::invalid(format!(
                "feature_indices must be a matrix of shape [?, 2], received shape {}",
                indices.shape()
            )));
        }
        let values = vector::<i32>(values, "feature_values")?;
        if let Some(at) = values.iter().position(|&value| value > buckets) {
            return Err(Failure::invalid(format!(
                "Features in feature_values must be at most num_buckets. Node {at} is {} which is greater than {buckets}",
                values[at]
            )));
        }
        let &[_, dimensions] = vector::<i32>(shape, "feature_shape")? else {
            return Err(Failure::invalid(format!("feature_shape must have 2 elements, got shape {}", shape.shape())));
        };
        if dimensions < 0 {
            return Err(Failure::invalid(format!("feature_shape states {dimensions} dimensions")));
        }
        if values.len() * 2 != positions.len() {
            return Err(Failure::invalid(format!(
                "Number of elements in feature_values must match number of sparse entries in feature_indices. Got {} and {}",
                values.len(),
                positions.len() / 2
            )));
        }
        Ok(Feature { indices: positions, values, dimensions })
    }

    /// The values by their positions.
    fn entries(&self) -> impl Iterator<Item = (i32, i32, i32)> {
        self.indices.chunks_exact(2).zip(self.values).map(|(at, &value)| (at[0], at[1], value))
    }
}

fn aggregated(inputs: &[Tensor; 6], splits: i32, buckets: i32) -> Result<Outputs> {
    let [nodes, gradients, hessians, indices, values, shape] = inputs;
    let batch = Batch::of(nodes, gradients, hessians)?;
    if let Some(at) = batch.nodes.iter().position(|&node| node > splits) {
        return Err(Failure::invalid(format!(
            "Nodes in node_ids must be at most max_splits. Node {at} is {} which is greater than {splits}",
            batch.nodes[at]
        )));
    }
    let feature = Feature::of([indices, values, shape], buckets)?;
    let (count, dimensions) = (batch.nodes.len(), feature.dimensions);
    let possible = count.saturating_mul(usize::try_from(dimensions).unwrap_or(0));
    if feature.values.len() > possible {
        return Err(Failure::invalid(format!(
            "feature_indices dim0 should be <= gradients dim0 * feature_shape[1]. features_indices dim0: {} \
             gradients dim0: {count}, feature_shape[1]: {dimensions}",
            feature.values.len()
        )));
    }
    let Some(last) = count.checked_sub(1) else {
        return Err(Failure::invalid("start_instance = 0 which is not at most end_instance=-1: there are no examples"));
    };
    let distinct: HashSet<i32> = batch.nodes.iter().copied().collect();
    let keys = distinct.len().saturating_mul(dimensions as usize).saturating_add(feature.values.len()).min(possible);
    let width = batch.width();
    Shape::from([keys.saturating_mul(width), 4]).checked_elements(DType::I32)?;
    memory::admit(keys.saturating_mul(ENTRY_BYTES.saturating_add(width.saturating_mul(4 + 20))))?;
    let mut sums = Sums { batch: &batch, sums: BTreeMap::new(), pace: Pace::new() };
    let (mut example, mut dimension) = (0, -1);
    for (number, (at, own, bucket)) in feature.entries().enumerate() {
        let own_example = usize::try_from(at).ok().filter(|&own| own < count);
        let own_example = own_example.ok_or_else(|| {
            Failure::invalid(format!(
                "feature_indices({number}, 0) is not a valid index in the node_ids vector (must be less than {count}, got {at})"
            ))
        })?;
        if own_example < example {
            return Err(Failure::invalid(format!(
                "feature_indices should be increasing but got feature_indices({number}, 0) < {example}"
            )));
        }
        if own < 0 || own > dimensions {
            return Err(Failure::invalid(format!(
                "Got invalid feature index feature_indices({number}, 1) = {own}, which is not in [0, {dimensions}]"
            )));
        }
        missing(&mut sums, (example, dimension), (own_example, own), dimensions, buckets)?;
        (example, dimension) = (own_example, own);
        sums.add(example, dimension, bucket);
    }
    missing(&mut sums, (example, dimension), (last, dimensions), dimensions, buckets)?;
    written(&sums.sums, width, [splits, dimensions, buckets + 1, width as i32])
}

/// Adds the values that are missing between two positions, neither of which is among them, to the last bucket.
fn missing(
    sums: &mut Sums,
    (first, after): (usize, i32),
    (last, before): (usize, i32),
    dimensions: i32,
    bucket: i32,
) -> Result<()> {
    if first == last && after >= before {
        return Err(Failure::invalid(format!(
            "start_feature_dim = {after} which is not at most end_feature_dim={before}"
        )));
    }
    for example in first..=last {
        let begin = if example == first { after.saturating_add(1) } else { 0 };
        let end = if example == last { before } else { dimensions };
        (begin..end).for_each(|dimension| sums.add(example, dimension, bucket));
    }
    Ok(())
}

/// The sums as a sparse tensor, which states every gradient and hessian of a bucket that has any.
fn written(sums: &BTreeMap<[i32; 3], Vec<f32>>, width: usize, shape: [i32; 4]) -> Result<Outputs> {
    let slots = sums.len().saturating_mul(width);
    let of_indices = Shape::from([slots, 4]);
    let (mut indices, mut values) =
        (Vec::with_capacity(of_indices.checked_elements(DType::I32)?), Vec::with_capacity(slots));
    for (&[node, dimension, bucket], own) in sums {
        for (number, &sum) in own.iter().enumerate() {
            indices.extend([node, dimension, bucket, number as i32]);
            values.push(sum);
        }
    }
    Ok(smallvec![Tensor::from_vec(of_indices, indices), Tensor::vector(values), Tensor::vector(shape.to_vec())])
}
