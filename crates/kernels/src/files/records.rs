//! The records of a file, one after another: lines, TFRecords, records of one length, or the whole file.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};

use meshtf_checkpoint::crc32c;
use meshtf_loops::turn::Pace;
use meshtf_tensor::MAX_TEXT_BYTES;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use serde::{Deserialize, Serialize};

use super::{Compression, Folder, Lines, failed};

/// The record format of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Format {
    /// One record, the file's name; the file is not read.
    Name,
    Whole,
    Lines {
        /// The number of lines at the beginning that are not records.
        header: usize,
        compression: Compression,
    },
    TfRecord(Compression),
    Fixed {
        header: usize,
        record: usize,
        footer: usize,
        /// The distance from the beginning of one record to that of the next.
        hop: usize,
        compression: Compression,
    },
}

/// A record: the name of its file with the record's position, and its contents.
pub type Record = (Vec<u8>, Vec<u8>);

/// A file that is being read record by record.
pub struct Records {
    name: Vec<u8>,
    source: Source,
    /// The number of records, or lines, read so far.
    count: u64,
    /// The number of bytes of TFRecords read so far.
    offset: u64,
    pace: Pace,
}

type Bytes = Box<dyn Read + Send>;

enum Source {
    /// Yields its one record once.
    Name,
    Whole(Option<File>),
    Lines(Lines<BufReader<Bytes>>),
    TfRecord(Bytes),
    Fixed {
        bytes: Bytes,
        record: usize,
        footer: usize,
        hop: usize,
        ahead: Vec<u8>,
    },
}

impl Records {
    /// Opens a file below the folder.
    ///
    /// # Errors
    /// As [`Folder::open`]; DataLoss if it is shorter than its header.
    pub fn open(format: &Format, folder: &Folder, name: Vec<u8>) -> Result<Records> {
        let mut count = 0;
        let plain = |compression: Compression| -> Result<Bytes> {
            Ok(compression.reader(BufReader::with_capacity(256 << 10, folder.open(&name)?)))
        };
        let source = match *format {
            Format::Name => Source::Name,
            Format::Whole => Source::Whole(Some(folder.open(&name)?)),
            Format::Lines { header, compression } => {
                let mut lines = Lines::new(BufReader::with_capacity(256 << 10, plain(compression)?));
                while count < header as u64 && lines.next(|error| failed(&name, error))?.is_some() {
                    count += 1;
                }
                Source::Lines(lines)
            }
            Format::TfRecord(compression) => Source::TfRecord(plain(compression)?),
            Format::Fixed { header, record, footer, hop, compression } => {
                let mut bytes = plain(compression)?;
                skip(&mut bytes, header, &mut Pace::new()).map_err(|error| failed(&name, &error))?;
                Source::Fixed { bytes, record, footer, hop, ahead: Vec::new() }
            }
        };
        Ok(Records { name, source, count, offset: 0, pace: Pace::new() })
    }

