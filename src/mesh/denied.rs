//! The reasons why a connection is not admitted, and the time limits of admission.

use std::io;
use std::time::Duration;

use super::release::Speaks;

/// How long connecting, securing the connection and the proof may take together.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long the side that connected may take to send its first byte. A real dialler sends it at once.
pub const FIRST_BYTE_LIMIT: Duration = Duration::from_secs(2);

/// Why a connection was not admitted, on either side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("it is not a meshtf node")]
    UnauthenticatedPeer,
    #[error("it is {theirs}, this is {ours}, and the two refuse each other; run the same release on both machines")]
    OtherVersion { theirs: Speaks, ours: Speaks },
    #[error("it is of another mesh")]
    OtherMesh,
    #[error(
        "it has another mesh key; `meshtf ticket` on a machine of the mesh and `meshtf join` here bring the key over"
    )]
    WrongKey,
    #[error("it requires a mesh key, and this side runs open, without one")]
    KeyWanted,
    #[error("it runs open, without a mesh key, and this side has one")]
    Open,
    #[error("the handshake took longer than {} s", HANDSHAKE_LIMIT.as_secs())]
    Slow,
    #[error("it sent nothing within {} s", FIRST_BYTE_LIMIT.as_secs())]
    Silent,
    #[error("too many other connections were waiting to be admitted")]
    Crowded,
    #[error("a different peer answered than the one that was dialled")]
    OtherPeer,
}

impl Denied {
    /// Whether the next try will end the same way.
    pub fn is_final(self) -> bool {
        !matches!(self, Denied::Slow | Denied::Silent | Denied::Crowded)
    }
}

impl From<Denied> for io::Error {
    fn from(denied: Denied) -> Self {
        io::Error::new(io::ErrorKind::PermissionDenied, denied)
    }
}
