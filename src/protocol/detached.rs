//! Detached runs: runs of steps that a node of the mesh makes by itself, after their client has left. Pure data, and bounded.
//!
//! A node is asked about them by [inquiries](super::inquiry); any member of the mesh may ask. Whoever follows a run asks again
//! and again for the lines that it does not have yet, so that a slow one never holds up the run.

use meshtf_graph::NodeDef;
use meshtf_graph::plan::Signature;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Failure;
use serde::{Deserialize, Serialize};

use super::look::Fetched;
use super::status::{shorten, shorten_to};
use super::training::{StateFile, Training, TrainingInfo, TrainingStatus};
use super::{Constants, Peer, SessionId, SessionOptions};

/// Most detached runs of one node that are under way.
pub const MAX_RUNNING: usize = 64;
/// Most detached runs of one node that start at a time: half of the inquiries that it answers at a time.
pub const MAX_STARTING: usize = 8;
/// Most runs of other nodes that a node is to continue.
pub const MAX_INHERITED: usize = 64;
/// Most that have ended and are kept, for this time at most.
pub const MAX_ENDED: usize = 64;
/// See [`MAX_ENDED`].
pub const KEPT_SECONDS: u64 = 24 * 60 * 60;
/// Most lines of one run that are kept, and most bytes of their values.
pub const MAX_LINES: usize = 1024;
/// See [`MAX_LINES`].
pub const MAX_LINE_BYTES: usize = 4 << 20;
/// Most bytes of the last values of one run, and of all values of the runs of a node that have ended.
pub const MAX_VALUE_BYTES: usize = 64 << 20;
/// Most lines of one answer; bytes and number of their values, unless it is one line.
pub const MAX_TOLD_LINES: usize = 256;
/// See [`MAX_TOLD_LINES`].
pub const MAX_TOLD_BYTES: usize = 1 << 20;
/// See [`MAX_TOLD_LINES`].
pub const MAX_TOLD_TENSORS: usize = 1 << 14;
/// Most bytes of the text of a failure in a status.
pub const MAX_FAILURE_BYTES: usize = 4096;
/// Most scalars in a status.
pub const MAX_FETCHED: usize = 4;

/// An inquiry about detached runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AskDetached {
    /// Begin a run, unless the node has it already. The tensors: the feeds, in the order of the signature, and then the
    /// constants.
    Launch {
        /// Its name, which the asker has drawn: so it can end the run whatever becomes of the answer.
        run: SessionId,
        /// The run.
        launch: Box<Launch>,
    },
    /// Begin a training, unless the node has it already. See [`Training`] for the tensors.
    Train {
        /// Its name, as that of a run.
        run: SessionId,
        /// The training.
        training: Box<Training>,
    },
    /// A part of a saved state of a training: a tensor of bytes, [`MAX_PART_BYTES`](super::training::MAX_PART_BYTES) at most.
    State {
        /// The run.
        run: SessionId,
        /// The state.
        file: StateFile,
        /// The first byte.
        offset: u64,
    },
    /// Those that the node has.
    List,
    /// The status of a run, and its lines after that number.
    Follow {
        /// The run.
        run: SessionId,
        /// The number; 0 for all that are kept.
        after: u64,
    },
    /// End a run.
    Stop {
        /// The run.
        run: SessionId,
        /// Cancel the steps under way; otherwise it ends between two steps.
        now: bool,
    },
    /// From the node of a run to its heir, which continues the run if that node is lost. The tensors are those of the launch.
    Inherit {
        /// The run.
        run: SessionId,
        /// The participant that began it.
        by: Peer,
        /// The task of the node.
        task: Task,
        /// How long ago it began.
        age_ms: u64,
        /// The run as it was to begin.
        launch: Box<Launch>,
    },
    /// To the heir: so many steps of a run are done.
    Reached {
        /// The run.
        run: SessionId,
        /// The steps.
        step: u64,
    },
    /// To the heir: a run is over.
    Disinherit {
        /// The run.
        run: SessionId,
    },
}

/// The answer of a node about its detached runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ToldDetached {
    /// The run has begun, or it is to end.
    Status(Box<DetachedStatus>),
    /// The runs of the node, the newest first.
    List(Vec<DetachedStatus>),
    /// A part of what a run has to tell. The tensors are the values of its lines, line by line.
    Followed(Box<Followed>),
    /// A part of a state, which is the tensor.
    State {
        /// Bytes of the whole.
        bytes: u64,
        /// Another number if the file was replaced since an earlier part.
        stamp: u64,
    },
    /// The heir has noted it.
    Noted,
}

/// A run that is to begin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// The name of the graph's file.
    pub title: String,
    /// The nodes, without their large constants.
    #[serde(with = "super::packed::value")]
    pub graph: Vec<NodeDef>,
    /// Those constants; none of them is kept by its content.
    pub constants: Constants,
    /// The options of the session.
    pub options: SessionOptions,
    /// The feeds, fetches and targets of each step.
    pub signature: Signature,
    /// The number of steps.
    pub steps: u64,
    /// The fetches of every `every`-th step are lines; 0: of none.
    pub every: u64,
    /// Another node continues it if the node is lost.
    pub has_heir: bool,
    /// The asker follows it: the run waits for it, and ends with it.
    pub is_attended: bool,
}

