//! Images of a folder, each decoded when it is taken.

use std::path::PathBuf;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_train::data::{Images, read_image};

use super::super::source::read;
use super::Pieces;

#[derive(Debug)]
pub(in super::super) struct ImageRows {
    /// The files, each with its name in messages.
    files: Vec<(PathBuf, String)>,
    channels: usize,
    /// The height and width of all.
    size: [usize; 2],
    is_resized: bool,
}

impl ImageRows {
    /// Images that take more than `held` bytes together in decoded form; `None` if they take no more.
    ///
    /// # Errors
    /// Names the image that is not valid, as far as they were checked.
    pub fn of(
        files: Vec<(PathBuf, String)>,
        channels: usize,
        resized: Option<[usize; 2]>,
        held: u64,
    ) -> std::result::Result<Option<ImageRows>, String> {
        let Some((path, name)) = files.first() else { return Ok(None) };
        let first =
            read(path).and_then(|bytes| read_image(&bytes, channels, resized).map_err(|failure| failure.message));
        let first = first.map_err(|why| format!("{name}: {why}"))?;
        let bytes = (first.len() as u64).saturating_mul(files.len() as u64);
        let size = [first.dims()[0], first.dims()[1]];
        Ok((bytes > held).then_some(ImageRows { files, channels, size, is_resized: resized.is_some() }))
    }
}

impl Pieces for ImageRows {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let resized = self.is_resized.then_some(self.size);
        let mut images = Images::of_size(self.channels, resized, self.size);
        for &place in places {
            let (path, name) = &self.files[place];
            let added = read(path).and_then(|bytes| images.add(&bytes).map_err(|failure| failure.message));
            added.map_err(|why| Failure::invalid(format!("{name}: {why}")))?;
        }
        images.finish()
    }
}
