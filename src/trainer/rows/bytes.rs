//! The unpacked bytes of a file: in memory if they are few, else read from the disk.

use std::io::{BufRead, Cursor};
use std::path::Path;
use std::sync::Arc;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_train::data::unpacked;

use super::super::source::read;
use super::DataFile;

#[derive(Clone, Debug)]
pub(in super::super) enum FileBytes {
    Held(Arc<[u8]>),
    Large(DataFile),
}

impl FileBytes {
    /// Opens a file, which is held in memory if it takes no more than `held` bytes there.
    ///
    /// # Errors
    /// The file cannot be read or unpacked.
    pub fn open(path: &Path, held: u64) -> std::result::Result<FileBytes, String> {
        let said = |failure: Failure| failure.message;
        match DataFile::open(path, held).map_err(said)? {
            Some(file) => Ok(FileBytes::Large(file)),
            None => Ok(FileBytes::Held(unpacked(read(path)?).map_err(said)?.into())),
        }
    }

    /// The same bytes; a file is opened for each read from now on.
    pub fn closed(self) -> FileBytes {
        match self {
            FileBytes::Large(file) => FileBytes::Large(file.closed()),
            held => held,
        }
    }

    /// The file, unless it is held in memory.
    pub fn file(&self) -> Option<&DataFile> {
        match self {
            FileBytes::Held(_) => None,
            FileBytes::Large(file) => Some(file),
        }
    }

    /// The number of bytes that are held in memory.
    pub fn held(&self) -> u64 {
        match self {
            FileBytes::Held(bytes) => bytes.len() as u64,
            FileBytes::Large(_) => 0,
        }
    }

    /// Reads it from its beginning to its end.
    pub fn reader(&self) -> Box<dyn BufRead + '_> {
        match self {
            FileBytes::Held(bytes) => Box::new(Cursor::new(&bytes[..])),
            FileBytes::Large(file) => Box::new(file.reader()),
        }
    }

    /// The bytes from one offset to another.
    ///
    /// # Errors
    /// Those of reading; ResourceExhausted if there is no memory for them.
    pub fn bytes(&self, begin: u64, end: u64) -> Result<Vec<u8>> {
        match self {
            FileBytes::Held(bytes) => {
                let some = bytes.get(begin as usize..end as usize);
                some.map(<[u8]>::to_vec).ok_or_else(|| Failure::invalid("it is shorter than it was"))
            }
            FileBytes::Large(file) => {
                memory::admit((end - begin) as usize)?;
                let mut bytes = vec![0; (end - begin) as usize];
                file.read(begin, &mut bytes)?;
                Ok(bytes)
            }
        }
    }
}
