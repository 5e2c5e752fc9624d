//! Servers for clients of other systems. Each speaks another system's protocol to its clients, and is itself a client
//! of this node's sessions.

pub mod tensorflow;
