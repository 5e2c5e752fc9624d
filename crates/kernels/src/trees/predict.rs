//! The predictions of an ensemble: the sum of a leaf's values over all trees, for each example.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};
use prost::Message;

use super::ensemble::Ensemble;
use super::proto::{DebugOutput, Kind, Node, Tree};
use crate::call::check_text_bytes;

/// The buckets of the features of a batch.
pub struct Features<'a> {
    examples: usize,
    features: Vec<Feature<'a>>,
}

/// The buckets of one feature.
struct Feature<'a> {
    buckets: &'a [i32],
    /// The number of its dimensions; `None` for a vector, which has one, and no missing values.
    dimensions: Option<usize>,
}

/// The value of a bucket that is missing.
const MISSING: i32 = -1;

impl<'a> Features<'a> {
    /// The features in some tensors: vectors, or matrices with a column for each dimension.
    ///
    /// # Errors
    /// Internal if a tensor is neither, as in TensorFlow; InvalidArgument if they differ in the number of examples.
    pub fn of(tensors: &'a [Tensor]) -> Result<Features<'a>> {
        let Some(first) = tensors.first() else { return Err(Failure::invalid("there are no bucketized features")) };
        let examples = first.dims().first().copied().unwrap_or(0);
        let feature = |tensor: &'a Tensor| {
            let dimensions = match *tensor.dims() {
                [_] => None,
                [_, dimensions] => Some(dimensions),
                _ => {
                    let shape = tensor.shape();
                    let why = format!("Cannot use tensor as matrix, expected vector or matrix, received shape {shape}");
                    return Err(Failure::new(Code::Internal, why));
                }
            };
            if tensor.dims()[0] != examples {
                let why = format!("bucketized features have {examples} and {} examples", tensor.dims()[0]);
                return Err(Failure::invalid(why));
            }
            Ok(Feature { buckets: tensor.slice()?, dimensions })
        };
        Ok(Features { examples, features: tensors.iter().map(feature).collect::<Result<_>>()? })
    }

    /// The bucket of a feature's dimension, and whether it may be missing.
    fn bucket(&self, example: usize, feature: i32, dimension: i32) -> Result<(i32, bool)> {
        let own = usize::try_from(feature).ok().and_then(|index| self.features.get(index));
        let own = own.ok_or_else(|| {
            Failure::invalid(format!("a split is by feature {feature}, and there are {} features", self.features.len()))
        })?;
        let Some(dimensions) = own.dimensions else { return Ok((own.buckets[example], false)) };
        let column = usize::try_from(dimension).ok().filter(|&column| column < dimensions);
        let column = column.ok_or_else(|| {
            Failure::invalid(format!(
                "a split is by dimension {dimension} of feature {feature}, which has {dimensions}"
            ))
        })?;
        Ok((own.buckets[example * dimensions + column], true))
    }

    /// The id of the next node on the way of an example.
    fn next(&self, node: &Node, example: usize) -> Result<i32> {
        let (goes_left, ids) = match &node.kind {
            Some(Kind::Bucketized(split)) => {
                let (bucket, may_miss) = self.bucket(example, split.feature_id, split.dimension_id)?;
                let goes_left = if may_miss && bucket == MISSING {
                    split.default_direction == 0
                } else {
                    bucket <= split.threshold
                };
                (goes_left, [split.left_id, split.right_id])
            }
            Some(Kind::Categorical(split)) => {
                let (bucket, _) = self.bucket(example, split.feature_id, split.dimension_id)?;
                (bucket == split.value, [split.left_id, split.right_id])
            }
            Some(Kind::Leaf(_) | Kind::Dense(_)) | None => {
                return Err(Failure::invalid(
                    "a node of the ensemble is neither a leaf nor a split into buckets or categories",
                ));
            }
        };
        Ok(ids[usize::from(!goes_left)])
    }
}

