//! A piece whose steps may overlap: its kernels can be compiled again, for a further step under way.

use std::sync::Arc;

use meshtf_engine::{Engine, Value};
use meshtf_graph::op;
use meshtf_graph::plan::{Piece, PieceOp};
use meshtf_tensor::failure::Result;

use super::{Act, CompiledPiece, PieceCode, compile};
use crate::state::Site;

/// A piece as it came, and the parts of the compiled one that all its steps share.
pub(crate) struct Source {
    piece: Piece,
    site: Site,
    code: Arc<PieceCode>,
    /// The values of constants, which are in the engine's memory once.
    constants: Vec<(usize, Value)>,
}

impl Source {
    /// `None` if no step of the piece ever waits: then its steps do not overlap.
    pub fn of(piece: Piece, site: Site, compiled: &CompiledPiece) -> Option<Arc<Source>> {
        let waits = |name: &str| op::lookup(name).is_some_and(|op| op.waits);
        let may_wait = piece.nodes.iter().any(|node| matches!(&node.op, PieceOp::Op(name) if waits(name)));
        if compiled.code.recvs.is_empty() && !may_wait {
            return None;
        }
        let constants = compiled.acts.iter().enumerate().filter_map(|(i, act)| match act {
            Act::Const(value) => Some((i, value.clone())),
            _ => None,
        });
        let (code, constants) = (Arc::clone(&compiled.code), constants.collect());
        Some(Arc::new(Source { piece, site, code, constants }))
    }

    /// The compiled piece, of which only the kernels are missing.
    pub fn without_kernels(&self) -> CompiledPiece {
        let Piece { feeds, fetches, .. } = &self.piece;
        CompiledPiece { code: Arc::clone(&self.code), acts: Vec::new(), feeds: feeds.clone(), fetches: fetches.clone() }
    }

    /// Compiles the kernels. Those of nodes that draw random numbers or find resources share them with the first ones.
    ///
    /// # Errors
    /// As [`compile`].
    pub fn acts(&self, engine: &dyn Engine) -> Result<Vec<Act>> {
        let mut acts = compile(&self.piece, &self.site, engine)?.acts;
        for (i, value) in &self.constants {
            acts[*i] = Act::Const(value.clone());
        }
        Ok(acts)
    }
}
