//! The control stream: one per peer, long-lived, for all small messages.
//!
//! A sender pushes to the connection's [`Wire`](super::wire::Wire), which writes at once if it can. The connection's own task
//! writes the rest, reads incoming bytes, and calls the inbox, with no other task in between. The participant with the lower
//! PeerId opens the stream, on one of the connections that exist, so both always use the same one. Both first send their
//! [`Standing`] and their Hello; then their [`Link`] continues over this connection, or begins.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Future;
use libp2p::core::upgrade::ReadyUpgrade;
use libp2p::swarm::handler::{ConnectionEvent, FullyNegotiatedInbound, FullyNegotiatedOutbound};
use libp2p::swarm::{ConnectionHandler, ConnectionHandlerEvent, SubstreamProtocol};
use libp2p::{PeerId, Stream, StreamProtocol};
use tokio::time::{Instant, Sleep};

use super::frame::{self, Kind, MAX_CONTROL_FRAME_BYTES, PREFIX_BYTES, Prefix, Refusal, Standing};
use super::link::{Connection, Link};
use super::roster::{Roster, Said, Unmet, encode_small};
use super::{cause, clock};
use crate::protocol::{Envelope, Message, Peer};

const PROTOCOL: StreamProtocol = StreamProtocol::new("/meshtf/control/1");
/// The interval of signs of life if no other frame is sent. The kernel acknowledges TCP for a stopped process, so only a sign
/// of life shows that a peer runs.
pub const PING_INTERVAL: Duration = Duration::from_millis(500);
/// How long a peer may take to say Hello, and a stream to drain before it closes.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// Frames handled before other tasks get their turn.
const FRAMES_A_TURN: usize = 256;
/// Frames between two checks whether the turn has taken [`LONG`]: an inbox may run short steps within.
const FRAMES_A_LOOK: usize = 16;
const LONG: Duration = Duration::from_millis(1);
const READ_BYTES: usize = 16 << 10;

/// Why a control stream is over.
#[derive(Debug)]
pub enum End {
    /// The peer said goodbye.
    Left(String),
    /// The connection broke: the other side closed it, or nothing came through any more.
    Broken { why: String, hung_up: bool },
    /// The peer broke the protocol.
    Peer(String),
    /// The peer refused this participant.
    Refused(Refusal),
    /// This side closed it.
    Closed,
}

/// The message of a connection's handler to the behaviour: its stream is over, and why.
#[derive(Debug)]
pub struct Ended(pub End);

/// The message of the behaviour to a connection's handler: open the stream.
#[derive(Debug)]
pub struct Open;

type Event = ConnectionHandlerEvent<ReadyUpgrade<StreamProtocol>, (), Ended>;

/// The handler of one connection.
pub struct Control {
    roster: Arc<Roster>,
    peer: Peer,
    id: PeerId,
    connection: Arc<Connection>,
    channel: Option<Channel>,
    events: VecDeque<Event>,
    /// The stream was opened: a connection has at most one.
    used: bool,
}

impl Control {
    pub fn new(roster: Arc<Roster>, peer: Peer, id: PeerId, connection: Connection) -> Self {
        let connection = Arc::new(connection);
        Control { roster, peer, id, connection, channel: None, events: VecDeque::new(), used: false }
    }

    fn begin(&mut self, stream: Stream) {
        if self.used {
            return;
        }
        self.used = true;
        let said = self.roster.first_words(&self.peer, self.connection.loopback);
        let words = || {
            let mut words = frame::encode_value(Kind::Standing, &said.standing)?;
            words.extend(encode_small(&Message::Hello(Box::new(said.hello.clone())).into())?);
            Ok::<_, super::MeshError>(words)
        };
        match words()
            .map_err(|error| error.to_string())
            .and_then(|words| self.connection.wire.push(&words).map_err(|error| error.to_string()))
        {
            Ok(()) => {
                self.connection.wire.connect(stream);
                self.channel = Some(Channel::new(self.peer.clone(), self.id, self.connection.clone(), said));
            }
            Err(why) => self.over(End::Peer(why)),
        }
    }

