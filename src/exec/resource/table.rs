//! Lookup tables: keys, each with a value of one shape. A table of the first kind is filled once and read from then on; the
//! others change all the time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::super::kernel::call::check_text_bytes;
use super::list::Look;
use crate::exec::turn::Pace;
use crate::failure::{Code, Failure, Result};
use crate::lock::lock;
use crate::memory;
use crate::tensor::{DType, Data, Element, PartialShape, Shape, Tensor, with_type};

/// Most bytes of keys and values in one table.
const MAX_TABLE_BYTES: usize = 4 << 30;
/// Bytes that an entry takes beside its key's and its value's own.
const ENTRY_BYTES: usize = 64;
/// Most buckets of a dense table: one with more could not be exported, not even with the smallest keys.
pub(in crate::exec) const MAX_BUCKETS: usize = 1 << 29;

/// What a table is, as its node says.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::exec) struct TableSpec {
    pub kind: TableKind,
    pub keys: DType,
    pub values: DType,
    /// Of one key: a scalar, or a vector in a dense table.
    pub key_shape: Shape,
    /// Of one value.
    pub value_shape: Shape,
}

/// How a table changes.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::exec) enum TableKind {
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

/// A key: one element, or several for a table whose keys are vectors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::exec) enum Key {
    Int(i64),
    Text(Vec<u8>),
    Ints(Vec<i64>),
    Texts(Vec<Vec<u8>>),
}

pub(in crate::exec) struct LookupTable {
    name: String,
    spec: TableSpec,
    state: Mutex<State>,
}

struct State {
    is_filled: bool,
    /// Where the value of each key lies among the values.
    rows: BTreeMap<Key, usize>,
    values: Data,
    /// Rows of the values that no key has.
    free: Vec<usize>,
    /// Bytes of the keys, the strings and what an entry takes.
    bytes: usize,
    /// Of a dense table.
    buckets: usize,
}

