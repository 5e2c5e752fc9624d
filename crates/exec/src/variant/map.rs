//! Maps from tensors to values, which live as long as they flow through a step.

use std::collections::BTreeMap;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Tensor};

use super::super::rows::stack;
use super::super::token::{Token, Variant, depth_over};
use super::sum;

/// Most entries of a map.
const MAX_MAP: usize = 1 << 24;

/// A map. Its order is that of the keys' bytes.
#[derive(Clone)]
pub(crate) struct TensorMap {
    entries: BTreeMap<Key, (Tensor, Token)>,
    depth: usize,
}

impl Default for TensorMap {
    fn default() -> TensorMap {
        TensorMap { entries: BTreeMap::new(), depth: 1 }
    }
}

/// A key as it is compared: its dtype, its shape and its elements.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key(i32, Vec<usize>, Elements);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Elements {
    Bytes(Vec<u8>),
    Texts(Vec<Vec<u8>>),
}

impl Key {
    fn of(tensor: &Tensor) -> Result<Key> {
        memory::admit(tensor.byte_len())?;
        let elements = match (tensor.data(), tensor.bytes()) {
            (Data::String(texts), _) => Elements::Texts(texts.clone()),
            (_, Some(bytes)) => Elements::Bytes(bytes.to_vec()),
            _ => return Err(Failure::invalid(format!("a key of a map is a tensor, not a {}", tensor.dtype()))),
        };
        Ok(Key(tensor.dtype().proto_number(), tensor.dims().to_vec(), elements))
    }
}

/// A key as errors show it.
fn shown(key: &Tensor) -> String {
    let text = format!("{key:?}");
    text.chars().take(100).collect()
}

impl TensorMap {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The keys and the values that it contains.
    pub fn values(&self) -> impl Iterator<Item = &Token> {
        self.entries.values().map(|(_, value)| value)
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn contains(&self, key: &Tensor) -> Result<bool> {
        Ok(self.entries.contains_key(&Key::of(key)?))
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// ResourceExhausted over a limit.
    pub fn insert(&mut self, key: Tensor, value: Token) -> Result<()> {
        if self.entries.len() >= MAX_MAP {
            let why = format!("a map has {MAX_MAP} entries already, which is the limit");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        memory::grow()?;
        self.depth = self.depth.max(depth_over(std::iter::once(&value))?);
        self.entries.insert(Key::of(&key)?, (key, value));
        Ok(())
    }

    /// The value of a key.
    ///
    /// # Errors
    /// InvalidArgument if there is none.
    pub fn get(&self, key: &Tensor) -> Result<Token> {
        let found = self.entries.get(&Key::of(key)?).map(|(_, value)| value.clone());
        found.ok_or_else(|| {
            let why = format!("Trying to lookup non-existent key. Could not find key \"{}\".", shown(key));
            Failure::invalid(why)
        })
    }

    /// Removes a key with its value.
    ///
    /// # Errors
    /// InvalidArgument if there is none.
    pub fn remove(&mut self, key: &Tensor) -> Result<()> {
        self.entries.remove(&Key::of(key)?).map(|_| ()).ok_or_else(|| {
            let why = format!("Trying to erase non-existent item. Could not find key \"{}\".", shown(key));
            Failure::invalid(why)
        })
    }

    /// The keys, as the rows of a tensor.
    ///
    /// # Errors
    /// InvalidArgument if there is no key, or they differ in shape or are of another dtype.
    pub fn keys(&self, dtype: DType) -> Result<Tensor> {
        let keys: Vec<&Tensor> = self.entries.values().map(|(key, _)| key).collect();
        let Some(first) = keys.first() else {
            return Err(Failure::invalid("TensorMapStackKeys cannot be called on empty map."));
        };
        if let Some(other) = keys.iter().find(|key| key.dtype() != dtype) {
            return Err(Failure::invalid(format!(
                "Key does not match requested dtype: {}, not {dtype}",
                other.dtype()
            )));
        }
        if let Some(other) = keys.iter().find(|key| key.shape() != first.shape()) {
            return Err(Failure::invalid(format!(
                "Keys must all have the same shape: {} and {}",
                first.shape(),
                other.shape()
            )));
        }
        stack(dtype, first.shape(), &keys)
    }

    /// The values of both maps, added where both have one.
    pub(super) fn plus(mut self, other: &TensorMap) -> Result<TensorMap> {
        for (key, (tensor, value)) in &other.entries {
            match self.entries.get_mut(key) {
                Some((_, own)) => *own = sum(own.clone(), value.clone())?,
                None => self.insert(tensor.clone(), value.clone())?,
            }
        }
        Ok(self)
    }
}

impl From<TensorMap> for Token {
    fn from(map: TensorMap) -> Token {
        Token::Variant(Variant::Map(std::sync::Arc::new(map)))
    }
}
