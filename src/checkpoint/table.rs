//! A sorted table of keys and values in one file: the format of LevelDB, as TensorFlow uses it for an index.
//!
//! Blocks of entries, whose keys leave out what they share with the one before; a block that says where the others
//! are; a footer that says where that one is. Every block has a checksum. Over bytes alone; nothing here knows what
//! keys and values mean.

use super::{crc32c, data_loss};
use crate::failure::Result;

/// A block is closed once it has so many bytes.
const BLOCK_BYTES: usize = 262_144;
/// So many entries share the beginnings of their keys before one is written in full again.
const RESTART_EVERY: usize = 16;
const FOOTER_BYTES: usize = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// After each block: its compression, and the checksum of both.
const TRAILER_BYTES: usize = 5;
const UNCOMPRESSED: u8 = 0;

/// The table of these entries, whose keys must rise.
pub fn encode<'a>(entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut file = Vec::new();
    let mut index = Block::new(1);
    let mut block = Block::new(RESTART_EVERY);
    // A closed block goes to the index under a short key between its last and the next block's first.
    let mut closed: Option<(Vec<u8>, Handle)> = None;
    for (key, value) in entries {
        if let Some((last, handle)) = closed.take() {
            index.add(&separator(&last, key), &handle.encode());
        }
        block.add(key, value);
        if block.len() >= BLOCK_BYTES {
            closed = Some((key.to_vec(), block.finish_into(&mut file)));
            block = Block::new(RESTART_EVERY);
        }
    }
    if !block.is_empty() {
        closed = Some((block.last.clone(), block.finish_into(&mut file)));
    }
    let meta = Block::new(RESTART_EVERY).finish_into(&mut file);
    if let Some((last, handle)) = closed {
        index.add(&successor(&last), &handle.encode());
    }
    let index = index.finish_into(&mut file);
    let footer = [meta.encode(), index.encode()].concat();
    file.extend(&footer);
    file.resize(file.len() + FOOTER_BYTES - 8 - footer.len(), 0);
    file.extend(MAGIC.to_le_bytes());
    file
}

/// The entries of a table, in the order of their keys.
///
/// # Errors
/// DataLoss where the bytes are no sound table.
pub fn decode(file: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let footer = file
        .len()
        .checked_sub(FOOTER_BYTES)
        .and_then(|start| file.get(start..))
        .ok_or_else(|| data_loss("file is too short to be an sstable"))?;
    if footer[FOOTER_BYTES - 8..] != MAGIC.to_le_bytes() {
        return Err(data_loss("not an sstable (bad magic number)"));
    }
    let mut rest = &footer[..FOOTER_BYTES - 8];
    let _meta = Handle::take(&mut rest)?;
    let index = Handle::take(&mut rest)?;
    let mut entries = Vec::new();
    for (_, handle) in block_entries(index.block(file)?)? {
        let block = Handle::take(&mut handle.as_slice())?.block(file)?;
        entries.extend(block_entries(block)?);
    }
    if !entries.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(data_loss("keys of the table do not rise"));
    }
    Ok(entries)
}

/// Where a block lies.
#[derive(Clone, Copy)]
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

    /// The block's bytes, after a look at its checksum.
    fn block(self, file: &[u8]) -> Result<&[u8]> {
        let range = usize::try_from(self.offset).ok().zip(usize::try_from(self.size).ok()).and_then(|(at, size)| {
            let end = at.checked_add(size)?.checked_add(TRAILER_BYTES)?;
            Some((at..end, size))
        });
        let (bytes, size) = range
            .and_then(|(range, size)| Some((file.get(range)?, size)))
            .ok_or_else(|| data_loss("truncated block read"))?;
        let (body, stored) = bytes.split_at(size + 1);
        if stored != crc32c::mask(crc32c::extend(0, body)).to_le_bytes() {
            return Err(data_loss("block checksum mismatch"));
        }
        match body.split_last() {
            Some((&UNCOMPRESSED, block)) => Ok(block),
            _ => Err(data_loss("the table is compressed, which checkpoints are not")),
        }
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

    /// Bytes it will have.
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

    /// Writes the block to the end of the file and says where it lies.
    fn finish_into(&self, file: &mut Vec<u8>) -> Handle {
        let offset = file.len();
        file.extend(&self.bytes);
        for restart in &self.restarts {
            file.extend(restart.to_le_bytes());
        }
        file.extend((self.restarts.len() as u32).to_le_bytes());
        let size = file.len() - offset;
        file.push(UNCOMPRESSED);
        let checksum = crc32c::mask(crc32c::extend(0, &file[offset..]));
        file.extend(checksum.to_le_bytes());
        Handle { offset: offset as u64, size: size as u64 }
    }
}

fn block_entries(block: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let bad = || data_loss("bad entry in block");
    let (body, count) = block.split_last_chunk::<4>().ok_or_else(bad)?;
    let restarts = (u32::from_le_bytes(*count) as usize).checked_mul(4).ok_or_else(bad)?;
    let mut rest = body.len().checked_sub(restarts).and_then(|end| body.get(..end)).ok_or_else(bad)?;
    let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    while !rest.is_empty() {
        let mut length = || usize::try_from(take_varint(&mut rest)?).map_err(|_| bad());
        let (shared, unshared, value) = (length()?, length()?, length()?);
        let mut key = match entries.last() {
            Some((last, _)) => last.get(..shared).ok_or_else(bad)?.to_vec(),
            None if shared == 0 => Vec::new(),
            None => return Err(bad()),
        };
        let (own, after) = rest.split_at_checked(unshared).ok_or_else(bad)?;
        let (value, after) = after.split_at_checked(value).ok_or_else(bad)?;
        key.extend(own);
        entries.push((key, value.to_vec()));
        rest = after;
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

/// Seven bits a byte, the lowest first, the highest bit of each saying that more follow.
pub fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Takes a varint off the front.
///
/// # Errors
/// DataLoss where there is none.
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
    fn what_was_encoded_is_decoded() {
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
    fn a_changed_byte_is_noticed() {
        let file = encode([(&b"a"[..], &b"1"[..]), (b"b", b"2")]);
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 0x40;
            // The padding of the footer alone means nothing.
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
