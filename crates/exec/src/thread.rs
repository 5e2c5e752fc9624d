//! The threads of a device: steps of many sessions take turns, and no step waits long for another's op.
//!
//! One thread drives: it takes the messages, and runs the turns one after the other. While it runs a turn, another thread can
//! take the device's table. That thread watches: if a turn has run for [`TICK`] and something else waits for the device, it
//! takes the table and drives from then on. The turn ends in parallel, at the latest after the op under way. So an op that
//! takes long delays only its own step, whatever it computes, and short ops pay nothing for it.
//!
//! While the driving thread waits for a message, the table is in the inbox, where the thread that brings a message can take it;
//! see [`inline`].

mod by_hand;
pub(super) mod inline;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use meshtf_loops::denormals;
use meshtf_loops::turn::Signal;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
pub(super) use table::Table;
pub use table::{MAX_OVERLAP, MAX_PIECES, MAX_RUNS};

use super::inner::Inner;
use super::mailbox::{DeviceInbox, DeviceMessage};
use super::step::Turn;

/// The interval at which the watching thread looks. A turn that it sees twice has run for at least this long, and at most twice
/// as long.
const TICK: Duration = Duration::from_millis(10);

/// After this many looks without a turn it sleeps until there is one.
const QUIET_TICKS: u32 = 16;

/// Most threads of one device: all but two of them may run slow ops before other ops have to wait.
pub const MAX_THREADS: usize = 16;

/// The threads of a device.
pub(super) struct Threads {
    place: Arc<Inner>,
    inbox: DeviceInbox<Table>,
    state: Mutex<State>,
    /// Wakes the watching thread to look, or to end.
    watch: Condvar,
    /// Wakes a thread in reserve to watch, or all of them to end.
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
    /// The table of a device that has no threads.
    by_hand: Option<Box<Table>>,
}

/// The table, while the thread that has it runs a turn.
struct Lent {
    table: Box<Table>,
    /// The turn runs inline: the device's own thread waits.
    is_inline: bool,
    turn: u64,
    signal: Arc<Signal>,
}

impl Threads {
    /// Starts the threads of a device.
    ///
    /// # Errors
    /// ResourceExhausted if the system refuses one.
    pub fn start(place: Arc<Inner>, inbox: DeviceInbox<Table>) -> Result<Arc<Threads>> {
        let table = Box::new(Table::new(Arc::clone(&place)));
        let threads = Threads::with(place, inbox, State::default());
        threads.spawn(Some(table))?;
        if let Err(failure) = threads.spawn(None) {
            threads.place.mailbox.send(DeviceMessage::Close);
            return Err(failure);
        }
        Ok(threads)
    }

    fn with(place: Arc<Inner>, inbox: DeviceInbox<Table>, state: State) -> Arc<Threads> {
        Arc::new(Threads { place, inbox, state: Mutex::new(state), watch: Condvar::new(), reserve: Condvar::new() })
    }

    /// Waits for the threads to end; the driving one must have been sent `Close`. Does nothing on a thread of a device, or on
    /// one that runs a turn inline, which could wait for itself.
    pub fn join(&self) {
        if inline::is_in_a_turn() {
            return;
        }
        loop {
            let Some(handle) = lock(&self.state).handles.pop() else { return };
            let _ended = handle.join();
        }
    }

    fn spawn(self: &Arc<Threads>, table: Option<Box<Table>>) -> Result<()> {
        let name = &self.place.name;
        let title = format!("{}:{}", name.kind.name(), name.index);
        let threads = Arc::clone(self);
        let handle = std::thread::Builder::new()
            .name(title)
            .spawn(move || threads.work(table))
            .map_err(|error| Failure::new(Code::ResourceExhausted, format!("no thread for a device: {error}")))?;
        let mut state = lock(&self.state);
        state.handles.retain(|handle| !handle.is_finished());
        state.handles.push(handle);
        Ok(())
    }

