//! Blocks of quantised numbers as GGUF has them, decoded to float32. Numbers of several bytes are little-endian, scales float16.

use meshtf_tensor::half::f16;

/// A kind of block.
pub struct Block {
    /// GGUF's name of it.
    pub name: &'static str,
    number: u32,
    /// The elements of a block.
    pub elements: usize,
    /// The bytes of a block.
    pub bytes: usize,
    /// Decodes one block, of exactly these sizes.
    pub decode: fn(&[u8], &mut [f32]),
}

const BLOCKS: &[Block] = &[
    Block { name: "Q4_0", number: 2, elements: 32, bytes: 18, decode: q4_0 },
    Block { name: "Q4_1", number: 3, elements: 32, bytes: 20, decode: q4_1 },
    Block { name: "Q5_0", number: 6, elements: 32, bytes: 22, decode: q5_0 },
    Block { name: "Q5_1", number: 7, elements: 32, bytes: 24, decode: q5_1 },
    Block { name: "Q8_0", number: 8, elements: 32, bytes: 34, decode: q8_0 },
    Block { name: "Q4_K", number: 12, elements: 256, bytes: 144, decode: q4_k },
    Block { name: "Q5_K", number: 13, elements: 256, bytes: 176, decode: q5_k },
    Block { name: "Q6_K", number: 14, elements: 256, bytes: 210, decode: q6_k },
];

/// The names of the other types, by number.
const OTHERS: &[(u32, &str)] = &[
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

/// The kind of block of a number.
pub fn of(number: u32) -> Option<&'static Block> {
    BLOCKS.iter().find(|block| block.number == number)
}

/// The name of a type that is not decoded.
pub fn name(number: u32) -> String {
    OTHERS
        .iter()
        .find(|(own, _)| *own == number)
        .map_or_else(|| format!("GGUF's type {number}"), |(_, name)| (*name).to_owned())
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn q4_0(block: &[u8], into: &mut [f32]) {
    let scale = half(block, 0);
    for (i, &byte) in block[2..].iter().enumerate() {
        into[i] = (f32::from(byte & 15) - 8.0) * scale;
        into[i + 16] = (f32::from(byte >> 4) - 8.0) * scale;
    }
}

fn q4_1(block: &[u8], into: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    for (i, &byte) in block[4..].iter().enumerate() {
        into[i] = f32::from(byte & 15) * scale + least;
        into[i + 16] = f32::from(byte >> 4) * scale + least;
    }
}

/// The fifth bits of 32 elements.
fn fifth(block: &[u8], at: usize) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    move |i| ((bits >> i & 1) << 4) as u8
}

fn q5_0(block: &[u8], into: &mut [f32]) {
    let (scale, high) = (half(block, 0), fifth(block, 2));
    for (i, &byte) in block[6..].iter().enumerate() {
        into[i] = (f32::from(byte & 15 | high(i)) - 16.0) * scale;
        into[i + 16] = (f32::from(byte >> 4 | high(i + 16)) - 16.0) * scale;
    }
}

fn q5_1(block: &[u8], into: &mut [f32]) {
    let (scale, least, high) = (half(block, 0), half(block, 2), fifth(block, 4));
    for (i, &byte) in block[8..].iter().enumerate() {
        into[i] = f32::from(byte & 15 | high(i)) * scale + least;
        into[i + 16] = f32::from(byte >> 4 | high(i + 16)) * scale + least;
    }
}

fn q8_0(block: &[u8], into: &mut [f32]) {
    let scale = half(block, 0);
    for (value, &byte) in into.iter_mut().zip(&block[2..]) {
        *value = f32::from(byte as i8) * scale;
    }
}

/// The scale and the minimum of the group `i` of eight, 6 bits each, packed into 12 bytes.
fn scale_and_least(packed: &[u8], i: usize) -> (f32, f32) {
    let (scale, least) = match i {
        0..4 => (packed[i] & 63, packed[i + 4] & 63),
        _ => (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4),
    };
    (f32::from(scale), f32::from(least))
}

fn q4_k(block: &[u8], into: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    for (pair, own) in block[16..].chunks_exact(32).enumerate() {
        for (part, shift) in [0, 4].into_iter().enumerate() {
            let (own_scale, own_least) = scale_and_least(&block[4..16], 2 * pair + part);
            let (d, m) = (scale * own_scale, least * own_least);
            for (l, &byte) in own.iter().enumerate() {
                into[64 * pair + 32 * part + l] = d * f32::from(byte >> shift & 15) - m;
            }
        }
    }
}

fn q5_k(block: &[u8], into: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    let high = &block[16..48];
    for (pair, own) in block[48..].chunks_exact(32).enumerate() {
        for (part, shift) in [0, 4].into_iter().enumerate() {
            let group = 2 * pair + part;
            let (own_scale, own_least) = scale_and_least(&block[4..16], group);
            let (d, m) = (scale * own_scale, least * own_least);
            for (l, &byte) in own.iter().enumerate() {
                let value = byte >> shift & 15 | (high[l] >> group & 1) << 4;
                into[32 * group + l] = d * f32::from(value) - m;
            }
        }
    }
}

fn q6_k(block: &[u8], into: &mut [f32]) {
    let scale = half(block, 208);
    for n in 0..2 {
        let (low, high, scales) = (&block[64 * n..], &block[128 + 32 * n..], &block[192 + 8 * n..]);
        for l in 0..32 {
            let bits = high[l];
            let values = [
                low[l] & 15 | (bits & 3) << 4,
                low[l + 32] & 15 | (bits >> 2 & 3) << 4,
                low[l] >> 4 | (bits >> 4 & 3) << 4,
                low[l + 32] >> 4 | (bits >> 6) << 4,
            ];
            for (part, value) in values.into_iter().enumerate() {
                let own = f32::from(scales[l / 16 + 2 * part] as i8);
                into[128 * n + 32 * part + l] = scale * own * (f32::from(value) - 32.0);
            }
        }
    }
}
