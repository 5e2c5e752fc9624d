//! Large files whose examples are read as they are taken: they may be larger than memory.

mod bytes;
mod elements;
mod file;
mod images;
mod lines;
mod records;
mod table;
#[cfg(test)]
mod tests;
mod texts;
mod tokens;

pub(super) use self::bytes::FileBytes;
use self::elements::Elements;
pub use self::file::DataFile;
use self::images::Changes;
pub(super) use self::images::{HeldPieces, decoded, open as open_images, resizing};
pub(super) use self::lines::TextLines;
pub(super) use self::records::{FeatureRows, Form, RecordFiles};
pub(super) use self::table::Table;
pub(super) use self::texts::TextFiles;
pub(super) use self::tokens::{Encoded, Lengths, Strings, TextWindows, TokenText, WindowStarts};
use std::ops::Range;
use std::sync::Arc;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};
use meshtf_train::data::{Chosen, Column, FilePart, Layout, Prepared, Rows};
use meshtf_train::file::DataSource;

use super::source::{elements, fitted};

/// Maximum unpacked size in bytes of a file that is held in memory.
pub(super) const MAX_HELD: u64 = 64 << 20;

/// Examples in the form of their files.
pub(super) trait Pieces: std::fmt::Debug + Send + Sync {
    /// Their number.
    fn count(&self) -> usize;

    /// The examples with these indices, each below the count: `[examples, ...]`.
    ///
    /// # Errors
    /// Those of reading.
    fn read(&self, places: &[usize]) -> Result<Tensor>;
}

/// The examples that a placeholder takes.
#[derive(Clone, Debug)]
pub(super) struct Takes {
    pub dtype: DType,
    pub shape: PartialShape,
    /// The factor of numbers before they are converted.
    pub scale: Option<f64>,
}

impl Takes {
    /// The number of elements of an example, if it is known.
    ///
    /// # Errors
    /// If the number overflows.
    pub fn width(&self) -> std::result::Result<Option<usize>, String> {
        let sizes = self.shape.0.as_ref();
        let sizes = sizes.and_then(|sizes| sizes.get(1..)?.iter().copied().collect::<Option<Vec<_>>>());
        sizes.map(|sizes| elements(&sizes)).transpose()
    }
}

/// The examples of a file, or of a folder of images, in the dtype and shape of a placeholder.
#[derive(Debug)]
pub(super) struct FileRows {
    name: String,
    /// The file, unless it is a folder.
    file: Option<DataFile>,
    pieces: Box<dyn Pieces>,
    takes: Takes,
    /// The random changes of images that are trained with.
    changes: Option<Changes>,
    /// Whether the source and the placeholder alone say how the pieces become examples.
    is_of_source: bool,
    /// The shape of an example.
    example: Vec<usize>,
}

impl FileRows {
    /// The examples of a source in a file; `None` if they cannot be read one by one.
    ///
    /// # Errors
    /// The fault of the file or of its first example; of texts, that of any example.
    pub fn open(file: &DataFile, source: &DataSource, takes: &Takes) -> std::result::Result<Option<FileRows>, String> {
        let named = FilePart { file: source.file.clone(), part: source.part.clone() };
        let said = |failure: Failure| failure.message;
        let pieces: Box<dyn Pieces> = if named.is_text() {
            Box::new(TextLines::index(file)?)
        } else {
            match Elements::find(file, &named).map_err(said)? {
                Some(elements) => Box::new(elements),
                None => return Ok(None),
            }
        };
        FileRows::of(&source.file, Some(file.clone()), pieces, takes).map(Some)
    }

    /// The examples of a table that was read for its placeholders.
    ///
    /// # Errors
    /// The fault of the first example, or of reading.
    pub fn of_table(
        file: &DataFile,
        name: &str,
        layout: &Layout,
        chosen: &Chosen,
        prepared: &Prepared,
        takes: &Takes,
    ) -> std::result::Result<FileRows, String> {
        let table = Table::new(file, layout, chosen, prepared, takes.dtype == DType::String);
        FileRows::of(name, Some(file.clone()), Box::new(table), takes)
    }

