//! Quick steps on the thread that delivers their inputs: it need not wake the device's thread, nor that thread the one that
//! sends the answer. Each wake-up takes longer than a small step does.
//!
//! A turn is expected to be quick if its inputs have the shapes of those of a quick turn. A message is put into the device's
//! queue as always. At the end of the delivery, if the device's own thread waits, the delivering thread takes the device's
//! table, handles the messages in their order, and runs turns for [`MOST`] at most. The device's own thread continues with the
//! remainder.
//!
//! The delivery under way is a value of its thread and no argument. Between [`delivering`] and the message that reaches a device
//! are masters, workers, requests and sinks, of another crate and behind traits: each of their functions would have to pass it,
//! to most of which it means nothing. And it has to notice that a step which runs inline delivers on the same thread again,
//! through a sink that is called by the device. Only this file knows the value.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_loops::denormals;

use super::Threads;
use crate::mailbox::DeviceMessage;
use crate::step::TurnEnd;

/// After this time a thread leaves the remainder to the device's thread.
const MOST: Duration = Duration::from_micros(200);

enum Here {
    /// Nothing is being delivered.
    Outside,
    /// The devices that were sent messages without being woken.
    Delivering(Vec<Arc<Threads>>),
    /// This thread is a device's, or runs a turn inline.
    InATurn,
}

thread_local! {
    static HERE: RefCell<Here> = const { RefCell::new(Here::Outside) };
}

/// Marks this thread as a device's: it runs no turns of another.
pub(super) fn never() {
    HERE.set(Here::InATurn);
}

/// Whether this thread is a device's, or runs a turn inline.
pub(super) fn is_in_a_turn() -> bool {
    HERE.with_borrow(|here| matches!(here, Here::InATurn))
}

/// Calls `deliver`, which sends messages to devices, and then runs steps on this thread that it began or brought values for, if
/// they are expected to be quick. The caller must hold no lock: a step calls the device's [`Sink`](crate::Sink).
pub fn delivering<T>(deliver: impl FnOnce() -> T) -> T {
    let is_outermost = HERE.with_borrow_mut(|here| {
        let is_outside = matches!(here, Here::Outside);
        if is_outside {
            *here = Here::Delivering(Vec::new());
        }
        is_outside
    });
    if !is_outermost {
        return deliver();
    }
    let _visits = Visits;
    deliver()
}

/// Calls `work`. The messages that it sends to devices wake their own threads.
pub fn without_inline<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Here>);
    impl Drop for Restore {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|here| HERE.set(here));
        }
    }
    let _restore = Restore(Some(HERE.replace(Here::InATurn)));
    work()
}

/// Whether work waits on this thread for the end of [`delivering`]. The device's [`Sink`](crate::Sink) is flushed then, and
/// with it the caller's messages to the same receiver.
pub fn has_inline_work() -> bool {
    HERE.with_borrow(|here| matches!(here, Here::Delivering(devices) if !devices.is_empty()))
}

/// Whether this thread will visit the device at the end of the delivery: then no other thread need be woken for it.
pub(crate) fn will_visit(device: &Arc<Threads>) -> bool {
    HERE.with_borrow_mut(|here| {
        let Here::Delivering(devices) = here else { return false };
        if !devices.iter().any(|other| Arc::ptr_eq(other, device)) {
            devices.push(Arc::clone(device));
        }
        true
    })
}

/// Visits the devices when it is dropped.
struct Visits;

impl Drop for Visits {
    fn drop(&mut self) {
        let Here::Delivering(devices) = HERE.replace(Here::InATurn) else { return };
        // Several devices run in parallel, on their own threads. After a panic of the delivery, this thread runs no step.
        match devices.as_slice() {
            [device] if !std::thread::panicking() => device.visit(),
            devices => devices.iter().for_each(|device| {
                device.flush();
                device.inbox.ring();
            }),
        }
        HERE.set(Here::Outside);
    }
}

impl Threads {
    /// Handles the messages of the device, if its own thread waits.
    fn visit(&self) {
        let Some(mut table) = self.inbox.take_table() else { return self.flush() };
        let _at_work = self.place.busy.begin();
        let _flushed = denormals::Flushed::begin();
        while let Some(message) = self.inbox.take_unless_close() {
            table.take(message);
        }
        let mut since = Instant::now();
        let until = since + MOST;
        while since < until
            && let Some(mut turn) = table.next_quick_turn()
        {
            let number = self.lend(table, true, &turn);
            let result = self.place.run_until(Some(until), &mut turn);
            let Some(back) = self.take_back(number) else {
                self.flush();
                return self.place.mailbox.send(DeviceMessage::Back { turn, result });
            };
            table = back;
            let is_cut_short = matches!(result, Ok(TurnEnd::Yields));
            table.end(turn, result, since.elapsed());
            if is_cut_short {
                break;
            }
            self.flush();
            since = Instant::now();
        }
        self.flush();
        self.leave_to_driver(table);
    }
}
