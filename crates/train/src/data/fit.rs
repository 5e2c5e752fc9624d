//! The measurements of a table before its examples are taken: which lines are examples, the labels of columns of text, and
//! means and deviations.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use serde::{Deserialize, Serialize};

use super::columns::BadLine;
use super::{Chosen, Layout, Missing, Normalize, TableOptions, selected};

/// Most labels of a column of text.
const MAX_LABELS: usize = 1 << 16;
/// The advice for a missing field.
const MISSING: &str = "; say what to do then: \"missing\": \"drop\", \"mean\", \"median\" or a number";
/// Bad lines that are shown.
const MAX_SHOWN: usize = 5;

/// The measurements of the columns of a placeholder. They are kept with the weights, and apply to other tables, too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The labels of columns of text, in the order of their numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Vec<String>>,
    /// The number in place of a missing one, for each number of an example.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fill: Vec<Option<f64>>,
    /// The number that is subtracted from each, and the factor then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shift: Vec<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub factor: Vec<f64>,
}

/// The columns that one placeholder takes of a table.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub columns: &'a [String],
    /// The columns to leave out, if all others are taken.
    pub except: &'a [String],
    pub options: &'a TableOptions,
    /// Whether the placeholder takes strings.
    pub is_text: bool,
    /// Earlier measurements, for a table that is not trained with.
    pub fit: Option<&'a Fit>,
}

/// A table whose examples can be taken.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The columns of each placeholder.
    pub chosen: Vec<Chosen>,
    /// Which lines are examples; `None`: all.
    pub kept: Option<Vec<bool>>,
    /// The number of examples.
    pub count: usize,
}

impl Prepared {
    /// Reads a table two times: for its lines, and, if something has to be measured, for the examples that are trained with.
    /// `trains` says which of so many examples these are; `open` begins to read the table.
    ///
    /// # Errors
    /// InvalidArgument for lines that cannot be read: all are counted, and the first are shown; for a column that does not exist,
    /// or of which nothing can be measured. Those of reading.
    pub fn of<R: BufRead>(
        layout: &Layout,
        wanted: &[Wanted<'_>],
        open: impl Fn() -> Result<R>,
        trains: impl FnOnce(usize) -> Vec<bool>,
    ) -> Result<Prepared> {
        let mut chosen: Vec<Chosen> = Vec::new();
        let mut labels: Vec<BTreeMap<String, BTreeSet<String>>> = vec![BTreeMap::new(); wanted.len()];
        let (mut kept, mut dropped, mut bad, mut numbers) = (Vec::new(), 0, Bad::default(), Vec::new());
        let scanned = layout.scan(open()?, &mut |record| {
            if chosen.is_empty() {
                chosen = all_of(record.names, wanted)?;
            }
            let (mut is_dropped, mut wrong) = (false, None);
            for (chosen, wanted) in chosen.iter().zip(wanted) {
                numbers.clear();
                let drops = wanted.options.missing == Some(Missing::Drop);
                let read = match wanted.is_text {
                    true => chosen.texts(record.line, record.fields, &mut Vec::new()),
                    false => chosen.raw(record.line, record.fields, &mut numbers),
                };
                match read {
                    Ok(()) => is_dropped |= drops && numbers.iter().any(|number| number.is_nan()),
                    Err(BadLine::Missing(_)) if drops => is_dropped = true,
                    Err(BadLine::Missing(why)) if wanted.fit.is_none() => wrong = wrong.or(Some(why + MISSING)),
                    Err(BadLine::Missing(why) | BadLine::Wrong(why)) => wrong = wrong.or(Some(why)),
                }
            }
            if !is_dropped && wrong.is_none() {
                for ((chosen, wanted), labels) in chosen.iter().zip(wanted).zip(&mut labels) {
                    if !wanted.is_text {
                        chosen.collect(record.fields, labels);
                    }
                    if let Some((name, _)) = labels.iter().find(|(_, labels)| labels.len() > MAX_LABELS) {
                        let why = format!(
                            "column {name} has more than {MAX_LABELS} different values; is it a column of numbers?"
                        );
                        return Err(Failure::new(Code::ResourceExhausted, why));
                    }
                }
            }
            bad.add(wrong);
            if kept.len() == kept.capacity() {
                memory::admit(kept.len())?;
            }
            kept.push(!is_dropped);
            dropped += usize::from(is_dropped);
            Ok(())
        })?;
        if chosen.is_empty() {
            chosen = all_of(&scanned.names, wanted)?;
        }
        bad.check()?;
        for (chosen, labels) in chosen.iter_mut().zip(labels) {
            let in_order = |(name, labels): (String, BTreeSet<String>)| (name, in_order(labels));
            chosen.set_labels(&labels.into_iter().map(in_order).collect());
        }
        let count = kept.len() - dropped;
        let mut measures: Vec<Vec<Measure>> =
            chosen.iter().zip(wanted).map(|(chosen, wanted)| Measure::of(chosen, wanted)).collect();
        if measures.iter().flatten().any(|measure| measure.aim.is_some()) {
            let (trains, mut line, mut place) = (trains(count), 0, 0);
            let mut numbers = Vec::new();
            layout.scan(open()?, &mut |record| {
                let is_kept = kept.get(line).copied().unwrap_or_default();
                line += 1;
                if !is_kept {
                    return Ok(());
                }
                place += 1;
                if !trains.get(place - 1).copied().unwrap_or_default() {
                    return Ok(());
                }
                for (chosen, measures) in chosen.iter().zip(&mut measures).filter(|(_, measures)| !measures.is_empty())
                {
                    numbers.clear();
                    chosen.raw(record.line, record.fields, &mut numbers).map_err(BadLine::failure)?;
                    measures.iter_mut().zip(&numbers).try_for_each(|(measure, number)| measure.add(*number))?;
                }
                Ok(())
            })?;
        }
        for ((chosen, wanted), measures) in chosen.iter_mut().zip(wanted).zip(measures) {
            if wanted.fit.is_none() && !measures.is_empty() {
                let names: Vec<String> = chosen.parts().iter().map(|(name, _)| (*name).to_owned()).collect();
                let (mut fill, mut shift, mut factor) = (Vec::new(), Vec::new(), Vec::new());
                for (measure, name) in measures.into_iter().zip(names) {
                    let (own, by, times) = measure.result(wanted.options.missing, &name)?;
                    fill.push(own);
                    shift.push(by);
                    factor.push(times);
                }
                chosen.set_measured(fill, shift, factor);
            }
        }
        Ok(Prepared { chosen, kept: (dropped > 0).then_some(kept), count })
    }
}

/// The columns of every placeholder, in a table with these names.
fn all_of(names: &[String], wanted: &[Wanted<'_>]) -> Result<Vec<Chosen>> {
    let one = |wanted: &Wanted<'_>| {
        let places = match wanted.fit {
            Some(fit) if wanted.columns.is_empty() && wanted.except.is_empty() => selected(names, &fit.columns)?,
            _ if wanted.columns.is_empty() => {
                let except = selected(names, wanted.except)?;
                (0..names.len()).filter(|place| !except.contains(place)).collect()
            }
            _ => selected(names, wanted.columns)?,
        };
        Chosen::of(names, &places, wanted.options, wanted.fit)
    };
    wanted.iter().map(one).collect()
}

/// Labels by their value if all are numbers, else by name.
fn in_order(labels: BTreeSet<String>) -> Vec<String> {
    let mut all: Vec<String> = labels.into_iter().collect();
    let number = |label: &String| label.parse::<f64>().ok().filter(|number| number.is_finite());
    if all.iter().all(|label| number(label).is_some()) {
        all.sort_by(|a, b| number(a).partial_cmp(&number(b)).unwrap_or(std::cmp::Ordering::Equal));
    }
    all
}

/// The lines that cannot be read.
#[derive(Default)]
struct Bad {
    count: usize,
    first: Vec<String>,
}

impl Bad {
    fn add(&mut self, wrong: Option<String>) {
        if let Some(why) = wrong {
            self.count += 1;
            if self.first.len() < MAX_SHOWN {
                self.first.push(why);
            }
        }
    }

