//! Files that are too large to be held in memory; packed ones are unpacked into a file without a name.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_train::data::{Compression, Source, is_parquet, largest_in_npz, parquet_text};

use crate::random;

/// Maximum size of an unpacked file in bytes.
const MAX_UNPACKED: u64 = 1 << 38;
/// Bytes per read of a file that is read from its beginning to its end.
const BLOCK: usize = 1 << 20;

/// A file with random access. Its clones are the same file.
#[derive(Clone, Debug)]
pub struct DataFile(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    handle: Handle,
    /// Its path, unless it has none.
    path: Option<PathBuf>,
    length: u64,
    /// Its time of modification, if the system has it.
    changed: Option<SystemTime>,
}

#[derive(Debug)]
enum Handle {
    Open(Mutex<File>),
    /// It is opened for each read.
    Closed(PathBuf),
}

impl Opened {
    fn with<T>(&self, work: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
        match &self.handle {
            Handle::Open(file) => work(&mut file.lock().unwrap_or_else(PoisonError::into_inner)),
            Handle::Closed(path) => work(&mut File::open(path)?),
        }
    }
}

impl DataFile {
    /// Opens a file of more than `held` bytes, unpacked if it is of gzip or zstd, or an archive with an array of more bytes;
    /// `None` if it has no more. Of a Parquet file, it is the text of its rows.
    ///
    /// # Errors
    /// It cannot be opened, read or unpacked.
    pub fn open(path: &Path, held: u64) -> Result<Option<DataFile>> {
        let file = File::open(path).map_err(failed)?;
        if is_parquet(&path.to_string_lossy()) {
            return DataFile::of_parquet(file, held);
        }
        let length = file.metadata().map_err(failed)?.len();
        let mut start = Vec::new();
        (&file).take(Compression::MAGIC as u64).read_to_end(&mut start).map_err(failed)?;
        // A small one is read as a whole elsewhere; that code reports its faults.
        let Some(compression) = Compression::of(&start) else {
            let is_large = length > held
                || start.starts_with(b"PK") && largest_in_npz(BufReader::new(&file)).is_ok_and(|bytes| bytes > held);
            return if is_large { DataFile::of(file, Some(path)).map(Some) } else { Ok(None) };
        };
        let unpacking = || Ok::<_, io::Error>(compression.reader(BufReader::new(File::open(path)?)));
        let unpacked = unpacking().and_then(|from| io::copy(&mut from.take(held.saturating_add(1)), &mut io::sink()));
        if unpacked.unwrap_or(0) <= held {
            return Ok(None);
        }
        let unpacked = unpacking().map_err(failed).and_then(DataFile::unpacked);
        unpacked.map(Some).map_err(|failure| compression.failure(failure))
    }

    /// The text of a Parquet file, if it has more than `held` bytes.
    fn of_parquet(file: File, held: u64) -> Result<Option<DataFile>> {
        let file = DataFile::plain(file)?;
        let few = io::copy(&mut parquet_text(file.clone())?.take(held.saturating_add(1)), &mut io::sink());
        if few.map_err(failed)? <= held {
            return Ok(None);
        }
        DataFile::unpacked(parquet_text(file)?).map(Some)
    }

    /// The text of the table in a file: of a Parquet file its rows, of another its bytes, unpacked.
    ///
    /// # Errors
    /// It cannot be read or unpacked.
    pub fn table(path: &Path) -> Result<Box<dyn Read>> {
        let file = File::open(path).map_err(failed)?;
        if is_parquet(&path.to_string_lossy()) {
            return parquet_text(DataFile::plain(file)?);
        }
        let mut file = BufReader::new(file);
        Ok(match Compression::of(file.fill_buf().map_err(failed)?) {
            Some(compression) => compression.reader(file),
            None => Box::new(file),
        })
    }

    /// A file, or the unpacked one if it is of gzip or zstd.
    fn plain(file: File) -> Result<DataFile> {
        let packed = DataFile::of(file, None)?;
        match Compression::of(&packed.some(0, Compression::MAGIC as u64)?) {
            Some(compression) => {
                let unpacked = DataFile::unpacked(compression.reader(packed.reader()));
                unpacked.map_err(|failure| compression.failure(failure))
            }
            None => Ok(packed),
        }
    }

