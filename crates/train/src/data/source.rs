//! The text of a table: the file itself, unpacked, or the rows of a Parquet file as fields that are separated by commas.

use std::io::Read;

use meshtf_tensor::failure::{Failure, Result};

use super::file::{all_of, is_parquet};
use super::{kind_of, unpacked};

/// Bytes with random access.
pub trait Source: Send + Sync + 'static {
    /// Their number.
    fn length(&self) -> u64;

    /// Reads bytes from an offset on.
    ///
    /// # Errors
    /// Those of reading; InvalidArgument beyond the end.
    fn read(&self, begin: u64, to: &mut [u8]) -> Result<()>;
}

impl Source for Vec<u8> {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, begin: u64, to: &mut [u8]) -> Result<()> {
        let from = usize::try_from(begin).ok().and_then(|begin| self.get(begin..begin.checked_add(to.len())?));
        to.copy_from_slice(from.ok_or_else(|| Failure::invalid("it ends too early"))?);
        Ok(())
    }
}

/// The text of the table in a file of this name, which has these bytes.
///
/// # Errors
/// Those of [`unpacked`] and [`parquet_text`]; ResourceExhausted if the text exceeds the limit of a tensor.
pub fn table_text(file: &str, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let bytes = unpacked(bytes)?;
    if is_parquet(file) { all_of(parquet_text(bytes)?) } else { Ok(bytes) }
}

/// The rows of a Parquet file, as a text of a line with the names and lines with the fields: they are separated by commas and
/// quoted where necessary; those of missing values are empty. It is decoded as it is read. [`column_name`] tells the columns
/// that are no fields of a table.
///
/// # Errors
/// InvalidArgument if it is no Parquet file, or is damaged.
pub fn parquet_text(source: impl Source) -> Result<Box<dyn Read>> {
    let mut start = vec![0; source.length().min(4096) as usize];
    source.read(0, &mut start)?;
    if !start.starts_with(b"PAR1") {
        return Err(Failure::invalid(match start.starts_with(b"PARE") {
            true => "it is an encrypted Parquet file; expected one without encryption".to_owned(),
            false => format!("this is {}, and no Parquet file as its name says", kind_of(&start)),
        }));
    }
    decoded(source)
}

/// The mark of a column that no placeholder can take, in the names of a table's text.
const MARK: char = '\u{0}';

/// The name that a column which cannot be taken has in the text of a table, where its fields are empty. `is` says why, such as
/// `is a list`.
#[cfg(feature = "parquet")]
pub(super) fn barred(name: &str, is: &str) -> String {
    format!("{MARK}{is}{MARK}{name}")
}

/// The name of a column; and the reason why it cannot be taken, if it cannot.
pub fn column_name(name: &str) -> (&str, Option<&str>) {
    match name.strip_prefix(MARK).and_then(|rest| rest.split_once(MARK)) {
        Some((is, name)) => (name, Some(is)),
        None => (name, None),
    }
}

#[cfg(feature = "parquet")]
fn decoded(source: impl Source) -> Result<Box<dyn Read>> {
    Ok(Box::new(super::parquet::Rows::open(source)?))
}

#[cfg(not(feature = "parquet"))]
fn decoded(_: impl Source) -> Result<Box<dyn Read>> {
    Err(super::file::no_parquet())
}
