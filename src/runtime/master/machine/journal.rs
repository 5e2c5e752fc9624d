//! The runs of a guarded session since its newest cut, so that their steps can be computed again.

use std::collections::VecDeque;
use std::sync::Arc;

use meshtf_graph::plan::Signature;
use meshtf_tensor::Tensor;
use meshtf_tensor::ids::RequestId;

use super::feeds::{self, Feeds};

/// Most runs of a journal, and most bytes of their feeds: beyond them a loss cannot be undone until the next cut.
const MAX_RUNS: usize = 1 << 16;
const MAX_BYTES: usize = 256 << 20;

/// A run, and how far it is.
pub(super) struct Logged {
    number: u64,
    pub request: RequestId,
    pub signature: Arc<Signature>,
    feeds: LoggedFeeds,
    bytes: usize,
    pub every: u64,
    pub is_watched: bool,
    /// Its steps up to this one are in the cut.
    pub from: u64,
    /// Its steps up to this one were done.
    pub done: u64,
    /// The same before it was to be computed again.
    reached: u64,
    pub total: u64,
    /// The last step whose values the client has.
    pub delivered: u64,
    /// It has ended, and its client has the answer.
    pub is_over: bool,
    /// The runs that were under way when it began: it waits for all other ones before it.
    beside: Vec<u64>,
    again: Again,
}

/// How far a run is that is computed again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Waits,
    Runs,
    Done,
}

enum LoggedFeeds {
    Same(Vec<Tensor>),
    /// A set for each step after the first `skipped`.
    Sets {
        skipped: u64,
        sets: VecDeque<Vec<Tensor>>,
    },
}

impl LoggedFeeds {
    /// Whether they are the feeds of that run, in the same memory: a client of this process may make its steps by one run after
    /// another.
    fn are_those_of(&self, other: &Logged) -> bool {
        let is_one = |(one, other): (&Tensor, &Tensor)| {
            one.dims() == other.dims()
                && one.dtype() == other.dtype()
                && one.bytes().zip(other.bytes()).is_some_and(|(one, other)| std::ptr::eq(one, other))
        };
        match (self, &other.feeds) {
            (LoggedFeeds::Same(own), LoggedFeeds::Same(others)) => {
                own.len() == others.len() && own.iter().zip(others).all(is_one)
            }
            _ => false,
        }
    }
}

/// A place between two steps of all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The first run that has not begun there.
    next: u64,
    /// Those that are under way, and how many of their steps are done.
    open: Vec<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct Journal {
    entries: VecDeque<Logged>,
    next: u64,
    /// Those of the feeds; feeds that a run shares with the one before it count once.
    bytes: usize,
}

impl Logged {
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The last of its steps of which the state had the effects, or the client the values.
    pub fn reached(&self) -> u64 {
        self.reached.max(self.done).max(self.delivered)
    }

    /// The feeds of its steps after `from`.
    pub fn feeds(&self) -> Feeds {
        match &self.feeds {
            LoggedFeeds::Same(feeds) => Feeds::Same(feeds.clone()),
            LoggedFeeds::Sets { skipped, sets } => {
                Feeds::PerStep(sets.iter().skip((self.from - skipped) as usize).cloned().collect())
            }
        }
    }

    /// Its steps up to `done` are in a cut.
    fn begin_after(&mut self, done: u64) {
        self.from = done;
        if let LoggedFeeds::Sets { skipped, sets } = &mut self.feeds {
            let gone = sets.drain(..((done - *skipped) as usize).min(sets.len()));
            self.bytes -= gone.map(|set| feeds::bytes(&set)).sum::<usize>();
            *skipped = done;
        }
    }
}