    fn over(&mut self, end: End) {
        self.connection.wire.hang_up();
        if let Some(link) = self.channel.take().and_then(|channel| channel.link) {
            match &end {
                End::Left(reason) => self.roster.end(&link, &format!("it left: {reason}")),
                End::Peer(why) => self.roster.end(&link, why),
                End::Refused(refusal) => {
                    self.roster.end(&link, &format!("it refused this participant: {refusal}"));
                }
                End::Broken { why, hung_up } => self.roster.broke(&link, &self.connection, why, *hung_up),
                End::Closed => self.roster.broke(&link, &self.connection, "its connection was closed", false),
            }
        }
        self.events.push_back(ConnectionHandlerEvent::NotifyBehaviour(Ended(end)));
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.connection.wire.hang_up();
        if let Some(link) = self.channel.take().and_then(|channel| channel.link) {
            self.roster.broke(&link, &self.connection, "its connection broke without a goodbye", false);
        }
    }
}

impl ConnectionHandler for Control {
    type FromBehaviour = Open;
    type ToBehaviour = Ended;
    type InboundProtocol = ReadyUpgrade<StreamProtocol>;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        SubstreamProtocol::new(ReadyUpgrade::new(PROTOCOL), ())
    }

    fn connection_keep_alive(&self) -> bool {
        self.channel.is_some()
    }

    fn on_behaviour_event(&mut self, Open: Open) {
        let protocol = SubstreamProtocol::new(ReadyUpgrade::new(PROTOCOL), ());
        self.events.push_back(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, Self::InboundProtocol, Self::OutboundProtocol, (), ()>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => self.begin(protocol),
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, .. }) => self.begin(protocol),
            ConnectionEvent::DialUpgradeError(error) => {
                self.over(End::Peer(format!("the control stream was not opened: {}", error.error)));
            }
            _ => {}
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(event);
        }
        self.connection.wire.register(cx.waker());
        if let Some(channel) = &mut self.channel
            && let Poll::Ready(end) = channel.poll(cx, &self.roster)
        {
            self.over(end);
            return self.events.pop_front().map_or(Poll::Pending, Poll::Ready);
        }
        Poll::Pending
    }
}

/// The state of a connection's stream, and the frame that is partly read.
struct Channel {
    peer: Peer,
    id: PeerId,
    connection: Arc<Connection>,
    /// The first messages of this side on this stream.
    said: Said,
    /// The peer's standing, until it has said Hello.
    standing: Option<Standing>,
    /// The link that this connection carries, once the peer has said Hello.
    link: Option<Arc<Link>>,
    /// A message that arrived before messages are delivered.
    held: Option<(Prefix, Envelope)>,
    input: Vec<u8>,
    /// The part of `input` that is filled and not yet taken.
    start: usize,
    end: usize,
    begun: Instant,
    tick: Pin<Box<Sleep>>,
    /// When the stream must be drained, once it is closing.
    closing: Option<Instant>,
}

