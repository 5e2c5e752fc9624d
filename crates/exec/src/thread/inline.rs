//! Quick steps run on the thread that delivers what they need: it need not wake the device's thread, nor that thread the one
//! that sends the answer. Each takes longer than a small step does.
//!
//! A turn is expected to be quick if the same came for it as for one that was. What is delivered lies in the device's queue as
//! always. When its message is seen to, the thread takes the device's table, if the device's own thread waits; sees to the
//! queue, in its order; and runs turns for [`MOST`] at most. What it leaves, the device's own thread goes on with.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_loops::denormals;

use super::Threads;
use crate::mailbox::DeviceMessage;
use crate::step::TurnEnd;

/// After this a thread leaves what is left to the device's.
const MOST: Duration = Duration::from_micros(200);

enum Here {
    /// Nothing is being delivered.
    Outside,
    /// The devices that were told something without being woken.
    Delivering(Vec<Arc<Threads>>),
    /// It is a device's thread, or runs a turn inline.
    InATurn,
}

thread_local! {
    static HERE: RefCell<Here> = const { RefCell::new(Here::Outside) };
}

/// This thread is a device's: it runs no turns of another.
pub(super) fn never() {
    HERE.set(Here::InATurn);
}

/// Whether this thread is a device's, or runs a turn inline.
pub(super) fn is_in_a_turn() -> bool {
    HERE.with_borrow(|here| matches!(here, Here::InATurn))
}

/// Calls `deliver`, which tells devices something, and then runs steps on this thread that it began or brought something for, if
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

/// Calls `work`: what it tells devices wakes their own threads.
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

/// Whether something waits on this thread for the end of [`delivering`]. The device's [`Sink`](crate::Sink) is flushed
/// then, and with it what the caller sent, if it goes the same way.
pub fn has_inline_work() -> bool {
    HERE.with_borrow(|here| matches!(here, Here::Delivering(devices) if !devices.is_empty()))
}

/// Whether this thread will visit the device when what is being delivered is seen to: then nobody else need be woken for it.
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
        // Several run beside each other. And if what delivered something panicked, the thread is not to be trusted with a step.
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
    /// Sees to what the device was told, if its own thread waits.
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
