//! Quick steps run on the thread that delivers what they need: it need not wake the device's thread, nor that thread the one
//! that sends the answer. Each takes longer than a small step does.
//!
//! A turn is expected to be quick if the last one of its piece was, and neither what came for it nor what an op is about to
//! make is much more than it was then. What is delivered is put aside until its message is seen to; then the thread takes the
//! device's table, if the device has nothing to do, and runs turns for [`MOST`] at most. What it leaves, the device's own
//! thread goes on with.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Threads;
use super::table::Table;
use crate::exec::denormals;
use crate::exec::mailbox::DeviceMessage;
use crate::exec::step::TurnEnd;
use crate::lock::lock;

/// After this a thread leaves what is left to the device's.
const MOST: Duration = Duration::from_micros(200);

/// What waits until a message is seen to, by device.
type Waiting = Vec<(Arc<Threads>, Vec<DeviceMessage>)>;

enum Here {
    /// Nothing is being delivered.
    Outside,
    Delivering(Waiting),
    /// It runs a turn, or may not run any.
    Never,
}

thread_local! {
    static HERE: RefCell<Here> = const { RefCell::new(Here::Outside) };
}

/// This thread is a device's: it runs no turns of another.
pub(super) fn never() {
    HERE.set(Here::Never);
}

/// Calls `deliver`, which tells devices something, and then runs steps on this thread that it began or brought something for, if
/// they are expected to be quick. The caller should hold no lock: a step calls the device's [`Sink`](crate::exec::Sink).
pub fn delivering<T>(deliver: impl FnOnce() -> T) -> T {
    let is_outermost = HERE.with_borrow_mut(|here| {
        let is_outside = matches!(here, Here::Outside);
        if is_outside {
            *here = Here::Delivering(Waiting::new());
        }
        is_outside
    });
    if !is_outermost {
        return deliver();
    }
    let _run = Run;
    deliver()
}

/// Keeps a message for a device until what is being delivered is seen to.
///
/// # Errors
/// Gives it back if nothing is being delivered.
pub(in crate::exec) fn put_aside(to: &Arc<Threads>, message: DeviceMessage) -> Result<(), DeviceMessage> {
    HERE.with_borrow_mut(|here| match here {
        Here::Delivering(waiting) => {
            match waiting.iter_mut().find(|(threads, _)| Arc::ptr_eq(threads, to)) {
                Some((_, messages)) => messages.push(message),
                None => waiting.push((Arc::clone(to), vec![message])),
            }
            Ok(())
        }
        Here::Outside | Here::Never => Err(message),
    })
}

/// Whether something waits on this thread for the end of [`delivering`]. The device's [`Sink`](crate::exec::Sink) is flushed
/// then, and with it what the caller sent, if it goes the same way.
pub fn has_inline_work() -> bool {
    HERE.with_borrow(|here| matches!(here, Here::Delivering(waiting) if !waiting.is_empty()))
}

/// Runs what was put aside, when it is dropped.
struct Run;

impl Drop for Run {
    fn drop(&mut self) {
        let Here::Delivering(waiting) = HERE.replace(Here::Never) else { return };
        for (threads, messages) in waiting {
            threads.run_inline(messages);
        }
        HERE.set(Here::Outside);
    }
}

impl Threads {
    /// The table, if the device has nothing to do, and this thread may have it.
    fn idle_table(&self) -> Option<Box<Table>> {
        let mut state = lock(&self.state);
        // If what delivers something panics, its thread is not to be trusted with a step.
        if state.is_idle_awaited || std::thread::panicking() { None } else { state.idle.take() }
    }

    fn run_inline(&self, messages: Vec<DeviceMessage>) {
        let Some(mut table) = self.idle_table() else {
            self.flush();
            return messages.into_iter().for_each(|message| self.place.mailbox.send(message));
        };
        let _at_work = self.place.busy.begin();
        let _flushed = denormals::Flushed::begin();
        for message in messages {
            table.take(message);
        }
        if !table.has_quick_turn() {
            self.flush();
        }
        let mut since = Instant::now();
        let until = since + MOST;
        while table.has_quick_turn() && since < until {
            let Some(mut turn) = table.next_turn() else { break };
            let number = self.lend(table, None, &turn);
            let result = self.place.run_until(Some(until), &mut turn);
            let Some(lent) = self.take_back(number) else {
                self.flush();
                return self.place.mailbox.send(DeviceMessage::Back { turn, result });
            };
            table = lent.table;
            let now = Instant::now();
            let is_cut_short = matches!(result, Ok(TurnEnd::Yields));
            table.end(turn, result, now - since);
            since = now;
            self.flush();
            if is_cut_short {
                break;
            }
        }
        let is_more = table.has_turn();
        self.give_to_driver(&mut lock(&self.state), table, is_more);
    }
}
