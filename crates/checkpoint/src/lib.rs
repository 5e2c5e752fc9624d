//! TensorFlow's checkpoints, in a form that TensorFlow's tools read and write: tensors by name in `PREFIX.index` and
//! `PREFIX.data-00000-of-00001`; and the older form, one file or one per shard.
//!
//! - **Is**: `table` and `bundle`, the format as functions of bytes; `v1`, the older format; `slice`, tensors that are saved
//!   in parts; [`DataDir`], the folder for checkpoints; [`Whole`], any file that is written whole or not at all.
//! - **Knows**: tensors, and files below a [`DataDir`].
//! - **Never** opens a file elsewhere, except with [`Whole`] at a caller's path, and knows no graph, op or step. A save is
//!   atomic: everything is written to temporary files, and renaming the index makes it the checkpoint.

mod bundle;
pub mod crc32c;
mod files;
mod folder;
#[doc(hidden)]
pub mod fuzz;
mod merge;
mod read;
mod slice;
mod table;
pub mod v1;
mod whole;
mod write;

use std::path::{Path, PathBuf};

pub use folder::DataDir;
pub use merge::merge;
use meshtf_tensor::failure::{Code, Failure};
pub use read::Checkpoint;
pub use slice::Slice;
pub use whole::{Whole, write_whole};
pub use write::{Saved, save};

/// Most bytes an index may have: it is read as a whole.
pub const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Most shards a checkpoint may have.
pub const MAX_SHARDS: u32 = 1 << 16;

/// The file with the index of the checkpoint of that prefix.
fn index_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".index")
}

/// The file with the data of one shard.
fn data_path(prefix: &Path, shard: u32, shards: u32) -> PathBuf {
    with_suffix(prefix, &format!(".data-{shard:05}-of-{shards:05}"))
}

/// The folder of the files of the checkpoint with that prefix.
fn folder_of(prefix: &Path) -> PathBuf {
    index_path(prefix).parent().unwrap_or(prefix).to_owned()
}

fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn data_loss(message: impl Into<String>) -> Failure {
    Failure::new(Code::DataLoss, message)
}

/// The failure for an error of the file system.
fn io_failure(doing: &str, path: &Path, error: &std::io::Error) -> Failure {
    use std::io::ErrorKind;
    let code = match error.kind() {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Code::ResourceExhausted,
        ErrorKind::UnexpectedEof => Code::DataLoss,
        ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::AlreadyExists => Code::FailedPrecondition,
        _ => Code::Unknown,
    };
    Failure::new(code, format!("{doing} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
