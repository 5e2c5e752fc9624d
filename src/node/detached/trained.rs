//! A run that is a training: its states, and the facts about it for a later process of the node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::ids::SessionId;
use tokio::sync::Notify;

use super::entry::{Entry, Since};
use super::states::{About, Folder, now_ms};
use crate::protocol::Peer;
use crate::protocol::detached::DetachedState;
use crate::protocol::status::shorten_to;
use crate::protocol::training::{StateFile, TrainingInfo, TrainingStatus};

/// Most bytes of a notice.
const MAX_NOTICE_BYTES: usize = 2048;

/// The parts of a training besides its steps.
pub(super) struct Trained {
    pub info: TrainingInfo,
    pub folder: Folder,
    /// Bytes of the disk that its states may take while it is under way.
    pub bytes: u64,
    /// Those that they take after its end, unless they are dropped.
    kept: AtomicU64,
    /// Wakes it to end after the steps under way.
    pub stops: Notify,
}

impl Trained {
    pub fn new(info: TrainingInfo, folder: Folder, bytes: u64) -> Trained {
        Trained { info, folder, bytes, kept: AtomicU64::new(0), stops: Notify::new() }
    }

    /// Bytes of the disk that its states take after its end, as they were measured then.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Measures the states of a training that ends.
    pub fn measure(&self) {
        self.kept.store(self.folder.bytes(), Ordering::Relaxed);
    }

    /// One that is known only as far as a later process knows it.
    pub fn bare(folder: Folder) -> Trained {
        let info = TrainingInfo { per_epoch: 1, report: 1, batch: 0, names: Vec::new(), held_out: Vec::new() };
        Trained::new(info, folder, 0)
    }
}

impl Entry {
    /// A training that a participant began so long ago, of which these steps are done.
    pub fn of_training(
        (run, by): (SessionId, Peer),
        title: String,
        count: u64,
        training: Trained,
        since: Since,
    ) -> Entry {
        let mut entry = Entry::bare((run, by), title, count, since);
        entry.training = Some(training);
        entry
    }

    /// A training of an earlier process of this node.
    pub fn left(run: SessionId, folder: Folder, about: &About) -> Entry {
        let (began, ended) = about.ages(&folder);
        let states = TrainingStatus { saved: folder.newest(), has_best: folder.has_best() };
        let training = Trained::bare(folder);
        training.measure();
        let by = Peer::new(about.by.as_str());
        let entry = Entry::of_training((run, by), about.title.clone(), about.count, training, (began, about.step));
        {
            let (mut state, now) = (entry.state(), Instant::now());
            (state.state, state.states, state.is_starting) = (about.state(), states, false);
            state.ended = Some(now.checked_sub(ended).unwrap_or(now));
        }
        entry
    }

    /// The facts about a training for a later process.
    pub fn about(&self) -> About {
        let state = self.state();
        let failure = match &state.state {
            DetachedState::Failed(failure) => Some(failure.clone()),
            _ => None,
        };
        let ago = |then: Instant| now_ms().saturating_sub(then.elapsed().as_millis() as u64);
        About {
            title: self.title.clone(),
            by: self.by.as_str().to_owned(),
            count: self.count(),
            step: state.step,
            began: ago(self.began),
            ended: state.ended.map(ago),
            state: state.state.name().to_owned(),
            failure,
            stopped_by: state.stopped_by.as_ref().map(|by| by.as_str().to_owned()),
        }
    }

    /// A part of a state of a training, the bytes of the whole, and the stamp of the file.
    ///
    /// # Errors
    /// NotFound if there is no such state, or not any more; InvalidArgument if it is no training.
    pub fn state_part(&self, file: StateFile, offset: u64) -> Result<(u64, u64, Tensor)> {
        let none = || Failure::invalid(format!("run {} is no training, which alone has states", self.run));
        let folder = &self.training.as_ref().ok_or_else(none)?.folder;
        folder.part(file, offset)
    }

    /// Adds a notice.
    pub fn note(&self, mut text: String) {
        shorten_to(&mut text, MAX_NOTICE_BYTES);
        let mut state = self.state();
        state.notice = Some(text.clone());
        state.tail.notice(text);
    }

    /// The states of a training make room for those of later ones: their folder is to be removed.
    #[must_use = "the folder stays on the disk"]
    pub fn forget_states(&self) -> Option<Folder> {
        let training = self.training.as_ref()?;
        self.state().states = TrainingStatus::default();
        training.kept.store(0, Ordering::Relaxed);
        Some(training.folder.clone())
    }
}
