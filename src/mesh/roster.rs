//! The roster of a participant: its links to peers, the peers' Hellos, and the holders of the tasks.
//!
//! Every link begins once and ends once, and the [`Inbox`] is notified of both in that order. This module touches no socket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use libp2p::PeerId;
use meshtf_tensor::device::Task;
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Budget;
use tokio::sync::{Notify, watch};

use super::address::{ip, is_reachable_from};
use super::clock;
use super::error::{Holder, MeshError};
use super::frame::{self, Kind, LinkNumbers, Prefix, Refusal, Standing, Taken};
use super::link::{Condition, Connection, Link};
use super::port::Port;
use super::traffic::Traffic;
use super::{Inbox, Mesh};
use crate::protocol::{Cluster, Envelope, Hello, Incarnation, KnownPeer, Member, Message, Peer, TaskDoors, VERSION};

/// Most peers that are up at once.
pub const MAX_PEERS: usize = 1024;
/// Most peers that a Hello names.
pub const MAX_KNOWN_PEERS: usize = 256;
/// Most addresses of one peer that are read.
pub const MAX_ADDRESSES: usize = 16;
/// How long after the end of a link the inbox is notified that the other nodes had time to notice too: they may have heard the
/// peer up to one sign of life later.
const PARTED_AFTER: Duration = Duration::from_millis(1500);
/// Most links that ended within that time; beyond it, the oldest is reported at once.
const MAX_PARTED: usize = 4 * MAX_PEERS;

/// The first messages of this side on a connection.
pub struct Said {
    pub hello: Hello,
    pub standing: Standing,
}

/// Why two participants that said Hello have no link.
pub enum Unmet {
    Refused(Refusal),
    /// This side's first messages are out of date by now, or the peer's make no sense. Another connection has to decide.
    Again(String),
}

/// A link that ended, to report once the other nodes had time to notice it too.
struct Parted {
    due: Instant,
    peer: Peer,
    task: Task,
    why: String,
}

/// All links of this participant.
pub struct Roster {
    pub me: Peer,
    pub incarnation: Incarnation,
    inbox: Arc<dyn Inbox>,
    /// This participant's Hello, with every address it has.
    hello: Mutex<Hello>,
    links: RwLock<BTreeMap<Peer, Arc<Link>>>,
    /// The traffic of links that are over.
    past: Traffic,
    /// Held while a peer comes up or goes down, so that the inbox is notified of one after the other.
    turn: Mutex<()>,
    /// Held while the cluster is put together.
    refreshing: Mutex<()>,
    cluster: watch::Sender<Arc<Cluster>>,
    lost: watch::Sender<Option<(Task, Holder)>>,
    /// Whether messages are delivered; before that, they wait on their connections.
    open: AtomicBool,
    /// Counts the peers that came up.
    changes: watch::Sender<u64>,
    port: Arc<Port>,
    /// The memory budget of this participant.
    pub budget: Arc<Budget>,
    /// Wakes the driver: a peer came, went or named other peers, or its connection broke.
    pub news: Notify,
    parted: Mutex<VecDeque<Parted>>,
    /// For a spare: the tasks whose process was lost and whose name nobody has taken.
    lost_tasks: watch::Sender<BTreeSet<Task>>,
}

impl Roster {
    pub fn new(hello: Hello, me: Peer, inbox: Arc<dyn Inbox>, port: Arc<Port>, budget: Arc<Budget>) -> Self {
        let roster = Roster {
            me,
            incarnation: hello.incarnation,
            inbox,
            hello: Mutex::new(hello),
            links: RwLock::default(),
            past: Traffic::default(),
            turn: Mutex::default(),
            refreshing: Mutex::default(),
            cluster: watch::Sender::default(),
            lost: watch::Sender::default(),
            open: AtomicBool::new(false),
            changes: watch::Sender::default(),
            port,
            budget,
            news: Notify::new(),
            parted: Mutex::default(),
            lost_tasks: watch::Sender::default(),
        };
        roster.refresh();
        roster
    }

    pub fn cluster(&self) -> watch::Receiver<Arc<Cluster>> {
        self.cluster.subscribe()
    }

    /// Changes with every peer that comes up.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The port, through which this participant is reached and reaches its peers.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// The node that took this participant's task, once one has.
    pub fn lost(&self) -> watch::Receiver<Option<(Task, Holder)>> {
        self.lost.subscribe()
    }

