//! Sketches of weighted distributions, from which quantiles are read: each is some levels of summaries, of which a level stands
//! for twice as many elements as the one below it.
//!
//! A summary is a sorted list of values with bounds of their ranks. Two summaries are merged, and one that is too long is
//! compressed, such that the ranks stay within the stated error of the total weight.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape};

use super::super::real::order;

/// A value of a summary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Entry {
    /// The value.
    pub value: f32,
    /// The weight of its elements.
    pub weight: f32,
    /// The least weight of all elements with smaller values.
    pub least_rank: f32,
    /// The greatest weight of all elements with its value or smaller ones.
    pub greatest_rank: f32,
}

impl Entry {
    fn greatest_before(&self) -> f32 {
        self.greatest_rank - self.weight
    }

    fn least_after(&self) -> f32 {
        self.least_rank + self.weight
    }
}

fn total(entries: &[Entry]) -> f32 {
    entries.last().map_or(0.0, |entry| entry.greatest_rank)
}

/// Both summaries as one.
fn merged(a: Vec<Entry>, b: &[Entry]) -> Vec<Entry> {
    if b.is_empty() {
        return a;
    }
    if a.is_empty() {
        return b.to_vec();
    }
    let mut all = Vec::with_capacity(a.len() + b.len());
    // The rank that the elements of the other summary before the next value have at least.
    let (mut after_a, mut after_b) = (0.0, 0.0);
    let with = |own: &Entry, least: f32, greatest: f32| Entry {
        least_rank: own.least_rank + least,
        greatest_rank: own.greatest_rank + greatest,
        ..*own
    };
    let (mut rest_a, mut rest_b) = (&a[..], b);
    let mut pace = Pace::new();
    while let ([x, next_a @ ..], [y, next_b @ ..]) = (rest_a, rest_b) {
        pace.go(4);
        if x.value < y.value {
            all.push(with(x, after_b, y.greatest_before()));
            (after_a, rest_a) = (x.least_after(), next_a);
        } else if y.value < x.value {
            all.push(with(y, after_a, x.greatest_before()));
            (after_b, rest_b) = (y.least_after(), next_b);
        } else {
            all.push(Entry { weight: x.weight + y.weight, ..with(x, y.least_rank, y.greatest_rank) });
            (after_a, after_b) = (x.least_after(), y.least_after());
            (rest_a, rest_b) = (next_a, next_b);
        }
    }
    all.extend(rest_a.iter().map(|x| with(x, after_b, total(b))));
    all.extend(rest_b.iter().map(|y| with(y, after_a, total(&a))));
    all
}

/// Shortens a summary to about `size` entries, with an additional error of `1 / size` or `error` at most. The first and the
/// last entry stay.
fn compress(entries: &mut Vec<Entry>, size: i64, error: f64) {
    let (size, count) = (size.max(2), entries.len());
    if count as i64 <= size {
        return;
    }
    let error = f64::from(total(entries)) * (1.0 / size as f64).max(error);
    let mut budget = 0i64;
    let (mut read, mut written) = (0, 1);
    while read + 1 < count {
        let mut next = read + 1;
        let begin = entries[read].least_after();
        while next < count && budget < count as i64 && f64::from(entries[next].greatest_before() - begin) <= error {
            budget += size;
            next += 1;
        }
        read = (next - 1).max(read + 1);
        entries[written] = entries[read];
        written += 1;
        budget -= count as i64;
    }
    entries.truncate(written);
}

/// The error of the ranks in a summary, as a part of the total weight.
fn error(entries: &[Entry]) -> f64 {
    let gap = |pair: &[Entry]| {
        let own = pair[1].greatest_rank - pair[1].least_rank - pair[1].weight;
        own.max(pair[1].greatest_before() - pair[0].least_after())
    };
    if entries.is_empty() {
        return 0.0;
    }
    let largest = entries.windows(2).map(gap).fold(0.0, f32::max);
    f64::from(largest) / f64::from(total(entries))
}

/// A sketch that takes elements and summaries of other sketches.
#[derive(Clone, Debug)]
pub struct Sketch {
    error: f64,
    block: i64,
    levels: Vec<Vec<Entry>>,
}

/// Refuses an error that no sketch can have.
///
/// # Errors
/// InvalidArgument.
pub fn check_epsilon(epsilon: f32) -> Result<()> {
    if epsilon > 0.0 && epsilon < 1.0 {
        return Ok(());
    }
    let zero = if epsilon == 0.0 { "An epsilon value of zero is not allowed. " } else { "" };
    Err(Failure::invalid(format!("{zero}epsilon must be greater than 0 and less than 1, got {epsilon}")))
}

impl Sketch {
    /// An empty sketch of at most `elements` elements.
    ///
    /// # Errors
    /// InvalidArgument if there can be no such sketch.
    pub fn new(epsilon: f32, elements: i64) -> Result<Sketch> {
        check_epsilon(epsilon)?;
        if elements <= 0 {
            return Err(Failure::invalid(format!("max_elements must be positive, got {elements}")));
        }
        let error = f64::from(epsilon);
        let mut block = 2i64;
        if error <= f64::EPSILON {
            block = elements.max(2);
        } else {
            // The level below which all elements fit, and the size of its blocks, grow together.
            let mut level = 1u32;
            while i128::from(block) << level < i128::from(elements) {
                block = (f64::from(level) / error).ceil() as i64 + 1;
                level += 1;
            }
        }
        Ok(Sketch { error, block: block.max(2), levels: Vec::new() })
    }

