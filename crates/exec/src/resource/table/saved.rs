//! The saved state of a lookup table: its entries.

use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape};
use serde::{Deserialize, Serialize};

use super::super::{Lasting, Over, ResourceKey, Saved, check_spec};
use super::entries::Entries;
use super::key::keys_of;
use super::{LookupTable, MAX_BUCKETS, TableKind, TableSpec};

/// All but the keys and their values, which are two tensors.
#[derive(Serialize, Deserialize)]
struct Form {
    spec: TableSpec,
    is_filled: bool,
    buckets: usize,
}

fn is_right(buckets: usize) -> bool {
    buckets.is_power_of_two() && buckets <= MAX_BUCKETS
}

impl TableSpec {
    /// Whether a node can describe a table so.
    fn is_right(&self) -> bool {
        let has_right_dtypes = matches!(self.keys, DType::I32 | DType::I64 | DType::String) && !self.values.is_handle();
        has_right_dtypes
            && self.value_shape.is_allowed(self.values)
            && match &self.kind {
                TableKind::Fixed => self.key_shape.rank() == 0 && self.value_shape.rank() == 0,
                TableKind::Mutable => self.key_shape.rank() == 0,
                TableKind::Dense { empty, deleted, buckets, max_load } => {
                    [Some(empty), deleted.as_ref()]
                        .into_iter()
                        .flatten()
                        .all(|key| key.is_of(self.keys, &self.key_shape))
                        && self.key_shape.elements() > Some(0)
                        && is_right(*buckets)
                        && *max_load > 0.0
                        && *max_load < 1.0
                }
            }
    }
}

impl Lasting for LookupTable {
    const KIND: &'static str = "lookup table";

    fn empty(key: &ResourceKey, saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<LookupTable> {
        let Form { spec, .. } = saved.form(Self::KIND)?;
        if !spec.is_right() {
            return Err(saved.malformed("there is no such table"));
        }
        Ok(LookupTable::new(key.name.clone(), spec))
    }
}

impl LookupTable {
    fn shapes_of(&self, count: usize) -> [Shape; 2] {
        [&self.spec.key_shape, &self.spec.value_shape].map(|one| Shape::from([&[count], one.dims()].concat()))
    }

    pub(super) fn saved(&self) -> Result<Saved> {
        let entries = self.hold();
        let count = entries.rows.len();
        let (keys, values) = self.listed(&entries, count, 0, self.shapes_of(count))?;
        let form = Form { spec: self.spec.clone(), is_filled: entries.is_filled, buckets: entries.buckets };
        Saved::new(Self::KIND, entries.version, &form, vec![keys, values])
    }

    pub(super) fn loaded(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        let Form { spec, is_filled, buckets } = saved.form(Self::KIND)?;
        check_spec(Self::KIND, &self.name, &self.spec, &spec)?;
        if if self.is_dense() { !is_right(buckets) } else { buckets != 0 } {
            return Err(saved.malformed(&format!("a table does not have {buckets} buckets")));
        }
        let [keys, values] = &saved.tensors[..] else { return Err(saved.malformed("a table has keys and values")) };
        let shapes = self.shapes_of(keys.dims().first().copied().unwrap_or(0));
        let are_of_table = (keys.dtype(), values.dtype()) == (self.spec.keys, self.spec.values);
        if !are_of_table || [keys.shape(), values.shape()] != shapes.each_ref() {
            return Err(saved.malformed("the keys and values do not fit the table"));
        }
        let size = self.row_size();
        let mut loaded = Entries::none(self.spec.values, buckets);
        let keys = keys_of(keys, &self.spec.key_shape)?;
        loaded.admit(&keys, values, size)?;
        for (i, key) in keys.into_iter().enumerate() {
            if !self.is_reserved(&key) {
                loaded.put(key, values.data(), i, size);
            }
        }
        loaded.is_filled = is_filled;
        let entries = &mut *self.hold();
        entries.version.check(Self::KIND, over)?;
        loaded.version = entries.version;
        loaded.version.replace(saved.version);
        *entries = loaded;
        Ok(())
    }
}
