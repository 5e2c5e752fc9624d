//! The bytes of a message as they come from the network: pieces, each let go of as soon as it has been read.
//!
//! A message of half a gigabyte is so never in memory as bytes: what it says is read while it comes in.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;

use crate::failure::{Code, Failure, Result};

/// The flag and the length before each message.
const HEADER: usize = 5;
/// Most bytes of a varint, and so of a key or a length.
const VARINT: usize = 10;

/// How much may come in: the longest message, and all that are under way together.
#[derive(Clone)]
pub(super) struct Room {
    longest: usize,
    together: Arc<Semaphore>,
}

/// Permits count in so many bytes.
const GRAIN: usize = 1 << 10;

impl Room {
    /// Room for `count` messages of the longest kind at once.
    pub fn new(longest: usize, count: usize) -> Room {
        let grains = longest.div_ceil(GRAIN).saturating_mul(count).min(Semaphore::MAX_PERMITS);
        Room { longest, together: Arc::new(Semaphore::new(grains)) }
    }

    fn take(&self, length: usize) -> Result<OwnedSemaphorePermit> {
        if length > self.longest {
            let why = format!("the request has {length} bytes, the limit is {} (--grpc-limit)", self.longest);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        // A length is a u32, and so are its grains.
        self.together.clone().try_acquire_many_owned(length.div_ceil(GRAIN) as u32).map_err(|_| {
            let why = "so many large requests are under way that there is no room for another; try again";
            Failure::new(Code::ResourceExhausted, why)
        })
    }
}

/// The one message of a request.
pub(super) struct Rope {
    body: Body,
    pieces: VecDeque<Bytes>,
    /// Bytes in the pieces.
    here: usize,
    /// Bytes of the message that were not read yet, here or to come.
    left: usize,
    /// Its part of the room.
    _room: Option<OwnedSemaphorePermit>,
}

impl Rope {
    /// Reads the head of a request's message.
    ///
    /// # Errors
    /// InvalidArgument where the request ends before, Unimplemented where it is compressed, ResourceExhausted where the
    /// message is longer than there is room for.
    pub async fn open(body: Body, room: &Room) -> Result<Rope> {
        let mut rope = Rope { body, pieces: VecDeque::new(), here: 0, left: usize::MAX, _room: None };
        rope.need(HEADER).await?;
        if rope.get_u8() != 0 {
            return Err(Failure::new(Code::Unimplemented, "the request is compressed, which is not taken here"));
        }
        rope.left = rope.get_u32() as usize;
        rope._room = Some(room.take(rope.left)?);
        if rope.here > rope.left { Err(more_than_one()) } else { Ok(rope) }
    }

    /// Bytes of the message that were not read yet.
    pub fn left(&self) -> usize {
        self.left
    }

    /// The whole message.
    ///
    /// # Errors
    /// InvalidArgument where it is cut off or no message of that kind.
    pub async fn decode<M: Message + Default>(&mut self) -> Result<M> {
        self.need(self.left).await?;
        M::decode(&mut *self).map_err(|error| malformed(&error))
    }

    /// Goes on in the message that ends where `end` bytes are left: to its next field `tag`, which must be a message or
    /// bytes, and answers the length of that; `None` at the end. Other fields on the way are added to `others` as they are.
    ///
    /// # Errors
    /// InvalidArgument where the bytes are no message.
    pub async fn field(&mut self, end: usize, tag: u32, others: &mut Vec<u8>) -> Result<Option<usize>> {
        while self.left > end {
            self.need(VARINT.min(self.left - end)).await?;
            let (field, wire) = decode_key(self).map_err(|error| malformed(&error))?;
            if field == tag && wire == WireType::LengthDelimited {
                return self.length(end).await.map(Some);
            }
            encode_key(field, wire, others);
            let length = match wire {
                WireType::Varint => {
                    encode_varint(self.varint(end).await?, others);
                    continue;
                }
                WireType::LengthDelimited => {
                    let length = self.length(end).await?;
                    encode_varint(length as u64, others);
                    length
                }
                WireType::ThirtyTwoBit => 4,
                WireType::SixtyFourBit => 8,
                WireType::StartGroup | WireType::EndGroup => {
                    return Err(Failure::invalid("the request is no protobuf message: it has a group"));
                }
            };
            self.copy(length, end, |bytes| others.extend_from_slice(bytes)).await?;
        }
        if self.left == end { Ok(None) } else { Err(cut_off()) }
    }

