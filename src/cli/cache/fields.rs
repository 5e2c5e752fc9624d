//! The parts of a protobuf message in which a constant may lie: its large fields of bytes, at any depth.

use std::ops::Range;

/// Most messages around a field: a graph within a branch within a graph, and their tensors.
const MAX_DEPTH: u32 = 24;

/// The fields of at least so many bytes, and those within them. Bytes that are no message have few or none; whoever takes one
/// compares its bytes.
pub(super) fn fields(bytes: &[u8], least: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    walk(bytes, 0, least, MAX_DEPTH, &mut found);
    found
}

fn walk(bytes: &[u8], start: usize, least: usize, depth: u32, found: &mut Vec<Range<usize>>) {
    let mut at = 0;
    while at < bytes.len() {
        let Some(key) = varint(bytes, &mut at) else { return };
        let length = match key & 7 {
            0 => varint(bytes, &mut at).map(|_| 0),
            1 => Some(8),
            2 => varint(bytes, &mut at),
            5 => Some(4),
            _ => None,
        };
        let end = length.and_then(|length| at.checked_add(usize::try_from(length).ok()?));
        let Some(end) = end.filter(|&end| end <= bytes.len()) else { return };
        if key & 7 == 2 && end - at >= least {
            found.push(start + at..start + end);
            if depth > 0 {
                walk(&bytes[at..end], start + at, least, depth - 1, found);
            }
        }
        at = end;
    }
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut all = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length >= 0x80 {
            all.push(length as u8 | 0x80);
            length >>= 7;
        }
        all.push(length as u8);
        all.extend(bytes);
        all
    }

    #[test]
    fn large_fields_are_found_at_every_depth() {
        let raw = vec![0xff; 300];
        let tensor = [&[0x08, 0x96, 0x01][..], &field(9, &raw), &[0x15, 1, 2, 3, 4]].concat();
        let graph = [field(2, b"name"), field(5, &tensor), vec![0x11; 9]].concat();
        let model = field(7, &graph);
        let found = fields(&model, 300);
        let parts: Vec<&[u8]> = found.iter().map(|range| &model[range.clone()]).collect();
        assert_eq!(parts, [&graph[..], &tensor, &raw]);
        assert!(fields(&model, 1 << 20).is_empty());
        // Bytes that are no message, or that end early, and one message within another many times.
        assert!(fields(&[0xff; 100], 1).is_empty() && fields(&model[..200], 300).is_empty());
        let mut deep = vec![0; 10];
        for _ in 0..100 {
            deep = field(1, &deep);
        }
        assert_eq!(fields(&deep, 1).len(), MAX_DEPTH as usize + 1);
    }
}
