//! Lookup tables: keys, each with a value of one shape. A fixed table is filled once and only read after that; a mutable one
//! changes at any time.

mod entries;
mod key;
mod saved;

use std::sync::{Mutex, MutexGuard};

use self::entries::Entries;
pub(crate) use self::key::keys_of;
use self::key::{Key, key_data};
use meshtf_kernels::call::check_text_bytes;
use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Element, PartialShape, Shape, Tensor, with_type};
use serde::{Deserialize, Serialize};

use super::super::waiting::unless_held;
use super::list::Look;
use super::{Lasting, Over, Resource, Saved, Version};

/// Most buckets of a dense table: one with more could not be exported, not even with the smallest keys.
pub(crate) const MAX_BUCKETS: usize = 1 << 29;

/// The description of a table in its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TableSpec {
    pub kind: TableKind,
    pub keys: DType,
    pub values: DType,
    /// The shape of one key: a scalar, or a vector in a dense table.
    pub key_shape: Shape,
    /// The shape of one value.
    pub value_shape: Shape,
}

/// The kind of a table, by the way it changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum TableKind {
    /// Filled once.
    Fixed,
    Mutable,
    /// Mutable; exported as buckets, of which those without an entry hold the empty key.
    Dense {
        empty: Key,
        deleted: Option<Key>,
        buckets: usize,
        max_load: f32,
    },
}

pub(crate) struct LookupTable {
    name: String,
    spec: TableSpec,
    entries: Mutex<Entries>,
}

impl Resource for LookupTable {
    fn wanted() -> &'static str {
        "lookup table"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    /// Bytes of its entries; 0 while another thread changes it.
    fn bytes(&self) -> usize {
        self.entries.try_lock().map_or(0, |entries| entries.bytes)
    }

    fn look(&self) -> Look {
        let entries = self.entries.try_lock().ok();
        Look {
            dtypes: vec![self.spec.keys, self.spec.values],
            shape: PartialShape::from(&self.spec.value_shape),
            bytes: entries.as_ref().map(|entries| entries.bytes),
            length: entries.as_ref().map(|entries| entries.rows.len()),
            version: None,
        }
    }

    fn version(&self) -> Option<Version> {
        unless_held(&self.entries).map(|entries| entries.version)
    }

    fn save(&self) -> Result<Saved> {
        self.saved()
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        self.loaded(saved, over)
    }
}

impl LookupTable {
    /// An empty table.
    pub fn new(name: String, spec: TableSpec) -> LookupTable {
        let buckets = if let TableKind::Dense { buckets, .. } = spec.kind { buckets } else { 0 };
        LookupTable { name, entries: Mutex::new(Entries::none(spec.values, buckets)), spec }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    fn hold(&self) -> MutexGuard<'_, Entries> {
        lock(&self.entries)
    }

    /// The number of its entries.
    pub fn len(&self) -> usize {
        self.hold().rows.len()
    }

    /// Whether a fixed table has been filled.
    pub fn is_filled(&self) -> bool {
        self.hold().is_filled
    }

    /// Fills a fixed table. One that was filled already stays as it is, if it has that number of entries.
    ///
    /// # Errors
    /// FailedPrecondition if it has another number of entries, or one key comes with two values; InvalidArgument if the table
    /// is not fixed, or keys or values are not vectors of the table's dtypes and of one length.
    pub fn fill(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        if self.spec.kind != TableKind::Fixed {
            let why = format!("Table '{}' is mutable: it cannot be initialized, but values can be inserted", self.name);
            return Err(Failure::invalid(why));
        }
        for (what, tensor) in [("Keys", keys), ("Values", values)] {
            if tensor.rank() != 1 {
                let why = format!("{what} must be a vector, but received shape {}", tensor.shape());
                return Err(Failure::invalid(why));
            }
        }
        if keys.len() != values.len() {
            let why = format!("Keys and values must have the same size {} vs {}", keys.len(), values.len());
            return Err(Failure::invalid(why));
        }
        self.check_dtypes(keys.dtype(), values.dtype())?;
        let entries = &mut *self.hold();
        if entries.is_filled {
            if entries.rows.len() == keys.len() {
                return Ok(());
            }
            return Err(Failure::new(Code::FailedPrecondition, "Table was already initialized with different data."));
        }
        let mut filled = Entries::none(self.spec.values, 0);
        let keys = keys_of(keys, &self.spec.key_shape)?;
        filled.admit(&keys, values, 1)?;
        for (i, key) in keys.into_iter().enumerate() {
            match filled.rows.get(&key).copied() {
                None => filled.put(key, values.data(), i, 1),
                Some(row) if filled.has(row, values.data(), i) => {}
                Some(_) => {
                    let why = format!("HashTable has different value for same key. Key {key} comes with two values");
                    return Err(Failure::new(Code::FailedPrecondition, why));
                }
            }
        }
        filled.is_filled = true;
        entries.replace(filled);
        Ok(())
    }

