//! How the threads of a device are spoken to: a channel, and a flag that a running step looks at between two ops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

use super::parked::Claim;
use super::sink::Pushed;
use super::step::{Body, Turn, TurnEnd};
use super::waiting::{Answer, WaitId, Wake};
use crate::failure::{Code, Failure, Held, Result};
use crate::ids::{PieceId, SessionId, StepId};
use crate::tensor::Tensor;

/// Most messages that wait for a device: what others ask of it beyond that is refused.
pub const MAX_MESSAGES: usize = 1 << 16;

pub(super) enum DeviceMessage {
    /// A piece that was compiled.
    Register {
        id: PieceId,
        body: Box<Body>,
        reply: SyncSender<Result<()>>,
    },
    Start {
        id: PieceId,
        first: u64,
        count: u64,
        feeds: Vec<Tensor>,
        /// For the feeds, while they wait.
        claim: Claim,
    },
    Arrive {
        step: StepId,
        values: Vec<Pushed>,
    },
    /// More values wait than may: the step that one more came for fails, and those of its start that were to follow.
    Overflow {
        step: StepId,
        count: u64,
        failure: Failure,
    },
    /// A start was refused, and that was said: nothing is to wait for its steps.
    Unwanted {
        step: StepId,
        count: u64,
    },
    Abort {
        step: StepId,
    },
    Forget {
        pieces: Vec<PieceId>,
    },
    Release {
        session: SessionId,
    },
    /// What an op that waited (a dequeue) got.
    Wake {
        wait: WaitId,
        result: Result<Answer>,
    },
    /// A turn that took long, and that others were not kept waiting for, is over.
    Back {
        turn: Turn,
        result: Result<TurnEnd>,
    },
    /// Asks for what the device holds, and for the pieces, `most` of them, that ran most steps.
    Count {
        most: usize,
        reply: SyncSender<Load>,
    },
    /// Asks what takes the most memory.
    Largest {
        reply: SyncSender<Option<Held>>,
    },
    /// There are turns left of a thread that ran some inline.
    GoOn,
    Close,
}

/// What a device holds at one moment; all zero if it serves no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Sessions that it knows.
    pub sessions: usize,
    /// Pieces of all sessions.
    pub pieces: usize,
    /// Steps under way, waiting to begin, or known only from values that came early.
    pub steps: usize,
    /// Values that came from elsewhere and wait for their step or their Recv.
    pub parked_values: usize,
    /// Bytes of these and of the feeds of steps that wait, with what keeping each costs.
    pub parked_bytes: usize,
}

/// What a device does and holds at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// What it holds.
    pub holds: Holds,
    /// Some of its pieces, and how many steps each has run.
    pub ran: Vec<(PieceId, u64)>,
}

/// The sending side.
#[derive(Clone)]
pub(super) struct Mailbox {
    sender: Sender<DeviceMessage>,
    state: Arc<State>,
}

/// The receiving side.
pub(super) struct DeviceInbox {
    receiver: Receiver<DeviceMessage>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// A message may be waiting.
    is_waiting: AtomicBool,
    /// So many are.
    messages: AtomicUsize,
}

pub(super) fn open() -> (Mailbox, DeviceInbox) {
    let (sender, receiver) = mpsc::channel();
    let state = Arc::new(State::default());
    (Mailbox { sender, state: state.clone() }, DeviceInbox { receiver, state })
}

impl Mailbox {
    /// Sends what the device itself, or the node, has to say: it always finds room, since how much there is of it is bounded
    /// where it begins (by `MAX_WAITERS` and `MAX_RUNS`). To a device that is closed, it says nothing.
    pub fn send(&self, message: DeviceMessage) {
        let _closed = self.pass(message);
    }

    /// Sends what somebody else asks for, who could ask without end.
    ///
    /// # Errors
    /// ResourceExhausted if [`MAX_MESSAGES`] wait already, Unavailable if no receiver is left.
    pub fn offer(&self, message: DeviceMessage) -> Result<()> {
        self.offer_up_to(MAX_MESSAGES, message)
    }

    /// Sends what follows from a refusal; for that a mailbox takes twice as many messages. Answers whether there was room.
    pub fn follow_up(&self, message: DeviceMessage) -> bool {
        self.offer_up_to(2 * MAX_MESSAGES, message).is_ok()
    }

    fn offer_up_to(&self, most: usize, message: DeviceMessage) -> Result<()> {
        if self.state.messages.load(Ordering::Relaxed) >= most {
            let why = format!("{MAX_MESSAGES} messages wait for the device already (MAX_MESSAGES)");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        self.pass(message)
    }

    fn pass(&self, message: DeviceMessage) -> Result<()> {
        self.state.messages.fetch_add(1, Ordering::Relaxed);
        let sent = self.sender.send(message);
        self.state.is_waiting.store(true, Ordering::Release);
        sent.map_err(|_| Failure::new(Code::Unavailable, "the device is closed"))
    }

    /// Whether a message may be waiting.
    pub fn is_waiting(&self) -> bool {
        self.has_message().load(Ordering::Relaxed)
    }

    /// Set while a message may be waiting.
    pub fn has_message(&self) -> &AtomicBool {
        &self.state.is_waiting
    }
}

impl Wake for Mailbox {
    fn wake(&self, wait: WaitId, result: Result<Answer>) {
        self.send(DeviceMessage::Wake { wait, result });
    }
}

impl DeviceInbox {
    /// The next message, if one is there.
    pub fn take(&self) -> Option<DeviceMessage> {
        // Lowered first: a message that comes now raises it again.
        self.state.is_waiting.swap(false, Ordering::Acquire);
        let message = self.receiver.try_recv().ok();
        if message.is_some() {
            self.state.messages.fetch_sub(1, Ordering::Relaxed);
            self.state.is_waiting.store(true, Ordering::Relaxed);
        }
        message
    }

    /// Waits for the next message; `None` when no sender is left.
    pub fn wait(&self) -> Option<DeviceMessage> {
        let message = self.receiver.recv().ok();
        self.state.messages.fetch_sub(usize::from(message.is_some()), Ordering::Relaxed);
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_ask_for_is_refused_where_too_much_waits() {
        let (mailbox, inbox) = open();
        let abort = |number| DeviceMessage::Abort { step: StepId { session: SessionId(1), number } };
        for number in 0..MAX_MESSAGES as u64 {
            mailbox.offer(abort(number)).unwrap();
        }
        let refused = mailbox.offer(abort(0)).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(refused.message.contains("MAX_MESSAGES"), "{refused}");
        let unwanted = || DeviceMessage::Unwanted { step: StepId { session: SessionId(1), number: 0 }, count: 1 };
        let followed = (0..2 * MAX_MESSAGES).take_while(|_| mailbox.follow_up(unwanted())).count();
        assert_eq!(followed, MAX_MESSAGES, "what follows from refusals has a bound of its own");
        for _ in 0..MAX_MESSAGES {
            inbox.take().unwrap();
        }
        mailbox.send(DeviceMessage::Close);
        assert!(inbox.take().is_some() && inbox.wait().is_some());
        mailbox.offer(abort(1)).unwrap();
        drop(inbox);
        let mailbox_of_nobody = mailbox.clone();
        mailbox_of_nobody.state.messages.store(0, Ordering::Relaxed);
        assert_eq!(mailbox_of_nobody.offer(abort(2)).unwrap_err().code, Code::Unavailable);
    }
}
