//! Keeps the record of a run while it runs. A thread of its own writes it, so that no disk delays a step; whatever fails there,
//! the run continues, and a warning is printed once.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use meshtf_tensor::lock::lock;

use super::origin::Git;
use super::record::{How, Record, now_ms};
use super::store::{MAX_BYTES, MAX_OTHERS, MAX_TRAININGS, Store};
use crate::cli::paint::warn;
use crate::cli::{Exit, Outcome};

/// The shortest interval of two writes of a record, the first interval, which doubles up to that one, and the longest: a record
/// that is not written is taken for that of a lost run.
const WRITE_EVERY: Duration = Duration::from_secs(5);
const FIRST_AFTER: Duration = Duration::from_millis(250);
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);
/// How long the end of a run waits until its record is written.
const END_WITHIN: Duration = Duration::from_secs(5);
/// A run of `submit` or `run` is recorded once it has run this long, or at once with at least so many steps.
pub const LONG: Duration = Duration::from_secs(10);
pub const MANY: u64 = 100;

/// Whether a run is recorded.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct RecordArgs {
    /// Keep no record of this run for `meshtf runs`
    #[arg(long, env = "MESHTF_NO_RECORD", value_parser = clap::builder::FalseyValueParser::new())]
    pub no_record: bool,
}

/// The record of this process's run; empty until the run begins, and if none is kept. Its copies share it.
#[derive(Clone, Default)]
pub(in crate::cli) struct Keeper {
    is_on: bool,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    record: Option<Record>,
    /// When it is written first.
    due: Option<Instant>,
    has_changed: bool,
    is_over: bool,
    /// The thread has ended.
    is_done: bool,
}

impl Keeper {
    pub fn new(args: &RecordArgs) -> Keeper {
        Keeper { is_on: !args.no_record, shared: Arc::default() }
    }

    /// Begins a record that is written after a while, unless it has begun. Its thread needs a store.
    pub fn begin(&self, after: Duration, record: impl FnOnce() -> Record) {
        self.begin_in(Store::of_user, after, record);
    }

    fn begin_in(
        &self,
        store: impl FnOnce() -> std::io::Result<Store> + Send + 'static,
        after: Duration,
        record: impl FnOnce() -> Record,
    ) {
        let mut state = lock(&self.shared.state);
        if !self.is_on || state.record.is_some() {
            return;
        }
        state.record = Some(record());
        state.due = Some(Instant::now() + after);
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new().name("meshtf-record".into()).spawn(move || {
            if let Err(error) = store().and_then(|store| shared.keep(&store)) {
                warn(format_args!("the run is not recorded: {error}"));
            }
            lock(&shared.state).is_done = true;
            shared.changed.notify_all();
        });
        state.is_done = started.is_err();
    }

    /// Changes the record, if there is one.
    pub fn change(&self, change: impl FnOnce(&mut Record)) {
        let mut state = lock(&self.shared.state);
        if let Some(record) = &mut state.record {
            change(record);
            state.has_changed = true;
        }
    }

    /// Ends the record, and waits until it is written.
    pub fn end(&self, outcome: &Outcome) {
        let (how, message) = match outcome {
            Ok(_) => (How::Done, None),
            Err(trouble) if trouble.is_closed_pipe() => (How::Done, None),
            Err(trouble) => match trouble.exit {
                Exit::Interrupted | Exit::Terminated | Exit::HungUp => (How::Stopped, Some(trouble.to_string())),
                _ => (How::Failed, Some(trouble.to_string())),
            },
        };
        self.change(|record| match &record.end {
            // The training says more.
            Some(end) if how == How::Done => record.ended(end.how, end.message.clone()),
            _ => record.ended(how, message),
        });
        let mut state = lock(&self.shared.state);
        if state.record.is_none() {
            return;
        }
        state.is_over = true;
        self.shared.changed.notify_all();
        let is_done = |state: &mut State| !state.is_done;
        let waited = self.shared.changed.wait_timeout_while(state, END_WITHIN, is_done);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            warn("the record of the run could not be written in time");
        }
    }

    /// A copy of the record.
    #[cfg(test)]
    fn record(&self) -> Option<Record> {
        lock(&self.shared.state).record.clone()
    }
}

