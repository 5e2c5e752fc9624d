//! The messages of guarded sessions: consistent copies of a session's state (*cuts*), kept in the memory of other tasks, from
//! which the session continues when a task is lost.
//!
//! Pure data. A cut is taken between two steps, on all tasks that the session uses at once. The task that keeps another's part
//! of it is that task's *buddy*. Parts go from task to task, never through the master or the client.

use std::fmt;

use meshtf_exec::Edition;
use meshtf_tensor::device::{DeviceKind, Task};
use meshtf_tensor::failure::Failure;
use meshtf_tensor::ids::Incarnation;
use serde::{Deserialize, Serialize};

use super::{Member, Message, Peer, SessionId, ToWorker};

/// The number of a cut of a session, from 1.
pub type Cut = u64;

/// The messages to a worker about the guard of a session. All but the last three come from the session's master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The doc of a message leaves out fields that their names and types explain.
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ToGuard {
    /// Take the parts of cuts that these peers send from now on, and none that others send. Answered by
    /// [`GuardReport::Ready`]. `ask` numbers what the master asks for, so that a late answer is not taken for that of a later
    /// question.
    Serve { session: SessionId, ask: u64, of: Vec<Peer> },
    /// No step is under way: take a copy of the session's state here, and send it to the buddy by [`ToGuard::Keep`]. If `base`
    /// is a cut that both still have, what has not changed since is not sent. Answered by [`GuardReport::Copied`] as soon as
    /// the steps may continue, and later by the buddy's [`GuardReport::Kept`].
    Copy { session: SessionId, cut: Cut, base: Option<Cut>, buddy: Peer },
    /// All parts of this cut are kept: forget earlier ones.
    Complete { session: SessionId, cut: Cut },
    /// Get ready to put the session's state here back to that of the cut, unless another session has changed it since. Answered
    /// by [`GuardReport::Ready`].
    Restore { session: SessionId, ask: u64, cut: Cut, from: Origin },
    /// All tasks are ready: put the state back that is here. Answered by [`GuardReport::Restored`].
    Return { session: SessionId, ask: u64 },
    /// Send the part of the cut that `of` had sent to the peer that holds its task now.
    GiveBack { session: SessionId, ask: u64, cut: Cut, of: Peer, to: Peer },
    /// If this master is lost, that node may take its place, until another is named. `None`: there is none any more, as far as
    /// this master knows.
    Heir { session: SessionId, heir: Option<Peer> },
    /// From the heir of a master that is lost, in its place: as [`ToGuard::Serve`]. `term` is greater than that of the master,
    /// which is refused from then on, and `cut` the one of the estate: the worker refuses if it knows of a later one that is
    /// complete, with which that master has gone on.
    Adopt { session: SessionId, ask: u64, term: u64, cut: Cut, of: Vec<Peer> },
    /// From a master that another one has superseded: release the session's pieces, and keep the copies for that.
    Cede { session: SessionId },
    /// From a task to its buddy: one of the `chunks` of its part of a cut. The tensors: for each resource that is not the same
    /// as in `base`, first its form, as bytes, and then its tensors.
    Keep { session: SessionId, cut: Cut, base: Option<Cut>, chunk: u32, chunks: u32, resources: Vec<SentResource> },
    /// From a buddy to the new holder of a task: as [`ToGuard::Keep`]. The last one is answered to the master by
    /// [`GuardReport::Restored`].
    Load { session: SessionId, ask: u64, cut: Cut, chunk: u32, chunks: u32, resources: Vec<SentResource> },
    /// To the sender of a [`ToGuard::Keep`] or [`ToGuard::Load`]: the chunk is taken, and another one may follow.
    Taken { session: SessionId, parcel: Parcel, chunk: u32 },
}

impl From<ToGuard> for ToWorker {
    fn from(message: ToGuard) -> Self {
        ToWorker::Guard(message)
    }
}

impl From<ToGuard> for Message {
    fn from(message: ToGuard) -> Self {
        ToWorker::Guard(message).into()
    }
}

impl ToGuard {
    /// This message without the resources: enough to answer that it could not be taken.
    #[must_use]
    pub fn about(&self) -> ToGuard {
        let resources = Vec::new();
        match *self {
            ToGuard::Keep { session, cut, base, chunk, chunks, .. } => {
                ToGuard::Keep { session, cut, base, chunk, chunks, resources }
            }
            ToGuard::Load { session, ask, cut, chunk, chunks, .. } => {
                ToGuard::Load { session, ask, cut, chunk, chunks, resources }
            }
            ref other => other.clone(),
        }
    }

