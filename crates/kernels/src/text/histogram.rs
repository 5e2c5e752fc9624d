//! TensorFlow's histograms: buckets whose limits grow by 10 %, from 1e-12 to 1e20 on both sides of 0.

use std::sync::LazyLock;

use prost::Message;

/// `tensorflow.HistogramProto`. Bucket `i` counts the values from limit `i - 1` up to, but not including, limit `i`.
#[derive(Clone, PartialEq, Message)]
pub struct Histogram {
    #[prost(double, tag = "1")]
    min: f64,
    #[prost(double, tag = "2")]
    max: f64,
    #[prost(double, tag = "3")]
    num: f64,
    #[prost(double, tag = "4")]
    sum: f64,
    #[prost(double, tag = "5")]
    sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    bucket: Vec<f64>,
}

static LIMITS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let steps = || std::iter::successors(Some(1.0e-12), |limit| Some(limit * 1.1)).take_while(|&limit| limit < 1.0e20);
    let above: Vec<f64> = steps().chain([f64::MAX]).collect();
    above.iter().rev().map(|limit| -limit).chain([0.0]).chain(above.iter().copied()).collect()
});

impl Histogram {
    /// The histogram of finite values.
    pub fn of(values: &[f64]) -> Histogram {
        let mut open = OpenHistogram::default();
        values.iter().for_each(|&value| open.add(value));
        open.histogram()
    }
}

/// A histogram to which values can be added.
pub struct OpenHistogram {
    /// The histogram without its buckets.
    whole: Histogram,
    counts: Vec<f64>,
}

impl Default for OpenHistogram {
    #[inline]
    fn default() -> OpenHistogram {
        let whole = Histogram { min: f64::MAX, max: -f64::MAX, ..Histogram::default() };
        OpenHistogram { whole, counts: vec![0.0; LIMITS.len()] }
    }
}

impl OpenHistogram {
    /// Counts a finite value.
    pub fn add(&mut self, value: f64) {
        let limits = &*LIMITS;
        let bucket = limits.partition_point(|&limit| limit <= value).min(limits.len() - 1);
        self.counts[bucket] += 1.0;
        let whole = &mut self.whole;
        whole.min = whole.min.min(value);
        whole.max = whole.max.max(value);
        whole.num += 1.0;
        whole.sum += value;
        whole.sum_squares += value * value;
    }

    /// The histogram so far. Consecutive empty buckets are merged into one with the last one's limit.
    pub fn histogram(&self) -> Histogram {
        let (mut histogram, mut was_empty) = (self.whole.clone(), false);
        for (&limit, &count) in LIMITS.iter().zip(&self.counts) {
            let is_empty = count == 0.0;
            if is_empty && was_empty {
                histogram.bucket_limit.pop();
                histogram.bucket.pop();
            }
            histogram.bucket_limit.push(limit);
            histogram.bucket.push(count);
            was_empty = is_empty;
        }
        histogram
    }

    /// The histogram as numbers, for [`OpenHistogram::of_numbers`].
    pub fn numbers(&self) -> Vec<f64> {
        let Histogram { min, max, num, sum, sum_squares, .. } = self.whole;
        [min, max, num, sum, sum_squares].into_iter().chain(self.counts.iter().copied()).collect()
    }

    /// The histogram of some numbers; `None` if there are not as many as a histogram has.
    pub fn of_numbers(numbers: &[f64]) -> Option<OpenHistogram> {
        let &[min, max, num, sum, sum_squares, ref counts @ ..] = numbers else { return None };
        let whole = Histogram { min, max, num, sum, sum_squares, ..Histogram::default() };
        (counts.len() == LIMITS.len()).then(|| OpenHistogram { whole, counts: counts.to_vec() })
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        size_of_val(&self.counts[..])
    }
}
