//! A sorted table of keys and values in one file: LevelDB's format, which TensorFlow uses for indexes.
//!
//! It has blocks of entries, whose keys omit the prefix shared with the previous key; an index block with the positions of
//! the other blocks; and a footer with the position of the index block. Every block has a checksum. This module works on
//! bytes; the caller interprets keys and values. The crate sstable 0.11 reads such tables, too, but panics on some corrupt
//! ones.

mod file;

use std::io::{self, Write};
use std::ops::Range;

pub use file::Table;
use meshtf_tensor::failure::{Failure, Result};

use super::{crc32c, data_loss};

/// A block is closed when it has this many bytes.
const BLOCK_BYTES: usize = 262_144;
/// A key is written in full once in this many entries; the other ones share its prefix.
const RESTART_EVERY: usize = 16;
const FOOTER_BYTES: usize = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// The bytes after each block: its compression, and the checksum of both.
const TRAILER_BYTES: usize = 5;
const UNCOMPRESSED: u8 = 0;

/// The table of these entries, whose keys must ascend.
pub fn encode<'a>(entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut table = Writer::new(Vec::new());
    let written = entries.into_iter().try_for_each(|(key, value)| table.add(key, value));
    written.and_then(|()| table.finish()).expect("memory takes what is written to it")
}

/// Writes a table entry by entry, one block at a time.
pub struct Writer<W> {
    file: W,
    written: u64,
    index: Block,
    block: Block,
    /// A closed block, which the index lists under a short key between the block's last key and the next block's first.
    closed: Option<(Vec<u8>, Handle)>,
}

impl<W: Write> Writer<W> {
    pub fn new(file: W) -> Writer<W> {
        Writer { file, written: 0, index: Block::new(1), block: Block::new(RESTART_EVERY), closed: None }
    }

    /// Adds an entry, whose key must be greater than the previous one.
    ///
    /// # Errors
    /// The file's.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if let Some((last, handle)) = self.closed.take() {
            self.index.add(&separator(&last, key), &handle.encode());
        }
        self.block.add(key, value);
        if self.block.len() >= BLOCK_BYTES { self.close() } else { Ok(()) }
    }

    /// Finishes the table and returns the file.
    ///
    /// # Errors
    /// The file's.
    pub fn finish(mut self) -> io::Result<W> {
        if !self.block.is_empty() {
            self.close()?;
        }
        let meta = self.put(&Block::new(RESTART_EVERY))?;
        if let Some((last, handle)) = self.closed.take() {
            self.index.add(&successor(&last), &handle.encode());
        }
        let index = std::mem::replace(&mut self.index, Block::new(1));
        let index = self.put(&index)?;
        let mut footer = [meta.encode(), index.encode()].concat();
        footer.resize(FOOTER_BYTES - 8, 0);
        footer.extend(MAGIC.to_le_bytes());
        self.file.write_all(&footer)?;
        Ok(self.file)
    }

    fn close(&mut self) -> io::Result<()> {
        let block = std::mem::replace(&mut self.block, Block::new(RESTART_EVERY));
        let handle = self.put(&block)?;
        self.closed = Some((block.last, handle));
        Ok(())
    }

    fn put(&mut self, block: &Block) -> io::Result<Handle> {
        let mut end: Vec<u8> = block.restarts.iter().flat_map(|restart| restart.to_le_bytes()).collect();
        end.extend((block.restarts.len() as u32).to_le_bytes());
        let size = block.bytes.len() + end.len();
        end.push(UNCOMPRESSED);
        let checksum = crc32c::mask(crc32c::extend(crc32c::extend(0, &block.bytes), &end));
        end.extend(checksum.to_le_bytes());
        self.file.write_all(&block.bytes)?;
        self.file.write_all(&end)?;
        let handle = Handle { offset: self.written, size: size as u64 };
        self.written += (size + TRAILER_BYTES) as u64;
        Ok(handle)
    }
}

/// The entries of a table, in the order of their keys.
///
/// # Errors
/// DataLoss if the bytes are not a valid table.
pub fn decode(file: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let start = file.len().checked_sub(FOOTER_BYTES).ok_or_else(too_short)?;
    let index = index_handle(&file[start..])?;
    let mut entries = Vec::new();
    for (_, handle) in block_entries(index.block(file)?)? {
        let block = Handle::take(&mut handle.as_slice())?.block(file)?;
        entries.extend(block_entries(block)?);
    }
    if !entries.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(data_loss("the keys of the table do not ascend"));
    }
    Ok(entries)
}

fn too_short() -> Failure {
    data_loss("file is too short to be an sstable")
}

/// The position of the index, from the last bytes of a file.
fn index_handle(footer: &[u8]) -> Result<Handle> {
    let (mut rest, magic) = footer.split_last_chunk::<8>().ok_or_else(too_short)?;
    if *magic != MAGIC.to_le_bytes() {
        return Err(data_loss("not an sstable (bad magic number)"));
    }
    let _meta = Handle::take(&mut rest)?;
    Handle::take(&mut rest)
}

/// The position of a block.
#[derive(Clone, Copy, Debug)]
struct Handle {
    offset: u64,
    size: u64,
}

