//! Data to train with: examples in tensors, in an order that a seed says, cut into batches; and the files that they come from.

mod csv;
#[cfg(feature = "node")]
mod file;
mod idx;
#[cfg(feature = "node")]
mod images;
#[cfg(feature = "node")]
mod npz;
mod order;
mod text;

pub use csv::Csv;
#[cfg(feature = "node")]
pub use file::{Named, read_tensor, unpacked};
pub use idx::read as read_idx;
#[cfg(feature = "node")]
pub use images::{Images, read_image};
#[cfg(feature = "node")]
pub use npz::{read as read_npz, read_all as read_npz_all, write as write_npz};
pub use order::Order;
pub use text::Lines;

use crate::failure::{Failure, Result};
use crate::tensor::{Data, Shape, Tensor};

/// Examples: tensors whose first dimension is the examples, by the name of what they are fed to.
#[derive(Clone, Debug)]
pub struct Examples {
    parts: Vec<(String, Tensor)>,
    count: usize,
}

impl Examples {
    /// # Errors
    /// InvalidArgument if there is no tensor, one has no dimension, or not all have as many examples.
    pub fn new(parts: Vec<(String, Tensor)>) -> Result<Examples> {
        let Some(((first, tensor), rest)) = parts.split_first() else {
            return Err(Failure::invalid("there is no data"));
        };
        let count = |name: &str, tensor: &Tensor| match tensor.dims() {
            [count, ..] => Ok(*count),
            [] => Err(Failure::invalid(format!("the data for {name} is one value; expected a tensor of examples"))),
        };
        let examples = count(first, tensor)?;
        for (name, tensor) in rest {
            let own = count(name, tensor)?;
            if own != examples {
                return Err(Failure::invalid(format!(
                    "there are {examples} examples for {first}, and {own} for {name}"
                )));
            }
        }
        Ok(Examples { parts, count: examples })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What they are fed to.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(name, _)| name.as_str())
    }

    /// The tensors of all examples.
    pub fn parts(&self) -> &[(String, Tensor)] {
        &self.parts
    }

    /// Some of the examples, by their places, for each part a tensor of this outer shape and then an example's own. The outer shape
    /// has as many elements as there are places.
    ///
    /// # Errors
    /// InvalidArgument if a place is beyond the end; ResourceExhausted if there is no memory for it.
    pub fn take(&self, places: &[usize], outer: &[usize]) -> Result<Vec<Tensor>> {
        if let Some(beyond) = places.iter().find(|&&place| place >= self.count) {
            return Err(Failure::invalid(format!("there is no example {beyond}; there are {}", self.count)));
        }
        let take = |tensor: &Tensor| {
            let shape: Shape = outer.iter().chain(&tensor.dims()[1..]).copied().collect();
            shape.checked_elements(tensor.dtype())?;
            if let Data::String(all) = tensor.data() {
                let size = all.len().checked_div(self.count).unwrap_or(0);
                let taken = places.iter().flat_map(|&place| all[place * size..(place + 1) * size].iter().cloned());
                return Tensor::new(shape, Data::String(taken.collect()));
            }
            let all = tensor.bytes().unwrap_or_default();
            let size = all.len().checked_div(self.count).unwrap_or(0);
            let mut bytes = Vec::with_capacity(places.len() * size);
            for &place in places {
                bytes.extend_from_slice(&all[place * size..(place + 1) * size]);
            }
            Tensor::from_bytes(tensor.dtype(), shape, &bytes)
        };
        self.parts.iter().map(|(_, tensor)| take(tensor)).collect()
    }

    /// Two sets: some of the examples, drawn by a seed, held out of the first. `share` of them, rounded down.
    ///
    /// # Errors
    /// InvalidArgument if the share is not within 0 and 1; those of [`take`](Examples::take).
    pub fn split(&self, share: f64, seed: u64) -> Result<(Examples, Examples)> {
        if !(0.0..1.0).contains(&share) {
            return Err(Failure::invalid(format!("the share held out is {share}; expected 0 to below 1")));
        }
        let places = order::shuffled(self.count, seed, u64::MAX);
        let (held, kept) = places.split_at((self.count as f64 * share) as usize);
        // Each in the order of the files.
        let some = |places: &[usize]| {
            let mut places = places.to_vec();
            places.sort_unstable();
            let tensors = self.take(&places, &[places.len()])?;
            Examples::new(self.parts.iter().map(|(name, _)| name.clone()).zip(tensors).collect())
        };
        Ok((some(kept)?, some(held)?))
    }
}

#[cfg(test)]
mod tests;