impl Channel {
    fn new(peer: Peer, id: PeerId, connection: Arc<Connection>, said: Said) -> Self {
        let now = Instant::now();
        Channel {
            peer,
            id,
            connection,
            said,
            standing: None,
            link: None,
            held: None,
            input: vec![0; READ_BYTES],
            start: 0,
            end: 0,
            begun: now,
            tick: Box::pin(tokio::time::sleep(PING_INTERVAL)),
            closing: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, roster: &Arc<Roster>) -> Poll<End> {
        if let Poll::Ready(end) = self.read(cx, roster) {
            return Poll::Ready(end);
        }
        if let Some(link) = self.link.as_ref().filter(|link| link.owes_acknowledgement(0)) {
            let _closing = self.connection.wire.push_soon(&link.ping());
        }
        // Written after reading, so that the inbox's immediate answers go out in this turn.
        if let Poll::Ready(Err(error)) = self.connection.wire.poll_write(cx) {
            return Poll::Ready(broken(&error));
        }
        self.watch(cx)
    }

    fn read(&mut self, cx: &mut Context<'_>, roster: &Arc<Roster>) -> Poll<End> {
        let (mut frames, began) = (0, clock::now());
        while self.closing.is_none() {
            if let (Some((prefix, envelope)), Some(link)) = (self.held.take(), &self.link) {
                if !roster.is_open() {
                    self.held = Some((prefix, envelope));
                    return Poll::Pending;
                }
                if let Err(error) = roster.deliver(link, prefix, envelope) {
                    return Poll::Ready(End::Peer(error.to_string()));
                }
            }
            let wanted = match self.whole_frame() {
                Ok(Ok(prefix)) => {
                    if let Err(end) = self.take(prefix, roster) {
                        return Poll::Ready(end);
                    }
                    frames += 1;
                    let has_taken_long = frames % FRAMES_A_LOOK == 0 && clock::now() - began > LONG;
                    if frames == FRAMES_A_TURN || has_taken_long {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    continue;
                }
                Ok(Err(wanted)) => wanted,
                Err(why) => return Poll::Ready(End::Peer(why)),
            };
            self.grow_input(wanted);
            match self.connection.wire.poll_read(cx, &mut self.input[self.end..]) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(broken(&io::ErrorKind::UnexpectedEof.into()));
                }
                Poll::Ready(Ok(read)) => {
                    self.end += read;
                    if let Some(link) = &self.link {
                        link.traffic.received(read);
                        link.note_heard(clock::now());
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(broken(&error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        // No more input is taken, but the peer closes first: closing with unread bytes would reset the connection, and the peer
        // would lose the last frames.
        while let Poll::Ready(read) = self.connection.wire.poll_read(cx, &mut self.input) {
            if !matches!(read, Ok(1..)) {
                return Poll::Ready(End::Closed);
            }
        }
        Poll::Pending
    }

    /// The prefix of the frame at `start` if the whole frame is in `input`; otherwise how many bytes it has.
    fn whole_frame(&self) -> Result<Result<Prefix, usize>, String> {
        let input = &self.input[self.start..self.end];
        let Some(prefix) = input.first_chunk::<PREFIX_BYTES>() else { return Ok(Err(PREFIX_BYTES)) };
        let prefix = Prefix::decode(prefix, MAX_CONTROL_FRAME_BYTES).map_err(|failure| failure.message)?;
        let whole = PREFIX_BYTES + prefix.body_bytes();
        Ok(if input.len() < whole { Err(whole) } else { Ok(prefix) })
    }

    /// Makes `input` long enough for at least one more byte, and for `wanted` bytes from `start`.
    fn grow_input(&mut self, wanted: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.input.len() > READ_BYTES && wanted <= READ_BYTES {
                self.input = vec![0; READ_BYTES];
            }
        }
        if self.start + wanted > self.input.len() || self.end == self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if wanted > self.input.len() {
            self.input.resize(wanted, 0);
        }
    }

    fn take(&mut self, prefix: Prefix, roster: &Arc<Roster>) -> Result<(), End> {
        let body = self.start + PREFIX_BYTES;
        let (header, payload) = self.input[body..body + prefix.body_bytes()].split_at(prefix.header_bytes);
        self.start = body + prefix.body_bytes();
        if let Some(link) = &self.link {
            link.acknowledged(prefix.taken, &[]).map_err(End::Peer)?;
        }
        let early = || End::Peer("it sent something before its Hello".to_owned());
        match prefix.kind {
            Kind::Ping => {}
            Kind::Standing => {
                self.standing = Some(postcard::from_bytes(header).map_err(|error| End::Peer(error.to_string()))?);
            }
            Kind::Refused => {
                let refusal: Refusal = postcard::from_bytes(header).map_err(|error| End::Peer(error.to_string()))?;
                if let Refusal::TaskTaken { task, holder } = &refusal
                    && self.said.hello.task.as_ref() == Some(task)
                {
                    roster.lose(task.clone(), holder.clone());
                }
                return Err(End::Refused(refusal));
            }
            Kind::Echo | Kind::Echoed => {
                let link = self.link.as_ref().ok_or_else(early)?;
                let number = postcard::from_bytes(header).map_err(|error| End::Peer(error.to_string()))?;
                match prefix.kind {
                    Kind::Echo => link.say_number(Kind::Echoed, number),
                    _ => link.came_back(number),
                }
            }
            Kind::Call => super::transfer::answer_call(roster, self.link.as_ref().ok_or_else(early)?),
            Kind::Message => {
                let envelope = frame::decode(header, payload).map_err(|failure| End::Peer(failure.message))?;
                match (envelope.message, &self.link) {
                    (Message::Goodbye { reason }, link) => {
                        link.iter().for_each(|link| link.note_goodbye());
                        return Err(End::Left(reason));
                    }
                    // A late Hello on a connection that was replaced is older than the one on the next.
                    (Message::Hello(_), Some(link)) if !Arc::ptr_eq(&link.connection(), &self.connection) => {}
                    (Message::Hello(hello), Some(link)) => roster.update(link, *hello),
                    (Message::Hello(hello), None) => {
                        let standing = self.standing.take().ok_or_else(early)?;
                        let words = (*hello, &standing);
                        match roster.greet((&self.peer, self.id), &self.connection, words, &self.said) {
                            Ok(link) => self.link = Some(link),
                            Err(unmet) => self.turn_away(&unmet),
                        }
                    }
                    (_, None) => return Err(early()),
                    (message, Some(_)) => {
                        self.held = Some((prefix, Envelope { message, tensors: envelope.tensors }));
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends the peer the reason why it gets no link, and closes the connection.
    fn turn_away(&mut self, unmet: &Unmet) {
        match unmet {
            Unmet::Refused(refusal) => {
                tracing::debug!(peer = %self.peer, %refusal, "refused");
                if let Ok(frame) = frame::encode_value(Kind::Refused, refusal) {
                    let _closing = self.connection.wire.push(&frame);
                }
            }
            Unmet::Again(why) => tracing::debug!(peer = %self.peer, why, "another connection has to decide"),
        }
        self.connection.wire.close();
        self.closing = Some(Instant::now() + DRAIN_LIMIT);
    }

    /// Sends a sign of life when it is due. The driver notices if none came from the peer.
    fn watch(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if self.connection.wire.is_closed() {
            let limit = *self.closing.get_or_insert_with(|| Instant::now() + DRAIN_LIMIT);
            if self.tick.deadline() != limit {
                self.tick.as_mut().reset(limit);
                // So that bytes that still come are read and dropped.
                cx.waker().wake_by_ref();
            }
        }
        while self.tick.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.closing.is_some_and(|limit| limit <= now) {
                return Poll::Ready(End::Closed);
            }
            if self.link.is_none() && now.duration_since(self.begun) >= HELLO_LIMIT {
                return Poll::Ready(End::Broken { why: "it did not say Hello".to_owned(), hung_up: false });
            }
            let wire = &self.connection.wire;
            if let Some(link) = &self.link
                && wire.sent().is_none_or(|sent| now.duration_since(sent) >= PING_INTERVAL / 2)
            {
                let _closing = wire.push(&link.ping());
                if let Poll::Ready(Err(error)) = wire.poll_write(cx) {
                    return Poll::Ready(broken(&error));
                }
            }
            self.tick.as_mut().reset(now + PING_INTERVAL);
        }
        Poll::Pending
    }
}

fn broken(error: &io::Error) -> End {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    let hung_up = !matches!(error.kind(), HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut);
    End::Broken { why: cause::broken("its connection", error), hung_up }
}
