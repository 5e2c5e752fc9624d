//! The file operations of a save. Each is defined once, in this module, so that a test can make any of them fail.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use meshtf_tensor::failure::{Failure, Result};

use super::{folder_of, io_failure, with_suffix};

/// The part of the name of an unfinished file before the process's number and a count.
const TEMPORARY: &str = ".tempstate";
/// The contents of such files: the part of the name before that.
const CONTENTS: [&str; 3] = ["data", "index", "v1"];
/// The number of attempts to create a temporary file, each after another save removed the previous one.
const TRIES: usize = 8;

fn operation<T>(run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    #[cfg(test)]
    faults::pass()?;
    run()
}

/// Makes the folder of a prefix.
pub(super) fn make_folder(prefix: &Path) -> Result<PathBuf> {
    let folder = folder_of(prefix);
    operation(|| fs::create_dir_all(&folder)).map_err(|error| io_failure("cannot make", &folder, &error))?;
    Ok(folder)
}

pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    operation(|| File::open(folder)?.sync_all()).map_err(|error| io_failure("cannot sync", folder, &error))
}

/// Adds a hard link to a file. If the file system has none, renames the file.
pub(super) fn link(file: &Path, to: &Path) -> Result<()> {
    let linked = operation(|| fs::hard_link(file, to)).or_else(|_| operation(|| fs::rename(file, to)));
    linked.map_err(|error| io_failure("cannot move", file, &error))
}

/// Removes a file that is not needed any more; a failure is ignored.
pub(super) fn remove(file: &Path) {
    let _ = operation(|| fs::remove_file(file));
}

/// Removes a folder if it is empty.
pub(super) fn remove_folder(folder: &Path) {
    let _ = operation(|| fs::remove_dir(folder));
}

/// Removes the temporary files in a folder that no save is writing: those of processes that were killed. A save in progress
/// holds a lock on its file.
pub(super) fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_temporary)
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            remove(&entry.path());
        }
    }
}

/// Whether [`temporary_path`] made the name.
fn is_temporary(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.rsplit_once(TEMPORARY).is_some_and(|(before, numbers)| {
        let is_content = before.rsplit_once('.').is_some_and(|(_, content)| CONTENTS.contains(&content));
        is_content && numbers.split_once('-').is_some_and(|(process, count)| is_number(process) && is_number(count))
    })
}

fn temporary_path(prefix: &Path, content: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    with_suffix(prefix, &format!(".{content}{TEMPORARY}{}-{count}", std::process::id()))
}

/// The cause of a failed write: the file, or the content.
pub(super) enum Error {
    Io(io::Error),
    Failed(Failure),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Failed(failure)
    }
}

/// A file that is being written.
pub(super) struct Output(File);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(test)]
        if let Err(error) = faults::pass() {
            // A write that fails may have written half.
            let _ = self.0.write(&bytes[..bytes.len() / 2]);
            return Err(error);
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A temporary file in the folder of its target, removed on drop unless it was renamed to the target.
pub(super) struct Beside {
    path: PathBuf,
    /// Open, and so locked, until the file is in place: another save does not remove it as abandoned.
    _file: Option<File>,
}

impl Beside {
    /// Writes a file for `prefix` and syncs it to the disk; returns the result of `content`.
    pub fn write<T>(
        prefix: &Path,
        what: &str,
        content: impl FnOnce(&mut BufWriter<Output>) -> Result<T, Error>,
    ) -> Result<(Beside, T)> {
        let (path, file) = Beside::create(prefix, what)?;
        let mut beside = Beside { path, _file: None };
        let io = |error| io_failure("cannot write", &beside.path, &error);
        let mut file = BufWriter::with_capacity(1 << 18, Output(file));
        let answer = content(&mut file).map_err(|error| match error {
            Error::Io(error) => io(error),
            Error::Failed(failure) => failure,
        })?;
        let Output(file) = file.into_inner().map_err(|error| io(error.into_error()))?;
        operation(|| file.sync_all()).map_err(io)?;
        beside._file = Some(file);
        Ok((beside, answer))
    }

    /// A new file that no other save removes.
    fn create(prefix: &Path, what: &str) -> Result<(PathBuf, File)> {
        for _ in 0..TRIES {
            let path = temporary_path(prefix, what);
            // A leftover of a killed process with the same number has no owner.
            let _ = fs::remove_file(&path);
            let file =
                operation(|| File::create_new(&path)).map_err(|error| io_failure("cannot write", &path, &error))?;
            // Another save may have found it before it was locked. On a file system without locks, no save removes it.
            if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) && path.exists() {
                return Ok((path, file));
            }
        }
        let taken = io::Error::other("other saves take its temporary files away");
        Err(io_failure("cannot write", prefix, &taken))
    }

    pub fn put(self, at: &Path) -> Result<()> {
        operation(|| fs::rename(&self.path, at)).map_err(|error| io_failure("cannot put in place", at, &error))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Injection of failures into file operations, on the thread of the test.
#[cfg(test)]
pub(super) mod faults {
    use std::cell::Cell;
    use std::io;

    /// The event after this many operations.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Fault {
        /// The process ends: no later operation takes effect.
        Crash,
        /// One operation fails, and the next ones succeed.
        Once,
    }

    thread_local! {
        static NEXT: Cell<Option<(u64, Fault)>> = const { Cell::new(None) };
        static CAME: Cell<bool> = const { Cell::new(false) };
    }

    pub fn pass() -> io::Result<()> {
        let Some((left, fault)) = NEXT.get() else { return Ok(()) };
        if left > 0 {
            NEXT.set(Some((left - 1, fault)));
            return Ok(());
        }
        CAME.set(true);
        if fault == Fault::Once {
            NEXT.set(None);
        }
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }

    /// Runs a function with a fault after `operations` operations: its result, and whether the fault occurred.
    pub fn after<T>(operations: u64, fault: Fault, run: impl FnOnce() -> T) -> (T, bool) {
        NEXT.set(Some((operations, fault)));
        CAME.set(false);
        let answer = run();
        NEXT.set(None);
        (answer, CAME.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_files_are_taken_for_such() {
        let made = temporary_path(Path::new("/data/model-7"), "index");
        assert!(is_temporary(made.file_name().unwrap().to_str().unwrap()), "{}", made.display());
        for name in ["m.data.tempstate12-0", ".v1.tempstate1-1", "m.tempstate1-1.index.tempstate3-44"] {
            assert!(is_temporary(name), "{name}");
        }
        for name in [
            "m.index",
            "m.data-00000-of-00001",
            "m.data.tempstate",
            "m.data.tempstate1",
            "m.data.tempstate1-",
            "m.data.tempstate-1",
            "m.data.tempstate1-1x",
            "m.notes.tempstate1-1",
            "tempstate1-1",
            ".tempstate1-1",
        ] {
            assert!(!is_temporary(name), "{name}");
        }
    }

    #[test]
    fn what_another_save_writes_is_not_abandoned() {
        let folder = temp_dir::TempDir::new().unwrap();
        let prefix = folder.path().join("model");
        let written =
            |text: &'static [u8]| Beside::write(&prefix, "data", |file| Ok(file.write_all(text)?)).ok().unwrap().0;
        let (one, two) = (written(b"one"), written(b"two"));
        let abandoned = folder.path().join("model.index.tempstate0-0");
        fs::write(&abandoned, b"torn").unwrap();
        remove_abandoned(folder.path());
        assert!(!abandoned.exists() && one.path.exists() && two.path.exists());
        one.put(&prefix).unwrap();
        assert_eq!(fs::read(&prefix).unwrap(), b"one");
        drop(two);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
