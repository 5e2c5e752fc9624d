//! The weight of a leaf and its gain, from the sums of gradients and hessians of its examples.
//!
//! The weight `w` minimises `g·w + w·(H + l2)·w / 2 + l1·|w|`, and the gain is twice the reduction of that. With several
//! logits `H` is a matrix, or its diagonal.

use meshtf_tensor::failure::{Failure, Result};

/// The least difference of two gains that are not equal. (Next to gains of usual size it is lost in the rounding.)
const TOLERANCE: f32 = 1e-15;
/// The largest hessian that counts as none.
const NO_HESSIAN: f32 = 1e-15;

/// Whether a gain is larger than another.
pub fn is_larger(gain: f32, other: f32) -> bool {
    gain - other >= TOLERANCE
}

/// Whether two gains are equal.
pub fn are_equal(gain: f32, other: f32) -> bool {
    (gain - other).abs() < TOLERANCE
}

/// The penalties on the weights of leaves.
#[derive(Clone, Copy)]
pub struct Penalty {
    pub l1: f32,
    pub l2: f32,
}

/// Refuses a number of hessians that are neither a diagonal nor a matrix.
pub fn check_hessians(hessians: usize, logits: usize) -> Result<()> {
    if hessians == logits || hessians == logits.saturating_mul(logits) {
        return Ok(());
    }
    let why = format!("hessian dim should be {logits}, for a diagonal, or {logits} * {logits}, but got: {hessians}");
    Err(Failure::invalid(why))
}

impl Penalty {
    /// The weight and the gain of a leaf with one logit.
    #[inline]
    pub fn of_one(self, gradient: f32, hessian: f32) -> (f32, f32) {
        let mut reduced = gradient;
        if self.l1 > 0.0 {
            if gradient > self.l1 {
                reduced -= self.l1;
            } else if gradient < -self.l1 {
                reduced += self.l1;
            } else {
                return (0.0, 0.0);
            }
        }
        if hessian + self.l2 <= NO_HESSIAN {
            return (0.0, 0.0);
        }
        let weight = -reduced / (hessian + self.l2);
        (weight, -reduced * weight)
    }

    /// Writes the weights of a leaf and returns its gain. The sums are those of one gradient for each weight, followed by those
    /// of the hessians. Several logits have no `l1`.
    pub fn of(self, sums: &[f32], weights: &mut [f32]) -> f32 {
        let (gradients, hessians) = sums.split_at(weights.len());
        if let ([gradient], [hessian], [weight]) = (gradients, hessians, &mut *weights) {
            let (own, gain) = self.of_one(*gradient, *hessian);
            *weight = own;
            return gain;
        }
        let count = gradients.len();
        let is_diagonal = hessians.len() == count;
        if is_diagonal && hessians.iter().all(|hessian| hessian + self.l2 != 0.0) {
            for ((weight, gradient), hessian) in weights.iter_mut().zip(gradients).zip(hessians) {
                *weight = -(1.0 / (hessian + self.l2)) * gradient;
            }
        } else {
            let mut matrix = vec![0.0; count * count];
            for i in 0..count {
                if is_diagonal {
                    matrix[i * count + i] = hessians[i] + self.l2;
                } else {
                    matrix[i * count..][..count].copy_from_slice(&hessians[i * count..][..count]);
                    matrix[i * count + i] += self.l2;
                }
            }
            solve(matrix, gradients, weights);
            weights.iter_mut().for_each(|weight| *weight = -*weight);
        }
        gradients.iter().zip(&*weights).map(|(gradient, weight)| -gradient * weight).sum()
    }
}

