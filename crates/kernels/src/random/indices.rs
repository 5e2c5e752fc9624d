//! RandomIndexShuffle: where an index stands in a random order of all indices, without that order.
//!
//! The order is a block cipher (Simon, <https://eprint.iacr.org/2013/404>) with few rounds over the least even number of bits
//! that holds the largest index. Results beyond that are enciphered again.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::Registry;
use super::super::call::{kernel as call, output_dtype};

/// The most rounds, so that one call ends soon.
const MOST_ROUNDS: i64 = 1 << 16;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("RandomIndexShuffle", |node| {
        let (rounds, dtype) = (node.attrs.int("rounds")?, output_dtype(node, 0)?);
        if !(4..=MOST_ROUNDS).contains(&rounds) || rounds % 2 != 0 {
            let text = format!("rounds must be an even number of at least 4 and at most {MOST_ROUNDS}, got {rounds}");
            return Err(Failure::invalid(text));
        }
        let is_held = matches!(dtype, DType::I32 | DType::I64 | DType::U32 | DType::U64);
        Ok(is_held.then(|| call(move |inputs: [Tensor; 3]| shuffled(&inputs, rounds as usize, dtype))))
    });
}

/// Any integers as 64 bits.
fn words(tensor: &Tensor) -> Result<Vec<u64>> {
    Ok(match tensor.dtype() {
        DType::U32 => tensor.slice::<u32>()?.iter().map(|&x| x.into()).collect(),
        DType::U64 => tensor.slice::<u64>()?.to_vec(),
        _ => tensor.to_i64s()?.into_iter().map(|x| x as u64).collect(),
    })
}

fn shuffled([index, seed, largest]: &[Tensor; 3], rounds: usize, dtype: DType) -> Result<Tensor> {
    if index.rank() > 1 || index.is_empty() {
        return Err(Failure::invalid(format!(
            "Index must be a scalar or a vector with elements. It has shape {}",
            index.shape()
        )));
    }
    let seed_dims = seed.dims();
    if seed.rank() == 0 || seed.rank() > 2 || seed_dims[seed.rank() - 1] != 3 {
        let text = format!("Seed must be a vector with 3 entries or a matrix of them, got shape {}", seed.shape());
        return Err(Failure::invalid(text));
    }
    if largest.rank() > 1 {
        let text = format!("MaxIndex must be a scalar or a vector with elements. It has shape {}", largest.shape());
        return Err(Failure::invalid(text));
    }
    let lists =
        [(index.rank() == 1, index.len()), (seed.rank() == 2, seed_dims[0]), (largest.rank() == 1, largest.len())];
    let mut sizes = lists.iter().filter(|(is_list, _)| *is_list).map(|(_, size)| *size);
    let count = sizes.next();
    if sizes.any(|size| Some(size) != count) {
        return Err(Failure::invalid(format!(
            "Index, seed and max_index must have one first dimension if they have any, got shapes {}, {} and {}",
            index.shape(),
            seed.shape(),
            largest.shape()
        )));
    }
    let (indices, keys, limits) = (words(index)?, words(seed)?, words(largest)?);
    let mut pace = Pace::new();
    let mut out = Vec::with_capacity(count.unwrap_or(1));
    for i in 0..count.unwrap_or(1) {
        let of = |list: usize| if lists[list].0 { i } else { 0 };
        let (index, largest) = (indices[of(0)], limits[of(2)]);
        let key = &keys[3 * of(1)..][..3];
        if index > largest {
            return Err(Failure::invalid(format!("The index must be <= the maximum {largest}, got {index}")));
        }
        out.push(place(index, [key[0] as u32, key[1] as u32, key[2] as u32], largest, rounds, &mut pace));
    }
    let shape: Shape = count.into_iter().collect();
    Ok(match dtype {
        DType::I32 => Tensor::from_vec(shape, out.into_iter().map(|x| x as i32).collect()),
        DType::U32 => Tensor::from_vec(shape, out.into_iter().map(|x| x as u32).collect()),
        DType::I64 => Tensor::from_vec(shape, out.into_iter().map(|x| x as i64).collect()),
        _ => Tensor::from_vec(shape, out),
    })
}

fn place(index: u64, key: [u32; 3], largest: u64, rounds: usize, pace: &mut Pace) -> u64 {
    if largest == 0 {
        return 0;
    }
    // TensorFlow computes the number of bits as a float.
    let bits = (largest as f64).log2().ceil() as u32;
    let half = ((bits + bits % 2).clamp(16, 64)) / 2;
    let mask = if half == 32 { u64::from(u32::MAX) } else { (1 << half) - 1 };
    let turned = |x: u64, by: u32| ((x << by) | (x >> (half - by))) & mask;
    let back = |x: u64, by: u32| ((x >> by) | (x << (half - by))) & mask;
    let mut keys: Vec<u64> = key.iter().map(|&word| u64::from(word) & mask).collect();
    let mut constants = 0x7369_f885_192c_0ef5 & mask;
    for i in 3..rounds {
        let last = keys[i - 1];
        keys.push(((0xffff_fffc & mask) ^ (constants & 1) ^ keys[i - 3] ^ back(last, 3) ^ back(last, 4)) & mask);
        constants >>= 1;
    }
    let mixed = |x: u64| (turned(x, 1) & turned(x, 8)) ^ turned(x, 2);
    let mut at = index;
    loop {
        let (mut left, mut right) = ((at >> half) & mask, at & mask);
        for pair in keys.chunks_exact(2) {
            pace.go(16);
            left ^= mixed(right) ^ pair[0];
            right ^= mixed(left) ^ pair[1];
        }
        at = left << half | right;
        if at <= largest {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_taken_once() {
        for largest in [1, 2, 9, 300, 70_000] {
            let mut pace = Pace::new();
            let mut places: Vec<u64> = (0..=largest).map(|i| place(i, [1, 2, 3], largest, 4, &mut pace)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..=largest), "{largest}");
        }
    }
}
