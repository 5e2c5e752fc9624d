//! Text data: each line is an example.

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::admit_pieces;

/// The bytes as text.
///
/// # Errors
/// Names the first byte that is not UTF-8, and the way to convert the file.
pub fn utf8(bytes: &[u8]) -> std::result::Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| match bytes.get(error.valid_up_to()) {
        _ if is_utf16(bytes) => format!("not UTF-8: {UTF16}"),
        Some(byte) => format!(
            "not UTF-8: it has the byte 0x{byte:02x}; is it Windows-1252 or Latin-1? `iconv -f windows-1252 -t utf-8` \
             converts it"
        ),
        None => format!("not UTF-8: {error}"),
    })
}

/// The remark on a text of UTF-16.
pub(super) const UTF16: &str = "it is UTF-16; `iconv -f utf-16 -t utf-8` converts it";

/// Whether a text begins with the mark of UTF-16.
pub(super) fn is_utf16(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff])
}

/// The lines of a text, without their terminators.
#[derive(Clone, Debug)]
pub struct Lines(Vec<Vec<u8>>);

impl Lines {
    /// # Errors
    /// InvalidArgument if it is not UTF-8; ResourceExhausted if it has too many lines to hold.
    pub fn read(bytes: &[u8]) -> Result<Lines> {
        let text = utf8(bytes).map_err(|why| Failure::invalid(format!("it is {why}")))?;
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