/// Solves `matrix · x = b` by Householder reflections with pivoting, column by column; `x` is zero where the matrix, stored by
/// columns, has no full rank.
fn solve(mut matrix: Vec<f32>, b: &[f32], x: &mut [f32]) {
    let count = b.len();
    let mut b = b.to_vec();
    let mut order: Vec<usize> = (0..count).collect();
    let square = |column: &[f32]| column.iter().map(|value| value * value).sum::<f32>();
    let largest = matrix.chunks(count).map(square).fold(0.0, f32::max).sqrt();
    let threshold = (largest * f32::EPSILON).powi(2) / count as f32;
    let mut rank = count;
    for k in 0..count {
        let squares = (k..count).map(|column| (column, square(&matrix[column * count + k..(column + 1) * count])));
        let first = (k, f32::NEG_INFINITY);
        let (pivot, size) = squares.fold(first, |best, next| if next.1 > best.1 { next } else { best });
        if size < threshold * (count - k) as f32 {
            rank = k;
            break;
        }
        if pivot != k {
            (0..count).for_each(|row| matrix.swap(k * count + row, pivot * count + row));
            order.swap(k, pivot);
        }
        let head = matrix[k * count + k];
        let rest = square(&matrix[k * count + k + 1..(k + 1) * count]);
        if rest <= f32::MIN_POSITIVE {
            continue;
        }
        let length = (head * head + rest).sqrt();
        let beta = if head >= 0.0 { -length } else { length };
        let tau = (beta - head) / beta;
        let reflector: Vec<f32> =
            matrix[k * count + k + 1..(k + 1) * count].iter().map(|value| value / (head - beta)).collect();
        let reflect = |column: &mut [f32]| {
            let along = column[0] + column[1..].iter().zip(&reflector).map(|(a, b)| a * b).sum::<f32>();
            column[0] -= tau * along;
            column[1..].iter_mut().zip(&reflector).for_each(|(value, part)| *value -= tau * along * part);
        };
        (k + 1..count).for_each(|column| reflect(&mut matrix[column * count + k..(column + 1) * count]));
        reflect(&mut b[k..]);
        matrix[k * count + k] = beta;
    }
    x.fill(0.0);
    for k in (0..rank).rev() {
        // Nothing to be explained takes nothing, not even where there is no hessian.
        if b[k] != 0.0 {
            let own = b[k] / matrix[k * count + k];
            (0..k).for_each(|row| b[row] -= own * matrix[k * count + row]);
            x[order[k]] = own;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_logit_has_the_weight_of_its_formula() {
        let of = |l1, l2| Penalty { l1, l2 }.of_one(-3.0, 2.0);
        assert_eq!(of(0.0, 0.0), (1.5, 4.5));
        assert_eq!(of(1.0, 0.0), (1.0, 2.0));
        assert_eq!(of(0.0, 1.0), (1.0, 3.0));
        assert_eq!(of(3.0, 0.0), (0.0, 0.0));
        assert_eq!(Penalty { l1: 0.0, l2: 0.0 }.of_one(1.0, 0.0), (0.0, 0.0));
    }

    #[test]
    fn a_matrix_of_hessians_is_inverted() {
        // The inverse of [[2, 1], [1, 3]] is [[3, -1], [-1, 2]] / 5.
        let mut weights = [0.0; 2];
        let gain = Penalty { l1: 0.0, l2: 0.0 }.of(&[1.0, 2.0, 2.0, 1.0, 1.0, 3.0], &mut weights);
        assert!((weights[0] + 0.2).abs() < 1e-6 && (weights[1] + 0.6).abs() < 1e-6, "{weights:?}");
        assert!((gain - 1.4).abs() < 1e-6, "{gain}");
    }

    #[test]
    fn sums_of_no_example_have_no_weight() {
        let mut weights = [1.0; 2];
        assert_eq!(Penalty { l1: 0.0, l2: 0.0 }.of(&[0.0; 4], &mut weights), 0.0);
        assert_eq!(weights, [0.0, 0.0]);
    }

    #[test]
    fn a_direction_without_hessian_has_no_weight() {
        let mut weights = [0.0; 2];
        let gain = Penalty { l1: 0.0, l2: 0.0 }.of(&[1.0, 5.0, 2.0, 0.0], &mut weights);
        assert_eq!((weights, gain), ([-0.5, 0.0], 0.5));
    }
}
