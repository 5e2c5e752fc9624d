//! A message as it arrives from the network: pieces, each freed as soon as it has been read.
//!
//! So a message of half a gigabyte is never in memory as bytes: it is decoded while it arrives. Reading never waits long for a
//! silent client, nor blocks a thread that other tasks need for long.

use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use http_body_util::BodyExt;
use meshtf_tensor::failure::{Code, Failure, Result};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use tokio::time::Instant;
use tonic::body::Body;

use super::budget::Share;
use super::connection::Call;
use super::pieces::{Pieces, append, cut_off, find, has_group, malformed, within_names};
use super::readers::Readers;

/// The slowest rate at which a message may arrive, after the allowed silence, in bytes per second.
const SLOWEST: u64 = 4 << 10;
/// How long the message of a client that has not shown the token may take, beyond the allowed silence.
const LONGEST_UNPROVEN: Duration = Duration::from_secs(60);
/// The flag and the length before each message.
const HEADER: usize = 5;
/// Maximum size of a varint in bytes, and so of a key or a length.
const VARINT: usize = 10;
/// Bytes at the start of a message in which the session's handle is searched; in meshtf's own requests it ends at 34.
const START: usize = 64;
/// Longer messages are searched on threads that may block.
const SEARCHED_AT_ONCE: usize = 64 << 10;
/// After this many fields, other tasks get a turn on the thread.
const FIELDS_A_TURN: usize = 1024;

/// The one message of a request.
pub(super) struct Rope {
    body: Body,
    pieces: Pieces,
    /// Bytes of the message not read yet, received or not.
    left: usize,
    /// Bytes of it received.
    received: usize,
    began: Instant,
    share: Share,
    /// Its call.
    call: Option<Call>,
    fields: usize,
}

impl Rope {
    /// Reads the head of a request's message.
    ///
    /// # Errors
    /// InvalidArgument if the request ends too early, Unimplemented if it is compressed, ResourceExhausted if the
    /// message exceeds the limit, DeadlineExceeded if the client is silent.
    pub async fn open(body: Body, share: Share) -> Result<Rope> {
        let began = Instant::now();
        let pieces = Pieces::default();
        let mut rope = Rope { body, pieces, left: usize::MAX, received: 0, began, share, call: None, fields: 0 };
        rope.need(HEADER).await?;
        if rope.get_u8() != 0 {
            return Err(Failure::new(Code::Unimplemented, "the request is compressed, which is not supported"));
        }
        rope.left = rope.get_u32() as usize;
        rope.share.admit(rope.left)?;
        if rope.remaining() > rope.left { Err(more_than_one()) } else { Ok(rope) }
    }

    /// Attaches the call: it stops counting as waiting as soon as the whole message has been received.
    pub fn in_call(mut self, call: Option<Call>) -> Rope {
        self.call = call;
        self.is_whole();
        self
    }

    /// Bytes of the message not read yet.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Its share of the door's budget.
    pub fn share(&mut self) -> &mut Share {
        &mut self.share
    }

    /// Takes from the budget for the decoded size of some bytes of the message.
    ///
    /// # Errors
    /// ResourceExhausted if the budget is exhausted.
    pub fn expand(&mut self, bytes: usize) -> Result<()> {
        self.share.expand(self.received, bytes)
    }

    /// Waits for the whole message, and returns the unread part, without consuming it.
    ///
    /// # Errors
    /// InvalidArgument if it is truncated.
    pub async fn whole(&mut self) -> Result<Pieces> {
        self.need(self.left).await?;
        Ok(self.pieces.clone())
    }

    /// The whole message, and its share of the door's budget.
    ///
    /// # Errors
    /// InvalidArgument if it is truncated.
    pub async fn into_whole(mut self) -> Result<(Pieces, Share)> {
        self.need(self.left).await?;
        Ok((self.pieces, self.share))
    }

    /// The text in field 1, where requests name their session, without consuming it. TensorFlow's clients write it
    /// first, so that the rest need not have been received; otherwise `readers` search a long message. `None` if it is
    /// missing or too long for a handle.
    ///
    /// # Errors
    /// InvalidArgument if the bytes are malformed; ResourceExhausted if no turn for the search is free in time.
    pub async fn handle(&mut self, readers: &Readers) -> Result<Option<Vec<u8>>> {
        self.need(START.min(self.left)).await?;
        let mut start = self.pieces.clone();
        let is_first = decode_key(&mut start).is_ok_and(|key| key == (1, WireType::LengthDelimited));
        if is_first && let Ok(length) = decode_varint(&mut start) {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length <= start.remaining() && length < START {
                return Ok(Some(start.copy_to_bytes(length).to_vec()));
            }
        }
        let whole = self.whole().await?;
        if whole.remaining() <= SEARCHED_AT_ONCE {
            return find(whole, &[1], START);
        }
        readers.run(move || find(whole, &[1], START)).await
    }

