//! The behaviour that gives every connection its control stream, and every peer one connection.
//!
//! Both sides dial, so two connections with one peer are common. The participant with the lower PeerId decides: it opens the
//! control stream on the first, and closes another that comes right after it. A connection that comes later means that one side
//! does not hear the other any more: the stream is opened on it, too, and the link continues over it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use libp2p::PeerId;
use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished, FromSwarm};
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, NetworkBehaviour, NotifyHandler, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};

use super::address::{is_loopback, without_peer};
use super::clock;
use super::control::{Control, End, Ended, Open};
use super::link::Connection;
use super::roster::Roster;
use super::wire::Wire;
use crate::protocol::Peer;

/// Connections made within this time come from both sides dialling at once; a later one is wanted.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A control stream ended.
#[derive(Debug)]
pub struct LinkEnded {
    pub peer: PeerId,
    pub end: End,
}

pub struct Links {
    me: PeerId,
    roster: Arc<Roster>,
    /// The connections of each peer that have a control stream or will have one, and when they were made.
    connections: BTreeMap<PeerId, Vec<(ConnectionId, Instant)>>,
    todo: VecDeque<ToSwarm<LinkEnded, Open>>,
}

impl Links {
    pub fn new(me: PeerId, roster: Arc<Roster>) -> Self {
        Links { me, roster, connections: BTreeMap::new(), todo: VecDeque::new() }
    }

    fn handler(&self, peer: PeerId, remote: &Multiaddr, dialled: bool) -> Control {
        // libp2p adds the PeerId that it expects.
        let remote = without_peer(remote.clone());
        let connection = Connection {
            wire: Wire::default(),
            loopback: is_loopback(&remote),
            dialled: dialled.then(|| remote.clone()),
            remote,
        };
        Control::new(self.roster.clone(), Peer::new(peer.to_string()), peer, connection)
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
                if self.me > peer_id {
                    return;
                }
                let connections = self.connections.entry(peer_id).or_default();
                if connections.iter().any(|(_, since)| clock::now().duration_since(*since) < AT_ONCE) {
                    self.todo.push_back(ToSwarm::CloseConnection {
                        peer_id,
                        connection: CloseConnection::One(connection_id),
                    });
                } else {
                    connections.push((connection_id, clock::now()));
                    self.open(peer_id, connection_id);
                }
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                let Some(connections) = self.connections.get_mut(&peer_id) else { return };
                connections.retain(|(id, _)| *id != connection_id);
                if connections.is_empty() {
                    self.connections.remove(&peer_id);
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
