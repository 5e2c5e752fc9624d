//! The measurements of a table before its examples are taken: which lines are examples, the labels of columns of text, and
//! means and deviations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::BufRead;
use std::sync::Arc;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use serde::{Deserialize, Serialize};

use super::columns::{BadLine, check_taken, located};
use super::measure::{Measure, class_weights};
use super::{Chosen, Layout, Missing, Record, TableOptions, selected};

/// Most labels of a column of text.
const MAX_LABELS: usize = 1 << 16;
/// Bad lines that are shown.
const MAX_SHOWN: usize = 5;

/// The measurements of the columns or the text of a placeholder. They are kept with the weights, and apply to other files, too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The names of the columns; none of a text.
    #[serde(default)]
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
    /// The weight of each class, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<f64>,
    /// The tokens of a text, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vocabulary: Vec<String>,
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
    /// The number of each example's value in the column that was asked for, from 0 in the order in which they occur;
    /// `None` if there is no such column.
    pub keys: Option<Vec<u32>>,
    /// The positions of the lines, if they were asked for.
    pub offsets: Arc<Offsets>,
}

/// The positions of a table's lines.
#[derive(Debug, Default)]
pub struct Offsets {
    /// The offsets of all lines, and that of the end.
    pub starts: Vec<u64>,
    /// The places of the examples among them; `None`: all.
    pub kept: Option<Vec<usize>>,
}

/// The parts of a table that are kept besides those of its placeholders.
#[derive(Clone, Copy, Debug, Default)]
pub struct Also<'a> {
    /// The column whose values are numbered, if the table has it.
    pub key: Option<&'a str>,
    /// Whether the offsets of lines are kept.
    pub offsets: bool,
}