    /// The work of every thread of a device until the device is closed.
    fn work(self: &Arc<Threads>, mut table: Option<Box<Table>>) {
        denormals::flush();
        inline::never();
        self.place.resources.budget().for_thread();
        while let Some(table) = table.take().or_else(|| self.wait_to_drive()) {
            self.drive(table);
        }
        memory::tell_all();
    }

    /// Drives until a turn took long and another thread drives, or the device is closed.
    fn drive(self: &Arc<Threads>, mut table: Box<Table>) {
        let at_work = self.place.busy.begin();
        loop {
            // The values of a turn and the notice that its step is done are sent together.
            self.flush();
            if !table.has_turn() {
                let message;
                (table, message) = match self.inbox.take() {
                    Some(message) => (table, Some(message)),
                    None => at_work.pause(|| self.inbox.wait(table)),
                };
                match message {
                    Some(DeviceMessage::Close) => return self.close(table),
                    Some(message) => table.take(message),
                    None => {}
                }
            }
            while let Some(message) = self.inbox.take() {
                if matches!(message, DeviceMessage::Close) {
                    return self.close(table);
                }
                table.take(message);
            }
            let Some(mut turn) = table.next_turn() else { continue };
            let number = self.lend(table, false, &turn);
            let began = Instant::now();
            let result = self.place.run(&mut turn);
            match self.take_back(number) {
                Some(back) => table = back,
                None => {
                    self.flush();
                    return self.place.mailbox.send(DeviceMessage::Back { turn, result });
                }
            }
            table.end(turn, result, began.elapsed());
        }
    }

    /// Flushes the sink. A sink that panics must not end the thread.
    fn flush(&self) {
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.place.sink.flush()));
    }

    fn close(&self, mut table: Box<Table>) {
        self.flush();
        table.close();
        self.inbox.close();
        lock(&self.state).is_closed = true;
        self.watch.notify_all();
        self.reserve.notify_all();
    }

    /// Gives the table back to the device's own thread, which continues with the turns that it has.
    fn leave_to_driver(&self, table: Box<Table>) {
        let is_due = table.has_turn();
        self.inbox.give_back(table, is_due);
    }

    /// Puts the table where the watching thread finds it while a turn runs.
    fn lend(&self, table: Box<Table>, is_inline: bool, turn: &Turn) -> u64 {
        let mut state = lock(&self.state);
        state.turns += 1;
        let number = state.turns;
        state.lent = Some(Lent { table, is_inline, turn: number, signal: Arc::clone(&turn.signal) });
        if std::mem::take(&mut state.is_asleep) {
            self.watch.notify_one();
        }
        number
    }

    /// Takes the table back; `None` if another thread has taken it since.
    fn take_back(&self, turn: u64) -> Option<Box<Table>> {
        let mut state = lock(&self.state);
        if state.lent.as_ref()?.turn != turn {
            return None;
        }
        state.lent.take().map(|lent| lent.table)
    }

    /// In reserve and then on watch, until this thread has to drive. `None` if it has to end: the device is closed, or there
    /// are enough other threads.
    fn wait_to_drive(self: &Arc<Threads>) -> Option<Box<Table>> {
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
                // Without a new thread, none watches until a turn that takes long ends; the device still works.
                let _none_given = self.spawn(None);
            }
        }
        driver
    }

    /// Watches the turns until one takes long while something else waits, and returns the table then; `None` once the device is
    /// closed.
    fn watch_turns<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, Option<Box<Table>>) {
        let (mut seen, mut quiet) = (0, 0);
        while !state.is_closed {
            match &state.lent {
                Some(lent) if lent.turn == seen => {
                    let is_inline = lent.is_inline;
                    if (self.place.mailbox.is_waiting() || lent.table.has_turn())
                        && let Some(Lent { mut table, signal, .. }) = state.lent.take()
                    {
                        signal.make_way();
                        table.leave_turn();
                        if !is_inline {
                            return (state, Some(table));
                        }
                        self.leave_to_driver(table);
                    }
                    if is_inline {
                        // Messages that waited to be sent with the values of the step would otherwise wait for an op that takes
                        // long.
                        drop(state);
                        self.flush();
                        state = lock(&self.state);
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
