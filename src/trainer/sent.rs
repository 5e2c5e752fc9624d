//! The examples of a training as tensors, for a node that trains with them where their files are not.

use std::collections::BTreeMap;
use std::sync::Arc;

use meshtf_graph::Graph;
use meshtf_graph::op::Role;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::memory::Bytes;
use meshtf_tensor::{DType, Data, Shape, Tensor};
use meshtf_train::data::{Column, Examples, Fit, Window, WindowRows, WorkerFile};
use meshtf_train::file::{DataSource, Sections, Take};

use super::rows::{FileRows, HeldPieces, Takes};
use super::source::as_trained;
use super::{Error, Fits, Found, TrainingData};
use crate::protocol::training::{ColumnForm, RowsForm, SentExamples};

/// Maximum number of texts that are read at a time, and their bytes if they are no longer than those before.
pub(super) const MAX_TEXTS: usize = 256;
const TEXT_BYTES: usize = 1 << 20;

/// Examples as tensors, and their forms.
#[derive(Debug)]
pub struct Sent {
    pub train: SentExamples,
    pub evaluate: Option<SentExamples>,
    /// The measurements of tables, in postcard; and the examples.
    pub tensors: Vec<Tensor>,
}

/// The examples as tensors, read whole: random changes of images are left to the receiver.
///
/// # Errors
/// [`Error::Input`] if they take more than `most` bytes; those of reading.
pub fn sent(data: &TrainingData, most: usize) -> Result<Sent, Error> {
    let mut sending = Sending { left: most, most, tensors: Vec::new() };
    let fits: BTreeMap<&String, Plain> = data.fits.iter().map(|(name, fit)| (name, plain(fit))).collect();
    let bytes = postcard::to_stdvec(&fits).map_err(|error| Error::input(format!("measurements of tables: {error}")))?;
    sending.add(Tensor::scalar(bytes))?;
    let train = sending.examples(&data.train)?;
    let evaluate = data.evaluate.as_ref().map(|own| sending.examples(own)).transpose()?;
    Ok(Sent { train, evaluate, tensors: sending.tensors })
}

struct Sending {
    /// Bytes that may follow.
    left: usize,
    most: usize,
    tensors: Vec<Tensor>,
}

impl Sending {
    fn examples(&mut self, examples: &Examples) -> Result<SentExamples, Error> {
        let Some((columns, held)) = examples.parts() else {
            let names: Vec<(String, ColumnForm)> =
                examples.names().map(|name| (name.to_owned(), ColumnForm::Rows(RowsForm::Fed))).collect();
            self.check(examples.example_bytes()?.saturating_mul(examples.len()))?;
            let take = |places: &[usize]| examples.take(places, &[places.len()]).map_err(Error::from);
            let all = match examples.columns().any(|(_, dtype, _)| dtype == DType::String) {
                true => self.texts(examples.len(), take)?,
                false => take(&(0..examples.len()).collect::<Vec<_>>())?,
            };
            all.into_iter().try_for_each(|tensor| self.add(tensor))?;
            return Ok(SentExamples { columns: names, has_held: false });
        };
        let mut forms = Vec::with_capacity(columns.len());
        for (name, column) in columns {
            let form = match column {
                Column::WorkerFile(_) => ColumnForm::OnWorkers,
                Column::Windows(windows) => self.windows(name, windows)?,
                rows => ColumnForm::Rows(self.rows(name, rows)?),
            };
            forms.push((name.clone(), form));
        }
        held.map_or(Ok(()), |held| self.add(Tensor::vector(held.to_vec())))?;
        Ok(SentExamples { columns: forms, has_held: held.is_some() })
    }

    /// The rows of columns that have texts. The lengths of texts differ, so that only reading them tells their bytes: it ends at
    /// the limit.
    fn texts(&self, count: usize, read: impl Fn(&[usize]) -> Result<Vec<Tensor>, Error>) -> Result<Vec<Tensor>, Error> {
        let (mut columns, mut bytes) = (Vec::<Vec<Tensor>>::new(), 0usize);
        let (mut next, mut longest) = (0, TEXT_BYTES);
        while next < count {
            let some = (TEXT_BYTES / longest.max(1)).clamp(1, MAX_TEXTS).min(count - next);
            let read = read(&(next..next + some).collect::<Vec<_>>())?;
            let own = read.iter().map(content).fold(0, usize::saturating_add);
            bytes = bytes.saturating_add(own);
            self.check(bytes)?;
            longest = if next == 0 { own } else { longest.max(own / some) };
            columns.resize_with(read.len(), Vec::new);
            columns.iter_mut().zip(read).for_each(|(column, part)| column.push(part));
            next += some;
        }
        columns.into_iter().map(|parts| joined(parts, count)).collect::<Result<_, _>>().map_err(Error::from)
    }

