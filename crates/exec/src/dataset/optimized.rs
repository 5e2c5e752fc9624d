//! The observable effects of TensorFlow's optimizations of datasets. Optimizations for speed alone have no counterpart.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use meshtf_graph::Attrs;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::shuffle::{self, Seeds};
use super::{Dataset, Parts, Statement, arrange, dataset_in, node_name, statistics};
use crate::token::Token;

/// Datasets that may come after the last buffer of a pipeline with slack.
const BEFORE_SLACK: &[&str] = &[
    "CacheDataset",
    "CacheDatasetV2",
    "ConcatenateDataset",
    "FilterDataset",
    "MapDataset",
    "MaxIntraOpParallelismDataset",
    "ModelDataset",
    "OptimizeDataset",
    "ParallelMapDataset",
    "PrivateThreadPoolDataset",
    "RepeatDataset",
    "ShardDataset",
    "ShuffleAndRepeatDataset",
    "ShuffleDataset",
    "SkipDataset",
    "TakeDataset",
    "WindowDataset",
    "ZipDataset",
];

/// The same elements, except for the order of those that are shuffled and then repeated (`shuffle_and_repeat_fusion`, which
/// TensorFlow 1.15 requests unless the options forbid it). With `latency_all_edges`, each dataset before reports the time that
/// its elements took.
///
/// # Errors
/// InvalidArgument if the last buffer is to have slack (`slack`), and another kind of dataset comes after it; the failures of
/// those datasets when they are made anew.
pub(crate) fn optimized(input: Arc<Dataset>, asked: &[Vec<u8>]) -> Result<Parts> {
    let is_asked = |name: &str| asked.iter().any(|asked| asked == name.as_bytes());
    if is_asked("slack") {
        check_slack(&input, &mut HashSet::new())?;
    }
    let input = match is_asked("shuffle_and_repeat_fusion") {
        true => Fusion { drops_idle: is_asked("noop_elimination"), made: HashMap::new() }.fused(&input)?,
        false => input,
    };
    let input = if is_asked("latency_all_edges") { timed(&input, &mut HashMap::new())? } else { input };
    Ok(arrange::same(input))
}

/// The input datasets of a dataset, without those that its functions captured.
fn inputs(dataset: &Dataset) -> Vec<&Arc<Dataset>> {
    let op = dataset.statement().map_or("", |statement| &statement.op);
    let has_many = matches!(op, "ZipDataset" | "ConcatenateDataset" | "DirectedInterleaveDataset");
    let most = if has_many { usize::MAX } else { 1 };
    dataset.held().iter().map_while(dataset_in).take(most).collect()
}

/// There may be many ways to one dataset, which is visited once.
fn check_slack(dataset: &Arc<Dataset>, seen: &mut HashSet<*const Dataset>) -> Result<()> {
    if !seen.insert(Arc::as_ptr(dataset)) {
        return Ok(());
    }
    match dataset.statement().map_or("", |statement| &statement.op) {
        "PrefetchDataset" => Ok(()),
        op if BEFORE_SLACK.contains(&op) => inputs(dataset).into_iter().try_for_each(|input| check_slack(input, seen)),
        op => Err(Failure::invalid(format!(
            "Encountered unsupported op \"{op}\" when rewriting the input pipeline graph to use slack in its final prefetch \
             transformation."
        ))),
    }
}

/// Fuses a shuffled dataset and its repetition into one.
struct Fusion {
    /// Whether datasets without an effect are removed before.
    drops_idle: bool,
    /// The fused datasets, by the addresses of the originals: there may be many ways to one.
    made: HashMap<*const Dataset, Arc<Dataset>>,
}

