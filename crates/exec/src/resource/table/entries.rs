//! The entries of a lookup table: for each key, the row of its value among the values.

use std::collections::BTreeMap;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Element, Tensor, with_type};

use super::super::Version;
use super::key::Key;

/// Most bytes of keys and values in one table.
const MAX_TABLE_BYTES: usize = 4 << 30;
/// Bytes that an entry takes in addition to its key and its value.
const ENTRY_BYTES: usize = 64;

/// The contents of a table.
pub(super) struct Entries {
    pub is_filled: bool,
    /// The row of each key's value among the values.
    pub rows: BTreeMap<Key, usize>,
    pub values: Data,
    /// Rows of the values without a key.
    free: Vec<usize>,
    /// Bytes of the keys, of the strings and of the overhead of entries.
    pub bytes: usize,
    /// The number of buckets of a dense table.
    pub buckets: usize,
    /// The version of the table.
    pub version: Version,
}

impl Entries {
    /// No entries yet, with values of that dtype.
    pub fn none(values: DType, buckets: usize) -> Entries {
        let values = Data::zeros(values, 0);
        Entries {
            is_filled: false,
            rows: BTreeMap::new(),
            values,
            free: Vec::new(),
            bytes: 0,
            buckets,
            version: Version::default(),
        }
    }

    /// Puts other entries in the place of all.
    pub fn replace(&mut self, by: Entries) {
        let mut version = self.version;
        version.raise();
        *self = Entries { version, ..by };
    }

    /// Admits entries before any is inserted.
    pub fn admit(&self, keys: &[Key], values: &Tensor, size: usize) -> Result<()> {
        let more = keys.iter().map(|key| key.bytes() + ENTRY_BYTES).sum::<usize>()
            + values.byte_len()
            + values.len().min(keys.len() * size) * size_of::<Vec<u8>>();
        if self.bytes.saturating_add(more) > MAX_TABLE_BYTES {
            let why = format!("a table would exceed the limit of {MAX_TABLE_BYTES} bytes");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        memory::admit(more)
    }

    /// Makes row `i` of the values the value of the key.
    pub fn put(&mut self, key: Key, values: &Data, i: usize, size: usize) {
        let (row, is_new) = match self.rows.get(&key) {
            Some(&row) => (row, false),
            None => (self.free.pop().unwrap_or_else(|| self.values.len() / size.max(1)), true),
        };
        if !is_new {
            self.bytes = self.bytes.saturating_sub(self.clear(row, size));
        }
        let dtype = self.values.dtype();
        let held = &mut self.values;
        let _ = with_type!(dtype, T => {
            if let (Some(held), Some(values)) = (T::vec_mut(held), T::slice(values)) {
                if held.len() < (row + 1) * size {
                    held.resize((row + 1) * size, T::default());
                }
                held[row * size..(row + 1) * size].clone_from_slice(&values[i * size..(i + 1) * size]);
            }
        });
        self.bytes += self.row_bytes(row, size);
        if is_new {
            self.bytes += key.bytes() + ENTRY_BYTES;
            self.rows.insert(key, row);
        }
    }

    fn row_bytes(&self, row: usize, size: usize) -> usize {
        match &self.values {
            Data::String(texts) => {
                texts[row * size..(row + 1) * size].iter().map(|text| text.len() + size_of::<Vec<u8>>()).sum()
            }
            other => other.dtype().size().unwrap_or(0) * size,
        }
    }

    /// Removes an entry, if it exists.
    pub fn remove(&mut self, key: &Key, size: usize) {
        if let Some(row) = self.rows.remove(key) {
            self.bytes = self.bytes.saturating_sub(key.bytes() + ENTRY_BYTES + self.clear(row, size));
            self.free.push(row);
        }
    }

    /// Frees the strings of a row; returns the bytes that it had.
    fn clear(&mut self, row: usize, size: usize) -> usize {
        let bytes = self.row_bytes(row, size);
        if let Data::String(texts) = &mut self.values {
            texts[row * size..(row + 1) * size].fill(Vec::new());
        }
        bytes
    }

    /// Whether a row, which is one element, is element `i` of the values.
    pub fn has(&self, row: usize, values: &Data, i: usize) -> bool {
        let is_same = with_type!(self.values.dtype(), T => {
            T::slice(&self.values).map(|held| &held[row]) == T::slice(values).map(|values| &values[i])
        });
        is_same.unwrap_or(false)
    }
}
