//! The threads of a device: steps of many sessions take turns, and no step waits long for another's op.
//!
//! One thread drives: it takes the messages, and runs the turns one after the other. While it runs a turn, the device's
//! table lies where another thread can take it. That thread watches: if a turn has run for [`TICK`] and something
//! else waits for the device, it takes the table and drives on, and the turn ends beside it, at the latest after the op
//! under way. So an op that takes long delays its own step alone, whatever it computes, and short ones pay nothing for
//! it.

#[cfg(test)]
mod by_hand;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use table::Table;
pub use table::{MAX_PIECES, MAX_RUNS};

use super::denormals;
use super::inner::Inner;
use super::mailbox::{DeviceInbox, DeviceMessage};
use super::step::Turn;
use super::turn::Signal;
use crate::failure::{Code, Failure, Result};
use crate::lock::lock;
use crate::memory;

/// How often the watching thread looks. A turn that it sees twice has run for at least this long, and at most twice as long.
const TICK: Duration = Duration::from_millis(10);

/// After this many looks without a turn it sleeps until there is one.
const QUIET_TICKS: u32 = 16;

/// Most threads of one device: all but two of them may run slow ops before other ops have to wait.
pub const MAX_THREADS: usize = 16;

/// The threads of a device.
pub(super) struct Threads {
    place: Arc<Inner>,
    state: Mutex<State>,
    /// The watching thread is to look, or all are to end.
    watch: Condvar,
    /// A thread in reserve is to watch, or all are to end.
    reserve: Condvar,
}

#[derive(Default)]
struct State {
    lent: Option<Lent>,
    /// Turns that the driving threads have begun.
    turns: u64,
    is_watched: bool,
    /// The watching thread sleeps until there is a turn.
    is_asleep: bool,
    /// Threads that neither drive nor watch nor run a turn.
    in_reserve: usize,
    is_closed: bool,
    handles: Vec<JoinHandle<()>>,
    /// The driver of a device that has no threads.
    #[cfg(test)]
    by_hand: Option<Box<Driver>>,
}

/// What the driving thread has; the thread that has it is the driving one.
struct Driver {
    table: Table,
    inbox: DeviceInbox,
}

/// The driver, while its thread runs a turn.
struct Lent {
    driver: Box<Driver>,
    turn: u64,
    signal: Arc<Signal>,
}

impl Threads {
    /// Starts the threads of a device.
    ///
    /// # Errors
    /// ResourceExhausted if the machine gives none.
    pub fn start(place: Arc<Inner>, inbox: DeviceInbox) -> Result<Arc<Threads>> {
        let driver = Box::new(Driver { table: Table::new(Arc::clone(&place)), inbox });
        let (watch, reserve) = (Condvar::new(), Condvar::new());
        let threads = Arc::new(Threads { place, state: Mutex::default(), watch, reserve });
        threads.spawn(Some(driver))?;
        if let Err(failure) = threads.spawn(None) {
            threads.place.mailbox.send(DeviceMessage::Close);
            return Err(failure);
        }
        Ok(threads)
    }

    /// Waits for the threads to end, which the driving one was told. Not on one of them, which would wait for itself.
    pub fn join(&self) {
        let own = std::thread::current().id();
        if lock(&self.state).handles.iter().any(|handle| handle.thread().id() == own) {
            return;
        }
        loop {
            let Some(handle) = lock(&self.state).handles.pop() else { return };
            let _ended = handle.join();
        }
    }

    fn spawn(self: &Arc<Threads>, driver: Option<Box<Driver>>) -> Result<()> {
        let name = &self.place.name;
        let title = format!("{}:{}", name.kind.name(), name.index);
        let threads = Arc::clone(self);
        let handle = std::thread::Builder::new()
            .name(title)
            .spawn(move || threads.work(driver))
            .map_err(|error| Failure::new(Code::ResourceExhausted, format!("no thread for a device: {error}")))?;
        let mut state = lock(&self.state);
        state.handles.retain(|handle| !handle.is_finished());
        state.handles.push(handle);
        Ok(())
    }

    /// What every thread of a device does until the device is closed.
    fn work(self: &Arc<Threads>, mut driver: Option<Box<Driver>>) {
        denormals::flush();
        while let Some(driving) = driver.take().or_else(|| self.wait_to_drive()) {
            self.drive(driving);
        }
        memory::tell_all();
    }

