//! The connections of clients: limits on them and on the calls that wait on each, whether a session's connection is still open,
//! and the end of connections that are idle or only send noise.
//!
//! A client that has not shown the door's token counts as one of the door's
//! [unauthenticated clients](crate::unauthenticated); if no token is required, it does until it speaks HTTP/2.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;

use crate::descriptors;
use crate::unauthenticated::{Origin, Progress, UnauthenticatedPeer, UnauthenticatedPeers};

/// Maximum number of connections of a door, unauthenticated clients included; fewer if they would take more than half of the
/// descriptors.
const MAX_CONNECTIONS: usize = 1024;
const DESCRIPTORS_A_CONNECTION: usize = 2;
/// How long a client that has not shown the token may stay connected without sending a request.
const MAX_IDLE_UNPROVEN: Duration = Duration::from_secs(60);
/// Maximum number of calls, from one sweep to the next, that a client may reset before sending any of their bytes.
const MAX_TAKEN_BACK: u32 = 1000;
/// Maximum number of calls of one connection whose messages have not been received yet.
const MAX_WAITING: u32 = 256;
/// The same for a client that has not shown the token.
const MAX_WAITING_UNPROVEN: u32 = 16;
/// This many calls of each connection are accepted even if the door has reached its limit.
const RESERVED_WAITING: u32 = 16;
/// Maximum number of such calls of the whole door.
const MAX_WAITING_TOGETHER: u32 = 16 << 10;

/// The connections of a door.
#[derive(Clone)]
pub(super) struct Connections(Arc<Door>);

struct Door {
    /// Whether no token is required.
    asks_nothing: bool,
    most: usize,
    unauthenticated_peers: Arc<UnauthenticatedPeers>,
    all: Mutex<HashMap<u64, Weak<State>>>,
    next: AtomicU64,
    /// Calls whose messages have not been received yet.
    waiting: AtomicU32,
}

/// The state of a connection.
struct State {
    door: Arc<Door>,
    /// The peer's address.
    address: IpAddr,
    /// Set while its client is unauthenticated.
    unauthenticated: Mutex<Option<UnauthenticatedPeer>>,
    is_proven: AtomicBool,
    /// Calls whose messages have not been received yet.
    waiting: AtomicU32,
    /// Calls that were reset before any of their bytes were received, since the last sweep.
    taken_back: AtomicU32,
    /// When its last request was received, or it was opened.
    idle_since: Mutex<Instant>,
    is_ended: AtomicBool,
    reader: AtomicWaker,
}

impl State {
    /// Ends the connection and its calls.
    fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        self.reader.wake();
    }

    fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }

    /// Its client no longer counts as unauthenticated.
    fn proved(&self) {
        self.is_proven.store(true, Ordering::Relaxed);
        if let Some(unauthenticated) = lock(&self.unauthenticated).take() {
            unauthenticated.proved();
        }
    }
}

impl Connections {
    pub fn new(asks_nothing: bool) -> Connections {
        Connections(Arc::new(Door {
            asks_nothing,
            most: MAX_CONNECTIONS.min(descriptors::limit() / DESCRIPTORS_A_CONNECTION),
            unauthenticated_peers: UnauthenticatedPeers::new(),
            all: Mutex::default(),
            next: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
        }))
    }

    /// The clients that have not shown the token yet.
    pub fn unauthenticated_peers(&self) -> &Arc<UnauthenticatedPeers> {
        &self.0.unauthenticated_peers
    }

    /// Admits a client if a slot is free; another unauthenticated client may be evicted for it.
    pub fn admit(&self, address: IpAddr) -> Option<ConnectionPlace> {
        let door = &self.0;
        if lock(&door.all).len() >= door.most {
            return None;
        }
        let unauthenticated = door.unauthenticated_peers.admit(address)?;
        let told_to_go = Box::pin(unauthenticated.told_to_go());
        let id = door.next.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(State {
            door: Arc::clone(door),
            address,
            unauthenticated: Mutex::new(Some(unauthenticated)),
            is_proven: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            taken_back: AtomicU32::new(0),
            idle_since: Mutex::new(Instant::now()),
            is_ended: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        });
        lock(&door.all).insert(id, Arc::downgrade(&state));
        Some(ConnectionPlace { id, state, told_to_go: Some(told_to_go) })
    }