    /// Moves on to the next field `tag`, a message or bytes, of the message that ends when `end` bytes are left;
    /// returns its length, or `None` at the end. Other fields on the way are appended to `others` unchanged, which may
    /// grow to `most` bytes.
    ///
    /// # Errors
    /// InvalidArgument if the bytes are malformed; ResourceExhausted if the others exceed `most`.
    pub async fn field(&mut self, end: usize, tag: u32, others: &mut Vec<u8>, most: usize) -> Result<Option<usize>> {
        while self.left > end {
            self.fields += 1;
            if self.fields.is_multiple_of(FIELDS_A_TURN) {
                tokio::task::yield_now().await;
            }
            self.need(VARINT.min(self.left - end)).await?;
            let (field, wire) = decode_key(self).map_err(|error| malformed(&error))?;
            if field == tag && wire == WireType::LengthDelimited {
                return self.length(end).await.map(Some);
            }
            encode_key(field, wire, others);
            let length = match wire {
                WireType::Varint => {
                    encode_varint(self.varint(end).await?, others);
                    within_names(others.len(), most)?;
                    continue;
                }
                WireType::LengthDelimited => {
                    let length = self.length(end).await?;
                    encode_varint(length as u64, others);
                    length
                }
                WireType::ThirtyTwoBit => 4,
                WireType::SixtyFourBit => 8,
                WireType::StartGroup | WireType::EndGroup => return Err(has_group()),
            };
            within_names(others.len().saturating_add(length), most)?;
            let memory = Arc::clone(self.share.memory());
            self.copy(length, end, |bytes| append(others, bytes, &memory)).await?;
        }
        if self.left == end { Ok(None) } else { Err(cut_off()) }
    }

    /// Passes `length` bytes to `to` as they arrive.
    ///
    /// # Errors
    /// InvalidArgument if they extend past the message, which ends when `end` bytes are left; any error of `to`.
    pub async fn copy(&mut self, length: usize, end: usize, mut to: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let after = self.left.checked_sub(length).filter(|&after| after >= end).ok_or_else(cut_off)?;
        while self.left > after {
            self.need(1).await?;
            let count = self.chunk().len().min(self.left - after);
            to(&self.chunk()[..count])?;
            self.advance(count);
        }
        Ok(())
    }

    /// The length of a field in a message that ends when `end` bytes are left.
    async fn length(&mut self, end: usize) -> Result<usize> {
        let length = self.varint(end).await?;
        let most = self.left.checked_sub(end).ok_or_else(cut_off)?;
        usize::try_from(length).ok().filter(|&length| length <= most).ok_or_else(cut_off)
    }

    async fn varint(&mut self, end: usize) -> Result<u64> {
        self.need(VARINT.min(self.left.saturating_sub(end))).await?;
        decode_varint(self).map_err(|error| malformed(&error))
    }

    /// Waits until this many bytes have been received.
    async fn need(&mut self, count: usize) -> Result<()> {
        while self.remaining() < count {
            let patience = self.patience();
            let frame = tokio::select! {
                biased;
                failure = self.share.evicted() => return Err(failure),
                frame = tokio::time::timeout_at(patience, self.body.frame()) => frame,
            };
            let Ok(frame) = frame else {
                let why = format!(
                    "the client sent only {} bytes of the request in {} s",
                    self.received,
                    self.began.elapsed().as_secs()
                );
                return Err(Failure::new(Code::DeadlineExceeded, why));
            };
            let Some(frame) = frame else {
                return Err(Failure::invalid("the request ends before the end of its message"));
            };
            let frame = frame.map_err(|status| Failure::new(Code::Cancelled, status.message()))?;
            let Ok(piece) = frame.into_data() else { continue };
            self.received += piece.len();
            self.share.received(self.received)?;
            self.pieces.push(piece);
            if self.remaining() > self.left {
                return Err(more_than_one());
            }
            self.is_whole();
        }
        Ok(())
    }

    /// Notes it if the whole message has been received.
    fn is_whole(&mut self) {
        if self.remaining() == self.left {
            self.share.is_whole();
            self.call.iter_mut().for_each(Call::waits_no_more);
        }
    }

