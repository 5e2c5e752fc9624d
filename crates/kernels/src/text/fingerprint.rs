//! FarmHash's Fingerprint64, a stable hash: it never changes and is the same on every machine, so that it can identify
//! buckets.
//!
//! Implements the published algorithm (farmhash, `farmhashna::Hash64`). Not for secrets. The crate farmhash 1.1 differs
//! from TensorFlow for 128 bytes and every greater multiple of 64.

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

/// The fingerprint of some bytes.
pub fn fingerprint64(s: &[u8]) -> u64 {
    match s.len() {
        0..=16 => up_to_16(s),
        17..=32 => up_to_32(s),
        33..=64 => up_to_64(s),
        _ => long(s),
    }
}

/// Eight bytes at `at`, little-endian.
fn word(s: &[u8], at: usize) -> u64 {
    s[at..at + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Four bytes at `at`, little-endian.
fn half_word(s: &[u8], at: usize) -> u64 {
    s[at..at + 4].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

#[inline]
fn shift_mix(x: u64) -> u64 {
    x ^ x >> 47
}

#[inline]
fn mix(u: u64, v: u64, mul: u64) -> u64 {
    let a = shift_mix((u ^ v).wrapping_mul(mul));
    shift_mix((v ^ a).wrapping_mul(mul)).wrapping_mul(mul)
}

#[inline]
fn multiplier(length: usize) -> u64 {
    K2.wrapping_add(length as u64 * 2)
}

fn up_to_16(s: &[u8]) -> u64 {
    let length = s.len();
    let mul = multiplier(length);
    match length {
        8.. => {
            let a = word(s, 0).wrapping_add(K2);
            let b = word(s, length - 8);
            let c = b.rotate_right(37).wrapping_mul(mul).wrapping_add(a);
            let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(mul);
            mix(c, d, mul)
        }
        4.. => mix((length as u64).wrapping_add(half_word(s, 0) << 3), half_word(s, length - 4), mul),
        1.. => {
            let y = u64::from(s[0]) + (u64::from(s[length / 2]) << 8);
            let z = length as u64 + (u64::from(s[length - 1]) << 2);
            shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2)
        }
        0 => K2,
    }
}

/// The computation for 17 to 64 bytes from the first and last 16 bytes: `a`, and the two halves of the hash.
fn ends(s: &[u8], first: u64) -> (u64, u64, u64) {
    let (length, mul) = (s.len(), multiplier(s.len()));
    let a = word(s, 0).wrapping_mul(first);
    let b = word(s, 8);
    let c = word(s, length - 8).wrapping_mul(mul);
    let d = word(s, length - 16).wrapping_mul(K2);
    let y = a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
    let z = a.wrapping_add(b.wrapping_add(K2).rotate_right(18)).wrapping_add(c);
    (a, y, z)
}

fn up_to_32(s: &[u8]) -> u64 {
    let (_, y, z) = ends(s, K1);
    mix(y, z, multiplier(s.len()))
}

fn up_to_64(s: &[u8]) -> u64 {
    let (length, mul) = (s.len(), multiplier(s.len()));
    let (a, y, z) = ends(s, K2);
    let z = mix(y, z, mul);
    let e = word(s, 16).wrapping_mul(mul);
    let f = word(s, 24);
    let g = y.wrapping_add(word(s, length - 32)).wrapping_mul(mul);
    let h = z.wrapping_add(word(s, length - 24)).wrapping_mul(mul);
    mix(
        e.wrapping_add(f).rotate_right(43).wrapping_add(g.rotate_right(30)).wrapping_add(h),
        e.wrapping_add(f.wrapping_add(a).rotate_right(18)).wrapping_add(g),
        mul,
    )
}

/// Hashes the 32 bytes at `at` with two seeds.
fn weak(s: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let last = word(s, at + 24);
    let a = a.wrapping_add(word(s, at));
    let b = b.wrapping_add(a).wrapping_add(last).rotate_right(21);
    let all = a.wrapping_add(word(s, at + 8)).wrapping_add(word(s, at + 16));
    (all.wrapping_add(last), b.wrapping_add(all.rotate_right(44)).wrapping_add(a))
}

struct State {
    x: u64,
    y: u64,
    z: u64,
    v: (u64, u64),
    w: (u64, u64),
}

impl State {
    /// Mixes in the 64 bytes at `at`. The last block has a weight of 9 for part of the state.
    fn round(&mut self, s: &[u8], at: usize, mul: u64, weight: u64) {
        let State { x, y, z, v, w } = self;
        *x = x.wrapping_add(*y).wrapping_add(v.0).wrapping_add(word(s, at + 8)).rotate_right(37).wrapping_mul(mul);
        *y = y.wrapping_add(v.1).wrapping_add(word(s, at + 48)).rotate_right(42).wrapping_mul(mul);
        *x ^= w.1.wrapping_mul(weight);
        *y = y.wrapping_add(v.0.wrapping_mul(weight)).wrapping_add(word(s, at + 40));
        *z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(mul);
        *v = weak(s, at, v.1.wrapping_mul(mul), x.wrapping_add(w.0));
        *w = weak(s, at + 32, z.wrapping_add(w.1), y.wrapping_add(word(s, at + 16)));
        std::mem::swap(z, x);
    }
}

fn long(s: &[u8]) -> u64 {
    const SEED: u64 = 81;
    let y = SEED.wrapping_mul(K1).wrapping_add(113);
    let z = shift_mix(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2);
    let x = SEED.wrapping_mul(K2).wrapping_add(word(s, 0));
    let mut state = State { x, y, z, v: (0, 0), w: (0, 0) };
    let blocks = (s.len() - 1) / 64;
    for block in 0..blocks {
        state.round(s, block * 64, K1, 1);
    }
    // The last 64 bytes, which overlap the block before.
    let mul = K1.wrapping_add((state.z & 0xff) << 1);
    state.w.0 = state.w.0.wrapping_add(((s.len() - 1) & 63) as u64);
    state.v.0 = state.v.0.wrapping_add(state.w.0);
    state.w.0 = state.w.0.wrapping_add(state.v.0);
    state.round(s, s.len() - 64, mul, 9);
    let State { x, y, z, v, w } = state;
    mix(
        mix(v.0, w.0, mul).wrapping_add(shift_mix(y).wrapping_mul(K0)).wrapping_add(z),
        mix(v.1, w.1, mul).wrapping_add(x),
        mul,
    )
}
