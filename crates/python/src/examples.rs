//! The examples of a training: arrays, files, or an iterator of batches that is read as the training proceeds.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use meshtf::graph::Graph as CheckedGraph;
use meshtf::tensor::{DType, Tensor};
use meshtf::train::{Error, Examples, Found, Sections, TrainingData, load};
use meshtf::{Code, Failure};
use meshtf_train::data::{Arrived, Column, Rows};
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

/// Most bytes of examples that were read and wait for a worker that is slower than the others.
const MOST_BYTES: usize = 1 << 30;

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
        raised: Arc::clone(raised),
        origin: Arc::clone(origin),
        state: Mutex::new(State { arrived: Arrived::new(kinds.clone(), keep, MOST_BYTES), ended: None }),
    });
    let columns = stated.into_iter().zip(kinds).enumerate().map(|(column, ((name, ..), (dtype, shape)))| {
        let rows = StreamColumn { stream: Arc::clone(&stream), column, count, dtype, shape };
        (name, Column::Elsewhere(Arc::new(rows)))
    });
    Examples::of(columns.collect()).or_raise(py)
}

/// An iterator of batches, from the first example that the training takes.
struct Stream {
    next: Py<PyAny>,
    kinds: Vec<(DType, Vec<usize>)>,
    raised: Raised,
    origin: Origin,
    state: Mutex<State>,
}

struct State {
    arrived: Arrived,
    /// Why there are no more examples.
    ended: Option<Failure>,
}

impl Stream {
    /// The examples of a column, which are next to each other or in some other order, each of them read once but for retries.
    fn read(&self, column: usize, places: &[usize]) -> meshtf::Result<Tensor> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { arrived, ended } = &mut *state;
        let last = places.iter().copied().max();
        while last.is_some_and(|last| arrived.count() <= last) {
            if let Some(ended) = ended {
                return Err(ended.clone());
            }
            let pulled = self.pull(arrived.count());
            if let Err(failure) = pulled.and_then(|columns| arrived.push(columns, self.origin.load(Ordering::Relaxed)))
            {
                *ended = Some(failure.clone());
                return Err(failure);
            }
        }
        arrived.take(column, places).map_err(|failure| ended.clone().unwrap_or(failure))
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
