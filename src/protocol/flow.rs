//! The flows of messages, which keep their order.
//!
//! A large message travels apart from the small ones, which may overtake it. Messages that must not overtake each other are in
//! one flow, such as an Abort and its Start.

use super::guard::ToGuard;
use super::{Message, Request, ToClient, ToHost, ToMaster, ToWorker};

/// Messages to one peer that arrive in the order in which they were sent, however large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Flow {
    /// A client's messages about one run, and the answers to one request or inquiry.
    Request(u64),
    /// The messages that make, change and end a client's session.
    Session(u64),
    /// The messages of a master to a worker about one session.
    Pieces(u64),
    /// The reports of a worker about one step of a session.
    Step(u64, u64),
}

impl Message {
    /// The flow of this message; `None` for one that keeps no order with any other.
    pub fn flow(&self) -> Option<Flow> {
        match self {
            Message::ToClient(message) => Some(message.flow()),
            Message::ToMaster(message) => message.flow(),
            Message::ToWorker(message) => message.flow(),
            Message::ToHost(ToHost::Ask { id, .. }) => Some(Flow::Request(id.0)),
            Message::Hello(_) | Message::Goodbye { .. } | Message::Refused { .. } => None,
        }
    }

    /// Whether its receiver would wait for it, or keep something, forever if it did not come. Such a message is small.
    pub fn must_come(&self) -> bool {
        match self {
            Message::ToClient(message) => match message {
                ToClient::Reply { .. } => true,
                ToClient::Fetched { .. }
                | ToClient::PartialFetch { .. }
                | ToClient::Progress { .. }
                | ToClient::Guard { .. } => false,
            },
            Message::ToMaster(message) => match message {
                ToMaster::Registered { .. }
                | ToMaster::Done { .. }
                | ToMaster::Failed { .. }
                | ToMaster::PeerLost { .. }
                | ToMaster::Confirmed { .. }
                | ToMaster::Guard { .. } => true,
                ToMaster::Request { .. } | ToMaster::PartialFetch { .. } | ToMaster::Inherit { .. } => false,
            },
            Message::ToWorker(message) => match message {
                ToWorker::Abort { .. }
                | ToWorker::Forget { .. }
                | ToWorker::Release { .. }
                | ToWorker::Confirm { .. } => true,
                ToWorker::Guard(ToGuard::Keep { .. } | ToGuard::Load { .. }) => false,
                ToWorker::Guard(_) => true,
                ToWorker::Register { .. } | ToWorker::Start { .. } | ToWorker::Push { .. } | ToWorker::Clear { .. } => {
                    false
                }
            },
            Message::ToHost(ToHost::Ask { .. })
            | Message::Hello(_)
            | Message::Goodbye { .. }
            | Message::Refused { .. } => false,
        }
    }
}

impl ToClient {
    fn flow(&self) -> Flow {
        match self {
            ToClient::Reply { id, .. }
            | ToClient::Fetched { id, .. }
            | ToClient::PartialFetch { id, .. }
            | ToClient::Progress { id, .. }
            | ToClient::Guard { id, .. } => Flow::Request(id.0),
        }
    }
}

impl ToMaster {
    fn flow(&self) -> Option<Flow> {
        match self {
            ToMaster::Request { id, request } => Some(match request {
                Request::Run { .. } | Request::Explain { .. } => Flow::Request(id.0),
                Request::Feed { run, .. } | Request::Cancel { run, .. } => Flow::Request(run.0),
                Request::Open { session, .. }
                | Request::Extend { session, .. }
                | Request::Prepare { session, .. }
                | Request::PrepareAlone { session, .. }
                | Request::Claim { session, .. }
                | Request::Close { session } => Flow::Session(session.0),
            }),
            ToMaster::PartialFetch { piece, step, .. } | ToMaster::Done { piece, step, .. } => {
                Some(Flow::Step(piece.session.0, *step))
            }
            ToMaster::Registered { .. }
            | ToMaster::Failed { .. }
            | ToMaster::PeerLost { .. }
            | ToMaster::Confirmed { .. }
            | ToMaster::Guard { .. }
            | ToMaster::Inherit { .. } => None,
        }
    }
}

