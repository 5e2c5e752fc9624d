//! The behaviour that gives every connection its control stream, and every peer one connection.
//!
//! Both sides dial, so two connections with one peer are common. The participant with the lower PeerId decides: it opens
//! the control stream on the first connection it has and closes the others. The other participant closes none on its own
//! account, so no message is ever on a connection that is given up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};

use libp2p::PeerId;
use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished, FromSwarm};
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, NetworkBehaviour, NotifyHandler, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};

use super::address::is_loopback;
use super::control::{Control, End, Ended, Open};
use super::roster::{Link, Roster};
use super::wire::Wire;
use crate::protocol::Peer;

/// A control stream was over.
#[derive(Debug)]
pub struct LinkEnded {
    pub peer: PeerId,
    pub end: End,
}

pub struct Links {
    me: PeerId,
    roster: Arc<Roster>,
    /// The connections of each peer, oldest first; the control stream is on the first.
    connections: BTreeMap<PeerId, Vec<ConnectionId>>,
    todo: VecDeque<ToSwarm<LinkEnded, Open>>,
}

impl Links {
    pub fn new(me: PeerId, roster: Arc<Roster>) -> Self {
        Links { me, roster, connections: BTreeMap::new(), todo: VecDeque::new() }
    }

    fn handler(&self, peer: PeerId, remote: &Multiaddr, dialled: bool) -> Control {
        let address = remote.to_string();
        let link = Link::new(
            Peer::new(peer.to_string()),
            peer,
            Arc::new(Wire::default()),
            is_loopback(&address),
            dialled.then(|| address.clone()),
            address,
        );
        Control::new(self.roster.clone(), link)
    }

    fn open(&mut self, peer: PeerId, connection: ConnectionId) {
        self.todo.push_back(ToSwarm::NotifyHandler {
            peer_id: peer,
            handler: NotifyHandler::One(connection),
            event: Open,
        });
    }
}

impl NetworkBehaviour for Links {
    type ConnectionHandler = Control;
    type ToSwarm = LinkEnded;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, remote, false))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        remote: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, remote, true))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, connection_id, .. }) => {
                let connections = self.connections.entry(peer_id).or_default();
                connections.push(connection_id);
                let first = connections.len() == 1;
                if self.me < peer_id && first {
                    self.open(peer_id, connection_id);
                } else if self.me < peer_id {
                    self.todo.push_back(ToSwarm::CloseConnection {
                        peer_id,
                        connection: CloseConnection::One(connection_id),
                    });
                }
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                let Some(connections) = self.connections.get_mut(&peer_id) else { return };
                let had_stream = connections.first() == Some(&connection_id);
                connections.retain(|id| *id != connection_id);
                match connections.first().copied() {
                    Some(next) if had_stream && self.me < peer_id => self.open(peer_id, next),
                    Some(_) => {}
                    None => {
                        self.connections.remove(&peer_id);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        Ended(end): THandlerOutEvent<Self>,
    ) {
        self.todo.push_back(ToSwarm::CloseConnection { peer_id: peer, connection: CloseConnection::One(connection) });
        self.todo.push_back(ToSwarm::GenerateEvent(LinkEnded { peer, end }));
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.todo.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}
