//! The errors of this participant and its mesh.

use std::fmt;
use std::io;
use std::path::PathBuf;

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure};
use serde::{Deserialize, Serialize};

use crate::protocol::Peer;

/// The mesh that nodes and clients join unless another is named.
pub(crate) const DEFAULT_MESH: &str = "meshtf";

/// The holder of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its PeerId.
    pub peer: Peer,
    /// Multiaddrs it listens on.
    pub addresses: Vec<String>,
    /// When it started, in milliseconds since 1970.
    pub since_unix_ms: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.peer)?;
        if let Some(first) = self.addresses.first() {
            write!(f, " at {first}")?;
        }
        let age = super::unix_ms().saturating_sub(self.since_unix_ms) / 1000;
        write!(f, ", up for {age} s")
    }
}

/// Why joining a mesh or sending on it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
// The text of each variant describes its fields.
#[allow(missing_docs)]
pub enum MeshError {
    /// Another live node holds the task.
    #[error(
        "{task} is held by {holder}; stop it, choose another name, or give this cluster a mesh of its own with --mesh NAME"
    )]
    TaskTaken { task: Task, holder: Holder },
    /// The peer is not connected, or not any more.
    #[error("{peer} is not connected")]
    NotConnected { peer: Peer },
    /// The peer does not take messages fast enough.
    #[error("the queue to {peer} is full: {limit} is the limit of {what}")]
    QueueFull { peer: Peer, what: &'static str, limit: usize },
    /// The peer left messages out.
    #[error("{peer} sent message {number} after message {after}")]
    Gap { peer: Peer, number: u64, after: u64 },
    /// One message with its tensors is over [`MAX_MESSAGE_BYTES`](crate::protocol::MAX_MESSAGE_BYTES).
    #[error("a message of {bytes} bytes exceeds the limit of {limit} for one message with its tensors")]
    TooLarge { bytes: usize, limit: usize },
    /// A value that cannot leave its device.
    #[error("a message cannot be encoded: {why}")]
    Encode { why: String },
    /// A configured address is not a valid address.
    #[error(
        "{text:?} is not an address: {why}; expected host:port (192.168.1.7:4711) or a multiaddr (/ip4/192.168.1.7/tcp/4711)"
    )]
    Address { text: String, why: String },
    /// This participant cannot listen there.
    #[error("cannot listen on {address}: {why}")]
    Listen { address: String, why: String },
    /// The task is not in the cluster file.
    #[error("{task} is not in the cluster file, which has {known}")]
    NotInClusterFile { task: Task, known: String },
    /// An error of the mesh key, a ticket, or the folder they live in.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No certificate could be made for the identity.
    #[error("cannot make this participant's certificate: {0}")]
    Certificate(String),
    /// An error of the operating system about sockets, threads or randomness.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    /// This participant has left.
    #[error("this participant has left the mesh")]
    Left,
}

impl MeshError {
    fn code(&self) -> Code {
        match self {
            MeshError::TaskTaken { .. } => Code::AlreadyExists,
            MeshError::NotConnected { .. } | MeshError::Left => Code::Unavailable,
            MeshError::QueueFull { .. } => Code::ResourceExhausted,
            MeshError::Gap { .. } => Code::Internal,
            MeshError::TooLarge { .. }
            | MeshError::Encode { .. }
            | MeshError::Address { .. }
            | MeshError::NotInClusterFile { .. } => Code::InvalidArgument,
            MeshError::Key(KeyError::Missing { .. }) => Code::Unauthenticated,
            MeshError::Key(_) => Code::FailedPrecondition,
            MeshError::Listen { .. } | MeshError::Certificate(_) | MeshError::Io { .. } => Code::Unavailable,
        }
    }
}

impl From<MeshError> for Failure {
    fn from(error: MeshError) -> Self {
        Failure::new(error.code(), error.to_string())
    }
}

/// The errors of a mesh key, a ticket or the folder that keeps them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
// The text of each variant describes its fields.
#[allow(missing_docs)]
pub enum KeyError {
    /// A mesh's name violates the grammar.
    #[error("{name:?} is not a mesh name: 1 to 64 letters, digits, `-`, `_` and `.`, the first a letter or digit")]
    Name { name: String },
    /// Neither MESHTF_HOME nor a home folder of the user is known.
    #[error("no home folder is known; set MESHTF_HOME to a folder for mesh keys")]
    NoHome,
    /// The operating system refused to read or write the file.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// The file is not a mesh key.
    #[error("{path} is not a mesh key; move it away, and a new key is made")]
    Damaged { path: PathBuf },
    /// The mesh has no key on this machine.
    #[error(
        "this machine has no key of mesh {mesh:?}: {path} does not exist. `meshtf node --name local/0{}` starts the mesh here \
         and makes its key; `meshtf ticket{}` on a machine that is in it and `meshtf join` here bring the key over{}",
        flag_of(mesh),
        flag_of(mesh),
        keys_of(others)
    )]
    Missing { mesh: String, path: PathBuf, others: Vec<String> },
    /// Users other than its owner may read the key's file.
    #[error("{path} is a secret, but other users can access it (its mode is {mode:04o}): chmod 600 {path}")]
    Exposed { path: PathBuf, mode: u32 },
    /// Another key of that mesh is on this machine.
    #[error(
        "a different key for mesh {mesh:?} is already in {path}; replacing it cuts this machine off from those who use it"
    )]
    Exists { mesh: String, path: PathBuf },
    /// A line is not a ticket.
    #[error("not a ticket: {why}; `meshtf ticket` on a machine of the mesh prints one, a single line")]
    Ticket { why: String },
}

/// The flag by which a command is for a mesh, ` --mesh lab`; empty for the one that a command without it is for.
pub(crate) fn flag_of(mesh: &str) -> String {
    if mesh == DEFAULT_MESH { String::new() } else { format!(" --mesh {mesh}") }
}

/// `. It has keys of other meshes (--mesh NAME): lab`; empty if it has none.
pub(crate) fn keys_of(meshes: &[String]) -> String {
    if meshes.is_empty() {
        return String::new();
    }
    format!(". It has keys of other meshes (--mesh NAME): {}", meshes.join(", "))
}
