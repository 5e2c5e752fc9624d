//! Streams of quantiles: sketches of the features of a training, and the boundaries of buckets that were made of them. A handle
//! exists before its streams: those are made by an op of its own.

use std::sync::{Arc, Mutex};

use meshtf_checkpoint::DataDir;
use meshtf_kernels::trees::{Entry, Sketch, entries_of, summary_of};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Tensor};
use serde::{Deserialize, Serialize};

use super::super::waiting::unless_held;
use super::list::Look;
use super::{Lasting, Over, Resource, ResourceKey, Saved, Version, admit_tensors};

/// Most streams of a resource.
const MAX_STREAMS: usize = 1 << 20;

pub(crate) struct QuantileStreams {
    name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    version: Version,
}

/// Streams with the same error.
struct Held {
    epsilon: f32,
    elements: i64,
    /// Of each stream, the elements since the last flush.
    sketches: Vec<Sketch>,
    /// Of each stream, a vector; empty before the first flush.
    boundaries: Vec<Tensor>,
}

impl Held {
    fn new(epsilon: f32, elements: i64, streams: usize) -> Result<Held> {
        if streams > MAX_STREAMS {
            let why = format!("{streams} streams of quantiles are more than the limit of {MAX_STREAMS}");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let sketch = Sketch::new(epsilon, elements)?;
        memory::admit(streams.saturating_mul(size_of::<Sketch>() + size_of::<Tensor>() + size_of::<Vec<f32>>()))?;
        let boundaries = vec![Tensor::vector(Vec::<f32>::new()); streams];
        Ok(Held { epsilon, elements, sketches: vec![sketch; streams], boundaries })
    }

    fn bytes(&self) -> usize {
        let entries = self.sketches.iter().map(Sketch::entries).sum::<usize>() * size_of::<Entry>();
        entries + self.boundaries.iter().map(Tensor::heap_bytes).sum::<usize>()
    }

    /// Empties the sketches.
    fn reset(&mut self) -> Result<()> {
        let empty = Sketch::new(self.epsilon, self.elements)?;
        self.sketches.fill(empty);
        Ok(())
    }

    /// Refuses another number of streams.
    fn check(&self, expected: &str, count: usize) -> Result<()> {
        let streams = self.sketches.len();
        if streams == count {
            return Ok(());
        }
        let why = format!("Expected num_streams == {expected}, got {streams} vs {count}");
        Err(Failure::new(Code::Internal, why))
    }
}

impl Resource for QuantileStreams {
    fn wanted() -> &'static str {
        "streams of quantiles"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn bytes(&self) -> usize {
        self.state.try_lock().map_or(0, |state| state.held.as_ref().map_or(0, Held::bytes))
    }

    fn look(&self) -> Look {
        let state = self.state.try_lock().ok();
        let of = |f: fn(&Held) -> usize| state.as_ref().map(|state| state.held.as_ref().map_or(0, f));
        Look {
            dtypes: Vec::new(),
            shape: PartialShape::UNKNOWN,
            bytes: of(Held::bytes),
            length: of(|held| held.sketches.len()),
            version: None,
        }
    }

    fn version(&self) -> Option<Version> {
        unless_held(&self.state).map(|state| state.version)
    }

    fn save(&self) -> Result<Saved> {
        let state = lock(&self.state);
        let (mut spec, mut tensors) = (None, Vec::new());
        if let Some(held) = &state.held {
            let levels: Vec<u32> = held.sketches.iter().map(|sketch| sketch.levels().len() as u32).collect();
            admit_tensors(levels.iter().map(|&count| count as usize + 1).sum())?;
            memory::admit(held.bytes())?;
            for (sketch, boundaries) in held.sketches.iter().zip(&held.boundaries) {
                tensors.push(boundaries.clone());
                for level in sketch.levels() {
                    tensors.push(summary_of(level)?);
                }
            }
            spec = Some(Spec { epsilon: held.epsilon, elements: held.elements, levels });
        }
        Saved::new(Self::KIND, state.version, &Form { spec }, tensors)
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        let Form { spec } = saved.form(Self::KIND)?;
        let held = match spec {
            None if saved.tensors.is_empty() => None,
            None => return Err(saved.malformed("there are no streams, but tensors")),
            Some(spec) => Some(loaded(&spec, saved)?),
        };
        let state = &mut *lock(&self.state);
        state.version.check(Self::KIND, over)?;
        state.held = held;
        state.version.replace(saved.version);
        Ok(())
    }
}

impl Lasting for QuantileStreams {
    const KIND: &'static str = "streams of quantiles";