    /// The session that is guarded.
    pub fn session(&self) -> SessionId {
        match self {
            ToGuard::Serve { session, .. }
            | ToGuard::Copy { session, .. }
            | ToGuard::Complete { session, .. }
            | ToGuard::Restore { session, .. }
            | ToGuard::Return { session, .. }
            | ToGuard::GiveBack { session, .. }
            | ToGuard::Heir { session, .. }
            | ToGuard::Adopt { session, .. }
            | ToGuard::Cede { session }
            | ToGuard::Keep { session, .. }
            | ToGuard::Load { session, .. }
            | ToGuard::Taken { session, .. } => *session,
        }
    }
}

/// The purpose of the chunks that go from one task to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Parcel {
    /// The part of a cut that a buddy is to keep.
    Cut(Cut),
    /// The state that the master asked a buddy, by that number, to give back.
    Ask(u64),
}

/// Where a task's part of a cut is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// At the task itself, which was copied or has loaded it.
    Here,
    /// At its buddy, which will send it by [`ToGuard::Load`].
    Buddy(Peer),
    /// The session had nothing there, and another process holds the task by now: the session has nothing there again.
    Nothing,
}

/// A resource in a part of a cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentResource {
    /// Its container.
    pub container: String,
    /// Its name.
    pub name: String,
    /// Only the session sees it.
    pub is_own: bool,
    /// The device that it is on: kind and number.
    pub device: (DeviceKind, u32),
    /// Its state; `None`: the same as in the base.
    pub state: Option<SentState>,
}

/// The state of a resource, without its form and its tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentState {
    /// The kind of the resource.
    pub kind: String,
    /// The version of its contents.
    pub version: Edition,
    /// How many tensors follow its form.
    pub tensors: u32,
}

/// The reports of a worker to the master of a guarded session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The doc of a message leaves out fields that their names and types explain.
#[allow(missing_docs)]
#[non_exhaustive]
pub enum GuardReport {
    /// The worker is ready for the parts that it was asked to take, or reports why not.
    Ready { ask: u64, result: Result<(), Failure> },
    /// It has a copy of the session's state as of the cut, or reports why not.
    Copied { cut: Cut, result: Result<Copied, Failure> },
    /// From the buddy: it has all of that peer's part of the cut, or reports why not.
    Kept { cut: Cut, of: Peer, result: Result<(), Failure> },
    /// The session's state there is that of the cut, or the worker reports why not.
    Restored { ask: u64, result: Result<(), Failure> },
    /// From the heir: it has the estate as of the cut.
    Inherited { cut: Cut },
    /// The session has a master of that later term, and the worker takes nothing from this one any more.
    Superseded { term: u64 },
}

/// A task's part of a cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The task.
    pub task: Task,
    /// The process that has it, and that was copied or has loaded it.
    pub peer: Peer,
    /// The start of that process.
    pub incarnation: Incarnation,
    /// The peer under whose name the buddy keeps it.
    pub ward: Peer,
    /// Its buddy.
    pub buddy: Member,
    /// The extent of it.
    pub copied: Copied,
    /// The process has taken the task since the cut, in which there was nothing of it.
    pub is_bare: bool,
}

/// The state of a guarded session that another master needs to continue it: the newest complete cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estate {
    /// The cut.
    pub cut: Cut,
    /// The steps of all runs that are in it.
    pub at: u64,
    /// Its parts.
    pub parts: Vec<Part>,
    /// The numbers of steps and pieces that were given, and of what workers were asked for.
    pub steps: u64,
    /// See `steps`.
    pub pieces: u32,
    /// See `steps`.
    pub asks: u64,
    /// How many masters the session had before this one.
    pub term: u64,
}

/// Most names in [`Copied`].
pub const MAX_COPIED_NAMES: usize = 4;

/// A worker's part of a cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// How many resources it has; without any, nothing is sent to the buddy.
    pub resources: u64,
    /// Bytes of their states.
    pub bytes: u64,
    /// The first of their names.
    pub names: Vec<String>,
    /// Why some resources cannot be copied: a sentence for each, the first ones.
    pub unsaved: Vec<String>,
    /// The first resource that another session has changed since the cut before, if one has: `variable 'v'`.
    pub shared: Option<String>,
}

impl Copied {
    /// Whether the session had nothing there.
    pub fn is_empty(&self) -> bool {
        self.resources == 0 && self.unsaved.is_empty()
    }
}

