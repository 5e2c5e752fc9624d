//! Sums of gradients and hessians by node and bucket: BoostedTreesMakeStatsSummary and BoostedTreesAggregateStats.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::call::{kernel as call, one};
use super::super::{HostKernel, Inputs, KernelNode, Registry};
use super::{index, matrix, vector};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("BoostedTreesMakeStatsSummary", |node| {
        let (splits, buckets) = (size(node, "max_splits")?, size(node, "num_buckets")?);
        Ok(Some(Box::new(move |inputs: Inputs| made(&inputs, splits, buckets).map(one)) as HostKernel))
    });
    ops.insert("BoostedTreesAggregateStats", |node| {
        let (splits, buckets) = (size(node, "max_splits")?, size(node, "num_buckets")?);
        Ok(Some(call(move |inputs: [Tensor; 4]| aggregated(&inputs, splits, buckets))))
    });
}

/// A positive size among the attributes.
pub(super) fn size(node: &KernelNode, name: &str) -> Result<usize> {
    let value = node.attrs.int(name)?;
    // One more than that has to be an int32, too.
    let size = i32::try_from(value).ok().filter(|&size| size > 0 && size < i32::MAX);
    size.map(|size| size as usize)
        .ok_or_else(|| Failure::invalid(format!("{name} must be a positive int32, got {value}")))
}

/// The examples of a batch: the node that each is in, its gradients and its hessians.
pub(super) struct Batch<'a> {
    pub nodes: &'a [i32],
    gradients: (&'a [f32], usize),
    hessians: (&'a [f32], usize),
}

impl<'a> Batch<'a> {
    pub fn of(nodes: &'a Tensor, gradients: &'a Tensor, hessians: &'a Tensor) -> Result<Batch<'a>> {
        let ids = vector::<i32>(nodes, "node_ids")?;
        for (tensor, name) in [(gradients, "gradients"), (hessians, "hessians")] {
            matrix::<f32>(tensor, name)?;
            let rows = tensor.dims()[0];
            if rows != ids.len() {
                let count = ids.len();
                return Err(Failure::invalid(format!(
                    "node_ids size should match 0th dim of {name}. node ids size: {count}, {name} dim0: {rows}"
                )));
            }
        }
        Ok(Batch { nodes: ids, gradients: matrix(gradients, "gradients")?, hessians: matrix(hessians, "hessians")? })
    }

    /// The number of gradients and hessians of an example.
    pub fn width(&self) -> usize {
        self.gradients.1 + self.hessians.1
    }

    /// The gradients of an example, and its hessians.
    #[inline]
    pub fn of_example(&self, example: usize) -> impl Iterator<Item = f32> {
        let row = |(values, columns): (&'a [f32], usize)| &values[example * columns..][..columns];
        row(self.gradients).iter().chain(row(self.hessians)).copied()
    }
}

/// Sums in float64, so that many small values are not lost, and their result in float32.
fn sums(shape: &Shape) -> Result<Vec<f64>> {
    let elements = shape.checked_elements(DType::F32)?;
    memory::admit(elements.saturating_mul(12))?;
    Ok(vec![0.0; elements])
}

fn narrowed(shape: Shape, sums: &[f64]) -> Tensor {
    Tensor::from_vec(shape, sums.iter().map(|&sum| sum as f32).collect::<Vec<f32>>())
}

/// The sums of one gradient and one hessian for each feature, node and bucket.
fn made(inputs: &[Tensor], splits: usize, buckets: usize) -> Result<Tensor> {
    let [nodes, gradients, hessians, features @ ..] = inputs else {
        return Err(Failure::invalid("the op takes node ids, gradients and hessians"));
    };
    let batch = Batch::of(nodes, gradients, hessians)?;
    if batch.gradients.1 == 0 || batch.hessians.1 == 0 {
        return Err(Failure::invalid("gradients and hessians must have a column"));
    }
    let shape = Shape::from([features.len(), splits, buckets, 2]);
    let mut sums = sums(&shape)?;
    let mut pace = Pace::new();
    for (number, feature) in features.iter().enumerate() {
        let values = vector::<i32>(feature, "each bucketized feature")?;
        if values.len() != batch.nodes.len() {
            let (got, wanted) = (values.len(), batch.nodes.len());
            return Err(Failure::invalid(format!(
                "feature {number} should have same size as node_ids, got {got} and {wanted}"
            )));
        }
        for (example, (&node, &bucket)) in batch.nodes.iter().zip(values).enumerate() {
            pace.go(8);
            let node = index(node, splits, "node id")?;
            let at = ((number * splits + node) * buckets + index(bucket, buckets, "bucket")?) * 2;
            sums[at] += f64::from(batch.gradients.0[example * batch.gradients.1]);
            sums[at + 1] += f64::from(batch.hessians.0[example * batch.hessians.1]);
        }
    }
    Ok(narrowed(shape, &sums))
}

/// The sums of all gradients and hessians for each node, dimension of the feature and bucket, of which the last has the
/// missing values.
fn aggregated([nodes, gradients, hessians, feature]: &[Tensor; 4], splits: usize, buckets: usize) -> Result<Tensor> {
    let batch = Batch::of(nodes, gradients, hessians)?;
    let (values, dimensions) = matrix::<i32>(feature, "feature")?;
    if feature.dims()[0] != batch.nodes.len() {
        let (got, wanted) = (feature.dims()[0], batch.nodes.len());
        return Err(Failure::invalid(format!("feature has {got} rows, and node_ids has {wanted} elements")));
    }
    let width = batch.width();
    let shape = Shape::from([splits, dimensions, buckets + 1, width]);
    let mut sums = sums(&shape)?;
    let mut pace = Pace::new();
    for (example, &node) in batch.nodes.iter().enumerate() {
        if node < 0 {
            let why = format!("node_ids {example}th entry should be >=0, got: {node}");
            return Err(Failure::invalid(why));
        }
        let node = index(node, splits, "node id")?;
        for dimension in 0..dimensions {
            pace.go(4 + width);
            let bucket = match values[example * dimensions + dimension] {
                -1 => buckets,
                value => index(value, buckets + 1, "bucket")?,
            };
            let at = ((node * dimensions + dimension) * (buckets + 1) + bucket) * width;
            sums[at..][..width].iter_mut().zip(batch.of_example(example)).for_each(|(sum, own)| *sum += f64::from(own));
        }
    }
    Ok(narrowed(shape, &sums))
}
