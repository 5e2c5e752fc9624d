//! The control stream: one per peer, long-lived, for everything small.
//!
//! A sender pushes to the peer's [`Wire`](super::wire::Wire), which writes at once where it can; the connection's own task
//! writes what could not, reads what has come, and calls the inbox, with no other task in between. The participant with the
//! lower PeerId opens the stream, on one connection of those there are, so both always speak on the same one.

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
use libp2p::{Stream, StreamProtocol};
use tokio::time::{Instant, Sleep};

use super::frame::{self, Kind, MAX_CONTROL_FRAME_BYTES, PREFIX_BYTES, Prefix, Refusal};
use super::roster::{Link, Roster, encode_small};
use crate::protocol::{Envelope, Hello, Message};

const PROTOCOL: StreamProtocol = StreamProtocol::new("/meshtf/control/1");
/// How often a sign of life is sent where nothing else is.
pub const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long a peer may be silent. Its kernel answers for a stopped process, so only its own pings count.
pub const MAX_SILENCE: Duration = Duration::from_millis(3200);
/// How long a peer may take to say Hello, and a stream to drain before it closes.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// Frames handled before other tasks get their turn.
const FRAMES_A_TURN: usize = 256;
const READ_BYTES: usize = 16 << 10;

/// Why a control stream is over.
#[derive(Debug)]
pub enum End {
    /// The peer said goodbye.
    Left(String),
    /// The peer vanished, or broke the protocol.
    Peer(String),
    /// The peer refused this participant.
    Refused(Refusal),
    /// This side closed it.
    Closed,
}

/// What a connection's handler tells the behaviour: its stream is over, and why.
#[derive(Debug)]
pub struct Ended(pub End);

/// What the behaviour tells a connection's handler: open the stream.
#[derive(Debug)]
pub struct Open;

type Event = ConnectionHandlerEvent<ReadyUpgrade<StreamProtocol>, (), Ended>;

/// The handler of one connection.
pub struct Control {
    roster: Arc<Roster>,
    link: Arc<Link>,
    channel: Option<Channel>,
    events: VecDeque<Event>,
    /// A stream was there once; a connection has one in its life.
    used: bool,
}

impl Control {
    pub fn new(roster: Arc<Roster>, link: Link) -> Self {
        Control { roster, link: Arc::new(link), channel: None, events: VecDeque::new(), used: false }
    }

    fn begin(&mut self, stream: Stream) {
        if self.used {
            return;
        }
        self.used = true;
        let said = self.roster.hello_for(self.link.loopback);
        let frame = encode_small(&Message::Hello(Box::new(said.clone())).into());
        match frame.and_then(|frame| self.link.wire.push(&self.link.peer, &frame)) {
            Ok(()) => {
                self.link.wire.connect(stream);
                self.channel = Some(Channel::new(said));
            }
            Err(error) => self.over(End::Peer(error.to_string())),
        }
    }

    fn over(&mut self, end: End) {
        self.channel = None;
        self.link.wire.hang_up();
        let why = match &end {
            End::Left(reason) => format!("it left: {reason}"),
            End::Peer(why) => why.clone(),
            End::Refused(refusal) => format!("it refused this participant: {refusal}"),
            End::Closed => "its connection was closed".to_owned(),
        };
        self.roster.end(&self.link, &why);
        self.events.push_back(ConnectionHandlerEvent::NotifyBehaviour(Ended(end)));
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.link.wire.hang_up();
        self.roster.end(&self.link, "its connection broke without a goodbye");
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
        self.link.wire.register(cx.waker());
        if let Some(channel) = &mut self.channel
            && let Poll::Ready(end) = channel.poll(cx, &self.roster, &self.link)
        {
            self.over(end);
            return self.events.pop_front().map_or(Poll::Pending, Poll::Ready);
        }
        Poll::Pending
    }
}

