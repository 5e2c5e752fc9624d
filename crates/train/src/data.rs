//! Training data: examples in tensors, in an order that is determined by a seed, cut into batches; and the files that contain
//! them.

mod arrived;
mod augment;
mod columns;
mod compressed;
mod csv;
mod dates;
mod file;
mod fit;
mod idx;
mod images;
mod kind;
mod measure;
mod npz;
mod numbers;
mod objects;
mod options;
mod order;
#[cfg(feature = "parquet")]
mod parquet;
mod records;
mod resize;
mod source;
mod split;
mod text;
mod tokens;
mod worker_file;

use std::collections::HashMap;
use std::sync::Arc;

pub use arrived::Arrived;
pub use augment::{Augment, Flip};
pub use columns::{BadLine, Chosen, is_missing, selected};
pub use compressed::Compression;
pub use csv::Csv;
pub use dates::iso_date;
pub use file::chosen;
pub use file::{FilePart, SPREADSHEET, is_parquet, is_spreadsheet, is_table, read_tensor, unpacked};
pub use fit::{Also, Fit, Offsets, Prepared, Wanted};
pub use idx::head as idx_head;
pub use idx::read as read_idx;
pub use images::{Images, read_image, read_resized};
pub use kind::kind_of;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, MAX_TEXT_BYTES, Shape, Tensor};
pub use npz::{Member, find as find_npz, largest as largest_in_npz};
pub use npz::{names as names_in_npz, read as read_npz, write as write_npz};
pub use numbers::read as read_numbers;
pub use options::{Category, ClassWeights, Classes, DatePart, LayoutOptions, Missing, Normalize, TableOptions};
pub use order::Order;
pub use records::{Layout, Record, Scanned};
pub use resize::{ImageOptions, Interpolation, Resize, Resizing};
pub use source::{Source, column_name, parquet_text, table_text};
pub use split::{HoldOutBy, Window, WindowRows, windows};
pub use text::{Lines, utf8};
pub use tokens::{
    Coder, Counter, FIRST, MAX_VOCABULARY, PADDING, Standardize, TextOptions, TokenKind, UNKNOWN, VocabularyChoice,
    listed_vocabulary, names_of, vocabulary_of,
};
pub use worker_file::WorkerFile;

/// Most bytes that the pieces of a text may take: its lines or its fields, with their containers.
const MAX_PIECES_BYTES: usize = MAX_TEXT_BYTES.saturating_mul(4);

/// Most bytes of a line of a text or a table.
pub const MAX_LINE: usize = 1 << 26;

/// Examples of one kind that are read on demand.
pub trait Rows: std::any::Any + std::fmt::Debug + Send + Sync {
    /// The number of examples.
    fn count(&self) -> usize;

    /// The dtype and the shape of an example.
    fn example(&self) -> (DType, &[usize]);

    /// The examples with these indices: `[places, ...]`.
    ///
    /// # Errors
    /// Those of reading; InvalidArgument for data that cannot be fed.
    fn read(&self, places: &[usize]) -> Result<Tensor>;

    /// As [`read`](Rows::read), for a training that takes each example in one of these epochs: images may be augmented.
    ///
    /// # Errors
    /// Those of [`read`](Rows::read).
    fn read_in(&self, places: &[usize], epochs: &[u64]) -> Result<Tensor> {
        let _ = epochs;
        self.read(places)
    }
}

/// The values of all examples for one placeholder.
#[derive(Clone, Debug)]
pub enum Column {
    /// A tensor whose first dimension is the examples.
    Held(Tensor),
    /// Read on demand.
    Elsewhere(Arc<dyn Rows>),
    /// In files of the workers: the indices of the examples are fed.
    WorkerFile(Arc<WorkerFile>),
    /// Windows of rows.
    Windows(WindowRows),
}

impl Column {
    /// The number of examples; `None` if it is one value.
    fn count(&self) -> Option<usize> {
        match self {
            Column::Held(tensor) => tensor.dims().first().copied(),
            Column::Elsewhere(rows) => Some(rows.count()),
            Column::WorkerFile(there) => Some(there.count()),
            Column::Windows(windows) => Some(windows.starts.len()),
        }
    }

