//! Aggregators of the statistics that datasets report about their elements, as histograms and numbers by name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use meshtf_checkpoint::DataDir;
use meshtf_kernels::{OpenHistogram, SummaryProto, SummaryValue};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{Tensor, memory};
use prost::Message;
use serde::{Deserialize, Serialize};

use super::super::waiting::unless_held;
use super::list::Look;
use super::{Lasting, Over, Resource, ResourceKey, Saved, Version};

/// Most names of one aggregator.
const MAX_NAMES: usize = 4096;

#[derive(Default)]
pub(crate) struct Aggregator {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    histograms: BTreeMap<String, OpenHistogram>,
    numbers: BTreeMap<String, f32>,
    version: Version,
}

impl Kept {
    /// # Errors
    /// ResourceExhausted if the name exceeds [`MAX_NAMES`].
    fn admit(&self, is_new: bool) -> Result<()> {
        if is_new && self.histograms.len() + self.numbers.len() >= MAX_NAMES {
            let why = format!("an aggregator has statistics of {MAX_NAMES} names already, which is the limit");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        if is_new { memory::grow() } else { Ok(()) }
    }

    fn bytes(&self) -> usize {
        let histograms = self.histograms.iter().map(|(name, open)| name.len() + open.bytes()).sum::<usize>();
        histograms + self.numbers.keys().map(|name| name.len() + size_of::<f32>()).sum::<usize>()
    }
}

impl Resource for Aggregator {
    fn wanted() -> &'static str {
        "aggregator of statistics"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn bytes(&self) -> usize {
        self.kept.try_lock().map_or(0, |kept| kept.bytes())
    }

    fn look(&self) -> Look {
        let kept = self.kept.try_lock().ok();
        Look { bytes: kept.as_ref().map(|kept| kept.bytes()), ..Look::default() }
    }

    fn version(&self) -> Option<Version> {
        unless_held(&self.kept).map(|kept| kept.version)
    }

    fn save(&self) -> Result<Saved> {
        let kept = lock(&self.kept);
        memory::admit(kept.bytes())?;
        let form = Form {
            histograms: kept.histograms.keys().cloned().collect(),
            numbers: kept.numbers.iter().map(|(name, &number)| (name.clone(), number)).collect(),
        };
        let histograms = kept.histograms.values().map(|open| Tensor::vector(open.numbers())).collect();
        Saved::new(Self::KIND, kept.version, &form, histograms)
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        let Form { histograms, numbers } = saved.form(Self::KIND)?;
        if histograms.len() != saved.tensors.len() || histograms.len() + numbers.len() > MAX_NAMES {
            return Err(saved.malformed("the names are not those of its statistics, or too many"));
        }
        memory::admit(saved.bytes())?;
        let open = |tensor: &Tensor| OpenHistogram::of_numbers(tensor.slice::<f64>().ok()?);
        let histograms = histograms.into_iter().zip(&saved.tensors).map(|(name, tensor)| Some((name, open(tensor)?)));
        let histograms = histograms.collect::<Option<BTreeMap<_, _>>>();
        let histograms = histograms.ok_or_else(|| saved.malformed("a tensor is no histogram"))?;
        let kept = &mut *lock(&self.kept);
        kept.version.check(Self::KIND, over)?;
        kept.histograms = histograms;
        kept.numbers = numbers.into_iter().collect();
        kept.version.replace(saved.version);
        Ok(())
    }
}

impl Lasting for Aggregator {
    const KIND: &'static str = "aggregator of statistics";

    fn empty(_key: &ResourceKey, _saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<Aggregator> {
        Ok(Aggregator::default())
    }
}

/// The names of the histograms, which are the tensors; and the numbers.
#[derive(Serialize, Deserialize)]
struct Form {
    histograms: Vec<String>,
    numbers: Vec<(String, f32)>,
}

impl Aggregator {
    /// Adds a finite value to the histogram of that name.
    ///
    /// # Errors
    /// ResourceExhausted over [`MAX_NAMES`], or over the memory budget.
    pub fn add(&self, name: String, value: f64) -> Result<()> {
        let mut kept = lock(&self.kept);
        kept.admit(!kept.histograms.contains_key(&name))?;
        kept.version.raise();
        kept.histograms.entry(name).or_default().add(value);
        Ok(())
    }

    /// Sets the number of that name.
    ///
    /// # Errors
    /// As [`Aggregator::add`].
    pub fn set(&self, name: String, value: f32) -> Result<()> {
        let mut kept = lock(&self.kept);
        kept.admit(!kept.numbers.contains_key(&name))?;
        kept.version.raise();
        kept.numbers.insert(name, value);
        Ok(())
    }

    /// The contents, as a serialised `tensorflow.Summary`.
    pub fn summary(&self) -> Vec<u8> {
        let kept = lock(&self.kept);
        let histograms = kept.histograms.iter().map(|(name, open)| SummaryValue {
            tag: name.clone(),
            simple_value: None,
            histo: Some(open.histogram()),
        });
        let numbers = kept.numbers.iter().map(|(name, &number)| SummaryValue {
            tag: name.clone(),
            simple_value: Some(number),
            histo: None,
        });
        SummaryProto { value: histograms.chain(numbers).collect() }.encode_to_vec()
    }
}