    /// The tasks whose process was lost, for a spare.
    pub fn lost_tasks(&self) -> watch::Receiver<BTreeSet<Task>> {
        self.lost_tasks.subscribe()
    }

    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Starts the delivery of messages.
    pub fn open(&self, mesh: &Mesh) {
        self.inbox.joined(mesh);
        self.open.store(true, Ordering::Release);
        self.links().iter().for_each(|link| link.connection().wire.wake());
    }

    pub fn link(&self, peer: &Peer) -> Option<Arc<Link>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).get(peer).cloned()
    }

    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Whether every node that a connected peer names, with an address, is connected too.
    pub fn has_met_all(&self) -> bool {
        let links = self.links();
        let is_here = |peer: &Peer| *peer == self.me || links.iter().any(|link| link.peer == *peer);
        let told = |known: &KnownPeer| known.addresses.is_empty() || is_here(&known.peer);
        links.iter().all(|link| link.hello().peers.iter().all(told))
    }

    /// Whether a connected peer names a node that holds `task`.
    pub fn is_told_of(&self, task: &Task) -> bool {
        self.links().iter().any(|link| link.hello().peers.iter().any(|known| known.task == *task))
    }

    /// Whether the node `peer` states that it is connected with the node of `task`, or is it.
    pub fn is_met_by(&self, task: &Task, peer: &Peer) -> bool {
        let Some(hello) = self.link(peer).map(|link| link.hello()) else { return false };
        // A peer that names as many peers as it may can know more.
        let is_named = || hello.peers.len() >= MAX_KNOWN_PEERS || hello.peers.iter().any(|known| known.task == *task);
        hello.task.as_ref() == Some(task) || is_named()
    }

    /// The addresses at which TensorFlow's clients reach the nodes of tasks, this participant's own first.
    pub fn doors(&self) -> Vec<TaskDoors> {
        let own = doors_of(&self.own_hello(), true);
        let others = self.links().into_iter().filter_map(|link| doors_of(&link.hello(), link.connection().loopback));
        own.into_iter().chain(others).collect()
    }

    /// This participant's complete Hello.
    pub fn own_hello(&self) -> Hello {
        lock(&self.hello).clone()
    }

    /// The Hello for a peer, with the nodes that this one is connected with. Loopback addresses are only for peers on this
    /// machine.
    pub fn hello_for(&self, loopback: bool) -> Hello {
        let mut hello = self.own_hello();
        hello.addresses = reachable(&hello.addresses, loopback);
        let known = self.links().into_iter().filter_map(|link| {
            let theirs = link.hello();
            let theirs_loopback = link.connection().loopback;
            let addresses = reachable(&theirs.addresses, loopback && theirs_loopback);
            theirs.task.clone().map(|task| KnownPeer { peer: link.peer.clone(), task, addresses })
        });
        hello.peers = known.take(MAX_KNOWN_PEERS).collect();
        hello
    }

    /// Changes this participant's Hello and sends it to every peer.
    pub fn change(&self, change: impl FnOnce(&mut Hello)) {
        let before = self.own_hello();
        change(&mut lock(&self.hello));
        if before != self.own_hello() {
            self.refresh();
            self.tell();
        }
    }

    /// Sends this participant's Hello to every peer that is up.
    pub fn tell(&self) {
        for link in self.links() {
            let hello = Message::Hello(Box::new(self.hello_for(link.connection().loopback)));
            match encode_small(&hello.into()) {
                // A link without a connection needs none: the next connection begins with a Hello.
                Ok(frame) => link.say(frame),
                Err(error) => tracing::debug!(peer = %link.peer, %error, "a Hello was not sent"),
            }
        }
    }

    /// The first messages on a new connection with a peer.
    pub fn first_words(&self, peer: &Peer, loopback: bool) -> Said {
        let fresh = crate::random::u64();
        let none = || Standing { fresh, link: None, taken: Taken::default(), bulk_beyond: Vec::new() };
        let standing = self.link(peer).map_or_else(none, |link| link.standing(fresh));
        Said { hello: self.hello_for(loopback), standing }
    }

    /// A peer said Hello on a connection on which this side sent `said`: their link continues over it, or begins.
    ///
    /// # Errors
    /// Why there is no link.
    pub fn greet(
        &self,
        (peer, id): (&Peer, PeerId),
        connection: &Arc<Connection>,
        (hello, standing): (Hello, &Standing),
        Said { hello: said, standing: said_standing }: &Said,
    ) -> Result<Arc<Link>, Unmet> {
        let turn = lock(&self.turn);
        if hello.version != VERSION {
            return Err(Unmet::Refused(Refusal::OtherVersion { version: VERSION }));
        }
        if hello.mesh != said.mesh {
            return Err(Unmet::Refused(Refusal::OtherMesh { mesh: said.mesh.clone() }));
        }
        let old = self.link(peer);
        if let Some(numbers) = said_standing.goes_on(standing) {
            let Some(link) = old.filter(|link| link.numbers == numbers) else {
                return Err(Unmet::Again("the link ended while it was being restored".to_owned()));
            };
            link.attach(connection, standing).map_err(Unmet::Again)?;
            drop(turn);
            self.inbox.mended(peer);
            self.update(&link, hello);
            self.tell_changes(&link, said);
            return Ok(link);
        }
        if old.as_ref().is_some_and(|old| said_standing.link != Some(old.numbers)) {
            return Err(Unmet::Again("another connection was faster".to_owned()));
        }
        if old.is_none() && self.links().len() >= MAX_PEERS {
            self.inbox.limit_reached(&format!("another peer was refused: {MAX_PEERS} are up"));
            return Err(Unmet::Refused(Refusal::Crowded { limit: MAX_PEERS }));
        }
        let mut rivals = Vec::new();
        if let Some(task) = &hello.task {
            let taken = |holder| Unmet::Refused(Refusal::TaskTaken { task: task.clone(), holder });
            if said.task.as_ref() == Some(task) {
                if has_it(said, &self.me, &hello, peer) {
                    return Err(taken(holder(&self.me, said)));
                }
                self.lose(task.clone(), holder(peer, &hello));
            }
            for rival in self.links().into_iter().filter(|rival| rival.peer != *peer) {
                let theirs = rival.hello();
                if theirs.task.as_ref() != Some(task) {
                    continue;
                }
                if has_it(&theirs, &rival.peer, &hello, peer) {
                    // A process that was killed takes a moment to be gone; its successor may be faster.
                    if !rival.is_attached() {
                        return Err(Unmet::Again("the holder of its task is being looked for".to_owned()));
                    }
                    return Err(taken(holder(&rival.peer, &theirs)));
                }
                rivals.push(rival);
            }
        }
        if let Some(old) = old {
            self.end_in_turn(&turn, &old, "it had already closed the link");
        }
        for rival in rivals {
            let refusal = Refusal::TaskTaken { task: said_task(&hello), holder: holder(peer, &hello) };
            if let Ok(frame) = frame::encode_value(Kind::Refused, &refusal) {
                rival.say(frame);
            }
            self.end_in_turn(&turn, &rival, &format!("its task is held by {peer}"));
        }
        let hello = trimmed(hello);
        let numbers = LinkNumbers { own: said_standing.fresh, theirs: standing.fresh };
        let link = Arc::new(Link::new(peer.clone(), id, numbers, connection.clone(), hello.clone()));
        self.links.write().unwrap_or_else(PoisonError::into_inner).insert(peer.clone(), link.clone());
        if let Some(task) = &hello.task {
            self.lost_tasks.send_if_modified(|lost| lost.remove(task));
        }
        self.inbox.up(peer, &hello);
        self.refresh();
        drop(turn);
        self.tell_changes(&link, said);
        self.changes.send_modify(|count| *count += 1);
        self.news.notify_one();
        Ok(link)
    }

    /// Says Hello again if this participant's Hello has changed since the one on this connection. Changes until now were not
    /// sent on it, as it carried no link.
    fn tell_changes(&self, link: &Link, said: &Hello) {
        let hello = self.hello_for(link.connection().loopback);
        // The list of other peers is sent again and again anyway.
        let of_itself = |hello: &Hello| Hello { peers: Vec::new(), ..hello.clone() };
        if of_itself(&hello) != of_itself(said)
            && let Ok(frame) = encode_small(&Message::Hello(Box::new(hello)).into())
        {
            link.say(frame);
        }
    }

    /// A later Hello on a link that is up.
    pub fn update(&self, link: &Arc<Link>, hello: Hello) {
        let hello = trimmed(hello);
        let current = link.hello();
        if hello.task != current.task || hello.incarnation != current.incarnation || hello.mesh != current.mesh {
            return self.end(link, "its task, incarnation or mesh changed while it was connected");
        }
        link.set_hello(hello);
        self.refresh();
        self.news.notify_one();
    }

    /// A connection is over. The link that it carried, if any, waits for another one.
    pub fn broke(&self, link: &Link, connection: &Arc<Connection>, why: &str, hung_up: bool) {
        if link.detach(connection, why, hung_up) && !link.is_over() {
            self.inbox.broke(&link.peer, why);
            self.news.notify_one();
        }
    }

    /// The link is over, unless it was already: its connection closes, and the inbox is notified.
    pub fn end(&self, link: &Arc<Link>, why: &str) {
        let turn = lock(&self.turn);
        self.end_in_turn(&turn, link, why);
        drop(turn);
        self.news.notify_one();
    }

    /// As [`Roster::end`], unless the link has recovered since it was in `condition`.
    pub fn give_up(&self, link: &Arc<Link>, condition: &Condition, why: &str) {
        let turn = lock(&self.turn);
        if link.is_better_than(condition) {
            return;
        }
        self.end_in_turn(&turn, link, why);
        drop(turn);
        self.news.notify_one();
    }

    /// Bytes sent and received on all links since the start.
    pub fn traffic(&self) -> (u64, u64) {
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        links
            .values()
            .map(|link| link.traffic.bytes())
            .fold(self.past.bytes(), |(sent, received), link| (sent + link.0, received + link.1))
    }

    fn end_in_turn(&self, _turn: &MutexGuard<'_, ()>, link: &Arc<Link>, why: &str) {
        if !link.finish() {
            return;
        }
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        if links.get(&link.peer).is_some_and(|current| Arc::ptr_eq(current, link)) {
            links.remove(&link.peer);
            self.past.add(&link.traffic);
        }
        drop(links);
        // A thread that is delivering a message of it finishes first; later ones see that the link is over.
        link.settle();
        let task = link.hello().task.clone();
        self.inbox.down(&link.peer, task.as_ref(), why);
        self.refresh();
        if let Some(task) = task {
            let is_noted = || self.lost_tasks.borrow().len() < MAX_PEERS && !link.has_left();
            if self.own_hello().is_spare && is_noted() {
                self.lost_tasks.send_if_modified(|lost| lost.insert(task.clone()));
            }
            let (due, peer, why) = (clock::now() + PARTED_AFTER, link.peer.clone(), why.to_owned());
            lock(&self.parted).push_back(Parted { due, peer, task, why });
        }
    }

    /// Notifies the inbox of the links that ended [`PARTED_AFTER`] ago.
    pub fn tell_parted(&self, now: Instant) {
        loop {
            let next = {
                let mut parted = lock(&self.parted);
                let in_time = parted.len() <= MAX_PARTED;
                if parted.front().is_none_or(|next| next.due > now && in_time) {
                    return;
                }
                parted.pop_front()
            };
            if let Some(Parted { peer, task, why, .. }) = next {
                self.inbox.parted(&peer, &task, &why);
            }
        }
    }

    /// Another node holds this participant's task.
    pub fn lose(&self, task: Task, holder: Holder) {
        self.lost.send_if_modified(|lost| lost.is_none().then(|| *lost = Some((task, holder))).is_some());
        self.refresh();
    }

    /// Passes a message of the control stream to the inbox, once, after the bulk message it must follow.
    ///
    /// # Errors
    /// If messages before it are missing, or too many wait for a bulk message that does not come.
    pub fn deliver(&self, link: &Link, prefix: Prefix, envelope: Envelope) -> Result<(), MeshError> {
        self.around(|| {
            link.take_frame(prefix.number, prefix.after, envelope, |envelope| self.hand_over(link, envelope))
        })
    }

    /// Passes a bulk message to the inbox, once, after the messages it must follow.
    ///
    /// # Errors
    /// If too many wait for one before them.
    pub fn deliver_bulk(&self, link: &Link, prefix: Prefix, envelope: Envelope) -> Result<(), MeshError> {
        self.around(|| link.take_bulk(prefix, envelope, |envelope| self.hand_over(link, envelope)))
    }

    fn around(&self, deliver: impl FnOnce() -> Result<(), MeshError>) -> Result<(), MeshError> {
        let (mut deliver, mut result) = (Some(deliver), Ok(()));
        self.inbox.around(&mut || {
            if let Some(deliver) = deliver.take() {
                result = deliver();
            }
        });
        result
    }

    fn hand_over(&self, link: &Link, envelope: Envelope) {
        if !link.is_over() {
            self.inbox.deliver(&link.peer, envelope);
        }
    }

    /// Delivers a message of this participant to itself.
    pub fn deliver_local(&self, envelope: Envelope) {
        self.inbox.deliver(&self.me, envelope);
    }

    fn refresh(&self) {
        // Held from reading to publishing, so that an older cluster is not published over a newer one.
        let _refreshing = lock(&self.refreshing);
        let own = self.own_hello();
        let lost = self.lost.borrow().is_some();
        let own = (!lost).then(|| member(&self.me, &own)).flatten();
        let others = self.links().into_iter().filter_map(|link| member(&link.peer, &link.hello()));
        let cluster = Cluster::new(others.chain(own));
        let apart: Vec<(Task, Task)> = {
            let own = self.own_hello().out_of_reach.into_iter().map(|peer| (self.me.clone(), peer));
            let told = self.links().into_iter().flat_map(|link| {
                let missing = link.hello().out_of_reach.clone();
                missing.into_iter().map(move |peer| (link.peer.clone(), peer))
            });
            let task = |peer: &Peer| cluster.member_of(peer).map(|member| member.task.clone());
            own.chain(told).filter_map(|(from, to)| Some((task(&from)?, task(&to)?))).collect()
        };
        let cluster = Arc::new(cluster.with_apart(apart));
        self.cluster.send_if_modified(|current| {
            let changed = *current != cluster;
            if changed {
                *current = cluster;
            }
            changed
        });
    }
}

