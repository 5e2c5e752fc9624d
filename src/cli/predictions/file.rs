//! Files of predictions, which are written whole or not at all.

use std::io::Write;
use std::path::{Path, PathBuf};

use meshtf::trainer::unseen::Id;
use meshtf_checkpoint::Whole;
use meshtf_tensor::{DType, Tensor, npy};

use super::{Field, Header, Record};
use crate::cli::Trouble;
use crate::cli::inputs::StepRequest;
use crate::cli::output::make_folder_of;

/// The form of predictions, by a file's extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Form {
    Csv,
    JsonLines,
    /// The numbers alone.
    Npy,
}

impl Form {
    /// All, by their extensions.
    const NAMES: [(&str, Form); 3] = [("csv", Form::Csv), ("jsonl", Form::JsonLines), ("npy", Form::Npy)];

    /// The form that the extension of a file states; `None` without one, and for any other.
    pub fn of(path: &Path) -> Option<Form> {
        let ending = path.extension()?.to_string_lossy().to_lowercase();
        Form::NAMES.iter().find(|(name, _)| *name == ending).map(|(_, form)| *form)
    }
}

/// Predictions as bytes, record by record.
#[derive(Debug)]
pub(in crate::cli) struct Encoder {
    form: Form,
    /// The number of all records, and of the numbers of one.
    count: usize,
    width: Option<usize>,
}

impl Encoder {
    pub fn new(form: Form, count: usize) -> Encoder {
        Encoder { form, count, width: None }
    }

    /// Adds records.
    ///
    /// # Errors
    /// Bad input if the form cannot hold them.
    pub fn add(&mut self, header: &Header, records: &[Record], to: &mut Vec<u8>) -> Result<(), Trouble> {
        for record in records {
            match self.form {
                Form::Csv => {
                    let columns = header.columns(record, false);
                    if self.sized(columns.len())? {
                        csv_line(columns, to);
                    }
                    csv_line(header.cells(record, false), to);
                }
                Form::JsonLines => {
                    to.extend_from_slice(header.json(record).as_bytes());
                    to.push(b'\n');
                }
                Form::Npy => self.numbers(record, to)?,
            }
        }
        Ok(())
    }

    /// Whether this is the first record, of this size.
    fn sized(&mut self, width: usize) -> Result<bool, Trouble> {
        match self.width {
            Some(first) if first != width => Err(Trouble::input(format!(
                "the answers have different sizes, {first} and {width} numbers; write .jsonl, which can hold them"
            ))),
            first => {
                self.width = Some(width);
                Ok(first.is_none())
            }
        }
    }

    fn numbers(&mut self, record: &Record, to: &mut Vec<u8>) -> Result<(), Trouble> {
        let [field] = &record.fields[..] else {
            return Err(Trouble::input("a .npy file holds one array: fetch one tensor, or write .csv or .jsonl"));
        };
        let (dtype, sizes) = match field {
            Field::Class(_, all) => (DType::F32, vec![self.count, all.len()]),
            Field::Values(values) => (DType::F64, vec![self.count, values.len()]),
            Field::Number(_) => (DType::I64, vec![self.count]),
            Field::Texts(_) => return Err(Trouble::input("text is not written as .npy; write .csv or .jsonl")),
        };
        if self.sized(sizes[1..].iter().product())? {
            to.extend(npy::header(dtype, &sizes)?);
        }
        match field {
            Field::Number(class) => to.extend(class.to_le_bytes()),
            Field::Class(_, all) => to.extend(all.iter().flat_map(|number| number.to_le_bytes())),
            Field::Values(values) => to.extend(values.iter().flat_map(|number| number.to_le_bytes())),
            Field::Texts(_) => {}
        }
        Ok(())
    }
}

/// A line of a .csv file; fields with a comma, a quote or a line break are quoted.
pub(in crate::cli) fn csv_line(cells: Vec<String>, to: &mut Vec<u8>) {
    for (i, cell) in cells.iter().enumerate() {
        if i > 0 {
            to.push(b',');
        }
        match cell.contains([',', '"', '\n', '\r']) || cell.trim() != cell {
            true => to.extend(format!("\"{}\"", cell.replace('"', "\"\"")).into_bytes()),
            false => to.extend_from_slice(cell.as_bytes()),
        }
    }
    to.push(b'\n');
}

/// A file under another name until it is complete.
#[derive(Debug)]
pub(in crate::cli) struct OutFile {
    path: PathBuf,
    file: Whole,
    encoder: Encoder,
}

impl OutFile {
    /// Begins a file of `count` records.
    ///
    /// # Errors
    /// Bad input if it cannot be written.
    pub fn create(path: &Path, form: Form, count: usize) -> Result<OutFile, Trouble> {
        let file = make_folder_of(path)
            .and_then(|()| Whole::begin(path))
            .map_err(|error| Trouble::input(format!("--out {}: {error}", path.display())))?;
        Ok(OutFile { path: path.to_owned(), file, encoder: Encoder::new(form, count) })
    }

    /// Adds records.
    ///
    /// # Errors
    /// Bad input if they cannot be written.
    pub fn add(&mut self, header: &Header, records: &[Record]) -> Result<(), Trouble> {
        let mut bytes = Vec::new();
        self.encoder.add(header, records, &mut bytes)?;
        self.file.write_all(&bytes).map_err(|error| cannot(&self.path, &error))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// Bad input if it cannot be written.
    pub fn finish(mut self) -> Result<(), Trouble> {
        let synced = self.file.sync();
        synced.and_then(|()| self.file.end()).map(|_| ()).map_err(|error| cannot(&self.path, &error))
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::input(format!("cannot write {}: {error}; no file is left", path.display()))
}

/// Writes the values of a step as records of the examples that were fed.
///
/// # Errors
/// Bad input if a value has not one answer for each example, or the file cannot be written.
pub(in crate::cli) async fn save_records(
    path: &Path,
    form: Form,
    job: &StepRequest,
    values: &[Tensor],
) -> Result<(), Trouble> {
    let (mut header, read) = job.predictions()?;
    // One number is the answer for one example.
    let as_row = |value: &Tensor| if value.rank() == 0 { value.clone().reshaped([1]) } else { Ok(value.clone()) };
    let values = &values.iter().map(as_row).collect::<Result<Vec<_>, _>>()?[..];
    let first =
        values.first().ok_or_else(|| Trouble::input("--out: nothing is fetched, so there is nothing to write"))?;
    let rows = match (read, first.dims().first()) {
        (Some(read), _) => read.len(),
        (None, Some(&rows)) => rows,
        (None, None) => 1,
    };
    let (name, ids) = match read {
        Some(read) => {
            let mut ids = read.ids(None)?;
            (ids.header.clone(), ids.next(rows).await?)
        }
        None => ("example".to_owned(), (0..rows as u64).map(Id::Number).collect()),
    };
    header.ids = vec![name];
    let records = header.records(ids.into_iter().map(|id| vec![id]).collect(), values, rows, rows)?;
    let mut file = OutFile::create(path, form, rows)?;
    file.add(&header, &records)?;
    file.finish()
}
