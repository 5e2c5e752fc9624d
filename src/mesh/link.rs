//! A link with a peer, and the connections that carry it.
//!
//! A link begins when two participants have said Hello and outlives its connections: messages that were sent and not
//! acknowledged are sent again on the next one, and duplicates are dropped. It ends with a goodbye, with the peer's process, or
//! when the peer was silent for too long. Then the messages under way on it are lost, and the next connection begins another
//! link.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libp2p::PeerId;
use meshtf_tensor::lock::lock;
use tokio::sync::watch;

use super::address::Multiaddr;
use super::clock;
use super::error::MeshError;
use super::frame::{self, Kind, LinkNumbers, Standing, Taken};
use super::order::{Arrivals, Disorder};
use super::sent::Sent;
use super::traffic::Traffic;
use super::transfer::Outbound;
use super::wire::Wire;
use crate::protocol::status::{LinkState, PeerStatus};
use crate::protocol::{Envelope, Hello, Peer};

/// Messages of the control stream, and bulk messages and bytes, that a receiver takes before it acknowledges them with a
/// separate frame, if no other frame has done so.
const FRAMES_UNTOLD: u64 = 64;
const BULK_UNTOLD: u64 = 16;
const BULK_BYTES_UNTOLD: usize = 1 << 20;

/// One connection with a peer.
pub struct Connection {
    pub wire: Wire,
    /// The peer is on this machine, by the address it is connected through.
    pub loopback: bool,
    /// Address at which the peer was dialled, if this side dialled.
    pub dialled: Option<Multiaddr>,
    /// Address of the peer's end.
    pub remote: Multiaddr,
}

/// A link with a peer.
pub struct Link {
    pub peer: Peer,
    pub id: PeerId,
    pub numbers: LinkNumbers,
    pub outbound: Outbound,
    outgoing: Mutex<Outgoing>,
    /// The frames of the control stream that the peer has acknowledged.
    acknowledged: AtomicU64,
    hello: Mutex<Arc<Hello>>,
    order: Mutex<Arrivals>,
    /// The messages that this side has taken, and the part of them that it has acknowledged.
    taken: [AtomicU64; 2],
    told: [AtomicU64; 2],
    began: Instant,
    /// When the peer was last heard, in milliseconds since the link began.
    heard: AtomicU64,
    pub traffic: Traffic,
    ended: watch::Sender<bool>,
    /// The peer has said goodbye.
    has_left: AtomicBool,
}

/// The outgoing side of the control stream.
struct Outgoing {
    sent: Sent,
    /// The connection that carries it, or carried it last.
    connection: Arc<Connection>,
    /// That connection cannot be used any more.
    broken: Option<Broken>,
    closed: bool,
}

/// How a connection ended.
#[derive(Clone, Debug)]
pub struct Broken {
    pub why: String,
    /// The peer's machine, or a device on the way, closed it; otherwise nothing came through any more.
    pub hung_up: bool,
    pub at: Instant,
}

/// The condition of a link, by which it is kept or given up.
pub struct Condition {
    pub heard: Instant,
    pub broken: Option<Broken>,
}

impl Link {
    pub fn new(peer: Peer, id: PeerId, numbers: LinkNumbers, connection: Arc<Connection>, hello: Hello) -> Self {
        Link {
            peer,
            id,
            numbers,
            outbound: Outbound::default(),
            outgoing: Mutex::new(Outgoing { sent: Sent::default(), connection, broken: None, closed: false }),
            acknowledged: AtomicU64::new(0),
            hello: Mutex::new(Arc::new(hello)),
            order: Mutex::default(),
            taken: Default::default(),
            told: Default::default(),
            began: clock::now(),
            heard: AtomicU64::new(0),
            traffic: Traffic::default(),
            ended: watch::Sender::new(false),
            has_left: AtomicBool::new(false),
        }
    }

