//! What a peer sends, before and after it is admitted, as functions of bytes, for [`crate::fuzz`].

use super::frame::{MAX_CONTROL_FRAME_BYTES, PREFIX_BYTES, Prefix, decode, encode_head};
use super::ticket::Ticket;

/// A frame of the control stream: prefix, header and payload.
pub fn frame(bytes: &[u8]) {
    let Some((prefix, body)) = bytes.split_first_chunk::<PREFIX_BYTES>() else { return };
    let Ok(prefix) = Prefix::decode(prefix, MAX_CONTROL_FRAME_BYTES) else { return };
    let (header, payload) = body.split_at(prefix.header_bytes.min(body.len()));
    if let Ok(envelope) = decode(header, payload) {
        let _ = encode_head(&envelope);
    }
}

pub fn ticket(line: &str) {
    if let Ok(ticket) = line.parse::<Ticket>() {
        assert_eq!(ticket.to_string().parse::<Ticket>().ok(), Some(ticket));
    }
}
