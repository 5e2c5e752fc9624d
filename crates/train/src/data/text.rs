//! Text data: each line is an example.

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

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
}
