//! Who is up: the links to peers, what the peers said of themselves, and who holds which task.
//!
//! Every link is greeted once and ended once, and the [`Inbox`] hears of both in that order. Nothing here touches a
//! socket: a link's frames go into its [`Wire`](super::wire::Wire) and its parcels into its
//! [`Outbound`](super::transfer::Outbound).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use libp2p::PeerId;
use tokio::sync::{Notify, watch};

use super::address::reachable_from;
use super::admission::Gate;
use super::error::{Holder, MeshError};
use super::frame::{self, Kind, Prefix, Refusal};
use super::order::Order;
use super::transfer::Outbound;
use super::wire::Wire;
use super::{Inbox, Mesh};
use crate::plan::Task;
use crate::protocol::{Cluster, Envelope, Hello, Incarnation, KnownPeer, Member, Message, Peer, VERSION};

/// Most peers that are up at once.
pub const MAX_PEERS: usize = 1024;
/// Most peers that a Hello names.
pub const MAX_KNOWN_PEERS: usize = 256;
/// Most addresses of one peer that are looked at.
pub const MAX_ADDRESSES: usize = 16;

/// The connection with one peer, once both have said Hello.
pub struct Link {
    pub peer: Peer,
    pub id: PeerId,
    pub wire: Arc<Wire>,
    pub outbound: Outbound,
    /// The peer is on this machine, by the address it is connected through.
    pub loopback: bool,
    /// Where the peer was dialled, where it was this side that dialled.
    pub dialled: Option<String>,
    /// Address of the peer's end of the connection.
    pub remote: String,
    hello: Mutex<Arc<Hello>>,
    order: Mutex<Order>,
    /// Frames of the control stream that are done with, and whether bulk waits for more of them.
    taken: AtomicU64,
    has_early: AtomicBool,
    ended: watch::Sender<bool>,
}

/// All links of this participant.
pub struct Roster {
    pub me: Peer,
    pub incarnation: Incarnation,
    inbox: Arc<dyn Inbox>,
    /// What this participant says of itself, with every address it has.
    hello: Mutex<Hello>,
    links: RwLock<BTreeMap<Peer, Arc<Link>>>,
    /// Held while a peer comes up or goes down, so that the inbox hears of one after the other.
    turn: Mutex<()>,
    cluster: watch::Sender<Arc<Cluster>>,
    lost: watch::Sender<Option<(Task, Holder)>>,
    /// Messages are delivered; before that, they wait on their connections.
    open: AtomicBool,
    /// Counts who came up.
    changes: watch::Sender<u64>,
    gate: Arc<Gate>,
    /// Something for the driver to look at: a peer came, went, or named others.
    pub news: Notify,
}

impl Link {
    pub fn new(
        peer: Peer,
        id: PeerId,
        wire: Arc<Wire>,
        loopback: bool,
        dialled: Option<String>,
        remote: String,
    ) -> Self {
        Link {
            peer,
            id,
            wire,
            outbound: Outbound::default(),
            loopback,
            dialled,
            remote,
            hello: Mutex::new(Arc::new(unsaid())),
            order: Mutex::default(),
            taken: AtomicU64::new(0),
            has_early: AtomicBool::new(false),
            ended: watch::Sender::new(false),
        }
    }

    /// What the peer last said of itself.
    pub fn hello(&self) -> Arc<Hello> {
        lock(&self.hello).clone()
    }

    pub fn is_over(&self) -> bool {
        *self.ended.borrow()
    }

    fn waits_too_long(&self, limit: usize) -> MeshError {
        MeshError::QueueFull { peer: self.peer.clone(), what: "messages that wait for one before them", limit }
    }