    /// Hands `length` bytes on, as they come.
    ///
    /// # Errors
    /// InvalidArgument where they would reach beyond the message that ends where `end` bytes are left.
    pub async fn copy(&mut self, length: usize, end: usize, mut to: impl FnMut(&[u8])) -> Result<()> {
        let after = self.left.checked_sub(length).filter(|&after| after >= end).ok_or_else(cut_off)?;
        while self.left > after {
            self.need(1).await?;
            let count = self.chunk().len().min(self.left - after);
            to(&self.chunk()[..count]);
            self.advance(count);
        }
        Ok(())
    }

    /// The length of a field, which ends before `end` bytes are left.
    async fn length(&mut self, end: usize) -> Result<usize> {
        let length = self.varint(end).await?;
        let most = self.left.checked_sub(end).ok_or_else(cut_off)?;
        usize::try_from(length).ok().filter(|&length| length <= most).ok_or_else(cut_off)
    }

    async fn varint(&mut self, end: usize) -> Result<u64> {
        self.need(VARINT.min(self.left.saturating_sub(end))).await?;
        decode_varint(self).map_err(|error| malformed(&error))
    }

    /// Waits until so many bytes are here.
    async fn need(&mut self, count: usize) -> Result<()> {
        while self.here < count {
            let Some(frame) = self.body.frame().await else {
                return Err(Failure::invalid("the request ends before its message does"));
            };
            let frame = frame.map_err(|status| Failure::new(Code::Cancelled, status.message()))?;
            let Ok(piece) = frame.into_data() else { continue };
            self.here += piece.len();
            if self.here > self.left {
                return Err(more_than_one());
            }
            if !piece.is_empty() {
                self.pieces.push_back(piece);
            }
        }
        Ok(())
    }
}

/// What is here of the message.
impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.here
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    /// As [`Buf`] has it, this panics past the end; who calls it has asked what remains.
    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.here, "past what is here of the message");
        self.here -= count;
        self.left -= count;
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

fn more_than_one() -> Failure {
    Failure::invalid("the request has more than one message")
}

#[cfg(test)]
pub(super) mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    /// The message as it comes in pieces of that length.
    pub async fn rope(bytes: &[u8], piece: usize) -> Rope {
        let mut framed = vec![0];
        framed.extend((bytes.len() as u32).to_be_bytes());
        framed.extend(bytes);
        let frames: Vec<Result<_, tonic::Status>> =
            framed.chunks(piece).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
        Rope::open(Body::new(StreamBody::new(futures::stream::iter(frames))), &Room::new(1 << 20, 1)).await.unwrap()
    }

    #[tokio::test]
    async fn fields_are_told_apart_wherever_the_pieces_end() {
        // 1: "ab", 2: bytes 7 8 9, 3: varint 300, 4: fixed32, 2: bytes 5
        let message = [0x0a, 2, b'a', b'b', 0x12, 3, 7, 8, 9, 0x18, 0xac, 2, 0x25, 1, 2, 3, 4, 0x12, 1, 5];
        for piece in 1..=message.len() {
            let mut rope = rope(&message, piece).await;
            let (mut taken, mut others) = (Vec::new(), Vec::new());
            while let Some(length) = rope.field(0, 2, &mut others).await.unwrap() {
                let mut bytes = Vec::new();
                rope.copy(length, 0, |part| bytes.extend_from_slice(part)).await.unwrap();
                taken.push((bytes, others.len()));
            }
            assert_eq!(taken, [(vec![7, 8, 9], 4), (vec![5], 12)]);
            assert_eq!(others, [0x0a, 2, b'a', b'b', 0x18, 0xac, 2, 0x25, 1, 2, 3, 4]);
        }
    }

    #[tokio::test]
    async fn what_is_cut_off_or_lies_is_refused() {
        let refused: [&[u8]; 6] = [&[0x0a], &[0x0a, 5, 1], &[0x12, 9, 1], &[0x18], &[0x25, 1], &[0x0b, 0x0c]];
        for bytes in refused {
            let answer = rope(bytes, 1).await.field(0, 2, &mut Vec::new()).await;
            assert_eq!(answer.unwrap_err().code, Code::InvalidArgument, "{bytes:?}");
        }
    }

    #[test]
    fn there_is_room_for_so_much_and_no_more() {
        let room = Room::new(4 * GRAIN, 2);
        assert_eq!(room.take(4 * GRAIN + 1).unwrap_err().code, Code::ResourceExhausted);
        let held = [room.take(4 * GRAIN).unwrap(), room.take(3 * GRAIN + 1).unwrap()];
        assert_eq!(room.take(1).unwrap_err().code, Code::ResourceExhausted);
        drop(held);
        assert!(room.take(1).is_ok());
    }
}
