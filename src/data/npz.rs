//! NumPy's .npz: a zip archive with a .npy file for each array.

use std::io::{Cursor, Seek, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::file::{all_of, chosen};
use crate::failure::{Failure, Result};
use crate::tensor::{Tensor, npy};

/// Ends the name of an array's file.
const ENDING: &str = ".npy";

/// Reads one array: the named one, or the only one.
///
/// # Errors
/// InvalidArgument if the bytes are no archive, or it has no such array.
pub fn read(bytes: &[u8], name: Option<&str>) -> Result<Tensor> {
    let mut archive = open(bytes)?;
    let files: Vec<String> = archive.file_names().map(str::to_owned).collect();
    let names: Vec<&str> = files.iter().filter_map(|file| file.strip_suffix(ENDING)).collect();
    let name = names[chosen(&names, name, "array")?];
    array(&mut archive, name)
}

/// Reads all arrays, in the order of the archive.
///
/// # Errors
/// InvalidArgument if the bytes are no archive of arrays.
pub fn read_all(bytes: &[u8]) -> Result<Vec<(String, Tensor)>> {
    let mut archive = open(bytes)?;
    let files: Vec<String> = archive.file_names().map(str::to_owned).collect();
    let names = files.iter().filter_map(|file| file.strip_suffix(ENDING));
    names.map(|name| Ok((name.to_owned(), array(&mut archive, name)?))).collect()
}

fn open(bytes: &[u8]) -> Result<ZipArchive<Cursor<&[u8]>>> {
    ZipArchive::new(Cursor::new(bytes)).map_err(|error| Failure::invalid(format!("no .npz file: {error}")))
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
/// InvalidArgument for strings, for a name that occurs twice, and for what `to` refuses.
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
