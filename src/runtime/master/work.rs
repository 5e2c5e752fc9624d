//! The slow requests of clients, on the planning threads.

use meshtf_graph::plan::PlaceBy;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::ids::{RequestId, SessionId};

use super::State;
use super::planner::{PlanRequest, Work};
use crate::protocol::{Peer, Request};

impl State {
    fn places_by_cost(&self, session: SessionId) -> bool {
        self.sessions.find(session).is_some_and(|handle| handle.lock().machine.options().place_by != PlaceBy::Names)
    }
}

impl Work for State {
    fn nodes(&self, request: &Request) -> usize {
        let known = |id: &SessionId| self.sessions.find(*id).map_or(0, |handle| handle.lock().machine.graph().len());
        match request {
            // The search takes longer than the rest.
            Request::Explain { options, .. } if options.place_by != PlaceBy::Names => usize::MAX,
            Request::Open { graph, .. } | Request::Explain { graph, .. } => graph.len(),
            Request::Extend { session, nodes, .. } => known(session) + nodes.len(),
            Request::PrepareAlone { nodes, .. } => nodes.len(),
            Request::Prepare { session, .. } if self.places_by_cost(*session) => usize::MAX,
            Request::Prepare { session, .. } => known(session),
            Request::Run { .. }
            | Request::Feed { .. }
            | Request::Cancel { .. }
            | Request::Claim { .. }
            | Request::Close { .. } => 0,
        }
    }

    fn work(&self, PlanRequest { client, id, request, tensors }: PlanRequest) {
        match self.plan(&client, id, request, tensors) {
            Ok(Some(reply)) => self.reply(&client, id, Ok(reply)),
            Ok(None) => {}
            Err(failure) => self.reply(&client, id, Err(failure)),
        }
    }

    /// The request is answered; a session that the panic may have left half changed ends.
    fn panicked(&self, client: &Peer, id: RequestId, session: Option<SessionId>, failure: Failure) {
        let failure = self.seat.here(failure);
        tracing::error!("{failure}");
        let damaged = session.and_then(|id| self.sessions.find(id)).filter(|handle| handle.is_damaged());
        if let Some(handle) = damaged {
            self.close(client, handle.id, &failure);
        }
        self.reply(client, id, Err(failure));
    }
}
