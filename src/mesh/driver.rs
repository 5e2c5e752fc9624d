//! The task that owns the swarm: it listens, looks for peers, dials them, and knows when all of them were asked.

mod bulk;
mod listen;
mod mend;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use self::mend::Mending;
use futures::StreamExt;
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::core::Multiaddr;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, NetworkBehaviour, Swarm, SwarmEvent};
use libp2p::{PeerId, mdns};
use meshtf_tensor::lock::lock;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::address::{self, local_name, resolved, without_peer};
use super::callers::Callers;
use super::cause::{self, find_cause, miss};
use super::control::End;
use super::denied::Denied;
use super::discovery::{Attempt, Discovery, MAX_TARGETS, Miss, Search, Source, Target, Verdict};
use super::error::MeshError;
use super::health::LINK_LIMIT;
use super::links::{LinkEnded, Links};
use super::port::HandedOver;
use super::registry::Registry;
use super::roster::{Roster, encode_small};
use super::{Admission, MeshConfig, clock, unix_ms};
use crate::protocol::{Message, Peer};

/// Most connections of one peer: both sides dial, and broken ones may linger.
const MAX_CONNECTIONS_A_PEER: u32 = 8;
/// Most targets that are resolved and wait to be dialled; further tasks that resolve names wait.
const MAX_RESOLVED_WAITING: usize = 64;
/// Most peers of the LAN that are remembered.
const MAX_LAN_PEERS: usize = MAX_TARGETS;
/// Most admitted bulk streams that wait for a reader.
const MAX_ARRIVED: usize = 256;
/// How long a node waits for the peers it knows of.
const JOIN_LIMIT: Duration = Duration::from_millis(400);
/// How long a node waits, before it takes its task, for a process of this machine that is alive and has not answered: that
/// process may be starting too, or the machine is under load.
const NEIGHBOUR_LIMIT: Duration = Duration::from_secs(2);
/// How long a node gives another that starts at the same moment to object.
const OBJECTION_TIME: Duration = Duration::from_millis(50);
/// After this time a node has its task for good.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// How long nodes of the LAN get to answer before a denial counts as final.
const LAN_LIMIT: Duration = Duration::from_secs(1);
/// How long the goodbye may take: a peer that does not answer delays the end of a process by as much.
const LEAVE_LIMIT: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(250);
/// For this long the registry folder is read at every tick, later at every fourth.
const EAGER_TIME: Duration = Duration::from_secs(10);
const IDLE_CONNECTION_LIMIT: Duration = Duration::from_secs(10);
const MDNS_QUERY_INTERVAL: Duration = Duration::from_secs(5);

/// The requests of the handle to the driver.
pub enum Command {
    Leave(oneshot::Sender<()>),
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    limits: connection_limits::Behaviour,
    links: Links,
    mdns: Toggle<mdns::tokio::Behaviour>,
}

/// A dial under way.
struct Dial {
    target: Target,
    /// The addresses to dial next if this dial fails, in order; all of one stage at once.
    rest: VecDeque<Vec<Multiaddr>>,
    /// Of the dials before, the failure that got furthest.
    failed: Option<Miss>,
}

pub struct Driver {
    swarm: Swarm<Behaviour>,
    roster: Arc<Roster>,
    commands: mpsc::Receiver<Command>,
    search: Arc<Mutex<Search>>,
    discovery: Discovery,
    callers: Callers,
    registry: Option<Registry>,
    /// The registry folder, if one is to be used; the outcome of reading it, and the peers that answer on the LAN.
    registry_folder: Option<PathBuf>,
    registry_outcome: String,
    lan: Option<BTreeSet<PeerId>>,
    dials: BTreeMap<ConnectionId, Dial>,
    resolved: mpsc::Receiver<(Target, Result<Vec<Multiaddr>, String>)>,
    resolver: mpsc::Sender<(Target, Result<Vec<Multiaddr>, String>)>,
    /// Connected peers whose Hello [`Driver::on_news`] has not read, and that were not refused.
    greeting: BTreeSet<PeerId>,
    addresses: BTreeSet<Multiaddr>,
    started: Instant,
    /// When this node has its task for good.
    settles: Option<Instant>,
    last_tick: Instant,
    ticks: u64,
    told: BTreeSet<Peer>,
    mending: Mending,
}