impl Fusion {
    /// The limit on nested datasets bounds the recursion.
    fn fused(&mut self, dataset: &Arc<Dataset>) -> Result<Arc<Dataset>> {
        if let Some(made) = self.made.get(&Arc::as_ptr(dataset)) {
            return Ok(Arc::clone(made));
        }
        let before = inputs(dataset);
        let after = before.iter().map(|input| self.fused(input)).collect::<Result<Vec<_>>>()?;
        let made = match after.first() {
            Some(first) if self.drops_idle && is_idle(dataset)? => Arc::clone(first),
            Some(first) if is_shuffled_anew(first)? && statement_is(dataset, "RepeatDataset") => {
                let count = number(dataset, 1)?;
                let inputs = first.held().iter().cloned().chain([Token::from(Tensor::scalar(count))]).collect();
                Arc::new(Dataset::stated(shuffled_and_repeated(), dataset.spec.clone(), inputs)?)
            }
            Some(_) if after.iter().zip(before).any(|(after, before)| !Arc::ptr_eq(after, before)) => {
                dataset.with_inputs(after)?
            }
            _ => Arc::clone(dataset),
        };
        self.made.insert(Arc::as_ptr(dataset), Arc::clone(&made));
        Ok(made)
    }
}

fn shuffled_and_repeated() -> Arc<Statement> {
    let parts = |inputs: &[Token]| {
        let number = |index: usize| inputs.get(index).cloned().map_or(Ok(0), |token| token.host()?.to_i64());
        let input = inputs.first().and_then(dataset_in).ok_or_else(|| Failure::invalid("there is no dataset"))?;
        let (seeds, count) = (Seeds::going_on(number(2)?, number(3)?), number(4)?);
        shuffle::check_count(count)?;
        shuffle::shuffle(Arc::clone(input), number(1)?, seeds, count)
    };
    Arc::new(Statement { op: "ShuffleAndRepeatDataset".to_owned(), attrs: Attrs::default(), parts: Box::new(parts) })
}

fn statement_is(dataset: &Dataset, op: &str) -> bool {
    dataset.statement().is_some_and(|statement| statement.op == op)
}

/// Whether a dataset is one that TensorFlow shuffles in another order each time.
fn is_shuffled_anew(dataset: &Dataset) -> Result<bool> {
    match dataset.statement() {
        Some(Statement { op, attrs, .. }) if op == "ShuffleDataset" => attrs.bool("reshuffle_each_iteration"),
        _ => Ok(false),
    }
}

/// Whether a dataset gives the elements of its input.
fn is_idle(dataset: &Dataset) -> Result<bool> {
    Ok(match dataset.statement().map_or("", |statement| &statement.op) {
        "TakeDataset" => number(dataset, 1)? < 0,
        "SkipDataset" | "PrefetchDataset" => number(dataset, 1)? == 0,
        "RepeatDataset" => number(dataset, 1)? == 1,
        _ => false,
    })
}

/// The number among a dataset's inputs.
fn number(dataset: &Dataset, input: usize) -> Result<i64> {
    dataset.held().get(input).cloned().map_or(Ok(0), |token| token.host()?.to_i64())
}

fn timed(dataset: &Arc<Dataset>, made: &mut HashMap<*const Dataset, Arc<Dataset>>) -> Result<Arc<Dataset>> {
    if let Some(timed) = made.get(&Arc::as_ptr(dataset)) {
        return Ok(Arc::clone(timed));
    }
    let Some(statement) = dataset.statement() else { return Ok(Arc::clone(dataset)) };
    let inputs = inputs(dataset).into_iter().map(|input| timed(input, made)).collect::<Result<_>>()?;
    let mut anew = dataset.with_inputs(inputs)?;
    // TensorFlow leaves out the newer ones, too.
    if statement.op.ends_with("Dataset") {
        let tag = format!("record_latency::{}", node_name(&statement.op, dataset.held()));
        let parts = statistics::latency(Arc::clone(&anew), tag);
        anew = Arc::new(Dataset::new(anew.spec.clone(), vec![Token::from(anew)], parts)?);
    }
    made.insert(Arc::as_ptr(dataset), Arc::clone(&anew));
    Ok(anew)
}
