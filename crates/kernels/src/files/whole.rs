//! Files that are written as a whole: whatever had the name has it until then.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use meshtf_tensor::failure::Result;

use super::failed;

/// How many such files this process has begun: no two share a temporary file.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// A file under a name of its own until it is complete; gone if it never is.
pub struct Whole {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    name: Vec<u8>,
    is_complete: bool,
}

impl Whole {
    /// Begins the file at `path`, and the folders that it lies in. Failures call it `name`.
    ///
    /// # Errors
    /// What the system says.
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

    /// What failures call it.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// # Errors
    /// What the system says.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| failed(&self.name, &error))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// What the system says; the file is gone then.
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
    fn drop(&mut self) {
        if !self.is_complete {
            // It is gone already, or its folder is.
            _ = fs::remove_file(&self.temporary);
        }
    }
}
