//! Copies of the variables of a task in the memory of another one, its buddy, so that they outlive the process of the task. Pure
//! data.
//!
//! A node is asked about them by [inquiries](super::inquiry). Only the process that holds a task places copies of its variables,
//! or has them dropped. Any member of the mesh may ask for one, as it may read the variables.

use meshtf_tensor::device::Task;
use serde::{Deserialize, Serialize};

use super::guard::SentResource;

/// How long a buddy keeps a copy of which it has heard nothing.
pub const KEPT_SECONDS: u64 = 600;
/// Most tasks of whose variables a node keeps copies.
pub const MAX_TASKS: usize = 1024;

/// Which of the copies of a task is the newer one: never an earlier process's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// The number of the process that made it: greater than that of each process whose copies it has found.
    pub life: u64,
    /// The number of the copy among those of this process, from 1.
    pub number: u64,
}

/// Most marks on the variables of a task: the last one that was set.
pub const MAX_MARKS: usize = 1;

/// A mark on the variables of a task: they are as they were when it was set, or have changed since. A copy that was taken later
/// has it, too, and so has the process that begins with this copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Who sets it: a random number. There is one mark of each, which takes the place of the one before.
    pub line: u128,
    /// Which one it is.
    pub number: u64,
}

/// An inquiry about copies of the variables of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AskCopies {
    /// From the process that holds the task: keep this, one of the `chunks` of a copy, which come in order. Once the last one
    /// is there, the copy takes the place of the one before. The tensors: for each variable that is not the same as in `base`,
    /// first its form, as bytes, and then its value. Answered by [`ToldCopies::Kept`], [`Later`](ToldCopies::Later) or
    /// [`Unknown`](ToldCopies::Unknown).
    Keep {
        /// The task.
        task: Task,
        /// Which copy.
        stamp: Stamp,
        /// The copy that the buddy has, without which this one is not whole.
        base: Option<Stamp>,
        /// How long ago it was taken, in milliseconds.
        age_ms: u64,
        /// The number of the chunk, from 0.
        chunk: u32,
        /// How many there are.
        chunks: u32,
        /// The marks on the variables, at most [`MAX_MARKS`].
        marks: Vec<Mark>,
        /// The variables.
        resources: Vec<SentResource>,
    },
    /// From the process that holds the task: its variables are still those of this copy. Answered as [`AskCopies::Keep`].
    Same {
        /// The task.
        task: Task,
        /// The newest copy.
        stamp: Stamp,
    },
    /// From the process that holds the task: drop the copies up to this one, and take none of them that comes late. Answered by
    /// [`ToldCopies::Kept`].
    Drop {
        /// The task.
        task: Task,
        /// The last copy that is dropped.
        until: Stamp,
    },
    /// Which copy of the task's variables is there? Answered by [`ToldCopies::Found`].
    Find {
        /// The task.
        task: Task,
    },
    /// A chunk of a copy. Answered by [`ToldCopies::Part`], with tensors as [`AskCopies::Keep`] has them, or
    /// [`ToldCopies::Unknown`].
    Load {
        /// The task.
        task: Task,
        /// Which copy.
        stamp: Stamp,
        /// The number of the chunk, from 0.
        chunk: u32,
    },
}

impl AskCopies {
    /// The task whose variables these are, and whether only the process that holds it may ask for this.
    pub fn about(&self) -> (&Task, bool) {
        match self {
            AskCopies::Keep { task, .. } | AskCopies::Same { task, .. } | AskCopies::Drop { task, .. } => (task, true),
            AskCopies::Find { task } | AskCopies::Load { task, .. } => (task, false),
        }
    }
}

/// The answer to an inquiry about copies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ToldCopies {
    /// Done.
    Kept,
    /// A later copy is there, or was dropped.
    Later {
        /// That one.
        stamp: Stamp,
    },
    /// That copy, or its base, is not there.
    Unknown,
    /// The newest copy, if there is one.
    Found(Option<FoundCopy>),
    /// A chunk of the copy.
    Part {
        /// Its variables, each with its state.
        resources: Vec<SentResource>,
    },
}

/// A copy that a node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundCopy {
    /// Which one.
    pub stamp: Stamp,
    /// How many variables it has.
    pub variables: u64,
    /// Bytes of their states.
    pub bytes: u64,
    /// How long ago they were as it has them, in milliseconds.
    pub age_ms: u64,
    /// In how many chunks it is sent.
    pub chunks: u32,
    /// The marks on the variables.
    pub marks: Vec<Mark>,
}
