//! Files that graphs name, below the folder that the task was given: found there, opened, and read record by record.

mod inflate;
mod lines;
mod pattern;
mod records;
mod whole;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use inflate::{Compression, inflate};
pub use lines::Lines;
use meshtf_checkpoint::DataDir;
use meshtf_graph::{Attrs, FROM_WORKING_FOLDER};
use meshtf_tensor::failure::{Code, Failure, Result};
pub use pattern::{MAX_ENTRIES, is_match};
pub use records::{Format, Record, Records, write_record};
pub use whole::Whole;

/// The folder below which the files of one node lie.
#[derive(Clone)]
pub struct Folder {
    op: String,
    dir: Option<Arc<DataDir>>,
}

impl Folder {
    /// That of a node with this op and these attributes, of a task whose folder is `dir`, if it has one.
    pub fn of(op: &str, attrs: &Attrs, dir: Option<Arc<DataDir>>) -> Folder {
        let dir = match attrs.get(FROM_WORKING_FOLDER) {
            None => dir,
            Some(_) => {
                // If the working folder was deleted, no folder is its parent.
                let base = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
                dir.map(|dir| Arc::new(DataDir::clone(&dir).from_base(base)))
            }
        };
        Folder { op: op.to_owned(), dir }
    }

    /// # Errors
    /// PermissionDenied if the task's graphs may not touch files.
    pub fn get(&self) -> Result<&DataDir> {
        self.dir.as_deref().ok_or_else(|| {
            let message = format!("{} needs a data folder, but this node was started without one", self.op);
            Failure::new(Code::PermissionDenied, message)
        })
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`DataDir::resolve`]; NotFound and others if the system cannot open it.
    pub fn open(&self, name: &[u8]) -> Result<File> {
        let path = self.get()?.resolve(name)?;
        // A pipe would keep the device's thread until somebody writes to it.
        let file = if path.is_file() || !path.exists() {
            File::open(&path)
        } else {
            Err(io::Error::new(io::ErrorKind::IsADirectory, "Is no regular file"))
        };
        file.map_err(|error| failed(name, &error))
    }
}

/// The failure for an error of the file system, in TensorFlow's words.
pub fn failed(name: &[u8], error: &io::Error) -> Failure {
    use io::ErrorKind;
    let (code, why) = match error.kind() {
        ErrorKind::NotFound => (Code::NotFound, "No such file or directory".to_owned()),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => (Code::PermissionDenied, error.to_string()),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (Code::ResourceExhausted, error.to_string()),
        ErrorKind::UnexpectedEof | ErrorKind::InvalidInput | ErrorKind::InvalidData => {
            (Code::DataLoss, error.to_string())
        }
        ErrorKind::IsADirectory | ErrorKind::NotADirectory => (Code::FailedPrecondition, error.to_string()),
        _ => (Code::Unknown, error.to_string()),
    };
    Failure::new(code, format!("{}; {why}", String::from_utf8_lossy(name)))
}
