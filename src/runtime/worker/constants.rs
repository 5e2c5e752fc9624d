//! The large constants of the pieces that a worker holds: a constant that the worker has for a piece of a session is not sent
//! again for another. No session gets one of another's.

use meshtf_graph::plan::Piece;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;
use meshtf_tensor::ids::{PieceId, SessionId};

use super::State;
use crate::protocol::Constants;
use crate::protocol::constants::{Reference, nodes_of};

impl State {
    /// Gives the pieces of a registration the constants that they lack, and keeps those for as long as it has the pieces.
    ///
    /// # Errors
    /// As [`Constants::put_back`].
    pub(super) fn put_back(
        &self,
        id: SessionId,
        pieces: &mut [(PieceId, Piece)],
        constants: &Constants,
        tensors: Vec<Tensor>,
    ) -> Result<()> {
        let mut sessions = self.sessions();
        let Some(session) = sessions.get_mut(&id) else { return Ok(()) };
        constants.put_back(&mut nodes_of(pieces), tensors, |content| session.constants.get(content).cloned())?;
        for Reference { piece, node, attr, content } in &constants.references {
            let (piece, Piece { nodes, .. }) = &pieces[*piece as usize];
            if let Ok(value) = nodes[*node as usize].attrs.tensor(attr) {
                session.constants.hold(*content, value, *piece);
            }
        }
        Ok(())
    }
}
