//! The loss of labels and its gradient with respect to the scores, by the forward-backward algorithm over all alignments.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Float, Tensor};

use super::super::call::take;
use super::super::{Inputs, KernelNode, Outputs};
use super::{Scores, log_sum, norm};

/// The rules that match labels with steps.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Equal consecutive labels are one label, before any other rule.
    collapses: bool,
    /// Consecutive steps of one class are one label.
    merges: bool,
    /// Examples with more labels than steps are skipped.
    ignores_longer: bool,
}

impl Rules {
    pub fn of(node: &KernelNode) -> Result<Rules> {
        Ok(Rules {
            collapses: node.attrs.bool("preprocess_collapse_repeated")?,
            merges: node.attrs.bool("ctc_merge_repeated")?,
            ignores_longer: node.attrs.bool("ignore_longer_outputs_than_inputs")?,
        })
    }
}

pub(super) fn loss<T: Float>(inputs: Inputs, rules: Rules) -> Result<Outputs> {
    let [tensor, indices, values, lengths] = take(inputs)?;
    let scores = Scores::<T>::of(&tensor, &lengths)?;
    let labels = labels_of(&indices, &values, &scores, rules)?;
    memory::admit(2 * tensor.byte_len())?;
    let mut losses = vec![T::ZERO; scores.batch];
    let mut gradient = vec![T::ZERO; tensor.len()];
    let mut pace = Pace::new();
    for (b, labels) in labels.iter().enumerate() {
        let Some(labels) = labels else { continue };
        let mut example = Example::new(&scores, b, labels, rules)?;
        losses[b] = T::ZERO - example.align(&mut pace);
        example.add_gradient(&mut gradient, &mut pace);
    }
    let shape = tensor.shape().clone();
    Ok(Outputs::from_iter([Tensor::vector(losses), Tensor::from_vec(shape, gradient)]))
}

/// The labels of each example; `None` if it is skipped.
fn labels_of<T: Float>(
    indices: &Tensor,
    values: &Tensor,
    scores: &Scores<T>,
    rules: Rules,
) -> Result<Vec<Option<Vec<usize>>>> {
    if indices.rank() != 2 || indices.dims()[1] != 2 {
        return Err(Failure::invalid(format!(
            "labels_indices is not a matrix of two columns, got shape {}",
            indices.shape()
        )));
    }
    if values.dims() != [indices.dims()[0]] {
        let why = format!(
            "labels_indices and labels_values must contain the same number of rows, but saw shapes: {} vs. {}",
            indices.shape(),
            values.shape()
        );
        return Err(Failure::invalid(why));
    }
    let blank = scores.classes - 1;
    let mut labels: Vec<Vec<usize>> = vec![Vec::new(); scores.batch];
    // Whether an example's null label (the blank or above) was seen; no other label may follow it.
    let mut finished = vec![false; scores.batch];
    // The number of labels stated for each example, and the last of them.
    let mut stated: Vec<(usize, Option<usize>)> = vec![(0, None); scores.batch];
    for (place, label) in indices.to_i64s()?.chunks_exact(2).zip(values.to_i64s()?) {
        let Some(own) = usize::try_from(place[0]).ok().and_then(|b| labels.get_mut(b)) else {
            let why = format!("labels batch index must be between 0 and {} but saw: {}", scores.batch, place[0]);
            return Err(Failure::invalid(why));
        };
        let Ok(label) = usize::try_from(label) else {
            return Err(Failure::invalid(format!(
                "All labels must be nonnegative integers, batch {} has {label}",
                place[0]
            )));
        };
        let (count, last) = &mut stated[place[0] as usize];
        *count += 1;
        if last.replace(label) == Some(label) && rules.collapses {
            continue;
        }
        let finished = &mut finished[place[0] as usize];
        if label >= blank {
            *finished = true;
            continue;
        }
        if *finished {
            let why = format!(
                "Saw a non-null label (index >= num_classes - 1) following a null label, batch: {} num_classes: {}",
                place[0], scores.classes
            );
            return Err(Failure::invalid(why));
        }
        own.push(label);
    }
    let kept = labels.into_iter().zip(stated).enumerate().map(|(b, (own, (count, _)))| {
        let steps = scores.lengths[b];
        if count == 0 {
            return Err(Failure::invalid(format!("Labels length is zero in batch {b}")));
        }
        if count > steps && steps > 0 && !rules.ignores_longer {
            let why = format!(
                "Not enough time for target transition sequence (required: {count}, available: {steps}){b}You can turn this error \
                 into a warning by using the flag ignore_longer_outputs_than_inputs"
            );
            return Err(Failure::invalid(why));
        }
        Ok(Some(own).filter(|_| steps > 0 && count <= steps))
    });
    kept.collect()
}

