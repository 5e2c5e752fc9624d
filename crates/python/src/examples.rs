//! The examples of a training: arrays, files, or an iterator of batches that is read as the training proceeds.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use meshtf::graph::Graph as CheckedGraph;
use meshtf::tensor::{DType, Shape, Tensor};
use meshtf::train::{Error, Examples, Found, Sections, TrainingData, load};
use meshtf::{Code, Failure};
use meshtf_train::data::{Column, Rows};
use meshtf_train::file::read_data;
use pyo3::prelude::*;

use crate::array::to_tensor;
use crate::convert::dtype_named;
use crate::error::{OrRaise, invalid};
use crate::session::Feeds;

/// Batches of an iterator that stay in memory after they were read, and their bytes: a block of batches with an example that
/// cannot be read is read again, batch by batch, up to that example.
const KEEP_BATCHES: usize = 128;
const KEEP_BYTES: usize = 8 << 20;

/// The exception of Python that ended a training.
pub type Raised = Arc<Mutex<Option<PyErr>>>;

/// The first example of an iterator that a training takes, as soon as its first step is known: those before it are skipped.
pub type Origin = Arc<AtomicUsize>;

/// The columns of an iterator's batches, as (placeholder, dtype, shape of an example); the number of examples that are read of
/// it; and a function that returns the next arrays, a list in the order of the columns, or None at the end.
type Batches = (Vec<(String, String, Vec<usize>)>, usize, Py<PyAny>);

/// The data of a training, as Python has it.
#[derive(FromPyObject)]
pub enum Source<'py> {
    /// Arrays by placeholder.
    Arrays(Feeds<'py>),
    /// The section `data` of a graph.json, with the folder of its files.
    Files((String, String)),
    Batches(Batches),
}

/// The data of a training before its files are read.
pub enum Prepared {
    Data(TrainingData),
    /// The folder of the files that the sections name.
    Files(String),
}

impl Prepared {
    /// Prepares the examples, and those of evaluations; names files in the sections.
    pub fn of(
        py: Python<'_>,
        data: Source<'_>,
        held_out: Option<Source<'_>>,
        sections: &mut Sections,
        (raised, origin): (&Raised, &Origin),
    ) -> PyResult<Prepared> {
        let section = |of: &str, text: &str| {
            read_data(text).map_err(|error| invalid(py, format!("{of}: {}: {}", error.path, error.why)))
        };
        let mut data = match data {
            Source::Files((text, folder)) => {
                let own = section("the data", &text)?;
                (sections.data.feed, sections.data.constants) = (own.feed, own.constants);
                if let (Some(evaluate), Some(held_out)) = (&mut sections.evaluate, held_out) {
                    let Source::Files((text, other)) = held_out else {
                        return Err(invalid(py, "the data are files, so examples of the validation are files, too"));
                    };
                    if other != folder {
                        return Err(invalid(py, "the files of the data and of the validation have one folder"));
                    }
                    let own = section("the validation", &text)?;
                    (evaluate.feed, evaluate.constants) = (own.feed, own.constants);
                }
                return Ok(Prepared::Files(folder));
            }
            Source::Arrays(arrays) => TrainingData::from(of_arrays(py, arrays)?),
            Source::Batches(batches) => {
                TrainingData::from(of_batches(py, batches, sections.data.batch, (raised, origin))?)
            }
        };
        data.evaluate = match held_out {
            None => None,
            Some(Source::Arrays(arrays)) => Some(of_arrays(py, arrays)?),
            Some(_) => return Err(invalid(py, "examples of the validation are arrays, unless the data are files")),
        };
        Ok(Prepared::Data(data))
    }

    /// The examples, those of files read, and remarks about them.
    pub fn read(self, sections: &Sections, graph: &CheckedGraph) -> Result<(TrainingData, Vec<String>), Error> {
        match self {
            Prepared::Data(data) => Ok((data, Vec::new())),
            Prepared::Files(folder) => {
                let loaded = load(sections, graph, Path::new(&folder), &Found::default())?;
                Ok((loaded.data, loaded.remarks))
            }
        }
    }
}

fn of_arrays(py: Python<'_>, arrays: Feeds<'_>) -> PyResult<Examples> {
    let mut columns = Vec::with_capacity(arrays.len());
    for (name, array, dtype) in arrays {
        columns.push((name, to_tensor(&array, &dtype)?));
    }
    Examples::new(columns).or_raise(py)
}

fn of_batches(
    py: Python<'_>,
    batches: Batches,
    batch: usize,
    (raised, origin): (&Raised, &Origin),
) -> PyResult<Examples> {
    let (stated, count, next) = batches;
    let mut kinds = Vec::with_capacity(stated.len());
    for (_, dtype, shape) in &stated {
        kinds.push((dtype_named(py, dtype)?, shape.clone()));
    }
    let bytes = |(dtype, shape): &(DType, Vec<usize>)| {
        shape.iter().fold(dtype.size().unwrap_or(16), |bytes, &size| bytes.saturating_mul(size))
    };
    let example = kinds.iter().map(bytes).fold(1usize, usize::saturating_add);
    let keep = (KEEP_BYTES / example).min(KEEP_BATCHES.saturating_mul(batch)).max(batch.saturating_mul(2));
    let stream = Arc::new(Stream {
        next,
        kinds: kinds.clone(),
        keep,
        raised: Arc::clone(raised),
        origin: Arc::clone(origin),
        state: Mutex::new(State { taken: vec![0; kinds.len()], ..State::default() }),
    });
    let columns = stated.into_iter().zip(kinds).enumerate().map(|(column, ((name, ..), (dtype, shape)))| {
        let rows = StreamColumn { stream: Arc::clone(&stream), column, count, dtype, shape };
        (name, Column::Elsewhere(Arc::new(rows)))
    });
    Examples::of(columns.collect()).or_raise(py)
}