fn feature_of(node: &Node) -> i32 {
    match &node.kind {
        Some(Kind::Bucketized(split)) => split.feature_id,
        Some(Kind::Categorical(split)) => split.feature_id,
        _ => 0,
    }
}

/// Adds values, times a weight, to logits.
fn add(logits: &mut [f32], values: &[f32], weight: f32) -> Result<()> {
    check_values(values, logits.len())?;
    logits.iter_mut().zip(values).for_each(|(logit, value)| *logit += weight * value);
    Ok(())
}

fn check_values(values: &[f32], logits: usize) -> Result<()> {
    if values.len() == logits {
        return Ok(());
    }
    let why = format!("Expected leaf_logits.size() == logits_dimension_, got {} vs {logits}", values.len());
    Err(Failure::new(Code::Internal, why))
}

/// A way through a tree, no longer than the tree has nodes.
struct Way<'a> {
    tree: &'a Tree,
    at: i32,
    left: usize,
}

impl<'a> Way<'a> {
    fn from(tree: &'a Tree, at: i32) -> Way<'a> {
        Way { tree, at, left: tree.nodes.len() }
    }

    fn node(&self) -> Result<&'a Node> {
        self.tree.node(self.at)
    }

    /// Steps to a child; the node there.
    fn step(&mut self, features: &Features, example: usize, pace: &mut Pace) -> Result<&'a Node> {
        pace.go(8);
        self.at = features.next(self.node()?, example)?;
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| Failure::invalid(format!("node {} of a tree of the ensemble is below itself", self.at)))?;
        self.node()
    }

    /// The leaf that an example gets to.
    fn leaf(&mut self, features: &Features, example: usize, pace: &mut Pace) -> Result<&'a Node> {
        let mut node = self.node()?;
        while !node.is_leaf() {
            node = self.step(features, example, pace)?;
        }
        Ok(node)
    }
}

/// The trees and nodes that the last predictions for a batch ended at.
pub struct Cached<'a> {
    /// The last tree.
    pub trees: &'a [i32],
    /// The node in it; -1 if there is none.
    pub nodes: &'a [i32],
}

/// A shape of logits, and as many zeros.
fn zeros(examples: usize, logits: usize) -> Result<(Shape, Vec<f32>)> {
    Shape::from([logits]).checked_elements(DType::F32)?;
    let shape = Shape::from([examples, logits]);
    let elements = shape.checked_elements(DType::F32)?;
    Ok((shape, vec![0.0; elements]))
}

impl Ensemble {
    /// The logits of each example.
    ///
    /// # Errors
    /// InvalidArgument if the ensemble is malformed, or splits by features that do not exist; Internal if leaves have another
    /// number of values; ResourceExhausted.
    pub fn predict(&self, features: &Features, logits: usize) -> Result<Tensor> {
        let (shape, mut all) = zeros(features.examples, logits)?;
        let mut pace = Pace::new();
        for (example, own) in all.chunks_exact_mut(logits.max(1)).enumerate() {
            for number in 0..self.len() {
                let leaf = Way::from(self.tree(number)?, 0).leaf(features, example, &mut pace)?;
                add(own, leaf.values(), self.weight(number)?)?;
            }
        }
        Ok(Tensor::from_vec(shape, all))
    }

