//! Saving: the data beside what there is, then the index, whose rename makes both the checkpoint.
//!
//! A prefix that is saved to again gets its data under another shard number than it had, so that the old index and its
//! data stay whole until the new index takes their place.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::bundle::{Entry, Index};
use super::slice::Slice;
use super::{DataDir, MAX_SHARDS, crc32c, data_path, index_path, io_failure, table, with_suffix};
use crate::failure::{Code, Failure, Result};
use crate::tensor::{Data, Shape, Tensor};

/// A tensor to save.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    pub name: &'a [u8],
    pub tensor: &'a Tensor,
    /// Of which whole the tensor is which part; `None` where it is the whole.
    pub part: Option<&'a (Shape, Slice)>,
}

/// Writes a checkpoint of these tensors to `prefix`, in place of the one that may be there.
///
/// When this returns, it is on the disk; until then, the old one is.
///
/// # Errors
/// PermissionDenied if the prefix leads out of `dir`; InvalidArgument where a name comes twice or a part does not
/// fit its whole; what the file system has to say.
pub fn save(dir: &DataDir, prefix: &[u8], tensors: &[Saved]) -> Result<()> {
    let prefix = dir.resolve(prefix)?;
    let folder = make_folder(&prefix)?;
    let mut index = Index { shards: free_shards(&prefix, 1)?, ..Index::default() };
    let data = Beside::new(&prefix, "data");
    data.write(|file| {
        let mut offset = 0;
        for saved in tensors {
            offset += add(&mut index, saved, offset, file)?;
        }
        Ok(())
    })?;
    data.put(&data_path(&prefix, 0, index.shards))?;
    commit(&prefix, &folder, &index)
}

/// Writes one tensor, adds its entries, and answers the bytes it takes.
fn add(index: &mut Index, saved: &Saved, offset: u64, file: &mut impl Write) -> Result<u64, Error> {
    let tensor = saved.tensor;
    let (size, crc32c) = write_tensor(tensor, file)?;
    let entry = Entry {
        dtype: tensor.dtype(),
        shape: tensor.shape().clone(),
        shard: 0,
        offset,
        size,
        crc32c,
        slices: Vec::new(),
    };
    let name = String::from_utf8_lossy(saved.name);
    let twice = || Error::Failed(Failure::invalid(format!("Adding duplicate key: {name}")));
    let key = match saved.part {
        Some((whole, slice)) if !slice.is_full(whole) => {
            let part = slice.shape(whole)?;
            if part != *tensor.shape() {
                let message = format!("{name}: the slice has the shape {part}, its tensor {}", tensor.shape());
                return Err(Failure::invalid(message).into());
            }
            let full = index.entries.entry(saved.name.to_vec()).or_insert_with(|| Entry {
                shape: whole.clone(),
                offset: 0,
                size: 0,
                crc32c: 0,
                ..entry.clone()
            });
            if full.dtype != tensor.dtype() || full.shape != *whole {
                let message =
                    format!("{name}: its parts disagree: {} {} and {} {whole}", full.dtype, full.shape, tensor.dtype());
                return Err(Failure::invalid(message).into());
            }
            if full.slices.is_empty() && full.size > 0 {
                return Err(twice());
            }
            full.slices.push(slice.clone());
            slice.key(saved.name)
        }
        _ if saved.name.is_empty() => return Err(Failure::invalid("a tensor without a name").into()),
        _ => saved.name.to_vec(),
    };
    if index.insert(key, entry) { Ok(size) } else { Err(twice()) }
}

/// Writes a tensor's elements; answers how many bytes those are, and their masked checksum.
fn write_tensor(tensor: &Tensor, file: &mut impl Write) -> io::Result<(u64, u32)> {
    let Data::String(strings) = tensor.data() else {
        let bytes = tensor.bytes().unwrap_or(&[]);
        file.write_all(bytes)?;
        return Ok((bytes.len() as u64, crc32c::mask(crc32c::extend(0, bytes))));
    };
    // First the lengths and a checksum of them, then the strings.
    let mut head = Vec::new();
    let mut crc = 0;
    for string in strings {
        table::put_varint(&mut head, string.len() as u64);
        crc = extend_by_length(crc, string.len());
    }
    let checksum = crc32c::mask(crc).to_le_bytes();
    head.extend(checksum);
    crc = crc32c::extend(crc, &checksum);
    file.write_all(&head)?;
    let mut size = head.len() as u64;
    for string in strings {
        file.write_all(string)?;
        crc = crc32c::extend(crc, string);
        size += string.len() as u64;
    }
    Ok((size, crc32c::mask(crc)))
}

