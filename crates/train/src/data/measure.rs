//! Means, deviations, extremes, medians and numbers of classes, measured on the examples that are trained with.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;

use super::{Chosen, ClassWeights, Missing, Normalize, TableOptions, Wanted};

/// The measurement of one number of an example.
#[derive(Debug)]
pub(super) struct Measure {
    aim: Option<Aim>,
    normalize: Option<Normalize>,
    count: f64,
    mean: f64,
    /// The sum of the squares of distances from the mean (Welford 1962).
    squares: f64,
    least: f64,
    most: f64,
    /// All numbers, for a median.
    all: Vec<f64>,
    /// The number of examples of each class.
    classes: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Moments,
    Median,
    Classes,
}

impl Measure {
    /// One for each number of an example.
    pub(super) fn of(chosen: &Chosen, wanted: &Wanted<'_>) -> Vec<Measure> {
        if wanted.is_text || wanted.fit.is_some() {
            return Vec::new();
        }
        let TableOptions { missing, normalize, class_weights, .. } = wanted.options;
        let one = |(name, is_measured): (&str, bool)| {
            let own = |(of, normalize): &(Option<String>, Normalize)| {
                of.as_deref().is_none_or(|of| of == name).then_some(*normalize)
            };
            // That of the column's name comes before that of all.
            let named = normalize.iter().filter(|(of, _)| of.is_some()).find_map(own);
            let normalize = named.or_else(|| normalize.iter().find_map(own)).filter(|_| is_measured);
            let aim = match missing {
                _ if class_weights.is_some() => Some(Aim::Classes),
                Some(Missing::Median) if is_measured => Some(Aim::Median),
                Some(Missing::Mean) if is_measured => Some(Aim::Moments),
                _ => normalize.map(|_| Aim::Moments),
            };
            let (least, most) = (f64::INFINITY, f64::NEG_INFINITY);
            Measure {
                aim,
                normalize,
                count: 0.0,
                mean: 0.0,
                squares: 0.0,
                least,
                most,
                all: Vec::new(),
                classes: Vec::new(),
            }
        };
        chosen.parts().into_iter().map(one).collect()
    }

    pub(super) fn add(&mut self, number: f64) -> Result<()> {
        let Some(aim) = self.aim.filter(|_| !number.is_nan()) else { return Ok(()) };
        self.count += 1.0;
        if aim == Aim::Classes {
            let class = number as usize;
            self.classes.resize(self.classes.len().max(class + 1), 0.0);
            self.classes[class] += 1.0;
            return Ok(());
        }
        let distance = number - self.mean;
        self.mean += distance / self.count;
        self.squares += distance * (number - self.mean);
        (self.least, self.most) = (self.least.min(number), self.most.max(number));
        if aim == Aim::Median {
            if self.all.len() == self.all.capacity() {
                memory::admit(self.all.len().saturating_mul(size_of::<f64>()))?;
            }
            self.all.push(number);
        }
        Ok(())
    }

    /// Whether the examples must be read for it.
    pub(super) fn is_needed(&self) -> bool {
        self.aim.is_some()
    }

    /// The number in place of a missing one, and the shift and the factor of all.
    pub(super) fn result(mut self, missing: Option<Missing>, name: &str) -> Result<(Option<f64>, f64, f64)> {
        if self.aim.is_some() && self.count == 0.0 {
            return Err(Failure::invalid(format!(
                "column {name} has no number to measure in the examples to train with"
            )));
        }
        let fill = match missing {
            Some(Missing::Value(number)) => Some(number),
            Some(Missing::Mean) if self.aim.is_some() => Some(self.mean),
            Some(Missing::Median) if self.aim.is_some() => Some(median(&mut self.all)),
            _ => None,
        };
        let inverse = |width: f64| if width > 0.0 { 1.0 / width } else { 1.0 };
        let (shift, factor) = match self.normalize {
            None => (0.0, 1.0),
            Some(Normalize::Standard) => (self.mean, inverse((self.squares / self.count).sqrt())),
            Some(Normalize::MinMax) => (self.least, inverse(self.most - self.least)),
        };
        Ok((fill, shift, factor))
    }
}

/// The middle number, or the mean of the two in the middle.
fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    match all.len() % 2 {
        0 => (all[middle - 1] + all[middle]) / 2.0,
        _ => all[middle],
    }
}

/// The weights of classes, in the order of their numbers: of a class without an example to train with, 1.
///
/// # Errors
/// InvalidArgument for a class that does not occur.
pub(super) fn class_weights(weights: &ClassWeights, labels: &[String], measure: &Measure) -> Result<Vec<f64>> {
    let listed = match weights {
        ClassWeights::Listed(listed) => listed,
        ClassWeights::Balanced => {
            let present = measure.classes.iter().filter(|count| **count > 0.0).count() as f64;
            let weight = |class: usize| match measure.classes.get(class) {
                Some(&count) if count > 0.0 => measure.count / (present * count),
                _ => 1.0,
            };
            return Ok((0..labels.len()).map(weight).collect());
        }
    };
    if let Some((name, _)) = listed.iter().find(|(name, _)| !labels.contains(name)) {
        let all = labels.iter().take(12).map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(Failure::invalid(format!("\"class_weights\" names {name}, and the classes are {all}")));
    }
    let weight = |label: &String| listed.iter().find(|(name, _)| name == label).map_or(1.0, |(_, weight)| *weight);
    Ok(labels.iter().map(weight).collect())
}
