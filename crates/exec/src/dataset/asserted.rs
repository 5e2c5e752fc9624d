//! The check of AssertNextDataset: the datasets after it on the way to the iterator.
//!
//! They have the names of TensorFlow's iterators. Datasets within functions are ignored, and so are the rewrites of
//! TensorFlow's optimizations.

use meshtf_tensor::failure::{Code, Failure, Result};

use super::{Dataset, Statement, dataset_in};

/// Most datasets that are visited, each once for every way to it.
const MOST_WAYS: usize = 1 << 16;

/// Refuses to iterate over a dataset if one of its inputs asserts other successors than it has.
///
/// # Errors
/// InvalidArgument with TensorFlow's message; ResourceExhausted if there are more ways to datasets than [`MOST_WAYS`].
pub(super) fn check(root: &Dataset) -> Result<()> {
    if !root.asserts {
        return Ok(());
    }
    Walk { names: Vec::new(), left: MOST_WAYS }.visit(root)
}

struct Walk {
    /// The names of the datasets from the iterator to the current one, that of the iterator's own dataset first.
    names: Vec<String>,
    left: usize,
}

impl Walk {
    /// The limit on nested datasets bounds the recursion.
    fn visit(&mut self, dataset: &Dataset) -> Result<()> {
        let Some(statement) = dataset.statement().filter(|_| dataset.asserts) else { return Ok(()) };
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            let why = format!("there are more than {MOST_WAYS} ways to the datasets that assert what is next");
            Failure::new(Code::ResourceExhausted, why)
        })?;
        let mut inputs = dataset.held().iter().filter_map(dataset_in);
        match &statement.op[..] {
            "AssertNextDataset" => self.compare(&strings(dataset, 1)?)?,
            // A rewritten graph, whose remaining datasets are not known.
            "OptimizeDataset" | "OptimizeDatasetV2" if !is_as_stated(dataset)? => return Ok(()),
            "OptimizeDataset" | "OptimizeDatasetV2" => return inputs.next().map_or(Ok(()), |input| self.visit(input)),
            _ => {}
        }
        let name = name(dataset, statement)?;
        match &statement.op[..] {
            "ZipDataset" | "ConcatenateDataset" => {
                (0..).zip(inputs).try_for_each(|(i, input)| self.within(format!("{name}[{i}]"), input))
            }
            "ChooseFastestDataset" => {
                (0..).zip(inputs).try_for_each(|(i, input)| self.within(format!("{name}_{i}"), input))
            }
            "DirectedInterleaveDataset" => (0..).zip(inputs).try_for_each(|(i, input)| match i {
                0 => self.within(format!("{name}.selector"), input),
                _ => self.within(format!("{name}[{}]", i - 1), input),
            }),
            // Further datasets were captured by functions.
            _ => inputs.next().map_or(Ok(()), |input| self.within(name, input)),
        }
    }

    fn within(&mut self, name: String, input: &Dataset) -> Result<()> {
        self.names.push(name);
        self.visit(input)?;
        self.names.pop();
        Ok(())
    }

    fn compare(&self, asserted: &[Vec<u8>]) -> Result<()> {
        if asserted.len() > self.names.len() {
            return Err(Failure::invalid(format!(
                "Asserted next {} transformations but encountered only {}.",
                asserted.len(),
                self.names.len()
            )));
        }
        for (i, (asserted, name)) in asserted.iter().zip(self.names.iter().rev()).enumerate() {
            if asserted != name.as_bytes() {
                return Err(Failure::invalid(format!(
                    "Asserted {} transformation at offset {i} but encountered {name} transformation instead.",
                    String::from_utf8_lossy(asserted)
                )));
            }
        }
        Ok(())
    }
}

/// Whether no optimization is requested that would rewrite the datasets.
fn is_as_stated(dataset: &Dataset) -> Result<bool> {
    for i in 1..dataset.held().len() {
        if !strings(dataset, i)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// TensorFlow's name for the iterator of a dataset.
fn name(dataset: &Dataset, statement: &Statement) -> Result<String> {
    let number = || dataset.held().get(1).cloned().map_or(Ok(0), |token| token.host()?.to_i64());
    let name = match &statement.op[..] {
        "TakeDataset" if number()? == 0 => "EmptyTake",
        "TakeDataset" => "FiniteTake",
        "SkipDataset" if number()? < 0 => "EmptySkip",
        "SkipDataset" => "FiniteSkip",
        "RepeatDataset" if number()? < 0 => "ForeverRepeat",
        "RepeatDataset" if number()? == 0 => "EmptyRepeat",
        "RepeatDataset" => "FiniteRepeat",
        "CacheDataset" | "CacheDatasetV2" => match strings(dataset, 1)?.iter().all(Vec::is_empty) {
            true => "MemoryCacheImpl",
            false => "FileCacheImpl",
        },
        other => return Ok(other.replacen("Dataset", "", 1)),
    };
    Ok(name.to_owned())
}

fn strings(dataset: &Dataset, input: usize) -> Result<Vec<Vec<u8>>> {
    match dataset.held().get(input) {
        Some(token) => Ok(token.clone().host()?.slice::<Vec<u8>>()?.to_vec()),
        None => Ok(Vec::new()),
    }
}
