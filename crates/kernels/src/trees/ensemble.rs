//! An ensemble of trees: read from and written as `tensorflow.boosted_trees.TreeEnsemble`, and its states.
//!
//! A serialised ensemble may say anything. Ids of nodes are checked where they are followed.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use prost::Message;

use super::proto::{GrowingMetadata, Kind, Leaf, Node, Tree, TreeEnsemble, TreeMetadata, Values, Vector};
use super::weights::Penalty;

/// The weight of a tree that grows layer by layer.
const TREE_WEIGHT: f32 = 1.0;
/// The least change of the bias, relative to it, after which the centering continues.
const LEAST_CHANGE: f32 = 0.01;

/// An ensemble of trees.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ensemble(pub(super) TreeEnsemble);

/// The states of an ensemble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// The number of trees.
    pub trees: i32,
    /// The number of those that do not grow any more.
    pub finalized: i32,
    /// The number of layers that were to be grown.
    pub layers: i32,
    /// The first node of the last layer, and the one after the last.
    pub last_layer: [i32; 2],
}

/// The value of each logit of a leaf.
pub(super) fn values_of(leaf: &Leaf) -> &[f32] {
    match &leaf.values {
        Some(Values::Vector(vector)) => &vector.value,
        _ => std::slice::from_ref(&leaf.scalar),
    }
}

/// A leaf with a value for each logit.
pub(super) fn leaf(values: &[f32]) -> Leaf {
    match *values {
        [scalar] => Leaf { scalar, values: None },
        _ => Leaf { scalar: 0.0, values: Some(Values::Vector(Vector { value: values.to_vec() })) },
    }
}

impl Node {
    /// The values of a leaf, or those that a split had as a leaf; none if it had none.
    pub(super) fn values(&self) -> &[f32] {
        match (&self.kind, &self.metadata) {
            (Some(Kind::Leaf(leaf)), _) => values_of(leaf),
            (_, Some(metadata)) => metadata.original_leaf.as_ref().map_or(&[], values_of),
            (_, None) => &[],
        }
    }

    /// The ids of the nodes on the left and on the right; `None` for a leaf.
    pub(super) fn children(&self) -> Option<[i32; 2]> {
        match self.kind.as_ref()? {
            Kind::Leaf(_) => None,
            Kind::Bucketized(split) => Some([split.left_id, split.right_id]),
            Kind::Categorical(split) => Some([split.left_id, split.right_id]),
            Kind::Dense(split) => Some([split.left_id, split.right_id]),
        }
    }

    pub(super) fn is_leaf(&self) -> bool {
        matches!(self.kind, Some(Kind::Leaf(_)))
    }
}

impl Tree {
    /// The node of an id.
    pub(super) fn node(&self, id: i32) -> Result<&Node> {
        let node = usize::try_from(id).ok().and_then(|index| self.nodes.get(index));
        node.ok_or_else(|| Failure::invalid(format!("node {id} is not one of the {} of its tree", self.nodes.len())))
    }
}

impl Ensemble {
    /// The ensemble that was serialised so.
    ///
    /// # Errors
    /// InvalidArgument if it is none; ResourceExhausted if there is no memory for it.
    pub fn read(bytes: &[u8]) -> Result<Ensemble> {
        // The shortest node takes two bytes.
        memory::admit((bytes.len() / 2).saturating_mul(size_of::<Node>()))?;
        let read = TreeEnsemble::decode(bytes);
        read.map(Ensemble).map_err(|error| Failure::invalid(format!("Unable to parse tree ensemble proto: {error}")))
    }

    /// The ensemble serialised.
    ///
    /// # Errors
    /// ResourceExhausted if that is too large.
    pub fn written(&self) -> Result<Vec<u8>> {
        crate::call::check_text_bytes(self.0.encoded_len())?;
        Ok(self.0.encode_to_vec())
    }

    /// Bytes that it takes in memory, about.
    pub fn bytes(&self) -> usize {
        self.0.trees.iter().map(|tree| tree.nodes.len() * size_of::<Node>()).sum::<usize>()
            + self.0.tree_metadata.len() * size_of::<TreeMetadata>()
    }

    /// The number of trees.
    pub fn len(&self) -> usize {
        self.0.trees.len()
    }

    /// Whether there are no trees.
    pub fn is_empty(&self) -> bool {
        self.0.trees.is_empty()
    }

    pub(super) fn tree(&self, id: usize) -> Result<&Tree> {
        let tree = self.0.trees.get(id);
        tree.ok_or_else(|| Failure::invalid(format!("tree {id} is not one of the {} of the ensemble", self.len())))
    }

    pub(super) fn weight(&self, tree: usize) -> Result<f32> {
        let weight = self.0.tree_weights.get(tree).copied();
        weight.ok_or_else(|| Failure::invalid(format!("the ensemble states no weight of tree {tree}")))
    }

    pub(super) fn metadata(&self, tree: usize) -> Result<&TreeMetadata> {
        self.0.tree_metadata.get(tree).ok_or_else(|| no_metadata(tree))
    }

    pub(super) fn metadata_mut(&mut self, tree: usize) -> Result<&mut TreeMetadata> {
        self.0.tree_metadata.get_mut(tree).ok_or_else(|| no_metadata(tree))
    }

    pub(super) fn growing(&mut self) -> &mut GrowingMetadata {
        self.0.growing_metadata.get_or_insert_default()
    }

    /// Adds a tree that is one leaf.
    pub(super) fn add_tree(&mut self, values: &[f32]) {
        let root = Node { kind: Some(Kind::Leaf(leaf(values))), metadata: None };
        self.0.trees.push(Tree { nodes: vec![root] });
        self.0.tree_weights.push(TREE_WEIGHT);
        self.0.tree_metadata.push(TreeMetadata::default());
    }

    /// Its states.
    ///
    /// # Errors
    /// InvalidArgument if the last tree has no metadata.
    pub fn states(&self) -> Result<States> {
        let growing = self.0.growing_metadata.unwrap_or_default();
        let trees = self.len() as i32;
        let is_growing = match self.len().checked_sub(1) {
            Some(last) => !self.metadata(last)?.is_finalized,
            None => false,
        };
        Ok(States {
            trees,
            finalized: trees - i32::from(is_growing),
            layers: growing.num_layers_attempted as i32,
            // An empty ensemble states no layer: that of the root.
            last_layer: [growing.last_layer_node_start, growing.last_layer_node_end.max(1)],
        })
    }

    /// Moves the bias, the value of the first tree's root, by the mean gradient and hessian; returns whether it should be moved
    /// again.
    ///
    /// # Errors
    /// InvalidArgument if that root is not a leaf.
    pub fn center(&mut self, gradient: f32, hessian: f32, l1: f32, l2: f32) -> Result<bool> {
        let (change, _) = Penalty { l1, l2 }.of_one(gradient, hessian);
        let Some(tree) = self.0.trees.first_mut() else {
            self.add_tree(&[change]);
            return Ok(true);
        };
        match tree.nodes.first_mut().map(|root| &mut root.kind) {
            Some(Some(Kind::Leaf(leaf))) if leaf.values.is_none() => {
                let continues = (change / leaf.scalar).abs() > LEAST_CHANGE;
                leaf.scalar += change;
                Ok(continues)
            }
            _ => Err(Failure::invalid(
                "the bias cannot be centered: the root of the first tree is not a leaf with one value",
            )),
        }
    }
}

fn no_metadata(tree: usize) -> Failure {
    Failure::invalid(format!("the ensemble states no metadata of tree {tree}"))
}
