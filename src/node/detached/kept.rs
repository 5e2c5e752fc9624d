//! The limits of the runs of a node: how many are under way, and how many of those that ended are kept, with their values and
//! the states of trainings.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory::Bytes;

use super::entry::Entry;
use super::states::Folder;
use crate::protocol::detached::{KEPT_SECONDS, MAX_ENDED, MAX_RUNNING, MAX_VALUE_BYTES};
use crate::protocol::training::{MAX_STATE_BYTES, MAX_TRAININGS};

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

/// Refuses one more training if too many are under way: each holds its examples in memory.
///
/// # Errors
/// ResourceExhausted.
pub(super) fn has_room_for_training(entries: &[Arc<Entry>]) -> Result<()> {
    let running = entries.iter().filter(|entry| entry.training.is_some() && entry.ended().is_none()).count();
    match running {
        MAX_TRAININGS.. => {
            let why = format!(
                "{MAX_TRAININGS} detached trainings are under way on this node, which is the limit: `meshtf runs` lists them, \
                 `meshtf stop` ends one, and --target names another node"
            );
            Err(Failure::new(Code::ResourceExhausted, why))
        }
        _ => Ok(()),
    }
}

/// Bytes of the disk that the states of these runs take, or may take.
pub(super) fn used(entries: &[Arc<Entry>]) -> u64 {
    entries.iter().map(disk).fold(0, u64::saturating_add)
}

/// Bytes of the disk that the states of a run take, or may take.
fn disk(entry: &Arc<Entry>) -> u64 {
    entry.training.as_ref().map_or(0, |training| match entry.ended() {
        None => training.bytes,
        Some(_) => training.kept(),
    })
}

