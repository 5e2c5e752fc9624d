//! The ways in for clients of other systems, side by side: each speaks another system's protocol to its clients and is
//! itself one more client of this node's sessions.

pub mod tensorflow;
