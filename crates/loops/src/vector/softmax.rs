//! Softmax of rows, its logarithm, and the loss computed with it: each row is shifted by its largest number first, so that no
//! exponential overflows.

use super::cut::{Cut, on_copy};
use super::functions::{exp, ln};
use super::place::copied;
use super::target::{FusedWork, MulAdd, widest_fused};
use crate::chunks::{chunk, in_chunks};

/// Partial results in parallel lanes, so that a sum can be vectorised; the order of a sum follows from this alone.
const LANES: usize = 16;

/// Exponentials that are computed before they are added: a multiple of [`LANES`], and few enough for the nearest cache.
const BLOCK: usize = 16 * LANES;

/// The work of an element, counted as additions: there are a few passes over the rows.
const WORK: usize = 8;

/// The number of rows of `classes` in a chunk.
#[inline]
fn rows_of_lot(classes: usize) -> usize {
    chunk(WORK * classes).max(1)
}

/// Overwrites each row of `classes` numbers with its softmax.
#[inline]
pub fn softmax(all: &mut [f32], classes: usize) {
    in_chunks(all.chunks_mut(rows_of_lot(classes) * classes), |rows| widest_fused(Softmax { rows, classes }));
}

/// Overwrites each row of `classes` numbers with the logarithm of its softmax.
#[inline]
pub fn log_softmax(all: &mut [f32], classes: usize) {
    in_chunks(all.chunks_mut(rows_of_lot(classes) * classes), |rows| widest_fused(LogSoftmax { rows, classes }));
}

/// The softmax of each row of `classes` numbers.
pub fn softmax_of(all: &[f32], classes: usize) -> Vec<f32> {
    on_copy(all, Cut { period: classes, work: WORK }, |_, rows| widest_fused(Softmax { rows, classes }))
}

/// The logarithm of the softmax of each row of `classes` numbers.
pub fn log_softmax_of(all: &[f32], classes: usize) -> Vec<f32> {
    on_copy(all, Cut { period: classes, work: WORK }, |_, rows| widest_fused(LogSoftmax { rows, classes }))
}

/// Overwrites each row of `classes` numbers with the gradient of its cross entropy, and writes the cross entropy to `losses`.
/// Each row has one label and one loss.
///
/// # Panics
/// If a label is not one of the classes.
pub fn sparse_cross_entropy(all: &mut [f32], classes: usize, labels: &[i64], losses: &mut [f32]) {
    let rows = rows_of_lot(classes);
    let chunks = all.chunks_mut(rows * classes).zip(labels.chunks(rows)).zip(losses.chunks_mut(rows));
    in_chunks(chunks, |((rows, labels), losses)| widest_fused(SparseLoss { rows, classes, labels, losses }));
}

/// Overwrites each row of `classes` numbers with the gradient of its cross entropy with the row of labels, and writes the
/// cross entropy to `losses`.
pub fn cross_entropy(all: &mut [f32], classes: usize, labels: &[f32], losses: &mut [f32]) {
    let rows = rows_of_lot(classes);
    let chunks = all.chunks_mut(rows * classes).zip(labels.chunks(rows * classes)).zip(losses.chunks_mut(rows));
    in_chunks(chunks, |((rows, labels), losses)| widest_fused(Loss { rows, classes, labels, losses }));
}

/// As [`cross_entropy`], into a new vector: the gradient.
pub fn cross_entropy_of(all: &[f32], classes: usize, labels: &[f32], losses: &mut [f32]) -> Vec<f32> {
    let mut gradient = copied(all);
    cross_entropy(&mut gradient, classes, labels, losses);
    gradient
}

struct Softmax<'a> {
    rows: &'a mut [f32],
    classes: usize,
}

impl FusedWork for Softmax<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        for row in self.rows.chunks_exact_mut(self.classes) {
            let largest = largest(row);
            let total = exp_of_shifted::<M>(row, largest);
            scale(row, 1.0 / total);
        }
    }
}

struct LogSoftmax<'a> {
    rows: &'a mut [f32],
    classes: usize,
}

impl FusedWork for LogSoftmax<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        for row in self.rows.chunks_exact_mut(self.classes) {
            let largest = largest(row);
            row.iter_mut().for_each(|x| *x -= largest);
            let log_total = ln::<M>(sum_of_exp::<M>(row));
            row.iter_mut().for_each(|x| *x -= log_total);
        }
    }
}