/// Lengths count in the checksum as four bytes, or eight where they need them.
pub(super) fn extend_by_length(crc: u32, length: usize) -> u32 {
    match u32::try_from(length) {
        Ok(length) => crc32c::extend(crc, &length.to_le_bytes()),
        Err(_) => crc32c::extend(crc, &(length as u64).to_le_bytes()),
    }
}

/// Makes the folder that a prefix lies in.
pub(super) fn make_folder(prefix: &Path) -> Result<PathBuf> {
    let folder = prefix.parent().unwrap_or(prefix).to_owned();
    fs::create_dir_all(&folder).map_err(|error| io_failure("cannot make", &folder, &error))?;
    Ok(folder)
}

/// How many shards to say there are, so that `used` of them have names that no file has: a multiple of `used`.
pub(super) fn free_shards(prefix: &Path, used: u32) -> Result<u32> {
    let is_free = |shards: u32| (0..used).all(|shard| !data_path(prefix, shard, shards).exists());
    (1..).map_while(|times| used.checked_mul(times).filter(|&n| n <= MAX_SHARDS)).find(|&n| is_free(n)).ok_or_else(
        || {
            let message = format!("{} has too many data files left behind", prefix.display());
            Failure::new(Code::ResourceExhausted, message)
        },
    )
}

/// Writes the index, which makes the data that is in place the checkpoint, and removes the data of the one before.
pub(super) fn commit(prefix: &Path, folder: &Path, index: &Index) -> Result<()> {
    let file = Beside::new(prefix, "index");
    let bytes = index.encode();
    file.write(|file| Ok(file.write_all(&bytes)?))?;
    sync_folder(folder)?;
    file.put(&index_path(prefix))?;
    sync_folder(folder)?;
    remove_others(prefix, folder, index);
    Ok(())
}

/// Removes the data files of a prefix that its index does not name. That they stay would be no harm.
fn remove_others(prefix: &Path, folder: &Path, index: &Index) {
    let Some(stem) = prefix.file_name().and_then(|name| name.to_str()) else { return };
    let named: Vec<PathBuf> =
        index.entries.values().map(|entry| data_path(prefix, entry.shard, index.shards)).collect();
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = file.file_name();
        let numbers =
            name.to_str().and_then(|name| name.strip_prefix(stem)?.strip_prefix(".data-")?.split_once("-of-"));
        let is_data = numbers.is_some_and(|(shard, shards)| shard.parse::<u32>().and(shards.parse::<u32>()).is_ok());
        if is_data && !named.contains(&file.path()) && file.path() != data_path(prefix, 0, index.shards) {
            let _ = fs::remove_file(file.path());
        }
    }
}

pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| io_failure("cannot sync", folder, &error))
}

/// What stops a write: the file, or what was to be written.
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

/// A file beside the one it is going to be, gone again unless it gets there.
pub(super) struct Beside {
    path: PathBuf,
}

impl Beside {
    pub fn new(prefix: &Path, what: &str) -> Beside {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Beside { path: with_suffix(prefix, &format!(".{what}.tempstate{}-{count}", std::process::id())) }
    }

    /// Writes the file and brings it to the disk.
    pub fn write<T>(&self, content: impl FnOnce(&mut BufWriter<File>) -> Result<T, Error>) -> Result<T> {
        let io = |error| io_failure("cannot write", &self.path, &error);
        // What a killed process of the same number left here is nobody's.
        let _ = fs::remove_file(&self.path);
        let mut file = BufWriter::with_capacity(1 << 18, File::create_new(&self.path).map_err(io)?);
        let answer = content(&mut file).map_err(|error| match error {
            Error::Io(error) => io(error),
            Error::Failed(failure) => failure,
        })?;
        let file = file.into_inner().map_err(|error| io(error.into_error()))?;
        file.sync_all().map_err(io)?;
        Ok(answer)
    }

    pub fn put(self, at: &Path) -> Result<()> {
        fs::rename(&self.path, at).map_err(|error| io_failure("cannot put in place", at, &error))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