impl Prepared {
    /// Reads a table: its lines, the labels of columns of text, and the values of a further column. `open` begins to read it.
    ///
    /// # Errors
    /// InvalidArgument for lines that cannot be read: all are counted, and the first are shown; for a column that does not exist.
    /// Those of reading.
    pub fn scan<R: BufRead>(
        layout: &Layout,
        wanted: &[Wanted<'_>],
        also: Also<'_>,
        open: impl Fn() -> Result<R>,
    ) -> Result<Prepared> {
        let mut chosen: Vec<Chosen> = Vec::new();
        let mut labels: Vec<BTreeMap<String, BTreeSet<String>>> = vec![BTreeMap::new(); wanted.len()];
        let (mut kept, mut dropped, mut bad, mut numbers) = (Vec::new(), 0, Bad::default(), Vec::new());
        let (mut keys, mut key_at, mut starts) = (Keys::default(), None, Vec::new());
        let scanned = layout.scan(open()?, &mut |record| {
            if chosen.is_empty() {
                chosen = all_of(record.names, wanted)?;
                key_at = also.key.and_then(|key| selected(record.names, &[key.to_owned()]).ok());
            }
            let (mut is_dropped, mut wrong) = (false, record.fault.map(str::to_owned));
            for (chosen, wanted) in chosen.iter().zip(wanted).filter(|_| record.fault.is_none()) {
                numbers.clear();
                let drops = wanted.options.missing == Some(Missing::Drop);
                let read = match wanted.is_text {
                    true => chosen.texts(record.line, record.fields, &mut Vec::new()),
                    false => chosen.raw(record.line, record.fields, &mut numbers),
                };
                match read {
                    Ok(()) => is_dropped |= drops && numbers.iter().any(|number| number.is_nan()),
                    Err(BadLine::Missing(_)) if drops => is_dropped = true,
                    Err(BadLine::Missing(why)) if wanted.fit.is_none() => wrong = wrong.or(Some(why + layout.missing())),
                    Err(BadLine::Missing(why) | BadLine::Wrong(why)) => wrong = wrong.or(Some(why)),
                }
            }
            if !is_dropped && wrong.is_none() {
                collect(&chosen, wanted, &record, &mut labels)?;
                if let Some(&[at]) = key_at.as_deref() {
                    keys.add(record.fields[at])?;
                }
            }
            let takes_all = |wanted: &Wanted<'_>| wanted.fit.is_none() && wanted.columns.is_empty();
            if let Some(key) = record.other.filter(|_| wanted.iter().any(takes_all)) {
                wrong = wrong.or(Some(format!(
                    "line {}: {key} is in none of the objects in the first 4 MiB, which have the names of the columns: add \
                     \"{key}\": null to the first object, or name the columns to take in \"columns\"",
                    record.line
                )));
            }
            bad.add(wrong);
            if kept.len() == kept.capacity() {
                memory::admit(kept.len())?;
            }
            kept.push(!is_dropped);
            dropped += usize::from(is_dropped);
            if also.offsets {
                push(&mut starts, record.begin)?;
            }
            Ok(())
        })?;
        if chosen.is_empty() {
            chosen = all_of(&scanned.names, wanted)?;
        }
        bad.check()?;
        if also.offsets {
            push(&mut starts, scanned.end)?;
        }
        for (chosen, labels) in chosen.iter_mut().zip(labels) {
            let in_order = |(name, labels): (String, BTreeSet<String>)| (name, in_order(labels));
            chosen.set_labels(&labels.into_iter().map(in_order).collect());
        }
        let count = kept.len() - dropped;
        let places = || kept.iter().enumerate().filter(|(_, is_kept)| **is_kept).map(|(place, _)| place).collect();
        let offsets = Offsets { starts, kept: (also.offsets && dropped > 0).then(places) };
        let keys = key_at.map(|_| keys.of_rows);
        Ok(Prepared { chosen, count, keys, offsets: Arc::new(offsets), kept: (dropped > 0).then_some(kept) })
    }

    /// Measures the examples that are trained with, if something has to be measured: the table is read once more. `trains`
    /// says for each example whether it is one of them.
    ///
    /// # Errors
    /// InvalidArgument for a column of which nothing can be measured. Those of reading.
    pub fn measure<R: BufRead>(
        &mut self,
        layout: &Layout,
        wanted: &[Wanted<'_>],
        open: impl Fn() -> Result<R>,
        trains: &[bool],
    ) -> Result<()> {
        let Prepared { chosen, kept, .. } = self;
        let mut measures: Vec<Vec<Measure>> =
            chosen.iter().zip(wanted).map(|(chosen, wanted)| Measure::of(chosen, wanted)).collect();
        if measures.iter().flatten().any(Measure::is_needed) {
            let (mut line, mut place) = (0, 0);
            let mut numbers = Vec::new();
            layout.scan(open()?, &mut |record| {
                let is_kept = kept.as_ref().is_none_or(|kept| kept.get(line).copied().unwrap_or_default());
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
            if wanted.fit.is_some() || measures.is_empty() {
                continue;
            }
            if let Some(weights) = &wanted.options.class_weights {
                chosen.set_weights(class_weights(weights, chosen.classes(), &measures[0])?);
                continue;
            }
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
        Ok(())
    }
}

/// Collects the labels of a line that is an example.
fn collect(
    chosen: &[Chosen],
    wanted: &[Wanted<'_>],
    record: &Record<'_>,
    labels: &mut [BTreeMap<String, BTreeSet<String>>],
) -> Result<()> {
    for ((chosen, wanted), labels) in chosen.iter().zip(wanted).zip(labels) {
        if !wanted.is_text {
            chosen.collect(record.fields, labels);
        }
        if let Some((name, _)) = labels.iter().find(|(_, labels)| labels.len() > MAX_LABELS) {
            let why = format!("column {name} has more than {MAX_LABELS} different values; is it a column of numbers?");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
    }
    Ok(())
}

fn push(starts: &mut Vec<u64>, at: u64) -> Result<()> {
    if starts.len() == starts.capacity() {
        memory::admit(starts.len().saturating_mul(size_of::<u64>()))?;
    }
    starts.push(at);
    Ok(())
}

/// The values of a column, numbered in the order in which they occur.
#[derive(Default)]
struct Keys {
    known: HashMap<String, u32>,
    of_rows: Vec<u32>,
}

impl Keys {
    fn add(&mut self, field: &str) -> Result<()> {
        let next = self.known.len() as u32;
        let key = match self.known.get(field) {
            Some(key) => *key,
            None => {
                memory::admit(field.len())?;
                self.known.insert(field.to_owned(), next);
                next
            }
        };
        if self.of_rows.len() == self.of_rows.capacity() {
            memory::admit(self.of_rows.len().saturating_mul(size_of::<u32>()))?;
        }
        self.of_rows.push(key);
        Ok(())
    }
}

/// The columns of every placeholder, in a table with these names.
fn all_of(names: &[String], wanted: &[Wanted<'_>]) -> Result<Vec<Chosen>> {
    let one = |wanted: &Wanted<'_>| {
        let places = match wanted.fit {
            Some(fit) if wanted.columns.is_empty() && wanted.except.is_empty() => selected(names, &fit.columns)?,
            _ if wanted.columns.is_empty() => {
                let except = located(names, wanted.except)?;
                (0..names.len()).filter(|place| !except.contains(place)).collect()
            }
            _ => selected(names, wanted.columns)?,
        };
        check_taken(names, &places)?;
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
