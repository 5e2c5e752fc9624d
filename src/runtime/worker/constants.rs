//! The large constants of the pieces that a worker holds: a constant that the worker has for a piece of a session is not sent
//! again for another. No session gets one of another's, except those that are kept by their contents: these are fetched before
//! the pieces are compiled, on a thread of their own if they are not in memory.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use meshtf_graph::plan::Piece;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{PieceId, SessionId};

use super::{RegisterWork, State, Worker, not_taken};
use crate::protocol::constants::{Kept, Reference, nodes_of};
use crate::protocol::{Constants, Content, Peer, ToMaster};

/// The name of the fetching of constants in the failure for its panic.
const FETCHING: &str = "fetching constants";

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

impl Worker {
    /// Has pieces compiled once their constants are there.
    ///
    /// # Errors
    /// InvalidArgument if a constant does not fit its node; ResourceExhausted if too much waits already.
    pub(super) fn register_with(&self, mut work: RegisterWork, constants: Constants) -> Result<()> {
        let kept = constants.all_kept(&mut nodes_of(&mut work.pieces))?;
        if let Some(values) = self.state.fetch.weights().all_at_hand(&kept) {
            work.fill(&kept, &constants, &values)?;
            return self.registrar.try_send(work).map_err(not_taken);
        }
        let turn = self.state.fetch.turn()?;
        let (state, registrar) = (Arc::clone(&self.state), self.registrar.clone());
        let fetches = move || {
            let _until_they_came = turn;
            let (master, session) = (work.master.clone(), work.session);
            let ids: Vec<PieceId> = work.pieces.iter().map(|(id, _)| *id).collect();
            let budget = Arc::clone(state.resources.budget());
            let fetched = catch_unwind(AssertUnwindSafe(|| {
                budget.run(|| state.fetch_for(&ids, &kept, (constants.holder.as_ref(), &master), session))
            }));
            let fetched = fetched.unwrap_or_else(|panic| Err(Failure::panicked(FETCHING, &*panic)));
            let filled = fetched.and_then(|values| work.fill(&kept, &constants, &values));
            if let Err(failure) = filled.and_then(|()| registrar.try_send(work).map_err(not_taken)) {
                state.registered(session, &ids);
                let result = Err(failure.on_task(&state.task.to_string()));
                state.answer(&master, ToMaster::Registered { session, pieces: ids, result });
            }
        };
        let started = thread::Builder::new().name("meshtf-weights".into()).spawn(fetches);
        started.map(|_| ()).map_err(|error| {
            Failure::new(Code::ResourceExhausted, format!("cannot start a thread for constants: {error}"))
        })
    }
}

impl State {
    /// Waits for the constants of pieces: from the participant that offers them, or else through the master.
    fn fetch_for(
        &self,
        pieces: &[PieceId],
        kept: &[Kept],
        (holder, master): (Option<&Peer>, &Peer),
        session: SessionId,
    ) -> Result<HashMap<Content, Tensor>> {
        let is_wanted = || {
            let sessions = self.sessions();
            let session = sessions.get(&session).filter(|session| !session.is_over);
            session.is_some_and(|session| pieces.iter().any(|piece| session.pieces.contains_key(piece)))
        };
        let mut holders: Vec<Peer> = holder.into_iter().chain([master]).cloned().collect();
        holders.dedup();
        self.fetch.all(session, kept, &holders, is_wanted)
    }
}

impl RegisterWork {
    /// Gives the pieces their constants.
    ///
    /// # Errors
    /// InvalidArgument if one is not of the dtype and shape that the plan was made for.
    fn fill(&mut self, kept: &[Kept], constants: &Constants, values: &HashMap<Content, Tensor>) -> Result<()> {
        for one in kept {
            if let Some(value) = values.get(&one.content).filter(|value| !one.admits(value)) {
                let Kept { content, node, dtype, shape } = one;
                let why = format!("constant {content} of node {node} is {} of shape {}", value.dtype(), value.shape());
                return Err(Failure::invalid(format!("{why}, and was announced as {dtype} of shape {shape}")));
            }
        }
        constants.fill(&mut nodes_of(&mut self.pieces), values)
    }
}
