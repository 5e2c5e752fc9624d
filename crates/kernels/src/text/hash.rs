//! StringToHashBucket, StringToHashBucketFast, StringToHashBucketStrong and Fingerprint: hashes that are the same on
//! every machine, so that they can identify buckets.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Shape, Tensor};

use super::super::call::kernel as call;
use super::super::math::map_to;
use super::super::{KernelNode, Registry};
use super::fingerprint::fingerprint64;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Fingerprint", |_| Ok(Some(call(|[data, method]| fingerprint(&data, &method)))));
    ops.insert("StringToHashBucketFast", |node| {
        let buckets = buckets(node)?;
        Ok(Some(call(move |[x]| map_to(&x, |text: &Vec<u8>| (fingerprint64(text) % buckets) as i64))))
    });
    ops.insert("StringToHashBucket", |node| {
        let buckets = buckets(node)?;
        Ok(Some(call(move |[x]| map_to(&x, |text: &Vec<u8>| (hash64(text) % buckets) as i64))))
    });
    ops.insert("StringToHashBucketStrong", |node| {
        let buckets = buckets(node)?;
        let &[a, b] = node.attrs.ints("key")? else {
            return Err(Failure::invalid("Key must have 2 elements"));
        };
        let key = [a as u64, b as u64];
        Ok(Some(call(move |[x]| map_to(&x, |text: &Vec<u8>| (sip_hash(text, key) % buckets) as i64))))
    });
}

fn buckets(node: &KernelNode) -> Result<u64> {
    Ok(node.attrs.int("num_buckets")?.max(1) as u64)
}

/// TensorFlow's Hash64: MurmurHash64A with a fixed seed.
fn hash64(text: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |k: u64| (k ^ k >> 47).wrapping_mul(M);
    let mut hash = 0xDE_CAFC_AFFE ^ (text.len() as u64).wrapping_mul(M);
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        let k = mix(u64::from_le_bytes(*word).wrapping_mul(M));
        hash = (hash ^ k).wrapping_mul(M);
    }
    if !rest.is_empty() {
        hash = (hash ^ little_endian(rest)).wrapping_mul(M);
    }
    let hash = mix(hash);
    hash ^ hash >> 47
}

/// Fewer than eight bytes as a little-endian number.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// SipHash-2-4 with the caller's key; std has SipHash-1-3 only.
fn sip_hash(text: &[u8], key: [u64; 2]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = text.as_chunks::<8>();
    let last = little_endian(rest) | (text.len() as u64) << 56;
    for word in words.iter().map(|word| u64::from_le_bytes(*word)).chain([last]) {
        v[3] ^= word;
        (0..2).for_each(|_| sip_round(&mut v));
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| sip_round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// The fingerprint of each row, as eight bytes; for strings, that of the fingerprints of the row's strings.
fn fingerprint(data: &Tensor, method: &Tensor) -> Result<Tensor> {
    if method.rank() != 0 || method.slice::<Vec<u8>>()?[0] != b"farmhash64" {
        return Err(Failure::invalid("Unsupported fingerprint method: only farmhash64 is supported"));
    }
    let Some(&rows) = data.dims().first() else {
        return Err(Failure::invalid("`data` should have at least one dimension: []"));
    };
    let shape = Shape::from([rows, 8]);
    shape.checked_elements(DType::U8)?;
    let size = data.len().checked_div(rows).unwrap_or(0);
    let of = |row: usize| -> u64 {
        let part = row * size..(row + 1) * size;
        match data.data() {
            Data::String(texts) if size == 1 => fingerprint64(&texts[row]),
            Data::String(texts) => {
                let each = texts[part].iter().flat_map(|text| fingerprint64(text).to_le_bytes());
                fingerprint64(&each.collect::<Vec<u8>>())
            }
            other => {
                let bytes = other.bytes().unwrap_or(&[]);
                let width = bytes.len().checked_div(data.len()).unwrap_or(0);
                fingerprint64(&bytes[part.start * width..part.end * width])
            }
        }
    };
    let bytes = meshtf_loops::turn::paced(0..rows, 50 + 8 * size).flat_map(|row| of(row).to_le_bytes());
    Ok(Tensor::from_vec(shape, bytes.collect::<Vec<u8>>()))
}
