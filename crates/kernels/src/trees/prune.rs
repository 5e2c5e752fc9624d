//! The removal of splits that lose, once their tree is complete.
//!
//! Predictions that were cached for a node that is removed continue at the node that has taken its place: the metadata of the
//! tree have its id, and the change of the logits.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;

use super::ensemble::Ensemble;
use super::proto::{Kind, Node, PostPruneNodeUpdate, Tree};

/// The node in place of one that is removed, and the change of the logits.
struct Removed {
    parent: usize,
    change: Vec<f32>,
}

impl Tree {
    /// The index of a child, which no other node has as its child.
    fn child(&self, id: i32, seen: &mut [bool]) -> Result<usize> {
        self.node(id)?;
        let index = id as usize;
        if std::mem::replace(&mut seen[index], true) {
            return Err(Failure::invalid(format!("node {id} is the child of several nodes, or of itself")));
        }
        Ok(index)
    }

    /// The nodes below the root that are split, each after those above it.
    fn splits(&self) -> Result<Vec<usize>> {
        let mut seen = vec![false; self.nodes.len()];
        let mut found = Vec::new();
        let mut open = vec![0];
        seen[0] = true;
        let mut pace = Pace::new();
        while let Some(index) = open.pop() {
            pace.go(16);
            if let Some(children) = self.nodes[index].children() {
                found.push(index);
                for id in children {
                    open.push(self.child(id, &mut seen)?);
                }
            } else if self.nodes[index].kind.is_none() {
                return Err(Failure::invalid(format!("node {index} is neither a leaf nor a split")));
            }
        }
        Ok(found)
    }

    /// Makes splits leaves again that lose and have no splits below them; returns, for each node, whether it is removed.
    fn cut(&mut self) -> Result<Vec<Option<Removed>>> {
        let mut removed: Vec<Option<Removed>> = (0..self.nodes.len()).map(|_| None).collect();
        for index in self.splits()?.into_iter().rev() {
            let node = &self.nodes[index];
            let loses = node.metadata.as_ref().is_some_and(|metadata| metadata.gain < 0.0);
            let Some(children) = node.children().filter(|_| loses).map(|ids| ids.map(|id| id as usize)) else {
                continue;
            };
            if !children.iter().all(|&child| self.nodes[child].is_leaf()) {
                continue;
            }
            let original = self.nodes[index].metadata.take().and_then(|metadata| metadata.original_leaf);
            self.nodes[index].kind = Some(Kind::Leaf(original.unwrap_or_default()));
            for child in children {
                let (now, before) = (self.nodes[index].values(), self.nodes[child].values());
                if now.len() != before.len() {
                    let why = format!("node {index} has {} values, and its child {child} {}", now.len(), before.len());
                    return Err(Failure::invalid(why));
                }
                let change = now.iter().zip(before).map(|(now, before)| now - before).collect();
                removed[child] = Some(Removed { parent: index, change });
            }
        }
        Ok(removed)
    }
}

impl Ensemble {
    /// Removes the splits of a tree that lose, from its leaves up.
    ///
    /// # Errors
    /// InvalidArgument if it is not a tree.
    pub(super) fn prune(&mut self, tree: usize, logits: usize) -> Result<()> {
        let count = self.tree(tree)?.nodes.len();
        if count == 0 {
            return Ok(());
        }
        memory::admit(count.saturating_mul(2 * size_of::<PostPruneNodeUpdate>() + size_of::<Node>() + 8 * logits))?;
        let own = &mut self.0.trees[tree];
        let removed = own.cut()?;
        if removed.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut ids = vec![0i32; count];
        let mut kept = 0;
        for (id, removed) in ids.iter_mut().zip(&removed) {
            *id = kept;
            kept += i32::from(removed.is_none());
        }
        let mut updates = Vec::with_capacity(count);
        for index in 0..count {
            let mut change = vec![0.0; logits];
            let mut at = index;
            while let Some(next) = &removed[at] {
                if next.change.len() < logits {
                    let why = format!("node {at} has {} values, and not {logits}", next.change.len());
                    return Err(Failure::invalid(why));
                }
                change.iter_mut().zip(&next.change).for_each(|(sum, own)| *sum += own);
                at = next.parent;
            }
            updates.push(PostPruneNodeUpdate { new_node_id: ids[at], logit_change: change });
        }
        let mut number = 0;
        own.nodes.retain(|_| {
            number += 1;
            removed[number - 1].is_none()
        });
        // A node that no other leads to may have children that do not exist.
        let now = |id: &mut i32| *id = usize::try_from(*id).ok().and_then(|id| ids.get(id)).copied().unwrap_or(*id);
        for node in &mut own.nodes {
            match &mut node.kind {
                Some(Kind::Bucketized(split)) => [&mut split.left_id, &mut split.right_id].into_iter().for_each(now),
                Some(Kind::Categorical(split)) => [&mut split.left_id, &mut split.right_id].into_iter().for_each(now),
                Some(Kind::Dense(split)) => [&mut split.left_id, &mut split.right_id].into_iter().for_each(now),
                Some(Kind::Leaf(_)) | None => {}
            }
        }
        self.metadata_mut(tree)?.post_pruned_nodes_meta.extend(updates);
        Ok(())
    }
}
