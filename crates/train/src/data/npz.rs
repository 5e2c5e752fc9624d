//! NumPy's .npz: a zip archive with a .npy file for each array.

use std::io::{Cursor, Read, Seek, Write};

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Tensor, npy};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::file::{all_of, chosen};

/// The suffix of an array's file name.
const ENDING: &str = ".npy";

/// Reads one array: the named one, or the only one.
///
/// # Errors
/// InvalidArgument if the bytes are not an archive, or it has no such array.
pub fn read(bytes: &[u8], name: Option<&str>) -> Result<Tensor> {
    let mut archive = open(bytes)?;
    let name = meant(&archive, name)?;
    array(&mut archive, &name)
}

/// The .npy file of an array.
#[derive(Clone, Debug)]
pub enum Member<T> {
    /// Stored in the archive without compression.
    Stored {
        /// The offset of its first byte.
        begin: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// Compressed; the result of `unpack`.
    Packed(T),
}

/// Finds one array: the named one, or the only one. If it is compressed, `unpack` gets the bytes of its .npy file.
///
/// # Errors
/// InvalidArgument if it is not an archive, or has no such array; those of `unpack`.
pub fn find<T>(
    from: impl Read + Seek,
    name: Option<&str>,
    unpack: impl FnOnce(&mut dyn Read) -> Result<T>,
) -> Result<Member<T>> {
    let mut archive = opened(from)?;
    let name = meant(&archive, name)?;
    let at = |why: &dyn std::fmt::Display| Failure::invalid(format!("array {name}: {why}"));
    let mut file = archive.by_name(&format!("{name}{ENDING}")).map_err(|error| at(&error))?;
    match (file.compression(), file.data_start()) {
        (CompressionMethod::Stored, Some(begin)) => Ok(Member::Stored { begin, length: file.size() }),
        _ => {
            let unpacked = unpack(&mut file);
            unpacked.map(Member::Packed).map_err(|failure| Failure { message: at(&failure.message).message, ..failure })
        }
    }
}

/// The decompressed size of the largest file of an archive, in bytes.
///
/// # Errors
/// InvalidArgument if it is not an archive.
pub fn largest(from: impl Read + Seek) -> Result<u64> {
    let mut archive = opened(from)?;
    let mut largest = 0;
    for place in 0..archive.len() {
        let file = archive.by_index_raw(place).map_err(|error| Failure::invalid(error.to_string()))?;
        largest = largest.max(file.size());
    }
    Ok(largest)
}

/// The names of the arrays of an archive.
///
/// # Errors
/// InvalidArgument if the bytes are not an archive.
pub fn names(bytes: &[u8]) -> Result<Vec<String>> {
    let archive = open(bytes)?;
    Ok(archive.file_names().filter_map(|file| file.strip_suffix(ENDING)).map(str::to_owned).collect())
}

fn open(bytes: &[u8]) -> Result<ZipArchive<Cursor<&[u8]>>> {
    opened(Cursor::new(bytes))
}

fn opened<R: Read + Seek>(from: R) -> Result<ZipArchive<R>> {
    ZipArchive::new(from).map_err(|error| Failure::invalid(format!("not a valid .npz file: {error}")))
}

/// The name of the selected array.
fn meant<R: Read + Seek>(archive: &ZipArchive<R>, name: Option<&str>) -> Result<String> {
    let names: Vec<&str> = archive.file_names().filter_map(|file| file.strip_suffix(ENDING)).collect();
    Ok(names[chosen(&names, name, "array")?].to_owned())
}

fn array(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str) -> Result<Tensor> {
    let at = |why: &dyn std::fmt::Display| Failure::invalid(format!("array {name}: {why}"));
    let file = archive.by_name(&format!("{name}{ENDING}")).map_err(|error| at(&error))?;
    let bytes = all_of(file).map_err(|failure| Failure { message: at(&failure.message).message, ..failure })?;
    npy::read(&bytes).map_err(|failure| Failure { message: at(&failure.message).message, ..failure })
}

/// Writes arrays by name, not compressed, as `numpy.savez` does.
///
/// # Errors
/// InvalidArgument for strings, for a name that occurs twice, and for errors of `to`.
pub fn write(to: impl Write + Seek, arrays: &[(String, Tensor)]) -> Result<()> {
    let at = |name: &str, why: &dyn std::fmt::Display| Failure::invalid(format!("{name}: {why}"));
    let mut archive = ZipWriter::new(to);
    for (name, tensor) in arrays {
        let bytes = npy::write(tensor).map_err(|failure| at(name, &failure.message))?;
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        let options = options.large_file(bytes.len() as u64 >= u64::from(u32::MAX));
        archive.start_file(format!("{name}{ENDING}"), options).map_err(|error| at(name, &error))?;
        archive.write_all(&bytes).map_err(|error| at(name, &error))?;
    }
    let mut to = archive.finish().map_err(|error| at("the archive", &error))?;
    to.flush().map_err(|error| at("the archive", &error))
}
