//! The lines of a text. The offset of each is held in memory, 8 bytes per line.

use std::io::{BufRead, Read};

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Tensor};
use meshtf_train::data::{Lines, MAX_LINE};

use super::{DataFile, Pieces, Takes};

/// Number of offsets per reservation of memory.
const MORE: usize = 1 << 16;
/// The byte order mark of UTF-8, with which a text may begin.
const MARK: &[u8] = "\u{feff}".as_bytes();

#[derive(Debug)]
pub(super) struct TextLines {
    file: DataFile,
    starts: Starts,
    /// The bytes of an example; `None` for strings.
    width: Option<usize>,
}

/// The offsets of the pieces of a file, and the end of the last one.
#[derive(Debug, Default)]
pub(super) struct Starts(Vec<u64>);

impl Starts {
    /// # Errors
    /// ResourceExhausted if there is no memory for it.
    pub fn push(&mut self, at: u64) -> Result<()> {
        if self.0.len() == self.0.capacity() {
            let more = self.0.len().max(MORE);
            memory::admit(more.saturating_mul(size_of::<u64>()))?;
            self.0.reserve_exact(more);
        }
        self.0.push(at);
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    /// The bytes of a piece.
    ///
    /// # Errors
    /// Those of reading; ResourceExhausted if there is no memory for it.
    pub fn read(&self, file: &DataFile, place: usize) -> Result<Vec<u8>> {
        piece(file, &self.0, place)
    }
}

/// The bytes of a piece that begins at its offset, and ends at the next one.
///
/// # Errors
/// Those of reading; ResourceExhausted if there is no memory for it.
pub(super) fn piece(file: &DataFile, starts: &[u64], place: usize) -> Result<Vec<u8>> {
    let (begin, end) = (starts[place], starts[place + 1]);
    memory::admit((end - begin) as usize)?;
    let mut bytes = vec![0; (end - begin) as usize];
    file.read(begin, &mut bytes)?;
    Ok(bytes)
}

impl TextLines {
    /// Finds the lines of a file.
    ///
    /// # Errors
    /// Names the line that is not UTF-8, or too long.
    pub fn index(file: &DataFile, takes: &Takes) -> std::result::Result<TextLines, String> {
        let said = |failure: Failure| failure.message;
        let most = if takes.dtype == DType::String { None } else { takes.width()? };
        let mut from = file.reader();
        let (mut starts, mut at, mut longest, mut line) = (Starts::default(), 0u64, 0, Vec::new());
        loop {
            line.clear();
            let limit = MAX_LINE as u64 + 1;
            let read = from.by_ref().take(limit).read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
            let number = starts.0.len() + 1;
            if at == 0 && line.starts_with(MARK) {
                at = MARK.len() as u64;
                line.drain(..MARK.len());
            }
            if line.is_empty() {
                break;
            }
            starts.push(at).map_err(said)?;
            at += line.len() as u64;
            if read > MAX_LINE {
                return Err(format!("line {number} has more than {MAX_LINE} bytes, the limit"));
            }
            let own = without_end(&line);
            std::str::from_utf8(own).map_err(|error| format!("line {number} is not UTF-8: {error}"))?;
            if let Some(width) = most.filter(|width| own.len() > *width) {
                let length = own.len();
                return Err(format!(
                    "line {number} has {length} bytes, and the placeholder takes {width} of an example"
                ));
            }
            longest = longest.max(own.len());
        }
        starts.push(at).map_err(said)?;
        let width = (takes.dtype != DType::String).then_some(most.unwrap_or(longest));
        Ok(TextLines { file: file.clone(), starts, width })
    }
}

impl Pieces for TextLines {
    fn count(&self) -> usize {
        self.starts.count()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let mut lines = Vec::with_capacity(places.len());
        for &place in places {
            let mut line = self.starts.read(&self.file, place)?;
            line.truncate(without_end(&line).len());
            lines.push(line);
        }
        match self.width {
            None => Ok(Lines::of(lines).into_tensor()),
            Some(width) => Lines::of(lines).bytes(Some(width)),
        }
    }
}

/// A line without the `\n` or `\r\n` that ends it.
fn without_end(line: &[u8]) -> &[u8] {
    match line.strip_suffix(b"\n") {
        Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
        None => line,
    }
}
