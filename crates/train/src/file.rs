//! The training sections of a graph.json: `data`, `train` and `evaluate`. `docs/graph.md` is their specification.

mod data;
mod evaluate;
mod generate;
mod images;
mod local;
mod pipeline;
mod place;
mod table;
mod text;

pub use data::{DataSection, DataSource, Take};
pub use evaluate::{Best, ConfusionNodes, EvaluateSection};
pub use generate::GenerateSection;
pub use local::{Exchange, LocalSection};
use meshtf_graph::json::ROOT_KEYS;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::json::{Fault, Kind, Member, Path, Value, is_whole, parse, position};
use meshtf_tensor::nearest::nearest;
pub use pipeline::bubble;
pub use place::located;

use super::clip::Clip;
use super::job::MOST_STALE;
use super::minimize::Training;
use super::optimizer::Optimizer;
use super::schedule::{Schedule, WarmUp};

/// A training: its data, its update and its evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Sections {
    /// The examples, and their batches.
    pub data: DataSection,
    /// The loss, and its minimization.
    pub train: TrainSection,
    /// The evaluation on examples that are not trained with.
    pub evaluate: Option<EvaluateSection>,
    /// The nodes that initialise the graph's variables, if the file specifies them.
    pub init: Vec<String>,
}

impl Sections {
    /// For a loss and its minimization, in batches of `batch` examples, without an evaluation. The node `init` initialises
    /// the variables, as that of a `Model` does. The number of steps or epochs must still be set.
    pub fn new(loss: &str, training: Training, batch: usize) -> Sections {
        Sections {
            data: DataSection { batch, ..DataSection::default() },
            train: TrainSection::new(loss, training),
            evaluate: None,
            init: vec!["init".to_owned()],
        }
    }
}

/// The position and the cause of an error in the sections: `$.train.rate (line 3, column 5): …`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} (line {line}, column {column}): {why}")]
pub struct SectionsError {
    /// The value, as a path from the root `$`.
    pub path: String,
    /// Its line, from 1.
    pub line: usize,
    /// Its column, from 1, in characters.
    pub column: usize,
    /// The error, and the expected value.
    pub why: String,
}

/// The section `train`.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSection {
    /// The tensor that is minimized.
    pub loss: String,
    /// The method of minimization.
    pub training: Training,
    /// The variables that are trained; empty: all that are trainable.
    pub variables: Vec<String>,
    /// The number of steps; else `epochs`.
    pub steps: Option<u64>,
    /// The number of passes over all examples; else `steps`.
    pub epochs: Option<u64>,
    /// Tensors that are printed along with the loss.
    pub metrics: Vec<String>,
    /// The number of tasks of job `worker` that have the model, each with its part of a batch; 0: it is placed by its device
    /// names.
    pub workers: usize,
    /// The least number of `workers` with which the training begins and continues: the others may come and go. Not with `backup`.
    /// `None`: all begin; in mode async, one is enough to continue.
    pub fewest: Option<usize>,
    /// The number of tasks of job `ps` over which the variables are spread; 0: they are placed by their device names.
    pub ps: usize,
    /// The cooperation of workers.
    pub mode: UpdateMode,
    /// The number of workers for which an update in mode sync does not wait: the slowest.
    pub backup: usize,
    /// In mode async, the number of steps that a worker may be ahead of the slowest, at least 1 and at most 1,024. `None`: any.
    pub staleness: Option<usize>,
    /// The rounds of mode local.
    pub local: LocalSection,
    /// In mode pipeline, the number of parts of a batch that go through the stages one after the other, at least 1 and at most
    /// 1,024. `None`: four for each stage, or as many as a batch has examples if these are fewer.
    pub microbatches: Option<usize>,
    /// Nodes of the model that each step also runs, once its update is made: those that keep running averages, for example.
    /// Empty: the node [`UPDATES`](super::job::UPDATES), if there is one.
    pub updates: Vec<String>,
}