impl Journal {
    /// Notes a run that begins; whether there is room for it.
    pub fn begin(
        &mut self,
        request: RequestId,
        signature: &Arc<Signature>,
        feeds: &Feeds,
        total: u64,
        (every, is_watched): (u64, bool),
    ) -> bool {
        let feeds = match feeds {
            Feeds::Same(feeds) => LoggedFeeds::Same(feeds.clone()),
            Feeds::PerStep(sets) => LoggedFeeds::Sets { skipped: 0, sets: sets.clone() },
        };
        let bytes = match &feeds {
            LoggedFeeds::Same(feeds) => feeds::bytes(feeds),
            LoggedFeeds::Sets { sets, .. } => sets.iter().map(|set| feeds::bytes(set)).sum(),
        };
        let (number, signature) = (self.next, Arc::clone(signature));
        let beside = self.open().map(|one| one.number).collect();
        self.next += 1;
        if !self.entries.back().is_some_and(|last| feeds.are_those_of(last)) {
            self.bytes += bytes;
        }
        self.entries.push_back(Logged {
            number,
            request,
            signature,
            feeds,
            bytes,
            every,
            is_watched,
            from: 0,
            done: 0,
            reached: 0,
            total,
            delivered: 0,
            is_over: false,
            beside,
            again: Again::Waits,
        });
        self.entries.len() <= MAX_RUNS && self.bytes <= MAX_BYTES
    }

    /// The run of a request that is under way.
    pub fn active(&mut self, request: RequestId) -> Option<&mut Logged> {
        self.entries.iter_mut().rev().find(|one| !one.is_over && one.request == request)
    }

    /// Forgets the run of a request that is under way.
    pub fn forget(&mut self, request: RequestId) {
        if let Some(place) = self.entries.iter().position(|one| !one.is_over && one.request == request) {
            self.entries.remove(place);
            self.count_bytes();
        }
    }

    /// The run of a request that is under way has no steps any more but those of which the state had the effects, and nobody
    /// waits for it. Returns its last step. `is_replayed`: all runs have begun again, so that this one alone is to be.
    pub fn cut_short(&mut self, request: RequestId, is_replayed: bool) -> Option<u64> {
        if is_replayed {
            let again = |one: &Logged| if one.is_over { Again::Done } else { Again::Runs };
            self.entries.iter_mut().for_each(|one| one.again = again(one));
        }
        let one = self.active(request)?;
        let last = one.reached();
        (one.total, one.is_over) = (last, true);
        if let LoggedFeeds::Sets { skipped, sets } = &mut one.feeds {
            sets.truncate(last.saturating_sub(*skipped) as usize);
            one.bytes = sets.iter().map(|set| feeds::bytes(set)).sum();
        }
        self.count_bytes();
        Some(last)
    }

    fn count_bytes(&mut self) {
        let before = std::iter::once(None).chain(self.entries.iter().map(Some));
        let own = self
            .entries
            .iter()
            .zip(before)
            .filter(|(one, before)| !before.is_some_and(|last| one.feeds.are_those_of(last)));
        self.bytes = own.map(|(one, _)| one.bytes).sum();
    }