/// Batches of an iterator, from the first example that the training takes. Workers that make their own updates take theirs in any
/// order.
struct Stream {
    next: Py<PyAny>,
    kinds: Vec<(DType, Vec<usize>)>,
    /// The number of examples that stay after they were read.
    keep: usize,
    raised: Raised,
    origin: Origin,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The batches that are in memory: the index of the first example of each, the number of examples that no reader of a column
    /// has taken yet, and a tensor for each column.
    held: VecDeque<Held>,
    /// The number of examples that were read from the iterator.
    read: usize,
    /// The example after the last one that was taken, for each column.
    taken: Vec<usize>,
    /// Why there are no more examples.
    ended: Option<Failure>,
}

struct Held {
    first: usize,
    count: usize,
    left: usize,
    columns: Vec<Tensor>,
}

impl Stream {
    /// The examples of a column, which are next to each other or in some other order, each of them read once but for retries.
    fn read(&self, column: usize, places: &[usize]) -> meshtf::Result<Tensor> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let Some(last) = places.iter().copied().max() else {
            return Tensor::zeros(self.kinds[column].0, self.shape(column, 0));
        };
        let origin = self.origin.load(Ordering::Relaxed);
        while state.read <= last {
            if let Some(ended) = &state.ended {
                return Err(ended.clone());
            }
            match self.pull(state.read) {
                Ok(columns) => {
                    let count = columns.first().and_then(|one| one.dims().first().copied()).unwrap_or(0);
                    let first = state.read;
                    state.read += count;
                    // Nobody takes the examples before the origin.
                    let left = (state.read - first.max(origin).min(state.read)) * self.kinds.len();
                    if left > 0 {
                        state.held.push_back(Held { first, count, left, columns });
                    }
                }
                Err(failure) => {
                    state.ended = Some(failure.clone());
                    return Err(failure);
                }
            }
        }
        let values = self.gathered(state, column, places)?;
        state.taken[column] = state.taken[column].max(last + 1);
        let lowest = state.taken.iter().copied().min().unwrap_or(0);
        let is_old = |one: &Held| one.left == 0 && one.first + one.count + self.keep <= lowest;
        while state.held.front().is_some_and(is_old) {
            state.held.pop_front();
        }
        Ok(values)
    }

    fn shape(&self, column: usize, count: usize) -> Shape {
        std::iter::once(count).chain(self.kinds[column].1.iter().copied()).collect()
    }

    fn gathered(&self, state: &mut State, column: usize, places: &[usize]) -> meshtf::Result<Tensor> {
        let (dtype, shape) = (self.kinds[column].0, self.shape(column, places.len()));
        let elements = shape.checked_elements(dtype)?;
        let (mut bytes, mut texts) = (Vec::new(), Vec::new());
        bytes.reserve(elements.saturating_mul(dtype.size().unwrap_or(0)));
        let each = elements.checked_div(places.len()).unwrap_or(0);
        for &place in places {
            let found = state.held.partition_point(|one| one.first + one.count <= place);
            let held = state.held.get_mut(found).filter(|one| one.first <= place);
            let Some(held) = held else {
                let why = format!("example {place} of the iterator was read before, and is not kept");
                return Err(state.ended.clone().unwrap_or_else(|| Failure::new(Code::FailedPrecondition, why)));
            };
            held.left = held.left.saturating_sub(1);
            let row = place - held.first;
            let tensor = &held.columns[column];
            match dtype {
                DType::String => texts.extend_from_slice(&tensor.slice::<Vec<u8>>()?[row * each..(row + 1) * each]),
                _ => {
                    let size = each * dtype.size().unwrap_or(0);
                    bytes.extend_from_slice(&tensor.bytes().unwrap_or_default()[row * size..(row + 1) * size]);
                }
            }
        }
        match dtype {
            DType::String => Tensor::vector(texts).reshaped(shape),
            _ => Tensor::from_bytes(dtype, shape, &bytes),
        }
    }

    /// The next batch of the iterator.
    fn pull(&self, read: usize) -> meshtf::Result<Vec<Tensor>> {
        let pulled = Python::try_attach(|py| -> PyResult<Option<Vec<Tensor>>> {
            let next = self.next.bind(py).call0()?;
            if next.is_none() {
                return Ok(None);
            }
            let arrays: Vec<Bound<'_, PyAny>> = next.extract()?;
            let kinds = arrays.iter().zip(&self.kinds);
            kinds.map(|(array, (dtype, _))| to_tensor(array, dtype.name())).collect::<PyResult<Vec<_>>>().map(Some)
        });
        match pulled {
            Some(Ok(Some(columns))) => Ok(columns),
            Some(Ok(None)) => Err(Failure::invalid(format!(
                "the iterator of the data ended after {read} examples: state fewer steps, or pass one that does not end"
            ))),
            Some(Err(error)) => {
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Err(Failure::new(Code::Aborted, "the iterator of the data raised an exception"))
            }
            None => Err(Failure::new(Code::Aborted, "the interpreter has ended")),
        }
    }
}

/// A column of the batches.
struct StreamColumn {
    stream: Arc<Stream>,
    column: usize,
    count: usize,
    dtype: DType,
    shape: Vec<usize>,
}

impl fmt::Debug for StreamColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {} of an iterator", self.column)
    }
}

impl Rows for StreamColumn {
    fn count(&self) -> usize {
        self.count
    }

    fn example(&self) -> (DType, &[usize]) {
        (self.dtype, &self.shape)
    }

    fn read(&self, places: &[usize]) -> meshtf::Result<Tensor> {
        self.stream.read(self.column, places)
    }
}
