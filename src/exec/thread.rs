//! The threads of a device: steps of many sessions take turns, and no step waits long for another's op.
//!
//! One thread drives: it takes the messages, and runs the turns one after the other. While it runs a turn, the device's
//! table lies where another thread can take it. That thread watches: if a turn has run for [`TICK`] and something
//! else waits for the device, it takes the table and drives on, and the turn ends beside it, at the latest after the op
//! under way. So an op that takes long delays its own step alone, whatever it computes, and short ones pay nothing for
//! it.
//!
//! While the driving thread waits for a message, the table lies where the thread that brings one can take it; see
//! [`inline`].

#[cfg(test)]
mod by_hand;
pub(super) mod inline;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
    /// The table lies in `idle` again.
    returned: Condvar,
}

#[derive(Default)]
struct State {
    /// The table, while the driving thread waits for a message: a thread that brings one may take it.
    idle: Option<Box<Table>>,
    /// The driving thread has a message, and waits for the table: it is the next to have it.
    is_idle_awaited: bool,
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
    by_hand: Option<Driver>,
}

/// What the driving thread has; the thread that has it is the driving one.
struct Driver {
    table: Box<Table>,
    inbox: DeviceInbox,
}

/// What a thread that runs a turn leaves for another to go on with.
struct Lent {
    table: Box<Table>,
    /// `None` of a turn that runs inline: the thread that waits for messages has it.
    inbox: Option<DeviceInbox>,
    turn: u64,
    signal: Arc<Signal>,
}

impl Threads {
    /// Starts the threads of a device.
    ///
    /// # Errors
    /// ResourceExhausted if the machine gives none.
    pub fn start(place: Arc<Inner>, inbox: DeviceInbox) -> Result<Arc<Threads>> {
        let driver = Driver { table: Box::new(Table::new(Arc::clone(&place))), inbox };
        let threads = Threads::with(place, State::default());
        threads.spawn(Some(driver))?;
        if let Err(failure) = threads.spawn(None) {
            threads.place.mailbox.send(DeviceMessage::Close);
            return Err(failure);
        }
        Ok(threads)
    }

    fn with(place: Arc<Inner>, state: State) -> Arc<Threads> {
        let (watch, reserve, returned) = (Condvar::new(), Condvar::new(), Condvar::new());
        Arc::new(Threads { place, state: Mutex::new(state), watch, reserve, returned })
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

    fn spawn(self: &Arc<Threads>, driver: Option<Driver>) -> Result<()> {
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
    fn work(self: &Arc<Threads>, mut driver: Option<Driver>) {
        denormals::flush();
        inline::never();
        while let Some(driving) = driver.take().or_else(|| self.wait_to_drive()) {
            self.drive(driving);
        }
        memory::tell_all();
    }

    /// Drives until a turn took long and another thread drives, or the device is closed.
    fn drive(self: &Arc<Threads>, driver: Driver) {
        let at_work = self.place.busy.begin();
        let Driver { mut table, mut inbox } = driver;
        loop {
            // The values of a turn and the word that its step is done go out together.
            self.flush();
            if !table.has_turn() {
                let message;
                (table, message) = match inbox.take() {
                    Some(message) => (table, Some(message)),
                    None => at_work.pause(|| self.wait(table, &inbox)),
                };
                match message {
                    None | Some(DeviceMessage::Close) => return self.close(table),
                    Some(message) => table.take(message),
                }
            }
            while let Some(message) = inbox.take() {
                if matches!(message, DeviceMessage::Close) {
                    return self.close(table);
                }
                table.take(message);
            }
            let Some(mut turn) = table.next_turn() else { continue };
            let number = self.lend(table, Some(inbox), &turn);
            let began = Instant::now();
            let result = self.place.run(&mut turn);
            match self.take_back(number) {
                Some(Lent { table: back, inbox: Some(its), .. }) => (table, inbox) = (back, its),
                _ => {
                    self.flush();
                    return self.place.mailbox.send(DeviceMessage::Back { turn, result });
                }
            }
            table.end(turn, result, began.elapsed());
        }
    }

    /// Waits for a message, and lets those that bring one have the table meanwhile.
    fn wait(&self, table: Box<Table>, inbox: &DeviceInbox) -> (Box<Table>, Option<DeviceMessage>) {
        lock(&self.state).idle = Some(table);
        let message = inbox.wait();
        let mut state = lock(&self.state);
        loop {
            if let Some(table) = state.idle.take() {
                state.is_idle_awaited = false;
                return (table, message);
            }
            state.is_idle_awaited = true;
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Leaves the table to the thread that waits for messages. If there `is_more` to do, it goes on with that at once.
    fn give_to_driver(&self, state: &mut State, table: Box<Table>, is_more: bool) {
        state.idle = Some(table);
        if is_more {
            self.place.mailbox.send(DeviceMessage::GoOn);
        }
        if state.is_idle_awaited {
            self.returned.notify_one();
        }
    }

    /// A sink that panics must not end the thread.
    fn flush(&self) {
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.place.sink.flush()));
    }

    fn close(&self, mut table: Box<Table>) {
        self.flush();
        table.close();
        lock(&self.state).is_closed = true;
        self.watch.notify_all();
        self.reserve.notify_all();
    }

    /// Lays the table where the watching thread finds it while a turn runs.
    fn lend(&self, table: Box<Table>, inbox: Option<DeviceInbox>, turn: &Turn) -> u64 {
        let mut state = lock(&self.state);
        state.turns += 1;
        let number = state.turns;
        state.lent = Some(Lent { table, inbox, turn: number, signal: Arc::clone(&turn.signal) });
        if std::mem::take(&mut state.is_asleep) {
            self.watch.notify_one();
        }
        number
    }

    /// What was lent, if no thread has taken it since.
    fn take_back(&self, turn: u64) -> Option<Lent> {
        let mut state = lock(&self.state);
        if state.lent.as_ref()?.turn != turn {
            return None;
        }
        state.lent.take()
    }

    /// In reserve and then on watch, until this thread is to drive. `None` if it is to end: the device is closed, or enough
    /// others are there.
    fn wait_to_drive(self: &Arc<Threads>) -> Option<Driver> {
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
    fn watch_turns<'a>(&self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, Option<Driver>) {
        let (mut seen, mut quiet) = (0, 0);
        while !state.is_closed {
            match &state.lent {
                Some(lent) if lent.turn == seen => {
                    if self.place.mailbox.is_waiting() || lent.table.has_turn() {
                        lent.signal.make_way();
                        match state.lent.take() {
                            Some(Lent { table, inbox: Some(inbox), .. }) => {
                                return (state, Some(Driver { table, inbox }));
                            }
                            // Of an inline turn: the thread that has the inbox drives.
                            Some(Lent { table, .. }) => self.give_to_driver(&mut state, table, true),
                            None => {}
                        }
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