    fn windows(&mut self, name: &str, windows: &WindowRows) -> Result<ColumnForm, Error> {
        let (rows, starts, Window { length, ahead, is_range, stride }, example) = windows.parts();
        let rows = self.rows(name, rows)?;
        self.add(Tensor::vector(starts.iter().map(|&start| start as i64).collect()))?;
        let ahead = ahead.map(|(first, last)| (first as u64, last as u64));
        let example = example.iter().map(|&size| size as u64).collect();
        Ok(ColumnForm::Windows { rows, length: length as u64, ahead, is_range, stride: stride as u64, example })
    }

    fn rows(&mut self, name: &str, rows: &Column) -> Result<RowsForm, Error> {
        match rows {
            Column::Held(tensor) => self.add(tensor.clone()).map(|()| RowsForm::Fed),
            Column::Elsewhere(rows) => {
                let at = |failure: Failure| Error::input(format!("data for {name}: {}", failure.message));
                let all: Vec<usize> = (0..rows.count()).collect();
                let own = (&**rows as &dyn std::any::Any).downcast_ref::<FileRows>();
                let raw = |places: &[usize]| own.map_or(Ok(None), |own| own.raw(places));
                let first = raw(&all[..all.len().min(1)]).map_err(at)?;
                let form = if first.is_some() { RowsForm::Raw } else { RowsForm::Fed };
                let read = |places: &[usize]| match form {
                    RowsForm::Raw => raw(places).and_then(|raw| raw.ok_or_else(|| Failure::invalid("it has changed"))),
                    RowsForm::Fed => rows.read(places),
                };
                let (dtype, example) = rows.example();
                if first.as_ref().map_or(dtype, Tensor::dtype) == DType::String && !all.is_empty() {
                    let read = |places: &[usize]| Ok(vec![read(places).map_err(at)?]);
                    self.texts(all.len(), read)?.into_iter().try_for_each(|tensor| self.add(tensor))?;
                    return Ok(form);
                }
                let of_example = example.iter().copied().fold(dtype.size().unwrap_or(1), usize::saturating_mul);
                // Before all are read.
                self.check(first.map_or(of_example, |first| first.byte_len()).saturating_mul(all.len()))?;
                self.add(read(&all).map_err(at)?).map(|()| form)
            }
            Column::WorkerFile(_) | Column::Windows(_) => {
                Err(Error::input(format!("data for {name}: such windows cannot be sent to a node")))
            }
        }
    }

    fn add(&mut self, tensor: Tensor) -> Result<(), Error> {
        let bytes = if tensor.dtype() == DType::String { tensor.heap_bytes() } else { tensor.byte_len() };
        self.check(bytes)?;
        self.left -= bytes;
        self.tensors.push(tensor);
        Ok(())
    }

    fn check(&self, bytes: usize) -> Result<(), Error> {
        match bytes <= self.left {
            true => Ok(()),
            false => Err(Error::input(format!(
                "the examples take more than {}, which is the limit of examples that are sent to a node: put the data on the \
                 workers (\"on_workers\" in the section \"data\"), or train without --detach",
                Bytes(self.most)
            ))),
        }
    }
}

/// Bytes of the elements of a tensor; of texts, with the little that each takes besides.
fn content(tensor: &Tensor) -> usize {
    let handles = if tensor.dtype() == DType::String { tensor.len().saturating_mul(size_of::<Vec<u8>>()) } else { 0 };
    tensor.byte_len().saturating_add(handles)
}

/// Parts that follow each other as one tensor of `count` rows.
fn joined(parts: Vec<Tensor>, count: usize) -> Result<Tensor, Failure> {
    let first = parts.first().ok_or_else(|| Failure::invalid("there is no example"))?;
    let (dtype, row) = (first.dtype(), first.dims().get(1..).unwrap_or_default());
    let shape: Shape = std::iter::once(count).chain(row.iter().copied()).collect();
    if dtype == DType::String {
        let texts = parts.into_iter().map(Tensor::into_vec::<Vec<u8>>).collect::<Result<Vec<_>, _>>()?;
        return Tensor::new(shape, Data::String(texts.into_iter().flatten().collect()));
    }
    let all = parts.iter().map(|part| part.bytes().unwrap_or_default()).collect::<Vec<_>>().concat();
    Tensor::from_bytes(dtype, shape, &all)
}

