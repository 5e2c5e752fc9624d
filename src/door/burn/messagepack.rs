//! MessagePack without its meaning: the extent of its values, and the simple ones.

use burn_ir::ScalarIr;

/// The unsigned number that these bytes begin with, and its length.
pub(super) fn unsigned(bytes: &[u8]) -> Option<(u64, usize)> {
    Some(match *bytes {
        [small @ 0..=0x7f, ..] => (u64::from(small), 1),
        [0xcc, a, ..] => (u64::from(a), 2),
        [0xcd, a, b, ..] => (u64::from(u16::from_be_bytes([a, b])), 3),
        [0xce, a, b, c, d, ..] => (u64::from(u32::from_be_bytes([a, b, c, d])), 5),
        [0xcf, ref rest @ ..] => (u64::from_be_bytes(*rest.first_chunk()?), 9),
        _ => return None,
    })
}

/// The scalar that these bytes begin with, and its length: a map from the name of its type to its value.
pub(super) fn scalar(bytes: &[u8]) -> Option<(ScalarIr, usize)> {
    let [0x81, name @ 0xa3..=0xa5, rest @ ..] = bytes else { return None };
    let (name, value) = rest.split_at_checked(usize::from(name & 0x1f))?;
    let (scalar, size) = match (name, value) {
        (b"Float", [0xcb, rest @ ..]) => (ScalarIr::Float(f64::from_be_bytes(*rest.first_chunk()?)), 9),
        (b"Int", value) => signed(value).map(|(value, size)| (ScalarIr::Int(value), size))?,
        (b"UInt", value) => unsigned(value).map(|(value, size)| (ScalarIr::UInt(value), size))?,
        (b"Bool", [value @ (0xc2 | 0xc3), ..]) => (ScalarIr::Bool(*value == 0xc3), 1),
        _ => return None,
    };
    Some((scalar, 2 + name.len() + size))
}

/// The number that these bytes begin with, and its length.
fn signed(bytes: &[u8]) -> Option<(i64, usize)> {
    Some(match *bytes {
        [small @ 0xe0..=0xff, ..] => (i64::from(small as i8), 1),
        [0xd0, a, ..] => (i64::from(a as i8), 2),
        [0xd1, a, b, ..] => (i64::from(i16::from_be_bytes([a, b])), 3),
        [0xd2, a, b, c, d, ..] => (i64::from(i32::from_be_bytes([a, b, c, d])), 5),
        [0xd3, ref rest @ ..] => (i64::from_be_bytes(*rest.first_chunk()?), 9),
        _ => unsigned(bytes).and_then(|(value, size)| Some((i64::try_from(value).ok()?, size)))?,
    })
}

/// The length of the value that these bytes begin with, with all that it contains.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    let (mut values, mut at) = (1usize, 0);
    while values > 0 {
        let (size, more) = value(&bytes[at..])?;
        at += size;
        values = (values - 1).checked_add(more).filter(|values| *values <= bytes.len())?;
    }
    Some(at)
}

/// The length of the value that these bytes begin with, without its content, and the number of values in it.
pub(super) fn value(bytes: &[u8]) -> Option<(usize, usize)> {
    let of =
        |size: usize| bytes.get(1..=size)?.iter().try_fold(0usize, |sum, &byte| Some(sum << 8 | usize::from(byte)));
    let (size, more) = match *bytes.first()? {
        0..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (1, 0),
        map @ 0x80..=0x8f => (1, 2 * usize::from(map & 0x0f)),
        array @ 0x90..=0x9f => (1, usize::from(array & 0x0f)),
        text @ 0xa0..=0xbf => (1 + usize::from(text & 0x1f), 0),
        0xcc | 0xd0 => (2, 0),
        0xcd | 0xd1 => (3, 0),
        0xca | 0xce | 0xd2 => (5, 0),
        0xcb | 0xcf | 0xd3 => (9, 0),
        0xc4 | 0xd9 => (2 + of(1)?, 0),
        0xc5 | 0xda => (3 + of(2)?, 0),
        0xc6 | 0xdb => (5 + of(4)?, 0),
        0xdc => (3, of(2)?),
        0xdd => (5, of(4)?),
        0xde => (3, 2 * of(2)?),
        0xdf => (5, of(4)?.checked_mul(2)?),
        // Reserved codes and extensions, neither of which a client sends.
        _ => return None,
    };
    (size <= bytes.len()).then_some((size, more))
}
