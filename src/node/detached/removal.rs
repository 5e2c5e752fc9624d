//! The removal of states from the disk. It may take long, so it is made on a thread that may wait, and under no lock.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use tokio::runtime::Handle;

use super::states::Folder;

/// The number of removals that are to be made.
#[derive(Default)]
pub(super) struct Removals {
    count: Mutex<usize>,
    ended: Condvar,
}

/// Folders that no run has any more, and that are to be removed.
#[must_use = "the folders stay on the disk"]
pub(super) struct Removal {
    folders: Vec<Folder>,
    of: Arc<Removals>,
}

impl Removals {
    /// A removal that is under way from now on.
    pub fn begin(of: &Arc<Removals>, folders: Vec<Folder>) -> Removal {
        *lock(&of.count) += 1;
        Removal { folders, of: Arc::clone(of) }
    }

    /// Waits until none is under way.
    ///
    /// # Errors
    /// Unavailable if one is after so long.
    pub fn wait(&self, within: Duration) -> Result<()> {
        let waited = self.ended.wait_timeout_while(lock(&self.count), within, |count| *count > 0);
        let (count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match *count {
            0 => Ok(()),
            _ => {
                let why = "the node is removing the states of earlier trainings from its disk; try again";
                Err(Failure::new(Code::Unavailable, why))
            }
        }
    }
}

impl Removal {
    /// Makes it on this thread.
    pub fn make(self) {
        self.folders.iter().for_each(Folder::remove);
    }

    /// Has it made on a thread of this runtime that may wait. Without such a thread, since the node ends, a later process of the
    /// task finds the folders.
    pub fn spawn(self, handle: &Handle) {
        if !self.folders.is_empty() {
            handle.spawn_blocking(move || self.make());
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        *lock(&self.of.count) -= 1;
        self.of.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::ids::SessionId;

    use super::super::states::States;
    use super::*;

    #[test]
    fn a_training_waits_for_the_states_that_make_room_for_its_own() {
        let root = temp_dir::TempDir::new().unwrap();
        let states = States::below(root.path().to_owned());
        let folder = states.folder(SessionId(7));
        std::fs::create_dir_all(folder.path()).unwrap();
        let removals = Arc::<Removals>::default();
        let removal = Removals::begin(&removals, vec![folder.clone()]);
        assert_eq!(removals.wait(Duration::ZERO).err().map(|why| why.code), Some(Code::Unavailable));
        let waiting = std::thread::spawn({
            let (removals, path) = (Arc::clone(&removals), folder.path().to_owned());
            move || removals.wait(Duration::from_secs(60)).map(|()| path.exists())
        });
        removal.make();
        assert_eq!(waiting.join().unwrap(), Ok(false));
        // One that is given up, as its node ends, is not waited for.
        drop(Removals::begin(&removals, vec![folder]));
        assert_eq!(removals.wait(Duration::ZERO), Ok(()));
    }

    #[tokio::test]
    async fn no_thread_of_the_runtime_makes_a_removal() {
        let root = temp_dir::TempDir::new().unwrap();
        let states = States::below(root.path().to_owned());
        let folder = states.folder(SessionId(7));
        std::fs::create_dir_all(folder.path()).unwrap();
        let removals = Arc::<Removals>::default();
        Removals::begin(&removals, vec![folder.clone()]).spawn(&Handle::current());
        // This thread is the only one of the runtime, and waits here.
        assert_eq!(removals.wait(Duration::from_secs(60)), Ok(()));
        assert!(!folder.path().exists());
    }
}