/// What a connection's task knows of its stream, and what is half read of it.
struct Channel {
    /// What this side said of itself on this stream.
    said: Hello,
    greeted: bool,
    /// A message that came before messages are delivered.
    held: Option<(u64, Envelope)>,
    input: Vec<u8>,
    /// The part of `input` that is filled and not yet taken.
    start: usize,
    end: usize,
    begun: Instant,
    heard: Instant,
    tick: Pin<Box<Sleep>>,
    /// When the stream must be drained, once it is closing.
    closing: Option<Instant>,
}

impl Channel {
    fn new(said: Hello) -> Self {
        let now = Instant::now();
        Channel {
            said,
            greeted: false,
            held: None,
            input: vec![0; READ_BYTES],
            start: 0,
            end: 0,
            begun: now,
            heard: now,
            tick: Box::pin(tokio::time::sleep(PING_INTERVAL)),
            closing: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, roster: &Arc<Roster>, link: &Arc<Link>) -> Poll<End> {
        if let Poll::Ready(end) = self.read(cx, roster, link) {
            return Poll::Ready(end);
        }
        // Written after reading, so that what the inbox answered at once goes out in this turn.
        if let Poll::Ready(Err(error)) = link.wire.poll_write(cx) {
            return Poll::Ready(End::Peer(broken(&error)));
        }
        self.watch(cx, link)
    }

    fn read(&mut self, cx: &mut Context<'_>, roster: &Arc<Roster>, link: &Arc<Link>) -> Poll<End> {
        let mut frames = 0;
        while self.closing.is_none() {
            if let Some((after, envelope)) = self.held.take() {
                if !roster.is_open() {
                    self.held = Some((after, envelope));
                    return Poll::Pending;
                }
                let delivered = roster.deliver(link, after, envelope).and_then(|()| roster.took_frame(link));
                if let Err(error) = delivered {
                    return Poll::Ready(End::Peer(error.to_string()));
                }
            }
            let wanted = match self.whole_frame() {
                Ok(Ok(prefix)) => {
                    if let Err(end) = self.take(prefix, roster, link) {
                        return Poll::Ready(end);
                    }
                    frames += 1;
                    if frames == FRAMES_A_TURN {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    continue;
                }
                Ok(Err(wanted)) => wanted,
                Err(why) => return Poll::Ready(End::Peer(why)),
            };
            self.make_room(wanted);
            match link.wire.poll_read(cx, &mut self.input[self.end..]) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(End::Peer("its connection ended without a goodbye".to_owned()));
                }
                Poll::Ready(Ok(read)) => {
                    self.end += read;
                    self.heard = Instant::now();
                }
                Poll::Ready(Err(error)) => return Poll::Ready(End::Peer(broken(&error))),
                Poll::Pending => return Poll::Pending,
            }
        }
        // Nothing more is taken in, but the peer hangs up first: a connection that closes right behind its last words
        // takes them with it.
        while let Poll::Ready(read) = link.wire.poll_read(cx, &mut self.input) {
            if !matches!(read, Ok(1..)) {
                return Poll::Ready(End::Closed);
            }
        }
        Poll::Pending
    }

    /// The prefix of the frame at `start` where all of it is here, or the bytes it takes in all.
    fn whole_frame(&self) -> Result<Result<Prefix, usize>, String> {
        let input = &self.input[self.start..self.end];
        let Some(prefix) = input.first_chunk::<PREFIX_BYTES>() else { return Ok(Err(PREFIX_BYTES)) };
        let prefix = Prefix::decode(prefix, MAX_CONTROL_FRAME_BYTES).map_err(|failure| failure.message)?;
        let whole = PREFIX_BYTES + prefix.body_bytes();
        Ok(if input.len() < whole { Err(whole) } else { Ok(prefix) })
    }

