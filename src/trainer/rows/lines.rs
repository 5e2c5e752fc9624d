//! The lines of a text. The offset of each is held in memory, 8 bytes per line.

use std::io::{BufRead, Read};
use std::ops::Range;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_train::data::{Lines, MAX_LINE, utf8};

use super::{DataFile, Pieces};

/// Number of offsets for which memory is reserved first; then for as many as there are.
const MORE: usize = 64;
/// The byte order mark of UTF-8, with which a text may begin.
const MARK: &[u8] = "\u{feff}".as_bytes();

#[derive(Debug)]
pub(in super::super) struct TextLines {
    file: DataFile,
    starts: Starts,
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

    /// Frees memory that was reserved for more of them.
    pub fn complete(&mut self) {
        self.0.shrink_to_fit();
    }

    pub fn count(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    /// The offset of a piece, or of the end.
    pub fn at(&self, place: usize) -> u64 {
        self.0[place]
    }

    /// The bytes of a piece.
    ///
    /// # Errors
    /// Those of reading; ResourceExhausted if there is no memory for it.
    pub fn read(&self, file: &DataFile, place: usize) -> Result<Vec<u8>> {
        pieces(file, &self.0, place..place + 1)
    }
}

/// The bytes of pieces that follow each other: each begins at its offset, and ends at the next one.
///
/// # Errors
/// Those of reading; ResourceExhausted if there is no memory for them.
pub(super) fn pieces(file: &DataFile, starts: &[u64], places: Range<usize>) -> Result<Vec<u8>> {
    let (begin, end) = (starts[places.start], starts[places.end]);
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
    pub fn index(file: &DataFile) -> std::result::Result<TextLines, String> {
        let said = |failure: Failure| failure.message;
        let mut starts = Starts::default();
        let end = lines(file.reader(), |_, at, _| starts.push(at).map_err(said))?;
        starts.push(end).map_err(said)?;
        Ok(TextLines { file: file.clone(), starts })
    }
}

/// Passes on the lines of a text, each with its number from 1, its offset and its end; returns the offset of the last end.
///
/// # Errors
/// Names the line that is not UTF-8, or too long; those of `each`.
pub(super) fn lines(
    mut from: impl BufRead,
    mut each: impl FnMut(usize, u64, &str) -> std::result::Result<(), String>,
) -> std::result::Result<u64, String> {
    let (mut at, mut line, mut number) = (0u64, Vec::new(), 0);
    loop {
        line.clear();
        number += 1;
        let limit = MAX_LINE as u64 + 1;
        let read = from.by_ref().take(limit).read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        if at == 0 && line.starts_with(MARK) {
            at = MARK.len() as u64;
            line.drain(..MARK.len());
        }
        if line.is_empty() {
            return Ok(at);
        }
        if read > MAX_LINE {
            return Err(format!("line {number} has more than {MAX_LINE} bytes, the limit"));
        }
        let text = utf8(&line).map_err(|why| format!("line {number} is {why}"))?;
        each(number, at, text)?;
        at += line.len() as u64;
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
        Ok(Lines::of(lines).into_tensor())
    }
}

/// A line without the `\n` or `\r\n` that ends it.
fn without_end(line: &[u8]) -> &[u8] {
    match line.strip_suffix(b"\n") {
        Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
        None => line,
    }
}
