//! NonMaxSuppression and its versions: the boxes with the best scores among those that overlap.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::call::{no_kernel, size};
use super::super::real::{narrow, widen};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};

/// The version of a node's op.
#[derive(Clone, Copy)]
struct Form {
    /// Whether the first input contains the overlap of each pair of boxes.
    of_overlaps: bool,
    /// The threshold of the overlap, if it is not an input.
    overlap: Option<f32>,
    has_score_threshold: bool,
    has_sigma: bool,
    /// Whether the outputs are padded to the requested size, and whether their number is an output.
    pads: bool,
    counts: bool,
}

const PLAIN: Form = Form {
    of_overlaps: false,
    overlap: None,
    has_score_threshold: false,
    has_sigma: false,
    pads: false,
    counts: false,
};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("NonMaxSuppression", |node| {
        kernel(node, Form { overlap: Some(node.attrs.float("iou_threshold")?), ..PLAIN })
    });
    ops.insert("NonMaxSuppressionV2", |node| kernel(node, PLAIN));
    ops.insert("NonMaxSuppressionV3", |node| kernel(node, Form { has_score_threshold: true, ..PLAIN }));
    ops.insert("NonMaxSuppressionWithOverlaps", |node| {
        kernel(node, Form { has_score_threshold: true, of_overlaps: true, ..PLAIN })
    });
    ops.insert("NonMaxSuppressionV4", |node| {
        let pads = node.attrs.bool("pad_to_max_output_size")?;
        kernel(node, Form { has_score_threshold: true, counts: true, pads, ..PLAIN })
    });
    ops.insert("NonMaxSuppressionV5", |node| {
        let pads = node.attrs.bool("pad_to_max_output_size")?;
        kernel(node, Form { has_score_threshold: true, counts: true, has_sigma: true, pads, ..PLAIN })
    });
}

fn kernel(node: &KernelNode, form: Form) -> Result<Option<HostKernel>> {
    let dtype = node.inputs.first().copied().unwrap_or(DType::F32);
    if !matches!(dtype, DType::F16 | DType::F32) {
        return no_kernel(node);
    }
    Ok(Some(Box::new(move |inputs| form.suppress(inputs, dtype))))
}

/// A box that has not been chosen yet.
struct Candidate {
    score: f32,
    index: usize,
    /// The number of chosen boxes already compared with this one.
    checked: usize,
}

impl Ord for Candidate {
    /// The highest score first; among equal scores, the first box.
    #[inline]
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.score.total_cmp(&other.score).then(other.index.cmp(&self.index))
    }
}