struct SparseLoss<'a> {
    rows: &'a mut [f32],
    classes: usize,
    labels: &'a [i64],
    losses: &'a mut [f32],
}

impl FusedWork for SparseLoss<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let rows = self.rows.chunks_exact_mut(self.classes).zip(self.labels).zip(self.losses);
        for ((row, &label), loss) in rows {
            let (label, largest) = (label as usize, largest(row));
            let own = row[label] - largest;
            let total = exp_of_shifted::<M>(row, largest);
            *loss = ln::<M>(total) - own;
            scale(row, 1.0 / total);
            row[label] -= 1.0;
        }
    }
}

struct Loss<'a> {
    rows: &'a mut [f32],
    classes: usize,
    labels: &'a [f32],
    losses: &'a mut [f32],
}

impl FusedWork for Loss<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let rows =
            self.rows.chunks_exact_mut(self.classes).zip(self.labels.chunks_exact(self.classes)).zip(self.losses);
        for ((row, labels), loss) in rows {
            let largest = largest(row);
            row.iter_mut().for_each(|x| *x -= largest);
            let own = sum_of_pairs(row, labels);
            let total = exp_of_shifted::<M>(row, 0.0);
            *loss = ln::<M>(total) * sum_of(labels) - own;
            let part = 1.0 / total;
            row.iter_mut().zip(labels).for_each(|(x, label)| *x = *x * part - label);
        }
    }
}