    /// The dtype of its elements, and the shape of an example.
    fn example(&self) -> (DType, &[usize]) {
        match self {
            Column::Held(tensor) => (tensor.dtype(), tensor.dims().get(1..).unwrap_or_default()),
            Column::Elsewhere(rows) => rows.example(),
            Column::WorkerFile(there) => (there.takes, &there.example),
            Column::Windows(windows) => (windows.rows.example().0, &windows.example),
        }
    }

    fn is_read(&self) -> bool {
        match self {
            Column::Elsewhere(_) => true,
            Column::Windows(windows) => windows.rows.is_read(),
            Column::Held(_) | Column::WorkerFile(_) => false,
        }
    }

    /// The number of each example's value, from 0 in the order in which they occur, for classes: whole numbers or texts, one for
    /// each example. Those that are not in memory are read.
    ///
    /// # Errors
    /// Those of reading; ResourceExhausted if there is no memory for them.
    pub fn keys(&self) -> Result<Option<Vec<u32>>> {
        /// Examples that are read at a time.
        const SOME: usize = 4096;
        let (dtype, example) = self.example();
        let is_class = dtype.is_integer() || dtype == DType::String;
        let is_one = is_class && example.iter().product::<usize>() == 1;
        let (Some(count), Column::Held(_) | Column::Elsewhere(_), true) = (self.count(), self, is_one) else {
            return Ok(None);
        };
        memory::admit(count.saturating_mul(size_of::<u32>()))?;
        let (mut known, mut keys) = (HashMap::<Vec<u8>, u32>::new(), Vec::with_capacity(count));
        let mut add = |key: &[u8]| -> Result<()> {
            let next = known.len() as u32;
            let number = match known.get(key) {
                Some(number) => *number,
                None => {
                    memory::admit(key.len())?;
                    *known.entry(key.to_vec()).or_insert(next)
                }
            };
            keys.push(number);
            Ok(())
        };
        let mut each = |tensor: &Tensor| match (tensor.data(), dtype.size()) {
            (Data::String(texts), _) => texts.iter().try_for_each(|text| add(text)),
            (_, size) => tensor.bytes().unwrap_or_default().chunks(size.unwrap_or(1)).try_for_each(&mut add),
        };
        match self {
            Column::Held(tensor) => each(tensor)?,
            Column::Elsewhere(rows) => {
                for begin in (0..count).step_by(SOME) {
                    each(&rows.read(&(begin..count.min(begin + SOME)).collect::<Vec<_>>())?)?;
                }
            }
            _ => {}
        }
        Ok(Some(keys))
    }

    /// The examples with these indices, as a tensor of this shape; in a training, each in one of `epochs`.
    fn take(&self, places: &[usize], epochs: Option<&[u64]>, shape: Shape) -> Result<Tensor> {
        match self {
            Column::Held(tensor) => taken(tensor, places, shape),
            Column::Elsewhere(rows) => match epochs {
                Some(epochs) => rows.read_in(places, epochs)?.reshaped(shape),
                None => rows.read(places)?.reshaped(shape),
            },
            // The indices themselves are fed, one for each example.
            Column::WorkerFile(there) => Ok(there.indices(places)),
            Column::Windows(windows) => {
                let rows = windows.places(places);
                let of_rows = |count: usize| -> Shape {
                    std::iter::once(count).chain(windows.rows.example().1.iter().copied()).collect()
                };
                if !windows.rows.is_read() {
                    return windows.rows.take(&rows, None, of_rows(rows.len()))?.reshaped(shape);
                }
                // Windows share rows: each is read once, those that follow each other together.
                let mut once = rows.clone();
                once.sort_unstable();
                once.dedup();
                let read = windows.rows.take(&once, None, of_rows(once.len()))?;
                if once == rows {
                    return read.reshaped(shape);
                }
                let at = |row: &usize| once.partition_point(|own| own < row);
                taken(&read, &rows.iter().map(at).collect::<Vec<_>>(), shape)
            }
        }
    }
}

/// Columns with the names of their placeholders, and for each example whether it is held out, if that was decided.
pub type Parts<'e> = (&'e [(String, Column)], Option<&'e [bool]>);

/// Examples: columns of the same number of examples, by the name of the placeholder that they are fed to.
#[derive(Clone, Debug)]
pub struct Examples {
    columns: Vec<(String, Column)>,
    /// The indices of these examples in the columns; `None`: all.
    chosen: Option<Arc<[usize]>>,
    count: usize,
    /// Which of them are held out, if that was decided when they were read.
    held: Option<Arc<[bool]>>,
}

