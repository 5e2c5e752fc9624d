//! The messages of `tensorflow.boosted_trees` that ensembles are serialised in.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4")]
    pub kind: Option<Kind>,
    #[prost(message, optional, tag = "777")]
    pub metadata: Option<NodeMetadata>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Kind {
    #[prost(message, tag = "1")]
    Leaf(Leaf),
    #[prost(message, tag = "2")]
    Bucketized(BucketizedSplit),
    #[prost(message, tag = "3")]
    Categorical(CategoricalSplit),
    #[prost(message, tag = "4")]
    Dense(DenseSplit),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeMetadata {
    #[prost(float, tag = "1")]
    pub gain: f32,
    /// The leaf that the node was before its split.
    #[prost(message, optional, tag = "2")]
    pub original_leaf: Option<Leaf>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Leaf {
    #[prost(oneof = "Values", tags = "1, 2")]
    pub values: Option<Values>,
    #[prost(float, tag = "3")]
    pub scalar: f32,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Values {
    #[prost(message, tag = "1")]
    Vector(Vector),
    #[prost(message, tag = "2")]
    Sparse(SparseVector),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Vector {
    #[prost(float, repeated, tag = "1")]
    pub value: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SparseVector {
    #[prost(int32, repeated, tag = "1")]
    pub index: Vec<i32>,
    #[prost(float, repeated, tag = "2")]
    pub value: Vec<f32>,
}

/// A split into values up to a threshold, and greater ones.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct BucketizedSplit {
    #[prost(int32, tag = "1")]
    pub feature_id: i32,
    #[prost(int32, tag = "2")]
    pub threshold: i32,
    #[prost(int32, tag = "3")]
    pub left_id: i32,
    #[prost(int32, tag = "4")]
    pub right_id: i32,
    #[prost(int32, tag = "5")]
    pub dimension_id: i32,
    /// The direction of missing values: 0 is left, 1 is right.
    #[prost(int32, tag = "6")]
    pub default_direction: i32,
}

/// A split into one value, and all others.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct CategoricalSplit {
    #[prost(int32, tag = "1")]
    pub feature_id: i32,
    #[prost(int32, tag = "2")]
    pub value: i32,
    #[prost(int32, tag = "3")]
    pub left_id: i32,
    #[prost(int32, tag = "4")]
    pub right_id: i32,
    #[prost(int32, tag = "5")]
    pub dimension_id: i32,
}

/// A split that no op makes, and none takes.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct DenseSplit {
    #[prost(int32, tag = "1")]
    pub feature_id: i32,
    #[prost(float, tag = "2")]
    pub threshold: f32,
    #[prost(int32, tag = "3")]
    pub left_id: i32,
    #[prost(int32, tag = "4")]
    pub right_id: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tree {
    /// The root first; a node's id is its index.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<Node>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TreeMetadata {
    #[prost(int32, tag = "2")]
    pub num_layers_grown: i32,
    #[prost(bool, tag = "3")]
    pub is_finalized: bool,
    /// For each node before the tree was pruned, the node that has taken its place; nothing if none was pruned.
    #[prost(message, repeated, tag = "4")]
    pub post_pruned_nodes_meta: Vec<PostPruneNodeUpdate>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PostPruneNodeUpdate {
    #[prost(int32, tag = "1")]
    pub new_node_id: i32,
    #[prost(float, repeated, tag = "2")]
    pub logit_change: Vec<f32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct GrowingMetadata {
    #[prost(int64, tag = "1")]
    pub num_trees_attempted: i64,
    #[prost(int64, tag = "2")]
    pub num_layers_attempted: i64,
    #[prost(int32, tag = "3")]
    pub last_layer_node_start: i32,
    #[prost(int32, tag = "4")]
    pub last_layer_node_end: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TreeEnsemble {
    #[prost(message, repeated, tag = "1")]
    pub trees: Vec<Tree>,
    #[prost(float, repeated, tag = "2")]
    pub tree_weights: Vec<f32>,
    #[prost(message, repeated, tag = "3")]
    pub tree_metadata: Vec<TreeMetadata>,
    #[prost(message, optional, tag = "4")]
    pub growing_metadata: Option<GrowingMetadata>,
}

/// The features that a prediction went by, and the logits on its way.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugOutput {
    #[prost(int32, repeated, tag = "1")]
    pub feature_ids: Vec<i32>,
    #[prost(float, repeated, tag = "2")]
    pub logits_path: Vec<f32>,
}