impl PartialOrd for Candidate {
    #[inline]
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    #[inline]
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

pub(super) fn threshold(tensor: &Tensor, what: &str, in_unit: bool) -> Result<f32> {
    if tensor.rank() != 0 {
        return Err(Failure::invalid(format!("{what} must be 0-D, got shape {}", tensor.shape())));
    }
    let value = widen(tensor.clone()).item::<f32>()?;
    if in_unit && !(0.0..=1.0).contains(&value) {
        return Err(Failure::invalid(format!("{what} must be in [0, 1]")));
    }
    Ok(value)
}

impl Form {
    fn suppress(&self, inputs: Inputs, dtype: DType) -> Result<Outputs> {
        let mut inputs = inputs.into_iter().map(widen);
        let mut next = || inputs.next().ok_or_else(|| Failure::invalid("an input is missing"));
        let (boxes, scores, most) = (next()?, next()?, next()?);
        let what = if self.of_overlaps { "overlap_threshold" } else { "iou_threshold" };
        let overlap = match self.overlap {
            Some(overlap) => threshold(&Tensor::scalar(overlap), what, true)?,
            None => threshold(&next()?, what, !self.of_overlaps)?,
        };
        let least = if self.has_score_threshold { threshold(&next()?, "score_threshold", false)? } else { f32::MIN };
        let sigma = if self.has_sigma { threshold(&next()?, "soft_nms_sigma", false)? } else { 0.0 };
        if sigma < 0.0 {
            return Err(Failure::invalid("soft_nms_sigma_tensor must be non-negative"));
        }
        let columns = match *boxes.dims() {
            [rows, columns] if columns == if self.of_overlaps { rows } else { 4 } => columns,
            _ => {
                let wanted = if self.of_overlaps { "square" } else { "2-D with 4 columns" };
                return Err(Failure::invalid(format!("boxes must be {wanted}, got shape {}", boxes.shape())));
            }
        };
        let count = boxes.dims()[0];
        if scores.dims() != [count] {
            let why = format!("scores has incompatible shape {}, for {count} boxes", scores.shape());
            return Err(Failure::invalid(why));
        }
        if most.rank() != 0 {
            return Err(Failure::invalid(format!("max_output_size must be 0-D, got shape {}", most.shape())));
        }
        let most = size(&most, "max_output_size")?;
        if self.pads {
            Shape::from([most]).checked_elements(DType::I32)?;
        }
        let sides = boxes.slice::<f32>()?;
        let similarity = |a: usize, b: usize| match self.of_overlaps {
            true => sides[a * columns + b],
            false => shared(&sides[4 * a..4 * a + 4], &sides[4 * b..4 * b + 4]),
        };
        let chosen = choose(scores.slice::<f32>()?, most.min(count), least, overlap, sigma, similarity);
        let (mut indices, mut kept): (Vec<i32>, Vec<f32>) =
            chosen.into_iter().map(|(index, score)| (index as i32, score)).unzip();
        let valid = indices.len();
        if self.pads {
            indices.resize(most, 0);
            kept.resize(most, 0.0);
        }
        let mut outputs = Outputs::from_iter([Tensor::vector(indices)]);
        if self.has_sigma {
            outputs.push(narrow(Tensor::vector(kept), dtype)?);
        }
        if self.counts {
            outputs.push(Tensor::scalar(valid as i32));
        }
        Ok(outputs)
    }
}

/// The chosen boxes with their scores, best first. Without `sigma` an overlapping box is dropped; with it, the box's
/// score is reduced.
pub(super) fn choose(
    scores: &[f32],
    most: usize,
    least: f32,
    overlap: f32,
    sigma: f32,
    similarity: impl Fn(usize, usize) -> f32,
) -> Vec<(usize, f32)> {
    let is_soft = sigma > 0.0;
    let scale = if is_soft { -0.5 / sigma } else { 0.0 };
    let candidates = scores.iter().enumerate().filter(|(_, score)| **score > least);
    let mut heap: BinaryHeap<Candidate> =
        candidates.map(|(index, &score)| Candidate { score, index, checked: 0 }).collect();
    let mut chosen: Vec<(usize, f32)> = Vec::new();
    let mut pace = Pace::new();
    while chosen.len() < most {
        let Some(mut next) = heap.pop() else { break };
        let before = next.score;
        let mut goes = false;
        for &(index, _) in chosen[next.checked..].iter().rev() {
            pace.go(20);
            let similar = similarity(next.index, index);
            if !is_soft && similar > overlap {
                goes = true;
                break;
            }
            next.score *= if is_soft || similar <= overlap { (scale * similar * similar).exp() } else { 0.0 };
            if next.score <= least {
                break;
            }
        }
        next.checked = chosen.len();
        if goes {
            continue;
        }
        if next.score == before {
            chosen.push((next.index, next.score));
        } else if next.score > least {
            heap.push(next);
        }
    }
    chosen
}

/// The intersection of two boxes over their union.
pub(super) fn shared(a: &[f32], b: &[f32]) -> f32 {
    let sides = |x: &[f32]| [x[0].min(x[2]), x[1].min(x[3]), x[0].max(x[2]), x[1].max(x[3])];
    let (a, b) = (sides(a), sides(b));
    let area = |x: [f32; 4]| (x[2] - x[0]) * (x[3] - x[1]);
    if area(a) <= 0.0 || area(b) <= 0.0 {
        return 0.0;
    }
    let height = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let width = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let both = height * width;
    both / (area(a) + area(b) - both)
}