/// A notice about a [guarded](crate::SessionOptions::guard) session, which comes as a [`StepEvent::Guard`](crate::StepEvent)
/// while it runs. As text it is a line for people.
///
/// ```
/// use meshtf::{GuardNote, Task};
///
/// let task = Task::new("ps", 0);
/// let note = GuardNote::Continued { task, at: 12_340, repeated: 60, after_ms: 540 };
/// assert_eq!(note.to_string(), "ps/0 was lost at step 12,340; continued from 12,280 after 0.6 s");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GuardNote {
    /// A task is lost, and the run waits for another process that takes its name.
    Waiting {
        /// The task, and why it is gone.
        task: Task,
        /// Why it is gone.
        why: String,
        /// The last step of the run that was done.
        at: u64,
        /// The longest wait, in milliseconds.
        limit_ms: u64,
    },
    /// The run continues from an earlier step.
    Continued {
        /// The task that was lost.
        task: Task,
        /// The last step of the run that was done.
        at: u64,
        /// The number of steps up to there that are computed again, also of runs before this one. Their values are not delivered
        /// twice.
        repeated: u64,
        /// How long the steps stood still, in milliseconds.
        after_ms: u64,
    },
    /// The master was lost, and the run continues with another, from an earlier step.
    Inherited {
        /// The task of the master that was lost.
        task: Task,
        /// The last step of the run that was known to be done.
        at: u64,
        /// The number of steps up to there that are computed again.
        repeated: u64,
        /// How long the steps stood still, in milliseconds.
        after_ms: u64,
    },
    /// The session is not guarded for now, and why.
    Unguarded {
        /// Why.
        why: String,
    },
}

impl GuardNote {
    /// The same note if so many steps precede those that it counts.
    #[must_use]
    pub fn after_steps(self, done: u64) -> GuardNote {
        match self {
            GuardNote::Waiting { task, why, at, limit_ms } => GuardNote::Waiting { task, why, at: done + at, limit_ms },
            GuardNote::Continued { task, at, repeated, after_ms } => {
                GuardNote::Continued { task, at: done + at, repeated, after_ms }
            }
            note @ (GuardNote::Inherited { .. } | GuardNote::Unguarded { .. }) => note,
        }
    }
}

impl GuardNote {
    /// The line for people, with the node that continues the run if the master was lost.
    pub(crate) fn text(&self, by: Option<&Task>) -> String {
        let mut text = String::new();
        // A string takes all.
        let _ = self.write(&mut text, by);
        text
    }

    fn write(&self, f: &mut impl fmt::Write, by: Option<&Task>) -> fmt::Result {
        match self {
            GuardNote::Waiting { task, why, at, limit_ms } => {
                let (task, at, limit) = (task.short(), Grouped(*at), limit_ms / 1000);
                write!(
                    f,
                    "{task} was lost at step {at} ({why}); waiting up to {limit} s for a process that takes its name"
                )
            }
            GuardNote::Continued { task, at, repeated, after_ms }
            | GuardNote::Inherited { task, at, repeated, after_ms } => {
                let from = Grouped(at.saturating_sub(*repeated));
                let (task, at, tenths) = (task.short(), Grouped(*at), after_ms.div_ceil(100));
                let which = if matches!(self, GuardNote::Inherited { .. }) { "the master " } else { "" };
                let after = format!("{}.{} s", tenths / 10, tenths % 10);
                let by = by.filter(|_| !which.is_empty()).map(|by| format!("by {} ", by.short())).unwrap_or_default();
                write!(f, "{which}{task} was lost at step {at}; continued {by}from {from} after {after}")
            }
            GuardNote::Unguarded { why } => write!(f, "the steps are not guarded against the loss of a task: {why}"),
        }
    }
}

impl fmt::Display for GuardNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None)
    }
}

/// A number with a comma between each three digits.
pub(crate) struct Grouped(pub u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                write!(f, ",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_a_line_and_counts_the_steps_of_its_run() {
        let task = Task::new("ps", 0);
        let lost = GuardNote::Continued { task: task.clone(), at: 340, repeated: 60, after_ms: 540 };
        let line = "ps/0 was lost at step 12,340; continued from 12,280 after 0.6 s";
        assert_eq!(lost.after_steps(12_000).to_string(), line);
        let waiting = GuardNote::Waiting { task, why: "it left".into(), at: 999, limit_ms: 60_000 };
        let line = "ps/0 was lost at step 999 (it left); waiting up to 60 s for a process that takes its name";
        assert_eq!(waiting.clone().after_steps(0).to_string(), line);
        let inherited = GuardNote::Inherited { task: Task::new("ps", 1), at: 1040, repeated: 40, after_ms: 1240 };
        let line = "the master ps/1 was lost at step 1,040; continued from 1,000 after 1.3 s";
        assert_eq!(inherited.clone().after_steps(7).to_string(), line, "it counts the steps of the whole run");
        let line = "the master ps/1 was lost at step 1,040; continued by ps/2 from 1,000 after 1.3 s";
        assert_eq!(inherited.text(Some(&Task::new("ps", 2))), line);
        assert!(waiting.after_steps(999_001).to_string().contains("at step 1,000,000 "));
    }
}
