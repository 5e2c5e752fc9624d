//! The keys of lookup tables.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Shape, Tensor};
use serde::{Deserialize, Serialize};

/// A key: one element, or several for a table whose keys are vectors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Key {
    Int(i64),
    Text(Vec<u8>),
    Ints(Vec<i64>),
    Texts(Vec<Vec<u8>>),
}

impl Key {
    /// Whether it is a key of a table with keys of this dtype and shape.
    pub fn is_of(&self, dtype: DType, shape: &Shape) -> bool {
        let is_text = dtype == DType::String;
        match (self, shape.dims()) {
            (Key::Int(_), []) => !is_text,
            (Key::Text(_), []) => is_text,
            (Key::Ints(ints), &[size]) => !is_text && ints.len() == size,
            (Key::Texts(texts), &[size]) => is_text && texts.len() == size,
            _ => false,
        }
    }

    pub fn bytes(&self) -> usize {
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
/// InvalidArgument if its elements cannot be keys.
pub(crate) fn keys_of(tensor: &Tensor, one: &Shape) -> Result<Vec<Key>> {
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
pub(super) fn key_data(keys: &[&Key], dtype: DType) -> Data {
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
