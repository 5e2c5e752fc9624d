//! How a device's thread is spoken to: a channel, and a flag that a running step looks at between two ops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

use super::token::Tokens;
use super::{Holds, Pushed};
use crate::failure::Result;
use crate::ids::{PieceId, SessionId, StepId};
use crate::plan::Piece;
use crate::tensor::Tensor;

pub(super) enum Message {
    Register {
        id: PieceId,
        piece: Box<Piece>,
        reply: SyncSender<Result<()>>,
    },
    Start {
        id: PieceId,
        first: u64,
        count: u64,
        feeds: Vec<Tensor>,
    },
    Arrive {
        step: StepId,
        values: Vec<Pushed>,
    },
    /// More values wait than may: the step that one more came for fails.
    Overflow {
        step: StepId,
    },
    Abort {
        step: StepId,
    },
    Release {
        session: SessionId,
    },
    /// What an op that waited (a dequeue) got.
    Wake {
        ticket: Ticket,
        result: Result<Tokens>,
    },
    Count {
        reply: SyncSender<Holds>,
    },
    Close,
}

/// Names one op that waits, in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub step: StepId,
    /// Counted within the step.
    pub number: u64,
}

/// The sending side.
#[derive(Clone)]
pub(super) struct Mailbox {
    sender: Sender<Message>,
    waiting: Arc<AtomicBool>,
}

/// The receiving side.
pub(super) struct Inbox {
    receiver: Receiver<Message>,
    waiting: Arc<AtomicBool>,
}

pub(super) fn open() -> (Mailbox, Inbox) {
    let (sender, receiver) = mpsc::channel();
    let waiting = Arc::new(AtomicBool::new(false));
    (Mailbox { sender, waiting: waiting.clone() }, Inbox { receiver, waiting })
}

impl Mailbox {
    /// A message to a thread that has ended is dropped.
    pub fn send(&self, message: Message) {
        let _ = self.sender.send(message);
        self.waiting.store(true, Ordering::Release);
    }
}

impl Inbox {
    /// Whether a message may be waiting.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The next message, if one is there.
    pub fn take(&self) -> Option<Message> {
        // Lowered first: a message that comes now raises it again.
        self.waiting.swap(false, Ordering::Acquire);
        let message = self.receiver.try_recv().ok();
        if message.is_some() {
            self.waiting.store(true, Ordering::Relaxed);
        }
        message
    }

    /// Waits for the next message; `None` when nobody is left to send one.
    pub fn wait(&self) -> Option<Message> {
        self.receiver.recv().ok()
    }
}