/// Makes room on the disk for the states of one more training: those of trainings that ended first are dropped. Their folders are
/// to be removed.
///
/// # Errors
/// ResourceExhausted if those that are under way leave no room.
pub(super) fn make_disk(entries: &[Arc<Entry>], bytes: u64) -> Result<Vec<Folder>> {
    let (mut all, limit) = (used(entries), MAX_STATE_BYTES);
    let mut ended: Vec<(Instant, Arc<Entry>)> =
        entries.iter().filter_map(|entry| Some((entry.ended()?, Arc::clone(entry)))).collect();
    ended.sort_by_key(|(at, _)| *at);
    let needed = |all: u64| all.saturating_add(bytes) > limit;
    let can_be_freed = ended.iter().map(|(_, entry)| disk(entry)).fold(0, u64::saturating_add);
    if needed(all.saturating_sub(can_be_freed)) {
        let shown = |bytes: u64| Bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
        let why = format!(
            "the states of this training may take {}, and a node keeps {} of all trainings, {} of which those under way may take",
            shown(bytes),
            shown(limit),
            shown(all.saturating_sub(can_be_freed))
        );
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    let mut dropped = Vec::new();
    for (_, entry) in ended {
        if !needed(all) {
            break;
        }
        let own = disk(&entry);
        if own > 0 {
            all = all.saturating_sub(own);
            dropped.extend(entry.forget_states());
        }
    }
    Ok(dropped)
}

/// Forgets the runs that ended a day ago, those that ended first beyond the limit, and the values of those that ended first.
/// Returns the folders of their states, which are to be removed.
#[must_use = "the folders stay on the disk"]
pub(super) fn sweep(entries: &mut Vec<Arc<Entry>>, now: Instant) -> Vec<Folder> {
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
    ended.iter().filter_map(|(_, gone)| gone.forget_states()).collect()
}

#[cfg(test)]
mod tests {
    use meshtf_graph::Graph;
    use meshtf_graph::plan::Signature;
    use meshtf_tensor::Tensor;
    use meshtf_tensor::ids::SessionId;

    use super::super::entry::{Steps, Whole};
    use super::super::states::States;
    use super::super::trained::Trained;
    use super::*;
    use crate::protocol::training::StateFile;
    use crate::protocol::{Peer, SessionOptions};

    fn entry(run: u64) -> Arc<Entry> {
        let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
        let steps = Steps { signature, feeds: Vec::new(), count: 1, every: 0 };
        let options = SessionOptions::default();
        let whole = Whole {
            title: String::new(),
            graph: Graph::default(),
            options,
            steps,
            has_heir: false,
            is_attended: false,
        };
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
        let dropped = sweep(&mut entries, Instant::now());
        assert_eq!((entries.len(), dropped.len()), (MAX_ENDED + 1, 0));
        assert_eq!(runs(&entries)[..3], [0, 1, 3], "the one that ended first is gone");
        let later = Instant::now() + Duration::from_secs(KEPT_SECONDS);
        assert!(sweep(&mut entries, later).is_empty(), "none of them has states");
        assert_eq!(runs(&entries), [1]);
    }

    #[test]
    fn values_of_runs_that_ended_first_make_room_after_a_while() {
        let mut entries: Vec<Arc<Entry>> = (0..3).map(entry).collect();
        [1, 2, 0].iter().for_each(|run| end(&entries[*run], MAX_VALUE_BYTES / 2 + 1));
        let values = |entries: &[Arc<Entry>]| entries.iter().map(|entry| entry.value_bytes() > 0).collect::<Vec<_>>();
        let _none = sweep(&mut entries, Instant::now());
        assert_eq!(values(&entries), [true; 3], "their followers have time to fetch them");
        let _none = sweep(&mut entries, Instant::now() + GRACE);
        assert_eq!((values(&entries), runs(&entries)), (vec![true, false, false], vec![0, 1, 2]));
        let (followed, _) = entries[1].follow(0);
        assert!(followed.last.is_none() && followed.unkept.is_some_and(|why| why.contains("ended later")));
    }

    fn training(run: u64, folder: &temp_dir::TempDir, bytes: u64) -> Arc<Entry> {
        let own = States::below(folder.path().to_owned()).folder(SessionId(run));
        std::fs::create_dir_all(own.path()).unwrap();
        std::fs::write(own.file(StateFile::Step(1)), [0; 10]).unwrap();
        let mut trained = Trained::bare(own);
        trained.bytes = bytes;
        Arc::new(Entry::of_training((SessionId(run), Peer::new("me")), "m".into(), 9, trained, (Duration::ZERO, 0)))
    }

    #[test]
    fn trainings_have_limits_of_their_own() {
        let folder = temp_dir::TempDir::new().unwrap();
        let mut entries: Vec<Arc<Entry>> =
            (0..MAX_TRAININGS as u64).map(|run| training(run, &folder, MAX_STATE_BYTES / 16)).collect();
        let why = has_room_for_training(&entries).unwrap_err();
        assert!(why.code == Code::ResourceExhausted && why.message.contains("meshtf stop"), "{why}");
        // Half of the disk may be used by those.
        let dropped = |entries: &[Arc<Entry>], bytes: u64| make_disk(entries, bytes).unwrap().len();
        assert_eq!(dropped(&entries, MAX_STATE_BYTES / 2), 0);
        let why = make_disk(&entries, MAX_STATE_BYTES / 2 + 1).unwrap_err();
        assert!(why.message.contains("17.2 GB of all trainings, 8.59 GB of which"), "{why}");
        assert_eq!(used(&entries), MAX_STATE_BYTES / 2);
        // One that has ended has what it has, until that is needed.
        entries[3].state().states.saved = Some(1);
        entries[3].end(Ok(()));
        assert_eq!(has_room_for_training(&entries), Ok(()));
        let rest = MAX_STATE_BYTES / 16 * 9;
        assert_eq!(dropped(&entries, rest - 10), 0);
        let gone = make_disk(&entries, rest).unwrap();
        assert!(gone.len() == 1 && gone[0].newest() == Some(1), "whoever called removes it, and holds no lock then");
        let states = entries[3].status().training.map(|states| states.saved);
        assert_eq!((states, used(&entries)), (Some(None), MAX_STATE_BYTES / 16 * 7), "it has none any more");
        assert_eq!(dropped(&entries, rest), 0, "it is dropped once");
        assert!(make_disk(&entries, rest + 1).is_err());
        // Its states go with it.
        entries[0].end(Ok(()));
        let gone = sweep(&mut entries, Instant::now() + Duration::from_secs(KEPT_SECONDS));
        assert_eq!(runs(&entries), [1, 2, 4, 5, 6, 7]);
        let paths: Vec<&std::path::Path> = gone.iter().map(Folder::path).collect();
        assert_eq!(paths, [0, 3].map(|run| folder.child(SessionId(run).to_string())));
    }

    #[test]
    fn runs_that_start_count_among_those_under_way() {
        let entries: Vec<Arc<Entry>> = (0..MAX_RUNNING as u64).map(entry).collect();
        assert_eq!(has_room(&entries).err().map(|why| why.code), Some(Code::ResourceExhausted));
        entries[5].end(Ok(()));
        assert_eq!(has_room(&entries), Ok(()));
    }
}
