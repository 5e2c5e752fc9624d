//! The section `evaluate`: what is looked at on examples that are not trained with, and what follows from it.

use meshtf_tensor::Tensor;
use meshtf_tensor::json::{Fault, Member, Path, Value};

use super::data::{DataSource, Fed, Take, feed};
use super::{Read, count, names, unknown};

/// The section `evaluate`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluateSection {
    /// After how many steps each time, and after the last; else `epochs`. 0: after the last alone.
    pub every: u64,
    /// After how many epochs each time; else `every`.
    pub epochs: Option<u64>,
    /// What each placeholder is fed with in evaluations, in place of examples that are held out.
    pub feed: Vec<(String, DataSource)>,
    /// What other placeholders are fed with in evaluations, if that is not what the section `data` says.
    pub constants: Vec<(String, Tensor)>,
    /// The tensors whose means are printed beside the loss's.
    pub metrics: Vec<String>,
    /// The classes that are counted against each other.
    pub confusion: Option<ConfusionNodes>,
    /// Which weights are the best.
    pub best: Best,
    /// After how many evaluations without better ones the training ends.
    pub patience: Option<u64>,
}

/// Two tensors with a class for each example.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfusionNodes {
    /// The classes that the examples have.
    pub labels: String,
    /// The classes that the model takes them for.
    pub predictions: String,
}

/// Which evaluation is the best.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Best {
    /// A metric; `None`: the loss.
    pub of: Option<String>,
    /// Whether more is better.
    pub is_greatest: bool,
}

pub(super) fn evaluate(value: &Value, path: Path) -> Read<EvaluateSection> {
    let mut section = EvaluateSection::default();
    let (mut best_at, known) = (None, ["every", "epochs", "feed", "metrics", "confusion", "best", "patience"]);
    for Member { key, at, value } in value.object(path, "evaluate is an object")? {
        let path = path.key(key);
        match &**key {
            "every" => section.every = count(value, path)?,
            "epochs" => section.epochs = Some(count(value, path)?),
            "feed" => (section.feed, section.constants) = evaluated(value, path)?,
            "metrics" => section.metrics = names(value, path)?,
            "confusion" => section.confusion = Some(confusion(value, path)?),
            "best" => {
                section.best = best(value, path)?;
                best_at = Some(value);
            }
            "patience" => section.patience = Some(count(value, path)?),
            _ => return Err(unknown(key, *at, path, &known)),
        }
    }
    if (section.every == 0) == section.epochs.is_none() {
        return Err(Fault::content(value, path, "use either \"every\", in steps, or \"epochs\" to say how often"));
    }
    let metric = section.best.of.as_ref().zip(best_at);
    if let Some((of, value)) = metric.filter(|(of, _)| !section.metrics.contains(of)) {
        let why = format!("{of} is not among \"metrics\"; add it there");
        return Err(Fault::content(value, path.key("best"), why));
    }
    Ok(section)
}

fn evaluated(value: &Value, path: Path) -> Read<Fed> {
    let fed = feed(value, path)?;
    if fed.0.is_empty() && fed.1.is_empty() {
        return Err(Fault::content(value, path, "it is empty; leave it out if examples are held out"));
    }
    match fed.0.iter().find(|(_, source)| source.take == Take::There) {
        Some((name, _)) => Err(Fault::content(
            value,
            path,
            format!(
                "{name} is on_workers, which is for \"data\": say there with \"hold_out\" which share is evaluated"
            ),
        )),
        None => Ok(fed),
    }
}

fn confusion(value: &Value, path: Path) -> Read<ConfusionNodes> {
    let mut confusion = ConfusionNodes::default();
    for Member { key, at, value } in
        value.object(path, "confusion is an object: {\"labels\": …, \"predictions\": …}")?
    {
        let path = path.key(key);
        match &**key {
            "labels" => confusion.labels = value.text(path)?.to_owned(),
            "predictions" => confusion.predictions = value.text(path)?.to_owned(),
            _ => return Err(unknown(key, *at, path, &["labels", "predictions"])),
        }
    }
    match confusion.labels.is_empty() || confusion.predictions.is_empty() {
        true => Err(Fault::content(
            value,
            path,
            "it needs \"labels\" and \"predictions\", tensors with a class for each example",
        )),
        false => Ok(confusion),
    }
}

fn best(value: &Value, path: Path) -> Read<Best> {
    let (mut best, mut stated) = (Best::default(), false);
    for Member { key, at, value } in
        value.object(path, "best is an object: {\"greatest\": METRIC} or {\"least\": METRIC}")?
    {
        let path = path.key(key);
        match &**key {
            "greatest" | "least" if stated => {
                return Err(Fault::content(value, path, "use \"greatest\" or \"least\", not both"));
            }
            "greatest" | "least" => {
                best = Best { of: Some(value.text(path)?.to_owned()), is_greatest: &**key == "greatest" };
                stated = true;
            }
            _ => return Err(unknown(key, *at, path, &["greatest", "least"])),
        }
    }
    match stated {
        true => Ok(best),
        false => Err(Fault::content(value, path, "it needs \"greatest\" or \"least\", with the name of a metric")),
    }
}
