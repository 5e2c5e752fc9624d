//! Datasets of files of which each worker reads a part: the results of AutoShardDataset.

use std::collections::HashMap;
use std::sync::Arc;

use meshtf_graph::{Attr, Function};
use meshtf_tensor::failure::{Code, Failure, Result};

use super::{Dataset, Parts, Statement, arrange, dataset_in};
use crate::token::Token;

/// Datasets that read files.
const READERS: &[&str] =
    &["FixedLengthRecordDataset", "FixedLengthRecordDatasetV2", "TextLineDataset", "TFRecordDataset"];
/// Datasets whose function may make readers from each element.
const CALLERS: &[&str] = &[
    "FlatMapDataset",
    "InterleaveDataset",
    "LegacyParallelInterleaveDatasetV2",
    "ParallelInterleaveDataset",
    "ParallelInterleaveDatasetV2",
    "ParallelInterleaveDatasetV3",
    "ParallelInterleaveDatasetV4",
];
/// Datasets that may come after those of files.
const AFTER: &[&str] = &[
    "BatchDataset",
    "BatchDatasetV2",
    "CacheDataset",
    "CacheDatasetV2",
    "FilterDataset",
    "MapAndBatchDataset",
    "MapDataset",
    "ModelDataset",
    "OptimizeDataset",
    "PaddedBatchDataset",
    "PaddedBatchDatasetV2",
    "ParallelBatchDataset",
    "ParallelMapDataset",
    "PrefetchDataset",
    "RepeatDataset",
    "ShardDataset",
    "ShuffleAndRepeatDataset",
    "ShuffleDataset",
    "SkipDataset",
    "TakeDataset",
    "WindowDataset",
];

/// A worker among several.
#[derive(Clone, Copy)]
pub(crate) struct Worker {
    pub index: i64,
    pub count: i64,
}

/// Every `worker.count`-th file of a dataset, from the worker's index on; of a dataset that is not made from files, every such
/// element. The policy is TensorFlow 2's: 0 is that, 1 by files alone, 2 by elements alone, -1 neither.
///
/// # Errors
/// NotFound if the policy asks for files and there are none; Unimplemented for another policy; the failures of the datasets
/// after the files when they are made anew.
pub(crate) fn shard(dataset: Arc<Dataset>, worker: Worker, policy: i64) -> Result<Parts> {
    if !(-1..=2).contains(&policy) {
        let why = format!("AutoShardDataset has no auto_shard_policy {policy} here");
        return Err(Failure::new(Code::Unimplemented, why));
    }
    if worker.count == 1 || policy == -1 {
        return Ok(arrange::same(dataset));
    }
    let by_files = if policy == 2 { None } else { Sharding { worker, made: HashMap::new() }.by_files(&dataset)? };
    match by_files {
        Some(dataset) => Ok(arrange::same(dataset)),
        None if policy == 1 => {
            Err(Failure::new(Code::NotFound, "Did not find a shardable source: no dataset of files"))
        }
        None => arrange::shard(dataset, worker.count, worker.index, true),
    }
}

struct Sharding {
    worker: Worker,
    /// The sharded datasets, by the addresses of the originals: there may be many ways to one.
    made: HashMap<*const Dataset, Option<Arc<Dataset>>>,
}

impl Sharding {
    /// The dataset with a part of its files; `None` if it is not made from files. The limit on nested datasets bounds the
    /// recursion.
    fn by_files(&mut self, dataset: &Arc<Dataset>) -> Result<Option<Arc<Dataset>>> {
        if let Some(made) = self.made.get(&Arc::as_ptr(dataset)) {
            return Ok(made.clone());
        }
        let made = self.anew(dataset)?;
        self.made.insert(Arc::as_ptr(dataset), made.clone());
        Ok(made)
    }

    fn anew(&mut self, dataset: &Arc<Dataset>) -> Result<Option<Arc<Dataset>>> {
        let Some(statement) = dataset.statement() else { return Ok(None) };
        let op = &statement.op[..];
        let is_caller = CALLERS.contains(&op) && statement.attrs.function("f").is_ok_and(reads_files);
        if is_caller || READERS.contains(&op) {
            let Some(files) = dataset.held().first().and_then(dataset_in) else { return Ok(None) };
            return dataset.with_inputs(vec![some_of(files, self.worker)?]).map(Some);
        }
        let count = match op {
            "ConcatenateDataset" | "ZipDataset" => dataset.held().len(),
            _ if AFTER.contains(&op) => 1,
            _ => return Ok(None),
        };
        let mut inputs = Vec::with_capacity(count);
        for token in dataset.held().iter().take(count) {
            let Some(input) = dataset_in(token) else { return Ok(None) };
            let Some(input) = self.by_files(input)? else { return Ok(None) };
            inputs.push(input);
        }
        dataset.with_inputs(inputs).map(Some)
    }
}

/// Whether a function reads the file that its first argument names.
fn reads_files(function: &Function) -> bool {
    let Some((first, _)) = function.args.first() else { return false };
    function.nodes.iter().any(|node| {
        let is_of_first = || node.inputs.first().is_some_and(|input| input.split(':').next() == Some(&first[..]));
        let calls = || matches!(node.attrs.get("f"), Some(Attr::Func(function)) if reads_files(function));
        READERS.contains(&&node.op[..]) && is_of_first() || CALLERS.contains(&&node.op[..]) && calls()
    })
}

/// A worker's part of the files. It does not depend on shuffles, which differ from worker to worker: the part is taken before
/// the shuffle.
fn some_of(files: &Arc<Dataset>, worker: Worker) -> Result<Arc<Dataset>> {
    let (files, shuffle) = in_order(files)?;
    let part = arrange::shard(Arc::clone(&files), worker.count, worker.index, true)?;
    let part = Arc::new(Dataset::new(files.spec.clone(), vec![Token::from(files)], part)?);
    match shuffle {
        Some(shuffle) => shuffle.with_inputs(vec![part]),
        None => Ok(part),
    }
}

/// The dataset without its shuffles, and the last of those.
fn in_order(dataset: &Arc<Dataset>) -> Result<(Arc<Dataset>, Option<Arc<Dataset>>)> {
    let Some(input) = dataset.held().first().and_then(dataset_in) else {
        return Ok((Arc::clone(dataset), None));
    };
    let (input, shuffle) = in_order(input)?;
    match dataset.statement() {
        Some(Statement { op, .. }) if op == "ShuffleDataset" || op == "ShuffleDatasetV3" => {
            Ok((input, shuffle.or_else(|| Some(Arc::clone(dataset)))))
        }
        Some(_) if shuffle.is_some() => Ok((dataset.with_inputs(vec![input])?, shuffle)),
        _ => Ok((Arc::clone(dataset), None)),
    }
}
