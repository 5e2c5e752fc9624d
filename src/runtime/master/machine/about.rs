//! The subject of a message of a master.

use meshtf_tensor::ids::{PieceId, RequestId};

use crate::protocol::{Message, ToClient, ToWorker};

/// The subject of a message, for the case that it cannot be sent.
pub(in super::super) enum About {
    /// Pieces of a plan that a worker is to hold.
    Pieces(Vec<PieceId>),
    /// A worker's part in a run, by one of its steps.
    Step(u64),
    /// The answer to a request.
    Answer(RequestId),
    /// A report of a run to its client while it is under way.
    Fetch(RequestId),
    /// A message that nothing waits for.
    Nothing,
}

impl About {
    pub fn of(message: &Message) -> About {
        match message {
            Message::ToWorker(message) => match message {
                ToWorker::Register { pieces, .. } => About::Pieces(pieces.iter().map(|(id, _)| *id).collect()),
                ToWorker::Start { first, .. } => About::Step(*first),
                ToWorker::Push { step, .. } => About::Step(step.number),
                ToWorker::Abort { .. }
                | ToWorker::Forget { .. }
                | ToWorker::Release { .. }
                | ToWorker::Confirm { .. }
                | ToWorker::Clear { .. } => About::Nothing,
            },
            Message::ToClient(message) => match message {
                ToClient::Reply { id, result: Ok(_) } => About::Answer(*id),
                ToClient::Fetched { id, .. } | ToClient::PartialFetch { id, .. } => About::Fetch(*id),
                ToClient::Reply { result: Err(_), .. } | ToClient::Progress { .. } => About::Nothing,
            },
            // A master sends nothing else.
            Message::ToMaster(_)
            | Message::ToHost(_)
            | Message::Hello(_)
            | Message::Goodbye { .. }
            | Message::Refused { .. } => About::Nothing,
        }
    }
}
