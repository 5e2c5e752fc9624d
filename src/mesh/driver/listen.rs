//! The listen addresses of a participant: the configured ones, its own of the cluster file, or every interface.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt;
use libp2p::core::Multiaddr;
use libp2p::core::transport::{ListenerId, TransportError};
use libp2p::swarm::SwarmEvent;

use super::Driver;
use crate::mesh::{MeshConfig, MeshError, address, remembered};

/// How long a node waits for its first address.
const LISTEN_LIMIT: Duration = Duration::from_millis(150);

impl Driver {
    pub(super) async fn listen(&mut self, config: &MeshConfig) -> Result<(), MeshError> {
        let mut wanted = config.listen.clone();
        if let (Some(task), true, false) = (&config.task, wanted.is_empty(), config.fixed.is_empty()) {
            let known = || config.fixed.keys().map(meshtf_tensor::device::Task::short).collect::<Vec<_>>().join(", ");
            let own = config.fixed.get(task);
            wanted.extend(own.cloned());
            own.ok_or_else(|| MeshError::NotInClusterFile { task: task.clone(), known: known() })?;
        }
        let mut listeners = HashSet::new();
        for wanted in &wanted {
            let refuse = |why: String| MeshError::Listen { address: wanted.to_string(), why };
            let fixed = config.listen.is_empty();
            let mut result = Err(refuse("it has no address".to_owned()));
            for address in address::resolve(wanted).await.map_err(refuse)? {
                result = self.listen_on(address.clone()).map_err(refuse);
                if result.is_err() && fixed && address::ip(&address).is_some() {
                    // Behind NAT or a container's network, the address that other machines use is not one of this machine's
                    // own.
                    result = self.listen_on(address::on_every_interface(&address)).map_err(refuse);
                }
                if result.is_ok() {
                    break;
                }
            }
            listeners.insert(result?);
        }
        if wanted.is_empty() && config.task.is_some() {
            // A machine without IPv6 is fine, and so is one without IPv4.
            let mut refused = None;
            let mut listens = false;
            let before = config.ports.as_deref().map(remembered::load).unwrap_or_default();
            for (address, again) in self.roster.port().again(&before) {
                match self.listen_again(&address, again) {
                    Ok(id) => {
                        listens = true;
                        // There is no address to wait for on a machine without IPv6.
                        if address::ip(&address).is_none_or(|ip| ip.is_ipv4()) || has_ipv6() {
                            listeners.insert(id);
                        }
                    }
                    Err(why) => refused = refused.or(Some(MeshError::Listen { address: address.to_string(), why })),
                }
            }
            refused.filter(|_| !listens).map_or(Ok(()), Err)?;
        }
        if !listeners.is_empty() {
            for address in self.roster.port().besides() {
                match self.listen_on(address.clone()) {
                    Ok(_) => {
                        self.addresses.insert(address);
                    }
                    Err(why) => tracing::debug!(%address, why, "not listened on"),
                }
            }
        }
        let deadline = tokio::time::Instant::now() + LISTEN_LIMIT;
        while !listeners.is_empty() {
            let Ok(event) = tokio::time::timeout_at(deadline, self.swarm.select_next_some()).await else { break };
            if let SwarmEvent::NewListenAddr { listener_id, .. } = &event {
                listeners.remove(listener_id);
            }
            self.on_event(event);
        }
        Ok(())
    }

    fn listen_on(&mut self, address: Multiaddr) -> Result<ListenerId, String> {
        self.swarm.listen_on(address).map_err(|error| match error {
            TransportError::Other(error) => error.to_string(),
            other => other.to_string(),
        })
    }

    /// Listens at the port that this node had before, or if that is taken, at any.
    fn listen_again(&mut self, everywhere: &Multiaddr, again: Option<Multiaddr>) -> Result<ListenerId, String> {
        match again.map(|address| self.listen_on(address)) {
            Some(Ok(id)) => return Ok(id),
            Some(Err(why)) => tracing::info!("the previous port is taken, so another is used: {why}"),
            None => {}
        }
        self.listen_on(everywhere.clone())
    }
}

fn has_ipv6() -> bool {
    std::net::UdpSocket::bind("[::1]:0").is_ok()
}