impl Driver {
    /// Listens, and looks for peers once.
    ///
    /// # Errors
    /// If an address cannot be listened on, or no transport handles it.
    pub async fn start(
        config: MeshConfig,
        roster: Arc<Roster>,
        commands: mpsc::Receiver<Command>,
        search: Arc<Mutex<Search>>,
    ) -> Result<Driver, MeshError> {
        let me = config.identity.public().to_peer_id();
        let (bulk, arrived) = mpsc::channel(MAX_ARRIVED);
        let transport = roster.port().clone().swarm_transport(bulk);
        let limits = ConnectionLimits::default().with_max_established_per_peer(Some(MAX_CONNECTIONS_A_PEER));
        let lan = if config.mdns { lan(me) } else { None };
        let behaviour = Behaviour {
            limits: connection_limits::Behaviour::new(limits),
            links: Links::new(me, roster.clone()),
            mdns: Toggle::from(lan),
        };
        let swarm_config =
            libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(IDLE_CONNECTION_LIMIT);
        let swarm = Swarm::new(transport, behaviour, me, swarm_config);
        tokio::spawn(bulk::take(roster.clone(), arrived));

        let (resolver, resolved) = mpsc::channel(MAX_RESOLVED_WAITING);
        let now = clock::now();
        let mut driver = Driver {
            lan: swarm.behaviour().mdns.is_enabled().then(BTreeSet::new),
            swarm,
            commands,
            search,
            discovery: Discovery::default(),
            callers: Callers::default(),
            registry: None,
            registry_folder: config.registry.clone(),
            registry_outcome: String::new(),
            dials: BTreeMap::new(),
            resolved,
            resolver,
            greeting: BTreeSet::new(),
            addresses: BTreeSet::new(),
            started: now,
            settles: config.task.is_some().then_some(now + SETTLED_AFTER),
            last_tick: now,
            ticks: 0,
            told: BTreeSet::new(),
            mending: Mending::new(now),
            roster,
        };
        // Before mDNS can announce this participant, the processes of this machine can know of a shorter way to it.
        driver.open_registry(&config, me);
        driver.listen(&config).await?;
        driver.look_around(&config)?;
        Ok(driver)
    }

