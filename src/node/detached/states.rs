//! The saved states of the trainings that a node makes by itself: a folder for each below that of the node's task, which one
//! process has. They outlive the process: a node that is started again has the states of the trainings that ended with it.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meshtf_checkpoint::write_whole;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use serde::{Deserialize, Serialize};

use super::removal::{Removal, Removals};
use crate::protocol::Peer;
use crate::protocol::detached::{DetachedState, KEPT_SECONDS};
use crate::protocol::training::{MAX_PART_BYTES, MAX_STATE_BYTES, StateFile};
use crate::trainer::stored::{BEST_FILE, state, states, step_of};

/// The file that the process of the task holds locked.
const LOCK: &str = "lock";
/// The file of the facts about a training besides its states.
const ABOUT: &str = "run.json";
/// How long a training may wait for the removal of states that make room for its own.
const REMOVED_WITHIN: Duration = Duration::from_secs(60);

/// The folders of the trainings of a node.
pub(super) struct States {
    root: PathBuf,
    held: Mutex<Option<File>>,
    /// Bytes of the files that came with trainings which are being prepared.
    preparing: Mutex<u64>,
    removals: Arc<Removals>,
}

/// Bytes of the disk for a training that is being prepared.
pub(super) struct Reserved<'a>(&'a Mutex<u64>, u64);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        *lock(self.0) -= self.1;
    }
}

/// A training, for a later process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct About {
    pub title: String,
    pub by: String,
    pub count: u64,
    pub step: u64,
    /// Milliseconds since 1970.
    pub began: u64,
    pub ended: Option<u64>,
    pub state: String,
    pub failure: Option<Failure>,
    pub stopped_by: Option<String>,
}

pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl States {
    /// Those below a folder, which is made when there is a training.
    pub fn below(root: PathBuf) -> States {
        States { root, held: Mutex::default(), preparing: Mutex::default(), removals: Arc::default() }
    }

    /// Makes the folder this process's own.
    ///
    /// # Errors
    /// FailedPrecondition if it cannot be used, or another process has it.
    pub fn hold(&self) -> Result<()> {
        let mut held = lock(&self.held);
        if held.is_some() {
            return Ok(());
        }
        let at = |why: &dyn std::fmt::Display| {
            let why = format!("the folder for the states of trainings, {}: {why}", self.root.display());
            Failure::new(Code::FailedPrecondition, why)
        };
        fs::create_dir_all(&self.root).map_err(|error| at(&error))?;
        let file = File::create(self.root.join(LOCK)).map_err(|error| at(&error))?;
        match file.try_lock() {
            Ok(()) => *held = Some(file),
            Err(TryLockError::WouldBlock) => return Err(at(&"another process has it")),
            Err(TryLockError::Error(error)) => return Err(at(&error)),
        }
        Ok(())
    }

    /// Reserves so many bytes for the files that come with a training, next to those that are used.
    ///
    /// # Errors
    /// ResourceExhausted if there is no room for them.
    pub fn reserve(&self, bytes: u64, used: u64) -> Result<Reserved<'_>> {
        let mut all = lock(&self.preparing);
        if all.saturating_add(bytes).saturating_add(used) > MAX_STATE_BYTES {
            let why = "the node has no room for the weights and the state that come with this training";
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        *all += bytes;
        Ok(Reserved(&self.preparing, bytes))
    }

    /// The removal of these folders, which counts as under way from now on.
    pub fn removal(&self, folders: Vec<Folder>) -> Removal {
        Removals::begin(&self.removals, folders)
    }

    /// Waits until the folders that are to be removed are gone, though not long.
    ///
    /// # Errors
    /// Unavailable if they are not gone by then.
    pub fn wait_for_removals(&self) -> Result<()> {
        self.removals.wait(REMOVED_WITHIN)
    }

    /// The trainings of earlier processes of this task, and the removal of those that nobody has changed for a day.
    pub fn left(&self) -> (Vec<(SessionId, Folder, About)>, Removal) {
        let (mut found, mut old) = (Vec::new(), Vec::new());
        if !self.root.is_dir() || self.hold().is_err() {
            return (found, self.removal(old));
        }
        let entries = fs::read_dir(&self.root).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        for path in entries {
            let digits = path.file_name().and_then(|name| name.to_str()).filter(|name| name.len() == 16);
            let Some(run) = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) else { continue };
            let folder = Folder { path };
            match folder.about().filter(|about| folder.age() < Duration::from_secs(KEPT_SECONDS) && about.step > 0) {
                Some(about) => found.push((SessionId(run), folder, about)),
                None => old.push(folder),
            }
        }
        (found, self.removal(old))
    }

    /// The folder of a training.
    pub fn folder(&self, run: SessionId) -> Folder {
        Folder { path: self.root.join(run.to_string()) }
    }
}

