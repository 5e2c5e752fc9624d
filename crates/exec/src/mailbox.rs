//! The mailbox of a device: a queue of messages to its threads, and a flag that a running step looks at between two ops.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Held, Result};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::lock::lock;

use super::parked::Claim;
use super::program::Source;
use super::sink::Pushed;
use super::step::{Body, Turn, TurnEnd};
use super::waiting::{Answer, WaitId, Wake};

/// Most messages that wait for a device. Requests from outside of it beyond that are refused.
pub const MAX_MESSAGES: usize = 1 << 16;

pub(super) enum DeviceMessage {
    /// A piece that was compiled.
    Register {
        id: PieceId,
        body: Box<Body>,
        /// Compiles its kernels again, if its steps can overlap.
        source: Option<Arc<Source>>,
        reply: SyncSender<Result<()>>,
    },
    Start {
        id: PieceId,
        first: u64,
        count: u64,
        /// They are of the same run as the step before the first.
        continues: bool,
        feeds: Vec<Tensor>,
        /// Accounts for the feeds while they wait.
        claim: Claim,
    },
    Arrive {
        step: StepId,
        values: Vec<Pushed>,
    },
    /// More values wait than the limit allows: the step of the value that exceeded it fails, and so do the steps that its start
    /// had still to run.
    Overflow {
        step: StepId,
        count: u64,
        failure: Failure,
    },
    /// A start was refused and the failure was reported. Nothing may wait for its steps.
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
    /// The outcome of an op that waited (a dequeue).
    Wake {
        wait: WaitId,
        result: Result<Answer>,
    },
    /// A turn that took long, and that other turns did not wait for, is over.
    Back {
        turn: Turn,
        result: Result<TurnEnd>,
    },
    /// Asks for the device's counts, and for the pieces, `most` of them, that ran most steps.
    Count {
        most: usize,
        reply: SyncSender<Load>,
    },
    /// Asks for the largest holder of memory.
    Largest {
        reply: SyncSender<Option<Held>>,
    },
    Close,
}

/// The counts of a device at one moment; all zero if it serves no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Sessions that the device knows.
    pub sessions: usize,
    /// Pieces of all sessions.
    pub pieces: usize,
    /// Steps under way, waiting to begin, or known only from values that came early.
    pub steps: usize,
    /// Values that came from other devices and wait for their step or their Recv.
    pub parked_values: usize,
    /// Bytes of these and of the feeds of steps that wait, with the overhead of keeping each.
    pub parked_bytes: usize,
}

/// The counts and the work of a device at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The counts.
    pub holds: Holds,
    /// Some of its pieces, and how many steps each has run.
    pub ran: Vec<(PieceId, u64)>,
    /// Turns under way of steps that were given up.
    pub ending: usize,
}

/// The sending side.
#[derive(Clone)]
pub(super) struct Mailbox {
    queue: Arc<dyn Post>,
    is_waiting: Arc<AtomicBool>,
}

/// Takes messages.
trait Post: Send + Sync {
    /// Takes a message if fewer than `most` wait, and wakes the waiting thread if it `rings`.
    ///
    /// # Errors
    /// ResourceExhausted if there is no room, Unavailable if the device is closed.
    fn pass(&self, most: usize, message: DeviceMessage, rings: bool) -> Result<()>;
}

/// The receiving side. It also holds the device's table, a `T`, while no thread works on it.
pub(super) struct DeviceInbox<T = ()>(Arc<State<T>>);

struct State<T> {
    queue: Mutex<Queue<T>>,
    /// Signals a message, or a turn to run, while the table is in the queue.
    bell: Condvar,
    /// Whether messages wait, as a hint that needs no lock.
    is_waiting: Arc<AtomicBool>,
}

struct Queue<T> {
    messages: VecDeque<DeviceMessage>,
    /// Present while a thread waits in [`DeviceInbox::wait`], unless another thread has it.
    table: Option<Box<T>>,
    /// The table has turns to run.
    is_due: bool,
    is_closed: bool,
}

pub(super) fn open<T: Send + 'static>() -> (Mailbox, DeviceInbox<T>) {
    let is_waiting = Arc::<AtomicBool>::default();
    let queue = Queue { messages: VecDeque::new(), table: None, is_due: false, is_closed: false };
    let state = State { queue: Mutex::new(queue), bell: Condvar::new(), is_waiting: Arc::clone(&is_waiting) };
    let state = Arc::new(state);
    (Mailbox { queue: Arc::clone(&state) as Arc<dyn Post>, is_waiting }, DeviceInbox(state))
}

impl<T: Send> Post for State<T> {
    fn pass(&self, most: usize, message: DeviceMessage, rings: bool) -> Result<()> {
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            return Err(Failure::new(Code::Unavailable, "the device is closed"));
        }
        if queue.messages.len() >= most {
            let why = format!("{MAX_MESSAGES} messages wait for the device already (MAX_MESSAGES)");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        queue.messages.push_back(message);
        self.is_waiting.store(true, Ordering::Relaxed);
        if rings && queue.table.is_some() {
            self.bell.notify_one();
        }
        Ok(())
    }
}

