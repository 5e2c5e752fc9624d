//! A session that is placed by cost may continue without a lost task that had no state of it: another plan does without. If there
//! is none, or the tasks that are up lack the memory for it, the lost one is waited for as any other.

use meshtf_graph::plan::{PlaceBy, Plan, totals};
use meshtf_tensor::device::Task;

use super::super::guard::{Part, Phase};
use super::super::{Machine, ToPlan};
use super::{Recovery, Stage};
use crate::protocol::{Cluster, SessionOptions};

/// Whether tasks without a state of the session are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// All tasks are waited for that are in the cut.
    AwaitedAll,
    /// The same, and the one that is lost: without it there is no plan.
    AwaitedTask,
    /// Those without a state are not waited for. `is_left`: one of them is down, or the one that is lost.
    Left { is_left: bool },
}

impl Absent {
    pub fn of(options: &SessionOptions) -> Absent {
        match options.place_by {
            PlaceBy::Names => Absent::AwaitedAll,
            PlaceBy::Cost | PlaceBy::Throughput => Absent::Left { is_left: false },
        }
    }

    /// Plans are made now.
    pub fn is_left(&mut self, leaves_some: bool) {
        if let Absent::Left { is_left } = self {
            *is_left = leaves_some;
        }
    }
}

impl Recovery {
    /// Whether the session continues without the task of a part.
    pub(super) fn leaves(&self, part: &Part, cluster: &Cluster) -> bool {
        let may_leave = matches!(self.absent, Absent::Left { .. }) && part.copied.is_empty();
        may_leave && cluster.member(&part.task).is_none()
    }

    /// The tasks that are to be there.
    pub(super) fn awaited<'a>(&'a self, parts: &'a [Part], cluster: &'a Cluster) -> impl Iterator<Item = &'a Task> {
        let lost = (self.absent == Absent::AwaitedTask).then_some(&self.task);
        parts.iter().filter(|part| !self.leaves(part, cluster)).map(|part| &part.task).chain(lost)
    }
}

impl Machine {
    /// Whether the plans that are made now do without a task that is down.
    pub(super) fn leaves_tasks(&self) -> bool {
        let phase = self.guard.as_ref().map(|guard| &guard.phase);
        matches!(phase, Some(Phase::Lost(Recovery { absent: Absent::Left { is_left: true }, .. })))
    }

    /// A plan without a task that is down cannot be made, or is refused: whether all tasks are waited for from now on.
    pub(super) fn await_all(&mut self) -> bool {
        if !self.leaves_tasks() {
            return false;
        }
        if let Some(Phase::Lost(recovery)) = self.guard.as_mut().map(|guard| &mut guard.phase) {
            recovery.absent = Absent::AwaitedTask;
            recovery.stage = Stage::Waiting;
            recovery.entered = self.now;
        }
        true
    }
}

/// Whether a device is known to lack the memory for its part of a plan.
pub(super) fn lacks_memory(plan: &Plan, of: &ToPlan, cluster: &Cluster) -> bool {
    totals(plan, of.graph(), &cluster.facts()).values().any(|total| total.over().is_some())
}