impl Handle {
    fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, self.offset);
        put_varint(&mut bytes, self.size);
        bytes
    }

    fn take(bytes: &mut &[u8]) -> Result<Handle> {
        Ok(Handle { offset: take_varint(bytes)?, size: take_varint(bytes)? })
    }

    /// The block's bytes, after checking their checksum.
    fn block(self, file: &[u8]) -> Result<&[u8]> {
        let range = usize::try_from(self.offset).ok().zip(usize::try_from(self.size).ok()).and_then(|(at, size)| {
            let end = at.checked_add(size)?.checked_add(TRAILER_BYTES)?;
            Some((at..end, size))
        });
        let (bytes, size) = range
            .and_then(|(range, size)| Some((file.get(range)?, size)))
            .ok_or_else(|| data_loss("truncated block read"))?;
        checked(bytes, size)
    }
}

/// A block of `size` bytes, after checking the checksum that follows it.
fn checked(bytes: &[u8], size: usize) -> Result<&[u8]> {
    let (body, stored) = bytes.split_at(size + 1);
    if stored != crc32c::mask(crc32c::extend(0, body)).to_le_bytes() {
        return Err(data_loss("block checksum mismatch"));
    }
    match body.split_last() {
        Some((&UNCOMPRESSED, block)) => Ok(block),
        _ => Err(data_loss("the table is compressed, which is not supported")),
    }
}

/// A block being written.
struct Block {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    restart_every: usize,
    since_restart: usize,
    last: Vec<u8>,
}

impl Block {
    fn new(restart_every: usize) -> Block {
        Block { bytes: Vec::new(), restarts: vec![0], restart_every, since_restart: 0, last: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Its size when finished, in bytes.
    fn len(&self) -> usize {
        self.bytes.len() + 4 * (self.restarts.len() + 1)
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        let shared = if self.since_restart < self.restart_every {
            self.last.iter().zip(key).take_while(|(a, b)| a == b).count()
        } else {
            self.restarts.push(self.bytes.len() as u32);
            self.since_restart = 0;
            0
        };
        for n in [shared, key.len() - shared, value.len()] {
            put_varint(&mut self.bytes, n as u64);
        }
        self.bytes.extend(&key[shared..]);
        self.bytes.extend(value);
        self.last = key.to_vec();
        self.since_restart += 1;
    }
}

/// The entries of a block: their keys, and the positions of their values in it.
type Places = Vec<(Vec<u8>, Range<usize>)>;

fn block_entries(block: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    Ok(block_places(block)?.into_iter().map(|(key, place)| (key, block[place].to_vec())).collect())
}

fn block_places(block: &[u8]) -> Result<Places> {
    let bad = || data_loss("bad entry in block");
    let (body, count) = block.split_last_chunk::<4>().ok_or_else(bad)?;
    let restarts = (u32::from_le_bytes(*count) as usize).checked_mul(4).ok_or_else(bad)?;
    let mut rest = body.len().checked_sub(restarts).and_then(|end| body.get(..end)).ok_or_else(bad)?;
    let end = rest.len();
    let mut entries = Places::new();
    while !rest.is_empty() {
        let mut length = || usize::try_from(take_varint(&mut rest)?).map_err(|_| bad());
        let (shared, unshared, value) = (length()?, length()?, length()?);
        let mut key = match entries.last() {
            Some((last, _)) => last.get(..shared).ok_or_else(bad)?.to_vec(),
            None if shared == 0 => Vec::new(),
            None => return Err(bad()),
        };
        let (own, after) = rest.split_at_checked(unshared).ok_or_else(bad)?;
        let at = end - after.len();
        rest = after.get(value..).ok_or_else(bad)?;
        key.extend(own);
        entries.push((key, at..at + value));
    }
    Ok(entries)
}

/// A short key that is not less than `last` and less than `next`.
fn separator(last: &[u8], next: &[u8]) -> Vec<u8> {
    let shared = last.iter().zip(next).take_while(|(a, b)| a == b).count();
    if let (Some(&a), Some(&b)) = (last.get(shared), next.get(shared))
        && a < 0xff
        && a + 1 < b
    {
        return [&last[..shared], &[a + 1]].concat();
    }
    last.to_vec()
}

/// A short key that is not less than `last`.
fn successor(last: &[u8]) -> Vec<u8> {
    match last.iter().position(|&byte| byte != 0xff) {
        Some(at) => [&last[..at], &[last[at] + 1]].concat(),
        None => last.to_vec(),
    }
}

/// Seven bits per byte, the lowest first; the highest bit of each is set if more follow.
pub fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Takes a varint from the front.
///
/// # Errors
/// DataLoss if there is none.
pub fn take_varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *bytes = &bytes[i + 1..];
            return Ok(value);
        }
    }
    Err(data_loss("bad variable-length number"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encoded_tables_decode() {
        let check = |entries: Vec<(Vec<u8>, Vec<u8>)>| {
            let file = encode(entries.iter().map(|(key, value)| (key.as_slice(), value.as_slice())));
            assert_eq!(decode(&file).unwrap(), entries);
        };
        check(vec![]);
        check(vec![(vec![], b"header".to_vec())]);
        check((0..100u8).map(|i| (vec![b'k', i], vec![i; 3])).collect());
        check((0..40u32).map(|i| (format!("layer/{i:04}").into_bytes(), vec![7; 30_000])).collect());
    }

    #[test]
    fn a_changed_byte_is_detected() {
        let file = encode([(&b"a"[..], &b"1"[..]), (b"b", b"2")]);
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 0x40;
            // Only the footer's padding has no meaning.
            let decoded = decode(&bad);
            assert!(decoded.is_err() || decoded.unwrap() == decode(&file).unwrap(), "byte {at}");
        }
        assert!(decode(&file[1..]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            bytes.extend(MAGIC.to_le_bytes());
            let _ = decode(&bytes);
            let _ = block_entries(&bytes);
        }
    }
}