impl Mailbox {
    /// Sends a message of the device itself, or of the node. It always finds room: the number of such messages is bounded where
    /// they begin (by `MAX_WAITERS` and `MAX_RUNS`). A closed device receives nothing.
    pub fn send(&self, message: DeviceMessage) {
        let _closed = self.queue.pass(usize::MAX, message, true);
    }

    /// Sends a request from outside, where requests could be without end.
    ///
    /// # Errors
    /// ResourceExhausted if [`MAX_MESSAGES`] wait already, Unavailable if the device is closed.
    pub fn offer(&self, message: DeviceMessage) -> Result<()> {
        self.queue.pass(MAX_MESSAGES, message, true)
    }

    /// As [`Mailbox::offer`], without waking the device: the caller handles the message, or rings.
    ///
    /// # Errors
    /// As [`Mailbox::offer`].
    pub fn offer_quietly(&self, message: DeviceMessage) -> Result<()> {
        self.queue.pass(MAX_MESSAGES, message, false)
    }

    /// Sends a message that follows from a refusal; for these a mailbox takes twice as many messages. Returns whether there was
    /// room.
    pub fn follow_up(&self, message: DeviceMessage) -> bool {
        self.queue.pass(2 * MAX_MESSAGES, message, true).is_ok()
    }

    /// Whether a message may be waiting.
    pub fn is_waiting(&self) -> bool {
        self.has_message().load(Ordering::Relaxed)
    }

    /// Set while a message may be waiting.
    pub fn has_message(&self) -> &AtomicBool {
        &self.is_waiting
    }
}

impl Wake for Mailbox {
    fn wake(&self, wait: WaitId, result: Result<Answer>) {
        self.send(DeviceMessage::Wake { wait, result });
    }
}

impl<T> DeviceInbox<T> {
    /// The next message, if there is one.
    pub fn take(&self) -> Option<DeviceMessage> {
        self.take_if(|_| true)
    }

    /// The next message, if there is one and it is not the last.
    pub fn take_unless_close(&self) -> Option<DeviceMessage> {
        self.take_if(|message| !matches!(message, DeviceMessage::Close))
    }

    fn take_if(&self, is_wanted: impl FnOnce(&DeviceMessage) -> bool) -> Option<DeviceMessage> {
        self.next(&mut lock(&self.0.queue), is_wanted)
    }

    fn next(&self, queue: &mut Queue<T>, is_wanted: impl FnOnce(&DeviceMessage) -> bool) -> Option<DeviceMessage> {
        let message = if queue.messages.front().is_some_and(is_wanted) { queue.messages.pop_front() } else { None };
        self.0.is_waiting.store(!queue.messages.is_empty(), Ordering::Relaxed);
        message
    }

    /// Waits for the next message, or for turns to run. Other threads can take the table meanwhile.
    pub fn wait(&self, table: Box<T>) -> (Box<T>, Option<DeviceMessage>) {
        let mut queue = lock(&self.0.queue);
        queue.table = Some(table);
        loop {
            if (queue.is_due || !queue.messages.is_empty())
                && let Some(table) = queue.table.take()
            {
                queue.is_due = false;
                return (table, self.next(&mut queue, |_| true));
            }
            queue = self.0.bell.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The table, if the device's own thread waits and has no turns to continue with. The thread that takes the table handles
    /// all messages, in their order.
    pub fn take_table(&self) -> Option<Box<T>> {
        let mut queue = lock(&self.0.queue);
        if queue.is_due { None } else { queue.table.take() }
    }

    /// Gives the table back. The device's thread continues if `is_due` (it has turns to run) or there are messages.
    pub fn give_back(&self, table: Box<T>, is_due: bool) {
        let mut queue = lock(&self.0.queue);
        queue.is_due = is_due;
        queue.table = Some(table);
        if queue.is_due || !queue.messages.is_empty() {
            self.0.bell.notify_one();
        }
    }

    /// Wakes the device's thread if it sleeps although there are messages.
    pub fn ring(&self) {
        let queue = lock(&self.0.queue);
        if queue.table.is_some() && !queue.messages.is_empty() {
            self.0.bell.notify_one();
        }
    }

    /// Takes no more messages, and drops those that wait.
    pub fn close(&self) {
        let dropped = {
            let mut queue = lock(&self.0.queue);
            queue.is_closed = true;
            std::mem::take(&mut queue.messages)
        };
        drop(dropped);
    }
}

impl<T> Drop for DeviceInbox<T> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_ask_for_is_refused_where_too_much_waits() {
        let (mailbox, inbox) = open::<()>();
        let abort = |number| DeviceMessage::Abort { step: StepId { session: SessionId(1), number } };
        for number in 0..MAX_MESSAGES as u64 {
            mailbox.offer(abort(number)).unwrap();
        }
        assert_eq!(mailbox.offer_quietly(abort(0)).unwrap_err().code, Code::ResourceExhausted);
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
        assert!(inbox.take().is_some() && inbox.take().is_some());
        mailbox.offer(abort(1)).unwrap();
        drop(inbox);
        assert_eq!(mailbox.offer(abort(2)).unwrap_err().code, Code::Unavailable);
    }
}
