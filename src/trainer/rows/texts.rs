//! Texts of a folder, each a file that is read when it is taken.

use std::path::PathBuf;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_train::data::{unpacked, utf8};

use super::super::source::read;
use super::Pieces;

#[derive(Debug)]
pub(in super::super) struct TextFiles {
    /// The files, each with its name in messages.
    pub files: Vec<(PathBuf, String)>,
}

impl TextFiles {
    /// Whether they take no more than `held` bytes together, as they are on the disk.
    pub fn are_few(&self, held: u64) -> bool {
        let bytes = self.files.iter().map(|(path, _)| path.metadata().map_or(0, |found| found.len()));
        bytes.fold(0u64, u64::saturating_add) <= held
    }

    fn text(&self, place: usize) -> Result<Vec<u8>> {
        let (path, name) = &self.files[place];
        let bytes = read(path).map_err(Failure::invalid).and_then(unpacked);
        let named = |failure: Failure| Failure { message: format!("{name}: {}", failure.message), ..failure };
        let bytes = bytes.map_err(named)?;
        let text = utf8(&bytes).map_err(|why| named(Failure::invalid(format!("it is {why}"))))?;
        Ok(text.strip_prefix('\u{feff}').unwrap_or(text).as_bytes().to_vec())
    }
}

impl Pieces for TextFiles {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        places.iter().map(|&place| self.text(place)).collect::<Result<Vec<_>>>().map(Tensor::vector)
    }
}
