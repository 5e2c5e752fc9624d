//! The sum of the squares of many numbers, of double precision. It is added part by part, in an order that follows from how many
//! there are.

use super::target::{Work, widest};
use crate::exec::lots::in_lots;

/// Sums that are added to side by side: some times what the widest registers hold.
const LANES: usize = 32;
/// Numbers of a part.
const PART: usize = 1 << 17;

/// The sum of the squares.
pub fn squares(xs: &[f32]) -> f64 {
    let mut sums = vec![0f64; xs.len().div_ceil(PART)];
    in_lots(sums.iter_mut().zip(xs.chunks(PART)), |(sum, xs)| widest(Squares { xs, sum }));
    sums.iter().fold(0.0, |all, sum| all + sum)
}

struct Squares<'a> {
    xs: &'a [f32],
    sum: &'a mut f64,
}

impl Work for Squares<'_> {
    #[inline(always)]
    fn run(self) {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let mut lanes = [0f64; LANES];
        let (rows, rest) = self.xs.as_chunks::<LANES>();
        for row in rows {
            for (lane, &x) in lanes.iter_mut().zip(row) {
                *lane += square(x);
            }
        }
        *self.sum = lanes.iter().sum::<f64>() + rest.iter().map(|&x| square(x)).sum::<f64>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_of_whole_numbers_add_up_exactly() {
        for count in [0, 1, 31, 32, 33, 1000, PART - 1, PART + 1, 5 * PART + 77] {
            let xs: Vec<f32> = (0..count).map(|i| (i * 7919 % 2003) as f32 - 1000.0).collect();
            let want: i64 = (0..count).map(|i| ((i * 7919 % 2003) as i64 - 1000).pow(2)).sum();
            assert_eq!(squares(&xs), want as f64, "{count}");
        }
    }

    #[test]
    fn large_squares_stay_numbers_and_nothing_hides_what_is_none() {
        assert_eq!(squares(&[3e38, -3e38]), 2.0 * f64::from(3e38f32) * f64::from(3e38f32));
        assert_eq!(squares(&[1.0, f32::NEG_INFINITY]), f64::INFINITY);
        let mut xs = vec![1f32; 3 * PART];
        xs[PART + 5] = f32::NAN;
        assert!(squares(&xs).is_nan());
    }
}
