//! A table in a file; a block is read when one of its entries is requested.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

use meshtf_tensor::failure::Result;
use meshtf_tensor::memory;

use super::{FOOTER_BYTES, Handle, TRAILER_BYTES, block_entries, block_places, checked, index_handle, too_short};
use crate::{data_loss, io_failure};

/// An open table.
#[derive(Debug)]
pub struct Table {
    file: File,
    path: PathBuf,
    length: u64,
    /// Keys that are not less than their block's last key, and less than the next block's first.
    index: Vec<(Vec<u8>, Handle)>,
}

/// The value of an entry, inside the block that was read for it.
pub struct Value {
    block: Vec<u8>,
    place: Range<usize>,
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.block[self.place.clone()]
    }
}

impl Table {
    /// Opens the table at a path.
    ///
    /// # Errors
    /// The file system's; DataLoss if the file is not a valid table.
    pub fn open(path: PathBuf) -> Result<Table> {
        let io = |error: std::io::Error| io_failure("cannot read", &path, &error);
        let mut file = File::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let start = length.checked_sub(FOOTER_BYTES as u64).ok_or_else(too_short)?;
        let mut footer = [0; FOOTER_BYTES];
        file.seek(SeekFrom::Start(start)).map_err(io)?;
        file.read_exact(&mut footer).map_err(io)?;
        let mut table = Table { file, path, length, index: Vec::new() };
        let index = table.block(index_handle(&footer)?)?;
        for (key, handle) in block_entries(&index)? {
            table.index.push((key, Handle::take(&mut handle.as_slice())?));
        }
        Ok(table)
    }

    /// The value of a key; `None` if there is no such entry.
    ///
    /// # Errors
    /// As [`Table::open`], and if the memory budget refuses the block.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>> {
        let at = self.index.partition_point(|(last, _)| last.as_slice() < key);
        let Some(&(_, handle)) = self.index.get(at) else { return Ok(None) };
        let block = self.block(handle)?;
        let entry = block_places(&block)?.into_iter().find(|(found, _)| found == key);
        Ok(entry.map(|(_, place)| Value { block, place }))
    }

    fn block(&mut self, handle: Handle) -> Result<Vec<u8>> {
        let end = handle.offset.checked_add(handle.size).and_then(|end| end.checked_add(TRAILER_BYTES as u64));
        let size = usize::try_from(handle.size).ok().filter(|_| end.is_some_and(|end| end <= self.length));
        let size = size.ok_or_else(|| data_loss("truncated block read"))?;
        memory::admit(size)?;
        let mut bytes = vec![0; size + TRAILER_BYTES];
        let read = self.file.seek(SeekFrom::Start(handle.offset)).and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(|error| io_failure("cannot read", &self.path, &error))?;
        checked(&bytes, size)?;
        bytes.truncate(size);
        Ok(bytes)
    }
}
