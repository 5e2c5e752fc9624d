//! The way from inquiries to the runs that a node makes by itself.

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;

use crate::protocol::Peer;
use crate::protocol::detached::{AskDetached, ToldDetached};

/// The detached runs of a node. They are sessions, which the runtime serves and does not open.
pub trait Detached: Send + Sync {
    /// Answers an inquiry of a participant. May wait: it is called on a thread for that.
    ///
    /// # Errors
    /// NotFound if there is no such run; those of a session that cannot be opened; ResourceExhausted if there are too many runs.
    fn answer(&self, from: &Peer, ask: AskDetached, tensors: Vec<Tensor>) -> Result<(ToldDetached, Vec<Tensor>)>;
}
