//! Convolutions on a CPU of images as TensorFlow stores them, channels last: the patches of the image under the window
//! are the rows of a matrix, the filter is the other, and their product is the answer. Nothing is reordered, as it
//! would have to be for burn, which is channels-first.

use rayon::prelude::*;

use super::matmul::{MOST_AT_ONCE, multiply};
use crate::exec::turn;

/// Floats of the patches gathered at once: half a megabyte, which stays in a core's cache until it is multiplied.
const GATHERED: usize = 128 << 10;
/// Fewest patches gathered at once, since the filter is packed again for each lot.
const FEWEST: usize = 64;
/// Lots per thread, so that none waits long for the others.
const LOTS: usize = 4;

/// An ungrouped convolution. All sizes but `before` are at least 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convolution {
    pub batch: usize,
    /// Height and width of the image, of the window, and of the answer.
    pub image: [usize; 2],
    pub window: [usize; 2],
    pub answer: [usize; 2],
    /// Channels of the image and of the answer.
    pub channels: usize,
    pub made: usize,
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Padding above and on the left.
    pub before: [usize; 2],
}

impl Convolution {
    /// The answer, as NHWC, for an image in NHWC and a filter in HWIO of these sizes.
    pub fn compute(&self, image: &[f32], filter: &[f32]) -> Vec<f32> {
        let patches = self.batch * self.answer[0] * self.answer[1];
        let depth = self.window[0] * self.window[1] * self.channels;
        let fair = patches.div_ceil(rayon::current_num_threads() * LOTS);
        let lot = (GATHERED / depth).min(fair).max(FEWEST);
        let mut answer = vec![0.0; patches * self.made];
        // The lots between two checks; other users of the thread pool get their turn then.
        let lots_at_once = (MOST_AT_ONCE / (lot * depth * self.made)).max(1);
        for (first, answer) in answer.chunks_mut(lots_at_once * lot * self.made).enumerate() {
            turn::look();
            let lots = answer.par_chunks_mut(lot * self.made).enumerate();
            lots.for_each_init(Vec::new, |gathered, (i, answer)| {
                let count = answer.len() / self.made;
                let from = (first * lots_at_once + i) * lot;
                gathered.clear();
                for patch in from..from + count {
                    self.gather(image, patch, gathered);
                }
                multiply([count, depth, self.made], (gathered, false), (filter, false), answer);
            });
        }
        answer
    }

    /// Appends the elements under the window, row by row, with zeros outside the image.
    fn gather(&self, image: &[f32], patch: usize, to: &mut Vec<f32>) {
        let [height, width] = self.image;
        let (column, row) = (patch % self.answer[1], patch / self.answer[1]);
        let (row, number) = (row % self.answer[0], row / self.answer[0]);
        let zeros = |to: &mut Vec<f32>, pixels: usize| to.resize(to.len() + pixels * self.channels, 0.0);
        for i in 0..self.window[0] {
            let y = (row * self.stride[0] + i * self.dilation[0]).checked_sub(self.before[0]).filter(|&y| y < height);
            let Some(y) = y else {
                zeros(to, self.window[1]);
                continue;
            };
            let line = &image[(number * height + y) * width * self.channels..][..width * self.channels];
            let left = column * self.stride[1];
            if self.dilation[1] == 1 {
                // From `left - before` on, clipped to the image.
                let outside = self.before[1].saturating_sub(left).min(self.window[1]);
                let start = (left + outside).saturating_sub(self.before[1]).min(width);
                let inside = (self.window[1] - outside).min(width - start);
                zeros(to, outside);
                to.extend_from_slice(&line[start * self.channels..(start + inside) * self.channels]);
                zeros(to, self.window[1] - outside - inside);
                continue;
            }
            for j in 0..self.window[1] {
                match (left + j * self.dilation[1]).checked_sub(self.before[1]).filter(|&x| x < width) {
                    Some(x) => to.extend_from_slice(&line[x * self.channels..(x + 1) * self.channels]),
                    None => zeros(to, 1),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition: each element of the answer is a sum over window and channels.
    fn by_definition(c: &Convolution, image: &[f32], filter: &[f32]) -> Vec<f32> {
        let mut answer = Vec::new();
        for (n, y, x, to) in (0..c.batch)
            .flat_map(|n| (0..c.answer[0]).map(move |y| (n, y)))
            .flat_map(|(n, y)| (0..c.answer[1]).map(move |x| (n, y, x)))
            .flat_map(|(n, y, x)| (0..c.made).map(move |to| (n, y, x, to)))
        {
            let mut sum = 0f64;
            for (i, j) in (0..c.window[0]).flat_map(|i| (0..c.window[1]).map(move |j| (i, j))) {
                let at = |place: usize, step: usize, axis: usize| {
                    (place * c.stride[axis] + step * c.dilation[axis]) as isize - c.before[axis] as isize
                };
                let (v, h) = (at(y, i, 0), at(x, j, 1));
                if v < 0 || h < 0 || v >= c.image[0] as isize || h >= c.image[1] as isize {
                    continue;
                }
                for from in 0..c.channels {
                    let pixel = ((n * c.image[0] + v as usize) * c.image[1] + h as usize) * c.channels + from;
                    let weight = ((i * c.window[1] + j) * c.channels + from) * c.made + to;
                    sum += f64::from(image[pixel]) * f64::from(filter[weight]);
                }
            }
            answer.push(sum as f32);
        }
        answer
    }

    #[test]
    fn a_convolution_is_the_sum_over_each_window() {
        let check = |image: [usize; 2], window, stride, dilation, before, answer| {
            for (batch, channels, made) in [(1, 1, 1), (3, 2, 5), (2, 70, 3)] {
                let c = Convolution { batch, image, window, answer, channels, made, stride, dilation, before };
                let whole = |count: usize| (0..count).map(|i| (i * 7 % 11) as f32 - 5.0).collect::<Vec<_>>();
                let pixels = whole(batch * image[0] * image[1] * channels);
                let filter = whole(window[0] * window[1] * channels * made);
                // Integers small enough that no order of summation rounds.
                assert_eq!(c.compute(&pixels, &filter), by_definition(&c, &pixels, &filter), "{c:?}");
            }
        };
        check([5, 6], [3, 3], [1, 1], [1, 1], [1, 1], [5, 6]);
        check([5, 6], [3, 2], [2, 1], [1, 1], [0, 0], [2, 5]);
        check([4, 9], [1, 1], [1, 2], [1, 1], [0, 0], [4, 5]);
        check([9, 9], [3, 3], [1, 1], [2, 3], [2, 3], [9, 9]);
        check([2, 2], [5, 5], [1, 1], [1, 1], [4, 4], [6, 6]);
        check([33, 40], [3, 3], [1, 1], [1, 1], [0, 2], [31, 42]);
    }
}