    /// Skips the first `offset` bytes of a file of TFRecords that has not been read yet.
    ///
    /// # Errors
    /// The system's errors. A file that ends before `offset` has no records.
    pub fn skip_to(&mut self, offset: u64) -> Result<()> {
        let Source::TfRecord(bytes) = &mut self.source else { return Ok(()) };
        let count = usize::try_from(offset).unwrap_or(usize::MAX);
        match skip(bytes, count, &mut self.pace) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(failed(&self.name, &error)),
            _ => self.offset = offset,
        }
        Ok(())
    }

    /// The number of bytes between header and footer, for a file of records of one length that has been read to its end.
    #[inline]
    pub fn body(&self) -> i64 {
        match &self.source {
            Source::Fixed { ahead, footer, record, .. } => {
                (self.count as i64).saturating_mul(*record as i64) + ahead.len() as i64 - *footer as i64
            }
            _ => 0,
        }
    }

    /// The next record; `None` at the end of the file.
    ///
    /// # Errors
    /// DataLoss if the file is corrupt; ResourceExhausted if the record is too large; the system's errors.
    #[allow(clippy::should_implement_trait, reason = "reading fails, and is over after that")]
    pub fn next(&mut self) -> Result<Option<Record>> {
        let Records { name, source, count, offset, pace } = self;
        let failing = |error: &io::Error| failed(name, error);
        let at = |place: u64| [name, b":".as_slice(), place.to_string().as_bytes()].concat();
        let record = match source {
            Source::Name if *count == 0 => Some((name.clone(), name.clone())),
            Source::Name => None,
            Source::Whole(file) => match file.take() {
                None => None,
                Some(mut file) => {
                    let length = file.metadata().map_err(|error| failing(&error))?.len();
                    let length = sized(length, name)?;
                    let whole = read_up_to(&mut file, length, pace).map_err(|error| failing(&error))?;
                    Some((name.clone(), whole))
                }
            },
            Source::Lines(lines) => lines.next(failing)?.map(|mut line| {
                line.retain(|&byte| byte != b'\r');
                (at(*count + 1), line)
            }),
            Source::TfRecord(bytes) => tf_record(bytes, name, offset, pace)?.map(|(place, record)| (at(place), record)),
            Source::Fixed { bytes, record, footer, hop, ahead } => {
                if *count > 0 {
                    let from_ahead = (*hop).min(ahead.len());
                    ahead.drain(..from_ahead);
                    match skip(bytes, *hop - from_ahead, pace) {
                        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
                        skipped => skipped.map_err(|error| failing(&error))?,
                    }
                }
                let missing = sized((*record + *footer) as u64, name)? - ahead.len();
                let more = read_up_to(bytes, missing, pace).map_err(|error| failing(&error))?;
                let is_whole = more.len() == missing;
                ahead.extend(more);
                is_whole.then(|| (at(*count), ahead[..*record].to_vec()))
            }
        };
        *count += u64::from(record.is_some());
        Ok(record)
    }
}

/// The fault of a TFRecord.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordFault {
    /// The file ends within its length.
    NoLength,
    /// The file, or its compressed form, ends within it.
    Truncated,
    /// The checksum of its length, or of its contents, is another; or the compressed form is damaged.
    Corrupted,
    /// It is too large, or the file cannot be read.
    Failed(Failure),
}

/// Reads the next TFRecord of a file of this name, with both of its checksums; `None` at the end of the file.
///
/// # Errors
/// [`RecordFault`].
pub fn read_record(bytes: &mut impl Read, name: &[u8]) -> std::result::Result<Option<Vec<u8>>, RecordFault> {
    record(bytes, name, &mut Pace::new())
}

