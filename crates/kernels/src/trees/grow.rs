//! The growth of an ensemble by a layer: the best split of each node among the candidates of all features.

use std::collections::BTreeMap;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};

use super::ensemble::{Ensemble, leaf};
use super::proto::{BucketizedSplit, CategoricalSplit, Kind, Node, NodeMetadata};
use super::weights::{are_equal, is_larger};
use super::{DEFAULT_LEFT, DEFAULT_RIGHT, EQUALITY, matrix, vector};

/// The treatment of splits that lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pruning {
    /// They stay.
    None,
    /// They are not made.
    Before,
    /// They are removed once the tree is complete.
    After,
}

impl Pruning {
    /// The mode of a number.
    pub fn of(number: i64) -> Pruning {
        match number {
            1 => Pruning::Before,
            2 => Pruning::After,
            _ => Pruning::None,
        }
    }
}

/// Candidates for the splits of nodes by features: tensors with an element for each candidate, or a row.
pub struct Candidates<'a> {
    /// The feature of each candidate, or one element for all of them.
    pub features: &'a [i32],
    /// The dimension of the feature; 0 if it is not stated.
    pub dimensions: Option<&'a Tensor>,
    /// The node that would be split.
    pub nodes: &'a Tensor,
    /// The gain of the split.
    pub gains: &'a Tensor,
    /// The bucket up to which, or the value by which, the node would be split.
    pub thresholds: &'a Tensor,
    /// The weights of the leaf on the left, a row for each candidate.
    pub left: &'a Tensor,
    /// Those of the leaf on the right.
    pub right: &'a Tensor,
    /// The name of the kind of split; values up to the threshold, and missing ones, go left if it is not stated.
    pub kinds: Option<&'a Tensor>,
}

/// A split of a node.
#[derive(Clone)]
struct Split {
    feature: i32,
    dimension: i32,
    gain: f32,
    threshold: i32,
    left: Vec<f32>,
    right: Vec<f32>,
    kind: SplitKind,
}

#[derive(Clone, Copy, PartialEq)]
enum SplitKind {
    DefaultLeft,
    DefaultRight,
    Equality,
}

fn kind(name: &[u8]) -> Result<SplitKind> {
    let kinds = [
        (DEFAULT_LEFT, SplitKind::DefaultLeft),
        (DEFAULT_RIGHT, SplitKind::DefaultRight),
        (EQUALITY, SplitKind::Equality),
    ];
    let known = kinds.iter().find(|(own, _)| own.as_bytes() == name);
    known.map(|(_, kind)| *kind).ok_or_else(|| {
        let name = String::from_utf8_lossy(name);
        Failure::invalid(format!("split type {name:?} is none of {DEFAULT_LEFT}, {DEFAULT_RIGHT}, {EQUALITY}"))
    })
}

/// A tensor with as many elements as there are candidates.
fn each<'a, T: meshtf_tensor::Element>(tensor: &'a Tensor, count: usize, name: &str) -> Result<&'a [T]> {
    let values = vector::<T>(tensor, name)?;
    if values.len() != count {
        let why = format!("{name} must have an element for each of {count} candidates, got {}", values.len());
        return Err(Failure::invalid(why));
    }
    Ok(values)
}

/// A row for each candidate, with at least as many elements as there are logits.
fn rows<'a>(tensor: &'a Tensor, count: usize, logits: usize, name: &str) -> Result<(&'a [f32], usize)> {
    let (values, columns) = matrix::<f32>(tensor, name)?;
    if tensor.dims()[0] != count || columns < logits {
        let why = format!("{name} must have shape [{count}, {logits}], got {}", tensor.shape());
        return Err(Failure::invalid(why));
    }
    Ok((values, columns))
}

/// The best split of each node. Of two with the same gain the one by the feature with the smaller id is better.
fn best(candidates: &[Candidates], rate: f32, logits: usize) -> Result<BTreeMap<i32, Split>> {
    let mut best: BTreeMap<i32, Split> = BTreeMap::new();
    for own in candidates {
        let nodes = vector::<i32>(own.nodes, "each of node_ids")?;
        let count = nodes.len();
        memory::admit(count.saturating_mul(size_of::<Split>() + 48 + 8 * logits))?;
        let gains = each::<f32>(own.gains, count, "each of gains")?;
        let thresholds = each::<i32>(own.thresholds, count, "each of thresholds")?;
        let dimensions = own.dimensions.map(|ids| each::<i32>(ids, count, "each of dimension_ids")).transpose()?;
        let kinds = own.kinds.map(|kinds| each::<Vec<u8>>(kinds, count, "each of split_types")).transpose()?;
        let (left, on_left) = rows(own.left, count, logits, "each of left_node_contribs")?;
        let (right, on_right) = rows(own.right, count, logits, "each of right_node_contribs")?;
        if own.features.len() != 1 && own.features.len() != count {
            let why = format!("{count} candidates have {} feature ids", own.features.len());
            return Err(Failure::invalid(why));
        }
        for (i, &node) in nodes.iter().enumerate() {
            let feature = own.features[if own.features.len() == 1 { 0 } else { i }];
            let is_better = best.get(&node).is_none_or(|best| match are_equal(gains[i], best.gain) {
                true => feature < best.feature,
                false => is_larger(gains[i], best.gain),
            });
            if !is_better {
                continue;
            }
            let scaled = |values: &[f32], columns: usize| {
                values[i * columns..][..logits].iter().map(|value| rate * value).collect::<Vec<f32>>()
            };
            let split = Split {
                feature,
                dimension: dimensions.map_or(0, |ids| ids[i]),
                gain: gains[i],
                threshold: thresholds[i],
                left: scaled(left, on_left),
                right: scaled(right, on_right),
                kind: kinds.map_or(Ok(SplitKind::DefaultLeft), |kinds| kind(&kinds[i]))?,
            };
            best.insert(node, split);
        }
    }
    Ok(best)
}

