//! Substitutes for messages that could not be taken.

use meshtf_tensor::device::DeviceName;
use meshtf_tensor::ids::{PieceId, RequestId, SessionId, StepId};

use crate::protocol::guard::ToGuard;
use crate::protocol::inquiry::Inquiry;
use crate::protocol::{Constants, Message, Reply, Request, ToClient, ToHost, ToMaster, ToWorker};

/// This many bytes of a header are enough to find out who has to be notified that the message could not be taken.
pub const TELLING_BYTES: usize = 1024;

/// A substitute for a large message that could not be taken, so that its addressees are notified: made from the first bytes of
/// its header, it names the request, step or pieces that the message is about. `None` if those bytes do not contain them.
pub fn stand_in(header: &[u8]) -> Option<Message> {
    let ((reader, kind), rest) = postcard::take_from_bytes::<(u32, u32)>(header).ok()?;
    let starts = |message: Message| {
        postcard::to_allocvec(&message).is_ok_and(|bytes| bytes.starts_with(&[reader as u8, kind as u8]))
    };
    let to_client = |message: ToClient| starts(message.into());
    let to_master = |message: ToMaster| starts(message.into());
    let to_worker = |message: ToWorker| starts(message.into());
    let (first, after_first) = postcard::take_from_bytes::<u64>(rest).ok()?;
    let (id, session) = (RequestId(first), SessionId(first));
    // For a request any other of its id will do.
    let request = ToMaster::Request { id, request: Request::Close { session } };
    if to_master(request.clone()) {
        return Some(request.into());
    }
    let fetched = ToClient::Fetched { id, step: 0 };
    if to_client(fetched.clone())
        || to_client(ToClient::PartialFetch { id, fetch: 0 })
        || to_client(ToClient::Reply { id, result: Ok(Reply::Closed) })
    {
        return Some(fetched.into());
    }
    // So will any inquiry.
    let ask = ToHost::Ask { id, inquiry: Inquiry::Status };
    if starts(ask.clone().into()) {
        return Some(ask.into());
    }
    let (pieces, constants) = (Vec::new(), Constants::default());
    if to_worker(ToWorker::Register { session, isolated: false, pieces, constants, guarded: false }) {
        let ((_isolated, _count, piece), _) = postcard::take_from_bytes::<(bool, u64, PieceId)>(after_first).ok()?;
        return Some(ToMaster::Registered { session, pieces: vec![piece], result: Ok(()) }.into());
    }
    if to_worker(ToWorker::Start { pieces: Vec::new(), first: 0, count: 0, continues: false, together: false }) {
        let ((pieces, first, count, continues, together), _) = postcard::take_from_bytes(rest).ok()?;
        return Some(ToWorker::Start { pieces, first, count, continues, together }.into());
    }
    if to_worker(ToGuard::Complete { session, cut: 0 }.into()) {
        // The cut, or the number of what was asked for.
        let ((which, session, cut), _) = postcard::take_from_bytes::<(u32, SessionId, u64)>(rest).ok()?;
        let (chunk, chunks, resources) = (0, 0, Vec::new());
        let keep = ToGuard::Keep { session, cut, base: None, chunk, chunks, resources: resources.clone() };
        let load = ToGuard::Load { session, ask: cut, cut: 0, chunk, chunks, resources };
        let is = |one: &ToGuard| postcard::to_allocvec(one).is_ok_and(|bytes| bytes.first() == Some(&(which as u8)));
        return [keep, load].into_iter().find(is).map(|message| ToWorker::from(message).into());
    }
    let piece = PieceId { session, number: 0 };
    if to_master(ToMaster::Done { piece, step: 0, count: 0 })
        || to_master(ToMaster::PartialFetch { piece, step: 0, place: 0 })
    {
        let ((piece, step), _) = postcard::take_from_bytes(rest).ok()?;
        return Some(ToMaster::Done { piece, step, count: 1 }.into());
    }
    let ((step, to), _) = postcard::take_from_bytes::<(StepId, DeviceName)>(rest).ok()?;
    let push = ToWorker::Push { step, to, values: Vec::new() };
    to_worker(push.clone()).then(|| push.into())
}
