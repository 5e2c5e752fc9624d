//! The bytes of a message as they came from the network: pieces, each let go of as soon as it has been read.
//!
//! A message of half a gigabyte is so never in memory twice, once as bytes and once as what it says.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use crate::failure::{Failure, Result};

/// Bytes in pieces.
#[derive(Debug, Default)]
pub(super) struct Rope {
    pieces: VecDeque<Bytes>,
    remaining: usize,
}

impl Rope {
    pub fn push(&mut self, piece: Bytes) {
        self.remaining += piece.len();
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    /// Reads the fields of the message that ends `length` bytes from here: gives those of field `tag`, which must be
    /// messages or bytes, to `take`, and answers all others as they are, as a message of their own.
    ///
    /// `take` gets the length of its field and the other fields that came before it. What it leaves is skipped.
    ///
    /// # Errors
    /// InvalidArgument where the bytes are no message; what `take` fails with.
    pub fn fields(
        &mut self,
        length: usize,
        tag: u32,
        mut take: impl FnMut(&mut Rope, usize, &[u8]) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let end = self.remaining.checked_sub(length).ok_or_else(cut_off)?;
        let mut others = Vec::new();
        while self.remaining > end {
            let (field, wire) = decode_key(self).map_err(|error| malformed(&error))?;
            if field == tag && wire == WireType::LengthDelimited {
                let length = self.length(end)?;
                let after = self.remaining - length;
                take(self, length, &others)?;
                self.advance(self.remaining.checked_sub(after).ok_or_else(cut_off)?);
                continue;
            }
            encode_key(field, wire, &mut others);
            let length = match wire {
                WireType::Varint => {
                    encode_varint(decode_varint(self).map_err(|error| malformed(&error))?, &mut others);
                    continue;
                }
                WireType::LengthDelimited => {
                    let length = self.length(end)?;
                    encode_varint(length as u64, &mut others);
                    length
                }
                WireType::ThirtyTwoBit => 4,
                WireType::SixtyFourBit => 8,
                WireType::StartGroup | WireType::EndGroup => {
                    return Err(Failure::invalid("the request is no protobuf message: it has a group"));
                }
            };
            self.copy(length, end, |bytes| others.extend_from_slice(bytes))?;
        }
        if self.remaining == end { Ok(others) } else { Err(cut_off()) }
    }

    /// Hands `length` bytes on, piece by piece.
    ///
    /// # Errors
    /// InvalidArgument where they would reach beyond `end`, the number of bytes that lie behind the message.
    pub fn copy(&mut self, length: usize, end: usize, mut to: impl FnMut(&[u8])) -> Result<()> {
        if self.remaining.checked_sub(end).is_none_or(|left| left < length) {
            return Err(cut_off());
        }
        let mut left = length;
        while left > 0 {
            let count = self.chunk().len().min(left);
            to(&self.chunk()[..count]);
            self.advance(count);
            left -= count;
        }
        Ok(())
    }

    /// The length of a field, which lies before `end`.
    fn length(&mut self, end: usize) -> Result<usize> {
        let length = decode_varint(self).map_err(|error| malformed(&error))?;
        let left = self.remaining.checked_sub(end).ok_or_else(cut_off)?;
        usize::try_from(length).ok().filter(|&length| length <= left).ok_or_else(cut_off)
    }
}

impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    /// As [`Buf`] has it, this panics past the end; who calls it has asked what remains.
    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining, "past the end of the message");
        self.remaining -= count;
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

pub(super) fn malformed(error: &prost::DecodeError) -> Failure {
    Failure::invalid(format!("the request is no protobuf message of its kind: {error}"))
}

fn cut_off() -> Failure {
    Failure::invalid("the request is no protobuf message: a field reaches beyond its end")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(bytes: &[u8], piece: usize) -> Rope {
        let mut rope = Rope::default();
        bytes.chunks(piece).for_each(|piece| rope.push(Bytes::copy_from_slice(piece)));
        rope
    }

    #[test]
    fn fields_are_told_apart_wherever_the_pieces_end() {
        // 1: "ab", 2: bytes 7 8 9, 3: varint 300, 4: fixed32, 2: bytes 5
        let message = [0x0a, 2, b'a', b'b', 0x12, 3, 7, 8, 9, 0x18, 0xac, 2, 0x25, 1, 2, 3, 4, 0x12, 1, 5];
        for piece in 1..=message.len() {
            let mut rope = rope(&message, piece);
            let mut taken = Vec::new();
            let others = rope
                .fields(message.len(), 2, |rope, length, before| {
                    let mut bytes = Vec::new();
                    rope.copy(length, 0, |part| bytes.extend_from_slice(part))?;
                    taken.push((bytes, before.len()));
                    Ok(())
                })
                .unwrap();
            assert_eq!(taken, [(vec![7, 8, 9], 4), (vec![5], 12)]);
            assert_eq!(others, [0x0a, 2, b'a', b'b', 0x18, 0xac, 2, 0x25, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn what_is_cut_off_or_lies_is_refused() {
        let refused: [&[u8]; 6] = [&[0x0a], &[0x0a, 5, 1], &[0x12, 9, 1], &[0x18], &[0x25, 1], &[0x0b, 0x0c]];
        for bytes in refused {
            let answer = rope(bytes, 1).fields(bytes.len(), 2, |_, _, _| Ok(()));
            assert_eq!(answer.unwrap_err().code, crate::failure::Code::InvalidArgument, "{bytes:?}");
        }
    }
}