/// A detached run, as its node describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetachedStatus {
    /// Its name: that of its session.
    pub run: SessionId,
    /// The name of the graph's file.
    pub title: String,
    /// The participant that began it.
    pub by: Peer,
    /// Where it stands.
    pub state: DetachedState,
    /// The steps that are done, and how many there are to be.
    pub step: u64,
    /// See `step`.
    pub of: u64,
    /// The rate of the last seconds, while it runs.
    pub steps_per_second: Option<f64>,
    /// How long ago it began.
    pub age_ms: u64,
    /// How long ago it ended.
    pub ended_ms: Option<u64>,
    /// The last values of scalars that it fetches.
    pub fetched: Vec<Fetched>,
    /// The last notice: a task was lost, or the result is too large to be kept.
    pub notice: Option<String>,
    /// The participant that would continue it now if its node were lost.
    pub heir: Option<Peer>,
    /// Its states, if it is a training.
    pub training: Option<TrainingStatus>,
}

/// Where a detached run stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DetachedState {
    /// Steps are under way.
    Running,
    /// It was asked to end, and the steps under way end.
    Ending,
    /// All steps are done.
    Done,
    /// It was ended before.
    Stopped {
        /// By this participant.
        by: Peer,
    },
    /// A step failed, or a task was lost for good.
    Failed(Failure),
    /// Another node continues it: this one was cut off for a while.
    Moved,
}

impl DetachedState {
    /// Its stable name.
    pub fn name(&self) -> &'static str {
        match self {
            DetachedState::Running => "running",
            DetachedState::Ending => "ending",
            DetachedState::Done => "done",
            DetachedState::Stopped { .. } => "stopped",
            DetachedState::Failed(_) => "failed",
            DetachedState::Moved => "moved",
        }
    }

    /// Whether no step follows.
    pub fn is_over(&self) -> bool {
        !matches!(self, DetachedState::Running | DetachedState::Ending)
    }
}

impl DetachedStatus {
    /// Cuts it to its limits.
    pub fn cut(mut self) -> DetachedStatus {
        shorten(&mut self.title);
        self.notice.iter_mut().for_each(shorten);
        self.fetched.truncate(MAX_FETCHED);
        self.fetched.iter_mut().for_each(|one| shorten(&mut one.name));
        if let DetachedState::Failed(failure) = &mut self.state {
            shorten_to(&mut failure.message, MAX_FAILURE_BYTES);
            let names = [&mut failure.node, &mut failure.op, &mut failure.device, &mut failure.task];
            names.into_iter().flatten().for_each(shorten);
        }
        self
    }
}

/// The part of a run after a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Followed {
    /// The run as it is now.
    pub status: DetachedStatus,
    /// The names of its fetches, if there are lines or last values.
    pub fetches: Vec<String>,
    /// The lines that follow, in their order.
    pub lines: Vec<Line>,
    /// The lines between the asked one and these that are not kept any more.
    pub missed: u64,
    /// More lines follow these already.
    pub has_more: bool,
    /// The run is over and these are all its lines: the values of this step come after theirs, unless they were not kept.
    pub last: Option<u64>,
    /// The run is over, and this is why the values of its last step are not kept.
    pub unkept: Option<String>,
    /// If it is a training.
    pub training: Option<TrainingInfo>,
}

/// A line of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Counted from 1.
    pub number: u64,
    /// Its content.
    pub what: LineKind,
}

/// The content of a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LineKind {
    /// The fetches of a step: a tensor for each.
    Values {
        /// The step.
        step: u64,
    },
    /// The fetches of a step, which are too large to be kept.
    LeftOut {
        /// The step.
        step: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A notice about the run.
    Notice(String),
    /// A training is about to make its first step.
    Began {
        /// The steps that were done before.
        start: u64,
        /// The time since the run began.
        ms: u64,
    },
    /// A step of a training: a tensor of its values.
    Trained {
        /// The step.
        step: u64,
        /// See [`Began`](LineKind::Began).
        ms: u64,
    },
    /// An evaluation after a step: a tensor of its values.
    Evaluated {
        /// The step.
        step: u64,
        /// Two more tensors: class, predicted class and number of the examples with them, in rows; and the names of the classes.
        has_confusion: bool,
    },
    /// The last evaluation was that of the training.
    EvaluatedLast,
    /// The training ends after this step, since its evaluations do not improve.
    Enough {
        /// The step.
        step: u64,
        /// The value that is watched.
        of: String,
        /// The best one.
        best: f64,
        /// The step after which it was that.
        at: u64,
    },
}

impl LineKind {
    /// The number of its tensors, in a run with so many fetches.
    pub fn tensors(&self, fetches: usize) -> usize {
        match self {
            LineKind::Values { .. } => fetches,
            LineKind::Trained { .. } | LineKind::Evaluated { has_confusion: false, .. } => 1,
            LineKind::Evaluated { has_confusion: true, .. } => 3,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::failure::Code;

    use super::super::status::MAX_NAME_BYTES;
    use super::*;

    #[test]
    fn the_texts_of_a_status_have_limits() {
        let long = "é".repeat(1 << 16);
        let mut failure = Failure::new(Code::Internal, long.clone());
        failure.node = Some(long.clone());
        let status = DetachedStatus {
            run: SessionId(1),
            title: long.clone(),
            by: Peer::new("p"),
            state: DetachedState::Failed(failure),
            step: 3,
            of: 9,
            steps_per_second: None,
            age_ms: 1,
            ended_ms: Some(1),
            fetched: Vec::new(),
            notice: Some(long),
            heir: None,
            training: None,
        }
        .cut();
        let DetachedState::Failed(failure) = status.state else { panic!("it has failed") };
        let texts = [Some(status.title), status.notice, failure.node].map(|text| text.map_or(0, |text| text.len()));
        assert!(texts.iter().all(|bytes| (1..=MAX_NAME_BYTES).contains(bytes)), "{texts:?}");
        assert!((1..=MAX_FAILURE_BYTES).contains(&failure.message.len()) && failure.message.ends_with('…'));
    }
}
