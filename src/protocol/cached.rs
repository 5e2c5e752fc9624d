//! The weights that a node keeps on its disk, as it tells the members of its mesh: not their contents, by which a member may take
//! weights that are in memory, and not the names of files.

use meshtf_tensor::{DType, Shape};
use serde::{Deserialize, Serialize};

use super::status::{Listed, MAX_NAME_BYTES};

/// The weights of a node's disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Most bytes that they may take; `None`: it keeps none.
    pub limit: Option<u64>,
    /// Bytes of those that are kept in its folder.
    pub kept_bytes: u64,
    /// Bytes of those that it reads in files of models.
    pub elsewhere_bytes: u64,
    /// Those that were used last in front.
    pub weights: Listed<CachedWeight>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CachedWeight {
    /// The node that had it first.
    pub node: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Bytes of its file, or of its elements in the file of a model.
    pub bytes: u64,
    /// How long ago a task last used it.
    pub used_ms: u64,
    /// Whether it is read in the file of a model.
    pub is_elsewhere: bool,
}

impl CacheStatus {
    /// As much of it as an answer may have.
    pub fn cut(mut self) -> CacheStatus {
        self.weights = self.weights.cut();
        for weight in &mut self.weights.items {
            weight.node.truncate(weight.node.floor_char_boundary(MAX_NAME_BYTES));
        }
        self
    }
}