    fn check(&self) -> Result<()> {
        match (self.count, &self.first[..]) {
            (0, _) => Ok(()),
            (_, [only]) => Err(Failure::invalid(only.clone())),
            (count, shown) => {
                let which =
                    if count > shown.len() { format!("the first {}", shown.len()) } else { "they are".to_owned() };
                Err(Failure::invalid(format!("{count} lines cannot be read; {which}:\n  {}", shown.join("\n  "))))
            }
        }
    }
}

/// The measurement of one number of an example.
#[derive(Debug)]
struct Measure {
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Moments,
    Median,
}

impl Measure {
    /// One for each number of an example.
    fn of(chosen: &Chosen, wanted: &Wanted<'_>) -> Vec<Measure> {
        if wanted.is_text || wanted.fit.is_some() {
            return Vec::new();
        }
        let TableOptions { missing, normalize, .. } = wanted.options;
        let one = |(name, is_measured): (&str, bool)| {
            let own = |(of, normalize): &(Option<String>, Normalize)| {
                of.as_deref().is_none_or(|of| of == name).then_some(*normalize)
            };
            // That of the column's name comes before that of all.
            let named = normalize.iter().filter(|(of, _)| of.is_some()).find_map(own);
            let normalize = named.or_else(|| normalize.iter().find_map(own)).filter(|_| is_measured);
            let aim = match missing {
                Some(Missing::Median) if is_measured => Some(Aim::Median),
                Some(Missing::Mean) if is_measured => Some(Aim::Moments),
                _ => normalize.map(|_| Aim::Moments),
            };
            let (least, most) = (f64::INFINITY, f64::NEG_INFINITY);
            Measure { aim, normalize, count: 0.0, mean: 0.0, squares: 0.0, least, most, all: Vec::new() }
        };
        chosen.parts().into_iter().map(one).collect()
    }

    fn add(&mut self, number: f64) -> Result<()> {
        let Some(aim) = self.aim.filter(|_| !number.is_nan()) else { return Ok(()) };
        self.count += 1.0;
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

    /// The number in place of a missing one, and the shift and the factor of all.
    fn result(mut self, missing: Option<Missing>, name: &str) -> Result<(Option<f64>, f64, f64)> {
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
