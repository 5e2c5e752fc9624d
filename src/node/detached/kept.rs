//! The limits of the runs of a node: how many are under way, and how many of those that ended are kept, with their values.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_tensor::failure::{Code, Failure, Result};

use super::entry::Entry;
use crate::protocol::detached::{KEPT_SECONDS, MAX_ENDED, MAX_RUNNING, MAX_VALUE_BYTES};

/// How long the values of a run are kept after its end in any case: its followers ask several times a second.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// Refuses one more run if too many are under way.
///
/// # Errors
/// ResourceExhausted.
pub(super) fn has_room(entries: &[Arc<Entry>]) -> Result<()> {
    let running = entries.iter().filter(|entry| entry.ended().is_none()).count();
    match running {
        MAX_RUNNING.. => {
            let why = format!("{MAX_RUNNING} detached runs are under way on this node, which is the limit");
            Err(Failure::new(Code::ResourceExhausted, why))
        }
        _ => Ok(()),
    }
}

/// Forgets the runs that ended a day ago, those that ended first beyond the limit, and the values of those that ended first.
pub(super) fn sweep(entries: &mut Vec<Arc<Entry>>, now: Instant) {
    let mut ended: Vec<(Instant, Arc<Entry>)> =
        entries.iter().filter_map(|entry| Some((entry.ended()?, Arc::clone(entry)))).collect();
    ended.sort_by_key(|(at, _)| Reverse(*at));
    let (mut number, mut bytes) = (0, 0usize);
    ended.retain(|(at, entry)| {
        let since = now.saturating_duration_since(*at);
        number += 1;
        if number > MAX_ENDED || since >= Duration::from_secs(KEPT_SECONDS) {
            return true;
        }
        bytes = bytes.saturating_add(entry.value_bytes());
        // The last that ended has its own limits.
        if bytes > MAX_VALUE_BYTES && number > 1 && since >= GRACE {
            entry.forget_values();
        }
        false
    });
    entries.retain(|entry| !ended.iter().any(|(_, gone)| Arc::ptr_eq(gone, entry)));
}

#[cfg(test)]
mod tests {
    use meshtf_graph::Graph;
    use meshtf_graph::plan::Signature;
    use meshtf_tensor::Tensor;
    use meshtf_tensor::ids::SessionId;

    use super::super::entry::{Steps, Whole};
    use super::*;
    use crate::protocol::{Peer, SessionOptions};

    fn entry(run: u64) -> Arc<Entry> {
        let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
        let steps = Steps { signature, feeds: Vec::new(), count: 1, every: 0 };
        let options = SessionOptions::default();
        let whole = Whole { title: String::new(), graph: Graph::default(), options, steps, has_heir: false };
        Arc::new(Entry::new(SessionId(run), Peer::new("me"), whole, (Duration::ZERO, 0)))
    }

    fn runs(entries: &[Arc<Entry>]) -> Vec<u64> {
        entries.iter().map(|entry| entry.run.0).collect()
    }

    /// Ends a run with values of that size.
    fn end(entry: &Entry, bytes: usize) {
        entry.part_done(1, vec![Tensor::vector(vec![0u8; bytes])]);
        entry.end(Ok(()));
    }

    #[test]
    fn a_run_that_ends_after_many_others_is_kept() {
        let mut entries: Vec<Arc<Entry>> = (0..=MAX_ENDED as u64 + 1).map(entry).collect();
        entries[2..].iter().for_each(|entry| end(entry, 1));
        // The first began long before all others, and the second is under way.
        end(&entries[0], 1);
        sweep(&mut entries, Instant::now());
        assert_eq!(entries.len(), MAX_ENDED + 1);
        assert_eq!(runs(&entries)[..3], [0, 1, 3], "the one that ended first is gone");
        let later = Instant::now() + Duration::from_secs(KEPT_SECONDS);
        sweep(&mut entries, later);
        assert_eq!(runs(&entries), [1]);
    }

    #[test]
    fn values_of_runs_that_ended_first_make_room_after_a_while() {
        let mut entries: Vec<Arc<Entry>> = (0..3).map(entry).collect();
        [1, 2, 0].iter().for_each(|run| end(&entries[*run], MAX_VALUE_BYTES / 2 + 1));
        let values = |entries: &[Arc<Entry>]| entries.iter().map(|entry| entry.value_bytes() > 0).collect::<Vec<_>>();
        sweep(&mut entries, Instant::now());
        assert_eq!(values(&entries), [true; 3], "their followers have time to fetch them");
        sweep(&mut entries, Instant::now() + GRACE);
        assert_eq!((values(&entries), runs(&entries)), (vec![true, false, false], vec![0, 1, 2]));
        let (followed, _) = entries[1].follow(0);
        assert!(followed.last.is_none() && followed.unkept.is_some_and(|why| why.contains("ended later")));
    }

    #[test]
    fn runs_that_start_count_among_those_under_way() {
        let entries: Vec<Arc<Entry>> = (0..MAX_RUNNING as u64).map(entry).collect();
        assert_eq!(has_room(&entries).err().map(|why| why.code), Some(Code::ResourceExhausted));
        entries[5].end(Ok(()));
        assert_eq!(has_room(&entries), Ok(()));
    }
}
