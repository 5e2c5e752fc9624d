//! Files that graphs write, whole or not at all, with their names in failures.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use meshtf_tensor::failure::Result;

use super::failed;

/// A file under a temporary name until it is complete. It is deleted if it is never completed.
pub struct Whole {
    file: meshtf_checkpoint::Whole,
    name: Vec<u8>,
}

impl Whole {
    /// Begins the file at `path` and creates its parent folders. Failures contain `name`.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin(path: impl AsRef<Path>, name: Vec<u8>) -> Result<Whole> {
        let path = path.as_ref();
        let begun =
            fs::create_dir_all(path.parent().unwrap_or(path)).and_then(|()| meshtf_checkpoint::Whole::begin(path));
        let file = begun.map_err(|error| failed(&name, &error))?;
        Ok(Whole { file, name })
    }

    /// The file's name in failures.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// # Errors
    /// The system's error.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| failed(&self.name, &error))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The system's error; the file is deleted then.
    pub fn end(self) -> Result<()> {
        let Whole { file, name } = self;
        file.end().map(|_| ()).map_err(|error| failed(&name, &error))
    }
}

impl Write for Whole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
