//! Text data: each line is an example.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::admit_pieces;

/// The lines of a text, without their terminators.
#[derive(Clone, Debug)]
pub struct Lines(Vec<Vec<u8>>);

impl Lines {
    /// # Errors
    /// InvalidArgument if it is not UTF-8; ResourceExhausted if it has too many lines to hold.
    pub fn read(bytes: &[u8]) -> Result<Lines> {
        let text = std::str::from_utf8(bytes).map_err(|error| Failure::invalid(format!("it is not UTF-8: {error}")))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let count = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
        admit_pieces("lines", count, size_of::<Vec<u8>>(), bytes.len())?;
        let mut lines = Vec::with_capacity(count);
        lines.extend(text.lines().map(|line| line.as_bytes().to_vec()));
        Ok(Lines(lines))
    }

    /// Lines that were read one by one.
    pub fn of(lines: Vec<Vec<u8>>) -> Lines {
        Lines(lines)
    }

    /// As strings, `[lines]`.
    pub fn into_tensor(self) -> Tensor {
        Tensor::vector(self.0)
    }

    /// The bytes of each line as numbers, padded with zeros: `[lines, width]`, uint8. Without a width, it is that of the
    /// longest line.
    ///
    /// # Errors
    /// InvalidArgument for a line that is longer; ResourceExhausted if they are too many.
    pub fn bytes(&self, width: Option<usize>) -> Result<Tensor> {
        let width = width.unwrap_or_else(|| self.0.iter().map(Vec::len).max().unwrap_or(0));
        let mut tensor = Tensor::zeros(DType::U8, [self.0.len(), width])?;
        let rows = tensor.slice_mut::<u8>()?.chunks_mut(width.max(1));
        for (i, (line, row)) in self.0.iter().zip(rows).enumerate() {
            let Some(own) = row.get_mut(..line.len()) else {
                let (number, length) = (i + 1, line.len());
                return Err(Failure::invalid(format!(
                    "line {number} has {length} bytes, and the placeholder takes {width} of an example"
                )));
            };
            own.copy_from_slice(line);
        }
        Ok(tensor)
    }
}