    /// Drives until a turn took long and another thread drives, or the device is closed.
    fn drive(self: &Arc<Threads>, mut driver: Box<Driver>) {
        let at_work = self.place.busy.begin();
        loop {
            // The values of a turn and the word that its step is done go out together.
            self.flush();
            if !driver.table.has_turn() {
                let message = driver.inbox.take().or_else(|| at_work.pause(|| driver.inbox.wait()));
                match message {
                    None | Some(DeviceMessage::Close) => return self.close(driver),
                    Some(message) => driver.table.take(message),
                }
            }
            while let Some(message) = driver.inbox.take() {
                if matches!(message, DeviceMessage::Close) {
                    return self.close(driver);
                }
                driver.table.take(message);
            }
            let Some(mut turn) = driver.table.next_turn() else { continue };
            let number = self.lend(driver, &turn);
            let result = self.place.run(&mut turn);
            match self.take_back(number) {
                Some(back) => driver = back,
                None => {
                    self.flush();
                    return self.place.mailbox.send(DeviceMessage::Back { turn, result });
                }
            }
            driver.table.end(turn, result);
        }
    }

    /// A sink that panics must not end the thread.
    fn flush(&self) {
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.place.sink.flush()));
    }

    fn close(&self, mut driver: Box<Driver>) {
        self.flush();
        driver.table.close();
        lock(&self.state).is_closed = true;
        self.watch.notify_all();
        self.reserve.notify_all();
    }

    /// Lays the driver where the watching thread finds it while a turn runs.
    fn lend(&self, driver: Box<Driver>, turn: &Turn) -> u64 {
        let mut state = lock(&self.state);
        state.turns += 1;
        let number = state.turns;
        state.lent = Some(Lent { driver, turn: number, signal: Arc::clone(&turn.signal) });
        if std::mem::take(&mut state.is_asleep) {
            self.watch.notify_one();
        }
        number
    }

    /// The driver, if no thread has taken it since.
    fn take_back(&self, turn: u64) -> Option<Box<Driver>> {
        let mut state = lock(&self.state);
        if state.lent.as_ref()?.turn != turn {
            return None;
        }
        state.lent.take().map(|lent| lent.driver)
    }

    /// In reserve and then on watch, until this thread is to drive. `None` if it is to end: the device is closed, or enough
    /// others are there.
    fn wait_to_drive(self: &Arc<Threads>) -> Option<Box<Driver>> {
        let mut state = lock(&self.state);
        if state.is_watched {
            if state.in_reserve > 0 {
                return None;
            }
            state.in_reserve += 1;
            state = self
                .reserve
                .wait_while(state, |state| state.is_watched && !state.is_closed)
                .unwrap_or_else(PoisonError::into_inner);
            state.in_reserve -= 1;
        }
        state.is_watched = true;
        let (mut state, driver) = self.watch_turns(state);
        state.is_watched = false;
        if state.in_reserve > 0 {
            self.reserve.notify_one();
        } else if driver.is_some() {
            state.handles.retain(|handle| !handle.is_finished());
            let may_spawn = state.handles.len() < MAX_THREADS;
            drop(state);
            if may_spawn {
                // Without one, nobody watches until a turn that takes long ends; the device works all the same.
                let _none_given = self.spawn(None);
            }
        }
        driver
    }

    /// Looks at the turns until one takes long while something else waits; returns the driver then, and `None` once the
    /// device is closed.
    fn watch_turns<'a>(&self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, Option<Box<Driver>>) {
        let (mut seen, mut quiet) = (0, 0);
        while !state.is_closed {
            match &state.lent {
                Some(lent) if lent.turn == seen => {
                    if self.place.mailbox.is_waiting() || lent.driver.table.has_turn() {
                        lent.signal.make_way();
                        let driver = state.lent.take().map(|lent| lent.driver);
                        return (state, driver);
                    }
                }
                Some(lent) => (seen, quiet) = (lent.turn, 0),
                None if state.turns == seen => quiet += 1,
                None => (seen, quiet) = (state.turns, 0),
            }
            if quiet < QUIET_TICKS {
                state = self.watch.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            quiet = 0;
            state.is_asleep = true;
            state = self
                .watch
                .wait_while(state, |state| state.is_asleep && !state.is_closed)
                .unwrap_or_else(PoisonError::into_inner);
        }
        (state, None)
    }
}
