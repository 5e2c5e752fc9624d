//! The ops of maps from tensors to values.

use std::sync::Arc;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Tensor};

use super::super::dataset::dtype_of;
use super::super::token::{Token, Variant};
use super::super::variant::map::TensorMap;
use super::op::{StateInputs, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_call("EmptyTensorMap", |_, _| Ok(one(TensorMap::default())));
    ops.insert_call("TensorMapSize", |mut inputs, _| {
        let size = inputs.map(0)?.len();
        Ok(one(Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX))))
    });
    ops.insert_call("TensorMapHasKey", |mut inputs, _| {
        let map = inputs.map(0)?;
        Ok(one(Tensor::scalar(map.contains(&inputs.host(1)?)?)))
    });
    ops.insert_call("TensorMapInsert", |mut inputs, _| {
        let mut map = inputs.own_map(0)?;
        map.insert(inputs.host(1)?, inputs.token(2)?.held()?)?;
        Ok(one(map))
    });
    ops.insert("TensorMapLookup", |node, _| {
        let dtype = node.attrs.dtype("value_dtype")?;
        simple(move |mut inputs, _| {
            let map = inputs.map(0)?;
            let value = map.get(&inputs.host(1)?)?;
            check(&value, dtype)?;
            Ok(one(value))
        })
    });
    ops.insert_call("TensorMapErase", |mut inputs, _| {
        let mut map = inputs.own_map(0)?;
        map.remove(&inputs.host(1)?)?;
        Ok(one(map))
    });
    ops.insert("TensorMapStackKeys", |node, _| {
        let dtype = node.attrs.dtype("key_dtype")?;
        simple(move |mut inputs, _| Ok(one(inputs.map(0)?.keys(dtype)?)))
    });
}

fn check(value: &Token, dtype: DType) -> Result<()> {
    match dtype_of(value) {
        own if own == dtype => Ok(()),
        own => Err(Failure::invalid(format!("the map's value is of {own}, not of {dtype}"))),
    }
}

impl StateInputs {
    fn map(&mut self, index: usize) -> Result<Arc<TensorMap>> {
        match self.token(index)? {
            Token::Variant(Variant::Map(map)) => Ok(map),
            Token::Variant(other) => {
                Err(Failure::invalid(format!("Input handle is not a map. Saw: '{}'", other.kind())))
            }
            _ => Err(Failure::invalid(format!("input {index} must be a map"))),
        }
    }

    /// A map to be changed.
    fn own_map(&mut self, index: usize) -> Result<TensorMap> {
        let map = self.map(index)?;
        if Arc::strong_count(&map) > 1 {
            memory::admit(map.len().saturating_mul(size_of::<(Tensor, Token)>() * 2))?;
        }
        Ok(Arc::unwrap_or_clone(map))
    }
}