    /// The change of each example's logits since the predictions that were cached, and the tree and the node at which the example
    /// now ends.
    ///
    /// # Errors
    /// As [`Ensemble::predict`], and InvalidArgument if a cached node does not exist.
    pub fn continued(&self, features: &Features, cached: &Cached, logits: usize) -> Result<[Tensor; 3]> {
        for (ids, name) in [(cached.trees, "cached_tree_ids"), (cached.nodes, "cached_node_ids")] {
            if ids.len() != features.examples {
                let why = format!("{name} has {} elements, and there are {} examples", ids.len(), features.examples);
                return Err(Failure::invalid(why));
            }
        }
        let (shape, mut all) = zeros(features.examples, logits)?;
        let Some(last) = self.len().checked_sub(1) else {
            let nodes = vec![0i32; features.examples];
            return Ok([Tensor::from_vec(shape, all), Tensor::vector(cached.trees.to_vec()), Tensor::vector(nodes)]);
        };
        let mut nodes = Vec::with_capacity(features.examples);
        let mut pace = Pace::new();
        let mut partial = vec![0.0; logits];
        for example in 0..features.examples {
            let own = &mut all[example * logits..][..logits];
            let first = usize::try_from(cached.trees[example]).ok().filter(|&tree| tree <= last);
            let first = first.ok_or_else(|| {
                let tree = cached.trees[example];
                Failure::invalid(format!("cached tree {tree} is not one of the {} of the ensemble", self.len()))
            })?;
            partial.fill(0.0);
            let mut at = self.resumed(first, cached.nodes[example], &mut partial)?;
            for number in first..=last {
                let mut way = Way::from(self.tree(number)?, at);
                let leaf = way.leaf(features, example, &mut pace)?;
                add(&mut partial, leaf.values(), 1.0)?;
                add(own, &partial, self.weight(number)?)?;
                partial.fill(0.0);
                at = if number == last { way.at } else { 0 };
            }
            nodes.push(at);
        }
        let trees = vec![last as i32; features.examples];
        Ok([Tensor::from_vec(shape, all), Tensor::vector(trees), Tensor::vector(nodes)])
    }

    /// The node at which a cached prediction continues; takes from the logits the part that it has already.
    fn resumed(&self, tree: usize, node: i32, partial: &mut [f32]) -> Result<i32> {
        if node < 0 {
            return Ok(0);
        }
        let metadata = self.metadata(tree)?;
        let mut at = node;
        if metadata.is_finalized && !metadata.post_pruned_nodes_meta.is_empty() {
            let update = metadata.post_pruned_nodes_meta.get(node as usize);
            let update = update.ok_or_else(|| Failure::invalid(format!("cached node {node} is not in tree {tree}")))?;
            add(partial, &update.logit_change, 1.0)?;
            at = update.new_node_id;
        }
        let values = self.tree(tree)?.node(at)?.values();
        if !values.is_empty() {
            add(partial, values, -1.0)?;
        }
        Ok(at)
    }

    /// For each example a serialised `DebugOutput`: the features that its prediction went by, and the logits on the way.
    ///
    /// # Errors
    /// As [`Ensemble::predict`], and InvalidArgument if there are no trees.
    pub fn explained(&self, features: &Features) -> Result<Tensor> {
        let mut all: Vec<Vec<u8>> = Vec::with_capacity(features.examples);
        let mut bytes = 0;
        let mut pace = Pace::new();
        for example in 0..features.examples {
            let serialized = self.path(features, example, &mut pace)?.encode_to_vec();
            bytes += serialized.len();
            check_text_bytes(bytes)?;
            all.push(serialized);
        }
        Ok(Tensor::vector(all))
    }

    fn path(&self, features: &Features, example: usize, pace: &mut Pace) -> Result<DebugOutput> {
        let one = |node: &Node| match *node.values() {
            [value] => Ok(value),
            ref values => {
                let why = format!("Expected tree_logits.size() == 1, got {}", values.len());
                Err(Failure::new(Code::Internal, why))
            }
        };
        let mut logit = self.weight(0)? * one(self.tree(0)?.node(0)?)?;
        let mut path = DebugOutput { feature_ids: Vec::new(), logits_path: vec![logit] };
        let mut before = 0.0;
        for number in 0..self.len() {
            let mut way = Way::from(self.tree(number)?, 0);
            let mut node = way.node()?;
            while !node.is_leaf() {
                path.feature_ids.push(feature_of(node));
                node = way.step(features, example, pace)?;
                logit = self.weight(number)? * one(node)?;
                path.logits_path.push(logit + before);
            }
            // A tree that is only its root adds nothing, unless it is the bias.
            if number == 0 || way.at > 0 {
                before += logit;
            }
        }
        Ok(path)
    }
}
