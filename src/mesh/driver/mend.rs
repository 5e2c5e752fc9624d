//! Links in trouble: dials for another connection, notices that a process is gone, gives up what stays without a word, and
//! tells everybody whom this node cannot reach.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libp2p::PeerId;
use libp2p::core::Multiaddr;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError};

use super::super::address::{multiaddr, socket};
use super::super::cause::has_cause;
use super::super::health::{Health, LINK_LIMIT, RETURN_LIMIT, Remedy};
use super::super::link::{Condition, Link};
use super::{Driver, TICK};
use crate::protocol::Peer;

/// A node that others tell of and that stays out of reach for so long is told of as such.
const MISSING_LIMIT: Duration = Duration::from_secs(2);
/// A driver that looks later than this was stopped or starved: the silence that it finds beyond this time is its own. So a
/// process that was stopped does not take everybody for dead, and one that is starved for good still ends a dead link.
const STANDSTILL: Duration = Duration::from_secs(1);

/// What the driver knows of trouble.
pub struct Mending {
    /// By the link's own number.
    health: BTreeMap<u64, Health>,
    /// Dials under way for links in trouble.
    dials: BTreeMap<ConnectionId, Redial>,
    looked: Instant,
    /// When a link needs the next look.
    pub next: Option<Instant>,
    /// Nodes that others tell of and that this one has no link with, and since when.
    missing: BTreeMap<Peer, Instant>,
}

/// A dial for a link in trouble, and how the link was when it began.
pub struct Redial {
    link: Arc<Link>,
    condition: Condition,
}

impl Mending {
    pub fn new(now: Instant) -> Self {
        Mending { health: BTreeMap::new(), dials: BTreeMap::new(), looked: now, next: None, missing: BTreeMap::new() }
    }

    /// A dial is through. Answers it if it was for a link.
    pub fn dialled(&mut self, connection: ConnectionId) -> Option<Redial> {
        self.dials.remove(&connection)
    }
}

impl Driver {
    /// Looks after every link.
    pub(super) fn mend(&mut self) {
        let now = Instant::now();
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
                // A client, which listens nowhere: it cannot be asked whether it lives.
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
                        Some(broken) => format!("{}, and no other came about", broken.why),
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

    /// Dials the peer of a link beside whatever connection there is.
    fn dial_again(&mut self, link: &Arc<Link>) {
        let addresses =
            link.connection().dialled.iter().chain(&link.hello().addresses).filter_map(|a| socket(a)).collect();
        let addresses: BTreeSet<SocketAddr> = addresses;
        let (known, others): (Vec<Multiaddr>, Vec<Multiaddr>) =
            addresses.into_iter().map(multiaddr).partition(|address| was_there(link, address));
        // Apart, since whoever answers first decides a dial, and at the others it may be somebody else. A client listens
        // nowhere: it is for it to dial.
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

    /// A dial for a link in trouble has failed: where the peer's own machine says that nobody listens there, or somebody
    /// else does, the process is gone.
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

    /// Finds out which nodes are up by what others tell, and out of reach from here, and tells everybody.
    pub(super) fn tell_missing(&mut self) {
        if self.roster.own_hello().task.is_none() {
            return;
        }
        let now = Instant::now();
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
        let missing: Vec<Peer> = missing.map(|(peer, _)| peer.clone()).collect();
        self.roster.change(|hello| hello.out_of_reach = missing);
    }

    /// When a link or a tick needs the driver next.
    pub(super) fn next_look(&self) -> Instant {
        let next = Instant::now() + TICK * 4;
        self.mending.next.map_or(next, |look| look.min(next))
    }

    /// Whether a peer is connected, or has a link that waits for a connection; then it is not discovery's to dial.
    pub(super) fn is_met(&self, peer: &PeerId) -> bool {
        self.swarm.is_connected(peer) || self.is_up(peer)
    }
}

/// Whether the peer was at this address: it was dialled there, or came from that host and says that it listens there. What
/// answers at another address of its list may be another machine, as seen from here.
fn was_there(link: &Link, address: &Multiaddr) -> bool {
    let connection = link.connection();
    let Some(tried) = socket(&address.to_string()) else { return false };
    let dialled = connection.dialled.as_deref().and_then(socket);
    dialled == Some(tried)
        || (dialled.is_none() && socket(&connection.remote).is_some_and(|remote| remote.ip() == tried.ip()))
}