    /// All bytes of a reader, in a file without a name in the folder for temporary files, which disappears when it is closed.
    ///
    /// # Errors
    /// Those of the reader; the disk is full, or the bytes exceed the limit.
    pub fn unpacked(from: impl Read) -> Result<DataFile> {
        let at = std::env::temp_dir();
        let cannot = |error: io::Error| {
            // The fault of the packed bytes, and not of the disk.
            if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::UnexpectedEof) {
                return failed(error);
            }
            let at = at.display();
            Failure::invalid(format!("cannot be unpacked into {at} (TMPDIR names another folder): {error}"))
        };
        let path = at.join(format!("meshtf-data-{:016x}", random::u64()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&path).map_err(cannot)?;
        std::fs::remove_file(&path).map_err(cannot)?;
        let written = io::copy(&mut from.take(MAX_UNPACKED + 1), &mut file).map_err(cannot)?;
        match written <= MAX_UNPACKED {
            true => DataFile::of(file, None),
            false => Err(Failure::invalid(format!("it unpacks to more than {MAX_UNPACKED} bytes, which is the limit"))),
        }
    }

    fn of(file: File, path: Option<&Path>) -> Result<DataFile> {
        let now = file.metadata().map_err(failed)?;
        let (handle, path) = (Handle::Open(Mutex::new(file)), path.map(Path::to_owned));
        Ok(DataFile(Arc::new(Opened { handle, path, length: now.len(), changed: changed(&now) })))
    }

    /// The same file, which is opened for each read from now on, if it has a path.
    pub fn closed(self) -> DataFile {
        let Opened { path, length, changed, .. } = &*self.0;
        match path.clone() {
            Some(path) => {
                let (handle, length, changed) = (Handle::Closed(path), *length, *changed);
                DataFile(Arc::new(Opened { handle, path: None, length, changed }))
            }
            None => self,
        }
    }

    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// Reads bytes from an offset on.
    ///
    /// # Errors
    /// Those of reading: it may be shorter by now.
    pub fn read(&self, begin: u64, to: &mut [u8]) -> Result<()> {
        self.0.with(|file| file.seek(SeekFrom::Start(begin)).and_then(|_| file.read_exact(to))).map_err(failed)
    }

    /// The bytes from an offset on, up to `most`.
    ///
    /// # Errors
    /// Those of reading; ResourceExhausted if there is no memory for them.
    pub fn some(&self, begin: u64, most: u64) -> Result<Vec<u8>> {
        let bytes = most.min(self.0.length.saturating_sub(begin)) as usize;
        memory::admit(bytes)?;
        let mut some = vec![0; bytes];
        self.read(begin, &mut some)?;
        Ok(some)
    }

    /// Reads it from its beginning to its end.
    pub fn reader(&self) -> BufReader<impl Read + Seek + use<>> {
        BufReader::with_capacity(BLOCK, Reader { file: self.clone(), at: 0 })
    }

    /// Checks that the file has not changed since it was opened.
    ///
    /// # Errors
    /// InvalidArgument if not.
    pub fn check(&self) -> Result<()> {
        let now = self.0.with(|file| file.metadata()).map_err(failed)?;
        match (now.len(), changed(&now)) == (self.0.length, self.0.changed) {
            true => Ok(()),
            false => Err(Failure::invalid("it was changed after the training had opened it")),
        }
    }
}

impl Source for DataFile {
    fn length(&self) -> u64 {
        self.length()
    }

    fn read(&self, begin: u64, to: &mut [u8]) -> Result<()> {
        self.read(begin, to)
    }
}

struct Reader {
    file: DataFile,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let at = self.at;
        let read = self.file.0.with(|file| file.seek(SeekFrom::Start(at)).and_then(|_| file.read(to)))?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.file.length().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = to.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

fn changed(now: &Metadata) -> Option<SystemTime> {
    now.modified().ok()
}

fn failed(error: io::Error) -> Failure {
    Failure::invalid(error.to_string())
}