    /// The time by which the client must have sent more.
    fn patience(&self) -> Instant {
        let silence = self.share.silence();
        let whole = silence + may_take(self.received, self.share.is_known());
        (self.began + whole).min(Instant::now() + silence)
    }
}

/// How long a message may take of which this many bytes were received, beyond the allowed silence.
fn may_take(received: usize, is_known: bool) -> Duration {
    let slowest = Duration::from_secs(received as u64 / SLOWEST);
    if is_known { slowest } else { slowest.min(LONGEST_UNPROVEN) }
}

/// The part of the message received.
impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.pieces.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.chunk()
    }

    /// As specified by [`Buf`], this panics past the end; callers have checked `remaining`.
    fn advance(&mut self, count: usize) {
        self.pieces.advance(count);
        self.left -= count;
    }
}

fn more_than_one() -> Failure {
    Failure::invalid("the request has more than one message")
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::super::budget::MessageBudget;
    use super::*;

    /// The message in pieces of this length.
    pub async fn rope(bytes: &[u8], piece: usize) -> Rope {
        let mut framed = vec![0];
        framed.extend((bytes.len() as u32).to_be_bytes());
        framed.extend(bytes);
        let frames: Vec<Result<_, tonic::Status>> =
            framed.chunks(piece).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
        Rope::open(Body::new(StreamBody::new(futures::stream::iter(frames))), share()).await.unwrap()
    }

    #[tokio::test]
    async fn fields_are_found_across_piece_boundaries() {
        // 1: "ab", 2: bytes 7 8 9, 3: varint 300, 4: fixed32, 2: bytes 5
        let message = [0x0a, 2, b'a', b'b', 0x12, 3, 7, 8, 9, 0x18, 0xac, 2, 0x25, 1, 2, 3, 4, 0x12, 1, 5];
        for piece in 1..=message.len() {
            let mut rope = rope(&message, piece).await;
            let (mut taken, mut others) = (Vec::new(), Vec::new());
            while let Some(length) = rope.field(0, 2, &mut others, 12).await.unwrap() {
                let mut bytes = Vec::new();
                rope.copy(length, 0, |part| append(&mut bytes, part, &Arc::default())).await.unwrap();
                taken.push((bytes, others.len()));
            }
            assert_eq!(taken, [(vec![7, 8, 9], 4), (vec![5], 12)]);
            assert_eq!(others, [0x0a, 2, b'a', b'b', 0x18, 0xac, 2, 0x25, 1, 2, 3, 4]);
        }
    }

    #[tokio::test]
    async fn other_fields_are_limited() {
        let check = async |message: &[u8], most: usize, code: Option<Code>| {
            let mut others = Vec::new();
            let answer = rope(message, message.len()).await.field(0, 2, &mut others, most).await;
            assert_eq!(answer.err().map(|failure| failure.code), code, "{message:?}");
            assert!(others.len() <= most + VARINT);
        };
        check(&[0x0a, 4, 1, 2, 3, 4], 6, None).await;
        check(&[0x0a, 4, 1, 2, 3, 4], 5, Some(Code::ResourceExhausted)).await;
        // A field that is too long is refused before it is received.
        check(&[&[0x0a, 100][..], &[0; 100]].concat(), 50, Some(Code::ResourceExhausted)).await;
        check(&[0x18, 1, 0x18, 2], 4, None).await;
        check(&[0x18, 1, 0x18, 2], 3, Some(Code::ResourceExhausted)).await;
    }

    #[tokio::test]
    async fn truncated_and_inconsistent_messages_are_refused() {
        let refused: [&[u8]; 6] = [&[0x0a], &[0x0a, 5, 1], &[0x12, 9, 1], &[0x18], &[0x25, 1], &[0x0b, 0x0c]];
        for bytes in refused {
            let answer = rope(bytes, 1).await.field(0, 2, &mut Vec::new(), ANY).await;
            assert_eq!(answer.unwrap_err().code, Code::InvalidArgument, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn the_handle_is_found_anywhere_in_the_message() {
        let readers = Readers::new(1, Arc::default());
        let check = async |message: &[u8], handle: Option<&[u8]>| {
            for piece in [1, 7, 1000] {
                let mut rope = rope(message, piece).await;
                assert_eq!(rope.handle(&readers).await.unwrap().as_deref(), handle, "{message:?}");
                assert_eq!(rope.left(), message.len());
            }
        };
        check(&[], None).await;
        check(&[0x0a, 2, b'a', b'b'], Some(b"ab")).await;
        check(&[0x12, 1, 5, 0x0a, 2, b'a', b'b'], Some(b"ab")).await;
        check(&[0x12, 1, 5], None).await;
        check(&[&[0x0a, 70][..], &[b'a'; 70]].concat(), None).await;
        let mut waits = Rope::open(Body::new(silent(&[0, 0, 0, 0, 200, 0x0a, 62])), share()).await.unwrap();
        assert!(futures::poll!(std::pin::pin!(waits.handle(&readers))).is_pending());
    }

    #[tokio::test]
    async fn a_long_message_is_searched_by_the_readers() {
        let readers = Readers::new(1, Arc::default());
        let turn = readers.occupy();
        let check = async |fields: usize, is_done: bool| {
            let message = [[0x12, 0].repeat(fields), vec![0x0a, 1, b'a']].concat();
            let mut rope = rope(&message, message.len()).await;
            let mut handle = std::pin::pin!(rope.handle(&readers));
            assert_eq!(futures::poll!(handle.as_mut()).is_ready(), is_done, "{fields} fields");
        };
        check(10, true).await;
        check(SEARCHED_AT_ONCE, false).await;
        drop(turn);
        let message = [[0x12, 0].repeat(SEARCHED_AT_ONCE), vec![0x0a, 1, b'a']].concat();
        assert_eq!(rope(&message, 1 << 14).await.handle(&readers).await.unwrap().as_deref(), Some(&b"a"[..]));
    }

    #[tokio::test]
    async fn a_silent_client_times_out() {
        let check = async |sent: &'static [u8]| {
            let answer = async { Rope::open(Body::new(silent(sent)), impatient()).await?.whole().await };
            let given_up = answer.await.map(|_| ()).unwrap_err();
            assert_eq!(given_up.code, Code::DeadlineExceeded, "{given_up}");
        };
        check(&[]).await;
        check(&[0, 0, 0]).await;
        check(&[0, 0, 0, 1, 0, 1, 2]).await;
    }

    #[tokio::test]
    async fn a_client_that_sends_too_slowly_times_out() {
        let drops = futures::stream::unfold(vec![0u8, 0, 0, 1, 0], |next| async move {
            tokio::time::sleep(SILENCE / 20).await;
            Some((Ok::<_, tonic::Status>(Frame::data(Bytes::from(next))), vec![1]))
        });
        let answer =
            async { Rope::open(Body::new(StreamBody::new(Box::pin(drops))), impatient()).await?.whole().await };
        assert_eq!(answer.await.map(|_| ()).unwrap_err().code, Code::DeadlineExceeded);
    }

    #[test]
    fn an_unauthenticated_peer_has_one_minute_however_much_it_sends() {
        let check = |received: usize, is_known: bool, seconds: u64| {
            assert_eq!(may_take(received, is_known), Duration::from_secs(seconds));
        };
        check(0, false, 0);
        check(40 << 10, false, 10);
        check(256 << 20, false, 60);
        check(40 << 10, true, 10);
        check(256 << 20, true, 65_536);
    }

    #[tokio::test]
    async fn an_unauthenticated_peer_s_message_can_be_evicted_while_it_waits() {
        let budget = MessageBudget::with_unproven(1 << 20, 1, Duration::from_secs(60), Arc::default(), 12);
        let mut message = Rope::open(Body::new(silent(&[0, 0, 0, 0, 12, 1, 2])), budget.unproven(None)).await.unwrap();
        let mut waits = std::pin::pin!(message.whole());
        assert!(futures::poll!(waits.as_mut()).is_pending());
        let mut smaller = budget.unproven(None);
        smaller.received(5).unwrap();
        assert!(futures::poll!(waits.as_mut()).is_pending());
        smaller.received(6).unwrap();
        assert_eq!(waits.await.map(|_| ()).unwrap_err().code, Code::ResourceExhausted);
    }

    const ANY: usize = usize::MAX;
    const SILENCE: Duration = Duration::from_millis(100);

    fn impatient() -> Share {
        MessageBudget::new(1 << 20, 1, SILENCE, Arc::default()).known()
    }

    fn share() -> Share {
        MessageBudget::new(64 << 20, 1, Duration::from_secs(60), Arc::default()).known()
    }

    /// A body of these bytes, without more or an end.
    fn silent(
        bytes: &'static [u8],
    ) -> StreamBody<impl futures::Stream<Item = Result<Frame<Bytes>, tonic::Status>> + Send + 'static> {
        use futures::StreamExt as _;
        let first = futures::stream::iter((!bytes.is_empty()).then(|| Ok(Frame::data(Bytes::from_static(bytes)))));
        StreamBody::new(first.chain(futures::stream::pending()))
    }
}
