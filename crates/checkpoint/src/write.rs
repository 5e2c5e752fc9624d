//! Saving: writes the data to new files, then the index, whose rename makes both the checkpoint.
//!
//! Saving to an existing prefix uses new shard numbers, so that the old index and its data stay complete until the new index
//! replaces it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Data, Shape, Tensor};

use super::bundle::{Entry, Index};
use super::files::{Beside, Error, make_folder, remove, remove_abandoned, sync_folder};
use super::slice::Slice;
use super::{DataDir, MAX_SHARDS, crc32c, data_path, index_path, table};

/// A tensor to save.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// Its name in the checkpoint.
    pub name: &'a [u8],
    /// Its value.
    pub tensor: &'a Tensor,
    /// The shape of the whole, and the part of it that the tensor is; `None` if it is the whole.
    pub part: Option<&'a (Shape, Slice)>,
    /// Whether its strings are variants, encoded as TensorFlow's protos; the checkpoint then stores variants.
    pub is_encoded: bool,
}

impl<'a> Saved<'a> {
    /// A tensor whose strings, if any, are plain.
    pub fn new(name: &'a [u8], tensor: &'a Tensor, part: Option<&'a (Shape, Slice)>) -> Saved<'a> {
        Saved { name, tensor, part, is_encoded: false }
    }
}

/// Writes a checkpoint of these tensors to `prefix`, replacing an existing one.
///
/// The new checkpoint is on the disk when this returns; until then the old one stays.
///
/// # Errors
/// PermissionDenied if the prefix leads out of `dir`; InvalidArgument if a name occurs twice or a part does not fit its
/// whole; the file system's errors.
pub fn save(dir: &DataDir, prefix: &[u8], tensors: &[Saved]) -> Result<()> {
    let prefix = dir.resolve_prefix(prefix)?;
    let folder = make_folder(&prefix)?;
    let mut index = Index { shards: free_shards(&prefix, 1)?, ..Index::default() };
    let (data, ()) = Beside::write(&prefix, "data", |file| {
        let mut offset = 0;
        for saved in tensors {
            offset += add(&mut index, saved, offset, file)?;
        }
        Ok(())
    })?;
    data.put(&data_path(&prefix, 0, index.shards))?;
    commit(&prefix, &folder, &index)
}

/// Writes one tensor, adds its entries, and returns its size in bytes.
fn add(index: &mut Index, saved: &Saved, offset: u64, file: &mut impl Write) -> Result<u64, Error> {
    let tensor = saved.tensor;
    let dtype = if saved.is_encoded { DType::Variant } else { tensor.dtype() };
    let (size, crc32c) = match (saved.is_encoded, tensor.data()) {
        (true, Data::String(variants)) => write_variants(variants, file)?,
        _ => write_tensor(tensor, file)?,
    };
    let entry = Entry { dtype, shape: tensor.shape().clone(), shard: 0, offset, size, crc32c, slices: Vec::new() };
    let name = String::from_utf8_lossy(saved.name);
    let twice = || Error::Failed(Failure::invalid(format!("Adding duplicate key: {name}")));
    let key = match saved.part {
        Some((whole, slice)) if !slice.is_full(whole) => {
            let part = slice.shape(whole)?;
            if part != *tensor.shape() {
                let message =
                    format!("{name}: the slice has the shape {part}, but its tensor has the shape {}", tensor.shape());
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
        _ if saved.name.is_empty() => return Err(Failure::invalid("a tensor has no name").into()),
        _ => saved.name.to_vec(),
    };
    if index.insert(key, entry) { Ok(size) } else { Err(twice()) }
}

/// Writes a tensor's elements; returns their size in bytes and their masked checksum.
fn write_tensor(tensor: &Tensor, file: &mut impl Write) -> io::Result<(u64, u32)> {
    let Data::String(strings) = tensor.data() else {
        let bytes = tensor.bytes().unwrap_or(&[]);
        file.write_all(bytes)?;
        return Ok((bytes.len() as u64, crc32c::mask(crc32c::extend(0, bytes))));
    };
    // First the lengths and their checksum, then the strings.
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

/// Writes encoded variants: for each its length, its bytes, and a checksum of everything up to there. Returns as
/// [`write_tensor`].
fn write_variants(variants: &[Vec<u8>], file: &mut impl Write) -> io::Result<(u64, u32)> {
    let (mut size, mut crc) = (0, 0);
    for variant in variants {
        let mut length = Vec::new();
        table::put_varint(&mut length, variant.len() as u64);
        crc = crc32c::extend(extend_by_length(crc, variant.len()), variant);
        let checksum = crc32c::mask(crc).to_le_bytes();
        crc = crc32c::extend(crc, &checksum);
        for part in [&length[..], variant, &checksum] {
            file.write_all(part)?;
            size += part.len() as u64;
        }
    }
    Ok((size, crc32c::mask(crc)))
}

/// Extends a checksum by a length, as four bytes, or eight if necessary.
pub(super) fn extend_by_length(crc: u32, length: usize) -> u32 {
    match u32::try_from(length) {
        Ok(length) => crc32c::extend(crc, &length.to_le_bytes()),
        Err(_) => crc32c::extend(crc, &(length as u64).to_le_bytes()),
    }
}

/// A number of shards, a multiple of `used`, for which the first `used` data files do not exist yet.
pub(super) fn free_shards(prefix: &Path, used: u32) -> Result<u32> {
    let is_free = |shards: u32| (0..used).all(|shard| !data_path(prefix, shard, shards).exists());
    (1..).map_while(|times| used.checked_mul(times).filter(|&n| n <= MAX_SHARDS)).find(|&n| is_free(n)).ok_or_else(
        || {
            let message = format!("{} has too many stale data files", prefix.display());
            Failure::new(Code::ResourceExhausted, message)
        },
    )
}

/// Writes the index, which makes the data a checkpoint, and removes the previous one's data.
pub(super) fn commit(prefix: &Path, folder: &Path, index: &Index) -> Result<()> {
    let bytes = index.encode();
    let (file, ()) = Beside::write(prefix, "index", |file| Ok(file.write_all(&bytes)?))?;
    sync_folder(folder)?;
    file.put(&index_path(prefix))?;
    sync_folder(folder)?;
    remove_others(prefix, folder, index);
    remove_abandoned(folder);
    Ok(())
}

/// Removes the data files of a prefix that its index does not refer to. A failure is harmless.
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
            remove(&file.path());
        }
    }
}
