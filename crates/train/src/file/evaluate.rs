//! The section `evaluate`: measurements on examples that are not trained with, and their consequences.

use meshtf_tensor::Tensor;
use meshtf_tensor::json::{Fault, Member, Path, Value};

use super::data::{DataSource, Fed, Take, feed};
use super::{Read, count, names, unknown};

/// The section `evaluate`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluateSection {
    /// The number of steps between evaluations; else `epochs`. There is always an evaluation after the last step; 0: no other.
    pub every: u64,
    /// The number of epochs between evaluations; else `every`.
    pub epochs: Option<u64>,
    /// The source of each placeholder in evaluations, in place of examples that are held out.
    pub feed: Vec<(String, DataSource)>,
    /// The values of other placeholders in evaluations, if they differ from those of the section `data`.
    pub constants: Vec<(String, Tensor)>,
    /// The tensors whose means are printed along with the loss's.
    pub metrics: Vec<String>,
    /// The classes of the confusion matrix.
    pub confusion: Option<ConfusionNodes>,
    /// The criterion for the best weights.
    pub best: Best,
    /// The number of evaluations without improvement after which the training ends.
    pub patience: Option<u64>,
}

/// Two tensors with a class for each example.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfusionNodes {
    /// The true classes of the examples.
    pub labels: String,
    /// The classes that the model predicts.
    pub predictions: String,
}

/// The criterion for the best evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Best {
    /// A metric; `None`: the loss.
    pub of: Option<String>,
    /// Whether greater is better.
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
    if let Some((name, _)) = fed.0.iter().find(|(_, source)| source.images.augment.is_some()) {
        let why = format!("{name} has \"augment\", which is for \"data\": images are evaluated as they are");
        return Err(Fault::content(value, path, why));
    }
    match fed.0.iter().find(|(_, source)| source.take == Take::WorkerFile) {
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
