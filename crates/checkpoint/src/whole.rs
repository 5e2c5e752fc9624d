//! Files that are written whole or not at all: a file of the same name stays as it was until the new one is complete. Saves of
//! checkpoints, which are several files, have their own in `files`.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, IntoInnerError, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file under a temporary name in the folder of its own one: `.NAME.RANDOM.part`. It is deleted unless it is completed.
#[derive(Debug)]
pub struct Whole {
    file: BufWriter<File>,
    part: Part,
    path: PathBuf,
}

/// The temporary file, removed on drop unless it was renamed.
#[derive(Debug)]
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        // It is gone if it was completed, or if its folder was deleted.
        let _ = fs::remove_file(&self.0);
    }
}

impl Whole {
    /// Begins the file at `path`, in a folder that exists.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin(path: &Path) -> io::Result<Whole> {
        Whole::open(path, &mut OpenOptions::new())
    }

    /// As [`begin`](Whole::begin), but only this user can read the file.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin_private(path: &Path) -> io::Result<Whole> {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Whole::open(path, &mut options)
    }

    fn open(path: &Path, options: &mut OpenOptions) -> io::Result<Whole> {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?);
        // Each state of this hasher has other random keys.
        name.push(format!(".{:016x}.part", RandomState::new().build_hasher().finish()));
        let part = path.with_file_name(name);
        let file = options.write(true).create_new(true).open(&part)?;
        Ok(Whole { file: BufWriter::new(file), part: Part(part), path: path.to_owned() })
    }

    /// Waits until the contents are on the disk: then the file is whole even after a loss of power.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }

    /// Gives the file its name, in place of a file that has it; returns it, still open.
    ///
    /// # Errors
    /// The system's error; nothing is left of it then.
    pub fn end(self) -> io::Result<File> {
        let file = self.file.into_inner().map_err(IntoInnerError::into_error)?;
        fs::rename(&self.part.0, &self.path).map(|()| file)
    }

    /// As [`end`](Whole::end), unless a file has the name: then that one stays, and the answer is `false`.
    ///
    /// # Errors
    /// The system's error; nothing is left of it then.
    pub fn end_if_new(mut self) -> io::Result<bool> {
        self.file.flush()?;
        match fs::hard_link(&self.part.0, &self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The file under its temporary name.
    pub fn file(&self) -> &File {
        self.file.get_ref()
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

impl Seek for Whole {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Writes a file whole or not at all. After a loss of power it may be empty: see [`Whole::sync`].
///
/// # Errors
/// The system's error.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = Whole::begin(path)?;
    file.write_all(bytes)?;
    file.end().map(|_| ())
}

#[cfg(test)]
mod tests {
    use temp_dir::TempDir;

    use super::*;

    fn names(folder: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_the_old_one_until_the_new_one_is_complete() {
        let folder = TempDir::new().unwrap();
        let path = folder.child("a.txt");
        write_whole(&path, b"old").unwrap();
        let mut file = Whole::begin(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.sync().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(&folder).len()), (b"old".to_vec(), 2));
        file.end().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        // A file that is given up leaves nothing, and neither does one that cannot have its name.
        let mut file = Whole::begin(&path).unwrap();
        file.write_all(b"cut").unwrap();
        drop(file);
        fs::create_dir(folder.child("taken")).unwrap();
        assert!(write_whole(&folder.child("taken"), b"third").is_err());
        assert!(Whole::begin(&folder.child("none/a.txt")).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(&folder), ["a.txt", "taken"]);
        // Several of one name do not disturb each other.
        let both = [b"1", b"2"].map(|bytes| {
            let mut file = Whole::begin(&path).unwrap();
            file.write_all(bytes).unwrap();
            file
        });
        for (file, bytes) in both.into_iter().zip([b"1", b"2"]) {
            file.end().unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn a_new_file_replaces_none() {
        let folder = TempDir::new().unwrap();
        for (bytes, is_new) in [(b"1", true), (b"2", false)] {
            let mut file = Whole::begin_private(&folder.child("key")).unwrap();
            file.write_all(bytes).unwrap();
            assert_eq!(file.end_if_new().unwrap(), is_new);
        }
        assert_eq!(fs::read(folder.child("key")).unwrap(), b"1");
        assert_eq!(names(&folder), ["key"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(folder.child("key")).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
