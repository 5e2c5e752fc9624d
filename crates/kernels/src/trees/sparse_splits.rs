//! The best split of each node, from the sums of a feature that most examples lack: BoostedTreesSparseCalculateBestFeatureSplit.

use std::collections::BTreeMap;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Shape, Tensor};
use smallvec::smallvec;

use super::super::call::take;
use super::super::{HostKernel, Outputs, Registry};
use super::weights::{Penalty, is_larger};
use super::{DEFAULT_LEFT, DEFAULT_RIGHT, matrix, scalar, vector};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("BoostedTreesSparseCalculateBestFeatureSplit", |_| {
        Ok(Some(Box::new(|inputs| of_nodes(&take(inputs)?)) as HostKernel))
    });
}

/// Bytes of an entry of the sums.
const ENTRY_BYTES: usize = 192;

/// The first gradient and hessian of each bucket that a dimension of the feature has, in one node.
type Buckets = BTreeMap<i32, (f32, f32)>;

#[derive(Clone, Copy)]
struct Settings {
    penalty: Penalty,
    complexity: f32,
    least: f32,
    /// The bucket of missing values.
    missing: i32,
}

/// A split, by dimension and bucket.
struct Split {
    gain: f32,
    dimension: i32,
    bucket: i32,
    kind: &'static str,
    weights: (f32, f32),
}

impl Settings {
    /// The best split of a node; `None` if it has too little weight, or no buckets.
    fn best(self, node: &BTreeMap<i32, Buckets>, pace: &mut Pace) -> Option<Split> {
        let (_, first) = node.first_key_value()?;
        let sum = |total: (f32, f32), own: &(f32, f32)| (total.0 + own.0, total.1 + own.1);
        let total = first.values().fold((0.0, 0.0), sum);
        if total.1 < self.least {
            return None;
        }
        let (_, parent) = self.penalty.of_one(total.0, total.1);
        let none = Split { gain: f32::MIN, dimension: 0, bucket: 0, kind: DEFAULT_LEFT, weights: (0.0, 0.0) };
        let mut best = none;
        for (&dimension, buckets) in node {
            let missing = buckets.get(&self.missing).copied().unwrap_or_default();
            let mut left = (0.0, 0.0);
            for (&bucket, own) in buckets.iter().take_while(|(bucket, _)| **bucket != self.missing) {
                pace.go(48);
                left = sum(left, own);
                let with_missing = (left.0 + missing.0, left.1 + missing.1);
                let without = (total.0 - missing.0 - left.0, total.1 - missing.1 - left.1);
                let sides = [
                    (DEFAULT_RIGHT, left, (total.0 - left.0, total.1 - left.1)),
                    (DEFAULT_LEFT, with_missing, without),
                ];
                for (kind, left, right) in sides {
                    let (left, left_gain) = self.penalty.of_one(left.0, left.1);
                    let (right, right_gain) = self.penalty.of_one(right.0, right.1);
                    if is_larger(left_gain + right_gain, best.gain) {
                        best = Split { gain: left_gain + right_gain, dimension, bucket, kind, weights: (left, right) };
                    }
                }
            }
        }
        (best.gain != f32::MIN).then_some(Split { gain: best.gain - parent - self.complexity, ..best })
    }
}

fn of_nodes(inputs: &[Tensor; 8]) -> Result<Outputs> {
    let [range, indices, values, shape, l1, l2, complexity, least] = inputs;
    let &[first, last] = vector::<i32>(range, "node_id_range")? else {
        let why = format!("node_id_range should have 2 entries, got: {}", range.len());
        return Err(Failure::invalid(why));
    };
    let (positions, columns) = matrix::<i32>(indices, "stats_summary_indices")?;
    let values = vector::<f32>(values, "stats_summary_values")?;
    if columns != 4 || positions.len() != values.len().saturating_mul(4) {
        return Err(Failure::invalid(format!(
            "stats_summary_indices must have shape [{}, 4], got shape {}",
            values.len(),
            indices.shape()
        )));
    }
    let &[_, _, buckets, width] = vector::<i32>(shape, "stats_summary_shape")? else {
        return Err(Failure::invalid(format!("stats_summary_shape must have 4 elements, got shape {}", shape.shape())));
    };
    if width < 2 {
        let why = format!("stats_summary_shape states {width} statistics: a gradient and a hessian are the least");
        return Err(Failure::invalid(why));
    }
    let settings = Settings {
        penalty: Penalty { l1: scalar(l1, "l1")?, l2: scalar(l2, "l2")? },
        complexity: scalar(complexity, "tree_complexity")?,
        least: scalar(least, "min_node_weight")?,
        missing: buckets.saturating_sub(1),
    };
    memory::admit(values.len().saturating_mul(ENTRY_BYTES))?;
    let mut found: Vec<(i32, Split)> = Vec::new();
    let mut sums: BTreeMap<i32, Buckets> = BTreeMap::new();
    let mut before = None;
    let mut pace = Pace::new();
    for (number, (at, &value)) in positions.chunks_exact(4).zip(values).enumerate() {
        pace.go(64);
        let &[node, dimension, bucket, statistic] = at else { continue };
        if let Some(before) = before.filter(|&before| before != node) {
            found.extend(settings.best(&sums, &mut pace).map(|split| (before, split)));
            sums.clear();
        }
        before = Some(node);
        if !(first..last).contains(&node) {
            return Err(Failure::invalid(format!("node_id = {node} which is not in [{first}, {last})")));
        }
        if !(0..width).contains(&statistic) {
            return Err(Failure::invalid(format!(
                "Stat dim, the sum of logits dim and hessian dim in stats_summary_indices, should be in [0, {width}), \
                 but is {statistic} at index {number}"
            )));
        }
        let own = sums.entry(dimension).or_default().entry(bucket).or_default();
        match statistic {
            0 => own.0 = value,
            1 => own.1 = value,
            _ => {}
        }
    }
    if let Some(before) = before {
        found.extend(settings.best(&sums, &mut pace).map(|split| (before, split)));
    }
    let of = |f: fn(&(i32, Split)) -> i32| Tensor::vector(found.iter().map(f).collect::<Vec<i32>>());
    let column = |f: fn(&Split) -> f32| {
        let values: Vec<f32> = found.iter().map(|(_, split)| f(split)).collect();
        Tensor::from_vec(Shape::from([values.len(), 1]), values)
    };
    Ok(smallvec![
        of(|(node, _)| *node),
        Tensor::vector(found.iter().map(|(_, split)| split.gain).collect::<Vec<f32>>()),
        of(|(_, split)| split.dimension),
        of(|(_, split)| split.bucket),
        column(|split| split.weights.0),
        column(|split| split.weights.1),
        Tensor::vector(found.iter().map(|(_, split)| split.kind.as_bytes().to_vec()).collect::<Vec<_>>()),
    ])
}