/// The frame of a message that is always small.
///
/// # Errors
/// If it cannot be encoded.
pub fn encode_small(envelope: &Envelope) -> Result<Vec<u8>, MeshError> {
    frame::encode_head(envelope).map(|(_, head)| head)
}

/// Whether `a` keeps the task that both claim: a settled holder before a newcomer, then the earlier, then the lower number.
/// Both sides of a link compare the same two Hellos, so they agree.
fn has_it(a: &Hello, a_peer: &Peer, b: &Hello, b_peer: &Peer) -> bool {
    let rank =
        |hello: &Hello, peer: &Peer| (!hello.settled, hello.claims_since_unix_ms, hello.incarnation, peer.clone());
    rank(a, a_peer) < rank(b, b_peer)
}

fn holder(peer: &Peer, hello: &Hello) -> Holder {
    Holder { peer: peer.clone(), addresses: hello.addresses.clone(), since_unix_ms: hello.since_unix_ms }
}

fn said_task(hello: &Hello) -> Task {
    hello.task.clone().unwrap_or_else(|| Task::new("", 0))
}

/// The addresses that are useful to a peer, which is on the same machine or is not.
fn reachable(addresses: &[String], same_machine: bool) -> Vec<String> {
    addresses.iter().filter(|address| is_reachable_from(address, same_machine)).take(MAX_ADDRESSES).cloned().collect()
}

/// A Hello without the entries that exceed the limits.
fn trimmed(mut hello: Hello) -> Hello {
    hello.peers.truncate(MAX_KNOWN_PEERS);
    hello.out_of_reach.truncate(MAX_KNOWN_PEERS);
    let of_peers = hello.peers.iter_mut().map(|known| &mut known.addresses);
    for addresses in std::iter::once(&mut hello.addresses).chain(of_peers) {
        addresses.truncate(MAX_ADDRESSES);
    }
    hello
}

/// The doors of a node, if it holds a task and has some.
fn doors_of(hello: &Hello, is_here: bool) -> Option<TaskDoors> {
    let task = hello.task.clone().filter(|_| !hello.doors.is_empty())?;
    let machine = hello.addresses.iter().filter_map(|address| ip(&address.parse().ok()?)).collect();
    Some(TaskDoors { task, doors: hello.doors.clone(), machine, is_here })
}

fn member(peer: &Peer, hello: &Hello) -> Option<Member> {
    Some(Member {
        task: hello.task.clone()?,
        peer: peer.clone(),
        incarnation: hello.incarnation,
        devices: hello.devices.clone(),
        addresses: hello.addresses.clone(),
        since_unix_ms: hello.since_unix_ms,
    })
}