    /// Reports that a client could not be accepted.
    pub fn could_not_accept(&self, error: &io::Error) {
        self.0.unauthenticated_peers.could_not_accept(error);
    }

    /// Ends idle connections of clients that have not shown the token.
    pub fn sweep(&self) {
        let all: Vec<Arc<State>> = lock(&self.0.all).values().filter_map(Weak::upgrade).collect();
        for state in all {
            state.taken_back.store(0, Ordering::Relaxed);
            let is_idle = state.waiting.load(Ordering::Relaxed) == 0;
            if is_idle && !state.is_proven() && lock(&state.idle_since).elapsed() > MAX_IDLE_UNPROVEN {
                state.end();
            }
        }
    }
}

/// A connection's slot; the connection is open as long as this lives.
pub(super) struct ConnectionPlace {
    id: u64,
    state: Arc<State>,
    /// Ready when it is evicted, while its client is unauthenticated.
    told_to_go: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl ConnectionPlace {
    pub fn connection(&self) -> Connection {
        Connection(Arc::downgrade(&self.state))
    }

    /// The client speaks HTTP/2.
    pub fn greeted(&self) {
        if self.state.door.asks_nothing {
            self.state.proved();
        } else if let Some(unauthenticated) = &*lock(&self.state.unauthenticated) {
            unauthenticated.is_at(Progress::Spoke);
        }
    }

    /// Wakes the reader when the connection ends.
    pub fn tell(&self, reader: &Waker) {
        self.state.reader.register(reader);
    }

    /// Checks that the connection is still open.
    ///
    /// # Errors
    /// ConnectionAborted if it was ended, or evicted for another.
    pub fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.state.is_proven() {
            self.told_to_go = None;
        } else if let Some(told_to_go) = &mut self.told_to_go
            && told_to_go.as_mut().poll(context).is_ready()
        {
            self.told_to_go = None;
            self.state.is_ended.store(true, Ordering::Release);
        }
        if self.state.is_ended.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        lock(&self.state.door.all).remove(&self.id);
        // Calls under way may hold the state for a while.
        let _unauthenticated = lock(&self.state.unauthenticated).take();
    }
}

/// A handle to a connection, to find out whether it is open.
#[derive(Clone)]
pub(super) struct Connection(Weak<State>);

impl Connection {
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }

    pub fn is_same(&self, other: &Connection) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// The peer's address, while the connection is open.
    pub fn origin(&self) -> Option<Origin> {
        Some(Origin::from(self.0.upgrade()?.address))
    }

    /// Whether its client has shown that it may pass.
    pub fn is_proven(&self) -> bool {
        self.0.upgrade().is_some_and(|state| state.is_proven())
    }

    /// Its client has shown that it may pass.
    pub fn prove(&self) {
        if let Some(state) = self.0.upgrade() {
            state.proved();
        }
    }

    /// Begins a call.
    ///
    /// # Errors
    /// ResourceExhausted if too many calls have begun whose messages have not been received.
    pub fn call(&self) -> Result<Option<Call>> {
        let Some(state) = self.0.upgrade() else { return Ok(None) };
        let most = if state.is_proven() { MAX_WAITING } else { MAX_WAITING_UNPROVEN };
        let waiting = state.waiting.fetch_add(1, Ordering::Relaxed);
        let together = state.door.waiting.fetch_add(1, Ordering::Relaxed);
        let mut call = Call { state, waits: true, has_begun: true };
        let refuse = |count: u32, whose: &str| {
            let why = format!("{count} calls of {whose} wait for their requests, which is the limit; send these first");
            Err(Failure::new(Code::ResourceExhausted, why))
        };
        if waiting >= most {
            return refuse(most, "this connection");
        }
        if waiting >= RESERVED_WAITING && together >= MAX_WAITING_TOGETHER {
            return refuse(MAX_WAITING_TOGETHER, "this door");
        }
        call.has_begun = false;
        Ok(Some(call))
    }
}

/// A call, until its request has been read.
pub(super) struct Call {
    state: Arc<State>,
    waits: bool,
    has_begun: bool,
}