impl ToWorker {
    fn flow(&self) -> Option<Flow> {
        match self {
            ToWorker::Register { session, .. } | ToWorker::Release { session } | ToWorker::Confirm { session } => {
                Some(Flow::Pieces(session.0))
            }
            ToWorker::Abort { step, .. } => Some(Flow::Pieces(step.session.0)),
            ToWorker::Start { pieces, .. } | ToWorker::Forget { pieces } => {
                Some(Flow::Pieces(pieces.first()?.session.0))
            }
            ToWorker::Guard(message) => match message {
                // Each says which chunk it is about.
                ToGuard::Keep { .. } | ToGuard::Load { .. } | ToGuard::Taken { .. } => None,
                _ => Some(Flow::Pieces(message.session().0)),
            },
            ToWorker::Push { .. } | ToWorker::Clear { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Constants, Reply, SessionOptions};
    use meshtf_graph::plan::Signature;
    use meshtf_tensor::failure::Failure;
    use meshtf_tensor::ids::{PieceId, RequestId, SessionId, StepId};

    #[test]
    fn what_ends_something_does_not_overtake_what_begins_it() {
        let (id, session) = (RequestId(3), SessionId(7));
        let piece = PieceId { session, number: 1 };
        let ask = |id, request| Message::from(ToMaster::Request { id, request });
        let failure = || Failure::invalid("");
        let (graph, options) = (Vec::new(), SessionOptions::default());
        let open = ask(id, Request::Open { session, graph, options, constants: Constants::default() });
        let run = ask(id, Request::Run { session, plan: 1, steps: 1, every: 0, watched: false });
        let start = Message::from(ToWorker::Start {
            pieces: vec![piece],
            first: 4,
            count: 2,
            continues: false,
            together: false,
        });
        let constants = Constants::default();
        let register = Message::from(ToWorker::Register {
            session,
            isolated: false,
            pieces: Vec::new(),
            constants,
            guarded: false,
        });
        let fetch = ToMaster::PartialFetch { piece, step: 4, place: 0 }.into();
        let (part, step) = (ToClient::PartialFetch { id, fetch: 0 }.into(), ToClient::Fetched { id, step: 1 }.into());
        let pairs: [(&Message, Message); 12] = [
            (&open, ask(RequestId(9), Request::Close { session })),
            (&open, ask(RequestId(9), Request::Prepare { session, signature: Signature::default() })),
            (&run, ask(RequestId(9), Request::Cancel { session, run: id })),
            (&run, ask(RequestId(9), Request::Feed { session, run: id, feeds: Vec::new(), wanted: Vec::new() })),
            (&start, ToWorker::Abort { step: StepId { session, number: 5 }, failure: failure() }.into()),
            (&start, ToWorker::Forget { pieces: vec![piece] }.into()),
            (&register, start.clone()),
            (&register, ToWorker::Forget { pieces: vec![piece] }.into()),
            (&register, ToWorker::Release { session }.into()),
            (&fetch, ToMaster::Done { piece, step: 4, count: 1 }.into()),
            (&part, ToClient::Reply { id, result: Ok(Reply::Ran { steps: 1 }) }.into()),
            (&step, ToClient::Reply { id, result: Err(failure()) }.into()),
        ];
        for (first, second) in pairs {
            assert!(first.flow().is_some() && first.flow() == second.flow(), "{first:?}, {second:?}");
        }
        // Runs of one session do not wait for each other's feeds.
        let other = ask(RequestId(4), Request::Run { session, plan: 1, steps: 1, every: 0, watched: false });
        assert_ne!(run.flow(), other.flow());
    }
}