impl Examples {
    /// Of tensors whose first dimension is the examples.
    ///
    /// # Errors
    /// Those of [`of`](Examples::of).
    pub fn new(columns: Vec<(String, Tensor)>) -> Result<Examples> {
        Examples::of(columns.into_iter().map(|(name, tensor)| (name, Column::Held(tensor))).collect())
    }

    /// Examples of columns in memory, or read on demand.
    ///
    /// # Errors
    /// InvalidArgument if there is none, one has no dimension, or not all have as many examples.
    pub fn of(columns: Vec<(String, Column)>) -> Result<Examples> {
        let Some(((first, column), rest)) = columns.split_first() else {
            return Err(Failure::invalid("there is no data"));
        };
        let count = |name: &str, column: &Column| {
            let one = || Failure::invalid(format!("the data for {name} is one value; expected a tensor of examples"));
            column.count().ok_or_else(one)
        };
        let examples = count(first, column)?;
        for (name, column) in rest {
            let own = count(name, column)?;
            if own != examples {
                return Err(Failure::invalid(format!(
                    "there are {examples} examples for {first}, and {own} for {name}"
                )));
            }
        }
        Ok(Examples { columns, chosen: None, count: examples, held: None })
    }

    /// The number of examples.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The names of the placeholders that they are fed to.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// The placeholders that they are fed to, the dtype of the elements, and the shape of an example.
    pub fn columns(&self) -> impl Iterator<Item = (&str, DType, &[usize])> {
        self.columns.iter().map(|(name, column)| {
            let (dtype, example) = column.example();
            (name.as_str(), dtype, example)
        })
    }