/// The sum of the products with labels. A class with label 0 adds nothing, even if its logit is minus infinity.
#[inline(always)]
fn sum_of_pairs(row: &[f32], labels: &[f32]) -> f32 {
    let product = |x: f32, label: f32| if label == 0.0 { 0.0 } else { label * x };
    let mut lanes = [0f32; LANES];
    let ((parts, rest), (label_parts, label_rest)) = (row.as_chunks::<LANES>(), labels.as_chunks::<LANES>());
    for (part, labels) in parts.iter().zip(label_parts) {
        for ((lane, &x), &label) in lanes.iter_mut().zip(part).zip(labels) {
            *lane += product(x, label);
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().zip(label_rest).map(|(&x, &label)| product(x, label)).sum::<f32>()
}

/// The largest number that is not NaN; minus infinity if there is none.
#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let larger = |largest: f32, x: f32| if x > largest { x } else { largest };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (parts, rest) = row.as_chunks::<LANES>();
    for part in parts {
        for (lane, &x) in lanes.iter_mut().zip(part) {
            *lane = larger(*lane, x);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |largest, &x| larger(largest, x))
}

/// Overwrites each number with the exponential of its difference from `largest`; returns the sum of those.
#[inline(always)]
fn exp_of_shifted<M: MulAdd>(row: &mut [f32], largest: f32) -> f32 {
    // In a pass of its own: together with the sum in lanes, the compiler unrolls the lanes and computes each by itself.
    row.iter_mut().for_each(|x| *x = exp::<M>(*x - largest));
    sum_of(row)
}

/// Multiplies each number by `factor`, one over the sum of its row, as TensorFlow's softmax does: that takes a tenth of the
/// time of a division.
#[inline(always)]
fn scale(row: &mut [f32], factor: f32) {
    row.iter_mut().for_each(|x| *x *= factor);
}

#[inline(always)]
fn sum_of(row: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (parts, rest) = row.as_chunks::<LANES>();
    add_to(&mut lanes, parts);
    lanes.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

#[inline(always)]
fn add_to(lanes: &mut [f32; LANES], parts: &[[f32; LANES]]) {
    for part in parts {
        for (lane, &x) in lanes.iter_mut().zip(part) {
            *lane += x;
        }
    }
}

/// The sum of the exponentials, in the order of [`sum_of`]. They are computed a block at a time, in a pass of their own.
#[inline(always)]
fn sum_of_exp<M: MulAdd>(row: &[f32]) -> f32 {
    let (mut block, mut lanes, mut rest_sum) = ([0f32; BLOCK], [0f32; LANES], 0.0);
    for numbers in row.chunks(BLOCK) {
        let block = &mut block[..numbers.len()];
        block.iter_mut().zip(numbers).for_each(|(e, &x)| *e = exp::<M>(x));
        let (parts, rest) = block.as_chunks::<LANES>();
        add_to(&mut lanes, parts);
        rest_sum += rest.iter().sum::<f32>();
    }
    lanes.iter().sum::<f32>() + rest_sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exponentials and their sum in float64.
    fn exactly(row: &[f32]) -> (Vec<f64>, f64) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let all: Vec<f64> = row.iter().map(|&x| (f64::from(x) - f64::from(largest)).exp()).collect();
        let total = all.iter().sum();
        (all, total)
    }

    #[test]
    fn rows_are_those_of_float64_within_a_few_units() {
        for (rows, classes) in [(1, 1), (3, 2), (5, 16), (7, 17), (4, 1000), (2000, 100), (2, 40_001)] {
            let logits: Vec<f32> = (0..rows * classes).map(|i| (i * 7919 % 1013) as f32 / 40.0 - 12.0).collect();
            let labels: Vec<i64> = (0..rows).map(|i| (i * 31 % classes) as i64).collect();
            let (mut soft, mut log, mut gradient) = (logits.clone(), logits.clone(), logits.clone());
            let mut losses = vec![0f32; rows];
            softmax(&mut soft, classes);
            log_softmax(&mut log, classes);
            assert!(
                softmax_of(&logits, classes) == soft && log_softmax_of(&logits, classes) == log,
                "{rows}x{classes}"
            );
            sparse_cross_entropy(&mut gradient, classes, &labels, &mut losses);
            let mut one_hot = vec![0f32; logits.len()];
            labels.iter().enumerate().for_each(|(i, &label)| one_hot[i * classes + label as usize] = 1.0);
            let (mut dense, mut dense_losses) = (logits.clone(), vec![0f32; rows]);
            cross_entropy(&mut dense, classes, &one_hot, &mut dense_losses);
            let mut same_losses = vec![0f32; rows];
            let made = cross_entropy_of(&logits, classes, &one_hot, &mut same_losses);
            assert!(made == dense && same_losses == dense_losses, "{rows}x{classes}");
            // Sixteen partial sums: their errors grow with their length.
            let bound = 4e-7 * (1.0 + classes as f64 / 4096.0);
            for (i, row) in logits.chunks(classes).enumerate() {
                let (all, total) = exactly(row);
                let near = |got: f32, want: f64| (f64::from(got) - want).abs() <= bound * want.abs().max(1.0);
                for (j, own) in all.iter().enumerate() {
                    let (at, share) = (i * classes + j, own / total);
                    let is_label = if labels[i] == j as i64 { 1.0 } else { 0.0 };
                    assert!((f64::from(soft[at]) - share).abs() <= 4.0 * bound * share, "{rows}x{classes} {at}");
                    assert!(near(gradient[at], share - is_label), "{rows}x{classes} {at}");
                    assert!(near(dense[at], share - is_label), "{rows}x{classes} {at}");
                    assert!(near(log[at], share.ln()), "{rows}x{classes} {at}: {} {}", log[at], share.ln());
                }
                let loss = -(all[labels[i] as usize] / total).ln();
                assert!(near(losses[i], loss) && near(dense_losses[i], loss), "{rows}x{classes} {i}");
            }
        }
    }

    #[test]
    fn labels_are_shares_and_those_of_zero_count_for_nothing() {
        // By hand: the softmax of equal numbers is a half each, and its logarithm -ln 2.
        let (mut row, mut losses) = ([5.0, 5.0, f32::NEG_INFINITY], [0f32; 1]);
        cross_entropy(&mut row, 3, &[0.25, 0.5, 0.0], &mut losses);
        assert_eq!(row, [0.25, 0.0, 0.0]);
        assert!((losses[0] - 0.75 * 2f32.ln()).abs() < 1e-6, "{losses:?}");
        let (mut row, mut losses) = ([1.0, f32::NEG_INFINITY], [0f32; 1]);
        cross_entropy(&mut row, 2, &[0.0, 1.0], &mut losses);
        assert_eq!((row, losses), ([1.0, -1.0], [f32::INFINITY]));
    }

    #[test]
    fn rows_with_no_numbers_and_endless_ones() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let check = |row: [f32; 2], want: [f32; 2]| {
            let mut got = row;
            softmax(&mut got, 2);
            assert!(
                got.iter().zip(want).all(|(got, want)| *got == want || got.is_nan() && want.is_nan()),
                "{row:?}: {got:?}"
            );
        };
        check([0.0, -inf], [1.0, 0.0]);
        check([nan, 1.0], [nan, nan]);
        check([inf, 1.0], [nan, nan]);
        check([-inf, -inf], [nan, nan]);
        check([3e38, -3e38], [1.0, 0.0]);
    }
}
