//! Ids of the objects that exist on a mesh for a while: a node's run, a session, a request, a step, a piece.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
    };
}

id!(
    /// Drawn at random when a node starts, so that a restarted task is never mistaken for the old one.
    Incarnation
);
id!(
    /// Drawn at random by the client that opens the session.
    SessionId
);
id!(
    /// Numbers a client's requests; the reply carries the same number.
    RequestId
);

/// One run of a plan. Every message of that run carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepId {
    /// The session whose step it is.
    pub session: SessionId,
    /// Counted by the master over all steps of the session, from 1.
    pub number: u64,
}

/// A piece registered with its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PieceId {
    /// The session whose piece it is.
    pub session: SessionId,
    /// Counted by the master over all pieces of the session.
    pub number: u32,
}
