//! The errors of connecting to a device.

use std::fmt;

/// The reason why a mesh or one of its devices cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Nothing answers at the address.
    Unreachable {
        /// The address.
        address: String,
        /// The error of the connection.
        reason: String,
    },
    /// The door requires a token, or another one.
    Token {
        /// The address.
        address: String,
    },
    /// The server at the address is not the door of a mesh.
    Answer {
        /// The address.
        address: String,
        /// The flaw of its answer.
        reason: String,
    },
    /// The door speaks another version of burn's remote protocol.
    Protocol {
        /// The address.
        address: String,
        /// The version that the door speaks.
        door: u64,
    },
    /// The text is not the name of a device.
    Name {
        /// The name.
        asked: String,
    },
    /// The mesh has no such device.
    NoDevice {
        /// The name, or the part of one.
        asked: String,
        /// The names of the devices of the mesh.
        there: Vec<String>,
    },
    /// The door does not open a session for the device.
    Connect {
        /// The device's name.
        device: String,
        /// The error of burn's client.
        reason: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreachable { address, reason } => {
                write!(f, "no door answers at {address}: {reason}; does a node run there with --burn {address}?")
            }
            Error::Token { address } => {
                write!(f, "the door at {address} asks for its token: Mesh::at({address:?}).with_token(…).reach()")
            }
            Error::Answer { address, reason } => {
                write!(f, "what answers at {address} is not the door of a mesh: {reason}")
            }
            Error::Protocol { address, door } => write!(
                f,
                "the door at {address} speaks version {door} of burn's remote protocol, this program version {}: build it with \
                 the version of burn that the node names",
                crate::door::PROTOCOL
            ),
            Error::Name { asked } => {
                write!(
                    f,
                    "{asked:?} is not a device's name, or a part of one: /job:worker/task:0/device:GPU:0, /task:1/cpu:0"
                )
            }
            Error::NoDevice { asked, there } if there.is_empty() => {
                write!(f, "the mesh has no device {asked}: it has none at all")
            }
            Error::NoDevice { asked, there } => {
                write!(f, "the mesh has no device {asked}; it has {}", there.join(", "))
            }
            Error::Connect { device, reason } => write!(f, "{device} cannot be connected: {reason}"),
        }
    }
}

impl std::error::Error for Error {}
