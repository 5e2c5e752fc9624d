//! The best split of each node, from dense sums of gradients and hessians: BoostedTreesCalculateBestGainsPerFeature and
//! BoostedTreesCalculateBestFeatureSplit.

use std::ops::Range;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Shape, Tensor};
use smallvec::smallvec;

use super::super::call::take;
use super::super::{HostKernel, Inputs, Outputs, Registry};
use super::stats::size;
use super::weights::{Penalty, check_hessians, is_larger};
use super::{DEFAULT_LEFT, DEFAULT_RIGHT, EQUALITY, scalar, vector};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("BoostedTreesCalculateBestGainsPerFeature", |_| {
        Ok(Some(Box::new(|inputs: Inputs| per_feature(&inputs)) as HostKernel))
    });
    ops.insert("BoostedTreesCalculateBestFeatureSplit", |node| {
        let (logits, by_equality) = (size(node, "logits_dimension")?, node.attrs.str("split_type")? == "equality");
        Ok(Some(Box::new(move |inputs| of_nodes(&take(inputs)?, logits, by_equality)) as HostKernel))
    });
}

/// The nodes that are to be split, of `count`.
fn nodes(range: &Tensor, count: usize) -> Result<Range<usize>> {
    let &[first, last] = vector::<i32>(range, "node_id_range")? else {
        let why = format!("node_id_range argument must have shape [2], got shape {}", range.shape());
        return Err(Failure::invalid(why));
    };
    let range = first as i64..last as i64;
    if range.is_empty() {
        return Ok(0..0);
    }
    if range.start < 0 || range.end > count as i64 {
        return Err(Failure::invalid(format!("node_id_range [{first}, {last}) is not within the {count} nodes")));
    }
    Ok(range.start as usize..range.end as usize)
}

/// The best splits of the nodes by one feature.
#[derive(Default)]
struct Splits {
    nodes: Vec<i32>,
    gains: Vec<f32>,
    thresholds: Vec<i32>,
    left: Vec<f32>,
    right: Vec<f32>,
}

/// The best splits of each feature, all of which have one dimension and one logit.
fn per_feature(inputs: &[Tensor]) -> Result<Outputs> {
    let [range, features @ .., l1, l2, complexity, least] = inputs else {
        return Err(Failure::invalid("the op takes a range of nodes, statistics and four scalars"));
    };
    let penalty = Penalty { l1: scalar(l1, "l1")?, l2: scalar(l2, "l2")? };
    let (complexity, least) = (scalar(complexity, "tree_complexity")?, scalar(least, "min_node_weight")?);
    let mut all: Vec<Splits> = Vec::with_capacity(features.len());
    for (number, feature) in features.iter().enumerate() {
        let &[count, buckets, 2] = feature.dims() else {
            return Err(Failure::invalid(format!(
                "stats_summary_list[{number}] must have exactly 2 dimensions for each bucket of a node, got shape {}",
                feature.shape()
            )));
        };
        if feature.dims() != features[0].dims() {
            let (got, wanted) = (feature.shape(), features[0].shape());
            let why = format!("stats_summary_list[{number}] has shape {got}, and stats_summary_list[0] {wanted}");
            return Err(Failure::invalid(why));
        }
        let range = nodes(range, count)?;
        memory::admit(range.len().saturating_mul(2 * 20))?;
        all.push(single(feature.slice()?, range, buckets, penalty, (complexity, least)));
    }
    let mut outputs = Outputs::new();
    let column = |values: &Vec<f32>| Tensor::from_vec([values.len(), 1], values.clone());
    outputs.extend(all.iter().map(|splits| Tensor::vector(splits.nodes.clone())));
    outputs.extend(all.iter().map(|splits| Tensor::vector(splits.gains.clone())));
    outputs.extend(all.iter().map(|splits| Tensor::vector(splits.thresholds.clone())));
    outputs.extend(all.iter().map(|splits| column(&splits.left)));
    outputs.extend(all.iter().map(|splits| column(&splits.right)));
    Ok(outputs)
}