fn record(bytes: &mut impl Read, name: &[u8], pace: &mut Pace) -> std::result::Result<Option<Vec<u8>>, RecordFault> {
    let mut read = |count: usize| {
        read_up_to(bytes, count, pace).map_err(|error| match error.kind() {
            // Compressed data that is truncated or missing.
            ErrorKind::UnexpectedEof => RecordFault::Truncated,
            ErrorKind::InvalidData | ErrorKind::InvalidInput => RecordFault::Corrupted,
            _ => RecordFault::Failed(failed(name, &error)),
        })
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    let is_right = |data: &[u8], sum: &[u8]| u64::from(crc32c::mask(crc32c::extend(0, data))) == number(sum);
    let head = read(12)?;
    match head.len() {
        0 => return Ok(None),
        12 if !is_right(&head[..8], &head[8..]) => return Err(RecordFault::Corrupted),
        12 => {}
        _ => return Err(RecordFault::NoLength),
    }
    let length = sized(number(&head[..8]), name).map_err(RecordFault::Failed)?;
    let data = read(length)?;
    let sum = read(4)?;
    if data.len() < length || sum.len() < 4 {
        return Err(RecordFault::Truncated);
    }
    if !is_right(&data, &sum) {
        return Err(RecordFault::Corrupted);
    }
    Ok(Some(data))
}

/// The TFRecord that begins at `offset`, and that offset.
fn tf_record(bytes: &mut Bytes, name: &[u8], offset: &mut u64, pace: &mut Pace) -> Result<Option<(u64, Vec<u8>)>> {
    let place = *offset;
    let lost = |what: &str| {
        let shown = String::from_utf8_lossy(name);
        Failure::new(Code::DataLoss, format!("{what} record at {place} of {shown}"))
    };
    let data = match record(bytes, name, pace) {
        Ok(None) => return Ok(None),
        Ok(Some(data)) => data,
        // As in TensorFlow, a file may end within a record's length.
        Err(RecordFault::NoLength) => return Ok(None),
        Err(RecordFault::Truncated) => return Err(lost("truncated")),
        Err(RecordFault::Corrupted) => return Err(lost("corrupted")),
        Err(RecordFault::Failed(failure)) => return Err(failure),
    };
    *offset += 16 + data.len() as u64;
    Ok(Some((place, data)))
}

/// Writes a TFRecord: the length and its checksum, the data and its checksum.
///
/// # Errors
/// The errors of `write`.
pub fn write_record<E>(
    mut write: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    data: &[u8],
) -> std::result::Result<(), E> {
    let length = (data.len() as u64).to_le_bytes();
    let sum = |bytes: &[u8]| crc32c::mask(crc32c::extend(0, bytes)).to_le_bytes();
    let parts: [&[u8]; 4] = [&length, &sum(&length), data, &sum(data)];
    parts.into_iter().try_for_each(&mut write)
}

/// The bytes that [`write_record`] writes.
pub fn as_record(data: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(data.len() + 16);
    let Ok(()) = write_record(
        |part| {
            all.extend_from_slice(part);
            Ok::<(), Infallible>(())
        },
        data,
    );
    all
}

/// A length that fits a tensor and the memory budget.
fn sized(length: u64, name: &[u8]) -> Result<usize> {
    let fits = usize::try_from(length).ok().filter(|&length| length <= MAX_TEXT_BYTES);
    let length = fits.ok_or_else(|| {
        let shown = String::from_utf8_lossy(name);
        let why = format!("{length} bytes of {shown} exceed the limit of {MAX_TEXT_BYTES} bytes per text");
        Failure::new(Code::ResourceExhausted, why)
    })?;
    memory::admit(length)?;
    Ok(length)
}

/// Bytes read between two cancellation checks.
const PART: usize = 1 << 20;

/// Reads up to `most` bytes, or up to the end. Memory is allocated as bytes arrive.
fn read_up_to(bytes: &mut impl Read, most: usize, pace: &mut Pace) -> io::Result<Vec<u8>> {
    let mut whole = Vec::with_capacity(most.min(PART));
    while whole.len() < most {
        let part = (most - whole.len()).min(PART);
        pace.go(100 + part);
        let got = bytes.by_ref().take(part as u64).read_to_end(&mut whole)?;
        if got < part {
            break;
        }
    }
    Ok(whole)
}

/// Skips bytes, reading a part at a time.
fn skip(bytes: &mut impl Read, count: usize, pace: &mut Pace) -> io::Result<()> {
    let mut left = count;
    while left > 0 {
        let part = left.min(PART);
        pace.go(100 + part);
        if io::copy(&mut bytes.by_ref().take(part as u64), &mut io::sink())? < part as u64 {
            return Err(io::Error::from(ErrorKind::UnexpectedEof));
        }
        left -= part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    /// The output of TensorFlow 2.21's `tf.io.TFRecordWriter` for `b"meshtf"`.
    #[test]
    fn a_record_is_tensorflows() {
        let wanted = [6, 0, 0, 0, 0, 0, 0, 0, 115, 105, 213, 55, 109, 101, 115, 104, 116, 102, 67, 128, 21, 188];
        assert_eq!(super::as_record(b"meshtf"), wanted);
    }
}
