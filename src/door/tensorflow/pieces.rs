//! Bytes in the pieces in which they were received, and the search for one field in them.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory::Budget;
use prost::encoding::{WireType, decode_key, decode_varint};

/// Pieces, read from the front; a piece is freed as soon as it has been read. Clones share the bytes.
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

    /// The first `length` bytes, which must exist.
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

    /// As specified by [`Buf`], this panics past the end; callers have checked `remaining`.
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

/// The text at the end of a path of fields, all but the last of which are messages: `[2, 16, 11, 1]` is field 1 of
/// field 11 of field 16 of field 2. If it is repeated, the last one counts, as in protobuf. Nothing else is decoded.
/// `None` if the text is longer than `longest`.
///
/// # Errors
/// InvalidArgument if the bytes are malformed.
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

/// Appends bytes to those kept of a message, within the memory budget of the node.
///
/// # Errors
/// ResourceExhausted if the memory budget does not admit the larger buffer.
pub(super) fn append(kept: &mut Vec<u8>, bytes: &[u8], memory: &Arc<Budget>) -> Result<()> {
    let length = kept.len() + bytes.len();
    if length > kept.capacity() {
        let grown = length.max(2 * kept.capacity());
        memory.admit(grown).map_err(Failure::with_holder)?;
        kept.reserve_exact(grown - kept.len());
    }
    kept.extend_from_slice(bytes);
    Ok(())
}

/// Checks the size of a request without its graph or feeds, or of a feed without its tensor.
pub(super) fn within_names(length: usize, most: usize) -> Result<()> {
    if length <= most {
        return Ok(());
    }
    let why = format!("the names in the request take at least {length} bytes, which exceeds the limit of {most}");
    Err(Failure::new(Code::ResourceExhausted, why))
}

pub(super) fn malformed(error: &prost::DecodeError) -> Failure {
    Failure::invalid(format!("the request is not a valid protobuf message: {error}"))
}

pub(super) fn cut_off() -> Failure {
    Failure::invalid("the request is not a valid protobuf message: a field extends past its end")
}

pub(super) fn has_group() -> Failure {
    Failure::invalid("the request is not a valid protobuf message: it has a group")
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
    fn a_field_is_found_across_piece_boundaries() {
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
    fn malformed_messages_are_refused() {
        for bytes in [&[0x0a][..], &[0x0a, 5, 1], &[0x08], &[0x25, 1], &[0x0b, 0x0c], &[0x12, 2, 0x0a, 9]] {
            assert!(find(pieces(bytes, 1), &[2, 1], 9).is_err(), "{bytes:?}");
        }
    }
}