    /// Runs until asked to leave, or until the last handle is gone. `met` is sent once every known peer was asked.
    pub async fn run(mut self, met: oneshot::Sender<()>) {
        let mut met = Some(met);
        let mut lost = self.roster.lost();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let roster = self.roster.clone();
        loop {
            if met.is_some() {
                // The peers that a newly connected peer names are asked, too.
                self.on_news();
                if self.has_met_everybody() || lost.borrow_and_update().is_some() {
                    self.report();
                    let _ = met.take().map(|met| met.send(()));
                }
            }
            self.mend();
            self.dial_due();
            let next = self.next_wake(met.is_some());
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event),
                Some((target, addresses)) = self.resolved.recv() => self.on_resolved(target, addresses),
                () = roster.news.notified() => self.on_news(),
                _ = tick.tick() => self.on_tick(),
                _ = lost.changed() => {}
                () = tokio::time::sleep(next.saturating_duration_since(clock::now())) => {}
                command = self.commands.recv() => {
                    self.leave().await;
                    if let Some(Command::Leave(done)) = command {
                        let _ = done.send(());
                    }
                    return;
                }
            }
        }
    }

    fn open_registry(&mut self, config: &MeshConfig, me: PeerId) {
        let Some(folder) = &config.registry else { return };
        let key = match &config.admission {
            Admission::Key(key) => key.fingerprint(),
            Admission::Open => "open".to_owned(),
        };
        match Registry::open(folder, &config.mesh, key, me) {
            Ok(registry) => self.registry = Some(registry),
            // A read-only file system, for example. There are other ways to be found.
            Err(error) => {
                tracing::warn!("processes of this machine are not found automatically: {error}");
                self.registry_outcome = error.to_string();
            }
        }
    }

    fn look_around(&mut self, config: &MeshConfig) -> Result<(), MeshError> {
        let now = clock::now();
        let (given, remembered) = (config.peers.iter(), config.remembered.iter());
        let named = given
            .map(|address| (address, Source::Configured))
            .chain(remembered.map(|address| (address, Source::Ticket)));
        let others = config.fixed.iter().filter(|(task, _)| config.task.as_ref() != Some(task));
        let named = named.chain(others.map(|(_, address)| (address, Source::ClusterFile)));
        for (address, source) in named {
            if !self.roster.port().handles(address) {
                let why = "no transport supports it".to_owned();
                return Err(MeshError::Address { text: address.to_string(), why });
            }
            self.discovery.learn(Target::Address(address.clone()), vec![address.clone()], source, now);
        }
        self.look_into_registry();
        Ok(())
    }

    fn look_into_registry(&mut self) {
        let Some(registry) = &mut self.registry else { return };
        let addresses: Vec<Multiaddr> = self.addresses.iter().cloned().collect();
        let announced = registry.announce(&addresses);
        let found = registry.look();
        let others = match found.len() {
            0 => "no other process".to_owned(),
            1 => "1 other process".to_owned(),
            n => format!("{n} other processes"),
        };
        self.registry_outcome = match announced {
            Ok(()) => others,
            Err(error) => format!("{others}; {error}"),
        };
        self.discovery.forget(Source::Registry, |peer| found.contains_key(peer));
        let now = clock::now();
        for (peer, addresses) in found {
            self.discovery.learn(Target::Peer(peer), addresses, Source::Registry, now);
        }
    }

    fn has_met_everybody(&self) -> bool {
        let asked = self.age();
        let objection = self.registry.is_some() && self.settles.is_some();
        let greeted = self.greeting.is_empty();
        if asked >= JOIN_LIMIT {
            let claims = self.settles.is_some() && asked < NEIGHBOUR_LIMIT;
            return !claims || (greeted && self.discovery.has_tried(Source::Registry));
        }
        greeted && self.discovery.is_settled() && (!objection || asked >= OBJECTION_TIME)
    }

    /// How long ago this driver started.
    fn age(&self) -> Duration {
        clock::now().duration_since(self.started)
    }

    fn next_wake(&self, joining: bool) -> Instant {
        let mut next = self.next_look();
        if let Some(due) = self.discovery.next_due(|peer| self.is_met(peer)) {
            next = next.min(due);
        }
        if joining {
            let limits = [OBJECTION_TIME, JOIN_LIMIT, NEIGHBOUR_LIMIT].map(|limit| self.started + limit);
            next = limits.into_iter().find(|limit| *limit > clock::now()).map_or(next, |limit| next.min(limit));
        }
        next
    }

    fn is_up(&self, peer: &PeerId) -> bool {
        self.roster.link(&Peer::new(peer.to_string())).is_some()
    }

    fn dial_due(&mut self) {
        let (swarm, roster) = (&self.swarm, &self.roster);
        let is_met = |peer: &PeerId| swarm.is_connected(peer) || roster.link(&Peer::new(peer.to_string())).is_some();
        for (target, addresses) in self.discovery.due(clock::now(), is_met) {
            let resolver = self.resolver.clone();
            match target {
                Target::Peer(_) => {
                    let addresses = addresses.into_iter().map(without_peer);
                    let port = self.roster.port();
                    let addresses = addresses.filter(|address| port.handles(address)).collect();
                    self.on_resolved(target, Ok(addresses));
                }
                Target::Address(ref address) => {
                    let address = without_peer(address.clone());
                    tokio::spawn(async move {
                        let found = address::resolve_to_dial(&address).await;
                        let _ = resolver.send((target, found)).await;
                    });
                }
            }
        }
    }

    fn on_resolved(&mut self, target: Target, addresses: Result<Vec<Multiaddr>, String>) {
        let miss = match (&target, addresses) {
            (_, Err(why)) => Miss::new(Verdict::Unresolved, why),
            (_, Ok(addresses)) if addresses.is_empty() => Miss::new(Verdict::Pending, "it has no address"),
            (Target::Peer(_), Ok(addresses)) => {
                let rest = address::in_stages(addresses, address::is_own).into();
                return self.dial_next(Dial { target, rest, failed: None });
            }
            (Target::Address(_), Ok(addresses)) => {
                let rest = addresses.into_iter().map(|address| vec![address]).collect();
                return self.dial_next(Dial { target, rest, failed: None });
            }
        };
        self.discovery.outcome(&target, Err(miss), clock::now());
    }

    /// Dials the next stage. All addresses of a peer in one stage are dialled at once, and the first that answers is taken.
    fn dial_next(&mut self, mut dial: Dial) {
        let mut addresses = dial.rest.pop_front().unwrap_or_default();
        let options = match &dial.target {
            Target::Peer(peer) => DialOpts::peer_id(*peer)
                .addresses(addresses)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .allocate_new_port()
                .build(),
            Target::Address(address) => {
                let address = addresses.pop().unwrap_or_else(|| address.clone());
                DialOpts::unknown_peer_id().address(address).allocate_new_port().build()
            }
        };
        self.dial(options, dial);
    }

    /// A dial failed: the next stage is dialled, unless that is useless.
    fn not_reached(&mut self, mut dial: Dial, miss: Miss) {
        // The process at this machine's own address proves nothing about a peer that has other addresses.
        let is_elsewhere = matches!(dial.target, Target::Peer(_)) && is_own(&miss);
        let furthest = match dial.failed.take() {
            Some(failed) if failed.verdict >= miss.verdict || is_elsewhere => failed,
            _ => miss,
        };
        if furthest.verdict.is_final() || dial.rest.is_empty() {
            return self.discovery.outcome(&dial.target, Err(furthest), clock::now());
        }
        // A missing Unix socket proves nothing about a peer that has other addresses.
        dial.failed = Some(furthest).filter(|miss| miss.address.as_ref().is_none_or(|at| local_name(at).is_none()));
        self.dial_next(dial);
    }

    fn dial(&mut self, options: DialOpts, dial: Dial) {
        let id = options.connection_id();
        let target = dial.target.clone();
        self.dials.insert(id, dial);
        if let Err(error) = self.swarm.dial(options) {
            self.dials.remove(&id);
            self.discovery.outcome(&target, Err(miss(&error)), clock::now());
        }
    }

    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        let now = clock::now();
        match event {
            SwarmEvent::NewListenAddr { address, .. } => {
                self.addresses.insert(address);
                self.tell_addresses();
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                self.addresses.remove(&address);
                self.tell_addresses();
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                if let Some(dial) = self.dials.remove(&connection_id) {
                    self.discovery.outcome(&dial.target, Ok(peer_id), now);
                }
                let _reached = self.mending.dialled(connection_id);
                if !self.is_up(&peer_id) {
                    self.greeting.insert(peer_id);
                }
            }
            SwarmEvent::ConnectionClosed { peer_id, num_established: 0, .. } => {
                self.greeting.remove(&peer_id);
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                if let Some(redial) = self.mending.dialled(connection_id) {
                    return self.not_reached_again(&redial, &error);
                }
                let Some(dial) = self.dials.remove(&connection_id) else { return };
                tracing::debug!(target = ?dial.target, %error, "not reached");
                self.not_reached(dial, miss(&error));
            }
            SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
                if let Some(denied) = find_cause::<Denied>(&error) {
                    tracing::info!(from = %send_back_addr, "denied entry: {denied}");
                    self.callers.note(&send_back_addr, *denied, now);
                } else if find_cause::<HandedOver>(&error).is_none() {
                    tracing::debug!(from = %send_back_addr, "denied entry: {error}");
                }
            }
            SwarmEvent::Behaviour(BehaviourEvent::Links(LinkEnded { peer, end })) => {
                self.greeting.remove(&peer);
                match end {
                    End::Refused(why) => self.discovery.turned_away(&peer, cause::refused(&why), &why.to_string(), now),
                    End::Left(_) => self.discovery.farewell(&peer),
                    End::Broken { .. } | End::Peer(_) | End::Closed => {}
                }
            }
            SwarmEvent::Behaviour(BehaviourEvent::Mdns(mdns::Event::Discovered(found))) => {
                let mut peers: BTreeMap<PeerId, Vec<Multiaddr>> = BTreeMap::new();
                for (peer, address) in found {
                    peers.entry(peer).or_default().push(without_peer(address));
                }
                // If it is a process of this machine, there is a shorter way than the network's.
                self.look_into_registry();
                for (peer, addresses) in peers {
                    let lan = self.lan.get_or_insert_default();
                    if lan.len() < MAX_LAN_PEERS {
                        lan.insert(peer);
                    }
                    self.discovery.learn(Target::Peer(peer), addresses, Source::Lan, now);
                }
            }
            SwarmEvent::Behaviour(BehaviourEvent::Mdns(mdns::Event::Expired(gone))) => {
                let lan = self.lan.get_or_insert_default();
                gone.iter().for_each(|(peer, _)| {
                    lan.remove(peer);
                });
                let lan = lan.clone();
                self.discovery.forget(Source::Lan, |peer| lan.contains(peer));
            }
            _ => {}
        }
    }

    fn tell_addresses(&mut self) {
        let addresses: Vec<String> = self.addresses.iter().map(Multiaddr::to_string).collect();
        self.roster.change(|hello| hello.addresses = addresses);
        if let Some(registry) = &mut self.registry {
            let addresses: Vec<Multiaddr> = self.addresses.iter().cloned().collect();
            if let Err(error) = registry.announce(&addresses) {
                self.registry_outcome = error.to_string();
            }
        }
    }

    /// Learns from the peers' Hellos: which peers they know, and their own addresses in case the connection breaks.
    fn on_news(&mut self) {
        let now = clock::now();
        let me = *self.swarm.local_peer_id();
        for link in self.roster.links() {
            self.greeting.remove(&link.id);
            let hello = link.hello();
            for known in &hello.peers {
                if let Ok(peer) = known.peer.as_str().parse::<PeerId>()
                    && !known.addresses.is_empty()
                    && peer != me
                    && !self.swarm.is_connected(&peer)
                {
                    self.discovery.learn(Target::Peer(peer), resolved(&known.addresses), Source::Hearsay, now);
                }
            }
            if hello.task.is_some() {
                let dialled = link.connection().dialled.clone();
                let addresses = dialled.clone().into_iter().chain(resolved(&hello.addresses)).collect();
                self.discovery.learn(Target::Peer(link.id), addresses, Source::Hearsay, now);
                if let Some(dialled) = dialled {
                    self.discovery.met_at(&link.id, dialled);
                }
                self.discovery.outcome(&Target::Peer(link.id), Ok(link.id), now);
            }
        }
    }

    fn on_tick(&mut self) {
        let now = clock::now();
        let stood_still = now.duration_since(self.last_tick);
        self.last_tick = now;
        self.ticks += 1;
        if let Some(settles) = self.settles {
            if stood_still >= LINK_LIMIT {
                // This process was suspended, and its peers took it for dead: it is a newcomer again, so that a node that took
                // its task over meanwhile keeps it.
                self.settles = Some(now + SETTLED_AFTER);
                self.roster.change(|hello| (hello.claims_since_unix_ms, hello.settled) = (unix_ms(), false));
            } else if now >= settles {
                self.roster.change(|hello| hello.settled = true);
            }
        }
        if self.age() < EAGER_TIME || self.ticks.is_multiple_of(4) {
            self.look_into_registry();
        }
        let nodes: BTreeSet<Peer> =
            self.roster.cluster().borrow().members().map(|member| member.peer.clone()).collect();
        if nodes != self.told {
            self.told = nodes;
            self.roster.tell();
        }
        self.tell_missing();
        self.report();
    }

    fn report(&self) {
        let mut attempts = Vec::new();
        if let Some(folder) = &self.registry_folder {
            let place = folder.display().to_string();
            attempts.push(Attempt::way(Source::Registry, place, 0, self.registry_outcome.clone()));
        }
        if let Some(lan) = &self.lan {
            let outcome = match lan.len() {
                0 => "no peer answers".to_owned(),
                1 => "1 peer answers".to_owned(),
                n => format!("{n} peers answer"),
            };
            attempts.push(Attempt::way(Source::Lan, "on the LAN".to_owned(), lan.len(), outcome));
        }
        attempts.extend(self.discovery.attempts());
        attempts.extend(self.callers.attempts(&attempts, clock::now()));
        // If only an old ticket's address refused this participant, a node on the LAN may still admit it.
        let asked_lan = self.lan.is_none() || self.age() >= LAN_LIMIT;
        let turned_away = self.discovery.is_turned_away(if asked_lan { Source::Ticket } else { Source::ClusterFile });
        *lock(&self.search) = Search { attempts, turned_away };
    }

    async fn leave(&mut self) {
        self.registry = None;
        let goodbye = encode_small(&Message::Goodbye { reason: "it stopped".to_owned() }.into());
        for link in self.roster.links() {
            if let Ok(frame) = &goodbye {
                link.say(frame.clone());
            }
            link.connection().wire.close();
        }
        let deadline = tokio::time::Instant::now() + LEAVE_LIMIT;
        while self.swarm.connected_peers().next().is_some() {
            if tokio::time::timeout_at(deadline, self.swarm.select_next_some()).await.is_err() {
                break;
            }
        }
        for link in self.roster.links() {
            self.roster.end(&link, "this participant left");
        }
    }
}

/// Whether a dial failed at an address that this machine has itself.
fn is_own(miss: &Miss) -> bool {
    miss.address.as_ref().and_then(address::ip).is_some_and(address::is_own)
}

fn lan(me: PeerId) -> Option<mdns::tokio::Behaviour> {
    let config = mdns::Config { query_interval: MDNS_QUERY_INTERVAL, ..mdns::Config::default() };
    mdns::tokio::Behaviour::new(config, me)
        .inspect_err(|error| tracing::warn!("peers on the local network are not found automatically: {error}"))
        .ok()
}
