//! Bytes in the pieces that they came in, the search for one field in them, and those that are kept.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint};

use crate::failure::{Code, Failure, Result};
use crate::memory;

/// Pieces, read from the front; a piece is let go of as soon as it has been read. A clone shares the bytes.
#[derive(Clone, Default)]
pub(super) struct Pieces {
    pieces: VecDeque<Bytes>,
    /// Bytes in all of them.
    length: usize,
}

impl Pieces {
    pub fn push(&mut self, piece: Bytes) {
        self.length += piece.len();
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    /// The first `length` bytes, which must be there.
    fn split_to(&mut self, mut length: usize) -> Pieces {
        let mut front = Pieces::default();
        self.length -= length;
        while length > 0 {
            let Some(piece) = self.pieces.front_mut() else { return front };
            let part = piece.split_to(length.min(piece.len()));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            length -= part.len();
            front.push(part);
        }
        front
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    /// As [`Buf`] has it, this panics past the end; who calls it has asked what remains.
    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.length, "past what is here of the message");
        self.length -= count;
        while count > 0 {
            let Some(piece) = self.pieces.front_mut() else { return };
            if count < piece.len() {
                piece.advance(count);
                return;
            }
            count -= piece.len();
            self.pieces.pop_front();
        }
    }
}

/// The text at the end of a path of fields, each but the last a message: `[2, 16, 11, 1]` is field 1 of field 11 of field
/// 16 of field 2. Of several the last counts, as in protobuf. Nothing else of the message is made. A text that is longer
/// than `longest` is none.
///
/// # Errors
/// InvalidArgument if the bytes are no message.
pub(super) fn find(mut message: Pieces, path: &[u32], longest: usize) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    while message.has_remaining() {
        let (field, wire) = decode_key(&mut message).map_err(|error| malformed(&error))?;
        let length = match wire {
            WireType::Varint => {
                decode_varint(&mut message).map_err(|error| malformed(&error))?;
                continue;
            }
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
            WireType::LengthDelimited => decode_varint(&mut message).map_err(|error| malformed(&error))?,
            WireType::StartGroup | WireType::EndGroup => return Err(has_group()),
        };
        let length =
            usize::try_from(length).ok().filter(|&length| length <= message.remaining()).ok_or_else(cut_off)?;
        match path {
            [first, rest @ ..] if *first == field && wire == WireType::LengthDelimited => {
                let mut inner = message.split_to(length);
                if !rest.is_empty() {
                    found = find(inner, rest, longest)?.or(found);
                } else if length <= longest {
                    found = Some(inner.copy_to_bytes(length).to_vec());
                } else {
                    found = None;
                }
            }
            _ => message.advance(length),
        }
    }
    Ok(found)
}

/// Adds bytes to those that are kept of a message.
///
/// # Errors
/// ResourceExhausted if the memory budget has not enough left for the memory that they then take.
pub(super) fn append(kept: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    let length = kept.len() + bytes.len();
    if length > kept.capacity() {
        let grown = length.max(2 * kept.capacity());
        memory::admit(grown).map_err(Failure::with_holder)?;
        kept.reserve_exact(grown - kept.len());
    }
    kept.extend_from_slice(bytes);
    Ok(())
}

/// Whether a request may have so many bytes beside its graph or its feeds, or a feed beside its tensor.
pub(super) fn within_names(length: usize, most: usize) -> Result<()> {
    if length <= most {
        return Ok(());
    }
    let why = format!("the request names so much that it takes {length} bytes or more, the limit is {most}");
    Err(Failure::new(Code::ResourceExhausted, why))
}

pub(super) fn malformed(error: &prost::DecodeError) -> Failure {
    Failure::invalid(format!("the request is no protobuf message of its kind: {error}"))
}

pub(super) fn cut_off() -> Failure {
    Failure::invalid("the request is no protobuf message: a field reaches beyond its end")
}

pub(super) fn has_group() -> Failure {
    Failure::invalid("the request is no protobuf message: it has a group")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &[u8], length: usize) -> Pieces {
        let mut pieces = Pieces::default();
        bytes.chunks(length).for_each(|piece| pieces.push(Bytes::copy_from_slice(piece)));
        pieces
    }

    #[test]
    fn a_field_is_found_wherever_the_pieces_end() {
        // 1: varint 300, 2: { 3: "no", 1: "ab" }, 4: fixed32, 2: { 1: "cd", 5: fixed64 }
        let message = [
            0x08, 0xac, 2, 0x12, 8, 0x1a, 2, b'n', b'o', 0x0a, 2, b'a', b'b', 0x25, 1, 2, 3, 4, 0x12, 13, 0x0a, 2,
            b'c', b'd', 0x29, 1, 2, 3, 4, 5, 6, 7, 8,
        ];
        for length in 1..=message.len() {
            let find = |path: &[u32], longest| find(pieces(&message, length), path, longest).unwrap();
            assert_eq!(find(&[2, 1], 9).as_deref(), Some(&b"cd"[..]));
            assert_eq!(find(&[2, 3], 9).as_deref(), Some(&b"no"[..]));
            assert_eq!(find(&[2, 1], 1), None);
            assert_eq!(find(&[1], 9), None);
            assert_eq!(find(&[2, 7], 9), None);
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&[0x0a][..], &[0x0a, 5, 1], &[0x08], &[0x25, 1], &[0x0b, 0x0c], &[0x12, 2, 0x0a, 9]] {
            assert!(find(pieces(bytes, 1), &[2, 1], 9).is_err(), "{bytes:?}");
        }
    }
}