    /// The runs that are under way.
    pub fn open(&self) -> impl Iterator<Item = &Logged> {
        self.entries.iter().filter(|one| !one.is_over)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Logged> {
        self.entries.iter()
    }

    /// The run of that number.
    pub fn numbered(&self, number: u64) -> Option<&Logged> {
        self.entries.iter().find(|one| one.number == number)
    }

    /// The run that the client waits for: of those under way, the one of most steps.
    pub fn main(&self) -> Option<&Logged> {
        self.open().max_by_key(|one| (one.total, std::cmp::Reverse(one.number)))
    }

    /// The steps of the run that the client waits for that are computed again, with those of the runs like it that were over: a
    /// client may make its steps by one run after another.
    pub fn repeated(&self) -> u64 {
        let Some(main) = self.main() else { return 0 };
        let is_like = |one: &&Logged| one.number == main.number || one.is_over && one.signature == main.signature;
        self.entries.iter().filter(is_like).map(|one| one.reached().saturating_sub(one.from)).sum()
    }

    /// The place after the steps that are done.
    pub fn mark(&self) -> Mark {
        Mark { next: self.next, open: self.open().map(|one| (one.number, one.done)).collect() }
    }

    /// The steps before this place are in a cut.
    pub fn trim(&mut self, mark: &Mark) {
        let done = |number: u64| mark.open.iter().find(|(open, _)| *open == number).map(|(_, done)| *done);
        self.entries.retain(|one| one.number >= mark.next || done(one.number).is_some());
        for one in &mut self.entries {
            if let Some(done) = done(one.number) {
                one.begin_after(done);
            }
        }
        self.count_bytes();
    }

    /// Forgets the runs that are over.
    pub fn drop_over(&mut self) {
        self.entries.retain(|one| !one.is_over);
        self.count_bytes();
    }

    /// All runs are to be computed again.
    pub fn rewind(&mut self) {
        for one in &mut self.entries {
            (one.again, one.reached) = (Again::Waits, one.reached());
        }
    }

    /// The next run to compute again, or to continue with, in the order and beside the runs in and beside which they began. It
    /// counts as begun.
    pub fn next_again(&mut self) -> Option<&Logged> {
        let may_begin = |place: usize, one: &Logged| {
            let is_behind = |other: &Logged| other.again == Again::Done || one.beside.contains(&other.number);
            one.again == Again::Waits && self.entries.iter().take(place).all(is_behind)
        };
        let place = self.entries.iter().enumerate().position(|(place, one)| may_begin(place, one))?;
        let one = self.entries.get_mut(place)?;
        one.again = Again::Runs;
        if !one.is_over {
            one.done = one.from;
        }
        Some(one)
    }

    /// A run that was computed again is done.
    pub fn is_done_again(&mut self, number: u64) {
        self.entries.iter_mut().filter(|one| one.number == number).for_each(|one| one.again = Again::Done);
    }

    /// Whether all runs that were over are done again, and the others have begun.
    pub fn is_replayed(&self) -> bool {
        self.entries.iter().all(|one| match one.is_over {
            true => one.again == Again::Done,
            false => one.again != Again::Waits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(count: i32) -> Feeds {
        Feeds::PerStep((1..=count).map(|step| vec![Tensor::scalar(step)]).collect())
    }

    #[test]
    fn steps_before_a_mark_are_forgotten_with_their_feeds() {
        let (mut journal, signature) = (Journal::default(), Arc::new(Signature::default()));
        let begin = |journal: &mut Journal, id, feeds: &Feeds, total| {
            assert!(journal.begin(RequestId(id), &signature, feeds, total, (0, false)));
        };
        begin(&mut journal, 1, &Feeds::Same(vec![Tensor::scalar(7)]), 3);
        let first = journal.active(RequestId(1)).unwrap();
        (first.done, first.is_over) = (3, true);
        begin(&mut journal, 2, &sets(5), 5);
        journal.active(RequestId(2)).unwrap().done = 2;
        let mark = journal.mark();
        journal.active(RequestId(2)).unwrap().done = 4;
        assert_eq!(journal.repeated(), 7, "three steps of a run that was over, and four");
        journal.trim(&mark);
        assert_eq!(journal.repeated(), 2);
        let left: Vec<_> = journal.iter().map(|one| (one.request, one.from, one.done)).collect();
        assert_eq!(left, [(RequestId(2), 2, 4)]);
        let Feeds::PerStep(left) = journal.main().unwrap().feeds() else { panic!("sets") };
        assert_eq!(left, [3, 4, 5].map(|step| vec![Tensor::scalar(step)]));
        assert_eq!(journal.bytes, 12);
    }

    #[test]
    fn feeds_that_runs_share_count_once() {
        let (mut journal, signature) = (Journal::default(), Arc::new(Signature::default()));
        let large = Tensor::vector(vec![0u8; MAX_BYTES / 2 + 1]);
        let begin = |journal: &mut Journal, id, feeds: &Feeds| {
            let has_room = journal.begin(RequestId(id), &signature, feeds, 3, (0, false));
            let one = journal.active(RequestId(id)).unwrap();
            (one.done, one.is_over) = (3, true);
            has_room
        };
        let same = Feeds::Same(vec![large.clone()]);
        assert!((1..=100).all(|id| begin(&mut journal, id, &same)));
        assert_eq!(journal.bytes, MAX_BYTES / 2 + 1);
        // A cut between two of them.
        journal.trim(&Mark { next: 40, open: Vec::new() });
        assert_eq!((journal.iter().count(), journal.bytes), (60, MAX_BYTES / 2 + 1));
        let mut copy = large;
        copy.slice_mut::<u8>().unwrap()[0] = 0;
        assert!(!begin(&mut journal, 101, &Feeds::Same(vec![copy])), "equal ones in other memory count");
        journal.drop_over();
        assert_eq!(journal.bytes, 0);
    }

    #[test]
    fn a_run_that_is_cut_short_has_the_steps_that_were_done_before_a_loss() {
        let (mut journal, signature) = (Journal::default(), Arc::new(Signature::default()));
        assert!(journal.begin(RequestId(1), &signature, &sets(9), 9, (0, false)));
        let mark = Mark { next: 1, open: vec![(0, 2)] };
        journal.active(RequestId(1)).unwrap().done = 5;
        journal.trim(&mark);
        // Two losses: the second comes before all that was done is done again.
        journal.rewind();
        journal.next_again();
        journal.active(RequestId(1)).unwrap().done = 3;
        journal.rewind();
        journal.next_again();
        assert_eq!(journal.cut_short(RequestId(1), false), Some(5));
        assert_eq!(journal.cut_short(RequestId(1), false), None, "nobody waits for it");
        let one = journal.iter().next().unwrap();
        assert_eq!((one.from, one.total, one.is_over), (2, 5, true));
        let Feeds::PerStep(left) = one.feeds() else { panic!("sets") };
        assert_eq!(left, [3, 4, 5].map(|step| vec![Tensor::scalar(step)]));
        assert_eq!(journal.bytes, 12);
    }

    #[test]
    fn no_other_run_is_computed_again_for_one_that_is_cut_short() {
        let (mut journal, signature, feeds) = (Journal::default(), Arc::new(Signature::default()), Feeds::Same(vec![]));
        for id in 1..=3 {
            assert!(journal.begin(RequestId(id), &signature, &feeds, 9, (0, false)));
        }
        journal.rewind();
        while journal.next_again().is_some() {}
        // Two were asked for since, of which one is over.
        journal.active(RequestId(3)).unwrap().is_over = true;
        assert!(journal.begin(RequestId(4), &signature, &feeds, 9, (0, false)));
        assert_eq!(journal.cut_short(RequestId(2), true), Some(0));
        assert!(journal.next_again().is_none() && !journal.is_replayed());
        journal.is_done_again(1);
        assert!(journal.is_replayed());
    }

    #[test]
    fn runs_are_computed_again_as_they_began() {
        let (mut journal, signature, feeds) = (Journal::default(), Arc::new(Signature::default()), Feeds::Same(vec![]));
        let begin = |journal: &mut Journal, id| journal.begin(RequestId(id), &signature, &feeds, 1, (0, false));
        let end = |journal: &mut Journal, id| journal.active(RequestId(id)).unwrap().is_over = true;
        // The second began beside the first, the third after the second and beside the first, which is still under way.
        begin(&mut journal, 1);
        begin(&mut journal, 2);
        end(&mut journal, 2);
        begin(&mut journal, 3);
        end(&mut journal, 3);
        journal.rewind();
        let next = |journal: &mut Journal| journal.next_again().map(|one| one.request.0);
        assert_eq!([next(&mut journal), next(&mut journal), next(&mut journal)], [Some(1), Some(2), None]);
        assert!(!journal.is_replayed());
        journal.is_done_again(1);
        assert_eq!([next(&mut journal), next(&mut journal)], [Some(3), None]);
        assert!(!journal.is_replayed());
        journal.is_done_again(2);
        assert!(journal.is_replayed());
    }
}
