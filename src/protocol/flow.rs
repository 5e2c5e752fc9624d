//! Which messages keep their order.
//!
//! A large message goes beside the small ones, which may overtake it. What must not be overtaken is in one flow with what
//! must not overtake it: an Abort with the Start that it is about, say.

use super::{Message, Request};

/// Messages to one peer that arrive in the order in which they were sent, however large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flow {
    /// What a client asks about one run, and what a master answers to one request.
    Request(u64),
    /// What makes, changes and ends a client's session.
    Session(u64),
    /// What a master tells a worker of one session.
    Pieces(u64),
    /// What a worker has of one step of a session.
    Step(u64, u64),
}

impl Message {
    /// The flow that it belongs to; `None` for one that keeps no order with any other.
    pub fn flow(&self) -> Option<Flow> {
        Some(match self {
            Message::Request { id, request } => match request {
                Request::Run { .. } | Request::Explain { .. } => Flow::Request(id.0),
                Request::Feed { run, .. } | Request::Cancel { run, .. } => Flow::Request(run.0),
                Request::Open { session, .. }
                | Request::Extend { session, .. }
                | Request::Prepare { session, .. }
                | Request::Close { session } => Flow::Session(session.0),
            },
            Message::Reply { id, .. }
            | Message::Fetched { id, .. }
            | Message::Part { id, .. }
            | Message::Through { id, .. } => Flow::Request(id.0),
            Message::Register { session, .. } | Message::Release { session } => Flow::Pieces(session.0),
            Message::Abort { step, .. } => Flow::Pieces(step.session.0),
            Message::Start { pieces, .. } | Message::Forget { pieces } => Flow::Pieces(pieces.first()?.session.0),
            Message::Got { piece, step, .. } | Message::Done { piece, step } => Flow::Step(piece.session.0, *step),
            Message::Hello(_)
            | Message::Goodbye { .. }
            | Message::Registered { .. }
            | Message::Failed { .. }
            | Message::Parted { .. }
            | Message::Clear { .. }
            | Message::Push { .. }
            | Message::Refused { .. } => return None,
        })
    }

    /// Whether somebody waits for it who would wait for ever, or keep something for ever, if it did not come. It is small.
    pub fn must_come(&self) -> bool {
        matches!(
            self,
            Message::Reply { .. }
                | Message::Registered { .. }
                | Message::Done { .. }
                | Message::Failed { .. }
                | Message::Parted { .. }
                | Message::Abort { .. }
                | Message::Forget { .. }
                | Message::Release { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::ids::{PieceId, RequestId, SessionId, StepId};
    use crate::plan::Signature;
    use crate::protocol::{Reply, SessionOptions};

    #[test]
    fn what_ends_something_does_not_overtake_what_begins_it() {
        let (id, session) = (RequestId(3), SessionId(7));
        let piece = PieceId { session, number: 1 };
        let ask = |id, request| Message::Request { id, request };
        let failure = || Failure::invalid("");
        let (graph, options) = (Vec::new(), SessionOptions::default());
        let open = ask(id, Request::Open { session, graph, options });
        let run = ask(id, Request::Run { session, plan: 1, steps: 1, every: 0, watched: false });
        let start = Message::Start { pieces: vec![piece], first: 4, count: 2 };
        let register = Message::Register { session, isolated: false, pieces: Vec::new() };
        let pairs = [
            (&open, ask(RequestId(9), Request::Close { session })),
            (&open, ask(RequestId(9), Request::Prepare { session, signature: Signature::default() })),
            (&run, ask(RequestId(9), Request::Cancel { session, run: id })),
            (&run, ask(RequestId(9), Request::Feed { session, run: id, feeds: Vec::new(), wanted: Vec::new() })),
            (&start, Message::Abort { step: StepId { session, number: 5 }, failure: failure() }),
            (&start, Message::Forget { pieces: vec![piece] }),
            (&register, start.clone()),
            (&register, Message::Forget { pieces: vec![piece] }),
            (&register, Message::Release { session }),
            (&Message::Got { piece, step: 4, place: 0 }, Message::Done { piece, step: 4 }),
            (&Message::Part { id, fetch: 0 }, Message::Reply { id, result: Ok(Reply::Ran { steps: 1 }) }),
            (&Message::Fetched { id, step: 1 }, Message::Reply { id, result: Err(failure()) }),
        ];
        for (first, second) in pairs {
            assert!(first.flow().is_some() && first.flow() == second.flow(), "{first:?}, {second:?}");
        }
        // Runs of one session do not wait for each other's feeds.
        let other = ask(RequestId(4), Request::Run { session, plan: 1, steps: 1, every: 0, watched: false });
        assert_ne!(run.flow(), other.flow());
    }
}