    /// Has room for at least one more byte, and for `wanted` bytes from `start`.
    fn make_room(&mut self, wanted: usize) {
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

    fn take(&mut self, prefix: Prefix, roster: &Arc<Roster>, link: &Arc<Link>) -> Result<(), End> {
        let body = self.start + PREFIX_BYTES;
        let (header, payload) = self.input[body..body + prefix.body_bytes()].split_at(prefix.header_bytes);
        self.start = body + prefix.body_bytes();
        let early = || End::Peer("it spoke before it said Hello".to_owned());
        match prefix.kind {
            Kind::Ping => {}
            Kind::Refused => {
                let refusal: Refusal = postcard::from_bytes(header).map_err(|error| End::Peer(error.to_string()))?;
                if let Refusal::TaskTaken { task, holder } = &refusal
                    && self.said.task.as_ref() == Some(task)
                {
                    roster.lose(task.clone(), holder.clone());
                }
                return Err(End::Refused(refusal));
            }
            Kind::Call if !self.greeted => return Err(early()),
            Kind::Call => super::transfer::answer_call(roster, link),
            Kind::Message => {
                let envelope = frame::decode(header, payload).map_err(|failure| End::Peer(failure.message))?;
                match envelope.message {
                    Message::Goodbye { reason } => return Err(End::Left(reason)),
                    Message::Hello(hello) if self.greeted => roster.update(link, *hello),
                    Message::Hello(hello) => match roster.greet(link, *hello, &self.said) {
                        Ok(()) => self.greeted = true,
                        Err(refusal) => {
                            tracing::debug!(peer = %link.peer, %refusal, "refused");
                            if let Ok(frame) = frame::encode_value(Kind::Refused, &refusal) {
                                let _ = link.wire.push(&link.peer, &frame);
                            }
                            link.wire.close();
                            self.closing = Some(Instant::now() + DRAIN_LIMIT);
                        }
                    },
                    _ if !self.greeted => return Err(early()),
                    _ => {
                        self.held = Some((prefix.after, envelope));
                        return Ok(());
                    }
                }
            }
        }
        roster.took_frame(link).map_err(|error| End::Peer(error.to_string()))
    }

    /// Sends a sign of life where it is time, and notices that none came.
    fn watch(&mut self, cx: &mut Context<'_>, link: &Link) -> Poll<End> {
        if link.wire.is_closed() {
            let limit = *self.closing.get_or_insert_with(|| Instant::now() + DRAIN_LIMIT);
            if self.tick.deadline() != limit {
                self.tick.as_mut().reset(limit);
                // Read on in the new manner.
                cx.waker().wake_by_ref();
            }
        }
        while self.tick.as_mut().poll(cx).is_ready() {
            let (due, now) = (self.tick.deadline(), Instant::now());
            if self.closing.is_some_and(|limit| limit <= now) {
                return Poll::Ready(End::Closed);
            }
            if now.duration_since(due) >= PING_INTERVAL {
                // This process was stopped or starved itself, so the silence is its own: the peer gets its time again.
                self.heard = now;
            }
            if now.duration_since(self.heard) >= MAX_SILENCE {
                let seconds = MAX_SILENCE.as_secs_f32();
                return Poll::Ready(End::Peer(format!("nothing was heard from it for {seconds} s")));
            }
            if !self.greeted && now.duration_since(self.begun) >= HELLO_LIMIT {
                return Poll::Ready(End::Peer("it did not say Hello".to_owned()));
            }
            if link.wire.sent().is_none_or(|sent| now.duration_since(sent) >= PING_INTERVAL / 2) {
                let _ = link.wire.push(&link.peer, &frame::empty_frame(Kind::Ping));
                if let Poll::Ready(Err(error)) = link.wire.poll_write(cx) {
                    return Poll::Ready(End::Peer(broken(&error)));
                }
            }
            self.tick.as_mut().reset(now + PING_INTERVAL);
        }
        Poll::Pending
    }
}

fn broken(error: &io::Error) -> String {
    format!("its connection broke: {error}")
}