impl Shared {
    /// Waits until the time, or the end of the run.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, until: Instant) -> MutexGuard<'a, State> {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(state, left, |state| !state.is_over);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Writes the record until the run is over.
    fn keep(&self, store: &Store) -> std::io::Result<()> {
        let mut state = lock(&self.state);
        while let Some(due) = state.due.filter(|due| Instant::now() < *due) {
            if state.is_over {
                return Ok(());
            }
            state = self.wait(state, due);
        }
        drop(state);
        let (mut id, mut is_warned, mut is_first, mut pause) = (None, false, true, FIRST_AFTER);
        loop {
            let mut state = lock(&self.state);
            let is_over = state.is_over;
            state.has_changed = false;
            let Some(record) = &mut state.record else { return Ok(()) };
            record.updated_ms = now_ms();
            let mut copy = record.clone();
            drop(state);
            let written = match &id {
                Some(_) => Ok(()),
                None => store.new_id().map(|new| id = Some(new)),
            };
            copy.id = id.clone().unwrap_or_default();
            let written = written.and_then(|()| store.write(&copy));
            if let Err(error) = &written
                && !std::mem::replace(&mut is_warned, true)
            {
                let folder = store.folder().display();
                warn(format_args!("the record of the run cannot be written to {folder}: {error}; the run continues"));
            }
            if std::mem::take(&mut is_first) {
                if written.is_ok() {
                    // A record that cannot be removed is in nobody's way.
                    let _later = store.prune(MAX_TRAININGS, MAX_OTHERS, MAX_BYTES);
                }
                let git = copy.graph.parent().and_then(Git::of);
                let mut state = lock(&self.state);
                if let Some(record) = state.record.as_mut().filter(|_| git.is_some()) {
                    record.git = git;
                    // Also if the run ended meanwhile.
                    continue;
                }
            }
            if is_over {
                return Ok(());
            }
            let (soon, last) = (Instant::now() + pause, Instant::now() + SIGN_OF_LIFE);
            pause = (2 * pause).min(WRITE_EVERY);
            let mut state = self.wait(lock(&self.state), soon);
            while !state.is_over && !state.has_changed && Instant::now() < last {
                let next = (Instant::now() + WRITE_EVERY).min(last);
                state = self.wait(state, next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use temp_dir::TempDir;

    use super::super::record::{self, Kind};
    use super::*;
    use crate::cli::Trouble;

    fn keeper(is_on: bool) -> Keeper {
        Keeper::new(&RecordArgs { no_record: !is_on })
    }

    fn begin(keeper: &Keeper, folder: &Path, after: Duration) {
        let store = Store::at(folder.to_owned());
        keeper.begin_in(|| Ok(store), after, || Record::new(Kind::Train, &folder.join("g.json"), "ab".into()));
    }

    #[test]
    fn a_run_has_one_record_that_says_how_it_ended() {
        for (outcome, how, message) in [
            (Ok(Exit::Ok), How::Done, None),
            (Err(Trouble::new(Exit::Terminated, "stopped by SIGTERM")), How::Stopped, Some("stopped by SIGTERM")),
            (Err(Trouble::new(Exit::GraphFailed, "the loss is NaN")), How::Failed, Some("the loss is NaN")),
        ] {
            let folder = TempDir::new().unwrap();
            let keeper = keeper(true);
            begin(&keeper, folder.path(), Duration::ZERO);
            // An attempt after the loss of a task is the same run.
            begin(&keeper, folder.path(), Duration::ZERO);
            keeper.change(|record| record.value("loss", false, 3, 0.5));
            keeper.end(&outcome);
            let records = Store::at(folder.path().to_owned()).records().unwrap();
            let [record] = &records[..] else { panic!("{records:?}") };
            let end = record.end.as_ref().unwrap();
            assert_eq!((end.how, end.message.as_deref()), (how, message));
            assert_eq!(record.first_curve(false).unwrap().last, Some((3, Some(0.5))));
            assert_eq!(record.state_now(), record::State::Ended(how));
        }
    }

    #[test]
    fn a_short_run_and_one_without_a_record_leave_nothing() {
        let folder = TempDir::new().unwrap();
        for (is_on, after) in [(true, Duration::from_secs(3600)), (false, Duration::ZERO)] {
            let keeper = keeper(is_on);
            begin(&keeper, folder.path(), after);
            keeper.end(&Ok(Exit::Ok));
            assert_eq!(keeper.record().is_some(), is_on);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_ends_nothing() {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.child("file"), "in the way").unwrap();
        let keeper = keeper(true);
        begin(&keeper, &folder.child("file"), Duration::ZERO);
        keeper.change(|record| record.steps.done = 7);
        keeper.end(&Ok(Exit::Ok));
        assert_eq!(keeper.record().unwrap().steps.done, 7);
        let homeless = self::keeper(true);
        let none = || Err(std::io::Error::other("no home folder is known"));
        homeless.begin_in(none, Duration::ZERO, || Record::new(Kind::Train, Path::new("g"), String::new()));
        homeless.end(&Ok(Exit::Ok));
    }
}
