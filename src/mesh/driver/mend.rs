//! The repair of links: dials for another connection, notices that a process is gone, gives up links that stay silent, and
//! reports to the peers which nodes this one cannot reach.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libp2p::PeerId;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError};

use super::super::address::{Multiaddr, is_same_host, resolved, without_peer};
use super::super::cause::has_cause;
use super::super::clock;
use super::super::health::{Health, LINK_LIMIT, RETURN_LIMIT, Remedy};
use super::super::link::{Condition, Link};
use super::super::roster::MAX_KNOWN_PEERS;
use super::{Driver, TICK};
use crate::protocol::Peer;

/// A node that peers name is reported as unreachable if it stays so for this long.
const MISSING_LIMIT: Duration = Duration::from_secs(2);
/// A driver that runs later than this was stopped or starved: silence beyond this time is its own fault. So a process that was
/// stopped does not take its peers for dead, and one that is always starved still ends a dead link.
const STANDSTILL: Duration = Duration::from_secs(1);

/// The driver's state about links in trouble.
pub struct Mending {
    /// By this side's number of the link.
    health: BTreeMap<u64, Health>,
    /// Dials under way for links in trouble.
    dials: BTreeMap<ConnectionId, Redial>,
    looked: Instant,
    /// When a link needs the next look.
    pub next: Option<Instant>,
    /// Nodes that peers name and that this one has no link with, and since when.
    missing: BTreeMap<Peer, Instant>,
}

/// A dial for a link in trouble, and the condition of the link when it began.
pub struct Redial {
    link: Arc<Link>,
    condition: Condition,
}

impl Mending {
    pub fn new(now: Instant) -> Self {
        Mending { health: BTreeMap::new(), dials: BTreeMap::new(), looked: now, next: None, missing: BTreeMap::new() }
    }

    /// A dial is over. Returns it if it was for a link.
    pub fn dialled(&mut self, connection: ConnectionId) -> Option<Redial> {
        self.dials.remove(&connection)
    }
}

impl Driver {
    /// Checks every link.
    pub(super) fn mend(&mut self) {
        let now = clock::now();
        let stood_still = now.duration_since(self.mending.looked).saturating_sub(STANDSTILL);
        self.mending.looked = now;
        self.mending.next = None;
        let mut known = std::mem::take(&mut self.mending.health);
        for link in self.roster.links() {
            if !stood_still.is_zero() {
                link.excuse(stood_still, now);
            }
            let condition = link.condition();
            let mut health = known.remove(&link.numbers.own).unwrap_or_default();
            let limit = match &condition.broken {
                // A client listens nowhere, so it cannot be dialled to find out whether it lives.
                Some(broken) if broken.hung_up && link.hello().addresses.is_empty() => {
                    (broken.at + RETURN_LIMIT).min(condition.heard + LINK_LIMIT)
                }
                _ => condition.heard + LINK_LIMIT,
            };
            let next = match health.look(now, condition.heard, condition.broken.is_some(), limit) {
                Remedy::Wait(next) => next,
                Remedy::Dial(next) => {
                    self.dial_again(&link);
                    next
                }
                Remedy::GiveUp => {
                    let silent = format!("nothing was heard from it for {} s", (now - condition.heard).as_secs());
                    let why = match &condition.broken {
                        Some(broken) => format!("{}, and reconnecting failed", broken.why),
                        None => silent,
                    };
                    self.roster.give_up(&link, &condition, &why);
                    continue;
                }
            };
            self.mending.health.insert(link.numbers.own, health);
            self.mending.next = Some(self.mending.next.map_or(next, |earliest| earliest.min(next)));
        }
        self.roster.tell_parted(now);
    }

    /// Dials the peer of a link, whether or not it has a connection.
    fn dial_again(&mut self, link: &Arc<Link>) {
        let told = resolved(&link.hello().addresses).into_iter().map(without_peer);
        let addresses: BTreeSet<Multiaddr> = link.connection().dialled.clone().into_iter().chain(told).collect();
        let port = self.roster.port();
        let (known, others): (Vec<Multiaddr>, Vec<Multiaddr>) =
            addresses.into_iter().filter(|address| port.handles(address)).partition(|address| was_there(link, address));
        // Two dials, since the first answer decides a dial, and another process may answer at the other addresses. A client
        // listens nowhere and dials itself.
        for addresses in [known, others].into_iter().filter(|addresses| !addresses.is_empty()) {
            let options = DialOpts::peer_id(link.id)
                .addresses(addresses)
                .condition(PeerCondition::Always)
                .allocate_new_port()
                .build();
            let connection = options.connection_id();
            if self.swarm.dial(options).is_ok() {
                let redial = Redial { link: link.clone(), condition: link.condition() };
                self.mending.dials.insert(connection, redial);
            }
        }
    }

    /// A dial for a link in trouble has failed. If the peer's own machine answers that nothing listens at the port, or another
    /// process answers, the peer's process is gone.
    pub(super) fn not_reached_again(&self, Redial { link, condition }: &Redial, error: &DialError) {
        tracing::debug!(peer = %link.peer, %error, "not reached again");
        let gone = match error {
            DialError::WrongPeerId { address, .. } => {
                was_there(link, address).then(|| "another process is at its address".to_owned())
            }
            DialError::Transport(failures) => failures.iter().find_map(|(address, error)| {
                let refused = has_cause(error, |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused);
                (refused && was_there(link, address)).then(|| "its process is gone".to_owned())
            }),
            _ => None,
        };
        if let Some(why) = gone {
            self.roster.give_up(link, condition, &why);
        }
    }

    /// Finds out which nodes the peers are connected with and this one cannot reach, and reports them to the peers.
    pub(super) fn tell_missing(&mut self) {
        if self.roster.own_hello().task.is_none() {
            return;
        }
        let now = clock::now();
        let before = std::mem::take(&mut self.mending.missing);
        for link in self.roster.links() {
            for known in &link.hello().peers {
                if known.peer != self.roster.me && self.roster.link(&known.peer).is_none() {
                    let since = before.get(&known.peer).copied().unwrap_or(now);
                    self.mending.missing.insert(known.peer.clone(), since);
                }
            }
        }
        let missing = self.mending.missing.iter().filter(|(_, since)| now.duration_since(**since) >= MISSING_LIMIT);
        let missing: Vec<Peer> = missing.take(MAX_KNOWN_PEERS).map(|(peer, _)| peer.clone()).collect();
        self.roster.change(|hello| hello.out_of_reach = missing);
    }

    /// When the driver is needed next, for a link or a tick.
    pub(super) fn next_look(&self) -> Instant {
        let next = clock::now() + TICK * 4;
        self.mending.next.map_or(next, |look| look.min(next))
    }

    /// Whether a peer is connected, or has a link that waits for a connection. Discovery does not dial it then.
    pub(super) fn is_met(&self, peer: &PeerId) -> bool {
        self.swarm.is_connected(peer) || self.is_up(peer)
    }
}

/// Whether the peer was at this address: it was dialled there, or came from that host and states that it listens there. Another
/// address of its list may lead, from this machine, to another machine.
fn was_there(link: &Link, address: &Multiaddr) -> bool {
    let connection = link.connection();
    match &connection.dialled {
        Some(dialled) => *dialled == without_peer(address.clone()),
        None => is_same_host(&connection.remote, address),
    }
}
