//! Access to the files that graphs name, below the task's data folder: resolving a name, opening a file, reading it
//! record by record.

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
pub use records::{Format, Record, RecordFault, Records, as_record, read_record, write_record};
pub use whole::Whole;

/// The folder that contains the files of one node.
#[derive(Clone)]
pub struct Folder {
    op: String,
    dir: Option<Arc<DataDir>>,
    is_from_working_folder: bool,
}

impl Folder {
    /// The folder of a node with this op and these attributes; `dir` is that of the task, if it has one.
    pub fn of(op: &str, attrs: &Attrs, dir: Option<Arc<DataDir>>) -> Folder {
        Folder::new(op, attrs.get(FROM_WORKING_FOLDER).is_some(), dir)
    }

    /// The folder of a node with this op, whose names are relative to the working folder of the process or to `dir`.
    pub fn new(op: &str, is_from_working_folder: bool, dir: Option<Arc<DataDir>>) -> Folder {
        let dir = match is_from_working_folder {
            false => dir,
            true => {
                // Without a working folder (it was deleted), names are relative to the root.
                let base = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
                dir.map(|dir| Arc::new(DataDir::clone(&dir).from_base(base)))
            }
        };
        Folder { op: op.to_owned(), dir, is_from_working_folder }
    }

    /// The op of the node.
    pub fn op(&self) -> &str {
        &self.op
    }

    /// Whether relative names are relative to the working folder of the process.
    pub fn is_from_working_folder(&self) -> bool {
        self.is_from_working_folder
    }

    /// # Errors
    /// PermissionDenied if the task's graphs must not access files.
    pub fn get(&self) -> Result<&DataDir> {
        self.dir.as_deref().ok_or_else(|| {
            let message = format!("{} needs a data folder, but this node was started without one", self.op);
            Failure::new(Code::PermissionDenied, message)
        })
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`DataDir::resolve`]; NotFound or another code if the system cannot open it.
    pub fn open(&self, name: &[u8]) -> Result<File> {
        let path = self.get()?.resolve(name)?;
        // Opening a pipe would block the device's thread until another process opens it for writing.
        let file = if path.is_file() || !path.exists() {
            File::open(&path)
        } else {
            Err(io::Error::new(io::ErrorKind::IsADirectory, "Is no regular file"))
        };
        file.map_err(|error| failed(name, &error))
    }
}

/// The failure for an error of the file system, with TensorFlow's code and wording.
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