    /// The value of each key, or the default: one for all, or one for each key.
    ///
    /// # Errors
    /// FailedPrecondition if the table waits to be filled; InvalidArgument if dtypes or shapes do not fit the table, or a key
    /// is one that a dense table may not hold.
    pub fn find(&self, keys: &Tensor, default: &Tensor) -> Result<Tensor> {
        self.check_dtypes(keys.dtype(), default.dtype())?;
        let shape = self.values_shape(keys.shape())?;
        let is_each = default.shape() == &shape && self.spec.kind != TableKind::Fixed;
        if default.shape() != &self.spec.value_shape && !is_each {
            let wanted = &self.spec.value_shape;
            let why = format!("Expected shape {wanted} or {shape} for default value, got {}", default.shape());
            return Err(Failure::invalid(why));
        }
        shape.checked_elements(self.spec.values)?;
        let keys = keys_of(keys, &self.spec.key_shape)?;
        self.check_allowed(&keys)?;
        let entries = self.hold();
        if self.spec.kind == TableKind::Fixed && !entries.is_filled {
            return Err(Failure::new(Code::FailedPrecondition, "Table not initialized."));
        }
        let size = self.row_size();
        let rows: Vec<Option<usize>> = keys.iter().map(|key| entries.rows.get(key).copied()).collect();
        if let (Data::String(held), Data::String(other)) = (&entries.values, default.data()) {
            let length = |texts: &[Vec<u8>]| texts.iter().map(Vec::len).sum::<usize>();
            let taken = rows.iter().enumerate().map(|(i, row)| match row {
                Some(row) => length(&held[row * size..(row + 1) * size]),
                None if is_each => length(&other[i * size..(i + 1) * size]),
                None => length(other),
            });
            check_text_bytes(taken.fold(0usize, usize::saturating_add))?;
        }
        let found = with_type!(self.spec.values, T => {
            let (Some(held), Some(other)) = (T::slice(&entries.values), T::slice(default.data())) else {
                return Err(Failure::invalid("the values are of another dtype"));
            };
            let mut out: Vec<T> = Vec::with_capacity(rows.len() * size);
            let mut pace = Pace::new();
            for (i, row) in rows.iter().enumerate() {
                pace.go(100 + size);
                out.extend_from_slice(match row {
                    Some(row) => &held[row * size..(row + 1) * size],
                    None if is_each => &other[i * size..(i + 1) * size],
                    None => other,
                });
            }
            T::into_data(out)
        });
        Tensor::new(shape, found.ok_or_else(|| Failure::invalid("the values are handles"))?)
    }

    /// Inserts entries, and replaces the values of keys that exist.
    ///
    /// # Errors
    /// Unimplemented for a fixed table; InvalidArgument as for [`LookupTable::find`]; ResourceExhausted.
    pub fn insert(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.check_mutable("Insert")?;
        let keys = self.entries(keys, values)?;
        self.check_allowed(&keys)?;
        let entries = &mut *self.hold();
        self.put_all(entries, keys, values)
    }