fn single(
    stats: &[f32],
    nodes: Range<usize>,
    buckets: usize,
    penalty: Penalty,
    (complexity, least): (f32, f32),
) -> Splits {
    let mut splits = Splits::default();
    let mut pace = Pace::new();
    for node in nodes {
        pace.go(8 + 24 * buckets);
        let sums = || stats[node * buckets * 2..][..buckets * 2].chunks_exact(2).map(|sums| (sums[0], sums[1]));
        let (total_gradient, total_hessian) = sums().fold((0.0, 0.0), |total, own| (total.0 + own.0, total.1 + own.1));
        if total_hessian < least {
            continue;
        }
        let (_, parent) = penalty.of_one(total_gradient, total_hessian);
        let (mut best, mut threshold, mut weights) = (f32::MIN, 0, (0.0, 0.0));
        let (mut gradient, mut hessian) = (0.0, 0.0);
        for (bucket, own) in sums().enumerate() {
            gradient += own.0;
            hessian += own.1;
            let (left, left_gain) = penalty.of_one(gradient, hessian);
            let (right, right_gain) = penalty.of_one(total_gradient - gradient, total_hessian - hessian);
            if is_larger(left_gain + right_gain, best) {
                (best, threshold, weights) = (left_gain + right_gain, bucket, (left, right));
            }
        }
        splits.nodes.push(node as i32);
        splits.gains.push(best - parent - complexity);
        splits.thresholds.push(threshold as i32);
        splits.left.push(weights.0);
        splits.right.push(weights.1);
    }
    splits
}

/// The sums of each node, dimension of the feature and bucket, of which the last has the missing values.
struct Stats<'a> {
    sums: &'a [f32],
    dimensions: usize,
    /// Without the last one.
    buckets: usize,
    width: usize,
}

impl<'a> Stats<'a> {
    fn at(&self, node: usize, dimension: usize, bucket: usize) -> &'a [f32] {
        &self.sums[((node * self.dimensions + dimension) * (self.buckets + 1) + bucket) * self.width..][..self.width]
    }

    /// The sums over all buckets.
    fn total(&self, node: usize, dimension: usize) -> Vec<f32> {
        let mut total = vec![0.0; self.width];
        (0..=self.buckets).for_each(|bucket| add(&mut total, self.at(node, dimension, bucket)));
        total
    }
}

fn add(sums: &mut [f32], other: &[f32]) {
    sums.iter_mut().zip(other).for_each(|(sum, own)| *sum += own);
}

/// The search for the best split of a node.
struct Search {
    penalty: Penalty,
    gain: f32,
    bucket: usize,
    dimension: usize,
    kind: &'static str,
    /// The weights of both leaves of the best split so far.
    best: [Vec<f32>; 2],
    /// Those of the split under consideration.
    own: [Vec<f32>; 2],
    /// The sums of both sides of it.
    sides: [Vec<f32>; 2],
}

impl Search {
    fn new(penalty: Penalty, logits: usize, width: usize) -> Search {
        let weights = || [vec![0.0; logits], vec![0.0; logits]];
        let sides = [vec![0.0; width], vec![0.0; width]];
        let (best, own) = (weights(), weights());
        Search { penalty, gain: f32::MIN, bucket: 0, dimension: 0, kind: "", best, own, sides }
    }