    /// The sketch with these levels.
    #[must_use]
    pub fn with_levels(self, levels: Vec<Vec<Entry>>) -> Sketch {
        Sketch { levels, ..self }
    }

    /// The summaries of the levels.
    pub fn levels(&self) -> &[Vec<Entry>] {
        &self.levels
    }

    /// The number of entries in all levels.
    pub fn entries(&self) -> usize {
        self.levels.iter().map(Vec::len).sum()
    }

    /// Adds elements, each with a weight. Those without a positive weight are left out.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory for them.
    pub fn add(&mut self, elements: impl Iterator<Item = (f32, f32)>, count: usize) -> Result<()> {
        let most = usize::try_from(self.block.saturating_mul(2)).unwrap_or(usize::MAX).min(count.saturating_add(1));
        memory::admit(most.saturating_mul(8 + 3 * size_of::<Entry>()))?;
        let mut buffer = Vec::with_capacity(most);
        let mut pace = Pace::new();
        for (value, weight) in elements {
            pace.go(16);
            if weight > 0.0 || weight.is_nan() {
                buffer.push((value, weight));
            }
            if buffer.len() >= most {
                self.propagate(summary(&mut buffer));
            }
        }
        self.propagate(summary(&mut buffer));
        Ok(())
    }

    /// Adds the summary of another sketch.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory for it.
    pub fn push(&mut self, summary: Vec<Entry>) -> Result<()> {
        let entries = self.entries().saturating_add(summary.len());
        memory::admit(entries.saturating_mul(2 * size_of::<Entry>()))?;
        self.propagate(summary);
        Ok(())
    }

    fn propagate(&mut self, mut summary: Vec<Entry>) {
        compress(&mut summary, self.block, self.error);
        if summary.is_empty() {
            return;
        }
        for level in 0.. {
            if self.levels.len() <= level {
                self.levels.push(Vec::new());
            }
            let own = std::mem::take(&mut self.levels[level]);
            let was_empty = own.is_empty();
            summary = merged(summary, &own);
            if was_empty || summary.len() as i64 <= self.block + 1 {
                self.levels[level] = summary;
                return;
            }
            compress(&mut summary, self.block, self.error);
        }
    }

    /// The summary of all elements.
    pub fn summary(&self) -> Vec<Entry> {
        self.levels.iter().fold(Vec::new(), |all, level| merged(all, level))
    }
}

/// The summary of some elements, which are then gone.
fn summary(elements: &mut Vec<(f32, f32)>) -> Vec<Entry> {
    elements.sort_by(|a, b| order(&a.0, &b.0));
    let mut entries: Vec<Entry> = Vec::new();
    for (value, weight) in elements.drain(..) {
        match entries.last_mut() {
            Some(last) if last.value == value => last.weight += weight,
            _ => entries.push(Entry { value, weight, ..Entry::default() }),
        }
    }
    let mut before = 0.0;
    for entry in &mut entries {
        entry.least_rank = before;
        before += entry.weight;
        entry.greatest_rank = before;
    }
    entries
}

/// Values that divide a distribution into about `count` buckets, ascending and distinct.
pub(super) fn boundaries(summary: &[Entry], count: i64) -> Vec<f32> {
    let mut shortened = summary.to_vec();
    let error = (error(summary) + 1.0 / count as f64) as f32;
    compress(&mut shortened, count, f64::from(error));
    let mut boundaries: Vec<f32> = shortened.iter().map(|entry| entry.value).collect();
    boundaries.dedup();
    boundaries
}

/// The quantiles of a distribution, with its least and greatest value: one more than `count`, or than 2.
pub(super) fn quantiles(summary: &[Entry], count: i64) -> Vec<f32> {
    let Some(last) = summary.last() else { return Vec::new() };
    let count = count.max(2);
    let mut at = 0;
    let mut quantiles = Vec::with_capacity(count as usize + 1);
    let mut pace = Pace::new();
    for rank in 0..=count {
        pace.go(4);
        let wanted = 2.0 * (rank as f32 * last.greatest_rank / count as f32);
        let mut next = at + 1;
        while next < summary.len() && wanted >= summary[next].least_rank + summary[next].greatest_rank {
            next += 1;
        }
        at = next - 1;
        let is_first = next == summary.len() || wanted < summary[at].least_after() + summary[next].greatest_before();
        quantiles.push(summary[if is_first { at } else { next }].value);
    }
    quantiles
}

impl Sketch {
    /// Values that divide the elements into about `buckets` buckets: distinct ones, or if `are_quantiles` exactly that many.
    ///
    /// # Errors
    /// InvalidArgument if there are no such quantiles; ResourceExhausted if there is no memory for them.
    pub fn divide(&self, buckets: i64, are_quantiles: bool) -> Result<Vec<f32>> {
        memory::admit(self.entries().saturating_mul(3 * size_of::<Entry>()))?;
        let summary = self.summary();
        if !are_quantiles {
            return Ok(if summary.is_empty() { Vec::new() } else { boundaries(&summary, buckets) });
        }
        if buckets < 3 || summary.is_empty() {
            let why = format!("{buckets} quantiles of {} values do not exist: there are at least 3", summary.len());
            return Err(Failure::invalid(why));
        }
        Shape::from([buckets as usize]).checked_elements(DType::F32)?;
        Ok(quantiles(&summary, buckets - 1))
    }
}
