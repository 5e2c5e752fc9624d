//! What TensorFlow's optimizations of datasets do that can be seen. What they make faster has no counterpart here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Dataset, Parts, arrange, dataset_in, node_name, statistics};
use crate::exec::token::Token;
use crate::failure::{Failure, Result};

/// Datasets after the last buffer of a pipeline that is to have slack.
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

/// The same elements. With `latency_all_edges`, each dataset before says how long its elements took.
///
/// # Errors
/// InvalidArgument if the last buffer is to have slack (`slack`), and another kind of dataset comes after it; what those datasets
/// fail with, when they are made anew.
pub(in crate::exec) fn optimized(input: Arc<Dataset>, asked: &[Vec<u8>]) -> Result<Parts> {
    let is_asked = |name: &str| asked.iter().any(|asked| asked == name.as_bytes());
    if is_asked("slack") {
        check_slack(&input, &mut HashSet::new())?;
    }
    let input = if is_asked("latency_all_edges") { timed(&input, &mut HashMap::new())? } else { input };
    Ok(arrange::same(input))
}

/// The datasets that a dataset is made of, without those that its functions captured.
fn inputs(dataset: &Dataset) -> Vec<&Arc<Dataset>> {
    let op = dataset.statement().map_or("", |statement| &statement.op);
    let most = if matches!(op, "ZipDataset" | "ConcatenateDataset") { usize::MAX } else { 1 };
    dataset.held().iter().map_while(dataset_in).take(most).collect()
}

/// There may be many ways to one dataset; it is looked at once.
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

fn timed(dataset: &Arc<Dataset>, made: &mut HashMap<*const Dataset, Arc<Dataset>>) -> Result<Arc<Dataset>> {
    if let Some(timed) = made.get(&Arc::as_ptr(dataset)) {
        return Ok(Arc::clone(timed));
    }
    let Some(statement) = dataset.statement() else { return Ok(Arc::clone(dataset)) };
    let inputs = inputs(dataset).into_iter().map(|input| timed(input, made)).collect::<Result<_>>()?;
    let mut anew = dataset.with_inputs(inputs)?;
    // Newer ones are left out there, too.
    if statement.op.ends_with("Dataset") {
        let tag = format!("record_latency::{}", node_name(&statement.op, dataset.held()));
        let parts = statistics::latency(Arc::clone(&anew), tag);
        anew = Arc::new(Dataset::new(anew.spec.clone(), vec![Token::from(anew)], parts)?);
    }
    made.insert(Arc::as_ptr(dataset), Arc::clone(&anew));
    Ok(anew)
}