/// Examples that were sent, for a training of these sections and this graph; those on the workers were `found` by this process.
///
/// # Errors
/// [`Error::Input`] if tensors are missing, or do not fit their forms.
pub fn received(
    (train, evaluate): (&SentExamples, Option<&SentExamples>),
    tensors: &mut impl Iterator<Item = Tensor>,
    sections: &Sections,
    graph: &Graph,
    found: &Found,
) -> Result<TrainingData, Error> {
    let bytes = tensors.next().ok_or_else(missing)?.item::<Vec<u8>>()?;
    let fits: BTreeMap<String, Plain> =
        postcard::from_bytes(&bytes).map_err(|error| Error::input(format!("measurements of tables: {error}")))?;
    let fits: Fits = fits.into_iter().map(|(name, fit)| (name, fit_of(fit))).collect();
    let seed = sections.data.shuffle.unwrap_or(0);
    let train = examples(train, tensors, &sections.data.feed, (graph, found, seed))?;
    let own = sections.evaluate.as_ref().map_or(&[][..], |section| &section.feed);
    let own = as_trained(own, &sections.data.feed);
    let evaluate = evaluate.map(|sent| examples(sent, tensors, &own, (graph, found, 0))).transpose()?;
    Ok(TrainingData { train, evaluate, fits })
}

/// The measurements of a table. In JSON, numbers would lose their last bits.
type Plain = (Vec<String>, BTreeMap<String, Vec<String>>, Vec<Option<f64>>, [Vec<f64>; 3], Vec<String>);

fn plain(fit: &Fit) -> Plain {
    let Fit { columns, labels, fill, shift, factor, weights, vocabulary } = fit.clone();
    (columns, labels, fill, [shift, factor, weights], vocabulary)
}

fn fit_of((columns, labels, fill, [shift, factor, weights], vocabulary): Plain) -> Fit {
    Fit { columns, labels, fill, shift, factor, weights, vocabulary }
}

fn missing() -> Error {
    Error::input("examples are missing in the message")
}

fn examples(
    sent: &SentExamples,
    tensors: &mut impl Iterator<Item = Tensor>,
    feed: &[(String, DataSource)],
    (graph, found, seed): (&Graph, &Found, u64),
) -> Result<Examples, Error> {
    let mut columns = Vec::with_capacity(sent.columns.len());
    for (name, form) in &sent.columns {
        let at = |why: &dyn std::fmt::Display| Error::input(format!("data for {name}: {why}"));
        let source = feed.iter().find(|(own, _)| own == name).map(|(_, source)| source);
        let source = || source.ok_or_else(|| at(&"the sections have no such source"));
        let mut rows = |form: RowsForm| -> Result<Column, Error> {
            let tensor = tensors.next().ok_or_else(missing)?;
            match form {
                RowsForm::Fed => Ok(Column::Held(tensor)),
                RowsForm::Raw => {
                    let (source, pieces) = (source()?, HeldPieces::of(tensor).map_err(|why| at(&why))?);
                    let takes = takes(graph, name, source)?;
                    let rows = FileRows::of_source(source, Box::new(pieces), &takes, seed).map_err(|why| at(&why))?;
                    Ok(Column::Elsewhere(Arc::new(rows)))
                }
            }
        };
        let column = match form {
            ColumnForm::Rows(form) => rows(*form)?,
            ColumnForm::OnWorkers => {
                on_workers(source()?, &takes(graph, name, source()?)?, found).map_err(|why| at(&why))?
            }
            ColumnForm::Windows { rows: form, length, ahead, is_range, stride, example } => {
                let rows = rows(*form)?;
                let starts = tensors.next().ok_or_else(missing)?.to_i64s()?;
                let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
                let ahead = ahead.map(|(first, last)| (size(first), size(last)));
                let window = Window { length: size(*length), ahead, is_range: *is_range, stride: size(*stride) };
                // A negative one is beyond all rows.
                let starts = starts.into_iter().map(|start| usize::try_from(start).unwrap_or(usize::MAX)).collect();
                let example = example.iter().map(|&one| size(one)).collect();
                Column::Windows(WindowRows::checked(rows, starts, window, example).map_err(|why| at(&why.message))?)
            }
        };
        columns.push((name.clone(), column));
    }
    let examples = Examples::of(columns)?;
    match sent.has_held {
        true => {
            let held = tensors.next().ok_or_else(missing)?;
            Ok(examples.with_held_out(held.slice::<bool>()?.to_vec())?)
        }
        false => Ok(examples),
    }
}

/// The examples that a placeholder takes.
fn takes(graph: &Graph, name: &str, source: &DataSource) -> Result<Takes, Error> {
    let found = graph.find(name).map(|id| graph.node(id)).filter(|node| node.op.role == Role::Placeholder);
    let node = found.ok_or_else(|| Error::input(format!("data for {name}: the graph has no such placeholder")))?;
    Ok(Takes { dtype: node.outputs[0].dtype, shape: node.attrs.shape("shape")?.clone(), scale: source.scale })
}

fn on_workers(source: &DataSource, takes: &Takes, found: &Found) -> Result<Column, String> {
    // A source of another kind would be a file of this process.
    let head = found.0.get(&source.file).filter(|_| source.take == Take::WorkerFile);
    let head = head.ok_or("the workers were not asked for it")?;
    let there = WorkerFile::of(&source.file, head, takes.scale, takes.dtype, &takes.shape);
    there.map(|there| Column::WorkerFile(Arc::new(there))).map_err(|failure| failure.message)
}