impl Ensemble {
    /// Grows the last tree by a layer, or begins a tree if there is none. A tree of `depth` layers is complete, and the next one
    /// begins.
    ///
    /// # Errors
    /// InvalidArgument if the candidates are malformed, or a node cannot be split, ResourceExhausted without memory for the
    /// layer: then nothing has changed. InvalidArgument, too, if the tree that is to be pruned is none.
    pub fn grow(
        &mut self,
        candidates: &[Candidates],
        (depth, rate): (i32, f32),
        pruning: Pruning,
        logits: usize,
    ) -> Result<()> {
        Shape::from([logits]).checked_elements(DType::F32)?;
        let mut splits = best(candidates, rate, logits)?;
        if pruning == Pruning::Before {
            splits.retain(|_, split| split.gain >= 0.0 || split.gain.is_nan());
        }
        self.check(&splits, logits)?;
        memory::admit(splits.len().saturating_mul(2 * (size_of::<Node>() + 4 * logits)))?;
        self.attempt()?;
        if self.is_empty() {
            self.add_tree(&vec![0.0; logits]);
        }
        // Without splits the same nodes are tried again, by other examples.
        if splits.is_empty() {
            return Ok(());
        }
        let tree = self.len() - 1;
        let first = self.0.trees[tree].nodes.len() as i32;
        for (node, split) in splits {
            self.split(tree, node as usize, split);
        }
        let mut layer = (first, self.0.trees[tree].nodes.len() as i32);
        let metadata = self.metadata_mut(tree)?;
        metadata.num_layers_grown = metadata.num_layers_grown.saturating_add(1);
        if metadata.num_layers_grown >= depth {
            metadata.is_finalized = true;
            layer = (0, 1);
            if pruning == Pruning::After {
                self.prune(tree, logits)?;
            }
            self.add_tree(&vec![0.0; logits]);
        }
        (self.growing().last_layer_node_start, self.growing().last_layer_node_end) = layer;
        Ok(())
    }

    /// Refuses splits of nodes that are not leaves with a value for each logit.
    fn check(&self, splits: &BTreeMap<i32, Split>, logits: usize) -> Result<()> {
        let Some(last) = self.0.trees.last() else {
            return match splits.keys().find(|&&node| node != 0) {
                Some(node) => {
                    Err(Failure::invalid(format!("node {node} cannot be split: the ensemble has no tree yet")))
                }
                None => Ok(()),
            };
        };
        self.metadata(self.len() - 1)?;
        if last.nodes.len().saturating_add(2 * splits.len()) > i32::MAX as usize {
            return Err(Failure::invalid("the tree would have more nodes than there are ids"));
        }
        for &id in splits.keys() {
            let node = last.node(id)?;
            let can_be_split = node.kind.is_none() && logits == 1 || node.is_leaf() && node.values().len() == logits;
            if !can_be_split {
                let tree = self.len() - 1;
                return Err(Failure::invalid(format!(
                    "node {id} of tree {tree} cannot be split: it is not a leaf with {logits} values"
                )));
            }
        }
        Ok(())
    }

    /// Counts an attempt to grow a layer, and a tree if it is the tree's first.
    fn attempt(&mut self) -> Result<()> {
        let begins = match self.len() {
            0 => true,
            1 => self.0.trees[0].nodes.len() == 1,
            count => self.metadata(count - 2)?.is_finalized && self.0.trees[count - 1].nodes.len() == 1,
        };
        let growing = self.growing();
        growing.num_layers_attempted = growing.num_layers_attempted.saturating_add(1);
        growing.num_trees_attempted = growing.num_trees_attempted.saturating_add(i64::from(begins));
        Ok(())
    }

    /// Splits a leaf. The values of the new leaves add to its own.
    fn split(&mut self, tree: usize, id: usize, split: Split) {
        let nodes = &mut self.0.trees[tree].nodes;
        let left_id = nodes.len() as i32;
        let right_id = left_id + 1;
        let (feature_id, dimension_id) = (split.feature, split.dimension);
        let kind = match split.kind {
            SplitKind::Equality => {
                let value = split.threshold;
                Kind::Categorical(CategoricalSplit { feature_id, value, left_id, right_id, dimension_id })
            }
            direction => Kind::Bucketized(BucketizedSplit {
                feature_id,
                threshold: split.threshold,
                left_id,
                right_id,
                dimension_id,
                default_direction: i32::from(direction == SplitKind::DefaultRight),
            }),
        };
        let before = match nodes[id].kind.replace(kind) {
            Some(Kind::Leaf(leaf)) => Some(leaf),
            _ => None,
        };
        let values =
            before.as_ref().map_or(vec![0.0; split.left.len()], |leaf| super::ensemble::values_of(leaf).to_vec());
        // The root of a tree without a bias has no value to return to.
        let is_kept = id != 0 || values.iter().any(|&value| value != 0.0);
        let metadata = nodes[id].metadata.get_or_insert_with(NodeMetadata::default);
        metadata.gain = split.gain;
        if is_kept {
            metadata.original_leaf = Some(before.unwrap_or_default());
        }
        for own in [&split.left, &split.right] {
            let own: Vec<f32> = values.iter().zip(own).map(|(value, own)| value + own).collect();
            nodes.push(Node { kind: Some(Kind::Leaf(leaf(&own))), metadata: None });
        }
    }
}