impl LookupTable {
    /// An empty table.
    pub fn new(name: String, spec: TableSpec) -> LookupTable {
        let buckets = if let TableKind::Dense { buckets, .. } = spec.kind { buckets } else { 0 };
        let values = Data::zeros(spec.values, 0);
        let state = State { is_filled: false, rows: BTreeMap::new(), values, free: Vec::new(), bytes: 0, buckets };
        LookupTable { name, spec, state: Mutex::new(state) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    fn hold(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// What it is, for those who ask from outside.
    pub fn look(&self) -> Look {
        let state = self.state.try_lock().ok();
        Look {
            dtypes: vec![self.spec.keys, self.spec.values],
            shape: PartialShape::from(&self.spec.value_shape),
            bytes: state.as_ref().map(|state| state.bytes),
            length: state.as_ref().map(|state| state.rows.len()),
            version: None,
        }
    }

    /// Bytes of its entries; 0 if somebody is just changing it.
    pub fn bytes(&self) -> usize {
        self.state.try_lock().map_or(0, |state| state.bytes)
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.hold().rows.len()
    }

    /// Whether a table that is filled once has been.
    pub fn is_filled(&self) -> bool {
        self.hold().is_filled
    }

    /// Fills a table of the first kind. One that was filled already stays as it is, if it has that many entries.
    ///
    /// # Errors
    /// FailedPrecondition if it has another number of entries, or one key comes with two values; InvalidArgument if the table
    /// is of another kind, or keys or values are not vectors of the table's dtypes and of one length.
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
        let state = &mut *self.hold();
        if state.is_filled {
            if state.rows.len() == keys.len() {
                return Ok(());
            }
            return Err(Failure::new(Code::FailedPrecondition, "Table was already initialized with different data."));
        }
        let mut filled = State {
            is_filled: true,
            rows: BTreeMap::new(),
            values: Data::zeros(self.spec.values, 0),
            free: Vec::new(),
            bytes: 0,
            buckets: 0,
        };
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
        *state = filled;
        Ok(())
    }

    /// The value of each key, or the default: one for all, or one for each key.
    ///
    /// # Errors
    /// FailedPrecondition if the table waits to be filled; InvalidArgument if dtypes or shapes do not fit the table, or a key is
    /// one that a dense table may not hold.
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
        let state = self.hold();
        if self.spec.kind == TableKind::Fixed && !state.is_filled {
            return Err(Failure::new(Code::FailedPrecondition, "Table not initialized."));
        }
        let size = self.row_size();
        let rows: Vec<Option<usize>> = keys.iter().map(|key| state.rows.get(key).copied()).collect();
        if let (Data::String(held), Data::String(other)) = (&state.values, default.data()) {
            let length = |texts: &[Vec<u8>]| texts.iter().map(Vec::len).sum::<usize>();
            let taken = rows.iter().enumerate().map(|(i, row)| match row {
                Some(row) => length(&held[row * size..(row + 1) * size]),
                None if is_each => length(&other[i * size..(i + 1) * size]),
                None => length(other),
            });
            check_text_bytes(taken.fold(0usize, usize::saturating_add))?;
        }
        let found = with_type!(self.spec.values, T => {
            let (Some(held), Some(other)) = (T::slice(&state.values), T::slice(default.data())) else {
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

    /// Puts entries in, and replaces the values of keys that are there.
    ///
    /// # Errors
    /// Unimplemented for a table that is filled once; InvalidArgument as for [`LookupTable::find`]; ResourceExhausted.
    pub fn insert(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.check_mutable("Insert")?;
        let keys = self.entries(keys, values)?;
        self.check_allowed(&keys)?;
        let state = &mut *self.hold();
        self.put_all(state, keys, values)
    }

    /// Holds what is exported from another table, and nothing else.
    ///
    /// # Errors
    /// As [`LookupTable::insert`], or for a fixed table as [`LookupTable::fill`].
    pub fn import(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        if matches!(self.spec.kind, TableKind::Fixed) {
            // TensorFlow 2 fills its fixed tables so.
            return self.fill(keys, values);
        }
        let keys = match (keys.dims(), values.dims()) {
            // As such a table is exported.
            (&[count, 1], &[rows, size]) if self.is_dense() && count == rows && size == self.row_size() => {
                self.check_dtypes(keys.dtype(), values.dtype())?;
                keys_of(keys, &self.spec.key_shape)?
            }
            _ => self.entries(keys, values)?,
        };
        let state = &mut *self.hold();
        let buckets = if self.is_dense() { keys.len().max(1).next_power_of_two() } else { 0 };
        let (free, values_now) = (Vec::new(), Data::zeros(self.spec.values, 0));
        let mut imported =
            State { is_filled: true, rows: BTreeMap::new(), values: values_now, free, bytes: 0, buckets };
        self.put_all(&mut imported, keys, values)?;
        *state = imported;
        Ok(())
    }

    fn put_all(&self, state: &mut State, keys: Vec<Key>, values: &Tensor) -> Result<()> {
        let size = self.row_size();
        state.admit(&keys, values, size)?;
        if let TableKind::Dense { max_load, .. } = self.spec.kind {
            state.buckets = buckets_for(state.rows.len() + keys.len(), state.buckets, max_load)?;
        }
        for (i, key) in keys.into_iter().enumerate() {
            // A dense table that was exported has buckets without an entry.
            if !self.is_reserved(&key) {
                state.put(key, values.data(), i, size);
            }
        }
        Ok(())
    }

    /// Forgets entries. Keys that are not there are ignored.
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
        let state = &mut *self.hold();
        let size = self.row_size();
        for key in &keys {
            if let Some(row) = state.rows.remove(key) {
                state.bytes = state.bytes.saturating_sub(key.bytes() + ENTRY_BYTES + state.clear(row, size));
                state.free.push(row);
            }
        }
        Ok(())
    }

    /// All keys, in their order, and their values. A dense table says all its buckets, those without an entry last.
    ///
    /// # Errors
    /// ResourceExhausted if they exceed the limit of a tensor, or there is not enough memory for them.
    pub fn export(&self) -> Result<(Tensor, Tensor)> {
        let state = self.hold();
        let size = self.row_size();
        let (count, without) = match &self.spec.kind {
            TableKind::Dense { empty, .. } => {
                let count = state.buckets.max(state.rows.len());
                (count, (count - state.rows.len()).saturating_mul(empty.bytes()))
            }
            _ => (state.rows.len(), 0),
        };
        // The buckets of a dense table are rows, of one element if keys or values are scalars.
        let with = |one: &Shape| match one.dims() {
            [] if self.is_dense() => Shape::from([count, 1]),
            dims => Shape::from([&[count], dims].concat()),
        };
        let (key_shape, value_shape) = (with(&self.spec.key_shape), with(&self.spec.value_shape));
        let bytes = |shape: &Shape, dtype: DType| {
            shape.limited_elements(dtype).map(|count| count * dtype.size().unwrap_or(size_of::<Vec<u8>>()))
        };
        let taken = bytes(&key_shape, self.spec.keys)? + bytes(&value_shape, self.spec.values)?;
        check_text_bytes(state.bytes.saturating_add(without))?;
        memory::admit(
            count * size_of::<(&Key, Option<usize>)>() + taken.saturating_add(state.bytes).saturating_add(without),
        )?;
        let (mut keys, mut order): (Vec<&Key>, Vec<Option<usize>>) =
            state.rows.iter().map(|(key, &row)| (key, Some(row))).unzip();
        if let TableKind::Dense { empty, .. } = &self.spec.kind {
            keys.resize(count, empty);
            order.resize(count, None);
        }
        let values = with_type!(self.spec.values, T => {
            let held = T::slice(&state.values).unwrap_or(&[]);
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

    /// The keys of entries to be put in.
    fn entries(&self, keys: &Tensor, values: &Tensor) -> Result<Vec<Key>> {
        self.check_dtypes(keys.dtype(), values.dtype())?;
        let wanted = self.values_shape(keys.shape())?;
        if values.shape() != &wanted {
            return Err(Failure::invalid(format!("Expected shape {wanted} for value, got {}", values.shape())));
        }
        keys_of(keys, &self.spec.key_shape)
    }
}

/// How many buckets a dense table of `now` has with so many entries: so many that no more than their share of `max_load` is full.
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

impl State {
    /// Admits entries before any is put in.
    fn admit(&self, keys: &[Key], values: &Tensor, size: usize) -> Result<()> {
        let more = keys.iter().map(|key| key.bytes() + ENTRY_BYTES).sum::<usize>()
            + values.byte_len()
            + values.len().min(keys.len() * size) * size_of::<Vec<u8>>();
        if self.bytes.saturating_add(more) > MAX_TABLE_BYTES {
            let why = format!("a table would exceed the limit of {MAX_TABLE_BYTES} bytes");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        memory::admit(more)
    }

    /// Row `i` of the values becomes the key's.
    fn put(&mut self, key: Key, values: &Data, i: usize, size: usize) {
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

    /// Lets go of the strings of a row; how many bytes it had.
    fn clear(&mut self, row: usize, size: usize) -> usize {
        let bytes = self.row_bytes(row, size);
        if let Data::String(texts) = &mut self.values {
            texts[row * size..(row + 1) * size].fill(Vec::new());
        }
        bytes
    }

    /// Whether a row, which is one element, is element `i` of the values.
    fn has(&self, row: usize, values: &Data, i: usize) -> bool {
        let is_same = with_type!(self.values.dtype(), T => {
            T::slice(&self.values).map(|held| &held[row]) == T::slice(values).map(|values| &values[i])
        });
        is_same.unwrap_or(false)
    }
}

impl Key {
    fn bytes(&self) -> usize {
        size_of::<Key>()
            + match self {
                Key::Int(_) => 0,
                Key::Text(text) => text.len(),
                Key::Ints(ints) => size_of_val(&ints[..]),
                Key::Texts(texts) => texts.iter().map(|text| text.len() + size_of::<Vec<u8>>()).sum(),
            }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Int(int) => write!(f, "{int}"),
            Key::Text(text) => write!(f, "{}", String::from_utf8_lossy(text)),
            Key::Ints(ints) => write!(f, "{ints:?}"),
            Key::Texts(texts) => {
                let texts: Vec<_> = texts.iter().map(|text| String::from_utf8_lossy(text)).collect();
                write!(f, "{texts:?}")
            }
        }
    }
}

/// The keys that a tensor lists, each of that shape.
///
/// # Errors
/// InvalidArgument if its elements can be no keys.
pub(in crate::exec) fn keys_of(tensor: &Tensor, one: &Shape) -> Result<Vec<Key>> {
    let size = one.elements().unwrap_or(0);
    if !tensor.is_empty() && size == 0 {
        return Err(Failure::invalid(format!("keys of shape {one} have no elements")));
    }
    let is_scalar = one.rank() == 0;
    memory::admit(tensor.len().saturating_mul(size_of::<Key>()).saturating_add(tensor.byte_len()))?;
    Ok(match tensor.data() {
        Data::String(texts) if is_scalar => texts.iter().map(|text| Key::Text(text.clone())).collect(),
        Data::String(texts) => texts.chunks(size.max(1)).map(|texts| Key::Texts(texts.to_vec())).collect(),
        Data::I32(_) | Data::I64(_) => {
            let ints = tensor.to_i64s()?;
            if is_scalar {
                ints.into_iter().map(Key::Int).collect()
            } else {
                ints.chunks(size.max(1)).map(|ints| Key::Ints(ints.to_vec())).collect()
            }
        }
        other => return Err(Failure::invalid(format!("keys cannot be {}", other.dtype()))),
    })
}

/// Keys as the elements of a tensor.
fn key_data(keys: &[&Key], dtype: DType) -> Data {
    let mut ints = Vec::new();
    let mut all = Vec::new();
    for key in keys {
        match key {
            Key::Int(int) => ints.push(*int),
            Key::Ints(more) => ints.extend(more),
            Key::Text(text) => all.push(text.clone()),
            Key::Texts(more) => all.extend_from_slice(more),
        }
    }
    match dtype {
        DType::String => Data::String(all),
        DType::I32 => Data::I32(ints.into_iter().map(|int| int as i32).collect()),
        _ => Data::I64(ints),
    }
}