impl Call {
    /// Some of its message was received.
    pub fn has_begun(&mut self) {
        self.has_begun = true;
    }

    /// Its message was received, or nothing waits for it.
    pub fn waits_no_more(&mut self) {
        if std::mem::replace(&mut self.waits, false) {
            self.state.waiting.fetch_sub(1, Ordering::Relaxed);
            self.state.door.waiting.fetch_sub(1, Ordering::Relaxed);
            *lock(&self.state.idle_since) = Instant::now();
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.waits_no_more();
        if !self.has_begun && self.state.taken_back.fetch_add(1, Ordering::Relaxed) >= MAX_TAKEN_BACK {
            self.state.end();
        }
    }
}

/// The origin of a call and its rights.
pub(super) struct Caller {
    /// The connection it came on.
    pub connection: Option<Connection>,
    /// Whether it may pass: no token is required, or it has shown the token.
    pub is_known: bool,
    /// Its time limit, as its configuration or the options of the run state it, once these are known.
    pub limit: Mutex<Option<Duration>>,
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker_ref;

    use super::*;

    const NEAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn is_ended(place: &mut ConnectionPlace) -> bool {
        place.check(&mut Context::from_waker(noop_waker_ref())).is_err()
    }

    #[test]
    fn many_unauthenticated_peers_evict_the_first_of_them() {
        let connections = Connections::new(false);
        let mut places: Vec<ConnectionPlace> = (0..3).map(|_| connections.admit(NEAR).unwrap()).collect();
        places[1].connection().prove();
        // Many more than an address has slots; evicted clients leave.
        for _ in 0..300 {
            places.push(connections.admit(NEAR).unwrap());
            places.retain_mut(|place| !is_ended(place));
        }
        assert!(places.len() <= 1 + 64, "{}", places.len());
        let ids: Vec<u64> = places.iter().map(|place| place.id).collect();
        assert!(ids[0] == 1 && ids[1] > 2 && ids.last() == Some(&302), "{ids:?}");
    }

    #[test]
    fn the_number_of_connections_is_limited() {
        let connections = Connections::new(false);
        let mut places = Vec::new();
        while let Some(place) = connections.admit(NEAR) {
            place.connection().prove();
            places.push(place);
        }
        assert_eq!(places.len(), connections.0.most);
        assert!((8..=MAX_CONNECTIONS.min(descriptors::limit() / 2)).contains(&places.len()), "{}", places.len());
        let gone = places.pop().unwrap().connection();
        assert!(!gone.is_open() && gone.call().unwrap().is_none());
        assert!(connections.admit(NEAR).is_some());
    }

    #[test]
    fn the_number_of_waiting_calls_is_limited() {
        let connections = Connections::new(false);
        let place = connections.admit(NEAR).unwrap();
        let connection = place.connection();
        let check = |most: u32| {
            let mut calls: Vec<Call> = (0..most).map(|_| connection.call().unwrap().unwrap()).collect();
            calls.iter_mut().for_each(Call::has_begun);
            let refused = connection.call().err().unwrap();
            assert!(refused.code == Code::ResourceExhausted && refused.message.contains(&format!("{most} calls")));
            calls[0].waits_no_more();
            assert!(connection.call().is_ok());
        };
        check(MAX_WAITING_UNPROVEN);
        connection.prove();
        check(MAX_WAITING);
    }

    #[test]
    fn a_connection_that_resets_too_many_calls_is_ended() {
        let connections = Connections::new(true);
        let mut place = connections.admit(NEAR).unwrap();
        for turn in 0..=MAX_TAKEN_BACK {
            assert!(!is_ended(&mut place), "after {turn}");
            drop(place.connection().call());
        }
        assert!(is_ended(&mut place));
    }

    #[test]
    fn without_a_token_speaking_http2_is_proof_enough() {
        for asks_nothing in [true, false] {
            let connections = Connections::new(asks_nothing);
            let place = connections.admit(NEAR).unwrap();
            assert!(!place.state.is_proven());
            place.greeted();
            assert_eq!(place.state.is_proven(), asks_nothing);
            assert_eq!(lock(&place.state.unauthenticated).is_none(), asks_nothing);
        }
    }
}
