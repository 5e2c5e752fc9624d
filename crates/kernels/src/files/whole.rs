//! Files that are written atomically: an existing file of the same name stays until the new one is complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use meshtf_tensor::failure::Result;

use super::failed;

/// The number of such files begun by this process, so that no two share a temporary file.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// A file under a temporary name until it is complete. It is deleted if it is never completed.
pub struct Whole {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    name: Vec<u8>,
    is_complete: bool,
}

impl Whole {
    /// Begins the file at `path` and creates its parent folders. Failures contain `name`.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin(path: PathBuf, name: Vec<u8>) -> Result<Whole> {
        let failing = |error: io::Error| failed(&name, &error);
        let parent = path.parent().unwrap_or(&path);
        fs::create_dir_all(parent).map_err(failing)?;
        let mut own = path.file_name().unwrap_or_default().to_owned();
        let number = BEGUN.fetch_add(1, Ordering::Relaxed);
        own.push(format!(".tempstate{}-{number}", std::process::id()));
        let temporary = parent.join(own);
        let file = BufWriter::new(File::create(&temporary).map_err(failing)?);
        Ok(Whole { file, temporary, path, name, is_complete: false })
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
    pub fn end(mut self) -> Result<()> {
        let written = self.file.flush().and_then(|()| fs::rename(&self.temporary, &self.path));
        self.is_complete = written.is_ok();
        written.map_err(|error| failed(&self.name, &error))
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

impl Drop for Whole {
    #[inline]
    fn drop(&mut self) {
        if !self.is_complete {
            // An error means that the file or its folder was already deleted.
            _ = fs::remove_file(&self.temporary);
        }
    }
}
