//! The subject of a message of a master.

use meshtf_tensor::ids::{PieceId, RequestId};

use crate::protocol::{Message, ToClient, ToWorker};

/// The subject of a message, for the case that it cannot be sent.
pub(in super::super) enum Subject {
    /// Pieces of a plan that a worker is to hold.
    Pieces(Vec<PieceId>),
    /// A worker's part in a run, by one of its steps.
    Step(u64),
    /// The answer to a request.
    Answer(RequestId),
    /// A report of a run to its client while it is under way.
    Fetch(RequestId),
    /// A message about the guard of the session.
    Guard,
    /// A message that nothing waits for.
    Nothing,
}

impl Subject {
    pub fn of(message: &Message) -> Subject {
        match message {
            Message::ToWorker(message) => match message {
                ToWorker::Register { pieces, .. } => Subject::Pieces(pieces.iter().map(|(id, _)| *id).collect()),
                ToWorker::Start { first, .. } => Subject::Step(*first),
                ToWorker::Push { step, .. } => Subject::Step(step.number),
                ToWorker::Guard(_) => Subject::Guard,
                ToWorker::Abort { .. }
                | ToWorker::Forget { .. }
                | ToWorker::Release { .. }
                | ToWorker::Confirm { .. }
                | ToWorker::Clear { .. } => Subject::Nothing,
            },
            Message::ToClient(message) => match message {
                ToClient::Reply { id, result: Ok(_) } => Subject::Answer(*id),
                ToClient::Fetched { id, .. } | ToClient::PartialFetch { id, .. } => Subject::Fetch(*id),
                ToClient::Reply { result: Err(_), .. } | ToClient::Progress { .. } | ToClient::Guard { .. } => {
                    Subject::Nothing
                }
            },
            // A master sends nothing else.
            Message::ToMaster(_)
            | Message::ToHost(_)
            | Message::Hello(_)
            | Message::Goodbye { .. }
            | Message::Refused { .. } => Subject::Nothing,
        }
    }
}