    fn empty(key: &ResourceKey, _saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<QuantileStreams> {
        Ok(QuantileStreams::new(key.name.clone()))
    }
}

/// The saved state but for the tensors: of each stream the boundaries, and then the summary of each level.
#[derive(Serialize, Deserialize)]
struct Form {
    spec: Option<Spec>,
}

#[derive(Serialize, Deserialize)]
struct Spec {
    epsilon: f32,
    elements: i64,
    /// The number of levels of each stream.
    levels: Vec<u32>,
}

fn loaded(spec: &Spec, saved: &Saved) -> Result<Held> {
    let count = spec.levels.iter().map(|&count| count as usize + 1).sum::<usize>();
    if count != saved.tensors.len() {
        return Err(saved.malformed("the tensors are not those of its streams"));
    }
    let mut held = Held::new(spec.epsilon, spec.elements, spec.levels.len())?;
    let empty = Sketch::new(spec.epsilon, spec.elements)?;
    let mut tensors = saved.tensors.iter();
    for (stream, &levels) in spec.levels.iter().enumerate() {
        let boundaries = tensors.next().filter(|tensor| tensor.dtype() == DType::F32 && tensor.rank() == 1);
        held.boundaries[stream] =
            boundaries.cloned().ok_or_else(|| saved.malformed("boundaries are not a vector of float32"))?;
        let level = |tensor: &Tensor| match *tensor.dims() {
            [_, 4] if tensor.dtype() == DType::F32 => entries_of(tensor),
            _ => Err(saved.malformed("a level is not a summary")),
        };
        let levels = tensors.by_ref().take(levels as usize).map(level).collect::<Result<_>>()?;
        held.sketches[stream] = empty.clone().with_levels(levels);
    }
    Ok(held)
}

impl QuantileStreams {
    /// A handle without streams.
    pub fn new(name: String) -> QuantileStreams {
        QuantileStreams { name, state: Mutex::default() }
    }

    /// Whether there are streams.
    pub fn is_made(&self) -> bool {
        lock(&self.state).held.is_some()
    }

    /// Makes the streams, unless there are some.
    ///
    /// # Errors
    /// InvalidArgument if no stream can have that error; ResourceExhausted over [`MAX_STREAMS`], or over the memory budget.
    pub fn make(&self, epsilon: f32, elements: i64, streams: usize) -> Result<()> {
        let made = Held::new(epsilon, elements, streams)?;
        let state = &mut *lock(&self.state);
        if state.held.is_none() {
            state.held = Some(made);
            state.version.raise();
        }
        Ok(())
    }

    fn with<T>(&self, changes: bool, f: impl FnOnce(&mut Held) -> Result<T>) -> Result<T> {
        let state = &mut *lock(&self.state);
        let Some(held) = &mut state.held else {
            let why =
                format!("Resource {} does not exist: run BoostedTreesCreateQuantileStreamResource first", self.name);
            return Err(Failure::new(Code::NotFound, why));
        };
        if changes {
            state.version.raise();
        }
        f(held)
    }

    /// Adds a summary to each stream.
    ///
    /// # Errors
    /// NotFound if there are no streams; Internal, as in TensorFlow, for another number of them, or a tensor that is no summary;
    /// ResourceExhausted if there is no memory for them.
    pub fn add(&self, summaries: &[Tensor]) -> Result<()> {
        let entries = summaries.iter().map(entries_of).collect::<Result<Vec<_>>>()?;
        self.with(true, |held| {
            held.check("summaries_list.size()", entries.len())?;
            held.sketches.iter_mut().zip(entries).try_for_each(|(sketch, entries)| sketch.push(entries))
        })
    }

    /// The summaries of the first `count` streams, which are emptied with all others.
    ///
    /// # Errors
    /// NotFound if there are no streams; InvalidArgument if there are fewer than `count`; ResourceExhausted.
    pub fn take(&self, count: usize) -> Result<Vec<Tensor>> {
        self.with(true, |held| {
            if count > held.sketches.len() {
                let why = format!("{count} summaries were requested of {} streams", held.sketches.len());
                return Err(Failure::invalid(why));
            }
            memory::admit(held.sketches.iter().map(Sketch::entries).sum::<usize>().saturating_mul(size_of::<Entry>()))?;
            let summaries = held.sketches[..count]
                .iter()
                .map(|sketch| summary_of(&sketch.summary()))
                .collect::<Result<Vec<_>>>()?;
            held.reset()?;
            Ok(summaries)
        })
    }

    /// Replaces the boundaries of each stream with those that divide its elements, and empties it.
    ///
    /// # Errors
    /// NotFound if there are no streams; InvalidArgument if there are no such quantiles; ResourceExhausted.
    pub fn flush(&self, buckets: i64, are_quantiles: bool) -> Result<()> {
        self.with(true, |held| {
            let divided = |sketch: &Sketch| sketch.divide(buckets, are_quantiles).map(Tensor::vector);
            held.boundaries = held.sketches.iter().map(divided).collect::<Result<_>>()?;
            held.reset()
        })
    }

    /// The boundaries of each of `count` streams.
    ///
    /// # Errors
    /// NotFound if there are no streams; Internal, as in TensorFlow, for another number of them.
    pub fn boundaries(&self, count: usize) -> Result<Vec<Tensor>> {
        self.with(false, |held| {
            held.check("num_features_", count)?;
            Ok(held.boundaries.clone())
        })
    }

    /// Replaces the boundaries of the first streams.
    ///
    /// # Errors
    /// NotFound if there are no streams; InvalidArgument if there are fewer, or a tensor is not a vector.
    pub fn restore(&self, boundaries: Vec<Tensor>) -> Result<()> {
        self.with(true, |held| {
            if boundaries.len() > held.boundaries.len() {
                let why = format!("there are {} boundaries, and {} streams", boundaries.len(), held.boundaries.len());
                return Err(Failure::invalid(why));
            }
            for (stream, tensor) in boundaries.iter().enumerate() {
                if tensor.rank() != 1 {
                    let shape = tensor.shape();
                    return Err(Failure::invalid(format!(
                        "bucket boundaries for each stream must be a vector, received shape {shape} for stream {stream}"
                    )));
                }
            }
            held.boundaries.iter_mut().zip(boundaries).for_each(|(own, restored)| *own = restored);
            Ok(())
        })
    }
}