/// The way in which the gradients of several workers change the variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateMode {
    /// All workers share a batch, and the mean of their gradients makes one update of variables that they share.
    #[default]
    Sync,
    /// Each worker takes whole batches, and changes the variables, which all share, by its gradients as soon as it has them.
    Async,
    /// As in [`Sync`](UpdateMode::Sync), but each worker has a copy of all variables, and updates that copy.
    Mirrored,
    /// Each worker has a copy of all variables, takes whole batches, and makes steps of its own; after a number of them, the mean
    /// of the differences that these made updates the copies of all.
    Local,
    /// The model is cut into as many stages as there are workers, each with its variables. A batch goes through them in parts
    /// (micro-batches), of which several are under way at a time, and makes one update.
    Pipeline,
}

impl UpdateMode {
    const NAMES: [(&str, UpdateMode); 5] = [
        ("sync", UpdateMode::Sync),
        ("async", UpdateMode::Async),
        ("mirrored", UpdateMode::Mirrored),
        ("local", UpdateMode::Local),
        ("pipeline", UpdateMode::Pipeline),
    ];

    /// Its name in the file.
    pub(crate) fn name(self) -> &'static str {
        UpdateMode::NAMES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

impl TrainSection {
    /// For a loss and its minimization, on the devices that the model names. The number of steps or epochs must still be set.
    pub fn new(loss: &str, training: Training) -> TrainSection {
        TrainSection {
            loss: loss.to_owned(),
            training,
            variables: Vec::new(),
            steps: None,
            epochs: None,
            metrics: Vec::new(),
            workers: 0,
            fewest: None,
            ps: 0,
            mode: UpdateMode::Sync,
            backup: 0,
            staleness: None,
            local: LocalSection::default(),
            microbatches: None,
            updates: Vec::new(),
        }
    }

    /// The number of workers that an update waits for, if they make it together.
    pub fn needed(&self) -> usize {
        self.workers.saturating_sub(self.backup).max(1)
    }

    /// The number of workers with which a training that has begun continues, if the others are lost.
    pub fn least(&self) -> usize {
        match self.mode {
            UpdateMode::Async => self.fewest.unwrap_or(1),
            UpdateMode::Sync | UpdateMode::Mirrored if self.is_elastic() => self.fewest.unwrap_or(1),
            UpdateMode::Sync | UpdateMode::Mirrored | UpdateMode::Local | UpdateMode::Pipeline => self.needed(),
        }
    }

    /// Whether the workers that are up share each batch, and others may come and go.
    #[doc(hidden)]
    pub fn is_elastic(&self) -> bool {
        let is_shared = matches!(self.mode, UpdateMode::Sync | UpdateMode::Mirrored);
        self.fewest.is_some() && self.backup == 0 && is_shared
    }

    /// How many of the workers that are up share a batch of this size: as many as can do so equally. `None`: they are too few.
    #[doc(hidden)]
    pub fn sharing(&self, up: usize, batch: usize) -> Option<usize> {
        (self.least().max(1)..=up.min(self.workers)).rev().find(|&count| batch.is_multiple_of(count))
    }

    /// The numbers of examples that a worker takes of a batch of this size, for each number of workers that may share it, the
    /// greatest first. One of them is that of [`rows`](TrainSection::rows).
    #[doc(hidden)]
    pub fn rows_of_teams(&self, batch: usize) -> impl Iterator<Item = usize> {
        let counts = (self.least().max(1)..=self.workers).filter(|_| self.is_elastic());
        counts.filter(move |&count| batch.is_multiple_of(count)).map(move |count| batch / count)
    }

    /// The number of examples that a step takes from the data, given the number that an update in mode sync counts as a
    /// batch.
    ///
    /// # Errors
    /// Those of [`rows`](TrainSection::rows).
    pub fn drawn(&self, batch: usize) -> Result<usize, Failure> {
        match self.mode {
            UpdateMode::Async => Ok(batch),
            UpdateMode::Pipeline => self.rows(batch),
            UpdateMode::Sync | UpdateMode::Mirrored | UpdateMode::Local => {
                Ok(self.rows(batch)?.saturating_mul(self.workers.max(1)))
            }
        }
    }