    /// Images of a folder, or a feature of TFRecords, for the source of a placeholder; `seed` is that of the order of the
    /// examples.
    ///
    /// # Errors
    /// The fault of the first example.
    pub fn of_source(
        source: &DataSource,
        pieces: Box<dyn Pieces>,
        takes: &Takes,
        seed: u64,
    ) -> std::result::Result<FileRows, String> {
        let changes = source.images.augment.clone().map(|augment| Changes { augment, seed });
        Ok(FileRows { changes, is_of_source: true, ..FileRows::of(&source.file, None, pieces, takes)? })
    }

    /// Examples that are read piece by piece, of a file or of several.
    ///
    /// # Errors
    /// The fault of the first example.
    pub fn of(
        name: &str,
        file: Option<DataFile>,
        pieces: Box<dyn Pieces>,
        takes: &Takes,
    ) -> std::result::Result<FileRows, String> {
        let (name, example) = (name.to_owned(), Vec::new());
        let takes = takes.clone();
        let mut rows = FileRows { name, file, pieces, takes, changes: None, is_of_source: false, example };
        if rows.count() > 0 {
            rows.example = rows.fitting(&[0]).map_err(|failure| failure.message)?.dims()[1..].to_vec();
        }
        Ok(rows)
    }

    /// As a column, which is held in memory if `are_held` says that their file is, they are few and do not change.
    ///
    /// # Errors
    /// The fault of an example.
    pub fn column(self, are_held: bool) -> std::result::Result<Column, String> {
        let bytes = elements(&self.example)?.saturating_mul(self.takes.dtype.size().unwrap_or(1));
        if !are_held || self.changes.is_some() || bytes.saturating_mul(self.count()) as u64 > MAX_HELD {
            return Ok(Column::Elsewhere(Arc::new(self)));
        }
        let all: Vec<usize> = (0..self.count()).collect();
        self.fitting(&all).map(Column::Held).map_err(|failure| failure.message)
    }

    /// These examples as the source has them, if that and the placeholder alone say how they are converted: see
    /// [`of_source`](FileRows::of_source). `None`: they are sent as the placeholder takes them.
    ///
    /// # Errors
    /// Those of reading.
    pub fn raw(&self, places: &[usize]) -> Result<Option<Tensor>> {
        match self.is_of_source {
            true => self.pieces.read(places).map(Some),
            false => Ok(None),
        }
    }

    /// Some examples, in the dtype and shape of the placeholder.
    fn fitting(&self, places: &[usize]) -> Result<Tensor> {
        self.fitting_in(places, None)
    }

    /// As [`fitting`](FileRows::fitting); in a training, each is taken in one of `epochs`.
    fn fitting_in(&self, places: &[usize], epochs: Option<&[u64]>) -> Result<Tensor> {
        let fitting = |some: Range<usize>| -> Result<std::result::Result<Tensor, String>> {
            let (places, epochs) = (&places[some.clone()], epochs.map(|epochs| &epochs[some]));
            let mut raw = self.pieces.read(places)?;
            if let (Some(Changes { augment, seed }), Some(epochs)) = (&self.changes, epochs) {
                raw = augment.apply(&raw, *seed, places, epochs)?;
            }
            Ok(fitted(raw, self.takes.dtype, &self.takes.shape, self.takes.scale))
        };
        let tensor = fitting(0..places.len()).and_then(|fitted| {
            fitted.or_else(|all| {
                // The example that does not fit is found one by one.
                for (at, place) in places.iter().enumerate() {
                    if let Err(why) = fitting(at..at + 1)? {
                        return Err(Failure::invalid(format!("example {place}: {why}")));
                    }
                }
                Err(Failure::invalid(all))
            })
        });
        // Bytes read from a file that has changed are not the data.
        self.file.as_ref().map_or(Ok(()), DataFile::check)?;
        tensor
    }
}

impl Rows for FileRows {
    fn count(&self) -> usize {
        self.pieces.count()
    }

    fn example(&self) -> (DType, &[usize]) {
        (self.takes.dtype, &self.example)
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let at = |failure: Failure| Failure { message: format!("{}: {}", self.name, failure.message), ..failure };
        self.fitting(places).map_err(at)
    }

    fn read_in(&self, places: &[usize], epochs: &[u64]) -> Result<Tensor> {
        let at = |failure: Failure| Failure { message: format!("{}: {}", self.name, failure.message), ..failure };
        self.fitting_in(places, Some(epochs)).map_err(at)
    }
}
