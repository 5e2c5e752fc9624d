//! The runtime that executes graphs on a mesh: the client's end of a session, the worker and the master of a node, the router
//! that carries messages between them, and the host that contains all of them.
//!
//! `worker` and `master` do not know each other: they communicate by messages alone.

pub(crate) mod capacity;
pub(crate) mod copies;
pub(crate) mod detached;
pub(crate) mod host;
mod inspect;
pub(crate) mod master;
pub(crate) mod parts;
mod reports;
pub(crate) mod requests;
pub(crate) mod router;
#[cfg(test)]
mod simulation;
pub(crate) mod weights;
pub(crate) mod worker;