    /// The columns with the names of their placeholders, and which examples are held out, if that was decided when they were
    /// read. `None` if these are a part of the examples of the columns.
    #[doc(hidden)]
    pub fn parts(&self) -> Option<Parts<'_>> {
        self.chosen.is_none().then_some((&self.columns, self.held.as_deref()))
    }

    /// Whether a column is read on demand.
    pub fn are_read(&self) -> bool {
        self.columns.iter().any(|(_, column)| column.is_read())
    }

    /// The same examples, of which `held` says for each whether it is held out: [`split`](Examples::split) follows it.
    ///
    /// # Errors
    /// InvalidArgument if there is another number of examples.
    #[doc(hidden)]
    pub fn with_held_out(self, held: Vec<bool>) -> Result<Examples> {
        match held.len() == self.count {
            true => Ok(Examples { held: Some(held.into()), ..self }),
            false => Err(Failure::invalid(format!("there are {} examples, and not {}", self.count, held.len()))),
        }
    }

    /// The files of the columns that are on the workers, column by column, as in [`columns`](Examples::columns).
    pub fn there(&self) -> impl Iterator<Item = Option<&WorkerFile>> {
        self.columns.iter().map(|(_, column)| match column {
            Column::WorkerFile(there) => Some(&**there),
            _ => None,
        })
    }

    /// The bytes of an example, without those of text.
    ///
    /// # Errors
    /// ResourceExhausted if they overflow.
    pub fn example_bytes(&self) -> Result<usize> {
        let bytes = |(_, column): &(String, Column)| {
            let (dtype, shape) = column.example();
            shape.iter().try_fold(dtype.size().unwrap_or(0), |bytes, &size| bytes.checked_mul(size))
        };
        let all = self.columns.iter().try_fold(0usize, |all, column| all.checked_add(bytes(column)?));
        all.ok_or_else(|| Failure::new(Code::ResourceExhausted, "an example has more bytes than can be counted"))
    }

    /// Some of the examples, by their indices: for each column a tensor of the shape `outer` followed by that of an example.
    /// `outer` has as many elements as there are indices. For a column that is on the workers, the tensor contains the
    /// indices in the file, of the shape `outer`.
    ///
    /// # Errors
    /// InvalidArgument if an index is beyond the end; ResourceExhausted if there is no memory for it; those of
    /// [`Rows::read`].
    pub fn take(&self, places: &[usize], outer: &[usize]) -> Result<Vec<Tensor>> {
        self.taken(places, None, outer)
    }

    /// As [`take`](Examples::take), for a training that takes each example in one of these epochs, counted from 0: images are
    /// augmented, if the section `data` specifies it.
    ///
    /// # Errors
    /// Those of [`take`](Examples::take); InvalidArgument if there are not as many epochs as indices.
    #[doc(hidden)]
    pub fn take_in(&self, places: &[usize], epochs: &[u64], outer: &[usize]) -> Result<Vec<Tensor>> {
        match places.len() == epochs.len() {
            true => self.taken(places, Some(epochs), outer),
            false => Err(Failure::invalid(format!("{} examples are taken in {} epochs", places.len(), epochs.len()))),
        }
    }

    fn taken(&self, places: &[usize], epochs: Option<&[u64]>, outer: &[usize]) -> Result<Vec<Tensor>> {
        if let Some(beyond) = places.iter().find(|&&place| place >= self.count) {
            return Err(Failure::invalid(format!("there is no example {beyond}; there are {}", self.count)));
        }
        let chosen: Option<Vec<usize>> =
            self.chosen.as_ref().map(|chosen| places.iter().map(|&place| chosen[place]).collect());
        let places = chosen.as_deref().unwrap_or(places);
        let take = |column: &Column| {
            let (dtype, example) = column.example();
            let shape: Shape = outer.iter().chain(example).copied().collect();
            shape.checked_elements(dtype)?;
            match column {
                Column::WorkerFile(_) => column.take(places, epochs, shape)?.reshaped(outer),
                _ => column.take(places, epochs, shape),
            }
        };
        self.columns.iter().map(|(_, column)| take(column)).collect()
    }

    /// Two sets: the remaining examples, and the examples that are held out, drawn by a seed: a `share` of all, rounded down.
    ///
    /// # Errors
    /// InvalidArgument if the share is not from 0 to below 1; those of [`take`](Examples::take).
    pub fn split(&self, share: f64, seed: u64) -> Result<(Examples, Examples)> {
        self.split_by(&HoldOutBy::Random, share, seed)
    }

    /// As [`split`](Examples::split), chosen in another way.
    ///
    /// # Errors
    /// Those of [`HoldOutBy::held`] and of [`take`](Examples::take).
    #[doc(hidden)]
    pub fn split_by(&self, by: &HoldOutBy, share: f64, seed: u64) -> Result<(Examples, Examples)> {
        let held = match &self.held {
            Some(held) => held.to_vec(),
            None => by.held(share, seed, self.count, None)?,
        };
        let some = |is_held: bool| {
            let places: Vec<usize> = (0..self.count).filter(|&place| held[place] == is_held).collect();
            if self.columns.iter().any(|(_, column)| !matches!(column, Column::Held(_))) {
                let own = |place: usize| self.chosen.as_ref().map_or(place, |chosen| chosen[place]);
                let (count, chosen) = (places.len(), places.into_iter().map(own).collect());
                return Ok(Examples { columns: self.columns.clone(), chosen: Some(chosen), count, held: None });
            }
            let tensors = self.take(&places, &[places.len()])?;
            Examples::new(self.columns.iter().map(|(name, _)| name.clone()).zip(tensors).collect())
        };
        Ok((some(false)?, some(true)?))
    }
}

/// Admits the memory of `count` pieces of a text, each held in `each` bytes: a short compressed file can contain very many.
fn admit_pieces(what: &str, count: usize, each: usize, bytes: usize) -> Result<()> {
    let all = count.saturating_mul(each).saturating_add(bytes);
    if all > MAX_PIECES_BYTES {
        let why = format!("it has up to {count} {what}, which take more than {MAX_PIECES_BYTES} bytes, the limit");
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    memory::admit(all)
}

/// Some of the examples of a tensor.
fn taken(tensor: &Tensor, places: &[usize], shape: Shape) -> Result<Tensor> {
    let count = tensor.dims().first().copied().unwrap_or(0);
    if let Data::String(all) = tensor.data() {
        let size = all.len().checked_div(count).unwrap_or(0);
        let taken = places.iter().flat_map(|&place| all[place * size..(place + 1) * size].iter().cloned());
        return Tensor::new(shape, Data::String(taken.collect()));
    }
    let all = tensor.bytes().unwrap_or_default();
    let size = all.len().checked_div(count).unwrap_or(0);
    let mut bytes = Vec::with_capacity(places.len() * size);
    for &place in places {
        bytes.extend_from_slice(&all[place * size..(place + 1) * size]);
    }
    Tensor::from_bytes(tensor.dtype(), shape, &bytes)
}

#[cfg(test)]
mod tests;