/// The folder of a training.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn remove(&self) {
        // The thread of a training that has just ended may write its note meanwhile.
        match fs::remove_dir_all(&self.path).or_else(|_| fs::remove_dir_all(&self.path)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("{} cannot be removed: {error}", self.path.display()),
        }
    }

    fn about(&self) -> Option<About> {
        serde_json::from_slice(&fs::read(self.path.join(ABOUT)).ok()?).ok()
    }

    /// Notes the facts about the training. A disk that is full is reported where a state is saved.
    pub fn note(&self, about: &About) {
        // One without a state has no folder.
        if !self.path.is_dir() {
            return;
        }
        let text = serde_json::json!(about).to_string();
        if let Err(error) = write_whole(&self.path.join(ABOUT), text.as_bytes()) {
            tracing::warn!("{}: {error}", self.path.display());
        }
    }

    /// How long ago something changed.
    fn age(&self) -> Duration {
        let entries = fs::read_dir(&self.path).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
        let newest = entries.filter_map(|one| one.modified().ok()).max();
        newest.and_then(|at| at.elapsed().ok()).unwrap_or_default()
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        let entries = fs::read_dir(&self.path).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
        entries.map(|one| one.len()).sum()
    }

    /// The step of the last state.
    pub fn newest(&self) -> Option<u64> {
        states(&self.path).ok()?.pop().and_then(|last| step_of(&last))
    }

    pub fn has_best(&self) -> bool {
        self.path.join(BEST_FILE).exists()
    }

    /// The path of a state.
    pub fn file(&self, file: StateFile) -> PathBuf {
        match file {
            StateFile::Step(step) => state(&self.path, step),
            StateFile::Best => self.path.join(BEST_FILE),
        }
    }

    /// Writes a state that was sent.
    ///
    /// # Errors
    /// InvalidArgument if the tensor is not of bytes; Internal if it cannot be written.
    pub fn write(&self, file: StateFile, bytes: &Tensor) -> Result<()> {
        let path = self.file(file);
        let bytes = bytes.slice::<u8>()?;
        let written = fs::create_dir_all(&self.path).and_then(|()| write_whole(&path, bytes));
        let at = |error| Failure::new(Code::Internal, format!("the state cannot be written: {error}"));
        written.map_err(at)
    }

    /// A part of a state, the bytes of the whole, and the stamp of the file: when it was written.
    ///
    /// # Errors
    /// NotFound if there is no such state, or not any more.
    pub fn part(&self, file: StateFile, offset: u64) -> Result<(u64, u64, Tensor)> {
        let path = self.file(file);
        let at = |error: std::io::Error| {
            let code = if error.kind() == ErrorKind::NotFound { Code::NotFound } else { Code::Internal };
            let name = path.file_name().unwrap_or_default().display();
            Failure::new(code, format!("the state {name}: {error}"))
        };
        let mut opened = File::open(&path).map_err(at)?;
        let about = opened.metadata().map_err(at)?;
        let written = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let (bytes, stamp) = (about.len(), written.map_or(0, |since| since.as_nanos() as u64));
        opened.seek(SeekFrom::Start(offset)).map_err(at)?;
        let mut part = Vec::with_capacity(bytes.saturating_sub(offset).min(MAX_PART_BYTES as u64) as usize);
        opened.take(MAX_PART_BYTES as u64).read_to_end(&mut part).map_err(at)?;
        Ok((bytes, stamp, Tensor::vector(part)))
    }
}

