//! The beam search, which keeps only the most likely prefixes at each step.

use std::collections::HashMap;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Float, Shape, Tensor};

use super::super::{Inputs, Outputs};
use super::{Scores, log_sum, norm, sparse};

pub(super) fn decode<T: Float>(inputs: &Inputs, width: usize, paths: usize, merges: bool) -> Result<Outputs> {
    let [scores, lengths] = inputs.as_slice() else { return Err(Failure::invalid("expected two inputs")) };
    let scores = Scores::<T>::of(scores, lengths)?;
    let shape = Shape::from([scores.batch, paths]);
    shape.checked_elements(DType::F64)?;
    if paths > width {
        return Err(Failure::invalid(format!("requested more paths than the beam width. {paths} of {width}")));
    }
    let mut sequences: Vec<Vec<Vec<i64>>> = vec![Vec::with_capacity(scores.batch); paths];
    let mut sums = Vec::with_capacity(scores.batch * paths);
    let mut pace = Pace::new();
    for b in 0..scores.batch {
        let mut search = Search::new(width);
        for t in 0..scores.lengths[b] {
            search.step(scores.at(t, b), &mut pace)?;
        }
        search.sort();
        if search.beam.len() < paths {
            return Err(Failure::invalid("Less leaves in the beam search than requested."));
        }
        for (sequences, &leaf) in sequences.iter_mut().zip(&search.beam) {
            sequences.push(search.labels(leaf, merges));
            sums.push(search.nodes[leaf].new.total);
        }
    }
    let mut parts: [Vec<Tensor>; 3] = Default::default();
    for sequences in &sequences {
        for (part, tensor) in parts.iter_mut().zip(sparse(sequences)?) {
            part.push(tensor);
        }
    }
    Ok(parts.into_iter().flatten().chain([Tensor::from_vec(shape, sums)]).collect())
}

/// The log likelihoods of a prefix: in total, with a blank as its last step, with a label as its last step.
#[derive(Clone, Copy)]
struct Likely<T> {
    total: T,
    blank: T,
    label: T,
}

/// A prefix: one label more than its parent.
struct Prefix<T> {
    parent: Option<usize>,
    label: usize,
    old: Likely<T>,
    new: Likely<T>,
}

struct Search<T> {
    nodes: Vec<Prefix<T>>,
    children: HashMap<(usize, usize), usize>,
    /// The prefixes in the beam.
    beam: Vec<usize>,
    width: usize,
}

/// The label of the empty prefix.
const NONE: usize = usize::MAX;

impl<T: Float> Search<T> {
    #[inline]
    fn new(width: usize) -> Search<T> {
        let never = Search::never();
        let start = Likely { total: T::ZERO, blank: T::ZERO, label: T::LOWEST };
        let root = Prefix { parent: None, label: NONE, old: never, new: start };
        Search { nodes: vec![root], children: HashMap::new(), beam: vec![0], width }
    }

    #[inline]
    fn never() -> Likely<T> {
        Likely { total: T::LOWEST, blank: T::LOWEST, label: T::LOWEST }
    }

    /// Sorts the beam, the most likely prefix first.
    #[inline]
    fn sort(&mut self) {
        let nodes = &self.nodes;
        let order = |&a: &usize, &b: &usize| {
            nodes[b].new.total.partial_cmp(&nodes[a].new.total).unwrap_or(std::cmp::Ordering::Equal)
        };
        self.beam.sort_by(order);
    }

    fn step(&mut self, row: &[T], pace: &mut Pace) -> Result<()> {
        let (blank, norm) = (row.len() - 1, norm(row));
        self.sort();
        let branches = self.beam.clone();
        pace.go(60 * row.len() * branches.len().max(1));
        memory::grow()?;
        for &b in &branches {
            self.nodes[b].old = self.nodes[b].new;
        }
        for &b in &branches {
            let node = &self.nodes[b];
            let mut new = node.new;
            if let Some(parent) = node.parent.map(|parent| &self.nodes[parent]) {
                if parent.new.total != T::LOWEST {
                    let before = if node.label == parent.label { parent.old.blank } else { parent.old.total };
                    new.label = log_sum(new.label, before);
                }
                new.label = new.label + row[node.label] - norm;
            }
            new.blank = node.old.total + row[blank] - norm;
            new.total = log_sum(new.blank, new.label);
            self.nodes[b].new = new;
        }
        for &b in &branches {
            if !self.is_candidate(self.nodes[b].old.total) {
                continue;
            }
            for (label, &score) in row[..blank].iter().enumerate() {
                let child = self.child(b, label);
                if self.nodes[child].new.total != T::LOWEST {
                    continue;
                }
                let parent = &self.nodes[b];
                let before = if label == parent.label { parent.old.blank } else { parent.old.total };
                let total = score - norm + before;
                if self.is_candidate(total) {
                    self.nodes[child].new = Likely { total, blank: T::LOWEST, label: total };
                    self.keep(child);
                } else {
                    (self.nodes[child].old, self.nodes[child].new) = (Search::never(), Search::never());
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn child(&mut self, parent: usize, label: usize) -> usize {
        let next = self.nodes.len();
        let child = *self.children.entry((parent, label)).or_insert(next);
        if child == next {
            let (old, new) = (Search::never(), Search::never());
            self.nodes.push(Prefix { parent: Some(parent), label, old, new });
        }
        child
    }

    /// The index in the beam of the least likely prefix.
    #[inline]
    fn bottom(&self) -> Option<usize> {
        let total = |place: &usize| self.nodes[self.beam[*place]].new.total;
        (0..self.beam.len()).reduce(|a, b| if total(&b) <= total(&a) { b } else { a })
    }

    #[inline]
    fn is_candidate(&self, total: T) -> bool {
        let is_better = || self.bottom().is_some_and(|place| total > self.nodes[self.beam[place]].new.total);
        total > T::LOWEST && (self.beam.len() < self.width || is_better())
    }

    /// Adds a prefix to the beam; it replaces the least likely if the beam is full.
    #[inline]
    fn keep(&mut self, node: usize) {
        if self.beam.len() >= self.width
            && let Some(place) = self.bottom()
        {
            let gone = self.beam.swap_remove(place);
            self.nodes[gone].new = Search::never();
        }
        self.beam.push(node);
    }

    /// The labels of a prefix.
    fn labels(&self, leaf: usize, merges: bool) -> Vec<i64> {
        let (mut labels, mut at, mut last) = (Vec::new(), leaf, NONE);
        while let Some(parent) = self.nodes[at].parent {
            let label = self.nodes[at].label;
            if !(merges && label == last) {
                labels.push(label as i64);
            }
            (at, last) = (parent, label);
        }
        labels.reverse();
        labels
    }
}
