//! The connection of a node's mesh to its host: outgoing messages, incoming messages, and events of links.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use meshtf_exec::delivering;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;

use crate::mesh::{Inbox, Mesh, MeshError, MeshKey};
use crate::protocol::event::Event;
use crate::protocol::status::NetworkStatus;
use crate::protocol::{Cluster, Envelope, Hello, Peer};
use crate::runtime::host::Host;
use crate::runtime::router::Router;

/// Sends from this node to every participant, itself included.
pub(super) struct MeshRouter {
    pub mesh: OnceLock<Mesh>,
    pub host: OnceLock<Weak<Host>>,
    /// The home folder and the name of a mesh whose key is not confirmed yet.
    pub unconfirmed: Mutex<Option<(PathBuf, String)>>,
}

impl MeshRouter {
    fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(host) = self.host.get().and_then(Weak::upgrade) {
            host.events.note(event());
        }
    }

    fn send_by(
        &self,
        to: &Peer,
        envelope: Envelope,
        send: impl FnOnce(&Mesh, &Peer, Envelope) -> std::result::Result<(), MeshError>,
    ) -> Result<()> {
        let mesh = self.mesh.get().ok_or_else(|| Failure::new(Code::Unavailable, "this node is still joining"))?;
        if to != mesh.peer() {
            return Ok(send(mesh, to, envelope)?);
        }
        // To itself without the network, on the caller's thread.
        if let Some(host) = self.host.get().and_then(Weak::upgrade) {
            host.deliver(to, envelope);
        }
        Ok(())
    }
}

impl Router for MeshRouter {
    fn send(&self, to: &Peer, envelope: Envelope) -> Result<()> {
        self.send_by(to, envelope, Mesh::send)
    }

    fn send_soon(&self, to: &Peer, envelope: Envelope) -> Result<()> {
        self.send_by(to, envelope, Mesh::send_soon)
    }

    fn flush(&self) {
        if let Some(mesh) = self.mesh.get() {
            mesh.flush();
        }
    }

    fn cluster(&self) -> Arc<Cluster> {
        self.mesh.get().map(Mesh::cluster).unwrap_or_default()
    }

    fn network(&self) -> NetworkStatus {
        self.mesh.get().map(Mesh::status).unwrap_or_default()
    }

    fn probe(&self) {
        if let Some(mesh) = self.mesh.get() {
            mesh.probe();
        }
    }
}

impl Inbox for MeshRouter {
    fn joined(&self, mesh: &Mesh) {
        let _first = self.mesh.set(mesh.clone());
    }

    fn deliver(&self, from: &Peer, envelope: Envelope) {
        if let Some(host) = self.host.get().and_then(Weak::upgrade) {
            host.deliver(from, envelope);
        }
    }

    fn around(&self, deliveries: &mut dyn FnMut()) {
        delivering(deliveries);
    }

    fn up(&self, peer: &Peer, hello: &Hello) {
        self.note(|| Event::TaskMet { task: hello.task.clone(), peer: peer.clone() });
        let first = lock(&self.unconfirmed).take();
        if let Some((home, mesh)) = first {
            MeshKey::confirm(&home, &mesh);
        }
    }

    fn broke(&self, peer: &Peer, why: &str) {
        self.note(|| Event::LinkDown { peer: peer.clone(), why: why.to_owned() });
    }

    fn mended(&self, peer: &Peer) {
        self.note(|| Event::LinkUp { peer: peer.clone() });
    }

    fn down(&self, peer: &Peer, task: Option<&Task>, why: &str) {
        self.note(|| Event::TaskLost { task: task.cloned(), peer: peer.clone(), why: why.to_owned() });
        if let Some(host) = self.host.get().and_then(Weak::upgrade) {
            host.down(peer, task, why);
        }
    }

    fn limit_reached(&self, what: &str) {
        if let Some(host) = self.host.get().and_then(Weak::upgrade) {
            host.events.note_limit(what);
        }
    }

    fn parted(&self, peer: &Peer, _task: &Task, why: &str) {
        if let Some(host) = self.host.get().and_then(Weak::upgrade) {
            host.peer_lost(peer, why);
        }
    }
}