    /// Replaces the contents with the export of another table.
    ///
    /// # Errors
    /// As [`LookupTable::insert`], or for a fixed table as [`LookupTable::fill`].
    pub fn import(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        if matches!(self.spec.kind, TableKind::Fixed) {
            // TensorFlow 2 fills its fixed tables this way.
            return self.fill(keys, values);
        }
        let keys = match (keys.dims(), values.dims()) {
            // The form in which such a table is exported.
            (&[count, 1], &[rows, size]) if self.is_dense() && count == rows && size == self.row_size() => {
                self.check_dtypes(keys.dtype(), values.dtype())?;
                keys_of(keys, &self.spec.key_shape)?
            }
            _ => self.entries(keys, values)?,
        };
        let entries = &mut *self.hold();
        let buckets = if self.is_dense() { keys.len().max(1).next_power_of_two() } else { 0 };
        let mut imported = Entries::none(self.spec.values, buckets);
        self.put_all(&mut imported, keys, values)?;
        imported.is_filled = true;
        entries.replace(imported);
        Ok(())
    }

    fn put_all(&self, entries: &mut Entries, keys: Vec<Key>, values: &Tensor) -> Result<()> {
        let size = self.row_size();
        entries.admit(&keys, values, size)?;
        if let TableKind::Dense { max_load, .. } = self.spec.kind {
            entries.buckets = buckets_for(entries.rows.len() + keys.len(), entries.buckets, max_load)?;
        }
        entries.version.raise();
        for (i, key) in keys.into_iter().enumerate() {
            // The export of a dense table contains buckets without an entry.
            if !self.is_reserved(&key) {
                entries.put(key, values.data(), i, size);
            }
        }
        Ok(())
    }

    /// Removes entries. Keys that do not exist are ignored.
    ///
    /// # Errors
    /// As [`LookupTable::insert`], or for a fixed table as [`LookupTable::fill`].
    pub fn remove(&self, keys: &Tensor) -> Result<()> {
        self.check_mutable("Remove")?;
        if keys.dtype() != self.spec.keys {
            return Err(self.wrong_key(keys.dtype()));
        }
        self.values_shape(keys.shape())?;
        let keys = keys_of(keys, &self.spec.key_shape)?;
        self.check_allowed(&keys)?;
        let entries = &mut *self.hold();
        let size = self.row_size();
        entries.version.raise();
        keys.iter().for_each(|key| entries.remove(key, size));
        Ok(())
    }

    /// All keys, in their order, and their values. A dense table exports all its buckets, those without an entry last.
    ///
    /// # Errors
    /// ResourceExhausted if they exceed the limit of a tensor, or there is not enough memory for them.
    pub fn export(&self) -> Result<(Tensor, Tensor)> {
        let entries = self.hold();
        let (count, without) = match &self.spec.kind {
            TableKind::Dense { empty, .. } => {
                let count = entries.buckets.max(entries.rows.len());
                (count, (count - entries.rows.len()).saturating_mul(empty.bytes()))
            }
            _ => (entries.rows.len(), 0),
        };
        // The buckets of a dense table are rows, of one element if keys or values are scalars.
        let with = |one: &Shape| match one.dims() {
            [] if self.is_dense() => Shape::from([count, 1]),
            dims => Shape::from([&[count], dims].concat()),
        };
        let shapes = [with(&self.spec.key_shape), with(&self.spec.value_shape)];
        self.listed(&entries, count, without, shapes)
    }

    /// All entries and then, of a dense table, as many buckets without one as make `count` rows, which take `without` bytes of
    /// text; in tensors of these shapes.
    fn listed(&self, entries: &Entries, count: usize, without: usize, shapes: [Shape; 2]) -> Result<(Tensor, Tensor)> {
        let size = self.row_size();
        let [key_shape, value_shape] = shapes;
        let bytes = |shape: &Shape, dtype: DType| {
            shape.limited_elements(dtype).map(|count| count * dtype.size().unwrap_or(size_of::<Vec<u8>>()))
        };
        let taken = bytes(&key_shape, self.spec.keys)? + bytes(&value_shape, self.spec.values)?;
        check_text_bytes(entries.bytes.saturating_add(without))?;
        memory::admit(
            count * size_of::<(&Key, Option<usize>)>() + taken.saturating_add(entries.bytes).saturating_add(without),
        )?;
        let (mut keys, mut order): (Vec<&Key>, Vec<Option<usize>>) =
            entries.rows.iter().map(|(key, &row)| (key, Some(row))).unzip();
        if let TableKind::Dense { empty, .. } = &self.spec.kind {
            keys.resize(count, empty);
            order.resize(count, None);
        }
        let values = with_type!(self.spec.values, T => {
            let held = T::slice(&entries.values).unwrap_or(&[]);
            let mut out: Vec<T> = Vec::with_capacity(order.len() * size);
            for row in &order {
                match row {
                    Some(row) => out.extend_from_slice(&held[row * size..(row + 1) * size]),
                    None => out.resize(out.len() + size, T::default()),
                }
            }
            T::into_data(out)
        });
        let values = values.ok_or_else(|| Failure::invalid("the values are handles"))?;
        Ok((Tensor::new(key_shape, key_data(&keys, self.spec.keys))?, Tensor::new(value_shape, values)?))
    }