    /// Notes that the peer has said goodbye: its end is no loss.
    pub fn note_goodbye(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    /// Whether the peer has said goodbye.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// The peer's last Hello.
    pub fn hello(&self) -> Arc<Hello> {
        lock(&self.hello).clone()
    }

    pub fn set_hello(&self, hello: Hello) {
        *lock(&self.hello) = Arc::new(hello);
    }

    /// The connection that carries it, or carried it last.
    pub fn connection(&self) -> Arc<Connection> {
        lock(&self.outgoing).connection.clone()
    }

    /// Sends a message's frame; it leaves with the next [`Link::flush`], or over the next connection.
    ///
    /// A frame that `must_come` may use [`RESERVED_BYTES`](super::sent::RESERVED_BYTES) more.
    ///
    /// # Errors
    /// [`MeshError::QueueFull`] if too many bytes are not acknowledged, [`MeshError::NotConnected`] after the end.
    pub fn send_soon(&self, mut frame: Vec<u8>, must_come: bool) -> Result<(), MeshError> {
        let mut outgoing = lock(&self.outgoing);
        if outgoing.closed {
            return Err(MeshError::NotConnected { peer: self.peer.clone() });
        }
        let number = outgoing.sent.next(frame.len(), must_come).map_err(|limit| MeshError::QueueFull {
            peer: self.peer.clone(),
            what: "bytes that wait",
            limit,
        })?;
        self.stamp(&mut frame, number);
        if outgoing.broken.is_none() && outgoing.connection.wire.push_soon(&frame).is_err() {
            // A connection that misses one frame is useless: its own task closes it, and the next carries them all.
            let why = "its connection closed".to_owned();
            outgoing.broken = Some(Broken { why, hung_up: false, at: clock::now() });
            outgoing.connection.wire.close();
        }
        outgoing.sent.keep(frame);
        Ok(())
    }

    /// Sends the queued frames.
    pub fn flush(&self) {
        self.connection().wire.flush();
    }

    /// Sends a frame on the current connection only: it is not sent again on the next.
    pub fn say(&self, mut frame: Vec<u8>) {
        self.stamp(&mut frame, 0);
        let outgoing = lock(&self.outgoing);
        if outgoing.broken.is_none() && outgoing.connection.wire.push_soon(&frame).is_ok() {
            let connection = outgoing.connection.clone();
            drop(outgoing);
            connection.wire.flush();
        }
    }

    /// Sends a number outside the sequence of messages.
    pub fn say_number(&self, kind: Kind, number: u64) {
        if let Ok(frame) = frame::encode_value(kind, &number) {
            self.say(frame);
        }
    }

    /// Makes the peer send an echo, which gives the round-trip time.
    pub fn probe(&self) {
        self.say_number(Kind::Echo, clock::now().saturating_duration_since(self.began).as_micros() as u64);
    }

    /// The peer sent the number of a [`Link::probe`] back.
    pub fn came_back(&self, number: u64) {
        // The number is this side's clock, unless the peer made it up: then the round-trip time is wrong, and no other figure.
        let now = clock::now().saturating_duration_since(self.began).as_micros() as u64;
        self.traffic.round_trip_took(now.saturating_sub(number));
    }

    /// The condition of the link, for people.
    pub fn status(&self) -> PeerStatus {
        let now = clock::now();
        let since = |then: Instant| now.saturating_duration_since(then).as_millis() as u64;
        let Condition { heard, broken } = self.condition();
        let state =
            broken.map_or(LinkState::Up, |broken| LinkState::Mending { for_ms: since(broken.at), why: broken.why });
        let (sent_bytes, received_bytes) = self.traffic.bytes();
        PeerStatus {
            peer: self.peer.clone(),
            task: self.hello().task.clone(),
            is_spare: self.hello().is_spare,
            address: self.connection().remote.to_string(),
            state,
            up_ms: since(self.began),
            heard_ms: since(heard),
            round_trip_us: self.traffic.round_trip_us(),
            bulk_bytes_per_second: self.outbound.rate(),
            sent_bytes,
            received_bytes,
            sent_per_second: 0.0,
            received_per_second: 0.0,
        }
    }

    /// Messages sent so far on the control stream.
    pub fn frames(&self) -> u64 {
        lock(&self.outgoing).sent.last()
    }

    /// The messages that this side has taken, to be written into a frame that leaves now.
    pub fn tell_taken(&self) -> Taken {
        let [frames, bulk] = [0, 1].map(|i| {
            let taken = self.taken[i].load(Ordering::Acquire);
            self.told[i].store(taken, Ordering::Relaxed);
            taken
        });
        Taken { frames, bulk }
    }

    /// Makes a frame ready to leave.
    fn stamp(&self, frame: &mut [u8], number: u64) {
        self.traffic.sent(frame.len());
        frame::stamp(frame, number, self.tell_taken());
    }

    /// A sign of life, which acknowledges.
    pub fn ping(&self) -> Vec<u8> {
        let mut frame = frame::empty_frame(Kind::Ping).to_vec();
        self.stamp(&mut frame, 0);
        frame
    }

    /// Whether enough was received that it should be acknowledged; `bulk_bytes` of it just came in bulk.
    pub fn owes_acknowledgement(&self, bulk_bytes: usize) -> bool {
        let untold =
            |i: usize| self.taken[i].load(Ordering::Relaxed).saturating_sub(self.told[i].load(Ordering::Relaxed));
        untold(0) >= FRAMES_UNTOLD || untold(1) >= BULK_UNTOLD || (untold(1) > 0 && bulk_bytes >= BULK_BYTES_UNTOLD)
    }

    /// The peer has taken this much of this side's messages.
    ///
    /// # Errors
    /// If fewer were sent.
    pub fn acknowledged(&self, taken: Taken, bulk_beyond: &[u64]) -> Result<(), String> {
        if taken.frames > self.acknowledged.load(Ordering::Acquire) {
            let acknowledged = lock(&self.outgoing).sent.acknowledge(taken.frames);
            acknowledged.map_err(|last| format!("it acknowledges message {} of {last}", taken.frames))?;
            self.acknowledged.fetch_max(taken.frames, Ordering::AcqRel);
        }
        let acknowledged = self.outbound.acknowledge(taken.bulk, bulk_beyond);
        acknowledged.map_err(|last| format!("it acknowledges bulk message {} of {last}", taken.bulk))
    }

    /// This side's standing with the peer, the first frame on a new connection.
    pub fn standing(&self, fresh: u64) -> Standing {
        let order = lock(&self.order);
        Standing {
            fresh,
            link: Some(self.numbers),
            taken: Taken { frames: order.frames(), bulk: order.bulk() },
            bulk_beyond: order.bulk_beyond(),
        }
    }

    /// Continues over `connection`, whose other end sent `standing`: the frames that it has not taken are sent again.
    ///
    /// # Errors
    /// If it claims to have taken frames that were never sent.
    pub fn attach(&self, connection: &Arc<Connection>, standing: &Standing) -> Result<(), String> {
        self.acknowledged(standing.taken, &standing.bulk_beyond)?;
        let mut outgoing = lock(&self.outgoing);
        let old = std::mem::replace(&mut outgoing.connection, connection.clone());
        outgoing.broken = None;
        for frame in outgoing.sent.unacknowledged() {
            connection.wire.push_soon(frame).map_err(|error| error.to_string())?;
        }
        drop(outgoing);
        old.wire.close();
        connection.wire.flush();
        self.note_heard(clock::now());
        Ok(())
    }

    /// A connection broke. Returns whether it was the one that carries this link.
    pub fn detach(&self, connection: &Arc<Connection>, why: &str, hung_up: bool) -> bool {
        let mut outgoing = lock(&self.outgoing);
        let carried = Arc::ptr_eq(&outgoing.connection, connection);
        if carried && outgoing.broken.is_none() {
            outgoing.broken = Some(Broken { why: why.to_owned(), hung_up, at: clock::now() });
        }
        carried
    }

    pub fn is_attached(&self) -> bool {
        lock(&self.outgoing).broken.is_none()
    }

    /// The peer was heard.
    pub fn note_heard(&self, now: Instant) {
        let since = now.saturating_duration_since(self.began);
        self.heard.fetch_max(since.as_millis() as u64, Ordering::Relaxed);
    }

    /// Notes that this process itself was stopped for this long: the silence is not the peer's.
    pub fn excuse(&self, silence: Duration, now: Instant) {
        self.note_heard(now.min(self.condition().heard + silence));
        if let Some(broken) = &mut lock(&self.outgoing).broken {
            broken.at = now.min(broken.at + silence);
        }
    }

    /// Whether the link has recovered since then: the peer was heard, or there is another connection.
    pub fn is_better_than(&self, then: &Condition) -> bool {
        let now = self.condition();
        now.heard > then.heard || (then.broken.is_some() && now.broken.is_none())
    }

    /// Waits until a delivery that is under way has finished.
    pub fn settle(&self) {
        drop(lock(&self.order));
    }

    pub fn condition(&self) -> Condition {
        Condition {
            heard: self.began + Duration::from_millis(self.heard.load(Ordering::Relaxed)),
            broken: lock(&self.outgoing).broken.clone(),
        }
    }

    /// Takes a message of the control stream once, and the messages that waited for it: `hand` gets the deliverable ones, in
    /// order.
    ///
    /// # Errors
    /// If messages before it are missing, or too many wait for one before them.
    pub fn take_frame(
        &self,
        number: u64,
        after: u64,
        envelope: Envelope,
        mut hand: impl FnMut(Envelope),
    ) -> Result<(), MeshError> {
        // Held while the inbox is called: two connections may bring the same frames for a moment, and the bulk streams theirs.
        let mut order = lock(&self.order);
        if !order.frame(number).map_err(|disorder| self.disorder(disorder))? {
            return Ok(());
        }
        self.taken[0].store(number, Ordering::Release);
        if after == 0 {
            hand(envelope);
        } else {
            order.arrive(0, after, envelope).map_err(|d| self.disorder(d))?.into_iter().for_each(&mut hand);
        }
        if order.has_early() {
            order.caught_up().map_err(|d| self.disorder(d))?.into_iter().for_each(&mut hand);
        }
        Ok(())
    }

    /// Takes a bulk message once: `hand` gets the deliverable messages, in order.
    ///
    /// # Errors
    /// If too many wait for one before them.
    pub fn take_bulk(
        &self,
        prefix: frame::Prefix,
        envelope: Envelope,
        hand: impl FnMut(Envelope),
    ) -> Result<(), MeshError> {
        let mut order = lock(&self.order);
        let ready = order.message(prefix.number, prefix.behind, prefix.after, envelope);
        let ready = ready.map_err(|disorder| self.disorder(disorder))?;
        self.taken[1].store(order.bulk(), Ordering::Release);
        ready.into_iter().for_each(hand);
        Ok(())
    }

    fn disorder(&self, disorder: Disorder) -> MeshError {
        let peer = self.peer.clone();
        match disorder {
            Disorder::Full(limit) => {
                MeshError::QueueFull { peer, what: "messages that wait for one before them", limit }
            }
            Disorder::Gap { number, after } => MeshError::Gap { peer, number, after },
        }
    }

    pub fn is_over(&self) -> bool {
        *self.ended.borrow()
    }

    /// Ends the link: nothing is sent or kept any more, and its connection closes after the last bytes that it still has to
    /// write. Returns whether it had not ended before.
    pub fn finish(&self) -> bool {
        let mut outgoing = lock(&self.outgoing);
        outgoing.closed = true;
        outgoing.sent.clear();
        outgoing.connection.wire.close();
        drop(outgoing);
        self.outbound.clear();
        !self.ended.send_replace(true)
    }

    /// Returns once the link is over.
    pub async fn over(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}