impl About {
    /// The state as it is known after the process that trained has ended.
    pub fn state(&self) -> DetachedState {
        match &*self.state {
            "done" => DetachedState::Done,
            "stopped" => DetachedState::Stopped { by: Peer::new(self.stopped_by.as_deref().unwrap_or(&self.by)) },
            "failed" => {
                let unknown = || Failure::new(Code::Unknown, "it failed");
                DetachedState::Failed(self.failure.clone().unwrap_or_else(unknown))
            }
            _ => {
                let why = "the process of its node ended before the training did".to_owned();
                DetachedState::Failed(Failure::new(Code::Unavailable, why))
            }
        }
    }

    /// How long ago it began, and it ended, by the clock: that of its last change unless it is known.
    pub fn ages(&self, folder: &Folder) -> (Duration, Duration) {
        let since = |at: u64| Duration::from_millis(now_ms().saturating_sub(at));
        (since(self.began), self.ended.map_or_else(|| folder.age(), since))
    }
}

#[cfg(test)]
mod tests {
    use temp_dir::TempDir;

    use super::*;

    fn about(step: u64) -> About {
        let (title, by, state) = ("m.json".to_owned(), "p".to_owned(), "running".to_owned());
        let (count, began) = (9, now_ms());
        About { title, by, count, step, began, ended: None, state, failure: None, stopped_by: None }
    }

    #[test]
    fn a_folder_is_of_one_process_and_outlives_it() {
        let root = TempDir::new().unwrap();
        let below = || States::below(root.child("states"));
        let first = below();
        first.hold().unwrap();
        let folder = first.folder(SessionId(0x3f));
        fs::create_dir_all(folder.path()).unwrap();
        folder.note(&about(3));
        fs::write(folder.file(StateFile::Step(3)), b"abc").unwrap();
        assert!(below().hold().is_err_and(|why| why.message.contains("another process has it")));
        assert_eq!(below().left().0.len(), 0);
        drop(first);
        // Another file there is no training; one without a state is forgotten.
        fs::create_dir_all(root.child("states").join("0000000000000001")).unwrap();
        let later = below();
        let (left, removal) = later.left();
        assert_eq!(left.len(), 1);
        let (run, folder, known) = &left[0];
        assert_eq!((*run, folder.newest(), folder.has_best()), (SessionId(0x3f), Some(3), false));
        assert!(matches!(known.state(), DetachedState::Failed(why) if why.code == Code::Unavailable));
        assert!(root.child("states").join("0000000000000001").exists(), "whoever has the time removes it");
        removal.make();
        assert!(!root.child("states").join("0000000000000001").exists());
    }

    #[test]
    fn files_that_come_with_trainings_have_a_limit_together() {
        let root = TempDir::new().unwrap();
        let states = States::below(root.path().to_owned());
        let first = states.reserve(MAX_STATE_BYTES / 2, 1).unwrap();
        assert!(states.reserve(MAX_STATE_BYTES / 2, 1).is_err_and(|why| why.code == Code::ResourceExhausted));
        drop(first);
        assert!(states.reserve(MAX_STATE_BYTES - 1, 1).is_ok());
        assert!(states.reserve(u64::MAX, 0).is_err());
    }

    #[test]
    fn a_state_is_read_part_by_part() {
        let root = TempDir::new().unwrap();
        let states = States::below(root.path().to_owned());
        let folder = states.folder(SessionId(7));
        fs::create_dir_all(folder.path()).unwrap();
        let all: Vec<u8> = (0..MAX_PART_BYTES + 5).map(|at| at as u8).collect();
        fs::write(folder.file(StateFile::Best), &all).unwrap();
        let (bytes, stamp, first) = folder.part(StateFile::Best, 0).unwrap();
        let (_, again, last) = folder.part(StateFile::Best, MAX_PART_BYTES as u64).unwrap();
        assert_eq!(stamp, again);
        assert_eq!((bytes, first.len(), last.len()), (all.len() as u64, MAX_PART_BYTES, 5));
        assert_eq!([first.bytes().unwrap(), last.bytes().unwrap()].concat(), all);
        // Beyond the end there is nothing.
        assert_eq!(folder.part(StateFile::Best, u64::from(u32::MAX)).unwrap().2.len(), 0);
        assert_eq!(folder.part(StateFile::Step(1), 0).unwrap_err().code, Code::NotFound);
    }
}