    /// The number of examples that a worker takes at a time, of a batch of this many.
    ///
    /// # Errors
    /// InvalidArgument if the workers cannot share it equally, or if it has fewer examples than there are micro-batches.
    pub fn rows(&self, batch: usize) -> Result<usize, Failure> {
        let workers = self.needed();
        match self.mode {
            UpdateMode::Async | UpdateMode::Local => Ok(batch),
            UpdateMode::Pipeline => self.microbatch_sizes(batch).map(|_| batch),
            _ if batch.is_multiple_of(workers) => Ok(batch / workers),
            _ => {
                let why = format!("a batch of {batch} examples cannot be divided equally among {workers} workers");
                Err(Failure::invalid(why))
            }
        }
    }
}

type Read<T> = Result<T, Fault>;

/// Reads the sections of a graph.json, or of a file that has only them.
///
/// # Errors
/// [`SectionsError`].
pub fn read(text: &str) -> Result<Sections, SectionsError> {
    let sections = parse(text).and_then(|value| sections(&value));
    sections.map_err(|fault| at(text, fault))
}

/// Whether the text is an object with a section `train`, be it right or not.
pub fn has_training(text: &str) -> bool {
    parse(text).is_ok_and(|value| value.get("train").is_some())
}

/// The section `data`, if the text is a graph.json that has it; else one without a source.
///
/// # Errors
/// [`SectionsError`] of that section.
pub fn read_data(text: &str) -> Result<DataSection, SectionsError> {
    let Ok(value) = parse(text) else { return Ok(DataSection::default()) };
    let Some(data) = value.get("data") else { return Ok(DataSection::default()) };
    data::data(data, Path::Root.key("data")).map_err(|fault| at(text, fault))
}

/// The rounds of mode local, as the key `local` of the section `train` states them.
///
/// # Errors
/// [`SectionsError`], with paths from that value on.
pub fn read_local(text: &str) -> Result<LocalSection, SectionsError> {
    let section = parse(text).and_then(|value| local::local(&value, Path::Root));
    section.map_err(|fault| at(text, fault))
}

/// The section `generate` of a graph.json, or of a file that has only the sections.
///
/// # Errors
/// [`SectionsError`]; also if there is none.
pub fn read_generate(text: &str) -> Result<GenerateSection, SectionsError> {
    let section = parse(text).and_then(|value| {
        let why = "\"generate\" is missing, which says how the model writes";
        let section = value.get("generate").ok_or_else(|| Fault::content(&value, Path::Root, why))?;
        generate::generate(section, Path::Root.key("generate"))
    });
    section.map_err(|fault| at(text, fault))
}

fn at(text: &str, fault: Fault) -> SectionsError {
    let (line, column) = position(text, fault.at);
    let path = fault.path.as_deref().unwrap_or("$").to_owned();
    SectionsError { path, line, column, why: fault.why }
}

fn sections(value: &Value) -> Read<Sections> {
    let root = Path::Root;
    // A file that has only the sections may accompany the graph, or be a graph.json with nodes.
    for Member { key, at, .. } in value.object(root, "a file of a graph is an object")? {
        if !ROOT_KEYS.contains(&&**key) {
            return Err(unknown(key, *at, root.key(key), ROOT_KEYS));
        }
    }
    let missing = |key: &str| Fault::content(value, root, format!("\"{key}\" is missing, which says how to train"));
    let data = data::data(value.get("data").ok_or_else(|| missing("data"))?, root.key("data"))?;
    let train = train(value.get("train").ok_or_else(|| missing("train"))?, root.key("train"))?;
    if let (Some(_), Some((name, _))) =
        (train.fewest, data.feed.iter().find(|(_, source)| source.take == Take::WorkerFile))
    {
        return Err(Fault::content(
            value,
            root.key("train").key("workers"),
            format!("{name} is on_workers: each worker has examples of its own, so state one number of workers"),
        ));
    }
    if train.mode == UpdateMode::Pipeline
        && let Some((name, _)) = data.feed.iter().find(|(_, source)| source.take == Take::WorkerFile)
    {
        return Err(Fault::content(
            value,
            root.key("data").key("feed").key(name),
            "in mode pipeline, micro-batches come from this process: name the file alone, without \"on_workers\"",
        ));
    }
    let evaluate = value.get("evaluate").map(|value| evaluate::evaluate(value, root.key("evaluate"))).transpose()?;
    let init = value.get("init").map_or(Ok(Vec::new()), |value| names(value, root.key("init")))?;
    Ok(Sections { data, train, evaluate, init })
}

fn train(value: &Value, path: Path) -> Read<TrainSection> {
    let (mut optimizer, mut rate, mut warm_up, mut loss) = (None, None, None, None);
    let mut section = TrainSection::new("", Training::new(Optimizer::Sgd, 0.0));
    for Member { key, at, value } in value.object(path, "train is an object")? {
        let path = path.key(key);
        match &**key {
            "loss" => loss = Some(value.text(path)?.to_owned()),
            "optimizer" => optimizer = Some(self::optimizer(value, path)?),
            "rate" => rate = Some(schedule(value, path)?),
            "warm_up" => warm_up = Some(count(value, path)?),
            "clip_value" | "clip_norm" if section.training.clip.is_some() => {
                return Err(Fault::content(value, path, "use \"clip_value\" or \"clip_norm\", not both"));
            }
            "clip_value" => section.training.clip = Some(Clip::Value(number(value, path)?)),
            "clip_norm" => section.training.clip = Some(Clip::GlobalNorm(number(value, path)?)),
            "weight_decay" => section.training.weight_decay = number(value, path)?,
            "average" => section.training.average = Some(share(value, path)?),
            "variables" => section.variables = names(value, path)?,
            "metrics" => section.metrics = names(value, path)?,
            "steps" => section.steps = Some(count(value, path)?),
            "epochs" => section.epochs = Some(count(value, path)?),
            "workers" => (section.fewest, section.workers) = workers(value, path)?,
            "ps" => section.ps = tasks(value, path)?,
            "mode" => section.mode = one_of(&UpdateMode::NAMES, value, path)?,
            "backup" => section.backup = tasks(value, path)?,
            "staleness" => section.staleness = Some(staleness(value, path)?),
            "local" => section.local = local::local(value, path)?,
            "microbatches" => section.microbatches = Some(pipeline::microbatches(value, path)?),
            "updates" => section.updates = names(value, path)?,
            _ => return Err(unknown(key, *at, path, KEYS)),
        }
    }
    let missing = |what: &str| Fault::content(value, path, what.to_owned());
    section.loss = loss.ok_or_else(|| missing("\"loss\" is missing: the tensor to minimize"))?;
    let rate = rate.ok_or_else(|| missing("\"rate\" is missing: the learning rate"))?;
    section.training.rate = match warm_up {
        None => rate,
        Some(steps) => Schedule::WarmUp(WarmUp { steps, then: Box::new(rate) }),
    };
    section.training.optimizer = optimizer.ok_or_else(|| missing("\"optimizer\" is missing"))?;
    if section.steps.is_some() == section.epochs.is_some() {
        return Err(missing("use either \"steps\" or \"epochs\" to say how long"));
    }
    section.check_pipeline().map_err(|failure| missing(&failure.message))?;
    let (mode, has_all) = (section.mode.name(), matches!(section.mode, UpdateMode::Mirrored | UpdateMode::Local));
    if has_all && section.ps > 0 {
        return Err(missing(&format!("in mode {mode} each worker has all variables: leave \"ps\" out")));
    }
    if section.mode == UpdateMode::Local && section.fewest.is_some() {
        return Err(missing("in mode local no worker comes or goes: state one number of \"workers\""));
    }
    if section.mode != UpdateMode::Local && value.get("local").is_some() {
        return Err(missing(&format!("\"local\" is about the rounds of mode local, and \"mode\" is {mode}")));
    }
    if section.backup > 0 && (section.mode != UpdateMode::Sync || section.backup >= section.workers) {
        return Err(missing(
            "\"backup\" is how many of the \"workers\" an update in mode sync does not wait for, fewer than all",
        ));
    }
    if section.fewest.is_some() && section.backup > 0 {
        return Err(missing(
            "with \"backup\" an update takes a fixed number of workers: state one number of \"workers\", or leave \"backup\" out",
        ));
    }
    if section.staleness.is_some() && section.mode != UpdateMode::Async {
        return Err(missing(
            "\"staleness\" is how many steps a worker may be ahead in mode async; in the other modes, no worker is ahead",
        ));
    }
    if has_all && section.workers == 0 {
        return Err(missing(&format!("mode {mode} needs \"workers\": on how many tasks the model is")));
    }
    Ok(section)
}

/// A number of workers, or the least and the greatest one: the least, if there are both, and the greatest.
fn workers(value: &Value, path: Path) -> Read<(Option<usize>, usize)> {
    let Kind::Object(members) = &value.kind else { return Ok((None, tasks(value, path)?)) };
    let (mut min, mut max) = (None, None);
    for Member { key, at, value } in members {
        let path = path.key(key);
        match &**key {
            "min" => min = Some(tasks(value, path)?),
            "max" => max = Some(tasks(value, path)?),
            _ => return Err(unknown(key, *at, path, &["min", "max"])),
        }
    }
    match (min, max) {
        (Some(min @ 1..), Some(max)) if min <= max => Ok((Some(min), max)),
        _ => {
            let why = "\"workers\" is a number, or has a \"min\" from 1 and a \"max\" of at least as many";
            Err(Fault::content(value, path, why))
        }
    }
}

fn staleness(value: &Value, path: Path) -> Read<usize> {
    let steps = count(value, path)?;
    let found = usize::try_from(steps).ok().filter(|&steps| steps <= MOST_STALE);
    found.ok_or_else(|| {
        let why = format!(
            "{steps} steps; a worker may be ahead by 1 to {MOST_STALE}, or by any number without \"staleness\""
        );
        Fault::content(value, path, why)
    })
}

/// Most tasks of a job.
const MAX_TASKS: usize = 4096;

const KEYS: &[&str] = &[
    "loss",
    "optimizer",
    "rate",
    "warm_up",
    "clip_value",
    "clip_norm",
    "weight_decay",
    "average",
    "variables",
    "metrics",
    "steps",
    "epochs",
    "workers",
    "ps",
    "mode",
    "backup",
    "staleness",
    "local",
    "microbatches",
    "updates",
];

fn optimizer(value: &Value, path: Path) -> Read<Optimizer> {
    let name = match &value.kind {
        Kind::Object(_) => value.get("name").ok_or_else(|| Fault::content(value, path, "\"name\" is missing"))?,
        _ => value,
    };
    let text = name.text(path)?;
    let mut optimizer = Optimizer::of_name(text).ok_or_else(|| {
        let near = nearest(text, Optimizer::NAMES.iter().copied());
        let hint = near.first().map_or_else(
            || format!("there are {}", Optimizer::NAMES.join(", ")),
            |near| format!("did you mean {near}?"),
        );
        Fault::content(name, path, format!("unknown optimizer {text:?}; {hint}"))
    })?;
    if let Kind::Object(members) = &value.kind {
        for member in members.iter().filter(|member| member.key != "name") {
            let path = path.key(&member.key);
            let number = match member.value.kind {
                Kind::Bool(truth) => f64::from(truth),
                _ => number(&member.value, path)?,
            };
            let set = optimizer.set(&member.key, number);
            set.map_err(|failure| Fault::of_content(member.at, path, failure.message))?;
        }
    }
    Ok(optimizer)
}

fn schedule(value: &Value, path: Path) -> Read<Schedule> {
    let Kind::Object(members) = &value.kind else { return number(value, path).map(Schedule::Constant) };
    let [Member { key, at, value }] = &members[..] else {
        return Err(Fault::content(
            value,
            path,
            "a rate is a number, or an object with one key: steps, exponential or cosine",
        ));
    };
    let path = path.key(key);
    let known: &[&str] = match &**key {
        "steps" => &["after", "rates"],
        "exponential" => &["rate", "factor", "every", "staircase"],
        "cosine" => &["rate", "steps", "last"],
        _ => return Err(unknown(key, *at, path, &["steps", "exponential", "cosine"])),
    };
    for member in value.object(path, "this is an object")? {
        if !known.contains(&&*member.key) {
            return Err(unknown(&member.key, member.at, path.key(&member.key), known));
        }
    }
    let part = |name: &str| value.get(name).ok_or_else(|| Fault::content(value, path, format!("{name:?} is missing")));
    Ok(match &**key {
        "steps" => Schedule::Steps {
            after: list(part("after")?, path.key("after"), whole)?,
            rates: list(part("rates")?, path.key("rates"), number)?,
        },
        "exponential" => Schedule::Exponential {
            rate: number(part("rate")?, path.key("rate"))?,
            factor: number(part("factor")?, path.key("factor"))?,
            every: count(part("every")?, path.key("every"))?,
            staircase: match value.get("staircase").map(|value| (value, &value.kind)) {
                None => false,
                Some((_, Kind::Bool(staircase))) => *staircase,
                Some((value, _)) => {
                    return Err(Fault::content(value, path.key("staircase"), "expected true or false"));
                }
            },
        },
        _ => Schedule::Cosine {
            rate: number(part("rate")?, path.key("rate"))?,
            steps: count(part("steps")?, path.key("steps"))?,
            last: value.get("last").map_or(Ok(0.0), |value| number(value, path.key("last")))?,
        },
    })
}

fn list<T>(value: &Value, path: Path, read: impl Fn(&Value, Path) -> Read<T>) -> Read<Vec<T>> {
    let items = value.list(path, "this is a list")?;
    items.iter().enumerate().map(|(i, item)| read(item, path.index(i))).collect()
}

fn names(value: &Value, path: Path) -> Read<Vec<String>> {
    list(value, path, |item, path| item.text(path).map(str::to_owned))
}

fn number(value: &Value, path: Path) -> Read<f64> {
    let number = if let Kind::Number(number) = value.kind { number.parse::<f64>().ok() } else { None };
    number.ok_or_else(|| Fault::content(value, path, format!("expected a number, found {}", value.describe())))
}

/// The number of tasks of a job.
fn tasks(value: &Value, path: Path) -> Read<usize> {
    let count = count(value, path)?;
    usize::try_from(count).ok().filter(|&count| count <= MAX_TASKS).ok_or_else(|| {
        Fault::content(value, path, format!("{count} tasks are more than {MAX_TASKS}, which is the limit"))
    })
}

fn share(value: &Value, path: Path) -> Read<f64> {
    let share = number(value, path)?;
    match (0.0..1.0).contains(&share) {
        true => Ok(share),
        false => Err(Fault::content(value, path, format!("the share is {share}; expected a number from 0 to below 1"))),
    }
}

fn whole(value: &Value, path: Path) -> Read<u64> {
    let number = match value.kind {
        Kind::Number(number) if is_whole(number) => number.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| Fault::content(value, path, "expected a whole number of at least 0"))
}

fn count(value: &Value, path: Path) -> Read<u64> {
    match whole(value, path)? {
        0 => Err(Fault::content(value, path, "expected a whole number of at least 1")),
        // A count of steps is an int64 in the graph.
        count => Ok(count.min(i64::MAX as u64)),
    }
}

/// One of some values by its name.
fn one_of<T: Copy>(all: &[(&str, T)], value: &Value, path: Path) -> Read<T> {
    let text = value.text(path)?;
    let found = all.iter().find(|(name, _)| *name == text);
    found.map(|(_, own)| *own).ok_or_else(|| {
        let names: Vec<String> = all.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let near = nearest(text, all.iter().map(|(name, _)| *name));
        let hint = near.first().map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
        Fault::content(value, path, format!("{text:?} is none of {}{hint}", names.join(", ")))
    })
}

fn unknown(key: &str, at: usize, path: Path, known: &[&str]) -> Fault {
    let near = nearest(key, known.iter().copied());
    let hint = match near.first() {
        Some(name) => format!("did you mean {name:?}?"),
        None => format!("there are {}", known.join(", ")),
    };
    Fault::of_content(at, path, format!("unknown key {key:?}; {hint}"))
}

#[cfg(test)]
mod tests;