    /// Takes the split with these sums on its left, if it is better than all before it.
    fn consider(
        &mut self,
        total: &[f32],
        left: impl Iterator<Item = f32>,
        (bucket, dimension, kind): (usize, usize, &'static str),
    ) {
        let [on_left, on_right] = &mut self.sides;
        for (((left, right), sum), total) in on_left.iter_mut().zip(on_right).zip(left).zip(total) {
            (*left, *right) = (sum, total - sum);
        }
        let gains = [0, 1].map(|side| self.penalty.of(&self.sides[side], &mut self.own[side]));
        let gain = gains[0] + gains[1];
        if is_larger(gain, self.gain) {
            (self.gain, self.bucket, self.dimension, self.kind) = (gain, bucket, dimension, kind);
            std::mem::swap(&mut self.best, &mut self.own);
        }
    }

    fn by_inequality(&mut self, stats: &Stats, node: usize, pace: &mut Pace) {
        for dimension in 0..stats.dimensions {
            let missing = stats.at(node, dimension, stats.buckets);
            let total = stats.total(node, dimension);
            let mut sums = vec![0.0; stats.width];
            for bucket in 0..stats.buckets {
                pace.go(64 + stats.width.saturating_mul(stats.width));
                add(&mut sums, stats.at(node, dimension, bucket));
                let with_missing = sums.iter().zip(missing).map(|(sum, missing)| sum + missing);
                self.consider(&total, with_missing, (bucket, dimension, DEFAULT_LEFT));
                self.consider(&total, sums.iter().copied(), (bucket, dimension, DEFAULT_RIGHT));
            }
        }
    }

    fn by_equality(&mut self, stats: &Stats, node: usize, total: &[f32], pace: &mut Pace) {
        for dimension in 0..stats.dimensions {
            for bucket in 0..stats.buckets {
                pace.go(64 + stats.width.saturating_mul(stats.width));
                let own = stats.at(node, dimension, bucket).iter().copied();
                self.consider(total, own, (bucket, dimension, EQUALITY));
            }
        }
    }
}

/// The one element of an input that may be a scalar or not.
fn element(tensor: &Tensor, name: &str) -> Result<f32> {
    match tensor.slice()? {
        &[one] => Ok(one),
        _ => Err(Failure::invalid(format!("{name} argument must be a scalar, got shape {}", tensor.shape()))),
    }
}

/// The best split of each node over the dimensions of one feature.
fn of_nodes(inputs: &[Tensor; 6], logits: usize, by_equality: bool) -> Result<Outputs> {
    let [range, stats, l1, l2, complexity, least] = inputs;
    let &[count, dimensions, all_buckets, width] = stats.dims() else {
        let why = format!("stats_summary argument must have rank 4, got shape {}", stats.shape());
        return Err(Failure::invalid(why));
    };
    let hessians = width.checked_sub(logits).filter(|&hessians| hessians > 0);
    let hessians = hessians.ok_or_else(|| {
        Failure::invalid(format!("hessian dim should be > 0: {logits} logits leave none of {width} statistics"))
    })?;
    check_hessians(hessians, logits)?;
    let penalty = Penalty { l1: element(l1, "l1")?, l2: element(l2, "l2")? };
    for (name, value) in [("l1", penalty.l1), ("l2", penalty.l2)] {
        if value.is_nan() || value < 0.0 {
            return Err(Failure::invalid(format!("{name} = {value} but it should be >= 0")));
        }
    }
    if logits > 1 && penalty.l1 != 0.0 {
        return Err(Failure::invalid("l1 != 0 is not yet supported for multi-class regularization"));
    }
    let (complexity, least) = (element(complexity, "tree_complexity")?, element(least, "min_node_weight")?);
    let Some(buckets) = all_buckets.checked_sub(1) else {
        return Err(Failure::invalid("stats_summary has no bucket for missing values"));
    };
    let range = nodes(range, count)?;
    let stats = Stats { sums: stats.slice()?, dimensions, buckets, width };
    let range = if dimensions == 0 { 0..0 } else { range };
    memory::admit(range.len().saturating_mul(64 + 8 * logits))?;
    let (mut splits, mut in_dimensions, mut kinds) = (Splits::default(), Vec::new(), Vec::new());
    let mut pace = Pace::new();
    for node in range {
        pace.go(all_buckets.saturating_mul(width));
        let total = stats.total(node, 0);
        let weight = total[logits..].iter().map(|hessian| hessian * hessian).sum::<f32>().sqrt();
        if weight < least {
            continue;
        }
        let mut search = Search::new(penalty, logits, width);
        let parent = penalty.of(&total, &mut search.own[0]);
        match by_equality {
            true => search.by_equality(&stats, node, &total, &mut pace),
            false => search.by_inequality(&stats, node, &mut pace),
        }
        if search.gain == f32::MIN {
            continue;
        }
        splits.nodes.push(node as i32);
        splits.gains.push(search.gain - parent - complexity);
        splits.thresholds.push(search.bucket as i32);
        splits.left.extend(&search.best[0]);
        splits.right.extend(&search.best[1]);
        in_dimensions.push(search.dimension as i32);
        kinds.push(search.kind.as_bytes().to_vec());
    }
    let shape = Shape::from([splits.nodes.len(), logits]);
    Ok(smallvec![
        Tensor::vector(splits.nodes),
        Tensor::vector(splits.gains),
        Tensor::vector(in_dimensions),
        Tensor::vector(splits.thresholds),
        Tensor::from_vec(shape.clone(), splits.left),
        Tensor::from_vec(shape, splits.right),
        Tensor::vector(kinds),
    ])
}