/// One example: its labels with a blank around each.
struct Example<'a, T> {
    scores: &'a Scores<'a, T>,
    b: usize,
    path: Vec<usize>,
    rules: Rules,
    norms: Vec<T>,
    /// By step and position in the path: the log likelihoods of the steps before and of the steps after.
    before: Vec<T>,
    after: Vec<T>,
    whole: T,
}

impl<'a, T: Float> Example<'a, T> {
    fn new(scores: &'a Scores<'a, T>, b: usize, labels: &[usize], rules: Rules) -> Result<Self> {
        let blank = scores.classes - 1;
        let mut path = vec![blank];
        path.extend(labels.iter().flat_map(|&label| [label, blank]));
        let steps = scores.lengths[b];
        let cells = steps.saturating_mul(path.len());
        memory::admit(cells.saturating_mul(2 * size_of::<T>()))?;
        let norms = (0..steps).map(|t| norm(scores.at(t, b))).collect();
        let (before, after) = (vec![T::LOWEST; cells], vec![T::LOWEST; cells]);
        Ok(Example { scores, b, path, rules, norms, before, after, whole: T::LOWEST })
    }

    /// The log likelihood of a position of the path at a step.
    #[inline]
    fn likely(&self, t: usize, u: usize) -> T {
        self.scores.at(t, self.b)[self.path[u]] - self.norms[t]
    }

    #[inline]
    fn is_blank(&self, u: usize) -> bool {
        u.is_multiple_of(2)
    }

    /// Whether an alignment may stay at a position for another step.
    #[inline]
    fn stays(&self, u: usize) -> bool {
        self.rules.merges || self.is_blank(u)
    }

    /// Whether an alignment may move from the label at `u` to the label at `next` without a blank between.
    #[inline]
    fn skips(&self, u: usize, next: usize) -> bool {
        !(self.is_blank(u) || self.rules.merges && self.path[u] == self.path[next])
    }

    /// The positions that can be reached at a step and from which the end can be reached.
    #[inline]
    fn reach(&self, t: usize) -> std::ops::Range<usize> {
        let (steps, places) = (self.norms.len(), self.path.len());
        places.saturating_sub(2 * (steps - t))..places.min(2 * (t + 1))
    }

    /// Runs both passes. Returns the log likelihood of the labels.
    fn align(&mut self, pace: &mut Pace) -> T {
        let (steps, places) = (self.norms.len(), self.path.len());
        for u in 0..places.min(2) {
            self.before[u] = self.likely(0, u);
        }
        for t in 1..steps {
            pace.go(60 * places);
            for u in self.reach(t) {
                let from = |u: usize| self.before[(t - 1) * places + u];
                let mut sum = if self.stays(u) { from(u) } else { T::LOWEST };
                if u > 0 {
                    sum = log_sum(sum, from(u - 1));
                }
                if u > 1 && self.skips(u, u - 2) {
                    sum = log_sum(sum, from(u - 2));
                }
                self.before[t * places + u] = sum + self.likely(t, u);
            }
        }
        for u in places.saturating_sub(2)..places {
            self.after[(steps - 1) * places + u] = T::ZERO;
        }
        for t in (0..steps - 1).rev() {
            pace.go(60 * places);
            for u in self.reach(t) {
                let to = |u: usize| self.after[(t + 1) * places + u] + self.likely(t + 1, u);
                let mut sum = if self.stays(u) { to(u) } else { T::LOWEST };
                if u + 1 < places {
                    sum = log_sum(sum, to(u + 1));
                }
                if u + 2 < places && self.skips(u, u + 2) {
                    sum = log_sum(sum, to(u + 2));
                }
                self.after[t * places + u] = sum;
            }
        }
        self.whole = (0..places).fold(T::LOWEST, |sum, u| log_sum(sum, self.before[u] + self.after[u]));
        self.whole
    }

    /// Adds, for each class and step, its likelihood less its likelihood among all alignments of the labels.
    fn add_gradient(&self, gradient: &mut [T], pace: &mut Pace) {
        let (places, classes) = (self.path.len(), self.scores.classes);
        if self.whole == T::LOWEST {
            return;
        }
        let exp = |x: T| x.map(f32::exp, f64::exp);
        for (t, &norm) in self.norms.iter().enumerate() {
            pace.go(20 * (places + classes));
            let mut sums = vec![T::LOWEST; classes];
            for u in 0..places {
                let at = t * places + u;
                sums[self.path[u]] = log_sum(sums[self.path[u]], self.before[at] + self.after[at]);
            }
            let row = self.scores.at(t, self.b);
            let from = (t * self.scores.batch + self.b) * classes;
            for ((into, &x), sum) in gradient[from..from + classes].iter_mut().zip(row).zip(sums) {
                // As in TensorFlow, this term is computed in 32 bits.
                let among = (sum - self.whole).map(f32::exp, |x| f64::from((x as f32).exp()));
                *into = exp(x - norm) - among;
            }
        }
    }
}