    /// Returns once the link is over.
    pub async fn over(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

impl Roster {
    pub fn new(hello: Hello, me: Peer, inbox: Arc<dyn Inbox>, gate: Arc<Gate>) -> Self {
        let roster = Roster {
            me,
            incarnation: hello.incarnation,
            inbox,
            hello: Mutex::new(hello),
            links: RwLock::default(),
            turn: Mutex::default(),
            cluster: watch::Sender::default(),
            lost: watch::Sender::default(),
            open: AtomicBool::new(false),
            changes: watch::Sender::default(),
            gate,
            news: Notify::new(),
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

    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Who took this participant's task, once somebody has.
    pub fn lost(&self) -> watch::Receiver<Option<(Task, Holder)>> {
        self.lost.subscribe()
    }

    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// From now on messages are delivered.
    pub fn open(&self, mesh: &Mesh) {
        self.inbox.joined(mesh);
        self.open.store(true, Ordering::Release);
        self.links().iter().for_each(|link| link.wire.wake());
    }

    pub fn link(&self, peer: &Peer) -> Option<Arc<Link>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).get(peer).cloned()
    }

    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Whether every node that a peer here tells of is here too.
    pub fn has_met_all(&self) -> bool {
        let links = self.links();
        let is_here = |peer: &Peer| *peer == self.me || links.iter().any(|link| link.peer == *peer);
        links.iter().all(|link| link.hello().peers.iter().all(|known| is_here(&known.peer)))
    }

    /// What this participant says of itself, in full.
    pub fn own_hello(&self) -> Hello {
        lock(&self.hello).clone()
    }

    /// What is said to a peer: addresses of this machine alone only to a peer on this machine, and the nodes it can reach.
    pub fn hello_for(&self, loopback: bool) -> Hello {
        let mut hello = self.own_hello();
        let keep = |addresses: &[String]| -> Vec<String> {
            addresses.iter().filter(|a| reachable_from(a, loopback)).take(MAX_ADDRESSES).cloned().collect()
        };
        hello.addresses = keep(&hello.addresses);
        hello.bulk_addresses = keep(&hello.bulk_addresses);
        let known = self.links().into_iter().filter_map(|link| {
            let theirs = link.hello();
            let addresses: Vec<String> = theirs
                .addresses
                .iter()
                .filter(|a| reachable_from(a, loopback && link.loopback))
                .take(MAX_ADDRESSES)
                .cloned()
                .collect();
            (theirs.task.is_some() && !addresses.is_empty()).then(|| KnownPeer { peer: link.peer.clone(), addresses })
        });
        hello.peers = known.take(MAX_KNOWN_PEERS).collect();
        hello
    }

    /// Changes what this participant says of itself and tells everybody.
    pub fn change(&self, change: impl FnOnce(&mut Hello)) {
        let before = self.own_hello();
        change(&mut lock(&self.hello));
        if before != self.own_hello() {
            self.refresh();
            self.tell();
        }
    }

    /// Sends this participant's Hello to everybody who is up.
    pub fn tell(&self) {
        for link in self.links() {
            let hello = Message::Hello(Box::new(self.hello_for(link.loopback)));
            if let Err(error) = encode_small(&hello.into()).and_then(|frame| link.wire.push(&link.peer, &frame)) {
                tracing::debug!(peer = %link.peer, %error, "a Hello was not sent");
            }
        }
    }

    /// The first Hello on a link. `said` is what this side said of itself on the same link.
    ///
    /// # Errors
    /// Why the peer is refused; it then never was up.
    pub fn greet(&self, link: &Arc<Link>, hello: Hello, said: &Hello) -> Result<(), Refusal> {
        let turn = lock(&self.turn);
        if hello.version != VERSION {
            return Err(Refusal::OtherVersion { version: VERSION });
        }
        if hello.mesh != said.mesh {
            return Err(Refusal::OtherMesh { mesh: said.mesh.clone() });
        }
        let old = self.link(&link.peer);
        if old.is_none() && self.links().len() >= MAX_PEERS {
            return Err(Refusal::Crowded { limit: MAX_PEERS });
        }
        let mut rivals = Vec::new();
        if let Some(task) = &hello.task {
            if said.task.as_ref() == Some(task) {
                if has_it(said, &self.me, &hello, &link.peer) {
                    return Err(Refusal::TaskTaken { task: task.clone(), holder: holder(&self.me, said) });
                }
                self.lose(task.clone(), holder(&link.peer, &hello));
            }
            for rival in self.links().into_iter().filter(|rival| rival.peer != link.peer) {
                let theirs = rival.hello();
                if theirs.task.as_ref() != Some(task) {
                    continue;
                }
                if has_it(&theirs, &rival.peer, &hello, &link.peer) {
                    return Err(Refusal::TaskTaken { task: task.clone(), holder: holder(&rival.peer, &theirs) });
                }
                rivals.push(rival);
            }
        }
        if let Some(old) = old {
            self.end_in_turn(&turn, &old, "its connection was replaced by a new one");
        }
        for rival in rivals {
            let refusal = Refusal::TaskTaken { task: said_task(&hello), holder: holder(&link.peer, &hello) };
            if let Ok(frame) = frame::encode_value(Kind::Refused, &refusal) {
                let _ = rival.wire.push(&rival.peer, &frame);
            }
            self.end_in_turn(&turn, &rival, &format!("its task is held by {}", link.peer));
        }
        let hello = Arc::new(trimmed(hello));
        *lock(&link.hello) = hello.clone();
        self.links.write().unwrap_or_else(PoisonError::into_inner).insert(link.peer.clone(), link.clone());
        self.inbox.up(&link.peer, &hello);
        self.refresh();
        drop(turn);
        self.changes.send_modify(|count| *count += 1);
        self.news.notify_one();
        Ok(())
    }

    /// A later Hello on a link that is up.
    pub fn update(&self, link: &Arc<Link>, hello: Hello) {
        let hello = trimmed(hello);
        let mut current = lock(&link.hello);
        if hello.task != current.task || hello.incarnation != current.incarnation || hello.mesh != current.mesh {
            drop(current);
            return self.end(link, "it changed its name while it was up");
        }
        *current = Arc::new(hello);
        drop(current);
        self.refresh();
        self.news.notify_one();
    }

    /// The link is over, unless it was already: its connection closes, and the inbox hears of it.
    pub fn end(&self, link: &Arc<Link>, why: &str) {
        let turn = lock(&self.turn);
        self.end_in_turn(&turn, link, why);
        drop(turn);
        self.news.notify_one();
    }

    fn end_in_turn(&self, _turn: &MutexGuard<'_, ()>, link: &Arc<Link>, why: &str) {
        link.wire.close();
        if link.ended.send_replace(true) {
            return;
        }
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        let was_up = links.get(&link.peer).is_some_and(|current| Arc::ptr_eq(current, link));
        if was_up {
            links.remove(&link.peer);
        }
        drop(links);
        link.outbound.clear();
        if was_up {
            tracing::debug!(peer = %link.peer, why, "down");
            self.inbox.down(&link.peer, link.hello().task.as_ref(), why);
            self.refresh();
        }
    }

    /// Another holds this participant's task.
    pub fn lose(&self, task: Task, holder: Holder) {
        self.lost.send_if_modified(|lost| lost.is_none().then(|| *lost = Some((task, holder))).is_some());
        self.refresh();
    }

    /// Hands a message of the control stream to the inbox, after the bulk message it must follow.
    ///
    /// # Errors
    /// [`MeshError::QueueFull`] where too many wait for a bulk message that does not come.
    pub fn deliver(&self, link: &Link, after: u64, envelope: Envelope) -> Result<(), MeshError> {
        if after > 0 {
            let mut order = lock(&link.order);
            let ready = order.arrive(0, after, envelope).map_err(|limit| link.waits_too_long(limit))?;
            self.hand_over(link, ready);
        } else if !link.is_over() {
            self.inbox.deliver(&link.peer, envelope);
        }
        Ok(())
    }

    /// A frame of the control stream is done with: bulk that must follow it may be handed over.
    ///
    /// # Errors
    /// As [`Roster::deliver`].
    pub fn took_frame(&self, link: &Link) -> Result<(), MeshError> {
        link.taken.fetch_add(1, Ordering::SeqCst);
        if link.has_early.load(Ordering::SeqCst) {
            self.catch_up(link, &mut lock(&link.order))?;
        }
        Ok(())
    }

    /// Hands a bulk message to the inbox, after what it must follow.
    ///
    /// # Errors
    /// As [`Roster::deliver`].
    pub fn deliver_bulk(&self, link: &Link, prefix: Prefix, envelope: Envelope) -> Result<(), MeshError> {
        // Everything under the lock: another bulk socket's reader must not overtake this one here.
        let mut order = lock(&link.order);
        if prefix.behind > link.taken.load(Ordering::SeqCst) {
            let parked = order.arrive_early(prefix.behind, prefix.sequence, prefix.after, envelope);
            parked.map_err(|limit| link.waits_too_long(limit))?;
            // Said before it is looked again, so that whoever takes the frame meanwhile sees the one or the other.
            link.has_early.store(true, Ordering::SeqCst);
            return self.catch_up(link, &mut order);
        }
        let ready = order.arrive(prefix.sequence, prefix.after, envelope);
        self.hand_over(link, ready.map_err(|limit| link.waits_too_long(limit))?);
        Ok(())
    }

    fn catch_up(&self, link: &Link, order: &mut Order) -> Result<(), MeshError> {
        let taken = link.taken.load(Ordering::SeqCst);
        let (ready, more) = order.caught_up(taken).map_err(|limit| link.waits_too_long(limit))?;
        if !more {
            link.has_early.store(false, Ordering::SeqCst);
        }
        self.hand_over(link, ready);
        Ok(())
    }

    fn hand_over(&self, link: &Link, envelopes: Vec<Envelope>) {
        for envelope in envelopes {
            if !link.is_over() {
                self.inbox.deliver(&link.peer, envelope);
            }
        }
    }

    /// Hands over what this participant sent to itself.
    pub fn deliver_local(&self, envelope: Envelope) {
        self.inbox.deliver(&self.me, envelope);
    }

    fn refresh(&self) {
        let own = self.own_hello();
        let lost = self.lost.borrow().is_some();
        let own = (!lost).then(|| member(&self.me, &own)).flatten();
        let others = self.links().into_iter().filter_map(|link| member(&link.peer, &link.hello()));
        let cluster = Arc::new(Cluster::new(others.chain(own)));
        self.cluster.send_if_modified(|current| {
            let changed = *current != cluster;
            if changed {
                *current = cluster;
            }
            changed
        });
    }
}

/// The frame of a message that is small by its nature.
///
/// # Errors
/// Where it cannot be encoded.
pub fn encode_small(envelope: &Envelope) -> Result<Vec<u8>, MeshError> {
    frame::encode_head(envelope).map(|(_, head)| head)
}

/// Whether `a` has the task that both claim: a settled holder before a newcomer, then the earlier, then the lower number.
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

/// What a peer said before it said anything.
fn unsaid() -> Hello {
    Hello {
        version: 0,
        mesh: String::new(),
        task: None,
        incarnation: Incarnation(0),
        devices: Vec::new(),
        addresses: Vec::new(),
        bulk_addresses: Vec::new(),
        since_unix_ms: 0,
        claims_since_unix_ms: 0,
        settled: false,
        peers: Vec::new(),
    }
}

/// A Hello without what is over the limits, and without addresses that nobody can dial.
fn trimmed(mut hello: Hello) -> Hello {
    hello.peers.truncate(MAX_KNOWN_PEERS);
    for list in [&mut hello.addresses, &mut hello.bulk_addresses]
        .into_iter()
        .chain(hello.peers.iter_mut().map(|p| &mut p.addresses))
    {
        list.truncate(MAX_ADDRESSES);
    }
    hello
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

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
