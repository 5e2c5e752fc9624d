//! The readers as one function of bytes, for fuzzing.

use std::sync::Arc;

use meshtf_tensor::failure::Failure;

use super::map::Rules;
use super::{Form, Shared, open};

/// Most elements of a tensor that is read: a few bytes may state gigabytes, which are bounded, but slow.
const MOST: usize = 1 << 16;

/// Recognises a file of weights, lists its tensors and reads the small ones; returns whether it could.
pub fn file(bytes: &[u8]) -> bool {
    let source: Shared = Arc::new(bytes.to_vec());
    let missing = |name: &str| -> Result<Shared, Failure> {
        match name {
            "shard" => Ok(Arc::new(vec![0x3c; 64])),
            _ => Err(Failure::invalid(format!("there is no file {name}"))),
        }
    };
    let Ok(Some(form)) = Form::of(&source) else { return false };
    let Ok(held) = open(form, &source, &missing) else { return false };
    let small = |entry: &&super::Entry| {
        entry.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).is_some_and(|n| n <= MOST)
    };
    let mut is_read = true;
    for entry in held.tensors.iter().filter(small) {
        match entry.load() {
            Ok(tensor) => {
                assert_eq!(tensor.dims(), entry.shape, "{}", entry.name);
                assert_eq!(Some(tensor.dtype()), entry.dtype, "{}", entry.name);
            }
            Err(failure) => {
                assert!(failure.message.contains(&entry.name), "{failure}");
                is_read = false;
            }
        }
    }
    is_read
}

/// Reads rules for names, and applies them.
pub fn rules(bytes: &[u8]) -> bool {
    let Some(rules) = std::str::from_utf8(bytes).ok().and_then(|text| Rules::read(text).ok()) else { return false };
    let names = ["model.layers.0.weight", "fc.weight", "a/b:0"];
    let tensor = meshtf_tensor::Tensor::from_vec([2, 3], vec![0f32; 6]);
    let entries = names.map(|name| super::Entry::of(name, tensor.clone()));
    let _ = rules.apply(entries.to_vec());
    true
}
