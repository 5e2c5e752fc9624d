//! Classes drawn in proportion to weights: fixed ones, or the number of times that each was seen.

use meshtf_graph::Attrs;
use meshtf_loops::turn::Pace;
use meshtf_random::{Words, uniform_f32};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;

use super::simple::below_u32;

/// The weights that a node uses, and their distortion.
#[derive(Clone, Copy)]
pub struct Unigrams {
    range: usize,
    distortion: f32,
    reserved: usize,
    shards: usize,
    shard: usize,
}

impl Unigrams {
    /// # Errors
    /// InvalidArgument if an attribute is missing.
    pub fn of(attrs: &Attrs) -> Result<Unigrams> {
        let number = |name: &str| Ok::<_, Failure>(usize::try_from(attrs.int(name)?).unwrap_or(0));
        Ok(Unigrams {
            range: number("range_max")?,
            distortion: attrs.float("distortion")?,
            reserved: number("num_reserved_ids")?,
            shards: number("num_shards")?.max(1),
            shard: number("shard")?,
        })
    }

    /// Whether the weight with this index after the reserved ones belongs to this shard.
    #[inline]
    pub fn takes(&self, place: usize) -> bool {
        (self.before() + place) % self.shards == self.shard
    }

    /// The number of reserved classes of this shard, which is also the number of its next class.
    #[inline]
    fn before(&self) -> usize {
        let own = |count: usize| {
            if self.shard < self.shards { (count + self.shards - 1 - self.shard) / self.shards } else { 0 }
        };
        own(self.reserved)
    }

    /// The sampler for these weights, which are those of this shard.
    ///
    /// # Errors
    /// InvalidArgument if the number of weights is not that of classes; ResourceExhausted if there is not enough memory
    /// for them.
    pub fn weighted(&self, weights: impl IntoIterator<Item = f32>) -> Result<Weighted> {
        let count = self.before();
        memory::admit(count.saturating_mul(size_of::<f32>()))?;
        let mut all = vec![0.0; count];
        all.extend(weights.into_iter().map(|weight| weight.powf(self.distortion)));
        if all.len() != self.range {
            let why = format!("range is {} must be equal to weights size  {}", self.range, all.len());
            return Err(Failure::invalid(why));
        }
        Weighted::new(all)
    }
}

/// Classes of fixed weights, drawn by Walker's alias method.
pub struct Weighted {
    weights: Vec<f32>,
    total: f32,
    /// For each slot, the probability of the slot's class, and the class drawn otherwise.
    places: Vec<(f32, usize)>,
}

impl Weighted {
    fn new(weights: Vec<f32>) -> Result<Weighted> {
        let n = weights.len();
        memory::admit(n.saturating_mul(48))?;
        let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        let mut likely: Vec<f64> = weights.iter().map(|weight| f64::from(weight * n as f32) / sum).collect();
        let (mut low, mut high): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| likely[i] < 1.0);
        let mut other: Vec<usize> = (0..n).collect();
        while let (Some(&l), Some(&h)) = (low.last(), high.last()) {
            low.pop();
            high.pop();
            other[l] = h;
            likely[h] -= 1.0 - likely[l];
            if likely[h] < 1.0 { &mut low } else { &mut high }.push(h);
        }
        // The remainder is due to rounding errors.
        for i in low.into_iter().chain(high) {
            (likely[i], other[i]) = (1.0, i);
        }
        let places = likely.into_iter().map(|likely| likely as f32).zip(other).collect();
        Ok(Weighted { total: weights.iter().sum(), weights, places })
    }

    #[inline]
    pub fn draw(&self, words: &mut Words) -> i64 {
        let own = uniform_f32(words.draw());
        let at = below_u32(words, self.places.len() as u32) as usize;
        let (likely, other) = self.places[at];
        (if own < likely { at } else { other }) as i64
    }

    #[inline]
    pub fn likely(&self, class: i64) -> f32 {
        let weight = usize::try_from(class).ok().and_then(|class| self.weights.get(class));
        weight.map_or(0.0, |weight| weight / self.total)
    }
}

/// Classes with probabilities in proportion to how often they were seen; each starts with a count of one.
pub struct Learned {
    /// Sums of counts: of all classes, of each half, of each quarter, and so on. The last level has the counts of single
    /// classes.
    levels: Vec<Vec<i32>>,
}

impl Learned {
    /// # Errors
    /// InvalidArgument for more classes than can be counted; ResourceExhausted if there is not enough memory for them.
    pub fn new(range: usize) -> Result<Learned> {
        if range >= i32::MAX as usize {
            let why = format!("the range of a learned sampler must be below {}, got {range}", i32::MAX);
            return Err(Failure::invalid(why));
        }
        let width = range.max(1).next_power_of_two();
        memory::admit(width.saturating_mul(2 * size_of::<i32>()))?;
        let mut pace = Pace::new();
        let mut level = vec![1; range];
        level.resize(width, 0);
        let mut levels = vec![level];
        while levels[levels.len() - 1].len() > 1 {
            let below = &levels[levels.len() - 1];
            pace.go(below.len());
            levels.push(below.chunks(2).map(|pair| pair.iter().sum()).collect());
        }
        levels.reverse();
        Ok(Learned { levels })
    }

    #[inline]
    fn total(&self) -> i32 {
        self.levels[0][0]
    }

    pub fn draw(&self, words: &mut Words) -> i64 {
        let mut left = below_u32(words, self.total() as u32) as i32;
        let mut at = 0;
        for level in &self.levels[1..] {
            at *= 2;
            if left >= level[at] {
                left -= level[at];
                at += 1;
            }
        }
        at as i64
    }

    #[inline]
    pub fn likely(&self, class: i64) -> f32 {
        let counts = &self.levels[self.levels.len() - 1];
        let count = usize::try_from(class).ok().and_then(|class| counts.get(class)).copied();
        count.unwrap_or(0) as f32 / self.total() as f32
    }

    /// Increments the counts of some classes, which must be in range.
    pub fn see(&mut self, classes: &[i64]) {
        let most = (i32::MAX - self.total()) as usize;
        for &class in classes.iter().take(most) {
            let mut at = class as usize;
            for level in self.levels.iter_mut().rev() {
                if let Some(count) = level.get_mut(at) {
                    *count += 1;
                }
                at /= 2;
            }
        }
    }
}