    fn row_size(&self) -> usize {
        self.spec.value_shape.elements().unwrap_or(0)
    }

    fn is_dense(&self) -> bool {
        matches!(self.spec.kind, TableKind::Dense { .. })
    }

    /// Whether a key stands for a bucket without an entry.
    fn is_reserved(&self, key: &Key) -> bool {
        match &self.spec.kind {
            TableKind::Dense { empty, deleted, .. } => key == empty || deleted.as_ref() == Some(key),
            _ => false,
        }
    }

    fn check_allowed(&self, keys: &[Key]) -> Result<()> {
        let TableKind::Dense { empty, .. } = &self.spec.kind else { return Ok(()) };
        match keys.iter().find(|key| self.is_reserved(key)) {
            Some(key) => {
                let which = if key == empty { "empty_key" } else { "deleted_key" };
                Err(Failure::invalid(format!("Using the {which} as a table key is not allowed")))
            }
            None => Ok(()),
        }
    }

    fn check_mutable(&self, what: &str) -> Result<()> {
        if self.spec.kind == TableKind::Fixed {
            let why = format!("{what} not supported by InitializableLookupTable implementations");
            return Err(Failure::new(Code::Unimplemented, why));
        }
        Ok(())
    }

    fn wrong_key(&self, got: DType) -> Failure {
        Failure::invalid(format!("Key must be type {} but got {got}", self.spec.keys))
    }

    fn check_dtypes(&self, keys: DType, values: DType) -> Result<()> {
        if keys != self.spec.keys {
            return Err(self.wrong_key(keys));
        }
        if values != self.spec.values {
            let why = format!("Value must be type {} but got {values}", self.spec.values);
            return Err(Failure::invalid(why));
        }
        Ok(())
    }

    /// The shape of the values of keys of that shape.
    fn values_shape(&self, keys: &Shape) -> Result<Shape> {
        let one = self.spec.key_shape.dims();
        match keys.dims().strip_suffix(one) {
            Some(prefix) => Ok(Shape::from([prefix, self.spec.value_shape.dims()].concat())),
            None => Err(Failure::invalid(format!(
                "Input key shape {keys} must end with the table's key shape {}",
                self.spec.key_shape
            ))),
        }
    }

    /// The keys of entries to be inserted.
    fn entries(&self, keys: &Tensor, values: &Tensor) -> Result<Vec<Key>> {
        self.check_dtypes(keys.dtype(), values.dtype())?;
        let wanted = self.values_shape(keys.shape())?;
        if values.shape() != &wanted {
            return Err(Failure::invalid(format!("Expected shape {wanted} for value, got {}", values.shape())));
        }
        keys_of(keys, &self.spec.key_shape)
    }
}

/// The number of buckets of a dense table, which has `now` of them, for `entries`: at most their share `max_load` is full.
fn buckets_for(entries: usize, now: usize, max_load: f32) -> Result<usize> {
    let mut buckets = now;
    while entries as f64 > buckets as f64 * f64::from(max_load) {
        buckets = buckets.saturating_mul(2);
        if buckets > MAX_BUCKETS {
            let why = format!(
                "{entries} entries with max_load_factor {max_load} take more than {MAX_BUCKETS} buckets, which is the limit"
            );
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
    }
    Ok(buckets)
}
